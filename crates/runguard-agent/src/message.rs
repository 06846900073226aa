//! What is said between the user, the model and the tools.
//!
//! One shape for all providers: a tool's result is a block of a user message, because two of the three want it so, and the
//! third is easily given it. What a provider needs back untouched (signed thinking) is kept as it came.

use runguard_core::prices::most_words;
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    User,
    Assistant,
}

/// Why a message was written by the loop and not by a person. Such messages go to the model and are not shown to people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tag {
    /// The answer was cut at `max_tokens`: go on.
    MaxTokensRecovery,
    /// A guard tells the model to change its way before it is stopped.
    GuardNudge,
    /// Stands where earlier messages were left out.
    ContextMarker,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    pub role: Role,
    pub content: Vec<Block>,
    /// Set on messages the loop has written itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Tag>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Block {
    Text {
        text: String,
    },
    /// The model's thoughts; with a signature they must be sent back as they came.
    Thinking {
        text: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signature: Option<String>,
    },
    ToolCall(ToolCall),
    ToolResult(ToolResult),
    /// Something only the provider understands; sent back as it came.
    Opaque {
        value: Value,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    pub id: String,
    pub name: String,
    /// The arguments exactly as the model wrote them; not always JSON.
    pub arguments: String,
}

impl ToolCall {
    /// The arguments as a value. No arguments at all are an empty object.
    pub fn parsed(&self) -> Result<Value, serde_json::Error> {
        if self.arguments.trim().is_empty() { Ok(Value::Object(serde_json::Map::new())) } else { serde_json::from_str(&self.arguments) }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolResult {
    /// The id of the call.
    pub id: String,
    pub name: String,
    pub text: String,
    #[serde(default)]
    pub is_error: bool,
}

impl Message {
    pub fn user(text: impl Into<String>) -> Self {
        Self { role: Role::User, content: vec![Block::Text { text: text.into() }], reason: None }
    }

    pub fn assistant(text: impl Into<String>) -> Self {
        Self { role: Role::Assistant, content: vec![Block::Text { text: text.into() }], reason: None }
    }

    /// A user message the loop writes to the model.
    pub fn internal(reason: Tag, text: impl Into<String>) -> Self {
        Self { reason: Some(reason), ..Self::user(text) }
    }

    pub fn results(results: Vec<ToolResult>) -> Self {
        Self { role: Role::User, content: results.into_iter().map(Block::ToolResult).collect(), reason: None }
    }

    pub fn tool_calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.content.iter().filter_map(|block| match block {
            Block::ToolCall(call) => Some(call),
            Block::Text { .. } | Block::Thinking { .. } | Block::ToolResult(_) | Block::Opaque { .. } => None,
        })
    }

    pub fn has_results(&self) -> bool {
        self.content.iter().any(|block| matches!(block, Block::ToolResult(_)))
    }

    /// What a person would read of it.
    pub fn text(&self) -> String {
        let texts = self.content.iter().filter_map(|block| match block {
            Block::Text { text } => Some(text.as_str()),
            Block::Thinking { .. } | Block::ToolCall(_) | Block::ToolResult(_) | Block::Opaque { .. } => None,
        });
        texts.collect()
    }

    /// Bytes that are sent for it, about: what tokens are estimated from.
    pub fn bytes(&self) -> usize {
        self.measured(str::len)
    }

    /// The most tokens that are read of it.
    pub fn most_words(&self) -> u64 {
        self.measured(|text| most_words(text) as usize) as u64
    }

    fn measured(&self, of: impl Fn(&str) -> usize) -> usize {
        const FRAME: usize = 16;
        let of_block = |block: &Block| match block {
            Block::Text { text } => of(text),
            Block::Thinking { text, signature } => of(text) + signature.as_deref().map_or(0, &of),
            Block::ToolCall(call) => of(&call.id) + of(&call.name) + of(&call.arguments) + FRAME,
            Block::ToolResult(result) => of(&result.id) + of(&result.text) + FRAME,
            Block::Opaque { value } => of(&value.to_string()),
        };
        FRAME + self.content.iter().map(of_block).sum::<usize>()
    }
}
