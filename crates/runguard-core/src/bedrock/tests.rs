use super::*;

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
        self.step += 1;
        let action =
            json!({"actionGroupName": "orders", "function": function, "parameters": [{"name": "what", "type": "string", "value": what}]});
        self.say("invocationInput", json!({"actionGroupInvocationInput": action}))
            .or_else(|| self.say("observation", json!({"actionGroupInvocationOutput": {"text": answer}})))
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
fn phrasings_that_bring_the_same_chunk_trip_whatever_they_ask() {
    let phrasings = [
        "refund policy for damaged items",
        "money back when goods arrive broken",
        "what happens if the parcel is crushed",
        "reimbursement rules",
        "return a cracked vase",
        "can customers be compensated",
        "warranty on shipping accidents",
        "claims after transport",
        "exchange of faulty merchandise",
        "who pays for breakage",
        "credit notes",
        "consumer rights on arrival",
    ];
    let mut play = Play::new();
    let tripped = phrasings.iter().position(|question| play.asks(question, &["Damaged items are refunded within 30 days."]).is_some());
    assert_eq!(tripped, Some(5), "the first brings something, five in a row nothing");
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
fn going_through_a_topic_is_no_loop_while_something_new_comes() {
    let aspects = ["scope", "deadlines", "exceptions", "fees", "contact", "history", "forms", "appeals"];
    let mut play = Play::new();
    for aspect in aspects {
        let chunks = [
            "Overview of the travel policy for all employees of the group worldwide.".to_owned(),
            format!("The {aspect} of the travel policy: {aspect} are set by the {aspect} board each {aspect} season anew."),
        ];
        let found = play.asks(&format!("travel policy employees {aspect}"), &[&chunks[0], &chunks[1]]);
        assert_eq!(found, None, "{aspect}: the overview comes each time, the rest is new");
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
fn other_errors_and_successes_between_are_work() {
    let mut play = Play::new();
    for (number, answer) in
        ["Error: no name", "Error: no date", "Error: no amount", "Error: no currency", "Error: no account", "done"].iter().enumerate()
    {
        assert_eq!(play.acts("pay", &number.to_string(), answer), None, "each names another thing");
    }
    for number in 0..20 {
        let answer = if number % 3 == 2 { format!("paid {number}") } else { ACCESS_DENIED.to_owned() };
        assert_eq!(play.acts("pay", &format!("record {number}"), &answer), None, "it gets somewhere");
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
fn looking_up_what_an_error_names_and_getting_further_is_work() {
    let mut play = Play::new();
    let steps = [
        ("field names", "Error: unknown field 'sum'"),
        ("currencies", "Error: currency must be one of three letters"),
        ("accounts", "booked"),
    ];
    for (question, answer) in steps {
        let chunk = format!("The list of {question} is kept in the {question} register, which is printed every spring.");
        assert_eq!(play.asks(question, &[&chunk]), None);
        assert_eq!(play.acts("book", question, answer), None);
    }
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
