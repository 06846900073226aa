//! Erasure: nothing of a session is left, and nothing else is missing.

use crate::contract::toy::{
    LIST, PLENTY, SUM, Store, TENANT, Toy, add, all_rows, change, eventually, files_with, index_file, keep, key, listed, log_file, number,
    on_every_store, one_more, open, row, rows_of, state, states_of, sum, summed,
};
use runguard_store::{Family, Key, Row, View};
use tokio::task::JoinSet;

on_every_store!(the_same_session_of_another_tenant_stays, what_is_erased_is_gone_with_its_kept_answers_and_nothing_else_is,);

const SECRET: &str = "a-secret-nobody-else-would-write";

fn repeated(number: usize) -> Key {
    Key::new(Family::Idempotency, TENANT, &format!("request {number}"))
}

fn endpoint() -> Key {
    Key::new(Family::Endpoint, TENANT, "endpoint")
}

fn erasure() -> Row {
    Row { kind: "admin".into(), outcome: "session_erased".into(), ..row("") }
}

/// A request of the session, with the secret wherever text can be, an answer kept for its repetition, and the
/// endpoint it shares with others.
async fn speak(store: &Store, session: &str, turn: usize) {
    let text = format!("{SECRET} {turn}");
    let cells = [listed(key(session), &text), listed(repeated(turn), ""), summed(endpoint())];
    let row = Row { subject: text.clone(), answer: text.clone(), input: text.clone(), ..row(session) };
    let changes = |view: &View<'_>| {
        vec![change(view, 0, LIST, text.as_bytes()), change(view, 1, LIST, text.as_bytes()), change(view, 2, SUM, &1_u64.to_le_bytes())]
    };
    keep(store, &cells, row, changes).await.unwrap();
}

async fn endpoint_sum(store: &Store) -> u64 {
    number(states_of(store, endpoint()).await.unwrap().first().map(|state| &*state.state))
}

async fn assert_erased(store: &Store, session: &str) {
    assert!(rows_of(store, session).await.is_empty());
    assert!(states_of(store, key(session)).await.unwrap().is_empty());
    for number in 0..20 {
        assert!(states_of(store, repeated(number)).await.unwrap().is_empty(), "the kept answer {number}");
    }
    let rows = all_rows(store).await;
    assert_eq!(rows.iter().filter(|row| row.outcome == runguard_core::row::Action::SessionErased).count(), 1);
    assert_eq!(rows.len(), 2, "the other session's and the erasure's");
    assert_eq!(sum(store, "other").await, 1);
    assert_eq!(endpoint_sum(store).await, 20, "what others see of the endpoint stays");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_erased_session_is_in_no_answer_and_in_no_file() {
    let session = format!("{SECRET}-session");
    let toy = Toy::new();
    add(&toy.store, "other", 1).await.unwrap();
    for number in 0..10 {
        speak(&toy.store, &session, number).await;
    }
    toy.store.flush().await.unwrap();
    for number in 10..20 {
        speak(&toy.store, &session, number).await;
    }
    let named = files_with(toy.folder.path(), SECRET);
    assert!(named.contains(&"runguard.db".to_owned()) && named.contains(&"index.db".to_owned()), "{named:?}");
    let erased = toy.store.erase_session(TENANT, &session, erasure()).await.unwrap();
    assert_eq!(erased.map(|erased| erased.log_rows), Some(20));
    assert_eq!(toy.store.purge().await.unwrap(), Vec::<String>::new());
    assert_eq!(files_with(toy.folder.path(), SECRET), Vec::<String>::new());
    assert_erased(&toy.store, &session).await;
    let toy = toy.reopen();
    assert_erased(&toy.store, &session).await;
    assert_eq!(files_with(toy.folder.path(), SECRET), Vec::<String>::new());
    assert_eq!(toy.store.erase_session(TENANT, &session, erasure()).await.unwrap(), None, "nothing is left to erase");
    speak(&toy.store, &session, 0).await;
    assert_eq!(*states_of(&toy.store, key(&session)).await.unwrap()[0].state, *format!("{SECRET} 0").as_bytes(), "it begins anew");
}

/// A damaged second file is built anew; what it held must not lie about where no erasure looks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_erased_session_is_in_no_file_that_was_set_aside() {
    let toy = Toy::new();
    speak(&toy.store, "one", 0).await;
    let toy = toy.reopen_after(|folder| {
        let mut bytes = std::fs::read(index_file(folder)).unwrap();
        bytes[..16].fill(0);
        std::fs::write(index_file(folder), bytes).unwrap();
    });
    toy.store.erase_session(TENANT, "one", erasure()).await.unwrap().unwrap();
    assert_eq!(toy.store.purge().await.unwrap(), Vec::<String>::new());
    assert_eq!(files_with(toy.folder.path(), SECRET), Vec::<String>::new());
}

async fn the_same_session_of_another_tenant_stays(toy: Toy) {
    add(&toy.store, "one", 1).await.unwrap();
    let theirs = Key::new(Family::Session, "another", "one");
    keep(&toy.store, &[summed(theirs)], Row { tenant: "another".into(), ..row("one") }, |view| one_more(view, 1)).await.unwrap();
    toy.store.erase_session(TENANT, "one", erasure()).await.unwrap().unwrap();
    assert!(state(&toy.store, summed(theirs)).await.is_some());
    assert_eq!(all_rows(&toy.store).await.iter().filter(|row| *row.tenant == *"another").count(), 1);
    assert_eq!(sum(&toy.store, "one").await, 0);
}

/// Of the stores whose states and log are one: nothing comes between the two.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_session_that_speaks_while_it_is_erased_is_whole_or_gone() {
    for toy in [Toy::new(), Toy::memory()] {
        speak_while_erased(toy).await;
    }
}

async fn speak_while_erased(toy: Toy) {
    for round in 0..20 {
        let session = format!("s{round}");
        for _ in 0..5 {
            add(&toy.store, &session, 1).await.unwrap();
        }
        let mut speaking = JoinSet::new();
        for _ in 0..8 {
            let (store, session) = (toy.store.clone(), session.clone());
            speaking.spawn(async move {
                for _ in 0..20 {
                    add(&store, &session, 1).await.unwrap();
                }
            });
        }
        toy.store.erase_session(TENANT, &session, erasure()).await.unwrap().unwrap();
        speaking.join_all().await;
        assert_eq!(rows_of(&toy.store, &session).await.len() as u64, sum(&toy.store, &session).await, "{session}");
    }
    if let Store::Embedded(_) = *toy.store {
        let toy = toy.reopen();
        for round in 0..20 {
            let session = format!("s{round}");
            assert_eq!(rows_of(&toy.store, &session).await.len() as u64, sum(&toy.store, &session).await, "{session}, opened again");
        }
    }
}

/// The rows of an erased session also carry what it did to endpoints. A crash right after the erasure, before states
/// reach the disk, must not undo that: an open circuit would close.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_after_an_erasure_takes_nothing_from_what_others_share() {
    let toy = Toy::new();
    add(&toy.store, "other", 1).await.unwrap();
    toy.store.flush().await.unwrap();
    for number in 0..20 {
        speak(&toy.store, "one", number).await;
    }
    let image = tempfile::tempdir().unwrap();
    {
        // Nothing reaches the second file while we hold it, so the folder stands still once the erasure is committed.
        let held = rusqlite::Connection::open(index_file(toy.folder.path())).unwrap();
        held.execute_batch("BEGIN IMMEDIATE").unwrap();
        let erasing = tokio::spawn({
            let store = toy.store.clone();
            async move { store.erase_session(TENANT, "one", erasure()).await.unwrap() }
        });
        let mut gone = false;
        for _ in 0..500 {
            if rows_of(&toy.store, "one").await.is_empty() {
                gone = true;
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        if gone {
            for file in std::fs::read_dir(toy.folder.path()).unwrap() {
                let file = file.unwrap();
                std::fs::copy(file.path(), image.path().join(file.file_name())).unwrap();
            }
        }
        held.execute_batch("ROLLBACK").unwrap();
        erasing.await.unwrap();
        if !gone {
            // It wants the states on disk first: then there is no such moment.
            return;
        }
    }
    let store = open(image.path(), PLENTY);
    eventually("the crashed store is up", async || store.probe().await.is_ok()).await;
    assert_erased(&store, "one").await;
}

async fn what_is_erased_is_gone_with_its_kept_answers_and_nothing_else_is(toy: Toy) {
    add(&toy.store, "other", 1).await.unwrap();
    for turn in 0..20 {
        speak(&toy.store, "one", turn).await;
    }
    let erased = toy.store.erase_session(TENANT, "one", erasure()).await.unwrap();
    assert_eq!(erased.map(|erased| erased.log_rows), Some(20));
    assert!(rows_of(&toy.store, "one").await.is_empty());
    assert!(toy.store.states(TENANT, "one").await.unwrap().is_empty());
    for turn in 0..20 {
        assert_eq!(state(&toy.store, listed(key("one"), &format!("{SECRET} {turn}"))).await, None);
        assert_eq!(state(&toy.store, listed(repeated(turn), "")).await, None, "the kept answer {turn}");
    }
    let outcomes: Vec<String> = all_rows(&toy.store).await.into_iter().map(|row| row.outcome.to_string()).collect();
    assert_eq!(outcomes, ["allowed", "session_erased"]);
    assert_eq!(sum(&toy.store, "other").await, 1);
    assert_eq!(number(state(&toy.store, summed(endpoint())).await.as_deref()), 20, "what others see of the endpoint stays");
    assert_eq!(toy.store.erase_session(TENANT, "one", erasure()).await.unwrap(), None, "nothing is left to erase");
}

/// Rows and states move between pages when others go; what was moved must not be left where it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_session_of_many_is_left_in_the_unused_part_of_a_page() {
    const SESSIONS: usize = 150;
    let toy = Toy::new();
    let secret = |number: usize| format!("{SECRET}:{number}:");
    for turn in 0..4 {
        for number in 0..SESSIONS {
            let text = secret(number).repeat(1 + (number * 7 + turn * 13) % 40);
            let session = secret(number);
            let row = Row { subject: text.clone(), answer: text.clone(), input: text.clone(), ..row(&session) };
            let cells = [listed(key(&session), &text)];
            keep(&toy.store, &cells, row, |view| vec![change(view, 0, LIST, text.as_bytes())]).await.unwrap();
        }
        toy.store.flush().await.unwrap();
    }
    // In an order that leaves gaps here and there.
    for number in (0..SESSIONS).map(|number| number * 67 % SESSIONS).take(SESSIONS - 10) {
        toy.store.erase_session(TENANT, &secret(number), erasure()).await.unwrap().unwrap();
        if number % 10 == 0 {
            assert_eq!(toy.store.purge().await.unwrap(), Vec::<String>::new());
            assert_eq!(files_with(toy.folder.path(), &secret(number)), Vec::<String>::new(), "session {number}");
        }
    }
    assert_eq!(toy.store.purge().await.unwrap(), Vec::<String>::new());
    for number in 0..SESSIONS {
        let is_kept = !rows_of(&toy.store, &secret(number)).await.is_empty();
        assert_eq!(is_kept, !files_with(toy.folder.path(), &secret(number)).is_empty(), "session {number}");
    }
    let toy = toy.reopen();
    assert_eq!(all_rows(&toy.store).await.iter().filter(|row| row.outcome == runguard_core::row::Outcome::Allowed).count(), 4 * 10);
}

/// Somebody looks at the database, as the guides show. Nobody waits for them, and nothing is said to be gone that is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_holds_up_no_answer_and_an_erasure_says_that_it_waits() {
    let toy = Toy::new();
    speak(&toy.store, "one", 0).await;
    toy.store.flush().await.unwrap();
    let readers: Vec<rusqlite::Connection> = [log_file(toy.folder.path()), index_file(toy.folder.path())]
        .into_iter()
        .map(|file| {
            let reader = rusqlite::Connection::open(file).unwrap();
            reader.execute_batch("BEGIN; SELECT count(*) FROM sqlite_schema;").unwrap();
            reader
        })
        .collect();
    speak(&toy.store, "one", 1).await;
    let started = std::time::Instant::now();
    toy.store.erase_session(TENANT, "one", erasure()).await.unwrap().unwrap();
    assert_eq!(toy.store.purge().await.unwrap(), ["runguard.db", "index.db"]);
    for number in 0..200 {
        let asked = std::time::Instant::now();
        add(&toy.store, &format!("s{number}"), 1).await.unwrap();
        assert!(asked.elapsed() < std::time::Duration::from_secs(10));
    }
    toy.store.flush().await.unwrap();
    assert!(started.elapsed() < std::time::Duration::from_secs(30), "{:?}", started.elapsed());
    assert_ne!(files_with(toy.folder.path(), SECRET), Vec::<String>::new(), "what the readers see is still there");
    drop(readers);
    assert_eq!(toy.store.purge().await.unwrap(), Vec::<String>::new());
    assert_eq!(files_with(toy.folder.path(), SECRET), Vec::<String>::new());
}
