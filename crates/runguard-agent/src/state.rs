//! The states of a run, and the only ways from one to another.
//!
//! ```text
//!            ┌──────────► WAITING_FOR_TOOL ─► CANCELLED, TIMED_OUT, ERROR
//! RUNNING ◄──┴───────────┘
//!    ├──────────────────► WAITING_FOR_INPUT ─► RUNNING, CANCELLED
//!    └─► COMPLETED, CANCELLED, TIMED_OUT, MAX_STEPS, BUDGET_EXCEEDED, ERROR
//! ```
//!
//! Each live state is a type, and a transition takes the old one away: an illegal transition, or a second end, is not an
//! error that is handled but a program that does not compile.
//!
//! ```
//! use runguard_agent::state::{AgentState, Machine, End};
//!
//! let running = Machine::start();
//! let waiting = running.call_tools();
//! assert_eq!(waiting.state(), AgentState::WaitingForTool);
//! let ended = waiting.results().end(End::Completed);
//! assert_eq!(ended.state(), AgentState::Completed);
//! ```
//!
//! A run cannot complete while tools run:
//!
//! ```compile_fail
//! use runguard_agent::state::{End, Machine};
//! Machine::start().call_tools().end(End::Completed);
//! ```
//!
//! What has ended stays ended:
//!
//! ```compile_fail
//! use runguard_agent::state::{End, Machine};
//! let ended = Machine::start().end(End::Completed);
//! ended.call_tools();
//! ```
//!
//! A state is left once:
//!
//! ```compile_fail
//! use runguard_agent::state::{End, Machine};
//! let running = Machine::start();
//! let first = running.end(End::Completed);
//! let second = running.end(End::Cancelled);
//! ```

use serde::{Deserialize, Serialize};

/// The state as it is shown and saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum AgentState {
    Running,
    WaitingForTool,
    WaitingForInput,
    Completed,
    Cancelled,
    TimedOut,
    MaxSteps,
    BudgetExceeded,
    Error,
}

impl AgentState {
    pub const fn code(self) -> &'static str {
        match self {
            Self::Running => "RUNNING",
            Self::WaitingForTool => "WAITING_FOR_TOOL",
            Self::WaitingForInput => "WAITING_FOR_INPUT",
            Self::Completed => "COMPLETED",
            Self::Cancelled => "CANCELLED",
            Self::TimedOut => "TIMED_OUT",
            Self::MaxSteps => "MAX_STEPS",
            Self::BudgetExceeded => "BUDGET_EXCEEDED",
            Self::Error => "ERROR",
        }
    }

    pub const fn is_end(self) -> bool {
        match self {
            Self::Running | Self::WaitingForTool | Self::WaitingForInput => false,
            Self::Completed | Self::Cancelled | Self::TimedOut | Self::MaxSteps | Self::BudgetExceeded | Self::Error => true,
        }
    }
}

/// How a run can end from [`Running`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Completed,
    Cancelled,
    TimedOut,
    MaxSteps,
    BudgetExceeded,
    Error,
}

/// How a run can end while its tools run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interruption {
    Cancelled,
    TimedOut,
    Error,
}

/// A run in the state `S`.
#[derive(Debug)]
#[must_use = "a state that is dropped is a run that ends without a word"]
pub struct Machine<S> {
    state: S,
}

#[derive(Debug)]
pub struct Running;
#[derive(Debug)]
pub struct WaitingForTool;
#[derive(Debug)]
pub struct WaitingForInput;
#[derive(Debug)]
pub struct Ended(AgentState);

impl Machine<Running> {
    pub const fn start() -> Self {
        Self { state: Running }
    }

    pub fn state(&self) -> AgentState {
        AgentState::Running
    }

    pub fn call_tools(self) -> Machine<WaitingForTool> {
        Machine { state: WaitingForTool }
    }

    pub fn ask(self) -> Machine<WaitingForInput> {
        Machine { state: WaitingForInput }
    }

    pub fn end(self, end: End) -> Machine<Ended> {
        let state = match end {
            End::Completed => AgentState::Completed,
            End::Cancelled => AgentState::Cancelled,
            End::TimedOut => AgentState::TimedOut,
            End::MaxSteps => AgentState::MaxSteps,
            End::BudgetExceeded => AgentState::BudgetExceeded,
            End::Error => AgentState::Error,
        };
        Machine { state: Ended(state) }
    }
}

impl Machine<WaitingForTool> {
    pub fn state(&self) -> AgentState {
        AgentState::WaitingForTool
    }

    pub fn results(self) -> Machine<Running> {
        Machine { state: Running }
    }

    pub fn interrupt(self, interruption: Interruption) -> Machine<Ended> {
        let state = match interruption {
            Interruption::Cancelled => AgentState::Cancelled,
            Interruption::TimedOut => AgentState::TimedOut,
            Interruption::Error => AgentState::Error,
        };
        Machine { state: Ended(state) }
    }
}

impl Machine<WaitingForInput> {
    pub fn state(&self) -> AgentState {
        AgentState::WaitingForInput
    }

    pub fn answer(self) -> Machine<Running> {
        Machine { state: Running }
    }

    pub fn cancel(self) -> Machine<Ended> {
        Machine { state: Ended(AgentState::Cancelled) }
    }
}

impl Machine<Ended> {
    pub fn state(&self) -> AgentState {
        self.state.0
    }
}
