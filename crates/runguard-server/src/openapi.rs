//! The OpenAPI 3.1 description and the readable page, both made from the tables the service itself goes by: fields
//! and answers from the guards' routes, reasons from their one list. What is not a table (the log's routes) is
//! written here once. A test drives the service against this document, and one compares every answer of `/v1` with it field for field:
//! an object has the fields that are named here and no others, or says that it has.

mod examples;
mod guard_routes;
mod json;
mod log_routes;
mod log_schemas;
mod page;

use self::guard_routes::guard_operation;
use self::json::json;
use self::log_routes::log_routes;
use self::log_schemas::{circuit_schema, decision_schema};
pub use self::page::page;
use runguard_core::row::{Action, Outcome};
use runguard_core::{GuardName, Reason};
use runguard_guards::guard::{GuardEntry, ROUTES, Route};
use runguard_guards::policy::default_rule_mode;
use serde_json::{Map, Value};

pub fn document() -> Value {
    let mut paths = Map::new();
    for route in ROUTES {
        paths.insert(route.path.into(), json!({"post": guard_operation(route)}));
    }
    for (path, operations) in log_routes() {
        paths.insert(path.into(), operations);
    }
    examples::add(&mut paths);
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

fn problem_schema() -> Value {
    json!({
        "type": "object",
        "required": ["type", "title", "status", "detail", "errors"],
        "properties": {
            "type": {"type": "string", "format": "uri-reference", "description": "Where the service tells of this kind of problem."},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "errors": {"type": "array", "items": {"type": "object", "required": ["field", "problem"], "properties": {"field": {"type": "string"}, "problem": {"type": "string"}}}},
        },
    })
}
