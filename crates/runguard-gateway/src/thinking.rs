//! Whether a model may think before it answers, unseen: what it thought is billed, and is in no piece of the stream.

use crate::members::Members;

/// What the names of models have that answer at once.
const AT_ONCE: [&str; 17] = [
    "gpt-3",
    "gpt-4",
    "gpt4",
    "chatgpt-4o",
    "claude-2",
    "claude-instant",
    "claude-3-haiku",
    "claude-3-opus",
    "claude-3-sonnet",
    "claude-3-5",
    "llama",
    "mixtral",
    "titan",
    "nova-micro",
    "nova-lite",
    "nova-pro",
    "command",
];
/// What the names of models have that think, whatever else is in them: one that was taught by another has both names.
const THINKING: [&str; 11] =
    ["reason", "think", "qwq", "magistral", "nemotron", "cogito", "hermes-4", "qwen3", "command-a-plus", "gpt-oss", "deepseek-llama"];
/// The same as words of their own: within another they say nothing.
const THINKING_WORDS: [&str; 4] = ["r1", "o1", "o3", "o4"];
/// Those that think when they are told to, and show when they do.
const WHEN_TOLD: &str = "claude";

/// By its name, in small letters. Who offers it stands before that, and says nothing of it (`ollama/qwen3`).
fn answers_at_once(model: &str) -> bool {
    let own = model.rsplit('/').next().unwrap_or(model);
    let has = |names: &[&str]| names.iter().any(|name| own.contains(name));
    let is_word = |word: &str| THINKING_WORDS.contains(&word);
    let thinks = || has(&THINKING) || own.split(|letter: char| !letter.is_ascii_alphanumeric()).any(is_word);
    // Vectors are not thought about.
    own.contains("embed") || (has(&AT_ONCE) && !thinks())
}

/// Of a model that nobody here knows it is taken for granted.
pub(crate) fn is_unseen(model: &str, body: &Members<'_>) -> bool {
    let model = model.to_ascii_lowercase();
    if answers_at_once(&model) {
        return false;
    }
    if model.contains(WHEN_TOLD) {
        let is_told = |text: &str| !text.contains("\"disabled\"");
        let more = body.get("additionalModelRequestFields").and_then(|more| Members::read(more.as_bytes()).ok());
        let told = |body: &Members<'_>| ["thinking", "reasoning_config"].iter().any(|name| body.get(name).is_some_and(is_told));
        return told(body) || more.as_ref().is_some_and(told);
    }
    // A server that is told to leave it out does.
    let is_off = |value: &str| matches!(value, "\"none\"" | "false");
    let effort = body.get("reasoning").and_then(|reasoning| Members::read(reasoning.as_bytes()).ok());
    !(body.get("reasoning_effort").is_some_and(is_off)
        || body.get("enable_thinking").is_some_and(is_off)
        || effort.and_then(|effort| effort.get("effort")).is_some_and(is_off))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn thinks(body: &Value) -> bool {
        let text = body.to_string();
        is_unseen(body["model"].as_str().unwrap(), &Members::read(text.as_bytes()).unwrap())
    }

    #[test]
    fn a_name_of_the_price_table_that_says_that_it_thinks_is_taken_at_its_word() {
        let table: Value = serde_json::from_str(include_str!("../../runguard-core/data/prices.json")).unwrap();
        let (mut thinking, mut at_once) = (0, 0);
        for model in table["models"].as_object().unwrap().keys() {
            let name = model.to_ascii_lowercase();
            let own = name.rsplit('/').next().unwrap();
            if own.contains("embed") {
                continue;
            }
            let says = |marks: &[&str]| marks.iter().any(|mark| own.contains(mark));
            let is_at_once = answers_at_once(&name);
            if says(&["deepseek-r1", "reasoning", "think", "qwq", "magistral", "qwen3"]) || own.starts_with("o1") || own.starts_with("o3") {
                assert!(!is_at_once, "{model}");
                thinking += 1;
            }
            if !says(&["gpt", "claude", "llama", "mixtral", "titan", "nova", "command"]) {
                assert!(!is_at_once, "{model}: by who offers it");
            }
            if says(&["llama-3.3-70b-instruct", "gpt-4o", "command-r-plus", "claude-3-haiku"]) {
                assert!(is_at_once, "{model}");
                at_once += 1;
            }
        }
        assert!(thinking > 100 && at_once > 50, "{thinking} and {at_once}");
        for model in ["deepseek-r1-distill-llama-70b", "llamagate/deepseek-r1-8b", "command-a-reasoning", "ollama/qwq", "openai/o1-pro"] {
            assert!(!answers_at_once(model), "{model}");
        }
    }

    #[test]
    fn a_model_thinks_unless_it_is_known_not_to() {
        for (model, expected) in
            [("gpt-4o", false), ("openai/gpt-4.1-mini", false), ("o3", true), ("gpt-5", true), ("deepseek-reasoner", true), ("new", true)]
        {
            assert_eq!(thinks(&json!({"model": model})), expected, "{model}");
        }
        assert!(!thinks(&json!({"model": "gpt-5.1", "reasoning_effort": "none"})));
        assert!(!thinks(&json!({"model": "gpt-5.1", "reasoning": {"effort": "none"}})));
        assert!(thinks(&json!({"model": "gpt-5.1", "reasoning": {"effort": "low"}})));
        let claude = |thinking: Value| thinks(&json!({"model": "claude-sonnet-4-6", "thinking": thinking}));
        assert!(claude(json!({"type": "adaptive"})) && claude(json!({"type": "enabled", "budget_tokens": 2_000})));
        assert!(!claude(json!({"type": "disabled"})) && !claude(Value::Null));
        let converse = json!({"model": "anthropic.claude-sonnet-4-6", "additionalModelRequestFields": {"thinking": {"type": "enabled"}}});
        assert!(thinks(&converse));
    }
}
