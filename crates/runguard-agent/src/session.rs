//! One conversation: what was said, what was counted, how far it has come.
//!
//! A session changes only by [`Record`]s, each applied to memory after it was handed to the journal. So reading the journal
//! back is the same as having lived through it, and a run that was killed goes on with every counter where it stood.

pub mod disk;

use crate::event::Event;
use crate::guardrails::Detectors;
use crate::message::{Message, Role, Tag, ToolResult};
use crate::report::Stop;
use crate::spend::Counters;
use crate::state::AgentState;
use runguard_core::money::NanoDollars;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fmt;

/// The format of the records. A session of another version is refused, not guessed at.
pub const VERSION: u32 = 1;

/// One thing that happened to a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case")]
pub enum Record {
    /// The first record.
    Opened {
        version: u32,
        id: String,
        at_ms: i64,
        name: String,
        model: String,
        settings: Value,
    },
    /// A message of the user or of the loop itself.
    Message {
        message: Message,
        counters: Counters,
        detectors: Detectors,
    },
    /// Messages left the window: `count` of them from `from` on; the marker stands in their place.
    Trimmed {
        from: usize,
        count: usize,
        marker: Option<Message>,
        left_out: u64,
    },
    /// A question is about to go to the model. Until its end is recorded, what was set aside counts as spent.
    CallStarted {
        step: u32,
        reserved_tokens: u64,
        reserved_cost: NanoDollars,
    },
    /// The question came to nothing; what it cost is in the counters.
    CallFailed {
        counters: Counters,
    },
    Reply {
        message: Message,
        counters: Counters,
        detectors: Detectors,
    },
    /// A tool is about to run.
    ToolStarted {
        id: String,
    },
    ToolFinished {
        result: ToolResult,
        counters: Counters,
    },
    /// All results of a step are there.
    Results {
        counters: Counters,
        detectors: Detectors,
    },
    State {
        state: AgentState,
        stop: Option<Stop>,
        counters: Counters,
    },
}

/// Writes records down. `Ok` means that the record survives what the settings promise.
pub trait Journal: Send + fmt::Debug {
    fn append(&mut self, record: &Record) -> std::io::Result<()>;
}

/// Keeps nothing.
#[derive(Debug, Clone, Copy)]
pub struct InMemory;

impl Journal for InMemory {
    fn append(&mut self, _: &Record) -> std::io::Result<()> {
        Ok(())
    }
}

/// How far a call of the latest step has come.
#[derive(Debug, Clone, PartialEq)]
pub enum Progress {
    Waiting,
    /// It was begun; whether it ended is not known after a crash.
    Started,
    Finished(ToolResult),
}

#[derive(Debug)]
pub struct Session {
    id: String,
    state: AgentState,
    stop: Option<Stop>,
    messages: Vec<Message>,
    counters: Counters,
    detectors: Detectors,
    /// A question whose end is not recorded: what was set aside for it.
    open_call: Option<(u64, NanoDollars)>,
    /// The calls of the last assistant message, by id, in order. Empty when no step is open.
    open_tools: Vec<(String, Progress)>,
    journal: Box<dyn Journal>,
}

impl Session {
    /// A session that lives as long as the process.
    pub fn in_memory(id: impl Into<String>) -> Self {
        Self::empty(id.into(), Box::new(InMemory))
    }

    /// A session that is written down by a journal of your own.
    pub fn kept_by(id: impl Into<String>, journal: Box<dyn Journal>) -> Self {
        Self::empty(id.into(), journal)
    }

    pub(crate) fn empty(id: String, journal: Box<dyn Journal>) -> Self {
        Self {
            id,
            state: AgentState::Running,
            stop: None,
            messages: Vec::new(),
            counters: Counters::default(),
            detectors: Detectors::default(),
            open_call: None,
            open_tools: Vec::new(),
            journal,
        }
    }

    /// Goes on writing elsewhere; after reading a journal back.
    pub(crate) fn continue_in(&mut self, journal: Box<dyn Journal>) {
        self.journal = journal;
    }

    /// Writes the record down, then lives through it. When it cannot be written, nothing has happened.
    pub fn record(&mut self, record: Record) -> std::io::Result<()> {
        self.journal.append(&record)?;
        self.apply(record);
        Ok(())
    }

    /// Lives through a record, read back or just written.
    pub fn apply(&mut self, record: Record) {
        match record {
            Record::Opened { id, .. } => self.id = id,
            Record::Message { message, counters, detectors } => {
                self.messages.push(message);
                self.counters = counters;
                self.detectors = detectors;
            }
            Record::Trimmed { from, count, marker, left_out } => {
                self.counters.left_out = left_out;
                let from = from.min(self.messages.len());
                let end = from.saturating_add(count).min(self.messages.len());
                self.messages.splice(from..end, marker);
            }
            Record::CallStarted { reserved_tokens, reserved_cost, .. } => self.open_call = Some((reserved_tokens, reserved_cost)),
            Record::CallFailed { counters } => {
                self.open_call = None;
                self.counters = counters;
            }
            Record::Reply { message, counters, detectors } => {
                self.detectors = detectors;
                self.open_call = None;
                self.counters = counters;
                self.open_tools = message.tool_calls().map(|call| (call.id.clone(), Progress::Waiting)).collect();
                self.messages.push(message);
            }
            Record::ToolStarted { id } => self.progress(&id, Progress::Started),
            Record::ToolFinished { result, counters } => {
                self.counters = counters;
                self.progress(&result.id.clone(), Progress::Finished(result));
            }
            Record::Results { counters, detectors } => {
                self.counters = counters;
                self.detectors = detectors;
                let results = std::mem::take(&mut self.open_tools).into_iter().filter_map(|(_, progress)| match progress {
                    Progress::Finished(result) => Some(result),
                    Progress::Waiting | Progress::Started => None,
                });
                let results: Vec<ToolResult> = results.collect();
                if !results.is_empty() {
                    self.messages.push(Message::results(results));
                }
            }
            Record::State { state, stop, counters } => {
                self.state = state;
                self.stop = stop;
                self.counters = counters;
            }
        }
    }

    fn progress(&mut self, id: &str, progress: Progress) {
        // Models give two calls one id at times: the first that is not finished is meant.
        let open = self.open_tools.iter_mut().find(|(open, state)| open == id && !matches!(state, Progress::Finished(_)));
        if let Some((_, state)) = open {
            *state = progress;
        }
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn state(&self) -> AgentState {
        self.state
    }

    /// Why the latest run of it stopped.
    pub fn stop(&self) -> Option<&Stop> {
        self.stop.as_ref()
    }

    /// The messages in the window, oldest first.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    pub fn detectors(&self) -> &Detectors {
        &self.detectors
    }

    pub(crate) fn open_call(&self) -> Option<(u64, NanoDollars)> {
        self.open_call
    }

    pub fn open_tools(&self) -> &[(String, Progress)] {
        &self.open_tools
    }

    /// The model's last words: all of them, where an answer was cut at its output limit and continued.
    pub fn last_text(&self) -> String {
        let is_spoken = |message: &Message| message.role == Role::Assistant && !message.text().is_empty();
        let last = self.messages.iter().rposition(is_spoken);
        last.map_or_else(String::new, |last| self.text_before(last) + &self.messages[last].text())
    }

    /// What the model had said of the answer that it was asked to go on with; empty if it was not.
    pub(crate) fn text_so_far(&self) -> String {
        self.text_before(self.messages.len())
    }

    /// The pieces of an answer that goes on at this message: each but the first follows a word of the loop.
    fn text_before(&self, mut at: usize) -> String {
        let is_continued =
            |at: usize| self.messages[at].reason == Some(Tag::MaxTokensRecovery) && self.messages[at - 1].role == Role::Assistant;
        let mut pieces = Vec::new();
        while at >= 2 && is_continued(at - 1) {
            at -= 2;
            pieces.push(self.messages[at].text());
        }
        pieces.into_iter().rev().collect()
    }

    /// Everything that goes on counting, as it is shown: `guardrails` holds every counter.
    pub fn metadata(&self) -> Value {
        json!({ "guardrails": { "counters": self.counters, "detectors": self.detectors } })
    }

    /// Whether the model is owed an answer to its calls.
    pub fn has_open_tools(&self) -> bool {
        !self.open_tools.is_empty()
    }
}

/// What a person should be told about a session that was read back.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recovered {
    /// A question to the model was under way; what was set aside for it counts as spent.
    pub lost_call: bool,
    /// Tools that had begun and of which no end is known.
    pub interrupted: Vec<String>,
    /// Bytes of a record that was being written.
    pub torn_bytes: u64,
}

impl Recovered {
    /// As events, for whoever watches.
    pub fn notices(&self) -> Vec<Event> {
        let mut notices = Vec::new();
        if self.lost_call {
            notices.push("A question to the model was under way when the run ended: what was set aside for it counts as spent.".to_owned());
        }
        if self.torn_bytes > 0 {
            let bytes = self.torn_bytes;
            notices.push(format!("The last record was not finished when the run ended; it was dropped ({bytes} bytes)."));
        }
        for tool in &self.interrupted {
            notices.push(format!(
                "{tool} was running when the run ended. It is not run again; the model is told that its outcome is not known."
            ));
        }
        notices.into_iter().map(|message| Event::Notice { message }).collect()
    }
}
