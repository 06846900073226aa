//! The routes that are no guard's: the log, what is read out of it, circuits, alerts, settings.

use super::document::Schemas;
use super::guard_routes::problems;
use crate::openapi::ShownGuards;
use crate::routes::alerts::{Queued, ShownTests, TestAsked};
use crate::routes::circuits::{ShownCircuit, ShownCircuits};
use crate::routes::decisions::{Shown, ShownDecisions};
use crate::routes::health::{Health, Readiness};
use crate::routes::insights::{ChangedAdvice, Show, ShownAdvice, SnoozeAsked};
use crate::routes::preview::ShownPreview;
use crate::routes::query::Bucket;
use crate::routes::sessions::{BeingErased, Erased, ShownSession};
use crate::routes::settings::ShownSettings;
use crate::routes::spend::{ChangedRun, StopAsked};
use crate::routes::stats::ShownStats;
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
use serde_json::{Value, json};

fn preview_operation(schemas: &mut Schemas) -> Value {
    let time = json!({"type": ["string", "integer", "null"], "examples": ["7d", "2026-11-15T08:00:00Z"]});
    let name = |about: &str| json!({"type": ["string", "null"], "maxLength": MAX_ID_CHARS, "description": about});
    let body = json!({"type": "object", "required": ["guard"], "additionalProperties": false, "properties": {
        "guard": {"enum": GuardName::ALL.iter().map(|guard| guard.code()).collect::<Vec<_>>()},
        "settings": {"type": ["object", "null"], "description": "Changed settings, as they would stand below the guard's table.", "examples": [{"max_visits_per_bot": 3}]},
        "since": time, "until": time, "tenant": name("Another tenant than the key's own; needs a key of all tenants."), "subject": name("Count only what is about this."),
    }, "examples": [{"guard": "handoff", "settings": {"max_visits_per_bot": 3}, "since": "7d"}]});
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

fn query(name: &str, about: &str, schema: &Value) -> Value {
    json!({"name": name, "in": "query", "description": about, "schema": schema})
}

fn filters() -> Vec<Value> {
    let codes = |codes: Vec<&str>| json!({"enum": codes});
    let time = json!({"type": "string", "examples": ["2026-11-15T08:00:00Z", "24h"]});
    vec![
        query("guard", "Of this guard.", &codes(GuardName::ALL.iter().map(|guard| guard.code()).collect())),
        query("reason", "With this reason.", &codes(Reason::ALL.iter().map(|reason| reason.code()).collect())),
        query(
            "session",
            "Of this session. A key of all tenants names its `tenant`, too; an event stream follows it in all tenants otherwise.",
            &json!({"type": "string"}),
        ),
        query("tenant", "Of this tenant; needs a key of all tenants unless it is the key's own.", &json!({"type": "string"})),
        query("outcome", "Ended so.", &codes(Outcome::ALL.iter().map(|outcome| outcome.code()).collect())),
        query("kind", "check (default), record, admin or all.", &codes(Kind::ALL.iter().map(|kind| kind.code()).chain(["all"]).collect())),
        query("since", "From then on: RFC 3339, Unix milliseconds, or how long ago (15m, 24h, 7d).", &time),
        query("until", "Before then.", &time),
    ]
}

/// `default`: rows without a word on it.
fn paging(default: usize) -> Vec<Value> {
    vec![
        query("limit", "Rows, at most 1000.", &json!({"type": "integer", "minimum": 1, "maximum": 1000, "default": default})),
        query("cursor", "The next_cursor of the page before.", &json!({"type": "string", "pattern": "^[0-9]{1,18}$"})),
    ]
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
    let tenant = query("tenant", "Another tenant than the key's own; needs a key of all tenants.", &json!({"type": "string"}));
    let mut page = answer::<ShownDecisions<'_>>(schemas, "A page.");
    page["content"]["application/x-ndjson"] = json!({"schema": {"type": "string"}});
    page["content"]["text/csv"] = json!({"schema": {"type": "string"}});
    let list_parameters = [
        filters(),
        paging(100),
        vec![
            query("order", "desc (newest first, default) or asc.", &json!({"enum": ["desc", "asc"]})),
            query(
                "format",
                "json (default), ndjson or csv. The next cursor is in the header x-next-cursor too.",
                &json!({"enum": ["json", "ndjson", "csv"]}),
            ),
        ],
    ]
    .concat();
    let stats_parameters = [
        filters().into_iter().filter(|filter| ["guard", "tenant", "since", "until"].iter().any(|name| filter["name"] == *name)).collect(),
        vec![query("bucket", "minute, hour (default) or day.", &json!({"enum": Bucket::ALL.map(Bucket::code)}))],
    ]
    .concat();
    let advice_parameters = [
        filters().into_iter().filter(|filter| ["tenant", "since", "until"].iter().any(|name| filter["name"] == *name)).collect(),
        vec![query("show", "current (default): what is not put aside. all: that, too.", &json!({"enum": Show::CODES}))],
    ]
    .concat();
    let changed_advice = answer::<ChangedAdvice>(schemas, "How it stands.");
    let change_advice = |verb: &str, summary: &str| {
        let key = json!({"name": "key", "in": "path", "required": true, "description": "The advice's.", "schema": {"type": "string", "pattern": "^[0-9a-fA-F]{16}$"}});
        let parameters =
            [key, query("tenant", "In the list of this tenant; else in that which the caller sees without naming one.", &text)];
        operation("operations", &format!("insight_{verb}"), summary, &parameters, (200, changed_advice.clone()), FIND)
    };
    let mut snooze_advice = change_advice("snooze", "Puts a piece of advice aside for a while.");
    snooze_advice["requestBody"] = may_say::<SnoozeAsked>(schemas);
    let insights_parameters: Vec<Value> =
        filters().into_iter().filter(|filter| ["tenant", "since", "until"].iter().any(|name| filter["name"] == *name)).collect();
    let consumption_parameters = [
        insights_parameters.clone(),
        vec![query("time_zone", "Whose days and weeks, such as Europe/Berlin; else that of the budgets.", &text)],
    ]
    .concat();
    let groups = By::ALL.map(By::code).join(", ");
    let spend_parameters = [
        consumption_parameters.clone(),
        vec![query("by", &format!("What sums are made by, with commas between them: {groups}. Days unless told."), &text)],
    ]
    .concat();
    let runs_parameters = [
        insights_parameters.clone(),
        vec![
            query("prefix", "What the names of the runs begin with.", &text),
            query("state", "Only those that are so.", &json!({"enum": RunState::ALL.map(RunState::code)})),
            query(
                "sort",
                "By what, the most first: last_seen (default), usd, calls, steps, refused.",
                &json!({"enum": Sort::ALL.map(Sort::code)}),
            ),
        ],
        paging(100),
    ]
    .concat();
    let sessions_parameters = [
        insights_parameters.clone(),
        vec![
            query("prefix", "What the names of the sessions begin with.", &text),
            query(
                "sort",
                "By what, the most first: last_seen (default), blocked, usd, decisions.",
                &json!({"enum": SessionSort::ALL.map(SessionSort::code)}),
            ),
        ],
        paging(100),
    ]
    .concat();
    let changed_run = answer::<ChangedRun>(schemas, "The run after it.");
    let control_run = |verb: &str, summary: &str| {
        let parameters = [in_path("run", "The run."), tenant.clone()];
        operation("operations", &format!("run_{verb}"), summary, &parameters, (200, changed_run.clone()), FIND)
    };
    let mut stop_run = control_run("stop", "Blocks every further model call of a run, until it is resumed.");
    stop_run["requestBody"] = may_say::<StopAsked>(schemas);
    let overview_parameters = [
        filters()
            .into_iter()
            .filter(|filter| ["guard", "reason", "tenant", "since", "until"].iter().any(|name| filter["name"] == *name))
            .collect(),
        vec![query(
            "bucket",
            "Steps of the series: minute (default up to 3 hours), hour (up to 14 days) or day.",
            &json!({"enum": Bucket::ALL.map(Bucket::code)}),
        )],
    ]
    .concat();
    let text = |kind: &str, description: &str| json!({"description": description, "content": {kind: {"schema": {"type": "string"}}}});
    let circuit = answer::<ShownCircuit>(schemas, "The circuit after it.");
    let control = |verb: &str, summary: &str| {
        let parameters = [in_path("endpoint_key", "The endpoint."), tenant.clone()];
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
        ("/v1/decisions", json!({"get": operation("log", "decisions", "The log, newest first.", &list_parameters, (200, page), READ)})),
        (
            "/v1/decisions/{decision_id}",
            json!({"get": operation("log", "decision", "One decision.", &[in_path("decision_id", "Its id.")], (200, answer::<Shown<'_>>(schemas, "The decision.")), FIND)}),
        ),
        (
            "/v1/sessions",
            json!({"get": operation("log", "sessions",
                "Sessions that were seen in a time (default the last 7 days), found by how their names begin, sorted, in pages. The 200,000 seen last are kept.",
                &sessions_parameters, (200, answer::<SessionList>(schemas, "Sessions.")), READ)}),
        ),
        (
            "/v1/sessions/{session_id}",
            json!({
                "get": operation("log", "session", "A session: timeline, counters, what would be allowed next.", &[vec![session, tenant.clone()], paging(1000)].concat(), (200, answer::<ShownSession<'_>>(schemas, "The session.")), FIND),
                "delete": erase,
            }),
        ),
        (
            "/v1/stats",
            json!({"get": operation("log", "stats", "Decisions counted by guard, reason and time.", &stats_parameters, (200, answer::<ShownStats>(schemas, "Counts.")), READ)}),
        ),
        (
            "/v1/insights",
            json!({"get": operation("log", "insights", "What the log advises, the weightiest first, each with its evidence; the last 7 days unless told.", &advice_parameters, (200, answer::<ShownAdvice>(schemas, "Advice.")), READ)}),
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
                &consumption_parameters, (200, answer::<Consumption>(schemas, "What was used.")), READ)}),
        ),
        (
            "/v1/overview",
            json!({"get": operation("log", "overview",
                "Everything a dashboard shows of a time (default the last day). Totals, series and reasons are exact to the minute; the other lists are of every hour the range touches.",
                &overview_parameters, (200, answer::<Overview>(schemas, "The overview.")), READ)}),
        ),
        (
            "/v1/spend",
            json!({"get": operation("log", "spend",
                "What was spent on model calls, and how the budgets that many share stand. The last 7 days unless told; an hour belongs to the day it begins in.",
                &spend_parameters, (200, answer::<Spent>(schemas, "What was spent.")), READ)}),
        ),
        (
            "/v1/runs",
            json!({"get": operation("log", "runs", "Runs that asked models, of every hour the range touches (default the last day), in pages.",
                &runs_parameters, (200, answer::<Runs>(schemas, "Runs.")), READ)}),
        ),
        ("/v1/runs/{run}/stop", json!({"post": stop_run})),
        (
            "/v1/runs/{run}/resume",
            json!({"post": control_run("resume", "Lets a run go on, whatever it was stopped for: by hand, or because it got nowhere.")}),
        ),
        (
            "/v1/circuits",
            json!({"get": operation("log", "circuits", "The circuits of the endpoints, by tenant and endpoint, in pages; and how many there are in which phase.",
                &[
                    tenant.clone(),
                    query("endpoint", "Only this endpoint, of the key's own tenant or the one named; a key of all tenants names one.", &json!({"type": "string"})),
                    query("phase", "Only those in this phase.", &json!({"enum": Phase::ALL})),
                    query("limit", "Circuits of a page (default 100).", &json!({"type": "integer", "minimum": 1, "maximum": 1000})),
                    query("cursor", "The next_cursor of the page before.", &json!({"type": "string", "pattern": "^([0-9a-f]{2})+$"})),
                ],
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
            json!({"get": operation("log", "settings", "The settings in force, each value with where it came from.", std::slice::from_ref(&tenant), (200, answer::<ShownSettings>(schemas, "A tree; its leaves are values.")), READ)}),
        ),
        ("/v1/preview", json!({"post": preview_operation(schemas)})),
        (
            "/v1/events",
            json!({"get": operation("log", "events", "Decisions as they happen (server-sent events; Last-Event-ID goes on where a stream ended).", &filters(), (200, text("text/event-stream", "A stream that does not end.")), &[400, 401, 403, 422, 429, 503])}),
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
        &[query("target", "Its name; without it all are tested.", &json!({"type": "string"}))],
        (200, answer::<ShownTests>(schemas, "How it went.")),
        &[400, 401, 403, 404, 422, 503],
    );
    operation["requestBody"] = may_say::<TestAsked>(schemas);
    operation["description"] = json!("The message goes past the queue. A PagerDuty incident is resolved at once.");
    operation
}
