//! `kill -9` at any moment: what was answered is there, exactly once, and the states are what the log says.

use crate::contract::toy::{LIST, PLENTY, Store, TINY, all_rows, change, index_file, key, listed, open, row, states_of};
use runguard_store::{Decided, Row, StoreError, Written};
use std::collections::{BTreeMap, HashSet};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use tokio::task::JoinSet;

const FOLDER: &str = "RUNGUARD_TEST_FOLDER";
const MEMORY: &str = "RUNGUARD_TEST_MEMORY";
const SESSIONS: u32 = 40;

/// Appends the next number to the session's list and gives it.
async fn count(store: &Store, session: &str) -> Result<u32, StoreError> {
    store
        .apply(&[listed(key(session), "")], |view| {
            let next = (view.get(0).map_or(0, <[u8]>::len) / 4) as u32;
            let row = Row { answer: next.to_string(), ..row(session) };
            Decided::Keep(next, Written { row, changes: vec![change(view, 0, LIST, &next.to_le_bytes())] })
        })
        .await
}

/// Not a test: the process that the test below kills. It says what was answered, and goes on for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started, and killed, by another test"]
async fn the_process_to_be_killed() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let store = Arc::new(open(Path::new(&folder), std::env::var(MEMORY).unwrap().parse().unwrap()));
    let mut tasks = JoinSet::new();
    for task in 0..16_u32 {
        let store = store.clone();
        tasks.spawn(async move {
            for turn in 0_u32.. {
                let session = format!("s{}", (task * 7 + turn * 3) % SESSIONS);
                let next = count(&store, &session).await.unwrap();
                // In one piece, so that the reader never sees half a line as a whole one.
                std::io::stdout().write_all(format!("answered {session} {next}\n").as_bytes()).unwrap();
            }
        });
    }
    // States reach the second file, and the write-ahead logs are emptied, while all that goes on.
    tasks.spawn(async move {
        loop {
            store.flush().await.unwrap();
        }
    });
    tasks.join_all().await;
}

/// Lets a process answer, kills it, and gives what it had answered until then.
fn answered_before_the_kill(folder: &Path, memory_bytes: usize, answers: usize) -> Vec<(String, u32)> {
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["contract::crash::the_process_to_be_killed", "--exact", "--ignored", "--nocapture"])
        .env(FOLDER, folder)
        .env(MEMORY, memory_bytes.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut answered = Vec::new();
    for line in BufReader::new(process.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        if let Some((session, next)) = line.strip_prefix("answered ").and_then(|rest| rest.split_once(' ')) {
            answered.push((session.to_owned(), next.parse().unwrap()));
        }
        if answered.len() == answers {
            process.kill().unwrap();
        }
    }
    process.wait().unwrap();
    assert!(answered.len() >= answers, "the process ended by itself after {} answers", answered.len());
    answered
}

async fn check_books(store: &Store, answered: &HashSet<(String, u32)>) {
    let rows = all_rows(store).await;
    assert!(rows.windows(2).all(|pair| pair[0].seq < pair[1].seq));
    let mut counted: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for row in rows {
        counted.entry(row.session).or_default().push(row.answer.parse().unwrap());
    }
    for (session, numbers) in &counted {
        assert!(numbers.iter().copied().eq(0..numbers.len() as u32), "{session}: each number once, in order: {numbers:?}");
        let state: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let states = states_of(store, key(session)).await.unwrap();
        assert_eq!(*states[0].state, *state, "{session}: the state is what the log says");
    }
    for (session, number) in answered {
        assert!(counted[session].len() as u32 > *number, "{session}: {number} was answered and is not in the log");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_process_leaves_every_answered_row_exactly_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut answered = HashSet::new();
    for (round, answers) in [1, 300, 30, 1000, 100, 2000].into_iter().enumerate() {
        let memory_bytes = if round % 2 == 0 { PLENTY } else { TINY / 16 };
        let path = folder.path().to_owned();
        let new = tokio::task::spawn_blocking(move || answered_before_the_kill(&path, memory_bytes, answers)).await.unwrap();
        for answer in new {
            assert!(answered.insert(answer.clone()), "{answer:?} was given twice");
        }
        match round {
            // Killed again before anybody has looked.
            0 | 2 => continue,
            // The second file is lost; what had not reached it is still in its write-ahead log.
            3 => std::fs::remove_file(index_file(folder.path())).unwrap(),
            _ => {}
        }
        check_books(&open(folder.path(), PLENTY), &answered).await;
    }
    let store = open(folder.path(), PLENTY);
    let states = states_of(&store, key("s0")).await.unwrap();
    assert_eq!(count(&store, "s0").await.unwrap() as usize, states[0].state.len() / 4, "and it goes on counting");
}
