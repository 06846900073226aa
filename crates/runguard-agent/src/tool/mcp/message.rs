//! What is said to a server and heard from it: JSON-RPC, of which an agent needs the questions, their answers and two notices.

use serde_json::{Map, Value, json};

pub(super) type Object = Map<String, Value>;
pub(super) type Answer = Result<Value, Refused>;

/// The newest protocol that begins with `initialize`, and those before it.
pub(super) const INITIALIZED: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
/// The first without: each question says what was agreed upon.
pub(super) const STATELESS: &str = "2026-07-28";

/// The server's own word that it will not.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Refused {
    pub(super) code: i64,
    pub(super) message: String,
    pub(super) data: Option<Value>,
}

/// Why a question has no answer.
#[derive(Debug)]
pub(super) enum Unanswered {
    Refused(Refused),
    /// It was not heard, and may be said again.
    Unheard(String),
    /// The connection is of no further use; how far the question got is not known.
    Lost(String),
    /// This question failed, over a connection that is good.
    Failed(String),
}

/// What a server says.
#[derive(Debug, PartialEq)]
pub(super) enum Said {
    /// To the question of this number; a refusal may come before the question was understood, and names none.
    Answer(Option<u64>, Answer),
    /// A question of its own, to be answered with this.
    Question(Value),
    /// Nothing that concerns us.
    Notice,
}

impl Said {
    /// `None` when it is no message.
    pub(super) fn read(mut value: Value) -> Option<Self> {
        let message = value.as_object_mut()?;
        let id = message.remove("id").filter(|id| !id.is_null());
        if let Some(method) = message.get("method") {
            let method = method.as_str()?;
            return Some(id.map_or(Self::Notice, |id| Self::Question(reply(&id, method))));
        }
        // Some give back a text of the number they were given.
        let number = id.and_then(|id| id.as_u64().or_else(|| id.as_str().and_then(|text| text.parse().ok())));
        if let Some(error) = message.remove("error") {
            let text = error.get("message").and_then(Value::as_str).unwrap_or("it does not say why");
            let refused = Refused {
                code: error.get("code").and_then(Value::as_i64).unwrap_or_default(),
                message: text.to_owned(),
                data: error.get("data").filter(|data| !data.is_null()).cloned(),
            };
            return Some(Self::Answer(number, Err(refused)));
        }
        message.remove("result").map(|result| Self::Answer(number, Ok(result)))
    }
}

/// We are there; we have no model, no folders and no person to lend.
fn reply(id: &Value, method: &str) -> Value {
    if method == "ping" {
        return json!({ "jsonrpc": "2.0", "id": id, "result": {} });
    }
    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32601, "message": "Method not found" } })
}

pub(super) fn question(id: u64, method: &str, params: Object) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

pub(super) fn notice(method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "method": method, "params": params })
}

pub(super) fn given_up(id: u64) -> Value {
    notice("notifications/cancelled", json!({ "requestId": id, "reason": "the caller went away" }))
}

/// What a question of the protocol without `initialize` says beside itself.
pub(super) fn context() -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": STATELESS,
        "io.modelcontextprotocol/clientInfo": us(),
        "io.modelcontextprotocol/clientCapabilities": {},
    })
}

pub(super) fn us() -> Value {
    json!({ "name": "runguard-agent", "version": env!("CARGO_PKG_VERSION") })
}

/// A tool as the server lists it.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) name: String,
    pub(super) title: Option<String>,
    pub(super) description: Option<String>,
    pub(super) input_schema: Object,
    pub(super) is_read_only: Option<bool>,
}

/// One page of the list, and where the next begins; `None` when it is something else.
pub(super) fn page(mut result: Value) -> Option<(Vec<Listed>, Option<String>)> {
    let next = result.get("nextCursor").and_then(Value::as_str).map(str::to_owned);
    let Some(Value::Array(tools)) = result.get_mut("tools").map(Value::take) else { return None };
    let tools = tools.into_iter().map(|mut tool| {
        let text = |name: &str| tool.get(name).and_then(Value::as_str).map(str::to_owned);
        Some(Listed {
            name: text("name")?,
            title: text("title"),
            description: text("description"),
            is_read_only: tool.pointer("/annotations/readOnlyHint").and_then(Value::as_bool),
            input_schema: match tool.get_mut("inputSchema").map(Value::take) {
                Some(Value::Object(schema)) => schema,
                _ => Object::new(),
            },
        })
    });
    Some((tools.collect::<Option<_>>()?, next))
}

/// The arguments that a tool's schema wants as headers too (`x-mcp-header`), so that proxies can route by them.
pub(super) fn as_headers(schema: &Value, arguments: &Value, found: &mut Vec<(String, String)>) {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return };
    for (name, property) in properties {
        let Some(value) = arguments.get(name) else { continue };
        let text = match value {
            Value::String(text) => Some(text.clone()),
            Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
            _ => None,
        };
        if let (Some(header), Some(text)) = (property.get("x-mcp-header").and_then(Value::as_str), text) {
            found.push((format!("mcp-param-{header}"), text));
        }
        as_headers(property, value, found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_told_apart() {
        let read = |text: &str| Said::read(serde_json::from_str(text).unwrap());
        assert_eq!(read(r#"{"id":3,"result":{"a":1}}"#), Some(Said::Answer(Some(3), Ok(json!({ "a": 1 })))));
        assert_eq!(read(r#"{"id":"3","result":null}"#), Some(Said::Answer(Some(3), Ok(Value::Null))));
        let refused = Refused { code: -1, message: "no".to_owned(), data: None };
        assert_eq!(read(r#"{"id":null,"error":{"code":-1,"message":"no","data":null}}"#), Some(Said::Answer(None, Err(refused))));
        assert_eq!(read(r#"{"method":"notifications/progress","params":{}}"#), Some(Said::Notice));
        let Some(Said::Question(pong)) = read(r#"{"id":"a","method":"ping"}"#) else { panic!() };
        assert_eq!(pong, json!({ "jsonrpc": "2.0", "id": "a", "result": {} }));
        let Some(Said::Question(no)) = read(r#"{"id":0,"method":"sampling/createMessage"}"#) else { panic!() };
        assert_eq!((&no["id"], &no["error"]["code"]), (&json!(0), &json!(-32601)));
        assert_eq!((read("{}"), read("[]"), read("\"text\"")), (None, None, None));
    }

    #[test]
    fn annotated_arguments_become_headers_at_any_depth() {
        let schema = json!({ "properties": {
            "region": { "type": "string", "x-mcp-header": "Region" },
            "where": { "type": "object", "properties": { "floor": { "type": "integer", "x-mcp-header": "Floor" } } },
            "absent": { "type": "string", "x-mcp-header": "Absent" },
            "plain": { "type": "string" },
        }});
        let mut found = Vec::new();
        as_headers(&schema, &json!({ "region": "eu", "where": { "floor": 3 }, "plain": "x" }), &mut found);
        assert_eq!(found, [("mcp-param-Region".to_owned(), "eu".to_owned()), ("mcp-param-Floor".to_owned(), "3".to_owned())]);
    }
}
