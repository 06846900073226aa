//! Nodes over the model of the shared database: what many of them do at once must come to the same as one doing it alone.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use runguard_store::cluster::model::ModelLink;
use runguard_store::{
    Cell, Change, Cluster, ClusterOptions, Decided, Family, Keep, Key, LogKept, Memory, Names, Order, RETIRE_EVERY, Row, RowFilter, Rules,
    StoreHealth, View, Written,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const TENANT: &str = "tenant";
const SUM: u8 = 1;

fn number(bytes: Option<&[u8]>) -> u64 {
    bytes.map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap()))
}

const RULES: Rules = Rules {
    replay: |_, state, events, _| Some((number(state) + number(Some(events))).to_le_bytes().to_vec()),
    group: |_, _, _, _, _| Some(7),
    keep: |_, _| Keep::Log,
    take_back: |_, _| None,
};

/// One database, one log, several nodes.
struct Together {
    link: ModelLink,
    log: Memory,
    nodes: Vec<Arc<Cluster>>,
    disks: Vec<Memory>,
}

impl Together {
    async fn new(count: usize) -> Self {
        let link = ModelLink::on_tokio_time(4, 1_000_000, 1_700_000_000_000);
        let mut together = Self { link, log: Memory::default(), nodes: Vec::new(), disks: Vec::new() };
        for _ in 0..count {
            together.join(Memory::alone()).await;
        }
        together
    }

    async fn join(&mut self, disk: Memory) {
        let options = ClusterOptions {
            folder: "/nonexistent".into(),
            memory_bytes: 1 << 20,
            retention_days: 30,
            patience: Duration::from_millis(200),
            retire_every: RETIRE_EVERY,
            here_millis: 0,
            alone_bytes: u64::MAX,
            unconfirmed: runguard_store::cluster::Shelf {
                place: runguard_store::cluster::Place::default(),
                entries_in_memory: 100_000,
                most_bytes: u64::MAX,
            },
            names: Names::PLAIN,
            seed: 1000 + self.nodes.len() as u64,
        };
        let log = LogKept::Memory(self.log.clone(), disk.clone());
        let node = Cluster::join(self.link.another(), log, options, RULES).await.unwrap();
        self.nodes.push(Arc::new(node));
        self.disks.push(disk);
    }
}

fn summed(key: Key) -> Cell<'static> {
    Cell { key, slot: SUM, subject: "", group: 7 }
}

fn key(session: &str) -> Key {
    Key::new(Family::Session, TENANT, session)
}

fn row(session: &str) -> Row {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    Row {
        at: 1_700_000_000_000,
        id: format!("id-{:08}", NEXT.fetch_add(1, Ordering::Relaxed)),
        tenant: TENANT.into(),
        guard: "toy".into(),
        kind: "check".into(),
        session: session.into(),
        outcome: "allowed".into(),
        answer: "{}".into(),
        input: "{}".into(),
        ..Row::default()
    }
}

/// Adds one to each of the sums and gives the first one's new value, and whether it was done alone.
async fn add(node: &Cluster, sessions: &[&str]) -> (u64, StoreHealth) {
    let cells: Vec<Cell<'_>> = sessions.iter().map(|session| summed(key(session))).collect();
    let step = |view: &View<'_>| {
        let changes: Vec<Change> = (0..cells.len())
            .map(|cell| Change { cell, events: 1_u64.to_le_bytes().to_vec(), state: (number(view.get(cell)) + 1).to_le_bytes().to_vec() })
            .collect();
        Decided::Keep((number(Some(&changes[0].state)), view.store_health()), Written { row: row(sessions[0]), changes })
    };
    node.apply(&cells, step).await.unwrap()
}

async fn rows(node: &Cluster) -> usize {
    node.flush().await.unwrap();
    node.rows(RowFilter::default(), Order::OldestFirst, None, usize::MAX >> 1).await.unwrap().len()
}

#[tokio::test(start_paused = true)]
async fn nodes_that_race_for_one_sum_lose_nothing() {
    let together = Together::new(4).await;
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..400_usize {
        let node = together.nodes[number % 4].clone();
        tasks.spawn(async move { add(&node, &["hot"]).await.0 });
    }
    let mut seen = tasks.join_all().await;
    seen.sort_unstable();
    assert_eq!(seen, (1..=400).collect::<Vec<u64>>(), "each got a number of its own");
    assert_eq!(rows(&together.nodes[0]).await, 400);
}

#[tokio::test(start_paused = true)]
async fn steps_on_several_cells_change_all_or_none() {
    let together = Together::new(3).await;
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..300_usize {
        let node = together.nodes[number % 3].clone();
        tasks.spawn(async move {
            let sessions: [&str; 2] = [["a", "b"], ["b", "c"], ["c", "a"]][(number + number / 3) % 3];
            add(&node, &sessions).await;
        });
    }
    tasks.join_all().await;
    let mut total = 0;
    for session in ["a", "b", "c"] {
        let state = &together.nodes[0].states(TENANT, session).await.unwrap();
        total += state.iter().map(|state| number(Some(&state.state))).sum::<u64>();
    }
    assert_eq!(total, 600);
    assert_eq!(rows(&together.nodes[1]).await, 300);
}

#[tokio::test(start_paused = true)]
async fn an_emptied_database_is_filled_from_the_log() {
    let together = Together::new(2).await;
    for _ in 0..5 {
        add(&together.nodes[0], &["kept"]).await;
    }
    together.nodes[0].flush().await.unwrap();
    together.link.empty();
    let (next, standing) = add(&together.nodes[1], &["kept"]).await;
    // Alone for the moment, or already on the states that were built: never from nothing when it is sound.
    assert!(standing == StoreHealth::Away || next == 6, "{next}");
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (last, standing) = add(&together.nodes[0], &["kept"]).await;
    assert_eq!((last, standing), (7, StoreHealth::Sound));
    assert_eq!(rows(&together.nodes[0]).await, 7);
}

#[tokio::test(start_paused = true)]
async fn a_session_is_erased_with_its_states() {
    let together = Together::new(2).await;
    add(&together.nodes[0], &["gone"]).await;
    add(&together.nodes[1], &["stays"]).await;
    let erased = together.nodes[1].erase_session(TENANT, "gone", Row { kind: "admin".into(), ..row("") }).await.unwrap();
    assert_eq!(erased.map(|erased| erased.log_rows), Some(1));
    assert!(together.nodes[0].states(TENANT, "gone").await.unwrap().is_empty());
    assert_eq!(add(&together.nodes[0], &["gone"]).await.0, 1, "it begins anew");
    assert_eq!(add(&together.nodes[0], &["stays"]).await.0, 2);
}
