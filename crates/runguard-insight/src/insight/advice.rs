//! Puts what the log shows into advice: what to change, why, and what it would save.
//!
//! Each kind of advice is one small function in [`RULES`], pure, with its minimum of evidence beside it. Minimums are set so
//! that a service that is doing well hears nothing: advice that is wrong once is not read twice. A rule says nothing it
//! cannot show: sessions and subjects are those of the overview, and a setting is named only where it exists.

use super::digest::{GAP_CONFIDENCE, Savings};
use super::{Counted, Endpoint, Hours, Insight, Outcomes, Overview, ReasonCount, Saves, Severity, SubjectCount};
use runguard_core::reason::{GuardName, Reason};
use runguard_core::shown::toml;
use runguard_guards::policy::{Mode, Policy};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::LazyLock;

/// What is in force: thresholds and modes, and what an operation costs.
#[derive(Debug, Clone)]
pub struct Facts<'a> {
    pub policy: &'a Policy,
    pub savings: Savings,
}

impl Facts<'_> {
    fn saves(&self, guard: GuardName, blocks: u64) -> Saves {
        let operations = blocks.saturating_mul(u64::from(self.savings.operations_of(guard)));
        Saves { operations, usd: operations as f64 * self.savings.usd_per_operation }
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
    missing_signal,
    handoff_gap,
    low_confidence_topic,
    documentation_gap,
    asked_after_good_answer,
    missing_action,
    goal_lacks_action,
    goal_spiral,
    colloquial_format,
    upstream_degrades,
    retries_never_succeed,
    observe_would_save,
    concentrated_in_one_hour,
    began_at_one_moment,
    budget_refused,
    budget_hardly_used,
    unpriced_model,
    endpoint_fails,
    endpoint_slow,
    one_session,
    threshold_never_fires,
    one_flow,
    general_setting,
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

// -- reading the overview -------------------------------------------------------------------------

fn reason_of(overview: &Overview, reason: Reason) -> Option<&ReasonCount> {
    overview.reasons.iter().find(|count| count.reason == reason.code())
}

fn fired(count: &ReasonCount) -> u64 {
    count.blocked.saturating_add(count.would_block)
}

fn fired_of(overview: &Overview, reason: Reason) -> u64 {
    reason_of(overview, reason).map_or(0, fired)
}

fn subject_of<'a>(overview: &'a Overview, guard: GuardName, subject: &str) -> Option<&'a SubjectCount> {
    overview.subjects.iter().find(|count| count.guard == guard.code() && count.subject == subject)
}

fn decisions_of(count: &SubjectCount) -> u64 {
    count.allowed.saturating_add(count.would_block).saturating_add(count.blocked)
}

/// The subject's own examples if there are any, else those of the reason.
fn sessions_of<'a>(overview: &'a Overview, guard: GuardName, subject: &str, otherwise: &'a [String]) -> &'a [String] {
    subject_of(overview, guard, subject).map(|count| count.sessions.as_slice()).filter(|sessions| !sessions.is_empty()).unwrap_or(otherwise)
}

/// Allowed, would have been blocked, blocked, of one bucket.
fn bucket(outcomes: &Outcomes, index: usize) -> [u64; 3] {
    [&outcomes.allowed, &outcomes.would_block, &outcomes.blocked].map(|counts| counts.get(index).copied().unwrap_or(0))
}

/// All decisions of a guard in the range.
fn traffic(overview: &Overview, guard: GuardName) -> u64 {
    let Some(outcomes) = overview.series.by_guard.get(guard.code()) else { return 0 };
    (0..buckets(outcomes)).map(|index| sum(&bucket(outcomes, index))).fold(0, u64::saturating_add)
}

fn buckets(outcomes: &Outcomes) -> usize {
    outcomes.allowed.len().max(outcomes.would_block.len()).max(outcomes.blocked.len())
}

fn sum(counts: &[u64]) -> u64 {
    counts.iter().fold(0, |total, count| total.saturating_add(*count))
}

fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

fn rounded(value: f64) -> Value {
    json!((value * 1000.0).round() / 1000.0)
}

fn percent(value: f64) -> String {
    format!("{:.0} %", value * 100.0)
}

/// Long names are cut.
fn cut(name: &str) -> String {
    const SHOWN: usize = 60;
    let mut shown: String = name.chars().take(SHOWN).collect();
    if shown.len() < name.len() {
        shown.push('…');
    }
    shown
}

/// A name in a sentence.
fn named(name: &str) -> String {
    format!("\"{}\"", cut(name))
}

/// A path in the settings file. A name that is no bare key is quoted as TOML wants it.
fn path(parts: &[&str]) -> String {
    let key = |part: &&str| {
        let bare = !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
        if bare { (*part).to_owned() } else { toml(part) }
    };
    parts.iter().map(key).collect::<Vec<_>>().join(".")
}

/// Names the store made up for the rest of a long list are no flow one could change.
fn is_rest(subject: &str) -> bool {
    subject.is_empty() || subject == "(other)"
}

/// A moment to the minute, in UTC.
fn date_time(millis: i64) -> String {
    let (days, minutes) = (millis.div_euclid(86_400_000), millis.rem_euclid(86_400_000) / 60_000);
    // Days of the civil calendar, counted from 1 March of the year 0, in eras of 400 years.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02} UTC", minutes / 60, minutes % 60)
}

// -- the rules ------------------------------------------------------------------------------------

/// From how many refusals on, and from which share of the flow's decisions.
const SIGNAL_MIN: u64 = 10;
const SIGNAL_SHARE: f64 = 0.2;

/// The validation asks for what people do not say.
fn missing_signal(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
    let mut found = Vec::new();
    for reason in [Reason::InputMissingPrerequisiteSignal, Reason::EntitySignalAbsent] {
        let Some(count) = reason_of(overview, reason) else { continue };
        let guard = reason.guard();
        for Counted { subject, count: refused } in count.subjects.iter().filter(|counted| !is_rest(&counted.subject)) {
            let decisions = subject_of(overview, guard, subject).map_or(*refused, decisions_of).max(*refused);
            let part = share(*refused, decisions);
            if *refused < SIGNAL_MIN || part < SIGNAL_SHARE {
                continue;
            }
            let draft = Draft {
                id: "missing_signal",
                guard,
                subject: Some(subject),
                about: *refused,
                sureness: 0.5 + part / 2.0,
                // Each refusal follows a call that was paid for and could not succeed.
                saves: facts.saves(guard, *refused),
                setting: Some(path(&["guards", guard.code(), "patterns", subject])),
                evidence: vec![("refused", json!(refused)), ("decisions", json!(decisions)), ("share", rounded(part))],
                sessions: sessions_of(overview, guard, subject, &count.sessions),
            };
            found.push(draft.say(
                overview,
                format!("{} is asked for what people have not said", named(subject)),
                format!(
                    "{} of the messages lack what {} looks for. Ask for the value before this step, or widen the pattern if real answers look different.",
                    percent(part),
                    named(subject)
                ),
            ));
        }
    }
    found
}

/// The same circle in this many conversations is no accident.
const CHAIN_MIN: u64 = 3;

/// Bots hand over in a circle: nobody owns the question.
fn handoff_gap(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
    let guard = GuardName::Handoff;
    let mut found = Vec::new();
    for seen in &overview.handoffs.chains {
        let visits = |bot: &String| seen.chain.iter().filter(|other| *other == bot).count();
        let Some(returned) = seen.chain.iter().max_by_key(|bot| visits(bot)).filter(|bot| visits(bot) >= 2 && !is_rest(bot)) else {
            continue;
        };
        if seen.count < CHAIN_MIN {
            continue;
        }
        let shown: Vec<String> = seen.chain.iter().map(|bot| cut(bot)).collect();
        let mut bots: Vec<String> = Vec::new();
        for bot in &seen.chain {
            if !bots.contains(&named(bot)) {
                bots.push(named(bot));
            }
        }
        let between = if bots.len() == 1 { bots.concat() } else { bots.join(" and ") };
        let draft = Draft {
            id: "handoff_gap",
            guard,
            subject: Some(returned),
            about: seen.count,
            sureness: 0.9,
            saves: facts.saves(guard, seen.count.saturating_mul(seen.chain.len().saturating_sub(1) as u64)),
            setting: None,
            evidence: vec![("chain", json!(seen.chain)), ("conversations", json!(seen.count))],
            sessions: &seen.sessions,
        };
        found.push(draft.say(
            overview,
            format!("Conversations circle between {between}"),
            format!(
                "{} conversations went {}. None of these bots owns the question. Widen the domain of one, or send this case to a person at once.",
                seen.count,
                shown.join(" → ")
            ),
        ));
    }
    found
}

/// From how many sessions on a share of them says something, and which share it is.
const LOW_ALL_MIN: u64 = 20;
const LOW_SESSIONS_MIN: u64 = 5;
const LOW_SHARE: f64 = 0.1;

fn is_low_in_many(topic: &super::Topic, overview: &Overview) -> bool {
    overview.topic_sessions >= LOW_ALL_MIN
        && topic.low_sessions >= LOW_SESSIONS_MIN
        && topic.low_share > LOW_SHARE
        && !is_rest(&topic.topic)
}

fn shown_topic(topic: &super::Topic) -> &str {
    if topic.label.trim().is_empty() { &topic.topic } else { &topic.label }
}

/// A topic that one session in ten gets a poor answer to, in whatever words.
fn low_confidence_topic(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
    let guard = GuardName::KbRequery;
    let say = |topic: &super::Topic| {
        let draft = Draft {
            id: "low_confidence_topic",
            guard,
            subject: Some(&topic.topic),
            about: topic.low_sessions,
            sureness: 0.9,
            // Each of them had one poor answer at least that was paid for.
            saves: facts.saves(guard, topic.low_sessions),
            setting: None,
            evidence: vec![
                ("label", json!(shown_topic(topic))),
                ("low_sessions", json!(topic.low_sessions)),
                ("sessions", json!(overview.topic_sessions)),
                ("share", rounded(topic.low_share)),
                ("unanswered_sessions", json!(topic.unanswered_sessions)),
                ("phrasings", json!(topic.phrasings)),
                ("best_confidence", rounded(topic.best_confidence)),
            ],
            sessions: &topic.sessions,
        };
        draft.say(
            overview,
            format!("{} of the sessions get a poor answer to {}", percent(topic.low_share), named(shown_topic(topic))),
            format!(
                "{} of {} sessions that asked the knowledge base had an answer below {GAP_CONFIDENCE} on this, {} of them no better one; it was asked in {} wordings, and the best answer had a confidence of {:.2}. Write a document on it, or improve the one there is.",
                topic.low_sessions, overview.topic_sessions, topic.unanswered_sessions, topic.phrasings, topic.best_confidence
            ),
        )
    };
    overview.topics.iter().filter(|topic| is_low_in_many(topic, overview)).map(say).collect()
}

const GAP_QUERIES_MIN: u64 = 5;
/// Answers whose confidence is known: a topic that was never answered says nothing of the documents.
const GAP_ANSWERS_MIN: u64 = 3;

/// A topic that is asked for and never answered well.
fn documentation_gap(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
    let guard = GuardName::KbRequery;
    let gaps = overview.topics.iter().filter(|topic| {
        let answered = sum(&topic.histogram);
        let is_gap = topic.queries >= GAP_QUERIES_MIN && answered >= GAP_ANSWERS_MIN && topic.best_confidence < GAP_CONFIDENCE;
        // What the share of the sessions says already is not said again.
        is_gap && !is_rest(&topic.topic) && !is_low_in_many(topic, overview)
    });
    let say = |topic: &super::Topic| {
        let label = shown_topic(topic);
        let draft = Draft {
            id: "documentation_gap",
            guard,
            subject: Some(&topic.topic),
            about: topic.queries,
            sureness: 0.9 - topic.best_confidence.clamp(0.0, 1.0) / 2.0,
            saves: facts.saves(guard, topic.queries),
            setting: None,
            evidence: vec![
                ("queries", json!(topic.queries)),
                ("best_confidence", rounded(topic.best_confidence)),
                ("mean_confidence", rounded(topic.mean_confidence)),
                ("label", json!(label)),
            ],
            sessions: &topic.sessions,
        };
        draft.say(
            overview,
            format!("The knowledge base does not answer {}", named(label)),
            format!(
                "Asked {} times; the best answer had a confidence of {:.2}. Write a document on this topic. Until then, send it to a person instead of asking again.",
                topic.queries, topic.best_confidence
            ),
        )
    };
    gaps.map(say).collect()
}

const GOOD_ANSWER_MIN: u64 = 10;

/// The flow goes on asking although the answer was good.
fn asked_after_good_answer(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
    let reason = Reason::ConfidenceAlreadyMet;
    let Some(count) = reason_of(overview, reason).filter(|count| fired(count) >= GOOD_ANSWER_MIN) else { return Vec::new() };
    let threshold = facts.policy.kb_requery.botpress.for_subject("").settings.confidence_threshold;
    let draft = Draft {
        id: "asked_after_good_answer",
        guard: reason.guard(),
        subject: None,
        about: fired(count),
        sureness: 0.7,
        saves: facts.saves(reason.guard(), count.would_block),
        setting: Some("guards.kb_requery.botpress.confidence_threshold".into()),
        evidence: vec![("refused", json!(fired(count))), ("threshold", rounded(threshold))],
        sessions: &count.sessions,
    };
    vec![draft.say(
        overview,
        "The flow asks the knowledge base again after a good answer".into(),
        format!(
            "{} times the last answer already had a confidence of {threshold} or more. Let the loop end there. If those answers were not good enough, raise the threshold.",
            fired(count)
        ),
    )]
}

const CEILING_MIN: u64 = 5;
const SPIRAL_MIN: u64 = 10;
const SKEW: f64 = 0.6;
const SKEW_RUNS_MIN: u64 = 100;
/// Of one or two actions no skew can be told.
const SKEW_ACTIONS_MIN: usize = 3;

/// The agent turns round and round: an action it needs is not there.
fn missing_action(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
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

const GOAL_SPIRALS_MIN: u64 = 5;
const GOAL_CEILINGS_MIN: u64 = 3;
/// Calls of an action that is not there.
const NOT_OFFERED_MIN: u64 = 3;
/// Actions named in a sentence.
const ACTIONS_NAMED: usize = 3;

/// The words of a goal, or what stands for them.
fn goal_label(goal: &super::Goal) -> &str {
    if goal.label.trim().is_empty() { &goal.goal } else { &goal.label }
}

/// "a" 3 times, "b" twice: the most first, those that never are left out.
fn most_of(goal: &super::Goal, count: impl Fn(&super::GoalAction) -> u64) -> Vec<(&str, u64)> {
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
fn goal_spiral(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
    let guard = GuardName::AgentAction;
    let say = |goal: &super::Goal| {
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
                ("goal", json!(goal_label(goal))),
                ("runs", json!(goal.runs)),
                ("spirals", json!(goal.spirals)),
                ("actions", actions.iter().map(|(action, count)| ((*action).to_owned(), json!(count))).collect()),
            ],
            sessions: &goal.sessions,
        };
        Some(draft.say(
            overview,
            format!("The agent spirals on the goal {}", named(goal_label(goal))),
            format!(
                "Stopped on this goal: {}. What they return does not lead to it. Let them return what the goal needs, or say in the goal when to give up.",
                said(&actions)
            ),
        ))
    };
    overview.goals.iter().filter(|goal| goal.spirals >= GOAL_SPIRALS_MIN).filter_map(say).collect()
}

/// A goal that what is on offer does not reach: the agent asks for what is not there, or tries everything until it is stopped.
fn goal_lacks_action(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
    let guard = GuardName::AgentAction;
    let say = |goal: &super::Goal| {
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
                ("goal", json!(goal_label(goal))),
                ("missing", json!(missing.iter().map(|(action, _)| *action).collect::<Vec<_>>())),
                ("asked_for_missing", json!(asked)),
                ("ceilings_reached", json!(goal.ceilings)),
                ("available_actions", json!(goal.offered)),
            ],
            sessions: &goal.sessions,
        };
        Some(draft.say(overview, format!("The goal {} needs an action that is missing", named(goal_label(goal))), found))
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

const HINTS_MIN: u64 = 10;

/// People say the value in words because nobody showed them the form.
fn colloquial_format(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
    let guard = GuardName::CaptureSlotFill;
    let settings = &facts.policy.capture_slot_fill.for_subject("").settings;
    let often = overview.entities.iter().filter(|entity| entity.hints >= HINTS_MIN && !is_rest(&entity.entity));
    let say = |entity: &super::Entity| {
        let known = settings.entities.contains_key(&entity.entity);
        let draft = Draft {
            id: "colloquial_format",
            guard,
            subject: Some(&entity.entity),
            about: entity.hints,
            sureness: 0.9,
            saves: facts.saves(guard, entity.hints),
            setting: known.then(|| path(&["guards", guard.code(), "entities", &entity.entity, "hint"])),
            evidence: vec![("hints", json!(entity.hints)), ("given_up", json!(entity.blocked))],
            sessions: &entity.sessions,
        };
        draft.say(
            overview,
            format!("People write {} in words", named(&entity.entity)),
            format!(
                "{} answers had the value in words and needed a format hint. Show an example of the format in the first prompt, not after the first mistake.",
                entity.hints
            ),
        )
    };
    often.map(say).collect()
}

const DEGRADE_BUCKETS_MIN: usize = 8;
const DEGRADE_LATE_MIN: u64 = 6;
const DEGRADE_FACTOR: f64 = 3.0;

/// Failures rise while the circuit still holds.
fn upstream_degrades(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
    let guard = GuardName::ApiCircuit;
    let calls = overview.series.by_guard.get(guard.code());
    let tripped = |endpoint: &Endpoint| {
        reason_of(overview, Reason::CircuitJustTripped)
            .is_some_and(|count| count.subjects.iter().any(|seen| seen.subject == endpoint.endpoint))
    };
    let mut found = Vec::new();
    for endpoint in overview.endpoints.iter().filter(|endpoint| !is_rest(&endpoint.endpoint) && !tripped(endpoint)) {
        let failures = &endpoint.failures_over_time;
        if failures.len() < DEGRADE_BUCKETS_MIN {
            continue;
        }
        let split = failures.len() - failures.len() / 4;
        // Failures by call, so that a busy hour is no alarm; by bucket where calls are not known.
        let rate = |range: std::ops::Range<usize>| {
            let failed = sum(&failures[range.clone()]);
            let made = calls.map_or(0, |outcomes| range.clone().map(|index| sum(&bucket(outcomes, index))).fold(0, u64::saturating_add));
            (failed, failed as f64 / if made == 0 { range.len() as f64 } else { made as f64 })
        };
        let ((early, early_rate), (late, late_rate)) = (rate(0..split), rate(split..failures.len()));
        if late < DEGRADE_LATE_MIN || late_rate < early_rate * DEGRADE_FACTOR || late <= early / DEGRADE_FACTOR as u64 {
            continue;
        }
        let threshold = facts.policy.api_circuit.for_subject(&endpoint.endpoint).settings.circuit.failure_threshold;
        let draft = Draft {
            id: "upstream_degrades",
            guard,
            subject: Some(&endpoint.endpoint),
            about: late,
            sureness: 1.0,
            saves: facts.saves(guard, late),
            setting: Some(path(&["guards", guard.code(), "failure_threshold"])),
            evidence: vec![
                ("failures_late", json!(late)),
                ("failures_before", json!(early)),
                ("calls", json!(endpoint.calls)),
                ("failure_threshold", json!(threshold)),
            ],
            sessions: sessions_of(overview, guard, &endpoint.endpoint, &[]),
        };
        let mut insight = draft.say(
            overview,
            format!("{} is getting worse", named(&endpoint.endpoint)),
            format!(
                "{late} of its {} failures are of the last quarter of this time, and the circuit has not tripped ({threshold} failures within its window). Look at the upstream before it does.",
                late.saturating_add(early)
            ),
        );
        // Early is the point of it.
        insight.severity = Severity::High;
        found.push(insight);
    }
    found
}

const NEVER_MIN: u64 = 10;

/// The guards that count tries of a step: what they say at the cap, and the cap.
fn tries(facts: &Facts<'_>, subject: &str) -> [(Reason, &'static str, &'static str, u32); 3] {
    let policy = facts.policy;
    [
        (Reason::RetryCapReached, "tasks", "max_retries", policy.ai_task_retry.for_subject(subject).settings.max_retries),
        (Reason::RepromptCeilingReached, "steps", "max_reprompts", policy.no_match_reprompt.for_subject(subject).settings.max_reprompts),
        (Reason::AttemptCeilingReached, "steps", "max_attempts", policy.capture_slot_fill.for_subject(subject).settings.max_attempts),
    ]
}

/// Sessions that try again end at the cap, all of them.
fn retries_never_succeed(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
    let mut found = Vec::new();
    for count in &overview.reasons {
        for Counted { subject, count: ended } in count.subjects.iter().filter(|counted| !is_rest(&counted.subject)) {
            let Some((reason, table, key, cap)) = tries(facts, subject).into_iter().find(|(reason, ..)| reason.code() == count.reason)
            else {
                continue;
            };
            let Some(seen) = subject_of(overview, reason.guard(), subject) else { continue };
            let tried = seen.allowed.saturating_add(seen.would_block);
            let used_up = ended.saturating_mul(u64::from(cap));
            // A session that ends at the cap took `cap` tries. More tries than that: some sessions ended well. Far fewer:
            // the same sessions were refused again and again, and of the others nothing is known.
            if *ended < NEVER_MIN || cap == 0 || tried > used_up || tried < used_up / 2 {
                continue;
            }
            let guard = reason.guard();
            let spared = if cap > 1 { tried - tried / u64::from(cap) } else { tried };
            let draft = Draft {
                id: "retries_never_succeed",
                guard,
                subject: Some(subject),
                about: tried,
                sureness: 0.8,
                saves: facts.saves(guard, spared),
                setting: Some(path(&["guards", guard.code(), table, subject, key])),
                evidence: vec![("tries", json!(tried)), ("ended_at_the_cap", json!(ended)), ("cap", json!(cap))],
                sessions: sessions_of(overview, guard, subject, &count.sessions),
            };
            let to = u32::from(cap > 1);
            found.push(draft.say(
                overview,
                format!("Trying {} again hardly ever helps", named(subject)),
                format!(
                    "{tried} tries were allowed, no more than {ended} sessions that end at the cap of {cap} use up: as good as all of them were refused in the end. Set {key} of {} to {to}, and send people elsewhere sooner.",
                    named(subject)
                ),
            ));
        }
    }
    found
}

const OBSERVE_MIN: u64 = 10;

/// A guard that only watches would have helped.
fn observe_would_save(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
    let mut found = Vec::new();
    for count in overview.reasons.iter().filter(|count| count.would_block >= OBSERVE_MIN) {
        let Some(reason) = Reason::from_code(&count.reason) else { continue };
        let guard = reason.guard();
        let (of_guard, of_rule) = modes(facts.policy, reason);
        let setting = match (of_guard, of_rule) {
            (Mode::Observe, _) => path(&["guards", guard.code(), "mode"]),
            (Mode::Enforce, Mode::Observe) => path(&["guards", guard.code(), "rules", reason.code()]),
            // Enforced since, or switched off on purpose.
            (Mode::Off, _) | (Mode::Enforce, Mode::Off | Mode::Enforce) => continue,
        };
        let saves = facts.saves(guard, count.would_block);
        let usd = if saves.usd > 0.0 { format!(" ({:.2} dollars)", saves.usd) } else { String::new() };
        let draft = Draft {
            id: "observe_would_save",
            guard,
            subject: None,
            about: count.would_block,
            sureness: 0.8,
            saves,
            setting: Some(setting.clone()),
            evidence: vec![
                ("would_block", json!(count.would_block)),
                ("reason", json!(reason.code())),
                ("example_sessions", json!(count.sessions.len())),
            ],
            sessions: &count.sessions,
        };
        found.push(draft.say(
            overview,
            format!("{} only watches, and would have saved {} operations{usd}", guard.code(), saves.operations),
            format!(
                "{} decisions would have been refused with {}. Look at the sessions; if they are right, set {setting} = \"enforce\".",
                count.would_block,
                reason.code()
            ),
        ));
    }
    found
}

/// The mode of the guard, and of the rule alone.
fn modes(policy: &Policy, reason: Reason) -> (Mode, Mode) {
    let section = policy.of(reason.guard()).of(reason);
    (section.mode(""), section.rule_mode("", reason))
}

const HOUR_TOTAL_MIN: u64 = 30;
const HOUR_SHARE: f64 = 0.5;
/// All other traffic tells whether the hour is a busy one for everything; without enough of it, nothing stands out.
const HOUR_OTHERS_MIN: u64 = 100;
const HOUR_DAYS_MIN: usize = 2;

/// Decisions of all guards by hour of the day, and the days that had any. Days as buckets know no hours.
fn traffic_by_hour(overview: &Overview) -> Option<([u64; 24], usize)> {
    let mut by_hour = [0_u64; 24];
    let mut days = BTreeSet::new();
    for (index, start) in overview.series.starts_ms.iter().enumerate() {
        let decided = overview.series.by_guard.values().fold(0_u64, |total, outcomes| total.saturating_add(sum(&bucket(outcomes, index))));
        if decided > 0 {
            let hour = &mut by_hour[start.div_euclid(3_600_000).rem_euclid(24) as usize];
            *hour = hour.saturating_add(decided);
            days.insert(start.div_euclid(86_400_000));
        }
    }
    (overview.bucket_seconds <= 3600).then_some((by_hour, days.len()))
}

/// One hour of the day makes most of it: a batch, a shift, a campaign.
fn concentrated_in_one_hour(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
    let Some((all, _)) = traffic_by_hour(overview).filter(|(_, days)| *days >= HOUR_DAYS_MIN) else { return Vec::new() };
    let mut found = Vec::new();
    for Hours { guard, subject, by_hour_of_day, .. } in overview.hours.iter().filter(|hours| !is_rest(&hours.subject)) {
        let Some(guard) = GuardName::from_code(guard) else { continue };
        let total = sum(by_hour_of_day);
        let Some((hour, most)) = by_hour_of_day.iter().copied().enumerate().max_by_key(|(_, count)| *count) else { continue };
        let part = share(most, total);
        let others = sum(&all).saturating_sub(total);
        let usual = share(all[hour].saturating_sub(most), others);
        if total < HOUR_TOTAL_MIN || part < HOUR_SHARE || others < HOUR_OTHERS_MIN || usual > part / 2.0 {
            continue;
        }
        let draft = Draft {
            id: "concentrated_in_one_hour",
            guard,
            subject: Some(subject),
            about: most,
            sureness: part * 0.8,
            saves: facts.saves(guard, most),
            setting: None,
            evidence: vec![
                ("hour_utc", json!(hour)),
                ("in_that_hour", json!(most)),
                ("total", json!(total)),
                ("share", rounded(part)),
                ("share_of_other_traffic", rounded(usual)),
            ],
            sessions: sessions_of(overview, guard, subject, &[]),
        };
        found.push(draft.say(
            overview,
            format!("{} is tried again mostly between {hour:02}:00 and {:02}:00 UTC", named(subject), (hour + 1) % 24),
            format!(
                "{} of its {total} tries fall into this hour of the day, and {} of all other traffic. Look for what runs then: a batch, a campaign, a shift.",
                percent(part),
                percent(usual)
            ),
        ));
    }
    found
}

const BEGAN_BEFORE_MIN: u64 = 100;
const BEGAN_BEFORE_RATE: f64 = 0.01;
const BEGAN_BLOCKS_MIN: u64 = 20;
const BEGAN_AFTER_RATE: f64 = 0.1;

/// Refusals begin at one moment and stay: something was released.
fn began_at_one_moment(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
    let mut found = Vec::new();
    for (code, outcomes) in &overview.series.by_guard {
        let Some(guard) = GuardName::from_code(code) else { continue };
        let counts: Vec<[u64; 3]> = (0..buckets(outcomes)).map(|index| bucket(outcomes, index)).collect();
        let refused =
            |part: &[[u64; 3]]| part.iter().fold(0_u64, |total, [_, would, blocked]| total.saturating_add(*would).saturating_add(*blocked));
        let decided = |part: &[[u64; 3]]| part.iter().fold(0_u64, |total, counts| total.saturating_add(sum(counts)));
        let starts = |split: &usize| {
            let (before, after) = counts.split_at(*split);
            let busy = after.iter().filter(|counts| sum(*counts) > 0).count();
            let struck = after.iter().filter(|[_, would, blocked]| would.saturating_add(*blocked) > 0).count();
            decided(before) >= BEGAN_BEFORE_MIN
                && share(refused(before), decided(before)) <= BEGAN_BEFORE_RATE
                && refused(after) >= BEGAN_BLOCKS_MIN
                && share(refused(after), decided(after)) >= BEGAN_AFTER_RATE
                && refused(&after[..1]) > 0
                // A burst ends; a release stays.
                && after.len() >= 2
                && struck * 2 > busy
        };
        // One bucket that decides with the whole series behind it: the clearest difference of the two sides.
        let clearest = (1..counts.len()).filter(starts).max_by(|a, b| {
            let rate = |split: usize| {
                share(refused(&counts[split..]), decided(&counts[split..])) - share(refused(&counts[..split]), decided(&counts[..split]))
            };
            rate(*a).total_cmp(&rate(*b)).then_with(|| b.cmp(a))
        });
        let Some((split, began_ms)) = clearest.and_then(|split| Some((split, *overview.series.starts_ms.get(split)?))) else { continue };
        let (before, after) = counts.split_at(split);
        let reason = overview.reasons.iter().filter(|count| count.guard == *code).max_by_key(|count| fired(count));
        let subject = reason.and_then(|count| mostly_one(count)).map(|(subject, _)| subject);
        let (rate_before, rate_after) = (share(refused(before), decided(before)), share(refused(after), decided(after)));
        let draft = Draft {
            id: "began_at_one_moment",
            guard,
            subject,
            about: refused(after),
            sureness: 0.85,
            saves: facts.saves(guard, refused(after)),
            setting: None,
            evidence: vec![
                ("began_ms", json!(began_ms)),
                ("share_before", rounded(rate_before)),
                ("share_after", rounded(rate_after)),
                ("refused_after", json!(refused(after))),
            ],
            sessions: reason.map_or(&[], |count| count.sessions.as_slice()),
        };
        found.push(draft.say(
            overview,
            format!("Refusals of {} began at {}", subject.map_or_else(|| code.clone(), named), date_time(began_ms)),
            format!(
                "Until then {} of the decisions were refused, since then {}. Look at what was released or changed at that time.",
                percent(rate_before),
                percent(rate_after)
            ),
        ));
    }
    found
}

const BUDGET_REFUSED_MIN: u64 = 10;

/// Work stops at a budget.
fn budget_refused(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
    let guard = GuardName::Budget;
    let say = |budget: &super::BudgetSeen| {
        let settings = &facts.policy.budget.for_subject(&budget.budget).settings;
        let by_tokens = budget.limit_usd.is_none() && budget.token_limit.is_some();
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
                ("tokens", json!(budget.tokens)),
                ("token_limit", json!(budget.token_limit)),
            ],
            sessions: sessions_of(overview, guard, &budget.budget, &[]),
        };
        draft.say(
            overview,
            format!("Budget {} refuses often", named(&budget.budget)),
            format!(
                "It refused {} times. Look at what these runs spend their money on; if the work is worth it, {change}.",
                budget.refused
            ),
        )
    };
    overview.budgets.iter().filter(|budget| budget.refused >= BUDGET_REFUSED_MIN).map(say).collect()
}

const BUDGET_DECISIONS_MIN: u64 = 200;
const BUDGET_SHARE: f64 = 0.1;

/// A limit so far away that it protects from nothing.
fn budget_hardly_used(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
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

const UNPRICED_MIN: u64 = 5;

/// Calls are refused only because a price is missing.
fn unpriced_model(overview: &Overview, _facts: &Facts<'_>) -> Vec<Insight> {
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
        format!("{} calls were refused because their model is not in the price table. Check the model's name, or decide with unknown_models what is done with it.", fired(count)),
    )]
}

const ENDPOINT_CALLS_MIN: u64 = 50;
const ENDPOINT_FAILURES_MIN: u64 = 10;
const ENDPOINT_FAILURE_RATE: f64 = 0.2;

/// An upstream that fails much of the time.
fn endpoint_fails(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
    let guard = GuardName::ApiCircuit;
    let failing = overview.endpoints.iter().filter(|endpoint| {
        endpoint.calls >= ENDPOINT_CALLS_MIN
            && endpoint.failures >= ENDPOINT_FAILURES_MIN
            && share(endpoint.failures, endpoint.calls) >= ENDPOINT_FAILURE_RATE
            && !is_rest(&endpoint.endpoint)
    });
    let say = |endpoint: &Endpoint| {
        let rate = share(endpoint.failures, endpoint.calls);
        // Without a rate only a burst of failures opens the circuit; an upstream that fails steadily never does.
        let by_rate = facts.policy.api_circuit.for_subject(&endpoint.endpoint).settings.circuit.failure_rate > 0.0;
        let change = if by_rate { "its circuit looks at the rate already" } else { "let failure_rate open its circuit too" };
        let draft = Draft {
            id: "endpoint_fails",
            guard,
            subject: Some(&endpoint.endpoint),
            about: endpoint.failures,
            sureness: 0.9,
            saves: facts.saves(guard, endpoint.failures),
            setting: (!by_rate).then(|| path(&["guards", guard.code(), "endpoints", &endpoint.endpoint, "failure_rate"])),
            evidence: vec![
                ("calls", json!(endpoint.calls)),
                ("failures", json!(endpoint.failures)),
                ("failure_rate", rounded(rate)),
                ("refused", json!(endpoint.blocked)),
            ],
            sessions: sessions_of(overview, guard, &endpoint.endpoint, &[]),
        };
        draft.say(
            overview,
            format!("{} of the calls to {} fail", percent(rate), named(&endpoint.endpoint)),
            format!("{} of {} calls failed. Have the upstream looked at; {change}.", endpoint.failures, endpoint.calls),
        )
    };
    failing.map(say).collect()
}

const SLOW_MILLIS: f64 = 2000.0;

/// An upstream that lets people wait.
fn endpoint_slow(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
    let guard = GuardName::ApiCircuit;
    let mut found = Vec::new();
    for endpoint in overview.endpoints.iter().filter(|endpoint| endpoint.calls >= ENDPOINT_CALLS_MIN && !is_rest(&endpoint.endpoint)) {
        let Some(mean) = endpoint.mean_ms.filter(|mean| *mean >= SLOW_MILLIS) else { continue };
        let watched = facts.policy.api_circuit.for_subject(&endpoint.endpoint).settings.circuit.slow_call_ms > 0;
        let change = if watched {
            "Its circuit looks at slow calls already"
        } else {
            "Set slow_call_ms and slow_rate, and its circuit opens on slow calls too"
        };
        let draft = Draft {
            id: "endpoint_slow",
            guard,
            subject: Some(&endpoint.endpoint),
            about: endpoint.calls,
            sureness: 0.3,
            saves: Saves::default(),
            setting: (!watched).then(|| path(&["guards", guard.code(), "endpoints", &endpoint.endpoint, "slow_call_ms"])),
            evidence: vec![("calls", json!(endpoint.calls)), ("mean_ms", rounded(mean)), ("max_ms", json!(endpoint.max_ms))],
            sessions: sessions_of(overview, guard, &endpoint.endpoint, &[]),
        };
        found.push(draft.say(
            overview,
            format!("{} is slow", named(&endpoint.endpoint)),
            format!("A call takes {:.1} seconds on average. People wait, and time-outs become retries. {change}.", mean / 1000.0),
        ));
    }
    found
}

const ONE_SESSION_MIN: u64 = 20;

/// All refusals of a kind come from one session. Several examples are kept of each reason, so a single one means a single session.
fn one_session(overview: &Overview, _facts: &Facts<'_>) -> Vec<Insight> {
    let mut found = Vec::new();
    for count in overview.reasons.iter().filter(|count| fired(count) >= ONE_SESSION_MIN) {
        let Some(reason) = Reason::from_code(&count.reason) else { continue };
        let distinct: BTreeSet<&String> = count.sessions.iter().collect();
        let ([_], Some(session)) = (count.sessions.as_slice(), distinct.first()) else { continue };
        let draft = Draft {
            id: "one_session",
            guard: reason.guard(),
            subject: None,
            about: fired(count),
            sureness: 0.6,
            saves: Saves::default(),
            setting: None,
            evidence: vec![("refused", json!(fired(count))), ("reason", json!(reason.code())), ("session", json!(session))],
            sessions: &count.sessions,
        };
        found.push(draft.say(
            overview,
            format!("One session makes every {}", reason.code()),
            format!(
                "All {} refusals come from session {}. A caller that does not stop when it is refused: let it read `allow` and end the flow there.",
                fired(count),
                named(session)
            ),
        ));
    }
    found
}

const NEVER_FIRES_MIN: u64 = 500;

/// A cap: the reason it gives, its settings key, its value in force, its default.
struct Cap {
    reason: Reason,
    setting: &'static str,
    in_force: u32,
    default: u32,
}

fn caps(policy: &Policy) -> Vec<Cap> {
    /// Its patterns are compiled once.
    static STANDARD: LazyLock<Policy> = LazyLock::new(Policy::default);
    macro_rules! cap {
        ($reason:ident, $($section:ident).+, $key:ident $(in $part:ident)?, $path:literal) => {
            Cap {
                reason: Reason::$reason,
                setting: concat!("guards.", $path, ".", stringify!($key)),
                in_force: policy.$($section).+.for_subject("").settings.$($part.)?$key,
                default: STANDARD.$($section).+.for_subject("").settings.$($part.)?$key,
            }
        };
    }
    vec![
        cap!(RetryCapReached, ai_task_retry, max_retries, "ai_task_retry"),
        cap!(HandoffCeilingReached, handoff, max_handoffs, "handoff"),
        cap!(CycleDetected, handoff, max_visits_per_bot, "handoff"),
        cap!(KbRequeryCapReached, kb_requery.botpress, max_queries, "kb_requery.botpress"),
        cap!(KbQueryCapReached, kb_requery.voiceflow, max_queries, "kb_requery.voiceflow"),
        cap!(TotalActionCeiling, agent_action, max_total, "agent_action"),
        cap!(ConsecutiveSameActionSpiral, agent_action, max_consecutive, "agent_action"),
        cap!(SameActionFrequencySpiral, agent_action, max_same, "agent_action"),
        cap!(RepromptCeilingReached, no_match_reprompt, max_reprompts, "no_match_reprompt"),
        cap!(AttemptCeilingReached, capture_slot_fill, max_attempts, "capture_slot_fill"),
        cap!(SessionRetryCeiling, api_circuit, max_attempts_per_session in circuit, "api_circuit"),
        cap!(CircuitJustTripped, api_circuit, failure_threshold in circuit, "api_circuit"),
    ]
}

/// A cap that was raised and has not been reached once. A cap at its default that never fires is simply good news.
fn threshold_never_fires(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
    let mut found = Vec::new();
    for Cap { reason, setting, in_force, default } in caps(facts.policy) {
        let (guard, seen) = (reason.guard(), traffic(overview, reason.guard()));
        if seen < NEVER_FIRES_MIN || fired_of(overview, reason) > 0 || modes(facts.policy, reason).1 == Mode::Off {
            continue;
        }
        let most = most_used(overview, reason);
        // What was used at most, with as much again to spare; without that number the default is a good start.
        let could_be = most.map_or(default, |most| u32::try_from(most.saturating_mul(2)).unwrap_or(u32::MAX).max(default));
        if could_be >= in_force {
            continue;
        }
        let mut evidence = vec![("decisions", json!(seen)), ("in_force", json!(in_force)), ("could_be", json!(could_be))];
        evidence.extend(most.map(|most| ("most_used", json!(most))));
        let draft = Draft {
            id: "threshold_never_fires",
            guard,
            subject: None,
            about: 1,
            sureness: 0.6,
            saves: Saves::default(),
            setting: Some(setting.to_owned()),
            evidence,
            sessions: &[],
        };
        found.push(draft.say(
            overview,
            format!("{setting} = {in_force} never fires"),
            format!("{seen} decisions, and the cap of {in_force} was not reached once. A loop would run {in_force} times before it is stopped; {could_be} would do."),
        ));
    }
    found
}

/// The most that was used of a cap, where the overview shows it: failures within any two neighbouring buckets bound those of
/// a window, and a chain is as long as it is.
fn most_used(overview: &Overview, reason: Reason) -> Option<u64> {
    if reason == Reason::CircuitJustTripped {
        let failures = overview.endpoints.iter().map(|endpoint| &endpoint.failures_over_time);
        return failures.flat_map(|failures| failures.windows(2).map(sum).chain(failures.first().copied())).max();
    }
    let chains = overview.handoffs.chains.iter().filter(|_| reason == Reason::HandoffCeilingReached);
    chains.map(|chain| chain.chain.len().saturating_sub(1) as u64).max()
}

const SPREAD_MIN: u64 = 20;
const ONE_FLOW_SHARE: f64 = 0.8;
const MANY_SUBJECTS_MIN: usize = 5;
const MANY_TOP_SHARE: f64 = 0.4;
/// Of the guard's decisions: below this the guard does its work.
const MANY_RATE: f64 = 0.2;

/// The subject that makes most of a reason, and its share.
fn mostly_one(count: &ReasonCount) -> Option<(&str, f64)> {
    let top = count.subjects.iter().max_by_key(|counted| counted.count).filter(|counted| !is_rest(&counted.subject))?;
    let part = share(top.count.min(fired(count)), fired(count));
    (part >= ONE_FLOW_SHARE).then_some((top.subject.as_str(), part))
}

/// One flow makes nearly all of a reason, while others of the guard do well: that flow is wrong.
fn one_flow(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
    let mut found = Vec::new();
    for count in overview.reasons.iter().filter(|count| fired(count) >= SPREAD_MIN) {
        let Some(reason) = Reason::from_code(&count.reason) else { continue };
        let guard = reason.guard();
        let others = overview.subjects.iter().filter(|seen| seen.guard == guard.code() && decisions_of(seen) > 0).count();
        let Some((subject, part)) = mostly_one(count).filter(|_| others >= 3) else { continue };
        let draft = Draft {
            id: "one_flow",
            guard,
            subject: Some(subject),
            about: fired(count),
            sureness: 0.5,
            saves: facts.saves(guard, count.would_block),
            setting: None,
            evidence: vec![
                ("refused", json!(fired(count))),
                ("reason", json!(reason.code())),
                ("share", rounded(part)),
                ("flows", json!(others)),
            ],
            sessions: sessions_of(overview, guard, subject, &count.sessions),
        };
        found.push(draft.say(
            overview,
            format!("{} makes {} of all {}", named(subject), percent(part), reason.code()),
            format!("The other flows of this guard do well, so the settings are right and this flow is not. Look at how it ends, and change {} itself.", named(subject)),
        ));
    }
    found
}

/// Many flows meet the same reason, and often: the setting they share is wrong.
fn general_setting(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
    let caps = caps(facts.policy);
    let mut found = Vec::new();
    for count in overview.reasons.iter().filter(|count| fired(count) >= SPREAD_MIN) {
        let Some(cap) = caps.iter().find(|cap| cap.reason.code() == count.reason) else { continue };
        // An upstream that is down meets every session, and no setting is wrong.
        if cap.reason == Reason::CircuitJustTripped {
            continue;
        }
        let guard = cap.reason.guard();
        let (decisions, refused) = (traffic(overview, guard), fired(count));
        let top = count.subjects.iter().map(|counted| counted.count).max().unwrap_or(0);
        let (rate, top_share) = (share(refused, decisions), share(top, refused));
        if count.subjects.len() < MANY_SUBJECTS_MIN || top_share > MANY_TOP_SHARE || decisions == 0 || rate < MANY_RATE {
            continue;
        }
        let draft = Draft {
            id: "general_setting",
            guard,
            subject: None,
            about: refused,
            sureness: 0.6,
            saves: Saves::default(),
            setting: Some(cap.setting.to_owned()),
            evidence: vec![
                ("refused", json!(refused)),
                ("reason", json!(cap.reason.code())),
                ("decisions", json!(decisions)),
                ("subjects", json!(count.subjects.len())),
                ("top_share", rounded(top_share)),
                ("in_force", json!(cap.in_force)),
            ],
            sessions: &count.sessions,
        };
        found.push(draft.say(
            overview,
            format!("{} meets every flow", cap.reason.code()),
            format!(
                "{} of all decisions of {} end so, spread over {} flows. That is the setting, not one flow: look at {} = {}, and see in a preview what a higher one would have allowed.",
                percent(rate),
                guard.code(),
                count.subjects.len(),
                cap.setting,
                cap.in_force
            ),
        ));
    }
    found
}

#[cfg(test)]
mod tests;
