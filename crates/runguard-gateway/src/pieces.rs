//! A provider's stream in whole events, byte for byte, so that they can be passed on unchanged: server-sent ones, or frames.

use crate::api::{Api, Dialect};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use runguard_http::aws::frames;
use runguard_http::events::{Event, Splitter};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;

/// What a stream of frames says it is.
pub(crate) const FRAMES: &str = "application/vnd.amazon.eventstream";

/// How long a provider may be silent in the middle of an answer.
const IDLE: Duration = Duration::from_secs(600);
/// How long signs of life are held back for the first event, and how many bytes of them: whoever waits may want to see them.
const SIGNS_OF_LIFE: Duration = Duration::from_secs(5);
const MOST_SIGNS_BYTES: usize = 16 * 1024;

/// One frame is at most this long.
const MOST_FRAME_BYTES: usize = 8 * 1024 * 1024;

/// An answer in one piece; nothing where it breaks off, is longer than that, or stands still.
pub(crate) async fn whole<B: Body<Data = Bytes> + Unpin>(mut body: B, most: usize) -> Option<Bytes> {
    let (mut first, mut rest) = (Bytes::new(), BytesMut::new());
    while let Some(frame) = tokio::time::timeout(IDLE, body.frame()).await.ok()? {
        let Ok(piece) = frame.ok()?.into_data() else { continue };
        if first.len().max(rest.len()) + piece.len() > most {
            return None;
        }
        // Most come in one piece: no copy.
        if first.is_empty() {
            first = piece;
        } else {
            if rest.is_empty() {
                rest.extend_from_slice(&first);
            }
            rest.extend_from_slice(&piece);
        }
    }
    Some(if rest.is_empty() { first } else { rest.freeze() })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("one event of the stream is too long, or has a length that cannot be")]
pub(crate) struct Unreadable;

/// Cuts a stream of an interface into events.
#[derive(Debug)]
pub(crate) enum Pieces {
    Events(Splitter),
    /// Whether their checksums are right is for the reader to see: they are passed on as they are.
    Frames(BytesMut),
}

impl Pieces {
    pub(crate) fn of(api: Api) -> Self {
        match api.dialect() {
            Dialect::OpenAi | Dialect::Anthropic => Self::Events(Splitter::default()),
            Dialect::Bedrock => Self::Frames(BytesMut::new()),
        }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), Unreadable> {
        match self {
            Self::Events(splitter) => splitter.push(bytes).map_err(|_| Unreadable),
            Self::Frames(buffer) if buffer.len() + bytes.len() > MOST_FRAME_BYTES => Err(Unreadable),
            Self::Frames(buffer) => {
                buffer.extend_from_slice(bytes);
                Ok(())
            }
        }
    }

    /// The next whole event, if it has come. Behind a frame whose length cannot be, nothing can be told apart.
    pub(crate) fn next(&mut self) -> Option<Result<Bytes, Unreadable>> {
        match self {
            Self::Events(splitter) => splitter.next().map(Ok),
            Self::Frames(buffer) => frames::take(buffer, MOST_FRAME_BYTES).map_err(|_| Unreadable).transpose(),
        }
    }

    /// What came behind the last whole event.
    pub(crate) fn take_rest(&mut self) -> Bytes {
        match self {
            Self::Events(splitter) => splitter.take_rest(),
            Self::Frames(buffer) => buffer.split().freeze(),
        }
    }
}

/// What a stream has come to.
#[derive(Debug)]
pub(crate) enum Came {
    Event(Bytes),
    /// Behind the last whole event, before the end.
    Rest(Bytes),
    End,
    /// It is silent for too long, or was never one.
    Broken,
    /// One event has at least so many bytes, and is not read: what it cost may be as much.
    TooLong(u64),
}

/// An answer that streams, event by event.
#[derive(Debug)]
pub(crate) struct Events {
    body: Incoming,
    pieces: Pieces,
    /// What was looked at, and not taken.
    looked_at: VecDeque<Came>,
    has_ended: bool,
}

impl Events {
    pub(crate) fn of(api: Api, body: Incoming) -> Self {
        Self { body, pieces: Pieces::of(api), looked_at: VecDeque::new(), has_ended: false }
    }

    /// What comes next. Whoever does not wait for it loses nothing.
    pub(crate) async fn next(&mut self) -> Came {
        match self.looked_at.pop_front() {
            Some(came) => came,
            None => self.read().await,
        }
    }

    async fn read(&mut self) -> Came {
        loop {
            match self.pieces.next() {
                Some(Ok(event)) => return Came::Event(event),
                Some(Err(Unreadable)) => return Came::Broken,
                None if self.has_ended => {
                    let rest = self.pieces.take_rest();
                    return if rest.is_empty() { Came::End } else { Came::Rest(rest) };
                }
                None => {}
            }
            let frame = match tokio::time::timeout(IDLE, self.body.frame()).await {
                Ok(None) => {
                    self.has_ended = true;
                    continue;
                }
                Ok(Some(Ok(frame))) => frame,
                Ok(Some(Err(_))) | Err(_) => return Came::Broken,
            };
            let data = frame.into_data().unwrap_or_default();
            if self.pieces.push(&data).is_err() {
                return Came::TooLong((self.pieces.take_rest().len() + data.len()) as u64);
            }
        }
    }

    /// The first event that says something, which stays to be taken; nothing where none comes, or only signs of life do for a while.
    pub(crate) async fn first(&mut self) -> Option<Bytes> {
        let (mut patient_until, mut signs) = (Instant::now() + IDLE, 0);
        loop {
            let came = tokio::time::timeout_at(patient_until, self.read()).await.ok()?;
            let first = match &came {
                Came::Event(event) if is_sign_of_life(event) => {
                    // From the first of them on.
                    patient_until = patient_until.min(Instant::now() + if signs == 0 { SIGNS_OF_LIFE } else { IDLE });
                    signs += event.len();
                    (signs > MOST_SIGNS_BYTES).then_some(None)
                }
                Came::Event(event) => Some(Some(event.clone())),
                Came::Rest(_) | Came::End | Came::Broken | Came::TooLong(_) => Some(None),
            };
            self.looked_at.push_back(came);
            if let Some(first) = first {
                return first;
            }
        }
    }
}

/// Whether an event only keeps the connection alive.
fn is_sign_of_life(event: &[u8]) -> bool {
    event.starts_with(b":") && Event::read(event).is_none() || event.starts_with(b"event: ping")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_whole_and_as_they_came_whatever_the_sizes_of_the_pieces() {
        let (one, two) = (frames::event("messageStart", "{}"), frames::event("messageStop", "{\"stopReason\":\"end_turn\"}"));
        let stream = [&one[..], &two[..], b"\0\0"].concat();
        for size in [1, 7, 1_000] {
            let (mut pieces, mut found) = (Pieces::of(Api::Converse), Vec::new());
            for piece in stream.chunks(size) {
                pieces.push(piece).unwrap();
                while let Some(frame) = pieces.next() {
                    found.push(frame.unwrap());
                }
            }
            assert_eq!((found, &pieces.take_rest()[..]), (vec![one.clone(), two.clone()], &b"\0\0"[..]), "in pieces of {size}");
        }
    }

    #[test]
    fn a_length_that_cannot_be_ends_the_stream_and_nothing_is_kept_for_it() {
        let mut pieces = Pieces::of(Api::Converse);
        pieces.push(&u32::MAX.to_be_bytes()).unwrap();
        assert_eq!(pieces.next(), Some(Err(Unreadable)));
        let mut endless = Pieces::of(Api::Converse);
        endless.push(&(MOST_FRAME_BYTES as u32).to_be_bytes()).unwrap();
        assert!((0..9).any(|_| endless.push(&vec![0; 1024 * 1024]).is_err()));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_stands_still_is_not_waited_for() {
        use axum::body::Body;
        use futures_util::stream::{self, StreamExt};
        let pieces = |texts: &'static [&'static str]| stream::iter(texts.iter().map(|text| Ok::<_, std::io::Error>(Bytes::from(*text))));
        assert_eq!(whole(Body::from_stream(pieces(&["{", "", "}"])), 2).await.as_deref(), Some(&b"{}"[..]));
        assert_eq!(whole(Body::from_stream(pieces(&[])), 2).await.as_deref(), Some(&b""[..]));
        assert_eq!(whole(Body::from_stream(pieces(&["{", "1", "}"])), 2).await, None, "longer than that");
        let began = Instant::now();
        assert_eq!(whole(Body::from_stream(pieces(&["{"]).chain(stream::pending())), 2).await, None);
        assert_eq!(began.elapsed(), IDLE);
    }
}
