//! The log of many machines, in Postgres.
//!
//! One table, cut by day, so that old rows leave by dropping a day. Rows arrive in batches from the streams, each batch in one
//! transaction with the positions it ends at: that is what makes every row arrive once ([`import`]). A counter row gives the
//! numbers and is held until the commit, so rows become visible in the order of their numbers and a reader who has seen one
//! never finds a smaller one later. Queries answer as those of the embedded log do ([`read`]).

mod import;
mod pool;
mod read;
mod schema;

use crate::cluster::link::names_of;
use crate::error::{OpenError, StoreError};
use crate::key::Names;
use crate::trusted_time::TrustedTime;
use futures_util::FutureExt as _;
use pool::{Failure, Pool, Server};
use runguard_core::time::DAY_MILLIS;
use schema::Day;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio_postgres::AsyncMessage;
use tokio_postgres::types::Type;

pub use import::Imported;
pub use read::PgFollower;

/// Connections of a node: for queries, and for writing.
const MOST_READERS: usize = 8;
const MOST_WRITERS: usize = 2;
/// How often the last number is asked for, should no message come: one may be lost, or the connection dead.
const ASK_EVERY: Duration = Duration::from_secs(5);
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// For a lock that readers hold: whoever comes after us waits as long.
const DROP_LOCK_MILLIS: u32 = 2000;

#[derive(Clone)]
pub struct PgOptions {
    /// `postgres://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=…`; `options=-c search_path=NAME` names a schema.
    pub url: String,
    pub retention_days: u32,
}

impl fmt::Debug for PgOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgOptions").field("retention_days", &self.retention_days).finish_non_exhaustive()
    }
}

/// The log. Its connections live on the runtime that opened it, whoever asks.
#[derive(Debug, Clone)]
pub struct PgLog {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    server: Arc<Server>,
    readers: Pool,
    writers: Pool,
    committed: watch::Sender<u64>,
    /// Whether that was ever asked: until then it is 0.
    is_known: Arc<AtomicBool>,
    /// Days that have their table, as far as this node knows.
    days: Mutex<BTreeSet<Day>>,
    retention_days: u32,
    listener: OnceLock<AbortHandle>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(listener) = self.listener.get() {
            listener.abort();
        }
    }
}

impl PgLog {
    /// Connects, and brings the tables up to this version's format. [`OpenError::PostgresAway`] may be over in a moment.
    pub async fn open(options: PgOptions) -> Result<Self, OpenError> {
        let log = Self::await_server(&options)?;
        let ask = async {
            let wire = log.inner.server.connect(None).await?;
            last_number(&wire).await
        };
        let place = || log.inner.server.place().to_owned();
        match ask.await {
            Ok(last) => {
                log.inner.committed.send_replace(last);
                log.inner.is_known.store(true, Ordering::Release);
                Ok(log.listening())
            }
            Err(Failure::TooNew { found, known }) => Err(OpenError::PostgresTooNew { place: place(), found, known }),
            Err(failure) if failure.is_away() => Err(OpenError::PostgresAway { place: place(), detail: failure.to_string() }),
            Err(failure) => Err(OpenError::Postgres { place: place(), detail: failure.to_string() }),
        }
    }

    /// A log that is away: it is there as soon as it can be reached.
    pub fn open_away(options: &PgOptions) -> Result<Self, OpenError> {
        Ok(Self::await_server(options)?.listening())
    }

    fn await_server(options: &PgOptions) -> Result<Self, OpenError> {
        let server = Arc::new(Server::parse(&options.url, Handle::current())?);
        let inner = Inner {
            readers: Pool::new(server.clone(), MOST_READERS),
            writers: Pool::new(server.clone(), MOST_WRITERS),
            server,
            committed: watch::Sender::new(0),
            is_known: Arc::default(),
            days: Mutex::default(),
            retention_days: options.retention_days,
            listener: OnceLock::new(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    fn listening(self) -> Self {
        let Inner { server, committed, is_known, listener, .. } = &*self.inner;
        let listening = server.runtime().spawn(listen(server.clone(), committed.clone(), is_known.clone()).boxed());
        let _ = listener.set(listening.abort_handle());
        self
    }

    /// Whether it is known where the log ends.
    pub fn is_known(&self) -> bool {
        self.inner.is_known.load(Ordering::Acquire)
    }

    /// How the names in this log became keys; `None` while it has none.
    pub async fn kept_names(&self) -> Result<Option<Names>, StoreError> {
        let read = async {
            let rows = self.inner.readers.query("SELECT secret FROM runguard_secret", &[]).await?;
            Ok(rows.first().map(|row| row.try_get::<_, String>(0)).transpose()?)
        };
        let secret = read.await.map_err(|failure: Failure| self.unread(&failure))?;
        secret.map(|secret| names_of(&secret).ok_or_else(|| StoreError::Read("the log's secret cannot be read".into()))).transpose()
    }

    /// Uses these from here on, and keeps them where there are none.
    pub async fn use_names(&self, names: Names) -> Result<(), StoreError> {
        self.inner.server.use_names(names).await.map_err(|failure| self.unwritten(&failure))
    }

    fn names(&self) -> Names {
        self.inner.server.names()
    }

    /// The number of the last row that is safe, and every later one, whoever wrote it.
    pub fn committed(&self) -> watch::Receiver<u64> {
        self.inner.committed.subscribe()
    }

    /// Whether Postgres takes a write right now.
    pub async fn probe(&self) -> Result<(), StoreError> {
        let written = self.inner.writers.query("UPDATE runguard_probe SET count = count + 1 RETURNING count", &[]).await;
        written.map(drop).map_err(|failure| self.unwritten(&failure))
    }

    /// Drops old days by the time that has really passed: the clock says `told_millis`, and so much time has gone by since this was
    /// last asked, here. What is known of it stands in the log, whichever node asks next.
    pub async fn retire_passed(&self, told_millis: i64, elapsed: Duration) -> Result<usize, StoreError> {
        let pass = async {
            let wire = self.inner.writers.begin().await?;
            let known = wire.query_opt("SELECT at, off_by, off_for FROM runguard_trusted FOR UPDATE", &[]).await?;
            let mut trusted = if let Some(row) = known {
                TrustedTime { at: row.try_get(0)?, off_by: row.try_get(1)?, off_for: row.try_get(2)? }
            } else {
                let newest = wire.query_opt("SELECT at FROM runguard_log ORDER BY seq DESC LIMIT 1", &[]).await?;
                TrustedTime::starting(told_millis, newest.map(|row| row.try_get(0)).transpose()?)
            };
            let now = trusted.pass(told_millis, i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX));
            let TrustedTime { at, off_by, off_for } = trusted;
            let keep = format!(
                "INSERT INTO runguard_trusted (at, off_by, off_for) VALUES ({at}, {off_by}, {off_for}) ON CONFLICT (single)
                 DO UPDATE SET at = excluded.at, off_by = excluded.off_by, off_for = excluded.off_for; COMMIT"
            );
            wire.batch_execute(&keep).await?;
            wire.keep();
            Ok(now)
        };
        let now = pass.await.map_err(|failure: Failure| self.unwritten(&failure))?;
        let days = self.retire(now).await?;
        if days > 0 {
            tracing::info!(days, retention_days = self.inner.retention_days, "days older than the retention have left the log");
        }
        Ok(days)
    }

    /// Drops the days that are older than the retention, with their counts. Gives how many went.
    pub async fn retire(&self, now_millis: i64) -> Result<usize, StoreError> {
        let oldest = now_millis.saturating_sub(i64::from(self.inner.retention_days).saturating_mul(DAY_MILLIS));
        let first_kept = Day::of(oldest);
        let retired = async {
            let sql = format!("DELETE FROM runguard_rollup WHERE minute < {}", first_kept.first_minute());
            self.inner.writers.query(&sql, &[]).await?;
            let sql = format!("DELETE FROM runguard_erased WHERE at < {oldest}");
            self.inner.writers.query(&sql, &[]).await?;
            let rows = self.inner.readers.query(schema::DAYS, &[]).await?;
            let mut retired = 0;
            for row in &rows {
                let table: &str = row.try_get(0)?;
                if Day::of_table(table).is_none_or(|day| day >= first_kept) {
                    continue;
                }
                let wire = self.inner.writers.begin().await?;
                // Not for long: a drop that waits for a slow reader holds up everybody who comes after it.
                let drop = format!("SET LOCAL lock_timeout = {DROP_LOCK_MILLIS}; DROP TABLE IF EXISTS {table}; COMMIT");
                wire.batch_execute(&drop).await?;
                wire.keep();
                retired += 1;
            }
            Ok(retired)
        };
        let retired = retired.await.map_err(|failure: Failure| self.unwritten(&failure));
        self.forget_days();
        retired
    }

    fn forget_days(&self) {
        self.inner.days.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn unread(&self, failure: &Failure) -> StoreError {
        StoreError::Read(format!("Postgres at {}: {failure}", self.inner.server.place()))
    }

    fn unwritten(&self, failure: &Failure) -> StoreError {
        StoreError::Write(format!("Postgres at {}: {failure}", self.inner.server.place()))
    }
}

async fn last_number(wire: &pool::Wire) -> Result<u64, Failure> {
    let row = wire.query_one("SELECT last_seq FROM runguard_counter", &[]).await?;
    Ok(row.try_get::<_, i64>(0)? as u64)
}

fn tell(committed: &watch::Sender<u64>, seq: u64) {
    committed.send_if_modified(|known| {
        let later = seq > *known;
        *known = seq.max(*known);
        later
    });
}

/// Hears of rows, and hears again after every break.
async fn listen(server: Arc<Server>, committed: watch::Sender<u64>, is_known: Arc<AtomicBool>) {
    let mut wait = FIRST_WAIT;
    loop {
        let failure = match hear(&server, &committed, &is_known, &mut wait).await {
            Ok(never) => match never {},
            Err(failure) => failure,
        };
        if wait == FIRST_WAIT {
            tracing::warn!(place = server.place(), %failure, "Postgres does not tell of new rows; it is asked again until it does");
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

async fn hear(
    server: &Arc<Server>,
    committed: &watch::Sender<u64>,
    is_known: &AtomicBool,
    wait: &mut Duration,
) -> Result<std::convert::Infallible, Failure> {
    let heard = committed.clone();
    let hear = move |message: AsyncMessage| {
        if let AsyncMessage::Notification(notification) = message
            && let Ok(seq) = notification.payload().parse()
        {
            tell(&heard, seq);
        }
    };
    let wire = server.connect(Some(Box::new(hear))).await?;
    wire.batch_execute(&format!("LISTEN {}", server.channel())).await?;
    *wait = FIRST_WAIT;
    loop {
        let asked = tokio::time::timeout(pool::LONGEST_CONNECT, last_number(&wire)).await;
        tell(committed, asked.map_err(|_| Failure::slow("the last row's number"))??);
        is_known.store(true, Ordering::Release);
        tokio::time::sleep(ASK_EVERY).await;
    }
}

/// Values for a statement that is sent once.
fn texts(values: &[String]) -> Vec<(&(dyn tokio_postgres::types::ToSql + Sync), Type)> {
    values.iter().map(|value| (value as &(dyn tokio_postgres::types::ToSql + Sync), Type::TEXT)).collect()
}
/// Whether an address can be read.
#[cfg(feature = "fuzzing")]
pub(crate) fn check_address(url: &str) -> Result<(), OpenError> {
    static RUNTIME: std::sync::OnceLock<tokio::runtime::Runtime> = std::sync::OnceLock::new();
    // It is only handed on: nothing runs on it.
    let made = || tokio::runtime::Builder::new_current_thread().build();
    let runtime = match RUNTIME.get() {
        Some(runtime) => runtime,
        None => match made() {
            Ok(runtime) => RUNTIME.get_or_init(|| runtime),
            Err(_) => return Ok(()),
        },
    };
    Server::parse(url, runtime.handle().clone()).map(drop)
}
