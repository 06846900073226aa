//! Old things leave, young ones stay, numbers are not used twice.

use crate::contract::toy::{
    DAY, MINUTE, NOW, PLENTY, Store, TENANT, Toy, add, all_rows, eventually, files_with, index_file, keep, key, log_file, one_more, open,
    row, rows_of, states_of, sum, summed, try_open, write,
};
use runguard_store::{Family, Key, Row};

async fn add_at(store: &Store, key: Key, session: &str, at: i64) {
    keep(store, &[summed(key)], Row { at, ..row(session) }, |view| one_more(view, 1)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_older_than_the_retention_go_and_younger_ones_stay() {
    let toy = Toy::new();
    for number in 0..700 {
        let input = format!("old {number}");
        let row = Row { at: NOW, input, ..row("old") };
        keep(&toy.store, &[summed(key(&row.input.clone()))], row, |view| one_more(view, 1)).await.unwrap();
    }
    add_at(&toy.store, key("young"), "young", NOW + 5 * DAY).await;
    toy.store.tell_time(NOW + 30 * DAY);
    toy.store.flush().await.unwrap();
    assert_eq!(all_rows(&toy.store).await.len(), 701, "exactly thirty days old is not older");
    toy.store.tell_time(NOW + 30 * DAY + MINUTE);
    toy.store.flush().await.unwrap();
    let check = async |store: &Store| {
        let rows = all_rows(store).await;
        assert_eq!(rows.iter().map(|row| (row.seq, &*row.session)).collect::<Vec<_>>(), [(701, "young")]);
        assert!(rows_of(store, "old").await.is_empty());
        let counted: u64 = store.stats_by(None, None, 0, NOW + 40 * DAY, 1).await.unwrap().iter().map(|stat| stat.count).sum();
        assert_eq!(counted, 1);
    };
    check(&toy.store).await;
    assert_eq!(files_with(toy.folder.path(), "old 17"), Vec::<String>::new(), "nor in what a killed process would leave");
    check(&toy.reopen().store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_lives_as_long_as_it_can_matter_and_so_does_an_endpoint() {
    let mut toy = Toy::new();
    let endpoint = Key::new(Family::Endpoint, TENANT, "api");
    add_at(&toy.store, key("old"), "old", NOW).await;
    add_at(&toy.store, endpoint, "old", NOW).await;
    toy.store.flush().await.unwrap();
    for (days, kept) in [(31, 1), (60, 1), (62, 0)] {
        toy.store.keep_states_for(60 * DAY);
        toy.store.tell_time(NOW + days * DAY);
        toy.store.flush().await.unwrap();
        assert!(all_rows(&toy.store).await.is_empty());
        assert_eq!(sum(&toy.store, "old").await, kept, "after {days} days");
        assert_eq!(states_of(&toy.store, endpoint).await.unwrap().len() as u64, kept, "after {days} days");
        toy = toy.reopen();
        assert_eq!(sum(&toy.store, "old").await, kept, "after {days} days and a restart");
        assert_eq!(states_of(&toy.store, endpoint).await.unwrap().len() as u64, kept, "after {days} days and a restart");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_number_is_never_used_twice_even_when_everything_has_gone() {
    let mut toy = Toy::new();
    for _ in 0..10 {
        add(&toy.store, "one", 1).await.unwrap();
    }
    toy.store.flush().await.unwrap();
    toy.store.tell_time(NOW + 31 * DAY);
    toy.store.flush().await.unwrap();
    assert!(all_rows(&toy.store).await.is_empty());
    for expected in [11, 12] {
        toy = toy.reopen();
        let later = Row { at: NOW + 31 * DAY, ..row("one") };
        write(&toy.store, later).await;
        assert_eq!(all_rows(&toy.store).await.last().unwrap().seq, expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_for_repeated_requests_go_after_a_day() {
    let toy = Toy::new();
    let (early, late) = (Key::new(Family::Idempotency, TENANT, "early"), Key::new(Family::Idempotency, TENANT, "late"));
    add_at(&toy.store, early, "s", NOW).await;
    add_at(&toy.store, late, "s", NOW + 1000).await;
    toy.store.flush().await.unwrap();
    toy.store.tell_time(NOW + DAY + 1);
    toy.store.flush().await.unwrap();
    assert!(states_of(&toy.store, early).await.unwrap().is_empty());
    assert_eq!(states_of(&toy.store, late).await.unwrap().len(), 1);
    let toy = toy.reopen();
    assert!(states_of(&toy.store, early).await.unwrap().is_empty());
    assert_eq!(states_of(&toy.store, late).await.unwrap().len(), 1);
}

/// The folder is closed at the moment rows become old: they must not be forgotten and stay in the file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_too_old_when_the_store_stopped_leaves_the_file_later() {
    let toy = Toy::new();
    write(&toy.store, Row { input: "an-old-secret".into(), ..row("old") }).await;
    toy.store.flush().await.unwrap();
    toy.store.tell_time(NOW + 31 * DAY);
    let toy = toy.reopen();
    toy.store.tell_time(NOW + 31 * DAY);
    toy.store.flush().await.unwrap();
    assert!(all_rows(&toy.store).await.is_empty());
    assert_eq!(files_with(toy.folder.path(), "an-old-secret"), Vec::<String>::new());
}

/// All rows have become old. A crash between removing them from the log and from the index must not look like a log
/// that was lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_while_the_last_old_rows_leave_is_no_lost_log() {
    let toy = Toy::new();
    for _ in 0..10 {
        add(&toy.store, "one", 1).await.unwrap();
    }
    // The first round after a start, half a second from now, looks for old rows.
    let toy = toy.reopen();
    let held = rusqlite::Connection::open(index_file(toy.folder.path())).unwrap();
    held.busy_timeout(std::time::Duration::from_secs(5)).unwrap();
    held.execute_batch("BEGIN IMMEDIATE").unwrap();
    toy.store.tell_time(NOW + 31 * DAY);
    let log = rusqlite::Connection::open(log_file(toy.folder.path())).unwrap();
    let rows = || log.query_row("SELECT count(*) FROM log", [], |row| row.get::<_, u64>(0)).unwrap();
    let image = tempfile::tempdir().unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(3);
    while rows() > 0 && std::time::Instant::now() < deadline {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    // Either the rows have gone and the index does not know yet, or it wants to know first: both must open.
    for file in std::fs::read_dir(toy.folder.path()).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), image.path().join(file.file_name())).unwrap();
    }
    held.execute_batch("ROLLBACK").unwrap();
    let store = open(image.path(), PLENTY);
    write(&store, Row { at: NOW + 31 * DAY, ..row("one") }).await;
    assert_eq!(all_rows(&store).await.last().unwrap().seq, 11);
}

/// Sixty days ahead for a moment: nothing is sixty days older for it. And a start within that moment believes it no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_jumps_ahead_takes_nothing_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = try_open(folder.path(), PLENTY).unwrap();
    let kept = async |store: &Store, told: i64| {
        store.tell_time(told);
        store.flush().await.unwrap();
        assert_eq!(rows_of(store, "one").await.len(), 1, "told {told}");
        assert_eq!(sum(store, "one").await, 1, "told {told}");
    };
    add_at(&store, key("one"), "one", NOW).await;
    kept(&store, NOW).await;
    kept(&store, NOW + 60 * DAY).await;
    add_at(&store, key("two"), "two", NOW + 60 * DAY).await;
    kept(&store, NOW + 60 * DAY + MINUTE).await;
    store.stop();
    drop(store);
    let store = try_open(folder.path(), PLENTY).unwrap();
    kept(&store, NOW + 60 * DAY + 2 * MINUTE).await;
    kept(&store, NOW + 3 * MINUTE).await;
    kept(&store, 0).await;
    kept(&store, NOW + 4 * MINUTE).await;
}

/// Before anybody has looked at the time: what was told first counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_jumps_right_after_the_start_takes_nothing_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = try_open(folder.path(), PLENTY).unwrap();
    store.tell_time(NOW);
    add_at(&store, key("one"), "one", NOW).await;
    store.tell_time(NOW + 60 * DAY);
    add_at(&store, key("two"), "two", NOW + 60 * DAY).await;
    store.flush().await.unwrap();
    assert_eq!(rows_of(&store, "one").await.len(), 1);
}

/// By the node that writes the log, while it leads: not only when it begins to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_looks_for_old_rows_again_and_again() {
    let toy = Toy::postgres_with_retention(30).await;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as i64;
    for (session, age_days) in [("first", 40), ("young", 0), ("second", 35)] {
        add_at(&toy.store, key(session), session, now - age_days * DAY).await;
        if age_days > 30 {
            // The first is gone before the next is there: so there was another look.
            eventually("the old row to go", async || rows_of(&toy.store, session).await.is_empty()).await;
        }
    }
    assert_eq!(rows_of(&toy.store, "young").await.len(), 1);
}
