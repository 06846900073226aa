//! Between the nodes and the database: every call is a message there and one back, and either may be late, lost or repeated.
//!
//! A message that is under way arrives whatever becomes of its sender, so a swap may be made long after the node that sent it
//! gave up or died. What the database does is written down in its order: the tape, which the books are checked against.
//!
//! A node may send what the version before sends. All of a node but its link is this version's, so what an earlier one decides, marks or
//! imports otherwise is not simulated: `test_two_versions_side_by_side` runs real programs.

use crate::books::{BEHIND, BUILT, ERASING, SETTLED};
use crate::chance::Chance;
use runguard_store::LogFault;
use runguard_store::Memory;
use runguard_store::RowWithEffects;
use runguard_store::cluster::entry;
use runguard_store::cluster::link::{
    About, CellName, Condition, EntryId, Link, LinkError, NodesSeen, Put, Said, Swap, Swapped, Token, Value,
};
use runguard_store::cluster::model::{ModelLink, Replica};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::oneshot;

/// When every run begins.
pub(crate) const BEGINNING: i64 = 1_700_000_000_000;
/// How long a node waits for an answer.
const PATIENCE: Duration = Duration::from_millis(250);
/// What arrives so much later than it was sent does nothing: longer than its sender waits, as what clocks are apart is allowed for.
const DEADLINE_MILLIS: i64 = 500;

/// How bad the network is, in thousandths.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Weather {
    pub(crate) lost_requests: u64,
    pub(crate) lost_answers: u64,
    pub(crate) repeated: u64,
    pub(crate) most_delay_millis: u64,
    pub(crate) very_late: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServerState {
    Up,
    Down,
    /// The replica does not follow: what is written may be lost, and nobody is told that it is done.
    Lagging,
}

/// Whose commands a node sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Version {
    This,
    /// Its commands carry no deadline and mind no fence; what it takes away leaves no trace; it neither says that it has rows to bring
    /// home nor hears it of others; it counts no writes and does not see that a database is older than it was; the log does not learn what it
    /// built; and it uses no database whose states began anew.
    Before,
}

/// One life of a node, from its start to its crash.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) node: usize,
    pub(crate) number: u64,
    pub(crate) version: Version,
    pub(crate) dead: AtomicBool,
}

/// What the database did.
#[derive(Debug, Clone)]
pub(crate) enum Taped {
    Swapped {
        cells: Vec<(u128, Put)>,
        rows: Vec<RowWithEffects>,
    },
    /// Everything was lost; these rows were not in the log.
    Emptied {
        at_risk: BTreeSet<String>,
    },
    /// It was put back to where the tape was so long; these rows were not in the log.
    PutBack {
        length: usize,
        at_risk: BTreeSet<String>,
    },
}

impl Taped {
    pub(crate) fn rows(&self) -> Option<&Vec<RowWithEffects>> {
        match self {
            Self::Swapped { rows, .. } => Some(rows),
            Self::Emptied { .. } | Self::PutBack { .. } => None,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) weather: Weather,
    pub(crate) server: ServerState,
    /// It answers swaps and fences with an error.
    refuses: bool,
    /// Nodes that cannot be reached.
    pub(crate) cut: BTreeSet<usize>,
    pub(crate) tape: Vec<Taped>,
    on_tape: BTreeSet<String>,
    /// Rows of swaps that a node has no answer to.
    in_doubt: BTreeSet<String>,
    /// Rows of swaps that arrived again.
    repeated: BTreeSet<String>,
    /// When the server was gone, until when it was.
    pub(crate) outages: Vec<(i64, i64)>,
    /// Nodes that were cut off, from when on and until when.
    pub(crate) cuts: Vec<(usize, i64, i64)>,
    /// Which database the log was last built into, by those who say so.
    generation_said: EntryId,
    /// Who wrote a row first.
    pub(crate) owners: BTreeMap<String, u64>,
    /// The sessions whose rows changed a cell, with their tenants.
    pub(crate) sessions_of: BTreeMap<u128, BTreeSet<(String, String)>>,
    /// Erasures of which all nodes were told, as they are called.
    pub(crate) announced: BTreeSet<String>,
    replica: Option<(Replica, usize)>,
    /// What the server would come back with, and how long the tape was.
    saved: Option<(Replica, usize)>,
    trace: DefaultHasher,
    pub(crate) calls: u64,
    /// Rises when connections break; what was under way on them never arrives.
    pub(crate) broken: u64,
}

impl Record {
    /// Whether somebody may have been told something else of it than the database did.
    pub(crate) fn is_in_doubt(&self, id: &str) -> bool {
        self.in_doubt.contains(id) || self.repeated.contains(id)
    }
}

#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) database: ModelLink,
    pub(crate) log: Memory,
    chance: Mutex<Chance>,
    record: Mutex<Record>,
}

#[derive(Debug, Clone, Copy)]
struct Handling {
    there: Duration,
    back: Duration,
    request_lost: bool,
    answer_lost: bool,
    again_after: Option<Duration>,
    fails_at_once: bool,
}

impl Network {
    pub(crate) fn new(seed: u64, weather: Weather, partitions: u16, stream_limit: u64) -> Arc<Self> {
        let record = Record {
            weather,
            server: ServerState::Up,
            refuses: false,
            cut: BTreeSet::new(),
            tape: Vec::new(),
            on_tape: BTreeSet::new(),
            in_doubt: BTreeSet::new(),
            repeated: BTreeSet::new(),
            outages: Vec::new(),
            cuts: Vec::new(),
            generation_said: EntryId::default(),
            owners: BTreeMap::new(),
            sessions_of: BTreeMap::new(),
            announced: BTreeSet::new(),
            replica: None,
            saved: None,
            trace: DefaultHasher::new(),
            calls: 0,
            broken: 0,
        };
        Arc::new(Self {
            database: ModelLink::on_tokio_time(partitions, stream_limit, BEGINNING),
            log: Memory::default(),
            chance: Mutex::new(Chance::new(seed, 1)),
            record: Mutex::new(record),
        })
    }

    pub(crate) fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap()
    }

    pub(crate) fn trace(&self, event: impl Hash + Debug) {
        let millis = self.database.millis();
        if std::env::var_os("RUNGUARD_SIM_TRACE").is_some() {
            eprintln!("{} {event:?}", millis - BEGINNING);
        }
        let mut record = self.record();
        millis.hash(&mut record.trace);
        event.hash(&mut record.trace);
    }

    pub(crate) fn trace_hash(&self) -> u64 {
        self.record().trace.finish()
    }

    pub(crate) fn calm(&self) {
        let mut record = self.record();
        record.weather = Weather { lost_requests: 0, lost_answers: 0, repeated: 0, very_late: 0, ..record.weather };
        (record.server, record.refuses) = (ServerState::Up, false);
        record.cut.clear();
        let now = self.database.millis();
        record.cuts.iter_mut().for_each(|(_, _, until)| *until = now.min(*until));
        record.outages.iter_mut().for_each(|(_, until)| *until = now.min(*until));
        drop(record);
        self.log.set_log_fault(LogFault::Sound);
    }

    pub(crate) fn set_refuses(&self, refuses: bool) {
        self.record().refuses = refuses;
    }

    fn take_writes(&self) -> Result<(), LinkError> {
        if self.record().refuses { Err(LinkError::Refused("its memory is full".into())) } else { Ok(()) }
    }

    pub(crate) fn go_down(&self) {
        let mut record = self.record();
        if record.server != ServerState::Down {
            record.outages.push((self.database.millis(), i64::MAX));
        }
        record.server = ServerState::Down;
        record.broken += 1;
    }

    pub(crate) fn come_up(&self) {
        self.database.restart();
        let mut record = self.record();
        record.server = ServerState::Up;
        let now = self.database.millis();
        record.outages.iter_mut().filter(|(_, until)| *until == i64::MAX).for_each(|(_, until)| *until = now);
    }

    pub(crate) fn cut_off(&self, node: usize) {
        let mut record = self.record();
        if record.cut.insert(node) {
            record.cuts.push((node, self.database.millis(), i64::MAX));
        }
    }

    pub(crate) fn reconnect(&self, node: usize) {
        let mut record = self.record();
        record.cut.remove(&node);
        let now = self.database.millis();
        record.cuts.iter_mut().filter(|(other, _, until)| *other == node && *until == i64::MAX).for_each(|(_, _, until)| *until = now);
    }

    pub(crate) fn empty(&self) {
        self.log.set_log_fault(LogFault::Sound);
        let logged = self.logged();
        self.database.empty();
        let mut record = self.record();
        let at_risk = record.on_tape.iter().filter(|id| !logged.contains(*id)).cloned().collect();
        record.on_tape.clear();
        (record.replica, record.saved) = (None, None);
        record.tape.push(Taped::Emptied { at_risk });
    }

    /// From here on nothing is told to be done, because the replica does not have it.
    pub(crate) fn lag(&self) {
        let replica = self.database.replica();
        let mut record = self.record();
        record.server = ServerState::Lagging;
        record.replica = Some((replica, record.tape.len()));
    }

    pub(crate) fn fail_over(&self) {
        let mut record = self.record();
        let Some((replica, length)) = record.replica.take() else { return };
        self.database.fail_over(replica);
        for lost in record.tape.split_off(length) {
            if let Taped::Swapped { rows, .. } = lost {
                for RowWithEffects { row, .. } in rows {
                    record.on_tape.remove(&row.id);
                }
            }
        }
    }

    /// What a server keeps that saves now and then: nobody who is told "done" hears that it may be lost.
    pub(crate) fn save(&self) {
        let replica = self.database.replica();
        let mut record = self.record();
        record.saved = Some((replica, record.tape.len()));
    }

    /// The server comes back with what it last saved.
    pub(crate) fn restore(&self) {
        let logged = self.logged();
        let mut record = self.record();
        let Some((replica, length)) = record.saved.take() else { return };
        self.database.fail_over(replica);
        record.replica = None;
        let rows = record.tape[length..].iter().filter_map(Taped::rows).flatten();
        let lost: BTreeSet<String> = rows.map(|logged| logged.row.id.clone()).collect();
        record.on_tape.retain(|id| !lost.contains(id));
        let at_risk = lost.into_iter().filter(|id| !logged.contains(id)).collect();
        record.tape.push(Taped::PutBack { length, at_risk });
    }

    fn logged(&self) -> BTreeSet<String> {
        self.log.every_row().into_iter().map(|row| row.id).collect()
    }

    /// A node found that the database is older than it was.
    pub(crate) fn states_begin_anew(&self) {
        let logged = self.logged();
        let mut record = self.record();
        let at_risk = record.on_tape.iter().filter(|id| !logged.contains(*id)).cloned().collect();
        record.tape.push(Taped::Emptied { at_risk });
    }

    fn handling(&self) -> Handling {
        let weather = self.record().weather;
        let chance = &mut *self.chance.lock().unwrap();
        let delay = |chance: &mut Chance| {
            let late = chance.in_thousand(weather.very_late);
            chance.millis(0, if late { 1_500 } else { weather.most_delay_millis })
        };
        Handling {
            there: delay(chance),
            back: delay(chance),
            request_lost: chance.in_thousand(weather.lost_requests),
            answer_lost: chance.in_thousand(weather.lost_answers),
            again_after: chance.in_thousand(weather.repeated).then(|| chance.millis(0, 700)),
            fails_at_once: chance.in_thousand(500),
        }
    }

    fn reaches(&self, node: usize, connection: u64) -> bool {
        let record = self.record();
        record.server != ServerState::Down && record.broken == connection && !record.cut.contains(&node)
    }

    /// What is otherwise after a swap, by who sent it.
    fn as_its_version_does(&self, life: &Life, swaps: &[Swap], answers: &[Swapped]) {
        let done = swaps.iter().zip(answers).filter(|(_, answer)| **answer == Swapped::Done);
        for cell in done.flat_map(|(swap, _)| &swap.cells) {
            match (life.version, cell.name.hash(), &cell.put) {
                (Version::This, BUILT, _) => self.record().generation_said = self.log.generation(),
                (Version::Before, BUILT, _) => self.log.put_generation_back(self.record().generation_said),
                (Version::Before, BEHIND.., Put::Set { state, .. }) if state.is_empty() => self.database.take_away(&cell.name),
                _ => {}
            }
        }
    }

    fn tape(&self, life: &Life, swaps: &[Swap], answers: &[Swapped], mut tokens: BTreeMap<CellName, Token>) {
        self.trace(("swap", life.node, life.number, swaps.iter().map(summary).collect::<Vec<_>>(), format!("{answers:.60?}")));
        let mut record = self.record();
        for (swap, answer) in swaps.iter().zip(answers) {
            // The database says "done" to what it did before as well.
            let repeated = swap.cells.iter().any(|cell| tokens[&cell.name] != cell.expect);
            if *answer != Swapped::Done || repeated {
                continue;
            }
            for cell in &swap.cells {
                match &cell.put {
                    Put::Keep => {}
                    Put::Set { token, .. } => drop(tokens.insert(cell.name.clone(), *token)),
                }
            }
            let rows = if swap.entry.is_empty() { Vec::new() } else { entry::decode(&swap.entry).unwrap() };
            for logged in &rows {
                let row = &logged.row;
                record.on_tape.insert(row.id.clone());
                record.owners.entry(row.id.clone()).or_insert(life.number);
                for cell in entry::cells_of(logged) {
                    record.sessions_of.entry(cell).or_default().insert((row.tenant.to_string(), row.session.clone()));
                }
            }
            let cells = swap.cells.iter().map(|cell| (cell.name.hash(), cell.put.clone())).collect();
            record.tape.push(Taped::Swapped { cells, rows });
        }
    }
}

fn summary(swap: &Swap) -> (u16, Vec<String>, Vec<String>) {
    let cells = swap.cells.iter().map(|cell| {
        let hash = cell.name.hash() as u32;
        match &cell.put {
            Put::Keep => format!("{hash:x}:{:x}", cell.expect as u32),
            Put::Set { token, .. } => format!("{hash:x}:{:x}>{:x}", cell.expect as u32, *token as u32),
        }
    });
    (swap.partition, cells.collect(), entry::decode(&swap.entry).unwrap_or_default().into_iter().map(|logged| logged.row.id).collect())
}

/// Where nodes say something that the version before knows nothing of.
fn is_unknown_before(name: &CellName) -> bool {
    [BEHIND, SETTLED, ERASING].contains(&name.hash())
}

/// One node's way to the database.
#[derive(Debug)]
pub(crate) struct Line {
    network: Arc<Network>,
    link: Arc<ModelLink>,
    life: Arc<Life>,
    /// What a message carries of the database it is meant for.
    generation: AtomicU64,
    /// The connection on which it was seen which database that is.
    looked_through: AtomicU64,
    /// How often what was under way was put out of action, as far as the node knows: it learns it of each partition by itself.
    fences: Mutex<BTreeMap<u16, u64>>,
    fences_met: AtomicU64,
    /// What a node of the version before, which knows nothing of them, has in the places where nodes say how it stands after a comeback.
    unknown: Mutex<BTreeMap<u128, (Token, Vec<u8>)>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    /// Its answer says that the replica has it.
    Acknowledged,
    Plain,
}

impl Line {
    pub(crate) fn new(network: &Arc<Network>, life: &Arc<Life>) -> Self {
        let link = Arc::new(match life.version {
            Version::This => network.database.another(),
            Version::Before => network.database.another_that_never_looks_back(),
        });
        Self {
            network: network.clone(),
            link,
            life: life.clone(),
            generation: AtomicU64::new(0),
            looked_through: AtomicU64::new(0),
            fences: Mutex::default(),
            fences_met: AtomicU64::new(0),
            unknown: Mutex::default(),
        }
    }

    fn is_before(&self) -> bool {
        self.life.version == Version::Before
    }

    /// Of the version before: what it would not send is answered here.
    fn answer_here(&self, swaps: &[Swap]) -> Option<Vec<Swapped>> {
        let [Swap { cells, .. }] = swaps else { return None };
        let [cell] = cells.as_slice() else { return None };
        if !self.is_before() || !is_unknown_before(&cell.name) {
            return None;
        }
        if let Put::Set { token, state, .. } = &cell.put {
            self.unknown.lock().unwrap().insert(cell.name.hash(), (*token, state.clone()));
        }
        Some(vec![Swapped::Done])
    }

    async fn call<T, F>(&self, kind: Kind, most: Duration, run: impl Fn(Arc<ModelLink>) -> F + Send + 'static) -> Result<T, LinkError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, LinkError>> + Send + 'static,
    {
        if self.life.dead.load(Ordering::Relaxed) {
            // Nothing comes of what a dead process does.
            std::future::pending::<()>().await;
        }
        let connection = {
            let mut record = self.network.record();
            record.calls += 1;
            record.broken
        };
        let handling = self.network.handling();
        let (sender, answer) = oneshot::channel();
        let (network, link, life) = (self.network.clone(), self.link.clone(), self.life.clone());
        tokio::spawn(async move {
            tokio::time::sleep(handling.there).await;
            if handling.request_lost || !network.reaches(life.node, connection) {
                return;
            }
            let answered = run(link.clone()).await;
            if let Some(after) = handling.again_after {
                let (again, node) = (network.clone(), life.node);
                tokio::spawn(async move {
                    tokio::time::sleep(after).await;
                    if again.reaches(node, connection) {
                        let _ = run(link).await;
                    }
                });
            }
            tokio::time::sleep(handling.back).await;
            let unacknowledged = kind == Kind::Acknowledged && network.record().server == ServerState::Lagging;
            if !handling.answer_lost && !unacknowledged && network.reaches(life.node, connection) {
                let _ = sender.send(answered);
            }
        });
        let waited = tokio::time::Instant::now();
        let answered = tokio::time::timeout(most + PATIENCE, answer).await;
        if self.life.dead.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        match answered {
            Ok(Ok(answered)) => answered,
            Ok(Err(_)) if handling.fails_at_once => Err(LinkError::Away("the connection was cut".into())),
            Ok(Err(_)) | Err(_) => {
                tokio::time::sleep_until(waited + most + PATIENCE).await;
                Err(LinkError::Away("no answer in time".into()))
            }
        }
    }

    async fn plain<T, F>(&self, run: impl Fn(Arc<ModelLink>) -> F + Send + 'static) -> Result<T, LinkError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, LinkError>> + Send + 'static,
    {
        self.call(Kind::Plain, Duration::ZERO, run).await
    }
}

impl Link for Line {
    async fn swap_under(&self, swaps: &[Swap], fences_met: Option<u64>) -> Result<Vec<Swapped>, LinkError> {
        if let Some(answers) = self.answer_here(swaps) {
            return Ok(answers);
        }
        if fences_met.is_some_and(|met| met != self.fences_met()) {
            return Ok(vec![Swapped::Fenced; swaps.len()]);
        }
        let ids_of = |swap: &Swap| entry::decode(&swap.entry).unwrap_or_default().into_iter().map(|logged| logged.row.id);
        // In doubt until the answer says otherwise: the node may die while it waits.
        let fresh: BTreeSet<String> =
            swaps.iter().flat_map(ids_of).filter(|id| self.network.record().in_doubt.insert(id.clone())).collect();
        let ids: Vec<Vec<String>> = swaps.iter().map(|swap| ids_of(swap).collect()).collect();
        let (network, life, sent_to) = (self.network.clone(), self.life.clone(), self.generation.load(Ordering::Relaxed));
        let deadline = network.database.millis() + DEADLINE_MILLIS;
        let (fences, learned) = (self.fences.lock().unwrap().clone(), Arc::new(AtomicU64::new(0)));
        let told = learned.clone();
        let is_looked_through = self.looked_through.load(Ordering::Relaxed) == self.network.record().broken;
        let partitions: Vec<u16> = swaps.iter().map(|swap| swap.partition).collect();
        let (sent, all_ids, arrivals) = (Arc::new(swaps.to_vec()), ids.concat(), Arc::new(AtomicU64::new(0)));
        let answered = self
            .call(Kind::Acknowledged, Duration::ZERO, move |link| {
                let (network, life, sent, told, fences) = (network.clone(), life.clone(), sent.clone(), told.clone(), fences.clone());
                if arrivals.fetch_add(1, Ordering::Relaxed) > 0 {
                    // What was refused the first time may be done the second, and nobody hears of it.
                    network.record().repeated.extend(all_ids.iter().cloned());
                }
                async move {
                    let is_before = life.version == Version::Before;
                    let is_looked_through = is_looked_through || is_before;
                    if sent_to != 0 && (!is_looked_through || network.database.generation() != Some(sent_to)) {
                        return Err(LinkError::emptied());
                    }
                    if network.database.millis() > deadline && !is_before {
                        return Err(LinkError::Away("it arrived too late".into()));
                    }
                    network.take_writes()?;
                    let fence = network.database.fence_now();
                    let is_fenced = |swap: &Swap| !is_before && fences.get(&swap.partition).copied().unwrap_or(0) != fence;
                    told.store(fence, Ordering::Relaxed);
                    let sent: Vec<(bool, Swap)> = sent.iter().map(|swap| (is_fenced(swap), swap.clone())).collect();
                    let made: Vec<Swap> = sent.iter().filter(|(is_fenced, _)| !is_fenced).map(|(_, swap)| swap.clone()).collect();
                    let names: BTreeSet<CellName> = made.iter().flat_map(|swap| &swap.cells).map(|cell| cell.name.clone()).collect();
                    let names: Vec<CellName> = names.into_iter().collect();
                    let values = link.load(names.clone()).await?;
                    let tokens = names.into_iter().zip(values).map(|(name, value)| (name, value.map_or(0, |(token, _)| token)));
                    let answers = link.arrives(&made)?;
                    network.tape(&life, &made, &answers, tokens.collect());
                    network.as_its_version_does(&life, &made, &answers);
                    let mut answers = answers.into_iter();
                    let answer = |is_fenced| if is_fenced { Some(Swapped::Fenced) } else { answers.next() };
                    Ok(sent.into_iter().map(|(is_fenced, _)| is_fenced).filter_map(answer).collect::<Vec<_>>())
                }
            })
            .await;
        if let Ok(answers) = &answered {
            let fenced = partitions.iter().zip(answers).filter(|(_, answer)| **answer == Swapped::Fenced);
            let mut fences = self.fences.lock().unwrap();
            for (partition, _) in fenced {
                fences.insert(*partition, learned.load(Ordering::Relaxed));
                self.fences_met.fetch_add(1, Ordering::Relaxed);
            }
        }
        let mut record = self.network.record();
        match &answered {
            Ok(answers) => {
                for id in ids.iter().zip(answers).filter(|(_, answer)| **answer == Swapped::Done).flat_map(|(ids, _)| ids) {
                    record.in_doubt.remove(id);
                }
                record.in_doubt.retain(|id| !fresh.contains(id));
            }
            Err(LinkError::Away(_)) => {}
            Err(LinkError::Refused(_) | LinkError::NotOurs(_)) => record.in_doubt.retain(|id| !fresh.contains(id)),
        }
        drop(record);
        answered
    }

    fn fences_met(&self) -> u64 {
        self.fences_met.load(Ordering::Relaxed)
    }

    async fn load(&self, names: Vec<CellName>) -> Result<Vec<Value>, LinkError> {
        if self.is_before() && !names.is_empty() && names.iter().all(is_unknown_before) {
            let unknown = self.unknown.lock().unwrap();
            return Ok(names.iter().map(|name| unknown.get(&name.hash()).cloned()).collect());
        }
        self.plain(move |link| {
            let names = names.clone();
            async move { link.load(names).await }
        })
        .await
    }

    async fn time(&self) -> Result<i64, LinkError> {
        self.plain(|link| async move { link.time().await }).await
    }

    async fn entries(&self, after: Vec<(u16, EntryId)>, count: usize, wait_millis: u64) -> Result<Vec<(u16, EntryId, Vec<u8>)>, LinkError> {
        self.call(Kind::Acknowledged, Duration::from_millis(wait_millis), move |link| {
            let after = after.clone();
            async move { link.entries(after, count, wait_millis).await }
        })
        .await
    }

    async fn latest(&self) -> Result<Vec<EntryId>, LinkError> {
        self.plain(|link| async move { link.latest().await }).await
    }

    async fn trim(&self, upto: Vec<(u16, EntryId)>) -> Result<(), LinkError> {
        self.plain(move |link| {
            let upto = upto.clone();
            async move { link.trim(upto).await }
        })
        .await
    }

    fn has_read(&self, generation: u64, positions: &[(u16, EntryId)]) {
        self.link.has_read(generation, positions);
    }

    fn server_run(&self) -> u64 {
        self.link.server_run()
    }

    async fn fence(&self) -> Result<(), LinkError> {
        if self.is_before() {
            return Ok(());
        }
        let network = self.network.clone();
        self.plain(move |link| {
            let network = network.clone();
            async move {
                network.take_writes()?;
                link.fence().await
            }
        })
        .await
    }

    async fn is_older(&self) -> Result<bool, LinkError> {
        self.plain(|link| async move { link.is_older().await }).await
    }

    async fn about(&self, mine: About) -> Result<About, LinkError> {
        let (network, connection) = (self.network.clone(), self.network.record().broken);
        let about = self
            .plain(move |link| {
                let (network, mine) = (network.clone(), mine.clone());
                async move {
                    let before = network.database.generation();
                    let about = link.about(mine).await?;
                    if before.is_some_and(|before| before != about.generation) {
                        network.states_begin_anew();
                    }
                    Ok(about)
                }
            })
            .await?;
        self.generation.store(about.generation, Ordering::Relaxed);
        self.looked_through.store(connection, Ordering::Relaxed);
        Ok(about)
    }

    /// For people to look at: nothing follows from it.
    async fn condition(&self) -> Result<Condition, LinkError> {
        self.link.condition().await
    }

    async fn note_endpoint(&self, label: String) -> Result<(), LinkError> {
        self.plain(move |link| {
            let label = label.clone();
            async move { link.note_endpoint(label).await }
        })
        .await
    }

    async fn endpoints(&self) -> Result<Vec<String>, LinkError> {
        self.plain(|link| async move { link.endpoints().await }).await
    }

    async fn forget_endpoint(&self, label: String) -> Result<(), LinkError> {
        self.plain(move |link| {
            let label = label.clone();
            async move { link.forget_endpoint(label).await }
        })
        .await
    }

    async fn lease(&self, name: &str, holder: u64, millis: u64) -> Result<bool, LinkError> {
        let name = name.to_owned();
        self.plain(move |link| {
            let name = name.clone();
            async move { link.lease(&name, holder, millis).await }
        })
        .await
    }

    async fn is_here(&self, node: u64, known: &NodesSeen) -> Result<NodesSeen, LinkError> {
        let known = known.clone();
        self.plain(move |link| {
            let known = known.clone();
            async move { link.is_here(node, &known).await }
        })
        .await
    }

    async fn say_of_erasures(&self, node: u64, said: Said) -> Result<(), LinkError> {
        if let Said::Announced(erasure) = &said {
            self.network.record().announced.insert(erasure.clone());
        }
        self.plain(move |link| {
            let said = said.clone();
            async move { link.say_of_erasures(node, said).await }
        })
        .await
    }

    async fn erasures(&self) -> Result<Vec<(String, Vec<u64>)>, LinkError> {
        self.plain(|link| async move { link.erasures().await }).await
    }

    fn partitions(&self) -> u16 {
        self.link.partitions()
    }
}
