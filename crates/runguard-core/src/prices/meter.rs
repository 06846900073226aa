//! How many tokens a text has, when nobody has counted them: at most, for what is set aside before a question is sent; usually, for
//! what is billed when the provider does not say.

#[cfg(feature = "prices")]
use super::Prices;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Bytes a token has at least in prose. Of a text that is there [`most_words`] knows more.
pub const FEWEST_BYTES_A_TOKEN: u64 = 2;
/// Bytes a token has in most texts.
pub const USUAL_BYTES_A_TOKEN: u64 = 3;
/// What providers add around a conversation.
pub const FRAME_TOKENS: u64 = 64;
/// What an image usually costs.
const USUAL_TOKENS_AN_ATTACHMENT: u64 = 1_000;
/// A number in a prompt is usually a token or two, whatever its digits.
const BYTES_OF_A_NUMBER: u64 = 4;
/// The longest answer of a model of which nothing is known.
pub const LONGEST_ANSWER: u64 = 8_192;
/// An answer of fewer tokens is not worth asking for.
pub const SHORTEST_ANSWER: u64 = 16;

/// The size of what is sent to a model.
///
/// ```
/// use runguard_core::prices::Prompt;
///
/// let prompt = Prompt { attachments: 1, ..Prompt::of_bytes(600) };
/// assert_eq!((prompt.usual_tokens(), prompt.most_tokens("gpt-4o")), (1_200, 5_364));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Prompt {
    /// Bytes of all texts in it.
    pub bytes: u64,
    /// Images, recordings and files in it, whose bytes are not counted.
    pub attachments: u64,
    /// The most tokens that its texts may have.
    pub most_words: u64,
}

/// A text that is longer, and looks like encoded data, is an attachment.
const SHORTEST_ATTACHMENT: usize = 1_024;

impl Prompt {
    /// So many bytes of prose.
    pub const fn of_bytes(bytes: u64) -> Self {
        Self { bytes, attachments: 0, most_words: bytes / FEWEST_BYTES_A_TOKEN }
    }

    /// Adds a text of it. Data that stands in a text, as images do, is an attachment.
    ///
    /// ```
    /// use runguard_core::prices::Prompt;
    ///
    /// let mut prompt = Prompt::default();
    /// prompt.add("What is in this picture?");
    /// prompt.add(&format!("data:image/png;base64,{}", "iVBORw0KGgo".repeat(1_000)));
    /// assert_eq!((prompt.bytes, prompt.attachments), (24, 1));
    /// ```
    pub fn add(&mut self, text: &str) {
        let is_data = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_' | b'=');
        let beginning = text.as_bytes().iter().take(SHORTEST_ATTACHMENT);
        if text.len() > SHORTEST_ATTACHMENT && (text.starts_with("data:") || beginning.copied().all(is_data)) {
            self.attachments = self.attachments.saturating_add(1);
        } else {
            self.bytes = self.bytes.saturating_add(text.len() as u64);
            self.most_words = self.most_words.saturating_add(most_words(text));
        }
    }

    /// Adds a number of so many digits.
    pub const fn add_number(&mut self, digits: usize) {
        self.bytes = self.bytes.saturating_add(BYTES_OF_A_NUMBER);
        self.most_words = self.most_words.saturating_add(digits as u64);
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
            Value::Number(number) => self.add_number(number.to_string().len()),
            Value::Null | Value::Bool(_) => {}
        }
    }

    /// The most tokens it may have for a model.
    pub fn most_tokens(self, model: &str) -> u64 {
        let attached = if self.attachments == 0 { 0 } else { self.attachments.saturating_mul(tokens_of_an_image(model, false)) };
        self.most_words.saturating_add(FRAME_TOKENS).saturating_add(attached)
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

/// The most tokens that so much text has, by its kinds of characters. Measured with `OpenAI`'s tokenizers: UUIDs have 1.56 bytes a token, CSV
/// 1.72, base64 1.40, emoji 1.46; prose has four. What has no blank for long is no word, and may have a token a byte.
///
/// ```
/// use runguard_core::prices::most_words;
///
/// assert_eq!(most_words("a table of all"), 7);
/// assert_eq!(most_words("0b9c-4f1e"), 9 - 2, "a letter and another are half a token each");
/// ```
pub fn most_words(text: &str) -> u64 {
    let plain = text.bytes().filter(|byte| byte.is_ascii_lowercase() || *byte == b' ').count() as u64;
    let plain = plain.saturating_sub(letters_in_long_runs(text.as_bytes()));
    plain / 2 + (text.len() as u64 - plain)
}

/// How many small letters stand in runs that are longer than any word.
fn letters_in_long_runs(text: &[u8]) -> u64 {
    /// As long as no word is.
    const LONG: usize = 32;
    let is_letter = |byte: &u8| byte.is_ascii_lowercase();
    let (mut letters, mut at) = (0, LONG - 1);
    // Every run that is long has a letter at one of these places.
    while let Some(byte) = text.get(at) {
        if !is_letter(byte) {
            at += LONG;
            continue;
        }
        let before = text[..at].iter().rev().take_while(|byte| is_letter(byte)).count();
        let behind = text[at..].iter().take_while(|byte| is_letter(byte)).count();
        if before + behind >= LONG {
            letters += (before + behind) as u64;
        }
        // The next run begins behind a byte that is no letter.
        at += behind + LONG;
    }
    letters
}

/// The most tokens that a model takes an image for; `is_original` where it is to be looked at as it is.
///
/// ```
/// use runguard_core::prices::tokens_of_an_image;
///
/// assert_eq!((tokens_of_an_image("gpt-4o", false), tokens_of_an_image("gpt-4o", true)), (5_000, 12_000));
/// assert_eq!(tokens_of_an_image("gpt-4o-mini-2024-07-18", false), 48_200);
/// ```
pub fn tokens_of_an_image(model: &str, is_original: bool) -> u64 {
    /// 2,833, and 5,667 for each of eight tiles.
    const OF_GPT_4O_MINI: u64 = 48_200;
    /// 16,384 patches.
    const OF_QWEN: u64 = 16_400;
    /// 10,000 patches, of which each counts 1.2 times.
    const ORIGINAL: u64 = 12_000;
    const OF_OTHERS: u64 = 5_000;
    let name = model.to_ascii_lowercase();
    if name.contains("gpt-4o-mini") {
        return OF_GPT_4O_MINI;
    }
    if name.contains("qwen") {
        return OF_QWEN;
    }
    // Those with long prompts look at large images as they are when they like to.
    let is_newer = name.contains("gpt-") && may_read_long_prompts(model);
    if is_newer || is_original { ORIGINAL } else { OF_OTHERS }
}

#[cfg(feature = "prices")]
fn may_read_long_prompts(model: &str) -> bool {
    Prices::bundled().reads_long_prompts(model)
}

/// Without the table nobody knows.
#[cfg(not(feature = "prices"))]
const fn may_read_long_prompts(_: &str) -> bool {
    true
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_that_are_no_words_may_have_a_token_each() {
        let prose = "all of it was read once more and then some ".repeat(40);
        assert_eq!(most_words(&prose), prose.len() as u64 / 2);
        for (before, length) in [(0, 32), (5, 33), (31, 40), (63, 300), (7, 5_000)] {
            let text = format!("{}{} {prose}", "a ".repeat(before), "qxz".repeat(length));
            let plain = text.len() as u64 - 3 * length as u64;
            assert_eq!(most_words(&text), plain / 2 + 3 * length as u64, "{before} {length}");
        }
        assert_eq!(most_words(&"x".repeat(31)), 15);
    }

    #[test]
    fn an_image_has_as_many_tokens_as_its_model_takes_it_for() {
        for (model, tokens) in [("gpt-5.5", 12_000), ("claude-sonnet-4-6", 5_000), ("qwen3-vl-plus", 16_400)] {
            assert_eq!(tokens_of_an_image(model, false), tokens, "{model}");
        }
    }
}
