//! Makes steps of what was said and done, in whatever words a source told it.
//!
//! Every format ends here, so a call is one call whoever recorded it: arguments as canonical JSON, results as text without
//! times and durations, an error by its normalised words. A call and its result may come apart and out of order; they find
//! each other by the call's id, or, where there is none, in the order they were made.

use crate::trace::{Detail, Kind, MESSAGE, Names, ReadAt, Run, Step, Texts, shown};
use runguard_core::detect::stall::{Beside, CallEffect, is_framework, result_fingerprint, says_error};
use runguard_core::fingerprint;
use runguard_core::prices::{Price, Prices, Usage};
use serde_json::Value;
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::LazyLock;
use xxhash_rust::xxh3::xxh3_64;

/// What the name of a task is cut to, where it is the first thing the user said.
const TASK_CHARS: usize = 120;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct ToolCall {
    /// Empty where the source has none.
    pub(super) id: String,
    pub(super) tool: String,
    pub(super) args: Value,
}

/// What came of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ToolResult<'a> {
    /// Of the call; empty where the source has none.
    pub(super) id: String,
    pub(super) text: Cow<'a, str>,
    /// The source's own flag.
    pub(super) failed: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Spent {
    pub(super) tokens: u64,
    pub(super) dollars: f64,
}

static PRICES: LazyLock<Prices> = LazyLock::new(Prices::bundled);

/// Names whose prices are kept: a file has a few models, and looking for one that the table writes in another way takes longer than reading a line.
const MODELS: usize = 16;

thread_local! {
    static PRICED: RefCell<Vec<(String, Option<&'static Price>)>> = const { RefCell::new(Vec::new()) };
}

fn price(model: &str) -> Option<&'static Price> {
    PRICED.with_borrow_mut(|known| {
        if let Some((_, price)) = known.iter().find(|(name, _)| name == model) {
            return *price;
        }
        let price = PRICES.price(model).map(|(price, _)| price);
        if known.len() == MODELS {
            known.clear();
        }
        known.push((model.to_owned(), price));
        price
    })
}

/// Whether it is the name of a model that the table of prices knows.
pub(super) fn has_price(model: &str) -> bool {
    price(model).is_some()
}

impl Spent {
    /// The source's own cost, or else by the table of prices.
    pub(super) fn of(model: &str, usage: &Usage, cost: Option<f64>) -> Self {
        let by_table = || price(model).map_or(0.0, |price| price.cost(usage).as_dollars());
        let dollars = cost.filter(|cost| cost.is_finite() && *cost >= 0.0).unwrap_or_else(by_table);
        Self { tokens: usage.total_tokens(), dollars }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.tokens = self.tokens.saturating_add(other.tokens);
        self.dollars += other.dollars;
    }
}

/// One turn of the model.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Turn<'a> {
    /// Nobody asks for it beside calls.
    pub(super) text: Cow<'a, str>,
    pub(super) calls: Vec<ToolCall>,
    pub(super) spent: Spent,
    pub(super) at_millis: Option<i64>,
    /// Of the model's answer, where the source tells it in pieces: those of one answer are one turn. Empty: it is whole.
    pub(super) answer: Cow<'a, str>,
}

impl Turn<'_> {
    /// It says this too, on a line of its own.
    pub(super) fn say(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        let said = self.text.to_mut();
        if !said.is_empty() {
            said.push('\n');
        }
        said.push_str(text);
    }
}

/// A run that is being read.
#[derive(Debug)]
pub(super) struct Conversation {
    pub(super) run: Run,
    detail: Detail,
    names: Names,
    /// Calls without a result, by id, and those without an id in the order they were made.
    waiting: HashMap<String, usize>,
    nameless: Vec<usize>,
    /// Spent on a turn that left no step; it goes to the next one that does.
    owed: Spent,
    /// The model's turn at hand.
    round: u64,
    /// The model has spoken, and nobody answered yet.
    said: bool,
    /// A person has spoken since the last step.
    spoke: bool,
    /// Words that stood beside results.
    beside: Beside,
}

impl Conversation {
    pub(super) fn new(id: String, source: &str, place: ReadAt, detail: Detail) -> Self {
        let run = Run::new(id, source, place);
        Self {
            run,
            detail,
            names: Names::default(),
            waiting: HashMap::new(),
            nameless: Vec::new(),
            owed: Spent::default(),
            round: 0,
            said: false,
            spoke: false,
            beside: Beside::default(),
        }
    }

    pub(super) fn spend(&mut self, spent: Spent) {
        self.owed.add(spent);
    }

    /// More was spent on a step that is made; without one the next bears it.
    pub(super) fn spend_on(&mut self, step: Option<usize>, more: Spent) {
        match step.and_then(|step| self.run.steps.get_mut(step)) {
            Some(step) => {
                step.tokens = step.tokens.saturating_add(more.tokens);
                step.dollars += more.dollars;
            }
            None => self.owed.add(more),
        }
    }

    fn push(&mut self, kind: Kind, tool: &str, args: u64, shown_args: impl FnOnce() -> String, at_millis: Option<i64>) -> usize {
        let owed = std::mem::take(&mut self.owed);
        self.run.steps.push(Step {
            kind,
            tool: self.names.name(tool),
            args,
            result: None,
            error: None,
            effect: CallEffect::Unknown,
            round: None,
            spoke: Some(std::mem::take(&mut self.spoke)),
            tokens: owed.tokens,
            dollars: owed.dollars,
            at_millis,
            texts: (self.detail.texts).then(|| Box::new(Texts { args: shown(&shown_args()), result: String::new() })),
        });
        self.run.steps.len() - 1
    }

    fn call(&mut self, call: &ToolCall, args: u64, at_millis: Option<i64>) -> usize {
        let text = args_text(&call.args);
        let step = self.push(Kind::Call, &call.tool, args, || text.to_string(), at_millis);
        self.run.steps[step].effect = CallEffect::of(&call.tool, &text);
        step
    }

    /// A turn with calls is those calls, in order; one without is a message. A turn that says nothing is none, but is paid.
    pub(super) fn turn(&mut self, turn: &Turn<'_>) {
        self.owed.add(turn.spent);
        self.round = if turn.answer.is_empty() { self.round.wrapping_add(1) } else { xxh3_64(turn.answer.as_bytes()) };
        if turn.calls.is_empty() && !turn.text.trim().is_empty() {
            self.push(Kind::Message, MESSAGE, result_fingerprint(&turn.text), || turn.text.to_string(), turn.at_millis);
            self.said = true;
        }
        for call in &turn.calls {
            // Told again: the first telling counts.
            if !call.id.is_empty() && self.waiting.contains_key(&call.id) {
                continue;
            }
            let step = self.call(call, args_fingerprint(&call.args), turn.at_millis);
            self.run.steps[step].round = Some(self.round);
            if call.id.is_empty() {
                self.nameless.push(step);
            } else {
                self.waiting.insert(call.id.clone(), step);
            }
        }
    }

    /// Whether the call it answers is known and had no answer yet.
    pub(super) fn answer(&mut self, answer: &ToolResult<'_>) -> bool {
        let step = if answer.id.is_empty() {
            (!self.nameless.is_empty()).then(|| self.nameless.remove(0)).or_else(|| self.oldest_waiting())
        } else {
            // A source that names results but not calls answers in order.
            self.waiting.remove(&answer.id).or_else(|| (!self.nameless.is_empty()).then(|| self.nameless.remove(0)))
        };
        let Some(step) = step else { return false };
        self.fill(step, &answer.text, answer.failed);
        true
    }

    fn oldest_waiting(&mut self) -> Option<usize> {
        let (id, step) = self.waiting.iter().min_by_key(|(_, step)| **step).map(|(id, step)| (id.clone(), *step))?;
        self.waiting.remove(&id);
        Some(step)
    }

    fn fill(&mut self, step: usize, text: &str, failed: Option<bool>) {
        let Some(step) = self.run.steps.get_mut(step) else { return };
        let outcome = self.detail.volatile.outcome_of_text(text, failed.unwrap_or_else(|| says_error(text)));
        (step.result, step.error) = (outcome.result, outcome.error);
        if let Some(texts) = &mut step.texts {
            texts.result = shown(text);
        }
    }

    /// A call that is told together with what came of it, by whoever made it. The model's own word on it may have come before.
    pub(super) fn executed(&mut self, call: &ToolCall, answer: Option<(&str, Option<bool>)>, at_millis: Option<i64>) {
        let args = args_fingerprint(&call.args);
        let known = self.waiting.remove(&call.id).or_else(|| self.take_like(call, args));
        let step = known.unwrap_or_else(|| self.call(call, args, at_millis));
        if let Some((text, failed)) = answer {
            self.fill(step, text, failed);
        }
    }

    /// The oldest open call that is this one, though one of the two tellers does not know its id: the same arguments, or else
    /// the same tool, because some write the arguments in a way of their own.
    fn take_like(&mut self, call: &ToolCall, args: u64) -> Option<usize> {
        let steps = &self.run.steps;
        let is_same = |step: usize| steps.get(step).is_some_and(|step| *step.tool == *call.tool && step.args == args);
        let is_alike = |step: usize| steps.get(step).is_some_and(|step| *step.tool == *call.tool);
        let open = |wanted: &dyn Fn(usize) -> bool| {
            let named = self.waiting.values().filter(|_| call.id.is_empty());
            self.nameless.iter().chain(named).copied().filter(|step| wanted(*step)).min()
        };
        let step = open(&is_same).or_else(|| open(&is_alike))?;
        self.nameless.retain(|other| *other != step);
        self.waiting.retain(|_, other| *other != step);
        Some(step)
    }

    /// What was said to the model in the user's name: by a person, unless it answers what the model said as frameworks do.
    pub(super) fn reply(&mut self, text: &str) {
        self.spoke |= !(std::mem::take(&mut self.said) && is_framework(text));
        self.told(text);
    }

    /// The same, where it stands beside what tools gave.
    pub(super) fn said_beside_results(&mut self, text: &str) {
        self.spoke |= self.beside.person(text).is_some();
        self.told(text);
    }

    /// The same, where the source knows that no person said it.
    pub(super) fn told(&mut self, text: &str) {
        if self.run.task.is_empty() {
            self.run.task = text.trim().chars().take(TASK_CHARS).collect();
        }
        let Some(last) = self.run.steps.last_mut() else { return };
        if last.kind == Kind::Message && last.result.is_none() {
            last.result = Some(result_fingerprint(text));
            if let Some(texts) = &mut last.texts {
                texts.result = shown(text);
            }
        }
    }

    /// What is known of the whole run alone: a share to each step. Nothing where the steps say it themselves.
    pub(super) fn spread(&mut self, whole: Spent) {
        let steps = &mut self.run.steps;
        let count = steps.len() as u64;
        if count == 0 || steps.iter().any(|step| step.tokens > 0 || step.dollars > 0.0) {
            return;
        }
        for (index, step) in (0_u64..).zip(steps) {
            step.tokens = whole.tokens / count + u64::from(index < whole.tokens % count);
            step.dollars = whole.dollars / count as f64;
        }
    }

    pub(super) fn steps(&self) -> usize {
        self.run.steps.len()
    }

    pub(super) fn finish(mut self) -> Run {
        if let Some(last) = self.run.steps.last_mut() {
            last.tokens = last.tokens.saturating_add(self.owed.tokens);
            last.dollars += self.owed.dollars;
        }
        self.run
    }
}

/// Of arguments as the source has them: a value, or a text that should be one.
pub(super) fn args_fingerprint(args: &Value) -> u64 {
    fingerprint::of_value(args).unwrap_or_else(|_| xxh3_64(args.to_string().as_bytes()))
}

fn args_text(args: &Value) -> Cow<'_, str> {
    match args {
        Value::String(text) => text.into(),
        other => other.to_string().into(),
    }
}

/// Arguments that are written as text: what is no JSON is one text.
pub(super) fn args_of_text(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

/// Milliseconds since the epoch, of a time as ISO 8601 writes it.
pub(super) fn millis_of(text: &str) -> Option<i64> {
    time_of(text).map(jiff::Timestamp::as_millisecond)
}

pub(super) fn nanos_of(text: &str) -> Option<i128> {
    time_of(text).map(jiff::Timestamp::as_nanosecond)
}

/// Without a zone it is UTC, as the sources that leave it out say.
fn time_of(text: &str) -> Option<jiff::Timestamp> {
    if let Ok(at) = text.parse::<jiff::Timestamp>() {
        return Some(at);
    }
    let civil: jiff::civil::DateTime = text.parse().ok()?;
    civil.to_zoned(jiff::tz::TimeZone::UTC).ok().map(|at| at.timestamp())
}
