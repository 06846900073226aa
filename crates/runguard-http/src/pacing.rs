//! Answers over HTTP/2 in pieces, with an eye on whether they are taken.
//!
//! A client of HTTP/2 that does not read does not stop the socket, only its stream: it opens no window, and the answer
//! stays in memory for as long as the connection lives. So an answer goes out in small pieces, and a piece that was given
//! and not followed by another for too long ends the connection.

use crate::reply::Body;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::Instant;

/// A frame's usual size.
const PIECE: usize = 16 * 1024;

/// What the answers of one connection wait for.
#[derive(Debug)]
pub(crate) struct Progress {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    next: u64,
    /// Answers that have more to give, with the moment they gave last.
    given: HashMap<u64, Instant>,
    /// Requests whose answer is not there yet.
    computing: usize,
    last_active: Instant,
}

impl Progress {
    pub(crate) fn new() -> Arc<Self> {
        let state = State { next: 0, given: HashMap::new(), computing: 0, last_active: Instant::now() };
        Arc::new(Self { state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request is being answered until what this gives is dropped.
    pub(crate) fn computing(self: &Arc<Self>) -> Computing {
        let mut state = self.state();
        state.computing += 1;
        state.last_active = Instant::now();
        Computing { progress: self.clone() }
    }

    pub(crate) fn paced(self: &Arc<Self>, body: Body) -> Paced {
        let mut state = self.state();
        state.next += 1;
        Paced { body, left: Bytes::new(), number: state.next, progress: self.clone() }
    }

    /// Ready when an answer was not taken for `stall`, or when nothing at all happened for `idle`.
    pub(crate) async fn ended(&self, stall: Duration, idle: Duration) -> &'static str {
        loop {
            tokio::time::sleep(stall.min(idle) / 6).await;
            let state = self.state();
            if state.given.values().any(|given| given.elapsed() >= stall) {
                return "the client does not read";
            }
            if state.computing == 0 && state.last_active.elapsed() >= idle {
                return "idle";
            }
        }
    }
}

pub(crate) struct Computing {
    progress: Arc<Progress>,
}

impl Drop for Computing {
    fn drop(&mut self) {
        let mut state = self.progress.state();
        state.computing -= 1;
        state.last_active = Instant::now();
    }
}

#[derive(Debug)]
pub(crate) struct Paced {
    body: Body,
    /// What is left of a frame that was larger than a piece.
    left: Bytes,
    number: u64,
    progress: Arc<Progress>,
}

impl Paced {
    fn give(&mut self, mut data: Bytes) -> Frame<Bytes> {
        let piece = data.split_to(data.len().min(PIECE));
        self.left = data;
        let now = Instant::now();
        let mut state = self.progress.state();
        state.last_active = now;
        state.given.insert(self.number, now);
        Frame::data(piece)
    }
}

impl hyper::body::Body for Paced {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        // Asked for more: what was given is taken.
        let number = self.number;
        self.progress.state().given.remove(&number);
        if !self.left.is_empty() {
            let left = std::mem::take(&mut self.left);
            return Poll::Ready(Some(Ok(self.give(left))));
        }
        let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => return Poll::Ready(Some(Err(axum::Error::new(error)))),
            None => return Poll::Ready(None),
        };
        Poll::Ready(Some(Ok(match frame.into_data() {
            Ok(data) => self.give(data),
            Err(trailers) => trailers,
        })))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.body.size_hint();
        let mut hint = SizeHint::new();
        let left = self.left.len() as u64;
        hint.set_lower(rest.lower() + left);
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper + left);
        }
        hint
    }
}

impl Drop for Paced {
    fn drop(&mut self) {
        self.progress.state().given.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::{BodyExt, Either, Full};
    use hyper::body::Body as _;

    const STALL: Duration = Duration::from_secs(30);
    const IDLE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn an_answer_goes_out_whole_and_in_pieces() {
        let progress = Progress::new();
        let whole = Bytes::from(vec![7; PIECE * 2 + 5]);
        let mut body = progress.paced(Either::Left(Full::new(whole.clone())));
        assert_eq!(body.size_hint().exact(), Some(whole.len() as u64));
        let mut pieces = Vec::new();
        while let Some(frame) = body.frame().await {
            pieces.push(frame.unwrap().into_data().unwrap());
        }
        assert_eq!(pieces.iter().map(Bytes::len).collect::<Vec<_>>(), [PIECE, PIECE, 5]);
        assert_eq!(pieces.concat(), whole);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_taken_ends_the_connection_and_what_has_nothing_to_give_does_not() {
        let progress = Progress::new();
        let mut body = progress.paced(Either::Left(Full::new(Bytes::from(vec![7; PIECE * 2]))));
        body.frame().await.unwrap().unwrap();
        assert_eq!(progress.ended(STALL, IDLE).await, "the client does not read");
        drop(body);
        let computing = progress.computing();
        assert!(tokio::time::timeout(IDLE * 10, progress.ended(STALL, IDLE)).await.is_err(), "a long computation is no idleness");
        drop(computing);
        assert_eq!(progress.ended(STALL, IDLE).await, "idle");
    }
}
