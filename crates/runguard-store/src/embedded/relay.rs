//! Brings answers back to the threads that wait for them.
//!
//! Waking a task of another thread costs a system call each time. So the writer hands all answers for one thread to a
//! task of that thread, with one wake-up for the batch, and that task wakes the others at home, where it is nearly free.

use std::cell::Cell;
use std::sync::{PoisonError, RwLock};
use tokio::sync::{mpsc, oneshot};

/// An answer on its way: who waits for it, and what it says.
type Sending<T> = (oneshot::Sender<T>, T);
type Batch<T> = Vec<Sending<T>>;

/// The way home to one thread. Its place is taken over, once it has ended, by the next thread that needs one: whose it is then
/// shows in the number, so that a thread which comes back with another runtime does not take a stranger's way for its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Home {
    place: usize,
    number: u64,
}

#[derive(Debug)]
struct Way<T> {
    number: u64,
    sender: mpsc::UnboundedSender<Batch<T>>,
}

/// One for each type of answer, for the whole process: threads serve any store.
#[derive(Debug)]
pub(crate) struct Relays<T>(RwLock<Vec<Way<T>>>);

impl<T: Send + 'static> Relays<T> {
    pub(crate) const fn new() -> Self {
        Self(RwLock::new(Vec::new()))
    }

    /// The way home to the thread that asks, if it runs a runtime. `known` remembers it.
    pub(crate) fn home(&self, known: &Cell<Option<Home>>) -> Option<Home> {
        if let Some(home) = known.get()
            && self.0.read().unwrap_or_else(PoisonError::into_inner).get(home.place).is_some_and(|way| way.leads(home))
        {
            return Some(home);
        }
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        let (sender, mut arriving) = mpsc::unbounded_channel::<Batch<T>>();
        runtime.spawn(async move {
            while let Some(batch) = arriving.recv().await {
                deliver(batch);
            }
        });
        let mut ways = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let number = ways.iter().map(|way| way.number).max().unwrap_or(0) + 1;
        let way = Way { number, sender };
        let place = if let Some(ended) = ways.iter().position(|way| way.sender.is_closed()) {
            ways[ended] = way;
            ended
        } else {
            ways.push(way);
            ways.len() - 1
        };
        let home = Home { place, number };
        known.set(Some(home));
        Some(home)
    }

    /// Sends every answer home.
    pub(crate) fn send(&self, answers: impl Iterator<Item = (Option<Home>, Sending<T>)>) {
        let ways = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut batches: Vec<Batch<T>> = ways.iter().map(|_| Batch::new()).collect();
        for (home, sending) in answers {
            match home.filter(|home| ways.get(home.place).is_some_and(|way| way.leads(*home))).and_then(|home| batches.get_mut(home.place))
            {
                Some(batch) => batch.push(sending),
                None => deliver(vec![sending]),
            }
        }
        for (way, batch) in ways.iter().zip(batches).filter(|(_, batch)| !batch.is_empty()) {
            if let Err(refused) = way.sender.send(batch) {
                deliver(refused.0);
            }
        }
    }
}

impl<T> Way<T> {
    fn leads(&self, home: Home) -> bool {
        self.number == home.number && !self.sender.is_closed()
    }
}

fn deliver<T>(batch: Batch<T>) {
    for (waiting, answer) in batch {
        // A caller that has gone away does not want to know.
        let _ = waiting.send(answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().build().unwrap()
    }

    #[test]
    fn a_thread_that_comes_back_with_another_runtime_has_another_way_home() {
        let relays: Relays<u32> = Relays::new();
        let known = Cell::new(None);
        let first = runtime();
        let home = first.block_on(async { relays.home(&known) });
        assert_eq!(first.block_on(async { relays.home(&known) }), home, "the same runtime, the same way");
        drop(first);

        // Another thread takes the place over.
        let other = runtime();
        let others = other.block_on(async { relays.home(&Cell::new(None)) });
        assert_eq!(others.map(|home| home.place), home.map(|home| home.place));

        let second = runtime();
        let own = second.block_on(async { relays.home(&known) });
        assert!(own.is_some() && own != home && own != others);

        // What is still under way to the first is delivered at once, not through the other's runtime.
        let (sender, mut waiting) = oneshot::channel();
        relays.send(std::iter::once((home, (sender, 7))));
        drop(other);
        assert_eq!(waiting.try_recv(), Ok(7));
    }
}
