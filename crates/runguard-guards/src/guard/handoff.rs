//! Stops a conversation that is handed from bot to bot in a circle.
//!
//! We count visits per target and not pairs, because a third bot in the circle changes the pairs but not the fact
//! that the target has failed before. A ceiling over all transfers catches the long way round.

use super::{
    AnswerKind, Billed, Decide, Finding, Guard, GuardEntry, GuardRequest, GuardedStep, Holds, Lasts, Moment, Place, Probe, Route,
    RouteKind, Ruling, RulingOf, Slot, falls_below, forget_earliest, says, stored_in_one_part, times,
};
use crate::answer::Facts;
use crate::input::{Field, Kind};
use crate::logged::{self, Doubts, EachByItself, Logged, Retold, Shows, Terms};
use crate::names::Names;
use crate::policy::{GuardSettings, Policy, Section, Setting};
use runguard_core::limits::{InvalidSetting, lasting, within};
use runguard_core::reason::{GuardName, Reason};
use runguard_core::row::RowRef;
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
    step: GuardedStep::Handover,
    billed: Some(Billed::AiStep),
    holds: Holds::Flow,
    shows,
    retelling: || Box::new(EachByItself(again)),
    traces: None,
};

static SLOT: Slot = Slot::of::<Handoff, 0>(2, Lasts::Window);

pub static ROUTE: Route = Route {
    path: "/guard/handoff",
    guard: GuardName::Handoff,
    kind: RouteKind::Check,
    summary: "May the conversation be handed to this bot?",
    fields: &[
        Field::required("session_id", Kind::Id, "The conversation.", "\"conv-1\""),
        Field::required("source_bot", Kind::Id, "The bot that wants to hand over.", "\"orchestrator\""),
        Field::required("target_bot", Kind::Id, "The bot that should take over.", "\"billing-bot\""),
    ],
    answers: &[
        says("source_bot", AnswerKind::Text, "The bot that wants to hand over."),
        says("target_bot", AnswerKind::Text, "The bot that should take over."),
        says("handoffs_used", AnswerKind::Whole, "Allowed: transfers counted, this one included."),
        says("handoffs_remaining", AnswerKind::Whole, "Allowed: transfers left."),
        says("total_handoffs", AnswerKind::Whole, "Ceiling: transfers counted."),
        says("target_visits", AnswerKind::Whole, "Cycle: how often the target was visited."),
        says("ceiling", AnswerKind::Whole, "Blocked: how many are allowed."),
        says("chain", AnswerKind::List, "Blocked: the bots visited, in order."),
        says("handoff_chain", AnswerKind::List, "Blocked: the same as chain."),
    ],
    reasons: &[Reason::HandoffCeilingReached, Reason::CycleDetected],
    read: |input| {
        Box::new(Request {
            session_id: input.text("session_id"),
            source_bot: input.text("source_bot"),
            target_bot: input.text("target_bot"),
        })
    },
};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    pub max_handoffs: u32,
    pub max_visits_per_bot: u32,
    pub window: Span,
}

impl Default for Settings {
    fn default() -> Self {
        Self { max_handoffs: 6, max_visits_per_bot: 2, window: Span::from_seconds(1800) }
    }
}

impl GuardSettings for Settings {
    const GUARD: GuardName = GuardName::Handoff;
    const SECTION: &'static [&'static str] = &["handoff"];
    const SUBJECTS: &'static str = "bots";
    const SETTINGS: &'static [Setting] = &[
        Setting { key: "max_handoffs", about: "Transfers of one conversation within the window." },
        Setting { key: "max_visits_per_bot", about: "Transfers to the same bot within the window." },
        Setting { key: "window", about: "Seconds (1800) or with a unit (\"30m\")." },
    ];

    fn longest_window(&self) -> Span {
        self.window
    }

    fn check(&self) -> Result<(), InvalidSetting> {
        within("max_handoffs", self.max_handoffs, 0..=1000)?;
        within("max_visits_per_bot", self.max_visits_per_bot, 0..=1000)?;
        lasting("window", self.window)
    }
}

/// Transfers kept at least, also when the ceiling is off or low: enough to see a circle of several bots.
const KEEP_AT_LEAST: u32 = 16;

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Transfer {
    at: Timestamp,
    /// Index into [`State::names`].
    target: u16,
}

/// The latest transfers. At the bound the one with the earliest time leaves; see [`runguard_core::window`] for why that is exact.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    names: Names,
    transfers: Vec<Transfer>,
}
stored_in_one_part!(State);

impl State {
    fn in_window(&self, now: Timestamp, window: Span) -> impl Iterator<Item = &Transfer> {
        self.transfers.iter().filter(move |transfer| now.still_counts(transfer.at, window))
    }

    fn chain(&self, now: Timestamp, window: Span) -> Vec<String> {
        self.in_window(now, window).map(|transfer| self.names.get(transfer.target).to_owned()).collect()
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Event {
    HandedOver { target: String, keep: u32 },
}

#[derive(Debug)]
pub struct Handoff;

impl Guard for Handoff {
    type Settings = Settings;
    type State = State;
    type Event = Event;

    fn section(policy: &Policy) -> &Section<Settings> {
        &policy.handoff
    }

    fn apply(state: &mut State, event: &Event, at: Timestamp) {
        match event {
            Event::HandedOver { target, keep } => {
                let target = state.names.index_or_add(target);
                state.transfers.push(Transfer { at, target });
                if state.transfers.len() > *keep as usize {
                    while state.transfers.len() > *keep as usize {
                        forget_earliest(&mut state.transfers, |transfer| transfer.at);
                    }
                    state.names.keep_used(state.transfers.iter_mut().map(|transfer| &mut transfer.target));
                }
            }
        }
    }

    fn probes(section: &Section<Settings>, _subject: &str, state: &State, now: Timestamp) -> Vec<Probe> {
        let probe = |(index, bot): (u16, &str)| {
            let settings = &section.for_subject(bot).settings;
            Probe {
                request: Box::new(Request { session_id: String::new(), source_bot: String::new(), target_bot: bot.to_owned() }),
                used: state.in_window(now, settings.window).filter(|transfer| transfer.target == index).count() as u32,
                ceiling: settings.max_visits_per_bot,
                window: settings.window,
            }
        };
        state.names.iter().map(probe).collect()
    }
}

#[derive(Debug)]
pub struct Request {
    pub session_id: String,
    pub source_bot: String,
    pub target_bot: String,
}

/// What of a request is kept.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct LoggedInput<'a> {
    #[serde(borrow)]
    source_bot: Cow<'a, str>,
    #[serde(borrow)]
    target_bot: Cow<'a, str>,
}

/// What of an answer is read. The chain of one that does not refuse stands with the signal.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct LoggedAnswer {
    chain: Vec<String>,
    signals: Vec<Signal>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Signal {
    chain: Vec<String>,
}

pub(crate) fn shows<'a>(row: &RowRef<'a>) -> Shows<'a> {
    let kept: LoggedInput<'a> = logged::read(row.input);
    let chain = if row.reason.is_some() {
        let said: LoggedAnswer = logged::read(row.answer);
        let mut chains = std::iter::once(said.chain).chain(said.signals.into_iter().map(|signal| signal.chain));
        chains.find(|chain| !chain.is_empty()).unwrap_or_default()
    } else {
        Vec::new()
    };
    Shows { handover: Some(logged::Handover { source: kept.source_bot, chain }), ..Shows::default() }
}

pub(crate) fn again(logged: &Logged<'_>, _terms: &Terms<'_>, _doubts: &mut Doubts) -> Retold {
    let row = logged.row;
    let source_bot = logged::read::<LoggedInput<'_>>(&row.input).source_bot.into_owned();
    Retold::of(Request { session_id: row.session.clone(), source_bot, target_bot: row.subject.clone() })
}

#[derive(Debug)]
pub enum Block {
    CeilingReached { handoffs: u32 },
    Cycle { visits: u32 },
}

#[derive(Debug)]
pub struct Pass {
    used: u32,
    remaining: u32,
}

impl Request {
    fn findings(&self, settings: &Settings, state: &State, now: Timestamp) -> Vec<Finding<Block, Event>> {
        let mut findings = Vec::new();
        let times: Vec<Timestamp> = state.in_window(now, settings.window).map(|transfer| transfer.at).collect();
        let handoffs = times.len() as u32;
        if handoffs >= settings.max_handoffs {
            let block = Block::CeilingReached { handoffs };
            findings.push(Finding::new(Reason::HandoffCeilingReached, block, falls_below(times, settings.max_handoffs, settings.window)));
        }
        let target = state.names.index(&self.target_bot);
        let visit_times: Vec<Timestamp> =
            state.in_window(now, settings.window).filter(|transfer| Some(transfer.target) == target).map(|transfer| transfer.at).collect();
        let visits = visit_times.len() as u32;
        if visits >= settings.max_visits_per_bot {
            let block = Block::Cycle { visits };
            findings.push(Finding::new(
                Reason::CycleDetected,
                block,
                falls_below(visit_times, settings.max_visits_per_bot, settings.window),
            ));
        }
        findings
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
        &self.target_bot
    }

    fn places(&self) -> Vec<Place<'_>> {
        vec![Place::in_session(&self.session_id, &SLOT, "")]
    }

    fn input(&self, _store_text: StoreText) -> String {
        logged::write(&LoggedInput { source_bot: Cow::Borrowed(&self.source_bot), target_bot: Cow::Borrowed(&self.target_bot) })
    }
}

impl Decide for Request {
    type Guard = Handoff;
    type Block = Block;
    type Pass = Pass;

    fn decide(&self, settings: &Settings, state: &State, moment: Moment<'_>) -> RulingOf<Self> {
        let used = state.in_window(moment.now, settings.window).count() as u32 + 1;
        Ruling {
            findings: self.findings(settings, state, moment.now),
            pass: Pass { used, remaining: settings.max_handoffs.saturating_sub(used) },
            events: vec![Event::HandedOver { target: self.target_bot.clone(), keep: settings.max_handoffs.max(KEEP_AT_LEAST) }],
        }
    }

    fn explain(&self, settings: &Settings, state: &State, block: &Block, moment: Moment<'_>) -> (Facts, String) {
        let facts = Facts::new().with("source_bot", self.source_bot.clone()).with("target_bot", self.target_bot.clone());
        let chain = state.chain(moment.now, settings.window);
        match block {
            Block::CeilingReached { handoffs } => (
                facts
                    .with("total_handoffs", *handoffs)
                    .with("ceiling", settings.max_handoffs)
                    .with("chain", chain.clone())
                    .with("handoff_chain", chain.clone()),
                format!(
                    "The conversation was handed over {} in the last {} (ceiling {}): {}. None of these bots resolved it; hand it to a person.",
                    times(*handoffs),
                    settings.window,
                    settings.max_handoffs,
                    chain.join(" → ")
                ),
            ),
            Block::Cycle { visits } => (
                facts
                    .with("target_visits", *visits)
                    .with("ceiling", settings.max_visits_per_bot)
                    .with("chain", chain.clone())
                    .with("handoff_chain", chain.clone()),
                format!(
                    "'{}' was already visited {} in the last {} (ceiling {}): {}. It did not resolve the conversation then and will not now; hand it to a person.",
                    self.target_bot,
                    times(*visits),
                    settings.window,
                    settings.max_visits_per_bot,
                    if chain.is_empty() { "no transfers yet".to_owned() } else { chain.join(" → ") }
                ),
            ),
        }
    }

    fn pass(&self, pass: Pass, _moment: Moment<'_>) -> Facts {
        Facts::new()
            .with("source_bot", self.source_bot.clone())
            .with("target_bot", self.target_bot.clone())
            .with("handoffs_used", pass.used)
            .with("handoffs_remaining", pass.remaining)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Value;
    use crate::guard::properties::Story;

    fn to(target: &str) -> Request {
        Request { session_id: "s".into(), source_bot: "orchestrator".into(), target_bot: target.into() }
    }

    #[test]
    fn a_third_visit_is_a_circle() {
        let mut story = Story::default();
        for (second, bot) in ["billing", "subscription", "billing", "subscription"].into_iter().enumerate() {
            assert!(story.at(second as i64 * 1000).allows(&to(bot)));
        }
        assert_eq!(story.at(4_000).refuses(&to("billing")), Reason::CycleDetected);
        let chain = vec!["billing".to_string(), "subscription".into(), "billing".into(), "subscription".into()];
        assert_eq!(story.fact("chain"), Some(Value::List(chain.clone())));
        assert_eq!(story.fact("handoff_chain"), Some(Value::List(chain)));
        assert!(story.message().contains("billing → subscription → billing"));
        assert_eq!(story.retry_after_seconds(), Some(1796), "the first visit leaves after 1800 s");
        assert!(story.at(4_000).allows(&to("returns")), "another bot may still help");
    }

    #[test]
    fn six_transfers_are_the_ceiling_and_come_first() {
        let mut story = Story::default();
        for bot in ["a", "b", "c", "a", "b", "c"] {
            assert!(story.at(0).allows(&to(bot)));
        }
        assert_eq!(story.at(1_000).refuses(&to("a")), Reason::HandoffCeilingReached);
        assert_eq!(story.at(1_000).refuses(&to("new")), Reason::HandoffCeilingReached);
        assert!(story.at(1_800_000).allows(&to("a")));
    }

    #[test]
    fn the_retry_time_waits_for_both_rules() {
        let mut story = Story::default();
        for (second, bot) in [(0, "x"), (100, "a"), (200, "a"), (300, "b"), (400, "c"), (500, "d")] {
            assert!(story.at(second * 1000).allows(&to(bot)));
        }
        assert_eq!(story.at(600_000).refuses(&to("a")), Reason::HandoffCeilingReached);
        assert_eq!(story.retry_after_seconds(), Some(1300), "the ceiling clears at 1800 s, but 'a' is free only at 1900 s");
    }
}
