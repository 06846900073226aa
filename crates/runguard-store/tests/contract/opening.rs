//! A folder that cannot be used says why, and is left as it was.

use crate::contract::toy::{
    PLENTY, RULES, Store, TENANT, Toy, add, all_rows, index_file, keep, log_file, one_more, options, row, rows_of, sum, summed, try_open,
    write,
};
use runguard_store::{Durability, Embedded, Family, Names, OpenError, Options, Row};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// A folder with a log of many pages, closed.
async fn filled_folder() -> tempfile::TempDir {
    let toy = Toy::new();
    for number in 0..100 {
        write(&toy.store, Row { input: "x".repeat(1000), ..row(&number.to_string()) }).await;
    }
    let Toy { folder, store, .. } = toy;
    drop(store);
    folder
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_in_use_is_refused_until_it_is_free() {
    let toy = Toy::new();
    let second = runguard_store::Embedded::open(options(toy.folder.path(), PLENTY), RULES);
    assert!(matches!(second, Err(OpenError::InUse { .. })), "{second:?}");
    add(&toy.store, "one", 1).await.unwrap();
    let Toy { folder, store, .. } = toy;
    drop(store);
    assert_eq!(all_rows(&try_open(folder.path(), PLENTY).unwrap()).await.len(), 1);
}

/// Until it has become the other program, a process that is started has copies of all files of the one that starts it.
#[test]
fn a_folder_is_free_when_it_is_closed_whatever_is_just_started() {
    let (folder, done) = (tempfile::tempdir().unwrap(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    Command::new("true").status().unwrap();
                }
            });
        }
        let opened: Vec<_> = (0..50).map(|_| try_open(folder.path(), PLENTY).map(drop)).collect();
        done.store(true, Ordering::Relaxed);
        let refused = opened.iter().filter(|opened| opened.is_err()).count();
        assert_eq!(refused, 0, "of {}: {:?}", opened.len(), opened.iter().find(|opened| opened.is_err()));
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_log_is_refused_and_not_touched() {
    let folder = filled_folder().await;
    let good = std::fs::read(log_file(folder.path())).unwrap();
    assert!(good.len() > 10 * 8192);
    let garbage: Vec<u8> = (0..good.len() as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let damages: Vec<(&str, Vec<u8>)> = vec![
        ("garbage throughout", garbage.clone()),
        ("short garbage", b"this is no database".to_vec()),
        ("garbage behind a good header", [&good[..100], &garbage[100..]].concat()),
        ("garbage behind a good first page", [&good[..8192], &garbage[8192..]].concat()),
        ("garbage at the end", [&good[..good.len() - 8192], &garbage[good.len() - 8192..]].concat()),
        ("cut to its header", good[..100].to_vec()),
        ("cut to one page", good[..8192].to_vec()),
        ("cut in half", good[..good.len() / 2].to_vec()),
        ("cut by one page", good[..good.len() - 8192].to_vec()),
    ];
    for (damage, bytes) in damages {
        std::fs::write(log_file(folder.path()), &bytes).unwrap();
        match try_open(folder.path(), PLENTY) {
            Err(OpenError::Damaged { path, .. }) => assert_eq!(path, log_file(folder.path()), "{damage}"),
            other => panic!("{damage}: {other:?}"),
        }
        assert!(std::fs::read(log_file(folder.path())).unwrap() == bytes, "{damage}: the file was changed");
    }
    std::fs::write(log_file(folder.path()), &good).unwrap();
    assert_eq!(all_rows(&try_open(folder.path(), PLENTY).unwrap()).await.len(), 100, "and with the backup all is well");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_or_missing_log_is_told_apart_from_a_new_folder() {
    let folder = filled_folder().await;
    let good = std::fs::read(log_file(folder.path())).unwrap();
    let lost = |result: Result<Store, OpenError>| match result {
        Err(OpenError::Lost { path, last: 0, known: 100 }) => assert_eq!(path, log_file(folder.path())),
        other => panic!("{other:?}"),
    };
    std::fs::write(log_file(folder.path()), b"").unwrap();
    lost(try_open(folder.path(), PLENTY));
    lost(try_open(folder.path(), PLENTY));
    std::fs::remove_file(log_file(folder.path())).unwrap();
    lost(try_open(folder.path(), PLENTY));
    std::fs::write(log_file(folder.path()), &good).unwrap();
    assert_eq!(all_rows(&try_open(folder.path(), PLENTY).unwrap()).await.len(), 100);
}

/// Under `Durability::Process` a power cut may take the last rows from the log, while the second file, which is synced
/// at other times, knows of them. That is no reason to refuse; but no number may be used again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_whose_last_rows_a_power_cut_took_goes_on_with_numbers_never_used() {
    let toy = Toy::new();
    for _ in 0..5 {
        add(&toy.store, "one", 1).await.unwrap();
    }
    toy.store.flush().await.unwrap();
    let synced = std::fs::read(log_file(toy.folder.path())).unwrap();
    for _ in 0..5 {
        add(&toy.store, "one", 1).await.unwrap();
    }
    let toy = toy.reopen_after(|folder| std::fs::write(log_file(folder), synced).unwrap());
    assert_eq!(all_rows(&toy.store).await.len(), 5);
    let counted = add(&toy.store, "one", 1).await.unwrap();
    assert!(counted >= 6, "what was counted and is in the log counts still: {counted}");
    let toy = toy.reopen();
    assert_eq!(all_rows(&toy.store).await.last().unwrap().seq, 11);
    assert_eq!(sum(&toy.store, "one").await, counted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_of_a_later_version_is_refused_and_not_touched() {
    let folder = filled_folder().await;
    for (file, newest) in [(log_file(folder.path()), 3), (index_file(folder.path()), 1)] {
        let set_version = |version: i64| {
            rusqlite::Connection::open(&file).unwrap().execute_batch(&format!("PRAGMA user_version = {version}")).unwrap();
        };
        set_version(99);
        let before = std::fs::read(&file).unwrap();
        match try_open(folder.path(), PLENTY) {
            Err(OpenError::TooNew { path, found: 99, known }) => assert_eq!((path, known), (file.clone(), newest)),
            other => panic!("{other:?}"),
        }
        assert!(std::fs::read(&file).unwrap() == before);
        set_version(newest);
    }
    try_open(folder.path(), PLENTY).unwrap();
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), b"").unwrap();
    let path = folder.path().join("file").join("data");
    match try_open(&path, PLENTY) {
        Err(OpenError::Folder { path: named, .. }) => assert_eq!(named, path),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_made_with_the_secret_that_the_folder_was_made_with() {
    let folder = tempfile::tempdir().unwrap();
    let [first, later] = [Names::keyed([3; 16]), Names::keyed([4; 16])];
    assert_eq!(Embedded::names_in(folder.path()).unwrap(), None);
    let open = |names| Store::Embedded(Embedded::open(Options { names, ..options(folder.path(), PLENTY) }, RULES).unwrap());
    let store = open(first);
    assert_eq!(store.names(), first);
    let one = first.key(Family::Session, TENANT, "one");
    keep(&store, &[summed(one)], row("one"), |view| one_more(view, 1)).await.unwrap();
    drop(store);
    assert_eq!(Embedded::names_in(folder.path()).unwrap(), Some(first));
    let store = open(later);
    assert_eq!(store.names(), first);
    assert_eq!(store.states(TENANT, "one").await.unwrap().len(), 1);
    assert_eq!(rows_of(&store, "one").await.len(), 1);
    store.erase_session(TENANT, "one", row("")).await.unwrap().unwrap();
    assert!(rows_of(&store, "one").await.is_empty());
}

/// Its rows and states are filed under keys without a secret; some of the names they were made of are nowhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_of_the_first_format_keeps_its_keys() {
    let toy = Toy::new();
    add(&toy.store, "one", 1).await.unwrap();
    let Toy { folder, store, .. } = toy;
    drop(store);
    let log = rusqlite::Connection::open(log_file(folder.path())).unwrap();
    log.execute_batch("DROP TABLE secret; PRAGMA user_version = 1;").unwrap();
    drop(log);
    assert_eq!(Embedded::names_in(folder.path()).unwrap(), Some(Names::PLAIN));
    let options = Options { names: Names::keyed([3; 16]), ..options(folder.path(), PLENTY) };
    let store = Store::Embedded(Embedded::open(options, RULES).unwrap());
    assert_eq!(store.names(), Names::PLAIN);
    assert_eq!(sum(&store, "one").await, 1);
    add(&store, "one", 1).await.unwrap();
    assert_eq!(rows_of(&store, "one").await.len(), 2);
}

/// Decisions that wait beside the log are read to the last; what is damaged is named and kept, unless it is the end that was being written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_file_of_the_journal_is_refused_and_kept() {
    let toy = Toy::new();
    for number in 0..10 {
        write(&toy.store, Row { input: "x".repeat(1000), ..row(&number.to_string()) }).await;
    }
    let left = std::fs::read(toy.folder.path().join("journal-0000000001")).unwrap();
    let Toy { folder, store, .. } = toy;
    drop(store);
    // Another folder, into which nothing of it was moved.
    let other = tempfile::tempdir().unwrap();
    drop(try_open(other.path(), PLENTY).unwrap());
    let place = |number: u64| other.path().join(format!("journal-{number:010}"));
    std::fs::write(place(4), &left[..left.len() - 500]).unwrap();
    std::fs::write(place(5), &left).unwrap();
    let open = || Embedded::open(Options { durability: Durability::Power, ..options(other.path(), PLENTY) }, RULES).map(Store::Embedded);
    match open() {
        Err(OpenError::DamagedJournal { path, .. }) => assert_eq!(path, place(4)),
        refused => panic!("{refused:?}"),
    }
    assert!(place(4).exists() && place(5).exists());
    std::fs::remove_file(place(5)).unwrap();
    let store = open().unwrap();
    assert_eq!(all_rows(&store).await.len(), 9, "the last one was being written");
    drop(folder);
}
