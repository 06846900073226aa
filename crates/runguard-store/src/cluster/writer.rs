//! Sends proposals to the shared database: everything that gathered while the last call was under way, in one call.
//!
//! A call that breaks in the middle may have been carried out. It is sent again as it is: tokens are unique, so it is done once at
//! most. When the answer then is that another was faster, the stream says whether ours was first.

use crate::cluster::Inner;
use crate::cluster::cells::{Proposal, ProposalResult, SwapReply, combine, number_of};
use crate::cluster::entry;
use crate::cluster::link::{EntryId, LinkError, Swap, Swapped, Value};
use crate::cluster::mailbox::{Known, Mailboxes};
use crate::cluster::recovery;
use crate::cluster::unconfirmed::{MARGIN_MILLIS, Sent};
use crate::store::StoreHealth;
use hashbrown::{HashMap, HashSet};
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use tokio::sync::Notify;
use tokio::time::Instant;

/// Proposals in one call. Beyond it the rest waits for the next, so that no answer waits for thousands of others.
const MAX_BATCH: usize = 1024;
/// Entries looked at for a proposal whose result is not known.
const LOOK_FOR: usize = 10_000;

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

/// The writer's life.
pub(crate) async fn run(inner: &Inner) {
    while let Some(proposals) = inner.queue.next().await {
        let results = send(inner, &proposals).await;
        MAILBOXES.send(proposals.into_iter().zip(results).map(|(proposal, result)| (proposal.mailbox, (proposal.done, result))));
    }
}

/// Whether the database has none of these for certain.
async fn was_not_written(inner: &Inner, swaps: &[Swap], sent_at: i64) -> bool {
    let swaps: Vec<&Swap> = swaps.iter().filter(|swap| !swap.entry.is_empty()).collect();
    let found = what_became_of(inner, &swaps, sent_at).await;
    found.iter().all(|is_there| *is_there == Some(false))
}

/// Of each swap that was sent, whether the database has it; `None` when that is not known. It will not have it later than that. It has only
/// just come back: other connections than the writer's may not be there yet.
async fn what_became_of(inner: &Inner, swaps: &[&Swap], sent_at: i64) -> Vec<Option<bool>> {
    const TRIES: u32 = 5;
    const BETWEEN: std::time::Duration = std::time::Duration::from_millis(40);
    if swaps.is_empty() {
        return Vec::new();
    }
    // What is still under way must not arrive after we have looked: it would count beside what is decided in its place.
    if inner.link.fence().await.is_err() {
        return vec![None; swaps.len()];
    }
    let mut found = were_written(inner, swaps, sent_at).await;
    for _ in 0..TRIES {
        if !found.contains(&None) {
            break;
        }
        tokio::time::sleep(BETWEEN).await;
        found = were_written(inner, swaps, sent_at).await;
    }
    // What is not there may have been, and was erased: whoever waits for it must not do it once more.
    if found.contains(&Some(false)) && (recovery::say_what_waits(inner).await.is_err() || inner.erasing.is_any()) {
        found.iter_mut().filter(|is_there| **is_there == Some(false)).for_each(|is_there| *is_there = None);
    }
    found
}

async fn send(inner: &Inner, proposals: &[Proposal]) -> Vec<ProposalResult> {
    let sent_at = inner.clock.now_millis();
    let started = Instant::now();
    // Those that were decided before their node learned of the last fence are decided again, knowing what is to be known.
    let fences = proposals.iter().map(|proposal| proposal.fences).max();
    let combined = combine(proposals);
    let (swaps, members): (Vec<Swap>, Vec<Vec<usize>>) = combined.into_iter().map(|one| (one.swap, one.proposals)).unzip();
    let (mut again, mut looked) = (0_u32, 0_u32);
    let is_old = |members: &Vec<usize>| members.iter().any(|member| Some(proposals[*member].fences) != fences);
    let old: Vec<bool> = members.iter().map(is_old).collect();
    let mut answers: Vec<Option<Swapped>> = old.iter().map(|is_old| is_old.then_some(Swapped::Fenced)).collect();
    // What becomes of those without an answer.
    let rest = loop {
        let left: Vec<usize> = (0..swaps.len()).filter(|place| answers[*place].is_none()).collect();
        if left.is_empty() {
            break ProposalResult::Away;
        }
        // Whoever tends to the database's health says when it is back: nothing is sent before.
        if !inner.health.wait_until_back(inner.options.patience).await {
            // What was sent may have arrived.
            break if again == 0 { ProposalResult::Away } else { ProposalResult::Doubtful };
        }
        let is_all = left.len() == swaps.len();
        let sent: Cow<'_, [Swap]> = if is_all { (&swaps).into() } else { left.iter().map(|place| swaps[*place].clone()).collect() };
        // The database was away, and others may have decided alone meanwhile: what is not in it is decided again, knowing that. Once each
        // time: looking puts what is under way out of action, ours as well.
        if again > looked && inner.health.of_shared_states() == StoreHealth::Behind && was_not_written(inner, &sent, sent_at).await {
            break ProposalResult::Raced;
        }
        looked = again;
        let asked = async {
            let _gate = inner.built().await?;
            inner.link.swap_under(&sent, fences).await
        };
        let answered = tokio::time::timeout_at(started + inner.options.patience, asked).await;
        match answered.unwrap_or_else(|_| Err(LinkError::Away("no answer in time".into()))) {
            Ok(found) => {
                // Decided again, knowing what is to be known.
                if found.contains(&Swapped::Fenced)
                    && let Err(error) = recovery::say_what_waits(inner).await
                {
                    inner.health.away(&error, started);
                }
                left.into_iter().zip(found).for_each(|(place, answer)| answers[place] = Some(answer));
            }
            Err(error) => {
                inner.health.away(&error, started);
                again += 1;
                // It may come twice, and be refused only the first time.
                if matches!(error, LinkError::Refused(_)) && again > 1 {
                    break ProposalResult::Doubtful;
                }
            }
        }
    };
    let now = u64::try_from(inner.clock.now_millis()).unwrap_or(0) + MARGIN_MILLIS;
    let mut results = vec![ProposalResult::Away; proposals.len()];
    let mut unconfirmed = Vec::new();
    // Where others were faster and ours was sent before, it may have been the one; and it may have been there before the fence was moved.
    let doubted = |is_asked: fn(&Swapped) -> bool| -> Vec<usize> {
        let is_doubted = |place: &usize| !swaps[*place].entry.is_empty() && answers[*place].as_ref().is_some_and(is_asked);
        (0..swaps.len()).filter(|place| again > 0 && !old[*place]).filter(is_doubted).collect()
    };
    let (raced, fenced) = (doubted(|answer| matches!(answer, Swapped::Raced(_))), doubted(|answer| *answer == Swapped::Fenced));
    let of = |places: &[usize]| places.iter().map(|place| &swaps[*place]).collect::<Vec<_>>();
    let (raced_found, fenced_found) = (were_written(inner, &of(&raced), sent_at).await, what_became_of(inner, &of(&fenced), sent_at).await);
    let written: HashMap<usize, Option<bool>> = raced.into_iter().zip(raced_found).chain(fenced.into_iter().zip(fenced_found)).collect();
    let result_of = |place: usize| match written.get(&place).copied().unwrap_or(Some(false)) {
        Some(true) => ProposalResult::Done,
        Some(false) => ProposalResult::Raced,
        None => ProposalResult::Doubtful,
    };
    for (place, ((swap, members), answer)) in swaps.into_iter().zip(members).zip(answers).enumerate() {
        let (result, answer) = match answer {
            None => (rest, SwapReply::None),
            Some(Swapped::Done) => {
                inner.health.has_room();
                (ProposalResult::Done, SwapReply::Done)
            }
            Some(Swapped::Fenced) => (result_of(place), SwapReply::None),
            Some(Swapped::Full) => {
                inner.health.full();
                // What was sent twice may still arrive once there is room: were it tried again it could count twice.
                (ProposalResult::Doubtful, SwapReply::None)
            }
            Some(Swapped::Raced(values)) => {
                let found: HashMap<u128, Value> = swap.cells.iter().map(|cell| number_of(&cell.name)).zip(values).collect();
                (result_of(place), SwapReply::Found(found))
            }
        };
        if result == ProposalResult::Doubtful {
            inner.unconfirmed.give_up(members.iter().map(|member| proposals[*member].id.as_str()).filter(|id| !id.is_empty()));
        }
        for member in members {
            inner.cells.settle(&proposals[member], &answer);
            results[member] = result;
        }
        if result == ProposalResult::Done && !swap.entry.is_empty() {
            unconfirmed.push(Sent { partition: swap.partition, answered: Instant::now(), at_millis: now, entry: swap.entry });
        }
    }
    inner.unconfirmed.add(inner.health.generation.load(Ordering::Acquire), unconfirmed.into_iter());
    results
}

/// Of each swap, whether its rows are in its stream, or in the log already; `None` when that cannot be learned, or only some of them are: those
/// came with another swap, and this one must not be taken for done. Each stream is read once.
async fn were_written(inner: &Inner, swaps: &[&Swap], since_millis: i64) -> Vec<Option<bool>> {
    let since = EntryId { millis: u64::try_from(since_millis).unwrap_or(0).saturating_sub(MARGIN_MILLIS), number: 0 };
    let mut of_partitions: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
    for (place, swap) in swaps.iter().enumerate() {
        of_partitions.entry(swap.partition).or_default().push(place);
    }
    let mut written = vec![None; swaps.len()];
    for (partition, places) in of_partitions {
        let entries: Vec<&[u8]> = places.iter().map(|place| swaps[*place].entry.as_slice()).collect();
        let found = are_in_stream(inner, partition, since, &entries).await.unwrap_or_default();
        places.into_iter().zip(found).for_each(|(place, is_there)| written[place] = is_there);
    }
    written
}

/// The same of entries of one stream.
async fn are_in_stream(inner: &Inner, partition: u16, since: EntryId, asked: &[&[u8]]) -> Option<Vec<Option<bool>>> {
    let ids_of = |bytes: &[u8]| entry::decode(bytes).unwrap_or_default().into_iter().map(|logged| logged.row.id);
    let entries = inner.link.entries(vec![(partition, since)], LOOK_FOR, 0).await.ok()?;
    let is_whole = entries.len() < LOOK_FOR;
    let in_stream: HashSet<String> = entries.iter().flat_map(|(_, _, bytes)| ids_of(bytes)).collect();
    let asked: Vec<Vec<String>> = asked.iter().map(|entry| ids_of(entry).collect()).collect();
    let left: Vec<String> = asked.iter().flatten().filter(|id| !in_stream.contains(*id)).cloned().collect();
    let logged = if left.is_empty() { Vec::new() } else { inner.log.knows(&left).await.ok()? };
    let in_log: HashSet<String> = left.into_iter().zip(logged).filter_map(|(id, is_logged)| is_logged.then_some(id)).collect();
    let is_there = |ids: &Vec<String>| {
        let count = ids.iter().filter(|id| in_stream.contains(*id) || in_log.contains(*id)).count();
        // What was not read of the stream may have it.
        let (has_all, has_none) = (count == ids.len(), count == 0 && is_whole);
        (has_all || has_none).then_some(has_all)
    };
    Some(asked.iter().map(is_there).collect())
}
