//! What the routes of [`log_routes`](super::log_routes) answer, field by field.

use super::json::json;
use crate::routes::health::CLUSTER_WARNINGS;
use runguard_core::breaker::Phase;
use runguard_core::calendar::Period;
use runguard_core::notice::{AlertState, Severity};
use runguard_core::row::Kind;
use runguard_engine::watch::Watched;
use runguard_guards::Mode;
use runguard_insight::alert::{Counted, When};
use runguard_insight::insight::spend::{By, RunState};
use serde_json::{Map, Value};

pub(super) fn guards_schema() -> Value {
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

pub(super) fn ready_schema() -> Value {
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

pub(super) fn circuits_schema(circuit: &Value) -> Value {
    let count = json!({"type": "integer"});
    json!({"type": "object", "required": ["circuits", "next_cursor", "counts"], "properties": {
        "circuits": {"type": "array", "items": circuit},
        "next_cursor": {"type": ["string", "null"]},
        "counts": {"type": "object", "description": "Of all endpoints of the tenant, whatever the page and the phase asked for.",
            "required": ["closed", "half_open", "open"], "properties": {"closed": count, "half_open": count, "open": count}},
    }})
}

pub(super) fn settings_schema() -> Value {
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

/// An object that always has these fields.
pub(super) fn object(fields: &[(&str, &Value)]) -> Value {
    let properties: Map<String, Value> = fields.iter().map(|(name, schema)| ((*name).to_owned(), (*schema).clone())).collect();
    json!({"type": "object", "required": fields.iter().map(|(name, _)| *name).collect::<Vec<_>>(), "properties": properties})
}

pub(super) fn described(mut schema: Value, about: &str) -> Value {
    schema["description"] = about.into();
    schema
}

pub(super) fn list(items: &Value) -> Value {
    json!({"type": "array", "items": items})
}

/// Of this kind, or null.
pub(super) fn maybe(kind: &str) -> Value {
    json!({"type": [kind, "null"]})
}

pub(super) fn consumption_schema() -> Value {
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

pub(super) fn budget_schema(scope: &str) -> Value {
    let text = json!({"type": "string"});
    let named = vec![("tenant", text.clone()), ("scope", described(text.clone(), scope)), ("name", text)];
    object_of(&[named, figures_fields(), vec![("renews_at", maybe("string")), ("renews_at_ms", maybe("integer"))]].concat())
}

pub(super) fn spend_schema() -> Value {
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

pub(super) fn state_schema() -> Value {
    json!({"enum": RunState::ALL.map(RunState::code), "description": "live: it asked within the last 15 minutes. idle: it did not. tripped: its latest call was blocked, and the next would be. stopped: by hand."})
}

pub(super) fn runs_schema() -> Value {
    page_schema("runs", &run_schema())
}

pub(super) fn session_list_schema() -> Value {
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

pub(super) fn put_aside_schema() -> Value {
    let until = json!({"type": ["string", "null"], "description": "When it comes back by itself; null: not before it is restored."});
    json!({"type": ["object", "null"], "description": "null: it is shown.", "required": ["until"], "properties": {"until": until}})
}

pub(super) fn overview_schema() -> Value {
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

pub(super) fn alerts_schema() -> Value {
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
