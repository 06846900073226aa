//! How a run ended: why, what it cost, what came of it, and how to go on.

use crate::spend::Counters;
use crate::state::AgentState;
use runguard_core::money::NanoDollars;
use runguard_core::reason::AgentEnd;
use serde::{Deserialize, Serialize, Serializer};

/// Why a run stopped, for programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Stop {
    /// The model has finished.
    Completed,
    /// The model has finished its turn, and a person is asked.
    WaitingForInput,
    Cancelled,
    TimedOut {
        limit_ms: u64,
    },
    MaxSteps {
        limit: u32,
    },
    TokenBudget {
        spent: u64,
        limit: u64,
    },
    CostLimit {
        spent: NanoDollars,
        limit: NanoDollars,
    },
    /// The same step again and again.
    Repetition {
        repeats: u32,
    },
    /// The same round of steps again and again, whatever it gave.
    Cycle {
        rounds: u32,
        steps: u32,
    },
    /// No progress: the stall detector's last rung.
    Stalled {
        rule: String,
        count: u32,
    },
    /// The provider failed for good, or too often.
    Provider {
        kind: String,
        attempts: u32,
    },
    /// The session could not be written down, so nothing further may happen.
    NotSaved,
}

impl Stop {
    /// Without what is to be said of it.
    pub const fn end(&self) -> AgentEnd {
        match self {
            Self::Completed => AgentEnd::Completed,
            Self::WaitingForInput => AgentEnd::WaitingForInput,
            Self::Cancelled => AgentEnd::Cancelled,
            Self::TimedOut { .. } => AgentEnd::TimedOut,
            Self::MaxSteps { .. } => AgentEnd::MaxSteps,
            Self::TokenBudget { .. } => AgentEnd::TokenBudget,
            Self::CostLimit { .. } => AgentEnd::CostLimit,
            Self::Repetition { .. } => AgentEnd::Repetition,
            Self::Cycle { .. } => AgentEnd::Cycle,
            Self::Stalled { .. } => AgentEnd::Stalled,
            Self::Provider { .. } => AgentEnd::Provider,
            Self::NotSaved => AgentEnd::NotSaved,
        }
    }

    pub const fn code(&self) -> &'static str {
        self.end().code()
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    pub session: String,
    pub state: AgentState,
    pub stop: Stop,
    /// What happened, for people.
    pub message: String,
    /// What to do to go on; empty when there is nothing to do.
    pub how_to_resume: String,
    /// The model's answer, whole or not, with all pieces of one that was continued.
    pub text: String,
    pub steps: u32,
    pub input_tokens: u64,
    pub output_tokens: u64,
    #[serde(rename = "cost_usd", serialize_with = "as_dollars")]
    pub cost: NanoDollars,
    /// Some of it was counted from bytes, because the provider said nothing.
    pub estimated: bool,
    pub tool_runs: u32,
    pub elapsed_ms: u64,
}

impl Report {
    /// What a run used, and how it ended; what there is to say of it is the caller's.
    pub(crate) fn of(session: &str, used: &Counters, state: AgentState, stop: Stop) -> Self {
        Self {
            session: session.to_owned(),
            state,
            stop,
            message: String::new(),
            how_to_resume: String::new(),
            text: String::new(),
            steps: used.steps,
            input_tokens: used.input_tokens,
            output_tokens: used.output_tokens,
            cost: used.cost,
            estimated: used.estimated,
            tool_runs: used.tool_runs,
            elapsed_ms: used.elapsed_ms,
        }
    }

    pub const fn total_tokens(&self) -> u64 {
        self.input_tokens + self.output_tokens
    }
}

/// Money leaves as dollars: that is what a reader of JSON expects.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
pub(crate) fn as_dollars<S: Serializer>(amount: &NanoDollars, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(amount.as_dollars())
}

#[expect(clippy::ref_option, reason = "serde gives a reference")]
pub(crate) fn as_some_dollars<S: Serializer>(amount: &Option<NanoDollars>, serializer: S) -> Result<S::Ok, S::Error> {
    match amount {
        Some(amount) => serializer.serialize_some(&amount.as_dollars()),
        None => serializer.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_is_saved_under_its_code() {
        let (limit, usd) = (1, NanoDollars::ZERO);
        let stops = [
            Stop::Completed,
            Stop::WaitingForInput,
            Stop::Cancelled,
            Stop::TimedOut { limit_ms: limit },
            Stop::MaxSteps { limit: 1 },
            Stop::TokenBudget { spent: limit, limit },
            Stop::CostLimit { spent: usd, limit: usd },
            Stop::Repetition { repeats: 3 },
            Stop::Cycle { rounds: 3, steps: 2 },
            Stop::Stalled { rule: "identical".into(), count: 4 },
            Stop::Provider { kind: "refused".into(), attempts: 1 },
            Stop::NotSaved,
        ];
        assert_eq!(stops.iter().map(Stop::end).collect::<Vec<_>>(), AgentEnd::ALL);
        for stop in stops {
            assert_eq!(serde_json::to_value(&stop).unwrap()["reason"], stop.code());
        }
    }
}
