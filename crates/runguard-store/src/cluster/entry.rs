//! What a stream carries: the rows of one swap, in the order they were decided.

use crate::error::StoreError;
use crate::log::LogRow;
use crate::store::Row;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// One row with what it did to states, as it stands in a stream.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EntryRow {
    pub at: i64,
    pub id: String,
    pub tenant: String,
    pub guard: String,
    pub kind: String,
    pub session: String,
    pub subject: String,
    pub outcome: String,
    pub reason: Option<String>,
    pub answer: String,
    pub input: String,
    pub effects: Vec<u8>,
}

/// The same, borrowed; the two are written alike.
#[derive(Debug, Serialize)]
struct Borrowed<'a> {
    at: i64,
    id: &'a str,
    tenant: &'a str,
    guard: &'a str,
    kind: &'a str,
    session: &'a str,
    subject: &'a str,
    outcome: &'a str,
    reason: Option<&'a str>,
    answer: &'a str,
    input: &'a str,
    effects: &'a [u8],
}

/// The bytes of one row.
pub(crate) fn encode_row(row: &Row, effects: &[u8]) -> Result<Vec<u8>, StoreError> {
    let borrowed = Borrowed {
        at: row.at,
        id: &row.id,
        tenant: &row.tenant,
        guard: row.guard,
        kind: row.kind,
        session: &row.session,
        subject: &row.subject,
        outcome: row.outcome,
        reason: row.reason,
        answer: &row.answer,
        input: &row.input,
        effects,
    };
    let room = 128 + row.answer.len() + row.input.len() + effects.len();
    postcard::to_extend(&borrowed, Vec::with_capacity(room)).map_err(|error| StoreError::Write(error.to_string()))
}

/// An entry of rows that are bytes already: a list is its length and then its items, one after the other.
pub(crate) fn join_rows<'a>(count: usize, rows: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut entry = postcard::to_stdvec(&count).unwrap_or_default();
    rows.for_each(|row| entry.extend_from_slice(row));
    entry
}

pub fn encode(rows: &[EntryRow]) -> Vec<u8> {
    postcard::to_stdvec(rows).unwrap_or_default()
}

/// `None` when a later version wrote it, or it is damaged.
pub fn decode(entry: &[u8]) -> Option<Vec<EntryRow>> {
    postcard::from_bytes(entry).ok()
}

impl EntryRow {
    pub(crate) fn of(row: &Row, effects: Vec<u8>) -> Self {
        Self {
            at: row.at,
            id: row.id.clone(),
            tenant: row.tenant.to_string(),
            guard: row.guard.into(),
            kind: row.kind.into(),
            session: row.session.clone(),
            subject: row.subject.clone(),
            outcome: row.outcome.into(),
            reason: row.reason.map(str::to_owned),
            answer: row.answer.clone(),
            input: row.input.clone(),
            effects,
        }
    }

    /// Without its effects.
    pub(crate) fn into_log_row(self, seq: u64) -> LogRow {
        LogRow {
            seq,
            at: self.at,
            id: self.id,
            tenant: self.tenant,
            guard: self.guard,
            kind: self.kind,
            session: self.session,
            subject: self.subject,
            outcome: self.outcome,
            reason: self.reason,
            answer: self.answer,
            input: self.input,
        }
    }
}

impl LogRow {
    pub(crate) fn into_row(self) -> Row {
        Row {
            at: self.at,
            id: self.id,
            tenant: self.tenant.into(),
            guard: known_name(&self.guard),
            kind: known_name(&self.kind),
            session: self.session,
            subject: self.subject,
            outcome: known_name(&self.outcome),
            reason: self.reason.as_deref().map(known_name),
            answer: self.answer,
            input: self.input,
        }
    }
}

/// Begins the effects of a row that says a session was erased, before its number.
const ERASURE: &[u8] = b"erased:";

/// What tells every node whose rows go, without naming anyone.
pub(crate) fn erasure_of(session_number: i64) -> Vec<u8> {
    [ERASURE, &session_number.to_be_bytes()].concat()
}

impl EntryRow {
    /// The number of the session whose erasure it tells of.
    pub(crate) fn erases(&self) -> Option<i64> {
        let number = self.effects.strip_prefix(ERASURE).filter(|_| self.kind == "admin")?;
        number.try_into().ok().map(i64::from_be_bytes)
    }
}

/// Names of guards, outcomes and reasons: there are some dozens, each is kept once. At the bound, which only a foreign writer
/// could reach, a name is replaced.
fn known_name(name: &str) -> &'static str {
    const MOST_NAMES: usize = 1024;
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.get(name) {
        return known;
    }
    if names.len() >= MOST_NAMES {
        return "unknown";
    }
    let kept: &'static str = Box::leak(name.into());
    names.insert(kept);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_joined_as_bytes_are_read_as_a_list() {
        let row = |number: i64| Row {
            at: number,
            id: format!("id{number}"),
            tenant: "t".into(),
            guard: "g",
            kind: "check",
            outcome: "allowed",
            reason: (number % 2 == 0).then_some("r"),
            answer: "{}".into(),
            input: "\0".into(),
            ..Row::default()
        };
        for count in [0_usize, 1, 2, 200] {
            let rows: Vec<Row> = (0..count as i64).map(row).collect();
            let bytes: Vec<Vec<u8>> = rows.iter().map(|row| encode_row(row, &[7]).unwrap()).collect();
            let entry = join_rows(count, bytes.iter().map(Vec::as_slice));
            let expected: Vec<EntryRow> = rows.iter().map(|row| EntryRow::of(row, vec![7])).collect();
            assert_eq!(decode(&entry), Some(expected.clone()));
            assert_eq!(encode(&expected), entry);
        }
        assert_eq!(decode(&[5]), None, "cut");
    }
}
