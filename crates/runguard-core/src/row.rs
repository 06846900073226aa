//! One row of the log, as everyone writes and reads it: stores, the service, what the log teaches, replays.
//!
//! Its columns are names of ours and texts. A name that a later version wrote is kept as it is ([`Named`]): a log outlives the program
//! that reads it. What a row did to states stands beside it as [`Effect`]s.

use crate::reason::{Code, GuardName, Reason, named};
use crate::time::Timestamp;
use serde::de::{Deserializer, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

named! {
    /// What a row is about.
    Kind {
        /// Somebody asked, and could have been blocked.
        Check = "check", "Check",
        /// Somebody told what happened.
        Record = "record", "Record",
        /// An operator changed something.
        Admin = "admin", "Operator",
    }
}

named! {
    /// How a request ended. The order is on disk, with answers that are kept for repeated requests.
    Outcome {
        /// It may go on.
        Allowed = "allowed", "Allowed",
        /// It may go on, and would not where rules are enforced.
        WouldBlock = "would_block", "Would be blocked",
        /// It may not go on.
        Blocked = "blocked", "Blocked",
        /// What it told was taken.
        Recorded = "recorded", "Recorded",
    }
}

named! {
    /// What an operator did.
    Action {
        /// A circuit was opened by hand.
        CircuitForcedOpen = "circuit_forced_open", "Circuit opened",
        /// A circuit was closed by hand.
        CircuitForcedClosed = "circuit_forced_closed", "Circuit closed",
        /// A circuit was left to itself again.
        CircuitReset = "circuit_reset", "Circuit left to itself",
        /// A session was erased.
        SessionErased = "session_erased", "Session erased",
        /// A run was stopped by hand.
        RunStopped = "run_stopped_by_hand", "Run stopped",
        /// A run may go on again.
        RunResumed = "run_resumed", "Run resumed",
    }
}

/// What the column of outcomes says: how a request ended, or what an operator did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ended {
    /// A request, so.
    Answered(Outcome),
    /// An operator's change.
    Did(Action),
}

impl Code for Ended {
    fn code(self) -> &'static str {
        match self {
            Self::Answered(outcome) => outcome.code(),
            Self::Did(action) => action.code(),
        }
    }

    fn from_code(code: &str) -> Option<Self> {
        Outcome::from_code(code).map(Self::Answered).or_else(|| Action::from_code(code).map(Self::Did))
    }
}

/// A name of ours, or one that a later version wrote.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Named<T> {
    /// One of ours.
    Known(T),
    /// None of ours; empty where there is none.
    Later(Box<str>),
}

impl<T: Code> Named<T> {
    /// As it is written.
    pub fn code(&self) -> &str {
        match self {
            Self::Known(name) => name.code(),
            Self::Later(name) => name,
        }
    }

    /// The name, if it is ours.
    pub fn known(&self) -> Option<T> {
        match self {
            Self::Known(name) => Some(*name),
            Self::Later(_) => None,
        }
    }
}

impl Named<Ended> {
    /// How the request ended, where there was one.
    pub fn answered(&self) -> Option<Outcome> {
        match self.known()? {
            Ended::Answered(outcome) => Some(outcome),
            Ended::Did(_) => None,
        }
    }

    /// What an operator did, where one did something.
    pub fn done(&self) -> Option<Action> {
        match self.known()? {
            Ended::Did(action) => Some(action),
            Ended::Answered(_) => None,
        }
    }
}

impl<T> Default for Named<T> {
    fn default() -> Self {
        Self::Later(Box::default())
    }
}

impl<T: Code> From<T> for Named<T> {
    fn from(name: T) -> Self {
        Self::Known(name)
    }
}

impl<T: Code> From<&str> for Named<T> {
    fn from(code: &str) -> Self {
        T::from_code(code).map_or_else(|| Self::Later(code.into()), Self::Known)
    }
}

impl From<Outcome> for Named<Ended> {
    fn from(outcome: Outcome) -> Self {
        Self::Known(Ended::Answered(outcome))
    }
}

impl From<Action> for Named<Ended> {
    fn from(action: Action) -> Self {
        Self::Known(Ended::Did(action))
    }
}

impl<T: Code + PartialEq> PartialEq<T> for Named<T> {
    fn eq(&self, other: &T) -> bool {
        self.known().is_some_and(|name| name == *other)
    }
}

impl PartialEq<Outcome> for Named<Ended> {
    fn eq(&self, other: &Outcome) -> bool {
        self.answered() == Some(*other)
    }
}

impl PartialEq<Action> for Named<Ended> {
    fn eq(&self, other: &Action) -> bool {
        self.done() == Some(*other)
    }
}

/// In the order of their codes, which is that of what is shown.
impl<T: Code + Eq> Ord for Named<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.code().cmp(other.code())
    }
}

impl<T: Code + Eq> PartialOrd for Named<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: Code> fmt::Display for Named<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

impl<T: Code> Serialize for Named<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.code())
    }
}

impl<'de, T: Code> Deserialize<'de> for Named<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader<T>(PhantomData<T>);
        impl<T: Code> Visitor<'_> for Reader<T> {
            type Value = Named<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }

            fn visit_str<E>(self, code: &str) -> Result<Named<T>, E> {
                Ok(code.into())
            }
        }
        deserializer.deserialize_str(Reader(PhantomData))
    }
}

/// One row. In the streams of a cluster it stands as its fields, in this order, without its number.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Row<Text = String, Tenant = Arc<str>> {
    /// The number the log gave it; 0 before.
    #[serde(skip)]
    pub seq: u64,
    /// Milliseconds since the epoch.
    pub at: i64,
    /// The decision's id.
    pub id: Text,
    /// Whose it is.
    pub tenant: Tenant,
    /// Who decided; empty for what is no guard's.
    pub guard: Named<GuardName>,
    /// What it is about.
    pub kind: Named<Kind>,
    /// The session, as the caller names it.
    pub session: Text,
    /// The task, bot, topic, action, step or endpoint, as it may be kept.
    pub subject: Text,
    /// How it ended.
    pub outcome: Named<Ended>,
    /// Why it was refused, or would have been.
    pub reason: Option<Named<Reason>>,
    /// JSON: what the answer says beyond the columns.
    pub answer: Text,
    /// JSON: what of the request is kept.
    pub input: Text,
}

/// A row as it lies somewhere, read without copying its texts.
pub type RowRef<'a> = Row<&'a str, &'a str>;

impl<Text, Tenant> Row<Text, Tenant> {
    /// When it was decided.
    pub fn time(&self) -> Timestamp {
        Timestamp::from_millis(self.at)
    }

    /// The reason as it is written.
    pub fn reason_code(&self) -> Option<&str> {
        self.reason.as_ref().map(Named::code)
    }

    /// Whether this is its reason.
    pub fn gives(&self, reason: Reason) -> bool {
        self.reason.as_ref().is_some_and(|given| *given == reason)
    }
}

impl Row {
    /// The same, borrowed.
    pub fn as_ref(&self) -> RowRef<'_> {
        RowRef {
            seq: self.seq,
            at: self.at,
            id: &self.id,
            tenant: &self.tenant,
            guard: self.guard.clone(),
            kind: self.kind.clone(),
            session: &self.session,
            subject: &self.subject,
            outcome: self.outcome.clone(),
            reason: self.reason.clone(),
            answer: &self.answer,
            input: &self.input,
        }
    }
}

impl RowRef<'_> {
    /// The same with texts of its own.
    pub fn to_row(&self) -> Row {
        Row {
            seq: self.seq,
            at: self.at,
            id: self.id.to_owned(),
            tenant: self.tenant.into(),
            guard: self.guard.clone(),
            kind: self.kind.clone(),
            session: self.session.to_owned(),
            subject: self.subject.to_owned(),
            outcome: self.outcome.clone(),
            reason: self.reason.clone(),
            answer: self.answer.to_owned(),
            input: self.input.to_owned(),
        }
    }
}

/// Decisions counted by minute (since the epoch), guard, outcome and reason.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RowCount {
    /// The minute, or the first of several.
    pub minute: i64,
    /// Who decided.
    pub guard: Named<GuardName>,
    /// How.
    pub outcome: Named<Ended>,
    /// And why.
    pub reason: Option<Named<Reason>>,
    /// How many.
    pub count: u64,
}

/// What a row did to one state, as it stands beside the row: a list of these in postcard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effect<'a> {
    /// What kind of entry the state belongs to, as the store numbers them.
    pub family: u8,
    /// Which entry.
    pub hash: u128,
    /// Whose state.
    pub slot: u8,
    /// What it is filed under within its entry.
    pub subject: &'a str,
    /// What happened to it.
    pub events: &'a [u8],
}

impl<'a> Effect<'a> {
    /// Those of a row; none where a later version wrote them, or they are damaged.
    pub fn read_all(bytes: &'a [u8]) -> Vec<Self> {
        postcard::from_bytes(bytes).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_a_later_version_is_kept_as_it_is() {
        let known: Named<GuardName> = "handoff".into();
        let later: Named<GuardName> = "mind_reader".into();
        assert_eq!((known.known(), later.known()), (Some(GuardName::Handoff), None));
        for name in [&known, &later] {
            let json = serde_json::to_string(name).unwrap();
            assert_eq!(json, format!("\"{name}\""));
            assert_eq!(serde_json::from_str::<Named<GuardName>>(&json).unwrap(), *name);
        }
        assert!(known < later && known == GuardName::Handoff && later != GuardName::Handoff);
    }

    #[test]
    fn the_column_of_outcomes_holds_operators_changes_too() {
        for outcome in Outcome::ALL {
            assert_eq!(Named::<Ended>::from(outcome.code()).answered(), Some(*outcome));
        }
        for action in Action::ALL {
            assert_eq!(Named::<Ended>::from(action.code()).done(), Some(*action));
        }
        assert!(Named::<Ended>::from("blocked") == Outcome::Blocked);
    }

    #[test]
    fn rows_are_written_as_their_fields_without_their_number() {
        let row = Row { seq: 7, at: 1, id: "i".into(), tenant: "t".into(), guard: "g".into(), ..Row::default() };
        let bytes = postcard::to_stdvec(&row.as_ref()).unwrap();
        assert_eq!(bytes, [2, 1, b'i', 1, b't', 1, b'g', 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(postcard::from_bytes::<RowRef<'_>>(&bytes).unwrap().to_row(), Row { seq: 0, ..row.clone() });
        assert_eq!(row.as_ref().to_row(), row);
    }
}
