//! What a guard answers, and how it looks as JSON.

use runguard_core::reason::{GuardName, Reason};
use runguard_core::time::Timestamp;
use std::borrow::Cow;

/// One value of an answer. There are few kinds, so that every one of them has a flat form.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Number(f64),
    Text(Cow<'static, str>),
    List(Vec<String>),
    Counts(Vec<(String, u64)>),
}

macro_rules! value_from {
    ($($source:ty => |$name:ident| $value:expr),+ $(,)?) => {
        $(impl From<$source> for Value { fn from($name: $source) -> Self { $value } })+
    };
}

value_from! {
    bool => |value| Self::Bool(value),
    u32 => |value| Self::Int(i64::from(value)),
    u64 => |value| Self::Int(i64::try_from(value).unwrap_or(i64::MAX)),
    i64 => |value| Self::Int(value),
    f64 => |value| Self::Number(value),
    &'static str => |value| Self::Text(Cow::Borrowed(value)),
    String => |value| Self::Text(Cow::Owned(value)),
    Vec<String> => |value| Self::List(value),
    Vec<(String, u64)> => |value| Self::Counts(value),
}

impl<T: Into<Self>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// Named values in the order they are shown.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Facts(Vec<(&'static str, Value)>);

impl Facts {
    /// With room for what most answers have.
    pub fn new() -> Self {
        Self(Vec::with_capacity(6))
    }

    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.0.push((name, value.into()));
        self
    }

    /// Adds a text unless it is empty.
    #[must_use]
    pub fn with_text(self, name: &'static str, text: String) -> Self {
        if text.is_empty() { self } else { self.with(name, text) }
    }

    /// These and the others after them.
    #[must_use]
    pub fn and(self, mut others: Self) -> Self {
        if self.0.is_empty() {
            return others;
        }
        let mut all = self.0;
        all.append(&mut others.0);
        Self(all)
    }

    pub fn iter(&self) -> impl Iterator<Item = &(&'static str, Value)> {
        self.0.iter()
    }

    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As a JSON object.
    pub fn to_json(&self) -> String {
        let mut json = Json::open(Shape::Full);
        for (name, value) in &self.0 {
            json.member(name, value);
        }
        json.close()
    }
}

/// What a rule in observe mode would have done.
#[derive(Debug, Clone, PartialEq)]
pub struct Signal {
    pub reason: Reason,
    pub message: String,
    pub facts: Facts,
}

/// How the answer is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Shape {
    #[default]
    Full,
    /// Scalars only, no null, no nesting: what a Voiceflow Function may return.
    Flat,
}

/// A decision as a value: what the engine logs and the door sends.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub guard: GuardName,
    /// `None` for routes that record and never refuse.
    pub allow: Option<bool>,
    /// The reason of the refusal, or of the first rule in observe mode that would have refused.
    pub reason: Option<Reason>,
    pub message: Option<String>,
    /// When time alone would change the answer: the first moment at which the same request is allowed.
    pub retry_at: Option<Timestamp>,
    pub facts: Facts,
    pub signals: Vec<Signal>,
}

/// What every answer carries besides the guard's own facts.
#[derive(Debug, Clone, Copy)]
pub struct Envelope<'a> {
    pub decision_id: &'a str,
    pub session_id: &'a str,
    pub warnings: &'a [String],
    pub now: Timestamp,
}

/// The members an answer begins with. The log has them as columns, so of an answer it keeps only what follows.
#[derive(Debug, Clone, Copy)]
pub struct Head<'a> {
    pub allow: Option<bool>,
    pub guard: &'a str,
    pub decision_id: &'a str,
    pub session_id: &'a str,
    pub reason: Option<&'a str>,
}

impl Head<'_> {
    fn write(&self, json: &mut Json) {
        if let Some(allow) = self.allow {
            json.member("allow", &Value::Bool(allow));
        } else {
            json.member("recorded", &Value::Bool(true));
        }
        json.text("guard", self.guard);
        json.text("decision_id", self.decision_id);
        json.text("session_id", self.session_id);
        if self.allow == Some(true) && self.reason.is_some() {
            json.member("would_block", &Value::Bool(true));
        }
        if let Some(reason) = self.reason {
            json.text("reason", reason);
        }
    }

    /// The answer again, from the rest that was kept.
    pub fn with_rest(&self, rest: &str) -> String {
        let mut json = Json::open(Shape::Full);
        self.write(&mut json);
        let members = rest.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap_or_default();
        if !members.is_empty() {
            json.out.push(b',');
            json.out.extend_from_slice(members.as_bytes());
        }
        json.close()
    }
}

/// An answer as JSON.
#[derive(Debug)]
pub struct Rendered {
    pub json: String,
    rest_at: usize,
}

impl Rendered {
    /// What follows the head, as an object of its own.
    pub fn rest(&self) -> String {
        let members = self.json[self.rest_at..].trim_start_matches(',');
        let mut rest = String::with_capacity(members.len() + 1);
        rest.push('{');
        rest.push_str(members);
        rest
    }
}

impl Answer {
    pub fn is_block(&self) -> bool {
        self.allow == Some(false)
    }

    pub fn would_block(&self) -> bool {
        self.allow == Some(true) && self.reason.is_some()
    }

    pub fn retry_after_seconds(&self, now: Timestamp) -> Option<u64> {
        self.retry_at.map(|at| now.seconds_until(at))
    }

    pub fn to_json(&self, envelope: &Envelope<'_>, shape: Shape) -> Rendered {
        let mut json = Json::open(shape);
        let head = Head {
            allow: self.allow,
            guard: self.guard.code(),
            decision_id: envelope.decision_id,
            session_id: envelope.session_id,
            reason: self.reason.map(Reason::code),
        };
        head.write(&mut json);
        let rest_at = json.out.len();
        for (name, value) in self.facts.iter() {
            json.member(name, value);
        }
        if let Some(seconds) = self.retry_after_seconds(envelope.now) {
            json.member("retry_after_seconds", &seconds.into());
        }
        if let Some(message) = &self.message {
            json.text("message", message);
        }
        json.signals(&self.signals);
        if !envelope.warnings.is_empty() {
            json.member("warnings", &Value::List(envelope.warnings.to_vec()));
        }
        Rendered { json: json.close(), rest_at }
    }
}

/// Warnings name fields as the caller did, so no answer is kept with them. An answer that is repeated gets them from the request
/// that asks again: it has the same body, or it would not be answered so.
pub fn without_warnings(answer: &str, warnings: &[String], shape: Shape) -> String {
    let written = |warnings: &[String]| {
        let mut json = Json::open(shape);
        json.member("warnings", &Value::List(warnings.to_vec()));
        json.close()[1..].to_owned()
    };
    match answer.strip_suffix(&written(warnings)) {
        Some(before) if !warnings.is_empty() => format!("{before}{}", written(&[])),
        _ => answer.to_owned(),
    }
}

/// Puts back what [`without_warnings`] took out.
pub fn with_warnings(answer: String, warnings: &[String]) -> String {
    for (shape, empty) in [(Shape::Full, "\"warnings\":[]}"), (Shape::Flat, "\"warnings\":\"\"}")] {
        if let Some(before) = answer.strip_suffix(empty) {
            let mut json = Json::open(shape);
            json.member("warnings", &Value::List(warnings.to_vec()));
            return format!("{before}{}", &json.close()[1..]);
        }
    }
    answer
}

/// Writes one JSON object. Hand-made because the shape is decided here, member by member.
struct Json {
    out: Vec<u8>,
    shape: Shape,
}

impl Json {
    fn open(shape: Shape) -> Self {
        let mut out = Vec::with_capacity(320);
        out.push(b'{');
        Self { out, shape }
    }

    fn close(mut self) -> String {
        self.out.push(b'}');
        String::from_utf8(self.out).unwrap_or_default()
    }

    fn name(&mut self, name: &'static str) {
        if self.out.len() > 1 {
            self.out.push(b',');
        }
        // Names are our own: nothing in them needs escaping.
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
    }

    fn string(&mut self, text: &str) {
        write_json(&mut self.out, text);
    }

    fn text(&mut self, name: &'static str, text: &str) {
        self.name(name);
        self.string(text);
    }

    fn member(&mut self, name: &'static str, value: &Value) {
        match (value, self.shape) {
            (Value::Null, Shape::Flat) => return,
            (Value::List(items), Shape::Flat) => return self.text(name, &items.join(", ")),
            (Value::Counts(counts), Shape::Flat) => {
                let joined: Vec<String> = counts.iter().map(|(key, count)| format!("{key}={count}")).collect();
                return self.text(name, &joined.join(", "));
            }
            (Value::Bool(_) | Value::Int(_) | Value::Number(_) | Value::Text(_), Shape::Flat) | (_, Shape::Full) => {}
        }
        self.name(name);
        match value {
            Value::Null => self.out.extend_from_slice(b"null"),
            Value::Bool(value) => self.out.extend_from_slice(if *value { b"true" } else { b"false" }),
            Value::Int(value) => write_json(&mut self.out, value),
            Value::Number(value) => write_json(&mut self.out, value),
            Value::Text(text) => self.string(text),
            Value::List(items) => write_json(&mut self.out, items),
            Value::Counts(counts) => {
                self.out.push(b'{');
                for (position, (key, count)) in counts.iter().enumerate() {
                    if position > 0 {
                        self.out.push(b',');
                    }
                    self.string(key);
                    self.out.push(b':');
                    write_json(&mut self.out, count);
                }
                self.out.push(b'}');
            }
        }
    }

    fn signals(&mut self, signals: &[Signal]) {
        if signals.is_empty() {
            return;
        }
        if self.shape == Shape::Flat {
            let codes: Vec<&str> = signals.iter().map(|signal| signal.reason.code()).collect();
            return self.text("signals", &codes.join(", "));
        }
        self.name("signals");
        self.out.push(b'[');
        for (position, signal) in signals.iter().enumerate() {
            if position > 0 {
                self.out.push(b',');
            }
            let mut object = Self::open(Shape::Full);
            object.text("reason", signal.reason.code());
            for (name, value) in signal.facts.iter() {
                object.member(name, value);
            }
            object.text("message", &signal.message);
            self.out.extend_from_slice(object.close().as_bytes());
        }
        self.out.push(b']');
    }
}

/// Writing to memory cannot fail; a value that JSON cannot say becomes null.
fn write_json<T: serde::Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    let start = out.len();
    if serde_json::to_writer(&mut *out, value).is_err() {
        out.truncate(start);
        out.extend_from_slice(b"null");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer() -> Answer {
        Answer {
            guard: GuardName::Handoff,
            allow: Some(false),
            reason: Some(Reason::CycleDetected),
            message: Some("a \"quoted\" <b>".into()),
            retry_at: Some(Timestamp::from_millis(2500)),
            facts: Facts::new()
                .with("chain", vec!["a".to_string(), "b".to_string()])
                .with("counts", vec![("x".to_string(), 2)])
                .with("nothing", Value::Null)
                .with("share", 0.75),
            signals: vec![Signal { reason: Reason::ActionCycle, message: "m".into(), facts: Facts::new().with("n", 3_u32) }],
        }
    }

    #[test]
    fn the_full_shape_keeps_lists_and_the_flat_shape_has_scalars_only() {
        let envelope = Envelope { decision_id: "id", session_id: "s\n", warnings: &["w".into()], now: Timestamp::from_millis(1000) };
        let full: serde_json::Value = serde_json::from_str(&answer().to_json(&envelope, Shape::Full).json).unwrap();
        assert_eq!(full["chain"], serde_json::json!(["a", "b"]));
        assert_eq!(full["counts"], serde_json::json!({"x": 2}));
        assert_eq!(full["retry_after_seconds"], 2);
        assert_eq!(full["signals"][0]["reason"], "action_cycle");
        assert_eq!(full["session_id"], "s\n");
        let flat: serde_json::Value = serde_json::from_str(&answer().to_json(&envelope, Shape::Flat).json).unwrap();
        assert!(flat.as_object().unwrap().values().all(|value| value.is_string() || value.is_number() || value.is_boolean()));
        assert_eq!(flat["chain"], "a, b");
        assert_eq!(flat["counts"], "x=2");
        assert_eq!(flat["signals"], "action_cycle");
        assert!(flat.get("nothing").is_none());
    }

    #[test]
    fn an_answer_is_kept_without_its_warnings_and_gets_them_back() {
        let told = ["unknown field 'jane' was ignored".to_owned()];
        for warnings in [&told[..], &[]] {
            let envelope = Envelope { decision_id: "id", session_id: "s", warnings, now: Timestamp::from_millis(1000) };
            for shape in [Shape::Full, Shape::Flat] {
                let whole = answer().to_json(&envelope, shape).json;
                let kept = without_warnings(&whole, warnings, shape);
                assert!(!kept.contains("jane"), "{kept}");
                assert_eq!(with_warnings(kept, warnings), whole);
            }
        }
    }

    #[test]
    fn the_head_and_the_rest_make_the_answer_again() {
        let envelope = Envelope { decision_id: "id", session_id: "s\n", warnings: &[], now: Timestamp::from_millis(1000) };
        let bare = Answer { facts: Facts::new(), message: None, retry_at: None, signals: Vec::new(), ..answer() };
        let watched = Answer { allow: Some(true), ..answer() };
        let told = Answer { allow: None, reason: None, ..answer() };
        for answer in [answer(), bare, watched, told] {
            let rendered = answer.to_json(&envelope, Shape::Full);
            let head = Head {
                allow: answer.allow,
                guard: answer.guard.code(),
                decision_id: "id",
                session_id: "s\n",
                reason: answer.reason.map(Reason::code),
            };
            assert!(!rendered.rest().contains("decision_id"));
            assert_eq!(head.with_rest(&rendered.rest()), rendered.json);
        }
    }
}
