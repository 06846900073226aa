//! What a run may spend: dollars, tokens, calls of one key.
//!
//! There are two ways to spend. [`Budget::record`] tells what was already paid: it is counted whatever the limit says, and
//! the answer is whether the run must stop. [`Budget::reserve`] asks first: the estimate is set aside, so that two model
//! calls in flight cannot both count on the last dollar, and is settled with the true cost afterwards.
//!
//! A book holds only what was spent and what is reserved. *Committed* is the part of the spending that fits beside the
//! reservations below the limit, *overrun* is the rest; both are worked out when asked for. So `committed + reserved` cannot
//! pass a limit, and an overrun that was only the shadow of a large reservation is gone when that is released. As long as
//! nobody records, or commits more than was reserved, nothing is ever overrun.
//!
//! A budget and all its descendants share one lock: a question about the path up to the root is answered, and what it takes
//! is taken, in one step. The critical sections are a handful of additions.

mod calls;

use crate::money::NanoDollars;
use calls::{Calls, Key};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A budget with a cap counts calls for this many keys exactly. With one key more, the key that was not asked about for
/// longest is forgotten, and starts from zero when it comes back.
pub const MAX_KEYS: usize = 100_000;

/// This many reservations of one budget may be open by id. The next one is refused until one is committed or released.
pub const MAX_OPEN_RESERVATIONS: usize = 100_000;

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
    pub usd: Option<NanoDollars>,
    pub tokens: Option<u64>,
    /// Calls of each key.
    pub cap: Option<u32>,
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
    pub usd: NanoDollars,
    pub tokens: u64,
}

impl Cost {
    pub const ZERO: Self = Self { usd: NanoDollars::ZERO, tokens: 0 };

    pub const fn usd(usd: NanoDollars) -> Self {
        Self { usd, tokens: 0 }
    }

    pub const fn tokens(tokens: u64) -> Self {
        Self { usd: NanoDollars::ZERO, tokens }
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
fn nano_dollars(nanos: u64) -> NanoDollars {
    i64::try_from(nanos).ok().and_then(|nanos| NanoDollars::from_nanos(nanos).ok()).unwrap_or(NanoDollars::MAX)
}

/// What is counted.
///
/// ```
/// assert_eq!(runguard_core::budget::Unit::Usd.as_str(), "usd");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    Usd,
    Tokens,
    Calls,
}

impl Unit {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Usd => "usd",
            Self::Tokens => "tokens",
            Self::Calls => "calls",
        }
    }

    /// Dollars as a float, tokens and calls as they are.
    fn value(self, amount: u64) -> f64 {
        match self {
            Self::Usd => nano_dollars(amount).as_dollars(),
            Self::Tokens | Self::Calls => amount as f64,
        }
    }

    fn show(self, amount: u64) -> String {
        match self {
            Self::Usd => nano_dollars(amount).to_string(),
            Self::Tokens => format!("{amount} token{}", plural(amount)),
            Self::Calls => format!("{amount} call{}", plural(amount)),
        }
    }
}

fn plural(amount: u64) -> &'static str {
    if amount == 1 { "" } else { "s" }
}

/// Whose limit it was.
///
/// ```
/// use runguard_core::budget::{Budget, Cost, Level, Limits};
///
/// let parent = Budget::new(Limits { tokens: Some(100), ..Limits::default() });
/// let child = parent.child(Limits { tokens: Some(80), ..Limits::default() });
/// assert_eq!(child.reserve(Cost::tokens(90)).unwrap_err().level, Level::Own);
/// parent.record(Cost::tokens(50)).unwrap();
/// assert_eq!(child.reserve(Cost::tokens(70)).unwrap_err().level, Level::Ancestor(1));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    Own,
    /// 1 is the parent, 2 the parent's parent.
    Ancestor(u32),
}

/// A limit is passed, or would be.
///
/// Amounts are in the unit's own whole numbers: nano-dollars, tokens, calls.
///
/// ```
/// use runguard_core::budget::{Budget, Cost, Limits, Unit};
/// use runguard_core::money::NanoDollars;
///
/// let budget = Budget::new(Limits { usd: Some(NanoDollars::parse("5")?), ..Limits::default() });
/// budget.record(Cost::usd(NanoDollars::parse("4.5")?)).unwrap();
/// let stop = budget.record(Cost::usd(NanoDollars::parse("1")?)).unwrap_err();
/// assert_eq!((stop.unit, stop.spent_value(), stop.limit_value()), (Unit::Usd, 5.5, 5.0));
/// assert_eq!(stop.to_string(), "the budget of $5.00 is exceeded: $5.50 spent; stop the run, or start it with a higher limit");
/// # Ok::<(), runguard_core::money::MoneyError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetExceeded {
    pub unit: Unit,
    pub level: Level,
    /// Paid so far at that level; what a refused request asked for is not in it.
    pub spent: u64,
    /// Set aside for others.
    pub reserved: u64,
    /// What was refused; 0 when the money was already spent and is in `spent`.
    pub asked: u64,
    pub limit: u64,
}

impl BudgetExceeded {
    /// Dollars, tokens or calls, by the unit.
    pub fn spent_value(&self) -> f64 {
        self.unit.value(self.spent)
    }

    /// Dollars, tokens or calls, by the unit.
    pub fn limit_value(&self) -> f64 {
        self.unit.value(self.limit)
    }
}

impl fmt::Display for BudgetExceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = match self.level {
            Level::Own => "budget",
            Level::Ancestor(1) => "parent's budget",
            Level::Ancestor(_) => "budget of an ancestor",
        };
        let [limit, spent, reserved, asked] = [self.limit, self.spent, self.reserved, self.asked].map(|amount| self.unit.show(amount));
        if self.unit == Unit::Calls {
            return write!(f, "the {whose} allows {limit} of one key, and all were made; go on without this call, or stop the run");
        }
        if self.asked == 0 {
            write!(f, "the {whose} of {limit} is exceeded: {spent} spent")?;
        } else {
            write!(f, "the {whose} of {limit} has no room for {asked}: {spent} spent")?;
        }
        if self.reserved > 0 {
            write!(f, ", {reserved} reserved")?;
        }
        f.write_str("; stop the run, or start it with a higher limit")
    }
}

impl std::error::Error for BudgetExceeded {}

/// Why a question about a reservation by id was not granted.
///
/// ```
/// use runguard_core::budget::{Budget, BudgetError, Cost, Limits};
///
/// let budget = Budget::new(Limits::default());
/// let id = budget.reserve_with_id(Cost::tokens(10))?;
/// budget.release_by_id(id)?;
/// assert_eq!(budget.commit_by_id(id, Cost::tokens(10)), Err(BudgetError::UnknownReservation(id)));
/// # Ok::<(), BudgetError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BudgetError {
    Exceeded(BudgetExceeded),
    /// [`MAX_OPEN_RESERVATIONS`] of this budget are open.
    TooManyOpen,
    /// Never made by this budget, or already committed or released.
    UnknownReservation(ReservationId),
}

impl fmt::Display for BudgetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exceeded(exceeded) => exceeded.fmt(f),
            Self::TooManyOpen => {
                write!(f, "{MAX_OPEN_RESERVATIONS} reservations of this budget are open; commit or release some of them first")
            }
            Self::UnknownReservation(id) => {
                write!(f, "reservation {id} is not open in this budget; it was committed or released before, or belongs to another budget")
            }
        }
    }
}

impl std::error::Error for BudgetError {}

impl From<BudgetExceeded> for BudgetError {
    fn from(exceeded: BudgetExceeded) -> Self {
        Self::Exceeded(exceeded)
    }
}

/// Names an open reservation where no guard object can be held, as over HTTP. Unique within a tree of budgets; not a secret.
///
/// ```
/// use runguard_core::budget::ReservationId;
///
/// assert_eq!(ReservationId::from(7).to_string(), "7");
/// assert_eq!(u64::from(ReservationId::from(7)), 7);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ReservationId(u64);

impl From<u64> for ReservationId {
    fn from(number: u64) -> Self {
        Self(number)
    }
}

impl From<ReservationId> for u64 {
    fn from(id: ReservationId) -> Self {
        id.0
    }
}

impl fmt::Display for ReservationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What may still be reserved, over the whole path to the root; `None` where nothing limits it.
///
/// ```
/// use runguard_core::budget::{Budget, Limits, Remaining};
///
/// let parent = Budget::new(Limits { tokens: Some(100), ..Limits::default() });
/// assert_eq!(parent.child(Limits::default()).remaining(), Remaining { usd: None, tokens: Some(100) });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Remaining {
    pub usd: Option<NanoDollars>,
    pub tokens: Option<u64>,
}

/// The books of one budget at one moment. What descendants spent and reserved is in them.
///
/// ```
/// use runguard_core::budget::{Budget, Cost, Limits};
///
/// let budget = Budget::new(Limits { tokens: Some(100), ..Limits::default() });
/// let held = budget.reserve(Cost::tokens(40)).unwrap();
/// budget.record(Cost::tokens(70)).unwrap();
/// let books = budget.snapshot();
/// assert_eq!((books.committed.tokens, books.reserved.tokens, books.overrun.tokens), (60, 40, 10));
/// assert_eq!(books.spent().tokens, 70);
/// drop(held);
/// assert_eq!(budget.snapshot().overrun.tokens, 0);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    pub limits: Limits,
    /// Spent, and within the limit beside what is reserved.
    pub committed: Cost,
    pub reserved: Cost,
    /// Spent, and without room below the limit.
    pub overrun: Cost,
    pub remaining: Remaining,
    /// Open by id; those held as objects are not in this number.
    pub open_reservations: usize,
    /// Keys whose calls are counted.
    pub keys: usize,
}

impl Snapshot {
    pub fn spent(&self) -> Cost {
        Cost { usd: self.committed.usd.saturating_add(self.overrun.usd), tokens: self.committed.tokens.saturating_add(self.overrun.tokens) }
    }
}

/// A budget. Clones are the same budget; use them from any thread.
///
/// ```
/// use runguard_core::budget::{Budget, Cost, Limits};
/// use runguard_core::money::NanoDollars;
///
/// let team = Budget::new(Limits { usd: Some(NanoDollars::parse("10")?), ..Limits::default() });
/// let run = team.child(Limits { usd: Some(NanoDollars::parse("4")?), cap: Some(2), ..Limits::default() });
///
/// let held = run.reserve(Cost::usd(NanoDollars::parse("3")?)).unwrap();
/// assert!(run.reserve(Cost::usd(NanoDollars::parse("1.01")?)).is_err(), "3 of 4 are set aside");
/// held.commit(Cost::usd(NanoDollars::parse("0.5")?)).unwrap();
/// assert_eq!(team.remaining().usd, Some(NanoDollars::parse("9.5")?), "what a child spends its parent has spent");
///
/// assert_eq!(run.count("search"), Ok(Some(1)));
/// assert_eq!(run.count("search"), Ok(Some(0)));
/// assert!(run.count("search").is_err());
/// # Ok::<(), runguard_core::money::MoneyError>(())
/// ```
#[derive(Clone)]
pub struct Budget {
    account: Arc<Account>,
}

impl Budget {
    /// A budget of its own, at the root of its tree.
    pub fn new(limits: Limits) -> Self {
        let mut ledger = Ledger { nodes: Vec::new(), vacant: Vec::new(), last_reservation: 0 };
        let slot = ledger.open(limits, None);
        Self { account: Arc::new(Account { ledger: Arc::new(Mutex::new(ledger)), slot, parent: None }) }
    }

    /// A budget that draws on what remains of this one: all it spends and reserves counts here too, and in every ancestor.
    #[must_use]
    pub fn child(&self, limits: Limits) -> Self {
        let slot = self.ledger().open(limits, Some(self.account.slot));
        let parent = Some(Arc::clone(&self.account));
        Self { account: Arc::new(Account { ledger: Arc::clone(&self.account.ledger), slot, parent }) }
    }

    /// Counts what was paid, and fails once more is spent than a limit of the path allows. What is paid stays counted, so
    /// every later record fails too.
    pub fn record(&self, paid: Cost) -> Result<(), BudgetExceeded> {
        let mut ledger = self.ledger();
        let slot = self.account.slot;
        ledger.on_path(slot, |node| node.each_book(paid, |book, amount| book.spent = book.spent.saturating_add(amount)));
        ledger.verdict(slot, Cost::ZERO, |book, _| book.spent > book.ceiling())
    }

    /// Asks whether [`Self::reserve`] would be granted, and takes nothing.
    pub fn check(&self, estimate: Cost) -> Result<(), BudgetExceeded> {
        self.ledger().may_reserve(self.account.slot, estimate)
    }

    /// Sets an estimate aside until the true cost is known. Refused, with nothing taken, when it does not fit beside what is
    /// spent and reserved at every level of the path. Dropping the reservation releases it.
    pub fn reserve(&self, estimate: Cost) -> Result<Reservation, BudgetExceeded> {
        self.ledger().reserve(self.account.slot, estimate)?;
        Ok(Reservation { budget: self.clone(), estimate, is_open: true })
    }

    /// As [`Self::reserve`], for callers that cannot hold an object. It stays reserved until it is committed or released by
    /// its id, or the last handle of this budget is gone.
    pub fn reserve_with_id(&self, estimate: Cost) -> Result<ReservationId, BudgetError> {
        let mut ledger = self.ledger();
        let slot = self.account.slot;
        if ledger.nodes[slot].open.len() >= MAX_OPEN_RESERVATIONS {
            return Err(BudgetError::TooManyOpen);
        }
        ledger.reserve(slot, estimate)?;
        ledger.last_reservation += 1;
        let id = ReservationId(ledger.last_reservation);
        ledger.nodes[slot].open.insert(id, estimate);
        Ok(id)
    }

    /// As [`Reservation::commit`].
    pub fn commit_by_id(&self, id: ReservationId, paid: Cost) -> Result<(), BudgetError> {
        let mut ledger = self.ledger();
        let estimate = ledger.close(self.account.slot, id)?;
        Ok(ledger.commit(self.account.slot, estimate, paid)?)
    }

    /// As [`Reservation::release`].
    pub fn release_by_id(&self, id: ReservationId) -> Result<(), BudgetError> {
        let mut ledger = self.ledger();
        let estimate = ledger.close(self.account.slot, id)?;
        ledger.release(self.account.slot, estimate);
        Ok(())
    }

    /// The reservations of this budget that are open by id, oldest first, with what each sets aside.
    pub fn open_reservations(&self) -> Vec<(ReservationId, Cost)> {
        self.ledger().nodes[self.account.slot].open.iter().map(|(id, estimate)| (*id, *estimate)).collect()
    }

    /// Counts one call of `key` at every level of the path that has a cap, and answers how many are left (`None` without a
    /// cap). Refused, with nothing counted, when the cap of one level is used up. See [`MAX_KEYS`] for the bound.
    pub fn count(&self, key: &str) -> Result<Option<u32>, BudgetExceeded> {
        self.ledger().count(self.account.slot, Key::of(key))
    }

    /// How many calls of `key` are left, over the whole path; `None` without a cap.
    pub fn calls_left(&self, key: &str) -> Option<u32> {
        self.ledger().calls_left(self.account.slot, Key::of(key))
    }

    pub fn remaining(&self) -> Remaining {
        self.ledger().remaining(self.account.slot)
    }

    pub fn snapshot(&self) -> Snapshot {
        let ledger = self.ledger();
        let node = &ledger.nodes[self.account.slot];
        let amounts = |part: fn(&Book) -> u64| Cost::from_amounts([part(&node.books[0]), part(&node.books[1])]);
        Snapshot {
            limits: node.limits,
            committed: amounts(Book::committed),
            reserved: amounts(|book| book.reserved),
            overrun: amounts(Book::overrun),
            remaining: ledger.remaining(self.account.slot),
            open_reservations: node.open.len(),
            keys: node.calls.len(),
        }
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.account.ledger()
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Budget").field(&self.snapshot()).finish()
    }
}

/// The key under which [`Budget::count`] counts a step of a session. The length in front keeps `("a", "bc")` and
/// `("ab", "c")` apart.
///
/// ```
/// use runguard_core::budget::call_key;
///
/// assert_ne!(call_key("a", "bc"), call_key("ab", "c"));
/// ```
pub fn call_key(session_id: &str, step_id: &str) -> String {
    format!("{}:{session_id}{step_id}", session_id.len())
}

/// An estimate that is set aside. Ends with [`Self::commit`] or [`Self::release`]; dropping it releases.
///
/// ```
/// use runguard_core::budget::{Budget, Cost, Limits};
///
/// let budget = Budget::new(Limits { tokens: Some(100), ..Limits::default() });
/// let held = budget.reserve(Cost::tokens(80)).unwrap();
/// let overrun = held.commit(Cost::tokens(110)).unwrap_err();
/// assert_eq!((overrun.spent, overrun.limit), (110, 100));
/// assert_eq!(budget.snapshot().overrun.tokens, 10, "the money is spent, so it is counted");
/// ```
#[derive(Debug)]
#[must_use = "a reservation that is dropped is released at once"]
pub struct Reservation {
    budget: Budget,
    estimate: Cost,
    is_open: bool,
}

impl Reservation {
    /// What is set aside.
    pub fn estimate(&self) -> Cost {
        self.estimate
    }

    /// Settles with the true cost, which is counted in any case. Fails when it is more than was reserved and does not fit:
    /// the rest is then the overrun.
    pub fn commit(mut self, paid: Cost) -> Result<(), BudgetExceeded> {
        self.is_open = false;
        self.budget.ledger().commit(self.budget.account.slot, self.estimate, paid)
    }

    /// Gives back what was set aside.
    pub fn release(self) {
        drop(self);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.is_open {
            self.budget.ledger().release(self.budget.account.slot, self.estimate);
        }
    }
}

/// The right to a slot in the ledger. The slot is vacated when the last budget and reservation on it are gone; a child
/// keeps its parent's.
struct Account {
    ledger: Arc<Mutex<Ledger>>,
    slot: usize,
    parent: Option<Arc<Account>>,
}

impl Account {
    /// A panic elsewhere cannot leave the books half changed: nothing under the lock can panic between two changes.
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.ledger().vacate(self.slot);
        // One after the other: dropping a long line of ancestors inside each other would exhaust the stack.
        let mut next = self.parent.take();
        while let Some(mut account) = next.and_then(Arc::into_inner) {
            next = account.parent.take();
        }
    }
}

/// All budgets of one tree.
struct Ledger {
    nodes: Vec<Node>,
    vacant: Vec<usize>,
    last_reservation: u64,
}

struct Node {
    parent: Option<usize>,
    limits: Limits,
    /// In the order of [`BOOKED`].
    books: [Book; 2],
    calls: Calls,
    open: BTreeMap<ReservationId, Cost>,
}

#[derive(Clone, Copy)]
struct Book {
    limit: Option<u64>,
    spent: u64,
    /// Never above the ceiling: a reservation is granted only when it fits.
    reserved: u64,
}

impl Book {
    fn ceiling(&self) -> u64 {
        self.limit.unwrap_or(COUNTABLE).min(COUNTABLE)
    }

    fn has_no_room_for(&self, amount: u64) -> bool {
        self.spent.saturating_add(self.reserved).saturating_add(amount) > self.ceiling()
    }

    fn room(&self) -> u64 {
        self.ceiling().saturating_sub(self.spent.saturating_add(self.reserved))
    }

    fn committed(&self) -> u64 {
        self.spent.min(self.ceiling() - self.reserved)
    }

    fn overrun(&self) -> u64 {
        self.spent - self.committed()
    }
}

impl Node {
    fn new(limits: Limits, parent: Option<usize>) -> Self {
        let books = [limits.usd.map(|usd| usd.as_nanos() as u64), limits.tokens].map(|limit| Book { limit, spent: 0, reserved: 0 });
        Self { parent, limits, books, calls: Calls::new(MAX_KEYS), open: BTreeMap::new() }
    }

    fn each_book(&mut self, cost: Cost, change: impl Fn(&mut Book, u64)) {
        for (book, amount) in self.books.iter_mut().zip(cost.amounts()) {
            change(book, amount);
        }
    }
}

impl Ledger {
    fn open(&mut self, limits: Limits, parent: Option<usize>) -> usize {
        let node = Node::new(limits, parent);
        if let Some(slot) = self.vacant.pop() {
            self.nodes[slot] = node;
            return slot;
        }
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// What was reserved by id and never settled goes back to the ancestors.
    fn vacate(&mut self, slot: usize) {
        for estimate in std::mem::take(&mut self.nodes[slot].open).into_values() {
            self.release(slot, estimate);
        }
        self.nodes[slot] = Node::new(Limits::default(), None);
        self.vacant.push(slot);
    }

    fn path(&self, slot: usize) -> impl Iterator<Item = &Node> {
        std::iter::successors(Some(&self.nodes[slot]), |node| node.parent.map(|parent| &self.nodes[parent]))
    }

    fn on_path(&mut self, slot: usize, mut change: impl FnMut(&mut Node)) {
        let mut next = Some(slot);
        while let Some(slot) = next {
            let node = &mut self.nodes[slot];
            change(node);
            next = node.parent;
        }
    }

    /// The first book on the way up that `is_exceeded`.
    fn verdict(&self, slot: usize, asked: Cost, is_exceeded: impl Fn(&Book, u64) -> bool) -> Result<(), BudgetExceeded> {
        for (steps, node) in self.path(slot).enumerate() {
            for ((book, unit), asked) in node.books.iter().zip(BOOKED).zip(asked.amounts()) {
                if is_exceeded(book, asked) {
                    let (spent, reserved, limit) = (book.spent, book.reserved, book.ceiling());
                    return Err(BudgetExceeded { unit, level: level(steps), spent, reserved, asked, limit });
                }
            }
        }
        Ok(())
    }

    fn may_reserve(&self, slot: usize, estimate: Cost) -> Result<(), BudgetExceeded> {
        self.verdict(slot, estimate, Book::has_no_room_for)
    }

    fn reserve(&mut self, slot: usize, estimate: Cost) -> Result<(), BudgetExceeded> {
        self.may_reserve(slot, estimate)?;
        self.on_path(slot, |node| node.each_book(estimate, |book, amount| book.reserved += amount));
        Ok(())
    }

    fn release(&mut self, slot: usize, estimate: Cost) {
        self.on_path(slot, |node| node.each_book(estimate, |book, amount| book.reserved -= amount));
    }

    fn commit(&mut self, slot: usize, estimate: Cost, paid: Cost) -> Result<(), BudgetExceeded> {
        self.release(slot, estimate);
        self.on_path(slot, |node| node.each_book(paid, |book, amount| book.spent = book.spent.saturating_add(amount)));
        // Who paid no more than was set aside did what was agreed, even when another has overrun the limit meanwhile.
        let beyond = Cost { usd: paid.usd.saturating_sub(estimate.usd), tokens: paid.tokens.saturating_sub(estimate.tokens) };
        self.verdict(slot, beyond, |book, beyond| beyond > 0 && book.has_no_room_for(0))
            .map_err(|exceeded| BudgetExceeded { asked: 0, ..exceeded })
    }

    fn close(&mut self, slot: usize, id: ReservationId) -> Result<Cost, BudgetError> {
        self.nodes[slot].open.remove(&id).ok_or(BudgetError::UnknownReservation(id))
    }

    fn remaining(&self, slot: usize) -> Remaining {
        let least = |unit: usize| self.path(slot).filter(|node| node.books[unit].limit.is_some()).map(|node| node.books[unit].room()).min();
        Remaining { usd: least(0).map(nano_dollars), tokens: least(1) }
    }

    fn calls_left(&self, slot: usize, key: Key) -> Option<u32> {
        self.path(slot).filter_map(|node| node.limits.cap.map(|cap| cap.saturating_sub(node.calls.made(key)))).min()
    }

    fn count(&mut self, slot: usize, key: Key) -> Result<Option<u32>, BudgetExceeded> {
        let used_up = self.path(slot).zip(0..).find_map(|(node, steps)| {
            let (cap, made) = (node.limits.cap?, node.calls.made(key));
            let exceeded = BudgetExceeded {
                unit: Unit::Calls,
                level: level(steps),
                spent: u64::from(made),
                reserved: 0,
                asked: 1,
                limit: u64::from(cap),
            };
            (made >= cap).then_some(exceeded)
        });
        self.on_path(slot, |node| match (node.limits.cap, used_up) {
            (None, _) => {}
            (Some(_), None) => node.calls.add(key),
            (Some(_), Some(_)) => node.calls.refresh(key),
        });
        used_up.map_or_else(|| Ok(self.calls_left(slot, key)), Err)
    }
}

fn level(steps: usize) -> Level {
    if steps == 0 { Level::Own } else { Level::Ancestor(steps as u32) }
}
