//! How often something happened in a sliding window, exactly, in bounded memory.
//!
//! To answer "have there been `cap` events in the window?" one needs only the `cap` *latest* times: if the
//! oldest of those still counts, the cap is reached; if not, every event that counts is among them. That holds
//! for any clock, also one that jumps back, so nothing is ever dropped because of its age, only because
//! `cap` later ones exist. A count costs one binary search, however long the session has run.

use crate::time::{Span, Timestamp};
use serde::de::{SeqAccess, Visitor};
use serde::ser::SerializeSeq;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// The times at which units of a limit were taken: sorted, at most as many as the largest cap asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Units {
    times: Vec<Timestamp>,
}

impl Units {
    /// How many of the kept events count at `now`.
    pub fn count(&self, now: Timestamp, window: Span) -> u32 {
        let expired = self.times.partition_point(|&at| !now.still_counts(at, window));
        (self.times.len() - expired) as u32
    }

    /// When fewer than `cap` events will count, if nothing else happens. `None` when a cap of zero never frees.
    pub fn frees_at(&self, window: Span, cap: u32) -> Option<Timestamp> {
        let position = self.times.len().checked_sub(cap as usize)?;
        self.times.get(position).map(|at| at.plus(window))
    }

    /// Takes a unit at `at` and keeps the `keep` latest.
    pub fn take(&mut self, at: Timestamp, keep: u32) {
        let position = self.times.partition_point(|&other| other <= at);
        self.times.insert(position, at);
        let surplus = self.times.len().saturating_sub(keep.max(1) as usize);
        self.times.drain(..surplus);
    }

    /// Frees all of them.
    pub fn clear(&mut self) {
        self.times.clear();
    }

    /// Whether none is taken.
    pub fn is_empty(&self) -> bool {
        self.times.is_empty()
    }

    /// When the latest was taken.
    pub fn latest(&self) -> Option<Timestamp> {
        self.times.last().copied()
    }
}

/// Serialised as the first time and then the steps between them: a handful of bytes each.
impl Serialize for Units {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut sequence = serializer.serialize_seq(Some(self.times.len()))?;
        let mut previous = 0;
        for at in &self.times {
            sequence.serialize_element(&at.as_millis().wrapping_sub(previous))?;
            previous = at.as_millis();
        }
        sequence.end()
    }
}

impl<'de> Deserialize<'de> for Units {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct UnitsVisitor;
        impl<'de> Visitor<'de> for UnitsVisitor {
            type Value = Units;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("times as steps in milliseconds")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut steps: A) -> Result<Units, A::Error> {
                let mut times = Vec::with_capacity(steps.size_hint().unwrap_or(0).min(1024));
                let mut previous = 0_i64;
                while let Some(step) = steps.next_element::<i64>()? {
                    previous = previous.wrapping_add(step);
                    times.push(Timestamp::from_millis(previous));
                }
                Ok(Units { times })
            }
        }
        deserializer.deserialize_seq(UnitsVisitor)
    }
}

/// At its bound a list loses the entry with the earliest time: the one no window needs.
pub fn forget_earliest<T>(entries: &mut Vec<T>, at: impl Fn(&T) -> Timestamp) {
    if let Some(earliest) = (0..entries.len()).min_by_key(|&position| at(&entries[position])) {
        entries.remove(earliest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn a_full_window_frees_when_its_oldest_event_leaves() {
        let window = Span::from_millis(100);
        let mut units = Units::default();
        units.take(at(0), 2);
        units.take(at(30), 2);
        assert_eq!(units.count(at(99), window), 2);
        assert_eq!(units.frees_at(window, 2), Some(at(100)));
        assert_eq!(units.count(at(100), window), 1);
        assert_eq!(units.frees_at(window, 0), None, "a cap of zero never frees");
    }

    proptest! {
        /// Against the plain definition over all events ever, whatever the clock does.
        #[test]
        fn the_latest_events_are_enough(cap in 1_u32..6, window in 1_u64..500, clock in prop::collection::vec(-1000_i64..1000, 1..60)) {
            let window = Span::from_millis(window);
            let mut units = Units::default();
            let mut all: Vec<Timestamp> = Vec::new();
            for now in clock.into_iter().map(at) {
                let truth = all.iter().filter(|&&event| now.still_counts(event, window)).count();
                let counted = units.count(now, window) as usize;
                prop_assert_eq!(counted >= cap as usize, truth >= cap as usize);
                if truth < cap as usize {
                    prop_assert_eq!(counted, truth);
                    units.take(now, cap);
                    all.push(now);
                } else {
                    let frees = units.frees_at(window, cap).expect("a cap above zero frees");
                    let one_before = at(frees.as_millis() - 1);
                    prop_assert!(units.count(one_before, window) >= cap);
                    prop_assert!(units.count(frees, window) < cap);
                }
            }
            let bytes = postcard::to_stdvec(&units).unwrap();
            prop_assert_eq!(postcard::from_bytes::<Units>(&bytes).unwrap(), units);
        }
    }
}
