//! The door of Voiceflow flows. They learn confidence and chunks only afterwards, so the record counts, and the topic is found from the
//! query's words: a rephrased question is the same question.
//!
//! A poor answer ends a topic, but for two fair second tries: nothing was retrieved, or the question was mistyped and is asked again as it
//! should be written. The other spelling is kept with the topic, so it is fair once, and whoever goes on from one spelling to the next
//! stays in one topic.

use super::row::{LoggedCheckInput, LoggedRecordInput, MOST_KEPT_CHARS};
use super::{DOORS, VOICEFLOW_SLOT};
use crate::answer::Facts;
use crate::guard::{
    AnswerKind, Decide, Finding, Guard, GuardRequest, Moment, Place, Probe, Route, RouteKind, Ruling, RulingOf, Stored, decode, encode,
    falls_below, forget_earliest, says, times,
};
use crate::input::{Field, Kind};
use crate::logged;
use crate::policy::{GuardSettings, Policy, Section, Setting};
use runguard_core::fingerprint::hex16;
use runguard_core::limits::{InvalidSetting, fraction, lasting, within};
use runguard_core::reason::{GuardName, Reason};
use runguard_core::similarity::Gist;
use runguard_core::text::StoreText;
use runguard_core::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};
use std::convert::Infallible;

pub static CHECK_ROUTE: Route = Route {
    path: "/guard/kb-requery/check",
    guard: GuardName::KbRequery,
    kind: RouteKind::Check,
    summary: "May the knowledge base be asked? (The record counts.)",
    fields: &[
        Field::required("session_id", Kind::Id, "The conversation.", "\"user-1\""),
        Field::required("query", Kind::Text, "The query.", "\"how do refunds work\""),
        Field::optional(
            "prior_confidence",
            Kind::Fraction,
            "Confidence of the last answer; without it the last recorded one counts.",
            "0.4",
        ),
    ],
    answers: &[
        says("topic_hash", AnswerKind::Text, "The topic the query belongs to."),
        says("matched_query", AnswerKind::Text, "The earlier query of that topic, as it is kept in the log."),
        says("query_number", AnswerKind::Whole, "Allowed: which query on the topic this is."),
        says("remaining_queries", AnswerKind::Whole, "Allowed: queries left after it."),
        says(
            "corrects_spelling",
            AnswerKind::Flag,
            "Allowed after a poor answer: the question was mistyped, and this is its first other spelling.",
        ),
        says("queries_in_window", AnswerKind::Whole, "Cap: queries recorded."),
        says("cap", AnswerKind::Whole, "Cap: queries allowed."),
        says("best_confidence_seen", AnswerKind::Number, "Blocked for its topic: the highest confidence seen for it."),
        says("prior_confidence", AnswerKind::Number, "Low confidence: the confidence that counted."),
        says("threshold", AnswerKind::Number, "Low confidence: below this no second query."),
    ],
    reasons: &[Reason::KbQueryCapReached, Reason::LowConfidenceReQueryBlocked],
    read: |input| {
        let query = input.text("query");
        Box::new(CheckRequest {
            session_id: input.text("session_id"),
            topic_hash: topic_hash(&query),
            query,
            prior_confidence: input.fraction("prior_confidence"),
        })
    },
};

pub static RECORD_ROUTE: Route = Route {
    path: "/guard/kb-requery/record",
    guard: GuardName::KbRequery,
    kind: RouteKind::Record,
    summary: "What a knowledge base query gave. This counts.",
    fields: &[
        Field::required("session_id", Kind::Id, "The conversation.", "\"user-1\""),
        Field::required("query", Kind::Text, "The query that was made.", "\"how do refunds work\""),
        Field::required(
            "confidence_score",
            Kind::Confidence,
            "Confidence of the answer; empty or null when there was none, which counts as 0.",
            "0.4",
        ),
        Field::optional(
            "retrieved_chunks",
            Kind::Whole(0),
            "Chunks found; 0 is a retrieval failure, after which a second try is fair.",
            "3",
        ),
    ],
    answers: &[says("topic_hash", AnswerKind::Text, "The topic the query belongs to.")],
    reasons: &[],
    read: |input| {
        let query = input.text("query");
        Box::new(RecordRequest {
            session_id: input.text("session_id"),
            topic_hash: topic_hash(&query),
            query,
            confidence: input.fraction("confidence_score").unwrap_or(0.0),
            chunks: input.whole("retrieved_chunks"),
        })
    },
};

/// Whether a rephrased query belongs to the topic of the first one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TopicMatch {
    #[default]
    Similar,
    Exact,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VoiceflowSettings {
    pub max_queries: u32,
    pub window: Span,
    pub low_confidence: f64,
    pub topic_match: TopicMatch,
    pub max_session_queries: u32,
}

impl Default for VoiceflowSettings {
    fn default() -> Self {
        Self {
            max_queries: 2,
            window: Span::from_seconds(3600),
            low_confidence: 0.5,
            topic_match: TopicMatch::default(),
            max_session_queries: 0,
        }
    }
}

impl GuardSettings for VoiceflowSettings {
    const GUARD: GuardName = GuardName::KbRequery;
    const SECTION: &'static [&'static str] = &["kb_requery", "voiceflow"];
    const DOORS: &'static [&'static str] = DOORS;
    const SUBJECTS: &'static str = "topics";
    const SETTINGS: &'static [Setting] = &[
        Setting { key: "max_queries", about: "Recorded queries on one topic in one session within the window." },
        Setting { key: "window", about: "Seconds (3600) or with a unit (\"1h\")." },
        Setting { key: "low_confidence", about: "Below this the topic is not documented: no second query." },
        Setting { key: "topic_match", about: "\"similar\": a rephrased query is the same topic; \"exact\": only the same words." },
        Setting {
            key: "max_session_queries",
            about: "Recorded queries of one session within the window, on whatever topics: from 1 to 64, such as 30; 0 for no such ceiling.",
        },
    ];

    fn longest_window(&self) -> Span {
        self.window
    }

    fn check(&self) -> Result<(), InvalidSetting> {
        within("max_queries", self.max_queries, 0..=1000)?;
        lasting("window", self.window)?;
        // Of more topics the earliest are forgotten.
        within("max_session_queries", self.max_session_queries, 0..=MAX_TOPICS as u32)?;
        fraction("low_confidence", self.low_confidence)
    }
}

/// The first 16 hex digits of SHA-256 over the query lowercased, white space folded, cut to 128 characters.
pub fn topic_hash(query: &str) -> String {
    let folded = query.to_lowercase().split_whitespace().collect::<Vec<_>>().join(" ");
    hex16(runguard_core::text::cut(&folded, 128).as_bytes())
}

/// Topics kept for one session. At the bound the one asked about longest ago is forgotten.
const MAX_TOPICS: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Query {
    at: Timestamp,
    confidence: f64,
    chunks: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Topic {
    hash: String,
    gist: Gist,
    /// The first query, as it may be kept.
    query: String,
    queries: Vec<Query>,
}

impl Topic {
    fn in_window(&self, now: Timestamp, window: Span) -> Vec<Query> {
        self.queries.iter().filter(|query| now.still_counts(query.at, window)).copied().collect()
    }
}

/// How else a topic's question was spelled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Spelling {
    topic: String,
    gist: Gist,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct VoiceflowState {
    topics: Vec<Topic>,
    /// One a topic at most.
    spellings: Vec<Spelling>,
}

impl Stored for VoiceflowState {
    fn load(parts: &[Option<&[u8]>]) -> Self {
        let part = parts.first().copied().flatten();
        // States that were written before spellings were kept end after the topics.
        part.and_then(|bytes| postcard::from_bytes(bytes).ok()).unwrap_or_else(|| Self { topics: decode(part), spellings: Vec::new() })
    }

    fn save(&self, _part: usize) -> Vec<u8> {
        encode(self)
    }
}

impl VoiceflowState {
    /// The topic a query belongs to: the same words first, then the same question in other words, or in another spelling.
    fn topic_of(&self, hash: &str, query: &str, settings: &VoiceflowSettings, now: Timestamp) -> Option<&Topic> {
        let is_live = |topic: &&Topic| topic.queries.iter().any(|query| now.still_counts(query.at, settings.window));
        if let Some(exact) = self.topics.iter().filter(is_live).find(|topic| topic.hash == hash) {
            return Some(exact);
        }
        if settings.topic_match == TopicMatch::Exact || self.topics.is_empty() {
            return None;
        }
        let gist = Gist::of(query);
        let is_known_spelling = |topic: &Topic, is_same: fn(&Gist, &Gist) -> bool| {
            is_same(&topic.gist, &gist) || self.spelling_of(topic).is_some_and(|spelling| is_same(&spelling.gist, &gist))
        };
        let find = |is_same| self.topics.iter().filter(is_live).find(|topic| is_known_spelling(topic, is_same));
        find(Gist::is_similar).or_else(|| find(Gist::is_misspelling_of))
    }

    /// Queries recorded in the window, on whatever topic.
    fn recorded(&self, settings: &VoiceflowSettings, now: Timestamp) -> Vec<Timestamp> {
        self.topics.iter().flat_map(|topic| topic.in_window(now, settings.window)).map(|query| query.at).collect()
    }

    fn spelling_of(&self, topic: &Topic) -> Option<&Spelling> {
        self.spellings.iter().find(|spelling| spelling.topic == topic.hash)
    }

    /// The gist of a query that asks a topic's question in another spelling, the first to do so.
    fn first_respelling(&self, topic: &Topic, hash: &str, query: &str) -> Option<Gist> {
        if topic.hash == hash || self.spelling_of(topic).is_some() {
            return None;
        }
        Some(Gist::of(query)).filter(|gist| gist.is_misspelling_of(&topic.gist))
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub enum VoiceflowEvent {
    Recorded {
        topic: String,
        confidence: f64,
        chunks: Option<u64>,
        keep: u32,
    },
    /// The first query on a topic.
    Opened {
        topic: String,
        gist: Gist,
        query: String,
    },
    /// The first query on a topic that spells it otherwise.
    Respelled {
        topic: String,
        gist: Gist,
    },
}

#[derive(Debug)]
pub struct Voiceflow;

impl Guard for Voiceflow {
    type Settings = VoiceflowSettings;
    type State = VoiceflowState;
    type Event = VoiceflowEvent;

    fn section(policy: &Policy) -> &Section<VoiceflowSettings> {
        &policy.kb_requery.voiceflow
    }

    fn apply(state: &mut VoiceflowState, event: &VoiceflowEvent, at: Timestamp) {
        match event {
            VoiceflowEvent::Opened { topic, gist, query } => {
                state.topics.retain(|known| known.hash != *topic);
                state.spellings.retain(|spelling| spelling.topic != *topic);
                if state.topics.len() >= MAX_TOPICS {
                    forget_earliest(&mut state.topics, |topic| topic.queries.iter().map(|query| query.at).max().unwrap_or_default());
                    let VoiceflowState { topics, spellings } = state;
                    spellings.retain(|spelling| topics.iter().any(|topic| topic.hash == spelling.topic));
                }
                state.topics.push(Topic { hash: topic.clone(), gist: gist.clone(), query: query.clone(), queries: Vec::new() });
            }
            VoiceflowEvent::Recorded { topic, confidence, chunks, keep } => {
                let Some(topic) = state.topics.iter_mut().find(|known| known.hash == *topic) else { return };
                topic.queries.push(Query { at, confidence: *confidence, chunks: *chunks });
                while topic.queries.len() > (*keep).max(1) as usize {
                    forget_earliest(&mut topic.queries, |query| query.at);
                }
            }
            VoiceflowEvent::Respelled { topic, gist } => {
                if state.topics.iter().any(|known| known.hash == *topic) {
                    state.spellings.push(Spelling { topic: topic.clone(), gist: gist.clone() });
                }
            }
        }
    }

    fn probes(section: &Section<VoiceflowSettings>, _subject: &str, state: &VoiceflowState, now: Timestamp) -> Vec<Probe> {
        let probe = |topic: &Topic| {
            let settings = &section.for_subject(&topic.hash).settings;
            let request = CheckRequest {
                session_id: String::new(),
                query: topic.query.clone(),
                topic_hash: topic.hash.clone(),
                prior_confidence: None,
            };
            let used = topic.in_window(now, settings.window).len() as u32;
            Probe { request: Box::new(request), used, ceiling: settings.max_queries, window: settings.window }
        };
        state.topics.iter().map(probe).collect()
    }
}

#[derive(Debug)]
pub struct CheckRequest {
    pub session_id: String,
    pub query: String,
    pub topic_hash: String,
    pub prior_confidence: Option<f64>,
}

#[derive(Debug, Clone)]
pub struct Matched {
    hash: String,
    query: String,
}

#[derive(Debug)]
pub struct Pass {
    number: u32,
    remaining: u32,
    topic: Option<Matched>,
    /// It passes for no other reason.
    corrects_spelling: bool,
}

#[derive(Debug)]
pub enum CheckBlock {
    CapReached { topic: Option<Matched>, queries: u32, best: f64 },
    LowConfidence { topic: Option<Matched>, prior: f64, best: f64 },
    SessionCapReached { queries: u32 },
}

impl CheckRequest {
    fn topic_facts(&self, topic: Option<Matched>) -> Facts {
        match topic {
            Some(topic) => Facts::new().with("topic_hash", topic.hash).with_text("matched_query", topic.query),
            None => Facts::new().with("topic_hash", self.topic_hash.clone()),
        }
    }
}

impl GuardRequest for CheckRequest {
    fn route(&self) -> &'static Route {
        &CHECK_ROUTE
    }

    fn session_id(&self) -> &str {
        &self.session_id
    }

    fn subject(&self) -> &str {
        &self.topic_hash
    }

    fn places(&self) -> Vec<Place<'_>> {
        vec![Place::in_session(&self.session_id, &VOICEFLOW_SLOT, "")]
    }

    fn input(&self, store_text: StoreText) -> String {
        logged::write(&LoggedCheckInput {
            query: store_text.keep(&self.query, MOST_KEPT_CHARS).into(),
            prior_confidence: self.prior_confidence,
        })
    }
}

impl Decide for CheckRequest {
    type Guard = Voiceflow;
    type Block = CheckBlock;
    type Pass = Pass;

    fn decide(&self, settings: &VoiceflowSettings, state: &VoiceflowState, moment: Moment<'_>) -> RulingOf<Self> {
        let found = state.topic_of(&self.topic_hash, &self.query, settings, moment.now);
        let recorded = found.map(|topic| topic.in_window(moment.now, settings.window)).unwrap_or_default();
        let topic = found.map(|topic| Matched { hash: topic.hash.clone(), query: topic.query.clone() });
        let queries = recorded.len() as u32;
        let best = recorded.iter().map(|query| query.confidence).chain(self.prior_confidence).fold(0.0, f64::max);
        let mut findings = Vec::new();
        if queries >= settings.max_queries {
            let clears_at = falls_below(recorded.iter().map(|query| query.at).collect(), settings.max_queries, settings.window);
            findings.push(Finding::new(
                Reason::KbQueryCapReached,
                CheckBlock::CapReached { topic: topic.clone(), queries, best },
                clears_at,
            ));
        }
        let of_session = state.recorded(settings, moment.now);
        if settings.max_session_queries > 0 && of_session.len() >= settings.max_session_queries as usize {
            let queries = of_session.len() as u32;
            let clears_at = falls_below(of_session, settings.max_session_queries, settings.window);
            findings.push(Finding::new(Reason::KbQueryCapReached, CheckBlock::SessionCapReached { queries }, clears_at));
        }
        let mut corrects_spelling = false;
        if let Some(last) = recorded.last() {
            let prior = self.prior_confidence.unwrap_or(last.confidence);
            let retrieval_failed = last.chunks == Some(0);
            if prior < settings.low_confidence && !retrieval_failed {
                corrects_spelling = found.is_some_and(|topic| state.first_respelling(topic, &self.topic_hash, &self.query).is_some());
            }
            if prior < settings.low_confidence && !retrieval_failed && !corrects_spelling {
                let clears_at = recorded.iter().map(|query| query.at).max().map(|at| at.plus(settings.window));
                findings.push(Finding::new(
                    Reason::LowConfidenceReQueryBlocked,
                    CheckBlock::LowConfidence { topic: topic.clone(), prior, best },
                    clears_at,
                ));
            }
        }
        Ruling {
            findings,
            pass: Pass { number: queries + 1, remaining: settings.max_queries.saturating_sub(queries + 1), topic, corrects_spelling },
            events: Vec::new(),
        }
    }

    fn explain(&self, settings: &VoiceflowSettings, _state: &VoiceflowState, block: &CheckBlock, _moment: Moment<'_>) -> (Facts, String) {
        match block {
            CheckBlock::CapReached { topic, queries, best } => (
                self.topic_facts(topic.clone())
                    .with("queries_in_window", *queries)
                    .with("cap", settings.max_queries)
                    .with("best_confidence_seen", *best),
                format!(
                    "The knowledge base was asked {} about this topic in the last {} (cap {}); the best confidence was {best:.2}. {}",
                    times(*queries),
                    settings.window,
                    settings.max_queries,
                    if *best < settings.low_confidence {
                        "The topic is not documented: add it, and hand over to a person."
                    } else {
                        "An earlier answer was good enough: use that one."
                    }
                ),
            ),
            CheckBlock::SessionCapReached { queries } => (
                Facts::new()
                    .with("topic_hash", self.topic_hash.clone())
                    .with("queries_in_window", *queries)
                    .with("cap", settings.max_session_queries),
                format!(
                    "The knowledge base was asked {} in this session in the last {} (max_session_queries {}), on whatever topics. Answer with what there is, or hand over to a person.",
                    times(*queries),
                    settings.window,
                    settings.max_session_queries
                ),
            ),
            CheckBlock::LowConfidence { topic, prior, best } => (
                self.topic_facts(topic.clone())
                    .with("prior_confidence", *prior)
                    .with("threshold", settings.low_confidence)
                    .with("best_confidence_seen", *best),
                format!(
                    "The last answer on this topic had confidence {prior:.2}, below {:.2}: the knowledge base does not cover it, and rephrasing will not help. Use a fallback answer, or hand over to a person.",
                    settings.low_confidence
                ),
            ),
        }
    }

    fn pass(&self, pass: Pass, _moment: Moment<'_>) -> Facts {
        let facts = self.topic_facts(pass.topic).with("query_number", pass.number).with("remaining_queries", pass.remaining);
        if pass.corrects_spelling { facts.with("corrects_spelling", true) } else { facts }
    }
}

#[derive(Debug)]
pub struct RecordRequest {
    pub session_id: String,
    pub query: String,
    pub topic_hash: String,
    pub confidence: f64,
    pub chunks: Option<u64>,
}

impl GuardRequest for RecordRequest {
    fn route(&self) -> &'static Route {
        &RECORD_ROUTE
    }

    fn session_id(&self) -> &str {
        &self.session_id
    }

    fn subject(&self) -> &str {
        &self.topic_hash
    }

    fn places(&self) -> Vec<Place<'_>> {
        vec![Place::in_session(&self.session_id, &VOICEFLOW_SLOT, "")]
    }

    fn input(&self, store_text: StoreText) -> String {
        logged::write(&LoggedRecordInput {
            query: store_text.keep(&self.query, MOST_KEPT_CHARS).into(),
            confidence_score: Some(self.confidence),
            retrieved_chunks: self.chunks,
        })
    }
}

impl Decide for RecordRequest {
    type Guard = Voiceflow;
    type Block = Infallible;
    type Pass = String;

    fn decide(&self, settings: &VoiceflowSettings, state: &VoiceflowState, moment: Moment<'_>) -> RulingOf<Self> {
        let mut events = Vec::with_capacity(2);
        let topic = if let Some(topic) = state.topic_of(&self.topic_hash, &self.query, settings, moment.now) {
            if let Some(gist) = state.first_respelling(topic, &self.topic_hash, &self.query) {
                events.push(VoiceflowEvent::Respelled { topic: topic.hash.clone(), gist });
            }
            topic.hash.clone()
        } else {
            let mut gist = Gist::of(&self.query);
            if moment.store_text == StoreText::None {
                gist.forget_text();
            }
            events.push(VoiceflowEvent::Opened {
                topic: self.topic_hash.clone(),
                gist,
                query: moment.store_text.keep(&self.query, MOST_KEPT_CHARS),
            });
            self.topic_hash.clone()
        };
        events.push(VoiceflowEvent::Recorded {
            topic: topic.clone(),
            confidence: self.confidence,
            chunks: self.chunks,
            keep: settings.max_queries,
        });
        Ruling { findings: Vec::new(), pass: topic, events }
    }

    fn explain(&self, _settings: &VoiceflowSettings, _state: &VoiceflowState, block: &Infallible, _moment: Moment<'_>) -> (Facts, String) {
        match *block {}
    }

    fn pass(&self, topic: String, _moment: Moment<'_>) -> Facts {
        Facts::new().with("topic_hash", topic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Value;
    use crate::guard::properties::Story;
    use serde_json::json;

    fn check(query: &str, prior: Option<f64>) -> CheckRequest {
        CheckRequest { session_id: "s".into(), query: query.into(), topic_hash: topic_hash(query), prior_confidence: prior }
    }

    fn record(query: &str, confidence: f64, chunks: Option<u64>) -> RecordRequest {
        RecordRequest { session_id: "s".into(), query: query.into(), topic_hash: topic_hash(query), confidence, chunks }
    }

    #[test]
    fn the_topic_hash_is_the_documented_one() {
        // sha256("how do refunds work")[:16] by another implementation.
        assert_eq!(topic_hash("  How do\tREFUNDS  work "), topic_hash("how do refunds work"));
        assert_eq!(topic_hash("hello"), "2cf24dba5fb0a30e");
        assert_eq!(topic_hash(&"x".repeat(128)), topic_hash(&"x".repeat(300)));
    }

    #[test]
    fn a_poor_first_answer_ends_the_topic_unless_nothing_was_retrieved() {
        let mut story = Story::default();
        assert!(story.at(0).allows(&check("how do refunds work", None)));
        story.at(0).tells(&record("how do refunds work", 0.3, Some(4)));
        assert_eq!(story.at(1_000).refuses(&check("how do the refunds work?", None)), Reason::LowConfidenceReQueryBlocked);
        assert_eq!(story.fact("matched_query"), Some(Value::from("how do refunds work".to_string())));
        assert_eq!(story.fact("topic_hash"), Some(Value::from(topic_hash("how do refunds work"))));
        assert_eq!(story.retry_after_seconds(), Some(3599));
        assert!(story.at(1_000).allows(&check("where is your shop", None)), "another topic");
        assert!(story.at(1_000).allows(&check("how do refunds work", Some(0.8))), "the caller's confidence outranks the recorded one");

        let mut story = Story::default();
        story.at(0).tells(&record("store hours", 0.0, Some(0)));
        assert!(story.at(1_000).allows(&check("store hours", None)), "a retrieval failure: a second try is fair");
        assert!(story.at(1_000).allows(&check("store hours", Some(0.0))), "also when the caller says the confidence");
        story.at(1_000).tells(&record("store hours", 0.2, Some(3)));
        assert_eq!(story.at(2_000).refuses(&check("store hours", None)), Reason::KbQueryCapReached, "the cap comes first");
        assert!(story.message().contains("not documented"));
    }

    #[test]
    fn a_mistyped_question_may_be_asked_once_as_it_should_be_written() {
        let (mistyped, corrected) = ("thremostat does not heat", "thermostat does not heat");
        for max_queries in [2, 5] {
            let mut story = Story::with_settings_of(&["kb_requery", "voiceflow"], json!({"max_queries": max_queries}));
            assert!(story.at(0).allows(&check(mistyped, None)));
            story.at(0).tells(&record(mistyped, 0.2, Some(3)));
            assert_eq!(story.at(1_000).refuses(&check("the thremostat does not heat!", None)), Reason::LowConfidenceReQueryBlocked);
            assert!(story.at(1_000).allows(&check(corrected, None)), "a slip of the keyboard");
            assert_eq!(story.fact("corrects_spelling"), Some(Value::Bool(true)));
            assert_eq!(story.fact("topic_hash"), Some(Value::from(topic_hash(mistyped))), "it stays the same topic");
            assert!(story.at(1_000).allows(&check(corrected, Some(0.1))), "also when the caller says the confidence");
            story.at(1_000).tells(&record(corrected, 0.2, Some(3)));

            let expected = if max_queries == 2 { Reason::KbQueryCapReached } else { Reason::LowConfidenceReQueryBlocked };
            for again in [mistyped, corrected, "themostat does not heat", "thermsotat does not heat", "thermostatt does not heat"] {
                assert_eq!(story.at(2_000).refuses(&check(again, None)), expected, "{again}");
            }
            assert_eq!(story.retry_after_seconds(), Some(3599), "when the newest of its spellings is forgotten");
            assert!(story.at(2_000).allows(&check("thermostat battery size", None)), "another topic");
        }
    }

    #[test]
    fn a_letter_put_for_another_makes_no_new_topic() {
        let asked = "thermostat does not heat";
        let mut story = Story::default();
        assert!(story.at(0).allows(&check(asked, None)));
        story.at(0).tells(&record(asked, 0.2, Some(3)));
        let mut passed = 0;
        for (position, letter) in (0..10).flat_map(|position| ["x", "q", "o"].map(|letter| (position, letter))) {
            let mut other = asked.to_owned();
            other.replace_range(position..=position, letter);
            if story.at(1_000).allows(&check(&other, None)) {
                passed += usize::from(other != asked);
                story.at(1_000).tells(&record(&other, 0.2, Some(3)));
            }
        }
        assert_eq!(passed, 1, "the fair correction of a slip");
        // Also when it is never asked as it should be written.
        let mut story = Story::default();
        let passed = ["txermostat", "thexmostat", "thermxstat", "thermosqat", "qhermostat", "thermostax", "thurmostat", "thermosoat"]
            .map(|word| format!("{word} does not heat"))
            .iter()
            .filter(|asked| {
                let passes = story.at(1_000).allows(&check(asked, None));
                if passes {
                    story.at(1_000).tells(&record(asked, 0.2, Some(3)));
                }
                passes
            })
            .count();
        assert!(passed <= 4, "{passed} of 8");
        // Two words that are so near are asked about one after the other.
        let mut story = Story::default();
        story.at(0).tells(&record("cost of medication", 0.3, Some(3)));
        assert!(story.at(1_000).allows(&check("cost of meditation", None)));
    }

    #[test]
    fn a_session_may_have_a_ceiling_over_all_topics() {
        let words = ["refunds", "shipping", "warranty", "returns", "invoices"];
        let mut story = Story::default();
        for word in words {
            story.at(0).tells(&record(word, 0.9, Some(3)));
        }
        assert!(story.at(0).allows(&check("opening hours", None)), "there is none unless it is set");
        let mut story = Story::with_settings_of(&["kb_requery", "voiceflow"], json!({"max_session_queries": 4}));
        for (number, word) in words.into_iter().take(4).enumerate() {
            assert!(story.at(number as i64 * 1_000).allows(&check(word, None)), "{word}");
            story.at(number as i64 * 1_000).tells(&record(word, 0.9, Some(3)));
        }
        assert_eq!(story.at(4_000).refuses(&check("invoices", None)), Reason::KbQueryCapReached);
        assert_eq!((story.fact("cap"), story.fact("queries_in_window")), (Some(Value::from(4_u32)), Some(Value::from(4_u32))));
        assert!(story.message().contains("max_session_queries 4"), "{}", story.message());
        assert_eq!(story.retry_after_seconds(), Some(3596), "when the first is forgotten");
        assert!(VoiceflowSettings { max_session_queries: 65, ..VoiceflowSettings::default() }.check().is_err());
    }

    #[test]
    fn spellings_go_with_their_topic_and_older_states_are_read() {
        let mut state = VoiceflowState::default();
        let at = Timestamp::from_millis(0);
        let open =
            |number: usize| VoiceflowEvent::Opened { topic: format!("t{number}"), gist: Gist::of("thremostat"), query: String::new() };
        Voiceflow::apply(&mut state, &open(0), at);
        Voiceflow::apply(&mut state, &VoiceflowEvent::Respelled { topic: "t0".into(), gist: Gist::of("thermostat") }, at);
        assert_eq!(VoiceflowState::load(&[Some(&state.save(0))]), state);
        let older = VoiceflowState { spellings: Vec::new(), ..state.clone() };
        assert_eq!(VoiceflowState::load(&[Some(&encode(&state.topics))]), older);
        assert_eq!(decode::<Vec<Topic>>(Some(&state.save(0))), state.topics, "by a version that knows no spellings too");
        for number in 1..=MAX_TOPICS {
            Voiceflow::apply(&mut state, &open(number), at);
        }
        assert!(state.topics.len() == MAX_TOPICS && state.spellings.is_empty(), "{state:?}");
    }

    #[test]
    fn exact_topics_compare_words_only() {
        let mut story = Story::with_settings_of(&["kb_requery", "voiceflow"], json!({"topic_match": "exact"}));
        story.at(0).tells(&record("how do refunds work", 0.3, Some(4)));
        assert!(story.at(0).allows(&check("how do the refunds work", None)));
        assert_eq!(story.at(0).refuses(&check("How do refunds  work", None)), Reason::LowConfidenceReQueryBlocked);
    }
}
