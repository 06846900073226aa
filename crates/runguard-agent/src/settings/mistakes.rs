//! All that is wrong with a settings file at once: it is read again without what was wrong, until nothing is.

use runguard_core::nearest;
use serde::de::DeserializeOwned;
use std::fmt::Write as _;
use std::ops::Range;
use toml::de::{DeTable, DeValue, Deserializer};

const MOST: usize = 20;

/// The settings, as far as what was wrong can be left out, and what was wrong.
///
/// A line itself is never repeated: headers and variables of a server may stand in it, and they are secrets.
pub(super) fn read<S: DeserializeOwned>(text: &str) -> (Option<S>, Vec<String>) {
    let said = |problem: &toml::de::Error| {
        let line = problem.span().map_or(1, |span| line_at(text, span.start));
        format!("line {line}: {}", nearest::told(problem.message().trim_end()))
    };
    let mut table = match DeTable::parse(text) {
        Ok(table) => table,
        Err(problem) => return (None, vec![said(&problem)]),
    };
    let mut problems = Vec::new();
    let mut left_out: Vec<String> = Vec::new();
    // Each time something is left out, so it ends.
    loop {
        let problem = match S::deserialize(Deserializer::from(table.clone())) {
            Ok(settings) => return (Some(settings), problems),
            Err(problem) => problem,
        };
        // What is missing because it was left out has been told.
        if !left_out.iter().any(|key| problem.message().starts_with(&format!("missing field `{key}`"))) {
            problems.push(said(&problem));
        }
        match problem.span().and_then(|span| leave_out(table.get_mut(), &span)) {
            Some(key) if problems.len() < MOST => left_out.push(key),
            _ => return (None, problems),
        }
    }
}

fn line_at(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset.min(text.len())].split(|byte| *byte == b'\n').count()
}

/// A value that cannot be meant, with the line of its key, or of the nearest thing above it that stands there.
pub(super) fn placed(text: &str, key: &str, problem: &str) -> String {
    let said = format!("`{key}` {problem}");
    let place = DeTable::parse(text).ok().and_then(|table| place_of(table.get_ref(), key));
    place.map_or(said.clone(), |offset| format!("line {}: {said}", line_at(text, offset)))
}

fn place_of(table: &DeTable<'_>, key: &str) -> Option<usize> {
    let (first, rest) = key.split_once('.').unwrap_or((key, ""));
    let (found, value) = table.iter().find(|(name, _)| name.get_ref() == first)?;
    let inner = match value.get_ref() {
        DeValue::Table(inner) => place_of(inner, rest),
        DeValue::Array(items) => {
            let (number, rest) = rest.split_once('.').unwrap_or((rest, ""));
            let item = number.parse::<usize>().ok().and_then(|number| items.get(number));
            item.map(|item| item.get_ref().as_table().and_then(|inner| place_of(inner, rest)).unwrap_or(item.span().start))
        }
        _ => None,
    };
    inner.or(Some(found.span().start))
}

/// Removes the innermost entry at this place, and says what it is called.
fn leave_out(table: &mut DeTable<'_>, place: &Range<usize>) -> Option<String> {
    for (_, value) in table.iter_mut() {
        let inner = match value.get_mut() {
            DeValue::Table(inner) => leave_out(inner, place),
            DeValue::Array(items) => items.iter_mut().find_map(|item| match item.get_mut() {
                DeValue::Table(inner) => leave_out(inner, place),
                _ => None,
            }),
            _ => None,
        };
        if inner.is_some() {
            return inner;
        }
    }
    let is_here = |key: &toml::Spanned<_>, value: &toml::Spanned<DeValue<'_>>| {
        let within = !value.get_ref().is_table() && value.span().contains(&place.start);
        key.span() == *place || value.span() == *place || within
    };
    let key = table.iter().find(|(key, value)| is_here(key, value)).map(|(key, _)| key.get_ref().to_string())?;
    table.remove(key.as_str()).map(|_| key)
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
    fn what_is_missing_is_told_beside_what_is_wrong() {
        let told = problems("[provider]\nkind = \"openai\"\n[limits]\nmax_stps = 3\n");
        assert_eq!(told.len(), 2, "{told:#?}");
        assert!(told.iter().any(|problem| problem.contains("missing field `model`")), "{told:#?}");
        assert!(told.iter().any(|problem| problem.contains("did you mean `max_steps`?")), "{told:#?}");
        assert_eq!(problems("[provider\n").len(), 1);
    }
}
