//! Conversations and answers as the interfaces of models write them, put together at random: so that readers get behind the first brace.

use arbitrary::{Result, Unstructured};
use serde_json::{Value, json};

const IDS: [&str; 3] = ["a", "b", "call_1"];
const WORDS: [&str; 6] = ["nothing found", "Error: no such file", "Observation: x", "", "ü\u{200b}\"\\\n", "data: [DONE]"];

fn words(bytes: &mut Unstructured<'_>) -> Result<Value> {
    let word = *bytes.choose(&WORDS)?;
    Ok(match bytes.int_in_range(0..=7_u8)? {
        0 => Value::Null,
        1 => json!(7),
        2 => json!([{"type": "text", "text": word}, {"text": word}, 1]),
        3 => json!([]),
        _ => json!(word),
    })
}

/// A message, or an item, of any interface.
fn message(bytes: &mut Unstructured<'_>) -> Result<Value> {
    let (id, said) = (*bytes.choose(&IDS)?, words(bytes)?);
    let arguments = if bytes.arbitrary()? { json!("{\"q\": 1}") } else { json!({"q": *bytes.choose(&WORDS)?}) };
    Ok(match bytes.int_in_range(0..=10_u8)? {
        0 => json!({"role": "user", "content": said}),
        1 => {
            json!({"role": "assistant", "content": said, "tool_calls": [{"id": id, "function": {"name": "search", "arguments": arguments}}]})
        }
        2 => json!({"role": "tool", "tool_call_id": id, "content": said}),
        3 => json!({"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": "search", "input": arguments}]}),
        4 => {
            json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": said}, {"type": "text", "text": "go on"}]})
        }
        5 => json!({"role": "assistant", "content": [{"toolUse": {"toolUseId": id, "name": "search", "input": arguments}}]}),
        6 => json!({"role": "user", "content": [{"toolResult": {"toolUseId": id, "content": said, "status": "error"}}]}),
        7 => json!({"type": "function_call", "call_id": id, "name": "search", "arguments": arguments}),
        8 => json!({"type": "function_call_output", "call_id": id, "output": said}),
        9 => json!({"role": "assistant", "content": said}),
        _ => said,
    })
}

/// The body of a question.
pub(crate) fn question(bytes: &[u8]) -> Value {
    let mut bytes = Unstructured::new(bytes);
    let mut make = || -> Result<Value> {
        let messages = (0..bytes.int_in_range(0..=24_u8)?).map(|_| message(&mut bytes)).collect::<Result<Vec<_>>>()?;
        let bound = bytes.int_in_range(0..=400_u16)?;
        Ok(json!({"model": "gpt-4o", "stream": bytes.arbitrary::<bool>()?, "n": bytes.int_in_range(1..=3_u8)?, "messages": messages,
            "input": messages, "max_tokens": bound, "inferenceConfig": {"maxTokens": bound}, "metadata": {"session_id": words(&mut bytes)?}}))
    };
    make().unwrap_or_default()
}

/// Events of a stream.
pub(crate) fn events(bytes: &[u8]) -> String {
    const DATA: [&str; 12] = [
        r#"{"id":"c","object":"chat.completion.chunk","model":"gpt-4o","choices":[{"index":0,"delta":{"content":"word "},"finish_reason":null}],"usage":null}"#,
        r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}"#,
        "[DONE]",
        r#"{"type":"message_start","message":{"model":"claude","usage":{"input_tokens":9,"output_tokens":1}}}"#,
        r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"word "}}"#,
        r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":18446744073709551615}}"#,
        r#"{"type":"message_stop"}"#,
        r#"{"type":"response.output_text.delta","delta":"word "}"#,
        r#"{"type":"response.completed","response":{"id":"r","model":"gpt-5","usage":{"input_tokens":1,"output_tokens":2}}}"#,
        r#"{"choices":7,"usage":[],"delta":null}"#,
        "{",
    ];
    const ENDS: [&str; 4] = ["\n\n", "\r\n\r\n", "\n", "\r\r"];
    let mut bytes = Unstructured::new(bytes);
    let mut out = String::new();
    let mut make = || -> Result<()> {
        for _ in 0..bytes.int_in_range(0..=40_u8)? {
            out += *bytes.choose(&["data: ", "data:", "event: x\ndata: ", ": comment\n\ndata: ", ""])?;
            out += *bytes.choose(&DATA)?;
            out += *bytes.choose(&ENDS)?;
        }
        Ok(())
    };
    // What was made before the bytes were used up is a stream that broke off.
    let _ = make();
    out
}
