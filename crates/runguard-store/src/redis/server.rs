//! One connection that is kept up.
//!
//! A task dials, hands the line to whoever asks, and dials again when somebody finds it broken. While there is no line,
//! asking fails at once with the reason: callers never queue up behind a server that is away.

use super::address::{Address, HostPort, Kind};
use super::{OpenError, SWAP};
use crate::cluster::link::LinkError;
use futures_util::FutureExt as _;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ConnectionAddr, ErrorKind, IntoConnectionInfo, Pipeline, RedisConnectionInfo, RedisError};
use redis::{ServerError, TlsCertificates, Value};
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::{JoinHandle, JoinSet};
use xxhash_rust::xxh3::xxh3_64;

/// The first wait after a failed dial; it doubles up to the longest.
const FIRST_WAIT: Duration = Duration::from_millis(50);
const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// XTRIM MINID came with it.
const OLDEST: (u32, u32) = (6, 2);

/// How to reach a server, or the primary among several.
#[derive(Debug, Clone)]
pub(super) struct Dialer {
    pub(super) address: Address,
    pub(super) root_certificates: Option<Vec<u8>>,
    pub(super) timeout: Duration,
}

/// An open connection to a server that passed every check.
#[derive(Clone)]
pub(super) struct Line {
    connection: MultiplexedConnection,
    pub(super) place: HostPort,
    /// What the server calls the swap script.
    pub(super) swap_hash: Arc<str>,
    primary: bool,
    /// What the server's latest start is called.
    pub(super) run: u64,
    /// Random: another for every connection.
    pub(super) number: u64,
}

#[derive(Clone)]
enum State {
    Dialing,
    Up(Line),
    Down(LinkError),
}

pub(super) struct Server {
    state: watch::Sender<State>,
    broken: Arc<Notify>,
    dialing: JoinHandle<()>,
    timeout: Duration,
}

/// Why a question was not answered.
#[derive(Debug)]
pub(super) enum Fault {
    Link(LinkError),
    /// The server does not have the script (any more).
    NoScript,
    /// The slot lives elsewhere; the server asked and the place it named.
    Moved(HostPort),
    /// This one question must go elsewhere.
    Ask(HostPort),
    /// The slot is on the move.
    TryAgain(String),
}

impl Dialer {
    /// The same login at other places.
    pub(super) fn at(&self, places: Vec<HostPort>) -> Dialer {
        let mut dialer = self.clone();
        dialer.address.places = places;
        dialer
    }

    /// Asks all places at once; one that is the only primary is taken.
    pub(super) async fn dial(&self) -> Result<Line, OpenError> {
        let mut asked = JoinSet::new();
        for (number, place) in self.address.places.iter().enumerate() {
            let (dialer, place) = (self.clone(), place.clone());
            asked.spawn(async move { (number, dialer.connect(place).await) }.boxed());
        }
        let mut answers = asked.join_all().await;
        answers.sort_by_key(|(number, _)| *number);
        let (mut primaries, mut replicas, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        for (_, answer) in answers {
            match answer {
                Ok(line) if line.primary || self.address.kind == Kind::Cluster => primaries.push(line),
                Ok(line) => replicas.push(line.place),
                Err(error) => failed.push(error),
            }
        }
        if let [_, _, ..] = primaries[..]
            && self.address.kind == Kind::Primary
        {
            let places: Vec<String> = primaries.iter().map(|line| line.place.to_string()).collect();
            return Err(OpenError::TwoPrimaries { places: places.join(" and ") });
        }
        match (primaries.into_iter().next(), failed.into_iter().next(), replicas.into_iter().next()) {
            (Some(line), ..) => Ok(line),
            (None, Some(error), _) => Err(error),
            (None, None, Some(place)) => Err(OpenError::Replica { place: place.to_string() }),
            (None, None, None) => Err(OpenError::Url("it names no host".to_owned())),
        }
    }

    async fn connect(&self, place: HostPort) -> Result<Line, OpenError> {
        let unreachable = |detail: &str| OpenError::Unreachable { place: place.to_string(), detail: detail.to_owned() };
        let client = self.client(&place).map_err(|error| unreachable(&error.to_string()))?;
        let config = AsyncConnectionConfig::new().set_connection_timeout(Some(self.timeout)).set_response_timeout(Some(self.timeout));
        // The library's own limit does not cover looking the name up.
        let dialed = tokio::time::timeout(self.timeout, client.get_multiplexed_async_connection_with_config(&config)).await;
        let mut connection = match dialed {
            Err(_) => return Err(unreachable(self.late())),
            Ok(Err(error)) => return Err(self.why(&place, &error)),
            Ok(Ok(connection)) => connection,
        };
        let mut questions = Pipeline::with_capacity(3);
        questions.cmd("ROLE").cmd("INFO").arg("server").cmd("SCRIPT").arg("LOAD").arg(SWAP);
        let answers = connection.send_packed_commands(&questions, 0, 3).await.map_err(|error| self.why(&place, &error))?;
        for answer in &answers {
            if let Value::ServerError(error) = answer {
                return Err(self.why(&place, &error.clone().into()));
            }
        }
        let [Value::Array(role), server, Value::BulkString(hash)] = &answers[..] else {
            return Err(unreachable("it does not answer like Redis"));
        };
        let server = text(server);
        let version = line_of(&server, "redis_version").unwrap_or_default();
        if !new_enough(version) {
            return Err(OpenError::TooOld { place: place.to_string(), version: version.to_owned() });
        }
        // Valkey has another name for it.
        let clustered = ["redis_mode", "server_mode"].iter().any(|mode| line_of(&server, mode) == Some("cluster"));
        match (self.address.kind, clustered) {
            (Kind::Primary, true) => return Err(OpenError::ClusterMode { place: place.to_string() }),
            (Kind::Cluster, false) => return Err(OpenError::NotCluster { place: place.to_string() }),
            (Kind::Primary, false) | (Kind::Cluster, true) => {}
        }
        let primary = role.first().is_some_and(|role| text(role) == "master");
        let swap_hash = Arc::from(String::from_utf8_lossy(hash));
        let run = xxh3_64(line_of(&server, "run_id").unwrap_or_default().as_bytes());
        Ok(Line { connection, place, swap_hash, primary, run, number: random() })
    }

    fn client(&self, place: &HostPort) -> Result<Client, RedisError> {
        let mut login = RedisConnectionInfo::default().set_db(self.address.database).set_skip_set_lib_name();
        if let Some(user) = &self.address.user {
            login = login.set_username(user);
        }
        if let Some(password) = &self.address.password {
            login = login.set_password(password);
        }
        let (host, port) = (place.host.clone(), place.port);
        if !self.address.tls {
            return Client::open(ConnectionAddr::Tcp(host, port).into_connection_info()?.set_redis_settings(login));
        }
        let address = ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None };
        let certificates = TlsCertificates { client_tls: None, root_cert: self.root_certificates.clone() };
        Client::build_with_tls(address.into_connection_info()?.set_redis_settings(login), certificates)
    }

    /// A server without TLS takes the greeting for half a command and waits for the rest.
    fn late(&self) -> &'static str {
        if self.address.tls {
            "no answer in time (if it speaks no TLS on this port, write redis:// in its address)"
        } else {
            "no answer in time"
        }
    }

    /// What a failed dial means to whoever wrote the URL.
    fn why(&self, place: &HostPort, error: &RedisError) -> OpenError {
        let (place, detail) = (place.to_string(), error.to_string());
        let code = error.code().unwrap_or_default().to_owned();
        if error.kind() == ErrorKind::AuthenticationFailed || matches!(code.as_str(), "NOAUTH" | "WRONGPASS") {
            return OpenError::Password { place, detail };
        }
        match code.as_str() {
            "NOPERM" => OpenError::NotAllowed { place, detail },
            "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "BUSY" => OpenError::Busy { place, detail },
            _ if error.is_timeout() => OpenError::Unreachable { place, detail: self.late().to_owned() },
            _ if error.is_connection_refusal() => OpenError::Unreachable { place, detail },
            _ if self.address.tls && error.is_io_error() => OpenError::Tls { place, detail },
            _ if error.is_connection_dropped() => OpenError::Closed { place },
            _ => OpenError::Unreachable { place, detail },
        }
    }
}

impl Server {
    /// Keeps a line up from here on; `line` is used first, when there is one already.
    pub(super) fn start(dialer: Dialer, line: Option<Line>) -> Server {
        let state = watch::Sender::new(line.map_or(State::Dialing, State::Up));
        let (broken, timeout) = (Arc::new(Notify::new()), dialer.timeout);
        let dialing = tokio::spawn(keep_up(dialer, state.clone(), Arc::clone(&broken)).boxed());
        Server { state, broken, dialing, timeout }
    }

    /// The line, or why there is none. Waits only for the very first dial.
    pub(super) async fn line(&self) -> Result<Line, LinkError> {
        let mut watched = self.state.subscribe();
        let state = watched.wait_for(|state| !matches!(state, State::Dialing)).await;
        match state.as_deref() {
            Ok(State::Up(line)) => Ok(line.clone()),
            Ok(State::Down(error)) => Err(error.clone()),
            Ok(State::Dialing) | Err(_) => Err(LinkError::Away("not connected yet".to_owned())),
        }
    }

    /// 0 while there is no line.
    pub(super) fn run(&self) -> u64 {
        match &*self.state.borrow() {
            State::Up(line) => line.run,
            State::Dialing | State::Down(_) => 0,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(*self.state.borrow(), State::Up(_))
    }

    /// Sends all commands in one piece; an answer that is an error fails the whole.
    pub(super) async fn ask(&self, line: &Line, commands: &Pipeline, may_take: Duration) -> Result<Vec<Value>, Fault> {
        let mut connection = line.connection.clone();
        connection.set_response_timeout(self.timeout + may_take);
        let answers = match connection.send_packed_commands(commands, 0, commands.len()).await {
            Ok(answers) => answers,
            Err(error) => {
                let error = LinkError::Away(format!("{}: {error}", line.place));
                self.break_line(line, error.clone());
                return Err(Fault::Link(error));
            }
        };
        match answers.iter().find_map(|answer| if let Value::ServerError(error) = answer { Some(error) } else { None }) {
            None => Ok(answers),
            Some(error) => Err(self.fault(line, error)),
        }
    }

    /// Gives the server the script again (it was restarted, or its scripts were thrown away).
    pub(super) async fn load_script(&self, line: &Line) -> Result<(), LinkError> {
        let mut question = Pipeline::new();
        question.cmd("SCRIPT").arg("LOAD").arg(SWAP);
        match self.ask(line, &question, Duration::ZERO).await {
            Ok(_) => Ok(()),
            Err(Fault::Link(error)) => Err(error),
            Err(fault) => Err(LinkError::Refused(format!("{} does not take the script: {fault:?}", line.place))),
        }
    }

    fn fault(&self, line: &Line, error: &ServerError) -> Fault {
        let detail = error.details().unwrap_or_default();
        let said = format!("{} says: {} {detail}", line.place, error.code());
        let redirect = || detail.split_ascii_whitespace().nth(1).and_then(|place| HostPort::parse(place, &line.place));
        match (code(error), redirect()) {
            ("NOSCRIPT", _) => Fault::NoScript,
            ("MOVED", Some(place)) => Fault::Moved(place),
            ("ASK", Some(place)) => Fault::Ask(place),
            ("TRYAGAIN", _) => Fault::TryAgain(said),
            ("LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "BUSY", _) => Fault::Link(LinkError::Away(said)),
            // The server changed its part under us: look for the primary, log in again.
            ("UNBLOCKED", _) => self.broken_by(line, LinkError::Away(said)),
            ("READONLY" | "NOAUTH", _) => self.broken_by(line, LinkError::Refused(said)),
            _ => Fault::Link(LinkError::Refused(said)),
        }
    }

    fn broken_by(&self, line: &Line, error: LinkError) -> Fault {
        self.break_line(line, error.clone());
        Fault::Link(error)
    }

    /// Takes this line away, unless another one has taken its place.
    fn break_line(&self, line: &Line, error: LinkError) {
        let broke = self.state.send_if_modified(|state| match state {
            State::Up(current) if current.number == line.number => {
                *state = State::Down(error.clone());
                true
            }
            State::Up(_) | State::Down(_) | State::Dialing => false,
        });
        if broke {
            tracing::warn!(server = %line.place, "{error}");
            self.broken.notify_one();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.dialing.abort();
    }
}

async fn keep_up(dialer: Dialer, state: watch::Sender<State>, broken: Arc<Notify>) {
    loop {
        if matches!(*state.borrow(), State::Up(_)) {
            broken.notified().await;
            continue;
        }
        let mut wait = FIRST_WAIT;
        let mut told = String::new();
        let line = loop {
            match dialer.dial().await {
                Ok(line) => break line,
                Err(error) => {
                    // Once for each reason: a password that was changed looks like nothing else.
                    let why = error.to_string();
                    if why != told {
                        tracing::warn!(error = why, "the shared database is not reached yet");
                        told = why;
                    }
                    state.send_replace(State::Down(error.into()));
                }
            }
            // Half of it by chance, so that many nodes do not come back in step.
            tokio::time::sleep(wait / 2 + (wait / 2).mul_f64(random() as f64 / u64::MAX as f64)).await;
            wait = (wait * 2).min(LONGEST_WAIT);
        };
        tracing::info!(server = %line.place, "connected to the shared database");
        state.send_replace(State::Up(line));
    }
}

impl From<OpenError> for LinkError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Password { .. }
            | OpenError::NotAllowed { .. }
            | OpenError::Replica { .. }
            | OpenError::TwoPrimaries { .. }
            | OpenError::ClusterMode { .. }
            | OpenError::NotCluster { .. }
            | OpenError::TooOld { .. }
            | OpenError::Partitions { .. } => LinkError::Refused(error.to_string()),
            OpenError::Url(_)
            | OpenError::CaFile { .. }
            | OpenError::Unreachable { .. }
            | OpenError::Closed { .. }
            | OpenError::Tls { .. }
            | OpenError::Busy { .. } => LinkError::Away(error.to_string()),
        }
    }
}

/// The error's code. Before Redis 7 a command that fails inside a script hides it in the text.
fn code(error: &ServerError) -> &str {
    let hidden = error.details().filter(|_| error.code() == "ERR").and_then(|detail| detail.split_once(": -"));
    let hidden = hidden.and_then(|(_, inner)| inner.split_ascii_whitespace().next());
    hidden.unwrap_or_else(|| error.code())
}

fn new_enough(version: &str) -> bool {
    let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= OLDEST
}

/// What the server does when memory is short, if that is to throw states away.
pub(super) fn policy_that_evicts(memory: &str) -> Option<String> {
    line_of(memory, "maxmemory_policy").filter(|policy| *policy != "noeviction").map(str::to_owned)
}

/// Since the server was started.
pub(super) fn evicted_keys(stats: &str) -> u64 {
    line_of(stats, "evicted_keys").and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// Only if it says so: who runs Redis for others may tell nothing of this.
pub(super) fn is_without_aof(persistence: &str) -> bool {
    line_of(persistence, "aof_enabled") == Some("0")
}

fn line_of<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

pub(super) fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => text.clone(),
        Value::Int(number) => number.to_string(),
        _ => String::new(),
    }
}

/// Random enough to tell lines apart and to spread waits.
pub(super) fn random() -> u64 {
    std::hash::RandomState::new().hash_one(0_u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        for version in ["6.2.0", "6.10.1", "7.0.15", "8.0", "255.255.255"] {
            assert!(new_enough(version), "{version}");
        }
        for version in ["", "5.0.14", "6.0.16", "6.1.9", "nonsense"] {
            assert!(!new_enough(version), "{version}");
        }
    }

    #[test]
    fn a_line_of_info_is_found_by_its_whole_name() {
        let info = "# Server\r\nredis_version_old:1\r\nredis_version:7.0.15\r\n";
        assert_eq!(line_of(info, "redis_version"), Some("7.0.15"));
        assert_eq!(line_of(info, "redis"), None);
    }

    #[test]
    fn a_server_that_says_nothing_of_its_files_is_not_blamed() {
        assert!(is_without_aof("# Persistence\r\nloading:0\r\naof_enabled:0\r\n"));
        assert!(!is_without_aof("# Persistence\r\naof_enabled:1\r\n"));
        assert!(!is_without_aof("# Persistence\r\nloading:0\r\n") && !is_without_aof(""));
    }
}
