//! The routes that are no guard's: the log, what is read out of it, circuits, alerts, settings.

use super::guard_routes::problems;
use super::json::json;
use super::log_schemas::{
    alerts_schema, budget_schema, circuits_schema, consumption_schema, described, guards_schema, list, maybe, object, overview_schema,
    put_aside_schema, ready_schema, runs_schema, session_list_schema, settings_schema, spend_schema, state_schema,
};
use crate::routes::insights::Show;
use crate::routes::query::Bucket;
use crate::routes::spend::MAX_NOTE_CHARS;
use runguard_core::breaker::Phase;
use runguard_core::row::{Kind, Outcome};
use runguard_core::{GuardName, Reason};
use runguard_guards::input::MAX_ID_CHARS;
use runguard_insight::insight;
use runguard_insight::insight::session_list::SessionSort;
use runguard_insight::insight::spend::{By, RunState, Sort};
use serde_json::Value;

fn preview_operation() -> Value {
    let time = json!({"type": ["string", "integer", "null"], "examples": ["7d", "2026-11-15T08:00:00Z"]});
    let name = |about: &str| json!({"type": ["string", "null"], "maxLength": MAX_ID_CHARS, "description": about});
    let counts = json!({"type": "object", "required": ["allowed", "would_block", "blocked"], "properties": {"allowed": {"type": "integer"}, "would_block": {"type": "integer"}, "blocked": {"type": "integer"}}});
    let body = json!({"type": "object", "required": ["guard"], "additionalProperties": false, "properties": {
        "guard": {"enum": GuardName::ALL.iter().map(|guard| guard.code()).collect::<Vec<_>>()},
        "settings": {"type": ["object", "null"], "description": "Changed settings, as they would stand below the guard's table.", "examples": [{"max_visits_per_bot": 3}]},
        "since": time, "until": time, "tenant": name("Another tenant than the key's own; needs a key of all tenants."), "subject": name("Count only what is about this."),
    }, "examples": [{"guard": "handoff", "settings": {"max_visits_per_bot": 3}, "since": "7d"}]});
    let changed = json!({"type": "object", "required": ["decision_id", "session_id", "subject", "before", "after", "reason"], "properties": {
        "decision_id": {"type": "string"}, "time": {"type": "string"}, "tenant": {"type": "string"}, "session_id": {"type": "string"}, "subject": {"type": "string"},
        "before": {"type": "string"}, "after": {"type": "string"}, "reason": {"type": ["string", "null"]}}});
    let schema = json!({"type": "object", "required": ["guard", "rows", "truncated", "before", "after", "changed_total", "changed", "inexact"], "properties": {
        "guard": {"type": "string"}, "tenant": {"type": ["string", "null"]}, "since": {"type": "string"}, "until": {"type": "string"},
        "rows": {"type": "integer", "description": "Decisions looked at."}, "warm_up_rows": {"type": "integer", "description": "Decisions before them, for the states they met."},
        "truncated": {"type": "boolean", "description": "There are more rows than are looked at; these are the newest."},
        "before": counts, "after": counts, "changed_total": {"type": "integer"}, "changed": {"type": "array", "maxItems": 50, "items": changed},
        "inexact": {"type": "array", "items": {"type": "string"}, "description": "What keeps it from being exact, with numbers."}}});
    let mut operation = operation(
        "log",
        "preview",
        "What changed settings would have done to the logged requests.",
        &[],
        (200, json_response("What would have changed.", &schema)),
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

/// One operation: its name, what it does, parameters, the good answer with its status, and the bad statuses.
pub(super) fn operation(tag: &str, id: &str, summary: &str, parameters: &[Value], good: (u16, Value), bad: &[u16]) -> Value {
    let mut responses = problems(bad);
    responses.insert(good.0.to_string(), good.1);
    json!({"operationId": id, "tags": [tag], "summary": summary, "parameters": parameters, "responses": responses})
}

pub(super) fn log_routes() -> Vec<(&'static str, Value)> {
    const READ: &[u16] = &[400, 401, 403, 422, 503];
    const FIND: &[u16] = &[400, 401, 403, 404, 422, 503];
    let decision = json!({"$ref": "#/components/schemas/Decision"});
    let circuit = json!({"$ref": "#/components/schemas/Circuit"});
    let cursor = maybe("string");
    let (text, whole) = (json!({"type": "string"}), json!({"type": "integer", "minimum": 0}));
    let in_path_like = |name: &str, about: &str, pattern: &str| json!({"name": name, "in": "path", "required": true, "description": about, "schema": {"type": "string", "minLength": 1, "maxLength": MAX_ID_CHARS, "pattern": pattern}});
    let in_path = |name: &str, about: &str| in_path_like(name, about, "^[A-Za-z0-9._:~-]+$");
    // As the guards take it.
    let session = in_path_like("session_id", "The session.", "[^\\s]");
    let tenant = query("tenant", "Another tenant than the key's own; needs a key of all tenants.", &json!({"type": "string"}));
    let list_schema = json!({"type": "object", "required": ["decisions", "next_cursor"], "properties": {"decisions": {"type": "array", "items": decision}, "next_cursor": cursor}});
    let mut page = json_response("A page.", &list_schema);
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
    let session_schema = json!({
        "type": "object",
        "required": ["session_id", "tenant", "counts", "counters", "budgets", "timeline", "next_cursor"],
        "properties": {
            "session_id": {"type": "string"}, "tenant": {"type": "string"},
            "first_seen": {"type": ["string", "null"], "description": "Of the decisions in this answer."}, "last_seen": {"type": ["string", "null"], "description": "Of the decisions in this answer."},
            "counts": described(object(&[("allowed", &whole), ("would_block", &whole), ("blocked", &whole)]), "Of the decisions in this answer; where `next_cursor` is no null there are more."),
            "counters": {"type": "array", "items": {"type": "object", "required": ["guard", "subject", "used", "ceiling", "window_seconds", "allowed_next", "reason", "retry_after_seconds"], "properties": {
                "guard": {"type": "string"}, "subject": {"type": "string"}, "used": {"type": "integer"}, "ceiling": {"type": "integer"},
                "window_seconds": {"type": "integer"}, "allowed_next": {"type": "boolean"}, "reason": {"type": ["string", "null"]}, "retry_after_seconds": {"type": ["integer", "null"]}}}},
            "budgets": described(list(&budget_schema("Which of them: its own by its name, mostly default; a scope that is the run's such as run/day.")), "What the session may spend, as it stands at this moment."),
            "timeline": {"type": "array", "items": decision}, "next_cursor": cursor,
        },
    });
    let counts = list(&object(&[("guard", &text), ("outcome", &text), ("reason", &maybe("string")), ("count", &whole)]));
    let stats_schema = object(&[
        ("since", &text),
        ("until", &text),
        ("bucket_seconds", &whole),
        ("totals", &counts),
        ("buckets", &list(&object(&[("start", &text), ("counts", &counts)]))),
    ]);
    let stats_parameters = [
        filters().into_iter().filter(|filter| ["guard", "tenant", "since", "until"].iter().any(|name| filter["name"] == *name)).collect(),
        vec![query("bucket", "minute, hour (default) or day.", &json!({"enum": Bucket::ALL.map(Bucket::code)}))],
    ]
    .concat();
    let insight_schema = json!({"type": "object", "required": ["key", "put_aside", "id", "title", "advice", "severity", "score", "guard", "subject", "setting", "evidence", "sessions", "saves"], "properties": {
        "key": {"type": "string", "description": "What this piece of advice is known by."}, "put_aside": put_aside_schema(),
        "id": {"type": "string", "description": "The kind of advice."}, "title": {"type": "string"}, "advice": {"type": "string", "description": "What to do, and why."},
        "severity": {"enum": insight::Severity::ALL}, "score": {"type": "number", "description": "What it is sorted by."},
        "guard": {"type": ["string", "null"]}, "subject": {"type": ["string", "null"], "description": "The flow it is about."},
        "setting": {"type": ["string", "null"], "description": "The setting to change, as a path in the settings file."},
        "evidence": {"type": "object", "additionalProperties": true, "description": "The numbers behind it."}, "sessions": {"type": "array", "items": {"type": "string"}, "description": "Sessions to look at."},
        "saves": {"type": "object", "required": ["operations", "usd"], "properties": {"operations": {"type": "integer"}, "usd": {"type": "number"}}}}});
    let insights_schema = json!({"type": "object", "required": ["since", "until", "behind_rows", "put_aside", "insights"], "properties": {
        "since": {"type": "string"}, "until": {"type": "string"}, "behind_rows": {"type": "integer", "description": "Decisions that are logged and not yet looked at."},
        "put_aside": {"type": "integer", "minimum": 0, "description": "Pieces of advice that are put aside; shown with `show=all`."},
        "insights": {"type": "array", "items": insight_schema}}});
    let advice_parameters = [
        filters().into_iter().filter(|filter| ["tenant", "since", "until"].iter().any(|name| filter["name"] == *name)).collect(),
        vec![query("show", "current (default): what is not put aside. all: that, too.", &json!({"enum": Show::CODES}))],
    ]
    .concat();
    let change_advice = |verb: &str, summary: &str| {
        let changed = object(&[("key", &text), ("tenant", &maybe("string")), ("put_aside", &put_aside_schema())]);
        let key = json!({"name": "key", "in": "path", "required": true, "description": "The advice's.", "schema": {"type": "string", "pattern": "^[0-9a-fA-F]{16}$"}});
        let parameters =
            [key, query("tenant", "In the list of this tenant; else in that which the caller sees without naming one.", &text)];
        operation("operations", &format!("insight_{verb}"), summary, &parameters, (200, json_response("How it stands.", &changed)), FIND)
    };
    let mut snooze_advice = change_advice("snooze", "Puts a piece of advice aside for a while.");
    snooze_advice["requestBody"] = json!({"required": false, "content": {"application/json": {"schema":
        {"type": "object", "properties": {"for": {"type": ["string", "null"], "description": "How long, such as 36h; 7d unless told.", "examples": ["7d"]}}, "additionalProperties": false}}}});
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
    let control_run = |verb: &str, summary: &str| {
        let changed = object(&[("run", &text), ("tenant", &text), ("state", &state_schema()), ("note", &maybe("string"))]);
        let parameters = [in_path("run", "The run."), tenant.clone()];
        operation("operations", &format!("run_{verb}"), summary, &parameters, (200, json_response("The run after it.", &changed)), FIND)
    };
    let mut stop_run = control_run("stop", "Blocks every further model call of a run, until it is resumed.");
    let note = json!({"type": ["string", "null"], "maxLength": MAX_NOTE_CHARS, "description": "Told to whoever is blocked."});
    stop_run["requestBody"] = json!({"required": false, "content": {"application/json": {"schema":
        {"type": "object", "properties": {"note": note}, "additionalProperties": false}}}});
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
    let status_schema = object(&[("status", &text)]);
    let text = |kind: &str, description: &str| json!({"description": description, "content": {kind: {"schema": {"type": "string"}}}});
    let control = |verb: &str, summary: &str| {
        let parameters = [in_path("endpoint_key", "The endpoint."), tenant.clone()];
        json!({"post": operation("operations", &format!("circuit_{verb}"), summary, &parameters, (200, json_response("The circuit after it.", &circuit)), FIND)})
    };
    let mut erase = operation(
        "operations",
        "erase_session",
        "Removes everything known of a session.",
        &[session.clone(), tenant.clone()],
        (
            200,
            json_response(
                "Gone, from every file.",
                &json!({"type": "object", "required": ["erased"], "properties": {"erased": {"const": true}, "log_entries": {"type": "integer"}}}),
            ),
        ),
        FIND,
    );
    erase["responses"]["202"] = json_response(
        "It has begun, and is finished by itself. `the log` in `pending`: nodes decide alone for it until the shared state and the log are there. Otherwise nothing shows it any more, but a process that reads an old state of a file keeps its bytes there, or another node has yet to confirm.",
        &json!({
            "type": "object",
            "required": ["erased", "pending", "message"],
            "properties": {
                "erased": {"const": false},
                "log_entries": {"type": "integer"},
                "pending": {"type": "array", "items": {"type": "string"}, "description": "`the log`, the files, or the nodes."},
                "message": {"type": "string"},
            },
        }),
    );
    let mut metrics = text("text/plain", "Metrics, in the text format 0.0.4 or, for those who ask for it, as OpenMetrics.");
    metrics["content"]["application/openmetrics-text"] = metrics["content"]["text/plain"].clone();
    vec![
        ("/v1/decisions", json!({"get": operation("log", "decisions", "The log, newest first.", &list_parameters, (200, page), READ)})),
        (
            "/v1/decisions/{decision_id}",
            json!({"get": operation("log", "decision", "One decision.", &[in_path("decision_id", "Its id.")], (200, json_response("The decision.", &decision)), FIND)}),
        ),
        (
            "/v1/sessions",
            json!({"get": operation("log", "sessions",
                "Sessions that were seen in a time (default the last 7 days), found by how their names begin, sorted, in pages. The 200,000 seen last are kept.",
                &sessions_parameters, (200, json_response("Sessions.", &session_list_schema())), READ)}),
        ),
        (
            "/v1/sessions/{session_id}",
            json!({
                "get": operation("log", "session", "A session: timeline, counters, what would be allowed next.", &[vec![session, tenant.clone()], paging(1000)].concat(), (200, json_response("The session.", &session_schema)), FIND),
                "delete": erase,
            }),
        ),
        (
            "/v1/stats",
            json!({"get": operation("log", "stats", "Decisions counted by guard, reason and time.", &stats_parameters, (200, json_response("Counts.", &stats_schema)), READ)}),
        ),
        (
            "/v1/insights",
            json!({"get": operation("log", "insights", "What the log advises, the weightiest first, each with its evidence; the last 7 days unless told.", &advice_parameters, (200, json_response("Advice.", &insights_schema)), READ)}),
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
                &consumption_parameters, (200, json_response("What was used.", &consumption_schema())), READ)}),
        ),
        (
            "/v1/overview",
            json!({"get": operation("log", "overview",
                "Everything a dashboard shows of a time (default the last day). Totals, series and reasons are exact to the minute; the other lists are of every hour the range touches.",
                &overview_parameters, (200, json_response("The overview.", &overview_schema())), READ)}),
        ),
        (
            "/v1/spend",
            json!({"get": operation("log", "spend",
                "What was spent on model calls, and how the budgets that many share stand. The last 7 days unless told; an hour belongs to the day it begins in.",
                &spend_parameters, (200, json_response("What was spent.", &spend_schema())), READ)}),
        ),
        (
            "/v1/runs",
            json!({"get": operation("log", "runs", "Runs that asked models, of every hour the range touches (default the last day), in pages.",
                &runs_parameters, (200, json_response("Runs.", &runs_schema())), READ)}),
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
                (200, json_response("Circuits.", &circuits_schema(&circuit))), READ)}),
        ),
        ("/v1/circuits/{endpoint_key}/open", control("open", "Block every call until reset.")),
        ("/v1/circuits/{endpoint_key}/close", control("close", "Let every call pass until reset.")),
        ("/v1/circuits/{endpoint_key}/reset", control("reset", "Back to closed and automatic, failures forgotten.")),
        (
            "/v1/alerts",
            json!({"get": operation("operations", "alerts", "Rules with what is firing, targets, messages that wait, were delivered, or were given up.", &[], (200, json_response("Alerts.", &alerts_schema())), READ)}),
        ),
        ("/v1/alerts/test", json!({"post": test_alerts()})),
        (
            "/v1/alerts/dead/{id}/retry",
            json!({"post": operation("operations", "retry_alert", "Puts a dead letter back into the queue.", &[in_path("id", "Its id.")],
                (200, json_response("It is tried again.", &json!({"type": "object", "required": ["queued"], "properties": {"queued": {"const": true}}}))), FIND)}),
        ),
        (
            "/v1/settings",
            json!({"get": operation("log", "settings", "The settings in force, each value with where it came from.", std::slice::from_ref(&tenant), (200, json_response("A tree; its leaves are values.", &settings_schema())), READ)}),
        ),
        ("/v1/preview", json!({"post": preview_operation()})),
        (
            "/v1/events",
            json!({"get": operation("log", "events", "Decisions as they happen (server-sent events; Last-Event-ID goes on where a stream ended).", &filters(), (200, text("text/event-stream", "A stream that does not end.")), &[400, 401, 403, 422, 429, 503])}),
        ),
        (
            "/healthz",
            json!({"get": operation("operations", "healthz", "The process answers.", &[], (200, json_response("Alive.", &status_schema)), &[])}),
        ),
        (
            "/readyz",
            json!({"get": operation("operations", "readyz", "The service can decide.", &[], (200, json_response("Ready.", &ready_schema())), &[503])}),
        ),
        (
            "/metrics",
            json!({"get": operation("operations", "metrics", "Prometheus metrics: of the whole service for a key with the role metrics or an admin of all tenants, of its own tenant for any other key that may read.", &[], (200, metrics), &[401, 403])}),
        ),
        (
            "/v1/guards",
            json!({"get": operation("operations", "guards", "Every guard with its routes and reasons, how requests end, what operators do, and what people call all of it.", &[], (200, json_response("The guards.", &guards_schema())), &[])}),
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

fn test_alerts() -> Value {
    let tested = json!({"type": "object", "required": ["target", "kind", "delivered", "problem"], "properties": {
        "target": {"type": "string"}, "kind": {"type": "string"}, "delivered": {"type": "boolean"}, "problem": {"type": ["string", "null"]}}});
    let schema = json!({"type": "object", "required": ["tested"], "properties": {"tested": {"type": "array", "items": tested}}});
    let mut operation = operation(
        "operations",
        "test_alerts",
        "Sends a test alert to one target or to all, and says how it went.",
        &[query("target", "Its name; without it all are tested.", &json!({"type": "string"}))],
        (200, json_response("How it went.", &schema)),
        &[400, 401, 403, 404, 422, 503],
    );
    let body = json!({"type": "object", "properties": {"target": {"type": ["string", "null"]}}, "additionalProperties": false});
    operation["requestBody"] = json!({"required": false, "content": {"application/json": {"schema": body}}});
    operation["description"] = json!("The message goes past the queue. A PagerDuty incident is resolved at once.");
    operation
}
