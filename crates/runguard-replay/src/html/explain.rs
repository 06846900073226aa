//! A run as a timeline.

use super::{Row, grouped, page, said, section, text, tiles};
use crate::explain::{Explained, ExplainedStep, News, Stretch};
use runguard_core::detect::stall::{Rung, StallRule};
use std::fmt::Write as _;

/// Steps on the page of one run, folded ones as well; the rest is in the JSON.
const MAX_STEPS: usize = 600;

pub fn explain_page(explained: &Explained) -> String {
    let mut body = String::new();
    let stopped = explained.stopped_after.is_some();
    let class = match (stopped, explained.success) {
        (false, _) => "yes",
        (true, Some(true)) => "no",
        (true, Some(false) | None) => "",
    };
    let _ = write!(body, "<p class=\"card verdict {class}\">{}</p>", super::escaped(&explained.verdict()));
    let mut numbers = vec![("steps", grouped(explained.in_all.steps))];
    if explained.in_all.tokens > 0 {
        numbers.push(("tokens", grouped(explained.in_all.tokens)));
    }
    if explained.in_all.dollars > 0.0 {
        numbers.push(("dollars", format!("{:.4}", explained.in_all.dollars)));
    }
    if stopped {
        numbers.push(("steps after the stop", grouped(explained.after.steps)));
    }
    body.push_str(&tiles(&numbers));
    section(&mut body, "Step by step", &timeline(explained, MAX_STEPS));
    section(&mut body, "How to read it", HOW_TO_READ);
    page("RunGuard: one run explained", &about(explained), &body)
}

const HOW_TO_READ: &str = "<p>The unit is a call with its result. <b>New</b>: this call has not given this result before (of an agent in front of a browser: this was not done to that element before). <b>Row</b>: the same call with the same result, in a row. <b>Round</b>: calls in a round, and how often it was made. <b>News</b>: new ones among the latest. <b>Error</b>: the same error in a row. <b>Said</b>: the same message in a row. <b>Check</b>: the same call with the same outcome, each time after a change. <b>Back</b>: how often the file that was changed last was put back to what it had been. <b>Same</b>: looks in a row that gave the same for other arguments. <b>Fails</b>: failed calls in a row. <b>Long</b>: calls of the run, once a check failed again after a change. A threshold in the settings turns a count into a nudge (<i>steer</i>), a refused call (<i>block</i>) or the end of the run (<i>stop</i>).</p>";

/// Who ran what, and how it ended.
pub(super) fn about(explained: &Explained) -> String {
    let ended = match explained.success {
        Some(true) => "succeeded",
        Some(false) => "failed",
        None => "outcome not known",
    };
    let mut parts = vec![format!("run {}", text(&explained.id))];
    for (name, value) in
        [("source", &explained.source), ("task", &explained.task), ("model", &explained.model), ("agent", &explained.agent)]
    {
        if !value.is_empty() {
            parts.push(format!("{name} {}", text(value)));
        }
    }
    parts.push(ended.to_owned());
    let file = explained.file.display().to_string();
    if !file.is_empty() {
        parts.push(format!("<code>{}:{}</code>", text(&file), explained.line));
    }
    parts.join(" · ")
}

fn reached(count: u32, threshold: u32) -> String {
    match (count, threshold) {
        (0, _) => "–".to_owned(),
        (count, 0) => count.to_string(),
        (count, threshold) => format!("{count}<span class=\"soft\">/{threshold}</span>"),
    }
}

fn row(step: &ExplainedStep, explained: &Explained) -> Row {
    let (counters, settings) = (&step.counters, &explained.settings);
    let class = match (step.rung, step.news) {
        (Rung::Stop, _) => "stop",
        (Rung::Block, _) => "block",
        (Rung::Steer, _) => "steer",
        (Rung::GoOn | Rung::Observe, News::Known) => "known",
        (Rung::GoOn | Rung::Observe, News::New | News::NotCounted) if step.failed => "failed",
        (Rung::GoOn | Rung::Observe, News::New | News::NotCounted) => "",
    };
    let what = if step.message { "says".to_owned() } else { format!("<b>{}</b>", text(&step.tool)) };
    let shown = format!("{what} <code>{}</code>", step.args);
    let failed = if step.failed { "failed " } else { "" };
    let result = format!("<span class=\"what\">{failed}</span><code>{}</code>", result_of(step));
    let mut why = if step.rung > Rung::GoOn {
        format!("<span class=\"badge\">{}</span> {}", step.rung.code(), super::escaped(&step.why))
    } else {
        String::new()
    };
    if !step.nudge.is_empty() && step.rung < Rung::Stop {
        let _ = write!(why, "<br><span class=\"said\">The model is told: {}</span>", said(&step.nudge));
    }
    for other in &step.others {
        let badge = if other.enforced { "stop" } else { "observe" };
        let _ = write!(why, "<span class=\"badge\">{badge}</span> {}: {}", text(other.rule), super::escaped(other.why));
    }
    if step.starts_anew {
        why.push_str("a person has spoken: counting starts anew");
    }
    let cycle =
        counters.cycle.map_or_else(|| "–".to_owned(), |(period, rounds)| format!("{period} × {}", reached(rounds, settings.cycle.stop)));
    let messages = counters.messages.max(counters.message_rounds);
    Row {
        class,
        cells: vec![
            step.number.to_string(),
            shown,
            result,
            format!("<span class=\"seen\">{}</span>", news(step.news)),
            reached(counters.identical, settings.identical.stop),
            cycle,
            if counters.window == 0 { "–".to_owned() } else { format!("{} of {}", counters.window_new, counters.window) },
            reached(counters.same_error, settings.same_error.stop),
            reached(messages, settings.messages.stop),
            reached(counters.unmoved, settings.unmoved.stop),
            reached(counters.put_back, settings.put_back.stop),
            reached(counters.same_result, settings.same_result.stop),
            reached(counters.failing, settings.failing.stop),
            counters.with_share_of_tokens(reached(counters.long_run, settings.long_run.stop), settings),
            why,
        ],
    }
}

/// What was asked and what came back, below the counts.
fn texts(step: &ExplainedStep) -> String {
    if step.args_text.is_empty() && step.result_text.is_empty() {
        return String::new();
    }
    let [args, result] = [&step.args_text, &step.result_text].map(|text| format!("<span>{}</span>", said(text)));
    format!("<tr><td></td><td class=\"texts said\" colspan=\"14\"><div>{args}{result}</div></td></tr>")
}

fn news(news: News) -> &'static str {
    match news {
        News::New => "new",
        News::Known => "known",
        News::NotCounted => "–",
    }
}

fn result_of(step: &ExplainedStep) -> String {
    step.result.map_or_else(|| "not told".to_owned(), |result| result.to_string())
}

const HEADINGS: [&str; 15] = [
    "#Step",
    "Call",
    "Result",
    "New?",
    "#Row",
    "#Round",
    "#News",
    "#Error",
    "#Said",
    "#Check",
    "#Back",
    "#Same",
    "#Fails",
    "#Long",
    "What fired, and why",
];

/// The steps, at most so many, as a table; stretches without an event are folded.
pub(super) fn timeline(explained: &Explained, most: usize) -> String {
    let class = |heading: &str| if heading.starts_with('#') { " class=\"number\"" } else { "" };
    let mut out = String::from(
        "<div class=\"wide card\"><table class=\"steps\"><caption>Counts are shown with the threshold that ends the run.</caption><thead><tr>",
    );
    for heading in HEADINGS {
        let _ = write!(out, "<th scope=\"col\"{}>{}</th>", class(heading), heading.trim_start_matches('#'));
    }
    out.push_str("</tr></thead><tbody>");
    let mut left = most;
    for stretch in explained.stretches() {
        let (steps, folded) = match stretch {
            Stretch::Shown(steps) => (steps, None),
            Stretch::Folded(steps) => (steps, Some(format!("{} more steps, all with something new", steps.len()))),
            Stretch::AfterStop(steps) => (steps, Some(format!("{} steps that would not have been made", steps.len()))),
            Stretch::Later(steps) => (steps, Some(format!("{} steps that a person asked for after that", steps.len()))),
        };
        let shown = &steps[..steps.len().min(left)];
        left -= shown.len();
        match folded {
            None => {
                for step in shown {
                    let Row { class: of_row, cells } = row(step, explained);
                    let texts = texts(step);
                    let _ = write!(out, "<tr class=\"{of_row}{}\">", if texts.is_empty() { "" } else { " has" });
                    for (position, (cell, heading)) in cells.iter().zip(HEADINGS).enumerate() {
                        let (tag, scope) = if position == 0 { ("th", " scope=\"row\"") } else { ("td", "") };
                        let _ = write!(out, "<{tag}{scope}{}>{cell}</{tag}>", class(heading));
                    }
                    out.push_str("</tr>");
                    out.push_str(&texts);
                }
            }
            Some(summary) => {
                let _ = write!(
                    out,
                    "<tr><td></td><td colspan=\"14\"><details><summary>{summary}</summary><ol start=\"{}\">",
                    steps.first().map_or(1, |step| step.number)
                );
                for step in shown {
                    let _ = write!(
                        out,
                        "<li>{} <code>{}</code> → <code>{}</code> {}</li>",
                        if step.message { "says".to_owned() } else { text(&step.tool) },
                        step.args,
                        result_of(step),
                        news(step.news)
                    );
                }
                out.push_str("</ol></details></td></tr>");
            }
        }
        if shown.len() < steps.len() {
            let _ = write!(out, "<tr><td></td><td colspan=\"14\" class=\"soft\">The run goes on; `--json` has all of it.</td></tr>");
            break;
        }
    }
    out.push_str("</tbody></table></div>");
    out
}

pub(super) fn rule_name(rule: StallRule) -> &'static str {
    match rule {
        StallRule::Identical => "the same call with the same result in a row",
        StallRule::Cycle => "the same round of calls and results",
        StallRule::Novelty => "hardly anything new among the latest",
        StallRule::SameError => "the same error in a row",
        StallRule::Messages => "the same message in a row",
        StallRule::Unmoved => "the same check with the same outcome, across changes",
        StallRule::PutBack => "a file put back to what it had been",
        StallRule::SameResult => "other arguments, the same result",
        StallRule::Failing => "failed calls in a row",
        StallRule::LongRun => "calls of a run whose check failed again after a change",
    }
}
