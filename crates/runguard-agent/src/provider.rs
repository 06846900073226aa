//! The model behind the loop: one trait, one kind of error, one place where a reply is put together.
//!
//! A provider *pushes* what it reads into a [`Reply`] that the loop owns. So whatever happens to the provider in mid-stream
//! (an error, a cancelled run, a future that is dropped) the loop still has the part that came, can count what it cost, and
//! closes the stream for whoever is watching.

pub mod anthropic;
pub mod bedrock;
mod connect;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod http;
mod json;
pub mod openai;
pub mod scripted;
mod sse;

pub use connect::connect;

use crate::event::{Chunks, Observer};
use crate::message::{Block, Message, Role, ToolCall};
use crate::tool::ToolSpec;
use runguard_core::prices::Usage;
use serde_json::Value;
use std::fmt;
use std::pin::Pin;
use std::time::Duration;

pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One question to the model.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    pub system: Option<&'a str>,
    /// Oldest first. Neighbours may have the same role; providers that do not allow it join them.
    pub messages: &'a [Message],
    pub tools: &'a [ToolSpec],
    /// Already lowered to what can still be paid.
    pub max_tokens: u32,
}

pub trait Provider: Send + Sync + fmt::Debug {
    /// The model's name, as the price table knows it.
    fn model(&self) -> &str;

    /// Asks once, without retrying, and puts what comes into `reply`. `Ok` only when the reply is whole: its end was seen, or it counts
    /// as whole without one ([`Reply::end_unmarked`]).
    fn ask<'a>(&'a self, request: Request<'a>, reply: &'a mut Reply<'_>) -> BoxFuture<'a, Result<(), ProviderError>>;
}

/// Why the model stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    EndTurn,
    ToolUse,
    MaxTokens,
    /// The provider's filter or the model itself refused.
    Refused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// No connection.
    Unreachable,
    /// No answer, or no further byte, in time.
    Timeout,
    /// The stream broke off, or closed before there was an answer.
    Cut,
    /// An answer that is not what the provider documents.
    Malformed,
    RateLimited,
    /// 5xx, or the provider says that it is overloaded.
    Overloaded,
    /// The answer goes on beyond all bounds.
    Endless,
    /// 401, 403: the key is wrong or may not.
    Unauthorised,
    /// 402: no credit left.
    NoCredit,
    /// The conversation does not fit into the model's window.
    ContextTooLong,
    /// Any other refusal of the request itself.
    Rejected,
}

impl ErrorKind {
    pub const fn code(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Timeout => "timeout",
            Self::Cut => "stream_cut",
            Self::Malformed => "malformed_answer",
            Self::RateLimited => "rate_limited",
            Self::Overloaded => "overloaded",
            Self::Endless => "endless_answer",
            Self::Unauthorised => "unauthorised",
            Self::NoCredit => "no_credit",
            Self::ContextTooLong => "context_too_long",
            Self::Rejected => "rejected",
        }
    }

    /// Whether the same request may succeed later.
    pub const fn is_recoverable(self) -> bool {
        match self {
            Self::Unreachable | Self::Timeout | Self::Cut | Self::Malformed | Self::RateLimited | Self::Overloaded => true,
            Self::Endless | Self::Unauthorised | Self::NoCredit | Self::ContextTooLong | Self::Rejected => false,
        }
    }
}

/// A request that failed: what happened, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ProviderError {
    pub kind: ErrorKind,
    pub message: String,
    /// What the provider asks to wait.
    pub retry_after: Option<Duration>,
}

impl ProviderError {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), retry_after: None }
    }
}

/// Output is counted in bytes while it streams: no tokeniser gives a token more than this many bytes for long.
const MOST_BYTES_A_TOKEN: usize = 64;
/// What a reply may be over that: names and ids of calls, and very small `max_tokens`.
const REPLY_ALLOWANCE: usize = 64 * 1024;
/// Calls one reply may ask for.
pub const MOST_CALLS: usize = 128;

/// What has come of an answer so far. Closes the stream of chunks when it goes, however that happens.
#[derive(Debug)]
pub struct Reply<'a> {
    chunks: Chunks<'a>,
    blocks: Vec<Block>,
    /// Calls under way, by the provider's index.
    calls: Vec<(usize, usize)>,
    bytes: usize,
    most_bytes: usize,
    usage: Option<Usage>,
    finish: Option<Finish>,
    is_unmarked: bool,
}

impl<'a> Reply<'a> {
    pub fn new(observer: &'a mut dyn Observer, max_tokens: u32) -> Self {
        Self {
            chunks: Chunks::open(observer),
            blocks: Vec::new(),
            calls: Vec::new(),
            bytes: 0,
            most_bytes: (max_tokens as usize).saturating_mul(MOST_BYTES_A_TOKEN).saturating_add(REPLY_ALLOWANCE),
            usage: None,
            finish: None,
            is_unmarked: false,
        }
    }

    /// A piece of the answer's text.
    pub fn text(&mut self, piece: &str) -> Result<(), ProviderError> {
        self.count(piece)?;
        if piece.is_empty() {
            return Ok(());
        }
        if let Some(Block::Text { text }) = self.blocks.last_mut() {
            text.push_str(piece);
        } else {
            self.blocks.push(Block::Text { text: piece.to_owned() });
        }
        self.chunks.text(piece);
        Ok(())
    }

    /// A piece of the model's thoughts.
    pub fn thinking(&mut self, piece: &str) -> Result<(), ProviderError> {
        self.count(piece)?;
        if let Some(Block::Thinking { text, signature: None }) = self.blocks.last_mut() {
            text.push_str(piece);
        } else {
            self.blocks.push(Block::Thinking { text: piece.to_owned(), signature: None });
        }
        self.chunks.thinking(piece);
        Ok(())
    }

    /// Signs the thoughts that came last.
    pub fn signature(&mut self, piece: &str) -> Result<(), ProviderError> {
        self.count(piece)?;
        match self.blocks.last_mut() {
            Some(Block::Thinking { signature, .. }) => signature.get_or_insert_default().push_str(piece),
            _ => self.blocks.push(Block::Thinking { text: String::new(), signature: Some(piece.to_owned()) }),
        }
        Ok(())
    }

    /// A block to send back as it is.
    pub fn opaque(&mut self, value: Value) -> Result<(), ProviderError> {
        self.count(&value.to_string())?;
        self.blocks.push(Block::Opaque { value });
        Ok(())
    }

    /// A call begins. `index` is the provider's own number for it; arguments may come in pieces.
    pub fn call(&mut self, index: usize, id: &str, name: &str) -> Result<(), ProviderError> {
        self.count(name)?;
        if self.calls.len() >= MOST_CALLS {
            return Err(ProviderError::new(ErrorKind::Endless, format!("the model asks for more than {MOST_CALLS} calls in one answer")));
        }
        self.calls.push((index, self.blocks.len()));
        self.blocks.push(Block::ToolCall(ToolCall { id: id.to_owned(), name: name.to_owned(), arguments: String::new() }));
        Ok(())
    }

    pub fn has_call(&self, index: usize) -> bool {
        self.calls.iter().any(|(known, _)| *known == index)
    }

    /// A piece of the arguments of a call that has begun.
    pub fn arguments(&mut self, index: usize, piece: &str) -> Result<(), ProviderError> {
        self.count(piece)?;
        let position = self.calls.iter().rev().find(|(known, _)| *known == index).map(|(_, position)| *position);
        match position.and_then(|position| self.blocks.get_mut(position)) {
            Some(Block::ToolCall(call)) => {
                call.arguments.push_str(piece);
                Ok(())
            }
            _ => Err(ProviderError::new(ErrorKind::Malformed, format!("arguments for call {index}, which has not begun"))),
        }
    }

    /// What the provider says it will charge. Said again, the later word counts.
    pub fn usage(&mut self, usage: Usage) {
        self.usage = Some(usage);
    }

    /// What has been said about usage so far.
    pub fn usage_so_far(&self) -> Option<Usage> {
        self.usage
    }

    pub fn finish(&mut self, finish: Finish) {
        self.finish = Some(finish);
    }

    /// The stream was closed properly and without an end mark. What came is the answer, if it can be one: it says something, and the
    /// arguments of every call are whole. Asking again would be paid again, and a server that leaves the mark out once does so always.
    /// Otherwise `cut` says what happened.
    pub fn end_unmarked(&mut self, cut: ProviderError) -> Result<(), ProviderError> {
        let mut finish = None;
        for block in &self.blocks {
            match block {
                Block::ToolCall(call) if call.arguments.trim().is_empty() || call.parsed().is_err() => return Err(cut),
                Block::ToolCall(_) => finish = Some(Finish::ToolUse),
                Block::Text { text } if !text.trim().is_empty() => finish = finish.or(Some(Finish::EndTurn)),
                Block::Text { .. } | Block::Thinking { .. } | Block::ToolResult(_) | Block::Opaque { .. } => {}
            }
        }
        self.finish = Some(finish.ok_or(cut)?);
        self.is_unmarked = true;
        Ok(())
    }

    /// Bytes of output that have come.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Ends the stream and gives what came.
    pub fn into_parts(mut self) -> Parts {
        let blocks = std::mem::take(&mut self.blocks);
        Parts {
            message: Message { role: Role::Assistant, content: blocks, reason: None },
            usage: self.usage,
            finish: self.finish,
            is_unmarked: self.is_unmarked,
            bytes: self.bytes,
        }
    }

    fn count(&mut self, piece: &str) -> Result<(), ProviderError> {
        self.bytes += piece.len();
        if self.bytes > self.most_bytes {
            let text = format!("the answer is longer than {} bytes, far beyond its max_tokens: the stream was closed", self.most_bytes);
            return Err(ProviderError::new(ErrorKind::Endless, text));
        }
        Ok(())
    }
}

/// A reply that has ended, whole or not.
#[derive(Debug)]
pub struct Parts {
    pub message: Message,
    pub usage: Option<Usage>,
    pub finish: Option<Finish>,
    /// It ended without an end mark.
    pub is_unmarked: bool,
    pub bytes: usize,
}
