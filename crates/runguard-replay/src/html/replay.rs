//! What guards and budgets would have done to recorded runs.

use super::{Row, escaped, grouped, page, per_cent, rounded_up, said, section, share, table, text, tiles};
use crate::replay::{Circling, Example, Figures, Named, Nudged, RuleCircles, RuleFigures, Summary};
use crate::tune::number;
use runguard_core::shown::steers;
use std::fmt::Write as _;

/// Rows of one table; the rest is in the JSON.
const MAX_ROWS: usize = 60;
/// Broken records that are listed.
const MAX_BROKEN: usize = 20;

pub fn replay_page(summary: &Summary) -> String {
    let mut body = String::new();
    let sums = &summary.total.sums;
    let class = if sums.false_stops == 0 { "yes" } else { "" };
    let _ = write!(body, "<p class=\"card verdict {class}\">{}</p>", verdict(summary));
    if let Some(circles) = summary.in_circles() {
        let _ = write!(body, "<p class=\"card verdict\">{}</p>", escaped(&circles));
    }
    for note in &summary.notes {
        let _ = write!(body, "<p class=\"card verdict\">{}</p>", said(note));
    }
    let mut numbers = vec![
        ("runs", grouped(summary.runs)),
        ("steps", grouped(summary.steps)),
        ("good runs ended", format!("{} of {}", grouped(sums.false_stops), grouped(sums.successful))),
        ("failed runs ended", format!("{} of {}", grouped(sums.stopped), grouped(sums.failed))),
    ];
    if sums.unknown > 0 {
        numbers.push(("runs ended whose end is not known", format!("{} of {}", grouped(sums.unknown_stopped), grouped(sums.unknown))));
    }
    let (steps, tokens, dollars) =
        if sums.successful + sums.failed == 0 { sums.after() } else { (sums.saved_steps, sums.saved_tokens, sums.saved_dollars) };
    numbers.push(("steps saved", grouped(steps)));
    if summary.tokens > 0 {
        numbers.push(("tokens saved", grouped(tokens)));
    }
    if summary.dollars > 0.0 {
        numbers.push(("dollars saved", format!("{dollars:.2}")));
    }
    body.push_str(&tiles(&numbers));
    section(&mut body, "What ended runs", &rules(summary));
    section(&mut body, "Beside other rules", &against(summary));
    if summary.alone.len() > 1 {
        section(&mut body, "Each guard and budget alone", &figures_table("As if it were the only one.", &summary.alone, None));
    }
    section(&mut body, "What went in circles", &circles(summary));
    section(&mut body, "What was said without ending a run", &nudges(summary));
    for grouping in &summary.groups {
        let caption = format!("By {}. In brackets: 95 % confidence.", grouping.by.code());
        let title = format!("By {}", grouping.by.code());
        section(&mut body, &title, &figures_table(&caption, &grouping.groups, grouping.others.as_ref()));
    }
    section(&mut body, "Runs that would have been ended", &examples(summary));
    section(&mut body, "What was read", &read(summary));
    let below = format!("{} runs, {} steps{}", grouped(summary.runs), grouped(summary.steps), presets(summary));
    page("RunGuard: recorded runs replayed", &below, &body)
}

fn presets(summary: &Summary) -> String {
    let used: Vec<String> = summary
        .presets
        .iter()
        .filter(|preset| preset.runs > 0)
        .map(|preset| format!("{} by preset {}", grouped(preset.runs), text(preset.name)))
        .collect();
    if used.is_empty() { String::new() } else { format!("; {}", used.join(", ")) }
}

fn verdict(summary: &Summary) -> String {
    let cut = if summary.finished { "" } else { "Not everything was read; these are the figures until then. " };
    format!("{cut}{}", escaped(&summary.headline()))
}

/// A bar of what a row has of the most, beside its number.
fn bar(class: &str, part: u64, most: u64) -> String {
    let width = part as f64 / most.max(1) as f64 * 100.0;
    format!(
        "<svg class=\"bar\" viewBox=\"0 0 100 10\" preserveAspectRatio=\"none\" aria-hidden=\"true\"><rect class=\"{class}\" x=\"0\" y=\"1\" width=\"{width:.1}\" height=\"8\"/></svg>"
    )
}

fn rules(summary: &Summary) -> String {
    if summary.rules.is_empty() {
        return "<p class=\"card\">No run would have been ended.</p>".to_owned();
    }
    let most = summary.rules.iter().map(|rule| rule.saved_steps).max().unwrap_or(0);
    let row = |rule: &RuleFigures| Row {
        class: "",
        cells: vec![
            format!("<code>{}</code>", text(rule.rule)),
            format!(
                "{}<span class=\"soft in\">{}</span>",
                grouped(rule.successful),
                rule.false_stops.value.map_or_else(String::new, per_cent)
            ),
            format!(
                "{}<span class=\"soft in\">{}</span>",
                grouped(rule.failed),
                rule.failed_stopped.value.map_or_else(String::new, per_cent)
            ),
            grouped(rule.unknown),
            bar("s", rule.saved_steps, most),
            grouped(rule.saved_steps),
            grouped(rule.saved_tokens),
            format!("{:.2}", rule.saved_dollars),
            grouped(rule.lost_steps),
            grouped(rule.unknown_after_steps),
            format!("{} · {} · {}", grouped(rule.at.median), grouped(rule.at.p90), grouped(rule.at.largest)),
        ],
    };
    let headings = [
        "rule",
        "#good runs",
        "#failed runs",
        "#not known",
        "",
        "#steps saved",
        "#tokens",
        "#dollars",
        "#steps lost",
        "#steps, not known",
        "#after step: half · p90 · most",
    ];
    table("Each run is counted for the rule that ended it first.", &headings, &summary.rules.iter().map(row).collect::<Vec<_>>())
}

fn figures_row(name: String, figures: &Figures, class: &'static str) -> Row {
    let sums = &figures.sums;
    Row {
        class,
        cells: vec![
            name,
            format!("{} of {}", grouped(sums.false_stops), grouped(sums.successful)),
            share(figures.false_stops),
            format!("{} of {}", grouped(sums.stopped), grouped(sums.failed)),
            share(figures.failed_stopped),
            share(figures.precision),
            share(figures.saved_steps),
            share(figures.lost_steps),
            if sums.unknown == 0 { "–".to_owned() } else { format!("{} of {}", grouped(sums.unknown_stopped), grouped(sums.unknown)) },
            share(figures.unknown_after),
            if sums.stuck == 0 { "–".to_owned() } else { share(figures.recall) },
        ],
    }
}

const FIGURES: [&str; 11] = [
    "",
    "#good ended",
    "#share",
    "#failed ended",
    "#share",
    "#precision",
    "#steps saved",
    "#steps lost",
    "#not known, ended",
    "#their steps after it",
    "#stuck found",
];

fn figures_table(caption: &str, named: &[Named], others: Option<&Figures>) -> String {
    let mut rows: Vec<Row> = named.iter().take(MAX_ROWS).map(|one| figures_row(text(&one.name), &one.figures, "")).collect();
    rows.extend(others.map(|figures| figures_row("others".to_owned(), figures, "")));
    let mut out = table(caption, &FIGURES, &rows);
    if named.len() > MAX_ROWS {
        let _ = write!(out, "<p class=\"soft\">{} more are in the JSON.</p>", named.len() - MAX_ROWS);
    }
    out
}

fn against(summary: &Summary) -> String {
    if summary.against.is_empty() {
        return String::new();
    }
    let mut rows = vec![figures_row("RunGuard, as set".to_owned(), &summary.total, "picked")];
    rows.extend(summary.against.iter().take(MAX_ROWS).map(|other| figures_row(text(&other.name), &other.figures, "")));
    let table = table("The same runs. In brackets: 95 % confidence.", &FIGURES, &rows);
    format!("{}{table}", scatter(summary))
}

/// Everybody at the share of good runs they end and the share of failed steps they save.
fn scatter(summary: &Summary) -> String {
    const WIDTH: f64 = 900.0;
    const HEIGHT: f64 = 280.0;
    const LEFT: f64 = 58.0;
    const FOOT: f64 = 40.0;
    const HEAD: f64 = 16.0;
    const RIGHT: f64 = 130.0;
    let ours = std::iter::once(("RunGuard", &summary.total, "chosen"));
    let others = summary.against.iter().take(MAX_ROWS).map(|other| (other.name.as_str(), &other.figures, "on"));
    let points: Vec<(&str, f64, f64, &str)> = ours
        .chain(others)
        .filter_map(|(name, figures, class)| Some((name, figures.false_stops.value?, figures.saved_steps.value?, class)))
        .collect();
    if points.is_empty() {
        return String::new();
    }
    let most_x = rounded_up(points.iter().map(|point| point.1).fold(0.001, f64::max));
    let most_y = rounded_up(points.iter().map(|point| point.2).fold(0.01, f64::max)).min(1.0);
    let x = |value: f64| LEFT + value / most_x * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| HEIGHT - FOOT - value / most_y * (HEIGHT - FOOT - HEAD);
    let mut out = format!(
        "<div class=\"card\"><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-labelledby=\"against-title\"><title id=\"against-title\">Share of the steps of failed runs saved, against the share of successful runs ended, for each rule. The figures are in the table below.</title>"
    );
    for part in 0..=4 {
        let (across, up) = (most_x * f64::from(part) / 4.0, most_y * f64::from(part) / 4.0);
        let _ = write!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{0:.1}\" x2=\"{1:.1}\" y2=\"{0:.1}\"/><text x=\"{2:.1}\" y=\"{3:.1}\" text-anchor=\"end\">{4} %</text><text x=\"{5:.1}\" y=\"{6:.1}\" text-anchor=\"middle\">{7} %</text>",
            y(up),
            WIDTH - RIGHT,
            LEFT - 6.0,
            y(up) + 4.0,
            number(100.0 * up),
            x(across),
            HEIGHT - FOOT + 16.0,
            number(100.0 * across)
        );
    }
    let _ = write!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">successful runs ended</text><text x=\"{:.1}\" y=\"{HEAD}\">steps of failed runs saved</text>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 6.0,
        LEFT + 4.0
    );
    for (name, across, up, class) in points {
        let name = escaped(&name.chars().take(24).filter(|letter| !steers(*letter)).collect::<String>());
        let _ = write!(
            out,
            "<circle class=\"{class}\" cx=\"{0:.1}\" cy=\"{1:.1}\" r=\"6\"><title>{name}: {2} ended, {3} saved</title></circle><text x=\"{4:.1}\" y=\"{5:.1}\">{name}</text>",
            x(across),
            y(up),
            per_cent(across),
            per_cent(up),
            x(across) + 10.0,
            y(up) + 4.0
        );
    }
    out.push_str("</svg></div>");
    out
}

fn circles(summary: &Summary) -> String {
    let circles = &summary.circles;
    if circles.rules.is_empty() {
        return String::new();
    }
    let amounts = |steps: u64, tokens: u64, dollars: f64| [grouped(steps), grouped(tokens), format!("{dollars:.2}")];
    let by_rule = |RuleCircles { rule, words, circled }: &RuleCircles| Row {
        class: "",
        cells: [format!("<code>{}</code>", text(rule)), text(words), grouped(circled.runs)]
            .into_iter()
            .chain(amounts(circled.steps, circled.tokens, circled.dollars))
            .collect(),
    };
    let rows: Vec<Row> = circles.rules.iter().map(by_rule).collect();
    let caption = "Steps that brought nothing new, to the recorded end of each run, whatever became of it.";
    let mut out = table(caption, &["rule", "what came again", "#runs", "#steps", "#tokens", "#dollars"], &rows);
    let of_run = |run: &Circling| Row {
        class: "",
        cells: [
            format!("<code>{}:{}</code>", text(&run.file), run.line),
            text(&run.task),
            text(&run.tool),
            format!("<code>{}</code>", text(run.rule)),
            grouped(run.first),
        ]
        .into_iter()
        .chain(amounts(run.steps, run.tokens, run.dollars))
        .collect(),
    };
    let rows: Vec<Row> = circles.most.iter().map(of_run).collect();
    let headings = ["where", "task", "mostly with", "mostly by", "#from step", "#steps", "#tokens", "#dollars"];
    out.push_str(&table("The runs that spent most on it.", &headings, &rows));
    out
}

fn nudges(summary: &Summary) -> String {
    let cells = |nudged: &Nudged| [grouped(nudged.runs), grouped(nudged.steps), grouped(nudged.recovered)];
    let rows: Vec<Row> = summary
        .nudges
        .iter()
        .map(|nudge| {
            let mut all = vec![format!("<code>{}</code>", text(nudge.rule))];
            all.extend([&nudge.successful, &nudge.failed, &nudge.unknown].into_iter().flat_map(cells));
            Row { class: "", cells: all }
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let headings =
        ["what", "#good runs", "#steps", "#got out", "#failed runs", "#steps", "#got out", "#runs not known", "#steps", "#got out"];
    table("Nudges and skipped calls. Who got out was not stopped afterwards, though no recorded run has heard the nudge.", &headings, &rows)
}

fn examples(summary: &Summary) -> String {
    let row = |rule: &RuleFigures, example: &Example| Row {
        class: "",
        cells: vec![
            text(&example.id),
            format!("<code>{}</code>", text(rule.rule)),
            match example.success {
                Some(true) => "succeeded".to_owned(),
                Some(false) => "failed".to_owned(),
                None => "not known".to_owned(),
            },
            format!("{} of {}", grouped(example.step), grouped(example.steps)),
            text(&example.task),
            format!("<code>{}:{}</code>", text(&example.file), example.line),
        ],
    };
    let rows: Vec<Row> =
        summary.rules.iter().flat_map(|rule| rule.examples.iter().map(move |example| row(rule, example))).take(MAX_ROWS).collect();
    if rows.is_empty() {
        return String::new();
    }
    let headings = ["run", "rule", "it", "#ended after step", "task", "where"];
    table("<code>runguard explain FILE:LINE</code> tells each step by step.", &headings, &rows)
}

fn read(summary: &Summary) -> String {
    let rows: Vec<Row> = summary
        .files
        .iter()
        .take(MAX_ROWS)
        .map(|file| Row { class: "", cells: vec![text(&file.file), grouped(file.runs), grouped(file.steps), grouped(file.broken_lines)] })
        .collect();
    let mut out = table("Files.", &["file", "#runs", "#steps", "#not read"], &rows);
    if summary.files.len() > MAX_ROWS {
        let _ = write!(out, "<p class=\"soft\">{} more files are in the JSON.</p>", summary.files.len() - MAX_ROWS);
    }
    if !summary.broken.is_empty() {
        let shown = summary.broken.len().min(MAX_BROKEN) as u64;
        let _ = write!(out, "<h3>Not read, and not in the figures: {}</h3><ul>", grouped(summary.broken_lines));
        for broken in summary.broken.iter().take(MAX_BROKEN) {
            let _ = write!(out, "<li>{}</li>", said(&broken.to_string()));
        }
        if summary.broken_lines > shown {
            let _ = write!(out, "<li>and {} more</li>", grouped(summary.broken_lines - shown));
        }
        out.push_str("</ul>");
    }
    out
}
