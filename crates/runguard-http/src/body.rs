//! Reads a body within bounds of size, time and memory. Asked for after the key, so a stranger cannot make us read.

use crate::load::Share;
use crate::problem::Problem;
use bytes::{Buf, Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::body::Body;
use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

type BoxError = Box<dyn Error + Send + Sync>;

/// What a route takes that needs no more.
pub const SMALL: usize = 64 * 1024;
/// The longest body of any route.
pub const LARGE: usize = 1024 * 1024;
/// A body that is too large is still read up to here and thrown away, so that the client sees our answer and not a broken
/// connection. A route that takes more reads as much as it takes.
const MAX_DRAIN: usize = 16 * 1024 * 1024;
const TIMEOUT: Duration = Duration::from_secs(10);

/// How much a route takes, and what to do with what does not fit.
#[derive(Debug, Clone, Copy)]
pub struct Limit {
    pub bytes: usize,
    pub advice: &'static str,
}

/// The whole body. What is held of it counts against the caller's share.
pub async fn read<B: Body<Data: Buf, Error: Into<BoxError>> + Unpin>(body: B, limit: Limit, share: &mut Share) -> Result<Bytes, Problem> {
    let too_large = || Problem::too_large(limit.bytes, limit.advice);
    if body.size_hint().lower() > MAX_DRAIN.max(limit.bytes) as u64 {
        return Err(too_large());
    }
    let mut collecting = pin!(collect(body, limit.bytes, share));
    // Most have come with their head: those need no timer.
    let collected = match poll_fn(|context| Poll::Ready(collecting.as_mut().poll(context))).await {
        Poll::Ready(collected) => collected,
        Poll::Pending => tokio::time::timeout(TIMEOUT, collecting).await.map_err(|_| Problem::too_slow())?,
    };
    collected?.ok_or_else(too_large)
}

/// Why no more of a body came: its end is not where it should be, or what stands between its pieces is no HTTP.
fn broken(error: &(dyn Error + 'static)) -> Problem {
    let mut cause = Some(error);
    let mut is_unreadable = false;
    while let Some(error) = cause {
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        is_unreadable |= matches!(kind, Some(io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData));
        cause = error.source();
    }
    if is_unreadable { Problem::unreadable(StatusCode::BAD_REQUEST) } else { Problem::broken_body() }
}

/// `None`: it is too large.
async fn collect<B: Body<Data: Buf, Error: Into<BoxError>> + Unpin>(
    mut body: B,
    limit: usize,
    share: &mut Share,
) -> Result<Option<Bytes>, Problem> {
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        let Ok(mut data) = frame.map_err(|error| broken(&*error.into()))?.into_data() else { continue };
        let piece = data.remaining();
        length += piece;
        if length > MAX_DRAIN.max(limit) {
            break;
        }
        if length > limit {
            continue;
        }
        share.hold(piece as u64)?;
        // A small body comes in one piece: no copy.
        if first.is_empty() && rest.is_empty() {
            first = data.copy_to_bytes(piece);
        } else {
            if rest.is_empty() {
                rest.extend_from_slice(&first);
            }
            rest.extend_from_slice(&data.copy_to_bytes(piece));
        }
    }
    if length > limit {
        return Ok(None);
    }
    Ok(Some(if rest.is_empty() { first } else { rest.freeze() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use futures_util::stream;
    use std::convert::Infallible;

    const LIMIT: Limit = Limit { bytes: SMALL, advice: "" };

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_come_is_not_waited_for() {
        let body = Body::from_stream(stream::pending::<Result<Bytes, Infallible>>());
        let began = tokio::time::Instant::now();
        assert_eq!(read(body, LIMIT, &mut Share::unbounded()).await.unwrap_err().status().as_u16(), 408);
        assert_eq!(began.elapsed(), TIMEOUT);
    }

    #[tokio::test]
    async fn a_body_that_is_no_http_is_told_from_one_that_broke_off() {
        for (kind, said) in [(io::ErrorKind::InvalidInput, "not HTTP/1.1"), (io::ErrorKind::UnexpectedEof, "ended before")] {
            let body = Body::from_stream(stream::iter([Err::<Bytes, _>(io::Error::new(kind, "chunk"))]));
            let problem = read(body, LIMIT, &mut Share::unbounded()).await.unwrap_err();
            assert_eq!(problem.status().as_u16(), 400);
            assert!(format!("{problem:?}").contains(said), "{problem:?}");
        }
    }

    #[tokio::test]
    async fn an_endless_body_is_not_read_to_its_end() {
        let piece = Bytes::from(vec![b'x'; 1000]);
        let body = Body::from_stream(stream::repeat_with(move || Ok::<_, Infallible>(piece.clone())));
        assert_eq!(read(body, LIMIT, &mut Share::unbounded()).await.unwrap_err().status().as_u16(), 413);
    }

    #[tokio::test]
    async fn pieces_become_one_body_up_to_the_limit() {
        for (pieces, fits) in [(64, true), (65, false)] {
            let piece = Bytes::from(vec![b'x'; 1024]);
            let body = Body::from_stream(stream::iter((0..pieces).map(move |_| Ok::<_, Infallible>(piece.clone()))));
            let read = read(body, LIMIT, &mut Share::unbounded()).await;
            assert_eq!(read.is_ok_and(|body| body.len() == pieces * 1024), fits);
        }
    }

    #[tokio::test]
    async fn a_route_that_takes_much_takes_all_of_it() {
        let limit = Limit { bytes: 2 * MAX_DRAIN, advice: "" };
        let piece = Bytes::from(vec![b'x'; MAX_DRAIN / 2 + 1]);
        for (pieces, fits) in [(3, true), (4, false)] {
            let piece = piece.clone();
            let body = Body::from_stream(stream::iter((0..pieces).map(move |_| Ok::<_, Infallible>(piece.clone()))));
            let read = read(body, limit, &mut Share::unbounded()).await;
            assert_eq!(read.is_ok_and(|body| body.len() == pieces * (MAX_DRAIN / 2 + 1)), fits);
        }
    }
}
