//! A server that is our child: its pipes, its last words and its end.
//!
//! The child gets three pipes and a process group of its own. So it cannot write over the terminal, Ctrl-C reaches us and
//! not it, and whatever it started goes with it. The group is killed when the last of us lets go, whether that is an
//! orderly close, a dropped value or a runtime that shuts down: no path leaves an orphan.

use super::message::{Object, ServerMessage, Unanswered, given_up, question};
use crate::settings::McpSettings;
use bytes::BytesMut;
use serde_json::Value;
use std::collections::HashMap;
use std::io;
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// What is kept of standard error.
const KEPT_STDERR_BYTES: usize = 4 * 1024;
/// Lines of it that are shown.
const SHOWN_LINES: usize = 8;
const SHOWN_LINE_CHARACTERS: usize = 300;
/// Messages on their way to a server that does not read them.
const MAX_UNREAD_MESSAGES: usize = 256;
/// The time for each step of an orderly end: the end of its input, then a signal.
const GRACE: Duration = Duration::from_millis(1500);
/// What a process wrote before it ended is in the pipe already; this is only for the scheduler.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Of our environment a server gets these: enough to find programs, a home, a language, a proxy and certificates. The
/// rest is withheld, for it holds the keys to the model.
const PASSED_ON: [&str; 39] = [
    "ALL_PROXY",
    "APPDATA",
    "COMSPEC",
    "HOME",
    "HOMEDRIVE",
    "HOMEPATH",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "LANG",
    "LOCALAPPDATA",
    "LOGNAME",
    "NODE_EXTRA_CA_CERTS",
    "NO_PROXY",
    "NUMBER_OF_PROCESSORS",
    "PATH",
    "PATHEXT",
    "PROGRAMDATA",
    "PROGRAMFILES",
    "PYENV_ROOT",
    "SHELL",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "SYSTEMDRIVE",
    "SYSTEMROOT",
    "TEMP",
    "TERM",
    "TMP",
    "TMPDIR",
    "TZ",
    "USER",
    "USERNAME",
    "USERPROFILE",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME",
    "WINDIR",
    "DISPLAY",
];

/// What is known of the process, also while somebody else reads its pipes.
#[derive(Debug)]
pub(super) struct Watch {
    group: Group,
    stderr: Mutex<Vec<u8>>,
    /// Why there is nothing more to come.
    end: Mutex<Option<String>>,
    has_ended: CancellationToken,
    unread: AtomicUsize,
}

impl Watch {
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.is_cancelled()
    }

    /// Waits a moment for the reason, when the end shows elsewhere first.
    pub(super) async fn settle(&self) {
        let _ = timeout(3 * LAST_WORDS, self.has_ended.cancelled()).await;
    }

    fn ended(&self, why: impl Into<String>) {
        lock(&self.end).get_or_insert_with(|| why.into());
        self.has_ended.cancel();
    }

    /// Why it ended, if it has.
    pub(super) fn end(&self) -> Option<String> {
        lock(&self.end).clone()
    }

    /// The last lines on standard error, for a message to a person; empty when there are none.
    pub(super) fn last_words(&self) -> String {
        let kept = lock(&self.stderr).clone();
        let text = super::clean(&String::from_utf8_lossy(&kept));
        let lines: Vec<String> = text
            .lines()
            .filter(|line| !line.trim().is_empty())
            .map(|line| line.trim_end().chars().take(SHOWN_LINE_CHARACTERS).collect())
            .collect();
        lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
    }

    /// Kills what is left of it, at once.
    pub(super) fn kill(&self) {
        self.group.kill();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The process group of the child; killed once, at the latest when this is dropped.
#[derive(Debug)]
struct Group(Mutex<Option<u32>>);

#[cfg(unix)]
impl Group {
    fn signal(leader: u32, signal: rustix::process::Signal) {
        if let Some(pid) = i32::try_from(leader).ok().and_then(rustix::process::Pid::from_raw) {
            // It may be gone already: then there is nobody to kill.
            let _ = rustix::process::kill_process_group(pid, signal);
        }
    }

    fn ask_to_end(&self) {
        if let Some(leader) = *lock(&self.0) {
            Self::signal(leader, rustix::process::Signal::TERM);
        }
    }

    fn kill(&self) {
        if let Some(leader) = lock(&self.0).take() {
            Self::signal(leader, rustix::process::Signal::KILL);
        }
    }
}

#[cfg(not(unix))]
impl Group {
    // The child itself is killed when its handle is dropped.
    fn ask_to_end(&self) {}

    fn kill(&self) {
        lock(&self.0).take();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A server that is our child, as those see it who ask it something.
#[derive(Debug)]
pub(super) struct Process {
    waiting: Arc<Waiting>,
    outbox: mpsc::UnboundedSender<Line>,
    pub(super) watch: Arc<Watch>,
    next: AtomicU64,
    closing: CancellationToken,
    reading: tokio::sync::Mutex<JoinHandle<()>>,
}

/// Who waits for an answer; nobody once there is none to come.
#[derive(Debug)]
struct Waiting(Mutex<Option<HashMap<u64, oneshot::Sender<Result<Value, Unanswered>>>>>);

impl Waiting {
    /// Tells whoever asked the question of this number. What names none is for the only one who waits; of several nobody knows for whom.
    fn tell(&self, id: Option<u64>, answer: Result<Value, Unanswered>) {
        let mut waiting = lock(&self.0);
        let Some(waiting) = waiting.as_mut() else { return };
        let only = waiting.keys().next().copied().filter(|_| waiting.len() == 1);
        let asked = id.or(only).and_then(|id| waiting.remove(&id));
        // Nobody waits for what was given up.
        asked.map(|asked| asked.send(answer));
    }
}

/// A line for its standard input.
#[derive(Debug)]
struct Line {
    text: String,
    /// Told when it is in the pipe.
    sent: Option<oneshot::Sender<()>>,
    unread: Unread,
}

impl Process {
    /// Starts the program.
    pub(super) fn spawn(settings: &McpSettings) -> Result<Self, String> {
        let name = &settings.name;
        let (program, arguments) = settings.command.split_first().ok_or_else(|| format!("MCP server '{name}': `command` is empty"))?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).env_clear();
        for (variable, value) in std::env::vars_os() {
            let upper = variable.to_string_lossy().to_ascii_uppercase();
            if PASSED_ON.contains(&upper.as_str()) || upper.starts_with("LC_") || upper.starts_with("NPM_CONFIG_") {
                command.env(variable, value);
            }
        }
        for (variable, value) in &settings.env {
            command.env(variable, super::expand(value).map_err(|problem| format!("MCP server '{name}': `env.{variable}` {problem}"))?);
        }
        #[cfg(unix)]
        command.process_group(0);
        let mut child = command.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                format!("MCP server '{name}': the program '{program}' was not found: install it, or give its full path in `command`")
            }
            io::ErrorKind::PermissionDenied => format!("MCP server '{name}': '{program}' may not be run: is it executable?"),
            _ => format!("MCP server '{name}': '{program}' could not be started: {error}"),
        })?;
        let watch = Arc::new(Watch {
            group: Group(Mutex::new(child.id())),
            stderr: Mutex::default(),
            end: Mutex::default(),
            has_ended: CancellationToken::new(),
            unread: AtomicUsize::new(0),
        });
        let (Some(stdin), Some(stdout), Some(stderr)) = (child.stdin.take(), child.stdout.take(), child.stderr.take()) else {
            return Err(format!("MCP server '{name}': '{program}' came up without its pipes"));
        };
        let waiting = Arc::new(Waiting(Mutex::new(Some(HashMap::new()))));
        let (outbox, lines) = mpsc::unbounded_channel();
        let closing = CancellationToken::new();
        tokio::spawn(write(stdin, lines, closing.clone()));
        let pipes = Pipes {
            stdout,
            read: BytesMut::new(),
            searched: 0,
            child,
            exit: None,
            stderr: tokio::spawn(keep_last(stderr, Arc::clone(&watch))),
            watch: Arc::clone(&watch),
            closing: closing.clone(),
        };
        let reading = tokio::sync::Mutex::new(tokio::spawn(pipes.serve(Arc::clone(&waiting), outbox.clone())));
        Ok(Self { waiting, outbox, watch, next: AtomicU64::new(0), closing, reading })
    }

    pub(super) async fn ask(&self, method: &str, params: Object) -> Result<Value, Unanswered> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (told, answer) = oneshot::channel();
        let lost = || Unanswered::Lost(self.watch.end().unwrap_or_else(|| "the connection broke off".to_owned()));
        match lock(&self.waiting.0).as_mut() {
            Some(waiting) => waiting.insert(id, told),
            None => return Err(lost()),
        };
        // Whoever goes away before the answer leaves nobody waiting, here or there.
        let mut call = Call { process: self, id, is_open: true };
        let (sent, is_sent) = oneshot::channel();
        self.send(&question(id, method, params), Some(sent));
        if is_sent.await.is_err() {
            call.is_open = false;
            lock(&self.waiting.0).as_mut().and_then(|waiting| waiting.remove(&id));
            return Err(Unanswered::Unheard("it closed its input".to_owned()));
        }
        let answer = answer.await;
        call.is_open = false;
        answer.map_err(|_| lost())?
    }

    pub(super) fn tell(&self, message: &Value) {
        self.send(message, None);
    }

    fn send(&self, message: &Value, sent: Option<oneshot::Sender<()>>) {
        let line = Line { text: format!("{message}\n"), sent, unread: Unread::count(&self.watch) };
        // Nobody takes it any more: whoever waits for `sent` is told by its end.
        let _ = self.outbox.send(line);
    }

    /// Ends it in order, as far as it lets us.
    pub(super) async fn close(&self) {
        self.closing.cancel();
        let _ = (&mut *self.reading.lock().await).await;
    }
}

/// A question under way.
struct Call<'a> {
    process: &'a Process,
    id: u64,
    is_open: bool,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let was_waiting = || lock(&self.process.waiting.0).as_mut().is_some_and(|waiting| waiting.remove(&self.id).is_some());
        if self.is_open && was_waiting() {
            self.process.tell(&given_up(self.id));
        }
    }
}

/// Puts lines into the pipe, until it is closed from either side.
async fn write(mut stdin: ChildStdin, mut lines: mpsc::UnboundedReceiver<Line>, closing: CancellationToken) {
    let all = async {
        while let Some(line) = lines.recv().await {
            stdin.write_all(line.text.as_bytes()).await?;
            stdin.flush().await?;
            drop(line.unread);
            line.sent.map(|sent| sent.send(()));
        }
        io::Result::Ok(())
    };
    tokio::select! {
        biased;
        () = closing.cancelled() => {}
        _ = all => {}
    }
}

/// The child and what comes from it; ends with whoever reads.
struct Pipes {
    stdout: ChildStdout,
    read: BytesMut,
    /// Of what was read, without an end of a line.
    searched: usize,
    child: Child,
    exit: Option<ExitStatus>,
    stderr: JoinHandle<()>,
    watch: Arc<Watch>,
    closing: CancellationToken,
}

impl Pipes {
    async fn serve(mut self, waiting: Arc<Waiting>, outbox: mpsc::UnboundedSender<Line>) {
        let closing = self.closing.clone();
        loop {
            let line = tokio::select! {
                biased;
                () = closing.cancelled() => {
                    self.shut_down().await;
                    break;
                }
                line = self.line() => line,
            };
            let Some(line) = line else { break };
            for said in ServerMessage::read(&line) {
                match said {
                    ServerMessage::Answer(id, answer) => waiting.tell(id, answer.map_err(Unanswered::Refused)),
                    ServerMessage::Unreadable(id) => waiting.tell(id, Err(Unanswered::Unreadable)),
                    ServerMessage::Question(reply) => {
                        let unread = Unread::count(&self.watch);
                        let _ = outbox.send(Line { text: format!("{reply}\n"), sent: None, unread });
                    }
                    ServerMessage::Notice => {}
                }
            }
        }
        lock(&waiting.0).take();
        self.closing.cancel();
    }

    /// The next line, and `None` once there is none to come.
    async fn line(&mut self) -> Option<BytesMut> {
        if self.watch.unread.load(Ordering::Relaxed) > MAX_UNREAD_MESSAGES {
            self.watch.ended("it does not read what it is sent");
            return None;
        }
        if self.exit.is_none() {
            tokio::select! {
                biased;
                line = next_line(&mut self.stdout, &mut self.read, &mut self.searched, &self.watch) => {
                    if line.is_none() {
                        self.note_end().await;
                    }
                    return line;
                }
                // A process it started may hold the pipe open: the end of the pipe is not the only sign.
                exit = self.child.wait() => self.exit = exit.ok(),
            }
        }
        let line = timeout(LAST_WORDS, next_line(&mut self.stdout, &mut self.read, &mut self.searched, &self.watch)).await.ok().flatten();
        if line.is_none() {
            self.note_end().await;
        }
        line
    }

    async fn shut_down(&mut self) {
        if !self.watch.has_ended() {
            // Its input is closed by now.
            self.exit = timeout(GRACE, self.child.wait()).await.ok().and_then(Result::ok);
            if self.exit.is_none() {
                self.watch.group.ask_to_end();
                self.exit = timeout(GRACE, self.child.wait()).await.ok().and_then(Result::ok);
            }
        } else if self.exit.is_none() {
            self.exit = timeout(LAST_WORDS, self.child.wait()).await.ok().and_then(Result::ok);
        }
        self.watch.kill();
        if self.exit.is_none() {
            let _ = self.child.start_kill();
            let _ = timeout(GRACE, self.child.wait()).await;
        }
        self.watch.ended("it was closed");
    }

    /// Nothing more comes: notes why, with its exit status and its last words if it gives them.
    async fn note_end(&mut self) {
        if self.exit.is_none() {
            self.exit = timeout(LAST_WORDS, self.child.wait()).await.ok().and_then(Result::ok);
        }
        if !self.stderr.is_finished() {
            let _ = timeout(LAST_WORDS, &mut self.stderr).await;
        }
        self.watch.ended(self.exit.map_or_else(|| "it closed its output".to_owned(), |exit| format!("it ended ({exit})")));
    }
}

impl Drop for Pipes {
    fn drop(&mut self) {
        self.watch.ended("it was closed");
        self.watch.kill();
    }
}

/// A line of standard output. Whoever stops waiting loses nothing of it.
async fn next_line(stdout: &mut ChildStdout, read: &mut BytesMut, searched: &mut usize, watch: &Watch) -> Option<BytesMut> {
    loop {
        if let Some(end) = read[*searched..].iter().position(|byte| *byte == b'\n') {
            let line = read.split_to(*searched + end + 1);
            *searched = 0;
            return Some(line);
        }
        *searched = read.len();
        if read.len() > super::MAX_MESSAGE_BYTES {
            watch.ended(super::too_long());
            return None;
        }
        if stdout.read_buf(read).await.ok()? == 0 {
            return None;
        }
    }
}

/// Counts a message until it is in the pipe, or given up.
#[derive(Debug)]
struct Unread(Arc<Watch>);

impl Unread {
    fn count(watch: &Arc<Watch>) -> Self {
        watch.unread.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(watch))
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.0.unread.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Reads standard error to its end, so that the child never waits for us, and keeps the last of it.
async fn keep_last(mut stderr: ChildStderr, watch: Arc<Watch>) {
    let mut chunk = [0; 1024];
    while let Ok(read @ 1..) = stderr.read(&mut chunk).await {
        let mut kept = lock(&watch.stderr);
        kept.extend_from_slice(&chunk[..read]);
        let over = kept.len().saturating_sub(KEPT_STDERR_BYTES);
        kept.drain(..over);
    }
}
