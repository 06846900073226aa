//! Little memory: states leave it and come back from disk as they were.

use crate::toy::{LIST, TINY, Toy, add, append, change, eventually, keep, key, row, sum};
use runguard_store::Change;
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

/// A state may leave memory at any moment, also between being fetched and being used.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_counter_is_never_reset_by_leaving_memory_under_load() {
    const KEYS: usize = 200;
    const ROUNDS: u64 = 12;
    let toy = Toy::with_memory(1);
    let done = Arc::new(AtomicBool::new(false));
    let mut flushing = JoinSet::new();
    {
        let (store, done) = (toy.store.clone(), done.clone());
        flushing.spawn(async move {
            while !done.load(Ordering::Relaxed) {
                store.flush().await.unwrap();
            }
        });
    }
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
    tasks.join_all().await;
    done.store(true, Ordering::Relaxed);
    flushing.join_all().await;
    for key in 0..KEYS {
        assert_eq!(sum(&toy.store, &key.to_string()).await, ROUNDS);
    }
}

/// The same, with all tasks on few keys: who fetches late must not bring an old state back.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn who_fetches_late_does_not_bring_an_old_state_back() {
    const KEYS: usize = 3;
    let toy = Toy::with_memory(1);
    let done = Arc::new(AtomicBool::new(false));
    let mut flushing = JoinSet::new();
    {
        let (store, done) = (toy.store.clone(), done.clone());
        flushing.spawn(async move {
            while !done.load(Ordering::Relaxed) {
                store.flush().await.unwrap();
            }
        });
    }
    let mut tasks = JoinSet::new();
    for task in 0..16 {
        let store = toy.store.clone();
        tasks.spawn(async move {
            for turn in 0..100 {
                add(&store, &((task + turn) % KEYS).to_string(), 1).await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    done.store(true, Ordering::Relaxed);
    flushing.join_all().await;
    let mut total = 0;
    for key in 0..KEYS {
        total += sum(&toy.store, &key.to_string()).await;
    }
    assert_eq!(total, 16 * 100);
}

/// A window that fills and empties must not look like memory in use, or everything is thrown out for nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_account_of_memory_follows_states_that_shrink() {
    let toy = Toy::new();
    let set = async |state: &[u8]| {
        let change = Change { key: 0, slot: LIST, subject: String::new(), events: Vec::new(), state: state.into() };
        keep(&toy.store, &[key("breathing")], row("breathing"), |_| vec![change]).await.unwrap();
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
        assert!(toy.store.states(key(&format!("nobody {number}"))).await.unwrap().is_empty());
    }
    eventually("memory is within its bound", async || toy.store.bytes_in_memory() <= TINY).await;
    let made = keep(&toy.store, &[key("0")], row("0"), |view| vec![change(view, 0, LIST, "", &[7])]).await.unwrap();
    assert_eq!(made[0].len(), 1001);
}
