//! One state that everybody asks for: several nodes in one process, beside what one swap for each request gives.
//!
//!     hot_cell --url redis://… [--nodes 4] [--tasks 64] [--seconds 5] [--json FILE]
//!
//! Every request adds one to the same cell and logs a row of the usual size. The cluster store gathers the requests of a node
//! into one swap. Without that a request loads the cell and swaps it, and tries again with what it found when another was faster:
//! all of a node's requests at once, or (which is kinder to the one cell) one after the other on each node.

use runguard_store::cluster::link::{About, CellName, Link, Put, Swap, SwapCell, Swapped, Value};
use runguard_store::cluster::{Portions, entry};
use runguard_store::redis::{RedisLink, RedisOptions};
use runguard_store::{
    Cell, Change, Cluster, ClusterOptions, Decided, Family, Keep, Key, LogKept, Memory, Names, RETIRE_EVERY, Row, Rules, StoreHealth, View,
    Written,
};
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

const TENANT: &str = "tenant";
const SLOT: u8 = 1;
const PARTITIONS: u16 = 16;
const KEEP_MILLIS: u64 = 3_600_000;
const STREAM_LIMIT: u64 = 10_000_000;

struct Arguments {
    url: String,
    nodes: usize,
    tasks: usize,
    seconds: u64,
    json: Option<String>,
}

fn arguments() -> Result<Arguments, Box<dyn Error>> {
    let (mut url, mut nodes, mut tasks, mut seconds, mut json) = (None, 4, 64, 5, None);
    let mut given = std::env::args().skip(1);
    while let Some(name) = given.next() {
        let value = given.next().ok_or_else(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--url" => url = Some(value),
            "--nodes" => nodes = value.parse()?,
            "--tasks" => tasks = value.parse()?,
            "--seconds" => seconds = value.parse()?,
            "--json" => json = Some(value),
            other => return Err(format!("{other} is unknown; there are --url, --nodes, --tasks, --seconds, --json").into()),
        }
    }
    Ok(Arguments { url: url.ok_or("--url redis://… is missing")?, nodes, tasks, seconds, json })
}

fn number(bytes: Option<&[u8]>) -> u64 {
    bytes.and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

const RULES: Rules = Rules {
    replay: |_, state, events, _| Some((number(state) + number(Some(events))).to_le_bytes().to_vec()),
    group: |_, _, _, _, _| Some(7),
    keep: |_, _| Keep::Window,
    take_back: |_, _| None,
};

/// About 400 bytes, as a guard writes them.
fn row() -> Row {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    Row {
        at: 1_700_000_000_000,
        id: format!("01JCWNZJ9V{:016X}", NEXT.fetch_add(1, Ordering::Relaxed)),
        tenant: TENANT.into(),
        guard: "api_circuit".into(),
        kind: "check".into(),
        session: "conversation-9e3779b97f4a7c15".into(),
        subject: "crm.lookup".into(),
        outcome: "allowed".into(),
        answer: r#"{"state":"closed","failure_rate":0.08,"samples":52,"message":"The endpoint answers as usual; go on, and record the outcome."}"#.into(),
        input: r#"{"endpoint_key":"crm.lookup","session_id":"conversation-9e3779b97f4a7c15"}"#.into(),
        ..Row::default()
    }
}

async fn connect(arguments: &Arguments, prefix: &str) -> Result<RedisLink, Box<dyn Error>> {
    let options = RedisOptions {
        url: arguments.url.clone(),
        prefix: prefix.to_owned(),
        partitions: PARTITIONS,
        stream_limit: STREAM_LIMIT,
        ca_file: None,
        replicas: 0,
        timeout: Duration::from_millis(500),
    };
    Ok(RedisLink::open(options).await?)
}

/// What one way of doing it came to.
#[derive(Debug)]
struct Outcome {
    per_second: f64,
    p50_millis: f64,
    p99_millis: f64,
    /// Decided from memory, because the shared state was away or somebody else was always faster.
    alone: u64,
}

fn outcome(mut micros: Vec<u64>, alone: u64, took: Duration) -> Outcome {
    micros.sort_unstable();
    let at = |share: f64| micros.get((micros.len() as f64 * share) as usize).copied().unwrap_or(0) as f64 / 1000.0;
    Outcome { per_second: micros.len() as f64 / took.as_secs_f64(), p50_millis: at(0.5), p99_millis: at(0.99), alone }
}

/// Runs `request` in all tasks of all nodes until the time is up; each gives whether it was done alone.
async fn drive<N, F>(
    arguments: &Arguments,
    nodes: &[Arc<N>],
    request: impl Fn(Arc<N>) -> F + Copy + Send + 'static,
) -> Result<Outcome, Box<dyn Error>>
where
    N: Send + Sync + 'static,
    F: Future<Output = StoreHealth> + Send,
{
    let (started, time) = (Instant::now(), Duration::from_secs(arguments.seconds));
    let mut tasks = JoinSet::new();
    for index in 0..arguments.nodes * arguments.tasks {
        let node = nodes[index % arguments.nodes].clone();
        tasks.spawn(async move {
            let (mut micros, mut alone) = (Vec::new(), 0_u64);
            while started.elapsed() < time {
                let asked = Instant::now();
                if request(node.clone()).await == StoreHealth::Away {
                    alone += 1;
                }
                micros.push(asked.elapsed().as_micros() as u64);
            }
            (micros, alone)
        });
    }
    let (mut micros, mut alone) = (Vec::new(), 0);
    while let Some(done) = tasks.join_next().await {
        let (some, some_alone) = done?;
        micros.extend(some);
        alone += some_alone;
    }
    Ok(outcome(micros, alone, started.elapsed()))
}

fn key() -> Key {
    Key::new(Family::Session, TENANT, "hot")
}

async fn add(node: Arc<Cluster>) -> StoreHealth {
    let cells = [Cell { key: key(), slot: SLOT, subject: "", group: 7 }];
    let step = |view: &View<'_>| {
        let state = (number(view.get(0)) + 1).to_le_bytes().to_vec();
        let changes = vec![Change { cell: 0, events: 1_u64.to_le_bytes().to_vec(), state }];
        Decided::Keep(view.store_health(), Written { row: row(), changes })
    };
    match node.apply(&cells, step).await {
        Ok(health) => health,
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1)
        }
    }
}

async fn gathered(arguments: &Arguments) -> Result<Outcome, Box<dyn Error>> {
    let log = Memory::default();
    // Taken by nobody: the other ways bring no rows into a log either.
    connect(arguments, "hot-cluster").await?.lease("import", u64::MAX, 3_600_000).await?;
    let mut nodes = Vec::new();
    for index in 0..arguments.nodes {
        let options = ClusterOptions {
            folder: std::env::temp_dir().join("hot-cell-alone"),
            memory_bytes: 64 << 20,
            retention_days: 1,
            window: Duration::from_secs(3600),
            patience: Duration::from_millis(500),
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
            seed: u64::from(std::process::id()) << 32 | index as u64,
        };
        let link = connect(arguments, "hot-cluster").await?;
        nodes.push(Arc::new(Cluster::join(link, LogKept::Memory(log.clone(), Memory::alone()), options, RULES).await?));
    }
    let outcome = drive(arguments, &nodes, add).await?;
    for node in &nodes {
        node.stop();
    }
    Ok(outcome)
}

/// A node of the simple kind.
struct Plain {
    link: RedisLink,
    turn: Mutex<()>,
    tokens: AtomicU64,
}

impl Plain {
    async fn add(&self) {
        let name = CellName::new(7, 1);
        let bytes = entry::encode(&[entry_row()]);
        let mut value: Value = ok(self.link.load(vec![name.clone()]).await).pop().flatten();
        loop {
            let state = (number(value.as_ref().map(|(_, state)| state.as_slice())) + 1).to_le_bytes().to_vec();
            let put = Put::Set { token: self.tokens.fetch_add(1, Ordering::Relaxed), state, keep_millis: KEEP_MILLIS };
            let cell = SwapCell { name: name.clone(), expect: value.as_ref().map_or(0, |(token, _)| *token), put };
            match ok(self.link.swap(&[Swap { partition: 7, cells: vec![cell], entry: bytes.clone() }]).await).pop() {
                Some(Swapped::Raced(mut found)) => value = found.pop().flatten(),
                Some(Swapped::Done | Swapped::Full | Swapped::Fenced) | None => return,
            }
        }
    }
}

fn ok<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| {
        eprintln!("{error}");
        std::process::exit(1)
    })
}

fn entry_row() -> runguard_store::RowWithEffects {
    runguard_store::RowWithEffects { row: row(), effects: vec![0; 40] }
}

/// One swap for each request.
async fn one_by_one(arguments: &Arguments, prefix: &str, in_turn: InTurn) -> Result<Outcome, Box<dyn Error>> {
    let mut nodes = Vec::new();
    for index in 0..arguments.nodes {
        let link = connect(arguments, prefix).await?;
        link.about(About::offered(PARTITIONS, 1, Names::PLAIN)).await?;
        nodes.push(Arc::new(Plain { link, turn: Mutex::default(), tokens: AtomicU64::new((index as u64 + 1) << 48) }));
    }
    let request = move |node: Arc<Plain>| async move {
        let _turn = match in_turn {
            InTurn::Yes => Some(node.turn.lock().await),
            InTurn::No => None,
        };
        node.add().await;
        StoreHealth::Sound
    };
    drive(arguments, &nodes, request).await
}

/// A node's requests one after the other, so that they do not race among themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InTurn {
    Yes,
    No,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = arguments()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        println!("{} nodes, {} requests at a time each, one cell, {} s", arguments.nodes, arguments.tasks, arguments.seconds);
        let results = [
            ("gathered", gathered(&arguments).await?),
            ("all_at_once", one_by_one(&arguments, "hot-plain", InTurn::No).await?),
            ("in_turn", one_by_one(&arguments, "hot-turn", InTurn::Yes).await?),
        ];
        for (name, result) in &results {
            let Outcome { per_second, p50_millis, p99_millis, alone } = result;
            println!("{name:12} {per_second:9.0}/s  p50 {p50_millis:.2} ms  p99 {p99_millis:.2} ms  decided alone {alone}");
        }
        if let Some(path) = &arguments.json {
            let figures = results.iter().map(|(name, Outcome { per_second, p50_millis, p99_millis, alone })| {
                format!(r#""{name}":{{"per_second":{per_second},"p50":{p50_millis},"p99":{p99_millis},"alone":{alone}}}"#)
            });
            std::fs::write(path, format!("{{{}}}\n", figures.collect::<Vec<_>>().join(",")))?;
        }
        Ok(())
    })
}
