//! A session that is being erased: no node decides for it until that is over.
//!
//! Whoever erases says whose it is, where all nodes look, and moves the fence: what was under way does nothing, and is decided again by a node
//! that has looked. What is asked of the session then waits, as it does for a database that is away for a moment. When its states and rows are
//! gone, what waited is decided: it takes place after the erasure, so it has a later time, and is kept like everything else.
//!
//! Until something is taken away an erasure may be given up, and one whose node says nothing more ends by the clock. From then on
//! ([`Stage::Going`]) it is finished, whatever becomes of its node: another one takes it over, and the session is not decided for until that is
//! done. What goes, and in which order: [`taking`](super::taking).

use crate::cluster::link::{CellName, LATE, LinkError, Put, Swap, SwapCell, Swapped, Token, Value};
use crate::cluster::recovery::{FOREVER_MILLIS, PULSE, say_what_waits};
use crate::cluster::{CATCH_UP_HELD, Inner, taking};
use crate::error::StoreError;
use crate::key::{Family, Key};
use crate::store::Cell;
use runguard_core::row::{Kind, Row};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

/// Where it is said which sessions are being erased: no state's name has this number.
const ERASING: u128 = 7;
/// Whoever erases says so again and again; of one who died it holds for this time, and for as long as a command may be under way.
const HELD_FOR_MILLIS: i64 = 10_000;
const HOLD_AGAIN: Duration = Duration::from_secs(3);
/// That a session was erased stays said so long, and nodes, which look more often than that, remember it for longer than anything that was
/// decided before is under way.
const SAID_FOR_MILLIS: i64 = 6_000;
const KNOWN_FOR_MILLIS: i64 = 60_000;
/// Erasures finished for others that nobody has asked for.
const MOST_FINISHED: usize = 10_000;
/// How long a session waits until it is noted who tells of its erasure.
const NOTED: Duration = Duration::from_secs(5);
/// Between two looks whether it is over.
const LOOK: Duration = Duration::from_millis(10);
/// How long an erasure waits for another one of the same session.
const IN_TURN: Duration = Duration::from_secs(5);
/// Clocks of nodes are apart by less.
pub(super) const APART_MILLIS: i64 = 1_000;
/// Nothing was erased yet.
pub(super) const NEVER: i64 = i64::MIN;
const NOT_IN_TURN: &str = "another node erases this session at the same time; try again";
const LOST: &str = "it took so long that the session is decided for again, or that another node goes on with it; try again";

/// One erasure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    /// When the latest one took place that took something.
    at: i64,
    /// Its node says so again before then.
    until: i64,
    /// Whose it is: another for every erasure.
    by: Token,
    stage: Stage,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Stage {
    /// Nothing is taken away yet.
    Asked,
    Going(Going),
    Over,
}

/// What another node must know to finish it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Going {
    pub(super) tenant: String,
    pub(super) session: String,
    /// The row that tells of it, as an entry has it.
    pub(super) row: Vec<u8>,
}

type Marks = BTreeMap<u128, Mark>;

/// An erasure that a node went on with for another one: what is in the files of all of them is yet to go.
#[derive(Debug)]
pub struct Finished {
    pub tenant: String,
    pub session: String,
    /// It tells of it in the log.
    pub row: Row,
    noted: oneshot::Sender<()>,
}

impl Finished {
    /// Whoever asked for it has noted it where it outlives the process. Who drops it instead leaves it to another node.
    pub fn is_noted(self) {
        // Nobody waits that long.
        let _ = self.noted.send(());
    }

    /// No node could do better: the session is free without it.
    pub fn cannot_be_noted(self) {
        self.is_noted();
    }
}

/// As this node last saw it.
#[derive(Debug, Default)]
pub(crate) struct Erasing {
    marks: Mutex<Marks>,
    is_any: AtomicBool,
    /// So many fences the link had met when it was asked for, and when that was.
    fences: AtomicU64,
    looked_at: AtomicI64,
    looking: tokio::sync::Mutex<()>,
    finished: Mutex<Vec<Finished>>,
    is_finished: Notify,
}

pub(super) fn cell() -> CellName {
    CellName::new(0, ERASING)
}

/// Whether a row is of a session that was erased after it was decided. What operators did stays: it is of no session.
pub(super) fn is_taken(row: &Row, erased_at: impl FnOnce() -> Option<i64>) -> bool {
    row.kind != Kind::Admin && erased_at().is_some_and(|at| row.at <= at)
}

fn read(found: Option<&(Token, Vec<u8>)>) -> Marks {
    found.and_then(|(_, state)| postcard::from_bytes(state).ok()).unwrap_or_default()
}

/// What is under way, as a look tells of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    /// Before it was asked: of what happens meanwhile the answer says nothing.
    fences: u64,
    at: i64,
}

impl Look {
    pub(super) fn begin(inner: &Inner) -> Self {
        Self { fences: inner.link.fences_met(), at: inner.clock.now_millis() }
    }
}

impl Erasing {
    fn marks(&self) -> MutexGuard<'_, Marks> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many fences the link had met when this was learned.
    pub(super) fn fences(&self) -> u64 {
        self.fences.load(Ordering::Acquire)
    }

    /// What was found in the [cell].
    fn learn(&self, look: Look, mut fresh: Marks) {
        let mut marks = self.marks();
        if (look.fences, look.at) < (self.fences(), self.looked_at.load(Ordering::Acquire)) {
            return;
        }
        // What is over is remembered for longer than it is said.
        for (session, mark) in std::mem::take(&mut *marks) {
            if mark.stage == Stage::Over && mark.is_known(look.at, KNOWN_FOR_MILLIS) {
                fresh.entry(session).and_modify(|known| known.at = known.at.max(mark.at)).or_insert(mark);
            }
        }
        fresh.retain(|_, mark| mark.is_known(look.at, KNOWN_FOR_MILLIS));
        self.is_any.store(!fresh.is_empty(), Ordering::Release);
        *marks = fresh;
        self.looked_at.store(look.at, Ordering::Release);
        self.fences.store(look.fences, Ordering::Release);
    }

    pub(super) fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Acquire)
    }

    /// Whether a session of these cells is being erased. One that would have ended by the clock since is held until it was looked again.
    pub(super) fn holds(&self, cells: &[Cell<'_>]) -> bool {
        if !self.is_any() {
            return false;
        }
        let (marks, looked_at) = (self.marks(), self.looked_at.load(Ordering::Acquire));
        let mut of_sessions = cells.iter().filter(|cell| cell.key.family == Family::Session);
        of_sessions.any(|cell| marks.get(&cell.key.hash).is_some_and(|mark| mark.holds(looked_at)))
    }

    /// See [`View::not_before`](crate::store::View::not_before).
    pub(super) fn not_before(&self, cells: &[Cell<'_>]) -> i64 {
        if !self.is_any() {
            return NEVER;
        }
        let marks = self.marks();
        let of_sessions = cells.iter().filter(|cell| cell.key.family == Family::Session);
        let times = of_sessions.filter_map(|cell| marks.get(&cell.key.hash)).filter(|mark| mark.at != NEVER);
        times.map(|mark| mark.at.saturating_add(1)).max().unwrap_or(NEVER)
    }

    /// Whether one of the erasures that this node knows of took a row: those since the log was last asked.
    pub(super) fn took(&self, inner: &Inner, row: &Row) -> bool {
        let number = || inner.names.key(Family::Session, &row.tenant, &row.session).hash;
        self.is_any() && is_taken(row, || self.marks().get(&number()).map(|mark| mark.at))
    }

    /// What goes, and whose node says nothing more.
    fn left(&self) -> Vec<u128> {
        let looked_at = self.looked_at.load(Ordering::Acquire);
        let marks = self.marks();
        let left = marks.iter().filter(|(_, mark)| mark.is_left(looked_at) && mark.going().is_some());
        left.map(|(session, _)| *session).collect()
    }

    /// This node went on with it to the end, though nobody here had asked for it. Waits until that is noted: not for long, as nobody decides for
    /// the session meanwhile.
    pub(super) async fn finished(&self, tenant: &str, session: &str, row: Row) -> Result<(), StoreError> {
        let (noted, is_noted) = oneshot::channel();
        {
            let mut finished = self.to_be_noted();
            if finished.len() < MOST_FINISHED {
                finished.push(Finished { tenant: tenant.to_owned(), session: session.to_owned(), row, noted });
            }
        }
        self.is_finished.notify_waiters();
        match tokio::time::timeout(NOTED, is_noted).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(StoreError::NotErased("nobody is there to note that it was finished".into())),
            Err(_) => {
                tracing::warn!(
                    "an erasure was finished for another node and is not noted yet: should this one stop now, others may keep its overviews"
                );
            }
        }
        Ok(())
    }

    pub(super) fn take_finished(&self) -> Vec<Finished> {
        std::mem::take(&mut *self.to_be_noted())
    }

    /// Waits until there are any.
    pub(super) async fn some_are_finished(&self) {
        loop {
            let told = self.is_finished.notified();
            if !self.to_be_noted().is_empty() {
                return;
            }
            told.await;
        }
    }

    fn to_be_noted(&self) -> MutexGuard<'_, Vec<Finished>> {
        self.finished.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mark {
    /// Whether it matters to somebody who looks `millis` later than what it tells of.
    fn is_known(&self, now: i64, millis: i64) -> bool {
        matches!(self.stage, Stage::Going(_)) || self.at.max(self.until).saturating_add(millis) > now
    }

    /// What is to be finished.
    fn going(&self) -> Option<&Going> {
        match &self.stage {
            Stage::Going(going) => Some(going),
            Stage::Asked | Stage::Over => None,
        }
    }

    /// Its node says nothing more.
    fn is_left(&self, now: i64) -> bool {
        self.until.saturating_add(APART_MILLIS) <= now
    }

    fn holds(&self, now: i64) -> bool {
        match self.stage {
            Stage::Asked => !self.is_left(now),
            Stage::Going(_) => true,
            Stage::Over => false,
        }
    }
}

/// What was found tells nobody anything any more: then it goes. Should that fail, another node does it.
async fn tidy(inner: &Inner, found: &Value, now: i64) {
    let Some((expect, state)) = found else { return };
    if !state.is_empty() && !read(found.as_ref()).values().any(|mark| mark.is_known(now, SAID_FOR_MILLIS)) {
        let put = Put::Set { token: inner.token(), state: Vec::new(), keep_millis: FOREVER_MILLIS };
        let swap = Swap { partition: 0, cells: vec![SwapCell { name: cell(), expect: *expect, put }], entry: Vec::new() };
        let _ = inner.swap(vec![swap]).await;
    }
}

/// What somebody found in the [cell], who looked for something else as well.
pub(super) async fn learn(inner: &Inner, look: Look, found: &Value) {
    inner.erasing.learn(look, read(found.as_ref()));
    tidy(inner, found, look.at).await;
}

/// Waits while a session of these cells is being erased: whether it was. `None`: it takes longer than anybody waits.
pub(super) async fn wait(inner: &Inner, cells: &[Cell<'_>]) -> Option<bool> {
    let (erasing, began, mut has_waited) = (&inner.erasing, Instant::now(), false);
    while erasing.holds(cells) {
        if began.elapsed() >= inner.options.patience {
            return None;
        }
        has_waited = true;
        tokio::time::sleep(LOOK).await;
        // One asks for all who wait. Should it fail, the next one asks.
        if let Ok(_looking) = erasing.looking.try_lock() {
            let _ = say_what_waits(inner).await;
        }
    }
    Some(has_waited)
}

/// Finishes what other nodes, or an earlier try of this one, have left.
pub(super) async fn run(inner: &Arc<Inner>) {
    let mut said = None;
    loop {
        tokio::time::sleep(PULSE).await;
        for session in inner.erasing.left() {
            // Before the fence is moved for it: as long as the log is behind nothing can be done.
            if inner.health.is_away() || !inner.caught_up(CATCH_UP_HELD).await {
                break;
            }
            match taking::finish(inner, Key { family: Family::Session, hash: session }).await {
                Ok(()) => said = None,
                Err(error) => {
                    let error = error.to_string();
                    if said.as_ref() != Some(&error) {
                        tracing::warn!(%error, "an erasure that was begun is not finished yet; it is tried again");
                    }
                    said = Some(error);
                }
            }
        }
    }
}

/// A session that nobody decides for as long as this is held.
#[derive(Debug)]
pub(super) struct Held {
    inner: Arc<Inner>,
    session: Key,
    by: Token,
    /// What it goes on with: somebody else had left it.
    left: OnceLock<Going>,
    /// When the session was last erased before.
    earlier: OnceLock<i64>,
    /// Something goes.
    is_going: AtomicBool,
    is_over: AtomicBool,
    /// So many fences the link had met when it was last seen to be held.
    seen: AtomicU64,
}

/// What becomes of a mark.
enum Next {
    Is(Mark),
    /// There is none any more.
    Gone,
}

/// Which erasures somebody wants to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hold {
    /// Any, when it is its turn.
    InTurn,
    /// Only one that was left while something went.
    IfLeft,
}

/// How long a command that is sent now may be under way.
fn under_way_millis(inner: &Inner) -> i64 {
    i64::try_from((inner.options.patience + LATE).as_millis()).unwrap_or(i64::MAX / 4)
}

/// For a time whoever erases holds a session; then it is said again.
fn held_for_millis(inner: &Inner) -> i64 {
    HELD_FOR_MILLIS + under_way_millis(inner)
}

/// Nobody else erases this session from here on. `None`: there is nothing to hold.
pub(super) async fn hold(inner: &Arc<Inner>, session: Key, wanted: Hold) -> Result<Option<Held>, StoreError> {
    let is = |is| AtomicBool::new(is);
    let (by, left, earlier, seen) = (inner.token(), OnceLock::new(), OnceLock::new(), u64::MAX.into());
    let held = Held { inner: inner.clone(), session, by, left, earlier, is_going: is(false), is_over: is(false), seen };
    let began = Instant::now();
    while !held.begin(wanted).await.map_err(not_written)? {
        if wanted == Hold::IfLeft {
            held.is_over.store(true, Ordering::Release);
            return Ok(None);
        }
        if began.elapsed() >= IN_TURN {
            held.is_over.store(true, Ordering::Release);
            return Err(StoreError::NotErased(NOT_IN_TURN.into()));
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(Some(held))
}

fn not_written(error: LinkError) -> StoreError {
    StoreError::NotErased(error.to_string())
}

impl Held {
    /// Nobody decides for the session from here on, and what was under way for it does nothing.
    pub(super) async fn shut(&self) -> Result<(), StoreError> {
        self.inner.link.fence().await.map_err(not_written)
    }

    /// What somebody had left, and this goes on with.
    pub(super) fn left(&self) -> Option<&Going> {
        self.left.get()
    }

    /// When the session was last erased before, as the log tells: nobody else erases it meanwhile.
    pub(super) async fn learn_earlier(&self, session_number: i64) -> Result<i64, StoreError> {
        let at = self.inner.log.erasure_of(session_number).await?;
        Ok(*self.earlier.get_or_init(|| at.unwrap_or(NEVER)))
    }

    pub(super) fn earlier(&self) -> Option<i64> {
        self.earlier.get().copied()
    }

    /// Not of a database whose states are being built: rows are still sent to it again.
    async fn found(&self) -> Result<Value, LinkError> {
        let _gate = self.inner.built().await?;
        Ok(self.inner.link.load(vec![cell()]).await?.pop().flatten())
    }

    /// Writes what becomes of the mark of this session. `false`: it is not as this needs it, and nothing was written.
    async fn write(&self, next: impl Fn(Option<&Mark>, i64) -> Option<Next>) -> Result<bool, LinkError> {
        let inner = &*self.inner;
        let mut found = self.found().await?;
        loop {
            let now = inner.clock.now_millis();
            let mut marks = read(found.as_ref());
            let Some(next) = next(marks.get(&self.session.hash), now) else { return Ok(false) };
            match next {
                Next::Is(mark) => drop(marks.insert(self.session.hash, mark)),
                Next::Gone => drop(marks.remove(&self.session.hash)),
            }
            marks.retain(|_, mark| mark.is_known(now, SAID_FOR_MILLIS));
            let state = postcard::to_stdvec(&marks).unwrap_or_default();
            let put = Put::Set { token: inner.token(), state, keep_millis: FOREVER_MILLIS };
            let expect = found.as_ref().map_or(0, |(token, _)| *token);
            let swap = Swap { partition: 0, cells: vec![SwapCell { name: cell(), expect, put }], entry: Vec::new() };
            let _gate = inner.built().await?;
            found = match inner.swap(vec![swap]).await?.pop() {
                Some(Swapped::Raced(mut found)) => found.pop().flatten(),
                // Without an entry it needs no room, and it minds no fence.
                Some(Swapped::Done | Swapped::Full | Swapped::Fenced) | None => return Ok(true),
            };
        }
    }

    /// `false`: it is another's turn.
    async fn begin(&self, wanted: Hold) -> Result<bool, LinkError> {
        let going = Mutex::new(None);
        let begun = self
            .write(|before, now| {
                let until = now + held_for_millis(&self.inner);
                let left_going = before.filter(|mark| mark.is_left(now) || mark.by == self.by).filter(|mark| mark.going().is_some());
                *going.lock().unwrap_or_else(PoisonError::into_inner) = left_going.and_then(Mark::going).cloned();
                if let Some(left) = left_going {
                    return Some(Next::Is(Mark { until, by: self.by, ..left.clone() }));
                }
                let is_free = before.is_none_or(|mark| !mark.holds(now) || mark.by == self.by);
                let mark = Mark { at: before.map_or(NEVER, |mark| mark.at), until, by: self.by, stage: Stage::Asked };
                (is_free && wanted == Hold::InTurn).then_some(Next::Is(mark))
            })
            .await?;
        if let Some(going) = going.into_inner().unwrap_or_else(PoisonError::into_inner).filter(|_| begun) {
            self.is_going.store(true, Ordering::Release);
            self.left.get_or_init(|| going);
        }
        Ok(begun)
    }

    /// The same mark, as long as it is held.
    fn kept<'a>(&self, before: Option<&'a Mark>, now: i64, left_millis: i64) -> Option<&'a Mark> {
        before.filter(|mark| match mark.stage {
            Stage::Asked => mark.by == self.by && mark.until > now + left_millis,
            Stage::Going(_) => mark.by == self.by,
            Stage::Over => false,
        })
    }

    /// Says it for a while longer. `false`: it was not said in time, and others decide again, or another erasure has taken its place.
    async fn hold_on(&self) -> Result<bool, LinkError> {
        let again = |mark: &Mark, now| Next::Is(Mark { until: now + held_for_millis(&self.inner), ..mark.clone() });
        self.write(|before, now| self.kept(before, now, 0).map(|mark| again(mark, now))).await
    }

    /// From here on something goes, at this time: it is finished, by this node or another.
    pub(super) async fn goes(&self, at: i64, going: &Going) -> Result<(), StoreError> {
        // Whether it was said is not known when this fails.
        let was_going = self.is_going.swap(true, Ordering::AcqRel);
        let next = |mark: &Mark, now| {
            let stage = Stage::Going(going.clone());
            Next::Is(Mark { at: at.max(mark.at), until: now + held_for_millis(&self.inner), by: self.by, stage })
        };
        // The command that says so arrives, or does nothing, before another node may take it for given up.
        let left_millis = under_way_millis(&self.inner) + APART_MILLIS;
        match self.write(|before, now| self.kept(before, now, left_millis).map(|mark| next(mark, now))).await {
            Ok(true) => Ok(()),
            Ok(false) => {
                self.is_going.store(was_going, Ordering::Release);
                Err(StoreError::NotErased(LOST.into()))
            }
            Err(error) => Err(not_written(error)),
        }
    }

    /// Whether something went, or may have gone.
    pub(super) fn is_going(&self) -> bool {
        self.is_going.load(Ordering::Acquire)
    }

    /// Swaps that are made only while this is held: whoever takes it over moves the fence first.
    pub(super) async fn swap(&self, swaps: &[Swap]) -> Result<Vec<Swapped>, StoreError> {
        let link = &self.inner.link;
        let mut answers: Vec<Swapped> = vec![Swapped::Fenced; swaps.len()];
        loop {
            let left: Vec<usize> = (0..swaps.len()).filter(|place| answers[*place] == Swapped::Fenced).collect();
            if left.is_empty() {
                return Ok(answers);
            }
            let fences = link.fences_met();
            if fences != self.seen.load(Ordering::Acquire) {
                self.look().await?;
                self.seen.store(fences, Ordering::Release);
            }
            let sent: Vec<Swap> = left.iter().map(|place| swaps[*place].clone()).collect();
            let _gate = self.inner.built().await.map_err(not_written)?;
            let answered = link.swap_under(&sent, Some(fences)).await.map_err(not_written)?;
            left.into_iter().zip(answered).for_each(|(place, answer)| answers[place] = answer);
        }
    }

    /// Fails unless it is still held.
    pub(super) async fn look(&self) -> Result<(), StoreError> {
        let marks = read(self.found().await.map_err(not_written)?.as_ref());
        let is_held = self.kept(marks.get(&self.session.hash), self.inner.clock.now_millis(), 0).is_some();
        if is_held { Ok(()) } else { Err(StoreError::NotErased(LOST.into())) }
    }

    /// Goes on with `work`, and says meanwhile that it does.
    pub(super) async fn while_held<T>(&self, work: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = tokio::time::sleep(HOLD_AGAIN) => {}
            }
            // Should it not be said, then what the work does next fails as well, or is looked at once more before.
            if matches!(self.hold_on().await, Ok(false)) {
                return Err(StoreError::NotErased(LOST.into()));
            }
        }
    }

    /// Nothing is left, and the session is decided for again.
    pub(super) async fn is_done(&self) -> Result<(), StoreError> {
        let over = |mark: &Mark, now| Next::Is(Mark { until: now, stage: Stage::Over, ..mark.clone() });
        if !self.write(|before, now| self.kept(before, now, 0).map(|mark| over(mark, now))).await.map_err(not_written)? {
            return Err(StoreError::NotErased(LOST.into()));
        }
        self.is_over.store(true, Ordering::Release);
        Ok(())
    }

    /// Nothing was taken: the session goes on as if nobody had asked. Where something went, another node may finish it at once.
    async fn give_up(&self) -> Result<(), LinkError> {
        self.is_over.store(true, Ordering::Release);
        let next = |mark: &Mark, now| match &mark.stage {
            Stage::Going(_) => Next::Is(Mark { until: now - APART_MILLIS, ..mark.clone() }),
            Stage::Asked | Stage::Over if mark.at == NEVER => Next::Gone,
            Stage::Asked | Stage::Over => Next::Is(Mark { until: now, stage: Stage::Over, ..mark.clone() }),
        };
        self.write(|before, now| before.filter(|mark| mark.by == self.by).map(|mark| next(mark, now))).await.map(drop)
    }

    /// The session is decided for again, unless something went: then it is finished first.
    pub(super) async fn let_go(self) {
        if !self.is_over.load(Ordering::Acquire) {
            // Should it fail, it ends by itself.
            let _ = self.give_up().await;
        }
    }
}

impl Drop for Held {
    /// Whoever asked for it went away meanwhile.
    fn drop(&mut self) {
        if self.is_over.load(Ordering::Acquire) {
            return;
        }
        let is = |is| AtomicBool::new(is);
        let (inner, session, by) = (self.inner.clone(), self.session, self.by);
        let (left, earlier) = (OnceLock::new(), OnceLock::new());
        let left = Self { inner, session, by, left, earlier, is_going: is(self.is_going()), is_over: is(true), seen: u64::MAX.into() };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { drop(left.give_up().await) });
        }
    }
}
