//! Detectors and budgets that a service keeps: what to ask it. JavaScript sends.

use crate::boundary::{GONE, TOLD, Table, answer, answer_text, handle_of, length, millis, refuse, seconds, whole, with_texts};
use crate::breakers::latency;
use crate::budgets::{cost, limits};
use crate::prices::with_usage;
use crate::runs::ask_part;
use crate::stall::gave;
use runguard_core::detect::stall::{CallEffect, VolatileResults};
use runguard_core::fingerprint::of_text;
use runguard_core::ledger::{Limits, Scope};
use runguard_core::run::service::{Rest, ServicePermit, Spent};
use runguard_core::run::{
    Gave, Loops, Money, Question, ServiceBudget, ServiceCircuit, ServiceLoops, ServiceStalls, ServiceTools, Stalls, Unanswered,
};
use serde::Serialize;
use serde_json::Value;
use std::cell::RefCell;
use std::sync::Arc;

thread_local! {
    static RESTS: RefCell<Table<Rest>> = const { RefCell::new(Table::new()) };
    static LOOPS: RefCell<Table<ServiceLoops>> = const { RefCell::new(Table::new()) };
    static STALLS: RefCell<Table<ServiceStalls>> = const { RefCell::new(Table::new()) };
    static BUDGETS: RefCell<Table<Arc<ServiceBudget>>> = const { RefCell::new(Table::new()) };
    static CIRCUITS: RefCell<Table<ServiceCircuit>> = const { RefCell::new(Table::new()) };
    static TOOLS: RefCell<Table<ServiceTools>> = const { RefCell::new(Table::new()) };
}

/// A flag: whether calls pass when nobody answers.
const fn unanswered(fail_open: u32) -> Unanswered {
    if fail_open == 0 { Unanswered::Refused } else { Unanswered::Passes }
}

pub(crate) fn shared_loops(handle: u32) -> Option<Loops> {
    LOOPS.with_borrow_mut(|loops| loops.get(handle).cloned().map(Loops::Service))
}

pub(crate) fn shared_stalls(handle: u32) -> Option<Stalls> {
    STALLS.with_borrow_mut(|stalls| stalls.get(handle).cloned().map(Stalls::Service))
}

pub(crate) fn shared_budget(handle: u32) -> Option<Money> {
    BUDGETS.with_borrow_mut(|budgets| budgets.get(handle).cloned().map(Money::Service))
}

/// A number below 0 stands for a threshold left out: then the service's own holds.
#[unsafe(no_mangle)]
pub extern "C" fn service_loop_new(repeats: f64, max_cycle_len: f64, window_seconds: f64, max_calls: f64, fail_open: u32) -> u32 {
    let made = (|| {
        let window = seconds("windowSeconds", window_seconds)?;
        let (repeats, max_cycle_len) = (whole("repeats", repeats)?, whole("maxCycleLen", max_cycle_len)?);
        Ok::<_, String>(ServiceLoops::new(repeats, max_cycle_len, window, whole("maxCalls", max_calls)?, unanswered(fail_open)))
    })();
    handle_of(&LOOPS, made)
}

#[unsafe(no_mangle)]
pub extern "C" fn service_loop_free(handle: u32) {
    LOOPS.with_borrow_mut(|loops| loops.remove(handle));
}

fn of_loops(handle: u32, question: impl FnOnce(&mut ServiceLoops) -> Question) -> i32 {
    LOOPS.with_borrow_mut(|loops| loops.get(handle).map(question)).map_or(GONE, ask_part)
}

#[unsafe(no_mangle)]
pub extern "C" fn service_loop_record(handle: u32, session: usize, name: usize) -> i32 {
    with_texts([session, name], |[session, name]| of_loops(handle, |loops| loops.record(session, name)))
}

#[unsafe(no_mangle)]
pub extern "C" fn service_loop_check(handle: u32, session: usize, name: usize) -> i32 {
    with_texts([session, name], |[session, name]| of_loops(handle, |loops| loops.check(session, name)))
}

#[unsafe(no_mangle)]
pub extern "C" fn service_loop_reset(handle: u32, session: usize) {
    with_texts([session], |[session]| LOOPS.with_borrow_mut(|loops| loops.get(handle).map(|loops| loops.reset(session))));
}

#[unsafe(no_mangle)]
pub extern "C" fn service_stall_new(fail_open: u32) -> u32 {
    STALLS.with_borrow_mut(|stalls| stalls.add(ServiceStalls::new(unanswered(fail_open))))
}

#[unsafe(no_mangle)]
pub extern "C" fn service_stall_free(handle: u32) {
    STALLS.with_borrow_mut(|stalls| stalls.remove(handle));
}

fn of_stalls(handle: u32, question: impl FnOnce(&mut ServiceStalls) -> Question) -> i32 {
    STALLS.with_borrow_mut(|stalls| stalls.get(handle).map(question)).map_or(GONE, ask_part)
}

/// `result` and `error` are lengths, below 0 when there is none; `round` is below 0 when it is not known.
#[unsafe(no_mangle)]
pub extern "C" fn service_stall_observe(
    handle: u32,
    session: usize,
    tool: usize,
    args: usize,
    result: i32,
    error: i32,
    round: f64,
    tokens: f64,
) -> i32 {
    let lengths = [session, tool, args, length(result), length(error)];
    with_texts(lengths, |[session, tool, args, result_text, error_text]| match of_text(args) {
        Ok(arguments) => {
            let (gave, round) = (
                gave(VolatileResults::NONE, (result, result_text), (error, error_text), CallEffect::of(tool, args)),
                (round >= 0.0).then_some(round as u64),
            );
            of_stalls(handle, |stalls| stalls.observe(session, tool, Some(arguments), Gave { tokens: tokens as u64, ..gave }, round))
        }
        Err(problem) => refuse(problem),
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn service_stall_message(handle: u32, session: usize, text: usize) -> i32 {
    with_texts([session, text], |[session, text]| of_stalls(handle, |stalls| stalls.message(session, text)))
}

#[unsafe(no_mangle)]
pub extern "C" fn service_stall_user_message(handle: u32, session: usize) -> i32 {
    with_texts([session], |[session]| of_stalls(handle, |stalls| stalls.user_message(session)))
}

fn open(limits: Result<Limits, String>, make: impl FnOnce(Limits) -> Result<Arc<ServiceBudget>, String>) -> u32 {
    handle_of(&BUDGETS, limits.and_then(make))
}

/// 0 and a reason in the output when a limit is refused. A number below 0 stands for a limit left out.
#[unsafe(no_mangle)]
pub extern "C" fn service_budget_new(session: usize, scopes: usize, max_usd: f64, max_tokens: f64, cap: f64, fail_open: u32) -> u32 {
    with_texts([session, scopes], |[session, scopes]| {
        open(limits(max_usd, max_tokens, cap), |limits| within(ServiceBudget::new(session, limits, unanswered(fail_open)), scopes))
    })
}

/// With its scopes, as JSON; nothing for none.
fn within(budget: Arc<ServiceBudget>, scopes: &str) -> Result<Arc<ServiceBudget>, String> {
    let scopes = if scopes.is_empty() { Ok(Vec::new()) } else { Scope::read_all(scopes) };
    budget.within(scopes.map_err(|problem| format!("scopes: {problem}"))?).map_err(|problem| problem.to_string())
}

#[unsafe(no_mangle)]
pub extern "C" fn service_budget_child(handle: u32, session: usize, scopes: usize, max_usd: f64, max_tokens: f64, cap: f64) -> u32 {
    let parent = BUDGETS.with_borrow_mut(|budgets| budgets.get(handle).cloned());
    with_texts([session, scopes], |[session, scopes]| {
        open(limits(max_usd, max_tokens, cap), |limits| {
            let parent = parent.ok_or("the parent was freed")?;
            within(parent.child(session, limits).map_err(|problem| problem.to_string())?, scopes)
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn service_budget_free(handle: u32) {
    BUDGETS.with_borrow_mut(|budgets| budgets.remove(handle));
}

/// Leaves the name that the service keeps it under in the output.
#[unsafe(no_mangle)]
pub extern "C" fn service_budget_session(handle: u32) {
    BUDGETS.with_borrow_mut(|budgets| answer_text(budgets.get(handle).map_or("", |budget| budget.session())));
}

fn of_budget(handle: u32, question: impl FnOnce(&Arc<ServiceBudget>) -> Question) -> i32 {
    BUDGETS.with_borrow_mut(|budgets| budgets.get(handle).map(|budget| question(budget))).map_or(GONE, ask_part)
}

#[unsafe(no_mangle)]
pub extern "C" fn service_budget_record(handle: u32, usd: f64, count: f64) -> i32 {
    match cost(usd, count) {
        Ok(paid) => of_budget(handle, |budget| budget.record(Spent::Cost(paid))),
        Err(problem) => refuse(problem),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn service_budget_count(handle: u32, session: usize, step: usize) -> i32 {
    with_texts([session, step], |[session_id, step_id]| of_budget(handle, |budget| budget.record(Spent::Call { session_id, step_id })))
}

/// A call of a budget without steps.
#[unsafe(no_mangle)]
pub extern "C" fn service_budget_count_any(handle: u32) -> i32 {
    of_budget(handle, |budget| budget.record(Spent::AnyCall))
}

with_usage! {
    fn service_budget_record_usage(handle: u32, model: usize; usage) -> i32 {
        with_texts([model], |[model]| of_budget(handle, |budget| budget.record(Spent::Usage { model, usage: &usage })))
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn service_budget_reserve(handle: u32, usd: f64, count: f64) -> i32 {
    match cost(usd, count) {
        Ok(estimate) => of_budget(handle, |budget| budget.reserve(Spent::Cost(estimate))),
        Err(problem) => refuse(problem),
    }
}

/// The length of an id is below 0 when the service could not be asked for one.
#[unsafe(no_mangle)]
pub extern "C" fn service_budget_commit(handle: u32, reservation: i32, usd: f64, count: f64) -> i32 {
    with_texts([length(reservation)], |[id]| match cost(usd, count) {
        Ok(paid) => of_budget(handle, |budget| budget.commit((reservation >= 0).then_some(id), Spent::Cost(paid))),
        Err(problem) => refuse(problem),
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn service_budget_release(handle: u32, reservation: usize) -> i32 {
    with_texts([reservation], |[id]| of_budget(handle, |budget| budget.release(id, None)))
}

#[unsafe(no_mangle)]
pub extern "C" fn service_budget_books(handle: u32) -> i32 {
    of_budget(handle, |budget| budget.books(None))
}

/// The books; what is left is of the calls of a step.
#[unsafe(no_mangle)]
pub extern "C" fn service_budget_calls_left(handle: u32, session: usize, step: usize) -> i32 {
    with_texts([session, step], |[session_id, step_id]| of_budget(handle, |budget| budget.books(Some((session_id, step_id)))))
}

#[unsafe(no_mangle)]
pub extern "C" fn service_budget_exhausted(handle: u32) -> i32 {
    of_budget(handle, ServiceBudget::exhausted)
}

/// Says what a call may run by.
pub(crate) fn permitted(permit: ServicePermit) -> i32 {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Permitted {
        session_id: String,
        permit_id: Option<String>,
        probe: bool,
    }
    answer(TOLD, &Permitted { session_id: permit.session, permit_id: permit.id, probe: permit.is_probe })
}

#[unsafe(no_mangle)]
pub extern "C" fn service_circuit_new(name: usize, fail_open: u32) -> u32 {
    with_texts([name], |[name]| CIRCUITS.with_borrow_mut(|circuits| circuits.add(ServiceCircuit::new(name, unanswered(fail_open)))))
}

#[unsafe(no_mangle)]
pub extern "C" fn service_circuit_free(handle: u32) {
    CIRCUITS.with_borrow_mut(|circuits| circuits.remove(handle));
}

/// Leaves the name that the service keeps it under in the output.
#[unsafe(no_mangle)]
pub extern "C" fn service_circuit_name(handle: u32) {
    CIRCUITS.with_borrow_mut(|circuits| answer_text(circuits.get(handle).map_or("", |circuit| circuit.name())));
}

fn of_circuit(handle: u32, question: impl FnOnce(&mut ServiceCircuit) -> Question) -> i32 {
    CIRCUITS.with_borrow_mut(|circuits| circuits.get(handle).map(question)).map_or(GONE, ask_part)
}

#[unsafe(no_mangle)]
pub extern "C" fn service_circuit_check(handle: u32, session: usize) -> i32 {
    with_texts([session], |[session]| of_circuit(handle, |circuit| circuit.check(session)))
}

/// The length of a permit is below 0 when there is none; so is the latency when it is not known.
#[unsafe(no_mangle)]
pub extern "C" fn service_circuit_record(handle: u32, session: usize, permit: i32, ok: u32, latency_ms: f64) -> i32 {
    with_texts([session, length(permit)], |[session, id]| match latency(latency_ms) {
        Ok(latency) => of_circuit(handle, |circuit| circuit.record(session, (permit >= 0).then_some(id), ok != 0, latency)),
        Err(problem) => refuse(problem),
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn service_tools_new(fail_open: u32) -> u32 {
    TOOLS.with_borrow_mut(|tools| tools.add(ServiceTools::new(unanswered(fail_open))))
}

#[unsafe(no_mangle)]
pub extern "C" fn service_tools_free(handle: u32) {
    TOOLS.with_borrow_mut(|tools| tools.remove(handle));
}

fn of_tools(handle: u32, args: &str, question: impl FnOnce(ServiceTools, Value) -> Question) -> i32 {
    let tools = TOOLS.with_borrow_mut(|tools| tools.get(handle).copied());
    match (tools, serde_json::from_str(args)) {
        (None, _) => GONE,
        (_, Err(problem)) => refuse(problem),
        (Some(tools), Ok(args)) => ask_part(question(tools, args)),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn service_tools_should_skip(handle: u32, turn: usize, tool: usize, args: usize) -> i32 {
    with_texts([turn, tool, args], |[turn, tool, args]| of_tools(handle, args, |tools, args| tools.should_skip(turn, tool, args)))
}

#[unsafe(no_mangle)]
pub extern "C" fn service_tools_record(handle: u32, turn: usize, tool: usize, args: usize, failed: u32) -> i32 {
    with_texts([turn, tool, args], |[turn, tool, args]| of_tools(handle, args, |tools, args| tools.record(turn, tool, args, failed != 0)))
}

/// Whether a service that did not answer is left alone. One for each that was ever asked: there are few.
#[unsafe(no_mangle)]
pub extern "C" fn rest_new() -> u32 {
    RESTS.with_borrow_mut(|rests| rests.add(Rest::default()))
}

/// 1 while it is not asked yet.
#[unsafe(no_mangle)]
pub extern "C" fn rest_lasts(handle: u32, now: f64) -> i32 {
    RESTS.with_borrow_mut(|rests| rests.get(handle).map_or(0, |rest| i32::from(rest.lasts(millis(now)))))
}

/// How a question ended: 1 when it was answered.
#[unsafe(no_mangle)]
pub extern "C" fn rest_told(handle: u32, answered: i32, now: f64) {
    RESTS.with_borrow_mut(|rests| {
        if let Some(rest) = rests.get(handle) {
            if answered == 0 { rest.failed(millis(now)) } else { rest.answered() }
        }
    });
}
