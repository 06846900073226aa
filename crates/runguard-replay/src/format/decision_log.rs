//! `RunGuard`'s own log: a data folder (or its `runguard.db`), and the decisions as JSON that the API and the CLI print.
//!
//! A run is a session. The same call is often asked about at several doors; the one that was asked most is the run, and of
//! equals the one that knows most of a call: the stall guard has results, the others have not. What was refused counts as a
//! step: it is what the agent did next. Budgets' rows say what the steps cost. In JSON the events are missing, and with them the
//! arguments of some doors; such a call is taken for like no other, so nothing looks repeated that may not be.
//!
//! The database is read in the order of sessions, sorted by `SQLite` with its own bounded memory, on a thread of its own, because
//! a cursor cannot be moved out of its connection. A live service may go on writing.

use super::grouped::{Grouped, Open};
use super::{OpenError, Out, Reader};
use crate::trace::{Broken, Detail, Kind as StepKind, MESSAGE, Names, ReadAt, Run, Step, Texts, shown};
use runguard_core::GuardName;
use runguard_core::detect::stall::CallEffect;
use runguard_core::row::{Effect, Kind, Named, Row};
use runguard_guards::guard::GuardEntry;
use runguard_guards::logged::{self, Account, Logged, Spending, Traced, Traces};
use rusqlite::{Connection, OpenFlags};
use serde::Deserialize;
use serde_json::Value;
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use xxhash_rust::xxh3::xxh3_64;

const LOG_FILE: &str = "runguard.db";
const HEADER: &[u8] = b"SQLite format 3\0";
/// Runs that are read ahead.
const AHEAD: usize = 16;
/// Rows of one session that are held; a longer one is cut, and that is told.
const MOST_ROWS: usize = 1_000_000;

/// A row as it was found.
#[derive(Debug, Clone, Default)]
pub(super) struct Decided {
    /// Not every source says when.
    pub(super) at_millis: Option<i64>,
    pub(super) row: Row,
    /// Empty where the source has none.
    pub(super) effects: Vec<u8>,
    /// What a budget's row shows, where the source says it and has no row.
    pub(super) spending: Option<Box<Spending<'static>>>,
}

/// What of a guard's rows tells what an agent did, if any does.
fn traces(row: &Row) -> Option<(GuardName, Traces)> {
    let guard = row.guard.known()?;
    Some((guard, GuardEntry::of(guard).traces?))
}

/// A session's rows.
#[derive(Debug)]
pub(super) struct Session {
    name: String,
    place: ReadAt,
    detail: Detail,
    rows: Vec<Decided>,
}

impl Open for Session {
    fn held(&self) -> usize {
        self.rows.len() + 1
    }

    fn close(self, out: &mut Out) {
        out.run(self.finish());
    }
}

fn name_of(tenant: &str, session: &str) -> String {
    if matches!(tenant, "" | "default") { session.to_owned() } else { format!("{tenant}/{session}") }
}

impl Session {
    pub(super) fn tell(sessions: &mut Grouped<Self>, tenant: &str, session: &str, line: u64, row: Decided, out: &mut Out) {
        if session.is_empty() || row.row.guard.code().is_empty() {
            out.broken(line, "a decision without its session or its guard");
            return;
        }
        let name = name_of(tenant, session);
        let begin = |out: &Out| Self { name: name.clone(), place: out.place(line), detail: out.detail, rows: Vec::new() };
        sessions.tell(&name, line, out, begin, |session| session.rows.push(row));
    }

    fn finish(mut self) -> Run {
        // Newest first is how the API lists them. Ids are made in order.
        self.rows.sort_by(|left, right| (left.at_millis, &left.row.id).cmp(&(right.at_millis, &right.row.id)));
        // The guard that was asked most; of equals the one that knows most.
        let asked = |guard: GuardName| self.rows.iter().filter(|Decided { row, .. }| row.guard == guard && row.kind == Kind::Check).count();
        let mut doors: Vec<(GuardName, Traces)> =
            GuardName::ALL.iter().filter_map(|guard| Some((*guard, GuardEntry::of(*guard).traces?))).collect();
        doors.sort_by_key(|(guard, traces)| (std::cmp::Reverse(asked(*guard)), traces.rank));
        let door = doors.first().map(|(guard, _)| *guard).filter(|guard| asked(*guard) > 0);
        let mut run = Run::new(self.name, super::Format::DecisionLog.code(), self.place);
        let mut names = Names::default();
        let (mut owed, mut spent_tokens) = (0.0, HashMap::new());
        let mut spoke = false;
        for decided in &self.rows {
            let row = &decided.row;
            let guard = row.guard.known();
            // Only a budget's rows tell what a step cost; every other guard that an agent asks tells steps.
            if guard == Some(GuardName::Budget) {
                let dollars = pay(&mut run, decided, &mut spent_tokens);
                match run.steps.last_mut() {
                    Some(step) => step.dollars += dollars,
                    None => owed += dollars,
                }
            } else if let Some((guard, traces)) = traces(row) {
                if door == Some(guard) {
                    let logged = Logged { row, effects: Effect::read_all(&decided.effects) };
                    match (traces.read)(&logged) {
                        Traced::Result { result, error, shown } => tell_result(&mut run, row, result, error, &shown),
                        // A person has spoken.
                        Traced::UserSpoke => {
                            spoke = true;
                            if let Some(step) = run.steps.last_mut().filter(|step| step.kind == StepKind::Message) {
                                step.result = Some(xxh3_64(row.id.as_bytes()));
                            }
                        }
                        traced => {
                            let step = step_of(decided, &traced, &mut names, self.detail);
                            push(&mut run, step.map(|step| Step { spoke: Some(std::mem::take(&mut spoke)), ..step }), &mut owed);
                        }
                    }
                }
            } else if door.is_none() && row.kind == Kind::Check {
                push(&mut run, step_of_flow(decided, &mut names, self.detail), &mut owed);
            }
        }
        run
    }
}

/// What was paid before the first step is its own.
fn push(run: &mut Run, step: Option<Step>, owed: &mut f64) {
    if let Some(mut step) = step {
        step.dollars += std::mem::take(owed);
        run.steps.push(step);
    }
}

/// What a budget's row says was spent, in dollars; its tokens are a running total and go to the last step.
fn pay(run: &mut Run, decided: &Decided, spent_tokens: &mut HashMap<String, u64>) -> f64 {
    let row = &decided.row;
    let row_ref = row.as_ref();
    let spending = decided.spending.as_deref().cloned().or_else(|| logged::shows(&row_ref).spending);
    let Some(spending) = spending.filter(Spending::is_spent) else { return 0.0 };
    if let Some(model) = spending.model.filter(|model| !model.is_empty()) {
        run.model = model.into_owned();
    }
    // Those of a parent, or of a scope, are others' too.
    if let Some(total) = spending.spent_tokens.filter(|_| spending.account == Account::Own) {
        let before = spent_tokens.insert(row.subject.clone(), total).unwrap_or(0);
        if let Some(step) = run.steps.last_mut() {
            step.tokens = step.tokens.saturating_add(total.saturating_sub(before));
        }
    }
    spending.cost_usd.filter(|dollars| *dollars >= 0.0).unwrap_or(0.0)
}

/// A call or a message; anything else is not a step.
fn step_of(Decided { row, at_millis, .. }: &Decided, traced: &Traced, names: &mut Names, detail: Detail) -> Option<Step> {
    let unknown = xxh3_64(row.id.as_bytes());
    let (kind, tool, args, result, error, given, effect, round) = match traced {
        Traced::Call { arguments, result, error, shown, effect, round } => {
            (StepKind::Call, row.subject.as_str(), arguments.unwrap_or(unknown), *result, *error, shown.as_str(), *effect, *round)
        }
        Traced::Message(text) => (StepKind::Message, MESSAGE, *text, None, None, "", CallEffect::Unknown, None),
        Traced::UserSpoke | Traced::Result { .. } | Traced::Nothing => return None,
    };
    let texts = (detail.texts).then(|| Box::new(Texts { args: shown(&row.input), result: shown(given) }));
    Some(Step {
        kind,
        tool: names.name(tool),
        args,
        result,
        error,
        effect,
        round,
        spoke: None,
        tokens: 0,
        dollars: 0.0,
        at_millis: *at_millis,
        texts,
    })
}

/// A question to a guard that is not asked at every call: of itself, about its subject.
fn step_of_flow(decided: &Decided, names: &mut Names, detail: Detail) -> Option<Step> {
    let row = &decided.row;
    let traced = Traced::Call {
        arguments: Some(xxh3_64(row.subject.as_bytes())),
        result: None,
        error: None,
        shown: String::new(),
        effect: CallEffect::Unknown,
        round: None,
    };
    Some(Step { tool: names.name(row.guard.code()), ..step_of(decided, &traced, names, detail)? })
}

/// What the newest call of an action gave.
fn tell_result(run: &mut Run, row: &Row, result: u64, error: Option<u64>, given: &str) {
    let Some(step) = run.steps.iter_mut().rev().find(|step| *step.tool == *row.subject) else { return };
    (step.result, step.error) = (Some(result), error);
    if let Some(texts) = &mut step.texts {
        texts.result = shown(given);
    }
}

/// Decisions as JSON.
#[derive(Debug, Default)]
pub(super) struct Decisions {
    sessions: Grouped<Session>,
}

impl Reader for Decisions {
    fn record(&mut self, line: u64, record: super::json::Value<'_>, out: &mut Out) {
        #[derive(Deserialize)]
        struct Shown {
            decision_id: String,
            time_ms: Option<i64>,
            #[serde(default)]
            tenant: String,
            guard: Named<GuardName>,
            kind: Named<Kind>,
            session_id: String,
            #[serde(default)]
            subject: String,
            #[serde(default)]
            answer: Value,
            #[serde(default)]
            input: Value,
        }
        let page = match record.to_value() {
            Value::Object(mut object) if object.contains_key("decisions") => match object.remove("decisions") {
                Some(Value::Array(page)) => page,
                _ => Vec::new(),
            },
            other => vec![other],
        };
        for row in page {
            match serde_json::from_value::<Shown>(row) {
                Ok(Shown { decision_id: id, time_ms: at_millis, tenant, guard, kind, session_id, subject, answer, input }) => {
                    let (answer, input) = (answer.to_string(), input.to_string());
                    let row = Row { id, guard, kind, subject, answer, input, ..Row::default() };
                    let decided = Decided { at_millis, row, ..Decided::default() };
                    Session::tell(&mut self.sessions, &tenant, &session_id, line, decided, out);
                }
                Err(error) => out.broken(line, format!("not a decision: {error}")),
            }
        }
    }

    fn end(&mut self, out: &mut Out) {
        self.sessions.close_all(out);
    }
}

/// Whether a path is a database, or a folder that has the log's.
pub(super) fn is_database(path: &Path) -> bool {
    let path = database_of(path);
    // What is read from a pipe is gone.
    if !path.is_file() {
        return false;
    }
    let mut header = [0; HEADER.len()];
    let file = File::open(path).and_then(|mut file| file.read_exact(&mut header));
    file.is_ok() && header == HEADER
}

fn database_of(path: &Path) -> PathBuf {
    if path.is_dir() { path.join(LOG_FILE) } else { path.to_owned() }
}

/// The sessions of a database, read on a thread of their own.
pub(super) struct Rows {
    received: Receiver<Result<Run, Broken>>,
}

impl Iterator for Rows {
    type Item = Result<Run, Broken>;

    fn next(&mut self) -> Option<Self::Item> {
        self.received.recv().ok()
    }
}

const QUERY: &str = "SELECT seq, at, id, tenant, guard, kind, session, subject, answer, input, effects FROM log
    WHERE kind <> 'admin' ORDER BY tenant, session, seq";

pub(super) fn open(path: &Path, detail: Detail) -> Result<Rows, OpenError> {
    let path = database_of(path);
    let failed = |error: rusqlite::Error| OpenError::Database { path: path.clone(), problem: error.to_string() };
    let connection = connect(&path).map_err(failed)?;
    // Asked once here, so that what is no log is told at once.
    connection.prepare(QUERY).map_err(failed)?;
    let (sender, received) = sync_channel(AHEAD);
    let file: Arc<Path> = path.as_path().into();
    let read = move || {
        if let Err(error) = send(&connection, &file, detail, &sender) {
            // Nobody listens any more: then nobody asks either.
            let _ = sender.send(Err(Broken { file: file.to_path_buf(), line: 0, problem: format!("the rest is not read: {error}") }));
        }
    };
    let spawned = thread::Builder::new().name("runguard-log".into()).spawn(read);
    spawned.map_err(|source| OpenError::Unreadable { path, source })?;
    Ok(Rows { received })
}

/// Without writing. A database that nobody has open (there is no write-ahead log beside it) is read as it lies: reading it the
/// usual way would leave files behind.
fn connect(path: &Path) -> Result<Connection, rusqlite::Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    if Path::new(&format!("{}-wal", path.display())).exists() {
        return Connection::open_with_flags(path, flags);
    }
    let escaped: String = path.to_string_lossy().replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    Connection::open_with_flags(format!("file:{escaped}?immutable=1"), flags | OpenFlags::SQLITE_OPEN_URI)
}

fn send(
    connection: &Connection,
    file: &Arc<Path>,
    detail: Detail,
    sender: &SyncSender<Result<Run, Broken>>,
) -> Result<(), rusqlite::Error> {
    let mut statement = connection.prepare(QUERY)?;
    let mut rows = statement.query([])?;
    let mut open: Option<Session> = None;
    let mut ready: VecDeque<Result<Run, Broken>> = VecDeque::new();
    loop {
        let row = rows.next()?;
        let next = match row {
            Some(row) => {
                let text = |index: usize| row.get::<_, String>(index);
                let effects = row.get::<_, Option<Vec<u8>>>(10)?.unwrap_or_default();
                let (seq, at_millis) = (row.get(0)?, Some(row.get(1)?));
                let (guard, kind) = (text(4)?.as_str().into(), text(5)?.as_str().into());
                let (answer, input) = (text(8)?, text(9)?);
                let decided = Decided {
                    at_millis,
                    row: Row { seq, id: text(2)?, guard, kind, subject: text(7)?, answer, input, ..Row::default() },
                    effects,
                    spending: None,
                };
                Some((name_of(&text(3)?, &text(6)?), seq, decided))
            }
            None => None,
        };
        if open.as_ref().is_some_and(|open| next.as_ref().is_none_or(|(name, ..)| *name != open.name)) {
            ready.extend(open.take().map(Session::finish).filter(|run| !run.steps.is_empty()).map(Ok));
        }
        let ended = next.is_none();
        if let Some((name, line, row)) = next {
            let place = ReadAt { file: file.clone(), line };
            let session = open.get_or_insert_with(|| Session { name, place, detail, rows: Vec::new() });
            if session.rows.len() < MOST_ROWS {
                session.rows.push(row);
            } else if session.rows.len() == MOST_ROWS {
                let problem = format!("{} has more than {MOST_ROWS} rows; the rest of it is not read", session.name);
                session.rows.push(Decided::default());
                ready.push_back(Err(Broken { file: file.to_path_buf(), line, problem }));
            }
        }
        for run in ready.drain(..) {
            if sender.send(run).is_err() {
                return Ok(());
            }
        }
        if ended {
            return Ok(());
        }
    }
}
