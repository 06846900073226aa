//! A world for the loop: a scripted model and tools that do as they are told, on a clock that only tests move.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use runguard_agent::event::{Event, GuardAction};
use runguard_agent::provider::scripted::{AtEnd, Script, Scripted, ScriptedCall, ScriptedReply};
use runguard_agent::provider::{BoxFuture, Provider};
use runguard_agent::settings::{ProviderKind, ProviderSettings, Settings};
use runguard_agent::tool::{Effect, Tool, ToolOutput, ToolSet, ToolSpec};
use runguard_agent::{Agent, AgentState, Input, Report, RunOptions, Session};
use runguard_core::prices::{PerMillion, Price};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

pub fn settings() -> Settings {
    let mut settings = Settings::new(ProviderSettings::new(ProviderKind::Openai, "scripted"));
    // A token in costs a thousandth of a cent, one out five times that.
    let price = Price::new(PerMillion::from_dollars(10.0).unwrap(), PerMillion::from_dollars(50.0).unwrap());
    settings.prices.insert("scripted".to_owned(), price);
    "Be brief.".clone_into(&mut settings.system);
    settings
}

pub fn says(text: &str) -> ScriptedReply {
    ScriptedReply { text: text.to_owned(), ..ScriptedReply::default() }
}

pub fn calls(calls: &[(&str, Value)]) -> ScriptedReply {
    let calls = calls.iter().map(|(name, arguments)| ScriptedCall { name: (*name).to_owned(), arguments: arguments.clone() });
    ScriptedReply { calls: calls.collect(), ..ScriptedReply::default() }
}

pub fn fails(code: &str) -> ScriptedReply {
    ScriptedReply { error: Some(code.to_owned()), ..ScriptedReply::default() }
}

pub fn model(reply: Vec<ScriptedReply>, at_end: AtEnd) -> Arc<Scripted> {
    Arc::new(Scripted::new(Script { model: "scripted".into(), reply, at_end }))
}

/// Counts how often it ran, and with what.
#[derive(Debug)]
pub struct Toy {
    pub spec: ToolSpec,
    pub runs: AtomicU32,
    pub seen: Mutex<Vec<Value>>,
    pub takes: Duration,
    pub gives: fn(u32, &Value) -> ToolOutput,
}

impl Toy {
    pub fn new(name: &str, gives: fn(u32, &Value) -> ToolOutput) -> Self {
        let spec = ToolSpec {
            name: name.to_owned(),
            description: "A toy.".to_owned(),
            input_schema: json!({"type": "object"}),
            effect: Effect::ReadOnly,
            parallel: true,
        };
        Self { spec, runs: AtomicU32::new(0), seen: Mutex::new(Vec::new()), takes: Duration::ZERO, gives }
    }

    pub fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }
}

impl Tool for Toy {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn call<'a>(&'a self, arguments: &'a Value, cancel: &'a CancellationToken) -> BoxFuture<'a, ToolOutput> {
        Box::pin(async move {
            let run = self.runs.fetch_add(1, Ordering::SeqCst);
            self.seen.lock().unwrap().push(arguments.clone());
            if !self.takes.is_zero() {
                tokio::select! {
                    () = tokio::time::sleep(self.takes) => {}
                    () = cancel.cancelled() => return ToolOutput::error("cancelled"),
                }
            }
            (self.gives)(run, arguments)
        })
    }
}

pub fn same(_: u32, _: &Value) -> ToolOutput {
    ToolOutput::ok("the same as ever")
}

pub fn fresh(run: u32, _: &Value) -> ToolOutput {
    ToolOutput::ok(format!("finding number {run}"))
}

pub fn tools(toys: &[Arc<Toy>]) -> ToolSet {
    let mut tools = ToolSet::new();
    for toy in toys {
        tools.add(Arc::clone(toy) as Arc<dyn Tool>).unwrap();
    }
    tools
}

pub struct Outcome {
    pub report: Report,
    pub events: Vec<Event>,
}

impl Outcome {
    pub fn guards(&self, action: GuardAction) -> Vec<&'static str> {
        let of_action = self.events.iter().filter_map(|event| match event {
            Event::Guard(guard) if guard.action == action => Some(guard.rule),
            _ => None,
        });
        of_action.collect()
    }

    pub fn states(&self) -> Vec<AgentState> {
        let states = self.events.iter().filter_map(|event| if let Event::State { state } = event { Some(*state) } else { None });
        states.collect()
    }

    pub fn count(&self, name: &str) -> usize {
        self.events.iter().filter(|event| event.name() == name).count()
    }

    /// Every stream ends once, with its last chunk.
    pub fn check_streams(&self) {
        let mut ended = std::collections::HashSet::new();
        let mut open = None;
        for event in &self.events {
            let Event::Chunk(chunk) = event else { continue };
            assert!(!ended.contains(&chunk.stream), "a chunk after the end of its stream");
            assert!(open.is_none_or(|open| open == chunk.stream), "two streams at once");
            open = Some(chunk.stream);
            if chunk.finished {
                ended.insert(chunk.stream);
                open = None;
            }
        }
        assert_eq!(open, None, "a stream without its end");
    }
}

pub fn agent(settings: Settings, model: Arc<dyn Provider>, toys: &[Arc<Toy>]) -> Agent {
    Agent::with_parts(settings, model, tools(toys)).unwrap()
}

pub async fn run(agent: &Agent, session: &mut Session, input: Input) -> Outcome {
    run_with(agent, session, input, RunOptions::default(), &CancellationToken::new()).await
}

pub async fn run_with(agent: &Agent, session: &mut Session, input: Input, options: RunOptions, cancel: &CancellationToken) -> Outcome {
    let mut events = Vec::new();
    let report = agent.run(session, input, options, cancel, &mut events).await;
    let outcome = Outcome { report, events };
    outcome.check_streams();
    let ends = outcome.states().into_iter().filter(|state| state.is_end()).count();
    let waits = outcome.report.state == AgentState::WaitingForInput;
    assert_eq!(ends, usize::from(!waits), "one end state");
    assert_eq!(outcome.count("ended"), 1);
    assert!(matches!(outcome.events.last(), Some(Event::Ended(_))), "the end comes last");
    outcome
}

pub fn prompt() -> Input {
    Input::Prompt("Do it.".to_owned())
}
