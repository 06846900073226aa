//! The tables of the service itself: what can be set in them, and what is refused.

use runguard_core::text::StoreText;
use runguard_core::time::Span;
use runguard_guards::policy::SettingsProblem;
use runguard_http::listen::is_address;
use runguard_store::Durability;
use serde::{Deserialize, Serialize};

/// Longer than anything that asks a service to end waits for it.
const LONGEST_GRACE: Span = Span::from_seconds(600);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerSettings {
    pub listen: String,
    /// Empty: it has none, and alerts carry no links.
    pub public_url: String,
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
    pub grace: Span,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8100".into(),
            public_url: String::new(),
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
            grace: Span::ZERO,
        }
    }
}

impl ServerSettings {
    pub(super) fn check(&self) -> Result<(), SettingsProblem> {
        let wrong = |key: &str, problem: String| Err(SettingsProblem::new(&["server", key], problem));
        if !is_address(&self.listen) {
            return wrong("listen", "is no address with a port, like 127.0.0.1:8100 or localhost:8100".into());
        }
        if !self.public_url.is_empty() && !is_public_url(&self.public_url) {
            return wrong("public_url", "must be an address for browsers, like https://runguard.example, without a password in it".into());
        }
        let at_least_one = [
            ("max_connections", self.max_connections),
            ("max_streams", self.max_streams),
            ("max_streams_per_key", self.max_streams_per_key),
        ];
        if let Some((key, _)) = at_least_one.into_iter().find(|(_, most)| *most == 0) {
            return wrong(key, "must be at least 1".into());
        }
        if self.grace > LONGEST_GRACE {
            return wrong("grace", format!("must be {LONGEST_GRACE} at most"));
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
    pub alone_mb: u32,
    pub unconfirmed_mb: u32,
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
            alone_mb: 1024,
            unconfirmed_mb: 1024,
        }
    }
}

impl StoreSettings {
    pub(super) fn check_shared(&self) -> Result<(), SettingsProblem> {
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
        if self.alone_mb == 0 {
            return wrong("alone_mb", "must be at least 1");
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
    pub(super) fn check(&self) -> Result<(), SettingsProblem> {
        let endpoint = &self.otlp_endpoint;
        let named = endpoint.split_once("://").is_some_and(|(scheme, rest)| matches!(scheme, "http" | "https") && !rest.is_empty());
        if endpoint.is_empty() || (named && !endpoint.contains('@')) {
            return Ok(());
        }
        let problem = "must be the address of an OTLP/HTTP collector, like http://127.0.0.1:4318; a key goes into the variable that otlp_headers_env names";
        Err(SettingsProblem::new(&["telemetry", "otlp_endpoint"], problem))
    }
}

fn is_public_url(url: &str) -> bool {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    rest.is_some_and(|rest| {
        !rest.starts_with('/') && !rest.is_empty() && !rest.contains(|c: char| c.is_whitespace() || "<>|@?#\"".contains(c))
    })
}

/// Key, what it is for, whether it is taken over without a restart.
pub const SERVICE_KEYS: &[(&str, &str, &str, bool)] = &[
    (
        "server",
        "listen",
        "Address and port, as 127.0.0.1:8100 or localhost:8100. Any address but loopback needs a key (`runguard key create`).",
        false,
    ),
    (
        "server",
        "public_url",
        "Where people reach the dashboard, like https://runguard.example: alert messages link there. Empty: no links.",
        false,
    ),
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
    (
        "server",
        "max_bytes_in_flight_per_key",
        "Bytes of bodies that the requests of one key hold at a time. With the gateway no less than four of its longest questions (gateway.max_body_mb).",
        true,
    ),
    ("server", "max_bytes_in_flight_per_tenant", "The same for all keys of a tenant; with the gateway no less than eight.", true),
    ("server", "requests_per_second_per_key", "Requests one key may send in a second; more are answered 429 with the time to wait.", true),
    ("server", "requests_per_second_per_tenant", "The same for all keys of a tenant.", true),
    ("server", "max_streams", "Event streams (`GET /v1/events`) at a time; more are answered 429.", false),
    ("server", "max_streams_per_key", "Event streams of one key at a time; more are answered 429.", false),
    (
        "server",
        "grace",
        "When the service is asked to end: how long it goes on answering while `/readyz` is 503, so that a load balancer sends nobody any more before the port closes. As long as the balancer takes to notice; a second signal ends it.",
        true,
    ),
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
        "store",
        "unconfirmed_mb",
        "Disk for rows that were sent and are not known to be in the log, kept in case the shared state loses them: 100,000 entries are in memory, more of them here. When it is full the oldest are not kept, which is said.",
        false,
    ),
    (
        "store",
        "alone_mb",
        "Disk for what a node decides while the shared state is away. When it is full, requests fail with 503 until the state is back.",
        false,
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
    (
        "alerts",
        "default_rules",
        "Whether the usual rules (circuit_trip, blocks, budget, fallback) are in force beside your own. A rule of your own with the name of one stands in its place.",
        false,
    ),
    ("alerts", "backoff", "The first wait between attempts; it doubles, with jitter.", false),
    (
        "savings",
        "operations.kb_requery",
        "Billed operations that one block of this guard spares; so for every guard (`operations.handoff = 1`), 1 for those not named.",
        true,
    ),
    ("savings", "credits_per_operation", "Credits that one operation costs.", true),
    (
        "savings",
        "usd_per_operation",
        "Dollars that one operation costs; left out, its credits at guards.budget.credit_usd. 0 while neither is said: no price is made up.",
        true,
    ),
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
    (
        "gateway",
        "enabled",
        "Whether the routes of providers (/openai/v1, /anthropic, /bedrock, and those of the upstreams with names of your own) are there; `runguard gateway` switches them on by itself.",
        true,
    ),
    (
        "gateway",
        "upstreams.openai.url",
        "Where questions to /openai/v1 go: OpenAI, or any service that speaks like it. Others are reached under a name of your own, /NAME/v1: [gateway.upstreams.NAME] with url, speaks = \"openai\" (what it is without) or \"anthropic\", key_env or key_file, key_header (such as \"api-key\" for Azure), api_version (Azure's, for callers that send none), length_field (\"max_tokens\" or \"max_completion_tokens\": what it reads as the bound of an answer in a chat; without it the second at OpenAI, at Azure and for OpenAI's models that think, else the first) and models.\"NAME OF A DEPLOYMENT\" = \"gpt-4o\": what it is priced as.",
        true,
    ),
    (
        "gateway",
        "upstreams.openai.key_env",
        "The environment variable with the provider's key, for callers with a key of ours. Or `key_file`: the file with it, which is taken over when it changes. It is never shown.",
        true,
    ),
    ("gateway", "upstreams.anthropic.url", "Where questions to /anthropic go.", true),
    ("gateway", "upstreams.anthropic.key_env", "The same for Anthropic.", true),
    (
        "gateway",
        "upstreams.bedrock.url",
        "Where questions to /bedrock go; empty: Bedrock's own address in the region. They are signed with the AWS credentials of the environment, for upstreams.bedrock.region; without one, for the region in the address, or AWS_REGION, or AWS_DEFAULT_REGION.",
        true,
    ),
    (
        "gateway",
        "circuits",
        "Whether each model of an upstream has a circuit, by the thresholds of [guards.api_circuit]: while it fails, nobody asks it.",
        true,
    ),
    (
        "gateway",
        "fallbacks",
        "Models that are asked instead when one cannot be (its circuit is open, or its provider is overloaded or away), at the same upstream and in this order: \"gpt-4o\" = [\"gpt-4o-mini\"]. Each only if what is left pays for it.",
        true,
    ),
    ("gateway", "max_body_mb", "The largest question that is taken.", true),
    (
        "gateway",
        "patience",
        "How long a question waits for what others have set aside and may give back, before its answer is shortened or it is blocked.",
        true,
    ),
    (
        "gateway",
        "when_caller_leaves",
        "What becomes of a stream whose caller has gone: \"close\" leaves the provider too and bills what came, \"drain\" reads on to the provider's own count. Where something is limited and the model may be thinking unseen, it is read on in any case.",
        true,
    ),
    (
        "gateway",
        "on_stop",
        "How a run hears that it is over: \"error\" (402 in the provider's own shape) or \"answer\" (a last answer that says why, for frameworks that end politely).",
        true,
    ),
    (
        "gateway",
        "on_loop",
        "What is done before a run that goes round in circles is stopped: \"stop\" does nothing, \"nudge\" tells the model so, behind the latest result of a tool. Whether such runs are stopped is said by guards.agent_run.mode.",
        true,
    ),
];
