//! The names: guards and the reasons they give, and those of runs. One place, from which documentation, the OpenAPI description
//! and the tables of the command line are made. Codes are added, never renamed.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! named {
    ($(#[$meta:meta])* $name:ident { $($(#[doc = $doc:literal])* $variant:ident = $code:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $name { $($(#[doc = $doc])* #[serde(rename = $code)] $variant),+ }

        impl $name {
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            pub const fn code(self) -> &'static str {
                match self { $(Self::$variant => $code),+ }
            }

            /// What it means, for documentation.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),*).trim_ascii()),+ }
            }

            pub fn from_code(code: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|known| known.code() == code)
            }

            pub const fn index(self) -> usize {
                self as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.code())
            }
        }
    };
}

named! {
    /// Who decides: the flow guards, and the detectors behind a door.
    GuardName {
        /// A model call is repeated although its input cannot satisfy the validation.
        AiTaskRetry = "ai_task_retry",
        /// A conversation is handed from bot to bot in a circle.
        Handoff = "handoff",
        /// The same question is put to the knowledge base again and again.
        KbRequery = "kb_requery",
        /// An autonomous agent repeats its actions without getting nearer to the goal.
        AgentAction = "agent_action",
        /// The user is asked again although the answer cannot contain what is asked for.
        NoMatchReprompt = "no_match_reprompt",
        /// A slot is asked for again although the user gave the value in words.
        CaptureSlotFill = "capture_slot_fill",
        /// A failing upstream is hammered by every session.
        ApiCircuit = "api_circuit",
        /// A run makes the same calls in the same order again and again.
        Loop = "loop",
        /// A run gets nowhere, by what its calls give.
        Stall = "stall",
        /// A run spends more than it may.
        Budget = "budget",
        /// A tool is called again for what it has given already.
        ToolCall = "tool_call",
        /// An action that has failed for good is tried again.
        ActionGroup = "action_group",
    }
}

named! {
    /// Why a guard refused.
    Reason {
        /// The message does not contain what the task should extract; no retry can find it.
        InputMissingPrerequisiteSignal = "input_missing_prerequisite_signal",
        /// The task used up its retries in the window.
        RetryCapReached = "retry_cap_reached",
        /// The conversation used up its transfers in the window.
        HandoffCeilingReached = "handoff_ceiling_reached",
        /// The target bot was visited as often as allowed and did not resolve the conversation.
        CycleDetected = "cycle_detected",
        /// The last answer was already good enough.
        ConfidenceAlreadyMet = "confidence_already_met",
        /// The topic used up its queries in the window (check counts).
        KbRequeryCapReached = "kb_requery_cap_reached",
        /// The topic used up its recorded queries in the window (record counts).
        KbQueryCapReached = "kb_query_cap_reached",
        /// The last answer on this topic was poor; rephrasing will not find what is not documented.
        LowConfidenceReQueryBlocked = "low_confidence_re_query_blocked",
        /// The session used up its actions in the window.
        TotalActionCeiling = "total_action_ceiling",
        /// The same action was run too often in a row.
        ConsecutiveSameActionSpiral = "consecutive_same_action_spiral",
        /// The same action was run too often in the window.
        SameActionFrequencySpiral = "same_action_frequency_spiral",
        /// The same action with the same parameters was run too often in the window.
        IdenticalCallSpiral = "identical_call_spiral",
        /// The same few actions were run in the same order again and again.
        ActionCycle = "action_cycle",
        /// The utterance does not contain what the step captures.
        EntitySignalAbsent = "entity_signal_absent",
        /// The step used up its reprompts in the window.
        RepromptCeilingReached = "reprompt_ceiling_reached",
        /// The value is there, but in words; show the expected format.
        ColloquialFormatDetected = "colloquial_format_detected",
        /// The step used up its attempts, or its format hints.
        AttemptCeilingReached = "attempt_ceiling_reached",
        /// The first refusal after the circuit opened.
        CircuitJustTripped = "circuit_just_tripped",
        /// The circuit is open, or half-open with every probe out.
        CircuitOpen = "circuit_open",
        /// The session used up its attempts at this endpoint.
        SessionRetryCeiling = "session_retry_ceiling",
        /// The same call was made too often in the window.
        CallCeiling = "call_ceiling",
        /// The newest calls are several copies of one pattern.
        LoopDetected = "loop_detected",
        /// The same call gave the same result too often in a row.
        StalledIdentical = "stalled_identical",
        /// The same round of calls gave the same results again and again.
        StalledCycle = "stalled_cycle",
        /// The latest calls brought hardly anything new.
        StalledNoNews = "stalled_no_news",
        /// Calls with different arguments failed with the same error.
        StalledSameError = "stalled_same_error",
        /// The model said the same again and again without acting.
        StalledMessages = "stalled_messages",
        /// What is left of the budget, or of its parent, does not pay for this.
        BudgetExceeded = "budget_exceeded",
        /// The model has no price, so its cost cannot be kept within a limit.
        UnknownModel = "unknown_model",
        /// The budget's calls are used up.
        CallCapReached = "call_cap_reached",
        /// Too many reservations are open.
        TooManyReservations = "too_many_reservations",
        /// The tool was run as often as it may in one turn.
        ToolLimit = "tool_limit",
        /// The tool was run with the same arguments already.
        ExactDuplicate = "exact_duplicate",
        /// The tool was asked nearly the same already.
        SimilarQuery = "similar_query",
        /// The same call failed as often as it may; it will fail again.
        PermanentFailure = "permanent_failure",
        /// The shared state is away, and a hard limit is not kept from memory.
        StateUnavailable = "state_unavailable",
    }
}

named! {
    /// Why a run was stopped without a guard: by what it counts itself, or by its caller.
    RunReason {
        /// The run made as many tool calls as it may.
        ToolCallCeiling = "tool_call_ceiling",
        /// The run made as many model calls as it may.
        ModelCallCeiling = "model_call_ceiling",
        /// The caller stopped the run and gave no reason.
        Stopped = "stopped",
        /// A `ToolLimitError` that its caller made without a reason.
        ToolLimitReached = "tool_limit_reached",
        /// A `StallDetectedError` that its caller made without a reason.
        StallDetected = "stall_detected",
    }
}

impl Reason {
    pub const fn guard(self) -> GuardName {
        match self {
            Self::InputMissingPrerequisiteSignal | Self::RetryCapReached => GuardName::AiTaskRetry,
            Self::HandoffCeilingReached | Self::CycleDetected => GuardName::Handoff,
            Self::ConfidenceAlreadyMet | Self::KbRequeryCapReached | Self::KbQueryCapReached | Self::LowConfidenceReQueryBlocked => {
                GuardName::KbRequery
            }
            Self::TotalActionCeiling
            | Self::ConsecutiveSameActionSpiral
            | Self::SameActionFrequencySpiral
            | Self::IdenticalCallSpiral
            | Self::ActionCycle => GuardName::AgentAction,
            Self::EntitySignalAbsent | Self::RepromptCeilingReached => GuardName::NoMatchReprompt,
            Self::ColloquialFormatDetected | Self::AttemptCeilingReached => GuardName::CaptureSlotFill,
            Self::CircuitJustTripped | Self::CircuitOpen | Self::SessionRetryCeiling => GuardName::ApiCircuit,
            Self::CallCeiling | Self::LoopDetected => GuardName::Loop,
            Self::StalledIdentical | Self::StalledCycle | Self::StalledNoNews | Self::StalledSameError | Self::StalledMessages => {
                GuardName::Stall
            }
            Self::BudgetExceeded | Self::UnknownModel | Self::CallCapReached | Self::TooManyReservations | Self::StateUnavailable => {
                GuardName::Budget
            }
            Self::ToolLimit | Self::ExactDuplicate | Self::SimilarQuery => GuardName::ToolCall,
            Self::PermanentFailure => GuardName::ActionGroup,
        }
    }

    pub fn of(guard: GuardName) -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(move |reason| reason.guard() == guard)
    }
}
