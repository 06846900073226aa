//! Frames of `application/vnd.amazon.eventstream`: a length, headers, a payload, and a checksum over each.
//!
//! A frame is handed over only when all of it has come, so that its length is judged here, once, before anything is kept for it.

use aws_smithy_eventstream::frame::{read_message_from, write_message_to};
pub use aws_smithy_types::event_stream::Message as Frame;
use aws_smithy_types::event_stream::{Header, HeaderValue};
use bytes::{Buf, Bytes, BytesMut};

/// A prelude and two checksums.
const SHORTEST: usize = 16;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
    #[error("a frame of {0} bytes")]
    Length(usize),
    #[error("a broken frame: {0}")]
    Broken(String),
}

/// Takes the next frame off the beginning, if all of it is there, byte for byte.
pub fn take(buffer: &mut BytesMut, longest: usize) -> Result<Option<Bytes>, BadFrame> {
    let Some(prefix) = buffer.first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_be_bytes(*prefix) as usize;
    if !(SHORTEST..=longest).contains(&length) {
        return Err(BadFrame::Length(length));
    }
    Ok((buffer.len() >= length).then(|| buffer.split_to(length).freeze()))
}

/// What a whole frame says, if its checksums are right.
pub fn read(frame: impl Buf) -> Result<Frame, BadFrame> {
    read_message_from(frame).map_err(|problem| BadFrame::Broken(problem.to_string()))
}

/// A header's text; nothing where there is none.
pub fn header<'a>(frame: &'a Frame, name: &str) -> &'a str {
    let header = frame.headers().iter().find(|header| header.name().as_str() == name);
    header.and_then(|header| header.value().as_string().ok()).map_or("", |value| value.as_str())
}

/// An event of this name, as a service sends it.
pub fn event(name: &'static str, payload: impl Into<Bytes>) -> Bytes {
    let text = |text: &'static str| HeaderValue::String(text.into());
    let frame = Frame::new(payload)
        .add_header(Header::new(":event-type", text(name)))
        .add_header(Header::new(":content-type", text("application/json")))
        .add_header(Header::new(":message-type", text("event")));
    let mut bytes = Vec::new();
    // Only lengths beyond 4 GB cannot be written.
    match write_message_to(&frame, &mut bytes) {
        Ok(()) => bytes.into(),
        Err(_) => Bytes::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_what_it_was_written_as() {
        let (first, second) = (event("messageStop", "{\"stopReason\":\"max_tokens\"}"), event("metadata", "{}"));
        let mut buffer = BytesMut::from(&[&first[..], &second[..5]].concat()[..]);
        let taken = take(&mut buffer, 1_000).unwrap().unwrap();
        assert_eq!(taken, first);
        assert_eq!(take(&mut buffer, 1_000), Ok(None), "the second has not come yet");
        let frame = read(taken).unwrap();
        assert_eq!((header(&frame, ":event-type"), header(&frame, ":message-type"), header(&frame, "x")), ("messageStop", "event", ""));
        assert_eq!(frame.payload(), "{\"stopReason\":\"max_tokens\"}");
    }

    #[test]
    fn a_wrong_byte_anywhere_is_noticed_and_a_length_is_believed_within_bounds_only() {
        let frame = event("chunk", "{\"bytes\":\"e30=\"}");
        for place in 0..frame.len() {
            let mut wrong = frame.to_vec();
            wrong[place] ^= 1;
            assert!(read(&wrong[..]).is_err(), "byte {place}");
        }
        for length in [0_u32, 15, 1_001, u32::MAX] {
            let mut buffer = BytesMut::from(&length.to_be_bytes()[..]);
            assert_eq!(take(&mut buffer, 1_000), Err(BadFrame::Length(length as usize)));
        }
        assert_eq!(take(&mut BytesMut::from(&b"\0\0\0"[..]), 1_000), Ok(None));
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_break_the_reading(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
            let mut buffer = BytesMut::from(&bytes[..]);
            while let Ok(Some(frame)) = take(&mut buffer, 150) {
                let _ = read(frame);
            }
        }
    }
}
