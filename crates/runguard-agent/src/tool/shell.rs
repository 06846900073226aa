//! Runs a command line, and leaves nothing running behind it.
//!
//! The shell starts in a process group of its own, and the whole group is killed when the command ends, takes too long, is
//! cancelled or its future is dropped: what it put into the background would otherwise outlive the run it was made for.
//! A command that leaves the group on purpose (`setsid`) gets away; whoever must rule that out runs the agent in a container.
//!
//! Both outputs go into one pipe, so they stand in the order they were written in. Of a long output the beginning and the
//! end are kept while reading, so a command that prints for ever costs no memory.
//!
//! The command can do whatever its user can, in any folder. It is therefore offered only when the settings name it, and the
//! variables that look like secrets (the provider's key among them) are not passed on.

use super::arguments::Arguments;
use super::{Effect, Tool, ToolOutput, ToolSpec};
use crate::provider::BoxFuture;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

/// What is kept of the output: so much of its beginning, and as much of its end.
pub const MAX_OUTPUT_BYTES: usize = 1024 * 1024;
pub const MAX_TIMEOUT_SECONDS: u64 = 600;
const DEFAULT_TIMEOUT_SECONDS: u64 = 120;
/// How long the pipe may stay open after the group is dead: only a process that left the group can hold it.
const SETTLE: Duration = Duration::from_millis(500);
/// No system takes a longer single argument.
const MAX_COMMAND_BYTES: usize = 128 * 1024 - 1;

/// A variable with one of these in its name is not passed on.
const SECRET_NAMES: [&str; 6] = ["KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL"];

#[derive(Debug)]
pub struct Shell {
    spec: ToolSpec,
    root: PathBuf,
}

impl Shell {
    pub fn new(root: &Path) -> io::Result<Self> {
        let root = root.canonicalize()?;
        if !root.is_dir() {
            return Err(io::Error::new(io::ErrorKind::NotADirectory, format!("{} is no folder to run commands in", root.display())));
        }
        let spec = ToolSpec {
            name: "shell".to_owned(),
            description:
                "Runs a command with `sh -c` in the working folder and gives its output (stdout and stderr together) and its exit \
                          code. There is no terminal and no input: use options that answer questions beforehand. Every call is a shell of \
                          its own: `cd` and variables do not carry over. Background processes end with the command. Of a long output only \
                          the beginning and the end are shown."
                    .to_owned(),
            input_schema: json!({
                "type": "object",
                "properties": {
                    "command": {"type": "string", "description": "The command line, as for `sh -c`."},
                    "timeout_seconds": {
                        "type": "integer",
                        "minimum": 1,
                        "maximum": MAX_TIMEOUT_SECONDS,
                        "description": format!("After this the command is killed. Left out: {DEFAULT_TIMEOUT_SECONDS}."),
                    },
                },
                "required": ["command"],
                "additionalProperties": false,
            }),
            effect: Effect::Changes,
            parallel: false,
        };
        Ok(Self { spec, root })
    }

    async fn run(&self, arguments: &Value, cancel: &CancellationToken) -> Result<ToolOutput, String> {
        let arguments = Arguments::of(arguments, &["command", "timeout_seconds"])?;
        let command_line = arguments.required_text("command")?;
        if command_line.trim().is_empty() || command_line.len() > MAX_COMMAND_BYTES || command_line.contains('\0') {
            return Err(format!("'command' must be 1 to {MAX_COMMAND_BYTES} bytes long, without a zero byte"));
        }
        let timeout_seconds = arguments.number("timeout_seconds", 1..=MAX_TIMEOUT_SECONDS)?.unwrap_or(DEFAULT_TIMEOUT_SECONDS);
        if cancel.is_cancelled() {
            return Err("the run was cancelled: the command was not started".to_owned());
        }

        let cannot_start = |error: io::Error| format!("cannot start `sh` in {}: {error}", self.root.display());
        let (reader, writer) = io::pipe().map_err(cannot_start)?;
        let mut pipe = Receiver::from_owned_fd(OwnedFd::from(reader)).map_err(cannot_start)?;
        let mut child = {
            // The command keeps the pipe's other end; it must be closed here for the pipe to end with the processes.
            let mut command = Command::new("sh");
            command.arg("-c").arg(command_line).current_dir(&self.root).env_clear().envs(passed_on(std::env::vars_os()));
            command.stdin(Stdio::null()).stdout(writer.try_clone().map_err(cannot_start)?).stderr(writer);
            command.process_group(0).kill_on_drop(true).spawn().map_err(cannot_start)?
        };
        let group = Group(child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)));

        let mut output = Output::default();
        let mut chunk = vec![0; 16 * 1024];
        let mut is_open = true;
        let deadline = tokio::time::sleep(Duration::from_secs(timeout_seconds));
        tokio::pin!(deadline);
        let end = loop {
            tokio::select! {
                biased;
                () = cancel.cancelled() => break End::Cancelled,
                () = &mut deadline => break End::TimedOut,
                status = child.wait() => break End::Exited(status.map_err(|error| format!("cannot wait for the command: {error}"))?),
                read = pipe.read(&mut chunk), if is_open => match read {
                    Ok(0) | Err(_) => is_open = false,
                    Ok(bytes) => output.push(&chunk[..bytes]),
                },
            }
        };
        drop(group);
        let settle = async {
            while is_open && let Ok(bytes @ 1..) = pipe.read(&mut chunk).await {
                output.push(&chunk[..bytes]);
            }
            let _ = child.wait().await;
        };
        // Out of time only when a process got away with the pipe; it loses its reader then.
        let _ = tokio::time::timeout(SETTLE, settle).await;
        Ok(end.show(output.into_text(), timeout_seconds))
    }
}

impl Tool for Shell {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn call<'a>(&'a self, arguments: &'a Value, cancel: &'a CancellationToken) -> BoxFuture<'a, ToolOutput> {
        Box::pin(async move { self.run(arguments, cancel).await.unwrap_or_else(ToolOutput::error) })
    }
}

/// The processes of one command. Dropping it kills them all.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = self.0 {
            // Nobody left to kill is the usual case. While one is left, the system gives the number to no other process.
            let _ = kill_process_group(leader, Signal::KILL);
        }
    }
}

enum End {
    Exited(ExitStatus),
    TimedOut,
    Cancelled,
}

impl End {
    fn show(self, mut text: String, timeout_seconds: u64) -> ToolOutput {
        let (note, is_error) = match self {
            Self::Exited(status) => match (status.code(), status.signal()) {
                (Some(code), _) => (format!("[exit code {code}]"), code != 0),
                (None, Some(signal)) => (format!("[killed by signal {signal}]"), true),
                (None, None) => (format!("[{status}]"), true),
            },
            Self::TimedOut => {
                (format!("[killed after {timeout_seconds} seconds: `timeout_seconds` may be up to {MAX_TIMEOUT_SECONDS}]"), true)
            }
            Self::Cancelled => ("[killed: the run was cancelled]".to_owned(), true),
        };
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&note);
        ToolOutput { text, is_error }
    }
}

/// The beginning and the end of what was printed.
#[derive(Debug, Default)]
struct Output {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    left_out: u64,
}

impl Output {
    const HALF: usize = MAX_OUTPUT_BYTES / 2;

    fn push(&mut self, bytes: &[u8]) {
        let (to_head, to_tail) = bytes.split_at(bytes.len().min(Self::HALF - self.head.len()));
        self.head.extend_from_slice(to_head);
        self.tail.extend(to_tail);
        let excess = self.tail.len().saturating_sub(Self::HALF);
        self.tail.drain(..excess);
        self.left_out += excess as u64;
    }

    fn into_text(mut self) -> String {
        if self.left_out == 0 {
            self.head.extend(self.tail);
            return String::from_utf8_lossy(&self.head).into_owned();
        }
        let (head, tail) = (String::from_utf8_lossy(&self.head), self.tail.make_contiguous());
        format!("{head}\n[… {} bytes left out …]\n{}", self.left_out, String::from_utf8_lossy(tail))
    }
}

/// The variables a command gets: all but those that look like secrets, by their name or as a URL with a password in it.
fn passed_on(variables: impl Iterator<Item = (OsString, OsString)>) -> impl Iterator<Item = (OsString, OsString)> {
    variables.filter(|(name, value)| {
        let name = name.to_string_lossy().to_ascii_uppercase();
        !SECRET_NAMES.iter().any(|secret| name.contains(secret)) && !has_password(value)
    })
}

fn has_password(value: &OsStr) -> bool {
    let value = value.to_string_lossy();
    value.split("://").skip(1).any(|rest| {
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        authority.rsplit_once('@').is_some_and(|(user, _)| user.contains(':'))
    })
}

#[cfg(test)]
mod tests {
    use super::{MAX_OUTPUT_BYTES, Output, passed_on};
    use proptest::prelude::*;
    use std::ffi::OsString;

    #[test]
    fn secrets_are_not_passed_on() {
        let given = [
            ("PATH", "/bin"),
            ("HOME", "/home/somebody"),
            ("OPENAI_API_KEY", "x"),
            ("aws_secret_access", "x"),
            ("GITHUB_TOKEN", "x"),
            ("DB_PASSWORD", "x"),
            ("MYSQL_PASSWD", "x"),
            ("GOOGLE_APPLICATION_CREDENTIALS", "x"),
            ("DATABASE_URL", "postgres://user:word@host/name"),
            ("MIRROR", "https://host/a:b@c"),
            ("REPOSITORY", "ssh://git@host/name"),
        ];
        let names: Vec<OsString> =
            passed_on(given.iter().map(|&(name, value)| (name.into(), value.into()))).map(|(name, _)| name).collect();
        assert_eq!(names, ["PATH", "HOME", "MIRROR", "REPOSITORY"]);
    }

    #[test]
    fn output_is_whole_up_to_the_bound_and_keeps_both_ends_beyond_it() {
        let mut output = Output::default();
        output.push(&vec![b'a'; MAX_OUTPUT_BYTES]);
        assert_eq!(output.into_text().len(), MAX_OUTPUT_BYTES);

        let mut output = Output::default();
        output.push(b"first");
        for _ in 0..3 {
            output.push(&vec![b'a'; MAX_OUTPUT_BYTES]);
        }
        output.push(b"last");
        assert!(output.tail.len() <= MAX_OUTPUT_BYTES / 2);
        let text = output.into_text();
        assert!(text.starts_with("firsta") && text.ends_with("alast"));
        assert!(text.contains(&format!("[… {} bytes left out …]", 2 * MAX_OUTPUT_BYTES + 9)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        /// However the output is cut into pieces, the same is kept of it.
        #[test]
        fn pieces_make_no_difference(pieces in proptest::collection::vec(0_usize..300_000, 0..12)) {
            let whole: Vec<u8> = (0..pieces.iter().sum::<usize>()).map(|at| b'a' + (at % 23) as u8).collect();
            let (mut output, mut at_once, mut rest) = (Output::default(), Output::default(), &whole[..]);
            for length in pieces {
                let (piece, after) = rest.split_at(length);
                output.push(piece);
                rest = after;
            }
            at_once.push(&whole);
            prop_assert_eq!(output.left_out as usize, whole.len().saturating_sub(MAX_OUTPUT_BYTES));
            prop_assert_eq!(output.into_text(), at_once.into_text());
        }
    }
}
