//! How many sessions there were, without their names and in bounded memory.
//!
//! Every session has a number that its store draws for its name. The smallest numbers are kept: as long as there are few, they are
//! counted; beyond the bound, how densely they lie tells how many there are (a theta sketch). Two of these added up are what one would
//! have been of both, in any order, so hours become weeks; and a session can be taken out again, by its number.

use serde::{Deserialize, Serialize};

/// What a session was seen to do; marks of one session are put together.
pub(super) const LOW: u64 = 1;
pub(super) const GOOD: u64 = 2;
const MARKS: u64 = LOW | GOOD;

/// A number with its marks in the last two bits. Its bytes are kept as they are, so that a file can be searched for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct MarkedNumber([u8; 8]);

impl MarkedNumber {
    fn of(number: u64, marks: u64) -> Self {
        Self((number & !MARKS | marks & MARKS).to_be_bytes())
    }

    fn number(self) -> u64 {
        u64::from_be_bytes(self.0) & !MARKS
    }

    fn marks(self) -> u64 {
        u64::from_be_bytes(self.0) & MARKS
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Sessions {
    /// Numbers that are kept.
    most: u16,
    /// Numbers from here on are left out.
    beyond: Option<u64>,
    /// By number, each once.
    seen: Vec<MarkedNumber>,
}

impl Sessions {
    /// What of a number stands in a file wherever the session is kept, whatever its marks.
    pub fn trace(number: u64) -> [u8; 7] {
        let [first @ .., _] = number.to_be_bytes();
        first
    }

    pub(crate) fn see(&mut self, number: u64, marks: u64, most: u16) {
        self.most = self.most.max(most);
        self.put(MarkedNumber::of(number, marks));
        self.trim();
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.most = self.most.max(other.most);
        self.beyond = match (self.beyond, other.beyond) {
            (Some(mine), Some(others)) => Some(mine.min(others)),
            (one, another) => one.or(another),
        };
        if let Some(beyond) = self.beyond {
            self.seen.retain(|seen| seen.number() < beyond);
        }
        for seen in &other.seen {
            self.put(*seen);
        }
        self.trim();
    }

    fn put(&mut self, seen: MarkedNumber) {
        if self.beyond.is_some_and(|beyond| seen.number() >= beyond) {
            return;
        }
        match self.seen.binary_search_by_key(&seen.number(), |known| known.number()) {
            Ok(at) => self.seen[at] = MarkedNumber::of(seen.number(), self.seen[at].marks() | seen.marks()),
            Err(at) => self.seen.insert(at, seen),
        }
    }

    fn trim(&mut self) {
        if let Some(first_left_out) = self.seen.get(usize::from(self.most)) {
            self.beyond = Some(first_left_out.number());
            self.seen.truncate(usize::from(self.most));
        }
    }

    /// Whether it was there.
    pub(crate) fn forget(&mut self, number: u64) -> bool {
        let found = self.seen.binary_search_by_key(&(number & !MARKS), |known| known.number());
        found.map(|at| self.seen.remove(at)).is_ok()
    }

    pub(crate) fn count(&self) -> u64 {
        self.count_of(|_| true)
    }

    /// Those with marks like these: exactly as long as all are kept.
    pub(crate) fn count_of(&self, wanted: impl Fn(u64) -> bool) -> u64 {
        let kept = self.seen.iter().filter(|seen| wanted(seen.marks())).count() as u64;
        match self.beyond {
            None => kept,
            Some(beyond) => (kept as f64 * (u64::MAX as f64 / beyond.max(1) as f64)).round() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use xxhash_rust::xxh3::xxh3_64;

    const MOST: u16 = 16;

    fn of(numbers: impl IntoIterator<Item = (u64, u64)>) -> Sessions {
        let mut sessions = Sessions::default();
        for (number, marks) in numbers {
            sessions.see(xxh3_64(&number.to_le_bytes()), marks, MOST);
        }
        sessions
    }

    #[test]
    fn few_are_counted_and_many_are_told_within_a_tenth() {
        let few = of((0..16).chain(0..16).map(|number| (number, if number < 4 { LOW } else { GOOD })));
        assert_eq!((few.count(), few.count_of(|marks| marks & LOW > 0)), (16, 4));
        let mut many = Sessions::default();
        for number in 0..100_000_u64 {
            many.see(xxh3_64(&number.to_le_bytes()), if number % 5 == 0 { LOW } else { 0 }, 2048);
        }
        let (all, low) = (many.count(), many.count_of(|marks| marks == LOW));
        assert!((90_000..110_000).contains(&all) && (18_000..22_000).contains(&low), "{all} {low}");
        assert_eq!(many.seen.len(), 2048);
    }

    #[test]
    fn a_session_is_taken_out_with_its_marks_and_its_bytes_are_found_before() {
        let number = xxh3_64(b"gone");
        let mut sessions = of([(1, LOW), (2, 0)]);
        sessions.see(number, LOW | GOOD, MOST);
        let has = |sessions: &Sessions| {
            let bytes = postcard::to_stdvec(sessions).unwrap();
            bytes.windows(7).any(|part| part == Sessions::trace(number))
        };
        assert!(has(&sessions));
        assert!(sessions.forget(number) && !sessions.forget(number));
        assert!(!has(&sessions));
        assert_eq!(sessions.count(), 2);
    }

    proptest! {
        #[test]
        fn added_up_in_any_order_it_is_what_one_would_have_been(
            drawn in prop::collection::vec((0_u64..200, 0_u64..4, 0_usize..4), 0..300),
            order in Just((0_usize..4).collect::<Vec<_>>()).prop_shuffle(),
        ) {
            let pieces: Vec<Sessions> = (0..4).map(|piece| of(drawn.iter().filter(|(_, _, of)| *of == piece).map(|(number, marks, _)| (*number, *marks)))).collect();
            let mut sum = Sessions::default();
            for piece in order {
                sum.add(&pieces[piece]);
            }
            prop_assert_eq!(sum, of(drawn.iter().map(|(number, marks, _)| (*number, *marks))));
        }
    }
}
