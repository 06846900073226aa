//! For load balancers and Prometheus.

use super::{State, answer};
use crate::auth;
use crate::problem::Problem;
use crate::respond::{JSON, Reply, reply};
use crate::service::App;
use axum::response::Response;
use hyper::header::HeaderValue;
use hyper::{HeaderMap, StatusCode};
use runguard_engine::Role;

/// The process answers.
pub(crate) async fn alive() -> Response {
    answer(Ok(reply(StatusCode::OK, JSON, r#"{"status":"ok"}"#.into())))
}

/// The service can decide: the disk takes a write.
pub(crate) async fn ready(app: State) -> Response {
    answer(probe(&app).await)
}

async fn probe(app: &App) -> Result<Reply, Problem> {
    app.engine.store.probe().await?;
    Ok(reply(StatusCode::OK, JSON, r#"{"status":"ready"}"#.into()))
}

pub(crate) async fn metrics(app: State, headers: HeaderMap) -> Response {
    answer(exposition(&app, &headers))
}

fn exposition(app: &App, headers: &HeaderMap) -> Result<Reply, Problem> {
    let caller = auth::caller(&app.engine, app.openness, headers)?;
    auth::require(&caller, Role::Read)?;
    let content_type = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    Ok(reply(StatusCode::OK, content_type, app.metrics.text(&app.engine.store)))
}
