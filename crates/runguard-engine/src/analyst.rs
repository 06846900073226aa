//! Follows the log and keeps hourly cells of it, for overviews and advice.
//!
//! What it derives stands in a file of its own, `insight.db`, with the number of the last row it rests on, in one
//! transaction: a crash neither loses a row nor counts it twice, and a file that is lost or damaged is built anew. It
//! works in one thread, half a millisecond at a time: an overview may be seconds behind, an answer never waits. Whoever
//! asks gets the cells and, when they are few, the rows that came after them.
//!
//! A session that is erased leaves the cells before it leaves the log, and is not taken as an example for a while: so no
//! row of it that was just being read brings it back.

mod cells;
mod sessions;

use crate::clock::Clock;
use crate::erasure::Gone;
use arc_swap::{ArcSwap, Guard};
use cells::{Cells, Marks};
use runguard_core::Timestamp;
use runguard_core::calendar::Zone;
use runguard_insight::insight::Overview;
use runguard_insight::insight::consumption::{self, Consumption};
use runguard_insight::insight::digest::{self, Cell, CellKey, Digest, Dimension, OF_OVERVIEW, Range, Savings};
use runguard_insight::insight::long_runs::KnownLengths;
use runguard_insight::insight::session_list::{SessionList, SessionQuery};
use runguard_insight::insight::spend::{self, By, Overdue, RunQuery, Runs, Spent, SpentFor};
use runguard_store::pace::{Pace, step_back};
use runguard_store::{Family, Follower, Names, Store, StoreError};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, oneshot};

pub const INSIGHT_FILE: &str = "insight.db";

/// Rows of one transaction, and how long fewer may wait.
const BATCH_ROWS: u64 = 20_000;
const BATCH_EVERY: Duration = Duration::from_secs(2);
/// How often it looks whether there is something to do.
const PULSE: Duration = Duration::from_millis(250);
/// So many rows behind the cells are looked at when somebody asks.
const FEW_ROWS: u64 = 2_000;
const MOST_READERS: usize = 2;
const RETENTION_EVERY: Duration = Duration::from_secs(60);
/// How often it is learned what is long for each kind of run.
const LEARN_EVERY: Duration = Duration::from_secs(300);

#[derive(Debug, Clone)]
pub struct AnalystOptions {
    pub folder: PathBuf,
    pub clock: Clock,
    pub retention_days: u32,
}

/// What a session is counted by: the store's key tells it too, where only that is known of a session that goes.
fn session_number(names: Names, tenant: &str, session: &str) -> u64 {
    names.key(Family::Session, tenant, session).group()
}

/// What an erasure asks for.
#[derive(Debug)]
enum Chore {
    /// Says whether anything was known of it.
    Forget { gone: Gone, done: oneshot::Sender<Result<bool, StoreError>> },
    /// Says whether the file is rid of it.
    Purge { done: oneshot::Sender<Result<bool, StoreError>> },
}

/// What others want of the thread.
#[derive(Debug, Default)]
struct AnalystWork {
    chores: Vec<Chore>,
    catch_up: Vec<oneshot::Sender<()>>,
    /// The file could not be read.
    is_damaged: bool,
    stop: bool,
}

impl AnalystWork {
    fn is_empty(&self) -> bool {
        self.chores.is_empty() && self.catch_up.is_empty() && !self.is_damaged && !self.stop
    }
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    log: Follower,
    names: Names,
    asked: Mutex<AnalystWork>,
    woken: Condvar,
    /// Somebody waits: no rests.
    hurried: AtomicBool,
    stopping: AtomicBool,
    digested: AtomicU64,
    /// What is long for each kind of run, as it was learned last.
    long_runs: ArcSwap<KnownLengths>,
    /// Overviews made at a time: each holds the cells of its range.
    readers: Arc<Semaphore>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, AnalystWork> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, change: impl FnOnce(&mut AnalystWork)) -> Result<(), StoreError> {
        let mut asked = self.lock();
        // Asked under the lock: what is put there before the stop is taken by the thread's last round, and dropped.
        if self.stopping.load(Ordering::Acquire) {
            return Err(StoreError::Stopping);
        }
        change(&mut asked);
        self.hurried.store(true, Ordering::Release);
        self.woken.notify_all();
        Ok(())
    }

    fn wait(&self) -> AnalystWork {
        let mut asked = self.lock();
        if asked.is_empty() {
            asked = self.woken.wait_timeout(asked, PULSE).unwrap_or_else(PoisonError::into_inner).0;
        }
        self.hurried.store(!asked.is_empty(), Ordering::Release);
        std::mem::take(&mut *asked)
    }
}

/// The thread that follows the log.
#[derive(Debug)]
pub struct Analyst {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    follows: Follows,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Follows {
    Log,
    Nothing,
}

/// What was spent in a range.
#[derive(Debug)]
pub(crate) struct Sums {
    pub(crate) spent: Spent,
    /// What it was spent for.
    pub(crate) names: SpentFor,
    /// Tenant and name of runs that may have something set aside that nobody has settled.
    pub(crate) unsettled: Vec<(Box<str>, Box<str>)>,
}

impl Analyst {
    pub fn start(store: &Store, options: AnalystOptions) -> std::io::Result<Self> {
        let mut analyst = Self::idle(store, &options);
        let desk = Desk::new(analyst.shared.clone(), options);
        let thread = std::thread::Builder::new().name("analyst".into()).spawn(move || {
            // An overview may be late, an answer may not.
            step_back();
            desk.run();
        })?;
        (analyst.thread, analyst.follows) = (Mutex::new(Some(thread)), Follows::Log);
        Ok(analyst)
    }

    /// Without a thread and a file, for a simulation: it follows nothing, so it has nothing to forget.
    pub fn idle(store: &Store, options: &AnalystOptions) -> Self {
        let shared = Arc::new(Shared {
            path: options.folder.join(INSIGHT_FILE),
            log: store.follower(),
            names: store.names(),
            asked: Mutex::default(),
            woken: Condvar::new(),
            hurried: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            digested: AtomicU64::new(0),
            long_runs: ArcSwap::default(),
            readers: Arc::new(Semaphore::new(MOST_READERS)),
        });
        Self { shared, thread: Mutex::new(None), follows: Follows::Nothing }
    }

    /// Rows that are logged and in no cell yet.
    pub fn rows_behind(&self) -> u64 {
        self.shared.log.committed().saturating_sub(self.shared.digested.load(Ordering::Acquire))
    }

    /// What is long for each kind of run, by the log.
    pub fn long_runs(&self) -> Guard<Arc<KnownLengths>> {
        self.shared.long_runs.load()
    }

    /// Waits until every row that is logged when this is called is in the cells.
    pub async fn catch_up(&self) -> Result<(), StoreError> {
        let (done, caught_up) = oneshot::channel();
        self.shared.ask(|asked| asked.catch_up.push(done))?;
        caught_up.await.map_err(|_| StoreError::Stopping)
    }

    /// Takes a session out of the cells, for good: called when its rows have left the log. Says whether it was in any.
    pub(crate) async fn forget(&self, gone: &Gone) -> Result<bool, StoreError> {
        if self.follows == Follows::Nothing {
            return Ok(false);
        }
        let (done, forgotten) = oneshot::channel();
        self.shared.ask(|asked| asked.chores.push(Chore::Forget { gone: gone.clone(), done }))?;
        forgotten.await.map_err(|_| StoreError::Stopping)?
    }

    /// Overwrites what was taken out, and empties the write-ahead log. Whether it is so: not while somebody reads what was.
    pub(crate) async fn purge(&self) -> Result<bool, StoreError> {
        if self.follows == Follows::Nothing {
            return Ok(true);
        }
        let (done, purged) = oneshot::channel();
        self.shared.ask(|asked| asked.chores.push(Chore::Purge { done }))?;
        purged.await.map_err(|_| StoreError::Stopping)?
    }

    /// What happened in the range, by the counts of the store and the cells.
    pub async fn overview(&self, store: &Store, range: Range, savings: Savings) -> Result<Overview, StoreError> {
        let minutes = (range.bucket_seconds / 60) as i64;
        let filters = &range.filters;
        let stats = store.stats_by(filters.tenant.clone(), filters.guard.clone(), range.since_ms, range.until_ms, minutes).await?;
        let make = move |range: &Range, cells, behind_rows| Overview { behind_rows, ..digest::overview(range, &stats, cells, &savings) };
        self.read(range, &OF_OVERVIEW, make).await
    }

    /// What was used in the range, by the cells.
    pub async fn consumption(&self, range: Range, zone: Zone, savings: Savings) -> Result<Consumption, StoreError> {
        let make =
            move |range: &Range, cells, behind_rows| Consumption { behind_rows, ..consumption::consumption(range, &zone, cells, &savings) };
        self.read(range, &consumption::READS, make).await
    }

    /// What was spent in the range, with what is overdue and in no row yet.
    pub(crate) async fn spent(
        &self,
        range: Range,
        zone: Zone,
        by: Vec<By>,
        overdue: Vec<Overdue>,
        now: Timestamp,
    ) -> Result<Sums, StoreError> {
        let make = move |range: &Range, mut cells: Vec<(CellKey, Cell)>, behind_rows| {
            cells.extend(spend::overdue_cells(&overdue, now));
            Sums {
                spent: Spent { behind_rows, ..spend::spent(range, &zone, &by, &cells) },
                names: spend::names(range, &cells),
                unsettled: spend::unsettled(range, &cells),
            }
        };
        self.read(range, &spend::READS, make).await
    }

    /// The runs of the range.
    pub async fn runs(&self, range: Range, query: RunQuery) -> Result<Runs, StoreError> {
        let make =
            move |range: &Range, cells: Vec<(CellKey, Cell)>, behind_rows| Runs { behind_rows, ..spend::runs(range, &query, &cells) };
        self.read(range, &[Dimension::Run], make).await
    }

    /// A page of the sessions.
    pub async fn sessions(&self, query: SessionQuery) -> Result<SessionList, StoreError> {
        self.on_a_thread(move |shared| shared.sessions(&query)).await
    }

    /// Makes something of the cells of a range.
    async fn read<T: Send + 'static>(
        &self,
        range: Range,
        wanted: &'static [Dimension],
        make: impl FnOnce(&Range, Vec<(CellKey, Cell)>, u64) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let make = move |shared: &Shared| {
            let (cells, behind_rows) = shared.cells(&range, wanted)?;
            Ok(make(&range, cells, behind_rows))
        };
        self.on_a_thread(make).await
    }

    /// Reads the file on a thread that may wait; few at a time.
    async fn on_a_thread<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Shared) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let shared = self.shared.clone();
        let place = shared.readers.clone().acquire_owned().await.map_err(|_| StoreError::Stopping)?;
        let read = move || {
            // Held by the thread: a caller who goes away does not end it.
            let _place = place;
            read(&shared)
        };
        tokio::task::spawn_blocking(read).await.map_err(|error| StoreError::Read(error.to_string()))?
    }

    /// Ends the thread; what is not written down is read again at the next start.
    pub fn stop(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.lock().stop = true;
        self.shared.woken.notify_all();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the analyst ended in a panic");
        }
    }
}

impl Drop for Analyst {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    /// The cells of a range, with the rows behind them when they are few, and how many rows are missing.
    fn cells(&self, range: &Range, wanted: &[Dimension]) -> Result<(Vec<(CellKey, Cell)>, u64), StoreError> {
        let (digested, mut found) = cells::read(&self.path, range, wanted).map_err(|error| self.unreadable(&error))?;
        let (digest, behind_rows) = self.behind(digested)?;
        found.extend(digest.into_cells().filter(|(place, _)| wanted.contains(&place.dimension)));
        Ok((found, behind_rows))
    }

    /// A page of the sessions, with the rows behind them when they are few.
    fn sessions(&self, query: &SessionQuery) -> Result<SessionList, StoreError> {
        // A file that is not there yet has none, and rests on no row.
        let page = |snapshot: Option<&rusqlite::Connection>, digested| {
            let (mut digest, behind_rows) = self.behind(digested)?;
            Ok::<_, StoreError>(sessions::page(snapshot, query, digest.take_sessions()).map(|page| SessionList { behind_rows, ..page }))
        };
        let found = cells::look(&self.path, |snapshot, digested| Ok(page(Some(snapshot), digested)));
        let read = match found.map_err(|error| self.unreadable(&error))? {
            Some(read) => read?,
            None => page(None, 0)?,
        };
        read.map_err(|error| self.unreadable(&error))
    }

    /// The rows after this one, when they are few; and how many they are, when they are not.
    fn behind(&self, digested: u64) -> Result<(Digest, u64), StoreError> {
        let mut digest = Digest::default();
        let committed = self.log.committed();
        let behind = committed.saturating_sub(digested);
        if behind > FEW_ROWS {
            return Ok((digest, behind));
        }
        if behind > 0 {
            let _ = self.log.follow(digested, committed, |row| {
                digest.fold(&row, session_number(self.names, row.tenant, row.session));
                ControlFlow::Continue(())
            })?;
        }
        Ok((digest, 0))
    }

    fn unreadable(&self, error: &rusqlite::Error) -> StoreError {
        if cells::is_damage(error) {
            let _ = self.ask(|asked| asked.is_damaged = true);
        }
        StoreError::Read(error.to_string())
    }
}

/// While the service decides, the analysts of all its nodes take about a tenth of a core; when nobody asks, they may hurry.
#[derive(Debug)]
pub(crate) struct Rests {
    shared: Arc<Shared>,
    pace: Pace,
    committed: u64,
    /// When the last decision was seen.
    busy_at: Instant,
}

impl Rests {
    const BUSY: Duration = Duration::from_millis(5);
    /// However many nodes there are: a page of the log that was read is shown before it is read anew.
    const MOST_SHARES: u64 = 16;
    const IDLE: Duration = Duration::from_micros(100);
    const IDLE_AFTER: Duration = Duration::from_millis(100);

    fn new(shared: Arc<Shared>) -> Self {
        let committed = shared.log.committed();
        Self { shared, pace: Pace::new(Self::BUSY), committed, busy_at: Instant::now() }
    }

    /// One step of work that may rest after it; breaks when the service stops.
    pub(crate) fn step(&mut self) -> ControlFlow<()> {
        if self.pace.is_due() { self.rest() } else { ControlFlow::Continue(()) }
    }

    fn rest(&mut self) -> ControlFlow<()> {
        if self.shared.stopping.load(Ordering::Acquire) {
            return ControlFlow::Break(());
        }
        let committed = self.shared.log.committed();
        if committed != self.committed {
            (self.committed, self.busy_at) = (committed, Instant::now());
        }
        let is_busy = self.busy_at.elapsed() < Self::IDLE_AFTER;
        let shares = self.shared.log.followers().min(Self::MOST_SHARES) as u32;
        let rest = if is_busy { Self::BUSY * shares } else { Self::IDLE };
        self.pace.rest(if self.shared.hurried.load(Ordering::Acquire) { Duration::ZERO } else { rest });
        ControlFlow::Continue(())
    }
}

/// Why a piece of work ended early.
#[derive(Debug)]
pub(crate) enum Ended {
    Stopping,
    File(rusqlite::Error),
    Log(StoreError),
}

impl From<rusqlite::Error> for Ended {
    fn from(error: rusqlite::Error) -> Self {
        Self::File(error)
    }
}

/// The clock's time; where every request carries its own, the beginning of this hour.
fn told_time(clock: &Clock, hour: i64) -> i64 {
    match clock {
        Clock::System => crate::clock::system_now().as_millis(),
        Clock::Shared(clock) => clock.now_millis(),
        Clock::Virtual => hour.saturating_mul(digest::HOUR_MILLIS),
    }
}

/// The thread's own.
#[derive(Debug)]
struct Desk {
    shared: Arc<Shared>,
    options: AnalystOptions,
    rests: Rests,
    cells: Option<Cells>,
    marks: Marks,
    last_batch: Instant,
    last_retention: Option<(Instant, i64)>,
    last_learnt: Option<Instant>,
    /// Said once, not four times a second.
    troubled: bool,
}

impl Desk {
    fn new(shared: Arc<Shared>, options: AnalystOptions) -> Self {
        let rests = Rests::new(shared.clone());
        Self {
            shared,
            options,
            rests,
            cells: None,
            marks: Marks::default(),
            last_batch: Instant::now(),
            last_retention: None,
            last_learnt: None,
            troubled: false,
        }
    }

    fn run(mut self) {
        loop {
            let asked = self.shared.wait();
            if asked.stop {
                return;
            }
            if asked.is_damaged {
                self.cells = None;
                self.throw_away("it could not be read");
            }
            for chore in asked.chores {
                match chore {
                    Chore::Forget { gone, done } => drop(done.send(self.change(|cells| cells.forget(&gone), Some(&gone)))),
                    Chore::Purge { done } => drop(done.send(self.change(Cells::purge, None))),
                }
            }
            let worked = self.work(!asked.catch_up.is_empty());
            // Whoever waits for more than could be done hears nothing, and that is an answer too.
            for done in asked.catch_up.into_iter().filter(|_| worked) {
                let _ = done.send(());
            }
        }
    }

    /// Says whether all went well.
    fn work(&mut self, all: bool) -> bool {
        match self.try_work(all) {
            Ok(()) => {
                self.troubled = false;
                return true;
            }
            Err(Ended::Stopping) => {}
            Err(Ended::File(error)) if cells::is_damage(&error) => {
                self.cells = None;
                self.throw_away(&error.to_string());
            }
            Err(Ended::File(error)) => self.trouble(&error.to_string()),
            Err(Ended::Log(error)) => self.trouble(&error.to_string()),
        }
        false
    }

    /// A connection that failed once is not trusted with the rest.
    fn trouble(&mut self, error: &str) {
        self.cells = None;
        if !self.troubled {
            self.troubled = true;
            tracing::error!(error, "insights cannot be written; answers go on, and they are caught up when the disk allows");
        }
    }

    fn throw_away(&mut self, detail: &str) {
        let path = &self.shared.path;
        tracing::warn!(file = %path.display(), detail, "the insights are damaged; they are thrown away and built anew from the log");
        self.shared.digested.store(0, Ordering::Release);
        if let Err(error) = cells::remove(path) {
            self.trouble(&error.to_string());
        }
    }

    fn open(&mut self) -> Result<&mut Cells, Ended> {
        if self.cells.is_none() {
            let mut cells = Cells::open(&self.shared.path, self.shared.names)?;
            if cells.digested() > self.shared.log.committed() {
                // Rows that were counted are gone, as after a power cut, and their numbers may come again.
                drop(cells);
                self.throw_away("it counts rows that are not in the log");
                cells = Cells::open(&self.shared.path, self.shared.names)?;
            }
            self.shared.digested.store(cells.digested(), Ordering::Release);
            self.cells = Some(cells);
        }
        self.cells.as_mut().ok_or(Ended::Stopping)
    }

    fn try_work(&mut self, all: bool) -> Result<(), Ended> {
        if !self.shared.log.is_known() {
            return Ok(());
        }
        let goal = self.shared.log.committed();
        loop {
            let digested = self.open()?.digested();
            let behind = goal.saturating_sub(digested);
            if behind == 0 || !(all || behind >= BATCH_ROWS || self.last_batch.elapsed() >= BATCH_EVERY) {
                break;
            }
            self.digest(goal)?;
        }
        self.retire()?;
        self.learn(all)
    }

    /// What is long is seldom another than it was.
    fn learn(&mut self, at_once: bool) -> Result<(), Ended> {
        if !at_once && self.last_learnt.is_some_and(|at| at.elapsed() < LEARN_EVERY) {
            return Ok(());
        }
        let Some(cells) = &self.cells else { return Ok(()) };
        // With a clock of its own for every request: the end of the hour of the latest.
        let known = cells.long_runs(told_time(&self.options.clock, cells.newest_hour() + 1))?;
        self.shared.long_runs.store(Arc::new(known));
        self.last_learnt = Some(Instant::now());
        Ok(())
    }

    /// One batch.
    fn digest(&mut self, goal: u64) -> Result<(), Ended> {
        let Self { shared, rests, cells: Some(cells), marks, .. } = self else { return Ok(()) };
        let mut digest = Digest::default();
        let (mut reached, mut rows) = (cells.digested(), 0);
        marks.expire();
        while reached < goal && rows < BATCH_ROWS {
            let flow = shared.log.follow(reached, goal, |mut row| {
                if marks.have(row.tenant, row.session) {
                    row.session = "";
                }
                digest.fold(&row, session_number(shared.names, row.tenant, row.session));
                reached = row.seq;
                rows += 1;
                if rows >= BATCH_ROWS || rests.pace.is_due() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            if flow.map_err(Ended::Log)?.is_continue() {
                reached = goal;
            }
            // Not with the log's snapshot held: it would keep the write-ahead log from starting over.
            if rests.rest().is_break() {
                return Err(Ended::Stopping);
            }
        }
        cells.write(digest, reached, rests)?;
        shared.digested.store(reached, Ordering::Release);
        self.last_batch = Instant::now();
        Ok(())
    }

    /// Lets go of hours that the log has let go of.
    fn retire(&mut self) -> Result<(), Ended> {
        let Self { options, rests, cells: Some(cells), last_retention, .. } = self else { return Ok(()) };
        let told = told_time(&options.clock, cells.newest_hour());
        let told_hour = told.div_euclid(digest::HOUR_MILLIS);
        if last_retention.is_some_and(|(at, seen)| seen == told_hour && at.elapsed() < RETENTION_EVERY) {
            return Ok(());
        }
        let now = match &options.clock {
            Clock::System | Clock::Shared(_) => {
                let elapsed = last_retention.map_or(Duration::ZERO, |(at, _)| at.elapsed());
                cells.time_passed(told, elapsed)?
            }
            Clock::Virtual => told,
        };
        let hour = now.div_euclid(digest::HOUR_MILLIS);
        cells.retire(hour.saturating_sub(i64::from(options.retention_days) * 24), rests)?;
        *last_retention = Some((Instant::now(), told_hour));
        Ok(())
    }

    /// A file that cannot be changed is thrown away: an erasure is done or it is refused.
    fn change<R: Default>(
        &mut self,
        change: impl FnOnce(&mut Cells) -> Result<R, rusqlite::Error>,
        gone: Option<&Gone>,
    ) -> Result<R, StoreError> {
        if let Some(gone) = gone {
            self.marks.add(gone);
        }
        let changed = match self.open() {
            Ok(cells) => change(cells),
            Err(Ended::File(error)) => Err(error),
            Err(Ended::Stopping) => return Err(StoreError::Stopping),
            Err(Ended::Log(error)) => return Err(error),
        };
        changed.or_else(|error| {
            self.cells = None;
            self.throw_away(&error.to_string());
            if self.shared.path.exists() { Err(StoreError::Write(error.to_string())) } else { Ok(R::default()) }
        })
    }
}
