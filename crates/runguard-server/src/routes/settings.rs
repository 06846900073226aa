//! `GET /v1/settings`: what is in force, and where every value came from.
//!
//! An admin of all tenants sees all of it; anyone else the guards as they stand for its own tenant, because another tenant's
//! thresholds and the machine's folders are nobody else's business. Secrets are shown to nobody: the values come as they may be
//! shown.
//!
//! When a changed file was refused, what stands here is not what stands in it: then it says so, and why.

use super::query::{TENANT, query, reader};
use super::{State, answer, shown};
use crate::auth;
use crate::problem::Problem;
use crate::service::App;
use crate::time;
use axum::extract::RawQuery;
use axum::response::Response;
use hyper::HeaderMap;
use runguard_engine::settings::{SERVICE_KEYS, unit_of};
use runguard_engine::watch::{Refused, Watched};
use runguard_engine::{Caller, Role, SettingsSource};
use runguard_http::reply::Reply;
use serde::Serialize;
use serde_json::{Map, Value, json};

pub(crate) async fn show(app: State, RawQuery(raw): RawQuery, headers: HeaderMap) -> Response {
    answer(tree(&app, raw.as_deref(), &headers))
}

fn tree(app: &App, raw: Option<&str>, headers: &HeaderMap) -> Result<Reply, Problem> {
    let (caller, _) = reader(app, headers)?;
    let values = query(raw, TENANT)?;
    let asked = values.get("tenant").map(String::as_str);
    let tenant = match auth::tenant_to_read(&caller, asked)? {
        None if !caller.is_admin_of_all() => Some(caller.tenant.to_string()),
        tenant => tenant,
    };
    let settings = app.engine.settings.load();
    let mut tree = Map::new();
    for (path, value, source) in &settings.history.values {
        let Some(path) = visible(path, tenant.as_deref()) else { continue };
        let source = if caller.is_admin_of_all() { source.to_string() } else { kind_of(source).to_owned() };
        let mut leaf = json!({"value": value, "source": source});
        if let Some(unit) = unit_of(&path).filter(|_| value.is_number()) {
            leaf["unit"] = unit.into();
        }
        if let Some(in_force) = waiting(app, &path, value) {
            leaf["value"] = in_force;
            leaf["after_restart"] = value.clone();
        }
        insert(&mut tree, &path, leaf);
    }
    shown(&ShownSettings {
        tenant,
        admin: caller.may(Role::Admin),
        all_tenants: caller.sees_all(),
        refused: app.engine.refusals.in_force().into_iter().map(|refused| show_refused(refused, &caller)).collect(),
        settings: tree,
    })
}

/// The settings in force.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct ShownSettings {
    /// Whose; null: all.
    tenant: Option<String>,
    /// Whether the caller may change things.
    admin: bool,
    /// Whether the caller sees all tenants, or its own only.
    all_tenants: bool,
    /// Changed files that are not in force because they were refused.
    refused: Vec<ShownRefusal>,
    /// Tables in tables as in the settings file. A leaf has value, source, unit (seconds) where a number is a length of time, and
    /// `after_restart` where a changed value waits for one.
    settings: Map<String, Value>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct ShownRefusal {
    what: Watched,
    #[cfg_attr(feature = "schema", schemars(extend("format" = "date-time")))]
    time: String,
    /// For an admin of all tenants.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    /// For an admin of all tenants.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Where the file lies is for the operator of the service to know.
fn kind_of(source: &SettingsSource) -> &'static str {
    match source {
        SettingsSource::Default => "default",
        SettingsSource::File { .. } => "file",
        SettingsSource::Environment(_) => "environment",
        SettingsSource::Flag(_) => "flag",
    }
}

/// What is wrong with the file is for the admin to know, too.
fn show_refused(refused: Refused, caller: &Caller) -> ShownRefusal {
    let Refused { what, at, file, error } = refused;
    let for_admins = |text| caller.is_admin_of_all().then_some(text);
    ShownRefusal { what, time: time::format(at.as_millis()), file: for_admins(file), error: for_admins(error) }
}

/// Where a value stands for whoever asks. A tenant's own guards lie over the common ones.
fn visible(path: &[String], tenant: Option<&str>) -> Option<Vec<String>> {
    match (tenant, path) {
        (None, _) => Some(path.to_vec()),
        (Some(_), [first, ..]) if first == "guards" => Some(path.to_vec()),
        (Some(tenant), [first, whose, below @ ..]) if first == "tenants" && whose == tenant => Some(below.to_vec()),
        (Some(_), _) => None,
    }
}

/// The value in force, when the one in the file waits for a restart.
fn waiting(app: &App, path: &[String], value: &Value) -> Option<Value> {
    let started = app.engine.started_with.history.values.iter().find(|(other, ..)| needs_restart(path) && other == path)?;
    (started.1 != *value).then(|| started.1.clone())
}

fn needs_restart(path: &[String]) -> bool {
    let [table, below @ ..] = path else { return false };
    let key = below.join(".");
    // Alerts have lists besides their keys, and all of them are read at the start.
    table == "alerts" || SERVICE_KEYS.iter().any(|(of, name, _, live)| !live && of == table && *name == key)
}

fn insert(tree: &mut Map<String, Value>, path: &[String], leaf: Value) {
    let [first, below @ ..] = path else { return };
    if below.is_empty() {
        tree.insert(first.clone(), leaf);
    } else if let Value::Object(inner) = tree.entry(first.clone()).or_insert_with(|| json!({})) {
        insert(inner, below, leaf);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenants_own_guards_lie_over_the_common_ones_and_others_are_not_seen() {
        let path = |text: &str| text.split('.').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(visible(&path("tenants.acme.guards.handoff.window"), Some("acme")), Some(path("guards.handoff.window")));
        assert_eq!(visible(&path("tenants.other.guards.handoff.window"), Some("acme")), None);
        assert_eq!(visible(&path("store.data"), Some("acme")), None);
        assert_eq!(visible(&path("store.data"), None), Some(path("store.data")));
    }
}
