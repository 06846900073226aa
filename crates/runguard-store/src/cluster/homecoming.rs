//! Brings home what a node decided alone, and what a database lost.
//!
//! The rows are read and made ready in parts, the next while the last is on its way. Rows that touch the same states go in their order;
//! small groups of them share a swap, and several swaps a call.

use crate::cluster::alone::Local;
use crate::cluster::cells::{Wanted, WantedRows, name_of, number_of};
use crate::cluster::entry::{self, decode_row, encode_row};
use crate::cluster::link::CellName;
use crate::cluster::recovery::{Erasures, PULSE, SHORT_PULSE, confirm, note_settled, say_what_waits};
use crate::cluster::sharing::{OUTRUN, Shared};
use crate::cluster::{FLUSH, Inner, fitting};
use crate::error::StoreError;
use crate::key::{Family, Names};
use crate::log::{Happened, Order, RowFilter, RowWithEffects, encode_happened};
use crate::store::{Cell, Change, FEW, Rules, View};
use futures_util::future::{join, join_all};
use futures_util::stream::{self, FuturesUnordered, StreamExt as _, TryStreamExt as _};
use hashbrown::HashMap;
use runguard_core::row::{Outcome, Row};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

/// Ends the id of the row that says what a caller was told, where the database had decided otherwise under that id.
const TAKEN_BACK: &str = "-back";
/// Questions to the log that are under way together.
const QUESTIONS_AT_ONCE: usize = 16;
/// Bytes of rows in one swap: of one state, and of several.
const BYTES_OF_ONE_STATE: usize = 1 << 20;
const BYTES_TOGETHER: usize = 64 << 10;
/// Rows of several states that others were faster at are tried so often together, then by themselves.
const TRIES_TOGETHER: u32 = 3;
/// Rows that are read at first, and after a failure.
const ROWS_AT_FIRST: usize = 250;
/// The bytes that are read before they are brought.
const BYTES_OF_PART: usize = 8 << 20;
/// Well before what is said of rows on their way ends, and before it is not said any more that a session was erased.
const SAY_AGAIN: Duration = Duration::from_secs(2);

/// Tends to what is on its way: rows that may have to be sent again, and those that were decided alone.
pub(crate) async fn run(inner: &Inner) {
    // Whether some of what an earlier life left was sent before that life ended is not known.
    let mut homecoming = Homecoming { doubtful: true, brought: None };
    // Tried many times a second: what stands in the way is said once, not each time.
    let (mut late_trouble, mut alone_trouble) = (None, None);
    loop {
        tokio::time::sleep(if inner.health.is_behind() { SHORT_PULSE } else { PULSE }).await;
        confirm(inner).await;
        if inner.alone.waiting() > 0 {
            inner.alone.weigh();
        }
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
    inner.rows_come_home.store(true, Ordering::Relaxed);
    let mut brought = std::pin::pin!(brought);
    loop {
        tokio::select! {
            biased;
            brought = &mut brought => {
                inner.rows_come_home.store(false, Ordering::Relaxed);
                return brought;
            }
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

/// What came too late, unless the log has it nevertheless.
async fn bring_late(inner: &Inner) -> Result<(), StoreError> {
    if inner.unconfirmed.late_count() == 0 {
        return Ok(());
    }
    while let Some(late) = inner.unconfirmed.next_late() {
        let rows = late.entries.iter().flat_map(|entry| entry::decode(entry).unwrap_or_default());
        let rows = rows.map(|logged| Kept::of(Placed::of(inner), logged)).collect::<Result<_, _>>()?;
        bring_unknown(inner, rows, true).await?;
        inner.unconfirmed.late_is_home(&late);
    }
    Ok(())
}

/// Brings rows home that the log does not have, and that were not erased meanwhile. `doubtful`: it may have some of them.
async fn bring_unknown(inner: &Inner, mut rows: Vec<Kept>, doubtful: bool) -> Result<(), StoreError> {
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
    let mut batches = batches_of(groups_of(rows), together).into_iter();
    let swaps = inner.options.portions.swaps;
    let (mut on_their_way, mut brought) = (FuturesUnordered::new(), Ok(()));
    while brought.is_ok() && batches.len() > 0 {
        // Last: what the log does not have may have been erased from it.
        let erased = match Erasures::read(inner).await {
            Ok(erased) => Arc::new(erased),
            Err(error) => {
                brought = Err(error);
                break;
            }
        };
        on_their_way.extend(batches.by_ref().take(swaps).map(|batch| bring_batch(inner, batch, erased.clone())));
        // While some are on their way the next are made ready. Those that were just added begin here, before it is read again what was erased.
        while on_their_way.len() >= swaps
            && let Some(one) = on_their_way.next().await
        {
            brought = brought.and(one);
        }
    }
    // What was begun is waited for, also when some of it failed: it must not arrive after somebody has looked what did.
    while let Some(one) = on_their_way.next().await {
        brought = brought.and(one);
    }
    brought
}

/// Those that the log has, and those that it does not have.
async fn split_known(inner: &Inner, rows: Vec<Kept>) -> Result<(Vec<Kept>, Vec<Kept>), StoreError> {
    let ids: Vec<String> = rows.iter().map(|kept| kept.row.id.clone()).collect();
    let mut known = inner.log.knows(&ids).await?.into_iter();
    Ok(rows.into_iter().partition(|_| known.next() == Some(true)))
}

/// What these rows refused, and the database has granted nevertheless: its answer came to nobody. What was set aside then is given
/// back, unless the request can be sent again and gets that answer.
async fn take_back(inner: &Inner, refused: Vec<Kept>) -> Result<Vec<Kept>, StoreError> {
    let mut back = Vec::new();
    let refused = refused.into_iter().filter(|kept| kept.row.outcome == Outcome::Blocked).filter_map(|kept| decode_row(&kept.bytes));
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
            let logged = RowWithEffects { row: Row { id, ..row }, effects: encode_happened(&undone)? };
            back.push(Kept::of(Placed::of(inner), logged)?);
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

/// What tells where states live.
#[derive(Debug, Clone, Copy)]
struct Placed {
    rules: Rules,
    names: Names,
    partitions: u16,
}

impl Placed {
    fn of(inner: &Inner) -> Self {
        Self { rules: inner.rules, names: inner.names, partitions: inner.partitions }
    }
}

/// The cells that effects of one row touch.
pub(super) fn cells_of<'a>(rules: Rules, names: Names, tenant: &str, effects: &'a [Happened]) -> SmallVec<[Cell<'a>; FEW]> {
    let first = effects.iter().find_map(|effect| (rules.group)(names, tenant, effect.key, effect.slot, &effect.label));
    effects.iter().map(|effect| rules.cell_of(names, tenant, effect.key, effect.slot, &effect.label, first)).collect()
}

/// A row, and what it did.
#[derive(Debug)]
struct Kept {
    /// Without what it was asked and answered: the bytes have that.
    row: Row,
    effects: Vec<Happened>,
    /// Of each effect: its cell, and what that lives with.
    places: SmallVec<[(CellName, u64); FEW]>,
    /// The row as an entry has it.
    bytes: Vec<u8>,
}

impl Kept {
    fn of(Placed { rules, names, partitions }: Placed, mut logged: RowWithEffects) -> Result<Self, StoreError> {
        let effects = logged.happened();
        let places = {
            let cells = cells_of(rules, names, &logged.row.tenant, &effects);
            cells.iter().map(|cell| (name_of(cell, partitions), cell.group)).collect()
        };
        let bytes = encode_row(&logged.row, &logged.effects)?;
        (logged.row.answer, logged.row.input) = Default::default();
        Ok(Self { row: logged.row, effects, places, bytes })
    }

    fn cells(&self) -> impl Iterator<Item = (Cell<'_>, u128)> {
        self.effects.iter().zip(&self.places).map(|(effect, (name, group))| {
            (Cell { key: effect.key, slot: effect.slot, subject: &effect.label, group: *group }, number_of(name))
        })
    }
}

/// Rows that touch the same cells, directly or through others, in their order: each group can go without the others.
fn groups_of(rows: Vec<Kept>) -> Vec<Vec<Kept>> {
    fn first_of(joined: &[usize], mut row: usize) -> usize {
        while joined[row] != row {
            row = joined[row];
        }
        row
    }
    // Each row's group is named by one of its rows.
    let mut joined: Vec<usize> = (0..rows.len()).collect();
    let mut last_on: HashMap<u128, usize> = HashMap::with_capacity(rows.len());
    for (index, kept) in rows.iter().enumerate() {
        for (name, _) in &kept.places {
            if let Some(earlier) = last_on.insert(number_of(name), index) {
                let (earlier, here) = (first_of(&joined, earlier), first_of(&joined, index));
                joined[earlier.max(here)] = earlier.min(here);
            }
        }
    }
    let mut groups: BTreeMap<usize, Vec<Kept>> = BTreeMap::new();
    for (index, kept) in rows.into_iter().enumerate() {
        groups.entry(first_of(&joined, index)).or_default().push(kept);
    }
    groups.into_values().collect()
}

/// Small groups of one partition, several in a batch.
fn batches_of(groups: Vec<Vec<Kept>>, together: Load) -> Vec<Vec<Vec<Kept>>> {
    let mut batches: Vec<Vec<Vec<Kept>>> = Vec::new();
    // Of each partition: the batch that has room, and what is in it.
    let mut open: HashMap<u16, (usize, Load)> = HashMap::new();
    for group in groups {
        let partition = group.iter().find_map(|kept| kept.places.first()).map_or(0, |(name, _)| name.partition());
        let with = |load: Load| group.iter().fold(load, Load::with);
        if let Some((batch, load)) = open.get_mut(&partition).filter(|(_, load)| with(*load).is_within(together)) {
            *load = with(*load);
            batches[*batch].push(group);
        } else {
            let load = with(Load::default());
            // One that is full by itself leaves the open one as it is.
            if load.is_within(together) {
                open.insert(partition, (batches.len(), load));
            }
            batches.push(vec![group]);
        }
    }
    batches
}

async fn bring_batch(inner: &Inner, batch: Vec<Vec<Kept>>, erased: Arc<Erasures>) -> Result<(), StoreError> {
    let groups = batch.iter().map(|group| group.iter().filter(|kept| !erased.took(&kept.row)).collect());
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
    for kept in some {
        let touched = kept.cells().map(|(cell, number)| {
            *place_of.entry(number).or_insert_with(|| {
                cells.push(cell);
                cells.len() - 1
            })
        });
        places.push(touched.collect());
    }
    for places in &places {
        inner.note(&places.iter().map(|place| cells[*place]).collect::<SmallVec<[Cell<'_>; FEW]>>()).await;
    }
    let first_id = some.first().map(|kept| kept.row.id.clone()).unwrap_or_default();
    let home = |view: &View<'_>| {
        let mut states: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
        // Asked each time: a session may have been erased since the last.
        let is_left: Vec<bool> = some.iter().map(|kept| !inner.erasing.took(inner, &kept.row)).collect();
        let left = || some.iter().zip(&places).zip(&is_left).filter(|(_, is_left)| **is_left).map(|(kept, _)| kept);
        for (Kept { row, effects, .. }, places) in left() {
            for (effect, place) in effects.iter().zip(places) {
                let before = states.get(place).map(Vec::as_slice).or_else(|| view.get(*place));
                if let Some(state) = (inner.rules.replay)(effect.slot, before, &effect.events, row.at) {
                    states.insert(*place, state);
                }
            }
        }
        // The rows say what happened: the events are in their effects.
        let changes = states.into_iter().map(|(cell, state)| Change { cell, events: Vec::new(), state }).collect();
        let mut bytes = Vec::with_capacity(left().map(|(kept, _)| kept.bytes.len()).sum());
        for (kept, _) in left() {
            bytes.extend_from_slice(&kept.bytes);
        }
        let count = left().count();
        let rows = WantedRows::Kept { first_id: first_id.clone(), count, bytes };
        ((), (count > 0).then_some(Wanted { rows, changes }))
    };
    match inner.share_within(tries, &cells, home).await? {
        Shared::Done(()) => Ok(true),
        Shared::Outrun => Ok(false),
        Shared::Away => Err(StoreError::Write("the shared state is away again".into())),
    }
}

/// The next rows of what was decided alone, as many as are brought together.
async fn next_part(inner: &Inner, local: &Local, after: Option<u64>, most: usize) -> Result<Vec<Kept>, StoreError> {
    let placed = Placed::of(inner);
    let part = local.part(after, most, BYTES_OF_PART, move |logged| Kept::of(placed, logged)).await?;
    part.into_iter().collect()
}

/// Brings what was decided alone to the others, oldest first.
async fn bring_home(inner: &Inner, homecoming: &mut Homecoming) -> Result<(), StoreError> {
    let mut ahead: Option<Vec<Kept>> = None;
    // After a failure it begins small: a slow way takes less at a time.
    let mut most = ROWS_AT_FIRST.min(inner.options.portions.read);
    loop {
        let local = inner.alone.open.read().await.clone();
        let Some(local) = local else { return Ok(()) };
        let found = match ahead.take().filter(|found| !found.is_empty()) {
            Some(found) => found,
            None => next_part(inner, &local, homecoming.brought, most).await?,
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
        // The next are read while these are on their way: asked for first, somebody else does it.
        let (next, brought) = join(next_part(inner, &local, Some(last), most), bring_unknown(inner, found, doubtful)).await;
        brought?;
        ahead = next.ok();
        (homecoming.doubtful, homecoming.brought) = (doubtful, Some(last));
        inner.alone.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |waiting| Some(waiting.saturating_sub(count))).ok();
        say_what_waits(inner).await.map_err(|error| StoreError::Write(error.to_string()))?;
    }
}
