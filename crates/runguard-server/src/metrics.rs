//! What Prometheus may read. Labels come from fixed lists only, so the number of series has a bound.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use runguard_core::guard::{Notice, ROUTES, Route};
use runguard_core::{GuardName, Reason};
use runguard_engine::{Answered, Outcome};
use std::sync::atomic::AtomicU64;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DecisionLabels {
    guard: &'static str,
    outcome: &'static str,
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    route: &'static str,
    status: u16,
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
    event_streams: Gauge,
    entries: Gauge,
    state_bytes: Gauge,
    rows_behind: Gauge<u64, AtomicU64>,
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
        let metrics = Self {
            decisions,
            allowed,
            requests,
            guard_requests,
            seconds,
            replayed: Counter::default(),
            unmatched_results: Counter::default(),
            circuit_trips: Counter::default(),
            store_errors: Counter::default(),
            event_streams: Gauge::default(),
            entries: Gauge::default(),
            state_bytes: Gauge::default(),
            rows_behind: Gauge::default(),
            registry: Registry::default(),
        };
        registry.register("idempotent_replays", "Repeated requests that got their first answer", metrics.replayed.clone());
        registry.register("unmatched_results", "Action results that belong to no call", metrics.unmatched_results.clone());
        registry.register("circuit_trips", "Circuits that opened", metrics.circuit_trips.clone());
        registry.register("store_errors", "Requests answered 503 because the store failed", metrics.store_errors.clone());
        registry.register("event_streams", "Open event streams", metrics.event_streams.clone());
        registry.register("entries_in_memory", "Sessions, endpoints and kept answers in memory", metrics.entries.clone());
        registry.register("state_bytes_in_memory", "About the memory they take", metrics.state_bytes.clone());
        registry.register("rows_behind_index", "Log rows not yet indexed", metrics.rows_behind.clone());
        Self { registry, ..metrics }
    }

    pub(crate) fn answered(&self, guard: GuardName, answered: &Answered, elapsed: f64) {
        self.seconds.observe(elapsed);
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
        }
        match answered.notice {
            Some(Notice::UnmatchedResult) => drop(self.unmatched_results.inc()),
            Some(Notice::CircuitTripped) => drop(self.circuit_trips.inc()),
            Some(Notice::CircuitClosed) | None => {}
        }
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

    pub(crate) fn stream_opened(&self) {
        self.event_streams.inc();
    }

    pub(crate) fn stream_closed(&self) {
        self.event_streams.dec();
    }

    pub(crate) fn text(&self, store: &runguard_store::Store) -> String {
        self.entries.set(store.entries_in_memory() as i64);
        self.state_bytes.set(store.bytes_in_memory() as i64);
        self.rows_behind.set(store.rows_behind());
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        text
    }
}
