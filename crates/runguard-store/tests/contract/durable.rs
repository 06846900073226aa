//! What was answered is there after the store was closed and opened again, with or without its second file.

use crate::contract::toy::{
    LIST, PLENTY, RULES, SUM, Store, TENANT, Toy, add, all_rows, append, change, index_file, keep, key, listed, one_more, options, replay,
    row, rows_of, states_of, sum, summed,
};
use proptest::prelude::*;
use runguard_store::{
    Cell, Decided, Durability, Embedded, Family, Key, Options, Order, Row, RowCount, RowFilter, SlotState, StoreError, View, Written,
};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::task::Poll;

const SESSIONS: usize = 300;

/// Sessions with several states each, and an endpoint that all of them share.
async fn fill(store: &Store) {
    let endpoint = Key::new(Family::Endpoint, TENANT, "shared");
    for number in 0..SESSIONS {
        let session = format!("s{number}");
        add(store, &session, number as u64).await.unwrap();
        append(store, &session, "a", session.as_bytes()).await;
        append(store, &session, "b", b"x").await;
        append(store, &session, "a", b"!").await;
        let both = |view: &View<'_>| vec![change(view, 0, LIST, &[number as u8]), change(view, 1, SUM, &1_u64.to_le_bytes())];
        keep(store, &[listed(endpoint, "e"), summed(key(&session))], row(&session), both).await.unwrap();
    }
}

#[derive(Debug, PartialEq)]
struct Everything {
    rows: Vec<Row>,
    timelines: Vec<Vec<Row>>,
    states: Vec<Vec<SlotState>>,
    endpoint: Vec<SlotState>,
    stats: Vec<RowCount>,
}

async fn try_everything(store: &Store) -> Result<Everything, StoreError> {
    let (mut timelines, mut states) = (Vec::new(), Vec::new());
    for number in 0..SESSIONS {
        let session = format!("s{number}");
        let filter = RowFilter { tenant: Some(TENANT.into()), session: Some(session.clone()), ..RowFilter::default() };
        timelines.push(store.rows(filter, Order::OldestFirst, None, 1000).await?);
        states.push(states_of(store, key(&session)).await?);
    }
    Ok(Everything {
        rows: store.rows(RowFilter::default(), Order::OldestFirst, None, 1_000_000).await?,
        timelines,
        states,
        endpoint: states_of(store, Key::new(Family::Endpoint, TENANT, "shared")).await?,
        stats: store.stats_by(None, None, i64::MIN / 2, i64::MAX / 2, 1).await?,
    })
}

async fn everything(store: &Store) -> Everything {
    try_everything(store).await.unwrap()
}

fn check_content(found: &Everything) {
    assert_eq!(found.rows.len(), 5 * SESSIONS);
    assert!(found.rows.iter().zip(1..).all(|(row, seq)| row.seq == seq), "numbered in order, without a gap");
    let endpoint: Vec<u8> = (0..SESSIONS).map(|number| number as u8).collect();
    assert_eq!(*found.endpoint[0].state, *endpoint);
    assert_eq!(found.timelines[7].len(), 5);
    let state =
        |slot: u8, subject: &str| &*found.states[7].iter().find(|state| state.slot == slot && *state.subject == *subject).unwrap().state;
    assert_eq!((found.states[7].len(), state(SUM, "")), (3, &8_u64.to_le_bytes()[..]));
    assert_eq!((state(LIST, "a"), state(LIST, "b")), (&b"s7!"[..], &b"x"[..]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_answered_is_there_after_a_stop() {
    let toy = Toy::new();
    fill(&toy.store).await;
    let before = everything(&toy.store).await;
    check_content(&before);
    let toy = toy.reopen();
    assert_eq!(everything(&toy.store).await, before);
    let toy = toy.reopen();
    assert_eq!(everything(&toy.store).await, before, "and after a second one without a write");
    assert_eq!(add(&toy.store, "s7", 1).await.unwrap(), 9, "and it goes on from there");
}

/// Who goes away, before or while the decision is written, leaves nothing that is counted and not in the log.
#[tokio::test]
async fn what_nobody_waits_for_is_written_all_the_same() {
    let toy = Toy::new();
    for is_polled in [false, true] {
        let cells = [summed(key("s"))];
        let decided = toy.store.decide(&cells, |view| Decided::Keep((), Written { row: row("s"), changes: one_more(view, 1) }));
        let mut waiting = Box::pin(decided.await.unwrap().1.wait());
        if is_polled {
            let is_pending = std::future::poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context).is_pending()));
            assert!(is_pending.await, "others on the thread come first");
        }
    }
    assert_eq!((sum(&toy.store, "s").await, all_rows(&toy.store).await.len()), (2, 2));
}

/// Nobody hears of a decision that could still be taken back, not even who keeps nothing.
#[tokio::test]
async fn an_answer_that_keeps_nothing_waits_for_what_it_was_decided_upon() {
    let toy = Toy::new();
    let cells = [summed(key("s"))];
    let keep = |view: &View<'_>| Decided::Keep((), Written { row: row("s"), changes: one_more(view, 1) });
    let ((), kept) = toy.store.decide(&cells, keep).await.unwrap();
    assert_eq!(all_rows(&toy.store).await.len(), 0, "nobody has waited for it");
    let ((), seen) = toy.store.decide(&cells, |_| Decided::Reply(())).await.unwrap();
    seen.wait().await.unwrap();
    assert_eq!(all_rows(&toy.store).await.len(), 1);
    kept.wait().await.unwrap();
}

/// What may happen to the second file while the store is closed.
fn losses() -> Vec<(&'static str, fn(&Path))> {
    fn scribble(folder: &Path, from: usize) {
        let file = index_file(folder);
        let mut bytes = std::fs::read(&file).unwrap();
        assert!(bytes.len() > from);
        bytes[from..].iter_mut().zip(0_u32..).for_each(|(byte, at)| *byte = (at.wrapping_mul(2_654_435_761) >> 24) as u8);
        std::fs::write(file, bytes).unwrap();
    }
    vec![
        ("deleted", |folder| std::fs::remove_file(index_file(folder)).unwrap()),
        ("empty", |folder| std::fs::write(index_file(folder), b"").unwrap()),
        ("short garbage", |folder| std::fs::write(index_file(folder), b"garbage").unwrap()),
        ("garbage throughout", |folder| scribble(folder, 0)),
        ("garbage behind a good header", |folder| scribble(folder, 100)),
        ("garbage behind a good first page", |folder| scribble(folder, 4096)),
        ("garbage in its second half", |folder| scribble(folder, std::fs::metadata(index_file(folder)).unwrap().len() as usize / 2)),
        ("garbage in its last page", |folder| scribble(folder, std::fs::metadata(index_file(folder)).unwrap().len() as usize - 4096)),
        ("cut in half", |folder| {
            let file = std::fs::File::options().write(true).open(index_file(folder)).unwrap();
            file.set_len(file.metadata().unwrap().len() / 2).unwrap();
        }),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_or_damaged_index_is_built_anew_from_the_log() {
    let mut toy = Toy::new();
    fill(&toy.store).await;
    toy.store.flush().await.unwrap();
    let before = everything(&toy.store).await;
    check_content(&before);
    for (loss, happens) in losses() {
        toy = toy.reopen_after(happens);
        match try_everything(&toy.store).await {
            Ok(found) => assert_eq!(found, before, "{loss}"),
            // Damage deep inside is met when it is read. It is refused, remembered, and mended at the next start.
            Err(StoreError::Read(_)) if loss.starts_with("garbage in") => {
                toy = toy.reopen();
                assert_eq!(everything(&toy.store).await, before, "{loss}, at the next start");
            }
            Err(error) => panic!("{loss}: {error}"),
        }
        toy.store.flush().await.unwrap();
        assert_eq!(everything(&toy.store).await, before, "{loss}, indexed");
    }
}

/// Operators look at the circuits as soon as the service is up, not when it has warmed up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_family_is_whole_from_the_first_moment() {
    const ENDPOINTS: usize = 3000;
    let toy = Toy::new();
    let sums: Vec<Cell<'_>> = (0..ENDPOINTS).map(|number| summed(Key::new(Family::Endpoint, TENANT, &number.to_string()))).collect();
    for sums in sums.chunks(100) {
        keep(&toy.store, sums, row("s"), |view| one_more(view, sums.len())).await.unwrap();
    }
    // Without the second file all of them are in the log only.
    let toy = toy.reopen_after(|folder| std::fs::remove_file(index_file(folder)).unwrap());
    let count = async |store: &Store| store.visit_family(Family::Endpoint, 0, |count, _| *count += 1).await.unwrap();
    assert_eq!(count(&toy.store).await, ENDPOINTS, "in the log only");
    let toy = toy.reopen();
    assert_eq!(count(&toy.store).await, ENDPOINTS, "in the index");
}

/// The bound of an entry: a thousand and some states. What is in use must not be what leaves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_at_its_bound_forgets_the_state_written_longest_ago() {
    let toy = Toy::new();
    for number in 0..1024 {
        append(&toy.store, "full", &number.to_string(), b"x").await;
    }
    append(&toy.store, "full", "0", b"x").await;
    append(&toy.store, "full", "one more", b"x").await;
    let subjects = async |store: &Store| -> Vec<String> {
        let mut subjects: Vec<String> =
            states_of(store, key("full")).await.unwrap().into_iter().map(|state| state.subject.into_string()).collect();
        subjects.sort_unstable();
        subjects
    };
    let before = subjects(&toy.store).await;
    assert_eq!(before.len(), 1024);
    let toy = toy.reopen_after(|folder| std::fs::remove_file(index_file(folder)).unwrap());
    assert_eq!(subjects(&toy.store).await, before, "the log forgets the same one");
    assert!(before.contains(&"0".to_owned()), "it was written after all but one");
    assert!(!before.contains(&"1".to_owned()));
}

#[derive(Debug, Clone)]
enum Action {
    /// On a session, and on the endpoint too.
    Step {
        session: usize,
        slot: u8,
        subject: usize,
        with_endpoint: bool,
    },
    Erase {
        session: usize,
    },
    Flush,
    Reopen,
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        12 => (0..4_usize, prop_oneof![Just(SUM), Just(LIST)], 0..3_usize, any::<bool>())
            .prop_map(|(session, slot, subject, with_endpoint)| Action::Step { session, slot, subject, with_endpoint }),
        1 => (0..4_usize).prop_map(|session| Action::Erase { session }),
        1 => Just(Action::Flush),
        2 => Just(Action::Reopen),
    ]
}

type States = BTreeMap<(u8, String), Vec<u8>>;

/// What the store should hold.
#[derive(Default)]
struct Model {
    entries: BTreeMap<String, States>,
    rows: Vec<(String, String)>,
}

const ENDPOINT: &str = "endpoint";

fn key_of(entry: &str) -> Key {
    if entry == ENDPOINT { Key::new(Family::Endpoint, TENANT, entry) } else { key(entry) }
}

async fn do_and_compare(actions: Vec<Action>, memory_bytes: usize) {
    let mut toy = Toy::with_memory(memory_bytes);
    let mut model = Model::default();
    for (turn, action) in actions.into_iter().enumerate() {
        match action {
            Action::Step { session, slot, subject, with_endpoint } => {
                let (session, subject) = (format!("s{session}"), format!("subject {subject}"));
                let row = row(&session);
                let events: Vec<u8> = (turn as u64).to_le_bytes().to_vec();
                let entries: Vec<String> = [session.clone()].into_iter().chain(with_endpoint.then(|| ENDPOINT.to_owned())).collect();
                model.rows.push((row.id.clone(), session));
                let mut expected = Vec::new();
                for entry in &entries {
                    let states = model.entries.entry(entry.clone()).or_default();
                    let place = (slot, subject.clone());
                    let state = replay(slot, states.get(&place).map(Vec::as_slice), &events, 0).unwrap();
                    expected.push(state.clone());
                    states.insert(place, state);
                }
                let keys: Vec<Key> = entries.iter().map(|entry| key_of(entry)).collect();
                let cells: Vec<Cell<'_>> = keys.iter().map(|key| Cell { key: *key, slot, subject: &subject, group: 0 }).collect();
                let step = |view: &View<'_>| (0..cells.len()).map(|cell| change(view, cell, slot, &events)).collect();
                assert_eq!(keep(&toy.store, &cells, row, step).await.unwrap(), expected, "what the step made of what it saw");
            }
            Action::Erase { session } => {
                let session = format!("s{session}");
                let admin = Row { session: String::new(), kind: "admin".into(), ..row("") };
                let id = admin.id.clone();
                let rows_before = model.rows.len();
                model.rows.retain(|(_, owner)| *owner != session);
                let known = model.entries.remove(&session).is_some() || model.rows.len() < rows_before;
                let erased = toy.store.erase_session(TENANT, &session, admin).await.unwrap();
                assert_eq!(erased.map(|erased| erased.log_rows), known.then_some(rows_before - model.rows.len()));
                if known {
                    model.rows.push((id, String::new()));
                }
            }
            Action::Flush => toy.store.flush().await.unwrap(),
            Action::Reopen => toy = toy.reopen(),
        }
    }
    for entry in ["s0", "s1", "s2", "s3", ENDPOINT] {
        let states = states_of(&toy.store, key_of(entry)).await.unwrap();
        let found: States = states.into_iter().map(|state| ((state.slot, state.subject.into_string()), state.state.into_vec())).collect();
        assert_eq!(found, model.entries.get(entry).cloned().unwrap_or_default(), "states of {entry}");
        if entry != ENDPOINT {
            let ids: Vec<String> = rows_of(&toy.store, entry).await.into_iter().map(|row| row.id).collect();
            let expected: Vec<String> = model.rows.iter().filter(|(_, owner)| owner == entry).map(|(id, _)| id.clone()).collect();
            assert_eq!(ids, expected, "timeline of {entry}");
        }
    }
    let ids: Vec<(String, String)> = all_rows(&toy.store).await.into_iter().map(|row| (row.id, row.session)).collect();
    assert_eq!(ids, model.rows);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn any_history_equals_the_model(actions in prop::collection::vec(action(), 1..60), fits in any::<bool>()) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(do_and_compare(actions, if fits { PLENTY } else { 1 }));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_probe_and_a_flush_count_as_nothing() {
    let toy = Toy::new();
    add(&toy.store, "one", 1).await.unwrap();
    toy.store.probe().await.unwrap();
    toy.store.flush().await.unwrap();
    add(&toy.store, "one", 1).await.unwrap();
    let toy = toy.reopen();
    assert_eq!(sum(&toy.store, "one").await, 2);
    assert_eq!(all_rows(&toy.store).await.iter().map(|row| row.seq).collect::<Vec<_>>(), [1, 2]);
}

/// Each answer waits for the disk, many of them at once; and what it waited for is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn answers_that_wait_for_the_disk_are_in_order_and_complete() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let options = Options { durability: Durability::Power, ..options(folder.path(), PLENTY) };
        Arc::new(Store::Embedded(Embedded::open(options, RULES).unwrap()))
    };
    for life in 1..=3_u64 {
        let store = open();
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..16 {
            let store = store.clone();
            tasks.spawn(async move {
                for turn in 1..=20 {
                    let count = add(&store, &format!("s{task}"), 1).await.unwrap();
                    assert_eq!(count, (life - 1) * 20 + turn);
                }
            });
        }
        // What goes on meanwhile leaves one file of the journal after the other.
        while tasks.len() > 4 {
            assert_eq!(store.purge().await.unwrap(), Vec::<String>::new());
            while tasks.try_join_next().is_some() {}
        }
        tasks.join_all().await;
        assert!(all_rows(&store).await.iter().map(|row| row.seq).eq(1..=life * 320), "each row once, in order");
    }
    assert_eq!(sum(&open(), "s3").await, 60);
}

/// Rows of a process that was killed are beside the log. One that reached it and was erased there does not come back with them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_process_left_beside_the_log_raises_nobody_from_the_dead() {
    let toy = Toy::new();
    add(&toy.store, "erased", 1).await.unwrap();
    add(&toy.store, "kept", 1).await.unwrap();
    let segments = |folder: &Path| -> Vec<std::path::PathBuf> {
        let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
        files.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("journal-")).collect()
    };
    let [segment] = &*segments(toy.folder.path()) else { panic!("one is being written") };
    let tell = Row { kind: runguard_core::row::Kind::Admin.into(), ..row("") };
    toy.store.erase_session(TENANT, "erased", tell).await.unwrap().unwrap();
    add(&toy.store, "late", 1).await.unwrap();
    let left = std::fs::read(segment).unwrap();
    let toy = toy.reopen_after(|folder| {
        assert!(segments(folder).is_empty(), "a store that is closed leaves nothing beside the log");
        std::fs::write(folder.join("journal-0000000007"), &left).unwrap();
    });
    assert_eq!(rows_of(&toy.store, "erased").await, []);
    assert_eq!((sum(&toy.store, "kept").await, sum(&toy.store, "late").await), (1, 1));
    assert_eq!(all_rows(&toy.store).await.iter().map(|row| row.seq).collect::<Vec<_>>(), [2, 3, 4]);
}
