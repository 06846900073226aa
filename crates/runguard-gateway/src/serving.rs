//! How providers serve what leaves that to them: before others, for more, where a project is set so.

use runguard_core::prices::ServiceTier;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use xxhash_rust::xxh3::xxh3_64;

/// Who pays at an upstream: a project of the provider's has its own way to be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Payer(u64);

impl Payer {
    /// With a key of its own, or with the operator's; and for which of the key's projects, where the caller names one.
    pub(crate) fn new(upstream: &str, own_key: Option<&str>, project: &[u8]) -> Self {
        Self(xxh3_64(&[upstream.as_bytes(), own_key.unwrap_or_default().as_bytes(), project].join(&0)))
    }
}

/// How answers were served, by who paid.
#[derive(Debug, Default)]
pub(crate) struct Serving {
    /// Whether any was served before others.
    first: Mutex<HashMap<Payer, bool>>,
}

impl Serving {
    /// Nobody knows before the first answer; once one was served first, others may be.
    pub(crate) fn is_as_usual(&self, payer: Payer) -> bool {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).get(&payer) == Some(&false)
    }

    pub(crate) fn learn(&self, payer: Payer, tier: ServiceTier) {
        /// More begin anew: that is dearer for one question of each, and no less safe.
        const MOST: usize = 10_000;
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        if first.len() >= MOST && !first.contains_key(&payer) {
            first.clear();
        }
        *first.entry(payer).or_default() |= tier == ServiceTier::Priority;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Gateway;
    use crate::answer;
    use crate::api::Api;
    use crate::members::Members;
    use crate::question::{KnownAs, Question};
    use http::HeaderMap;
    use serde_json::{Value, json};

    #[test]
    fn only_answers_to_questions_that_leave_it_open_say_how_those_are_served() {
        let (gateway, payer) = (Gateway::default(), Payer::new("openai", None, b""));
        let is_as_usual_after = |api: Api, model: &str, said: Value, served: &str| {
            let body = json!({"model": model, "messages": [], "input": "a", "service_tier": said}).to_string();
            let question = Question::read(api, &KnownAs::itself(model), &Members::read(body.as_bytes()).unwrap()).unwrap();
            let answer =
                json!({"model": model, "service_tier": served, "usage": {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}});
            let account = answer::read(api, &HeaderMap::new(), answer.to_string().as_bytes());
            assert!(account.usage.is_some());
            gateway.learn("openai", &"t".into(), payer, &question, &account);
            gateway.serves_as_usual(payer)
        };
        assert!(!is_as_usual_after(Api::Chat, "gpt-5.5", json!("default"), "default"), "it was asked for");
        assert!(!is_as_usual_after(Api::Embeddings, "text-embedding-3-small", Value::Null, "default"), "it has one price");
        assert!(is_as_usual_after(Api::Chat, "gpt-5.5", Value::Null, "default"));
        assert!(is_as_usual_after(Api::Chat, "gpt-5.5", json!("priority"), "priority"), "it was asked for");
        assert!(!is_as_usual_after(Api::Chat, "gpt-5.5", Value::Null, "priority"));
    }

    #[test]
    fn who_was_served_first_may_be_again_and_who_is_unknown_may_be_too() {
        let serving = Serving::default();
        let payer = |upstream, key| Payer::new(upstream, key, b"");
        let (ours, own, azure) = (payer("openai", None), payer("openai", Some("sk-1")), payer("azure", None));
        assert!(!serving.is_as_usual(ours), "nobody knows yet");
        serving.learn(ours, ServiceTier::Standard);
        assert!(serving.is_as_usual(ours) && !serving.is_as_usual(own) && !serving.is_as_usual(azure), "each for itself");
        assert!(!serving.is_as_usual(Payer::new("openai", None, b"another")), "each project too");
        serving.learn(ours, ServiceTier::Priority);
        serving.learn(ours, ServiceTier::Standard);
        assert!(!serving.is_as_usual(ours), "one that was served later says nothing of the next");
    }
}
