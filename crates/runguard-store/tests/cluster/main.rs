//! Nodes over the model of the shared database: what many of them do at once must come to the same as one doing it alone.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod erasing;

use runguard_store::cluster::link::{About, CellName, Link as _, Swap, Swapped};
use runguard_store::cluster::model::ModelLink;
use runguard_store::cluster::{Portions, entry};
use runguard_store::{
    Cell, Change, Cluster, ClusterOptions, Decided, Durability, Embedded, Family, Keep, Key, LogKept, Memory, Names, Options, Order,
    RETIRE_EVERY, Role, Row, RowFilter, RowWithEffects, Rules, StoreHealth, View, Written,
};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_128;

const TENANT: &str = "tenant";
const SUM: u8 = 1;
const WINDOW: Duration = Duration::from_secs(300);
/// Where it is noted that the states were built.
const BUILT: u128 = 0;

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
        let log = LogKept::Memory(self.log.clone(), disk.clone());
        self.nodes.push(join(&self.link, log, "/nonexistent".into(), self.nodes.len()).await);
        self.disks.push(disk);
    }

    /// Everything is lost, and a node has begun to build it again.
    async fn lose_all(&self) {
        self.nodes[0].flush().await.unwrap();
        self.link.empty();
        while self.link.generation().is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

async fn join(link: &ModelLink, log: LogKept, folder: PathBuf, number: usize) -> Arc<Cluster> {
    join_by(link.another(), log, folder, number).await
}

async fn join_by(link: ModelLink, log: LogKept, folder: PathBuf, number: usize) -> Arc<Cluster> {
    join_under(RULES, link, log, folder, number).await
}

async fn join_under(rules: Rules, link: ModelLink, log: LogKept, folder: PathBuf, number: usize) -> Arc<Cluster> {
    let options = ClusterOptions {
        folder,
        memory_bytes: 1 << 20,
        retention_days: 30,
        window: WINDOW,
        patience: Duration::from_millis(200),
        retire_every: RETIRE_EVERY,
        here_millis: 0,
        alone_bytes: u64::MAX,
        portions: Portions::default(),
        unconfirmed: runguard_store::cluster::Shelf {
            place: runguard_store::cluster::Place::default(),
            entries_in_memory: 100_000,
            most_bytes: u64::MAX,
        },
        names: Names::PLAIN,
        // Its last bit is no part of who a node is.
        seed: 1000 + 2 * number as u64,
    };
    Arc::new(Cluster::join(link, log, options, rules).await.unwrap())
}

fn summed(key: Key) -> Cell<'static> {
    Cell { key, slot: SUM, subject: "", group: 7 }
}

fn key(session: &str) -> Key {
    Key::new(Family::Session, TENANT, session)
}

/// Where its state is.
fn name_of_sum(session: &str) -> CellName {
    let bytes =
        [&[Family::Session as u8][..], &xxh3_128(&[&[0], TENANT.as_bytes(), &[0], session.as_bytes()].concat()).to_be_bytes(), &[SUM]];
    CellName::new(3, xxh3_128(&bytes.concat()))
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
    add_in_tries(node, sessions).await.0
}

/// The same, and how often the step ran for it.
async fn add_in_tries(node: &Cluster, sessions: &[&str]) -> ((u64, StoreHealth), u32) {
    let cells: Vec<Cell<'_>> = sessions.iter().map(|session| summed(key(session))).collect();
    let mut tries = 0;
    let step = |view: &View<'_>| {
        tries += 1;
        let changes: Vec<Change> = (0..cells.len())
            .map(|cell| Change { cell, events: 1_u64.to_le_bytes().to_vec(), state: (number(view.get(cell)) + 1).to_le_bytes().to_vec() })
            .collect();
        Decided::Keep((number(Some(&changes[0].state)), view.store_health()), Written { row: row(sessions[0]), changes })
    };
    let added = node.apply(&cells, step).await.unwrap();
    (added, tries)
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
async fn what_nodes_change_in_turns_is_looked_at_before_a_step() {
    let together = Together::new(2).await;
    let mut tries = Vec::new();
    for number in 0..10 {
        let ((sum, _), tried) = add_in_tries(&together.nodes[number % 2], &["in turns"]).await;
        assert_eq!(sum, number as u64 + 1);
        tries.push(tried);
    }
    assert_eq!(tries, [1, 2, 2, 2, 2, 1, 1, 1, 1, 1], "twice in vain on each node");
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
    let (next, health) = add(&together.nodes[1], &["kept"]).await;
    // Alone for the moment, or already on the states that were built: never from nothing when it is sound.
    assert!(health == StoreHealth::Away || next == 6, "{next}");
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (last, health) = add(&together.nodes[0], &["kept"]).await;
    assert_eq!((last, health), (7, StoreHealth::Sound));
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

#[tokio::test(start_paused = true)]
async fn a_database_that_was_put_back_to_the_time_before_it_was_built_is_built_again() {
    let together = Together::new(2).await;
    for _ in 0..5 {
        add(&together.nodes[0], &["kept"]).await;
    }
    together.lose_all().await;
    let unbuilt = together.link.replica();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let built = together.link.generation();
    assert!(together.nodes.iter().all(|node| node.health().away.is_none()), "it was built");
    together.link.fail_over(unbuilt.clone());
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(add(&together.nodes[1], &["kept"]).await, (6, StoreHealth::Sound));
    assert_ne!(together.link.generation(), built, "to everybody it is another one");
}

/// The first attempt to build it wrote states and failed; the next one was given another database.
#[tokio::test(start_paused = true)]
async fn what_an_attempt_to_build_left_is_not_used_when_states_were_built_elsewhere_since() {
    let together = Together::new(2).await;
    add(&together.nodes[0], &["kept"]).await;
    together.lose_all().await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    // As it was a moment before: the states are there, and it is not said yet that they are.
    together.link.take_away(&CellName::new(0, BUILT));
    let half_built = together.link.replica();
    together.lose_all().await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(add(&together.nodes[0], &["kept"]).await.0, 2);
    together.nodes[0].flush().await.unwrap();
    together.link.fail_over(half_built);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(add(&together.nodes[1], &["kept"]).await, (3, StoreHealth::Sound));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_starts_on_a_database_that_was_built_and_is_not_does_not_take_it_for_new() {
    let mut together = Together::new(1).await;
    add(&together.nodes[0], &["kept"]).await;
    together.lose_all().await;
    let (unbuilt, generation) = (together.link.replica(), together.link.generation());
    tokio::time::sleep(Duration::from_secs(5)).await;
    drop(together.nodes.remove(0));
    together.link.fail_over(unbuilt);
    together.join(Memory::alone()).await;
    assert_ne!(together.link.generation(), generation, "what is there of it may be old");
    assert_eq!(add(&together.nodes[0], &["kept"]).await.0, 2);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_waits_for_states_sees_that_the_database_is_another_one_meanwhile() {
    let mut together = Together::new(1).await;
    add(&together.nodes[0], &["kept"]).await;
    together.nodes[0].flush().await.unwrap();
    // Whoever builds them has died.
    let dead = together.link.another();
    together.link.empty();
    assert!(dead.lease("build", 77, 30_000).await.unwrap());
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(together.nodes[0].health().away.is_some());
    together.link.empty();
    together.join(Memory::alone()).await;
    assert!(dead.lease("build", 77, 30_000).await.unwrap());
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(together.nodes[0].health().away, None);
    assert_eq!(add(&together.nodes[0], &["kept"]).await.0, 2);
}

#[tokio::test(start_paused = true)]
async fn when_the_node_that_builds_the_states_dies_another_goes_on_soon() {
    let mut together = Together::new(1).await;
    add(&together.nodes[0], &["kept"]).await;
    together.lose_all().await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let died = tokio::time::Instant::now();
    drop(together.nodes.remove(0));
    let node = join(&together.link, LogKept::Memory(together.log.clone(), Memory::alone()), "/nonexistent".into(), 1).await;
    assert!(node.health().away.is_some(), "for all it knows the other is at work");
    while node.health().away.is_some() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(died.elapsed() < Duration::from_secs(10), "{:?}", died.elapsed());
    assert_eq!(add(&node, &["kept"]).await.0, 2);
}

#[tokio::test(start_paused = true)]
async fn what_arrives_after_its_session_was_erased_stays_out_of_the_log() {
    let together = Together::new(2).await;
    add(&together.nodes[0], &["gone"]).await;
    add(&together.nodes[0], &["stays"]).await;
    together.nodes[0].flush().await.unwrap();
    let filter = || RowFilter { session: Some("gone".into()), ..RowFilter::default() };
    let erased = together.nodes[1].rows_with_effects(filter(), Order::OldestFirst, None, 10).await.unwrap();
    together.nodes[1].erase_session(TENANT, "gone", Row { kind: "admin".into(), ..row("") }).await.unwrap();
    // A node that held it for the case that the database loses it sends it again.
    let late = together.link.another();
    let about = late.about(About::offered(4, 1, Names::PLAIN)).await.unwrap();
    let later = RowWithEffects { row: Row { at: 1_700_000_000_001, ..row("gone") }, ..RowWithEffects::default() };
    let entries = [entry::encode(&erased), entry::encode(std::slice::from_ref(&later))];
    // After the fence it is sent a second time.
    let swaps = entries.map(|entry| Swap { partition: 3, cells: Vec::new(), entry });
    assert_eq!(late.swap(&swaps).await.unwrap(), [Swapped::Fenced, Swapped::Fenced]);
    assert_eq!(late.swap(&swaps).await.unwrap(), [Swapped::Done, Swapped::Done]);
    assert_eq!(Some(about.generation), together.link.generation());
    together.nodes[0].flush().await.unwrap();
    let found = together.nodes[0].rows(filter(), Order::OldestFirst, None, 10).await.unwrap();
    assert_eq!(found.iter().map(|row| &row.id).collect::<Vec<_>>(), [&later.row.id], "what came of it since is another matter");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_starts_when_the_server_has_just_come_back_lets_the_others_speak_first() {
    let mut together = Together::new(1).await;
    add(&together.nodes[0], &["some"]).await;
    together.join(Memory::alone()).await;
    assert_eq!(add(&together.nodes[1], &["some"]).await, (2, StoreHealth::Sound), "nothing has happened");
    together.link.restart();
    together.join(Memory::alone()).await;
    assert_eq!(add(&together.nodes[2], &["some"]).await, (3, StoreHealth::Behind));
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(add(&together.nodes[2], &["some"]).await, (4, StoreHealth::Sound));
    together.join(Memory::alone()).await;
    assert_eq!(add(&together.nodes[3], &["some"]).await, (5, StoreHealth::Sound), "it was noted");
}

#[tokio::test(start_paused = true)]
async fn what_is_built_while_a_node_joins_lasts_as_long_as_it_counts() {
    let mut together = Together::new(1).await;
    add(&together.nodes[0], &["kept"]).await;
    together.nodes[0].flush().await.unwrap();
    drop(together.nodes.remove(0));
    together.link.empty();
    let rules = Rules { keep: |_, _| Keep::Window, ..RULES };
    let log = LogKept::Memory(together.log.clone(), Memory::alone());
    let _node = join_under(rules, together.link.another(), log, "/nonexistent".into(), 1).await;
    let is_there = || together.link.cells().iter().any(|(name, ..)| *name == name_of_sum("kept"));
    assert!(is_there(), "it was built");
    tokio::time::sleep(WINDOW).await;
    assert!(is_there(), "it counts");
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert!(!is_there(), "it goes by itself");
}

/// Files are written in real time.
#[tokio::test]
async fn where_each_node_has_a_copy_of_the_log_any_of_them_fills_an_emptied_database() {
    let (link, folder) = (ModelLink::on_tokio_time(4, 1_000_000, 1_700_000_000_000), tempfile::tempdir().unwrap());
    let start = async |number: usize| {
        let folder = folder.path().join(number.to_string());
        let options = Options {
            folder: folder.clone(),
            durability: Durability::Process,
            memory_bytes: 1 << 20,
            retention_days: 30,
            role: Role::Log,
            names: Names::PLAIN,
        };
        // The files are let go of a moment after their node is gone.
        let log = loop {
            if let Ok(log) = Embedded::open(options.clone(), RULES) {
                break log;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        join(&link, LogKept::Local(log), folder.join("alone"), number).await
    };
    let mut nodes = vec![start(0).await, start(1).await];
    for round in 0..3 {
        let (stays, leaves) = (round % 2, 1 - round % 2);
        add(&nodes[stays], &["kept"]).await;
        for node in &nodes {
            node.flush().await.unwrap();
        }
        // The one that stays builds the states; so each of them has built some.
        drop(nodes.remove(leaves));
        let before = link.generation();
        link.empty();
        while nodes[0].health().away.is_some() || link.generation().is_none_or(|generation| Some(generation) == before) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let built = link.generation();
        nodes.insert(leaves, start(leaves).await);
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        assert_eq!(link.generation(), built, "nobody builds them again");
    }
    for (node, sum) in nodes.iter().zip([4, 5]) {
        assert_eq!(add(node, &["kept"]).await.0, sum);
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_decided_by_a_clock_that_was_ahead_stays_erased_too() {
    let together = Together::new(1).await;
    let late = together.link.another();
    late.about(About::offered(4, 1, Names::PLAIN)).await.unwrap();
    let send = async |at: i64, id: &str| {
        let row = Row { at, id: id.to_owned(), ..row("gone") };
        let entry = entry::encode(&[RowWithEffects { row, ..RowWithEffects::default() }]);
        let swaps = [Swap { partition: 3, cells: Vec::new(), entry }];
        while late.swap(&swaps).await.unwrap() == [Swapped::Fenced] {}
        together.nodes[0].flush().await.unwrap();
    };
    send(1_700_000_060_000, "ahead").await;
    together.nodes[0].erase_session(TENANT, "gone", Row { kind: "admin".into(), ..row("") }).await.unwrap();
    // Its node brings it home once more, because it died before it knew that it was home; and the session begins anew.
    send(1_700_000_060_000, "ahead").await;
    send(1_700_000_030_000, "anew").await;
    let filter = RowFilter { session: Some("gone".into()), ..RowFilter::default() };
    let found = together.nodes[0].rows(filter, Order::OldestFirst, None, 10).await.unwrap();
    assert_eq!(found.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(), ["anew"]);
}
