//! What a node does when the shared database is away, and when it is back.
//!
//! Away: it decides in a store of its own, which begins with what it remembers of the shared states, and marks every answer.
//! Back: it learns whether anything was lost. A database that was emptied is filled again from the log, by one node, before anyone
//! decides on it. Then what was decided alone is brought home (`homecoming`): its events are applied to the shared states, its rows logged.

use crate::cluster::cells::name_of;
use crate::cluster::entry;
use crate::cluster::erasing;
use crate::cluster::homecoming::cells_of;
use crate::cluster::importer::{self, import_once};
use crate::cluster::link::{About, CellName, EntryId, LinkError, OTHER_SECRET, Put, Swap, SwapCell, Swapped, Value};
use crate::cluster::listed::{Noted, endpoint_note};
use crate::cluster::log::{Imported, Positions, as_kept};
use crate::cluster::unconfirmed::{Progress, page_of};
use crate::cluster::{CATCH_UP, Inner, from_the_start};
use crate::error::StoreError;
use crate::key::{Family, Names};
use crate::log::{RowWithEffects, happened};
use runguard_core::row::Row;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

pub(super) const PULSE: Duration = Duration::from_secs(1);
/// One node fills an emptied database, and says all the while that it does; should it die, the next may try after this time.
const BUILD_LEASE: Duration = Duration::from_secs(6);
/// Time for the other nodes to send again what the log may lack, before states are built from it.
const GRACE: Duration = Duration::from_secs(1);
/// Cells, or entries, written in one call.
const CELLS_AT_ONCE: usize = 500;
/// Where it is noted that the states were built: no state's name has this number.
const BUILT: u128 = 0;
/// In each partition: from here on rows that are sent again are too late for the states.
const CLOSED: u128 = 1;
/// The nodes that have rows to bring home, and how long each may take to say so again.
const BEHIND: u128 = 2;
const SAID_FOR_MILLIS: i64 = 20_000;
/// The server's start since which all nodes have had the time to say what they decided alone before. The numbers between are taken.
const SETTLED: u128 = 6;
/// After a time away: so long it takes until every node has seen that the database is back, and says what it decided meanwhile.
const SETTLE: Duration = Duration::from_millis(1_500);
/// Between two looks for a database that has just gone, and for one that is away.
const LOOK_SOON: Duration = Duration::from_millis(20);
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Between two looks while something is on its way home.
pub(super) const SHORT_PULSE: Duration = Duration::from_millis(50);
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

/// Tells the other nodes whether this one has rows to bring home, and learns whether any of them has, and what is being erased.
pub(crate) async fn say_what_waits(inner: &Inner) -> Result<(), LinkError> {
    let name = CellName::new(0, BEHIND);
    // What stands there and was not told to all is not said yet.
    let mut is_told = inner.health.ours_behind.load(Ordering::Acquire);
    loop {
        // Before the question: of a fence that is moved meanwhile its answer says nothing.
        let look = erasing::Look::begin(inner);
        let mut found = inner.link.load(vec![name.clone(), erasing::cell()]).await?;
        let (erasures, found) = (found.pop().flatten(), found.pop().flatten());
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
            erasing::learn(inner, look, &erasures).await;
            return Ok(());
        }
        nodes.extend(until.map(|until| (inner.node, until)));
        let put = Put::Set { token: inner.token(), state: postcard::to_stdvec(&nodes).unwrap_or_default(), keep_millis: FOREVER_MILLIS };
        let swap = Swap { partition: 0, cells: vec![SwapCell { name: name.clone(), expect, put }], entry: Vec::new() };
        if !matches!(inner.swap(vec![swap]).await?.pop(), Some(Swapped::Raced(_))) && until.is_some() {
            // Whoever does not know it yet hears of it with the next decision.
            inner.link.fence().await?;
            is_told = true;
        }
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
    let (asked, asked_at) = (Instant::now(), inner.clock.now_millis().unsigned_abs());
    let seen_since = inner.health.log_seen_since(asked_at);
    let Ok(positions) = inner.log.positions(inner.partitions).await else {
        // How far it is behind matters most while it is away.
        learn_lag(inner, &Positions::new(), seen_since).await;
        return None;
    };
    let has_all_before = inner.caught_up(CATCH_UP).await.then_some(asked);
    // Last: of a database that was emptied meanwhile, or put back to an earlier state, the log may have read what others wrote since,
    // and that stands later in the streams than what is missing.
    if !inner.is_the_one_we_know().await {
        return None;
    }
    if has_all_before.is_some() {
        inner.health.log_has_all(asked_at);
    } else {
        learn_lag(inner, &positions, seen_since).await;
    }
    Some(Progress { positions, has_all_before })
}

/// How much later the streams end than what the log has read: of one that was still for long, than when it had read all of them.
async fn learn_lag(inner: &Inner, positions: &Positions, seen_since: u64) {
    let Ok(latest) = inner.link.latest().await else { return };
    let had_all_at = inner.health.log_had_all_at.load(Ordering::Relaxed);
    let read = |partition: usize| {
        let known = positions.iter().find(|(other, at)| usize::from(*other) == partition && at.millis > 0);
        known.map_or(seen_since, |(_, at)| at.millis).max(had_all_at)
    };
    let behind = latest.iter().enumerate().map(|(partition, end)| end.millis.saturating_sub(read(partition)));
    inner.health.log_lag_millis.store(behind.max().unwrap_or(0), Ordering::Relaxed);
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
pub(super) async fn note_settled(inner: &Inner, run: u64) -> Result<(), LinkError> {
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

    pub(crate) fn took(&self, row: &Row) -> bool {
        let at = |number: i64| self.0.get(&number).copied();
        // Of a clock that was far ahead the log knows the row itself.
        let erased_at = || at(self.1.session_number(&row.tenant, &row.session)).max(at(Names::row_number(&row.id)));
        !self.0.is_empty() && erasing::is_taken(row, erased_at)
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

fn unreadable(error: impl Into<importer::Trouble>) -> LinkError {
    LinkError::Away(format!("its states cannot be built from the log: {}", error.into()))
}

/// Fills an empty database with the states that the log's events make.
async fn build(inner: &Inner, generation: u64) -> Result<(), LinkError> {
    if is_built(inner, generation).await? {
        return Ok(());
    }
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
    let erased_at = inner.log.erased_at().await.map_err(unreadable)?;
    let mut states: BTreeMap<CellName, (u8, Vec<u8>)> = BTreeMap::new();
    let mut endpoints: BTreeSet<String> = BTreeSet::new();
    let mut replay = |at: i64, tenant: &str, effects: &[u8]| {
        let effects = happened(effects);
        for (effect, cell) in effects.iter().zip(cells_of(inner.rules, inner.names, tenant, &effects)) {
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
    // Before the note: whoever finds it finds the log to agree. From here on nobody erases rows who had begun before the states were lost;
    // until here somebody may have erased what was read.
    if inner.log.set_generation(generation, erased_at).await.map_err(unreadable)? == Imported::Overtaken {
        begin_anew(inner, generation).await?;
        return Err(LinkError::emptied());
    }
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
