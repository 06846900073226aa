//! Budgets that block much or hardly anything, and models without a price.

use super::reading::{decisions_of, fired, is_rest, named, path, reason_of, rounded, sessions_of, subject_of};
use super::{Draft, Facts};
use crate::insight::{BudgetSeen, Insight, Overview, Saves};
use runguard_core::reason::{GuardName, Reason};
use serde_json::json;

pub(super) const BUDGET_REFUSED_MIN: u64 = 10;

/// Work stops at a budget.
pub(super) fn budget_refused(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
    let guard = GuardName::Budget;
    let say = |budget: &BudgetSeen| {
        let settings = &facts.policy.budget.for_subject(&budget.budget).settings;
        let by_tokens = budget.limit_usd.is_none() && budget.limit_tokens.is_some();
        let (key, set) = if by_tokens { ("max_tokens", settings.max_tokens > 0) } else { ("max_usd", settings.max_usd > 0.0) };
        let setting = set.then(|| path(&["guards", guard.code(), key]));
        let change = if set { format!("raise {key}") } else { "raise the limit the caller sets".to_owned() };
        let draft = Draft {
            id: "budget_refused",
            guard,
            subject: Some(&budget.budget).filter(|name| !is_rest(name)).map(String::as_str),
            about: budget.refused,
            sureness: 0.8,
            saves: Saves::default(),
            setting,
            evidence: vec![
                ("refused", json!(budget.refused)),
                ("spent_usd", rounded(budget.spent_usd)),
                ("limit_usd", json!(budget.limit_usd)),
                ("spent_tokens", json!(budget.spent_tokens)),
                ("limit_tokens", json!(budget.limit_tokens)),
            ],
            sessions: sessions_of(overview, guard, &budget.budget, &[]),
        };
        draft.say(
            overview,
            format!("Budget {} blocks often", named(&budget.budget)),
            format!(
                "It blocked {} times. Look at what these runs spend their money on; if the work is worth it, {change}.",
                budget.refused
            ),
        )
    };
    overview.budgets.iter().filter(|budget| budget.refused >= BUDGET_REFUSED_MIN).map(say).collect()
}

pub(super) const BUDGET_DECISIONS_MIN: u64 = 200;
pub(super) const BUDGET_SHARE: f64 = 0.1;

/// A limit so far away that it protects from nothing.
pub(super) fn budget_hardly_used(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
    let guard = GuardName::Budget;
    let mut found = Vec::new();
    for budget in overview.budgets.iter().filter(|budget| budget.refused == 0) {
        let decisions = subject_of(overview, guard, &budget.budget).map_or(0, decisions_of);
        let Some(limit) = budget.limit_usd.filter(|limit| limit.is_finite() && *limit > 0.0) else { continue };
        let used = budget.spent_usd / limit;
        if decisions < BUDGET_DECISIONS_MIN || !(f64::MIN_POSITIVE..=limit * BUDGET_SHARE).contains(&budget.spent_usd) {
            continue;
        }
        let could_be = budget.spent_usd * 3.0;
        let set = facts.policy.budget.for_subject(&budget.budget).settings.max_usd > 0.0;
        let draft = Draft {
            id: "budget_hardly_used",
            guard,
            subject: Some(&budget.budget).filter(|name| !is_rest(name)).map(String::as_str),
            about: 1,
            sureness: 0.5,
            saves: Saves::default(),
            setting: set.then(|| path(&["guards", guard.code(), "max_usd"])),
            evidence: vec![
                ("decisions", json!(decisions)),
                ("spent_usd", rounded(budget.spent_usd)),
                ("limit_usd", rounded(limit)),
                ("used_share", rounded(used)),
                ("could_be_usd", rounded(could_be)),
            ],
            sessions: sessions_of(overview, guard, &budget.budget, &[]),
        };
        found.push(draft.say(
            overview,
            format!("Budget {} is hardly used", named(&budget.budget)),
            format!(
                "{:.4} of {limit:.2} dollars are spent after {decisions} decisions, so a run that goes wrong is stopped late. A limit of {could_be:.4} would still leave three times that.",
                budget.spent_usd
            ),
        ));
    }
    found
}

pub(super) const UNPRICED_MIN: u64 = 5;

/// Calls are refused only because a price is missing.
pub(super) fn unpriced_model(overview: &Overview, _facts: &Facts<'_>) -> Vec<Insight> {
    let reason = Reason::UnknownModel;
    let Some(count) = reason_of(overview, reason).filter(|count| fired(count) >= UNPRICED_MIN) else { return Vec::new() };
    let draft = Draft {
        id: "unpriced_model",
        guard: reason.guard(),
        subject: None,
        about: fired(count),
        sureness: 0.9,
        saves: Saves::default(),
        setting: Some("guards.budget.unknown_models".into()),
        evidence: vec![("refused", json!(fired(count)))],
        sessions: &count.sessions,
    };
    vec![draft.say(
        overview,
        "A model has no price".into(),
        format!("{} calls were blocked because their model is not in the price table. Check the model's name, or decide with unknown_models what is done with it.", fired(count)),
    )]
}
