//! Any history, lived through by every store, looks the same on all.

use crate::stores::steps::{FILTERS, Request, SESSIONS, SETTINGS, Sight, Step, TENANTS, history};
use crate::stores::systems::{Servers, System, settings};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use runguard_core::Timestamp;
use runguard_engine::engine::fingerprint;
use runguard_engine::{AuthorisedRequest, CircuitQuery, Engine, Idempotency};
use runguard_guards::input::Input;
use runguard_insight::insight::digest::Range;
use runguard_store::{Order, Row, RowFilter};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

const START: i64 = 1_700_000_000_000;
const DAY: i64 = 86_400_000;
const LONGEST: usize = 90;
const CASES: u32 = 12;

/// What was seen of a step, and the decision ids in it, in their order.
#[derive(Debug, Default)]
struct Seen {
    text: String,
    ids: Vec<String>,
}

impl Seen {
    fn say(&mut self, what: impl std::fmt::Debug) {
        writeln!(self.text, "{what:?}").unwrap();
    }

    fn rows(&mut self, rows: &[Row]) {
        for row in rows {
            self.ids.push(row.id.clone());
            self.say(row);
        }
    }
}

/// Two nodes give ids of their own; these are the model's for them, and back.
#[derive(Debug, Default)]
struct Names(BTreeMap<String, String>);

impl Names {
    fn learn(&mut self, own: &[String], models: &[String]) {
        for (own, model) in own.iter().zip(models).filter(|(own, model)| own != model) {
            self.0.entry(own.clone()).or_insert_with(|| model.clone());
        }
    }

    fn to_models(&self, text: String) -> String {
        self.0.iter().fold(text, |text, (own, model)| text.replace(own, model))
    }

    fn to_own(&self, text: String) -> String {
        self.0.iter().fold(text, |text, (own, model)| text.replace(model, own))
    }
}

/// Where a history stands.
struct World {
    now: i64,
    latest: i64,
    /// The clock goes back to here at most.
    earliest: i64,
    /// What the model gave, newest last: answers by route and keyed requests as they were sent.
    permits: Vec<String>,
    reservations: Vec<String>,
    keyed: Vec<(Request, String)>,
}

impl World {
    /// An answer that was kept for a day may be gone or not, so the clock does not go back to when it still counted.
    fn pass(&mut self, pause: i64) {
        if pause >= DAY {
            self.now = self.latest + pause;
            self.earliest = self.now;
        } else {
            self.now = (self.now + pause).max(self.earliest);
        }
        self.latest = self.latest.max(self.now);
    }

    /// The body as it is sent, with the model's ids.
    fn body(&self, request: &Request) -> String {
        let mut body = request.body.clone();
        let recall = |known: &[String]| request.refers.and_then(|back| known.iter().rev().nth(back).cloned());
        if request.route().path == "/guard/api-circuit/record"
            && let Some(permit) = recall(&self.permits)
        {
            body["permit_id"] = permit.into();
        }
        if body.get("reservation_id").is_some()
            && let Some(reservation) = recall(&self.reservations)
        {
            body["reservation_id"] = reservation.into();
        }
        body.to_string()
    }

    fn remember(&mut self, answer: &str) {
        let Ok(answer) = serde_json::from_str::<Value>(answer) else { return };
        for (name, known) in [("permit_id", &mut self.permits), ("reservation_id", &mut self.reservations)] {
            known.extend(answer[name].as_str().map(str::to_owned));
        }
    }
}

async fn ask(engine: &Engine, request: &Request, body: &str, now: i64) -> Seen {
    let route = request.route();
    let input = Input::read(body.as_bytes(), route.fields).unwrap();
    let operation = (route.read)(&input);
    let tenant: Arc<str> = request.tenant.into();
    // Of what the model was sent: the ids in it are each system's own.
    let idempotency = request.key.map(|key| Idempotency { key, fingerprint: fingerprint(route.path, body.as_bytes()) });
    let now = Timestamp::from_millis(now);
    let asked =
        AuthorisedRequest { tenant: &tenant, operation: &*operation, warnings: &input.warnings, now, shape: request.shape, idempotency };
    let mut seen = Seen::default();
    match engine.ask(asked).await {
        Ok(answered) => {
            let answer: Value = serde_json::from_str(&answered.body).unwrap_or_default();
            seen.ids.extend(answer["decision_id"].as_str().map(str::to_owned));
            seen.text.push_str(&answered.body);
            seen.text.push('\n');
            seen.say((answered.outcome, answered.reason, answered.retry_after_seconds, answered.notice, answered.replayed));
        }
        Err(error) => seen.say(error.to_string()),
    }
    seen
}

fn filter(number: usize, tenant: Option<&str>, now: i64) -> RowFilter {
    let text = |text: &str| Some(text.to_owned());
    let any = || RowFilter { tenant: tenant.map(str::to_owned), ..RowFilter::default() };
    let filters: [RowFilter; FILTERS] = [
        any(),
        RowFilter { kind: text("record"), ..any() },
        RowFilter { kind: text("admin"), ..any() },
        RowFilter { guard: text("budget"), ..any() },
        RowFilter { guard: text("api_circuit"), outcome: text("allowed"), ..any() },
        RowFilter { reason: text("circuit_open"), ..any() },
        RowFilter { outcome: text("blocked"), ..any() },
        RowFilter { session: text(SESSIONS[3]), ..any() },
        RowFilter { session: text(SESSIONS[2]), since: Some(START), until: Some(now), ..any() },
        RowFilter { since: Some(START + 1), until: Some(now.saturating_sub(10_000)), ..any() },
    ];
    filters.into_iter().nth(number).unwrap()
}

async fn look(engine: &Engine, sight: Sight, now: i64) -> Seen {
    let mut seen = Seen::default();
    match sight {
        Sight::Rows { filter: number, tenant, page } => {
            let filter = filter(number, tenant, now);
            for order in [Order::OldestFirst, Order::NewestFirst] {
                let mut after = None;
                loop {
                    let rows = engine.rows(filter.clone(), order, after, page).await.unwrap();
                    let numbers = engine.store.row_numbers(filter.clone(), order, after, page).await.unwrap();
                    assert!(rows.iter().map(|row| row.seq).eq(numbers), "the numbers are those of the rows");
                    seen.rows(&rows);
                    let Some(last) = rows.last() else { break };
                    let goes_on = after.is_none_or(|after| match order {
                        Order::OldestFirst => rows[0].seq > after,
                        Order::NewestFirst => rows[0].seq < after,
                    });
                    assert!(goes_on, "a page begins after the one before it: {:?}, {order:?}", engine.store);
                    after = Some(last.seq);
                }
            }
            if let Some(row) = engine.rows(filter, Order::NewestFirst, None, 1).await.unwrap().first() {
                let by_id = RowFilter { id: Some(row.id.clone()), ..RowFilter::default() };
                seen.rows(&engine.rows(by_id, Order::OldestFirst, None, 10).await.unwrap());
            }
        }
        Sight::Session { tenant, session } => {
            let view = engine.session(tenant, session, Timestamp::from_millis(now), None, 1000).await.unwrap();
            match view {
                Some(view) => {
                    seen.rows(&view.timeline);
                    seen.say(view.outlooks);
                }
                None => seen.say("unknown"),
            }
        }
        Sight::Circuits { tenant } => {
            seen.say(engine.circuits(CircuitQuery::first(tenant, 1000), Timestamp::from_millis(now)).await.unwrap());
        }
        Sight::Stats { tenant, guard, minutes } => {
            let (tenant, guard) = (tenant.map(str::to_owned), guard.map(str::to_owned));
            for (since, until) in [(0, i64::MAX / 2), (START, now), (START + 60_000, START + 120_001)] {
                seen.say(engine.store.stats_by(tenant.clone(), guard.clone(), since, until, minutes).await.unwrap());
            }
        }
    }
    seen
}

/// Does one step on one system.
async fn take(system: &System, names: &Names, step: &Step, body: Option<&str>, now: i64) -> Seen {
    let at = Timestamp::from_millis(now);
    let mut seen = Seen::default();
    match step {
        Step::Ask(request) => {
            let body = names.to_own(body.unwrap_or_default().to_owned());
            seen = ask(system.next(), request, &body, now).await;
        }
        Step::Again(_) => {}
        Step::Control { tenant, endpoint, control } => {
            seen.say(system.next().control_circuit(tenant, endpoint, *control, at).await.unwrap());
        }
        Step::Erase { tenant, session } => {
            let node = system.next();
            let mut erased = node.erase_session(tenant, session, at).await.unwrap();
            // On a busy machine another node does its part later: whoever asks again hears how it stands.
            while let Some(erased) = erased.as_mut().filter(|erased| !erased.waiting.is_empty()) {
                let again = node.erase_session(tenant, session, at).await.unwrap();
                erased.waiting = again.map_or_else(Vec::new, |again| again.waiting);
            }
            seen.say(erased);
        }
        Step::Settings(number) => {
            for node in &system.nodes {
                node.replace_settings(settings(SETTINGS[*number]));
            }
        }
        Step::Look(sight) => {
            if system.is_cluster() {
                system.flush().await;
            }
            seen = look(system.next(), *sight, now).await;
        }
    }
    if !system.is_one_node() {
        // Which of two nodes was first within a millisecond nobody can say later.
        system.flush().await;
    }
    seen
}

/// Everything that can be asked at the end.
fn sights() -> Vec<Sight> {
    let mut sights = vec![
        Sight::Circuits { tenant: None },
        Sight::Rows { filter: 0, tenant: None, page: 7 },
        Sight::Stats { tenant: None, guard: None, minutes: 1 },
    ];
    for tenant in TENANTS {
        sights.extend(SESSIONS.iter().map(|session| Sight::Session { tenant, session }));
    }
    sights
}

async fn live(servers: &Servers, history: &[(i64, Step)]) -> Result<(), String> {
    let model = System::model().await;
    let mut others: Vec<(System, Names)> = System::all(servers).await.into_iter().map(|system| (system, Names::default())).collect();
    let mut world = World { now: START, latest: START, earliest: 0, permits: Vec::new(), reservations: Vec::new(), keyed: Vec::new() };
    let last: Vec<(i64, Step)> = sights().into_iter().map(|sight| (0, Step::Look(sight))).collect();
    for (number, (pause, step)) in history.iter().chain(&last).enumerate() {
        world.pass(*pause);
        let (step, body) = match step {
            Step::Ask(request) => (step.clone(), Some(world.body(request))),
            Step::Again(back) => match world.keyed.iter().rev().nth(*back).cloned() {
                Some((request, body)) => (Step::Ask(request), Some(body)),
                None => continue,
            },
            Step::Control { .. } | Step::Erase { .. } | Step::Settings(_) | Step::Look(_) => (step.clone(), None),
        };
        if let Step::Erase { .. } = &step {
            // A log that nodes share takes no row of a session from before its erasure, and goes by the time: nodes' clocks do not go back.
            world.now = world.latest;
            world.earliest = world.now + 1;
        }
        let expected = take(&model, &Names::default(), &step, body.as_deref(), world.now).await;
        for (system, names) in &mut others {
            let seen = take(system, names, &step, body.as_deref(), world.now).await;
            // Nodes of a cluster may try an operator's word more than once, each time with a new id.
            if system.is_cluster() {
                names.learn(&seen.ids, &expected.ids);
            }
            let text = names.to_models(seen.text);
            if text != expected.text {
                return Err(format!(
                    "step {number} at {}: {step:#?}\nbody {body:?}\nmemory says {}\n{} says {text}",
                    world.now, expected.text, system.name
                ));
            }
        }
        if let (Step::Ask(request), Some(body)) = (step, body) {
            world.remember(expected.text.lines().next().unwrap_or_default());
            if request.key.is_some() {
                world.keyed.push((request, body));
            }
        }
    }
    if history.iter().any(|(_, step)| matches!(step, Step::Erase { .. })) {
        // What was counted of a session before it was erased stays, and when it was counted is a matter of luck.
        return Ok(());
    }
    overviews(&model, &others, world.now).await
}

/// What the analysts make of the log.
async fn overviews(model: &System, others: &[(System, Names)], now: i64) -> Result<(), String> {
    let range = Range { since_ms: START - 7_200_000, until_ms: now + 1, bucket_seconds: 3600, ..Range::default() };
    let expected = format!("{:#?}", model.nodes[0].overview(range.clone()).await.unwrap());
    for (system, names) in others {
        let seen = names.to_models(format!("{:#?}", system.nodes[0].overview(range.clone()).await.unwrap()));
        if seen != expected {
            return Err(format!("overview: memory says {expected}\n{} says {seen}", system.name));
        }
    }
    Ok(())
}

fn number_from(variable: &str, usual: u32) -> u32 {
    std::env::var(variable).ok().map_or(usual, |text| text.parse().unwrap())
}

#[test]
fn the_same_history_looks_the_same_on_every_store() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let servers = Servers::start();
    let (cases, seed) = (number_from("RUNGUARD_CONTRACT_CASES", CASES), number_from("RUNGUARD_CONTRACT_SEED", 1));
    let config =
        Config { cases, failure_persistence: None, max_shrink_iters: number_from("RUNGUARD_CONTRACT_SHRINK", 60), ..Config::default() };
    let mut seed_bytes = [0; 32];
    seed_bytes[..4].copy_from_slice(&seed.to_le_bytes());
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed_bytes));
    let outcome = runner.run(&history(LONGEST), |history| runtime.block_on(live(&servers, &history)).map_err(TestCaseError::fail));
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(reason, history)) => {
            let steps: Vec<String> = history.iter().map(|(pause, step)| format!("{pause:+} ms {step:?}")).collect();
            panic!("{}\n{reason}\nRUNGUARD_CONTRACT_SEED={seed} RUNGUARD_CONTRACT_CASES={cases} finds it again", steps.join("\n"));
        }
        Err(TestError::Abort(reason)) => panic!("{reason}"),
    }
}
