//! What an earlier version wrote down is read as it was, and of the same requests the same is kept today.
//!
//! `log.sql` is a log as version 0.1.0 wrote it for the requests of `requests.ndjson`, and is never written again. `readings.json` is what
//! is made of it: the decisions as they are shown, the overview, a preview of every guard, the runs, what would be allowed next. With
//! `UPDATE_ROWS=1` it is written anew; a change in it is a change in how old rows are read.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use runguard_core::{GuardName, Timestamp};
use runguard_engine::engine::RULES;
use runguard_engine::preview::{Ask, preview};
use runguard_engine::settings::check_text;
use runguard_engine::{AuthorisedRequest, Clock, Engine, EngineOptions, KeyRing};
use runguard_guards::answer::Shape;
use runguard_guards::guard::ROUTES;
use runguard_guards::guard::api_circuit::Control;
use runguard_guards::input::Input;
use runguard_insight::insight::digest::Range;
use runguard_replay::format;
use runguard_replay::trace::Detail;
use runguard_store::{Durability, Embedded, Names, Options, Order, Role, RowFilter, Store};
use rusqlite::Connection;
use rusqlite::types::Value as Column;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const NOW: i64 = 1_700_000_000_000;
const SECOND: i64 = 1000;
const TENANT: &str = "acme";
const SETTINGS: &str = r#"
[guards.handoff]
mode = "observe"
[guards.budget]
max_usd = 5.0
[guards.api_circuit]
failure_threshold = 3
[guards.no_match_reprompt.steps.menu]
max_reprompts = 0
mode = "observe"
"#;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/old_rows").join(name)
}

/// The same secret and the same chance every time.
async fn open(folder: &Path) -> Engine {
    let mut settings = check_text(Path::new("test.toml"), SETTINGS).unwrap().settings;
    settings.store.data = folder.to_string_lossy().into_owned();
    let options = Options {
        folder: folder.to_owned(),
        durability: Durability::Process,
        memory_bytes: 1 << 24,
        retention_days: 36_500,
        role: Role::Whole,
        names: Names::keyed([7; 16]),
    };
    let store = Store::Embedded(Embedded::open(options, RULES).unwrap());
    Engine::new(store, EngineOptions { clock: Clock::Virtual, settings, keys: KeyRing::default(), seed: Some(1) }).await.unwrap()
}

/// Plays the requests, each a second after the one before. A value `$name` is the newest that an answer gave by that name.
async fn play(engine: &Engine) {
    let mut given: serde_json::Map<String, Value> = serde_json::Map::new();
    let (tenant, mut now): (Arc<str>, i64) = (TENANT.into(), NOW);
    for line in fs::read_to_string(file("requests.ndjson")).unwrap().lines() {
        now += SECOND;
        let now = Timestamp::from_millis(now);
        let (path, mut body): (String, Value) = serde_json::from_str(line).unwrap();
        if path == "control" {
            let control = [("open", Control::Open), ("close", Control::Close), ("reset", Control::Reset)];
            let (_, control) = control.into_iter().find(|(name, _)| body == *name).unwrap();
            engine.control_circuit(TENANT, "orders", control, now).await.unwrap();
            continue;
        }
        for value in body.as_object_mut().unwrap().values_mut() {
            if let Some(earlier) = value.as_str().and_then(|text| text.strip_prefix('$')) {
                *value = given[earlier].clone();
            }
        }
        let route = ROUTES.iter().find(|route| route.path == path).unwrap();
        let body = serde_json::to_vec(&body).unwrap();
        let input = Input::read(&body, route.fields).unwrap();
        let operation = (route.read)(&input);
        let asked =
            AuthorisedRequest { tenant: &tenant, operation: &*operation, warnings: &[], now, shape: Shape::Full, idempotency: None };
        let answered = engine.ask(asked).await.unwrap();
        if let Ok(Value::Object(answer)) = serde_json::from_str(&answered.body) {
            given.extend(answer);
        }
    }
}

/// All that is kept of requests and of how they ended; sentences, the form of events and hashes of calls may change, and what a call
/// used is kept besides.
fn kept(log: &Connection) -> Vec<Vec<Column>> {
    let input = "CASE WHEN input LIKE '%\"call\":%' THEN '' ELSE json_remove(input, '$.used') END";
    let columns = format!("at, id, tenant, guard, kind, session, subject, outcome, reason, {input}");
    let mut select = log.prepare(&format!("SELECT {columns} FROM log ORDER BY seq")).unwrap();
    let count = select.column_count();
    let rows = select.query_map([], |row| (0..count).map(|column| row.get(column)).collect()).unwrap();
    rows.map(|row| row.unwrap()).collect()
}

fn assert_same(made: &str, name: &str) {
    if std::env::var_os("UPDATE_ROWS").is_some() {
        fs::write(file(name), made).unwrap();
    }
    let expected = fs::read_to_string(file(name)).unwrap();
    for (number, (made, expected)) in made.lines().zip(expected.lines()).enumerate() {
        assert_eq!(made, expected, "line {} of {name}", number + 1);
    }
    assert_eq!(made.lines().count(), expected.lines().count());
}

#[tokio::test]
async fn what_is_kept_is_what_was_and_rows_of_an_earlier_version_are_read_as_it_read_them() {
    let (old_folder, new_folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let log_of = |folder: &Path| Connection::open(folder.join("runguard.db")).unwrap();
    let old_log = log_of(old_folder.path());
    old_log.execute_batch(&fs::read_to_string(file("log.sql")).unwrap()).unwrap();
    let engine = open(new_folder.path()).await;
    play(&engine).await;
    engine.stop();
    let (today, old) = (kept(&log_of(new_folder.path())), kept(&old_log));
    assert_eq!(today.len(), old.len());
    for (today, old) in today.into_iter().zip(old) {
        assert_eq!(today, old);
    }
    drop(old_log);

    let engine = open(old_folder.path()).await;
    let readings = serde_json::to_string_pretty(&readings(&engine, old_folder.path()).await).unwrap();
    assert_same(&(readings + "\n"), "readings.json");
}

async fn readings(engine: &Engine, folder: &Path) -> Value {
    let rows = engine.rows(RowFilter::default(), Order::OldestFirst, None, 1000).await.unwrap();
    let answers: Vec<Value> = rows.iter().map(|row| serde_json::from_str(&row.answer).unwrap()).collect();
    let range = Range { since_ms: NOW, until_ms: NOW + 3_600_000, bucket_seconds: 3600, ..Range::default() };
    let mut previews = serde_json::Map::new();
    // The log knows nothing of a guard that is newer than it.
    for guard in GuardName::ALL.iter().filter(|guard| rows.iter().any(|row| row.guard.known() == Some(**guard))) {
        for (name, settings) in [("as it is", json!({})), ("off", json!({"mode": "off"})), ("stricter", stricter(*guard))] {
            let Value::Object(settings) = settings else { continue };
            let ask = Ask { guard: *guard, settings, tenant: None, subject: None, since: 0, until: i64::MAX };
            previews.insert(format!("{guard} {name}"), json!(preview(engine, ask).await.unwrap()));
        }
    }
    let runs: Vec<String> = format::open(folder, None, Detail::TEXTS)
        .unwrap()
        .map(|run| run.unwrap())
        .flat_map(|run| {
            let steps: Vec<String> = run.steps.iter().map(|step| format!("{step:?}")).collect();
            std::iter::once(format!("{} {}", run.id, run.model)).chain(steps)
        })
        .collect();
    let mut outlooks = Vec::new();
    for session in ["s1", "s2", "s3", "s4"] {
        let view = engine.session(TENANT, session, Timestamp::from_millis(NOW + 100 * SECOND), None, 10).await.unwrap().unwrap();
        outlooks.extend(view.outlooks.iter().map(|outlook| format!("{session} {outlook:?}")));
    }
    json!({"answers": answers, "overview": engine.overview(range).await.unwrap(), "previews": previews, "runs": runs, "outlooks": outlooks})
}

/// Settings under which some of the requests would have ended otherwise.
fn stricter(guard: GuardName) -> Value {
    let changes = [
        (GuardName::AiTaskRetry, json!({"max_retries": 1, "patterns": {"summarise": "x"}})),
        (GuardName::Handoff, json!({"max_handoffs": 1, "mode": "enforce"})),
        (GuardName::KbRequery, json!({"botpress": {"max_queries": 1}, "voiceflow": {"max_queries": 1}})),
        (GuardName::AgentAction, json!({"max_total": 1})),
        (GuardName::NoMatchReprompt, json!({"max_reprompts": 0})),
        (GuardName::CaptureSlotFill, json!({"max_attempts": 1})),
        (GuardName::ApiCircuit, json!({"failure_threshold": 1})),
        (GuardName::Loop, json!({"repeats": 2})),
        (GuardName::Stall, json!({"identical": [2, 2, 2]})),
        (GuardName::Budget, json!({"max_usd": 0.1})),
        (GuardName::ToolCall, json!({"default_limit": 1, "limits": {"search_knowledge": 1}})),
        (GuardName::ActionGroup, json!({"max_failures": 1})),
    ];
    changes.into_iter().find(|(known, _)| *known == guard).map_or_else(|| json!({}), |(_, change)| change)
}
