//! What the service says of itself: the OpenAPI 3.1 document, the readable page made from it, and what people call the guards.
//!
//! The document is made from the code where the feature `schema` is on ([`document`](mod@document)), written down as `docs/openapi.json`,
//! which a test holds against the code, and served as it is written there: the release has no generator. Another test drives the service
//! against it, and one compares every answer of `/v1` with it field for field.

#[cfg(feature = "schema")]
mod document;
#[cfg(feature = "schema")]
mod examples;
#[cfg(feature = "schema")]
mod guard_routes;
#[cfg(feature = "schema")]
mod log_routes;
mod page;

#[cfg(feature = "schema")]
pub use self::document::document;
pub(crate) use self::page::page;
use crate::packed::Packed;
use runguard_core::row::{Action, Outcome};
use runguard_core::{GuardName, Reason};
use runguard_guards::guard::GuardEntry;
use runguard_guards::policy::{Mode, default_rule_mode};
use serde::Serialize;
use serde_json::Value;

/// The document as it was written down; a test reads all of it.
pub(crate) fn published() -> Value {
    let packed = Packed(include_bytes!(concat!(env!("OUT_DIR"), "/openapi.json.gz")));
    serde_json::from_str(&packed.text()).unwrap_or_default()
}

/// What people call the guards, their reasons, and how requests end.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct ShownGuards {
    guards: Vec<ShownGuard>,
    outcomes: Vec<ShownOutcome>,
    actions: Vec<ShownAction>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct ShownGuard {
    /// Its code.
    guard: &'static str,
    /// What people read instead.
    label: &'static str,
    /// What it stops.
    meaning: &'static str,
    /// What its decisions are about.
    subject: &'static str,
    routes: Vec<ShownRoute>,
    reasons: Vec<ShownReason>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct ShownRoute {
    /// Where it is asked.
    path: &'static str,
    /// What it answers.
    summary: &'static str,
}

#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct ShownReason {
    /// Its code.
    reason: &'static str,
    /// What people read instead.
    label: &'static str,
    /// What it means.
    meaning: &'static str,
    /// Unless set otherwise.
    mode: Mode,
}

#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct ShownOutcome {
    /// Its code.
    outcome: &'static str,
    /// What people read instead.
    label: &'static str,
    /// What it means.
    meaning: &'static str,
}

#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct ShownAction {
    /// Its code.
    action: &'static str,
    /// What people read instead.
    label: &'static str,
    /// What it means.
    meaning: &'static str,
}

pub(crate) fn guards() -> ShownGuards {
    let reason = |reason: Reason| ShownReason {
        reason: reason.code(),
        label: reason.label(),
        meaning: reason.meaning(),
        mode: default_rule_mode(reason),
    };
    let guard = |guard: &GuardName| ShownGuard {
        guard: guard.code(),
        label: guard.label(),
        meaning: guard.meaning(),
        subject: guard.subject(),
        routes: GuardEntry::of(*guard).routes.iter().map(|route| ShownRoute { path: route.path, summary: route.summary }).collect(),
        reasons: Reason::of(*guard).map(reason).collect(),
    };
    let outcome = |outcome: &Outcome| ShownOutcome { outcome: outcome.code(), label: outcome.label(), meaning: outcome.meaning() };
    let action = |action: &Action| ShownAction { action: action.code(), label: action.label(), meaning: action.meaning() };
    ShownGuards {
        guards: GuardName::ALL.iter().map(guard).collect(),
        outcomes: Outcome::ALL.iter().map(outcome).collect(),
        actions: Action::ALL.iter().map(action).collect(),
    }
}
