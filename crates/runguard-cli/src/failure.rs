//! Why a command failed, and the exit code that says so to scripts.

use std::fmt;
use std::process::ExitCode;

#[derive(Debug)]
pub(crate) enum Failure {
    Failed(String),
    Usage(String),
    NotFound(String),
    Unreachable(String),
    Refused(String),
    OutputClosed,
    /// Stopped by the person.
    Cancelled,
    /// The command has said why, in full; what is left is the code of [`Self::Failed`].
    AlreadyTold,
    /// A program that was run has ended with this code, and has said why itself.
    Exited(u8),
}

impl Failure {
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::OutputClosed => 0,
            Self::Failed(_) | Self::AlreadyTold => 1,
            Self::Usage(_) => 2,
            Self::NotFound(_) => 3,
            Self::Unreachable(_) => 4,
            Self::Refused(_) => 5,
            // What a shell reports for a program that Ctrl-C ended.
            Self::Cancelled => 130,
            Self::Exited(code) => *code,
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(text) | Self::Usage(text) | Self::NotFound(text) | Self::Unreachable(text) | Self::Refused(text) => {
                f.write_str(text)
            }
            Self::OutputClosed => f.write_str("the output was closed"),
            Self::Cancelled => f.write_str("cancelled"),
            Self::AlreadyTold | Self::Exited(_) => f.write_str("it did not succeed"),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe { Self::OutputClosed } else { Self::Failed(error.to_string()) }
    }
}
