//! A session that is being erased: no node decides for it until that is over.
//!
//! Whoever erases says whose it is, where all nodes look, and moves the fence: what was under way does nothing, and is decided again by a node
//! that has looked. What is asked of the session then waits, as it does for a database that is away for a moment. When its states and rows are
//! gone, what waited is decided: it takes place after the erasure, so it has a later time, and is kept like everything else.

use crate::cluster::Inner;
use crate::cluster::link::{CellName, LinkError, Put, Swap, SwapCell, Swapped, Token, Value};
use crate::cluster::recovery::{FOREVER_MILLIS, say_what_waits};
use crate::error::StoreError;
use crate::key::{Family, Key};
use crate::store::Cell;
use runguard_core::row::{Kind, Row};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Where it is said which sessions are being erased: no state's name has this number.
const ERASING: u128 = 7;
/// Whoever erases says so again and again; of one who died it holds for this time.
const HELD_FOR_MILLIS: i64 = 10_000;
const HOLD_AGAIN: Duration = Duration::from_secs(3);
/// Longer than anything that was decided before is under way.
const KNOWN_FOR_MILLIS: i64 = 60_000;
/// Between two looks whether it is over.
const LOOK: Duration = Duration::from_millis(10);
/// Clocks of nodes are apart by less.
const APART_MILLIS: i64 = 1_000;

/// One erasure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    /// When it takes place.
    at: i64,
    /// Nobody decides for the session until then.
    until: i64,
    /// Whose it is: another for every erasure.
    by: Token,
}

type Marks = BTreeMap<u128, Mark>;

/// As this node last saw it.
#[derive(Debug, Default)]
pub(crate) struct Erasing {
    marks: Mutex<Marks>,
    is_any: AtomicBool,
    /// So many fences the link had met when it was asked for.
    fences: AtomicU64,
    looking: tokio::sync::Mutex<()>,
}

pub(super) fn cell() -> CellName {
    CellName::new(0, ERASING)
}

fn read(found: Option<&(Token, Vec<u8>)>) -> Marks {
    found.and_then(|(_, state)| postcard::from_bytes(state).ok()).unwrap_or_default()
}

impl Erasing {
    fn marks(&self) -> MutexGuard<'_, Marks> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many fences the link had met when this was learned.
    pub(super) fn fences(&self) -> u64 {
        self.fences.load(Ordering::Acquire)
    }

    /// What was found in the [cell], by a question that was asked when the link had met so many fences.
    pub(super) fn learn(&self, fences: u64, found: &Value, now: i64) {
        let mut fresh = read(found.as_ref());
        fresh.retain(|_, mark| mark.is_known(now));
        let mut marks = self.marks();
        if fences < self.fences() {
            return;
        }
        self.is_any.store(!fresh.is_empty(), Ordering::Release);
        *marks = fresh;
        self.fences.store(fences, Ordering::Release);
    }

    pub(super) fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Acquire)
    }

    /// Of each erasure of a session of these cells.
    fn latest(&self, cells: &[Cell<'_>], time: impl Fn(&Mark) -> i64) -> i64 {
        if !self.is_any() {
            return i64::MIN;
        }
        let marks = self.marks();
        let of_sessions = cells.iter().filter(|cell| cell.key.family == Family::Session);
        of_sessions.filter_map(|cell| marks.get(&cell.key.hash)).map(time).max().unwrap_or(i64::MIN)
    }

    /// Whether a session of these cells is being erased.
    pub(super) fn holds(&self, inner: &Inner, cells: &[Cell<'_>]) -> bool {
        self.is_any() && self.latest(cells, |mark| mark.until) > inner.clock.now_millis()
    }

    /// See [`View::not_before`](crate::store::View::not_before).
    pub(super) fn not_before(&self, cells: &[Cell<'_>]) -> i64 {
        self.latest(cells, |mark| mark.at.saturating_add(1))
    }

    /// Whether a row is of a session that was erased after it was decided.
    pub(super) fn took(&self, inner: &Inner, row: &Row) -> bool {
        if !self.is_any() || row.kind == Kind::Admin {
            return false;
        }
        let key = inner.names.key(Family::Session, &row.tenant, &row.session);
        self.marks().get(&key.hash).is_some_and(|mark| row.at <= mark.at)
    }
}

impl Mark {
    fn is_known(&self, now: i64) -> bool {
        self.at.max(self.until).saturating_add(KNOWN_FOR_MILLIS) > now
    }
}

/// Waits while a session of these cells is being erased. `false`: it takes longer than anybody waits.
pub(super) async fn wait(inner: &Inner, cells: &[Cell<'_>]) -> bool {
    let (erasing, began) = (&inner.erasing, Instant::now());
    while erasing.holds(inner, cells) {
        if began.elapsed() >= inner.options.patience {
            return false;
        }
        tokio::time::sleep(LOOK).await;
        // One asks for all who wait. Should it fail, the next one asks.
        if let Ok(_looking) = erasing.looking.try_lock() {
            let _ = say_what_waits(inner).await;
        }
    }
    true
}

/// A session that nobody decides for as long as this is held.
#[derive(Debug)]
pub(super) struct Held {
    inner: Arc<Inner>,
    session: Key,
    by: Token,
    is_over: bool,
}

/// Nobody decides for a session from here on, and what was under way for it does nothing.
pub(super) async fn hold(inner: &Arc<Inner>, session: Key, asked_at: i64) -> Result<Held, StoreError> {
    let held = Held { inner: inner.clone(), session, by: inner.token(), is_over: false };
    let write = |error: LinkError| StoreError::Write(error.to_string());
    if !held.put(Some(asked_at)).await.map_err(write)? {
        return Err(StoreError::Write("another node erases this session at the same time; try again".into()));
    }
    inner.link.fence().await.map_err(write)?;
    Ok(held)
}

impl Held {
    /// Says it for a while longer, until it is over when this is `None`. `false`: another erasure has taken its place.
    async fn put(&self, at: Option<i64>) -> Result<bool, LinkError> {
        let inner = &*self.inner;
        let mut found = inner.link.load(vec![cell()]).await?.pop().flatten();
        loop {
            let now = inner.clock.now_millis();
            let mut marks = read(found.as_ref());
            marks.retain(|_, mark| mark.is_known(now));
            let before = marks.get(&self.session.hash).copied();
            if before.is_some_and(|mark| mark.by != self.by && mark.until > now) {
                return Ok(false);
            }
            let known_at = before.map_or(i64::MIN, |mark| mark.at);
            let until = if at.is_some() { now + HELD_FOR_MILLIS } else { now };
            marks.insert(self.session.hash, Mark { at: at.unwrap_or(known_at).max(known_at), until, by: self.by });
            let state = postcard::to_stdvec(&marks).unwrap_or_default();
            let put = Put::Set { token: inner.token(), state, keep_millis: FOREVER_MILLIS };
            let expect = found.as_ref().map_or(0, |(token, _)| *token);
            let swap = Swap { partition: 0, cells: vec![SwapCell { name: cell(), expect, put }], entry: Vec::new() };
            found = match inner.swap(vec![swap]).await?.pop() {
                Some(Swapped::Raced(mut found)) => found.pop().flatten(),
                Some(Swapped::Done | Swapped::Full | Swapped::Fenced) | None => return Ok(true),
            };
        }
    }

    /// When it takes place: after every row of the session that there is, by whatever node's clock. What is decided later has a later time.
    pub(super) async fn takes_place(&self, asked_at: i64, latest_row: i64) -> Result<i64, StoreError> {
        let at = asked_at.max(latest_row.min(self.inner.clock.now_millis() + APART_MILLIS));
        match self.put(Some(at)).await {
            Ok(true) => Ok(at),
            Ok(false) => Err(StoreError::Write("another node erases this session at the same time; try again".into())),
            Err(error) => Err(StoreError::Write(error.to_string())),
        }
    }

    /// Goes on with `work`, and says meanwhile that it does.
    pub(super) async fn while_held<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = tokio::time::sleep(HOLD_AGAIN) => {}
            }
            // Should it fail, whatever the work does next fails as well.
            let _ = self.put(Some(i64::MIN)).await;
        }
    }

    /// The session is decided for again.
    pub(super) async fn let_go(mut self) {
        self.is_over = true;
        // Should it fail, it ends by itself.
        let _ = self.put(None).await;
    }
}

impl Drop for Held {
    /// Whoever asked for it went away meanwhile.
    fn drop(&mut self) {
        if !self.is_over {
            let held = Self { inner: self.inner.clone(), session: self.session, by: self.by, is_over: true };
            tokio::spawn(async move { drop(held.put(None).await) });
        }
    }
}
