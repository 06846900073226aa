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

impl Refused {
    /// Whether it does not know our session: a server that was started anew, and not all say so with 404.
    pub(super) fn is_about_session(&self) -> bool {
        self.message.to_ascii_lowercase().contains("session")
    }
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
    /// It was answered, with something that cannot be read.
    Unreadable,
}

/// What a server says.
#[derive(Debug, PartialEq)]
pub(super) enum ServerMessage {
    /// To the question of this number; a refusal may come before the question was understood, and names none.
    Answer(Option<u64>, Answer),
    /// An answer, to the question of this number if it can be told, that cannot be read.
    Unreadable(Option<u64>),
    /// A question of its own, to be answered with this.
    Question(Value),
    /// Nothing that concerns us.
    Notice,
}

impl ServerMessage {
    /// The messages in a line, an event or a body: one, or several in a list. None where somebody says what concerns nobody.
    pub(super) fn read(text: &[u8]) -> Vec<Self> {
        match serde_json::from_slice(text) {
            Ok(Value::Array(batch)) => batch.into_iter().filter_map(Self::of).collect(),
            Ok(value) => Self::of(value).into_iter().collect(),
            Err(_) => Self::garbled(text).into_iter().collect(),
        }
    }

    fn of(mut value: Value) -> Option<Self> {
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
        match message.remove("result") {
            Some(result) => Some(Self::Answer(number, Ok(result))),
            None => message.contains_key("jsonrpc").then_some(Self::Unreadable(number)),
        }
    }

    /// What is no JSON: an answer that was written wrong, or words for nobody (some print a greeting).
    fn garbled(text: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(text);
        let content = ["\"result\"", "\"error\""].into_iter().filter_map(|name| text.find(name)).min();
        let head = &text[..content.unwrap_or(text.len())];
        if !text.contains("\"jsonrpc\"") || head.contains("\"method\"") {
            return None;
        }
        let behind = head.split_once("\"id\"").map_or("", |(_, behind)| behind.trim_start_matches([' ', ':', '"']));
        let digits = &behind[..behind.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(behind.len())];
        Some(Self::Unreadable(digits.parse().ok()))
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
        let read = |text: &str| {
            let mut said = ServerMessage::read(text.as_bytes());
            assert!(said.len() <= 1, "{said:?}");
            said.pop()
        };
        assert_eq!(read(r#"{"id":3,"result":{"a":1}}"#), Some(ServerMessage::Answer(Some(3), Ok(json!({ "a": 1 })))));
        assert_eq!(read(r#"{"id":"3","result":null}"#), Some(ServerMessage::Answer(Some(3), Ok(Value::Null))));
        let refused = Refused { code: -1, message: "no".to_owned(), data: None };
        assert_eq!(read(r#"{"id":null,"error":{"code":-1,"message":"no","data":null}}"#), Some(ServerMessage::Answer(None, Err(refused))));
        assert_eq!(read(r#"{"method":"notifications/progress","params":{}}"#), Some(ServerMessage::Notice));
        let Some(ServerMessage::Question(pong)) = read(r#"{"id":"a","method":"ping"}"#) else { panic!() };
        assert_eq!(pong, json!({ "jsonrpc": "2.0", "id": "a", "result": {} }));
        let Some(ServerMessage::Question(no)) = read(r#"{"id":0,"method":"sampling/createMessage"}"#) else { panic!() };
        assert_eq!((&no["id"], &no["error"]["code"]), (&json!(0), &json!(-32601)));
        assert_eq!((read("{}"), read("[]"), read("\"text\"")), (None, None, None));
    }

    #[test]
    fn several_messages_come_as_one_list() {
        let said = ServerMessage::read(br#"[{"method":"notifications/progress"},{"id":1,"result":"a"},7,{"id":2,"result":"b"}]"#);
        assert_eq!(
            said,
            [ServerMessage::Notice, ServerMessage::Answer(Some(1), Ok(json!("a"))), ServerMessage::Answer(Some(2), Ok(json!("b")))]
        );
    }

    #[test]
    fn an_answer_that_cannot_be_read_is_one_and_a_greeting_is_none() {
        let read = |text: &str| ServerMessage::read(text.as_bytes());
        for (text, id) in [
            (r#"{"jsonrpc":"2.0","id":12,"result":{"content":[{"type":"text","text":"a "method" b"}]}}"#, Some(12)),
            (r#"{"jsonrpc":"2.0","id":12,"result":{"content":"#, Some(12)),
            (r#"{'jsonrpc': 2, "jsonrpc":"2.0","id": "3","result":NaN}"#, Some(3)),
            (r#"{"jsonrpc":"2.0","result":nan,"id":4}"#, None),
            (r#"{"jsonrpc":"2.0","id":5}"#, Some(5)),
            (r#"{"jsonrpc":"2.0","id":5,"results":[]}"#, Some(5)),
        ] {
            assert_eq!(read(text), [ServerMessage::Unreadable(id)], "{text}");
        }
        for text in
            ["Welcome", "{\"half\":", r#"{"level":"info","id":5}"#, r#"{"jsonrpc":"2.0","method":"notifications/message","params":NaN}"#]
        {
            assert_eq!(read(text), [], "{text}");
        }
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
