//! Stops a step that asks the user again and again, each time with a generated sentence.
//!
//! If the utterance cannot contain what the step captures, another generated clarification will not put it there: a
//! fixed prompt that shows the format is better and costs nothing. Otherwise a few reprompts are fair.

use super::asking_again::{Block, DATE, Event, ORDER_NUMBER, Pass, Patterns, Rule, SPOKEN_AT, State};
use super::{
    AnswerKind, Billed, Decide, Guard, GuardEntry, GuardRequest, GuardedStep, Holds, Lasts, Moment, Place, Probe, Route, RouteKind,
    RulingOf, Slot, asking_again, says, times,
};
use crate::answer::Facts;
use crate::input::{Field, Kind};
use crate::logged::{self, Doubts, EachByItself, Logged, Retold, Terms};
use crate::policy::{GuardSettings, Policy, Section, Setting, SettingsProblem, VisitPattern};
use runguard_core::limits::{InvalidSetting, lasting, within};
use runguard_core::reason::{GuardName, Reason};
use runguard_core::text::StoreText;
use runguard_core::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::sync::Arc;

/// What a policy has of it.
pub type Sections = Arc<Section<Settings>>;

pub(super) const ENTRY: GuardEntry = GuardEntry {
    routes: &[&ROUTE],
    slots: &[&SLOT],
    step: GuardedStep::Question,
    billed: Some(Billed::AiStep),
    holds: Holds::Flow,
    shows: logged::shows_nothing,
    retelling: || Box::new(EachByItself(again)),
    traces: None,
};

static SLOT: Slot = Slot::of::<NoMatchReprompt, 0>(6, Lasts::Window);

pub static ROUTE: Route = Route {
    path: "/guard/no-match-reprompt",
    guard: GuardName::NoMatchReprompt,
    kind: RouteKind::Check,
    summary: "May the user be asked again with a generated reprompt?",
    fields: &[
        Field::required("session_id", Kind::Id, "The conversation.", "\"user-1\""),
        Field::required("step_id", Kind::Id, "The step whose No Match or No Reply path this is.", "\"capture_email\""),
        Field::optional("user_utterance", Kind::Text, "What the user said; a No Reply has none.", "\"it is john at example dot com\""),
    ],
    answers: &[
        says("step_id", AnswerKind::Text, "The step asked about."),
        says("attempt_number", AnswerKind::Whole, "Allowed: which reprompt this is."),
        says("remaining_reprompts", AnswerKind::Whole, "Allowed: how many are left after it."),
        says("pre_check_result", AnswerKind::Text, "Allowed: passed, missed (the rule only watches, or is off) or no_pattern_configured."),
        says("user_utterance", AnswerKind::Text, "Signal absent: the utterance, as it is kept in the log."),
        says("attempts_in_window", AnswerKind::Whole, "Ceiling reached: reprompts counted."),
        says("ceiling", AnswerKind::Whole, "Ceiling reached: reprompts allowed."),
    ],
    reasons: &[Reason::EntitySignalAbsent, Reason::RepromptCeilingReached],
    read: |input| {
        Box::new(Request {
            session_id: input.text("session_id"),
            step_id: input.text("step_id"),
            user_utterance: Some(input.text("user_utterance")),
        })
    },
};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    pub max_reprompts: u32,
    pub window: Span,
    pub patterns: Patterns,
}

impl Default for Settings {
    fn default() -> Self {
        let order_id = format!(r"{ORDER_NUMBER}|\b\d{{6,}}\b");
        let email = format!(r"@|\bat\s+\w+\s+dot\b|\bat\s+\w+\.|\w+\.\w{{2,}}|{SPOKEN_AT}");
        let built_in = [
            ("capture_email", email.as_str()),
            ("capture_order_id", &order_id),
            ("capture_phone", r"\b\d[\d\s\-().]{7,}\d\b"),
            ("capture_date", DATE),
            ("capture_zip", r"\b\d{5}(?:[-\s]\d{4})?\b"),
        ];
        Self { max_reprompts: 3, window: Span::from_seconds(3600), patterns: asking_again::patterns(&built_in) }
    }
}

impl GuardSettings for Settings {
    const GUARD: GuardName = GuardName::NoMatchReprompt;
    const SECTION: &'static [&'static str] = &["no_match_reprompt"];
    const SUBJECTS: &'static str = "steps";
    const SETTINGS: &'static [Setting] = &[
        Setting { key: "max_reprompts", about: "Reprompts of one step in one session within the window." },
        Setting { key: "window", about: "Seconds (3600) or with a unit (\"1h\")." },
        Setting {
            key: "patterns",
            about: "What the utterance must contain for another prompt to make sense, per step; \"\" switches a built-in one off.",
        },
    ];

    fn longest_window(&self) -> Span {
        self.window
    }

    fn check(&self) -> Result<(), InvalidSetting> {
        within("max_reprompts", self.max_reprompts, 0..=1000)?;
        lasting("window", self.window)
    }

    fn each_pattern(&mut self, visit: &mut VisitPattern<'_>) -> Result<(), SettingsProblem> {
        asking_again::each_pattern(&mut self.patterns, visit)
    }
}

impl Settings {
    fn rule(&self) -> Rule<'_> {
        Rule {
            patterns: &self.patterns,
            ceiling: self.max_reprompts,
            window: self.window,
            signal_missing: Reason::EntitySignalAbsent,
            ceiling_reached: Reason::RepromptCeilingReached,
        }
    }
}

#[derive(Debug)]
pub struct NoMatchReprompt;

impl Guard for NoMatchReprompt {
    type Settings = Settings;
    type State = State;
    type Event = Event;

    fn section(policy: &Policy) -> &Section<Settings> {
        &policy.no_match_reprompt
    }

    fn apply(state: &mut State, event: &Event, at: Timestamp) {
        state.apply(event, at);
    }

    fn probes(section: &Section<Settings>, subject: &str, state: &State, now: Timestamp) -> Vec<Probe> {
        let request = Request { session_id: String::new(), step_id: subject.to_owned(), user_utterance: None };
        vec![section.for_subject(subject).settings.rule().probe(request, state, now)]
    }
}

#[derive(Debug)]
pub struct Request {
    pub session_id: String,
    pub step_id: String,
    /// `None`: not known, and not looked at.
    pub user_utterance: Option<String>,
}

const MOST_KEPT_CHARS: usize = 500;

/// What of a request is kept.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct LoggedInput<'a> {
    #[serde(borrow, skip_serializing_if = "str::is_empty")]
    user_utterance: Cow<'a, str>,
}

pub(crate) fn again(logged: &Logged<'_>, terms: &Terms<'_>, doubts: &mut Doubts) -> Retold {
    let row = logged.row;
    let kept: LoggedInput<'_> = logged::read(&row.input);
    let rulebook = terms.policy.no_match_reprompt.for_subject(&row.subject);
    let pattern = rulebook.settings.patterns.get(&row.subject);
    let missing = Reason::EntitySignalAbsent;
    let (reading, user_utterance) = terms.searched(logged, (rulebook, pattern), missing, (&kept.user_utterance, MOST_KEPT_CHARS), doubts);
    Retold::by(reading, Request { session_id: row.session.clone(), step_id: row.subject.clone(), user_utterance: Some(user_utterance) })
}

impl Request {
    fn kept_utterance(&self, store_text: StoreText) -> String {
        store_text.keep(self.user_utterance.as_deref().unwrap_or_default(), MOST_KEPT_CHARS)
    }
}

impl GuardRequest for Request {
    fn route(&self) -> &'static Route {
        &ROUTE
    }

    fn session_id(&self) -> &str {
        &self.session_id
    }

    fn subject(&self) -> &str {
        &self.step_id
    }

    fn places(&self) -> Vec<Place<'_>> {
        vec![Place::in_session(&self.session_id, &SLOT, &self.step_id)]
    }

    fn input(&self, store_text: StoreText) -> String {
        logged::write(&LoggedInput { user_utterance: self.kept_utterance(store_text).into() })
    }
}

impl Decide for Request {
    type Guard = NoMatchReprompt;
    type Block = Block;
    type Pass = Pass;

    fn decide(&self, settings: &Settings, state: &State, moment: Moment<'_>) -> RulingOf<Self> {
        settings.rule().decide(&self.step_id, self.user_utterance.as_deref(), state, moment.now)
    }

    fn explain(&self, settings: &Settings, _state: &State, block: &Block, moment: Moment<'_>) -> (Facts, String) {
        let step = &self.step_id;
        let facts = Facts::new().with("step_id", step.clone());
        match block {
            Block::SignalMissing => (
                facts.with("user_utterance", self.kept_utterance(moment.store_text)),
                format!(
                    "What the user said contains nothing that step '{step}' could capture, and a generated reprompt will not change that. Show a fixed prompt with the format you need."
                ),
            ),
            Block::CeilingReached { asked } => (
                facts.with("attempts_in_window", *asked).with("ceiling", settings.max_reprompts),
                format!(
                    "Step '{step}' has already reprompted {} in the last {} (ceiling {}). Go to a fixed fallback or to a person.",
                    times(*asked),
                    settings.window,
                    settings.max_reprompts
                ),
            ),
        }
    }

    fn pass(&self, pass: Pass, _moment: Moment<'_>) -> Facts {
        Facts::new()
            .with("step_id", self.step_id.clone())
            .with("attempt_number", pass.attempt)
            .with("remaining_reprompts", pass.remaining)
            .with("pre_check_result", pass.pre_check.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Value;
    use crate::guard::properties::Story;
    use serde_json::json;

    fn request(step: &str, utterance: &str) -> Request {
        Request { session_id: "s".into(), step_id: step.into(), user_utterance: Some(utterance.into()) }
    }

    #[test]
    fn three_reprompts_then_a_fallback() {
        let mut story = Story::default();
        let again = request("choose_plan", "hm");
        for second in 0..3 {
            assert!(story.at(second * 1000).allows(&again));
        }
        assert_eq!(story.at(3_000).refuses(&again), Reason::RepromptCeilingReached);
        assert_eq!(story.retry_after_seconds(), Some(3597));
        assert!(story.at(3_600_000).allows(&again));
    }

    #[test]
    fn an_utterance_without_the_entity_takes_no_slot() {
        let mut story = Story::default();
        for _ in 0..4 {
            assert_eq!(story.at(0).refuses(&request("capture_email", "I have none")), Reason::EntitySignalAbsent);
        }
        assert_eq!(story.at(0).refuses(&request("capture_email", "")), Reason::EntitySignalAbsent, "a No Reply has no utterance");
        assert!(story.at(0).allows(&request("capture_email", "john at example dot com")));
    }

    #[test]
    fn what_passes_says_what_was_looked_for() {
        let said = |story: &Story| story.fact("pre_check_result");
        let mut story = Story::default();
        assert!(story.at(0).allows(&request("choose_plan", "hm")));
        assert_eq!(said(&story), Some(Value::from("no_pattern_configured")));
        assert!(story.at(0).allows(&request("capture_email", "a@b.org")));
        assert_eq!(said(&story), Some(Value::from("passed")));
        let mut story = Story::with_settings_of(&["no_match_reprompt"], json!({"rules": {"entity_signal_absent": "observe"}}));
        assert!(story.at(0).allows(&request("capture_email", "none")));
        assert_eq!(said(&story), Some(Value::from("missed")));
    }

    #[test]
    fn built_in_patterns_know_their_own_examples() {
        let settings = Settings::default();
        assert_eq!(settings.patterns.len(), 5);
        for (step, yes, no) in [
            ("capture_email", "user@domain.com", "no idea"),
            ("capture_order_id", "#12345678", "the blue one"),
            ("capture_order_id", "123456", "12345"),
            ("capture_phone", "555-867-5309", "five five five"),
            ("capture_date", "12/24/2026", "soon"),
            ("capture_zip", "94103-1234", "941"),
            ("capture_zip", "１２３４５", "１２３"),
            ("capture_phone", "٥٥٥-٨٦٧-٥٣٠٩", "خمسة"),
            ("capture_phone", "０３−１２３４−５６７８", "あとで"),
            ("capture_email", "maría arroba ejemplo punto es", "no tengo"),
            ("capture_email", "иван собака пример точка ру", "у меня нет"),
            ("capture_date", "15 марта", "скоро"),
            ("capture_date", "2026年6月21日", "来週ぐらい"),
            ("capture_date", "२१ जून", "जल्दी"),
        ] {
            assert!(settings.patterns[step].is_in(yes), "{step} {yes}");
            assert!(!settings.patterns[step].is_in(no), "{step} {no}");
        }
    }
}
