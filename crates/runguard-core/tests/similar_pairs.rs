//! How good "similar" is, measured on pairs labelled by hand (`data/similar_pairs.tsv`). `./bench similarity` prints the figures.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, clippy::disallowed_macros, reason = "it prints and counts")]

#[path = "pairs/mod.rs"]
mod pairs;

use pairs::{Pair, RULES, measure, pairs, pairs_by_language, plain, runguard, topics};

const FEWEST_PAIRS: usize = 450;
/// Skipping a search that would have found something new is the worse mistake.
const LEAST_PRECISION: f64 = 0.97;
const LEAST_RECALL: f64 = 0.85;

#[test]
fn similar_is_good_enough_and_better_than_the_ratio_alone() {
    let all = pairs();
    let held_out: Vec<Pair> = all.iter().copied().filter(Pair::is_held_out).collect();
    assert!(all.len() >= FEWEST_PAIRS && held_out.len() * 5 >= all.len() * 2 && held_out.len() * 5 <= all.len() * 3);
    for (part, pairs) in [("all", &all), ("held out", &held_out)] {
        let [plain, ours, stemming, topics] = RULES.map(|(_, rule)| measure(pairs, rule));
        for (name, quality) in [("RunGuard", &ours), ("with word forms", &stemming), ("of topics", &topics)] {
            let (precision, recall) = (quality.precision, quality.recall);
            let wrong = quality.false_alarms.iter().chain(&quality.misses);
            let wrong: Vec<String> = wrong.map(|pair| format!("{}: {} / {}", pair.kind, pair.left, pair.right)).collect();
            assert!(precision >= LEAST_PRECISION, "{part}, {name}: precision fell to {precision:.3}: {wrong:#?}");
            assert!(recall >= LEAST_RECALL, "{part}, {name}: recall fell to {recall:.3}: {wrong:#?}");
            assert!(precision > plain.precision && recall > plain.recall, "{part}, {name}: better than the ratio alone in both");
        }
    }
}

/// A looser rule than the guards', for topics alone: it may join what may be an order or none, and nothing that is something else.
#[test]
fn topics_are_joined_where_guards_may_not_and_never_where_questions_differ() {
    for pairs in [pairs(), every_pair()] {
        let (joined, guards) = (measure(&pairs, topics), measure(&pairs, runguard));
        assert!(joined.precision >= guards.precision && joined.recall >= guards.recall, "{} {}", joined.precision, joined.recall);
    }
    for (left, right) in [
        ("heat pump warranty length", "how long is the warranty on the heat pump"),
        ("tell me the refund policy", "refund policy"),
        ("show me the upgrade options", "upgrade options"),
        ("find the cancel button", "cancel button"),
    ] {
        assert!(topics(left, right) && topics(right, left), "{left} / {right}");
    }
    for (left, right) in [
        ("tell me the refund policy", "refund deadline"),
        ("tell me the refund policy", "privacy policy"),
        ("show me the upgrade options", "downgrade options"),
        ("show canceled orders", "cancel orders"),
        ("list paid invoices", "pay invoices"),
        ("tell me the refund policy for order 7", "refund policy for order 8"),
    ] {
        assert!(!topics(left, right) && !topics(right, left), "{left} / {right}");
    }
}

const FEWEST_LANGUAGES: usize = 8;
const FEWEST_PAIRS_OF_A_LANGUAGE: usize = 60;
const LEAST_RECALL_IN_OTHER_LANGUAGES: f64 = 0.80;

#[test]
fn similar_is_good_enough_in_other_languages() {
    let all = pairs_by_language();
    let languages: std::collections::BTreeSet<&str> = all.iter().map(|(language, _)| *language).collect();
    assert!(languages.len() >= FEWEST_LANGUAGES);
    let of = |language: &str| all.iter().filter(move |(other, _)| *other == language).map(|(_, pair)| *pair).collect::<Vec<_>>();
    assert!(languages.iter().all(|language| of(language).len() >= FEWEST_PAIRS_OF_A_LANGUAGE));
    let held_out: Vec<Pair> = all.iter().map(|(_, pair)| *pair).filter(Pair::is_held_out).collect();
    assert!(held_out.len() * 5 >= all.len() * 2 && held_out.len() * 5 <= all.len() * 3);
    for language in languages {
        let pairs: Vec<Pair> = of(language).into_iter().filter(Pair::is_held_out).collect();
        let quality = measure(&pairs, runguard);
        println!("{language}: {} held out, precision {:.3}, recall {:.3}", pairs.len(), quality.precision, quality.recall);
        let (precision, recall) = (quality.precision, quality.recall);
        assert!(precision >= LEAST_PRECISION && recall >= LEAST_RECALL_IN_OTHER_LANGUAGES, "{language}: {precision:.3}, {recall:.3}");
    }
    let (ours, plain) = (measure(&held_out, runguard), measure(&held_out, plain));
    println!("all: {} held out, precision {:.3}, recall {:.3}", held_out.len(), ours.precision, ours.recall);
    println!("the ratio alone: precision {:.3}, recall {:.3}", plain.precision, plain.recall);
    assert!(ours.precision >= LEAST_PRECISION, "precision fell to {:.3}", ours.precision);
    assert!(ours.recall >= LEAST_RECALL_IN_OTHER_LANGUAGES, "recall fell to {:.3}", ours.recall);
    assert!(ours.precision > plain.precision && ours.recall > plain.recall, "better than the ratio alone in both");
}

fn every_pair() -> Vec<Pair> {
    pairs().into_iter().chain(pairs_by_language().into_iter().map(|(_, pair)| pair)).collect()
}

#[test]
fn the_pairs_are_well_made() {
    let all = every_pair();
    assert!(all.iter().filter(|pair| pair.same).count() * 3 > all.len(), "about as many of one label as of the other");
    let mut seen = std::collections::HashSet::new();
    for pair in &all {
        let mut sides = [pair.left, pair.right];
        sides.sort_unstable();
        assert!(seen.insert(sides), "twice: {} / {}", pair.left, pair.right);
        assert_ne!(pair.left, pair.right);
    }
}

#[test]
fn similar_does_not_depend_on_which_came_first() {
    for pair in every_pair() {
        assert_eq!(runguard(pair.left, pair.right), runguard(pair.right, pair.left), "{} / {}", pair.left, pair.right);
        assert!(runguard(pair.left, pair.left), "{}", pair.left);
    }
}

/// A kind in which letters mislead must not be carried by the others.
#[test]
fn no_kind_of_question_is_mistaken_as_a_rule() {
    let all = pairs();
    let kinds: std::collections::BTreeSet<(bool, &str)> = all.iter().map(|pair| (pair.same, pair.kind)).collect();
    for (same, kind) in kinds {
        let of_kind: Vec<Pair> = all.iter().copied().filter(|pair| pair.same == same && pair.kind == kind).collect();
        let quality = measure(&of_kind, runguard);
        let wrong = quality.false_alarms.len() + quality.misses.len();
        // A paraphrase shares no words with what it says again: that needs knowledge of the world.
        let most = match kind {
            "paraphrase" => of_kind.len(),
            "synonym" => of_kind.len() / 3,
            _ => of_kind.len() / 8,
        };
        assert!(wrong <= most, "{kind}: {wrong} of {} are wrong", of_kind.len());
    }
}
