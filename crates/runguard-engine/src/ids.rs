//! Decision ids: 26 characters that sort in the order of the decisions (ULID: 48 bits of time, 80 that tell apart).
//!
//! The order must hold when the clock does not: if time stands still or goes back, the last time is kept and the rest
//! counts up. A generator of our own because that, and starting where the log ended, is most of what it does.

use std::sync::{Mutex, PoisonError};

const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
const TIME_BITS: u64 = (1 << 48) - 1;
const LOW_BITS: u128 = (1 << 80) - 1;

#[derive(Debug)]
pub struct Ids {
    last: Mutex<Last>,
}

#[derive(Debug)]
struct Last {
    id: u128,
    noise: u64,
}

impl Ids {
    /// `after` is the last id of the log, if there is one. Without a seed the numbers are random.
    pub fn new(after: Option<&str>, seed: Option<u64>) -> Self {
        let noise = seed.or_else(|| getrandom::u64().ok()).unwrap_or(0x9E37_79B9_7F4A_7C15) | 1;
        Self { last: Mutex::new(Last { id: after.and_then(decode).unwrap_or(0), noise }) }
    }

    pub fn next(&self, now_millis: i64) -> Id {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let millis = (now_millis.max(0) as u64).min(TIME_BITS);
        if u128::from(millis) > last.id >> 80 {
            // xorshift: not secret, only unlikely to meet another process's numbers.
            last.noise ^= last.noise << 13;
            last.noise ^= last.noise >> 7;
            last.noise ^= last.noise << 17;
            // The top bit stays free, so that a millisecond can count up for long.
            let start = (u128::from(last.noise) << 15) & (LOW_BITS >> 1);
            last.id = (u128::from(millis) << 80) | start;
        } else {
            last.id += 1;
        }
        Id(last.id)
    }
}

/// An id before it is written out, to be kept where it may be written several times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Id(u128);

impl Id {
    pub fn text(self) -> String {
        encode(self.0)
    }
}

fn encode(id: u128) -> String {
    let mut text = String::with_capacity(26);
    for place in (0..26).rev() {
        text.push(char::from(ALPHABET[((id >> (place * 5)) & 31) as usize]));
    }
    text
}

fn decode(text: &str) -> Option<u128> {
    if text.len() != 26 {
        return None;
    }
    text.bytes().try_fold(0_u128, |id, byte| {
        let digit = ALPHABET.iter().position(|known| *known == byte)?;
        id.checked_mul(32)?.checked_add(digit as u128)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_go_up_whatever_the_clock_does() {
        let ids = Ids::new(None, None);
        let clock = [1000, 1000, 999, 5, 2000, 1_700_000_000_000, -5, 0, 1_700_000_000_001];
        let made: Vec<String> = clock.iter().map(|now| ids.next(*now).text()).collect();
        assert!(made.windows(2).all(|pair| pair[0] < pair[1]), "{made:?}");
        assert!(made.iter().all(|id| id.len() == 26 && decode(id).map(encode).as_deref() == Some(id)));
        let later = Ids::new(made.last().map(String::as_str), None).next(0).text();
        assert!(later > made[8], "a new process goes on where the log ended");
    }
}
