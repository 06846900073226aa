//! Runs and steps, as everything here sees them, and the traces' own format: one run a line of JSON, plain or gzipped.
//!
//! Files are streamed, a line at a time, so their size does not matter. A line that cannot be read is handed out as a
//! [`Broken`] with its place and reading goes on: what is missing from a measurement must be seen.
//!
//! A line is read in one pass that copies next to nothing: hashes become numbers where they stand, tools' names are kept once
//! a run, and a text is unescaped only when something is made of it.

use flate2::read::MultiGzDecoder;
use runguard_core::detect::stall::{CallEffect, VolatileResults, error_fingerprint};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// A longer line, or a longer piece of a document, is no record; it is skipped without being held.
pub(crate) const MAX_RECORD: u64 = 256 << 20;
const BUFFER: usize = 1 << 16;
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// Texts in the traces are cut to this many characters.
const WHOLE_TEXT: u64 = 300;
/// The tool of a turn without a call.
pub const MESSAGE: &str = "__message__";
/// Of a text that is shown, this much is kept.
const SHOWN_CHARS: usize = 300;

/// A recorded run.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    pub id: String,
    pub source: String,
    pub task: String,
    pub model: String,
    pub agent: String,
    /// Whether it solved its task, where that is known.
    pub success: Option<bool>,
    /// What the agent's own detector said of it, where it has one.
    pub stuck: Option<bool>,
    /// Whether the model called tools natively, where that is known; otherwise calls were read from its text.
    pub native_tools: Option<bool>,
    pub place: ReadAt,
    pub steps: Vec<Step>,
}

impl Run {
    /// A run of which no more is known, and that has no steps.
    pub fn new(id: String, source: impl Into<String>, place: ReadAt) -> Self {
        Self {
            id,
            source: source.into(),
            task: String::new(),
            model: String::new(),
            agent: String::new(),
            success: None,
            stuck: None,
            native_tools: None,
            place,
            steps: Vec::new(),
        }
    }

    /// What came after this step until a person spoke again: a stop there would have spared it. Who speaks then begins another task, and the run
    /// goes on with that.
    pub fn spared(&self, at: usize) -> &[Step] {
        let after = self.steps.get(at + 1..).unwrap_or_default();
        let until = after.iter().position(|step| step.spoke == Some(true)).unwrap_or(after.len());
        &after[..until]
    }

    /// Its steps that are calls.
    pub fn calls(&self) -> u64 {
        self.steps.iter().filter(|step| step.kind == Kind::Call).count() as u64
    }
}

/// Where a run was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadAt {
    pub file: Arc<Path>,
    /// Of the run's first record, from 1; in a database, the row's number.
    pub line: u64,
}

impl Default for ReadAt {
    fn default() -> Self {
        Self { file: Path::new("").into(), line: 0 }
    }
}

/// How much is read of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Detail {
    /// With the texts, for people.
    pub(crate) texts: bool,
    /// What of a result is no part of its fingerprint.
    pub(crate) volatile: &'static VolatileResults,
}

impl Detail {
    pub const FINGERPRINTS: Self = Self { texts: false, volatile: VolatileResults::NONE };
    pub const TEXTS: Self = Self { texts: true, ..Self::FINGERPRINTS };

    /// As much, by fingerprints without what is volatile.
    #[must_use]
    pub const fn without(self, volatile: &'static VolatileResults) -> Self {
        Self { volatile, ..self }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Call,
    /// A turn of the model without a call.
    Message,
}

/// One step of a run, as fingerprints.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    pub kind: Kind,
    pub tool: Arc<str>,
    /// Of the arguments, or of what was said.
    pub args: u64,
    /// Of the result or the reply; `None` when the source has none.
    pub result: Option<u64>,
    /// Of the normalised error, when the call failed.
    pub error: Option<u64>,
    /// What the call does, as far as its arguments tell.
    pub effect: CallEffect,
    /// The model's turn it belongs to, where the source tells: calls side by side were made before anything was known of each other.
    pub round: Option<u64>,
    /// Whether a person has spoken since the step before; `None` where the source does not say who spoke.
    pub spoke: Option<bool>,
    /// Read and written by the model; those of a turn stand at its first step.
    pub tokens: u64,
    pub dollars: f64,
    /// Since the epoch, where the source says.
    pub at_millis: Option<i64>,
    pub texts: Option<Box<Texts>>,
}

impl Step {
    /// What was done, whatever came of it.
    pub fn action(&self) -> (&str, u64) {
        (&self.tool, self.args)
    }
}

/// What people want to see of a step, cut to 300 characters.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Texts {
    pub args: String,
    pub result: String,
}

pub(crate) fn shown(text: &str) -> String {
    text.chars().take(SHOWN_CHARS).collect()
}

/// Names that come again and again, each kept once.
#[derive(Debug, Default)]
pub(crate) struct Names(Vec<Arc<str>>);

impl Names {
    /// A run has a handful of tools; of one that has hundreds, the later ones are not shared.
    const MOST: usize = 64;

    pub(crate) fn name(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.0.iter().find(|known| &***known == name) {
            return known.clone();
        }
        let name: Arc<str> = name.into();
        if self.0.len() < Self::MOST {
            self.0.push(name.clone());
        }
        name
    }
}

/// A line that could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    pub file: PathBuf,
    /// From 1.
    pub line: u64,
    pub problem: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.display().to_string();
        match self.line {
            // The whole file, and the problem may name it already.
            0 if self.problem.starts_with(&file) => f.write_str(&self.problem),
            0 => write!(f, "{file}: {}", self.problem),
            line => write!(f, "{file}:{line}: {}", self.problem),
        }
    }
}

/// Counts what is read of a file, packed as it lies, so that others can see how far it has come.
#[derive(Debug)]
pub(crate) struct Counted<R> {
    pub(crate) input: R,
    pub(crate) read: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.input.read(buffer)?;
        self.read.fetch_add(length as u64, Ordering::Relaxed);
        Ok(length)
    }
}

/// Whether nobody wants what is read any more.
#[derive(Debug, Clone, Default)]
pub struct Cancelled(Arc<AtomicBool>);

impl Cancelled {
    /// Nothing more is read.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// How often it is looked whether a pipe that says nothing is still waited for.
const TICK: Duration = Duration::from_millis(50);

/// What is no file may be silent for ever, as a pipe that nobody writes to is, which waits to be opened already. So a thread of its own waits.
struct Pipe {
    pieces: Receiver<io::Result<Vec<u8>>>,
    piece: io::Cursor<Vec<u8>>,
    cancelled: Cancelled,
}

impl Pipe {
    fn open(path: &Path, cancelled: &Cancelled) -> Self {
        let (send, pieces) = sync_channel(2);
        let path = path.to_owned();
        thread::spawn(move || {
            let mut input = match File::open(path) {
                Ok(input) => input,
                // Whoever is gone does not ask why.
                Err(error) => return drop(send.send(Err(error))),
            };
            loop {
                let mut piece = vec![0; BUFFER];
                let read = input.read(&mut piece).map(|length| {
                    piece.truncate(length);
                    piece
                });
                let is_end = !read.as_ref().is_ok_and(|piece| !piece.is_empty());
                if send.send(read).is_err() || is_end {
                    return;
                }
            }
        });
        Self { pieces, piece: io::Cursor::default(), cancelled: cancelled.clone() }
    }
}

impl Read for Pipe {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let length = self.piece.read(buffer)?;
            if length > 0 || buffer.is_empty() {
                return Ok(length);
            }
            // Not its end: what was told in part was not told.
            if self.cancelled.is_cancelled() {
                return Err(io::Error::other("nobody waits for it any more"));
            }
            match self.pieces.recv_timeout(TICK) {
                Ok(piece) => self.piece = io::Cursor::new(piece?),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(0),
            }
        }
    }
}

/// What is in a file as it lies, or comes through a pipe until nobody wants it any more.
pub(crate) fn opened(path: &Path, cancelled: &Cancelled) -> io::Result<Box<dyn Read + Send>> {
    let is_file = fs::metadata(path)?.is_file();
    Ok(if is_file { Box::new(File::open(path)?) } else { Box::new(Pipe::open(path, cancelled)) })
}

/// A file, unpacked; what is read of it is added to `read`. Whether it is gzipped is read from its first bytes, not from its name.
pub(crate) fn unpacked(path: &Path, read: &Arc<AtomicU64>, cancelled: &Cancelled) -> io::Result<Box<dyn BufRead + Send>> {
    let mut file = BufReader::with_capacity(BUFFER, Counted { input: opened(path, cancelled)?, read: read.clone() });
    let packed = file.fill_buf()?.starts_with(&GZIP);
    Ok(if packed { Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(file))) } else { Box::new(file) })
}

/// What is read of a file, and can be read from its beginning once more where it is no file: a pipe gives all only once.
pub(crate) struct Heard {
    input: Box<dyn BufRead + Send>,
    /// So far, while it may be asked for again.
    said: Option<Vec<u8>>,
}

impl Heard {
    pub(crate) fn once(input: Box<dyn BufRead + Send>) -> Self {
        Self { input, said: None }
    }

    pub(crate) fn of(path: &Path, input: Box<dyn BufRead + Send>) -> Self {
        let stays = fs::metadata(path).is_ok_and(|there| there.is_file());
        Self { input, said: (!stays).then(Vec::new) }
    }

    /// What comes from here on is not asked for again.
    pub(crate) fn forget(&mut self) {
        self.said = None;
    }

    /// From the beginning; `None` of a file, which can be opened again.
    pub(crate) fn again(self) -> Option<Box<dyn BufRead + Send>> {
        let said = self.said?;
        Some(Box::new(io::Cursor::new(said).chain(self.input)))
    }
}

impl Read for Heard {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.fill_buf()?.read(buffer)?;
        self.consume(length);
        Ok(length)
    }
}

impl BufRead for Heard {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.input.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        // What was looked at lies there still.
        if let (Some(said), Ok(there)) = (&mut self.said, self.input.fill_buf()) {
            said.extend_from_slice(&there[..amount]);
        }
        self.input.consume(amount);
    }
}

/// A line as it stands in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pub number: u64,
    pub bytes: Vec<u8>,
}

/// The lines of a file, unpacked.
pub struct Lines {
    file: PathBuf,
    input: Box<dyn BufRead + Send>,
    read: Arc<AtomicU64>,
    number: u64,
    ended: bool,
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines").field("file", &self.file).field("number", &self.number).finish_non_exhaustive()
    }
}

impl Lines {
    pub fn open(path: &Path, cancelled: &Cancelled) -> io::Result<Self> {
        let read = Arc::default();
        Ok(Self::of(path, unpacked(path, &read, cancelled)?, read))
    }

    /// Those of what was opened already.
    pub(crate) fn of(path: &Path, input: Box<dyn BufRead + Send>, read: Arc<AtomicU64>) -> Self {
        Self { file: path.to_owned(), input, read, number: 0, ended: false }
    }

    /// Bytes of the file that were read, packed as it lies.
    pub fn bytes_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    fn broken(&self, problem: String) -> Broken {
        Broken { file: self.file.clone(), line: self.number, problem }
    }

    fn next_line(&mut self) -> io::Result<Option<Result<Line, Broken>>> {
        let mut bytes = Vec::new();
        if self.input.by_ref().take(MAX_RECORD).read_until(b'\n', &mut bytes)? == 0 {
            return Ok(None);
        }
        if bytes.len() as u64 == MAX_RECORD && bytes.last() != Some(&b'\n') {
            drop(bytes);
            self.skip_line()?;
            return Ok(Some(Err(self.broken(format!("longer than {} MB", MAX_RECORD >> 20)))));
        }
        Ok(Some(Ok(Line { number: self.number, bytes })))
    }

    fn skip_line(&mut self) -> io::Result<()> {
        loop {
            let buffer = self.input.fill_buf()?;
            let (length, found) = match buffer.iter().position(|byte| *byte == b'\n') {
                Some(end) => (end + 1, true),
                None => (buffer.len(), buffer.is_empty()),
            };
            self.input.consume(length);
            if found {
                return Ok(());
            }
        }
    }
}

impl Iterator for Lines {
    type Item = Result<Line, Broken>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            self.number += 1;
            match self.next_line() {
                Ok(Some(Ok(line))) if line.bytes.trim_ascii().is_empty() => {}
                Ok(Some(outcome)) => return Some(outcome),
                Ok(None) => self.ended = true,
                // What follows a break in a packed file cannot be unpacked.
                Err(error) => {
                    self.ended = true;
                    return Some(Err(self.broken(format!("{error}; the rest of the file is not read"))));
                }
            }
        }
        None
    }
}

/// The runs of a file.
pub fn runs(path: &Path) -> io::Result<impl Iterator<Item = Result<Run, Broken>> + use<>> {
    let file = path.to_owned();
    Ok(Lines::open(path, &Cancelled::default())?.map(move |line| {
        let line = line?;
        parse(&line.bytes, Detail::FINGERPRINTS).map_err(|problem| Broken { file: file.clone(), line: line.number, problem })
    }))
}

/// The trace files of a folder, by name.
pub fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let ends = |path: &Path, end: &str| path.extension().is_some_and(|extension| extension == end);
    let is_trace = |path: &Path| path.is_file() && (ends(path, "jsonl") || (ends(path, "gz") && ends(&path.with_extension(""), "jsonl")));
    let mut files: Vec<PathBuf> = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    files.retain(|path| is_trace(path));
    files.sort();
    Ok(files)
}

/// A run from its line, or what is wrong with it. Its place is the caller's to say.
pub fn parse(line: &[u8], detail: Detail) -> Result<Run, String> {
    let Recorded { run_id, source, task, model, agent, success, labels, steps } =
        serde_json::from_slice(line).map_err(|error| error.to_string())?;
    let mut names = Names::default();
    let steps: Result<Vec<Step>, String> = steps.into_iter().map(|step| step.into_step(&mut names, detail)).collect();
    Ok(Run {
        id: run_id,
        source,
        task,
        model: model.unwrap_or_default(),
        agent: agent.unwrap_or_default(),
        success,
        stuck: labels.as_ref().and_then(|labels| labels.openhands_stuck_in_loop),
        native_tools: labels.as_ref().and_then(|labels| labels.native_tool_calls),
        place: ReadAt::default(),
        steps: steps?,
    })
}

#[derive(Deserialize)]
struct Recorded<'a> {
    run_id: String,
    source: String,
    task: String,
    model: Option<String>,
    agent: Option<String>,
    success: Option<bool>,
    labels: Option<Labels>,
    #[serde(borrow)]
    steps: Vec<RecordedStep<'a>>,
}

#[derive(Deserialize)]
struct Labels {
    openhands_stuck_in_loop: Option<bool>,
    native_tool_calls: Option<bool>,
}

#[derive(Deserialize)]
struct RecordedStep<'a> {
    kind: RecordedKind,
    #[serde(borrow)]
    tool: Cow<'a, str>,
    #[serde(borrow)]
    args: Option<&'a RawValue>,
    args_hash: Hash,
    /// As it stands there: most are never looked at.
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    result_hash: Option<Hash>,
    result_len: Option<u64>,
    error: Option<bool>,
    tokens_in: Option<u64>,
    tokens_out: Option<u64>,
    cost_usd: Option<f64>,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "snake_case")]
enum RecordedKind {
    Call,
    Message,
}

/// Sixteen hex digits; of anything else, its hash.
#[derive(Clone, Copy)]
struct Hash(u64);

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Digits;
        impl Visitor<'_> for Digits {
            type Value = Hash;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a hash, as hex digits")
            }

            fn visit_str<E: de::Error>(self, hash: &str) -> Result<Hash, E> {
                Ok(Hash(u64::from_str_radix(hash, 16).unwrap_or_else(|_| xxh3_64(hash.as_bytes()))))
            }
        }
        deserializer.deserialize_str(Digits)
    }
}

impl RecordedStep<'_> {
    fn into_step(self, names: &mut Names, detail: Detail) -> Result<Step, String> {
        let whole = self.result_len.is_some_and(|length| length <= WHOLE_TEXT);
        let failed = self.error == Some(true);
        let wanted = failed || detail.texts || (whole && self.result_hash.is_some());
        let text: Option<Cow<'_, str>> = match self.result.filter(|_| wanted) {
            Some(result) => unescaped(result)?,
            None => None,
        };
        let result = match (self.result_hash, &text) {
            // The text, where it is not cut, is compared as it is live: without times and durations.
            (Some(_), Some(text)) if whole => Some(detail.volatile.result(text)),
            (hash, _) => hash.map(|Hash(hash)| hash),
        };
        Ok(Step {
            kind: match self.kind {
                RecordedKind::Call => Kind::Call,
                RecordedKind::Message => Kind::Message,
            },
            tool: names.name(&self.tool),
            args: self.args_hash.0,
            result,
            error: failed.then(|| error_fingerprint(&detail.volatile.without(text.as_deref().unwrap_or_default()))),
            effect: match (self.kind, self.args) {
                (RecordedKind::Call, Some(args)) => CallEffect::of(&self.tool, args.get()),
                (RecordedKind::Call | RecordedKind::Message, _) => CallEffect::Unknown,
            },
            round: None,
            spoke: None,
            tokens: self.tokens_in.unwrap_or(0).saturating_add(self.tokens_out.unwrap_or(0)),
            dollars: self.cost_usd.unwrap_or(0.0),
            at_millis: None,
            texts: (detail.texts).then(|| {
                let args = self.args.map(|args| shown(args.get())).unwrap_or_default();
                Box::new(Texts { args, result: text.as_deref().map(shown).unwrap_or_default() })
            }),
        })
    }
}

fn unescaped(text: &RawValue) -> Result<Option<Cow<'_, str>>, String> {
    #[derive(Deserialize)]
    struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
    let text: Option<Text<'_>> = serde_json::from_str(text.get()).map_err(|error| format!("`result` is no text: {error}"))?;
    Ok(text.map(|Text(text)| text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::io::Write;

    const RUN: &str = r#"{"run_id":"r","source":"s","task":"t","model":"m","agent":"a","success":false,"labels":{"openhands_stuck_in_loop":true,"native_tool_calls":false,"attempts":1},"totals":{},"steps":[{"i":0,"kind":"call","tool":"sh","args":{"c":"ls"},"args_hash":"00000000000000ff","result":"3 passed in 0.5s","result_hash":"ab","result_len":16,"error":false,"tokens_in":10,"tokens_out":5,"cost_usd":0.25},{"i":1,"kind":"message","tool":"__message__","args":{},"args_hash":"zz","result":null,"result_hash":null,"result_len":null,"error":null,"tokens_in":null,"tokens_out":null,"cost_usd":null}]}"#;

    fn packed(text: &str) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    }

    fn read(bytes: &[u8]) -> Vec<Result<Run, Broken>> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        runs(file.path()).unwrap().collect()
    }

    #[test]
    fn a_line_is_a_run() {
        let run = parse(RUN.as_bytes(), Detail::FINGERPRINTS).unwrap();
        assert_eq!((run.success, run.stuck, run.native_tools, run.steps.len()), (Some(false), Some(true), Some(false), 2));
        let [call, message] = &run.steps[..] else { panic!("two steps") };
        assert_eq!((call.kind, call.args, call.tokens, call.dollars), (Kind::Call, 255, 15, 0.25));
        assert_eq!((message.kind, message.result, message.error), (Kind::Message, None, None));
    }

    #[test]
    fn a_whole_text_is_compared_without_its_durations_and_a_cut_one_by_its_hash() {
        let result = |line: &str| parse(line.as_bytes(), Detail::FINGERPRINTS).unwrap().steps[0].result.unwrap();
        let later = RUN.replace("0.5s", "9.7s").replace("\"ab\"", "\"cd\"");
        assert_eq!(result(RUN), result(&later));
        assert_eq!(result(&RUN.replace("\"result_len\":16", "\"result_len\":900")), 0xab);
        assert_eq!(result(&later.replace("\"result_len\":16", "\"result_len\":900")), 0xcd);
    }

    #[test]
    fn broken_lines_are_told_with_their_place_and_reading_goes_on() {
        let text = format!("{RUN}\nnot json\n\n{RUN}\n{{\"run_id\":\"only\"}}\n{RUN}");
        for bytes in [text.clone().into_bytes(), packed(&text)] {
            let read = read(&bytes);
            let broken: Vec<u64> = read.iter().filter_map(|run| run.as_ref().err().map(|broken| broken.line)).collect();
            assert_eq!((read.len(), broken), (5, vec![2, 5]), "an empty line is none");
            assert!(read[3].as_ref().unwrap_err().to_string().contains(":5: missing field `source`"), "{:?}", read[3]);
        }
    }

    #[test]
    fn joined_and_cut_off_packed_files() {
        let twice = [packed(&format!("{RUN}\n")), packed(&format!("{RUN}\n"))].concat();
        assert_eq!(read(&twice).iter().filter(|run| run.is_ok()).count(), 2);
        let long = packed(&(0..500).map(|index| RUN.replace("\"r\"", &format!("\"r{index}\"")) + "\n").collect::<String>());
        let cut = read(&long[..long.len() - 40]);
        assert!(cut.len() > 1 && cut.last().unwrap().as_ref().is_err_and(|broken| broken.problem.contains("not read")), "{}", cut.len());
        assert_eq!(cut.iter().filter(|run| run.is_err()).count(), 1);
    }

    #[test]
    fn only_traces_are_files_of_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b.jsonl", "a.jsonl.gz", "README.md"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let names: Vec<_> = files(folder.path()).unwrap().iter().map(|path| path.file_name().unwrap().to_owned()).collect();
        assert_eq!(names, ["a.jsonl.gz", "b.jsonl"]);
        assert!(files(&folder.path().join("missing")).is_err());
    }
}
