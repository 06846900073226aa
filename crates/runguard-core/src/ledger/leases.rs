//! What is set aside until it is settled, and what becomes of it when nobody does.

use super::Cost;
use crate::money::NanoDollars;
use crate::packed::{Packed, serialise_packed};
use crate::time::{Span, Timestamp};
use std::collections::BTreeMap;

/// Reservations of one account that are booked as paid because nobody settled them, and may still be settled for what they cost: the latest
/// whose time was over in this hour, and of the day. Most that are late are so by minutes; what a holder that died had set aside is settled
/// by nobody, and need not be carried along for long.
pub(super) const MOST_BOOKED_LATELY: usize = 1_024;
pub(super) const MOST_BOOKED: usize = 128;
const LATELY: Span = Span::from_seconds(3600);
/// How long after its time a reservation may still be settled in the place of what was booked for it.
const MAY_STILL_BE_SETTLED: Span = Span::from_seconds(24 * 3600);

/// What was set aside, and until when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// What is set aside.
    pub cost: Cost,
    /// Until then it is to be settled.
    pub expires: Timestamp,
    /// What becomes of it then.
    pub unsettled: Unsettled,
    pub(super) booked: Booked,
}

impl Lease {
    /// Whether it counts as set aside.
    pub(super) fn counts(&self, now: Timestamp) -> bool {
        !self.is_booked() && now < self.expires
    }

    /// Whether it counts as spent, and is not booked yet.
    pub(super) fn is_overdue(&self, now: Timestamp) -> bool {
        !self.is_booked() && now >= self.expires && self.unsettled == Unsettled::Spent
    }

    pub(super) fn is_booked(&self) -> bool {
        self.booked != Booked::Not
    }

    /// When it has to be looked at: its time is over, or so long over that it is forgotten.
    fn is_due_at(&self) -> Timestamp {
        if self.is_booked() { self.expires.plus(MAY_STILL_BE_SETTLED) } else { self.expires }
    }
}

/// Whether a reservation, its time being over, was added to what was spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Booked {
    Not,
    /// It is among it.
    Here,
    /// It was, in a period that is over.
    Before,
}

/// What becomes of a reservation that nobody settles in its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unsettled {
    /// It is free again.
    #[default]
    Free,
    /// It is taken to have been paid: whoever held it may have died after it was.
    Spent,
}

/// Up to here reservations stand in one list: quick to read from a store, to copy and to write.
const FEW: usize = 1024;

/// Reservations in the order of their numbers. Few of them are a list, many a tree, in which one more moves none of the others.
#[derive(Debug, Clone, Default)]
pub(super) struct ByNumber {
    /// Empty while there are many.
    few: Vec<(u64, Lease)>,
    many: BTreeMap<u64, Lease>,
}

impl ByNumber {
    fn place(&self, id: u64) -> Result<usize, usize> {
        self.few.binary_search_by_key(&id, |(id, _)| *id)
    }

    pub(super) fn get(&self, id: u64) -> Option<&Lease> {
        if self.many.is_empty() { Some(&self.few[self.place(id).ok()?].1) } else { self.many.get(&id) }
    }

    pub(super) fn len(&self) -> usize {
        self.few.len() + self.many.len()
    }

    fn iter(&self) -> impl Iterator<Item = (u64, &Lease)> {
        self.few.iter().map(|(id, lease)| (*id, lease)).chain(self.many.iter().map(|(id, lease)| (*id, lease)))
    }

    fn values_mut(&mut self) -> impl Iterator<Item = &mut Lease> {
        self.few.iter_mut().map(|(_, lease)| lease).chain(self.many.values_mut())
    }

    /// It is not there yet.
    fn insert(&mut self, id: u64, lease: Lease) {
        if self.many.is_empty() && self.few.len() < FEW {
            let (Ok(place) | Err(place)) = self.place(id);
            self.few.insert(place, (id, lease));
        } else {
            self.many.extend(std::mem::take(&mut self.few));
            self.many.insert(id, lease);
        }
    }

    fn remove(&mut self, id: u64) -> Option<Lease> {
        if self.many.is_empty() { Some(self.few.remove(self.place(id).ok()?).1) } else { self.many.remove(&id) }
    }

    fn retain(&mut self, mut stays: impl FnMut(&mut Lease) -> bool) {
        self.few.retain_mut(|(_, lease)| stays(lease));
        self.many.retain(|_, lease| stays(lease));
    }
}

impl PartialEq for ByNumber {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

/// Reservations that are not settled, by their number.
#[derive(Debug, Clone)]
pub struct Leases {
    pub(super) by_number: ByNumber,
    /// Of all of them, also those that have expired, but for those that are booked.
    sum: [u128; 2],
    /// None is due before this.
    earliest: Timestamp,
}

impl Default for Leases {
    fn default() -> Self {
        Self { by_number: ByNumber::default(), sum: [0; 2], earliest: Timestamp::MAX }
    }
}

impl PartialEq for Leases {
    fn eq(&self, other: &Self) -> bool {
        self.by_number == other.by_number
    }
}

impl Eq for Leases {}

impl Leases {
    const BYTES_OF_ONE: usize = 32;

    /// How long they are as they are kept.
    pub(super) fn packed_bytes(&self) -> usize {
        self.by_number.len() * Self::BYTES_OF_ONE
    }

    pub(super) fn in_force(&self, now: Timestamp) -> impl Iterator<Item = (u64, &Lease)> {
        self.by_number.iter().filter(move |(_, lease)| lease.counts(now))
    }

    /// There may be very many; most of the time none of them has expired.
    pub(super) fn total(&self, now: Timestamp) -> Cost {
        let sum = if now < self.earliest { self.sum } else { sum_of(self.in_force(now).map(|(_, lease)| lease)) };
        cost_of(sum)
    }

    pub(super) fn overdue(&self, now: Timestamp) -> Cost {
        if now < self.earliest {
            return Cost::ZERO;
        }
        cost_of(sum_of(self.by_number.iter().map(|(_, lease)| lease).filter(|lease| lease.is_overdue(now))))
    }

    pub(super) fn insert(&mut self, id: u64, lease: Lease) {
        self.remove(id);
        self.sum = plus(self.sum, lease.cost);
        self.earliest = self.earliest.min(lease.is_due_at());
        self.by_number.insert(id, lease);
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<Lease> {
        let lease = self.by_number.remove(id)?;
        if !lease.is_booked() {
            let amounts = lease.cost.amounts();
            self.sum = [self.sum[0] - u128::from(amounts[0]), self.sum[1] - u128::from(amounts[1])];
        }
        Some(lease)
    }

    /// Removes what has expired, and gives what of it is taken to have been paid: that is known to be booked from now on.
    pub(super) fn forget_expired(&mut self, at: Timestamp) -> Cost {
        if at < self.earliest {
            return Cost::ZERO;
        }
        let mut paid = Cost::ZERO;
        let mut by_number = std::mem::take(&mut self.by_number);
        by_number.retain(|lease| {
            if lease.is_overdue(at) {
                paid = paid.plus(lease.cost);
                lease.booked = Booked::Here;
            }
            at < lease.is_due_at()
        });
        let mut booked: Vec<(Timestamp, u64)> =
            by_number.iter().filter(|(_, lease)| lease.is_booked()).map(|(id, lease)| (lease.expires, id)).collect();
        booked.sort_unstable();
        let beyond = |most: usize| booked.len().saturating_sub(most);
        for (number, (expires, id)) in booked.iter().take(beyond(MOST_BOOKED)).enumerate() {
            if number < beyond(MOST_BOOKED_LATELY) || at >= expires.plus(LATELY) {
                by_number.remove(*id);
            }
        }
        *self = Self::of(by_number);
        paid
    }

    /// A period is over: what was spent in it, and what was booked with that, counts no more.
    pub(super) fn end_period(&mut self, ends: Timestamp) {
        self.forget_expired(ends);
        for lease in self.by_number.values_mut().filter(|lease| lease.is_booked()) {
            lease.booked = Booked::Before;
        }
    }

    fn of(by_number: ByNumber) -> Self {
        let leases = || by_number.iter().map(|(_, lease)| lease);
        let booked = || leases().filter(|lease| lease.is_booked());
        // Of so many the first does not stay for as long as it could.
        let leaves = if booked().count() > MOST_BOOKED { booked().map(|lease| lease.expires.plus(LATELY)).min() } else { None };
        let (sum, earliest) = (sum_of(leases()), leases().map(Lease::is_due_at).chain(leaves).min());
        Self { by_number, sum, earliest: earliest.unwrap_or(Timestamp::MAX) }
    }
}

fn plus(sum: [u128; 2], cost: Cost) -> [u128; 2] {
    let amounts = cost.amounts();
    [sum[0] + u128::from(amounts[0]), sum[1] + u128::from(amounts[1])]
}

fn cost_of(sum: [u128; 2]) -> Cost {
    Cost::from_amounts(sum.map(|amount| u64::try_from(amount).unwrap_or(u64::MAX)))
}

fn sum_of<'a>(leases: impl Iterator<Item = &'a Lease>) -> [u128; 2] {
    leases.filter(|lease| !lease.is_booked()).fold([0; 2], |sum, lease| plus(sum, lease.cost))
}

/// Stands in the moment of a reservation that is booked: no moment is so late.
const BOOKED_BIT: i64 = 1 << 62;
/// Beside it, where that was in a period that is over.
const BEFORE_BIT: i64 = 1 << 61;

impl Packed for Leases {
    fn pack(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.packed_bytes());
        for (id, Lease { cost, expires, unsettled, booked }) in self.by_number.iter() {
            bytes.extend_from_slice(&id.to_le_bytes());
            bytes.extend_from_slice(&cost.usd.as_nanos().to_le_bytes());
            bytes.extend_from_slice(&cost.tokens.to_le_bytes());
            // No moment is before 1970: what is below zero says what becomes of it, where those of before there was a choice have nothing.
            let expires = match (booked, unsettled) {
                (Booked::Before, _) => expires.as_millis() | BOOKED_BIT | BEFORE_BIT,
                (Booked::Here, _) => expires.as_millis() | BOOKED_BIT,
                (Booked::Not, Unsettled::Free) => expires.as_millis(),
                (Booked::Not, Unsettled::Spent) => !expires.as_millis(),
            };
            bytes.extend_from_slice(&expires.to_le_bytes());
        }
        bytes
    }

    fn unpack(bytes: &[u8]) -> Option<Self> {
        let read = |one: &[u8]| {
            let number = |place: usize| one.get(place * 8..place * 8 + 8)?.try_into().map(u64::from_le_bytes).ok();
            let cost = Cost { usd: NanoDollars::from_nanos(number(1)?.cast_signed()).ok()?, tokens: number(2)? };
            let (expires, unsettled, booked) = match number(3)?.cast_signed() {
                expires @ BOOKED_BIT.. if expires & BEFORE_BIT != 0 => {
                    (expires & !BOOKED_BIT & !BEFORE_BIT, Unsettled::Spent, Booked::Before)
                }
                expires @ BOOKED_BIT.. => (expires & !BOOKED_BIT, Unsettled::Spent, Booked::Here),
                expires @ 0.. => (expires, Unsettled::Free, Booked::Not),
                expires => (!expires, Unsettled::Spent, Booked::Not),
            };
            Some((number(0)?, Lease { cost, expires: Timestamp::from_millis(expires), unsettled, booked }))
        };
        let mut few = Vec::with_capacity(bytes.len().div_ceil(Self::BYTES_OF_ONE));
        for one in bytes.chunks(Self::BYTES_OF_ONE) {
            few.push(read(one)?);
        }
        let is_list = few.len() <= FEW && few.is_sorted_by(|(left, _), (right, _)| left < right);
        Some(Self::of(if is_list {
            ByNumber { few, ..ByNumber::default() }
        } else {
            ByNumber { many: few.into_iter().collect(), ..ByNumber::default() }
        }))
    }
}
serialise_packed!(Leases);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_and_many_are_found_counted_and_kept_alike() {
        let lease = |number: u64| Lease {
            cost: Cost::tokens(number % 7),
            expires: Timestamp::from_millis(1_000),
            unsettled: Unsettled::Spent,
            booked: Booked::Not,
        };
        let mut leases = Leases::default();
        // In no order, so that each has its place to find.
        let numbers: Vec<u64> = (0..2 * FEW as u64).map(|number| number.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
        for (count, number) in numbers.iter().enumerate() {
            leases.insert(*number, lease(*number));
            assert_eq!((leases.by_number.len(), leases.by_number.get(*number)), (count + 1, Some(&lease(*number))));
            if (count + 1).is_multiple_of(500) {
                assert_eq!(Leases::unpack(&leases.pack()).unwrap(), leases, "{count}");
            }
        }
        assert!(leases.by_number.few.is_empty() && leases.by_number.iter().map(|(id, _)| id).is_sorted());
        let in_force = |leases: &Leases| {
            (leases.total(Timestamp::ZERO).tokens, leases.in_force(Timestamp::ZERO).map(|(_, one)| one.cost.tokens).sum::<u64>())
        };
        for (gone, number) in numbers.iter().enumerate() {
            let (kept, counted) = in_force(&leases);
            assert_eq!(kept, counted);
            assert_eq!((leases.remove(*number), leases.remove(*number)), (Some(lease(*number)), None));
            if gone == FEW {
                leases = Leases::unpack(&leases.pack()).unwrap();
                assert!(leases.by_number.many.is_empty(), "few again");
            }
        }
        assert_eq!((leases.by_number.len(), leases), (0, Leases::default()));
        let mut bytes = Leases::default().pack();
        for number in [5_u64, 3] {
            let mut one = Leases::default();
            one.insert(number, lease(number));
            bytes.extend(one.pack());
        }
        assert_eq!(Leases::unpack(&bytes).unwrap().by_number.get(3), Some(&lease(3)), "whatever their order was");
        assert!(Leases::unpack(&bytes[1..]).is_none());
    }
}
