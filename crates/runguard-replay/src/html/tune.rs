//! What tuning found: the front, the distributions, and runs that the chosen thresholds stop.

use super::explain::{about, rule_name, timeline};
use super::{Row, amount, escaped, grouped, legend, page, per_cent, rounded_up, section, share, stack, table, text, tiles};
use crate::caps::{Amount, Cap};
use crate::front::{Part, RULES, TUNED};
use crate::tune::{Advice, Chosen, Example, Measured, Reader, Summary, number, settings_file, verdict};
use runguard_core::text::capitalised;
use std::fmt::Write as _;

/// Candidates drawn; many lie on top of each other.
const MAX_DOTS: usize = 800;
/// Steps shown of one example.
const MAX_STEPS: usize = 40;

pub fn tune_page(summary: &Summary, examples: &[Example], reader: Reader) -> String {
    let mut body = String::new();
    let class = match summary.advice {
        Advice::Use => "yes",
        Advice::NoneKeepsThePrice | Advice::NotProven { more: None } => "no",
        Advice::SuccessUnknown
        | Advice::NothingFailed
        | Advice::TooFewRuns { .. }
        | Advice::TooFewTasks { .. }
        | Advice::BetterAsItIs
        | Advice::NotProven { more: Some(_) } => "",
    };
    let _ = write!(body, "<p class=\"card verdict {class}\">{}.</p>", escaped(&capitalised(&verdict(summary))));
    let mut numbers = vec![
        ("runs", grouped(summary.runs)),
        ("succeeded", grouped(summary.successful)),
        ("failed", grouped(summary.failed)),
        ("outcome not known", grouped(summary.unknown)),
        ("tasks", grouped(summary.tasks)),
    ];
    if summary.broken_lines > 0 {
        numbers.push(("records not read", grouped(summary.broken_lines)));
    }
    body.push_str(&tiles(&numbers));
    section(&mut body, "Savings against false stops", &front(summary));
    if let Some(chosen) = &summary.chosen {
        section(&mut body, "What was chosen", &evidence(summary, chosen));
    }
    section(&mut body, "What each rule would stop", &trips(summary));
    section(&mut body, "Caps", &caps(summary));
    section(&mut body, "Runs that would be stopped", &example_runs(examples));
    if let Some(file) = settings_file(summary, reader) {
        section(&mut body, "Settings", &format!("<pre class=\"card\">{}</pre>", escaped(&file)));
    }
    section(&mut body, "The grid", &grid(summary));
    let below = format!(
        "{} runs, {} steps; at most {} of successful runs may be stopped",
        grouped(summary.runs),
        grouped(summary.steps),
        per_cent(summary.max_false_stops)
    );
    page("RunGuard: tuned on recorded runs", &below, &body)
}

// -- the front --------------------------------------------------------------------------------------

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 58.0;
const FOOT: f64 = 40.0;
const HEAD: f64 = 14.0;
const RIGHT: f64 = 20.0;

struct Axes {
    most_x: f64,
    most_y: f64,
}

impl Axes {
    fn x(&self, value: f64) -> f64 {
        LEFT + value / self.most_x * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - FOOT - value / self.most_y * (HEIGHT - FOOT - HEAD)
    }
}

fn at(measured: &Measured) -> Option<(f64, f64)> {
    measured.false_stop_rate.value.zip(measured.saved_share.value)
}

fn front(summary: &Summary) -> String {
    let shown: Vec<(f64, f64)> = summary.front.iter().filter_map(|row| at(&row.measured)).collect();
    if shown.is_empty() {
        return String::new();
    }
    let chosen = summary.chosen.as_ref().and_then(|chosen| at(&chosen.measured));
    // Far beyond the price nobody looks; near it everything must be told apart.
    let widest = shown.iter().map(|point| point.0).fold(0.0, f64::max);
    let most_x = rounded_up(widest.min(summary.max_false_stops * 5.0).max(summary.max_false_stops * 1.5));
    let most_y = rounded_up(shown.iter().map(|point| point.1).fold(0.01, f64::max)).min(1.0);
    let axes = Axes { most_x, most_y };
    let mut out = format!(
        "<div class=\"card\"><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-labelledby=\"front-title\"><title id=\"front-title\">Share of the {} of failed runs saved, against the share of successful runs stopped; {} combinations, {} on the front.</title>",
        summary.save.code(),
        grouped(summary.candidates),
        summary.front_len
    );
    for part in 0..=4 {
        let (x, y) = (axes.most_x * f64::from(part) / 4.0, axes.most_y * f64::from(part) / 4.0);
        let _ = write!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{0:.1}\" x2=\"{1:.1}\" y2=\"{0:.1}\"/><text x=\"{2:.1}\" y=\"{3:.1}\" text-anchor=\"end\">{4}</text><text x=\"{5:.1}\" y=\"{6:.1}\" text-anchor=\"middle\">{7}</text>",
            axes.y(y),
            WIDTH - RIGHT,
            LEFT - 6.0,
            axes.y(y) + 4.0,
            number(100.0 * y) + " %",
            axes.x(x),
            HEIGHT - FOOT + 16.0,
            number(100.0 * x) + " %"
        );
    }
    let _ = write!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">successful runs stopped</text><text x=\"{:.1}\" y=\"{:.1}\">{} of failed runs saved</text>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 6.0,
        LEFT + 4.0,
        HEAD + 2.0,
        summary.save.code()
    );
    let every = summary.points.len().div_ceil(MAX_DOTS).max(1);
    for (x, y) in summary.points.iter().step_by(every).filter(|point| point.0 <= most_x && point.1 <= most_y) {
        let _ = write!(out, "<circle class=\"dot\" cx=\"{:.0}\" cy=\"{:.0}\" r=\"2\"/>", axes.x(*x), axes.y(*y));
    }
    let price = axes.x(summary.max_false_stops);
    let _ = write!(
        out,
        "<line class=\"price\" x1=\"{price:.1}\" y1=\"{HEAD}\" x2=\"{price:.1}\" y2=\"{:.1}\"/><text class=\"pricetext\" x=\"{:.1}\" y=\"{:.1}\">price {}</text>",
        HEIGHT - FOOT,
        price + 5.0,
        HEIGHT - FOOT - 6.0,
        per_cent(summary.max_false_stops)
    );
    let path: Vec<String> =
        shown.iter().filter(|point| point.0 <= most_x).map(|(x, y)| format!("{:.1},{:.1}", axes.x(*x), axes.y(*y))).collect();
    let _ = write!(out, "<polyline class=\"front\" points=\"{}\"/>", path.join(" "));
    for row in &summary.front {
        if let Some((x, y)) = at(&row.measured).filter(|point| point.0 <= most_x) {
            let title = format!("{}: {} stopped, {} saved", described(row.parts), per_cent(x), per_cent(y));
            let _ =
                write!(out, "<circle class=\"on\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\"><title>{title}</title></circle>", axes.x(x), axes.y(y));
        }
    }
    for (class, point, name) in [("base", at(&summary.base.measured), "the settings as they are"), ("chosen", chosen, "chosen")] {
        if let Some((x, y)) = point.filter(|point| point.0 <= most_x) {
            let _ = write!(
                out,
                "<circle class=\"{class}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"7\"><title>{name}</title></circle>",
                axes.x(x),
                axes.y(y)
            );
        }
    }
    out.push_str("</svg>");
    out.push_str(&legend(&[
        ("chosen", "chosen"),
        ("base", "the settings as they are"),
        ("on", "the front: nothing saves more for less"),
        ("dot", "the other combinations"),
    ]));
    out.push_str("</div>");
    let picked = summary.chosen.as_ref().map(|chosen| chosen.parts);
    let mut rows: Vec<Row> = vec![front_row("as it is", summary.base.parts, &summary.base.measured, "")];
    for (place, row) in summary.front.iter().enumerate() {
        let is_chosen = picked == Some(row.parts);
        let name = if is_chosen {
            format!("{} ({})", place + 1, if summary.advice == Advice::Use { "chosen" } else { "candidate" })
        } else {
            (place + 1).to_string()
        };
        rows.push(front_row(&name, row.parts, &row.measured, if is_chosen { "picked" } else { "" }));
    }
    let caption = if summary.front_len > summary.front.len() {
        format!("{} of the {} on the front, the cheapest first. In brackets: 95 % confidence.", summary.front.len(), summary.front_len)
    } else {
        "The front, the cheapest first. In brackets: 95 % confidence.".to_owned()
    };
    let rules = RULES.map(|rule| format!("#{}", rule.code().replace('_', " ")));
    let mut headings = vec![""];
    headings.extend(rules.iter().map(String::as_str));
    headings.extend(["#good runs stopped", "#share", "#failed runs stopped", "#saved"]);
    out.push_str(&table(&caption, &headings, &rows));
    out
}

fn front_row(name: &str, parts: [Part; TUNED], measured: &Measured, class: &'static str) -> Row {
    let mut cells = vec![name.to_owned()];
    cells.extend(parts.iter().map(ToString::to_string));
    cells.extend([
        format!("{} of {}", grouped(measured.false_stops), grouped(measured.successful)),
        share(measured.false_stop_rate),
        format!("{} of {}", grouped(measured.stopped), grouped(measured.failed)),
        share(measured.saved_share),
    ]);
    Row { class, cells }
}

fn described(parts: [Part; TUNED]) -> String {
    let one = |(rule, part): (runguard_core::detect::stall::StallRule, Part)| format!("{} {part}", rule.code());
    RULES.into_iter().zip(parts).map(one).collect::<Vec<_>>().join(", ")
}

// -- what was chosen --------------------------------------------------------------------------------

fn measured_row(name: String, measured: &Measured) -> Row {
    Row {
        class: "",
        cells: vec![
            name,
            format!("{} of {}", grouped(measured.false_stops), grouped(measured.successful)),
            share(measured.false_stop_rate),
            grouped(measured.costly_stops),
            format!("{} of {}", grouped(measured.stopped), grouped(measured.failed)),
            share(measured.saved_share),
            grouped(measured.saved.steps),
            grouped(measured.saved.tokens),
            format!("{:.2}", measured.saved.dollars),
        ],
    }
}

const MEASURED: [&str; 9] =
    ["", "#good runs stopped", "#share", "#with steps after", "#failed runs stopped", "#saved", "#steps", "#tokens", "#dollars"];

fn evidence(summary: &Summary, chosen: &Chosen) -> String {
    let mut out = format!("<p><code>{}</code>, chosen for {} of the price.</p>", described(chosen.parts), number(chosen.margin));
    let rows = [
        measured_row("on tasks it was not chosen on".to_owned(), &chosen.held_out),
        measured_row("on all runs".to_owned(), &chosen.measured),
        measured_row("the settings as they are".to_owned(), &summary.base.measured),
    ];
    out.push_str(&table(
        "What it does. In brackets: 95 % confidence; runs of one task count for less than their number.",
        &MEASURED,
        &rows,
    ));
    let folds: Vec<Row> = chosen
        .folds
        .iter()
        .enumerate()
        .map(|(fold, of_fold)| {
            let parts = of_fold.parts.map_or_else(|| "nothing kept the price".to_owned(), described);
            measured_row(format!("{}<span class=\"soft in\">{parts}</span>", fold + 1), &of_fold.measured)
        })
        .collect();
    out.push_str(&table("Chosen five times without a fifth of the tasks, and measured on that fifth.", &MEASURED, &folds));
    let rules: Vec<Row> = chosen
        .by_rule
        .iter()
        .map(|(rule, good, failed)| Row { class: "", cells: vec![rule_name(*rule).to_owned(), grouped(*good), grouped(*failed)] })
        .collect();
    out.push_str(&table("Which rule stops first.", &["rule", "#good runs", "#failed runs"], &rules));
    if chosen.by_source.len() > 1 {
        let sources: Vec<Row> = chosen.by_source.iter().map(|(source, measured)| measured_row(text(source), measured)).collect();
        out.push_str(&table("By source: agents that differ much are better tuned apart.", &MEASURED, &sources));
    }
    out
}

fn trips(summary: &Summary) -> String {
    let rows: Vec<Row> = summary
        .trips
        .iter()
        .map(|(rule, part, measured)| Row {
            class: "",
            cells: vec![
                rule_name(*rule).to_owned(),
                part.to_string(),
                format!("{} of {}", grouped(measured.unknown_stopped), grouped(measured.unknown)),
                grouped(measured.unknown_after.steps),
            ],
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    table(
        "Each rule alone. Whether these stops are good ones is not known.",
        &["rule", "#threshold", "#runs stopped", "#steps after"],
        &rows,
    )
}

// -- caps -------------------------------------------------------------------------------------------

fn caps(summary: &Summary) -> String {
    if summary.caps.is_empty() {
        return String::new();
    }
    let row = |cap: &Cap| {
        let quantile = |percentile: f64| {
            cap.quantiles
                .iter()
                .find(|quantile| (quantile.percentile - percentile).abs() < 1e-9)
                .map_or_else(|| "–".to_owned(), |quantile| amount(quantile.value))
        };
        let from = cap.percentile.map_or_else(
            || format!("{} more runs are needed", grouped(cap.runs_missing)),
            |percentile| format!("p{}\u{a0}×\u{a0}{}", number(100.0 * percentile), number(cap.factor)),
        );
        Row {
            class: "",
            cells: vec![
                cap.amount.code().to_owned(),
                grouped(cap.runs),
                quantile(0.5),
                quantile(0.95),
                quantile(0.99),
                amount(cap.most),
                cap.cap.map_or_else(|| "–".to_owned(), amount),
                from,
                share(cap.successful_over),
                share(cap.failed_over),
                amount(cap.failed_beyond),
            ],
        }
    };
    let of = if summary.caps.iter().all(|cap| cap.of_successful) {
        "successful runs"
    } else {
        "all runs, as of none it is known whether it succeeded"
    };
    let headings = ["", "#runs", "#p50", "#p95", "#p99", "#most", "#cap", "from", "#good over it", "#failed over it", "#failed beyond it"];
    let mut out =
        table(&format!("What {of} used, and the cap that follows."), &headings, &summary.caps.iter().map(row).collect::<Vec<_>>());
    out.push_str("<div class=\"two\">");
    for cap in &summary.caps {
        out.push_str(&distribution(cap));
    }
    out.push_str("</div>");
    out
}

fn distribution(cap: &Cap) -> String {
    const WIDTH: f64 = 440.0;
    const HEIGHT: f64 = 150.0;
    const FOOT: f64 = 20.0;
    const HEAD: f64 = 18.0;
    let distribution = &cap.distribution;
    let stacks = [("s", &distribution.successful), ("f", &distribution.failed), ("u", &distribution.unknown)];
    let columns = distribution.successful.len();
    let most = (0..columns).map(|column| stacks.iter().map(|(_, counts)| counts[column]).sum::<u64>()).max().unwrap_or(1).max(1);
    let width = WIDTH / columns.max(1) as f64;
    let scale = (HEIGHT - FOOT - HEAD) / most as f64;
    let id = format!("used-{}", cap.amount.code());
    let mut out = format!(
        "<div class=\"card\"><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-labelledby=\"{id}\"><title id=\"{id}\">How many runs used how many {}, from {} to {}; at most {} in a column.</title>",
        cap.amount.code(),
        amount(distribution.from),
        amount(distribution.to),
        grouped(most)
    );
    for column in 0..columns {
        let parts = stacks.iter().map(|(class, counts)| (*class, counts[column] as f64 * scale));
        stack(&mut out, parts, column as f64 * width, width * 0.88, HEIGHT - FOOT);
    }
    let reach = (distribution.to / distribution.from).ln();
    let place = |value: f64| ((value / distribution.from).ln() / reach).clamp(0.0, 1.0) * WIDTH;
    if let Some(value) = cap.cap {
        let x = place(value).min(WIDTH - 1.0);
        let (anchor, beside) = if x > WIDTH / 2.0 { ("end", -5.0) } else { ("start", 5.0) };
        let _ = write!(
            out,
            "<line class=\"cap\" x1=\"{x:.1}\" y1=\"0\" x2=\"{x:.1}\" y2=\"{:.1}\"/><text class=\"pricetext\" x=\"{:.1}\" y=\"11\" text-anchor=\"{anchor}\">cap {}{}</text>",
            HEIGHT - FOOT,
            x + beside,
            amount(value),
            if value > distribution.to { " (beyond all)" } else { "" }
        );
    }
    let middle = rounded_up((distribution.from * distribution.to).sqrt());
    for (x, value, anchor) in [(0.0, distribution.from, "start"), (place(middle), middle, "middle"), (WIDTH, distribution.to, "end")] {
        let _ = write!(out, "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>", HEIGHT - 5.0, amount(value));
    }
    let unit = match cap.amount {
        Amount::Dollars => "dollars of a run",
        Amount::Tokens => "tokens of a run",
        Amount::Steps => "steps of a run",
        Amount::Minutes => "minutes of a run",
    };
    let _ = write!(out, "</svg><p class=\"soft\">{unit}, each column further by the same factor</p>");
    out.push_str(&legend(&[("s", "succeeded"), ("f", "failed"), ("u", "not known")]));
    out.push_str("</div>");
    out
}

// -- the rest ---------------------------------------------------------------------------------------

fn example_runs(examples: &[Example]) -> String {
    let mut out = String::new();
    for Example { rule, explained } in examples {
        let _ = write!(
            out,
            "<h3>{}</h3><p class=\"soft\">{}</p><p>{}</p>{}",
            capitalised(rule_name(*rule)),
            about(explained),
            escaped(&explained.verdict()),
            timeline(explained, MAX_STEPS)
        );
    }
    out
}

fn grid(summary: &Summary) -> String {
    let rows: Vec<Row> = summary
        .grid
        .iter()
        .map(|(rule, parts)| Row {
            class: "",
            cells: vec![rule_name(*rule).to_owned(), parts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")],
        })
        .collect();
    table(&format!("{} combinations were tried.", grouped(summary.candidates)), &["rule", "values"], &rows)
}
