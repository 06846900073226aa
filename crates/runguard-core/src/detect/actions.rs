//! Actions of Bedrock agents: what one is called, and which of its arguments are the same.
//!
//! They come in three shapes, from a trace, from a return of control and in the event of a Lambda function, with every value as text
//! beside its type. Here they become one, so that the same call is the same wherever it is seen.

use crate::fingerprint;
use serde_json::{Map, Value, json};
use xxhash_rust::xxh3::xxh3_64;

/// One call of an action.
#[derive(Debug, Clone, PartialEq)]
pub struct Action {
    /// `group::function`, or `group::VERB /path`.
    pub name: String,
    /// How many bytes of the name, at its end, are the path. It may name whom the call is about.
    pub path_bytes: usize,
    /// By name, read by their types.
    pub arguments: Value,
}

impl Action {
    /// Of a group's function, or else of its path and verb.
    pub fn new(group: &str, function: &str, verb: &str, path: &str, parameters: Option<&Value>, request_body: Option<&Value>) -> Self {
        let path = if function.is_empty() { path.trim() } else { "" };
        let called =
            if function.is_empty() { format!("{} {path}", verb.trim().to_uppercase()).trim().to_owned() } else { function.to_owned() };
        let name = if called.is_empty() { group.to_owned() } else { format!("{group}::{called}") };
        let none = || Value::Object(Map::new());
        let arguments = json!({"parameters": parameters.map_or_else(none, named), "request_body": request_body.map_or_else(none, body)});
        Self { name, path_bytes: path.len(), arguments }
    }

    /// As Bedrock wrote it, in any of its shapes.
    pub fn read(action: &Map<String, Value>) -> Self {
        let text =
            |names: &[&str]| names.iter().find_map(|name| action.get(*name)?.as_str().filter(|text| !text.is_empty())).unwrap_or_default();
        Self::new(
            text(&["actionGroupName", "actionGroup"]),
            text(&["function"]),
            text(&["verb", "httpMethod"]),
            text(&["apiPath"]),
            action.get("parameters").filter(|given| !given.is_null()),
            action.get("requestBody").filter(|given| !given.is_null()),
        )
    }

    /// A hash of what is the same when it is called again.
    pub fn identity(&self) -> u64 {
        let arguments = fingerprint::of_value(&self.arguments).unwrap_or_default();
        xxh3_64(format!("{}\0{arguments:016x}", self.name).as_bytes())
    }
}

/// Under `content` by media type: a list of properties in traces, `properties` elsewhere.
fn body(given: &Value) -> Value {
    let Some(contents) = given.get("content").and_then(Value::as_object) else { return named(given) };
    contents.iter().map(|(media, content)| (media.clone(), named(content.get("properties").unwrap_or(content)))).collect()
}

/// A list of names and values as one object; what is written otherwise stays as it is.
fn named(given: &Value) -> Value {
    let Some(items) = given.as_array().filter(|items| items.iter().all(|item| item.get("name").is_some())) else {
        return given.clone();
    };
    items.iter().map(|item| (item["name"].as_str().map_or_else(|| item["name"].to_string(), str::to_owned), typed(item))).collect()
}

/// Read by its type, `1.0` and `1`, or two orders of an object's keys, are the same argument.
fn typed(item: &Value) -> Value {
    let value = item.get("value").cloned().unwrap_or_default();
    let kind = item.get("type").and_then(Value::as_str).unwrap_or_default().to_lowercase();
    let is_typed = matches!(kind.as_str(), "integer" | "number" | "boolean" | "array" | "object");
    value.as_str().filter(|_| is_typed).and_then(|text| serde_json::from_str(text).ok()).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(action: Value) -> Action {
        Action::read(action.as_object().unwrap())
    }

    #[test]
    fn the_three_shapes_of_a_call_are_one() {
        let parameters = json!([{"name": "limit", "type": "integer", "value": "1.0"}, {"name": "id", "type": "string", "value": "7"}]);
        let turned = json!([{"name": "id", "type": "string", "value": "7"}, {"name": "limit", "type": "number", "value": "1"}]);
        let trace = read(json!({"actionGroupName": "orders", "verb": "post", "apiPath": "/orders", "parameters": parameters,
            "requestBody": {"content": {"application/json": [{"name": "note", "type": "string", "value": "x"}]}}}));
        let lambda = read(json!({"actionGroup": "orders", "httpMethod": "POST", "apiPath": "/orders", "parameters": turned,
            "requestBody": {"content": {"application/json": {"properties": [{"name": "note", "type": "string", "value": "x"}]}}}}));
        assert_eq!((trace.name.as_str(), trace.path_bytes), ("orders::POST /orders", 7));
        assert_eq!(trace.identity(), lambda.identity());
    }

    #[test]
    fn functions_paths_and_arguments_tell_calls_apart() {
        let of = |function: &str, id: &str| Action::new("orders", function, "", "", Some(&json!([{"name": "id", "value": id}])), None);
        assert_eq!(of("get", "7").name, "orders::get");
        assert_ne!(of("get", "7").identity(), of("cancel", "7").identity());
        assert_ne!(of("get", "7").identity(), of("get", "8").identity());
        assert_eq!(Action::new("orders", "", "", "", None, None).name, "orders");
        assert_eq!(Action::new("orders", "", "get", " /a ", None, None).name, "orders::GET /a");
        let plain = json!({"id": 7});
        assert_eq!(Action::new("orders", "get", "", "", Some(&plain), None).arguments["parameters"], plain);
    }
}
