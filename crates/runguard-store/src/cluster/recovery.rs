//! What a node does when the shared database is away, and when it is back.
//!
//! Away: it decides in a store of its own, which begins with what it remembers of the shared states, and marks every answer.
//! Back: it learns whether anything was lost. A database that was emptied is filled again from the log, by one node, before anyone
//! decides on it. Then what was decided alone is brought home: its events are applied to the shared states, its rows logged.

use crate::cluster::alone::Local;
use crate::cluster::cells::{Wanted, WantedRows, name_of, number_of};
use crate::cluster::entry::{self, encode_row};
use crate::cluster::importer::{self, import_once};
use crate::cluster::link::{About, CellName, EntryId, LinkError, OTHER_SECRET, Put, Swap, SwapCell, Swapped, Value};
use crate::cluster::log::{Positions, as_kept};
use crate::cluster::unconfirmed::{Progress, page_of};
use crate::cluster::{CATCH_UP, FLUSH, Inner, Noted, OUTRUN, Shared, endpoint_note, fitting, from_the_start};
use crate::error::StoreError;
use crate::key::{Family, Names};
use crate::log::{Happened, Order, RowFilter, RowWithEffects, encode_happened, happened};
use crate::store::{Cell, Change, FEW, View};
use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use hashbrown::HashMap;
use runguard_core::row::{Kind, Outcome, Row};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Ends the id of the row that says what a caller was told, where the database had decided otherwise under that id.
const TAKEN_BACK: &str = "-back";
const PULSE: Duration = Duration::from_secs(1);
/// One node fills an emptied database, and says all the while that it does; should it die, the next may try after this time.
const BUILD_LEASE: Duration = Duration::from_secs(6);
/// Time for the other nodes to send again what the log may lack, before states are built from it.
const GRACE: Duration = Duration::from_secs(1);
/// Cells, or entries, written in one call.
const CELLS_AT_ONCE: usize = 500;
/// Questions to the log that are under way together.
const QUESTIONS_AT_ONCE: usize = 16;
/// Bytes of rows in one swap: of one state, and of several.
const BYTES_OF_ONE_STATE: usize = 1 << 20;
const BYTES_TOGETHER: usize = 64 << 10;
/// Rows of several states that others were faster at are tried so often together, then by themselves.
const TRIES_TOGETHER: u32 = 3;
/// Rows of what was decided alone that are read in one piece, and the bytes that are read before they are brought.
const ROWS_OF_PIECE: usize = 250;
const BYTES_OF_PART: usize = 8 << 20;
/// Where it is noted that the states were built: no state's name has this number.
const BUILT: u128 = 0;
/// In each partition: from here on rows that are sent again are too late for the states.
const CLOSED: u128 = 1;
/// The nodes that have rows to bring home, and how long each may take to say so again.
const BEHIND: u128 = 2;
const SAID_FOR_MILLIS: i64 = 20_000;
/// Well before that.
const SAY_AGAIN: Duration = Duration::from_secs(5);
/// The server's start since which all nodes have had the time to say what they decided alone before. The numbers between are taken.
const SETTLED: u128 = 6;
/// After a time away: so long it takes until every node has seen that the database is back, and says what it decided meanwhile.
const SETTLE: Duration = Duration::from_millis(1_500);
/// Between two looks for a database that has just gone, and for one that is away.
const LOOK_SOON: Duration = Duration::from_millis(20);
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// A log that is further behind has never read that stream.
const LONGEST_LAG_MILLIS: u64 = 365 * 24 * 3600 * 1000;
/// Between two looks while something is on its way home.
const SHORT_PULSE: Duration = Duration::from_millis(50);
pub(super) const FOREVER_MILLIS: u64 = u32::MAX as u64 * 1000;

/// Tends to the database's health.
pub(crate) async fn run(inner: &Inner) {
    loop {
        tokio::select! {
            // The same order always: a simulation must be able to live through it again.
            biased;
            () = inner.health.woken.notified() => {}
            () = tokio::time::sleep(PULSE) => {}
        }
        loop {
            let asked = Instant::now();
            let Err(error) = look(inner).await else { break };
            inner.health.away(&error, asked);
            // While requests wait for it, every moment counts.
            let is_waited_for = inner.health.away_since().is_some_and(|since| since.elapsed() < inner.options.patience);
            tokio::time::sleep(if is_waited_for { LOOK_SOON } else { LOOK_AGAIN }).await;
        }
    }
}

/// Tends to what is on its way: rows that may have to be sent again, and those that were decided alone.
pub(crate) async fn run_homecoming(inner: &Inner) {
    // Whether some of what an earlier life left was sent before that life ended is not known.
    let mut homecoming = Homecoming { doubtful: true, brought: None };
    // Tried many times a second: what stands in the way is said once, not each time.
    let (mut late_trouble, mut alone_trouble) = (None, None);
    loop {
        tokio::time::sleep(if inner.health.is_behind() { SHORT_PULSE } else { PULSE }).await;
        confirm(inner).await;
        if !inner.health.wait_until_back(Duration::ZERO).await {
            continue;
        }
        let brought = while_it_is_said(inner, bring_late(inner)).await;
        if is_new_trouble(&mut late_trouble, &brought)
            && let Err(error) = &brought
        {
            tracing::warn!(%error, "what the database lost is not home yet; it is tried again");
        }
        if inner.alone.waiting() > 0 || homecoming.doubtful {
            let brought = while_it_is_said(inner, bring_home(inner, &mut homecoming)).await;
            let is_new = is_new_trouble(&mut alone_trouble, &brought);
            match brought {
                Ok(()) => homecoming = Homecoming::default(),
                Err(error) => {
                    // What was under way may have arrived.
                    homecoming.doubtful = true;
                    if is_new {
                        tracing::warn!(%error, "what was decided alone is not home yet; it is tried again");
                    }
                }
            }
        }
        let run = inner.health.server_run.load(Ordering::Acquire);
        let said = async {
            say_what_waits(inner).await?;
            if inner.health.is_settled() && run != inner.health.settled_run.load(Ordering::Acquire) {
                note_settled(inner, run).await?;
            }
            Ok(())
        };
        if let Err(error) = said.await {
            inner.health.away(&error, Instant::now());
        }
    }
}

/// One part may take long, and what is said of it ends.
async fn while_it_is_said<T>(inner: &Inner, brought: impl Future<Output = T>) -> T {
    let mut brought = std::pin::pin!(brought);
    loop {
        tokio::select! {
            biased;
            brought = &mut brought => return brought,
            () = tokio::time::sleep(SAY_AGAIN) => {}
        }
        // Whoever tends to the database's health sees why not.
        let _ = say_what_waits(inner).await;
    }
}

/// Whether this failed in a way that was not said yet.
fn is_new_trouble(said: &mut Option<String>, result: &Result<(), StoreError>) -> bool {
    let trouble = result.as_ref().err().map(ToString::to_string);
    let is_new = trouble.is_some() && trouble != *said;
    *said = trouble;
    is_new
}

/// How far it is with what was decided alone.
#[derive(Debug, Default)]
struct Homecoming {
    /// Some of it may have been sent already.
    doubtful: bool,
    brought: Option<u64>,
}

/// Tells the other nodes whether this one has rows to bring home, and learns whether any of them has.
pub(crate) async fn say_what_waits(inner: &Inner) -> Result<(), LinkError> {
    let name = CellName::new(0, BEHIND);
    let mut found = inner.link.load(vec![name.clone()]).await?.pop().flatten();
    // What stands there and was not told to all is not said yet.
    let mut is_told = inner.health.ours_behind.load(Ordering::Acquire);
    loop {
        let now = inner.clock.now_millis();
        let (expect, mut nodes): (_, BTreeMap<u64, i64>) =
            found.map_or((0, BTreeMap::new()), |(token, state)| (token, postcard::from_bytes(&state).unwrap_or_default()));
        let said = nodes.remove(&inner.node);
        nodes.retain(|_, until| *until > now);
        let others = !nodes.is_empty();
        let until = inner.has_rows_to_bring().then_some(now + SAID_FOR_MILLIS);
        let is_said = match (said, until) {
            (None, None) => true,
            (Some(said), Some(until)) => is_told && until - said < SAID_FOR_MILLIS / 2,
            (None, Some(_)) | (Some(_), None) => false,
        };
        if is_said {
            inner.health.others_behind.store(others, Ordering::Release);
            inner.health.ours_behind.store(until.is_some(), Ordering::Release);
            return Ok(());
        }
        nodes.extend(until.map(|until| (inner.node, until)));
        let put = Put::Set { token: inner.token(), state: postcard::to_stdvec(&nodes).unwrap_or_default(), keep_millis: FOREVER_MILLIS };
        let swap = Swap { partition: 0, cells: vec![SwapCell { name: name.clone(), expect, put }], entry: Vec::new() };
        found = match inner.swap(vec![swap]).await?.pop() {
            Some(Swapped::Raced(mut found)) => found.pop().flatten(),
            Some(Swapped::Done | Swapped::Full | Swapped::Fenced) | None => {
                if until.is_some() {
                    // Whoever does not know it yet hears of it with the next decision.
                    inner.link.fence().await?;
                    is_told = true;
                }
                inner.link.load(vec![name.clone()]).await?.pop().flatten()
            }
        };
    }
}

/// Lets go of rows that are known to be in the log: what is kept for sending again must not outlive its erasure.
pub(crate) async fn confirm(inner: &Inner) {
    let generation = inner.health.generation.load(Ordering::Acquire);
    let Some(progress) = progress(inner).await else { return };
    // Of another database it says nothing about what was sent to this one; and while that is looked at, the link may know another one.
    if generation == inner.health.generation.load(Ordering::Acquire) && !inner.health.is_unbuilt() {
        inner.link.has_read(generation, &progress.positions);
        inner.unconfirmed.confirm(&progress);
    }
}

async fn progress(inner: &Inner) -> Option<Progress> {
    if inner.health.is_away() {
        return None;
    }
    let asked = Instant::now();
    let positions = inner.log.positions(inner.partitions).await.ok()?;
    let has_all_before = inner.caught_up(CATCH_UP).await.then_some(asked);
    // Last: of a database that was emptied meanwhile, or put back to an earlier state, the log may have read what others wrote since,
    // and that stands later in the streams than what is missing.
    if !inner.is_the_one_we_know().await {
        return None;
    }
    let lag = if has_all_before.is_some() { Some(0) } else { lag_millis(inner, &positions).await };
    if let Some(lag) = lag {
        inner.health.log_lag_millis.store(lag, Ordering::Relaxed);
    }
    Some(Progress { positions, has_all_before })
}

/// How much later than what the log has read the streams end.
async fn lag_millis(inner: &Inner, positions: &Positions) -> Option<u64> {
    let latest = inner.link.latest().await.ok()?;
    let read = |partition: usize| positions.iter().find(|(other, _)| usize::from(*other) == partition).map_or(0, |(_, at)| at.millis);
    let behind = latest.iter().enumerate().map(|(partition, end)| end.millis.saturating_sub(read(partition)));
    // Of a stream that was never read nobody knows how old its first entry is.
    behind.filter(|millis| *millis < LONGEST_LAG_MILLIS).max()
}

async fn learn_time(inner: &Inner) -> Result<(), LinkError> {
    let asked = Instant::now();
    let millis = inner.link.time().await?;
    inner.clock.learn(millis, asked);
    Ok(())
}

/// Makes sure that the database is there and ours.
async fn look(inner: &Inner) -> Result<(), LinkError> {
    let asked = Instant::now();
    learn_time(inner).await?;
    if !inner.health.is_away() {
        let is_ours = is_built(inner, inner.health.generation.load(Ordering::Acquire)).await? && !inner.link.is_older().await?;
        if is_ours {
            match inner.swap_nothing().await {
                Err(error) if error.is_emptied() => {}
                // One that refuses is not another one: it is asked again after a while, not at once.
                answered => return answered,
            }
        }
        inner.health.away(&LinkError::emptied(), asked);
    }
    enter(inner).await?;
    // A server that was started anew was away for everybody, however little of it this node saw.
    let (run, known_run) = (inner.link.server_run(), inner.health.server_run.load(Ordering::Acquire));
    let is_new_run = run != known_run;
    let was_long = inner.health.away_since().is_some_and(|since| since.elapsed() >= inner.options.patience);
    if was_long || is_new_run {
        inner.health.settle(SETTLE);
    }
    // Before the first answer from the shared states: what was decided alone is not in them.
    say_what_waits(inner).await?;
    // It answers, but does it take anything?
    inner.swap_nothing().await?;
    inner.health.joined(run);
    Ok(())
}

/// The first time; what an earlier life of this node left is told before its first answer.
pub(crate) async fn join(inner: &Inner) -> Result<(), LinkError> {
    // Before anything is sent: by its time it is told later whether the log has it.
    learn_time(inner).await?;
    enter(inner).await?;
    let run = inner.link.server_run();
    if !is_settled(inner, run).await? {
        // It may have come back just now, and nobody has spoken yet.
        inner.health.settle(SETTLE);
    }
    say_what_waits(inner).await?;
    inner.health.joined(run);
    Ok(())
}

async fn is_settled(inner: &Inner, run: u64) -> Result<bool, LinkError> {
    let note = inner.link.load(vec![CellName::new(0, SETTLED)]).await?.pop().flatten();
    // Where there are many servers nobody knows.
    Ok(run == 0 || note.is_some_and(|(_, noted)| noted == run.to_be_bytes()))
}

/// Notes that all nodes have had the time to speak since the server's start, for those that join later.
async fn note_settled(inner: &Inner, run: u64) -> Result<(), LinkError> {
    if run == 0 {
        return Ok(());
    }
    let name = CellName::new(0, SETTLED);
    let expect = inner.link.load(vec![name.clone()]).await?.pop().flatten().map_or(0, |(token, _)| token);
    let put = Put::Set { token: inner.token(), state: run.to_be_bytes().to_vec(), keep_millis: FOREVER_MILLIS };
    // Should it be there already, another node was faster.
    inner.swap(vec![Swap { partition: 0, cells: vec![SwapCell { name, expect, put }], entry: Vec::new() }]).await?;
    inner.health.settled_run.store(run, Ordering::Release);
    Ok(())
}

/// Learns which database it is, and makes sure that its states are built.
async fn enter(inner: &Inner) -> Result<(), LinkError> {
    // Nothing is sent to a database whose states are not built.
    let _gate = inner.gate.write().await;
    let mine = About::offered(inner.partitions, inner.token(), inner.names);
    // From the question on the link takes what we send. Should we fail before the end, the writer must not go on nevertheless.
    inner.health.unbuilt.store(true, Ordering::Release);
    let known = inner.health.generation.load(Ordering::Acquire);
    if known != 0 {
        tell_what_the_log_has(inner, known).await;
    }
    let mut about = inner.link.about(mine).await?;
    let mut is_there = is_built(inner, about.generation).await?;
    if known == 0 && is_there {
        // It is at work already. What this node has not seen of it, the log has: it may be older than that.
        tell_what_the_log_has(inner, about.generation).await;
        about = inner.link.about(About::offered(inner.partitions, inner.token(), inner.names)).await?;
        is_there = is_built(inner, about.generation).await?;
    }
    if is_put_back(inner, known, about.generation, is_there).await? {
        (about, is_there) = (begin_anew(inner, about.generation).await?, false);
    }
    if about.secret != inner.names.secret_text() {
        return Err(LinkError::NotOurs(OTHER_SECRET.to_owned()));
    }
    if known == about.generation && is_there {
        inner.health.unbuilt.store(false, Ordering::Release);
        return Ok(());
    }
    let has_lost = known != 0 || inner.unconfirmed.is_of_another(about.generation);
    if has_lost && inner.health.sent_again_to.load(Ordering::Acquire) != about.generation {
        if known != 0 {
            tracing::error!("the shared database lost states: they are built again from the log");
        }
        send_again(inner, about.generation).await?;
        inner.health.sent_again_to.store(about.generation, Ordering::Release);
    }
    while !is_built(inner, about.generation).await? {
        // Meanwhile it may have become another one, which has its states.
        if !inner.is_the_one_we_know().await {
            return Err(LinkError::emptied());
        }
        if inner.link.lease("build", inner.node, BUILD_LEASE.as_millis() as u64).await? {
            let built = tokio::select! {
                biased;
                built = build(inner, about.generation) => built,
                lost = keep_building(inner) => lost,
            };
            // Also when it failed: another node may be able to.
            inner.link.lease("build", inner.node, 0).await?;
            built?;
        } else {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    *inner.noted() = Noted::default();
    inner.health.generation.store(about.generation, Ordering::Release);
    inner.health.settled_run.store(0, Ordering::Release);
    inner.health.unbuilt.store(false, Ordering::Release);
    Ok(())
}

/// Holds the lease as long as the states are being built. Ends when another node has it: whoever did nothing for long must not go on.
async fn keep_building(inner: &Inner) -> Result<(), LinkError> {
    loop {
        tokio::time::sleep(BUILD_LEASE / 3).await;
        if !inner.link.lease("build", inner.node, BUILD_LEASE.as_millis() as u64).await? {
            return Err(LinkError::Away("another node builds its states".into()));
        }
    }
}

/// Whether the database was put back to an earlier state in a way that does not show in its streams: to one that was built before the one
/// that is known, or to the time before it was built itself. `is_there`: its states are.
async fn is_put_back(inner: &Inner, known: u64, generation: u64, is_there: bool) -> Result<bool, LinkError> {
    if known == generation {
        // This node has seen them.
        return Ok(!is_there);
    }
    // A node's own copy of the log knows only what this node built.
    if !inner.log.is_shared() {
        return Ok(false);
    }
    let built_last = match inner.log.generation().await {
        Ok(generation) => generation,
        Err(_) if known == 0 || !is_there => return Ok(false),
        Err(error) => return Err(LinkError::Away(format!("the log cannot say whether the states are old: {error}"))),
    };
    let is_built_last = built_last == as_kept(generation);
    if is_there || !is_built_last {
        return Ok(is_there && built_last != 0 && !is_built_last);
    }
    // Whoever builds it tells the log a moment before it is there.
    tokio::time::sleep(SHORT_PULSE).await;
    Ok(!is_built(inner, generation).await?)
}

/// A database that was put back to an earlier state becomes another one, without states.
async fn begin_anew(inner: &Inner, generation: u64) -> Result<About, LinkError> {
    inner.link.has_read(generation, &[(0, EntryId { millis: u64::MAX, number: u64::MAX })]);
    inner.link.about(About::offered(inner.partitions, inner.token(), inner.names)).await
}

/// So that a database that was put back to an earlier state is known by it.
async fn tell_what_the_log_has(inner: &Inner, generation: u64) {
    // While the log is away what this node itself has seen must do; it is asked again with every pulse.
    if let Ok(positions) = inner.log.positions(inner.partitions).await {
        inner.link.has_read(generation, &positions);
    }
}

async fn is_built(inner: &Inner, generation: u64) -> Result<bool, LinkError> {
    let note = inner.link.load(vec![CellName::new(0, BUILT)]).await?;
    Ok(matches!(note.as_slice(), [Some((_, state))] if **state == generation.to_be_bytes()))
}

/// Sessions that were erased: what a node still holds of them is not sent again.
#[derive(Debug, Clone)]
pub(crate) struct Erasures(BTreeMap<i64, i64>, Names);

impl Erasures {
    pub(crate) async fn read(inner: &Inner) -> Result<Self, StoreError> {
        Ok(Self(inner.log.erasures().await?.into_iter().collect(), inner.names))
    }

    pub(crate) fn add(&mut self, session: i64, at: i64) {
        let known = self.0.entry(session).or_insert(at);
        *known = at.max(*known);
    }

    /// What operators did stays: it is of no session.
    pub(crate) fn took(&self, row: &Row) -> bool {
        let is_before = |number: i64| self.0.get(&number).is_some_and(|erased_at| row.at <= *erased_at);
        !self.0.is_empty()
            && row.kind != Kind::Admin
            && (is_before(self.1.session_number(&row.tenant, &row.session)) || is_before(Names::row_number(&row.id)))
    }

    /// The entry as it may be sent, if anything of it may.
    fn without(&self, entry: Vec<u8>) -> Option<Vec<u8>> {
        if self.0.is_empty() {
            return Some(entry);
        }
        let mut rows = entry::decode(&entry)?;
        let before = rows.len();
        rows.retain(|RowWithEffects { row, .. }| !self.took(row));
        if rows.len() == before { Some(entry) } else { (!rows.is_empty()).then(|| entry::encode(&rows)) }
    }
}

/// Rows that may not have reached the log before the streams were lost. The log drops those it has. Where the states are being
/// built already they come too late: nobody would count them. Those are brought home like what was decided alone.
async fn send_again(inner: &Inner, generation: u64) -> Result<(), LinkError> {
    let erased = Erasures::read(inner).await.map_err(|error| LinkError::Away(format!("the log is away as well: {error}")))?;
    let again = |(partition, kept): (u16, Vec<u8>)| {
        let open = SwapCell { name: CellName::new(partition, CLOSED), expect: 0, put: Put::Keep };
        let entry = erased.without(kept.clone())?;
        Some((kept, Swap { partition, cells: vec![open], entry }))
    };
    for part in inner.unconfirmed.parts() {
        let mut left: Vec<(Vec<u8>, Swap)> = inner.unconfirmed.part(part).into_iter().filter_map(again).collect();
        let mut late = Vec::new();
        while !left.is_empty() {
            let some = left.drain(..page_of(CELLS_AT_ONCE, left.iter().map(|(kept, _)| kept)));
            let some: Vec<(Vec<u8>, Swap)> = some.collect();
            let answers = match inner.swap(some.iter().map(|(_, swap)| swap.clone()).collect()).await {
                Ok(answers) => answers,
                Err(error) => {
                    inner.unconfirmed.came_late(part, late);
                    return Err(error);
                }
            };
            let mut full = Vec::new();
            for ((kept, swap), answer) in some.into_iter().zip(answers) {
                match answer {
                    Swapped::Done => {}
                    Swapped::Raced(_) => late.push(kept),
                    Swapped::Full | Swapped::Fenced => full.push((kept, swap)),
                }
            }
            if !full.is_empty() {
                // Until the log has taken what is there.
                left.splice(..0, full);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        inner.unconfirmed.came_late(part, late);
    }
    inner.unconfirmed.were_sent_again(generation, inner.clock.now_millis());
    Ok(())
}

/// What came too late, unless the log has it nevertheless.
async fn bring_late(inner: &Inner) -> Result<(), StoreError> {
    if inner.unconfirmed.late_count() == 0 {
        return Ok(());
    }
    while let Some(late) = inner.unconfirmed.next_late() {
        let rows = late.entries.iter().flat_map(|entry| entry::decode(entry).unwrap_or_default()).collect();
        bring_unknown(inner, rows, true).await?;
        inner.unconfirmed.late_is_home(&late);
    }
    Ok(())
}

/// Fills an empty database with the states that the log's events make.
async fn build(inner: &Inner, generation: u64) -> Result<(), LinkError> {
    if is_built(inner, generation).await? {
        return Ok(());
    }
    let unreadable = |error: StoreError| LinkError::Away(format!("its states cannot be built from the log: {error}"));
    // Of a database on several machines a part may have stayed, with the note of the time before.
    let noted = inner.link.load(vec![CellName::new(0, BUILT)]).await?.pop().flatten().map_or(0, |(token, _)| token);
    let positions = inner.log.positions(inner.partitions).await.map_err(unreadable)?;
    let start = from_the_start(inner.partitions);
    if positions.iter().any(|(_, at)| *at != EntryId::default()) {
        inner.log.import(&positions, Vec::new(), &start).await.map_err(unreadable)?;
        tokio::time::sleep(GRACE).await;
    }
    close(inner, generation, inner.log.generation().await.map_err(unreadable)?).await?;
    let mut reading = importer::start(inner).await.map_err(unreadable)?;
    loop {
        match import_once(inner, &reading, 0).await.map_err(unreadable)? {
            Some(next) if next == reading.positions => break,
            Some(next) => reading.positions = next,
            // The one who imports was faster: it goes on from there.
            None => reading = importer::start(inner).await.map_err(unreadable)?,
        }
    }
    let since = inner.clock.now_millis() - i64::from(inner.options.retention_days) * 24 * 3600 * 1000;
    let mut states: BTreeMap<CellName, (u8, Vec<u8>)> = BTreeMap::new();
    let mut endpoints: BTreeSet<String> = BTreeSet::new();
    let mut replay = |at: i64, tenant: &str, effects: &[u8]| {
        let effects = happened(effects);
        for (effect, cell) in effects.iter().zip(cells_of(inner, tenant, &effects)) {
            if cell.key.family == Family::Endpoint {
                endpoints.insert(endpoint_note(cell.slot, cell.subject));
            }
            let name = name_of(&cell, inner.partitions);
            let before = states.get(&name).map(|(_, state)| state.as_slice());
            if let Some(state) = (inner.rules.replay)(effect.slot, before, &effect.events, at) {
                states.insert(name, (effect.slot, state));
            }
        }
    };
    inner.log.effects_since(since, &mut replay).await.map_err(unreadable)?;
    for endpoint in endpoints {
        inner.link.note_endpoint(endpoint).await?;
    }
    let built = states.len();
    let mut swaps = states.into_iter().map(|(name, (slot, state))| {
        let keep_millis = inner.keep_millis(slot, &state);
        let put = Put::Set { token: inner.token(), state, keep_millis };
        Swap { partition: name.partition(), cells: vec![SwapCell { name, expect: 0, put }], entry: Vec::new() }
    });
    loop {
        let some: Vec<Swap> = swaps.by_ref().take(CELLS_AT_ONCE).collect();
        if some.is_empty() {
            break;
        }
        inner.swap(some).await?;
    }
    if built > 0 {
        tracing::info!(states = built, "the shared states were built from the log");
    }
    if built == 0 && inner.log.generation().await.map_err(unreadable)? == 0 {
        // Nobody has decided anything yet, as far as anybody knows.
        note_settled(inner, inner.link.server_run()).await?;
    }
    // Before the note: whoever finds it finds the log to agree.
    inner.log.set_generation(generation).await.map_err(unreadable)?;
    let note = Put::Set { token: inner.token(), state: generation.to_be_bytes().to_vec(), keep_millis: FOREVER_MILLIS };
    let cell = SwapCell { name: CellName::new(0, BUILT), expect: noted, put: note };
    match inner.swap(vec![Swap { partition: 0, cells: vec![cell], entry: Vec::new() }]).await?.pop() {
        Some(Swapped::Done) => Ok(()),
        Some(Swapped::Raced(_) | Swapped::Full | Swapped::Fenced) | None => {
            Err(LinkError::Away("another node built the states at the same time".into()))
        }
    }
}

/// From here on what is sent again is too late. With it stands what the log was last built into.
async fn close(inner: &Inner, generation: u64, built_last: u64) -> Result<(), LinkError> {
    let closing = (0..inner.partitions).map(|partition| {
        let put = Put::Set { token: inner.token(), state: built_last.to_be_bytes().to_vec(), keep_millis: FOREVER_MILLIS };
        Swap { partition, cells: vec![SwapCell { name: CellName::new(partition, CLOSED), expect: 0, put }], entry: Vec::new() }
    });
    let closed = inner.swap(closing.collect()).await?;
    // Somebody began before. If states were built elsewhere since, the database was put back to that time: what is there of its states is of
    // an older log, and may be of sessions that are erased. Versions before this one noted nothing.
    let is_of_before = |value: &Value| value.as_ref().is_some_and(|(_, noted)| !noted.is_empty() && **noted != built_last.to_be_bytes());
    let is_left_over = closed.iter().any(|answer| matches!(answer, Swapped::Raced(found) if found.iter().any(is_of_before)));
    if is_left_over && inner.log.is_shared() {
        begin_anew(inner, generation).await?;
        return Err(LinkError::emptied());
    }
    Ok(())
}

/// The cells that effects of one row touch.
fn cells_of<'a>(inner: &Inner, tenant: &str, effects: &'a [Happened]) -> SmallVec<[Cell<'a>; FEW]> {
    let first = effects.iter().find_map(|effect| (inner.rules.group)(inner.names, tenant, effect.key, effect.slot, &effect.label));
    effects.iter().map(|effect| inner.cell_of(tenant, effect.key, effect.slot, &effect.label, first)).collect()
}

/// Brings rows home that the log does not have, and that were not erased meanwhile. `doubtful`: it may have some of them.
async fn bring_unknown(inner: &Inner, mut rows: Vec<RowWithEffects>, doubtful: bool) -> Result<(), StoreError> {
    if doubtful || inner.unconfirmed.doubts(rows.iter().map(|kept| kept.row.id.as_str())) {
        // What was sent of them and has not arrived must not arrive after we have looked.
        inner.link.fence().await.map_err(|error| StoreError::Write(error.to_string()))?;
        if !inner.caught_up(FLUSH).await {
            return Err(StoreError::Read("the log is behind, so it is not known what it has".into()));
        }
        let (known, unknown) = split_known(inner, rows).await?;
        let (_, back) = split_known(inner, take_back(inner, known).await?).await?;
        rows = unknown.into_iter().chain(back).collect();
    }
    let together = Load { rows: inner.options.portions.together, bytes: BYTES_TOGETHER };
    let parcels = parcels_of(groups_of(inner, rows)?, together);
    let has_failed = &AtomicBool::new(false);
    // While some are on their way the next are made ready.
    let on_their_way = parcels.chunks(inner.options.portions.swaps).map(|some| async move {
        if has_failed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let brought = bring_parcels(inner, some).await;
        has_failed.fetch_or(brought.is_err(), Ordering::Relaxed);
        brought
    });
    let on_their_way: Vec<_> = on_their_way.collect();
    // What was begun is waited for, also when some of it failed: it must not arrive after somebody has looked what did.
    let brought: Vec<Result<(), StoreError>> = stream::iter(on_their_way).buffered(2).collect().await;
    brought.into_iter().collect()
}

/// Those that the log has, and those that it does not have.
async fn split_known(inner: &Inner, rows: Vec<RowWithEffects>) -> Result<(Vec<RowWithEffects>, Vec<RowWithEffects>), StoreError> {
    let ids: Vec<String> = rows.iter().map(|kept| kept.row.id.clone()).collect();
    let mut known = inner.log.knows(&ids).await?.into_iter();
    Ok(rows.into_iter().partition(|_| known.next() == Some(true)))
}

/// What these rows refused, and the database has granted nevertheless: its answer came to nobody. What was set aside then is given
/// back, unless the request can be sent again and gets that answer.
async fn take_back(inner: &Inner, refused: Vec<RowWithEffects>) -> Result<Vec<RowWithEffects>, StoreError> {
    let mut back = Vec::new();
    let refused = refused.into_iter().map(|kept| kept.row).filter(|row| row.outcome == Outcome::Blocked);
    let granted = refused.map(|row| async move {
        let filter = RowFilter { id: Some(row.id.clone()), ..RowFilter::default() };
        let found = inner.log.rows_with_effects(filter, Order::NewestFirst, None, 1).await?;
        Ok::<_, StoreError>((row, found.into_iter().next()))
    });
    let mut granted = stream::iter(granted).buffered(QUESTIONS_AT_ONCE);
    while let Some((row, granted)) = granted.try_next().await? {
        let Some(granted) = granted else { continue };
        let happened = granted.happened();
        if granted.row.outcome == Outcome::Blocked || happened.iter().any(|effect| effect.key.family == Family::Idempotency) {
            continue;
        }
        let undone: Vec<Happened> = happened
            .into_iter()
            .filter_map(|effect| Some(Happened { events: (inner.rules.take_back)(effect.slot, &effect.events)?, ..effect }))
            .collect();
        if !undone.is_empty() {
            let id = format!("{}{TAKEN_BACK}", row.id);
            back.push(RowWithEffects { row: Row { id, ..row }, effects: encode_happened(&undone)? });
        }
    }
    Ok(back)
}

/// How much goes together.
#[derive(Debug, Clone, Copy, Default)]
struct Load {
    rows: usize,
    bytes: usize,
}

impl Load {
    fn with(self, kept: &Kept) -> Self {
        Self { rows: self.rows + 1, bytes: self.bytes + kept.bytes.len() }
    }

    fn is_within(self, most: Self) -> bool {
        self.rows <= most.rows && self.bytes <= most.bytes
    }
}

/// A row, and what it did.
struct Kept {
    logged: RowWithEffects,
    effects: Vec<Happened>,
    /// The cell of each effect.
    names: SmallVec<[CellName; FEW]>,
    /// The row as an entry has it.
    bytes: Vec<u8>,
}

/// Rows that touch the same cells, directly or through others, in their order: each group can go without the others.
fn groups_of(inner: &Inner, rows: Vec<RowWithEffects>) -> Result<Vec<Vec<Kept>>, StoreError> {
    fn first_of(joined: &[usize], mut row: usize) -> usize {
        while joined[row] != row {
            row = joined[row];
        }
        row
    }
    // Each row's group is named by one of its rows.
    let mut joined: Vec<usize> = (0..rows.len()).collect();
    let mut last_on: HashMap<u128, usize> = HashMap::with_capacity(rows.len());
    let mut kept: Vec<Kept> = Vec::with_capacity(rows.len());
    for (index, logged) in rows.into_iter().enumerate() {
        let effects = logged.happened();
        let names: SmallVec<[CellName; FEW]> =
            cells_of(inner, &logged.row.tenant, &effects).iter().map(|cell| name_of(cell, inner.partitions)).collect();
        for name in &names {
            if let Some(earlier) = last_on.insert(number_of(name), index) {
                let (earlier, here) = (first_of(&joined, earlier), first_of(&joined, index));
                joined[earlier.max(here)] = earlier.min(here);
            }
        }
        let bytes = encode_row(&logged.row, &logged.effects)?;
        kept.push(Kept { logged, effects, names, bytes });
    }
    let mut groups: BTreeMap<usize, Vec<Kept>> = BTreeMap::new();
    for (index, kept) in kept.into_iter().enumerate() {
        groups.entry(first_of(&joined, index)).or_default().push(kept);
    }
    Ok(groups.into_values().collect())
}

/// Small groups of one partition, several in a parcel.
fn parcels_of(groups: Vec<Vec<Kept>>, together: Load) -> Vec<Vec<Vec<Kept>>> {
    let mut parcels: Vec<Vec<Vec<Kept>>> = Vec::new();
    // Of each partition: the parcel that has room, and what is in it.
    let mut open: HashMap<u16, (usize, Load)> = HashMap::new();
    for group in groups {
        let partition = group.iter().find_map(|kept| kept.names.first()).map_or(0, CellName::partition);
        let with = |load: Load| group.iter().fold(load, Load::with);
        if let Some((parcel, load)) = open.get_mut(&partition).filter(|(_, load)| with(*load).is_within(together)) {
            *load = with(*load);
            parcels[*parcel].push(group);
        } else {
            let load = with(Load::default());
            // One that is full by itself leaves the open one as it is.
            if load.is_within(together) {
                open.insert(partition, (parcels.len(), load));
            }
            parcels.push(vec![group]);
        }
    }
    parcels
}

async fn bring_parcels(inner: &Inner, parcels: &[Vec<Vec<Kept>>]) -> Result<(), StoreError> {
    // Last: what the log does not have may have been erased from it.
    let erased = Erasures::read(inner).await?;
    let parcels: Vec<_> = parcels.iter().map(|parcel| bring_parcel(inner, parcel, &erased)).collect();
    join_all(parcels).await.into_iter().collect()
}

async fn bring_parcel(inner: &Inner, parcel: &[Vec<Kept>], erased: &Erasures) -> Result<(), StoreError> {
    let groups = parcel.iter().map(|group| group.iter().filter(|kept| !erased.took(&kept.logged.row)).collect());
    let left: Vec<Vec<&Kept>> = groups.filter(|group: &Vec<&Kept>| !group.is_empty()).collect();
    if left.len() > 1 && bring(inner, &left.concat(), TRIES_TOGETHER).await? {
        return Ok(());
    }
    let alone: Vec<_> = left.iter().map(|group| bring_group(inner, group)).collect();
    join_all(alone).await.into_iter().collect()
}

async fn bring_group(inner: &Inner, group: &[&Kept]) -> Result<(), StoreError> {
    let mut left = group;
    while !left.is_empty() {
        let sizes = left.iter().map(|kept| kept.bytes.len());
        let (some, rest) = left.split_at(fitting(sizes, inner.options.portions.of_one_state, BYTES_OF_ONE_STATE));
        if !bring(inner, some, u32::MAX).await? {
            return Err(StoreError::Write(OUTRUN.into()));
        }
        left = rest;
    }
    Ok(())
}

/// Applies what rows did to the shared states, one after the other, and logs them: all or none. `false`: others were faster, each time.
async fn bring(inner: &Inner, some: &[&Kept], tries: u32) -> Result<bool, StoreError> {
    let mut cells: Vec<Cell<'_>> = Vec::new();
    // Of each row's effects: which of the cells.
    let mut places: Vec<SmallVec<[usize; FEW]>> = Vec::with_capacity(some.len());
    let mut place_of: HashMap<u128, usize> = HashMap::with_capacity(some.len());
    for Kept { logged, effects, names, .. } in some {
        let touched = cells_of(inner, &logged.row.tenant, effects).into_iter().zip(names).map(|(cell, name)| {
            *place_of.entry(number_of(name)).or_insert_with(|| {
                cells.push(cell);
                cells.len() - 1
            })
        });
        places.push(touched.collect());
    }
    let mut bytes = Vec::new();
    for (kept, places) in some.iter().zip(&places) {
        inner.note(&places.iter().map(|place| cells[*place]).collect::<SmallVec<[Cell<'_>; FEW]>>()).await;
        bytes.extend_from_slice(&kept.bytes);
    }
    let first_id = some.first().map(|kept| kept.logged.row.id.clone()).unwrap_or_default();
    let home = |view: &View<'_>| {
        let mut states: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
        for (Kept { logged, effects, .. }, places) in some.iter().zip(&places) {
            for (effect, place) in effects.iter().zip(places) {
                let before = states.get(place).map(Vec::as_slice).or_else(|| view.get(*place));
                if let Some(state) = (inner.rules.replay)(effect.slot, before, &effect.events, logged.row.at) {
                    states.insert(*place, state);
                }
            }
        }
        // The rows say what happened: the events are in their effects.
        let changes = states.into_iter().map(|(cell, state)| Change { cell, events: Vec::new(), state }).collect();
        let rows = WantedRows::Kept { first_id: first_id.clone(), count: some.len(), bytes: bytes.clone() };
        ((), Some(Wanted { rows, changes }))
    };
    match inner.share_within(tries, &cells, home).await? {
        Shared::Done(()) => Ok(true),
        Shared::Outrun => Ok(false),
        Shared::Away => Err(StoreError::Write("the shared state is away again".into())),
    }
}

/// The next rows of what was decided alone, as many as are brought together.
async fn next_part(local: &Local, mut after: Option<u64>, most: usize) -> Result<Vec<RowWithEffects>, StoreError> {
    let (mut part, mut bytes) = (Vec::new(), 0);
    while part.len() < most && bytes < BYTES_OF_PART {
        let asked = ROWS_OF_PIECE.min(most - part.len());
        let piece = local.rows_with_effects(after, asked).await?;
        let is_last = piece.len() < asked;
        bytes += piece.iter().map(|kept| kept.row.answer.len() + kept.row.input.len() + kept.effects.len()).sum::<usize>();
        after = piece.last().map_or(after, |kept| Some(kept.row.seq));
        part.extend(piece);
        if is_last {
            break;
        }
    }
    Ok(part)
}

/// Brings what was decided alone to the others, oldest first.
async fn bring_home(inner: &Inner, homecoming: &mut Homecoming) -> Result<(), StoreError> {
    let mut ahead: Option<Vec<RowWithEffects>> = None;
    // After a failure it begins small: a slow way takes less at a time.
    let mut most = ROWS_OF_PIECE.min(inner.options.portions.read);
    loop {
        let local = inner.alone.open.read().await.clone();
        let Some(local) = local else { return Ok(()) };
        let found = match ahead.take().filter(|found| !found.is_empty()) {
            Some(found) => found,
            None => next_part(&local, homecoming.brought, most).await?,
        };
        most = (most * 2).min(inner.options.portions.read);
        let Some(last) = found.last().map(|kept| kept.row.seq) else {
            drop(local);
            if inner.alone.close_if_empty(homecoming.brought).await? {
                return Ok(());
            }
            continue;
        };
        let count = found.len() as u64;
        // While this is under way some may arrive and others not.
        let doubtful = std::mem::replace(&mut homecoming.doubtful, true);
        // The next are read while these are on their way.
        let (brought, next) = futures_util::future::join(bring_unknown(inner, found, doubtful), next_part(&local, Some(last), most)).await;
        brought?;
        ahead = next.ok();
        (homecoming.doubtful, homecoming.brought) = (doubtful, Some(last));
        inner.alone.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |waiting| Some(waiting.saturating_sub(count))).ok();
        say_what_waits(inner).await.map_err(|error| StoreError::Write(error.to_string()))?;
    }
}
