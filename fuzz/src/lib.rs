//! What the targets share.

pub mod body;
pub mod story;

use std::cell::Cell;

thread_local! {
    static SHARE: Cell<story::Share> = const { Cell::new(story::Share { made: 0, taken: 0 }) };
}

/// Adds to the share of bodies that are taken, and prints it now and then.
pub fn count(share: story::Share) {
    SHARE.with(|sum| {
        let before = sum.get();
        let after = story::Share { made: before.made + share.made, taken: before.taken + share.taken };
        sum.set(after);
        if before.made / 1_000_000 != after.made / 1_000_000 {
            eprintln!("{} bodies, {:.1} % taken", after.made, after.taken as f64 * 100.0 / after.made as f64);
        }
    });
}
