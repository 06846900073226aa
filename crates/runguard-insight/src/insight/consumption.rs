//! What was used: billed steps that were let pass, by bot, step and day, and how many of them a conversation takes.
//!
//! RunGuard sees the steps it is asked about. A step that was allowed, or let pass by a rule that only watches, is taken as done; each guard
//! says what it is billed as. A bot is a tenant: one key for each.

use super::digest::{Cell, CellKey, Dimension, HOUR_MILLIS, Label, Range, Savings, Sessions};
use runguard_core::calendar::{Period, Zone};
use runguard_core::reason::GuardName;
use runguard_core::time::Timestamp;
use runguard_guards::guard::{Billed, GuardEntry};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Entries of each list.
const MOST_STEPS: usize = 500;
const MOST_DAYS: usize = 2_000;

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Consumption {
    /// In RFC 3339, and in milliseconds.
    pub since: String,
    pub until: String,
    pub since_ms: i64,
    pub until_ms: i64,
    pub time_zone: String,
    /// Decisions that are logged and not yet looked at.
    pub behind_rows: u64,
    /// By day and bot, oldest first.
    pub days: Vec<Day>,
    /// By day, bot, guard and step, the heaviest first.
    pub steps: Vec<Step>,
    /// By week and bot, oldest first; of all bots together where it names none.
    pub weeks: Vec<Week>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Day {
    pub day: String,
    pub bot: String,
    pub sessions: u64,
    pub operations: u64,
    /// Steps that ask a model, however many operations each is billed as.
    pub ai_steps: u64,
    pub credits: f64,
    pub usd: f64,
    /// Steps that were blocked.
    pub refused: u64,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Step {
    pub day: String,
    pub bot: String,
    pub guard: String,
    /// The task, bot, topic, action, step or endpoint.
    pub step: String,
    /// What was asked last, of a topic whose words are kept: its name may be a hash.
    pub label: String,
    pub operations: u64,
    pub credits: f64,
    pub usd: f64,
    pub refused: u64,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Week {
    /// Its Monday.
    pub week: String,
    /// null: of all bots together.
    pub bot: Option<String>,
    /// Whether all of it is in the range.
    pub is_whole: bool,
    pub sessions: u64,
    pub ai_steps: u64,
    pub steps_per_session: f64,
    /// Against the last week before that had any: 1 is twice as many steps for each session.
    pub change: Option<f64>,
}

#[derive(Debug, Default)]
struct Sum {
    operations: u64,
    ai_steps: u64,
    refused: u64,
    sessions: Sessions,
}

/// The cells it is made of.
pub const READS: [Dimension; 3] = [Dimension::Subject, Dimension::Sessions, Dimension::Topic];

/// Adds up the cells of the range, by the days and weeks of a time zone. An hour belongs to the day it begins in.
pub fn consumption(range: &Range, zone: &Zone, cells: impl IntoIterator<Item = (CellKey, Cell)>, savings: &Savings) -> Consumption {
    let (first, last) = range.hours();
    let mut days: BTreeMap<(String, Box<str>), Sum> = BTreeMap::new();
    let mut weeks: BTreeMap<(String, Option<Box<str>>), Sum> = BTreeMap::new();
    let mut steps: BTreeMap<(String, Box<str>, Box<str>, Box<str>), Sum> = BTreeMap::new();
    let mut dates: BTreeMap<i64, (String, String)> = BTreeMap::new();
    let mut labels: BTreeMap<(Box<str>, Box<str>), Label> = BTreeMap::new();
    for (place, cell) in cells {
        let is_of_tenant = range.filters.tenant.as_deref().is_none_or(|tenant| tenant == &*place.tenant);
        if let (Dimension::Topic, Some(label)) = (place.dimension, cell.label) {
            let newest = labels.entry((place.tenant, place.first)).or_insert_with(|| label.clone());
            if label > *newest {
                *newest = label;
            }
            continue;
        }
        let guard = GuardName::from_code(&place.first).filter(|_| matches!(place.dimension, Dimension::Subject | Dimension::Sessions));
        let Some((guard, kind)) = guard.and_then(|guard| Some((guard, GuardEntry::of(guard).billed?))) else { continue };
        if !(first..=last).contains(&place.hour) || !is_of_tenant {
            continue;
        }
        let begins = Timestamp::from_millis(place.hour.saturating_mul(HOUR_MILLIS));
        let (day, week) = dates.entry(place.hour).or_insert_with(|| (zone.date(begins), zone.monday(begins)));
        let of_day = days.entry((day.clone(), place.tenant.clone())).or_default();
        let of_week = weeks.entry((week.clone(), Some(place.tenant.clone()))).or_default();
        if place.dimension == Dimension::Sessions {
            of_day.sessions.add(&cell.sessions);
            of_week.sessions.add(&cell.sessions);
            weeks.entry((week.clone(), None)).or_default().sessions.add(&cell.sessions);
            continue;
        }
        let done = cell.allowed + cell.would_block;
        let operations = done * u64::from(savings.operations_of(guard));
        let ai_steps = if kind == Billed::AiStep { done } else { 0 };
        let add = |sum: &mut Sum| {
            sum.operations += operations;
            sum.ai_steps += ai_steps;
            sum.refused += cell.blocked;
        };
        add(of_day);
        add(of_week);
        add(weeks.entry((week.clone(), None)).or_default());
        add(steps.entry((day.clone(), place.tenant.clone(), place.first.clone(), place.second.clone())).or_default());
    }
    let mut shown_days: Vec<Day> = days
        .into_iter()
        .map(|((day, bot), sum)| Day {
            day,
            bot: bot.into(),
            sessions: sum.sessions.count(),
            operations: sum.operations,
            ai_steps: sum.ai_steps,
            credits: savings.credits(sum.operations),
            usd: savings.usd(sum.operations),
            refused: sum.refused,
        })
        .collect();
    shown_days.drain(..shown_days.len().saturating_sub(MOST_DAYS));
    let mut shown_steps: Vec<Step> = steps
        .into_iter()
        .map(|((day, bot, guard, step), sum)| Step {
            day,
            label: label_of(&labels, &bot, &guard, &step),
            bot: bot.into(),
            guard: guard.into(),
            step: step.into(),
            operations: sum.operations,
            credits: savings.credits(sum.operations),
            usd: savings.usd(sum.operations),
            refused: sum.refused,
        })
        .collect();
    // The order of names is kept among equals.
    shown_steps.sort_by_key(|step| Reverse((step.operations, step.refused)));
    shown_steps.truncate(MOST_STEPS);
    Consumption {
        since_ms: range.since_ms,
        until_ms: range.until_ms,
        time_zone: zone.name().to_owned(),
        days: shown_days,
        steps: shown_steps,
        weeks: with_change(range, zone, weeks),
        ..Consumption::default()
    }
}

/// A topic in words. The names of all other steps are words.
fn label_of(labels: &BTreeMap<(Box<str>, Box<str>), Label>, bot: &str, guard: &str, step: &str) -> String {
    let is_topic = GuardName::from_code(guard).is_some_and(|guard| guard.subject() == "topic");
    let label = labels.get(&(bot.into(), step.into())).filter(|_| is_topic);
    label.map(|label| label.text.to_string()).unwrap_or_default()
}

fn with_change(range: &Range, zone: &Zone, weeks: BTreeMap<(String, Option<Box<str>>), Sum>) -> Vec<Week> {
    // The first week is whole if the range begins with it, the last if it ends with or after it.
    let first_whole = zone.monday(zone.end_of(Period::Week, Timestamp::from_millis(range.since_ms.saturating_sub(1))));
    let ends_in = zone.monday(Timestamp::from_millis(range.until_ms));
    let mut before: BTreeMap<Option<Box<str>>, f64> = BTreeMap::new();
    let mut shown = Vec::new();
    for ((week, bot), sum) in weeks {
        let sessions = sum.sessions.count();
        let ratio = sum.ai_steps as f64 / sessions.max(1) as f64;
        let is_whole = week >= first_whole && week < ends_in;
        // Against a week without a step nothing can be said.
        let change = before.insert(bot.clone(), ratio).filter(|earlier| *earlier > 0.0).map(|earlier| ratio / earlier - 1.0);
        shown.push(Week { week, bot: bot.map(Into::into), is_whole, sessions, ai_steps: sum.ai_steps, steps_per_session: ratio, change });
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::super::Filters;
    use super::super::digest::Digest;
    use super::*;
    use runguard_core::row::RowRef;

    /// Monday, 13 November 2023, at noon.
    const MONDAY: i64 = 1_699_876_800_000;
    const DAY: i64 = 86_400_000;

    fn used(rows: &[(i64, &str, &str, &str, &str, &str)], zone: &str) -> Consumption {
        let mut digest = Digest::default();
        for (at, tenant, guard, subject, session, outcome) in rows {
            let row = RowRef {
                seq: 0,
                at: *at,
                id: "",
                tenant,
                guard: (*guard).into(),
                kind: "check".into(),
                session,
                subject,
                outcome: (*outcome).into(),
                reason: None,
                answer: "{}",
                input: "{}",
            };
            digest.fold(&row, xxhash_rust::xxh3::xxh3_64(session.as_bytes()));
        }
        let range = Range { since_ms: MONDAY - 14 * DAY, until_ms: MONDAY + 14 * DAY, bucket_seconds: 3600, filters: Filters::default() };
        let savings = Savings { credits_per_operation: 2.0, usd_per_operation: 0.5, ..Savings::default() };
        consumption(&range, &Zone::named(zone).unwrap(), digest.into_cells(), &savings)
    }

    #[test]
    fn operations_and_credits_by_bot_step_and_day() {
        let shown = used(
            &[
                (MONDAY, "shop", "kb_requery", "refunds", "s1", "allowed"),
                (MONDAY + 1, "shop", "kb_requery", "refunds", "s2", "would_block"),
                (MONDAY + 2, "shop", "kb_requery", "refunds", "s2", "blocked"),
                (MONDAY, "shop", "api_circuit", "orders", "s1", "allowed"),
                (MONDAY + DAY, "desk", "handoff", "billing", "s1", "allowed"),
                // Asked beside others, about the same call.
                (MONDAY, "desk", "loop", "search", "s9", "allowed"),
                (MONDAY, "desk", "budget", "default", "s9", "allowed"),
            ],
            "UTC",
        );
        let first = &shown.days[0];
        assert_eq!((first.day.as_str(), first.bot.as_str(), first.sessions), ("2023-11-13", "shop", 2));
        assert_eq!((first.operations, first.ai_steps, first.refused), (5, 2, 1));
        assert!((first.credits - 10.0).abs() < 1e-9 && (first.usd - 2.5).abs() < 1e-9);
        assert_eq!(shown.days.len(), 2);
        let heaviest = &shown.steps[0];
        assert_eq!((heaviest.guard.as_str(), heaviest.step.as_str(), heaviest.operations), ("kb_requery", "refunds", 4));
        assert_eq!(shown.steps.len(), 3);
    }

    #[test]
    fn the_ratio_of_a_week_is_compared_with_the_one_before() {
        let mut rows = Vec::new();
        for session in ["a", "b", "c", "d"] {
            rows.push((MONDAY - 7 * DAY, "shop", "ai_task_retry", "extract", session, "allowed"));
        }
        for session in ["a", "b"] {
            for _ in 0..3 {
                rows.push((MONDAY, "shop", "ai_task_retry", "extract", session, "allowed"));
            }
        }
        let shown = used(&rows, "UTC");
        let weeks: Vec<(&str, Option<&str>, u64, u64, bool)> =
            shown.weeks.iter().map(|week| (week.week.as_str(), week.bot.as_deref(), week.sessions, week.ai_steps, week.is_whole)).collect();
        assert_eq!(
            weeks,
            [
                ("2023-11-06", None, 4, 4, true),
                ("2023-11-06", Some("shop"), 4, 4, true),
                ("2023-11-13", None, 2, 6, true),
                ("2023-11-13", Some("shop"), 2, 6, true),
            ]
        );
        assert_eq!((shown.weeks[0].change, shown.weeks[2].change), (None, Some(2.0)));
    }

    #[test]
    fn days_are_those_of_the_time_zone() {
        // 23:30 in London is the next day in Berlin.
        let late = MONDAY + 11 * 3_600_000;
        let row = [(late, "shop", "ai_task_retry", "extract", "s", "allowed")];
        assert_eq!(used(&row, "UTC").days[0].day, "2023-11-13");
        assert_eq!(used(&row, "Europe/Berlin").days[0].day, "2023-11-14");
    }
}
