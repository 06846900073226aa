//! The OpenAPI 3.1 description and the readable page, both made from the tables the service itself goes by: fields
//! and answers from the guards' routes, reasons from their one list. What is not a table (the log's routes) is
//! written here once. A test drives the service against this document, and one compares every answer of `/v1` with it field for field:
//! an object has the fields that are named here and no others, or says that it has.

use crate::routes::guards::BODY;
use runguard_core::ledger::MOST_SCOPES;
use runguard_core::row::{Action, Outcome};
use runguard_core::shown::html;
use runguard_core::{GuardName, Reason};
use runguard_engine::watch::Watched;
use runguard_guards::guard::{AnswerKind, GuardEntry, ROUTES, Route, RouteKind};
use runguard_guards::input::{Field, KNOWN_PER, Kind, MAX_ID_CHARS, MAX_NAMES, MAX_TEXT_BYTES, REQUEST_ID};
use runguard_guards::policy::default_rule_mode;
use serde_json::{Map, Value, json};

pub fn document() -> Value {
    let mut paths = Map::new();
    for route in ROUTES {
        paths.insert(route.path.into(), json!({"post": guard_operation(route)}));
    }
    for (path, operations) in log_routes() {
        paths.insert(path.into(), operations);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "RunGuard",
            "version": env!("CARGO_PKG_VERSION"),
            "summary": "A circuit breaker for AI agents and conversational flows.",
            "description": "Before a step that costs money, ask a guard. 200: go on. 429: stop; `reason` says why and `message` what to do instead.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "tags": [
            {"name": "guards", "description": "May I?"},
            {"name": "log", "description": "What was decided."},
            {"name": "operations", "description": "Running the service."},
        ],
        "security": [{"key": []}, {}],
        "paths": paths,
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "A key made with `runguard key create`. Not needed on loopback while no key exists."}},
            "schemas": {"Problem": problem_schema(), "Decision": decision_schema(), "Circuit": circuit_schema()},
            "responses": {
                "Problem": {"description": "An error (RFC 9457).", "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}},
            },
        },
    })
}

/// What people call the guards, their reasons, and how requests end.
pub fn guards() -> Value {
    let outcome = |outcome: &Outcome| json!({"outcome": outcome.code(), "label": outcome.label(), "meaning": outcome.meaning()});
    let action = |action: &Action| json!({"action": action.code(), "label": action.label(), "meaning": action.meaning()});
    let reason = |reason: Reason| json!({"reason": reason.code(), "label": reason.label(), "meaning": reason.meaning(), "mode": default_rule_mode(reason)});
    let route = |route: &&Route| json!({"path": route.path, "summary": route.summary});
    let guard = |guard: &GuardName| {
        json!({
            "guard": guard.code(), "label": guard.label(), "meaning": guard.meaning(), "subject": guard.subject(),
            "routes": GuardEntry::of(*guard).routes.iter().map(route).collect::<Vec<_>>(),
            "reasons": Reason::of(*guard).map(reason).collect::<Vec<_>>(),
        })
    };
    json!({
        "guards": GuardName::ALL.iter().map(guard).collect::<Vec<_>>(),
        "outcomes": Outcome::ALL.iter().map(outcome).collect::<Vec<_>>(),
        "actions": Action::ALL.iter().map(action).collect::<Vec<_>>(),
    })
}

fn guards_schema() -> Value {
    let text = |about: &str| json!({"type": "string", "description": about});
    let reason = json!({"type": "object", "required": ["reason", "label", "meaning", "mode"], "properties": {
        "reason": text("Its code."), "label": text("What people read instead."), "meaning": text("What it means."), "mode": {"enum": ["off", "observe", "enforce"], "description": "Unless set otherwise."}}});
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

fn problem_schema() -> Value {
    json!({
        "type": "object",
        "required": ["type", "title", "status", "detail", "errors"],
        "properties": {
            "type": {"type": "string", "format": "uri"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "errors": {"type": "array", "items": {"type": "object", "required": ["field", "problem"], "properties": {"field": {"type": "string"}, "problem": {"type": "string"}}}},
        },
    })
}

fn decision_schema() -> Value {
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
            "kind": {"enum": ["check", "record", "admin"]},
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

fn circuit_schema() -> Value {
    json!({
        "type": "object",
        "required": ["endpoint_key", "tenant", "phase", "forced", "recent_failures"],
        "properties": {
            "endpoint_key": {"type": "string"},
            "tenant": {"type": "string"},
            "phase": {"enum": ["closed", "open", "half_open"]},
            "forced": {"enum": ["open", "closed", null]},
            "recent_failures": {"type": "integer"},
            "failure_threshold": {"type": "integer"},
            "failure_window_seconds": {"type": "integer"},
            "opened_at": {"type": ["string", "null"], "format": "date-time"},
            "recovery_seconds_remaining": {"type": ["integer", "null"]},
            "probes_out": {"type": "integer"},
            "retrips": {"type": "integer"},
        },
    })
}

fn ready_schema() -> Value {
    let refused = json!({"type": "array", "items": {"enum": Watched::ALL.map(Watched::code)}, "description": "Changed files that were refused: it decides by those before. /v1/settings says why."});
    json!({"type": "object", "required": ["status"], "properties": {"status": {"type": "string"}, "refused": refused}})
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
        "settings": {"type": "object", "additionalProperties": true, "description": "Tables in tables as in the settings file. A leaf has value, source, and after_restart where a changed value waits for one."},
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

/// What a route may answer with, and what every one that needs a key may: a body that does not fit or come, a caller that asks
/// too much.
fn problems(statuses: &[u16]) -> Map<String, Value> {
    let common: &[u16] = if statuses.contains(&401) { &[408, 413, 429] } else { &[] };
    common.iter().chain(statuses).map(|status| (status.to_string(), json!({"$ref": "#/components/responses/Problem"}))).collect()
}

fn example(field: &Field) -> Value {
    serde_json::from_str(field.example).unwrap_or(Value::Null)
}

fn scope_schema() -> Value {
    let whole = json!({"type": ["integer", "null"], "minimum": 0, "maximum": 9_007_199_254_740_991_u64});
    json!({
        "type": "object",
        "required": ["per"],
        "additionalProperties": false,
        "properties": {
            "per": {"type": "string", "pattern": "^[a-z0-9_-]{1,32}$"},
            "name": {"type": ["string", "null"], "maxLength": MAX_ID_CHARS},
            "period": {"type": ["string", "null"], "enum": ["day", "week", "month", null]},
            "max_usd": {"type": ["number", "null"], "minimum": 0, "maximum": 9_000_000_000_u64},
            "max_tokens": whole,
            "cap": whole,
        },
        "anyOf": [
            {"properties": {"per": {"enum": KNOWN_PER}}},
            {"required": ["name"], "properties": {"name": {"type": "string", "minLength": 1, "pattern": "[^\\s]"}}},
        ],
    })
}

/// A number, or true or false, also as text: what templates send.
fn bare_or_quoted(bare: &str, pattern: &str, field: &Field) -> Value {
    let pattern = if field.required { format!("^{pattern}$") } else { format!("^({pattern})?$") };
    json!({"type": [bare, "string"], "pattern": pattern})
}

fn field_schema(field: &Field) -> Value {
    let name_or_number = json!(["string", "number"]);
    let mut schema = match field.kind {
        Kind::Id | Kind::Label => json!({"type": name_or_number, "minLength": 1, "maxLength": MAX_ID_CHARS, "pattern": "[^\\s]"}),
        Kind::Text | Kind::Name | Kind::Hash if field.required => {
            json!({"type": name_or_number, "minLength": 1, "maxLength": MAX_TEXT_BYTES / 4, "pattern": "[^\\s]"})
        }
        // In characters here and in bytes in fact: four bytes are the most a character takes.
        Kind::Text | Kind::Name | Kind::Hash => json!({"type": name_or_number, "maxLength": MAX_TEXT_BYTES / 4}),
        Kind::Fraction => {
            let mut schema = bare_or_quoted("number", r"(0(\.[0-9]+)?|1(\.0+)?)", field);
            (schema["minimum"], schema["maximum"]) = (json!(0), json!(1));
            schema
        }
        Kind::Whole(at_least) => {
            let pattern = if at_least == 0 { "[0-9]{1,15}".to_owned() } else { format!("([{at_least}-9]|[1-9][0-9]{{1,14}})") };
            let mut schema = bare_or_quoted("integer", &pattern, field);
            (schema["minimum"], schema["maximum"]) = (json!(at_least), json!(9_007_199_254_740_991_u64));
            schema
        }
        Kind::Dollars => json!({"type": "number", "minimum": 0, "maximum": 9_000_000_000_u64}),
        Kind::Flag => bare_or_quoted("boolean", "(true|false)", field),
        Kind::OneOf(choices) => json!({"type": "string", "enum": choices}),
        Kind::Any => json!({}),
        Kind::Names => {
            let name = json!({"type": "string", "minLength": 1, "maxLength": MAX_ID_CHARS, "pattern": "[^\\s]"});
            json!({"type": ["array", "string"], "maxItems": MAX_NAMES, "items": name, "maxLength": MAX_ID_CHARS})
        }
        Kind::Scopes => json!({"type": "array", "maxItems": MOST_SCOPES, "items": scope_schema()}),
    };
    if let Value::Object(schema) = &mut schema {
        if !field.required && field.kind != Kind::Any {
            let mut kinds = match schema.remove("type") {
                Some(Value::Array(kinds)) => kinds,
                Some(kind) => vec![kind],
                None => Vec::new(),
            };
            kinds.push(json!("null"));
            schema.insert("type".into(), kinds.into());
            if let Some(Value::Array(choices)) = schema.get_mut("enum") {
                choices.push(Value::Null);
            }
        }
        schema.insert("description".into(), field.about.into());
        schema.insert("examples".into(), json!([example(field)]));
        schema.insert("x-runguard-kept".into(), field.kind.keeping().code().into());
    }
    schema
}

fn request_schema(route: &Route) -> Value {
    let fields: Vec<&Field> = route.fields.iter().chain([&REQUEST_ID]).collect();
    json!({
        "type": "object",
        "required": fields.iter().filter(|field| field.required).map(|field| field.name).collect::<Vec<_>>(),
        "properties": fields.iter().map(|field| (field.name.to_owned(), field_schema(field))).collect::<Map<_, _>>(),
        "examples": [route.fields.iter().map(|field| (field.name.to_owned(), example(field))).collect::<Map<_, _>>()],
    })
}

fn answer_schema(route: &Route) -> Value {
    let text = json!({"type": "string"});
    let mut properties = Map::from_iter([
        ("guard".to_owned(), json!({"const": route.guard.code()})),
        ("decision_id".to_owned(), text.clone()),
        ("session_id".to_owned(), text.clone()),
        (
            "warnings".to_owned(),
            json!({"type": ["array", "string"], "items": {"type": "string"}, "description": "Fields that were not known, and values that were quoted too much or too little and taken all the same."}),
        ),
    ]);
    properties.insert(
        "degraded".into(),
        json!({"const": true, "description": "The shared state is away: this node answered from what it remembers."}),
    );
    let mut required = vec!["guard", "decision_id", "session_id"];
    if route.kind == RouteKind::Check {
        properties.insert("allow".into(), json!({"type": "boolean"}));
        properties
            .insert("would_block".into(), json!({"type": "boolean", "description": "Observe mode: enforce mode would have refused."}));
        let reasons: Vec<&str> = route.reasons.iter().chain([&Reason::StateUnavailable]).map(|reason| reason.code()).collect();
        properties.insert("reason".into(), json!({"enum": reasons}));
        properties.insert("message".into(), text);
        properties.insert(
            "retry_after_seconds".into(),
            json!({"type": "integer", "description": "Only when time alone changes the answer; then the same request is allowed."}),
        );
        properties.insert(
            "signals".into(),
            json!({"type": ["array", "string"], "items": {"type": "object"}, "description": "What rules in observe mode saw."}),
        );
        properties.insert("mode".into(), json!({"const": "off", "description": "The guard is switched off: nothing was counted."}));
        required.push("allow");
    } else {
        properties.insert("recorded".into(), json!({"const": true}));
        required.push("recorded");
    }
    for field in route.answers {
        let kind = match field.kind {
            AnswerKind::Text => json!("string"),
            AnswerKind::Whole => json!("integer"),
            AnswerKind::Number => json!("number"),
            AnswerKind::Flag => json!("boolean"),
            // With ?flat=1 these are texts.
            AnswerKind::List => json!(["array", "string"]),
            AnswerKind::Counts => json!(["object", "string"]),
        };
        properties.insert(field.name.into(), json!({"type": kind, "description": field.about}));
    }
    json!({"type": "object", "required": required, "properties": properties})
}

fn guard_operation(route: &Route) -> Value {
    let schema = answer_schema(route);
    let body = |description: &str| json!({"description": description, "content": {"application/json": {"schema": schema}}});
    let mut responses = problems(&[400, 401, 403, 409, 422, 503]);
    match route.kind {
        RouteKind::Check => {
            responses.insert("200".into(), body("Go on (or, with ?status=200, look at allow)."));
            let mut blocked = body(
                "Stop. `reason` says why, `message` what to do instead. As a problem: the caller asks too much at once, and this question was not heard.",
            );
            blocked["content"]["application/problem+json"] = json!({"schema": {"$ref": "#/components/schemas/Problem"}});
            blocked["headers"] = json!({
                "Retry-After": {"description": "Seconds after which the same request is allowed, if time alone changes the answer.", "schema": {"type": "integer"}},
                "x-should-retry": {"description": "false: the answer stands. true: ask again after Retry-After.", "schema": {"enum": ["false", "true"]}},
            });
            responses.insert("429".into(), blocked);
        }
        RouteKind::Record => {
            responses.insert("200".into(), body("Recorded."));
        }
        RouteKind::RecordSilently => {
            responses.insert("204".into(), json!({"description": "Recorded."}));
        }
    }
    let reasons: Vec<String> = route.reasons.iter().map(|reason| format!("- `{}`: {}", reason.code(), reason.meaning())).collect();
    json!({
        "operationId": route.path.trim_start_matches("/guard/").replace(['/', '-'], "_"),
        "tags": ["guards"],
        "summary": route.summary,
        "description": format!("{}\n\n{}", route.guard.meaning(), reasons.join("\n")).trim(),
        "parameters": [
            {"name": "status", "in": "query", "description": "200: a block is answered 200 instead of 429.", "schema": {"enum": ["200"]}},
            {"name": "flat", "in": "query", "description": "1: scalars only, no null.", "schema": {"enum": ["1"]}},
            {"name": "Idempotency-Key", "in": "header", "description": "A repeat within 24 h gets the first answer and counts nothing.", "schema": {"type": "string", "minLength": 1, "maxLength": MAX_ID_CHARS, "pattern": "^[!-~]+$"}},
        ],
        "requestBody": {"required": true, "description": format!("A JSON object of at most {} bytes, whatever the content type says.", BODY.bytes), "content": {"application/json": {"schema": request_schema(route)}}},
        "responses": responses,
    })
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
        query("outcome", "Ended so.", &codes(vec!["allowed", "would_block", "blocked", "recorded"])),
        query("kind", "check (default), record, admin or all.", &codes(vec!["check", "record", "admin", "all"])),
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
    let step = [&[("day", &text), ("bot", &text), ("guard", &text), ("step", &text)], &amounts[..]].concat();
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
                ("tokens", &whole),
                ("token_limit", &maybe("integer")),
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
fn operation(tag: &str, id: &str, summary: &str, parameters: &[Value], good: (u16, Value), bad: &[u16]) -> Value {
    let mut responses = problems(bad);
    responses.insert(good.0.to_string(), good.1);
    json!({"operationId": id, "tags": [tag], "summary": summary, "parameters": parameters, "responses": responses})
}

fn log_routes() -> Vec<(&'static str, Value)> {
    const READ: &[u16] = &[400, 401, 403, 422, 503];
    const FIND: &[u16] = &[400, 401, 403, 404, 422, 503];
    let decision = json!({"$ref": "#/components/schemas/Decision"});
    let circuit = json!({"$ref": "#/components/schemas/Circuit"});
    let cursor = maybe("string");
    let (text, whole) = (json!({"type": "string"}), json!({"type": "integer", "minimum": 0}));
    let in_path = |name: &str, about: &str| json!({"name": name, "in": "path", "required": true, "description": about, "schema": {"type": "string", "minLength": 1, "maxLength": MAX_ID_CHARS, "pattern": "^[A-Za-z0-9._:~-]+$"}});
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
        "required": ["session_id", "tenant", "counts", "counters", "timeline", "next_cursor"],
        "properties": {
            "session_id": {"type": "string"}, "tenant": {"type": "string"},
            "first_seen": {"type": ["string", "null"], "description": "Of the decisions in this answer."}, "last_seen": {"type": ["string", "null"], "description": "Of the decisions in this answer."},
            "counts": described(object(&[("allowed", &whole), ("would_block", &whole), ("blocked", &whole)]), "Of the decisions in this answer; where `next_cursor` is no null there are more."),
            "counters": {"type": "array", "items": {"type": "object", "required": ["guard", "subject", "used", "ceiling", "window_seconds", "allowed_next", "reason", "retry_after_seconds"], "properties": {
                "guard": {"type": "string"}, "subject": {"type": "string"}, "used": {"type": "integer"}, "ceiling": {"type": "integer"},
                "window_seconds": {"type": "integer"}, "allowed_next": {"type": "boolean"}, "reason": {"type": ["string", "null"]}, "retry_after_seconds": {"type": ["integer", "null"]}}}},
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
        vec![query("bucket", "minute, hour (default) or day.", &json!({"enum": ["minute", "hour", "day"]}))],
    ]
    .concat();
    let insight_schema = json!({"type": "object", "required": ["id", "title", "advice", "severity", "score", "guard", "subject", "setting", "evidence", "sessions", "saves"], "properties": {
        "id": {"type": "string", "description": "The kind of advice."}, "title": {"type": "string"}, "advice": {"type": "string", "description": "What to do, and why."},
        "severity": {"enum": ["low", "medium", "high"]}, "score": {"type": "number", "description": "What it is sorted by."},
        "guard": {"type": ["string", "null"]}, "subject": {"type": ["string", "null"], "description": "The flow it is about."},
        "setting": {"type": ["string", "null"], "description": "The setting to change, as a path in the settings file."},
        "evidence": {"type": "object", "additionalProperties": true, "description": "The numbers behind it."}, "sessions": {"type": "array", "items": {"type": "string"}, "description": "Sessions to look at."},
        "saves": {"type": "object", "required": ["operations", "usd"], "properties": {"operations": {"type": "integer"}, "usd": {"type": "number"}}}}});
    let insights_schema = json!({"type": "object", "required": ["since", "until", "behind_rows", "insights"], "properties": {
        "since": {"type": "string"}, "until": {"type": "string"}, "behind_rows": {"type": "integer", "description": "Decisions that are logged and not yet looked at."},
        "insights": {"type": "array", "items": insight_schema}}});
    let insights_parameters: Vec<Value> =
        filters().into_iter().filter(|filter| ["tenant", "since", "until"].iter().any(|name| filter["name"] == *name)).collect();
    let consumption_parameters = [
        insights_parameters.clone(),
        vec![query("time_zone", "Whose days and weeks, such as Europe/Berlin; else that of the budgets.", &text)],
    ]
    .concat();
    let overview_parameters = [
        filters()
            .into_iter()
            .filter(|filter| ["guard", "reason", "tenant", "since", "until"].iter().any(|name| filter["name"] == *name))
            .collect(),
        vec![query(
            "bucket",
            "Steps of the series: minute (default up to 3 hours), hour (up to 14 days) or day.",
            &json!({"enum": ["minute", "hour", "day"]}),
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
        &[in_path("session_id", "The session."), tenant.clone()],
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
        "Nothing shows it any more, but a process that reads an old state of a file keeps its bytes there, or another node has yet to confirm. It is finished by itself.",
        &json!({
            "type": "object",
            "required": ["erased", "pending", "message"],
            "properties": {
                "erased": {"const": false},
                "log_entries": {"type": "integer"},
                "pending": {"type": "array", "items": {"type": "string"}, "description": "The files, or the nodes."},
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
            "/v1/sessions/{session_id}",
            json!({
                "get": operation("log", "session", "A session: timeline, counters, what would be allowed next.", &[vec![in_path("session_id", "The session."), tenant.clone()], paging(1000)].concat(), (200, json_response("The session.", &session_schema)), FIND),
                "delete": erase,
            }),
        ),
        (
            "/v1/stats",
            json!({"get": operation("log", "stats", "Decisions counted by guard, reason and time.", &stats_parameters, (200, json_response("Counts.", &stats_schema)), READ)}),
        ),
        (
            "/v1/insights",
            json!({"get": operation("log", "insights", "What the log advises, the weightiest first, each with its evidence; the last 7 days unless told.", &insights_parameters, (200, json_response("Advice.", &insights_schema)), READ)}),
        ),
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
            "/v1/circuits",
            json!({"get": operation("log", "circuits", "The circuits of the endpoints, by tenant and endpoint, in pages; and how many there are in which phase.",
                &[
                    tenant.clone(),
                    query("endpoint", "Only this endpoint, of the key's own tenant or the one named; a key of all tenants names one.", &json!({"type": "string"})),
                    query("phase", "Only those in this phase.", &json!({"enum": ["closed", "half_open", "open"]})),
                    query("limit", "Circuits of a page (default 100).", &json!({"type": "integer", "minimum": 1, "maximum": 1000})),
                    query("cursor", "The next_cursor of the page before.", &json!({"type": "string", "pattern": "^([0-9a-f]{2})+$"})),
                ],
                (200, json_response("Circuits.", &circuits_schema(&circuit))), READ)}),
        ),
        ("/v1/circuits/{endpoint_key}/open", control("open", "Refuse every call until reset.")),
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
    let severity = json!({"enum": ["info", "warning", "error", "critical"]});
    let span = json!({"type": ["integer", "string"], "description": "Seconds, or a text like 50ms."});
    let firing = [("dedup_key", &text), ("tenant", &text), ("title", &text), ("since", &text), ("since_ms", &time_ms)];
    let rule = object(&[
        ("name", &text),
        ("when", &json!({"enum": ["circuit_trip", "degrading", "blocks", "block_rate", "budget", "fallback", "consumption", "spike"]})),
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
        ("unit", &json!({"enum": ["credits", "operations"]})),
        ("period", &json!({"enum": ["day", "week", "month"]})),
        ("time_zone", &text),
        ("factor", &number),
        ("at_least", &number),
        ("cooldown", &span),
        ("cooldown_seconds", &whole),
        ("severity", &json!({"enum": ["info", "warning", "error", "critical", null]})),
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
    let said = [("state", json!({"enum": ["firing", "resolved"]})), ("severity", severity), ("time_ms", time_ms)];
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

/// The readable page: every route with its fields, answers and reasons.
pub fn page() -> String {
    use std::fmt::Write as _;
    let mut out = String::from(concat!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>RunGuard API</title>",
        "<style>:root{color-scheme:light dark}body{font:1rem/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}",
        "table{border-collapse:collapse;width:100%;margin:.5rem 0 1rem}th,td{text-align:left;vertical-align:top;padding:.3rem .6rem;border-bottom:1px solid color-mix(in srgb,currentColor 20%,transparent)}",
        "pre{overflow:auto;padding:.75rem;border:1px solid color-mix(in srgb,currentColor 25%,transparent);border-radius:.4rem}code{overflow-wrap:anywhere}h2{margin-top:2.5rem}</style>",
        "<h1>RunGuard API</h1><p>Ask a guard before a step that costs money. <b>200</b>: go on. <b>429</b>: stop; <code>reason</code> says why and <code>message</code> what to do instead.",
        " With <code>?status=200</code> a block is answered 200; with <code>?flat=1</code> the answer has scalars only. Machines read <a href=\"/openapi.json\">/openapi.json</a>.</p>",
    ));
    let row = |out: &mut String, cells: &[&str]| {
        let _ = write!(out, "<tr><td>{}</td></tr>", cells.join("</td><td>"));
    };
    for route in ROUTES {
        let _ = write!(
            out,
            "<h2>POST <code>{}</code></h2><p>{} {}</p><table><tr><th>field<th>required<th>what</tr>",
            route.path,
            html(route.summary),
            html(route.guard.meaning())
        );
        for field in route.fields {
            row(&mut out, &[&format!("<code>{}</code>", field.name), if field.required { "yes" } else { "" }, &html(field.about)]);
        }
        out.push_str("</table>");
        if !route.answers.is_empty() {
            out.push_str("<table><tr><th>answer<th>what</tr>");
            for field in route.answers {
                row(&mut out, &[&format!("<code>{}</code>", field.name), &html(field.about)]);
            }
            out.push_str("</table>");
        }
        if !route.reasons.is_empty() {
            out.push_str("<table><tr><th>reason<th>what</tr>");
            for reason in route.reasons {
                row(&mut out, &[&format!("<code>{}</code>", reason.code()), &html(reason.meaning())]);
            }
            out.push_str("</table>");
        }
        let body: Map<String, Value> = route.fields.iter().map(|field| (field.name.to_owned(), example(field))).collect();
        let _ = write!(out, "<pre>curl -s localhost:8100{} -d '{}'</pre>", route.path, html(&Value::Object(body).to_string()));
    }
    out.push_str("<h2>The log and operations</h2><table><tr><th>route<th>what</tr>");
    for (path, operations) in log_routes() {
        for (method, operation) in operations.as_object().into_iter().flatten() {
            row(
                &mut out,
                &[&format!("{} <code>{path}</code>", method.to_uppercase()), &html(operation["summary"].as_str().unwrap_or_default())],
            );
        }
    }
    out.push_str("</table></html>");
    out
}
