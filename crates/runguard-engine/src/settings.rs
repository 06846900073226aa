//! Settings: defaults, one TOML file, the environment, flags; later ones win.
//!
//! The layers are merged as trees before they become types, and each layer remembers where its keys stand. So an
//! error names the file and the line, and `settings show` can say where every value came from.

mod secrets;

pub use secrets::{shown_address, shown_receiver, shown_variable};

use crate::alerts::AlertSettings;
use runguard_core::text::StoreText;
use runguard_guards::policy::{self, Policies, SettingsProblem, Tree, check_levels, merge, nest};
use runguard_insight::insight::digest::Savings;
use runguard_store::Durability;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml::de::{DeArray, DeTable, DeValue};

/// The file that is read when none is named, if it is there.
pub const DEFAULT_FILE: &str = "runguard.toml";
pub const ENVIRONMENT_PREFIX: &str = "RUNGUARD_";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerSettings {
    pub listen: String,
    pub max_connections: u32,
    pub hosts: Vec<String>,
    /// Empty: no TLS.
    pub tls_cert: String,
    pub tls_key: String,
    pub max_in_flight_per_key: u32,
    pub max_in_flight_per_tenant: u32,
    pub max_bytes_in_flight_per_key: u64,
    pub max_bytes_in_flight_per_tenant: u64,
    pub requests_per_second_per_key: u32,
    pub requests_per_second_per_tenant: u32,
    pub max_streams: u32,
    pub max_streams_per_key: u32,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8100".into(),
            max_connections: 10_000,
            hosts: Vec::new(),
            tls_cert: String::new(),
            tls_key: String::new(),
            max_in_flight_per_key: 2_000,
            max_in_flight_per_tenant: 4_000,
            max_bytes_in_flight_per_key: 16 * 1024 * 1024,
            max_bytes_in_flight_per_tenant: 32 * 1024 * 1024,
            requests_per_second_per_key: 0,
            requests_per_second_per_tenant: 0,
            max_streams: 1000,
            max_streams_per_key: 32,
        }
    }
}

impl ServerSettings {
    fn check(&self) -> Result<(), SettingsProblem> {
        let wrong = |key: &str, problem: String| Err(SettingsProblem::new(&["server", key], problem));
        if self.listen.parse::<std::net::SocketAddr>().is_err() {
            return wrong("listen", "is no address with a port, like 127.0.0.1:8100".into());
        }
        let at_least_one = [
            ("max_connections", self.max_connections),
            ("max_streams", self.max_streams),
            ("max_streams_per_key", self.max_streams_per_key),
        ];
        if let Some((key, _)) = at_least_one.into_iter().find(|(_, most)| *most == 0) {
            return wrong(key, "must be at least 1".into());
        }
        if !self.hosts.iter().all(|host| is_host_name(host)) {
            return wrong("hosts", "must be names of hosts, without scheme and port, like runguard.internal".into());
        }
        match (self.tls_cert.is_empty(), self.tls_key.is_empty()) {
            (false, true) => wrong("tls_key", "is missing: a certificate needs its key (--tls-key)".into()),
            (true, false) => wrong("tls_cert", "is missing: a key needs its certificate (--tls-cert)".into()),
            (true, true) | (false, false) => Ok(()),
        }
    }
}

fn is_host_name(text: &str) -> bool {
    let is_part = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    text.len() <= 253 && (text.split('.').all(is_part) || text.parse::<std::net::IpAddr>().is_ok())
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreSettings {
    pub data: String,
    pub durability: Durability,
    pub memory_mb: u32,
    /// Empty: the node's own files.
    pub state: String,
    pub prefix: String,
    pub partitions: u16,
    pub stream_limit: u64,
    pub replicas: u32,
    pub ca_file: String,
    pub patience_ms: u32,
    pub flow_when_away: WhenAway,
    pub budget_when_away: WhenAway,
}

/// What a guard does while the shared state is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WhenAway {
    /// Goes on from what this node remembers.
    Memory,
    Refuse,
}

impl Default for StoreSettings {
    fn default() -> Self {
        Self {
            data: "runguard-data".into(),
            durability: Durability::default(),
            memory_mb: 384,
            state: String::new(),
            prefix: "rg".into(),
            partitions: 16,
            stream_limit: 1_000_000,
            replicas: 0,
            ca_file: String::new(),
            patience_ms: 500,
            flow_when_away: WhenAway::Memory,
            budget_when_away: WhenAway::Refuse,
        }
    }
}

impl StoreSettings {
    fn check_shared(&self) -> Result<(), SettingsProblem> {
        const SCHEMES: [&str; 8] = [
            "redis://",
            "rediss://",
            "redis+cluster://",
            "rediss+cluster://",
            "valkey://",
            "valkeys://",
            "valkey+cluster://",
            "valkeys+cluster://",
        ];
        let wrong = |key: &str, problem: &str| Err(SettingsProblem::new(&["store", key], problem));
        if !self.state.is_empty() && !SCHEMES.iter().any(|scheme| self.state.starts_with(scheme)) {
            return wrong("state", "must begin with redis://, rediss://, redis+cluster:// or rediss+cluster://");
        }
        if self.prefix.is_empty()
            || self.prefix.len() > 64
            || !self.prefix.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte))
        {
            return wrong("prefix", "must be 1 to 64 letters, digits or any of - _ . :");
        }
        if !(1..=4096).contains(&self.partitions) {
            return wrong("partitions", "must be from 1 to 4096");
        }
        if self.stream_limit < 1000 {
            return wrong("stream_limit", "must be at least 1000");
        }
        if !(50..=30_000).contains(&self.patience_ms) {
            return wrong("patience_ms", "must be from 50 to 30000");
        }
        Ok(())
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogSettings {
    pub store_text: StoreText,
    pub retention_days: u32,
    /// Empty: the node's own files.
    pub database: String,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self { store_text: StoreText::default(), retention_days: 30, database: String::new() }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TelemetrySettings {
    /// Empty: off.
    pub otlp_endpoint: String,
    pub otlp_headers_env: String,
    pub service_name: String,
}

impl Default for TelemetrySettings {
    fn default() -> Self {
        Self { otlp_endpoint: String::new(), otlp_headers_env: String::new(), service_name: "runguard".into() }
    }
}

impl TelemetrySettings {
    fn check(&self) -> Result<(), SettingsProblem> {
        let endpoint = &self.otlp_endpoint;
        let named = endpoint.split_once("://").is_some_and(|(scheme, rest)| matches!(scheme, "http" | "https") && !rest.is_empty());
        if endpoint.is_empty() || (named && !endpoint.contains('@')) {
            return Ok(());
        }
        let problem = "must be the address of an OTLP/HTTP collector, like http://127.0.0.1:4318; a key goes into the variable that otlp_headers_env names";
        Err(SettingsProblem::new(&["telemetry", "otlp_endpoint"], problem))
    }
}

/// Key, what it is for, whether it is taken over without a restart.
pub const SERVICE_KEYS: &[(&str, &str, &str, bool)] = &[
    ("server", "listen", "Address and port. Any address but loopback needs a key (`runguard key create`).", false),
    (
        "server",
        "max_connections",
        "Connections at a time, as far as the limit on open files allows. When all are taken, the one idle for longest makes place; 32 more answer health checks alone.",
        false,
    ),
    (
        "server",
        "hosts",
        "Names besides localhost under which a service without keys may be asked, such as the name a proxy on this machine passes on. Requests for other names are refused: they come from a web page that found the port. Without a key everyone who reaches the service under such a name is an admin of it: where others than this machine's people reach the proxy, make a key instead.",
        true,
    ),
    (
        "server",
        "tls_cert",
        "Certificate for https, PEM, with the chain to its root; taken over when the file changes. Empty: plain http.",
        false,
    ),
    ("server", "tls_key", "The certificate's private key, PEM without a password.", false),
    (
        "server",
        "max_in_flight_per_key",
        "Requests of one key under way at a time; more are answered 429. 0: no bound, as for the five after it.",
        true,
    ),
    ("server", "max_in_flight_per_tenant", "The same for all keys of a tenant.", true),
    ("server", "max_bytes_in_flight_per_key", "Bytes of bodies that the requests of one key hold at a time.", true),
    ("server", "max_bytes_in_flight_per_tenant", "The same for all keys of a tenant.", true),
    ("server", "requests_per_second_per_key", "Requests one key may send in a second; more are answered 429 with the time to wait.", true),
    ("server", "requests_per_second_per_tenant", "The same for all keys of a tenant.", true),
    ("server", "max_streams", "Event streams (`GET /v1/events`) at a time; more are answered 429.", false),
    ("server", "max_streams_per_key", "Event streams of one key at a time; more are answered 429.", false),
    ("store", "data", "Folder of the embedded database.", false),
    (
        "store",
        "durability",
        "\"process\": an answered decision survives kill -9; \"power\": a power cut too (each batch waits for the disk).",
        false,
    ),
    ("store", "memory_mb", "Memory for states; the least recently used ones leave it and come back from disk when asked for.", false),
    (
        "store",
        "state",
        "Where many nodes share their states: redis://user:password@host:6379/0, rediss:// for TLS, several hosts with commas (the primary is used), redis+cluster:// for Redis Cluster. Empty: this node's own files. Better in RUNGUARD_STATE than in a file.",
        false,
    ),
    ("store", "prefix", "What the names of keys in Redis begin with.", false),
    (
        "store",
        "partitions",
        "Parts the states are dealt into; fixed once the database is in use. More than Redis Cluster has primaries.",
        false,
    ),
    ("store", "stream_limit", "Entries a partition's stream may hold while the log takes none; then nodes go on from memory.", false),
    ("store", "replicas", "Replicas that must have a decision before it is answered, so that a failover loses none.", false),
    ("store", "ca_file", "Certificates to trust for rediss://, in PEM; empty: those of the machine.", false),
    ("store", "patience_ms", "How long a request waits for a shared state that does not answer.", false),
    (
        "store",
        "flow_when_away",
        "What flow guards and detectors do while the shared state is away: \"memory\" (go on from what the node remembers, marked `degraded`) or \"refuse\".",
        true,
    ),
    (
        "store",
        "budget_when_away",
        "The same for budgets: \"refuse\", because a hard limit cannot be kept from memory, or \"memory\".",
        true,
    ),
    (
        "log",
        "database",
        "Where many nodes keep one log: postgres://user:password@host:5432/database. Empty: each node's own files. Better in RUNGUARD_LOG_DATABASE than in a file.",
        false,
    ),
    (
        "log",
        "store_text",
        "What users said: \"none\", \"redacted\" (no e-mail, phone, card and long numbers, no keys and passwords) or \"full\"; docs/kept.md says it field by field.",
        true,
    ),
    ("log", "retention_days", "Decisions older than this are removed.", false),
    ("alerts", "enabled", "Whether targets are told of what the rules see. Without a target nothing is watched.", false),
    ("alerts", "max_attempts", "Attempts for one message, over about a day; then it is a dead letter.", false),
    ("alerts", "backoff", "The first wait between attempts; it doubles, with jitter.", false),
    (
        "savings",
        "operations.kb_requery",
        "Billed operations that one block of this guard spares; so for every guard (`operations.handoff = 1`), 1 for those not named.",
        true,
    ),
    ("savings", "credits_per_operation", "Credits that one operation costs.", true),
    ("savings", "usd_per_operation", "Dollars that one operation costs; 0 while you have not said: no price is made up.", true),
    (
        "telemetry",
        "otlp_endpoint",
        "An OpenTelemetry collector that gets every decision as a span (OTLP/HTTP, like http://127.0.0.1:4318); empty is off.",
        false,
    ),
    (
        "telemetry",
        "otlp_headers_env",
        "The environment variable that holds headers for it: name=value,name=value. Keys stand there and in no file.",
        false,
    ),
    ("telemetry", "service_name", "What the service is called there.", false),
];

/// All settings in force.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    pub server: ServerSettings,
    pub store: StoreSettings,
    pub log: LogSettings,
    pub alerts: AlertSettings,
    pub savings: Savings,
    pub telemetry: TelemetrySettings,
    pub policies: Policies,
    pub history: Arc<History>,
}

/// What the settings were made of.
#[derive(Debug)]
pub struct History {
    /// Every value, as it may be shown, with where it came from.
    pub values: Vec<(Vec<String>, Value, SettingsSource)>,
    /// What is set below `guards` and `tenants`, without defaults: a default that is written down would hide what it inherits.
    tree: Tree,
}

impl Default for History {
    fn default() -> Self {
        Self::of(&[])
    }
}

impl History {
    fn of(layers: &[Layer]) -> Self {
        let (mut whole, mut tree) = (default_tree(), Tree::new());
        for layer in layers {
            merge(&mut whole, &layer.tree);
            merge(&mut tree, &layer.tree);
        }
        tree.retain(|table, _| table == "guards" || table == "tenants");
        let mut values = Vec::new();
        flatten(&whole, &mut Vec::new(), &mut values);
        let source = |path: &Vec<String>| layers.iter().rev().find_map(|layer| layer.sources.get(path)).cloned();
        let values = values.into_iter().map(|(path, value)| {
            let source = source(&path).unwrap_or(SettingsSource::Default);
            let value = secrets::shown(&path, &value);
            (path, value, source)
        });
        Self { values: values.collect(), tree }
    }
}

impl Settings {
    /// The keys that the service was started with and that these settings change: only a restart takes them over.
    pub(crate) fn changed_since_start(&self, started_with: &Self) -> Vec<String> {
        let tables = |settings: &Self| {
            let Self { server, store, log, telemetry, .. } = settings;
            serde_json::json!({"server": server, "store": store, "log": log, "telemetry": telemetry})
        };
        let (before, now) = (tables(started_with), tables(self));
        let differs = |(table, key, _, live): &&(&str, &str, &str, bool)| !live && before[table][key] != now[table][key];
        let mut keys: Vec<String> = SERVICE_KEYS.iter().filter(differs).map(|(table, key, ..)| format!("{table}.{key}")).collect();
        // Targets and rules are lists, not keys.
        if self.alerts != started_with.alerts {
            keys.push("alerts".to_owned());
        }
        keys
    }

    /// What is set under `[guards]` for a tenant.
    pub fn guard_tree(&self, tenant: &str) -> Tree {
        let table = |value: Option<&Value>| value.and_then(Value::as_object).cloned().unwrap_or_default();
        let mut guards = table(self.history.tree.get("guards"));
        let own = self.history.tree.get("tenants").and_then(|tenants| tenants.get(tenant)).and_then(|tenant| tenant.get("guards"));
        merge(&mut guards, &table(own));
        guards
    }
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingsSource {
    Default,
    File { path: PathBuf, line: usize },
    Environment(String),
    Flag(String),
}

impl SettingsSource {
    /// Short enough for an error: a variable's name may be as long as its value.
    fn cut(self) -> Self {
        const MOST_CHARS: usize = 80;
        match self {
            Self::Environment(name) if name.chars().count() > MOST_CHARS => {
                Self::Environment(name.chars().take(MOST_CHARS).chain(['…']).collect())
            }
            Self::Default | Self::File { .. } | Self::Environment(_) | Self::Flag(_) => self,
        }
    }
}

impl fmt::Display for SettingsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingsError {
    pub source: SettingsSource,
    pub key: String,
    pub problem: String,
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.source != SettingsSource::Default {
            write!(f, "{}: ", self.source)?;
        }
        if !self.key.is_empty() {
            write!(f, "`{}`: ", self.key)?;
        }
        f.write_str(&self.problem)
    }
}

impl std::error::Error for SettingsError {}

/// A tree and where each of its keys stands.
#[derive(Debug, Default)]
struct Layer {
    tree: Tree,
    sources: HashMap<Vec<String>, SettingsSource>,
}

/// Settings with the history of every value.
#[derive(Debug)]
pub struct Loaded {
    pub settings: Settings,
    pub file: Option<PathBuf>,
}

/// What settings are made of.
#[derive(Debug, Clone, Default)]
pub struct Origin {
    /// Named with `--config`: must be there.
    pub file: Option<PathBuf>,
    pub environment: Vec<(String, String)>,
    /// Path, value, flag.
    pub flags: Vec<(Vec<&'static str>, Value, &'static str)>,
}

impl Origin {
    fn file_to_read(&self) -> Option<PathBuf> {
        self.file.clone().or_else(|| Some(PathBuf::from(DEFAULT_FILE)).filter(|path| path.exists()))
    }

    pub fn load(&self) -> Result<Loaded, SettingsError> {
        let file = self.file_to_read();
        let mut layers = Vec::new();
        if let Some(path) = &file {
            layers.push(file_layer(path, &read_file(path)?)?);
        }
        layers.push(environment_layer(&self.environment)?);
        layers.push(flag_layer(&self.flags)?);
        Loaded::build(layers, file)
    }
}

/// The text of a settings file. One that says nothing is refused: it was emptied by a mistake, or is being written, and taking
/// it over would set every limit back to its default.
pub fn read_file(path: &Path) -> Result<String, SettingsError> {
    let wrong = |problem: String| SettingsError { source: SettingsSource::Default, key: String::new(), problem };
    let text = std::fs::read_to_string(path).map_err(|error| {
        wrong(format!("cannot read the settings file {}: {error}. `runguard settings example` prints one to start from", path.display()))
    })?;
    let says_something = |line: &str| !matches!(line.trim_start_matches('\u{feff}').trim().chars().next(), None | Some('#'));
    if text.lines().any(says_something) {
        return Ok(text);
    }
    Err(wrong(format!(
        "the settings file {} is empty: no key stands in it. If all defaults are meant, have no file: leave out --config and RUNGUARD_CONFIG, or remove {DEFAULT_FILE}; a service that runs with a file needs a restart for that. `runguard settings example` prints one to start from",
        path.display()
    )))
}

/// Checks the text of a settings file as if it were in force alone.
pub fn check_text(path: &Path, text: &str) -> Result<Loaded, SettingsError> {
    Loaded::build(vec![file_layer(path, text)?], Some(path.to_owned()))
}

impl Loaded {
    fn build(layers: Vec<Layer>, file: Option<PathBuf>) -> Result<Self, SettingsError> {
        let mut tree = Tree::new();
        for layer in &layers {
            merge(&mut tree, &layer.tree);
        }
        match typed(&tree) {
            Ok(settings) => Ok(Self { settings: Settings { history: Arc::new(History::of(&layers)), ..settings }, file }),
            Err(problem) => {
                Err(SettingsError { source: source_of(&layers, &problem.path), key: problem.path.join("."), problem: problem.problem })
            }
        }
    }

    /// Every value in force: key, value, where it came from.
    pub fn values(&self) -> Vec<(String, Value, SettingsSource)> {
        self.settings.history.values.iter().map(|(path, value, source)| (path.join("."), value.clone(), source.clone())).collect()
    }
}

/// The source of a path, or of the nearest thing above it that stands somewhere.
fn source_of(layers: &[Layer], path: &[String]) -> SettingsSource {
    (1..=path.len())
        .rev()
        .find_map(|length| layers.iter().rev().find_map(|layer| layer.sources.get(&path[..length])))
        .cloned()
        .unwrap_or(SettingsSource::Default)
}

fn flatten(tree: &Tree, path: &mut Vec<String>, out: &mut Vec<(Vec<String>, Value)>) {
    for (key, value) in tree {
        path.push(key.clone());
        match value {
            Value::Object(inner) if !inner.is_empty() => flatten(inner, path, out),
            _ => out.push((path.clone(), value.clone())),
        }
        path.pop();
    }
}

fn default_tree() -> Tree {
    let to_value = |value: Result<Value, serde_json::Error>| value.unwrap_or(Value::Null);
    let mut guards = Tree::new();
    for section in policy::sections() {
        let mut table = section.defaults.clone();
        table.insert("mode".into(), "enforce".into());
        let rules: Tree = runguard_core::Reason::of(section.guard)
            .filter(|reason| policy::default_rule_mode(*reason) != runguard_guards::Mode::Enforce)
            .map(|reason| (reason.code().to_owned(), serde_json::json!(policy::default_rule_mode(reason))))
            .collect();
        if !rules.is_empty() {
            table.insert("rules".into(), Value::Object(rules));
        }
        let nested = section.path.iter().rev().fold(Value::Object(table), |inner, part| serde_json::json!({ *part: inner }));
        if let Value::Object(nested) = nested {
            merge(&mut guards, &nested);
        }
    }
    Tree::from_iter([
        ("server".to_owned(), to_value(serde_json::to_value(ServerSettings::default()))),
        ("store".to_owned(), to_value(serde_json::to_value(StoreSettings::default()))),
        ("log".to_owned(), to_value(serde_json::to_value(LogSettings::default()))),
        ("alerts".to_owned(), to_value(serde_json::to_value(AlertSettings::default()))),
        ("savings".to_owned(), to_value(serde_json::to_value(Savings::default()))),
        ("telemetry".to_owned(), to_value(serde_json::to_value(TelemetrySettings::default()))),
        ("guards".to_owned(), Value::Object(guards)),
    ])
}

fn typed(tree: &Tree) -> Result<Settings, SettingsProblem> {
    const TOP: [&str; 8] = ["server", "store", "log", "savings", "alerts", "telemetry", "guards", "tenants"];
    let empty = Tree::new();
    let mut tables: HashMap<&str, &Tree> = HashMap::new();
    for (key, value) in tree {
        let Some(known) = TOP.into_iter().find(|known| known == key) else {
            let hint = runguard_guards::input::closest(key, TOP.into_iter())
                .map_or_else(|| format!("known are {}", TOP.join(", ")), |near| format!("did you mean `{near}`?"));
            return Err(SettingsProblem::new(&[key], format!("unknown table; {hint}")));
        };
        tables.insert(known, value.as_object().ok_or_else(|| SettingsProblem::new(&[key], "must be a table"))?);
    }
    let table = |name: &str| tables.get(name).copied().unwrap_or(&empty);
    let server: ServerSettings = policy::read_table(table("server"), &["server"], &[])?;
    server.check()?;
    let store: StoreSettings = policy::read_table(table("store"), &["store"], &[])?;
    if store.memory_mb < 16 {
        return Err(SettingsProblem::new(&["store", "memory_mb"], "must be at least 16"));
    }
    store.check_shared()?;
    let log: LogSettings = policy::read_table(table("log"), &["log"], &[])?;
    if !log.database.is_empty() && store.state.is_empty() {
        return Err(SettingsProblem::new(
            &["log", "database"],
            "a shared log needs shared states: set store.state (--state redis://…) as well, or leave both out",
        ));
    }
    if !(log.database.is_empty() || log.database.starts_with("postgres://") || log.database.starts_with("postgresql://")) {
        return Err(SettingsProblem::new(&["log", "database"], "must begin with postgres://"));
    }
    if !(1..=3650).contains(&log.retention_days) {
        return Err(SettingsProblem::new(&["log", "retention_days"], "must be from 1 to 3650"));
    }
    let alerts = AlertSettings::read(table("alerts"))?;
    let savings: Savings = policy::read_table(table("savings"), &["savings"], &[])?;
    for (key, value) in [("credits_per_operation", savings.credits_per_operation), ("usd_per_operation", savings.usd_per_operation)] {
        if !(0.0..=1_000_000.0).contains(&value) {
            return Err(SettingsProblem::new(&["savings", key], "must be from 0 to 1000000"));
        }
    }
    if let Some((guard, _)) = savings.operations.iter().find(|(_, operations)| **operations > 1_000_000) {
        return Err(SettingsProblem::new(&["savings", "operations", guard.code()], "must be at most 1000000"));
    }
    let telemetry: TelemetrySettings = policy::read_table(table("telemetry"), &["telemetry"], &[])?;
    telemetry.check()?;
    let policies = Policies::build(table("guards"), table("tenants"))?;
    Ok(Settings { server, store, log, savings, alerts, telemetry, policies, history: Arc::default() })
}

fn file_layer(path: &Path, text: &str) -> Result<Layer, SettingsError> {
    // Every key asks for its line: a file with many tenants has many of both.
    let line_ends: Vec<usize> = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(offset, _)| offset).collect();
    let line_at = |offset: usize| line_ends.partition_point(|end| *end < offset) + 1;
    let at = |offset: usize| SettingsSource::File { path: path.to_owned(), line: line_at(offset) };
    let table = DeTable::parse(text).map_err(|error| SettingsError {
        source: at(error.span().map_or(0, |span| span.start)),
        key: String::new(),
        problem: format!("not TOML: {}", error.message()),
    })?;
    let mut layer = Layer::default();
    layer.tree = walk(table.get_ref(), &mut Vec::new(), &mut layer.sources, &at)?;
    Ok(layer)
}

fn walk(
    table: &DeTable<'_>,
    path: &mut Vec<String>,
    sources: &mut HashMap<Vec<String>, SettingsSource>,
    at: &dyn Fn(usize) -> SettingsSource,
) -> Result<Tree, SettingsError> {
    let mut tree = Tree::new();
    for (key, value) in table {
        path.push(key.get_ref().to_string());
        check_levels(path, 0).map_err(|deep| SettingsError {
            source: at(key.span().start),
            key: deep.path.join("."),
            problem: deep.problem,
        })?;
        sources.insert(path.clone(), at(key.span().start));
        let converted = match value.get_ref() {
            DeValue::Table(inner) => Value::Object(walk(inner, path, sources, at)?),
            DeValue::Array(items) if items.iter().any(|item| matches!(item.get_ref(), DeValue::Table(_))) => {
                walk_list(items, path, sources, at)?
            }
            other => scalar(other).map_err(|problem| SettingsError { source: at(value.span().start), key: path.join("."), problem })?,
        };
        tree.insert(key.get_ref().to_string(), converted);
        path.pop();
    }
    Ok(tree)
}

/// A list of tables: each is walked under its number, so that an error in it has its line.
fn walk_list(
    items: &DeArray<'_>,
    path: &mut Vec<String>,
    sources: &mut HashMap<Vec<String>, SettingsSource>,
    at: &dyn Fn(usize) -> SettingsSource,
) -> Result<Value, SettingsError> {
    let mut list = Vec::new();
    for (number, item) in items.iter().enumerate() {
        let DeValue::Table(table) = item.get_ref() else {
            let problem = "tables and other values do not mix in a list".into();
            return Err(SettingsError { source: at(item.span().start), key: path.join("."), problem });
        };
        path.push(number.to_string());
        sources.insert(path.clone(), at(item.span().start));
        list.push(Value::Object(walk(table, path, sources, at)?));
        path.pop();
    }
    Ok(Value::Array(list))
}

fn scalar(value: &DeValue<'_>) -> Result<Value, String> {
    match value {
        DeValue::String(text) => Ok(Value::String(text.to_string())),
        DeValue::Boolean(flag) => Ok(Value::Bool(*flag)),
        DeValue::Integer(integer) => {
            i64::from_str_radix(integer.as_str(), integer.radix()).map(Value::from).map_err(|_| "the number is too large".into())
        }
        DeValue::Float(float) => {
            let number: f64 = float.as_str().parse().map_err(|_| "not a number".to_owned())?;
            serde_json::Number::from_f64(number).map(Value::Number).ok_or_else(|| "must be a finite number".into())
        }
        DeValue::Array(items) => items.iter().map(|item| scalar(item.get_ref())).collect::<Result<Vec<_>, _>>().map(Value::Array),
        DeValue::Datetime(_) => Err("a date makes no sense here".into()),
        DeValue::Table(_) => Err("a table makes no sense in a list".into()),
    }
}

/// `RUNGUARD_GUARDS__HANDOFF__MAX_HANDOFFS=8` sets `guards.handoff.max_handoffs`. The value is read as TOML, else as text.
fn environment_layer(environment: &[(String, String)]) -> Result<Layer, SettingsError> {
    let mut layer = Layer::default();
    for (name, text) in environment {
        let Some(rest) = name.strip_prefix(ENVIRONMENT_PREFIX).filter(|rest| rest.contains("__")) else { continue };
        let path: Vec<String> = rest.split("__").map(str::to_lowercase).collect();
        let value = DeValue::parse(text).ok().and_then(|value| scalar(value.get_ref()).ok()).unwrap_or_else(|| Value::String(text.clone()));
        insert(&mut layer, path, value, SettingsSource::Environment(name.clone()))?;
    }
    Ok(layer)
}

fn flag_layer(flags: &[(Vec<&'static str>, Value, &'static str)]) -> Result<Layer, SettingsError> {
    let mut layer = Layer::default();
    for (path, value, flag) in flags {
        let path = path.iter().map(|part| (*part).to_owned()).collect();
        insert(&mut layer, path, value.clone(), SettingsSource::Flag((*flag).to_owned()))?;
    }
    Ok(layer)
}

fn insert(layer: &mut Layer, path: Vec<String>, value: Value, source: SettingsSource) -> Result<(), SettingsError> {
    match nest(&path, value) {
        Ok(nested) => merge(&mut layer.tree, &nested),
        Err(deep) => return Err(SettingsError { source: source.cut(), key: deep.path.join("."), problem: deep.problem }),
    }
    for length in 1..=path.len() {
        layer.sources.insert(path[..length].to_vec(), source.clone());
    }
    Ok(())
}

/// A settings file with every key, its default and what it is for; everything that is a default is commented out.
pub fn example() -> String {
    use std::fmt::Write as _;
    let mut out = String::from(
        "# RunGuard settings. Every line that is commented out shows a default.\n\
         # Changes are taken over while the service runs, but for what says that it needs a restart.\n\
         # Any key can come from the environment: RUNGUARD_GUARDS__HANDOFF__MAX_HANDOFFS=8\n",
    );
    let defaults = default_tree();
    let shown = |path: &[&str]| {
        path.iter()
            .flat_map(|part| part.split('.'))
            .try_fold(Value::Object(defaults.clone()), |value, part| value.get(part).cloned())
            .map_or_else(String::new, |value| toml_text(&value))
    };
    let mut current = "";
    for (table, key, about, live) in SERVICE_KEYS {
        if *table != current {
            let _ = write!(out, "\n[{table}]\n");
            current = table;
        }
        let _ = write!(out, "# {about}{}\n# {key} = {}\n", if *live { "" } else { " (Needs a restart.)" }, shown(&[table, key]));
    }
    out.push_str(ALERTS_EXAMPLE);
    let _ = write!(
        out,
        "\n# Guards. Each takes mode = \"enforce\" | \"observe\" (decide and log, but allow) | \"off\",\n# and a table `rules` with a mode for each of its reasons.\n"
    );
    for section in policy::sections() {
        let name = section.path.join(".");
        let _ = write!(out, "\n# {}\n[guards.{name}]\n# mode = \"enforce\"\n", section.guard.meaning());
        for setting in section.settings {
            let value = section.defaults.get(setting.key).cloned().unwrap_or(Value::Null);
            let _ = writeln!(out, "# {}", setting.about);
            match &value {
                Value::Object(entries) => {
                    for (entry, value) in entries {
                        let _ = writeln!(out, "# {}.{} = {}", setting.key, toml_key(entry), toml_text(value));
                    }
                }
                _ => drop(writeln!(out, "# {} = {}", setting.key, toml_text(&value))),
            }
        }
        for reason in runguard_core::Reason::of(section.guard) {
            let mode = serde_json::json!(policy::default_rule_mode(reason));
            let _ = writeln!(out, "# rules.{} = {}", reason.code(), toml_text(&mode));
        }
        let first = section.settings.first().map_or("window", |setting| setting.key);
        let value = section.defaults.get(first).map_or_else(String::new, toml_text);
        let _ = writeln!(out, "# An override for one of its {}:\n# {}.\"name\".{first} = {value}", section.subjects, section.subjects);
    }
    out.push_str("\n# Overrides for one tenant (the tenant of the API key):\n# [tenants.acme.guards.handoff]\n# max_handoffs = 10\n");
    out
}

/// Who is told, and of what: lists, so they stand apart from the keys with defaults.
const ALERTS_EXAMPLE: &str = r#"# Who is told. (Needs a restart.) kind = "slack" | "pagerduty" | "teams" | "webhook"; secrets come from environment variables:
#   [[alerts.target]]
#     name = "ops"
#     kind = "slack"
#     url_env = "SLACK_WEBHOOK_URL"
#   [[alerts.target]]
#     name = "on-call"
#     kind = "pagerduty"
#     routing_key_env = "PAGERDUTY_ROUTING_KEY"
# Of what; without a rule: circuit trips, 20 blocks of a reason in 5 minutes, budgets at 60, 80, 95 and 100 %, degraded answers.
#   [[alerts.rule]]
#     name = "many-handoff-cycles"
#     when = "blocks"
#     reason = "cycle_detected"
#     count = 50
#     window = "10m"
#     to = ["ops"]
"#;

fn toml_key(key: &str) -> String {
    let bare = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if bare { key.to_owned() } else { toml_text(&Value::String(key.to_owned())) }
}

/// A value as TOML writes it.
pub fn toml_text(value: &Value) -> String {
    match value {
        Value::Null => "\"\"".into(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        // A literal string keeps the backslashes of a pattern readable.
        Value::String(text) if text.contains('\\') && !text.contains('\'') && !text.contains('\n') => format!("'{text}'"),
        Value::String(text) => toml::Value::String(text.clone()).to_string(),
        Value::Array(items) => format!("[{}]", items.iter().map(toml_text).collect::<Vec<_>>().join(", ")),
        Value::Object(entries) => format!(
            "{{ {} }}",
            entries.iter().map(|(key, value)| format!("{} = {}", toml_key(key), toml_text(value))).collect::<Vec<_>>().join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<Loaded, SettingsError> {
        check_text(Path::new("runguard.toml"), text)
    }

    #[test]
    fn the_example_is_valid_as_it_is_and_with_every_line_in_force() {
        let example = example();
        check(&example).unwrap();
        let in_force: String = example
            .lines()
            .map(|line| match line.strip_prefix("# ") {
                Some(rest) if rest.split_once(" = ").is_some_and(|(key, _)| !key.contains(' ')) || rest.starts_with("[tenants") => {
                    format!("{rest}\n")
                }
                _ => format!("{line}\n"),
            })
            .collect();
        let loaded = check(&in_force).unwrap();
        assert!(in_force.contains("\nmax_handoffs = 6"), "{in_force}");
        assert_eq!(loaded.settings.policies.for_tenant("acme").handoff.for_subject("x").settings.max_handoffs, 10);
        assert_eq!(loaded.settings.server, ServerSettings::default());
    }

    #[test]
    fn errors_name_file_line_and_key() {
        for (text, line, says) in [
            ("\n[guards.handoff]\nmax_handofs = 3\n", 3, "`guards.handoff.max_handofs`: unknown key; did you mean `max_handoffs`?"),
            ("[guards.handoff]\nwindow = \"soon\"\n", 2, "not a length of time"),
            ("[log]\nretention_days = 0\n", 2, "must be from 1 to 3650"),
            ("[sever]\n", 1, "did you mean `server`?"),
            ("[savings]\nusd_per_operation = -1\n", 2, "must be from 0"),
            ("[savings.operations]\nhandof = 2\n", 2, "unknown variant `handof`"),
            ("[server]\nlisten = \"here\"\n", 2, "no address"),
            ("[server]\nhosts = [\"a.b\", \"http://a\"]\n", 2, "without scheme and port"),
            ("[server]\ntls_cert = \"a.pem\"\n", 1, "--tls-key"),
            ("a = \n", 1, "not TOML"),
            ("[guards.ai_task_retry]\nmax_retries = 1\n\n[tenants.t.guards.ai_task_retry.tasks.x]\nmax_retries = -1\n", 5, "max_retries"),
        ] {
            let error = check(text).unwrap_err();
            assert_eq!(error.source, SettingsSource::File { path: "runguard.toml".into(), line }, "{text}: {error}");
            assert!(error.to_string().contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn names_of_thousands_of_parts_are_refused_wherever_they_stand() {
        let variable = format!("RUNGUARD_{}", vec!["A"; 100_000].join("__"));
        let origin = Origin { environment: vec![(variable, "1".into())], ..Origin::default() };
        let error = origin.load().unwrap_err();
        assert!(error.problem.contains("stands too deep"), "{error}");
        assert!(error.to_string().starts_with("environment RUNGUARD_A__A") && error.to_string().len() < 400, "{error}");
        for text in [
            format!("{} = 1", vec!["a"; 100_000].join(".")),
            format!("[{}]", vec!["a"; 40].join(".")),
            format!("[guards]\n{} = 1", vec!["a"; 40].join(".")),
            format!("a = {}1{}", "[".repeat(100_000), "]".repeat(100_000)),
            format!("a = {}1{}", "{a=".repeat(100_000), "}".repeat(100_000)),
            "[a]\n".repeat(2),
        ] {
            assert!(check(&text).is_err());
        }
        let deep = check(&format!("[guards]\n\n{} = 1", vec!["a"; 40].join("."))).unwrap_err();
        assert_eq!((deep.source.to_string().as_str(), deep.key.as_str()), ("runguard.toml:3", "guards.a.a.a.…"));
    }

    #[test]
    fn errors_do_not_repeat_a_secret() {
        let secret = "hunter2xyz";
        for text in [
            format!("[store]\nstate = redis://:{secret}@host"),
            format!("[store]\nstate = \"redis://:{secret}@host"),
            format!("[store]\nstate = 'redis://:{secret}@host' x"),
            format!("[store]\nredis://:{secret}@host"),
            format!("[store]\nstate = \"http://:{secret}@host\""),
            format!("[store]\nstate = [\"redis://:{secret}@host\"]"),
            format!("[store]\ndurability = \"redis://:{secret}@host\""),
            format!("[store]\nmemory_mb = \"redis://:{secret}@host\""),
            format!("[server]\nlisten = \"redis://:{secret}@host\""),
            format!("[log]\ndatabase = \"host=h password={secret}\""),
            format!("[log]\ndatabase = \"postgres://u:{secret}@h\""),
            format!("[log]\nstore_text = \"password={secret}\""),
            format!("[telemetry]\notlp_endpoint = \"https://u:{secret}@c\""),
            format!("[guards.handoff]\nwindow = \"postgres://u:{secret}@h\""),
            format!("[[alerts.target]]\nname = \"a\"\nkind = \"slack\"\nurl = \"ftp://hooks/{secret}\""),
            format!("[[alerts.target]]\nname = \"a\"\nkind = \"webhook\"\nurl = \"https://h\"\nsecret_env = \"whsec_{secret}+/=\""),
            format!("log = \"postgres://u:{secret}@h\""),
        ] {
            let error = check(&text).map(drop).unwrap_err().to_string();
            assert!(!error.contains(secret), "{text}: {error}");
        }
    }

    #[test]
    fn a_file_that_says_nothing_is_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("s.toml");
        let load = || Origin { file: Some(file.clone()), ..Origin::default() }.load();
        for text in ["", " \n\t\n", "# all of it\n  # commented out\n", "\u{feff}# x"] {
            std::fs::write(&file, text).unwrap();
            let error = load().unwrap_err().to_string();
            assert!(error.contains("is empty") && error.contains("leave out --config"), "{error}");
        }
        std::fs::write(&file, example()).unwrap();
        load().unwrap();
        std::fs::remove_file(&file).unwrap();
        assert!(load().unwrap_err().to_string().contains("cannot read"));
    }

    #[test]
    fn later_layers_win_and_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("s.toml");
        std::fs::write(&file, "[guards.handoff]\nmax_handoffs = 3\nwindow = \"10m\"\n[server]\nlisten = \"127.0.0.1:1\"\n").unwrap();
        let origin = Origin {
            file: Some(file.clone()),
            environment: vec![("RUNGUARD_GUARDS__HANDOFF__MAX_HANDOFFS".into(), "8".into()), ("RUNGUARD_KEY".into(), "x".into())],
            flags: vec![(vec!["server", "listen"], "127.0.0.1:2".into(), "--listen")],
        };
        let loaded = origin.load().unwrap();
        let handoff = &loaded.settings.policies.for_tenant("t").handoff.for_subject("b").settings;
        assert_eq!((handoff.max_handoffs, handoff.window.as_seconds()), (8, 600));
        let source = |key: &str| loaded.values().into_iter().find(|(name, ..)| name == key).unwrap().2;
        assert_eq!(source("guards.handoff.max_handoffs"), SettingsSource::Environment("RUNGUARD_GUARDS__HANDOFF__MAX_HANDOFFS".into()));
        assert_eq!(source("guards.handoff.window"), SettingsSource::File { path: file, line: 3 });
        assert_eq!(source("server.listen"), SettingsSource::Flag("--listen".into()));
        assert_eq!(source("guards.agent_action.max_total"), SettingsSource::Default);
        let bad = Origin { environment: vec![("RUNGUARD_GUARDS__HANDOFF__MAX".into(), "8".into())], ..Origin::default() };
        assert!(bad.load().unwrap_err().to_string().contains("environment RUNGUARD_GUARDS__HANDOFF__MAX"));
    }
}
