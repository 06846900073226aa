//! One body type for both paths: bytes that are there, or a stream.

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};

pub(crate) type Body = Either<Full<Bytes>, axum::body::Body>;
pub(crate) type Reply = Response<Body>;

pub(crate) const JSON: HeaderValue = HeaderValue::from_static("application/json");

pub(crate) fn reply(status: StatusCode, content_type: HeaderValue, body: String) -> Reply {
    let mut response = Response::new(Either::Left(Full::new(Bytes::from(body))));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}
