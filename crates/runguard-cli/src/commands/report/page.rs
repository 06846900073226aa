//! The page: one file without script, its plots drawn here as SVG.
//!
//! It is sent around and opened where nobody knows what wrote it. So everything that users, bots or callers named goes through
//! [`text`], which leaves no markup and nothing that turns the direction of writing, and the page forbids itself all but its own style.

use crate::client::segment;
use crate::commands::insights;
use crate::output;
use runguard_core::GuardName;
use runguard_core::shown::{dotted, html as escaped};
use runguard_core::text::{cut, grouped};
use runguard_insight::insight::consumption::{Consumption, Day, Step, Week};
use runguard_insight::insight::{Endpoint, Insight, Overview, Severity, Topic};
use runguard_replay::html::shell::{Page, section, stack, text};
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt::Write as _;

const STYLE: &str = include_str!("report.css");
/// SHA-256 of the style, so that no other can be slipped in.
const STYLE_HASH: &str = "YCt+a6gnSRV5Kj4DXYTfae1zFJUEqq9gp/GpWhD9SfM=";

/// Rows of one table.
const MAX_ROWS: usize = 15;
/// Pieces of advice; those who want all of them have the service.
const MAX_ADVICE: usize = 10;
/// Bars of the plot over time; more are thinner than a line.
const MAX_BARS: usize = 84;
/// A longer address is not made a link: a page of them would not stay small.
const MAX_LINK: usize = 320;

pub(super) fn page(overview: &Overview, insights: &[Insight], used: &Consumption, service: &str) -> String {
    let links = Links { service, tenant: overview.filters.tenant.as_deref() };
    let range = format!("{} to {}", day(overview.since_ms), day(overview.until_ms));
    let below = format!(
        "{range} (UTC){}",
        overview.filters.tenant.as_deref().map(|tenant| format!(", tenant {}", text(tenant))).unwrap_or_default()
    );
    let mut out = String::new();
    out.push_str(&tiles(overview));
    section(&mut out, "Decisions over time", &over_time(overview));
    section(&mut out, "What to do", &advice(insights, &links));
    section(&mut out, "Why steps were blocked", &reasons(overview, &links));
    section(&mut out, "Saved, by guard", &savings(overview));
    section(&mut out, "Handoff chains", &chains(overview, &links));
    section(&mut out, "Knowledge base topics", &topics(overview, &links));
    section(&mut out, "Endpoints", &endpoints(overview));
    section(&mut out, "Actions of agents", &actions(overview));
    section(&mut out, "Budgets", &budgets(overview));
    section(&mut out, "Consumption", &consumption(overview, used));
    let behind = match overview.behind_rows {
        0 => String::new(),
        rows => format!(" {} decisions were not looked at yet.", grouped(rows)),
    };
    let title = format!("RunGuard report, {range}");
    Page { title: &title, heading: "RunGuard report", below: &below, body: &out, footer: &behind, style: STYLE, style_hash: STYLE_HASH }
        .whole()
}

// -- text -----------------------------------------------------------------------------------------

/// Sentences of advice: they carry names from outside, and are longer than a name.
fn sentences(foreign: &str) -> String {
    const MAX_SENTENCES: usize = 500;
    escaped(&dotted(cut(foreign, MAX_SENTENCES)))
}

fn moment(millis: i64, form: &str) -> String {
    jiff::Timestamp::from_millisecond(millis).map_or_else(|_| millis.to_string(), |at| at.strftime(form).to_string())
}

fn day(millis: i64) -> String {
    moment(millis, "%Y-%m-%d %H:%M")
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.1} %", part as f64 / whole.max(1) as f64 * 100.0)
}

/// Where sessions are shown.
struct Links<'a> {
    service: &'a str,
    tenant: Option<&'a str>,
}

impl Links<'_> {
    fn session(&self, id: &str) -> String {
        let tenant = self.tenant.map(|tenant| format!("&tenant={}", segment(tenant))).unwrap_or_default();
        let address = format!("{}/?view=session&session={}{tenant}", self.service, segment(id));
        let web = self.service.starts_with("http://") || self.service.starts_with("https://");
        if web && address.len() <= MAX_LINK { format!("<a href=\"{}\">{}</a>", escaped(&address), text(id)) } else { text(id) }
    }

    fn sessions(&self, ids: &[String]) -> String {
        ids.iter().take(5).map(|id| self.session(id)).collect::<Vec<_>>().join(", ")
    }
}

// -- pieces ---------------------------------------------------------------------------------------

/// A table: headings (those that begin with # are of numbers) and rows of ready cells.
fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let class = |heading: &str| match heading.chars().next() {
        Some('#') => " class=\"number\"",
        Some('%') => " class=\"half\"",
        _ => "",
    };
    let mut out = String::from("<div class=\"wide card\"><table><thead><tr>");
    for heading in headings {
        let _ = write!(out, "<th scope=\"col\"{}>{}</th>", class(heading), heading.trim_start_matches(['#', '%']));
    }
    out.push_str("</tr></thead><tbody>");
    for row in rows {
        out.push_str("<tr>");
        for (position, (cell, heading)) in row.iter().zip(headings).enumerate() {
            let (tag, scope) = if position == 0 { ("th", " scope=\"row\"") } else { ("td", "") };
            let _ = write!(out, "<{tag}{scope}{}>{cell}</{tag}>", class(heading));
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
    out
}

/// A bar of parts side by side, in shares of `most`. The number stands beside it, so it is decoration to a reader.
fn bar(parts: &[(&str, u64)], most: u64) -> String {
    let mut out = String::from("<svg class=\"bar\" viewBox=\"0 0 100 10\" preserveAspectRatio=\"none\" aria-hidden=\"true\">");
    let mut left = 0.0;
    for (class, count) in parts {
        let width = *count as f64 / most.max(1) as f64 * 100.0;
        let _ = write!(out, "<rect class=\"{class}\" x=\"{left:.2}\" y=\"1\" width=\"{width:.2}\" height=\"8\"/>");
        left += width;
    }
    out.push_str("</svg>");
    out
}

/// Small columns, one a number.
fn columns(class: &str, counts: &[u64], label: &str) -> String {
    let most = counts.iter().copied().max().unwrap_or(0).max(1);
    let step = 100.0 / counts.len().max(1) as f64;
    let mut out =
        format!("<svg class=\"small\" viewBox=\"0 0 100 20\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{}\">", escaped(label));
    for (position, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let height = (*count as f64 / most as f64 * 20.0).max(1.0);
        let _ = write!(
            out,
            "<rect class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{height:.1}\"/>",
            position as f64 * step,
            20.0 - height,
            (step * 0.85).max(0.4)
        );
    }
    out.push_str("<line class=\"g\" x1=\"0\" y1=\"20\" x2=\"100\" y2=\"20\"/></svg>");
    out
}

/// Neighbours added up until there are few enough.
fn thinned(counts: &[u64], most: usize) -> Vec<u64> {
    counts
        .chunks(counts.len().div_ceil(most).max(1))
        .map(|chunk| chunk.iter().fold(0, |sum: u64, count| sum.saturating_add(*count)))
        .collect()
}

// -- the parts of the page --------------------------------------------------------------------------

fn tiles(overview: &Overview) -> String {
    let totals = &overview.totals;
    let mut tiles = vec![
        ("decisions", grouped(totals.decisions)),
        ("blocked", grouped(totals.blocked)),
        ("would block", grouped(totals.would_block)),
        ("operations saved", grouped(totals.operations_saved)),
    ];
    if totals.credits_saved > 0.0 {
        tiles.push(("credits saved", grouped(totals.credits_saved.round() as u64)));
    }
    if totals.usd_saved > 0.0 {
        tiles.push(("dollars saved", format!("{:.2}", totals.usd_saved)));
    }
    let items: Vec<String> =
        tiles.into_iter().map(|(name, number)| format!("<li><b>{number}</b><span class=\"soft\">{name}</span></li>")).collect();
    format!("<ul class=\"tiles\">{}</ul>", items.concat())
}

fn advice(insights: &[Insight], links: &Links<'_>) -> String {
    if insights.is_empty() {
        return "<p class=\"card\">Nothing stands out in this time.</p>".into();
    }
    let mut out = String::from("<ol class=\"advice\">");
    for insight in insights.iter().take(MAX_ADVICE) {
        let severity = match insight.severity {
            Severity::High => "high",
            Severity::Medium => "medium",
            Severity::Low => "low",
        };
        let _ = write!(
            out,
            "<li class=\"{severity}\"><h3>{} <span class=\"badge\">{severity}</span></h3><p>{}</p>",
            sentences(&insight.title),
            sentences(&insight.advice)
        );
        let mut rest = Vec::new();
        if let Some(setting) = &insight.setting {
            rest.push(format!("Setting: <code>{}</code>", text(setting)));
        }
        if !insight.sessions.is_empty() {
            rest.push(format!("Sessions: {}", links.sessions(&insight.sessions)));
        }
        let saves = insights::saves(&json!(insight.saves));
        if !saves.is_empty() {
            rest.push(format!("Would save {saves}"));
        }
        if !rest.is_empty() {
            let _ = write!(out, "<p>{}</p>", rest.join(" · "));
        }
        let _ = write!(out, "<p class=\"soft\">Seen: {}</p></li>", sentences(&insights::evidence(&json!(insight.evidence))));
    }
    out.push_str("</ol>");
    if insights.len() > MAX_ADVICE {
        let _ = write!(out, "<p class=\"soft\">{} more: <code>runguard insights</code> shows them all.</p>", insights.len() - MAX_ADVICE);
    }
    out
}

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 230.0;
/// Room for the numbers at the left, and for the days below.
const LEFT: f64 = 52.0;
const FOOT: f64 = 24.0;
const HEAD: f64 = 10.0;

fn over_time(overview: &Overview) -> String {
    let length = overview.series.starts_ms.len();
    let mut sums = [vec![0_u64; length], vec![0; length], vec![0; length]];
    for outcomes in overview.series.by_guard.values() {
        for (sum, counts) in sums.iter_mut().zip([&outcomes.allowed, &outcomes.would_block, &outcomes.blocked]) {
            for (total, count) in sum.iter_mut().zip(counts) {
                *total = total.saturating_add(*count);
            }
        }
    }
    let stacks = sums.map(|counts| thinned(&counts, MAX_BARS));
    let bars = stacks[0].len();
    let total = |index: usize| stacks.iter().fold(0_u64, |sum, counts| sum.saturating_add(counts[index]));
    let most = (0..bars).map(total).max().unwrap_or(0);
    if most == 0 {
        return String::new();
    }
    let ceiling = rounded_up(most);
    let (step, scale) = ((WIDTH - LEFT) / bars as f64, (HEIGHT - HEAD - FOOT) / ceiling as f64);
    let every = length.div_ceil(bars).max(1);
    let label = format!("Decisions by outcome, {bars} bars, at most {} in one.", grouped(most));
    let mut out = format!("<div class=\"card\"><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{label}\">");
    for part in 0..=2_u64 {
        let value = ceiling * part / 2;
        let y = HEIGHT - FOOT - value as f64 * scale;
        let _ = write!(
            out,
            "<line class=\"g\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{WIDTH}\" y2=\"{y:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 6.0,
            y + 4.0,
            grouped(value)
        );
    }
    for index in 0..bars {
        let parts = ["a", "w", "b"].into_iter().zip(&stacks).map(|(class, counts)| (class, counts[index] as f64 * scale));
        stack(&mut out, parts, LEFT + index as f64 * step, (step * 0.86).max(0.5), HEIGHT - FOOT);
    }
    // Where a day begins, or where there is room again if all of it is a day or two.
    let by_day = overview.until_ms.saturating_sub(overview.since_ms) > 3 * 86_400_000;
    let (form, apart) = if by_day { ("%b %-d", 60.0) } else { ("%b %-d %H:%M", 110.0) };
    let (mut day, mut free) = (None, 0.0);
    for index in 0..bars {
        let (start, x) = (overview.series.starts_ms.get(index * every).copied().unwrap_or_default(), LEFT + index as f64 * step);
        let begins = day != Some(start.div_euclid(86_400_000));
        day = Some(start.div_euclid(86_400_000));
        if (begins || !by_day) && x >= free && x + apart <= WIDTH {
            let _ = write!(out, "<text x=\"{x:.1}\" y=\"{:.1}\">{}</text>", HEIGHT - 7.0, moment(start, form));
            free = x + apart;
        }
    }
    out.push_str("</svg>");
    out.push_str(&legend());
    out.push_str("</div>");
    out
}

fn legend() -> String {
    let one = |(class, name): (&str, &str)| {
        format!("<span><svg viewBox=\"0 0 8 8\" aria-hidden=\"true\"><rect class=\"{class}\" width=\"8\" height=\"8\"/></svg>{name}</span>")
    };
    format!("<p class=\"legend soft\">{}</p>", [("a", "allowed"), ("w", "would block"), ("b", "blocked")].map(one).concat())
}

/// The next number with one digit and zeros that is even, so that its half is whole.
fn rounded_up(number: u64) -> u64 {
    let mut unit = 1_u64;
    while number / unit >= 10 {
        unit = unit.saturating_mul(10);
    }
    let digit = number.div_ceil(unit);
    unit.saturating_mul(digit + digit % 2).max(2)
}

fn reasons(overview: &Overview, links: &Links<'_>) -> String {
    let shown: Vec<_> =
        overview.reasons.iter().filter(|reason| reason.blocked.saturating_add(reason.would_block) > 0).take(MAX_ROWS).collect();
    let most = shown.iter().map(|reason| reason.blocked.saturating_add(reason.would_block)).max().unwrap_or(0);
    let row = |reason: &&runguard_insight::insight::ReasonCount| {
        let subjects: Vec<String> = reason
            .subjects
            .iter()
            .take(3)
            .map(|counted| format!("{} ({})", text(in_words(overview, &reason.guard, &counted.subject)), grouped(counted.count)))
            .collect();
        vec![
            format!("<code>{}</code><br><span class=\"soft\">{}</span>", text(&reason.reason), text(guard_label(&reason.guard))),
            bar(&[("b", reason.blocked), ("w", reason.would_block)], most),
            grouped(reason.blocked.saturating_add(reason.would_block)),
            subjects.join(", "),
            links.sessions(&reason.sessions),
        ]
    };
    if shown.is_empty() {
        String::new()
    } else {
        table(&["reason", "%", "#times", "mostly", "sessions"], &shown.iter().map(row).collect::<Vec<_>>())
    }
}

/// What people call a guard; a log may name one that this version does not know.
fn guard_label(code: &str) -> &str {
    GuardName::from_code(code).map_or(code, |guard| guard.label())
}

fn savings(overview: &Overview) -> String {
    let sum = |counts: &[u64]| counts.iter().fold(0, |total: u64, count| total.saturating_add(*count));
    let by_guard: BTreeMap<&String, (u64, u64)> =
        overview.series.by_guard.iter().map(|(guard, outcomes)| (guard, (sum(&outcomes.blocked), sum(&outcomes.would_block)))).collect();
    let mut rows: Vec<(&String, (u64, u64))> =
        by_guard.into_iter().filter(|(_, (blocked, would))| blocked.saturating_add(*would) > 0).collect();
    rows.sort_by_key(|(_, (blocked, would))| std::cmp::Reverse(blocked.saturating_add(*would)));
    rows.truncate(MAX_ROWS);
    let most = rows.iter().map(|(_, (blocked, would))| blocked.saturating_add(*would)).max().unwrap_or(0);
    let row = |(guard, (blocked, would)): &(&String, (u64, u64))| {
        vec![text(guard_label(guard)), bar(&[("b", *blocked), ("w", *would)], most), grouped(*blocked), grouped(*would)]
    };
    if rows.is_empty() {
        return String::new();
    }
    let totals = &overview.totals;
    let (blocked, saved) = (output::count(totals.blocked, "blocked step"), output::count(totals.operations_saved, "billed operation"));
    let mut worth = format!("{blocked} saved {saved}");
    if totals.usd_saved > 0.0 {
        let _ = write!(worth, ", ${:.2}", totals.usd_saved);
    }
    format!("<p>{worth}.</p>{}", table(&["guard", "%", "#blocked", "#would block"], &rows.iter().map(row).collect::<Vec<_>>()))
}

fn chains(overview: &Overview, links: &Links<'_>) -> String {
    let row = |chain: &runguard_insight::insight::Chain| {
        const MAX_BOTS: usize = 12;
        let mut bots: Vec<String> = chain.chain.iter().take(MAX_BOTS).map(|bot| text(bot)).collect();
        if chain.chain.len() > MAX_BOTS {
            bots.push("…".into());
        }
        vec![bots.join(" → "), grouped(chain.count), links.sessions(&chain.sessions)]
    };
    let rows: Vec<Vec<String>> = overview.handoffs.chains.iter().take(MAX_ROWS).map(row).collect();
    if rows.is_empty() { String::new() } else { table(&["chain", "#conversations", "sessions"], &rows) }
}

/// A topic's name is a digest: what was asked says more.
fn in_words<'a>(overview: &'a Overview, guard: &str, subject: &'a str) -> &'a str {
    let is_topic = GuardName::from_code(guard).is_some_and(|guard| guard.subject() == "topic");
    let known = |topic: &&Topic| topic.topic == subject || topic.members.iter().any(|member| member == subject);
    let topic = overview.topics.iter().filter(|_| is_topic).find(known);
    topic.map(|topic| topic.label.as_str()).filter(|label| !label.trim().is_empty()).unwrap_or(subject)
}

fn topics(overview: &Overview, links: &Links<'_>) -> String {
    let row = |topic: &Topic| {
        let name = if topic.label.trim().is_empty() { &topic.topic } else { &topic.label };
        let gap = if topic.is_gap { " <span class=\"badge\">gap</span>" } else { "" };
        let wordings =
            if topic.phrasings > 1 { format!(" <small>in {} wordings</small>", grouped(topic.phrasings)) } else { String::new() };
        vec![
            format!("{}{gap}{wordings}", text(name)),
            grouped(topic.queries),
            grouped(topic.blocked),
            columns(
                if topic.is_gap { "b" } else { "n" },
                &topic.histogram,
                &format!("answers by confidence, in tenths: {:?}", topic.histogram),
            ),
            format!("{:.2}", topic.best_confidence),
            format!("{} %", (topic.low_share * 100.0).round()),
            links.sessions(&topic.sessions),
        ]
    };
    let rows: Vec<Vec<String>> = overview.topics.iter().take(MAX_ROWS).map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    table(&["topic", "#asked", "#blocked", "confidence, 0 to 1", "#best", "#sessions below 0.5", "sessions"], &rows)
}

/// By week and bot, by day and bot, and the heaviest steps.
fn consumption(overview: &Overview, used: &Consumption) -> String {
    if used.days.is_empty() {
        return String::new();
    }
    let week = |week: &Week| {
        vec![
            format!("{}{}", text(&week.week), if week.is_whole { "" } else { " (in part)" }),
            week.bot.as_deref().map_or_else(|| "all".to_owned(), text),
            grouped(week.sessions),
            grouped(week.ai_steps),
            format!("{:.2}", week.steps_per_session),
            week.change.map_or_else(|| "–".to_owned(), |change| format!("{:+.0} %", change * 100.0)),
        ]
    };
    let day = |day: &Day| {
        let numbers =
            [grouped(day.sessions), grouped(day.operations), grouped(day.ai_steps), output::amount(day.credits), grouped(day.refused)];
        [text(&day.day), text(&day.bot)].into_iter().chain(numbers).collect::<Vec<_>>()
    };
    let step = |step: &Step| {
        let name = if step.label.trim().is_empty() { in_words(overview, &step.guard, &step.step) } else { &step.label };
        let names = [name, &step.guard, &step.bot, &step.day].map(text);
        names.into_iter().chain([grouped(step.operations), output::amount(step.credits), grouped(step.refused)]).collect::<Vec<_>>()
    };
    let newest = |count: usize| count.saturating_sub(MAX_ROWS);
    let weeks: Vec<Vec<String>> = used.weeks[newest(used.weeks.len())..].iter().map(week).collect();
    let days: Vec<Vec<String>> = used.days[newest(used.days.len())..].iter().map(day).collect();
    let steps: Vec<Vec<String>> = used.steps.iter().take(MAX_ROWS).map(step).collect();
    [
        table(&["week from", "bot", "#sessions", "#AI steps", "#steps a session", "#change"], &weeks),
        table(&["day", "bot", "#sessions", "#operations", "#AI steps", "#credits", "#blocked"], &days),
        table(&["heaviest step", "guard", "bot", "day", "#operations", "#credits", "#blocked"], &steps),
    ]
    .concat()
}

fn endpoints(overview: &Overview) -> String {
    let millis =
        |value: Option<f64>| value.map_or_else(|| "–".to_owned(), |value| format!("{} ms", grouped(value.round().max(0.0) as u64)));
    let row = |endpoint: &Endpoint| {
        let failures = thinned(&endpoint.failures_over_time, MAX_BARS / 2);
        vec![
            text(&endpoint.endpoint),
            grouped(endpoint.calls),
            format!("{} ({})", grouped(endpoint.failures), percent(endpoint.failures, endpoint.calls)),
            columns("b", &failures, "failures over time"),
            millis(endpoint.mean_ms),
            millis(endpoint.max_ms),
            grouped(endpoint.blocked),
        ]
    };
    let rows: Vec<Vec<String>> = overview.endpoints.iter().take(MAX_ROWS).map(row).collect();
    if rows.is_empty() {
        String::new()
    } else {
        table(&["endpoint", "#calls", "#failures", "over time", "#mean", "#slowest", "#blocked"], &rows)
    }
}

fn actions(overview: &Overview) -> String {
    let most = overview.actions.iter().map(|action| action.runs).max().unwrap_or(0);
    let row = |action: &runguard_insight::insight::Action| {
        vec![text(&action.action), bar(&[("n", action.runs)], most), grouped(action.runs), grouped(action.blocked)]
    };
    let rows: Vec<Vec<String>> = overview.actions.iter().take(MAX_ROWS).map(row).collect();
    if rows.is_empty() { String::new() } else { table(&["action", "%", "#runs", "#blocked"], &rows) }
}

fn budgets(overview: &Overview) -> String {
    let row = |budget: &runguard_insight::insight::BudgetSeen| {
        let limit = budget.limit_usd.map_or_else(|| "–".to_owned(), |limit| format!("{limit:.2}"));
        let tokens = budget
            .limit_tokens
            .map_or_else(|| grouped(budget.spent_tokens), |limit| format!("{} of {}", grouped(budget.spent_tokens), grouped(limit)));
        vec![text(&budget.budget), format!("{:.2}", budget.spent_usd), limit, tokens, grouped(budget.refused)]
    };
    let rows: Vec<Vec<String>> = overview.budgets.iter().take(MAX_ROWS).map(row).collect();
    if rows.is_empty() { String::new() } else { table(&["budget", "#spent ($)", "#limit ($)", "#tokens", "#blocked"], &rows) }
}

#[cfg(test)]
mod tests;
