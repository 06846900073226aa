//! Topics of the knowledge base that are asked for and not answered well.

use super::reading::{fired, is_rest, named, percent, reason_of, rounded, sum, words_of};
use super::{Draft, Facts};
use crate::insight::digest::GAP_CONFIDENCE;
use crate::insight::{Insight, Overview, Topic};
use runguard_core::reason::{GuardName, Reason};
use serde_json::json;

/// From how many sessions on a share of them says something, and which share it is.
pub(super) const LOW_ALL_MIN: u64 = 20;
pub(super) const LOW_SESSIONS_MIN: u64 = 5;
pub(super) const LOW_SHARE: f64 = 0.1;

fn is_low_in_many(topic: &Topic, overview: &Overview) -> bool {
    overview.topic_sessions >= LOW_ALL_MIN
        && topic.low_sessions >= LOW_SESSIONS_MIN
        && topic.low_share > LOW_SHARE
        && !is_rest(&topic.topic)
}

/// A topic that one session in ten gets a poor answer to, in whatever words.
pub(super) fn low_confidence_topic(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
    let guard = GuardName::KbRequery;
    let say = |topic: &Topic| {
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
                ("label", json!(words_of(&topic.label, &topic.topic))),
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
            format!("{} of the sessions get a poor answer to {}", percent(topic.low_share), named(words_of(&topic.label, &topic.topic))),
            format!(
                "{} of {} sessions that asked the knowledge base had an answer below {GAP_CONFIDENCE} on this, {} of them no better one; it was asked in {}, and the best answer had a confidence of {:.2}. Write a document on it, or improve the one there is.",
                topic.low_sessions, overview.topic_sessions, topic.unanswered_sessions, wordings(topic.phrasings), topic.best_confidence
            ),
        )
    };
    overview.topics.iter().filter(|topic| is_low_in_many(topic, overview)).map(say).collect()
}

fn wordings(phrasings: u64) -> String {
    if phrasings == 1 { "one wording".to_owned() } else { format!("{phrasings} wordings") }
}

pub(super) const GAP_QUERIES_MIN: u64 = 5;
/// Answers whose confidence is known: a topic that was never answered says nothing of the documents.
pub(super) const GAP_ANSWERS_MIN: u64 = 3;

/// A topic that is asked for and never answered well.
pub(super) fn documentation_gap(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
    let guard = GuardName::KbRequery;
    let gaps = overview.topics.iter().filter(|topic| {
        let answered = sum(&topic.histogram);
        let is_gap = topic.queries >= GAP_QUERIES_MIN && answered >= GAP_ANSWERS_MIN && topic.best_confidence < GAP_CONFIDENCE;
        // What the share of the sessions says already is not said again.
        is_gap && !is_rest(&topic.topic) && !is_low_in_many(topic, overview)
    });
    let say = |topic: &Topic| {
        let label = words_of(&topic.label, &topic.topic);
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

pub(super) const GOOD_ANSWER_MIN: u64 = 10;

/// The flow goes on asking although the answer was good.
pub(super) fn asked_after_good_answer(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
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
