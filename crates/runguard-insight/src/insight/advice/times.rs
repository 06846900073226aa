//! When it happens: in one hour of the day, or since one moment.

use super::reading::{bucket, buckets, fired, is_rest, named, percent, rounded, sessions_of, share, sum};
use super::thresholds::mostly_one;
use super::{Draft, Facts};
use crate::insight::{Hours, Insight, Overview};
use runguard_core::calendar::Zone;
use runguard_core::reason::GuardName;
use runguard_core::time::Timestamp;
use serde_json::json;
use std::collections::BTreeSet;

pub(super) const HOUR_TOTAL_MIN: u64 = 30;
pub(super) const HOUR_SHARE: f64 = 0.5;
/// All other traffic tells whether the hour is a busy one for everything; without enough of it, nothing stands out.
pub(super) const HOUR_OTHERS_MIN: u64 = 100;
pub(super) const HOUR_DAYS_MIN: usize = 2;

/// Decisions of all guards by hour of the day, and the days that had any. Days as buckets know no hours.
fn traffic_by_hour(overview: &Overview) -> Option<([u64; 24], usize)> {
    let mut by_hour = [0_u64; 24];
    let mut days = BTreeSet::new();
    for (index, start) in overview.series.starts_ms.iter().enumerate() {
        let decided = overview.series.by_guard.values().fold(0_u64, |total, outcomes| total.saturating_add(sum(&bucket(outcomes, index))));
        if decided > 0 {
            let hour = &mut by_hour[start.div_euclid(3_600_000).rem_euclid(24) as usize];
            *hour = hour.saturating_add(decided);
            days.insert(start.div_euclid(86_400_000));
        }
    }
    (overview.bucket_seconds <= 3600).then_some((by_hour, days.len()))
}

/// One hour of the day makes most of it: a batch, a shift, a campaign.
pub(super) fn concentrated_in_one_hour(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
    let Some((all, _)) = traffic_by_hour(overview).filter(|(_, days)| *days >= HOUR_DAYS_MIN) else { return Vec::new() };
    let mut found = Vec::new();
    for Hours { guard, subject, by_hour_of_day, .. } in overview.hours.iter().filter(|hours| !is_rest(&hours.subject)) {
        let Some(guard) = GuardName::from_code(guard) else { continue };
        let total = sum(by_hour_of_day);
        let Some((hour, most)) = by_hour_of_day.iter().copied().enumerate().max_by_key(|(_, count)| *count) else { continue };
        let part = share(most, total);
        let others = sum(&all).saturating_sub(total);
        let usual = share(all[hour].saturating_sub(most), others);
        if total < HOUR_TOTAL_MIN || part < HOUR_SHARE || others < HOUR_OTHERS_MIN || usual > part / 2.0 {
            continue;
        }
        let draft = Draft {
            id: "concentrated_in_one_hour",
            guard,
            subject: Some(subject),
            about: most,
            sureness: part * 0.8,
            saves: facts.saves(guard, most),
            setting: None,
            evidence: vec![
                ("hour_utc", json!(hour)),
                ("in_that_hour", json!(most)),
                ("total", json!(total)),
                ("share", rounded(part)),
                ("share_of_other_traffic", rounded(usual)),
            ],
            sessions: sessions_of(overview, guard, subject, &[]),
        };
        found.push(draft.say(
            overview,
            format!("{} is tried again mostly between {hour:02}:00 and {:02}:00 UTC", named(subject), (hour + 1) % 24),
            format!(
                "{} of its {total} tries fall into this hour of the day, and {} of all other traffic. Look for what runs then: a batch, a campaign, a shift.",
                percent(part),
                percent(usual)
            ),
        ));
    }
    found
}

pub(super) const BEGAN_BEFORE_MIN: u64 = 100;
pub(super) const BEGAN_BEFORE_RATE: f64 = 0.01;
pub(super) const BEGAN_BLOCKS_MIN: u64 = 20;
pub(super) const BEGAN_AFTER_RATE: f64 = 0.1;

/// Refusals begin at one moment and stay: something was released.
pub(super) fn began_at_one_moment(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
    let mut found = Vec::new();
    for (code, outcomes) in &overview.series.by_guard {
        let Some(guard) = GuardName::from_code(code) else { continue };
        let counts: Vec<[u64; 3]> = (0..buckets(outcomes)).map(|index| bucket(outcomes, index)).collect();
        let refused =
            |part: &[[u64; 3]]| part.iter().fold(0_u64, |total, [_, would, blocked]| total.saturating_add(*would).saturating_add(*blocked));
        let decided = |part: &[[u64; 3]]| part.iter().fold(0_u64, |total, counts| total.saturating_add(sum(counts)));
        let starts = |split: &usize| {
            let (before, after) = counts.split_at(*split);
            let busy = after.iter().filter(|counts| sum(*counts) > 0).count();
            let struck = after.iter().filter(|[_, would, blocked]| would.saturating_add(*blocked) > 0).count();
            decided(before) >= BEGAN_BEFORE_MIN
                && share(refused(before), decided(before)) <= BEGAN_BEFORE_RATE
                && refused(after) >= BEGAN_BLOCKS_MIN
                && share(refused(after), decided(after)) >= BEGAN_AFTER_RATE
                && refused(&after[..1]) > 0
                // A burst ends; a release stays.
                && after.len() >= 2
                && struck * 2 > busy
        };
        // One bucket that decides with the whole series behind it: the clearest difference of the two sides.
        let clearest = (1..counts.len()).filter(starts).max_by(|a, b| {
            let rate = |split: usize| {
                share(refused(&counts[split..]), decided(&counts[split..])) - share(refused(&counts[..split]), decided(&counts[..split]))
            };
            rate(*a).total_cmp(&rate(*b)).then_with(|| b.cmp(a))
        });
        let Some((split, began_ms)) = clearest.and_then(|split| Some((split, *overview.series.starts_ms.get(split)?))) else { continue };
        let (before, after) = counts.split_at(split);
        let reason = overview.reasons.iter().filter(|count| count.guard == *code).max_by_key(|count| fired(count));
        let subject = reason.and_then(|count| mostly_one(count)).map(|(subject, _)| subject);
        let (rate_before, rate_after) = (share(refused(before), decided(before)), share(refused(after), decided(after)));
        let draft = Draft {
            id: "began_at_one_moment",
            guard,
            subject,
            about: refused(after),
            sureness: 0.85,
            saves: facts.saves(guard, refused(after)),
            setting: None,
            evidence: vec![
                ("began_ms", json!(began_ms)),
                ("share_before", rounded(rate_before)),
                ("share_after", rounded(rate_after)),
                ("refused_after", json!(refused(after))),
            ],
            sessions: reason.map_or(&[], |count| count.sessions.as_slice()),
        };
        found.push(draft.say(
            overview,
            format!("Blocks of {} began at {}", subject.map_or_else(|| code.clone(), named), date_time(began_ms)),
            format!(
                "Until then {} of the decisions were blocked, since then {}. Look at what was released or changed at that time.",
                percent(rate_before),
                percent(rate_after)
            ),
        ));
    }
    found
}

/// A moment to the minute, in UTC.
pub(super) fn date_time(millis: i64) -> String {
    let minutes = millis.rem_euclid(86_400_000) / 60_000;
    format!("{} {:02}:{:02} UTC", Zone::UTC.date(Timestamp::from_millis(millis)), minutes / 60, minutes % 60)
}
