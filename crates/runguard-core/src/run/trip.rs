//! Why a run was stopped: a code, a sentence and the numbers behind it. The same whoever noticed, a detector in this process or a
//! service.

use crate::detect::loops::LoopDetected;
use crate::detect::stall::{Rung, StallRule, Verdict};
use crate::ledger::{BudgetExceeded, Unit};
use crate::prices::UnknownModelError;
use crate::reason::{Reason, RunReason};
pub use crate::text::sentence;
use crate::time::Span;
use serde::Serialize;
use std::borrow::Cow;
use std::fmt;

/// Why a run was stopped.
#[derive(Debug, Clone, PartialEq, Serialize, thiserror::Error)]
pub struct Trip {
    /// A code of [`crate::reason`]; of a service that is newer than this program, one that only it knows.
    pub reason: Cow<'static, str>,
    /// What happened and what to do, in sentences.
    pub message: String,
    /// What was counted.
    #[serde(flatten)]
    pub what: What,
}

/// What was counted.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "error", rename_all = "snake_case")]
#[allow(missing_docs, reason = "the fields are named as the detectors name them")]
pub enum What {
    /// One round of the calls, oldest first, and how often it was made.
    Loop { cycle: Vec<String>, repeats: u32 },
    /// `nudge` is a sentence for the model. No rule: a service refused without looking.
    Stall { rule: Option<StallRule>, count: u32, nudge: String },
    /// Dollars, tokens or calls, by the unit.
    Budget { unit: Unit, spent: f64, limit: f64 },
    /// The calls of the run itself are used up; `tool` is `model` for those of the model.
    Calls { tool: String, limit: u64 },
    /// The run has taken as long as it may, in seconds.
    Time { limit: f64 },
}

impl Trip {
    /// A stall that ends the run, whichever rung it has climbed: a call that must not be made again ends a run that makes it.
    pub(super) fn stalled(verdict: Verdict, tool: &str) -> Option<Self> {
        let rule = verdict.refuses()?;
        let message = Verdict { rung: Rung::Stop, ..verdict }.sentences();
        let what = What::Stall { rule: Some(rule), count: verdict.count, nudge: verdict.nudge(tool) };
        Some(Self { reason: rule.reason().code().into(), message, what })
    }

    pub(super) fn tool_calls(tool: &str, limit: u64) -> Self {
        let message = format!(
            "The run has made its {limit} tool calls; '{tool}' would be one more. Answer with what there is, or raise the ceiling of tool calls."
        );
        Self::of_calls(RunReason::ToolCallCeiling, message, tool, limit)
    }

    /// Of one tool, which has a limit of its own.
    pub(super) fn calls_of(tool: &str, limit: u64) -> Self {
        let message = format!("The run has made its {limit} calls of '{tool}'. Go on without it, or raise its limit.");
        Self::of_calls(RunReason::ToolCallCeiling, message, tool, limit)
    }

    /// A poll whose result does not change any more.
    pub(super) fn polled(tool: &str, times: u32) -> Self {
        let message = format!(
            "'{tool}' gave the same {times} times in a row. Stop the run, or wait longer between two calls: what it waits for does not happen."
        );
        Self::looped(vec![tool.to_owned()], times, message)
    }

    /// A model that does not heed what it is told.
    pub(super) fn told(tool: &str, times: u32) -> Self {
        let message = format!(
            "The model was told {times} times in a row that it has the result already, last of '{tool}', and asked again. Stop the run, or answer with what there is."
        );
        Self::looped(vec![tool.to_owned()], times, message)
    }

    /// A loop that somebody else has put into words.
    pub(super) fn looped(cycle: Vec<String>, repeats: u32, message: String) -> Self {
        Self { reason: Reason::LoopDetected.code().into(), message, what: What::Loop { cycle, repeats } }
    }

    pub(super) fn model_calls(limit: u64) -> Self {
        let message = format!("The run has made its {limit} model calls. Answer with what there is, or raise the ceiling of model calls.");
        Self::of_calls(RunReason::ModelCallCeiling, message, "model", limit)
    }

    pub(super) fn time(limit: Span) -> Self {
        let message =
            format!("The run has taken its {} seconds. Answer with what there is, or raise its limit of time.", limit.as_seconds_f64());
        Self { reason: RunReason::TimeLimit.code().into(), message, what: What::Time { limit: limit.as_seconds_f64() } }
    }

    /// Whether it tells of a limit of which nothing is left.
    pub fn is_used_up(&self) -> bool {
        matches!(self.what, What::Budget { spent, limit, .. } if spent >= limit)
    }

    /// Whether it tells of a limit of which something is left, though others have set it aside.
    pub(super) fn is_overrun(&self) -> bool {
        self.reason == Reason::BudgetExceeded.code() && !self.is_used_up()
    }

    fn of_calls(reason: RunReason, message: String, tool: &str, limit: u64) -> Self {
        Self { reason: reason.code().into(), message, what: What::Calls { tool: tool.to_owned(), limit } }
    }
}

impl From<&LoopDetected> for Trip {
    fn from(found: &LoopDetected) -> Self {
        let what = What::Loop { cycle: found.pattern.clone(), repeats: found.repeats };
        Self { reason: found.reason().code().into(), message: found.to_string(), what }
    }
}

impl From<&BudgetExceeded> for Trip {
    fn from(exceeded: &BudgetExceeded) -> Self {
        let what = What::Budget { unit: exceeded.unit, spent: exceeded.spent_value(), limit: exceeded.limit_value() };
        Self { reason: exceeded.reason().code().into(), message: exceeded.sentences(), what }
    }
}

/// A model without a price, where dollars are limited. It stops nothing for good: the next model may have one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unpriced {
    /// Its name, as it was asked for.
    pub model: String,
    /// What happened and what to do, in sentences.
    pub message: String,
}

impl From<&UnknownModelError> for Unpriced {
    fn from(unknown: &UnknownModelError) -> Self {
        Self { model: unknown.model.clone(), message: sentence(unknown) }
    }
}

impl fmt::Display for Trip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
