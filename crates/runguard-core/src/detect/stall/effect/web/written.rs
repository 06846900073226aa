//! Arguments that are written between brackets, as in `click('a51', button="left")`.

use super::MOST_ACTIONS;

/// An argument as it stands between brackets.
pub(super) struct Argument<'a> {
    pub(super) name: Option<&'a str>,
    pub(super) value: &'a str,
}

/// The arguments of a call, from behind its bracket, and what follows it. Quotes are left out; a text that is cut off ends where it is cut.
pub(super) fn arguments(text: &str) -> (Vec<Argument<'_>>, &str) {
    let (mut found, mut rest) = (Vec::new(), text);
    loop {
        rest = rest.trim_start_matches(|letter: char| letter.is_whitespace() || letter == ',');
        match rest.chars().next() {
            None => return (found, rest),
            Some(')') => return (found, &rest[1..]),
            Some(_) => {}
        }
        let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let (name, after) = rest.split_at(rest.find(|letter| !is_of_name(letter)).unwrap_or(rest.len()));
        let name = after.trim_start().strip_prefix('=').filter(|_| !name.is_empty()).map(|after| {
            rest = after.trim_start();
            name
        });
        let (value, after) = match rest.chars().next() {
            Some(quote @ ('\'' | '"')) => quoted(rest, quote),
            _ => rest.split_at(end_of_value(rest)),
        };
        found.push(Argument { name, value: value.trim() });
        rest = after;
        if found.len() > MOST_ACTIONS {
            return (found, "");
        }
    }
}

/// What stands between quotes, and what follows them.
fn quoted(text: &str, quote: char) -> (&str, &str) {
    let triple = [quote; 3].iter().collect::<String>();
    let mark = if text.starts_with(&triple) { &text[..3] } else { &text[..1] };
    let within = &text[mark.len()..];
    let mut at = 0;
    while let Some(next) = within[at..].find([quote, '\\']) {
        at += next;
        if within[at..].starts_with('\\') {
            at += 1 + within[at + 1..].chars().next().map_or(0, char::len_utf8);
        } else if within[at..].starts_with(mark) {
            return (&within[..at], &within[at + mark.len()..]);
        } else {
            at += 1;
        }
    }
    (within, "")
}

/// Where a value without quotes around it ends: a number, a word, a list.
fn end_of_value(text: &str) -> usize {
    let (mut at, mut depth) = (0, 0_u32);
    while let Some(letter) = text[at..].chars().next() {
        match letter {
            '\'' | '"' => {
                at = text.len() - quoted(&text[at..], letter).1.len();
                continue;
            }
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth > 0 => depth -= 1,
            ')' => return at,
            ',' if depth == 0 => return at,
            _ => {}
        }
        at += letter.len_utf8();
    }
    at
}
