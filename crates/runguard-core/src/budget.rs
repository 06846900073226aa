//! What a run may spend: dollars, tokens, calls of one key.
//!
//! There are two ways to spend. [`Budget::record`] tells what was already paid: it is counted whatever the limit says, and
//! the answer is whether the run must stop. [`Budget::reserve`] asks first: the estimate is set aside, so that two model
//! calls in flight cannot both count on the last dollar, and is settled with the true cost afterwards.
//!
//! The rules are the ledger's ([`crate::ledger`]); here its accounts stand in a tree, behind a lock. *Committed* is the part of
//! the spending that fits beside the reservations below the limit, *overrun* is the rest; both are worked out when asked for. So
//! `committed + reserved` cannot pass a limit, and an overrun that was only the shadow of a large reservation is gone when that is
//! released. As long as nobody records, or commits more than was reserved, nothing is ever overrun.
//!
//! A budget may draw on more than its parents: on scopes ([`Budget::within`]), such as a key's, a tenant's, a model's. A scope is a
//! budget like any other, may be counted by periods ([`Budget::renew`]), and its limits may change ([`Budget::limit`]).
//!
//! A budget, its descendants and its scopes share one lock: a question about all it draws on is answered, and what it takes is taken, in
//! one step. The critical sections are a handful of additions.

use crate::calendar::Period;
use crate::ledger::{Account, Entry, first_of, number_of};
pub use crate::ledger::{BudgetExceeded, Cost, Level, Limits, MAX_KEYS, MAX_OPEN_RESERVATIONS, Reserve, Unit};
use crate::money::NanoDollars;
use crate::prices::{UnknownModelError, Usage};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Within a process a reservation lasts as long as whoever holds it: no time passes.
const NOW: Timestamp = Timestamp::ZERO;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BudgetError {
    /// A limit is used up.
    #[error(transparent)]
    Exceeded(BudgetExceeded),
    /// [`MAX_OPEN_RESERVATIONS`] of this budget are open.
    #[error("{MAX_OPEN_RESERVATIONS} reservations of this budget are open; commit or release some of them first")]
    TooManyOpen,
    /// Never made by this budget, or already committed or released.
    #[error("reservation {0} is not open in this budget; it was committed or released before, or belongs to another budget")]
    UnknownReservation(ReservationId),
    /// The scope with this place in the list was made by another budget's [`Budget::scope`]: it has another lock.
    #[error("scope {0} belongs to other budgets; make it with `scope` of this budget, of its parent or of its child")]
    ForeignScope(usize),
}

/// Why what a model call used does not pass. Its tokens are counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UsageRefused {
    /// A limit is passed.
    Exceeded(BudgetExceeded),
    /// The model has no price, and dollars are limited.
    Unpriced(UnknownModelError),
}

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
    /// Dollars; `None` without a limit.
    pub usd: Option<NanoDollars>,
    /// Tokens; `None` without a limit.
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
    /// What it may spend.
    pub limits: Limits,
    /// Spent, and within the limit beside what is reserved.
    pub committed: Cost,
    /// Set aside for what is under way.
    pub reserved: Cost,
    /// Spent, and without room below the limit.
    pub overrun: Cost,
    /// What the budget and its ancestors still allow.
    pub remaining: Remaining,
    /// Open by id; those held as objects are not in this number.
    pub open_reservations: usize,
    /// Keys whose calls are counted.
    pub keys: usize,
}

impl Snapshot {
    /// All that was spent, also beyond the limit.
    pub fn spent(&self) -> Cost {
        self.committed.plus(self.overrun)
    }
}

/// The books of a budget in numbers to show, wherever they are kept: in this process ([`Budget::books`]) or by a service.
///
/// ```
/// use runguard_core::budget::{Budget, Left, Limits};
///
/// let budget = Budget::new(Limits { tokens: Some(100), cap: Some(2), ..Limits::default() });
/// assert_eq!(budget.books(None).left, Left::Calls(2));
/// assert_eq!(Budget::new(Limits { tokens: Some(100), ..Limits::default() }).books(None).left, Left::Tokens(100));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Books {
    /// Dollars paid.
    pub spent: f64,
    /// Dollars set aside.
    pub reserved: f64,
    /// Dollars left; `None` without a limit.
    pub remaining: Option<f64>,
    /// Dollars in all; `None` without a limit.
    pub limit: Option<f64>,
    /// Tokens used.
    pub spent_tokens: u64,
    /// Tokens set aside.
    pub reserved_tokens: u64,
    /// Tokens left; `None` without a limit.
    pub remaining_tokens: Option<u64>,
    /// Tokens in all; `None` without a limit.
    pub limit_tokens: Option<u64>,
    /// What is left, in one number.
    pub left: Left,
}

/// What is left of a budget in one number: of the calls of a step, when one is named; else of dollars, of calls without a step, of tokens, of
/// the first that is limited.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
#[serde(untagged)]
pub enum Left {
    /// Dollars.
    Usd(f64),
    /// Calls of one key.
    Calls(u64),
    /// Tokens.
    Tokens(u64),
    /// Nothing limits it.
    #[default]
    Unlimited,
}

impl Books {
    /// With what is left; `calls` of the step that is named, or else of [`NO_STEP`].
    pub(crate) fn with_left(self, names_step: bool, calls: Option<u64>) -> Self {
        let left = match (self.remaining, calls, self.remaining_tokens) {
            (Some(usd), _, _) if !names_step => Left::Usd(usd),
            (_, Some(calls), _) => Left::Calls(calls),
            (_, None, Some(tokens)) if !names_step => Left::Tokens(tokens),
            (_, None, _) => Left::Unlimited,
        };
        Self { left, ..self }
    }
}

/// The key of calls that belong to no step.
pub const NO_STEP: &str = "call";

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
    holder: Arc<Holder>,
    scopes: Option<Arc<Scopes>>,
}

impl Budget {
    /// A budget of its own, at the root of its tree.
    pub fn new(limits: Limits) -> Self {
        let mut tree = Tree { nodes: Vec::new(), vacant: Vec::new(), last_reservation: 0 };
        let place = tree.open(limits, None);
        Self { holder: Arc::new(Holder { tree: Arc::new(Mutex::new(tree)), place, parent: None }), scopes: None }
    }

    /// A budget that draws on what remains of this one: all it spends and reserves counts here too, and in every ancestor.
    #[must_use]
    pub fn child(&self, limits: Limits) -> Self {
        let place = self.tree().open(limits, Some(self.holder.place));
        let parent = Some(Arc::clone(&self.holder));
        Self { holder: Arc::new(Holder { tree: Arc::clone(&self.holder.tree), place, parent }), scopes: self.scopes.clone() }
    }

    /// The same for one that has spent something before: that is counted here already, or elsewhere.
    ///
    /// ```
    /// use runguard_core::budget::{Budget, Cost, Limits};
    ///
    /// let limits = |tokens| Limits { tokens: Some(tokens), ..Limits::default() };
    /// let all = Budget::new(limits(1_000));
    /// let resumed = all.child_having_spent(limits(100), Cost::tokens(70));
    /// assert_eq!((resumed.remaining().tokens, all.remaining().tokens), (Some(30), Some(1_000)));
    /// ```
    #[must_use]
    pub fn child_having_spent(&self, limits: Limits, spent: Cost) -> Self {
        let child = self.child(limits);
        child.tree().nodes[child.holder.place].account.apply(&Entry::Spent(spent), NOW, MAX_KEYS);
        child
    }

    /// A budget that draws on no other and shares this one's lock, for this one, its children and its parents to draw on: see
    /// [`Self::within`]. It lasts as long as somebody has it.
    #[must_use]
    pub fn scope(&self, limits: Limits) -> Self {
        let place = self.tree().open(limits, None);
        Self { holder: Arc::new(Holder { tree: Arc::clone(&self.holder.tree), place, parent: None }), scopes: None }
    }

    /// This budget, drawing on scopes too: what is asked of it is granted by all of them or by none, and counts in each once. In place
    /// of those it drew on before.
    ///
    /// ```
    /// use runguard_core::budget::{Budget, Cost, Level, Limits};
    /// use runguard_core::calendar::Period;
    /// use runguard_core::time::Timestamp;
    ///
    /// let limits = |tokens| Limits { tokens: Some(tokens), ..Limits::default() };
    /// let run = Budget::new(limits(1_000));
    /// let (day, model) = (run.scope(limits(300)), run.scope(limits(500)));
    /// let (midnight, now) = (Timestamp::from_millis(86_400_000), Timestamp::from_millis(5_000_000));
    /// day.renew(Period::Day, now, |_| midnight);
    ///
    /// let drawn = run.within(&[&day, &model])?;
    /// drawn.reserve(Cost::tokens(250))?.commit(Cost::tokens(200))?;
    /// let refused = drawn.reserve(Cost::tokens(101)).unwrap_err();
    /// assert_eq!((refused.level, refused.renews_at), (Level::Scope(0), Some(midnight)));
    /// day.limit(limits(301));
    /// assert!(drawn.check(Cost::tokens(101)).is_ok(), "another limit, and what was used stays used");
    /// # Ok::<(), runguard_core::budget::BudgetError>(())
    /// ```
    pub fn within(&self, scopes: &[&Self]) -> Result<Self, BudgetError> {
        if let Some(foreign) = scopes.iter().position(|scope| !Arc::ptr_eq(&scope.holder.tree, &self.holder.tree)) {
            return Err(BudgetError::ForeignScope(foreign));
        }
        let places = self.tree().drawn_on(self.holder.place, scopes.iter().map(|scope| scope.holder.place));
        let holders = scopes.iter().map(|scope| Arc::clone(&scope.holder)).collect();
        Ok(Self { holder: Arc::clone(&self.holder), scopes: Some(Arc::new(Scopes { places, _holders: holders })) })
    }

    /// Other limits from here on. What was spent and set aside stays.
    pub fn limit(&self, limits: Limits) {
        self.tree().nodes[self.holder.place].account.apply(&Entry::Limited(limits), NOW, MAX_KEYS);
    }

    /// Counts by periods; `end_of` says when the one ends that a moment is in. The one that `now` is in begins unless the one before is still
    /// running. With it what was spent and called starts from nothing; what is set aside stays.
    pub fn renew(&self, period: Period, now: Timestamp, end_of: impl Fn(Timestamp) -> Timestamp) {
        let mut tree = self.tree();
        let account = &mut tree.nodes[self.holder.place].account;
        for entry in account.due(period, now, end_of) {
            account.apply(&entry, now, MAX_KEYS);
        }
    }

    /// What a question is asked of.
    fn path(&self) -> Path<'_> {
        Path::of(self.holder.place, self.scopes.as_ref())
    }

    /// Tokens need no price: whether there is one matters only where dollars are limited.
    pub(crate) fn needs_prices(&self) -> bool {
        self.remaining().usd.is_some()
    }

    /// Counts what a model call used, and the dollars that `price` says it cost: see [`Usage::cost`]. Without a price the tokens are
    /// counted all the same, and it fails where dollars are limited.
    pub fn record_usage(&self, usage: &Usage, price: impl FnOnce() -> Result<NanoDollars, UnknownModelError>) -> Result<(), UsageRefused> {
        let (paid, unknown) = usage.cost(price);
        let recorded = self.record(paid);
        match unknown {
            Some(unknown) if self.needs_prices() => Err(UsageRefused::Unpriced(unknown)),
            Some(_) | None => recorded.map_err(UsageRefused::Exceeded),
        }
    }

    /// Counts what was paid, and fails once more is spent than a limit of the path allows. What is paid stays counted, so
    /// every later record fails too.
    pub fn record(&self, paid: Cost) -> Result<(), BudgetExceeded> {
        self.tree().record(self.path(), None, paid)
    }

    /// Counts a call of `key` that was made, with what it cost; beyond its cap too, and then it fails. To ask before a call is made:
    /// [`Self::count`].
    pub fn record_call(&self, key: &str, paid: Cost) -> Result<(), BudgetExceeded> {
        self.tree().record(self.path(), Some(number_of(key)), paid)
    }

    /// The limit that more was spent of than it allows, if any.
    pub fn overspent(&self) -> Option<BudgetExceeded> {
        first_of(self.tree().on(self.path()).flat_map(|(level, account)| account.overspent(account.limits, level, NOW))).err()
    }

    /// The limit of which nothing is left, if any.
    pub fn used_up(&self) -> Option<BudgetExceeded> {
        first_of(self.tree().on(self.path()).flat_map(|(level, account)| account.used_up(account.limits, level, NOW))).err()
    }

    /// The limit that is spent but for its reserve, if any.
    ///
    /// ```
    /// use runguard_core::budget::{Budget, Cost, Limits, Reserve};
    ///
    /// let budget = Budget::new(Limits { tokens: Some(100), ..Limits::default() });
    /// budget.record(Cost::tokens(79))?;
    /// assert_eq!(budget.nearly_spent(Reserve::but_for(800)), None);
    /// budget.record(Cost::tokens(1))?;
    /// assert_eq!(budget.nearly_spent(Reserve::but_for(800)).map(|near| (near.spent, near.limit)), Some((80, 100)));
    /// # Ok::<(), runguard_core::budget::BudgetExceeded>(())
    /// ```
    pub fn nearly_spent(&self, reserve: Reserve) -> Option<BudgetExceeded> {
        first_of(self.tree().on(self.path()).flat_map(|(level, account)| account.nearly_spent(reserve, account.limits, level, NOW))).err()
    }

    /// Asks whether [`Self::reserve`] would be granted, and takes nothing.
    pub fn check(&self, estimate: Cost) -> Result<(), BudgetExceeded> {
        self.tree().may_reserve(self.path(), estimate)
    }

    /// Sets an estimate aside until the true cost is known. Refused, with nothing taken, when it does not fit beside what is
    /// spent and reserved at every level of the path. Dropping the reservation releases it.
    pub fn reserve(&self, estimate: Cost) -> Result<Reservation, BudgetExceeded> {
        self.tree().hold(self.path(), estimate)?;
        Ok(Reservation { budget: self.clone(), estimate, is_open: true })
    }

    /// As [`Self::reserve`], for callers that cannot hold an object. It stays reserved until it is committed or released by
    /// its id, or the last handle of this budget is gone.
    pub fn reserve_with_id(&self, estimate: Cost) -> Result<ReservationId, BudgetError> {
        let mut tree = self.tree();
        let place = self.holder.place;
        if tree.nodes[place].account.open() >= MAX_OPEN_RESERVATIONS {
            return Err(BudgetError::TooManyOpen);
        }
        tree.hold(self.path(), estimate)?;
        Ok(tree.name(place, estimate, self.scopes.clone()))
    }

    /// As [`Reservation::commit`], in the scopes it was reserved in.
    pub fn commit_by_id(&self, id: ReservationId, paid: Cost) -> Result<(), BudgetError> {
        // Let go of after the lock.
        let scopes;
        let mut tree = self.tree();
        let (estimate, reserved_in) = tree.close(self.holder.place, id)?;
        scopes = reserved_in;
        Ok(tree.commit(Path::of(self.holder.place, scopes.as_ref()), estimate, paid)?)
    }

    /// As [`Reservation::release`].
    pub fn release_by_id(&self, id: ReservationId) -> Result<(), BudgetError> {
        let scopes;
        let mut tree = self.tree();
        let (estimate, reserved_in) = tree.close(self.holder.place, id)?;
        scopes = reserved_in;
        tree.let_go(Path::of(self.holder.place, scopes.as_ref()), estimate);
        Ok(())
    }

    /// The reservations of this budget that are open by id, oldest first, with what each sets aside.
    pub fn open_reservations(&self) -> Vec<(ReservationId, Cost)> {
        self.tree().open_by_id(self.holder.place)
    }

    /// Asks for one call of `key`, counts it here and at every level above that has a cap, and answers how many are left (`None` without
    /// a cap). Refused, with nothing counted, when the cap of one level is used up, or more is spent than a limit allows. See
    /// [`MAX_KEYS`] for the bound.
    pub fn count(&self, key: &str) -> Result<Option<u32>, BudgetExceeded> {
        self.tree().count(self.path(), number_of(key))
    }

    /// How many calls of `key` are left, over the whole path; `None` without a cap.
    pub fn calls_left(&self, key: &str) -> Option<u32> {
        self.tree().calls_left(self.path(), number_of(key))
    }

    /// How many calls of `key` were counted here.
    pub fn calls_made(&self, key: &str) -> u32 {
        self.tree().nodes[self.holder.place].account.calls_of(number_of(key))
    }

    /// What the budget and its ancestors still allow.
    pub fn remaining(&self) -> Remaining {
        self.tree().remaining(self.path())
    }

    /// The books at this moment.
    pub fn snapshot(&self) -> Snapshot {
        let tree = self.tree();
        let account = &tree.nodes[self.holder.place].account;
        let (committed, overrun) = account.committed_and_overrun(account.limits, NOW);
        Snapshot {
            limits: account.limits,
            committed,
            reserved: account.reserved(NOW),
            overrun,
            remaining: tree.remaining(self.path()),
            open_reservations: account.open(),
            keys: account.keys(),
        }
    }

    /// The books in numbers to show; with a step, what is left of its calls.
    pub fn books(&self, step: Option<&str>) -> Books {
        let (snapshot, calls) = (self.snapshot(), self.calls_left(step.unwrap_or(NO_STEP)));
        let books = Books {
            spent: snapshot.spent().usd.as_dollars(),
            reserved: snapshot.reserved.usd.as_dollars(),
            remaining: snapshot.remaining.usd.map(NanoDollars::as_dollars),
            limit: snapshot.limits.usd.map(NanoDollars::as_dollars),
            spent_tokens: snapshot.spent().tokens,
            reserved_tokens: snapshot.reserved.tokens,
            remaining_tokens: snapshot.remaining.tokens,
            limit_tokens: snapshot.limits.tokens,
            left: Left::Unlimited,
        };
        books.with_left(step.is_some(), calls.map(u64::from))
    }

    fn tree(&self) -> MutexGuard<'_, Tree> {
        self.holder.tree()
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

    /// Whose it is.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Settles with the true cost, which is counted in any case. Fails when it is more than was reserved and does not fit:
    /// the rest is then the overrun.
    pub fn commit(mut self, paid: Cost) -> Result<(), BudgetExceeded> {
        self.is_open = false;
        self.budget.tree().commit(self.budget.path(), self.estimate, paid)
    }

    /// Gives back what was set aside.
    pub fn release(self) {
        drop(self);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.is_open {
            self.budget.tree().let_go(self.budget.path(), self.estimate);
        }
    }
}

/// The right to a place in the tree. The place is vacated when the last budget and reservation on it are gone; a child
/// keeps its parent's.
struct Holder {
    tree: Arc<Mutex<Tree>>,
    place: usize,
    parent: Option<Arc<Holder>>,
}

impl Holder {
    /// A panic elsewhere cannot leave the books half changed: nothing under the lock can panic between two changes.
    fn tree(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // Let go of when the lock is free again: the scopes' last holder may be among them.
        let scopes = self.tree().vacate(self.place);
        drop(scopes);
        // One after the other: dropping a long line of ancestors inside each other would exhaust the stack.
        let mut next = self.parent.take();
        while let Some(mut holder) = next.and_then(Arc::into_inner) {
            next = holder.parent.take();
        }
    }
}

/// What a budget draws on beside its ancestors.
struct Scopes {
    /// Each account once, with the scope that it belongs to.
    places: Vec<(Level, usize)>,
    _holders: Vec<Arc<Holder>>,
}

/// Every account that a question is asked of: a budget with its ancestors, and the scopes.
#[derive(Clone, Copy)]
struct Path<'a> {
    place: usize,
    scopes: &'a [(Level, usize)],
}

impl<'a> Path<'a> {
    fn of(place: usize, scopes: Option<&'a Arc<Scopes>>) -> Self {
        Self { place, scopes: scopes.map_or(&[], |scopes| &scopes.places) }
    }
}

/// The accounts of a budget, all its descendants and their scopes.
struct Tree {
    nodes: Vec<Node>,
    vacant: Vec<usize>,
    last_reservation: u64,
}

#[derive(Default)]
struct Node {
    parent: Option<usize>,
    account: Account,
    /// Where reservations that are open by id were made, beside the ancestors.
    reserved_in: BTreeMap<u64, Arc<Scopes>>,
}

impl Tree {
    fn open(&mut self, limits: Limits, parent: Option<usize>) -> usize {
        let node = Node { parent, account: Account::new(limits), ..Node::default() };
        if let Some(place) = self.vacant.pop() {
            self.nodes[place] = node;
            return place;
        }
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// What was reserved by id and never settled goes back to all that it was reserved in.
    fn vacate(&mut self, place: usize) -> BTreeMap<u64, Arc<Scopes>> {
        let reserved_in = std::mem::take(&mut self.nodes[place].reserved_in);
        for (ReservationId(id), estimate) in self.open_by_id(place) {
            self.let_go(Path::of(place, reserved_in.get(&id)), estimate);
        }
        self.nodes[place] = Node::default();
        self.vacant.push(place);
        reserved_in
    }

    fn open_by_id(&self, place: usize) -> Vec<(ReservationId, Cost)> {
        self.nodes[place].account.leases(NOW).map(|(id, lease)| (ReservationId(id), lease.cost)).collect()
    }

    /// A budget's own account and its ancestors'.
    fn line(&self, place: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(place), |place| self.nodes[*place].parent)
    }

    /// The accounts of scopes and their ancestors that are not on a budget's own line, each once.
    fn drawn_on(&self, place: usize, scopes: impl Iterator<Item = usize>) -> Vec<(Level, usize)> {
        let mut known: Vec<usize> = self.line(place).collect();
        let mut places = Vec::new();
        for (number, scope) in scopes.enumerate() {
            for place in self.line(scope) {
                if !known.contains(&place) {
                    known.push(place);
                    places.push((Level::Scope(number as u32), place));
                }
            }
        }
        places
    }

    /// From the budget up to the root, and then the scopes.
    fn on(&self, path: Path<'_>) -> impl Iterator<Item = (Level, &Account)> {
        let line = self.line(path.place).enumerate().map(|(steps, place)| (Level::above(steps), place));
        line.chain(path.scopes.iter().copied()).map(|(level, place)| (level, &self.nodes[place].account))
    }

    fn change(&mut self, path: Path<'_>, mut change: impl FnMut(&mut Account)) {
        let mut next = Some(path.place);
        while let Some(place) = next {
            let node = &mut self.nodes[place];
            change(&mut node.account);
            next = node.parent;
        }
        for (_, place) in path.scopes {
            change(&mut self.nodes[*place].account);
        }
    }

    fn may_reserve(&self, path: Path<'_>, estimate: Cost) -> Result<(), BudgetExceeded> {
        first_of(self.on(path).flat_map(|(level, account)| account.lacks_room_for(estimate, account.limits, level, NOW)))
    }

    fn hold(&mut self, path: Path<'_>, estimate: Cost) -> Result<(), BudgetExceeded> {
        self.may_reserve(path, estimate)?;
        self.change(path, |account| account.hold(estimate));
        Ok(())
    }

    fn let_go(&mut self, path: Path<'_>, estimate: Cost) {
        self.change(path, |account| account.let_go(estimate));
    }

    fn record(&mut self, path: Path<'_>, key: Option<u64>, paid: Cost) -> Result<(), BudgetExceeded> {
        self.change(path, |account| account.spend(paid));
        if let Some(key) = key {
            self.add_call(path, key);
        }
        first_of(self.on(path).flat_map(|(level, account)| {
            let overcalled = key.and_then(|key| account.overcalled(key, account.limits, level));
            overcalled.into_iter().chain(account.overspent(account.limits, level, NOW))
        }))
    }

    /// Above the budget itself only where there is a cap: a team need not remember every key of every run.
    fn add_call(&mut self, path: Path<'_>, key: u64) {
        let mut is_own = true;
        self.change(path, |account| {
            if std::mem::take(&mut is_own) || account.limits.cap.is_some() {
                account.apply(&Entry::Counted { key }, NOW, MAX_KEYS);
            }
        });
    }

    fn commit(&mut self, path: Path<'_>, estimate: Cost, paid: Cost) -> Result<(), BudgetExceeded> {
        self.let_go(path, estimate);
        self.change(path, |account| account.spend(paid));
        first_of(self.on(path).flat_map(|(level, account)| account.overrun_by(paid, estimate, account.limits, level, NOW)))
    }

    /// Names what was set aside. Its budget keeps the name; that it is set aside all the path knows already.
    fn name(&mut self, place: usize, estimate: Cost, scopes: Option<Arc<Scopes>>) -> ReservationId {
        self.last_reservation += 1;
        let (id, node) = (self.last_reservation, &mut self.nodes[place]);
        node.account.let_go(estimate);
        node.account.apply(&Entry::Reserved { id, cost: estimate, expires: Timestamp::MAX }, NOW, MAX_KEYS);
        node.reserved_in.extend(scopes.map(|scopes| (id, scopes)));
        ReservationId(id)
    }

    /// Takes the name away again: what it set aside is held as before.
    fn close(&mut self, place: usize, id: ReservationId) -> Result<(Cost, Option<Arc<Scopes>>), BudgetError> {
        let node = &mut self.nodes[place];
        let estimate = node.account.lease(id.0, NOW).ok_or(BudgetError::UnknownReservation(id))?.cost;
        node.account.apply(&Entry::Settled { id: id.0 }, NOW, MAX_KEYS);
        node.account.hold(estimate);
        Ok((estimate, node.reserved_in.remove(&id.0)))
    }

    fn remaining(&self, path: Path<'_>) -> Remaining {
        self.on(path).map(|(_, account)| account.room(account.limits, NOW)).fold(Remaining::default(), |least, (usd, tokens)| Remaining {
            usd: [least.usd, usd].into_iter().flatten().min(),
            tokens: [least.tokens, tokens].into_iter().flatten().min(),
        })
    }

    fn calls_left(&self, path: Path<'_>, key: u64) -> Option<u32> {
        self.on(path).filter_map(|(_, account)| account.calls_left(key, account.limits)).min()
    }

    fn count(&mut self, path: Path<'_>, key: u64) -> Result<Option<u32>, BudgetExceeded> {
        let granted = first_of(self.on(path).flat_map(|(level, account)| {
            account.lacks_call(key, account.limits, level).into_iter().chain(account.overspent(account.limits, level, NOW))
        }));
        match granted {
            Ok(()) => self.add_call(path, key),
            Err(_) => self.change(path, |account| account.refuse_call(key)),
        }
        granted.map(|()| self.calls_left(path, key))
    }
}
