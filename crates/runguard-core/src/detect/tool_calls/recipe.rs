//! Results of a recipe's actions, so that a step that is run again does not act again.

use super::InvalidCall;
use crate::fingerprint::{Volatile, as_arguments, canonical_value};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::VecDeque;
use xxhash_rust::xxh3::Xxh3;

/// Results a cache keeps; of more, the oldest is forgotten.
const MOST_RESULTS: usize = 1_000;

/// Results of `composio` actions in the steps of one recipe. Only the same action with the same arguments (in any form, see
/// [`crate::fingerprint`]) in the same step is a hit; nothing here is "similar". Put in what succeeded: what is in here
/// is not run again.
///
/// It keeps at most 1,000 results and forgets the oldest first.
///
/// ```
/// use runguard_core::detect::tool_calls::RecipeCache;
/// use serde_json::json;
///
/// let mut cache = RecipeCache::new();
/// cache.put("notify", "SLACK_SEND_MESSAGE", &json!({"channel": "ops", "text": "done"}), "sent")?;
/// assert_eq!(cache.get("notify", "SLACK_SEND_MESSAGE", &json!({"text": "done", "channel": "ops"}))?, Some(&"sent"));
/// assert_eq!(cache.get("escalate", "SLACK_SEND_MESSAGE", &json!({"channel": "ops", "text": "done"}))?, None);
/// # Ok::<(), runguard_core::detect::tool_calls::InvalidCall>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecipeCache<R> {
    results: VecDeque<(u128, R)>,
}

impl<R> Default for RecipeCache<R> {
    fn default() -> Self {
        Self::new()
    }
}

impl<R> RecipeCache<R> {
    /// One without results.
    pub const fn new() -> Self {
        Self { results: VecDeque::new() }
    }

    /// What a step gave, if it was run with these arguments.
    pub fn get(&self, step: &str, action: &str, args: &Value) -> Result<Option<&R>, InvalidCall> {
        let key = key(step, action, args)?;
        Ok(self.results.iter().find(|(known, _)| *known == key).map(|(_, result)| result))
    }

    /// Replaces what was there.
    pub fn put(&mut self, step: &str, action: &str, args: &Value, result: R) -> Result<(), InvalidCall> {
        let key = key(step, action, args)?;
        self.results.retain(|(known, _)| *known != key);
        self.results.push_back((key, result));
        if self.results.len() > MOST_RESULTS {
            self.results.pop_front();
        }
        Ok(())
    }

    /// Another recipe, or the same one from its start: nothing has run yet.
    pub fn new_recipe(&mut self) {
        self.results.clear();
    }

    /// How many results are kept.
    pub fn len(&self) -> usize {
        self.results.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.results.is_empty()
    }
}

/// 128 bits, because a hit hands out a result: it must be that of this call.
fn key(step: &str, action: &str, args: &Value) -> Result<u128, InvalidCall> {
    if action.is_empty() {
        return Err(InvalidCall::NoTool);
    }
    let args = canonical_value(args, Volatile::NONE)?;
    let mut hasher = Xxh3::new();
    for part in [step, action, as_arguments(&args)] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    Ok(hasher.digest128())
}
