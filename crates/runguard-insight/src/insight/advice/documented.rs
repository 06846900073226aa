//! docs/insights.md says what each kind of advice needs: here its numbers are read and compared with those in force.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use super::super::digest::GAP_CONFIDENCE;
use super::RULES;
use super::budgets::*;
use super::endpoints::*;
use super::goals::*;
use super::questions::*;
use super::thresholds::*;
use super::times::*;
use super::topics::*;

const DOCUMENT: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/insights.md"));

/// The numbers of a sentence in their order, written as digits, as shares in percent, or as words.
fn numbers(sentence: &str) -> Vec<f64> {
    let words: Vec<&str> = sentence.split([' ', ',', ';', '(', ')']).filter(|word| !word.is_empty()).collect();
    let value = |word: &str| match word {
        "half" => Some(0.5),
        "tenth" => Some(0.1),
        "two" => Some(2.0),
        "three" => Some(3.0),
        "five" => Some(5.0),
        _ => word.parse::<f64>().ok(),
    };
    let is_percent = |position: usize| words.get(position + 1) == Some(&"%");
    let read = |(position, word): (usize, &&str)| Some(value(word)? / if is_percent(position) { 100.0 } else { 1.0 });
    words.iter().enumerate().filter_map(read).collect()
}

/// What each kind needs, in the order in which the document says it.
fn in_force(kind: &str) -> Vec<f64> {
    let counts = |counts: &[u64]| counts.iter().map(|count| *count as f64).collect();
    match kind {
        "missing_signal" => vec![SIGNAL_MIN as f64, SIGNAL_SHARE],
        "handoff_gap" => counts(&[CHAIN_MIN]),
        "low_confidence_topic" => vec![LOW_ALL_MIN as f64, GAP_CONFIDENCE, LOW_SHARE, LOW_SESSIONS_MIN as f64],
        "documentation_gap" => vec![GAP_QUERIES_MIN as f64, GAP_ANSWERS_MIN as f64, GAP_CONFIDENCE],
        "asked_after_good_answer" => counts(&[GOOD_ANSWER_MIN]),
        "missing_action" => vec![CEILING_MIN as f64, SPIRAL_MIN as f64, SKEW_ACTIONS_MIN as f64, SKEW],
        "goal_lacks_action" => counts(&[NOT_OFFERED_MIN, GOAL_CEILINGS_MIN]),
        "goal_spiral" => counts(&[GOAL_SPIRALS_MIN]),
        "colloquial_format" => counts(&[HINTS_MIN]),
        "upstream_degrades" => vec![DEGRADE_FACTOR, DEGRADE_LATE_MIN as f64],
        "retries_never_succeed" => counts(&[NEVER_MIN]),
        "observe_would_save" => counts(&[OBSERVE_MIN]),
        "concentrated_in_one_hour" => vec![HOUR_SHARE, HOUR_TOTAL_MIN as f64, HOUR_DAYS_MIN as f64],
        "began_at_one_moment" => vec![BEGAN_BEFORE_RATE, BEGAN_BEFORE_MIN as f64, BEGAN_AFTER_RATE, BEGAN_BLOCKS_MIN as f64],
        "budget_refused" => counts(&[BUDGET_REFUSED_MIN]),
        "budget_hardly_used" => vec![BUDGET_SHARE, BUDGET_DECISIONS_MIN as f64],
        "unpriced_model" => counts(&[UNPRICED_MIN]),
        "endpoint_fails" => vec![ENDPOINT_FAILURE_RATE, ENDPOINT_CALLS_MIN as f64, ENDPOINT_FAILURES_MIN as f64],
        "endpoint_slow" => vec![SLOW_MILLIS / 1000.0, ENDPOINT_CALLS_MIN as f64],
        "one_session" => counts(&[ONE_SESSION_MIN]),
        "threshold_never_fires" => counts(&[NEVER_FIRES_MIN]),
        "one_flow" => vec![ONE_FLOW_SHARE, SPREAD_MIN as f64],
        "general_setting" => vec![SPREAD_MIN as f64, MANY_SUBJECTS_MIN as f64, MANY_TOP_SHARE, MANY_RATE],
        unknown => panic!("docs/insights.md names `{unknown}`, which is no kind of advice"),
    }
}

#[test]
fn what_each_kind_of_advice_needs_is_what_the_document_says() {
    let (_, section) = DOCUMENT.split_once("## Kinds of advice, and the least they need").unwrap();
    let rows: Vec<(&str, &str)> = section
        .lines()
        .skip_while(|line| !line.starts_with("| `"))
        .take_while(|line| line.starts_with("| `"))
        .map(|line| {
            let mut cells = line.split('|').map(str::trim).skip(1);
            (cells.next().unwrap().trim_matches('`'), cells.next().unwrap())
        })
        .collect();
    assert_eq!(rows.len(), RULES.len(), "a row for each kind");
    for (kind, seen) in rows {
        let (said, needed) = (numbers(seen), in_force(kind));
        let is_same = said.len() == needed.len() && said.iter().zip(&needed).all(|(said, needed)| (said - needed).abs() < 1e-9);
        assert!(is_same, "{kind}: docs/insights.md says {said:?}, in force are {needed:?}");
    }
}
