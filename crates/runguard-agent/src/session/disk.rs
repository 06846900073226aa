//! Sessions as files: a file a session, a line a record.
//!
//! A line is JSON with its checksum in front, so that `jq` and `grep` read it, and a torn or damaged line is told from a whole
//! one. Each checksum continues the one before it: a line that is missing, doubled or moved shows as well.
//!
//! A record is one write at the end of the file. A crash leaves at most an unfinished last line, and nobody was told that an
//! unfinished line is safe: it is cut off. Everything else that is wrong is damage. It is refused, because going on from a
//! guess may pay for a step or run a tool a second time.
//!
//! The file is its own lock, which dies with its process: after a crash there is nothing to clean up.

use super::{InMemory, Journal, Progress, Record, Recovered, Session, VERSION};
use crate::message::{Message, Role};
use crate::settings::{Durability, SessionSettings, Settings};
use crate::spend::Counters;
use crate::state::AgentState;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use runguard_core::money::NanoDollars;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A longer line is damage; a longer record is not written. Bounds what reading takes in memory.
const MAX_LINE_BYTES: usize = 64 << 20;
/// What the buffer of a journal keeps between records.
const KEPT_BUFFER_BYTES: usize = 1 << 20;
/// `{"sum":"0123456789abcdef",`
const HEAD_BYTES: usize = 26;
/// So many zeros in a row are a block that never reached the disk; JSON has none.
const HOLE: [u8; 8] = [0; 8];
const SUFFIX: &str = ".jsonl";
const LAST: &str = "last";
const MAX_ID_BYTES: usize = 64;
/// How many sessions an error names.
const NAMED: usize = 8;
const MAX_CREATE_ATTEMPTS: u32 = 32;
const MAX_PROMPT_CHARS: usize = 200;
const RUNGUARD: &str = env!("CARGO_PKG_VERSION");
const NOT_OPENED: &str = "the first record is not `opened`";

/// Why a session cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error("cannot {doing} {path}: {problem}")]
    Io { doing: &'static str, path: String, problem: io::Error },
    #[error("'{id}' is not the id of a session: ids have digits, small letters and '-' only, and 'last' means the latest one")]
    BadId { id: String },
    #[error("there is no session '{id}' in {folder}; {}", nearest(.known))]
    Unknown { id: String, folder: String, known: Vec<String> },
    #[error("'{id}' is the beginning of {count} sessions, type more of it: {}", .candidates.join(", "))]
    Ambiguous { id: String, count: usize, candidates: Vec<String> },
    #[error("session {id} is in use by {}: wait for it or end it", .process.map_or("another run".to_owned(), |process| format!("process {process}")))]
    InUse { id: String, process: Option<u32> },
    #[error("{file} holds no session: its run ended before the first record was written; the file can be deleted")]
    NeverBegan { file: String },
    #[error("{file}, line {line}: {problem}. {}", way_out(*.line))]
    Damaged { file: String, line: u64, problem: String },
    #[error("{file} has format {found}, written by RunGuard {runguard}; this is RunGuard {RUNGUARD}, which reads format {VERSION}")]
    Version { file: String, found: u32, runguard: String },
    #[error("{file} was written by RunGuard {runguard} with settings that this RunGuard ({RUNGUARD}) does not understand: {problem}")]
    Settings { file: String, runguard: String, problem: String },
}

fn way_out(line: u64) -> String {
    match line - 1 {
        0 => "Nothing of it can be read: restore a copy of the file".to_owned(),
        sound => format!(
            "What comes before is sound and can still be shown. To go on, restore a copy of the file, or keep its first {sound} lines only and lose the rest"
        ),
    }
}

fn nearest(known: &[String]) -> String {
    if known.is_empty() { "there are none yet".to_owned() } else { format!("there are: {}", known.join(", ")) }
}

fn io_error(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SessionError {
    let path = path.display().to_string();
    move |problem| SessionError::Io { doing, path, problem }
}

/// The folder sessions are kept in.
#[derive(Debug, Clone)]
pub struct SessionFolder {
    folder: PathBuf,
    durability: Durability,
}

/// A session that was read back.
#[derive(Debug)]
pub struct Loaded {
    pub session: Session,
    pub settings: Settings,
    pub recovered: Recovered,
    pub opened_at_ms: i64,
    /// Only when looking: the file is damaged, and the session is as it was before that.
    pub damage: Option<String>,
}

/// A session in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    pub id: String,
    pub name: String,
    pub model: String,
    pub state: AgentState,
    pub steps: u32,
    pub total_tokens: u64,
    pub cost: NanoDollars,
    pub opened_at_ms: i64,
    /// The beginning of what the user said first, on one line.
    pub first_prompt: String,
    /// It cannot be read, or not to its end; the rest is as far as it goes.
    pub problem: Option<String>,
}

impl SessionFolder {
    /// Makes the folder when it is not there, for its owner alone: conversations are private.
    pub fn open(settings: &SessionSettings) -> Result<Self, SessionError> {
        let folder = settings.folder.clone();
        let missing: Vec<&Path> = folder.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists()).collect();
        let mut builder = DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&folder).map_err(io_error("make the folder", &folder))?;
        if settings.durability == Durability::Power {
            missing.iter().filter_map(|path| path.parent()).try_for_each(sync_folder)?;
        }
        Ok(Self { folder, durability: settings.durability })
    }

    /// A session that has just begun, in a file of its own.
    pub fn create(&self, settings: &Settings) -> Result<Session, SessionError> {
        let at_ms = Timestamp::now().as_millisecond();
        let (id, path, file) = self.create_file(at_ms)?;
        let begin = || {
            let opened = Record::Opened {
                version: VERSION,
                id: id.clone(),
                at_ms,
                name: settings.name.clone(),
                model: settings.provider.model.clone(),
                settings: serde_json::to_value(settings)?,
            };
            let mut journal = SessionFile::new(file, path.clone(), self.durability, 0, 0);
            journal.append_line(&Beginning { runguard: RUNGUARD, opened: &opened })?;
            let mut session = Session::empty(id, Box::new(journal));
            session.apply(opened);
            Ok(session)
        };
        let begun = begin().map_err(io_error("begin a session in", &path)).and_then(|session| {
            if self.durability == Durability::Power {
                sync_folder(&self.folder)?;
            }
            Ok(session)
        });
        if begun.is_err() {
            drop(fs::remove_file(&path));
        }
        begun
    }

    /// An empty file under an id that nobody has, locked.
    fn create_file(&self, at_ms: i64) -> Result<(String, PathBuf, Locked), SessionError> {
        let latest_ticks = self.ids()?.iter().find_map(|id| ticks_of(id));
        let mut options = OpenOptions::new();
        options.read(true).append(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut attempt = 0;
        loop {
            attempt += 1;
            // Without randomness the number of the attempt does: the file system decides whether an id is free.
            let id = fresh_id(at_ms, latest_ticks, getrandom::u32().unwrap_or(attempt));
            let path = self.path(&id);
            let file = match options.open(&path) {
                Ok(file) => file,
                Err(problem) if problem.kind() == io::ErrorKind::AlreadyExists && attempt < MAX_CREATE_ATTEMPTS => continue,
                Err(problem) => return Err(io_error("create", &path)(problem)),
            };
            match file.try_lock() {
                Ok(()) => return Ok((id, path, Locked(file))),
                // Somebody who looks for the last session was faster; there is nothing in it to be had.
                Err(TryLockError::WouldBlock) if attempt < MAX_CREATE_ATTEMPTS => drop(fs::remove_file(&path)),
                Err(problem) => {
                    drop(fs::remove_file(&path));
                    return Err(io_error("lock", &path)(problem.into()));
                }
            }
        }
    }

    /// Goes on with a session: its id, the beginning of it, or `last`. It is locked until the session is dropped.
    pub fn resume(&self, id: &str) -> Result<Loaded, SessionError> {
        let id = self.find(id)?;
        let path = self.path(&id);
        let file = OpenOptions::new().read(true).append(true).open(&path).map_err(io_error("open", &path))?;
        let file = match file.try_lock() {
            Ok(()) => Locked(file),
            Err(TryLockError::WouldBlock) => return Err(SessionError::InUse { id, process: holder(&file) }),
            Err(TryLockError::Error(problem)) => return Err(io_error("lock", &path)(problem)),
        };
        let (mut loaded, end) = load(id, &path, &file.0)?;
        if let Some(damage) = end.damage {
            return Err(damage);
        }
        if loaded.recovered.torn_bytes > 0 {
            file.0.set_len(end.whole_bytes).map_err(io_error("cut the unfinished record off", &path))?;
        }
        loaded.session.continue_in(Box::new(SessionFile::new(file, path, self.durability, end.whole_bytes, end.chain)));
        Ok(loaded)
    }

    /// A session to look at, also while it is in use. Nothing is changed, and what happens to it is not kept.
    pub fn read(&self, id: &str) -> Result<Loaded, SessionError> {
        let id = self.find(id)?;
        let path = self.path(&id);
        let file = File::open(&path).map_err(io_error("open", &path))?;
        let (mut loaded, end) = load(id, &path, &file)?;
        loaded.damage = end.damage.map(|damage| damage.to_string());
        Ok(loaded)
    }

    /// All sessions, the latest first.
    pub fn list(&self) -> Result<Vec<Summary>, SessionError> {
        Ok(self.ids()?.into_iter().map(|id| summarise(&self.path(&id), id)).collect())
    }

    fn path(&self, id: &str) -> PathBuf {
        self.folder.join(format!("{id}{SUFFIX}"))
    }

    /// The latest first. A file that was given a name without a time is older than all others.
    fn ids(&self) -> Result<Vec<String>, SessionError> {
        let mut ids = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(io_error("list", &self.folder))? {
            let name = entry.map_err(io_error("list", &self.folder))?.file_name();
            if let Some(id) = name.to_str().and_then(|name| name.strip_suffix(SUFFIX)).filter(|id| is_id(id)) {
                ids.push(id.to_owned());
            }
        }
        ids.sort_by_cached_key(|id| Reverse((ticks_of(id), id.clone())));
        Ok(ids)
    }

    fn find(&self, wanted: &str) -> Result<String, SessionError> {
        if !is_id(wanted) {
            return Err(SessionError::BadId { id: wanted.to_owned() });
        }
        let mut ids = self.ids()?;
        let found = if wanted == LAST {
            // A file without a first record is no session: whoever made it never had one.
            ids.iter().find(|id| has_begun(&self.path(id)))
        } else {
            ids.iter().find(|id| *id == wanted)
        };
        if let Some(found) = found {
            return Ok(found.clone());
        }
        let alike: Vec<&String> = ids.iter().filter(|id| id.starts_with(wanted)).collect();
        match alike[..] {
            [only] => Ok(only.clone()),
            [] => {
                let same_bytes = |id: &String| id.bytes().zip(wanted.bytes()).take_while(|(left, right)| left == right).count();
                // Stable: among those that are equally near, the latest stays first.
                ids.sort_by_key(|id| Reverse(same_bytes(id)));
                ids.truncate(NAMED);
                Err(SessionError::Unknown { id: wanted.to_owned(), folder: self.folder.display().to_string(), known: ids })
            }
            ref several => {
                let candidates = several.iter().take(NAMED).copied().cloned().collect();
                Err(SessionError::Ambiguous { id: wanted.to_owned(), count: several.len(), candidates })
            }
        }
    }
}

/// Makes the names in a folder survive the end of the machine.
fn sync_folder(folder: &Path) -> Result<(), SessionError> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    // Elsewhere a folder cannot be opened as a file, and needs not.
    if cfg!(unix) { File::open(folder).and_then(|opened| opened.sync_all()).map_err(io_error("save the folder", folder)) } else { Ok(()) }
}

/// The process that holds the lock, where the system says so.
#[cfg(target_os = "linux")]
fn holder(file: &File) -> Option<u32> {
    let inode = std::os::unix::fs::MetadataExt::ino(&file.metadata().ok()?).to_string();
    // 1: FLOCK  ADVISORY  WRITE 4711 08:02:1315 0 EOF
    fs::read_to_string("/proc/locks").ok()?.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let is_lock = words.next() == Some("FLOCK");
        let process = words.nth(2)?.parse().ok().filter(|process| *process > 0)?;
        let same_file = words.next()?.rsplit(':').next() == Some(&inode);
        (is_lock && same_file).then_some(process)
    })
}

#[cfg(not(target_os = "linux"))]
fn holder(_: &File) -> Option<u32> {
    None
}

// Ids: `20261115-094512-7qk3f` is the time in UTC to the second, two digits of 1/1024 s, and three of chance.

const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const TICKS_PER_SECOND: i64 = 1024;
const TIME_FORMAT: &str = "%Y%m%d-%H%M%S";
const TIME_BYTES: usize = 15;

fn is_id(id: &str) -> bool {
    (1..=MAX_ID_BYTES).contains(&id.len()) && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'z' | b'-'))
}

/// An id that sorts behind the latest one whatever the clock does: a session begun after a jump back is still the last one.
fn fresh_id(now_ms: i64, latest_ticks: Option<i64>, noise: u32) -> String {
    let now_ticks = now_ms.max(0).saturating_mul(TICKS_PER_SECOND) / 1000;
    let second = |ticks: i64| Timestamp::from_second(ticks / TICKS_PER_SECOND);
    // Behind the end of time there is nothing: then the clock has to do.
    let ticks = latest_ticks.map(|latest| latest + 1).filter(|next| second(*next).is_ok()).map_or(now_ticks, |next| next.max(now_ticks));
    let digit = |number: i64| char::from(DIGITS[(number & 31) as usize]);
    let noise = i64::from(noise);
    let time = second(ticks).unwrap_or(Timestamp::UNIX_EPOCH).strftime(TIME_FORMAT);
    let digits = [digit(ticks >> 5), digit(ticks), digit(noise >> 10), digit(noise >> 5), digit(noise)];
    format!("{time}-{}", String::from_iter(digits))
}

/// The time in an id, if it is one of ours.
fn ticks_of(id: &str) -> Option<i64> {
    let (time, rest) = id.split_at_checked(TIME_BYTES)?;
    let mut rest = rest.strip_prefix('-')?.bytes().map(|byte| DIGITS.iter().position(|digit| *digit == byte));
    let fraction = rest.next()?? * DIGITS.len() + rest.next()??;
    let seconds = DateTime::strptime(TIME_FORMAT, time).ok()?.to_zoned(TimeZone::UTC).ok()?.timestamp().as_second();
    Some(seconds * TICKS_PER_SECOND + fraction as i64)
}

// Writing.

/// The checksum of a line is over what follows it, and begins with the checksum of the line before.
fn head(sum: u64) -> String {
    format!("{{\"sum\":\"{sum:016x}\",")
}

/// The lock is given back by hand: a program that is just being started holds all open files for a moment, and a lock that
/// is only closed would live on with it.
#[derive(Debug)]
struct Locked(File);

impl Drop for Locked {
    fn drop(&mut self) {
        // When it fails, closing the file has to do.
        drop(self.0.unlock());
    }
}

#[derive(Debug)]
struct SessionFile {
    file: Locked,
    path: PathBuf,
    durability: Durability,
    /// Where the last whole record ends.
    whole_bytes: u64,
    chain: u64,
    line: Vec<u8>,
    /// What is at the end of the file is not known: nothing may be written behind it.
    is_broken: bool,
}

impl SessionFile {
    fn new(file: Locked, path: PathBuf, durability: Durability, whole_bytes: u64, chain: u64) -> Self {
        Self { file, path, durability, whole_bytes, chain, line: Vec::new(), is_broken: false }
    }

    fn error(&self, problem: &io::Error) -> io::Error {
        io::Error::new(problem.kind(), format!("cannot write to {}: {problem}", self.path.display()))
    }

    fn append_line(&mut self, line: &impl Serialize) -> io::Result<()> {
        if self.is_broken {
            return Err(self.error(&io::Error::other("an earlier record failed and could not be taken back; resume the session to go on")));
        }
        self.line.clear();
        self.line.shrink_to(KEPT_BUFFER_BYTES);
        // The brace that opens the record becomes the comma after the checksum.
        self.line.resize(HEAD_BYTES - 1, 0);
        serde_json::to_writer(&mut self.line, line)?;
        let sum = xxh3_64_with_seed(&self.line[HEAD_BYTES..], self.chain);
        self.line[..HEAD_BYTES].copy_from_slice(head(sum).as_bytes());
        self.line.push(b'\n');
        if self.line.len() > MAX_LINE_BYTES {
            return Err(self.error(&io::Error::new(io::ErrorKind::FileTooLarge, "the record is longer than 64 MiB")));
        }

        let mut written = self.file.0.write_all(&self.line);
        if written.is_ok() && self.durability == Durability::Power {
            written = self.file.0.sync_data();
            // After a failed sync the system may have forgotten what it could not write.
            self.is_broken = written.is_err();
        }
        if let Err(problem) = written {
            // What half a record would do to the next one: both would be lost.
            self.is_broken |= self.file.0.set_len(self.whole_bytes).is_err();
            return Err(self.error(&problem));
        }
        self.whole_bytes += self.line.len() as u64;
        self.chain = sum;
        Ok(())
    }
}

/// The first line also says which RunGuard wrote it, for the one that cannot read it.
#[derive(Serialize)]
struct Beginning<'a> {
    runguard: &'a str,
    #[serde(flatten)]
    opened: &'a Record,
}

impl Journal for SessionFile {
    fn append(&mut self, record: &Record) -> io::Result<()> {
        self.append_line(record)
    }
}

// Reading.

/// Where reading ended.
struct End {
    whole_bytes: u64,
    chain: u64,
    damage: Option<SessionError>,
}

enum Next<'a> {
    /// The record's JSON.
    Record(&'a [u8]),
    End {
        torn_bytes: u64,
    },
}

/// The lines of a file, one in memory at a time.
struct Lines<'a> {
    path: &'a Path,
    reader: BufReader<&'a File>,
    line: Vec<u8>,
    number: u64,
    whole_bytes: u64,
    chain: u64,
    /// The version that wrote the file, after its first line.
    runguard: String,
}

/// The part of the first line that every version has.
#[derive(Deserialize)]
struct Header {
    version: u32,
    #[serde(default)]
    runguard: String,
}

impl<'a> Lines<'a> {
    fn new(path: &'a Path, file: &'a File) -> Self {
        Self {
            path,
            reader: BufReader::with_capacity(64 * 1024, file),
            line: Vec::new(),
            number: 0,
            whole_bytes: 0,
            chain: 0,
            runguard: String::new(),
        }
    }

    fn damaged(&self, problem: impl Into<String>) -> SessionError {
        SessionError::Damaged { file: self.path.display().to_string(), line: self.number, problem: problem.into() }
    }

    fn next(&mut self) -> Result<Next<'_>, SessionError> {
        self.line.clear();
        self.number += 1;
        let mut bounded = (&mut self.reader).take(MAX_LINE_BYTES as u64 + 1);
        bounded.read_until(b'\n', &mut self.line).map_err(io_error("read", self.path))?;
        if self.line.len() > MAX_LINE_BYTES {
            return Err(self.damaged("the line is longer than 64 MiB"));
        }
        let torn = Next::End { torn_bytes: self.line.len() as u64 };
        if self.line.pop_if(|byte| *byte == b'\n').is_none() {
            return Ok(torn);
        }
        if self.number == 1
            && let Ok(Header { version, runguard }) = serde_json::from_slice(&self.line)
        {
            if version != VERSION {
                return Err(SessionError::Version { file: self.path.display().to_string(), found: version, runguard });
            }
            self.runguard = runguard;
        }
        let sum = self.line.get(HEAD_BYTES..).map(|body| xxh3_64_with_seed(body, self.chain));
        let Some(sum) = sum.filter(|sum| self.line.starts_with(head(*sum).as_bytes())) else {
            let is_last = self.reader.fill_buf().map_err(io_error("read", self.path))?.is_empty();
            if is_last && self.line.windows(HOLE.len()).any(|bytes| bytes == HOLE) {
                return Ok(torn);
            }
            return Err(self.damaged("the line is damaged, or a line before it is missing (the checksum does not fit)"));
        };
        self.chain = sum;
        self.whole_bytes += self.line.len() as u64 + 1;
        self.line[HEAD_BYTES - 1] = b'{';
        Ok(Next::Record(&self.line[HEAD_BYTES - 1..]))
    }

    fn record<'json, T: Deserialize<'json>>(json: &'json [u8]) -> Result<T, String> {
        serde_json::from_slice(json).map_err(|problem| format!("the record is whole but not understood ({problem})"))
    }

    /// The first record, which says what session this is.
    fn first(&mut self) -> Result<Record, SessionError> {
        let first = match self.next()? {
            Next::End { .. } => return Err(SessionError::NeverBegan { file: self.path.display().to_string() }),
            Next::Record(json) => Self::record(json),
        };
        first.map_err(|problem| self.damaged(problem))
    }

    /// Lives through the records that follow the first.
    fn replay(&mut self, session: &mut Session) -> Result<u64, SessionError> {
        loop {
            let record = match self.next()? {
                Next::End { torn_bytes } => return Ok(torn_bytes),
                Next::Record(json) => Self::record(json),
            };
            session.apply(record.map_err(|problem| self.damaged(problem))?);
        }
    }
}

fn has_begun(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| !matches!(Lines::new(path, &file).next(), Ok(Next::End { .. })))
}

fn load(id: String, path: &Path, file: &File) -> Result<(Loaded, End), SessionError> {
    let mut lines = Lines::new(path, file);
    let opened = lines.first()?;
    let Record::Opened { at_ms, settings, .. } = &opened else {
        return Err(lines.damaged(NOT_OPENED));
    };
    let opened_at_ms = *at_ms;
    let settings = serde_json::from_value::<Settings>(settings.clone()).map_err(|problem| SessionError::Settings {
        file: path.display().to_string(),
        runguard: lines.runguard.clone(),
        problem: problem.to_string(),
    })?;

    let mut session = Session::empty(id.clone(), Box::new(InMemory));
    session.apply(opened);
    let (torn_bytes, damage) = match lines.replay(&mut session) {
        Ok(torn_bytes) => (torn_bytes, None),
        Err(damage) => (0, Some(damage)),
    };
    // A restored copy may have another name, and it is the name that finds it.
    session.id = id;
    let recovered = Recovered { lost_call: session.open_call().is_some(), interrupted: interrupted(&session), torn_bytes };
    let end = End { whole_bytes: lines.whole_bytes, chain: lines.chain, damage };
    Ok((Loaded { session, settings, recovered, opened_at_ms, damage: None }, end))
}

/// The names of the tools that had begun and did not end.
fn interrupted(session: &Session) -> Vec<String> {
    let calls = session.messages().iter().rev().find(|message| message.tool_calls().next().is_some());
    let mut names = calls.into_iter().flat_map(Message::tool_calls);
    let begun = session.open_tools().iter().filter_map(|(id, progress)| {
        // Both are in the model's order, so that calls that share an id are told apart.
        let name = names.by_ref().find(|call| call.id == *id).map_or(id, |call| &call.name);
        match progress {
            Progress::Started => Some(name.clone()),
            Progress::Waiting | Progress::Finished(_) => None,
        }
    });
    begun.collect()
}

/// What a list shows of any record; the rest of it is not built.
#[derive(Deserialize)]
struct Glance {
    #[serde(default)]
    counters: Option<Counters>,
    #[serde(default)]
    state: Option<AgentState>,
}

fn summarise(path: &Path, id: String) -> Summary {
    let mut summary = Summary {
        id,
        name: String::new(),
        model: String::new(),
        state: AgentState::Running,
        steps: 0,
        total_tokens: 0,
        cost: NanoDollars::ZERO,
        opened_at_ms: 0,
        first_prompt: String::new(),
        problem: None,
    };
    let read = File::open(path).map_err(io_error("open", path)).and_then(|file| glance_through(path, &file, &mut summary));
    summary.problem = read.err().map(|problem| problem.to_string());
    summary
}

fn glance_through(path: &Path, file: &File, summary: &mut Summary) -> Result<(), SessionError> {
    let mut lines = Lines::new(path, file);
    let Record::Opened { at_ms, name, model, .. } = lines.first()? else {
        return Err(lines.damaged(NOT_OPENED));
    };
    summary.opened_at_ms = at_ms;
    summary.name = name;
    summary.model = model;
    let mut counters = Counters::default();
    let outcome = loop {
        let glance = match lines.next() {
            Err(damage) => break Err(damage),
            Ok(Next::End { .. }) => break Ok(()),
            Ok(Next::Record(json)) => {
                if summary.first_prompt.is_empty() {
                    summary.first_prompt = prompt(json);
                }
                Lines::record::<Glance>(json)
            }
        };
        match glance {
            Err(problem) => break Err(lines.damaged(problem)),
            Ok(glance) => {
                summary.state = glance.state.unwrap_or(summary.state);
                counters = glance.counters.unwrap_or(counters);
            }
        }
    };
    summary.steps = counters.steps;
    summary.total_tokens = counters.input_tokens.saturating_add(counters.output_tokens);
    summary.cost = counters.cost;
    outcome
}

/// What the user says in a record, if it is that; one line, and not much of it.
fn prompt(json: &[u8]) -> String {
    let Ok(Record::Message { message, .. }) = serde_json::from_slice(json) else { return String::new() };
    if message.role != Role::User || message.reason.is_some() {
        return String::new();
    }
    let text = message.text();
    let mut words = text.split_whitespace().flat_map(|word| word.chars().chain([' ']));
    let prompt: String = words.by_ref().take(MAX_PROMPT_CHARS).collect();
    if words.next().is_some() { prompt + "…" } else { prompt.trim_end().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const AT_MS: i64 = 1_794_735_912_345;

    #[test]
    fn an_id_is_the_time_and_a_little_chance() {
        assert_eq!(fresh_id(AT_MS, None, 0), "20261115-094512-b1000");
        assert_eq!(fresh_id(AT_MS, None, 0x7fff), "20261115-094512-b1zzz");
        assert!(is_id(&fresh_id(AT_MS, None, 12345)));
    }

    #[test]
    fn a_clock_that_jumps_back_does_not_reorder_sessions() {
        let before = fresh_id(AT_MS, None, 0x7fff);
        let after = fresh_id(AT_MS - 86_400_000, ticks_of(&before), 0);
        assert!(after > before, "{after} comes after {before}");
        assert_eq!(after, "20261115-094512-b2000");
        let caught_up = fresh_id(AT_MS + 1000, ticks_of(&after), 0);
        assert_eq!(caught_up, "20261115-094513-b1000");
    }

    #[test]
    fn at_the_end_of_time_the_clock_has_to_do() {
        let end = "99991230-220000-zzzzz";
        assert!(ticks_of(end).is_some());
        assert_eq!(fresh_id(AT_MS, ticks_of(end), 0), "20261115-094512-b1000");
        assert_eq!(fresh_id(i64::MIN, None, 0), "19700101-000000-00000");
        assert!(is_id(&fresh_id(i64::MAX, None, 0)));
    }

    proptest! {
        #[test]
        fn ids_follow_each_other_whatever_the_clock_says(
            clocks in prop::collection::vec((0_i64..4_102_444_800_000, any::<u32>()), 1..20),
        ) {
            let mut latest: Option<String> = None;
            for (now_ms, noise) in clocks {
                let id = fresh_id(now_ms, latest.as_deref().and_then(ticks_of), noise);
                prop_assert!(is_id(&id));
                prop_assert!(ticks_of(&id).is_some());
                prop_assert!(latest.is_none_or(|latest| latest < id));
                latest = Some(id);
            }
        }

        #[test]
        fn no_name_makes_the_time_panic(id in "\\PC{0,24}", shaped in "[0-9]{8}-[0-9]{6}-[0-9a-z]{0,5}") {
            let _ = ticks_of(&id);
            if let Some(ticks) = ticks_of(&shaped) {
                prop_assert!(shaped.starts_with(&fresh_id(0, Some(ticks - 1), 0)[..TIME_BYTES]) || ticks < 1);
            }
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn when_half_a_record_cannot_be_taken_back_nothing_is_written_behind_it() {
        let full = OpenOptions::new().append(true).open("/dev/full").unwrap();
        let mut journal = SessionFile::new(Locked(full), PathBuf::from("/dev/full"), Durability::Process, 0, 0);
        let record = Record::ToolStarted { id: "a".to_owned() };
        let first = journal.append(&record).unwrap_err();
        assert_eq!(first.kind(), io::ErrorKind::StorageFull);
        assert!(first.to_string().contains("/dev/full"), "{first}");
        journal.file = Locked(OpenOptions::new().append(true).open("/dev/null").unwrap());
        let second = journal.append(&record).unwrap_err();
        assert!(second.to_string().contains("could not be taken back"), "{second}");
    }

    #[test]
    fn a_record_that_could_not_be_read_back_is_not_written() {
        let mut journal = SessionFile::new(Locked(tempfile::tempfile().unwrap()), PathBuf::from("file"), Durability::Process, 0, 0);
        let long = Record::ToolStarted { id: "a".repeat(MAX_LINE_BYTES) };
        assert_eq!(journal.append(&long).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(journal.file.0.metadata().unwrap().len(), 0);
        journal.append(&Record::ToolStarted { id: "a".to_owned() }).unwrap();
        assert!(journal.line.capacity() <= 2 * KEPT_BUFFER_BYTES);
    }
}
