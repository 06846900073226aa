//! Whatever is done to a tree of budgets, from however many threads: the books balance, and nothing promised passes a limit.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, clippy::disallowed_macros, reason = "it has threads")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use proptest::prelude::*;
use runguard_core::budget::{
    Budget, BudgetError, BudgetExceeded, Cost, Level, Limits, MAX_KEYS, MAX_OPEN_RESERVATIONS, Reservation, Unit, UsageRefused, call_key,
};
use runguard_core::calendar::Period;
use runguard_core::ledger::{Account, Entry};
use runguard_core::money::NanoDollars;
use runguard_core::prices::{UnknownModelError, Usage};
use runguard_core::time::Timestamp;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

fn nanos(amount: i64) -> NanoDollars {
    NanoDollars::from_nanos(amount).unwrap()
}

fn dollars(text: &str) -> NanoDollars {
    NanoDollars::parse(text).unwrap()
}

fn usd_limit(limit: NanoDollars) -> Limits {
    Limits { usd: Some(limit), ..Limits::default() }
}

fn cap(calls: u32) -> Limits {
    Limits { cap: Some(calls), ..Limits::default() }
}

mod stories {
    use super::*;

    #[test]
    fn a_record_is_a_delta_and_fails_once_more_than_the_limit_is_spent() {
        let budget = Budget::new(usd_limit(dollars("5")));
        assert_eq!(budget.record(Cost::usd(dollars("3"))), Ok(()));
        assert_eq!(budget.record(Cost::usd(dollars("2"))), Ok(()), "spending all of it is allowed");
        let stop = budget.record(Cost::usd(nanos(1))).unwrap_err();
        assert_eq!((stop.unit, stop.level, stop.limit), (Unit::Usd, Level::Own, 5_000_000_000));
        assert_eq!(stop.spent, 5_000_000_001, "the money is spent, so it stays counted");
        assert!(budget.record(Cost::ZERO).is_err(), "once exceeded, always exceeded");
        assert_eq!(budget.remaining().usd, Some(NanoDollars::ZERO));
    }

    #[test]
    fn a_refused_reservation_takes_nothing_at_any_level() {
        let root = Budget::new(usd_limit(dollars("1")));
        let child = root.child(Limits { tokens: Some(10), ..Limits::default() });
        let before = (root.snapshot(), child.snapshot());
        let refusal = child.reserve(Cost { usd: dollars("1.1"), tokens: 5 }).unwrap_err();
        assert_eq!((refusal.unit, refusal.level, refusal.asked), (Unit::Usd, Level::Ancestor(1), 1_100_000_000));
        let refusal = child.reserve(Cost { usd: dollars("0.5"), tokens: 11 }).unwrap_err();
        assert_eq!((refusal.unit, refusal.level), (Unit::Tokens, Level::Own));
        assert_eq!((root.snapshot(), child.snapshot()), before);
        assert!(child.check(Cost { usd: dollars("1"), tokens: 10 }).is_ok(), "exactly the limit fits");
        assert_eq!((root.snapshot(), child.snapshot()), before, "a check takes nothing");
    }

    #[test]
    fn a_commit_beyond_its_reservation_counts_what_fits_and_the_rest_as_overrun() {
        let budget = Budget::new(usd_limit(dollars("10")));
        let mine = budget.reserve(Cost::usd(dollars("4"))).unwrap();
        let theirs = budget.reserve(Cost::usd(dollars("6"))).unwrap();
        let stop = mine.commit(Cost::usd(dollars("5"))).unwrap_err();
        assert_eq!((stop.spent, stop.reserved, stop.asked), (5_000_000_000, 6_000_000_000, 0));
        let books = budget.snapshot();
        assert_eq!((books.committed.usd, books.reserved.usd, books.overrun.usd), (dollars("4"), dollars("6"), dollars("1")));
        assert_eq!(theirs.commit(Cost::usd(dollars("6"))), Ok(()), "they kept to what was agreed");
        assert_eq!(budget.snapshot().spent().usd, dollars("11"));
        assert!(budget.check(Cost::ZERO).is_err());
    }

    #[test]
    fn a_commit_beyond_its_reservation_is_fine_where_there_is_room() {
        let budget = Budget::new(usd_limit(dollars("10")));
        let held = budget.reserve(Cost::usd(dollars("1"))).unwrap();
        assert_eq!(held.commit(Cost { usd: dollars("10"), tokens: 7 }), Ok(()));
        assert_eq!(budget.snapshot().spent(), Cost { usd: dollars("10"), tokens: 7 });
    }

    #[test]
    fn a_dropped_reservation_is_released() {
        let budget = Budget::new(usd_limit(dollars("1")));
        let held = budget.child(Limits::default()).reserve(Cost::usd(dollars("1"))).unwrap();
        assert_eq!(budget.remaining().usd, Some(NanoDollars::ZERO));
        drop(held);
        assert_eq!(budget.remaining().usd, Some(dollars("1")));
        budget.reserve(Cost::usd(dollars("1"))).unwrap().release();
        assert_eq!(budget.remaining().usd, Some(dollars("1")));
    }

    #[test]
    fn a_reservation_by_id_ends_once_and_only_where_it_was_made() {
        let root = Budget::new(usd_limit(dollars("1")));
        let (left, right) = (root.child(Limits::default()), root.child(Limits::default()));
        let id = left.reserve_with_id(Cost::usd(dollars("0.75"))).unwrap();
        assert_eq!(left.open_reservations(), [(id, Cost::usd(dollars("0.75")))]);
        assert_eq!(right.commit_by_id(id, Cost::ZERO), Err(BudgetError::UnknownReservation(id)));
        assert_eq!(root.release_by_id(id), Err(BudgetError::UnknownReservation(id)));
        assert_eq!(left.commit_by_id(id, Cost::usd(dollars("0.5"))), Ok(()));
        assert_eq!(left.commit_by_id(id, Cost::usd(dollars("0.5"))), Err(BudgetError::UnknownReservation(id)));
        assert_eq!(root.remaining().usd, Some(dollars("0.5")));
        let over = left.reserve_with_id(Cost::usd(dollars("0.5"))).unwrap();
        assert!(matches!(
            left.commit_by_id(over, Cost::usd(dollars("0.6"))),
            Err(BudgetError::Exceeded(BudgetExceeded { level: Level::Ancestor(1), .. }))
        ));
    }

    #[test]
    fn ids_that_nobody_can_settle_any_more_are_released_with_their_budget() {
        let root = Budget::new(usd_limit(dollars("1")));
        let child = root.child(Limits::default());
        let grandchild = child.child(Limits::default());
        grandchild.reserve_with_id(Cost::usd(dollars("0.5"))).unwrap();
        child.reserve_with_id(Cost::usd(dollars("0.25"))).unwrap();
        drop(child);
        assert_eq!(root.remaining().usd, Some(dollars("0.25")), "the grandchild keeps its parent");
        drop(grandchild);
        assert_eq!(root.remaining().usd, Some(dollars("1")));
    }

    #[test]
    fn open_ids_are_bounded_and_one_end_makes_room() {
        let budget = Budget::new(Limits::default());
        let first = budget.reserve_with_id(Cost::tokens(1)).unwrap();
        for _ in 1..MAX_OPEN_RESERVATIONS {
            budget.reserve_with_id(Cost::tokens(1)).unwrap();
        }
        assert_eq!(budget.reserve_with_id(Cost::tokens(1)), Err(BudgetError::TooManyOpen));
        assert_eq!(budget.snapshot().reserved.tokens, MAX_OPEN_RESERVATIONS as u64, "the refused one took nothing");
        budget.release_by_id(first).unwrap();
        assert!(budget.reserve_with_id(Cost::tokens(1)).is_ok());
    }

    #[test]
    fn calls_are_capped_per_key_and_a_refused_call_takes_nothing() {
        let budget = Budget::new(cap(2));
        let (step, other) = (call_key("session", "step"), call_key("session", "other"));
        assert_eq!(budget.calls_left(&step), Some(2));
        assert_eq!(budget.count(&step), Ok(Some(1)));
        assert_eq!(budget.count(&step), Ok(Some(0)));
        for _ in 0..3 {
            let stop = budget.count(&step).unwrap_err();
            assert_eq!((stop.unit, stop.spent, stop.limit), (Unit::Calls, 2, 2));
        }
        assert_eq!((budget.calls_made(&step), budget.calls_left(&other)), (2, Some(2)));
        let stop = budget.record_call(&step, Cost::tokens(5)).unwrap_err();
        assert_eq!((stop.unit, stop.spent, stop.asked), (Unit::Calls, 3, 0), "a call that was made is counted");
        assert_eq!((budget.calls_made(&step), budget.snapshot().spent().tokens), (3, 5));
        assert_eq!(stop.to_string(), "the budget allows 2 calls of one key, and 3 were made; go on without this call, or stop the run");
        assert_eq!(Budget::new(cap(0)).count("any").unwrap_err().limit, 0);
        assert_eq!(Budget::new(Limits::default()).count("any"), Ok(None));
    }

    #[test]
    fn a_childs_calls_count_in_its_ancestors_caps() {
        let root = Budget::new(cap(3));
        let middle = root.child(Limits::default());
        let (left, right) = (middle.child(cap(2)), middle.child(cap(2)));
        assert_eq!(left.count("key"), Ok(Some(1)));
        assert_eq!(left.count("key"), Ok(Some(0)));
        assert_eq!(left.count("key").unwrap_err().level, Level::Own);
        assert_eq!(right.calls_left("key"), Some(1));
        assert_eq!(right.count("key"), Ok(Some(0)));
        assert_eq!(right.count("key").unwrap_err().level, Level::Ancestor(2));
        assert_eq!(right.snapshot().keys, 1);
        assert_eq!(middle.snapshot().keys, 0, "without a cap nothing is kept");
    }

    #[test]
    fn beyond_the_most_keys_the_least_recently_used_is_forgotten() {
        let budget = Budget::new(cap(1));
        budget.count("old").unwrap();
        budget.count("refused").unwrap();
        for number in 0..MAX_KEYS {
            budget.count(&number.to_string()).unwrap();
            if number == 10 {
                assert!(budget.count("refused").is_err());
            }
        }
        assert_eq!(budget.snapshot().keys, MAX_KEYS);
        assert_eq!(budget.calls_left("old"), Some(1));
        assert_eq!(budget.calls_left("0"), Some(1), "two more than can be kept: two are gone");
        assert_eq!(budget.calls_left("refused"), Some(0), "being refused is a use");
    }

    #[test]
    fn without_a_limit_the_countable_is_the_limit_and_nothing_wraps_around() {
        let budget = Budget::new(Limits::default());
        assert!(budget.record(Cost { usd: NanoDollars::MAX, tokens: i64::MAX as u64 }).is_ok());
        assert!(budget.record(Cost { usd: NanoDollars::MAX, tokens: u64::MAX }).is_err());
        assert!(budget.record(Cost { usd: NanoDollars::MAX, tokens: u64::MAX }).is_err());
        assert!(budget.reserve(Cost::tokens(u64::MAX)).is_err());
        assert_eq!(budget.snapshot().spent().usd, NanoDollars::MAX);
    }

    #[test]
    fn a_long_line_of_descendants_is_dropped_without_exhausting_the_stack() {
        let root = Budget::new(Limits { tokens: Some(10), ..Limits::default() });
        let mut last = root.clone();
        for _ in 0..100_000 {
            last = last.child(Limits::default());
        }
        last.record(Cost::tokens(3)).unwrap();
        drop(last);
        assert_eq!(root.remaining().tokens, Some(7));
    }

    #[test]
    fn scopes_grant_together_or_not_at_all() {
        let run = Budget::new(usd_limit(dollars("2")));
        let (key, model) = (run.scope(usd_limit(dollars("10"))), run.scope(usd_limit(dollars("1"))));
        let drawn = run.within(&[&key, &model]).unwrap();
        let refused = drawn.reserve(Cost::usd(dollars("1.5"))).unwrap_err();
        assert_eq!((refused.level, refused.limit_value(), refused.renews_at), (Level::Scope(1), 1.0, None));
        assert_eq!(key.snapshot().reserved, Cost::ZERO, "a refusal is in no book");
        let held = drawn.reserve(Cost::usd(dollars("0.5"))).unwrap();
        let by_id = drawn.reserve_with_id(Cost::usd(dollars("0.25"))).unwrap();
        assert_eq!(drawn.remaining().usd, Some(dollars("0.25")));
        held.commit(Cost::usd(dollars("0.75"))).unwrap();
        run.commit_by_id(by_id, Cost::usd(dollars("0.25"))).unwrap();
        assert_eq!([&run, &key, &model].map(|budget| budget.snapshot().spent().usd), [dollars("1"); 3], "settled in all of them");
        assert_eq!(run.within(&[&Budget::new(Limits::default())]).unwrap_err(), BudgetError::ForeignScope(0));
    }

    #[test]
    fn a_scope_that_nobody_has_any_more_takes_its_reservations_along() {
        let run = Budget::new(usd_limit(dollars("2")));
        let drawn = run.within(&[&run.scope(Limits::default())]).unwrap();
        let id = drawn.reserve_with_id(Cost::usd(dollars("1"))).unwrap();
        drop(drawn);
        let _other = run.scope(Limits::default());
        run.release_by_id(id).unwrap();
        assert_eq!(run.remaining().usd, Some(dollars("2")));
        let child = run.child(Limits::default()).within(&[&run.scope(Limits::default())]).unwrap();
        child.reserve_with_id(Cost::usd(dollars("1"))).unwrap();
        drop(child);
        assert_eq!(run.remaining().usd, Some(dollars("2")));
    }

    #[test]
    fn a_refusal_names_what_is_used_up_before_what_is_only_set_aside() {
        let root = Budget::new(usd_limit(dollars("2")));
        let child = root.child(Limits { usd: Some(dollars("1")), tokens: Some(10), ..Limits::default() });
        let held = child.reserve(Cost::usd(dollars("1"))).unwrap();
        root.record(Cost::usd(dollars("2"))).unwrap();
        assert_eq!(child.check(Cost::usd(nanos(1))).unwrap_err().level, Level::Ancestor(1));
        child.record(Cost::tokens(10)).unwrap();
        held.release();
        assert_eq!(child.check(Cost { usd: nanos(1), tokens: 1 }).unwrap_err().unit, Unit::Tokens);
        let (day, key) = (root.scope(usd_limit(dollars("1"))), root.scope(usd_limit(dollars("1"))));
        day.renew(Period::Day, Timestamp::from_millis(1), |_| Timestamp::from_millis(100));
        let drawn = root.scope(Limits::default()).within(&[&day, &key]).unwrap();
        drawn.record(Cost::usd(dollars("1"))).unwrap();
        assert_eq!(drawn.used_up().unwrap().level, Level::Scope(1), "what never renews");
    }

    #[test]
    fn tokens_without_a_price_count_and_are_refused_where_dollars_are_limited() {
        let unknown = UnknownModelError { model: "x".into(), suggestions: Vec::new() };
        let both = Budget::new(Limits { usd: Some(dollars("1")), tokens: Some(10), ..Limits::default() });
        let tokens = Budget::new(Limits { tokens: Some(10), ..Limits::default() });
        let used = Usage::new(6, 0);
        let record = |budget: &Budget| budget.record_usage(&used, || Err(unknown.clone()));
        assert_eq!(record(&both), Err(UsageRefused::Unpriced(unknown.clone())));
        assert_eq!(record(&tokens), Ok(()));
        assert_eq!((both.snapshot().spent().tokens, tokens.snapshot().spent().tokens), (6, 6));
        assert_eq!(record(&both), Err(UsageRefused::Unpriced(unknown.clone())));
        assert!(matches!(record(&tokens), Err(UsageRefused::Exceeded(_))));
        let nothing = Budget::new(usd_limit(dollars("1"))).record_usage(&Usage::new(0, 0), || Err(unknown.clone()));
        assert_eq!(nothing, Ok(()), "no tokens cost nothing");
        assert_eq!(both.record_usage(&used, || Ok(dollars("0.5"))).unwrap_err(), UsageRefused::Exceeded(both.overspent().unwrap()));
        assert_eq!(both.snapshot().spent(), Cost { usd: dollars("0.5"), tokens: 18 });
    }

    #[test]
    fn a_clock_that_jumps_back_finds_the_period_that_has_begun() {
        const DAY: i64 = 86_400_000;
        let day = Budget::new(usd_limit(dollars("1")));
        let renew = |now: i64| day.renew(Period::Day, Timestamp::from_millis(now), end_of_day);
        renew(DAY - 1);
        let over_midnight = day.reserve_with_id(Cost::usd(dollars("0.25"))).unwrap();
        day.record(Cost::usd(dollars("0.75"))).unwrap();
        assert_eq!(day.check(Cost::usd(nanos(1))).unwrap_err().renews_at, Some(Timestamp::from_millis(DAY)));
        renew(DAY);
        assert_eq!(day.remaining().usd, Some(dollars("0.75")), "what is set aside stays");
        day.commit_by_id(over_midnight, Cost::usd(dollars("0.25"))).unwrap();
        renew(DAY - 1);
        assert_eq!(day.snapshot().spent().usd, dollars("0.25"), "nothing is freed, nothing is lost");
        renew(2 * DAY - 1);
        assert_eq!(day.snapshot().spent().usd, dollars("0.25"));
        renew(2 * DAY);
        assert_eq!(day.remaining().usd, Some(dollars("1")));
    }

    #[test]
    fn the_messages_say_the_numbers_and_what_to_do() {
        let root = Budget::new(usd_limit(dollars("1")));
        let child = root.child(cap(1));
        let held = root.reserve(Cost::usd(dollars("0.25"))).unwrap();
        assert_eq!(
            child.reserve(Cost::usd(dollars("0.8"))).unwrap_err().to_string(),
            "the parent's budget of $1.00 has no room for $0.80: $0.00 spent, $0.25 reserved, $0.75 left; stop the run, or raise the limit"
        );
        held.release();
        child.count("key").unwrap();
        assert_eq!(
            child.count("key").unwrap_err().to_string(),
            "the budget allows 1 call of one key, and all were made; go on without this call, or stop the run"
        );
    }
}

mod properties {
    use super::*;

    /// The last two are scopes.
    const PARENTS: [Option<usize>; 6] = [None, Some(0), Some(0), Some(1), None, None];

    /// Who is asked, and the scopes named with it.
    const ASKED: [(usize, &[usize]); 11] =
        [(0, &[]), (1, &[]), (2, &[]), (3, &[]), (4, &[]), (5, &[]), (0, &[4]), (1, &[5]), (2, &[4, 5]), (3, &[5, 4, 4]), (3, &[4, 0])];

    #[derive(Debug, Clone)]
    enum Act {
        Record(usize, Cost),
        Reserve(usize, Cost),
        ReserveWithId(usize, Cost),
        /// Of the reservations that are open, the one at this place (round and round).
        Commit(usize, Cost),
        CommitEstimate(usize),
        Release(usize),
        Count(usize, u8),
        Limit(usize, Limits),
        /// A period begins for an account, if the one before is over by then.
        Renew(usize, i64),
    }

    fn cost() -> impl Strategy<Value = Cost> {
        (0_i64..60, 0_u64..60).prop_map(|(usd, tokens)| Cost { usd: nanos(usd), tokens })
    }

    fn act() -> impl Strategy<Value = Act> {
        let budget = 0..ASKED.len();
        prop_oneof![
            2 => (budget.clone(), cost()).prop_map(|(budget, cost)| Act::Record(budget, cost)),
            4 => (budget.clone(), cost()).prop_map(|(budget, cost)| Act::Reserve(budget, cost)),
            2 => (budget.clone(), cost()).prop_map(|(budget, cost)| Act::ReserveWithId(budget, cost)),
            2 => (any::<usize>(), cost()).prop_map(|(place, cost)| Act::Commit(place, cost)),
            3 => any::<usize>().prop_map(Act::CommitEstimate),
            1 => any::<usize>().prop_map(Act::Release),
            1 => (budget, 0_u8..2).prop_map(|(budget, key)| Act::Count(budget, key)),
            1 => (0..PARENTS.len(), limits()).prop_map(|(budget, limits)| Act::Limit(budget, limits)),
            2 => (0..PARENTS.len(), 0_i64..500).prop_map(|(budget, now)| Act::Renew(budget, now)),
        ]
    }

    fn limits() -> impl Strategy<Value = Limits> {
        (prop::option::of(0_i64..300), prop::option::of(0_u64..300), prop::option::of(0_u32..5)).prop_map(|(usd, tokens, cap)| Limits {
            usd: usd.map(nanos),
            tokens,
            cap,
        })
    }

    enum Held {
        Object(Reservation),
        Id(runguard_core::budget::ReservationId),
    }

    /// The rules written down once more, as plainly as possible.
    #[derive(Default, Clone)]
    struct Plain {
        limits: Limits,
        spent: [i128; 2],
        reserved: [i128; 2],
        calls: [u32; 2],
        ends: Option<i64>,
    }

    impl Plain {
        fn limit(&self, unit: usize) -> i128 {
            let limit = [self.limits.usd.map(|usd| i128::from(usd.as_nanos())), self.limits.tokens.map(i128::from)][unit];
            limit.unwrap_or(i128::from(i64::MAX))
        }
    }

    /// Every account once.
    fn path(asked: usize) -> Vec<usize> {
        let (budget, scopes) = ASKED[asked];
        let mut path: Vec<usize> = std::iter::successors(Some(budget), |at| PARENTS[*at]).collect();
        for scope in scopes {
            if !path.contains(scope) {
                path.push(*scope);
            }
        }
        path
    }

    fn amounts(cost: Cost) -> [i128; 2] {
        [i128::from(cost.usd.as_nanos()), i128::from(cost.tokens)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn any_sequence_follows_the_plain_rules(all_limits in prop::array::uniform6(limits()), acts in prop::collection::vec(act(), 1..80)) {
            let mut budgets: Vec<Budget> = Vec::new();
            let mut plain: Vec<Plain> = Vec::new();
            for (parent, limits) in PARENTS.into_iter().zip(all_limits) {
                let budget = match (parent, budgets.first()) {
                    (Some(parent), _) => budgets[parent].child(limits),
                    (None, Some(root)) => root.scope(limits),
                    (None, None) => Budget::new(limits),
                };
                budgets.push(budget);
                plain.push(Plain { limits, ..Plain::default() });
            }
            let named = |scopes: &[usize]| scopes.iter().map(|scope| budgets[*scope].clone()).collect::<Vec<_>>();
            let asked: Vec<Budget> =
                ASKED.map(|(budget, scopes)| budgets[budget].within(&named(scopes).iter().collect::<Vec<_>>()).unwrap()).into();
            let mut held: Vec<(usize, Cost, Held)> = Vec::new();
            let mut kept_to_estimates = true;

            for act in acts {
                match act {
                    Act::Record(budget, paid) => {
                        kept_to_estimates = false;
                        for at in path(budget) {
                            for unit in 0..2 {
                                plain[at].spent[unit] += amounts(paid)[unit];
                            }
                        }
                        let exceeded = path(budget).iter().any(|at| (0..2).any(|unit| plain[*at].spent[unit] > plain[*at].limit(unit)));
                        prop_assert_eq!(asked[budget].record(paid).is_err(), exceeded);
                    }
                    Act::Reserve(budget, estimate) | Act::ReserveWithId(budget, estimate) => {
                        let fits = path(budget).iter().all(|at| {
                            let book = &plain[*at];
                            (0..2).all(|unit| book.spent[unit] + book.reserved[unit] + amounts(estimate)[unit] <= book.limit(unit))
                        });
                        prop_assert_eq!(asked[budget].check(estimate).is_ok(), fits);
                        let got = if matches!(act, Act::Reserve(..)) {
                            asked[budget].reserve(estimate).ok().map(Held::Object)
                        } else {
                            asked[budget].reserve_with_id(estimate).ok().map(Held::Id)
                        };
                        prop_assert_eq!(got.is_some(), fits);
                        if let Some(got) = got {
                            for at in path(budget) {
                                for unit in 0..2 {
                                    plain[at].reserved[unit] += amounts(estimate)[unit];
                                }
                            }
                            held.push((budget, estimate, got));
                        }
                    }
                    Act::Commit(place, _) | Act::CommitEstimate(place) if !held.is_empty() => {
                        let (budget, estimate, object) = held.swap_remove(place % held.len());
                        let paid = if let Act::Commit(_, paid) = act { paid } else { estimate };
                        kept_to_estimates &= (0..2).all(|unit| amounts(paid)[unit] <= amounts(estimate)[unit]);
                        let mut overran = false;
                        for at in path(budget) {
                            for unit in 0..2 {
                                plain[at].reserved[unit] -= amounts(estimate)[unit];
                                plain[at].spent[unit] += amounts(paid)[unit];
                                overran |= amounts(paid)[unit] > amounts(estimate)[unit]
                                    && plain[at].spent[unit] + plain[at].reserved[unit] > plain[at].limit(unit);
                            }
                        }
                        let failed = match object {
                            Held::Object(reservation) => reservation.commit(paid).is_err(),
                            // Where it was reserved is known, whatever it is settled with.
                            Held::Id(id) => budgets[ASKED[budget].0].commit_by_id(id, paid).is_err(),
                        };
                        prop_assert_eq!(failed, overran);
                    }
                    Act::Release(place) if !held.is_empty() => {
                        let (budget, estimate, object) = held.swap_remove(place % held.len());
                        for at in path(budget) {
                            for unit in 0..2 {
                                plain[at].reserved[unit] -= amounts(estimate)[unit];
                            }
                        }
                        match object {
                            Held::Object(reservation) => drop(reservation),
                            Held::Id(id) => budgets[ASKED[budget].0].release_by_id(id).unwrap(),
                        }
                    }
                    Act::Commit(..) | Act::CommitEstimate(_) | Act::Release(_) => {}
                    Act::Count(budget, key) => {
                        let key = usize::from(key);
                        let may = path(budget).iter().map(|at| &plain[*at]).all(|book| {
                            book.limits.cap.is_none_or(|cap| book.calls[key] < cap) && (0..2).all(|unit| book.spent[unit] <= book.limit(unit))
                        });
                        prop_assert_eq!(asked[budget].count(&key.to_string()).is_ok(), may);
                        if may {
                            for (steps, at) in path(budget).into_iter().enumerate() {
                                plain[at].calls[key] += u32::from(steps == 0 || plain[at].limits.cap.is_some());
                            }
                        }
                    }
                    Act::Limit(budget, limits) => {
                        // Whoever lowers a limit below what is used has overrun it.
                        kept_to_estimates = false;
                        plain[budget].limits = limits;
                        budgets[budget].limit(limits);
                    }
                    Act::Renew(budget, now) => {
                        let (ends, plain) = (now.div_euclid(100) * 100 + 100, &mut plain[budget]);
                        match plain.ends {
                            Some(known) if known > now => {}
                            Some(_) => *plain = Plain { limits: plain.limits, reserved: plain.reserved, ends: Some(ends), ..Plain::default() },
                            None => plain.ends = Some(ends),
                        }
                        budgets[budget].renew(Period::Day, Timestamp::from_millis(now), |_| Timestamp::from_millis(ends));
                    }
                }

                for (budget, plain) in budgets.iter().zip(&plain) {
                    let books = budget.snapshot();
                    prop_assert_eq!(amounts(books.spent()), plain.spent);
                    prop_assert_eq!(amounts(books.reserved), plain.reserved);
                    for unit in 0..2 {
                        // A limit may be lowered below what is set aside; beside that nothing fits.
                            prop_assert!(amounts(books.committed)[unit] <= (plain.limit(unit) - plain.reserved[unit]).max(0));
                        if kept_to_estimates {
                            prop_assert!(plain.spent[unit] + plain.reserved[unit] <= plain.limit(unit), "nothing is overrun by those who keep to their estimates");
                            prop_assert_eq!(amounts(books.overrun)[unit], 0);
                        }
                    }
                }
            }
        }
    }
}

mod threads {
    use super::*;

    const THREADS: u64 = 64;

    /// A generator of its own per thread, so that a failure can be run again.
    fn next(state: &mut u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *state >> 33
    }

    #[test]
    fn many_threads_never_reserve_or_commit_more_than_any_limit() {
        let root = Budget::new(Limits { usd: Some(nanos(200_000)), tokens: Some(150_000), cap: Some(100) });
        let children: Vec<Budget> = (0..4_u64)
            .map(|number| root.child(Limits { usd: Some(nanos(60_000)), tokens: Some(30_000 + number * 10_000), cap: None }))
            .collect();
        let paid = (AtomicU64::new(0), AtomicU64::new(0));
        let calls = AtomicU64::new(0);
        let done = AtomicBool::new(false);

        thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                let mut looks = 0_u64;
                while !done.load(Ordering::Acquire) || looks == 0 {
                    for budget in children.iter().chain([&root]) {
                        let books = budget.snapshot();
                        assert!(books.spent().usd.as_nanos() + books.reserved.usd.as_nanos() <= books.limits.usd.unwrap().as_nanos());
                        assert!(books.spent().tokens + books.reserved.tokens <= books.limits.tokens.unwrap());
                        assert_eq!(books.overrun, Cost::ZERO);
                    }
                    looks += 1;
                    thread::yield_now();
                }
            });
            let workers: Vec<_> = (0..THREADS)
                .map(|number| {
                    let (budget, paid, calls) = (children[number as usize % 4].clone(), &paid, &calls);
                    scope.spawn(move || {
                        let mut seed = number;
                        for _ in 0..400 {
                            let estimate = Cost { usd: nanos(next(&mut seed) as i64 % 50), tokens: next(&mut seed) % 40 };
                            let actual = Cost { usd: nanos(estimate.usd.as_nanos() / 2), tokens: estimate.tokens };
                            if budget.count("shared").is_ok() {
                                calls.fetch_add(1, Ordering::Relaxed);
                            }
                            let kept = match next(&mut seed) % 4 {
                                0 => budget.reserve(estimate).is_ok_and(|held| {
                                    thread::yield_now();
                                    drop(held);
                                    false
                                }),
                                1 => budget.reserve_with_id(estimate).is_ok_and(|id| budget.commit_by_id(id, actual).is_ok()),
                                _ => budget.reserve(estimate).is_ok_and(|held| held.commit(actual).is_ok()),
                            };
                            if kept {
                                paid.0.fetch_add(actual.usd.as_nanos() as u64, Ordering::Relaxed);
                                paid.1.fetch_add(actual.tokens, Ordering::Relaxed);
                            }
                        }
                    })
                })
                .collect();
            for worker in workers {
                worker.join().unwrap();
            }
            done.store(true, Ordering::Release);
            watcher.join().unwrap();
        });

        let books = root.snapshot();
        assert_eq!(books.reserved, Cost::ZERO, "everything was settled");
        assert_eq!(books.spent().usd.as_nanos() as u64, paid.0.load(Ordering::Relaxed));
        assert_eq!(books.spent().tokens, paid.1.load(Ordering::Relaxed));
        let of_children: u64 = children.iter().map(|child| child.snapshot().spent().tokens).sum();
        assert_eq!(of_children, books.spent().tokens, "what the children spent the parent has spent");
        assert!(books.remaining.tokens.unwrap() < 40, "the threads did come to the limit");
        assert_eq!(calls.load(Ordering::Relaxed), 100, "the cap was used up to the last call and not beyond");
    }

    /// Steps that a float sum would lose digits of.
    fn records_sum_exactly(records: u64) {
        let root = Budget::new(Limits::default());
        let per_thread = records / THREADS;
        thread::scope(|scope| {
            for number in 0..THREADS {
                let budget = root.child(Limits::default());
                scope.spawn(move || {
                    for step in 0..per_thread {
                        let usd = NanoDollars::from_dollars(0.001).unwrap().saturating_add(nanos(((step + number) % 7) as i64));
                        budget.record(Cost { usd, tokens: 1 }).unwrap();
                    }
                });
            }
        });
        let sevenths: u64 = (0..THREADS).map(|number| (0..per_thread).map(|step| (step + number) % 7).sum::<u64>()).sum();
        let total = THREADS * per_thread;
        let spent = root.snapshot().spent();
        assert_eq!(spent.usd.as_nanos() as u64, total * 1_000_000 + sevenths);
        assert_eq!(spent.tokens, total);
    }

    #[test]
    fn ten_million_records_sum_exactly() {
        records_sum_exactly(10_000_000);
    }
}

/// Days of UTC, for whatever clock.
fn end_of_day(at: Timestamp) -> Timestamp {
    const DAY: i64 = 86_400_000;
    Timestamp::from_millis((at.as_millis().div_euclid(DAY) + 1).saturating_mul(DAY))
}

proptest! {
    #[test]
    fn no_clock_closes_a_period_for_long_and_none_loses_what_was_spent(steps in prop::collection::vec((0i64..400 * 86_400_000, 1u64..100), 1..40)) {
        let mut account = Account::default();
        let mut expected = 0;
        for (at, tokens) in steps {
            let now = Timestamp::from_millis(at);
            let due = account.due(Period::Day, now, end_of_day);
            // Only a period that is over ends what was counted in it.
            if account.renews_at().is_some_and(|ends| ends <= now) {
                expected = 0;
            }
            for entry in &due {
                account.apply(entry, now, MAX_KEYS);
                // Whoever reads it twice has it once.
                account.apply(&due[0], now, MAX_KEYS);
            }
            let ends = account.renews_at().unwrap();
            prop_assert!(now < ends && ends <= end_of_day(end_of_day(now)), "{now:?} {ends:?}");
            account.apply(&Entry::Spent(Cost::tokens(tokens)), now, MAX_KEYS);
            expected += tokens;
            prop_assert_eq!(account.spent(now).tokens, expected);
        }
    }
}
