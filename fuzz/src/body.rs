//! Request bodies made of a route's own table of fields, so that most of them are taken and the guards behind the reader run.

use arbitrary::{Result, Unstructured};
use runguard_guards::input::{Field, Kind};
use serde_json::{Map, Value, json};

/// Few names, so that requests meet: most rules need a history.
const NAMES: [&str; 6] = ["a", "b", "search", "extract_order_number", "refund-policy", "ü\u{200b}"];
const TEXTS: [&str; 8] = [
    "where is my package",
    "order #12345678 please",
    "john at example dot com",
    "password=hunter2 4111 1111 1111 1111",
    "it is jane@example.com",
    "",
    "\u{0}\u{ffff}\u{202e}",
    "no match for ORD-########",
];

/// A body for a route with these fields. One in sixteen members is of any form at all.
pub(crate) fn body(fields: &[Field], bytes: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut members = Map::new();
    for field in fields {
        if field.required || bytes.ratio(3, 4)? {
            let value = if bytes.ratio(1, 64)? { anything(bytes, 3)? } else { fitting(field, bytes)? };
            members.insert(field.name.to_owned(), value);
        }
    }
    if bytes.ratio(1, 32)? {
        members.insert(text(bytes)?, anything(bytes, 2)?);
    }
    Ok(Value::Object(members).to_string().into_bytes())
}

fn fitting(field: &Field, bytes: &mut Unstructured<'_>) -> Result<Value> {
    if bytes.ratio(1, 8)? {
        return Ok(serde_json::from_str(field.example).unwrap_or_default());
    }
    Ok(match field.kind {
        Kind::Id | Kind::Label => json!(*bytes.choose(&NAMES)?),
        Kind::Text | Kind::Name | Kind::Hash if field.required => json!(*bytes.choose(&TEXTS[..5])?),
        Kind::Text | Kind::Name | Kind::Hash => json!(text(bytes)?),
        Kind::Confidence if bytes.ratio(1, 8)? => json!(*bytes.choose(&[None, Some("")])?),
        Kind::Fraction | Kind::Confidence => json!(f64::from(bytes.int_in_range(0..=100_u8)?) / 100.0),
        Kind::Whole(at_least) => {
            let more =
                if bytes.ratio(3, 4)? { u64::from(bytes.arbitrary::<u8>()?) } else { bytes.int_in_range(0..=9_007_199_254_740_000)? };
            json!(at_least.saturating_add(more))
        }
        Kind::Dollars if bytes.arbitrary()? => json!(format!("{}.{:03}", bytes.arbitrary::<u16>()?, bytes.int_in_range(0..=999_u16)?)),
        Kind::Dollars | Kind::Amount => json!(f64::from(bytes.arbitrary::<u16>()?) / 1000.0),
        Kind::Flag => json!(bytes.arbitrary::<bool>()?),
        Kind::OneOf(choices) => json!(*bytes.choose(choices)?),
        Kind::Any => anything(bytes, 4)?,
        Kind::Names => {
            let length = bytes.int_in_range(0..=3_u8)?;
            Value::Array((0..length).map(|_| Ok(json!(*bytes.choose(&NAMES)?))).collect::<Result<_>>()?)
        }
        Kind::Steps => {
            let length = bytes.int_in_range(0..=5_u8)?;
            Value::Array((0..length).map(|_| step(bytes)).collect::<Result<_>>()?)
        }
        Kind::Scopes => {
            let length = bytes.int_in_range(0..=3_u8)?;
            Value::Array((0..length).map(|_| scope(bytes)).collect::<Result<_>>()?)
        }
    })
}

fn step(bytes: &mut Unstructured<'_>) -> Result<Value> {
    let hash = *bytes.choose(&["a", "b", "c"])?;
    Ok(match bytes.int_in_range(0..=3_u8)? {
        0 => json!({"id": *bytes.choose(&NAMES)?, "user": true}),
        1 => json!({"id": *bytes.choose(&NAMES)?, "said": hash, "result": *bytes.choose(&[None, Some("x")])?}),
        2 => json!({"id": *bytes.choose(&NAMES)?, "tool": *bytes.choose(&NAMES)?, "args": hash, "error": "e"}),
        _ => {
            json!({"id": *bytes.choose(&NAMES)?, "tool": *bytes.choose(&NAMES)?, "args": hash, "result": *bytes.choose(&["x", "y"])?, "round": hash})
        }
    })
}

fn scope(bytes: &mut Unstructured<'_>) -> Result<Value> {
    Ok(json!({
        "per": *bytes.choose(&["run", "tenant", "key", "model", "team"])?,
        "name": *bytes.choose(&NAMES)?,
        "period": *bytes.choose(&[None, Some("day"), Some("week"), Some("month")])?,
        "max_usd": f64::from(bytes.arbitrary::<u16>()?) / 1000.0,
    }))
}

fn text(bytes: &mut Unstructured<'_>) -> Result<String> {
    if bytes.ratio(1, 2)? { Ok((*bytes.choose(&TEXTS)?).to_owned()) } else { bytes.arbitrary() }
}

fn anything(bytes: &mut Unstructured<'_>, depth: u8) -> Result<Value> {
    Ok(match bytes.int_in_range(0..=if depth == 0 { 5 } else { 7_u8 })? {
        0 => Value::Null,
        1 => json!(bytes.arbitrary::<bool>()?),
        2 => json!(bytes.arbitrary::<i64>()?),
        3 => json!(bytes.arbitrary::<f64>()?),
        4 | 5 => json!(text(bytes)?),
        6 => {
            let length = bytes.int_in_range(0..=4_u8)?;
            Value::Array((0..length).map(|_| anything(bytes, depth - 1)).collect::<Result<_>>()?)
        }
        _ => {
            let length = bytes.int_in_range(0..=4_u8)?;
            Value::Object(
                (0..length)
                    .map(|_| Ok(((*bytes.choose(&["query", "path", "id", "q"])?).to_owned(), anything(bytes, depth - 1)?)))
                    .collect::<Result<_>>()?,
            )
        }
    })
}
