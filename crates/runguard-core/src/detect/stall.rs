//! Notices that an agent gets nowhere, by what its calls give.
//!
//! Counting calls is a budget, not a sign of a loop: to edit, test, edit and test again is how work gets done. What a
//! stuck agent lacks is news. So the unit here is a *pair*, a call with its result: the same call with another result
//! is progress, the same call after a change to the world is a new experiment, and few new pairs among the latest are
//! the sign that holds for every kind of agent. Pairs are compared by fingerprints, so a step costs the same however
//! large its result was.
//!
//! Strong models do not go round in such circles. They edit, run the same check, see the same failure, and edit again; or
//! they put a file back to what it was, and begin anew. Every pair of that is new, so it is counted apart: what a check gave,
//! across changes, and what files held.
//!
//! What follows is a ladder, because most agents that repeat themselves three times get out on their own when told:
//! *observe* (noted), *steer* (a sentence for the model), *block* (do not run this call), *stop* (end the run).

mod effect;
mod fingerprints;
mod kind;
mod length;
mod memory;
mod sessions;
mod settings;
mod volatile;

pub use self::effect::CallEffect;
pub use self::fingerprints::{Beside, Outcome, error_fingerprint, is_an_error, is_framework, result_fingerprint, says_error};
pub use self::kind::Kinds;
pub use self::length::{LEAST_RUNS, Long};
use self::memory::Memory;
pub use self::settings::{Ladder, Preset, PresetChoice, Rung, StallRule, StallSettings};
use super::loops::{LoopSettings, MAX_CYCLE_LEN, MAX_REPEATS, Trail};
use crate::limits::InvalidSetting;
use crate::packed::{Packed, serialise_packed};
use crate::text::sentence;
use serde::{Deserialize, Serialize};
pub use sessions::StallSessions;
use std::fmt;
pub use volatile::VolatileResults;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Pairs remembered to tell new from old. Beyond it the earliest is forgotten, and would count as new again. So few that
/// looking through all of them is quicker than a hash table, and a kept state is small.
const REMEMBERED: usize = 256;
/// Calls whose latest result is remembered: as many as the longest cycle has.
const OUTCOMES: usize = MAX_PERIOD as usize;
const MAX_PERIOD: u32 = 16;
/// Calls of one model round that are compared with each other.
const ROUND_CALLS: usize = 64;
const MAX_WINDOW: u32 = 64;
/// How many times as often as another call one may give the same that asks how something goes on.
const PATIENCE: u32 = 5;
/// Times a file is put back that are a sign beside others.
const PUT_BACK_SIGN: u32 = 3;

/// A call that was made, with what it gave, as fingerprints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step<'a> {
    /// What was called.
    pub tool: &'a str,
    /// Of the arguments.
    pub args: u64,
    /// Of the result. `None` when it is not known, or not yet: then the call is taken to give what it gave last time.
    pub result: Option<u64>,
    /// Of the normalised error, when the call failed.
    pub error: Option<u64>,
    /// The model's turn it belongs to: the same call twice in one turn is one.
    pub round: Option<u64>,
    /// What it does, as far as its arguments tell.
    pub effect: CallEffect,
}

/// What the detector makes of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Verdict {
    /// What to do.
    pub rung: Rung,
    /// The rule that says so.
    pub rule: Option<StallRule>,
    /// What was counted: calls in a row, rounds, errors; for novelty the new pairs in the window.
    pub count: u32,
}

impl Verdict {
    fn climb(&mut self, rung: Rung, rule: StallRule, count: u32) {
        if rung > self.rung {
            *self = Self { rung, rule: Some(rule), count };
        }
    }

    /// The rule by which the call is not let through, if one says so. A run that makes it all the same is ended: whoever judges runs goes by this.
    pub fn refuses(&self) -> Option<StallRule> {
        self.rule.filter(|_| self.rung >= Rung::Block)
    }

    /// What is wrong and what to do, in sentences.
    pub fn sentences(&self) -> String {
        let advice = match self.rung {
            Rung::Stop => "End it, and tell the user what was found so far.",
            Rung::Block | Rung::Steer | Rung::Observe | Rung::GoOn => "Do not make this call again; give the model the nudge.",
        };
        format!("The run makes no progress: {self}. {advice}")
    }

    /// What was seen, in a sentence for the log; empty while the run makes progress.
    pub fn message(&self) -> String {
        if self.rung == Rung::GoOn { String::new() } else { sentence(self) }
    }

    /// A sentence for the model. Empty when there is nothing to say to it: what is only observed it does not hear of.
    pub fn nudge(&self, tool: &str) -> String {
        let Some(rule) = self.rule.filter(|_| self.rung >= Rung::Steer) else { return String::new() };
        let count = self.count;
        match rule {
            StallRule::Identical => format!(
                "You have called {tool} {count} times with the same arguments and got the same result. It will not change. Use what you have, try another way, or say what is missing and finish."
            ),
            StallRule::Cycle => format!(
                "You have repeated the same sequence of calls {count} times with the same results. Leave this path: change your plan, or report what you found and finish."
            ),
            StallRule::Novelty => {
                "Your latest calls brought almost nothing new. Sum up what you know, choose a different approach, or finish with what you have.".to_owned()
            }
            StallRule::SameError => format!(
                "{count} calls in a row failed with the same error although their arguments differed. The cause lies elsewhere: read the error, fix what it names, or report it and finish."
            ),
            StallRule::Messages => {
                format!("You have said the same {count} times without acting. Take a step, or give your final answer.")
            }
            StallRule::Unmoved => format!(
                "You have made this call of {tool} {count} times, each after a change, and it gave the same every time. What you change does not reach what you check: find out why before you change more, or report what you found and finish."
            ),
            StallRule::PutBack => format!(
                "You have put this file back to what it was before {count} times. Decide which of the versions is right and say why, try something that is neither, or report what you found and finish."
            ),
            StallRule::SameResult => format!(
                "{count} calls of {tool} in a row with different arguments gave the same. More of them will give it too: use what you have, or look elsewhere."
            ),
            StallRule::Failing => format!(
                "Your latest {count} calls all failed. Stop trying variations: find out what is wrong with what they have in common, or report it and finish."
            ),
            StallRule::LongRun => format!(
                "This has become a long run ({count} calls), and what you change does not last or does not help: a check failed again after a change, or a file was put back again and again. Finish what works, or report what you found and what is missing."
            ),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(rule) = self.rule else { return f.write_str("the run makes progress") };
        let count = self.count;
        match rule {
            StallRule::Identical => write!(f, "the same call gave the same result {count} times in a row"),
            StallRule::Cycle => write!(f, "the same round of calls and results was made {count} times"),
            StallRule::Novelty if count == 0 => f.write_str("none of the latest calls brought something new"),
            StallRule::Novelty => write!(f, "only {count} of the latest calls brought something new"),
            StallRule::SameError => write!(f, "{count} calls in a row failed with the same error"),
            StallRule::Messages => write!(f, "the same was said {count} times without a call"),
            StallRule::Unmoved => write!(f, "the same check gave the same {count} times although something was changed in between"),
            StallRule::PutBack => write!(f, "a file was put back to what it had been {count} times"),
            StallRule::SameResult => write!(f, "{count} calls in a row that look at something else gave the same"),
            StallRule::Failing => write!(f, "{count} calls in a row failed"),
            StallRule::LongRun => {
                // What was counted are the calls, also where the tokens made it long.
                write!(
                    f,
                    "it is a long run for its kind, by its {count} calls or by its tokens, and a check failed again after a change or a file was put back again and again"
                )
            }
        }
    }
}

/// What is counted after a step, to be shown. Nothing is decided by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Counters {
    /// Equal pairs in a row.
    pub identical: u32,
    /// Pairs in a round that has been made at least twice, and how often it was made.
    pub cycle: Option<(u32, u32)>,
    /// Pairs counted so far. Waiting and parallel duplicates are none.
    pub pairs: u32,
    /// Of the latest pairs, as many as the window has: how many there are, and how many of them were new.
    pub window: u32,
    /// How many of the latest steps brought something new.
    pub window_new: u32,
    /// Whether the latest pair was new.
    pub latest_new: bool,
    /// Calls in a row that failed with the same error.
    pub same_error: u32,
    /// Messages in a row that say the same.
    pub messages: u32,
    /// Rounds of two alternating messages, from the second on.
    pub message_rounds: u32,
    /// How often the latest call that changed nothing gave the same, across changes.
    pub unmoved: u32,
    /// How often the file that was changed last was put back to what it had been.
    pub put_back: u32,
    /// Looks in a row that gave the same for other arguments.
    pub same_result: u32,
    /// Calls in a row that failed.
    pub failing: u32,
    /// Pairs of a run in which a check failed again after a change, or a file was put back the third time; 0 as long as neither was so.
    pub long_run: u32,
    /// Tokens that were used, as far as they were told.
    pub tokens: u64,
}

impl Counters {
    /// The calls of a long run, as whoever shows them writes them; where its tokens are looked at too, with how much of them is
    /// used: `12/51, 93 %`.
    pub fn with_share_of_tokens(&self, calls: String, settings: &StallSettings) -> String {
        let limit = settings.long_run_tokens;
        if limit == 0 || self.long_run == 0 {
            return calls;
        }
        format!("{calls}, {} %", u128::from(self.tokens) * 100 / u128::from(limit))
    }
}

/// Watches one run.
///
/// ```
/// use runguard_core::detect::stall::{CallEffect, Rung, StallDetector, StallSettings, Step};
///
/// let mut detector = StallDetector::new(StallSettings::default())?;
/// let step = Step { tool: "search", args: 1, result: Some(7), error: None, round: None, effect: CallEffect::Unknown };
/// let rungs: Vec<Rung> = (0..4).map(|_| detector.observe(step).rung).collect();
/// assert_eq!(rungs, [Rung::GoOn, Rung::GoOn, Rung::Steer, Rung::Stop]);
/// // Another result is news.
/// assert_eq!(detector.observe(Step { result: Some(8), ..step }).rung, Rung::GoOn);
/// # Ok::<(), runguard_core::limits::InvalidSetting>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StallDetector {
    settings: StallSettings,
    state: StallState,
}

/// What is known of a run: bounded, and what a store keeps of it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StallState {
    seen: RecentPairs,
    /// The latest pairs, newest in the lowest bit: 1 is new.
    news: u64,
    pairs: u32,
    last: Option<u64>,
    in_a_row: u32,
    cycles: Option<Trail>,
    last_error: Option<u64>,
    errors_in_a_row: u32,
    messages: Option<Trail>,
    last_message: Option<u64>,
    messages_in_a_row: u32,
    round: Option<u64>,
    round_calls: Vec<u64>,
    experiment: u64,
}

/// The pairs that came, a ring.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct RecentPairs {
    pairs: Vec<u64>,
    /// Where the next one goes once the ring is full.
    next: usize,
    /// What the latest calls gave, the latest last. Kept in the same bytes as the pairs, so that a state from before there
    /// were outcomes can still be read.
    outcomes: Vec<(u64, u64)>,
    /// Kept in these bytes for the same reason.
    memory: Memory,
}

impl RecentPairs {
    /// Whether the pair is new, remembering it.
    fn is_news(&mut self, pair: u64) -> bool {
        if self.pairs.contains(&pair) {
            return false;
        }
        if self.pairs.len() < REMEMBERED {
            self.pairs.push(pair);
        } else {
            self.pairs[self.next] = pair;
            self.next = (self.next + 1) % REMEMBERED;
        }
        true
    }

    fn last_result(&self, call: u64) -> Option<u64> {
        self.outcomes.iter().rev().find(|(made, _)| *made == call).map(|(_, result)| *result)
    }

    fn remember_result(&mut self, call: u64, result: u64) {
        if let Some(known) = self.outcomes.iter().position(|(made, _)| *made == call) {
            self.outcomes[known..].rotate_left(1);
            self.outcomes.pop();
        } else if self.outcomes.len() == OUTCOMES {
            self.outcomes.remove(0);
        }
        self.outcomes.push((call, result));
    }
}

impl Packed for RecentPairs {
    /// The pairs, the outcomes and the memory, and in two bytes how many outcomes and words of memory there are. One byte is the
    /// form from before there was a memory; none, pairs alone, the one before that.
    fn pack(&self) -> Vec<u8> {
        // Oldest first, so that where the ring begins need not be kept.
        let (newer, older) = self.pairs.split_at(self.next.min(self.pairs.len()));
        let memory = self.memory.pack();
        let mut bytes = Vec::with_capacity(8 * (self.pairs.len() + memory.len()) + 16 * self.outcomes.len() + 2);
        bytes.extend(older.iter().chain(newer).flat_map(|pair| pair.to_le_bytes()));
        bytes.extend(self.outcomes.iter().flat_map(|(call, result)| [call.to_le_bytes(), result.to_le_bytes()]).flatten());
        bytes.extend(memory.iter().flat_map(|word| word.to_le_bytes()));
        if !memory.is_empty() {
            bytes.extend([memory.len() as u8, self.outcomes.len() as u8]);
        } else if !self.outcomes.is_empty() {
            bytes.push(self.outcomes.len() as u8);
        }
        bytes
    }

    fn unpack(bytes: &[u8]) -> Option<Self> {
        let (words, memory, outcomes) = match (bytes.len() % 8, bytes) {
            (2, [words @ .., memory, outcomes]) => (words, usize::from(*memory), usize::from(*outcomes)),
            (1, [words @ .., outcomes]) => (words, 0, usize::from(*outcomes)),
            _ => (bytes, 0, 0),
        };
        let (words, memory) = words.split_at(words.len().checked_sub(8 * memory)?);
        let (pairs, outcomes) = words.split_at(words.len().checked_sub(16 * outcomes)?);
        let word = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).ok();
        let outcome = |bytes: &[u8]| Some((word(bytes.get(..8)?)?, word(bytes.get(8..)?)?));
        Some(Self {
            pairs: pairs.chunks(8).take(REMEMBERED).map(word).collect::<Option<_>>()?,
            next: 0,
            outcomes: outcomes.chunks(16).take(OUTCOMES).map(outcome).collect::<Option<_>>()?,
            memory: Memory::unpack(&memory.chunks(8).map(word).collect::<Option<Vec<u64>>>()?)?,
        })
    }
}

serialise_packed!(RecentPairs);

impl StallState {
    /// As [`StallDetector::observe`], for who keeps states of many runs and settings apart.
    pub fn observe(&mut self, settings: &StallSettings, step: Step<'_>) -> Verdict {
        let state = self;
        let call = xxh3_64_with_seed(step.tool.as_bytes(), step.args);
        if state.is_parallel_duplicate(call, step.round) {
            return Verdict::default();
        }
        // The model has seen nothing yet of what the calls before it in its round gave: they are one attempt.
        let is_beside = state.round_calls.len() > 1;
        state.seen.memory.kinds_mut().called(step.tool, step.effect);
        state.last_message = None;
        state.messages_in_a_row = 0;
        let known = step.result.or(step.error);
        // Not known, it is taken to be as last time: a loop must not get away because the result of its last call was never
        // told. What is only guessed says nothing about news and errors.
        let guess = if known.is_none() { state.seen.last_result(call) } else { None };
        let result = known.or(guess).unwrap_or(0);
        if let Some(result) = known {
            state.seen.remember_result(call, result);
        }
        let mutates = step.effect.changes() || settings.mutating.iter().any(|tool| tool == step.tool);
        // Who waits may hear the same for long without being told of it. When that fails it is something else, and counted from there: nothing
        // ends that was not told before.
        let result = if step.effect == CallEffect::Waits && step.error.is_some() { !result } else { result };
        // A change is compared with every earlier one: making the same one again is part of the circle.
        let pair = mix(mix(call, result), if mutates { 0 } else { state.experiment });
        let news = state.seen.is_news(pair);
        if settings.is_waiting(step.tool, step.effect) {
            // Waiting is neither progress nor a stall.
            return Verdict::default();
        }
        let mut verdict = Verdict::default();
        // Who asks how something goes on hears the same for long, but not for ever. What fails is no answer to that.
        let is_patient = step.effect == CallEffect::Waits && step.error.is_none() && !mutates;
        let patience = if is_patient { PATIENCE } else { 1 };

        state.in_a_row = if state.last == Some(pair) { state.in_a_row + 1 } else { 1 };
        state.last = Some(pair);
        verdict.climb(settings.identical.rung(state.in_a_row / patience), StallRule::Identical, state.in_a_row);

        if let Some(rounds) = rounds_of_cycle(&mut state.cycles, settings.cycle_from(), settings.cycle_max_period, pair) {
            verdict.climb(settings.cycle.rung(rounds / patience), StallRule::Cycle, rounds);
        }
        if is_patient {
            return settings.limited(verdict);
        }
        // Looked for apart: two equal calls are a round of one made twice, and would hide the round they stand in.
        let rounds = state.cycles.as_ref().and_then(Trail::repeated).map_or(0, |(_, rounds)| rounds);
        verdict.climb(settings.cycle.rung(rounds).min(Rung::Steer), StallRule::Cycle, rounds);

        state.seen.memory.paired(step.effect, news, state.news);
        state.news = state.news << 1 | u64::from(news);
        state.pairs = state.pairs.saturating_add(1);
        let window = settings.novelty_window;
        // Which element is acted on is known whatever came of it.
        let is_by_target = settings.novelty_by_target && matches!(step.effect, CallEffect::Acts { .. });
        if window > 0 && state.pairs >= window && (guess.is_none() || is_by_target) {
            let count = state.new_among(settings, window, 0);
            if count <= settings.novelty_max_new {
                // The rung comes when it was so for some calls already: those are the nudges before it.
                let nudges = settings.novelty_nudges.min(MAX_WINDOW - window);
                let held = |back: u32| state.pairs >= window + back && state.new_among(settings, window, back) <= settings.novelty_max_new;
                let was_told = (1..=nudges).all(held);
                let rung = if was_told { settings.novelty_rung } else { settings.novelty_rung.min(Rung::Steer) };
                verdict.climb(rung, StallRule::Novelty, count);
            }
        }

        if let Some(error) = step.error {
            state.errors_in_a_row = match state.last_error {
                Some(last) if last == error && is_beside => state.errors_in_a_row,
                Some(last) if last == error => state.errors_in_a_row + 1,
                Some(_) | None => 1,
            };
            state.last_error = Some(error);
            verdict.climb(settings.same_error.rung(state.errors_in_a_row), StallRule::SameError, state.errors_in_a_row);
        } else if guess.is_none() {
            state.last_error = None;
            state.errors_in_a_row = 0;
            if news && mutates {
                state.experiment = mix(state.experiment, pair);
            }
        }
        let had_sign = state.seen.memory.has_sign();
        let mut shows_sign = false;
        if let Some(gave) = known {
            shows_sign = state.remember(settings, &step, (call, gave), mutates, is_beside, &mut verdict);
        }
        let calls = state.long_run();
        let (tokens_before, tokens) = state.seen.memory.tokens_judged();
        let mut rung = if calls > 0 { settings.length_rung(calls, tokens) } else { Rung::GoOn };
        // What was long a call ago was told then; states do not know it, because they are the same under all settings.
        let was_told = had_sign && settings.length_rung(calls - 1, tokens_before) >= Rung::Steer;
        // Calls side by side are one round: what the first of them said was not heard before the second.
        if rung > Rung::Steer && (settings.long_run.steer > 0 || settings.long_run_tokens > 0) && (is_beside || !was_told) {
            rung = Rung::Steer;
        }
        // It stays long: the model is told of it when it gets so and at the next sign, not at every call.
        if rung > Rung::Steer || (rung == Rung::Steer && (shows_sign || !was_told)) {
            verdict.climb(rung, StallRule::LongRun, calls);
        }
        settings.limited(verdict)
    }

    /// What a call gave across changes, and what it did to files. Whether it is a weak sign, that of a long run: a check that failed again after
    /// a change, or a file that was put back once more.
    fn remember(
        &mut self,
        settings: &StallSettings,
        step: &Step<'_>,
        (call, gave): (u64, u64),
        mutates: bool,
        is_beside: bool,
        verdict: &mut Verdict,
    ) -> bool {
        let memory = &mut self.seen.memory;
        let failed = step.error.is_some();
        let is_look = step.effect == CallEffect::Looks && !failed;
        // Whoever looks, does something else and looks again does not only look.
        if !is_look {
            memory.looked_away();
        }
        // A program or a change that ends with a mistake has told what is to be done next: that is no failure to get something.
        if !(failed && (step.effect.changes() || step.effect == CallEffect::Runs)) {
            let failing = memory.ended(failed, is_beside);
            verdict.climb(settings.failing.rung(failing), StallRule::Failing, failing);
        }
        if step.effect.changes() || (mutates && matches!(step.effect, CallEffect::Unknown | CallEffect::Acts { .. } | CallEffect::Waits)) {
            if !failed {
                let times = memory.changed(step.effect);
                verdict.climb(settings.put_back.rung(times), StallRule::PutBack, times);
                if times >= PUT_BACK_SIGN {
                    memory.shows_sign();
                    return true;
                }
            }
            return false;
        }
        let (times, failed_again) = memory.tried(call, gave, failed);
        if failed_again {
            memory.shows_sign();
        }
        // Whoever looks at something that nobody changed sees the same; only a check is meant to give something else. Of one that does not fail
        // nobody knows whether what it gives is what it should give: that ends no run.
        if failed || step.effect == CallEffect::Runs {
            let rung = settings.unmoved.rung(times);
            verdict.climb(if failed { rung } else { rung.min(Rung::Steer) }, StallRule::Unmoved, times);
        }
        if is_look && !is_beside {
            let times = memory.looked(xxh3_64(step.tool.as_bytes()), call, gave);
            verdict.climb(settings.same_result.rung(times), StallRule::SameResult, times);
        }
        failed_again
    }

    /// Pairs of the run, once it showed a weak sign.
    const fn long_run(&self) -> u32 {
        if self.seen.memory.has_sign() { self.pairs } else { 0 }
    }

    /// New pairs in the window as it was so many pairs ago.
    fn new_among(&self, settings: &StallSettings, window: u32, back: u32) -> u32 {
        (self.news(settings) >> back & (u64::MAX >> (64 - window))).count_ones()
    }

    /// The latest pairs, as these settings tell them apart.
    fn news(&self, settings: &StallSettings) -> u64 {
        self.seen.memory.news_by_target().filter(|_| settings.novelty_by_target).unwrap_or(self.news)
    }

    /// Calls that were counted, since a person last spoke.
    pub const fn calls(&self) -> u32 {
        self.pairs
    }

    /// Tokens that were used for them, as far as they were told.
    pub const fn tokens(&self) -> u64 {
        self.seen.memory.tokens()
    }

    /// What kinds of calls the run began with.
    pub const fn kinds(&self) -> Kinds {
        self.seen.memory.kinds()
    }

    /// Whether any call was made, since a person last spoke.
    pub const fn has_calls(&self) -> bool {
        self.pairs > 0 || self.kinds().has_calls()
    }

    /// As [`StallDetector::user_message`]; that a person is there stays known.
    pub fn person_spoke(&mut self) {
        let mut kinds = self.kinds();
        kinds.person_spoke();
        self.clear();
        *self.seen.memory.kinds_mut() = kinds;
    }

    /// As [`StallDetector::spent`].
    pub const fn spent(&mut self, tokens: u64) {
        self.seen.memory.spent(tokens);
    }

    /// As [`StallDetector::message`].
    pub fn message(&mut self, settings: &StallSettings, text: u64) -> Verdict {
        let state = self;
        let mut verdict = Verdict::default();
        state.messages_in_a_row = if state.last_message == Some(text) { state.messages_in_a_row + 1 } else { 1 };
        state.last_message = Some(text);
        verdict.climb(settings.messages.rung(state.messages_in_a_row), StallRule::Messages, state.messages_in_a_row);
        let from = [settings.messages.steer, settings.messages.stop].into_iter().filter(|count| *count > 0).min().unwrap_or(0);
        if let Some(rounds) = rounds_of_cycle(&mut state.messages, from, 2, text) {
            verdict.climb(settings.messages.rung(rounds), StallRule::Messages, rounds);
        }
        settings.limited(verdict)
    }

    /// Another run begins. What was asked of memory is kept: who watches runs one after the other asks for it once.
    pub fn clear(&mut self) {
        let Self { mut seen, mut cycles, mut messages, mut round_calls, .. } = std::mem::take(self);
        seen.pairs.clear();
        seen.next = 0;
        seen.outcomes.clear();
        seen.memory.clear();
        round_calls.clear();
        cycles.iter_mut().chain(&mut messages).for_each(Trail::clear);
        *self = Self { seen, cycles, messages, round_calls, ..Self::default() };
    }

    /// As [`StallDetector::counters`].
    pub fn counters(&self, settings: &StallSettings) -> Counters {
        let window = settings.novelty_window.min(self.pairs);
        let news = self.news(settings);
        let latest = if window == 0 { 0 } else { news & (u64::MAX >> (64 - window)) };
        Counters {
            identical: self.in_a_row,
            cycle: self.cycles.as_ref().and_then(Trail::repeated),
            pairs: self.pairs,
            window,
            window_new: latest.count_ones(),
            latest_new: news & 1 == 1,
            same_error: self.errors_in_a_row,
            messages: self.messages_in_a_row,
            message_rounds: self.messages.as_ref().and_then(Trail::repeated).map_or(0, |(_, rounds)| rounds),
            unmoved: self.seen.memory.unmoved(),
            put_back: self.seen.memory.put_back(),
            same_result: self.seen.memory.same_result(),
            failing: self.seen.memory.failing(),
            long_run: self.long_run(),
            tokens: self.seen.memory.tokens(),
        }
    }

    /// Whether this call was made in this round already.
    fn is_parallel_duplicate(&mut self, call: u64, round: Option<u64>) -> bool {
        if round.is_none() || round != self.round {
            self.round = round;
            self.round_calls.clear();
        }
        if round.is_none() {
            return false;
        }
        if self.round_calls.contains(&call) {
            return true;
        }
        if self.round_calls.len() < ROUND_CALLS {
            self.round_calls.push(call);
        }
        false
    }
}

impl StallDetector {
    /// A detector that has seen nothing.
    pub fn new(settings: StallSettings) -> Result<Self, InvalidSetting> {
        settings.check()?;
        Ok(Self { settings, state: StallState::default() })
    }

    /// Goes on with a state that was kept.
    pub fn resume(settings: StallSettings, state: StallState) -> Result<Self, InvalidSetting> {
        settings.check()?;
        Ok(Self { settings, state })
    }

    /// What it goes by.
    pub fn settings(&self) -> &StallSettings {
        &self.settings
    }

    /// What it remembers, to be kept.
    pub fn into_state(self) -> StallState {
        self.state
    }

    /// Takes a call with its result and says how far the ladder has been climbed.
    pub fn observe(&mut self, step: Step<'_>) -> Verdict {
        self.state.observe(&self.settings, step)
    }

    /// Takes what the model said without calling anything.
    pub fn message(&mut self, text: u64) -> Verdict {
        self.state.message(&self.settings, text)
    }

    /// The model has read and written so much, to say what is told next. Who tells nothing of it is judged by calls alone.
    pub const fn spent(&mut self, tokens: u64) {
        self.state.spent(tokens);
    }

    /// What the ladder would say if this call gave what it gave last time. Ask before running it, with no result; changes
    /// nothing.
    pub fn ahead(&self, step: Step<'_>) -> Verdict {
        self.clone().observe(step)
    }

    /// What is counted at this moment.
    pub fn counters(&self) -> Counters {
        self.state.counters(&self.settings)
    }

    /// A person has spoken: what was tried before says nothing about what comes.
    pub fn user_message(&mut self) {
        self.state = StallState::default();
    }
}

fn mix(left: u64, right: u64) -> u64 {
    (left ^ right.rotate_left(29)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31) ^ right
}

/// Rounds of a cycle of at least two that the event completes, from `from` rounds on.
fn rounds_of_cycle(trail: &mut Option<Trail>, from: u32, longest: u32, event: u64) -> Option<u32> {
    if from < 2 || longest < 2 {
        return None;
    }
    // A damaged file may say anything.
    let (repeats, max_cycle_len) = (from.min(MAX_REPEATS), longest.min(MAX_CYCLE_LEN));
    let settings = LoopSettings { repeats, max_cycle_len, window: None, max_calls: None };
    let trail = trail.get_or_insert_with(|| Trail::new(&settings));
    trail.record_hash(&settings, event).filter(|(period, _)| *period > 1).map(|(_, rounds)| rounds)
}

#[cfg(test)]
mod tests;
