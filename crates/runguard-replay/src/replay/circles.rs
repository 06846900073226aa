//! What was spent on steps that brought nothing new, whatever became of their runs: no label is needed to see it.
//!
//! A step goes in a circle where the stall detector would have told the model so, or would have ended the run; what was made before it is not
//! counted, though the first repetitions are part of the circle, too. Runs are looked at to their recorded end, because nobody told the model.

use super::examples::{Most, Weighed, Worth};
use crate::evaluate::{Order, dollars_of};
use crate::rules::{Cause, Onlooker, StepFindings};
use crate::trace::{Run, Step};
use runguard_core::detect::stall::{Rung, StallRule, Verdict};
use runguard_guards::policy::Mode;
use serde::Serialize;
use std::sync::Arc;

/// What went in circles.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Circled {
    pub runs: u64,
    pub steps: u64,
    pub tokens: u64,
    pub dollars: f64,
}

impl Circled {
    fn add(&mut self, other: Self) {
        self.runs += other.runs;
        self.steps += other.steps;
        self.tokens = self.tokens.saturating_add(other.tokens);
        self.dollars += other.dollars;
    }

    fn step(&mut self, step: &Step) {
        self.runs = 1;
        self.add(Self { runs: 0, steps: 1, tokens: step.tokens, dollars: dollars_of(std::slice::from_ref(step)) });
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Circles {
    #[serde(flatten)]
    pub total: Circled,
    /// By what went round; a step counts for one of them.
    pub rules: Vec<RuleCircles>,
    /// The runs that spent most on it.
    pub most: Vec<Circling>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RuleCircles {
    pub rule: &'static str,
    #[serde(skip)]
    pub words: &'static str,
    #[serde(flatten)]
    pub circled: Circled,
}

/// A run that went in circles, and where to find it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Circling {
    pub id: String,
    pub file: String,
    pub line: u64,
    pub task: String,
    pub model: String,
    /// The first step that did, from 1.
    pub first: u64,
    /// How many did.
    pub steps: u64,
    /// Of so many.
    pub of: u64,
    pub tokens: u64,
    pub dollars: f64,
    /// The rule that saw most of them.
    pub rule: &'static str,
    /// The tool that most of them called.
    pub tool: String,
}

impl Weighed for Circling {
    fn worth(&self) -> Worth {
        (self.dollars, self.tokens, self.steps)
    }
}

/// What goes round at a step. Length alone is no circle, nor is a check that keeps succeeding.
fn goes_round(step: &Step, verdict: Verdict) -> Option<StallRule> {
    let rule = verdict.rule.filter(|_| verdict.rung >= Rung::Steer)?;
    match rule {
        StallRule::LongRun => None,
        StallRule::Unmoved => step.error.map(|_| rule),
        StallRule::Identical
        | StallRule::Cycle
        | StallRule::Novelty
        | StallRule::SameError
        | StallRule::Messages
        | StallRule::PutBack
        | StallRule::SameResult
        | StallRule::Failing => Some(rule),
    }
}

/// Looks on while one run after the other is watched.
#[derive(Debug, Default)]
pub(super) struct Watching {
    total: Circled,
    rules: [Circled; StallRule::ALL.len()],
    tools: Vec<(Arc<str>, u32)>,
    first: usize,
}

impl Onlooker for Watching {
    fn after(&mut self, seen: &StepFindings<'_>) {
        let Some(rule) = seen.verdict.filter(|(_, mode)| *mode != Mode::Off).and_then(|(verdict, _)| goes_round(seen.step, verdict)) else {
            return;
        };
        if self.total.steps == 0 {
            self.first = seen.at;
        }
        self.total.step(seen.step);
        self.rules[rule as usize].step(seen.step);
        match self.tools.iter_mut().find(|(tool, _)| *tool == seen.step.tool) {
            Some((_, steps)) => *steps += 1,
            None => self.tools.push((seen.step.tool.clone(), 1)),
        }
    }
}

impl Watching {
    pub(super) fn clear(&mut self) {
        self.tools.clear();
        *self = Self { tools: std::mem::take(&mut self.tools), ..Self::default() };
    }

    fn of(&self, run: &Run) -> Circling {
        let most = StallRule::ALL.into_iter().rev().max_by_key(|rule| self.rules[*rule as usize].steps).unwrap_or(StallRule::Identical);
        let tool = self.tools.iter().rev().max_by_key(|(_, steps)| *steps).map_or("", |(tool, _)| tool);
        Circling {
            id: run.id.clone(),
            file: run.place.file.display().to_string(),
            line: run.place.line,
            task: run.task.clone(),
            model: run.model.clone(),
            first: self.first as u64 + 1,
            steps: self.total.steps,
            of: run.steps.len() as u64,
            tokens: self.total.tokens,
            dollars: self.total.dollars,
            rule: Cause::Stall(most).code(),
            tool: tool.to_owned(),
        }
    }
}

/// Of all runs.
#[derive(Debug, Clone, Default)]
pub(super) struct Sums {
    total: Circled,
    rules: [Circled; StallRule::ALL.len()],
    most: Most<Circling>,
}

impl Sums {
    pub(super) fn add(&mut self, run: &Run, watched: &Watching, order: Order) {
        self.total.add(watched.total);
        for (sum, circled) in self.rules.iter_mut().zip(watched.rules) {
            sum.add(circled);
        }
        let Circled { steps, tokens, dollars, .. } = watched.total;
        self.most.add(order, (dollars, tokens, steps), || watched.of(run));
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.total.add(other.total);
        for (mine, theirs) in self.rules.iter_mut().zip(other.rules) {
            mine.add(theirs);
        }
        self.most.merge(other.most);
    }

    pub(super) fn finish(self) -> Circles {
        let named = StallRule::ALL.into_iter().zip(self.rules).filter(|(_, circled)| circled.steps > 0);
        let mut rules: Vec<RuleCircles> = named
            .map(|(rule, circled)| RuleCircles { rule: Cause::Stall(rule).code(), words: Cause::Stall(rule).words(), circled })
            .collect();
        rules.sort_by(|left, right| {
            right.circled.dollars.total_cmp(&left.circled.dollars).then(right.circled.steps.cmp(&left.circled.steps))
        });
        Circles { total: self.total, rules, most: self.most.finish() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::tests::{call, failed, run};
    use crate::rules::{Caps, Guards, Presets, Watched};
    use runguard_guards::policy::Tree;

    fn circles(settings: &str, runs: &[Run]) -> Circles {
        let tree: Tree = serde_json::from_str(settings).unwrap();
        let guards = Guards::new(Presets::default(), &tree, &[Watched::Stall], Caps::default()).unwrap();
        let (mut watching, mut sums) = (Watching::default(), Sums::default());
        for (batch, run) in (0..).zip(runs) {
            watching.clear();
            guards.watch().run_before(run, &mut watching);
            sums.add(run, &watching, Order { batch, ..Order::default() });
        }
        sums.finish()
    }

    #[test]
    fn what_is_said_to_go_nowhere_is_added_up_to_the_end_of_the_run() {
        let steady = run("s", (0..9).map(|index| call(index, index)).collect());
        let round = Run { id: "round".into(), ..run("s", [vec![call(9, 9)], vec![call(1, 1); 5]].concat()) };
        let found = circles("{}", &[steady.clone(), round, steady]);
        assert_eq!(found.total, Circled { runs: 1, steps: 3, tokens: 30, dollars: 1.5 }, "from the third equal call on, past the stop");
        assert_eq!(found.rules.iter().map(|rule| (rule.rule, rule.circled.steps)).collect::<Vec<_>>(), [("stall.identical", 3)]);
        let [most] = &found.most[..] else { panic!("{:?}", found.most) };
        assert_eq!((most.id.as_str(), most.first, most.steps, most.of, most.rule), ("round", 4, 3, 6, "stall.identical"));
    }

    #[test]
    fn the_runs_that_spent_most_come_first_and_a_detector_that_is_off_sees_nothing() {
        let errors = |count: u64| run("s", (0..count).map(|args| failed(args, 7)).collect());
        let found = circles("{}", &[errors(3), errors(6), errors(4)]);
        assert_eq!(found.most.iter().map(|run| run.steps).collect::<Vec<_>>(), [4, 2, 1]);
        assert_eq!(circles(r#"{"stall": {"mode": "off"}}"#, &[errors(6)]).total, Circled::default());
        assert_eq!(circles(r#"{"stall": {"mode": "observe"}}"#, &[errors(6)]).total.steps, 4);
    }
}
