//! Tables and colours for people; on a pipe, plain text.

use crate::failure::Failure;
use comfy_table::{Cell, Color, ContentArrangement, Table, presets};
pub(crate) use runguard_core::shown::dotted as clean;
use serde_json::Value;
use std::io::{IsTerminal, Write};

/// Writes a line; a closed pipe ends the command quietly.
pub(crate) fn line(text: &str) -> Result<(), Failure> {
    let mut out = anstream::stdout().lock();
    writeln!(out, "{text}")?;
    Ok(())
}

pub(crate) fn json(value: &Value) -> Result<(), Failure> {
    line(&serde_json::to_string_pretty(value).unwrap_or_default())
}

pub(crate) fn table(headers: &[&str]) -> Table {
    let mut table = Table::new();
    let style = if std::io::stdout().is_terminal() { presets::UTF8_BORDERS_ONLY } else { presets::NOTHING };
    table.load_style(style).set_content_arrangement(ContentArrangement::Dynamic).set_header(headers);
    table
}

/// What users, models and tools said must not steer the terminal; line ends and tabs stay.
#[cfg(feature = "agent")]
pub(crate) fn clean_lines(text: &str) -> String {
    let text = text.replace("\r\n", "\n");
    text.chars().map(|c| if runguard_core::shown::steers(c) && c != '\n' && c != '\t' { '·' } else { c }).collect()
}

pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => clean(text),
        other => clean(&other.to_string()),
    }
}

/// Coloured by what it means.
pub(crate) fn outcome_cell(outcome: &str) -> Cell {
    let color = match outcome {
        "allowed" | "closed" | "yes" => Color::Green,
        "blocked" | "open" | "no" => Color::Red,
        "would_block" | "half_open" => Color::Yellow,
        _ => return Cell::new(clean(outcome)),
    };
    Cell::new(outcome).fg(color)
}

pub(crate) fn cell(value: &Value) -> Cell {
    Cell::new(text(value))
}
