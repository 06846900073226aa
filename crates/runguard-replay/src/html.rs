//! Pages that are sent around: one file each, without script, plots drawn here as SVG, light and dark.
//!
//! What a run says is hostile: models, tools and users wrote it. Everything from outside goes through [`text`] or [`said`],
//! which leave no markup and nothing that turns the direction of writing, and a page forbids itself all but its own style, so
//! that nothing is ever asked of a network.

mod explain;
mod replay;
pub mod shell;
mod tune;

use self::shell::{Page, section, stack, text};
pub use explain::explain_page;
pub use replay::replay_page;
pub use tune::tune_page;

use crate::evaluate::Share;
use runguard_core::shown::{html as escaped, shortened};
use runguard_core::text::grouped;
use std::fmt::Write as _;

const STYLE: &str = include_str!("html/page.css");
/// SHA-256 of the style, so that no other can be slipped in.
const STYLE_HASH: &str = "4zV0YpIKaWyKGQyl4NQSx4K8Ldb2KbOw5bFmh43Bb9g=";
/// Characters shown of what was said.
const MAX_SAID: usize = 300;

fn page(title: &str, below: &str, body: &str) -> String {
    Page { title, heading: title, below, body, footer: "", style: STYLE, style_hash: STYLE_HASH }.whole()
}

/// What a model or a tool said.
fn said(foreign: &str) -> String {
    format!("<bdi>{}</bdi>", escaped(&shortened(foreign, MAX_SAID)))
}

/// A number without digits nobody reads, its thousands apart.
fn amount(value: f64) -> String {
    let text = crate::tune::number(value);
    match text.parse::<u64>() {
        Ok(whole) => grouped(whole),
        Err(_) => text,
    }
}

fn per_cent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

fn share(share: Share) -> String {
    share.value.map_or_else(
        || "–".to_owned(),
        |value| format!("{} <span class=\"soft in\">[{:.2}–{:.2}]</span>", per_cent(value), 100.0 * share.low, 100.0 * share.high),
    )
}

/// A row of a table: how it is marked, and ready cells.
struct Row {
    class: &'static str,
    cells: Vec<String>,
}

/// Headings that begin with # are of numbers.
fn table(caption: &str, headings: &[&str], rows: &[Row]) -> String {
    let class = |heading: &str| if heading.starts_with('#') { " class=\"number\"" } else { "" };
    let mut out = format!("<div class=\"wide card\"><table><caption>{caption}</caption><thead><tr>");
    for heading in headings {
        let _ = write!(out, "<th scope=\"col\"{}>{}</th>", class(heading), heading.trim_start_matches('#'));
    }
    out.push_str("</tr></thead><tbody>");
    for Row { class: of_row, cells } in rows {
        let _ = write!(out, "<tr class=\"{of_row}\">");
        for (position, (cell, heading)) in cells.iter().zip(headings).enumerate() {
            let (tag, scope) = if position == 0 { ("th", " scope=\"row\"") } else { ("td", "") };
            let _ = write!(out, "<{tag}{scope}{}>{cell}</{tag}>", class(heading));
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
    out
}

fn tiles(tiles: &[(&str, String)]) -> String {
    let items: Vec<String> =
        tiles.iter().map(|(name, number)| format!("<li><b>{number}</b><span class=\"soft\">{name}</span></li>")).collect();
    format!("<ul class=\"tiles\">{}</ul>", items.concat())
}

fn legend(entries: &[(&str, &str)]) -> String {
    let one = |(class, name): &(&str, &str)| {
        format!(
            "<span><svg viewBox=\"0 0 8 8\" aria-hidden=\"true\"><circle class=\"{class}\" cx=\"4\" cy=\"4\" r=\"3.4\"/></svg>{name}</span>"
        )
    };
    format!("<p class=\"legend soft\">{}</p>", entries.iter().map(one).collect::<String>())
}

/// The next number that a quarter of is easily read.
fn rounded_up(value: f64) -> f64 {
    let unit = 10_f64.powf(value.max(1e-9).log10().floor());
    [1.0, 1.2, 1.6, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0]
        .into_iter()
        .map(|digit| digit * unit)
        .find(|round| *round >= value * (1.0 - 1e-9))
        .unwrap_or(value)
}

#[cfg(test)]
mod tests;
