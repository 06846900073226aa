//! Connections: how they are made, kept and replaced.
//!
//! All of them live on one runtime, the one that opened the log, so that a short-lived or busy runtime of some caller never
//! stands in the way of others. A connection goes back only after everything on it went well; any other is closed, and with
//! it ends its transaction. What the server itself bounds (a statement, an open transaction) it is told when we connect.

use super::schema;
use crate::error::OpenError;
use crate::key::Names;
use futures_util::FutureExt as _;
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt as _;
use std::collections::HashMap;
use std::error::Error as _;
use std::fmt;
use std::future::poll_fn;
use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{OnceCell, Semaphore, SemaphorePermit};
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Config, Row, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

pub(super) const LONGEST_CONNECT: Duration = Duration::from_secs(10);
/// For one of the connections to come free.
const LONGEST_QUEUE: Duration = Duration::from_secs(30);
/// For a statement; told to the server.
const STATEMENT_SECONDS: u32 = 60;
/// A node that stands still in the middle of a batch must not hold the counter for ever.
const IDLE_SECONDS: u32 = 8;
/// For a whole piece of work, should the server not even keep its own bounds.
const LONGEST_WORK: Duration = Duration::from_secs(120);
/// A dead peer is noticed after about half a minute.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;

/// Why something did not work. Never shows a password, nor what rows say.
#[derive(Debug)]
pub(super) enum Failure {
    Server(tokio_postgres::Error),
    /// Nothing came in time.
    Slow(String),
    /// It is there, and cannot be used as it is.
    Refused(String),
    TooNew {
        found: i64,
        known: i64,
    },
    Other(String),
}

impl Failure {
    pub(super) fn slow(what: &str) -> Self {
        Self::Slow(format!("{what} did not come in time; see whether it is overloaded, or the network drops packets"))
    }

    fn state(&self) -> Option<&SqlState> {
        match self {
            Self::Server(error) => error.code(),
            Self::Slow(_) | Self::Refused(_) | Self::TooNew { .. } | Self::Other(_) => None,
        }
    }

    /// It may be there in a moment, as it is.
    pub(super) fn is_away(&self) -> bool {
        match self {
            Self::Slow(_) => true,
            Self::Server(error) => {
                let soon = [&SqlState::CANNOT_CONNECT_NOW, &SqlState::TOO_MANY_CONNECTIONS];
                !is_tls(error) && (self.is_broken() || error.code().is_some_and(|code| soon.contains(&code)))
            }
            Self::Refused(_) | Self::TooNew { .. } | Self::Other(_) => false,
        }
    }

    /// The connection is gone: nothing is said of the next one.
    pub(super) fn is_broken(&self) -> bool {
        let Self::Server(error) = self else { return false };
        let lost = [&SqlState::ADMIN_SHUTDOWN, &SqlState::CRASH_SHUTDOWN, &SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT];
        error.is_closed()
            || error.source().is_some_and(<dyn std::error::Error>::is::<std::io::Error>)
            || error.code().is_some_and(|code| code.code().starts_with("08") || lost.contains(&code))
    }

    /// A row is there already, or its day is not.
    pub(super) fn is_conflict(&self) -> bool {
        self.state().is_some_and(|state| *state == SqlState::UNIQUE_VIOLATION || *state == SqlState::CHECK_VIOLATION)
    }

    fn advice(state: &SqlState) -> &'static str {
        match state.code() {
            "28P01" | "28000" => "; check user and password in the address, and the server's pg_hba.conf",
            "3D000" => "; create the database, or name another one in the address",
            "42501" => "; the user must own the tables and may create some: GRANT CREATE, USAGE ON SCHEMA … TO …",
            "25006" => "; this is a replica: give the primary's address, or all of them with target_session_attrs=read-write",
            "53300" => "; raise max_connections, or let fewer nodes connect",
            "53100" => "; make room on the server's disk",
            "55P03" => "; a reader holds it, it is tried again later",
            "57014" => "; ask for less at once, for example a shorter time",
            _ => "",
        }
    }
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Server(error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = match self {
            Self::Slow(text) | Self::Refused(text) | Self::Other(text) => return f.write_str(text),
            Self::TooNew { found, known } => {
                return write!(f, "it was written by a newer RunGuard (format {found}, this one knows {known})");
            }
            Self::Server(error) => error,
        };
        // Not its detail: that quotes rows.
        if let Some(said) = error.as_db_error() {
            return write!(f, "{} ({}){}", said.message(), said.code().code(), Self::advice(said.code()));
        }
        write!(f, "{error}")?;
        if let Some(source) = error.source() {
            write!(f, ": {source}")?;
        }
        f.write_str(if is_tls(error) {
            "; name the file of its authority in SSL_CERT_FILE, and the server as its certificate does"
        } else {
            "; see whether it runs and can be reached from here"
        })
    }
}

fn is_tls(error: &tokio_postgres::Error) -> bool {
    let io = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
    io.and_then(std::io::Error::get_ref).is_some_and(<dyn std::error::Error + Send + Sync>::is::<rustls::Error>)
}

/// Hears what the server says unasked.
pub(super) type Hear = Box<dyn FnMut(AsyncMessage) + Send>;

/// Where Postgres is and how to get in.
pub(super) struct Server {
    config: Config,
    tls: MakeRustlsConnect,
    place: String,
    runtime: Handle,
    /// Once the tables are as this version wants them: where the numbers of rows are told, one for each schema.
    channel: OnceCell<String>,
    /// How the names in the log become keys, once that is known.
    names: OnceLock<Names>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Server {
    pub(super) fn parse(url: &str, runtime: Handle) -> Result<Self, OpenError> {
        // Every TLS connection here is verified in full, so the stricter names mean the same.
        let url = url.replace("sslmode=verify-full", "sslmode=require").replace("sslmode=verify-ca", "sslmode=require");
        // The parser's own words may quote a part of the password.
        let mut config: Config = url.parse().map_err(|_| OpenError::PostgresAddress)?;
        let names: Vec<String> = config.get_hosts().iter().map(host_name).collect();
        // A password with such characters in it, not written as %40: what was read as host or database is a part of it.
        let is_odd = |name: &str| name.contains(|character: char| character == '@' || character.is_whitespace());
        if names.is_empty() || names.iter().any(|name| is_odd(name)) || config.get_dbname().is_some_and(is_odd) {
            return Err(OpenError::PostgresAddress);
        }
        let ports = config.get_ports().iter().map(u16::to_string).collect::<Vec<_>>().join(",");
        let place = [names.join(","), if ports.is_empty() { "5432".into() } else { ports }].join(":");
        let place = format!("{place}/{}", config.get_dbname().or(config.get_user()).unwrap_or_default());
        // Between processes of one machine there is nobody to hide from, and such servers have certificates nobody signed.
        if !url.contains("sslmode=") && config.get_hosts().iter().all(is_here) {
            config.ssl_mode(SslMode::Disable);
        }
        let tls = tls(config.get_ssl_mode()).map_err(|detail| OpenError::Postgres { place: place.clone(), detail })?;
        if config.get_application_name().is_none() {
            config.application_name("runguard");
        }
        if config.get_hosts().len() > 1 && config.get_target_session_attrs() == TargetSessionAttrs::Any {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(LONGEST_CONNECT / 2);
        }
        let bounds = format!("-c statement_timeout={STATEMENT_SECONDS}s -c idle_in_transaction_session_timeout={IDLE_SECONDS}s");
        // Theirs come last and win.
        let bounds = [&bounds, config.get_options().unwrap_or_default()].join(" ");
        config
            .options(bounds)
            .keepalives_idle(KEEPALIVE_IDLE)
            .keepalives_interval(KEEPALIVE_INTERVAL)
            .keepalives_retries(KEEPALIVE_RETRIES)
            .tcp_user_timeout(KEEPALIVE_IDLE * 2);
        Ok(Self { config, tls, place, runtime, channel: OnceCell::new(), names: OnceLock::new() })
    }

    /// For people: host, port, database.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Empty until somebody was connected.
    pub(super) fn channel(&self) -> &str {
        self.channel.get().map_or("", String::as_str)
    }

    pub(super) fn names(&self) -> Names {
        self.names.get().copied().unwrap_or(Names::PLAIN)
    }

    /// From here on; kept in the log where it has none, now or when it is first reached.
    pub(super) async fn use_names(self: &Arc<Self>, names: Names) -> Result<(), Failure> {
        let _ = self.names.set(names);
        if self.channel.initialized() {
            let wire = self.connect(None).await?;
            schema::keep_names(&wire, names).await?;
        }
        Ok(())
    }

    /// The first connection brings the tables up to this version's format. Whoever starts first does that, the others wait.
    pub(super) async fn connect(self: &Arc<Self>, hear: Option<Hear>) -> Result<Wire, Failure> {
        let mut wire = self.dial(hear).await?;
        let prepare = async {
            let channel = schema::prepare(&mut wire).await?;
            if let Some(names) = self.names.get() {
                schema::keep_names(&wire, *names).await?;
            }
            Ok::<_, Failure>(channel)
        };
        self.channel.get_or_try_init(|| prepare).await?;
        Ok(wire)
    }

    async fn dial(self: &Arc<Self>, hear: Option<Hear>) -> Result<Wire, Failure> {
        let server = self.clone();
        let connect = async move {
            let (client, mut connection) = server.config.connect(server.tls.clone()).await?;
            let mut hear = hear.unwrap_or_else(|| Box::new(|_| {}));
            // Ends with the client, or with the connection; whoever waits for an answer hears of the latter.
            let follow = async move {
                while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
                    hear(message);
                }
            };
            tokio::spawn(follow.boxed());
            Ok(Wire { client, prepared: HashMap::new() })
        };
        match tokio::time::timeout(LONGEST_CONNECT, self.runtime.spawn(connect.boxed())).await {
            Ok(Ok(connected)) => connected,
            Ok(Err(ended)) => Err(Failure::Other(format!("the connection's task ended: {ended}"))),
            Err(_) => Err(Failure::slow("a connection")),
        }
    }
}

fn host_name(host: &Host) -> String {
    match host {
        Host::Tcp(name) => name.clone(),
        #[cfg(unix)]
        Host::Unix(path) => path.display().to_string(),
    }
}

fn is_here(host: &Host) -> bool {
    match host {
        Host::Tcp(name) => name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback()),
        #[cfg(unix)]
        Host::Unix(_) => true,
    }
}

/// TLS by ring, trusting what this system trusts (`SSL_CERT_FILE` names others).
fn tls(mode: SslMode) -> Result<MakeRustlsConnect, String> {
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|problem| format!("cannot set up TLS: {problem}"))?;
    let trust_nobody = || builder.clone().with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    let config = match mode {
        SslMode::Disable => trust_nobody(),
        _ => match (builder.clone().with_platform_verifier(), mode) {
            (Ok(builder), _) => builder.with_no_client_auth(),
            // It may have no TLS at all.
            (Err(_), SslMode::Prefer) => trust_nobody(),
            (Err(problem), _) => {
                return Err(format!("cannot load this system's certificates: {problem}; install its package `ca-certificates`"));
            }
        },
    };
    Ok(MakeRustlsConnect::new(config))
}

/// A connection, with the statements prepared on it.
#[derive(Debug)]
pub(super) struct Wire {
    client: Client,
    /// As many as there are in the source.
    prepared: HashMap<&'static str, Statement>,
}

impl Wire {
    pub(super) async fn prepared(&mut self, sql: &'static str) -> Result<Statement, Failure> {
        if let Some(statement) = self.prepared.get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(sql).await?;
        self.prepared.insert(sql, statement.clone());
        Ok(statement)
    }
}

impl Deref for Wire {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

/// Bounds a piece of work.
pub(super) async fn bounded<R>(work: impl Future<Output = Result<R, Failure>>) -> Result<R, Failure> {
    tokio::time::timeout(LONGEST_WORK, work).await.unwrap_or_else(|_| Err(Failure::slow("an answer")))
}

#[derive(Debug)]
pub(super) struct Pool {
    server: Arc<Server>,
    idle: Mutex<Vec<Wire>>,
    free: Semaphore,
}

impl Pool {
    pub(super) fn new(server: Arc<Server>, most: usize) -> Self {
        Self { server, idle: Mutex::default(), free: Semaphore::new(most) }
    }

    async fn permit(&self) -> Result<SemaphorePermit<'_>, Failure> {
        match tokio::time::timeout(LONGEST_QUEUE, self.free.acquire()).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) | Err(_) => Err(Failure::Other("all connections are busy; ask for less at once".into())),
        }
    }

    fn take_idle(&self) -> Option<Wire> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|wire| !wire.is_closed());
        idle.pop()
    }

    /// Asks once; again on a fresh connection when the one we kept turns out to be broken. So only for what may be done twice.
    pub(super) async fn query(&self, sql: &str, values: &[(&(dyn ToSql + Sync), Type)]) -> Result<Vec<Row>, Failure> {
        let permit = self.permit().await?;
        if let Some(wire) = self.take_idle() {
            match bounded(async { Ok(wire.query_typed(sql, values).await?) }).await {
                Err(failure) if failure.is_broken() => self.close_idle(),
                answered => return answered.inspect(|_| Lease { pool: self, wire, _permit: permit }.keep()),
            }
        }
        let wire = self.server.connect(None).await?;
        let rows = bounded(async { Ok(wire.query_typed(sql, values).await?) }).await?;
        Lease { pool: self, wire, _permit: permit }.keep();
        Ok(rows)
    }

    /// Begins a transaction. It ends with COMMIT or ROLLBACK and [`Lease::keep`], or with the connection.
    pub(super) async fn begin(&self) -> Result<Lease<'_>, Failure> {
        let permit = self.permit().await?;
        if let Some(wire) = self.take_idle() {
            match bounded(async { Ok(wire.batch_execute("BEGIN").await?) }).await {
                Err(failure) if failure.is_broken() => self.close_idle(),
                begun => return begun.map(|()| Lease { pool: self, wire, _permit: permit }),
            }
        }
        let wire = self.server.connect(None).await?;
        bounded(async { Ok(wire.batch_execute("BEGIN").await?) }).await?;
        Ok(Lease { pool: self, wire, _permit: permit })
    }

    /// Where one has broken the others are likely to be broken too.
    fn close_idle(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// A connection in use. Unless it is kept it is closed.
#[derive(Debug)]
pub(super) struct Lease<'a> {
    pool: &'a Pool,
    wire: Wire,
    _permit: SemaphorePermit<'a>,
}

impl Lease<'_> {
    /// Everything went well and no transaction is open: the next one may have it.
    pub(super) fn keep(self) {
        self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner).push(self.wire);
    }
}

impl Deref for Lease<'_> {
    type Target = Wire;

    fn deref(&self) -> &Wire {
        &self.wire
    }
}

impl std::ops::DerefMut for Lease<'_> {
    fn deref_mut(&mut self) -> &mut Wire {
        &mut self.wire
    }
}
