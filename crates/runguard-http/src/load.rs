//! How much of the service one caller may have: requests under way, bytes held, requests in a second.
//!
//! A caller is counted twice, by its key and by its tenant: a key that runs wild leaves room for the tenant's others, and a
//! tenant for the other tenants. What goes beyond is refused at once and not queued: a queue that one caller fills is what
//! the others would wait in.

use crate::problem::Problem;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// What one key or one tenant may have. Zero: no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bounds {
    pub in_flight: u64,
    pub bytes: u64,
    pub per_second: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    pub key: Bounds,
    pub tenant: Bounds,
}

/// Who asks, as it is counted.
#[derive(Debug, Clone, Copy)]
pub struct Who<'a> {
    /// Empty: no key is needed.
    pub key: &'a str,
    pub tenant: &'a str,
}

/// Where a caller is counted, as settings call it.
const LEVELS: [&str; 2] = ["key", "tenant"];

/// What every caller has. As many entries as there were keys and tenants since the start.
#[derive(Debug)]
pub struct Loads {
    began: Instant,
    callers: RwLock<HashMap<Box<str>, [Arc<Level>; 2]>>,
    tenants: RwLock<HashMap<Box<str>, Arc<Level>>>,
}

impl Default for Loads {
    fn default() -> Self {
        Self { began: Instant::now(), callers: RwLock::default(), tenants: RwLock::default() }
    }
}

impl Loads {
    /// One more request. It is over when what this gives is dropped.
    pub fn enter(&self, who: Who<'_>, limits: &Limits) -> Result<Share, Problem> {
        let levels = self.levels(who);
        let all_bounds = [limits.key, limits.tenant];
        let mut share = Share { levels: None, bounds: all_bounds, held: 0, of_all: who.key.is_empty() };
        for (position, (level, bounds)) in levels.iter().zip(all_bounds).enumerate() {
            if level.in_flight.fetch_add(1, Ordering::Relaxed) >= bounds.in_flight && bounds.in_flight > 0 {
                for level in &levels[..=position] {
                    level.in_flight.fetch_sub(1, Ordering::Relaxed);
                }
                return Err(Problem::too_much_at_once(format!(
                    "{} requests {} are under way, as many as the service takes from one (`server.max_in_flight_per_{}`). Wait for answers before asking on.",
                    bounds.in_flight,
                    share.whose(position),
                    LEVELS[position],
                )));
            }
        }
        share.levels = Some(levels);
        let is_paced = all_bounds.iter().any(|bounds| bounds.per_second > 0);
        let since = if is_paced { self.began.elapsed() } else { Duration::ZERO };
        for (position, bounds) in all_bounds.into_iter().enumerate() {
            let Some(wait) = share.levels.as_ref().and_then(|levels| levels[position].pace(bounds.per_second, since).err()) else {
                continue;
            };
            return Err(Problem::too_fast(
                format!(
                    "No more than {} requests {} are taken in a second (`server.requests_per_second_per_{}`).",
                    bounds.per_second,
                    share.whose(position),
                    LEVELS[position],
                ),
                wait.as_secs() + u64::from(wait.subsec_nanos() > 0),
            ));
        }
        Ok(share)
    }

    fn levels(&self, who: Who<'_>) -> [Arc<Level>; 2] {
        if let Some(levels) = self.callers.read().unwrap_or_else(PoisonError::into_inner).get(who.key) {
            return levels.clone();
        }
        let tenant = self.tenants.write().unwrap_or_else(PoisonError::into_inner).entry(who.tenant.into()).or_default().clone();
        let mut callers = self.callers.write().unwrap_or_else(PoisonError::into_inner);
        callers.entry(who.key.into()).or_insert_with(|| [Arc::default(), tenant]).clone()
    }
}

#[derive(Debug, Default)]
struct Level {
    in_flight: AtomicU64,
    bytes: AtomicU64,
    /// When the next request would come if all came evenly, in nanoseconds since the start.
    due: AtomicU64,
}

impl Level {
    /// As many as a second allows may come at once; after that, each when it is due. The error is the time until then.
    fn pace(&self, per_second: u64, since: Duration) -> Result<(), Duration> {
        const SECOND: u64 = 1_000_000_000;
        if per_second == 0 {
            return Ok(());
        }
        let step = SECOND / per_second.min(SECOND);
        let now = since.as_nanos() as u64;
        let next = |due: u64| {
            let due = due.max(now);
            (due - now <= SECOND.saturating_sub(step)).then_some(due + step)
        };
        let taken = self.due.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        taken.map(drop).map_err(|due| Duration::from_nanos((due + step).saturating_sub(now + SECOND).max(1)))
    }
}

/// One request's part of what its caller has.
#[derive(Debug)]
pub struct Share {
    levels: Option<[Arc<Level>; 2]>,
    bounds: [Bounds; 2],
    held: u64,
    /// No key is needed, so all callers are one.
    of_all: bool,
}

impl Share {
    /// For a listener that has one caller.
    pub fn unbounded() -> Self {
        Self { levels: None, bounds: [Bounds::default(); 2], held: 0, of_all: true }
    }

    /// So many more bytes of the request are in memory.
    pub fn hold(&mut self, bytes: u64) -> Result<(), Problem> {
        let Some(levels) = &self.levels else { return Ok(()) };
        self.held += bytes;
        for (position, (level, bounds)) in levels.iter().zip(self.bounds).enumerate() {
            let held = level.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
            // A request that is alone is never too large for the bound: its route has a limit of its own.
            if bounds.bytes > 0 && held > bounds.bytes && held > self.held {
                // Added everywhere before the share goes, which takes it away everywhere.
                if position == 0 {
                    levels[1].bytes.fetch_add(bytes, Ordering::Relaxed);
                }
                return Err(Problem::too_much_at_once(format!(
                    "The requests {} that are under way hold {} bytes, as many as the service takes from one (`server.max_bytes_in_flight_per_{}`). Wait for answers before asking on, or send hashes instead of long texts.",
                    self.whose(position),
                    bounds.bytes,
                    LEVELS[position],
                )));
            }
        }
        Ok(())
    }
}

impl Share {
    /// Whose requests are counted there, in words.
    fn whose(&self, position: usize) -> String {
        if self.of_all { "of all callers without a key".to_owned() } else { format!("of this {}", LEVELS[position]) }
    }

    /// The bytes that it holds, to be given back by themselves: a request may be under way for longer than its body is in memory.
    pub fn take_bytes(&mut self) -> HeldBytes {
        HeldBytes { levels: self.levels.clone(), held: std::mem::take(&mut self.held) }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        drop(self.take_bytes());
        for level in self.levels.iter().flatten() {
            level.in_flight.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// What a request holds in memory. It is given back when this is dropped.
#[derive(Debug)]
pub struct HeldBytes {
    levels: Option<[Arc<Level>; 2]>,
    held: u64,
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        for level in self.levels.iter().flatten() {
            level.bytes.fetch_sub(self.held, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WHO: Who<'_> = Who { key: "k", tenant: "t" };

    fn limits(in_flight: u64, bytes: u64) -> Limits {
        let bounds = Bounds { in_flight, bytes, per_second: 0 };
        Limits { key: bounds, tenant: Bounds { in_flight: in_flight * 2, bytes: bytes * 2, per_second: 0 } }
    }

    #[test]
    fn a_key_has_its_bound_and_a_tenant_its_own() {
        let (loads, limits) = (Loads::default(), limits(2, 0));
        let other = Who { key: "l", tenant: "t" };
        let third = Who { key: "m", tenant: "t" };
        let held: Vec<Share> = [WHO, WHO, other, other].map(|who| loads.enter(who, &limits).unwrap()).into();
        assert!(loads.enter(WHO, &limits).is_err() && loads.enter(third, &limits).is_err());
        assert!(loads.enter(Who { key: "x", tenant: "another" }, &limits).is_ok());
        drop(held);
        assert!(loads.enter(WHO, &limits).is_ok() && loads.enter(third, &limits).is_ok());
    }

    #[test]
    fn a_request_may_be_under_way_without_its_bytes() {
        let (loads, limits) = (Loads::default(), limits(2, 100));
        let mut first = loads.enter(WHO, &limits).unwrap();
        first.hold(80).unwrap();
        let bytes = first.take_bytes();
        let mut second = loads.enter(WHO, &limits).unwrap();
        assert!(second.hold(30).is_err(), "they are held by whoever took them");
        drop((bytes, second));
        let mut second = loads.enter(WHO, &limits).unwrap();
        second.hold(90).unwrap();
        assert!(loads.enter(WHO, &limits).is_err(), "the first is still under way");
        drop(first);
        assert!(loads.enter(WHO, &limits).is_ok());
    }

    #[test]
    fn bytes_are_given_back_and_one_large_request_alone_passes() {
        let (loads, limits) = (Loads::default(), limits(0, 100));
        for (who, said) in [(WHO, "of this key"), (Who { key: "", tenant: "u" }, "of all callers without a key")] {
            let mut large = loads.enter(who, &limits).unwrap();
            large.hold(150).unwrap();
            let problem = loads.enter(who, &limits).unwrap().hold(1).unwrap_err();
            assert!(format!("{problem:?}").contains(said), "{problem:?}");
        }
        let mut large = loads.enter(WHO, &limits).unwrap();
        large.hold(150).unwrap();
        let mut second = loads.enter(WHO, &limits).unwrap();
        assert!(second.hold(1).is_err());
        drop((large, second));
        loads.enter(WHO, &limits).unwrap().hold(100).unwrap();
    }

    #[test]
    fn a_second_holds_as_many_as_it_may_and_says_when_the_next_is_due() {
        let level = Level::default();
        let at = Duration::from_millis;
        assert_eq!((0..20).filter(|_| level.pace(10, at(0)).is_ok()).count(), 10);
        let wait = level.pace(10, at(0)).unwrap_err();
        assert_eq!(wait, at(100));
        assert!(level.pace(10, wait.saturating_sub(Duration::from_nanos(1))).is_err());
        assert!(level.pace(10, wait).is_ok() && level.pace(10, wait).is_err());
        assert_eq!((0..20).filter(|_| level.pace(10, at(5000)).is_ok()).count(), 10);
    }

    proptest! {
        #[test]
        fn nothing_is_left_of_requests_that_are_over(sizes in proptest::collection::vec((0..3_usize, 0..80_u64), 0..40)) {
            let (loads, limits) = (Loads::default(), limits(3, 100));
            let mut held: Vec<Share> = Vec::new();
            for (keep, bytes) in sizes {
                if let Ok(mut share) = loads.enter(WHO, &limits) && share.hold(bytes).is_ok() {
                    held.push(share);
                }
                held.truncate(keep);
            }
            drop(held);
            for level in loads.levels(WHO) {
                prop_assert_eq!(level.in_flight.load(Ordering::Relaxed), 0);
                prop_assert_eq!(level.bytes.load(Ordering::Relaxed), 0);
            }
        }

        #[test]
        fn no_second_sees_more_than_twice_the_rate(per_second in 1..50_u64, gaps in proptest::collection::vec(0..200_u64, 1..400)) {
            let level = Level::default();
            let mut now = 0;
            let mut passed: Vec<u64> = Vec::new();
            for gap in gaps {
                now += gap;
                if level.pace(per_second, Duration::from_millis(now)).is_ok() {
                    passed.push(now);
                }
                let recent = passed.iter().filter(|at| now - **at < 1000).count() as u64;
                prop_assert!(recent <= per_second * 2, "{recent} in a second");
            }
        }
    }
}
