//! The traffic, seen through the real engine with the plan's own times: the same seed gives the same, to the last number.

use super::*;
use runguard_core::GuardName;
use runguard_engine::engine::open_store;
use runguard_engine::settings::check_text;
use runguard_engine::{CircuitQuery, Clock, EngineOptions, KeyRing};
use runguard_store::{Order, RowFilter};
use std::collections::BTreeSet;
use std::sync::{LazyLock, Mutex};
use tokio::runtime::Runtime;

const BASE: Timestamp = Timestamp::from_millis(1_780_000_000_000);
/// Reasons no demo can show: it shares its states with nobody, nobody stops a run by hand, and none is as long as a long one.
const CANNOT_OCCUR: &[Reason] = &[Reason::StateUnavailable, Reason::RunStopped, Reason::StalledLongRun, Reason::NotMetered];

/// One for all tests, as a service has one: an answer comes home through the runtime it was asked in.
static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap());

struct World {
    engine: Engine,
    _folder: tempfile::TempDir,
}

impl World {
    fn new(seconds: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let settings =
            check_text(std::path::Path::new("demo"), &settings(folder.path(), 0, seconds, runguard_core::money::NanoDollars::ZERO))
                .unwrap()
                .settings;
        let store = open_store(&settings).unwrap();
        let options = EngineOptions { clock: Clock::Virtual, settings, keys: KeyRing::default(), seed: None };
        let engine = RUNTIME.block_on(Engine::new(store, options)).unwrap();
        Self { engine, _folder: folder }
    }

    fn replay(&self, plan: &Plan) -> Tallies {
        RUNTIME.block_on(replay(plan, &self.engine, BASE)).unwrap()
    }

    fn ask(&self, path: &str, body: &str, at: u64) -> Reply {
        RUNTIME.block_on(ask(&self.engine, path, body, BASE.as_millis() + at as i64)).unwrap()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.engine.store.stop();
    }
}

/// Those too that come only if they are named.
fn everything() -> Mix {
    SCENARIOS.iter().enumerate().map(|(index, scenario)| (index, scenario.weight)).collect()
}

fn only(name: &str) -> Mix {
    vec![(SCENARIOS.iter().position(|scenario| scenario.name == name).unwrap(), 1)]
}

/// How many seeds to try; more with `RUNGUARD_DEMO_SEEDS=1000`.
fn seeds() -> u64 {
    std::env::var("RUNGUARD_DEMO_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(4)
}

#[test]
fn the_same_seed_gives_the_same_traffic_and_another_seed_another() {
    let plans = |seed| (Plan::live(seed, 20, 200, &default_mix()), Plan::history(seed, 3, &default_mix()));
    let texts = |plan: &Plan| plan.planned.iter().map(|planned| plan.conversation(planned)).collect::<Vec<_>>();
    let (live, history) = plans(7);
    assert_eq!((&live, &history), (&plans(7).0, &plans(7).1));
    assert_eq!(texts(&live), texts(&plans(7).0));
    assert_ne!(live.planned, plans(8).0.planned);
    let first = World::new(20).replay(&live);
    assert_eq!(first, World::new(20).replay(&live));
    assert_ne!(first, World::new(20).replay(&plans(8).0));
}

#[test]
fn the_rate_is_kept_and_everything_ends_in_time() {
    for (seconds, rate) in [(60, 200), (20, 1000)] {
        let plan = Plan::live(3, seconds, rate, &default_mix());
        let conversations: Vec<_> = plan.planned.iter().map(|planned| (planned.start_millis, plan.conversation(planned))).collect();
        let requests: u64 = conversations.iter().map(|(_, conversation)| conversation.expected_requests()).sum();
        let target = seconds * rate;
        assert!((target..target + target / 20 + 300).contains(&requests), "{requests} of {target}");
        for (start, conversation) in &conversations {
            assert!(start + conversation.expected_millis() <= seconds * 1000, "{}", conversation.session);
        }
        let sessions: BTreeSet<&str> = conversations.iter().map(|(_, conversation)| conversation.session.as_str()).collect();
        assert_eq!(sessions.len(), conversations.len(), "every conversation is a session of its own");
    }
}

#[test]
fn every_scenario_hears_its_reasons_and_no_other() {
    for scenario in SCENARIOS {
        let tallies = World::new(10).replay(&Plan::live(5, 10, 60, &only(scenario.name)));
        let heard: BTreeSet<&str> = tallies.total().reasons.keys().copied().collect();
        let expected: BTreeSet<&str> = scenario.reasons.iter().map(|reason| reason.code()).collect();
        assert_eq!(heard, expected, "{}", scenario.name);
    }
}

#[test]
fn every_variant_is_stopped_exactly_where_it_should_be() {
    for (index, scenario) in SCENARIOS.iter().enumerate() {
        let world = World::new(10);
        for variant in 0..scenario.variants {
            // No outage: what others do must not matter here.
            let plan = Plan { seed: 11, prefix: "", gap_millis: 1000, outages: Vec::new(), planned: Vec::new() };
            let planned = Planned { scenario: index, variant, number: u64::from(variant), start_millis: 0 };
            let expected = plan.conversation(&planned).stops_at;
            let mut talk = Running::new(&plan, &planned);
            let (mut at, mut stopped) = (0, None);
            while let Some((path, body)) = talk.request() {
                let position = talk.position;
                let answer = world.ask(path, &body, at);
                talk.take(&answer);
                if answer.outcome == Outcome::Blocked && talk.request().is_none() && talk.position == talk.conversation.steps.len() {
                    stopped = Some(position);
                }
                at += talk.conversation.gap_millis;
            }
            if scenario.name == "tool-repeat" {
                assert!(expected.is_none() && talk.tally.blocked > 0, "it is told, and goes on");
            } else {
                assert_eq!(stopped, expected, "{} variant {variant}", scenario.name);
            }
        }
    }
}

#[test]
fn over_all_scenarios_every_reason_is_heard() {
    let tallies = World::new(3).replay(&Plan::live(1, 3, 200, &everything()));
    let heard = tallies.total().reasons;
    let promised: BTreeSet<Reason> = SCENARIOS.iter().flat_map(|scenario| scenario.reasons.iter().copied()).collect();
    // A guard that is shown is shown with everything it says.
    let shown: BTreeSet<GuardName> = promised.iter().map(|reason| reason.guard()).collect();
    let must_be_heard = |reason: &&Reason| shown.contains(&reason.guard()) && !CANNOT_OCCUR.contains(reason);
    let missing: Vec<&str> =
        Reason::ALL.iter().filter(must_be_heard).map(|reason| reason.code()).filter(|code| !heard.contains_key(code)).collect();
    assert_eq!(missing, [""; 0]);
    assert_eq!(promised, Reason::ALL.iter().filter(must_be_heard).copied().collect());
}

#[test]
fn healthy_traffic_is_never_stopped_whatever_the_seed() {
    for seed in 0..seeds() {
        for plan in [Plan::live(seed, 10, 100, &only("healthy")), Plan::history(seed, 1, &only("healthy"))] {
            let total = World::new(10).replay(&plan).total();
            assert_eq!((total.blocked, total.would_block, total.false_stops, total.reasons.len()), (0, 0, 0, 0), "seed {seed}");
            assert_eq!(total.unguarded_operations, total.guarded_operations, "seed {seed}");
            assert!(total.conversations > 50, "{}", total.conversations);
        }
    }
}

#[test]
fn the_books_balance_with_themselves_and_with_the_log() {
    let world = World::new(20);
    let plan = Plan::live(9, 20, 150, &everything());
    let tallies = world.replay(&plan);
    let total = tallies.total();
    for (scenario, tally) in SCENARIOS.iter().zip(&tallies.0) {
        assert_eq!(tally.asked, tally.allowed + tally.would_block + tally.blocked, "{}", scenario.name);
        assert_eq!(tally.unguarded_operations - tally.guarded_operations, tally.saved_operations(), "{}", scenario.name);
        assert_eq!(tally.false_stops, 0, "{}", scenario.name);
        assert_eq!(scenario.is_healthy(), tally.saved_operations() == 0, "{}", scenario.name);
    }
    assert_eq!(total.conversations, plan.len() as u64);
    let unguarded: u64 = plan.planned.iter().map(|planned| plan.conversation(planned).unguarded_operations()).sum();
    assert_eq!(total.unguarded_operations, unguarded);

    let rows = RUNTIME.block_on(world.engine.rows(RowFilter::default(), Order::OldestFirst, None, 100_000)).unwrap();
    let logged = |outcome: &str| rows.iter().filter(|row| row.outcome.code() == outcome).count() as u64;
    assert_eq!(logged("blocked"), total.blocked);
    assert_eq!(logged("would_block"), total.would_block);
    // A budget's commit is answered like a question.
    assert_eq!(logged("allowed") + logged("recorded"), total.allowed + total.told);
    let times: Vec<i64> = rows.iter().map(|row| row.at).collect();
    assert!(times.is_sorted_by(|earlier, later| *later > earlier - plan.gap_millis as i64), "in the order of their times");
}

#[test]
fn the_outage_opens_the_circuit_a_probe_fails_and_a_later_one_closes_it() {
    // In the shortest ones it opens so late that the first probe finds the upstream back.
    for (seconds, rate, trips) in [(60, 200, 2), (3, 200, 1), (10, 20, 1)] {
        let world = World::new(seconds);
        let tallies = world.replay(&Plan::live(2, seconds, rate, &default_mix()));
        let total = tallies.total();
        assert!(total.trips >= trips && total.probes >= trips, "{seconds} s: {} trips, {} probes", total.trips, total.probes);
        let now = Timestamp::from_millis(BASE.as_millis() + seconds as i64 * 1000);
        let circuits = RUNTIME.block_on(world.engine.circuits(CircuitQuery::first(None, 1000), now)).unwrap().circuits;
        let circuit = circuits.iter().find(|circuit| circuit.endpoint_key == OUTAGE_ENDPOINT).unwrap();
        assert_eq!(circuit.view.phase.code(), "closed", "{seconds} s");
    }
}

#[test]
fn the_past_has_its_rhythm_and_one_bad_release() {
    let plan = Plan::history(4, 7, &default_mix());
    let hours = |wanted: std::ops::Range<u64>| {
        plan.planned
            .iter()
            .filter(|planned| wanted.contains(&(planned.start_millis / HOUR_MILLIS % 24)) && planned.start_millis < 2 * DAY_MILLIS)
            .count()
    };
    assert!(hours(9..16) > 4 * hours(0..6), "{} by day, {} by night", hours(9..16), hours(0..6));
    let strict = only("ai-task-retry")[0].0;
    let retries = |from: u64, to: u64| {
        plan.planned.iter().filter(|planned| planned.scenario == strict && (from..to).contains(&planned.start_millis)).count()
    };
    let release = 7 * DAY_MILLIS * 6 / 10;
    let usual = retries(release - DAY_MILLIS, release - DAY_MILLIS + 8 * HOUR_MILLIS);
    assert!(retries(release, release + 8 * HOUR_MILLIS) > 5 * usual.max(1));
    assert!(Plan::history(4, 29, &default_mix()).len() < 6_000, "a month is not longer than a week");
}

/// Answers as written, and keeps what it was sent.
struct Script(Mutex<Vec<String>>, fn(&str) -> Result<Reply, String>);

impl Door for Script {
    fn send(&self, path: &str, body: &str) -> Result<Reply, String> {
        self.0.lock().unwrap().push(format!("{path} {body}"));
        (self.1)(path)
    }
}

fn allow(_path: &str) -> Result<Reply, String> {
    Reply::read(200, br#"{"allow":true,"permit_id":"p-1","reservation_id":"r-1"}"#)
}

#[test]
fn without_a_refusal_the_guarded_twin_is_billed_the_same() {
    let plan = Plan::live(6, 1, 100, &default_mix());
    let (door, live) = (Script(Mutex::default(), allow), Live::default());
    let total = drive(&plan, 4, &door, &live, &AtomicBool::new(false)).unwrap().total();
    assert_eq!(total.unguarded_operations, total.guarded_operations);
    assert_eq!((total.blocked, live.asked.load(Ordering::Relaxed)), (0, total.asked));
    let sent = door.0.into_inner().unwrap();
    assert_eq!(sent.len() as u64, total.asked + total.told);
    assert!(sent.iter().any(|sent| sent.starts_with("/guard/api-circuit/record") && sent.contains(r#""permit_id":"p-1""#)));
    assert!(sent.iter().any(|sent| sent.starts_with("/guard/budget/commit") && sent.contains(r#""reservation_id":"r-1""#)));
}

#[test]
fn a_guard_that_refuses_everyone_is_found_out() {
    let plan = Plan::live(6, 1, 100, &only("healthy"));
    let refuse = |_: &str| Reply::read(429, br#"{"allow":false,"reason":"retry_cap_reached"}"#);
    let total = drive(&plan, 4, &Script(Mutex::default(), refuse), &Live::default(), &AtomicBool::new(false)).unwrap().total();
    assert_eq!((total.false_stops, total.conversations), (plan.len() as u64, plan.len() as u64));
    assert_eq!((total.asked, total.allowed, total.told), (total.blocked, 0, 0));
}

#[test]
fn what_weighs_nothing_comes_once_and_only_if_it_is_named() {
    let count = |plan: &Plan, name: &str| plan.planned.iter().filter(|planned| SCENARIOS[planned.scenario].name == name).count();
    let plan = Plan::live(3, 60, 300, &default_mix());
    let (healthy, handoffs) = (count(&plan, "healthy"), count(&plan, "handoff-cycle"));
    assert!(healthy > 8 * handoffs, "60 to 5: {healthy} to {handoffs}");
    assert_eq!(count(&plan, "agent-leak"), 0);
    assert_eq!(count(&Plan::live(3, 20, 100, &everything()), "agent-leak"), 1);
    let first = vec![(only("agent-leak")[0].0, 0), only("healthy")[0]];
    assert_eq!(count(&Plan::live(3, 20, 100, &first), "agent-leak"), 1);
}

#[test]
fn a_service_that_goes_away_ends_the_demo_with_its_reason() {
    let plan = Plan::live(6, 1, 100, &default_mix());
    let door = Script(Mutex::default(), |_| Err("connection refused".to_owned()));
    let problem = drive(&plan, 4, &door, &Live::default(), &AtomicBool::new(false)).unwrap_err();
    assert_eq!(problem, "connection refused");
    let stopped = AtomicBool::new(true);
    let tallies = drive(&plan, 4, &Script(Mutex::default(), allow), &Live::default(), &stopped).unwrap();
    assert_eq!(tallies.total(), Tally::default(), "a wish to stop is heard");
}

#[test]
fn an_answer_that_is_none_is_not_taken_for_one() {
    assert_eq!(Reply::read(429, br#"{"allow":false,"reason":"circuit_open"}"#).unwrap().reason, Some(Reason::CircuitOpen));
    assert_eq!(Reply::read(200, br#"{"allow":true,"would_block":true,"reason":"action_cycle"}"#).unwrap().outcome, Outcome::WouldBlock);
    assert_eq!(Reply::read(204, b"").unwrap().outcome, Outcome::Recorded);
    for (status, body) in [(500, "{}"), (422, r#"{"title":"no"}"#), (200, "hello"), (429, r#"{"allow":true}"#), (200, r#"{"allow":false}"#)]
    {
        assert!(Reply::read(status, body.as_bytes()).is_err(), "{status} {body}");
    }
}
