//! The door of Botpress flows. They name the topic and tell the last confidence with the question, so the check counts.

use super::row::LoggedBotpressInput;
use super::{BOTPRESS_SLOT, DOORS};
use crate::answer::Facts;
use crate::guard::{
    AnswerKind, Decide, Finding, Guard, GuardRequest, Moment, Place, Probe, Route, RouteKind, Ruling, RulingOf, falls_below,
    forget_earliest, says, stored_in_one_part, times,
};
use crate::input::{Field, Kind};
use crate::logged;
use crate::policy::{GuardSettings, Policy, Section, Setting};
use runguard_core::limits::{InvalidSetting, fraction, lasting, within};
use runguard_core::reason::{GuardName, Reason};
use runguard_core::text::StoreText;
use runguard_core::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

pub static BOTPRESS_ROUTE: Route = Route {
    path: "/guard/kb-requery",
    guard: GuardName::KbRequery,
    kind: RouteKind::Check,
    summary: "May the knowledge base be asked again? (The check counts.)",
    fields: &[
        Field::required("session_id", Kind::Id, "The conversation.", "\"conv-1\""),
        Field::required("topic_hash", Kind::Label, "A stable name of the question.", "\"refund-policy\""),
        Field::optional("query_text", Kind::Text, "The query.", "\"how do refunds work\""),
        Field::optional("last_confidence", Kind::Fraction, "Confidence of the last answer; 0 when there was none.", "0.4"),
    ],
    answers: &[
        says("topic_hash", AnswerKind::Text, "The topic asked about, as it is kept in the log."),
        says("queries_used", AnswerKind::Whole, "Allowed: queries counted, this one included."),
        says("queries_remaining", AnswerKind::Whole, "Allowed: queries left."),
        says("last_confidence", AnswerKind::Number, "Already met: the confidence given."),
        says("threshold", AnswerKind::Number, "Already met: the confidence that is enough."),
        says("queries_in_window", AnswerKind::Whole, "Cap: queries counted."),
        says("cap", AnswerKind::Whole, "Cap: queries allowed."),
        says("best_confidence_seen", AnswerKind::Number, "Cap: the highest confidence seen for the topic."),
    ],
    reasons: &[Reason::ConfidenceAlreadyMet, Reason::KbRequeryCapReached],
    read: |input| {
        Box::new(BotpressRequest {
            session_id: input.text("session_id"),
            topic_hash: input.text("topic_hash"),
            query_text: input.text("query_text"),
            last_confidence: input.fraction("last_confidence").unwrap_or(0.0),
        })
    },
};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BotpressSettings {
    pub max_queries: u32,
    pub window: Span,
    pub confidence_threshold: f64,
}

impl Default for BotpressSettings {
    fn default() -> Self {
        Self { max_queries: 2, window: Span::from_seconds(900), confidence_threshold: 0.75 }
    }
}

impl GuardSettings for BotpressSettings {
    const GUARD: GuardName = GuardName::KbRequery;
    const SECTION: &'static [&'static str] = &["kb_requery", "botpress"];
    const DOORS: &'static [&'static str] = DOORS;
    const SUBJECTS: &'static str = "topics";
    const SETTINGS: &'static [Setting] = &[
        Setting { key: "max_queries", about: "Queries on one topic in one session within the window." },
        Setting { key: "window", about: "Seconds (900) or with a unit (\"15m\")." },
        Setting { key: "confidence_threshold", about: "From here on the last answer is good enough." },
    ];

    fn longest_window(&self) -> Span {
        self.window
    }

    fn check(&self) -> Result<(), InvalidSetting> {
        within("max_queries", self.max_queries, 0..=1000)?;
        lasting("window", self.window)?;
        fraction("confidence_threshold", self.confidence_threshold)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct PastQuery {
    at: Timestamp,
    confidence: f64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BotpressState {
    queries: Vec<PastQuery>,
    /// The highest confidence told, by a refused request too.
    best: Option<PastQuery>,
}
stored_in_one_part!(BotpressState);

impl BotpressState {
    fn in_window(&self, now: Timestamp, window: Span) -> impl Iterator<Item = &PastQuery> {
        self.queries.iter().filter(move |seen| now.still_counts(seen.at, window))
    }

    fn best(&self, now: Timestamp, window: Span) -> f64 {
        self.in_window(now, window)
            .chain(self.best.iter().filter(|best| now.still_counts(best.at, window)))
            .map(|seen| seen.confidence)
            .fold(0.0, f64::max)
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub enum BotpressEvent {
    Queried { confidence: f64, keep: u32 },
    BestSeen { confidence: f64 },
}

#[derive(Debug)]
pub struct Botpress;

impl Guard for Botpress {
    type Settings = BotpressSettings;
    type State = BotpressState;
    type Event = BotpressEvent;

    fn section(policy: &Policy) -> &Section<BotpressSettings> {
        &policy.kb_requery.botpress
    }

    fn apply(state: &mut BotpressState, event: &BotpressEvent, at: Timestamp) {
        match event {
            BotpressEvent::Queried { confidence, keep } => {
                state.queries.push(PastQuery { at, confidence: *confidence });
                while state.queries.len() > (*keep).max(1) as usize {
                    forget_earliest(&mut state.queries, |seen| seen.at);
                }
            }
            BotpressEvent::BestSeen { confidence } => state.best = Some(PastQuery { at, confidence: *confidence }),
        }
    }

    fn probes(section: &Section<BotpressSettings>, subject: &str, state: &BotpressState, now: Timestamp) -> Vec<Probe> {
        let settings = &section.for_subject(subject).settings;
        let request =
            BotpressRequest { session_id: String::new(), topic_hash: subject.to_owned(), query_text: String::new(), last_confidence: 0.0 };
        let used = state.in_window(now, settings.window).count() as u32;
        vec![Probe { request: Box::new(request), used, ceiling: settings.max_queries, window: settings.window }]
    }
}

#[derive(Debug)]
pub struct BotpressRequest {
    pub session_id: String,
    pub topic_hash: String,
    pub query_text: String,
    pub last_confidence: f64,
}

#[derive(Debug)]
pub enum BotpressBlock {
    AlreadyMet,
    CapReached { queries: u32, best: f64 },
}

#[derive(Debug)]
pub struct Pass {
    number: u32,
    remaining: u32,
}

impl GuardRequest for BotpressRequest {
    fn route(&self) -> &'static Route {
        &BOTPRESS_ROUTE
    }

    fn session_id(&self) -> &str {
        &self.session_id
    }

    fn subject(&self) -> &str {
        &self.topic_hash
    }

    fn kept_subject(&self, store_text: StoreText) -> Cow<'_, str> {
        store_text.keep_name(&self.topic_hash)
    }

    fn places(&self) -> Vec<Place<'_>> {
        vec![Place::in_session(&self.session_id, &BOTPRESS_SLOT, &self.topic_hash)]
    }

    fn input(&self, store_text: StoreText) -> String {
        logged::write(&LoggedBotpressInput {
            query_text: store_text.keep(&self.query_text, 500).into(),
            last_confidence: Some(self.last_confidence),
        })
    }
}

impl Decide for BotpressRequest {
    type Guard = Botpress;
    type Block = BotpressBlock;
    type Pass = Pass;

    fn decide(&self, settings: &BotpressSettings, state: &BotpressState, moment: Moment<'_>) -> RulingOf<Self> {
        let best_before = state.best(moment.now, settings.window);
        // A refusal takes no slot, but what it tells of the topic is worth keeping.
        let refused = |reason, block, clears_at| {
            let mut finding = Finding::new(reason, block, clears_at);
            if self.last_confidence > best_before {
                finding.events.push(BotpressEvent::BestSeen { confidence: self.last_confidence });
            }
            finding
        };
        let mut findings = Vec::new();
        if self.last_confidence >= settings.confidence_threshold {
            findings.push(refused(Reason::ConfidenceAlreadyMet, BotpressBlock::AlreadyMet, None));
        }
        let times: Vec<Timestamp> = state.in_window(moment.now, settings.window).map(|seen| seen.at).collect();
        let queries = times.len() as u32;
        if queries >= settings.max_queries {
            let block = BotpressBlock::CapReached { queries, best: best_before.max(self.last_confidence) };
            findings.push(refused(Reason::KbRequeryCapReached, block, falls_below(times, settings.max_queries, settings.window)));
        }
        Ruling {
            findings,
            pass: Pass { number: queries + 1, remaining: settings.max_queries.saturating_sub(queries + 1) },
            events: vec![BotpressEvent::Queried { confidence: self.last_confidence, keep: settings.max_queries }],
        }
    }

    fn explain(&self, settings: &BotpressSettings, _state: &BotpressState, block: &BotpressBlock, moment: Moment<'_>) -> (Facts, String) {
        let facts = Facts::new().with("topic_hash", moment.store_text.keep_name(&self.topic_hash).into_owned());
        match block {
            BotpressBlock::AlreadyMet => (
                facts.with("last_confidence", self.last_confidence).with("threshold", settings.confidence_threshold),
                format!(
                    "The last answer's confidence {:.2} already meets the threshold {:.2}: use it. The loop should have ended before it asked here.",
                    self.last_confidence, settings.confidence_threshold
                ),
            ),
            BotpressBlock::CapReached { queries, best } => (
                facts.with("queries_in_window", *queries).with("cap", settings.max_queries).with("best_confidence_seen", *best),
                format!(
                    "The knowledge base was asked {} about this topic in the last {} (cap {}); the best confidence was {best:.2} of {:.2}. Give the best answer with a caveat, or hand over to a person.",
                    times(*queries),
                    settings.window,
                    settings.max_queries,
                    settings.confidence_threshold
                ),
            ),
        }
    }

    fn pass(&self, pass: Pass, moment: Moment<'_>) -> Facts {
        Facts::new()
            .with("topic_hash", moment.store_text.keep_name(&self.topic_hash).into_owned())
            .with("queries_used", pass.number)
            .with("queries_remaining", pass.remaining)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Value;
    use crate::guard::properties::Story;

    fn botpress(confidence: f64) -> BotpressRequest {
        BotpressRequest { session_id: "s".into(), topic_hash: "t".into(), query_text: String::new(), last_confidence: confidence }
    }

    #[test]
    fn two_queries_and_the_best_confidence_is_the_highest_seen() {
        let mut story = Story::default();
        assert!(story.at(0).allows(&botpress(0.5)));
        assert!(story.at(1_000).allows(&botpress(0.3)));
        assert_eq!(story.at(2_000).refuses(&botpress(0.1)), Reason::KbRequeryCapReached);
        assert_eq!(story.fact("best_confidence_seen"), Some(Value::Number(0.5)));
        assert_eq!(story.at(3_000).refuses(&botpress(0.6)), Reason::KbRequeryCapReached);
        assert_eq!(story.fact("best_confidence_seen"), Some(Value::Number(0.6)), "the refused request's own counts");
        assert_eq!(story.at(4_000).refuses(&botpress(0.2)), Reason::KbRequeryCapReached);
        assert_eq!(story.fact("best_confidence_seen"), Some(Value::Number(0.6)), "and is remembered");
        assert_eq!(story.retry_after_seconds(), Some(896));
        assert!(story.at(900_000).allows(&botpress(0.1)));
    }

    #[test]
    fn a_good_answer_needs_no_second_query() {
        let mut story = Story::default();
        assert_eq!(story.at(0).refuses(&botpress(0.75)), Reason::ConfidenceAlreadyMet);
        assert_eq!(story.retry_after_seconds(), None);
        assert!(story.at(0).allows(&botpress(0.7499)));
    }
}
