//! `GET /v1/events`: decisions as they happen, as server-sent events.
//!
//! A stream follows the log by row number and not a channel of messages: a slow reader falls behind and loses nothing,
//! a reader that comes back with `Last-Event-ID` goes on where it was, and a decision waits for no reader.

use super::decisions::{FILTERS, Shown, filter, query, reader};
use super::{State, into_axum};
use crate::problem::Problem;
use crate::respond::Reply;
use crate::service::App;
use axum::extract::RawQuery;
use axum::response::Response;
use bytes::Bytes;
use http_body_util::Either;
use hyper::HeaderMap;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use runguard_store::{Order, RowFilter};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;

/// Rows read at a time.
const CHUNK: usize = 200;
/// A line now and then, so that a dead connection is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

pub(crate) async fn stream(app: State, RawQuery(raw): RawQuery, headers: HeaderMap) -> Response {
    into_axum(open(&app, raw.as_deref(), &headers).unwrap_or_else(Problem::into_reply))
}

fn open(app: &Arc<App>, raw: Option<&str>, headers: &HeaderMap) -> Result<Reply, Problem> {
    let (caller, now) = reader(app, headers)?;
    let values = query(raw, FILTERS)?;
    let filter = filter(&values, &caller, now)?;
    let last_id = match headers
        .get("last-event-id")
        .filter(|value| !value.is_empty())
        .map(|value| value.to_str().ok().and_then(|text| text.parse().ok()))
    {
        None => None,
        Some(Some(seq)) => Some(seq),
        Some(None) => return Err(Problem::query("Last-Event-ID", "must be the id of an earlier event")),
    };
    // Where the stream begins is fixed before the caller hears of it: what is decided from its answer on is in the stream.
    let mut committed = app.engine.store.committed();
    let at = last_id.unwrap_or(*committed.borrow_and_update());
    let (sender, receiver) = mpsc::channel(16);
    tokio::spawn(follow(app.clone(), filter, committed, at, sender));
    let mut response = Reply::new(Either::Right(axum::body::Body::from_stream(ReceiverStream::new(receiver))));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

type Chunk = Result<Bytes, Infallible>;

async fn follow(app: Arc<App>, filter: RowFilter, mut committed: watch::Receiver<u64>, mut at: u64, sender: mpsc::Sender<Chunk>) {
    app.metrics.stream_opened();
    let mut stopping = app.stopping.clone();
    let mut alive = send(&sender, ": connected\n\n".into()).await;
    while alive && !*stopping.borrow() {
        let newest = *committed.borrow_and_update();
        while alive && at < newest {
            let Ok(rows) = app.engine.rows(filter.clone(), Order::OldestFirst, Some(at), CHUNK).await else { break };
            at = if rows.len() < CHUNK {
                newest.max(rows.last().map_or(0, |row| row.seq))
            } else {
                rows.last().map_or(newest, |row| row.seq)
            };
            for row in &rows {
                let data = serde_json::to_string(&Shown::of(row)).unwrap_or_default();
                alive = alive && send(&sender, format!("id: {}\nevent: decision\ndata: {data}\n\n", row.seq)).await;
            }
        }
        tokio::select! {
            changed = committed.changed() => alive = alive && changed.is_ok(),
            _ = stopping.changed() => break,
            () = sender.closed() => break,
            () = tokio::time::sleep(KEEP_ALIVE) => alive = alive && send(&sender, ": still here\n\n".into()).await,
        }
    }
    app.metrics.stream_closed();
}

async fn send(sender: &mpsc::Sender<Chunk>, text: String) -> bool {
    sender.send(Ok(Bytes::from(text))).await.is_ok()
}
