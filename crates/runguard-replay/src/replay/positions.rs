//! Where runs were ended, as a histogram of bounded size: exact up to a thousand steps, within two per cent beyond.

use serde::Serialize;

/// Up to here every number has a place of its own.
const EXACT: u64 = 1024;
/// Beyond, every doubling is cut into this many parts.
const PARTS: u64 = 64;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Positions {
    counts: Vec<u64>,
    count: u64,
    largest: u64,
}

/// The middle, the last tenth and the last of some numbers; 0 of none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Where {
    pub median: u64,
    pub p90: u64,
    pub largest: u64,
}

impl Positions {
    pub(super) fn add(&mut self, position: u64) {
        let slot = slot_of(position);
        if self.counts.len() <= slot {
            self.counts.resize(slot + 1, 0);
        }
        self.counts[slot] += 1;
        self.count += 1;
        self.largest = self.largest.max(position);
    }

    pub(super) fn merge(&mut self, other: &Self) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.count += other.count;
        self.largest = self.largest.max(other.largest);
    }

    pub(super) fn summary(&self) -> Where {
        Where { median: self.quantile(1, 2), p90: self.quantile(9, 10), largest: self.largest }
    }

    /// The smallest position that this share of all does not pass.
    fn quantile(&self, part: u64, whole: u64) -> u64 {
        let wanted = (self.count * part).div_ceil(whole);
        let mut seen = 0;
        for (slot, count) in self.counts.iter().enumerate() {
            seen += count;
            if *count > 0 && seen >= wanted {
                return start_of(slot).min(self.largest);
            }
        }
        0
    }
}

fn slot_of(position: u64) -> usize {
    if position < EXACT {
        return position as usize;
    }
    let doublings = u64::from(position.ilog2() - EXACT.ilog2());
    let part = (position >> (doublings + u64::from(EXACT.ilog2() - PARTS.ilog2()))) - PARTS;
    (EXACT + doublings * PARTS + part) as usize
}

fn start_of(slot: usize) -> u64 {
    let slot = slot as u64;
    if slot < EXACT {
        return slot;
    }
    let (doublings, part) = ((slot - EXACT) / PARTS, (slot - EXACT) % PARTS);
    (part + PARTS) << (doublings + u64::from(EXACT.ilog2() - PARTS.ilog2()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn quantiles_are_those_of_the_sorted_numbers(numbers in proptest::collection::vec(0_u64..5000, 1..200), split in 0_usize..200) {
            let mut sorted = numbers.clone();
            sorted.sort_unstable();
            let (left, right) = numbers.split_at(split.min(numbers.len()));
            let fill = |numbers: &[u64]| {
                let mut positions = Positions::default();
                for number in numbers {
                    positions.add(*number);
                }
                positions
            };
            let mut positions = fill(left);
            positions.merge(&fill(right));
            let exact = |part: usize, whole: usize| sorted[(sorted.len() * part).div_ceil(whole) - 1];
            let near = |found: u64, exact: u64| if exact < EXACT { found == exact } else { found <= exact && exact - found <= exact / 50 };
            let found = positions.summary();
            prop_assert!(near(found.median, exact(1, 2)) && near(found.p90, exact(9, 10)), "{found:?} {sorted:?}");
            prop_assert_eq!(found.largest, sorted[sorted.len() - 1]);
        }

        #[test]
        fn every_slot_begins_where_the_one_before_ends(position in 0_u64..u64::MAX / 2) {
            let slot = slot_of(position);
            prop_assert!(start_of(slot) <= position && position < start_of(slot + 1));
            prop_assert!(slot < 6000, "bounded");
        }
    }
}
