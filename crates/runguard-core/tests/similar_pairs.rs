//! How good "similar" is, measured on pairs labelled by hand (`data/similar_pairs.tsv`).
//!
//! `cargo test -p runguard-core --test similar_pairs -- --nocapture` prints the figures.

use runguard_core::similarity::{Gist, Junk, THRESHOLD, Wording, normalise, ratio};

const PAIRS: &str = include_str!("../data/similar_pairs.tsv");
const FEWEST_PAIRS: usize = 150;
/// Measured: 0.845 and 0.845, with word forms 0.853 and 0.903. Skipping a search that would have found something new is the worse mistake.
const LEAST_PRECISION: f64 = 0.84;
const LEAST_RECALL: f64 = 0.84;

struct Pair {
    same: bool,
    left: &'static str,
    right: &'static str,
}

fn pairs() -> Vec<Pair> {
    let lines = PAIRS.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|line| {
            let [label, left, right] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("three columns: {line}") };
            let same = match label {
                "same" => true,
                "different" => false,
                _ => panic!("the label is `same` or `different`: {line}"),
            };
            Pair { same, left, right }
        })
        .collect()
}

/// Precision and recall of a rule, and the pairs it got wrong.
fn measure(name: &str, pairs: &[Pair], is_similar: impl Fn(&str, &str) -> bool) -> (f64, f64) {
    let (mut hits, mut false_alarms, mut misses) = (0, Vec::new(), Vec::new());
    for pair in pairs {
        match (is_similar(pair.left, pair.right), pair.same) {
            (true, true) => hits += 1,
            (true, false) => false_alarms.push(pair),
            (false, true) => misses.push(pair),
            (false, false) => {}
        }
    }
    let share = |others: usize| f64::from(hits) / (f64::from(hits) + others as f64);
    let (precision, recall) = (share(false_alarms.len()), share(misses.len()));
    println!("\n{name}: precision {precision:.3}, recall {recall:.3} on {} pairs", pairs.len());
    for (what, wrong) in [("called similar, are different", false_alarms), ("called different, are the same", misses)] {
        println!("  {what}: {}", wrong.len());
        for pair in wrong {
            println!("    {} / {}", pair.left, pair.right);
        }
    }
    (precision, recall)
}

#[test]
fn similar_is_as_good_as_it_was() {
    let pairs = pairs();
    assert!(pairs.len() >= FEWEST_PAIRS);
    assert!(pairs.iter().filter(|pair| pair.same).count() * 3 > pairs.len(), "about as many of one label as of the other");
    let plain = measure("the ratio alone", &pairs, |left, right| ratio(&normalise(left), &normalise(right), Junk::Keep) >= THRESHOLD);
    let (precision, recall) = measure("similar", &pairs, |left, right| Gist::whole(left).is_similar(&Gist::whole(right)));
    let stemming = Wording { stem: true, ..Wording::default() };
    let stemmed = measure("similar, with word forms", &pairs, |left, right| {
        Gist::worded(left, &stemming).is_similar(&Gist::worded(right, &stemming))
    });
    assert!(precision >= LEAST_PRECISION, "precision fell to {precision:.3}");
    assert!(recall >= LEAST_RECALL, "recall fell to {recall:.3}");
    assert!(precision > plain.0 && recall > plain.1, "better than the ratio alone in both");
    assert!(stemmed.0 >= LEAST_PRECISION && stemmed.1 > recall, "word forms find more and do not mistake more: {stemmed:?}");
}
