//! The item of a response that is being written: where the answer is cut, it ends with what came of it, as the provider ends one.

use serde_json::{Value, json};

#[derive(Debug)]
pub(super) struct OpenItem {
    item: Value,
    place: Value,
    /// Which of its parts is written, once one is.
    part: Option<Value>,
    text: String,
    /// How long it was before the latest piece.
    before: usize,
}

impl OpenItem {
    /// One that begins with this event, where it is made of words.
    pub(super) fn of(event: &Value) -> Option<Self> {
        let item = event.get("item").filter(|item| item.get("type").and_then(Value::as_str) == Some("message"))?;
        let place = event.get("output_index").cloned().unwrap_or_default();
        Some(Self { item: item.clone(), place, part: None, text: String::new(), before: 0 })
    }

    pub(super) fn begin_part(&mut self, event: &Value) {
        self.part = event.get("content_index").cloned();
        (self.text, self.before) = (String::new(), 0);
    }

    pub(super) fn write(&mut self, event: &Value) {
        self.before = self.text.len();
        self.text.push_str(event.get("delta").and_then(Value::as_str).unwrap_or_default());
    }

    /// The item, and the events that end it, from this number on. The latest piece is the one beyond the bound, which nobody has heard.
    pub(super) fn end(mut self, number: u64) -> (Value, Vec<(&'static str, Value)>) {
        self.text.truncate(self.before);
        let mut events = Vec::new();
        let written = json!({"type": "output_text", "text": self.text, "annotations": []});
        if let Some(fields) = self.item.as_object_mut() {
            fields.insert("status".into(), json!("incomplete"));
            fields.insert("content".into(), self.part.iter().map(|_| written.clone()).collect());
        }
        let item_id = self.item.get("id").cloned().unwrap_or_default();
        if let Some(part) = self.part {
            let (place, text) = (&self.place, &self.text);
            let of = |kind: &str, more: Value| {
                let mut event = json!({"type": kind, "item_id": item_id, "output_index": place, "content_index": part});
                if let (Some(event), Value::Object(more)) = (event.as_object_mut(), more) {
                    event.extend(more);
                }
                event
            };
            let done = of("response.output_text.done", json!({"sequence_number": number, "text": text, "logprobs": []}));
            events.push(("response.output_text.done", done));
            let done = of("response.content_part.done", json!({"sequence_number": number + 1, "part": written}));
            events.push(("response.content_part.done", done));
        }
        let (kind, number) = ("response.output_item.done", number + events.len() as u64);
        events.push((kind, json!({"type": kind, "sequence_number": number, "output_index": self.place, "item": self.item})));
        (self.item, events)
    }
}
