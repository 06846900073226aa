//! `GET /v1/events`: decisions as they happen, as server-sent events.
//!
//! A stream goes by row numbers: it is handed rows while it keeps up ([`crate::streams`]), and reads the log itself when it does not, or
//! comes back with `Last-Event-ID`. It loses nothing either way, and a decision waits for no reader.

use super::State;
use super::decisions::{FILTERS, Shown, filter};
use super::query::{query, reader};
use crate::auth;
use crate::metrics::Limited;
use crate::problem::Problem;
use crate::service::App;
use crate::streams::{Listener, News};
use axum::extract::RawQuery;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use hyper::HeaderMap;
use runguard_engine::engine::complete_answer;
use runguard_http::reply::Reply;
use runguard_http::reply::event_stream;
use runguard_http::reply::into_axum;
use runguard_store::{Order, Row, RowRef};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// Rows read at a time.
const CHUNK: usize = 200;
/// Pieces on their way to a reader; what else there is waits elsewhere.
const PIECES: usize = 16;
/// Rows that a node of a cluster may be behind the others.
const MOST_BEHIND: u64 = 10_000;
/// When the log cannot be read.
const AFTER_TROUBLE: Duration = Duration::from_secs(1);

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
    let newest = app.engine.store.follower().committed();
    let listener = app.streams.enter(caller.clone(), filter, newest).map_err(|too_many| {
        app.metrics.limited(Limited::Streams);
        Problem::too_many_streams(too_many)
    })?;
    if !auth::is_still_admitted(app, &caller) {
        // Revoked while it came in: whoever looks after the streams may have looked already.
        return Err(Problem::unauthorized());
    }
    if *app.stopping.borrow() {
        return Err(Problem::not_ready("The service is stopping. Try again shortly."));
    }
    // A node may not have seen yet what another one has sent; in any other case the id is of another log, from before a restore: its
    // reader would wait in silence until this one is as long.
    let ahead = if app.engine.store.cluster_health().is_some() { MOST_BEHIND } else { 0 };
    let at = last_id.filter(|last| *last <= newest.saturating_add(ahead)).unwrap_or(newest);
    let (sender, receiver) = mpsc::channel(PIECES);
    tokio::spawn(Stream { app: app.clone(), listener, sender, at }.run());
    Ok(event_stream(axum::body::Body::from_stream(ReceiverStream::new(receiver))))
}

type Piece = Result<Bytes, Infallible>;

/// A row as an event.
pub(crate) fn event(row: &RowRef<'_>) -> Bytes {
    let mut row = row.to_row();
    complete_answer(&mut row);
    event_of(&row)
}

fn event_of(row: &Row) -> Bytes {
    let data = serde_json::to_string(&Shown::of(row)).unwrap_or_default();
    format!("id: {}\nevent: decision\ndata: {data}\n\n", row.seq).into()
}

fn in_one_piece(mut events: Vec<(u64, Bytes)>) -> Bytes {
    match &mut *events {
        [(_, only)] => std::mem::take(only),
        several => several
            .iter()
            .fold(BytesMut::new(), |mut piece, (_, event)| {
                piece.extend_from_slice(event);
                piece
            })
            .freeze(),
    }
}

struct Stream {
    app: Arc<App>,
    listener: Listener,
    sender: mpsc::Sender<Piece>,
    /// The last row that was sent, or passed over.
    at: u64,
}

/// The reader has gone, or must go.
struct Over;

impl Stream {
    async fn run(mut self) {
        self.app.metrics.stream_opened();
        let Err(Over) = self.follow().await;
        self.app.metrics.stream_closed();
    }

    async fn follow(&mut self) -> Result<Infallible, Over> {
        self.send(Bytes::from_static(b": connected\n\n")).await?;
        loop {
            let offered = self.listener.join();
            self.catch_up(offered).await?;
            self.listen().await?;
        }
    }

    /// Reads the log itself up to where those who listen are.
    async fn catch_up(&mut self, offered: u64) -> Result<(), Over> {
        while self.at < offered {
            let rows = self.app.engine.rows(self.listener.filter().clone(), Order::OldestFirst, Some(self.at), CHUNK).await;
            let Ok(rows) = rows else {
                // Said where it happened.
                tokio::select! {
                    () = tokio::time::sleep(AFTER_TROUBLE) => continue,
                    () = self.sender.closed() => return Err(Over),
                    () = self.listener.ended() => return Err(Over),
                }
            };
            for row in &rows {
                self.send(event_of(row)).await?;
                self.at = row.seq;
            }
            if rows.len() < CHUNK {
                self.at = self.at.max(offered);
            }
        }
        Ok(())
    }

    /// Sends what it is handed, until it is behind.
    async fn listen(&mut self) -> Result<(), Over> {
        loop {
            let news = tokio::select! {
                news = self.listener.next() => news,
                () = self.sender.closed() => return Err(Over),
            };
            match news {
                News::Events(events) => {
                    // What was read from the log while it gathered here is not sent again.
                    let fresh: Vec<(u64, Bytes)> = events.into_iter().filter(|(seq, _)| *seq > self.at).collect();
                    let Some((last, _)) = fresh.last() else { continue };
                    self.at = *last;
                    self.send(in_one_piece(fresh)).await?;
                }
                News::Silence => self.send(Bytes::from_static(b": still here\n\n")).await?,
                News::Behind => return Ok(()),
                News::End => return Err(Over),
            }
        }
    }

    async fn send(&self, piece: Bytes) -> Result<(), Over> {
        tokio::select! {
            sent = self.sender.send(Ok(piece)) => sent.map_err(|_| Over),
            () = self.listener.ended() => Err(Over),
        }
    }
}
