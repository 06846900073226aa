//! Little memory: states leave it and come back from disk as they were.

use crate::contract::toy::{
    LIST, Store, TINY, Toy, add, append, change, eventually, keep, key, listed, one_more, row, states_of, sum, summed,
};
use runguard_store::{Cell, Change};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::task::JoinSet;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn states_that_left_memory_come_back_right() {
    const KEYS: u64 = 3000;
    let toy = Toy::with_memory(TINY);
    let mut tasks = JoinSet::new();
    for task in 0..8 {
        let store = toy.store.clone();
        tasks.spawn(async move {
            for number in (task..KEYS).step_by(8) {
                add(&store, &number.to_string(), number).await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    eventually("memory is within its bound", async || toy.store.bytes_in_memory() <= TINY).await;
    assert!(toy.store.entries_in_memory() < 500, "{} entries", toy.store.entries_in_memory());
    for number in (0..KEYS).step_by(3) {
        assert_eq!(sum(&toy.store, &number.to_string()).await, number);
        assert_eq!(add(&toy.store, &number.to_string(), 1).await.unwrap(), number + 1);
    }
    let toy = toy.reopen();
    for number in 0..KEYS {
        assert_eq!(sum(&toy.store, &number.to_string()).await, number + u64::from(number % 3 == 0));
    }
}

/// Makes the store write down and evict what it can, over and over, for as long as `work` lasts.
async fn while_states_leave(store: Arc<Store>, work: impl Future<Output = ()>) {
    let done = AtomicBool::new(false);
    let leaving = async {
        while !done.load(Ordering::Relaxed) {
            store.flush().await.unwrap();
        }
    };
    let working = async {
        work.await;
        done.store(true, Ordering::Relaxed);
    };
    tokio::join!(leaving, working);
}

/// A state may leave memory at any moment, also between being fetched and being used.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_counter_is_never_reset_by_leaving_memory_under_load() {
    const KEYS: usize = 200;
    const ROUNDS: u64 = 20;
    let toy = Toy::with_memory(1);
    let mut tasks = JoinSet::new();
    for task in 0..8 {
        let store = toy.store.clone();
        tasks.spawn(async move {
            for round in 1..=ROUNDS {
                for key in (task..KEYS).step_by(8) {
                    assert_eq!(add(&store, &key.to_string(), 1).await.unwrap(), round, "key {key}");
                }
            }
        });
    }
    while_states_leave(toy.store.clone(), async { drop(tasks.join_all().await) }).await;
    for key in 0..KEYS {
        assert_eq!(sum(&toy.store, &key.to_string()).await, ROUNDS);
    }
}

/// The more keys a step has, the longer it takes to fetch them, and the likelier one has left before the last is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_step_on_many_keys_runs_when_all_of_them_are_there() {
    const QUICK: u64 = 80;
    let toy = Toy::with_memory(1);
    let names: Vec<String> = ["hot".to_owned()].into_iter().chain((0..1000).map(|number| format!("cold {number}"))).collect();
    let sums: Vec<Cell<'_>> = names.iter().map(|name| summed(key(name))).collect();
    let quick = tokio::spawn({
        let store = toy.store.clone();
        async move {
            for _ in 0..QUICK {
                add(&store, "hot", 1).await.unwrap();
                // Written down, and out of memory.
                store.flush().await.unwrap();
            }
        }
    });
    let mut slow = 0;
    while !quick.is_finished() {
        keep(&toy.store, &sums, row("hot"), |view| one_more(view, 1)).await.unwrap();
        slow += 1;
    }
    quick.await.unwrap();
    assert_eq!(sum(&toy.store, "hot").await, QUICK + slow);
}

/// A window that fills and empties must not look like memory in use, or everything is thrown out for nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_account_of_memory_follows_states_that_shrink() {
    let toy = Toy::new();
    let set = async |state: &[u8]| {
        let change = Change { cell: 0, events: Vec::new(), state: state.into() };
        keep(&toy.store, &[listed(key("breathing"), "")], row("breathing"), |_| vec![change.clone()]).await.unwrap();
    };
    for _ in 0..100 {
        set(&[7; 10_000]).await;
        set(&[]).await;
    }
    let bytes = toy.store.bytes_in_memory();
    assert!(bytes < 2_000, "one small entry is accounted for with {bytes} bytes");
    set(&[7; 10_000]).await;
    let bytes = toy.store.bytes_in_memory();
    assert!((10_000..12_000).contains(&bytes), "one large entry is accounted for with {bytes} bytes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_account_of_memory_is_the_same_after_a_restart() {
    let toy = Toy::new();
    for number in 0..500 {
        append(&toy.store, &number.to_string(), "subject", b"some state").await;
    }
    let before = toy.store.bytes_in_memory();
    let toy = toy.reopen();
    eventually("all are back", async || toy.store.entries_in_memory() == 500).await;
    assert_eq!(toy.store.bytes_in_memory(), before);
}

/// Asking for many sessions that nobody knows must not fill the memory for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn looking_for_what_is_not_there_takes_no_room_for_good() {
    let toy = Toy::with_memory(TINY);
    for number in 0..200 {
        append(&toy.store, &number.to_string(), "", &[7; 1000]).await;
    }
    eventually("states have left memory", async || toy.store.bytes_in_memory() <= TINY).await;
    for number in 0..2000 {
        assert!(states_of(&toy.store, key(&format!("nobody {number}"))).await.unwrap().is_empty());
    }
    eventually("memory is within its bound", async || toy.store.bytes_in_memory() <= TINY).await;
    let made = keep(&toy.store, &[listed(key("0"), "")], row("0"), |view| vec![change(view, 0, LIST, &[7])]).await.unwrap();
    assert_eq!(made[0].len(), 1001);
}
