//! Text of users, models and tools where somebody reads it: it must not steer what shows it, nor end what it stands in.

use crate::text::cut;

/// Whether a character steers a terminal or a page instead of being shown: control characters (C0, DEL, C1), the marks that turn
/// the direction of writing (a reader would see another text than the one that is there), and line separators.
pub fn steers(letter: char) -> bool {
    let turns = matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    letter.is_control() || turns || matches!(letter, '\u{2028}' | '\u{2029}')
}

/// With a dot for everything that steers.
pub fn dotted(text: &str) -> String {
    text.chars().map(|letter| if steers(letter) { '·' } else { letter }).collect()
}

/// The first `chars` characters, with a dot for everything that steers, and three where it was cut.
pub fn shortened(text: &str, chars: usize) -> String {
    let start = cut(text, chars);
    let end = if start.len() < text.len() { "…" } else { "" };
    dotted(start) + end
}

/// One line, with blanks for everything that steers.
pub fn one_line(text: &str) -> String {
    text.trim().chars().map(|letter| if steers(letter) { ' ' } else { letter }).collect()
}

/// As a cell of a CSV file: quoted where needed, and a text that a spreadsheet would run as a formula has an apostrophe before it.
///
/// ```
/// use runguard_core::shown::csv_cell;
///
/// assert_eq!(csv_cell("a,\"b\""), "\"a,\"\"b\"\"\"");
/// assert_eq!(csv_cell("=1+1"), "'=1+1");
/// ```
pub fn csv_cell(text: &str) -> String {
    let text = if text.starts_with(['=', '+', '-', '@', '\t', '\r']) { format!("'{text}") } else { text.to_owned() };
    if text.contains(['"', ',', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

/// As text or the value of an attribute of HTML.
pub fn html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            letter => out.push(letter),
        }
    }
    out
}

/// As a string of TOML.
pub fn toml(text: &str) -> String {
    let escaped: String = text
        .chars()
        .map(|letter| match letter {
            '"' | '\\' => format!("\\{letter}"),
            letter if letter.is_control() => format!("\\u{:04X}", letter as u32),
            letter => letter.to_string(),
        })
        .collect();
    format!("\"{escaped}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_steers_and_nothing_ends_what_it_stands_in() {
        assert_eq!(dotted("a\u{1b}[2J\u{202e}b\u{2028}é"), "a·[2J·b·é");
        assert_eq!((shortened("a\nbc", 3), shortened("a\nb", 3)), ("a·b…".to_owned(), "a·b".to_owned()));
        assert_eq!(one_line("  a\nb\u{202e}c d\n"), "a b c d");
        assert_eq!(html("<a href=\"x\">'&'</a>"), "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/a&gt;");
        assert_eq!(toml("a\"b\\c\n"), "\"a\\\"b\\\\c\\u000A\"");
    }
}
