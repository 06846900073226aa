//! The books of a budget, for all who keep one: in a process behind a lock ([`crate::budget`]), in a store as events
//! (the guard `budget`).
//!
//! An [`Account`] is pure. It holds what was spent, what is set aside and how often each key was called; what happens to it is an
//! [`Entry`]. A budget may draw on others: on a parent, and on any number of scopes (a key's, a tenant's, a model's, a day's). A question
//! is asked of every account on its path, and is granted by all of them or by none.
//!
//! Limits are no part of an account's name, and scopes do not even keep them: whoever asks says what is in force. So a limit that is
//! raised or lowered finds what was used.
//!
//! The rules, once:
//! - An estimate is set aside when it fits beside what is spent and what others have set aside.
//! - What was paid is counted, whatever the limit says. It was too much when more is *spent* than the limit: what is only set aside may
//!   be given back.
//! - Who pays no more than was set aside did what was agreed, even when others have overrun the limit meanwhile. What is paid
//!   beyond it must fit beside what others have set aside.
//! - A refusal names a limit that is used up before one whose rest is only set aside: of the first nobody gives anything back.
//! - Who asks whether a call may be made is refused at its cap, and then it is not counted. A call that was made is counted, also
//!   beyond its cap; with the money it cost. A reservation sets money aside, and no call: what was made of several that were granted side by
//!   side is told to be too much when it is settled, as when it is recorded.
//! - Tokens that were used are counted, whatever their model costs. Without a price it is refused where dollars are limited.
//! - A limit of the settings is a ceiling: a caller's own can be lower, not higher.
//! - What nobody settled in its time and is taken to have been paid is spent from then on; it is booked with the next reservation. Whoever
//!   settles it later, for as long as that is remembered, settles it in the place of that: nothing is paid twice.
//! - With a new period what was spent and called begins at nothing; what is set aside stays, and is paid in the period it is settled in.
//!   What was taken to have been paid stays in the period in which its time was over: of the next it takes only what it cost beyond that.
//!   Periods only go on: a clock that jumps back finds the one that has begun, so it frees nothing and loses nothing. Only where it had run
//!   so far ahead that not even the next period ends as late, the one that it is begins, and has what was spent.

mod act;
mod calls;
mod exceeded;
mod leases;
mod scope;

use crate::calendar::Period;
use crate::money::NanoDollars;
use crate::packed::write_behind;
use crate::time::Timestamp;
pub use act::{Act, REFUSED_IS_FORGOTTEN, UNSETTLED_IS_SPENT};
pub use calls::Calls;
pub use exceeded::{BudgetExceeded, Level, Unit};
use leases::Booked;
pub use leases::{Lease, Leases, Unsettled};
pub use scope::{InvalidScope, KNOWN_PER, MOST_SCOPES, Scope, SentScope, is_per, scope_label};
use serde::{Deserialize, Serialize};

/// Keys whose calls an account of a process counts exactly. With one more, the key that was not asked about for longest is forgotten,
/// and starts from zero when it comes back. They are a table in memory that nobody copies: some megabytes at most.
pub const MAX_KEYS: usize = 100_000;
/// Reservations of one budget that may be open by id in a process; the next one is refused until one is settled. In memory too.
pub const MAX_OPEN_RESERVATIONS: usize = 100_000;
/// The same keys in a store. Less than within a process: an account is read and written as a whole at every step.
pub const MAX_STORED_KEYS: usize = 512;
/// The same reservations in a store, for the same reason.
pub const MAX_STORED_RESERVATIONS: usize = 1024;
/// The same of a scope: many sessions share it, so there may be more, at a price for each of its steps.
pub const MAX_STORED_RESERVATIONS_OF_SCOPE: usize = 4096;

/// What can be counted without a limit: as many nano-dollars, or tokens, as fit an `i64`.
const COUNTABLE: u64 = i64::MAX as u64;

/// What a budget allows. What is left out is not limited here, but may be by a parent.
///
/// ```
/// use runguard_core::budget::{Budget, Limits};
/// use runguard_core::money::NanoDollars;
///
/// let limits = Limits { usd: Some(NanoDollars::parse("5")?), ..Limits::default() };
/// assert_eq!(Budget::new(limits).remaining().usd, limits.usd);
/// # Ok::<(), runguard_core::money::MoneyError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Dollars.
    pub usd: Option<NanoDollars>,
    /// Tokens.
    pub tokens: Option<u64>,
    /// Calls of each key.
    pub cap: Option<u32>,
}

impl Limits {
    /// These, and where they say nothing the others.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self { usd: self.usd.or(others.usd), tokens: self.tokens.or(others.tokens), cap: self.cap.or(others.cap) }
    }

    /// The lower of each.
    #[must_use]
    pub fn within(self, ceiling: Self) -> Self {
        fn lower<T: Ord>(own: Option<T>, ceiling: Option<T>) -> Option<T> {
            [own, ceiling].into_iter().flatten().min()
        }
        Self { usd: lower(self.usd, ceiling.usd), tokens: lower(self.tokens, ceiling.tokens), cap: lower(self.cap, ceiling.cap) }
    }

    fn amounts(&self) -> [Option<u64>; 2] {
        [self.usd.map(|usd| usd.as_nanos() as u64), self.tokens]
    }

    fn ceilings(&self) -> Amounts {
        self.amounts().map(|limit| limit.unwrap_or(COUNTABLE).min(COUNTABLE))
    }
}

/// What something costs.
///
/// ```
/// use runguard_core::budget::Cost;
/// use runguard_core::money::NanoDollars;
///
/// let cost = Cost { usd: NanoDollars::parse("0.02")?, tokens: 1_200 };
/// assert_eq!(Cost::usd(cost.usd), Cost { tokens: 0, ..cost });
/// assert_eq!(Cost::tokens(1_200), Cost { usd: NanoDollars::ZERO, ..cost });
/// # Ok::<(), runguard_core::money::MoneyError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cost {
    /// Dollars.
    pub usd: NanoDollars,
    /// Tokens.
    pub tokens: u64,
}

impl Cost {
    /// Nothing.
    pub const ZERO: Self = Self { usd: NanoDollars::ZERO, tokens: 0 };

    /// Dollars alone.
    pub const fn usd(usd: NanoDollars) -> Self {
        Self { usd, tokens: 0 }
    }

    /// Tokens alone.
    pub const fn tokens(tokens: u64) -> Self {
        Self { usd: NanoDollars::ZERO, tokens }
    }

    /// The sum; at the largest number it stays.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { usd: self.usd.saturating_add(other.usd), tokens: self.tokens.saturating_add(other.tokens) }
    }

    /// The difference; at nothing it stays.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self { usd: self.usd.saturating_sub(other.usd), tokens: self.tokens.saturating_sub(other.tokens) }
    }

    fn amounts(self) -> Amounts {
        [self.usd.as_nanos() as u64, self.tokens]
    }

    fn from_amounts([nanos, tokens]: Amounts) -> Self {
        Self { usd: nano_dollars(nanos), tokens }
    }
}

/// Nano-dollars and tokens, in the order of [`BOOKED`].
type Amounts = [u64; 2];

const BOOKED: [Unit; 2] = [Unit::Usd, Unit::Tokens];

/// What no `i64` can hold was not countable in the first place: the largest amount stands for it.
pub fn nano_dollars(nanos: u64) -> NanoDollars {
    i64::try_from(nanos).ok().and_then(|nanos| NanoDollars::from_nanos(nanos).ok()).unwrap_or(NanoDollars::MAX)
}

/// What happens to an account. The order of the variants is on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Entry {
    /// Its owner set other limits.
    Limited(Limits),
    /// Paid, whatever the limit.
    Spent(Cost),
    /// Set aside until it is settled, or expires.
    Reserved {
        /// Its number.
        id: u64,
        /// How much.
        cost: Cost,
        /// From then on it counts no more.
        expires: Timestamp,
    },
    /// Committed or released: what was spent is an entry of its own.
    Settled {
        /// Its number.
        id: u64,
    },
    /// One call of a key was made.
    Counted {
        /// Whose.
        key: u64,
    },
    /// A period begins that lasts until then, unless it has begun already.
    Began {
        /// The first moment of the next one.
        ends: Timestamp,
    },
    /// Set aside until it is settled; if nobody does in its time, it was paid.
    ReservedOrSpent {
        /// Its number.
        id: u64,
        /// How much.
        cost: Cost,
        /// Until then it is to be settled.
        expires: Timestamp,
    },
    /// A period that ends far too late, because a clock ran ahead, is none: what was counted in it belongs to the one that begins next.
    TakenBack {
        /// When it would have ended; another one is left alone.
        ends: Timestamp,
    },
}

/// One level of a budget.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// What its owner allows; a ceiling may be lower.
    pub limits: Limits,
    spent: Cost,
    open: Leases,
    calls: Calls,
    /// Set aside by who holds it in the same process, and gives it back.
    #[serde(skip)]
    held: Cost,
    /// Of an account that counts by periods: until when what was spent counts. Stands behind the rest: [`Self::to_bytes`].
    #[serde(skip)]
    ends: Option<Timestamp>,
}

impl Account {
    /// Nothing spent yet.
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// What an entry changes, for an account that remembers so many keys. Expired leases leave with the next one.
    pub fn apply(&mut self, entry: &Entry, at: Timestamp, most_keys: usize) {
        match entry {
            Entry::Limited(limits) => self.limits = *limits,
            Entry::Spent(cost) => self.spend(*cost),
            Entry::Reserved { id, cost, expires } => self.set_aside(*id, *cost, *expires, Unsettled::Free, at),
            Entry::ReservedOrSpent { id, cost, expires } => self.set_aside(*id, *cost, *expires, Unsettled::Spent, at),
            Entry::Settled { id } => self.settle(*id),
            Entry::Counted { key } => self.calls.add(*key, most_keys),
            Entry::Began { ends } => self.begin(*ends),
            Entry::TakenBack { ends } => self.ends = self.ends.filter(|known| known != ends),
        }
    }

    fn set_aside(&mut self, id: u64, cost: Cost, expires: Timestamp, unsettled: Unsettled, at: Timestamp) {
        let paid = self.open.forget_expired(at);
        self.spend(paid);
        self.open.insert(id, Lease { cost, expires, unsettled, booked: Booked::Not });
    }

    /// What was booked for it, because nobody had settled it in its time, is taken back: what it cost is an entry of its own.
    fn settle(&mut self, id: u64) {
        if let Some(lease) = self.open.remove(id).filter(|lease| lease.booked == Booked::Here) {
            self.spent = self.spent.minus(lease.cost);
        }
    }

    /// What has to be entered before anything is asked of an account that counts by periods; `end_of` says when the one ends that a moment is
    /// in. One that ends after the next was begun by a clock that ran ahead: until that end nothing would begin anew.
    pub fn due(&self, period: Period, now: Timestamp, end_of: impl Fn(Timestamp) -> Timestamp) -> Vec<Entry> {
        match self.ends {
            Some(ends) if ends > now => {
                // The calendar is asked only where it matters: this is asked with every request.
                let is_far = ends > now.plus(period.longest()) && ends > end_of(end_of(now));
                if is_far { vec![Entry::TakenBack { ends }, Entry::Began { ends: end_of(now) }] } else { Vec::new() }
            }
            Some(_) | None => vec![Entry::Began { ends: end_of(now) }],
        }
    }

    /// What an account counted before it had periods belongs to its first.
    fn begin(&mut self, ends: Timestamp) {
        if self.ends.is_some_and(|known| ends <= known) {
            return;
        }
        if let Some(known) = self.ends {
            (self.spent, self.calls) = (Cost::ZERO, Calls::default());
            self.open.end_period(known);
        }
        self.ends = Some(ends);
    }

    /// As it is kept. Accounts without a period are kept as they were before there were any.
    pub fn to_bytes(&self) -> Vec<u8> {
        /// Most accounts fit, but for what is set aside.
        const ROOM: usize = 128;
        let bytes = write_behind(Vec::with_capacity(ROOM + self.open.packed_bytes()), self).unwrap_or_default();
        match self.ends {
            Some(ends) => write_behind(bytes, &ends).unwrap_or_default(),
            None => bytes,
        }
    }

    /// What cannot be read counts as empty.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let Ok((account, rest)) = postcard::take_from_bytes::<Self>(bytes) else { return Self::default() };
        Self { ends: postcard::from_bytes(rest).ok(), ..account }
    }

    /// Adds to what is spent.
    pub fn spend(&mut self, cost: Cost) {
        self.spent = self.spent.plus(cost);
    }

    /// Sets something aside that its holder gives back with [`Self::let_go`].
    pub fn hold(&mut self, cost: Cost) {
        self.held = self.held.plus(cost);
    }

    /// Gives back what was held.
    pub fn let_go(&mut self, cost: Cost) {
        self.held = self.held.minus(cost);
    }

    /// A call that is refused is a use too: a key that is refused again and again must not be forgotten for that, and let in anew.
    pub fn refuse_call(&mut self, key: u64) {
        self.calls.refresh(key);
    }

    /// What was paid, or is taken to have been, whether or not it is booked yet.
    pub fn spent(&self, now: Timestamp) -> Cost {
        self.spent.plus(self.overdue(now))
    }

    /// What is set aside and has not expired.
    pub fn reserved(&self, now: Timestamp) -> Cost {
        self.held.plus(self.open.total(now))
    }

    /// A reservation that can be settled; one that is free again is none.
    pub fn lease(&self, id: u64, now: Timestamp) -> Option<Lease> {
        self.open.by_number.get(id).copied().filter(|lease| lease.is_booked() || lease.counts(now) || lease.is_overdue(now))
    }

    /// What is booked for a reservation because nobody settled it in its time.
    pub fn booked(&self, id: u64) -> Cost {
        self.booked_as(Booked::Here, id)
    }

    /// The same, where it was in a period that is over: it was paid there.
    pub fn paid_before(&self, id: u64) -> Cost {
        self.booked_as(Booked::Before, id)
    }

    fn booked_as(&self, booked: Booked, id: u64) -> Cost {
        self.open.by_number.get(id).filter(|lease| lease.booked == booked).map_or(Cost::ZERO, |lease| lease.cost)
    }

    /// How many reservations are open, at most: some may have expired, or are booked.
    pub fn open(&self) -> usize {
        self.open.by_number.len()
    }

    /// Reservations that have not expired, by number.
    pub fn leases(&self, now: Timestamp) -> impl Iterator<Item = (u64, Lease)> {
        self.open.in_force(now).map(|(id, lease)| (id, *lease))
    }

    /// Of what is spent: what is taken to have been paid because nobody settled it in its time, and is booked with the next reservation.
    pub fn overdue(&self, now: Timestamp) -> Cost {
        self.open.overdue(now)
    }

    /// When the time of the next reservation is over.
    pub fn next_expiry(&self, now: Timestamp) -> Option<Timestamp> {
        self.open.in_force(now).map(|(_, lease)| lease.expires).min()
    }

    /// When what refuses here may end by itself: a reservation expires, or the period does. What is spent stays spent until then.
    pub fn may_clear_at(&self, exceeded: &BudgetExceeded, now: Timestamp) -> Option<Timestamp> {
        let BudgetExceeded { spent, reserved, asked, limit, renews_at, .. } = *exceeded;
        let may_expire = reserved > 0 && spent.saturating_add(asked) <= limit;
        let by_expiry = if may_expire { self.leaves_by_expiry(exceeded.unit, limit - spent - asked, now) } else { None };
        [by_expiry, renews_at.filter(|_| asked <= limit)].into_iter().flatten().min()
    }

    /// When no more than `at_most` is set aside, if nothing is settled.
    fn leaves_by_expiry(&self, unit: Unit, at_most: u64, now: Timestamp) -> Option<Timestamp> {
        let unit = BOOKED.into_iter().position(|booked| booked == unit)?;
        let mut reserved = self.reserved(now).amounts()[unit];
        let freed = self.open.in_force(now).filter(|(_, lease)| lease.unsettled == Unsettled::Free);
        let mut leases: Vec<&Lease> = freed.map(|(_, lease)| lease).collect();
        leases.sort_unstable_by_key(|lease| lease.expires);
        leases.into_iter().find_map(|lease| {
            reserved = reserved.saturating_sub(lease.cost.amounts()[unit]);
            (reserved <= at_most).then_some(lease.expires)
        })
    }

    /// When its period is over.
    pub fn renews_at(&self) -> Option<Timestamp> {
        self.ends
    }

    /// Calls counted for a key.
    pub fn calls_of(&self, key: u64) -> u32 {
        self.calls.made(key)
    }

    /// Keys whose calls are counted.
    pub fn keys(&self) -> usize {
        self.calls.len()
    }

    /// The limits into which an estimate does not fit.
    pub fn lacks_room_for(&self, estimate: Cost, limits: Limits, level: Level, now: Timestamp) -> impl Iterator<Item = BudgetExceeded> {
        self.passed(estimate, limits, level, now, |spent, reserved, asked, ceiling| {
            spent.saturating_add(reserved).saturating_add(asked) > ceiling
        })
    }

    /// The limits of which more was spent than they allow.
    pub fn overspent(&self, limits: Limits, level: Level, now: Timestamp) -> impl Iterator<Item = BudgetExceeded> {
        self.passed(Cost::ZERO, limits, level, now, |spent, _, _, ceiling| spent > ceiling)
    }

    /// The limits of which nothing is left to spend. What is only set aside may be given back, so nothing is used up by it.
    pub fn used_up(&self, limits: Limits, level: Level, now: Timestamp) -> impl Iterator<Item = BudgetExceeded> {
        self.passed(Cost::ZERO, limits, level, now, |spent, _, _, ceiling| spent >= ceiling)
    }

    /// The limits that are spent but for their reserve.
    pub fn nearly_spent(&self, reserve: Reserve, limits: Limits, level: Level, now: Timestamp) -> impl Iterator<Item = BudgetExceeded> {
        let limited = self.passed(Cost::ZERO, limits, level, now, |_, _, _, ceiling| ceiling < COUNTABLE);
        limited.filter(move |limit| reserve.is_reached(limit.unit, limit.spent, limit.limit))
    }

    /// The limits into which what was paid beyond an estimate does not fit beside what others have set aside: who stayed within it did
    /// what was agreed.
    pub fn overrun_by(
        &self,
        paid: Cost,
        agreed: Cost,
        limits: Limits,
        level: Level,
        now: Timestamp,
    ) -> impl Iterator<Item = BudgetExceeded> {
        let beyond = self.passed(paid.minus(agreed), limits, level, now, |spent, reserved, beyond, ceiling| {
            beyond > 0 && spent.saturating_add(reserved) > ceiling
        });
        beyond.map(|exceeded| BudgetExceeded { asked: 0, ..exceeded })
    }

    /// The cap that one more call of a key would pass.
    pub fn lacks_call(&self, key: u64, limits: Limits, level: Level) -> Option<BudgetExceeded> {
        self.passed_cap(1, key, limits, level)
    }

    /// The cap that more calls of a key were made than it allows.
    pub fn overcalled(&self, key: u64, limits: Limits, level: Level) -> Option<BudgetExceeded> {
        self.passed_cap(0, key, limits, level)
    }

    fn passed_cap(&self, asked: u64, key: u64, limits: Limits, level: Level) -> Option<BudgetExceeded> {
        let (spent, limit) = (u64::from(self.calls_of(key)), u64::from(limits.cap?));
        let exceeded = BudgetExceeded { unit: Unit::Calls, level, spent, reserved: 0, asked, limit, renews_at: self.ends };
        (spent + asked > limit).then_some(exceeded)
    }

    /// How many calls of a key are left here, where they are capped.
    pub fn calls_left(&self, key: u64, limits: Limits) -> Option<u32> {
        limits.cap.map(|cap| cap.saturating_sub(self.calls_of(key)))
    }

    /// What may still be set aside here, where it is limited.
    pub fn room(&self, limits: Limits, now: Timestamp) -> (Option<NanoDollars>, Option<u64>) {
        let gone = self.spent(now).plus(self.reserved(now)).amounts();
        let [usd, tokens] = [0, 1].map(|unit| limits.amounts()[unit].map(|limit| limit.saturating_sub(gone[unit])));
        (usd.map(nano_dollars), tokens)
    }

    /// Of what was spent, the part that fits beside the reservations below the limit, and the rest.
    pub fn committed_and_overrun(&self, limits: Limits, now: Timestamp) -> (Cost, Cost) {
        let (spent, reserved, ceilings) = (self.spent(now).amounts(), self.reserved(now).amounts(), limits.ceilings());
        let committed = [0, 1].map(|unit| spent[unit].min(ceilings[unit].saturating_sub(reserved[unit])));
        (Cost::from_amounts(committed), Cost::from_amounts([0, 1].map(|unit| spent[unit] - committed[unit])))
    }

    /// The limits that are passed: of spent, reserved, asked and ceiling.
    fn passed(
        &self,
        asked: Cost,
        limits: Limits,
        level: Level,
        now: Timestamp,
        is_passed: impl Fn(u64, u64, u64, u64) -> bool,
    ) -> impl Iterator<Item = BudgetExceeded> {
        let (spent, reserved, asked, ceilings) =
            (self.spent(now).amounts(), self.reserved(now).amounts(), asked.amounts(), limits.ceilings());
        let renews_at = self.ends;
        BOOKED.into_iter().enumerate().filter_map(move |(number, unit)| {
            let (spent, reserved, asked, limit) = (spent[number], reserved[number], asked[number], ceilings[number]);
            is_passed(spent, reserved, asked, limit).then_some(BudgetExceeded { unit, level, spent, reserved, asked, limit, renews_at })
        })
    }
}

/// How much of a limit is kept for the end: once no more than that is left, it is nearly spent.
///
/// ```
/// use runguard_core::ledger::{Reserve, Unit};
///
/// assert_eq!(Reserve::but_for(800).of(Unit::Tokens, 1_001), 200, "of 1,001 tokens 801 are to be spent");
/// let reserve = Reserve { usd_thousandths: 100, tokens_thousandths: 0, tokens: 512 };
/// assert_eq!((reserve.of(Unit::Usd, 5_000), reserve.of(Unit::Tokens, 100_000)), (500, 512));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reserve {
    /// Thousandths of the dollars.
    pub usd_thousandths: u64,
    /// Thousandths of the tokens.
    pub tokens_thousandths: u64,
    /// Tokens; the larger of both counts.
    pub tokens: u64,
}

impl Reserve {
    /// What is left once so many thousandths of a limit are spent, of dollars as of tokens.
    pub const fn but_for(thousandths: u64) -> Self {
        let kept = 1_000_u64.saturating_sub(thousandths);
        Self { usd_thousandths: kept, tokens_thousandths: kept, tokens: 0 }
    }

    /// Whether no more than that is left of a limit.
    pub fn is_reached(self, unit: Unit, spent: u64, limit: u64) -> bool {
        limit.saturating_sub(spent) <= self.of(unit, limit)
    }

    /// Of a limit, in its unit.
    pub fn of(self, unit: Unit, limit: u64) -> u64 {
        let share = |thousandths: u64| u64::try_from(u128::from(limit) * u128::from(thousandths) / 1_000).unwrap_or(u64::MAX);
        match unit {
            Unit::Usd => share(self.usd_thousandths),
            Unit::Tokens => share(self.tokens_thousandths).max(self.tokens),
            Unit::Calls => 0,
        }
    }
}

/// Of all limits on a path that stand against a question, the one to name: the first that is used up for good, else the first that is used
/// up until it renews, else the first.
pub fn first_of(limits: impl Iterator<Item = BudgetExceeded>) -> Result<(), BudgetExceeded> {
    let weight = |exceeded: &BudgetExceeded| (exceeded.is_used_up(), exceeded.is_used_up() && exceeded.renews_at.is_none());
    limits.reduce(|named, next| if weight(&next) > weight(&named) { next } else { named }).map_or(Ok(()), Err)
}

/// The number that a key, or the name of a reservation, is known by.
pub fn number_of(name: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(name.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::leases::{MOST_BOOKED, MOST_BOOKED_LATELY};
    use super::*;

    const KEYS: usize = 8;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    #[test]
    fn what_nobody_settles_is_free_or_paid_as_it_was_set_aside() {
        let limits = Limits { tokens: Some(100), ..Limits::default() };
        let mut account = Account::new(limits);
        let cost = Cost::tokens(40);
        account.apply(&Entry::Reserved { id: 1, cost, expires: at(10) }, at(0), KEYS);
        account.apply(&Entry::ReservedOrSpent { id: 2, cost, expires: at(10) }, at(0), KEYS);
        let account = Account::from_bytes(&account.to_bytes());
        let stands = |now: i64| (account.spent(at(now)).tokens, account.reserved(at(now)).tokens, account.overdue(at(now)).tokens);
        assert_eq!((stands(9), stands(10)), ((0, 80, 0), (40, 0, 40)), "one is free again, the other was paid");
        assert_eq!((account.leases(at(9)).count(), account.leases(at(10)).count(), account.next_expiry(at(9))), (2, 0, Some(at(10))));
        assert_eq!(account.room(limits, at(10)).1, Some(60));
        let refused = account.lacks_room_for(Cost::tokens(70), limits, Level::Own, at(11)).next().unwrap();
        assert_eq!((refused.spent, refused.reserved), (40, 0));
        assert_eq!(account.may_clear_at(&refused, at(11)), None);
        let mut paid = account.clone();
        paid.apply(&Entry::Reserved { id: 3, cost: Cost::tokens(1), expires: at(30) }, at(20), KEYS);
        assert_eq!((paid.spent(at(20)).tokens, paid.reserved(at(20)).tokens), (40, 1), "it was paid");
        let mut settled = account;
        assert!(settled.lease(2, at(15)).is_some(), "whoever comes late can still say what it was");
        settled.apply(&Entry::Settled { id: 2 }, at(15), KEYS);
        settled.apply(&Entry::Spent(Cost::tokens(5)), at(15), KEYS);
        assert_eq!((settled.spent(at(15)).tokens, settled.reserved(at(15)).tokens), (5, 0));
    }

    #[test]
    fn what_was_booked_is_settled_late_in_its_place_and_never_twice() {
        const DAY: i64 = 24 * 3600;
        let set_aside = |account: &mut Account, id: u64, now: i64| {
            account.apply(&Entry::ReservedOrSpent { id, cost: Cost::tokens(40), expires: at(now + 10) }, at(now), KEYS);
        };
        let settle = |account: &Account, id: u64, now: i64, cost: u64| {
            let mut account = Account::from_bytes(&account.to_bytes());
            account.apply(&Entry::Settled { id }, at(now), KEYS);
            account.apply(&Entry::Spent(Cost::tokens(cost)), at(now), KEYS);
            (account.spent(at(now)).tokens, account.reserved(at(now)).tokens)
        };
        let mut account = Account::default();
        set_aside(&mut account, 1, 0);
        set_aside(&mut account, 2, 20);
        let account = Account::from_bytes(&account.to_bytes());
        assert_eq!((account.spent(at(20)).tokens, account.reserved(at(20)).tokens), (40, 40), "the first is booked");
        assert_eq!(
            (account.lease(1, at(21)).map(|lease| lease.cost.tokens), account.booked(1).tokens, account.booked(2).tokens),
            (Some(40), 40, 0)
        );
        assert_eq!((account.leases(at(21)).count(), account.overdue(at(21))), (1, Cost::ZERO));
        assert_eq!(settle(&account, 1, 25, 5), (5, 40));
        assert_eq!(settle(&account, 3, 25, 5), (45, 40), "another one has nothing to do with it");
        let mut later = account.clone();
        set_aside(&mut later, 3, DAY + 10);
        assert_eq!((later.spent(at(DAY + 10)).tokens, later.lease(1, at(DAY + 10))), (80, None), "after a day nobody settles it any more");
        let mut many = account.clone();
        for id in 3..303 {
            set_aside(&mut many, id, 20 + i64::try_from(id).unwrap() * 20);
        }
        assert_eq!(
            (many.open(), many.spent(at(302 * 20 + 20)).tokens, many.booked(2).tokens),
            (180 + 1, 301 * 40, 0),
            "those of this hour are known"
        );
        set_aside(&mut many, 303, 3 * 3600);
        assert_eq!((many.open(), many.booked(302).tokens), (MOST_BOOKED + 1, 40), "of the day, the latest");
        let mut at_once = account.clone();
        for id in 3..3_003 {
            set_aside(&mut at_once, id, 40);
        }
        set_aside(&mut at_once, 3_003, 60);
        assert_eq!((at_once.open(), at_once.spent(at(60)).tokens), (MOST_BOOKED_LATELY + 1, 3_002 * 40), "so many at once are known");
        assert_eq!(settle(&at_once, 3_002, 61, 5), (3_001 * 40 + 5, 40));
        let mut late = Account::default();
        for id in 0..300 {
            set_aside(&mut late, id, 0);
        }
        set_aside(&mut late, 300, 20);
        for id in 0..300 {
            late.apply(&Entry::Settled { id }, at(25), KEYS);
            late.apply(&Entry::Spent(Cost::tokens(1)), at(25), KEYS);
        }
        assert_eq!(late.spent(at(25)).tokens, 300, "of three hundred that are late together none is paid twice");
        let mut daily = Account::default();
        daily.apply(&Entry::Began { ends: at(100) }, at(0), KEYS);
        set_aside(&mut daily, 1, 0);
        set_aside(&mut daily, 2, 20);
        daily.apply(&Entry::Began { ends: at(200) }, at(100), KEYS);
        let daily = Account::from_bytes(&daily.to_bytes());
        assert_eq!((daily.spent(at(110)), daily.reserved(at(110))), (Cost::ZERO, Cost::ZERO), "both were paid in the period that is over");
        assert_eq!(([1, 2, 3].map(|id| daily.paid_before(id).tokens), daily.booked(1)), ([40, 40, 0], Cost::ZERO));
        assert_eq!(settle(&daily, 1, 110, 0), (0, 0), "nothing is taken back of what is paid now");
        assert_eq!(settle(&daily, 1, 110, 5), (5, 0), "an entry says by itself what is paid");
        let mut later = daily;
        set_aside(&mut later, 3, DAY + 50);
        assert_eq!((later.paid_before(1), later.lease(1, at(DAY + 50))), (Cost::ZERO, None), "after a day nobody settles it any more");
    }
}
