//! The log of a real engine, read back as runs, while the engine still has it open.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use runguard_core::Timestamp;
use runguard_core::detect::stall::{Outcome, error_fingerprint, result_fingerprint};
use runguard_engine::engine::open_store;
use runguard_engine::settings::check_text;
use runguard_engine::{AuthorisedRequest, Clock, Engine, EngineOptions, KeyRing};
use runguard_guards::answer::Shape;
use runguard_guards::guard::ROUTES;
use runguard_guards::input::Input;
use runguard_replay::format::{self, Format, OpenError};
use runguard_replay::trace::{Detail, Kind, Run};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

const NOW: i64 = 1_700_000_000_000;

async fn engine(folder: &Path) -> Engine {
    let mut settings = check_text(Path::new("test.toml"), "").unwrap().settings;
    settings.store.data = folder.to_string_lossy().into_owned();
    let store = open_store(&settings).unwrap();
    Engine::new(store, EngineOptions { clock: Clock::Virtual, settings, keys: KeyRing::default(), seed: None }).await.unwrap()
}

async fn ask(engine: &Engine, tenant: &str, path: &str, body: Value, at: i64) {
    let route = ROUTES.iter().find(|route| route.path == path).unwrap();
    let body = serde_json::to_vec(&body).unwrap();
    let input = Input::read(&body, route.fields).unwrap();
    let operation = (route.read)(&input);
    let tenant: Arc<str> = tenant.into();
    let now = Timestamp::from_millis(NOW + at);
    engine
        .ask(AuthorisedRequest { tenant: &tenant, operation: &*operation, warnings: &[], now, shape: Shape::Full, idempotency: None })
        .await
        .unwrap();
}

fn runs(path: &Path) -> Vec<Run> {
    format::open(path, None, Detail::FINGERPRINTS).unwrap().map(|run| run.unwrap()).collect()
}

#[tokio::test]
async fn sessions_are_runs_with_arguments_results_errors_and_cost() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path()).await;
    let read = |path: &str| json!({"session_id": "s", "tool": "read", "args": {"path": path}});
    let with = |mut body: Value, more: Value| {
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    // Each call goes through two doors; another session's come in between.
    for (at, path) in [(0, "a"), (10, "b"), (20, "a")] {
        ask(&engine, "default", "/guard/loop", read(path), at).await;
        let search = json!({"session_id": "other", "tool": "search", "args": {"q": path}});
        ask(&engine, "default", "/guard/tool-call", search.clone(), at + 1).await;
        // One that failed may be made again.
        ask(&engine, "default", "/guard/tool-call/record", with(search, json!({"error": true})), at + 1).await;
        let came = if path == "b" { json!({"error": "no such file: b"}) } else { json!({"result": "3 lines"}) };
        ask(&engine, "default", "/guard/stall", with(read(path), came), at + 2).await;
        let cost = json!({"session_id": "s", "usd": 0.25, "tokens": 100});
        ask(&engine, "default", "/guard/budget/record", cost, at + 3).await;
    }
    ask(&engine, "default", "/guard/stall", json!({"session_id": "s", "message": "I am done."}), 40).await;
    ask(&engine, "acme", "/guard/agent-action", json!({"session_id": "s", "action_name": "look_up", "action_params_hash": "1"}), 50).await;
    ask(
        &engine,
        "acme",
        "/guard/agent-action/result",
        json!({"session_id": "s", "action_name": "look_up", "result_summary": "gone", "error": true}),
        51,
    )
    .await;

    engine.store.flush().await.unwrap();
    for path in [folder.path().to_owned(), folder.path().join("runguard.db")] {
        assert_eq!(format::guess(&path).unwrap(), Format::DecisionLog);
        let runs = runs(&path);
        let names: Vec<(&str, usize)> = runs.iter().map(|run| (run.id.as_str(), run.steps.len())).collect();
        assert_eq!(names, [("acme/s", 1), ("other", 3), ("s", 4)]);

        let other = &runs[1].steps;
        assert!(other[0].args == other[2].args && other[0].args != other[1].args, "the same call leaves the same event");

        let steps = &runs[2].steps;
        assert!(steps[0].args == steps[2].args && steps[0].args != steps[1].args);
        assert!(steps[0].result.is_some() && steps[0].result == steps[2].result);
        let failed = Outcome::of(None, Some("no such file: b"));
        assert_eq!((steps[1].result, steps[1].error), (failed.result, failed.error), "what it said, and which kind of failure that is");
        assert_eq!((steps[3].kind, steps[3].args), (Kind::Message, result_fingerprint("I am done.")));
        let spent: Vec<(u64, f64)> = steps.iter().map(|step| (step.tokens, step.dollars)).collect();
        assert_eq!(spent, [(100, 0.25), (100, 0.25), (100, 0.25), (0, 0.0)]);
        assert_eq!((steps[1].at_millis, &*steps[1].tool), (Some(NOW + 12), "read"));
        assert_eq!(&*runs[2].place.file, folder.path().join("runguard.db"));

        let action = &runs[0].steps[0];
        assert_eq!((&*action.tool, action.error), ("look_up", Some(error_fingerprint("gone"))));
    }
    assert_eq!(format::files(folder.path()).unwrap(), [folder.path()], "a data folder is one log");
}

#[test]
fn a_database_of_something_else_is_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runguard.db");
    rusqlite::Connection::open(&path).unwrap().execute_batch("CREATE TABLE notes (text TEXT)").unwrap();
    let error = format::open(&path, None, Detail::FINGERPRINTS).unwrap_err();
    assert!(matches!(error, OpenError::Database { .. }));
    assert!(error.to_string().contains("no such table: log"), "{error}");
}
