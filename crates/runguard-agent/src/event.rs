//! What a run tells whoever watches it.
//!
//! Watching never holds a run up: an observer is called, and takes what it wants. A consumer that is gone is the observer's
//! matter (the HTTP door cancels the run then).

use crate::report::{Report, as_dollars, as_some_dollars};
use crate::state::AgentState;
use runguard_core::money::NanoDollars;
use serde::Serialize;

/// One thing that happened, in order.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A run begins or goes on.
    Started {
        session: String,
        model: String,
        resumed: bool,
    },
    State {
        state: AgentState,
    },
    StepStarted {
        step: u32,
    },
    /// A piece of the model's answer, or its end.
    Chunk(StreamChunk),
    /// Tokens and dollars, after every answer of the model, whole or not.
    Spent(Spent),
    /// A failed request will be made again.
    Retry {
        attempt: u32,
        of: u32,
        after_ms: u64,
        kind: &'static str,
        message: String,
    },
    /// Messages were left out to fit the context window.
    ContextTrimmed {
        left_out: usize,
        kept: usize,
    },
    ToolStarted {
        id: String,
        name: String,
        arguments: String,
    },
    ToolFinished {
        id: String,
        name: String,
        ok: bool,
        ran: bool,
        bytes: usize,
        cut: bool,
        millis: u64,
        preview: String,
    },
    /// A guard spoke: it told the model something, did not run a call, or stopped the run.
    Guard(GuardEvent),
    /// Little is left of a budget.
    NearBudget {
        tokens_left: Option<u64>,
        #[serde(rename = "cost_left_usd", serialize_with = "as_some_dollars")]
        cost_left: Option<NanoDollars>,
    },
    /// Something a person should know, and the run goes on.
    Notice {
        message: String,
    },
    Ended(Box<Report>),
}

impl Event {
    /// The name it has on the wire.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Started { .. } => "started",
            Self::State { .. } => "state",
            Self::StepStarted { .. } => "step_started",
            Self::Chunk(_) => "chunk",
            Self::Spent(_) => "spent",
            Self::Retry { .. } => "retry",
            Self::ContextTrimmed { .. } => "context_trimmed",
            Self::ToolStarted { .. } => "tool_started",
            Self::ToolFinished { .. } => "tool_finished",
            Self::Guard(_) => "guard",
            Self::NearBudget { .. } => "near_budget",
            Self::Notice { .. } => "notice",
            Self::Ended(_) => "ended",
        }
    }
}

/// A piece of a streamed answer. Every stream has exactly one that is `finished`, its last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StreamChunk {
    /// Which stream of the run; a retried request is another stream.
    pub stream: u64,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// The text is the model's thinking, not its answer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub thinking: bool,
    pub finished: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spent {
    pub step: u32,
    pub input_tokens: u64,
    pub output_tokens: u64,
    #[serde(rename = "cost_usd", serialize_with = "as_dollars")]
    pub cost: NanoDollars,
    pub total_tokens: u64,
    #[serde(rename = "total_cost_usd", serialize_with = "as_dollars")]
    pub total_cost: NanoDollars,
    pub elapsed_ms: u64,
    /// The provider said nothing about usage: counted from the bytes.
    pub estimated: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GuardAction {
    /// The model was told.
    Nudge,
    /// A call was not run.
    Block,
    /// The run was ended.
    Stop,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GuardEvent {
    pub action: GuardAction,
    /// `repetition`, `cycle`, `stalled_identical`, `tool_limit`, …
    pub rule: &'static str,
    pub count: u32,
    pub message: String,
}

pub trait Observer: Send {
    fn event(&mut self, event: Event);
}

impl std::fmt::Debug for dyn Observer + '_ {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Observer")
    }
}

/// Watches nothing.
impl Observer for () {
    fn event(&mut self, _: Event) {}
}

/// Keeps everything; for tests and small programs.
impl Observer for Vec<Event> {
    fn event(&mut self, event: Event) {
        self.push(event);
    }
}

impl Observer for tokio::sync::mpsc::UnboundedSender<Event> {
    fn event(&mut self, event: Event) {
        // A receiver that is gone has seen enough.
        let _ = self.send(event);
    }
}

/// The chunks of one stream. Its end is said exactly once: when this value goes, whatever the reason.
#[derive(Debug)]
pub(crate) struct Chunks<'a> {
    observer: &'a mut dyn Observer,
    stream: u64,
}

impl<'a> Chunks<'a> {
    pub(crate) fn open(observer: &'a mut dyn Observer) -> Self {
        use std::sync::atomic::{AtomicU64, Ordering};
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self { observer, stream: NEXT.fetch_add(1, Ordering::Relaxed) }
    }

    pub(crate) fn text(&mut self, piece: &str) {
        self.send(piece, false, false);
    }

    pub(crate) fn thinking(&mut self, piece: &str) {
        self.send(piece, true, false);
    }

    fn send(&mut self, piece: &str, thinking: bool, finished: bool) {
        self.observer.event(Event::Chunk(StreamChunk { stream: self.stream, text: piece.to_owned(), thinking, finished }));
    }
}

impl Drop for Chunks<'_> {
    fn drop(&mut self) {
        self.send("", false, true);
    }
}
