//! Stories of budgets, with the times written out.

mod same_books;

use super::answer::Nearest;
use super::row::{read_shown, shown};
use super::{CHECK_ROUTE, RECORD_ROUTE, Settings};
use crate::answer::Value;
use crate::guard::properties::{Story, operation};
use crate::guard::{Operation, ROUTES};
use crate::input::{Input, PassedCall};
use crate::policy::{GuardSettings, Policy};
use runguard_core::calendar::Period;
use runguard_core::ledger::{Cost, Limits, MAX_STORED_RESERVATIONS, Scope};
use runguard_core::money::NanoDollars;
use runguard_core::reason::Reason;
use runguard_core::time::Timestamp;
use serde_json::{Value as Json, json};

fn ask(path: &str, fields: Json) -> Box<dyn Operation> {
    let mut body = json!({"session_id": "run", "max_usd": "1.00"});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    operation(&format!("/guard/budget/{path}"), body)
}

fn reserve(story: &mut Story, fields: Json) -> String {
    assert!(story.allows(&*ask("reserve", fields)));
    match story.fact("reservation_id") {
        Some(Value::Text(id)) => id.into_owned(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn reserved_and_committed_never_pass_the_limit() {
    let mut story = Story::default();
    let first = reserve(story.at(0), json!({"usd": 0.6}));
    assert_eq!(story.at(1).refuses(&*ask("reserve", json!({"usd": 0.5}))), Reason::BudgetExceeded);
    assert_eq!(story.fact("remaining_usd"), Some(Value::Number(0.4)));
    assert!(story.at(2).allows(&*ask("commit", json!({"reservation_id": first, "usd": 0.1}))));
    let second = reserve(story.at(3), json!({"usd": 0.9}));
    assert!(story.at(4).allows(&*ask("release", json!({"reservation_id": second}))));
    assert!(story.at(5).allows(&*ask("check", json!({"usd": 0.9}))));
    assert_eq!(story.at(6).refuses(&*ask("check", json!({"usd": "0.900000001"}))), Reason::BudgetExceeded);
}

#[test]
fn a_reservation_may_be_taken_to_have_been_paid() {
    let mut story = Story::default();
    assert!(story.at(0).allows(&*ask("reserve", json!({"max_usd": 1, "usd": 0.9, "if_unsettled": "spent"}))));
    let more = ask("reserve", json!({"usd": 0.2}));
    assert_eq!(story.at(1).refuses(&*more), Reason::BudgetExceeded);
    assert_eq!(story.at(1_000_000).refuses(&*more), Reason::BudgetExceeded, "its time is over, and it is not free");
    assert_eq!(story.retry_after_seconds(), None);
    assert!(story.at(1_000_000).allows(&*ask("check", json!({}))));
    let stands = ["spent_usd", "reserved_usd", "overdue_usd"].map(|fact| story.fact(fact));
    assert_eq!(stands, [Some(Value::from(0.9)), Some(Value::from(0.0)), Some(Value::from(0.9))]);
    assert!(story.at(1_000_001).allows(&*ask("reserve", json!({"usd": 0.1}))));
    assert_eq!(
        (story.fact("spent_usd"), story.fact("overdue_usd")),
        (Some(Value::from(0.9)), Some(Value::from(0.9))),
        "booked, and marked"
    );
    assert!(story.at(1_000_002).allows(&*ask("check", json!({}))));
    assert_eq!(story.fact("overdue_usd"), None);
}

#[test]
fn what_is_settled_after_its_time_takes_the_place_of_what_was_booked_here_and_in_its_parent() {
    let mut story = Story::default();
    let own = json!({"usd": 0.9, "if_unsettled": "spent", "parent": "team"});
    let late = reserve(story.at(0), own.clone());
    let of_team = |usd: f64| ask("check", json!({"session_id": "team", "usd": usd}));
    // Another run of the same team books what nobody settled there.
    assert!(story.at(1_000_000).allows(&*ask("reserve", json!({"session_id": "other", "usd": 0.05, "parent": "team"}))));
    assert!(story.at(1_000_001).allows(&*of_team(0.05)));
    assert_eq!(story.fact("spent_usd"), Some(Value::from(0.9)));
    let second = reserve(story.at(1_000_002), json!({"usd": 0.05, "parent": "team"}));
    assert!(story.at(1_000_003).allows(&*ask("commit", json!({"reservation_id": late, "usd": 0.2, "parent": "team"}))));
    assert_eq!((story.fact("known"), story.fact("spent_usd")), (Some(Value::from(true)), Some(Value::from(0.2))));
    assert_eq!(story.fact("overdue_settled_usd"), Some(Value::from(0.9)), "what was booked is taken back");
    assert!(story.at(1_000_004).allows(&*of_team(0.0)));
    assert_eq!(story.fact("spent_usd"), Some(Value::from(0.2)));
    assert!(story.at(1_000_005).allows(&*ask("commit", json!({"reservation_id": second, "usd": 0.05, "parent": "team"}))));
    assert_eq!((story.fact("spent_usd"), story.fact("overdue_usd")), (Some(Value::from(0.25)), None));
}

#[test]
fn what_is_settled_late_and_refused_says_what_it_takes_the_place_of() {
    let mut story = Story::default();
    let late = reserve(story.at(0), json!({"usd": 0.9, "if_unsettled": "spent"}));
    reserve(story.at(1_000_000), json!({"usd": 0.05}));
    assert_eq!(story.at(1_000_001).refuses(&*ask("commit", json!({"reservation_id": late, "usd": 1.5}))), Reason::BudgetExceeded);
    assert_eq!((story.fact("cost_usd"), story.fact("overdue_settled_usd")), (Some(Value::from(1.5)), Some(Value::from(0.9))));
    assert_eq!(story.at(1_000_002).refuses(&*ask("check", json!({}))), Reason::BudgetExceeded);
    assert_eq!(story.fact("spent_usd"), Some(Value::from(1.5)), "it is paid once");
    assert_eq!(story.at(1_000_003).refuses(&*ask("commit", json!({"reservation_id": "x", "usd": 1}))), Reason::BudgetExceeded);
    assert_eq!(story.fact("overdue_settled_usd"), None, "nothing was booked for it");
}

#[test]
fn what_nobody_settled_in_its_time_is_spent_before_anything_books_it() {
    let mut story = Story::default();
    let asks = |usd: f64| ask("reserve", json!({"max_usd": 2, "usd": usd}));
    let tells = |story: &Story| ["spent_usd", "reserved_usd", "remaining_usd"].map(|fact| story.fact(fact));
    assert!(story.at(0).allows(&*ask("record", json!({"max_usd": 2, "usd": 0.8}))));
    assert!(story.at(0).allows(&*ask("reserve", json!({"max_usd": 2, "usd": 1, "if_unsettled": "spent"}))));
    assert_eq!(story.at(899_999).refuses(&*asks(0.4)), Reason::BudgetExceeded);
    assert_eq!(tells(&story), [0.8, 1.0, 0.2].map(|usd| Some(Value::from(usd))), "it may still be given back");
    assert_eq!(story.at(900_000).refuses(&*asks(0.4)), Reason::BudgetExceeded);
    assert_eq!(tells(&story), [1.8, 0.0, 0.2].map(|usd| Some(Value::from(usd))), "nobody gives it back");
    assert!(story.at(900_001).allows(&*asks(0.2)), "so who asks for less is let in");
    assert_eq!(tells(&story), [1.8, 0.2, 0.0].map(|usd| Some(Value::from(usd))));
}

#[test]
fn reservations_whose_time_is_over_are_not_in_the_way_of_others() {
    let mut story = Story::default();
    let one = || ask("reserve", json!({"usd": 0, "if_unsettled": "spent"}));
    for _ in 0..MAX_STORED_RESERVATIONS {
        assert!(story.at(0).allows(&*one()));
    }
    assert_eq!(story.at(899_000).refuses(&*one()), Reason::TooManyReservations);
    assert_eq!(story.retry_after_seconds(), Some(1));
    assert!(story.at(900_000).allows(&*one()));
}

#[test]
fn a_reservation_nobody_settles_expires_and_the_retry_time_is_true() {
    let mut story = Story::default();
    reserve(story.at(0), json!({"usd": 1}));
    assert_eq!(story.at(1000).refuses(&*ask("reserve", json!({"usd": 1}))), Reason::BudgetExceeded);
    assert_eq!(story.retry_after_seconds(), Some(899));
    assert_eq!(story.at(899_999).refuses(&*ask("reserve", json!({"usd": 1}))), Reason::BudgetExceeded);
    reserve(story.at(900_000), json!({"usd": 1}));
}

#[test]
fn what_is_spent_counts_also_when_it_is_too_much() {
    let mut story = Story::default();
    assert!(story.at(0).allows(&*ask("record", json!({"usd": 1}))));
    assert_eq!(story.at(1).refuses(&*ask("record", json!({"usd": 0.25}))), Reason::BudgetExceeded);
    assert_eq!(story.fact("spent_usd"), Some(Value::Number(1.25)));
    assert_eq!(story.retry_after_seconds(), None);
    assert!(story.at(2).allows(&*ask("check", json!({"max_usd": 2}))));
    assert_eq!(story.fact("spent_usd"), Some(Value::Number(1.25)));
}

#[test]
fn credits_are_dollars_at_the_price_of_the_settings() {
    let scopes = json!({"tenant": {"month": {"max_credits": 100}}});
    let mut story = with_ceiling(json!({"credit_usd": 0.02, "max_credits": 60, "scopes": scopes}));
    let credits = |session: &str, path: &str, credits: f64| {
        operation(&format!("/guard/budget/{path}"), json!({"session_id": session, "credits": credits}))
    };
    assert!(story.at(0).allows(&*credits("a", "record", 50.0)));
    assert_eq!((story.fact("spent_usd"), story.fact("remaining_credits")), (Some(Value::Number(1.0)), Some(Value::Number(10.0))));
    assert_eq!(story.fact("nearest_scope_percent"), Some(Value::Number(50.0)));
    assert_eq!(story.at(1).refuses(&*credits("a", "reserve", 10.5)), Reason::BudgetExceeded);
    assert_eq!(story.fact("remaining_credits"), Some(Value::Number(10.0)));
    assert!(story.at(2).allows(&*credits("b", "record", 50.0)));
    assert_eq!(story.fact("nearest_scope_percent"), Some(Value::Number(100.0)));
    // All sessions of the month together have used them.
    assert_eq!(story.at(3).refuses(&*credits("c", "check", 1.0)), Reason::BudgetExceeded);
    let body = json!({"session_id": "c", "usd": 0.01});
    assert_eq!(story.at(4).refuses(&*operation("/guard/budget/check", body)), Reason::BudgetExceeded, "a credit is its price");
    assert!(Settings { credit_usd: 0.0, ..Settings::default() }.check().is_err());
    assert!(Settings { max_credits: -1.0, ..Settings::default() }.check().is_err());
}

#[test]
fn a_limit_of_the_settings_is_not_rounded_away() {
    let of = |settings: Json| serde_json::from_value::<Settings>(settings).unwrap();
    for settings in [
        json!({"max_usd": 1e-12}),
        json!({"max_usd": 4e-10}),
        json!({"max_credits": 1e-12}),
        json!({"max_credits": 1, "credit_usd": 1e-300}),
        json!({"max_credits": 5e-324, "credit_usd": 1e-300}),
        json!({"scopes": {"tenant": {"day": {"max_usd": 4e-10}}}}),
        json!({"scopes": {"model": {"day": {"max_usd": 1, "names": {"": {"max_usd": 4e-10}}}}}}),
        json!({"scopes": {"tenant": {"month": {"max_credits": 1e-12}}}}),
    ] {
        let mut whole = serde_json::to_value(Settings::default()).unwrap();
        whole.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
        let settings = of(whole);
        settings.check().unwrap();
        let [limit] = settings.limits_in_words().try_into().unwrap();
        assert!(limit.starts_with("$0.000000001 per "), "{limit}");
    }
}

#[test]
fn a_caller_limits_its_credits_as_it_does_its_dollars() {
    let mut story = with_ceiling(json!({"credit_usd": 0.02, "max_credits": 60}));
    let asked = |path: &str, body: Json| operation(&format!("/guard/budget/{path}"), body);
    assert!(story.at(0).allows(&*asked("record", json!({"session_id": "a", "credits": 8, "max_credits": "10"}))));
    assert_eq!((story.fact("limit_usd"), story.fact("remaining_credits")), (Some(Value::Number(0.2)), Some(Value::Number(2.0))));
    // It stays until another is given, as dollars do.
    assert_eq!(story.at(1).refuses(&*asked("reserve", json!({"session_id": "a", "credits": 3}))), Reason::BudgetExceeded);
    assert!(story.at(2).allows(&*asked("reserve", json!({"session_id": "a", "credits": 3, "max_credits": 20}))));
    // The lower of the two holds, and none gets past the settings.
    let both = json!({"session_id": "b", "credits": 2, "max_credits": 10, "max_usd": 0.03});
    assert_eq!(story.at(3).refuses(&*asked("check", both)), Reason::BudgetExceeded);
    assert!(story.at(4).allows(&*asked("check", json!({"session_id": "c", "max_credits": 100}))));
    assert_eq!(story.fact("limit_usd"), Some(Value::Number(1.2)));
}

#[test]
fn a_caller_limits_the_credits_of_what_it_draws_on() {
    let mut story = with_ceiling(json!({"credit_usd": 0.02}));
    let asked = |path: &str, session: &str, credits: f64, most: Json| {
        let scopes = json!([{"per": "team", "name": "search", "period": "day", "max_credits": most, "max_usd": 1}]);
        operation(&format!("/guard/budget/{path}"), json!({"session_id": session, "credits": credits, "scopes": scopes}))
    };
    assert!(story.at(0).allows(&*asked("record", "a", 8.0, json!(10))));
    // Of all that draw on it, and as text too.
    assert_eq!(story.at(1).refuses(&*asked("check", "b", 3.0, json!("10"))), Reason::BudgetExceeded);
    assert!(story.at(2).allows(&*asked("check", "b", 3.0, json!(20))));
    assert!(story.at(3).allows(&*asked("check", "b", 3.0, json!(""))), "nothing is no limit");
}

/// The service's own limits, whatever callers say.
fn with_ceiling(ceiling: Json) -> Story {
    Story::with_settings_of(&["budget"], ceiling)
}

#[test]
fn the_limit_of_the_settings_is_a_ceiling() {
    let mut story = with_ceiling(json!({"max_usd": 5, "max_tokens": 100, "cap": 2}));
    let reserve = |usd: f64, more: Json| {
        let mut body = json!({"session_id": "run", "usd": usd});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        operation("/guard/budget/reserve", body)
    };
    assert_eq!(story.at(0).refuses(&*reserve(6.0, json!({"max_usd": 10}))), Reason::BudgetExceeded);
    assert_eq!(story.fact("limit_usd"), Some(Value::Number(5.0)));
    assert_eq!(story.warnings(), ["max_usd is above the limit of the settings, which holds: $5.00"]);
    assert_eq!(story.at(1).refuses(&*reserve(1.0, json!({"max_usd": 0.5}))), Reason::BudgetExceeded);
    assert!(story.at(2).allows(&*reserve(0.5, json!({"max_usd": 0.5}))), "a caller's own can be lower");
    assert!(story.warnings().is_empty());
    assert_eq!(story.at(3).refuses(&*reserve(0.5, json!({}))), Reason::BudgetExceeded, "and stays");
    assert!(story.at(4).allows(&*reserve(4.0, json!({"max_usd": 50}))), "it is the caller's to change, below the ceiling");
    assert_eq!(story.at(5).refuses(&*reserve(0.51, json!({}))), Reason::BudgetExceeded, "also later, when it says nothing");
    let tokens = operation("/guard/budget/check", json!({"session_id": "t", "tokens": 101, "max_tokens": 1000, "cap": 9}));
    assert_eq!(story.at(6).refuses(&*tokens), Reason::BudgetExceeded);
    assert_eq!(story.warnings().len(), 2);
    let call = operation("/guard/budget/record", json!({"session_id": "c", "key": "k", "cap": 9}));
    assert!(story.at(7).allows(&*call) && story.at(7).allows(&*call));
    assert_eq!(story.at(7).refuses(&*call), Reason::CallCapReached);
}

#[test]
fn a_parent_has_the_same_ceiling() {
    let mut story = with_ceiling(json!({"max_usd": 1}));
    assert!(story.at(0).allows(&*operation("/guard/budget/record", json!({"session_id": "team", "usd": 0, "max_usd": 9}))));
    let child = |name: &str| operation("/guard/budget/reserve", json!({"session_id": name, "parent": "team", "usd": 0.6, "max_usd": 9}));
    assert!(story.at(1).allows(&*child("a")));
    assert_eq!(story.at(2).refuses(&*child("b")), Reason::BudgetExceeded);
    assert_eq!((story.fact("level"), story.fact("limit_usd")), (Some(Value::from("parent")), Some(Value::Number(1.0))));
}

proptest::proptest! {
    /// Whoever asks, for whatever limit, in whatever order: what is reserved and committed stays within the ceiling and within
    /// the limit that the caller said last.
    #[test]
    fn no_caller_gets_past_a_ceiling(
        ceiling in proptest::option::of(1_u32..50),
        asks in proptest::collection::vec((0_u32..3, 0_u32..30, proptest::option::of(0_u32..100)), 1..40),
    ) {
        let mut story = with_ceiling(json!({"max_usd": ceiling.unwrap_or(0)}));
        let mut open: Vec<String> = Vec::new();
        let mut said = None;
        let mut held = 0.0;
        for (at, (act, usd, max_usd)) in asks.into_iter().enumerate() {
            let settles = act == 0 && !open.is_empty();
            let mut body = json!({"session_id": "run", "usd": usd});
            if let Some(max_usd) = max_usd {
                body["max_usd"] = max_usd.into();
            }
            if settles {
                body = json!({"session_id": "run", "reservation_id": open.pop()});
                proptest::prop_assert!(story.at(at as i64).allows(&*operation("/guard/budget/commit", body)));
                continue;
            }
            if story.at(at as i64).allows(&*operation("/guard/budget/reserve", body)) {
                said = max_usd.or(said);
                held += f64::from(usd);
                let lowest = [said, ceiling].into_iter().flatten().min();
                proptest::prop_assert!(lowest.is_none_or(|lowest| held <= f64::from(lowest)), "{held} of {lowest:?}");
                if let Some(Value::Text(id)) = story.fact("reservation_id") {
                    open.push(id.into_owned());
                }
            }
        }
    }
}

#[test]
fn a_limit_that_is_given_with_a_question_stays() {
    let mut story = Story::default();
    assert!(story.at(0).allows(&*ask("check", json!({"usd": 0.5, "max_usd": 1}))));
    assert_eq!(story.fact("spent_usd"), Some(Value::Number(0.0)), "nothing is counted");
    assert_eq!(story.at(1).refuses(&*ask("reserve", json!({"usd": 1.5}))), Reason::BudgetExceeded);
    assert!(story.at(2).allows(&*ask("reserve", json!({"usd": 1.5, "max_usd": 2}))), "until another is given");
}

#[test]
fn a_call_beyond_its_cap_is_counted_when_it_was_made_and_not_when_it_was_asked_for() {
    let mut story = Story::default();
    let call = |usd: f64| ask("record", json!({"key": "email", "cap": 1, "usd": usd}));
    let asked = ask("record", json!({"key": "email", "cap": 1}));
    assert!(story.at(0).allows(&*call(0.1)));
    for _ in 0..2 {
        assert_eq!(story.at(1).refuses(&*asked), Reason::CallCapReached);
        assert_eq!((story.fact("level"), story.fact("calls")), (Some("budget".into()), Some(Value::Int(1))));
        assert_eq!(story.message(), "The budget allows 1 call of one key, and all were made. Go on without this call, or stop the run.");
    }
    assert_eq!(story.at(1).refuses(&*call(0.2)), Reason::CallCapReached);
    assert_eq!(story.message(), "The budget allows 1 call of one key, and 2 were made. Go on without this call, or stop the run.");
    assert!(story.at(2).allows(&*ask("check", json!({}))));
    assert_eq!(story.fact("spent_usd"), Some(Value::Number(0.3)), "the money is gone");
    let unpriced = ask("record", json!({"model": "no-such-model", "input_tokens": 70}));
    assert_eq!(story.at(3).refuses(&*unpriced), Reason::UnknownModel);
    assert!(story.at(4).allows(&*ask("check", json!({}))));
    assert_eq!(story.fact("spent_tokens"), Some(Value::Int(70)), "its tokens have been used, whatever they cost");
}

/// A reservation sets money aside, and no call.
#[test]
fn calls_that_were_granted_side_by_side_are_told_to_be_too_many_when_they_are_settled() {
    let mut story = Story::default();
    let step = json!({"key": "email", "cap": 1, "usd": 0.1});
    let ids = [0, 1].map(|at| reserve(story.at(at), step.clone()));
    let commit = |id: &str| ask("commit", json!({"key": "email", "cap": 1, "usd": 0.1, "reservation_id": id}));
    assert!(story.at(2).allows(&*commit(&ids[0])));
    assert_eq!(story.at(3).refuses(&*ask("reserve", step)), Reason::CallCapReached);
    assert_eq!(story.at(4).refuses(&*commit(&ids[1])), Reason::CallCapReached, "as where it is recorded");
    assert_eq!(story.message(), "The budget allows 1 call of one key, and 2 were made. Go on without this call, or stop the run.");
    assert!(story.at(5).allows(&*ask("check", json!({}))));
    assert_eq!(
        (story.fact("spent_usd"), story.fact("reserved_usd")),
        (Some(Value::Number(0.2)), Some(Value::Number(0.0))),
        "it is settled"
    );
}

#[test]
fn a_parents_cap_holds_for_its_children() {
    let mut story = Story::default();
    let call = |whose: &str| operation("/guard/budget/record", json!({"session_id": whose, "parent": "team", "key": "search"}));
    assert!(story.at(0).allows(&*operation("/guard/budget/record", json!({"session_id": "team", "usd": 0, "cap": 2}))));
    assert!(story.at(1).allows(&*call("a")) && story.at(1).allows(&*call("b")));
    assert_eq!(story.fact("remaining_calls"), Some(Value::Int(0)), "the least of all it draws on");
    assert_eq!(story.at(2).refuses(&*call("c")), Reason::CallCapReached);
    assert_eq!((story.fact("level"), story.fact("cap")), (Some("parent".into()), Some(Value::Int(2))));
    assert!(story.message().starts_with("The parent's budget allows 2 calls of one key"), "{}", story.message());
}

#[test]
fn a_refusal_names_what_is_used_up_before_what_is_only_set_aside() {
    let mut story = Story::default();
    let body = |more: Json| {
        let mut body = json!({"session_id": "a", "parent": "team", "max_usd": 1});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    assert!(story.at(0).allows(&*operation("/guard/budget/record", json!({"session_id": "team", "usd": 0, "max_usd": 2}))));
    assert!(story.at(1).allows(&*operation("/guard/budget/reserve", body(json!({"usd": 1, "tokens": 5})))));
    assert!(story.at(2).allows(&*operation("/guard/budget/record", json!({"session_id": "team", "usd": 2}))));
    assert_eq!(story.at(3).refuses(&*operation("/guard/budget/check", body(json!({"usd": "0.000000001"})))), Reason::BudgetExceeded);
    assert_eq!((story.fact("level"), story.fact("spent_usd")), (Some("parent".into()), Some(Value::Number(2.0))));
    assert_eq!(story.message(), "The parent's budget of $2.00 is used up: $2.00 spent, $1.00 reserved. Stop the run, or raise the limit.");
    assert_eq!(story.retry_after_seconds(), None, "nobody gives it back");
    assert!(story.at(4).allows(&*operation("/guard/budget/record", json!({"session_id": "b", "usd": 0}))));
    assert!(story.at(5).allows(&*operation("/guard/budget/reserve", json!({"session_id": "b", "tokens": 5}))));
    assert_eq!(story.fact("reserved_tokens"), Some(Value::Int(5)));
}

#[test]
fn a_committed_step_counts_its_key() {
    let mut story = Story::default();
    let id = reserve(story.at(0), json!({"usd": 0.1, "key": "email", "cap": 1}));
    assert!(story.at(1).allows(&*ask("commit", json!({"reservation_id": id, "key": "email"}))));
    assert_eq!(story.at(2).refuses(&*ask("reserve", json!({"usd": 0.1, "key": "email"}))), Reason::CallCapReached);
}

#[test]
fn what_was_agreed_is_no_fault_of_who_pays_it() {
    let mut story = Story::default();
    let id = reserve(story.at(0), json!({"usd": 0.6}));
    assert!(story.at(1).allows(&*ask("record", json!({"usd": 0.9}))), "what is set aside may be given back");
    assert!(story.at(2).allows(&*ask("commit", json!({"reservation_id": id, "usd": 0.6}))));
    assert_eq!(story.fact("spent_usd"), Some(Value::Number(1.5)));
    assert_eq!(story.at(3).refuses(&*ask("check", json!({}))), Reason::BudgetExceeded);
    assert_eq!(story.message(), "The budget of $1.00 is exceeded: $1.50 spent. Stop the run, or raise the limit.");
}

fn with_scopes(scopes: Json) -> Story {
    with_ceiling(json!({ "time_zone": "Europe/Berlin", "scopes": scopes }))
}

/// A budget of its own for each run, with what it draws on.
fn drawing(act: &str, run: &str, usd: f64, scopes: Json) -> Box<dyn Operation> {
    operation(&format!("/guard/budget/{act}"), json!({"session_id": run, "usd": usd, "scopes": scopes}))
}

#[test]
fn scopes_grant_together_or_not_at_all() {
    let mut story =
        with_scopes(json!({"tenant": {"day": {"max_usd": 2}}, "team": {"total": {"max_usd": 1, "names": {"big": {"max_usd": 9}}}}}));
    let team = |name: &str| json!([{"per": "team", "name": name}]);
    assert!(story.at(0).allows(&*drawing("reserve", "a", 0.75, team("search"))));
    assert_eq!(story.fact("remaining_usd"), Some(Value::Number(0.25)));
    assert_eq!(story.at(1).refuses(&*drawing("reserve", "b", 0.5, team("search"))), Reason::BudgetExceeded);
    let said = ["level", "scope", "scope_name", "limit_usd", "reserved_usd", "renews_in_seconds"].map(|fact| story.fact(fact));
    assert_eq!(
        said,
        [Some("scope".into()), Some("team".into()), Some("search".into()), Some(1.0.into()), Some(0.75.into()), None],
        "{:?}",
        story.message()
    );
    assert_eq!(
        story.message(),
        "The budget of team 'search' of $1.00 has no room for $0.50: $0.00 spent, $0.75 reserved, $0.25 left. Stop the run, or raise the limit."
    );
    let now = Timestamp::from_millis(1);
    assert_eq!(story.scope("tenant/day", "").reserved(now).usd, NanoDollars::parse("0.75").unwrap(), "a refusal is in no book");
    assert!(story.at(2).allows(&*drawing("reserve", "b", 1.0, team("big"))), "a team's own limit");
    assert_eq!(story.at(3).refuses(&*drawing("reserve", "c", 0.5, json!([]))), Reason::BudgetExceeded);
    assert_eq!(story.fact("scope"), Some("tenant/day".into()));
    assert_eq!(story.fact("renews_in_seconds"), Some(Value::Int(23 * 3600)), "1970 began at one o'clock in Berlin");
    assert!(story.message().starts_with("The tenant's budget for the day of $2.00 has no room"), "{}", story.message());
    assert!(story.message().ends_with("Wait for the next period, stop the run, or raise the limit."), "{}", story.message());
    assert_eq!(story.retry_after_seconds(), Some(900), "before midnight the reservations expire");
}

#[test]
fn a_reservation_is_settled_in_every_scope() {
    let mut story = with_scopes(json!({"tenant": {"day": {"max_usd": 2}}, "model": {"week": {}}}));
    let scopes = json!([{"per": "team", "name": "search", "period": "month", "max_usd": 1}]);
    assert!(story.at(0).allows(&*drawing("reserve", "a", 0.75, scopes.clone())));
    let Some(Value::Text(id)) = story.fact("reservation_id") else { panic!("it is granted") };
    let commit = json!({"session_id": "a", "usd": 0.5, "reservation_id": id, "model": "gpt-4o", "scopes": scopes});
    assert!(story.at(1).allows(&*operation("/guard/budget/commit", commit)));
    let now = Timestamp::from_millis(2);
    for (label, name) in [("tenant/day", ""), ("team/month", "search"), ("model/week", "gpt-4o")] {
        let account = story.scope(label, name);
        assert_eq!((account.spent(now).usd, account.reserved(now)), (NanoDollars::parse("0.5").unwrap(), Cost::ZERO), "{label}");
    }
    let tighter = |usd: f64| json!([{"per": "tenant", "period": "day", "max_usd": usd}]);
    assert_eq!(story.at(3).refuses(&*drawing("check", "a", 0.0, tighter(0.4))), Reason::BudgetExceeded);
    assert_eq!(story.at(4).refuses(&*drawing("check", "b", 1.6, tighter(9.0))), Reason::BudgetExceeded, "a ceiling");
    assert!(story.at(5).allows(&*drawing("check", "b", 1.5, json!([]))), "a limit given for a scope held for that question");
}

#[test]
fn what_another_set_aside_in_a_scope_is_not_settled() {
    for act in ["release", "commit"] {
        let mut story = with_scopes(json!({"tenant": {"day": {"max_usd": 1}}}));
        assert!(story.at(0).allows(&*drawing("reserve", "a", 1.0, json!([]))));
        let Some(Value::Text(id)) = story.fact("reservation_id") else { panic!("it is granted") };
        let strange = json!({"session_id": "b", "usd": 0.0, "reservation_id": id});
        story.at(1).run(&*operation(&format!("/guard/budget/{act}"), strange));
        assert_eq!(story.fact("known"), Some(false.into()), "{act}");
        assert_eq!(story.at(2).refuses(&*drawing("reserve", "c", 0.1, json!([]))), Reason::BudgetExceeded, "{act}");
    }
}

#[test]
fn what_a_door_set_aside_is_settled_by_that_door_alone() {
    let passed = |act: &str, more: Json| {
        let route = ROUTES.iter().find(|route| route.path.ends_with(&format!("budget/{act}"))).unwrap();
        let mut body = json!({"session_id": "key/run", "max_usd": 1.0});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let body = body.to_string();
        let mut input = Input::read(body.as_bytes(), route.fields).unwrap();
        let call = PassedCall::default();
        input.call = Some(&call);
        (route.read)(&input)
    };
    for act in ["release", "commit"] {
        let mut story = Story::default();
        assert!(story.at(0).allows(&*passed("reserve", json!({"usd": 0.9, "if_unsettled": "spent"}))));
        let Some(Value::Text(id)) = story.fact("reservation_id") else { panic!("it is granted") };
        let strange = json!({"session_id": "key/run", "usd": 0.0, "reservation_id": id});
        let strange = operation(&format!("/guard/budget/{act}"), strange);
        story.at(1).run(&*strange);
        assert_eq!(story.fact("known"), Some(false.into()), "{act}");
        let settles = passed("commit", json!({"usd": 0.8, "reservation_id": id}));
        assert_ne!(strange.once(), settles.once(), "who speaks first does not answer for the other");
        assert!(story.at(2).allows(&*settles), "{act}");
        assert_eq!(
            ["known", "spent_usd", "reserved_usd"].map(|name| story.fact(name)),
            [Some(true.into()), Some(Value::Number(0.8)), Some(Value::Number(0.0))],
            "{act}"
        );
    }
}

#[test]
fn the_key_and_the_run_are_the_services_to_name() {
    let mut story = with_scopes(json!({"key": {"total": {"names": {"k1": {"cap": 1}}}}, "run": {"total": {"max_usd": 1}}}));
    let call = |key: Option<&'static str>, budget: &str| {
        let body = json!({"session_id": "s", "budget": budget, "key": "search", "usd": 0.4,
            "scopes": [{"per": "key", "name": "k9"}, {"per": "run", "name": "other"}]});
        let body = body.to_string();
        let mut input = Input::read(body.as_bytes(), RECORD_ROUTE.fields).unwrap();
        input.asked_with = key;
        (RECORD_ROUTE.read)(&input)
    };
    assert!(story.at(0).allows(&*call(Some("k1"), "x")));
    assert_eq!(story.at(1).refuses(&*call(Some("k1"), "x")), Reason::CallCapReached);
    assert_eq!(story.fact("scope_name"), Some("k1".into()));
    assert_eq!(story.at(2).refuses(&*call(Some("k2"), "y")), Reason::BudgetExceeded, "all budgets of a run together");
    assert_eq!((story.fact("scope"), story.fact("spent_usd")), (Some("run".into()), Some(Value::Number(1.2))));
}

#[test]
fn a_period_begins_anew_and_a_clock_that_jumps_back_frees_nothing() {
    // 2026-10-24T22:00Z: a day of 25 hours begins in Berlin.
    const BEGINS: i64 = 1_792_879_200_000;
    const HOURS: i64 = 3_600_000;
    let mut story = with_scopes(json!({"tenant": {"day": {"max_usd": 1, "cap": 1}}}));
    let record = |usd: f64| drawing("record", "a", usd, json!([]));
    assert!(story.at(BEGINS - 1).allows(&*record(1.0)));
    assert_eq!(story.at(BEGINS - 1).refuses(&*drawing("check", "a", 0.1, json!([]))), Reason::BudgetExceeded);
    assert_eq!(story.retry_after_seconds(), Some(1));
    assert!(story.at(BEGINS).allows(&*record(0.75)));
    assert_eq!(story.at(BEGINS - 1).refuses(&*drawing("reserve", "a", 0.5, json!([]))), Reason::BudgetExceeded, "nothing is freed");
    assert_eq!(story.fact("spent_usd"), Some(Value::Number(0.75)), "nothing is lost");
    assert_eq!(story.at(BEGINS).refuses(&*drawing("check", "a", 0.5, json!([]))), Reason::BudgetExceeded);
    assert_eq!(story.retry_after_seconds(), Some(25 * 3600));
    assert_eq!(story.at(BEGINS).refuses(&*drawing("check", "a", 1.5, json!([]))), Reason::BudgetExceeded);
    assert_eq!(story.retry_after_seconds(), None, "no day has room for it");
    assert!(story.at(BEGINS + 25 * HOURS).allows(&*drawing("reserve", "a", 1.0, json!([]))));
    assert_eq!(story.at(BEGINS + 50 * HOURS).refuses(&*drawing("reserve", "a", 1.1, json!([]))), Reason::BudgetExceeded);
    let keyed =
        |at: i64, story: &mut Story| story.at(at).allows(&*operation("/guard/budget/record", json!({"session_id": "b", "key": "k"})));
    assert!(keyed(BEGINS + 26 * HOURS, &mut story) && !keyed(BEGINS + 27 * HOURS, &mut story) && keyed(BEGINS + 49 * HOURS, &mut story));
}

#[test]
fn a_clock_that_ran_far_ahead_closes_no_day() {
    const HOUR: i64 = 3_600_000;
    // 2026-10-26T12:00Z.
    const NOON: i64 = 1_793_016_000_000;
    let mut story = with_scopes(json!({"tenant": {"day": {"max_usd": 5}}}));
    assert!(story.at(NOON + 400 * 24 * HOUR).allows(&*drawing("record", "a", 3.0, json!([]))));
    let day = Cost::usd(NanoDollars::parse("3").unwrap());
    // Nobody asked for it on this day, but it was spent, and the clock was the mistake.
    assert_eq!(story.at(NOON).refuses(&*drawing("reserve", "a", 2.1, json!([]))), Reason::BudgetExceeded);
    assert!(story.at(NOON + 1).allows(&*drawing("record", "a", 0.0, json!([{"per": "tenant", "period": "day"}]))));
    assert!(story.at(NOON + 2).allows(&*drawing("reserve", "a", 1.0, json!([]))));
    assert_eq!(story.scope("tenant/day", "").spent(Timestamp::from_millis(NOON + 2)), day);
    assert!(story.at(NOON + 24 * HOUR).allows(&*drawing("reserve", "b", 4.0, json!([]))), "the next day is new");
    assert_eq!(story.scope("tenant/day", "").spent(Timestamp::from_millis(NOON + 24 * HOUR)), Cost::ZERO);
}

#[test]
fn what_takes_nothing_has_no_place_in_what_is_shared() {
    let mut story = with_scopes(json!({"tenant": {"total": {"max_usd": 5}}}));
    let free = json!({"session_id": "a", "usd": 0, "parent": "team"});
    assert!(story.at(0).allows(&*operation("/guard/budget/reserve", free)));
    let Some(Value::Text(id)) = story.fact("reservation_id") else { panic!("it is granted") };
    assert_eq!(story.scope("tenant", "").open(), 0);
    let commit = json!({"session_id": "a", "usd": 2, "reservation_id": id, "parent": "team"});
    assert!(story.at(1).allows(&*operation("/guard/budget/commit", commit)));
    assert_eq!(story.fact("known"), Some(true.into()), "its own budget knows it");
    assert_eq!(story.scope("tenant", "").spent(Timestamp::from_millis(1)), Cost::usd(NanoDollars::parse("2").unwrap()));
}

#[test]
fn a_scope_that_nothing_limits_is_said() {
    let mut story = with_scopes(json!({"team": {"day": {"max_usd": 1}}}));
    story.at(0).run(&*drawing("check", "a", 0.0, json!([{"per": "team", "name": "x"}, {"per": "user", "name": "y", "max_usd": 1}])));
    assert!(story.warnings().is_empty(), "{:?}", story.warnings());
    story.at(1).run(&*drawing("check", "a", 0.0, json!([{"per": "taem", "name": "x"}])));
    let [said] = story.warnings() else { panic!("{:?}", story.warnings()) };
    assert!(said.starts_with("the scope `taem` limits nothing") && said.ends_with("Did you mean `team`?"), "{said}");
}

#[test]
fn what_was_taken_as_paid_in_a_period_is_not_paid_again_in_the_next() {
    const MINUTE: i64 = 60_000;
    // 2026-10-24T22:00Z: a day begins in Berlin.
    const BEGINS: i64 = 1_792_879_200_000;
    for (is_booked, paid, adds) in [(true, 2.5, "0"), (false, 2.5, "0"), (true, 4.0, "1"), (false, 4.0, "1")] {
        let mut story = with_scopes(json!({"tenant": {"day": {"max_usd": 5}}}));
        let late = json!({"session_id": "late", "usd": 3, "if_unsettled": "spent"});
        assert!(story.at(BEGINS - 20 * MINUTE).allows(&*operation("/guard/budget/reserve", late)));
        let Some(Value::Text(id)) = story.fact("reservation_id") else { panic!("it is granted") };
        if is_booked {
            assert!(story.at(BEGINS - MINUTE).allows(&*drawing("reserve", "other", 0.5, json!([]))));
            let Some(Value::Text(id)) = story.fact("reservation_id") else { panic!("it is granted") };
            assert!(
                story
                    .at(BEGINS - MINUTE)
                    .allows(&*operation("/guard/budget/release", json!({"session_id": "other", "reservation_id": id})))
            );
        }
        assert_eq!(story.at(BEGINS - 1).refuses(&*drawing("check", "other", 2.1, json!([]))), Reason::BudgetExceeded);
        assert!(story.at(BEGINS).allows(&*drawing("check", "other", 5.0, json!([]))), "a new day");
        let commit = json!({"session_id": "late", "usd": paid, "reservation_id": id});
        assert!(story.at(BEGINS + MINUTE).allows(&*operation("/guard/budget/commit", commit)));
        assert_eq!(story.fact("spent_usd"), Some(Value::from(paid)), "the run paid it");
        let (day, now) = (story.scope("tenant/day", ""), Timestamp::from_millis(BEGINS + MINUTE));
        assert_eq!((day.spent(now), day.reserved(now)), (Cost::usd(NanoDollars::parse(adds).unwrap()), Cost::ZERO), "{is_booked} {paid}");
    }
}

#[test]
fn a_limit_that_is_edited_finds_what_was_used() {
    let limit = |usd: f64| json!({"budget": {"scopes": {"team": {"day": {"max_usd": usd}}}}});
    let team = json!([{"per": "team", "name": "search"}]);
    let mut story = Story::default();
    story.settings_become(limit(10.0));
    assert!(story.at(0).allows(&*drawing("record", "a", 3.0, team.clone())));
    story.settings_become(limit(2.0));
    assert_eq!(story.at(1).refuses(&*drawing("check", "b", 0.0, team.clone())), Reason::BudgetExceeded);
    assert_eq!(story.fact("spent_usd"), Some(Value::Number(3.0)));
    story.settings_become(limit(4.0));
    assert!(story.at(2).allows(&*drawing("check", "b", 1.0, team.clone())));
    assert_eq!(story.at(3).refuses(&*drawing("check", "b", 1.1, team)), Reason::BudgetExceeded);
}

#[test]
fn a_scope_in_the_log_can_be_read_again() {
    let limits = Limits { usd: Some(NanoDollars::parse("0.1").unwrap()), tokens: Some(7), cap: Some(2) };
    for (period, limits, max_credits) in [(Some(Period::Week), limits, limits.usd), (None, Limits::default(), None)] {
        let scope = Scope::new("team", "a: b=c", period, limits).unwrap().credits(max_credits);
        assert_eq!(read_shown(&shown(&scope)), Some(scope));
    }
    assert_eq!(read_shown("team/hour:x"), None);
}

#[test]
fn every_scope_that_passes_a_part_of_its_limit_is_told() {
    let limit = json!({"max_usd": 1});
    let mut story = with_scopes(json!({"tenant": {"day": limit, "week": limit, "total": {"max_usd": 100}}}));
    assert!(story.at(0).allows(&*drawing("record", "r", 0.85, json!([{"per": "team", "name": "a: b", "max_usd": 0.9}]))));
    assert_eq!(story.fact("nearest_scope"), Some("team".into()));
    let Some(Value::List(others)) = story.fact("scopes_passed") else { panic!("no others") };
    let read: Vec<_> = others.iter().filter_map(|shown| Nearest::read(shown)).collect();
    let told: Vec<_> = read.iter().map(|other| (other.label.as_str(), other.percent, other.renews_in_seconds.is_some())).collect();
    assert_eq!(told, [("tenant/day", 85.0, true), ("tenant/week", 85.0, true)]);
    assert!(story.at(1).allows(&*drawing("record", "r", 0.01, json!([]))));
    assert_eq!(story.fact("scopes_passed"), None, "nothing was passed");
}

#[test]
fn every_name_of_a_kind_has_the_limits_of_its_kind() {
    let mut story = with_scopes(json!({"team": {"day": {"max_usd": 1}}}));
    let both = json!([{"per": "team", "name": "a"}, {"per": "team", "name": "b"}]);
    assert!(story.at(0).allows(&*drawing("record", "r", 0.75, json!([{"per": "team", "name": "b"}]))));
    assert_eq!(story.at(1).refuses(&*drawing("reserve", "r", 0.5, both)), Reason::BudgetExceeded);
    assert_eq!((story.fact("scope"), story.fact("scope_name")), (Some("team/day".into()), Some("b".into())));
}

#[test]
fn mistakes_in_scopes_are_named() {
    for (scopes, says) in [
        (json!({"tenant": {"hour": {}}}), "`hour` is no period; use day, week, month, or total"),
        (json!({"Team": {"day": {}}}), "`Team` must be a word"),
        (json!({"team": {"day": {"max_usd": -1}}}), "`team.day`: max_usd"),
        (json!({"tenant": {"day": {"names": {"acme": {"max_usd": 1}}}}}), "write [tenants.NAME.guards.budget.scopes.tenant.day]"),
        (json!({"team": {"day": {"max_dollars": 1}}}), "unknown field `max_dollars`"),
        (json!({"team": {"day": {"names": {"a": {"names": {"b": {}}}}}}}), "`names` stands once"),
    ] {
        let tree = json!({ "budget": { "scopes": scopes } });
        let problem = Policy::build(tree.as_object().unwrap(), &["guards"]).unwrap_err();
        assert!(problem.path.join(".").starts_with("guards.budget.scopes"), "{problem:?}");
        assert!(problem.problem.contains(says), "{problem:?}");
    }
    let zone = json!({"budget": {"time_zone": "Mars"}});
    let problem = Policy::build(zone.as_object().unwrap(), &["guards"]).unwrap_err();
    assert_eq!(problem.path.join("."), "guards.budget.time_zone");
    for scopes in [
        "7",
        "[7]",
        "[{}]",
        r#"[{"per":"team"}]"#,
        r#"[{"per":"a/b","name":"x"}]"#,
        r#"[{"per":"run","period":"hour"}]"#,
        r#"[{"per":"run","max_usd":-1}]"#,
    ] {
        let body = format!(r#"{{"session_id":"s","scopes":{scopes}}}"#);
        assert!(Input::read(body.as_bytes(), CHECK_ROUTE.fields).is_err(), "{scopes}");
    }
}

#[test]
fn a_child_draws_on_its_parent() {
    let mut story = Story::default();
    let child = |name: &str, usd: f64| operation("/guard/budget/reserve", json!({"session_id": name, "parent": "team", "usd": usd}));
    assert!(story.at(0).allows(&*operation("/guard/budget/record", json!({"session_id": "team", "usd": 0, "max_usd": 1}))));
    assert!(story.at(1).allows(&*child("a", 0.7)));
    assert_eq!(story.at(2).refuses(&*child("b", 0.4)), Reason::BudgetExceeded);
    assert_eq!(story.fact("level"), Some(Value::from("parent")));
    assert!(story.at(3).allows(&*child("b", 0.3)));
}

#[test]
fn calls_are_capped_by_key() {
    let mut story = Story::default();
    let call = |path: &str, key: &str| ask(path, json!({"key": key, "cap": 2}));
    assert!(story.at(0).allows(&*call("record", "email")) && story.at(0).allows(&*call("record", "email")));
    assert_eq!(story.at(0).refuses(&*call("check", "email")), Reason::CallCapReached);
    assert_eq!(story.at(0).refuses(&*call("record", "email")), Reason::CallCapReached);
    assert!(story.at(0).allows(&*call("record", "phone")));
    assert_eq!(story.fact("remaining_calls"), Some(Value::Int(1)));
}

#[test]
fn tokens_are_priced_and_an_unknown_model_is_refused() {
    let mut story = Story::default();
    let usage = |model: &str| ask("record", json!({"model": model, "input_tokens": 100_000, "output_tokens": 10_000}));
    assert!(story.at(0).allows(&*usage("anthropic.claude-3-7-sonnet-20250219-v1:0")));
    assert_eq!(story.fact("cost_usd"), Some(Value::Number(0.45)));
    assert_eq!(story.at(1).refuses(&*usage("no-such-model")), Reason::UnknownModel);
    let mut costs = |fields: serde_json::Value| {
        assert!(story.at(2).allows(&*ask("record", fields)));
        story.fact("cost_usd")
    };
    let kept_an_hour = json!({"model": "claude-sonnet-4-5", "cache_write_tokens": 10_000, "cache_write_1h_tokens": 10_000});
    assert_eq!(costs(kept_an_hour), Some(Value::Number(0.0975)), "a million is 3.75 dollars, and 6 for an hour");
    let sound = json!({"model": "gpt-audio", "audio_input_tokens": 1_000, "audio_output_tokens": 1_000});
    assert_eq!(costs(sound), Some(Value::Number(0.096)), "32 and 64 dollars");
    let first = json!({"model": "gpt-5.4", "input_tokens": 10_000, "service_tier": "priority"});
    assert_eq!(costs(first), Some(Value::Number(0.05)), "5 dollars, not 2.50");
}

#[test]
fn a_model_without_a_price_costs_what_the_one_does_that_stands_for_it() {
    let mut story = Story::with_settings_of(&["budget"], json!({"max_usd": 1, "unknown_models": {"price_as": "gpt-4o"}}));
    let usage = |model: &str| ask("record", json!({"model": model, "input_tokens": 100_000, "output_tokens": 10_000}));
    for (model, cost) in [("no-such-model", 0.35), ("gpt-4o-mini", 0.021)] {
        assert!(story.at(0).allows(&*usage(model)));
        assert_eq!(story.fact("cost_usd"), Some(Value::Number(cost)), "{model}");
    }
    let built = |policy: serde_json::Value| {
        let guards = json!({"budget": {"unknown_models": policy}});
        crate::Policy::build(guards.as_object().unwrap(), &["guards"]).map(drop).map_err(|problem| problem.problem)
    };
    assert_eq!((built(json!("allow")), built(json!("refuse"))), (Ok(()), Ok(())));
    assert!(built(json!({"price_as": "no-such-model"})).unwrap_err().contains("has none"));
}
