//! Names of entries: 128 bits of a stable hash, so that a million sessions cost sixteen bytes each and not their names.

use smallvec::SmallVec;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// What kind of thing an entry belongs to. The numbers are on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Family {
    Session = 0,
    Endpoint = 1,
    Idempotency = 2,
}

impl Family {
    pub(crate) const fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Session),
            1 => Some(Self::Endpoint),
            2 => Some(Self::Idempotency),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub family: Family,
    pub(crate) hash: u128,
}

impl Key {
    pub fn new(family: Family, tenant: &str, name: &str) -> Self {
        let mut bytes: SmallVec<[u8; 128]> = SmallVec::new();
        bytes.push(family as u8);
        bytes.extend_from_slice(tenant.as_bytes());
        bytes.push(0);
        bytes.extend_from_slice(name.as_bytes());
        Self { family, hash: xxh3_128(&bytes) }
    }

    /// The number of what lives with this entry.
    pub fn group(self) -> u64 {
        self.hash as u64
    }
}

/// How the session index knows a session.
pub(crate) fn session_number(tenant: &str, session: &str) -> i64 {
    let mut bytes: SmallVec<[u8; 128]> = SmallVec::new();
    bytes.extend_from_slice(tenant.as_bytes());
    bytes.push(0);
    bytes.extend_from_slice(session.as_bytes());
    xxh3_64(&bytes) as i64
}

/// One of 64 bits for a name: which names *may* occur in a zone of the log.
pub(crate) fn mask(name: &str) -> i64 {
    1_i64 << (xxh3_64(name.as_bytes()) & 63)
}
