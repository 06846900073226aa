//! Many nodes, one database and one log in one process, without threads: time, network, crashes and requests follow from a seed.
//!
//! Nodes are real engines on real cluster stores; only the database, the log and the disks are models. A seed that fails is
//! printed and can be lived through again:
//!
//! ```sh
//! RUNGUARD_SIM_SEED=17 cargo test -p runguard-engine --test simulation
//! RUNGUARD_SIM_SEEDS=5000 cargo test -p runguard-engine --test simulation
//! ```

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should stop")]

mod books;
mod chance;
mod network;
mod world;

use crate::world::Reservations;
use std::collections::BTreeSet;
use std::num::NonZero;
use std::sync::Mutex;

/// Seeds of an ordinary run.
const SEEDS: u64 = 25;
/// Seeds that once found something wrong: a clock that was not known yet, commands that arrived after their sender had looked whether
/// they had, a node that asked in a circle what had become of its commands, a database that was put back to the time before it was built, a row
/// that was sent again after its erasure, a command that came twice to a stream that was full the first time, a node that answered before the
/// others had said what they decided alone, one that waited for the states of a database that was no
/// more, a row that was erased and is of a clock that was ahead, a database that was back after another had taken its place,
/// a command that was refused the first time and done the second, answers that were dropped because others had to look again, a server that
/// refuses and was asked again without a pause, an erasure that went on while the states of its database were built anew, one that took place
/// before rows that it took, one that was told with the time at which it was asked for again, states that were built while a node joined and went
/// while they counted, an erasure that took the streams of one database for those of the one before.
const FOUND: [u64; 40] = [
    42, 67, 103, 192, 717, 1203, 1263, 1411, 1442, 1843, 1925, 2362, 2473, 2530, 2611, 2766, 2817, 3259, 3486, 3815, 4368, 6116, 7440,
    10306, 10668, 10797, 11704, 13165, 14668, 60133, 60213, 60222, 60242, 60357, 60587, 60610, 60904, 61434, 100_888, 100_976,
];

/// A reservation that was booked in a parent by another session, and was settled there once more.
const FOUND_LATE: [u64; 1] = [12];

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} must be a number")))
}

fn hold(seed: u64, reservations: Reservations) -> Option<String> {
    let wrong = world::run(seed, reservations).err()?;
    Some(format!(
        "seed {seed}: {wrong}\n  again: RUNGUARD_SIM_SEED={seed} cargo test -p runguard-engine --test simulation books_balance ({reservations:?})"
    ))
}

fn seeds(usual: u64, found: &[u64]) -> BTreeSet<u64> {
    let from = number("RUNGUARD_SIM_FROM").unwrap_or(0);
    match number("RUNGUARD_SIM_SEED") {
        Some(seed) => BTreeSet::from([seed]),
        None => (from..from + number("RUNGUARD_SIM_SEEDS").unwrap_or(usual)).chain(found.iter().copied()).collect(),
    }
}

/// Each seed is a world of its own on one thread; as many at a time as there are cores.
fn all_hold(seeds: BTreeSet<u64>, reservations: Reservations) {
    let left = Mutex::new(seeds.into_iter());
    let next = || left.lock().unwrap().next();
    let worker = || std::iter::from_fn(next).filter_map(|seed| hold(seed, reservations)).collect::<Vec<String>>();
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let failed = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect::<Vec<String>>()
    });
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn the_books_balance_whatever_the_seed() {
    all_hold(seeds(SEEDS, &FOUND), Reservations::Last);
}

#[test]
fn the_books_balance_where_reservations_are_settled_late() {
    all_hold(seeds(6, &FOUND_LATE), Reservations::Expire);
}

#[test]
fn a_seed_gives_the_same_run_each_time() {
    for seed in 0..3 {
        let run = || world::run(seed, Reservations::Last);
        assert_eq!(run(), run(), "seed {seed}");
    }
}
