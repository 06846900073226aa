//! How often each key was called, for as many keys as were used lately.

use crate::hashed::HashedMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::VecDeque;

/// Up to here keys stand in one list, in the order of their last use: quick to read from a store, and to look through.
const FEW: usize = super::MAX_STORED_KEYS;

/// Exact counts of a bounded number of keys. One key more, and the key that was not used for longest starts from zero.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Calls {
    /// In one list.
    Few(Vec<(u64, u32)>),
    /// In a map, beside the order of their use.
    Many(Box<Many>),
}

/// More keys than are looked through one by one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Many {
    counts: HashedMap<u64, Count>,
    /// Every use in order. Of the entries of one key only the last is true; the others are passed over.
    uses: VecDeque<(u64, u64)>,
    clock: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Count {
    calls: u32,
    last_use: u64,
}

impl Default for Calls {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl Calls {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Few(calls) => calls.len(),
            Self::Many(many) => many.counts.len(),
        }
    }

    pub(super) fn made(&self, key: u64) -> u32 {
        match self {
            Self::Few(calls) => calls.iter().find(|(known, _)| *known == key).map_or(0, |(_, calls)| *calls),
            Self::Many(many) => many.counts.get(&key).map_or(0, |count| count.calls),
        }
    }

    pub(super) fn add(&mut self, key: u64, most: usize) {
        let calls = self.made(key).saturating_add(1);
        self.keep(key, calls, most);
    }

    pub(super) fn refresh(&mut self, key: u64) {
        let calls = self.made(key);
        if calls > 0 {
            self.keep(key, calls, usize::MAX);
        }
    }

    fn keep(&mut self, key: u64, calls: u32, most: usize) {
        match self {
            Self::Few(few) => {
                few.retain(|(known, _)| *known != key);
                while few.len() >= most.max(1) {
                    few.remove(0);
                }
                few.push((key, calls));
                if few.len() > FEW {
                    let mut many = Many::default();
                    for (key, calls) in few.drain(..) {
                        many.keep(key, calls, usize::MAX);
                    }
                    *self = Self::Many(Box::new(many));
                }
            }
            Self::Many(many) => many.keep(key, calls, most),
        }
    }

    /// In the order of their last use.
    fn in_order(&self) -> Vec<(u64, u32)> {
        match self {
            Self::Few(calls) => calls.clone(),
            Self::Many(many) => many
                .uses
                .iter()
                .filter(|(key, used_at)| many.is_last_use(*key, *used_at))
                .map(|(key, _)| (*key, many.counts[key].calls))
                .collect(),
        }
    }
}

impl Many {
    fn keep(&mut self, key: u64, calls: u32, most: usize) {
        self.clock += 1;
        self.counts.insert(key, Count { calls, last_use: self.clock });
        self.uses.push_back((key, self.clock));
        while self.counts.len() > most {
            let Some((oldest, used_at)) = self.uses.pop_front() else { break };
            if self.is_last_use(oldest, used_at) {
                self.counts.remove(&oldest);
            }
        }
        // Passed-over entries are swept out when they are the larger part, so a call costs the same on average.
        if self.uses.len() > 2 * self.counts.len() + 32 {
            let counts = &self.counts;
            self.uses.retain(|(key, used_at)| counts.get(key).is_some_and(|count| count.last_use == *used_at));
        }
    }

    fn is_last_use(&self, key: u64, used_at: u64) -> bool {
        self.counts.get(&key).is_some_and(|count| count.last_use == used_at)
    }
}

impl Serialize for Calls {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Few(calls) => calls.serialize(serializer),
            Self::Many(_) => self.in_order().serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Calls {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(Self::Few)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_that_was_not_used_for_longest_is_forgotten_first() {
        for most in [2, FEW + 2] {
            let mut calls = Calls::default();
            let [a, b, c] = [1_000_000, 1_000_001, 1_000_002];
            for other in 0..most as u64 - 2 {
                calls.add(other, most);
            }
            calls.add(a, most);
            calls.add(b, most);
            for other in 0..most as u64 - 2 {
                calls.refresh(other);
            }
            calls.add(a, most);
            calls.add(c, most);
            assert_eq!([a, b, c].map(|key| calls.made(key)), [2, 0, 1], "{most}");
            for other in 0..most as u64 - 2 {
                calls.refresh(other);
            }
            calls.refresh(a);
            calls.add(b, most);
            assert_eq!([a, b, c].map(|key| calls.made(key)), [2, 1, 0], "being refused is a use");
            let again: Calls = postcard::from_bytes(&postcard::to_stdvec(&calls).unwrap()).unwrap();
            assert_eq!(again.in_order(), calls.in_order());
        }
    }

    #[test]
    fn memory_stays_bounded_however_often_a_key_is_used() {
        let most = FEW + 10;
        let mut calls = Calls::default();
        for number in 0..50_000_u64 {
            calls.add(number % (2 * most as u64), most);
            assert!(calls.len() <= most);
        }
        for _ in 0..1_000 {
            calls.add(u64::MAX, most);
        }
        assert_eq!(calls.made(u64::MAX), 1_000);
        let Calls::Many(many) = calls else { panic!("there are many") };
        assert!(many.uses.len() <= 2 * most + 33);
    }
}
