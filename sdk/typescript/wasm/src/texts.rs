//! Fingerprints of arguments and similarity of texts.

use crate::boundary::{answer_made, with_texts};
use runguard_core::fingerprint::{Volatile, hex, of_text_without};
use runguard_core::similarity::{self, Junk};

#[unsafe(no_mangle)]
pub extern "C" fn similarity(left: usize, right: usize, autojunk: u32) -> f64 {
    let junk = if autojunk == 0 { Junk::Keep } else { Junk::Popular };
    with_texts([left, right], |[left, right]| similarity::ratio(left, right, junk))
}

/// `ignored` are names of fields to leave out, one a line.
#[unsafe(no_mangle)]
pub extern "C" fn fingerprint(json: usize, ignored: usize) -> i32 {
    with_texts([json, ignored], |[json, ignored]| answer_made(of_text_without(json, &Volatile::of(ignored.lines())).map(hex)))
}
