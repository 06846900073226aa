//! A server that is our child: its pipes, its last words and its end.
//!
//! The child gets three pipes and a process group of its own. So it cannot write over the terminal, Ctrl-C reaches us and
//! not it, and whatever it started goes with it. The group is killed when the last of us lets go, whether that is an
//! orderly close, a dropped value or a runtime that shuts down: no path leaves an orphan.

use crate::settings::McpSettings;
use rmcp::RoleClient;
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use rmcp::transport::async_rw::AsyncRwTransport;
use std::io;
use std::pin::Pin;
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
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

/// The pipes to the child, as a transport.
pub(super) struct Pipes {
    messages: AsyncRwTransport<RoleClient, Measured, ChildStdin>,
    child: Child,
    exit: Option<ExitStatus>,
    stderr: JoinHandle<()>,
    watch: Arc<Watch>,
}

impl Pipes {
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
        let measured = Measured { stdout, line_bytes: 0, watch: Arc::clone(&watch) };
        Ok(Self {
            // `Measured` ends the connection at a line that is too long; dropping the line would leave its caller waiting.
            messages: AsyncRwTransport::new_client(measured, stdin).with_max_line_length(usize::MAX),
            child,
            exit: None,
            stderr: tokio::spawn(keep_last(stderr, Arc::clone(&watch))),
            watch,
        })
    }

    pub(super) fn watch(&self) -> Arc<Watch> {
        Arc::clone(&self.watch)
    }

    async fn shut_down(&mut self) {
        if !self.watch.has_ended() {
            let messages = &mut self.messages;
            let child = &mut self.child;
            let orderly = async move {
                let _ = messages.close().await;
                child.wait().await
            };
            self.exit = timeout(GRACE, orderly).await.ok().and_then(Result::ok);
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

impl Transport<RoleClient> for Pipes {
    type Error = io::Error;

    fn send(&mut self, item: TxJsonRpcMessage<RoleClient>) -> impl Future<Output = Result<(), io::Error>> + Send + 'static {
        let unread = Unread::count(&self.watch);
        let sending = self.messages.send(item);
        async move {
            let sent = sending.await;
            drop(unread);
            sent
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        if self.watch.unread.load(Ordering::Relaxed) > MAX_UNREAD_MESSAGES {
            self.watch.ended("it does not read what it is sent");
            return None;
        }
        if self.exit.is_none() {
            tokio::select! {
                biased;
                message = self.messages.receive() => {
                    if message.is_none() {
                        self.note_end().await;
                    }
                    return message;
                }
                // A process it started may hold the pipe open: the end of the pipe is not the only sign.
                exit = self.child.wait() => self.exit = exit.ok(),
            }
        }
        let message = timeout(LAST_WORDS, self.messages.receive()).await.ok().flatten();
        if message.is_none() {
            self.note_end().await;
        }
        message
    }

    async fn close(&mut self) -> Result<(), io::Error> {
        self.shut_down().await;
        Ok(())
    }
}

/// Counts a message until it is in the pipe, or given up.
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

/// Standard output, with an end to how long a line may be.
struct Measured {
    stdout: ChildStdout,
    line_bytes: usize,
    watch: Arc<Watch>,
}

impl AsyncRead for Measured {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stdout).poll_read(context, buffer))?;
        let read = &buffer.filled()[before..];
        self.line_bytes = match read.iter().rposition(|byte| *byte == b'\n') {
            Some(newline) => read.len() - newline - 1,
            None => self.line_bytes + read.len(),
        };
        if self.line_bytes > super::MAX_MESSAGE_BYTES {
            let why = format!("it sent a message longer than {} MiB", super::MAX_MESSAGE_BYTES >> 20);
            self.watch.ended(why.clone());
            return Poll::Ready(Err(io::Error::other(why)));
        }
        Poll::Ready(Ok(()))
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
