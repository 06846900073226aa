//! Runs whose records are interleaved, open side by side.
//!
//! Memory is bounded by [`MOST_OPEN`] runs and [`MOST_HELD`] records in all of them: past either, the run that has been silent
//! longest is closed and handed out. Should it go on after that, the rest is a run of its own, and that is told.

use super::Out;
use std::collections::{HashMap, HashSet};
use xxhash_rust::xxh3::xxh3_64;

pub(super) const MOST_OPEN: usize = 2048;
/// A record of a span is a few hundred bytes to a few kilobytes.
pub(super) const MOST_HELD: usize = 100_000;
/// Closed early and remembered, to tell when one goes on.
const MOST_CLOSED: usize = 1_000_000;

pub(super) trait Open: Sized {
    /// How much it holds, in records.
    fn held(&self) -> usize;

    fn close(self, out: &mut Out);
}

#[derive(Debug)]
struct OpenGroup<T> {
    open: T,
    line: u64,
    touched: u64,
    held: usize,
}

#[derive(Debug)]
pub(super) struct Grouped<T> {
    slots: HashMap<String, OpenGroup<T>>,
    closed: HashSet<u64>,
    clock: u64,
    held: usize,
}

impl<T> Default for Grouped<T> {
    fn default() -> Self {
        Self { slots: HashMap::new(), closed: HashSet::new(), clock: 0, held: 0 }
    }
}

impl<T: Open> Grouped<T> {
    /// Tells something to the run of that name, which is begun when there is none.
    pub(super) fn tell(&mut self, name: &str, line: u64, out: &mut Out, begin: impl FnOnce(&Out) -> T, tell: impl FnOnce(&mut T)) {
        self.clock += 1;
        if !self.slots.contains_key(name) {
            if self.closed.contains(&xxh3_64(name.as_bytes())) {
                let problem = format!("{name} goes on after it was taken for ended, because too many runs were open; sort the file by run");
                out.broken(line, problem);
            }
            if self.slots.len() >= MOST_OPEN {
                self.close_oldest(name, out);
            }
            self.slots.insert(name.to_owned(), OpenGroup { open: begin(out), line, touched: 0, held: 0 });
        }
        let Some(slot) = self.slots.get_mut(name) else { return };
        slot.touched = self.clock;
        tell(&mut slot.open);
        let held = slot.open.held();
        self.held = self.held + held - slot.held;
        slot.held = held;
        while self.held > MOST_HELD && self.close_oldest(name, out) {}
    }

    fn close_oldest(&mut self, but: &str, out: &mut Out) -> bool {
        let oldest = self.slots.iter().filter(|(name, _)| *name != but).min_by_key(|(_, slot)| slot.touched).map(|(name, _)| name.clone());
        let Some((name, slot)) = oldest.and_then(|name| self.slots.remove_entry(&name)) else { return false };
        self.held -= slot.held;
        if self.closed.len() < MOST_CLOSED {
            self.closed.insert(xxh3_64(name.as_bytes()));
        }
        slot.open.close(out);
        true
    }

    /// In the order they began.
    pub(super) fn close_all(&mut self, out: &mut Out) {
        let mut slots: Vec<(String, OpenGroup<T>)> = self.slots.drain().collect();
        slots.sort_by(|(name, slot), (other_name, other)| (slot.line, name).cmp(&(other.line, other_name)));
        self.held = 0;
        for (_, slot) in slots {
            slot.open.close(out);
        }
    }
}
