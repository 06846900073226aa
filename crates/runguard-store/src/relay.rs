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

/// The way home to one thread. A way that has ended is taken over by the next thread that needs one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Home(usize);

/// One for each type of answer, for the whole process: threads serve any store.
#[derive(Debug)]
pub(crate) struct Relays<T>(RwLock<Vec<mpsc::UnboundedSender<Batch<T>>>>);

impl<T: Send + 'static> Relays<T> {
    pub(crate) const fn new() -> Self {
        Self(RwLock::new(Vec::new()))
    }

    /// The way home to the thread that asks, if it runs a runtime. `known` remembers it.
    pub(crate) fn home(&self, known: &Cell<Option<Home>>) -> Option<Home> {
        if let Some(home) = known.get()
            && self.0.read().unwrap_or_else(PoisonError::into_inner).get(home.0).is_some_and(|way| !way.is_closed())
        {
            return Some(home);
        }
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        let (way, mut arriving) = mpsc::unbounded_channel::<Batch<T>>();
        runtime.spawn(async move {
            while let Some(batch) = arriving.recv().await {
                deliver(batch);
            }
        });
        let mut ways = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let home = if let Some(ended) = ways.iter().position(mpsc::UnboundedSender::is_closed) {
            ways[ended] = way;
            Home(ended)
        } else {
            ways.push(way);
            Home(ways.len() - 1)
        };
        known.set(Some(home));
        Some(home)
    }

    /// Sends every answer home.
    pub(crate) fn send(&self, answers: impl Iterator<Item = (Option<Home>, Sending<T>)>) {
        let ways = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut batches: Vec<Batch<T>> = ways.iter().map(|_| Batch::new()).collect();
        for (home, sending) in answers {
            match home.and_then(|home| batches.get_mut(home.0)) {
                Some(batch) => batch.push(sending),
                None => deliver(vec![sending]),
            }
        }
        for (way, batch) in ways.iter().zip(batches).filter(|(_, batch)| !batch.is_empty()) {
            if let Err(refused) = way.send(batch) {
                deliver(refused.0);
            }
        }
    }
}

fn deliver<T>(batch: Batch<T>) {
    for (waiting, answer) in batch {
        // A caller that has gone away does not want to know.
        let _ = waiting.send(answer);
    }
}
