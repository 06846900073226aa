//! What nodes have of a session in files of their own goes when it is erased, and only then.

use crate::stores::racing::{NOW, ask};
use crate::stores::redis_server::wait_until;
use crate::stores::systems::{Servers, System, node_in, settings};
use runguard_core::Timestamp;
use runguard_engine::Engine;
use runguard_insight::insight::session_list::SessionQuery;
use runguard_store::{Order, RowFilter};
use serde_json::json;
use std::fs;
use std::path::Path;
use std::time::Duration;

const SESSION: &str = "s";

async fn retry(engine: &Engine) {
    ask(engine, "/guard/ai-task-retry", &json!({"session_id": SESSION, "task_name": "t"}), None).await.unwrap();
}

/// As its overviews have it, whatever the log has.
async fn is_listed(engine: &Engine) -> bool {
    let query = SessionQuery { until_ms: i64::MAX, limit: 100, ..SessionQuery::default() };
    engine.sessions(query).await.unwrap().sessions.iter().any(|seen| seen.session_id == SESSION)
}

async fn rows(engine: &Engine) -> usize {
    let filter = RowFilter { session: Some(SESSION.into()), ..RowFilter::default() };
    engine.store.rows(filter, Order::OldestFirst, None, 1000).await.unwrap().len()
}

async fn digested(engine: &Engine) {
    engine.store.flush().await.unwrap();
    engine.analyst.catch_up().await.unwrap();
    assert!(is_listed(engine).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_erasure_that_is_refused_leaves_the_overviews_as_they_were() {
    let mut servers = Servers::start();
    let system = System::postgres(&servers).await;
    let node = &system.nodes[0];
    retry(node).await;
    digested(node).await;
    servers.redis.kill();
    let is_away = || node.store.cluster_health().unwrap().away.is_some();
    tokio::task::block_in_place(|| wait_until("the node to miss its states", is_away));
    node.erase_session("acme", SESSION, Timestamp::from_millis(NOW)).await.unwrap_err();
    assert!(is_listed(node).await, "nothing of it was done");
    servers.redis.start_again();
    tokio::task::block_in_place(|| wait_until("the states to be there again", || !is_away()));
    let erased = node.erase_session("acme", SESSION, Timestamp::from_millis(NOW)).await.unwrap().unwrap();
    assert_eq!((erased.log_rows, is_listed(node).await), (1, false));
}

fn note(folder: &Path, row: &str, step: &str) {
    let folder = folder.join("erasing");
    fs::create_dir_all(&folder).unwrap();
    let note = json!({"tenant": "acme", "whose": {"session": SESSION}, "at": NOW - 1000, "step": step, "row": row});
    fs::write(folder.join("0000000000000001.json"), note.to_string()).unwrap();
}

fn is_noted(folder: &Path) -> bool {
    folder.join("erasing/0000000000000001.json").exists()
}

/// How far an erasure was when its process was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Was {
    NotBegun,
    /// Nobody else had heard of it.
    InTheLog,
    /// It was told that it goes on, because nobody could know whether that it begins was written: it was not, and another one took the session.
    Overtaken,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_hear_of_an_erasure_of_a_killed_process_if_it_took_place() {
    for was in [Was::NotBegun, Was::InTheLog, Was::Overtaken] {
        let took_place = was != Was::NotBegun;
        let servers = Servers::start();
        let mut settings = settings("");
        servers.state(&mut settings);
        servers.log(&mut settings);
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let prefix = settings.store.prefix.clone();
        let other = node_in(folders[1].path(), settings.clone(), 1, None).await;
        let finishing = tokio::spawn(runguard_engine::erasure::finish(other.clone()));
        let mut row = "01ARZ3NDEKTSV4RRFFQ69G5FAV".to_owned();
        if took_place {
            retry(&other).await;
            other.store.flush().await.unwrap();
            other.erase_session("acme", SESSION, Timestamp::from_millis(NOW - 1000)).await.unwrap().unwrap();
        }
        if was == Was::InTheLog {
            let all = other.store.rows(RowFilter::default(), Order::NewestFirst, None, 1).await.unwrap();
            row = all[0].id.clone();
        }
        note(folders[0].path(), &row, if was == Was::Overtaken { "begun" } else { "remove" });
        let killed = node_in(folders[0].path(), settings, 3, None).await;
        retry(&killed).await;
        killed.store.flush().await.unwrap();
        for node in [&killed, &other] {
            node.store.flush().await.unwrap();
            node.analyst.catch_up().await.unwrap();
        }
        let was_listed = is_listed(&other).await;
        let also = tokio::spawn(runguard_engine::erasure::finish(killed.clone()));
        tokio::task::block_in_place(|| {
            servers.wait_for_nodes(&prefix, 2);
            wait_until("the note to be done with", || !is_noted(folders[0].path()));
        });
        // As long as it takes until the other one looks.
        tokio::time::sleep(Duration::from_millis(2500)).await;
        assert_eq!(rows(&killed).await, 1, "what came since stays, {was:?}");
        assert_eq!(is_listed(&other).await, was_listed && !took_place, "{was:?}");
        assert!(was_listed || took_place);
        finishing.abort();
        also.abort();
    }
}
