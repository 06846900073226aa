//! What an agent lacks for its goals, and on which of them it goes round.

use super::reading::{cut, fired_of, is_rest, named, percent, reason_of, rounded, share, sum, words_of};
use super::{Draft, Facts};
use crate::insight::{Goal, GoalAction, Insight, Overview};
use runguard_core::reason::{GuardName, Reason};
use serde_json::json;

pub(super) const CEILING_MIN: u64 = 5;
pub(super) const SPIRAL_MIN: u64 = 10;
pub(super) const SKEW: f64 = 0.6;
pub(super) const SKEW_RUNS_MIN: u64 = 100;
/// Of one or two actions no skew can be told.
pub(super) const SKEW_ACTIONS_MIN: usize = 3;

/// The agent turns round and round: an action it needs is not there.
pub(super) fn missing_action(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
    let guard = GuardName::AgentAction;
    let ceilings = fired_of(overview, Reason::TotalActionCeiling);
    let spirals =
        [Reason::ConsecutiveSameActionSpiral, Reason::SameActionFrequencySpiral, Reason::IdenticalCallSpiral, Reason::ActionCycle]
            .map(|reason| fired_of(overview, reason));
    let spirals = sum(&spirals);
    let runs = overview.actions.iter().fold(0, |total: u64, action| total.saturating_add(action.runs));
    // A favourite action is no fault by itself; together with spirals it is.
    let skewed =
        overview.actions.len() >= SKEW_ACTIONS_MIN && runs >= SKEW_RUNS_MIN && overview.action_skew >= SKEW && spirals >= SPIRAL_MIN;
    if ceilings < CEILING_MIN && !skewed {
        return Vec::new();
    }
    let top = overview.actions.iter().max_by_key(|action| action.runs);
    let fair = runs / (overview.actions.len().max(1) as u64);
    let sessions = [Reason::TotalActionCeiling, Reason::ConsecutiveSameActionSpiral, Reason::SameActionFrequencySpiral]
        .into_iter()
        .find_map(|reason| reason_of(overview, reason).filter(|count| !count.sessions.is_empty()));
    let draft = Draft {
        id: "missing_action",
        guard,
        subject: top.map(|action| action.action.as_str()).filter(|action| !is_rest(action)),
        about: ceilings.saturating_add(spirals),
        sureness: if skewed && ceilings >= CEILING_MIN { 0.9 } else { 0.7 },
        saves: facts.saves(guard, top.map_or(0, |action| action.runs.saturating_sub(fair))),
        setting: None,
        evidence: vec![
            ("ceilings_reached", json!(ceilings)),
            ("spirals", json!(spirals)),
            ("skew", rounded(overview.action_skew)),
            ("runs", json!(runs)),
            ("top_action_share", rounded(top.map_or(0.0, |action| share(action.runs, runs)))),
        ],
        sessions: sessions.map_or(&[], |count| count.sessions.as_slice()),
    };
    let most = top
        .map_or_else(String::new, |action| format!(" {} makes {} of all runs.", named(&action.action), percent(share(action.runs, runs))));
    vec![draft.say(
        overview,
        "The agent lacks an action its goals need".into(),
        format!(
            "Sessions reached the action ceiling {ceilings} times and spiralled {spirals} times.{most} Look at what these sessions wanted, and add the missing action or take the goal out."
        ),
    )]
}

pub(super) const GOAL_SPIRALS_MIN: u64 = 5;
pub(super) const GOAL_CEILINGS_MIN: u64 = 3;
/// Calls of an action that is not there.
pub(super) const NOT_OFFERED_MIN: u64 = 3;
/// Actions named in a sentence.
pub(super) const ACTIONS_NAMED: usize = 3;

/// "a" 3 times, "b" twice: the most first, those that never are left out.
fn most_of(goal: &Goal, count: impl Fn(&GoalAction) -> u64) -> Vec<(&str, u64)> {
    let mut most: Vec<(&str, u64)> =
        goal.actions.iter().filter(|action| !is_rest(&action.action)).map(|action| (action.action.as_str(), count(action))).collect();
    most.retain(|(_, times)| *times > 0);
    most.sort_by(|left, right| (right.1, left.0).cmp(&(left.1, right.0)));
    most.truncate(ACTIONS_NAMED);
    most
}

fn said(actions: &[(&str, u64)]) -> String {
    actions.iter().map(|(action, count)| format!("{} ({count}×)", named(action))).collect::<Vec<_>>().join(", ")
}

/// Which actions turn round and round on which goal.
pub(super) fn goal_spiral(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
    let guard = GuardName::AgentAction;
    let say = |goal: &Goal| {
        let actions = most_of(goal, |action| action.spirals);
        let (worst, _) = *actions.first()?;
        let draft = Draft {
            id: "goal_spiral",
            guard,
            subject: Some(worst),
            about: goal.spirals,
            sureness: 0.8,
            saves: facts.saves(guard, goal.spirals),
            setting: None,
            evidence: vec![
                ("goal", json!(words_of(&goal.label, &goal.goal))),
                ("runs", json!(goal.runs)),
                ("spirals", json!(goal.spirals)),
                ("actions", actions.iter().map(|(action, count)| ((*action).to_owned(), json!(count))).collect()),
            ],
            sessions: &goal.sessions,
        };
        Some(draft.say(
            overview,
            format!("The agent spirals on the goal {}", named(words_of(&goal.label, &goal.goal))),
            format!(
                "Stopped on this goal: {}. What they return does not lead to it. Let them return what the goal needs, or say in the goal when to give up.",
                said(&actions)
            ),
        ))
    };
    overview.goals.iter().filter(|goal| goal.spirals >= GOAL_SPIRALS_MIN).filter_map(say).collect()
}

/// A goal that what is on offer does not reach: the agent asks for what is not there, or tries everything until it is stopped.
pub(super) fn goal_lacks_action(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
    let guard = GuardName::AgentAction;
    let say = |goal: &Goal| {
        let missing = most_of(goal, |action| action.not_offered);
        let asked = missing.iter().fold(0, |total: u64, (_, count)| total.saturating_add(*count));
        let found = if asked >= NOT_OFFERED_MIN {
            format!("The agent asked for {}, which it does not have. Add the action, or take the goal out.", said(&missing))
        } else if goal.ceilings >= GOAL_CEILINGS_MIN {
            let offered = if goal.offered.is_empty() { String::new() } else { format!(" It has: {}.", cut_list(&goal.offered)) };
            format!(
                "On this goal the agent used up all its actions {} times.{offered} None of them leads there: add the one that does, or take the goal out.",
                goal.ceilings
            )
        } else {
            return None;
        };
        let draft = Draft {
            id: "goal_lacks_action",
            guard,
            subject: missing.first().map(|(action, _)| *action),
            about: asked.max(goal.ceilings),
            sureness: if asked >= NOT_OFFERED_MIN { 0.95 } else { 0.75 },
            saves: facts.saves(guard, goal.runs),
            setting: None,
            evidence: vec![
                ("goal", json!(words_of(&goal.label, &goal.goal))),
                ("missing", json!(missing.iter().map(|(action, _)| *action).collect::<Vec<_>>())),
                ("asked_for_missing", json!(asked)),
                ("ceilings_reached", json!(goal.ceilings)),
                ("available_actions", json!(goal.offered)),
            ],
            sessions: &goal.sessions,
        };
        Some(draft.say(overview, format!("The goal {} needs an action that is missing", named(words_of(&goal.label, &goal.goal))), found))
    };
    overview.goals.iter().filter_map(say).collect()
}

/// The first names of a list.
fn cut_list(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let mut shown = names.iter().take(SHOWN).map(|name| cut(name)).collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN {
        shown.push_str(", …");
    }
    shown
}
