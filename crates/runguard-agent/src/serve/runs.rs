//! The runs under way, and the latest that have ended.
//!
//! A run is a task of its own: readers come and go beside it. One lock orders everything that begins or ends a run, so that
//! whoever has read `ended` finds the session free and a place to run it in.

use super::body;
use super::problem::Problem;
use super::ring::{Batch, Ring};
use crate::agent::{Agent, Input, RunOptions};
use crate::event::{Event, Observer};
use crate::report::{Report, Stop};
use crate::session::Session;
use crate::settings::Limits;
use crate::state::AgentState;
use bytes::Bytes;
use futures_util::{FutureExt, Stream, stream};
use std::collections::{HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;

/// Proxies close what is silent for long.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Ended runs whose events are kept, and the bytes of them all; the oldest go first.
const MOST_ENDED: usize = 256;
const MOST_ENDED_BYTES: usize = 64 * 1024 * 1024;

/// What happens to a run that nobody reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unread {
    /// It spends money for nobody.
    Cancel,
    GoOn,
}

/// Those who read one run, from its start or resumption to its end.
#[derive(Debug)]
struct Audience {
    readers: AtomicUsize,
    unread: Unread,
    cancel: CancellationToken,
}

/// A reader's place. The last one to leave cancels the run.
#[derive(Debug)]
struct Seat(Arc<Audience>);

impl Seat {
    fn take(audience: &Arc<Audience>) -> Self {
        audience.readers.fetch_add(1, Ordering::SeqCst);
        Self(audience.clone())
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if self.0.readers.fetch_sub(1, Ordering::SeqCst) == 1 && self.0.unread == Unread::Cancel {
            self.0.cancel.cancel();
        }
    }
}

/// A session as it is known here: under way, or ended and remembered for its events.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) id: String,
    now: Mutex<Now>,
    /// Wakes the readers.
    changed: watch::Sender<()>,
}

#[derive(Debug)]
struct Now {
    ring: Ring,
    /// The first event since it was begun or resumed.
    first: u64,
    state: AgentState,
    audience: Arc<Audience>,
    report: Option<Report>,
}

/// Nothing that holds one of our locks panics; and if it did, counting on is better than stopping every run.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Run {
    fn new(id: &str) -> Self {
        let audience = Arc::new(Audience { readers: AtomicUsize::new(0), unread: Unread::GoOn, cancel: CancellationToken::new() });
        let now = Now { ring: Ring::new(), first: 1, state: AgentState::Running, audience, report: None };
        Self { id: id.to_owned(), now: Mutex::new(now), changed: watch::Sender::new(()) }
    }

    pub(super) fn push(&self, event: &Event) {
        let mut now = lock(&self.now);
        match event {
            Event::State { state } => now.state = *state,
            Event::Ended(report) => {
                now.state = report.state;
                now.report = Some((**report).clone());
            }
            Event::Started { .. }
            | Event::StepStarted { .. }
            | Event::Chunk(_)
            | Event::Spent(_)
            | Event::Retry { .. }
            | Event::ContextTrimmed { .. }
            | Event::ToolStarted { .. }
            | Event::ToolFinished { .. }
            | Event::Guard(_)
            | Event::NearBudget { .. }
            | Event::Notice { .. } => {}
        }
        now.ring.push(event);
        drop(now);
        self.changed.send_replace(());
    }

    pub(super) fn cancel(&self) {
        lock(&self.now).audience.cancel.cancel();
    }

    pub(super) fn state(&self) -> AgentState {
        lock(&self.now).state
    }

    /// Only of a run that has ended and was not resumed.
    pub(super) fn report(&self) -> Option<Report> {
        lock(&self.now).report.clone()
    }

    pub(super) fn latest_event(&self) -> u64 {
        lock(&self.now).ring.next() - 1
    }

    /// The events after number `seen`, or all of the latest run; `None` when it has ended and there are no more.
    pub(super) fn read(self: &Arc<Self>, seen: Option<u64>) -> Option<impl Stream<Item = Bytes> + Send + use<>> {
        let now = lock(&self.now);
        let from = seen.map_or(now.first, |seen| seen.saturating_add(1));
        if now.report.is_some() && from == now.ring.next() {
            return None;
        }
        let reader =
            Reader { run: self.clone(), from, changed: self.changed.subscribe(), is_done: false, _seat: Seat::take(&now.audience) };
        drop(now);
        Some(stream::unfold(reader, |mut reader| async move { reader.next().await.map(|bytes| (bytes, reader)) }))
    }
}

#[derive(Debug)]
struct Reader {
    run: Arc<Run>,
    from: u64,
    changed: watch::Receiver<()>,
    is_done: bool,
    _seat: Seat,
}

impl Reader {
    async fn next(&mut self) -> Option<Bytes> {
        while !self.is_done {
            self.changed.borrow_and_update();
            let batch = lock(&self.run.now).ring.read(&mut self.from);
            match batch {
                Batch::Some(bytes) => return Some(bytes),
                Batch::Last(bytes) => {
                    self.is_done = true;
                    return Some(bytes);
                }
                Batch::Nothing => match tokio::time::timeout(KEEP_ALIVE, self.changed.changed()).await {
                    Ok(changed) => self.is_done = changed.is_err(),
                    Err(_) => return Some(Bytes::from_static(b": keep-alive\n\n")),
                },
            }
        }
        None
    }
}

/// Puts events where readers find them. The end is left out: it is said when the session is free again.
#[derive(Debug)]
struct Tap(Arc<Run>);

impl Observer for Tap {
    fn event(&mut self, event: Event) {
        if !matches!(event, Event::Ended(_)) {
            self.0.push(&event);
        }
    }
}

#[derive(Debug)]
pub(super) struct Runs {
    table: Mutex<Table>,
    places: Arc<Semaphore>,
    most: usize,
}

#[derive(Debug, Default)]
struct Table {
    live: HashMap<String, Arc<Run>>,
    /// Oldest first.
    ended: VecDeque<Arc<Run>>,
    is_stopping: bool,
}

impl Table {
    fn remember(&mut self, run: Arc<Run>) {
        self.ended.push_back(run);
        let bytes = |run: &Arc<Run>| lock(&run.now).ring.bytes();
        let mut total: usize = self.ended.iter().map(bytes).sum();
        while self.ended.len() > MOST_ENDED || (total > MOST_ENDED_BYTES && self.ended.len() > 1) {
            total -= self.ended.pop_front().as_ref().map_or(0, bytes);
        }
    }
}

/// A place among the runs under way.
pub(super) type RunPermit = OwnedSemaphorePermit;

impl Runs {
    pub(super) fn new(most: usize) -> Self {
        // One at least, or the service would be for nothing; and no more than can be waited for at once.
        let most = most.clamp(1, 100_000);
        Self { table: Mutex::default(), places: Arc::new(Semaphore::new(most)), most }
    }

    pub(super) fn place(&self) -> Result<RunPermit, Problem> {
        self.places.clone().try_acquire_owned().map_err(|_| Problem::too_many_runs(self.most))
    }

    /// Whether one more run would be begun.
    pub(super) fn is_ready(&self) -> Result<(), Problem> {
        if lock(&self.table).is_stopping {
            return Err(Problem::stopping());
        }
        if self.places.available_permits() == 0 { Err(Problem::no_place(self.most)) } else { Ok(()) }
    }

    pub(super) fn live(&self, id: &str) -> Option<Arc<Run>> {
        lock(&self.table).live.get(id).cloned()
    }

    /// Under way or ended.
    pub(super) fn get(&self, id: &str) -> Option<Arc<Run>> {
        let table = lock(&self.table);
        table.live.get(id).or_else(|| table.ended.iter().find(|run| run.id == id)).cloned()
    }

    /// Takes a session for one run. It is free again when the ticket is dropped or its run has ended.
    pub(super) fn reserve(self: &Arc<Self>, id: &str, place: Option<RunPermit>, unread: Unread) -> Result<Ticket, Problem> {
        let mut table = lock(&self.table);
        if table.is_stopping {
            return Err(Problem::stopping());
        }
        if table.live.contains_key(id) {
            return Err(Problem::already_running(id));
        }
        let place = place.map_or_else(|| self.place(), Ok)?;
        let known = table.ended.iter().position(|run| run.id == id).and_then(|position| table.ended.remove(position));
        let run = known.unwrap_or_else(|| Arc::new(Run::new(id)));
        // From here on it can be cancelled, although it has not begun.
        let cancel = CancellationToken::new();
        lock(&run.now).audience = Arc::new(Audience { readers: AtomicUsize::new(0), unread, cancel: cancel.clone() });
        table.live.insert(id.to_owned(), run.clone());
        Ok(Ticket { runs: self.clone(), run, unread, cancel, place: Some(place) })
    }

    /// Ends every run, and lets none begin. Ready when all have ended.
    pub(super) async fn stop(&self) {
        let live: Vec<Arc<Run>> = {
            let mut table = lock(&self.table);
            table.is_stopping = true;
            table.live.values().cloned().collect()
        };
        for run in live {
            run.cancel();
        }
        // All places are free when all runs have ended.
        let _ = self.places.acquire_many(u32::try_from(self.most).unwrap_or(u32::MAX)).await;
    }

    fn finish(&self, run: &Arc<Run>, report: Report, place: RunPermit) {
        let mut table = lock(&self.table);
        drop(place);
        table.live.remove(&run.id);
        run.push(&Event::Ended(Box::new(report)));
        table.remember(run.clone());
    }
}

/// What a run is to do.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) session: Session,
    pub(super) input: Input,
    pub(super) options: RunOptions,
    pub(super) limits: Limits,
    /// Said first.
    pub(super) before: Vec<Event>,
}

/// A session that is taken, and not yet running.
#[derive(Debug)]
pub(super) struct Ticket {
    runs: Arc<Runs>,
    run: Arc<Run>,
    unread: Unread,
    cancel: CancellationToken,
    place: Option<RunPermit>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.place.take().is_some() {
            let mut table = lock(&self.runs.table);
            table.live.remove(&self.run.id);
            if self.run.report().is_some() {
                table.remember(self.run.clone());
            }
        }
    }
}

impl Ticket {
    /// Starts the run, with its first reader already seated.
    pub(super) fn start(
        mut self,
        agent: Arc<Agent>,
        Work { mut session, input, options, limits, before }: Work,
    ) -> (Arc<Run>, Option<impl Stream<Item = Bytes> + Send + use<>>) {
        let run = self.run.clone();
        {
            let mut now = lock(&run.now);
            now.first = now.ring.next();
            now.state = AgentState::Running;
            now.report = None;
        }
        for event in &before {
            run.push(event);
        }
        let reader = match self.unread {
            Unread::Cancel => run.read(None),
            Unread::GoOn => None,
        };
        if let Some(place) = self.place.take() {
            let (runs, run, cancel) = (self.runs.clone(), run.clone(), self.cancel.clone());
            tokio::spawn(async move {
                let mut tap = Tap(run.clone());
                let work = AssertUnwindSafe(agent.run_within(&mut session, input, options, &limits, &cancel, &mut tap)).catch_unwind();
                let mut report = work.await.unwrap_or_else(|_| fault(&session));
                if let Some(how) = body::how_to_raise(&report, &agent.settings().limits) {
                    report.how_to_resume = how;
                }
                drop(session);
                tracing::info!(run = run.id, state = report.state.code(), stop = report.stop.code(), steps = report.steps, "run ended");
                runs.finish(&run, report, place);
            });
        }
        (run, reader)
    }
}

/// The end of a run that broke off by a fault of the program: its end was not saved, everything before it was.
fn fault(session: &Session) -> Report {
    tracing::error!(run = session.id(), "a run broke off by a fault of the program");
    Report {
        message: "The run broke off by a fault of the program. What was saved before is kept.".to_owned(),
        how_to_resume: format!("POST /v1/agent/runs/{}/resume goes on from the last saved step.", session.id()),
        text: session.last_text(),
        ..Report::of(session.id(), session.counters(), AgentState::Error, Stop::NotSaved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::StreamExt;

    #[tokio::test(start_paused = true)]
    async fn a_silent_run_is_kept_alive_every_15_seconds() {
        let run = Arc::new(Run::new("quiet"));
        let mut events = std::pin::pin!(run.read(None).unwrap());
        let began = tokio::time::Instant::now();
        assert_eq!(events.next().await.unwrap(), ": keep-alive\n\n");
        assert_eq!(began.elapsed(), Duration::from_secs(15));
        run.push(&Event::Notice { message: "hello".to_owned() });
        assert_eq!(events.next().await.unwrap(), "id: 1\nevent: notice\ndata: {\"event\":\"notice\",\"message\":\"hello\"}\n\n");
        assert_eq!(began.elapsed(), Duration::from_secs(15));
    }

    #[tokio::test]
    async fn the_last_reader_to_leave_cancels_what_nobody_else_reads() {
        for (unread, is_cancelled) in [(Unread::Cancel, true), (Unread::GoOn, false)] {
            let run = Arc::new(Run::new("read"));
            let cancel = CancellationToken::new();
            lock(&run.now).audience = Arc::new(Audience { readers: AtomicUsize::new(0), unread, cancel: cancel.clone() });
            let (first, second) = (run.read(None), run.read(None));
            drop(first);
            assert!(!cancel.is_cancelled());
            drop(second);
            assert_eq!(cancel.is_cancelled(), is_cancelled);
        }
    }

    #[test]
    fn ended_runs_are_forgotten_oldest_first() {
        let mut table = Table::default();
        for number in 0..MOST_ENDED + 3 {
            table.remember(Arc::new(Run::new(&number.to_string())));
        }
        assert_eq!((table.ended.len(), table.ended[0].id.as_str()), (MOST_ENDED, "3"));
    }
}
