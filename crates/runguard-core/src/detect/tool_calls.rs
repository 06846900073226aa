//! Tool calls of one turn: how often, the same again, nearly the same again.
//!
//! A turn is one message of the user and everything the agent does to answer it. Within it a tool may run only so often; a
//! call that already ran is not run again, nor is a search that asks the same thing in other words. What is skipped gets a
//! sentence that goes back to the model as the tool's result, so that it tries something else.
//!
//! ```
//! use runguard_core::detect::tool_calls::{CallOutcome, SkipReason, ToolExecutionTracker};
//! use serde_json::json;
//!
//! let mut tracker = ToolExecutionTracker::default();
//! let search = json!({"query": "fix bug"});
//! assert_eq!(tracker.should_skip("search_knowledge", &search)?, None);
//! tracker.record("search_knowledge", &search, CallOutcome::Completed)?;
//!
//! let skip = tracker.should_skip("search_knowledge", &json!({"query": "fix the bug"}))?.expect("a similar query");
//! assert_eq!(skip.reason, SkipReason::SimilarQuery);
//! assert_eq!(skip.message, "Tool 'search_knowledge' was already executed with a similar query");
//!
//! tracker.new_turn();
//! assert_eq!(tracker.should_skip("search_knowledge", &search)?, None);
//! # Ok::<(), runguard_core::detect::tool_calls::InvalidCall>(())
//! ```

mod recipe;
mod settings;

use crate::limits::InvalidSetting;
pub use recipe::RecipeCache;
pub use settings::TrackerSettings;

use crate::fingerprint::{FingerprintError, of_value_without};
use crate::reason::Reason;
use crate::similarity::Gist;
use crate::text::StoreText;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// Tools a turn remembers; of more, the one that was not called for longest is forgotten.
pub const MOST_TOOLS: usize = 256;
/// Longest name of a tool, in characters.
pub const LONGEST_NAME: usize = crate::limits::MAX_ID_CHARS;

/// How a call that ran ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallOutcome {
    /// It gave a result, or it is not known what it gave.
    Completed,
    /// It gave an error: the same call may be tried again, up to the limit.
    Failed,
}

/// Why a call should not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SkipReason {
    /// The tool was run as often as it may in one turn.
    ToolLimit,
    /// It was run with these arguments already.
    ExactDuplicate,
    /// It was asked nearly the same already.
    SimilarQuery,
}

impl SkipReason {
    /// What it is called in answers and in the log.
    pub const fn reason(self) -> Reason {
        match self {
            Self::ToolLimit => Reason::ToolLimit,
            Self::ExactDuplicate => Reason::ExactDuplicate,
            Self::SimilarQuery => Reason::SimilarQuery,
        }
    }

    /// Its name on the wire.
    pub const fn code(self) -> &'static str {
        self.reason().code()
    }

    /// The same call twice, and what the model is told instead of a second result.
    pub fn exact_duplicate(tool: &str) -> (Self, String) {
        (Self::ExactDuplicate, format!("Tool '{tool}' was already executed with identical parameters"))
    }
}

/// A call that should not run, and what to tell the model instead of its result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skip {
    /// Which rule says so.
    pub reason: SkipReason,
    /// What to tell the model.
    pub message: String,
    /// How often the tool has run in this turn.
    pub count: u32,
    /// How often it may run in one turn.
    pub limit: u32,
}

/// A call that cannot be looked at. Nothing was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCall {
    /// The tool has no name.
    #[error("the tool has no name; pass the name the model called it by")]
    NoTool,
    /// The tool's name is too long to be one.
    #[error("the tool's name is longer than {LONGEST_NAME} characters; pass its name, not its description")]
    LongToolName,
    /// The arguments cannot be compared.
    #[error(transparent)]
    Arguments(FingerprintError),
}

impl From<FingerprintError> for InvalidCall {
    fn from(problem: FingerprintError) -> Self {
        Self::Arguments(problem)
    }
}

/// What ran in a turn: the state, without the settings, to be kept anywhere.
///
/// It is bounded: [`MOST_TOOLS`] tools, and of each at most as many calls as its limit, which are 8 bytes each and for a
/// search tool its query (at most [`crate::similarity::LONGEST_WHOLE`] characters, without personal data). With the
/// default limits that is less than 128 KB whatever the agent does, and some hundred bytes in a usual turn.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnCalls {
    /// The one that was called last is last.
    tools: Vec<ToolCalls>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ToolCalls {
    /// The hash of its name.
    tool: u64,
    count: u32,
    /// Arguments of the calls that completed.
    completed: Vec<u64>,
    queries: Vec<Query>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Query {
    gist: Gist,
    /// Where it searched, and which page of it.
    place: u64,
}

impl Query {
    /// The same query, whether or not its letters were kept.
    fn is_same(&self, other: &Self) -> bool {
        self.place == other.place && self.gist.has_words_of(&other.gist)
    }

    fn is_similar(&self, other: &Self, settings: &TrackerSettings) -> bool {
        let (gist, other_gist) = (&self.gist, &other.gist);
        self.place == other.place
            && if settings.plain_ratio {
                gist.is_spelt_like(other_gist, settings.threshold, settings.junk)
            } else {
                gist.is_similar_by(other_gist, settings.threshold, settings.junk)
            }
    }
}

/// A call, read: what of it is compared. A log keeps it, so that a state can be rebuilt without the settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    tool: u64,
    arguments: u64,
    query: Option<Query>,
}

impl Call {
    /// Reads a call by what its settings compare.
    pub fn read(settings: &TrackerSettings, tool: &str, args: &Value) -> Result<Self, InvalidCall> {
        if tool.is_empty() {
            return Err(InvalidCall::NoTool);
        }
        if tool.len() > LONGEST_NAME && tool.chars().nth(LONGEST_NAME).is_some() {
            return Err(InvalidCall::LongToolName);
        }
        let arguments = of_value_without(args, &settings.volatile_of(tool))?;
        let query = match settings.query_in(tool, args).map(|query| Gist::worded(&query, &settings.wording)) {
            Some(gist) if !gist.is_blank() => Some(Query { gist, place: settings.place_in(args)? }),
            _ => None,
        };
        Ok(Self { tool: xxh3_64(tool.as_bytes()), arguments, query })
    }

    /// As it may be kept. Without its letters a query is like another only if it has the same words.
    #[must_use]
    pub fn kept(mut self, store_text: StoreText) -> Self {
        if let Some(query) = &mut self.query {
            match store_text {
                StoreText::None => query.gist.forget_text(),
                StoreText::Redacted | StoreText::Full => {}
            }
        }
        self
    }
}

impl TurnCalls {
    /// Whether a call should be skipped: the limit is looked at first, then the exact call, then similar queries.
    pub fn should_skip(&self, settings: &TrackerSettings, tool: &str, args: &Value) -> Result<Option<Skip>, InvalidCall> {
        Ok(self.skip_of(settings, tool, &Call::read(settings, tool, args)?))
    }

    /// Why this call should not run, if so.
    pub fn skip_of(&self, settings: &TrackerSettings, tool: &str, call: &Call) -> Option<Skip> {
        let limit = settings.limit_of(tool);
        let calls = self.tools.iter().find(|calls| calls.tool == call.tool);
        let count = calls.map_or(0, |calls| calls.count);
        let skip = |reason, message| Some(Skip { reason, message, count, limit });
        if count >= limit {
            return skip(SkipReason::ToolLimit, format!("Tool '{tool}' has reached its execution limit ({limit}) for this turn"));
        }
        let calls = calls?;
        if calls.completed.contains(&call.arguments) {
            let (reason, message) = SkipReason::exact_duplicate(tool);
            return skip(reason, message);
        }
        if call.query.as_ref().is_some_and(|query| calls.queries.iter().any(|earlier| earlier.is_similar(query, settings))) {
            return skip(SkipReason::SimilarQuery, format!("Tool '{tool}' was already executed with a similar query"));
        }
        None
    }

    /// Counts a call that ran.
    pub fn record(&mut self, settings: &TrackerSettings, tool: &str, args: &Value, outcome: CallOutcome) -> Result<(), InvalidCall> {
        self.count(Call::read(settings, tool, args)?, settings.limit_of(tool), outcome);
        Ok(())
    }

    /// Counts a call that ran.
    pub fn count(&mut self, call: Call, limit: u32, outcome: CallOutcome) {
        let mut calls = match self.tools.iter().position(|calls| calls.tool == call.tool) {
            Some(position) => self.tools.remove(position),
            None => ToolCalls { tool: call.tool, count: 0, completed: Vec::new(), queries: Vec::new() },
        };
        // At the limit every call is refused by its number, so what a further one was about is never asked.
        if outcome == CallOutcome::Completed && calls.count < limit && !calls.completed.contains(&call.arguments) {
            calls.completed.push(call.arguments);
            calls.queries.extend(call.query);
        }
        calls.count = calls.count.saturating_add(1);
        self.tools.push(calls);
        if self.tools.len() > MOST_TOOLS {
            self.tools.remove(0);
        }
    }

    /// A call that was counted as completed turns out to have failed: it may be tried again, up to the limit.
    pub fn fail(&mut self, call: &Call) {
        if let Some(calls) = self.tools.iter_mut().find(|calls| calls.tool == call.tool) {
            calls.completed.retain(|arguments| *arguments != call.arguments);
            calls.queries.retain(|query| !call.query.as_ref().is_some_and(|failed| query.is_same(failed)));
        }
    }

    /// How often a tool ran in this turn.
    pub fn count_of(&self, tool: &str) -> u32 {
        let tool = xxh3_64(tool.as_bytes());
        self.tools.iter().find(|calls| calls.tool == tool).map_or(0, |calls| calls.count)
    }

    /// Whether no call was counted.
    pub fn is_empty(&self) -> bool {
        self.tools.is_empty()
    }
}

/// Settings and the calls of one turn.
#[derive(Debug, Clone, Default)]
pub struct ToolExecutionTracker {
    settings: Arc<TrackerSettings>,
    calls: TurnCalls,
}

impl ToolExecutionTracker {
    /// A tracker at the beginning of a turn.
    pub fn new(settings: TrackerSettings) -> Result<Self, InvalidSetting> {
        settings.check()?;
        Ok(Self { settings: Arc::new(settings), calls: TurnCalls::default() })
    }

    /// `None`: run it, then [`record`](Self::record) it.
    pub fn should_skip(&self, tool: &str, args: &Value) -> Result<Option<Skip>, InvalidCall> {
        self.calls.should_skip(&self.settings, tool, args)
    }

    /// Counts a call that ran.
    pub fn record(&mut self, tool: &str, args: &Value, outcome: CallOutcome) -> Result<(), InvalidCall> {
        self.calls.record(&self.settings, tool, args, outcome)
    }

    /// A message of the user: all counts start anew.
    pub fn new_turn(&mut self) {
        self.calls = TurnCalls::default();
    }

    /// What it goes by.
    pub fn settings(&self) -> &TrackerSettings {
        &self.settings
    }

    /// The calls of this turn.
    pub fn calls(&self) -> &TurnCalls {
        &self.calls
    }
}
