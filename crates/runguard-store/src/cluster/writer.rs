//! Sends proposals to the shared database: everything that gathered while the last call was under way, in one call.
//!
//! A call that breaks in the middle may have been carried out. It is sent again as it is: tokens are unique, so it is done once at
//! most. When the answer then is that another was faster, the stream says whether ours was first.

use crate::cluster::Inner;
use crate::cluster::cells::{Combined, Proposal, ProposalResult, SwapReply, combine, number_of};
use crate::cluster::entry;
use crate::cluster::link::{EntryId, LinkError, Swap, Swapped, Value};
use crate::cluster::log::Positions;
use crate::cluster::recovery;
use crate::embedded::mailbox::{Known, Mailboxes};
use hashbrown::HashMap;
use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Proposals in one call. Beyond it the rest waits for the next, so that no answer waits for thousands of others.
const MAX_BATCH: usize = 1024;
/// Rows sent that are not known to be in the log, kept in case the database is emptied: about 100 MB.
const MOST_UNCONFIRMED: usize = 100_000;
/// Decisions remembered that were given up. What became of one is asked when its node brings home what it decided instead.
const MOST_DOUBTED: usize = 100_000;
/// Entries looked at for a proposal whose result is not known.
const LOOK_FOR: usize = 10_000;
/// The gate is shut for longer only when states are built.
const GATE: Duration = Duration::from_millis(50);
/// A clock reading may be off by so much.
const MARGIN_MILLIS: u64 = 2_000;

static MAILBOXES: Mailboxes<ProposalResult> = Mailboxes::new();
thread_local! {
    static MAILBOX: Known<ProposalResult> = const { RefCell::new(None) };
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: Mutex<(Vec<Proposal>, Ended)>,
    woken: Notify,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Ended {
    #[default]
    No,
    Yes,
}

impl Queue {
    /// Called with the cells of the proposal locked.
    pub(crate) fn push(&self, mut proposal: Proposal) {
        proposal.mailbox = MAILBOX.with(|known| MAILBOXES.of_this_thread(known));
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.1 == Ended::Yes {
            // Dropped: whoever waits is told that the store is stopping.
            return;
        }
        waiting.0.push(proposal);
        let first = waiting.0.len() == 1;
        drop(waiting);
        if first {
            self.woken.notify_one();
        }
    }

    /// Nothing is taken any more; what waits is still sent.
    pub(crate) fn end(&self) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).1 = Ended::Yes;
        self.woken.notify_one();
    }

    async fn next(&self) -> Option<Vec<Proposal>> {
        loop {
            {
                let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                if !waiting.0.is_empty() {
                    if waiting.0.len() > MAX_BATCH {
                        let rest = waiting.0.split_off(MAX_BATCH);
                        // A permit for the rest, in case nobody else comes.
                        self.woken.notify_one();
                        return Some(std::mem::replace(&mut waiting.0, rest));
                    }
                    return Some(std::mem::take(&mut waiting.0));
                }
                if waiting.1 == Ended::Yes {
                    return None;
                }
            }
            self.woken.notified().await;
        }
    }
}

/// An entry that was sent and may not be in the log yet.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub(crate) partition: u16,
    /// It was in its stream at this time at the latest.
    pub(crate) at_millis: u64,
    pub(crate) answered: Instant,
    pub(crate) entry: Vec<u8>,
}

/// How far the log has read.
#[derive(Debug)]
pub(crate) struct Progress {
    pub(crate) positions: Positions,
    /// It has all that was in the streams at this time.
    pub(crate) has_all_before: Option<Instant>,
}

#[derive(Debug, Default)]
pub(crate) struct Unconfirmed {
    sent: Mutex<VecDeque<Sent>>,
    /// Those that a database lost and its successor does not count: no more than were sent.
    late: Mutex<VecDeque<Vec<u8>>>,
    /// Decisions that were sent and given up: they may have arrived, and were made again alone.
    doubted: Mutex<BTreeSet<String>>,
}

impl Unconfirmed {
    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Sent>> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn late(&self) -> std::sync::MutexGuard<'_, VecDeque<Vec<u8>>> {
        self.late.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn doubted(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.doubted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether any of these may have arrived though it was given up.
    pub(crate) fn doubts<'a>(&self, mut ids: impl Iterator<Item = &'a str>) -> bool {
        let doubted = self.doubted();
        !doubted.is_empty() && ids.any(|id| doubted.contains(id))
    }

    fn give_up<'a>(&self, ids: impl Iterator<Item = &'a str>) {
        let mut doubted = self.doubted();
        doubted.extend(ids.map(str::to_owned));
        while doubted.len() > MOST_DOUBTED {
            // Ids go up with the time: the oldest is first.
            doubted.pop_first();
        }
    }

    pub(crate) fn mark_late(&self, entry: &[u8]) {
        self.lock().retain(|sent| sent.entry != entry);
        self.late().push_back(entry.to_vec());
    }

    pub(crate) fn next_late(&self) -> Option<Vec<u8>> {
        self.late().front().cloned()
    }

    pub(crate) fn late_is_home(&self) {
        self.late().pop_front();
    }

    pub(crate) fn late_count(&self) -> usize {
        self.late().len()
    }

    fn add(&self, sent: impl Iterator<Item = Sent>) {
        let mut unconfirmed = self.lock();
        unconfirmed.extend(sent);
        let over = unconfirmed.len().saturating_sub(MOST_UNCONFIRMED);
        unconfirmed.drain(..over);
    }

    /// Those that the log has are let go.
    pub(crate) fn confirm(&self, progress: &Progress) {
        let reached: HashMap<u16, u64> = progress.positions.iter().map(|(partition, at)| (*partition, at.millis)).collect();
        let is_passed = |sent: &Sent| reached.get(&sent.partition).is_some_and(|millis| *millis > sent.at_millis);
        let is_logged = |sent: &Sent| progress.has_all_before.is_some_and(|time| sent.answered < time) || is_passed(sent);
        self.lock().retain(|sent| !is_logged(sent));
    }

    /// All of them are in the streams of another database: it is that one's progress that counts for them.
    pub(crate) fn were_sent_again(&self, now_millis: i64) {
        let at_millis = u64::try_from(now_millis).unwrap_or(0) + MARGIN_MILLIS;
        for sent in self.lock().iter_mut() {
            (sent.at_millis, sent.answered) = (at_millis, Instant::now());
        }
    }

    pub(crate) fn all(&self) -> Vec<Sent> {
        self.lock().iter().cloned().collect()
    }
}

/// The writer's life.
pub(crate) async fn run(inner: &Inner) {
    while let Some(proposals) = inner.queue.next().await {
        let combined = combine(&proposals);
        let results = send(inner, &proposals, combined).await;
        MAILBOXES.send(proposals.into_iter().zip(results).map(|(proposal, result)| (proposal.mailbox, (proposal.done, result))));
    }
}

async fn send(inner: &Inner, proposals: &[Proposal], combined: Vec<Combined>) -> Vec<ProposalResult> {
    let sent_at = inner.clock.now_millis();
    let started = Instant::now();
    let (swaps, members): (Vec<Swap>, Vec<Vec<usize>>) = combined.into_iter().map(|one| (one.swap, one.proposals)).unzip();
    let mut again = 0_u32;
    let give_up = |result: ProposalResult| {
        for proposal in proposals {
            inner.cells.settle(proposal, &SwapReply::None);
        }
        vec![result; proposals.len()]
    };
    let answers = loop {
        // Whoever tends to the database's health says when it is back: nothing is sent before.
        if !inner.health.wait_until_back(inner.options.patience).await {
            if again == 0 {
                return give_up(ProposalResult::Away);
            }
            inner.unconfirmed.give_up(proposals.iter().map(|proposal| proposal.id.as_str()).filter(|id| !id.is_empty()));
            return give_up(ProposalResult::Doubtful);
        }
        let asked = async {
            match tokio::time::timeout(GATE, inner.gate.read()).await {
                Ok(_gate) if !inner.health.is_unbuilt() => inner.link.swap(swaps.clone()).await,
                Ok(_) | Err(_) => Err(LinkError::Away("its states are being built".into())),
            }
        };
        let answered = tokio::time::timeout_at(started + inner.options.patience, asked).await;
        match answered.unwrap_or_else(|_| Err(LinkError::Away("no answer in time".into()))) {
            Ok(answers) => break answers,
            // Decided again, knowing what is to be known. If it was sent before, it is not known what became of that.
            Err(LinkError::Fenced) => {
                if let Err(error) = recovery::say_what_waits(inner).await {
                    inner.health.away(&error, started);
                }
                if again == 0 {
                    return give_up(ProposalResult::Raced);
                }
            }
            Err(error) => {
                inner.health.away(&error, started);
                again += 1;
                if matches!(error, LinkError::Refused(_)) && again > 1 {
                    return give_up(ProposalResult::Away);
                }
            }
        }
    };
    let now = u64::try_from(inner.clock.now_millis()).unwrap_or(0) + MARGIN_MILLIS;
    let mut results = vec![ProposalResult::Away; proposals.len()];
    let mut unconfirmed = Vec::new();
    for ((swap, members), answer) in swaps.into_iter().zip(members).zip(answers) {
        let (result, answer) = match answer {
            Swapped::Done => {
                inner.health.has_room();
                (ProposalResult::Done, SwapReply::Done)
            }
            Swapped::Full => {
                inner.health.full();
                (ProposalResult::Away, SwapReply::None)
            }
            Swapped::Raced(values) => {
                let found: HashMap<u128, Value> = swap.cells.iter().map(|cell| number_of(&cell.name)).zip(values).collect();
                let ids = || members.iter().map(|member| proposals[*member].id.as_str()).filter(|id| !id.is_empty());
                let result = match ids().next() {
                    Some(id) if again > 0 => match was_written(inner, swap.partition, sent_at, id).await {
                        Some(true) => ProposalResult::Done,
                        Some(false) => ProposalResult::Raced,
                        None => {
                            inner.unconfirmed.give_up(ids());
                            ProposalResult::Doubtful
                        }
                    },
                    Some(_) | None => ProposalResult::Raced,
                };
                (result, SwapReply::Found(found))
            }
        };
        for member in members {
            inner.cells.settle(&proposals[member], &answer);
            results[member] = result;
        }
        if result == ProposalResult::Done && !swap.entry.is_empty() {
            unconfirmed.push(Sent { partition: swap.partition, answered: Instant::now(), at_millis: now, entry: swap.entry });
        }
    }
    inner.unconfirmed.add(unconfirmed.into_iter());
    results
}

/// Whether a decision is in its stream, or in the log already; `None` when that cannot be learned.
async fn was_written(inner: &Inner, partition: u16, since_millis: i64, id: &str) -> Option<bool> {
    let since = EntryId { millis: u64::try_from(since_millis).unwrap_or(0).saturating_sub(MARGIN_MILLIS), number: 0 };
    let entries = inner.link.entries(vec![(partition, since)], LOOK_FOR, 0).await.ok()?;
    let has_it = |bytes: &[u8]| entry::decode(bytes).is_some_and(|rows| rows.iter().any(|logged| logged.row.id == id));
    if entries.iter().any(|(_, _, bytes)| has_it(bytes)) {
        return Some(true);
    }
    inner.log.knows(&[id.to_owned()]).await.ok()?.first().copied()
}
