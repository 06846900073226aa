//! Cuts a file into records: the lines of JSON lines, the elements of a list, whole documents.
//!
//! A file says by its beginning how it is cut. Where a line is a record, a broken line costs that line. Where records span
//! lines, their brackets are counted, and after a broken place reading goes on at the next line that begins one. Nothing but
//! the record at hand is held.

use crate::trace::MAX_RECORD;
use memchr::{memchr2, memchr3};
use std::io::{self, BufRead, Read};

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Record {
        line: u64,
        bytes: Vec<u8>,
    },
    /// A list begins, whose elements follow as records.
    ListStart {
        line: u64,
    },
    ListEnd,
    Broken {
        line: u64,
        problem: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    ByLine,
    ByBrackets,
}

/// An object or a list that is being read.
#[derive(Debug, Default)]
struct Bracketed {
    open: u64,
    in_text: bool,
    escaped: bool,
    /// Ends of lines so far.
    lines: u64,
}

enum Ended {
    Whole,
    /// A text goes on past its line: no JSON does.
    InText,
}

impl Bracketed {
    /// How many of the bytes belong to it, and whether it ends with them.
    fn take(&mut self, bytes: &[u8]) -> (usize, Option<Ended>) {
        let mut at = 0;
        loop {
            if self.in_text {
                if self.escaped {
                    let Some(byte) = bytes.get(at) else { return (at, None) };
                    self.lines += u64::from(*byte == b'\n');
                    self.escaped = false;
                    at += 1;
                }
                let Some(found) = memchr3(b'"', b'\\', b'\n', &bytes[at..]) else { return (bytes.len(), None) };
                at += found + 1;
                match bytes[at - 1] {
                    b'"' => self.in_text = false,
                    b'\\' => self.escaped = true,
                    _ => {
                        self.lines += 1;
                        return (at, Some(Ended::InText));
                    }
                }
                continue;
            }
            let Some(byte) = bytes.get(at) else { return (at, None) };
            at += 1;
            match byte {
                b'"' => self.in_text = true,
                b'\n' => self.lines += 1,
                b'{' | b'[' => self.open += 1,
                b'}' | b']' => {
                    self.open -= 1;
                    if self.open == 0 {
                        return (at, Some(Ended::Whole));
                    }
                }
                _ => {}
            }
        }
    }
}

pub(super) struct Records<R> {
    input: R,
    /// Read before it was known how to cut; comes before `input`.
    ahead: io::Cursor<Vec<u8>>,
    /// The line of the next byte, from 1.
    line: u64,
    cut: Option<Cut>,
    in_list: bool,
    /// After a broken place the list it stood in may be closed by a bracket nobody opened.
    recovered: bool,
    /// Found before it was known how to cut.
    found: Option<Piece>,
    ended: bool,
}

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

impl<R: BufRead> Records<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, ahead: io::Cursor::default(), line: 1, cut: None, in_list: false, recovered: false, found: None, ended: false }
    }

    pub(super) const fn input_mut(&mut self) -> &mut R {
        &mut self.input
    }

    /// What is left of it, and what was taken from it is gone.
    pub(super) fn into_input(self) -> R {
        self.input
    }

    fn peek(&mut self) -> io::Result<Option<u8>> {
        if let Some(byte) = self.ahead.fill_buf()?.first() {
            return Ok(Some(*byte));
        }
        Ok(self.input.fill_buf()?.first().copied())
    }

    fn take(&mut self) -> io::Result<Option<u8>> {
        let byte = self.peek()?;
        if let Some(byte) = byte {
            if self.ahead.fill_buf()?.is_empty() {
                self.input.consume(1);
            } else {
                self.ahead.consume(1);
            }
            self.line += u64::from(byte == b'\n');
        }
        Ok(byte)
    }

    fn skip(&mut self, unwanted: impl Fn(u8) -> bool) -> io::Result<Option<u8>> {
        while let Some(byte) = self.peek()? {
            if !unwanted(byte) {
                return Ok(Some(byte));
            }
            self.take()?;
        }
        Ok(None)
    }

    /// The rest of the line, with its end. `None` when it is longer than a record may be; it is read past all the same.
    fn take_line(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        let mut whole = Read::chain(&mut self.ahead, &mut self.input);
        whole.by_ref().take(MAX_RECORD).read_until(b'\n', &mut bytes)?;
        let too_long = bytes.len() as u64 == MAX_RECORD && bytes.last() != Some(&b'\n');
        if too_long {
            loop {
                bytes.clear();
                whole.by_ref().take(MAX_RECORD).read_until(b'\n', &mut bytes)?;
                if bytes.last() == Some(&b'\n') || bytes.is_empty() {
                    break;
                }
            }
        }
        self.line += u64::from(bytes.last() == Some(&b'\n'));
        Ok((!too_long).then_some(bytes))
    }

    /// A list is cut by brackets, and so is an object that does not end on its line, unless the next line begins one as well:
    /// then it is a broken line among lines.
    fn find_cut(&mut self) -> io::Result<Cut> {
        if self.peek()? == BYTE_ORDER_MARK.first().copied() {
            for expected in BYTE_ORDER_MARK {
                if self.peek()? == Some(*expected) {
                    self.take()?;
                }
            }
        }
        match self.skip(|byte| byte.is_ascii_whitespace())? {
            Some(b'[') => return Ok(Cut::ByBrackets),
            Some(b'{') => {}
            Some(_) | None => return Ok(Cut::ByLine),
        }
        let line = self.line;
        let Some(mut first) = self.take_line()? else {
            self.found = Some(Piece::Broken { line, problem: too_long() });
            return Ok(Cut::ByLine);
        };
        if ends_balanced(&first) {
            self.found = Some(Piece::Record { line, bytes: first });
            return Ok(Cut::ByLine);
        }
        while let Some(byte) = self.peek()?.filter(u8::is_ascii_whitespace) {
            first.push(byte);
            self.take()?;
        }
        let cut = match self.peek()? {
            Some(b'{') => Cut::ByLine,
            Some(_) | None => Cut::ByBrackets,
        };
        self.line = line;
        // Nothing else can be ahead: the file was read from its start.
        self.ahead = io::Cursor::new(first);
        Ok(cut)
    }

    fn next_line(&mut self) -> io::Result<Option<Piece>> {
        if self.skip(|byte| byte.is_ascii_whitespace())?.is_none() {
            return Ok(None);
        }
        let line = self.line;
        Ok(Some(match self.take_line()? {
            Some(bytes) => Piece::Record { line, bytes },
            None => Piece::Broken { line, problem: too_long() },
        }))
    }

    fn next_bracketed(&mut self) -> io::Result<Option<Piece>> {
        loop {
            let between = |byte: u8| byte.is_ascii_whitespace() || byte == b',';
            let Some(byte) = self.skip(between)? else {
                let line = self.line;
                return Ok(std::mem::take(&mut self.in_list)
                    .then(|| Piece::Broken { line, problem: "the file ends inside a list; the end is missing".into() }));
            };
            let line = self.line;
            return Ok(Some(match byte {
                b'[' if !self.in_list => {
                    self.take()?;
                    self.in_list = true;
                    Piece::ListStart { line }
                }
                b']' if self.in_list => {
                    self.take()?;
                    self.in_list = false;
                    Piece::ListEnd
                }
                b']' if self.recovered => {
                    self.take()?;
                    continue;
                }
                b'{' | b'[' => self.capture(line)?,
                _ => {
                    self.recover()?;
                    Piece::Broken { line, problem: "neither an object nor a list begins here".into() }
                }
            }));
        }
    }

    /// One object or list, by its brackets.
    fn capture(&mut self, line: u64) -> io::Result<Piece> {
        let mut record = Bracketed::default();
        let mut bytes = Vec::new();
        let mut length = 0_u64;
        loop {
            let is_ahead = !self.ahead.fill_buf()?.is_empty();
            // As much at a time as is there: a record has many bytes, and asking for each costs more than looking at it.
            let buffer = if is_ahead { self.ahead.fill_buf()? } else { self.input.fill_buf()? };
            if buffer.is_empty() {
                break;
            }
            let (taken, end) = record.take(buffer);
            let part = &buffer[..taken];
            length += taken as u64;
            if length <= MAX_RECORD {
                bytes.extend_from_slice(part);
            } else {
                bytes = Vec::new();
            }
            self.line += std::mem::take(&mut record.lines);
            if is_ahead {
                self.ahead.consume(taken);
            } else {
                self.input.consume(taken);
            }
            match end {
                Some(Ended::Whole) if length <= MAX_RECORD => return Ok(Piece::Record { line, bytes }),
                Some(Ended::Whole) => return Ok(Piece::Broken { line, problem: too_long() }),
                Some(Ended::InText) => {
                    let at = self.line - 1;
                    self.recover_here();
                    return Ok(Piece::Broken { line: at, problem: "a text does not end on its line".into() });
                }
                None => {}
            }
        }
        self.in_list = false;
        Ok(Piece::Broken { line, problem: "the file ends in the middle of the record that begins here".into() })
    }

    /// Skips to the next line that begins a record.
    fn recover(&mut self) -> io::Result<()> {
        self.recover_here();
        loop {
            while self.take()?.is_some_and(|byte| byte != b'\n') {}
            if matches!(self.skip(|byte| byte.is_ascii_whitespace())?, Some(b'{' | b'[') | None) {
                return Ok(());
            }
        }
    }

    fn recover_here(&mut self) {
        self.in_list = false;
        self.recovered = true;
    }
}

fn too_long() -> String {
    format!("longer than {} MB; split it, or take out what is no part of the run", MAX_RECORD >> 20)
}

/// Whether all that is opened is closed.
fn ends_balanced(text: &[u8]) -> bool {
    let (mut open, mut at) = (0_i64, 0);
    while let Some(byte) = text.get(at) {
        at += 1;
        match byte {
            b'{' | b'[' => open += 1,
            b'}' | b']' => open -= 1,
            b'"' => match text_end(text, at) {
                Some(end) => at = end,
                None => return false,
            },
            _ => {}
        }
    }
    open == 0
}

/// Behind the quote that ends a text which begins here.
fn text_end(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        at += memchr2(b'"', b'\\', bytes.get(at..)?)? + 1;
        if bytes[at - 1] == b'"' {
            return Some(at);
        }
        at += 1;
    }
}

impl<R: BufRead> Iterator for Records<R> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        if self.ended {
            return None;
        }
        let next = match self.cut {
            Some(cut) => Ok(cut),
            None => self.find_cut().inspect(|cut| self.cut = Some(*cut)),
        };
        let piece = next.and_then(|cut| match cut {
            _ if self.found.is_some() => Ok(self.found.take()),
            Cut::ByLine => self.next_line(),
            Cut::ByBrackets => self.next_bracketed(),
        });
        piece.unwrap_or_else(|error| {
            self.ended = true;
            Some(Piece::Broken { line: self.line, problem: format!("the rest is not read: {error}") })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufReader;

    fn pieces(text: &str, buffer: usize) -> Vec<String> {
        Records::new(BufReader::with_capacity(buffer, text.as_bytes()))
            .map(|piece| match piece {
                Piece::Record { line, bytes } => format!("{line} {}", String::from_utf8(bytes).unwrap().trim_end()),
                Piece::ListStart { line } => format!("{line} ["),
                Piece::ListEnd => "]".into(),
                Piece::Broken { line, problem } => format!("{line} broken: {}", problem.split(';').next().unwrap()),
            })
            .collect()
    }

    #[test]
    fn lines_lists_and_documents_are_cut_alike_whatever_the_buffer() {
        for (text, expected) in [
            ("{\"a\":1}\n\n{\"a\":2}", vec!["1 {\"a\":1}", "3 {\"a\":2}"]),
            ("\u{feff}{\"a\":1}\n{\"a\":2}\n", vec!["1 {\"a\":1}", "2 {\"a\":2}"]),
            ("[{\"a\":1},\n {\"a\":\"]}\\\"\"}]", vec!["1 [", "1 {\"a\":1}", "2 {\"a\":\"]}\\\"\"}", "]"]),
            ("{\n\"a\":1}\n{\n\"a\":2\n}", vec!["1 {\n\"a\":1}", "3 {\n\"a\":2\n}"]),
            ("[[{}],[{}]]", vec!["1 [", "1 [{}]", "1 [{}]", "]"]),
            ("[]", vec!["1 [", "]"]),
            ("", vec![]),
            ("  \n", vec![]),
        ] {
            for buffer in [1, 2, 3, 7, 64] {
                assert_eq!(pieces(text, buffer), expected, "{text:?} by {buffer}");
            }
        }
    }

    #[test]
    fn broken_places_are_named_and_reading_goes_on() {
        let lines = pieces("{\"a\":\n{\"a\":1}\nwhat\n{\"a\":2}", 5);
        assert_eq!(lines, ["1 {\"a\":", "2 {\"a\":1}", "3 what", "4 {\"a\":2}"], "each line for itself; the parser says what is wrong");
        assert_eq!(
            pieces("[\n{\"a\":\"x\n{\"b\":1},\n{\"c\":1}\n]", 5),
            ["1 [", "2 broken: a text does not end on its line", "3 {\"b\":1}", "4 {\"c\":1}"]
        );
        assert_eq!(pieces("[\n1,\n{\"b\":1}]", 5), ["1 [", "2 broken: neither an object nor a list begins here", "3 {\"b\":1}"]);
        assert_eq!(pieces("[{\"a\":1}", 5), ["1 [", "1 {\"a\":1}", "1 broken: the file ends inside a list"]);
        assert_eq!(pieces("[{\"a\"", 5), ["1 [", "1 broken: the file ends in the middle of the record that begins here"]);
    }
}
