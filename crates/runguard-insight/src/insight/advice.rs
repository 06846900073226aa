//! Puts what the log shows into advice: what to change, why, and what it would save.
//!
//! Each kind of advice is one small function in [`RULES`], pure, with its minimum of evidence beside it. Minimums are set so
//! that a service that is doing well hears nothing: advice that is wrong once is not read twice. A rule says nothing it
//! cannot show: sessions and subjects are those of the overview, and a setting is named only where it exists.

mod budgets;
#[cfg(test)]
mod documented;
mod endpoints;
mod goals;
mod questions;
mod reading;
#[cfg(test)]
mod tests;
mod thresholds;
mod times;
mod topics;

use super::digest::Savings;
use super::{Insight, Overview, Saves, Severity};
use runguard_core::reason::GuardName;
use runguard_guards::policy::Policy;
use serde_json::Value;
use std::collections::BTreeSet;

/// What is in force: thresholds and modes, and what an operation costs.
#[derive(Debug, Clone)]
pub struct Facts<'a> {
    pub policy: &'a Policy,
    pub savings: Savings,
}

impl Facts<'_> {
    fn saves(&self, guard: GuardName, blocks: u64) -> Saves {
        let operations = blocks.saturating_mul(u64::from(self.savings.operations_of(guard)));
        Saves { operations, usd: self.savings.usd(operations) }
    }
}

/// Pieces of advice in one answer.
pub const MAX_INSIGHTS: usize = 25;
/// Of one kind.
const MAX_OF_A_KIND: usize = 8;
/// Sessions named by one piece of advice.
const MAX_SESSIONS: usize = 5;

type Rule = fn(&Overview, &Facts<'_>) -> Vec<Insight>;

/// All kinds of advice, the particular ones before the general ones.
const RULES: &[Rule] = &[
    questions::missing_signal,
    questions::handoff_gap,
    topics::low_confidence_topic,
    topics::documentation_gap,
    topics::asked_after_good_answer,
    goals::missing_action,
    goals::goal_lacks_action,
    goals::goal_spiral,
    questions::colloquial_format,
    endpoints::upstream_degrades,
    questions::retries_never_succeed,
    thresholds::observe_would_save,
    times::concentrated_in_one_hour,
    times::began_at_one_moment,
    budgets::budget_refused,
    budgets::budget_hardly_used,
    budgets::unpriced_model,
    endpoints::endpoint_fails,
    endpoints::endpoint_slow,
    thresholds::one_session,
    thresholds::threshold_never_fires,
    thresholds::one_flow,
    thresholds::general_setting,
];

/// Advice from what was seen, the weightiest first.
pub fn advise(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
    let mut all: Vec<Insight> = Vec::new();
    for rule in RULES {
        let mut found = rule(overview, facts);
        sort(&mut found);
        found.truncate(MAX_OF_A_KIND);
        all.extend(found);
    }
    // What a particular rule says of a flow, a general one does not say again.
    let particular: BTreeSet<(Option<String>, Option<String>)> =
        all.iter().filter(|insight| insight.id != "one_flow").map(|insight| (insight.guard.clone(), insight.subject.clone())).collect();
    all.retain(|insight| insight.id != "one_flow" || !particular.contains(&(insight.guard.clone(), insight.subject.clone())));
    sort(&mut all);
    all.truncate(MAX_INSIGHTS);
    all
}

fn sort(insights: &mut [Insight]) {
    insights.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| a.id.cmp(&b.id)).then_with(|| a.subject.cmp(&b.subject)));
}

/// A piece of advice in the making.
struct Draft<'a> {
    id: &'static str,
    guard: GuardName,
    subject: Option<&'a str>,
    /// Decisions it is about, and how sure it is, from 0 to 1.
    about: u64,
    sureness: f64,
    saves: Saves,
    setting: Option<String>,
    evidence: Vec<(&'static str, Value)>,
    sessions: &'a [String],
}

impl Draft<'_> {
    fn say(self, overview: &Overview, title: String, advice: String) -> Insight {
        let mut sessions: Vec<String> = Vec::new();
        for session in self.sessions {
            if sessions.len() < MAX_SESSIONS && !sessions.contains(session) {
                sessions.push(session.clone());
            }
        }
        Insight {
            id: self.id.to_owned(),
            title,
            advice,
            severity: severity(self.about, overview.totals.decisions),
            score: self.about.max(self.saves.operations) as f64 * self.sureness,
            guard: Some(self.guard.code().to_owned()),
            subject: self.subject.map(str::to_owned),
            setting: self.setting,
            evidence: self.evidence.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            sessions,
            saves: self.saves,
        }
    }
}

/// By how much of the traffic it is about; a few decisions are never urgent.
fn severity(about: u64, decisions: u64) -> Severity {
    let share = about as f64 / decisions.max(1) as f64;
    if about >= 50 && share >= 0.1 {
        Severity::High
    } else if about >= 50 || share >= 0.02 && about >= 10 {
        Severity::Medium
    } else {
        Severity::Low
    }
}
