//! How good "similar" is on the labelled pairs, next to the ratio alone, as JSON: `./bench similarity` makes tables of it.
//! With `-- --development` only of the half that may be looked at when the rule is tuned.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, clippy::disallowed_macros, reason = "it measures and prints")]

#[path = "../tests/pairs/mod.rs"]
mod pairs;

use pairs::{Pair, Quality, RULES, measure, pairs, pairs_by_language, runguard};
use serde_json::{Value, json};
use std::collections::BTreeSet;

fn figures(pairs: &[Pair]) -> Value {
    let figures = RULES.map(|(name, rule)| {
        let Quality { precision, recall, .. } = measure(pairs, rule);
        let f1 = 2.0 * precision * recall / (precision + recall);
        json!({"rule": name, "pairs": pairs.len(), "precision": precision, "recall": recall, "f1": f1})
    });
    json!(figures)
}

fn label(same: bool) -> &'static str {
    if same { "same" } else { "different" }
}

fn main() {
    let is_development = std::env::args().any(|argument| argument == "--development");
    let all: Vec<Pair> = pairs().into_iter().filter(|pair| !is_development || !pair.is_held_out()).collect();
    let (held_out, development): (Vec<Pair>, Vec<Pair>) = all.iter().partition(|pair| pair.is_held_out());
    let kinds: BTreeSet<(bool, &str)> = all.iter().map(|pair| (!pair.same, pair.kind)).collect();
    let kinds: Vec<Value> = kinds
        .into_iter()
        .map(|(different, kind)| {
            let of_kind: Vec<Pair> = all.iter().copied().filter(|pair| pair.same != different && pair.kind == kind).collect();
            let right = RULES.map(|(_, rule)| {
                let Quality { false_alarms, misses, .. } = measure(&of_kind, rule);
                of_kind.len() - false_alarms.len() - misses.len()
            });
            json!({"label": label(!different), "kind": kind, "pairs": of_kind.len(), "right": right})
        })
        .collect();
    let others: Vec<(&str, Pair)> = pairs_by_language().into_iter().filter(|(_, pair)| !is_development || !pair.is_held_out()).collect();
    let codes: BTreeSet<&str> = others.iter().map(|(language, _)| *language).collect();
    let languages: Vec<Value> = codes
        .into_iter()
        .map(Some)
        .chain([None])
        .map(|code| {
            let of = |held_out: bool| -> Vec<Pair> {
                let is_part =
                    |(language, pair): &&(&str, Pair)| code.is_none_or(|code| code == *language) && pair.is_held_out() == held_out;
                others.iter().filter(is_part).map(|(_, pair)| *pair).collect()
            };
            json!({"language": code.unwrap_or("all"), "development": figures(&of(false)), "held out": figures(&of(true))})
        })
        .collect();
    let parts = json!({"development": figures(&development), "held out": figures(&held_out), "all": figures(&all)});
    let mistakes: Vec<Value> = std::iter::once(("en", all))
        .chain([("other", others.into_iter().map(|(_, pair)| pair).collect())])
        .flat_map(|(language, pairs): (&str, Vec<Pair>)| {
            let quality = measure(&pairs, runguard);
            let pairs: Vec<Pair> = quality.false_alarms.into_iter().chain(quality.misses).collect();
            pairs.into_iter().map(move |pair| {
                json!({"language": language, "label": label(pair.same), "kind": pair.kind, "left": pair.left, "right": pair.right})
            })
        })
        .collect();
    println!("{}", json!({"parts": parts, "kinds": kinds, "languages": languages, "mistakes": mistakes}));
}
