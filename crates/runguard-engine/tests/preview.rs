//! Previews against the truth: engines on real stores, driven with random traffic.
//!
//! Two properties carry the module. With unchanged settings a preview finds nothing to change, for every guard and whatever
//! is kept of texts. And where a row keeps all of a request, a preview says what a second engine with the changed settings
//! really answered to the same requests.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use runguard_core::{GuardName, Timestamp};
use runguard_engine::engine::open_store;
use runguard_engine::preview::{Ask, PreviewError, Report, preview, preview_within};
use runguard_engine::settings::{Settings, check_text};
use runguard_engine::{Answered, AuthorisedRequest, Clock, Engine, EngineOptions, KeyRing};
use runguard_guards::answer::Shape;
use runguard_guards::guard::api_circuit::Control;
use runguard_guards::guard::{GuardEntry, ROUTES};
use runguard_guards::input::Input;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const NOW: i64 = 1_700_000_000_000;
const MINUTE: i64 = 60_000;
const HOUR: i64 = 60 * MINUTE;

struct Service {
    _folder: TempDir,
    engine: Arc<Engine>,
}

fn settings(toml: &str) -> Settings {
    check_text(Path::new("test.toml"), toml).unwrap().settings
}

impl Service {
    async fn new(toml: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = settings(toml);
        settings.store.data = folder.path().to_string_lossy().into_owned();
        let store = open_store(&settings).unwrap();
        let options = EngineOptions { clock: Clock::Virtual, settings, keys: KeyRing::default(), seed: None };
        Self { _folder: folder, engine: Arc::new(Engine::new(store, options).await.unwrap()) }
    }

    async fn ask(&self, path: &str, body: &Value, now: i64) -> Answered {
        let route = ROUTES.iter().find(|route| route.path == path).unwrap();
        let body = serde_json::to_vec(body).unwrap();
        let input = Input::read(&body, route.fields).unwrap();
        let operation = (route.read)(&input);
        let tenant: Arc<str> = "acme".into();
        let now = Timestamp::from_millis(now);
        self.engine
            .ask(AuthorisedRequest { tenant: &tenant, operation: &*operation, warnings: &[], now, shape: Shape::Full, idempotency: None })
            .await
            .unwrap()
    }

    async fn preview(&self, guard: GuardName, change: Value) -> Report {
        self.preview_from(guard, change, 0).await
    }

    async fn preview_from(&self, guard: GuardName, change: Value, since: i64) -> Report {
        preview(&self.engine, ask(guard, change, since)).await.unwrap()
    }
}

fn ask(guard: GuardName, change: Value, since: i64) -> Ask {
    let Value::Object(settings) = change else { panic!("a table of settings") };
    Ask { guard, settings, tenant: None, subject: None, since, until: i64::MAX }
}

/// Numbers that look random and are the same each time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    fn of<'a, T: ?Sized>(&mut self, choices: &[&'a T]) -> &'a T {
        choices[self.roll(choices.len() as u64) as usize]
    }
}

/// One request of a guard; answers to earlier ones may be needed for it.
fn request(guard: GuardName, dice: &mut Dice, session: &str, earlier: &[Value]) -> (&'static str, Value) {
    let texts = ["my order is #12345678", "call me at 555 867 5309", "write to jane@example.com", "no idea", "the fifteenth", "06/21/2026"];
    match guard.code() {
        "ai_task_retry" => (
            "/guard/ai-task-retry",
            json!({"session_id": session, "task_name": dice.of(&["extract_order_number", "extract_date", "summarise"]), "user_message": dice.of(&texts)}),
        ),
        "handoff" => {
            let bots = ["a", "b", "c", "d", "e"];
            ("/guard/handoff", json!({"session_id": session, "source_bot": dice.of(&bots), "target_bot": dice.of(&bots)}))
        }
        "kb_requery" => {
            let queries =
                ["how do refunds work", "how do the refunds work", "where is order 12345678", "where is order 87654321", "opening hours"];
            let confidence = [0.2, 0.45, 0.6, 0.8][dice.roll(4) as usize];
            match dice.roll(4) {
                0 => (
                    "/guard/kb-requery",
                    json!({"session_id": session, "topic_hash": dice.of(&["t1", "t2"]), "last_confidence": confidence}),
                ),
                1 => {
                    ("/guard/kb-requery/check", json!({"session_id": session, "query": dice.of(&queries), "prior_confidence": confidence}))
                }
                2 => ("/guard/kb-requery/check", json!({"session_id": session, "query": dice.of(&queries)})),
                _ => (
                    "/guard/kb-requery/record",
                    json!({"session_id": session, "query": dice.of(&queries), "confidence_score": confidence, "retrieved_chunks": dice.roll(3)}),
                ),
            }
        }
        "agent_action" => {
            let action = dice.of(&["look", "look", "write", "poll"]);
            if dice.roll(3) == 0 {
                (
                    "/guard/agent-action/result",
                    json!({"session_id": session, "action_name": action, "result_summary": format!("r{}", dice.roll(3)), "error": dice.roll(4) == 0}),
                )
            } else {
                ("/guard/agent-action", json!({"session_id": session, "action_name": action, "action_params": {"n": dice.roll(2)}}))
            }
        }
        "no_match_reprompt" => (
            "/guard/no-match-reprompt",
            json!({"session_id": session, "step_id": dice.of(&["capture_email", "capture_order_id", "menu"]), "user_utterance": dice.of(&texts)}),
        ),
        "capture_slot_fill" => (
            "/guard/capture-slot-fill",
            json!({"session_id": session, "capture_step": dice.of(&["s1", "s2"]), "entity_type": dice.of(&["date", "order_id", "email", "other"]), "user_utterance": dice.of(&texts)}),
        ),
        "api_circuit" => {
            let endpoint = dice.of(&["orders", "billing"]);
            if dice.roll(2) == 0 {
                return ("/guard/api-circuit/check", json!({"session_id": session, "endpoint_key": endpoint}));
            }
            let permits: Vec<&Value> = earlier.iter().rev().take(6).filter(|answer| answer["endpoint_key"] == *endpoint).collect();
            let permit = permits.first().map_or(&Value::Null, |answer| &answer["permit_id"]);
            let permit = if dice.roll(4) == 0 { &Value::Null } else { permit };
            let outcome = dice.of(&["failure", "failure", "success"]);
            (
                "/guard/api-circuit/record",
                json!({"session_id": session, "endpoint_key": endpoint, "outcome": outcome, "permit_id": permit, "latency_ms": dice.roll(900)}),
            )
        }
        "loop" => {
            let route = if dice.roll(6) == 0 { "/guard/loop/check" } else { "/guard/loop" };
            let tool = dice.of(&["search", "read"]);
            let mut body = json!({"session_id": session, "tool": tool, "args": {"n": dice.roll(2)}});
            if session == "s0" {
                body["repeats"] = 4.into();
                body["max_calls"] = 7.into();
                body["window_seconds"] = 600.into();
            }
            (route, body)
        }
        "stall" => {
            let mut body = json!({"session_id": session, "tool": dice.of(&["search", "read", ""]), "args": {"n": dice.roll(2)}, "round": dice.roll(1000).to_string()});
            match dice.roll(4) {
                0 => body["error"] = "no such file 77".into(),
                _ => body["result"] = format!("lines {}", dice.roll(2)).into(),
            }
            body["message"] = dice.of(&["let me think", "I will try"]).into();
            body["new_turn"] = (dice.roll(40) == 0).into();
            ("/guard/stall", body)
        }
        "agent_run" => {
            let id = dice.roll(1_000_000).to_string();
            let step = match dice.roll(12) {
                0 => json!({"id": id, "user": true}),
                1 => json!({"id": id, "said": "let me think", "result": format!("{}", dice.roll(2))}),
                2 => json!({"id": id, "tool": "read", "args": "a", "error": "no such file"}),
                _ => {
                    json!({"id": id, "tool": dice.of(&["search", "read"]), "args": "a", "result": format!("{}", dice.roll(2)), "round": id})
                }
            };
            let steps: Vec<Value> = if dice.roll(5) == 0 { Vec::new() } else { vec![step] };
            ("/guard/agent-run", json!({"session_id": session, "model": "gpt-4o", "steps": steps}))
        }
        "budget" => {
            let cents = f64::from(dice.roll(60) as u32) / 100.0;
            let mut body = json!({"session_id": session, "usd": cents, "tokens": 0});
            if session == "s1" {
                body["max_usd"] = [2.5, 1.5, 40.0][dice.roll(3) as usize].into();
            }
            if session == "s3" {
                body["max_usd"] = 7.0.into();
            }
            if session == "s2" {
                body["parent"] = "team".into();
            }
            let open: Vec<&Value> = earlier
                .iter()
                .rev()
                .filter(|answer| answer["session_id"] == session)
                .take(8)
                .map(|answer| &answer["reservation_id"])
                .filter(|id| id.is_string())
                .collect();
            match (dice.roll(6), open.first()) {
                (0, _) => ("/guard/budget/check", body),
                (1, _) => {
                    body["key"] = dice.of(&["k1", "k2"]).into();
                    ("/guard/budget/record", body)
                }
                (2 | 3, Some(id)) => {
                    body["reservation_id"] = (*id).clone();
                    if dice.roll(2) == 0 {
                        body.as_object_mut().unwrap().remove("usd");
                        body.as_object_mut().unwrap().remove("tokens");
                    }
                    ("/guard/budget/commit", body)
                }
                (4, Some(id)) => ("/guard/budget/release", json!({"session_id": session, "reservation_id": *id, "parent": body["parent"]})),
                _ => ("/guard/budget/reserve", body),
            }
        }
        "tool_call" => {
            let args = json!({"query": dice.of(&["refund policy", "the refund policy", "opening hours", "shipping to Spain"])});
            let body = json!({"session_id": session, "turn_id": dice.of(&["t1", "t2"]), "tool": dice.of(&["search_knowledge", "read_file"]), "args": args, "error": dice.roll(2) == 0});
            if dice.roll(4) == 0 { ("/guard/tool-call/record", body) } else { ("/guard/tool-call", body) }
        }
        "action_group" => {
            let body = json!({"session_id": session, "action_group": "orders", "function": "get", "parameters": [{"name": "id", "value": dice.roll(4) / 3}], "failed": dice.roll(8) > 0});
            if dice.roll(2) == 0 { ("/guard/action-group", body) } else { ("/guard/action-group/result", body) }
        }
        // One that needs no story of its own.
        _ => {
            let route = GuardEntry::of(guard).routes[0];
            let mut body = serde_json::Map::from_iter([("session_id".to_owned(), session.into())]);
            route.complete(&mut body);
            (route.path, Value::Object(body))
        }
    }
}

/// Random traffic of one guard, the same for every service given. Gives the outcomes of each.
async fn drive(services: &[&Service], guard: GuardName, seed: u64, requests: u32) -> Vec<Vec<String>> {
    let mut dice = Dice(seed);
    let mut now = NOW;
    let mut earlier: Vec<Value> = Vec::new();
    let mut outcomes = vec![Vec::new(); services.len()];
    for _ in 0..requests {
        now += match dice.roll(40) {
            0 => 2 * HOUR,
            1 => 12 * MINUTE,
            2 => 50_000,
            3 => -5_000,
            _ => dice.roll(3_000) as i64,
        };
        if guard == GuardName::ApiCircuit && dice.roll(60) == 0 {
            let control = [Control::Open, Control::Close, Control::Reset][dice.roll(3) as usize];
            for service in services {
                service.engine.control_circuit("acme", "orders", control, Timestamp::from_millis(now)).await.unwrap();
            }
        }
        let session = format!("s{}", dice.roll(4));
        let (path, body) = request(guard, &mut dice, &session, &earlier);
        for (service, outcomes) in services.iter().zip(&mut outcomes) {
            let answered = service.ask(path, &body, now).await;
            // A repeat, such as a reservation that is settled again, leaves no row.
            if answered.outcome.code() != "recorded" && !answered.replayed {
                outcomes.push(answered.outcome.code().to_owned());
            }
            earlier.push(serde_json::from_str(&answered.body).unwrap_or_default());
        }
        let excess = earlier.len().saturating_sub(64);
        earlier.drain(..excess);
    }
    outcomes
}

const STRICT: &str = r#"
[guards.budget]
max_usd = 6.0
cap = 5
[guards.agent_action]
polling = ["poll"]
[guards.api_circuit]
failure_threshold = 5
failure_rate = 0.8
min_calls = 8
[guards.loop]
max_calls = 6
[guards.ai_task_retry.rules]
input_missing_prerequisite_signal = "observe"
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unchanged_settings_change_nothing_whatever_is_kept_of_texts() {
    for (seed, store_text) in [(7, "full"), (8, "redacted"), (9, "none")] {
        let mut guards = tokio::task::JoinSet::new();
        for guard in GuardName::ALL.iter().copied() {
            guards.spawn(async move {
                let service = Service::new(&format!("[log]\nstore_text = \"{store_text}\"\n{STRICT}")).await;
                let outcomes = drive(&[&service], guard, seed, 250).await.remove(0);
                let blocked = outcomes.iter().filter(|outcome| *outcome == "blocked").count() as u64;
                assert!(blocked > 3, "{guard}: the traffic makes it refuse");
                let report = service.preview(guard, json!({})).await;
                assert_eq!(report.rows, outcomes.len() as u64, "{guard}");
                assert_eq!((report.changed_total, report.before), (0, report.after), "{guard}, {store_text}: {report:#?}");
                assert_eq!(report.before.blocked, blocked);
                let unexplained = report.inexact.iter().any(|doubt| doubt.contains("do not follow"));
                assert!(!unexplained, "{guard}, {store_text}: {:?}", report.inexact);
            });
        }
        while let Some(ended) = guards.join_next().await {
            ended.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_preview_that_takes_too_long_ends_and_its_turn_with_it() {
    let service = Service::new("").await;
    drive(&[&service], GuardName::Handoff, 3, 500).await;
    let too_long = preview_within(&service.engine, ask(GuardName::Handoff, json!({}), 0), Duration::ZERO).await;
    assert!(matches!(too_long, Err(PreviewError::TooLong)), "{too_long:?}");
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        match preview(&service.engine, ask(GuardName::Handoff, json!({}), 0)).await {
            Ok(_) => break,
            Err(PreviewError::UnderWay) if Instant::now() < until => tokio::task::yield_now().await,
            Err(other) => panic!("{other}"),
        }
    }
}

/// Callers bring limits of their own, below and above the ceiling, and leave them out again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_preview_of_another_ceiling_says_what_another_engine_answered() {
    for (seed, in_force, other) in [(1, 6.0, 3.0), (2, 6.0, 9.0), (3, 3.0, 0.0), (4, 0.0, 5.0)] {
        let with = |ceiling: f64| format!("[guards.budget]\nmax_usd = {ceiling:?}\n");
        let services = [Service::new(&with(in_force)).await, Service::new(&with(other)).await];
        let mut dice = Dice(seed);
        let mut blocked = [0, 0];
        for number in 0..300 {
            let mut body = json!({"session_id": format!("s{}", dice.roll(3)), "usd": f64::from(dice.roll(60) as u32) / 100.0});
            if body["session_id"] == "s2" {
                body["parent"] = "team".into();
            }
            if dice.roll(3) == 0 {
                body["max_usd"] = [1.5, 4.0, 7.0, 40.0][dice.roll(4) as usize].into();
            }
            let path = ["/guard/budget/reserve", "/guard/budget/reserve", "/guard/budget/check"][dice.roll(3) as usize];
            for (service, blocked) in services.iter().zip(&mut blocked) {
                *blocked += u64::from(service.ask(path, &body, NOW + number).await.outcome.code() == "blocked");
            }
        }
        let report = services[0].preview(GuardName::Budget, json!({"max_usd": other})).await;
        assert_eq!([report.before.blocked, report.after.blocked], blocked, "{in_force} and {other}: {report:#?}");
        assert_ne!(blocked[0], blocked[1], "the ceilings make a difference");
        let same = services[0].preview(GuardName::Budget, json!({})).await;
        assert_eq!(same.changed_total, 0, "{same:#?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_at_a_time_for_a_tenant_and_four_in_all() {
    let service = Service::new("").await;
    let of = |tenant: &str| Ask { tenant: Some(tenant.to_owned()), ..ask(GuardName::Handoff, json!({}), 0) };
    // Begun, and left where they stand: each has its turn until it is dropped and its work has ended.
    let mut begun = Vec::new();
    for tenant in ["a", "b", "c", "d"] {
        // On a busy machine its work may have ended before it is looked at: then another one.
        loop {
            let mut one = Box::pin(preview(&service.engine, of(tenant)));
            if std::future::poll_fn(|context| Poll::Ready(one.as_mut().poll(context).is_pending())).await {
                begun.push(one);
                break;
            }
        }
    }
    assert!(matches!(preview(&service.engine, of("a")).await, Err(PreviewError::UnderWay)));
    assert!(matches!(preview(&service.engine, of("e")).await, Err(PreviewError::Busy)));
    for one in begun {
        one.await.unwrap();
    }
    preview(&service.engine, of("a")).await.unwrap();
    preview(&service.engine, of("e")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_preview_says_what_another_engine_really_answered() {
    let cases = [
        (GuardName::Handoff, json!({"max_visits_per_bot": 3, "window": "10m"})),
        (GuardName::Handoff, json!({"max_handoffs": 2})),
        (GuardName::AiTaskRetry, json!({"max_retries": 4})),
        (GuardName::AiTaskRetry, json!({"patterns": {"summarise": "idea"}})),
        (GuardName::NoMatchReprompt, json!({"max_reprompts": 1, "rules": {"entity_signal_absent": "observe"}})),
        (GuardName::CaptureSlotFill, json!({"max_attempts": 2, "max_hints": 1})),
        (GuardName::KbRequery, json!({"voiceflow.max_queries": 3, "botpress.confidence_threshold": 0.5})),
        (GuardName::KbRequery, json!({"voiceflow": {"topic_match": "exact", "low_confidence": 0.1}})),
        (GuardName::AgentAction, json!({"max_consecutive": 2, "max_same": 9})),
        (GuardName::AgentAction, json!({"mode": "observe"})),
        (GuardName::ApiCircuit, json!({"failure_threshold": 4, "recovery": 20})),
        (GuardName::ActionGroup, json!({"max_failures": 1})),
        (GuardName::Stall, json!({"highest": "steer"})),
    ];
    for (guard, change) in cases {
        let before = Service::new("[log]\nstore_text = \"full\"\n").await;
        let flat = change.as_object().unwrap().iter().fold(json!({}), |mut all, (key, value)| {
            match key.split_once('.') {
                Some((door, key)) => all[door][key] = value.clone(),
                None => all[key] = value.clone(),
            }
            all
        });
        let changed = toml::to_string(&json!({"log": {"store_text": "full"}, "guards": {guard.code(): flat}})).unwrap();
        let after = Service::new(&changed).await;
        let outcomes = drive(&[&before, &after], guard, 11, 250).await;
        let report = before.preview(guard, change.clone()).await;
        let count = |outcomes: &[String], name: &str| outcomes.iter().filter(|outcome| *outcome == name).count() as u64;
        for (counts, outcomes) in [(report.before, &outcomes[0]), (report.after, &outcomes[1])] {
            let truth = ["allowed", "would_block", "blocked"].map(|name| count(outcomes, name));
            assert_eq!([counts.allowed, counts.would_block, counts.blocked], truth, "{guard} {change}: {:?}", report.inexact);
        }
        let differ = outcomes[0].iter().zip(&outcomes[1]).filter(|(before, after)| before != after).count() as u64;
        assert!(differ > 0, "{guard} {change}: the change makes a difference");
        assert_eq!(report.changed_total, differ, "{guard} {change}");
        assert_eq!(report.changed.len() as u64, differ.min(50));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_stands_before_the_time_asked_for_is_known_and_not_counted() {
    let service = Service::new("").await;
    let body = json!({"session_id": "s", "source_bot": "a", "target_bot": "b"});
    for minute in 0..3 {
        service.ask("/guard/handoff", &body, NOW + minute * MINUTE).await;
    }
    let report = service.preview_from(GuardName::Handoff, json!({"max_visits_per_bot": 1}), NOW + 2 * MINUTE).await;
    assert_eq!((report.rows, report.warm_up_rows, report.before.blocked, report.changed_total), (1, 2, 1, 0));
    let report = service.preview_from(GuardName::Handoff, json!({"max_visits_per_bot": 3}), NOW + 2 * MINUTE).await;
    assert_eq!((report.changed_total, report.after.allowed), (1, 1));
    assert_eq!(
        (report.changed[0].before.as_str(), report.changed[0].after, report.changed[0].reason.as_deref()),
        ("blocked", "allowed", Some("cycle_detected"))
    );
    assert!(
        report.inexact.iter().any(|doubt| doubt.starts_with("requests would have passed") && doubt.ends_with("(1)")),
        "{:?}",
        report.inexact
    );
    let only = Ask { subject: Some("c".into()), ..ask(GuardName::Handoff, json!({}), 0) };
    assert_eq!(preview(&service.engine, only).await.unwrap().rows, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_that_were_other_in_between_are_noticed() {
    let service = Service::new("").await;
    let body = json!({"session_id": "s", "source_bot": "a", "target_bot": "b"});
    for second in 0..5 {
        service.ask("/guard/handoff", &body, NOW + second * 1000).await;
    }
    service.engine.replace_settings(settings("[guards.handoff]\nmax_visits_per_bot = 9\n"));
    let report = service.preview(GuardName::Handoff, json!({})).await;
    assert_eq!((report.before.blocked, report.after.blocked, report.changed_total), (3, 0, 3));
    assert!(report.inexact[0].starts_with("logged answers do not follow") && report.inexact[0].ends_with("(3)"), "{:?}", report.inexact);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn impossible_settings_are_refused_by_name() {
    let service = Service::new("").await;
    for (change, path) in [
        (json!({"max_handofs": 3}), "handoff.max_handofs"),
        (json!({"max_handoffs": 100_000}), "handoff.max_handoffs"),
        (json!({"bots": {"b": {"window": "soon"}}}), "handoff.bots.b.window"),
        (json!({"mode": "sometimes"}), "handoff.mode"),
    ] {
        let Err(PreviewError::Settings(problem)) = preview(&service.engine, ask(GuardName::Handoff, change.clone(), 0)).await else {
            panic!("{change} should be refused")
        };
        assert_eq!(problem.path.join("."), path);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_tenant_goes_by_its_own_settings() {
    let service = Service::new("[tenants.acme.guards.handoff]\nmax_visits_per_bot = 1\n").await;
    let body = json!({"session_id": "s", "source_bot": "a", "target_bot": "b"});
    for second in 0..3 {
        service.ask("/guard/handoff", &body, NOW + second * 1000).await;
    }
    assert_eq!(service.preview(GuardName::Handoff, json!({"max_handoffs": 5})).await.changed_total, 0);
    assert_eq!(service.preview(GuardName::Handoff, json!({"max_visits_per_bot": 3})).await.after.allowed, 3);
}

/// A permit names the generation it was given in. A result that comes late, after the circuit opened and closed again, is old
/// news in the log, and it must be so when the past is lived through again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_result_is_old_news_in_a_preview_too() {
    let service = Service::new("[guards.api_circuit]\nfailure_threshold = 2\nmax_attempts_per_session = 50\n").await;
    let call = |session: &str| json!({"session_id": session, "endpoint_key": "api"});
    let check = async |session: &str, now: i64| {
        let answer = service.ask("/guard/api-circuit/check", &call(session), now).await;
        serde_json::from_str::<Value>(&answer.body).unwrap()
    };
    let record = async |session: &str, outcome: &str, permit: &Value, now: i64| {
        let mut body = call(session);
        body["outcome"] = outcome.into();
        body["permit_id"] = permit.clone();
        service.ask("/guard/api-circuit/record", &body, now).await;
    };
    let late = check("slow", NOW).await;
    for _ in 0..2 {
        record("other", "failure", &Value::Null, NOW + 1000).await;
    }
    let probe = check("other", NOW + MINUTE).await;
    assert_eq!(probe["probe"], true);
    record("other", "success", &probe["permit_id"], NOW + MINUTE + 1).await;
    let fresh = check("slow", NOW + MINUTE + 2).await;
    record("slow", "failure", &late["permit_id"], NOW + MINUTE + 3).await;
    record("slow", "failure", &fresh["permit_id"], NOW + MINUTE + 4).await;
    assert_eq!(check("other", NOW + MINUTE + 5).await["allow"], true, "one failure counts");
    let report = service.preview(GuardName::ApiCircuit, json!({})).await;
    assert_eq!((report.rows, report.changed_total), (4, 0));
    assert!(report.inexact.is_empty(), "{:?}", report.inexact);
    let report = service.preview(GuardName::ApiCircuit, json!({"failure_threshold": 1})).await;
    assert_eq!(report.changed.first().map(|changed| changed.after), Some("blocked"));
}
