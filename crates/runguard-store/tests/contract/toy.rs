//! Toy states and a store in a folder of its own.

pub(crate) use runguard_store::Embedded as Store;
use runguard_store::{
    Cell, Change, Decided, Durability, Family, Keep, Key, LogRow, OpenError, Options, Order, Role, Row, RowFilter, Rules, StoreError, View,
    Written,
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

pub(crate) const RULES: Rules = Rules { replay, group: |_, _, _, _| Some(0), keep: |_| Keep::Log };

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
    Options { folder: folder.to_owned(), durability: Durability::Process, memory_bytes, retention_days: 30, role: Role::Whole }
}

/// A process that another test is just starting holds copies of our files, the lock among them, for a moment.
pub(crate) fn try_open(folder: &Path, memory_bytes: usize) -> Result<Store, OpenError> {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        match Store::open(options(folder, memory_bytes), RULES) {
            Err(OpenError::InUse { .. }) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(2)),
            opened => return opened,
        }
    }
}

pub(crate) fn open(folder: &Path, memory_bytes: usize) -> Store {
    try_open(folder, memory_bytes).unwrap()
}

/// A store that can be closed and opened again.
pub(crate) struct Toy {
    pub(crate) folder: TempDir,
    pub(crate) store: Arc<Store>,
    memory_bytes: usize,
}

impl Toy {
    pub(crate) fn new() -> Self {
        Self::with_memory(PLENTY)
    }

    pub(crate) fn with_memory(memory_bytes: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(open(folder.path(), memory_bytes));
        Self { folder, store, memory_bytes }
    }

    pub(crate) fn reopen(self) -> Self {
        self.reopen_after(|_| {})
    }

    /// Closes, lets something happen to the folder, and opens again.
    pub(crate) fn reopen_after(self, between: impl FnOnce(&Path)) -> Self {
        let Self { folder, store, memory_bytes } = self;
        drop(Arc::into_inner(store).expect("somebody still uses the store"));
        between(folder.path());
        let store = Arc::new(open(folder.path(), memory_bytes));
        Self { folder, store, memory_bytes }
    }
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
        at: NOW,
        id: format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)),
        tenant: TENANT.into(),
        guard: "toy",
        kind: "check",
        session: session.into(),
        subject: String::new(),
        outcome: "allowed",
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
    let states = store.states_of(key(session)).await.unwrap();
    number(states.iter().find(|state| state.slot == SUM).map(|state| &*state.state))
}

pub(crate) async fn all_rows(store: &Store) -> Vec<LogRow> {
    store.rows(RowFilter::default(), Order::OldestFirst, None, usize::MAX >> 1).await.unwrap()
}

pub(crate) async fn rows_of(store: &Store, session: &str) -> Vec<LogRow> {
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
