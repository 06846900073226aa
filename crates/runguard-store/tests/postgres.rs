//! The log in a real Postgres: the same answers as the embedded log, every row once, whatever breaks.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use crate::postgres_server::{Fsync, PostgresServer};
use proptest::prelude::*;
use runguard_store::cluster::EntryId;
use runguard_store::postgres::Imported;
use runguard_store::{
    Cell, Change, Decided, Durability, Embedded, Family, Keep, Key, Names, OpenError, Options, Order, PgLog, PgOptions, Role, Row,
    RowFilter, RowWithEffects, Rules, Written,
};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use xxhash_rust::xxh3::xxh3_128;

const NOW: i64 = 1_700_000_000_000;
const MINUTE: i64 = 60_000;
const DAY: i64 = 86_400_000;

async fn open(url: &str) -> PgLog {
    PgLog::open(PgOptions { url: url.into(), retention_days: 30 }).await.unwrap()
}

fn row(number: usize) -> RowWithEffects {
    let row = Row {
        at: NOW + number as i64,
        id: format!("id-{number:06}"),
        tenant: "tenant".into(),
        guard: "handoff".into(),
        kind: "check".into(),
        session: format!("session {}", number % 5),
        outcome: "allowed".into(),
        answer: "{}".into(),
        input: "{}".into(),
        ..Row::default()
    };
    RowWithEffects { row, effects: Vec::new() }
}

fn changed(number: usize, change: impl FnOnce(&mut Row)) -> RowWithEffects {
    let mut made = row(number);
    change(&mut made.row);
    made
}

fn at(millis: u64) -> [(u16, EntryId); 1] {
    [(0, EntryId { millis, number: 7 })]
}

const START: [(u16, EntryId); 1] = [(0, EntryId { millis: 0, number: 0 })];

/// Imports after whatever is there.
async fn import(log: &PgLog, rows: Vec<RowWithEffects>) -> Imported {
    let from = log.positions(1).await.unwrap();
    log.import(&from, rows, &at(from[0].1.millis + 1)).await.unwrap()
}

async fn all(log: &PgLog) -> Vec<Row> {
    log.rows(RowFilter::default(), Order::OldestFirst, None, usize::MAX).await.unwrap()
}

async fn numbered_ids(log: &PgLog) -> Vec<(u64, String)> {
    all(log).await.into_iter().map(|row| (row.seq, row.id)).collect()
}

fn expected_ids(numbers: impl IntoIterator<Item = usize>) -> Vec<(u64, String)> {
    (1..).zip(numbers).map(|(seq, number)| (seq, format!("id-{number:06}"))).collect()
}

// The same answers as the embedded log.

const TEXTS: [&str; 6] = ["", "a", "a\0", "a\u{1a}", "\0\u{1a}0é", "b"];
const GUARDS: [&str; 3] = ["handoff", "gu\0ard", "api_circuit"];
const KINDS: [&str; 3] = ["check", "record", "check\0"];
const OUTCOMES: [&str; 2] = ["allowed", "blo\u{1a}cked"];
const REASONS: [Option<&str>; 4] = [None, Some(""), Some("cycle_detected"), Some("circuit\0open")];

#[derive(Debug, Clone)]
struct Given {
    at: i64,
    tenant: usize,
    guard: usize,
    kind: usize,
    session: usize,
    outcome: usize,
    reason: usize,
    text: String,
    changes: usize,
}

/// Few, so that the edges of a question fall on rows.
fn times() -> impl Strategy<Value = i64> {
    let bases = proptest::sample::select(&[NOW, 0, NOW / DAY * DAY, -DAY, NOW + 40 * DAY]);
    (bases, -6..6_i64, -1..1_i64).prop_map(|(base, steps, millis)| base + steps * MINUTE / 2 + millis)
}

fn given() -> impl Strategy<Value = Given> {
    (times(), 0..3_usize, 0..3_usize, 0..3_usize, 0..4_usize, 0..2_usize, 0..4_usize, "[a-c\0\u{1a}é]{0,8}", 0..3_usize).prop_map(
        |(at, tenant, guard, kind, session, outcome, reason, text, changes)| Given {
            at,
            tenant,
            guard,
            kind,
            session,
            outcome,
            reason,
            text,
            changes,
        },
    )
}

impl Given {
    /// As the engine gives it to the embedded log.
    fn written(&self, number: usize) -> (Vec<Key>, Written) {
        let keys: Vec<Key> = (0..self.changes).map(|change| Key::new(FAMILIES[change], TEXTS[self.tenant], &self.text)).collect();
        let change = |cell: usize| Change { cell, events: vec![number as u8, 0], state: vec![1] };
        let row = Row {
            seq: 0,
            at: self.at,
            id: format!("{number}\0"),
            tenant: TEXTS[self.tenant].into(),
            guard: GUARDS[self.guard].into(),
            kind: KINDS[self.kind].into(),
            session: TEXTS[self.session].into(),
            subject: self.text.clone(),
            outcome: OUTCOMES[self.outcome].into(),
            reason: REASONS[self.reason].map(Into::into),
            answer: format!("{{\"{}\":{number}}}", self.text),
            input: self.text.repeat(2),
        };
        (keys, Written { row, changes: (0..self.changes).map(change).collect() })
    }

    fn entry(&self, number: usize) -> RowWithEffects {
        let (_, Written { row, changes }) = self.written(number);
        let effects: Vec<(u8, u128, u8, &str, &[u8])> = changes
            .iter()
            .map(|change| {
                let family = FAMILIES[change.cell] as u8;
                let name = [&[family], TEXTS[self.tenant].as_bytes(), &[0], self.text.as_bytes()].concat();
                (family, xxh3_128(&name), change.cell as u8 + 1, &*self.text, &*change.events)
            })
            .collect();
        RowWithEffects { row, effects: postcard::to_stdvec(&effects).unwrap() }
    }
}

const FAMILIES: [Family; 2] = [Family::Session, Family::Endpoint];

#[derive(Debug, Clone)]
struct Asked {
    filter: RowFilter,
    order: Order,
    after: Option<u64>,
    limit: usize,
    minutes: i64,
}

fn one_of(values: &'static [&'static str]) -> impl Strategy<Value = Option<String>> {
    prop_oneof![3 => Just(None), 1 => proptest::sample::select(values).prop_map(|text| Some(text.to_owned()))]
}

fn asked() -> impl Strategy<Value = Asked> {
    let id = prop_oneof![6 => Just(None), 1 => (0..70_usize).prop_map(|number| Some(format!("{number}\0")))];
    let time = || prop_oneof![2 => Just(None), 2 => times().prop_map(Some), 1 => Just(Some(i64::MIN)), 1 => Just(Some(i64::MAX))];
    let texts = (id, one_of(&KINDS), one_of(&GUARDS), one_of(&["", "cycle_detected", "circuit\0open"]), one_of(&OUTCOMES));
    let whose = (one_of(&TEXTS), one_of(&TEXTS), time(), time());
    let after = prop_oneof![2 => Just(None), 3 => (0..80_u64).prop_map(Some), 1 => Just(Some(u64::MAX))];
    let order = prop_oneof![Just(Order::NewestFirst), Just(Order::OldestFirst)];
    let limit = prop_oneof![Just(0), Just(3), Just(1000), Just(usize::MAX >> 1)];
    let minutes = prop_oneof![Just(-1_i64), Just(1), Just(7), Just(1440), Just(1 << 50)];
    (texts, whose, order, after, limit, minutes).prop_map(
        |((id, kind, guard, reason, outcome), (tenant, session, since, until), order, after, limit, minutes)| Asked {
            filter: RowFilter { id, kind, guard, reason, outcome, tenant, session, since, until },
            order,
            after,
            limit,
            minutes,
        },
    )
}

#[test]
fn every_question_has_the_answer_of_the_embedded_log() {
    let server = PostgresServer::shared();
    let url = server.database();
    let cases = AtomicU32::new(0);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let rows = proptest::collection::vec(given(), 1..70);
    let questions = proptest::collection::vec(asked(), 40);
    let config = ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(given in rows, batch in 1..30_usize, questions in questions)| {
        runtime.block_on(async {
            let folder = tempfile::tempdir().unwrap();
            let options =
                Options { folder: folder.path().into(), durability: Durability::Process, memory_bytes: 1 << 26, retention_days: 30, role: Role::Whole, names: Names::PLAIN };
            let rules = Rules { replay: |_, _, _, _| Some(vec![1]), group: |_, _, _, _, _| Some(0), keep: |_, _| Keep::Log, take_back: |_, _| None };
            let store = Embedded::open(options, rules).unwrap();
            let schema = format!("case_{}", cases.fetch_add(1, Ordering::Relaxed));
            server.sql(url.rsplit('/').next().unwrap(), &format!("CREATE SCHEMA {schema}"));
            let log = open(&format!("{url}?options=-c%20search_path%3D{schema}")).await;
            for (number, given) in given.iter().enumerate() {
                let (keys, written) = given.written(number);
                let cells: Vec<Cell<'_>> = keys.iter().enumerate().map(|(at, key)| Cell { key: *key, slot: at as u8 + 1, subject: &given.text, group: 0 }).collect();
                let mut written = Some(written);
                store.apply(&cells, |_| Decided::Keep((), written.take().unwrap())).await.unwrap();
            }
            let entries: Vec<RowWithEffects> = given.iter().enumerate().map(|(number, given)| given.entry(number)).collect();
            for entries in entries.chunks(batch) {
                let imported = import(&log, entries.to_vec()).await;
                let done = matches!(imported, Imported::Done { rows, known: 0, .. } if rows == entries.len());
                prop_assert!(done);
            }
            // One that is sure to have an answer: of a few rows all others may have none.
            let everything = Asked { filter: RowFilter::default(), order: Order::OldestFirst, after: None, limit: 1000, minutes: 60 };
            let mut found = 0;
            for Asked { filter, order, after, limit, minutes } in std::iter::once(everything).chain(questions) {
                let expected = store.rows_with_effects(filter.clone(), order, after, limit).await.unwrap();
                found += expected.len();
                let found = log.rows_with_effects(filter.clone(), order, after, limit).await.unwrap();
                prop_assert_eq!(&found, &expected, "{:?} {:?} {:?} {}", filter, order, after, limit);
                let rows = log.rows(filter.clone(), order, after, limit).await.unwrap();
                prop_assert_eq!(rows, store.rows(filter.clone(), order, after, limit).await.unwrap());
                let numbers = log.row_numbers(filter.clone(), order, after, limit).await.unwrap();
                prop_assert_eq!(numbers, store.row_numbers(filter.clone(), order, after, limit).await.unwrap());
                let (since, until) = (filter.since.unwrap_or(-2 * DAY), filter.until.unwrap_or(NOW + 50 * DAY));
                let expected = store.stats_by(filter.tenant.clone(), filter.guard.clone(), since, until, minutes).await.unwrap();
                let stats = log.stats_by(filter.tenant, filter.guard, since, until, minutes).await.unwrap();
                prop_assert_eq!(stats, expected, "{} {} {}", since, until, minutes);
            }
            prop_assert!(found >= given.len(), "everything is found");
            let (follower, embedded) = (log.follower(), store.follower());
            prop_assert_eq!(follower.committed(), given.len() as u64);
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            let followed = tokio::task::block_in_place(|| {
                follower.follow(3, 40, |row| {
                    ours.push(format!("{row:?}"));
                    ControlFlow::Continue(())
                })
            });
            prop_assert!(followed.unwrap().is_continue());
            let followed = embedded.follow(3, 40, |row| {
                theirs.push(format!("{row:?}"));
                ControlFlow::Continue(())
            });
            prop_assert!(followed.unwrap().is_continue());
            prop_assert_eq!(ours, theirs);
            Ok(())
        })?;
    });
}

// Every row once.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_importers_with_the_same_rows_one_is_overtaken() {
    let server = PostgresServer::shared();
    let url = server.database();
    let logs = [open(&url).await, open(&url).await];
    for round in 0..25 {
        let from = if round == 0 { START } else { at(round) };
        let rows = |_: usize| (0..20).map(|number| row(round as usize * 20 + number)).collect::<Vec<_>>();
        let upto = at(round + 1);
        let (one, two) = tokio::join!(logs[0].import(&from, rows(0), &upto), logs[1].import(&from, rows(1), &upto));
        let mut done = [one.unwrap(), two.unwrap()];
        done.sort_by_key(|imported| *imported == Imported::Overtaken);
        assert_eq!(done, [Imported::Done { rows: 20, known: 0, last_seq: (round + 1) * 20 }, Imported::Overtaken]);
        assert_eq!(logs[0].positions(3).await.unwrap(), [upto[0], (1, EntryId::default()), (2, EntryId::default())]);
    }
    assert_eq!(numbered_ids(&logs[1]).await, expected_ids(0..500));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_position_of_any_partition_that_moved_overtakes() {
    let server = PostgresServer::shared();
    let log = open(&server.database()).await;
    let id = |millis: u64, number: u64| EntryId { millis, number };
    let far = id(u64::MAX, u64::MAX - 1);
    let done = log.import(&[(0, id(0, 0)), (9, id(0, 0))], vec![row(0)], &[(0, id(5, 1)), (9, far)]).await.unwrap();
    assert!(matches!(done, Imported::Done { rows: 1, .. }));
    for from in [[(0, id(5, 1)), (9, id(0, 0))], [(0, id(5, 0)), (9, far)], [(0, id(5, 1)), (9, id(u64::MAX, u64::MAX))]] {
        assert_eq!(log.import(&from, vec![row(1)], &[(0, id(6, 0))]).await.unwrap(), Imported::Overtaken, "{from:?}");
    }
    assert_eq!(log.positions(10).await.unwrap()[9], (9, far));
    // What others do to other partitions does not matter.
    let done = log.import(&[(9, far)], Vec::new(), &[(9, id(u64::MAX, u64::MAX))]).await.unwrap();
    assert_eq!(done, Imported::Done { rows: 0, known: 0, last_seq: 1 });
    assert_eq!(numbered_ids(&log).await, expected_ids([0]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_were_sent_twice_are_taken_once() {
    let server = PostgresServer::shared();
    let url = server.database();
    let log = open(&url).await;
    let first = [0, 1, 1, 2, 0].map(row).to_vec();
    assert_eq!(import(&log, first).await, Imported::Done { rows: 3, known: 2, last_seq: 3 });
    let second = [3, 1, 4, 2, 4].map(row).to_vec();
    assert_eq!(import(&log, second).await, Imported::Done { rows: 2, known: 3, last_seq: 5 });
    assert_eq!(import(&log, [0, 4].map(row).to_vec()).await, Imported::Done { rows: 0, known: 2, last_seq: 5 });
    assert_eq!(numbered_ids(&log).await, expected_ids(0..5));
    let counted: u64 = log.stats_by(None, None, 0, NOW + DAY, 1).await.unwrap().iter().map(|stat| stat.count).sum();
    assert_eq!(counted, 5, "counted once");
    let known = log.knows(&["id-000004", "nobody", "id-000000"].map(String::from)).await.unwrap();
    assert_eq!(known, [true, false, true]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_become_visible_in_the_order_of_their_numbers() {
    const BATCHES: usize = 40;
    let server = PostgresServer::shared();
    let url = server.database();
    let log = open(&url).await;
    let mut tasks = tokio::task::JoinSet::new();
    for partition in 0..3_u16 {
        let url = url.clone();
        tasks.spawn(async move {
            let log = open(&url).await;
            for batch in 0..BATCHES {
                let id = |batch: usize| [(partition, EntryId { millis: batch as u64, number: 0 })];
                let rows = (0..=batch % 7).map(|number| row(usize::from(partition) * 100_000 + batch * 10 + number)).collect();
                assert_ne!(log.import(&id(batch), rows, &id(batch + 1)).await.unwrap(), Imported::Overtaken);
            }
        });
    }
    let total = 3 * (0..BATCHES).map(|batch| 1 + batch as u64 % 7).sum::<u64>();
    let follower = log.follower();
    let reader = std::thread::spawn(move || {
        let mut seen = 0;
        while seen < total {
            let upto = follower.committed();
            let done = follower.follow(seen, u64::MAX, |row| {
                assert_eq!(row.seq, seen + 1, "nothing is left out, and nothing comes later");
                seen = row.seq;
                ControlFlow::Continue(())
            });
            assert!(done.unwrap().is_continue());
            assert!(seen >= upto, "what is told is there");
        }
    });
    tasks.join_all().await;
    tokio::task::spawn_blocking(move || reader.join().unwrap()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_nodes_are_told_of_rows_and_a_late_one_knows_them() {
    let server = PostgresServer::shared();
    let url = server.database();
    let (writer, reader) = (open(&url).await, open(&url).await);
    let mut committed = reader.committed();
    assert_eq!(*committed.borrow_and_update(), 0);
    let (waits, is_waiting) = tokio::sync::oneshot::channel();
    let waiting = tokio::spawn(async move {
        waits.send(()).unwrap();
        tokio::time::timeout(Duration::from_secs(4), committed.changed()).await.is_ok() && *committed.borrow() == 10
    });
    is_waiting.await.unwrap();
    import(&writer, (0..10).map(row).collect()).await;
    assert_eq!(*writer.committed().borrow(), 10);
    assert!(waiting.await.unwrap(), "sooner than by asking");
    assert_eq!(*open(&url).await.committed().borrow(), 10);
}

// Connections that break.

/// What the proxy does when it sees a commit, or a question.
const PASS: u8 = 0;
const CUT_BEFORE: u8 = 1;
const CUT_AFTER: u8 = 2;
const CUT_QUESTION: u8 = 3;

/// Stands between client and server. Gives its port.
async fn proxy(server: u16, mode: Arc<AtomicU8>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let mode = mode.clone();
            tokio::spawn(async move {
                let server = TcpStream::connect(("127.0.0.1", server)).await.unwrap();
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = server.into_split();
                let (cut, mut is_cut) = tokio::sync::watch::channel(false);
                let back = tokio::spawn(async move {
                    let mut bytes = vec![0; 65_536];
                    while let Ok(length @ 1..) = from_server.read(&mut bytes).await {
                        if *is_cut.borrow_and_update() {
                            return;
                        }
                        if to_client.write_all(&bytes[..length]).await.is_err() {
                            return;
                        }
                    }
                });
                let mut bytes = vec![0; 65_536];
                while let Ok(length @ 1..) = from_client.read(&mut bytes).await {
                    let says = |words: &[u8]| bytes[..length].windows(words.len()).any(|window| window == words);
                    let asks = mode.load(Ordering::SeqCst) == CUT_QUESTION && says(b"ORDER BY l.seq");
                    let mode = if asks || says(b"COMMIT\0") { mode.swap(PASS, Ordering::SeqCst) } else { PASS };
                    if mode == CUT_BEFORE || mode == CUT_QUESTION {
                        back.abort();
                        return;
                    }
                    if mode == CUT_AFTER {
                        cut.send(true).unwrap();
                        to_server.write_all(&bytes[..length]).await.unwrap();
                        // The server has answered: it is done, and the client will not hear of it.
                        back.await.unwrap();
                        return;
                    }
                    if to_server.write_all(&bytes[..length]).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_cut_at_the_commit_leaves_all_or_nothing_and_the_positions_tell() {
    let server = PostgresServer::shared();
    let url = server.database();
    let mode = Arc::new(AtomicU8::new(PASS));
    let port = proxy(server.port(), mode.clone()).await;
    let log = open(&url.replace(&server.port().to_string(), &port.to_string())).await;
    import(&log, vec![row(0)]).await;
    for (round, cut) in [CUT_BEFORE, CUT_AFTER, CUT_AFTER, CUT_BEFORE].into_iter().enumerate() {
        let rows: Vec<RowWithEffects> = (0..10).map(|number| row(1 + round * 10 + number)).collect();
        let from = log.positions(1).await.unwrap();
        let upto = at(from[0].1.millis + 1);
        mode.store(cut, Ordering::SeqCst);
        let error = log.import(&from, rows.clone(), &upto).await.unwrap_err().to_string();
        assert!(error.contains("positions tell"), "{error}");
        let stands = log.positions(1).await.unwrap();
        assert_eq!(stands == upto, cut == CUT_AFTER);
        let again = log.import(&from, rows, &upto).await.unwrap();
        assert_eq!(again == Imported::Overtaken, cut == CUT_AFTER);
        assert_eq!(numbered_ids(&log).await, expected_ids(0..=(round + 1) * 10));
    }
    let mut committed = log.committed();
    let told = tokio::time::timeout(Duration::from_secs(20), committed.wait_for(|seq| *seq == 41)).await;
    assert!(told.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_on_a_connection_that_breaks_is_asked_again() {
    let server = PostgresServer::shared();
    let url = server.database();
    let mode = Arc::new(AtomicU8::new(PASS));
    let port = proxy(server.port(), mode.clone()).await;
    let log = open(&url.replace(&server.port().to_string(), &port.to_string())).await;
    import(&log, vec![row(0)]).await;
    for _ in 0..5 {
        assert_eq!(all(&log).await.len(), 1);
        mode.store(CUT_QUESTION, Ordering::SeqCst);
        assert_eq!(all(&log).await.len(), 1);
        assert_eq!(mode.load(Ordering::SeqCst), PASS, "it was cut");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_connections_are_replaced_without_anybody_noticing() {
    let server = PostgresServer::shared();
    let url = server.database();
    let database = url.rsplit('/').next().unwrap();
    let log = open(&url).await;
    for round in 0..5 {
        import(&log, vec![row(round)]).await;
        let ids = ["id-000000".to_owned()];
        let (one, two) = tokio::join!(all(&log), log.knows(&ids));
        assert_eq!((one.len(), two.unwrap()), (round + 1, vec![true]));
        let ended = format!(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = '{database}' AND pid <> pg_backend_pid()"
        );
        // How many there are depends on who waited for whom.
        assert!(server.sql("postgres", &ended).parse::<u32>().unwrap() >= 1);
        log.probe().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_away_is_used_again_and_the_errors_say_what_is_the_matter() {
    let server = PostgresServer::start(Fsync::On);
    let url = server.database().replace("postgres@", "postgres:hunter2%40x@");
    let (log, other) = (open(&url).await, open(&url).await);
    import(&log, (0..100).map(row).collect()).await;
    server.crash();
    let errors = [
        log.probe().await.unwrap_err().to_string(),
        log.import(&at(1), vec![row(100)], &at(2)).await.unwrap_err().to_string(),
        log.rows(RowFilter::default(), Order::NewestFirst, None, 1).await.unwrap_err().to_string(),
        PgLog::open(PgOptions { url: url.clone(), retention_days: 30 }).await.unwrap_err().to_string(),
    ];
    for error in errors {
        assert!(error.contains(&format!("127.0.0.1:{}/test_", server.port())), "{error}");
        assert!(error.contains("see whether it runs"), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
    assert!(!format!("{log:?} {:?}", PgOptions { url, retention_days: 1 }).contains("hunter2"));
    server.run();
    assert_eq!(all(&log).await.len(), 100, "what was answered is there after a crash");
    assert_eq!(log.import(&at(1), vec![row(100)], &at(2)).await.unwrap(), Imported::Done { rows: 1, known: 0, last_seq: 101 });
    let mut committed = other.committed();
    let told = tokio::time::timeout(Duration::from_secs(20), committed.wait_for(|seq| *seq == 101)).await;
    assert!(told.is_ok(), "a node that only listens hears again");
}

// The tables.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_starts_first_makes_the_tables_and_the_others_wait() {
    let server = PostgresServer::shared();
    let url = server.database();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let url = url.clone();
        tasks.spawn(async move { open(&url).await });
    }
    let logs = tasks.join_all().await;
    for (number, log) in logs.iter().enumerate() {
        import(log, vec![row(number)]).await;
    }
    assert_eq!(numbered_ids(&logs[3]).await, expected_ids(0..8));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_of_a_newer_version_is_refused_and_left_alone() {
    let server = PostgresServer::shared();
    let url = server.database();
    let database = url.rsplit('/').next().unwrap();
    drop(open(&url).await);
    server.sql(database, "UPDATE runguard_format SET format = 99");
    let error = PgLog::open(PgOptions { url: url.clone(), retention_days: 30 }).await.unwrap_err();
    assert!(matches!(error, OpenError::PostgresTooNew { found: 99, known: 2, .. }), "{error}");
    assert!(error.to_string().contains("newer RunGuard (format 99, this one knows 2)"));
    assert_eq!(server.sql(database, "SELECT format FROM runguard_format"), "99");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_schema_has_a_log_of_its_own() {
    let server = PostgresServer::shared();
    let url = server.database();
    let database = url.rsplit('/').next().unwrap().to_owned();
    server.sql(&database, "CREATE SCHEMA one; CREATE SCHEMA two");
    let in_schema = |name: &str| format!("{url}?options=-c%20search_path%3D{name}");
    let (one, two) = (open(&in_schema("one")).await, open(&in_schema("two")).await);
    import(&one, (0..3).map(row).collect()).await;
    import(&two, vec![row(7)]).await;
    assert_eq!(numbered_ids(&one).await, expected_ids(0..3));
    assert_eq!(numbered_ids(&two).await, expected_ids([7]));
    assert_eq!(*two.committed().borrow(), 1);
    let error = PgLog::open(PgOptions { url: in_schema("three"), retention_days: 30 }).await.unwrap_err().to_string();
    assert!(error.contains("CREATE SCHEMA"), "{error}");
}

#[tokio::test]
async fn what_cannot_be_used_is_refused_with_what_to_do_and_without_the_password() {
    let server = PostgresServer::shared();
    let database = server.database();
    let database = database.rsplit('/').next().unwrap();
    server.sql("postgres", "CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0");
    let port = server.port();
    let refused = [
        ("postgres://u:hunter2@ho st/db".into(), "%40"),
        ("postgres://u:x@hunter2@host/db".into(), "%40"),
        ("postgres:///db".into(), "postgres://USER"),
        (format!("postgres://nobody:hunter2@127.0.0.1:{port}/{database}"), "check user and password"),
        (format!("postgres://postgres:hunter2@127.0.0.1:{port}/nothing"), "create the database"),
        (format!("postgres://postgres:hunter2@127.0.0.1:{port}/latin"), "ENCODING 'UTF8'"),
        (format!("postgres://postgres:hunter2@127.0.0.1:{port}/{database}?sslmode=verify-full"), "TLS"),
    ];
    for (url, advice) in refused {
        let error = PgLog::open(PgOptions { url: url.clone(), retention_days: 30 }).await.unwrap_err();
        let shown = format!("{error} {error:?}");
        assert!(shown.contains(advice), "{url}: {shown}");
        assert!(!shown.contains("hun"), "{shown}");
    }
    let socket = format!("postgres://postgres@{}:{port}/{database}", server.socket_folder().display().to_string().replace('/', "%2F"));
    open(&socket).await.probe().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn days_are_tables_that_go_when_they_are_old() {
    let server = PostgresServer::shared();
    let url = server.database();
    let database = url.rsplit('/').next().unwrap();
    let log = open(&url).await;
    let on = |number: usize, at: i64| changed(number, |row| row.at = at);
    let midnight = NOW / DAY * DAY;
    let times = [i64::MIN, -1, 0, midnight - 1, midnight, NOW, midnight + DAY - 1, midnight + DAY, i64::MAX - MINUTE];
    let rows = times.iter().enumerate().map(|(number, at)| on(number, *at)).collect();
    assert!(matches!(import(&log, rows).await, Imported::Done { rows: 9, .. }));
    assert_eq!(all(&log).await.iter().map(|row| row.at).collect::<Vec<_>>(), times);
    let tables = || {
        let names = "SELECT string_agg(substr(relname, 14), ' ' ORDER BY relname) FROM pg_class WHERE relname ~ '^runguard_log_[0-9]+$'";
        server.sql(database, names)
    };
    assert_eq!(tables(), "00010101 19691231 19700101 20231113 20231114 20231115 99991231");
    let other = open(&url).await;
    import(&other, vec![on(10, NOW + 1)]).await;
    assert_eq!(log.retire(midnight + 30 * DAY - 1).await.unwrap(), 3, "exactly thirty days old is not older");
    assert_eq!(tables(), "20231113 20231114 20231115 99991231");
    assert_eq!(log.retire(midnight + 31 * DAY - 1).await.unwrap(), 1);
    assert_eq!(log.retire(midnight + 31 * DAY - 1).await.unwrap(), 0);
    assert_eq!(log.retire(midnight + 31 * DAY).await.unwrap(), 1);
    assert_eq!(tables(), "20231115 99991231");
    let counted: u64 = log.stats_by(None, None, i64::MIN, i64::MAX, 1).await.unwrap().iter().map(|stat| stat.count).sum();
    assert_eq!((all(&log).await.len(), counted), (2, 2));
    // The other node remembers a day that has gone.
    assert_eq!(import(&other, vec![on(11, NOW + 2)]).await, Imported::Done { rows: 1, known: 0, last_seq: 11 });
    assert_eq!(tables(), "20231114 20231115 99991231");
}

/// Of whichever node asks: what is known of the time stands in the log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn days_go_by_the_time_that_has_passed() {
    const HOURS_12: Duration = Duration::from_secs(12 * 3600);
    let server = PostgresServer::shared();
    let url = server.database();
    let (log, other) = (open(&url).await, open(&url).await);
    import(&log, vec![changed(0, |row| row.at = NOW)]).await;
    assert_eq!(log.retire_passed(NOW, Duration::ZERO).await.unwrap(), 0);
    assert_eq!(log.retire_passed(NOW + 60 * DAY, Duration::from_secs(600)).await.unwrap(), 0, "a clock that jumps is not believed");
    assert_eq!(other.retire_passed(NOW + 60 * DAY, Duration::ZERO).await.unwrap(), 0, "nor by another node");
    assert_eq!(other.retire_passed(NOW + 60 * DAY, HOURS_12).await.unwrap(), 0);
    assert_eq!(log.retire_passed(NOW + 60 * DAY + 1, HOURS_12).await.unwrap(), 1, "but it is when it has lasted a day");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_day_is_made_while_readers_read_and_a_drop_does_not_wait_for_them_long() {
    let server = PostgresServer::shared();
    let url = server.database();
    let log = open(&url).await;
    import(&log, vec![row(0)]).await;
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute("BEGIN; SELECT * FROM runguard_log").await.unwrap();
    let made = tokio::time::timeout(Duration::from_secs(10), import(&log, vec![changed(1, |row| row.at = NOW + DAY)])).await;
    assert!(made.is_ok(), "a day does not wait for readers");
    let error = log.retire(NOW + 40 * DAY).await.unwrap_err().to_string();
    assert!(error.contains("tried again later"), "{error}");
    client.batch_execute("COMMIT").await.unwrap();
    assert_eq!(log.retire(NOW + 40 * DAY).await.unwrap(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_erased_session_leaves_a_row_that_says_so_and_nothing_else() {
    let server = PostgresServer::shared();
    let log = open(&server.database()).await;
    let of = |number: usize, tenant: &str, session: &str| {
        changed(number, |row| {
            (row.tenant, row.session, row.at) = (tenant.into(), session.into(), NOW + number as i64 * DAY / 2);
        })
    };
    let rows = vec![of(0, "t", "s\0"), of(1, "u", "s\0"), of(2, "t", "s"), of(3, "t", "s\0"), of(4, "t", "s\u{1a}0")];
    import(&log, rows).await;
    let mut erasure = of(9, "t", "");
    erasure.row.kind = "erasure".into();
    let mut later = erasure.clone();
    let elsewhere = [(u16::MAX, EntryId { millis: 1, number: 0 })];
    assert_eq!(log.erase_session(&elsewhere, "t", "s\0", erasure.clone(), u64::MAX).await.unwrap(), None, "positions are others");
    assert_eq!(log.erase_session(&[], "t", "s\0", erasure.clone(), u64::MAX).await.unwrap(), Some(2));
    let ids: Vec<_> = [(2, 1), (3, 2), (5, 4), (6, 9)].map(|(seq, number)| (seq, format!("id-{number:06}"))).to_vec();
    assert_eq!(numbered_ids(&log).await, ids);
    assert_eq!(*log.committed().borrow(), 6);
    let again = log.erase_session(&[], "t", "s\0", erasure, u64::MAX).await.unwrap();
    assert_eq!(again, Some(0), "asked again because the answer got lost");
    assert_eq!(numbered_ids(&log).await, ids);
    later.row.at += DAY;
    assert_eq!(log.erase_session(&[], "t", "s\0", later, u64::MAX).await.unwrap(), Some(0), "gone on with elsewhere, at another time");
    assert_eq!(numbered_ids(&log).await, ids, "one erasure is one row");
    assert!(matches!(import(&log, vec![row(20)]).await, Imported::Done { last_seq: 7, .. }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn effects_come_in_the_order_of_rows_from_a_time_on() {
    let server = PostgresServer::shared();
    let log = open(&server.database()).await;
    let with = |number: usize, at: i64, effects: &[u8]| RowWithEffects {
        effects: effects.into(),
        ..changed(number, |row| (row.at, row.tenant) = (at, format!("t{number}\0").into()))
    };
    let late = with(0, NOW + 2 * DAY, &[0]);
    import(&log, vec![late, with(1, NOW, &[1, 0]), with(2, NOW + 5, &[]), with(3, NOW - 1, &[3]), with(4, NOW + DAY, &[4])]).await;
    let mut seen = Vec::new();
    let done = log
        .effects_since(NOW, |seq, at, tenant, effects| {
            seen.push((seq, at, tenant.to_owned(), effects.to_vec()));
            ControlFlow::Continue(())
        })
        .await;
    assert!(done.unwrap().is_continue());
    let expected = [
        (1, NOW + 2 * DAY, "t0\0".to_owned(), vec![0]),
        (2, NOW, "t1\0".to_owned(), vec![1, 0]),
        (5, NOW + DAY, "t4\0".to_owned(), vec![4]),
    ];
    assert_eq!(seen, expected);
    let mut count = 0;
    let stopped = log.effects_since(i64::MIN, |_, _, _, _| {
        count += 1;
        if count == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(stopped.await.unwrap().is_break());
    assert_eq!((count, all(&log).await.len()), (2, 5));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_rests_within_a_page_goes_on_where_it_was_also_over_what_is_gone() {
    let server = PostgresServer::shared();
    let url = server.database();
    let log = open(&url).await;
    import(&log, (0..3500).map(row).collect()).await;
    server.sql(url.rsplit('/').next().unwrap(), "DELETE FROM runguard_log WHERE seq BETWEEN 501 AND 2900 OR seq BETWEEN 1 AND 20");
    let follower = log.follower();
    let seen = tokio::task::spawn_blocking(move || {
        let (mut seen, mut after): (Vec<u64>, u64) = (Vec::new(), 0);
        loop {
            let flow = follower.follow(after, 3400, |row| {
                after = row.seq;
                seen.push(after);
                if seen.len().is_multiple_of(7) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            if flow.unwrap().is_continue() {
                break;
            }
        }
        // From somewhere else: what was left is not taken for what is there.
        let mut again = Vec::new();
        for after in [3000, 2999] {
            let _ = follower.follow(after, 3400, |row| {
                again.push(row.seq);
                ControlFlow::Break(())
            });
        }
        (seen, again)
    });
    let (seen, again) = seen.await.unwrap();
    assert_eq!(seen, (21..=500).chain(2901..=3400).collect::<Vec<_>>());
    assert_eq!(again, [3001, 3000]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_reads_many_pages_also_from_within_a_runtime_and_stops_when_told() {
    let server = PostgresServer::shared();
    let log = open(&server.database()).await;
    for batch in 0..3 {
        import(&log, (batch * 1000..(batch + 1) * 1000 + if batch == 2 { 500 } else { 0 }).map(row).collect()).await;
    }
    let follower = log.follower();
    let read = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            for (after, upto, most, expected) in
                [(0, 3500, 9999, 3500), (5, 2005, 9999, 2000), (5, 9999, 1200, 1200), (u64::MAX, u64::MAX, 9, 0)]
            {
                let mut seen: Vec<u64> = Vec::new();
                let stopped = follower.follow(after, upto, |row| {
                    seen.push(row.seq);
                    if seen.len() == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                });
                assert_eq!(stopped.unwrap().is_break(), expected == most);
                assert_eq!(seen, (1..=expected as u64).map(|number| after + number).collect::<Vec<_>>());
            }
        });
    };
    std::thread::spawn(read).join().unwrap();
}
