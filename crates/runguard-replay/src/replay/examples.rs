//! A few runs that a rule ended, to look at: the first in the order of the files, of each end some.

use super::End;
use crate::evaluate::{Order, dollars_of, tokens_of};
use crate::rules::Cause;
use crate::trace::Run;
use serde::Serialize;
use std::cmp::Ordering;

/// Kept of each end.
const KEPT: usize = 3;
/// Kept of those with most behind their end.
const KEPT_MOST: usize = 5;

/// A run that a rule ended, and where to find it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Example {
    pub id: String,
    pub file: String,
    pub line: u64,
    pub source: String,
    pub task: String,
    pub model: String,
    pub success: Option<bool>,
    /// The last step it would have made, from 1.
    pub step: u64,
    /// Steps it made.
    pub steps: u64,
    /// The rule that ended it.
    pub rule: &'static str,
    /// What came after that step.
    pub after_steps: u64,
    pub after_tokens: u64,
    pub after_dollars: f64,
}

impl Example {
    pub(super) fn of(run: &Run, (at, cause): (usize, Cause)) -> Self {
        let after = cause.spared(run, at);
        Self {
            id: run.id.clone(),
            file: run.place.file.display().to_string(),
            line: run.place.line,
            source: run.source.clone(),
            task: run.task.clone(),
            model: run.model.clone(),
            success: run.success,
            step: at as u64 + 1,
            steps: run.steps.len() as u64,
            rule: cause.code(),
            after_steps: after.len() as u64,
            after_tokens: tokens_of(after),
            after_dollars: dollars_of(after),
        }
    }
}

/// What makes a run worth looking at: dollars, tokens, steps.
pub(super) type Worth = (f64, u64, u64);

pub(super) trait Weighed {
    fn worth(&self) -> Worth;
}

impl Weighed for Example {
    fn worth(&self) -> Worth {
        (self.after_dollars, self.after_tokens, self.after_steps)
    }
}

/// The runs that are worth most, whatever became of them.
#[derive(Debug, Clone)]
pub(super) struct Most<T>(Vec<(Order, T)>);

impl<T> Default for Most<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Weighed> Most<T> {
    /// Made only if it is kept.
    pub(super) fn add(&mut self, order: Order, worth: Worth, make: impl FnOnce() -> T) {
        let is_less = |last: &(Order, T)| worth < last.1.worth();
        if worth.2 > 0 && !(self.0.len() == KEPT_MOST && self.0.last().is_some_and(is_less)) {
            self.insert(order, make());
        }
    }

    fn insert(&mut self, order: Order, one: T) {
        let comes_before = |(other, known): &(Order, T)| match known.worth().partial_cmp(&one.worth()) {
            Some(Ordering::Greater) => true,
            Some(Ordering::Less) | None => false,
            Some(Ordering::Equal) => *other <= order,
        };
        let at = self.0.partition_point(comes_before);
        self.0.insert(at, (order, one));
        self.0.truncate(KEPT_MOST);
    }

    pub(super) fn merge(&mut self, other: Self) {
        for (order, one) in other.0 {
            self.insert(order, one);
        }
    }

    pub(super) fn finish(self) -> Vec<T> {
        self.0.into_iter().map(|(_, one)| one).collect()
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Examples {
    by_end: [Vec<(Order, Example)>; End::COUNT],
}

impl Examples {
    pub(super) fn add(&mut self, run: &Run, ended: (usize, Cause), order: Order) {
        let kept = &mut self.by_end[End::of(run) as usize];
        if kept.len() == KEPT && kept.last().is_some_and(|(last, _)| *last < order) {
            return;
        }
        insert(kept, order, Example::of(run, ended));
    }

    pub(super) fn merge(&mut self, other: Self) {
        for (mine, theirs) in self.by_end.iter_mut().zip(other.by_end) {
            for (order, example) in theirs {
                insert(mine, order, example);
            }
        }
    }

    /// False stops first: they are what a reader asks about.
    pub(super) fn finish(self) -> Vec<Example> {
        self.by_end.into_iter().flatten().map(|(_, example)| example).collect()
    }
}

fn insert(kept: &mut Vec<(Order, Example)>, order: Order, example: Example) {
    let at = kept.partition_point(|(other, _)| *other <= order);
    kept.insert(at, (order, example));
    kept.truncate(KEPT);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::tests::run;
    use runguard_core::detect::stall::StallRule;

    #[test]
    fn the_first_of_each_end_are_kept_in_whatever_order_they_come() {
        let mut examples = Examples::default();
        for batch in [5, 2, 9, 1, 7, 3, 0] {
            for success in [Some(false), Some(true)] {
                let run = Run { id: batch.to_string(), success, ..run("s", Vec::new()) };
                examples.add(&run, (4, Cause::Stall(StallRule::Identical)), Order { batch, ..Order::default() });
            }
        }
        let kept = examples.finish();
        assert_eq!(kept.iter().map(|example| example.id.as_str()).collect::<Vec<_>>(), ["0", "1", "2", "0", "1", "2"]);
        assert_eq!((kept[0].success, kept[3].success, kept[0].step), (Some(true), Some(false), 5), "false stops first");
    }
}
