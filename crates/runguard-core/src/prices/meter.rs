//! How many tokens a text has, when nobody has counted them: at most, for what is set aside before a question is sent; usually, for
//! what is billed when the provider does not say.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Bytes a token has at least, in text that nothing is known of.
pub const FEWEST_BYTES_A_TOKEN: u64 = 2;
/// Bytes a token has in most texts.
pub const USUAL_BYTES_A_TOKEN: u64 = 3;
/// What providers add around a conversation.
pub const FRAME_TOKENS: u64 = 64;
/// What an image or a file costs at most; it is not sent as text, so its bytes say nothing.
const MOST_TOKENS_AN_ATTACHMENT: u64 = 2_000;
/// What an image usually costs.
const USUAL_TOKENS_AN_ATTACHMENT: u64 = 1_000;
/// A number in a prompt is a token or two, whatever its digits.
pub const BYTES_OF_A_NUMBER: u64 = 4;
/// The longest answer of a model of which nothing is known.
pub const LONGEST_ANSWER: u64 = 8_192;
/// An answer of fewer tokens is not worth asking for.
pub const SHORTEST_ANSWER: u64 = 16;

/// The size of what is sent to a model.
///
/// ```
/// use runguard_core::prices::Prompt;
///
/// let prompt = Prompt { bytes: 600, attachments: 1 };
/// assert_eq!((prompt.usual_tokens(), prompt.most_tokens()), (1_200, 2_364));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Prompt {
    /// Bytes of all texts in it.
    pub bytes: u64,
    /// Images, recordings and files in it, whose bytes are not counted.
    pub attachments: u64,
}

/// A text that is longer, and looks like encoded data, is an attachment.
const SHORTEST_ATTACHMENT: usize = 1_024;

impl Prompt {
    /// Adds a text of it. Data that stands in a text, as images do, is an attachment.
    ///
    /// ```
    /// use runguard_core::prices::Prompt;
    ///
    /// let mut prompt = Prompt::default();
    /// prompt.add("What is in this picture?");
    /// prompt.add(&format!("data:image/png;base64,{}", "iVBORw0KGgo".repeat(1_000)));
    /// assert_eq!(prompt, Prompt { bytes: 24, attachments: 1 });
    /// ```
    pub fn add(&mut self, text: &str) {
        let is_data = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_' | b'=');
        let beginning = text.as_bytes().iter().take(SHORTEST_ATTACHMENT);
        if text.len() > SHORTEST_ATTACHMENT && (text.starts_with("data:") || beginning.copied().all(is_data)) {
            self.attachments = self.attachments.saturating_add(1);
        } else {
            self.bytes = self.bytes.saturating_add(text.len() as u64);
        }
    }

    /// Adds all texts of a JSON value, names included.
    pub fn add_json(&mut self, value: &Value) {
        match value {
            Value::String(text) => self.add(text),
            Value::Array(items) => items.iter().for_each(|item| self.add_json(item)),
            Value::Object(fields) => fields.iter().for_each(|(name, value)| {
                self.add(name);
                self.add_json(value);
            }),
            Value::Number(_) => self.bytes = self.bytes.saturating_add(BYTES_OF_A_NUMBER),
            Value::Null | Value::Bool(_) => {}
        }
    }

    /// The most tokens it may have.
    pub const fn most_tokens(self) -> u64 {
        (self.bytes / FEWEST_BYTES_A_TOKEN)
            .saturating_add(FRAME_TOKENS)
            .saturating_add(self.attachments.saturating_mul(MOST_TOKENS_AN_ATTACHMENT))
    }

    /// Of an answer whose texts were added, without names and numbers: the bytes it is billed by. An image or a recording has those that it
    /// usually costs.
    pub const fn bytes_of_answer(self) -> u64 {
        self.bytes.saturating_add(self.attachments.saturating_mul(USUAL_TOKENS_AN_ATTACHMENT * USUAL_BYTES_A_TOKEN))
    }

    /// The tokens it probably has.
    pub const fn usual_tokens(self) -> u64 {
        usual_tokens(self.bytes).saturating_add(self.attachments.saturating_mul(USUAL_TOKENS_AN_ATTACHMENT))
    }
}

/// The bytes of what a model has written, in whatever form its service sends it: of all texts, without the names of fields, which the
/// service adds to every piece of a stream. Numbers are places and counts; an image or a recording has the size that it is usually billed by.
///
/// ```
/// use runguard_core::prices::answer_size;
/// use serde_json::json;
///
/// assert_eq!(answer_size(&json!([{ "index": 0, "delta": { "content": "Hello", "refusal": null } }])), 5);
/// ```
pub fn answer_size(answer: &Value) -> u64 {
    fn add(written: &mut Prompt, part: &Value) {
        match part {
            Value::String(text) => written.add(text),
            Value::Array(items) => items.iter().for_each(|item| add(written, item)),
            Value::Object(fields) => fields.values().for_each(|value| add(written, value)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
    let mut written = Prompt::default();
    add(&mut written, answer);
    written.bytes_of_answer()
}

/// What providers' interfaces bill without saying how much: images, sound, films, training, and what is answered later.
const UNMETERED: [&str; 13] = [
    "/audio/speech",
    "/audio/transcriptions",
    "/audio/translations",
    "/batches",
    "/complete",
    "/fine_tuning/jobs",
    "/images/edits",
    "/images/generations",
    "/images/variations",
    "/realtime/client_secrets",
    "/realtime/sessions",
    "/threads/runs",
    "/videos",
];

/// Why a request to such an interface is refused where a budget stands; nothing of any other. By the path of its address.
///
/// ```
/// use runguard_core::prices::unmetered;
///
/// assert!(unmetered("https://api.openai.com/v1/images/generations").is_some());
/// assert_eq!(unmetered("/v1/chat/completions"), None);
/// ```
pub fn unmetered(path: &str) -> Option<String> {
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let path = path.strip_suffix('/').unwrap_or(path);
    let known = UNMETERED.into_iter().find(|known| path.ends_with(known))?;
    Some(format!(
        "The provider bills {known} without saying how much, so it cannot be held within a budget, and the run has one. Send it outside of \
         the run, or with the hooks off, and record there what it cost."
    ))
}

/// Errors of clients that waited for a connection and got none.
const NEVER_SENT: [&str; 4] = ["ConnectTimeout", "ConnectTimeoutError", "ConnectionTimeoutError", "PoolTimeout"];

/// Whether a request that ended with an error may have been answered, and billed: one that timed out or was given up after it was sent. By the
/// names of the error and of what caused it, which is all that clients have in common.
///
/// ```
/// use runguard_core::prices::may_be_billed;
///
/// assert!(may_be_billed(["APITimeoutError", "ReadTimeout"]));
/// assert!(!may_be_billed(["APITimeoutError", "ConnectTimeout"]), "nothing was sent");
/// assert!(!may_be_billed(["RateLimitError"]));
/// ```
pub fn may_be_billed<'a>(names: impl IntoIterator<Item = &'a str>) -> bool {
    let mut was_given_up = false;
    for name in names {
        if NEVER_SENT.contains(&name) {
            return false;
        }
        was_given_up |= ["Timeout", "Abort"].iter().any(|part| name.contains(part));
    }
    was_given_up
}

/// The tokens that a text of so many bytes probably has.
pub const fn usual_tokens(bytes: u64) -> u64 {
    bytes.div_ceil(USUAL_BYTES_A_TOKEN)
}

/// The longest answer, of at most `most` tokens, that `fits`; nothing when not even the shortest does. The cost must grow with the answer.
///
/// ```
/// use runguard_core::prices::longest_answer;
///
/// assert_eq!(longest_answer(4_096, |tokens| tokens <= 800), Some(800));
/// assert_eq!(longest_answer(4_096, |tokens| tokens <= 15), None, "it would break off at once");
/// assert_eq!(longest_answer(10, |_| true), Some(10), "a short answer may be what is asked for");
/// ```
pub fn longest_answer(most: u64, fits: impl Fn(u64) -> bool) -> Option<u64> {
    if fits(most) {
        return Some(most);
    }
    let shortest = SHORTEST_ANSWER.min(most);
    if !fits(shortest) {
        return None;
    }
    // The longest that is known to fit, and the shortest that is known not to: halve the distance.
    let (mut low, mut high) = (shortest, most);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    Some(low)
}
