//! Real Redis servers on free ports in temporary folders; stopped and removed on drop.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "every test binary uses another part of it")]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const READY_WITHIN: Duration = Duration::from_secs(20);

/// A port that nobody listens on.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Asks until it is true; a test that waits for something waits here.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + READY_WITHIN;
    while !is_so() {
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[derive(Debug)]
pub struct RedisServer {
    child: Option<Child>,
    pub port: u16,
    folder: TempDir,
    arguments: Vec<String>,
    /// What `redis-cli` needs to be let in.
    login: Vec<String>,
    tls: bool,
}

impl RedisServer {
    /// Empty, without a password, writing nothing to disk.
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// With further options of `redis-server`.
    pub fn with(arguments: &[&str]) -> Self {
        Self::launch(arguments.iter().map(ToString::to_string).collect(), Vec::new(), None)
    }

    pub fn with_password(password: &str) -> Self {
        Self::launch(vec!["--requirepass".into(), password.into()], vec!["--no-auth-warning".into(), "-a".into(), password.into()], None)
    }

    /// Speaks TLS only, with a certificate of the authority for `localhost`.
    pub fn with_tls(certificates: &Certificates) -> Self {
        Self::launch(Vec::new(), Vec::new(), Some(certificates))
    }

    pub fn replica_of(primary: &RedisServer) -> Self {
        let replica = Self::with(&["--replicaof", "127.0.0.1", &primary.port.to_string(), "--repl-diskless-sync-delay", "0"]);
        wait_until("the replica follows", || replica.cli(&["INFO", "replication"]).contains("master_link_status:up"));
        wait_until("the primary knows its replica", || primary.cli(&["INFO", "replication"]).contains("state=online"));
        replica
    }

    fn launch(arguments: Vec<String>, login: Vec<String>, tls: Option<&Certificates>) -> Self {
        // Somebody may take the free port before the server does.
        for _ in 0..5 {
            let (folder, port) = (TempDir::new().unwrap(), free_port());
            let mut all = arguments.clone();
            let mut login = login.clone();
            if let Some(certificates) = tls {
                let text = |path: &Path| path.to_str().unwrap().to_owned();
                let file = |name| text(&certificates.folder.path().join(name));
                for (option, value) in [("--tls-cert-file", file("server.pem")), ("--tls-key-file", file("server.key"))] {
                    all.extend([option.to_owned(), value]);
                }
                all.extend([
                    "--tls-ca-cert-file".to_owned(),
                    text(&certificates.authority()),
                    "--tls-auth-clients".to_owned(),
                    "no".to_owned(),
                ]);
                all.extend(["--port".to_owned(), "0".to_owned(), "--tls-port".to_owned(), port.to_string()]);
                login.extend(["--tls".to_owned(), "--cacert".to_owned(), text(&certificates.authority())]);
            } else {
                all.extend(["--port".to_owned(), port.to_string()]);
            }
            let mut server = Self { child: None, port, folder, arguments: all, login, tls: tls.is_some() };
            if server.run() {
                return server;
            }
        }
        panic!("redis-server does not start; is it installed?");
    }

    fn run(&mut self) -> bool {
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--save", "", "--dir"]).arg(self.folder.path()).args(["--logfile", "log"]);
        let child = command.args(&self.arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.child = Some(child.expect("redis-server must be installed"));
        let end = Instant::now() + READY_WITHIN;
        while Instant::now() < end {
            if self.child.as_mut().unwrap().try_wait().unwrap().is_some() {
                return false;
            }
            if self.answers() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    fn answers(&self) -> bool {
        if self.tls {
            return self.cli(&["PING"]).contains("PONG");
        }
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else { return false };
        let mut answer = [0; 5];
        let asked = stream.write_all(b"PING\r\n").and_then(|()| stream.read_exact(&mut answer));
        asked.is_ok() && (&answer == b"+PONG" || &answer == b"-NOAU")
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// What `redis-cli` prints.
    pub fn cli(&self, arguments: &[&str]) -> String {
        cli(self.port, &self.login, arguments)
    }

    /// As `kill -9` does.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// On the same port, in the same folder.
    pub fn start_again(&mut self) {
        assert!(self.child.is_none(), "it runs already");
        assert!(self.run(), "redis-server does not start again");
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn cli(port: u16, login: &[String], arguments: &[&str]) -> String {
    let output = Command::new("redis-cli").args(["-h", "localhost", "-p", &port.to_string()]).args(login).args(arguments).output();
    let output = output.expect("redis-cli must be installed");
    String::from_utf8_lossy(&output.stdout).trim().to_owned() + String::from_utf8_lossy(&output.stderr).trim()
}

/// A server that can join a cluster, and the port of its bus.
fn node() -> (RedisServer, String) {
    let bus = free_port().to_string();
    let timeout = ["--cluster-node-timeout", "1000", "--cluster-replica-validity-factor", "0"];
    let options = ["--cluster-enabled", "yes", "--cluster-port", &bus, "--cluster-config-file", "nodes", "--repl-diskless-sync-delay", "0"];
    (RedisServer::with(&[&options[..], &timeout[..]].concat()), bus)
}

/// Redis Cluster of three primaries.
#[derive(Debug)]
pub struct RedisCluster {
    pub servers: Vec<RedisServer>,
}

impl RedisCluster {
    pub fn start() -> Self {
        let (servers, buses): (Vec<_>, Vec<_>) = (0..3).map(|_| node()).unzip();
        for (server, range) in servers.iter().zip([["0", "5460"], ["5461", "10922"], ["10923", "16383"]]) {
            assert_eq!(server.cli(&["CLUSTER", "ADDSLOTSRANGE", range[0], range[1]]), "OK");
        }
        for (server, bus) in servers.iter().zip(&buses).skip(1) {
            assert_eq!(servers[0].cli(&["CLUSTER", "MEET", "127.0.0.1", &server.port.to_string(), bus]), "OK");
        }
        let cluster = Self { servers };
        cluster.wait_until_whole();
        cluster
    }

    /// A server that takes over when this one dies.
    pub fn add_replica(&mut self, of: usize) {
        let (replica, bus) = node();
        let met = self.servers[of].cli(&["CLUSTER", "MEET", "127.0.0.1", &replica.port.to_string(), &bus]);
        assert_eq!(met, "OK");
        self.servers.push(replica);
        self.wait_until_whole();
        let primary = self.servers[of].cli(&["CLUSTER", "MYID"]);
        let replica = &self.servers[self.servers.len() - 1];
        wait_until("it may follow", || replica.cli(&["CLUSTER", "REPLICATE", &primary]) == "OK");
        wait_until("it follows", || replica.cli(&["INFO", "replication"]).contains("master_link_status:up"));
        let port = replica.port.to_string();
        wait_until("everybody knows", || self.servers.iter().all(|server| server.cli(&["CLUSTER", "SLOTS"]).contains(&port)));
    }

    pub fn wait_until_whole(&self) {
        let nodes = format!("cluster_known_nodes:{}\r", self.servers.len());
        let whole = |server: &RedisServer| {
            let info = server.cli(&["CLUSTER", "INFO"]);
            info.contains("cluster_state:ok") && info.contains(&nodes) && info.contains("cluster_slots_ok:16384")
        };
        wait_until("the cluster is whole", || self.servers.iter().all(whole));
    }

    pub fn url(&self) -> String {
        format!("redis+cluster://127.0.0.1:{}", self.servers[0].port)
    }

    /// The server that has this key's slot.
    pub fn home(&self, key: &str) -> usize {
        let asked = |server: &RedisServer| !server.cli(&["EXISTS", key]).contains("MOVED");
        self.servers.iter().position(asked).unwrap()
    }

    /// Moves the key's slot with everything in it.
    pub fn move_slot(&self, key: &str, to: usize) {
        self.begin_move(key, to).end();
    }

    /// Begins to move the key's slot; both servers stay responsible for a part of it.
    pub fn begin_move(&self, key: &str, to: usize) -> Move<'_> {
        let slot = self.servers[0].cli(&["CLUSTER", "KEYSLOT", key]);
        let begun = Move { cluster: self, from: self.home(key), to, slot };
        begun.ok(to, &["CLUSTER", "SETSLOT", &begun.slot, "IMPORTING", &begun.id(begun.from)]);
        begun.ok(begun.from, &["CLUSTER", "SETSLOT", &begun.slot, "MIGRATING", &begun.id(to)]);
        begun
    }
}

/// A slot on the move.
#[derive(Debug)]
pub struct Move<'a> {
    cluster: &'a RedisCluster,
    from: usize,
    to: usize,
    slot: String,
}

impl Move<'_> {
    fn id(&self, index: usize) -> String {
        self.cluster.servers[index].cli(&["CLUSTER", "MYID"])
    }

    fn ok(&self, index: usize, arguments: &[&str]) {
        assert_eq!(self.cluster.servers[index].cli(arguments), "OK", "{arguments:?}");
    }

    pub fn key(&self, key: &str) {
        self.ok(self.from, &["MIGRATE", "127.0.0.1", &self.cluster.servers[self.to].port.to_string(), key, "0", "5000"]);
    }

    pub fn end(self) {
        let keys = self.cluster.servers[self.from].cli(&["CLUSTER", "GETKEYSINSLOT", &self.slot, "1000"]);
        keys.lines().filter(|key| !key.is_empty()).for_each(|key| self.key(key));
        for index in [self.to, self.from] {
            self.ok(index, &["CLUSTER", "SETSLOT", &self.slot, "NODE", &self.id(self.to)]);
        }
    }
}

/// A certificate authority and a server's certificate for `localhost`.
#[derive(Debug)]
pub struct Certificates {
    folder: TempDir,
}

impl Certificates {
    pub fn make() -> Self {
        let folder = TempDir::new().unwrap();
        let openssl = |arguments: &[&str]| {
            let output = Command::new("openssl").current_dir(folder.path()).args(arguments).output().expect("openssl must be installed");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        };
        let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"];
        let authority = [&["req", "-x509", "-subj", "/CN=test authority", "-keyout", "ca.key", "-out", "ca.pem"], &key[..]];
        openssl(&authority.concat());
        let server = ["req", "-x509", "-CA", "ca.pem", "-CAkey", "ca.key", "-subj", "/CN=localhost", "-keyout", "server.key"];
        let names = ["-addext", "subjectAltName=DNS:localhost", "-addext", "basicConstraints=critical,CA:false", "-out", "server.pem"];
        openssl(&[&server[..], &key[..], &names[..]].concat());
        Self { folder }
    }

    pub fn authority(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }
}

const PASS: u8 = 0;
const CUT_AFTER_REQUEST: u8 = 1;
const SWALLOW: u8 = 2;
const HOLD: u8 = 3;

/// A wire between client and server that can fail.
#[derive(Debug)]
pub struct Proxy {
    pub port: u16,
    fails: Arc<AtomicU8>,
}

impl Proxy {
    pub fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (own, fails) = (listener.local_addr().unwrap().port(), Arc::new(AtomicU8::new(PASS)));
        let shared = Arc::clone(&fails);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let (back, there) = ((server.try_clone().unwrap(), client.try_clone().unwrap()), (client, server));
                let (one, other) = (Arc::clone(&shared), Arc::clone(&shared));
                std::thread::spawn(move || {
                    pump(there, |bytes, to| {
                        while one.load(Ordering::SeqCst) == HOLD {
                            std::thread::sleep(Duration::from_millis(5));
                        }
                        one.load(Ordering::SeqCst) == SWALLOW || to.write_all(bytes).is_ok()
                    });
                });
                std::thread::spawn(move || {
                    pump(back, |bytes, to| match other.load(Ordering::SeqCst) {
                        // The server has answered, so it did what was asked; the client never hears of it.
                        CUT_AFTER_REQUEST => false,
                        SWALLOW => true,
                        _ => to.write_all(bytes).is_ok(),
                    });
                    // One cut is enough.
                    let _ = other.compare_exchange(CUT_AFTER_REQUEST, PASS, Ordering::SeqCst, Ordering::SeqCst);
                });
            }
        });
        Self { port: own, fails }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The next request reaches the server; instead of the answer comes the end of the connection.
    pub fn cut_after_request(&self) {
        self.fails.store(CUT_AFTER_REQUEST, Ordering::SeqCst);
    }

    /// Nothing arrives, nothing comes back, the connection stays open.
    pub fn swallow(&self) {
        self.fails.store(SWALLOW, Ordering::SeqCst);
    }

    /// What is sent arrives when it passes again, whether its sender still waits or has hung up.
    pub fn hold(&self) {
        self.fails.store(HOLD, Ordering::SeqCst);
    }

    pub fn pass(&self) {
        self.fails.store(PASS, Ordering::SeqCst);
    }
}

fn pump((mut from, mut to): (TcpStream, TcpStream), mut hand_on: impl FnMut(&[u8], &mut TcpStream) -> bool) {
    let mut bytes = vec![0; 65536];
    while let Ok(length) = from.read(&mut bytes) {
        if length == 0 || !hand_on(&bytes[..length], &mut to) {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
