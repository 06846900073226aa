//! The analyst on a real engine: nothing counted twice or missed, whatever happens to it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use runguard_core::Timestamp;
use runguard_core::calendar::Zone;
use runguard_core::detect::stall::Long;
use runguard_engine::analyst::INSIGHT_FILE;
use runguard_engine::engine::open_store;
use runguard_engine::settings::{Settings, check_text};
use runguard_engine::{AuthorisedRequest, Clock, Engine, EngineOptions, KeyRing};
use runguard_guards::answer::Shape;
use runguard_guards::guard::ROUTES;
use runguard_guards::input::Input;
use runguard_insight::insight::digest::{HOUR_MILLIS, MOST_NAMES, OTHER, Range};
use runguard_insight::insight::long_runs::KnownLengths;
use runguard_insight::insight::{Filters, Overview};
use runguard_store::{Order, RowFilter};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;
use tokio::task::JoinSet;

const NOW: i64 = 1_700_000_000_000;
const DAY: i64 = 24 * HOUR_MILLIS;
const RETRY: &str = "/guard/ai-task-retry";
const AGENT_RUN: &str = "/guard/agent-run";
const KB_CHECK: &str = "/guard/kb-requery/check";
const KB_RECORD: &str = "/guard/kb-requery/record";

struct Service {
    folder: TempDir,
    engine: Arc<Engine>,
    settings: Settings,
}

async fn start(folder: &Path, settings: &Settings) -> Arc<Engine> {
    let mut settings = settings.clone();
    settings.store.data = folder.to_string_lossy().into_owned();
    let store = open_store(&settings).unwrap();
    Arc::new(Engine::new(store, EngineOptions { clock: Clock::Virtual, settings, keys: KeyRing::default(), seed: None }).await.unwrap())
}

impl Service {
    async fn new(toml: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let settings = check_text(Path::new("test.toml"), toml).unwrap().settings;
        Self { engine: start(folder.path(), &settings).await, folder, settings }
    }

    async fn restart_after(self, between: impl FnOnce(&Path)) -> Self {
        drop(Arc::into_inner(self.engine).expect("somebody still uses the engine"));
        between(self.folder.path());
        Self { engine: start(self.folder.path(), &self.settings).await, ..self }
    }

    async fn ask(&self, tenant: &str, path: &str, body: Value, now: i64) {
        ask(&self.engine, tenant, path, &body, now).await;
    }

    async fn overview(&self, since_ms: i64, until_ms: i64) -> Overview {
        let range = Range { since_ms, until_ms, bucket_seconds: 3600, filters: Filters::default() };
        self.engine.overview(range).await.unwrap()
    }

    /// Decisions by the cells and by the store's own counts.
    async fn counted(&self) -> (u64, u64) {
        let shown = self.overview(NOW - 40 * DAY, NOW + 40 * DAY).await;
        let cells = shown.subjects.iter().map(|subject| subject.allowed + subject.would_block + subject.blocked).sum();
        (cells, shown.totals.decisions)
    }

    /// Every file of the folder that contains the text.
    fn files_with(&self, text: &str) -> Vec<String> {
        let files = std::fs::read_dir(self.folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let has = |path: &std::path::PathBuf| {
            std::fs::read(path).is_ok_and(|bytes| bytes.windows(text.len()).any(|window| window == text.as_bytes()))
        };
        files.filter(has).map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect()
    }
}

async fn ask(engine: &Engine, tenant: &str, path: &str, body: &Value, now: i64) {
    let route = ROUTES.iter().find(|route| route.path == path).unwrap();
    let body = body.to_string();
    let input = Input::read(body.as_bytes(), route.fields).unwrap();
    let operation = (route.read)(&input);
    let asked = AuthorisedRequest {
        tenant: &tenant.into(),
        operation: &*operation,
        warnings: &[],
        now: Timestamp::from_millis(now),
        shape: Shape::Full,
        idempotency: None,
    };
    drop(engine.ask(asked).await.unwrap());
}

async fn many(engine: &Arc<Engine>, from: usize, count: usize) {
    let mut asking = JoinSet::new();
    for number in from..from + count {
        let engine = engine.clone();
        asking.spawn(async move {
            let body = json!({"session_id": format!("s{}", number % 97), "task_name": format!("task{}", number % 7)});
            ask(&engine, "acme", RETRY, &body, NOW + number as i64).await;
        });
    }
    while let Some(done) = asking.join_next().await {
        done.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_long_is_learned_from_runs_that_are_over() {
    let service = Service::new("").await;
    let steps = |calls: u64| -> Vec<Value> {
        (0..calls)
            .map(|call| json!({"id": call.to_string(), "tool": "look", "args": call.to_string(), "result": call.to_string()}))
            .collect()
    };
    let run =
        |name: String, calls: u64| json!({"session_id": name, "model": "m", "steps": steps(calls), "whole": true, "tokens": 1000 * calls});
    for calls in 1..=30 {
        service.ask("acme", AGENT_RUN, run(format!("r{calls}"), calls), NOW).await;
        let again = json!({"session_id": format!("r{calls}"), "model": "m", "steps": [{"id": "last", "tool": "look", "args": "last", "result": "x"}]});
        service.ask("acme", AGENT_RUN, again, NOW + 1).await;
    }
    service.engine.analyst.catch_up().await.unwrap();
    assert!(service.engine.analyst.long_runs().is_empty(), "they may go on yet");
    service.ask("acme", AGENT_RUN, run("later".into(), 200), NOW + 2 * HOUR_MILLIS).await;
    service.engine.analyst.catch_up().await.unwrap();
    let known = |long: Long| -> KnownLengths { [("acme".into(), [("agent_run\n\nm".into(), long)].into_iter().collect())].into() };
    let expected = known(Long { calls: 31, tokens: 38_000 });
    assert_eq!(**service.engine.analyst.long_runs(), expected);
    let service = service.restart_after(|_| ()).await;
    service.engine.analyst.catch_up().await.unwrap();
    assert_eq!(**service.engine.analyst.long_runs(), expected);
    let mut steps = Vec::new();
    for number in 0..16 {
        steps.push(json!({"id": format!("c{number}"), "tool": "bash", "args": format!("{number}"), "result": "x", "does": "changes"}));
        steps.push(json!({"id": format!("t{number}"), "tool": "bash", "args": "pytest", "error": format!("e{number}"), "does": "runs"}));
        let body = json!({"session_id": "long", "model": "m", "steps": steps, "whole": true});
        service.ask("acme", AGENT_RUN, body, NOW + 3 * HOUR_MILLIS).await;
    }
    let rows = service.engine.store.rows(RowFilter::default(), Order::NewestFirst, None, 2).await.unwrap();
    let refused: Vec<bool> = rows.iter().map(|row| row.answer.contains("\"rung\":\"stop\"")).collect();
    assert_eq!(refused, [true, false], "after thirty-one calls, and after it was told: {rows:?}");
    assert!(rows[0].answer.contains("\"long_calls\":31"), "{}", rows[0].answer);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_shows_at_once_and_stays_the_same_when_it_is_digested() {
    let service = Service::new("").await;
    service.ask("acme", RETRY, json!({"session_id": "s", "task_name": "extract_date", "user_message": "hello"}), NOW).await;
    let before = service.overview(NOW - DAY, NOW + 1).await;
    assert_eq!((before.behind_rows, before.totals.blocked, before.totals.operations_saved), (0, 1, 1));
    assert_eq!((before.subjects[0].subject.as_str(), before.subjects[0].blocked), ("extract_date", 1));
    assert_eq!(before.reasons[0].sessions, ["s"]);
    service.engine.analyst.catch_up().await.unwrap();
    assert_eq!(service.engine.analyst.rows_behind(), 0);
    assert_eq!(service.overview(NOW - DAY, NOW + 1).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_anywhere_it_neither_misses_a_row_nor_counts_one_twice() {
    let mut service = Service::new("").await;
    let mut asked = 0;
    for (round, count) in [700, 2_900, 10, 1_300].into_iter().enumerate() {
        many(&service.engine, asked, count).await;
        asked += count;
        if round % 2 == 0 {
            service.engine.analyst.catch_up().await.unwrap();
            many(&service.engine, asked, 50).await;
            asked += 50;
        }
        // Whatever it was doing ends here, and is not written down.
        service = service.restart_after(|_| {}).await;
    }
    service.engine.analyst.catch_up().await.unwrap();
    assert_eq!(service.counted().await, (asked as u64, asked as u64));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_was_not_committed_is_digested_again() {
    let service = Service::new("").await;
    many(&service.engine, 0, 300).await;
    service.engine.analyst.catch_up().await.unwrap();
    let kept = tempfile::tempdir().unwrap();
    let copy = kept.path().join(INSIGHT_FILE);
    // The file as a crash would leave it: of an earlier moment.
    let service = service.restart_after(|folder| assert!(std::fs::copy(folder.join(INSIGHT_FILE), &copy).unwrap() > 0)).await;
    many(&service.engine, 300, 500).await;
    service.engine.analyst.catch_up().await.unwrap();
    let service = service.restart_after(|folder| assert!(std::fs::copy(&copy, folder.join(INSIGHT_FILE)).unwrap() > 0)).await;
    service.engine.analyst.catch_up().await.unwrap();
    assert_eq!(service.counted().await, (800, 800));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_damaged_or_foreign_file_is_built_anew() {
    let mut service = Service::new("").await;
    many(&service.engine, 0, 2_500).await;
    service.engine.analyst.catch_up().await.unwrap();
    let damages: [fn(&Path); 4] = [
        |file| std::fs::remove_file(file).unwrap(),
        |file| std::fs::write(file, "this is not a database, and it is long enough to be looked at as one").unwrap(),
        |file| {
            let mut bytes = std::fs::read(file).unwrap();
            let middle = bytes.len() / 3;
            bytes[4096..].iter_mut().skip(middle % 7).for_each(|byte| *byte = 0x5a);
            std::fs::write(file, bytes).unwrap();
        },
        |file| {
            // It counts rows that this log never had.
            let connection = rusqlite::Connection::open(file).unwrap();
            connection.execute("UPDATE progress SET value = 1000000 WHERE name = 'digested'", []).unwrap();
        },
    ];
    for (number, damage) in damages.into_iter().enumerate() {
        service = service.restart_after(|folder| damage(&folder.join(INSIGHT_FILE))).await;
        // The first try may find the damage, and throws the file away.
        if service.engine.analyst.catch_up().await.is_err() {
            service.engine.analyst.catch_up().await.unwrap();
        }
        assert_eq!(service.counted().await, (2_500, 2_500), "damage {number}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_found_while_running_is_repaired_too() {
    let service = Service::new("").await;
    many(&service.engine, 0, 2_500).await;
    service.engine.analyst.catch_up().await.unwrap();
    let file = service.folder.path().join(INSIGHT_FILE);
    let service = service
        .restart_after(|_| {
            let length = std::fs::metadata(&file).unwrap().len() as usize;
            let mut bytes = std::fs::read(&file).unwrap();
            // The table's root stays, its leaves do not.
            bytes[length / 2..].fill(0x5a);
            std::fs::write(&file, bytes).unwrap();
        })
        .await;
    let range = Range { since_ms: NOW - DAY, until_ms: NOW + DAY, bucket_seconds: 3600, filters: Filters::default() };
    let mut tries = 0;
    while service.engine.overview(range.clone()).await.is_err() {
        tries += 1;
        assert!(tries < 100);
        drop(service.engine.analyst.catch_up().await);
    }
    drop(service.engine.analyst.catch_up().await);
    service.engine.analyst.catch_up().await.unwrap();
    assert_eq!(service.counted().await, (2_500, 2_500));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_erased_session_is_in_no_example_no_label_and_no_file() {
    let service = Service::new("[guards.ai_task_retry]\nmax_retries = 0\n").await;
    let query = |session: &str, text: &str| json!({"session_id": session, "query": text, "confidence_score": 0.2});
    service.ask("acme", KB_RECORD, query("gone-1", "zanzibar refunds"), NOW).await;
    service.ask("acme", RETRY, json!({"session_id": "gone-1", "task_name": "classify"}), NOW).await;
    service.ask("globex", RETRY, json!({"session_id": "gone-1", "task_name": "classify"}), NOW).await;
    service.engine.analyst.catch_up().await.unwrap();
    // And some that are not digested yet.
    service.ask("acme", RETRY, json!({"session_id": "gone-1", "task_name": "late"}), NOW + 1).await;
    assert!(service.files_with("zanzibar").iter().any(|file| file.starts_with(INSIGHT_FILE)), "{:?}", service.files_with("zanzibar"));
    let erased = service.engine.erase_session("acme", "gone-1", Timestamp::from_millis(NOW + 2)).await.unwrap().unwrap();
    assert_eq!(erased.log_rows, 3);
    service.engine.analyst.catch_up().await.unwrap();
    let mine = Filters { tenant: Some("acme".into()), ..Filters::default() };
    let range = Range { since_ms: NOW - DAY, until_ms: NOW + DAY, bucket_seconds: 3600, filters: mine };
    let shown = service.engine.overview(range.clone()).await.unwrap();
    let text = serde_json::to_string(&shown).unwrap();
    assert!(!text.contains("gone-1") && !text.contains("zanzibar"), "{text}");
    // What was counted stays counted, but not the session.
    assert_eq!((shown.topics[0].queries, shown.topics[0].label.as_str()), (1, ""));
    assert_eq!((shown.topic_sessions, shown.topics[0].asked_sessions, shown.topics[0].low_sessions), (0, 0, 0));
    // The same name at another tenant is another session.
    let theirs = Range { filters: Filters { tenant: Some("globex".into()), ..Filters::default() }, ..range };
    assert_eq!(service.engine.overview(theirs).await.unwrap().reasons[0].sessions, ["gone-1"]);
    assert_eq!(service.files_with("zanzibar"), Vec::<String>::new());
    let service = service.restart_after(|_| {}).await;
    assert_eq!(service.files_with("zanzibar"), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn phrasings_of_different_sessions_are_one_topic_and_days_of_use_add_up() {
    let service = Service::new("[guards.kb_requery.voiceflow]\nmax_queries = 9\n").await;
    let phrasings = ["How do I get a refund for my order?", "how can I get a refund for my order", "get a refund for my order: how?"];
    for number in 0..30 {
        let (session, at) = (format!("s{number}"), NOW + number * DAY / 10);
        let (text, confidence) =
            if number % 5 == 0 { (phrasings[number as usize / 5 % 3], 0.3) } else { ("Which countries do you ship to?", 0.9) };
        service.ask("acme", KB_CHECK, json!({"session_id": session, "query": text}), at).await;
        service.ask("acme", KB_RECORD, json!({"session_id": session, "query": text, "confidence_score": confidence}), at + 1).await;
    }
    for is_digested in [false, true] {
        if is_digested {
            service.engine.analyst.catch_up().await.unwrap();
        }
        let shown = service.overview(NOW - DAY, NOW + 4 * DAY).await;
        let refund = shown.topics.iter().find(|topic| topic.label.contains("refund")).unwrap();
        assert_eq!((shown.topic_sessions, shown.topics.len(), refund.phrasings, refund.low_sessions), (30, 2, 3, 6), "{:?}", shown.topics);
        assert!((refund.low_share - 0.2).abs() < 1e-9);
        let range = Range { since_ms: NOW - DAY, until_ms: NOW + 4 * DAY, bucket_seconds: 3600, filters: Filters::default() };
        let used = service.engine.consumption(range, Zone::UTC).await.unwrap();
        // What is recorded is no step; each query that was let pass is two operations.
        assert_eq!(used.days.iter().map(|day| day.operations).sum::<u64>(), 60);
        assert_eq!(used.days.iter().map(|day| day.sessions).sum::<u64>(), 30);
        // The names are hashes.
        assert!(used.steps.iter().all(|step| phrasings.contains(&step.label.as_str()) || step.label.contains("ship")), "{:?}", used.steps);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hours_leave_with_the_log() {
    let service = Service::new("[log]\nretention_days = 2\n").await;
    let body = |session: &str, text: &str| json!({"session_id": session, "query": text, "confidence_score": 0.2});
    service.ask("acme", KB_RECORD, body("old", "zanzibar"), NOW).await;
    service.engine.analyst.catch_up().await.unwrap();
    service.ask("acme", KB_RECORD, body("young", "madagascar"), NOW + DAY).await;
    service.engine.analyst.catch_up().await.unwrap();
    assert_eq!(service.overview(NOW - DAY, NOW + 9 * DAY).await.topics.len(), 2);
    service.ask("acme", KB_RECORD, body("today", "reunion"), NOW + 2 * DAY + 2 * HOUR_MILLIS).await;
    service.engine.analyst.catch_up().await.unwrap();
    let mut labels: Vec<String> = service.overview(NOW - DAY, NOW + 9 * DAY).await.topics.into_iter().map(|topic| topic.label).collect();
    labels.sort();
    assert_eq!(labels, ["madagascar", "reunion"]);
    assert!(!service.files_with("zanzibar").iter().any(|file| file.starts_with(INSIGHT_FILE)));
}

#[tokio::test(flavor = "multi_thread")]
async fn names_are_bounded_over_many_batches() {
    let service = Service::new("").await;
    let extra = 40;
    for batch in 0..4 {
        let mut asking = JoinSet::new();
        for number in 0..(MOST_NAMES + extra) / 4 {
            let engine = service.engine.clone();
            let body = json!({"session_id": "s", "task_name": format!("task-{batch}-{number}")});
            asking.spawn(async move { ask(&engine, "acme", RETRY, &body, NOW).await });
        }
        while let Some(done) = asking.join_next().await {
            done.unwrap();
        }
        service.engine.analyst.catch_up().await.unwrap();
    }
    let file = rusqlite::Connection::open(service.folder.path().join(INSIGHT_FILE)).unwrap();
    let names: usize = file.query_row("SELECT count(*) FROM cells WHERE dimension = 1", [], |row| row.get(0)).unwrap();
    assert_eq!(names, MOST_NAMES + 1);
    let shown = service.overview(NOW - DAY, NOW + DAY).await;
    let other = shown.subjects.iter().find(|subject| subject.subject == OTHER).unwrap();
    assert_eq!(other.allowed, extra as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn it_stops_at_once() {
    let service = Service::new("").await;
    many(&service.engine, 0, 3_000).await;
    let begun = std::time::Instant::now();
    service.engine.analyst.stop();
    assert!(begun.elapsed() < std::time::Duration::from_secs(10));
    assert!(service.engine.analyst.catch_up().await.is_err());
}
