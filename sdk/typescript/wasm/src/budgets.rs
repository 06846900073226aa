//! Budgets: dollars, tokens, calls of a key.

use crate::boundary::{DONE, GONE, Table, answer, handle_of, refuse, tripped, whole, with_texts};
use crate::prices::{known_cost, unknown_model, with_usage};
use runguard_core::budget::{Budget, BudgetError, BudgetExceeded, Cost, Limits, NO_STEP, ReservationId, UsageRefused, call_key};
use runguard_core::money::NanoDollars;
use runguard_core::run::{Money, Trip};
use std::cell::RefCell;

thread_local! {
    static BUDGETS: RefCell<Table<Budget>> = const { RefCell::new(Table::new()) };
}

fn exceeded(found: BudgetExceeded) -> i32 {
    tripped(&Trip::from(&found))
}

/// The same budget, for a run.
pub(crate) fn shared(handle: u32) -> Option<Money> {
    BUDGETS.with_borrow_mut(|budgets| budgets.get(handle).cloned().map(Money::InProcess))
}

/// Whole numbers up to 2^53 are exact in JavaScript.
fn tokens(name: &str, value: f64) -> Result<u64, String> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if (0.0..=EXACT).contains(&value) && value.fract() == 0.0 {
        Ok(value as u64)
    } else {
        Err(format!("{name} must be a whole number of at least 0, not {value}"))
    }
}

fn dollars(name: &str, value: f64) -> Result<NanoDollars, String> {
    NanoDollars::from_dollars(value).map_err(|problem| format!("{name}: {problem}"))
}

/// A number below 0 stands for a limit left out.
pub(crate) fn limits(max_usd: f64, max_tokens: f64, cap: f64) -> Result<Limits, String> {
    Ok(Limits {
        usd: if max_usd < 0.0 { None } else { Some(dollars("maxUsd", max_usd)?) },
        tokens: if max_tokens < 0.0 { None } else { Some(tokens("maxTokens", max_tokens)?) },
        cap: whole("cap", cap)?,
    })
}

pub(crate) fn cost(usd: f64, count: f64) -> Result<Cost, String> {
    Ok(Cost { usd: dollars("usd", usd)?, tokens: tokens("tokens", count)? })
}

fn with_budget(handle: u32, operation: impl FnOnce(&Budget) -> i32) -> i32 {
    BUDGETS.with_borrow_mut(|budgets| budgets.get(handle).map_or(GONE, |budget| operation(budget)))
}

fn add(made: Result<Budget, String>) -> u32 {
    handle_of(&BUDGETS, made)
}

/// 0 and a reason in the output when a limit is refused.
#[unsafe(no_mangle)]
pub extern "C" fn budget_new(max_usd: f64, max_tokens: f64, cap: f64) -> u32 {
    add(limits(max_usd, max_tokens, cap).map(Budget::new))
}

/// A budget that draws on another; 0 also when that was freed.
#[unsafe(no_mangle)]
pub extern "C" fn budget_child(handle: u32, max_usd: f64, max_tokens: f64, cap: f64) -> u32 {
    let parent = BUDGETS.with_borrow_mut(|budgets| budgets.get(handle).cloned());
    add(limits(max_usd, max_tokens, cap)
        .and_then(|limits| parent.map(|parent| parent.child(limits)).ok_or_else(|| "the parent was freed".to_owned())))
}

#[unsafe(no_mangle)]
pub extern "C" fn budget_free(handle: u32) {
    BUDGETS.with_borrow_mut(|budgets| budgets.remove(handle));
}

#[unsafe(no_mangle)]
pub extern "C" fn budget_record(handle: u32, usd: f64, count: f64) -> i32 {
    with_budget(handle, |budget| match cost(usd, count) {
        Ok(paid) => budget.record(paid).map_or_else(exceeded, |()| DONE),
        Err(problem) => refuse(problem),
    })
}

with_usage! {
    /// Prices what a model call used, and counts dollars and tokens; tokens also without a price.
    fn budget_record_usage(handle: u32, model: usize; usage) -> i32 {
        with_texts([model], |[model]| {
            with_budget(handle, |budget| match budget.record_usage(&usage, || known_cost(model, &usage)) {
                Ok(()) => DONE,
                Err(UsageRefused::Exceeded(found)) => exceeded(found),
                Err(UsageRefused::Unpriced(unknown)) => unknown_model(&unknown),
            })
        })
    }
}

/// Whether anything may be spent at all.
#[unsafe(no_mangle)]
pub extern "C" fn budget_exhausted(handle: u32) -> i32 {
    with_budget(handle, |budget| budget.used_up().map_or(DONE, exceeded))
}

#[unsafe(no_mangle)]
pub extern "C" fn budget_count(handle: u32, session: usize, step: usize) -> i32 {
    with_texts([session, step], |[session, step]| {
        with_budget(handle, |budget| budget.count(&call_key(session, step)).map_or_else(exceeded, |_| DONE))
    })
}

/// A call of a budget without steps.
#[unsafe(no_mangle)]
pub extern "C" fn budget_count_any(handle: u32) -> i32 {
    with_budget(handle, |budget| budget.count(NO_STEP).map_or_else(exceeded, |_| DONE))
}

/// Infinite without a cap; below 0 when the budget was freed.
#[unsafe(no_mangle)]
pub extern "C" fn budget_calls_left(handle: u32, session: usize, step: usize) -> f64 {
    with_texts([session, step], |[session, step]| {
        BUDGETS.with_borrow_mut(|budgets| {
            budgets.get(handle).map_or(-1.0, |budget| budget.calls_left(&call_key(session, step)).map_or(f64::INFINITY, f64::from))
        })
    })
}

fn settled(done: Result<(), BudgetError>) -> i32 {
    match done {
        Ok(()) => DONE,
        Err(BudgetError::Exceeded(found)) => exceeded(found),
        Err(problem) => refuse(problem),
    }
}

/// The id of the reservation; or a status, as a number below 0.
#[unsafe(no_mangle)]
pub extern "C" fn budget_reserve(handle: u32, usd: f64, count: f64) -> f64 {
    let mut reserved = 0;
    let status = with_budget(handle, |budget| match cost(usd, count) {
        Ok(estimate) => settled(budget.reserve_with_id(estimate).map(|id| reserved = u64::from(id))),
        Err(problem) => refuse(problem),
    });
    if status == DONE { reserved as f64 } else { -f64::from(status) }
}

#[unsafe(no_mangle)]
pub extern "C" fn budget_commit(handle: u32, id: f64, usd: f64, count: f64) -> i32 {
    with_budget(handle, |budget| match cost(usd, count) {
        Ok(paid) => settled(budget.commit_by_id(ReservationId::from(id as u64), paid)),
        Err(problem) => refuse(problem),
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn budget_release(handle: u32, id: f64) -> i32 {
    with_budget(handle, |budget| settled(budget.release_by_id(ReservationId::from(id as u64))))
}

/// The books, with what is left in one number.
#[unsafe(no_mangle)]
pub extern "C" fn budget_books(handle: u32) -> i32 {
    with_budget(handle, |budget| answer(DONE, &budget.books(None)))
}
