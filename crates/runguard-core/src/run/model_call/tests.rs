use super::*;
use crate::ledger::Limits;
use crate::run::{Ask, Ceilings, Loops, ServiceBudget, Unanswered};
use proptest::prelude::*;
use serde_json::{Value, json};

const NOW: Timestamp = Timestamp::from_millis(0);

/// Ten dollars for a million tokens, read or written.
fn price(model: &str, usage: &Usage) -> Result<NanoDollars, UnknownModelError> {
    match model {
        "small" => Ok(nano_dollars(usage.total_tokens() * 10_000)),
        _ => Err(UnknownModelError { model: model.to_owned(), suggestions: Vec::new() }),
    }
}

fn usd(dollars: f64) -> NanoDollars {
    NanoDollars::from_dollars(dollars).unwrap()
}

fn limited(dollars: f64) -> (Budget, Run) {
    let budget = Budget::new(Limits { usd: Some(usd(dollars)), ..Limits::default() });
    let run = Run::new("run", Ceilings::default(), Loops::default(), None, Some(Money::InProcess(budget.clone())));
    (budget, run)
}

/// A prompt of 872 bytes: 500 tokens at most, 291 probably.
fn asked(max_output: u64) -> ModelQuestion<'static> {
    ModelQuestion {
        model: "small",
        prompt: Prompt::of_bytes(872),
        max_output: Some(max_output),
        choices: 1,
        has_waited: false,
        asks_again: false,
        may_fall_back: true,
    }
}

fn started(progress: Progress) -> ModelCall {
    match progress {
        Progress::Started(call) => call,
        other => panic!("{other:?}"),
    }
}

fn counted(usage: &Usage) -> Used<'_> {
    Used::Counted { model: None, usage }
}

#[test]
fn calls_side_by_side_share_what_there_is() {
    let (budget, mut run) = limited(0.1);
    let first = started(run.begin_model(asked(2_500), &price, NOW));
    assert_eq!(budget.snapshot().reserved.usd, usd(0.03));
    assert!(matches!(run.begin_model(asked(2_500), &price, NOW), Progress::Busy), "the first goes alone");
    assert!(matches!(run.finish_model(first, counted(&Usage::new(300, 1_000)), &price), Progress::Done));
    assert_eq!(budget.snapshot().spent().usd, usd(0.013));
    let calls: Vec<_> = (0..2).map(|_| started(run.begin_model(asked(2_500), &price, NOW))).collect();
    assert!(matches!(run.begin_model(asked(2_500), &price, NOW), Progress::Busy), "0.087 do not hold 3 × 0.03");
    let impatient = run.begin_model(ModelQuestion { has_waited: true, ..asked(2_500) }, &price, NOW);
    assert!(matches!(&impatient, Progress::Refused(Refusal::NotNow(trip)) if trip.reason == "budget_exceeded"), "{impatient:?}");
    for call in calls {
        assert!(matches!(run.finish_model(call, Used::Nothing, &price), Progress::Done));
    }
    assert_eq!((budget.snapshot().reserved, run.trip()), (Cost::ZERO, None));
}

#[test]
fn alone_an_answer_is_as_long_as_can_be_paid() {
    let (budget, mut run) = limited(0.01);
    let call = started(run.begin_model(asked(4_096), &price, NOW));
    assert_eq!((call.max_output(), budget.remaining().usd), (Some(709), Some(NanoDollars::ZERO)), "a cent is 1,000 tokens");
    assert_eq!(run.model_calls_made.most_raised_by, AS_IT_IS);
    let over = run.finish_model(call, counted(&Usage::new(300, 800)), &price);
    assert_eq!(run.model_calls_made.raise("small", 1_000), 1_100, "by its dollars: its tokens had no bound");
    assert!(matches!(&over, Progress::Refused(Refusal::Trip(trip)) if trip.reason == "budget_exceeded"), "{over:?}");

    let (_, mut run) = limited(0.003);
    let refused = run.begin_model(asked(4_096), &price, NOW);
    let Progress::Refused(Refusal::NotNow(trip)) = refused else { panic!("9 tokens are no answer: {refused:?}") };
    assert!(trip.message.contains("$0.00307"), "291 tokens read and 16 written: {}", trip.message);
    assert_eq!(run.trip(), None, "a shorter prompt may fit");
}

#[test]
fn bounds_that_were_too_low_are_raised() {
    let (budget, mut run) = limited(1.0);
    let first = started(run.begin_model(asked(500), &price, NOW));
    // 0.25 instead of at most 0.01.
    assert!(matches!(run.finish_model(first, counted(&Usage::new(24_000, 1_000)), &price), Progress::Done));
    let calls: Vec<_> = (0..3).map(|_| started(run.begin_model(asked(500), &price, NOW))).collect();
    assert!(matches!(run.begin_model(asked(500), &price, NOW), Progress::Busy));
    for call in calls {
        assert!(matches!(run.finish_model(call, counted(&Usage::new(24_000, 1_000)), &price), Progress::Done));
    }
    assert_eq!(budget.snapshot().spent().usd, usd(1.0), "to the cent");
    assert!(matches!(run.begin_model(asked(500), &price, NOW), Progress::Refused(Refusal::Trip(_))));
}

#[test]
fn bounds_are_raised_for_their_model() {
    let (budget, mut run) = limited(1.0);
    let price: Pricing<'_> = &|_, usage| price("small", usage);
    let finished = |run: &mut Run, model, used| {
        let call = started(run.begin_model(ModelQuestion { model, ..asked(500) }, price, NOW));
        assert!(matches!(run.finish_model(call, counted(&Usage::new(used, 0)), price), Progress::Done));
    };
    let set_aside = |run: &mut Run, model| {
        let call = started(run.begin_model(ModelQuestion { model, ..asked(500) }, price, NOW));
        let reserved = budget.snapshot().reserved.usd;
        assert!(matches!(run.finish_model(call, Used::Nothing, price), Progress::Done));
        reserved
    };
    finished(&mut run, "small", 10_000);
    assert_eq!(set_aside(&mut run, "small"), usd(0.1), "ten times the bound of a cent");
    assert_eq!(set_aside(&mut run, "large"), usd(0.1), "nobody knows it yet");
    finished(&mut run, "large", 900);
    assert_eq!((set_aside(&mut run, "large"), set_aside(&mut run, "small")), (usd(0.01), usd(0.1)));
}

#[test]
fn each_answer_that_is_asked_for_is_set_aside() {
    let (budget, mut run) = limited(1.0);
    let several = |max_output, choices| ModelQuestion { max_output, choices, ..asked(0) };
    let call = started(run.begin_model(several(Some(500), 8), &price, NOW));
    assert_eq!(budget.snapshot().reserved.usd, usd(0.045), "500 read and 4,000 written");
    assert!(matches!(run.finish_model(call, counted(&Usage::new(300, 4_000)), &price), Progress::Done));
    let call = started(run.begin_model(several(None, 64), &price, NOW));
    assert_eq!(call.max_output(), Some(1_490), "of 0.957, 0.00291 are read and the rest is for 64");
    assert!(matches!(run.finish_model(call, Used::Nothing, &price), Progress::Done));
    let (_, mut run) = limited(0.01);
    let refused = run.begin_model(several(None, 64), &price, NOW);
    assert!(matches!(refused, Progress::Refused(Refusal::NotNow(_))), "11 tokens each are no answers: {refused:?}");

    let (budget, mut run) = limited(1_000.0);
    for (choices, written) in [(0, 1), (u64::MAX, MOST_PRICED_CHOICES)] {
        let call = started(run.begin_model(several(Some(100), choices), &price, NOW));
        assert_eq!(budget.snapshot().reserved.tokens, 500 + 100 * written, "{choices}");
        assert!(matches!(run.finish_model(call, Used::Nothing, &price), Progress::Done));
    }

    let mut run = over_service();
    let reserve = json!({"input_tokens": 500, "output_tokens": 64 * 8_192});
    let _ = sent(run.begin_model(several(None, 64), &price, NOW), "/guard/budget/reserve", reserve);
}

#[test]
fn what_a_provider_asks_for_is_paid() {
    let (budget, mut run) = limited(1.0);
    let cost = Cost { usd: usd(0.25), tokens: 700 };
    let call = started(run.begin_model(asked(500), &price, NOW));
    assert!(matches!(run.finish_model(call, Used::Paid { cost }, &price), Progress::Done));
    let books = budget.snapshot();
    assert_eq!((books.spent(), books.reserved), (cost, Cost::ZERO));
    let call = started(run.begin_model(asked(500), &price, NOW));
    assert_eq!(budget.snapshot().reserved.usd, usd(0.25), "its price is what the next one is set aside by");
    assert!(matches!(run.finish_model(call, Used::Paid { cost: Cost { usd: usd(0.80), tokens: 1 } }, &price), Progress::Refused(_)));

    let mut run = over_service();
    let ask = sent(run.begin_model(asked(500), &price, NOW), "/guard/budget/reserve", json!({"model": "small"}));
    let call = started(run.told(ask, Some(r#"{"allow":true,"reservation_id":"r1"}"#)));
    let commit = json!({"reservation_id": "r1", "model": "small", "usd": 0.25, "input_tokens": 700});
    let _ = sent(run.finish_model(call, Used::Paid { cost }, &price), "/guard/budget/commit", commit);
}

#[test]
fn what_is_dearer_than_its_bound_ends_nothing_while_there_is_money() {
    let (budget, mut run) = limited(1.0);
    let first = started(run.begin_model(asked(500), &price, NOW));
    assert!(matches!(run.finish_model(first, counted(&Usage::new(100, 100)), &price), Progress::Done));
    let dear = started(run.begin_model(asked(500), &price, NOW));
    let beside = started(run.begin_model(asked(90_000), &price, NOW));
    // 0.402 are spent, and 0.905 are set aside: together too much, but the limit is far.
    assert!(matches!(run.finish_model(dear, counted(&Usage::new(40_000, 0)), &price), Progress::Done));
    assert_eq!((budget.snapshot().spent().usd, run.trip()), (usd(0.402), None));
    assert!(matches!(run.finish_model(beside, counted(&Usage::new(500, 500)), &price), Progress::Done));
    assert_eq!(run.model_calls_made.raise("small", 10), 400);
    let last = started(run.begin_model(asked(500), &price, NOW));
    let over = run.finish_model(last, counted(&Usage::new(60_000, 0)), &price);
    assert!(matches!(&over, Progress::Refused(Refusal::Trip(trip)) if trip.is_used_up()), "{over:?}");

    let mut run = over_service();
    let ask = sent(run.begin_model(asked(500), &price, NOW), "/guard/budget/reserve", json!({}));
    let call = started(run.told(ask, Some(r#"{"allow":true,"reservation_id":"r1"}"#)));
    let ask = sent(run.finish_model(call, counted(&Usage::new(40_000, 0)), &price), "/guard/budget/commit", json!({}));
    let beside = r#"{"allow":false,"reason":"budget_exceeded","spent_usd":0.4,"reserved_usd":0.9,"remaining_usd":0,"limit_usd":1,"message":"Over."}"#;
    assert!(matches!(run.told(ask, Some(beside)), Progress::Done));
    assert_eq!(run.trip(), None);
}

#[test]
fn over_a_service_no_more_calls_begin_than_may() {
    let budget = ServiceBudget::new("run", Limits::default(), Unanswered::Passes);
    let mut run = Run::new("run", Ceilings::default().model_calls(Some(3)), Loops::default(), None, Some(Money::Service(budget)));
    let begin = |run: &mut Run| run.begin_model(asked(9), &price, NOW);
    let granted = |run: &mut Run, ask| started(run.told(ask, Some(r#"{"allow":true,"reservation_id":"r"}"#)));
    let ask = sent(begin(&mut run), "/guard/budget/reserve", json!({}));
    let call = granted(&mut run, ask);
    let ask = sent(run.finish_model(call, counted(&Usage::new(9, 9)), &price), "/guard/budget/commit", json!({}));
    assert!(matches!(run.told(ask, Some(r#"{"allow":true}"#)), Progress::Done));
    let (second, third) = (begin(&mut run), begin(&mut run));
    assert!(matches!(begin(&mut run), Progress::Busy), "two are asked about, and one is made");
    let impatient = run.begin_model(ModelQuestion { has_waited: true, ..asked(9) }, &price, NOW);
    assert!(matches!(&impatient, Progress::Refused(Refusal::NotNow(trip)) if trip.reason == "model_call_ceiling"), "{impatient:?}");
    let Progress::Ask(second) = second else { panic!("{second:?}") };
    run.withdrawn(&second);
    let fourth = begin(&mut run);
    for ask in [third, fourth] {
        let Progress::Ask(ask) = ask else { panic!("{ask:?}") };
        let _ = granted(&mut run, ask);
    }
    assert!(matches!(begin(&mut run), Progress::Refused(Refusal::Trip(_))));
}

#[test]
fn what_nobody_counted_is_counted_from_bytes() {
    let (budget, mut run) = limited(1.0);
    let call = started(run.begin_model(asked(500), &price, NOW));
    assert!(matches!(run.finish_model(call, Used::Came { bytes: 300 }, &price), Progress::Done));
    assert_eq!((budget.snapshot().spent().tokens, run.estimated_calls()), (291 + 100, 1));
}

#[test]
fn what_broke_off_is_billed_for_what_came() {
    let (budget, mut run) = limited(1.0);
    let counted_so_far = Usage { input_tokens: 40, output_tokens: 1, cached_tokens: 9, ..Usage::default() };
    for (bytes, written) in [(300, 100), (2, 1)] {
        let before = budget.snapshot().spent().tokens;
        let call = started(run.begin_model(asked(500), &price, NOW));
        let used = Used::BrokenOff { model: None, usage: &counted_so_far, bytes };
        assert!(matches!(run.finish_model(call, used, &price), Progress::Done));
        assert_eq!(budget.snapshot().spent().tokens - before, 49 + written);
    }
    assert_eq!(run.estimated_calls(), 0, "the provider has counted the prompt");
}

#[test]
fn a_model_without_a_price_is_refused_before_it_is_paid() {
    let (_, mut run) = limited(1.0);
    let unknown = ModelQuestion { model: "own", ..asked(500) };
    assert!(matches!(run.begin_model(unknown, &price, NOW), Progress::Refused(Refusal::Unpriced(_))));
    let call = started(run.begin_model(asked(500), &price, NOW));
    let usage = Usage::new(100, 0);
    let answered = Used::Counted { model: Some("own"), usage: &usage };
    assert!(matches!(run.finish_model(call, answered, &price), Progress::Done), "the name it was asked by has a price");

    let recorded = run.record_usage("own", &usage, || price("own", &usage));
    assert!(matches!(recorded, Progress::Refused(Refusal::Unpriced(_))));
    assert!(matches!(run.begin_model(asked(500), &price, NOW), Progress::Refused(Refusal::Unpriced(_))), "dollars are not known any more");
    run.reset();
    let _ = started(run.begin_model(asked(500), &price, NOW));

    let tokens = Budget::new(Limits { tokens: Some(2_000), ..Limits::default() });
    let mut run = Run::new("run", Ceilings::default(), Loops::default(), None, Some(Money::InProcess(tokens)));
    let call = started(run.begin_model(unknown, &price, NOW));
    assert!(matches!(run.finish_model(call, counted(&usage), &price), Progress::Done), "tokens need no price");
}

#[test]
fn without_limits_nothing_waits() {
    let mut run = Run::new("run", Ceilings::default().model_calls(Some(2)), Loops::default(), None, None);
    let calls: Vec<_> = (0..2).map(|_| started(run.begin_model(asked(500), &price, NOW))).collect();
    let refused = run.begin_model(asked(500), &price, NOW);
    assert!(matches!(&refused, Progress::Refused(Refusal::Trip(trip)) if trip.reason == "model_call_ceiling"), "{refused:?}");
    for call in calls {
        assert!(matches!(run.finish_model(call, counted(&Usage::new(1, 1)), &price), Progress::Done));
    }
}

#[test]
fn most_of_it_is_told_once_and_a_cheaper_model_goes_on() {
    let (budget, run) = limited(0.1);
    let warn = crate::run::Warn::default().at_thousandths(Some(800)).fallback_model(Some("small".to_owned()));
    let mut run = run.with_warning(warn);
    let dear: Pricing<'_> =
        &|model, usage| price("small", usage).map(|cost| if model == "large" { cost.saturating_add(cost) } else { cost });
    let call = started(run.begin_model(ModelQuestion { model: "large", ..asked(500) }, dear, NOW));
    assert_eq!((call.model(), run.take_warning()), ("large", None));
    assert!(matches!(run.finish_model(call, counted(&Usage::new(3_000, 1_000)), dear), Progress::Done));
    let warning = run.take_warning().unwrap();
    assert_eq!((warning.message.as_str(), warning.spent, warning.limit), ("$0.08 of $0.10 are spent.", 0.08, 0.1));
    assert_eq!(run.take_warning(), None);
    let call = started(run.begin_model(ModelQuestion { model: "large", ..asked(500) }, dear, NOW));
    assert_eq!(call.model(), "small");
    assert!(matches!(run.finish_model(call, counted(&Usage::new(500, 500)), dear), Progress::Done));
    assert_eq!(budget.snapshot().spent().usd, usd(0.09), "at the price of the model that answered");
}

#[test]
fn time_is_limited_from_the_first_question_on() {
    let mut run = Run::new("run", Ceilings::default().time(Some(crate::time::Span::from_seconds(60))), Loops::default(), None, None);
    let at = |seconds: i64| Timestamp::from_millis(seconds * 1_000);
    assert!(matches!(run.before_tool("search", 1, at(1_000)), Progress::Done));
    let _ = started(run.begin_model(asked(500), &price, at(1_059)));
    let refused = run.before_model(at(1_060));
    assert!(matches!(&refused, Progress::Refused(Refusal::Trip(trip)) if trip.reason == "time_limit"), "{refused:?}");
}

fn sent(progress: Progress, path: &str, fields: Value) -> Box<Ask> {
    let Progress::Ask(ask) = progress else { panic!("{progress:?}") };
    assert_eq!(ask.question.path(), path);
    let body: Value = serde_json::from_str(&ask.question.body()).unwrap();
    for (name, value) in fields.as_object().unwrap() {
        assert_eq!(&body[name], value, "{body}");
    }
    ask
}

fn over_service() -> Run {
    let budget = ServiceBudget::new("run", Limits { usd: Some(usd(1.0)), ..Limits::default() }, Unanswered::Refused);
    Run::new("run", Ceilings::default(), Loops::default(), None, Some(Money::Service(budget)))
}

#[test]
fn a_service_sets_the_bound_aside_and_prices_it() {
    let mut run = over_service();
    let reserve = json!({"max_usd": 1.0, "model": "small", "input_tokens": 500, "output_tokens": 2_500});
    let ask = sent(run.begin_model(asked(2_500), &price, NOW), "/guard/budget/reserve", reserve);
    assert!(matches!(run.begin_model(asked(2_500), &price, NOW), Progress::Busy), "from the question on");
    let call = started(run.told(ask, Some(r#"{"allow":true,"reservation_id":"r1"}"#)));
    assert!(matches!(run.begin_model(asked(2_500), &price, NOW), Progress::Busy), "the first goes alone");
    let commit = json!({"reservation_id": "r1", "model": "small", "input_tokens": 300, "output_tokens": 40});
    let ask = sent(run.finish_model(call, counted(&Usage::new(300, 40)), &price), "/guard/budget/commit", commit);
    assert!(matches!(run.told(ask, Some(r#"{"allow":true}"#)), Progress::Done));

    let [forgotten, logged] =
        [json!("forgotten"), Value::Null].map(|refused| json!({"if_refused": refused, "input_tokens": 500, "usd": null}));
    let ask = sent(run.begin_model(asked(2_500), &price, NOW), "/guard/budget/reserve", forgotten.clone());
    let others = r#"{"allow":false,"reason":"budget_exceeded","spent_usd":0.4,"reserved_usd":0.59,"remaining_usd":0.01,"limit_usd":1,"message":"Full."}"#;
    assert!(matches!(run.told(ask, Some(others)), Progress::Busy));
    let waited = ModelQuestion { has_waited: true, ..asked(2_500) };
    let ask = sent(run.begin_model(waited, &price, NOW), "/guard/budget/reserve", forgotten.clone());
    let ask = sent(run.told(ask, Some(others)), "/guard/budget/reserve", logged.clone());
    assert!(matches!(run.told(ask, Some(others)), Progress::Refused(Refusal::NotNow(_))), "the last time the log hears it");
    let ask = sent(run.begin_model(ModelQuestion { asks_again: true, ..waited }, &price, NOW), "/guard/budget/reserve", forgotten.clone());
    assert!(matches!(run.told(ask, Some(others)), Progress::Refused(Refusal::NotNow(_))), "who asks again has not asked for the last time");

    let ask = sent(run.begin_model(asked(4_096), &price, NOW), "/guard/budget/reserve", json!({}));
    let alone = r#"{"allow":false,"reason":"budget_exceeded","spent_usd":0.99,"reserved_usd":0,"remaining_usd":0.01,"limit_usd":1,"message":"Full."}"#;
    let ask = sent(run.told(ask, Some(alone)), "/guard/budget/reserve", json!({"usd": 0.01, "if_refused": "forgotten"}));
    let call = started(run.told(ask, Some(r#"{"allow":true,"reservation_id":"r2"}"#)));
    assert_eq!(call.max_output(), Some(709));
    let ask = sent(run.finish_model(call, Used::Nothing, &price), "/guard/budget/release", json!({"reservation_id": "r2"}));
    assert!(matches!(run.told(ask, Some(r#"{"allow":true}"#)), Progress::Done));

    let ask =
        sent(run.begin_model(ModelQuestion { model: "own", ..asked(9) }, &price, NOW), "/guard/budget/reserve", json!({"model": "own"}));
    let unknown = r#"{"allow":false,"reason":"unknown_model","model":"own","message":"No price."}"#;
    let ask = sent(run.told(ask, Some(unknown)), "/guard/budget/reserve", json!({"if_refused": null}));
    assert!(matches!(run.told(ask, Some(unknown)), Progress::Refused(Refusal::Unpriced(_))));

    let ask = sent(run.begin_model(asked(9), &price, NOW), "/guard/budget/reserve", json!({}));
    let spent =
        r#"{"allow":false,"reason":"budget_exceeded","spent_usd":1,"reserved_usd":0,"remaining_usd":0,"limit_usd":1,"message":"All."}"#;
    let ask = sent(run.told(ask, Some(spent)), "/guard/budget/reserve", logged.clone());
    assert!(matches!(run.told(ask, Some(spent)), Progress::Refused(Refusal::Trip(_))));
}

#[test]
fn over_a_service_a_shorter_answer_has_the_price_of_its_prompts_size() {
    let mut run = over_service();
    let dearer_if_long: Pricing<'_> = &|_, usage| {
        let written = if usage.prompt_tokens() > 200 { 20_000 } else { 10_000 };
        Ok(nano_dollars(usage.prompt_tokens() * 10_000 + usage.output_tokens * written))
    };
    let ask = sent(run.begin_model(asked(4_096), dearer_if_long, NOW), "/guard/budget/reserve", json!({}));
    let left = r#"{"allow":false,"reason":"budget_exceeded","spent_usd":0.99,"reserved_usd":0,"remaining_usd":0.01,"limit_usd":1,"message":"Full."}"#;
    let ask = sent(run.told(ask, Some(left)), "/guard/budget/reserve", json!({"usd": 0.01}));
    let call = started(run.told(ask, Some(r#"{"allow":true,"reservation_id":"r1"}"#)));
    assert_eq!(call.max_output(), Some(354));
}

#[test]
fn calls_that_a_service_is_asked_about_side_by_side_keep_the_ceiling() {
    let budget = ServiceBudget::new("run", Limits { usd: Some(usd(1.0)), ..Limits::default() }, Unanswered::Refused);
    let ceilings = Ceilings::default().model_calls(Some(3));
    let mut run = Run::new("run", ceilings, Loops::default(), None, Some(Money::Service(budget)));
    let granted = Some(r#"{"allow":true,"reservation_id":"r1"}"#);
    let reserve = |run: &mut Run| sent(run.begin_model(asked(9), &price, NOW), "/guard/budget/reserve", json!({}));
    let first = reserve(&mut run);
    let first = started(run.told(first, granted));
    let ask = sent(run.finish_model(first, counted(&Usage::new(1, 1)), &price), "/guard/budget/commit", json!({}));
    assert!(matches!(run.told(ask, Some(r#"{"allow":true}"#)), Progress::Done));

    let (second, third) = (reserve(&mut run), reserve(&mut run));
    assert!(matches!(run.begin_model(asked(9), &price, NOW), Progress::Busy), "both may be granted");
    run.withdrawn(&third);
    let third = reserve(&mut run);
    let calls = [started(run.told(second, granted)), started(run.told(third, granted))];
    let refused = run.begin_model(asked(9), &price, NOW);
    assert!(matches!(&refused, Progress::Refused(Refusal::Trip(trip)) if trip.reason == "model_call_ceiling"), "{refused:?}");
    for call in calls {
        assert!(matches!(run.finish_model(call, Used::Nothing, &price), Progress::Ask(_)));
    }
}

#[test]
fn a_question_that_came_to_nothing_holds_up_nobody() {
    let mut run = over_service();
    let ask = sent(run.begin_model(asked(9), &price, NOW), "/guard/budget/reserve", json!({}));
    run.withdrawn(&ask);
    let _ = sent(run.begin_model(asked(9), &price, NOW), "/guard/budget/reserve", json!({}));
}

#[test]
fn a_service_that_is_away_when_it_is_let_pass_is_told_afterwards() {
    let budget = ServiceBudget::new("run", Limits::default(), Unanswered::Passes);
    let mut run = Run::new("run", Ceilings::default(), Loops::default(), None, Some(Money::Service(budget)));
    let ask = sent(run.begin_model(asked(9), &price, NOW), "/guard/budget/reserve", json!({}));
    let call = started(run.told(ask, None));
    let usage = Usage::new(300, 40);
    let _ = sent(run.finish_model(call, counted(&usage), &price), "/guard/budget/record", json!({"model": "small", "input_tokens": 300}));
}

#[test]
fn what_is_no_prose_is_set_aside_with_a_token_a_sign() {
    let (budget, mut run) = limited(1.0);
    let mut prompt = Prompt::default();
    prompt.add("550E8400-E29B-41D4-A716-446655440000");
    let call = started(run.begin_model(ModelQuestion { prompt, ..asked(100) }, &price, NOW));
    assert_eq!(budget.snapshot().reserved.tokens, 36 + 64 + 100);
    let image = ModelQuestion { prompt: Prompt { attachments: 1, ..Prompt::default() }, ..asked(100) };
    assert!(!matches!(run.finish_model(call, Used::Nothing, &price), Progress::Refused(_)));
    let _call = started(run.begin_model(image, &price, NOW));
    assert_eq!(budget.snapshot().reserved.tokens, 5_000 + 64 + 100);
}

proptest! {
    /// Whoever pays no more than its bound keeps the limit, however many ask at once.
    #[test]
    fn bounds_that_hold_keep_the_limit(
        steps in prop::collection::vec((0u64..4_000, 0u64..4_000, 1u64..4, any::<bool>(), 0.0f64..1.0), 1..60)
    ) {
        let (budget, mut run) = limited(0.1);
        let mut under_way = Vec::new();
        for (bytes, max_output, choices, ends_one, share) in steps {
            let prompt = Prompt::of_bytes(bytes);
            let asked = ModelQuestion { model: "small", prompt, max_output: Some(max_output), choices, has_waited: false, asks_again: false, may_fall_back: false };
            match run.begin_model(asked, &price, NOW) {
                Progress::Started(call) => under_way.push((call, bytes, max_output, choices)),
                Progress::Busy | Progress::Refused(_) => {}
                other => panic!("{other:?}"),
            }
            if ends_one && !under_way.is_empty() {
                let (call, bytes, max_output, choices) = under_way.swap_remove(0);
                let longest = call.max_output().unwrap_or(max_output);
                let usage = Usage::new(bytes / 3, choices * (longest as f64 * share) as u64);
                prop_assert!(!matches!(run.finish_model(call, counted(&usage), &price), Progress::Refused(_)));
            }
            let books = budget.snapshot();
            prop_assert!(nanos(books.spent().usd) + nanos(books.reserved.usd) <= 100_000_000);
        }
    }
}
