//! A name for every request, so that a caller's complaint can be found in the log.

use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use std::io::{Cursor, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// On every answer of a service; what is sent without it is hyper's own word on something it could not read.
pub static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const MAX_LENGTH: usize = 128;
/// What tells the starts apart: eight digits and a line.
const PREFIX: usize = 9;
/// Digits of the largest number.
const MOST_DIGITS: usize = 16;

#[derive(Debug, Clone)]
pub struct RequestId(pub(crate) HeaderValue);

impl RequestId {
    pub fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }
}

#[derive(Debug)]
pub(crate) struct RequestIds {
    /// Tells the ids of one start from those of another.
    prefix: String,
    made: AtomicU64,
}

impl RequestIds {
    pub(crate) fn new() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { prefix: format!("{:08x}-", since.as_millis() as u32), made: AtomicU64::new(0) }
    }

    /// The caller's own, if it can be used, else one that was never given.
    pub(crate) fn of(&self, headers: &HeaderMap) -> RequestId {
        let usable = |value: &&HeaderValue| value.len() <= MAX_LENGTH && value.as_bytes().iter().all(u8::is_ascii_graphic);
        if let Some(given) = headers.get(&REQUEST_ID).filter(usable) {
            return RequestId(given.clone());
        }
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        // Put together on the stack: a header's value is as long as its text, and a text that grew is not.
        let mut made = Cursor::new([0; PREFIX + MOST_DIGITS]);
        let written = write!(made, "{}{number:x}", self.prefix);
        let made = written.ok().and_then(|()| HeaderValue::from_bytes(&made.get_ref()[..made.position() as usize]).ok());
        RequestId(made.unwrap_or(HeaderValue::from_static("unknown")))
    }
}
