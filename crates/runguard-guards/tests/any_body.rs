//! The structure-aware fuzz target, on stable Rust and for a moment: bodies made of the routes' own tables of fields.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, clippy::disallowed_macros, reason = "it prints what it made")]
#![allow(unreachable_pub, reason = "the fuzz crate shares these files")]

#[path = "../../../fuzz/src/body.rs"]
mod body;
#[path = "../../../fuzz/src/story.rs"]
mod story;

use arbitrary::Unstructured;
use proptest::prelude::*;
use runguard_guards::Policy;
use std::cell::Cell;
use std::sync::LazyLock;

static POLICY: LazyLock<Policy> = LazyLock::new(Policy::default);

#[test]
fn most_bodies_are_taken_and_no_history_of_them_breaks_a_guard() {
    let (made, taken) = (Cell::new(0), Cell::new(0));
    proptest!(ProptestConfig::with_cases(400), |(bytes in prop::collection::vec(any::<u8>(), 0..2000))| {
        let share = story::run(&POLICY, Unstructured::new(&bytes));
        made.set(made.get() + share.made);
        taken.set(taken.get() + share.taken);
    });
    let share = taken.get() as f64 / made.get() as f64;
    println!("{} bodies, {:.1} % taken", made.get(), share * 100.0);
    assert!(share > 0.8, "only {:.1} % of {} bodies were taken", share * 100.0, made.get());
}
