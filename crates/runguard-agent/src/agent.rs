//! The loop: only its control flow. What is judged, counted, trimmed and asked stands in modules of its own.
//!
//! One iteration: pre-flight checks, context, question to the model with what it may cost set aside, accounting, then the
//! tools it asked for, or the end of the turn. The state is a value that each phase takes and gives back ([`crate::state`]),
//! so there is one end, and no way around it.

mod ask;
mod tools;

use crate::context;
use crate::event::{Event, GuardAction, GuardEvent, Observer};
use crate::guardrails::{Guardrails, Judgement};
use crate::message::{Message, Role, Tag};
use crate::provider::{self, Finish, Provider};
use crate::report::{Report, Stop};
use crate::session::{Record, Session};
use crate::settings::{Limits, SETTINGS_FILE, Settings, SettingsError};
use crate::spend::{self, Allowance, Counters};
use crate::state::{AgentState, End, Ended, Machine, Running, WaitingForInput};
use crate::tool::mcp::McpServer;
use crate::tool::{Tool, ToolNameError, ToolSet, files, http_get, shell};
use runguard_core::budget::{Budget, BudgetExceeded, Cost, Unit};
use runguard_core::ledger::nano_dollars;
use runguard_core::prices::{Price, Prices, UnknownModel, Usage, most_words};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// A model, its tools and its limits. It can run many sessions, also at the same time.
#[derive(Debug)]
pub struct Agent {
    settings: Settings,
    provider: Arc<dyn Provider>,
    tools: ToolSet,
    guardrails: Guardrails,
    price: Price,
    budget: Option<Budget>,
    /// Held so that they live as long as their tools.
    servers: Vec<McpServer>,
}

/// Why an agent cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error("{0}")]
    Provider(String),
    #[error("{0}")]
    Price(String),
    #[error(transparent)]
    Tool(#[from] ToolNameError),
    #[error("the tool '{name}' cannot be used: {problem}")]
    BuiltIn { name: &'static str, problem: String },
    #[error("MCP server '{name}': {problem}")]
    Mcp { name: String, problem: String },
}

/// What a run begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// A person says something.
    Prompt(String),
    /// Goes on where the session stopped.
    Continue,
}

/// What to do with a tool that was running when an earlier run was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Interrupted {
    /// The model is told that the outcome is not known.
    #[default]
    Tell,
    /// It is run again.
    RunAgain,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RunOptions {
    /// A finished turn waits for the next message instead of ending the session.
    pub interactive: bool,
    pub interrupted: Interrupted,
}

impl Agent {
    /// Connects to the provider and the MCP servers, and prepares the tools.
    pub async fn build(settings: Settings) -> Result<Self, BuildError> {
        settings.check()?;
        let provider = provider::connect(&settings.provider).map_err(BuildError::Provider)?;
        let mut tools = built_in_tools(&settings)?;
        let mut servers = Vec::new();
        for server in &settings.mcp {
            let problem = |problem| BuildError::Mcp { name: server.name.clone(), problem };
            let server = McpServer::connect(server).await.map_err(problem)?;
            for tool in server.tools() {
                tools.add(tool)?;
            }
            servers.push(server);
        }
        Ok(Self { servers, ..Self::with_parts(settings, provider, tools)? })
    }

    /// An agent from parts of your own.
    pub fn with_parts(settings: Settings, provider: Arc<dyn Provider>, tools: ToolSet) -> Result<Self, BuildError> {
        settings.check()?;
        let price = price_of(&settings)?;
        let guardrails = Guardrails::new(settings.guardrails.clone());
        Ok(Self { settings, provider, tools, guardrails, price, budget: None, servers: Vec::new() })
    }

    /// All runs draw on this budget too.
    #[must_use]
    pub fn within(mut self, budget: Budget) -> Self {
        self.budget = Some(budget);
        self
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub fn tools(&self) -> &ToolSet {
        &self.tools
    }

    /// Whether little is left of the session's tokens or dollars.
    pub fn near_budget(&self, session: &Session) -> bool {
        let allowance = Allowance::new(&self.settings.limits, self.price.clone(), session.counters(), self.budget.as_ref());
        allowance.is_near(&self.settings.guardrails)
    }

    /// Ends the MCP servers. Dropping the agent ends them too, without waiting.
    pub async fn close(&self) {
        for server in &self.servers {
            server.close().await;
        }
    }

    /// Runs until the turn is over, or something ends it. Never fails: an error is an end too, and the report says which.
    pub async fn run(
        &self,
        session: &mut Session,
        input: Input,
        options: RunOptions,
        cancel: &CancellationToken,
        observer: &mut dyn Observer,
    ) -> Report {
        self.run_within(session, input, options, &self.settings.limits, cancel, observer).await
    }

    /// As [`Self::run`], with limits of its own.
    pub async fn run_within(
        &self,
        session: &mut Session,
        input: Input,
        options: RunOptions,
        limits: &Limits,
        cancel: &CancellationToken,
        observer: &mut dyn Observer,
    ) -> Report {
        let allowance = Allowance::new(limits, self.price.clone(), session.counters(), self.budget.as_ref());
        let started = Instant::now();
        let before = Duration::from_millis(session.counters().elapsed_ms);
        let timeout = Duration::from_millis(limits.timeout.as_millis());
        let deadline = (!timeout.is_zero()).then(|| started + timeout.saturating_sub(before));
        let run = Run {
            agent: self,
            limits: limits.clone(),
            options,
            cancel,
            observer,
            allowance,
            counters: session.counters().clone(),
            detectors: session.detectors().clone(),
            session,
            started,
            before,
            deadline,
            pending_nudge: None,
            last_finish: None,
            partial: String::new(),
            context_was_halved: false,
        };
        run.drive(input).await
    }
}

fn built_in_tools(settings: &Settings) -> Result<ToolSet, BuildError> {
    let root = settings.tools.root.as_path();
    let mut protected = settings.tools.protected.clone();
    protected.push(settings.sessions.folder.clone());
    // What the next start here would read, whether it is there yet or not.
    protected.push(PathBuf::from(SETTINGS_FILE));
    let mut tools = ToolSet::new();
    for name in &settings.tools.allow {
        let (name, tool): (&'static str, Result<Arc<dyn Tool>, String>) = match name.as_str() {
            // A page that is cut in the middle could not say where to go on.
            "read_file" => (
                "read_file",
                shared(files::ReadFile::new(root, &protected).map(|tool| tool.with_most_bytes(settings.tools.max_result_bytes))),
            ),
            "write_file" => ("write_file", shared(files::WriteFile::new(root, &protected))),
            "list_directory" => ("list_directory", shared(files::ListDirectory::new(root, &protected))),
            "shell" => ("shell", shared(shell::Shell::new(root))),
            // The settings were checked: nothing else is left.
            _ => ("http_get", shared(http_get::HttpGet::new(&settings.tools.private_hosts))),
        };
        tools.add(tool.map_err(|problem| BuildError::BuiltIn { name, problem })?)?;
    }
    Ok(tools)
}

fn shared<T: Tool + 'static, E: std::fmt::Display>(tool: Result<T, E>) -> Result<Arc<dyn Tool>, String> {
    tool.map(|tool| Arc::new(tool) as Arc<dyn Tool>).map_err(|problem| problem.to_string())
}

/// A hard limit in dollars needs a price: without one the run would be refused anyway, and late.
fn price_of(settings: &Settings) -> Result<Price, BuildError> {
    let mut prices = Prices::bundled();
    for (model, price) in &settings.prices {
        prices.set(model, price.clone());
    }
    let model = settings.provider.priced_as();
    if let Some((price, _)) = prices.price(model) {
        return Ok(price.clone());
    }
    if settings.limits.cost().is_none() {
        return Ok(Price::default());
    }
    let unknown = prices.cost(model, &Usage::default(), &UnknownModel::Error).err().map(|problem| problem.which()).unwrap_or_default();
    Err(BuildError::Price(format!(
        "{unknown}. A limit in dollars cannot be kept without it: add [prices.\"{model}\"] with `input` and `output` in dollars for a million tokens (0 for a model of your own), name a known model in `provider.price_as`, or set `limits.cost_limit = 0`."
    )))
}

/// An end, on its way.
#[derive(Debug)]
struct Halt {
    end: End,
    stop: Stop,
    message: String,
}

impl Halt {
    fn new(end: End, stop: Stop, message: impl Into<String>) -> Self {
        Self { end, stop, message: message.into() }
    }
}

impl From<std::io::Error> for Halt {
    fn from(problem: std::io::Error) -> Self {
        let message = format!(
            "The session could not be written down ({problem}), so nothing further is done: a step that is not saved could run twice."
        );
        Self::new(End::Error, Stop::NotSaved, message)
    }
}

/// Where a phase has led.
enum Turn {
    Running(Machine<Running>),
    Waiting(Machine<WaitingForInput>),
    Ended(Machine<Ended>, Stop, String),
}

/// One run of a session.
struct Run<'a> {
    agent: &'a Agent,
    limits: Limits,
    options: RunOptions,
    cancel: &'a CancellationToken,
    observer: &'a mut dyn Observer,
    session: &'a mut Session,
    allowance: Allowance,
    /// Ahead of the session's by what is not recorded yet.
    counters: Counters,
    detectors: crate::guardrails::Detectors,
    started: Instant,
    /// Time at work in earlier runs.
    before: Duration,
    deadline: Option<Instant>,
    /// What the model is told after the results of this step.
    pending_nudge: Option<Judgement>,
    last_finish: Option<Finish>,
    /// What came of an answer that did not end.
    partial: String,
    context_was_halved: bool,
}

/// What the model is told when its answer was cut.
const GO_ON: &str = "Your answer was cut off because it reached the output limit. Continue exactly where it stopped, without repeating anything and without comment. If you were about to call a tool, call it.";

impl Run<'_> {
    async fn drive(mut self, input: Input) -> Report {
        let model = self.agent.provider.model().to_owned();
        let resumed = !self.session.messages().is_empty();
        self.observer.event(Event::Started { session: self.session.id().to_owned(), model, resumed });
        let machine = Machine::start();
        let mut turn = match self.begin(input) {
            Ok(()) => {
                self.observer.event(Event::State { state: machine.state() });
                Turn::Running(machine)
            }
            Err(halt) => end(machine, halt),
        };
        let (state, stop, message) = loop {
            turn = match turn {
                Turn::Running(machine) => self.iterate(machine).await,
                Turn::Waiting(machine) => break (machine.state(), Stop::WaitingForInput, "The model has finished its turn.".to_owned()),
                Turn::Ended(machine, stop, message) => break (machine.state(), stop, message),
            };
        };
        self.finish(state, stop, message)
    }

    /// Puts the session in order and takes the input.
    fn begin(&mut self, input: Input) -> Result<(), Halt> {
        if let Some((tokens, cost)) = self.session.open_call() {
            // Nobody knows what the question cost that was under way: all that was set aside.
            self.counters.input_tokens = self.counters.input_tokens.saturating_add(tokens);
            self.counters.cost = self.counters.cost.saturating_add(cost);
            self.counters.estimated = true;
            self.session.record(Record::CallFailed { counters: self.counters.clone() })?;
            self.allowance.record(Cost { usd: cost, tokens });
        }
        let Input::Prompt(prompt) = input else {
            let model_spoke_last = self.session.messages().last().is_none_or(|last| last.role == Role::Assistant);
            if model_spoke_last && !self.session.has_open_tools() {
                let message = "There is nothing to go on with: the model has said what it had to say. Resume the session with a message.";
                return Err(Halt::new(End::Completed, Stop::Completed, message));
            }
            return self.save_state(AgentState::Running, None);
        };
        if self.session.has_open_tools() {
            self.answer_open_calls("Not run: the run was stopped before, and the user has said something else.")?;
        }
        self.agent.guardrails.user_message(&mut self.detectors, &mut self.counters);
        self.push(Message::user(prompt))?;
        self.save_state(AgentState::Running, None)
    }

    async fn iterate(&mut self, machine: Machine<Running>) -> Turn {
        if self.session.has_open_tools() {
            let waiting = machine.call_tools();
            self.observer.event(Event::State { state: waiting.state() });
            return match self.tools().await {
                Ok(None) => {
                    let running = waiting.results();
                    self.observer.event(Event::State { state: running.state() });
                    Turn::Running(running)
                }
                // A judge ends the run once the results are there.
                Ok(Some(halt)) => end(waiting.results(), halt),
                Err((interruption, halt)) => Turn::Ended(waiting.interrupt(interruption), halt.stop, halt.message),
            };
        }
        if let Err(halt) = self.preflight().and_then(|()| self.fit_context()) {
            return end(machine, halt);
        }
        let answered = match self.ask().await {
            Ok(answered) => answered,
            Err(halt) => return end(machine, halt),
        };
        match self.account(answered) {
            Ok(Next::GoOn) => Turn::Running(machine),
            Ok(Next::EndOfTurn) if self.options.interactive => Turn::Waiting(machine.ask()),
            Ok(Next::EndOfTurn) => end(machine, Halt::new(End::Completed, Stop::Completed, self.completed_message())),
            Err(halt) => end(machine, halt),
        }
    }

    fn preflight(&mut self) -> Result<(), Halt> {
        if self.cancel.is_cancelled() {
            return Err(cancelled());
        }
        if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(self.timed_out());
        }
        let limit = self.limits.max_steps;
        if self.counters.steps >= limit {
            let message = format!("The limit of {limit} steps is reached.");
            return Err(Halt::new(End::MaxSteps, Stop::MaxSteps { limit }, message));
        }
        Ok(())
    }

    fn fit_context(&mut self) -> Result<(), Halt> {
        let window = self.agent.settings.context.window;
        if window == 0 {
            return Ok(());
        }
        let fixed = self.fixed_bytes();
        let bytes = spend::bytes_of(&self.counters, window).saturating_sub(fixed);
        self.trim_to(bytes)?;
        Ok(())
    }

    /// Leaves messages out until the rest has so many bytes. Whether something went.
    fn trim_to(&mut self, bytes: usize) -> Result<bool, Halt> {
        let Some(trim) = context::fit(self.session.messages(), &self.agent.settings.context, bytes, self.counters.left_out) else {
            return Ok(false);
        };
        let going = &self.session.messages()[trim.from..trim.from + trim.count];
        self.counters.left_out += context::real_messages(going);
        let left_out = trim.count;
        self.session.record(Record::Trimmed {
            from: trim.from,
            count: trim.count,
            marker: trim.marker,
            left_out: self.counters.left_out,
        })?;
        self.observer.event(Event::ContextTrimmed { left_out, kept: self.session.messages().len() });
        Ok(true)
    }

    /// What is sent beside the messages.
    fn fixed_bytes(&self) -> usize {
        let tools = self.agent.tools.specs().iter();
        self.agent.settings.system.len() + tools.map(crate::tool::ToolSpec::bytes).sum::<usize>()
    }

    /// The most tokens of its newest messages, of so many bytes or more; where they have fewer, of all that is sent.
    fn most_words(&self, newest: u64) -> u64 {
        let (mut bytes, mut words) = (0, 0);
        for message in self.session.messages().iter().rev() {
            if bytes >= newest {
                return words;
            }
            bytes += message.bytes() as u64;
            words += message.most_words();
        }
        if bytes >= newest {
            return words;
        }
        words
            + most_words(&self.agent.settings.system)
            + self.agent.tools.specs().iter().map(crate::tool::ToolSpec::most_words).sum::<u64>()
    }

    /// Counts an answer, then looks whether it is the last.
    fn account(&mut self, answered: ask::Answered) -> Result<Next, Halt> {
        let ask::Answered { mut message, finish } = answered;
        self.context_was_halved = false;
        self.counters.steps += 1;
        if finish == Finish::MaxTokens {
            // A call whose arguments were cut off is no call.
            drop_cut_calls(&mut message);
        }
        let calls: Vec<_> = message.tool_calls().cloned().collect();
        let passed = self.allowance.exceeded();
        let mut judgement = Judgement::GoOn;
        if !calls.is_empty() && passed.is_none() {
            let calls: Vec<_> = calls.iter().collect();
            judgement = self.agent.guardrails.step(&mut self.detectors, &mut self.counters, &calls);
        }
        let text = message.text();
        let counters = self.timed();
        if message.content.is_empty() {
            // An empty answer cannot be sent back to any provider.
            self.session.record(Record::CallFailed { counters })?;
        } else {
            self.session.record(Record::Reply { message, counters, detectors: self.detectors.clone() })?;
        }
        self.last_finish = Some(finish);
        if let Some(passed) = passed {
            if self.session.has_open_tools() {
                self.answer_open_calls("Not run: the budget was used up.")?;
            }
            return Err(self.over_budget(&passed));
        }
        self.say_near_budget(Near::Reserve);
        if !calls.is_empty() {
            if let Judgement::Stop { .. } = &judgement {
                let halt = self.stopped_by(judgement);
                self.answer_open_calls(&format!("Not run: {}", halt.message))?;
                return Err(halt);
            }
            self.pending_nudge = Some(judgement);
            return Ok(Next::GoOn);
        }
        if finish == Finish::MaxTokens && self.counters.max_tokens_recoveries < self.agent.settings.guardrails.max_tokens_recoveries {
            let judgement = self.agent.guardrails.said(&mut self.detectors, &text);
            if let Judgement::Stop { .. } = &judgement {
                return Err(self.stopped_by(judgement));
            }
            self.counters.max_tokens_recoveries += 1;
            self.push(Message::internal(Tag::MaxTokensRecovery, GO_ON))?;
            let (count, most) = (self.counters.max_tokens_recoveries, self.agent.settings.guardrails.max_tokens_recoveries);
            let message = format!("The answer was cut at its output limit: the model is asked to go on ({count} of {most}).");
            self.observer.event(Event::Notice { message });
            return Ok(Next::GoOn);
        }
        Ok(Next::EndOfTurn)
    }

    fn completed_message(&self) -> String {
        match self.last_finish {
            Some(Finish::MaxTokens) => "The model's answer was cut at its output limit, and was continued as often as allowed.".to_owned(),
            Some(Finish::Refused) => "The model or its provider declined to answer.".to_owned(),
            Some(Finish::EndTurn | Finish::ToolUse) | None => "The model has finished.".to_owned(),
        }
    }

    /// Once a session: a warning that comes every step is none.
    fn say_near_budget(&mut self, near: Near) {
        let (is_near, under_way) = match near {
            Near::Reserve => (self.allowance.is_near(&self.agent.settings.guardrails), Cost::ZERO),
            Near::AnswerShortened { set_aside } => (true, set_aside),
        };
        if is_near && !self.counters.near_budget_said {
            self.counters.near_budget_said = true;
            let (tokens_left, cost_left) = self.allowance.left(under_way);
            self.observer.event(Event::NearBudget { tokens_left, cost_left });
        }
    }

    /// Says that a judge ends the run.
    fn stopped_by(&mut self, judgement: Judgement) -> Halt {
        let Judgement::Stop { rule, count, message, stop } = judgement else {
            return Halt::new(End::Error, Stop::Completed, String::new());
        };
        self.observer.event(Event::Guard(GuardEvent { action: GuardAction::Stop, rule, count, message: message.clone() }));
        Halt::new(End::Error, stop, message)
    }

    /// Tells the model what a judge has to say.
    fn nudge(&mut self, judgement: Judgement) -> Result<(), Halt> {
        if let Judgement::Nudge { rule, count, message } = judgement {
            self.observer.event(Event::Guard(GuardEvent { action: GuardAction::Nudge, rule, count, message: message.clone() }));
            self.push(Message::internal(Tag::GuardNudge, message))?;
        }
        Ok(())
    }

    fn push(&mut self, message: Message) -> Result<(), Halt> {
        let counters = self.timed();
        self.session.record(Record::Message { message, counters, detectors: self.detectors.clone() })?;
        Ok(())
    }

    fn save_state(&mut self, state: AgentState, stop: Option<Stop>) -> Result<(), Halt> {
        let counters = self.timed();
        self.session.record(Record::State { state, stop, counters })?;
        Ok(())
    }

    /// The counters with the time that has passed.
    fn timed(&mut self) -> Counters {
        self.counters.elapsed_ms = (self.before + self.started.elapsed()).as_millis().try_into().unwrap_or(u64::MAX);
        self.counters.clone()
    }

    fn timed_out(&self) -> Halt {
        let limit = self.limits.timeout;
        Halt::new(End::TimedOut, Stop::TimedOut { limit_ms: limit.as_millis() }, format!("The time limit of {limit} is reached."))
    }

    /// More was spent than allowed, or the next question cannot be paid.
    fn over_budget(&self, passed: &BudgetExceeded) -> Halt {
        let (tokens, cost) = (self.counters.total_tokens(), self.counters.cost);
        let stop = match passed.unit {
            Unit::Usd => Stop::CostLimit { spent: cost, limit: nano_dollars(passed.limit) },
            Unit::Tokens | Unit::Calls => Stop::TokenBudget { spent: tokens, limit: passed.limit },
        };
        Halt::new(End::BudgetExceeded, stop, passed.sentences())
    }

    fn finish(mut self, state: AgentState, stop: Stop, message: String) -> Report {
        let mut message = message;
        if stop != Stop::NotSaved
            && let Err(halt) = self.save_state(state, Some(stop.clone()))
        {
            message = format!("{message} Its end could not be written down: {}", halt.message);
        }
        let counters = self.timed();
        let text = if self.partial.is_empty() { self.session.last_text() } else { self.session.text_so_far() + &self.partial };
        let how_to_resume = how_to_resume(&stop);
        let report = Report { message, how_to_resume, text, ..Report::of(self.session.id(), &counters, state, stop) };
        self.observer.event(Event::State { state });
        self.observer.event(Event::Ended(Box::new(report.clone())));
        report
    }
}

/// Why the budget is nearly used up.
enum Near {
    /// The part that is kept in reserve is reached, if it is.
    Reserve,
    /// What is left does not pay for an answer of full length.
    AnswerShortened { set_aside: Cost },
}

/// What follows an answer.
enum Next {
    GoOn,
    EndOfTurn,
}

fn end(machine: Machine<Running>, halt: Halt) -> Turn {
    Turn::Ended(machine.end(halt.end), halt.stop, halt.message)
}

fn cancelled() -> Halt {
    Halt::new(End::Cancelled, Stop::Cancelled, "The run was cancelled.")
}

fn drop_cut_calls(message: &mut Message) {
    use crate::message::Block;
    message.content.retain(|block| !matches!(block, Block::ToolCall(call) if call.parsed().is_err()));
}

fn how_to_resume(stop: &Stop) -> String {
    let text = match stop {
        Stop::Completed => return String::new(),
        Stop::WaitingForInput => "Say something.",
        Stop::Cancelled => "Resume the session: it goes on after the last finished step.",
        Stop::TimedOut { .. } => "Raise `limits.timeout`, then resume the session.",
        Stop::MaxSteps { .. } => "Raise `limits.max_steps`, then resume the session.",
        Stop::TokenBudget { .. } => "Raise `limits.token_budget`, then resume the session.",
        Stop::CostLimit { .. } => "Raise `limits.cost_limit`, then resume the session.",
        Stop::Repetition { .. } | Stop::Cycle { .. } | Stop::Stalled { .. } => {
            "Resume the session with a message that says what to do differently; without one, the same step again ends it at once."
        }
        Stop::Provider { kind, .. } => match kind.as_str() {
            "unauthorised" => "Check the key, then resume the session.",
            "no_credit" => "Top up the provider's account, then resume the session.",
            "context_too_long" => "Lower `context.window` below the model's own, then resume the session.",
            "rejected" | "endless_answer" => "Read the provider's message, change the settings it names, then resume the session.",
            _ => "Resume the session when the provider answers again.",
        },
        Stop::NotSaved => "Make room or repair the folder of the sessions, then resume the session.",
    };
    text.to_owned()
}
