//! Frames of `application/vnd.amazon.eventstream`: a length, headers, a payload, and a checksum over each.
//!
//! A frame is handed over only when all of it has come, so that its length is judged here, once, before anything is kept for it.

use bytes::{BufMut, Bytes, BytesMut};
use crc32fast::hash;

/// A prelude and two checksums.
const SHORTEST: usize = 16;
/// The kind of a header that is one.
const TEXT: u8 = 7;

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

/// What a frame says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Those that are texts; of the others only the length is known.
    headers: Vec<(String, String)>,
    payload: Bytes,
}

impl Frame {
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }
}

/// What a whole frame says, if its checksums are right.
pub fn read(mut frame: Bytes) -> Result<Frame, BadFrame> {
    let broken = |why: &str| BadFrame::Broken(why.to_owned());
    let number = |at: usize| frame.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes);
    let (Some(length), Some(headers), Some(checksum)) = (number(0), number(4), number(8)) else {
        return Err(broken("it has no beginning"));
    };
    if hash(&frame[..8]) != checksum {
        return Err(broken("the checksum of its beginning is wrong"));
    }
    let (length, headers) = (length as usize, headers as usize);
    if length != frame.len() || length < SHORTEST || headers > length - SHORTEST {
        return Err(broken("its lengths are wrong"));
    }
    if number(length - 4) != Some(hash(&frame[..length - 4])) {
        return Err(broken("its checksum is wrong"));
    }
    frame.truncate(length - 4);
    let payload = frame.split_off(12 + headers);
    let headers = texts(&frame[12..]).ok_or_else(|| broken("its headers cannot be read"))?;
    Ok(Frame { headers, payload })
}

/// Each is a name, a kind and a value, whose length is that of its kind or stands before it.
fn texts(mut bytes: &[u8]) -> Option<Vec<(String, String)>> {
    let mut texts = Vec::new();
    while let Some((&length, rest)) = bytes.split_first() {
        let (name, rest) = rest.split_at_checked(length.into())?;
        let (&kind, rest) = rest.split_first()?;
        let (length, rest) = match kind {
            0 | 1 => (0, rest),
            2 => (1, rest),
            3 => (2, rest),
            4 => (4, rest),
            5 | 8 => (8, rest),
            6 | 7 => {
                let (length, rest) = rest.split_first_chunk()?;
                (u16::from_be_bytes(*length).into(), rest)
            }
            9 => (16, rest),
            _ => return None,
        };
        let (value, rest) = rest.split_at_checked(length)?;
        let name = str::from_utf8(name).ok()?;
        if kind == TEXT {
            texts.push((name.to_owned(), str::from_utf8(value).ok()?.to_owned()));
        }
        bytes = rest;
    }
    Some(texts)
}

/// A header's text; nothing where there is none.
pub fn header<'a>(frame: &'a Frame, name: &str) -> &'a str {
    frame.headers.iter().find(|(known, _)| known == name).map_or("", |(_, text)| text)
}

/// An event of this name, as a service sends it.
pub fn event(name: &'static str, payload: impl Into<Bytes>) -> Bytes {
    let payload = payload.into();
    let mut headers = BytesMut::new();
    for (name, text) in [(":event-type", name), (":content-type", "application/json"), (":message-type", "event")] {
        headers.put_u8(name.len() as u8);
        headers.put_slice(name.as_bytes());
        headers.put_u8(TEXT);
        headers.put_u16(text.len() as u16);
        headers.put_slice(text.as_bytes());
    }
    let mut frame = BytesMut::new();
    frame.put_u32((SHORTEST + headers.len() + payload.len()) as u32);
    frame.put_u32(headers.len() as u32);
    frame.put_u32(hash(&frame));
    frame.put_slice(&headers);
    frame.put_slice(&payload);
    frame.put_u32(hash(&frame));
    frame.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_smithy_eventstream::frame::{read_message_from, write_message_to};
    use aws_smithy_types::event_stream::{Header, HeaderValue, Message};
    use proptest::prelude::*;

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
            assert!(read(wrong.into()).is_err(), "byte {place}");
        }
        for length in [0_u32, 15, 1_001, u32::MAX] {
            let mut buffer = BytesMut::from(&length.to_be_bytes()[..]);
            assert_eq!(take(&mut buffer, 1_000), Err(BadFrame::Length(length as usize)));
        }
        assert_eq!(take(&mut BytesMut::from(&b"\0\0\0"[..]), 1_000), Ok(None));
    }

    fn value() -> impl Strategy<Value = HeaderValue> {
        prop_oneof![
            any::<bool>().prop_map(HeaderValue::Bool),
            any::<i8>().prop_map(HeaderValue::Byte),
            any::<i16>().prop_map(HeaderValue::Int16),
            any::<i32>().prop_map(HeaderValue::Int32),
            any::<i64>().prop_map(HeaderValue::Int64),
            proptest::collection::vec(any::<u8>(), 0..20).prop_map(|bytes| HeaderValue::ByteArray(bytes.into())),
            ".{0,20}".prop_map(|text| HeaderValue::String(text.into())),
            any::<u128>().prop_map(HeaderValue::Uuid),
        ]
    }

    proptest! {
        #[test]
        fn no_bytes_break_the_reading(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut buffer = BytesMut::from(&bytes[..]);
            while let Ok(Some(frame)) = take(&mut buffer, 150) {
                let _ = read(frame);
            }
            let _ = read(Bytes::from(bytes.clone()));
            let _ = texts(&bytes);
        }

        #[test]
        fn what_awss_library_writes_is_read_here(
            headers in proptest::collection::vec(("[a-z:-]{1,12}", value()), 0..6),
            payload in proptest::collection::vec(any::<u8>(), 0..50),
        ) {
            let message = headers.iter().fold(Message::new(payload.clone()), |message, (name, value)| {
                message.add_header(Header::new(name.clone(), value.clone()))
            });
            let mut bytes = Vec::new();
            write_message_to(&message, &mut bytes).unwrap();
            let frame = read(bytes.into()).unwrap();
            prop_assert_eq!(frame.payload(), &payload);
            for (name, _) in &headers {
                let first = headers.iter().filter(|(known, _)| known == name).find_map(|(_, value)| value.as_string().ok());
                prop_assert_eq!(header(&frame, name), first.map_or("", |text| text.as_str()));
            }
        }

        #[test]
        fn what_is_written_here_awss_library_reads(payload in "[ -~]{0,80}") {
            let message = read_message_from(&*event("contentBlockDelta", payload.clone())).unwrap();
            prop_assert_eq!(message.payload(), &payload);
            let headers: Vec<_> = message.headers().iter().map(|header| (header.name().as_str(), header.value().as_string().unwrap().as_str())).collect();
            prop_assert_eq!(headers, [(":event-type", "contentBlockDelta"), (":content-type", "application/json"), (":message-type", "event")]);
        }
    }
}
