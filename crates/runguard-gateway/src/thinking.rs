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

/// Members by which a model is told to think, as Anthropic, Bedrock, `OpenAI`, `OpenRouter` and those who speak like them call them.
const TOLD: [&str; 7] =
    ["thinking", "reasoning_config", "reasoning", "reasoning_effort", "include_reasoning", "enable_thinking", "thinking_budget"];
/// Members in which others stand.
const AROUND: [&str; 3] = ["additionalModelRequestFields", "extra_body", "chat_template_kwargs"];

/// Whether such a member says that there is to be none.
fn is_off(value: &str) -> bool {
    let says = |name: &str, off: &[&str]| {
        Members::read(value.as_bytes()).is_ok_and(|members| members.get(name).is_some_and(|value| off.contains(&value)))
    };
    matches!(value, "\"none\"" | "\"disabled\"" | "false" | "0")
        || says("type", &["\"disabled\""])
        || says("effort", &["\"none\""])
        || says("enabled", &["false"])
}

/// Of a model that nobody here knows it is taken for granted.
pub(crate) fn is_unseen(model: &str, body: &Members<'_>) -> bool {
    let model = model.to_ascii_lowercase();
    if answers_at_once(&model) {
        return false;
    }
    let inner: Vec<Members<'_>> =
        AROUND.iter().filter_map(|name| body.get(name)).filter_map(|more| Members::read(more.as_bytes()).ok()).collect();
    let mut said = std::iter::once(body).chain(&inner).flat_map(|body| TOLD.iter().filter_map(|name| body.get(name)));
    if model.contains(WHEN_TOLD) {
        return said.any(|value| !is_off(value));
    }
    // A server that is told to leave it out does.
    !said.any(is_off)
}

/// How much a model may think by what it is told, where that leaves room for an answer.
pub(crate) fn budget(body: &Members<'_>, max_output: Option<u64>) -> u64 {
    let told = |member: &str, name: &'static str| Members::read(body.get(member)?.as_bytes()).ok()?.whole(name).ok()?;
    let reasoning = told("reasoning", "max_tokens").filter(|budget| max_output.is_none_or(|most| *budget < most));
    told("thinking", "budget_tokens").max(reasoning).unwrap_or(0)
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
    fn an_answer_has_something_beside_what_is_thought() {
        let of = |body: Value, max_output| {
            let text = body.to_string();
            budget(&Members::read(text.as_bytes()).unwrap(), max_output)
        };
        assert_eq!(of(json!({"thinking": {"type": "enabled", "budget_tokens": 2_000}}), Some(4_000)), 2_000);
        assert_eq!(of(json!({"reasoning": {"max_tokens": 3_000}}), Some(4_000)), 3_000);
        assert_eq!(of(json!({"reasoning": {"max_tokens": 3_000}}), Some(1_000)), 0, "who asks for so little knows it");
        assert_eq!(of(json!({"reasoning": {"effort": "high"}, "thinking": "x"}), None), 0);
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
        for told in [
            json!({"reasoning_effort": "high"}),
            json!({"reasoning": {"effort": "low"}}),
            json!({"reasoning": {"max_tokens": 4_000}}),
            json!({"reasoning": {"enabled": true}}),
            json!({"extra_body": {"reasoning": {"effort": "high"}}}),
            json!({"include_reasoning": true}),
        ] {
            let mut body = told.clone();
            body["model"] = json!("anthropic/claude-sonnet-4.6");
            assert!(thinks(&body), "{told}");
        }
        for off in [json!({"reasoning_effort": "none"}), json!({"reasoning": {"enabled": false}}), json!({"reasoning": null})] {
            let mut body = off.clone();
            body["model"] = json!("anthropic/claude-sonnet-4.6");
            assert!(!thinks(&body), "{off}");
        }
        let converse = json!({"model": "anthropic.claude-sonnet-4-6", "additionalModelRequestFields": {"thinking": {"type": "enabled"}}});
        assert!(thinks(&converse));
    }
}
