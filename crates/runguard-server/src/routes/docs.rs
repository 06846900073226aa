//! The service's own description, for machines and for people. Nothing is loaded from elsewhere.

use super::answer;
use crate::openapi;
use axum::response::Response;
use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{CONTENT_SECURITY_POLICY, HeaderValue};
use runguard_http::reply::{JSON, Reply, reply};
use std::sync::LazyLock;

/// Shared by all answers: whoever asks needs no key, and may leave an answer unread.
static OPENAPI: LazyLock<Bytes> = LazyLock::new(|| openapi::document().to_string().into());
static PAGE: LazyLock<Bytes> = LazyLock::new(|| openapi::page().into());

pub(crate) async fn openapi() -> Response {
    answer(Ok(reply(StatusCode::OK, JSON, OPENAPI.clone())))
}

/// What people call the guards and their reasons: pages and reports need no list of their own.
pub(crate) async fn guards() -> Response {
    static GUARDS: LazyLock<Bytes> = LazyLock::new(|| openapi::guards().to_string().into());
    answer(Ok(reply(StatusCode::OK, JSON, GUARDS.clone())))
}

pub(crate) async fn page() -> Response {
    answer(Ok(html(PAGE.clone())))
}

fn html(body: Bytes) -> Reply {
    let mut response = reply(StatusCode::OK, HeaderValue::from_static("text/html; charset=utf-8"), body);
    let policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    response.headers_mut().insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}
