//! Runs.

use crate::boundary::{
    ASK, BUSY, DONE, GONE, MISDIRECTED, NOT_NOW, REFUSED, TOLD, Table, UNANSWERED, UNKNOWN_MODEL, answer, answer_text, handle_of, length,
    millis, refuse, tripped, with_texts,
};
use crate::budgets::cost;
use crate::prices::{known_cost, longest_answer, with_usage};
use crate::{breakers, budgets, loops, services, stall, tools};
use runguard_core::Span;
use runguard_core::detect::stall::{CallEffect, Verdict};
use runguard_core::fingerprint::{FingerprintError, Volatile, of_text_without};
use runguard_core::prices::Prompt;
use runguard_core::run::reply::{self, Fault};
use runguard_core::run::service::{AnswerMeaning, Question};
use runguard_core::run::{self, Ask, Ceilings, Loops, ModelCall, Money, Progress, RESERVATION_ENDED, Refusal, Run, Stalls, Used, Warn};
use serde::Serialize;
use std::cell::RefCell;
use std::collections::BTreeMap;

thread_local! {
    static RUNS: RefCell<Table<Run>> = const { RefCell::new(Table::new()) };
    /// Under way; each is finished once.
    static MODEL_CALLS: RefCell<Table<ModelCall>> = const { RefCell::new(Table::new()) };
    /// Asked and not yet answered. An answer or its absence always comes, so none stays for ever.
    static QUESTIONS: RefCell<Table<Asker>> = const { RefCell::new(Table::new()) };
}

/// Who asks.
enum Asker {
    ByRun(u32, Box<Ask>),
    ByPart(Question),
}

impl Asker {
    fn question(&self) -> &Question {
        match self {
            Self::ByRun(_, ask) => &ask.question,
            Self::ByPart(question) => question,
        }
    }
}

fn ask(asked: Asker) -> i32 {
    #[derive(Serialize)]
    struct Asking {
        question: u32,
        part: &'static str,
        path: &'static str,
        body: String,
    }
    let question = asked.question();
    let (part, path, body) = (question.part().name(), question.path(), question.body());
    let question = QUESTIONS.with_borrow_mut(|questions| questions.add(asked));
    answer(ASK, &Asking { question, part, path, body })
}

/// A question of a detector or a budget that a service keeps.
pub(crate) fn ask_part(question: Question) -> i32 {
    ask(Asker::ByPart(question))
}

/// Left in the output of a model call that begins: its number, the model to ask, and the longest answer that can be paid.
#[derive(Serialize)]
struct Started {
    call: u32,
    model: String,
    max_output: Option<u64>,
}

fn with_run(handle: u32, operation: impl FnOnce(&mut Run) -> Progress) -> i32 {
    let progress = RUNS.with_borrow_mut(|runs| runs.get(handle).map(operation));
    match progress {
        None => GONE,
        Some(Progress::Done) => DONE,
        Some(Progress::Busy) => BUSY,
        Some(Progress::Started(begun)) => {
            let (model, max_output) = (begun.model().to_owned(), begun.max_output());
            let call = MODEL_CALLS.with_borrow_mut(|calls| calls.add(begun));
            answer(TOLD, &Started { call, model, max_output })
        }
        Some(Progress::Nudge(nudge)) => answer(TOLD, &nudge),
        Some(Progress::Refused(Refusal::Trip(trip))) => tripped(&trip),
        Some(Progress::Refused(Refusal::NotNow(trip))) => answer(NOT_NOW, &trip),
        Some(Progress::Refused(Refusal::Unpriced(unpriced))) => answer(UNKNOWN_MODEL, &unpriced),
        Some(Progress::Refused(Refusal::Unanswered)) => UNANSWERED,
        Some(Progress::Ask(asked)) => ask(Asker::ByRun(handle, asked)),
    }
}

/// What an HTTP answer is: its JSON is left in the output, or why it is none. `REFUSED` is the request's fault, `MISDIRECTED` that of
/// the address or the key; `UNANSWERED` may be better later.
#[unsafe(no_mangle)]
pub extern "C" fn reply_read(path: usize, body: usize, status: u32) -> i32 {
    with_texts([path, body], |[path, body]| match reply::read("POST", path, u16::try_from(status).unwrap_or(0), body) {
        Ok(answer) => {
            answer_text(&answer);
            DONE
        }
        Err(none) => {
            answer_text(&none.message);
            match none.fault {
                Fault::Away => UNANSWERED,
                Fault::Misdirected => MISDIRECTED,
                Fault::Input => REFUSED,
            }
        }
    })
}

/// A question that came to nothing: it was wrong, or asked of somebody else.
#[unsafe(no_mangle)]
pub extern "C" fn question_dropped(question: u32) {
    match QUESTIONS.with_borrow_mut(|questions| questions.take(question)) {
        Some(Asker::ByRun(handle, ask)) => RUNS.with_borrow_mut(|runs| {
            if let Some(run) = runs.get(handle) {
                run.withdrawn(&ask);
            }
        }),
        Some(Asker::ByPart(_)) | None => {}
    }
}

/// How a question goes on with its answer, a JSON object; a length below 0 stands for none. Each is answered once.
#[unsafe(no_mangle)]
pub extern "C" fn question_told(question: u32, told: i32) -> i32 {
    let Some(asked) = QUESTIONS.with_borrow_mut(|questions| questions.take(question)) else { return GONE };
    with_texts([length(told)], |[text]| {
        let text = (told >= 0).then_some(text);
        let question = match asked {
            Asker::ByRun(run, ask) => return with_run(run, |run| run.told(ask, text)),
            Asker::ByPart(question) => question,
        };
        match question.told(text) {
            AnswerMeaning::Passed | AnswerMeaning::Unheard(None) => DONE,
            AnswerMeaning::Unheard(Some(tool)) => stall::seen(TOLD, Verdict::default(), &tool),
            AnswerMeaning::Looked(verdict, tool) => stall::seen(TOLD, verdict, &tool),
            AnswerMeaning::Books(books) => answer(TOLD, &books),
            AnswerMeaning::Reserved(id) => answer(TOLD, &id),
            AnswerMeaning::Stopped(trip) | AnswerMeaning::NotNow(trip) | AnswerMeaning::DoesNotFit { trip, .. } => tripped(&trip),
            AnswerMeaning::Unpriced(unpriced) => answer(UNKNOWN_MODEL, &unpriced),
            AnswerMeaning::Permitted(permit) => services::permitted(permit),
            AnswerMeaning::EndpointRefused(refused) => breakers::refused(refused),
            AnswerMeaning::Skip(skip) => tools::skipped(TOLD, &skip.reason, &skip.message, skip.count, skip.limit),
            AnswerMeaning::Unanswered => UNANSWERED,
            AnswerMeaning::Next(question) => ask_part(question),
        }
    })
}

/// Numbers of a run's stall detector and budget with what they stand for; 0 stands for none.
type Parts = ((u32, Option<Stalls>), (u32, Option<Money>));

fn open(texts: [usize; 3], [tool_calls, model_calls, seconds, warn_at]: [f64; 4], loops: Option<Loops>, parts: Parts) -> u32 {
    let ((stall_handle, stall), (budget_handle, budget)) = parts;
    let is_whole = stall.is_some() == (stall_handle != 0) && budget.is_some() == (budget_handle != 0);
    let Some(loops) = loops.filter(|_| is_whole) else {
        refuse("a part of the run was freed");
        return 0;
    };
    // Whole numbers, which JavaScript has checked; below 0 there is no ceiling.
    let ceiling = |calls: f64| (calls >= 0.0).then_some(calls as u64);
    let time = (seconds >= 0.0).then(|| Span::from_millis((seconds * 1000.0) as u64));
    let ceilings = Ceilings::default().tool_calls(ceiling(tool_calls)).model_calls(ceiling(model_calls)).time(time);
    let run = with_texts(texts, |[id, rules, fallback]| {
        let rules = if rules.is_empty() { Ok(BTreeMap::new()) } else { serde_json::from_str(rules) };
        let fallback = (!fallback.is_empty()).then(|| fallback.to_owned());
        let warn = Warn::default().at_thousandths(ceiling(warn_at)).fallback_model(fallback);
        rules.map(|rules| Run::new(id, ceilings, loops, stall, budget).with_tool_rules(rules).with_warning(warn))
    });
    handle_of(&RUNS, run)
}

/// A run whose parts are in this process; `rules` are those of single tools, as JSON, or nothing. It is warned at so many thousandths of a
/// limit (below 0: never), and from then on asks `fallback`, or nothing. 0 and a reason in the output when a part was freed.
#[unsafe(no_mangle)]
pub extern "C" fn run_new(
    id: usize,
    rules: usize,
    fallback: usize,
    tool_calls: f64,
    model_calls: f64,
    seconds: f64,
    warn_at: f64,
    detector: u32,
    stall: u32,
    budget: u32,
) -> u32 {
    let parts = ((stall, stall::shared(stall)), (budget, budgets::shared(budget)));
    open([id, rules, fallback], [tool_calls, model_calls, seconds, warn_at], loops::shared(detector), parts)
}

/// A run whose parts a service keeps.
#[unsafe(no_mangle)]
pub extern "C" fn run_over_service(
    id: usize,
    rules: usize,
    fallback: usize,
    tool_calls: f64,
    model_calls: f64,
    seconds: f64,
    warn_at: f64,
    detector: u32,
    stall: u32,
    budget: u32,
) -> u32 {
    let parts = ((stall, services::shared_stalls(stall)), (budget, services::shared_budget(budget)));
    open([id, rules, fallback], [tool_calls, model_calls, seconds, warn_at], services::shared_loops(detector), parts)
}

#[unsafe(no_mangle)]
pub extern "C" fn run_free(handle: u32) {
    RUNS.with_borrow_mut(|runs| runs.remove(handle));
}

/// What the core knows of a run; `None` when it was freed.
pub(crate) fn looked_at<R>(handle: u32, look: impl FnOnce(&Run) -> R) -> Option<R> {
    RUNS.with_borrow_mut(|runs| runs.get(handle).map(|run| look(run)))
}

/// The fingerprint of arguments, without what the run does not compare.
fn arguments(handle: u32, tool: &str, args: &str) -> Result<u64, FingerprintError> {
    RUNS.with_borrow_mut(|runs| of_text_without(args, runs.get(handle).map_or(Volatile::NONE, |run| run.ignored_fields(tool))))
}

#[unsafe(no_mangle)]
pub extern "C" fn run_before_tool(handle: u32, tool: usize, args: usize, now: f64) -> i32 {
    with_texts([tool, args], |[tool, args]| match arguments(handle, tool, args) {
        Ok(arguments) => with_run(handle, |run| run.before_tool(tool, arguments, millis(now))),
        Err(problem) => refuse(problem),
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn run_before_tool_of(handle: u32, agent: usize, tool: usize, args: usize, now: f64) -> i32 {
    with_texts([agent, tool, args], |[agent, tool, args]| match arguments(handle, tool, args) {
        Ok(arguments) => with_run(handle, |run| run.before_tool_of(Some(agent), tool, arguments, millis(now))),
        Err(problem) => refuse(problem),
    })
}

/// `result` and `error` are lengths, below 0 when there is none; an agent without a name is the run itself.
#[unsafe(no_mangle)]
pub extern "C" fn run_after_tool(handle: u32, agent: usize, tool: usize, args: usize, result: i32, error: i32, now: f64) -> i32 {
    let lengths = [agent, tool, args, length(result), length(error)];
    with_texts(lengths, |[agent, tool, args, result_text, error_text]| match arguments(handle, tool, args) {
        Ok(arguments) => {
            let agent = (!agent.is_empty()).then_some(agent);
            with_run(handle, |run| {
                let (result, error) = ((result, result_text), (error, error_text));
                let gave = stall::gave(&run.volatile_results(), result, error, CallEffect::of(tool, args));
                run.after_tool_of(agent, tool, arguments, gave, millis(now))
            })
        }
        Err(problem) => refuse(problem),
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn run_before_model(handle: u32, now: f64) -> i32 {
    with_run(handle, |run| run.before_model(millis(now)))
}

/// `prompt` is the JSON of all that is sent, of which only the size matters; below 0 `max_output` is not said,
/// and the longest the model gives is taken. It is that of each of the `choices`.
#[unsafe(no_mangle)]
pub extern "C" fn run_begin_model(
    handle: u32,
    model: usize,
    prompt: usize,
    max_output: f64,
    choices: f64,
    has_waited: i32,
    may_fall_back: i32,
    now: f64,
) -> i32 {
    with_texts([model, prompt], |[model, text]| {
        let mut prompt = Prompt::default();
        match serde_json::from_str(text) {
            Ok(value) => prompt.add_json(&value),
            Err(_) => prompt.add(text),
        }
        let max_output = (max_output >= 0.0).then_some(max_output as u64).or_else(|| longest_answer(model));
        // No number is too large for the core, and what is none is 0.
        let choices = choices as u64;
        let (has_waited, may_fall_back) = (has_waited != 0, may_fall_back != 0);
        let asked = run::ModelQuestion { model, prompt, max_output, choices, has_waited, asks_again: false, may_fall_back };
        with_run(handle, |run| run.begin_model(asked, &known_cost, millis(now)))
    })
}

with_usage! {
    /// What the call used, by the provider's word; `model` is the one that answered, empty when it does not say.
    fn run_finish_model(handle: u32, call: u32, model: usize; usage) -> i32 {
        with_texts([model], |[model]| {
            let model = (!model.is_empty()).then_some(model);
            finish(handle, call, Used::Counted { model, usage: &usage })
        })
    }
}

with_usage! {
    /// The answer broke off: the provider had counted this much, and so many bytes had come.
    fn run_finish_broken_off(handle: u32, call: u32, model: usize, bytes: f64; usage) -> i32 {
        with_texts([model], |[model]| {
            let model = (!model.is_empty()).then_some(model);
            finish(handle, call, Used::BrokenOff { model, usage: &usage, bytes: bytes as u64 })
        })
    }
}

/// What a provider with prices of its own asks for.
#[unsafe(no_mangle)]
pub extern "C" fn run_finish_paid(handle: u32, call: u32, usd: f64, count: f64) -> i32 {
    match cost(usd, count) {
        Ok(cost) => finish(handle, call, Used::Paid { cost }),
        Err(problem) => refuse(problem),
    }
}

/// Nobody has counted: an answer of so many bytes came.
#[unsafe(no_mangle)]
pub extern "C" fn run_finish_uncounted(handle: u32, call: u32, bytes: f64) -> i32 {
    finish(handle, call, Used::Came { bytes: bytes as u64 })
}

/// The call was not made, or costs nothing.
#[unsafe(no_mangle)]
pub extern "C" fn run_drop_model(handle: u32, call: u32) -> i32 {
    finish(handle, call, Used::Nothing)
}

/// A call that has ended before changes nothing.
fn finish(handle: u32, call: u32, used: Used<'_>) -> i32 {
    let Some(call) = MODEL_CALLS.with_borrow_mut(|calls| calls.take(call)) else { return DONE };
    with_run(handle, |run| run.finish_model(call, used, &known_cost))
}

/// Once, when most of a limit is spent: leaves what to tell in the output.
#[unsafe(no_mangle)]
pub extern "C" fn run_take_warning(handle: u32) -> i32 {
    let warning = RUNS.with_borrow_mut(|runs| runs.get(handle).and_then(Run::take_warning));
    warning.map_or(DONE, |warning| answer(TOLD, &warning))
}

/// Calls that were billed by counting bytes.
#[unsafe(no_mangle)]
pub extern "C" fn run_estimated_calls(handle: u32) -> f64 {
    RUNS.with_borrow_mut(|runs| runs.get(handle).map_or(0, |run| run.estimated_calls())) as f64
}

#[unsafe(no_mangle)]
pub extern "C" fn run_record(handle: u32, usd: f64, count: f64) -> i32 {
    match cost(usd, count) {
        Ok(paid) => with_run(handle, |run| run.record(paid)),
        Err(problem) => refuse(problem),
    }
}

with_usage! {
    fn run_record_usage(handle: u32, model: usize; usage) -> i32 {
        with_texts([model], |[model]| with_run(handle, |run| run.record_usage(model, &usage, || known_cost(model, &usage))))
    }
}

/// Somebody who sees more than the run does has found a loop: `cycle` is one round of calls as JSON, `message` says so.
#[unsafe(no_mangle)]
pub extern "C" fn run_stop_loop(handle: u32, cycle: usize, message: usize, repeats: u32) -> i32 {
    with_texts([cycle, message], |[cycle, message]| {
        let cycle = serde_json::from_str(cycle).unwrap_or_default();
        with_run(handle, |run| run.stop_loop(cycle, repeats, message.to_owned()))
    })
}

/// The model has the result of this call already: [`TOLD`] if it is to be told so in its place.
#[unsafe(no_mangle)]
pub extern "C" fn run_tell_repeat(handle: u32, tool: usize) -> i32 {
    with_texts([tool], |[tool]| {
        let is_told = RUNS.with_borrow_mut(|runs| runs.get(handle).map(|run| run.tell_repeat(tool)));
        is_told.map_or(GONE, |is_told| if is_told { TOLD } else { DONE })
    })
}

/// Whether the run was stopped.
#[unsafe(no_mangle)]
pub extern "C" fn run_trip(handle: u32) -> i32 {
    let trip = RUNS.with_borrow_mut(|runs| runs.get(handle).map(|run| run.trip().cloned()));
    trip.map_or(GONE, |trip| trip.map_or(DONE, |trip| tripped(&trip)))
}

/// `TOLD` where dollars are limited, as far as that is known here.
#[unsafe(no_mangle)]
pub extern "C" fn run_limits_dollars(handle: u32) -> i32 {
    RUNS.with_borrow_mut(|runs| runs.get(handle).map(|run| run.limits_dollars())).map_or(GONE, |limits| if limits { TOLD } else { DONE })
}

fn change(handle: u32, change: impl FnOnce(&mut Run)) -> i32 {
    RUNS.with_borrow_mut(|runs| runs.get(handle).map(change)).map_or(GONE, |()| DONE)
}

#[unsafe(no_mangle)]
pub extern "C" fn run_new_turn(handle: u32) -> i32 {
    change(handle, Run::new_turn)
}

#[unsafe(no_mangle)]
pub extern "C" fn run_reset(handle: u32) -> i32 {
    change(handle, Run::reset)
}

/// Leaves what is said to who settles a reservation that has ended in the output.
#[unsafe(no_mangle)]
pub extern "C" fn reservation_ended() {
    answer_text(RESERVATION_ENDED);
}
