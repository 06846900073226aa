//! A budget in a process and one in a store, to which the same is done.

use super::with_ceiling;
use crate::answer::Value;
use crate::guard::budget::{Block, Request, route_of};
use crate::guard::properties::Story;
use crate::input::Input;
use runguard_core::calendar::{Period, Zone};
use runguard_core::ledger::{self, BudgetExceeded, Cost, Limits, MAX_STORED_KEYS, number_of};
use runguard_core::money::NanoDollars;
use runguard_core::time::Timestamp;
use serde_json::{Value as Json, json};

/// One thing that is done to a budget.
#[derive(Debug, Clone)]
enum Act {
    Check(u32),
    Record(u32),
    /// May a call of this key be made?
    Ask(u8),
    /// It was made, and cost this much.
    Call(u32, u8),
    Reserve(u32),
    Commit(usize, Option<u32>),
    Release(usize),
    Limit(usize, Bound),
    /// So many hours go by, or back.
    Pass(i8),
}

fn act() -> impl proptest::strategy::Strategy<Value = Act> {
    use proptest::prelude::*;
    prop_oneof![
        (0_u32..60).prop_map(Act::Check),
        (0_u32..40).prop_map(Act::Record),
        (0_u8..3).prop_map(Act::Ask),
        (0_u32..40, 0_u8..3).prop_map(|(cents, key)| Act::Call(cents, key)),
        (0_u32..60).prop_map(Act::Reserve),
        (any::<usize>(), proptest::option::of(0_u32..60)).prop_map(|(which, cents)| Act::Commit(which, cents)),
        any::<usize>().prop_map(Act::Release),
        (0..SCOPES.len(), bound()).prop_map(|(number, bound)| Act::Limit(number, bound)),
        (-30_i8..60).prop_map(Act::Pass),
    ]
}

const NAMES: [&str; 3] = ["team", "a", "b"];
/// What may be named with a question: label, per, name, period.
const SCOPES: [(&str, &str, &str, Option<Period>); 3] =
    [("model", "model", "m", None), ("user/day", "user", "u", Some(Period::Day)), ("user/month", "user", "u", Some(Period::Month))];
const BEGINS: i64 = 1_767_000_000_000;

fn berlin() -> Zone {
    Zone::named("Europe/Berlin").unwrap()
}

/// A cent is ten tokens, so that both units are counted.
fn amount(cents: u32) -> Cost {
    Cost { usd: NanoDollars::from_nanos(i64::from(cents) * 10_000_000).unwrap(), tokens: u64::from(cents) * 10 }
}

type Bound = (Option<u32>, Option<u32>);

fn bounds((cents, cap): Bound) -> Limits {
    Limits { usd: cents.map(|cents| amount(cents).usd), tokens: cents.map(|cents| amount(cents).tokens), cap }
}

fn dollars(cents: u32) -> String {
    format!("{}.{:02}", cents / 100, cents % 100)
}

fn put_limits(body: &mut Json, (cents, cap): Bound) {
    if let Some(cents) = cents {
        body["max_usd"] = dollars(cents).into();
        body["max_tokens"] = (cents * 10).into();
    }
    if let Some(cap) = cap {
        body["cap"] = cap.into();
    }
}

/// A budget in a process and one in a store, to which the same is done.
struct Both {
    story: Story,
    budgets: Vec<runguard_core::budget::Budget>,
    scopes: Vec<runguard_core::budget::Budget>,
    scope_bounds: Vec<Bound>,
    now: i64,
}

impl Both {
    fn new(limits: &[Bound]) -> Self {
        let team = runguard_core::budget::Budget::new(bounds(limits[0]));
        let scopes = SCOPES.iter().map(|_| team.scope(Limits::default())).collect();
        let budgets = vec![team.clone(), team.child(bounds(limits[1])), team.child(bounds(limits[2]))];
        let story = with_ceiling(json!({"time_zone": "Europe/Berlin", "reservation": "3650d"}));
        let mut both = Self { story, budgets, scopes, scope_bounds: vec![(None, None); SCOPES.len()], now: BEGINS };
        for (whose, bound) in limits.iter().enumerate() {
            let mut body = both.body(whose, 0, Some(0), json!({}));
            put_limits(&mut body, *bound);
            assert_eq!(both.store(ledger::Act::Record, body), Ok(()));
        }
        both
    }

    /// The scopes of this set, with the limits that are in force.
    fn body(&self, whose: usize, set: u8, cents: Option<u32>, more: Json) -> Json {
        let mut body = json!({"session_id": NAMES[whose]});
        if whose > 0 {
            body["parent"] = "team".into();
        }
        if let Some(cents) = cents {
            body["usd"] = dollars(cents).into();
            body["tokens"] = (cents * 10).into();
        }
        let named = |number: usize| {
            let (_, per, name, period) = SCOPES[number];
            let mut scope = json!({"per": per, "name": name, "period": period});
            put_limits(&mut scope, self.scope_bounds[number]);
            scope
        };
        body["scopes"] = members(set).map(named).collect();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    }

    fn store(&mut self, act: ledger::Act, body: Json) -> Result<(), BudgetExceeded> {
        let text = body.to_string();
        let request = Request::read(&Input::read(text.as_bytes(), route_of(act).fields).unwrap(), act);
        let found = self.story.at(self.now).ruling(&request).findings.pop().map(|finding| finding.block);
        assert_eq!(self.story.allows(&request), found.is_none());
        match found {
            None => Ok(()),
            Some(Block::Exceeded(exceeded)) => Err(exceeded),
            Some(other) => panic!("{other:?}"),
        }
    }

    /// The budget that draws on the scopes of a set, at this moment.
    fn process(&self, whose: usize, set: u8) -> runguard_core::budget::Budget {
        for number in members(set) {
            if let Some(period) = SCOPES[number].3 {
                self.scopes[number].renew(period, Timestamp::from_millis(self.now), |at| berlin().end_of(period, at));
            }
        }
        self.budgets[whose].within(&members(set).map(|number| &self.scopes[number]).collect::<Vec<_>>()).unwrap()
    }

    fn same_books(&self) -> Result<(), proptest::test_runner::TestCaseError> {
        let now = Timestamp::from_millis(self.now);
        self.process(0, u8::MAX);
        let own = self.budgets.iter().zip(NAMES).map(|(budget, name)| (budget, self.story.account(name)));
        let scopes = self.scopes.iter().enumerate().map(|(number, scope)| {
            let mut kept = self.story.scope(SCOPES[number].0, SCOPES[number].2);
            // A question that is refused leaves nothing behind, so a period may be over without anybody's having noted it.
            for entry in SCOPES[number].3.map(|period| kept.due(period, now, |at| berlin().end_of(period, at))).into_iter().flatten() {
                kept.apply(&entry, now, MAX_STORED_KEYS);
            }
            (scope, kept)
        });
        for (budget, kept) in own.chain(scopes) {
            let books = budget.snapshot();
            proptest::prop_assert_eq!(kept.spent(now), books.spent());
            proptest::prop_assert_eq!(kept.reserved(now), books.reserved);
            for key in 0..3 {
                let key = key.to_string();
                proptest::prop_assert_eq!(kept.calls_of(number_of(&key)), budget.calls_made(&key));
            }
            // Apart from what was spent without asking, what is spent and set aside stays within the limit.
            if let Some(limit) = books.limits.usd {
                proptest::prop_assert!(books.committed.usd <= limit.saturating_sub(books.reserved.usd));
            }
        }
        Ok(())
    }
}

fn exceeded(done: Result<(), runguard_core::budget::BudgetError>) -> Result<(), BudgetExceeded> {
    match done {
        Ok(()) => Ok(()),
        Err(runguard_core::budget::BudgetError::Exceeded(exceeded)) => Err(exceeded),
        Err(other) => panic!("{other:?}"),
    }
}

fn members(set: u8) -> impl Iterator<Item = usize> {
    (0..SCOPES.len()).filter(move |number| set & 1 << number != 0)
}

fn bound() -> impl proptest::strategy::Strategy<Value = Bound> {
    (proptest::option::of(0_u32..200), proptest::option::of(0_u32..4))
}

proptest::proptest! {
    /// The budget of a process and that of a store answer alike and hold the same, whatever is done to a parent, its children and
    /// the scopes they draw on, in whatever days and months, with whatever limits.
    #[test]
    fn a_process_and_a_store_keep_the_same_books(
        limits in proptest::collection::vec(bound(), 3),
        acts in proptest::collection::vec((0_usize..3, 0_u8..8, act()), 1..60),
    ) {
        let mut both = Both::new(&limits);
        let mut open: Vec<(usize, u8, runguard_core::budget::ReservationId, String, Cost)> = Vec::new();
        for (whose, set, act) in acts {
            let settles = matches!(act, Act::Commit(..) | Act::Release(_));
            let (in_process, in_store) = match act {
                Act::Check(cents) => {
                    let body = both.body(whose, set, Some(cents), json!({}));
                    (both.process(whose, set).check(amount(cents)), both.store(ledger::Act::Check, body))
                }
                Act::Record(cents) => {
                    let body = both.body(whose, set, Some(cents), json!({}));
                    (both.process(whose, set).record(amount(cents)), both.store(ledger::Act::Record, body))
                }
                Act::Ask(key) => {
                    let (key, budget) = (key.to_string(), both.process(whose, set));
                    let body = both.body(whose, set, None, json!({"key": key}));
                    let in_store = both.store(ledger::Act::Record, body);
                    let counted = budget.count(&key);
                    let left = counted.ok().flatten().map(|left| Value::Int(i64::from(left)));
                    proptest::prop_assert_eq!(left, both.story.fact("remaining_calls"));
                    (counted.map(drop), in_store)
                }
                Act::Call(cents, key) => {
                    let key = key.to_string();
                    let body = both.body(whose, set, Some(cents), json!({"key": key}));
                    (both.process(whose, set).record_call(&key, amount(cents)), both.store(ledger::Act::Record, body))
                }
                Act::Reserve(cents) => {
                    let id = both.process(whose, set).reserve_with_id(amount(cents));
                    let body = both.body(whose, set, Some(cents), json!({}));
                    let granted = both.store(ledger::Act::Reserve, body);
                    if let (Ok(id), Ok(()), Some(Value::Text(name))) = (id, granted, both.story.fact("reservation_id")) {
                        open.push((whose, set, id, name.into_owned(), amount(cents)));
                    }
                    (exceeded(id.map(drop)), granted)
                }
                Act::Commit(which, cents) if !open.is_empty() => {
                    let (whose, set, id, name, estimate) = open.swap_remove(which % open.len());
                    let committed = both.process(whose, set).commit_by_id(id, cents.map_or(estimate, amount));
                    let body = both.body(whose, set, cents, json!({"reservation_id": name}));
                    (exceeded(committed), both.store(ledger::Act::Commit, body))
                }
                Act::Release(which) if !open.is_empty() => {
                    let (whose, set, id, name, _) = open.swap_remove(which % open.len());
                    both.process(whose, set).release_by_id(id).unwrap();
                    let body = both.body(whose, set, None, json!({"reservation_id": name}));
                    (Ok(()), both.store(ledger::Act::Release, body))
                }
                Act::Limit(number, bound) => {
                    both.scope_bounds[number] = bound;
                    both.scopes[number].limit(bounds(bound));
                    continue;
                }
                Act::Pass(hours) => {
                    // Everyone has noted the time, or going back would be no going back for them.
                    let body = both.body(0, u8::MAX, Some(0), json!({}));
                    both.store(ledger::Act::Record, body).ok();
                    both.process(0, u8::MAX);
                    both.now += i64::from(hours) * 3_600_000;
                    continue;
                }
                Act::Commit(..) | Act::Release(_) => continue,
            };
            proptest::prop_assert_eq!(in_process, in_store);
            if in_store.is_ok() {
                let left = both.process(whose, set).remaining();
                let told = left.usd.map(|usd| Value::Number(usd.as_dollars()));
                // Whose reservation was settled is another's question.
                if !settles {
                    proptest::prop_assert_eq!(told, both.story.fact("remaining_usd"));
                    proptest::prop_assert_eq!(left.tokens.map(Value::from), both.story.fact("remaining_tokens"));
                }
            }
            both.same_books()?;
        }
    }
}
