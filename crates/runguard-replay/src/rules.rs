//! Rules that stop runs: RunGuard's, and those of well-known agents, written from their published descriptions.
//!
//! Sources often lack the result of a run's last call, because the run ended before the model was told. Every rule that
//! looks at results takes one that is not known for the one that would complete its pattern; otherwise none could be held
//! against a detector that had seen it.

use crate::trace::{Kind, Run, Step};
use runguard_core::detect::loops::BadSetting;
use runguard_core::detect::stall::{self, Preset, Rung, StallDetector, StallSettings};
use std::fmt;

/// Watches one run.
pub trait Rule {
    /// Takes the next step and says whether the run is stopped after it.
    fn stops(&mut self, step: &Step) -> bool;
}

/// A rule under test: makes a fresh one for each run.
pub struct Contender {
    pub name: String,
    make: Box<dyn Fn(&Run) -> Box<dyn Rule> + Send + Sync>,
}

impl fmt::Debug for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contender").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Contender {
    pub fn new(name: &str, make: impl Fn(&Run) -> Box<dyn Rule> + Send + Sync + 'static) -> Self {
        Self { name: name.to_owned(), make: Box::new(make) }
    }

    /// RunGuard with the preset that fits a run's source, changed as told.
    pub fn runguard(name: &str, change: impl Fn(StallSettings) -> StallSettings) -> Result<Self, BadSetting> {
        let detector = |preset: Preset| StallDetector::new(change(preset.settings()));
        let detectors = Preset::ALL.into_iter().map(|preset| Ok((preset, detector(preset)?))).collect::<Result<Vec<_>, BadSetting>>()?;
        Ok(Self::new(name, move |run| {
            let source = Source::of(&run.source);
            let detector = detectors.iter().find(|(preset, _)| *preset == source.preset).map(|(_, detector)| detector.clone());
            Box::new(RunGuard { detector, person_replies: source.person_replies })
        }))
    }

    /// The step after which the run is stopped, from 0.
    pub fn stop(&self, run: &Run) -> Option<usize> {
        let mut rule = (self.make)(run);
        run.steps.iter().position(|step| rule.stops(step))
    }
}

/// RunGuard and the others.
pub fn contenders() -> Result<Vec<Contender>, BadSetting> {
    Ok(vec![
        Contender::runguard("RunGuard", |settings| settings)?,
        Contender::new("OpenHands", |_| Box::new(OpenHands::default())),
        Contender::new("gemini-cli", |_| Box::new(GeminiCli::default())),
        Contender::new("Roo", |_| Box::new(Roo::default())),
        Contender::new("LangGraph", |_| Box::new(LangGraph::default())),
    ])
}

/// What is known of an agent beforehand; never anything about a single run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Source {
    preset: Preset,
    /// Whether a message is answered by a person, who starts everything anew, or by the program that drives the agent.
    person_replies: bool,
}

impl Source {
    fn of(name: &str) -> Self {
        match name {
            "taubench" => Self { preset: Preset::Chatbot, person_replies: true },
            _ => Self { preset: Preset::Coding, person_replies: false },
        }
    }
}

/// RunGuard's stall detector. A nudge is not a stop.
struct RunGuard {
    detector: Option<StallDetector>,
    person_replies: bool,
}

impl Rule for RunGuard {
    fn stops(&mut self, step: &Step) -> bool {
        let Some(detector) = &mut self.detector else { return false };
        let verdict = match step.kind {
            Kind::Call => {
                detector.observe(stall::Step { tool: &step.tool, args: step.args, result: step.result, error: step.error, round: None })
            }
            Kind::Message => {
                let verdict = detector.message(step.args);
                if self.person_replies && step.result.is_some() {
                    detector.user_message();
                }
                verdict
            }
        };
        verdict.rung == Rung::Stop
    }
}

/// What a rule keeps of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Done {
    call: bool,
    tool: String,
    args: u64,
    result: Option<u64>,
    failed: bool,
}

impl Done {
    fn of(step: &Step) -> Self {
        let (tool, args) = step.action();
        Self { call: step.kind == Kind::Call, tool: tool.to_owned(), args, result: step.result, failed: step.error.is_some() }
    }

    fn same_action(&self, other: &Self) -> bool {
        (self.call, self.args, &self.tool) == (other.call, other.args, &other.tool)
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn call(args: u64, result: u64) -> Step {
        Step { kind: Kind::Call, tool: "sh".into(), args, result: Some(result), error: None, tokens: 10, dollars: 0.5 }
    }

    fn failed(args: u64, error: u64) -> Step {
        Step { error: Some(error), ..call(args, error) }
    }

    fn said(text: u64) -> Step {
        Step { kind: Kind::Message, tool: "__message__".into(), result: Some(1), ..call(text, 1) }
    }

    fn unknown(args: u64) -> Step {
        Step { result: None, ..call(args, 0) }
    }

    pub(crate) fn run(source: &str, steps: Vec<Step>) -> Run {
        Run {
            id: "r".into(),
            source: source.into(),
            task: "t".into(),
            model: "m".into(),
            agent: "a".into(),
            success: Some(false),
            stuck: None,
            native_tools: None,
            steps,
        }
    }

    fn stop(name: &str, steps: Vec<Step>) -> Option<usize> {
        let contenders = contenders().unwrap();
        contenders.iter().find(|contender| contender.name == name).unwrap().stop(&run("s", steps))
    }

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

    #[test]
    fn runguard_nudges_at_three_and_stops_at_four() {
        assert_eq!(stop("RunGuard", vec![call(1, 1); 3]), None);
        assert_eq!(stop("RunGuard", vec![call(1, 1); 6]), Some(3));
    }

    #[test]
    fn the_preset_follows_the_source_and_a_person_starts_anew() {
        let contenders = contenders().unwrap();
        let stop = |source: &str, steps: Vec<Step>| contenders[0].stop(&run(source, steps));
        assert_eq!(stop("taubench", vec![call(1, 1); 6]), Some(2), "somebody waits for the answer");
        let asked: Vec<Step> = (0..9).flat_map(|_| [call(1, 1), said(1)]).collect();
        assert_eq!(stop("taubench", asked), None);
    }
}
