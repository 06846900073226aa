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
        let line = problem.span().map_or(1, |span| text.as_bytes()[..span.start.min(text.len())].split(|byte| *byte == b'\n').count());
        format!("line {line}: {}", meant(problem.message().trim_end()))
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

/// "unknown field, expected one of these" with the one that was meant, where one was.
fn meant(message: &str) -> String {
    let mut words = message.split('`').skip(1).step_by(2);
    match (message.split_once(", expected "), words.next()) {
        (Some((unknown, _)), Some(name)) if message.starts_with("unknown ") => format!("{unknown}; {}", nearest::hint(name, words)),
        _ => message.to_owned(),
    }
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
            ("line 4: unknown variant `opnai`", "did you mean `openai`?"),
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
        assert!(told[0].starts_with("`provider.model` is empty") && told[3].contains("did you mean `read_file`?"), "{told:#?}");
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
