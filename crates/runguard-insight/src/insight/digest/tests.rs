use super::overview::{names_of, skew};
use super::*;
use crate::insight::{Counted, Edge, Filters, Overview};
use proptest::prelude::*;
use runguard_core::row::RowCount;
use serde_json::json;

const NOON: i64 = 1_700_049_600_000;
const MINUTE: i64 = 60_000;

fn row<'a>(guard: &'a str, subject: &'a str, session: &'a str, outcome: &'a str, reason: Option<&'a str>) -> RowRef<'a> {
    RowRef {
        seq: 0,
        at: NOON,
        id: "",
        tenant: "acme",
        guard: guard.into(),
        kind: Kind::Check.into(),
        session,
        subject,
        outcome: outcome.into(),
        reason: reason.map(Into::into),
        answer: "{}",
        input: "{}",
    }
}

fn cells(digest: Digest) -> Vec<(CellKey, Cell)> {
    let mut cells: Vec<_> = digest.into_cells().collect();
    cells.sort_by(|left, right| left.0.cmp(&right.0));
    cells
}

fn fold(rows: &[RowRef<'_>]) -> Vec<(CellKey, Cell)> {
    let mut digest = Digest::default();
    for row in rows {
        digest.fold(row, number(row));
    }
    cells(digest)
}

/// As a store would make it of the name.
fn number(row: &RowRef<'_>) -> u64 {
    xxhash_rust::xxh3::xxh3_64(row.session.as_bytes())
}

fn day() -> Range {
    Range { since_ms: NOON - 12 * HOUR_MILLIS, until_ms: NOON + 12 * HOUR_MILLIS, bucket_seconds: 3600, filters: Filters::default() }
}

fn show(range: &Range, rows: &[RowRef<'_>]) -> Overview {
    overview(range, &[], fold(rows), &Savings::default())
}

fn count(start_ms: i64, guard: &str, outcome: &str, reason: Option<&str>, count: u64) -> RowCount {
    RowCount { minute: start_ms / MINUTE, guard: guard.into(), outcome: outcome.into(), reason: reason.map(Into::into), count }
}

#[test]
fn totals_and_series_are_the_counts_of_the_range() {
    let counts = [
        count(NOON - HOUR_MILLIS, "handoff", "allowed", None, 5),
        count(NOON, "handoff", "blocked", Some("cycle_detected"), 3),
        count(NOON, "kb_requery", "blocked", Some("kb_query_cap_reached"), 2),
        count(NOON, "handoff", "would_block", Some("cycle_detected"), 1),
        count(NOON + 12 * HOUR_MILLIS, "handoff", "blocked", Some("cycle_detected"), 100),
    ];
    let savings = Savings { credits_per_operation: 2.0, usd_per_operation: 0.5, ..Savings::default() };
    let shown = overview(&day(), &counts, [], &savings);
    let totals = &shown.totals;
    assert_eq!((totals.decisions, totals.allowed, totals.would_block, totals.blocked), (11, 5, 1, 5));
    // 3 transfers, and 2 queries of 2 operations each.
    assert_eq!((totals.operations_saved, totals.credits_saved, totals.usd_saved), (7, 14.0, 3.5));
    assert_eq!(shown.series.starts_ms.len(), 24);
    assert_eq!(shown.series.starts_ms[12], NOON);
    assert_eq!(shown.series.by_guard["handoff"].blocked[12], 3);
    assert_eq!(shown.series.by_guard["handoff"].allowed[11], 5);
    assert_eq!(shown.reasons[0].reason, "cycle_detected");
    assert_eq!((shown.reasons[0].blocked, shown.reasons[0].would_block, shown.reasons[1].blocked), (3, 1, 2));
    let filtered = Range { filters: Filters { reason: Some("cycle_detected".into()), ..Filters::default() }, ..day() };
    let shown = overview(&filtered, &counts, [], &savings);
    assert_eq!((shown.totals.decisions, shown.totals.allowed, shown.reasons.len()), (4, 0, 1));
}

#[test]
fn subjects_and_reasons_name_the_newest_sessions() {
    let mut rows: Vec<RowRef<'_>> = ["s1", "s2", "s3", "s4", "s2"]
        .iter()
        .zip(0..)
        .map(|(session, minute)| RowRef {
            at: NOON + minute * MINUTE,
            ..row("ai_task_retry", "classify", session, "blocked", Some("retry_cap_reached"))
        })
        .collect();
    rows.push(row("ai_task_retry", "classify", "s9", "allowed", None));
    rows.push(row("ai_task_retry", "other", "s9", "blocked", Some("retry_cap_reached")));
    let counts = [count(NOON, "ai_task_retry", "blocked", Some("retry_cap_reached"), 6)];
    let shown = overview(&day(), &counts, fold(&rows), &Savings::default());
    let first = &shown.subjects[0];
    assert_eq!((first.subject.as_str(), first.blocked, first.allowed), ("classify", 5, 1));
    assert_eq!(first.sessions, ["s2", "s4", "s3"]);
    assert_eq!(
        shown.reasons[0].subjects,
        [Counted { subject: "classify".into(), count: 5 }, Counted { subject: "other".into(), count: 1 }]
    );
    assert_eq!(shown.reasons[0].sessions, ["s2", "s4", "s3"]);
}

#[test]
fn transfers_make_edges_and_chains_also_in_observe_mode() {
    let input = r#"{"source_bot":"a","target_bot":"b"}"#;
    let refused = r#"{"target_visits":2,"chain":["b","a","b"],"handoff_chain":["b","a","b"]}"#;
    let observed = r#"{"handoffs_used":3,"message":"m","signals":[{"reason":"cycle_detected","chain":["b","a","b"]}]}"#;
    let rows = [
        RowRef { input, ..row("handoff", "b", "s1", "allowed", None) },
        RowRef { input, answer: refused, ..row("handoff", "b", "s2", "blocked", Some("cycle_detected")) },
        RowRef { input, answer: observed, ..row("handoff", "b", "s3", "would_block", Some("cycle_detected")) },
    ];
    let shown = show(&day(), &rows).handoffs;
    assert_eq!(shown.edges, [Edge { source: "a".into(), target: "b".into(), allowed: 2, blocked: 1 }]);
    assert_eq!(shown.chains.len(), 1);
    assert_eq!((shown.chains[0].count, shown.chains[0].chain.join(">")), (2, "b>a>b".to_owned()));
    assert_eq!(shown.chains[0].sessions, ["s3", "s2"]);
    let other = Range { filters: Filters { reason: Some("handoff_ceiling_reached".into()), ..Filters::default() }, ..day() };
    assert!(show(&other, &rows).handoffs.chains.is_empty());
}

#[test]
fn topics_of_both_doors_have_their_confidences() {
    let door = |confidence: &str, text: &str| format!(r#"{{"query_text":"{text}","last_confidence":{confidence}}}"#);
    let (first, second) = (door("0.0", "how do refunds work"), door("0.35", "refunds?"));
    let botpress = row("kb_requery", "refunds", "s1", "allowed", None);
    let record = RowRef { kind: "record".into(), outcome: "recorded".into(), ..row("kb_requery", "own-hash", "s2", "recorded", None) };
    let matched = r#"{"topic_hash":"t1","matched_query":"where is it","query_number":2}"#;
    let rows = [
        RowRef { input: &first, answer: r#"{"topic_hash":"refunds","queries_used":1}"#, ..botpress.clone() },
        RowRef { at: NOON + 1, input: &second, answer: r#"{"topic_hash":"refunds","queries_used":2}"#, ..botpress.clone() },
        RowRef {
            at: NOON + 2,
            input: &second,
            answer: r#"{"topic_hash":"refunds"}"#,
            outcome: "blocked".into(),
            reason: Some("kb_requery_cap_reached".into()),
            ..botpress.clone()
        },
        RowRef {
            input: r#"{"query":"where is it","confidence_score":1.0,"retrieved_chunks":3}"#,
            answer: r#"{"topic_hash":"t1"}"#,
            ..record.clone()
        },
        RowRef {
            input: r#"{"query":"where's it","prior_confidence":null}"#,
            answer: matched,
            ..row("kb_requery", "x", "s2", "allowed", None)
        },
    ];
    let shown = show(&day(), &rows);
    let topic = &shown.topics[0];
    assert_eq!((topic.topic.as_str(), topic.label.as_str(), topic.queries, topic.blocked), ("refunds", "refunds?", 2, 1));
    // Of the first query there was no confidence yet.
    assert_eq!((topic.best_confidence, topic.mean_confidence, topic.histogram[3], topic.histogram[0]), (0.35, 0.35, 2, 0));
    assert!(topic.is_gap);
    assert_eq!(topic.sessions, ["s1"]);
    let topic = &shown.topics[1];
    // A check of the other door is no query.
    assert_eq!((topic.topic.as_str(), topic.label.as_str(), topic.queries, topic.histogram[9]), ("t1", "where is it", 1, 1));
    assert!(!topic.is_gap);
    // Decisions are filed under the topic, not under the words.
    assert!(shown.subjects.iter().any(|subject| subject.subject == "t1" && subject.allowed == 1));
}

/// What a session asked, and the confidence of the answer, as the Voiceflow door records it.
fn told(session: &str, query: &str, confidence: f64) -> [String; 4] {
    let hash = format!("{:016x}", xxhash_rust::xxh3::xxh3_64(query.as_bytes()));
    let input = json!({"query": query, "confidence_score": confidence, "retrieved_chunks": 2}).to_string();
    [session.to_owned(), hash.clone(), json!({ "topic_hash": hash }).to_string(), input]
}

fn recorded(texts: &[[String; 4]]) -> Vec<RowRef<'_>> {
    texts
        .iter()
        .map(|[session, subject, answer, input]| RowRef {
            kind: "record".into(),
            answer,
            input,
            ..row("kb_requery", subject, session, "recorded", None)
        })
        .collect()
}

#[test]
fn phrasings_of_different_sessions_are_one_topic() {
    let asked: Vec<[String; 4]> = [
        ("s1", "How do I get a refund for my order?", 0.2),
        ("s2", "how can I get a refund for my order", 0.4),
        ("s3", "get a refund for my order, how?", 0.3),
        ("s3", "How could I get a refund for my order?", 0.7),
        ("s4", "Which countries do you ship to?", 0.9),
        ("s5", "which countries do you ship to", 0.8),
        ("s6", "How do I delete my order?", 0.1),
    ]
    .map(|(session, query, confidence)| told(session, query, confidence))
    .to_vec();
    let shown = show(&day(), &recorded(&asked));
    assert_eq!(shown.topic_sessions, 6);
    let refund = &shown.topics[0];
    assert_eq!((refund.queries, refund.phrasings, refund.members.len()), (4, 4, 4), "{:?}", shown.topics);
    assert_eq!((refund.asked_sessions, refund.low_sessions, refund.unanswered_sessions), (3, 3, 2));
    assert!((refund.low_share - 0.5).abs() < 1e-9 && (refund.best_confidence - 0.7).abs() < 1e-9);
    assert!(refund.label.contains("refund") && refund.also.len() == 3 && refund.also.iter().all(|words| words.contains("refund")));
    assert_eq!((shown.topics[1].asked_sessions, shown.topics[1].low_sessions), (2, 0));
    assert!(shown.topics[2].label.contains("delete") && shown.topics.len() == 3, "other questions stay others");
    let mut backwards = asked;
    backwards.reverse();
    assert_eq!(show(&day(), &recorded(&backwards)).topics, shown.topics);
}

#[test]
fn topics_without_words_stay_by_themselves() {
    let texts: Vec<[String; 4]> = (0..3)
        .map(|number| {
            let hash = format!("00000000000000a{number}");
            [format!("s{number}"), hash.clone(), json!({ "topic_hash": hash }).to_string(), r#"{"confidence_score":0.1}"#.to_owned()]
        })
        .collect();
    let shown = show(&day(), &recorded(&texts));
    assert_eq!(shown.topics.iter().map(|topic| (topic.phrasings, topic.label.as_str())).collect::<Vec<_>>(), [(1, ""); 3]);
    // A name that a flow makes of the first words of the question is words.
    let named = |name: &'static str, session: &'static str| RowRef {
        input: r#"{"last_confidence":0.3}"#,
        answer: r#"{"queries_used":2}"#,
        ..row("kb_requery", name, session, "allowed", None)
    };
    let shown = show(&day(), &[named("how do refunds work", "a"), named("refunds how do they work", "b")]);
    assert_eq!((shown.topics.len(), shown.topics[0].low_sessions), (1, 2), "{:?}", shown.topics);
}

#[test]
fn calls_tell_their_failures_over_time() {
    let record = RowRef { kind: "record".into(), ..row("api_circuit", "orders", "s", "recorded", None) };
    let rows = [
        RowRef { input: r#"{"outcome":"success","latency_ms":100}"#, ..record.clone() },
        RowRef { at: NOON + 31 * MINUTE, input: r#"{"outcome":"failure","latency_ms":300}"#, ..record.clone() },
        RowRef { at: NOON + 32 * MINUTE, input: r#"{"outcome":"failure","latency_ms":null}"#, ..record.clone() },
        row("api_circuit", "orders", "s", "blocked", Some("circuit_open")),
    ];
    let range = Range { since_ms: NOON, until_ms: NOON + HOUR_MILLIS, bucket_seconds: 60, filters: Filters::default() };
    let endpoint = &show(&range, &rows).endpoints[0];
    assert_eq!((endpoint.calls, endpoint.failures, endpoint.blocked), (3, 2, 1));
    assert_eq!((endpoint.mean_ms, endpoint.max_ms), (Some(200.0), Some(300.0)));
    assert!((endpoint.failure_rate - 2.0 / 3.0).abs() < 1e-9);
    assert_eq!((endpoint.failures_over_time.len(), endpoint.failures_over_time[30]), (60, 2));
    assert_eq!(show(&day(), &rows).endpoints[0].failures_over_time[12], 2);
}

#[test]
fn entities_budgets_actions_and_hours() {
    let email = r#"{"entity_type":"email","user_utterance":"x at y dot com"}"#;
    let hint = row("capture_slot_fill", "ask", "s", "blocked", Some("colloquial_format_detected"));
    let spend = |at: i64, answer: &'static str, outcome: &'static str| RowRef { at, answer, ..row("budget", "team", "s", outcome, None) };
    let rows = [
        RowRef { input: email, ..hint.clone() },
        RowRef { input: email, reason: Some("attempt_ceiling_reached".into()), ..hint.clone() },
        spend(NOON + 2, r#"{"budget":"team","spent_usd":4.5,"spent_tokens":90,"limit_usd":5.0}"#, "allowed"),
        spend(NOON + 1, r#"{"budget":"team","spent_usd":1.5,"spent_tokens":30,"limit_usd":9.0}"#, "allowed"),
        spend(NOON + 3, r#"{"budget":"team","level":"parent","spent_usd":99.0,"limit_usd":100.0}"#, "blocked"),
        row("agent_action", "search", "s", "allowed", None),
        row("agent_action", "search", "s", "would_block", Some("action_cycle")),
        row("agent_action", "search", "s", "allowed", None),
        row("agent_action", "mail", "s", "allowed", None),
        row("agent_action", "mail", "s", "blocked", Some("total_action_ceiling")),
        row("no_match_reprompt", "ask_zip", "s", "allowed", None),
    ];
    let shown = show(&day(), &rows);
    assert_eq!((shown.entities[0].hints, shown.entities[0].blocked), (1, 2));
    let budget = &shown.budgets[0];
    assert_eq!((budget.spent_usd, budget.limit_usd, budget.spent_tokens, budget.refused), (4.5, Some(5.0), 90, 1));
    let actions: Vec<_> = shown.actions.iter().map(|action| (action.action.as_str(), action.runs, action.blocked, action.share)).collect();
    assert_eq!(actions, [("search", 3, 0, 0.75), ("mail", 1, 1, 0.25)]);
    assert!((shown.action_skew - 0.25).abs() < 1e-9);
    let steps: Vec<_> = shown.hours.iter().map(|hours| (hours.subject.as_str(), hours.by_hour_of_day[12], hours.total)).collect();
    assert_eq!(steps, [("ask", 2, 2), ("ask_zip", 1, 1)]);
    let budgets = Range { filters: Filters { guard: Some("budget".into()), ..Filters::default() }, ..day() };
    let shown = show(&budgets, &rows);
    assert!(shown.entities.is_empty() && shown.actions.is_empty() && shown.hours.is_empty() && shown.budgets.len() == 1);
    assert!(shown.subjects.iter().all(|subject| subject.guard == "budget"));
}

#[test]
fn goals_tell_what_spirals_on_them_and_what_is_missing() {
    let tier = r#"{"goal":"Find the tier","available_actions":["profile","orders"]}"#;
    let again = r#"{"goal":"find  the TIER","available_actions":["profile"]}"#;
    let call = |action, session, outcome, reason, input| RowRef { input, ..row("agent_action", action, session, outcome, reason) };
    let rows = [
        call("profile", "s1", "allowed", None, tier),
        call("profile", "s1", "blocked", Some("consecutive_same_action_spiral"), tier),
        call("orders", "s1", "would_block", Some("action_cycle"), tier),
        call("orders", "s2", "blocked", Some("total_action_ceiling"), tier),
        RowRef { at: NOON + 1, ..call("lookup_tier", "s3", "allowed", None, again) },
        call("mail", "s4", "allowed", None, r#"{"goal":"write a mail"}"#),
        call("mail", "s5", "allowed", None, "{}"),
    ];
    let shown = show(&day(), &rows);
    assert_eq!(shown.goals.len(), 2);
    let goal = &shown.goals[0];
    assert_eq!((goal.label.as_str(), goal.runs, goal.spirals, goal.ceilings), ("find  the TIER", 3, 3, 1));
    let actions: Vec<_> =
        goal.actions.iter().map(|action| (action.action.as_str(), action.runs, action.spirals, action.not_offered)).collect();
    assert_eq!(actions, [("orders", 1, 2, 0), ("profile", 1, 1, 0), ("lookup_tier", 1, 0, 1)]);
    assert_eq!((goal.offered.as_slice(), goal.sessions.len()), (["profile".to_owned()].as_slice(), 3));
    assert_eq!((shown.goals[1].spirals, shown.goals[1].offered.len()), (0, 0));
    // What a goal says goes with the session that said it; the numbers stay.
    for (place, mut cell) in fold(&rows) {
        cell.forget(|_| true, 0);
        assert!(cell.label.is_none() && !place.first.to_lowercase().contains("tier"), "{place:?}");
    }
    let long = vec!["action_with_a_name"; 30].join(", ");
    assert_eq!(names_of(runguard_core::text::cut(&long, LABEL_CHARACTERS)).len(), 10);
}

#[test]
fn only_the_hours_and_the_tenant_asked_for_are_shown() {
    let rows = [
        row("handoff", "here", "s", "allowed", None),
        RowRef { at: NOON - 1, ..row("handoff", "before", "s", "allowed", None) },
        RowRef { at: NOON + HOUR_MILLIS, ..row("handoff", "after", "s", "allowed", None) },
        RowRef { tenant: "globex", ..row("handoff", "theirs", "s", "allowed", None) },
    ];
    let tenant = Some("acme".to_owned());
    let filters = Filters { tenant, ..Filters::default() };
    let range = Range { since_ms: NOON + MINUTE, until_ms: NOON + HOUR_MILLIS, bucket_seconds: 60, filters };
    let shown = show(&range, &rows);
    assert_eq!(shown.subjects.iter().map(|subject| subject.subject.as_str()).collect::<Vec<_>>(), ["here"]);
    assert_eq!((range.buckets(), shown.series.starts_ms[0]), (59, NOON + MINUTE));
    assert_eq!(Range { until_ms: range.since_ms, ..range }.buckets(), 0);
}

#[test]
fn a_forgotten_session_is_in_no_cell() {
    let input = r#"{"query":"my secret","confidence_score":0.1}"#;
    let rows = [
        RowRef { kind: "record".into(), input, answer: r#"{"topic_hash":"t"}"#, ..row("kb_requery", "t", "gone", "recorded", None) },
        row("ai_task_retry", "classify", "gone", "blocked", Some("retry_cap_reached")),
        row("ai_task_retry", "classify", "stays", "blocked", Some("retry_cap_reached")),
    ];
    let mut changed = 0;
    for (_, mut cell) in fold(&rows) {
        let gone = xxhash_rust::xxh3::xxh3_64(b"gone");
        changed += usize::from(cell.forget(|session: &str| session == "gone", gone));
        let left = format!("{cell:?}");
        assert!(!left.contains("gone") && !left.contains("secret"), "{left}");
        assert!(!cell.forget(|session: &str| session == "gone", gone));
    }
    // The topic's, the reason's, and where sessions of each guard are counted.
    assert_eq!(changed, 4);
    let nobodys: Vec<RowRef<'_>> = rows.iter().map(|row| RowRef { session: "", ..row.clone() }).collect();
    assert!(fold(&nobodys).iter().all(|(_, cell)| cell.examples.is_empty() && cell.label.is_none()));
}

#[test]
fn names_beyond_the_bound_are_counted_together_and_push_out_nobody_elses() {
    let mut digest = Digest::default();
    for name in 0..MOST_NAMES + 500 {
        digest.fold(&row("kb_requery", &format!("t{name}"), "s", "blocked", Some("kb_query_cap_reached")), 1);
    }
    digest.fold(&row("handoff", "billing", "s", "allowed", None), 1);
    let cells = cells(digest);
    let of = |dimension: Dimension| cells.iter().filter(move |(place, _)| place.dimension == dimension);
    let named = |name: &'static str| move |(place, _): &&(CellKey, Cell)| *place.second == *name;
    assert_eq!(of(Dimension::Topic).count(), MOST_NAMES + 1);
    assert_eq!(of(Dimension::Subject).find(named(OTHER)).unwrap().1.blocked, 500);
    assert_eq!(of(Dimension::Subject).find(named("billing")).unwrap().1.allowed, 1);
    assert_eq!(of(Dimension::Reason).map(|(_, cell)| cell.blocked).sum::<u64>(), MOST_NAMES as u64 + 500);
    let shown = overview(&day(), &[], cells, &Savings::default());
    assert!(shown.subjects.len() == MOST_ENTRIES && shown.topics.len() == MOST_ENTRIES);
}

#[test]
fn skew_is_nothing_when_all_are_equal_and_grows() {
    assert!(skew(vec![]).abs() < 1e-9);
    assert!(skew(vec![0, 0]).abs() < 1e-9);
    assert!(skew(vec![5, 5, 5]).abs() < 1e-9);
    assert!((skew(vec![0, 0, 0, 12]) - 0.75).abs() < 1e-9);
    assert!(skew(vec![1, 2, 9]) > skew(vec![3, 4, 5]));
}

/// What the guards write, with few names so that they meet.
fn any_row() -> impl Strategy<Value = (i64, usize, u8, u8, usize)> {
    (0_i64..6 * HOUR_MILLIS, 0_usize..9, 0_u8..4, 0_u8..3, 0_usize..3)
}

fn written(drawn: &[(i64, usize, u8, u8, usize)]) -> Vec<[String; 4]> {
    drawn
        .iter()
        .map(|(at, _, name, session, _)| {
            let confidence = (at % 11) as f64 / 10.0;
            let answer = format!(
                r#"{{"topic_hash":"t{name}","queries_used":{name},"chain":["a","b{name}"],"spent_usd":{confidence},"spent_tokens":{at},"limit_usd":1.0}}"#
            );
            let outcome = if at % 2 == 0 { "failure" } else { "success" };
            let input = format!(
                r#"{{"source_bot":"b{session}","query":"q{at}","last_confidence":{confidence},"confidence_score":{confidence},"entity_type":"e{name}","outcome":"{outcome}","latency_ms":{at}}}"#
            );
            [format!("n{name}"), format!("s{session}"), answer, input]
        })
        .collect()
}

fn as_rows<'a>(drawn: &[(i64, usize, u8, u8, usize)], texts: &'a [[String; 4]]) -> Vec<RowRef<'a>> {
    const GUARDS: [(&str, &str, &str); 9] = [
        ("handoff", "check", "cycle_detected"),
        ("kb_requery", "check", "kb_query_cap_reached"),
        ("kb_requery", "record", ""),
        ("api_circuit", "record", ""),
        ("api_circuit", "check", "circuit_open"),
        ("capture_slot_fill", "check", "colloquial_format_detected"),
        ("budget", "check", "budget_exceeded"),
        ("agent_action", "check", "action_cycle"),
        ("", "admin", ""),
    ];
    drawn
        .iter()
        .zip(texts)
        .map(|((at, guard, _, _, outcome), [subject, session, answer, input])| {
            let (guard, kind, reason) = GUARDS[*guard];
            let outcome = ["allowed", "would_block", "blocked"][*outcome];
            let reason = (outcome != "allowed" && kind == "check").then_some(reason);
            let tenant = if at % 3 == 0 { "acme" } else { "globex" };
            RowRef { at: NOON + at, tenant, kind: kind.into(), answer, input, ..row(guard, subject, session, outcome, reason) }
        })
        .collect()
}

proptest! {
    #[test]
    fn folding_in_pieces_in_any_order_is_folding_at_once(
        drawn in prop::collection::vec(any_row(), 0..120),
        pieces in prop::collection::vec(0_usize..5, 120),
        order in Just((0_usize..5).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let texts = written(&drawn);
        let rows = as_rows(&drawn, &texts);
        let mut digests: Vec<Digest> = (0..5).map(|_| Digest::default()).collect();
        for (row, piece) in rows.iter().zip(&pieces) {
            digests[*piece].fold(row, number(row));
        }
        let mut merged = Digest::default();
        for piece in order {
            for (place, cell) in digests[piece].clone().into_cells() {
                merged.add(&place, &cell);
            }
        }
        let merged = cells(merged);
        prop_assert_eq!(&merged, &fold(&rows));
        for (_, cell) in &merged {
            prop_assert!(cell.examples.len() <= MOST_EXAMPLES);
            let bytes = postcard::to_stdvec(cell).unwrap();
            prop_assert_eq!(cell, &postcard::from_bytes::<Cell>(&bytes).unwrap());
        }
        let decisions = rows.iter().filter(|row| row.kind == Kind::Check).count() as u64;
        let subjects = merged.iter().filter(|(place, _)| place.dimension == Dimension::Subject);
        prop_assert_eq!(subjects.map(|(_, cell)| cell.allowed + cell.would_block + cell.blocked).sum::<u64>(), decisions);
    }
}

#[test]
fn the_bounds_are_those_of_the_document() {
    let document = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/insights.md"));
    let grouped = |number: usize| if number < 1_000 { number.to_string() } else { format!("{},{:03}", number / 1_000, number % 1_000) };
    for said in [
        format!(
            "The {} topics asked most are compared, and up to {} of them can be joined",
            grouped(joined::MOST_COMPARED),
            joined::MOST_LEADERS
        ),
        format!("those names, at most {MOST_MEMBERS}, as the log has them"),
        format!("those with an answer below {GAP_CONFIDENCE}"),
        format!("Up to {TOPIC_SESSIONS} sessions of a topic, and {} of all", grouped(usize::from(GUARD_SESSIONS))),
    ] {
        assert!(document.contains(&said), "docs/insights.md does not say: {said}");
    }
}

/// However many topics there were, what is shown is put together of those asked most.
#[test]
fn very_many_topics_are_shown_as_few() {
    let cells: Vec<(String, Cell)> = (0..70_000)
        .map(|number| (format!("topic {number:05}"), Cell { allowed: if number == 69_999 { 7 } else { 1 }, ..Cell::default() }))
        .collect();
    let shown = joined::join(cells.iter().map(|(name, cell)| (name.as_str(), cell)));
    assert_eq!((shown[0].name, shown[1].name), ("topic 69999", "topic 00000"));
    assert_eq!(shown.iter().map(|topic| topic.members.len()).sum::<usize>(), joined::MOST_COMPARED + MOST_ENTRIES);
}
