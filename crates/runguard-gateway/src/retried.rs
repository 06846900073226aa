//! Questions that a client asks again because it did not wait for the answer: the answer to the first is theirs, and is paid once.
//!
//! The clients of `OpenAI` and Anthropic say so (`x-stainless-retry-count`). Only an answer whose caller has gone is given to who asks again, and
//! to one alone: two who ask the same side by side have an answer each. Whoever asks again is known by the tenant, the key and all that was
//! sent, the provider's key among it.

use crate::passing::Passing;
use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http_body::Body as _;
use http_body_util::Either;
use runguard_engine::Caller;
use runguard_engine::clock::NOW_HEADER;
use runguard_http::reply::Reply;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use xxhash_rust::xxh3::Xxh3;

/// How often a client has asked before.
const TRIES: &str = "x-stainless-retry-count";
/// Headers that differ between two tries.
const DIFFERENT: [&str; 9] = [
    TRIES,
    "x-stainless-read-timeout",
    "x-stainless-timeout",
    "traceparent",
    "tracestate",
    "baggage",
    "x-request-id",
    "x-client-request-id",
    "date",
];
/// How long an answer in one piece waits for who asks again.
const WAITS: Duration = Duration::from_secs(60);
/// A stream goes on while it waits, so it does not wait long; clients ask again within two seconds.
const STREAM_WAITS: Duration = Duration::from_secs(3);
/// How long a caller who asks again is taken to have hung up: one connection is closed while another is opened.
const HANGS_UP: Duration = Duration::from_millis(300);
/// No question hangs that was asked so lately. Of an older one it is taken so when it was waited for twice as long as its own caller did, or when
/// another has left it as well: then it answers nobody, and is asked anew.
const HANGS: Duration = Duration::from_secs(15);
const LOOKS_AGAIN: Duration = Duration::from_millis(20);
/// Answers that wait, and their bytes; more are given up.
const MOST_WAITING: usize = 1_000;
const MOST_BYTES: u64 = 32 * 1024 * 1024;

/// All that is sent with a question, and by whom.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Sent {
    tenant: String,
    key: String,
    hash: u128,
}

/// A question that may be asked again.
#[derive(Debug)]
pub(crate) struct Asks {
    sent: Sent,
    is_again: bool,
}

/// Who waits for an answer.
#[derive(Debug)]
enum Waits {
    Caller {
        reply: oneshot::Sender<Reply>,
        is_another: bool,
    },
    /// It is there, and waits itself.
    Answer {
        reply: Reply,
        bytes: u64,
    },
    /// It was taken.
    Over,
}

impl Waits {
    fn is_left(&self) -> bool {
        matches!(self, Self::Caller { reply, .. } if reply.is_closed())
    }
}

/// A question under way, or its answer.
#[derive(Debug)]
struct UnderWay {
    sent: Option<Sent>,
    asked: tokio::time::Instant,
    waits: Mutex<Waits>,
}

impl UnderWay {
    fn waits(&self) -> MutexGuard<'_, Waits> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Questions that may be asked again, and answers that wait for it.
#[derive(Debug, Default)]
pub(crate) struct Retried {
    by_question: Mutex<Known>,
    seed: RandomState,
}

#[derive(Debug, Default)]
struct Known {
    questions: HashMap<Sent, Vec<Arc<UnderWay>>>,
    waiting: usize,
    bytes: u64,
}

impl Retried {
    /// What a question is known by, where its client says how often it has asked.
    pub(crate) fn asks(&self, headers: &HeaderMap, caller: &Caller, passing: &Passing, body: &Bytes) -> Option<Asks> {
        let tries: u32 = headers.get(TRIES)?.to_str().ok()?.trim().parse().ok()?;
        // Nobody else can make a question that is taken for this one.
        let mut hash = Xxh3::with_seed(self.seed.hash_one(TRIES));
        let mut add = |part: &[u8]| {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part);
        };
        add(passing.upstream.as_bytes());
        add(passing.address.uri().as_bytes());
        for (name, value) in headers {
            if !DIFFERENT.contains(&name.as_str()) && *name != CONTENT_LENGTH && name.as_str() != NOW_HEADER {
                add(name.as_str().as_bytes());
                add(value.as_bytes());
            }
        }
        add(body);
        let sent = Sent { tenant: caller.tenant.to_string(), key: caller.key_id.clone(), hash: hash.digest128() };
        Some(Asks { sent, is_again: tries > 0 })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.by_question.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer to the same question that its caller did not wait for, where there is one or will be.
    pub(crate) async fn answer_of_first(self: &Arc<Self>, asks: &Asks) -> Option<Reply> {
        if !asks.is_again {
            return None;
        }
        let gives_up = tokio::time::Instant::now() + HANGS_UP;
        loop {
            let firsts = self.known().questions.get(&asks.sent).cloned().unwrap_or_default();
            if firsts.is_empty() {
                return None;
            }
            for first in firsts {
                let age = first.asked.elapsed();
                let coming = {
                    let mut waits = first.waits();
                    match &mut *waits {
                        Waits::Answer { .. } => {
                            let Waits::Answer { reply, bytes } = std::mem::replace(&mut *waits, Waits::Over) else { continue };
                            drop(waits);
                            self.forget(&first, Some(bytes));
                            return Some(reply);
                        }
                        Waits::Caller { is_another: true, .. } if age >= HANGS => continue,
                        Waits::Caller { reply, is_another } if reply.is_closed() => {
                            let (another, coming) = oneshot::channel();
                            (*reply, *is_another) = (another, true);
                            coming
                        }
                        Waits::Caller { .. } | Waits::Over => continue,
                    }
                };
                let coming = Coming { reply: coming, retried: Arc::clone(self), question: first };
                match tokio::time::timeout(age.max(HANGS), coming.taken()).await {
                    Ok(Some(reply)) => return Some(reply),
                    Ok(None) => {}
                    Err(_) => return None,
                }
            }
            if tokio::time::Instant::now() >= gives_up {
                return None;
            }
            tokio::time::sleep(LOOKS_AGAIN).await;
        }
    }

    /// A question is asked; who waits for its answer.
    pub(crate) fn begin(self: &Arc<Self>, asks: Option<Asks>) -> (Answering, Coming) {
        let (reply, coming) = oneshot::channel();
        let sent = asks.map(|asks| asks.sent);
        let waits = Mutex::new(Waits::Caller { reply, is_another: false });
        let under_way = Arc::new(UnderWay { sent, asked: tokio::time::Instant::now(), waits });
        if let Some(sent) = &under_way.sent {
            self.known().questions.entry(sent.clone()).or_default().push(Arc::clone(&under_way));
        }
        let coming = Coming { reply: coming, retried: Arc::clone(self), question: Arc::clone(&under_way) };
        (Answering { retried: Arc::clone(self), question: under_way }, coming)
    }

    /// Gives an answer to who waits for it, or keeps it for who asks again.
    fn answered(self: &Arc<Self>, question: &Arc<UnderWay>, reply: Reply) {
        let is_success = reply.status().is_success();
        let mut waits = question.waits();
        let Waits::Caller { reply: caller, is_another } = std::mem::replace(&mut *waits, Waits::Over) else { return };
        // What went wrong for one who had gone is no answer to another: nothing was paid, so it is asked anew.
        if is_another && !is_success {
            drop(waits);
            return self.forget(question, None);
        }
        // What is sent is there until it is taken.
        let sent = caller.send(reply);
        drop(waits);
        if let Err(reply) = sent {
            self.keep(question, reply);
        }
    }

    /// Keeps an answer that nobody took for who asks again.
    fn keep(self: &Arc<Self>, question: &Arc<UnderWay>, reply: Reply) {
        let lasts = if is_whole(&reply) { WAITS } else { STREAM_WAITS };
        let bytes = reply.body().size_hint().exact().unwrap_or_default();
        // A process that ends keeps nothing.
        let runtime = tokio::runtime::Handle::try_current().ok().filter(|_| reply.status().is_success());
        let Some(runtime) = runtime.filter(|_| self.has_room(question, bytes)) else {
            return self.forget(question, None);
        };
        *question.waits() = Waits::Answer { reply, bytes };
        let (kept, question) = (Arc::clone(self), Arc::clone(question));
        runtime.spawn(async move {
            tokio::time::sleep(lasts).await;
            let waited = std::mem::replace(&mut *question.waits(), Waits::Over);
            if let Waits::Answer { bytes, .. } = waited {
                kept.forget(&question, Some(bytes));
            }
        });
    }

    /// Whether one more answer may wait; it is counted.
    fn has_room(&self, question: &UnderWay, bytes: u64) -> bool {
        let mut known = self.known();
        let has_room = question.sent.is_some() && known.waiting < MOST_WAITING && known.bytes.saturating_add(bytes) <= MOST_BYTES;
        if has_room {
            known.waiting += 1;
            known.bytes += bytes;
        }
        has_room
    }

    /// Nobody will have it; `waited`: the bytes of an answer that did.
    fn forget(&self, question: &Arc<UnderWay>, waited: Option<u64>) {
        let Some(sent) = &question.sent else { return };
        let mut known = self.known();
        if let Some(bytes) = waited {
            known.waiting = known.waiting.saturating_sub(1);
            known.bytes = known.bytes.saturating_sub(bytes);
        }
        if let Some(questions) = known.questions.get_mut(sent) {
            questions.retain(|one| !Arc::ptr_eq(one, question));
            if questions.is_empty() {
                known.questions.remove(sent);
            }
        }
    }
}

/// Whoever waits for an answer. One who leaves before it was taken leaves it to who asks again.
#[derive(Debug)]
pub(crate) struct Coming {
    reply: oneshot::Receiver<Reply>,
    retried: Arc<Retried>,
    question: Arc<UnderWay>,
}

impl Coming {
    /// The answer, if there will be one.
    pub(crate) async fn taken(mut self) -> Option<Reply> {
        let reply = (&mut self.reply).await.ok()?;
        self.retried.forget(&self.question, None);
        Some(reply)
    }
}

impl Drop for Coming {
    fn drop(&mut self) {
        // From here on nothing is sent to it; what was is here.
        self.reply.close();
        if let Ok(reply) = self.reply.try_recv() {
            self.retried.keep(&self.question, reply);
        }
    }
}

/// Whoever answers a question. One who ends without an answer leaves nobody waiting.
#[derive(Debug)]
pub(crate) struct Answering {
    retried: Arc<Retried>,
    question: Arc<UnderWay>,
}

impl Answering {
    /// Whether nobody waits for the answer now.
    pub(crate) fn is_left(&self) -> bool {
        self.question.waits().is_left()
    }

    pub(crate) fn answered(self, reply: Reply) {
        self.retried.answered(&self.question, reply);
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        let mut waits = self.question.waits();
        if matches!(*waits, Waits::Caller { .. }) {
            *waits = Waits::Over;
            drop(waits);
            self.retried.forget(&self.question, None);
        }
    }
}

fn is_whole(reply: &Reply) -> bool {
    matches!(reply.body(), Either::Left(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Response, StatusCode};
    use http_body_util::{BodyExt, Full};

    fn asks(tenant: &str, hash: u128, is_again: bool) -> Asks {
        Asks { sent: Sent { tenant: tenant.to_owned(), key: "k".to_owned(), hash }, is_again }
    }

    fn reply(status: StatusCode, text: &'static str) -> Reply {
        let mut reply: Reply = Response::new(Either::Left(Full::new(Bytes::from_static(text.as_bytes()))));
        *reply.status_mut() = status;
        reply
    }

    async fn text(reply: Option<Reply>) -> Option<Bytes> {
        Some(reply?.into_body().collect().await.unwrap().to_bytes())
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_again_has_the_answer_that_nobody_waited_for_and_nobody_else_has() {
        let retried = Arc::new(Retried::default());
        let (question, coming) = retried.begin(Some(asks("a", 1, false)));
        assert!(!question.is_left() && retried.answer_of_first(&asks("a", 1, true)).await.is_none(), "somebody waits for it");
        drop(coming);
        assert!(question.is_left());
        for other in [asks("b", 1, true), asks("a", 2, true), asks("a", 1, false)] {
            assert!(retried.answer_of_first(&other).await.is_none(), "{other:?}");
        }
        let again = {
            let retried = Arc::clone(&retried);
            tokio::spawn(async move { text(retried.answer_of_first(&asks("a", 1, true)).await).await })
        };
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(!question.is_left(), "another waits for it by now");
        question.answered(reply(StatusCode::OK, "answer"));
        assert_eq!(again.await.unwrap(), Some(Bytes::from_static(b"answer")));
        assert!(retried.answer_of_first(&asks("a", 1, true)).await.is_none(), "once");
        assert!(retried.known().questions.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_waits_for_a_minute_and_a_failure_does_not() {
        let retried = Arc::new(Retried::default());
        let left = |number| {
            let (question, coming) = retried.begin(Some(asks("a", number, false)));
            drop(coming);
            question
        };
        let (first, second, third) = (left(1), left(2), left(3));
        first.answered(reply(StatusCode::OK, "one"));
        second.answered(reply(StatusCode::OK, "two"));
        third.answered(reply(StatusCode::BAD_GATEWAY, "no"));
        let waiting = || {
            let known = retried.known();
            (known.waiting, known.bytes, known.questions.len())
        };
        assert_eq!(waiting(), (2, 6, 2));
        assert!(retried.answer_of_first(&asks("a", 3, true)).await.is_none());
        tokio::time::sleep(Duration::from_secs(50)).await;
        assert_eq!(text(retried.answer_of_first(&asks("a", 1, true)).await).await, Some(Bytes::from_static(b"one")));
        tokio::time::sleep(Duration::from_secs(11)).await;
        assert!(retried.answer_of_first(&asks("a", 2, true)).await.is_none());
        assert_eq!(waiting(), (0, 0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_was_sent_and_not_taken_is_for_who_asks_again() {
        let retried = Arc::new(Retried::default());
        let (question, coming) = retried.begin(Some(asks("a", 1, false)));
        question.answered(reply(StatusCode::OK, "answer"));
        drop(coming);
        assert_eq!(text(retried.answer_of_first(&asks("a", 1, true)).await).await, Some(Bytes::from_static(b"answer")));
        assert!(retried.answer_of_first(&asks("a", 1, true)).await.is_none(), "once");
        for (number, status) in [(2, StatusCode::OK), (3, StatusCode::BAD_GATEWAY)] {
            let (question, coming) = retried.begin(Some(asks("a", number, false)));
            question.answered(reply(status, "answer"));
            if status.is_success() {
                assert!(coming.taken().await.is_some());
            } else {
                drop(coming);
            }
            assert!(retried.answer_of_first(&asks("a", number, true)).await.is_none(), "{status}");
        }
        let known = retried.known();
        assert!(known.questions.is_empty() && (known.waiting, known.bytes) == (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn who_ends_without_an_answer_leaves_nobody_waiting() {
        let retried = Arc::new(Retried::default());
        let (question, coming) = retried.begin(Some(asks("a", 1, false)));
        drop(question);
        assert!(coming.taken().await.is_none() && retried.known().questions.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_again_does_not_wait_without_end_for_a_first_that_hangs() {
        let retried = Arc::new(Retried::default());
        let (question, coming) = retried.begin(Some(asks("a", 1, false)));
        tokio::time::sleep(HANGS * 2).await;
        drop(coming);
        let began = tokio::time::Instant::now();
        assert!(retried.answer_of_first(&asks("a", 1, true)).await.is_none());
        assert!((HANGS * 2..HANGS * 3).contains(&began.elapsed()), "as long again as its caller: {:?}", began.elapsed());
        assert!(question.is_left(), "nobody waits for it");
        question.answered(reply(StatusCode::OK, "late"));
        assert_eq!(text(retried.answer_of_first(&asks("a", 1, true)).await).await, Some(Bytes::from_static(b"late")), "there it is");
    }

    #[tokio::test(start_paused = true)]
    async fn what_two_have_left_is_asked_anew_and_what_is_only_slow_is_not() {
        let retried = Arc::new(Retried::default());
        let (question, coming) = retried.begin(Some(asks("a", 1, false)));
        drop(coming);
        for _ in 0..2 {
            let again = asks("a", 1, true);
            assert!(tokio::time::timeout(HANGS / 3, retried.answer_of_first(&again)).await.is_err(), "a question of now may be answered");
        }
        tokio::time::sleep(HANGS / 3).await;
        let began = tokio::time::Instant::now();
        assert!(retried.answer_of_first(&asks("a", 1, true)).await.is_none() && began.elapsed() < HANGS_UP * 2);
        drop(question);
    }

    #[tokio::test(start_paused = true)]
    async fn what_failed_for_one_who_had_gone_is_asked_anew() {
        let retried = Arc::new(Retried::default());
        let (question, coming) = retried.begin(Some(asks("a", 1, false)));
        drop(coming);
        let again = {
            let retried = Arc::clone(&retried);
            tokio::spawn(async move { retried.answer_of_first(&asks("a", 1, true)).await.is_none() })
        };
        tokio::time::sleep(Duration::from_millis(5)).await;
        question.answered(reply(StatusCode::BAD_REQUEST, "The caller has gone."));
        assert!(again.await.unwrap());
    }
}
