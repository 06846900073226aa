//! Server-sent events, read as the HTML standard says.
//!
//! Bytes come in pieces that end anywhere. Lines end only at CR, LF or CRLF, which are never part of a longer character, so
//! the text is decoded a line at a time and no piece's end can matter. Bytes that are no UTF-8 become U+FFFD, as the standard
//! has it: an answer that is paid for is not thrown away over one broken character. An event without its blank line is
//! dropped at the end of the stream, also as the standard has it; whether the end is a true one is the provider's to know.

use super::{ErrorKind, ProviderError};

/// One event is at most this long, its comments and unknown fields included.
const MOST_EVENT_BYTES: usize = 8 * 1024 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Event<'a> {
    /// Empty when the stream does not name it.
    pub(super) event: &'a str,
    pub(super) data: &'a str,
}

#[derive(Debug, Default)]
pub(super) struct Parser {
    /// A line whose end has not come.
    line: Vec<u8>,
    event: String,
    /// Every data line with a line feed behind it, so that an event without data differs from one with an empty line.
    data: String,
    /// Bytes since the last blank line.
    event_bytes: usize,
    /// The last byte was a carriage return: a line feed belongs to it.
    after_return: bool,
    /// The first line is through: a byte-order mark can only stand before it.
    is_past_mark: bool,
}

impl Parser {
    /// Whether nothing is left over: the last event that began has ended.
    pub(super) fn is_between_events(&self) -> bool {
        self.line.is_empty() && self.data.is_empty() && self.event.is_empty()
    }

    /// Takes the next bytes and gives every event they complete.
    pub(super) fn push(
        &mut self,
        mut bytes: &[u8],
        mut take: impl FnMut(Event<'_>) -> Result<(), ProviderError>,
    ) -> Result<(), ProviderError> {
        loop {
            if self.after_return && !bytes.is_empty() {
                self.after_return = false;
                bytes = bytes.strip_prefix(b"\n").unwrap_or(bytes);
            }
            let end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let (part, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
            self.event_bytes += part.len();
            if self.event_bytes > MOST_EVENT_BYTES {
                let text = format!("one event of the stream is longer than {MOST_EVENT_BYTES} bytes: the stream was closed");
                return Err(ProviderError::new(ErrorKind::Endless, text));
            }
            let Some((ending, rest)) = rest.split_first() else {
                self.line.extend_from_slice(part);
                return Ok(());
            };
            self.after_return = *ending == b'\r';
            if self.line.is_empty() {
                self.line(part, &mut take)?;
            } else {
                self.line.extend_from_slice(part);
                let mut line = std::mem::take(&mut self.line);
                let result = self.line(&line, &mut take);
                line.clear();
                self.line = line;
                result?;
            }
            bytes = rest;
        }
    }

    fn line(&mut self, line: &[u8], take: &mut impl FnMut(Event<'_>) -> Result<(), ProviderError>) -> Result<(), ProviderError> {
        let is_first = !std::mem::replace(&mut self.is_past_mark, true);
        let line = if is_first { line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line) } else { line };
        if line.is_empty() {
            self.event_bytes = 0;
            let result = self.data.strip_suffix('\n').map_or(Ok(()), |data| take(Event { event: &self.event, data }));
            self.event.clear();
            self.data.clear();
            return result;
        }
        let line = String::from_utf8_lossy(line);
        let (field, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => {
                self.data.push_str(value);
                self.data.push('\n');
            }
            "event" => value.clone_into(&mut self.event),
            // Comments have an empty name; `id` and `retry` are for clients that reconnect.
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<(String, String)> {
        let (mut parser, mut events) = (Parser::default(), Vec::new());
        for piece in pieces {
            let taken = parser.push(piece, |event| {
                events.push((event.event.to_owned(), event.data.to_owned()));
                Ok(())
            });
            taken.unwrap();
        }
        events
    }

    fn events(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|(event, data)| ((*event).to_owned(), (*data).to_owned())).collect()
    }

    #[test]
    fn the_standards_own_examples_and_the_odd_ones() {
        let cases: [(&str, &[(&str, &str)]); 13] = [
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
            ("data: 1\n\n\u{FEFF}data: 2\n\n", &[("", "1")]),
            ("data: 1\r\rdata: 2\r\n\r\ndata: 3\n\n", &[("", "1"), ("", "2"), ("", "3")]),
            ("data: 1\r\ndata: 2\r\n\r\n", &[("", "1\n2")]),
            ("retry: 5\nunknown: x\n:\ndata: a:b: c\n\n", &[("", "a:b: c")]),
            ("data: not ended\n", &[]),
            ("\n\n\r\n\r\r", &[]),
        ];
        for (stream, expected) in cases {
            assert_eq!(parse([stream.as_bytes()]), events(expected), "{stream:?}");
        }
    }

    #[test]
    fn what_is_no_utf8_is_replaced_and_the_rest_kept() {
        assert_eq!(parse([&b"data: a\xFFb\xE2\x82\ndata: \xE2\x82\xAC\n\n"[..]]), events(&[("", "a\u{FFFD}b\u{FFFD}\n€")]));
    }

    #[test]
    fn an_event_has_a_bound_whatever_it_is_made_of_and_a_stream_has_none() {
        for filler in [&b"x"[..], b"data: x\n", b": x\n"] {
            let mut parser = Parser::default();
            let block = filler.repeat(1024 * 1024 / filler.len());
            let error = (0..13).find_map(|_| parser.push(&block, |_| Ok(())).err()).unwrap();
            assert_eq!(error.kind, ErrorKind::Endless);
        }
        let mut parser = Parser::default();
        let block = b"data: x\n\n".repeat(100_000);
        let mut count = 0;
        for _ in 0..12 {
            parser
                .push(&block, |_| {
                    count += 1;
                    Ok(())
                })
                .unwrap();
        }
        assert_eq!(count, 1_200_000);
    }

    #[test]
    fn what_the_taker_says_ends_the_reading() {
        let mut parser = Parser::default();
        let mut seen = 0;
        let result = parser.push(b"data: 1\n\ndata: 2\n\n", |_| {
            seen += 1;
            Err(ProviderError::new(ErrorKind::Malformed, "no"))
        });
        assert_eq!((result.unwrap_err().kind, seen), (ErrorKind::Malformed, 1));
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
                b"\xEF\xBB\xBF",
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
        let text = String::from_utf8_lossy(stream.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(stream)).into_owned();
        let text = text.replace("\r\n", "\n").replace('\r', "\n");
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
        fn no_split_changes_the_events(stream in stream(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8)) {
            let expected = reference(&stream);
            prop_assert_eq!(&parse([&stream[..]]), &expected);
            prop_assert_eq!(&parse(stream.chunks(1)), &expected);
            let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
            places.extend([0, stream.len()]);
            places.sort_unstable();
            prop_assert_eq!(&parse(places.windows(2).map(|pair| &stream[pair[0]..pair[1]])), &expected);
        }
    }
}
