//! All that is wrong with a settings file at once: it is read again without what was wrong, until nothing is.

use runguard_core::nearest;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::fmt::Write as _;
use toml::de::{DeTable, DeValue, Deserializer};

const MOST: usize = 20;

/// The settings, as far as what was wrong can be left out, and what was wrong.
///
/// They are read by way of JSON, as those of a session are: what reads them is in the program once. A line itself is never repeated: headers and
/// variables of a server may stand in it, and they are secrets.
pub(super) fn read<S: DeserializeOwned>(text: &str) -> (Option<S>, Vec<String>) {
    let said = |problem: &toml::de::Error| {
        let line = problem.span().map_or(1, |span| line_at(text, span.start));
        (line, nearest::told(problem.message().trim_start_matches("JSON ").trim_end()))
    };
    let in_order = |mut problems: Vec<(usize, String)>| {
        problems.sort_by_key(|(line, _)| *line);
        problems.into_iter().map(|(line, problem)| format!("line {line}: {problem}")).collect()
    };
    let mut table = match DeTable::parse(text) {
        Ok(table) => table,
        Err(problem) => return (None, in_order(vec![said(&problem)])),
    };
    let fits = |tree: Value| serde_json::from_value::<S>(tree).map_err(|problem| problem.to_string());
    let mut problems = Vec::new();
    let mut left_out: Vec<String> = Vec::new();
    // JSON has no word for them, and would take them for left out.
    for place in places(&table).into_iter().filter(|place| place.is_no_number).take(MOST) {
        let key = place.path.join(".");
        problems.push((line_at(text, place.offset), format!("`{key}` cannot be infinite or no number; leave it out to have none")));
        left_out.extend(leave_out(table.get_mut(), &place.path));
    }
    // Each time something is left out, so it ends.
    loop {
        let tree = match Value::deserialize(Deserializer::from(table.clone())) {
            Ok(tree) => tree,
            // A number that is none.
            Err(problem) => {
                problems.push(said(&problem));
                return (None, in_order(problems));
            }
        };
        let problem = match fits(tree.clone()) {
            Ok(settings) => return (Some(settings), in_order(problems)),
            Err(problem) => problem,
        };
        let place = place_of_mistake(&table, &tree, &problem, &|tree| fits(tree).is_err_and(|other| other == problem));
        // What is missing because it was left out has been told.
        if missing(&problem).is_none_or(|name| !left_out.iter().any(|key| key == name)) {
            problems.push((line_at(text, place.offset), nearest::told(&problem)));
        }
        match leave_out(table.get_mut(), &place.path) {
            Some(key) if problems.len() < MOST => left_out.push(key),
            _ => return (None, in_order(problems)),
        }
    }
}

fn line_at(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset.min(text.len())].split(|byte| *byte == b'\n').count()
}

/// A value that cannot be meant, with the line of its key, or of the nearest thing above it that stands there.
pub(super) fn placed(text: &str, key: &str, problem: &str) -> String {
    let said = format!("`{key}` {problem}");
    let path: Vec<&str> = key.split('.').collect();
    let all = DeTable::parse(text).map(|table| places(&table)).unwrap_or_default();
    let nearest = all.into_iter().filter(|place| path.starts_with(&place.path.iter().map(String::as_str).collect::<Vec<_>>()));
    match nearest.max_by_key(|place| place.path.len()) {
        Some(place) if !place.path.is_empty() => format!("line {}: {said}", line_at(text, place.offset)),
        _ => said,
    }
}

/// Something that stands in the file: an entry of a table under its key, one of a list under its number.
#[derive(Debug, Default)]
struct Place {
    path: Vec<String>,
    offset: usize,
    is_no_number: bool,
}

/// All that stands there, each before what is in it; the file itself is the first.
fn places(file: &toml::Spanned<DeTable<'_>>) -> Vec<Place> {
    fn within(value: &DeValue<'_>, above: &[String], found: &mut Vec<Place>) {
        let mut add = |step: String, offset: usize, value: &DeValue<'_>| {
            let path = [above, &[step]].concat();
            found.push(Place { path: path.clone(), offset, is_no_number: is_no_number(value) });
            within(value, &path, found);
        };
        match value {
            DeValue::Table(table) => {
                table.iter().for_each(|(key, value)| add(key.get_ref().to_string(), key.span().start, value.get_ref()));
            }
            DeValue::Array(items) => {
                items.iter().enumerate().for_each(|(number, item)| add(number.to_string(), item.span().start, item.get_ref()));
            }
            // JSON has it as a table of one entry.
            DeValue::Datetime(_) => {
                let offset = found.last().map_or(0, |place| place.offset);
                found.push(Place { path: above.to_vec(), offset, is_no_number: false });
            }
            DeValue::String(_) | DeValue::Integer(_) | DeValue::Float(_) | DeValue::Boolean(_) => {}
        }
    }
    let mut found = vec![Place::default()];
    within(&DeValue::Table(file.get_ref().clone()), &[], &mut found);
    found
}

/// `inf`, `nan`, and what is too large.
fn is_no_number(value: &DeValue<'_>) -> bool {
    match value {
        DeValue::Float(float) => !float.as_str().parse::<f64>().is_ok_and(f64::is_finite),
        DeValue::Integer(_) | DeValue::String(_) | DeValue::Boolean(_) | DeValue::Datetime(_) | DeValue::Table(_) | DeValue::Array(_) => {
            false
        }
    }
}

/// Where this problem is from. What reads settings goes through them in their order and stops at the first mistake.
fn place_of_mistake(file: &toml::Spanned<DeTable<'_>>, tree: &Value, problem: &str, has_it: &dyn Fn(Value) -> bool) -> Place {
    let mut all = places(file);
    let found = match missing(problem) {
        // What is missing is seen at the end of its table: put there, it changes what is said. So it does in tables that end before, and in none after.
        Some(name) => {
            let changes = |place: &Place| {
                let mut whole = tree.clone();
                let table = at(&mut whole, &place.path).and_then(Value::as_object_mut).filter(|table| !table.contains_key(name));
                let is_put_there = table.map(|table| table.insert(name.to_owned(), Value::Null)).is_some();
                is_put_there && !has_it(whole)
            };
            let changing = (0..all.len()).filter(|number| changes(&all[*number]));
            // What is within another ends before it.
            changing.fold(None, |last: Option<usize>, next| last.filter(|last| all[next].path.starts_with(&all[*last].path)).or(Some(next)))
        }
        // The last entry of the shortest beginning that has the mistake.
        None => (1..all.len()).find(|count| {
            let mut left = *count;
            has_it(beginning(tree, &mut left))
        }),
    };
    all.swap_remove(found.unwrap_or(0))
}

/// The name of what a problem says is missing.
fn missing(problem: &str) -> Option<&str> {
    problem.strip_prefix("missing field `")?.split('`').next()
}

fn at<'a>(tree: &'a mut Value, path: &[String]) -> Option<&'a mut Value> {
    path.iter().try_fold(tree, |value, step| match value {
        Value::Object(inner) => inner.get_mut(step),
        Value::Array(items) => items.get_mut(step.parse::<usize>().ok()?),
        _ => None,
    })
}

/// As much of it as its first `left` places are.
fn beginning(value: &Value, left: &mut usize) -> Value {
    let mut one_more = |value: &Value| {
        *left = left.checked_sub(1)?;
        Some(beginning(value, left))
    };
    match value {
        Value::Object(inner) => {
            Value::Object(inner.iter().map_while(|(key, value)| Some((key.clone(), one_more(value)?))).collect::<Map<_, _>>())
        }
        Value::Array(items) => Value::Array(items.iter().map_while(one_more).collect()),
        other => other.clone(),
    }
}

/// Removes the innermost entry of a table on the way to this place, and says what it is called.
fn leave_out(table: &mut DeTable<'_>, path: &[String]) -> Option<String> {
    let (key, rest) = path.split_first()?;
    let inner = match table.get_mut(key.as_str())?.get_mut() {
        DeValue::Table(inner) => leave_out(inner, rest),
        DeValue::Array(items) => {
            rest.split_first().and_then(|(number, rest)| match items.get_mut(number.parse::<usize>().ok()?)?.get_mut() {
                DeValue::Table(inner) => leave_out(inner, rest),
                _ => None,
            })
        }
        _ => None,
    };
    inner.or_else(|| table.remove(key.as_str()).map(|_| key.clone()))
}

/// A line for each, with the file it stands in.
pub(super) fn listed(file: Option<&str>, problems: &[String]) -> String {
    let mut text = String::new();
    for problem in problems {
        let end = if text.is_empty() { "" } else { "\n" };
        let _ = match file {
            Some(file) => write!(text, "{end}{file}: {problem}"),
            None => write!(text, "{end}{problem}"),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use crate::settings::{Settings, SettingsError};

    fn problems(text: &str) -> Vec<String> {
        match Settings::from_toml(text) {
            Err(SettingsError::Wrong { problems, .. }) => problems,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_no_number_is_not_taken_for_left_out() {
        let text = "[provider]\nkind = \"openai\"\nmodel = \"m\"\ntemperature = nan\n[limits]\ncost_limit = inf\n[prices.\"m\"]\ninput = 1e999\noutput = 2\ncache_read = -inf\n";
        let told = problems(text);
        let lines: Vec<&str> = told.iter().filter_map(|problem| problem.split(':').next()).collect();
        assert_eq!(lines, ["line 4", "line 6", "line 8", "line 10"], "{told:?}");
        assert!(told.iter().all(|problem| problem.contains("cannot be infinite or no number")), "{told:?}");
    }

    #[test]
    fn every_mistake_is_told_at_once_with_what_was_meant() {
        let text = r#"
sytem = "You help."
[provider]
kind = "opnai"
model = ""
max_token = 10
[limits]
max_steps = "ten"
timeout = 5
colour = 1
[tools]
allow = ["read_fil", "http_get", 3]
[[mcp]]
name = "files"
comand = ["x"]
"#;
        let told = problems(text);
        let expected = [
            ("line 2: unknown field `sytem`", "did you mean `system`?"),
            ("line 4: unknown value `opnai`", "did you mean `openai`?"),
            ("line 6: unknown field `max_token`", "did you mean `max_tokens`?"),
            ("line 8: invalid type: string", ""),
            ("line 10: unknown field `colour`", "known are "),
            ("line 12: invalid type: integer", ""),
            ("line 15: unknown field `comand`", "did you mean `command`?"),
        ];
        for (begin, hint) in expected {
            assert!(told.iter().any(|problem| problem.starts_with(begin) && problem.contains(hint)), "{begin} {hint} is not in {told:#?}");
        }
        assert!(told.iter().all(|problem| !problem.contains("missing field")), "what was left out is not missing: {told:#?}");
    }

    #[test]
    fn values_that_cannot_be_meant_are_told_together_too() {
        let text =
            "[provider]\nkind = \"openai\"\nmodel = \" \"\nmax_retries = 101\n[limits]\nmax_steps = 0\n[tools]\nallow = [\"read_fil\"]\n";
        let told = problems(text);
        assert_eq!(told.len(), 4, "{told:#?}");
        assert!(told[0].starts_with("line 3: `provider.model` is empty") && told[3].contains("did you mean `read_file`?"), "{told:#?}");
    }

    #[test]
    fn a_value_that_cannot_be_meant_has_its_line() {
        let text = "system = \"x\"\n[provider]\nkind = \"scripted\"\nmodel = \"m\"\n\n[limits]\nmax_steps = 0\n[[mcp]]\nname = \"a\"\n\
                    command = [\"x\"]\n[[mcp]]\nname = \"\"\nurl = \"http://x\"\n[[mcp]]\nname = \"c\"\n";
        let told = problems(text);
        for begin in [
            "line 2: `provider.script` is missing",
            "line 7: `limits.max_steps` must be",
            "line 12: `mcp.1.name` is empty",
            "line 14: `mcp.2` 'c' needs",
        ] {
            assert!(told.iter().any(|problem| problem.starts_with(begin)), "{begin} is not in {told:#?}");
        }
        let inline = problems("[provider]\nkind = \"openai\"\nmodel = \"m\"\n[tools]\nallow = [\n  \"shell\",\n  \"rm\",\n]\n");
        assert!(inline[0].starts_with("line 5: `tools.allow` names 'rm'"), "{inline:#?}");
    }

    #[test]
    fn each_has_the_line_it_stands_in_though_others_say_the_same() {
        let told = problems(
            "name = \"agent\"\n[provider]\nkind = \"openai\"\nmodel = \"m\"\nmax_tokens = \"ten\"\nmax_retries = \"ten\"\n\
             [tools]\nallow = [\n  \"shell\",\n  3,\n]\n[[mcp]]\nname = \"a\"\ncommand = [\"x\"]\n[[mcp]]\ncommand = [\"x\"]\n[provider.extra]\nsince = 2026-01-01\n\
             [limits]\nmax_steps = 2026-01-01\n",
        );
        let expected = [
            "line 5: invalid type: string \"ten\", expected a whole number from 0",
            "line 6: invalid type: string \"ten\", expected a whole number from 0",
            "line 10: invalid type: integer `3`, expected a string",
            "line 15: missing field `name`",
            "line 20: invalid type: map",
        ];
        assert_eq!(told.len(), expected.len(), "{told:#?}");
        for (problem, begin) in told.iter().zip(expected) {
            assert!(problem.starts_with(begin), "{begin} is not where it belongs in {told:#?}");
        }
    }

    #[test]
    fn what_is_missing_is_not_taken_for_what_the_table_around_it_has() {
        #[derive(Debug, serde::Deserialize)]
        struct Outer {
            #[allow(dead_code, reason = "it is only read")]
            name: String,
            #[allow(dead_code, reason = "it is only read")]
            part: Inner,
        }
        #[derive(Debug, serde::Deserialize)]
        struct Inner {
            #[allow(dead_code, reason = "it is only read")]
            name: String,
        }
        let (read, told) = super::read::<Outer>("name = \"a\"\n\n[part]\nother = 1\n");
        assert!(read.is_none() && told == ["line 3: missing field `name`"], "{told:#?}");
    }

    #[test]
    fn what_is_missing_is_told_beside_what_is_wrong() {
        let told = problems("[provider]\nkind = \"openai\"\n[limits]\nmax_stps = 3\n");
        assert_eq!(told.len(), 2, "{told:#?}");
        assert!(told.iter().any(|problem| problem.contains("missing field `model`")), "{told:#?}");
        assert!(told.iter().any(|problem| problem.contains("did you mean `max_steps`?")), "{told:#?}");
        assert_eq!(problems("[provider\n").len(), 1);
        let large = "[provider]\nkind = \"openai\"\nmodel = \"m\"\nmax_tokens = 99999999999999999999\n";
        assert_eq!(problems(large), ["line 4: number out of range"]);
    }
}
