//! What a row of the log says, as its guard reads it.
//!
//! Of a request a guard writes down what may be kept, and it alone reads that: it says what of a row counts ([`Shows`]), and makes the
//! request again ([`Retell`]). Readers of the log ask it, and take no row apart themselves.

use crate::answer::Answer;
use crate::guard::{GuardEntry, Operation, Route};
use crate::input::{Input, PassedCall};
use crate::lengths::Length;
use crate::pattern::Pattern;
use crate::policy::{Mode, Policy, Rulebook};
use runguard_core::detect::stall::CallEffect;
use runguard_core::ledger::Act;
use runguard_core::reason::Reason;
use runguard_core::row::{Effect, Named, Row, RowRef};
use runguard_core::text::{self, StoreText};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

/// What of a request is kept, or of an answer was said, as JSON.
pub(crate) fn write(part: &impl Serialize) -> String {
    serde_json::to_string(part).unwrap_or_else(|_| "{}".to_owned())
}

/// Reads it back. What is not there, or was written by a later version in another form, is as if it had not been said.
pub fn read<'a, T: Deserialize<'a> + Default>(json: &'a str) -> T {
    serde_json::from_str(json).unwrap_or_default()
}

/// What a row tells beyond its columns, in words that all guards share. What is told is counted by whoever counts.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Shows<'a> {
    pub topic: Option<Topic<'a>>,
    pub handover: Option<Handover<'a>>,
    pub entity: Option<Entity<'a>>,
    pub goal: Option<Goal<'a>>,
    pub call: Option<CallEnd>,
    pub circuit: Option<Turned>,
    pub failing: Option<Failing>,
    pub spending: Option<Spending<'a>>,
    pub run: Option<RunSeen<'a>>,
    pub length: Option<Length>,
}

/// A question that was put to a knowledge base.
#[derive(Debug, Clone, PartialEq)]
pub struct Topic<'a> {
    /// What it is counted under, instead of the subject.
    pub name: Cow<'a, str>,
    /// The words, as far as they are kept.
    pub text: Cow<'a, str>,
    /// Whether a query is counted by this row, if it was not refused.
    pub counts: bool,
    /// Of an answer that it tells of.
    pub confidence: Option<f64>,
}

/// A conversation that goes from one bot to the subject.
#[derive(Debug, Clone, PartialEq)]
pub struct Handover<'a> {
    pub source: Cow<'a, str>,
    /// The bots visited, where a rule fired.
    pub chain: Vec<String>,
}

/// A value that was asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Entity<'a> {
    pub name: Cow<'a, str>,
    /// The user was shown the form of it.
    pub is_hint: bool,
}

/// What an agent is to reach with the subject.
#[derive(Debug, Clone, PartialEq)]
pub struct Goal<'a> {
    /// What it is counted under: a digest, the same for the same words.
    pub name: String,
    /// The words, as far as they are kept.
    pub text: Cow<'a, str>,
    /// What the agent may call, as far as it is kept.
    pub offered: Vec<String>,
    /// Whether the subject is among them; where that cannot be told, it is.
    pub is_offered: bool,
}

/// How a call to the subject ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallEnd {
    pub is_failure: bool,
    pub latency_ms: Option<u64>,
}

/// What a row shows of the subject's circuit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turned {
    Open,
    Closed,
}

/// How near the subject's circuit is to its trip while calls still pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failing {
    pub failures: u64,
    pub threshold: u64,
}

/// Whose figures they are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Account<'a> {
    #[default]
    Own,
    /// Of the budget it draws on, by its session, if that is told.
    Parent(Option<Cow<'a, str>>),
    /// Of one that many sessions share.
    Scope(String),
}

/// How a budget stands.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Spending<'a> {
    pub account: Account<'a>,
    /// When it begins anew, where it is for a time.
    pub renews_in_seconds: Option<i64>,
    pub model: Option<Cow<'a, str>>,
    /// Asked for, recorded or committed.
    pub cost_usd: Option<f64>,
    /// What was done, if this version knows it.
    pub act: Option<Act>,
    /// The public id of the key that it was asked with.
    pub key: Option<Cow<'a, str>>,
    /// What was used, where it was spent.
    pub used: Tokens,
    /// What it has set aside.
    pub reserved_usd: Option<f64>,
    /// What nobody settled in its time, booked with this at the most it can have cost; and what of it is taken back, because it is settled now.
    pub overdue_usd: f64,
    pub overdue_settled_usd: f64,
    /// Scopes that the request names itself: label and name.
    pub scopes: Vec<(String, String)>,
    /// The model call it belongs to, where a door passed it on.
    pub call: Option<PassedCall>,
    pub spent_usd: Option<f64>,
    pub limit_usd: Option<f64>,
    pub spent_tokens: Option<u64>,
    pub limit_tokens: Option<u64>,
    /// Where something was spent: the scope of which most is, and others that passed a part of their limit with it.
    pub nearest: Vec<Nearest>,
}

impl Spending<'_> {
    /// Whether the cost was spent, and not only asked about.
    pub fn is_spent(&self) -> bool {
        self.act.is_some_and(Act::is_spent)
    }
}

/// Tokens by what they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Tokens {
    #[serde(skip_serializing_if = "is_none")]
    pub input: u64,
    #[serde(skip_serializing_if = "is_none")]
    pub output: u64,
    /// Read from a cache.
    #[serde(skip_serializing_if = "is_none")]
    pub cached: u64,
    #[serde(skip_serializing_if = "is_none")]
    pub cache_writes: u64,
}

impl Tokens {
    pub(crate) fn are_none(&self) -> bool {
        *self == Self::default()
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form in which serde asks")]
fn is_none(count: &u64) -> bool {
    *count == 0
}

/// What the guard of runs says of one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RunSeen<'a> {
    /// Steps that it had not told before.
    pub new_steps: u64,
    pub key: Option<Cow<'a, str>>,
    pub call: Option<PassedCall>,
    /// When a refusal is over by itself.
    pub retry_after_seconds: Option<u64>,
    /// What an operator said when stopping or resuming it.
    pub note: Cow<'a, str>,
}

/// How much of what many sessions share is spent.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Nearest {
    pub scope: String,
    pub percent: f64,
    pub renews_in_seconds: Option<i64>,
}

/// Whether an answer says that it was made without what it usually rests on, or comes from a fallback.
pub fn is_degraded(row: &RowRef<'_>) -> bool {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct LoggedAnswer {
        degraded: bool,
        fallback: Fallback,
    }
    /// A name, or only that there is one.
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Fallback {
        Is(bool),
        Named(String),
        Other(serde::de::IgnoredAny),
    }
    impl Default for Fallback {
        fn default() -> Self {
            Self::Is(false)
        }
    }
    // Most answers are whole: nothing is read of them.
    if !(row.answer.contains("\"degraded\":true") || row.answer.contains("\"fallback\":")) {
        return false;
    }
    let said: LoggedAnswer = read(row.answer);
    let is_fallback = match &said.fallback {
        Fallback::Is(is_active) => *is_active,
        Fallback::Named(name) => !name.is_empty(),
        Fallback::Other(_) => false,
    };
    said.degraded || is_fallback
}

/// A row with what it did to the guards' states.
#[derive(Debug)]
pub struct Logged<'a> {
    pub row: &'a Row,
    /// In the order of the places of the request.
    pub effects: Vec<Effect<'a>>,
}

impl Logged<'_> {
    /// What happened to the first of its states, if this version knows it.
    pub(crate) fn events<E: DeserializeOwned>(&self) -> Option<Vec<E>> {
        postcard::from_bytes(self.effects.first()?.events).ok()
    }

    /// Whether a rule saw something, refusing or not.
    fn fired(&self, reason: Reason) -> bool {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct LoggedAnswer {
            signals: Vec<Signal>,
        }
        #[derive(Deserialize)]
        struct Signal {
            reason: Named<Reason>,
        }
        self.row.gives(reason) || read::<LoggedAnswer>(&self.row.answer).signals.iter().any(|signal| signal.reason == reason)
    }
}

/// What an agent did, from the rows of a guard that is asked at every call.
#[derive(Debug, Clone, Copy)]
pub struct Traces {
    /// Where calls go through several guards the one that knows most of them tells: the lowest.
    pub rank: u8,
    pub read: fn(&Logged<'_>) -> Traced,
}

/// What a row tells of what an agent did: fingerprints, and what may be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Traced {
    /// A call of the subject, and what it gave, if that is told with it.
    Call {
        /// `None`: not known, and like no other.
        arguments: Option<u64>,
        result: Option<u64>,
        error: Option<u64>,
        shown: String,
        /// What it does.
        effect: CallEffect,
        /// The model's turn.
        round: Option<u64>,
    },
    /// What the model said.
    Message(u64),
    UserSpoke,
    /// What the newest call of the subject gave.
    Result {
        result: u64,
        error: Option<u64>,
        shown: String,
    },
    Nothing,
}

impl Traced {
    /// A call whose result is told later, or never.
    pub(crate) fn call(arguments: Option<u64>) -> Self {
        Self::Call { arguments, result: None, error: None, shown: String::new(), effect: CallEffect::Unknown, round: None }
    }
}

/// Which settings a request that is made again is decided by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// Those that stand there: the text is the one that was said, or what is kept of it.
    Text,
    /// Those whose patterns find [`SIGNAL`] and [`SPOKEN`]: the text is the log's word on what a pattern found.
    Word,
}

/// Stands for a text in which what is looked for was found.
pub const SIGNAL: &str = "signal";
/// Stands for one that has it in the words people use.
pub const SPOKEN: &str = "spoken";
/// Stands for one that does not have it.
pub(crate) const NOTHING: &str = "";

/// A request made again from its row.
#[derive(Debug)]
pub struct Retold {
    pub operation: Box<dyn Operation>,
    pub reading: Reading,
}

impl Retold {
    pub(crate) fn of(operation: impl Operation + 'static) -> Self {
        Self::by(Reading::Text, operation)
    }

    pub(crate) fn by(reading: Reading, operation: impl Operation + 'static) -> Self {
        Self { operation: Box::new(operation), reading }
    }

    /// As a route reads it.
    pub(crate) fn read(route: &'static Route, body: &serde_json::Value) -> Option<Self> {
        let body = serde_json::to_vec(body).ok()?;
        let input = Input::read(&body, route.fields).ok()?;
        Some(Self { operation: (route.read)(&input), reading: Reading::Text })
    }
}

/// Under what a row is told again.
#[derive(Debug, Clone, Copy)]
pub struct Terms<'a> {
    /// The settings in force for its tenant.
    pub policy: &'a Policy,
    /// Whether the change touches what texts are compared with.
    pub changes_patterns: bool,
    pub store_text: StoreText,
}

/// What the log knows of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KnownText {
    /// What the rule made of it.
    Finding,
    /// A pattern is there, and what it found is not told.
    Nothing,
    /// No pattern is there.
    NotAsked,
}

impl Terms<'_> {
    /// Whether the log's word on a text is taken, or the text.
    pub(crate) fn reading(&self, known: KnownText, kept: &str, most_chars: usize, doubts: &mut Doubts) -> Reading {
        if known == KnownText::Finding && !self.changes_patterns {
            return Reading::Word;
        }
        if (known != KnownText::NotAsked || self.changes_patterns) && !self.is_whole(kept, most_chars) {
            doubts.add(Doubt::TEXT_CUT);
        }
        Reading::Text
    }

    /// Whether a kept text can be what was said. One that is missing may have been empty.
    fn is_whole(&self, kept: &str, most_chars: usize) -> bool {
        let redacted = text::MARKS.iter().any(|mark| kept.contains(mark));
        self.store_text != StoreText::None && !redacted && kept.chars().count() < most_chars
    }

    /// The text of a request whose guard looks for one pattern in it, and says so with this reason where it is missing.
    pub(crate) fn searched<S>(
        &self,
        logged: &Logged<'_>,
        (rulebook, pattern): (&Rulebook<S>, Option<&Pattern>),
        missing: Reason,
        (kept, most_chars): (&str, usize),
        doubts: &mut Doubts,
    ) -> (Reading, String) {
        let known = match pattern.filter(|pattern| pattern.is_set()) {
            Some(_) if rulebook.mode_of(missing) == Mode::Off => KnownText::Nothing,
            Some(_) => KnownText::Finding,
            None => KnownText::NotAsked,
        };
        let reading = self.reading(known, kept, most_chars, doubts);
        let text = match reading {
            Reading::Text => kept,
            Reading::Word if logged.fired(missing) => NOTHING,
            Reading::Word => SIGNAL,
        };
        (reading, text.to_owned())
    }
}

/// What keeps requests that are made again from being those that were made. In the order they are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Doubt {
    order: u8,
    about: &'static str,
}

impl Doubt {
    pub const UNEXPLAINED: Self =
        Self::first(0, "logged answers do not follow from the settings in force: these were changed in between, or rows are missing");
    pub const WARM_UP_CUT: Self =
        Self::first(1, "rows were all that could be looked at: how things stood before the oldest of them is not known");
    pub(crate) const TEXT_CUT: Self =
        Self::first(2, "requests were compared with a changed pattern by the text that is kept, which is cut, redacted or missing");
    pub(crate) const NO_EVENTS: Self =
        Self::first(200, "requests left nothing behind to decide them by (the guard was off): they are taken as they were");
    pub const NEVER_RAN: Self = Self::first(201, "requests would have passed that were blocked: what they would have led to is not known");
    pub const RAN_ANYWAY: Self =
        Self::first(202, "requests would have been blocked that passed: what was told of them afterwards is applied all the same");

    const fn first(order: u8, about: &'static str) -> Self {
        Self { order, about }
    }

    /// One of a guard's own, the first of which is told first.
    pub(crate) const fn of_guard(order: u8, about: &'static str) -> Self {
        Self { order: 10 + order, about }
    }
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.about)
    }
}

/// Doubts, and how often each came up.
#[derive(Debug, Default)]
pub struct Doubts(BTreeMap<Doubt, u64>);

impl Doubts {
    pub fn add(&mut self, doubt: Doubt) {
        self.add_times(doubt, 1);
    }

    pub fn add_times(&mut self, doubt: Doubt, times: u64) {
        *self.0.entry(doubt).or_default() += times;
    }

    pub fn says(&self) -> Vec<String> {
        self.0.iter().map(|(doubt, count)| format!("{doubt} ({count})")).collect()
    }
}

/// Makes the requests of one guard again from their rows, one after the other. It remembers what later rows need of earlier ones.
pub trait Retell: Send + fmt::Debug {
    /// The request of a row. `None`: it is taken as it was.
    fn again(&mut self, logged: &Logged<'_>, terms: &Terms<'_>, doubts: &mut Doubts) -> Option<Retold>;

    /// The same where it goes by what this way of telling answered before.
    fn again_in(&self, _lane: usize, _logged: &Logged<'_>) -> Option<Box<dyn Operation>> {
        None
    }

    /// What was answered this time.
    fn answered(&mut self, _lane: usize, _row: &Row, _answer: &Answer) {}

    /// What is doubtful about a request that was refused and would pass.
    fn doubt_of_passing(&self) -> Option<Doubt> {
        None
    }
}

/// For guards that need nothing of earlier rows.
#[derive(Debug)]
pub(crate) struct EachByItself<R>(pub(crate) fn(&Logged<'_>, &Terms<'_>, &mut Doubts) -> R);

impl<R: Into<Option<Retold>> + fmt::Debug> Retell for EachByItself<R> {
    fn again(&mut self, logged: &Logged<'_>, terms: &Terms<'_>, doubts: &mut Doubts) -> Option<Retold> {
        (self.0)(logged, terms, doubts).into()
    }
}

/// What a row shows, by its guard.
pub fn shows<'a>(row: &RowRef<'a>) -> Shows<'a> {
    row.guard.known().map_or_else(Shows::default, |guard| (GuardEntry::of(guard).shows)(row))
}

/// For guards whose columns say it all.
pub(crate) fn shows_nothing<'a>(_row: &RowRef<'a>) -> Shows<'a> {
    Shows::default()
}
