//! Runs that need no key: a scripted model walks into each trap.
//!
//! Everything but the model and its catalogue is the real thing: the loop, the guards, the price table, the retries. The
//! model says what is written here, word by word and quickly, and is charged as a real one would be; so the sums at the end
//! are sums, not claims.

use crate::provider::scripted::{AtEnd, Script, Scripted, ScriptedCall, ScriptedReply};
use crate::provider::{BoxFuture, Provider};
use crate::report::{Report, Stop};
use crate::settings::{ProviderKind, ProviderSettings, Settings};
use crate::tool::{Effect, Tool, ToolOutput, ToolSet, ToolSpec};
use runguard_core::money::NanoDollars;
use runguard_core::prices::{Prices, Usage};
use runguard_core::time::Span;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// The names, and what each shows.
pub const DEMOS: &[(&str, &str)] = &[
    ("loop", "the same call for ever: the guard tells the model, then stops it"),
    ("ping-pong", "two calls in turn, for ever: no step repeats the last, and it is a circle all the same"),
    ("budget", "a model that never has enough: it is paid for until the limit, and not a cent further"),
    ("truncated", "an answer that is cut at max_tokens, twice: the loop asks to go on, and it becomes whole"),
    ("flaky", "a provider that is busy and cuts its streams: waited for, asked again, charged once for each answer"),
    ("healthy", "a run as it should be: no guard says a word"),
];

/// Stands before the name in [`ProviderSettings::script`], so that a saved demo can be taken up again.
const SCRIPT_PREFIX: &str = "demo:";
/// Whose price the scripted model is charged at.
const PRICED_AS: &str = "claude-sonnet-4-5";
/// What a model with a long conversation and a few tools is sent and says in one step.
const STEP_INPUT_TOKENS: u64 = 9_400;
const STEP_OUTPUT_TOKENS: u64 = 140;

#[derive(Debug)]
pub struct Demo {
    pub settings: Settings,
    pub provider: Arc<dyn Provider>,
    pub tools: ToolSet,
    pub prompt: String,
    /// Two lines to read before.
    pub explanation: &'static str,
    /// A line of what to try afterwards.
    pub next: &'static str,
    /// What would have been without the loop's help, when the run comes to its end.
    if_completed: &'static str,
    /// What the script costs for one step, where all are alike.
    step_cost: Option<NanoDollars>,
}

/// The demo of that name.
pub fn demo(name: &str) -> Option<Demo> {
    match name {
        "loop" => Some(endless_loop()),
        "ping-pong" => Some(ping_pong()),
        "budget" => Some(budget()),
        "truncated" => Some(truncated()),
        "flaky" => Some(flaky()),
        "healthy" => Some(healthy()),
        _ => None,
    }
}

/// The demo a saved session was made by, if it was one.
pub fn demo_of(settings: &Settings) -> Option<Demo> {
    demo(name_of(settings.provider.script.as_ref()?)?)
}

/// The demo's name, if the script is not a file but one of them.
pub fn name_of(script: &Path) -> Option<&str> {
    script.to_str()?.strip_prefix(SCRIPT_PREFIX)
}

fn endless_loop() -> Demo {
    let step = ScriptedReply {
        text: "Let me look the kettle up in the catalogue.".to_owned(),
        calls: vec![search("blue kettle", 1)],
        input_tokens: Some(STEP_INPUT_TOKENS),
        output_tokens: Some(STEP_OUTPUT_TOKENS),
        delay_ms: 350,
        word_ms: 50,
        ..ScriptedReply::default()
    };
    let mut demo = assemble("loop", vec![step], AtEnd::RepeatLast);
    "How much is the blue kettle?".clone_into(&mut demo.prompt);
    demo.explanation = "A scripted model asks for the same search for ever. The catalogue (demo data) has no blue kettle.\n\
                        Watch the guard: it tells the model first, and ends the run when it goes on.";
    demo.next = "Next: runguard agent --demo ping-pong (a circle of two), then agents/*.toml with a model of your own.";
    demo.step_cost = Some(price_of(STEP_INPUT_TOKENS, STEP_OUTPUT_TOKENS));
    demo
}

fn ping_pong() -> Demo {
    let step = |text: &str, call: ScriptedCall| ScriptedReply {
        text: text.to_owned(),
        calls: vec![call],
        input_tokens: Some(STEP_INPUT_TOKENS),
        output_tokens: Some(STEP_OUTPUT_TOKENS),
        delay_ms: 120,
        word_ms: 30,
        ..ScriptedReply::default()
    };
    let replies =
        vec![step("Article 17 should say what it costs.", article(17)), step("It points to article 71: let me read that.", article(71))];
    let mut demo = assemble("ping-pong", replies, AtEnd::StartOver);
    "What does article 17 cost?".clone_into(&mut demo.prompt);
    demo.explanation = "A scripted model is sent from article 17 to article 71 and back (demo data), for ever.\n\
                        No step is like the last one, so counting repeats would never end it. The circle does.";
    demo.next = "Next: runguard agent --demo budget (money as the last wall).";
    demo.step_cost = Some(price_of(STEP_INPUT_TOKENS, STEP_OUTPUT_TOKENS));
    demo
}

fn budget() -> Demo {
    const PAGES: u64 = 30;
    let step = |text: String, page: u64| ScriptedReply {
        text,
        calls: vec![search("anything", page)],
        delay_ms: 60,
        word_ms: 5,
        ..ScriptedReply::default()
    };
    let mut replies = vec![step("I begin with the first page.".to_owned(), 1)];
    replies.extend((1..PAGES).map(|page| {
        let text = format!(
            "Page {page} is read. Its articles are a kettle, a lamp, two chairs and a table, none of them quite what was asked for; the \
             prices are fair, the pictures are small, and the descriptions say little about the colour. The kettle holds a litre and \
             has a handle of wood, the lamp stands on three legs and is sold without a bulb, the chairs can be folded, and the table \
             has a drawer on its long side, with a key that is said to turn. None of this was asked for, as far as I can see. I note \
             it all the same, since a complete list is worth more than a quick one, and go on to the page that follows."
        );
        step(text, page + 1)
    }));
    let mut demo = assemble("budget", replies, AtEnd::RepeatLast);
    "List everything in the catalogue.".clone_into(&mut demo.prompt);
    demo.settings.limits.cost_limit = 0.02;
    demo.settings.provider.max_tokens = 400;
    demo.explanation = "A scripted model reads page after page (demo data) and always finds something new: no loop, just no end.\n\
                        The limit is $0.02. Before each step what it may cost is set aside, and the last answer is cut to what can still be paid.";
    demo.next = "Next: keep a session and raise its limit: runguard agent --demo budget --sessions /tmp/demo, \
                 then runguard agent --resume --sessions /tmp/demo --budget 0.04";
    demo
}

fn truncated() -> Demo {
    let piece = |text: &str, truncated: bool| ScriptedReply {
        text: text.to_owned(),
        truncated,
        delay_ms: 200,
        word_ms: 25,
        ..ScriptedReply::default()
    };
    let replies = vec![
        piece("A kettle boils water in four steps. First it is filled, to the mark and not above it. Second the lid is ", true),
        piece("closed, since steam that escapes is heat that is paid for twice. Third it is switched on and left alone until ", true),
        piece("it clicks. Fourth it is emptied, because water that stands leaves lime behind.\n", false),
    ];
    let mut demo = assemble("truncated", replies, AtEnd::Finish);
    "How does one use a kettle?".clone_into(&mut demo.prompt);
    demo.explanation = "A scripted model is cut at max_tokens in mid-sentence, twice.\n\
                        The loop asks it to go on from where it was (a message you do not see), and the answer comes out whole.";
    demo.if_completed = "Without the recovery the answer would have ended at \u{201c}Second the lid is\u{201d}.";
    demo.next = "Next: runguard agent --demo flaky (a provider with bad days).";
    demo
}

fn flaky() -> Demo {
    let failing = |text: &str, error: &str, retry_after_ms: Option<u64>| ScriptedReply {
        text: text.to_owned(),
        error: Some(error.to_owned()),
        retry_after_ms,
        delay_ms: 120,
        word_ms: 30,
        ..ScriptedReply::default()
    };
    let said = |text: &str, calls: Vec<ScriptedCall>| ScriptedReply {
        text: text.to_owned(),
        calls,
        delay_ms: 120,
        word_ms: 30,
        ..ScriptedReply::default()
    };
    let replies = vec![
        failing("", "rate_limited", Some(600)),
        said("I will search the catalogue.", vec![search("red kettle", 1)]),
        failing("The red kettle costs nine", "stream_cut", None),
        failing("", "overloaded", None),
        said("The red kettle costs 29.90.\n", Vec::new()),
    ];
    let mut demo = assemble("flaky", replies, AtEnd::Finish);
    "How much is the red kettle?".clone_into(&mut demo.prompt);
    demo.settings.provider.backoff = Span::from_millis(250);
    demo.explanation = "A scripted provider answers 429 with a time to wait, cuts a stream in mid-sentence, and is overloaded.\n\
                        Each is waited for and asked again; half an answer is never taken for a whole one.";
    demo.if_completed = "Without the retries the run would have ended at the first 429, with nothing.";
    demo.next = "Next: runguard agent --demo healthy (nothing goes wrong), or agents/*.toml with a model of your own.";
    demo
}

fn healthy() -> Demo {
    let step = |text: &str, calls: Vec<ScriptedCall>| ScriptedReply {
        text: text.to_owned(),
        calls,
        delay_ms: 150,
        word_ms: 30,
        ..ScriptedReply::default()
    };
    let replies = vec![
        step("I will search for kettles first.", vec![search("kettle", 1)]),
        step("Two of them: I read both articles at once.", vec![article(4), article(9)]),
        step("The red one costs 29.90, the steel one 34.50. The red one is the cheaper by 4.60.\n", Vec::new()),
    ];
    let mut demo = assemble("healthy", replies, AtEnd::Finish);
    "Which kettle is the cheapest?".clone_into(&mut demo.prompt);
    demo.explanation = "A scripted model searches, reads two articles at the same time (demo data), and answers.\n\
                        Nothing is wrong with it, so no guard says a word: that is what the guards cost a good run.";
    demo.if_completed = "Without the guards it would have been the same, step by step and cent by cent.";
    demo.next = "Next: runguard agent --demo loop (the same tools, a model that is stuck).";
    demo
}

fn assemble(name: &str, replies: Vec<ScriptedReply>, at_end: AtEnd) -> Demo {
    let model = "demo-model";
    let mut provider = ProviderSettings::new(ProviderKind::Scripted, model);
    provider.price_as = Some(PRICED_AS.to_owned());
    provider.script = Some(PathBuf::from(format!("{SCRIPT_PREFIX}{name}")));
    provider.max_tokens = 1_000;
    let mut settings = Settings::new(provider);
    settings.name = format!("demo {name}");
    // What a run costs that only the last wall, max_steps, ends: no other limit is to be in its way.
    settings.limits.cost_limit = 5.0;
    settings.tools.allow.clear();
    let mut tools = ToolSet::new();
    for tool in [Catalogue::search(), Catalogue::article()] {
        // The names are two, and valid: `every_demo_can_begin` would fail without one of them.
        let _ = tools.add(Arc::new(tool));
    }
    Demo {
        settings,
        provider: Arc::new(Scripted::new(Script { model: model.to_owned(), reply: replies, at_end })),
        tools,
        prompt: String::new(),
        explanation: "",
        next: "",
        if_completed: "",
        step_cost: None,
    }
}

fn price_of(input_tokens: u64, output_tokens: u64) -> NanoDollars {
    Prices::bundled().price(PRICED_AS).map_or(NanoDollars::ZERO, |(price, _)| price.cost(&Usage::new(input_tokens, output_tokens)))
}

impl Demo {
    /// What would have happened without the guard, and what to try next.
    pub fn closing(&self, report: &Report) -> String {
        let max_steps = self.settings.limits.max_steps;
        let dollars = |amount: NanoDollars| format!("${:.2}", amount.as_dollars());
        let sentence = match &report.stop {
            Stop::Repetition { .. } | Stop::Cycle { .. } | Stop::Stalled { .. } => {
                let alone = self.whole_cost(report, max_steps);
                let saved = NanoDollars::from_nanos((alone.as_nanos() - report.cost.as_nanos()).max(0)).unwrap_or(NanoDollars::ZERO);
                let percent = 100.0 * saved.as_dollars() / alone.as_dollars().max(f64::MIN_POSITIVE);
                format!(
                    "Without the guard: {max_steps} steps (max_steps) and {}. With it: {} steps and {}; {} saved, {percent:.0} %.",
                    dollars(alone),
                    report.steps,
                    dollars(report.cost),
                    dollars(saved)
                )
            }
            Stop::CostLimit { limit, .. } => format!(
                "Without the limit: {max_steps} steps (max_steps) and at least {}, at what these {} have cost. With it: {} of {limit}.",
                dollars(self.whole_cost(report, max_steps)),
                report.steps,
                report.cost
            ),
            Stop::Completed => self.if_completed.to_owned(),
            Stop::WaitingForInput
            | Stop::Cancelled
            | Stop::TimedOut { .. }
            | Stop::MaxSteps { .. }
            | Stop::TokenBudget { .. }
            | Stop::Provider { .. }
            | Stop::NotSaved => String::new(),
        };
        if sentence.is_empty() { self.next.to_owned() } else { format!("{sentence}\n{}", self.next) }
    }

    /// What `steps` steps cost: by the script where it says, else at the rate so far (and the later ones cost more).
    fn whole_cost(&self, report: &Report, steps: u32) -> NanoDollars {
        let nanos = match self.step_cost {
            Some(cost) => i128::from(cost.as_nanos()) * i128::from(steps),
            None => i128::from(report.cost.as_nanos()) * i128::from(steps) / i128::from(report.steps.max(1)),
        };
        i64::try_from(nanos).ok().and_then(|nanos| NanoDollars::from_nanos(nanos).ok()).unwrap_or(NanoDollars::MAX)
    }
}

fn search(query: &str, page: u64) -> ScriptedCall {
    ScriptedCall { name: "search_catalogue".to_owned(), arguments: json!({ "query": query, "page": page }) }
}

fn article(number: u64) -> ScriptedCall {
    ScriptedCall { name: "get_article".to_owned(), arguments: json!({ "number": number }) }
}

/// A catalogue of a shop that does not exist.
#[derive(Debug)]
struct Catalogue {
    spec: ToolSpec,
    answer: fn(&Value) -> ToolOutput,
}

impl Catalogue {
    fn search() -> Self {
        let schema = json!({
            "type": "object",
            "properties": { "query": { "type": "string" }, "page": { "type": "integer", "minimum": 1 } },
            "required": ["query"],
        });
        Self::new("search_catalogue", "Demo data: searches the catalogue of a shop that does not exist.", schema, |arguments| {
            let page = arguments["page"].as_u64().unwrap_or(1);
            ToolOutput::ok(match arguments["query"].as_str().unwrap_or_default() {
                "anything" => format!(
                    "Demo data. Page {page} of 600: kettle {page}-A, lamp {page}-B, chairs {page}-C and {page}-D, table {page}-E. There are more pages."
                ),
                "kettle" => "Demo data. 2 articles: 4 (red kettle), 9 (steel kettle).".to_owned(),
                "red kettle" => "Demo data. 1 article: 4 (red kettle), 29.90.".to_owned(),
                query => format!("Demo data. No article matches '{query}'."),
            })
        })
    }

    fn article() -> Self {
        let schema = json!({ "type": "object", "properties": { "number": { "type": "integer" } }, "required": ["number"] });
        Self::new("get_article", "Demo data: one article of a shop that does not exist.", schema, |arguments| {
            match arguments["number"].as_u64() {
                Some(4) => ToolOutput::ok("Demo data. Article 4: red kettle, 29.90."),
                Some(9) => ToolOutput::ok("Demo data. Article 9: steel kettle, 34.50."),
                Some(17) => ToolOutput::ok("Demo data. Article 17: for the price see article 71."),
                Some(71) => ToolOutput::ok("Demo data. Article 71: for the price see article 17."),
                Some(number) => ToolOutput::error(format!("Demo data. There is no article {number}.")),
                None => ToolOutput::error("Demo data. `number` must be the number of an article."),
            }
        })
    }

    fn new(name: &str, description: &str, input_schema: Value, answer: fn(&Value) -> ToolOutput) -> Self {
        let spec =
            ToolSpec { name: name.to_owned(), description: description.to_owned(), input_schema, effect: Effect::ReadOnly, parallel: true };
        Self { spec, answer }
    }
}

impl Tool for Catalogue {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn call<'a>(&'a self, arguments: &'a Value, _: &'a CancellationToken) -> BoxFuture<'a, ToolOutput> {
        Box::pin(async move { (self.answer)(arguments) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::{Agent, Input, RunOptions};
    use crate::event::{Event, GuardAction};
    use crate::session::Session;
    use crate::state::AgentState;
    use std::time::Duration;

    async fn watch(name: &str) -> (Demo, Report, Vec<Event>) {
        let demo = demo(name).unwrap();
        let agent = Agent::with_parts(demo.settings.clone(), demo.provider.clone(), demo.tools.clone()).unwrap();
        let mut events: Vec<Event> = Vec::new();
        let began = tokio::time::Instant::now();
        let mut session = Session::in_memory("demo");
        let input = Input::Prompt(demo.prompt.clone());
        let report = agent.run(&mut session, input, RunOptions::default(), &CancellationToken::new(), &mut events).await;
        assert!(began.elapsed() < Duration::from_secs(6), "{name} takes {:?}", began.elapsed());
        (demo, report, events)
    }

    fn spoke(events: &[Event], wanted: GuardAction) -> usize {
        events.iter().filter(|event| matches!(event, Event::Guard(guard) if guard.action == wanted)).count()
    }

    #[test]
    fn every_demo_can_begin() {
        for (name, _) in DEMOS {
            let demo = demo(name).unwrap();
            demo.settings.check().unwrap();
            assert_eq!(demo.tools.specs().len(), 2);
            assert_eq!(demo.explanation.lines().count(), 2, "{name}");
            assert!(!demo.prompt.is_empty() && !demo.next.is_empty(), "{name}");
            assert_eq!(demo_of(&demo.settings).unwrap().prompt, demo.prompt);
        }
        assert!(demo("no such demo").is_none());
        assert!(Prices::bundled().price(PRICED_AS).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn the_loop_is_told_then_stopped_and_the_sum_is_right() {
        let (demo, report, events) = watch("loop").await;
        assert!(matches!(report.stop, Stop::Repetition { .. }), "{report:?}");
        let nudge = events.iter().position(|event| matches!(event, Event::Guard(guard) if guard.action == GuardAction::Nudge)).unwrap();
        let stop = events.iter().position(|event| matches!(event, Event::Guard(guard) if guard.action == GuardAction::Stop)).unwrap();
        assert!(nudge < stop);
        // 9,400 × $3 + 140 × $15 for a million: $0.0303 a step.
        assert_eq!(report.cost.to_string(), "$0.1212");
        let closing = demo.closing(&report);
        assert!(
            closing.starts_with("Without the guard: 50 steps (max_steps) and $1.51. With it: 4 steps and $0.12; $1.39 saved, 92 %."),
            "{closing}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_circle_of_two_is_stopped() {
        let (_, report, events) = watch("ping-pong").await;
        assert!(matches!(report.stop, Stop::Stalled { .. } | Stop::Cycle { .. }), "{report:?}");
        assert!(report.steps <= 10);
        assert_eq!(spoke(&events, GuardAction::Stop), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn the_budget_is_never_passed_and_the_last_answer_is_cut() {
        let (demo, report, events) = watch("budget").await;
        let limit = demo.settings.limits.cost().unwrap();
        assert!(matches!(report.stop, Stop::CostLimit { .. }), "{report:?}");
        assert!(report.cost <= limit && report.cost.as_nanos() > limit.as_nanos() / 2);
        assert_eq!(spoke(&events, GuardAction::Stop) + spoke(&events, GuardAction::Nudge), 0);
        assert!(!report.text.ends_with("follows."), "the last answer is cut: {}", report.text);
        assert!(demo.closing(&report).starts_with("Without the limit: 50 steps"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_cut_answer_becomes_whole() {
        let (_, report, events) = watch("truncated").await;
        assert_eq!(report.state, AgentState::Completed);
        let said: String =
            events.iter().filter_map(|event| if let Event::Chunk(chunk) = event { Some(chunk.text.as_str()) } else { None }).collect();
        assert!(said.contains("the lid is closed") && said.contains("until it clicks") && said.ends_with("behind.\n"), "{said}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_flaky_provider_is_asked_again() {
        let (_, report, events) = watch("flaky").await;
        assert_eq!(report.state, AgentState::Completed);
        let kinds: Vec<&str> =
            events.iter().filter_map(|event| if let Event::Retry { kind, .. } = event { Some(*kind) } else { None }).collect();
        assert_eq!(kinds, ["rate_limited", "stream_cut", "overloaded"]);
        assert_eq!(report.text.trim(), "The red kettle costs 29.90.");
    }

    #[tokio::test(start_paused = true)]
    async fn no_guard_speaks_in_a_healthy_run() {
        let (_, report, events) = watch("healthy").await;
        assert_eq!((report.state, report.tool_runs), (AgentState::Completed, 3));
        assert!(!events.iter().any(|event| matches!(event, Event::Guard(_) | Event::Retry { .. } | Event::NearBudget { .. })));
    }
}
