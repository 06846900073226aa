//! Stops a bot that greets the user again and again: the guard of the guide, which is built by `./test new-guard`.

use super::{
    AnswerKind, Billed, Decide, Finding, Guard, GuardEntry, GuardRequest, GuardedStep, Holds, Lasts, Moment, Place, Probe, Route,
    RouteKind, Ruling, RulingOf, Slot, says, stored_in_one_part, times,
};
use crate::answer::Facts;
use crate::input::{Field, Kind};
use crate::logged::{self, Doubts, EachByItself, Logged, Retold, Terms};
use crate::policy::{GuardSettings, Policy, Section, Setting};
use runguard_core::limits::{InvalidSetting, lasting, within};
use runguard_core::reason::{GuardName, Reason};
use runguard_core::text::StoreText;
use runguard_core::time::{Span, Timestamp};
use runguard_core::window::Units;
use serde::{Deserialize, Serialize};
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

static SLOT: Slot = Slot::of::<Greeting, 0>(200, Lasts::Window);

pub static ROUTE: Route = Route {
    path: "/guard/greeting",
    guard: GuardName::Greeting,
    kind: RouteKind::Check,
    summary: "May this bot greet the user?",
    fields: &[
        Field::required("session_id", Kind::Id, "The conversation.", "\"conv-1\""),
        Field::required("greeting_bot", Kind::Id, "The bot that wants to greet.", "\"welcome-bot\""),
    ],
    answers: &[
        says("greeting_bot", AnswerKind::Text, "The bot asked about."),
        says("greetings_in_window", AnswerKind::Whole, "Greetings counted; allowed: this one included."),
        says("ceiling", AnswerKind::Whole, "Refused: greetings allowed."),
    ],
    reasons: &[Reason::AlreadyGreeted],
    read: |input| Box::new(Request { session_id: input.text("session_id"), greeting_bot: input.text("greeting_bot") }),
};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    pub max_greetings: u32,
    pub window: Span,
}

impl Default for Settings {
    fn default() -> Self {
        Self { max_greetings: 1, window: Span::from_seconds(3600) }
    }
}

impl GuardSettings for Settings {
    const GUARD: GuardName = GuardName::Greeting;
    const SECTION: &'static [&'static str] = &["greeting"];
    const SUBJECTS: &'static str = "bots";
    const SETTINGS: &'static [Setting] = &[
        Setting { key: "max_greetings", about: "Greetings of one bot in one session within the window." },
        Setting { key: "window", about: "Seconds (3600) or with a unit (\"1h\")." },
    ];

    fn longest_window(&self) -> Span {
        self.window
    }

    fn check(&self) -> Result<(), InvalidSetting> {
        within("max_greetings", self.max_greetings, 0..=1000)?;
        lasting("window", self.window)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    greetings: Units,
}
stored_in_one_part!(State);

#[derive(Debug, Serialize, Deserialize)]
pub enum Event {
    Greeted { keep: u32 },
}

#[derive(Debug)]
pub struct Greeting;

impl Guard for Greeting {
    type Settings = Settings;
    type State = State;
    type Event = Event;

    fn section(policy: &Policy) -> &Section<Settings> {
        &policy.greeting
    }

    fn apply(state: &mut State, event: &Event, at: Timestamp) {
        match event {
            Event::Greeted { keep } => state.greetings.take(at, *keep),
        }
    }

    fn probes(section: &Section<Settings>, subject: &str, state: &State, now: Timestamp) -> Vec<Probe> {
        let Settings { max_greetings, window } = section.for_subject(subject).settings;
        let request = Request { session_id: String::new(), greeting_bot: subject.to_owned() };
        vec![Probe { request: Box::new(request), used: state.greetings.count(now, window), ceiling: max_greetings, window }]
    }
}

#[derive(Debug)]
pub struct Request {
    session_id: String,
    greeting_bot: String,
}

/// Its columns tell all of it.
fn again(logged: &Logged<'_>, _terms: &Terms<'_>, _doubts: &mut Doubts) -> Retold {
    Retold::of(Request { session_id: logged.row.session.clone(), greeting_bot: logged.row.subject.clone() })
}

#[derive(Debug)]
pub struct Block {
    greetings: u32,
}

impl GuardRequest for Request {
    fn route(&self) -> &'static Route {
        &ROUTE
    }

    fn session_id(&self) -> &str {
        &self.session_id
    }

    fn subject(&self) -> &str {
        &self.greeting_bot
    }

    fn places(&self) -> Vec<Place<'_>> {
        vec![Place::in_session(&self.session_id, &SLOT, &self.greeting_bot)]
    }

    fn input(&self, _store_text: StoreText) -> String {
        "{}".to_owned()
    }
}

impl Decide for Request {
    type Guard = Greeting;
    type Block = Block;
    type Pass = u32;

    fn decide(&self, settings: &Settings, state: &State, moment: Moment<'_>) -> RulingOf<Self> {
        let greetings = state.greetings.count(moment.now, settings.window);
        let mut findings = Vec::new();
        if greetings >= settings.max_greetings {
            let frees_at = state.greetings.frees_at(settings.window, settings.max_greetings);
            findings.push(Finding::new(Reason::AlreadyGreeted, Block { greetings }, frees_at));
        }
        Ruling { findings, pass: greetings + 1, events: vec![Event::Greeted { keep: settings.max_greetings }] }
    }

    fn explain(&self, settings: &Settings, _state: &State, block: &Block, _moment: Moment<'_>) -> (Facts, String) {
        let bot = &self.greeting_bot;
        let facts = Facts::new()
            .with("greeting_bot", bot.clone())
            .with("greetings_in_window", block.greetings)
            .with("ceiling", settings.max_greetings);
        let message = format!(
            "'{bot}' has greeted {} in the last {} (ceiling {}). Go on with what the user asked for.",
            times(block.greetings),
            settings.window,
            settings.max_greetings
        );
        (facts, message)
    }

    fn pass(&self, greetings: u32, _moment: Moment<'_>) -> Facts {
        Facts::new().with("greeting_bot", self.greeting_bot.clone()).with("greetings_in_window", greetings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::properties::Story;

    #[test]
    fn one_greeting_an_hour() {
        let mut story = Story::default();
        let again = Request { session_id: "s".into(), greeting_bot: "b".into() };
        assert!(story.at(0).allows(&again));
        assert_eq!(story.at(1_000).refuses(&again), Reason::AlreadyGreeted);
        assert_eq!(story.retry_after_seconds(), Some(3599));
        assert!(story.at(3_600_000).allows(&again));
    }
}
