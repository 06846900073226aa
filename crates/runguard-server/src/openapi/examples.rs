//! What was asked and answered once, beside every operation. `tests/acceptance/test_examples.py` plays it again, and writes the file.

use serde_json::{Map, Value};
use std::sync::LazyLock;

/// By `METHOD /path`: a `request`, `parameters` by name, and `answers` by status.
static EXAMPLES: LazyLock<Map<String, Value>> = LazyLock::new(|| serde_json::from_str(include_str!("examples.json")).unwrap_or_default());

/// Puts them where the document has room for them.
pub(super) fn add(paths: &mut Map<String, Value>) {
    for (path, operations) in paths {
        for (method, operation) in operations.as_object_mut().into_iter().flatten() {
            let Some(example) = EXAMPLES.get(&format!("{} {path}", method.to_uppercase())) else { continue };
            if !example["request"].is_null() {
                operation["requestBody"]["content"]["application/json"]["example"] = example["request"].clone();
            }
            for (status, answer) in example["answers"].as_object().into_iter().flatten().filter(|(_, answer)| !answer.is_null()) {
                // The first form of an answer is the one that is given when nothing is said.
                let content = operation["responses"][status]["content"].as_object_mut();
                if let Some((_, content)) = content.and_then(|content| content.iter_mut().next()) {
                    content["example"] = answer.clone();
                }
            }
            for parameter in operation["parameters"].as_array_mut().into_iter().flatten() {
                let name = parameter["name"].as_str().unwrap_or_default().to_owned();
                if let Some(value) = example["parameters"].get(&name) {
                    parameter["example"] = typed(&parameter["schema"], value);
                }
            }
        }
    }
}

/// A parameter as its schema has it: in an address all of them are text.
fn typed(schema: &Value, value: &Value) -> Value {
    let number = value.as_str().filter(|_| schema["type"] == "integer").and_then(|text| text.parse::<i64>().ok());
    number.map_or_else(|| value.clone(), Value::from)
}
