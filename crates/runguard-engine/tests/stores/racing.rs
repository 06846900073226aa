//! Many at the same time, on all nodes: every cap is reached and none is passed, and the log has each answer once.

use crate::stores::systems::{Servers, System, settings};
use runguard_core::{Reason, Timestamp};
use runguard_engine::engine::fingerprint;
use runguard_engine::{Answered, AuthorisedRequest, Engine, EngineError, Idempotency};
use runguard_guards::answer::Shape;
use runguard_guards::guard::ROUTES;
use runguard_guards::input::Input;
use runguard_store::{Order, RowFilter};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::task::JoinSet;

pub(crate) const NOW: i64 = 1_700_000_000_000;
const TASKS: usize = 64;
const SESSIONS: usize = 4;

pub(crate) async fn ask(engine: &Engine, path: &str, body: &Value, key: Option<&str>) -> Result<Answered, EngineError> {
    let route = ROUTES.iter().find(|route| route.path == path).unwrap();
    let body = body.to_string();
    let input = Input::read(body.as_bytes(), route.fields).unwrap();
    let operation = (route.read)(&input);
    let tenant: Arc<str> = "acme".into();
    let idempotency = key.map(|key| Idempotency { key, fingerprint: fingerprint(route.path, body.as_bytes()) });
    let now = Timestamp::from_millis(NOW);
    engine.ask(AuthorisedRequest { tenant: &tenant, operation: &*operation, warnings: &[], now, shape: Shape::Full, idempotency }).await
}

/// Outcomes of one session, with how many there were of each.
type Outcomes = BTreeMap<(usize, &'static str, Option<&'static str>), usize>;

/// The same request by 64 tasks, spread over the sessions and the nodes.
async fn race(system: &System, path: &'static str, body: impl Fn(usize) -> Value) -> Outcomes {
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let session = task % SESSIONS;
        let (engine, body) = (system.nodes[task / SESSIONS % system.nodes.len()].clone(), body(session));
        tasks.spawn(async move { (session, ask(&engine, path, &body, None).await.unwrap()) });
    }
    let mut outcomes = Outcomes::new();
    for (session, answered) in tasks.join_all().await {
        *outcomes.entry((session, answered.outcome.code(), answered.reason.map(Reason::code))).or_default() += 1;
    }
    outcomes
}

fn capped(allowed: usize, reason: &'static str) -> Outcomes {
    let each = TASKS / SESSIONS;
    (0..SESSIONS)
        .flat_map(|session| [((session, "allowed", None), allowed), ((session, "blocked", Some(reason)), each - allowed)])
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_cap_is_reached_and_none_is_passed() {
    let servers = Servers::start();
    let mut systems = vec![System::model().await];
    systems.extend(System::all(&servers).await);
    for system in &systems {
        let name = system.name;
        for node in &system.nodes {
            node.replace_settings(settings("[guards.budget]\nmax_usd = 1.0\n[guards.api_circuit]\nfailure_threshold = 5\n"));
        }
        let session = |number: usize| format!("s{number}");
        let retry = race(system, "/guard/ai-task-retry", |number| json!({"session_id": session(number), "task_name": "x"})).await;
        assert_eq!(retry, capped(2, "retry_cap_reached"), "{name}");
        let handoff =
            race(system, "/guard/handoff", |number| json!({"session_id": session(number), "source_bot": "a", "target_bot": "b"})).await;
        assert_eq!(handoff, capped(2, "cycle_detected"), "{name}");
        let reprompt = race(system, "/guard/no-match-reprompt", |number| json!({"session_id": session(number), "step_id": "x"})).await;
        assert_eq!(reprompt, capped(3, "reprompt_ceiling_reached"), "{name}");
        let reserve = race(system, "/guard/budget/reserve", |number| json!({"session_id": session(number), "usd": 0.3})).await;
        assert_eq!(reserve, capped(3, "budget_exceeded"), "{name}");
        // Whose children got the parent's three is a matter of luck; that there were three is not.
        let shared = race(
            system,
            "/guard/budget/reserve",
            |number| json!({"session_id": session(number), "usd": 0.3, "parent": "team", "budget": "shared"}),
        )
        .await;
        let allowed: usize = shared.iter().filter(|((_, outcome, _), _)| *outcome == "allowed").map(|(_, count)| count).sum();
        assert_eq!(allowed, 3, "{name}: {shared:?}");
        let recorded = race(
            system,
            "/guard/api-circuit/record",
            |number| json!({"session_id": session(number), "endpoint_key": "api", "outcome": "failure"}),
        )
        .await;
        assert_eq!(recorded.values().sum::<usize>(), TASKS, "{name}");
        let check = race(system, "/guard/api-circuit/check", |number| json!({"session_id": session(number), "endpoint_key": "api"})).await;
        let tripped: usize =
            check.iter().filter(|((_, _, reason), _)| *reason == Some("circuit_just_tripped")).map(|(_, count)| count).sum();
        let open: usize = check.iter().filter(|((_, _, reason), _)| *reason == Some("circuit_open")).map(|(_, count)| count).sum();
        assert_eq!((tripped, open), (1, TASKS - 1), "{name}: one is told first");
        system.flush().await;
        let rows = system.nodes[0].rows(RowFilter::default(), Order::OldestFirst, None, 10_000).await.unwrap();
        let ids: std::collections::BTreeSet<&str> = rows.iter().map(|row| row.id.as_str()).collect();
        assert_eq!((rows.len(), ids.len()), (7 * TASKS, 7 * TASKS), "{name}: each answer is a row, once");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_with_one_key_one_counts() {
    let servers = Servers::start();
    let mut systems = vec![System::model().await];
    systems.extend(System::all(&servers).await);
    for system in &systems {
        for round in 0..4 {
            let mut tasks = JoinSet::new();
            for task in 0..TASKS {
                let engine = system.nodes[task % system.nodes.len()].clone();
                // Every fourth means something else by the same key.
                let body = json!({"session_id": format!("{round}-{}", u8::from(task % 4 == 3)), "task_name": "x"});
                tasks.spawn(async move {
                    (body["session_id"].clone(), ask(&engine, "/guard/ai-task-retry", &body, Some(&format!("k{round}"))).await)
                });
            }
            let (mut counted, mut replayed, mut refused) = (Vec::new(), Vec::new(), 0);
            for (session, answer) in tasks.join_all().await {
                match answer {
                    Ok(answered) if answered.replayed => replayed.push(answered.body),
                    Ok(answered) => counted.push((session, answered.body)),
                    Err(EngineError::KeyReused) => refused += 1,
                    Err(EngineError::StillRunning) => {}
                    Err(error @ EngineError::Store(_)) => panic!("{}: {error}", system.name),
                }
            }
            assert_eq!(counted.len(), 1, "{}: {counted:?}", system.name);
            assert!(replayed.iter().all(|body| *body == counted[0].1), "{}", system.name);
            let others = if counted[0].0 == format!("{round}-1") { TASKS / 4 * 3 } else { TASKS / 4 };
            assert_eq!(refused, others, "{}: whoever means something else is told so", system.name);
        }
        system.flush().await;
        let rows = system.nodes[0].rows(RowFilter::default(), Order::OldestFirst, None, 100).await.unwrap();
        assert_eq!(rows.len(), 4, "{}", system.name);
    }
}
