//! What a run knows of single tools: rules that its caller gives, and what calls have given so far.
//!
//! A call that is made again and gives something else is no loop: a poll goes on as long as its result changes. So a call is told from
//! an equal one before it by how often its result has changed.

use crate::fingerprint::Volatile;
use crate::limits::setters;
use serde::Deserialize;
use std::collections::{BTreeMap, VecDeque};
use xxhash_rust::xxh3::xxh3_64;

/// What holds for the calls of one tool.
///
/// ```
/// use runguard_core::run::ToolRule;
///
/// let rule: ToolRule = serde_json::from_str(r#"{"polling": 20, "ignore": ["description"]}"#)?;
/// assert_eq!(rule, ToolRule::default().polling(Some(20)).ignore(vec!["description".to_owned()]));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ToolRule {
    /// Nothing is looked for in its calls. Ceilings hold.
    pub exempt: bool,
    /// It is called again and again until something changes: equal calls are no loop before their result was the same so often in a row.
    pub polling: Option<u32>,
    /// Fields of the arguments that make no other call of it.
    pub ignore: Vec<String>,
    /// How often a run may call it.
    pub max_calls: Option<u64>,
}

setters!(ToolRule { exempt: bool, polling: Option<u32>, ignore: Vec<String>, max_calls: Option<u64> });

/// Calls whose results are remembered, those made last: patterns that are looked for are shorter.
const REMEMBERED: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Tools {
    rules: BTreeMap<String, (ToolRule, Volatile)>,
    /// Calls of tools that have a limit of their own.
    made: BTreeMap<String, u64>,
    latest: VecDeque<Answered>,
}

/// What a call has given.
#[derive(Debug, Clone, Copy)]
struct Answered {
    call: u64,
    result: u64,
    /// How often in a row.
    times: u32,
    /// How often it has changed.
    changes: u32,
}

impl Tools {
    pub(super) fn of(rules: BTreeMap<String, ToolRule>) -> Self {
        let with_fields = |rule: ToolRule| {
            let ignored = Volatile::of(&rule.ignore);
            (rule, ignored)
        };
        Self { rules: rules.into_iter().map(|(tool, rule)| (tool, with_fields(rule))).collect(), ..Self::default() }
    }

    pub(super) fn forget(&mut self) {
        self.made.clear();
        self.latest.clear();
    }

    pub(super) fn ignored(&self, tool: &str) -> Option<&Volatile> {
        self.rules.get(tool).map(|(_, ignored)| ignored)
    }

    fn rule(&self, tool: &str) -> Option<&ToolRule> {
        self.rules.get(tool).map(|(rule, _)| rule)
    }

    /// Counts a call; its limit, if that is reached.
    pub(super) fn count(&mut self, tool: &str) -> Option<u64> {
        let limit = self.rule(tool)?.max_calls?;
        let made = self.made.entry(tool.to_owned()).or_default();
        if *made >= limit {
            return Some(limit);
        }
        *made += 1;
        None
    }

    /// Whether loops are looked for.
    pub(super) fn is_watched(&self, tool: &str) -> bool {
        self.rule(tool).is_none_or(|rule| !rule.exempt && rule.polling.is_none())
    }

    /// The arguments as they are compared: those of a call whose result has changed are others.
    pub(super) fn compared(&self, history: &str, tool: &str, arguments: u64) -> u64 {
        let call = call_of(history, tool, arguments);
        match self.latest.iter().find(|known| known.call == call) {
            Some(Answered { changes, .. }) if *changes > 0 => {
                xxh3_64(&[arguments.to_le_bytes(), u64::from(*changes).to_le_bytes()].concat())
            }
            Some(_) | None => arguments,
        }
    }

    /// What a call gave. When a poll has given the same as often as it may: how often.
    pub(super) fn gave(&mut self, history: &str, tool: &str, arguments: u64, result: u64) -> Option<u32> {
        let call = call_of(history, tool, arguments);
        let place = self.latest.iter().position(|known| known.call == call);
        let mut known = place.and_then(|place| self.latest.remove(place)).unwrap_or(Answered { call, result, times: 0, changes: 0 });
        if known.result == result {
            known.times = known.times.saturating_add(1);
        } else {
            known = Answered { result, times: 1, changes: known.changes.saturating_add(1), ..known };
        }
        self.latest.push_back(known);
        if self.latest.len() > REMEMBERED {
            self.latest.pop_front();
        }
        let most = self.rule(tool)?.polling?;
        (known.times >= most).then_some(known.times)
    }
}

fn call_of(history: &str, tool: &str, arguments: u64) -> u64 {
    let parts: [&[u8]; 4] = [history.as_bytes(), &[0xff], tool.as_bytes(), &arguments.to_le_bytes()];
    xxh3_64(&parts.concat())
}
