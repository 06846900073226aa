//! YAML as JSON, with the place that each part of it had: one reader of plans is enough.

use granit_parser::{Event, Marker, Parser, ScalarStyle};
use serde_json::{Number, Value};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// What repeats itself by reference may grow: no plan is longer than this.
const MOST_BYTES: usize = 16 * 1024 * 1024;

/// Lines and columns, counted from one.
pub(super) type LineAndColumn = (u64, u64);

/// One line of JSON.
#[derive(Debug, Default)]
pub(super) struct Json {
    pub(super) text: String,
    /// Where each part begins, here and in what it was written as.
    places: Vec<(usize, LineAndColumn)>,
}

impl Json {
    /// What stands behind so many bytes, in what was written.
    pub(super) fn place(&self, bytes: usize) -> Option<LineAndColumn> {
        let before = self.places.partition_point(|(begins, _)| *begins < bytes);
        self.places.get(before.saturating_sub(1)).map(|(_, place)| *place)
    }
}

/// What is open where we are.
enum Open {
    List,
    /// The names so far; whether the next is one.
    Names(HashSet<String>, bool),
}

/// A part that is referred to by its number: where it begins, and how deep.
struct Named {
    number: usize,
    begins: usize,
    depth: usize,
}

#[derive(Default)]
struct Writer {
    json: Json,
    open: Vec<Open>,
    begun: Vec<Named>,
    named: HashMap<usize, Range<usize>>,
}

/// # Errors
/// It is no YAML, or has what JSON cannot have, at this place.
pub(super) fn as_json(text: &str) -> Result<Json, LineAndColumn> {
    let mut writer = Writer::default();
    let mut documents = 0;
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| place(error.marker()))?;
        let at = place(&span.start);
        match event {
            Event::DocumentStart(..) => {
                documents += 1;
                if documents > 1 {
                    return Err(at);
                }
            }
            Event::Scalar(text, style, number, tag) => {
                let is_text = style != ScalarStyle::Plain || tag.is_some_and(|tag| tag.is_yaml_core_schema_tag("str"));
                let value = if is_text { Value::from(&*text) } else { plain(&text) };
                writer.begin(at, Some(&text), number)?;
                let is_name = matches!(writer.open.last(), Some(Open::Names(_, true)));
                writer.json.text.push_str(&if is_name { Value::from(&*text) } else { value }.to_string());
                writer.end(at)?;
            }
            Event::SequenceStart(_, number, _) => {
                writer.begin(at, None, number)?;
                writer.open(Open::List, '[');
            }
            Event::MappingStart(_, number, _) => {
                writer.begin(at, None, number)?;
                writer.open(Open::Names(HashSet::new(), true), '{');
            }
            Event::SequenceEnd => writer.close(at, ']')?,
            Event::MappingEnd => writer.close(at, '}')?,
            Event::Alias(number) => {
                let known = writer.named.get(&number).cloned().ok_or(at)?;
                let same = writer.json.text[known].to_owned();
                // Only texts are names, and they are in quotes.
                let name = serde_json::from_str::<String>(&same).ok();
                writer.begin(at, name.as_deref(), 0)?;
                writer.json.text.push_str(&same);
                writer.end(at)?;
            }
            // Beginnings and ends of everything, and comments.
            _ => {}
        }
    }
    if documents == 0 {
        writer.json.text.push_str("null");
    }
    Ok(writer.json)
}

fn place(marker: &Marker) -> LineAndColumn {
    (marker.line() as u64, marker.col() as u64 + 1)
}

impl Writer {
    /// Before each part; `name` is its text, if it can be a name.
    fn begin(&mut self, at: LineAndColumn, name: Option<&str>, number: usize) -> Result<(), LineAndColumn> {
        let text = &mut self.json.text;
        match self.open.last_mut() {
            Some(Open::List) if !text.ends_with('[') => text.push(','),
            Some(Open::Names(known, true)) => {
                if !name.is_some_and(|name| known.insert(name.to_owned())) {
                    return Err(at);
                }
                if known.len() > 1 {
                    text.push(',');
                }
            }
            _ => {}
        }
        self.json.places.push((text.len(), at));
        if number > 0 {
            self.begun.push(Named { number, begins: text.len(), depth: self.open.len() });
        }
        Ok(())
    }

    fn open(&mut self, what: Open, bracket: char) {
        self.json.text.push(bracket);
        self.open.push(what);
    }

    fn close(&mut self, at: LineAndColumn, bracket: char) -> Result<(), LineAndColumn> {
        self.open.pop();
        self.json.text.push(bracket);
        self.end(at)
    }

    /// Behind each part.
    fn end(&mut self, at: LineAndColumn) -> Result<(), LineAndColumn> {
        while let Some(named) = self.begun.pop_if(|named| named.depth == self.open.len()) {
            self.named.insert(named.number, named.begins..self.json.text.len());
        }
        if let Some(Open::Names(_, is_name)) = self.open.last_mut() {
            if *is_name {
                self.json.text.push(':');
            }
            *is_name = !*is_name;
        }
        if self.json.text.len() > MOST_BYTES { Err(at) } else { Ok(()) }
    }
}

/// What stands without quotes.
fn plain(text: &str) -> Value {
    let is_number = text.starts_with(|first: char| first.is_ascii_digit() || matches!(first, '-' | '+' | '.'));
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        text if is_number => {
            let whole = text.parse::<i64>().ok().map(Number::from);
            let number = whole.or_else(|| text.parse().ok().and_then(Number::from_f64));
            number.map_or_else(|| text.into(), Value::Number)
        }
        text => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(text: &str) -> Result<Value, LineAndColumn> {
        as_json(text).map(|json| serde_json::from_str(&json.text).unwrap_or_else(|problem| panic!("{}: {problem}", json.text)))
    }

    #[test]
    fn what_yaml_says_is_said_in_json() {
        for (text, value) in [
            ("", json!(null)),
            ("# nothing\n", json!(null)),
            ("a: [b, 'c d', \"e\\\"f\"]\ng: {h: i, }\n", json!({ "a": ["b", "c d", "e\"f"], "g": { "h": "i" } })),
            ("- 1\n- -2.5\n- '3'\n- !!str 4\n- 1.2.3\n- .5\n- -\n", json!([1, -2.5, "3", "4", "1.2.3", 0.5, [null]])),
            ("yes: true\nno: ~\n7: x\ntext: |\n  two\n  lines\n", json!({ "yes": true, "no": null, "7": "x", "text": "two\nlines\n" })),
            ("a: &x [b, &y c]\nd: *x\n*y : e\n", json!({ "a": ["b", "c"], "d": ["b", "c"], "c": "e" })),
            ("a: []\nb: {}\nc:\n  - []\n  - {}\n", json!({ "a": [], "b": {}, "c": [[], {}] })),
            ("---\nstart: a\n...\n", json!({ "start": "a" })),
        ] {
            assert_eq!(read(text), Ok(value), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_said_is_told_with_its_place() {
        for (text, place) in [("a: 1\na: 2\n", (2, 1)), ("a: 1\n---\nb: 2\n", (2, 1)), ("? [a]\n: b\n", (1, 3)), ("a: *nobody\n", (1, 4))] {
            assert_eq!(read(text), Err(place), "{text}");
        }
        assert!(read("a: [b\n").is_err());
        // Ten times ten times ten … of the same.
        let bomb = (1..12).fold("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned(), |text, n| {
            let before = format!("*a{}", n - 1);
            format!("{text}a{n}: &a{n} [{}]\n", vec![before; 10].join(", "))
        });
        assert!(read(&bomb).is_err());
    }

    #[test]
    fn each_part_knows_where_it_stood() {
        let json = as_json("start: a\nbots:\n  b: [c, 7]\n").unwrap();
        let behind = |part: &str| json.place(json.text.find(part).unwrap() + part.len());
        assert_eq!((behind("\"bots\""), behind("\"c\""), behind("7")), (Some((2, 1)), Some((3, 7)), Some((3, 10))));
    }
}
