//! The files that a decision is written to before it is answered: one record after the other, nothing else.
//!
//! A record is its length, a checksum, the row's number, and the row with what it did. What was being written when the process ended shows
//! as a record that is cut or does not match its sum, and nothing comes after it.

use crate::files::private_file;
use runguard_core::packed::write_behind;
use runguard_core::row::{Row, RowRef};
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

/// Begins the name of a segment, in the data folder.
pub const JOURNAL_PREFIX: &str = "journal-";

const LENGTH: usize = 4;
const SUM: usize = 4;
const SEQ: usize = 8;
const HEADER: usize = LENGTH + SUM + SEQ + 1;
/// The last byte of a header: how the rest is written.
const FORMAT: u8 = 1;

/// Bytes read at a time; a record may be longer.
const PIECE: usize = 1 << 20;

/// A row as it lies in a segment.
#[derive(Debug)]
pub(crate) struct Record<'a> {
    pub(crate) row: RowRef<'a>,
    pub(crate) effects: &'a [u8],
    /// Rows that go out of the log with this one.
    pub(crate) removed: Vec<u64>,
}

/// A record without its number, which is known only when it is its turn.
pub(crate) fn encode(record: &mut Vec<u8>, row: &Row, effects: &[u8], removed: &[u64]) -> Result<(), postcard::Error> {
    let mut bytes = std::mem::take(record);
    bytes.clear();
    bytes.resize(HEADER, 0);
    *record = write_behind(bytes, &(row.as_ref(), effects, removed))?;
    Ok(())
}

pub(crate) fn put_number(record: &mut [u8], seq: u64) {
    let length = u32::try_from(record.len() - HEADER).unwrap_or(u32::MAX);
    record[LENGTH + SUM..HEADER - 1].copy_from_slice(&seq.to_le_bytes());
    record[HEADER - 1] = FORMAT;
    let sum = xxh3_64(&record[LENGTH + SUM..]) as u32;
    record[..LENGTH].copy_from_slice(&length.to_le_bytes());
    record[LENGTH..LENGTH + SUM].copy_from_slice(&sum.to_le_bytes());
}

/// The first record of these bytes, if it is whole and as it was written.
fn first_sound(bytes: &[u8]) -> Option<&[u8]> {
    let record = bytes.get(..end_of_first(bytes)?)?;
    let sum = u32::from_le_bytes(record[LENGTH..LENGTH + SUM].try_into().ok()?);
    (xxh3_64(&record[LENGTH + SUM..]) as u32 == sum).then_some(record)
}

/// The first record of these bytes, and how long it is; `None` where there is none that can be read.
fn decode(bytes: &[u8]) -> Option<(Record<'_>, usize)> {
    let record = first_sound(bytes).filter(|record| record[HEADER - 1] == FORMAT)?;
    let (seq, end) = (u64::from_le_bytes(record[LENGTH + SUM..HEADER - 1].try_into().ok()?), record.len());
    let (row, effects, removed): (RowRef<'_>, &[u8], Vec<u64>) = postcard::from_bytes(&record[HEADER..]).ok()?;
    Some((Record { row: RowRef { seq, ..row }, effects, removed }, end))
}

/// Where the first record says it ends.
fn end_of_first(bytes: &[u8]) -> Option<usize> {
    let length = u32::from_le_bytes(bytes.get(..LENGTH)?.try_into().ok()?);
    HEADER.checked_add(length as usize)
}

pub(crate) fn path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{JOURNAL_PREFIX}{number:010}"))
}

/// The numbers of the segments that are there, oldest first.
pub(crate) fn numbers(folder: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(folder)? {
        numbers.extend(entry?.file_name().to_str().and_then(|name| name.strip_prefix(JOURNAL_PREFIX)?.parse::<u64>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

pub(crate) fn create(folder: &Path, number: u64) -> io::Result<File> {
    private_file().write(true).create_new(true).open(path(folder, number))
}

pub(crate) fn remove(folder: &Path, number: u64) -> io::Result<()> {
    fs::remove_file(path(folder, number))
}

/// Reads a segment from its beginning on, while it may still be written.
#[derive(Debug)]
pub(crate) struct Reader {
    file: File,
    /// Bytes of the file that were read.
    read: u64,
    piece: Vec<u8>,
    /// Of the piece: what is in it, and how much of that was shown.
    filled: usize,
    shown: usize,
}

impl Reader {
    pub(crate) fn open(folder: &Path, number: u64) -> io::Result<Self> {
        Ok(Self { file: File::open(path(folder, number))?, read: 0, piece: Vec::new(), filled: 0, shown: 0 })
    }

    /// Reads on, up to this place: what comes behind it may still be taken back. Whether there is anything new.
    pub(crate) fn fill(&mut self, upto: u64) -> io::Result<bool> {
        self.piece.copy_within(self.shown..self.filled, 0);
        self.filled -= std::mem::take(&mut self.shown);
        let left = upto.min(self.file.metadata()?.len()).saturating_sub(self.read);
        let wanted = end_of_first(&self.piece[..self.filled]).unwrap_or(0).max(PIECE);
        // Only as much as there is: a length that was never written whole may be anything.
        let end = wanted.min(self.filled.saturating_add(usize::try_from(left).unwrap_or(usize::MAX)));
        if self.piece.len() < end {
            self.piece.resize(end, 0);
        }
        let before = self.filled;
        while self.filled < end {
            match self.file.read(&mut self.piece[self.filled..end])? {
                0 => break,
                read => self.filled += read,
            }
        }
        self.read += (self.filled - before) as u64;
        Ok(self.filled > before)
    }

    /// The records that were read and not shown yet, with the number of bytes that are behind whoever has seen them.
    pub(crate) fn records(&self) -> impl Iterator<Item = (Record<'_>, usize)> {
        let mut at = self.shown;
        std::iter::from_fn(move || {
            let (record, length) = decode(&self.piece[at..self.filled])?;
            at += length;
            Some((record, at))
        })
    }

    /// They need not be shown again. Gives how many bytes they are.
    pub(crate) fn were_shown(&mut self, upto: usize) -> usize {
        upto - std::mem::replace(&mut self.shown, upto)
    }

    /// Whether all that was read was shown.
    pub(crate) fn is_at_its_end(&self) -> bool {
        self.shown == self.filled
    }

    /// Bytes that cannot be shown.
    pub(crate) fn left(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len().saturating_sub(self.read) + (self.filled - self.shown) as u64)
    }

    /// Whether the next record goes on behind the end of the file.
    pub(crate) fn is_cut(&self) -> io::Result<bool> {
        let left = self.left()?;
        Ok(end_of_first(&self.piece[self.shown..self.filled]).is_none_or(|end| end as u64 > left))
    }

    /// Whether the next record is as it was written, though it may not be one of ours.
    pub(crate) fn has_a_sound_record(&self) -> bool {
        first_sound(&self.piece[self.shown..self.filled]).is_some()
    }
}

/// Forgets what was being written when it failed, so that the next record stands where that one would have.
pub(crate) fn cut(mut file: &File, bytes: u64) -> io::Result<()> {
    file.set_len(bytes)?;
    file.seek(SeekFrom::Start(bytes)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn record(seq: u64, input: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        let row = Row { at: 7, id: format!("id{seq}"), tenant: "t".into(), input: input.to_owned(), ..Row::default() };
        encode(&mut bytes, &row, &[1, 2], &[seq / 2]).unwrap();
        put_number(&mut bytes, seq);
        bytes
    }

    fn read_all(folder: &Path) -> Vec<(u64, usize)> {
        let mut reader = Reader::open(folder, 1).unwrap();
        let mut found = Vec::new();
        while reader.fill(u64::MAX).unwrap() {
            let mut end = None;
            for (record, upto) in reader.records() {
                assert_eq!((record.effects, record.removed), (&[1, 2][..], vec![record.row.seq / 2]));
                found.push((record.row.seq, record.row.input.len()));
                end = Some(upto);
            }
            if let Some(end) = end {
                reader.were_shown(end);
            }
        }
        found
    }

    #[test]
    fn records_of_any_length_come_back_and_a_cut_one_ends_them() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = create(folder.path(), 1).unwrap();
        let lengths = [0, 10, PIECE - 200, 3 * PIECE, 1];
        for (seq, length) in lengths.iter().enumerate() {
            file.write_all(&record(seq as u64, &"x".repeat(*length))).unwrap();
        }
        let whole: Vec<(u64, usize)> = lengths.iter().enumerate().map(|(seq, length)| (seq as u64, *length)).collect();
        assert_eq!(read_all(folder.path()), whole);
        let size = file.metadata().unwrap().len();
        for missing in 1..30 {
            file.set_len(size - missing).unwrap();
            assert_eq!(read_all(folder.path()), whole[..4], "{missing} bytes are missing");
        }
        // A length that says more than there is asks for no memory.
        file.seek(SeekFrom::End(0)).unwrap();
        file.write_all(&[0xff; 64]).unwrap();
        assert_eq!(read_all(folder.path()), whole[..4]);
    }

    #[test]
    fn a_changed_byte_ends_the_records() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = create(folder.path(), 1).unwrap();
        let (first, mut second) = (record(1, "one"), record(2, "two"));
        file.write_all(&first).unwrap();
        let middle = second.len() / 2;
        second[middle] ^= 1;
        file.write_all(&second).unwrap();
        file.write_all(&record(3, "three")).unwrap();
        assert_eq!(read_all(folder.path()), [(1, 3)]);
        assert_eq!(numbers(folder.path()).unwrap(), [1]);
        remove(folder.path(), 1).unwrap();
        assert_eq!(numbers(folder.path()).unwrap(), [0; 0]);
    }
}
