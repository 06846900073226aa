//! A run: nodes that live and die, callers that ask them, and what goes wrong meanwhile, all drawn from one seed.

use crate::books;
use crate::chance::Chance;
use crate::network::{BEGINNING, Life, Line, Network, Version, Weather};
use runguard_engine::engine::{RULES, fingerprint};
use runguard_engine::erasure::THE_LOG;
use runguard_engine::settings::{Settings, check_text};
use runguard_engine::{AuthorisedRequest, Clock, Engine, EngineError, EngineOptions, Idempotency, KeyRing, Outcome};
use runguard_guards::answer::Shape;
use runguard_guards::guard::api_circuit::Control;
use runguard_guards::guard::{ROUTES, Route};
use runguard_guards::input::Input;
use runguard_store::cluster::{Place, Portions, Shelf, entry};
use runguard_store::{Cluster, ClusterOptions, LogFault, LogKept, Memory, Names, RETIRE_EVERY, Row, Store};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::Instant;

pub(crate) const RETRY_CAP: usize = 5;
pub(crate) const PROBES: usize = 1;
pub(crate) const PROBE_TIMEOUT_MILLIS: i64 = 5_000;
pub(crate) const CHILD_LIMIT: f64 = 1.0;
pub(crate) const PARENT_LIMIT: f64 = 1.5;
pub(crate) const POOL_LIMIT: f64 = 0.8;
pub(crate) const GLOBEX_LIMIT: f64 = 1.2;
/// How long a reservation may take to be settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reservations {
    /// Longer than a run.
    Last,
    /// Shorter than it often takes: many are settled after they were booked as paid.
    Expire,
}

const RULES_TEXT: &str = "
[guards.ai_task_retry]
max_retries = 5
[guards.api_circuit]
failure_threshold = 4
recovery = \"3s\"
probes = 1
probe_timeout = \"5s\"
max_attempts_per_session = 50
[guards.budget]
max_usd = 1.5
[guards.budget.scopes.pool.day]
max_usd = 0.8
[guards.budget.scopes.tenant.total]
max_usd = 0
[tenants.globex.guards.budget.scopes.tenant.total]
max_usd = 1.2
";
/// After the last fault every node must be sound within this time: the one that builds the states may have died with the lease.
/// And with small streams what was decided alone goes home in small parts.
const RECOVERED_WITHIN: Duration = Duration::from_secs(180);
const LASTS_MILLIS: u64 = 30_000;
/// Later than the last message of a dead node can arrive.
const LAST_MESSAGE: Duration = Duration::from_millis(2_500);
/// An erasure whose node has died is finished by another one within this time.
const FINISHED_WITHIN: Duration = Duration::from_secs(15);
/// Sessions of this beginning are erased now and then.
pub(crate) const ERASABLE: &str = "gone";

/// As a node finds it that was never started.
fn notes_of(node: usize) -> Place {
    Place::Memory(Arc::new(Mutex::new([("node".to_owned(), (node as u64 + 1).to_be_bytes().to_vec())].into())))
}

pub(crate) fn route(path: &str) -> &'static Route {
    ROUTES.iter().find(|route| route.path == path).unwrap()
}

/// Two sessions share a pool.
pub(crate) fn pool_of(session: &str) -> String {
    format!("pool{}", session.bytes().last().unwrap_or_default() % 2)
}

/// What somebody asks.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) tenant: Arc<str>,
    pub(crate) path: &'static str,
    pub(crate) body: String,
    pub(crate) key: Option<String>,
}

/// What somebody was told.
#[derive(Debug, Clone)]
pub(crate) struct Given {
    pub(crate) request: Request,
    pub(crate) life: u64,
    pub(crate) id: String,
    pub(crate) body: String,
    pub(crate) outcome: Outcome,
    pub(crate) replayed: bool,
    pub(crate) degraded: bool,
    pub(crate) at: i64,
    /// By the database's clock: when it was asked, and when the answer was there.
    pub(crate) asked_at: i64,
    pub(crate) answered_at: i64,
}

#[derive(Debug, Clone)]
pub(crate) struct Erasure {
    pub(crate) session: String,
    /// Rows of the log and of the streams when it began: they are to be gone.
    pub(crate) rows: BTreeSet<String>,
    pub(crate) life: u64,
}

/// What somebody was told of an erasure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    Done,
    /// It is finished behind.
    Begun,
    /// Nothing of it was done, nor will be.
    Refused,
}

/// Somebody asked for an erasure, by the database's clock.
#[derive(Debug, Clone)]
pub(crate) struct Attempt {
    pub(crate) tenant: Arc<str>,
    pub(crate) session: String,
    pub(crate) life: u64,
    pub(crate) began: i64,
    /// Rows of the log when it began.
    pub(crate) rows: BTreeSet<String>,
    /// When somebody was told something, and what. `None`: its node died, or it never ended.
    pub(crate) ended: Option<(i64, Heard)>,
}

/// Somebody was told that an erasure has begun.
#[derive(Debug)]
pub(crate) struct Promise {
    pub(crate) tenant: Arc<str>,
    pub(crate) session: String,
    /// What is to tell of it in the log.
    pub(crate) row: String,
    /// How many erasures of the session the log told of then.
    pub(crate) before: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) given: Vec<Given>,
    pub(crate) erasures: Vec<Erasure>,
    pub(crate) attempts: Vec<Attempt>,
    pub(crate) promises: Vec<Promise>,
    /// Operators' changes that were confirmed.
    pub(crate) controls: usize,
    /// Requests that a crash cut off, by life.
    pub(crate) cut_off: BTreeMap<u64, usize>,
    /// When a life ended.
    pub(crate) died: BTreeMap<u64, i64>,
    /// Every life: of which node, and whose commands it sent.
    pub(crate) lives: BTreeMap<u64, (usize, Version)>,
    pub(crate) failed: usize,
    /// What went wrong and when, to understand a seed.
    pub(crate) faults: Vec<String>,
    /// To be settled: tenant, session, reservation.
    reservations: Vec<(Arc<str>, String, String)>,
    permits: Vec<(Arc<str>, String, String, String)>,
    keys: u64,
}

impl Told {
    pub(crate) fn is_before(&self, life: u64) -> bool {
        self.lives.get(&life).is_some_and(|(_, version)| *version == Version::Before)
    }

    /// When what somebody asked for was certainly over, if something was to be done. `latest`: of the erasures that the log tells of.
    fn over_at(&self, attempt: &Attempt, latest: i64) -> i64 {
        match attempt.ended {
            Some((ended, Heard::Done | Heard::Refused)) => ended,
            // Another node finished it, if it had begun.
            Some((_, Heard::Begun)) => latest,
            None => self.died.get(&attempt.life).map_or(i64::MAX, |died| latest.max(died + LAST_MESSAGE.as_millis() as i64)),
        }
    }

    /// Whether a session was erased, or perhaps was, at this time or later.
    pub(crate) fn is_erased_after(&self, tenant: &str, session: &str, millis: i64, latest: i64) -> bool {
        let of_session = |attempt: &&Attempt| *attempt.tenant == *tenant && attempt.session == session;
        let may_have = |attempt: &&Attempt| !matches!(attempt.ended, Some((_, Heard::Refused)));
        self.attempts.iter().filter(of_session).filter(may_have).any(|attempt| self.over_at(attempt, latest) >= millis)
    }
}

#[derive(Debug)]
struct Node {
    disk: Memory,
    /// The part of it where entries lie that may have to be sent again.
    shelf: Place,
    /// And where it notes erasures that are not finished.
    notes: Place,
    /// What is started next.
    version: Version,
    life: Arc<Life>,
    engine: Option<Arc<Engine>>,
    starting: Option<AbortHandle>,
    callers: Vec<AbortHandle>,
    /// Goes on with erasures.
    finishing: Option<AbortHandle>,
}

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) network: Arc<Network>,
    pub(crate) is_calm: bool,
    pub(crate) is_mixed: bool,
    pub(crate) settings: Settings,
    reservations: Reservations,
    nodes: Mutex<Vec<Node>>,
    told: Mutex<Told>,
    lives: std::sync::atomic::AtomicU64,
    seed: u64,
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    Crash,
    Cut,
    Down,
    Emptied,
    FailOver,
    /// The server comes back with what it had a while ago.
    Older,
    /// All connections break; the server stays up.
    Reset,
    /// A node starts while the server is down.
    StartAway,
    LogAway,
    LogAnswersLost,
    /// The server takes no writes for a while: its memory is full.
    Refuses,
}

/// What a run came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) trace: u64,
    pub(crate) answers: usize,
    pub(crate) degraded: usize,
    pub(crate) rows: usize,
    pub(crate) calls: u64,
}

pub(crate) fn run(seed: u64, reservations: Reservations) -> Result<Report, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(World::live(seed, reservations))
}

impl World {
    async fn live(seed: u64, reservations: Reservations) -> Result<Report, String> {
        let mut chance = Chance::new(seed, 2);
        let rough = chance.below(4);
        let weather = Weather {
            lost_requests: rough * 8,
            lost_answers: rough * 8,
            repeated: rough * 10,
            most_delay_millis: chance.between(0, 12),
            very_late: rough * 4,
        };
        let stream_limit = if chance.in_thousand(150) { 40 } else { 1_000_000 };
        let network = Network::new(seed, weather, *chance.one_of(&[1, 2, 5]), stream_limit);
        let rules = match reservations {
            Reservations::Last => RULES_TEXT.to_owned(),
            Reservations::Expire => RULES_TEXT.replace("[guards.budget]\n", "[guards.budget]\nreservation = \"2s\"\n"),
        };
        let settings = check_text(Path::new("rules.toml"), &rules).unwrap().settings;
        let count = chance.between(2, 5) as usize;
        // Drawn apart: the other runs are what they were before there were versions.
        let mut versions = Chance::new(seed, 4);
        let is_mixed = versions.in_thousand(250);
        let world = Arc::new(Self {
            network,
            is_calm: rough == 0,
            is_mixed,
            settings,
            reservations,
            nodes: Mutex::default(),
            told: Mutex::default(),
            lives: 1.into(),
            seed,
        });
        for node in 0..count {
            let version = if is_mixed && versions.in_thousand(700) { Version::Before } else { Version::This };
            let life = world.life(node, version);
            let (disk, shelf, callers) = (Memory::alone(), Place::default(), Vec::new());
            let notes = notes_of(node);
            let born = Node { disk, shelf, notes, version, life, engine: None, starting: None, callers, finishing: None };
            world.nodes().push(born);
            world.start(node);
        }
        if is_mixed {
            world.told().faults.push(format!("begins with {:?}", world.nodes().iter().map(|node| node.version).collect::<Vec<_>>()));
        }
        let rolling = is_mixed.then(|| tokio::spawn(world.clone().change_versions(versions)));
        // Drawn apart as well.
        let mut together = Chance::new(seed, 5);
        let erased_together = together.in_thousand(200).then(|| tokio::spawn(world.clone().erase_together(together)));
        let faults = tokio::spawn(world.clone().go_wrong(chance.clone()));
        world.clone().ask_around(Chance::new(seed, 3)).await;
        faults.await.map_err(|error| error.to_string())?;
        if let Some(erased_together) = erased_together {
            erased_together.await.map_err(|error| error.to_string())?;
        }
        if let Some(rolling) = rolling {
            rolling.await.map_err(|error| error.to_string())?;
            world.end_upgrade().await;
        }
        world.network.calm();
        for node in 0..count {
            world.start_if_down(node);
        }
        // What was lost before is waited for in vain a little longer.
        tokio::time::sleep(Duration::from_secs(3)).await;
        let recovered = world.recovers(count).await;
        if world.told().attempts.iter().any(|attempt| !matches!(attempt.ended, Some((_, Heard::Done | Heard::Refused)))) {
            tokio::time::sleep(FINISHED_WITHIN).await;
        }
        let checked = match recovered {
            Ok(()) => books::check(&world).await,
            Err(wrong) => Err(wrong),
        };
        checked.map_err(|wrong| format!("{wrong}\n  {count} nodes, {weather:?}, limit {stream_limit}, {:#?}", world.told().faults))?;
        let trace = world.network.trace_hash();
        let told = world.told();
        let degraded = told.given.iter().filter(|given| given.degraded).count();
        let rows = books::rows_of(&world.network.log).len();
        let calls = world.network.record().calls;
        Ok(Report { trace, answers: told.given.len(), degraded, rows, calls })
    }

    fn nodes(&self) -> MutexGuard<'_, Vec<Node>> {
        self.nodes.lock().unwrap()
    }

    pub(crate) fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap()
    }

    pub(crate) fn disks(&self) -> Vec<Memory> {
        self.nodes().iter().map(|node| node.disk.clone()).collect()
    }

    /// What lies where entries are kept that may have to be sent again.
    pub(crate) fn shelves(&self) -> Vec<Vec<u8>> {
        let read = |node: &Node| match &node.shelf {
            Place::Memory(files) => files.lock().unwrap().values().cloned().collect(),
            Place::Folder(_) => Vec::new(),
        };
        self.nodes().iter().flat_map(read).collect()
    }

    /// Of every node how many erasures are noted that are not finished.
    pub(crate) fn unfinished_erasures(&self) -> Vec<usize> {
        let read = |node: &Node| match &node.notes {
            Place::Memory(files) => files.lock().unwrap().keys().filter(|name| name.contains(".json")).count(),
            Place::Folder(_) => 0,
        };
        self.nodes().iter().map(read).collect()
    }

    /// What is to tell of an erasure that a node has noted.
    fn noted_row(&self, node: usize, tenant: &str, session: &str) -> Option<String> {
        let nodes = self.nodes();
        let Place::Memory(files) = &nodes[node].notes else { return None };
        let files = files.lock().unwrap();
        let notes = files.iter().filter(|(name, _)| name.contains(".json"));
        let notes = notes.map(|(_, text)| serde_json::from_slice::<Value>(text).unwrap());
        let mut of_session = notes.filter(|note| note["tenant"] == tenant && note["whose"]["session"] == session);
        of_session.find_map(|note| note["row"].as_str().map(str::to_owned))
    }

    pub(crate) fn engines(&self) -> Vec<Arc<Engine>> {
        self.nodes().iter().filter_map(|node| node.engine.clone()).collect()
    }

    fn life(&self, node: usize, version: Version) -> Arc<Life> {
        let number = self.lives.fetch_add(1, Ordering::Relaxed);
        self.told().lives.insert(number, (node, version));
        Arc::new(Life { node, number, version, dead: AtomicBool::new(false) })
    }

    fn start_if_down(self: &Arc<Self>, node: usize) {
        let is_down = {
            let nodes = self.nodes();
            nodes[node].engine.is_none() && nodes[node].starting.is_none()
        };
        if is_down {
            self.start(node);
        }
    }

    /// Starts a node, and tries again until it is there.
    fn start(self: &Arc<Self>, node: usize) {
        let world = self.clone();
        let starting = tokio::spawn(async move {
            loop {
                let version = world.nodes()[node].version;
                let life = world.life(node, version);
                world.nodes()[node].life = life.clone();
                if let Ok(engine) = world.join(&life).await {
                    let engine = Arc::new(engine);
                    let finishing = tokio::spawn(runguard_engine::erasure::finish(engine.clone())).abort_handle();
                    let mut nodes = world.nodes();
                    (nodes[node].engine, nodes[node].starting, nodes[node].finishing) = (Some(engine), None, Some(finishing));
                    drop(nodes);
                    world.network.trace(("started", node));
                    return;
                }
                life.dead.store(true, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
        });
        self.nodes()[node].starting = Some(starting.abort_handle());
    }

    async fn join(&self, life: &Arc<Life>) -> Result<Engine, String> {
        let options = ClusterOptions {
            folder: "/nonexistent".into(),
            memory_bytes: 1 << 20,
            retention_days: 30,
            window: Duration::from_millis(self.settings.policies.longest_window().as_millis()),
            patience: Duration::from_millis(500),
            retire_every: RETIRE_EVERY,
            alone_bytes: u64::MAX,
            // Small, so that there are several of each.
            portions: Portions { read: 5, together: 3, of_one_state: 2, swaps: 1 },
            // Small, so that there is always something on disk.
            unconfirmed: Shelf { place: self.nodes()[life.node].shelf.clone(), entries_in_memory: 4, most_bytes: u64::MAX },
            // It may be wrong.
            here_millis: self.network.database.millis() + (life.number as i64 % 3 - 1) * 60_000,
            names: Names::PLAIN,
            seed: Chance::new(self.seed, 100 + life.number).next(),
        };
        let disk = self.nodes()[life.node].disk.clone();
        let notes = self.nodes()[life.node].notes.clone();
        let log = LogKept::Memory(self.network.log.clone(), disk);
        let cluster = Cluster::join(Line::new(&self.network, life), log, options, RULES).await.map_err(|error| error.to_string())?;
        let options = EngineOptions {
            clock: Clock::Shared(cluster.clock()),
            settings: self.settings.clone(),
            keys: KeyRing::default(),
            seed: Some(Chance::new(self.seed, 1_000_000 + life.number).next()),
        };
        Engine::simulated(Store::Cluster(cluster), options, notes).await.map_err(|error| error.to_string())
    }

    /// Everything of the node is gone but its disk, whatever it was doing.
    fn crash(&self, node: usize) {
        let mut nodes = self.nodes();
        let dying = &mut nodes[node];
        dying.life.dead.store(true, Ordering::Relaxed);
        if let Some(starting) = dying.starting.take() {
            starting.abort();
        }
        let running = dying.callers.iter().filter(|caller| !caller.is_finished());
        let cut_off = running.map(AbortHandle::abort).count();
        dying.callers.clear();
        dying.finishing.take().inspect(AbortHandle::abort);
        let (engine, life) = (dying.engine.take(), dying.life.number);
        drop(nodes);
        drop(engine);
        let mut told = self.told();
        *told.cut_off.entry(life).or_default() += cut_off;
        told.died.entry(life).or_insert_with(|| self.network.database.millis());
        drop(told);
        self.network.trace(("crashed", node));
    }

    /// One node after the other is stopped, and started with the other version: an upgrade, and some of it taken back.
    async fn change_versions(self: Arc<Self>, mut chance: Chance) {
        let end = Instant::now() + Duration::from_millis(LASTS_MILLIS);
        let often = *chance.one_of(&[3_000, 8_000, 20_000]);
        loop {
            tokio::time::sleep(chance.millis(500, often)).await;
            if Instant::now() >= end {
                return;
            }
            let node = chance.below(self.nodes().len() as u64) as usize;
            self.give_version(node, if chance.in_thousand(650) { Version::This } else { Version::Before });
            tokio::time::sleep(LAST_MESSAGE + chance.millis(0, 500)).await;
            self.start_if_down(node);
        }
    }

    fn give_version(self: &Arc<Self>, node: usize, version: Version) {
        self.told().faults.push(format!("{:?} {node} becomes {version:?}", self.network.database.millis() - BEGINNING));
        self.nodes()[node].version = version;
        self.crash(node);
    }

    /// At the end all nodes are of this version.
    async fn end_upgrade(self: &Arc<Self>) {
        let count = self.nodes().len();
        let left: Vec<usize> = (0..count)
            .filter(|node| {
                let nodes = self.nodes();
                nodes[*node].version == Version::Before || nodes[*node].life.version == Version::Before
            })
            .collect();
        for node in &left {
            self.give_version(*node, Version::This);
        }
        if !left.is_empty() {
            tokio::time::sleep(LAST_MESSAGE).await;
        }
    }

    /// Two nodes are asked for an erasure of one session, and the second one is cut off for a moment while it goes.
    async fn erase_together(self: Arc<Self>, mut chance: Chance) {
        let end = Instant::now() + Duration::from_millis(LASTS_MILLIS);
        loop {
            tokio::time::sleep(chance.millis(200, 4_000)).await;
            if Instant::now() >= end {
                return;
            }
            let count = self.nodes().len() as u64;
            let first = chance.below(count);
            let second = (first + 1 + chance.below(count - 1)) % count;
            let tenant: Arc<str> = if chance.in_thousand(700) { "acme" } else { "globex" }.into();
            let session = format!("{ERASABLE}{}", chance.below(2));
            for node in [first, second] {
                self.ask_to_erase(node as usize, tenant.clone(), session.clone());
                tokio::time::sleep(chance.millis(0, 30)).await;
            }
            tokio::time::sleep(chance.millis(0, 100)).await;
            self.network.cut_off(second as usize);
            tokio::time::sleep(chance.millis(10, 400)).await;
            self.network.reconnect(second as usize);
        }
    }

    fn ask_to_erase(self: &Arc<Self>, node: usize, tenant: Arc<str>, session: String) {
        let mut nodes = self.nodes();
        let Some(engine) = nodes[node].engine.clone() else { return };
        let (world, life) = (self.clone(), nodes[node].life.number);
        let caller = tokio::spawn(async move { world.erase(&engine, life, tenant, session).await }).abort_handle();
        nodes[node].callers.push(caller);
    }

    async fn go_wrong(self: Arc<Self>, mut chance: Chance) {
        let end = Instant::now() + Duration::from_millis(LASTS_MILLIS);
        let often = *chance.one_of(&[0, 900, 2_500, 6_000, 12_000]);
        if often == 0 {
            return;
        }
        loop {
            tokio::time::sleep(chance.millis(100, often)).await;
            if Instant::now() >= end {
                return;
            }
            let node = chance.below(self.nodes().len() as u64) as usize;
            let fault = match chance.below(100) {
                0..28 => Fault::Crash,
                28..47 => Fault::Cut,
                47..62 => Fault::Down,
                62..72 => Fault::Emptied,
                72..81 => Fault::FailOver,
                81..88 => Fault::Reset,
                88..91 => Fault::LogAway,
                91..94 => Fault::StartAway,
                94..97 => Fault::Older,
                97..99 => Fault::LogAnswersLost,
                _ => Fault::Refuses,
            };
            // The version before does not see that a database is older than it was: it promises nothing then.
            let fault = if self.is_mixed && matches!(fault, Fault::Older) { Fault::FailOver } else { fault };
            self.network.trace(("fault", fault as u8, node));
            let most = if chance.in_thousand(200) { 9_000 } else { 1_500 };
            let lasts = chance.millis(50, most);
            let lag = chance.millis(10, 300);
            self.told().faults.push(format!("{:?} {fault:?} {node} for {lasts:?}, {lag:?}", self.network.database.millis() - BEGINNING));
            self.clone().happen(fault, node, lasts, lag).await;
        }
    }

    async fn happen(self: Arc<Self>, fault: Fault, node: usize, lasts: Duration, lag: Duration) {
        match fault {
            Fault::Crash => {
                self.crash(node);
                tokio::spawn(async move {
                    tokio::time::sleep(LAST_MESSAGE + lasts).await;
                    self.start_if_down(node);
                });
            }
            Fault::Cut => {
                self.network.cut_off(node);
                tokio::spawn(async move {
                    tokio::time::sleep(lasts).await;
                    self.network.reconnect(node);
                });
            }
            Fault::Down => {
                self.network.go_down();
                tokio::time::sleep(lasts).await;
                self.network.come_up();
            }
            Fault::Emptied => {
                self.network.go_down();
                tokio::time::sleep(lasts.min(lag)).await;
                self.network.empty();
                self.network.come_up();
            }
            Fault::FailOver => {
                self.network.lag();
                tokio::time::sleep(lag).await;
                self.network.go_down();
                tokio::time::sleep(lasts).await;
                self.network.fail_over();
                self.network.come_up();
            }
            Fault::Older => {
                self.network.save();
                tokio::time::sleep(lasts).await;
                self.network.go_down();
                tokio::time::sleep(lag).await;
                self.network.restore();
                self.network.come_up();
            }
            Fault::Reset => self.network.record().broken += 1,
            Fault::Refuses => {
                self.network.set_refuses(true);
                tokio::spawn(async move {
                    tokio::time::sleep(lasts).await;
                    self.network.set_refuses(false);
                });
            }
            Fault::StartAway => {
                self.network.go_down();
                self.crash(node);
                tokio::time::sleep(LAST_MESSAGE + lag).await;
                self.start_if_down(node);
                // So long that it decides alone.
                tokio::time::sleep(lasts + Duration::from_secs(4)).await;
                self.network.come_up();
            }
            Fault::LogAway | Fault::LogAnswersLost => {
                let fault = if matches!(fault, Fault::LogAway) { LogFault::Away } else { LogFault::AnswersLost };
                self.network.log.set_log_fault(fault);
                tokio::spawn(async move {
                    tokio::time::sleep(lasts).await;
                    self.network.log.set_log_fault(LogFault::Sound);
                });
            }
        }
    }

    async fn ask_around(self: Arc<Self>, mut chance: Chance) {
        let end = Instant::now() + Duration::from_millis(LASTS_MILLIS);
        let often = chance.between(60, 400);
        while Instant::now() < end {
            tokio::time::sleep(chance.millis(0, often)).await;
            for _ in 0..chance.between(1, 4) {
                let node = chance.below(self.nodes().len() as u64) as usize;
                let Some(engine) = self.nodes()[node].engine.clone() else { continue };
                let life = self.nodes()[node].life.number;
                let caller = self.clone().caller(&mut chance, engine, life);
                let mut nodes = self.nodes();
                nodes[node].callers.retain(|caller| !caller.is_finished());
                nodes[node].callers.push(caller);
            }
        }
        // Those still under way have their time.
        tokio::time::sleep(Duration::from_secs(5)).await;
    }

    fn caller(self: Arc<Self>, chance: &mut Chance, engine: Arc<Engine>, life: u64) -> AbortHandle {
        let tenant: Arc<str> = if chance.in_thousand(700) { "acme" } else { "globex" }.into();
        match chance.below(100) {
            0 => {
                let session = format!("{ERASABLE}{}", chance.below(2));
                tokio::spawn(async move { self.erase(&engine, life, tenant, session).await }).abort_handle()
            }
            1..3 => {
                let control = *chance.one_of(&[Control::Open, Control::Close, Control::Reset]);
                let endpoint = format!("api{}", chance.below(2));
                tokio::spawn(async move {
                    let now = engine.clock.read(None).unwrap();
                    if engine.control_circuit(&tenant, &endpoint, control, now).await.is_ok() {
                        self.told().controls += 1;
                    }
                })
                .abort_handle()
            }
            _ => {
                let request = self.invent(chance, tenant);
                tokio::spawn(async move {
                    let _ = self.ask(&engine, life, request).await;
                })
                .abort_handle()
            }
        }
    }

    fn invent(&self, chance: &mut Chance, tenant: Arc<str>) -> Request {
        let mut told = self.told();
        let chosen = chance.below(100);
        let session = if chance.in_thousand(150) { format!("{ERASABLE}{}", chance.below(2)) } else { format!("s{}", chance.below(4)) };
        let other = format!("s{}", chance.below(4));
        let budget = |session: &str| {
            let pool = json!({"per": "pool", "name": pool_of(session)});
            json!({"session_id": session, "budget": "b", "parent": "team", "max_usd": CHILD_LIMIT, "scopes": [pool]})
        };
        let (path, body) = match chosen {
            0..25 => ("/guard/ai-task-retry", json!({"session_id": session, "task_name": format!("t{}", chance.below(3))})),
            25..32 => ("/guard/handoff", json!({"session_id": session, "source_bot": "a", "target_bot": format!("b{}", chance.below(4))})),
            32..37 => ("/guard/no-match-reprompt", json!({"session_id": session, "step_id": "step"})),
            37..41 => ("/guard/agent-action", json!({"session_id": session, "action_name": format!("act{}", chance.below(2))})),
            41..44 => ("/guard/kb-requery", json!({"session_id": session, "topic_hash": "topic"})),
            44..47 => ("/guard/loop", json!({"session_id": session, "tool": format!("tool{}", chance.below(2))})),
            47..60 => ("/guard/api-circuit/check", json!({"session_id": other, "endpoint_key": format!("api{}", chance.below(2))})),
            60..73 => {
                let outcome = if chance.in_thousand(600) { "failure" } else { "success" };
                let taken = if told.permits.is_empty() { None } else { Some(chance.below(told.permits.len() as u64) as usize) };
                match taken.map(|index| told.permits.swap_remove(index)) {
                    Some((owner, session, endpoint, permit)) => {
                        let body = json!({"session_id": session, "endpoint_key": endpoint, "outcome": outcome, "permit_id": permit});
                        return Request { tenant: owner, path: "/guard/api-circuit/record", body: body.to_string(), key: None };
                    }
                    None => (
                        "/guard/api-circuit/record",
                        json!({"session_id": other, "endpoint_key": format!("api{}", chance.below(2)), "outcome": outcome}),
                    ),
                }
            }
            73..88 => {
                let mut body = budget(&other);
                let cents = chance.between(1, 9);
                body["usd"] = json!(0.01 * cents as f64);
                // As the gateway does: whoever dies while a model answers has paid for it.
                if cents.is_multiple_of(2) || self.reservations == Reservations::Expire {
                    body["if_unsettled"] = json!("spent");
                }
                ("/guard/budget/reserve", body)
            }
            _ => {
                let taken = if told.reservations.is_empty() { None } else { Some(chance.below(told.reservations.len() as u64) as usize) };
                match taken.map(|index| told.reservations.swap_remove(index)) {
                    Some((owner, session, reservation)) => {
                        let mut body = budget(&session);
                        body["reservation_id"] = json!(reservation);
                        let path = if chance.in_thousand(700) { "/guard/budget/commit" } else { "/guard/budget/release" };
                        return Request { tenant: owner, path, body: body.to_string(), key: None };
                    }
                    None => ("/guard/budget/check", budget(&other)),
                }
            }
        };
        let key = if chance.in_thousand(250) {
            // Again, or one nobody has used. The same key goes with the same request: its number says which.
            let number = if told.keys > 0 && chance.in_thousand(600) {
                told.keys.saturating_sub(1 + chance.below(4))
            } else {
                told.keys += 1;
                told.keys - 1
            };
            let body = json!({"session_id": format!("s{}", number % 4), "task_name": format!("t{}", number % 3)});
            let tenant = if number % 3 == 0 { "globex" } else { "acme" }.into();
            return Request { tenant, path: "/guard/ai-task-retry", body: body.to_string(), key: Some(format!("key{number}")) };
        } else {
            None
        };
        Request { tenant, path, body: body.to_string(), key }
    }

    /// Asks as the server does, and writes down what came back.
    pub(crate) async fn ask(&self, engine: &Engine, life: u64, request: Request) -> Result<Given, EngineError> {
        let route = route(request.path);
        let input = Input::read(request.body.as_bytes(), route.fields).unwrap();
        let operation = (route.read)(&input);
        let idempotency =
            request.key.as_deref().map(|key| Idempotency { key, fingerprint: fingerprint(route.path, request.body.as_bytes()) });
        let now = engine.clock.read(None).unwrap();
        let asked_at = self.network.database.millis();
        let asked =
            AuthorisedRequest { tenant: &request.tenant, operation: &*operation, warnings: &[], now, shape: Shape::Full, idempotency };
        let answered = match engine.ask(asked).await {
            Ok(answered) => answered,
            Err(error) => {
                self.network.trace(("failed", life, error.to_string()));
                self.told().failed += 1;
                return Err(error);
            }
        };
        let json: Value = serde_json::from_str(&answered.body).unwrap();
        let given = Given {
            life,
            id: json["decision_id"].as_str().unwrap_or_default().to_owned(),
            outcome: answered.outcome,
            replayed: answered.replayed,
            degraded: json["degraded"] == true,
            at: now.as_millis(),
            asked_at,
            answered_at: self.network.database.millis(),
            body: answered.body,
            request,
        };
        self.network.trace((
            "answered",
            life,
            &given.id,
            &given.request.key,
            &given.body,
            given.degraded.then(|| format!("{:?}", engine.store.cluster_health())),
        ));
        let mut told = self.told();
        if let Some(reservation) = json["reservation_id"].as_str().filter(|_| given.request.path.ends_with("reserve")) {
            let session = json["session_id"].as_str().unwrap_or_default().to_owned();
            told.reservations.push((given.request.tenant.clone(), session, reservation.to_owned()));
        }
        if let (Some(permit), Some(endpoint)) = (json["permit_id"].as_str(), json["endpoint_key"].as_str()) {
            let session = json["session_id"].as_str().unwrap_or_default().to_owned();
            told.permits.push((given.request.tenant.clone(), session, endpoint.to_owned(), permit.to_owned()));
        }
        told.given.push(given.clone());
        Ok(given)
    }

    async fn erase(&self, engine: &Engine, life: u64, tenant: Arc<str>, session: String) {
        let of_session = |row: &Row| *row.tenant == *tenant && row.session == session;
        let rows: BTreeSet<String> = books::rows_of(&self.network.log).into_iter().filter(of_session).map(|row| row.id).collect();
        let streams = self.network.database.stream_entries();
        let on_their_way = streams.iter().flat_map(|entry| entry::decode(entry).unwrap_or_default()).map(|logged| logged.row);
        let all: BTreeSet<String> = on_their_way.filter(of_session).map(|row| row.id).chain(rows.iter().cloned()).collect();
        let began = self.network.database.millis();
        let number = {
            let mut told = self.told();
            let (tenant, session) = (tenant.clone(), session.clone());
            told.attempts.push(Attempt { tenant, session, life, began, rows, ended: None });
            told.attempts.len() - 1
        };
        self.network.trace(("asked to erase", life, &tenant, &session));
        let now = engine.clock.read(None).unwrap();
        let erased = engine.erase_session(&tenant, &session, now).await;
        let ended = self.network.database.millis();
        let mut told = self.told();
        let heard = match &erased {
            Ok(Some(erasure)) if erasure.waiting.iter().any(|what| what == THE_LOG) => Heard::Begun,
            Ok(_) => Heard::Done,
            Err(_) => Heard::Refused,
        };
        told.attempts[number].ended = Some((ended, heard));
        self.network.trace(("of an erasure is told", life, &session, format!("{erased:?}")));
        if heard == Heard::Begun {
            let node = told.lives[&life].0;
            let before = self.network.log.erasures_told(&tenant, &session).len();
            let promised = self.noted_row(node, &tenant, &session);
            told.promises.extend(promised.map(|row| Promise { tenant: tenant.clone(), session: session.clone(), row, before }));
        }
        if heard == Heard::Done && matches!(erased, Ok(Some(_))) {
            told.erasures.push(Erasure { session: session.clone(), rows: all, life });
            drop(told);
            self.network.trace(("erased", &session));
        }
    }

    /// Without a restart every node decides on the shared states again, and what was decided alone is home.
    pub(crate) async fn recovers(&self, count: usize) -> Result<(), String> {
        let end = Instant::now() + RECOVERED_WITHIN;
        for node in 0..count {
            loop {
                let there = {
                    let nodes = self.nodes();
                    nodes[node].engine.clone().map(|engine| (engine, nodes[node].life.number))
                };
                if let Some((engine, life)) = there {
                    let body = json!({"session_id": "after", "task_name": "t"}).to_string();
                    let request = Request { tenant: "acme".into(), path: "/guard/ai-task-retry", body, key: None };
                    let sound = matches!(self.ask(&engine, life, request).await, Ok(given) if !given.degraded);
                    let health = engine.store.cluster_health().unwrap();
                    if sound && health.waiting_rows == 0 && health.away.is_none() && engine.store.flush().await.is_ok() {
                        break;
                    }
                    if Instant::now() >= end {
                        return Err(format!("node {node} is not sound {RECOVERED_WITHIN:?} after the last fault: {health:?}"));
                    }
                } else if Instant::now() >= end {
                    return Err(format!("node {node} does not come up within {RECOVERED_WITHIN:?} after the last fault"));
                }
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        }
        Ok(())
    }
}
