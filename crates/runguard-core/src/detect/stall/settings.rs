//! What makes a stall, and what follows from it: rules, rungs, presets for kinds of agents.

use super::effect::CallEffect;
use super::kind::Kinds;
use super::volatile::VolatileResults;
use super::{MAX_PERIOD, MAX_WINDOW, Verdict};
use crate::limits::{InvalidSetting, setters};
use crate::reason::Reason;
use serde::{Deserialize, Serialize};

const MAX_NUDGES: u32 = 16;

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
    /// A check gives the same although something was changed in between.
    Unmoved,
    /// A file comes back to what it had been.
    PutBack,
    /// Looks at other things that give the same.
    SameResult,
    /// Nothing succeeds any more.
    Failing,
    /// A long run in which a check failed again after a change, or a file was put back again and again.
    LongRun,
}

impl StallRule {
    /// All of them, in the order they are asked.
    pub const ALL: [Self; 10] = [
        Self::Identical,
        Self::Cycle,
        Self::Novelty,
        Self::SameError,
        Self::Messages,
        Self::Unmoved,
        Self::PutBack,
        Self::SameResult,
        Self::Failing,
        Self::LongRun,
    ];

    /// Its name on the wire.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Identical => "identical",
            Self::Cycle => "cycle",
            Self::Novelty => "novelty",
            Self::SameError => "same_error",
            Self::Messages => "messages",
            Self::Unmoved => "unmoved",
            Self::PutBack => "put_back",
            Self::SameResult => "same_result",
            Self::Failing => "failing",
            Self::LongRun => "long_run",
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
            Self::Unmoved => Reason::StalledUnmoved,
            Self::PutBack => Reason::StalledPutBack,
            Self::SameResult => Reason::StalledSameResult,
            Self::Failing => Reason::StalledFailing,
            Self::LongRun => Reason::StalledLongRun,
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

    pub(super) fn rung(self, count: u32) -> Rung {
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
    /// How often it steers before that rung.
    pub novelty_nudges: u32,
    /// Actions on web pages are new when nothing like it was done to their element, whatever was typed and whatever came of it; what waits or looks
    /// at the page does not count.
    pub novelty_by_target: bool,
    /// The same error in a row, whatever the arguments.
    pub same_error: Ladder,
    /// The same message in a row, or rounds of two alternating ones.
    pub messages: Ladder,
    /// The same call with the same outcome, counted across changes: a check that does not move.
    pub unmoved: Ladder,
    /// A file that comes back to what it had been.
    pub put_back: Ladder,
    /// Calls in a row that look at other things and give the same.
    pub same_result: Ladder,
    /// Calls in a row that failed, whatever they said; those that run or change something do not count, they fail while one works.
    pub failing: Ladder,
    /// Calls of a run in which a check failed again after a change, or a file was put back the third time. How many are many depends on the kind of run:
    /// how long others of its kind were says it.
    pub long_run: Ladder,
    /// Tokens that such a run has used when it is a long one, however few its calls are; 0: that is not looked at. The model is told from
    /// seven eighths of it on.
    pub long_run_tokens: u64,
    /// Where a log of other runs is at hand, and neither `long_run` nor `long_run_tokens` says what is long, those of its kind say it.
    pub long_run_learned: bool,
    /// Tools that wait for something: the same result again is what they are for.
    pub polling: Vec<String>,
    /// Tools that change the world: after a success, trying again is a new experiment.
    pub mutating: Vec<String>,
    /// What is never news in what tools give, beside times, durations and what is named as such.
    pub volatile: VolatileResults,
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

    /// Whom it is for, in a few words.
    pub const fn about(self) -> &'static str {
        match self {
            Self::Chatbot => "agents that talk with people",
            Self::Coding => "agents that read, change and run files",
            Self::Browser => "agents in front of a browser",
            Self::Research => "agents that search and read",
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
            cycle: Ladder::new(2, 0, 3),
            cycle_max_period: 8,
            novelty_window: 6,
            novelty_max_new: 1,
            novelty_rung: Rung::Stop,
            novelty_nudges: 1,
            novelty_by_target: false,
            // Measured on recorded runs (`./bench detection`): at five of the same error and three of the same message hardly a
            // run that would have succeeded is stopped; at four identical pairs likewise, while of those that made three most
            // got out on their own.
            same_error: Ladder::new(3, 0, 5),
            messages: Ladder::new(2, 0, 3),
            // A check that does not move ends too many good runs when it ends them early (9 % of those with native tools at five
            // times); most recorded runs are too short to say what twelve cost. A file that is put back a fourth time ends none.
            unmoved: Ladder::new(3, 0, 12),
            put_back: Ladder::new(2, 0, 4),
            same_result: Ladder::new(4, 0, 12),
            // No good run with native tools or of a frontier model has eight in a row that the other rules let go on; seven cost one
            // good run of a database client.
            failing: Ladder::new(5, 0, 8),
            // What is long for one kind of run is usual for another: nothing ends for it unless somebody says what is long.
            long_run: Ladder::new(100, 0, 0),
            long_run_tokens: 0,
            long_run_learned: true,
            polling: names(&["wait", "sleep", "poll", "wait_for", "get_status", "check_status"]),
            mutating: Vec::new(),
            volatile: VolatileResults::none(),
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
            // Pages load late, and are seldom the same twice: what shows is that the same few elements are acted on. At most three new ones of
            // eight: so a trial on runs that people had labelled chose, and agreed with them at 0.76, as two people agree with each
            // other at 0.77. Those runs are not among the ones that are measured here.
            Self::Browser => StallSettings {
                identical: Ladder::new(3, 0, 5),
                novelty_window: 8,
                novelty_max_new: 3,
                novelty_by_target: true,
                polling: names(&["wait", "sleep", "screenshot", "wait_for", "wait_for_selector"]),
                ..base
            },
            // Searching is reading: the same question twice is already one too many.
            Self::Research => StallSettings { identical: Ladder::new(2, 0, 3), same_error: Ladder::new(3, 0, 5), ..base },
        }
    }
}

/// Which thresholds runs are watched by: those of a kind of agent, or of the kind that each turns out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PresetChoice(pub Option<Preset>);

impl PresetChoice {
    const AUTO: &str = "auto";

    /// What it is called in settings.
    pub const fn name(self) -> &'static str {
        match self.0 {
            Some(preset) => preset.name(),
            None => Self::AUTO,
        }
    }

    /// Every name there is.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Preset::ALL.into_iter().map(Preset::name).chain([Self::AUTO])
    }

    /// For a run that began with calls of these kinds.
    pub fn of(self, kinds: Kinds) -> Preset {
        self.0.unwrap_or_else(|| kinds.preset())
    }
}

impl TryFrom<String> for PresetChoice {
    type Error = InvalidSetting;

    fn try_from(name: String) -> Result<Self, InvalidSetting> {
        if name == Self::AUTO { Ok(Self(None)) } else { Preset::from_name(&name).map(|preset| Self(Some(preset))) }
    }
}

impl From<PresetChoice> for String {
    fn from(choice: PresetChoice) -> Self {
        choice.name().to_owned()
    }
}

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
            novelty_nudges: 0,
            novelty_by_target: false,
            same_error: never,
            messages: never,
            unmoved: never,
            put_back: never,
            same_result: never,
            failing: never,
            long_run: never,
            long_run_tokens: 0,
            long_run_learned: false,
            polling: Vec::new(),
            mutating: Vec::new(),
            volatile: VolatileResults::none(),
            highest: Rung::Stop,
        }
    }

    /// The ladder of a rule. Novelty has none: a window in its place.
    pub const fn ladder_mut(&mut self, rule: StallRule) -> Option<&mut Ladder> {
        Some(match rule {
            StallRule::Identical => &mut self.identical,
            StallRule::Cycle => &mut self.cycle,
            StallRule::Novelty => return None,
            StallRule::SameError => &mut self.same_error,
            StallRule::Messages => &mut self.messages,
            StallRule::Unmoved => &mut self.unmoved,
            StallRule::PutBack => &mut self.put_back,
            StallRule::SameResult => &mut self.same_result,
            StallRule::Failing => &mut self.failing,
            StallRule::LongRun => &mut self.long_run,
        })
    }

    /// The same without a rule: it says nothing to anything.
    #[must_use]
    pub const fn without(mut self, rule: StallRule) -> Self {
        if let Some(ladder) = self.ladder_mut(rule) {
            *ladder = Ladder::new(0, 0, 0);
        } else {
            (self.novelty_window, self.novelty_max_new) = (0, 0);
        }
        if matches!(rule, StallRule::LongRun) {
            self.long_run_tokens = 0;
        }
        self
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
        if self.novelty_nudges > MAX_NUDGES {
            return bad("novelty_nudges", "must be from 0 (the rung at once) to 16");
        }
        for (name, ladder) in [
            ("identical", self.identical),
            ("cycle", self.cycle),
            ("same_error", self.same_error),
            ("messages", self.messages),
            ("unmoved", self.unmoved),
            ("put_back", self.put_back),
            ("same_result", self.same_result),
            ("failing", self.failing),
            ("long_run", self.long_run),
        ] {
            if [ladder.steer, ladder.block, ladder.stop].iter().any(|count| *count == 1 || *count > 1000) {
                return bad(name, "thresholds must be 0 (off) or from 2 to 1000: one step is never a stall");
            }
        }
        Ok(())
    }

    /// Whether a call waits for something: neither progress nor a stall.
    pub fn is_waiting(&self, tool: &str, effect: CallEffect) -> bool {
        self.polling.iter().any(|polling| polling == tool) || (self.novelty_by_target && effect == CallEffect::Waits)
    }

    pub(super) fn limited(&self, mut verdict: Verdict) -> Verdict {
        verdict.rung = verdict.rung.min(self.highest);
        verdict
    }

    /// Whether the model is told of a long run and nobody says when one ends: then what was learned from others of its kind says it.
    pub const fn takes_what_is_long(&self) -> bool {
        let Ladder { steer, block, stop } = self.long_run;
        self.long_run_learned && steer > 0 && block == 0 && stop == 0 && self.long_run_tokens == 0
    }

    /// Whether it matters how many tokens a run uses.
    pub const fn looks_at_tokens(&self) -> bool {
        self.long_run_tokens > 0 || (self.long_run_learned && self.long_run.steer > 0)
    }

    /// How far a run in which a check failed again has climbed by its length: calls, and tokens that were used.
    pub(super) fn length_rung(&self, calls: u32, tokens: u64) -> Rung {
        let limit = self.long_run_tokens;
        let by_tokens = match tokens {
            tokens if limit > 0 && tokens > limit => Rung::Stop,
            tokens if limit > 0 && tokens > limit - limit / 8 => Rung::Steer,
            _ => Rung::GoOn,
        };
        self.long_run.rung(calls).max(by_tokens)
    }

    /// The lowest number of rounds after which the run is interfered with; where it never is, after which the model is told.
    pub(super) fn cycle_from(&self) -> u32 {
        [self.cycle.block, self.cycle.stop].into_iter().filter(|count| *count > 0).min().unwrap_or(self.cycle.steer)
    }
}

setters!(StallSettings {
    identical: Ladder,
    cycle: Ladder,
    cycle_max_period: u32,
    novelty_window: u32,
    novelty_max_new: u32,
    novelty_rung: Rung,
    novelty_nudges: u32,
    novelty_by_target: bool,
    same_error: Ladder,
    messages: Ladder,
    unmoved: Ladder,
    put_back: Ladder,
    same_result: Ladder,
    failing: Ladder,
    long_run: Ladder,
    long_run_tokens: u64,
    long_run_learned: bool,
    polling: Vec<String>,
    mutating: Vec<String>,
    volatile: VolatileResults,
    highest: Rung,
});
