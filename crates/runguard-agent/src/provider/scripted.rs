//! A model that says what is written: for tests, demonstrations and trying settings without a key.
//!
//! It streams word by word, honours `max_tokens`, reports usage and fails as told, so that everything around it is the real
//! thing.
//!
//! ```toml
//! model = "scripted"
//! at_end = "repeat_last"
//!
//! [[reply]]
//! text = "Let me look."
//! calls = [{ name = "read_file", arguments = { path = "README.md" } }]
//!
//! [[reply]]
//! text = "Done."
//! ```

use super::{BoxFuture, ErrorKind, Finish, Provider, ProviderError, Reply, Request};
use runguard_core::prices::Usage;
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Script {
    pub model: String,
    pub reply: Vec<ScriptedReply>,
    pub at_end: AtEnd,
}

/// What comes after the last reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AtEnd {
    /// An empty answer that ends the turn.
    #[default]
    Finish,
    RepeatLast,
    StartOver,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScriptedReply {
    pub text: String,
    pub calls: Vec<ScriptedCall>,
    /// Left out: four bytes a token, of what is sent and of what is said.
    pub input_tokens: Option<u64>,
    pub output_tokens: Option<u64>,
    /// The provider says nothing about usage.
    pub without_usage: bool,
    /// The answer stops at `max_tokens`, although it is not that long.
    pub truncated: bool,
    /// Fails after the text has been said: `overloaded`, `stream_cut`, … with [`ErrorKind::code`].
    pub error: Option<String>,
    pub retry_after_ms: Option<u64>,
    /// Before the first word.
    pub delay_ms: u64,
    /// Before every further word.
    pub word_ms: u64,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScriptedCall {
    pub name: String,
    #[serde(default)]
    pub arguments: Value,
}

#[derive(Debug)]
pub struct Scripted {
    script: Script,
    next: AtomicUsize,
}

/// What a token is worth when nothing else is said.
const BYTES_A_TOKEN: u64 = 4;

impl Scripted {
    pub fn new(mut script: Script) -> Self {
        if script.model.is_empty() {
            "scripted".clone_into(&mut script.model);
        }
        Self { script, next: AtomicUsize::new(0) }
    }

    pub fn load(file: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(file).map_err(|problem| format!("cannot read the script {}: {problem}", file.display()))?;
        let script = toml::from_str(&text).map_err(|problem| format!("{}: {}", file.display(), problem.to_string().trim_end()))?;
        Ok(Self::new(script))
    }

    /// How often it was asked.
    pub fn asked(&self) -> usize {
        self.next.load(Ordering::SeqCst)
    }

    fn take(&self) -> ScriptedReply {
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        let replies = &self.script.reply;
        let chosen = match self.script.at_end {
            AtEnd::Finish => replies.get(number),
            AtEnd::RepeatLast => replies.get(number).or(replies.last()),
            AtEnd::StartOver => replies.get(number.checked_rem(replies.len()).unwrap_or(0)),
        };
        chosen.cloned().unwrap_or_default()
    }
}

impl Provider for Scripted {
    fn model(&self) -> &str {
        &self.script.model
    }

    fn ask<'a>(&'a self, request: Request<'a>, reply: &'a mut Reply<'_>) -> BoxFuture<'a, Result<(), ProviderError>> {
        Box::pin(async move {
            let said = self.take();
            pause(said.delay_ms).await;
            let sent: usize =
                request.messages.iter().map(crate::message::Message::bytes).sum::<usize>() + request.system.map_or(0, str::len);
            let mut room = u64::from(request.max_tokens).saturating_mul(BYTES_A_TOKEN) as usize;
            let mut is_cut = said.truncated;
            for word in said.text.split_inclusive(' ') {
                if word.len() > room {
                    is_cut = true;
                    break;
                }
                room -= word.len();
                reply.text(word)?;
                pause(said.word_ms).await;
            }
            if let Some(code) = &said.error {
                let kind = kind_of(code);
                let retry_after = said.retry_after_ms.map(Duration::from_millis);
                return Err(ProviderError { kind, message: format!("the script says: {code}"), retry_after });
            }
            for (index, call) in said.calls.iter().enumerate() {
                let arguments = if call.arguments.is_null() { "{}".to_owned() } else { call.arguments.to_string() };
                if arguments.len() + call.name.len() > room {
                    is_cut = true;
                    break;
                }
                room -= arguments.len() + call.name.len();
                reply.call(index, &format!("call_{}_{index}", self.asked()), &call.name)?;
                reply.arguments(index, &arguments)?;
            }
            if !said.without_usage {
                let tokens = |bytes: usize| (bytes as u64).div_ceil(BYTES_A_TOKEN);
                let output = said.output_tokens.unwrap_or_else(|| tokens(reply.bytes())).min(u64::from(request.max_tokens));
                reply.usage(Usage::new(said.input_tokens.unwrap_or_else(|| tokens(sent)), output));
            }
            let finish = if is_cut {
                Finish::MaxTokens
            } else if said.calls.is_empty() {
                Finish::EndTurn
            } else {
                Finish::ToolUse
            };
            reply.finish(finish);
            Ok(())
        })
    }
}

async fn pause(millis: u64) {
    if millis > 0 {
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }
}

fn kind_of(code: &str) -> ErrorKind {
    const KINDS: [ErrorKind; 11] = [
        ErrorKind::Unreachable,
        ErrorKind::Timeout,
        ErrorKind::Cut,
        ErrorKind::Malformed,
        ErrorKind::RateLimited,
        ErrorKind::Overloaded,
        ErrorKind::Endless,
        ErrorKind::Unauthorised,
        ErrorKind::NoCredit,
        ErrorKind::ContextTooLong,
        ErrorKind::Rejected,
    ];
    KINDS.into_iter().find(|kind| kind.code() == code).unwrap_or(ErrorKind::Rejected)
}
