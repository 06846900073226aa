//! Which setting to look at: what never fires, what fires for one flow or session, what only watches.

use super::reading::{decisions_of, fired, fired_of, is_rest, named, path, percent, rounded, sessions_of, share, sum, traffic};
use super::{Draft, Facts};
use crate::insight::{Insight, Overview, ReasonCount, Saves};
use runguard_core::reason::Reason;
use runguard_guards::policy::{Mode, Policy};
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::LazyLock;

pub(super) const OBSERVE_MIN: u64 = 10;

/// A guard that only watches would have helped.
pub(super) fn observe_would_save(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
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
        let usd = if saves.usd > 0.0 { format!(" (${:.2})", saves.usd) } else { String::new() };
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
            format!("{} only watches, and would have saved {} operations{usd}", guard.label(), saves.operations),
            format!(
                "{} decisions would have been blocked with {}. Look at the sessions; if they are right, set {setting} = \"enforce\".",
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

pub(super) const ONE_SESSION_MIN: u64 = 20;

/// All refusals of a kind come from one session. Several examples are kept of each reason, so a single one means a single session.
pub(super) fn one_session(overview: &Overview, _facts: &Facts<'_>) -> Vec<Insight> {
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
                "All {} blocks come from session {}. A caller that does not stop when it is blocked: let it read `allow` and end the flow there.",
                fired(count),
                named(session)
            ),
        ));
    }
    found
}

pub(super) const NEVER_FIRES_MIN: u64 = 500;

/// A cap: the reason it gives, its settings key, its value in force, its default.
pub(super) struct Cap {
    reason: Reason,
    pub(super) setting: &'static str,
    in_force: u32,
    default: u32,
}

/// Caps on how often something is done, each with the rule that it leads to: a guard's other numbers are lengths of time and shares, which
/// nobody raises by twice what was used.
pub(super) fn caps(policy: &Policy) -> Vec<Cap> {
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
pub(super) fn threshold_never_fires(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
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

pub(super) const SPREAD_MIN: u64 = 20;
pub(super) const ONE_FLOW_SHARE: f64 = 0.8;
pub(super) const MANY_SUBJECTS_MIN: usize = 5;
pub(super) const MANY_TOP_SHARE: f64 = 0.4;
/// Of the guard's decisions: below this the guard does its work.
pub(super) const MANY_RATE: f64 = 0.2;

/// The subject that makes most of a reason, and its share.
pub(super) fn mostly_one(count: &ReasonCount) -> Option<(&str, f64)> {
    let top = count.subjects.iter().max_by_key(|counted| counted.count).filter(|counted| !is_rest(&counted.subject))?;
    let part = share(top.count.min(fired(count)), fired(count));
    (part >= ONE_FLOW_SHARE).then_some((top.subject.as_str(), part))
}

/// One flow makes nearly all of a reason, while others of the guard do well: that flow is wrong.
pub(super) fn one_flow(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
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
            format!("{} makes {} of what was blocked for \"{}\"", named(subject), percent(part), reason.label()),
            format!("The other flows of this guard do well, so the settings are right and this flow is not. Look at how it ends, and change {} itself.", named(subject)),
        ));
    }
    found
}

/// Many flows meet the same reason, and often: the setting they share is wrong.
pub(super) fn general_setting(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
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
