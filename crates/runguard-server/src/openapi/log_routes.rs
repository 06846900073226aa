//! The routes that are no guard's: the log, what is read out of it, circuits, alerts, settings.

use super::document::Schemas;
use super::guard_routes::problems;
use crate::openapi::ShownGuards;
use crate::routes::alerts::{self, Queued, ShownTests, TestAsked};
use crate::routes::circuits::{self, ShownCircuit, ShownCircuits};
use crate::routes::decisions::{ALL_KINDS, DEFAULT_LIMIT, FILTERS, Format, MAX_LIMIT, ORDERS, PAGED, Shown, ShownDecisions, codes};
use crate::routes::health::{Health, Readiness};
use crate::routes::insights::{self, ChangedAdvice, Show, ShownAdvice, SnoozeAsked};
use crate::routes::preview::{self, ShownPreview};
use crate::routes::query::{Bucket, TENANT};
use crate::routes::sessions::{self, BeingErased, Erased, ShownSession};
use crate::routes::settings::ShownSettings;
use crate::routes::spend::{self, ChangedRun, StopAsked};
use crate::routes::stats::{self, ShownStats};
use crate::routes::{consumption, overview};
use runguard_core::breaker::Phase;
use runguard_core::row::{Kind, Outcome};
use runguard_core::{GuardName, Reason};
use runguard_engine::alerts::ShownAlerts;
use runguard_guards::input::MAX_ID_CHARS;
use runguard_insight::insight::Overview;
use runguard_insight::insight::consumption::Consumption;
use runguard_insight::insight::session_list::{SessionList, SessionSort};
use runguard_insight::insight::spend::{By, RunState, Runs, Sort, Spent};
use schemars::JsonSchema;
use serde_json::{Map, Value, json};

fn preview_operation(schemas: &mut Schemas) -> Value {
    let name = |about: &str| json!({"type": ["string", "null"], "maxLength": MAX_ID_CHARS, "description": about});
    let fields = preview::ASKED.iter().map(|field| {
        let schema = match *field {
            "guard" => json!({"enum": codes(GuardName::ALL)}),
            "settings" => json!({"type": ["object", "null"], "description": "Changed settings, as they would stand below the guard's table.", "examples": [{"max_visits_per_bot": 3}]}),
            "since" | "until" => json!({"type": ["string", "integer", "null"], "examples": ["7d", "2026-11-15T08:00:00Z"]}),
            "tenant" => name(ANOTHER_TENANT),
            "subject" => name("Count only what is about this."),
            other => unreachable!("a preview takes `{other}`, and nothing says what that is"),
        };
        ((*field).to_owned(), schema)
    });
    let body = json!({
        "type": "object", "required": ["guard"], "additionalProperties": false, "properties": fields.collect::<Map<_, _>>(),
        "examples": [{"guard": "handoff", "settings": {"max_visits_per_bot": 3}, "since": "7d"}],
    });
    let mut operation = operation(
        "log",
        "preview",
        "What changed settings would have done to the logged requests.",
        &[],
        (200, answer::<ShownPreview>(schemas, "What would have changed.")),
        &[400, 401, 403, 422, 503],
    );
    operation["requestBody"] = json!({"required": true, "content": {"application/json": {"schema": body}}});
    operation
}

const ANOTHER_TENANT: &str = "Another tenant than the key's own; needs a key of all tenants.";

fn query(name: &str, about: &str, schema: &Value) -> Value {
    json!({"name": name, "in": "query", "description": about, "schema": schema})
}

/// One of these words. The first is meant where none is named.
fn chosen(all: &[&str]) -> Value {
    json!({"enum": all, "default": all.first()})
}

/// The parameters of a route, by the names that its handler takes: those that are its `own`, and else what they are everywhere.
fn parameters(names: &[&str], own: &[Value]) -> Vec<Value> {
    let find = |name: &&str| own.iter().find(|own| own["name"] == **name).cloned().unwrap_or_else(|| parameter(name));
    assert!(own.iter().all(|own| names.iter().any(|name| own["name"] == *name)), "what no handler takes: {own:?}, {names:?}");
    names.iter().map(find).collect()
}

fn parameter(name: &str) -> Value {
    let text = json!({"type": "string"});
    let time = json!({"type": "string", "examples": ["2026-11-15T08:00:00Z", "24h"]});
    match name {
        "guard" => query(name, "Of this guard.", &json!({"enum": codes(GuardName::ALL)})),
        "reason" => query(name, "With this reason.", &json!({"enum": codes(Reason::ALL)})),
        "session" => query(
            name,
            "Of this session. A key of all tenants names its `tenant`, too; an event stream follows it in all tenants otherwise.",
            &text,
        ),
        "tenant" => query(name, "Of this tenant; needs a key of all tenants unless it is the key's own.", &text),
        "outcome" => query(name, "Ended so.", &json!({"enum": codes(Outcome::ALL)})),
        "kind" => query(name, "Of this kind.", &chosen(&[codes(Kind::ALL).as_slice(), &[ALL_KINDS]].concat())),
        "since" => query(name, "From then on: RFC 3339, Unix milliseconds, or how long ago (15m, 24h, 7d).", &time),
        "until" => query(name, "Before then.", &time),
        "limit" => rows_at_most(DEFAULT_LIMIT),
        "cursor" => query(name, "The next_cursor of the page before.", &json!({"type": "string", "pattern": "^[0-9]{1,18}$"})),
        "order" => query(name, "desc: newest first.", &chosen(&ORDERS)),
        "format" => query(
            name,
            "Unless told, what `Accept` asks for, else json. The next cursor is in the header x-next-cursor too.",
            &json!({"enum": Format::ALL.map(Format::code)}),
        ),
        "bucket" => query(name, "Steps of the series.", &json!({"enum": Bucket::ALL.map(Bucket::code)})),
        "time_zone" => query(name, "Whose days and weeks, such as Europe/Berlin; else that of the budgets.", &text),
        "prefix" => query(name, "What the names begin with.", &text),
        other => unreachable!("a handler takes `{other}`, and nothing says what that is"),
    }
}

/// `usually`: without a word on it.
fn rows_at_most(usually: usize) -> Value {
    let schema = json!({"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": usually});
    query("limit", "Entries of a page, at the most.", &schema)
}

fn json_response(description: &str, schema: &Value) -> Value {
    json!({"description": description, "content": {"application/json": {"schema": schema}}})
}

/// What this type is written out as.
fn answer<T: JsonSchema>(schemas: &mut Schemas, description: &str) -> Value {
    json_response(description, &schemas.answer::<T>())
}

/// A body that may be left out.
fn may_say<T: JsonSchema>(schemas: &mut Schemas) -> Value {
    json!({"required": false, "content": {"application/json": {"schema": schemas.request::<T>()}}})
}

/// One operation: its name, what it does, parameters, the good answer with its status, and the bad statuses.
pub(super) fn operation(tag: &str, id: &str, summary: &str, parameters: &[Value], good: (u16, Value), bad: &[u16]) -> Value {
    let mut responses = problems(bad);
    responses.insert(good.0.to_string(), good.1);
    json!({"operationId": id, "tags": [tag], "summary": summary, "parameters": parameters, "responses": responses})
}

pub(super) fn log_routes(schemas: &mut Schemas) -> Vec<(&'static str, Value)> {
    const READ: &[u16] = &[400, 401, 403, 422, 503];
    const FIND: &[u16] = &[400, 401, 403, 404, 422, 503];
    let text = json!({"type": "string"});
    let in_path_like = |name: &str, about: &str, pattern: &str| json!({"name": name, "in": "path", "required": true, "description": about, "schema": {"type": "string", "minLength": 1, "maxLength": MAX_ID_CHARS, "pattern": pattern}});
    let in_path = |name: &str, about: &str| in_path_like(name, about, "^[A-Za-z0-9._:~-]+$");
    // As the guards take it.
    let session = in_path_like("session_id", "The session.", "[^\\s]");
    let tenant = query("tenant", ANOTHER_TENANT, &text);
    let mut page = answer::<ShownDecisions<'_>>(schemas, "A page.");
    page["content"]["application/x-ndjson"] = json!({"schema": {"type": "string"}});
    page["content"]["text/csv"] = json!({"schema": {"type": "string"}});
    let by_hour = query("bucket", "Steps of the series.", &json!({"enum": Bucket::ALL.map(Bucket::code), "default": Bucket::Hour.code()}));
    let by_length = query(
        "bucket",
        "Steps of the series: minute (unless told, up to 3 hours), hour (up to 14 days) or day.",
        &json!({"enum": Bucket::ALL.map(Bucket::code)}),
    );
    let show = query("show", "current: what is not put aside. all: that, too.", &chosen(&Show::CODES));
    let changed_advice = answer::<ChangedAdvice>(schemas, "How it stands.");
    let change_advice = |verb: &str, summary: &str| {
        let key = json!({"name": "key", "in": "path", "required": true, "description": "The advice's.", "schema": {"type": "string", "pattern": "^[0-9a-fA-F]{16}$"}});
        let parameters =
            [key, query("tenant", "In the list of this tenant; else in that which the caller sees without naming one.", &text)];
        operation("operations", &format!("insight_{verb}"), summary, &parameters, (200, changed_advice.clone()), FIND)
    };
    let mut snooze_advice = change_advice("snooze", "Puts a piece of advice aside for a while.");
    snooze_advice["requestBody"] = may_say::<SnoozeAsked>(schemas);
    let groups = By::ALL.map(By::code).join(", ");
    let by = query(
        "by",
        &format!("What sums are made by, with commas between them: {groups}."),
        &json!({"type": "string", "default": By::Day.code()}),
    );
    let state = query("state", "Only those that are so.", &json!({"enum": RunState::ALL.map(RunState::code)}));
    let sorted = |all: &[&str]| query("sort", "By what, the most first.", &chosen(all));
    let changed_run = answer::<ChangedRun>(schemas, "The run after it.");
    let control_run = |verb: &str, summary: &str| {
        let parameters = [vec![in_path("run", "The run.")], parameters(TENANT, std::slice::from_ref(&tenant))].concat();
        operation("operations", &format!("run_{verb}"), summary, &parameters, (200, changed_run.clone()), FIND)
    };
    let mut stop_run = control_run("stop", "Blocks every further model call of a run, until it is resumed.");
    stop_run["requestBody"] = may_say::<StopAsked>(schemas);
    let text = |kind: &str, description: &str| json!({"description": description, "content": {kind: {"schema": {"type": "string"}}}});
    let circuit = answer::<ShownCircuit>(schemas, "The circuit after it.");
    let control = |verb: &str, summary: &str| {
        let parameters = [vec![in_path("endpoint_key", "The endpoint.")], parameters(TENANT, std::slice::from_ref(&tenant))].concat();
        json!({"post": operation("operations", &format!("circuit_{verb}"), summary, &parameters, (200, circuit.clone()), FIND)})
    };
    let mut erase = operation(
        "operations",
        "erase_session",
        "Removes everything known of a session.",
        &[session.clone(), tenant.clone()],
        (200, answer::<Erased>(schemas, "Gone, from every file.")),
        FIND,
    );
    erase["responses"]["202"] = answer::<BeingErased>(
        schemas,
        "It has begun, and is finished by itself. `the log` in `pending`: nodes decide alone for it until the shared state and the log are there. Otherwise nothing shows it any more, but a process that reads an old state of a file keeps its bytes there, or another node has yet to confirm.",
    );
    let mut metrics = text("text/plain", "Metrics, in the text format 0.0.4 or, for those who ask for it, as OpenMetrics.");
    metrics["content"]["application/openmetrics-text"] = metrics["content"]["text/plain"].clone();
    vec![
        (
            "/v1/decisions",
            json!({"get": operation("log", "decisions", "The log, newest first.", &parameters(&[FILTERS, PAGED].concat(), &[]), (200, page), READ)}),
        ),
        (
            "/v1/decisions/{decision_id}",
            json!({"get": operation("log", "decision", "One decision.", &[in_path("decision_id", "Its id.")], (200, answer::<Shown<'_>>(schemas, "The decision.")), FIND)}),
        ),
        (
            "/v1/sessions",
            json!({"get": operation("log", "sessions",
                "Sessions that were seen in a time (default the last 7 days), found by how their names begin, sorted, in pages. The 200,000 seen last are kept.",
                &parameters(sessions::ASKED, &[sorted(&SessionSort::ALL.map(SessionSort::code))]), (200, answer::<SessionList>(schemas, "Sessions.")), READ)}),
        ),
        (
            "/v1/sessions/{session_id}",
            json!({
                "get": operation("log", "session", "A session: timeline, counters, what would be allowed next.", &[vec![session], parameters(sessions::ASKED_OF_ONE, &[tenant.clone(), rows_at_most(MAX_LIMIT)])].concat(), (200, answer::<ShownSession<'_>>(schemas, "The session.")), FIND),
                "delete": erase,
            }),
        ),
        (
            "/v1/stats",
            json!({"get": operation("log", "stats", "Decisions counted by guard, reason and time.", &parameters(stats::ASKED, &[by_hour]), (200, answer::<ShownStats>(schemas, "Counts.")), READ)}),
        ),
        (
            "/v1/insights",
            json!({"get": operation("log", "insights", "What the log advises, the weightiest first, each with its evidence; the last 7 days unless told.", &parameters(insights::ASKED, &[show]), (200, answer::<ShownAdvice>(schemas, "Advice.")), READ)}),
        ),
        (
            "/v1/insights/{key}/dismiss",
            json!({"post": change_advice("dismiss", "Puts a piece of advice aside, until somebody restores it.")}),
        ),
        ("/v1/insights/{key}/snooze", json!({"post": snooze_advice})),
        ("/v1/insights/{key}/restore", json!({"post": change_advice("restore", "Shows a piece of advice again that was put aside.")})),
        (
            "/v1/consumption",
            json!({"get": operation("log", "consumption",
                "What was used: operations and credits by bot (tenant), step and day, AI steps by conversation and week. The last 28 days unless told; an hour belongs to the day it begins in.",
                &parameters(consumption::ASKED, &[]), (200, answer::<Consumption>(schemas, "What was used.")), READ)}),
        ),
        (
            "/v1/overview",
            json!({"get": operation("log", "overview",
                "Everything a dashboard shows of a time (default the last day). Totals, series and reasons are exact to the minute; the other lists are of every hour the range touches.",
                &parameters(overview::ASKED, &[by_length]), (200, answer::<Overview>(schemas, "The overview.")), READ)}),
        ),
        (
            "/v1/spend",
            json!({"get": operation("log", "spend",
                "What was spent on model calls, and how the budgets that many share stand. The last 7 days unless told; an hour belongs to the day it begins in.",
                &parameters(spend::ASKED, &[by]), (200, answer::<Spent>(schemas, "What was spent.")), READ)}),
        ),
        (
            "/v1/runs",
            json!({"get": operation("log", "runs", "Runs that asked models, of every hour the range touches (default the last day), in pages.",
                &parameters(spend::ASKED_OF_RUNS, &[state, sorted(&Sort::ALL.map(Sort::code))]), (200, answer::<Runs>(schemas, "Runs.")), READ)}),
        ),
        ("/v1/runs/{run}/stop", json!({"post": stop_run})),
        (
            "/v1/runs/{run}/resume",
            json!({"post": control_run("resume", "Lets a run go on, whatever it was stopped for: by hand, or because it got nowhere.")}),
        ),
        (
            "/v1/circuits",
            json!({"get": operation("log", "circuits", "The circuits of the endpoints, by tenant and endpoint, in pages; and how many there are in which phase.",
                &parameters(circuits::ASKED, &[
                    query("endpoint", "Only this endpoint, of the key's own tenant or the one named; a key of all tenants names one.", &json!({"type": "string"})),
                    query("phase", "Only those in this phase.", &json!({"enum": Phase::ALL})),
                    query("cursor", "The next_cursor of the page before.", &json!({"type": "string", "pattern": "^([0-9a-f]{2})+$"})),
                ]),
                (200, answer::<ShownCircuits>(schemas, "Circuits.")), READ)}),
        ),
        ("/v1/circuits/{endpoint_key}/open", control("open", "Block every call until reset.")),
        ("/v1/circuits/{endpoint_key}/close", control("close", "Let every call pass until reset.")),
        ("/v1/circuits/{endpoint_key}/reset", control("reset", "Back to closed and automatic, failures forgotten.")),
        (
            "/v1/alerts",
            json!({"get": operation("operations", "alerts", "Rules with what is firing, targets, messages that wait, were delivered, or were given up.", &[], (200, answer::<ShownAlerts>(schemas, "Alerts.")), READ)}),
        ),
        ("/v1/alerts/test", json!({"post": test_alerts(schemas)})),
        (
            "/v1/alerts/dead/{id}/retry",
            json!({"post": operation("operations", "retry_alert", "Puts a dead letter back into the queue.", &[in_path("id", "Its id.")],
                (200, answer::<Queued>(schemas, "It is tried again.")), FIND)}),
        ),
        (
            "/v1/settings",
            json!({"get": operation("log", "settings", "The settings in force, each value with where it came from.", &parameters(TENANT, std::slice::from_ref(&tenant)), (200, answer::<ShownSettings>(schemas, "A tree; its leaves are values.")), READ)}),
        ),
        ("/v1/preview", json!({"post": preview_operation(schemas)})),
        (
            "/v1/events",
            json!({"get": operation("log", "events", "Decisions as they happen (server-sent events; Last-Event-ID goes on where a stream ended).", &parameters(FILTERS, &[]), (200, text("text/event-stream", "A stream that does not end.")), &[400, 401, 403, 422, 429, 503])}),
        ),
        (
            "/healthz",
            json!({"get": operation("operations", "healthz", "The process answers.", &[], (200, answer::<Health>(schemas, "Alive.")), &[])}),
        ),
        (
            "/readyz",
            json!({"get": operation("operations", "readyz", "The service can decide.", &[], (200, answer::<Readiness>(schemas, "Ready.")), &[503])}),
        ),
        (
            "/metrics",
            json!({"get": operation("operations", "metrics", "Prometheus metrics: of the whole service for a key with the role metrics or an admin of all tenants, of its own tenant for any other key that may read.", &[], (200, metrics), &[401, 403])}),
        ),
        (
            "/v1/guards",
            json!({"get": operation("operations", "guards", "Every guard with its routes and reasons, how requests end, what operators do, and what people call all of it.", &[], (200, answer::<ShownGuards>(schemas, "The guards.")), &[])}),
        ),
        (
            "/openapi.json",
            json!({"get": operation("operations", "openapi", "This document.", &[], (200, json_response("OpenAPI 3.1.", &json!({"type": "object"}))), &[])}),
        ),
        (
            "/docs",
            json!({"get": operation("operations", "docs", "This document, readable.", &[], (200, text("text/html", "A page.")), &[])}),
        ),
        (
            "/docs/problems/{kind}",
            json!({"get": operation("operations", "problem", "What a kind of problem means, and what to do about it.", &[in_path("kind", "The last part of a problem's `type`.")], (200, text("text/html", "A page.")), &[404])}),
        ),
        ("/", json!({"get": operation("operations", "dashboard", "The dashboard.", &[], (200, text("text/html", "A page.")), &[])})),
        (
            "/dashboard/{file}",
            json!({"get": operation("operations", "dashboard_file", "A file of the dashboard.", &[in_path("file", "Its name.")], (200, text("text/javascript", "The file.")), &[404])}),
        ),
    ]
}

fn test_alerts(schemas: &mut Schemas) -> Value {
    let mut operation = operation(
        "operations",
        "test_alerts",
        "Sends a test alert to one target or to all, and says how it went.",
        &parameters(alerts::ASKED, &[query("target", "Its name; without it all are tested.", &json!({"type": "string"}))]),
        (200, answer::<ShownTests>(schemas, "How it went.")),
        &[400, 401, 403, 404, 422, 503],
    );
    operation["requestBody"] = may_say::<TestAsked>(schemas);
    operation["description"] = json!("The message goes past the queue. A PagerDuty incident is resolved at once.");
    operation
}
