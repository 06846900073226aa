//! Who is connected and does nothing, so that there is a place for whoever wants something.
//!
//! Connections are cheap to open and to leave lying about. When all places are taken, the connection that has been idle for
//! longest is closed: clients expect that of one that is kept alive, and ten thousand that never say a word keep nobody out.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::AbortHandle;

/// Whoever asked within this time may ask again at any moment.
const REGULAR: Duration = Duration::from_secs(2);
/// Whoever has just come is given a moment to ask.
const GRACE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Crowd {
    began: Instant,
    members: Mutex<HashMap<u64, Arc<Member>>>,
    next: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct Member {
    number: u64,
    began: Instant,
    /// Requests under way.
    asking: AtomicUsize,
    /// Since when it does nothing, if it does nothing: milliseconds since the start.
    idle_since: AtomicU64,
    has_asked: AtomicBool,
    task: OnceLock<AbortHandle>,
}

impl Member {
    /// The task to end when its place is needed.
    pub(crate) fn served_by(&self, task: AbortHandle) {
        let _ = self.task.set(task);
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// It asks until what this gives is dropped. Whoever asks for nothing but the health of the service is as idle as before: health
    /// checks have places of their own.
    pub(crate) fn asks(self: &Arc<Self>, is_health: bool) -> Asking {
        self.asking.fetch_add(1, Ordering::Relaxed);
        Asking { member: self.clone(), is_health }
    }
}

#[derive(Debug)]
pub(crate) struct Asking {
    member: Arc<Member>,
    is_health: bool,
}

impl Drop for Asking {
    fn drop(&mut self) {
        if !self.is_health {
            self.member.has_asked.store(true, Ordering::Relaxed);
            self.member.idle_since.store(self.member.now(), Ordering::Relaxed);
        }
        self.member.asking.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Crowd {
    pub(crate) fn new() -> Self {
        Self { began: Instant::now(), members: Mutex::default(), next: AtomicU64::new(0) }
    }

    pub(crate) fn join(&self) -> Arc<Member> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let idle_since = AtomicU64::new(self.began.elapsed().as_millis() as u64);
        let member = Arc::new(Member {
            number,
            began: self.began,
            asking: AtomicUsize::new(0),
            idle_since,
            has_asked: AtomicBool::new(false),
            task: OnceLock::new(),
        });
        self.members.lock().unwrap_or_else(PoisonError::into_inner).insert(number, member.clone());
        member
    }

    pub(crate) fn leave(&self, member: &Member) {
        self.members.lock().unwrap_or_else(PoisonError::into_inner).remove(&member.number);
    }

    /// Whether any connection asked for something in the last seconds, and may be about to ask again.
    pub(crate) fn has_regulars(&self) -> bool {
        let members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        let since = (self.began.elapsed().saturating_sub(REGULAR)).as_millis() as u64;
        let is_regular =
            |member: &Arc<Member>| member.has_asked.load(Ordering::Relaxed) && member.idle_since.load(Ordering::Relaxed) >= since;
        members.values().any(is_regular)
    }

    /// Closes the connections that have been idle for longest, up to so many.
    pub(crate) fn make_place(&self, most: usize) {
        let members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        let idle_since = |member: &&Arc<Member>| member.idle_since.load(Ordering::Relaxed);
        let latest = (self.began.elapsed().saturating_sub(GRACE)).as_millis() as u64;
        let is_idle = |member: &&Arc<Member>| member.asking.load(Ordering::Relaxed) == 0 && idle_since(member) <= latest;
        let mut idle: Vec<&Arc<Member>> = members.values().filter(is_idle).collect();
        if idle.len() > most {
            idle.select_nth_unstable_by_key(most, idle_since);
            idle.truncate(most);
        }
        for task in idle.iter().filter_map(|member| member.task.get()) {
            tracing::debug!("an idle connection is closed: its place is needed");
            task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_idlest_goes_and_nobody_who_asks() {
        let crowd = Crowd { began: Instant::now().checked_sub(Duration::from_secs(60)).unwrap(), ..Crowd::new() };
        let members = [crowd.join(), crowd.join(), crowd.join()];
        let tasks: Vec<_> = members.iter().map(|_| tokio::spawn(std::future::pending::<()>())).collect();
        for (member, task) in members.iter().zip(&tasks) {
            member.served_by(task.abort_handle());
        }
        let _asking = members[0].asks(false);
        crowd.make_place(1);
        assert!(!tasks.iter().any(tokio::task::JoinHandle::is_finished), "all have just come");
        for member in &members {
            member.idle_since.store(0, Ordering::Relaxed);
        }
        drop(members[1].asks(false));
        drop(members[2].asks(true));
        crowd.make_place(1);
        let mut tasks = tasks.into_iter();
        let (asking, recent, idle) = (tasks.next().unwrap(), tasks.next().unwrap(), tasks.next().unwrap());
        assert!(idle.await.unwrap_err().is_cancelled());
        assert!(!asking.is_finished() && !recent.is_finished());
    }
}
