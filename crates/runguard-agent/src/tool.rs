//! What the model may do.

mod arguments;
pub mod files;
pub mod http_get;
pub mod mcp;
mod protected;
pub mod shell;

use crate::provider::BoxFuture;
use runguard_core::prices::most_words;
use serde::Serialize;
use serde_json::Value;
use std::fmt;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// How a tool is shown to the model, and what the loop must know of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ToolSpec {
    /// Letters, digits, `_` and `-`, at most 64: what every provider takes.
    pub name: String,
    pub description: String,
    /// JSON Schema of the arguments, an object.
    pub input_schema: Value,
    pub effect: Effect,
    /// Whether it may run beside other tools of the same step.
    pub parallel: bool,
}

impl ToolSpec {
    /// Bytes that are sent for it, about.
    pub(crate) fn bytes(&self) -> usize {
        self.name.len() + self.description.len() + size_of_json(&self.input_schema)
    }

    /// The most tokens that are read of it.
    pub(crate) fn most_words(&self) -> u64 {
        most_words(&self.name) + most_words(&self.description) + most_words(&self.input_schema.to_string())
    }
}

/// Without writing it out: this is asked before every question.
fn size_of_json(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 5,
        Value::String(text) => text.len() + 2,
        Value::Array(items) => 2 + items.iter().map(|item| size_of_json(item) + 1).sum::<usize>(),
        Value::Object(members) => 2 + members.iter().map(|(name, value)| name.len() + 4 + size_of_json(value)).sum::<usize>(),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Looks, changes nothing.
    ReadOnly,
    /// Changes the world: what was read before may be different afterwards.
    Changes,
    /// Nothing is known of it.
    Unknown,
}

/// What a tool gave. An error is a result too: the model reads it and tries something else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolOutput {
    pub text: String,
    pub is_error: bool,
}

impl ToolOutput {
    pub fn ok(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_error: false }
    }

    pub fn error(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_error: true }
    }
}

pub trait Tool: Send + Sync + fmt::Debug {
    fn spec(&self) -> &ToolSpec;

    /// Runs the call. `cancel` is set when the run is cancelled or out of time; the future is dropped soon after.
    fn call<'a>(&'a self, arguments: &'a Value, cancel: &'a CancellationToken) -> BoxFuture<'a, ToolOutput>;
}

/// Two tools cannot have one name, and a name must be one every provider takes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ToolNameError {
    #[error("two tools are called '{0}': give the MCP servers different `name`s, or leave one tool out")]
    Twice(String),
    #[error("'{0}' cannot be the name of a tool: letters, digits, _ and - only, at most 64")]
    Invalid(String),
}

/// The tools of a run.
#[derive(Debug, Clone, Default)]
pub struct ToolSet {
    tools: Vec<Arc<dyn Tool>>,
    specs: Vec<ToolSpec>,
}

impl ToolSet {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn add(&mut self, tool: Arc<dyn Tool>) -> Result<(), ToolNameError> {
        let spec = tool.spec().clone();
        let is_valid = (1..=64).contains(&spec.name.len())
            && spec.name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
        if !is_valid {
            return Err(ToolNameError::Invalid(spec.name));
        }
        if self.get(&spec.name).is_some() {
            return Err(ToolNameError::Twice(spec.name));
        }
        self.specs.push(spec);
        self.tools.push(tool);
        Ok(())
    }

    pub fn get(&self, name: &str) -> Option<&Arc<dyn Tool>> {
        self.tools.iter().find(|tool| tool.spec().name == name)
    }

    pub fn specs(&self) -> &[ToolSpec] {
        &self.specs
    }
}

/// Cuts a text to `most` bytes, keeping its beginning and its end (errors stand at the end), with a marker between.
pub fn cut(text: String, most: usize) -> (String, bool) {
    if text.len() <= most {
        return (text, false);
    }
    let marker = |left_out: usize| format!("\n[… {left_out} bytes left out …]\n");
    let room = most.saturating_sub(marker(text.len()).len());
    let head = text.floor_char_boundary(room * 3 / 4);
    let tail = text.ceil_char_boundary(text.len() - (room - room * 3 / 4));
    (format!("{}{}{}", &text[..head], marker(tail - head), &text[tail..]), true)
}
