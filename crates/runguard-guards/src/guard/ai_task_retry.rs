//! Stops an AI Task that is run again although its output cannot become valid.
//!
//! Two things are worth knowing before a retry: whether the message contains what the task should extract at all (if
//! not, no number of model calls will find it, so this is asked first and costs no retry), and how often it was tried.

use super::asking_again::{Block, DATE, Event, ORDER_NUMBER, Pass, Patterns, Rule, State};
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

static SLOT: Slot = Slot::of::<AiTaskRetry, 0>(1, Lasts::Window);

pub static ROUTE: Route = Route {
    path: "/guard/ai-task-retry",
    guard: GuardName::AiTaskRetry,
    kind: RouteKind::Check,
    summary: "May this AI Task be run again after its output failed validation?",
    fields: &[
        Field::required("session_id", Kind::Id, "The conversation.", "\"conv-1\""),
        Field::required("task_name", Kind::Id, "The AI Task.", "\"extract_order_number\""),
        Field::optional("user_message", Kind::Text, "The message the task works on.", "\"where is my package\""),
        Field::optional("validation_error", Kind::Text, "Why the last output was refused.", "\"no match for ORD-########\""),
    ],
    answers: &[
        says("task_name", AnswerKind::Text, "The task asked about."),
        says("attempt_number", AnswerKind::Whole, "Allowed: which retry this is."),
        says("remaining_retries", AnswerKind::Whole, "Allowed: how many are left after it."),
        says("input_pre_check", AnswerKind::Text, "Allowed: passed, missed (the rule only watches, or is off) or no_pattern_configured."),
        says("validation_error", AnswerKind::Text, "Signal missing: the error, as it is kept in the log."),
        says("retries_in_window", AnswerKind::Whole, "Cap reached: retries counted."),
        says("cap", AnswerKind::Whole, "Cap reached: retries allowed."),
    ],
    reasons: &[Reason::InputMissingPrerequisiteSignal, Reason::RetryCapReached],
    read: |input| {
        Box::new(Request {
            session_id: input.text("session_id"),
            task_name: input.text("task_name"),
            user_message: Some(input.text("user_message")),
            validation_error: input.text("validation_error"),
        })
    },
};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    pub max_retries: u32,
    pub window: Span,
    pub patterns: Patterns,
}

impl Default for Settings {
    fn default() -> Self {
        Self { max_retries: 2, window: Span::from_seconds(3600), patterns: asking_again::patterns(BUILT_IN) }
    }
}

const BUILT_IN: &[(&str, &str)] = &[
    ("extract_order_number", ORDER_NUMBER),
    ("extract_date", DATE),
    ("extract_amount", r"[$€£]\s*\d|\d\s*(?:dollar|usd|cent|eur|pound|gbp|[$€£])"),
];

impl GuardSettings for Settings {
    const GUARD: GuardName = GuardName::AiTaskRetry;
    const SECTION: &'static [&'static str] = &["ai_task_retry"];
    const SUBJECTS: &'static str = "tasks";
    const SETTINGS: &'static [Setting] = &[
        Setting { key: "max_retries", about: "Retries of one task in one session within the window." },
        Setting { key: "window", about: "Seconds (3600) or with a unit (\"1h\")." },
        Setting {
            key: "patterns",
            about: "What a task's message must contain for a retry to make sense, as a regular expression; \"\" switches a built-in one off.",
        },
    ];

    fn longest_window(&self) -> Span {
        self.window
    }

    fn check(&self) -> Result<(), InvalidSetting> {
        within("max_retries", self.max_retries, 0..=1000)?;
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
            ceiling: self.max_retries,
            window: self.window,
            signal_missing: Reason::InputMissingPrerequisiteSignal,
            ceiling_reached: Reason::RetryCapReached,
        }
    }
}

#[derive(Debug)]
pub struct AiTaskRetry;

impl Guard for AiTaskRetry {
    type Settings = Settings;
    type State = State;
    type Event = Event;

    fn section(policy: &Policy) -> &Section<Settings> {
        &policy.ai_task_retry
    }

    fn apply(state: &mut State, event: &Event, at: Timestamp) {
        state.apply(event, at);
    }

    fn probes(section: &Section<Settings>, subject: &str, state: &State, now: Timestamp) -> Vec<Probe> {
        let request =
            Request { session_id: String::new(), task_name: subject.to_owned(), user_message: None, validation_error: String::new() };
        vec![section.for_subject(subject).settings.rule().probe(request, state, now)]
    }
}

#[derive(Debug)]
pub struct Request {
    pub session_id: String,
    pub task_name: String,
    /// `None`: not known, and not looked at.
    pub user_message: Option<String>,
    pub validation_error: String,
}

const MOST_KEPT_CHARS: usize = 500;

/// What of a request is kept.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct LoggedInput<'a> {
    #[serde(borrow, skip_serializing_if = "str::is_empty")]
    user_message: Cow<'a, str>,
    #[serde(borrow, skip_serializing_if = "str::is_empty")]
    validation_error: Cow<'a, str>,
}

/// The error is not looked at by any rule.
pub(crate) fn again(logged: &Logged<'_>, terms: &Terms<'_>, doubts: &mut Doubts) -> Retold {
    let row = logged.row;
    let kept: LoggedInput<'_> = logged::read(&row.input);
    let rulebook = terms.policy.ai_task_retry.for_subject(&row.subject);
    let pattern = rulebook.settings.patterns.get(&row.subject);
    let missing = Reason::InputMissingPrerequisiteSignal;
    let (reading, user_message) = terms.searched(logged, (rulebook, pattern), missing, (&kept.user_message, MOST_KEPT_CHARS), doubts);
    let (session_id, task_name) = (row.session.clone(), row.subject.clone());
    Retold::by(reading, Request { session_id, task_name, user_message: Some(user_message), validation_error: String::new() })
}

impl GuardRequest for Request {
    fn route(&self) -> &'static Route {
        &ROUTE
    }

    fn session_id(&self) -> &str {
        &self.session_id
    }

    fn subject(&self) -> &str {
        &self.task_name
    }

    fn places(&self) -> Vec<Place<'_>> {
        vec![Place::in_session(&self.session_id, &SLOT, &self.task_name)]
    }

    fn input(&self, store_text: StoreText) -> String {
        logged::write(&LoggedInput {
            user_message: store_text.keep(self.user_message.as_deref().unwrap_or_default(), MOST_KEPT_CHARS).into(),
            validation_error: store_text.keep(&self.validation_error, MOST_KEPT_CHARS).into(),
        })
    }
}

impl Decide for Request {
    type Guard = AiTaskRetry;
    type Block = Block;
    type Pass = Pass;

    fn decide(&self, settings: &Settings, state: &State, moment: Moment<'_>) -> RulingOf<Self> {
        settings.rule().decide(&self.task_name, self.user_message.as_deref(), state, moment.now)
    }

    fn explain(&self, settings: &Settings, _state: &State, block: &Block, moment: Moment<'_>) -> (Facts, String) {
        let task = &self.task_name;
        let facts = Facts::new().with("task_name", task.clone());
        match block {
            Block::SignalMissing => (
                facts.with("validation_error", moment.store_text.keep(&self.validation_error, MOST_KEPT_CHARS)),
                format!(
                    "The message does not contain what task '{task}' should extract, so another model call cannot find it. Ask the user for the value instead of retrying."
                ),
            ),
            Block::CeilingReached { asked } => (
                facts.with("retries_in_window", *asked).with("cap", settings.max_retries),
                format!(
                    "Task '{task}' was already retried {} in the last {} (cap {}). Go to a fallback that asks for the value in a fixed form, or to a person.",
                    times(*asked),
                    settings.window,
                    settings.max_retries
                ),
            ),
        }
    }

    fn pass(&self, pass: Pass, _moment: Moment<'_>) -> Facts {
        Facts::new()
            .with("task_name", self.task_name.clone())
            .with("attempt_number", pass.attempt)
            .with("remaining_retries", pass.remaining)
            .with("input_pre_check", pass.pre_check.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::properties::{Story, ask};
    use crate::pattern::Pattern;

    fn request(message: &str) -> Request {
        Request {
            session_id: "s".into(),
            task_name: "extract_order_number".into(),
            user_message: Some(message.into()),
            validation_error: String::new(),
        }
    }

    #[test]
    fn two_retries_then_no_more_until_the_first_is_an_hour_old() {
        let mut story = Story::default();
        let retry = request("it is #12345678");
        assert!(story.at(0).allows(&retry));
        assert_eq!(story.fact("input_pre_check"), Some(crate::answer::Value::from("passed")));
        assert!(story.at(1_000).allows(&retry));
        assert_eq!(story.at(2_000).refuses(&retry), Reason::RetryCapReached);
        assert_eq!(story.retry_after_seconds(), Some(3598));
        assert_eq!(story.at(3_599_999).refuses(&retry), Reason::RetryCapReached);
        assert!(story.at(3_600_000).allows(&retry));
        assert_eq!(story.at(3_600_000).refuses(&retry), Reason::RetryCapReached);
    }

    #[test]
    fn what_is_not_in_the_message_is_not_tried_and_takes_no_retry() {
        let mut story = Story::default();
        for _ in 0..5 {
            assert_eq!(story.at(0).refuses(&request("where is my package")), Reason::InputMissingPrerequisiteSignal);
            assert_eq!(story.retry_after_seconds(), None, "time does not put a number into the message");
        }
        assert!(story.at(0).allows(&request("ORD-12345678")));
    }

    #[test]
    fn built_in_patterns_know_their_own_examples() {
        let found = |task: &str, message: &str| Settings::default().patterns[task].is_in(message);
        for message in
            ["my order ORD-12345678 is delayed", "#12345678", "order 55555", "it's (#98765)", "order number is 1234567", "Order #12345"]
        {
            assert!(found("extract_order_number", message), "{message}");
        }
        for message in ["I haven't received my package yet", "order 12", "border 12345", "12345678"] {
            assert!(!found("extract_order_number", message), "{message}");
        }
        for message in ["on 6/21/2026", "June 21", "2026-06-21", "21st of June"] {
            assert!(found("extract_date", message), "{message}");
        }
        assert!(!found("extract_date", "some day soon"));
        for message in ["$ 5", "12 dollars", "30 cents", "€5", "7 USD"] {
            assert!(found("extract_amount", message), "{message}");
        }
        assert!(!found("extract_amount", "a lot of money"));
    }

    #[test]
    fn an_empty_pattern_switches_the_built_in_one_off() {
        let mut settings = Settings::default();
        settings.patterns.insert("extract_order_number".into(), Pattern::of(""));
        assert!(ask(&request("nothing"), &settings, &State::default(), 0).findings.is_empty());
    }
}
