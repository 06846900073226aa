//! Conversations that walk into each trap, and conversations that do not.
//!
//! A conversation is a list of steps, made from a seed. Each step says what is billed before the guard can be asked, what
//! to ask, what is billed when the step is done, and what to tell afterwards. Its unguarded twin is the same list with
//! nobody to ask: it does every step, up to where the platform's own limit would end it. So what was saved is the
//! difference of two sums over one list, and not a claim.

use runguard_core::Reason;
use runguard_core::ledger::MAX_STORED_RESERVATIONS;
use serde_json::{Map, Value, json};

/// A step that is not refused is done; a refused one is left out.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Step {
    /// Operations that are billed before the guard is asked, such as the model call that chose the action.
    pub(super) before: u32,
    pub(super) ask: Option<Request>,
    /// Operations that are billed when the step is done.
    pub(super) cost: u32,
    pub(super) tell: Option<Request>,
    /// Refused for one of these, the conversation goes on without the step; for any other it ends.
    pub(super) goes_on_after: &'static [Reason],
    /// The step would have succeeded: a refusal turns someone away.
    pub(super) would_succeed: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Request {
    pub(super) path: &'static str,
    pub(super) body: Map<String, Value>,
    /// This member of the answer to the question is handed back.
    pub(super) carries: Option<&'static str>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Conversation {
    pub(super) session: String,
    pub(super) steps: Vec<Step>,
    pub(super) gap_millis: u64,
    /// The step at which the guards, with the demo's settings, are expected to end it. `None`: nowhere, or it depends on others.
    pub(super) stops_at: Option<usize>,
}

impl Conversation {
    /// Requests it is expected to make.
    pub(super) fn expected_requests(&self) -> u64 {
        let reached = self.stops_at.map_or(self.steps.len(), |at| at + 1);
        self.steps[..reached].iter().map(|step| u64::from(step.ask.is_some()) + u64::from(step.tell.is_some())).sum()
    }

    /// How long it is expected to take.
    pub(super) fn expected_millis(&self) -> u64 {
        self.stops_at.unwrap_or(self.steps.len()) as u64 * self.gap_millis
    }

    /// What the twin without a guard is billed.
    pub(super) fn unguarded_operations(&self) -> u64 {
        self.steps.iter().map(|step| u64::from(step.before + step.cost)).sum()
    }
}

#[derive(Debug)]
pub(super) struct Scenario {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    /// What the guards say to it, and nothing else. None: a conversation as it should be.
    pub(super) reasons: &'static [Reason],
    /// Its share of the traffic.
    pub(super) weight: u32,
    /// Kinds of it; each occurs at least once.
    pub(super) variants: u32,
    write: fn(&mut Talk<'_>, u32),
}

impl Scenario {
    pub(super) fn is_healthy(&self) -> bool {
        self.reasons.is_empty()
    }

    /// Writes one conversation.
    pub(super) fn conversation(&self, variant: u32, number: u64, dice: &mut Dice, setting: Setting<'_>) -> Conversation {
        let mut talk = Talk {
            session: format!("{}{}-{number:05}", setting.prefix, self.name),
            steps: Vec::new(),
            gap_millis: setting.gap_millis,
            stops_at: None,
            dice,
            setting,
        };
        (self.write)(&mut talk, variant);
        Conversation { session: talk.session, steps: talk.steps, gap_millis: talk.gap_millis, stops_at: talk.stops_at }
    }
}

/// What a conversation needs to know of the world.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setting<'a> {
    /// Tells the sessions of the past from those of the present.
    pub(super) prefix: &'static str,
    pub(super) start_millis: u64,
    pub(super) gap_millis: u64,
    /// When the upstream is down.
    pub(super) outages: &'a [(u64, u64)],
}

impl Setting<'_> {
    fn is_down(&self, at_millis: u64) -> bool {
        self.outages.iter().any(|(from, to)| (*from..*to).contains(&at_millis))
    }
}

/// Numbers that look random and are the same for the same seed (`SplitMix64`).
#[derive(Debug, Clone)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64, number: u64) -> Self {
        let mut dice = Self(seed ^ number.wrapping_mul(0xD6E8_FEB8_6659_FD93));
        dice.next();
        dice
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to one less than `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len() as u64) as usize]
    }

    /// A fraction between two, with two decimals.
    fn hundredths(&mut self, least: u64, most: u64) -> f64 {
        self.between(least, most) as f64 / 100.0
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

/// A conversation while it is written.
struct Talk<'a> {
    session: String,
    steps: Vec<Step>,
    gap_millis: u64,
    stops_at: Option<usize>,
    dice: &'a mut Dice,
    setting: Setting<'a>,
}

impl Talk<'_> {
    fn push(&mut self, before: u32, ask: Option<Request>, cost: u32) -> &mut Step {
        self.steps.push(Step { before, ask, cost, tell: None, goes_on_after: &[], would_succeed: false });
        let last = self.steps.len() - 1;
        &mut self.steps[last]
    }

    fn request(&self, path: &'static str, body: Value) -> Request {
        let mut members = Map::from_iter([("session_id".to_owned(), Value::from(self.session.clone()))]);
        if let Value::Object(given) = body {
            members.extend(given);
        }
        Request { path, body: members, carries: None }
    }

    /// Something that is billed and that no guard is asked about.
    fn spend(&mut self, operations: u32) {
        self.push(operations, None, 0);
    }

    /// Asks before a step that costs this much.
    fn ask(&mut self, path: &'static str, body: Value, cost: u32) -> &mut Step {
        let request = self.request(path, body);
        self.push(0, Some(request), cost)
    }

    /// The same when a model call has been billed to come to the question: it chose the action, or read the answer.
    fn decide_and_ask(&mut self, path: &'static str, body: Value, cost: u32) -> &mut Step {
        let request = self.request(path, body);
        self.push(1, Some(request), cost)
    }

    /// What is told once the latest step is done.
    fn tell(&mut self, path: &'static str, body: Value) {
        let request = self.request(path, body);
        if let Some(step) = self.steps.last_mut() {
            step.tell = Some(request);
        }
    }

    fn tell_with(&mut self, path: &'static str, body: Value, carries: &'static str) {
        self.tell(path, body);
        if let Some(tell) = self.steps.last_mut().and_then(|step| step.tell.as_mut()) {
            tell.carries = Some(carries);
        }
    }

    /// The guards are expected to end it at the step that has `steps` before it.
    fn stops_after(&mut self, steps: usize) {
        self.stops_at = Some(steps);
    }
}

pub(super) static SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "healthy",
        about: "conversations as they should be, through every guard: nothing may be blocked",
        reasons: &[],
        weight: 60,
        variants: SECTIONS.len() as u32,
        write: healthy,
    },
    Scenario {
        name: "ai-task-retry",
        about: "an AI Task is retried for an order number that is missing, or that has the wrong format",
        reasons: &[Reason::InputMissingPrerequisiteSignal, Reason::RetryCapReached],
        weight: 9,
        variants: 4,
        write: ai_task_retry,
    },
    Scenario {
        name: "handoff-cycle",
        about: "two or three bots hand a conversation over in a circle",
        reasons: &[Reason::CycleDetected, Reason::HandoffCeilingReached],
        weight: 5,
        variants: 3,
        write: handoff_cycle,
    },
    Scenario {
        name: "kb-gap",
        about: "the knowledge base is searched ten times for a topic that nobody documented",
        reasons: &[Reason::KbRequeryCapReached, Reason::ConfidenceAlreadyMet],
        weight: 6,
        variants: 4,
        write: kb_gap,
    },
    Scenario {
        name: "kb-rephrase",
        about: "a question is rephrased until the knowledge base should know the answer",
        reasons: &[Reason::LowConfidenceReQueryBlocked, Reason::KbQueryCapReached],
        weight: 5,
        variants: 2,
        write: kb_rephrase,
    },
    Scenario {
        name: "action-spiral",
        about: "an autonomous agent repeats its actions, because none of them gives what the goal needs",
        reasons: &[
            Reason::ConsecutiveSameActionSpiral,
            Reason::SameActionFrequencySpiral,
            Reason::IdenticalCallSpiral,
            Reason::ActionCycle,
            Reason::TotalActionCeiling,
        ],
        weight: 4,
        variants: 4,
        write: action_spiral,
    },
    Scenario {
        name: "reprompt",
        about: "a step asks again and again although the answer cannot contain what it wants",
        reasons: &[Reason::EntitySignalAbsent, Reason::RepromptCeilingReached],
        weight: 6,
        variants: 3,
        write: reprompt,
    },
    Scenario {
        name: "slot-filling",
        about: "users say an address, a number or a date in words, and are asked for it up to 15 times",
        reasons: &[Reason::ColloquialFormatDetected, Reason::AttemptCeilingReached],
        weight: 6,
        variants: 6,
        write: slot_filling,
    },
    Scenario {
        name: "api-outage",
        about: "an upstream is down for a third of the demo, and comes back through half-open probes",
        reasons: &[Reason::CircuitJustTripped, Reason::CircuitOpen],
        weight: 20,
        variants: 1,
        write: api_outage,
    },
    Scenario {
        name: "api-flaky",
        about: "one customer's requests fail while the endpoint works for everyone else",
        reasons: &[Reason::SessionRetryCeiling],
        weight: 2,
        variants: 1,
        write: api_flaky,
    },
    Scenario {
        name: "agent-loop",
        about: "a Bedrock-style agent makes the same call, or the same round of calls, again and again",
        reasons: &[Reason::LoopDetected, Reason::CallCeiling],
        weight: 3,
        variants: 3,
        write: agent_loop,
    },
    Scenario {
        name: "agent-stall",
        about: "an agent gets nowhere, by what its calls give",
        reasons: &[
            Reason::StalledIdentical,
            Reason::StalledCycle,
            Reason::StalledNoNews,
            Reason::StalledSameError,
            Reason::StalledMessages,
            Reason::StalledUnmoved,
            Reason::StalledPutBack,
            Reason::StalledSameResult,
            Reason::StalledFailing,
        ],
        weight: 3,
        variants: 9,
        write: agent_stall,
    },
    Scenario {
        name: "agent-run",
        about: "an agent behind the gateway asks its model again and again with nothing new in the conversation",
        reasons: &[Reason::RunStalled],
        weight: 2,
        variants: 1,
        write: agent_run,
    },
    Scenario {
        name: "agent-budget",
        about: "a run spends more than it may, calls a model without a price, or calls one step too often",
        reasons: &[Reason::BudgetExceeded, Reason::UnknownModel, Reason::CallCapReached],
        weight: 3,
        variants: 3,
        write: agent_budget,
    },
    Scenario {
        name: "agent-leak",
        about: "a worker that sets money aside and dies, over and over",
        reasons: &[Reason::TooManyReservations],
        // A thousand requests would hide all others in the charts: it comes if it is named.
        weight: 0,
        variants: 1,
        write: leaked_reservations,
    },
    Scenario {
        name: "tool-repeat",
        about: "a tool is called for what it has given already",
        reasons: &[Reason::ToolLimit, Reason::ExactDuplicate, Reason::SimilarQuery],
        weight: 3,
        variants: 3,
        write: tool_repeat,
    },
    Scenario {
        name: "action-group",
        about: "a Lambda action fails for good, and the agent tries it again",
        reasons: &[Reason::PermanentFailure],
        weight: 2,
        variants: 1,
        write: action_group,
    },
];

// ------------------------------------------------------------------------------------------------ flow guards

/// Retries a flow is set to when nobody thought about them.
const TASK_RETRIES: usize = 5;

fn ai_task_retry(talk: &mut Talk<'_>, variant: u32) {
    const LATE: [&str; 4] = [
        "I haven't received my package yet",
        "where is my parcel, it should be here by now",
        "the delivery is late again, please check",
        "nothing has arrived and I need it this week",
    ];
    let (task, message, error, retries) = match variant {
        0 => ("extract_order_number", talk.dice.pick(&LATE).to_owned(), "output does not match ^ORD-\\d{8}$", 0),
        1 => ("extract_date", "book me in as soon as there is room".to_owned(), "output is no date", 0),
        2 => ("extract_amount", "the refund was too small".to_owned(), "output is no amount", 0),
        // Seven digits where eight are asked for: the signal is there, the format never will be.
        _ => {
            let number = talk.dice.between(1_000_000, 9_999_999);
            ("extract_order_number", format!("my order ORD-{number} is delayed"), "output does not match ^ORD-\\d{8}$", 2)
        }
    };
    talk.spend(1);
    for _ in 0..TASK_RETRIES {
        talk.ask("/guard/ai-task-retry", json!({"task_name": task, "user_message": message, "validation_error": error}), 1);
    }
    talk.stops_after(1 + retries);
}

fn handoff_cycle(talk: &mut Talk<'_>, variant: u32) {
    let (bots, allowed): (&[&str], usize) = match variant {
        0 => (&["billing-bot", "subscription-bot"], 4),
        1 => (&["returns-bot", "shipping-bot"], 4),
        _ => (&["sales-bot", "support-bot", "billing-bot"], 6),
    };
    // Until the session times out.
    for bot in bots.iter().cycle().take(12) {
        // The orchestrator's decision is billed before, the bot's own classification after.
        talk.decide_and_ask("/guard/handoff", json!({"source_bot": "orchestrator", "target_bot": bot}), 1);
    }
    talk.stops_after(allowed);
}

fn kb_gap(talk: &mut Talk<'_>, variant: u32) {
    const QUERY: u32 = 2;
    let (topic, query, confidence) = match variant {
        0 => ("solar-mode-offline", "does solar mode work offline", (18, 38)),
        1 => ("export-to-datev", "can I export invoices to datev", (22, 41)),
        2 => ("group-discount-schools", "is there a discount for schools", (30, 47)),
        // The loop asks again although the answer is good enough.
        _ => ("refund-policy", "how do refunds work", (78, 92)),
    };
    talk.spend(QUERY);
    for _ in 0..10 {
        let last = talk.dice.hundredths(confidence.0, confidence.1);
        talk.ask("/guard/kb-requery", json!({"topic_hash": topic, "query_text": query, "last_confidence": last}), QUERY);
    }
    talk.stops_after(if variant < 3 { 1 + 2 } else { 1 });
}

fn kb_rephrase(talk: &mut Talk<'_>, variant: u32) {
    const TOPICS: [[&str; 3]; 3] = [
        ["does solar mode work offline", "solar mode offline: does it work", "work offline, does solar mode"],
        ["can I export invoices to datev", "export invoices to datev, can I", "to datev can I export invoices"],
        ["warranty for refurbished devices", "refurbished devices warranty", "refurbished devices, warranty for"],
    ];
    let topic = TOPICS[talk.dice.below(TOPICS.len() as u64) as usize];
    // Below 0.5 the topic is not documented; from there to the flow's own 0.6 it is asked until the cap.
    let (confidence, rounds, allowed) = if variant == 0 { ((12, 44), 3, 1) } else { ((52, 59), 5, 2) };
    for round in 0..rounds {
        let query = topic[round % topic.len()];
        talk.ask("/guard/kb-requery/check", json!({"query": query}), 2);
        let score = talk.dice.hundredths(confidence.0, confidence.1);
        talk.tell("/guard/kb-requery/record", json!({"query": query, "confidence_score": score, "retrieved_chunks": 3}));
    }
    talk.stops_after(allowed);
}

fn action_spiral(talk: &mut Talk<'_>, variant: u32) {
    let act = |talk: &mut Talk<'_>, action: &str, parameters: Value| {
        talk.decide_and_ask("/guard/agent-action", json!({"action_name": action, "action_params": parameters}), 0);
        talk.tell("/guard/agent-action/result", json!({"action_name": action, "result_summary": "no subscription tier in it"}));
    };
    match variant {
        // The same action with rephrased input.
        0 => {
            for turn in 0..20 {
                act(talk, "get_customer_profile", json!({"include": format!("tier, try {turn}")}));
            }
            talk.stops_after(3);
        }
        // Two in turn: a circle (which is only watched), and then too often the same.
        1 => {
            for turn in 0..20 {
                let action = if turn % 2 == 0 { "get_customer_profile" } else { "get_recent_orders" };
                act(talk, action, json!({"try": turn}));
            }
            talk.stops_after(12);
        }
        // The very same call between others, four times: watched too, and the agent gives up by itself.
        2 => {
            for other in ["get_recent_orders", "get_invoices", "get_tickets"] {
                act(talk, "get_customer_profile", json!({"customer": 7}));
                act(talk, other, json!({"customer": 7}));
            }
            act(talk, "get_customer_profile", json!({"customer": 7}));
        }
        // Everything there is, in no order: only the total tells. Without it the agent's own limit is 40.
        _ => {
            const ACTIONS: [&str; 7] =
                ["get_profile", "get_orders", "get_invoices", "get_tickets", "get_devices", "get_notes", "get_contracts"];
            let mut turn = 0;
            for round in 0..6_usize {
                // Each round goes through them with another stride, so that no two rounds are alike.
                for place in 0..ACTIONS.len() {
                    if turn < 40 {
                        act(talk, ACTIONS[place * (round + 1) % ACTIONS.len()], json!({"turn": turn}));
                    }
                    turn += 1;
                }
            }
            talk.stops_after(20);
        }
    }
}

fn reprompt(talk: &mut Talk<'_>, variant: u32) {
    const UNCLEAR: [&str; 5] = ["the thing from before", "you know what I mean", "hmm", "it is complicated", "the other one"];
    let (step, allowed) = match variant {
        0 => ("capture_email", 0),
        1 => ("capture_order_id", 0),
        _ => ("choose_topic", 3),
    };
    for _ in 0..8 {
        let said = if allowed == 0 { "I would rather not say" } else { talk.dice.pick(&UNCLEAR) };
        // The generated clarification, and reading the answer to it.
        talk.ask("/guard/no-match-reprompt", json!({"step_id": step, "user_utterance": said}), 2);
    }
    talk.stops_after(allowed);
}

fn slot_filling(talk: &mut Talk<'_>, variant: u32) {
    const REPROMPTS: usize = 15;
    let (step, entity, said) = match variant {
        0 | 4 => ("ask_email", "email", "john at example dot com"),
        1 => ("ask_phone", "phone", "five five five eight six seven five three oh nine"),
        2 => ("ask_date", "date", "the fifteenth"),
        3 => ("ask_order", "order_id", "the order I made with my sister"),
        _ => ("ask_email", "email", "I do not know"),
    };
    for _ in 0..REPROMPTS {
        let body = json!({"capture_step": step, "entity_type": entity, "user_utterance": said});
        // Reading the answer is billed each time; the generated reprompt only when it is let pass.
        let asked = talk.decide_and_ask("/guard/capture-slot-fill", body, 1);
        if variant == 4 {
            // This user does not read hints: they are shown until they are used up.
            asked.goes_on_after = &[Reason::ColloquialFormatDetected];
        }
    }
    talk.stops_after(match variant {
        // The hint is shown, and the next answer is right.
        0..=3 => 0,
        4 => 10,
        _ => 4,
    });
}

pub(super) const OUTAGE_ENDPOINT: &str = "orders-api";
pub(super) const FLAKY_ENDPOINT: &str = "crm-api";

fn api_outage(talk: &mut Talk<'_>, _variant: u32) {
    // One less than a session may: here it is the circuit that stops them, not their own ceiling.
    const TRIES: u64 = 3;
    for attempt in 0..TRIES {
        let is_down = talk.setting.is_down(talk.setting.start_millis + attempt * talk.gap_millis);
        let step = talk.ask("/guard/api-circuit/check", json!({"endpoint_key": OUTAGE_ENDPOINT}), 1);
        step.would_succeed = !is_down;
        let (outcome, status, latency) =
            if is_down { ("failure", 503, talk.dice.between(900, 3000)) } else { ("success", 200, talk.dice.between(40, 220)) };
        let result = json!({"endpoint_key": OUTAGE_ENDPOINT, "attempt": attempt + 1, "outcome": outcome, "status_code": status, "latency_ms": latency});
        talk.tell_with("/guard/api-circuit/record", result, "permit_id");
        if !is_down {
            // The answer is put into words.
            talk.spend(1);
            return;
        }
    }
}

fn api_flaky(talk: &mut Talk<'_>, _variant: u32) {
    for attempt in 1..=6 {
        talk.ask("/guard/api-circuit/check", json!({"endpoint_key": FLAKY_ENDPOINT}), 1);
        let latency = talk.dice.between(200, 800);
        let result =
            json!({"endpoint_key": FLAKY_ENDPOINT, "attempt": attempt, "outcome": "failure", "status_code": 502, "latency_ms": latency});
        talk.tell_with("/guard/api-circuit/record", result, "permit_id");
    }
    talk.stops_after(3);
}

// ------------------------------------------------------------------------------------------- agents and tools

/// Where frameworks end a run by themselves.
const RECURSION_LIMIT: usize = 25;

fn agent_loop(talk: &mut Talk<'_>, variant: u32) {
    for turn in 0..RECURSION_LIMIT {
        let body = match variant {
            0 => json!({"tool": "orders::get_order", "args": {"id": "7"}}),
            1 if turn % 2 == 0 => json!({"tool": "orders::list", "args": {"page": 1}}),
            1 => json!({"tool": "customers::get", "args": {"id": "c-9"}}),
            // A ceiling for one call, whatever comes between.
            _ if turn % 2 == 0 => json!({"tool": "kb::retrieve", "args": {"query": "refunds"}, "max_calls": 2, "window_seconds": 3600}),
            _ => json!({"tool": format!("notes::write_{turn}"), "max_calls": 2, "window_seconds": 3600}),
        };
        talk.decide_and_ask("/guard/loop", body, 0);
    }
    talk.stops_after([2, 5, 4][variant as usize]);
}

fn agent_stall(talk: &mut Talk<'_>, variant: u32) {
    // Irregular, so that it is no circle, and yet nothing in it is new.
    const WANDERING: [u64; 8] = [0, 1, 2, 0, 2, 1, 2, 0];
    const MISTAKES: [&str; 5] = ["no such table", "connection refused", "syntax error", "permission denied", "statement timeout"];
    for turn in 0..RECURSION_LIMIT as u64 {
        let body = match variant {
            0 => json!({"tool": "read_page", "args": {"url": "/status"}, "result": "maintenance"}),
            1 => json!({"tool": if turn % 2 == 0 { "list_tickets" } else { "read_ticket" }, "args": {"id": 3}, "result": "unchanged"}),
            2 => {
                let place = WANDERING[turn as usize % WANDERING.len()];
                json!({"tool": "read_file", "args": {"path": format!("notes-{place}.txt")}, "result": format!("notes {place}")})
            }
            3 => json!({"tool": "run_query", "args": {"table": format!("t{turn}")}, "error": "permission denied for schema reporting"}),
            4 => json!({"message": "Let me think about how to approach this."}),
            5 if turn % 2 == 0 => {
                json!({"tool": "write_file", "args": {"path": "fix.py", "content": format!("try {turn}")}, "result": "ok"})
            }
            5 => json!({"tool": "run_tests", "args": {"path": "tests"}, "error": "1 failed: assert 6 == 7"}),
            6 => {
                let (old, new) = if turn % 2 == 0 { ("retries = 3", "retries = 5") } else { ("retries = 5", "retries = 3") };
                json!({"tool": "edit_file", "args": {"path": "settings.py", "old_str": old, "new_str": new}, "result": "ok"})
            }
            7 => json!({"tool": "fetch_page", "args": {"url": format!("/reports/{turn}")}, "result": "Access denied"}),
            _ => json!({"tool": "run_query", "args": {"attempt": turn}, "error": MISTAKES[turn as usize % MISTAKES.len()]}),
        };
        talk.decide_and_ask("/guard/stall", body, 0);
    }
    talk.stops_after([3, 5, 8, 4, 2, 23, 4, 11, 7][variant as usize]);
}

fn agent_run(talk: &mut Talk<'_>, _variant: u32) {
    for turn in 0..RECURSION_LIMIT as u64 {
        let step =
            json!({"id": format!("call_{turn}"), "tool": "search_orders", "args": "9f2c", "result": "77ab", "round": turn.to_string()});
        talk.decide_and_ask("/guard/agent-run", json!({"model": "gpt-4o", "steps": [step]}), 0);
    }
    talk.stops_after(3);
}

fn agent_budget(talk: &mut Talk<'_>, variant: u32) {
    let budget = json!({"budget": "run", "max_usd": 0.05});
    let with = |more: Value| {
        let mut all = budget.clone();
        if let (Value::Object(all), Value::Object(more)) = (&mut all, more) {
            all.extend(more);
        }
        all
    };
    for _ in 0..15 {
        match variant {
            0 => {
                talk.ask("/guard/budget/reserve", with(json!({"usd": 0.012, "tokens": 1200})), 1);
                talk.tell_with("/guard/budget/commit", with(json!({"usd": 0.012, "tokens": 1200})), "reservation_id");
            }
            1 => {
                let usage = json!({"model": "acme-experimental-1", "input_tokens": 900, "output_tokens": 300});
                talk.ask("/guard/budget/check", with(usage), 1);
            }
            _ => {
                let call = json!({"key": "summarise", "cap": 2, "usd": 0.001});
                talk.ask("/guard/budget/check", with(call.clone()), 1);
                talk.tell("/guard/budget/record", with(call));
            }
        }
    }
    talk.stops_after([4, 0, 2][variant as usize]);
}

fn leaked_reservations(talk: &mut Talk<'_>, _variant: u32) {
    // Quick: all of them must fit into the demo.
    talk.gap_millis = (talk.gap_millis / 400).max(1);
    for _ in 0..MAX_STORED_RESERVATIONS + 12 {
        talk.ask("/guard/budget/reserve", json!({"budget": "worker", "max_usd": 100, "usd": 0.0001}), 1);
    }
    talk.stops_after(MAX_STORED_RESERVATIONS);
}

fn tool_repeat(talk: &mut Talk<'_>, variant: u32) {
    let calls: &[(&str, Value)] = &match variant {
        0 => ["login handler", "password reset", "session cookie", "token refresh", "audit trail"]
            .map(|query| ("search_codebase", json!({"query": query})))
            .to_vec(),
        1 => [1, 2, 1, 1].map(|file| ("read_file", json!({"path": format!("src/part-{file}.rs")}))).to_vec(),
        _ => ["refund policy for damaged items", "the refund policy for damaged items"]
            .map(|query| ("search_knowledge", json!({"query": query})))
            .to_vec(),
    };
    for (tool, args) in calls {
        let step = talk.decide_and_ask("/guard/tool-call", json!({"turn_id": "turn-1", "tool": tool, "args": args}), 1);
        // The refusal is the tool's result: the model reads it and goes on.
        step.goes_on_after = &[Reason::ToolLimit, Reason::ExactDuplicate, Reason::SimilarQuery];
    }
    talk.spend(1);
}

fn action_group(talk: &mut Talk<'_>, _variant: u32) {
    let order = talk.dice.between(100, 999).to_string();
    let call =
        json!({"action_group": "orders", "function": "cancel_order", "parameters": [{"name": "id", "type": "string", "value": order}]});
    for _ in 0..12 {
        talk.decide_and_ask("/guard/action-group", call.clone(), 1);
        let mut result = call.clone();
        result["failed"] = true.into();
        talk.tell("/guard/action-group/result", result);
    }
    talk.stops_after(2);
}

// ---------------------------------------------------------------------------------------------------- healthy

/// What a conversation as it should be is made of, one piece a guard.
const SECTIONS: &[fn(&mut Talk<'_>)] = &[
    retry_that_helps,
    hand_over_once,
    requery_that_finds,
    ask_knowledge,
    work_towards_goal,
    clarify,
    capture,
    call_upstream,
    vary_calls,
    make_progress,
    stay_within_budget,
    use_tools,
    poll_action,
];

/// One piece that every variant has for itself, and up to two others.
fn healthy(talk: &mut Talk<'_>, variant: u32) {
    let first = variant as usize % SECTIONS.len();
    let mut others: Vec<usize> = (0..SECTIONS.len()).filter(|section| *section != first).collect();
    talk.dice.shuffle(&mut others);
    let more = talk.dice.below(3) as usize;
    SECTIONS[first](talk);
    for section in &others[..more] {
        SECTIONS[*section](talk);
    }
    // The reply.
    talk.spend(1);
}

fn retry_that_helps(talk: &mut Talk<'_>) {
    let number = talk.dice.between(10_000_000, 99_999_999);
    talk.spend(1);
    let body = json!({"task_name": "extract_order_number", "user_message": format!("my order ORD-{number} is late"), "validation_error": "not JSON"});
    talk.ask("/guard/ai-task-retry", body, 1);
}

fn hand_over_once(talk: &mut Talk<'_>) {
    let bots = ["billing-bot", "returns-bot", "support-bot", "sales-bot"];
    let first = talk.dice.below(4) as usize;
    for place in 0..talk.dice.between(1, 2) as usize {
        let body = json!({"source_bot": "orchestrator", "target_bot": bots[(first + place) % bots.len()]});
        talk.decide_and_ask("/guard/handoff", body, 1);
    }
}

fn requery_that_finds(talk: &mut Talk<'_>) {
    talk.spend(2);
    let confidence = talk.dice.hundredths(50, 72);
    let body = json!({"topic_hash": "shipping-times", "query_text": "how long does shipping take", "last_confidence": confidence});
    talk.ask("/guard/kb-requery", body, 2);
}

fn ask_knowledge(talk: &mut Talk<'_>) {
    let query = talk.dice.pick(&["how do refunds work", "where can I change my address", "what does express shipping cost"]);
    let check = json!({"query": query});
    if talk.dice.below(4) == 0 {
        // The search itself failed: a second try is fair.
        talk.ask("/guard/kb-requery/check", check.clone(), 2);
        talk.tell("/guard/kb-requery/record", json!({"query": query, "confidence_score": 0.0, "retrieved_chunks": 0}));
    }
    talk.ask("/guard/kb-requery/check", check, 2);
    let score = talk.dice.hundredths(74, 97);
    talk.tell("/guard/kb-requery/record", json!({"query": query, "confidence_score": score, "retrieved_chunks": 4}));
}

fn work_towards_goal(talk: &mut Talk<'_>) {
    let mut actions = ["get_profile", "get_orders", "get_invoices", "create_ticket", "send_mail", "get_devices"];
    talk.dice.shuffle(&mut actions);
    let count = talk.dice.between(2, 5) as usize;
    for action in &actions[..count] {
        talk.decide_and_ask("/guard/agent-action", json!({"action_name": action, "action_params": {"customer": 12}}), 0);
        talk.tell("/guard/agent-action/result", json!({"action_name": action, "result_summary": "found"}));
    }
}

fn clarify(talk: &mut Talk<'_>) {
    for said in &["it is jo@", "jo@example.com"][..talk.dice.between(1, 2) as usize] {
        talk.ask("/guard/no-match-reprompt", json!({"step_id": "capture_email", "user_utterance": said}), 2);
    }
}

fn capture(talk: &mut Talk<'_>) {
    for said in &["just a moment", "let me look"][..talk.dice.between(1, 2) as usize] {
        let body = json!({"capture_step": "ask_order", "entity_type": "order_id", "user_utterance": said});
        talk.decide_and_ask("/guard/capture-slot-fill", body, 1);
    }
}

fn call_upstream(talk: &mut Talk<'_>) {
    let endpoint = talk.dice.pick(&["catalog-api", "shipping-api", "payments-api"]);
    for _ in 0..talk.dice.between(1, 2) {
        talk.ask("/guard/api-circuit/check", json!({"endpoint_key": endpoint}), 1);
        let latency = talk.dice.between(30, 250);
        let result = json!({"endpoint_key": endpoint, "attempt": 1, "outcome": "success", "status_code": 200, "latency_ms": latency});
        talk.tell_with("/guard/api-circuit/record", result, "permit_id");
    }
}

fn vary_calls(talk: &mut Talk<'_>) {
    for page in 0..talk.dice.between(3, 5) {
        // Two in a row are no loop.
        talk.decide_and_ask("/guard/loop", json!({"tool": "orders::list", "args": {"page": page / 2}}), 0);
    }
}

fn make_progress(talk: &mut Talk<'_>) {
    for line in 0..talk.dice.between(3, 6) {
        let body = json!({"tool": "read_file", "args": {"path": "log.txt", "line": line}, "result": format!("entry {line}")});
        talk.decide_and_ask("/guard/stall", body, 0);
    }
}

fn stay_within_budget(talk: &mut Talk<'_>) {
    for _ in 0..talk.dice.between(2, 4) {
        let usd = talk.dice.between(2, 14) as f64 / 1000.0;
        talk.ask("/guard/budget/reserve", json!({"budget": "chat", "max_usd": 0.25, "usd": 0.02, "tokens": 2000}), 1);
        talk.tell_with("/guard/budget/commit", json!({"budget": "chat", "usd": usd, "tokens": 1500}), "reservation_id");
    }
}

fn use_tools(talk: &mut Talk<'_>) {
    let calls = [
        ("search_knowledge", json!({"query": "opening hours on sunday"})),
        ("read_file", json!({"path": "hours.md"})),
        ("search_knowledge", json!({"query": "parking near the shop"})),
    ];
    for (tool, args) in &calls[..talk.dice.between(2, 3) as usize] {
        talk.decide_and_ask("/guard/tool-call", json!({"turn_id": "turn-1", "tool": tool, "args": args}), 1);
    }
}

fn poll_action(talk: &mut Talk<'_>) {
    let call =
        json!({"action_group": "reports", "function": "get_status", "parameters": [{"name": "id", "type": "string", "value": "r-1"}]});
    // One failure is no reason to give up, and asking again for news is fine.
    for failed in &[true, false, false, false][..talk.dice.between(2, 4) as usize] {
        talk.decide_and_ask("/guard/action-group", call.clone(), 1);
        let mut result = call.clone();
        result["failed"] = (*failed).into();
        talk.tell("/guard/action-group/result", result);
    }
}
