//! `GET /v1/settings`: what is in force, and where every value came from.
//!
//! An admin sees all of it; anyone else the guards as they stand for its own tenant, because another tenant's thresholds and
//! the machine's folders are nobody else's business. Secrets are shown to nobody: keys are in a file of their own,
//! what a receiver needs is named by its environment variable, and of an address that may be a key itself the host is shown.

use super::decisions::{query, reader};
use super::{State, answer};
use crate::auth;
use crate::problem::Problem;
use crate::respond::{JSON, Reply, reply};
use crate::service::App;
use axum::extract::RawQuery;
use axum::response::Response;
use hyper::{HeaderMap, StatusCode};
use runguard_engine::{Role, SettingsSource};
use serde_json::{Map, Value, json};

pub(crate) async fn show(app: State, RawQuery(raw): RawQuery, headers: HeaderMap) -> Response {
    answer(tree(&app, raw.as_deref(), &headers))
}

fn tree(app: &App, raw: Option<&str>, headers: &HeaderMap) -> Result<Reply, Problem> {
    let (caller, _) = reader(app, headers)?;
    let values = query(raw, &["tenant"])?;
    let asked = values.get("tenant").map(String::as_str);
    let tenant = auth::tenant_to_read(&caller, asked)?;
    let settings = app.engine.settings.load();
    let mut shown = Map::new();
    for (path, value, source) in &settings.history.values {
        let Some(path) = visible(path, tenant.as_deref()) else { continue };
        let source = if caller.may(Role::Admin) { source.to_string() } else { kind_of(source).to_owned() };
        let mut leaf = json!({"value": shown_value(&path, value), "source": source});
        if let Some(in_force) = waiting(app, &path, value) {
            leaf["value"] = shown_value(&path, &in_force);
            leaf["after_restart"] = shown_value(&path, value);
        }
        insert(&mut shown, &path, leaf);
    }
    let body = json!({"tenant": tenant, "admin": caller.may(Role::Admin), "settings": shown});
    Ok(reply(StatusCode::OK, JSON, body.to_string()))
}

/// Where the file lies is for the admin to know.
fn kind_of(source: &SettingsSource) -> &'static str {
    match source {
        SettingsSource::Default => "default",
        SettingsSource::File { .. } => "file",
        SettingsSource::Environment(_) => "environment",
        SettingsSource::Flag(_) => "flag",
    }
}

/// The address of a receiver is often its key: only the host is shown, and nothing of what is called a secret.
fn shown_value(path: &[String], value: &Value) -> Value {
    let name = path.last().map_or("", String::as_str);
    match value {
        Value::String(text) if is_secret(name) && !text.is_empty() => "(hidden)".into(),
        Value::String(text) if name == "url" || name.ends_with("_url") => host_of(text).into(),
        Value::Array(items) => items.iter().map(|item| shown_value(path, item)).collect(),
        Value::Object(table) => {
            let below = |key: &String| [path, std::slice::from_ref(key)].concat();
            table.iter().map(|(key, value)| (key.clone(), shown_value(&below(key), value))).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

fn is_secret(name: &str) -> bool {
    !name.ends_with("_env")
        && ["secret", "password", "token", "routing_key", "api_key"].iter().any(|word| name.contains(word))
        && !name.contains("max_tokens")
}

fn host_of(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    format!("{scheme}://{host}/…")
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
    let dotted = path.join(".");
    let waits =
        dotted.starts_with("server.") || dotted.starts_with("store.") || dotted.starts_with("telemetry.") || dotted == "log.retention_days";
    let started = app.engine.started_with.history.values.iter().find(|(other, ..)| waits && other == path)?;
    (started.1 != *value).then(|| started.1.clone())
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
    fn secrets_are_shown_to_nobody() {
        let targets = json!([{"name": "ops", "url": "https://user:pw@hooks.example.com/services/T0/B0/xyz?key=1", "routing_key": "abc", "routing_key_env": "PD_KEY"}]);
        let shown = shown_value(&["alerts".to_owned(), "target".to_owned()], &targets);
        assert_eq!(
            shown,
            json!([{"name": "ops", "url": "https://hooks.example.com/…", "routing_key": "(hidden)", "routing_key_env": "PD_KEY"}])
        );
        assert_eq!(shown_value(&["max_tokens".to_owned()], &json!(5)), 5);
    }

    #[test]
    fn a_tenants_own_guards_lie_over_the_common_ones_and_others_are_not_seen() {
        let path = |text: &str| text.split('.').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(visible(&path("tenants.acme.guards.handoff.window"), Some("acme")), Some(path("guards.handoff.window")));
        assert_eq!(visible(&path("tenants.other.guards.handoff.window"), Some("acme")), None);
        assert_eq!(visible(&path("store.data"), Some("acme")), None);
        assert_eq!(visible(&path("store.data"), None), Some(path("store.data")));
    }
}
