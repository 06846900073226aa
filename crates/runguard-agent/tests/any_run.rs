//! Whatever the model, the tools, the disk and the user do: one end, every stream ended once, no limit passed.
#![allow(clippy::unwrap_used)]

use crate::world::*;
use proptest::prelude::*;
use runguard_agent::message::{Block, Role};
use runguard_agent::provider::scripted::{AtEnd, ScriptedCall, ScriptedReply};
use runguard_agent::session::{Journal, Record};
use runguard_agent::settings::{ContextSettings, Limits, Strategy as Trimming};
use runguard_agent::tool::{Effect, ToolOutput};
use runguard_agent::{Agent, AgentState, Input, RunOptions, Session, Stop};
use runguard_core::time::Span;
use serde_json::json;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// One run of a session and what the world does meanwhile.
#[derive(Debug, Clone)]
struct Plan {
    replies: Vec<ScriptedReply>,
    at_end: AtEnd,
    limits: Limits,
    context: ContextSettings,
    interactive: bool,
    cancel_after_ms: Option<u64>,
    drop_after_ms: Option<u64>,
    full_after: Option<usize>,
    prompts: Vec<bool>,
}

fn reply() -> impl Strategy<Value = ScriptedReply> {
    let call = (prop::sample::select(vec!["look", "write", "slow", "broken", "missing"]), 0u8..4)
        .prop_map(|(name, at)| ScriptedCall { name: name.to_owned(), arguments: json!({ "at": at }) });
    let error = prop::option::weighted(
        0.2,
        prop::sample::select(vec![
            "overloaded",
            "stream_cut",
            "rate_limited",
            "rejected",
            "timeout",
            "context_too_long",
            "malformed_answer",
        ]),
    );
    (
        "[a-z ]{0,60}",
        prop::collection::vec(call, 0..4),
        error,
        any::<bool>(),
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.2),
        prop::option::weighted(0.2, 0u64..90_000),
        0u64..400,
        0u64..200,
    )
        .prop_map(|(text, calls, error, without_calls, truncated, without_usage, retry_after_ms, delay_ms, word_ms)| ScriptedReply {
            text,
            calls: if without_calls { Vec::new() } else { calls },
            error: error.map(str::to_owned),
            truncated,
            without_usage,
            retry_after_ms,
            delay_ms,
            word_ms,
            ..ScriptedReply::default()
        })
}

fn plan() -> impl Strategy<Value = Plan> {
    let limits = (1u32..15, prop::option::of(1u64..60), prop::option::of(500u64..20_000), prop::option::of(0.001f64..0.3)).prop_map(
        |(max_steps, timeout, tokens, dollars)| Limits {
            max_steps,
            timeout: timeout.map_or(Span::ZERO, Span::from_seconds),
            token_budget: tokens.unwrap_or(0),
            cost_limit: dollars.unwrap_or(0.0),
        },
    );
    let context = (prop::option::of(200u64..4_000), any::<bool>(), 1usize..10).prop_map(|(window, compact, keep_last)| ContextSettings {
        window: window.unwrap_or(0),
        strategy: if compact { Trimming::Compact } else { Trimming::SlidingWindow },
        keep_last,
    });
    (
        prop::collection::vec(reply(), 0..12),
        prop::sample::select(vec![AtEnd::Finish, AtEnd::RepeatLast, AtEnd::StartOver]),
        limits,
        context,
        any::<bool>(),
        prop::option::of(0u64..20_000),
        prop::option::weighted(0.1, 0u64..20_000),
        prop::option::weighted(0.15, 0usize..40),
        prop::collection::vec(any::<bool>(), 1..4),
    )
        .prop_map(|(replies, at_end, limits, context, interactive, cancel_after_ms, drop_after_ms, full_after, prompts)| Plan {
            replies,
            at_end,
            limits,
            context,
            interactive,
            cancel_after_ms,
            drop_after_ms,
            full_after,
            prompts,
        })
}

/// A disk that remembers, and may be full.
#[derive(Debug)]
struct Disk {
    records: Arc<Mutex<Vec<Record>>>,
    room: Option<usize>,
}

impl Journal for Disk {
    fn append(&mut self, record: &Record) -> std::io::Result<()> {
        let mut records = self.records.lock().unwrap();
        if self.room.is_some_and(|room| records.len() >= room) {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        // As text and back, as on a real disk.
        let text = serde_json::to_string(record).unwrap();
        records.push(serde_json::from_str(&text).unwrap());
        Ok(())
    }
}

fn toys() -> Vec<Arc<Toy>> {
    let mut write = Toy::new("write", |_, _| ToolOutput::ok("written"));
    write.spec.effect = Effect::Changes;
    write.spec.parallel = false;
    let mut slow = Toy::new("slow", fresh);
    slow.takes = Duration::from_secs(3);
    let broken = Toy::new("broken", |_, _| ToolOutput::error("connection refused"));
    vec![Arc::new(Toy::new("look", same)), Arc::new(write), Arc::new(slow), Arc::new(broken)]
}

fn agent_of(plan: &Plan) -> Agent {
    let mut settings = settings();
    settings.limits = plan.limits.clone();
    settings.context = plan.context.clone();
    settings.provider.max_tokens = 200;
    settings.provider.max_retries = 2;
    settings.tools.timeout = Span::from_seconds(2);
    agent(settings, model(plan.replies.clone(), plan.at_end), &toys())
}

/// Providers refuse half of a pair, and an answer that nobody asked for.
fn check_conversation(session: &Session) {
    let messages = session.messages();
    if let Some(first) = messages.first() {
        assert_eq!(first.role, Role::User);
    }
    for (position, message) in messages.iter().enumerate() {
        let calls: Vec<&str> = message.tool_calls().map(|call| call.id.as_str()).collect();
        let answered: Vec<&str> = messages.get(position + 1).map_or_else(Vec::new, |next| {
            let results =
                next.content.iter().filter_map(|block| if let Block::ToolResult(result) = block { Some(result.id.as_str()) } else { None });
            results.collect()
        });
        let is_open = position + 1 == messages.len() && session.has_open_tools();
        assert!(is_open || calls == answered, "{calls:?} against {answered:?}");
    }
}

fn check_limits(plan: &Plan, session: &Session) {
    let counters = session.counters();
    assert!(counters.steps <= plan.limits.max_steps);
    assert!(plan.limits.tokens().is_none_or(|limit| counters.total_tokens() <= limit), "{} tokens", counters.total_tokens());
    assert!(plan.limits.cost().is_none_or(|limit| counters.cost <= limit), "{} spent", counters.cost);
}

async fn live(plan: &Plan) {
    let agent = agent_of(plan);
    let records = Arc::new(Mutex::new(Vec::new()));
    let mut session = Session::kept_by("s", Box::new(Disk { records: Arc::clone(&records), room: plan.full_after }));
    for (number, speaks) in plan.prompts.iter().enumerate() {
        let input = if *speaks || number == 0 { prompt() } else { Input::Continue };
        let cancel = CancellationToken::new();
        if let Some(after) = plan.cancel_after_ms {
            let cancel = cancel.clone();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(after)).await;
                cancel.cancel();
            });
        }
        let options = RunOptions { interactive: plan.interactive, ..RunOptions::default() };
        let before = session.counters().clone();
        if let Some(after) = plan.drop_after_ms {
            // The one who waits goes away.
            let mut events: Vec<runguard_agent::Event> = Vec::new();
            let running = agent.run(&mut session, input, options, &cancel, &mut events);
            if tokio::time::timeout(Duration::from_millis(after), running).await.is_err() {
                let outcome = Outcome { report: report_of_nothing(), events };
                outcome.check_streams();
            }
        } else {
            // Checks the end, the streams and the states.
            let outcome = run_with(&agent, &mut session, input, options, &cancel).await;
            let waits = outcome.report.state == AgentState::WaitingForInput;
            assert_eq!(waits, outcome.report.stop == Stop::WaitingForInput);
            assert!(!waits || plan.interactive);
            assert!(outcome.report.state.is_end() || waits);
        }
        check_limits(plan, &session);
        check_conversation(&session);
        let after = session.counters();
        assert!(after.steps >= before.steps && after.cost >= before.cost && after.total_tokens() >= before.total_tokens());

        // What was written down is what was lived through.
        let mut reread = Session::in_memory("s");
        for record in records.lock().unwrap().iter() {
            reread.apply(record.clone());
        }
        assert_eq!(reread.messages(), session.messages());
        assert_eq!(reread.counters(), session.counters());
        assert_eq!(reread.open_tools(), session.open_tools());
        assert_eq!(reread.state(), session.state());
    }
}

fn report_of_nothing() -> runguard_agent::Report {
    runguard_agent::Report {
        session: String::new(),
        state: AgentState::Cancelled,
        stop: Stop::Cancelled,
        message: String::new(),
        how_to_resume: String::new(),
        text: String::new(),
        steps: 0,
        input_tokens: 0,
        output_tokens: 0,
        cost: runguard_core::money::NanoDollars::ZERO,
        estimated: false,
        tool_runs: 0,
        elapsed_ms: 0,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]
    #[test]
    fn whatever_happens(plan in plan()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(live(&plan));
    }
}

/// `AGENT_CASES` for more.
fn cases() -> u32 {
    std::env::var("AGENT_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(512)
}
