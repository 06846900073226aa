//! Notices that an agent gets nowhere, by what its calls give.
//!
//! Counting calls is a budget, not a sign of a loop: to edit, test, edit and test again is how work gets done. What a
//! stuck agent lacks is news. So the unit here is a *pair*, a call with its result: the same call with another result
//! is progress, the same call after a change to the world is a new experiment, and few new pairs among the latest are
//! the sign that holds for every kind of agent. Pairs are compared by fingerprints, so a step costs the same however
//! large its result was.
//!
//! What follows is a ladder, because most agents that repeat themselves three times get out on their own when told:
//! *observe* (noted), *steer* (a sentence for the model), *block* (do not run this call), *stop* (end the run).

mod sessions;

use super::loops::{LoopSettings, MAX_CYCLE_LEN, MAX_REPEATS, Trail};
use crate::limits::{InvalidSetting, setters};
use crate::packed::{Packed, serialise_packed};
use crate::reason::Reason;
use crate::text::sentence;
use serde::{Deserialize, Serialize};
pub use sessions::StallSessions;
use std::fmt;
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

/// How far the ladder has been climbed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rung {
    /// Nothing is wrong.
    #[default]
    GoOn,
    /// Noted, nothing else.
    Observe,
    /// Tell the model.
    Steer,
    /// Do not run the call; tell the model.
    Block,
    /// End the run.
    Stop,
}

impl Rung {
    /// Its name on the wire.
    pub const fn code(self) -> &'static str {
        match self {
            Self::GoOn => "go_on",
            Self::Observe => "observe",
            Self::Steer => "steer",
            Self::Block => "block",
            Self::Stop => "stop",
        }
    }

    /// By its name on the wire.
    pub fn from_code(code: &str) -> Option<Self> {
        [Self::GoOn, Self::Observe, Self::Steer, Self::Block, Self::Stop].into_iter().find(|rung| rung.code() == code)
    }
}

/// Which sign was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StallRule {
    /// The same call with the same result, in a row.
    Identical,
    /// The same round of calls and results, again and again.
    Cycle,
    /// Hardly a new pair among the latest.
    Novelty,
    /// Other arguments, the same error.
    SameError,
    /// The same messages without a call.
    Messages,
}

impl StallRule {
    /// All of them, in the order they are asked.
    pub const ALL: [Self; 5] = [Self::Identical, Self::Cycle, Self::Novelty, Self::SameError, Self::Messages];

    /// Its name on the wire.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Identical => "identical",
            Self::Cycle => "cycle",
            Self::Novelty => "novelty",
            Self::SameError => "same_error",
            Self::Messages => "messages",
        }
    }

    /// By its name on the wire.
    pub fn from_code(code: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|rule| rule.code() == code)
    }

    /// What it is called in answers, trips and the log.
    pub const fn reason(self) -> Reason {
        match self {
            Self::Identical => Reason::StalledIdentical,
            Self::Cycle => Reason::StalledCycle,
            Self::Novelty => Reason::StalledNoNews,
            Self::SameError => Reason::StalledSameError,
            Self::Messages => Reason::StalledMessages,
        }
    }
}

/// When a count climbs which rung. 0: never.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ladder {
    /// From this count on the model is told.
    pub steer: u32,
    /// From this count on the call is refused.
    pub block: u32,
    /// From this count on the run is ended.
    pub stop: u32,
}

impl Ladder {
    const fn new(steer: u32, block: u32, stop: u32) -> Self {
        Self { steer, block, stop }
    }

    fn rung(self, count: u32) -> Rung {
        let reached = |threshold: u32| threshold > 0 && count >= threshold;
        if reached(self.stop) {
            Rung::Stop
        } else if reached(self.block) {
            Rung::Block
        } else if reached(self.steer) {
            Rung::Steer
        } else {
            Rung::GoOn
        }
    }
}

/// Every threshold of the detector.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct StallSettings {
    /// The same call with the same result, in a row.
    pub identical: Ladder,
    /// Rounds of a cycle of two to `cycle_max_period` pairs.
    pub cycle: Ladder,
    /// Longest round of calls that is looked for.
    pub cycle_max_period: u32,
    /// Of the latest `novelty_window` pairs, at most `novelty_max_new` are new: the rung that is climbed then.
    pub novelty_window: u32,
    /// At most so many of them may be new, for the rule to speak.
    pub novelty_max_new: u32,
    /// What it says then.
    pub novelty_rung: Rung,
    /// The same error in a row, whatever the arguments.
    pub same_error: Ladder,
    /// The same message in a row, or rounds of two alternating ones.
    pub messages: Ladder,
    /// Tools that wait for something: the same result again is what they are for.
    pub polling: Vec<String>,
    /// Tools that change the world: after a success, trying again is a new experiment.
    pub mutating: Vec<String>,
    /// The highest rung; `observe` watches and never interferes.
    pub highest: Rung,
}

impl Default for StallSettings {
    fn default() -> Self {
        Preset::Coding.settings()
    }
}

/// Thresholds for a kind of agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preset {
    /// Short conversations with tools.
    Chatbot,
    /// Agents that edit files and run commands.
    Coding,
    /// Agents that look at pages.
    Browser,
    /// Agents that search and read.
    Research,
}

impl Preset {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Chatbot, Self::Coding, Self::Browser, Self::Research];

    /// Its name in settings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Chatbot => "chatbot",
            Self::Coding => "coding",
            Self::Browser => "browser",
            Self::Research => "research",
        }
    }

    /// The one with this name; otherwise which ones there are.
    pub fn from_name(name: &str) -> Result<Self, InvalidSetting> {
        let known = || format!("is '{name}', which is none; take one of {}", Self::ALL.map(Self::name).join(", "));
        Self::ALL.into_iter().find(|preset| preset.name() == name).ok_or_else(|| InvalidSetting::new("preset", known()))
    }

    /// Its thresholds.
    pub fn settings(self) -> StallSettings {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let base = StallSettings {
            identical: Ladder::new(3, 0, 4),
            cycle: Ladder::new(0, 0, 3),
            cycle_max_period: 8,
            novelty_window: 6,
            novelty_max_new: 1,
            novelty_rung: Rung::Stop,
            // Measured on recorded runs (`./bench detection`): at five of the same error and three of the same message hardly a
            // run that would have succeeded is stopped; at four identical pairs likewise, while of those that made three most
            // got out on their own.
            same_error: Ladder::new(3, 0, 5),
            messages: Ladder::new(2, 0, 3),
            polling: names(&["wait", "sleep", "poll", "wait_for", "get_status", "check_status"]),
            mutating: Vec::new(),
            highest: Rung::Stop,
        };
        match self {
            Self::Coding => StallSettings {
                mutating: names(&[
                    "write_file",
                    "edit_file",
                    "str_replace_editor",
                    "str_replace_based_edit_tool",
                    "apply_patch",
                    "edit",
                    "write",
                    "create_file",
                ]),
                ..base
            },
            // A person waits for the answer: fewer tries, and every one is billed to a conversation.
            Self::Chatbot => StallSettings {
                identical: Ladder::new(2, 0, 3),
                same_error: Ladder::new(2, 0, 4),
                messages: Ladder::new(2, 0, 3),
                novelty_window: 5,
                ..base
            },
            // Pages load late and look alike: scrolling and waiting are work.
            Self::Browser => StallSettings {
                identical: Ladder::new(3, 0, 5),
                novelty_window: 8,
                polling: names(&["wait", "sleep", "screenshot", "scroll", "wait_for", "wait_for_selector"]),
                ..base
            },
            // Searching is reading: the same question twice is already one too many.
            Self::Research => StallSettings { identical: Ladder::new(2, 0, 3), same_error: Ladder::new(3, 0, 5), ..base },
        }
    }
}

setters!(StallSettings {
    identical: Ladder,
    cycle: Ladder,
    cycle_max_period: u32,
    novelty_window: u32,
    novelty_max_new: u32,
    novelty_rung: Rung,
    same_error: Ladder,
    messages: Ladder,
    polling: Vec<String>,
    mutating: Vec<String>,
    highest: Rung,
});

impl StallSettings {
    /// Says nothing to anything.
    pub const fn silent() -> Self {
        let never = Ladder::new(0, 0, 0);
        Self {
            identical: never,
            cycle: never,
            cycle_max_period: 0,
            novelty_window: 0,
            novelty_max_new: 0,
            novelty_rung: Rung::GoOn,
            same_error: never,
            messages: never,
            polling: Vec::new(),
            mutating: Vec::new(),
            highest: Rung::Stop,
        }
    }

    /// Refuses what makes no sense, by the name of the setting.
    pub fn check(&self) -> Result<(), InvalidSetting> {
        let bad = |name, problem: &str| Err(InvalidSetting::new(name, problem));
        if self.cycle_max_period > MAX_PERIOD {
            return bad("cycle_max_period", "must be from 0 (off) to 16");
        }
        if self.novelty_window > MAX_WINDOW {
            return bad("novelty_window", "must be from 0 (off) to 64");
        }
        if self.novelty_window > 0 && self.novelty_max_new >= self.novelty_window {
            return bad("novelty_max_new", "must be less than novelty_window, or every run would stall");
        }
        for (name, ladder) in
            [("identical", self.identical), ("cycle", self.cycle), ("same_error", self.same_error), ("messages", self.messages)]
        {
            if [ladder.steer, ladder.block, ladder.stop].iter().any(|count| *count == 1 || *count > 1000) {
                return bad(name, "thresholds must be 0 (off) or from 2 to 1000: one step is never a stall");
            }
        }
        Ok(())
    }

    fn limited(&self, mut verdict: Verdict) -> Verdict {
        verdict.rung = verdict.rung.min(self.highest);
        verdict
    }

    /// The lowest number of rounds that means something.
    fn cycle_from(&self) -> u32 {
        [self.cycle.steer, self.cycle.block, self.cycle.stop].into_iter().filter(|count| *count > 0).min().unwrap_or(0)
    }
}

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
            StallRule::Novelty => write!(f, "only {count} of the latest calls brought something new"),
            StallRule::SameError => write!(f, "{count} calls in a row failed with the same error"),
            StallRule::Messages => write!(f, "the same was said {count} times without a call"),
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
}

/// Watches one run.
///
/// ```
/// use runguard_core::detect::stall::{Rung, StallDetector, StallSettings, Step};
///
/// let mut detector = StallDetector::new(StallSettings::default())?;
/// let step = Step { tool: "search", args: 1, result: Some(7), error: None, round: None };
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
    seen: Seen,
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
struct Seen {
    pairs: Vec<u64>,
    /// Where the next one goes once the ring is full.
    next: usize,
    /// What the latest calls gave, the latest last. Kept in the same bytes as the pairs, so that a state from before there
    /// were outcomes can still be read.
    outcomes: Vec<(u64, u64)>,
}

impl Seen {
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

impl Packed for Seen {
    /// The pairs, the outcomes, and in one byte how many outcomes there are. A length that eight divides is the older form:
    /// pairs alone.
    fn pack(&self) -> Vec<u8> {
        // Oldest first, so that where the ring begins need not be kept.
        let (newer, older) = self.pairs.split_at(self.next.min(self.pairs.len()));
        let mut bytes = Vec::with_capacity(8 * self.pairs.len() + 16 * self.outcomes.len() + 1);
        bytes.extend(older.iter().chain(newer).flat_map(|pair| pair.to_le_bytes()));
        if !self.outcomes.is_empty() {
            bytes.extend(self.outcomes.iter().flat_map(|(call, result)| [call.to_le_bytes(), result.to_le_bytes()]).flatten());
            bytes.push(self.outcomes.len() as u8);
        }
        bytes
    }

    fn unpack(bytes: &[u8]) -> Option<Self> {
        let (words, outcomes) = match bytes.split_last() {
            Some((count, words)) if bytes.len() % 8 == 1 => (words, usize::from(*count)),
            _ => (bytes, 0),
        };
        let (pairs, outcomes) = words.split_at(words.len().checked_sub(16 * outcomes)?);
        let word = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).ok();
        let outcome = |bytes: &[u8]| Some((word(bytes.get(..8)?)?, word(bytes.get(8..)?)?));
        Some(Self {
            pairs: pairs.chunks(8).take(REMEMBERED).map(word).collect::<Option<_>>()?,
            next: 0,
            outcomes: outcomes.chunks(16).take(OUTCOMES).map(outcome).collect::<Option<_>>()?,
        })
    }
}
serialise_packed!(Seen);

impl StallState {
    /// As [`StallDetector::observe`], for who keeps states of many runs and settings apart.
    pub fn observe(&mut self, settings: &StallSettings, step: Step<'_>) -> Verdict {
        let state = self;
        let call = xxh3_64_with_seed(step.tool.as_bytes(), step.args);
        if state.is_parallel_duplicate(call, step.round) {
            return Verdict::default();
        }
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
        let mutates = settings.mutating.iter().any(|tool| tool == step.tool);
        // A change is compared with every earlier one: making the same one again is part of the circle.
        let pair = mix(mix(call, result), if mutates { 0 } else { state.experiment });
        let news = state.seen.is_news(pair);
        if settings.polling.iter().any(|tool| tool == step.tool) {
            // Waiting is neither progress nor a stall.
            return Verdict::default();
        }
        let mut verdict = Verdict::default();

        state.in_a_row = if state.last == Some(pair) { state.in_a_row + 1 } else { 1 };
        state.last = Some(pair);
        verdict.climb(settings.identical.rung(state.in_a_row), StallRule::Identical, state.in_a_row);

        if let Some(rounds) = rounds_of_cycle(&mut state.cycles, settings.cycle_from(), settings.cycle_max_period, pair) {
            verdict.climb(settings.cycle.rung(rounds), StallRule::Cycle, rounds);
        }

        state.news = state.news << 1 | u64::from(news);
        state.pairs = state.pairs.saturating_add(1);
        let window = settings.novelty_window;
        if window > 0 && state.pairs >= window && guess.is_none() {
            let count = (state.news & (u64::MAX >> (64 - window))).count_ones();
            if count <= settings.novelty_max_new {
                verdict.climb(settings.novelty_rung, StallRule::Novelty, count);
            }
        }

        if let Some(error) = step.error {
            state.errors_in_a_row = if state.last_error == Some(error) { state.errors_in_a_row + 1 } else { 1 };
            state.last_error = Some(error);
            verdict.climb(settings.same_error.rung(state.errors_in_a_row), StallRule::SameError, state.errors_in_a_row);
        } else if guess.is_none() {
            state.last_error = None;
            state.errors_in_a_row = 0;
            if news && mutates {
                state.experiment = mix(state.experiment, pair);
            }
        }
        settings.limited(verdict)
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
        round_calls.clear();
        cycles.iter_mut().chain(&mut messages).for_each(Trail::clear);
        *self = Self { seen, cycles, messages, round_calls, ..Self::default() };
    }

    /// As [`StallDetector::counters`].
    pub fn counters(&self, settings: &StallSettings) -> Counters {
        let window = settings.novelty_window.min(self.pairs);
        let latest = if window == 0 { 0 } else { self.news & (u64::MAX >> (64 - window)) };
        Counters {
            identical: self.in_a_row,
            cycle: self.cycles.as_ref().and_then(Trail::repeated),
            pairs: self.pairs,
            window,
            window_new: latest.count_ones(),
            latest_new: self.news & 1 == 1,
            same_error: self.errors_in_a_row,
            messages: self.messages_in_a_row,
            message_rounds: self.messages.as_ref().and_then(Trail::repeated).map_or(0, |(_, rounds)| rounds),
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

/// One name for texts that differ only in what changes from run to run: times, durations, addresses, white space. Not ids:
/// another commit or order is another result.
pub fn result_fingerprint(text: &str) -> u64 {
    xxh3_64(normalise(text, Keep::Numbers).as_bytes())
}

/// One name for errors that say the same about other things: numbers, ids, quoted texts and paths do not matter either.
pub fn error_fingerprint(text: &str) -> u64 {
    let start: String = text.chars().take(ERROR_CHARS).collect();
    xxh3_64(normalise(&start, Keep::Nothing).as_bytes())
}

/// Of an error this much is compared: what follows is often a trace of where it happened.
const ERROR_CHARS: usize = 400;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    Numbers,
    Nothing,
}

fn normalise(text: &str, keep: Keep) -> String {
    let mut out = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        if !out.is_empty() {
            out.push(' ');
        }
        if is_volatile(word) || (keep == Keep::Nothing && (names_a_thing(word) || is_long_hex(bare(word)))) {
            out.push('#');
        } else if keep == Keep::Nothing {
            out.extend(word.chars().filter(|letter| !letter.is_ascii_digit()).flat_map(char::to_lowercase));
        } else {
            out.push_str(word);
        }
    }
    out
}

fn bare(word: &str) -> &str {
    word.trim_matches(|letter: char| !letter.is_alphanumeric())
}

/// "0.53s", "12:30:05", "2026-01-02T03:04:05Z", "0x7f3a".
fn is_volatile(word: &str) -> bool {
    let word = bare(word);
    if !word.starts_with(|first: char| first.is_ascii_digit()) {
        return false;
    }
    let is_duration = || {
        let unit = word.trim_start_matches(|letter: char| letter.is_ascii_digit() || letter == '.');
        unit.len() < word.len() && matches!(unit, "s" | "ms" | "us" | "µs" | "ns" | "sec" | "secs")
    };
    let is_time = || word.matches(':').count() >= 1 && word.chars().all(|letter| letter.is_ascii_digit() || ":.-+TZ".contains(letter));
    word.starts_with("0x") || is_duration() || is_time()
}

/// "9f2c51d0-…".
fn is_long_hex(word: &str) -> bool {
    word.len() >= 8
        && word.chars().all(|letter| letter.is_ascii_hexdigit() || letter == '-')
        && word.contains(|letter: char| letter.is_ascii_digit())
        && word.contains(|letter: char| letter.is_ascii_alphabetic())
}

/// A quoted text or a path.
fn names_a_thing(word: &str) -> bool {
    word.contains('/') || word.contains('\\') || word.contains(['"', '\'', '`'])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn step(tool: &str, args: u64, result: u64) -> Step<'_> {
        Step { tool, args, result: Some(result), error: None, round: None }
    }

    fn detector(preset: Preset) -> StallDetector {
        StallDetector::new(preset.settings()).unwrap()
    }

    fn first_stop(detector: &mut StallDetector, steps: &[Step<'_>]) -> Option<(usize, StallRule)> {
        steps.iter().enumerate().find_map(|(index, step)| {
            let verdict = detector.observe(*step);
            (verdict.rung == Rung::Stop).then(|| (index + 1, verdict.rule.unwrap()))
        })
    }

    #[test]
    fn three_identical_pairs_are_told_and_the_fourth_stops() {
        let mut detector = detector(Preset::Coding);
        let rungs: Vec<Rung> = (0..4).map(|_| detector.observe(step("ls", 1, 1)).rung).collect();
        assert_eq!(rungs, [Rung::GoOn, Rung::GoOn, Rung::Steer, Rung::Stop]);
        assert!(detector.observe(step("ls", 1, 1)).nudge("ls").contains("5 times"));
    }

    #[test]
    fn another_result_is_progress() {
        let mut detector = detector(Preset::Coding);
        let steps: Vec<Step<'_>> = (0..50).map(|result| step("get_job", 1, result)).collect();
        assert_eq!(first_stop(&mut detector, &steps), None);
    }

    #[test]
    fn edit_and_test_is_work_and_the_same_edit_again_is_not() {
        let mut work = detector(Preset::Coding);
        let steps: Vec<Step<'_>> = (0..30).flat_map(|round| [step("edit_file", round, 1), step("run_tests", 0, 9)]).collect();
        assert_eq!(first_stop(&mut work, &steps), None, "every edit is another one");
        let mut stuck = detector(Preset::Coding);
        let steps: Vec<Step<'_>> = (0..30).flat_map(|_| [step("edit_file", 7, 1), step("run_tests", 0, 9)]).collect();
        let (stopped, rule) = first_stop(&mut stuck, &steps).unwrap();
        assert!(stopped <= 8, "stopped at {stopped} by {rule:?}");
    }

    #[test]
    fn a_round_of_calls_made_three_times_stops() {
        let settings = StallSettings { novelty_window: 0, novelty_max_new: 0, ..Preset::Coding.settings() };
        for period in 2..=8_u64 {
            let mut detector = StallDetector::new(settings.clone()).unwrap();
            let steps: Vec<Step<'_>> = (0..period * 3).map(|index| step("tool", index % period, 1)).collect();
            assert_eq!(first_stop(&mut detector, &steps), Some((period as usize * 3, StallRule::Cycle)));
        }
        let mut detector = StallDetector::new(settings).unwrap();
        let steps: Vec<Step<'_>> = (0..40_u64).map(|index| step("tool", index % 9, 1)).collect();
        assert_eq!(first_stop(&mut detector, &steps), None, "longer than is looked for");
    }

    #[test]
    fn hardly_anything_new_among_the_latest_stops() {
        let mut detector = detector(Preset::Coding);
        let known: Vec<Step<'_>> = (0..5).map(|index| step("read", index, index)).collect();
        assert_eq!(first_stop(&mut detector, &known), None);
        let again = [0, 2, 1, 4, 0, 3].map(|index| step("read", index, index));
        assert_eq!(first_stop(&mut detector, &again), Some((5, StallRule::Novelty)), "of six, the one before was new");
    }

    #[test]
    fn the_same_error_with_other_arguments_is_told_and_then_stops() {
        let mut detector = detector(Preset::Coding);
        let failing = |args: u64, text: &str| Step {
            tool: "sql",
            args,
            result: Some(xxh3_64(text.as_bytes())),
            error: Some(error_fingerprint(text)),
            round: None,
        };
        let rungs: Vec<Rung> =
            (1..=5).map(|args| detector.observe(failing(args, &format!("no such column: 'c{args}' at line {args}"))).rung).collect();
        assert_eq!(rungs, [Rung::GoOn, Rung::GoOn, Rung::Steer, Rung::Steer, Rung::Stop]);
        assert_eq!(detector.observe(step("sql", 99, 5)).rung, Rung::GoOn, "a success starts the count anew");
        assert_eq!(detector.observe(failing(100, "no such column: 'c9' at line 3")).rung, Rung::GoOn);
    }

    #[test]
    fn polling_is_what_polling_tools_are_for() {
        let mut detector = detector(Preset::Browser);
        let steps: Vec<Step<'_>> = (0..100).map(|_| step("wait", 1, 1)).collect();
        assert_eq!(first_stop(&mut detector, &steps), None);
    }

    #[test]
    fn parallel_duplicates_of_one_round_count_once() {
        let mut detector = detector(Preset::Coding);
        for round in 0..3 {
            for _ in 0..5 {
                let verdict = detector.observe(Step { round: Some(round), ..step("read", round, round) });
                assert_eq!(verdict.rung, Rung::GoOn);
            }
        }
    }

    #[test]
    fn a_user_message_starts_anew() {
        let mut detector = detector(Preset::Coding);
        for _ in 0..10 {
            for _ in 0..2 {
                assert_eq!(detector.observe(step("status", 1, 1)).rung, Rung::GoOn);
            }
            detector.user_message();
        }
    }

    #[test]
    fn repeated_and_alternating_messages_stop() {
        let mut same = detector(Preset::Coding);
        assert_eq!((0..3).map(|_| same.message(1).rung).collect::<Vec<_>>(), [Rung::GoOn, Rung::Steer, Rung::Stop]);
        let mut alternating = detector(Preset::Coding);
        let rungs: Vec<Rung> = (0..6).map(|index| alternating.message(index % 2).rung).collect();
        assert_eq!((rungs[3], rungs[5]), (Rung::Steer, Rung::Stop));
        assert_eq!(same.observe(step("act", 1, 1)).rung, Rung::GoOn);
        assert_eq!(same.message(1).rung, Rung::GoOn, "a call in between");
    }

    #[test]
    fn observing_only_never_climbs_higher() {
        let mut detector = StallDetector::new(StallSettings { highest: Rung::Observe, ..Preset::Coding.settings() }).unwrap();
        let verdicts: Vec<Verdict> = (0..10).map(|_| detector.observe(step("ls", 1, 1))).collect();
        assert_eq!((verdicts[9].rung, verdicts[9].rule), (Rung::Observe, Some(StallRule::Identical)));
    }

    #[test]
    fn counters_say_what_the_verdict_is_made_of() {
        let mut detector = detector(Preset::Coding);
        assert_eq!(detector.counters(), Counters::default());
        for count in 1..=6 {
            detector.observe(step("ls", 1, 1));
            let counters = detector.counters();
            assert_eq!((counters.identical, counters.pairs, counters.window, counters.window_new), (count, count, count, 1));
            assert_eq!((counters.latest_new, counters.cycle), (count == 1, None), "a round of one is no round");
        }
        let mut rounds = StallDetector::new(StallSettings { novelty_window: 0, ..Preset::Coding.settings() }).unwrap();
        let seen: Vec<_> = [1, 2, 2, 1, 2, 2, 1, 2, 2]
            .map(|args| {
                let verdict = rounds.observe(step("ls", args, args));
                (rounds.counters().cycle, verdict.rung)
            })
            .into();
        assert_eq!(seen[5], (Some((3, 2)), Rung::GoOn));
        assert_eq!(seen[8], (Some((3, 3)), Rung::Stop), "the same round the verdict is about");
        let mut other = detector.clone();
        other.observe(Step { error: Some(4), ..step("sql", 1, 4) });
        other.observe(Step { error: Some(4), ..step("sql", 2, 5) });
        assert_eq!((other.counters().same_error, other.counters().identical), (2, 1));
        other.observe(step("wait", 1, 1));
        assert_eq!(other.counters().pairs, 8, "waiting is not counted");
        for text in [1, 2, 1, 2] {
            other.message(text);
        }
        assert_eq!((other.counters().messages, other.counters().message_rounds), (1, 2));
        other.user_message();
        assert_eq!(other.counters(), Counters::default());
    }

    #[test]
    fn looking_ahead_changes_nothing() {
        let mut detector = detector(Preset::Coding);
        for _ in 0..3 {
            detector.observe(step("ls", 1, 1));
        }
        for _ in 0..3 {
            assert_eq!(detector.ahead(step("ls", 1, 1)).rung, Rung::Stop);
            assert_eq!(detector.ahead(step("ls", 2, 1)).rung, Rung::GoOn);
        }
    }

    #[test]
    fn a_result_that_is_not_known_is_taken_to_be_as_last_time() {
        let unknown = |args: u64| Step { result: None, ..step("ls", args, 0) };
        let mut same = detector(Preset::Coding);
        for _ in 0..3 {
            same.observe(step("ls", 1, 7));
        }
        assert_eq!(same.ahead(unknown(2)).rung, Rung::GoOn, "another call");
        assert_eq!(same.ahead(unknown(1)).rung, Rung::Stop);
        assert_eq!(same.observe(unknown(1)).rule, Some(StallRule::Identical));
        let mut alternating = detector(Preset::Coding);
        for index in 0..5 {
            assert_eq!(alternating.observe(step("ls", index % 2, index % 2)).rung, Rung::GoOn);
        }
        assert_eq!(alternating.observe(unknown(1)).rule, Some(StallRule::Cycle));
        let mut never_told = detector(Preset::Coding);
        let rungs: Vec<Rung> = (0..4).map(|_| never_told.observe(unknown(1)).rung).collect();
        assert_eq!(rungs, [Rung::GoOn, Rung::GoOn, Rung::Steer, Rung::Stop], "nothing is known of any");
    }

    #[test]
    fn a_guess_is_neither_news_nor_the_end_of_errors() {
        let unknown = |args: u64| Step { result: None, ..step("read", args, 0) };
        let mut reading = detector(Preset::Coding);
        for index in [0, 1, 2, 3, 0, 2, 1] {
            assert_eq!(reading.observe(step("read", index, index)).rung, Rung::GoOn);
        }
        assert_eq!(reading.ahead(step("read", 0, 0)).rung, Rung::GoOn, "two of six were new");
        assert_eq!(reading.observe(unknown(0)).rung, Rung::GoOn);
        assert_eq!(reading.ahead(unknown(3)).rung, Rung::GoOn, "guessed");
        assert_eq!(reading.ahead(step("read", 3, 3)).rule, Some(StallRule::Novelty), "told");
        let mut failing = detector(Preset::Coding);
        let failed = |args: u64| Step { error: Some(9), ..step("sql", args, args) };
        for args in 0..4 {
            failing.observe(failed(args));
        }
        failing.observe(Step { result: None, ..step("sql", 0, 0) });
        assert_eq!(failing.observe(failed(5)).rule, Some(StallRule::SameError));
    }

    #[test]
    fn only_so_many_outcomes_are_remembered_and_the_least_recent_goes() {
        let mut seen = Seen::default();
        for call in 0..OUTCOMES as u64 {
            seen.remember_result(call, call);
        }
        seen.remember_result(0, 100);
        seen.remember_result(99, 99);
        assert_eq!(
            (seen.outcomes.len(), seen.last_result(0), seen.last_result(1), seen.last_result(99)),
            (OUTCOMES, Some(100), None, Some(99))
        );
    }

    #[test]
    fn a_state_from_before_there_were_outcomes_is_read() {
        let older: Vec<u8> = [5_u64, 6, 7].iter().flat_map(|pair| pair.to_le_bytes()).collect();
        let seen = Seen::unpack(&older).unwrap();
        assert_eq!((&seen.pairs[..], &seen.outcomes[..]), (&[5, 6, 7][..], &[][..]));
        let newer = Seen { outcomes: vec![(1, 2), (3, 4)], ..seen };
        assert_eq!(Seen::unpack(&newer.pack()), Some(newer.clone()));
        assert_eq!(Seen::unpack(&newer.pack()[2..]), None, "cut off");
        assert_eq!(Seen::unpack(&[9]), None, "more outcomes than bytes");
        assert_eq!(Seen::unpack(&[]), Some(Seen::default()));
    }

    #[test]
    fn what_changes_from_run_to_run_does_not_make_a_result_new() {
        let same =
            ["3 passed in 0.53s at 2026-01-02T03:04:05Z\nsee 0x7ffde2", "3 passed in 12.01s at 2026-11-15T23:59:59Z\n  see 0x7ffd00"];
        assert_eq!(result_fingerprint(same[0]), result_fingerprint(same[1]));
        assert_ne!(result_fingerprint("3 passed in 1s"), result_fingerprint("4 passed in 1s"));
        assert_ne!(result_fingerprint("9f2c51d0aa"), result_fingerprint("9f2c51d0ab"), "another commit is another result");
        assert_eq!(error_fingerprint("request 9f2c51d0aa failed"), error_fingerprint("request 77ab51d0ab failed"));
        assert_eq!(error_fingerprint("No such file: '/a/b.txt' (line 3)"), error_fingerprint("no such file: '/c.txt' (line 14)"));
        assert_ne!(error_fingerprint("No such file"), error_fingerprint("Permission denied"));
    }

    #[test]
    fn thresholds_that_cannot_be_meant_are_refused() {
        let base = Preset::Coding.settings();
        for bad in [
            StallSettings { identical: Ladder { steer: 1, ..base.identical }, ..base.clone() },
            StallSettings { novelty_max_new: 6, ..base.clone() },
            StallSettings { novelty_window: 65, ..base.clone() },
            StallSettings { cycle_max_period: 17, ..base.clone() },
        ] {
            assert!(StallDetector::new(bad.clone()).is_err(), "{bad:?}");
        }
        assert!(Preset::ALL.iter().all(|preset| preset.settings().check().is_ok()));
    }

    proptest! {
        /// A run whose every pair is new never stalls, whatever else it looks like.
        #[test]
        fn news_never_stalls(steps in prop::collection::vec((0_u64..4, 0_u64..3), 0..300)) {
            for preset in Preset::ALL {
                let mut detector = detector(preset);
                for (index, (tool, args)) in steps.iter().enumerate() {
                    let verdict = detector.observe(step(["a", "b", "edit_file", "wait"][*tool as usize], *args, index as u64 + 1));
                    prop_assert_eq!(verdict.rung, Rung::GoOn);
                }
            }
        }

        /// Used again for another run, it says what one made for that run says.
        #[test]
        fn a_cleared_state_is_as_good_as_another(steps in prop::collection::vec((0_u64..4, 0_u64..3, 0_u64..4), 0..200), cut in 0_usize..200) {
            let settings = Preset::Coding.settings();
            let (mut used, mut fresh) = (StallState::default(), StallState::default());
            for (index, (tool, args, result)) in steps.iter().enumerate() {
                if index == cut {
                    used.clear();
                    fresh = StallState::default();
                }
                let step = Step { result: (*result < 3).then_some(*result), ..step(["a", "b", "edit_file", "wait"][*tool as usize], *args, *result) };
                prop_assert_eq!(used.observe(&settings, step), fresh.observe(&settings, step));
                if *result == 3 {
                    prop_assert_eq!(used.message(&settings, *args), fresh.message(&settings, *args));
                }
            }
        }

        /// Kept and read back at any moment, it goes on as if nothing had happened.
        #[test]
        fn a_kept_state_goes_on(steps in prop::collection::vec((0_u64..3, 0_u64..3, 0_u64..3), 0..120)) {
            let mut whole = detector(Preset::Coding);
            let mut kept = whole.clone();
            for (tool, args, result) in steps {
                let step = Step { result: (result < 2).then_some(result), ..step(["a", "b", "edit_file"][tool as usize], args, result) };
                let bytes = postcard::to_stdvec(&kept.into_state()).unwrap();
                kept = StallDetector::resume(Preset::Coding.settings(), postcard::from_bytes(&bytes).unwrap()).unwrap();
                prop_assert_eq!(whole.observe(step), kept.observe(step));
            }
        }
    }
}
