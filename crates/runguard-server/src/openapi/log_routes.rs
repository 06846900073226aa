//! The routes that are no guard's: the log, what is read out of it, circuits, alerts, settings.

use super::guard_routes::problems;
use super::json::json;
use crate::routes::health::CLUSTER_WARNINGS;
use crate::routes::insights::Show;
use crate::routes::query::Bucket;
use crate::routes::spend::MAX_NOTE_CHARS;
use runguard_core::breaker::Phase;
use runguard_core::calendar::Period;
use runguard_core::notice::{AlertState, Severity};
use runguard_core::row::{Kind, Outcome};
use runguard_core::{GuardName, Reason};
use runguard_engine::watch::Watched;
use runguard_guards::Mode;
use runguard_guards::input::MAX_ID_CHARS;
use runguard_insight::alert::{Counted, When};
use runguard_insight::insight;
use runguard_insight::insight::session_list::SessionSort;
use runguard_insight::insight::spend::{By, RunState, Sort};
use serde_json::{Map, Value};

fn guards_schema() -> Value {
    let text = |about: &str| json!({"type": "string", "description": about});
    let reason = json!({"type": "object", "required": ["reason", "label", "meaning", "mode"], "properties": {
        "reason": text("Its code."), "label": text("What people read instead."), "meaning": text("What it means."), "mode": {"enum": Mode::ALL, "description": "Unless set otherwise."}}});
    let route = json!({"type": "object", "required": ["path", "summary"], "properties": {"path": text("Where it is asked."), "summary": text("What it answers.")}});
    let guard = json!({"type": "object", "required": ["guard", "label", "meaning", "subject", "routes", "reasons"], "properties": {
        "guard": text("Its code."), "label": text("What people read instead."), "meaning": text("What it stops."), "subject": text("What its decisions are about."),
        "routes": {"type": "array", "items": route}, "reasons": {"type": "array", "items": reason}}});
    let named = |code: &str| {
        json!({"type": "array", "items": {"type": "object", "required": [code, "label", "meaning"], "properties": {
        code: text("Its code."), "label": text("What people read instead."), "meaning": text("What it means.")}}})
    };
    json!({"type": "object", "required": ["guards", "outcomes", "actions"], "properties": {
        "guards": {"type": "array", "items": guard}, "outcomes": named("outcome"), "actions": named("action")}})
}

pub(super) fn decision_schema() -> Value {
    let text = json!({"type": "string"});
    let maybe = json!({"type": ["string", "null"]});
    json!({
        "type": "object",
        "required": ["decision_id", "time", "time_ms", "tenant", "guard", "kind", "session_id", "subject", "outcome", "reason", "message", "answer", "input"],
        "properties": {
            "decision_id": text,
            "time": {"type": "string", "format": "date-time"},
            "time_ms": {"type": "integer"},
            "tenant": text,
            "guard": text,
            "kind": {"enum": Kind::ALL.iter().map(|kind| kind.code()).collect::<Vec<_>>()},
            "session_id": text,
            "subject": {"type": "string", "description": "The task, bot, topic, action, step or endpoint."},
            "outcome": {"type": "string", "description": "allowed, would_block, blocked or recorded; for operators' changes what was done."},
            "reason": maybe,
            "message": maybe,
            "answer": {"type": "object", "additionalProperties": true, "description": "The body that was answered."},
            "input": {"type": "object", "additionalProperties": true, "description": "What of the request is kept."},
        },
    })
}

pub(super) fn circuit_schema() -> Value {
    json!({
        "type": "object",
        "required": ["endpoint_key", "tenant", "phase", "forced", "recent_failures"],
        "properties": {
            "endpoint_key": {"type": "string"},
            "tenant": {"type": "string"},
            "phase": {"enum": Phase::ALL},
            "forced": {"enum": ["open", "closed", null]},
            "recent_failures": {"type": "integer"},
            "failure_threshold": {"type": "integer"},
            "failure_window_seconds": {"type": "integer"},
            "opened_at": {"type": ["string", "null"], "format": "date-time"},
            "recovery_seconds_remaining": {"type": ["integer", "null"]},
            "probes_out": {"type": "integer"},
            "retrips": {"type": "integer"},
            "warnings": {"type": "array", "items": {"type": "string"}, "description": "Only of an operator's change: what may have been meant otherwise."},
        },
    })
}

fn ready_schema() -> Value {
    let refused = json!({"type": "array", "items": {"enum": Watched::ALL.map(Watched::code)}, "description": "Changed files that were refused: it decides by those before. /v1/settings says why."});
    let count = json!({"type": "integer", "minimum": 0});
    let cluster = json!({"type": "object", "description": "Of a node of a cluster: how it stands.",
        "required": ["nodes", "imports", "log_lag_seconds", "stream_entries", "rows_waiting", "unconfirmed_entries", "warnings"], "properties": {
        "nodes": count, "imports": {"type": "boolean", "description": "Whether it is the one that writes the log."},
        "log_lag_seconds": {"type": "number", "minimum": 0}, "stream_entries": count, "rows_waiting": count, "unconfirmed_entries": count,
        "warnings": {"type": "array", "items": {"enum": CLUSTER_WARNINGS}, "description": "What somebody should look at. It decides nevertheless."},
    }});
    json!({"type": "object", "required": ["status"], "properties": {"status": {"type": "string"}, "refused": refused, "cluster": cluster}})
}

fn circuits_schema(circuit: &Value) -> Value {
    let count = json!({"type": "integer"});
    json!({"type": "object", "required": ["circuits", "next_cursor", "counts"], "properties": {
        "circuits": {"type": "array", "items": circuit},
        "next_cursor": {"type": ["string", "null"]},
        "counts": {"type": "object", "description": "Of all endpoints of the tenant, whatever the page and the phase asked for.",
            "required": ["closed", "half_open", "open"], "properties": {"closed": count, "half_open": count, "open": count}},
    }})
}

fn settings_schema() -> Value {
    let refused = json!({"type": "object", "required": ["what", "time"], "properties": {
        "what": {"enum": Watched::ALL.map(Watched::code)}, "time": {"type": "string", "format": "date-time"},
        "file": {"type": "string", "description": "For an admin of all tenants."}, "error": {"type": "string", "description": "For an admin of all tenants."},
    }});
    json!({"type": "object", "required": ["tenant", "admin", "all_tenants", "refused", "settings"], "properties": {
        "tenant": {"type": ["string", "null"], "description": "Whose; null: all."},
        "admin": {"type": "boolean", "description": "Whether the caller may change things."},
        "all_tenants": {"type": "boolean", "description": "Whether the caller sees all tenants, or its own only."},
        "refused": {"type": "array", "items": refused, "description": "Changed files that are not in force because they were refused."},
        "settings": {"type": "object", "additionalProperties": true, "description": "Tables in tables as in the settings file. A leaf has value, source, unit (seconds) where a number is a length of time, and after_restart where a changed value waits for one."},
    }})
}

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

/// An object that always has these fields.
fn object(fields: &[(&str, &Value)]) -> Value {
    let properties: Map<String, Value> = fields.iter().map(|(name, schema)| ((*name).to_owned(), (*schema).clone())).collect();
    json!({"type": "object", "required": fields.iter().map(|(name, _)| *name).collect::<Vec<_>>(), "properties": properties})
}

fn described(mut schema: Value, about: &str) -> Value {
    schema["description"] = about.into();
    schema
}

fn list(items: &Value) -> Value {
    json!({"type": "array", "items": items})
}

/// Of this kind, or null.
fn maybe(kind: &str) -> Value {
    json!({"type": [kind, "null"]})
}

fn consumption_schema() -> Value {
    let (text, whole, number) = (json!({"type": "string"}), json!({"type": "integer", "minimum": 0}), json!({"type": "number"}));
    let time = json!({"type": "integer"});
    let amounts = [("operations", &whole), ("credits", &number), ("usd", &number), ("refused", &whole)];
    let day = [&[("day", &text), ("bot", &text), ("sessions", &whole), ("ai_steps", &whole)], &amounts[..]].concat();
    let label = json!({"type": "string", "description": "What was asked last, of a topic whose words are kept; else empty."});
    let step = [&[("day", &text), ("bot", &text), ("guard", &text), ("step", &text), ("label", &label)], &amounts[..]].concat();
    let bot = json!({"type": ["string", "null"], "description": "null: of all bots together."});
    let change = json!({"type": ["number", "null"], "description": "Steps a session against the week before: 1 is twice as many."});
    let week = [
        ("week", &json!({"type": "string", "description": "Its Monday."})),
        ("bot", &bot),
        ("is_whole", &json!({"type": "boolean", "description": "Whether all of it is in the range."})),
        ("sessions", &whole),
        ("ai_steps", &whole),
        ("steps_per_session", &number),
        ("change", &change),
    ];
    object(&[
        ("since", &text),
        ("until", &text),
        ("since_ms", &time),
        ("until_ms", &time),
        ("time_zone", &text),
        ("behind_rows", &whole),
        ("days", &list(&object(&day))),
        ("steps", &list(&object(&step))),
        ("weeks", &list(&object(&week))),
    ])
}

/// What was spent, as it is told of everything.
fn sum_fields() -> Vec<(&'static str, Value)> {
    let whole = |about: &str| json!({"type": "integer", "minimum": 0, "description": about});
    vec![
        ("calls", whole("Model calls that were paid for.")),
        ("refused", whole("Model calls that were blocked.")),
        ("usd", json!({"type": "number", "description": "With what is overdue."})),
        (
            "overdue_usd",
            json!({"type": "number", "description": "What nobody settled in its time, at the most it can have cost. By day, tenant and run; of which model it was is not known."}),
        ),
        ("input_tokens", whole("Without those read from a cache or written to one.")),
        ("output_tokens", whole("Of the answers.")),
        ("cached_tokens", whole("Read from a cache.")),
        ("cache_write_tokens", whole("Written to a cache.")),
        (
            "saved_usd",
            json!({"type": ["number", "null"], "description": "An estimate: the blocked calls at what a paid one cost on average; null where none was paid."}),
        ),
    ]
}

/// How a budget stands.
fn figures_fields() -> Vec<(&'static str, Value)> {
    let (number, whole) = (json!({"type": "number"}), json!({"type": "integer", "minimum": 0}));
    vec![
        ("spent_usd", number.clone()),
        ("reserved_usd", number),
        (
            "overdue_usd",
            json!({"type": "number", "description": "Of what is spent: set aside, and taken to have been paid because its time is over, but not booked yet."}),
        ),
        ("limit_usd", maybe("number")),
        ("remaining_usd", maybe("number")),
        ("spent_tokens", whole.clone()),
        ("reserved_tokens", whole),
        ("limit_tokens", maybe("integer")),
        ("remaining_tokens", maybe("integer")),
    ]
}

fn object_of(fields: &[(&'static str, Value)]) -> Value {
    object(&fields.iter().map(|(name, schema)| (*name, schema)).collect::<Vec<_>>())
}

fn budget_schema(scope: &str) -> Value {
    let text = json!({"type": "string"});
    let named = vec![("tenant", text.clone()), ("scope", described(text.clone(), scope)), ("name", text)];
    object_of(&[named, figures_fields(), vec![("renews_at", maybe("string")), ("renews_at_ms", maybe("integer"))]].concat())
}

fn spend_schema() -> Value {
    let (text, whole, time) = (json!({"type": "string"}), json!({"type": "integer", "minimum": 0}), json!({"type": "integer"}));
    let whose = json!({"type": "string", "description": "Whose it is; empty for what several have."});
    let entry = object_of(&[vec![("name", text.clone()), ("tenant", whose)], sum_fields()].concat());
    let group = object(&[("by", &json!({"enum": By::ALL.map(By::code)})), ("entries", &list(&entry))]);
    object(&[
        ("since", &text),
        ("until", &text),
        ("since_ms", &time),
        ("until_ms", &time),
        ("time_zone", &text),
        ("behind_rows", &whole),
        ("total", &object_of(&sum_fields())),
        (
            "groups",
            &described(
                list(&group),
                "One for each that is asked for. Days in their order, the others by what they cost; the rest is `(other)`.",
            ),
        ),
        (
            "budgets",
            &described(list(&budget_schema("Such as tenant/day.")), "Those that the settings have for many, as they stand at this moment."),
        ),
    ])
}

fn run_schema() -> Value {
    let (text, whole, time) = (json!({"type": "string"}), json!({"type": "integer", "minimum": 0}), json!({"type": "integer"}));
    let about = |about: &str| json!({"type": ["string", "null"], "description": about});
    let first = vec![
        ("run", text.clone()),
        ("tenant", text.clone()),
        ("state", state_schema()),
        ("reason", about("Why it is tripped.")),
        ("note", about("What was said when it was stopped by hand.")),
        (
            "found_by",
            about("By what the gateway recognised it: header, claude_code, metadata, previous_response, prompt_cache_key, beginning."),
        ),
        ("upstream", about("The provider.")),
        ("model", about("The latest.")),
        ("key", about("The id of the key that asked.")),
        ("steps", described(whole, "What happened between its calls, as its conversation tells: what it did, and what people said.")),
    ];
    let budget = described(object_of(&figures_fields()), "Its own, at this moment and from its beginning on.");
    let last = vec![
        ("budget", budget),
        ("first_seen", text.clone()),
        ("last_seen", text),
        ("first_seen_ms", time.clone()),
        ("last_seen_ms", time),
    ];
    object_of(&[first, sum_fields(), last].concat())
}

fn state_schema() -> Value {
    json!({"enum": RunState::ALL.map(RunState::code), "description": "live: it asked within the last 15 minutes. idle: it did not. tripped: its latest call was blocked, and the next would be. stopped: by hand."})
}

fn runs_schema() -> Value {
    page_schema("runs", &run_schema())
}

fn session_list_schema() -> Value {
    let (text, whole, time) = (json!({"type": "string"}), json!({"type": "integer", "minimum": 0}), json!({"type": "integer"}));
    let session = object(&[
        ("session_id", &text),
        ("tenant", &text),
        ("decisions", &described(whole.clone(), "Of the whole session, as far as the log is kept, whatever the time asked for.")),
        ("allowed", &whole),
        ("would_block", &whole),
        ("blocked", &whole),
        ("usd", &json!({"type": "number", "description": "What its model calls cost."})),
        ("reason", &described(maybe("string"), "Why it was last blocked, or would have been.")),
        ("first_seen", &text),
        ("last_seen", &text),
        ("first_seen_ms", &time),
        ("last_seen_ms", &time),
    ]);
    page_schema("sessions", &session)
}

/// A page of what is sorted: of which time, the entries, how many there are of them in all.
fn page_schema(name: &str, entry: &Value) -> Value {
    let (text, whole, time) = (json!({"type": "string"}), json!({"type": "integer", "minimum": 0}), json!({"type": "integer"}));
    object(&[
        ("since", &text),
        ("until", &text),
        ("since_ms", &time),
        ("until_ms", &time),
        ("behind_rows", &whole),
        (name, &list(entry)),
        ("found", &described(whole.clone(), "Of all that the query finds, whatever the page.")),
        ("next_cursor", &maybe("string")),
    ])
}

fn put_aside_schema() -> Value {
    let until = json!({"type": ["string", "null"], "description": "When it comes back by itself; null: not before it is restored."});
    json!({"type": ["object", "null"], "description": "null: it is shown.", "required": ["until"], "properties": {"until": until}})
}

fn overview_schema() -> Value {
    let (text, whole, number) = (json!({"type": "string"}), json!({"type": "integer", "minimum": 0}), json!({"type": "number"}));
    let few = |fields: &[(&str, &Value)]| json!({"type": "array", "maxItems": 50, "items": object(fields)});
    let (texts, wholes) = (list(&text), list(&whole));
    let outcomes = [("allowed", &whole), ("would_block", &whole), ("blocked", &whole)];
    let over_time = object(&[("allowed", &wholes), ("would_block", &wholes), ("blocked", &wholes)]);
    let counted = object(&[("subject", &text), ("count", &whole)]);
    let totals =
        [&[("decisions", &whole)], &outcomes[..], &[("operations_saved", &whole), ("credits_saved", &number), ("usd_saved", &number)]]
            .concat();
    let subjects = [&[("guard", &text), ("subject", &text)], &outcomes[..], &[("sessions", &texts)]].concat();
    let time = json!({"type": "integer"});
    object(&[
        ("since", &text),
        ("until", &text),
        ("since_ms", &time),
        ("until_ms", &time),
        ("bucket_seconds", &whole),
        ("filters", &object(&[("tenant", &maybe("string")), ("guard", &maybe("string")), ("reason", &maybe("string"))])),
        ("behind_rows", &json!({"type": "integer", "minimum": 0, "description": "Decisions that are logged and not yet in the lists."})),
        ("totals", &object(&totals)),
        ("series", &object(&[("starts_ms", &list(&time)), ("by_guard", &json!({"type": "object", "additionalProperties": over_time}))])),
        (
            "reasons",
            &few(&[
                ("guard", &text),
                ("reason", &text),
                ("blocked", &whole),
                ("would_block", &whole),
                ("subjects", &list(&counted)),
                ("sessions", &texts),
            ]),
        ),
        ("subjects", &few(&subjects)),
        (
            "handoffs",
            &object(&[
                ("edges", &few(&[("source", &text), ("target", &text), ("allowed", &whole), ("blocked", &whole)])),
                ("chains", &few(&[("chain", &texts), ("count", &whole), ("sessions", &texts)])),
            ]),
        ),
        (
            "topics",
            &few(&[
                ("topic", &text),
                ("label", &text),
                ("phrasings", &whole),
                ("also", &texts),
                ("members", &texts),
                ("queries", &whole),
                ("blocked", &whole),
                ("best_confidence", &number),
                ("mean_confidence", &number),
                ("histogram", &wholes),
                ("is_gap", &json!({"type": "boolean"})),
                ("asked_sessions", &whole),
                ("low_sessions", &json!({"type": "integer", "minimum": 0, "description": "Sessions with an answer below 0.5."})),
                ("unanswered_sessions", &json!({"type": "integer", "minimum": 0, "description": "Those of them with no better answer."})),
                ("low_share", &json!({"type": "number", "description": "`low_sessions` of `topic_sessions`, 0 to 1."})),
                ("sessions", &texts),
            ]),
        ),
        ("topic_sessions", &json!({"type": "integer", "minimum": 0, "description": "Sessions that asked a knowledge base."})),
        ("actions", &few(&[("action", &text), ("runs", &whole), ("blocked", &whole), ("share", &number)])),
        ("action_skew", &number),
        (
            "goals",
            &few(&[
                ("goal", &text),
                ("label", &text),
                ("runs", &whole),
                ("spirals", &whole),
                ("ceilings", &whole),
                ("actions", &list(&object(&[("action", &text), ("runs", &whole), ("spirals", &whole), ("not_offered", &whole)]))),
                ("offered", &texts),
                ("sessions", &texts),
            ]),
        ),
        (
            "endpoints",
            &few(&[
                ("endpoint", &text),
                ("calls", &whole),
                ("failures", &whole),
                ("failure_rate", &number),
                ("mean_ms", &maybe("number")),
                ("max_ms", &maybe("number")),
                ("blocked", &whole),
                ("failures_over_time", &wholes),
            ]),
        ),
        ("entities", &few(&[("entity", &text), ("hints", &whole), ("blocked", &whole), ("sessions", &texts)])),
        (
            "budgets",
            &few(&[
                ("budget", &text),
                ("spent_usd", &number),
                ("limit_usd", &maybe("number")),
                ("spent_tokens", &whole),
                ("limit_tokens", &maybe("integer")),
                ("refused", &whole),
            ]),
        ),
        ("hours", &few(&[("guard", &text), ("subject", &text), ("by_hour_of_day", &wholes), ("total", &whole)])),
    ])
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

fn alerts_schema() -> Value {
    let (text, whole, number) = (json!({"type": "string"}), json!({"type": "integer", "minimum": 0}), json!({"type": "number"}));
    let (time_ms, name, texts) = (json!({"type": "integer"}), maybe("string"), list(&text));
    let severity = json!({"enum": Severity::ALL});
    let span = json!({"type": ["integer", "string"], "description": "Seconds, or a text like 50ms."});
    let firing = [("dedup_key", &text), ("tenant", &text), ("title", &text), ("since", &text), ("since_ms", &time_ms)];
    let rule = object(&[
        ("name", &text),
        ("when", &json!({"enum": When::ALL})),
        ("guard", &name),
        ("reason", &name),
        ("tenant", &name),
        ("subject", &name),
        ("per", &texts),
        ("count", &whole),
        ("window", &span),
        ("window_seconds", &whole),
        ("share", &number),
        ("at", &list(&whole)),
        ("limit", &number),
        ("unit", &json!({"enum": Counted::ALL})),
        ("period", &json!({"enum": Period::ALL})),
        ("time_zone", &text),
        ("factor", &number),
        ("at_least", &number),
        ("cooldown", &span),
        ("cooldown_seconds", &whole),
        ("severity", &json!({"enum": Severity::ALL.map(Some).into_iter().chain([None]).collect::<Vec<_>>()})),
        ("to", &json!({"type": "array", "items": text, "description": "Empty: all; and for whoever is not an admin of all tenants."})),
        ("firing", &list(&object(&firing))),
    ]);
    let target = [("name", &text), ("kind", &text), ("host", &text), ("queued", &whole), ("dead", &whole), ("problem", &name)];
    let mut targets = list(&object(&target));
    targets["description"] = json!("Empty for whoever is not an admin of all tenants.");
    let mut message = object(&[
        ("id", &text),
        ("message_id", &text),
        ("target", &name),
        ("attempts", &whole),
        ("created", &text),
        ("next_attempt", &name),
        ("finished", &name),
        ("problem", &name),
    ]);
    // What it says, unless it cannot be read any more.
    let said = [("state", json!({"enum": AlertState::ALL})), ("severity", severity), ("time_ms", time_ms)];
    let words = ["rule", "dedup_key", "title", "text", "tenant", "guard", "reason", "subject", "session_id", "decision_id", "time"];
    for (field, schema) in said.into_iter().chain(words.map(|word| (word, text.clone()))) {
        message["properties"][field] = schema;
    }
    let messages = list(&message);
    object(&[
        ("enabled", &json!({"type": "boolean", "description": "Whether there is a target to tell."})),
        ("behind_rows", &json!({"type": "integer", "minimum": 0, "description": "Decisions that are logged and not yet looked at."})),
        ("rules", &list(&rule)),
        ("targets", &targets),
        ("queued", &messages),
        ("delivered", &messages),
        ("dead", &messages),
        ("queue_limit", &whole),
        (
            "dropped",
            &json!({"type": ["integer", "null"], "description": "Messages lost to the limit of the queue; null for whoever is not an admin of all tenants."}),
        ),
    ])
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
