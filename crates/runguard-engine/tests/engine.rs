//! The engine on a real store, asked the way the server asks: a route, a body, a tenant, a moment.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use proptest::prelude::*;
use runguard_core::row::Kind;
use runguard_core::{Reason, Timestamp};
use runguard_engine::engine::{fingerprint, open_store};
use runguard_engine::settings::{Settings, check_text};
use runguard_engine::{
    Answered, AuthorisedRequest, Circuit, CircuitQuery, Clock, Engine, EngineError, EngineOptions, Idempotency, KeyRing, Outcome,
};
use runguard_guards::answer::Shape;
use runguard_guards::guard::ROUTES;
use runguard_guards::guard::api_circuit::{Control, Forced};
use runguard_guards::input::Input;
use runguard_store::{Order, Row, RowFilter};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::task::JoinSet;

const NOW: i64 = 1_700_000_000_000;
const MINUTE: i64 = 60_000;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

const RETRY: &str = "/guard/ai-task-retry";
const HANDOFF: &str = "/guard/handoff";
const CIRCUIT_CHECK: &str = "/guard/api-circuit/check";
const CIRCUIT_RECORD: &str = "/guard/api-circuit/record";

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn settings(toml: &str) -> Settings {
    check_text(Path::new("test.toml"), toml).unwrap().settings
}

async fn start(folder: &Path, mut settings: Settings) -> Arc<Engine> {
    settings.store.data = folder.to_string_lossy().into_owned();
    let store = open_store(&settings).unwrap();
    Arc::new(Engine::new(store, EngineOptions { clock: Clock::Virtual, settings, keys: KeyRing::default(), seed: None }).await.unwrap())
}

/// An engine that can be stopped and started.
struct Service {
    folder: TempDir,
    engine: Arc<Engine>,
}

impl Service {
    async fn new() -> Self {
        Self::with(Settings::default()).await
    }

    async fn with(settings: Settings) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let engine = start(folder.path(), settings).await;
        Self { folder, engine }
    }

    async fn restart(self) -> Self {
        self.restart_after(|_| {}).await
    }

    async fn restart_after(self, between: impl FnOnce(&Path)) -> Self {
        let settings = Settings::clone(&self.engine.settings.load());
        drop(Arc::into_inner(self.engine).expect("somebody still uses the engine"));
        between(self.folder.path());
        let engine = start(self.folder.path(), settings).await;
        Self { folder: self.folder, engine }
    }

    async fn ask(&self, path: &str, body: Value, now: i64) -> Answered {
        ask(&self.engine, "acme", path, &body, now, None).await.unwrap()
    }

    async fn retry(&self, session: &str, now: i64) -> Outcome {
        self.ask(RETRY, json!({"session_id": session, "task_name": "classify"}), now).await.outcome
    }

    async fn rows(&self) -> Vec<Row> {
        self.engine.rows(RowFilter::default(), Order::OldestFirst, None, 100_000).await.unwrap()
    }
}

async fn ask(engine: &Engine, tenant: &str, path: &str, body: &Value, now: i64, key: Option<&str>) -> Result<Answered, EngineError> {
    let route = ROUTES.iter().find(|route| route.path == path).unwrap();
    let body = serde_json::to_vec(body).unwrap();
    let input = Input::read(&body, route.fields).unwrap();
    let operation = (route.read)(&input);
    let idempotency = key.map(|key| Idempotency { key, fingerprint: fingerprint(route.path, &body) });
    let tenant: Arc<str> = tenant.into();
    let asked = AuthorisedRequest {
        tenant: &tenant,
        operation: &*operation,
        warnings: &input.warnings,
        now: at(now),
        shape: Shape::Full,
        idempotency,
    };
    engine.ask(asked).await
}

fn json_of(answered: &Answered) -> Value {
    serde_json::from_str(&answered.body).unwrap()
}

/// Fails often enough to open the circuit of `api`.
async fn trip(service: &Service, now: i64) {
    for number in 0..10 {
        let body = json!({"session_id": format!("s{number}"), "endpoint_key": "api", "outcome": "failure"});
        service.ask(CIRCUIT_RECORD, body, now).await;
    }
}

async fn check_circuit(service: &Service, session: &str, now: i64) -> Answered {
    service.ask(CIRCUIT_CHECK, json!({"session_id": session, "endpoint_key": "api"}), now).await
}

async fn circuits_of(service: &Service, tenant: Option<&str>, now: i64) -> Vec<Circuit> {
    service.engine.circuits(CircuitQuery::first(tenant, 1000), at(now)).await.unwrap().circuits
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_tries_those_that_are_granted_are_kept() {
    let service = Service::new().await;
    let reserve = async |usd: f64, if_refused: &str| {
        let body = json!({"session_id": "s", "max_usd": 1.0, "usd": usd, "if_refused": if_refused});
        service.ask("/guard/budget/reserve", body, NOW).await.outcome
    };
    assert_eq!(reserve(2.0, "forgotten").await, Outcome::Blocked);
    assert_eq!(service.rows().await, [], "whoever then asks for less was not refused");
    assert_eq!(reserve(0.75, "forgotten").await, Outcome::Allowed);
    assert_eq!(reserve(0.5, "forgotten").await, Outcome::Blocked, "the first holds what it was granted");
    assert_eq!(reserve(0.5, "kept").await, Outcome::Blocked);
    let outcomes: Vec<_> = service.rows().await.iter().map(|row| row.outcome.answered()).collect();
    assert_eq!(outcomes, [Some(Outcome::Allowed), Some(Outcome::Blocked)], "who gives up says so");
}

// Repeated requests.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_request_gets_its_first_answer_byte_for_byte_and_counts_nothing() {
    let mut service = Service::new().await;
    let body = json!({"session_id": "s", "task_name": "classify", "unknown": 1});
    let mut first = Vec::new();
    for key in ["one", "two", "three"] {
        first.push(ask(&service.engine, "acme", RETRY, &body, NOW, Some(key)).await.unwrap());
    }
    let outcomes: Vec<Outcome> = first.iter().map(|answered| answered.outcome).collect();
    assert_eq!(outcomes, [Outcome::Allowed, Outcome::Allowed, Outcome::Blocked]);
    for round in 0..3 {
        for (key, first) in ["one", "two", "three"].into_iter().zip(&first) {
            let again = ask(&service.engine, "acme", RETRY, &body, NOW + 2 * HOUR, Some(key)).await.unwrap();
            assert!(again.replayed && !first.replayed);
            assert_eq!(again.body, first.body, "{key}, round {round}");
            assert_eq!((again.outcome, again.reason), (first.outcome, first.reason));
            assert_eq!(again.retry_after_seconds, first.retry_after_seconds);
        }
        assert_eq!(service.rows().await.len(), 3);
        service = match round {
            0 => service.restart().await,
            _ => service.restart_after(|folder| std::fs::remove_file(folder.join("index.db")).unwrap()).await,
        };
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_was_used_for_another_body_or_route_is_refused() {
    let service = Service::new().await;
    let body = json!({"session_id": "s", "task_name": "classify"});
    ask(&service.engine, "acme", RETRY, &body, NOW, Some("key")).await.unwrap();
    let other_body = json!({"session_id": "s", "task_name": "extract"});
    let refused = ask(&service.engine, "acme", RETRY, &other_body, NOW, Some("key")).await;
    assert!(matches!(refused, Err(EngineError::KeyReused)), "{refused:?}");
    let handoff = json!({"session_id": "s", "source_bot": "a", "target_bot": "b"});
    let refused = ask(&service.engine, "acme", HANDOFF, &handoff, NOW, Some("key")).await;
    assert!(matches!(refused, Err(EngineError::KeyReused)), "{refused:?}");
    assert_eq!(service.rows().await.len(), 1);
    assert_eq!(service.retry("s", NOW).await, Outcome::Allowed, "one of two slots is taken, not more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kept_answer_is_given_for_a_day_and_not_a_moment_longer() {
    let service = Service::new().await;
    let body = json!({"session_id": "s", "task_name": "classify"});
    let again = async |now: i64| ask(&service.engine, "acme", RETRY, &body, now, Some("key")).await.unwrap().replayed;
    assert!(!again(NOW).await);
    assert!(again(NOW + DAY - 1).await);
    assert!(again(NOW - HOUR).await, "a clock that went back");
    assert!(!again(NOW + DAY).await);
    assert!(again(NOW + DAY + 1).await, "and from there a day again");
    assert_eq!(service.rows().await.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_requests_with_one_key_at_the_same_time_one_counts() {
    let service = Service::new().await;
    for round in 0..10 {
        let body = json!({"session_id": format!("s{round}"), "task_name": "classify"});
        let mut tasks = JoinSet::new();
        for _ in 0..32 {
            let (engine, body, key) = (service.engine.clone(), body.clone(), format!("key {round}"));
            tasks.spawn(async move { ask(&engine, "acme", RETRY, &body, NOW, Some(&key)).await });
        }
        let mut counted = Vec::new();
        let mut replayed = Vec::new();
        for answer in tasks.join_all().await {
            match answer {
                Ok(answered) if answered.replayed => replayed.push(answered.body),
                Ok(answered) => counted.push(answered.body),
                Err(EngineError::StillRunning) => {}
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(counted.len(), 1);
        assert!(replayed.iter().all(|body| *body == counted[0]));
        assert_eq!(service.rows().await.len(), round + 1);
    }
}

// Counting.

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_64_who_race_for_the_last_slots_exactly_two_are_allowed() {
    let service = Service::new().await;
    for round in 0..5 {
        let mut tasks = JoinSet::new();
        for _ in 0..64 {
            let engine = service.engine.clone();
            let body = json!({"session_id": format!("s{round}"), "task_name": "classify"});
            tasks.spawn(async move { ask(&engine, "acme", RETRY, &body, NOW, None).await.unwrap() });
        }
        let answers = tasks.join_all().await;
        assert_eq!(answers.iter().filter(|answered| answered.outcome == Outcome::Allowed).count(), 2);
        assert!(
            answers
                .iter()
                .filter(|answered| answered.outcome == Outcome::Blocked)
                .all(|answered| { answered.reason == Some(Reason::RetryCapReached) && answered.retry_after_seconds == Some(3600) })
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_do_not_see_each_other() {
    let service = Service::new().await;
    let body = json!({"session_id": "s", "task_name": "classify"});
    for tenant in ["acme", "other"] {
        for expected in [Outcome::Allowed, Outcome::Allowed, Outcome::Blocked] {
            assert_eq!(ask(&service.engine, tenant, RETRY, &body, NOW, None).await.unwrap().outcome, expected, "{tenant}");
        }
        let handoff = json!({"session_id": "t", "source_bot": "a", "target_bot": "b"});
        let keyed = ask(&service.engine, tenant, HANDOFF, &handoff, NOW, Some("key")).await.unwrap();
        assert!(!keyed.replayed, "{tenant} has its own keys");
    }
    trip(&service, NOW).await;
    let circuit = json!({"session_id": "s", "endpoint_key": "api"});
    assert_eq!(ask(&service.engine, "acme", CIRCUIT_CHECK, &circuit, NOW, None).await.unwrap().outcome, Outcome::Blocked);
    assert_eq!(ask(&service.engine, "other", CIRCUIT_CHECK, &circuit, NOW, None).await.unwrap().outcome, Outcome::Allowed);
    assert_eq!(circuits_of(&service, Some("other"), NOW).await.len(), 0, "an endpoint without failures is nothing yet");
    service.engine.erase_session("acme", "s", at(NOW)).await.unwrap().unwrap();
    assert!(service.engine.session("acme", "s", at(NOW), None, 100).await.unwrap().is_none());
    let theirs = service.engine.session("other", "s", at(NOW), None, 100).await.unwrap().unwrap();
    assert_eq!(theirs.timeline.len(), 4);
    assert_eq!(ask(&service.engine, "other", RETRY, &body, NOW, None).await.unwrap().outcome, Outcome::Blocked);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decision_ids_go_up_with_the_log_whatever_the_clock_does_and_across_restarts() {
    let mut service = Service::new().await;
    for (number, now) in [NOW, NOW + 5, NOW - HOUR, NOW, 0, NOW + 1].into_iter().enumerate() {
        service.retry(&number.to_string(), now).await;
        if number % 2 == 1 {
            service = service.restart().await;
        }
    }
    let rows = service.rows().await;
    assert_eq!(rows.len(), 6);
    assert!(rows.windows(2).all(|pair| pair[0].id < pair[1].id), "{rows:#?}");
}

/// The row says what was answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_is_a_row_of_the_log() {
    let service = Service::new().await;
    let mut answers = Vec::new();
    for _ in 0..3 {
        answers.push(service.ask(RETRY, json!({"session_id": "s", "task_name": "classify"}), NOW).await);
    }
    answers.push(service.ask(CIRCUIT_RECORD, json!({"session_id": "s", "endpoint_key": "api", "outcome": "success"}), NOW).await);
    let rows = service.rows().await;
    assert_eq!(rows.len(), answers.len());
    for (row, answered) in rows.iter().zip(&answers) {
        let answer = json_of(answered);
        assert_eq!(serde_json::from_str::<Value>(&row.answer).unwrap(), answer);
        assert_eq!((row.id.as_str(), row.guard.code()), (answer["decision_id"].as_str().unwrap(), answer["guard"].as_str().unwrap()));
        assert_eq!((row.outcome.answered(), row.reason_code()), (Some(answered.outcome), answered.reason.map(Reason::code)));
        assert_eq!((&*row.tenant, &*row.session, row.at), ("acme", "s", NOW));
    }
    let kinds: Vec<&str> = rows.iter().map(|row| row.kind.code()).collect();
    assert_eq!(kinds, ["check", "check", "check", "record"]);
}

// Restarts.

/// What may lie between two requests without changing the second answer.
async fn interrupted(service: Service, how: usize) -> Service {
    match how {
        0 => service.restart().await,
        1 => service.restart_after(|folder| std::fs::remove_file(folder.join("index.db")).unwrap()).await,
        _ => {
            service.engine.store.flush().await.unwrap();
            service
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_go_on_after_a_restart() {
    for how in 0..3 {
        let service = Service::new().await;
        assert_eq!(service.retry("s", NOW).await, Outcome::Allowed);
        let service = interrupted(service, how).await;
        assert_eq!(service.retry("s", NOW + MINUTE).await, Outcome::Allowed);
        let service = interrupted(service, how).await;
        assert_eq!(service.retry("s", NOW + HOUR - 1).await, Outcome::Blocked);
        assert_eq!(service.retry("s", NOW + HOUR).await, Outcome::Allowed, "the first one has left the window");
        assert_eq!(service.retry("s", NOW + HOUR).await, Outcome::Blocked);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handoff_chain_goes_on_after_a_restart() {
    for how in 0..3 {
        let mut service = Service::new().await;
        for (number, target) in ["billing", "support", "billing"].into_iter().enumerate() {
            let body = json!({"session_id": "s", "source_bot": "o", "target_bot": target});
            assert_eq!(service.ask(HANDOFF, body, NOW + number as i64).await.outcome, Outcome::Allowed);
            service = interrupted(service, how).await;
        }
        let refused = service.ask(HANDOFF, json!({"session_id": "s", "source_bot": "o", "target_bot": "billing"}), NOW + 10).await;
        assert_eq!(refused.reason, Some(Reason::CycleDetected));
        assert_eq!(json_of(&refused)["chain"], json!(["billing", "support", "billing"]));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_circuit_stays_open_after_a_restart_and_lets_one_probe_through() {
    for how in 0..3 {
        let service = Service::new().await;
        trip(&service, NOW).await;
        let service = interrupted(service, how).await;
        assert_eq!(check_circuit(&service, "a", NOW + 1).await.reason, Some(Reason::CircuitJustTripped));
        let service = interrupted(service, how).await;
        let refused = check_circuit(&service, "a", NOW + 1000).await;
        assert_eq!((refused.reason, refused.retry_after_seconds), (Some(Reason::CircuitOpen), Some(44)));
        let probe = check_circuit(&service, "a", NOW + 45_000).await;
        assert_eq!(json_of(&probe)["probe"], json!(true));
        let service = interrupted(service, how).await;
        assert_eq!(check_circuit(&service, "b", NOW + 45_001).await.reason, Some(Reason::CircuitOpen), "the probe is out");
        let permit = json_of(&probe)["permit_id"].clone();
        let body = json!({"session_id": "a", "endpoint_key": "api", "outcome": "success", "permit_id": permit});
        assert_eq!(json_of(&service.ask(CIRCUIT_RECORD, body, NOW + 45_002).await)["phase"], json!("closed"));
        let service = interrupted(service, how).await;
        assert_eq!(check_circuit(&service, "b", NOW + 45_003).await.outcome, Outcome::Allowed);
    }
}

// Operators.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_view_shows_what_happened_and_what_would_be_allowed_next() {
    let service = Service::new().await;
    assert!(service.engine.session("acme", "s", at(NOW), None, 100).await.unwrap().is_none());
    service.retry("s", NOW).await;
    service.retry("s", NOW + 1).await;
    service.ask(HANDOFF, json!({"session_id": "s", "source_bot": "a", "target_bot": "b"}), NOW + 2).await;
    let mut service = service;
    for how in 0..3 {
        let view = service.engine.session("acme", "s", at(NOW + 3), None, 100).await.unwrap().unwrap();
        let guards: Vec<&str> = view.timeline.iter().map(|row| row.guard.code()).collect();
        assert_eq!(guards, ["ai_task_retry", "ai_task_retry", "handoff"]);
        let retry = view.outlooks.iter().find(|outlook| outlook.subject == "classify").unwrap();
        assert_eq!((retry.used, retry.ceiling, retry.reason), (2, 2, Some(Reason::RetryCapReached)));
        assert_eq!(retry.retry_at, Some(at(NOW + HOUR)));
        let page = service.engine.session("acme", "s", at(NOW), Some(view.timeline[0].seq), 1).await.unwrap().unwrap();
        assert_eq!(page.timeline, view.timeline[1..2]);
        service = interrupted(service, how).await;
    }
    let later = service.engine.session("acme", "s", at(NOW + 2 * HOUR), None, 100).await.unwrap().unwrap();
    assert!(later.outlooks.iter().all(|outlook| outlook.reason.is_none()), "{:?}", later.outlooks);
}

#[tokio::test]
async fn what_would_be_allowed_next_goes_by_the_mode() {
    let in_mode = |mode: &str| format!("[guards.ai_task_retry]\nmode = \"{mode}\"");
    for (mode, is_allowed) in [("enforce", false), ("observe", true), ("off", true)] {
        let service = Service::new().await;
        for number in 0..3 {
            service.retry("s", NOW + number).await;
        }
        service.engine.replace_settings(settings(&in_mode(mode)));
        let view = service.engine.session("acme", "s", at(NOW + 3), None, 10).await.unwrap().unwrap();
        let [outlook] = view.outlooks.as_slice() else { panic!("{:?}", view.outlooks) };
        assert_eq!((outlook.used, outlook.ceiling, outlook.reason.is_none()), (2, 2, is_allowed), "{mode}");
        assert_eq!(service.retry("s", NOW + 3).await != Outcome::Blocked, is_allowed, "{mode}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_erased_session_begins_anew_and_its_kept_answers_are_gone() {
    let service = Service::new().await;
    let body = json!({"session_id": "s", "task_name": "classify"});
    for key in ["one", "two"] {
        ask(&service.engine, "acme", RETRY, &body, NOW, Some(key)).await.unwrap();
    }
    service.retry("other", NOW).await;
    assert_eq!(service.retry("s", NOW).await, Outcome::Blocked);
    let erased = service.engine.erase_session("acme", "s", at(NOW)).await.unwrap().unwrap();
    assert_eq!(erased.log_rows, 3);
    assert!(service.engine.erase_session("acme", "s", at(NOW)).await.unwrap().is_none());
    let service = service.restart().await;
    assert!(service.engine.session("acme", "s", at(NOW), None, 100).await.unwrap().is_none());
    let outcomes: Vec<String> = service.rows().await.into_iter().map(|row| row.outcome.to_string()).collect();
    assert_eq!(outcomes, ["allowed", "session_erased"]);
    assert!(!ask(&service.engine, "acme", RETRY, &body, NOW, Some("one")).await.unwrap().replayed);
    assert_eq!(service.retry("s", NOW).await, Outcome::Allowed);
    assert_eq!(service.retry("s", NOW).await, Outcome::Blocked);
}

/// Its process was killed before anybody was told anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_erasure_that_nobody_was_promised_takes_no_life_that_came_since() {
    let later = NOW + 10_000;
    for (step, asked_since, left) in [("remove", false, 0), ("remove", true, 2), ("begun", true, 0)] {
        let service = Service::new().await;
        service.retry("s", NOW).await;
        if asked_since {
            service.retry("s", later).await;
        }
        let note = json!({"tenant": "acme", "whose": {"session": "s"}, "at": NOW, "step": step});
        let folder = service.folder.path().join("erasing");
        let service = service.restart_after(|_| {
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("0000000000000001.json"), note.to_string()).unwrap();
        });
        let service = service.await;
        let finishing = tokio::spawn(runguard_engine::erasure::finish(service.engine.clone()));
        while fs::read_dir(&folder).unwrap().any(|file| file.unwrap().path().extension().is_some()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        finishing.abort();
        let _ = finishing.await;
        let rows = service.rows().await.into_iter().filter(|row| row.session == "s").count();
        assert_eq!(rows, left, "{step}, asked since: {asked_since}");
        assert_eq!(service.retry("s", later).await == Outcome::Blocked, left == 2);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operators_word_on_a_circuit_holds_across_restarts_until_it_is_taken_back() {
    for how in 0..3 {
        let service = Service::new().await;
        service.engine.control_circuit("acme", "api", Control::Open, at(NOW)).await.unwrap();
        let service = interrupted(service, how).await;
        let circuits = circuits_of(&service, None, NOW).await;
        assert_eq!(circuits.len(), 1, "listed at once after a start");
        assert_eq!((&*circuits[0].tenant, &*circuits[0].endpoint_key), ("acme", "api"));
        assert_eq!((circuits[0].view.phase.code(), circuits[0].view.forced), ("open", Some(Forced::Open)));
        let refused = check_circuit(&service, "s", NOW).await;
        assert_eq!((refused.reason, refused.retry_after_seconds), (Some(Reason::CircuitOpen), None), "time does not help");
        service.engine.control_circuit("acme", "api", Control::Close, at(NOW)).await.unwrap();
        trip(&service, NOW).await;
        let service = interrupted(service, how).await;
        assert_eq!(check_circuit(&service, "s", NOW).await.outcome, Outcome::Allowed);
        service.engine.control_circuit("acme", "api", Control::Reset, at(NOW)).await.unwrap();
        let service = interrupted(service, how).await;
        trip(&service, NOW).await;
        assert_eq!(check_circuit(&service, "s", NOW).await.outcome, Outcome::Blocked, "automatic again");
        let said: Vec<String> =
            service.rows().await.into_iter().filter(|row| row.kind == Kind::Admin).map(|row| row.outcome.to_string()).collect();
        assert_eq!(said, ["circuit_forced_open", "circuit_forced_closed", "circuit_reset"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operators_word_outlives_the_log() {
    let service = Service::new().await;
    service.engine.control_circuit("acme", "api", Control::Open, at(NOW)).await.unwrap();
    service.engine.store.flush().await.unwrap();
    service.retry("s", NOW + 90 * DAY).await;
    service.engine.store.flush().await.unwrap();
    assert_eq!(service.rows().await.len(), 1, "the log has forgotten");
    assert_eq!(check_circuit(&service, "s", NOW + 90 * DAY).await.outcome, Outcome::Blocked);
    let service = service.restart().await;
    assert_eq!(check_circuit(&service, "s", NOW + 90 * DAY).await.outcome, Outcome::Blocked);
}

/// A window may be longer than the log is kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_window_longer_than_the_retention_still_counts() {
    let mut service = Service::with(settings("[guards.ai_task_retry]\nwindow = \"60d\"\n")).await;
    for now in [NOW, NOW] {
        assert_eq!(service.retry("s", now).await, Outcome::Allowed);
    }
    for days in [35, 59] {
        service.engine.store.flush().await.unwrap();
        service.retry("another", NOW + days * DAY).await;
        service.engine.store.flush().await.unwrap();
        service = service.restart().await;
        assert_eq!(service.retry("s", NOW + days * DAY).await, Outcome::Blocked, "after {days} days");
    }
    assert_eq!(service.retry("s", NOW + 60 * DAY).await, Outcome::Allowed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replaced_settings_are_in_force_for_the_next_request() {
    let service = Service::new().await;
    for expected in [Outcome::Allowed, Outcome::Allowed, Outcome::Blocked] {
        assert_eq!(service.retry("s", NOW).await, expected);
    }
    let replace = |toml: &str| {
        let mut new = settings(toml);
        new.store = service.engine.settings.load().store.clone();
        service.engine.replace_settings(new)
    };
    assert!(replace("[guards.ai_task_retry]\nmax_retries = 3\n").is_empty());
    assert_eq!(service.retry("s", NOW).await, Outcome::Allowed, "what was counted before still counts");
    assert_eq!(service.retry("s", NOW).await, Outcome::Blocked);
    replace("[guards.ai_task_retry]\nmode = \"observe\"\n");
    assert_eq!(service.retry("s", NOW).await, Outcome::WouldBlock);
    replace("[tenants.acme.guards.ai_task_retry]\nmax_retries = 9\n");
    assert_eq!(service.retry("s", NOW).await, Outcome::Allowed, "this tenant's own");
    replace("[guards.ai_task_retry.tasks.classify]\nmax_retries = 0\n");
    assert_eq!(service.retry("fresh", NOW).await, Outcome::Blocked, "this task's own");
    assert_eq!(replace("[server]\nmax_connections = 5\n[log]\nretention_days = 2\n"), ["server.max_connections", "log.retention_days"]);
}

// Differential: a service that is interrupted again and again answers like one that is not.

#[derive(Debug, Clone)]
enum Action {
    Ask { route: usize, body: Value, key: Option<u8>, with_permit: bool },
    Control(Control),
    Interrupt(usize),
}

/// Any request of any route, over few names, so that histories meet.
fn action() -> impl Strategy<Value = Action> {
    let words = prop::sample::select(vec!["a", "b", "c"]);
    let texts = prop::sample::select(vec!["how do refunds work", "how do the refunds work", "ORD-12345678", "three two one", "x"]);
    let asking = (0..ROUTES.len(), words.clone(), words, texts, 0.0..=1.0_f64, any::<bool>(), 0_u64..3, prop::option::weighted(0.1, 0..3_u8), any::<bool>())
        .prop_map(|(route, session, subject, text, share, flag, number, key, with_permit)| {
            let body = json!({
                "session_id": session, "task_name": if flag { "extract_order_number" } else { subject }, "user_message": text,
                "source_bot": "o", "target_bot": subject, "topic_hash": subject, "last_confidence": share, "query": text,
                "prior_confidence": flag.then_some(share), "confidence_score": share, "retrieved_chunks": number, "action_name": subject,
                "action_params_hash": number.to_string(), "result_summary": text, "error": flag,
                "step_id": if flag { "capture_email" } else { subject }, "user_utterance": text, "capture_step": subject,
                "entity_type": if flag { "email" } else { "phone" }, "endpoint_key": "api", "outcome": if flag { "success" } else { "failure" },
                "tool": subject, "args": number, "result": number, "window_seconds": 600, "max_calls": 3, "action_group": "orders", "parameters": number,
                "failed": flag, "max_usd": 5, "max_tokens": 9000, "cap": 3, "usd": share, "tokens": number * 100, "key": flag.then_some(subject),
                "parent": subject, "reservation_id": "none",
            });
            let mut body = suited(ROUTES[route].path, body, text, flag);
            ROUTES[route].complete(body.as_object_mut().unwrap());
            Action::Ask { route, body, key, with_permit }
        });
    prop_oneof![
        24 => asking,
        1 => prop::sample::select(vec![Control::Open, Control::Close, Control::Reset, Control::Reset]).prop_map(Action::Control),
        3 => (0..3_usize).prop_map(Action::Interrupt),
    ]
}

/// The same name means another thing to some routes.
fn suited(path: &str, mut body: Value, text: &str, flag: bool) -> Value {
    if path == "/guard/stall" {
        body["error"] = if flag { text.into() } else { Value::Null };
    }
    body
}

/// Mostly goes on, sometimes jumps by an hour either way.
fn step() -> impl Strategy<Value = i64> {
    prop_oneof![12 => 0_i64..20_000, 2 => 0_i64..2_000_000, 1 => Just(HOUR), 1 => Just(-HOUR)]
}

/// One of the two services, with what only it knows: the permits and reservations it gave.
struct Side {
    service: Service,
    permits: HashMap<String, Value>,
    reservations: HashMap<String, Value>,
}

impl Side {
    async fn new(memory_mb: u32) -> Self {
        // Tight enough that all of the rules come to bear.
        let mut settings = settings("[guards.api_circuit]\nfailure_threshold = 3\nmax_attempts_per_session = 5\nrecovery = 20\n");
        settings.store.memory_mb = memory_mb;
        Self { service: Service::with(settings).await, permits: HashMap::new(), reservations: HashMap::new() }
    }

    /// The answer, without what must differ.
    async fn ask(&mut self, route: usize, body: &Value, key: Option<u8>, with_permit: bool, now: i64) -> String {
        let session = body["session_id"].as_str().unwrap().to_owned();
        let mut body = body.clone();
        if let Some(permit) = self.permits.get(&session).filter(|_| with_permit && ROUTES[route].path == CIRCUIT_RECORD) {
            body["permit_id"] = permit.clone();
        }
        if let Some(reservation) = self.reservations.get(&session).filter(|_| with_permit && body.get("reservation_id").is_some()) {
            body["reservation_id"] = reservation.clone();
        }
        let key = key.map(|key| format!("key {key}"));
        match ask(&self.service.engine, "acme", ROUTES[route].path, &body, now, key.as_deref()).await {
            Ok(answered) => {
                let mut answer = json_of(&answered);
                answer.as_object_mut().unwrap().remove("decision_id");
                if let Some(permit) = answer.as_object_mut().unwrap().remove("permit_id") {
                    self.permits.insert(session.clone(), permit);
                }
                if let Some(reservation) = answer.as_object_mut().unwrap().remove("reservation_id") {
                    self.reservations.insert(session, reservation);
                }
                let Answered { outcome, reason, retry_after_seconds, notice, replayed, .. } = answered;
                format!("{answer} {outcome:?} {reason:?} {retry_after_seconds:?} {notice:?} {replayed}")
            }
            Err(error) => error.to_string(),
        }
    }

    /// What operators see at the end.
    async fn looks(&self, now: i64) -> String {
        let mut looks = format!("{:?}", circuits_of(&self.service, None, now).await);
        for session in ["a", "b", "c"] {
            if let Some(view) = self.service.engine.session("acme", session, at(now), None, 1000).await.unwrap() {
                // States stand in the order they were written in, and that is not promised.
                let mut outlooks: Vec<String> = view.outlooks.iter().map(|outlook| format!("{outlook:?}")).collect();
                outlooks.sort_unstable();
                looks.push_str(&format!("\n{session}: {} rows, {outlooks:?}", view.timeline.len()));
            }
        }
        looks
    }
}

/// How the clock goes. A driven clock is believed at once, so what has expired by it is forgotten: one that is set back then finds it
/// gone or not, as it happens. (A machine's own clock is believed only when time has really passed.)
#[derive(Debug, Clone, Copy)]
enum Passing {
    Forward,
    /// To and fro, within what no window forgets.
    Wandering,
}

impl Passing {
    fn after(self, now: i64, millis: i64) -> i64 {
        match self {
            Self::Forward => now + millis.abs(),
            Self::Wandering => (now + millis).clamp(NOW, NOW + HOUR - 1),
        }
    }
}

async fn compare(history: Vec<(Action, i64)>, passing: Passing, memory_mb: u32) {
    let (mut interrupted_one, mut steady) = (Side::new(memory_mb).await, Side::new(64).await);
    let mut now = NOW;
    for (number, (action, millis)) in history.into_iter().enumerate() {
        now = passing.after(now, millis);
        match action {
            Action::Ask { route, body, key, with_permit } => {
                let here = interrupted_one.ask(route, &body, key, with_permit, now).await;
                let there = steady.ask(route, &body, key, with_permit, now).await;
                assert_eq!(here, there, "action {number}: {} {body}", ROUTES[route].path);
            }
            Action::Control(control) => {
                for side in [&interrupted_one, &steady] {
                    side.service.engine.control_circuit("acme", "api", control, at(now)).await.unwrap();
                }
            }
            Action::Interrupt(how) => interrupted_one.service = interrupted(interrupted_one.service, how).await,
        }
    }
    assert_eq!(interrupted_one.looks(now).await, steady.looks(now).await);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn an_interrupted_service_answers_like_one_that_is_not(
        history in prop::collection::vec((action(), step()), 1..120),
        passing in prop::sample::select(vec![Passing::Forward, Passing::Wandering]),
        memory_mb in prop::sample::select(vec![0_u32, 64]),
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(compare(history, passing, memory_mb));
    }
}
