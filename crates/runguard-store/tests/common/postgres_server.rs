//! A real Postgres in a temporary folder: started on a free port, stopped and removed when dropped.

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use tempfile::TempDir;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(dead_code, reason = "every test binary uses another part of it")]
pub(crate) enum Fsync {
    On,
    Off,
}

#[derive(Debug)]
pub(crate) struct PostgresServer {
    folder: TempDir,
    port: u16,
    fsync: Fsync,
    /// Postgres does not run as root.
    user: Option<(u32, u32)>,
    process: Mutex<Option<Child>>,
}

#[allow(dead_code)]
impl PostgresServer {
    pub(crate) fn start(fsync: Fsync) -> Self {
        let folder = tempfile::Builder::new().prefix("pg").tempdir().unwrap();
        let is_root = number("id", &["-u"]) == 0;
        let user = is_root.then(|| (number("id", &["-u", "postgres"]), number("id", &["-g", "postgres"])));
        if let Some((user, group)) = user {
            std::os::unix::fs::chown(folder.path(), Some(user), Some(group)).unwrap();
        }
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let server = Self { folder, port, fsync, user, process: Mutex::new(None) };
        let data = server.folder.path().join("data");
        let made = server
            .program("initdb")
            .arg("-D")
            .arg(&data)
            .args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"])
            .output()
            .unwrap();
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        server.run();
        server
    }

    /// One for all tests of a process, as long as any of them holds it.
    pub(crate) fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<PostgresServer>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let server = Arc::new(Self::start(Fsync::Off));
            *shared = Arc::downgrade(&server);
            server
        })
    }

    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(find(name));
        command.current_dir(self.folder.path()).env("LC_ALL", "C").stdin(Stdio::null());
        if let Some((user, group)) = self.user {
            command.uid(user).gid(group);
        }
        command
    }

    /// Starts it, on the same port and folder as before, and waits until it answers.
    pub(crate) fn run(&self) {
        let log = std::fs::File::options().create(true).append(true).open(self.folder.path().join("log")).unwrap();
        let fsync = match self.fsync {
            Fsync::On => "fsync=on",
            Fsync::Off => "fsync=off",
        };
        let child = self
            .program("postgres")
            .arg("-D")
            .arg(self.folder.path().join("data"))
            .args(["-p", &self.port.to_string(), "-k"])
            .arg(self.folder.path())
            .args(["-c", "listen_addresses=127.0.0.1", "-c", fsync, "-c", "max_connections=200", "-c", "shared_buffers=256MB"])
            .args(["-c", "max_wal_size=4GB"])
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        *self.process.lock().unwrap_or_else(PoisonError::into_inner) = Some(child);
        let deadline = Instant::now() + Duration::from_secs(60);
        while !self.try_sql("postgres", "SELECT 1").status.success() {
            let log = || std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            assert!(Instant::now() < deadline, "Postgres does not answer: {}", log());
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn socket_folder(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    pub(crate) fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// An empty database; gives its address.
    pub(crate) fn database(&self) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("test_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        self.sql("postgres", &format!("CREATE DATABASE {name}"));
        self.url(&name)
    }

    /// Runs a statement and gives what it prints.
    pub(crate) fn sql(&self, database: &str, sql: &str) -> String {
        let output = self.try_sql(database, sql);
        assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    fn try_sql(&self, database: &str, sql: &str) -> std::process::Output {
        let mut command = self.program("psql");
        command.args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-U", "postgres"]);
        command.args(["-p", &self.port.to_string(), "-d", database, "-c", sql]).output().unwrap()
    }

    /// Ends it as a crash would.
    pub(crate) fn crash(&self) {
        self.end("QUIT");
    }

    /// Ends it in order; whoever is connected is thrown out.
    pub(crate) fn stop(&self) {
        self.end("INT");
    }

    fn end(&self, signal: &str) {
        if let Some(mut child) = self.process.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).status();
            let _ = child.wait();
        }
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.crash();
    }
}

fn number(program: &str, arguments: &[&str]) -> u32 {
    let output = Command::new(program).args(arguments).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.trim().parse().unwrap_or_else(|_| panic!("{program} {arguments:?}: no user postgres; install the package `postgresql`"))
}

/// Debian keeps the server's programs out of the path.
fn find(name: &str) -> PathBuf {
    let in_path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&in_path).collect();
    let mut versions: Vec<PathBuf> =
        std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().map(|entry| entry.path().join("bin")).collect();
    versions.sort();
    folders.extend(versions.into_iter().rev());
    let found = folders.into_iter().map(|folder| folder.join(name)).find(|path| path.exists());
    found.unwrap_or_else(|| panic!("there is no {name}; install the package `postgresql`"))
}
