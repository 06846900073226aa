//! A full disk: nothing of a refused request counts, nothing answered is lost, and it goes on when there is room.

use crate::contract::toy::{
    PLENTY, Store, Toy, add, all_rows, eventually, keep, key, log_file, number, one_more, open, row, rows_of, sum, summed, try_open,
};
use runguard_store::{Row, StoreError};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use tempfile::TempDir;
use tokio::task::JoinSet;

/// A file system of a few megabytes, for as long as this lives.
struct SmallDisk {
    folder: TempDir,
}

impl SmallDisk {
    /// `None`, with the reason said, where we may not mount.
    fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=4m", "tmpfs"]).arg(folder.path()).output();
        match mounted {
            Ok(output) if output.status.success() => Some(Self { folder }),
            Ok(output) => {
                eprintln!("skipped: cannot mount a small disk: {}", String::from_utf8_lossy(&output.stderr).trim());
                None
            }
            Err(error) => {
                eprintln!("skipped: cannot mount a small disk: {error}");
                None
            }
        }
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn ballast(&self) -> PathBuf {
        self.folder.path().join("ballast")
    }

    /// Takes all the room that is left.
    fn fill(&self) {
        let mut file = std::fs::File::options().create(true).append(true).open(self.ballast()).unwrap();
        for size in [65536, 4096, 1] {
            let block = vec![7; size];
            while file.write_all(&block).is_ok() {}
        }
    }

    fn free(&self) {
        std::fs::remove_file(self.ballast()).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.folder.path()).status();
    }
}

/// A step that needs room: on a shared sum and on a session's own.
async fn write_much(store: &Store, session: &str) -> Result<u64, StoreError> {
    let row = Row { input: "x".repeat(2000), ..row(session) };
    let made = keep(store, &[summed(key("shared")), summed(key(session))], row, |view| one_more(view, 2)).await?;
    Ok(number(Some(&made[1])))
}

async fn check_books(store: &Store, answered: &BTreeMap<String, u64>) {
    for (session, count) in answered {
        assert_eq!(sum(store, session).await, *count, "the count of {session}");
        assert_eq!(rows_of(store, session).await.len() as u64, *count, "the rows of {session}");
    }
    let total: u64 = answered.values().sum();
    assert_eq!(sum(store, "shared").await, total);
    assert!(all_rows(store).await.iter().map(|row| row.seq).eq(1..=total), "each row once, without a gap");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_full_disk_refuses_and_a_freed_one_goes_on_exactly_where_it_was() {
    let Some(disk) = SmallDisk::mount() else { return };
    let store = Arc::new(open(&disk.data(), PLENTY));
    let mut answered: BTreeMap<String, u64> = BTreeMap::new();
    let mut refused = 0;
    for round in 0..6 {
        disk.fill();
        // Room that the log still has in its file is used up first.
        let mut tasks = JoinSet::new();
        for task in 0..16 {
            let store = store.clone();
            tasks.spawn(async move {
                let session = format!("s{task}");
                let (mut count, mut refused) = (0, 0);
                for _ in 0..15 {
                    match write_much(&store, &session).await {
                        Ok(new) => count = new,
                        Err(StoreError::Write(_)) => refused += 1,
                        Err(other) => panic!("{other}"),
                    }
                }
                (session, count, refused)
            });
        }
        for (session, count, refusals) in tasks.join_all().await {
            let known = answered.entry(session).or_default();
            *known = count.max(*known);
            refused += refusals;
        }
        if round == 0 {
            assert!(refused > 0, "the disk was not full");
            assert!(store.probe().await.is_err());
        }
        // In memory first: what was refused does not count.
        for (session, count) in &answered {
            assert_eq!(sum(&store, session).await, *count, "{session} while the disk is full");
        }
        disk.free();
        eventually("the disk takes a write", async || store.probe().await.is_ok()).await;
        for (session, count) in &mut answered {
            *count += 1;
            assert_eq!(write_much(&store, session).await.unwrap(), *count, "{session} goes on");
        }
        check_books(&store, &answered).await;
        if round % 2 == 1 {
            store.flush().await.unwrap();
        }
    }
    drop(Arc::into_inner(store).unwrap());
    check_books(&open(&disk.data(), PLENTY), &answered).await;
}

/// Also when the process does not live to see room again.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_store_that_is_closed_on_a_full_disk_has_lost_nothing_answered() {
    let Some(disk) = SmallDisk::mount() else { return };
    let store = Arc::new(open(&disk.data(), PLENTY));
    let mut answered: BTreeMap<String, u64> = BTreeMap::new();
    for number in 0..100_u64 {
        let session = format!("s{}", number % 10);
        let count = write_much(&store, &session).await.unwrap();
        answered.insert(session, count);
    }
    disk.fill();
    for number in 0..1000_u64 {
        let session = format!("s{}", number % 10);
        match write_much(&store, &session).await {
            Ok(count) => drop(answered.insert(session, count)),
            Err(StoreError::Write(_)) => break,
            Err(other) => panic!("{other}"),
        }
    }
    drop(Arc::into_inner(store).unwrap());
    disk.free();
    check_books(&open(&disk.data(), PLENTY), &answered).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_on_a_full_disk_is_refused_with_a_word_about_the_disk() {
    let Some(disk) = SmallDisk::mount() else { return };
    std::fs::create_dir(disk.data()).unwrap();
    disk.fill();
    let refusal = try_open(&disk.data(), PLENTY).unwrap_err();
    assert!(refusal.to_string().contains("disk may be full"), "{refusal}");
    disk.free();
    let store = open(&disk.data(), PLENTY);
    assert_eq!(add(&store, "one", 1).await.unwrap(), 1);
}

/// Another writer holds the file. Answers go on, from what was written beside it; what is to be read there says that it cannot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_log_is_locked_answers_go_on_and_their_rows_follow() {
    let toy = Toy::new();
    assert_eq!(add(&toy.store, "one", 1).await.unwrap(), 1);
    toy.store.flush().await.unwrap();
    let held = rusqlite::Connection::open(log_file(toy.folder.path())).unwrap();
    held.execute_batch("BEGIN IMMEDIATE").unwrap();
    for count in 2..=11 {
        assert_eq!(add(&toy.store, "one", 1).await.unwrap(), count);
    }
    let flushed = toy.store.flush().await;
    assert!(matches!(flushed, Err(StoreError::Write(_))), "{flushed:?}");
    assert!(toy.store.probe().await.is_err());
    assert_eq!(rows_of(&toy.store, "one").await.len(), 1, "what can be read is shown");
    held.execute_batch("ROLLBACK").unwrap();
    assert_eq!(add(&toy.store, "one", 1).await.unwrap(), 12);
    eventually("the rows are in the log", async || rows_of(&toy.store, "one").await.len() == 12).await;
    let toy = toy.reopen();
    assert_eq!(sum(&toy.store, "one").await, 12);
    assert!(all_rows(&toy.store).await.iter().map(|row| row.seq).eq(1..=12));
}

/// The same, and the process ends before the file is free: what was answered is beside it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_answered_while_the_log_was_locked_is_there_after_a_stop() {
    let toy = Toy::new();
    let held = rusqlite::Connection::open(log_file(toy.folder.path())).unwrap();
    held.execute_batch("BEGIN IMMEDIATE").unwrap();
    for count in 1..=5 {
        assert_eq!(add(&toy.store, "one", 1).await.unwrap(), count);
    }
    let toy = toy.reopen_after(|_| held.execute_batch("ROLLBACK").unwrap());
    assert_eq!(sum(&toy.store, "one").await, 5);
    assert_eq!(rows_of(&toy.store, "one").await.len(), 5);
    assert_eq!(add(&toy.store, "one", 1).await.unwrap(), 6);
}
