//! The formats that recorded runs come in, and how a file is told to be in one.
//!
//! A format is guessed from what is in the file, never from its name. Whatever the format, reading is a stream: a record is
//! read, told to the format's reader, and let go; a run is handed out when it is over. Where runs are interleaved (spans,
//! exports, transcripts of several sessions), a bounded number of them is open at a time, see [`grouped`].

mod bedrock;
mod claude_code;
mod conversation;
mod decision_log;
mod grouped;
mod json;
mod langfuse;
mod langsmith;
mod message;
mod messages;
mod openhands;
mod otlp;
mod records;
mod sketch;
mod spans;
mod swe_agent;
mod tau_bench;
mod wrapped;

pub use wrapped::Wrapping;

use crate::packed::Frames;
use crate::trace::{self, Broken, Cancelled, Detail, Heard, Lines, ReadAt, Run};
use json::Value;
use records::{Piece, Records};
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Records that are looked at to tell a format.
const LOOKED_AT: usize = 32;
/// Folders inside each other that are looked into.
const DEEPEST_FOLDER: usize = 6;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Format {
    Traces,
    Packed,
    DecisionLog,
    Otlp,
    LangSmith,
    Langfuse,
    OpenAi,
    Anthropic,
    Bedrock,
    ClaudeCode,
    SweAgent,
    OpenHands,
    TauBench,
}

impl Format {
    pub const ALL: [Self; 13] = [
        Self::Traces,
        Self::Packed,
        Self::DecisionLog,
        Self::Otlp,
        Self::LangSmith,
        Self::Langfuse,
        Self::OpenAi,
        Self::Anthropic,
        Self::Bedrock,
        Self::ClaudeCode,
        Self::SweAgent,
        Self::OpenHands,
        Self::TauBench,
    ];

    pub fn code(self) -> &'static str {
        match self {
            Self::Traces => "traces",
            Self::Packed => "packed",
            Self::DecisionLog => "decision-log",
            Self::Otlp => "otlp",
            Self::LangSmith => "langsmith",
            Self::Langfuse => "langfuse",
            Self::OpenAi => "openai",
            Self::Anthropic => "anthropic",
            Self::Bedrock => "bedrock",
            Self::ClaudeCode => "claude-code",
            Self::SweAgent => "swe-agent",
            Self::OpenHands => "openhands",
            Self::TauBench => "taubench",
        }
    }

    /// What has it, in a few words.
    pub fn about(self) -> &'static str {
        match self {
            Self::Traces => "runs as this project keeps them for measuring, one a line",
            Self::Packed => "what `runguard replay --pack` wrote",
            Self::DecisionLog => "a data folder or log of RunGuard's own",
            Self::Otlp => "OpenTelemetry spans (OTLP)",
            Self::LangSmith => "exported runs of LangSmith",
            Self::Langfuse => "exported observations of Langfuse",
            Self::OpenAi => "conversations as the OpenAI API has them",
            Self::Anthropic => "conversations as the Anthropic API has them",
            Self::Bedrock => "traces of Bedrock agents",
            Self::ClaudeCode => "sessions of Claude Code",
            Self::SweAgent => "trajectories of SWE-agent and mini-swe-agent",
            Self::OpenHands => "events of OpenHands",
            Self::TauBench => "results of tau-bench",
        }
    }

    pub fn from_code(code: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.code() == code)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

/// Why a file is not read at all.
#[derive(Debug)]
pub enum OpenError {
    Unreadable {
        path: PathBuf,
        source: io::Error,
    },
    /// Nothing in it looks like a run.
    Unknown {
        path: PathBuf,
    },
    /// Nothing is in it but white space.
    Empty {
        path: PathBuf,
    },
    /// There may be runs in it, once it is unpacked.
    Wrapped {
        path: PathBuf,
        wrapping: Wrapping,
    },
    Database {
        path: PathBuf,
        problem: String,
    },
}

/// Asked before anything else: what is in an archive can look like runs, behind its first lines.
fn unless_wrapped(path: &Path) -> Result<(), OpenError> {
    wrapped::of(path).map_or(Ok(()), |wrapping| Err(OpenError::Wrapped { path: path.to_owned(), wrapping }))
}

pub(crate) fn is_wrapped(path: &Path) -> bool {
    wrapped::of(path).is_some()
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { path, source } => write!(f, "{} could not be opened: {source}", path.display()),
            Self::Unknown { path } => {
                let known: Vec<&str> = Format::ALL.iter().map(|format| format.code()).collect();
                write!(
                    f,
                    "{}: nothing at its beginning looks like a recorded run; if it is one, name its format ({})",
                    path.display(),
                    known.join(", ")
                )
            }
            Self::Empty { path } => write!(f, "{} is empty", path.display()),
            Self::Wrapped { path, wrapping } => write!(f, "{} is {wrapping}", path.display()),
            Self::Database { path, problem } => {
                write!(f, "{} is not read as RunGuard's log: {problem}; name the data folder or its runguard.db", path.display())
            }
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unreadable { source, .. } => Some(source),
            Self::Unknown { .. } | Self::Empty { .. } | Self::Wrapped { .. } | Self::Database { .. } => None,
        }
    }
}

/// How the runs of a file are had.
#[derive(Debug)]
pub enum Input {
    /// One run a line, each to be parsed for itself, on any thread.
    Lines(Lines, fn(&[u8], Detail) -> Result<Run, String>),
    Runs(Runs),
}

/// The runs of a file, or of a folder that is one log, in the format that is named or else guessed; of a pipe, until it is cancelled.
pub fn input(path: &Path, format: Option<Format>, detail: Detail, cancelled: &Cancelled) -> Result<Input, OpenError> {
    let runs = open_until(path, format, detail, cancelled)?;
    Ok(match runs.source {
        Source::Lines(lines, ..) => Input::Lines(lines, trace::parse),
        Source::Rows(_) | Source::Records(_) | Source::Packed(_) => Input::Runs(runs),
    })
}

/// [`input`], as runs whatever the format.
pub fn open(path: &Path, format: Option<Format>, detail: Detail) -> Result<Runs, OpenError> {
    open_until(path, format, detail, &Cancelled::default())
}

fn open_until(path: &Path, format: Option<Format>, detail: Detail, cancelled: &Cancelled) -> Result<Runs, OpenError> {
    let (format, again) = match format {
        Some(format) => {
            unless_wrapped(path)?;
            (format, None)
        }
        None => match begin(path, detail, cancelled)? {
            Begun::Reading(reading) => {
                return Ok(Runs { format: reading.out.format, read: reading.read.clone(), source: Source::Records(reading) });
            }
            Begun::Told(format, again) => (format, again),
        },
    };
    let unreadable = |source| OpenError::Unreadable { path: path.to_owned(), source };
    if format == Format::DecisionLog && decision_log::is_database(path) {
        return Ok(Runs { format, read: Arc::default(), source: Source::Rows(decision_log::open(path, detail)?) });
    }
    if format == Format::Traces {
        let lines = match again {
            Some((input, read)) => Lines::of(path, input, read),
            None => Lines::open(path, cancelled).map_err(unreadable)?,
        };
        return Ok(Runs { format, read: Arc::default(), source: Source::Lines(lines, path.into(), detail) });
    }
    let Some(reader) = reader_of(format) else {
        let frames = Frames::open(path, cancelled).map_err(unreadable)?;
        return Ok(Runs { format, read: Arc::default(), source: Source::Packed(frames) });
    };
    let (first, files) = files_of_one(path)?;
    let (input, read) = if let Some(again) = again {
        again
    } else {
        let read = Arc::default();
        let input = trace::unpacked(&first, &read, cancelled).map_err(|source| OpenError::Unreadable { path: first.clone(), source })?;
        (input, read)
    };
    let out = Out { file: first.into(), format, detail, ready: VecDeque::new() };
    let reading = Reading { records: Records::new(Heard::once(input)), files, read: read.clone(), reader, out, ended: false };
    Ok(Runs { format, read, source: Source::Records(reading) })
}

/// The file, or the first of a folder that is read as one, and those that follow it.
fn files_of_one(path: &Path) -> Result<(PathBuf, VecDeque<PathBuf>), OpenError> {
    if !path.is_dir() {
        return Ok((path.to_owned(), VecDeque::new()));
    }
    let files = json_files(path).map_err(|source| OpenError::Unreadable { path: path.to_owned(), source })?;
    let mut files = VecDeque::from(files);
    let first = files.pop_front().ok_or_else(|| OpenError::Unknown { path: path.to_owned() })?;
    Ok((first, files))
}

/// Of the formats that are cut into records of JSON.
fn reader_of(format: Format) -> Option<Box<dyn Reader>> {
    Some(match format {
        Format::Traces | Format::Packed => return None,
        Format::DecisionLog => Box::new(decision_log::Decisions::default()),
        Format::Otlp => Box::new(otlp::Otlp::default()),
        Format::LangSmith => Box::new(langsmith::LangSmith::default()),
        Format::Langfuse => Box::new(langfuse::Langfuse::default()),
        Format::OpenAi | Format::Anthropic => Box::new(messages::Messages::default()),
        Format::Bedrock => Box::new(bedrock::Bedrock::default()),
        Format::ClaudeCode => Box::new(claude_code::ClaudeCode::default()),
        Format::SweAgent => Box::new(swe_agent::SweAgent),
        Format::OpenHands => Box::new(openhands::OpenHands::default()),
        Format::TauBench => Box::new(tau_bench::TauBench),
    })
}

/// The runs of a file. One that cannot be read is handed out as [`Broken`], and reading goes on.
pub struct Runs {
    format: Format,
    read: Arc<AtomicU64>,
    source: Source,
}

enum Source {
    Lines(Lines, Arc<Path>, Detail),
    Rows(decision_log::Rows),
    Records(Reading),
    Packed(Frames),
}

impl Runs {
    pub fn format(&self) -> Format {
        self.format
    }

    /// Bytes of the file that were read, packed as it lies; of a database none are counted.
    pub fn bytes_read(&self) -> u64 {
        match &self.source {
            Source::Lines(lines, ..) => lines.bytes_read(),
            Source::Packed(frames) => frames.bytes_read(),
            Source::Rows(_) | Source::Records(_) => self.read.load(Ordering::Relaxed),
        }
    }
}

impl fmt::Debug for Runs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runs").field("format", &self.format).finish_non_exhaustive()
    }
}

impl Iterator for Runs {
    type Item = Result<Run, Broken>;

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.source {
            Source::Lines(lines, file, detail) => Some(match lines.next()? {
                Ok(line) => match trace::parse(&line.bytes, *detail) {
                    Ok(run) => Ok(Run { place: ReadAt { file: file.clone(), line: line.number }, ..run }),
                    Err(problem) => Err(Broken { file: file.to_path_buf(), line: line.number, problem }),
                },
                Err(broken) => Err(broken),
            }),
            Source::Rows(rows) => rows.next(),
            Source::Records(reading) => reading.next(),
            Source::Packed(frames) => Some(frames.next()?.and_then(|frame| frame.run())),
        }
    }
}

/// Makes runs of a format's records.
trait Reader: Send {
    fn list_start(&mut self, _line: u64, _out: &mut Out) {}

    fn list_end(&mut self, _out: &mut Out) {}

    fn record(&mut self, line: u64, record: Value<'_>, out: &mut Out);

    /// Something was lost here.
    fn gap(&mut self) {}

    /// There is no more.
    fn end(&mut self, out: &mut Out);
}

/// Where a reader puts what it has made.
struct Out {
    file: Arc<Path>,
    format: Format,
    detail: Detail,
    ready: VecDeque<Result<Run, Broken>>,
}

impl Out {
    fn place(&self, line: u64) -> ReadAt {
        ReadAt { file: self.file.clone(), line }
    }

    /// For a run that its source does not name: the file's name and the line.
    fn name(&self, line: u64) -> String {
        let stem = self.file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        format!("{stem}:{line}")
    }

    fn conversation(&self, id: String, line: u64) -> conversation::Conversation {
        conversation::Conversation::new(id, self.format.code(), self.place(line), self.detail)
    }

    /// A run without a step says nothing about any rule.
    fn run(&mut self, run: Run) {
        if !run.steps.is_empty() {
            self.ready.push_back(Ok(run));
        }
    }

    fn broken(&mut self, line: u64, problem: impl Into<String>) {
        self.ready.push_back(Err(Broken { file: self.file.to_path_buf(), line, problem: problem.into() }));
    }

    fn strays(&mut self, line: u64, strays: usize) {
        if strays > 0 {
            self.broken(line, "a tool's result that belongs to no open call; the call is missing, or was answered before");
        }
    }
}

struct Reading {
    records: Records<Heard>,
    /// Still to be read after this one, as if it went on.
    files: VecDeque<PathBuf>,
    read: Arc<AtomicU64>,
    reader: Box<dyn Reader>,
    out: Out,
    ended: bool,
}

impl Reading {
    fn read_on(&mut self) {
        match self.records.next() {
            Some(piece) => self.take_piece(piece),
            None => self.next_file(),
        }
    }

    fn take_piece(&mut self, piece: Piece) {
        match piece {
            Piece::ListStart { line } => self.reader.list_start(line, &mut self.out),
            Piece::ListEnd => self.reader.list_end(&mut self.out),
            Piece::Broken { line, problem } => {
                self.reader.gap();
                self.out.broken(line, problem);
            }
            Piece::Record { line, bytes } => match Value::parse(bytes.trim_ascii_end()) {
                Ok(record) => self.take_record(line, record),
                Err(error) => self.out.broken(line + (error.line() as u64).saturating_sub(1), format!("not JSON: {error}")),
            },
        }
    }

    fn next_file(&mut self) {
        let Some(file) = self.files.pop_front() else {
            self.reader.end(&mut self.out);
            self.ended = true;
            return;
        };
        match trace::unpacked(&file, &self.read, &Cancelled::default()) {
            Ok(input) => {
                self.records = Records::new(Heard::once(input));
                self.out.file = file.into();
            }
            Err(error) => self.out.ready.push_back(Err(Broken { file, line: 0, problem: format!("could not be opened: {error}") })),
        }
    }

    /// A list that stands on one line among others is one all the same.
    fn take_record(&mut self, line: u64, record: Value<'_>) {
        match record {
            Value::Array(elements) => {
                self.reader.list_start(line, &mut self.out);
                for element in elements {
                    self.reader.record(line, element, &mut self.out);
                }
                self.reader.list_end(&mut self.out);
            }
            record @ Value::Object(_) => self.reader.record(line, record, &mut self.out),
            other => self.out.broken(line, format!("{} is no record", trace::shown(&other.to_string()))),
        }
    }
}

impl Iterator for Reading {
    type Item = Result<Run, Broken>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.out.ready.is_empty() && !self.ended {
            self.read_on();
        }
        self.out.ready.pop_front()
    }
}

/// The format of a file, by what is in it.
pub fn guess(path: &Path) -> Result<Format, OpenError> {
    if let Some(format) = guess_of_no_json(path)? {
        return Ok(format);
    }
    let (file, _) = files_of_one(path)?;
    let input = trace::unpacked(&file, &Arc::default(), &Cancelled::default())
        .map_err(|source| OpenError::Unreadable { path: path.to_owned(), source })?;
    guess_with(Records::new(input), |first| first.format, |format, _| format).map_err(|untold| untold.of(path))
}

fn guess_of_no_json(path: &Path) -> Result<Option<Format>, OpenError> {
    unless_wrapped(path)?;
    let unreadable = |source| OpenError::Unreadable { path: path.to_owned(), source };
    if decision_log::is_database(path) {
        return Ok(Some(Format::DecisionLog));
    }
    Ok((path.is_file() && is_packed(path).map_err(unreadable)?).then_some(Format::Packed))
}

enum Begun {
    Reading(Reading),
    /// With a pipe as it was before it was asked.
    Told(Format, Option<(Box<dyn BufRead + Send>, Arc<AtomicU64>)>),
}

/// [`guess`]; where the first record tells, it is read with that, because it may be all there is.
fn begin(path: &Path, detail: Detail, cancelled: &Cancelled) -> Result<Begun, OpenError> {
    if let Some(format) = guess_of_no_json(path)? {
        return Ok(Begun::Told(format, None));
    }
    let (file, files) = files_of_one(path)?;
    let read = Arc::default();
    let input = trace::unpacked(&file, &read, cancelled).map_err(|source| OpenError::Unreadable { path: path.to_owned(), source })?;
    let input = Heard::of(&file, input);
    let told = |format, records: Records<Heard>| Begun::Told(format, records.into_input().again().map(|input| (input, Arc::clone(&read))));
    let first = |First { format, mut records, before, line, record }: First<'_, _>| {
        let Some(reader) = reader_of(format) else { return told(format, records) };
        records.input_mut().forget();
        let read = Arc::clone(&read);
        let out = Out { file: file.into(), format, detail, ready: VecDeque::new() };
        let mut reading = Reading { records, files, read, reader, out, ended: false };
        for piece in before {
            reading.take_piece(piece);
        }
        reading.take_record(line, record);
        Begun::Reading(reading)
    };
    guess_with(Records::new(input), first, told).map_err(|untold| untold.of(path))
}

/// Pieces in front of the first record that are kept; with more the file is opened again.
const MOST_BEFORE: usize = 64;

/// What a file of packed runs begins with.
const PACKED: &[u8] = b"RGRUNS\n";

fn is_packed(path: &Path) -> io::Result<bool> {
    let mut start = Vec::new();
    fs::File::open(path)?.take(PACKED.len() as u64).read_to_end(&mut start)?;
    Ok(start == PACKED)
}

/// Why nothing tells a format.
enum Untold {
    Empty,
    Unknown,
}

impl Untold {
    fn of(&self, path: &Path) -> OpenError {
        let path = path.to_owned();
        match self {
            Self::Empty => OpenError::Empty { path },
            Self::Unknown => OpenError::Unknown { path },
        }
    }
}

/// The first record, which told its format.
struct First<'a, R> {
    format: Format,
    records: Records<R>,
    /// What is no record, and stands in front of it.
    before: VecDeque<Piece>,
    line: u64,
    record: Value<'a>,
}

/// Gives the format to `first` where the first record tells it, else to `told`.
fn guess_with<R: BufRead, T>(
    mut records: Records<R>,
    first: impl FnOnce(First<'_, R>) -> T,
    told: impl FnOnce(Format, Records<R>) -> T,
) -> Result<T, Untold> {
    let (mut likely, mut looked_at, mut is_empty) = (None, 0, true);
    let mut before = VecDeque::new();
    while looked_at < LOOKED_AT
        && let Some(piece) = records.next()
    {
        is_empty = false;
        let Piece::Record { line, bytes } = piece else {
            // Behind a record nobody asks for them, and a file that has many has no format that the first one tells.
            if looked_at == 0 && before.len() <= MOST_BEFORE {
                before.push_back(piece);
            }
            continue;
        };
        looked_at += 1;
        // The first one is read whole, because it may be all there is; of those behind it a sketch is made.
        let record = if looked_at == 1 { Value::parse(bytes.trim_ascii_end()).ok() } else { None };
        // What cannot be read may tell all the same what it was to be.
        let sketched = record.as_ref().map_or_else(|| sketch::of(&bytes), |record| Some(sketch::of_value(record)));
        match (sketched.and_then(|sketched| sketch::format_of(&sketched)), record) {
            (Some(sketch::Guess::Surely(format)), Some(record)) if before.len() <= MOST_BEFORE => {
                return Ok(first(First { format, records, before, line, record }));
            }
            (Some(sketch::Guess::Surely(format)), _) => return Ok(told(format, records)),
            (Some(sketch::Guess::Perhaps(format)), _) => likely = likely.or(Some(format)),
            (None, _) => {}
        }
    }
    match likely {
        Some(format) => Ok(told(format, records)),
        None => Err(if is_empty { Untold::Empty } else { Untold::Unknown }),
    }
}

/// What is to be read of a path, each to be [opened](open): the path itself when it is a file, or a folder that is one log (a
/// data folder, the completions or events of one run of `OpenHands`); else the files in it, in order, that may hold runs, packed ones too.
pub fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        fs::metadata(path)?;
        return Ok(vec![path.to_owned()]);
    }
    let (mut found, mut seen) = (Vec::new(), BTreeSet::new());
    files_below(path, DEEPEST_FOLDER, &mut seen, &mut found)?;
    Ok(found)
}

/// `seen`: the folders so far, by the names that no link hides: links can lead in a circle.
fn files_below(folder: &Path, deeper: usize, seen: &mut BTreeSet<PathBuf>, found: &mut Vec<PathBuf>) -> io::Result<()> {
    if !seen.insert(folder.canonicalize()?) {
        return Ok(());
    }
    if decision_log::is_database(folder) {
        found.push(folder.to_owned());
        return Ok(());
    }
    let mut entries: Vec<PathBuf> = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    entries.sort();
    if is_one_run(&entries) {
        found.push(folder.to_owned());
        return Ok(());
    }
    for entry in entries {
        if entry.is_dir() {
            if deeper > 0 {
                files_below(&entry, deeper - 1, seen, found)?;
            }
        } else if is_nothing_to_read(&entry) {
            // A pipe that nobody writes to, or a device without an end, would hold up all that follows.
        } else if may_hold_runs(&entry) || wrapped::is_called_so(&name_of(&entry)) {
            found.push(entry);
        }
    }
    Ok(())
}

/// Neither a file nor a link that leads nowhere, which is complained about.
fn is_nothing_to_read(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|there| !there.is_file())
}

fn name_of(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default()
}

/// By its name, so that a folder's pictures and notes are not complained about. A file that is named is read whatever it is called.
fn may_hold_runs(path: &Path) -> bool {
    let name = name_of(path);
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    // What programs keep beside runs.
    if ["report.json", "base_state.json", "sessions-index.json"].contains(&name) || name.ends_with(".meta.json") {
        return false;
    }
    [".jsonl", ".ndjson", ".json", ".traj", ".runs"].iter().any(|end| name.ends_with(end))
}

/// Whether a folder holds one run, a file for each completion or event: more than one file, and the first is one.
fn is_one_run(entries: &[PathBuf]) -> bool {
    let mut files = entries.iter().filter(|entry| entry.is_file() && may_hold_runs(entry));
    let Some(first) = files.next() else { return false };
    let input = fs::File::open(first).map(BufReader::new);
    files.next().is_some() && input.is_ok_and(|input| sketch::is_part(Records::new(input)))
}

fn json_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    files.retain(|path| path.is_file() && may_hold_runs(path));
    // Events that are numbered are in the order of the numbers: 9.json, 10.json.
    files.sort_by_cached_key(|path| {
        let number = path.file_stem().and_then(|stem| stem.to_str()?.parse::<u64>().ok());
        (number, path.clone())
    });
    Ok(files)
}

#[cfg(test)]
mod tests;
