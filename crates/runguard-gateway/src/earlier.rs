//! Answers that later questions refer to: whose run they are, how long the conversation is, which calls they asked for.
//!
//! Providers keep conversations for callers who send only what is new. What a question leaves out is put together here from the answer that it
//! follows. Other nodes may be asked next, so it is noted where the nodes share their states; a process alone remembers its latest ones, and
//! after a restart finds in its log whose they are.

use crate::Gateway;
use crate::answer::Account;
use crate::beginning::FoundAgain;
use crate::history::{Before, OpenCall};
use crate::money::Guards;
use runguard_core::fingerprint;
use runguard_core::reason::GuardName;
use runguard_core::row::RowRef;
use runguard_core::time::DAY_MILLIS;
use runguard_engine::Caller;
use runguard_guards::logged::{self, Spending};
use runguard_store::{Order, RowFilter};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, MutexGuard, PoisonError};
use xxhash_rust::xxh3::xxh3_64;

/// Answers that are remembered.
const MOST_ANSWERS: usize = 100_000;
/// More calls than an answer asks for are not followed.
const MOST_CALLS: usize = 64;
/// Rows of the log that are looked at after a restart, and how far back: as long as other nodes are told.
const MOST_ROWS: usize = 200_000;
const ROWS_AT_ONCE: usize = 2_000;
/// Names of answers belong to the provider, not to a tenant: whose one is stands beside it.
const NOBODYS: &str = "";

/// What is remembered of an answer. Of what was said there are hashes alone.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Answer {
    tenant: String,
    /// The key that it was given to.
    key: String,
    pub(crate) run: String,
    /// The hash of its own name: a conversation has another answer each time.
    name: String,
    /// Of the conversation so far, where somebody has counted them.
    pub(crate) tokens: Option<u64>,
    calls: Vec<OpenCall>,
    said: Option<String>,
}

impl Answer {
    /// What a question that follows it needs.
    pub(crate) fn before(&self) -> Before<'_> {
        Before { name: &self.name, calls: &self.calls, said: self.said.as_deref() }
    }

    /// What a question needs to be told apart from others that follow the same answer: which one that is, and how long the conversation was.
    pub(crate) fn place(&self) -> (String, Option<u64>) {
        (self.name.clone(), self.tokens)
    }

    /// The same in a conversation that has grown beside it: another answer came since the one that its question followed. Both are in it then.
    fn beside(&self, latest: &Self, follows: Option<&(String, Option<u64>)>) -> Self {
        if follows.is_some_and(|(name, _)| *name == latest.name) || latest.name == self.name {
            return self.clone();
        }
        let before = follows.and_then(|(_, tokens)| *tokens).unwrap_or(0);
        let tokens = self.tokens.zip(latest.tokens).map(|(own, latest)| latest.saturating_add(own.saturating_sub(before)).max(own));
        Self { tokens, ..self.clone() }
    }

    /// The same beside all that are known to be the latest, the longest that any of them makes it. One that nobody knows may be longer still.
    fn beside_all<'a>(&self, latest: impl IntoIterator<Item = &'a Self>, follows: Option<&(String, Option<u64>)>) -> Self {
        let lengths = latest.into_iter().map(|latest| self.beside(latest, follows).tokens);
        let tokens = lengths.fold(self.tokens, |most, tokens| most.zip(tokens).map(|(most, tokens)| most.max(tokens)));
        Self { tokens, ..self.clone() }
    }

    fn is_of(&self, guards: &Guards) -> bool {
        self.tenant == *guards.caller.tenant && self.key == *guards.caller.key_id
    }
}

/// What is known of the answer that a question names.
#[derive(Debug)]
pub(crate) enum Named {
    Known(Arc<Answer>),
    /// It did not pass here, or went to another key of the same tenant.
    Unknown,
    /// It is another tenant's.
    Foreign,
}

/// What a name is filed under: what is noted of a conversation, and what the log keeps, does not give the name away. Large and small letters are
/// one: a server for which they are would else tell what another tenant left.
pub(crate) fn filed(upstream: &str, name: &str) -> String {
    fingerprint::hex(xxh3_64(format!("{upstream}\0{}", name.to_ascii_lowercase()).as_bytes()))
}

/// Whether a provider can have given this name to what it keeps: no blanks, no quotes, nothing that stands for another character. Of another
/// one nobody here could say whose it is, and a server that is less exact would find somebody's by it.
pub(crate) fn is_name(name: &str) -> bool {
    const LONGEST: usize = 1_024;
    let belongs = |byte: u8| byte.is_ascii_graphic() && !b"\"'\\%#?*<>".contains(&byte);
    (1..=LONGEST).contains(&name.len()) && name.bytes().all(belongs)
}

/// The same of a name that the caller chose, and that no answer has said: it is that caller's own, whoever else uses it.
pub(crate) fn filed_of_caller(upstream: &str, caller: &Caller, name: &str) -> String {
    // No upstream has a colon in its name, so no name that a provider confirms is filed so.
    filed(&format!("of:{}\0{}\0{upstream}", caller.tenant, caller.key_id), name)
}

/// The latest answers, by what their names are filed under.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    by_name: HashMap<String, Arc<Answer>>,
    order: VecDeque<String>,
}

impl Answers {
    /// Remembers an answer of a conversation beside the latest that others share and the latest here, which may have come since those were asked.
    fn remember_beside(
        &mut self,
        name: &str,
        answer: &Answer,
        shared: Option<&Answer>,
        follows: Option<&(String, Option<u64>)>,
    ) -> Arc<Answer> {
        let here = self.by_name.get(name).filter(|here| here.tenant == answer.tenant && here.key == answer.key).cloned();
        let answer = Arc::new(answer.beside_all(shared.into_iter().chain(here.as_deref()), follows));
        self.remember(name.to_owned(), answer.clone());
        answer
    }

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
    fn known(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers an answer by all names that it is found by.
    pub(crate) async fn remember(&self, guards: &Guards, account: &Account, run: &str, names: &[String], found_again: &FoundAgain) {
        if !names.is_empty() {
            // Boxed, as few answers can be referred to: the others do not carry the room for it around.
            Box::pin(self.remember_as(guards, account, run, names, found_again)).await;
        }
    }

    async fn remember_as(&self, guards: &Guards, account: &Account, run: &str, names: &[String], found_again: &FoundAgain) {
        let answer = Arc::new(Answer {
            tenant: guards.caller.tenant.to_string(),
            key: guards.caller.key_id.clone(),
            run: run.to_owned(),
            name: names.first().cloned().unwrap_or_default(),
            tokens: account.usage.filter(|_| !account.is_estimated()).map(|usage| usage.total_tokens()),
            calls: account.calls.iter().take(MOST_CALLS).cloned().collect(),
            said: account.said.clone(),
        });
        let conversation = found_again.conversation(account);
        for name in names {
            // What is another tenant's stays so, whatever a provider calls its answers.
            if self.known().by_name.get(name).is_some_and(|known| known.tenant != answer.tenant) {
                continue;
            }
            let answer = if conversation.as_ref() == Some(name) {
                let shared = match self.named(guards, name).await {
                    Named::Known(latest) => Some(latest),
                    Named::Unknown | Named::Foreign => None,
                };
                // Two that end together in this process are both counted. On two nodes, or where what is noted below arrives in another order, the
                // later note stands: the conversation is taken for shorter by one answer, until the next one says how long it is.
                self.known().remember_beside(name, &answer, shared.as_deref(), found_again.follows())
            } else {
                self.known().remember(name.clone(), answer.clone());
                answer.clone()
            };
            let noted = serde_json::to_vec(&*answer).unwrap_or_default();
            guards.engine.note(NOBODYS, name, &noted).await;
        }
    }

    /// What is known of the answer that a question follows.
    pub(crate) async fn named(&self, guards: &Guards, filed: &str) -> Named {
        // Where others may have answered meanwhile, what they share counts.
        let noted = guards.engine.noted(NOBODYS, filed).await;
        let mut found = noted.and_then(|noted| serde_json::from_slice(&noted).ok().map(Arc::new));
        if found.is_none() {
            found = self.known().by_name.get(filed).cloned();
        }
        if found.is_none() && !self.log_read.initialized() {
            self.log_read.get_or_init(|| Box::pin(self.read_log(guards))).await;
            found = self.known().by_name.get(filed).cloned();
        }
        match found {
            Some(answer) if answer.is_of(guards) => Named::Known(answer),
            Some(answer) if answer.tenant != *guards.caller.tenant => Named::Foreign,
            Some(_) | None => Named::Unknown,
        }
    }

    /// Finds answers of before this process began in its log: which calls they asked for is not known any more, but whose run they are.
    async fn read_log(&self, guards: &Guards) {
        let Some(now) = guards.now() else { return };
        let (mut after, mut found) = (None, Vec::new());
        for _ in 0..MOST_ROWS / ROWS_AT_ONCE {
            let filter = RowFilter {
                guard: Some(GuardName::Budget.code().to_owned()),
                since: Some(now.as_millis().saturating_sub(DAY_MILLIS)),
                ..RowFilter::default()
            };
            let Ok(rows) = guards.engine.rows(filter, Order::NewestFirst, after, ROWS_AT_ONCE).await else { break };
            after = rows.last().map(|row| row.seq);
            let is_last = rows.len() < ROWS_AT_ONCE;
            found.extend(rows.iter().flat_map(|row| answers_in(&row.as_ref())));
            if is_last || found.len() >= MOST_ANSWERS {
                break;
            }
        }
        let mut known = self.known();
        // What came since is newer still.
        for (name, answer) in newest_of_each(found) {
            if !known.by_name.contains_key(&name) {
                known.remember(name, Arc::new(answer));
            }
        }
    }
}

/// Each name once, with the newest of its answers: a conversation keeps its name, and is as long as its latest answer says. Of `found` the newest
/// is the first; it becomes the last, so that it is forgotten last.
fn newest_of_each(mut found: Vec<(String, Answer)>) -> Vec<(String, Answer)> {
    let mut names = HashSet::new();
    found.retain(|(name, _)| names.insert(name.clone()));
    found.reverse();
    found
}

/// The answers that a row of the log tells of.
fn answers_in(row: &RowRef<'_>) -> Vec<(String, Answer)> {
    let Some(spending) = logged::shows(row).spending.filter(Spending::is_spent) else { return Vec::new() };
    let Some(call) = spending.call.filter(|call| !call.answers.is_empty()) else { return Vec::new() };
    let used = spending.used;
    let tokens = [used.input, used.output, used.cached, used.cache_writes].into_iter().fold(0, u64::saturating_add);
    let answer = Answer {
        tenant: row.tenant.to_owned(),
        key: spending.key.unwrap_or_default().into_owned(),
        run: row.session.to_owned(),
        name: call.answers.split(' ').next().unwrap_or_default().to_owned(),
        // What was used is told where somebody counted, and where nobody did.
        tokens: Some(tokens).filter(|_| !call.is_estimated),
        ..Answer::default()
    };
    call.answers.split(' ').map(|name| (name.to_owned(), answer.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_filed_alike_however_its_letters_are_written() {
        assert_eq!(filed("openai", "resp_aB"), filed("openai", "RESP_Ab"));
        assert_ne!(filed("openai", "resp_aB"), filed("other", "resp_aB"));
        for name in ["resp_0a1B", "resp_bGl0ZWxsbTpj+/dXN=", "conv_1", "a@b.c/d:e|f"] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", " resp_X", "resp_X ", "resp_X\0", "resp_X\n", "r\u{e9}sp", "resp%5FX", "[\"resp_X\"]", "resp_*"] {
            assert!(!is_name(name), "{name:?}");
        }
        assert!(is_name(&"a".repeat(1_024)) && !is_name(&"a".repeat(1_025)));
    }

    #[test]
    fn answers_side_by_side_are_all_in_their_conversation() {
        let answer = |name: &str, tokens| Answer { name: name.to_owned(), tokens, ..Answer::default() };
        let (base, left, right) = (answer("base", Some(1_000)), answer("left", Some(1_700)), answer("right", Some(1_100)));
        let follows = base.place();
        assert_eq!(left.beside(&base, Some(&follows)).tokens, Some(1_700), "one after the other says it itself");
        assert_eq!(right.beside(&left, Some(&follows)).tokens, Some(1_800), "the shorter one does not take the longer one's place");
        assert_eq!(right.beside(&left, None).tokens, Some(2_800), "two first questions");
        assert_eq!(right.beside(&answer("left", None), Some(&follows)).tokens, None, "nobody knows how long the other was");
        assert_eq!(left.beside(&left, None).tokens, Some(1_700));
    }

    #[test]
    fn answers_that_end_together_are_both_counted() {
        let answer = |name: &str, tokens| Answer { name: name.to_owned(), tokens, ..Answer::default() };
        let (base, follows) = (answer("base", Some(1_000)), answer("base", Some(1_000)).place());
        let mut known = Answers::default();
        known.remember("conversation".to_owned(), Arc::new(base.clone()));
        // Both were told of the same latest answer before either was remembered.
        let mut remember = |answer: &Answer| known.remember_beside("conversation", answer, Some(&base), Some(&follows)).tokens;
        assert_eq!(remember(&answer("left", Some(1_700))), Some(1_700));
        assert_eq!(remember(&answer("right", Some(1_100))), Some(1_800));
        assert_eq!(remember(&answer("unknown", None)), None);
        assert_eq!(remember(&answer("last", Some(1_200))), None, "nobody knows how long it is");
    }

    #[test]
    fn a_conversation_is_as_long_as_its_newest_answer_says() {
        let found = |name: &str, tokens| (name.to_owned(), Answer { tokens: Some(tokens), ..Answer::default() });
        let kept = newest_of_each(vec![found("conversation", 120_000), found("other", 7), found("conversation", 600)]);
        let kept: Vec<_> = kept.iter().map(|(name, answer)| (name.as_str(), answer.tokens)).collect();
        assert_eq!(kept, [("other", Some(7)), ("conversation", Some(120_000))]);
    }
}
