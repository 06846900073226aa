//! The routes of the guards, made from their tables.

use crate::routes::guards::BODY;
use runguard_core::Reason;
use runguard_core::calendar::Period;
use runguard_core::ledger::{KNOWN_PER, MOST_SCOPES};
use runguard_guards::guard::{AnswerKind, Route, RouteKind};
use runguard_guards::input::{Field, Kind, MAX_ID_CHARS, MAX_NAMES, MAX_TEXT_BYTES, MOST_STEPS, REQUEST_ID};
use serde_json::{Map, Value, json};

/// What a route may answer with, and what every one that needs a key may: a body that does not fit or come, a caller that asks
/// too much.
pub(super) fn problems(statuses: &[u16]) -> Map<String, Value> {
    let common: &[u16] = if statuses.contains(&401) { &[408, 413, 429] } else { &[] };
    common.iter().chain(statuses).map(|status| (status.to_string(), json!({"$ref": "#/components/responses/Problem"}))).collect()
}

pub(super) fn example(field: &Field) -> Value {
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
            "period": {"type": ["string", "null"], "enum": Period::ALL.map(Some).into_iter().chain([None]).collect::<Vec<_>>()},
            "max_usd": {"type": ["number", "null"], "minimum": 0, "maximum": 9_000_000_000_u64},
            "max_credits": {"type": ["number", "null"], "minimum": 0, "maximum": 9_000_000_000_u64},
            "max_tokens": whole,
            "cap": whole,
        },
        "anyOf": [
            {"properties": {"per": {"enum": KNOWN_PER}}},
            {"required": ["name"], "properties": {"name": {"type": "string", "minLength": 1, "pattern": "[^\\s]"}}},
        ],
    })
}

fn step_schema() -> Value {
    let text = json!({"type": "string", "maxLength": MAX_ID_CHARS});
    let hash = json!({"type": ["string", "null"], "maxLength": MAX_ID_CHARS});
    let named = json!({"type": "string", "minLength": 1, "maxLength": MAX_ID_CHARS, "pattern": "[^\\s]"});
    json!({
        "type": "object",
        "required": ["id"],
        "additionalProperties": false,
        "properties": {
            "id": named, "tool": text, "args": text, "result": hash, "error": hash, "round": hash, "said": hash,
            "user": {"type": "boolean"},
        },
        "anyOf": [
            {"required": ["tool"], "properties": {"tool": named}},
            {"required": ["said"], "properties": {"said": {"type": "string"}}},
            {"required": ["user"], "properties": {"user": {"const": true}}},
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
        Kind::Fraction | Kind::Confidence => {
            let may_be_empty = Field { required: field.required && field.kind == Kind::Fraction, ..*field };
            let mut schema = bare_or_quoted("number", r"(0(\.[0-9]+)?|1(\.0+)?)", &may_be_empty);
            (schema["minimum"], schema["maximum"]) = (json!(0), json!(1));
            schema
        }
        Kind::Whole(at_least) => {
            let pattern = if at_least == 0 { "[0-9]{1,15}".to_owned() } else { format!("([{at_least}-9]|[1-9][0-9]{{1,14}})") };
            let mut schema = bare_or_quoted("integer", &pattern, field);
            (schema["minimum"], schema["maximum"]) = (json!(at_least), json!(9_007_199_254_740_991_u64));
            schema
        }
        Kind::Dollars | Kind::Amount => json!({"type": "number", "minimum": 0, "maximum": 9_000_000_000_u64}),
        Kind::Flag => bare_or_quoted("boolean", "(true|false)", field),
        Kind::OneOf(choices) => json!({"type": "string", "enum": choices}),
        Kind::Any => json!({}),
        Kind::Names => {
            let name = json!({"type": "string", "minLength": 1, "maxLength": MAX_ID_CHARS, "pattern": "[^\\s]"});
            json!({"type": ["array", "string"], "maxItems": MAX_NAMES, "items": name, "maxLength": MAX_ID_CHARS})
        }
        Kind::Scopes => json!({"type": "array", "maxItems": MOST_SCOPES, "items": scope_schema()}),
        Kind::Steps => json!({"type": "array", "maxItems": MOST_STEPS, "items": step_schema()}),
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
    let shown = route.fields.iter().filter(|field| field.instead_of.is_none());
    let mut schema = json!({
        "type": "object",
        "required": fields.iter().filter(|field| field.required).map(|field| field.name).collect::<Vec<_>>(),
        "properties": fields.iter().map(|field| (field.name.to_owned(), field_schema(field))).collect::<Map<_, _>>(),
        "examples": [shown.map(|field| (field.name.to_owned(), example(field))).collect::<Map<_, _>>()],
    });
    let is_left_out = |name: &str| json!({"properties": {name: {"type": "null"}}});
    let once = |field: &Field| field.instead_of.map(|other| json!({"anyOf": [is_left_out(field.name), is_left_out(other)]}));
    let said_once: Vec<Value> = route.fields.iter().filter_map(once).collect();
    if !said_once.is_empty() {
        schema["allOf"] = said_once.into();
    }
    schema
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
            .insert("would_block".into(), json!({"type": "boolean", "description": "Observe mode: enforce mode would have blocked."}));
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

pub(super) fn guard_operation(route: &Route) -> Value {
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
