//! What a decision costs, without server and store: state in as bytes, answer and new state out.
//!
//! Each guard is measured on a new session, after ten requests and after a hundred thousand: it must not matter how
//! long a session has run. Prints a table; the bar is one microsecond.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, clippy::disallowed_macros, reason = "it measures and prints")]

use runguard_core::text::StoreText;
use runguard_core::time::Timestamp;
use runguard_guards::Policy;
use runguard_guards::guard::{Moment, Operation, ROUTES, RouteKind};
use runguard_guards::input::Input;
use std::collections::HashMap;
use std::hint::black_box;
use std::time::Instant;

const BAR_NANOSECONDS: f64 = 1000.0;
const HISTORIES: [usize; 3] = [0, 10, 100_000];

/// A request like those of real flows, for every route.
const BODIES: &[(&str, &str)] = &[
    (
        "/guard/ai-task-retry",
        r#"{"session_id":"conv-81723","task_name":"extract_order_number","user_message":"my order ORD-12345678 is late","validation_error":"no match"}"#,
    ),
    ("/guard/handoff", r#"{"session_id":"conv-81723","source_bot":"orchestrator","target_bot":"billing-bot"}"#),
    (
        "/guard/kb-requery",
        r#"{"session_id":"conv-81723","topic_hash":"refund-policy","query_text":"how do refunds work","last_confidence":0.4}"#,
    ),
    ("/guard/kb-requery/check", r#"{"session_id":"user-1","query":"how do refunds work"}"#),
    ("/guard/kb-requery/record", r#"{"session_id":"user-1","query":"how do refunds work","confidence_score":0.6,"retrieved_chunks":3}"#),
    ("/guard/agent-action", r#"{"session_id":"run-1","action_name":"get_customer_profile","action_params_hash":"9f2c"}"#),
    ("/guard/agent-action/result", r#"{"session_id":"run-1","action_name":"get_customer_profile","result_summary":"3 orders"}"#),
    ("/guard/no-match-reprompt", r#"{"session_id":"user-1","step_id":"capture_email","user_utterance":"it is john@example.com"}"#),
    (
        "/guard/capture-slot-fill",
        r#"{"session_id":"user-1","capture_step":"ask_email","entity_type":"email","user_utterance":"no idea what you mean"}"#,
    ),
    ("/guard/api-circuit/check", r#"{"endpoint_key":"orders-api","session_id":"user-1"}"#),
    ("/guard/api-circuit/record", r#"{"endpoint_key":"orders-api","session_id":"user-1","outcome":"failure","latency_ms":120}"#),
    ("/guard/loop", r#"{"session_id":"run-1","tool":"search","args":{"query":"refunds"}}"#),
    ("/guard/loop/check", r#"{"session_id":"run-1","tool":"search","args":{"query":"refunds"}}"#),
    ("/guard/stall", r#"{"session_id":"run-1","tool":"read_file","args":{"path":"a.txt"},"result":"3 lines"}"#),
    ("/guard/budget/check", r#"{"session_id":"run-1","max_usd":5,"usd":0.01}"#),
    ("/guard/budget/record", r#"{"session_id":"run-1","max_usd":5,"usd":0.000001}"#),
    ("/guard/budget/reserve", r#"{"session_id":"run-1","max_usd":5,"usd":0.01}"#),
    ("/guard/tool-call", r#"{"session_id":"run-1","tool":"search_knowledge","args":{"query":"how do refunds work"}}"#),
    ("/guard/tool-call/record", r#"{"session_id":"run-1","tool":"search_knowledge","args":{"query":"how do refunds work"},"error":true}"#),
    ("/guard/action-group", r#"{"session_id":"run-1","action_group":"orders","function":"get","parameters":[{"name":"id","value":"7"}]}"#),
    ("/guard/action-group/result", r#"{"session_id":"run-1","action_group":"orders","function":"get","failed":true}"#),
];

/// About 80 characters each.
const TEXTS: &[(&str, &str)] = &[
    ("nothing in it", "hello, I would like to know where my parcel is, it should have come on Monday ok"),
    ("a word that makes it look", "hello, I have lost my password and cannot get into my account any more, please ok"),
    ("a phone number", "hello, where is my parcel, you can call me on 555-867-5309 in the evening, thanks"),
    ("an e-mail address", "hello, where is my parcel, write to jane.doe@example.com when you know it, thanks"),
    ("a key", "why does sk-ant-api03-AbCdEfGhIjKlMnOpQrStUvWxYz0123456789 not work, please help"),
];

fn operation(path: &str, body: &str) -> Box<dyn Operation> {
    let route = ROUTES.iter().find(|route| route.path == path).expect("a known route");
    (route.read)(&Input::read(body.as_bytes(), route.fields).expect("a valid body"))
}

fn run(operation: &dyn Operation, policy: &Policy, states: &HashMap<usize, Vec<u8>>, now: i64) -> runguard_guards::Outcome {
    let states: Vec<Option<&[u8]>> = (0..operation.places_by(policy).len()).map(|place| states.get(&place).map(Vec::as_slice)).collect();
    let moment = Moment {
        now: Timestamp::from_millis(now),
        decision_id: "01JF8Z6Q0V3N1W2X4Y5Z6A7B8C",
        store_text: StoreText::Redacted,
        long_runs: None,
    };
    operation.run(policy, &states, moment)
}

fn nanoseconds(operation: &dyn Operation, policy: &Policy, states: &HashMap<usize, Vec<u8>>, now: i64) -> f64 {
    nanoseconds_of(|| {
        black_box(run(black_box(operation), policy, states, now));
    })
}

#[allow(clippy::disallowed_methods)] // a benchmark reads the clock
fn nanoseconds_of(mut work: impl FnMut()) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..7 {
        let rounds = 20_000;
        let started = Instant::now();
        for _ in 0..rounds {
            work();
        }
        best = best.min(started.elapsed().as_nanos() as f64 / f64::from(rounds));
    }
    best
}

/// The bar is for decisions; what only records is shown for information.
fn verdict(operation: &dyn Operation, figures: &[f64]) -> &'static str {
    if operation.route().kind != RouteKind::Check {
        return "(records)";
    }
    if figures.iter().all(|figure| *figure <= BAR_NANOSECONDS) { "PASS" } else { "MISS" }
}

fn main() {
    let policy = Policy::default();
    let queries =
        [("same words", "how do refunds work"), ("rephrased", "how does a refund work"), ("another topic", "where is my nearest store")];
    println!("Nanoseconds for a decision (best of 7 runs of 20,000), after this many earlier requests of the session:\n");
    println!("{:<28} {:>9} {:>9} {:>9}   {:>5}  bar {BAR_NANOSECONDS:.0}", "route", HISTORIES[0], HISTORIES[1], HISTORIES[2], "state");
    for (path, body) in BODIES {
        let operation = operation(path, body);
        let mut states: HashMap<usize, Vec<u8>> = HashMap::new();
        let (mut done, mut now) = (0, 1_700_000_000_000);
        let mut figures = Vec::new();
        for history in HISTORIES {
            while done < history {
                now += 1_000;
                for change in run(&*operation, &policy, &states, now).changes {
                    states.insert(change.place, change.state);
                }
                done += 1;
            }
            figures.push(nanoseconds(&*operation, &policy, &states, now + 1));
        }
        let bytes: usize = states.values().map(Vec::len).sum();
        println!("{path:<28} {:>9.0} {:>9.0} {:>9.0}   {bytes:>5}  {}", figures[0], figures[1], figures[2], verdict(&*operation, &figures));
    }
    println!("\nBudgets that draw on five scopes, three of them by periods, after ten earlier requests:\n");
    let limit = serde_json::json!({"max_usd": 1000});
    let scopes = serde_json::json!({"run": {"total": limit}, "tenant": {"day": limit, "month": limit}, "model": {"week": limit}});
    let guards = serde_json::json!({"budget": {"time_zone": "Europe/Berlin", "scopes": scopes}});
    let policy_of_scopes = Policy::build(guards.as_object().expect("a table"), &["guards"]).expect("valid settings");
    for act in ["check", "record", "reserve"] {
        let body = r#"{"session_id":"run-1","usd":0.01,"model":"gpt-4o","scopes":[{"per":"team","name":"search"}]}"#;
        let operation = operation(&format!("/guard/budget/{act}"), body);
        let mut states: HashMap<usize, Vec<u8>> = HashMap::new();
        for second in 0..10 {
            for change in run(&*operation, &policy_of_scopes, &states, 1_700_000_000_000 + second * 1_000).changes {
                states.insert(change.place, change.state);
            }
        }
        println!("{act:<28} {:>9.0}", nanoseconds(&*operation, &policy_of_scopes, &states, 1_700_000_011_000));
    }
    println!("\nRedaction of a text before it is kept:\n");
    for (name, text) in TEXTS {
        let figure = nanoseconds_of(|| {
            black_box(runguard_core::text::redact(black_box(text)));
        });
        println!("{name:<28} {figure:>9.0}");
    }
    println!("\nA check of the knowledge base door that knows topics by their words, with one earlier topic in the session:\n");
    let earlier = operation(
        "/guard/kb-requery/record",
        r#"{"session_id":"user-1","query":"how do refunds work","confidence_score":0.6,"retrieved_chunks":3}"#,
    );
    let states: HashMap<usize, Vec<u8>> =
        run(&*earlier, &policy, &HashMap::new(), 0).changes.into_iter().map(|change| (change.place, change.state)).collect();
    for (name, query) in queries {
        let check = operation("/guard/kb-requery/check", &format!(r#"{{"session_id":"user-1","query":"{query}"}}"#));
        let figure = nanoseconds(&*check, &policy, &states, 1);
        println!("{name:<28} {figure:>9.0}   {}", verdict(&*check, &[figure]));
    }
}
