//! The guard's part of a log row, of both doors: what is kept of a question, what of it counts, the request again.

use super::botpress::BotpressRequest;
use super::voiceflow::{CheckRequest, RecordRequest, topic_hash};
use crate::logged::{self, Doubt, Doubts, Logged, Retold, Shows, Terms, Topic as TopicShown};
use runguard_core::row::{self, RowRef};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Characters of a query that are kept.
pub(super) const MOST_KEPT_CHARS: usize = 300;

/// What is kept of a question at the Botpress door.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct LoggedBotpressInput<'a> {
    #[serde(borrow, skip_serializing_if = "str::is_empty")]
    pub(super) query_text: Cow<'a, str>,
    /// The other door's rows do not have it.
    pub(super) last_confidence: Option<f64>,
}

/// What is kept of a question at the Voiceflow door.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct LoggedCheckInput<'a> {
    #[serde(borrow, skip_serializing_if = "str::is_empty")]
    pub(super) query: Cow<'a, str>,
    pub(super) prior_confidence: Option<f64>,
}

/// What is kept of what a query gave.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct LoggedRecordInput<'a> {
    #[serde(borrow, skip_serializing_if = "str::is_empty")]
    pub(super) query: Cow<'a, str>,
    pub(super) confidence_score: Option<f64>,
    pub(super) retrieved_chunks: Option<u64>,
}

/// What of an answer is read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct LoggedAnswer<'a> {
    #[serde(borrow)]
    topic_hash: Cow<'a, str>,
    #[serde(borrow)]
    matched_query: Cow<'a, str>,
    queries_used: u64,
}

pub(crate) fn shows<'a>(row: &RowRef<'a>) -> Shows<'a> {
    let said: LoggedAnswer<'a> = logged::read(row.answer);
    let name = if said.topic_hash.is_empty() { Cow::Borrowed(row.subject) } else { said.topic_hash };
    let text_or = |own: Cow<'a, str>| if said.matched_query.is_empty() { own } else { said.matched_query };
    let botpress: LoggedBotpressInput<'a> = logged::read(row.input);
    let topic = if row.kind == row::Kind::Record {
        let LoggedRecordInput { query, confidence_score, .. } = logged::read(row.input);
        TopicShown { name, text: query, counts: true, confidence: confidence_score }
    } else if let Some(confidence) = botpress.last_confidence {
        // Of the first query it says 0 because there was no answer yet.
        let is_of_answer = confidence > 0.0 || said.queries_used > 1 || row.outcome == row::Outcome::Blocked;
        TopicShown { name, text: text_or(botpress.query_text), counts: true, confidence: is_of_answer.then_some(confidence) }
    } else {
        // This door counts what is recorded.
        TopicShown { name, text: text_or(logged::read::<LoggedCheckInput<'a>>(row.input).query), counts: false, confidence: None }
    };
    Shows { topic: Some(topic), ..Shows::default() }
}

const TOPIC_BY_LOG: Doubt =
    Doubt::of_guard(0, "knowledge-base queries are kept without their whole text: the topic the log names for them is taken");

pub(crate) fn again(logged: &Logged<'_>, _terms: &Terms<'_>, doubts: &mut Doubts) -> Retold {
    let row = logged.row;
    let session_id = row.session.clone();
    // The subject is made of the whole text: if the kept one gives the same, it is the whole one, as far as it is compared.
    let mut whole = |kept: &str| {
        if topic_hash(kept) == row.subject && kept.chars().count() < MOST_KEPT_CHARS {
            return (kept.to_owned(), row.subject.clone());
        }
        doubts.add(TOPIC_BY_LOG);
        // Its name stands for its words: like itself, and like nothing else.
        let named = logged::read::<LoggedAnswer<'_>>(&row.answer).topic_hash;
        let topic = if named.is_empty() { row.subject.clone() } else { named.into_owned() };
        (topic.clone(), topic)
    };
    if row.kind != row::Kind::Check {
        let kept: LoggedRecordInput<'_> = logged::read(&row.input);
        let (query, topic_hash) = whole(&kept.query);
        let confidence = kept.confidence_score.unwrap_or(0.0);
        return Retold::of(RecordRequest { session_id, query, topic_hash, confidence, chunks: kept.retrieved_chunks });
    }
    if let Some(last_confidence) = logged::read::<LoggedBotpressInput<'_>>(&row.input).last_confidence {
        let topic_hash = row.subject.clone();
        return Retold::of(BotpressRequest { session_id, topic_hash, query_text: String::new(), last_confidence });
    }
    let kept: LoggedCheckInput<'_> = logged::read(&row.input);
    let (query, topic_hash) = whole(&kept.query);
    Retold::of(CheckRequest { session_id, query, topic_hash, prior_confidence: kept.prior_confidence })
}
