//! What is long for each kind of run, by the runs that are over.

use super::session_list::Longest;
use runguard_core::detect::stall::{LEAST_RUNS, Long};
use runguard_guards::lengths::LongRuns;
use std::collections::BTreeMap;

/// So long after its latest word a run is taken to be over: what goes on may become longer yet.
pub const OVER_AFTER_MILLIS: i64 = 3_600_000;
/// Runs of one kind that are looked at, the latest.
const MOST_RUNS: usize = 10_000;

/// By tenant, what is long for its runs.
pub type KnownLengths = BTreeMap<Box<str>, LongRuns>;

/// Takes runs, the latest first.
#[derive(Debug, Default)]
pub struct Learner(BTreeMap<(Box<str>, Box<str>), Vec<(u64, u64)>>);

impl Learner {
    pub fn take(&mut self, tenant: &str, longest: Longest) {
        let runs = self.0.entry((tenant.into(), longest.kind)).or_default();
        if runs.len() < MOST_RUNS {
            runs.push((longest.calls, longest.tokens));
        }
    }

    pub fn learnt(self) -> KnownLengths {
        let mut known: BTreeMap<Box<str>, Vec<(Box<str>, Long)>> = BTreeMap::new();
        for ((tenant, kind), runs) in self.0.into_iter().filter(|(_, runs)| runs.len() >= LEAST_RUNS) {
            known.entry(tenant).or_default().push((kind, Long::of(&runs)));
        }
        known.into_iter().map(|(tenant, kinds)| (tenant, kinds.into_iter().collect())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tenant_learns_of_its_own_kinds_from_the_latest_runs() {
        let mut learner = Learner::default();
        let mut take = |tenant: &str, kind: &str, calls: u64| learner.take(tenant, Longest { calls, tokens: 0, kind: kind.into() });
        (1..=30).for_each(|calls| take("acme", "a", calls));
        (1..=29).for_each(|calls| take("acme", "b", calls));
        (1..=30).for_each(|calls| take("globex", "a", 10 * calls));
        (0..MOST_RUNS).for_each(|_| take("initech", "a", 5));
        (0..MOST_RUNS).for_each(|_| take("initech", "a", 900));
        let kind = |calls: u32| [("a".into(), Long { calls, tokens: 0 })].into_iter().collect::<LongRuns>();
        let expected = [("acme", kind(30)), ("globex", kind(297)), ("initech", kind(6))].map(|(tenant, kinds)| (tenant.into(), kinds));
        assert_eq!(learner.learnt(), KnownLengths::from(expected));
    }
}
