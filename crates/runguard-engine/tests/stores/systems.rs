//! The stores, each with an engine on it, or two.

use crate::stores::postgres_server::PostgresServer;
use crate::stores::redis_server::{RedisServer, wait_until};
use runguard_engine::settings::{Settings, check_text};
use runguard_engine::{Clock, Engine, EngineOptions, KeyRing, shared};
use runguard_store::{Memory, Store};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use tempfile::TempDir;
use tokio::task::JoinSet;

/// Of the engines that must give the same decision ids.
const SEED: u64 = 0x0123_4567_89AB_CDEF;
/// The histories' times are not the servers': nothing in them may look too old to be kept.
const RETENTION_DAYS: u32 = 3650;

pub(crate) fn settings(toml: &str) -> Settings {
    let mut settings = check_text(Path::new("test.toml"), toml).unwrap().settings;
    settings.log.retention_days = RETENTION_DAYS;
    settings
}

/// Tests share the servers.
fn unused_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Real servers, for as long as this lives.
pub(crate) struct Servers {
    pub(crate) redis: RedisServer,
    postgres: Arc<PostgresServer>,
}

impl Servers {
    pub(crate) fn start() -> Self {
        Self { redis: RedisServer::start(), postgres: PostgresServer::shared() }
    }

    /// Until so many nodes have said that they are there: who has not is told of no erasure.
    pub(crate) fn wait_for_nodes(&self, prefix: &str, nodes: usize) {
        let known = format!("{prefix}:{{meta}}:nodes");
        wait_until("every node is known to the others", || self.redis.cli(&["ZCARD", &known]).trim() == nodes.to_string());
    }

    /// States in a corner of Redis that nobody has used.
    pub(crate) fn state(&self, settings: &mut Settings) {
        settings.store.state = self.redis.url();
        settings.store.prefix = format!("c{}", unused_number());
        // No machine is so busy: a store that goes on alone would be another test.
        settings.store.patience_ms = 20_000;
    }

    /// A log in a schema of its own.
    pub(crate) fn log(&self, settings: &mut Settings) {
        let schema = format!("s{}", unused_number());
        self.postgres.sql("postgres", &format!("CREATE SCHEMA {schema}"));
        settings.log.database = format!("{}?options=-c%20search_path%3D{schema}", self.postgres.url("postgres"));
    }
}

/// What has one state: one node or several.
pub(crate) struct System {
    pub(crate) name: &'static str,
    pub(crate) nodes: Vec<Arc<Engine>>,
    turn: AtomicUsize,
    /// What a service does behind its answers.
    tasks: JoinSet<()>,
    _folders: Vec<TempDir>,
}

async fn node(settings: Settings, seed: u64, store: Option<Store>) -> (Arc<Engine>, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    (node_in(folder.path(), settings, seed, store).await, folder)
}

pub(crate) async fn node_in(folder: &Path, mut settings: Settings, seed: u64, store: Option<Store>) -> Arc<Engine> {
    settings.store.data = folder.to_string_lossy().into_owned();
    let store = match store {
        Some(store) => store,
        None => shared::open(&settings).await.unwrap(),
    };
    let options = EngineOptions { clock: Clock::Virtual, settings, keys: KeyRing::default(), seed: Some(seed) };
    Arc::new(Engine::new(store, options).await.unwrap())
}

impl System {
    async fn with(name: &'static str, settings: Settings, seeds: &[u64], store: Option<Store>) -> Self {
        let (mut nodes, mut folders, mut store) = (Vec::new(), Vec::new(), store);
        for seed in seeds {
            // What opens a store holds all settings: too much to lie in each of those who wait for it.
            let (engine, folder) = Box::pin(node(settings.clone(), *seed, store.take())).await;
            nodes.push(engine);
            folders.push(folder);
        }
        Self { name, nodes, turn: AtomicUsize::new(0), tasks: JoinSet::new(), _folders: folders }
    }

    /// The same with nodes that share their states, and do their part when another one erases a session.
    async fn of_nodes(name: &'static str, servers: &Servers, settings: Settings, seeds: &[u64]) -> Self {
        let prefix = settings.store.prefix.clone();
        let mut system = Self::with(name, settings, seeds, None).await;
        for node in &system.nodes {
            system.tasks.spawn(runguard_engine::erasure::finish(node.clone()));
        }
        tokio::task::block_in_place(|| servers.wait_for_nodes(&prefix, seeds.len()));
        system
    }

    pub(crate) async fn model() -> Self {
        Self::with("memory", settings(""), &[SEED], Some(Store::Memory(Memory::default()))).await
    }

    pub(crate) async fn embedded() -> Self {
        Self::with("sqlite", settings(""), &[SEED], None).await
    }

    pub(crate) async fn redis(servers: &Servers) -> Self {
        let mut settings = settings("");
        servers.state(&mut settings);
        Self::of_nodes("redis", servers, settings, &[SEED]).await
    }

    pub(crate) async fn postgres(servers: &Servers) -> Self {
        let mut settings = settings("");
        servers.state(&mut settings);
        servers.log(&mut settings);
        Self::of_nodes("redis and postgres", servers, settings, &[SEED]).await
    }

    /// Nodes with ids of their own: two that gave the same would be one decision to the log.
    pub(crate) async fn two_nodes(servers: &Servers) -> Self {
        let mut settings = settings("");
        servers.state(&mut settings);
        servers.log(&mut settings);
        Self::of_nodes("two nodes", servers, settings, &[SEED ^ 0xAAAA, SEED ^ 0x5555]).await
    }

    /// Every store but the model.
    pub(crate) async fn all(servers: &Servers) -> Vec<Self> {
        vec![Self::embedded().await, Self::redis(servers).await, Self::postgres(servers).await, Self::two_nodes(servers).await]
    }

    /// Whose turn it is.
    pub(crate) fn next(&self) -> &Engine {
        &self.nodes[self.turn.fetch_add(1, Ordering::Relaxed) % self.nodes.len()]
    }

    pub(crate) fn is_one_node(&self) -> bool {
        self.nodes.len() == 1
    }

    /// Whether states and log are in places of their own.
    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.nodes[0].store, Store::Cluster(_))
    }

    /// Everything answered so far can be read.
    pub(crate) async fn flush(&self) {
        self.nodes[0].store.flush().await.unwrap();
    }
}
