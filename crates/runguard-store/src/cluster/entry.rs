//! What a stream carries: the rows of one swap, in the order they were decided.

use crate::cluster::cells::hash_of;
use crate::error::StoreError;
use crate::log::RowWithEffects;
use runguard_core::row::{Kind, Row, RowRef};

/// The bytes of one row.
pub(crate) fn encode_row(row: &Row, effects: &[u8]) -> Result<Vec<u8>, StoreError> {
    let room = 128 + row.answer.len() + row.input.len() + effects.len();
    postcard::to_extend(&(row.as_ref(), effects), Vec::with_capacity(room)).map_err(|error| StoreError::Write(error.to_string()))
}

/// The row of such bytes.
pub(crate) fn decode_row(bytes: &[u8]) -> Option<Row> {
    let (row, _): (RowRef<'_>, &[u8]) = postcard::from_bytes(bytes).ok()?;
    Some(row.to_row())
}

/// An entry of rows that are bytes already: a list is its length and then its items, one after the other.
pub(crate) fn join_rows<'a>(count: usize, rows: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut entry = postcard::to_stdvec(&count).unwrap_or_default();
    rows.for_each(|row| entry.extend_from_slice(row));
    entry
}

pub fn encode(rows: &[RowWithEffects]) -> Vec<u8> {
    let rows: Vec<(RowRef<'_>, &[u8])> = rows.iter().map(|logged| (logged.row.as_ref(), logged.effects.as_slice())).collect();
    postcard::to_stdvec(&rows).unwrap_or_default()
}

/// `None` when a later version wrote it, or it is damaged.
pub fn decode(entry: &[u8]) -> Option<Vec<RowWithEffects>> {
    let rows: Vec<(RowRef<'_>, &[u8])> = postcard::from_bytes(entry).ok()?;
    Some(rows.into_iter().map(|(row, effects)| RowWithEffects { row: row.to_row(), effects: effects.to_vec() }).collect())
}

/// The hashes of the cells that a row changed.
pub fn cells_of(logged: &RowWithEffects) -> impl Iterator<Item = u128> {
    logged.happened().into_iter().map(|effect| hash_of(effect.key, effect.slot, &effect.label))
}

/// Begins the effects of a row that says a session was erased, before its number.
const ERASURE: &[u8] = b"erased:";

/// What tells every node whose rows go, without naming anyone.
pub(crate) fn erasure_of(session_number: i64) -> Vec<u8> {
    [ERASURE, &session_number.to_be_bytes()].concat()
}

/// The number of the session whose erasure a row tells of.
pub(crate) fn erases(logged: &RowWithEffects) -> Option<i64> {
    let number = logged.effects.strip_prefix(ERASURE).filter(|_| logged.row.kind == Kind::Admin)?;
    number.try_into().ok().map(i64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use runguard_core::row::Outcome;

    #[test]
    fn rows_joined_as_bytes_are_read_as_a_list() {
        let row = |number: i64| Row {
            at: number,
            id: format!("id{number}"),
            tenant: "t".into(),
            guard: "g".into(),
            kind: Kind::Check.into(),
            outcome: Outcome::Allowed.into(),
            reason: (number % 2 == 0).then(|| "r".into()),
            answer: "{}".into(),
            input: "\0".into(),
            ..Row::default()
        };
        for count in [0_usize, 1, 2, 200] {
            let rows: Vec<Row> = (0..count as i64).map(row).collect();
            let bytes: Vec<Vec<u8>> = rows.iter().map(|row| encode_row(row, &[7]).unwrap()).collect();
            assert_eq!(bytes.iter().map(|bytes| decode_row(bytes).unwrap()).collect::<Vec<_>>(), rows);
            let entry = join_rows(count, bytes.iter().map(Vec::as_slice));
            let expected: Vec<RowWithEffects> = rows.iter().map(|row| RowWithEffects { row: row.clone(), effects: vec![7] }).collect();
            assert_eq!(decode(&entry), Some(expected.clone()));
            assert_eq!(encode(&expected), entry);
        }
        assert_eq!(decode(&[5]), None, "cut");
    }
}
