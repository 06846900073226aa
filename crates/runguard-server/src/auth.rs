//! Who asks, and may they?

use crate::problem::Problem;
use crate::service::App;
use hyper::HeaderMap;
use runguard_engine::{Caller, Engine, Role};
use runguard_http::door;
use std::sync::Arc;

/// Whether callers without a key are let in while no key exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Openness {
    /// Only this machine can reach the service.
    Loopback,
    KeysOnly,
}

pub(crate) fn caller(engine: &Engine, openness: Openness, headers: &HeaderMap) -> Result<Arc<Caller>, Problem> {
    caller_of(engine, openness, headers, door::token(headers))
}

/// The same by a key that may stand elsewhere than where keys usually do.
pub(crate) fn caller_of(engine: &Engine, openness: Openness, headers: &HeaderMap, token: Option<&str>) -> Result<Arc<Caller>, Problem> {
    let keys = engine.keys.load();
    if keys.is_open() && openness == Openness::Loopback {
        door::this_machine(headers, &engine.settings.load().server.hosts)?;
        return Ok(Caller::open());
    }
    token.and_then(|token| keys.caller(token)).ok_or_else(Problem::unauthorized)
}

/// Whether one who was let in before would be let in again, with the same rights.
pub(crate) fn is_still_admitted(app: &App, caller: &Caller) -> bool {
    let keys = app.engine.keys.load();
    if caller.is_anyone() { keys.is_open() && app.openness == Openness::Loopback } else { keys.still_knows(caller) }
}

pub(crate) fn require(caller: &Caller, role: Role) -> Result<(), Problem> {
    if caller.may(role) { Ok(()) } else { Err(Problem::forbidden(caller, role)) }
}

/// The tenant a caller may look at: its own or, for a key of all tenants, any (`None`: all).
pub(crate) fn tenant_to_read(caller: &Caller, asked: Option<&str>) -> Result<Option<String>, Problem> {
    match asked {
        Some(tenant) if !caller.sees(tenant) => Err(Problem::other_tenant(Role::Read)),
        Some(tenant) => Ok(Some(tenant.to_owned())),
        None if caller.sees_all() => Ok(None),
        None => Ok(Some(caller.tenant.to_string())),
    }
}

/// The one tenant in which a session or an endpoint is looked up: they are filed under it. A key of all tenants has to name it, or it
/// would be told that there is nothing when there is. In an open service all callers ask about the same tenant.
pub(crate) fn tenant_to_look_in(caller: &Caller, asked: Option<&str>, what: &str) -> Result<String, Problem> {
    match tenant_to_read(caller, asked)? {
        Some(tenant) => Ok(tenant),
        None if caller.is_anyone() => Ok(caller.tenant.to_string()),
        None => Err(Problem::tenant_not_named(what)),
    }
}

/// The one tenant that a change is about: the caller's own, unless it names another and may.
pub(crate) fn tenant_to_change(caller: &Caller, asked: Option<&str>) -> Result<String, Problem> {
    require(caller, Role::Admin)?;
    match asked {
        Some(tenant) if !caller.sees(tenant) => Err(Problem::other_tenant(Role::Admin)),
        Some(tenant) => Ok(tenant.to_owned()),
        None => Ok(caller.tenant.to_string()),
    }
}

/// For what belongs to the service and not to a tenant.
pub(crate) fn require_admin_of_all(caller: &Caller) -> Result<(), Problem> {
    if caller.is_admin_of_all() { Ok(()) } else { Err(Problem::needs_admin_of_all()) }
}
