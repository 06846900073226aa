//! Reads the arguments of a call, and tells the model what is wrong with them in words it can act on.
//!
//! By hand and not with serde, whose errors name the wrong type but not the field it stands in.

use serde_json::{Map, Value};
use std::ops::RangeInclusive;

pub(super) struct Arguments<'a> {
    fields: &'a Map<String, Value>,
}

impl<'a> Arguments<'a> {
    /// `known` are all the fields the tool has: a misspelt one is told and not passed over.
    pub(super) fn of(arguments: &'a Value, known: &[&str]) -> Result<Self, String> {
        let Value::Object(fields) = arguments else {
            return Err(format!("the arguments must be an object with {}, not {}", quoted(known), kind_of(arguments)));
        };
        match fields.keys().find(|name| !known.contains(&name.as_str())) {
            Some(unknown) => Err(format!("there is no argument '{}': this tool takes {}", unknown.escape_debug(), quoted(known))),
            None => Ok(Self { fields }),
        }
    }

    /// Models write null for what they leave out.
    fn get(&self, name: &str) -> Option<&'a Value> {
        self.fields.get(name).filter(|value| !value.is_null())
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<&'a str>, String> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(format!("'{name}' must be a string, not {}", kind_of(other))),
        }
    }

    pub(super) fn required_text(&self, name: &str) -> Result<&'a str, String> {
        self.text(name)?.ok_or_else(|| format!("'{name}' is missing: it must be a string"))
    }

    pub(super) fn number(&self, name: &str, allowed: RangeInclusive<u64>) -> Result<Option<u64>, String> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let wrong = |given: String| {
            let (least, most) = (allowed.start(), allowed.end());
            let range = if *most == u64::MAX { format!("of at least {least}") } else { format!("from {least} to {most}") };
            format!("'{name}' must be a whole number {range}, not {given}")
        };
        match value.as_u64() {
            Some(number) if allowed.contains(&number) => Ok(Some(number)),
            Some(number) => Err(wrong(number.to_string())),
            None => Err(wrong(if value.is_number() { value.to_string() } else { kind_of(value).to_owned() })),
        }
    }
}

fn quoted(names: &[&str]) -> String {
    names.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ")
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::Arguments;
    use serde_json::json;

    #[test]
    fn what_is_wrong_is_named() {
        let known = ["path", "limit"];
        let error = |value| Arguments::of(&value, &known).err().unwrap();
        assert_eq!(error(json!("x")), "the arguments must be an object with 'path', 'limit', not a string");
        assert_eq!(error(json!({"paht": "x"})), "there is no argument 'paht': this tool takes 'path', 'limit'");

        let value = json!({"path": 3, "limit": null});
        let arguments = Arguments::of(&value, &known).unwrap();
        assert_eq!(arguments.text("path").unwrap_err(), "'path' must be a string, not a number");
        assert_eq!(arguments.number("limit", 1..=5), Ok(None));

        let value = json!({"limit": 5});
        let arguments = Arguments::of(&value, &known).unwrap();
        assert_eq!(arguments.required_text("path").unwrap_err(), "'path' is missing: it must be a string");
        assert_eq!(arguments.number("limit", 1..=5), Ok(Some(5)));
        assert_eq!(arguments.number("limit", 1..=4).unwrap_err(), "'limit' must be a whole number from 1 to 4, not 5");
        assert_eq!(arguments.number("limit", 6..=u64::MAX).unwrap_err(), "'limit' must be a whole number of at least 6, not 5");

        for (wrong, told) in [(json!("5"), "a string"), (json!(-1), "-1"), (json!(1.5), "1.5"), (json!([1]), "a list")] {
            let value = json!({"limit": wrong});
            let arguments = Arguments::of(&value, &known).unwrap();
            assert_eq!(arguments.number("limit", 1..=4).unwrap_err(), format!("'limit' must be a whole number from 1 to 4, not {told}"));
        }
    }
}
