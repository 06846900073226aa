//! The shared database as a plain value: what [`Link`] means, without a network.
//!
//! The real link is tested against it, and the cluster store and its simulation run on it. It is deterministic: time is
//! set by whoever owns it, nothing happens but in a call, and there are no threads.

use super::link::{
    About, CellName, Condition, EntryId, Link, LinkError, Met, NodesSeen, Put, STATES_ANEW, Said, Swap, SwapCell, Swapped, Token, Value,
    settle_chains,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// One node's link to a database in memory.
#[derive(Debug)]
pub struct ModelLink {
    shared: Arc<Shared>,
    met: Mutex<Met>,
    /// Where each stream was seen to end.
    ends: Mutex<BTreeMap<u16, EntryId>>,
    /// Names this node's count of what it wrote.
    writer: u64,
    wrote: Mutex<u64>,
    /// Where the fence was last seen, and how often it was seen to have moved.
    fence: Mutex<(u64, u64)>,
    stall: Stall,
    /// Whether it notices that the database is older than it was, and takes one whose states began anew: earlier versions do not.
    looks_back: bool,
}

/// A copy of everything in the database.
#[derive(Debug, Clone)]
pub struct Replica(Model);

/// Lets a link make so many calls more; the next one waits, or is lost.
#[derive(Debug, Clone)]
pub struct Stall(Arc<watch::Sender<Left>>);

/// Calls that are still made, and what becomes of those that follow.
#[derive(Debug, Clone, Copy)]
struct Left {
    calls: u64,
    then: Then,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    Wait,
    Fail,
}

impl Default for Stall {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Left { calls: u64::MAX, then: Then::Wait })))
    }
}

impl Stall {
    pub fn after(&self, calls: u64) {
        self.0.send_replace(Left { calls, then: Then::Wait });
    }

    /// What is sent then never arrives, and its sender hears that nobody answers.
    pub fn lose_after(&self, calls: u64) {
        self.0.send_replace(Left { calls, then: Then::Fail });
    }

    pub fn is_over(&self) {
        self.after(u64::MAX);
    }

    async fn pass(&self) -> Result<(), LinkError> {
        // Whoever owns the sender lives as long as the call.
        let mut left = self.0.subscribe();
        let left = left.wait_for(|left| left.calls > 0 || left.then == Then::Fail).await.map_or(u64::MAX, |left| left.calls);
        if left == 0 {
            return Err(LinkError::Away("no answer in time".into()));
        }
        self.0.send_if_modified(|left| {
            left.calls = if left.calls == u64::MAX { left.calls } else { left.calls.saturating_sub(1) };
            false
        });
        Ok(())
    }
}

#[derive(Debug)]
struct Shared {
    partitions: u16,
    stream_limit: u64,
    clock: Clock,
    model: Mutex<Model>,
    appended: Notify,
    writers: AtomicU64,
}

#[derive(Debug)]
enum Clock {
    Set(Mutex<i64>),
    Tokio { base_millis: i64, start: Instant },
}

#[derive(Debug, Default, Clone)]
struct Model {
    cells: BTreeMap<CellName, Cell>,
    streams: Vec<Stream>,
    about: Option<About>,
    /// How often what was under way was put out of action.
    fence: u64,
    /// How often the server was started.
    run: u64,
    /// How often each node has written.
    wrote: BTreeMap<u64, u64>,
    endpoints: BTreeSet<String>,
    leases: BTreeMap<String, (u64, i64)>,
    nodes: NodesSeen,
    /// With the nodes that have yet to confirm.
    erasures: BTreeMap<String, Vec<u64>>,
}

#[derive(Debug, Clone)]
struct Cell {
    token: Token,
    state: Vec<u8>,
    until_millis: i64,
}

#[derive(Debug, Default, Clone)]
struct Stream {
    entries: VecDeque<(EntryId, Vec<u8>)>,
    last: EntryId,
}

impl ModelLink {
    /// An empty database whose time stands at `millis` until [`set_millis`](Self::set_millis).
    pub fn new(partitions: u16, stream_limit: u64, millis: i64) -> Self {
        Self::with_clock(partitions, stream_limit, Clock::Set(Mutex::new(millis)))
    }

    /// An empty database that goes by tokio's time, which tests can pause.
    pub fn on_tokio_time(partitions: u16, stream_limit: u64, base_millis: i64) -> Self {
        Self::with_clock(partitions, stream_limit, Clock::Tokio { base_millis, start: Instant::now() })
    }

    fn with_clock(partitions: u16, stream_limit: u64, clock: Clock) -> Self {
        let model = Model { streams: vec![Stream::default(); usize::from(partitions)], ..Model::default() };
        let shared =
            Shared { partitions, stream_limit, clock, model: Mutex::new(model), appended: Notify::new(), writers: AtomicU64::new(0) };
        Self::of(Arc::new(shared))
    }

    /// Another node's link to the same database.
    #[must_use]
    pub fn another(&self) -> Self {
        Self::of(Arc::clone(&self.shared))
    }

    /// The link of a node whose version knows nothing of databases that come back older than they were.
    #[must_use]
    pub fn another_that_never_looks_back(&self) -> Self {
        Self { looks_back: false, ..self.another() }
    }

    /// What this link's calls wait for.
    pub fn stall(&self) -> Stall {
        self.stall.clone()
    }

    fn of(shared: Arc<Shared>) -> Self {
        let writer = shared.writers.fetch_add(1, Ordering::Relaxed);
        Self {
            shared,
            met: Mutex::default(),
            ends: Mutex::default(),
            writer,
            wrote: Mutex::default(),
            fence: Mutex::default(),
            stall: Stall::default(),
            looks_back: true,
        }
    }

    pub fn millis(&self) -> i64 {
        match &self.shared.clock {
            Clock::Set(millis) => *lock(millis),
            Clock::Tokio { base_millis, start } => {
                base_millis.saturating_add(i64::try_from(start.elapsed().as_millis()).unwrap_or(i64::MAX))
            }
        }
    }

    /// Moves the time; without effect on tokio's.
    pub fn set_millis(&self, millis: i64) {
        match &self.shared.clock {
            Clock::Set(at) => *lock(at) = millis,
            Clock::Tokio { .. } => {}
        }
    }

    /// Loses everything, as a server that starts without its data does.
    pub fn empty(&self) {
        let mut model = lock(&self.shared.model);
        let streams = vec![Stream::default(); usize::from(self.shared.partitions)];
        // It is started once more: no two starts have the same name.
        *model = Model { streams, run: model.run, ..Model::default() };
    }

    /// Which database it is, once a node has asked.
    pub fn generation(&self) -> Option<u64> {
        lock(&self.shared.model).about.as_ref().map(|about| about.generation)
    }

    /// The server is started anew, with what it has.
    pub fn restart(&self) {
        lock(&self.shared.model).run += 1;
    }

    /// What a message must know to be carried out.
    pub fn fence_now(&self) -> u64 {
        lock(&self.shared.model).fence
    }

    /// What a replica has at this moment.
    pub fn replica(&self) -> Replica {
        Replica(lock(&self.shared.model).clone())
    }

    /// The replica takes over: what was written after it was made is lost.
    pub fn fail_over(&self, replica: Replica) {
        *lock(&self.shared.model) = replica.0;
    }

    /// Takes a cell away and leaves nothing in its place, as earlier versions do.
    pub fn take_away(&self, name: &CellName) {
        lock(&self.shared.model).cells.remove(name);
    }

    /// What the streams hold.
    pub fn stream_entries(&self) -> Vec<Vec<u8>> {
        let model = lock(&self.shared.model);
        model.streams.iter().flat_map(|stream| &stream.entries).map(|(_, entry)| entry.clone()).collect()
    }

    /// Every cell that is there, in the order of names.
    pub fn cells(&self) -> Vec<(CellName, Token, Vec<u8>)> {
        let now = self.millis();
        let model = lock(&self.shared.model);
        let alive = model.cells.iter().filter(|(_, cell)| cell.until_millis > now);
        alive.map(|(name, cell)| (name.clone(), cell.token, cell.state.clone())).collect()
    }

    fn check_partition(&self, partition: u16) -> Result<(), LinkError> {
        if partition < self.shared.partitions {
            return Ok(());
        }
        Err(LinkError::Refused(format!("there is no partition {partition}, only {}", self.shared.partitions)))
    }

    /// What a call does when it arrives: whether it may, whoever delays it has looked.
    pub fn arrives(&self, swaps: &[Swap]) -> Result<Vec<Swapped>, LinkError> {
        for swap in swaps {
            self.check_partition(swap.partition)?;
            for cell in &swap.cells {
                self.check_partition(cell.name.partition())?;
            }
        }
        let now = self.millis();
        let mut model = lock(&self.shared.model);
        if let Some(known) = lock(&self.met).generation()
            && model.about.as_ref().is_none_or(|about| about.generation != known)
        {
            return Err(LinkError::emptied());
        }
        let mut answers: Vec<Swapped> = swaps.iter().map(|swap| model.swap(swap, now, self.shared.stream_limit)).collect();
        let made = swaps.iter().zip(&answers).filter(|(swap, answer)| !swap.entry.is_empty() && **answer == Swapped::Done);
        let ends: Vec<(u16, EntryId)> = made.map(|(swap, _)| (swap.partition, model.streams[usize::from(swap.partition)].last)).collect();
        if !ends.is_empty() && self.looks_back {
            let wrote = model.wrote.entry(self.writer).or_default();
            *wrote += 1;
            let mut known = lock(&self.wrote);
            *known = (*wrote).max(*known);
        }
        drop(model);
        self.reached(&ends);
        settle_chains(swaps, &mut answers);
        self.shared.appended.notify_waiters();
        Ok(answers)
    }

    fn reached(&self, positions: &[(u16, EntryId)]) {
        let mut ends = lock(&self.ends);
        for (partition, end) in positions {
            let known = ends.entry(*partition).or_default();
            *known = end.max(known).to_owned();
        }
    }

    fn entries_at_once(&self, after: &[(u16, EntryId)], count: usize) -> Result<Vec<(u16, EntryId, Vec<u8>)>, LinkError> {
        let mut found = Vec::new();
        for (partition, _) in after {
            self.check_partition(*partition)?;
        }
        let model = lock(&self.shared.model);
        for (partition, after) in after {
            let stream = &model.streams[usize::from(*partition)];
            let later = stream.entries.iter().filter(|(id, _)| id > after).take(count);
            found.extend(later.map(|(id, entry)| (*partition, *id, entry.clone())));
        }
        Ok(found)
    }
}

impl Model {
    fn value(&self, name: &CellName, now: i64) -> Value {
        let cell = self.cells.get(name).filter(|cell| cell.until_millis > now)?;
        Some((cell.token, cell.state.clone()))
    }

    fn swap(&mut self, swap: &Swap, now: i64, stream_limit: u64) -> Swapped {
        let values: Vec<Value> = swap.cells.iter().map(|cell| self.value(&cell.name, now)).collect();
        let token = |value: &Value| value.as_ref().map_or(0, |(token, _)| *token);
        let matches = swap.cells.iter().zip(&values).all(|(cell, value)| cell.expect == token(value));
        if !matches {
            let mut sets = swap.cells.iter().zip(&values).filter_map(|(cell, value)| match &cell.put {
                Put::Set { token: put, .. } => Some(*put == token(value)),
                Put::Keep => None,
            });
            let repeated = sets.next().is_some_and(|first| first && sets.all(|same| same));
            if !repeated {
                return Swapped::Raced(values);
            }
            for SwapCell { name, put, .. } in &swap.cells {
                if let (Put::Set { keep_millis, .. }, Some(cell)) = (put, self.cells.get_mut(name)) {
                    cell.until_millis = until(now, *keep_millis);
                }
            }
            return Swapped::Done;
        }
        let stream = &mut self.streams[usize::from(swap.partition)];
        if !swap.entry.is_empty() {
            if stream.entries.len() as u64 >= stream_limit {
                return Swapped::Full;
            }
            let here = EntryId { millis: now.max(0).unsigned_abs(), number: 0 };
            stream.last = here.max(stream.last.next());
            stream.entries.push_back((stream.last, swap.entry.clone()));
        }
        for cell in &swap.cells {
            match &cell.put {
                Put::Keep => {}
                Put::Set { token, state, keep_millis } => {
                    let kept = Cell { token: *token, state: state.clone(), until_millis: until(now, *keep_millis) };
                    self.cells.insert(cell.name.clone(), kept);
                }
            }
        }
        Swapped::Done
    }
}

fn until(now: i64, keep_millis: u64) -> i64 {
    now.saturating_add(i64::try_from(keep_millis.max(1)).unwrap_or(i64::MAX))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Link for ModelLink {
    async fn swap_under(&self, swaps: &[Swap], fences: Option<u64>) -> Result<Vec<Swapped>, LinkError> {
        self.stall.pass().await?;
        {
            let (fence, mut known) = (self.fence_now(), lock(&self.fence));
            let is_late = fences.is_some_and(|fences| fences != known.1);
            if !is_late && fence != known.0 {
                *known = (fence, known.1 + 1);
            } else if !is_late {
                drop(known);
                return self.arrives(swaps);
            }
        }
        Ok(vec![Swapped::Fenced; swaps.len()])
    }

    fn fences_met(&self) -> u64 {
        lock(&self.fence).1
    }

    async fn load(&self, names: Vec<CellName>) -> Result<Vec<Value>, LinkError> {
        self.stall.pass().await?;
        for name in &names {
            self.check_partition(name.partition())?;
        }
        let now = self.millis();
        let model = lock(&self.shared.model);
        Ok(names.iter().map(|name| model.value(name, now)).collect())
    }

    async fn time(&self) -> Result<i64, LinkError> {
        self.stall.pass().await?;
        Ok(self.millis())
    }

    /// Waits only where there is a tokio runtime to wait on.
    async fn entries(&self, after: Vec<(u16, EntryId)>, count: usize, wait_millis: u64) -> Result<Vec<(u16, EntryId, Vec<u8>)>, LinkError> {
        let mut appended = std::pin::pin!(self.shared.appended.notified());
        appended.as_mut().enable();
        let found = self.entries_at_once(&after, count)?;
        if !found.is_empty() || wait_millis == 0 || tokio::runtime::Handle::try_current().is_err() {
            return Ok(found);
        }
        let end = Instant::now() + Duration::from_millis(wait_millis);
        while tokio::time::timeout_at(end, appended.as_mut()).await.is_ok() {
            appended.set(self.shared.appended.notified());
            appended.as_mut().enable();
            let found = self.entries_at_once(&after, count)?;
            if !found.is_empty() {
                return Ok(found);
            }
        }
        Ok(Vec::new())
    }

    async fn latest(&self) -> Result<Vec<EntryId>, LinkError> {
        self.stall.pass().await?;
        let model = lock(&self.shared.model);
        Ok(model.streams.iter().map(|stream| stream.entries.back().map_or_else(EntryId::default, |(id, _)| *id)).collect())
    }

    async fn trim(&self, upto: Vec<(u16, EntryId)>) -> Result<(), LinkError> {
        for (partition, _) in &upto {
            self.check_partition(*partition)?;
        }
        let mut model = lock(&self.shared.model);
        for (partition, upto) in upto {
            model.streams[usize::from(partition)].entries.retain(|(id, _)| *id > upto);
        }
        Ok(())
    }

    fn has_read(&self, generation: u64, positions: &[(u16, EntryId)]) {
        if lock(&self.met).is(generation) {
            self.reached(positions);
        }
    }

    fn server_run(&self) -> u64 {
        lock(&self.shared.model).run
    }

    async fn fence(&self) -> Result<(), LinkError> {
        self.stall.pass().await?;
        lock(&self.shared.model).fence += 1;
        Ok(())
    }

    async fn is_older(&self) -> Result<bool, LinkError> {
        if !self.looks_back {
            return Ok(false);
        }
        let model = lock(&self.shared.model);
        if model.wrote.get(&self.writer).copied().unwrap_or(0) < *lock(&self.wrote) {
            return Ok(true);
        }
        Ok(lock(&self.ends)
            .iter()
            .any(|(partition, end)| model.streams.get(usize::from(*partition)).is_some_and(|stream| stream.last < *end)))
    }

    async fn about(&self, mine: About) -> Result<About, LinkError> {
        let is_older = self.is_older().await?;
        let mut model = lock(&self.shared.model);
        let mut about = model.about.get_or_insert_with(|| mine.clone()).clone();
        let mut met = lock(&self.met);
        if self.looks_back && met.is_put_back(about.generation, is_older) {
            (about.generation, about.format) = (mine.generation, STATES_ANEW);
            (model.about, model.cells) = (Some(about.clone()), BTreeMap::new());
        }
        drop(model);
        let is_too_new = about.format == STATES_ANEW && !self.looks_back;
        if is_too_new || !mine.takes(u64::from(about.format), u64::from(about.partitions)) {
            return Err(LinkError::NotOurs(format!(
                "it has format {} with {} partitions, this node wants format {} with {}",
                about.format, about.partitions, mine.format, mine.partitions
            )));
        }
        if met.meet(about.generation) {
            lock(&self.ends).clear();
            *lock(&self.wrote) = 0;
        }
        Ok(about)
    }

    async fn condition(&self) -> Result<Condition, LinkError> {
        let stream_entries = lock(&self.shared.model).streams.iter().map(|stream| stream.entries.len() as u64).sum();
        Ok(Condition { stream_entries, ..Condition::default() })
    }

    async fn note_endpoint(&self, label: String) -> Result<(), LinkError> {
        lock(&self.shared.model).endpoints.insert(label);
        Ok(())
    }

    async fn endpoints(&self) -> Result<Vec<String>, LinkError> {
        Ok(lock(&self.shared.model).endpoints.iter().cloned().collect())
    }

    async fn forget_endpoint(&self, label: String) -> Result<(), LinkError> {
        lock(&self.shared.model).endpoints.remove(&label);
        Ok(())
    }

    async fn lease(&self, name: &str, holder: u64, millis: u64) -> Result<bool, LinkError> {
        let now = self.millis();
        let mut model = lock(&self.shared.model);
        let taken = model.leases.get(name).is_some_and(|(other, until_millis)| *other != holder && *until_millis > now);
        if taken {
            return Ok(false);
        }
        if millis == 0 {
            model.leases.remove(name);
            return Ok(false);
        }
        model.leases.insert(name.to_owned(), (holder, until(now, millis)));
        Ok(true)
    }

    async fn is_here(&self, node: u64, known: &NodesSeen) -> Result<NodesSeen, LinkError> {
        let now = self.millis().unsigned_abs() / 1000;
        let mut model = lock(&self.shared.model);
        for (other, seen) in known {
            model.nodes.entry(*other).or_insert(*seen);
        }
        model.nodes.insert(node, now);
        Ok(model.nodes.clone())
    }

    async fn say_of_erasures(&self, node: u64, said: Said) -> Result<(), LinkError> {
        let mut model = lock(&self.shared.model);
        match said {
            Said::Announced(erasure) => {
                let others = model.nodes.keys().copied().filter(|other| *other != node).collect();
                model.erasures.insert(erasure, others);
            }
            Said::Confirmed(erasure) => {
                if let Some(nodes) = model.erasures.get_mut(&erasure) {
                    nodes.retain(|other| *other != node);
                }
            }
            Said::Forgotten(erasure) => drop(model.erasures.remove(&erasure)),
        }
        Ok(())
    }

    async fn erasures(&self) -> Result<Vec<(String, Vec<u64>)>, LinkError> {
        Ok(lock(&self.shared.model).erasures.clone().into_iter().collect())
    }

    fn partitions(&self) -> u16 {
        self.shared.partitions
    }
}
