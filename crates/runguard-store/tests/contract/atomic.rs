//! Steps on one key run one after the other.

use crate::contract::toy::{TENANT, Toy, add, all_rows, keep, key, number, on_every_store, one_more, row, rows_of, sum, summed};
use runguard_store::{Decided, View, Written};
use std::time::Duration;
use tokio::task::JoinSet;

on_every_store!(
    many_tasks_that_count_on_one_key_lose_nothing,
    of_all_who_race_for_the_last_slots_exactly_as_many_as_there_are_get_one,
    a_step_that_only_replies_leaves_no_row_and_no_state,
);

async fn many_tasks_that_count_on_one_key_lose_nothing(toy: Toy) {
    let mut tasks = JoinSet::new();
    for _ in 0..64 {
        let store = toy.store.clone();
        tasks.spawn(async move {
            let mut seen = Vec::new();
            for _ in 0..50 {
                seen.push(add(&store, "one", 1).await.unwrap());
            }
            seen
        });
    }
    let mut seen: Vec<u64> = tasks.join_all().await.concat();
    seen.sort_unstable();
    assert_eq!(seen, (1..=64 * 50).collect::<Vec<u64>>(), "every step saw the one before it");
    assert_eq!(sum(&toy.store, "one").await, 64 * 50);
    assert_eq!(all_rows(&toy.store).await.len(), 64 * 50);
}

async fn of_all_who_race_for_the_last_slots_exactly_as_many_as_there_are_get_one(toy: Toy) {
    const SLOTS: u64 = 7;
    for round in 0..20 {
        let session = format!("race-{round}");
        let mut tasks = JoinSet::new();
        for _ in 0..64 {
            let (store, session) = (toy.store.clone(), session.clone());
            tasks.spawn(async move {
                let take_one = |view: &View<'_>| {
                    if number(view.get(0)) >= SLOTS {
                        return Decided::Reply(false);
                    }
                    Decided::Keep(true, Written { row: row(&session), changes: one_more(view, 1) })
                };
                store.apply(&[summed(key(&session))], take_one).await.unwrap()
            });
        }
        let allowed = tasks.join_all().await.into_iter().filter(|allowed| *allowed).count();
        assert_eq!(allowed as u64, SLOTS);
        assert_eq!(sum(&toy.store, &session).await, SLOTS);
    }
}

#[test]
fn a_thread_that_ends_its_runtime_and_starts_another_gets_its_answers() {
    let toy = Toy::new();
    for round in 1..=20 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let answered = runtime.block_on(async { tokio::time::timeout(Duration::from_secs(20), add(&toy.store, "one", 1)).await });
        assert_eq!(answered.expect("the answer came home").unwrap(), round);
    }
    // Nobody waits any more for this one; it is kept all the same, and those who come later are not held up by it.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = toy.store.clone();
    runtime.spawn(async move { add(&store, "one", 1).await });
    runtime.block_on(tokio::task::yield_now());
    drop(runtime);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert_eq!(runtime.block_on(add(&toy.store, "one", 1)).unwrap(), 22);
}

#[test]
fn steps_that_name_their_keys_in_opposite_orders_do_not_wait_for_each_other_for_ever() {
    // On a thread of its own: those who wait for each other would hold up the runtime's clock as well.
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
        runtime.block_on(step_in_every_order());
        done.send(()).unwrap();
    });
    ended.recv_timeout(Duration::from_secs(30)).expect("the steps wait for each other, or one has failed");
}

async fn step_in_every_order() {
    let toy = Toy::new();
    let mut tasks = JoinSet::new();
    for task in 0..16_u64 {
        let store = toy.store.clone();
        tasks.spawn(async move {
            for turn in 0..50 {
                let mut names = ["left", "middle", "right"];
                names.rotate_left((task + turn) as usize % 3);
                if task % 2 == 0 {
                    names.reverse();
                }
                keep(&store, &names.map(|name| summed(key(name))), row("many"), |view| one_more(view, 3)).await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    let toy = toy.reopen();
    for name in ["left", "middle", "right"] {
        assert_eq!(sum(&toy.store, name).await, 16 * 50);
    }
}

async fn a_step_that_only_replies_leaves_no_row_and_no_state(toy: Toy) {
    let reply = toy.store.apply(&[summed(key("quiet"))], |view| Decided::Reply(view.get(0).is_none())).await;
    assert!(reply.unwrap());
    assert!(all_rows(&toy.store).await.is_empty());
    assert!(toy.store.states(TENANT, "quiet").await.unwrap().is_empty());
}

/// Who is refused because the store is stopping must not be counted, on disk least of all.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_stop_under_load_keeps_what_was_answered_and_nothing_else() {
    for _ in 0..5 {
        let toy = Toy::new();
        let mut tasks = JoinSet::new();
        for task in 0..16 {
            let store = toy.store.clone();
            tasks.spawn(async move {
                let session = format!("stop-{task}");
                let mut answered = 0;
                while let Ok(count) = add(&store, &session, 1).await {
                    answered = count;
                }
                (session, answered)
            });
        }
        toy.store.committed().wait_for(|seq| *seq > 200).await.unwrap();
        let store = toy.store.clone();
        tokio::task::spawn_blocking(move || store.stop()).await.unwrap();
        let ended = tasks.join_all().await;
        let toy = toy.reopen();
        for (session, answered) in ended {
            assert_eq!(rows_of(&toy.store, &session).await.len() as u64, answered, "rows of {session}");
            assert_eq!(sum(&toy.store, &session).await, answered, "the count of {session}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_store_refuses_and_does_not_hang() {
    let toy = Toy::new();
    add(&toy.store, "one", 1).await.unwrap();
    toy.store.stop();
    let patience = Duration::from_secs(5);
    assert!(tokio::time::timeout(patience, add(&toy.store, "one", 1)).await.expect("apply hangs").is_err());
    assert!(tokio::time::timeout(patience, toy.store.probe()).await.expect("probe hangs").is_err());
    assert!(tokio::time::timeout(patience, toy.store.flush()).await.expect("flush hangs").is_err());
}
