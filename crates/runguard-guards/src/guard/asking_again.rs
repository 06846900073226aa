//! The rule of the guards that let a model, or the user, be asked once more: only if the text holds what is looked for, and only so
//! often. The guards differ in what they call it and in what they advise.
//!
//! The text comes first: if what is looked for is not in it, no number of further questions will put it there. Such a refusal is not
//! counted.

use super::{Finding, Operation, Probe, Ruling, stored_in_one_part};
use crate::pattern::Pattern;
use crate::policy::{SettingsProblem, VisitPattern};
use runguard_core::reason::Reason;
use runguard_core::time::{Span, Timestamp};
use runguard_core::window::Units;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A number of five digits and more behind "order", "ORD" or "#". The sign needs no word boundary before it.
pub(super) const ORDER_NUMBER: &str = r"(?:\bord(?:er)?(?:\s*(?:number|no\.?|nr\.?|id|is|[#:-]))*|#)\s*-?\d{5,}";

/// 6/21/2026, 2026-06-21, 21.06.2026, June 21, 21st of June, and the day before the month as other languages write it.
pub(super) const DATE: &str = concat!(
    r"\b\d{1,2}[/.-]\d{1,2}[/.-]\d{2,4}\b|\b\d{4}-\d{1,2}-\d{1,2}\b",
    r"|\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)\w*\.?\s+\d{1,2}",
    r"|\b\d{1,2}(?:st|nd|rd|th)?\s+(?:of\s+)?(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)",
    r"|\b\d{1,2}\.?\s+(?:de\s+)?(?:mär|mai|okt|dez|ene|abr|ago|dic|fév|avr|juin|aoû|déc|янв|фев|мар|апр|ма[йя]|ию[нл]|авг|сен|окт|ноя|дек",
    r"|يناير|فبراير|مارس|[أا]بريل|مايو|يوني[وة]|يولي[وة]|[أا]غسطس|سبتمبر|[أا]كتوبر|نوفمبر|ديسمبر",
    r"|जन|फ़?र|मार्च|अप्रैल|मई|जून|जुल|अग|सित|अक्|नव|दिस)|\d{1,2}月\s?\d{1,2}[日号]"
);

/// "@", as it is spoken in other languages than English.
pub(super) const SPOKEN_AT: &str = "(?:arroba|arobase|chiocciola|klammeraffe|собака|собачка|アットマーク|アット|艾特|골뱅이)";

/// What a text must hold, by subject.
pub(crate) type Patterns = BTreeMap<String, Pattern>;

pub(super) fn patterns(built_in: &[(&str, &str)]) -> Patterns {
    built_in.iter().map(|(subject, pattern)| ((*subject).to_owned(), Pattern::built_in(pattern))).collect()
}

pub(super) fn each_pattern(patterns: &mut Patterns, visit: &mut VisitPattern<'_>) -> Result<(), SettingsProblem> {
    patterns.iter_mut().try_for_each(|(subject, pattern)| visit(&["patterns", subject], pattern))
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct State {
    asked: Units,
}
stored_in_one_part!(State);

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Event {
    Asked { keep: u32 },
}

impl State {
    pub(super) fn apply(&mut self, event: &Event, at: Timestamp) {
        match event {
            Event::Asked { keep } => self.asked.take(at, *keep),
        }
    }
}

#[derive(Debug)]
pub(crate) enum Block {
    SignalMissing,
    CeilingReached { asked: u32 },
}

/// What looking for the signal gave. It is told with what passes too: a pattern that never fails is one that nobody needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PreCheck {
    Passed,
    /// It passes all the same: the rule only watches, or is off.
    Missed,
    NoPattern,
}

impl PreCheck {
    pub(super) const fn code(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Missed => "missed",
            Self::NoPattern => "no_pattern_configured",
        }
    }
}

#[derive(Debug)]
pub(crate) struct Pass {
    pub(super) attempt: u32,
    pub(super) remaining: u32,
    pub(super) pre_check: PreCheck,
}

/// The rule as a guard's settings have it.
#[derive(Debug)]
pub(super) struct Rule<'a> {
    pub(super) patterns: &'a Patterns,
    pub(super) ceiling: u32,
    pub(super) window: Span,
    pub(super) signal_missing: Reason,
    pub(super) ceiling_reached: Reason,
}

impl Rule<'_> {
    pub(super) fn decide(&self, subject: &str, text: Option<&str>, state: &State, now: Timestamp) -> Ruling<Block, Pass, Event> {
        let mut findings = Vec::new();
        let pre_check = match self.patterns.get(subject).filter(|pattern| pattern.is_set()) {
            None => PreCheck::NoPattern,
            Some(pattern) if text.is_some_and(|text| !pattern.is_in(text)) => PreCheck::Missed,
            Some(_) => PreCheck::Passed,
        };
        if pre_check == PreCheck::Missed {
            findings.push(Finding::new(self.signal_missing, Block::SignalMissing, None));
        }
        let asked = state.asked.count(now, self.window);
        if asked >= self.ceiling {
            let frees_at = state.asked.frees_at(self.window, self.ceiling);
            findings.push(Finding::new(self.ceiling_reached, Block::CeilingReached { asked }, frees_at));
        }
        let attempt = asked + 1;
        Ruling {
            findings,
            pass: Pass { attempt, remaining: self.ceiling.saturating_sub(attempt), pre_check },
            events: vec![Event::Asked { keep: self.ceiling }],
        }
    }

    /// A request whose text is not known.
    pub(super) fn probe(&self, request: impl Operation + 'static, state: &State, now: Timestamp) -> Probe {
        Probe { request: Box::new(request), used: state.asked.count(now, self.window), ceiling: self.ceiling, window: self.window }
    }
}
