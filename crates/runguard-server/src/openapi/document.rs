//! The OpenAPI document, made from what the service itself goes by: fields and answers from the guards' table of routes, reasons from their
//! one list, every other answer from the type that is written out. What a route is for and which parameters it takes is in
//! [`log_routes`](super::log_routes).

use super::examples;
use super::guard_routes::guard_operation;
use super::log_routes::log_routes;
use runguard_guards::guard::ROUTES;
use runguard_http::problem::ProblemBody;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::transform::{Transform, transform_subschemas};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};

pub fn document() -> Value {
    let mut schemas = Schemas::new();
    let mut paths = Map::new();
    for route in ROUTES {
        paths.insert(route.path.into(), json!({"post": guard_operation(route)}));
    }
    for (path, operations) in log_routes(&mut schemas) {
        paths.insert(path.into(), operations);
    }
    examples::add(&mut paths);
    let problem = schemas.answer::<ProblemBody<'_>>();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "RunGuard",
            "version": env!("CARGO_PKG_VERSION"),
            "summary": "A circuit breaker for AI agents and conversational flows.",
            "description": "Before a step that costs money, ask a guard. 200: go on. 429: stop; `reason` says why and `message` what to do instead.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": "/", "description": "The service that this document came from."}],
        "tags": [
            {"name": "guards", "description": "May I?"},
            {"name": "log", "description": "What was decided."},
            {"name": "operations", "description": "Running the service."},
        ],
        "security": [{"key": []}, {}],
        "paths": paths,
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "A key made with `runguard key create`. Not needed on loopback while no key exists."}},
            "responses": {"Problem": {"description": "An error (RFC 9457).", "content": {"application/problem+json": {"schema": problem}}}},
            "schemas": schemas.named(),
        },
    })
}

/// The types of what is asked and answered. Each stands once, by its name, and wherever it is used there is a reference.
pub(super) struct Schemas {
    answers: SchemaGenerator,
    requests: SchemaGenerator,
}

impl Schemas {
    fn new() -> Self {
        let settings = || {
            let mut settings = SchemaSettings::draft2020_12();
            settings.definitions_path = "/components/schemas".into();
            settings
        };
        Self { answers: settings().for_serialize().into_generator(), requests: settings().for_deserialize().into_generator() }
    }

    pub(super) fn answer<T: JsonSchema>(&mut self) -> Value {
        self.answers.subschema_for::<T>().to_value()
    }

    pub(super) fn request<T: JsonSchema>(&mut self) -> Value {
        self.requests.subschema_for::<T>().to_value()
    }

    fn named(mut self) -> Map<String, Value> {
        let mut named = self.answers.take_definitions(true);
        for schema in named.values_mut() {
            there_or_left_out(schema);
        }
        named.extend(self.requests.take_definitions(true));
        for schema in named.values_mut() {
            if let Ok(schema) = <&mut Schema>::try_from(schema) {
                Plain.transform(schema);
            }
        }
        named.sort_keys();
        named
    }
}

/// A field of an answer that may be left out is left out where there is nothing to say, and never null.
fn there_or_left_out(schema: &mut Value) {
    let required = schema["required"].clone();
    let is_required = |name: &str| required.as_array().into_iter().flatten().any(|required| required == name);
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    for (_, field) in properties.into_iter().flatten().filter(|(name, _)| !is_required(name)) {
        if let Some(kinds) = field.get_mut("type").and_then(Value::as_array_mut) {
            kinds.retain(|kind| kind != "null");
            if let [kind] = &kinds[..] {
                field["type"] = kind.clone();
            }
        }
        if let Some([Value::Object(some), none]) = field.get("anyOf").and_then(Value::as_array).map(Vec::as_slice)
            && *none == json!({"type": "null"})
        {
            let some = some.clone();
            if let Value::Object(field) = field {
                field.remove("anyOf");
                field.extend(some);
            }
        }
    }
}

/// Words that each say what they mean become one list of words, and below them what each means.
fn words(schema: &mut Schema) {
    let Some(Value::Array(choices)) = schema.get("oneOf") else { return };
    let mut words = Vec::new();
    let mut said = schema.get("description").and_then(Value::as_str).unwrap_or_default().to_owned();
    for choice in choices {
        match (&choice["const"], &choice["enum"]) {
            (Value::String(word), _) => {
                words.push(word.clone());
                said += &format!(" `{word}`: {}", choice["description"].as_str().unwrap_or_default());
            }
            (_, Value::Array(plain)) => words.extend(plain.iter().filter_map(Value::as_str).map(str::to_owned)),
            _ => return,
        }
    }
    schema.remove("oneOf");
    schema.insert("type".into(), "string".into());
    schema.insert("enum".into(), words.into());
    schema.insert("description".into(), said.trim().into());
}

/// Without what only a program of this language can read out of it: how a number is kept in memory, what a reader takes for a field that is
/// not there, and where a line of a comment ends.
struct Plain;

impl Transform for Plain {
    fn transform(&mut self, schema: &mut Schema) {
        schema.remove("default");
        words(schema);
        let is_text = |kind: &Value| *kind == "string" || kind.as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == "string"));
        if schema.get("type").is_some_and(|kind| !is_text(kind)) {
            let widest = match schema.remove("format").as_ref().and_then(Value::as_str) {
                Some("uint8") => u64::from(u8::MAX),
                Some("uint16") => u64::from(u16::MAX),
                _ => u64::MAX,
            };
            if schema.get("maximum").and_then(Value::as_u64) == Some(widest) {
                schema.remove("maximum");
            }
        }
        if let Some(Value::String(description)) = schema.get_mut("description") {
            *description = description.replace('\n', " ");
        }
        transform_subschemas(self, schema);
    }
}
