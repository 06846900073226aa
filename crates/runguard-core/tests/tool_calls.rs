//! The tool-call tracker and the recipe cache, from outside.

use proptest::prelude::*;
use runguard_core::detect::tool_calls::{
    CallOutcome, InvalidCall, MOST_TOOLS, RecipeCache, Skip, SkipReason, ToolExecutionTracker, TrackerSettings, TurnCalls,
};
use runguard_core::fingerprint::{FingerprintError, Volatile};
use runguard_core::similarity::Junk;
use serde_json::{Value, json};

const RAN: CallOutcome = CallOutcome::Completed;
const FAILED: CallOutcome = CallOutcome::Failed;

/// A tracker in which these calls ran.
fn after(calls: &[(&str, Value)]) -> ToolExecutionTracker {
    let mut tracker = ToolExecutionTracker::default();
    for (tool, args) in calls {
        tracker.record(tool, args, RAN).expect("a valid call");
    }
    tracker
}

fn skip(tracker: &ToolExecutionTracker, tool: &str, args: &Value) -> Option<Skip> {
    tracker.should_skip(tool, args).expect("a valid call")
}

fn reason(tracker: &ToolExecutionTracker, tool: &str, args: &Value) -> Option<SkipReason> {
    skip(tracker, tool, args).map(|skip| skip.reason)
}

#[test]
fn every_tool_has_the_limit_of_the_table() {
    for (tool, limit) in [
        ("composio_execute", 2),
        ("search_knowledge", 2),
        ("semantic_search", 2),
        ("search_codebase", 2),
        ("smart_query_database", 2),
        ("query_database", 2),
        ("read_file", 3),
        ("write_file", 2),
        ("list_directory", 2),
        ("anything_else", 3),
    ] {
        let mut tracker = ToolExecutionTracker::default();
        for number in 0..limit {
            let args = json!({"item": number});
            assert_eq!(skip(&tracker, tool, &args), None, "{tool} {number}");
            tracker.record(tool, &args, RAN).unwrap();
        }
        let skipped = skip(&tracker, tool, &json!({"item": "new"})).expect(tool);
        assert_eq!(skipped.reason.code(), "tool_limit");
        assert_eq!(skipped.message, format!("Tool '{tool}' has reached its execution limit ({limit}) for this turn"));
        assert_eq!((skipped.count, skipped.limit), (limit, limit));
        assert_eq!(skip(&tracker, "another_tool", &json!({"item": "new"})), None);
        tracker.new_turn();
        assert_eq!(skip(&tracker, tool, &json!({"item": 0})), None);
    }
}

#[test]
fn the_same_arguments_in_any_form_are_an_exact_duplicate() {
    let tracker = after(&[("read_file", json!({"path": "a.txt", "range": {"from": 1, "to": 2.0}, "name": "caf\u{e9}"}))]);
    let skipped =
        skip(&tracker, "read_file", &json!({"name": "cafe\u{301}", "range": {"to": 2, "from": 1.0}, "path": "a.txt", "mode": ""}))
            .expect("the same call");
    assert_eq!(skipped.reason.code(), "exact_duplicate");
    assert_eq!(skipped.message, "Tool 'read_file' was already executed with identical parameters");
    assert_eq!(reason(&tracker, "read_file", &json!({"path": "b.txt"})), None);
    assert_eq!(reason(&tracker, "stat_file", &json!({"path": "a.txt"})), None, "another tool");
    let tracker = after(&[("now", Value::Null)]);
    assert_eq!(reason(&tracker, "now", &json!({})), Some(SkipReason::ExactDuplicate), "no arguments are no arguments");
}

#[test]
fn a_similar_query_is_skipped_for_search_tools_only() {
    for tool in ["search_knowledge", "semantic_search", "search_codebase", "smart_query_database", "query_database"] {
        let tracker = after(&[(tool, json!({"query": "fix bug"}))]);
        let skipped = skip(&tracker, tool, &json!({"query": "Fix the bug!"})).expect(tool);
        assert_eq!(skipped.reason.code(), "similar_query");
        assert_eq!(skipped.message, format!("Tool '{tool}' was already executed with a similar query"));
        assert_eq!(reason(&tracker, tool, &json!({"query": "list all open orders"})), None);
    }
    let tracker = after(&[("read_file", json!({"query": "fix bug"}))]);
    assert_eq!(reason(&tracker, "read_file", &json!({"query": "fix the bug"})), None);
}

#[test]
fn the_rules_are_asked_in_their_order() {
    let args = json!({"query": "fix bug"});
    let mut tracker = after(&[("search_knowledge", args.clone())]);
    assert_eq!(reason(&tracker, "search_knowledge", &args), Some(SkipReason::ExactDuplicate), "exact before similar");
    tracker.record("search_knowledge", &json!({"query": "something else entirely"}), RAN).unwrap();
    assert_eq!(reason(&tracker, "search_knowledge", &args), Some(SkipReason::ToolLimit), "the limit before both");
}

#[test]
fn the_query_is_found_under_its_usual_names() {
    for name in ["query", "q", "search", "search_query", "text", "question", "prompt", "searchQuery", "Query", "search-term", "keywords"] {
        let tracker = after(&[("semantic_search", json!({name: "how do refunds work", "top_k": 5}))]);
        let again = json!({name: "how does a refund work", "top_k": 9});
        assert_eq!(reason(&tracker, "semantic_search", &again), Some(SkipReason::SimilarQuery), "{name}");
    }
    let tracker = after(&[("semantic_search", json!({"keywords": ["vpn", "setup", "windows"]}))]);
    assert_eq!(reason(&tracker, "semantic_search", &json!({"q": "windows vpn setup"})), Some(SkipReason::SimilarQuery));
    let tracker = after(&[("semantic_search", json!("how do refunds work"))]);
    assert_eq!(reason(&tracker, "semantic_search", &json!("how does a refund work")), Some(SkipReason::SimilarQuery));
    let tracker = after(&[("semantic_search", json!({"query": "how do refunds work", "text": "alpha"}))]);
    assert_eq!(reason(&tracker, "semantic_search", &json!({"query": "opening hours", "text": "alpha"})), None, "the first name counts");
}

#[test]
fn what_must_not_differ_makes_it_another_query() {
    for (left, right) in [
        ("delete user account", "deactivate user account"),
        ("status of order 12345678", "status of order 12345679"),
        ("sales on 2026-11-14", "sales on 2026-11-15"),
        ("find \"red apple\" in docs", "find \"rad apple\" in docs"),
        ("docs for user_name field", "docs for user_names field"),
        ("is my plan refundable", "is my plan not refundable"),
        ("tests that have passed", "tests that haven't passed"),
        ("c++ memory model", "c memory model"),
        ("rows where price < cost", "rows where price > cost"),
        ("nodes colder than -5 degrees", "nodes colder than 5 degrees"),
    ] {
        let tracker = after(&[("search_knowledge", json!({"query": left}))]);
        assert_eq!(reason(&tracker, "search_knowledge", &json!({"query": right})), None, "{left} / {right}");
    }
    let tracker = after(&[("search_knowledge", json!({"query": "shipping cost to Germany by express"}))]);
    let reordered = json!({"query": "express: Germany cost by shipping to"});
    assert_eq!(reason(&tracker, "search_knowledge", &reordered), Some(SkipReason::SimilarQuery));
}

#[test]
fn another_page_or_place_is_another_search() {
    let tracker = after(&[("search_codebase", json!({"query": "retry logic", "path": "src", "page": 1}))]);
    assert_eq!(reason(&tracker, "search_codebase", &json!({"query": "retry logic", "path": "src", "page": 2})), None);
    assert_eq!(reason(&tracker, "search_codebase", &json!({"query": "retry logics", "path": "tests", "page": 1})), None);
    let same_place = json!({"query": "retry logics", "path": "src", "page": 1.0});
    assert_eq!(reason(&tracker, "search_codebase", &same_place), Some(SkipReason::SimilarQuery));
}

#[test]
fn a_long_query_is_compared_to_its_end() {
    let preamble = "You are given the following context about the customer and the history of the case. ".repeat(5);
    let tracker = after(&[("semantic_search", json!({"prompt": format!("{preamble} What did the customer order in spring?")}))]);
    let other = json!({"prompt": format!("{preamble} Which agent spoke with the manager, and what was promised about the replacement of the broken parts of the machine, the date of the visit, the invoice and the deposit, and who signed for all of that on behalf of our company in the end, and is there a record of the call or a letter or a note in the file of the supplier that says so?")});
    assert_eq!(reason(&tracker, "semantic_search", &other), None);
    let nearly = json!({"prompt": format!("{preamble} What did the customer order in the spring?")});
    assert_eq!(reason(&tracker, "semantic_search", &nearly), Some(SkipReason::SimilarQuery));
    let long = "lorem ipsum dolor sit amet ".repeat(200);
    let tracker = after(&[("semantic_search", json!({"prompt": long}))]);
    assert_eq!(reason(&tracker, "semantic_search", &json!({"prompt": format!("{long} elit")})), None, "too long for letters");
    let reordered = json!({"prompt": "amet sit dolor ipsum lorem ".repeat(200)});
    assert_eq!(reason(&tracker, "semantic_search", &reordered), Some(SkipReason::SimilarQuery));
}

#[test]
fn signs_alone_are_no_query() {
    let tracker = after(&[("search_knowledge", json!({"query": "???"}))]);
    assert_eq!(reason(&tracker, "search_knowledge", &json!({"query": "\u{1f525}"})), None);
}

#[test]
fn a_call_that_failed_may_be_tried_again_up_to_the_limit() {
    let args = json!({"query": "refund policy"});
    let mut tracker = ToolExecutionTracker::default();
    tracker.record("search_knowledge", &args, FAILED).unwrap();
    assert_eq!(skip(&tracker, "search_knowledge", &args), None);
    assert_eq!(skip(&tracker, "search_knowledge", &json!({"query": "the refund policy"})), None, "nothing was found out yet");
    tracker.record("search_knowledge", &args, FAILED).unwrap();
    assert_eq!(reason(&tracker, "search_knowledge", &args), Some(SkipReason::ToolLimit));

    let mut tracker = ToolExecutionTracker::default();
    tracker.record("fetch", &json!({"id": 1}), FAILED).unwrap();
    tracker.record("fetch", &json!({"id": 1}), RAN).unwrap();
    assert_eq!(reason(&tracker, "fetch", &json!({"id": 1})), Some(SkipReason::ExactDuplicate), "the second try worked");
    assert_eq!(reason(&tracker, "fetch", &json!({"id": 2})), None);
}

#[test]
fn every_number_and_name_can_be_set() {
    let settings = TrackerSettings::default()
        .limits([("fetch".to_owned(), 1), ("forbidden".to_owned(), 0)].into())
        .default_limit(50)
        .search_tools(["lookup".to_owned()].into())
        .query_arguments(vec!["needle".to_owned()])
        .threshold(0.95)
        .volatile([("*".to_owned(), Volatile::of(["trace_id"])), ("fetch2".to_owned(), Volatile::of(["meta.at"]))].into());
    let mut tracker = ToolExecutionTracker::new(settings).unwrap();
    assert_eq!(
        skip(&tracker, "forbidden", &json!({})).unwrap().message,
        "Tool 'forbidden' has reached its execution limit (0) for this turn"
    );
    tracker.record("fetch", &json!({}), RAN).unwrap();
    assert_eq!(reason(&tracker, "fetch", &json!({"id": 2})), Some(SkipReason::ToolLimit));
    tracker.record("lookup", &json!({"needle": "fix bug"}), RAN).unwrap();
    assert_eq!(reason(&tracker, "lookup", &json!({"needle": "fix the bug"})), None, "below 0.95");
    assert_eq!(reason(&tracker, "lookup", &json!({"needle": "bug fix"})), Some(SkipReason::SimilarQuery));
    tracker.record("search_knowledge", &json!({"query": "fix bug"}), RAN).unwrap();
    assert_eq!(reason(&tracker, "search_knowledge", &json!({"query": "bug fix"})), None, "no search tool here");
    tracker.record("fetch2", &json!({"id": 1, "trace_id": "a", "meta": {"at": 1}}), RAN).unwrap();
    let again = json!({"id": 1, "trace_id": "b", "meta": {"at": 2}});
    assert_eq!(reason(&tracker, "fetch2", &again), Some(SkipReason::ExactDuplicate));
    tracker.record("fetch3", &json!({"id": 1, "meta": {"at": 1}}), RAN).unwrap();
    assert_eq!(reason(&tracker, "fetch3", &json!({"id": 1, "meta": {"at": 2}})), None, "volatile for another tool");
}

#[test]
fn the_junk_heuristic_is_a_setting() {
    let left = "a b c d ".repeat(40);
    let right = format!("e {left}");
    let similar = |junk| {
        let mut tracker = ToolExecutionTracker::new(TrackerSettings::default().junk(junk)).unwrap();
        tracker.record("semantic_search", &json!({"q": left}), RAN).unwrap();
        reason(&tracker, "semantic_search", &json!({"q": right})).is_some()
    };
    assert!(similar(Junk::Keep));
    assert!(!similar(Junk::Popular), "every character is popular, and the texts begin differently");
}

#[test]
fn settings_and_calls_that_make_no_sense_are_refused_and_change_nothing() {
    let refused = |settings: TrackerSettings| ToolExecutionTracker::new(settings).map(|_| ()).unwrap_err().name;
    for threshold in [0.0, -1.0, 1.01, f64::NAN, f64::INFINITY] {
        assert_eq!(refused(TrackerSettings::default().threshold(threshold)), "threshold");
    }
    assert_eq!(refused(TrackerSettings::default().default_limit(1001)), "default_limit");
    assert_eq!(refused(TrackerSettings::default().limits([("a".to_owned(), 1001)].into())), "limits");
    assert_eq!(refused(TrackerSettings::default().limits([(String::new(), 1)].into())), "limits");

    let mut tracker = ToolExecutionTracker::default();
    let mut deep = json!(1);
    for _ in 0..200 {
        deep = json!({ "a": deep });
    }
    let too_deep = InvalidCall::Arguments(FingerprintError::TooDeep);
    assert_eq!(tracker.record("", &json!({}), RAN), Err(InvalidCall::NoTool));
    assert_eq!(tracker.record(&"x".repeat(257), &json!({}), RAN), Err(InvalidCall::LongToolName));
    assert_eq!(tracker.record("fetch", &deep, RAN), Err(too_deep));
    assert_eq!(tracker.should_skip("fetch", &deep), Err(too_deep));
    assert!(tracker.calls().is_empty());
    assert_eq!(tracker.record(&"ü".repeat(256), &json!({}), RAN), Ok(()));
}

#[test]
fn memory_is_bounded_whatever_is_recorded() {
    let settings = TrackerSettings::default();
    let mut calls = TurnCalls::default();
    for number in 0..1_000_u32 {
        let search = format!("{} {number}", "\u{1d400}word ".repeat(300));
        calls.record(&settings, "search_knowledge", &json!({"query": search}), RAN).unwrap();
        calls.record(&settings, &format!("tool {number}"), &json!({"n": number}), RAN).unwrap();
    }
    let size = postcard::to_stdvec(&calls).unwrap().len();
    assert!(size < 32 * 1024, "{size}");
    assert_eq!(calls.count_of("search_knowledge"), 1_000);
    assert_eq!(calls.count_of("tool 999"), 1);
    assert_eq!(calls.count_of(&format!("tool {}", 1_000 - MOST_TOOLS - 1)), 0, "forgotten");
}

#[test]
fn a_recipe_finds_only_the_same_action_in_the_same_step() {
    let mut cache = RecipeCache::new();
    assert!(cache.is_empty());
    cache.put("step 1", "GMAIL_SEND", &json!({"to": "a", "n": 1}), json!("sent")).unwrap();
    assert_eq!(cache.get("step 1", "GMAIL_SEND", &json!({"n": 1.0, "to": "a", "cc": null})), Ok(Some(&json!("sent"))));
    for (step, action, args) in [
        ("step 2", "GMAIL_SEND", json!({"to": "a", "n": 1})),
        ("step 1", "GMAIL_DRAFT", json!({"to": "a", "n": 1})),
        ("step 1", "GMAIL_SEND", json!({"to": "a", "n": 2})),
        ("step 1G", "MAIL_SEND", json!({"to": "a", "n": 1})),
    ] {
        assert_eq!(cache.get(step, action, &args), Ok(None), "{step} {action} {args}");
    }
    assert_eq!(cache.put("step 1", "", &json!({}), json!(1)), Err(InvalidCall::NoTool));
    cache.put("step 1", "GMAIL_SEND", &json!({"to": "a", "n": 1}), json!("sent again")).unwrap();
    assert_eq!((cache.len(), cache.get("step 1", "GMAIL_SEND", &json!({"to": "a", "n": 1}))), (1, Ok(Some(&json!("sent again")))));
    cache.new_recipe();
    assert_eq!(cache.get("step 1", "GMAIL_SEND", &json!({"to": "a", "n": 1})), Ok(None));
    for number in 0..1_500 {
        cache.put("s", "A", &json!(number), json!(number)).unwrap();
    }
    assert_eq!(cache.len(), 1_000);
    assert_eq!(cache.get("s", "A", &json!(499)), Ok(None));
    assert_eq!(cache.get("s", "A", &json!(500)), Ok(Some(&json!(500))));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The state goes through storage between any two calls, and asking never changes it.
    #[test]
    fn a_stored_turn_goes_on_as_if_never_stored(steps in prop::collection::vec((0..4_usize, 0..4_i64, any::<bool>()), 0..40)) {
        let tools = ["search_knowledge", "read_file", "composio_execute", "other"];
        let queries = ["fix bug", "fix the bug", "list open orders", "orders open list"];
        let settings = TrackerSettings::default();
        let mut tracker = ToolExecutionTracker::default();
        let mut stored = postcard::to_stdvec(&TurnCalls::default()).unwrap();
        let mut ran = [0_u32; 4];
        for (tool, query, failed) in steps {
            let args = json!({"query": queries[query as usize], "n": 1});
            let mut calls: TurnCalls = postcard::from_bytes(&stored).unwrap();
            let skip = tracker.should_skip(tools[tool], &args).unwrap();
            prop_assert_eq!(&skip, &calls.should_skip(&settings, tools[tool], &args).unwrap());
            if skip.is_none() {
                let outcome = if failed { FAILED } else { RAN };
                tracker.record(tools[tool], &args, outcome).unwrap();
                calls.record(&settings, tools[tool], &args, outcome).unwrap();
                ran[tool] += 1;
                prop_assert!(failed || tracker.should_skip(tools[tool], &args).unwrap().is_some(), "it never runs twice");
            }
            prop_assert_eq!(tracker.calls(), &calls);
            stored = postcard::to_stdvec(&calls).unwrap();
        }
        prop_assert!(ran[0] <= 2 && ran[1] <= 3 && ran[2] <= 2 && ran[3] <= 3);
    }
}

#[test]
fn the_plain_ratio_is_there_for_who_wants_it() {
    let searched = |settings: TrackerSettings, first: &str, second: &str| {
        let mut tracker = ToolExecutionTracker::new(settings).unwrap();
        tracker.record("search_knowledge", &json!({ "query": first }), CallOutcome::Completed).unwrap();
        tracker.should_skip("search_knowledge", &json!({ "query": second })).unwrap().map(|skip| skip.reason)
    };
    let plain = || TrackerSettings::default().plain_ratio(true);
    for (first, second, by_words, by_letters) in [
        ("refund order 1234", "refund order 1235", false, true),
        ("weather in Austria", "weather in Australia", false, true),
        ("price of the plan", "how much does the plan cost", true, false),
        ("fix bug", "fix the bug", true, true),
        ("fix bug", "deploy the app", false, false),
    ] {
        let alike = |is_alike: bool| is_alike.then_some(SkipReason::SimilarQuery);
        assert_eq!(searched(TrackerSettings::default(), first, second), alike(by_words), "{first} / {second}");
        assert_eq!(searched(plain(), first, second), alike(by_letters), "{first} / {second}");
    }
    assert_eq!(searched(plain().threshold(0.99), "refund order 1234", "refund order 1235"), None);
}
