//! Everything in memory, behind one lock: the promise of a store with nothing in its way.
//!
//! It is what the others are compared with, so it is kept as plain as can be. Nothing in it has a bound; it is not offered to
//! anyone who serves.

#![allow(clippy::unused_async, reason = "the other stores wait where this one need not")]

use crate::cluster::link::EntryId;
use crate::cluster::{ERASED_AT, GENERATION_AT, Imported, Positions};
use crate::error::StoreError;
use crate::key::{Family, Key, Names};
use crate::log::{Follow, Follower, Order, RowFilter, RowWithEffects, count_by_minutes, encode_effects};
use crate::store::{Cell, Decided, Erased, Labelled, SlotState, StoreHealth, View};
use runguard_core::row::{Kind, Row, RowCount, RowRef};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

#[derive(Debug, Default)]
struct MemoryTables {
    /// By entry, then by slot and subject.
    states: BTreeMap<Key, BTreeMap<(u8, String), Vec<u8>>>,
    rows: Vec<RowWithEffects>,
    /// Checks by tenant and minute. They name nobody, so they stay when a session is erased.
    counts: BTreeMap<(Arc<str>, RowCount), u64>,
    last_seq: u64,
    stopped: bool,
    /// As the log of a cluster: how far each stream was read.
    positions: BTreeMap<u16, EntryId>,
    erased: BTreeMap<i64, i64>,
    /// The rows that tell of it, of every session in their order.
    erasures_told: Vec<(i64, String)>,
    log_fault: LogFault,
}

/// What is wrong with the log of a simulated cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFault {
    #[default]
    Sound,
    /// It neither reads nor writes.
    Away,
    /// What is imported stays, but whoever did it is told that it failed.
    AnswersLost,
    /// No rows can be removed.
    ErasesNothing,
    /// Whoever removes rows waits for a connection.
    ErasesLate,
}

impl MemoryTables {
    fn as_log(&self) -> Result<(), StoreError> {
        match self.log_fault {
            LogFault::Sound | LogFault::AnswersLost | LogFault::ErasesNothing | LogFault::ErasesLate => Ok(()),
            LogFault::Away => Err(StoreError::Read("the log is away".into())),
        }
    }
}

#[derive(Debug, Clone)]
pub struct Memory {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    health: StoreHealth,
    held: Mutex<MemoryTables>,
    committed: watch::Sender<u64>,
}

impl Default for Memory {
    fn default() -> Self {
        Self::health(StoreHealth::Sound)
    }
}

impl MemoryTables {
    fn push(&mut self, kept: RowWithEffects) {
        let Row { seq, at, tenant, guard, kind, outcome, reason, .. } = &kept.row;
        self.last_seq = *seq;
        if *kind == Kind::Check {
            let (guard, outcome, reason) = (guard.clone(), outcome.clone(), reason.clone());
            let counted = RowCount { minute: at.div_euclid(60_000), guard, outcome, reason, count: 0 };
            *self.counts.entry((tenant.clone(), counted)).or_default() += 1;
        }
        self.rows.push(kept);
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, MemoryTables> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn append(&self, held: &mut MemoryTables, row: Row, effects: Vec<u8>) {
        let seq = held.last_seq + 1;
        held.push(RowWithEffects { row: Row { seq, ..row }, effects });
        self.committed.send_replace(held.last_seq);
    }
}

impl Memory {
    fn health(health: StoreHealth) -> Self {
        Self { inner: Arc::new(Inner { health, held: Mutex::default(), committed: watch::Sender::new(0) }) }
    }

    /// The disk of a simulated node that goes on alone.
    pub fn alone() -> Self {
        Self::health(StoreHealth::Away)
    }

    /// As the log of a simulated cluster.
    pub fn set_log_fault(&self, fault: LogFault) {
        self.inner.lock().log_fault = fault;
    }

    /// All that the log holds, whatever is wrong with it.
    pub fn every_row(&self) -> Vec<Row> {
        self.inner.lock().rows.iter().map(|kept| kept.row.clone()).collect()
    }

    /// As the log of a simulated cluster: when a session was last erased.
    pub fn erased_session(&self, tenant: &str, session: &str) -> Option<i64> {
        self.inner.lock().erased.get(&Names::PLAIN.session_number(tenant, session)).copied()
    }

    /// As the log of a simulated cluster: the rows that tell of a session's erasures, in their order.
    pub fn erasures_told(&self, tenant: &str, session: &str) -> Vec<String> {
        let number = Names::PLAIN.session_number(tenant, session);
        self.inner.lock().erasures_told.iter().filter(|(other, _)| *other == number).map(|(_, id)| id.clone()).collect()
    }

    /// Which database the log was last built into.
    pub fn generation(&self) -> EntryId {
        self.inner.lock().positions.get(&GENERATION_AT).copied().unwrap_or_default()
    }

    /// As earlier versions leave it, which do not say what they build.
    pub fn put_generation_back(&self, generation: EntryId) {
        self.inner.lock().positions.insert(GENERATION_AT, generation);
    }

    pub(crate) fn clear(&self) {
        *self.inner.lock() = MemoryTables::default();
    }

    pub(crate) fn remember(&self, cells: &[Cell<'_>], states: Vec<Option<Vec<u8>>>) {
        let mut held = self.inner.lock();
        for (cell, state) in cells.iter().zip(states) {
            if let Some(state) = state {
                held.states.entry(cell.key).or_default().entry((cell.slot, cell.subject.to_owned())).or_insert(state);
            }
        }
    }

    pub(crate) async fn import(
        &self,
        from: &[(u16, EntryId)],
        rows: Vec<RowWithEffects>,
        upto: &[(u16, EntryId)],
    ) -> Result<Imported, StoreError> {
        let mut held = self.inner.lock();
        held.as_log()?;
        if from.iter().any(|(partition, at)| held.positions.get(partition).copied().unwrap_or_default() != *at) {
            return Ok(Imported::Overtaken);
        }
        held.positions.extend(upto.iter().copied());
        let mut known: std::collections::BTreeSet<String> = held.rows.iter().map(|kept| kept.row.id.clone()).collect();
        for RowWithEffects { row, effects } in rows.into_iter().filter(|logged| known.insert(logged.row.id.clone())) {
            let seq = held.last_seq + 1;
            held.push(RowWithEffects { row: Row { seq, ..row }, effects });
        }
        self.inner.committed.send_replace(held.last_seq);
        if held.log_fault == LogFault::AnswersLost {
            return Err(StoreError::Write("the connection to the log was cut".into()));
        }
        Ok(Imported::Done)
    }

    pub(crate) async fn positions(&self, partitions: u16) -> Result<Positions, StoreError> {
        let held = self.inner.lock();
        held.as_log()?;
        Ok((0..partitions).map(|partition| (partition, held.positions.get(&partition).copied().unwrap_or_default())).collect())
    }

    pub(crate) async fn position_of(&self, partition: u16) -> Result<EntryId, StoreError> {
        let held = self.inner.lock();
        held.as_log()?;
        Ok(held.positions.get(&partition).copied().unwrap_or_default())
    }

    pub(crate) async fn knows(&self, ids: &[String]) -> Result<Vec<bool>, StoreError> {
        let held = self.inner.lock();
        held.as_log()?;
        Ok(ids.iter().map(|id| held.rows.iter().any(|kept| kept.row.id == *id)).collect())
    }

    pub(crate) async fn erase_rows(
        &self,
        (built, at): (u16, EntryId),
        tenant: &str,
        session: &str,
        row: Row,
        upto: u64,
    ) -> Result<Option<usize>, StoreError> {
        while self.inner.lock().log_fault == LogFault::ErasesLate {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let mut held = self.inner.lock();
        held.as_log()?;
        if held.positions.get(&built).copied().unwrap_or_default() != at {
            return Ok(None);
        }
        if held.log_fault == LogFault::ErasesNothing {
            return Err(StoreError::Write("the log removes nothing".into()));
        }
        let goes = |other: &Row| *other.tenant == *tenant && other.session == session && other.seq <= upto;
        // A node whose clock is ahead may have decided after the erasure, by its own time.
        let ahead = held.rows.iter().map(|kept| &kept.row).filter(|other| goes(other) && other.at > row.at);
        let taken: Vec<(i64, i64)> = ahead.map(|other| (Names::row_number(&other.id), other.at)).collect();
        held.erased.extend(taken);
        let number = Names::PLAIN.session_number(tenant, session);
        let at = held.erased.entry(number).or_insert(row.at);
        *at = row.at.max(*at);
        let before = held.rows.len();
        held.rows.retain(|kept| !goes(&kept.row));
        let log_rows = before - held.rows.len();
        let moved = EntryId { millis: held.last_seq + 1, number: 0 };
        held.positions.insert(ERASED_AT, moved);
        // Whoever else goes on with the same erasure may have told of it, with a time of its own.
        if !held.rows.iter().any(|kept| kept.row.id == row.id) {
            held.erasures_told.push((number, row.id.clone()));
            self.inner.append(&mut held, row, Vec::new());
        }
        Ok(Some(log_rows))
    }

    pub(crate) async fn erasures(&self) -> Result<Vec<(i64, i64)>, StoreError> {
        let held = self.inner.lock();
        held.as_log()?;
        Ok(held.erased.iter().map(|(number, at)| (*number, *at)).collect())
    }

    pub(crate) async fn erasure_of(&self, session: i64) -> Result<Option<i64>, StoreError> {
        let held = self.inner.lock();
        held.as_log()?;
        Ok(held.erased.get(&session).copied())
    }

    pub(crate) async fn effects_since(
        &self,
        since_millis: i64,
        visit: &mut (dyn FnMut(i64, &str, &[u8]) + Send),
    ) -> Result<(), StoreError> {
        let found: Vec<RowWithEffects> = {
            let held = self.inner.lock();
            held.as_log()?;
            held.rows.iter().filter(|kept| kept.row.at >= since_millis).cloned().collect()
        };
        for kept in found {
            visit(kept.row.at, &kept.row.tenant, &kept.effects);
        }
        Ok(())
    }

    pub async fn apply<R>(&self, cells: &[Cell<'_>], mut step: impl FnMut(&View<'_>) -> Decided<R>) -> Result<R, StoreError> {
        let mut held = self.inner.lock();
        if held.stopped {
            return Err(StoreError::Stopping);
        }
        let states =
            cells.iter().map(|cell| held.states.get(&cell.key)?.get(&(cell.slot, cell.subject.to_owned())).map(Vec::as_slice)).collect();
        let view = View { states, safe: cells.iter().map(|_| true).collect(), health: self.inner.health, not_before: i64::MIN };
        let decided = step(&view);
        drop(view);
        match decided {
            Decided::Reply(reply) => Ok(reply),
            Decided::Keep(reply, written) => {
                let effects = encode_effects(cells, &written.changes)?;
                for change in written.changes {
                    let cell = cells[change.cell];
                    held.states.entry(cell.key).or_default().insert((cell.slot, cell.subject.to_owned()), change.state);
                }
                self.inner.append(&mut held, written.row, effects);
                Ok(reply)
            }
        }
    }

    pub async fn states(&self, tenant: &str, session: &str) -> Result<Vec<SlotState>, StoreError> {
        let held = self.inner.lock();
        let entry = held.states.get(&Key::new(Family::Session, tenant, session));
        let states = entry.into_iter().flatten();
        Ok(states
            .map(|((slot, subject), state)| SlotState { slot: *slot, subject: subject.as_str().into(), state: state.as_slice().into() })
            .collect())
    }

    pub async fn visit_family<T>(&self, family: Family, mut into: T, mut visit: impl FnMut(&mut T, Labelled<'_>)) -> Result<T, StoreError> {
        let held = self.inner.lock();
        for ((slot, label), state) in held.states.iter().filter(|(key, _)| key.family == family).flat_map(|(_, states)| states) {
            visit(&mut into, Labelled { label, slot: *slot, state });
        }
        Ok(into)
    }

    pub async fn erase_session(&self, tenant: &str, session: &str, row: Row) -> Result<Option<Erased>, StoreError> {
        let mut held = self.inner.lock();
        let of_session = |kept: &RowWithEffects| *kept.row.tenant == *tenant && kept.row.session == session;
        let kept_answers: Vec<Key> = held
            .rows
            .iter()
            .filter(|kept| of_session(kept))
            .flat_map(RowWithEffects::happened)
            .map(|effect| effect.key)
            .filter(|key| key.family == Family::Idempotency)
            .collect();
        let before = held.rows.len();
        held.rows.retain(|kept| !of_session(kept));
        let log_rows = before - held.rows.len();
        let states = held.states.remove(&Key::new(Family::Session, tenant, session));
        if log_rows == 0 && states.is_none_or(|states| states.is_empty()) {
            return Ok(None);
        }
        for key in kept_answers {
            held.states.remove(&key);
        }
        self.inner.append(&mut held, row.clone(), Vec::new());
        Ok(Some(Erased { log_rows, row, unfinished: None }))
    }

    pub async fn flush(&self) -> Result<(), StoreError> {
        Ok(())
    }

    pub async fn probe(&self) -> Result<(), StoreError> {
        if self.inner.lock().stopped { Err(StoreError::Stopping) } else { Ok(()) }
    }

    pub fn committed(&self) -> watch::Receiver<u64> {
        self.inner.committed.subscribe()
    }

    pub fn tell_time(&self, _now_millis: i64) {}

    pub fn keep_states_for(&self, _millis: i64) {}

    pub fn entries_in_memory(&self) -> usize {
        self.inner.lock().states.len()
    }

    pub fn bytes_in_memory(&self) -> usize {
        self.inner.lock().states.values().flatten().map(|((_, subject), state)| subject.len() + state.len()).sum()
    }

    pub fn rows_behind(&self) -> u64 {
        0
    }

    pub fn stop(&self) {
        self.inner.lock().stopped = true;
    }

    fn search<T>(&self, filter: &RowFilter, order: Order, after: Option<u64>, limit: usize, read: impl Fn(&RowWithEffects) -> T) -> Vec<T> {
        let held = self.inner.lock();
        let wanted = |kept: &&RowWithEffects| filter.matches(&kept.row.as_ref());
        match order {
            Order::NewestFirst => {
                let rows = held.rows.iter().rev().filter(|kept| after.is_none_or(|after| kept.row.seq < after));
                rows.filter(wanted).take(limit).map(read).collect()
            }
            Order::OldestFirst => {
                let rows = held.rows.iter().filter(|kept| after.is_none_or(|after| kept.row.seq > after));
                rows.filter(wanted).take(limit).map(read).collect()
            }
        }
    }

    pub async fn rows(&self, filter: RowFilter, order: Order, after: Option<u64>, limit: usize) -> Result<Vec<Row>, StoreError> {
        self.inner.lock().as_log()?;
        Ok(self.search(&filter, order, after, limit, |kept| kept.row.clone()))
    }

    pub async fn rows_with_effects(
        &self,
        filter: RowFilter,
        order: Order,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<RowWithEffects>, StoreError> {
        self.inner.lock().as_log()?;
        Ok(self.search(&filter, order, after, limit, RowWithEffects::clone))
    }

    pub async fn row_numbers(&self, filter: RowFilter, order: Order, after: Option<u64>, limit: usize) -> Result<Vec<u64>, StoreError> {
        Ok(self.search(&filter, order, after, limit, |kept| kept.row.seq))
    }

    pub async fn stats_by(
        &self,
        tenant: Option<String>,
        guard: Option<String>,
        since: i64,
        until: i64,
        minutes: i64,
    ) -> Result<Vec<RowCount>, StoreError> {
        let (first, last) = (since.div_euclid(60_000), until.saturating_add(59_999).div_euclid(60_000));
        let held = self.inner.lock();
        let same = |wanted: &Option<String>, value: &str| wanted.as_deref().is_none_or(|wanted| wanted == value);
        let counts = held
            .counts
            .iter()
            .filter(|((whose, row), _)| same(&tenant, whose) && same(&guard, row.guard.code()) && (first..last).contains(&row.minute));
        Ok(count_by_minutes(minutes, counts.map(|((_, row), count)| RowCount { count: *count, ..row.clone() })))
    }

    pub fn follower(&self) -> Follower {
        Follower::new(self.inner.clone())
    }
}

impl Follow for Inner {
    fn committed(&self) -> u64 {
        *self.committed.borrow()
    }

    fn follow(&self, after: u64, upto: u64, visit: &mut dyn FnMut(RowRef<'_>) -> ControlFlow<()>) -> Result<ControlFlow<()>, StoreError> {
        let rows: Vec<Row> = {
            let held = self.lock();
            held.rows.iter().map(|kept| &kept.row).filter(|row| row.seq > after && row.seq <= upto).cloned().collect()
        };
        for row in &rows {
            if visit(row.as_ref()).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}
