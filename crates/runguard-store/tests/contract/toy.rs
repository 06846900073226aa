//! Toy states and a store in a folder of its own.

use crate::postgres_server::PostgresServer;
use crate::redis_server::RedisServer;
pub(crate) use runguard_store::Store;
use runguard_store::redis::{RedisLink, RedisOptions};
use runguard_store::{
    Cell, Change, Cluster, ClusterOptions, Decided, Durability, Embedded, Family, Keep, Key, LogKept, Memory, Names, OpenError, Options,
    Order, PgLog, PgOptions, RETIRE_EVERY, Role, Row, RowFilter, Rules, SlotState, StoreError, View, Written,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub(crate) const TENANT: &str = "tenant";
pub(crate) const NOW: i64 = 1_700_000_000_000;
pub(crate) const MINUTE: i64 = 60_000;
pub(crate) const DAY: i64 = 86_400_000;
pub(crate) const PLENTY: usize = 64 * 1024 * 1024;
/// Room for about a hundred entries.
pub(crate) const TINY: usize = 64 * 1024;

/// A number; an event adds to it.
pub(crate) const SUM: u8 = 1;
/// Bytes; an event is appended.
pub(crate) const LIST: u8 = 2;

pub(crate) fn replay(slot: u8, state: Option<&[u8]>, events: &[u8], _at: i64) -> Option<Vec<u8>> {
    match slot {
        SUM => Some((number(state) + number(Some(events))).to_le_bytes().to_vec()),
        LIST => Some([state.unwrap_or_default(), events].concat()),
        _ => None,
    }
}

pub(crate) const RULES: Rules = Rules { replay, group: |_, _, _, _, _| Some(0), keep: |_, _| Keep::Log, take_back: |_, _| None };

/// The sum of an entry.
pub(crate) fn summed(key: Key) -> Cell<'static> {
    Cell { key, slot: SUM, subject: "", group: 0 }
}

/// A list of an entry.
pub(crate) fn listed(key: Key, subject: &str) -> Cell<'_> {
    Cell { key, slot: LIST, subject, group: 0 }
}

pub(crate) fn number(bytes: Option<&[u8]>) -> u64 {
    bytes.map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap()))
}

pub(crate) fn options(folder: &Path, memory_bytes: usize) -> Options {
    Options {
        folder: folder.to_owned(),
        durability: Durability::Process,
        memory_bytes,
        retention_days: 30,
        role: Role::Whole,
        names: Names::PLAIN,
    }
}

pub(crate) fn try_open(folder: &Path, memory_bytes: usize) -> Result<Store, OpenError> {
    Embedded::open(options(folder, memory_bytes), RULES).map(Store::Embedded)
}

/// Its time is what the test tells.
pub(crate) fn open(folder: &Path, memory_bytes: usize) -> Store {
    let store = try_open(folder, memory_bytes).unwrap();
    store.believe_told_time();
    store
}

/// A store that can be closed and opened again.
pub(crate) struct Toy {
    pub(crate) folder: TempDir,
    pub(crate) store: Arc<Store>,
    memory_bytes: usize,
    _servers: Option<Servers>,
}

/// The rows are of a time long past for the servers.
const FOR_EVER_DAYS: u32 = 100_000;

/// What a cluster needs, for as long as this lives.
struct Servers {
    redis: RedisServer,
    postgres: Option<Arc<PostgresServer>>,
}

/// Where a cluster's log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Log {
    OwnFiles,
    Postgres,
}

/// The same test for every store.
macro_rules! on_every_store {
    ($($test:ident),* $(,)?) => {$(
        mod $test {
            use crate::contract::toy::Toy;

            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn embedded() {
                super::$test(Toy::new()).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn memory() {
                super::$test(Toy::memory()).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn redis() {
                super::$test(Toy::redis().await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn redis_and_postgres() {
                super::$test(Toy::postgres().await).await;
            }
        }
    )*};
}
pub(crate) use on_every_store;

impl Toy {
    pub(crate) fn new() -> Self {
        Self::with_memory(PLENTY)
    }

    pub(crate) fn with_memory(memory_bytes: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(open(folder.path(), memory_bytes));
        Self { folder, store, memory_bytes, _servers: None }
    }

    pub(crate) fn memory() -> Self {
        let store = Arc::new(Store::Memory(Memory::default()));
        Self { folder: tempfile::tempdir().unwrap(), store, memory_bytes: PLENTY, _servers: None }
    }

    pub(crate) async fn redis() -> Self {
        Self::cluster(Log::OwnFiles, FOR_EVER_DAYS, RETIRE_EVERY).await
    }

    pub(crate) async fn postgres() -> Self {
        Self::cluster(Log::Postgres, FOR_EVER_DAYS, RETIRE_EVERY).await
    }

    /// One whose old rows leave, looked for again and again.
    pub(crate) async fn postgres_with_retention(retention_days: u32) -> Self {
        Self::cluster(Log::Postgres, retention_days, Duration::from_millis(200)).await
    }

    async fn cluster(log: Log, retention_days: u32, retire_every: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let postgres = (log == Log::Postgres).then(PostgresServer::shared);
        let servers = Servers { redis: RedisServer::start(), postgres };
        let patience = Duration::from_secs(20);
        let link = RedisOptions {
            url: servers.redis.url(),
            prefix: "rg".into(),
            partitions: 16,
            stream_limit: 1_000_000,
            ca_file: None,
            replicas: 0,
            timeout: patience,
        };
        let log = if let Some(postgres) = &servers.postgres {
            LogKept::Postgres(PgLog::open(PgOptions { url: postgres.database(), retention_days }).await.unwrap())
        } else {
            let options = Options { retention_days, role: Role::Log, ..options(&folder.path().join("log"), PLENTY) };
            LogKept::Local(Embedded::open(options, RULES).unwrap())
        };
        let options = ClusterOptions {
            folder: folder.path().join("alone"),
            memory_bytes: PLENTY,
            retention_days,
            window: Duration::from_secs(3600),
            patience,
            retire_every,
            here_millis: 0,
            alone_bytes: u64::MAX,
            portions: runguard_store::cluster::Portions::default(),
            unconfirmed: runguard_store::cluster::Shelf {
                place: runguard_store::cluster::Place::default(),
                entries_in_memory: 100_000,
                most_bytes: u64::MAX,
            },
            names: Names::PLAIN,
            seed: 7,
        };
        let joined = Cluster::join(RedisLink::open(link).await.unwrap(), log, options, RULES).await.unwrap();
        Self { folder, store: Arc::new(Store::Cluster(joined)), memory_bytes: PLENTY, _servers: Some(servers) }
    }

    pub(crate) fn reopen(self) -> Self {
        self.reopen_after(|_| {})
    }

    /// Closes, lets something happen to the folder, and opens again.
    pub(crate) fn reopen_after(self, between: impl FnOnce(&Path)) -> Self {
        let Self { folder, store, memory_bytes, _servers } = self;
        assert!(matches!(*store, Store::Embedded(_)), "only files can be opened again");
        drop(Arc::into_inner(store).expect("somebody still uses the store"));
        between(folder.path());
        let store = Arc::new(open(folder.path(), memory_bytes));
        Self { folder, store, memory_bytes, _servers: None }
    }
}

/// The states of any entry, of a store with files of its own.
pub(crate) async fn states_of(store: &Store, key: Key) -> Result<Vec<SlotState>, StoreError> {
    let Store::Embedded(store) = store else { panic!("no other store is asked so") };
    store.states_of(key).await
}

/// What one cell holds, on any store.
pub(crate) async fn state(store: &Store, cell: Cell<'_>) -> Option<Vec<u8>> {
    store.apply(&[cell], |view| Decided::Reply(view.get(0).map(<[u8]>::to_vec))).await.unwrap()
}

pub(crate) fn log_file(folder: &Path) -> PathBuf {
    folder.join("runguard.db")
}

pub(crate) fn index_file(folder: &Path) -> PathBuf {
    folder.join("index.db")
}

pub(crate) fn key(session: &str) -> Key {
    Key::new(Family::Session, TENANT, session)
}

pub(crate) fn row(session: &str) -> Row {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    Row {
        seq: 0,
        at: NOW,
        id: format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)),
        tenant: TENANT.into(),
        guard: "toy".into(),
        kind: "check".into(),
        session: session.into(),
        subject: String::new(),
        outcome: "allowed".into(),
        reason: None,
        answer: "{}".into(),
        input: "{}".into(),
    }
}

/// The change that an event makes.
pub(crate) fn change(view: &View<'_>, cell: usize, slot: u8, events: &[u8]) -> Change {
    let state = replay(slot, view.get(cell), events, NOW).unwrap();
    Change { cell, events: events.into(), state }
}

/// A step that keeps a row and changes, and gives the states it made.
pub(crate) async fn keep(
    store: &Store,
    cells: &[Cell<'_>],
    row: Row,
    changes: impl Fn(&View<'_>) -> Vec<Change>,
) -> Result<Vec<Vec<u8>>, StoreError> {
    let step = |view: &View<'_>| {
        let changes = changes(view);
        Decided::Keep(changes.iter().map(|change| change.state.clone()).collect(), Written { row: row.clone(), changes })
    };
    store.apply(cells, step).await
}

/// Adds one to every sum.
pub(crate) fn one_more(view: &View<'_>, sums: usize) -> Vec<Change> {
    (0..sums).map(|sum| change(view, sum, SUM, &1_u64.to_le_bytes())).collect()
}

/// Adds to a session's sum and gives the new one.
pub(crate) async fn add(store: &Store, session: &str, amount: u64) -> Result<u64, StoreError> {
    let made = keep(store, &[summed(key(session))], row(session), |view| vec![change(view, 0, SUM, &amount.to_le_bytes())]).await?;
    Ok(number(Some(&made[0])))
}

/// Appends to a session's list.
pub(crate) async fn append(store: &Store, session: &str, subject: &str, events: &[u8]) {
    keep(store, &[listed(key(session), subject)], row(session), |view| vec![change(view, 0, LIST, events)]).await.unwrap();
}

/// Only writes a row.
pub(crate) async fn write(store: &Store, row: Row) {
    keep(store, &[], row, |_| Vec::new()).await.unwrap();
}

pub(crate) async fn sum(store: &Store, session: &str) -> u64 {
    settle(store).await;
    let states = store.states(TENANT, session).await.unwrap();
    number(states.iter().find(|state| state.slot == SUM).map(|state| &*state.state))
}

/// A cluster's log follows its answers in a moment.
pub(crate) async fn settle(store: &Store) {
    if matches!(store, Store::Cluster(_)) {
        store.flush().await.unwrap();
    }
}

pub(crate) async fn all_rows(store: &Store) -> Vec<Row> {
    settle(store).await;
    store.rows(RowFilter::default(), Order::OldestFirst, None, usize::MAX >> 1).await.unwrap()
}

pub(crate) async fn rows_of(store: &Store, session: &str) -> Vec<Row> {
    settle(store).await;
    let filter = RowFilter { tenant: Some(TENANT.into()), session: Some(session.into()), ..RowFilter::default() };
    store.rows(filter, Order::OldestFirst, None, usize::MAX >> 1).await.unwrap()
}

/// Waits until something is so that other threads bring about.
pub(crate) async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so().await {
        assert!(Instant::now() < deadline, "still not so: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The files of the folder that contain these bytes.
pub(crate) fn files_with(folder: &Path, bytes: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let content = std::fs::read(&path).unwrap();
        if content.windows(bytes.len()).any(|window| window == bytes.as_bytes()) {
            found.push(path.file_name().unwrap().to_string_lossy().into_owned());
        }
    }
    found
}
