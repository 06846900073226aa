//! Rules of well-known agents, to be held against RunGuard's. Written from their published descriptions.
//!
//! A rule that warns first and stops when it goes on is taken to stop where it says so: what its warning would have changed no
//! recording knows. Rules that only warn, or only refuse a call, stop nothing and are left out.

use super::{Contender, Rule};
use crate::trace::{Kind, Step};
use runguard_core::detect::stall::CallEffect;
use std::collections::{HashMap, VecDeque};
use xxhash_rust::xxh3::xxh3_64;

/// Another agent's rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Other {
    OpenHands,
    GeminiCli,
    Roo,
    LangGraph,
    Hermes,
    Stella,
    Crush,
    ZeroClaw,
    QwenCode,
}

impl Other {
    pub const ALL: [Self; 9] = [
        Self::OpenHands,
        Self::GeminiCli,
        Self::Roo,
        Self::LangGraph,
        Self::Hermes,
        Self::Stella,
        Self::Crush,
        Self::ZeroClaw,
        Self::QwenCode,
    ];

    pub const fn code(self) -> &'static str {
        match self {
            Self::OpenHands => "openhands",
            Self::GeminiCli => "gemini-cli",
            Self::Roo => "roo",
            Self::LangGraph => "langgraph",
            Self::Hermes => "hermes",
            Self::Stella => "stella",
            Self::Crush => "crush",
            Self::ZeroClaw => "zeroclaw",
            Self::QwenCode => "qwen-code",
        }
    }

    pub fn from_code(code: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|other| other.code() == code)
    }

    pub fn contender(self) -> Contender {
        match self {
            Self::OpenHands => Contender::new("OpenHands", |_| Box::new(OpenHands::default())),
            Self::GeminiCli => Contender::new("gemini-cli", |_| Box::new(GeminiCli::default())),
            Self::Roo => Contender::new("Roo", |_| Box::new(Roo::default())),
            Self::LangGraph => Contender::new("LangGraph", |_| Box::new(LangGraph::default())),
            Self::Hermes => Contender::new("hermes", |_| Box::new(Hermes::default())),
            Self::Stella => Contender::new("stella", |_| Box::new(Stella::default())),
            Self::Crush => Contender::new("crush", |_| Box::new(Crush::default())),
            Self::ZeroClaw => Contender::new("zeroclaw", |_| Box::new(ZeroClaw::default())),
            Self::QwenCode => Contender::new("qwen-code", |_| Box::new(QwenCode::default())),
        }
    }
}

/// What a rule keeps of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Done {
    call: bool,
    /// The hash of its name.
    tool: u64,
    args: u64,
    result: Option<u64>,
    failed: bool,
    looks: bool,
}

impl Done {
    fn of(step: &Step) -> Self {
        let (tool, args) = step.action();
        let call = step.kind == Kind::Call;
        Self {
            call,
            tool: xxh3_64(tool.as_bytes()),
            args,
            result: step.result,
            failed: step.error.is_some(),
            looks: step.effect == CallEffect::Looks,
        }
    }

    fn same_action(&self, other: &Self) -> bool {
        (self.call, self.args, self.tool) == (other.call, other.args, other.tool)
    }

    fn same_pair(&self, other: &Self) -> bool {
        self.same_action(other) && (self.result == other.result || self.result.is_none() || other.result.is_none())
    }
}

/// The last `count`, when there are as many.
fn latest<T>(of: &[T], count: usize) -> Option<&[T]> {
    of.len().checked_sub(count).map(|from| &of[from..])
}

/// The `StuckDetector` of `OpenHands`: four equal actions with equal observations, three equal actions that all failed, three equal
/// messages, or two pairs that alternate for six steps.
#[derive(Debug, Default)]
struct OpenHands {
    done: Vec<Done>,
}

impl Rule for OpenHands {
    fn stops(&mut self, step: &Step) -> bool {
        if self.done.len() == 6 {
            self.done.remove(0);
        }
        self.done.push(Done::of(step));
        let latest = |count| latest(&self.done, count).unwrap_or_default();
        let all = |count, test: &dyn Fn(&Done, &Done) -> bool| match latest(count) {
            [first, others @ ..] => others.iter().all(|other| test(first, other)),
            [] => false,
        };
        let six = latest(6);
        all(4, &|first, other| first.call && first.same_pair(other))
            || all(3, &|first, other| first.call && first.failed && other.failed && first.same_action(other))
            || all(3, &|first, other| !first.call && first.same_action(other))
            || (six.len() == 6 && (0..4).all(|index| six[index].same_pair(&six[index + 2])))
    }
}

/// gemini-cli's loop detection: one to five calls, in the same order five times, whatever they gave.
#[derive(Debug, Default)]
struct GeminiCli {
    calls: Vec<Done>,
}

impl GeminiCli {
    const LONGEST: usize = 5;
    const TIMES: usize = 5;
}

impl Rule for GeminiCli {
    fn stops(&mut self, step: &Step) -> bool {
        if step.kind != Kind::Call {
            return false;
        }
        if self.calls.len() == Self::LONGEST * Self::TIMES {
            self.calls.remove(0);
        }
        self.calls.push(Done::of(step));
        (1..=Self::LONGEST).any(|period| {
            latest(&self.calls, period * Self::TIMES)
                .is_some_and(|calls| calls.iter().zip(&calls[period..]).all(|(call, later)| call.same_action(later)))
        })
    }
}

/// Roo Code's repetition limit: three equal calls in a row, whatever they gave.
#[derive(Debug, Default)]
struct Roo {
    last: Option<Done>,
    in_a_row: u32,
}

impl Rule for Roo {
    fn stops(&mut self, step: &Step) -> bool {
        if step.kind != Kind::Call {
            return false;
        }
        let call = Done::of(step);
        self.in_a_row = if self.last.as_ref().is_some_and(|last| last.same_action(&call)) { self.in_a_row + 1 } else { 1 };
        self.last = Some(call);
        self.in_a_row >= 3
    }
}

/// The recursion limit of `LangGraph`: a run that needs more than 25 steps ends.
#[derive(Debug, Default)]
struct LangGraph {
    steps: u32,
}

impl Rule for LangGraph {
    fn stops(&mut self, _: &Step) -> bool {
        self.steps += 1;
        self.steps > 25
    }
}

/// Keeps the latest `most`.
fn keep<T>(of: &mut VecDeque<T>, most: usize, next: T) {
    if of.len() == most {
        of.pop_front();
    }
    of.push_back(next);
}

/// How many at the end hold.
fn at_the_end<T>(of: &VecDeque<T>, holds: impl Fn(&T) -> bool) -> usize {
    of.iter().rev().take_while(|one| holds(one)).count()
}

/// hermes-agent's guardrails with their hard stop on: the same call that failed five times, one tool that failed eight times in a row
/// whatever it was asked, or the same look that gave the same five times.
#[derive(Debug, Default)]
struct Hermes {
    failures: HashMap<(u64, u64), u32>,
    of_tool: HashMap<u64, u32>,
    looks: HashMap<(u64, u64), (Option<u64>, u32)>,
}

impl Rule for Hermes {
    fn stops(&mut self, step: &Step) -> bool {
        let done = Done::of(step);
        if !done.call {
            return false;
        }
        let call = (done.tool, done.args);
        if done.failed {
            let (same, tool) = (self.failures.entry(call).or_default(), self.of_tool.entry(done.tool).or_default());
            (*same, *tool) = (*same + 1, *tool + 1);
            return *same >= 5 || *tool >= 8;
        }
        self.failures.remove(&call);
        self.of_tool.remove(&done.tool);
        if !done.looks {
            return false;
        }
        let (gave, times) = self.looks.entry(call).or_default();
        *times = if *gave == done.result || done.result.is_none() { *times + 1 } else { 1 };
        *gave = done.result.or(*gave);
        *times >= 5
    }
}

/// stella's loop detection, which steers at the first finding and aborts at the next: three equal pairs in a row, a round of two to four
/// pairs made three times, the same pair three times among the latest twenty, or one tool that gives the same six times in a row.
#[derive(Debug, Default)]
struct Stella {
    done: VecDeque<Done>,
    findings: u32,
}

impl Rule for Stella {
    fn stops(&mut self, step: &Step) -> bool {
        let done = Done::of(step);
        if !done.call {
            return false;
        }
        keep(&mut self.done, 20, done.clone());
        let gave_that = |pair: &Done| pair.tool == done.tool && pair.result == done.result && done.result.is_some();
        let stagnates = at_the_end(&self.done, gave_that) >= 6;
        let pairs = self.done.make_contiguous();
        let round = |period: usize| {
            latest(pairs, period * 3).is_some_and(|pairs| pairs.iter().zip(&pairs[period..]).all(|(pair, later)| pair.same_pair(later)))
        };
        let again = pairs.iter().filter(|pair| pair.same_pair(&done)).count() >= 3;
        if again || (2..=4).any(round) || stagnates {
            self.findings += 1;
            self.done.clear();
        }
        self.findings >= 2
    }
}

/// crush's loop detection: the same call with the same result more than five times among the latest ten.
#[derive(Debug, Default)]
struct Crush {
    done: VecDeque<Done>,
}

impl Rule for Crush {
    fn stops(&mut self, step: &Step) -> bool {
        let done = Done::of(step);
        if !done.call {
            return false;
        }
        keep(&mut self.done, 10, done.clone());
        self.done.iter().filter(|pair| pair.same_pair(&done)).count() > 5
    }
}

/// zeroclaw's loop detector, which warns, then refuses, then breaks: the same call five times in a row, or two calls that alternate for six
/// rounds. That other arguments give the same it only refuses.
#[derive(Debug, Default)]
struct ZeroClaw {
    calls: VecDeque<Done>,
}

impl Rule for ZeroClaw {
    fn stops(&mut self, step: &Step) -> bool {
        let done = Done::of(step);
        if !done.call {
            return false;
        }
        keep(&mut self.calls, 20, done.clone());
        let repeats = at_the_end(&self.calls, |call| call.same_action(&done));
        let calls = self.calls.make_contiguous();
        let ping_pong = latest(calls, 12).is_some_and(|calls| {
            !calls[0].same_action(&calls[1]) && calls.iter().zip(&calls[2..]).all(|(call, later)| call.same_action(later))
        });
        repeats >= 5 || ping_pong
    }
}

/// qwen-code's loop detection: five equal calls in a row, eight looks among the latest fifteen calls once something else was done, or one
/// tool eight times in a row.
#[derive(Debug, Default)]
struct QwenCode {
    calls: VecDeque<Done>,
    acted: bool,
}

impl Rule for QwenCode {
    fn stops(&mut self, step: &Step) -> bool {
        let done = Done::of(step);
        if !done.call {
            return false;
        }
        self.acted |= !done.looks;
        keep(&mut self.calls, 15, done.clone());
        let equal = at_the_end(&self.calls, |call| call.same_action(&done));
        let same_tool = at_the_end(&self.calls, |call| call.tool == done.tool);
        let looks = self.calls.iter().filter(|call| call.looks).count();
        equal >= 5 || same_tool >= 8 || (self.acted && done.looks && looks >= 8)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{call, failed, said, stop, unknown};
    use super::*;

    #[test]
    fn openhands_stops_four_equal_pairs() {
        assert_eq!(stop("OpenHands", vec![call(1, 1); 6]), Some(3));
        assert_eq!(stop("OpenHands", (0..9).map(|result| call(1, result)).collect()), None, "another result");
        assert_eq!(stop("OpenHands", [vec![call(1, 1); 3], vec![unknown(1)]].concat()), Some(3), "the last result is not known");
    }

    #[test]
    fn openhands_stops_three_equal_actions_with_errors_and_three_equal_messages() {
        assert_eq!(stop("OpenHands", vec![failed(1, 1), failed(1, 2), failed(1, 3)]), Some(2));
        assert_eq!(stop("OpenHands", vec![failed(1, 1), failed(2, 1), failed(3, 1)]), None, "other arguments");
        assert_eq!(stop("OpenHands", vec![said(1), said(1), said(1)]), Some(2));
        assert_eq!(stop("OpenHands", vec![said(1), said(2), said(1)]), None);
    }

    #[test]
    fn openhands_stops_two_pairs_that_alternate_six_times() {
        let alternating: Vec<Step> = (0..8).map(|index| call(index % 2, index % 2)).collect();
        assert_eq!(stop("OpenHands", alternating), Some(5));
        assert_eq!(stop("OpenHands", (0..12).map(|index| call(index % 3, index % 3)).collect()), None, "a round of three");
    }

    #[test]
    fn gemini_cli_stops_rounds_of_up_to_five_calls_made_five_times() {
        for period in 1..=5_usize {
            let steps = (0..40).map(|index| call((index % period) as u64, index as u64)).collect();
            assert_eq!(stop("gemini-cli", steps), Some(period * 5 - 1), "whatever the results");
        }
        assert_eq!(stop("gemini-cli", (0..60).map(|index| call(index % 6, 1)).collect()), None);
    }

    #[test]
    fn roo_stops_three_equal_calls() {
        assert_eq!(stop("Roo", (0..3).map(|result| call(1, result)).collect()), Some(2));
        assert_eq!(stop("Roo", vec![call(1, 1), call(1, 1), call(2, 1), call(1, 1)]), None);
    }

    #[test]
    fn langgraph_stops_a_run_that_needs_more_than_25_steps() {
        assert_eq!(stop("LangGraph", (0..25).map(|args| call(args, args)).collect()), None);
        assert_eq!(stop("LangGraph", (0..40).map(|args| call(args, args)).collect()), Some(25));
    }

    fn look(args: u64, result: u64) -> Step {
        Step { effect: CallEffect::Looks, tool: "read".into(), ..call(args, result) }
    }

    #[test]
    fn hermes_stops_what_keeps_failing_and_looks_that_bring_nothing() {
        let between = |step: Step| (0..5).flat_map(|index| [step.clone(), call(100 + index, index)]).collect::<Vec<Step>>();
        assert_eq!(stop("hermes", between(Step { tool: "test".into(), ..failed(1, 1) })), Some(8), "the fifth, whatever comes in between");
        assert_eq!(stop("hermes", (0..9).map(|args| failed(args, args)).collect()), Some(7));
        assert_eq!(stop("hermes", between(look(1, 1))), Some(8));
        assert_eq!(stop("hermes", vec![call(1, 1); 20]), None, "a call that is no look and succeeds");
    }

    #[test]
    fn stella_steers_once_and_then_stops() {
        assert_eq!(stop("stella", vec![call(1, 1); 9]), Some(5), "three, and three more");
        assert_eq!(stop("stella", (0..12).map(|args| look(args, 7)).collect()), Some(11), "other arguments, the same result");
        assert_eq!(stop("stella", (0..40).map(|index| call(index % 4, index)).collect()), None, "other results");
    }

    #[test]
    fn crush_stops_more_than_half_of_ten() {
        let mixed = |index: u64| if index.is_multiple_of(2) { call(1, 1) } else { call(100 + index, index) };
        assert_eq!(stop("crush", (0..40).map(mixed).collect()), None, "five of ten");
        assert_eq!(stop("crush", vec![call(1, 1); 9]), Some(5));
    }

    #[test]
    fn zeroclaw_breaks_the_fifth_equal_call_and_six_rounds_of_two() {
        assert_eq!(stop("zeroclaw", (0..9).map(|result| call(1, result)).collect()), Some(4));
        assert_eq!(stop("zeroclaw", (0..30).map(|index| call(index % 2, index)).collect()), Some(11));
        assert_eq!(stop("zeroclaw", (0..30).map(|args| look(args, 7)).collect()), None);
    }

    #[test]
    fn qwen_code_counts_equal_calls_looks_and_one_tool() {
        assert_eq!(stop("qwen-code", vec![call(1, 1); 9]), Some(4));
        assert_eq!(stop("qwen-code", (0..30).map(|args| call(args, args)).collect()), Some(7), "one tool");
        let tools = ["read", "list"];
        let looks = |index: u64| Step { tool: tools[index as usize % 2].into(), ..look(index, index) };
        assert_eq!(stop("qwen-code", (0..30).map(looks).collect()), None, "at the beginning looking is work");
        assert_eq!(stop("qwen-code", [vec![call(9, 9)], (0..30).map(looks).collect()].concat()), Some(8));
    }
}
