//! Questions that are asked in vain, and bots that hand over in a circle.

use super::reading::{cut, decisions_of, is_rest, named, path, percent, reason_of, rounded, sessions_of, share, subject_of};
use super::{Draft, Facts};
use crate::insight::{Counted, Entity, Insight, Overview};
use runguard_core::reason::{GuardName, Reason};
use serde_json::json;

/// From how many refusals on, and from which share of the flow's decisions.
pub(super) const SIGNAL_MIN: u64 = 10;
pub(super) const SIGNAL_SHARE: f64 = 0.2;

/// The validation asks for what people do not say.
pub(super) fn missing_signal(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
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
pub(super) const CHAIN_MIN: u64 = 3;

/// Bots hand over in a circle: nobody owns the question.
pub(super) fn handoff_gap(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
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

pub(super) const HINTS_MIN: u64 = 10;

/// People say the value in words because nobody showed them the form.
pub(super) fn colloquial_format(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
    let guard = GuardName::CaptureSlotFill;
    let settings = &facts.policy.capture_slot_fill.for_subject("").settings;
    let often = overview.entities.iter().filter(|entity| entity.hints >= HINTS_MIN && !is_rest(&entity.entity));
    let say = |entity: &Entity| {
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

pub(super) const NEVER_MIN: u64 = 10;

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
pub(super) fn retries_never_succeed(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
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
                    "{tried} tries were allowed, no more than {ended} sessions that end at the cap of {cap} use up: as good as all of them were blocked in the end. Set {key} of {} to {to}, and send people elsewhere sooner.",
                    named(subject)
                ),
            ));
        }
    }
    found
}
