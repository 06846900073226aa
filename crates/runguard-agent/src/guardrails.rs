//! Judges the steps of a run: the same again, in circles, without news.
//!
//! Three judges look at every step. *Repetition* counts equal steps in a row and circles of steps, whatever they gave. The
//! *tracker* keeps a call that has already answered from running again in the same turn. The *stall detector* compares calls
//! together with their results and climbs a ladder: first the model is told, then the run is ended. Everything they remember
//! is in [`Detectors`] and the counters, which the session keeps.

use crate::message::ToolCall;
use crate::report::Stop;
use crate::settings::GuardrailSettings;
use crate::spend::Counters;
use crate::tool::Effect;
use runguard_core::detect::loops::{Called, LoopSettings, Trail};
use runguard_core::detect::stall::{
    CallEffect, Outcome, Rung, StallDetector, StallSettings, StallState, Step, Verdict, VolatileResults, result_fingerprint,
};
use runguard_core::detect::tool_calls::{CallOutcome, TurnCalls};
use runguard_core::fingerprint;
use runguard_core::reason::RunReason;
use runguard_core::time::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Results that are remembered, so that a call that is not run again counts as giving what it gave. The oldest goes first.
const REMEMBERED_RESULTS: usize = 64;
/// Calls that may not run again until something else has happened.
const MOST_BLOCKED: usize = 16;

/// What the detectors remember. Saved as one opaque text: it is for machines, and short.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Detectors(Memory);

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Memory {
    stall: StallState,
    turn: TurnCalls,
    cycles: Option<Trail>,
    /// What each call gave last.
    results: Vec<(u64, GivenResult)>,
    blocked: Vec<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum GivenResult {
    Result(u64),
    /// Of an earlier version, which did not keep what a failed call said.
    Error(u64),
    Failed {
        result: u64,
        error: u64,
    },
}

impl GivenResult {
    fn of(done: &Done<'_>, volatile: &VolatileResults) -> Self {
        match volatile.outcome_of_text(done.text, done.is_error) {
            Outcome { result, error: Some(error) } => Self::Failed { result: result.unwrap_or(error), error },
            Outcome { result, error: None } => Self::Result(result.unwrap_or_default()),
        }
    }

    const fn outcome(self) -> Outcome {
        match self {
            Self::Result(result) => Outcome { result: Some(result), error: None },
            Self::Error(error) => Outcome { result: None, error: Some(error) },
            Self::Failed { result, error } => Outcome { result: Some(result), error: Some(error) },
        }
    }
}

impl Serialize for Detectors {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes = postcard::to_stdvec(&self.0).map_err(serde::ser::Error::custom)?;
        serializer.serialize_str(&base64::Engine::encode(&base64::engine::general_purpose::STANDARD_NO_PAD, bytes))
    }
}

impl<'de> Deserialize<'de> for Detectors {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        let bytes = base64::Engine::decode(&base64::engine::general_purpose::STANDARD_NO_PAD, text.as_bytes()).map_err(D::Error::custom)?;
        postcard::from_bytes(&bytes).map(Self).map_err(D::Error::custom)
    }
}

/// What a judge says, worst last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judgement {
    GoOn,
    /// The model is told.
    Nudge {
        rule: &'static str,
        count: u32,
        message: String,
    },
    /// The run ends.
    Stop {
        rule: &'static str,
        count: u32,
        message: String,
        stop: Stop,
    },
}

/// Why a call is not run; the message goes to the model as its result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub rule: &'static str,
    pub count: u32,
    pub message: String,
}

/// A call with what it gave.
#[derive(Debug, Clone, Copy)]
pub struct Done<'a> {
    pub call: &'a ToolCall,
    pub text: &'a str,
    pub is_error: bool,
    /// What the tool does, when it really ran.
    pub ran: Option<Effect>,
}

/// The judges, with their settings at hand.
#[derive(Debug)]
pub struct Guardrails {
    settings: GuardrailSettings,
    stall: StallSettings,
    cycles: LoopSettings,
}

impl Guardrails {
    pub fn new(settings: GuardrailSettings) -> Self {
        let stall = settings.stall_settings();
        let cycles = LoopSettings::default().repeats(settings.max_repeated_cycles).max_cycle_len(settings.max_cycle_steps);
        Self { settings, stall, cycles }
    }

    /// A person has spoken: what was tried before says nothing about what comes.
    pub fn user_message(&self, detectors: &mut Detectors, counters: &mut Counters) {
        detectors.0 = Memory::default();
        counters.repeated_tool_steps = 0;
        counters.last_signature = None;
        counters.max_tokens_recoveries = 0;
    }

    /// Looks at what the model wants to do, before anything of it runs.
    pub fn step(&self, detectors: &mut Detectors, counters: &mut Counters, calls: &[&ToolCall]) -> Judgement {
        if calls.is_empty() || calls.iter().all(|call| self.is_polling(&call.name)) {
            return Judgement::GoOn;
        }
        let signature = signature(calls);
        if counters.last_signature == Some(signature) {
            counters.repeated_tool_steps = counters.repeated_tool_steps.saturating_add(1);
        } else {
            counters.repeated_tool_steps = 0;
            counters.last_signature = Some(signature);
        }
        let (repeats, most) = (counters.repeated_tool_steps, self.settings.max_repeated_tool_steps);
        if most > 0 && repeats >= most {
            let message = format!("The model made the same step {} times in a row ({}): it is stuck.", repeats + 1, names(calls));
            return Judgement::Stop { rule: RunReason::Repetition.code(), count: repeats + 1, message, stop: Stop::Repetition { repeats } };
        }
        if self.cycles.repeats > 0 {
            let trail = detectors.0.cycles.get_or_insert_with(|| Trail::new(&self.cycles));
            let step = fingerprint::hex(signature);
            let found = trail.record(&self.cycles, Called::by_name(&step), Timestamp::from_millis(0));
            if let Some(found) = found.filter(|found| found.cycle_len() > 1) {
                let steps = found.cycle_len();
                let message = format!("The model made the same round of {steps} steps {} times: it goes in a circle.", found.repeats);
                let stop = Stop::Cycle { rounds: found.repeats, steps };
                return Judgement::Stop { rule: RunReason::Cycle.code(), count: found.repeats, message, stop };
            }
        }
        if most > 1 && repeats + 1 == most {
            let message = format!(
                "You have made exactly this step {} times in a row. Making it once more ends the run. Use what you have, try another way, or finish.",
                repeats + 1
            );
            return Judgement::Nudge { rule: RunReason::Repetition.code(), count: repeats + 1, message };
        }
        Judgement::GoOn
    }

    /// Whether a call should be answered without running it.
    pub fn refuse(&self, detectors: &Detectors, call: &ToolCall, arguments: &Value) -> Option<Refusal> {
        let key = call_key(call);
        if detectors.0.blocked.contains(&key) {
            let message = format!("{} was not run: this call has given the same result too often. Do something else.", call.name);
            return Some(Refusal { rule: RunReason::StallBlock.code(), count: 0, message });
        }
        if self.is_polling(&call.name) || self.settings.repeatable.contains(&call.name) {
            return None;
        }
        // Arguments that cannot be compared are another tool's matter: it will say what is wrong with them.
        let skip = detectors.0.turn.should_skip(&self.settings.tool_calls, &call.name, arguments).ok()??;
        Some(Refusal { rule: skip.reason.code(), count: skip.count, message: skip.message })
    }

    /// The model was paid for so many tokens.
    pub fn spent(&self, detectors: &mut Detectors, tokens: u64) {
        self.with_stall(&mut detectors.0, |stall| stall.spent(tokens));
    }

    /// Looks at what a step gave, and says the worst.
    pub fn results(&self, detectors: &mut Detectors, round: u32, done: &[Done<'_>]) -> Judgement {
        let memory = &mut detectors.0;
        let mut worst = Judgement::GoOn;
        memory.blocked.clear();
        for done in done {
            self.remember_call(memory, done);
            let key = call_key(done.call);
            let Outcome { result, error } = memory.given(key, done, &self.stall.volatile).outcome();
            let effect = CallEffect::of(&done.call.name, &done.call.arguments);
            let step = Step { tool: &done.call.name, args: arguments_key(done.call), result, error, round: Some(u64::from(round)), effect };
            let verdict = self.with_stall(memory, |stall| stall.observe(step));
            worst = worst.or(match verdict.rung {
                Rung::GoOn | Rung::Observe => Judgement::GoOn,
                Rung::Steer | Rung::Block => {
                    if verdict.rung == Rung::Block && memory.blocked.len() < MOST_BLOCKED {
                        memory.blocked.push(key);
                    }
                    Judgement::Nudge { rule: rule_name(verdict), count: verdict.count, message: verdict.nudge(&done.call.name) }
                }
                Rung::Stop => stalled(verdict),
            });
        }
        worst
    }

    /// Looks at what the model said without calling anything, when it is asked to go on.
    pub fn said(&self, detectors: &mut Detectors, text: &str) -> Judgement {
        let verdict = self.with_stall(&mut detectors.0, |stall| stall.message(result_fingerprint(text)));
        match verdict.rung {
            Rung::GoOn | Rung::Observe | Rung::Steer | Rung::Block => Judgement::GoOn,
            Rung::Stop => stalled(verdict),
        }
    }

    fn remember_call(&self, memory: &mut Memory, done: &Done<'_>) {
        let Some(effect) = done.ran else { return };
        let Ok(arguments) = done.call.parsed() else { return };
        if effect == Effect::Changes && !done.is_error {
            // What was read before may be different: reading it again is work.
            memory.turn = TurnCalls::default();
        }
        let outcome = if done.is_error { CallOutcome::Failed } else { CallOutcome::Completed };
        let _ = memory.turn.record(&self.settings.tool_calls, &done.call.name, &arguments, outcome);
    }

    fn with_stall<T>(&self, memory: &mut Memory, look: impl FnOnce(&mut StallDetector) -> T) -> T
    where
        T: Default,
    {
        // The settings were checked when the agent was built.
        let Ok(mut detector) = StallDetector::resume(self.stall.clone(), std::mem::take(&mut memory.stall)) else { return T::default() };
        let seen = look(&mut detector);
        memory.stall = detector.into_state();
        seen
    }

    fn is_polling(&self, tool: &str) -> bool {
        self.stall.polling.iter().any(|polling| polling == tool)
    }
}

impl Memory {
    /// What the call gave: of one that was not run, what it gave when it ran.
    fn given(&mut self, key: u64, done: &Done<'_>, volatile: &VolatileResults) -> GivenResult {
        let earlier = self.results.iter().position(|(known, _)| *known == key);
        if done.ran.is_none()
            && let Some(position) = earlier
        {
            return self.results[position].1;
        }
        let given = GivenResult::of(done, volatile);
        if let Some(position) = earlier {
            self.results.remove(position);
        } else if self.results.len() >= REMEMBERED_RESULTS {
            self.results.remove(0);
        }
        self.results.push((key, given));
        given
    }
}

impl Judgement {
    /// The worse of two; of two alike the first.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        match (&self, &other) {
            (Self::GoOn, _) | (Self::Nudge { .. }, Self::Stop { .. }) => other,
            _ => self,
        }
    }
}

fn stalled(verdict: Verdict) -> Judgement {
    let rule = rule_name(verdict);
    let stop = Stop::Stalled { rule: rule.to_owned(), count: verdict.count };
    Judgement::Stop { rule, count: verdict.count, message: verdict.sentences(), stop }
}

/// By the code that logs and the service use.
fn rule_name(verdict: Verdict) -> &'static str {
    verdict.rule.map_or(RunReason::StallDetected.code(), |rule| rule.reason().code())
}

/// The arguments, whatever the order of their keys. What is no JSON is compared as it is.
fn arguments_key(call: &ToolCall) -> u64 {
    let text = call.arguments.trim();
    let text = if text.is_empty() { "{}" } else { text };
    fingerprint::of_text(text).unwrap_or_else(|_| xxh3_64(text.as_bytes()))
}

fn call_key(call: &ToolCall) -> u64 {
    xxh3_64_with_seed(call.name.as_bytes(), arguments_key(call))
}

/// One name for a whole step. The order in which a model lists its calls means nothing.
fn signature(calls: &[&ToolCall]) -> u64 {
    let mut keys: Vec<u64> = calls.iter().map(|call| call_key(call)).collect();
    keys.sort_unstable();
    let bytes: Vec<u8> = keys.into_iter().flat_map(u64::to_le_bytes).collect();
    xxh3_64(&bytes)
}

fn names(calls: &[&ToolCall]) -> String {
    let mut names: Vec<&str> = calls.iter().map(|call| call.name.as_str()).collect();
    names.dedup();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn call(name: &str, arguments: &str) -> ToolCall {
        ToolCall { id: "1".into(), name: name.into(), arguments: arguments.into() }
    }

    struct Watched {
        guardrails: Guardrails,
        detectors: Detectors,
        counters: Counters,
        round: u32,
    }

    impl Watched {
        fn new(settings: GuardrailSettings) -> Self {
            Self { guardrails: Guardrails::new(settings), detectors: Detectors::default(), counters: Counters::default(), round: 0 }
        }

        fn step(&mut self, call: &ToolCall) -> Judgement {
            self.guardrails.step(&mut self.detectors, &mut self.counters, &[call])
        }

        fn gives(&mut self, call: &ToolCall, text: &str, ran: Option<Effect>) -> Judgement {
            self.round += 1;
            self.guardrails.results(&mut self.detectors, self.round, &[Done { call, text, is_error: false, ran }])
        }
    }

    #[test]
    fn the_fourth_identical_step_stops_and_the_third_warns() {
        let mut run = Watched::new(GuardrailSettings::default());
        let same = call("search", r#"{"q":"a","page":1}"#);
        let same_in_other_words = call("search", r#"{ "page": 1.0, "q": "a" }"#);
        assert_eq!(run.step(&same), Judgement::GoOn);
        assert_eq!(run.step(&same_in_other_words), Judgement::GoOn);
        assert!(matches!(run.step(&same), Judgement::Nudge { rule: "repetition", count: 3, .. }));
        assert!(matches!(run.step(&same), Judgement::Stop { rule: "repetition", stop: Stop::Repetition { repeats: 3 }, .. }));
    }

    #[test]
    fn another_file_is_no_repetition() {
        let mut run = Watched::new(GuardrailSettings::default());
        for file in 0..50 {
            assert_eq!(run.step(&call("read_file", &format!(r#"{{"path":"{file}"}}"#))), Judgement::GoOn);
        }
    }

    #[test]
    fn long_arguments_are_compared_whole() {
        let mut run = Watched::new(GuardrailSettings::default());
        for number in 0..10 {
            let arguments = format!(r#"{{"text":"{}{number}"}}"#, "x".repeat(500));
            assert_eq!(run.step(&call("write_file", &arguments)), Judgement::GoOn);
        }
    }

    #[test]
    fn a_circle_of_two_steps_ends_after_five_rounds_whatever_it_gives() {
        let mut run = Watched::new(GuardrailSettings::default());
        let judgements: Vec<Judgement> = (0..10).map(|turn| run.step(&call(["a", "b"][turn % 2], "{}"))).collect();
        assert!(judgements[..9].iter().all(|judgement| *judgement == Judgement::GoOn));
        assert!(matches!(judgements[9], Judgement::Stop { stop: Stop::Cycle { rounds: 5, steps: 2 }, .. }));
    }

    #[test]
    fn waiting_is_no_repetition() {
        let mut run = Watched::new(GuardrailSettings::default());
        for _ in 0..20 {
            assert_eq!(run.step(&call("get_status", "{}")), Judgement::GoOn);
            assert_eq!(run.guardrails.refuse(&run.detectors, &call("get_status", "{}"), &json!({})), None);
            assert_eq!(run.gives(&call("get_status", "{}"), "pending", Some(Effect::ReadOnly)), Judgement::GoOn);
        }
    }

    #[test]
    fn the_model_is_told_before_the_run_is_stopped() {
        let settings = GuardrailSettings { max_repeated_tool_steps: 0, ..GuardrailSettings::default() };
        let mut run = Watched::new(settings);
        let same = call("search", r#"{"q":"a"}"#);
        let mut judgements = vec![run.gives(&same, "nothing", Some(Effect::ReadOnly))];
        // Not run again, and still the same call that gives the same.
        let refusal = run.guardrails.refuse(&run.detectors, &same, &json!({"q": "a"})).unwrap();
        assert_eq!(
            (refusal.rule, refusal.message.as_str()),
            ("exact_duplicate", "Tool 'search' was already executed with identical parameters")
        );
        judgements.extend((0..3).map(|_| run.gives(&same, &refusal.message, None)));
        assert_eq!(judgements[..2], [Judgement::GoOn, Judgement::GoOn]);
        assert!(matches!(&judgements[2], Judgement::Nudge { rule: "stalled_identical", count: 3, .. }), "{judgements:?}");
        let Judgement::Stop { rule, stop: Stop::Stalled { rule: kept, .. }, .. } = &judgements[3] else { panic!("{judgements:?}") };
        assert_eq!((*rule, kept.as_str()), ("stalled_identical", "stalled_identical"), "the report has the code of the event");
    }

    #[test]
    fn a_check_of_which_fewer_and_fewer_tests_fail_moves() {
        let judged = |left: fn(u32) -> u32| {
            let mut run = Watched::new(GuardrailSettings { max_repeated_tool_steps: 0, ..GuardrailSettings::default() });
            let check = call("bash", r#"{"command":"pytest -q"}"#);
            let judge = |times: u32| {
                run.gives(&call("write_file", &format!(r#"{{"path":"a","content":"{times}"}}"#)), "ok", Some(Effect::Changes));
                run.round += 1;
                let text = format!("Error: {} failed", left(times));
                run.guardrails.results(
                    &mut run.detectors,
                    run.round,
                    &[Done { call: &check, text: &text, is_error: true, ran: Some(Effect::Changes) }],
                )
            };
            (0..14).map(judge).filter(|judgement| matches!(judgement, Judgement::Stop { .. })).count()
        };
        assert_eq!([judged(|times| 40 - times), judged(|_| 5)].map(|stops| stops > 0), [false, true]);
    }

    #[test]
    fn reading_again_after_a_change_is_work() {
        let mut run = Watched::new(GuardrailSettings::default());
        let read = call("read_file", r#"{"path":"a"}"#);
        let path = json!({"path": "a"});
        run.gives(&read, "old", Some(Effect::ReadOnly));
        assert!(run.guardrails.refuse(&run.detectors, &read, &path).is_some());
        run.gives(&call("write_file", r#"{"path":"a","content":"b"}"#), "ok", Some(Effect::Changes));
        assert_eq!(run.guardrails.refuse(&run.detectors, &read, &path), None);
    }

    #[test]
    fn a_person_who_speaks_begins_anew() {
        let mut run = Watched::new(GuardrailSettings::default());
        let same = call("search", "{}");
        for _ in 0..3 {
            run.step(&same);
        }
        run.guardrails.user_message(&mut run.detectors, &mut run.counters);
        assert_eq!(run.step(&same), Judgement::GoOn);
    }

    #[test]
    fn what_is_remembered_survives_being_written_down() {
        let mut run = Watched::new(GuardrailSettings::default());
        for number in 0..100 {
            let made = call("read_file", &format!(r#"{{"path":"{number}"}}"#));
            run.step(&made);
            run.gives(&made, &number.to_string(), Some(Effect::ReadOnly));
        }
        let text = serde_json::to_string(&run.detectors).unwrap();
        assert!(text.len() < 8_000, "{} bytes", text.len());
        let mut back: Detectors = serde_json::from_str(&text).unwrap();
        assert!(serde_json::to_string(&back).unwrap() == text);
        // And it judges as before: what was read is known, the circle goes on where it was.
        let known = call("read_file", r#"{"path":"7"}"#);
        assert!(run.guardrails.refuse(&back, &known, &json!({"path": "7"})).is_some());
        std::mem::swap(&mut run.detectors, &mut back);
        let said = run.gives(&known, "7", None);
        assert!(said == run.guardrails.results(&mut back, run.round, &[Done { call: &known, text: "7", is_error: false, ran: None }]));
    }
}
