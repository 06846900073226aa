//! A provider's stream in whole events, byte for byte, so that they can be passed on unchanged: server-sent ones, or frames.

use crate::api::{Api, Dialect};
use bytes::{Bytes, BytesMut};
use runguard_http::aws::frames;
use runguard_http::events::Splitter;

/// What a stream of frames says it is.
pub(crate) const FRAMES: &str = "application/vnd.amazon.eventstream";

/// One frame is at most this long.
const MOST_FRAME_BYTES: usize = 8 * 1024 * 1024;

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
}
