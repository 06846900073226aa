//! How often each key was called, for as many keys as were used lately.

use std::collections::{HashMap, VecDeque};
use xxhash_rust::xxh3::xxh3_128;

/// A key by its hash: a long key costs no more memory than a short one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key(u128);

impl Key {
    pub(super) fn of(text: &str) -> Self {
        Self(xxh3_128(text.as_bytes()))
    }
}

/// Exact counts of at most `most` keys. One key more, and the key that was not asked about for longest starts from zero.
#[derive(Debug)]
pub(super) struct Calls {
    most: usize,
    counts: HashMap<Key, Count>,
    /// Every use in order. Of the entries of one key only the last is true; the others are passed over.
    uses: VecDeque<(Key, u64)>,
    clock: u64,
}

#[derive(Debug, Clone, Copy)]
struct Count {
    calls: u32,
    last_use: u64,
}

impl Calls {
    pub(super) fn new(most: usize) -> Self {
        Self { most, counts: HashMap::new(), uses: VecDeque::new(), clock: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.counts.len()
    }

    pub(super) fn made(&self, key: Key) -> u32 {
        self.counts.get(&key).map_or(0, |count| count.calls)
    }

    pub(super) fn add(&mut self, key: Key) {
        let calls = self.made(key).saturating_add(1);
        self.keep(key, calls);
    }

    /// A key that is refused again and again must not be forgotten for that: it would be let in anew.
    pub(super) fn refresh(&mut self, key: Key) {
        if let Some(count) = self.counts.get(&key) {
            self.keep(key, count.calls);
        }
    }

    fn keep(&mut self, key: Key, calls: u32) {
        self.clock += 1;
        self.counts.insert(key, Count { calls, last_use: self.clock });
        self.uses.push_back((key, self.clock));
        while self.counts.len() > self.most {
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

    fn is_last_use(&self, key: Key, used_at: u64) -> bool {
        self.counts.get(&key).is_some_and(|count| count.last_use == used_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_that_was_not_used_for_longest_is_forgotten_first() {
        let mut calls = Calls::new(2);
        let [a, b, c] = ["a", "b", "c"].map(Key::of);
        calls.add(a);
        calls.add(b);
        calls.add(a);
        calls.add(c);
        assert_eq!([a, b, c].map(|key| calls.made(key)), [2, 0, 1]);
        calls.refresh(a);
        calls.add(b);
        assert_eq!([a, b, c].map(|key| calls.made(key)), [2, 1, 0], "being refused is a use");
    }

    #[test]
    fn memory_stays_bounded_however_often_a_key_is_used() {
        let mut calls = Calls::new(10);
        for number in 0..10_000_u32 {
            calls.add(Key::of(&(number % 25).to_string()));
            assert!(calls.len() <= 10);
            assert!(calls.uses.len() <= 2 * 10 + 33);
        }
        let one = Key::of("one");
        for _ in 0..1_000 {
            calls.add(one);
        }
        assert_eq!(calls.made(one), 1_000);
        assert!(calls.uses.len() <= 2 * 10 + 33);
    }
}
