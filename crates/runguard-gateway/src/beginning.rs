//! Which run a conversation belongs to that names none.
//!
//! Where every question carries the whole conversation, how that begins is all it can be known by. Where the provider keeps it, the questions
//! that follow name an answer: there each beginning is a run of its own, so that people who begin alike have nothing to do with each other.
//! The same first question again, because nobody answered it, is no other run; and a conversation that is sent whole all the same is known
//! by the first answer in it.

use crate::Gateway;
use crate::answer::Account;
use crate::earlier::{Answer, Named, filed, filed_of_caller};
use crate::history;
use crate::identity::{Begins, RunName};
use crate::members::Members;
use crate::money::Guards;
use http::HeaderMap;
use runguard_core::fingerprint;
use runguard_engine::Caller;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::PoisonError;
use xxhash_rust::xxh3::xxh3_64;

/// First questions that are remembered.
const MOST_FIRSTS: usize = 20_000;

/// First questions by the hash of all they say: their run, and whether nobody answered them.
#[derive(Debug, Default)]
pub(crate) struct Firsts {
    by_body: HashMap<u64, (RunName, bool)>,
    order: VecDeque<u64>,
}

/// What an answer will be found by.
#[derive(Debug, Clone, Default)]
pub(crate) struct FoundAgain {
    upstream: String,
    /// The conversation that the question names, and what its name is filed under for this caller alone.
    conversation: Option<(String, String)>,
    /// The answer that the question follows there.
    follows: Option<(String, Option<u64>)>,
    /// Of a first question: whose it is and how it begins, for conversations that are sent whole.
    beginning: Option<String>,
    /// The hash of all that it says, and its run.
    first: Option<(u64, String)>,
}

impl FoundAgain {
    pub(crate) fn new(upstream: &str, caller: &Caller, conversation: Option<String>, follows: Option<&Answer>) -> Self {
        let follows = follows.filter(|_| conversation.is_some()).map(Answer::place);
        let conversation = conversation.map(|name| {
            let of_caller = filed_of_caller(upstream, caller, &name);
            (name, of_caller)
        });
        Self { upstream: upstream.to_owned(), conversation, follows, ..Self::default() }
    }

    /// What the conversation's name is filed under. Where an answer says that it belongs to it, the provider keeps it, and it is nobody else's.
    /// A service that knows of none may be told any name, by anybody: that shuts nobody out.
    pub(crate) fn conversation(&self, account: &Account) -> Option<String> {
        let (name, of_caller) = self.conversation.as_ref()?;
        Some(if account.conversation.as_ref() == Some(name) { filed(&self.upstream, name) } else { of_caller.clone() })
    }

    pub(crate) fn follows(&self) -> Option<&(String, Option<u64>)> {
        self.follows.as_ref()
    }

    /// What the answer's names are filed under; none where no question can refer to it.
    pub(crate) fn names(&self, account: &Account) -> Vec<String> {
        let Some(id) = &account.id else { return Vec::new() };
        let marks = self.beginning.iter().flat_map(|beginning| account.marks.iter().map(move |mark| format!("{beginning}\0{mark}")));
        let filed = |name: String| filed(&self.upstream, &name);
        std::iter::once(filed(id.clone())).chain(self.conversation(account)).chain(marks.map(filed)).collect()
    }
}

impl Gateway {
    /// The run of a conversation that begins so, where the provider keeps it.
    pub(crate) async fn run_of_beginning(
        &self,
        guards: &Guards,
        begins: &Begins,
        headers: &HeaderMap,
        body: &Members<'_>,
        found_again: &mut FoundAgain,
    ) -> RunName {
        let beginning = format!("{}\0{}\0{}", guards.caller.tenant, guards.caller.key_id, begins.hash());
        let input = body.get("input").unwrap_or_default();
        if history::goes_on(input) {
            for mark in history::marks(input) {
                let name = filed(&found_again.upstream, &format!("{beginning}\0{mark}"));
                if let Named::Known(answer) = self.named(guards, &name).await {
                    return RunName { name: answer.run.clone(), ..begins.alike() };
                }
            }
            return begins.alike();
        }
        let first = xxh3_64(format!("{beginning}\0{}\0{}", found_again.upstream, body.whole_text()).as_bytes());
        found_again.beginning = Some(beginning);
        let mut is = |run: &RunName| found_again.first = Some((first, run.name.clone()));
        let tries = headers.get("x-stainless-retry-count").and_then(|count| count.to_str().ok()?.trim().parse::<u32>().ok());
        let mut firsts = self.firsts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((run, was_not_answered)) = firsts.by_body.get_mut(&first)
            && (*was_not_answered || tries.is_some_and(|tries| tries > 0))
        {
            *was_not_answered = false;
            is(run);
            return run.clone();
        }
        let run = begins.alone(&fingerprint::hex(RandomState::new().hash_one(first))[..8]);
        is(&run);
        if firsts.by_body.insert(first, (run.clone(), false)).is_none() {
            firsts.order.push_back(first);
        }
        if firsts.order.len() > MOST_FIRSTS
            && let Some(oldest) = firsts.order.pop_front()
        {
            firsts.by_body.remove(&oldest);
        }
        run
    }

    /// Nobody has answered a question: the same one again is no other run.
    pub(crate) fn not_answered(&self, question: &FoundAgain) {
        let Some((first, name)) = &question.first else { return };
        let mut firsts = self.firsts.lock().unwrap_or_else(PoisonError::into_inner);
        // Somebody else may have begun alike since.
        if let Some((_, was_not_answered)) = firsts.by_body.get_mut(first).filter(|(run, _)| run.name == *name) {
            *was_not_answered = true;
        }
    }
}
