//! Answers that later questions refer to: whose run they are, how long the conversation is, which calls they asked for.
//!
//! Providers keep conversations for callers who send only what is new. What a question leaves out is put together here from the answer that it
//! follows. Other nodes may be asked next, so it is noted where the nodes share their states; a process alone remembers its latest ones.

use crate::answer::Account;
use crate::history::OpenCall;
use crate::money::Guards;
use crate::{Gateway, owned};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, PoisonError};

/// Answers that are remembered.
const MOST_ANSWERS: usize = 100_000;
/// More calls than an answer asks for are not followed.
const MOST_CALLS: usize = 64;

/// What is remembered of an answer. Of what was said there are hashes alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) run: String,
    /// Of the conversation so far.
    pub(crate) tokens: u64,
    pub(crate) calls: Vec<OpenCall>,
}

impl Answer {
    /// An answer that can be referred to, and says how long the conversation is.
    pub(crate) fn of(account: &Account, run: String) -> Option<Self> {
        account.id.as_ref()?;
        let calls = account.calls.iter().take(MOST_CALLS).cloned().collect();
        Some(Self { run, tokens: account.usage?.total_tokens(), calls })
    }
}

/// The latest answers, by their owners and names.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    by_name: HashMap<String, Arc<Answer>>,
    order: VecDeque<String>,
}

impl Answers {
    fn remember(&mut self, name: String, answer: Arc<Answer>) {
        if self.by_name.insert(name.clone(), answer).is_none() {
            self.order.push_back(name);
        }
        if self.order.len() > MOST_ANSWERS
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_name.remove(&oldest);
        }
    }
}

impl Gateway {
    /// Remembers an answer by its name, and as the latest of the conversation that the provider keeps.
    pub(crate) async fn remember(&self, guards: &Guards, id: Option<&str>, conversation: Option<&str>, answer: Answer) {
        let answer = Arc::new(answer);
        let noted = serde_json::to_vec(&*answer).unwrap_or_default();
        for name in [id, conversation].into_iter().flatten().map(|name| owned(&guards.caller, name)) {
            self.answers.lock().unwrap_or_else(PoisonError::into_inner).remember(name.clone(), answer.clone());
            guards.engine.note(&guards.caller.tenant, &name, &noted).await;
        }
    }

    /// The answer that a question follows, if it passed here.
    pub(crate) async fn answer_of(&self, guards: &Guards, name: &str) -> Option<Arc<Answer>> {
        let name = owned(&guards.caller, name);
        // Where others may have answered meanwhile, what they share counts.
        if let Some(noted) = guards.engine.noted(&guards.caller.tenant, &name).await {
            return serde_json::from_slice(&noted).ok().map(Arc::new);
        }
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).by_name.get(&name).cloned()
    }
}
