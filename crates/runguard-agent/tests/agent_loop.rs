//! The loop, story by story, on a clock of its own.
#![allow(clippy::unwrap_used)]

use crate::world::*;
use runguard_agent::event::{Event, GuardAction};
use runguard_agent::message::{Role, Tag};
use runguard_agent::provider::scripted::{AtEnd, ScriptedReply};
use runguard_agent::session::{Journal, Record};
use runguard_agent::settings::{ContextSettings, Limits, Strategy};
use runguard_agent::tool::{Effect, ToolOutput};
use runguard_agent::{AgentState, Input, Message, RunOptions, Session, Stop};
use runguard_core::money::NanoDollars;
use runguard_core::time::Span;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

fn dollars(amount: f64) -> NanoDollars {
    NanoDollars::from_dollars(amount).unwrap()
}

fn numbered(count: usize) -> Vec<ScriptedReply> {
    (0..count).map(|number| calls(&[("look", json!({"at": number}))])).collect()
}

#[tokio::test(start_paused = true)]
async fn a_task_is_done() {
    let look = Arc::new(Toy::new("look", fresh));
    let model = model(vec![calls(&[("look", json!({"at": 1}))]), says("It is done.")], AtEnd::Finish);
    let agent = agent(settings(), model, std::slice::from_ref(&look));
    let mut session = Session::in_memory("s");
    let outcome = run(&agent, &mut session, prompt()).await;
    assert_eq!(outcome.report.state, AgentState::Completed);
    assert_eq!(outcome.report.stop, Stop::Completed);
    assert_eq!(outcome.report.text, "It is done.");
    assert_eq!((outcome.report.steps, outcome.report.tool_runs, look.runs()), (2, 1, 1));
    assert_eq!(outcome.report.how_to_resume, "");
    assert!(outcome.report.cost > NanoDollars::ZERO);
    let expected = [AgentState::Running, AgentState::WaitingForTool, AgentState::Running, AgentState::Completed];
    assert_eq!(outcome.states(), expected);
    assert!(outcome.guards(GuardAction::Nudge).is_empty());
    let roles: Vec<Role> = session.messages().iter().map(|message| message.role).collect();
    assert_eq!(roles, [Role::User, Role::Assistant, Role::User, Role::Assistant]);
}

#[tokio::test(start_paused = true)]
async fn a_model_that_repeats_itself_is_told_and_then_stopped() {
    let look = Arc::new(Toy::new("look", same));
    let model = model(vec![calls(&[("look", json!({"at": "the same place"}))])], AtEnd::RepeatLast);
    let agent = agent(settings(), model.clone(), std::slice::from_ref(&look));
    let mut session = Session::in_memory("s");
    let outcome = run(&agent, &mut session, prompt()).await;
    assert_eq!(outcome.report.state, AgentState::Error);
    assert_eq!(outcome.report.stop, Stop::Repetition { repeats: 3 });
    assert_eq!(model.asked(), 4, "the fourth identical step");
    assert_eq!(look.runs(), 1, "what has answered is not run again");
    assert_eq!(outcome.guards(GuardAction::Block), ["exact_duplicate", "exact_duplicate"]);
    assert_eq!(outcome.guards(GuardAction::Nudge), ["repetition"]);
    assert_eq!(outcome.guards(GuardAction::Stop), ["repetition"]);
    assert!(session.messages().iter().any(|message| message.reason == Some(Tag::GuardNudge)));
    assert!(outcome.report.how_to_resume.contains("message"));
    assert!(!session.has_open_tools(), "every call is answered, so that the conversation can go on");

    // Resumed as it is, the same step ends it at once; a person who speaks begins anew.
    let again = run(&agent, &mut session, Input::Continue).await;
    assert_eq!((again.report.stop, again.report.steps), (Stop::Repetition { repeats: 4 }, 5));
    let spoken = run(&agent, &mut session, Input::Prompt("Try another way.".into())).await;
    assert_eq!(spoken.report.steps, 9);
}

#[tokio::test(start_paused = true)]
async fn alternating_steps_without_news_are_stopped_and_with_news_bounded() {
    for (gives, expected) in [(same as fn(u32, &serde_json::Value) -> ToolOutput, "stalled"), (fresh, "cycle")] {
        let toys = [Arc::new(Toy::new("left", gives)), Arc::new(Toy::new("right", gives))];
        let model = model(vec![calls(&[("left", json!({}))]), calls(&[("right", json!({}))])], AtEnd::StartOver);
        let mut settings = settings();
        settings.guardrails.repeatable = vec!["left".into(), "right".into()];
        let agent = agent(settings, model, &toys);
        let outcome = run(&agent, &mut Session::in_memory("s"), prompt()).await;
        assert_eq!(outcome.report.state, AgentState::Error);
        assert_eq!(outcome.report.stop.code(), expected);
        assert!(outcome.report.steps <= 10, "{} steps", outcome.report.steps);
    }
}

#[tokio::test(start_paused = true)]
async fn forty_files_are_work() {
    let look = Arc::new(Toy::new("look", fresh));
    let mut replies = numbered(40);
    replies.push(says("All read."));
    let agent = agent(settings(), model(replies, AtEnd::Finish), std::slice::from_ref(&look));
    let outcome = run(&agent, &mut Session::in_memory("s"), prompt()).await;
    assert_eq!((outcome.report.state, look.runs()), (AgentState::Completed, 40));
    assert_eq!(outcome.count("guard"), 0);
}

#[tokio::test(start_paused = true)]
async fn steps_have_a_limit_that_can_be_raised() {
    let look = Arc::new(Toy::new("look", fresh));
    let mut settings = settings();
    settings.limits.max_steps = 3;
    let agent = agent(settings.clone(), model(numbered(10), AtEnd::Finish), std::slice::from_ref(&look));
    let mut session = Session::in_memory("s");
    let outcome = run(&agent, &mut session, prompt()).await;
    assert_eq!((outcome.report.state, outcome.report.stop), (AgentState::MaxSteps, Stop::MaxSteps { limit: 3 }));
    assert_eq!(outcome.report.how_to_resume, "Raise `limits.max_steps`, then resume the session.");
    let same_limit = run(&agent, &mut session, Input::Continue).await;
    assert_eq!((same_limit.report.state, same_limit.report.steps), (AgentState::MaxSteps, 3));
    let limits = Limits { max_steps: 20, ..settings.limits };
    let mut events = Vec::new();
    let raised =
        agent.run_within(&mut session, Input::Continue, RunOptions::default(), &limits, &CancellationToken::new(), &mut events).await;
    assert_eq!((raised.state, raised.steps, look.runs()), (AgentState::Completed, 11, 10));
}

#[tokio::test(start_paused = true)]
async fn time_runs_out_in_mid_stream_and_counts_over_runs() {
    let mut settings = settings();
    settings.limits.timeout = Span::from_seconds(10);
    let slow = ScriptedReply { text: "one two three four five six".into(), word_ms: 3_000, ..ScriptedReply::default() };
    let agent = agent(settings, model(vec![slow], AtEnd::RepeatLast), &[]);
    let mut session = Session::in_memory("s");
    let outcome = run(&agent, &mut session, prompt()).await;
    assert_eq!((outcome.report.state, outcome.report.stop), (AgentState::TimedOut, Stop::TimedOut { limit_ms: 10_000 }));
    assert_eq!(outcome.report.text, "one two three four ", "what came is not lost");
    assert!(outcome.report.output_tokens > 0 && outcome.report.estimated, "and was paid for");
    assert_eq!(outcome.report.elapsed_ms, 10_000);
    let again = run(&agent, &mut session, Input::Continue).await;
    assert_eq!((again.report.state, again.report.elapsed_ms), (AgentState::TimedOut, 10_000), "nothing is left");
}

#[tokio::test(start_paused = true)]
async fn a_timeout_of_zero_is_none() {
    let mut settings = settings();
    settings.limits.timeout = Span::ZERO;
    let slow = ScriptedReply { text: "late".into(), delay_ms: 100 * 3_600_000, ..ScriptedReply::default() };
    let agent = agent(settings, model(vec![slow], AtEnd::Finish), &[]);
    assert_eq!(run(&agent, &mut Session::in_memory("s"), prompt()).await.report.state, AgentState::Completed);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_run_stops_in_mid_stream_and_goes_on_later() {
    let slow = ScriptedReply { text: "a b c d".into(), word_ms: 1_000, ..ScriptedReply::default() };
    let agent = agent(settings(), model(vec![slow, says("Done.")], AtEnd::Finish), &[]);
    let mut session = Session::in_memory("s");
    let cancel = CancellationToken::new();
    let stopper = cancel.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        stopper.cancel();
    });
    let outcome = run_with(&agent, &mut session, prompt(), RunOptions::default(), &cancel).await;
    assert_eq!((outcome.report.state, outcome.report.text.as_str()), (AgentState::Cancelled, "a b c "));
    assert_eq!(outcome.report.steps, 0);
    let outcome = run(&agent, &mut session, Input::Continue).await;
    assert_eq!((outcome.report.state, outcome.report.text.as_str()), (AgentState::Completed, "Done."));
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_is_cancelled_is_not_run_twice_without_being_told() {
    cancelled_in_a_tool(false).await;
    cancelled_in_a_tool(true).await;
}

async fn cancelled_in_a_tool(speaks: bool) {
    let mut slow = Toy::new("look", fresh);
    slow.takes = Duration::from_secs(60);
    // It does not listen.
    let look = Arc::new(slow);
    let model = model(vec![calls(&[("look", json!({}))]), says("I see.")], AtEnd::Finish);
    let deaf = Arc::new(Deaf(look.clone()));
    let mut set = runguard_agent::tool::ToolSet::new();
    set.add(deaf).unwrap();
    let agent = runguard_agent::Agent::with_parts(settings(), model, set).unwrap();
    let mut session = Session::in_memory("s");
    let cancel = CancellationToken::new();
    let stopper = cancel.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(5)).await;
        stopper.cancel();
    });
    let outcome = run_with(&agent, &mut session, prompt(), RunOptions::default(), &cancel).await;
    assert_eq!(outcome.report.state, AgentState::Cancelled);
    assert_eq!(outcome.report.elapsed_ms, 6_000, "a second to tidy up");
    assert!(session.has_open_tools());
    let input = if speaks { prompt() } else { Input::Continue };
    let outcome = run(&agent, &mut session, input).await;
    assert_eq!(outcome.report.state, AgentState::Completed);
    assert_eq!(look.runs(), 1);
    let told = session.messages().iter().any(|message| message.has_results() && format!("{message:?}").contains("was interrupted"));
    assert!(told, "the model knows that it does not know");
}

/// A tool that does not hear when it is cancelled.
#[derive(Debug)]
struct Deaf(Arc<Toy>);

impl runguard_agent::tool::Tool for Deaf {
    fn spec(&self) -> &runguard_agent::tool::ToolSpec {
        &self.0.spec
    }
    fn call<'a>(
        &'a self,
        arguments: &'a serde_json::Value,
        _: &'a CancellationToken,
    ) -> runguard_agent::provider::BoxFuture<'a, ToolOutput> {
        Box::pin(async move {
            let never = CancellationToken::new();
            self.0.call(arguments, &never).await
        })
    }
}

#[tokio::test(start_paused = true)]
async fn money_is_never_spent_beyond_the_limit_and_the_last_answer_is_shortened() {
    let look = Arc::new(Toy::new("look", fresh));
    let mut settings = settings();
    settings.limits.cost_limit = 0.05;
    settings.provider.max_tokens = 4_000;
    let chatty = |number: usize| ScriptedReply { text: "word ".repeat(300), ..numbered(number + 1).pop().unwrap() };
    let agent = agent(settings, model((0..20).map(chatty).collect(), AtEnd::Finish), &[look]);
    let mut session = Session::in_memory("s");
    let outcome = run(&agent, &mut session, prompt()).await;
    assert_eq!(outcome.report.state, AgentState::BudgetExceeded);
    let Stop::CostLimit { spent, limit } = outcome.report.stop else { panic!("{:?}", outcome.report.stop) };
    assert_eq!(limit, dollars(0.05));
    assert!(spent <= limit, "{spent} of {limit}");
    assert!(spent > dollars(0.03), "{spent}: it stops when it must, not long before");
    assert_eq!(outcome.count("near_budget"), 1, "said once");
    assert_eq!(outcome.report.how_to_resume, "Raise `limits.cost_limit`, then resume the session.");
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_is_nearly_used_up_is_said_once() {
    let look = Arc::new(Toy::new("look", fresh));
    let mut settings = settings();
    settings.limits.token_budget = 3_000;
    settings.guardrails.reserve_tokens = 2_500;
    settings.provider.max_tokens = 50;
    let mut replies = numbered(10);
    replies.push(says("Done."));
    let agent = agent(settings, model(replies, AtEnd::Finish), &[look]);
    let mut session = Session::in_memory("s");
    assert!(!agent.near_budget(&session));
    let outcome = run(&agent, &mut session, prompt()).await;
    assert_eq!((outcome.report.state, outcome.count("near_budget")), (AgentState::Completed, 1));
    assert!(agent.near_budget(&session));
}

#[tokio::test(start_paused = true)]
async fn tokens_have_a_budget_too() {
    let look = Arc::new(Toy::new("look", fresh));
    let mut settings = settings();
    settings.limits.token_budget = 2_000;
    settings.limits.cost_limit = 0.0;
    let agent = agent(settings, model(numbered(100), AtEnd::Finish), &[look]);
    let outcome = run(&agent, &mut Session::in_memory("s"), prompt()).await;
    assert_eq!(outcome.report.state, AgentState::BudgetExceeded);
    assert!(matches!(outcome.report.stop, Stop::TokenBudget { limit: 2_000, .. }));
    assert!(outcome.report.total_tokens() <= 2_000);
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_charges_more_than_was_asked_for_ends_the_run() {
    let mut settings = settings();
    settings.limits.token_budget = 1_000;
    let greedy = ScriptedReply { input_tokens: Some(5_000), ..says("Here you are.") };
    let agent = agent(settings, model(vec![greedy], AtEnd::RepeatLast), &[]);
    let outcome = run(&agent, &mut Session::in_memory("s"), prompt()).await;
    assert_eq!(outcome.report.state, AgentState::BudgetExceeded);
    assert_eq!(outcome.report.text, "Here you are.", "what was paid for is handed over");
}

#[tokio::test(start_paused = true)]
async fn a_price_is_needed_for_a_limit_in_dollars() {
    let mut settings = settings();
    settings.prices.clear();
    settings.provider.model = "no-such-model".into();
    let refused = runguard_agent::Agent::with_parts(settings.clone(), model(vec![], AtEnd::Finish), tools(&[])).unwrap_err().to_string();
    assert!(refused.contains("no-such-model") && refused.contains("[prices.\"no-such-model\"]"), "{refused}");
    settings.limits.cost_limit = 0.0;
    assert!(runguard_agent::Agent::with_parts(settings, model(vec![], AtEnd::Finish), tools(&[])).is_ok());
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_was_cut_is_continued_twice_and_nobody_sees_how() {
    let cut = |text: &str| ScriptedReply { truncated: true, ..says(text) };
    let model = model(vec![cut("one "), cut("two "), cut("three "), says("never")], AtEnd::Finish);
    let agent = agent(settings(), model.clone(), &[]);
    let mut session = Session::in_memory("s");
    let outcome = run(&agent, &mut session, prompt()).await;
    assert_eq!((outcome.report.state, model.asked()), (AgentState::Completed, 3));
    assert_eq!(outcome.report.text, "one two three ", "the whole answer, not its last piece");
    assert!(outcome.report.message.contains("cut"));
    let internal: Vec<&Message> = session.messages().iter().filter(|message| message.reason.is_some()).collect();
    assert_eq!(internal.len(), 2);
    assert!(internal.iter().all(|message| message.reason == Some(Tag::MaxTokensRecovery) && message.role == Role::User));
}

#[tokio::test(start_paused = true)]
async fn half_a_call_is_no_call() {
    // The arguments do not fit into the answer: the call is dropped and the model asked to go on.
    let mut settings = settings();
    settings.provider.max_tokens = 20;
    let long = calls(&[("look", json!({"at": "x".repeat(400)}))]);
    let look = Arc::new(Toy::new("look", fresh));
    let agent = agent(
        settings,
        model(vec![ScriptedReply { text: "Let me see. ".into(), ..long }, says("Done.")], AtEnd::Finish),
        std::slice::from_ref(&look),
    );
    let outcome = run(&agent, &mut Session::in_memory("s"), prompt()).await;
    assert_eq!((outcome.report.state, look.runs(), outcome.report.text.as_str()), (AgentState::Completed, 0, "Let me see. Done."));
}

#[tokio::test(start_paused = true)]
async fn a_failing_provider_is_asked_again_and_waits_as_long_as_it_says() {
    let limited = ScriptedReply { retry_after_ms: Some(7_000), ..fails("rate_limited") };
    let cut = ScriptedReply { text: "half an".into(), ..fails("stream_cut") };
    let agent = agent(settings(), model(vec![limited, cut, says("Whole.")], AtEnd::Finish), &[]);
    let began = Instant::now();
    let outcome = run(&agent, &mut Session::in_memory("s"), prompt()).await;
    assert_eq!((outcome.report.state, outcome.report.text.as_str()), (AgentState::Completed, "Whole."));
    assert!(began.elapsed() >= Duration::from_secs(7) && began.elapsed() <= Duration::from_secs(9));
    assert_eq!(outcome.count("retry"), 2);
    assert_eq!(outcome.count("spent"), 2, "the half answer is paid for, the refused request is not");
    assert!(outcome.report.estimated);
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_never_answers_ends_the_run_after_its_retries() {
    let mut settings = settings();
    settings.provider.max_retries = 3;
    let model = model(vec![fails("overloaded")], AtEnd::RepeatLast);
    let agent = agent(settings, model.clone(), &[]);
    let outcome = run(&agent, &mut Session::in_memory("s"), prompt()).await;
    assert_eq!(outcome.report.state, AgentState::Error);
    assert_eq!(outcome.report.stop, Stop::Provider { kind: "overloaded".into(), attempts: 4 });
    assert_eq!(model.asked(), 4);
    assert_eq!(outcome.report.cost, NanoDollars::ZERO);
}

#[tokio::test(start_paused = true)]
async fn what_will_not_go_away_is_not_asked_again() {
    for code in ["unauthorised", "no_credit", "rejected", "endless_answer"] {
        let model = model(vec![fails(code)], AtEnd::RepeatLast);
        let outcome = run(&agent(settings(), model.clone(), &[]), &mut Session::in_memory("s"), prompt()).await;
        assert_eq!((outcome.report.state, model.asked()), (AgentState::Error, 1), "{code}");
        assert!(!outcome.report.how_to_resume.is_empty());
    }
    let model = model(vec![ScriptedReply { retry_after_ms: Some(3_600_000), ..fails("rate_limited") }], AtEnd::RepeatLast);
    let outcome = run(&agent(settings(), model.clone(), &[]), &mut Session::in_memory("s"), prompt()).await;
    assert_eq!((outcome.report.state, model.asked()), (AgentState::Error, 1));
    assert!(outcome.report.message.contains("3600 s"), "{}", outcome.report.message);
}

#[tokio::test(start_paused = true)]
async fn a_window_smaller_than_thought_is_halved_once() {
    let look = Arc::new(Toy::new("look", fresh));
    let mut replies = numbered(10);
    replies.push(fails("context_too_long"));
    replies.push(says("It fits."));
    let agent = agent(settings(), model(replies, AtEnd::Finish), &[look]);
    let outcome = run(&agent, &mut Session::in_memory("s"), prompt()).await;
    assert_eq!((outcome.report.state, outcome.count("context_trimmed")), (AgentState::Completed, 1));
}

#[tokio::test(start_paused = true)]
async fn usage_that_is_missing_is_counted_from_bytes() {
    let silent = ScriptedReply { without_usage: true, ..says("Some words about nothing at all.") };
    let outcome = run(&agent(settings(), model(vec![silent], AtEnd::Finish), &[]), &mut Session::in_memory("s"), prompt()).await;
    assert!(outcome.report.estimated && outcome.report.input_tokens > 0 && outcome.report.output_tokens > 0);
    assert!(outcome.report.cost > NanoDollars::ZERO);
}

#[tokio::test(start_paused = true)]
async fn calls_that_make_no_sense_are_explained_to_the_model() {
    let look = Arc::new(Toy::new("look", fresh));
    let model = model(vec![calls(&[("lock", json!({}))]), says("Sorry.")], AtEnd::Finish);
    let agent = agent(settings(), model, std::slice::from_ref(&look));
    let mut session = Session::in_memory("s");
    let outcome = run(&agent, &mut session, prompt()).await;
    assert_eq!((outcome.report.state, look.runs()), (AgentState::Completed, 0));
    assert!(format!("{:?}", session.messages()).contains("There is no tool 'lock'. There are: look."));
}

#[tokio::test(start_paused = true)]
async fn tools_run_side_by_side_where_they_may() {
    for (parallel, expected) in [(true, 2_000), (false, 6_000)] {
        let mut toy = Toy::new("look", fresh);
        toy.takes = Duration::from_secs(2);
        toy.spec.parallel = parallel;
        let three: Vec<(&str, serde_json::Value)> = (0..3).map(|at| ("look", json!({"at": at}))).collect();
        let agent = agent(settings(), model(vec![calls(&three), says("Done.")], AtEnd::Finish), &[Arc::new(toy)]);
        let mut session = Session::in_memory("s");
        let outcome = run(&agent, &mut session, prompt()).await;
        assert_eq!(outcome.report.elapsed_ms, expected);
        // Results stand in the order of the calls, whoever was first.
        let results = format!("{:?}", session.messages()[2]);
        let order: Vec<usize> = (0..3).map(|index| results.find(&format!("call_1_{index}")).unwrap()).collect();
        assert!(order.is_sorted());
    }
}

#[tokio::test(start_paused = true)]
async fn the_same_call_twice_in_one_step_runs_once() {
    let look = Arc::new(Toy::new("look", fresh));
    let model = model(vec![calls(&[("look", json!({"at": 1})), ("look", json!({"at": 1}))]), says("Done.")], AtEnd::Finish);
    let outcome = run(&agent(settings(), model, std::slice::from_ref(&look)), &mut Session::in_memory("s"), prompt()).await;
    assert_eq!((look.runs(), outcome.guards(GuardAction::Block)), (1, vec!["exact_duplicate"]));
}

#[tokio::test(start_paused = true)]
async fn a_slow_tool_is_ended_and_a_long_result_cut() {
    let mut slow = Toy::new("slow", fresh);
    slow.takes = Duration::from_secs(1_000);
    let long = Toy::new("long", |_, _| ToolOutput::ok(format!("{}THE END", "x".repeat(100_000))));
    let model = model(vec![calls(&[("slow", json!({})), ("long", json!({}))]), says("Done.")], AtEnd::Finish);
    let mut settings = settings();
    settings.tools.timeout = Span::from_seconds(30);
    settings.tools.max_result_bytes = 1_000;
    let agent = agent(settings, model, &[Arc::new(slow), Arc::new(long)]);
    let mut session = Session::in_memory("s");
    let outcome = run(&agent, &mut session, prompt()).await;
    assert_eq!((outcome.report.state, outcome.report.elapsed_ms), (AgentState::Completed, 30_000));
    let results = &session.messages()[2];
    let text = format!("{results:?}");
    assert!(text.contains("slow took longer than 30 s") && text.contains("bytes left out") && text.contains("THE END"));
    assert!(results.bytes() < 1_300);
}

#[tokio::test(start_paused = true)]
async fn a_long_run_stays_small() {
    for strategy in [Strategy::Compact, Strategy::SlidingWindow] {
        let look = Arc::new(Toy::new("look", |run, _| ToolOutput::ok(format!("{run}{}", "y".repeat(500)))));
        let mut settings = settings();
        settings.limits = Limits { max_steps: 2_000, timeout: Span::ZERO, token_budget: 0, cost_limit: 0.0 };
        settings.context = ContextSettings { window: 3_000, strategy, keep_last: 10 };
        settings.guardrails.tool_calls.default_limit = 1_000;
        settings.guardrails.repeatable = vec!["look".into()];
        let agent = agent(settings, model(numbered(2_000), AtEnd::Finish), &[look]);
        let mut session = Session::in_memory("s");
        let outcome = run(&agent, &mut session, prompt()).await;
        assert_eq!((outcome.report.state, outcome.report.steps), (AgentState::MaxSteps, 2_000));
        let bytes: usize = session.messages().iter().map(Message::bytes).sum();
        assert!(bytes < 20_000, "{bytes} bytes are kept");
        assert!(session.metadata().to_string().len() < 40_000);
        if strategy == Strategy::Compact {
            assert_eq!(session.messages()[0].text(), "Do it.");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_finished_is_not_asked_again_without_a_message() {
    let model = model(vec![says("Done."), says("Again.")], AtEnd::Finish);
    let agent = agent(settings(), model.clone(), &[]);
    let mut session = Session::in_memory("s");
    for input in [Input::Continue, prompt(), Input::Continue] {
        let outcome = run(&agent, &mut session, input).await;
        assert_eq!(outcome.report.state, AgentState::Completed);
    }
    assert_eq!(model.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_turn_ends_and_the_conversation_goes_on() {
    let agent = agent(settings(), model(vec![says("Hello."), says("Goodbye.")], AtEnd::Finish), &[]);
    let mut session = Session::in_memory("s");
    let options = RunOptions { interactive: true, ..RunOptions::default() };
    let first = run_with(&agent, &mut session, prompt(), options, &CancellationToken::new()).await;
    assert_eq!((first.report.state, first.report.stop), (AgentState::WaitingForInput, Stop::WaitingForInput));
    assert_eq!(session.state(), AgentState::WaitingForInput);
    let second = run_with(&agent, &mut session, prompt(), options, &CancellationToken::new()).await;
    assert_eq!((second.report.text.as_str(), second.report.steps), ("Goodbye.", 2));
}

/// A disk that is full after some records.
#[derive(Debug)]
struct FullAfter(usize);

impl Journal for FullAfter {
    fn append(&mut self, _: &Record) -> std::io::Result<()> {
        self.0 = self.0.checked_sub(1).ok_or_else(|| std::io::Error::from(std::io::ErrorKind::StorageFull))?;
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_written_down_does_not_happen() {
    for records in 0..12 {
        let look = Arc::new(Toy::new("look", fresh));
        let agent =
            agent(settings(), model(vec![calls(&[("look", json!({}))]), says("Done.")], AtEnd::Finish), std::slice::from_ref(&look));
        let mut session = Session::kept_by("s", Box::new(FullAfter(records)));
        let outcome = run(&agent, &mut session, prompt()).await;
        if outcome.report.state == AgentState::Completed {
            assert!(records >= 8, "{records} records");
            continue;
        }
        assert_eq!((outcome.report.state, &outcome.report.stop), (AgentState::Error, &Stop::NotSaved), "{records} records");
        // The prompt, the state, the question, the answer, the beginning of the tool.
        assert_eq!(look.runs(), u32::from(records >= 5), "{records} records: a tool runs after its beginning is written down");
    }
}

#[tokio::test(start_paused = true)]
async fn a_shared_budget_holds_over_runs() {
    use runguard_core::budget::{Budget, Limits as BudgetLimits};
    let total = Budget::new(BudgetLimits { usd: Some(dollars(0.02)), ..BudgetLimits::default() });
    let mut own = settings();
    own.provider.max_tokens = 100;
    let agent = agent(own, model(vec![says(&"word ".repeat(60))], AtEnd::RepeatLast), &[]).within(total.clone());
    let mut ended = Vec::new();
    for _ in 0..20 {
        ended.push(run(&agent, &mut Session::in_memory("s"), prompt()).await.report.state);
    }
    assert!(ended.contains(&AgentState::Completed) && ended.contains(&AgentState::BudgetExceeded));
    assert!(total.snapshot().spent().usd <= dollars(0.02));
}

#[tokio::test(start_paused = true)]
async fn a_change_makes_reading_again_worthwhile() {
    let read = Arc::new(Toy::new("read", fresh));
    let mut write = Toy::new("write", |_, _| ToolOutput::ok("written"));
    write.spec.effect = Effect::Changes;
    let look = calls(&[("read", json!({"path": "a"}))]);
    let replies = vec![look.clone(), calls(&[("write", json!({"path": "a"}))]), look, says("Done.")];
    let outcome =
        run(&agent(settings(), model(replies, AtEnd::Finish), &[read.clone(), Arc::new(write)]), &mut Session::in_memory("s"), prompt())
            .await;
    assert_eq!((read.runs(), outcome.report.state, outcome.count("guard")), (2, AgentState::Completed, 0));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_run_still_ends_its_stream() {
    let slow = ScriptedReply { text: "a b c d".into(), word_ms: 1_000, ..ScriptedReply::default() };
    let agent = agent(settings(), model(vec![slow], AtEnd::Finish), &[]);
    let mut session = Session::in_memory("s");
    let mut events: Vec<Event> = Vec::new();
    let cancel = CancellationToken::new();
    let running = agent.run(&mut session, prompt(), RunOptions::default(), &cancel, &mut events);
    assert!(tokio::time::timeout(Duration::from_millis(1_500), running).await.is_err());
    let finished = events.iter().filter(|event| matches!(event, Event::Chunk(chunk) if chunk.finished)).count();
    assert_eq!(finished, 1);
}
