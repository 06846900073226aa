//! Where a service logs: standard error, from a thread of its own.
//!
//! A log that cannot be written must not hold up a service, nor end it: a pipe that nobody reads, a reader that is gone, a full disk.
//! Lines wait in a bounded queue; what does not fit is dropped, and the next line that can be written says how many were.

use crate::failure::Failure;
use crate::output;
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::time::Duration;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// What `--log-level` offers; single modules can be named too.
const LEVELS: [(&str, &str); 4] = [
    ("error", "What went wrong"),
    ("warn", "Also what somebody should look at"),
    ("info", "Also what happens"),
    ("debug", "Also each step"),
];

/// Lines that may wait.
const MOST_WAITING: usize = 4096;
/// How long the end of a service waits for its last lines.
const LAST_LINES: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// A line for people
    Text,
    /// An object a line, for programs
    Json,
}

/// What a service logs and how, for all of them.
#[derive(Debug, clap::Args)]
pub(crate) struct LogArgs {
    /// How the service logs [default: text on a terminal, json elsewhere]
    #[arg(long, env = "RUNGUARD_LOG_FORMAT", value_name = "FORMAT")]
    log_format: Option<LogFormat>,
    /// What the service logs, at least so weighty
    #[arg(long, env = "RUNGUARD_LOG", value_name = "LEVEL", default_value = "info", value_parser = output::known_to_service(LEVELS))]
    log_level: String,
}

impl LogArgs {
    pub(crate) fn start(&self) -> Result<Logging, Failure> {
        Logging::start(&self.log_level, self.log_format)
    }
}

/// Held by the service; when it goes, what was logged is written.
#[must_use = "the last lines are written when it is dropped"]
pub(crate) struct Logging {
    queue: SyncSender<Message>,
    /// Somebody reads along: lines of text, on a terminal.
    pub(crate) is_read: bool,
}

enum Message {
    Line(Vec<u8>),
    /// Said when everything before it is written.
    Written(SyncSender<()>),
}

impl Logging {
    fn start(level: &str, format: Option<LogFormat>) -> Result<Self, Failure> {
        let filter = filter(level)?;
        let is_terminal = std::io::stderr().is_terminal();
        let (queue, waiting) = sync_channel(MOST_WAITING);
        let dropped = Arc::new(AtomicU64::new(0));
        let (lines, missed) = (Lines { queue: queue.clone(), dropped: dropped.clone() }, dropped);
        std::thread::Builder::new().name("log".into()).spawn(move || {
            // Errors are passed over: there is nobody to tell.
            let mut out = std::io::stderr();
            while let Ok(message) = waiting.recv() {
                match message {
                    Message::Line(line) => {
                        let is_written = out.write_all(&line).is_ok();
                        let count = if is_written { missed.swap(0, Ordering::Relaxed) } else { 0 };
                        if count > 0 {
                            let _ = writeln!(out, "({count} lines of the log were dropped: they could not be written fast enough)");
                        }
                    }
                    Message::Written(done) => drop(done.send(())),
                }
            }
        })?;
        // What the library says of a line that it could not write goes to standard error, too, and would end the thread.
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(LevelFilter::TRACE)
            .with_writer(lines)
            .log_internal_errors(false)
            .with_ansi(crate::output::errors_are_coloured())
            .with_target(false);
        let format = format.unwrap_or(if is_terminal { LogFormat::Text } else { LogFormat::Json });
        match format {
            LogFormat::Text => subscriber.finish().with(filter).init(),
            LogFormat::Json => subscriber.json().flatten_event(true).finish().with(filter).init(),
        }
        Ok(Self { queue, is_read: is_terminal && format == LogFormat::Text })
    }

    /// By a person, on a terminal.
    pub(crate) fn is_read(&self) -> bool {
        self.is_read
    }

    /// For whoever reads along: between the lines of the log, and whatever its level.
    pub(crate) fn say(&self, text: &str) {
        if self.is_read {
            let text = if crate::output::errors_are_coloured() { text.to_owned() } else { anstream::adapter::strip_str(text).to_string() };
            // A queue that is full holds more than anybody reads.
            let _ = self.queue.try_send(Message::Line(format!("{text}\n").into_bytes()));
        }
    }
}

impl Drop for Logging {
    fn drop(&mut self) {
        let (done, written) = sync_channel(1);
        if self.queue.try_send(Message::Written(done)).is_ok() {
            let _ = written.recv_timeout(LAST_LINES);
        }
    }
}

/// What to say of a word that was given as the database of the log and is about the log of the service.
pub(crate) fn meant_of_log(word: &str) -> Option<&'static str> {
    match word.trim().to_ascii_lowercase().as_str() {
        "off" | "error" | "warn" | "warning" | "info" | "debug" | "trace" => {
            Some("--log names the database that many nodes keep one log in (postgres://…). What the service logs is said with --log-level")
        }
        "json" | "text" => {
            Some("--log names the database that many nodes keep one log in (postgres://…). How the service logs is said with --log-format")
        }
        _ => None,
    }
}

/// A word that is no level would be taken for the name of a module, and nothing logged at all. What was given is not said again: it
/// may be the address of a database, with its password, whose variable is called much the same.
fn filter(level: &str) -> Result<Targets, Failure> {
    let is_level = |part: &str| ["off", "error", "warn", "info", "debug", "trace"].iter().any(|level| part.eq_ignore_ascii_case(level));
    let is_module = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_:".contains(&byte));
    let is_directive =
        |part: &str| is_level(part) || part.split_once('=').is_some_and(|(module, level)| is_module(module) && is_level(level));
    let wrong = || {
        Failure::Usage("--log-level (RUNGUARD_LOG) is not a level: use error, warn, info or debug. The database of the log is --log (RUNGUARD_LOG_DATABASE)".to_owned())
    };
    if !level.split(',').all(|part| is_directive(part.trim())) {
        return Err(wrong());
    }
    let directives: String = level.split_whitespace().collect();
    directives.parse().map_err(|_| wrong())
}

/// Makes a writer for each line.
struct Lines {
    queue: SyncSender<Message>,
    dropped: Arc<AtomicU64>,
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

impl Write for &Lines {
    /// A whole line at a time, as the subscriber writes them.
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        if let Err(TrySendError::Full(_)) = self.queue.try_send(Message::Line(line.to_vec())) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_level_is_refused() {
        for level in ["info", "WARN", "off", "debug,hyper=warn"] {
            assert!(filter(level).is_ok(), "{level}");
        }
        let told = filter("Warn, hyper=debug,h2=error").unwrap();
        let is_told = |module: &str, level: tracing::Level| told.would_enable(module, &level);
        assert!(is_told("runguard", tracing::Level::WARN) && !is_told("runguard", tracing::Level::INFO));
        assert!(is_told("hyper::server", tracing::Level::DEBUG) && !is_told("hyper", tracing::Level::TRACE));
        assert!(is_told("h2", tracing::Level::ERROR) && !is_told("h2", tracing::Level::WARN));
        for level in ["verbose", "postgres://u:hunter2@host/db", "postgres://u:hunter2@host/db?sslmode=require", "", "info,loud", "a=b"] {
            let said = filter(level).unwrap_err().to_string();
            assert!(!said.contains("hunter2"), "{said}");
        }
    }
}
