use super::*;
use crate::detect::loops::{LoopDetector, LoopSettings};
use crate::detect::stall::{StallSessions, StallSettings};
use crate::run::{Ceilings, Loops, ServiceLoops, Stalls, Unanswered};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Plays the calls of an agent into a turn, with the shapes of the service.
struct Play {
    turn: Turn,
    step: usize,
}

const ACCESS_DENIED: &str = r#"{"error": "AccessDenied: dynamodb:GetItem on table orders"}"#;

impl Play {
    fn new() -> Self {
        Self::with(AttemptSettings::default())
    }

    fn with(settings: AttemptSettings) -> Self {
        Self { turn: Turn::new(settings), step: 0 }
    }

    fn say(&mut self, member: &str, mut body: Value) -> Option<Step> {
        body["traceId"] = json!(format!("trace-{}", self.step));
        let steps = self.turn.hear(&json!({"trace": {"trace": {"orchestrationTrace": {member: body}}}}));
        steps.into_iter().find(|step| matches!(step, Step::Stop { .. }))
    }

    /// Looks something up: the trip, and at which step.
    fn asks(&mut self, question: &str, chunks: &[&str]) -> Option<Step> {
        self.step += 1;
        let references: Vec<Value> = chunks.iter().map(|chunk| json!({"content": {"text": chunk}})).collect();
        self.say("invocationInput", json!({"knowledgeBaseLookupInput": {"knowledgeBaseId": "KB1", "text": question}}))
            .or_else(|| self.say("observation", json!({"knowledgeBaseLookupOutput": {"retrievedReferences": references}})))
    }

    fn acts(&mut self, function: &str, what: &str, answer: &str) -> Option<Step> {
        self.calls("orders", function, &BTreeMap::from([("what".to_owned(), what.to_owned())]), answer)
    }

    fn calls(&mut self, group: &str, function: &str, with: &BTreeMap<String, String>, answer: &str) -> Option<Step> {
        self.step += 1;
        let parameters: Vec<Value> = with.iter().map(|(name, value)| json!({"name": name, "type": "string", "value": value})).collect();
        let action = json!({"actionGroupName": group, "function": function, "parameters": parameters});
        self.say("invocationInput", json!({"actionGroupInvocationInput": action}))
            .or_else(|| self.say("observation", json!({"actionGroupInvocationOutput": {"text": answer}})))
    }

    fn does(&mut self, step: &ToldStep) -> Option<Step> {
        match step {
            ToldStep::Lookup { asks, finds } => self.asks(asks, &finds.iter().map(String::as_str).collect::<Vec<_>>()),
            ToldStep::Call { does: (group, function), with, gets } => self.calls(group, function, with, gets),
        }
    }
}

/// A play of the file that the SDKs play to their adapters.
#[derive(Debug, Deserialize)]
struct SharedPlay {
    name: String,
    rounds: usize,
    stops_after: Option<usize>,
    steps: Vec<ToldStep>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum ToldStep {
    Lookup { asks: String, finds: Vec<String> },
    Call { does: (String, String), with: BTreeMap<String, String>, gets: String },
}

#[test]
fn a_play_stops_where_the_file_says_and_work_does_not() {
    let mut file: Value = serde_json::from_str(include_str!("../../../../sdk/bedrock-plays.json")).unwrap();
    let plays: Vec<SharedPlay> = serde_json::from_value(file["plays"].take()).unwrap();
    for told in plays {
        let mut play = Play::new();
        let stopped = told.steps.iter().cycle().take(told.rounds).position(|step| play.does(step).is_some());
        assert_eq!(stopped.map(|before| before + 1), told.stops_after, "{}", told.name);
    }
}

const GLOBAL: &str = "Revenue in the third quarter reached 4.2 billion dollars worldwide, six percent above the year before.";

#[test]
fn one_question_in_three_phrasings_trips_at_the_third_lookup() {
    let mut play = Play::new();
    assert_eq!(play.asks("APAC Q3 revenue", &[GLOBAL]), None);
    assert_eq!(play.asks("Asia Pacific Q3 revenue breakdown", &[&format!("{GLOBAL} See the annex.")]), None, "slightly other words");
    let Some(Step::Stop { cycle, repeats, message }) = play.asks("Q3 APAC quarterly financial results", &[GLOBAL]) else {
        panic!("the third lookup")
    };
    assert_eq!((cycle, repeats), (vec!["knowledge base KB1".to_owned()], 3));
    assert!(message.contains("brought nothing new"), "{message}");
}

#[test]
fn the_same_in_another_frame_is_nothing_new_to_the_same_question() {
    let frames = [
        "Q3 global revenue was $1.2B (no regional breakdown).",
        "Global revenue in Q3: $1.2B. A regional breakdown is not available.",
        "Revenue, global, for Q3 came to $1.2B; there is no breakdown by region.",
    ];
    let questions = ["APAC Q3 revenue", "Asia Pacific Q3 revenue breakdown", "Q3 APAC quarterly financial results"];
    let mut play = Play::new();
    let tripped = questions.iter().zip(frames).position(|(question, frame)| play.asks(question, &[frame]).is_some());
    assert_eq!(tripped, Some(2));
    let mut other_numbers = Play::new();
    for (question, quarter) in questions.iter().zip(["$1.2B", "$1.3B", "$1.4B"]) {
        assert_eq!(other_numbers.asks(question, &[&format!("Global revenue came to {quarter} (no regional breakdown).")]), None);
    }
    let mut countries = Play::new();
    for country in ["France", "Germany", "Spain", "Italy", "Poland", "Norway", "Greece", "Chile"] {
        let chunk = format!("The refund policy for {country}: thirty days with a receipt, by the billing office of {country}.");
        assert_eq!(countries.asks(&format!("refund policy {country}"), &[&chunk]), None, "{country}");
    }
}

#[test]
fn different_questions_that_bring_different_chunks_are_research() {
    let mut play = Play::new();
    for number in 0..40 {
        let chunk =
            format!("Section {number} says that matter {number} is handled by office {number} on floor {number} of house {number}.");
        assert_eq!(play.asks(&format!("how is matter {number} handled"), &[&chunk]), None);
    }
}

#[test]
fn one_page_may_answer_a_few_questions() {
    let mut play = Play::new();
    for question in ["Q3 revenue", "Q3 operating costs", "Q3 operating margin", "Q3 headcount", "Q3 churn"] {
        assert_eq!(play.asks(question, &[GLOBAL]), None, "{question}");
    }
}

#[test]
fn what_must_not_differ_makes_another_question() {
    for questions in [
        [
            "payment terms of invoice 1001",
            "payment terms of invoice 1002",
            "payment terms of invoice 1003",
            "payment terms of invoice 1004",
        ],
        ["how to enable single sign-on", "how to disable single sign-on", "how to reset single sign-on", "how to remove single sign-on"],
        [
            "which plans include help",
            "which plans do not include help",
            "which 'pro' plans include help",
            "which 'team' plans include help",
        ],
    ] {
        let mut play = Play::new();
        for question in questions {
            assert_eq!(play.asks(question, &["partly relevant"]), None, "{question}");
        }
    }
}

#[test]
fn a_success_that_is_new_starts_anew() {
    let mut play = Play::new();
    for customer in 0..10 {
        assert_eq!(play.asks("refund policy for damaged items", &[GLOBAL]), None);
        assert_eq!(play.acts("refund", &customer.to_string(), r#"{"ok": true}"#), None);
    }
    let mut stuck = Play::new();
    let tripped =
        (0..10).find(|_| stuck.asks("refund policy for damaged items", &[GLOBAL]).or(stuck.acts("status", "7", "open")).is_some());
    assert_eq!(tripped, Some(3), "the same success again is no progress: the first one is, after which it takes three lookups");
}

#[test]
fn other_parameters_and_the_same_error_trip_within_five_steps() {
    let words = ["order 7", "order number 7", "purchase 7", "sale no. 7", "basket 7", "receipt 7"];
    for error in [
        |_: &str| ACCESS_DENIED.to_owned(),
        |_: &str| "User: arn:aws:sts::1:assumed-role/x is not authorized to perform: dynamodb:GetItem".to_owned(),
        |what: &str| format!("ResourceNotFoundException: item '{what}' (request 9f2c51d0aa{}) not found", what.len()),
        |what: &str| format!("Error: nothing is known of {what} in this table"),
        |what: &str| format!(r#"{{"statusCode": 500, "message": "upstream refused", "echo": "{what}"}}"#),
    ] {
        let mut play = Play::new();
        let tripped = words.iter().position(|what| play.acts("find", what, &error(what)).is_some());
        assert_eq!(tripped, Some(3), "the fourth failure: {}", error("x"));
    }
}

#[test]
fn errors_that_name_other_things_are_work() {
    let mut play = Play::new();
    for (number, answer) in
        ["Error: no name", "Error: no date", "Error: no amount", "Error: no currency", "Error: no account", "done"].iter().enumerate()
    {
        assert_eq!(play.acts("pay", &number.to_string(), answer), None, "each names another thing");
    }
}

#[test]
fn rounds_of_lookup_and_failure_trip_within_five_steps() {
    let mut play = Play::new();
    let rounds =
        [("refund policy", "order 7"), ("how are returns booked", "purchase 7"), ("ledger permissions", "sale 7"), ("roles", "basket 7")];
    let mut tripped = None;
    for (number, (question, what)) in rounds.into_iter().enumerate() {
        let chunk = format!("Chapter {number}: {question} is explained in annex {number} and nowhere else in this book.");
        tripped = play.asks(question, &[&chunk]).or_else(|| play.acts("refund", what, ACCESS_DENIED));
        if tripped.is_some() {
            break;
        }
    }
    let Some(Step::Stop { cycle, repeats, .. }) = tripped else { panic!("no trip") };
    assert_eq!((cycle, repeats, play.step), (vec!["knowledge base KB1".to_owned(), "orders::refund".to_owned()], 2, 5));

    let mut other_way = Play::new();
    let mut tripped = false;
    while !tripped {
        let step = other_way.step;
        let text = format!("Chapter {step}: page {step} of volume {step} tells about thing {step}.");
        tripped = other_way
            .acts("refund", &format!("order {step}"), ACCESS_DENIED)
            .or_else(|| other_way.asks(&format!("thing {step}"), &[&text]))
            .is_some();
    }
    assert_eq!(other_way.step, 5, "beginning with the action");
}

#[test]
fn rounds_that_only_fail_trip_whatever_the_errors() {
    let mut differently = Play::new();
    let mut tripped = false;
    while !tripped {
        let word = ["alpha", "beta", "gamma", "delta", "epsilon"][differently.step / 2];
        let chunk = format!("{word} one {word} two {word} three {word} four {word}");
        tripped =
            differently.asks(word, &[&chunk]).or_else(|| differently.acts("book", "a sum", &format!("Error: {word} went wrong"))).is_some();
    }
    assert_eq!(differently.step, 6, "three rounds that only fail, whatever the errors");
}

#[test]
fn rounds_with_other_errors_trip_within_five_steps_where_no_lookup_mends_them() {
    let trips_at = |errors: [&str; 3]| {
        let mut play = Play::new();
        for (number, error) in errors.into_iter().enumerate() {
            let word = ["alpha", "beta", "gamma"][number];
            let chunk = format!("{word} one {word} two {word} three {word} four {word}");
            if play.asks(word, &[&chunk]).or_else(|| play.acts("book", word, error)).is_some() {
                break;
            }
        }
        play.step
    };
    assert_eq!(trips_at([ACCESS_DENIED, "Task timed out after 3.00 seconds", "Error: 503 Service Unavailable"]), 5);
    assert_eq!(trips_at(["Error: rate exceeded", r#"{"error": "Internal server error"}"#, "Error: forbidden"]), 5);
    assert_eq!(trips_at(["Error: forbidden", "Error: no such currency", "Error: forbidden"]), 6, "one of them may be found out");
}

#[test]
fn rules_can_be_turned_off_and_what_makes_no_sense_is_refused() {
    let off = AttemptSettings { same_lookups: 0, barren_lookups: 0, same_errors: 0, failing_rounds: 0 };
    assert!(off.check().is_ok() && AttemptSettings::default().check().is_ok());
    assert!(off.same_errors(1).check().is_err() && off.failing_rounds(1001).check().is_err());
    let mut play = Play::with(off);
    for number in 0..30 {
        assert_eq!(play.asks("refund policy", &[]), None);
        assert_eq!(play.acts("find", &number.to_string(), ACCESS_DENIED), None);
    }
    assert!(Preset::ALL.iter().all(|preset| preset.settings().attempts.check().is_ok() && Preset::from_name(preset.name()) == Ok(*preset)));
    assert!(Preset::from_name("coding").unwrap_err().problem.contains("research, automation, interactive"));
}

#[test]
fn each_agent_and_each_knowledge_base_has_its_own_attempts() {
    let mut turn = Turn::new(AttemptSettings::default());
    for number in 0..5 {
        for base in ["A", "B"] {
            let (asked, tripped) = turn.attempts.asked(base, &format!("KB{number}"), "refund policy");
            assert_eq!(tripped, None);
            assert_eq!(turn.attempts.found(base, &format!("KB{number}"), asked, &["the same".to_owned()]), None);
        }
    }
}

#[test]
fn tokens_are_paid_once_by_the_model_that_was_asked() {
    let mut turn = Turn::new(AttemptSettings::default());
    let said = |member: &str, body: Value| json!({"trace": {"trace": {"orchestrationTrace": {member: body}}}});
    let called = said("modelInvocationInput", json!({"traceId": "1", "foundationModel": "claude"}));
    let used = said("modelInvocationOutput", json!({"traceId": "1", "metadata": {"usage": {"inputTokens": 10, "outputTokens": 2}}}));
    assert_eq!(turn.hear(&called), [Step::Model]);
    let paid = Step::Usage { model: Some("claude".to_owned()), input_tokens: 10, output_tokens: 2 };
    assert_eq!(turn.hear(&used), std::slice::from_ref(&paid));
    assert_eq!(turn.hear(&used), [], "said twice");
    assert_eq!(serde_json::to_value(&paid).unwrap(), json!({"step": "usage", "model": "claude", "input_tokens": 10, "output_tokens": 2}));
}

#[test]
fn a_returned_call_that_was_announced_is_one_call() {
    let mut turn = Turn::new(AttemptSettings::default());
    let parameters = json!([{"name": "order", "type": "string", "value": "7"}]);
    let announced = json!({"traceId": "1", "actionGroupInvocationInput": {"actionGroupName": "pay", "function": "refund", "parameters": parameters,
        "executionType": "RETURN_CONTROL", "invocationId": "i-1"}});
    let handed = json!({"returnControl": {"invocationId": "i-1", "invocationInputs": [
        {"functionInvocationInput": {"actionGroup": "pay", "function": "refund", "parameters": parameters}}]}});
    assert_eq!(turn.hear(&json!({"trace": {"trace": {"orchestrationTrace": {"invocationInput": announced}}}})).len(), 1);
    assert_eq!(turn.hear(&handed), []);
    assert!(matches!(&turn.hear(&handed)[..], [Step::Before { tool, .. }] if tool == "pay::refund"), "another one");
    for nothing in [
        json!({}),
        json!({"chunk": {}}),
        json!({"trace": null}),
        json!({"trace": {"trace": {"failureTrace": {"failureReason": "x"}}}}),
        json!(7),
    ] {
        assert_eq!(turn.hear(&nothing), []);
    }
}

#[test]
fn returned_calls_that_fail_as_before_are_attempts_in_vain() {
    let mut turn = Turn::new(AttemptSettings::default());
    let mut tripped = None;
    for number in 0..9 {
        let id = number.to_string();
        let call =
            json!({"actionGroup": "pay", "apiPath": "/refunds", "httpMethod": "POST", "parameters": [{"name": "order", "value": id}]});
        turn.hear(&json!({"returnControl": {"invocationId": id, "invocationInputs": [{ "apiInvocationInput": call }]}}));
        let result = json!({"actionGroup": "pay", "apiPath": "/refunds", "httpMethod": "POST", "httpStatusCode": 502,
            "responseBody": {"application/json": {"body": "upstream said no"}}});
        let told = turn.hear(&json!({"invocationId": id, "returnControlInvocationResults": [{ "apiResult": result }]}));
        if told.iter().any(|step| matches!(step, Step::Stop { .. })) {
            tripped = Some(number);
            break;
        }
    }
    assert_eq!(tripped, Some(3), "the fourth failure");
}

fn changes(given: Value) -> AttemptChanges {
    serde_json::from_value(given).unwrap()
}

#[test]
fn thresholds_go_with_the_run_and_what_is_given_goes_before_them() {
    let loops = |repeats| Loops::InProcess(Arc::new(Mutex::new(LoopDetector::new(LoopSettings::default().repeats(repeats)).unwrap())));
    let stalls = || Some(Stalls::InProcess(Arc::new(Mutex::new(StallSessions::new(StallSettings::default()).unwrap()))));
    let run = |repeats, stall| Run::new("run", Ceilings::default(), loops(repeats), stall, None);
    let usual = AttemptSettings::default();
    let of = |run: &Run, given: Value| Turn::of_run(run, changes(given)).map(|turn| turn.settings());
    assert_eq!(of(&run(3, None), json!({})), Ok(usual));
    assert_eq!(of(&run(2, None), json!({})), Ok(usual), "fewer calls are no reason for fewer lookups");
    assert_eq!(of(&run(6, stalls()), json!({})), Ok(usual.same_lookups(6).same_errors(0)));
    assert_eq!(of(&run(6, stalls()), json!({"same_lookups": 4, "same_errors": null})), Ok(usual.same_lookups(4).same_errors(0)));
    assert!(of(&run(3, None), json!({"failing_rounds": 1})).is_err());
    let service = ServiceLoops::new(Some(5), None, None, None, Unanswered::Passes);
    let run = Run::new("run", Ceilings::default(), Loops::Service(service), None, None);
    assert_eq!(of(&run, json!({})), Ok(usual.same_lookups(5)));
}

#[test]
fn what_is_given_goes_before_a_preset() {
    let beside = |given: &[&str], attempts: Value| {
        let given: Vec<String> = given.iter().map(|name| (*name).to_owned()).collect();
        serde_json::to_value(Preset::Research.beside(&given, changes(attempts))).unwrap()
    };
    let attempts = json!({"same_lookups": 3, "barren_lookups": 8, "same_errors": 5, "failing_rounds": 2});
    assert_eq!(beside(&[], json!({})), json!({"repeats": 3, "max_cycle_len": 6, "max_usd": 5.0, "attempts": attempts}));
    assert_eq!(beside(&["repeats", "max_usd", "stall"], json!({})), json!({"max_cycle_len": 6, "attempts": attempts}));
    assert_eq!(beside(&["loop"], json!({})), json!({"max_usd": 5.0, "attempts": attempts}), "it has both settings");
    assert_eq!(beside(&["loop", "budget"], json!({"same_errors": 9}))["attempts"]["same_errors"], 9);
    assert_eq!(beside(&["loop", "budget"], json!({"same_errors": 9}))["attempts"]["barren_lookups"], 8, "the others are the preset's");
}
