//! Tables: columns that stand below each other, and on a terminal one line a row, cut where there is no room.

use std::fmt::Write as _;
use unicode_width::UnicodeWidthChar;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Color {
    Red,
    Green,
    Yellow,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Weight {
    Dim,
    #[default]
    Plain,
    Bold,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Cell {
    text: String,
    color: Option<Color>,
    weight: Weight,
    is_right: bool,
}

impl Cell {
    pub(crate) fn new(text: impl ToString) -> Self {
        Self { text: text.to_string(), ..Self::default() }
    }

    pub(crate) fn color(self, color: Color) -> Self {
        Self { color: Some(color), ..self }
    }

    pub(crate) fn weight(self, weight: Weight) -> Self {
        Self { weight, ..self }
    }

    /// At the right edge of its column, as numbers are.
    pub(crate) fn right(self) -> Self {
        Self { is_right: true, ..self }
    }

    fn width(&self) -> usize {
        width(&self.text)
    }

    /// In so many columns, with colours; whoever shows it takes them out again where nobody wants them.
    fn write(&self, columns: usize, out: &mut String) {
        let text = cut(&self.text, columns);
        let blanks = columns.saturating_sub(width(&text));
        let before = if self.is_right { blanks } else { 0 };
        let weight = match self.weight {
            Weight::Dim => "\u{1b}[2m",
            Weight::Plain => "",
            Weight::Bold => "\u{1b}[1m",
        };
        let color = match self.color {
            Some(Color::Red) => "\u{1b}[31m",
            Some(Color::Green) => "\u{1b}[32m",
            Some(Color::Yellow) => "\u{1b}[33m",
            None => "",
        };
        let end = if weight.is_empty() && color.is_empty() || text.is_empty() { "" } else { "\u{1b}[0m" };
        let (weight, color) = if end.is_empty() { ("", "") } else { (weight, color) };
        let _ = write!(out, "{:before$}{weight}{color}{text}{end}{:after$}", "", "", after = blanks - before);
    }
}

impl<T: ToString> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::new(text)
    }
}

/// The columns of a terminal that a text takes.
fn width(text: &str) -> usize {
    text.chars().map(|letter| letter.width().unwrap_or(0)).sum()
}

/// At most so many columns, the last of them `…` where something is missing.
fn cut(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let mut room = columns.saturating_sub(1);
    let fits = text.chars().take_while(|letter| {
        let needed = letter.width().unwrap_or(0);
        let fits = needed <= room;
        room = room.saturating_sub(needed);
        fits
    });
    let mut cut: String = fits.collect();
    cut.push_str(if columns > 0 { "…" } else { "" });
    cut
}

#[derive(Debug)]
pub(crate) struct Table {
    headers: Vec<Cell>,
    rows: Vec<Vec<Cell>>,
    /// How wide it may be, and what is between two columns; without, as wide as it is.
    room: Option<(usize, usize)>,
    kept_whole: Vec<usize>,
    favoured: Option<usize>,
}

/// What is left at least of a column beside the one that is favoured.
const LEAST: usize = 9;

impl Table {
    pub(crate) fn new(headers: Vec<Cell>, room: Option<(usize, usize)>) -> Self {
        Self { headers, rows: Vec::new(), room, kept_whole: Vec::new(), favoured: None }
    }

    pub(crate) fn add_row<C: Into<Cell>>(&mut self, row: impl IntoIterator<Item = C>) {
        self.rows.push(row.into_iter().map(Into::into).collect());
    }

    /// These are not cut where others can be.
    pub(crate) fn keep_whole(&mut self, columns: &[usize]) {
        self.kept_whole.extend(columns);
    }

    /// This one is cut last: a name that people type.
    pub(crate) fn favour(&mut self, column: usize) {
        self.favoured = Some(column);
    }

    fn lines(&self) -> impl Iterator<Item = &Vec<Cell>> {
        std::iter::once(&self.headers).chain(&self.rows)
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths = vec![0; self.lines().map(Vec::len).max().unwrap_or(0)];
        for line in self.lines() {
            for (width, cell) in widths.iter_mut().zip(line) {
                *width = cell.width().max(*width);
            }
        }
        let Some((columns, gap)) = self.room else { return widths };
        let mut left = columns.saturating_sub(gap * widths.len().saturating_sub(1));
        if widths.iter().sum::<usize>() <= left {
            return widths;
        }
        left = left.saturating_sub(self.kept_whole.iter().filter_map(|kept| widths.get(*kept)).sum());
        let mut cuttable: Vec<usize> = (0..widths.len()).filter(|column| !self.kept_whole.contains(column)).collect();
        if let Some(favoured) = self.favoured {
            cuttable.retain(|column| *column != favoured);
            let others: usize = cuttable.iter().map(|column| widths[*column].min(LEAST)).sum();
            widths[favoured] = widths[favoured].min(left.saturating_sub(others).max(1));
            left = left.saturating_sub(widths[favoured]);
        }
        // Those that need less than their share have what they need; the others share the rest.
        cuttable.sort_unstable_by_key(|column| widths[*column]);
        for (place, column) in cuttable.iter().enumerate() {
            let share = left / (cuttable.len() - place);
            widths[*column] = widths[*column].min(share.max(1));
            left = left.saturating_sub(widths[*column]);
        }
        widths
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let widths = self.widths();
        let (before, gap) = self.room.map_or((" ", 2), |(_, gap)| ("", gap));
        for (place, line) in self.lines().enumerate() {
            let mut text = before.to_owned();
            for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
                if column > 0 {
                    text.extend(std::iter::repeat_n(' ', gap));
                }
                cell.write(*width, &mut text);
            }
            f.write_str(if place > 0 { "\n" } else { "" })?;
            f.write_str(text.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(room: Option<(usize, usize)>) -> Table {
        let mut table = Table::new(["name", "count", "why"].map(Cell::new).into(), room);
        table.add_row([Cell::new("short"), Cell::new(7).right(), Cell::new("none")]);
        table.add_row([Cell::new("a much longer name"), Cell::new(12_345).right(), Cell::new("because of something")]);
        table
    }

    #[test]
    fn columns_stand_below_each_other_in_full_where_there_is_no_edge() {
        let shown = " name                count  why\n short                   7  none\n a much longer name  12345  because of something";
        assert_eq!(table(None).to_string(), shown);
        assert_eq!(table(Some((80, 2))).to_string(), shown.replace("\n ", "\n").trim_start());
    }

    #[test]
    fn long_texts_share_what_short_ones_leave() {
        let shown = table(Some((30, 2))).to_string();
        assert_eq!(shown, "name        count  why\nshort           7  none\na much lo…  12345  because of…");
        assert!(shown.lines().all(|line| width(line) <= 30));
        let mut whole = table(Some((30, 2)));
        whole.keep_whole(&[0]);
        assert_eq!(whole.to_string().lines().nth(2), Some("a much longer name  123…  bec…"));
        assert_eq!(table(Some((3, 2))).to_string().lines().next(), Some("…  …  …"));
    }

    #[test]
    fn what_is_favoured_is_cut_last() {
        let mut table = table(Some((40, 2)));
        table.favour(0);
        assert_eq!(table.to_string().lines().nth(2), Some("a much longer name  12345  because of s…"));
        let mut narrow = Table { room: Some((30, 2)), ..table };
        narrow.keep_whole(&[1]);
        assert_eq!(narrow.to_string().lines().nth(2), Some("a much long…  12345  because …"));
    }

    #[test]
    fn wide_letters_take_two_columns_and_colours_none() {
        let mut table = Table::new(vec![Cell::new("場所"), Cell::new("b")], Some((8, 1)));
        table.add_row([Cell::new("東京都千代田区").color(Color::Red), Cell::new("x").weight(Weight::Bold)]);
        assert_eq!(table.to_string(), "場所   b\n\u{1b}[31m東京…\u{1b}[0m  \u{1b}[1mx\u{1b}[0m");
    }
}
