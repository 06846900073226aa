//! Decisions as OpenTelemetry spans and metrics, sent to a collector over OTLP/HTTP.
//!
//! The sender follows the log by row number, as event streams do: an answer waits for nothing here, and what is sent is
//! what was decided. It is a small JSON writer over the HTTP client that is in the tree anyway: the official crates would
//! bring several others, their own batching and their own clock, for two kinds of message whose shape is fixed.
//!
//! When the collector is away, spans wait in a bounded queue and the oldest are dropped, counted. Metrics are running
//! totals: nothing is lost by sending them late. Nothing that a user said is sent: ids, names, numbers.
//!
//! A caller's `traceparent` is not in the log. The door notes it beside the decision's id, only while telemetry is on and
//! only for requests that bring one; the sender looks a quarter of a second after the commit, when it has been noted.

mod model_calls;

use crate::engine::{Answered, Engine};
use crate::settings::{TelemetrySettings, shown_receiver};
use model_calls::ModelCalls;
use runguard_core::row::{Ended, Kind, Named, Row};
use runguard_core::{GuardName, Reason};
use runguard_guards::guard::{GuardEntry, GuardedStep};
use runguard_guards::logged::{self, Account};
use runguard_http::client::{WithoutCertificates, causes, trust_system};
use runguard_store::{Order, RowFilter};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// Spans that wait for the collector; of more, the oldest are dropped.
const MOST_WAITING: usize = 8192;
/// Spans in one message.
const BATCH: usize = 512;
/// Rows read at a time.
const PAGE: usize = 500;
/// Notes of callers' traces kept until their rows are read.
const MOST_NOTES: usize = 16_384;
/// By then a decision's note is there.
const SETTLE: Duration = Duration::from_millis(250);
const ROUND: Duration = Duration::from_millis(750);
const METRICS_EVERY: Duration = Duration::from_secs(15);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const TIMEOUT: Duration = Duration::from_secs(5);
/// A stop waits no longer than this for the last spans.
const LAST_TIMEOUT: Duration = Duration::from_secs(2);
/// What is read of the collector's answer.
const MOST_ANSWER_BYTES: usize = 64 * 1024;
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// A caller's trace, from its `traceparent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    trace: u128,
    parent: u64,
    sampled: bool,
}

impl TraceContext {
    /// `00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01`, as W3C Trace Context writes it. Later versions may
    /// carry more; what does not look like one is as if it were not there.
    pub fn parse(header: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(header).ok()?;
        let mut parts = text.split('-');
        let (version, trace, parent, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let is_hex = |part: &str, length: usize| part.len() == length && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let well_formed = is_hex(version, 2) && is_hex(trace, 32) && is_hex(parent, 16) && is_hex(flags, 2) && version != "ff";
        if !well_formed || (version == "00" && parts.next().is_some()) {
            return None;
        }
        let trace = u128::from_str_radix(trace, 16).ok().filter(|trace| *trace != 0)?;
        let parent = u64::from_str_radix(parent, 16).ok().filter(|parent| *parent != 0)?;
        Some(Self { trace, parent, sampled: u8::from_str_radix(flags, 16).ok()? & 1 == 1 })
    }
}

/// What the door and the sender share.
#[derive(Debug, Default)]
pub struct Telemetry {
    notes: Mutex<VecDeque<(String, TraceContext)>>,
    exported: AtomicU64,
    dropped: AtomicU64,
}

impl Telemetry {
    /// Notes whose trace a decision belongs to. The log does not keep it; the first answer to a repeated request is noted already.
    pub fn note(&self, answered: &Answered, context: TraceContext) {
        let decision_id = answered.body.split_once("\"decision_id\":\"").and_then(|(_, rest)| rest.split_once('"'));
        if let Some((decision_id, _)) = decision_id.filter(|_| !(answered.replayed || answered.is_forgotten)) {
            self.note_id(decision_id, context);
        }
    }

    fn note_id(&self, decision_id: &str, context: TraceContext) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        if notes.len() >= MOST_NOTES {
            notes.pop_front();
        }
        notes.push_back((decision_id.to_owned(), context));
    }

    fn take_notes(&self) -> VecDeque<(String, TraceContext)> {
        std::mem::take(&mut *self.notes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn spans_exported(&self) -> u64 {
        self.exported.load(Ordering::Relaxed)
    }

    pub fn spans_dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// Sends until `stopping` turns true, then once more. What is decided from this call on is sent, also when the task that
/// runs it begins later.
pub fn export(
    engine: Arc<Engine>,
    telemetry: Arc<Telemetry>,
    settings: TelemetrySettings,
    mut stopping: watch::Receiver<bool>,
) -> Result<impl Future<Output = ()> + Send, String> {
    let committed = engine.store.committed();
    let mut exporter = Exporter {
        wire: Wire::new(&settings)?,
        after: engine.store.log_is_known().then(|| *committed.borrow()),
        notes: HashMap::new(),
        waiting: VecDeque::new(),
        totals: BTreeMap::new(),
        calls: ModelCalls::default(),
        began: nanos(crate::clock::system_now().as_millis()),
        resource: resource(&settings),
        next_metrics: Instant::now() + METRICS_EVERY,
        pause: Pause::default(),
        telemetry,
        engine,
    };
    tracing::info!(endpoint = shown_receiver(&settings.otlp_endpoint), "decisions are sent to an OpenTelemetry collector");
    Ok(async move {
        while !*stopping.borrow() {
            let newest = *committed.borrow();
            tokio::select! {
                () = tokio::time::sleep(SETTLE) => {}
                _ = stopping.changed() => {}
            }
            exporter.read(newest).await;
            exporter.send(TIMEOUT).await;
            tokio::select! {
                () = tokio::time::sleep(ROUND) => {}
                _ = stopping.changed() => {}
            }
        }
        let newest = *committed.borrow();
        exporter.read(newest).await;
        exporter.pause = Pause::default();
        exporter.next_metrics = Instant::now();
        exporter.send(LAST_TIMEOUT).await;
    })
}

/// How long to leave a collector alone that does not answer.
#[derive(Debug, Default)]
struct Pause {
    failures: u32,
    until: Option<Instant>,
}

impl Pause {
    fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
        self.until = Some(Instant::now() + LONGEST_PAUSE.min(Duration::from_secs(1 << self.failures.min(6))));
    }

    fn is_over(&self) -> bool {
        self.until.is_none_or(|until| Instant::now() >= until)
    }
}

struct Exporter {
    engine: Arc<Engine>,
    telemetry: Arc<Telemetry>,
    wire: Wire,
    /// `None` until it is known where the log ended when this began.
    after: Option<u64>,
    notes: HashMap<String, TraceContext>,
    waiting: VecDeque<Value>,
    /// Decisions since the start by guard, outcome and reason.
    totals: BTreeMap<(Named<GuardName>, Named<Ended>, Option<Named<Reason>>), u64>,
    calls: ModelCalls,
    began: String,
    resource: Value,
    next_metrics: Instant,
    pause: Pause,
}

impl Exporter {
    /// Everything up to a row becomes spans and totals.
    async fn read(&mut self, newest: u64) {
        self.notes.extend(self.telemetry.take_notes());
        if !self.engine.store.log_is_known() {
            return;
        }
        let mut after = *self.after.get_or_insert(newest);
        if !self.engine.store.leads("telemetry").await {
            // Another node sends what all of them decide.
            after = newest;
            self.notes.clear();
        }
        while after < newest {
            let Ok(rows) = self.engine.rows(RowFilter::default(), Order::OldestFirst, Some(after), PAGE).await else { return };
            let Some(last) = rows.last() else {
                after = newest;
                break;
            };
            after = last.seq;
            self.after = Some(after);
            for row in rows.iter().filter(|row| row.kind != Kind::Admin) {
                let key = (row.guard.clone(), row.outcome.clone(), row.reason.clone());
                *self.totals.entry(key).or_default() += 1;
                let spending = logged::shows(&row.as_ref()).spending;
                if let Some((spending, call)) = spending.as_ref().and_then(|spending| Some((spending, model_calls::settled(spending)?))) {
                    self.calls.see(call, spending);
                }
                let context = self.notes.remove(&row.id);
                // The caller decided that this trace is not looked at.
                if context.is_none_or(|context| context.sampled) {
                    self.waiting.push_back(span(row, context));
                }
            }
            let excess = self.waiting.len().saturating_sub(MOST_WAITING);
            self.waiting.drain(..excess);
            self.telemetry.dropped.fetch_add(excess as u64, Ordering::Relaxed);
        }
        self.after = Some(after);
        // Of rows that are never read (an erased session's), the notes stay; they go before they gather.
        if self.notes.len() > MOST_NOTES {
            self.notes.clear();
        }
    }

    async fn send(&mut self, timeout: Duration) {
        while self.pause.is_over() && !self.waiting.is_empty() {
            let count = self.waiting.len().min(BATCH);
            let spans: Vec<Value> = self.waiting.iter().take(count).cloned().collect();
            let body = json!({"resourceSpans": [{"resource": self.resource, "scopeSpans": [{"scope": scope(), "spans": spans}]}]});
            let delivery = self.wire.post("/v1/traces", &body, timeout).await;
            let rejected = match delivery {
                Delivery::Later => return self.pause.failed(),
                Delivery::Taken { rejected } => rejected.min(count as u64),
                Delivery::Refused => count as u64,
            };
            self.waiting.drain(..count);
            self.telemetry.dropped.fetch_add(rejected, Ordering::Relaxed);
            self.telemetry.exported.fetch_add(count as u64 - rejected, Ordering::Relaxed);
            self.pause = Pause::default();
        }
        if Instant::now() >= self.next_metrics && self.pause.is_over() {
            let body = self.metrics();
            match self.wire.post("/v1/metrics", &body, timeout).await {
                Delivery::Later => self.pause.failed(),
                Delivery::Taken { .. } | Delivery::Refused => self.next_metrics = Instant::now() + METRICS_EVERY,
            }
        }
    }

    fn metrics(&self) -> Value {
        let now = nanos(crate::clock::system_now().as_millis());
        let point = |attributes: Vec<Value>, value: u64| {
            // Whole numbers are texts in this format, which not every collector reads back; these are read by all.
            json!({"attributes": attributes, "startTimeUnixNano": self.began, "timeUnixNano": now, "asDouble": value as f64})
        };
        let decisions: Vec<Value> = self
            .totals
            .iter()
            .map(|((guard, outcome, reason), count)| {
                let mut attributes = vec![text("runguard.guard", guard.code()), text("runguard.outcome", outcome.code())];
                if let Some(reason) = reason {
                    attributes.push(text("runguard.reason", reason.code()));
                }
                point(attributes, *count)
            })
            .collect();
        let spans = [("exported", self.telemetry.spans_exported()), ("dropped", self.telemetry.spans_dropped())];
        let spans: Vec<Value> = spans.into_iter().map(|(result, count)| point(vec![text("runguard.result", result)], count)).collect();
        let store = &self.engine.store;
        let sum = |name: &str, about: &str, points: Vec<Value>| json!({"name": name, "description": about, "unit": "1", "sum": {"dataPoints": points, "aggregationTemporality": 2, "isMonotonic": true}});
        let gauge = |name: &str, about: &str, unit: &str, value: u64| json!({"name": name, "description": about, "unit": unit, "gauge": {"dataPoints": [point(Vec::new(), value)]}});
        let mut metrics = vec![
            sum("runguard.telemetry.spans", "Spans sent to the collector, or dropped.", spans),
            gauge("runguard.store.entries", "Sessions, endpoints and kept answers in memory.", "1", store.entries_in_memory() as u64),
            gauge("runguard.store.memory", "About the memory they take.", "By", store.bytes_in_memory() as u64),
            gauge("runguard.store.rows_behind_index", "Log rows not yet indexed.", "1", store.rows_behind()),
        ];
        if !decisions.is_empty() {
            metrics.insert(0, sum("runguard.decisions", "Decisions and records by guard, outcome and reason.", decisions));
        }
        metrics.extend(self.calls.metrics(&self.began, &now));
        json!({"resourceMetrics": [{"resource": self.resource, "scopeMetrics": [{"scope": scope(), "metrics": metrics}]}]})
    }
}

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Delivery {
    Taken {
        rejected: u64,
    },
    /// Nobody there, or too busy.
    Later,
    /// Sending it again would not help.
    Refused,
}

struct Wire {
    endpoint: String,
    headers: Vec<(String, String)>,
    client: reqwest::Client,
}

impl Wire {
    fn new(settings: &TelemetrySettings) -> Result<Self, String> {
        let endpoint = settings.otlp_endpoint.trim_end_matches('/').to_owned();
        let scheme = endpoint.split_once("://").map_or("https", |(scheme, _)| scheme);
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(trust_system(WithoutCertificates::for_scheme(scheme))?)
            .connect_timeout(CONNECT_TIMEOUT)
            // The headers hold keys.
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|problem| format!("cannot set up the HTTP client: {}", causes(&problem)))?;
        Ok(Self { endpoint, headers: headers(settings)?, client })
    }

    async fn post(&self, path: &str, body: &Value, timeout: Duration) -> Delivery {
        let mut request = self.client.post(format!("{}{path}", self.endpoint)).timeout(timeout);
        request = request.header("content-type", "application/json");
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        match request.body(body.to_string()).send().await {
            Ok(response) if response.status().is_success() => Delivery::Taken { rejected: rejected(&beginning(response).await) },
            Ok(response) if matches!(response.status().as_u16(), 429 | 502 | 503 | 504) => Delivery::Later,
            Ok(response) => {
                tracing::warn!(status = response.status().as_u16(), path, "the collector refuses what it is sent; it is dropped");
                Delivery::Refused
            }
            Err(error) => {
                tracing::debug!(error = causes(&error), "the collector does not answer");
                Delivery::Later
            }
        }
    }
}

/// As much of an answer as is worth reading.
async fn beginning(mut response: reqwest::Response) -> Vec<u8> {
    let mut answer = Vec::new();
    while let Ok(Some(piece)) = response.chunk().await
        && answer.len() + piece.len() <= MOST_ANSWER_BYTES
    {
        answer.extend_from_slice(&piece);
    }
    answer
}

/// `{"partialSuccess": {"rejectedSpans": "3"}}`, the number as text or as a number.
fn rejected(answer: &[u8]) -> u64 {
    let answer: Value = serde_json::from_slice(answer).unwrap_or_default();
    let count = &answer["partialSuccess"]["rejectedSpans"];
    count.as_u64().or_else(|| count.as_str()?.parse().ok()).unwrap_or(0)
}

/// `name=value,name=value` from the environment variable that the settings name: what is secret is in no file.
pub fn headers(settings: &TelemetrySettings) -> Result<Vec<(String, String)>, String> {
    let name = &settings.otlp_headers_env;
    if name.is_empty() {
        return Ok(Vec::new());
    }
    let text = std::env::var(name).map_err(|_| {
        format!("the environment variable {name} (`telemetry.otlp_headers_env`) is not set; set it, or take the setting out")
    })?;
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    Ok(pairs.map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned())).collect())
}

fn resource(settings: &TelemetrySettings) -> Value {
    json!({"attributes": [text("service.name", &settings.service_name), text("service.version", env!("CARGO_PKG_VERSION"))]})
}

fn scope() -> Value {
    json!({"name": "runguard", "version": env!("CARGO_PKG_VERSION")})
}

fn text(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

fn whole(key: &str, value: u64) -> Value {
    json!({"key": key, "value": {"intValue": value.to_string()}})
}

fn nanos(millis: i64) -> String {
    (i128::from(millis.max(0)) * 1_000_000).to_string()
}

/// What the guarded step is, in the words of the conventions for generative AI, and the attribute that names it.
fn operation(guard: Option<GuardName>) -> (&'static str, Option<&'static str>) {
    match guard.map(|guard| GuardEntry::of(guard).step) {
        Some(GuardedStep::Handover) => ("invoke_agent", Some("gen_ai.agent.name")),
        Some(GuardedStep::ToolCall) => ("execute_tool", Some("gen_ai.tool.name")),
        Some(GuardedStep::Retrieval) => ("retrieval", None),
        Some(GuardedStep::Question | GuardedStep::ModelCall) | None => ("chat", None),
    }
}

/// One decision. A decision is a moment: the span has a place and no length. One that settles a model call is that call's.
fn span(row: &Row, context: Option<TraceContext>) -> Value {
    let (operation, names) = operation(row.guard.known());
    let row_ref = row.as_ref();
    let spending = logged::shows(&row_ref).spending;
    let call = spending.as_ref().and_then(model_calls::settled);
    let mut attributes = vec![
        text("gen_ai.operation.name", call.map_or(operation, |call| &*call.operation)),
        text("gen_ai.conversation.id", &row.session),
        text("runguard.guard", row.guard.code()),
        text("runguard.kind", row.kind.code()),
        text("runguard.outcome", row.outcome.code()),
        text("runguard.decision_id", &row.id),
        text("runguard.tenant", &row.tenant),
        text("runguard.subject", &row.subject),
    ];
    if let Some(name) = names.filter(|_| !row.subject.is_empty()) {
        attributes.push(text(name, &row.subject));
    }
    if let Some(reason) = &row.reason {
        attributes.push(text("runguard.reason", reason.code()));
    }
    if let Some(spending) = &spending {
        if let Some(call) = call {
            attributes.extend(model_calls::attributes(call, spending));
        }
        if let Some(model) = &spending.model {
            attributes.push(text("gen_ai.request.model", model));
        }
        // Those of a parent, or of a scope, are others' too.
        let own_tokens = spending.spent_tokens.filter(|_| spending.account == Account::Own);
        attributes.extend(spending.act.map(|act| text("runguard.act", act.code())));
        attributes.extend(own_tokens.map(|tokens| whole("runguard.spent_tokens", tokens)));
        let figures = [("cost_usd", spending.cost_usd), ("spent_usd", spending.spent_usd), ("limit_usd", spending.limit_usd)];
        for (name, usd) in figures {
            attributes.extend(usd.map(|usd| json!({"key": format!("runguard.{name}"), "value": {"doubleValue": usd}})));
        }
    }
    let at = nanos(row.at);
    let began =
        call.and_then(|call| i64::try_from(call.millis?).ok()).map_or_else(|| at.clone(), |millis| nanos(row.at.saturating_sub(millis)));
    let model = spending.as_ref().and_then(|spending| spending.model.as_deref()).unwrap_or_default();
    // As the conventions have it: what was asked, and of which model. It is asked of another service.
    let (name, kind) = call.map_or_else(|| (format!("guard {}", row.guard), 1), |call| (format!("{} {model}", call.operation), 3));
    let mut span = json!({
        "traceId": format!("{:032x}", context.map_or_else(|| xxh3_128(row.id.as_bytes()).max(1), |context| context.trace)),
        "spanId": format!("{:016x}", xxh3_64(row.id.as_bytes()).max(1)),
        "name": name, "kind": kind, "startTimeUnixNano": began, "endTimeUnixNano": at,
        "attributes": attributes, "flags": 1,
    });
    if let Some(context) = context {
        span["parentSpanId"] = format!("{:016x}", context.parent).into();
    }
    span
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_callers_trace_is_read_as_the_standard_writes_it() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let context = TraceContext::parse(good.as_bytes()).unwrap();
        assert_eq!(
            (context.trace, context.parent, context.sampled),
            (0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736, 0x00f0_67aa_0ba9_02b7, true)
        );
        assert!(!TraceContext::parse(good.replace("-01", "-00").as_bytes()).unwrap().sampled);
        assert!(TraceContext::parse(good.replacen("00-", "01-", 1).as_bytes()).is_some());
        assert!(TraceContext::parse(format!("{}-more", good.replacen("00-", "01-", 1)).as_bytes()).is_some());
        for bad in [
            String::new(),
            format!("{good}-more"),
            good.to_uppercase(),
            good.replacen("00-", "ff-", 1),
            good.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            good.replace("00f067aa0ba902b7", &"0".repeat(16)),
            good.replace("b7-01", "b7"),
        ] {
            assert_eq!(TraceContext::parse(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn notes_are_bounded_and_the_oldest_go_first() {
        let telemetry = Telemetry::default();
        let context = TraceContext { trace: 1, parent: 2, sampled: true };
        for number in 0..=MOST_NOTES {
            telemetry.note_id(&number.to_string(), context);
        }
        let notes = telemetry.take_notes();
        assert_eq!((notes.len(), notes[0].0.as_str()), (MOST_NOTES, "1"));
        assert!(telemetry.take_notes().is_empty());
    }

    #[test]
    fn a_collector_that_fails_is_left_alone_longer_and_longer() {
        let mut pause = Pause::default();
        assert!(pause.is_over());
        let mut last = Duration::ZERO;
        for _ in 0..8 {
            pause.failed();
            let wait = pause.until.unwrap() - Instant::now();
            assert!(!pause.is_over() && wait + Duration::from_millis(50) >= last && wait <= LONGEST_PAUSE);
            last = wait;
        }
        assert!(last > Duration::from_secs(50));
    }

    #[test]
    fn a_variable_that_is_named_and_not_set_is_told() {
        let named = |name: &str| TelemetrySettings { otlp_headers_env: name.to_owned(), ..TelemetrySettings::default() };
        assert_eq!(headers(&named("")), Ok(Vec::new()));
        let problem = headers(&named("RUNGUARD_TEST_NO_SUCH_VARIABLE")).unwrap_err();
        assert!(problem.contains("RUNGUARD_TEST_NO_SUCH_VARIABLE (`telemetry.otlp_headers_env`) is not set"), "{problem}");
    }

    #[test]
    fn partly_refused_messages_are_counted() {
        assert_eq!(rejected(br#"{"partialSuccess":{"rejectedSpans":"3"}}"#), 3);
        assert_eq!(rejected(br#"{"partialSuccess":{"rejectedSpans":4}}"#), 4);
        assert_eq!((rejected(b"{}"), rejected(b"")), (0, 0));
    }
}
