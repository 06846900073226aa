//! One body type for every answer: bytes that are there, or a stream.

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};

pub type Body = Either<Full<Bytes>, axum::body::Body>;
pub type Reply = Response<Body>;

pub const JSON: HeaderValue = HeaderValue::from_static("application/json");

pub fn reply(status: StatusCode, content_type: HeaderValue, body: impl Into<Bytes>) -> Reply {
    let mut response = Response::new(Either::Left(Full::new(body.into())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// Server-sent events: asked for anew each time, and not collected by a proxy before they are passed on.
pub fn event_stream(events: axum::body::Body) -> Reply {
    let mut response = Response::new(Either::Right(events));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

/// For handlers that stand in an axum router.
pub fn into_axum(reply: Reply) -> axum::response::Response {
    reply.map(|body| match body {
        Either::Left(full) => axum::body::Body::new(full),
        Either::Right(body) => body,
    })
}

pub fn from_axum(response: axum::response::Response) -> Reply {
    response.map(Either::Right)
}
