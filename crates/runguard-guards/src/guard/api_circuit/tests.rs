use super::*;
use crate::answer::Value;
use crate::guard::properties::Story;
use serde_json::json;

fn check(session: &str) -> CheckRequest {
    CheckRequest { endpoint_key: "api".into(), session_id: session.into(), call: None }
}

fn result(session: &str, failed: bool) -> RecordRequest {
    RecordRequest {
        endpoint_key: "api".into(),
        session_id: session.into(),
        failed,
        attempt: 1,
        status_code: None,
        latency_ms: None,
        permit_id: None,
        retry_after_seconds: None,
        call: None,
    }
}

fn permitted(session: &str, failed: bool, permit: &str) -> RecordRequest {
    RecordRequest { permit_id: Some(permit.into()), ..result(session, failed) }
}

fn text(value: Option<Value>) -> String {
    match value {
        Some(Value::Text(text)) => text.into_owned(),
        other => panic!("{other:?}"),
    }
}

/// Ten failures of ten sessions at second 0.
fn tripped() -> Story {
    let mut story = Story::default();
    for number in 0..10 {
        assert!(story.at(0).allows(&check(&format!("s{number}"))));
    }
    for number in 0..9 {
        assert_eq!(story.at(0).tells(&result(&format!("s{number}"), true)), None);
    }
    assert_eq!(story.at(0).tells(&result("s9", true)), Some(Notice::CircuitTripped));
    story
}

#[test]
fn the_first_refusal_says_it_just_tripped_and_the_rest_that_it_is_open() {
    let mut story = tripped();
    assert_eq!(story.at(1_000).refuses(&check("a")), Reason::CircuitJustTripped);
    assert_eq!(story.fact("recent_failures"), Some(Value::Int(10)));
    assert_eq!(story.fact("failure_window_seconds"), Some(Value::Int(60)));
    assert_eq!(story.fact("recovery_seconds"), Some(Value::Int(45)));
    assert_eq!(story.retry_after_seconds(), Some(44));
    assert_eq!(story.at(1_001).refuses(&check("b")), Reason::CircuitOpen);
    assert_eq!(story.fact("recovery_seconds_remaining"), Some(Value::Int(44)), "rounded up");
    assert_eq!(story.at(44_999).refuses(&check("b")), Reason::CircuitOpen);
}

#[test]
fn one_probe_goes_and_its_success_closes_and_forgets() {
    let mut story = tripped();
    assert!(story.at(45_000).allows(&check("p")));
    assert_eq!(story.fact("probe"), Some(Value::Bool(true)));
    let permit = text(story.fact("permit_id"));
    assert_eq!(story.at(46_000).refuses(&check("q")), Reason::CircuitOpen);
    assert_eq!(story.fact("phase"), Some(Value::from("half_open")));
    assert_eq!(story.retry_after_seconds(), Some(29), "when the probe's lease ends");
    assert_eq!(story.at(47_000).tells(&permitted("p", false, &permit)), Some(Notice::CircuitClosed));
    assert!(story.at(47_000).allows(&check("q")));
    assert_eq!(story.fact("recent_failures_in_window"), Some(Value::Int(0)));
    for number in 0..9 {
        story.at(48_000).tells(&result(&format!("n{number}"), true));
    }
    assert!(story.at(48_000).allows(&check("q")), "nine new failures do not trip: the old ten are forgotten");
}

#[test]
fn a_failed_probe_opens_again_and_a_silent_one_frees_its_lease() {
    let mut story = tripped();
    assert!(story.at(45_000).allows(&check("p")));
    let permit = text(story.fact("permit_id"));
    assert_eq!(story.at(46_000).tells(&permitted("p", true, &permit)), Some(Notice::CircuitTripped));
    assert_eq!(story.at(46_500).refuses(&check("q")), Reason::CircuitJustTripped);
    assert!(story.at(91_000).allows(&check("q")), "45 s after the failed probe");
    assert_eq!(story.at(120_999).refuses(&check("r")), Reason::CircuitOpen);
    assert!(story.at(121_000).allows(&check("r")), "the silent probe's lease ended after 30 s");
    assert_eq!(story.fact("probe"), Some(Value::Bool(true)));
}

#[test]
fn old_news_moves_nothing() {
    let mut story = Story::default();
    assert!(story.at(0).allows(&check("late")));
    let old = text(story.fact("permit_id"));
    for number in 0..10 {
        story.at(0).tells(&result(&format!("s{number}"), true));
    }
    assert!(story.at(45_000).allows(&check("p")));
    assert_eq!(story.at(46_000).tells(&permitted("late", false, &old)), None, "a success from before the trip does not close");
    assert_eq!(story.at(46_000).tells(&result("late", true)), None, "nor does a failure of a session without the probe open");
    assert_eq!(story.at(46_000).tells(&result("p", false)), Some(Notice::CircuitClosed), "the probe is known by its session too");
    for _ in 0..12 {
        assert_eq!(story.at(47_000).tells(&permitted("late", true, &old)), None, "old failures do not count against the closed circuit");
    }
}

#[test]
fn a_session_has_three_attempts_since_its_last_success() {
    let mut story = Story::default();
    for _ in 0..5 {
        assert!(story.at(0).allows(&check("s")));
        story.at(0).tells(&result("s", false));
    }
    for attempt in 1..=3 {
        assert!(story.at(1_000).allows(&check("s")));
        assert_eq!(story.fact("session_attempt_number"), Some(Value::Int(attempt)));
        story.at(1_000).tells(&result("s", true));
    }
    assert_eq!(story.at(2_000).refuses(&check("s")), Reason::SessionRetryCeiling);
    assert_eq!(story.retry_after_seconds(), Some(3599));
    assert!(story.at(2_000).allows(&check("t")));
    story.at(2_000).tells(&result("s", false));
    assert!(story.at(2_000).allows(&check("s")), "a success starts anew");
}

#[test]
fn a_session_at_its_ceiling_does_not_use_up_the_probe() {
    let mut story = tripped();
    for _ in 0..2 {
        story.at(0).tells(&result("s0", true));
    }
    assert_eq!(story.at(45_000).refuses(&check("s0")), Reason::SessionRetryCeiling);
    assert!(story.at(45_000).allows(&check("p")));
    assert_eq!(story.fact("probe"), Some(Value::Bool(true)));
}

#[test]
fn rates_and_backoff() {
    let mut story = Story::with_settings_of(
        &["api_circuit"],
        json!({"failure_rate": 0.5, "min_calls": 4, "recovery": 100, "recovery_backoff": 3, "max_attempts_per_session": 100}),
    );
    assert_eq!(story.at(0).tells(&result("a", false)), None);
    assert_eq!(story.at(0).tells(&result("a", true)), None);
    assert_eq!(story.at(0).tells(&result("a", false)), None);
    assert_eq!(story.at(0).tells(&result("a", true)), Some(Notice::CircuitTripped), "2 of 4");
    assert_eq!(story.at(0).refuses(&check("b")), Reason::CircuitJustTripped);
    assert_eq!(story.fact("recovery_seconds"), Some(Value::Int(100)));
    assert!(story.at(100_000).allows(&check("b")));
    assert_eq!(story.at(100_000).tells(&result("b", true)), Some(Notice::CircuitTripped));
    assert_eq!(story.at(100_000).refuses(&check("c")), Reason::CircuitJustTripped);
    assert_eq!(story.fact("recovery_seconds"), Some(Value::Int(300)));
    assert!(story.at(400_000).allows(&check("c")));
    assert_eq!(story.at(400_000).tells(&result("c", true)), Some(Notice::CircuitTripped));
    assert_eq!(story.at(400_000).refuses(&check("d")), Reason::CircuitJustTripped);
    assert_eq!(story.fact("recovery_seconds"), Some(Value::Int(600)), "never longer than ten minutes");
}

#[test]
fn slow_calls_trip_too() {
    let mut story = Story::with_settings_of(&["api_circuit"], json!({"slow_call_ms": 500, "slow_rate": 0.5, "min_calls": 2}));
    let slow = |latency| RecordRequest { latency_ms: Some(latency), ..result("a", false) };
    assert_eq!(story.at(0).tells(&slow(500)), None);
    assert_eq!(story.at(0).tells(&slow(501)), Some(Notice::CircuitTripped));
}

#[test]
fn an_endpoint_that_says_when_to_come_back_is_left_alone_until_then() {
    let mut story = Story::default();
    let busy = |seconds| RecordRequest { retry_after_seconds: Some(seconds), ..result("a", true) };
    for _ in 0..9 {
        assert_eq!(story.at(0).tells(&busy(120)), None);
    }
    assert_eq!(story.at(0).tells(&busy(120)), Some(Notice::CircuitTripped));
    assert_eq!(story.at(45_000).refuses(&check("b")), Reason::CircuitJustTripped);
    assert_eq!(story.retry_after_seconds(), Some(75), "120 s in all, not the 45 of the settings");
    assert!(story.at(120_000).allows(&check("b")));
    let permit = text(story.fact("permit_id"));
    let again = RecordRequest { retry_after_seconds: Some(u64::MAX), ..permitted("b", true, &permit) };
    assert_eq!(story.at(120_000).tells(&again), Some(Notice::CircuitTripped));
    assert_eq!(story.at(121_000).refuses(&check("c")), Reason::CircuitJustTripped);
    assert_eq!(story.retry_after_seconds(), Some(599), "ten minutes at most");
}

#[test]
fn calls_that_a_door_passes_on_have_no_ceiling_of_their_run_and_are_known_by_their_permits() {
    let mut story = Story::default();
    let call = || Some(PassedCall { upstream: "openai".into(), ..PassedCall::default() });
    let ask = || CheckRequest { call: call(), ..check("run") };
    let ended =
        |failed, permit: Option<&str>| RecordRequest { call: call(), permit_id: permit.map(str::to_owned), ..result("run", failed) };
    for _ in 0..9 {
        assert!(story.at(0).allows(&ask()), "a client tries again by itself");
        story.at(0).tells(&ended(true, None));
    }
    assert!(story.at(0).allows(&check("run")), "nor does it count where others ask for that session");
    assert_eq!(story.at(0).tells(&ended(true, None)), Some(Notice::CircuitTripped));
    assert!(story.at(45_000).allows(&ask()));
    let permit = text(story.fact("permit_id"));
    assert_eq!(story.at(46_000).tells(&ended(false, None)), None, "a call of the same run that was on its way tests nothing");
    assert_eq!(story.at(46_000).tells(&ended(false, Some(&permit))), Some(Notice::CircuitClosed));
}

#[test]
fn what_mostly_works_is_not_left_alone_and_what_asks_for_a_moment_is_so_long() {
    let mut story = Story::default();
    let failed = |mostly_works, retry_after_seconds| {
        let call = Some(PassedCall { upstream: "openai".into(), mostly_works, ..PassedCall::default() });
        RecordRequest { call, status_code: Some(429), retry_after_seconds, ..result("run", true) }
    };
    for _ in 0..30 {
        assert_eq!(story.at(0).tells(&failed(true, None)), None, "of many calls a few fail");
    }
    assert_eq!(story.at(0).tells(&failed(false, Some(3))), None, "what another door did not count says nothing to a quiet one");
    let mut dead = failed(false, Some(3));
    dead.call.as_mut().unwrap().uncounted = 30;
    assert_eq!(story.at(0).tells(&dead), Some(Notice::CircuitTripped), "the door that saw them fail counts them by then");
    assert_eq!(story.at(1_000).refuses(&check("run")), Reason::CircuitJustTripped);
    assert_eq!(story.retry_after_seconds(), Some(2), "no longer than it asked for");
    assert!(story.at(3_000).allows(&check("run")));
    let permit = text(story.fact("permit_id"));
    let again = RecordRequest { permit_id: Some(permit), ..failed(true, Some(0)) };
    assert_eq!(story.at(3_000).tells(&again), Some(Notice::CircuitTripped), "what tests it decides");
    assert!(story.at(4_000).allows(&check("run")));
}

#[test]
fn a_result_for_an_endpoint_that_is_not_remembered_counts_for_the_session_alone() {
    let policy = Policy::default();
    let moment = Moment { now: Timestamp::from_millis(0), decision_id: "d", store_text: StoreText::Full, long_runs: None };
    let mut outcome = crate::Operation::run(&result("s", true), &policy, &[None, None], moment);
    assert_eq!(outcome.changes.iter().map(|change| change.place).collect::<Vec<_>>(), [0, 1]);
    unwatched(&mut outcome);
    assert_eq!(outcome.changes.iter().map(|change| change.place).collect::<Vec<_>>(), [1]);
    assert_eq!(outcome.answer.facts.get("watched"), Some(&Value::Bool(false)));
    assert_eq!(outcome.answer.facts.get("phase"), Some(&Value::from("closed")));
}

#[test]
fn an_operator_can_force_and_reset() {
    let mut story = tripped();
    story.force("api", Control::Close, 1_000);
    assert!(story.at(1_000).allows(&check("a")));
    story.force("api", Control::Open, 2_000);
    assert_eq!(story.at(3_000).refuses(&check("a")), Reason::CircuitOpen);
    assert_eq!(story.retry_after_seconds(), None, "time does not undo an operator");
    assert_eq!(story.at(99_000_000).refuses(&check("a")), Reason::CircuitOpen);
    story.force("api", Control::Reset, 99_000_000);
    assert!(story.at(99_000_000).allows(&check("a")));
}
