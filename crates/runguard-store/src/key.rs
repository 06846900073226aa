//! Names of entries: 128 bits of a stable hash, so that a million sessions cost sixteen bytes each and not their names.
//!
//! Whoever can find two names with one hash makes one session count for another. So the hash is keyed ([`Names`]): with a secret that
//! is made with the store, and kept with its log, because states and rows are filed under what it gives. `SipHash`, because it is made
//! for this, and costs less than a tenth of a microsecond.

use runguard_core::row::Effect;
use siphasher::sip128::SipHasher24;
use smallvec::SmallVec;
use std::fmt;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// What kind of thing an entry belongs to. The numbers are on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Family {
    Session = 0,
    Endpoint = 1,
    Idempotency = 2,
    /// What many sessions draw on.
    Account = 3,
}

impl Family {
    pub(crate) const fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Session),
            1 => Some(Self::Endpoint),
            2 => Some(Self::Idempotency),
            3 => Some(Self::Account),
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
    /// The key of a store without a secret.
    pub fn new(family: Family, tenant: &str, name: &str) -> Self {
        Names::PLAIN.key(family, tenant, name)
    }

    /// The entry whose state an effect is about. `None`: one of a later version.
    pub fn of(effect: &Effect<'_>) -> Option<Self> {
        Some(Self { family: Family::from_number(effect.family)?, hash: effect.hash })
    }

    /// The key as text, for a note.
    pub fn to_text(self) -> String {
        format!("{}:{:032x}", self.family as u8, self.hash)
    }

    /// What [`Key::to_text`] gave.
    pub fn from_text(text: &str) -> Option<Self> {
        let (family, hash) = text.split_once(':')?;
        Some(Self { family: Family::from_number(family.parse().ok()?)?, hash: u128::from_str_radix(hash, 16).ok()? })
    }

    /// The number of what lives with this entry.
    pub fn group(self) -> u64 {
        self.hash as u64
    }
}

/// Bytes of a secret.
pub(crate) const SECRET_BYTES: usize = 16;

/// How a store makes keys of names.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Names {
    secret: Option<[u8; SECRET_BYTES]>,
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.secret.is_some() { "Names(secret)" } else { "Names(plain)" })
    }
}

impl Names {
    /// Without a secret, as stores of earlier versions have them: the keys that are in their logs cannot be made again.
    pub const PLAIN: Self = Self { secret: None };

    pub const fn keyed(secret: [u8; SECRET_BYTES]) -> Self {
        Self { secret: Some(secret) }
    }

    /// With a secret of its own.
    pub fn random() -> Result<Self, getrandom::Error> {
        let mut secret = [0; SECRET_BYTES];
        getrandom::fill(&mut secret)?;
        Ok(Self::keyed(secret))
    }

    pub(crate) fn secret(&self) -> Option<[u8; SECRET_BYTES]> {
        self.secret
    }

    /// The secret in hexadecimal; empty where there is none.
    pub(crate) fn secret_text(&self) -> String {
        self.secret.map(|secret| runguard_core::fingerprint::hex_of(&secret)).unwrap_or_default()
    }

    pub fn key(&self, family: Family, tenant: &str, name: &str) -> Key {
        let mut bytes: SmallVec<[u8; 128]> = SmallVec::new();
        bytes.push(family as u8);
        bytes.extend_from_slice(tenant.as_bytes());
        bytes.push(0);
        bytes.extend_from_slice(name.as_bytes());
        let hash = match &self.secret {
            Some(secret) => SipHasher24::new_with_key(secret).hash(&bytes).as_u128(),
            None => xxh3_128(&bytes),
        };
        Key { family, hash }
    }

    /// How an erasure knows a single row, where it knows sessions by their numbers.
    pub(crate) fn row_number(id: &str) -> i64 {
        // No name begins so: it is another number than any session's.
        let mut bytes: SmallVec<[u8; 64]> = SmallVec::from_slice(&[u8::MAX]);
        bytes.extend_from_slice(id.as_bytes());
        xxh3_64(&bytes) as i64
    }

    /// How the session index knows a session.
    pub(crate) fn session_number(&self, tenant: &str, session: &str) -> i64 {
        if let Some(number) = self.number_of(self.key(Family::Session, tenant, session)) {
            return number;
        }
        let mut bytes: SmallVec<[u8; 128]> = SmallVec::new();
        bytes.extend_from_slice(tenant.as_bytes());
        bytes.push(0);
        bytes.extend_from_slice(session.as_bytes());
        xxh3_64(&bytes) as i64
    }

    /// The number of the session with this key; without a secret it is another hash, which the key does not tell.
    pub(crate) fn number_of(&self, session: Key) -> Option<i64> {
        self.secret.is_some().then(|| session.group() as i64)
    }
}

/// One of 64 bits for a name: which names *may* occur in a zone of the log.
pub(crate) fn mask(name: &str) -> i64 {
    1_i64 << (xxh3_64(name.as_bytes()) & 63)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_makes_other_keys_and_none_makes_those_of_earlier_versions() {
        let [one, other] = [Names::keyed([1; 16]), Names::keyed([2; 16])];
        let key = |names: Names| names.key(Family::Session, "tenant", "session");
        assert_eq!(key(one), key(one));
        assert_ne!(key(one), key(other));
        assert_ne!(key(one), key(Names::PLAIN));
        assert_ne!(one.session_number("tenant", "session"), Names::PLAIN.session_number("tenant", "session"));
        assert_ne!(one.key(Family::Session, "tenant", "session"), one.key(Family::Endpoint, "tenant", "session"));
        assert_ne!(one.key(Family::Session, "a", "b"), one.key(Family::Session, "ab", ""));
        // On disk since the first version.
        assert_eq!(key(Names::PLAIN).hash, xxh3_128(b"\0tenant\0session"));
        assert_eq!(Names::PLAIN.session_number("tenant", "session"), xxh3_64(b"tenant\0session") as i64);
        assert_eq!(format!("{one:?}"), "Names(secret)", "it is in no log line");
    }

    /// `cargo test --release -p runguard-store --lib key::tests::cost -- --ignored --nocapture`
    #[test]
    #[ignore = "a measurement"]
    fn cost() {
        for names in [Names::PLAIN, Names::keyed([7; 16])] {
            let started = std::time::Instant::now();
            let mut sum = 0_u128;
            for number in 0..2_000_000_u32 {
                let session = if number % 2 == 0 { "conversation-3f2b7c1e-9a41" } else { "conversation-77aa01c2-1b3c" };
                sum ^= names.key(Family::Session, "default", std::hint::black_box(session)).hash;
            }
            println!("{names:?}: {:?} a key ({sum:x})", started.elapsed() / 2_000_000);
        }
    }
}
