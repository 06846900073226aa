//! The names: guards and the reasons they give, and those of runs. One list, from which come the guards' modules, settings, states and routes (in
//! `runguard-guards`), what dashboards and reports call them, the documentation and the OpenAPI description. Codes are added, never renamed.

/// Names that are written as codes.
pub trait Code: Copy {
    /// As it is written.
    fn code(self) -> &'static str;
    /// The name of a code, if it is one of ours.
    fn from_code(code: &str) -> Option<Self>;
}

/// Gives the list of all guards to a macro: for each what it stops, its name, code, module in `runguard-guards` and label, what the
/// subject of its decisions is, and its reasons with their codes and labels. Whoever needs something of every guard calls it.
#[doc(hidden)]
#[macro_export]
macro_rules! for_every_guard {
    ($take:ident) => {
        $take! {
            /// A model call is repeated although its input cannot satisfy the validation.
            AiTaskRetry = "ai_task_retry" in ai_task_retry, "AI task retry", subject "task" {
                /// The message does not contain what the task should extract; no retry can find it.
                InputMissingPrerequisiteSignal = "input_missing_prerequisite_signal", "Value missing in the message";
                /// The task used up its retries in the window.
                RetryCapReached = "retry_cap_reached", "Retries used up";
            }
            /// A conversation is handed from bot to bot in a circle.
            Handoff = "handoff" in handoff, "Bot handoff", subject "bot" {
                /// The conversation used up its transfers in the window.
                HandoffCeilingReached = "handoff_ceiling_reached", "Too many handoffs";
                /// The target bot was visited as often as allowed and did not resolve the conversation.
                CycleDetected = "cycle_detected", "Handed round in a circle";
            }
            /// The same question is put to the knowledge base again and again.
            KbRequery = "kb_requery" in kb_requery, "Knowledge base", subject "topic" {
                /// The last answer was already good enough.
                ConfidenceAlreadyMet = "confidence_already_met", "Answer was good enough";
                /// The topic used up its queries in the window (check counts).
                KbRequeryCapReached = "kb_requery_cap_reached", "Queries used up";
                /// The topic used up its recorded queries in the window (record counts).
                KbQueryCapReached = "kb_query_cap_reached", "Recorded queries used up";
                /// The last answer on this topic was poor; rephrasing will not find what is not documented.
                LowConfidenceReQueryBlocked = "low_confidence_re_query_blocked", "Topic is not documented";
            }
            /// An autonomous agent repeats its actions without getting nearer to the goal.
            AgentAction = "agent_action" in agent_action, "Agent action", subject "action" {
                /// The session used up its actions in the window.
                TotalActionCeiling = "total_action_ceiling", "Too many actions";
                /// The same action was run too often in a row.
                ConsecutiveSameActionSpiral = "consecutive_same_action_spiral", "Same action in a row";
                /// The same action was run too often in the window.
                SameActionFrequencySpiral = "same_action_frequency_spiral", "Same action too often";
                /// The same action with the same parameters was run too often in the window.
                IdenticalCallSpiral = "identical_call_spiral", "Identical call again";
                /// The same few actions were run in the same order again and again.
                ActionCycle = "action_cycle", "Actions go round in a circle";
            }
            /// The user is asked again although the answer cannot contain what is asked for.
            NoMatchReprompt = "no_match_reprompt" in no_match_reprompt, "Reprompt", subject "step" {
                /// The utterance does not contain what the step captures.
                EntitySignalAbsent = "entity_signal_absent", "Value missing in the answer";
                /// The step used up its reprompts in the window.
                RepromptCeilingReached = "reprompt_ceiling_reached", "Reprompts used up";
            }
            /// A slot is asked for again although the user gave the value in words.
            CaptureSlotFill = "capture_slot_fill" in capture_slot_fill, "Slot filling", subject "step" {
                /// The value is there, but in words; show the expected format.
                ColloquialFormatDetected = "colloquial_format_detected", "Value given in words";
                /// The step used up its attempts, or its format hints.
                AttemptCeilingReached = "attempt_ceiling_reached", "Attempts used up";
            }
            /// A failing upstream is hammered by every session.
            ApiCircuit = "api_circuit" in api_circuit, "API circuit", subject "endpoint" {
                /// The first block after the circuit opened.
                CircuitJustTripped = "circuit_just_tripped", "Circuit tripped";
                /// The circuit is open, or half-open with every probe out.
                CircuitOpen = "circuit_open", "Circuit open";
                /// The session used up its attempts at this endpoint.
                SessionRetryCeiling = "session_retry_ceiling", "Session retries used up";
            }
            /// A run makes the same calls in the same order again and again.
            Loop = "loop" in run_loop, "Loop", subject "run" {
                /// The same call was made too often in the window.
                CallCeiling = "call_ceiling", "Call made too often";
                /// The newest calls are several copies of one pattern.
                LoopDetected = "loop_detected", "Calls loop";
            }
            /// A run gets nowhere, by what its calls give.
            Stall = "stall" in stall, "Stall", subject "run" {
                /// The same call gave the same result too often in a row.
                StalledIdentical = "stalled_identical", "Same call, same result";
                /// The same round of calls gave the same results again and again.
                StalledCycle = "stalled_cycle", "Same round, same results";
                /// The latest calls brought hardly anything new.
                StalledNoNews = "stalled_no_news", "Nothing new";
                /// Calls with different arguments failed with the same error.
                StalledSameError = "stalled_same_error", "Same error again";
                /// The model said the same again and again without acting.
                StalledMessages = "stalled_messages", "Same message again";
                /// The same check gave the same again and again although something was changed in between.
                StalledUnmoved = "stalled_unmoved", "Check does not move";
                /// A file was put back to what it had been again and again.
                StalledPutBack = "stalled_put_back", "File put back again";
                /// Calls that look at different things gave the same again and again.
                StalledSameResult = "stalled_same_result", "Other arguments, same result";
                /// Call after call failed, whatever they said.
                StalledFailing = "stalled_failing", "Nothing succeeds";
                /// The run is long, and a check failed again after a change or a file was put back again and again.
                StalledLongRun = "stalled_long_run", "Too long, and still failing";
            }
            /// A run that asks a model again and again gets nowhere, or was stopped.
            AgentRun = "agent_run" in agent_run, "Agent run", subject "model" {
                /// Its calls give nothing new: it goes round in circles.
                RunStalled = "run_stalled", "Run gets nowhere";
                /// An operator stopped it by hand; it goes on when somebody resumes it.
                RunStopped = "run_stopped", "Run stopped by hand";
            }
            /// A run spends more than it may.
            Budget = "budget" in budget, "Budget", subject "budget" {
                /// What is left of the budget, or of its parent, does not pay for this.
                BudgetExceeded = "budget_exceeded", "Budget used up";
                /// The model has no price, so its cost cannot be kept within a limit.
                UnknownModel = "unknown_model", "Model without a price";
                /// What is asked for has a price that nobody here knows, so its cost cannot be kept within a limit.
                NotMetered = "not_metered", "Price not known";
                /// The budget's calls are used up.
                CallCapReached = "call_cap_reached", "Calls used up";
                /// Too many reservations are open.
                TooManyReservations = "too_many_reservations", "Too many reservations";
                /// The shared state is away, and a hard limit is not kept from memory.
                StateUnavailable = "state_unavailable", "Shared state away";
            }
            /// A tool is called again for what it has given already.
            ToolCall = "tool_call" in tool_call, "Tool call", subject "tool" {
                /// The tool was run as often as it may in one turn.
                ToolLimit = "tool_limit", "Tool limit reached";
                /// The tool was run with the same arguments already.
                ExactDuplicate = "exact_duplicate", "Same call again";
                /// The tool was asked nearly the same already.
                SimilarQuery = "similar_query", "Similar query again";
            }
            /// An action that has failed for good is tried again.
            ActionGroup = "action_group" in action_group, "Action group", subject "action" {
                /// The same call failed as often as it may; it will fail again.
                PermanentFailure = "permanent_failure", "Fails for good";
            }
        }
    };
}

macro_rules! names {
    ($(
        $(#[doc = $about:literal])+
        $guard:ident = $guard_code:literal in $module:ident, $guard_label:literal, subject $subject:literal {
            $($(#[doc = $meaning:literal])+ $reason:ident = $reason_code:literal, $reason_label:literal;)+
        }
    )+) => {
        named! {
            /// Who decides: the flow guards, and the detectors behind a door.
            GuardName { $($(#[doc = $about])+ $guard = $guard_code, $guard_label),+ }
        }

        named! {
            /// Why a guard refused.
            Reason { $($($(#[doc = $meaning])+ $reason = $reason_code, $reason_label),+),+ }
        }

        impl GuardName {
            /// What its decisions are about.
            pub const fn subject(self) -> &'static str {
                match self { $(Self::$guard => $subject),+ }
            }
        }

        impl Reason {
            /// Which guard gives it.
            pub const fn guard(self) -> GuardName {
                match self { $($(Self::$reason)|+ => GuardName::$guard),+ }
            }
        }
    };
}

macro_rules! named {
    ($(#[$meta:meta])* $name:ident { $($(#[doc = $doc:literal])+ $variant:ident = $code:literal, $label:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name { $($(#[doc = $doc])+ #[serde(rename = $code)] $variant),+ }

        impl $name {
            /// All of them, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Its name on the wire.
            pub const fn code(self) -> &'static str {
                match self { $(Self::$variant => $code),+ }
            }

            /// What it means, for documentation.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),+).trim_ascii()),+ }
            }

            /// What people read instead of the code.
            pub const fn label(self) -> &'static str {
                match self { $(Self::$variant => $label),+ }
            }

            /// By its name on the wire.
            pub fn from_code(code: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|known| known.code() == code)
            }

            /// Its number, from 0.
            pub const fn index(self) -> usize {
                self as usize
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.code())
            }
        }

        impl crate::reason::Code for $name {
            fn code(self) -> &'static str {
                Self::code(self)
            }

            fn from_code(code: &str) -> Option<Self> {
                Self::from_code(code)
            }
        }
    };
}
pub(crate) use named;

for_every_guard!(names);

named! {
    /// Why a run was stopped without a guard: by what it counts itself, or by its caller.
    RunReason {
        /// The run made as many tool calls as it may.
        ToolCallCeiling = "tool_call_ceiling", "Tool calls used up",
        /// The run made as many model calls as it may.
        ModelCallCeiling = "model_call_ceiling", "Model calls used up",
        /// The run took as long as it may.
        TimeLimit = "time_limit", "Time used up",
        /// The caller stopped the run and gave no reason.
        Stopped = "stopped", "Stopped",
        /// A `ToolLimitError` that its caller made without a reason.
        ToolLimitReached = "tool_limit_reached", "Tool limit reached",
        /// A `StallDetectedError` that its caller made without a reason.
        StallDetected = "stall_detected", "Stalled",
        /// The agent made the same step, all of its calls, several times in a row.
        Repetition = "repetition", "Same step again",
        /// The agent goes through the same round of steps.
        Cycle = "cycle", "Steps in a circle",
        /// The agent's call is not run: it gave the same result too often.
        StallBlock = "stall_block", "Call without news",
    }
}

named! {
    /// Why the gateway passed no question on, or no answer, where no guard says so.
    GatewayReason {
        /// The gateway has no key for the provider, and the caller sent none.
        NoProviderKey = "no_provider_key", "No key for the provider",
        /// The caller's key may not ask models.
        WrongKey = "wrong_key", "Key of another role",
        /// It is not known what the route would cost.
        RouteNotMetered = "route_not_metered", "Route not metered",
        /// What the route shows belongs to everybody who shares the provider's key.
        RouteNotShared = "route_not_shared", "Route not shared",
        /// The question cannot be read, or asks for what cannot be metered.
        InvalidRequest = "invalid_request", "Invalid question",
        /// The gateway is stopping.
        Stopping = "stopping", "Stopping",
        /// There is nothing of that name, or it is another tenant's.
        NotFound = "not_found", "Not found",
        /// The same of the answer that a question follows.
        PreviousResponseNotFound = "previous_response_not_found", "Earlier answer not found",
        /// The question could not be sent.
        NotSent = "not_sent", "Not sent",
        /// The provider did not begin to answer in time.
        ProviderSlow = "provider_slow", "Provider too slow",
        /// The provider could not be reached, or went away.
        ProviderAway = "provider_away", "Provider away",
        /// The provider's answer cannot be metered, and is not passed on.
        UnreadableAnswer = "unreadable_answer", "Answer cannot be read",
        /// The provider's answer broke off.
        BrokenAnswer = "broken_answer", "Answer broke off",
        /// The request is none that this service takes: the message says why.
        NotTaken = "runguard", "Request not taken",
    }
}

named! {
    /// How a run of the agent ended. They are in saved sessions.
    AgentEnd {
        /// The model has finished.
        Completed = "completed", "Completed",
        /// The model has finished its turn, and a person is asked.
        WaitingForInput = "waiting_for_input", "Waiting for a person",
        /// The caller cancelled it.
        Cancelled = "cancelled", "Cancelled",
        /// The run took as long as it may.
        TimedOut = "timed_out", "Time used up",
        /// The run made as many steps as it may.
        MaxSteps = "max_steps", "Steps used up",
        /// The run used as many tokens as it may.
        TokenBudget = "token_budget", "Tokens used up",
        /// The run cost as much as it may.
        CostLimit = "cost_limit", "Money used up",
        /// The same step again and again.
        Repetition = "repetition", "Same step again",
        /// The same round of steps again and again.
        Cycle = "cycle", "Steps in a circle",
        /// No progress: the stall detector's last rung.
        Stalled = "stalled", "No progress",
        /// The provider failed for good, or too often.
        Provider = "provider", "Provider failed",
        /// The session could not be written down.
        NotSaved = "not_saved", "Not saved",
    }
}

impl Reason {
    /// Those that a guard gives.
    pub fn of(guard: GuardName) -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(move |reason| reason.guard() == guard)
    }
}
