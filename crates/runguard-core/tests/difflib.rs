//! The ratio against Python's own answers.
//!
//! `python3 tests/difflib/pairs.py FILE` writes the pairs; `DIFFLIB_PAIRS=FILE cargo test --test all -- --ignored difflib::` reads
//! them.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, clippy::disallowed_macros, reason = "it reads a file")]

use runguard_core::similarity::{Junk, ratio};
use std::fs::File;
use std::io::{BufRead, BufReader};

/// Fewer would prove little.
const FEWEST_PAIRS: usize = 1_000;

#[test]
#[ignore = "needs the file that tests/difflib/pairs.py writes, named by DIFFLIB_PAIRS"]
fn the_ratio_is_that_of_python_on_every_pair() {
    let path = std::env::var_os("DIFFLIB_PAIRS").expect("DIFFLIB_PAIRS must name the file that tests/difflib/pairs.py wrote");
    let lines = BufReader::new(File::open(&path).expect("the file named by DIFFLIB_PAIRS")).lines();
    let (mut pairs, mut long, mut junk_matters, mut wrong) = (0_usize, 0, 0, Vec::new());
    for line in lines {
        let (left, right, plain, junked): (String, String, f64, f64) = serde_json::from_str(&line.unwrap()).unwrap();
        pairs += 1;
        long += usize::from(right.chars().count() >= 200);
        junk_matters += usize::from(plain.to_bits() != junked.to_bits());
        for (junk, expected) in [(Junk::Keep, plain), (Junk::Popular, junked)] {
            let got = ratio(&left, &right, junk);
            if got.to_bits() != expected.to_bits() {
                wrong.push(format!("{junk:?} {got} instead of {expected}: {left:?} / {right:?}"));
            }
        }
    }
    println!(
        "{pairs} pairs, {long} of them with 200 characters and more; the junk heuristic matters for {junk_matters}; {} differ",
        wrong.len()
    );
    assert!(wrong.is_empty(), "{} ratios differ, the first: {}", wrong.len(), wrong[0]);
    assert!(pairs >= FEWEST_PAIRS && long > 0 && junk_matters > 0, "the pairs do not cover what they should");
}
