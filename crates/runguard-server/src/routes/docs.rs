//! The service's own description, for machines and for people. Nothing is loaded from elsewhere.

use super::answer;
use crate::openapi;
use crate::problem::{self, Problem};
use axum::extract::Path;
use axum::response::Response;
use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{CONTENT_SECURITY_POLICY, HeaderValue};
use runguard_http::problem::kinds;
use runguard_http::reply::{JSON, Reply, reply};
use std::sync::LazyLock;

/// Shared by all answers: whoever asks needs no key, and may leave an answer unread.
static OPENAPI: LazyLock<Bytes> = LazyLock::new(|| openapi::published().to_string().into());
static PAGE: LazyLock<Bytes> = LazyLock::new(|| openapi::page(&openapi::published()).into());

pub(crate) async fn openapi() -> Response {
    answer(Ok(reply(StatusCode::OK, JSON, OPENAPI.clone())))
}

/// What people call the guards and their reasons: pages and reports need no list of their own.
pub(crate) async fn guards() -> Response {
    static GUARDS: LazyLock<Bytes> = LazyLock::new(|| serde_json::to_string(&openapi::guards()).unwrap_or_default().into());
    answer(Ok(reply(StatusCode::OK, JSON, GUARDS.clone())))
}

pub(crate) async fn page() -> Response {
    answer(Ok(html(PAGE.clone())))
}

/// What a problem's `type` leads to.
pub(crate) async fn problem(Path(kind): Path<String>) -> Response {
    let known: [&[&kinds::Kind]; 2] = [kinds::ALL, problem::ALL];
    answer(kinds::page(&kind, &known, "/docs").ok_or_else(|| Problem::unknown("kind of problem")))
}

fn html(body: Bytes) -> Reply {
    let mut response = reply(StatusCode::OK, HeaderValue::from_static("text/html; charset=utf-8"), body);
    let policy = "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    response.headers_mut().insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}
