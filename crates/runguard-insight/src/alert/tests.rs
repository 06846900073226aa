use super::state::MOST_ENTRIES;
use super::*;
use proptest::prelude::*;
use runguard_core::calendar::Period;
use runguard_core::reason::Reason;
use runguard_core::row::{Outcome, RowRef};
use runguard_core::time::Span;
use runguard_guards::logged;
use std::collections::BTreeMap;

fn row<'a>(second: i64, guard: &'a str, kind: &'a str, outcome: &'a str, reason: Option<&'a str>, answer: &'a str) -> RowRef<'a> {
    RowRef {
        seq: 0,
        at: second * 1000,
        id: "01",
        tenant: "acme",
        guard: guard.into(),
        kind: kind.into(),
        session: "run-1",
        subject: "orders",
        outcome: outcome.into(),
        reason: reason.map(Into::into),
        answer,
        input: "{}",
    }
}

fn rule(when: When) -> Rule {
    Rule { name: "r".into(), when, ..Rule::default() }
}

fn judge(rule: &Rule, state: &mut State, row: &RowRef<'_>) -> Vec<Alert> {
    rule.judge(state, row, &logged::shows(row))
}

/// Each alert as "firing 12" or "resolved 12", the second it came at.
fn told(rule: &Rule, rows: &[RowRef<'_>]) -> Vec<String> {
    let mut state = State::default();
    rows.iter()
        .flat_map(|row| judge(rule, &mut state, row).into_iter().map(|alert| format!("{} {}", alert.state.code(), row.at / 1000)))
        .collect()
}

const TRIP: &str = r#"{"endpoint_key":"orders","phase":"open","tripped":true}"#;
const OPEN: &str = r#"{"endpoint_key":"orders","phase":"open","tripped":false}"#;
const HALF: &str = r#"{"endpoint_key":"orders","phase":"half_open","tripped":false}"#;
const CLOSED: &str = r#"{"endpoint_key":"orders","phase":"closed","tripped":false}"#;

fn record(second: i64, answer: &str) -> RowRef<'_> {
    row(second, "api_circuit", "record", "recorded", None, answer)
}

#[test]
fn a_trip_is_told_once_and_resolved_when_the_circuit_closes() {
    let rows =
        [record(0, CLOSED), record(10, TRIP), record(20, OPEN), record(60, TRIP), record(70, HALF), record(90, CLOSED), record(91, CLOSED)];
    assert_eq!(told(&rule(When::CircuitTrip), &rows), ["firing 10", "resolved 90"]);
    let other = RowRef { subject: "payments", ..record(15, TRIP) };
    assert_eq!(told(&rule(When::CircuitTrip), &[record(10, TRIP), other]), ["firing 10", "firing 15"], "each endpoint for itself");
    let only = Rule { tenant: Some("other".into()), ..rule(When::CircuitTrip) };
    assert_eq!(told(&only, &rows), Vec::<String>::new());
}

#[test]
fn an_endpoint_that_degrades_is_told_before_its_circuit_opens() {
    let check = |second: i64, failures: u32, probe: bool| {
        let answer = format!(r#"{{"recent_failures_in_window":{failures},"failure_threshold":10,"probe":{probe}}}"#);
        row(second, "api_circuit", "check", "allowed", None, answer.leak())
    };
    let rows = [check(0, 3, false), check(1, 4, false), check(2, 9, false), record(3, TRIP), check(50, 9, true), check(60, 0, false)];
    assert_eq!(told(&rule(When::Degrading), &rows), ["firing 1", "resolved 60"], "once, and not for the probe");
    assert_eq!(told(&Rule { share: 80.0, ..rule(When::Degrading) }, &rows), ["firing 2", "resolved 60"]);
    assert_eq!(told(&rule(When::CircuitTrip), &rows)[0], "firing 3", "which is later");
    let other = RowRef { subject: "payments", ..check(2, 5, false) };
    assert_eq!(told(&rule(When::Degrading), &[check(1, 4, false), other]), ["firing 1", "firing 2"], "each endpoint for itself");
    let mut state = State::default();
    let alert = judge(&rule(When::Degrading), &mut state, &check(1, 4, false)).remove(0);
    assert_eq!(alert.title, "'orders' fails: 4 of the 10 failures that open its circuit");
}

#[test]
fn a_trip_within_the_cool_down_is_told_when_it_outlasts_it() {
    let rows = [record(0, TRIP), record(10, CLOSED), record(20, TRIP), record(899, OPEN), record(900, OPEN), record(950, CLOSED)];
    assert_eq!(told(&rule(When::CircuitTrip), &rows), ["firing 0", "resolved 10", "firing 900", "resolved 950"]);
    let short = [record(0, TRIP), record(10, CLOSED), record(20, TRIP), record(30, CLOSED), record(2000, OPEN)];
    assert_eq!(told(&rule(When::CircuitTrip), &short), ["firing 0", "resolved 10"], "what was not told is not resolved");
}

#[test]
fn a_passing_check_and_an_operator_close_a_circuit_too() {
    let check = row(5, "api_circuit", "check", "allowed", None, r#"{"probe":false}"#);
    let probe = row(5, "api_circuit", "check", "allowed", None, r#"{"probe":true}"#);
    let reset = row(5, "api_circuit", "admin", "circuit_reset", None, "{}");
    let forced = row(5, "api_circuit", "admin", "circuit_forced_open", None, "{}");
    for (closing, resolves) in [(check, true), (probe, false), (reset, true), (forced, false)] {
        let said = told(&rule(When::CircuitTrip), &[record(0, TRIP), closing.clone()]);
        assert_eq!(said.len() == 2, resolves, "{closing:?}");
    }
}

fn blocked(second: i64) -> RowRef<'static> {
    row(second, "handoff", "check", "blocked", Some("cycle_detected"), "{}")
}

#[test]
fn blocks_are_counted_within_the_window() {
    let rule = Rule { count: 3, window: Span::from_seconds(60), ..rule(When::Blocks) };
    assert_eq!(told(&rule, &[blocked(0), blocked(30), blocked(59)]), ["firing 59"]);
    assert_eq!(told(&rule, &[blocked(0), blocked(30), blocked(60)]), Vec::<String>::new(), "the first has left the window");
    let lasting: Vec<RowRef<'_>> = (0..100).map(|number| blocked(number * 10)).collect();
    assert_eq!(told(&rule, &lasting), ["firing 20"], "silent while it lasts");
    let allowed = row(200, "kb_requery", "check", "allowed", None, "{}");
    assert_eq!(told(&rule, &[blocked(0), blocked(1), blocked(2), allowed]), ["firing 2", "resolved 200"], "any row tells the time");
    let observed = RowRef { outcome: "would_block".into(), ..blocked(2) };
    assert_eq!(told(&rule, &[blocked(0), blocked(1), observed]), Vec::<String>::new());
    let other_reason = RowRef { reason: Some("handoff_ceiling_reached".into()), ..blocked(2) };
    assert_eq!(told(&rule, &[blocked(0), blocked(1), other_reason.clone()]), Vec::<String>::new(), "counted apart");
    let by_guard = Rule { per: vec![Dimension::Guard], ..rule };
    assert_eq!(told(&by_guard, &[blocked(0), blocked(1), other_reason.clone()]), ["firing 2"]);
    let one_tenant = Rule { tenant: Some("acme".into()), reason: Some("cycle_detected".into()), ..by_guard };
    assert_eq!(told(&one_tenant, &[blocked(0), blocked(1), other_reason, RowRef { tenant: "b", ..blocked(3) }]), Vec::<String>::new());
}

#[test]
fn a_rate_needs_enough_decisions_and_more_than_its_share() {
    let rule = Rule { count: 10, share: 30.0, window: Span::from_seconds(100), ..rule(When::BlockRate) };
    let decisions = |blocks: i64, total: i64, from: i64| -> Vec<RowRef<'static>> {
        (0..total)
            .map(|number| {
                if number < blocks {
                    blocked(from + number)
                } else {
                    RowRef { outcome: "allowed".into(), reason: None, ..blocked(from + number) }
                }
            })
            .collect()
    };
    assert_eq!(told(&rule, &decisions(3, 10, 0)), Vec::<String>::new(), "exactly the share is not more");
    assert_eq!(told(&rule, &decisions(4, 10, 0)), ["firing 9"]);
    assert_eq!(told(&rule, &decisions(9, 9, 0)), Vec::<String>::new(), "too few to say");
    let calmer = [decisions(4, 10, 0), decisions(0, 10, 10)].concat();
    assert_eq!(told(&rule, &calmer), ["firing 9", "resolved 13"], "4 of 14 is less than 30 %");
    let quiet =
        [decisions(9, 10, 0), vec![RowRef { guard: "stall".into(), outcome: "allowed".into(), reason: None, ..blocked(500) }]].concat();
    assert_eq!(told(&rule, &quiet), ["firing 9", "resolved 500"]);
}

fn spending(second: i64, answer: &str) -> RowRef<'_> {
    row(second, "budget", "check", "allowed", None, answer)
}

#[test]
fn each_threshold_of_a_budget_is_told_once() {
    let spent = |dollars: f64| format!(r#"{{"budget":"default","spent_usd":{dollars},"limit_usd":10.0}}"#);
    let story: Vec<String> = [1.0, 4.99, 5.0, 7.0, 7.99, 8.0, 9.6, 9.7].map(spent).to_vec();
    let rows: Vec<RowRef<'_>> = story.iter().enumerate().map(|(second, answer)| spending(second as i64, answer)).collect();
    let mut state = State::default();
    let said: Vec<(String, Severity)> =
        rows.iter().flat_map(|row| judge(&rule(When::Budget), &mut state, row)).map(|alert| (alert.title, alert.severity)).collect();
    let title = |percent: u8| format!("Budget 'orders' of 'run-1' has reached {percent} %");
    assert_eq!(said, [(title(50), Severity::Info), (title(80), Severity::Warning)]);
    let refused = RowRef { outcome: "blocked".into(), reason: Some("budget_exceeded".into()), ..spending(20, &story[7]) };
    let last = judge(&rule(When::Budget), &mut state, &refused);
    assert_eq!((last[0].title.clone(), last[0].severity), (title(100), Severity::Critical), "a budget that refuses is used up");
    assert_eq!(last.len(), 1);

    let jump = spent(9.9);
    assert_eq!(told(&rule(When::Budget), &[spending(0, &jump), spending(1, &jump)]), ["firing 0"], "only the highest is told");
    let low = spent(0.5);
    let again = [spending(0, &jump), spending(1, &low), spending(2, &jump), spending(901, &jump)];
    assert_eq!(told(&rule(When::Budget), &again), ["firing 0", "resolved 1", "firing 901"]);
    let tokens = r#"{"spent_usd":0.0,"spent_tokens":96,"limit_tokens":100}"#;
    assert_eq!(told(&rule(When::Budget), &[spending(0, tokens), spending(1, r#"{"spent_usd":3.0}"#)]), ["firing 0"], "no limit, no share");
}

#[test]
fn a_scope_that_many_share_is_told_at_its_percentages_before_it_refuses() {
    let scope = |percent: f64| {
        format!(
            r#"{{"spent_usd":0.5,"nearest_scope":"tenant/month","nearest_scope_name":"","nearest_scope_percent":{percent},"nearest_scope_renews_in_seconds":1000}}"#
        )
    };
    let [below, reached, again] = [49.9, 50.0, 51.0].map(scope);
    let mut state = State::default();
    let rows = [spending(0, &below), spending(0, &reached), RowRef { session: "run-2", ..spending(0, &again) }];
    let said: Vec<String> = rows.iter().flat_map(|row| judge(&rule(When::Budget), &mut state, row)).map(|alert| alert.title).collect();
    assert_eq!(said, ["Budget 'orders' of 'tenant/month' has reached 50 %"]);
}

#[test]
fn each_of_several_scopes_that_one_record_brings_over_a_percentage_is_told() {
    let answer = r#"{"spent_usd":0.5,"nearest_scope":"tenant/week","nearest_scope_percent":85,"scopes_passed":["85 60 tenant/day:","80 - team:search"]}"#;
    let said = judge(&rule(When::Budget), &mut State::default(), &spending(0, answer));
    let said: Vec<String> = said.into_iter().map(|alert| alert.title).collect();
    let of = |scope: &str| format!("Budget 'orders' of '{scope}' has reached 80 %");
    assert_eq!(said, [of("tenant/week"), of("tenant/day"), of("team search")]);
}

#[test]
fn an_erased_session_is_forgotten() {
    let mut state = State::default();
    judge(&rule(When::Budget), &mut state, &spending(0, r#"{"spent_usd":6.0,"limit_usd":10.0}"#));
    assert!(!state.forget("acme", |session| session == "run-2") && !state.forget("other", |session| session == "run-1"));
    assert!(state.forget("acme", |session| session == "run-1") && state == State::default());
}

#[test]
fn a_refusal_of_the_parent_is_told_of_the_parent() {
    let answer = r#"{"level":"parent","spent_usd":4.0,"limit_usd":5.0}"#;
    let refused = RowRef {
        outcome: "blocked".into(),
        reason: Some("budget_exceeded".into()),
        input: r#"{"act":"reserve","parent":"team-7"}"#,
        ..spending(0, answer)
    };
    let said = judge(&rule(When::Budget), &mut State::default(), &refused);
    assert_eq!((said[0].session.as_str(), said[0].title.as_str()), ("team-7", "Budget 'orders' of 'team-7' has reached 100 %"));
}

#[test]
fn a_scope_that_is_used_up_is_told_once_in_each_period() {
    const DAY: i64 = 86_400;
    let refused = |second: i64, answer: &str| {
        let row = RowRef { outcome: Outcome::Blocked.into(), reason: Some(Reason::BudgetExceeded.into()), ..spending(second, answer) };
        judge(&rule(When::Budget), &mut State::default(), &row).pop().map(|alert| (alert.title, alert.dedup_key))
    };
    let answer = |renews: i64| {
        format!(
            r#"{{"level":"scope","scope":"team/day","scope_name":"search","spent_usd":5.0,"limit_usd":5.0,"renews_in_seconds":{renews}}}"#
        )
    };
    let [first, later, next_day] =
        [(10, DAY - 10), (60, DAY - 60), (DAY + 10, DAY - 10)].map(|(at, renews)| refused(at, &answer(renews)).unwrap());
    assert_eq!(first.0, "Budget 'orders' of 'team/day search' has reached 100 %");
    assert_eq!(first.1, later.1);
    assert_ne!(first.1, next_day.1);
}

#[test]
fn degraded_answers_are_told_until_they_are_whole_for_a_window() {
    let degraded = |second| row(second, "handoff", "check", "allowed", None, r#"{"degraded":true}"#);
    let whole = |second| row(second, "handoff", "check", "allowed", None, r#"{"degraded":false,"note":"\"degraded\":true"}"#);
    assert_eq!(told(&rule(When::Fallback), &[whole(0), degraded(1), degraded(200), whole(300), whole(501)]), ["firing 1", "resolved 501"]);
    for (answer, fires) in
        [(r#"{"fallback":"cheap-model"}"#, 1), (r#"{"fallback":""}"#, 0), (r#"{"fallback":false}"#, 0), (r#"{"fallback":true}"#, 1)]
    {
        assert_eq!(told(&rule(When::Fallback), &[row(0, "handoff", "check", "allowed", None, answer)]).len(), fires, "{answer}");
    }
}

#[test]
fn what_is_remembered_is_bounded() {
    let rule = Rule { count: 2, per: vec![Dimension::Subject], cooldown: Span::from_seconds(10), ..rule(When::Blocks) };
    let mut state = State::default();
    let names: Vec<String> = (0..5000).map(|number| format!("s{number}")).collect();
    for (second, name) in names.iter().enumerate() {
        judge(&rule, &mut state, &RowRef { subject: name, ..blocked(second as i64 / 10) });
    }
    assert_eq!(state.entries.len(), MOST_ENTRIES);
    assert!(state.entries.contains_key(&rule.group_key(&RowRef { subject: "s4999", ..blocked(0) })), "the latest is there");
    let bytes = postcard::to_stdvec(&state).unwrap().len();
    assert!(bytes < 300_000, "{bytes}");
}

#[test]
fn names_cannot_steer_what_shows_them() {
    let hostile = RowRef { subject: "a\u{1b}[2J\n<!channel>", ..record(0, TRIP) };
    let title = judge(&rule(When::CircuitTrip), &mut State::default(), &hostile).remove(0).title;
    assert_eq!(title, "The circuit of 'a [2J <!channel>' is open");
    let long = "x".repeat(5000);
    assert!(judge(&rule(When::CircuitTrip), &mut State::default(), &RowRef { subject: &long, ..record(0, TRIP) })[0].title.len() < 150);
}

const DAY: i64 = 86_400;

/// A step that is let pass; a knowledge base query is two operations.
fn step(second: i64) -> RowRef<'static> {
    row(second, "kb_requery", "check", "allowed", None, "{}")
}

#[test]
fn what_may_be_used_in_a_month_is_told_at_its_percentages_and_anew_with_the_next() {
    let rule = Rule { limit: 20.0, ..rule(When::Consumption) };
    let mut rows: Vec<RowRef<'_>> = (0..10).map(|number| step(number * 60)).collect();
    // Neither what was refused nor what is only watched is used.
    rows.insert(3, blocked(170));
    rows.insert(4, row(171, "loop", "check", "allowed", None, "{}"));
    assert_eq!(told(&rule, &rows), ["firing 300", "firing 420", "firing 540"], "60, 80 and 100 %");
    rows.push(step(40 * DAY));
    assert_eq!(told(&rule, &rows)[3..], ["resolved 3456000", "resolved 3456000", "resolved 3456000"]);
    let in_operations = Rule { limit: 10.0, unit: Counted::Operations, at: Some(vec![60]), period: Period::Day, ..rule.clone() };
    assert_eq!(told(&in_operations, &rows[..8]), ["firing 120"]);
    let said = judge(&Rule { at: Some(vec![1]), ..rule }, &mut State::default(), &step(0));
    assert_eq!(said[0].title, "1 % of the credits for the month are used: for acme");
    assert_eq!((said[0].severity, said[0].text.contains("2 of 20 credits")), (Severity::Warning, true));
}

#[test]
fn a_day_that_uses_far_more_than_others_is_told_and_small_numbers_are_not() {
    let rule = Rule { at_least: 20.0, ..rule(When::Spike) };
    // Ten operations a day for a week, then more.
    let week: Vec<RowRef<'_>> = (0..7).flat_map(|day| (0..5).map(move |number| step(day * DAY + number))).collect();
    let then = |steps: i64| week.iter().cloned().chain((0..steps).map(|number| step(7 * DAY + number))).collect::<Vec<_>>();
    assert_eq!(told(&rule, &then(10)), Vec::<String>::new(), "twice as much is not more than twice");
    assert_eq!(told(&rule, &then(11)), ["firing 604810"]);
    assert_eq!(told(&Rule { at_least: 50.0, ..rule.clone() }, &then(11)), Vec::<String>::new(), "below the floor");
    let next_day: Vec<RowRef<'_>> = then(11).into_iter().chain([step(8 * DAY)]).collect();
    assert_eq!(told(&rule, &next_day), ["firing 604810", "resolved 691200"]);
    // On two days nobody knows what is usual.
    let young: Vec<RowRef<'_>> = (0..2).flat_map(|day| (0..50 * day + 5).map(move |number| step(day * DAY + number))).collect();
    assert_eq!(told(&rule, &young), Vec::<String>::new());
    // The same day of last week was like this.
    let weekly: Vec<RowRef<'_>> =
        (0..40).map(step).chain(week.iter().skip(5).cloned()).chain((0..40).map(|number| step(7 * DAY + number))).collect();
    assert_eq!(told(&rule, &weekly), Vec::<String>::new());
}

#[test]
fn rules_that_make_no_sense_are_refused() {
    let good = rule(When::Blocks);
    assert!(good.check().is_ok() && default_rules().iter().all(|rule| rule.check().is_ok()));
    for (bad, key) in [
        (Rule { name: String::new(), ..good.clone() }, "name"),
        (Rule { name: "a b".into(), ..good.clone() }, "name"),
        (Rule { guard: Some("hand".into()), ..good.clone() }, "guard"),
        (Rule { reason: Some("none".into()), ..good.clone() }, "reason"),
        (Rule { count: 0, ..good.clone() }, "count"),
        (Rule { count: 1001, ..good.clone() }, "count"),
        (Rule { window: Span::ZERO, ..good.clone() }, "window"),
        (Rule { share: 100.0, ..good.clone() }, "share"),
        (Rule { share: f64::NAN, ..good.clone() }, "share"),
        (Rule { at: Some(vec![80, 50]), ..good.clone() }, "at"),
        (Rule { at: Some(vec![]), ..good.clone() }, "at"),
        (rule(When::Consumption), "limit"),
        (Rule { factor: 1.0, ..good.clone() }, "factor"),
        (Rule { at_least: f64::NAN, ..good.clone() }, "at_least"),
    ] {
        assert_eq!(bad.check().unwrap_err().name, key);
    }
}

#[derive(Debug, Clone)]
struct AnyRow {
    second: i64,
    choice: u8,
    tenant: u8,
    subject: u8,
}

fn any_rows() -> impl Strategy<Value = Vec<AnyRow>> {
    // Steps that mostly go forward, and now and then back.
    let step = prop_oneof![8 => 0_i64..40, 1 => 500_i64..2000, 1 => -100_i64..0];
    proptest::collection::vec((step, 0_u8..12, 0_u8..2, 0_u8..2), 1..200).prop_map(|steps| {
        let mut second = 1_000_000;
        let mut rows = Vec::new();
        for (step, choice, tenant, subject) in steps {
            second += step;
            rows.push(AnyRow { second, choice, tenant, subject });
        }
        rows
    })
}

fn made(any: &AnyRow) -> RowRef<'static> {
    let base = match any.choice {
        0 => record(any.second, TRIP),
        1 => record(any.second, CLOSED),
        2 => record(any.second, OPEN),
        3..=5 => blocked(any.second),
        6 => spending(any.second, r#"{"spent_usd":6.0,"limit_usd":10.0}"#),
        7 => spending(any.second, r#"{"spent_usd":9.9,"limit_usd":10.0}"#),
        8 => spending(any.second, r#"{"spent_usd":1.0,"limit_usd":10.0}"#),
        9 => row(any.second, "handoff", "check", "allowed", None, r#"{"degraded":true}"#),
        _ => row(any.second, "handoff", "check", "allowed", None, "{}"),
    };
    RowRef { tenant: ["a", "b"][usize::from(any.tenant)], subject: ["x", "y"][usize::from(any.subject)], ..base }
}

fn any_rules() -> Vec<Rule> {
    [When::CircuitTrip, When::Degrading, When::Blocks, When::BlockRate, When::Budget, When::Fallback, When::Consumption, When::Spike]
        .map(|when| Rule {
            limit: 20.0,
            at_least: 5.0,
            count: 4,
            cooldown: Span::from_seconds(120),
            window: Span::from_seconds(90),
            ..rule(when)
        })
        .to_vec()
}

proptest! {
    #[test]
    fn an_alert_fires_at_most_once_in_its_cool_down_and_is_resolved_only_after_it_fired(rows in any_rows()) {
        for rule in any_rules() {
            let mut state = State::default();
            let mut last: BTreeMap<String, (AlertState, Timestamp)> = BTreeMap::new();
            for row in rows.iter().map(made) {
                for alert in judge(&rule, &mut state, &row) {
                    let before = last.get(&alert.dedup_key).copied();
                    match alert.state {
                        AlertState::Firing => {
                            prop_assert!(before.is_none_or(|(state, _)| state == AlertState::Resolved), "{:?} fires twice", rule.when);
                            prop_assert!(before.is_none_or(|(_, fired)| !row.time().still_counts(fired, rule.cooldown)), "{:?} in its cool-down", rule.when);
                            last.insert(alert.dedup_key, (AlertState::Firing, row.time()));
                        }
                        AlertState::Resolved => {
                            prop_assert_eq!(before.map(|(state, _)| state), Some(AlertState::Firing));
                            let fired = before.map_or(row.time(), |(_, fired)| fired);
                            last.insert(alert.dedup_key, (AlertState::Resolved, fired));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_rule_that_is_stopped_after_any_row_goes_on_as_if_it_were_not(rows in any_rows(), at in 0_usize..200) {
        for rule in any_rules() {
            let (mut whole, mut first) = (State::default(), State::default());
            let at = at.min(rows.len());
            let expected: Vec<Alert> = rows.iter().flat_map(|row| judge(&rule, &mut whole, &made(row))).collect();
            let mut said: Vec<Alert> = rows[..at].iter().flat_map(|row| judge(&rule, &mut first, &made(row))).collect();
            let mut second: State = postcard::from_bytes(&postcard::to_stdvec(&first).unwrap()).unwrap();
            said.extend(rows[at..].iter().flat_map(|row| judge(&rule, &mut second, &made(row))));
            prop_assert_eq!(said, expected);
            prop_assert_eq!(second, whole);
        }
    }
}
