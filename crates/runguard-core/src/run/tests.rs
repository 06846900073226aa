//! What the stories of `sdk/stories.json` do not tell: services that are away.

use super::*;
use crate::calendar::Period;
use crate::detect::stall::{Ladder, StallSettings};
use crate::ledger::Limits;
use crate::prices::{Prompt, Usage};
use crate::time::Span;
use serde_json::{Value, json};

const NOW: Timestamp = Timestamp::from_millis(0);

fn usd(dollars: f64) -> Cost {
    Cost::usd(NanoDollars::from_dollars(dollars).unwrap())
}

fn one_dollar() -> Limits {
    Limits { usd: Some(usd(1.0).usd), ..Limits::default() }
}

fn run_with(money: Option<Money>, model_calls: Option<u64>) -> Run {
    Run::new("run", Ceilings { model_calls, ..Ceilings::default() }, Loops::default(), None, money)
}

fn over_service(unanswered: Unanswered) -> Run {
    run_with(Some(Money::Service(ServiceBudget::new("run", one_dollar(), unanswered))), Some(2))
}

fn asked(progress: Progress, path: &str, fields: Value) -> Box<Ask> {
    let Progress::Ask(ask) = progress else { panic!("{progress:?}") };
    assert_eq!(ask.question.path(), path);
    let body: Value = serde_json::from_str(&ask.question.body()).unwrap();
    for (name, value) in fields.as_object().unwrap() {
        assert_eq!(&body[name], value, "{body}");
    }
    ask
}

#[test]
fn a_limit_that_renews_is_no_end() {
    let day = Budget::new(one_dollar());
    day.renew(Period::Day, NOW, |_| Timestamp::from_millis(86_400_000));
    let mut run = run_with(Some(Money::InProcess(day.clone())), None);
    assert!(matches!(run.record(usd(1.0)), Progress::Done));
    let refused = run.before_model(NOW);
    assert!(matches!(&refused, Progress::Refused(Refusal::NotNow(trip)) if trip.message.contains("next period")), "{refused:?}");
    assert!(matches!(run.record(usd(0.5)), Progress::Refused(Refusal::NotNow(_))));
    assert_eq!(run.trip(), None);
    day.renew(Period::Day, Timestamp::from_millis(86_400_000), |_| Timestamp::from_millis(172_800_000));
    assert!(matches!(run.before_model(NOW), Progress::Done));

    let mut run = over_service(Unanswered::Refused);
    let Progress::Ask(ask) = run.before_model(NOW) else { panic!("a service is asked") };
    let spent = r#"{"allow":false,"reason":"budget_exceeded","level":"scope","scope":"tenant/day","renews_in_seconds":9,"spent_usd":1,"limit_usd":1,"message":"The tenant's budget for the day …"}"#;
    let Progress::Refused(Refusal::NotNow(trip)) = run.told(ask, Some(spent)) else { panic!("tomorrow it passes") };
    assert_eq!((trip.message.as_str(), run.trip()), ("The tenant's budget for the day …", None));
}

/// What model calls used is told with what the next tool gave, once; in this process and to a service.
#[test]
fn the_tokens_of_model_calls_are_told_to_who_looks_for_stalls() {
    let never = Ladder { steer: 0, block: 0, stop: 0 };
    let sessions = StallSessions::new(StallSettings::default().unmoved(never).long_run_tokens(8_000)).unwrap();
    let stalls = Stalls::InProcess(Arc::new(Mutex::new(sessions)));
    let mut run = Run::new("run", Ceilings::default(), Loops::default(), Some(stalls), None);
    let is_over = [3_000, 3_000, 1_500, 400, 101].map(|tokens| {
        let _ = run.record(Cost::tokens(tokens - 1));
        let _ = run.record_usage("m", &Usage::new(1, 0), || Ok(NanoDollars::ZERO));
        let edit = CallEffect::of("edit_file", &json!({"path": "a.py", "text": tokens.to_string()}).to_string());
        let _ = run.after_tool("edit_file", tokens, Gave { effect: edit, ..given(1) }, NOW);
        let failed = Gave { error: Some(Failure { text: "failed", fingerprint: tokens }), ..Gave::default() };
        let check = CallEffect::of("bash", r#"{"command":"pytest"}"#);
        let _ = run.after_tool("bash", 7, Gave { effect: check, ..failed }, NOW);
        run.trip().is_some()
    });
    assert_eq!(is_over, [false, false, false, false, true]);

    let stalls = Stalls::Service(ServiceStalls::new(Unanswered::Passes));
    let mut run = Run::new("run", Ceilings::default(), Loops::default(), Some(stalls), None);
    let _ = run.record(Cost::tokens(3));
    let told = ["3", "null"].map(|_| {
        let Progress::Ask(ask) = run.after_tool("search", 7, given(1), NOW) else { panic!("a service is asked") };
        serde_json::from_str::<Value>(&ask.question.body()).unwrap()["tokens"].clone()
    });
    assert_eq!(told, [json!(3), json!(null)]);
}

#[test]
fn a_model_that_does_not_heed_what_it_is_told_is_stopped() {
    let tells = |run: &mut Run, times: u32| (0..times).all(|_| run.tell_repeat("search"));
    let gave = Gave { result: Some(1), ..Gave::default() };
    let mut run = run_with(None, None);
    assert!(tells(&mut run, 5) && run.trip().is_none());
    let _ = run.after_tool("search", 7, gave, NOW);
    assert!(tells(&mut run, 5) && run.trip().is_none(), "a call that ran starts anew");
    run.new_turn();
    assert!(tells(&mut run, 5) && run.trip().is_none(), "and so does a person");
    assert!(tells(&mut run, 1), "the sixth is told too");
    let Progress::Refused(Refusal::Trip(trip)) = run.before_model(NOW) else { panic!("the next question") };
    assert_eq!((trip.reason.as_ref(), &trip.what), ("loop_detected", &What::Loop { cycle: vec!["search".to_owned()], repeats: 6 }));
    assert!(trip.message.starts_with("The model was told 6 times in a row that it has the result already, last of 'search'"), "{trip}");

    let patient = Arc::new(Mutex::new(LoopDetector::new(crate::detect::loops::LoopSettings::default().repeats(8)).unwrap()));
    let mut run = Run::new("run", Ceilings::default(), Loops::InProcess(patient), None, None);
    assert!(tells(&mut run, 7) && run.trip().is_none() && tells(&mut run, 1) && run.trip().is_some(), "as many as calls may repeat");

    let rules = BTreeMap::from([("search".to_owned(), ToolRule::default().polling(Some(20)))]);
    let mut run = run_with(None, None).with_tool_rules(rules);
    assert!(!run.tell_repeat("search") && run.tell_repeat("fetch"), "a poll runs");
}

#[test]
fn what_may_pass_later_is_not_exhausted() {
    let budget = ServiceBudget::new("run", one_dollar(), Unanswered::Refused);
    let away = r#"{"allow":false,"reason":"state_unavailable","message":"Away."}"#;
    let spent = r#"{"allow":false,"reason":"budget_exceeded","spent_usd":1,"limit_usd":1,"message":"All."}"#;
    assert!(matches!(budget.exhausted().told(Some(away)), AnswerMeaning::Passed));
    assert!(matches!(budget.used_up().told(Some(away)), AnswerMeaning::NotNow(_)));
    assert!(matches!(budget.exhausted().told(Some(spent)), AnswerMeaning::Stopped(_)));
}

#[test]
fn a_child_of_a_child_is_refused_over_a_service() {
    let team = ServiceBudget::new("team", one_dollar(), Unanswered::Refused);
    let child = team.child("run", Limits::default()).unwrap();
    let problem = child.child("step", Limits::default()).unwrap_err().to_string();
    assert!(problem.contains("make it a child of the first budget"), "{problem}");
}

#[test]
fn a_parent_that_was_refused_tells_its_limit_before_a_child_spends() {
    let team = ServiceBudget::new("team", one_dollar(), Unanswered::Refused);
    assert!(matches!(
        team.reserve(Spent::Cost(usd(2.0))).told(Some(r#"{"allow":false,"reason":"budget_exceeded"}"#)),
        AnswerMeaning::DoesNotFit { .. }
    ));
    let child = team.child("run", Limits::default()).unwrap();
    assert!(child.record(Spent::Cost(usd(0.1))).body().contains("max_usd"), "a refused reservation has left nothing behind");
}

#[test]
fn a_service_that_does_not_answer_stops_nothing_for_good() {
    let mut closed = over_service(Unanswered::Refused);
    let Progress::Ask(ask) = closed.before_model(NOW) else { panic!("a service is asked") };
    assert!(matches!(closed.told(ask, None), Progress::Refused(Refusal::Unanswered)));
    assert_eq!(closed.trip(), None);

    let mut open = over_service(Unanswered::Passes);
    let Progress::Ask(ask) = open.record(usd(0.4)) else { panic!("a service is asked") };
    let away = r#"{"allow":false,"reason":"state_unavailable","message":"The shared state is away."}"#;
    let Progress::Refused(Refusal::NotNow(trip)) = open.told(ask, Some(away)) else { panic!("a state that is away ends nothing") };
    assert_eq!((trip.reason.as_ref(), trip.message.as_str()), ("state_unavailable", "The shared state is away."));
    assert_eq!(open.trip(), None);
}

#[test]
fn while_a_service_is_away_this_process_looks_itself() {
    let loops = Loops::Service(ServiceLoops::new(None, None, None, None, Unanswered::Passes));
    let stalls = Stalls::Service(ServiceStalls::new(Unanswered::Passes));
    let mut run = Run::new("run", Ceilings::default(), loops, Some(stalls), None);
    let call = |run: &mut Run, answer: Option<&str>| {
        let Progress::Ask(ask) = run.before_tool("search", 1, NOW) else { panic!("a service is asked") };
        run.told(ask, answer)
    };
    assert!(matches!(call(&mut run, Some(r#"{"allow":true}"#)), Progress::Done));
    assert!(matches!(call(&mut run, None), Progress::Done));
    assert!(matches!(call(&mut run, Some(r#"{"allow":true}"#)), Progress::Done), "the service knows better, when it answers");
    let Progress::Refused(Refusal::Trip(trip)) = call(&mut run, None) else { panic!("the fourth in a row") };
    assert_eq!(trip.reason, "loop_detected");

    let stalls = Stalls::Service(ServiceStalls::new(Unanswered::Passes));
    let mut run = Run::new("run", Ceilings::default(), Loops::default(), Some(stalls), None);
    let gave = Gave { result: Some(7), ..Gave::default() };
    for _ in 0..20 {
        let Progress::Ask(ask) = run.after_tool("search", 1, gave, NOW) else { panic!("a service is asked") };
        let _ = run.told(ask, None);
    }
    assert!(run.trip().is_some_and(|trip| trip.reason.starts_with("stalled")), "{:?}", run.trip());
}

#[test]
fn what_was_spent_while_a_service_is_away_is_told_when_it_is_back() {
    let price: Pricing<'_> = &|_, _| Ok(NanoDollars::ZERO);
    let mut run = over_service(Unanswered::Refused);
    let asked_for = ModelQuestion {
        model: "m",
        prompt: Prompt::default(),
        max_output: Some(10),
        choices: 1,
        has_waited: false,
        asks_again: false,
        may_fall_back: false,
    };
    let Progress::Ask(ask) = run.begin_model(asked_for, price, NOW) else { panic!("a service is asked") };
    let Progress::Started(call) = run.told(ask, Some(r#"{"allow":true,"reservation_id":"r1"}"#)) else { panic!("granted") };
    let usage = Usage::new(3, 4);
    let commit = json!({"reservation_id": "r1", "request_id": "commit-r1", "output_tokens": 4});
    let ask = asked(run.finish_model(call, Used::Counted { model: None, usage: &usage }, price), "/guard/budget/commit", commit.clone());
    assert!(matches!(run.told(ask, None), Progress::Done), "the answer is worth having");
    let ask = asked(run.record(usd(0.1)), "/guard/budget/commit", commit.clone());
    assert!(matches!(run.told(ask, None), Progress::Ask(_)), "the question itself is asked all the same");
    let ask = asked(run.record(usd(0.1)), "/guard/budget/commit", commit);
    let ask = asked(run.told(ask, Some(r#"{"allow":true}"#)), "/guard/budget/record", json!({"usd": 0.1}));
    assert!(matches!(run.told(ask, Some(r#"{"allow":true}"#)), Progress::Done));
    let _ = asked(run.record(usd(0.1)), "/guard/budget/record", json!({"usd": 0.1}));
}

#[test]
fn a_parent_that_was_never_asked_is_told_of_its_limit_first_and_once() {
    let team = ServiceBudget::new("team", one_dollar(), Unanswered::Refused);
    let mut run = run_with(Some(Money::Service(team.child("run", Limits::default()).unwrap())), None);
    let ask = asked(run.record(usd(0.1)), "/guard/budget/record", json!({"session_id": "team", "max_usd": 1.0, "usd": 0.0}));
    let ask =
        asked(run.told(ask, Some(r#"{"allow":true}"#)), "/guard/budget/record", json!({"session_id": "run", "parent": "team", "usd": 0.1}));
    assert!(matches!(run.told(ask, Some(r#"{"allow":true}"#)), Progress::Done));
    let _ = asked(run.record(usd(0.1)), "/guard/budget/record", json!({"session_id": "run"}));
}

#[test]
fn a_message_is_compared_whole_and_an_error_without_words_is_one() {
    let stalls = ServiceStalls::new(Unanswered::Passes);
    let body = |question: Question| serde_json::from_str::<Value>(&question.body()).unwrap();
    let long = "word ".repeat(2000);
    let (one, other) = (body(stalls.message("run", &format!("{long} one"))), body(stalls.message("run", &format!("{long} other"))));
    assert_eq!(one["message"], other["message"], "it is cut");
    assert_ne!(one["message_hash"], other["message_hash"]);
    let failed = Gave { error: Some(Failure { text: "", fingerprint: 7 }), ..Gave::default() };
    let told = body(stalls.observe("run", "search", None, failed, None));
    assert_eq!((&told["error"], &told["error_hash"]), (&json!(""), &json!("0000000000000007")));
}

#[test]
fn turns_and_long_names_are_names_that_a_service_takes() {
    let long = "ä".repeat(300);
    let mut loops = ServiceLoops::new(None, None, None, None, Unanswered::Passes);
    let session = |loops: &ServiceLoops, session: &str| {
        let body: Value = serde_json::from_str(&loops.record(session, &long).body()).unwrap();
        assert!(body["tool"].as_str().unwrap().chars().count() <= 256);
        body["session_id"].as_str().unwrap().to_owned()
    };
    assert_eq!(session(&loops, "run"), "run");
    loops.reset("run");
    loops.reset("run");
    assert_eq!((session(&loops, "run"), session(&loops, "other")), ("run#2".to_owned(), "other".to_owned()));
    let (one, other) = (session(&loops, &long), session(&loops, &format!("{long}x")));
    assert!(one != other && one.chars().count() <= 256 && one.starts_with(&"ä".repeat(200)));
}

#[test]
fn a_circuit_that_a_service_keeps() {
    let circuit = ServiceCircuit::new(&"ä".repeat(300), Unanswered::Passes);
    assert!(circuit.name().chars().count() <= 256);
    let circuit = ServiceCircuit::new("orders", Unanswered::Passes);
    let body = |question: &Question| serde_json::from_str::<Value>(&question.body()).unwrap();
    let question = circuit.check("call-1");
    assert_eq!((question.path(), body(&question)), ("/guard/api-circuit/check", json!({"endpoint_key": "orders", "session_id": "call-1"})));
    let allowed = r#"{"allow":true,"permit_id":"p","probe":true}"#;
    let AnswerMeaning::Permitted(permit) = question.told(Some(allowed)) else { panic!("allowed") };
    assert_eq!((permit.session.as_str(), permit.id.as_deref(), permit.is_probe), ("call-1", Some("p"), true));
    let AnswerMeaning::Permitted(unasked) = circuit.check("call-2").told(None) else { panic!("it passes") };
    assert_eq!((unasked.session.as_str(), unasked.id, unasked.is_probe), ("call-2", None, false));
    for (answer, reason, seconds) in [
        (r#"{"allow":false,"message":"Wait."}"#, "circuit_open", None),
        (r#"{"allow":false,"message":"Wait.","reason":"state_unavailable","retry_after_seconds":7}"#, "state_unavailable", Some(7.0)),
    ] {
        let AnswerMeaning::EndpointRefused(refused) = circuit.check("call-3").told(Some(answer)) else { panic!("refused") };
        assert_eq!((refused.reason.as_ref(), refused.message.as_str(), refused.endpoint.as_str()), (reason, "Wait.", "orders"));
        assert_eq!(refused.retry_after_seconds, seconds);
    }
    let ended = circuit.record("call-1", Some("p"), false, Some(Span::from_millis(12)));
    assert_eq!(
        (ended.path(), body(&ended)),
        (
            "/guard/api-circuit/record",
            json!({"endpoint_key": "orders", "session_id": "call-1", "outcome": "failure", "latency_ms": 12, "permit_id": "p"})
        )
    );
    assert!(matches!(ended.told(Some(r#"{"recorded":true}"#)), AnswerMeaning::Passed));
}

#[test]
fn a_tracker_of_tool_calls_that_a_service_keeps() {
    let tools = ServiceTools::new(Unanswered::Refused);
    let question = tools.should_skip("turn", &"t".repeat(300), Value::Null);
    let body: Value = serde_json::from_str(&question.body()).unwrap();
    assert!(body["tool"].as_str().unwrap().len() <= 256 && body.get("args").is_none(), "{body}");
    assert!(matches!(question.told(None), AnswerMeaning::Unanswered));
    let refused = r#"{"allow":false,"reason":"exact_duplicate","message":"Already.","calls":2,"limit":3}"#;
    let AnswerMeaning::Skip(skip) = tools.should_skip("turn", "search", json!({"q": 1})).told(Some(refused)) else { panic!("skipped") };
    assert_eq!((skip.reason.as_ref(), skip.message.as_str(), skip.count, skip.limit), ("exact_duplicate", "Already.", 2, 3));
    assert!(matches!(tools.should_skip("turn", "search", json!({"q": 1})).told(Some(r#"{"allow":true}"#)), AnswerMeaning::Passed));
    let ended = tools.record("turn", "search", json!({"q": 1}), true);
    let body: Value = serde_json::from_str(&ended.body()).unwrap();
    assert_eq!(body, json!({"session_id": "turn", "tool": "search", "args": {"q": 1}, "error": true}));
    assert!(matches!(ended.told(Some(r#"{"recorded":true}"#)), AnswerMeaning::Passed));
}

#[test]
fn a_run_of_more_agents_than_are_kept_forgets_one_at_a_time() {
    let mut run = run_with(None, None);
    for number in 0..=MOST_AGENTS {
        for _ in 0..2 {
            assert!(matches!(run.before_tool_of(Some(&format!("agent-{number:04}")), "search", 1, NOW), Progress::Done));
        }
    }
    assert_eq!(run.agents.len(), MOST_AGENTS);
    assert!(matches!(run.before_tool_of(Some("agent-0000"), "search", 1, NOW), Progress::Done), "it began anew");
    assert!(matches!(run.before_tool_of(Some("agent-1000"), "search", 1, NOW), Progress::Refused(_)), "the others did not");
}

fn given(result: u64) -> Gave<'static> {
    Gave { result: Some(result), ..Gave::default() }
}

#[test]
fn a_poll_whose_result_changes_is_no_loop() {
    let mut run = run_with(None, None);
    for turn in 0..50 {
        assert!(matches!(run.before_tool("status", 1, NOW), Progress::Done), "{turn}");
        assert!(matches!(run.after_tool("status", 1, given(turn), NOW), Progress::Done));
    }
    for _ in 0..2 {
        assert!(matches!(run.before_tool("status", 1, NOW), Progress::Done));
        assert!(matches!(run.after_tool("status", 1, given(49), NOW), Progress::Done));
    }
    assert!(matches!(run.before_tool("status", 1, NOW), Progress::Refused(Refusal::Trip(_))), "nothing has changed since");
}

#[test]
fn tools_have_rules_of_their_own() {
    let rules = |tool: &str, rule: ToolRule| run_with(None, None).with_tool_rules(BTreeMap::from([(tool.to_owned(), rule)]));
    let mut exempt = rules("log", ToolRule::default().exempt(true));
    let mut polling = rules("status", ToolRule::default().polling(Some(5)));
    for _ in 0..4 {
        assert!(matches!(exempt.before_tool("log", 1, NOW), Progress::Done));
        assert!(matches!(polling.before_tool("status", 1, NOW), Progress::Done));
        assert!(matches!(polling.after_tool("status", 1, given(7), NOW), Progress::Done));
    }
    assert!(matches!(polling.before_tool("status", 1, NOW), Progress::Done));
    assert!(matches!(polling.after_tool("status", 1, given(7), NOW), Progress::Done));
    let Progress::Refused(Refusal::Trip(trip)) = polling.before_tool("status", 1, NOW) else { panic!("five times the same") };
    assert!(trip.reason == "loop_detected" && trip.message.starts_with("'status' gave the same 5 times in a row."), "{trip:?}");

    let mut limited = rules("deploy", ToolRule::default().max_calls(Some(1)));
    assert!(matches!(limited.before_tool("deploy", 1, NOW), Progress::Done));
    let Progress::Refused(Refusal::Trip(trip)) = limited.before_tool("deploy", 2, NOW) else { panic!("one is allowed") };
    assert_eq!((trip.reason.as_ref(), &trip.what), ("tool_call_ceiling", &What::Calls { tool: "deploy".into(), limit: 1 }));

    let ignoring = rules("bash", ToolRule::default().ignore(vec!["description".to_owned()]));
    assert_eq!(ignoring.ignored_fields("bash"), &Volatile::of(["description"]));
    assert!(ignoring.ignored_fields("other").is_empty());
}
