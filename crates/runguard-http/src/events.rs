//! Server-sent events: cut out of a stream byte for byte, so that they can be passed on unchanged, and read as the HTML standard says.
//!
//! Bytes come in pieces that end anywhere. Lines end only at CR, LF or CRLF, which are never part of a longer character, so an event is
//! cut before it is decoded and no piece's end can matter. Bytes that are no UTF-8 become U+FFFD, as the standard has it: an answer that
//! is paid for is not thrown away over one broken character. An event without its blank line is dropped at the end of a stream, also as
//! the standard has it; whether the end is a true one is the reader's to know.

use bytes::{Bytes, BytesMut};
use std::borrow::Cow;
use std::time::Duration;

/// One event is at most this long, its comments and unknown fields included.
const MOST_EVENT_BYTES: usize = 8 * 1024 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("one event of the stream is longer than {0} bytes: the stream was closed")]
pub struct TooLong(usize);

/// Cuts a stream into events, whatever the sizes of its pieces.
#[derive(Debug)]
pub struct Splitter {
    buffer: BytesMut,
    /// Of the buffer, without an end of an event.
    searched: usize,
    most_bytes: usize,
}

impl Default for Splitter {
    fn default() -> Self {
        Self::of(MOST_EVENT_BYTES)
    }
}

impl Splitter {
    /// One whose events are at most this long.
    #[must_use]
    pub fn of(most_bytes: usize) -> Self {
        Self { buffer: BytesMut::new(), searched: 0, most_bytes }
    }

    /// Takes the next piece. What it completes is to be taken out with [`Self::next`] before the next one comes.
    ///
    /// # Errors
    /// The event under way is too long to be one.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        if self.buffer.len() + bytes.len() > self.most_bytes {
            return Err(TooLong(self.most_bytes));
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    /// The next event with the blank line that ends it, if it has come.
    #[expect(clippy::should_implement_trait, reason = "more may come after nothing did")]
    pub fn next(&mut self) -> Option<Bytes> {
        let end = self.end()?;
        self.searched = 0;
        Some(self.buffer.split_to(end).freeze())
    }

    /// Whether nothing is left over: what came behind the last event are ends of lines or comments.
    #[must_use]
    pub fn is_between_events(&self) -> bool {
        self.buffer[..].split(|byte| matches!(byte, b'\n' | b'\r')).all(|line| line.is_empty() || line.starts_with(b":"))
    }

    /// What came behind the last whole event.
    pub fn take_rest(&mut self) -> Bytes {
        self.searched = 0;
        self.buffer.split().freeze()
    }

    /// Where the first event ends: behind two ends of lines that follow each other.
    fn end(&mut self) -> Option<usize> {
        let bytes = &self.buffer[..];
        let mut at = self.searched;
        while let Some(found) = memchr::memchr2(b'\n', b'\r', &bytes[at..]) {
            let first = at + found;
            let second = first + line_end(&bytes[first..])?;
            match bytes.get(second) {
                None => {
                    self.searched = first;
                    return None;
                }
                Some(b'\n') => return Some(second + 1),
                // At the end of a piece a line feed may follow that belongs to it: before the next event it is an empty line more.
                Some(b'\r') => return Some(second + line_end(&bytes[second..]).unwrap_or(1)),
                Some(_) => at = second,
            }
        }
        self.searched = bytes.len();
        None
    }
}

/// The length of the end of a line that stands here; nothing while it may go on.
fn line_end(bytes: &[u8]) -> Option<usize> {
    match bytes {
        [b'\r', b'\n', ..] => Some(2),
        [b'\r'] => None,
        _ => Some(1),
    }
}

/// What one event says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Event<'a> {
    /// Empty when the stream does not name it.
    pub name: Cow<'a, str>,
    pub data: Cow<'a, str>,
}

impl<'a> Event<'a> {
    /// Reads one event as [`Splitter::next`] gives it; nothing when it has no data. A byte-order mark before it is passed over.
    #[must_use]
    pub fn read(event: &'a [u8]) -> Option<Self> {
        let event = event.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(event);
        let (mut name, mut data) = (Cow::Borrowed(""), None::<Cow<'a, str>>);
        // A line feed behind a carriage return leaves an empty line: nothing is said by it.
        for (field, value) in fields(event) {
            match field {
                b"data" => {
                    data = Some(match data {
                        None => value,
                        Some(earlier) => {
                            let mut lines = earlier.into_owned();
                            lines.push('\n');
                            lines.push_str(&value);
                            Cow::Owned(lines)
                        }
                    });
                }
                b"event" => name = value,
                // Comments have an empty name; `id` and `retry` are a `ResumePoint`.
                _ => {}
            }
        }
        data.map(|data| Self { name, data })
    }
}

/// What one event says to those who take a stream up again where it broke off.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResumePoint<'a> {
    pub id: Option<Cow<'a, str>>,
    /// To be waited before.
    pub pause: Option<Duration>,
}

impl<'a> ResumePoint<'a> {
    #[must_use]
    pub fn read(event: &'a [u8]) -> Self {
        let mut place = Self::default();
        for (field, value) in fields(event) {
            match field {
                b"id" if !value.contains('\0') => place.id = Some(value),
                b"retry" => place.pause = value.parse().ok().map(Duration::from_millis),
                _ => {}
            }
        }
        place
    }
}

/// The lines of an event, each a name and what it says.
fn fields(event: &[u8]) -> impl Iterator<Item = (&[u8], Cow<'_, str>)> {
    event.split(|byte| matches!(byte, b'\n' | b'\r')).map(|line| {
        let colon = memchr::memchr(b':', line).unwrap_or(line.len());
        let (field, value) = line.split_at(colon);
        let value = value.strip_prefix(b":").unwrap_or(value);
        (field, String::from_utf8_lossy(value.strip_prefix(b" ").unwrap_or(value)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Bytes>, Splitter) {
        let (mut splitter, mut events) = (Splitter::default(), Vec::new());
        for piece in pieces {
            splitter.push(piece).unwrap();
            while let Some(event) = splitter.next() {
                events.push(event);
            }
        }
        (events, splitter)
    }

    fn read<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<(String, String)> {
        let (events, _) = split(pieces);
        events.iter().filter_map(|event| Event::read(event)).map(|event| (event.name.into_owned(), event.data.into_owned())).collect()
    }

    fn said(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|(name, data)| ((*name).to_owned(), (*data).to_owned())).collect()
    }

    #[test]
    fn events_are_whole_and_as_they_came() {
        let stream = &b"event: a\ndata: 1\n\ndata: 2\r\n\r\n: note\n\ndata: 3\r\rdata: 4"[..];
        let (events, mut splitter) = split([stream]);
        let expected: Vec<&[u8]> = vec![b"event: a\ndata: 1\n\n", b"data: 2\r\n\r\n", b": note\n\n", b"data: 3\r\r"];
        assert_eq!(events, expected);
        assert!(!splitter.is_between_events());
        assert_eq!(splitter.take_rest(), &b"data: 4"[..]);
        assert!(splitter.is_between_events());
    }

    #[test]
    fn the_standards_own_examples_and_the_odd_ones() {
        let cases: [(&str, &[(&str, &str)]); 12] = [
            ("data: YHOO\ndata: +2\ndata: 10\n\n", &[("", "YHOO\n+2\n10")]),
            (
                ": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n",
                &[("", "first event"), ("", "second event"), ("", " third event")],
            ),
            ("data\n\ndata\ndata\n\ndata:", &[("", ""), ("", "\n")]),
            ("data:test\n\ndata: test\n\n", &[("", "test"), ("", "test")]),
            ("event: add\ndata: 73\n\ndata: 74\n\n", &[("add", "73"), ("", "74")]),
            ("event: lost\n\ndata: 1\n\n", &[("", "1")]),
            ("\u{FEFF}data: 1\n\n", &[("", "1")]),
            ("data: 1\r\rdata: 2\r\n\r\ndata: 3\n\n", &[("", "1"), ("", "2"), ("", "3")]),
            ("data: 1\r\ndata: 2\r\n\r\n", &[("", "1\n2")]),
            ("retry: 5\nunknown: x\n:\ndata: a:b: c\n\n", &[("", "a:b: c")]),
            ("data: not ended\n", &[]),
            ("\n\n\r\n\r\r", &[]),
        ];
        for (stream, expected) in cases {
            assert_eq!(read([stream.as_bytes()]), said(expected), "{stream:?}");
        }
    }

    #[test]
    fn where_a_stream_can_be_taken_up() {
        let place = |event: &'static [u8]| ResumePoint::read(event);
        assert_eq!(place(b"id: 7\nretry: 250\n\n"), ResumePoint { id: Some("7".into()), pause: Some(Duration::from_millis(250)) });
        assert_eq!(place(b"id\ndata: x\n\n"), ResumePoint { id: Some("".into()), pause: None });
        assert_eq!(place(b"id: a\0b\nretry: soon\n\n"), ResumePoint::default());
    }

    #[test]
    fn what_is_no_utf8_is_replaced_and_the_rest_kept() {
        assert_eq!(read([&b"data: a\xFFb\xE2\x82\ndata: \xE2\x82\xAC\n\n"[..]]), said(&[("", "a\u{FFFD}b\u{FFFD}\n€")]));
    }

    #[test]
    fn an_event_has_a_bound_whatever_it_is_made_of_and_a_stream_has_none() {
        for filler in [&b"x"[..], b"data: x\n", b": x\n"] {
            let mut splitter = Splitter::default();
            let block = filler.repeat(1024 * 1024 / filler.len());
            let pushed = (0..9).any(|_| splitter.push(&block).is_err() || splitter.next().is_some());
            assert!(pushed, "{filler:?}");
        }
        let block = b"data: x\n\n".repeat(100_000);
        assert_eq!(split(std::iter::repeat_n(&block[..], 12)).0.len(), 1_200_000);
    }

    /// Pieces of streams, so that random bytes meet the grammar often.
    fn stream() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            prop::sample::select(vec![
                &b"data: "[..],
                b"data:",
                b"data",
                b"event: a",
                b"event",
                b": c",
                b"\n",
                b"\r",
                b"\r\n",
                b"\n\n",
                "€😀".as_bytes(),
                b"\xF0\x9F",
                b" ",
                b":",
            ])
            .prop_map(<[u8]>::to_vec),
            prop::collection::vec(any::<u8>(), 0..6),
        ];
        prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
    }

    /// The standard's algorithm on the whole text, written the slow way.
    fn reference(stream: &[u8]) -> Vec<(String, String)> {
        let text = String::from_utf8_lossy(stream).replace("\r\n", "\n").replace('\r', "\n");
        let Some((ended, _)) = text.rsplit_once('\n') else { return Vec::new() };
        let (mut found, mut event, mut data) = (Vec::new(), String::new(), Vec::<String>::new());
        for line in ended.split('\n') {
            let (field, value) =
                line.split_once(':').map_or((line, ""), |(field, value)| (field, value.strip_prefix(' ').unwrap_or(value)));
            match (line, field) {
                ("", _) => {
                    if !data.is_empty() {
                        found.push((event.clone(), data.join("\n")));
                    }
                    event.clear();
                    data.clear();
                }
                (_, "data") => data.push(value.to_owned()),
                (_, "event") => value.clone_into(&mut event),
                _ => {}
            }
        }
        found
    }

    proptest! {
        #[test]
        fn no_split_changes_the_events_and_no_byte_is_lost(
            stream in stream(),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let expected = reference(&stream);
            prop_assert_eq!(&read([&stream[..]]), &expected);
            prop_assert_eq!(&read(stream.chunks(1)), &expected);
            let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
            places.extend([0, stream.len()]);
            places.sort_unstable();
            let pieces = || places.windows(2).map(|pair| &stream[pair[0]..pair[1]]);
            prop_assert_eq!(&read(pieces()), &expected);
            let (events, mut splitter) = split(pieces());
            prop_assert_eq!([events.concat(), splitter.take_rest().to_vec()].concat(), stream);
        }
    }
}
