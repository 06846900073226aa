//! Brings answers back to the threads that wait for them.
//!
//! Waking a task of another thread costs a system call each time. So the writer hands all answers for one thread to a
//! task of that thread, with one wake-up for the batch, and that task wakes the others at home, where it is nearly free.

use std::cell::RefCell;
use std::sync::{PoisonError, RwLock};
use tokio::sync::{mpsc, oneshot};

/// An answer on its way: who waits for it, and what it says.
type Sending<T> = (oneshot::Sender<T>, T);
type Batch<T> = Vec<Sending<T>>;

/// Where one thread gets its answers. Its place is taken over, once it has ended, by the next thread that needs one: whose it is then
/// shows in the number, so that a thread which comes back with another runtime does not take a stranger's for its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MailboxId {
    place: usize,
    number: u64,
}

/// What a thread remembers of its own.
pub(crate) type Known<T> = RefCell<Option<(MailboxId, mpsc::UnboundedSender<Batch<T>>)>>;

#[derive(Debug)]
struct Inbox<T> {
    number: u64,
    sender: mpsc::UnboundedSender<Batch<T>>,
}

/// One for each type of answer, for the whole process: threads serve any store.
#[derive(Debug)]
pub(crate) struct Mailboxes<T>(RwLock<Vec<Inbox<T>>>);

impl<T: Send + 'static> Mailboxes<T> {
    pub(crate) const fn new() -> Self {
        Self(RwLock::new(Vec::new()))
    }

    /// The one of the thread that asks, if it runs a runtime. `known` remembers it.
    pub(crate) fn of_this_thread(&self, known: &Known<T>) -> Option<MailboxId> {
        // A place is taken over only once it is closed: as long as it is open it is this thread's, and nobody is asked.
        if let Some((mailbox, sender)) = &*known.borrow()
            && !sender.is_closed()
        {
            return Some(*mailbox);
        }
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        let (sender, mut arriving) = mpsc::unbounded_channel::<Batch<T>>();
        runtime.spawn(async move {
            while let Some(batch) = arriving.recv().await {
                deliver(batch);
            }
        });
        let mut inboxes = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let number = inboxes.iter().map(|inbox| inbox.number).max().unwrap_or(0) + 1;
        let inbox = Inbox { number, sender: sender.clone() };
        let place = if let Some(ended) = inboxes.iter().position(|inbox| inbox.sender.is_closed()) {
            inboxes[ended] = inbox;
            ended
        } else {
            inboxes.push(inbox);
            inboxes.len() - 1
        };
        let mailbox = MailboxId { place, number };
        *known.borrow_mut() = Some((mailbox, sender));
        Some(mailbox)
    }

    /// Sends every answer to its thread.
    pub(crate) fn send(&self, answers: impl Iterator<Item = (Option<MailboxId>, Sending<T>)>) {
        let inboxes = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let share = answers.size_hint().0.div_ceil(inboxes.len().max(1));
        let mut batches: Vec<Batch<T>> = inboxes.iter().map(|_| Batch::with_capacity(share)).collect();
        for (mailbox, sending) in answers {
            match mailbox
                .filter(|mailbox| inboxes.get(mailbox.place).is_some_and(|inbox| inbox.belongs_to(*mailbox)))
                .and_then(|mailbox| batches.get_mut(mailbox.place))
            {
                Some(batch) => batch.push(sending),
                None => deliver(vec![sending]),
            }
        }
        for (inbox, batch) in inboxes.iter().zip(batches).filter(|(_, batch)| !batch.is_empty()) {
            if let Err(refused) = inbox.sender.send(batch) {
                deliver(refused.0);
            }
        }
    }
}

impl<T> Inbox<T> {
    fn belongs_to(&self, mailbox: MailboxId) -> bool {
        self.number == mailbox.number && !self.sender.is_closed()
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
    fn a_thread_that_comes_back_with_another_runtime_has_another_mailbox() {
        let mailboxes: Mailboxes<u32> = Mailboxes::new();
        let known = RefCell::new(None);
        let first = runtime();
        let mailbox = first.block_on(async { mailboxes.of_this_thread(&known) });
        assert_eq!(first.block_on(async { mailboxes.of_this_thread(&known) }), mailbox, "the same runtime, the same inbox");
        drop(first);

        // Another thread takes the place over.
        let other = runtime();
        let others = other.block_on(async { mailboxes.of_this_thread(&RefCell::new(None)) });
        assert_eq!(others.map(|mailbox| mailbox.place), mailbox.map(|mailbox| mailbox.place));

        let second = runtime();
        let own = second.block_on(async { mailboxes.of_this_thread(&known) });
        assert!(own.is_some() && own != mailbox && own != others);

        // What is still under inbox to the first is delivered at once, not through the other's runtime.
        let (sender, mut waiting) = oneshot::channel();
        mailboxes.send(std::iter::once((mailbox, (sender, 7))));
        drop(other);
        assert_eq!(waiting.try_recv(), Ok(7));
    }
}
