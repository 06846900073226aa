//! What an erasure takes away, and in which order.
//!
//! First everything is looked through that is there; then the session is [held](super::erasing::hold), and what came meanwhile is looked through
//! as well. Only then something goes: the states that its rows made, those that came about in other sessions' steps, and at last the rows. From the
//! first state on it is finished, whoever does it: as long as some of it is there, the rows say what else there is.

use crate::cluster::claims::claim_of;
use crate::cluster::entry::{self, decode_row, encode_row};
use crate::cluster::erasing::{APART_MILLIS, Going, Held, Hold, hold};
use crate::cluster::link::{CellName, EntryId, Put, Swap, SwapCell, Swapped};
use crate::cluster::listed::{foreign_cells_of, read_foreign_cells};
use crate::cluster::{CATCH_UP_HELD, FLUSH, Inner, LOG_BEHIND, ROWS_OF_SESSION, TOMBSTONE_MILLIS, recovery};
use crate::error::StoreError;
use crate::key::{Family, Key};
use crate::log::{Order, RowFilter, RowWithEffects, encode_erasure};
use crate::store::{Cell, Erased, Unfinished};
use futures_util::future::FutureExt as _;
use runguard_core::row::Row;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// States taken away in one call.
const AT_ONCE: usize = 500;
/// How long a stream at its bound is waited for.
const ROOM: Duration = Duration::from_secs(5);

const STATES_ANEW: &str = "the states of the shared database are built anew; try again";

/// Whose everything goes.
#[derive(Debug, Clone, Copy)]
struct Whose<'a> {
    tenant: &'a str,
    session: &'a str,
    entry: Key,
}

/// What somebody asks for.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    /// What is to tell of it in the log.
    pub(super) row: Row,
    /// It was asked for before, and the session had last been erased then: one that was erased since has begun anew.
    pub(super) earlier: Option<i64>,
}

/// What its rows tell of: the last of them, how many there are, the latest of their times, and where their states are.
#[derive(Debug, Default)]
struct Found {
    /// Where the log's erasures were before the first look.
    erased_at: Option<(u16, EntryId)>,
    upto: Option<u64>,
    rows: usize,
    latest: i64,
    names: BTreeSet<CellName>,
}

impl Found {
    async fn begin(inner: &Inner) -> Result<Self, StoreError> {
        Ok(Self { erased_at: inner.log.erased_at().await?, ..Self::default() })
    }

    /// All that there is, also where another erasure took some of what was seen.
    async fn or_anew(self, inner: &Inner) -> Result<Self, StoreError> {
        let anew = Self::begin(inner).await?;
        Ok(if anew.erased_at == self.erased_at { self } else { anew })
    }

    /// Looks through the rows that were not seen before.
    async fn look_on(&mut self, inner: &Inner, Whose { tenant, session, entry }: Whose<'_>) -> Result<(), StoreError> {
        let filter = RowFilter { tenant: Some(tenant.into()), session: Some(session.into()), ..RowFilter::default() };
        loop {
            let found = inner.log.rows_with_effects(filter.clone(), Order::OldestFirst, self.upto, ROWS_OF_SESSION).await?;
            let Some(last) = found.last() else { return Ok(()) };
            self.upto = Some(last.row.seq);
            self.rows += found.len();
            for kept in &found {
                self.latest = self.latest.max(kept.row.at);
                let happened = kept.happened();
                let first =
                    happened.iter().find_map(|effect| (inner.rules.group)(inner.names, tenant, effect.key, effect.slot, &effect.label));
                for effect in happened.iter().filter(|effect| effect.key == entry || effect.key.family == Family::Idempotency) {
                    self.names.insert(inner.name(&inner.cell_of(tenant, effect.key, effect.slot, &effect.label, first)));
                    if effect.key.family == Family::Idempotency {
                        self.names.insert(inner.name(&claim_of(effect.key)));
                    }
                }
            }
        }
    }

    /// Whether there is nothing, also of what other sessions' steps made.
    async fn is_nothing(&self, inner: &Inner, Whose { tenant, entry, .. }: Whose<'_>) -> Result<bool, StoreError> {
        if self.rows > 0 {
            return Ok(false);
        }
        let foreign = inner.foreign_cells(entry).await?;
        let cells: Vec<Cell<'_>> = foreign.iter().map(|(slot, label)| inner.cell_of(tenant, entry, *slot, label, None)).collect();
        Ok(inner.load(&cells).await?.iter().all(Option::is_none))
    }
}

pub(super) async fn erase(inner: &Arc<Inner>, tenant: &str, session: &str, asked: Asked) -> Result<Option<Erased>, StoreError> {
    if let Some(why) = inner.health.why() {
        return Err(StoreError::NotErased(format!("{why}; what it lost may still come back to the log; try again")));
    }
    if !inner.caught_up(FLUSH).await {
        return Err(StoreError::NotErased(LOG_BEHIND.into()));
    }
    let whose = Whose { tenant, session, entry: inner.names.key(Family::Session, tenant, session) };
    if let Some(row) = logged(inner, &asked.row).await? {
        return Ok(Some(Erased { log_rows: 0, row, unfinished: None }));
    }
    // Most of it while the session is still decided for: what comes meanwhile is little.
    let mut found = Found::begin(inner).await?;
    found.look_on(inner, whose).await?;
    if found.is_nothing(inner, whose).await? {
        return Ok(None);
    }
    let Some(held) = hold(inner, whose.entry, Hold::InTurn).await? else { return Ok(None) };
    // Two erasures of one session in one go are one: whoever asked for either finds in the log that it took place.
    let asked = match held.left() {
        Some(left) => Asked { row: row_of(left)?, ..asked },
        None => asked,
    };
    let row = asked.row.clone();
    let erased = held.while_held(erase_to_the_end(inner, &held, whose, found, asked).boxed()).await;
    let (is_going, earlier) = (held.is_going(), held.earlier());
    held.let_go().await;
    match erased {
        Err(error) if is_going => {
            let unfinished = Unfinished { why: error.to_string(), earlier };
            Ok(Some(Erased { log_rows: 0, row, unfinished: Some(unfinished) }))
        }
        erased => erased,
    }
}

/// What the log tells of this very erasure, whoever did it: it may have taken place later than it was asked for. What there is of the session
/// then is a new life.
async fn logged(inner: &Inner, row: &Row) -> Result<Option<Row>, StoreError> {
    if inner.log.knows(std::slice::from_ref(&row.id)).await? != [true] {
        return Ok(None);
    }
    let filter = RowFilter { id: Some(row.id.clone()), tenant: Some(row.tenant.to_string()), ..RowFilter::default() };
    Ok(inner.log.rows(filter, Order::NewestFirst, None, 1).await?.pop().or_else(|| Some(row.clone())))
}

fn row_of(going: &Going) -> Result<Row, StoreError> {
    decode_row(&going.row).ok_or_else(|| StoreError::NotErased("what its node left cannot be read".into()))
}

/// Erases a session that nobody decides for meanwhile, and lets it be decided for again.
async fn erase_to_the_end(inner: &Inner, held: &Held, whose: Whose<'_>, found: Found, asked: Asked) -> Result<Option<Erased>, StoreError> {
    let erased = erase_held(inner, held, whose, found, asked).await?;
    if held.is_going() {
        held.is_done().await?;
    }
    Ok(erased)
}

/// Erases a session that nobody decides for meanwhile.
async fn erase_held(inner: &Inner, held: &Held, whose: Whose<'_>, found: Found, asked: Asked) -> Result<Option<Erased>, StoreError> {
    let mut row = asked.row;
    held.shut().await?;
    let built = inner.log.generation().await?;
    if !inner.caught_up(CATCH_UP_HELD).await {
        return Err(StoreError::NotErased(LOG_BEHIND.into()));
    }
    // Another node finished it, since this one had to leave it. Copies of the log hear of it from each stream: whoever goes on tells all.
    if (inner.log.is_shared() || !held.is_going())
        && let Some(row) = logged(inner, &row).await?
    {
        return Ok(Some(Erased { log_rows: 0, row, unfinished: None }));
    }
    let earlier = held.learn_earlier(inner.names.session_number(whose.tenant, whose.session)).await?;
    // What goes is finished, whatever came before it.
    if !held.is_going() && asked.earlier.is_some_and(|known| earlier > known) {
        return Ok(Some(Erased { log_rows: 0, row: Row { at: earlier, ..row }, unfinished: None }));
    }
    let mut found = found.or_anew(inner).await?;
    found.look_on(inner, whose).await?;
    if !held.is_going() && found.is_nothing(inner, whose).await? {
        return Ok(None);
    }
    // After every row of the session that there is, by whatever node's clock, and after every erasure of it: so one is told from the next. What is
    // decided later has a later time.
    let at = row.at.max(found.latest.min(inner.clock.now_millis() + APART_MILLIS)).max(earlier.saturating_add(1));
    // What was begun keeps its row: with another time it could stand in the log twice.
    if held.left().is_none() {
        row.at = at;
    }
    let going = Going { tenant: whose.tenant.to_owned(), session: whose.session.to_owned(), row: encode_row(&row, &[])? };
    held.goes(at, &going).await?;
    let log_rows = take(inner, held, whose, &found, row.clone(), built).await?;
    Ok(Some(Erased { log_rows, row, unfinished: None }))
}

/// Finishes what somebody else has begun. It is not over before it is noted who is to tell all nodes of it: until then another one goes on
/// with it, whatever becomes of this one.
pub(super) async fn finish(inner: &Arc<Inner>, entry: Key) -> Result<(), StoreError> {
    let Some(held) = hold(inner, entry, Hold::IfLeft).await? else { return Ok(()) };
    let Some(going) = held.left().cloned() else { return Ok(()) };
    let whose = Whose { tenant: &going.tenant, session: &going.session, entry };
    let (row, found) = (row_of(&going)?, Found::begin(inner).await?);
    let finished = held.while_held(
        async {
            if let Some(Erased { row, .. }) = erase_held(inner, &held, whose, found, Asked { row, earlier: None }).await? {
                inner.erasing.finished(whose.tenant, whose.session, row).await?;
            }
            held.is_done().await
        }
        .boxed(),
    );
    let finished = finished.await;
    held.let_go().await;
    finished?;
    tracing::info!("an erasure was finished that another node, or an earlier try, had begun");
    Ok(())
}

/// Takes everything, while it is held. `built`: of the database whose states were last built from the log, before anything went.
async fn take(inner: &Inner, held: &Held, whose: Whose<'_>, found: &Found, row: Row, built: u64) -> Result<usize, StoreError> {
    let Whose { tenant, session, entry } = whose;
    remove(inner, held, found.names.iter().cloned().collect()).await?;
    // The marks are in the first one.
    let mut touched: BTreeSet<u16> = found.names.iter().map(CellName::partition).chain([0]).collect();
    // Another session's step may note one meanwhile: the list goes only as it was read.
    let list = inner.name(&foreign_cells_of(entry));
    loop {
        let failed = |error: crate::cluster::link::LinkError| StoreError::NotErased(error.to_string());
        let listed = inner.link.load(vec![list.clone()]).await.map_err(failed)?.pop().flatten();
        let (expect, foreign) = listed.map_or((0, Vec::new()), |(token, state)| (token, read_foreign_cells(&state)));
        let cells = foreign.iter().map(|(slot, label)| inner.name(&inner.cell_of(tenant, entry, *slot, label, None)));
        let cells: Vec<CellName> = cells.collect();
        touched.extend(cells.iter().chain([&list]).map(CellName::partition));
        remove(inner, held, cells).await?;
        let left = held.swap(&[taken_away(inner, list.clone(), expect)]).await?;
        if !left.iter().any(|answer| matches!(answer, Swapped::Raced(_))) {
            inner.cells.forget(&list);
            break;
        }
    }
    recovery::confirm(inner).await;
    if inner.log.is_shared() {
        // The log has read what stands behind all of this before the first row goes: so a database that is put back to the time before, or a
        // replica that takes its place and lacks the end, is seen to be older.
        let behind = |partition| Swap { partition, cells: Vec::new(), entry: entry::encode(&[]) };
        add(held, touched.into_iter().map(behind).collect()).await?;
        if !inner.caught_up(CATCH_UP_HELD).await {
            return Err(StoreError::NotErased(LOG_BEHIND.into()));
        }
        held.look().await?;
        // Where the states are built anew its rows are read: they stay until that is done.
        let erasure = RowWithEffects { row, effects: encode_erasure(std::iter::once(&entry)) };
        let erased = inner.log.erase_rows(tenant, session, erasure, found.upto.unwrap_or(0), built).await?;
        return erased.ok_or_else(|| StoreError::NotErased(STATES_ANEW.into()));
    }
    held.look().await?;
    // Every node has a copy: the streams tell all of them, this one too. Each of them does: what is decided later stands behind it.
    let erasure = entry::encode(&[RowWithEffects { row, effects: entry::erasure_of(inner.names.session_number(tenant, session)) }]);
    let swap = |partition| Swap { partition, cells: Vec::new(), entry: erasure.clone() };
    add(held, (0..inner.partitions).map(swap).collect()).await?;
    inner.caught_up(FLUSH).await;
    Ok(found.rows)
}

/// What stands for a cell afterwards: whatever is still under way to it finds another token.
fn taken_away(inner: &Inner, name: CellName, expect: u64) -> Swap {
    let put = Put::Set { token: inner.token(), state: Vec::new(), keep_millis: TOMBSTONE_MILLIS };
    Swap { partition: name.partition(), cells: vec![SwapCell { name, expect, put }], entry: Vec::new() }
}

/// Takes cells away, whatever others do to them meanwhile.
async fn remove(inner: &Inner, held: &Held, mut names: Vec<CellName>) -> Result<(), StoreError> {
    while !names.is_empty() {
        let some: Vec<CellName> = names.drain(names.len().saturating_sub(AT_ONCE)..).collect();
        let there = inner.link.load(some.clone()).await.map_err(|error| StoreError::NotErased(error.to_string()))?;
        let tokens = there.iter().map(|value| value.as_ref().map_or(0, |(token, _)| *token));
        let swaps: Vec<Swap> = some.iter().cloned().zip(tokens).map(|(name, expect)| taken_away(inner, name, expect)).collect();
        for (name, answer) in some.into_iter().zip(held.swap(&swaps).await?) {
            match answer {
                // Looked at again.
                Swapped::Raced(_) => names.push(name),
                Swapped::Done | Swapped::Full | Swapped::Fenced => inner.cells.forget(&name),
            }
        }
    }
    Ok(())
}

/// Adds entries to streams, as soon as there is room.
async fn add(held: &Held, mut swaps: Vec<Swap>) -> Result<(), StoreError> {
    let began = Instant::now();
    loop {
        let answers = held.swap(&swaps).await?;
        let mut full = answers.iter().map(|answer| *answer == Swapped::Full);
        swaps.retain(|_| full.next() == Some(true));
        if swaps.is_empty() {
            return Ok(());
        }
        if began.elapsed() >= ROOM {
            return Err(StoreError::NotErased("a stream is at its bound".into()));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
