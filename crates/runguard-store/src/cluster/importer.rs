//! Moves rows from the streams into the log.
//!
//! How far each stream was read is kept in the log, in the same transaction as the rows: whatever breaks, a row is there once.
//! With one log for all nodes one of them does it; that two may believe to be the one costs nothing but a refused transaction.

use crate::cluster::entry;
use crate::cluster::link::{EntryId, LinkError};
use crate::cluster::log::{Imported, Positions};
use crate::cluster::recovery::Erasures;
use crate::cluster::{Inner, from_the_start};
use crate::error::StoreError;
use crate::log::RowWithEffects;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Entries of one transaction and partition: fewer where they are large, so that a transaction has about as many rows and bytes as this.
const ENTRIES: usize = 500;
const ENTRIES_AT_FIRST: usize = 16;
const FEWEST_ENTRIES: usize = 2;
const ROWS: usize = 8_000;
const BYTES: usize = 16 << 20;
const WAIT_MILLIS: u64 = 50;
/// A look at whether it is this node's turn.
const TURN: Duration = Duration::from_secs(1);
/// Rows that this node brings home are counted sooner than they are logged: so long it lets them go first, and looks so often whether it may.
const REST: Duration = Duration::from_secs(2);
const REST_STEP: Duration = Duration::from_millis(10);
/// Where every node reads the streams for itself, entries stay so long for those that are away.
const STAY_MILLIS: u64 = 3_600_000;

pub(crate) async fn run(inner: &Inner) {
    let mut retired: Option<tokio::time::Instant> = None;
    loop {
        if inner.log.is_shared() && !inner.leads("import").await {
            // Whoever leads now learns it of what it writes; this node does not.
            if inner.health.is_log_away() && inner.log.probe().await.is_ok() {
                inner.health.log_sound();
            }
            tokio::time::sleep(TURN).await;
            continue;
        }
        if let Err(trouble) = while_leading(inner, &mut retired).await {
            match trouble {
                Trouble::Log(error) => inner.health.log_away(&error),
                // Whoever tends to the database's health says so. The log may be there.
                Trouble::Streams(_) => {}
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }
}

/// What keeps rows from the log.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    #[error(transparent)]
    Streams(#[from] LinkError),
    #[error(transparent)]
    Log(#[from] StoreError),
}

async fn while_leading(inner: &Inner, retired: &mut Option<tokio::time::Instant>) -> Result<(), Trouble> {
    let mut reading = start(inner).await?;
    // Begun again when the streams are empty: the log is never further behind for it than this.
    let mut rest = REST;
    while !inner.log.is_shared() || inner.leads("import").await {
        // In here: a node may lead for months.
        if retired.is_none_or(|at| at.elapsed() >= inner.options.retire_every) {
            let elapsed = retired.map_or(Duration::ZERO, |at| at.elapsed());
            *retired = Some(tokio::time::Instant::now());
            if let Err(error) = inner.log.retire(inner.clock.now_millis(), elapsed).await {
                tracing::warn!(%error, "old rows could not be removed; they stay until the next try");
            }
        }
        // Who waits for the log here must not wait for that, nor may a stream be at its bound for it.
        let is_wanted = inner.log_awaited.load(Ordering::Relaxed) > 0 || inner.health.is_full();
        if inner.rows_come_home.load(Ordering::Relaxed) && !is_wanted && !rest.is_zero() {
            tokio::time::sleep(REST_STEP).await;
            rest = rest.saturating_sub(REST_STEP);
            continue;
        }
        match import_once(inner, &reading, WAIT_MILLIS).await? {
            Some(positions) if positions == reading.positions => rest = REST,
            Some(positions) => reading.positions = positions,
            None => reading = start(inner).await?,
        }
        inner.health.log_sound();
    }
    Ok(())
}

/// How far the log has read, and what it must not take again.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) positions: Positions,
    entries: AtomicUsize,
    /// Nothing is imported once there are others.
    erased: Erasures,
    erased_at: Option<(u16, EntryId)>,
}

/// Begins where the log is. A database that was emptied begins its streams anew, before where we were; one that was put back to an earlier
/// state has what was erased since.
pub(crate) async fn start(inner: &Inner) -> Result<Reading, Trouble> {
    let known = inner.log.positions(inner.partitions).await?;
    let mut positions = from_the_start(inner.partitions);
    for (partition, at) in known {
        if let Some(place) = positions.get_mut(usize::from(partition)) {
            place.1 = at;
        }
    }
    cut(inner, positions.iter().copied().filter(|(_, at)| *at != EntryId::default()).collect()).await?;
    // In this order: what comes between is seen.
    let erased_at = inner.log.erased_at().await?;
    Ok(Reading { positions, entries: AtomicUsize::new(ENTRIES_AT_FIRST), erased: Erasures::read(inner).await?, erased_at })
}

/// One step: what the streams have after the positions, into the log. `None`: another node was faster, a session was erased, or the
/// streams could not be cut; begin with [`start`].
pub(crate) async fn import_once(inner: &Inner, reading: &Reading, wait_millis: u64) -> Result<Option<Positions>, Trouble> {
    let from = &reading.positions;
    let at_once = reading.entries.load(Ordering::Relaxed);
    let entries = inner.link.entries(from.clone(), at_once, wait_millis).await?;
    if entries.is_empty() {
        return Ok(Some(from.clone()));
    }
    let size: usize = entries.iter().map(|(_, _, bytes)| bytes.len()).sum();
    let mut upto = from.clone();
    let mut streams: Vec<VecDeque<(u64, Vec<RowWithEffects>)>> = vec![VecDeque::new(); upto.len()];
    let mut erased = Cow::Borrowed(&reading.erased);
    for (partition, id, bytes) in entries {
        let Some(stream) = upto.iter().position(|(other, _)| *other == partition) else { continue };
        upto[stream].1 = id;
        match entry::decode(&bytes) {
            Some(rows) => {
                for (session, row) in rows.iter().filter_map(|logged| Some((entry::erases(logged)?, &logged.row))) {
                    erased.to_mut().add(session, row.at);
                }
                streams[stream].push_back((id.millis, rows));
            }
            None => {
                tracing::error!(partition, %id, "an entry of the stream cannot be read and is left out; was it written by a later version?");
            }
        }
    }
    for (_, rows) in streams.iter_mut().flatten() {
        rows.retain(|logged| !erased.took(&logged.row));
    }
    let rows: usize = streams.iter().flatten().map(|(_, rows)| rows.len()).sum();
    let next = if rows > ROWS || size > BYTES { at_once / 2 } else { at_once * 2 };
    reading.entries.store(next.clamp(FEWEST_ENTRIES, ENTRIES), Ordering::Relaxed);
    let stands: Positions = from.iter().copied().chain(reading.erased_at).collect();
    match inner.log.import(&stands, in_order(streams), &upto).await? {
        Imported::Overtaken => return Ok(None),
        Imported::Done => {}
    }
    let read: Positions = upto.iter().zip(from).filter(|(to, from)| to.1 != from.1).map(|(to, _)| *to).collect();
    // Entries that stay are read over by their number; but a stream at its bound would stay there, so it is tried again.
    if let Err(error) = cut(inner, read).await {
        tracing::debug!(%error, "the streams could not be cut");
        return Ok(None);
    }
    Ok(matches!(erased, Cow::Borrowed(_)).then_some(upto))
}

/// Takes what the log has out of the streams.
async fn cut(inner: &Inner, read: Positions) -> Result<(), LinkError> {
    let gone = if inner.log.is_shared() {
        read
    } else {
        let before = EntryId { millis: u64::try_from(inner.clock.now_millis()).unwrap_or(0).saturating_sub(STAY_MILLIS), number: 0 };
        read.into_iter().map(|(partition, at)| (partition, at.min(before))).collect()
    };
    if gone.is_empty() {
        return Ok(());
    }
    inner.link.trim(gone).await
}

/// The rows of all streams in the order they were decided: by the time of their entries, and within a millisecond by their ids,
/// which go up on each node. A stream's own order stays as it is.
fn in_order(mut streams: Vec<VecDeque<(u64, Vec<RowWithEffects>)>>) -> Vec<RowWithEffects> {
    fn first(stream: &VecDeque<(u64, Vec<RowWithEffects>)>) -> Option<(u64, Option<&str>)> {
        stream.front().map(|(millis, rows)| (*millis, rows.first().map(|logged| logged.row.id.as_str())))
    }
    let mut ordered = Vec::with_capacity(streams.iter().map(VecDeque::len).sum());
    loop {
        let next = streams.iter_mut().filter(|stream| !stream.is_empty()).min_by(|left, right| first(left).cmp(&first(right)));
        let Some((_, rows)) = next.and_then(VecDeque::pop_front) else { return ordered };
        ordered.extend(rows);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::model::ModelLink;
    use crate::cluster::{Cluster, ClusterOptions, LogKept, Place, Portions, RETIRE_EVERY, Shelf};
    use crate::key::{Family, Names};
    use crate::memory::Memory;
    use crate::store::{Cell, Change, Decided, Keep, Rules, Written};
    use runguard_core::row::Row;
    use tokio::time::Instant;

    const RULES: Rules =
        Rules { replay: |_, _, _, _| None, group: |_, _, _, _, _| Some(7), keep: |_, _| Keep::Log, take_back: |_, _| None };

    /// A node of its own, and the log it imports into.
    async fn node() -> (Cluster, Memory) {
        let log = Memory::default();
        let options = ClusterOptions {
            folder: "/nonexistent".into(),
            memory_bytes: 1 << 20,
            retention_days: 30,
            window: Duration::from_secs(3600),
            patience: Duration::from_millis(200),
            retire_every: RETIRE_EVERY,
            here_millis: 0,
            alone_bytes: u64::MAX,
            portions: Portions::default(),
            unconfirmed: Shelf { place: Place::default(), entries_in_memory: 100, most_bytes: u64::MAX },
            names: Names::PLAIN,
            seed: 1000,
        };
        let kept = LogKept::Memory(log.clone(), Memory::alone());
        let link = ModelLink::on_tokio_time(4, 1_000_000, 1_700_000_000_000);
        (Cluster::join(link, kept, options, RULES).await.unwrap(), log)
    }

    async fn decide(node: &Cluster, id: &str) {
        let key = Names::PLAIN.key(Family::Session, "tenant", id);
        let cell = Cell { key, slot: 1, subject: "", group: 7 };
        let row = Row { id: id.to_owned(), at: 1_700_000_000_000, tenant: "tenant".into(), session: id.to_owned(), ..Row::default() };
        let change = Change { cell: 0, events: vec![1], state: vec![1] };
        node.apply(&[cell], |_| Decided::Keep((), Written { row: row.clone(), changes: vec![change.clone()] })).await.unwrap();
    }

    /// How long it takes until the log has so many rows.
    async fn time_until(log: &Memory, rows: u64) -> Duration {
        let begun = Instant::now();
        while *log.committed().borrow() < rows {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn rows_that_come_home_go_first_for_a_while_and_nobody_waits_for_that() {
        let (node, log) = node().await;
        decide(&node, "a").await;
        let usual = Duration::from_millis(500);
        assert!(time_until(&log, 1).await < usual);
        node.inner.rows_come_home.store(true, Ordering::Relaxed);
        // Until it rests.
        tokio::time::sleep(Duration::from_millis(WAIT_MILLIS * 2)).await;
        decide(&node, "b").await;
        assert!(time_until(&log, 2).await > usual, "it rests");
        for id in ["c", "d", "e"] {
            // However long rows come home, and though there is always something in the streams.
            decide(&node, id).await;
        }
        assert!(time_until(&log, 5).await <= REST + usual);
        tokio::time::sleep(Duration::from_millis(WAIT_MILLIS * 2)).await;
        decide(&node, "f").await;
        let begun = Instant::now();
        node.flush().await.unwrap();
        assert!(begun.elapsed() < usual, "whoever waits for the log does not wait for the rest");
        tokio::time::sleep(Duration::from_millis(WAIT_MILLIS * 2)).await;
        decide(&node, "g").await;
        node.inner.health.full();
        assert!(time_until(&log, 7).await < usual, "a stream is at its bound");
        node.inner.rows_come_home.store(false, Ordering::Relaxed);
        decide(&node, "h").await;
        assert!(time_until(&log, 8).await < usual);
    }

    #[test]
    fn rows_of_several_streams_are_in_the_order_of_their_decisions() {
        let entry = |millis: u64, ids: &[&str]| {
            let row = |id: &&str| RowWithEffects { row: Row { id: (*id).to_owned(), ..Row::default() }, ..RowWithEffects::default() };
            (millis, ids.iter().map(row).collect::<Vec<_>>())
        };
        let streams = [
            VecDeque::from([entry(5, &["c", "d"]), entry(7, &["b"]), entry(7, &["a"])]),
            VecDeque::new(),
            VecDeque::from([entry(4, &["z"]), entry(5, &["b2"]), entry(7, &["a1"]), entry(9, &[])]),
        ];
        let ids: Vec<String> = in_order(streams.to_vec()).into_iter().map(|logged| logged.row.id).collect();
        assert_eq!(ids, ["z", "b2", "c", "d", "a1", "b", "a"]);
    }
}
