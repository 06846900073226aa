//! The labelled pairs of queries, and how well a rule does on them.

use runguard_core::similarity::{Gist, Junk, THRESHOLD, Wording, normalise, ratio};
use xxhash_rust::xxh3::xxh3_64;

const PAIRS: &str = include_str!("../../data/similar_pairs.tsv");
const PAIRS_BY_LANGUAGE: &str = include_str!("../../data/similar_pairs_by_language.tsv");

#[derive(Clone, Copy)]
pub(crate) struct Pair {
    pub(crate) same: bool,
    pub(crate) kind: &'static str,
    pub(crate) left: &'static str,
    pub(crate) right: &'static str,
}

impl Pair {
    /// Not looked at when the rule is tuned. By the pair itself, so that one more pair moves no other.
    pub(crate) fn is_held_out(&self) -> bool {
        xxh3_64(format!("{}\t{}", self.left, self.right).as_bytes()) & 1 == 1
    }
}

/// English ones.
pub(crate) fn pairs() -> Vec<Pair> {
    lines(PAIRS).map(pair).collect()
}

/// Those in other languages, each with its language's code.
pub(crate) fn pairs_by_language() -> Vec<(&'static str, Pair)> {
    lines(PAIRS_BY_LANGUAGE)
        .map(|line| {
            let (language, rest) = line.split_once('\t').unwrap_or_else(|| panic!("five columns: {line}"));
            (language, pair(rest))
        })
        .collect()
}

fn lines(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.lines().filter(|line| !line.starts_with('#') && !line.is_empty())
}

fn pair(line: &'static str) -> Pair {
    let [label, kind, left, right] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("four columns: {line}") };
    let same = match label {
        "same" => true,
        "different" => false,
        _ => panic!("the label is `same` or `different`: {line}"),
    };
    Pair { same, kind, left, right }
}

pub(crate) type Rule = fn(&str, &str) -> bool;

/// The rules that are compared, by name.
pub(crate) const RULES: [(&str, Rule); 4] =
    [("plain ratio 0.75", plain), ("RunGuard", runguard), ("RunGuard, stem = true", stemming), ("RunGuard, topics", topics)];

pub(crate) fn plain(left: &str, right: &str) -> bool {
    ratio(&normalise(left), &normalise(right), Junk::Keep) >= THRESHOLD
}

pub(crate) fn runguard(left: &str, right: &str) -> bool {
    Gist::whole(left).is_similar(&Gist::whole(right))
}

pub(crate) fn stemming(left: &str, right: &str) -> bool {
    let wording = Wording { stem: true, ..Wording::default() };
    Gist::worded(left, &wording).is_similar(&Gist::worded(right, &wording))
}

/// By which topics of different sessions are joined.
pub(crate) fn topics(left: &str, right: &str) -> bool {
    Gist::whole(left).reading().is_same_topic(&Gist::whole(right).reading())
}

pub(crate) struct Quality {
    pub(crate) false_alarms: Vec<Pair>,
    pub(crate) misses: Vec<Pair>,
    pub(crate) precision: f64,
    pub(crate) recall: f64,
}

pub(crate) fn measure<'a>(pairs: impl IntoIterator<Item = &'a Pair>, rule: Rule) -> Quality {
    let (mut hits, mut false_alarms, mut misses) = (0.0, Vec::new(), Vec::new());
    for pair in pairs {
        match (rule(pair.left, pair.right), pair.same) {
            (true, true) => hits += 1.0,
            (true, false) => false_alarms.push(*pair),
            (false, true) => misses.push(*pair),
            (false, false) => {}
        }
    }
    let share = |others: usize| if hits > 0.0 { hits / (hits + others as f64) } else { 0.0 };
    let (precision, recall) = (share(false_alarms.len()), share(misses.len()));
    Quality { false_alarms, misses, precision, recall }
}
