//! Which conversations come when, and what becomes of them.
//!
//! A plan is made from a seed and knows no clock. It is driven in one of two ways: over HTTP on the machine's clock, which
//! is the demo, or straight through the engine with the times of the plan, which is how a week of the past is written in
//! seconds, and how tests see the same traffic twice. Both move a conversation by the same code.

use super::scenarios::{Conversation, Dice, FLAKY_ENDPOINT, OUTAGE_ENDPOINT, SCENARIOS, Setting};
use futures_util::future::join_all;
use runguard_core::{Reason, Timestamp, time};
use runguard_engine::{AuthorisedRequest, Caller, Engine, Outcome};
use runguard_guards::answer::Shape;
use runguard_guards::guard::ROUTES;
use runguard_guards::input::Input;
use serde_json::Value;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const DAY_MILLIS: u64 = time::DAY_MILLIS.cast_unsigned();
const HOUR_MILLIS: u64 = time::HOUR_MILLIS.cast_unsigned();

/// Scenarios with their weights.
pub(super) type Mix = Vec<(usize, u32)>;

/// What weighs nothing has to be named.
pub(super) fn default_mix() -> Mix {
    SCENARIOS.iter().enumerate().filter(|(_, scenario)| scenario.weight > 0).map(|(index, scenario)| (index, scenario.weight)).collect()
}

#[derive(Debug, Clone, PartialEq)]
struct Planned {
    scenario: usize,
    variant: u32,
    number: u64,
    start_millis: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Plan {
    seed: u64,
    prefix: &'static str,
    gap_millis: u64,
    outages: Vec<(u64, u64)>,
    /// In the order of their starts.
    planned: Vec<Planned>,
}

/// An outage lasts a third of the demo, and the circuit waits three quarters of it: 60 s and 45 s of three minutes.
pub(super) fn outage_millis(seconds: u64) -> u64 {
    seconds * 1000 / 3
}

impl Plan {
    /// What comes while someone watches: about `rate` requests a second.
    pub(super) fn live(seed: u64, seconds: u64, rate: u64, mix: &Mix) -> Self {
        let length = seconds * 1000;
        let down_from = length / 4;
        let outage = (down_from, down_from + outage_millis(seconds));
        let gap_millis = (length / 60).clamp(5, 1000);
        let mut plan = Self { seed, prefix: "", gap_millis, outages: vec![outage], planned: Vec::new() };
        let mut dice = Dice::new(seed, u64::MAX);
        let mut requests = 0;
        for &(scenario, _) in mix {
            for variant in 0..SCENARIOS[scenario].variants {
                let start = dice.below(length * 6 / 10);
                requests += plan.add(scenario, variant, start, length);
            }
            if SCENARIOS[scenario].reasons.contains(&Reason::CircuitOpen) {
                // Enough to open the circuit at the slowest rate, and some to find it closed again.
                for place in 0..16 {
                    requests += plan.add(scenario, 0, outage.0 + place * outage_millis(seconds) / 64, length);
                }
                for place in 0..4 {
                    requests += plan.add(scenario, 0, length * (80 + place * 4) / 100, length);
                }
            }
        }
        let total: u64 = mix.iter().map(|(_, weight)| u64::from(*weight)).sum();
        while total > 0 && requests < seconds * rate {
            let (scenario, variant) = draw(&mut dice, mix, total);
            let start = dice.below(length);
            requests += plan.add(scenario, variant, start, length);
        }
        plan.planned.sort_by_key(|planned| (planned.start_millis, planned.number));
        plan
    }

    /// Days of the past, with their rhythm, one release whose validation was too strict, and one outage.
    pub(super) fn history(seed: u64, days: u64, mix: &Mix) -> Self {
        /// Conversations in all, so that a month begins as quickly as a day.
        const MOST: u64 = 4_900;
        /// So many that the minute somebody watches does not dwarf the hours before it.
        const A_DAY: u64 = 700;
        const RHYTHM: [u64; 24] = [2, 1, 1, 1, 1, 2, 4, 7, 10, 12, 13, 12, 10, 11, 12, 11, 9, 8, 7, 6, 5, 4, 3, 2];
        let length = days * DAY_MILLIS;
        let down_from = length * 3 / 10;
        let outage = (down_from, down_from + 120_000);
        let release = (length * 6 / 10, length * 6 / 10 + 8 * HOUR_MILLIS);
        let mut plan = Self { seed, prefix: "past-", gap_millis: 60_000, outages: vec![outage], planned: Vec::new() };
        let mut dice = Dice::new(seed, u64::MAX - 1);
        let total: u64 = mix.iter().map(|(_, weight)| u64::from(*weight)).sum();
        let a_day = A_DAY.min(MOST / days.max(1));
        let strict = mix.iter().find(|(scenario, _)| SCENARIOS[*scenario].reasons.contains(&Reason::RetryCapReached));
        for hour in 0..days * 24 {
            let from = hour * HOUR_MILLIS;
            let share = a_day * RHYTHM[(hour % 24) as usize];
            let all: u64 = RHYTHM.iter().sum();
            // What does not make a whole conversation is left to chance.
            let count = share / all + u64::from(dice.below(all) < share % all);
            let is_released = (release.0..release.1).contains(&from);
            for _ in 0..if is_released { count * 3 } else { count } {
                let start = from + dice.below(HOUR_MILLIS);
                let (scenario, variant) = match strict {
                    Some(&(strict, _)) if is_released && dice.below(3) > 0 => (strict, SCENARIOS[strict].variants - 1),
                    _ if total > 0 => draw(&mut dice, mix, total),
                    _ => continue,
                };
                plan.add(scenario, variant, start, length);
            }
        }
        for &(scenario, _) in mix.iter().filter(|(scenario, _)| SCENARIOS[*scenario].reasons.contains(&Reason::CircuitOpen)) {
            for place in 0..40 {
                plan.add(scenario, 0, outage.0 + place * 3_000, length);
            }
        }
        plan.planned.sort_by_key(|planned| (planned.start_millis, planned.number));
        plan
    }

    /// Plans one, early enough to end in time, and says how many requests it will make.
    fn add(&mut self, scenario: usize, variant: u32, start_millis: u64, length: u64) -> u64 {
        let planned = Planned { scenario, variant, number: self.planned.len() as u64, start_millis };
        let conversation = self.conversation(&planned);
        let latest = length.saturating_sub(conversation.expected_millis());
        self.planned.push(Planned { start_millis: start_millis.min(latest), ..planned });
        conversation.expected_requests()
    }

    fn conversation(&self, planned: &Planned) -> Conversation {
        let setting =
            Setting { prefix: self.prefix, start_millis: planned.start_millis, gap_millis: self.gap_millis, outages: &self.outages };
        let mut dice = Dice::new(self.seed, planned.number);
        SCENARIOS[planned.scenario].conversation(planned.variant, planned.number, &mut dice, setting)
    }

    pub(super) fn len(&self) -> usize {
        self.planned.len()
    }
}

fn draw(dice: &mut Dice, mix: &Mix, total: u64) -> (usize, u32) {
    let mut place = dice.below(total);
    for &(scenario, weight) in mix {
        if place < u64::from(weight) {
            return (scenario, dice.below(u64::from(SCENARIOS[scenario].variants)) as u32);
        }
        place -= u64::from(weight);
    }
    (mix[0].0, 0)
}

/// What the service said.
#[derive(Debug, Clone)]
pub(super) struct Reply {
    pub(super) outcome: Outcome,
    pub(super) reason: Option<Reason>,
    pub(super) body: Value,
}

impl Reply {
    /// From an answer over HTTP; `Err` says what came instead.
    pub(super) fn read(status: u16, body: &[u8]) -> Result<Self, String> {
        if status == 204 {
            return Ok(Self { outcome: Outcome::Recorded, reason: None, body: Value::Null });
        }
        let shown = || String::from_utf8_lossy(body).chars().take(500).collect::<String>();
        let value: Value = serde_json::from_slice(body).map_err(|_| format!("the service answered {status}: {}", shown()))?;
        let outcome = match (status, value["allow"].as_bool()) {
            (429, Some(false)) => Outcome::Blocked,
            (200, Some(true)) if value["would_block"] == true => Outcome::WouldBlock,
            (200, Some(true)) => Outcome::Allowed,
            (200, None) if value["recorded"] == true => Outcome::Recorded,
            _ => return Err(format!("the service answered {status}: {}", shown())),
        };
        let reason = value["reason"].as_str().and_then(Reason::from_code);
        Ok(Self { outcome, reason, body: value })
    }
}

/// What became of a scenario's conversations. `asked = allowed + would_block + blocked`, always.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Those that ended.
    pub(super) conversations: u64,
    pub(super) asked: u64,
    pub(super) allowed: u64,
    pub(super) would_block: u64,
    pub(super) blocked: u64,
    pub(super) told: u64,
    pub(super) unguarded_operations: u64,
    pub(super) guarded_operations: u64,
    /// Conversations as they should be in which something was refused.
    pub(super) false_stops: u64,
    /// Refused although the step would have succeeded: an open circuit cannot know.
    pub(super) turned_away: u64,
    /// Circuits that opened, and calls that tested whether they may close.
    pub(super) trips: u64,
    pub(super) probes: u64,
    pub(super) reasons: BTreeMap<&'static str, u64>,
}

impl Tally {
    pub(super) fn add(&mut self, other: &Self) {
        self.conversations += other.conversations;
        self.asked += other.asked;
        self.allowed += other.allowed;
        self.would_block += other.would_block;
        self.blocked += other.blocked;
        self.told += other.told;
        self.unguarded_operations += other.unguarded_operations;
        self.guarded_operations += other.guarded_operations;
        self.false_stops += other.false_stops;
        self.turned_away += other.turned_away;
        self.trips += other.trips;
        self.probes += other.probes;
        for (reason, count) in &other.reasons {
            *self.reasons.entry(reason).or_default() += count;
        }
    }

    pub(super) fn saved_operations(&self) -> u64 {
        self.unguarded_operations.saturating_sub(self.guarded_operations)
    }
}

/// One tally a scenario, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tallies(pub(super) Vec<Tally>);

impl Tallies {
    fn new() -> Self {
        Self(vec![Tally::default(); SCENARIOS.len()])
    }

    fn add(&mut self, other: &Self) {
        for (tally, more) in self.0.iter_mut().zip(&other.0) {
            tally.add(more);
        }
    }

    pub(super) fn total(&self) -> Tally {
        let mut total = Tally::default();
        for tally in &self.0 {
            total.add(tally);
        }
        total
    }
}

/// A conversation that is under way.
#[derive(Debug)]
struct Running {
    conversation: Conversation,
    scenario: usize,
    position: usize,
    /// The latest step was done and its result is to be told; with what the answer gave to hand back.
    telling: Option<Value>,
    billed: u64,
    tally: Tally,
    /// Why it was refused something last.
    refused: Option<Reason>,
}

impl Running {
    fn new(plan: &Plan, planned: &Planned) -> Self {
        let conversation = plan.conversation(planned);
        let mut running = Self {
            conversation,
            scenario: planned.scenario,
            position: 0,
            telling: None,
            billed: 0,
            tally: Tally::default(),
            refused: None,
        };
        running.arrive();
        running
    }

    /// Goes to the next step that asks; what is billed on the way is billed.
    fn arrive(&mut self) {
        while let Some(step) = self.conversation.steps.get(self.position) {
            self.billed += u64::from(step.before);
            if step.ask.is_some() {
                return;
            }
            self.billed += u64::from(step.cost);
            self.position += 1;
        }
    }

    fn advance(&mut self) {
        self.position += 1;
        self.arrive();
    }

    fn request(&self) -> Option<(&'static str, String)> {
        let step = self.conversation.steps.get(self.position)?;
        let Some(carried) = &self.telling else {
            let ask = step.ask.as_ref()?;
            return Some((ask.path, Value::Object(ask.body.clone()).to_string()));
        };
        let tell = step.tell.as_ref()?;
        let mut body = tell.body.clone();
        if let Some(name) = tell.carries {
            body.insert(name.to_owned(), carried.clone());
        }
        Some((tell.path, Value::Object(body).to_string()))
    }

    fn is_telling(&self) -> bool {
        self.telling.is_some()
    }

    fn take(&mut self, answer: &Reply) {
        let Some(step) = self.conversation.steps.get(self.position) else { return };
        if answer.body["tripped"] == true {
            self.tally.trips += 1;
        }
        if let Some(reason) = answer.reason {
            *self.tally.reasons.entry(reason.code()).or_default() += 1;
        }
        let was_telling = self.telling.take().is_some();
        match answer.outcome {
            Outcome::Blocked => {
                self.tally.asked += 1;
                self.tally.blocked += 1;
                self.refused = answer.reason;
                self.tally.turned_away += u64::from(step.would_succeed);
                if answer.reason.is_some_and(|reason| step.goes_on_after.contains(&reason)) {
                    self.advance();
                } else {
                    self.position = self.conversation.steps.len();
                }
            }
            Outcome::Allowed | Outcome::WouldBlock | Outcome::Recorded if was_telling => {
                self.tally.told += 1;
                self.advance();
            }
            Outcome::Allowed | Outcome::WouldBlock | Outcome::Recorded => {
                self.tally.asked += 1;
                if answer.outcome == Outcome::WouldBlock {
                    self.tally.would_block += 1;
                } else {
                    self.tally.allowed += 1;
                }
                self.tally.probes += u64::from(answer.body["probe"] == true);
                self.billed += u64::from(step.cost);
                match &step.tell {
                    Some(tell) => self.telling = Some(tell.carries.map_or(Value::Null, |name| answer.body[name].clone())),
                    None => self.advance(),
                }
            }
        }
    }

    /// What it comes to; operations only of one that ended, or the twins could not be compared.
    fn end(mut self, tallies: &mut Tallies) -> Tally {
        if self.position >= self.conversation.steps.len() {
            self.tally.conversations = 1;
            self.tally.unguarded_operations = self.conversation.unguarded_operations();
            self.tally.guarded_operations = self.billed;
            self.tally.false_stops = u64::from(SCENARIOS[self.scenario].is_healthy() && self.tally.blocked > 0);
        }
        tallies.0[self.scenario].add(&self.tally);
        self.tally
    }
}

/// What a status line shows.
#[derive(Debug, Default)]
pub(super) struct Live {
    pub(super) asked: AtomicU64,
    pub(super) blocked: AtomicU64,
    pub(super) saved_operations: AtomicU64,
    /// Those that nobody has looked at.
    stops: Mutex<Vec<Stop>>,
}

impl Live {
    pub(super) fn take_stops(&self) -> Vec<Stop> {
        std::mem::take(&mut *self.stops.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A conversation that a guard has ended, and what its rest would have cost.
#[derive(Debug)]
pub(super) struct Stop {
    pub(super) session: String,
    pub(super) reason: Reason,
    pub(super) saved_operations: u64,
}

/// Sends a request to the service.
pub(super) trait Door: Sync {
    fn send(&self, path: &str, body: &str) -> Result<Reply, String>;
}

/// Drives the plan in real time, until it is done or `stop` is set.
pub(super) fn drive(plan: &Plan, workers: usize, door: &dyn Door, live: &Live, stop: &AtomicBool) -> Result<Tallies, String> {
    let mut shares: Vec<Vec<&Planned>> = vec![Vec::new(); workers.max(1)];
    for planned in &plan.planned {
        // One worker has the outage to itself: who comes first matters there.
        let is_shared = SCENARIOS[planned.scenario].reasons.contains(&Reason::CircuitOpen);
        let worker = if is_shared { 0 } else { planned.number as usize % shares.len() };
        shares[worker].push(planned);
    }
    let started = Instant::now();
    let results: Vec<Result<Tallies, String>> = std::thread::scope(|scope| {
        let work = |share: Vec<&'_ Planned>| {
            let result = work(plan, &share, door, live, started, stop);
            if result.is_err() {
                stop.store(true, Ordering::Relaxed);
            }
            result
        };
        let threads: Vec<_> = shares.into_iter().map(|share| scope.spawn(move || work(share))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("a worker of the demo ended by itself".into()))).collect()
    });
    let mut tallies = Tallies::new();
    for result in results {
        tallies.add(&result?);
    }
    Ok(tallies)
}

fn work(plan: &Plan, share: &[&Planned], door: &dyn Door, live: &Live, started: Instant, stop: &AtomicBool) -> Result<Tallies, String> {
    /// A wish to stop is seen within this time.
    const LOOK_UP: Duration = Duration::from_millis(20);
    let mut tallies = Tallies::new();
    let mut running: HashMap<u64, Running> = HashMap::new();
    let mut due: BinaryHeap<Reverse<(u64, u64)>> = BinaryHeap::new();
    let mut coming = share.iter().peekable();
    while !stop.load(Ordering::Relaxed) {
        let next_start = coming.peek().map(|planned| planned.start_millis);
        let next_step = due.peek().map(|Reverse((at, _))| *at);
        let Some(at) = next_start.into_iter().chain(next_step).min() else { break };
        let wait = Duration::from_millis(at).saturating_sub(started.elapsed());
        if !wait.is_zero() {
            std::thread::sleep(wait.min(LOOK_UP));
            continue;
        }
        if next_start == Some(at)
            && let Some(planned) = coming.next()
        {
            running.insert(planned.number, Running::new(plan, planned));
            due.push(Reverse((at, planned.number)));
            continue;
        }
        let Some(Reverse((at, number))) = due.pop() else { break };
        let Some(mut talk) = running.remove(&number) else { continue };
        let (asked, blocked) = (talk.tally.asked, talk.tally.blocked);
        // The question, and at once what came of it.
        while let Some((path, body)) = talk.request() {
            talk.take(&door.send(path, &body)?);
            if !talk.is_telling() {
                break;
            }
        }
        live.asked.fetch_add(talk.tally.asked - asked, Ordering::Relaxed);
        live.blocked.fetch_add(talk.tally.blocked - blocked, Ordering::Relaxed);
        if talk.request().is_some() {
            due.push(Reverse((at + talk.conversation.gap_millis, number)));
            running.insert(number, talk);
        } else {
            let (session, refused) = (talk.conversation.session.clone(), talk.refused);
            let saved_operations = talk.end(&mut tallies).saved_operations();
            live.saved_operations.fetch_add(saved_operations, Ordering::Relaxed);
            if let Some(reason) = refused {
                live.stops.lock().unwrap_or_else(PoisonError::into_inner).push(Stop { session, reason, saved_operations });
            }
        }
    }
    for (_, talk) in running {
        talk.end(&mut tallies);
    }
    Ok(tallies)
}

/// Drives the plan through the engine, its times counted from `base`, in their order.
pub(super) async fn replay(plan: &Plan, engine: &Engine, base: Timestamp) -> Result<Tallies, String> {
    /// Conversations that are written down in one go.
    const TOGETHER: usize = 256;
    let mut tallies = Tallies::new();
    let mut running: HashMap<u64, Running> = HashMap::new();
    let mut due: BinaryHeap<Reverse<(u64, u64)>> = BinaryHeap::new();
    let mut coming = plan.planned.iter().peekable();
    loop {
        let next_start = coming.peek().map(|planned| planned.start_millis);
        let next_step = due.peek().map(|Reverse((at, _))| *at);
        let Some(first) = next_start.into_iter().chain(next_step).min() else { break };
        // Within one gap no conversation comes twice, so the order of all is that of their times.
        let until = first + plan.gap_millis;
        while let Some(planned) = coming.next_if(|planned| planned.start_millis < until) {
            running.insert(planned.number, Running::new(plan, planned));
            due.push(Reverse((planned.start_millis, planned.number)));
        }
        let mut batch = Vec::new();
        while batch.len() < TOGETHER
            && let Some(Reverse((at, number))) = due.peek().copied()
            && at < until
        {
            due.pop();
            if let Some(talk) = running.remove(&number) {
                batch.push((at, number, talk));
            }
        }
        for round in [Round::Ask, Round::Tell] {
            let asking = batch.iter().map(|(at, _, talk)| async {
                match talk.request() {
                    Some((path, body)) if talk.is_telling() == (round == Round::Tell) => {
                        ask(engine, path, &body, base.as_millis() + *at as i64).await.map(Some)
                    }
                    _ => Ok(None),
                }
            });
            let answers = join_all(asking).await;
            for ((_, _, talk), answer) in batch.iter_mut().zip(answers) {
                if let Some(answer) = answer? {
                    talk.take(&answer);
                }
            }
        }
        for (at, number, talk) in batch {
            if talk.request().is_some() {
                due.push(Reverse((at + talk.conversation.gap_millis, number)));
                running.insert(number, talk);
            } else {
                talk.end(&mut tallies);
            }
        }
    }
    Ok(tallies)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Round {
    Ask,
    Tell,
}

async fn ask(engine: &Engine, path: &str, body: &str, at_millis: i64) -> Result<Reply, String> {
    let route = ROUTES.iter().find(|route| route.path == path).ok_or_else(|| format!("there is no route {path}"))?;
    let input = Input::read(body.as_bytes(), route.fields).map_err(|error| format!("{path}: {error:?}"))?;
    let operation = (route.read)(&input);
    let caller = Caller::open();
    let asked = AuthorisedRequest {
        tenant: &caller.tenant,
        operation: &*operation,
        warnings: &input.warnings,
        now: Timestamp::from_millis(at_millis),
        shape: Shape::Full,
        idempotency: None,
    };
    let answered = engine.ask(asked).await.map_err(|error| format!("{path}: {error}"))?;
    let body = serde_json::from_str(&answered.body).unwrap_or(Value::Null);
    Ok(Reply { outcome: answered.outcome, reason: answered.reason, body })
}

/// The settings of a demo of this length: the defaults, but for a recovery that fits the length, and for one endpoint whose
/// failures are its customers' own.
pub(super) fn settings(data: &std::path::Path, port: u16, seconds: u64, price: runguard_core::money::NanoDollars) -> String {
    let recovery_millis = (outage_millis(seconds) * 3 / 4).max(1);
    let data = toml::Value::String(data.display().to_string());
    let usd = price.as_dollars();
    format!(
        r#"[server]
listen = "127.0.0.1:{port}"

[store]
data = {data}

[savings]
usd_per_operation = {usd:?}

[guards.api_circuit.endpoints.{OUTAGE_ENDPOINT}]
recovery = "{recovery_millis}ms"

[guards.api_circuit.endpoints.{FLAKY_ENDPOINT}]
failure_threshold = 10000
failure_window = "1s"
"#
    )
}

#[cfg(test)]
mod tests;
