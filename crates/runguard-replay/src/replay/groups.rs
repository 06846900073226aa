//! Figures of groups, of which there may be more than fit.
//!
//! Tasks can be millions. The bound keeps those whose names have the smallest hashes and adds all others up: that choice does
//! not depend on the order in which runs come. A group that was let go has more than the bound before it and never comes
//! back, so every figure that is kept is whole.

use super::{By, Figures, Grouping, Named};
use crate::evaluate::Tally;
use crate::trace::Run;
use std::collections::BTreeMap;
use xxhash_rust::xxh3::xxh3_64;

const MOST_GROUPS: usize = 1000;

#[derive(Debug, Clone)]
pub(super) struct Groups {
    by: By,
    kept: BTreeMap<u64, (String, Tally)>,
    others: Option<Tally>,
}

impl Groups {
    pub(super) fn new(by: By) -> Self {
        Self { by, kept: BTreeMap::new(), others: None }
    }

    pub(super) fn add(&mut self, run: &Run, outcome: &Tally) {
        let name = self.by.of(run);
        self.add_to(xxh3_64(name.as_bytes()), name, outcome);
    }

    fn add_to(&mut self, hash: u64, name: &str, tally: &Tally) {
        if let Some((_, sum)) = self.kept.get_mut(&hash) {
            *sum += tally;
            return;
        }
        self.kept.insert(hash, (name.to_owned(), *tally));
        if self.kept.len() > MOST_GROUPS
            && let Some((_, (_, largest))) = self.kept.pop_last()
        {
            *self.others.get_or_insert_default() += &largest;
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        for (hash, (name, tally)) in other.kept {
            self.add_to(hash, &name, &tally);
        }
        if let Some(others) = other.others {
            *self.others.get_or_insert_default() += &others;
        }
    }

    pub(super) fn finish(self) -> Grouping {
        let mut groups: Vec<Named> = self.kept.into_values().map(|(name, tally)| Named { name, figures: Figures::from(tally) }).collect();
        groups.sort_by(|left, right| left.name.cmp(&right.name));
        Grouping { by: self.by, groups, others: self.others.map(Figures::from) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::field_reassign_with_default)] // not all of its fields are in sight
    fn groups_beyond_the_bound_are_added_up_the_same_in_any_order() {
        let mut one = Tally::default();
        one.successful = 1;
        let names: Vec<String> = (0..3 * MOST_GROUPS).map(|number| number.to_string()).collect();
        let fill = |names: &mut dyn Iterator<Item = &String>| {
            let mut groups = Groups::new(By::Task);
            names.for_each(|name| groups.add_to(xxh3_64(name.as_bytes()), name, &one));
            groups
        };
        let whole = fill(&mut names.iter().chain(names.iter())).finish();
        let mut parts = fill(&mut names.iter().rev());
        parts.merge(fill(&mut names.iter()));
        assert_eq!(parts.finish(), whole);
        assert_eq!(whole.groups.len(), MOST_GROUPS);
        assert!(whole.groups.iter().all(|group| group.figures.sums.successful == 2));
        assert_eq!(whole.others.unwrap().sums.successful, 4 * MOST_GROUPS as u64);
    }
}
