//! How JavaScript and Rust hand each other values: numbers as they are, texts through two shared buffers.
//!
//! JavaScript asks [`input`] for room, writes UTF-8 there and calls an operation with the lengths of its texts. What
//! an operation has to say beyond a number it leaves as JSON in the output buffer. WebAssembly here has one thread,
//! and no operation calls back into JavaScript, so one buffer of each is enough.
//!
//! No raw pointer is ever followed on this side. The `unsafe` of this crate is the attribute that gives an exported
//! function its name, which is sound because the names are unique within this one library.

use runguard_core::run::{Trip, sentence};
use runguard_core::{Span, Timestamp};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::fmt::Display;
use std::thread::LocalKey;

/// The operation did what it was asked for.
pub(crate) const DONE: i32 = 0;
/// A guard said stop; the output says why.
pub(crate) const TRIPPED: i32 = 1;
/// The input was refused and nothing changed; the output says why.
pub(crate) const REFUSED: i32 = 2;
/// The object was freed before.
pub(crate) const GONE: i32 = 3;
/// There is no price for the model, and nothing changed; the output says so.
pub(crate) const UNKNOWN_MODEL: i32 = 4;
/// It may go on; the output is what it gave.
pub(crate) const TOLD: i32 = 5;
/// A service has to be asked; the output is the question.
pub(crate) const ASK: i32 = 6;
/// Nobody answered, and then nothing passes.
pub(crate) const UNANSWERED: i32 = 7;
/// A guard refused this once; the output says why.
pub(crate) const NOT_NOW: i32 = 8;
/// Something else than the service answered; the output says what.
pub(crate) const MISDIRECTED: i32 = 9;

/// Not yet: others are under way.
pub(crate) const BUSY: i32 = 10;

thread_local! {
    static INPUT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static OUTPUT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Buffers beyond this are given back after use.
const KEPT: usize = 64 * 1024;

/// Makes room for `length` bytes and says where. Valid until the next call of this function.
#[unsafe(no_mangle)]
pub extern "C" fn input(length: usize) -> *const u8 {
    INPUT.with_borrow_mut(|input| {
        input.clear();
        if length <= KEPT {
            input.shrink_to(KEPT);
        }
        input.resize(length.max(KEPT), 0);
        input.as_ptr()
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn output_pointer() -> *const u8 {
    OUTPUT.with_borrow(Vec::as_ptr)
}

#[unsafe(no_mangle)]
pub extern "C" fn output_length() -> usize {
    OUTPUT.with_borrow(Vec::len)
}

/// Runs `operation` on the texts that lie one after another in the input buffer.
pub(crate) fn with_texts<const N: usize, R>(lengths: [usize; N], operation: impl FnOnce([&str; N]) -> R) -> R {
    INPUT.with_borrow(|input| {
        let mut rest = input.as_slice();
        operation(lengths.map(|length| {
            let (text, after) = rest.split_at(length.min(rest.len()));
            rest = after;
            // JavaScript writes with TextEncoder, which makes valid UTF-8 of anything.
            std::str::from_utf8(text).unwrap_or_default()
        }))
    })
}

/// Leaves `text` in the output buffer.
pub(crate) fn answer_text(text: &str) {
    OUTPUT.with_borrow_mut(|output| {
        output.clear();
        output.shrink_to(KEPT);
        output.extend_from_slice(text.as_bytes());
    });
}

/// Leaves `value` as JSON in the output buffer.
pub(crate) fn answer(status: i32, value: &impl Serialize) -> i32 {
    answer_text(&serde_json::to_string(value).unwrap_or_default());
    status
}

/// Leaves the text of what could be done in the output buffer.
pub(crate) fn answer_made(made: Result<String, impl Display>) -> i32 {
    match made {
        Ok(text) => {
            answer_text(&text);
            DONE
        }
        Err(problem) => refuse(problem),
    }
}

/// Says why a guard stopped it.
pub(crate) fn tripped(trip: &Trip) -> i32 {
    answer(TRIPPED, trip)
}

/// Says why the input was refused.
pub(crate) fn refuse(why: impl Display) -> i32 {
    answer_text(&sentence(&why));
    REFUSED
}

/// The number of what could be made. 0 and a reason in the output where it could not.
pub(crate) fn handle_of<T>(table: &'static LocalKey<RefCell<Table<T>>>, made: Result<T, impl Display>) -> u32 {
    match made {
        Ok(object) => table.with_borrow_mut(|table| table.add(object)),
        Err(problem) => {
            refuse(problem);
            0
        }
    }
}

/// Objects that JavaScript knows by number. Number 0 is never given out.
#[derive(Debug)]
pub(crate) struct Table<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Table<T> {
    pub(crate) const fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn add(&mut self, object: T) -> u32 {
        if let Some(handle) = self.free.pop() {
            self.slots[handle as usize - 1] = Some(object);
            return handle;
        }
        self.slots.push(Some(object));
        self.slots.len() as u32
    }

    pub(crate) fn get(&mut self, handle: u32) -> Option<&mut T> {
        self.slots.get_mut((handle as usize).wrapping_sub(1))?.as_mut()
    }

    pub(crate) fn remove(&mut self, handle: u32) {
        drop(self.take(handle));
    }

    /// Gives it away.
    pub(crate) fn take(&mut self, handle: u32) -> Option<T> {
        let object = self.slots.get_mut((handle as usize).wrapping_sub(1))?.take()?;
        self.free.push(handle);
        Some(object)
    }
}

/// A moment, from `Date.now()`.
pub(crate) fn millis(now: f64) -> Timestamp {
    Timestamp::from_millis(now as i64)
}

/// A whole number; below 0 it was left out.
pub(crate) fn whole(name: &str, value: f64) -> Result<Option<u32>, String> {
    match value {
        value if value < 0.0 => Ok(None),
        value if value.fract() == 0.0 && value <= f64::from(u32::MAX) => Ok(Some(value as u32)),
        _ => Err(format!("{name} must be a whole number, not {value}")),
    }
}

/// The length of a text that may be left out: then it is below 0.
pub(crate) fn length(given: i32) -> usize {
    usize::try_from(given).unwrap_or(0)
}

/// A length of time in seconds; below 0 it was left out.
pub(crate) fn seconds(name: &str, value: f64) -> Result<Option<Span>, String> {
    if value < 0.0 {
        return Ok(None);
    }
    Span::from_seconds_f64(value).map(Some).map_err(|problem| format!("{name} is {value}: {problem}"))
}

/// Settings with some of them replaced. Of a setting that is a table, the entries that are not named stay.
pub(crate) fn overlaid<S: Serialize + DeserializeOwned>(settings: &S, changes: &str) -> Result<S, String> {
    let mut all = serde_json::to_value(settings).map_err(|error| error.to_string())?;
    let changes: Map<String, Value> = serde_json::from_str(changes).map_err(|error| error.to_string())?;
    for (name, change) in changes {
        // A typo must not pass in silence.
        let setting = all.get_mut(&name).ok_or_else(|| format!("there is no setting '{name}'"))?;
        match (setting, change) {
            (Value::Object(entries), Value::Object(change)) => entries.extend(change),
            (setting, change) => *setting = change,
        }
    }
    serde_json::from_value(all).map_err(|error| error.to_string())
}

/// Makes the memory larger by so many bytes, at once: each time it grows, JavaScript has another buffer, and its collector the work.
#[unsafe(no_mangle)]
pub extern "C" fn reserve(bytes: usize) {
    // What is given back here stays with the allocator.
    drop(Vec::<u8>::with_capacity(bytes));
}
