//! The stall detector under rules that have modes of their own.
//!
//! A verdict names one rule, the first of those that climbed highest. So that a rule which is off, or only watches, does not hide one that is
//! enforced: what is off is not looked at, and where something only watches, the others are asked apart. The state changes once, by all that
//! are looked at.

use crate::policy::Mode;
use runguard_core::detect::stall::{Long, Rung, StallRule, StallSettings, StallState, Verdict};
use runguard_core::reason::Reason;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// The rules that end no run.
#[derive(Debug, Clone, Default)]
pub(super) struct Unenforced {
    off: Vec<StallRule>,
    observed: Vec<StallRule>,
}

impl Unenforced {
    pub(super) fn of(mode_of: &dyn Fn(Reason) -> Mode) -> Self {
        let having = |mode| StallRule::ALL.into_iter().filter(|rule| mode_of(rule.reason()) == mode).collect();
        Self { off: having(Mode::Off), observed: having(Mode::Observe) }
    }

    pub(super) fn has(&self, rule: StallRule) -> bool {
        self.is_off(rule) || self.observed.contains(&rule)
    }

    pub(super) fn is_off(&self, rule: StallRule) -> bool {
        self.off.contains(&rule)
    }

    pub(super) fn thresholds(&self, named: StallSettings) -> Thresholds {
        let without = |settings: StallSettings, rules: &[StallRule]| rules.iter().copied().fold(settings, StallSettings::without);
        let all = without(named, &self.off);
        let enforced = (!self.observed.is_empty()).then(|| Box::new(without(all.clone(), &self.observed)));
        Thresholds { all, enforced }
    }
}

/// Thresholds as the modes of the rules leave them.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Thresholds {
    /// Of every rule that is looked at.
    pub all: StallSettings,
    /// Of those that are enforced, where others only watch.
    #[serde(skip)]
    enforced: Option<Box<StallSettings>>,
}

impl Thresholds {
    /// Of rules that are all enforced.
    pub fn new(all: StallSettings) -> Self {
        Self { all, enforced: None }
    }

    /// These, knowing what is long for the run at hand.
    pub fn knowing(&self, long: Long) -> Cow<'_, Self> {
        if long == Long::default() || !self.all.takes_what_is_long() {
            return Cow::Borrowed(self);
        }
        let enforced = self.enforced.as_ref().map(|enforced| Box::new(long.over(StallSettings::clone(enforced))));
        Cow::Owned(Self { all: long.over(self.all.clone()), enforced })
    }

    /// Lets something happen to a state, and asks what the rules make of it.
    pub fn judge(&self, state: &mut StallState, happen: impl Fn(&StallSettings, &mut StallState) -> Verdict) -> Verdicts {
        let enforced = self.enforced.as_ref().map(|enforced| happen(enforced, &mut state.clone()));
        let all = happen(&self.all, state);
        Verdicts { all, enforced: enforced.unwrap_or(all) }
    }
}

/// What the rules make of what happened.
#[derive(Debug, Clone, Copy, Default)]
pub struct Verdicts {
    /// All that are looked at.
    pub all: Verdict,
    /// Those that are enforced. Another one than that of all only where a rule that watches gave that.
    pub enforced: Verdict,
}

impl Verdicts {
    /// The verdict of all, and what is refused apart from it.
    pub fn each(self) -> impl Iterator<Item = Verdict> {
        let apart = Some(self.enforced).filter(|enforced| *enforced != self.all && enforced.rung >= Rung::Block);
        [self.all].into_iter().chain(apart)
    }
}

#[cfg(test)]
mod tests {
    use crate::answer::{Answer, Value};
    use crate::guard::properties::{Story, operation};
    use runguard_core::reason::Reason;
    use serde_json::json;

    /// Fourteen equal calls: which is refused, and what is answered to it.
    fn refused(guard: &str, settings: serde_json::Value) -> Option<(usize, Answer)> {
        let mut story = Story::with_settings_of(&[guard], settings);
        let call =
            |number: usize| json!({"id": number.to_string(), "tool": "search", "args": "a", "result": "x", "round": number.to_string()});
        let asks = |number: usize| match guard {
            "stall" => operation("/guard/stall", json!({"session_id": "r", "tool": "search", "args": 1, "result": "x"})),
            _ => operation("/guard/agent-run", json!({"session_id": "r", "steps": (0..number).map(call).collect::<Vec<_>>()})),
        };
        let answers = (1..=14).map(|number| (number, story.at(0).run(&*asks(number)).answer));
        let mut answers = answers.collect::<Vec<_>>().into_iter();
        answers.find(|(_, answer)| answer.is_block())
    }

    #[test]
    fn a_rule_that_is_off_or_watches_hides_none_that_is_enforced() {
        for (guard, reason, watching) in
            [("stall", Reason::StalledNoNews, Reason::StalledIdentical), ("agent_run", Reason::RunStalled, Reason::RunStalled)]
        {
            for (mode, signals) in [("observe", vec![(watching, Some(Value::from("identical")))]), ("off", Vec::new())] {
                let (at, answer) = refused(guard, json!({"rules": {"stalled_identical": mode}})).unwrap();
                assert_eq!((at, answer.reason), (7, Some(reason)), "{guard} {mode}");
                assert_eq!(answer.facts.get("rule"), Some(&Value::from("novelty")), "{guard} {mode}");
                let seen: Vec<_> = answer.signals.iter().map(|signal| (signal.reason, signal.facts.get("rule").cloned())).collect();
                assert_eq!(seen, signals, "{guard} {mode}");
            }
            let neither = json!({"rules": {"stalled_identical": "observe", "stalled_no_news": "off"}});
            assert!(refused(guard, neither).is_none(), "{guard}");
        }
    }

    #[test]
    fn what_is_off_is_not_told_to_the_model() {
        for guard in ["stall", "agent_run"] {
            let off = |rules: &[&str]| rules.iter().map(|rule| ((*rule).to_owned(), json!("off"))).collect::<serde_json::Map<_, _>>();
            let mut story =
                Story::with_settings_of(&[guard], json!({"rules": off(&["stalled_identical", "stalled_cycle", "stalled_no_news"])}));
            let step = |number: usize| json!({"id": number.to_string(), "tool": "search", "args": "a", "result": "x"});
            for number in 1..=8 {
                let asked = match guard {
                    "stall" => operation("/guard/stall", json!({"session_id": "r", "tool": "search", "args": 1, "result": "x"})),
                    _ => operation("/guard/agent-run", json!({"session_id": "r", "steps": (0..number).map(step).collect::<Vec<_>>()})),
                };
                assert!(story.at(0).allows(&*asked));
                assert_eq!(story.fact("rung"), Some(Value::from("go_on")), "{guard}");
            }
        }
    }

    #[test]
    fn a_run_that_a_rule_stopped_which_only_watches_now_goes_on_and_is_watched_by_the_others() {
        let mut story = Story::default();
        let call = |number: usize| json!({"id": number.to_string(), "tool": "search", "args": "a", "result": "x"});
        let asks =
            |number: usize| operation("/guard/agent-run", json!({"session_id": "r", "steps": (0..number).map(call).collect::<Vec<_>>()}));
        assert_eq!(story.at(0).refuses(&*asks(4)), Reason::RunStalled);
        story.settings_become(json!({"agent_run": {"rules": {"stalled_identical": "observe"}}}));
        assert!(story.at(1).allows(&*asks(5)));
        assert_eq!(story.at(2).refuses(&*asks(7)), Reason::RunStalled);
        assert_eq!(story.fact("rule"), Some(Value::from("novelty")));
    }
}
