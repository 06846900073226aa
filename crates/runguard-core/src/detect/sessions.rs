//! Many small histories, one a session, in bounded memory.
//!
//! A session that has been silent for long leaves by itself: each new session looks at two of the old ones and takes
//! over the place of one that has expired. So no call ever waits for a sweep, and a place is used again without asking
//! for memory.

use crate::hashed::HashedMap;
use crate::time::{Span, Timestamp};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Old places looked at for every new session. Two, so that a full turn is made while the number of sessions doubles.
const LOOKED_AT: usize = 2;
/// Places among which the longest silent one gives way when there is no room left.
const CANDIDATES: usize = 8;

/// What a session is known by: 64 bits of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionKey(u64);

impl SessionKey {
    /// The key of a session with this name.
    pub fn of(session: &str) -> Self {
        Self::within(session, 0)
    }

    /// One thing of a session, known by the hash of its name.
    pub fn within(session: &str, thing: u64) -> Self {
        Self(xxh3_64_with_seed(session.as_bytes(), thing))
    }
}

#[derive(Debug, Clone)]
struct OneSession<T> {
    key: SessionKey,
    seen: Timestamp,
    history: T,
}

/// Histories by session.
#[derive(Debug, Clone)]
pub struct Sessions<T> {
    places: Vec<OneSession<T>>,
    known: HashedMap<SessionKey, u32>,
    /// The next place to be looked at.
    hand: usize,
    expire: Span,
    most: usize,
}

impl<T> Sessions<T> {
    /// Sessions silent for `expire` are forgotten; at `most` sessions the longest silent one gives way to a new one.
    pub fn new(expire: Span, most: usize) -> Self {
        Self { places: Vec::new(), known: HashedMap::default(), hand: 0, expire, most: most.clamp(1, u32::MAX as usize) }
    }

    /// How many sessions are remembered.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// What is remembered of a session, unless it is too old.
    pub fn get(&self, key: SessionKey, now: Timestamp) -> Option<&T> {
        let place = &self.places[*self.known.get(&key)? as usize];
        now.still_counts(place.seen, self.expire).then_some(&place.history)
    }

    /// The history of a session, begun with `begin`; or `renew`ed when it has been silent for too long.
    pub fn enter(&mut self, key: SessionKey, now: Timestamp, begin: impl FnOnce() -> T, renew: impl FnOnce(&mut T)) -> &mut T {
        let at = if let Some(at) = self.known.get(&key) {
            let at = *at as usize;
            if !now.still_counts(self.places[at].seen, self.expire) {
                renew(&mut self.places[at].history);
            }
            at
        } else {
            self.place_for(key, now, begin, renew)
        };
        let place = &mut self.places[at];
        place.seen = place.seen.max(now);
        &mut place.history
    }

    /// Forgets one session.
    pub fn forget(&mut self, key: SessionKey) {
        let Some(at) = self.known.remove(&key) else { return };
        self.places.swap_remove(at as usize);
        if let Some(moved) = self.places.get(at as usize) {
            self.known.insert(moved.key, at);
        }
    }

    /// Forgets all of them.
    pub fn clear(&mut self) {
        self.places.clear();
        self.known.clear();
    }

    fn place_for(&mut self, key: SessionKey, now: Timestamp, begin: impl FnOnce() -> T, renew: impl FnOnce(&mut T)) -> usize {
        let at = if let Some(at) = self.free_place(now) {
            self.known.remove(&self.places[at].key);
            self.places[at].key = key;
            self.places[at].seen = now;
            renew(&mut self.places[at].history);
            at
        } else {
            self.places.push(OneSession { key, seen: now, history: begin() });
            self.places.len() - 1
        };
        self.known.insert(key, at as u32);
        at
    }

    /// A place whose session has expired, or must give way.
    fn free_place(&mut self, now: Timestamp) -> Option<usize> {
        let full = self.places.len() >= self.most;
        let looked_at = if full { CANDIDATES } else { LOOKED_AT }.min(self.places.len());
        let mut oldest: Option<usize> = None;
        for _ in 0..looked_at {
            self.hand = if self.hand + 1 < self.places.len() { self.hand + 1 } else { 0 };
            if !now.still_counts(self.places[self.hand].seen, self.expire) {
                return Some(self.hand);
            }
            if oldest.is_none_or(|oldest| self.places[self.hand].seen < self.places[oldest].seen) {
                oldest = Some(self.hand);
            }
        }
        if full { oldest } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    fn count(sessions: &mut Sessions<u32>, name: &str, now: Timestamp) -> u32 {
        let count = sessions.enter(SessionKey::of(name), now, || 0, |count| *count = 0);
        *count += 1;
        *count
    }

    #[test]
    fn a_silent_session_begins_anew_and_its_place_is_used_again() {
        let mut sessions = Sessions::new(Span::from_seconds(60), 1000);
        assert_eq!((1..=3).map(|second| count(&mut sessions, "a", at(second))).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(count(&mut sessions, "a", at(62)), 4);
        assert_eq!(sessions.get(SessionKey::of("a"), at(122)), None);
        assert_eq!(count(&mut sessions, "a", at(122)), 1);
        for number in 0..100 {
            count(&mut sessions, &format!("s{number}"), at(200 + 100 * number));
        }
        assert!(sessions.len() <= 2, "{} sessions are kept", sessions.len());
    }

    #[test]
    fn at_the_bound_old_sessions_give_way() {
        let mut sessions = Sessions::new(Span::from_seconds(3600), 100);
        for number in 0..1000 {
            count(&mut sessions, &format!("s{number}"), at(number));
        }
        assert_eq!(sessions.len(), 100);
        assert_eq!(count(&mut sessions, "s999", at(1000)), 2);
    }

    #[test]
    fn forgetting_one_keeps_the_others() {
        let mut sessions = Sessions::new(Span::from_seconds(60), 100);
        for name in ["a", "b", "c"] {
            count(&mut sessions, name, at(1));
        }
        sessions.forget(SessionKey::of("a"));
        sessions.forget(SessionKey::of("unknown"));
        assert_eq!((count(&mut sessions, "a", at(2)), count(&mut sessions, "b", at(2)), count(&mut sessions, "c", at(2))), (1, 2, 2));
    }
}
