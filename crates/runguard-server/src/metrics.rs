//! What Prometheus may read. Labels come from fixed lists only, so the number of series has a bound.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use runguard_core::row::Named;
use runguard_core::{GuardName, Reason};
use runguard_engine::alerts::Alerts;
use runguard_engine::telemetry::Telemetry;
use runguard_engine::watch::{Refusals, Watched};
use runguard_engine::{Answered, Outcome, PhaseCounts};
use runguard_gateway::Hears;
use runguard_guards::guard::{Notice, ROUTES, Route};
use runguard_store::RowCount;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DecisionLabels {
    guard: &'static str,
    outcome: &'static str,
    reason: &'static str,
}

/// As the log has them: codes of fixed lists.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TenantLabels {
    guard: String,
    outcome: String,
    reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    route: &'static str,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AlertLabels {
    target: &'static str,
    event: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct GuardLabel {
    guard: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabel {
    phase: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WatchedLabel {
    what: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LimitLabel {
    limit: &'static str,
}

/// What a caller had too much of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limited {
    /// Under way, or in a second.
    Requests,
    /// Of bodies.
    Bytes,
    Streams,
    Previews,
}

impl Limited {
    const ALL: [Self; 4] = [Self::Requests, Self::Bytes, Self::Streams, Self::Previews];

    const fn code(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Bytes => "bytes",
            Self::Streams => "streams",
            Self::Previews => "previews",
        }
    }
}

#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    decisions: Family<DecisionLabels, Counter>,
    /// The counters of plain allowed answers, found once: they are most of the traffic.
    allowed: Vec<Counter>,
    requests: Family<RequestLabels, Counter>,
    /// Of the guard routes, by their place in the table: 200 and 429, found once.
    guard_requests: Vec<[Counter; 2]>,
    seconds: Histogram,
    replayed: Counter,
    unmatched_results: Counter,
    circuit_trips: Counter,
    store_errors: Counter,
    /// By [`Limited`]; there from the start, so that a first refusal is seen as a rise.
    limited: [Counter; Limited::ALL.len()],
    alerts: Family<AlertLabels, Counter>,
    /// By guard, found once.
    saved: Vec<Counter>,
    circuits: Family<PhaseLabel, Gauge>,
    log_rows: Gauge<u64, AtomicU64>,
    spans: [Counter; 2],
    event_streams: Gauge,
    entries: Gauge,
    state_bytes: Gauge,
    rows_behind: Gauge<u64, AtomicU64>,
    wal_bytes: Gauge<u64, AtomicU64>,
    shared_up: Gauge,
    rows_waiting: Gauge<u64, AtomicU64>,
    waiting_bytes: Gauge<u64, AtomicU64>,
    unconfirmed: Gauge<u64, AtomicU64>,
    unconfirmed_bytes: Gauge<u64, AtomicU64>,
    unconfirmed_dropped: Counter,
    degraded: Counter,
    stream_entries: Gauge<u64, AtomicU64>,
    evicts: Gauge,
    without_aof: Gauge,
    evicted: Gauge<u64, AtomicU64>,
    nodes: Gauge<u64, AtomicU64>,
    other_settings: Gauge<u64, AtomicU64>,
    other_keys: Gauge<u64, AtomicU64>,
    settings_hash: Gauge<u64, AtomicU64>,
    keys_hash: Gauge<u64, AtomicU64>,
    log_up: Gauge,
    log_lag: Gauge<f64, AtomicU64>,
    imports: Gauge,
    reload_refused: Family<WatchedLabel, Gauge>,
    reload_refusals: Family<WatchedLabel, Counter>,
}

impl Hears for Metrics {
    fn decided(&self, guard: GuardName, answered: &Answered, spares: &dyn Fn() -> u32) {
        // A try that was refused was asked for otherwise.
        if answered.is_forgotten && answered.outcome == Outcome::Blocked {
            return;
        }
        if answered.degraded {
            self.degraded.inc();
        }
        if answered.replayed {
            self.replayed.inc();
            return;
        }
        if answered.outcome == Outcome::Allowed {
            self.allowed[guard.index()].inc();
        } else {
            let labels =
                DecisionLabels { guard: guard.code(), outcome: answered.outcome.code(), reason: answered.reason.map_or("", Reason::code) };
            self.decisions.get_or_create(&labels).inc();
            if answered.outcome == Outcome::Blocked {
                self.saved[guard.index()].inc_by(u64::from(spares()));
            }
        }
        match answered.notice {
            Some(Notice::UnmatchedResult) => drop(self.unmatched_results.inc()),
            Some(Notice::CircuitTripped) => drop(self.circuit_trips.inc()),
            Some(Notice::CircuitClosed) | None => {}
        }
    }
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("runguard");
        let decisions = Family::<DecisionLabels, Counter>::default();
        registry.register("decisions", "Decisions and records by guard, outcome and reason", decisions.clone());
        let labels = |guard: &GuardName| DecisionLabels { guard: guard.code(), outcome: Outcome::Allowed.code(), reason: "" };
        let allowed = GuardName::ALL.iter().map(|guard| decisions.get_or_create_owned(&labels(guard))).collect();
        let requests = Family::<RequestLabels, Counter>::default();
        registry.register("http_requests", "Requests by route and status", requests.clone());
        let found = |route: &&Route| [200, 429].map(|status| requests.get_or_create_owned(&RequestLabels { route: route.path, status }));
        let guard_requests = ROUTES.iter().map(found).collect();
        let seconds = Histogram::new(exponential_buckets(0.000_05, 2.0, 16));
        registry.register("decision_seconds", "Time from a guard request's arrival to its answer, commit included", seconds.clone());
        let saved = Family::<GuardLabel, Counter>::default();
        registry.register("operations_saved", "Billed operations that refusals spared, by guard", saved.clone());
        let spans = Family::<ResultLabel, Counter>::default();
        registry.register("telemetry_spans", "Spans for the OpenTelemetry collector: sent, or dropped because it was away", spans.clone());
        let limited = Family::<LimitLabel, Counter>::default();
        registry.register(
            "limited_requests",
            "Requests answered 429 because their caller had too much of the service, by limit",
            limited.clone(),
        );
        let version = vec![("version", env!("CARGO_PKG_VERSION"))];
        registry.register("build", "Which version runs", Info::new(version));
        let metrics = Self {
            saved: GuardName::ALL.iter().map(|guard| saved.get_or_create_owned(&GuardLabel { guard: guard.code() })).collect(),
            spans: ["exported", "dropped"].map(|result| spans.get_or_create_owned(&ResultLabel { result })),
            limited: Limited::ALL.map(|limit| limited.get_or_create_owned(&LimitLabel { limit: limit.code() })),
            circuits: Family::default(),
            log_rows: Gauge::default(),
            decisions,
            allowed,
            requests,
            guard_requests,
            seconds,
            replayed: Counter::default(),
            unmatched_results: Counter::default(),
            circuit_trips: Counter::default(),
            store_errors: Counter::default(),
            alerts: Family::default(),
            event_streams: Gauge::default(),
            entries: Gauge::default(),
            state_bytes: Gauge::default(),
            rows_behind: Gauge::default(),
            wal_bytes: Gauge::default(),
            shared_up: Gauge::default(),
            rows_waiting: Gauge::default(),
            waiting_bytes: Gauge::default(),
            unconfirmed: Gauge::default(),
            unconfirmed_bytes: Gauge::default(),
            unconfirmed_dropped: Counter::default(),
            degraded: Counter::default(),
            stream_entries: Gauge::default(),
            evicts: Gauge::default(),
            without_aof: Gauge::default(),
            evicted: Gauge::default(),
            nodes: Gauge::default(),
            other_settings: Gauge::default(),
            other_keys: Gauge::default(),
            settings_hash: Gauge::default(),
            keys_hash: Gauge::default(),
            log_up: Gauge::default(),
            log_lag: Gauge::default(),
            imports: Gauge::default(),
            reload_refused: Family::default(),
            reload_refusals: Family::default(),
            registry: Registry::default(),
        };
        registry.register("idempotent_replays", "Repeated requests that got their first answer", metrics.replayed.clone());
        registry.register("unmatched_results", "Action results that belong to no call", metrics.unmatched_results.clone());
        registry.register("circuit_trips", "Circuits that opened", metrics.circuit_trips.clone());
        registry.register("store_errors", "Requests answered 503 because the store failed", metrics.store_errors.clone());
        registry.register(
            "alerts",
            "Alert messages by kind of target: fired, delivered, failed attempts, dead letters",
            metrics.alerts.clone(),
        );
        registry.register("circuits", "Endpoints by the phase of their circuit", metrics.circuits.clone());
        registry.register(
            "log_newest_row",
            "Number of the newest row in the log: its growth is the rows written",
            metrics.log_rows.clone(),
        );
        registry.register("event_streams", "Open event streams", metrics.event_streams.clone());
        registry.register("entries_in_memory", "Sessions, endpoints and kept answers in memory", metrics.entries.clone());
        registry.register("state_bytes_in_memory", "About the memory they take", metrics.state_bytes.clone());
        registry.register("rows_behind_index", "Log rows not yet indexed", metrics.rows_behind.clone());
        registry.register(
            "write_ahead_log_bytes",
            "Size of the write-ahead log; it starts over when nobody reads an old state",
            metrics.wal_bytes.clone(),
        );
        registry.register("shared_state_up", "1 while the shared state can be used, or nothing is shared", metrics.shared_up.clone());
        registry.register("rows_waiting", "Rows decided alone that wait to be sent", metrics.rows_waiting.clone());
        registry.register("rows_waiting_bytes", "Bytes on disk of what was decided alone", metrics.waiting_bytes.clone());
        registry.register("unconfirmed_entries", "Entries sent that are not known to be in the log", metrics.unconfirmed.clone());
        registry.register("unconfirmed_bytes", "Bytes of them on disk", metrics.unconfirmed_bytes.clone());
        registry.register(
            "unconfirmed_dropped",
            "Entries not kept any more though the log was not known to have them",
            metrics.unconfirmed_dropped.clone(),
        );
        registry.register("degraded_answers", "Answers given while the shared state was away, or behind", metrics.degraded.clone());
        registry.register(
            "stream_entries",
            "Entries in the streams of the shared state, on their way to the log",
            metrics.stream_entries.clone(),
        );
        registry.register(
            "shared_state_evicts",
            "1 while Redis is set up to throw states away when memory is short",
            metrics.evicts.clone(),
        );
        registry.register("shared_state_without_aof", "1 while Redis says that it keeps no append-only file", metrics.without_aof.clone());
        registry.register("shared_state_evicted_keys", "Keys that Redis has thrown away since it was started", metrics.evicted.clone());
        registry.register(
            "nodes",
            "Nodes of the cluster that were seen in the last half minute, this one among them",
            metrics.nodes.clone(),
        );
        registry.register("nodes_with_other_settings", "Nodes whose settings are not this one's", metrics.other_settings.clone());
        registry.register("nodes_with_other_keys", "Nodes whose keys are not this one's", metrics.other_keys.clone());
        registry.register("settings_hash", "Tells the settings of nodes apart", metrics.settings_hash.clone());
        registry.register("keys_hash", "Tells the keys of nodes apart", metrics.keys_hash.clone());
        registry.register("log_database_up", "1 while the log takes rows, or is this node's own", metrics.log_up.clone());
        registry.register("log_lag_seconds", "How far the log is behind what was decided", metrics.log_lag.clone());
        registry.register("log_imports", "1 on the node that brings the rows of all nodes into the log", metrics.imports.clone());
        registry.register(
            "reload_refused",
            "1 while a changed settings file, key file or certificate is not in force because it was refused",
            metrics.reload_refused.clone(),
        );
        registry.register(
            "reload_refusals",
            "Changed settings files, key files and certificates that were refused",
            metrics.reload_refusals.clone(),
        );
        Self { registry, ..metrics }
    }

    /// `spares` says how many billed operations a refusal of this guard spares.
    pub(crate) fn answered(&self, guard: GuardName, answered: &Answered, elapsed: f64, spares: &dyn Fn() -> u32) {
        self.seconds.observe(elapsed);
        self.decided(guard, answered, spares);
    }

    pub(crate) fn guard_request(&self, route: &'static Route, status: u16) {
        let position = ROUTES.iter().position(|known| std::ptr::eq(*known, route)).unwrap_or(0);
        match status {
            200 => drop(self.guard_requests[position][0].inc()),
            429 => drop(self.guard_requests[position][1].inc()),
            _ => self.request(route.path, status),
        }
    }

    pub(crate) fn request(&self, route: &'static str, status: u16) {
        self.requests.get_or_create(&RequestLabels { route, status }).inc();
        if status == 503 {
            self.store_errors.inc();
        }
    }

    pub(crate) fn limited(&self, limit: Limited) {
        self.limited[limit as usize].inc();
    }

    pub(crate) fn stream_opened(&self) {
        self.event_streams.inc();
    }

    pub(crate) fn stream_closed(&self) {
        self.event_streams.dec();
    }

    /// The alerts keep count themselves: they run without the doors.
    pub(crate) fn set_alerts(&self, alerts: &Alerts) {
        for (kind, count, value) in alerts.counts() {
            let labels = AlertLabels { target: kind.code(), event: count.code() };
            self.alerts.get_or_create(&labels).inner().store(value, Ordering::Relaxed);
        }
    }

    pub(crate) fn set_circuits(&self, counts: PhaseCounts) {
        for (phase, count) in counts.by_name() {
            self.circuits.get_or_create(&PhaseLabel { phase }).set(count as i64);
        }
    }

    pub(crate) fn set_spans(&self, telemetry: &Telemetry) {
        for (counter, count) in self.spans.iter().zip([telemetry.spans_exported(), telemetry.spans_dropped()]) {
            counter.inc_by(count.saturating_sub(counter.get()));
        }
    }

    pub(crate) fn set_refusals(&self, refusals: &Refusals) {
        let in_force = refusals.in_force();
        for what in Watched::ALL {
            let label = WatchedLabel { what: what.code() };
            let stands = in_force.iter().any(|refused| refused.what == what);
            self.reload_refused.get_or_create(&label).set(i64::from(stands));
            self.reload_refusals.get_or_create(&label).inner().store(refusals.count(what), Ordering::Relaxed);
        }
    }

    pub(crate) fn text(&self, store: &runguard_store::Store) -> String {
        self.log_rows.set(store.follower().committed());
        self.entries.set(store.entries_in_memory() as i64);
        self.state_bytes.set(store.bytes_in_memory() as i64);
        self.rows_behind.set(store.rows_behind());
        self.wal_bytes.set(store.wal_bytes().unwrap_or(0));
        let health = store.cluster_health();
        self.shared_up.set(i64::from(health.as_ref().is_none_or(|health| health.away.is_none())));
        self.rows_waiting.set(health.as_ref().map_or(0, |health| health.waiting_rows));
        self.log_up.set(i64::from(health.as_ref().is_none_or(|health| health.log_up)));
        if let Some(health) = health {
            self.waiting_bytes.set(health.waiting_bytes);
            self.unconfirmed.set(health.unconfirmed);
            self.unconfirmed_bytes.set(health.unconfirmed_bytes);
            self.unconfirmed_dropped.inner().store(health.unconfirmed_dropped, Ordering::Relaxed);
            self.log_lag.set(health.log_lag_millis as f64 / 1000.0);
            self.imports.set(i64::from(health.imports));
            self.stream_entries.set(health.condition.stream_entries);
            self.evicts.set(i64::from(health.condition.evicts.is_some()));
            self.evicted.set(health.condition.evicted);
            self.without_aof.set(i64::from(health.condition.without_aof));
            self.nodes.set(health.seen.nodes);
            self.other_settings.set(health.seen.other_settings);
            self.other_keys.set(health.seen.other_keys);
            self.settings_hash.set(u64::from(health.fingerprints.settings));
            self.keys_hash.set(u64::from(health.fingerprints.keys));
        }
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        text
    }
}

/// A tenant's own decisions of the last hour. A gauge: what it is counted from leaves with the log's retention.
pub(crate) fn last_hour(counted: &[RowCount]) -> String {
    let decisions = Family::<TenantLabels, Gauge>::default();
    for row in counted {
        let reason = row.reason.as_ref().map_or("", Named::code).to_owned();
        let labels = TenantLabels { guard: row.guard.to_string(), outcome: row.outcome.to_string(), reason };
        decisions.get_or_create(&labels).inc_by(row.count as i64);
    }
    let mut registry = Registry::with_prefix("runguard");
    registry.register("decisions_last_hour", "Decisions of the last hour of what the key sees, by guard, outcome and reason", decisions);
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
    text
}

/// The same in the older text format, for readers that do not take the newer one: there a counter's name is its sample's.
pub(crate) fn as_plain_text(metrics: &str) -> String {
    let mut out = String::with_capacity(metrics.len());
    let kind = |name: &str| metrics.lines().find_map(|line| line.strip_prefix("# TYPE ")?.strip_prefix(name)?.strip_prefix(' '));
    for line in metrics.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next()) {
            (Some("#"), Some("EOF" | "UNIT"), _) => continue,
            (Some("#"), Some(what @ ("HELP" | "TYPE")), Some(name)) => {
                let rest = words.next().unwrap_or_default();
                match (what, kind(name)) {
                    (_, Some("counter")) => out.push_str(&format!("# {what} {name}_total {rest}")),
                    ("TYPE", Some("info")) => out.push_str(&format!("# TYPE {name}_info gauge")),
                    (_, Some("info")) => out.push_str(&format!("# {what} {name}_info {rest}")),
                    _ => out.push_str(line),
                }
            }
            _ => out.push_str(line),
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_format_names_counters_by_their_samples() {
        let open = "# HELP runguard_x Counts.\n# TYPE runguard_x counter\nrunguard_x_total{a=\"b c\"} 1\n# HELP runguard_g Is.\n# TYPE runguard_g gauge\nrunguard_g 2\n# EOF\n";
        let plain = "# HELP runguard_x_total Counts.\n# TYPE runguard_x_total counter\nrunguard_x_total{a=\"b c\"} 1\n# HELP runguard_g Is.\n# TYPE runguard_g gauge\nrunguard_g 2\n";
        assert_eq!(as_plain_text(open), plain);
    }
}
