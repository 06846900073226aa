//! `runguard run`: a program of the user's, as it is, with a cap on what its model calls cost.
//!
//! The program is started with two small files in its way: Python reads `sitecustomize.py` and Node `program.mjs` before anything else, and
//! both hand over to the package that is installed there, which opens a run for the whole process. The money is kept by a service inside of
//! this command, so that all processes of the program share one cap: the service has the limits from here, and answers those alone who have
//! the key that the program is given. It is no sandbox: a program that does not want to be counted is not.

use super::local::{Http, Service};
use crate::failure::Failure;
use crate::output;
use clap::Args;
use runguard_core::money::NanoDollars;
use runguard_core::time::Span;
use runguard_engine::keys::{self, NewKey};
use runguard_engine::{KeyRing, Reach, Role};
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use tempfile::TempDir;
use tokio::process::{Child, Command};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  runguard run --max-usd 1 -- python agent.py
  runguard run --max-usd 0.50 --max-seconds 600 -- node agent.mjs
  runguard run --max-usd 2 --url http://127.0.0.1:8100 --id nightly -- ./nightly.sh

Inside, model calls of openai, anthropic, litellm and Bedrock clients (Python), and of openai, @anthropic-ai/sdk and the AI SDK
(Node) are counted, and blocked once the cap is reached. The package has to be installed where the program runs
(runguard-breaker for Python, @runguard/sdk for Node). The exit code is the program's. It is no sandbox: a process of another
kind, one with `python -I` or `-E`, or one whose environment was cleared is not counted.")]
pub(crate) struct Run {
    /// Dollars that all its model calls together may cost
    #[arg(long, value_name = "DOLLARS", allow_negative_numbers = true)]
    max_usd: Option<String>,
    /// Tokens that all its model calls together may use
    #[arg(long, value_name = "TOKENS")]
    max_tokens: Option<u64>,
    /// Seconds from the first model or tool call on
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    max_seconds: Option<f64>,
    /// Model calls of one process
    #[arg(long, value_name = "CALLS")]
    max_model_calls: Option<u64>,
    /// Name of the run, under which a service keeps its money [default: a new one]
    #[arg(long, value_name = "NAME")]
    id: Option<String>,
    /// A service that keeps the money, so that several programs share it [default: one inside of this command]
    #[arg(long, env = "RUNGUARD_URL", value_name = "URL")]
    url: Option<String>,
    /// File with the API key for that service; without it the one in the environment (`RUNGUARD_KEY`). Arguments are seen by all users
    #[arg(long, value_name = "FILE", requires = "url")]
    key_file: Option<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

const SITECUSTOMIZE: &str = include_str!("run/sitecustomize.py");
const PROGRAM: &str = include_str!("run/program.mjs");

/// How the packages are installed: they are in no registry, but files beside the program's. Both stand in the files above, in the place of
/// their names, and so without quotes.
const INSTALL: [(&str, &str); 2] = [
    (
        "@INSTALL_PYTHON@",
        concat!(
            "pip install runguard_breaker-",
            env!("CARGO_PKG_VERSION"),
            "-*manylinux*.whl (a file of the release; musllinux on Alpine; from the source of RunGuard: its folder sdk/python)"
        ),
    ),
    (
        "@INSTALL_NODE@",
        concat!(
            "npm install runguard-sdk-",
            env!("CARGO_PKG_VERSION"),
            ".tgz (a file of the release; from the source of RunGuard: npm ci && npm run build && npm pack in sdk/typescript)"
        ),
    ),
];

/// What is said when little or nothing was counted.
const NO_SANDBOX: &str = "A process that is neither Python nor Node with the RunGuard package, that was started with python -I or -E, or whose environment was cleared is not counted: runguard run is no sandbox.";

/// Folders of runs in the folder for temporary files begin so.
const FOLDERS: &str = "runguard-run-";
/// Held in such a folder as long as its run lasts.
const LOCK: &str = "lock";

/// What the program is told, as JSON: the options of a run, and where the money is kept.
const TOLD: &str = "RUNGUARD_RUN";
/// Each process that has begun, and each trip, leaves a file here.
const FOLDER: &str = "RUNGUARD_RUN_FOLDER";

impl Run {
    pub(crate) fn run(self) -> Result<(), Failure> {
        if self.max_usd.is_none() && self.max_tokens.is_none() && self.max_seconds.is_none() && self.max_model_calls.is_none() {
            return Err(Failure::Usage(
                "nothing is limited; say what the program may use, for example --max-usd 1 (or --max-tokens, --max-seconds, --max-model-calls)"
                    .into(),
            ));
        }
        let wrong = |name: &str, value: &dyn std::fmt::Display, problem: &dyn std::fmt::Display| {
            Failure::Usage(format!("--{name} {value}: {problem}"))
        };
        let max_usd = self.max_usd.as_deref().map(|usd| NanoDollars::parse(usd).map_err(|problem| wrong("max-usd", &usd, &problem)));
        let max_usd = max_usd.transpose()?;
        if let Some(seconds) = self.max_seconds {
            let span = Span::from_seconds_f64(seconds).map_err(|problem| wrong("max-seconds", &seconds, &problem))?;
            if span.as_millis() == 0 {
                return Err(wrong("max-seconds", &seconds, &"there is no time in it; give seconds, such as 600"));
            }
        }
        if self.id.as_deref().is_some_and(|id| id.trim().is_empty()) {
            return Err(Failure::Usage("--id is empty; give a name, or leave it out for a new one".into()));
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(self.guarded(max_usd))
    }

    async fn guarded(&self, max_usd: Option<NanoDollars>) -> Result<(), Failure> {
        let (folder, _lock) = folder()?;
        for (name, text) in [("sitecustomize.py", SITECUSTOMIZE), ("program.mjs", PROGRAM)] {
            let text = INSTALL.iter().fold(text.to_owned(), |text, (place, how)| text.replace(place, how));
            std::fs::write(folder.path().join(name), text)?;
        }
        let (service, key) = if self.url.is_some() {
            (None, self.key()?)
        } else {
            let (keys, key) = own_key(folder.path())?;
            let settings = self.settings(folder.path(), max_usd);
            let service = Service::start(&settings, keys).await.map_err(|failure| failure.with_hint("Try again"))?;
            (Some(service), Some(key))
        };
        let url = self.url.clone().or_else(|| service.as_ref().map(|service| service.url.clone())).unwrap_or_default();
        let id = match &self.id {
            Some(id) => id.clone(),
            None => format!("program-{}", random_text()?),
        };
        let told = self.told(&id, max_usd, &url, key.as_deref());
        let ended = self.start(folder.path(), &told)?.ended().await?;
        let spent = match &service {
            Some(_) => Spent::of(&url, &id, key.unwrap_or_default()).await,
            None => None,
        };
        if let Some(service) = service {
            service.stop().await;
        }
        report(folder.path(), spent, max_usd);
        match code(ended) {
            0 => Ok(()),
            code => Err(Failure::Exited(code)),
        }
    }

    /// Of a service that is somebody's.
    fn key(&self) -> Result<Option<String>, Failure> {
        let Some(path) = &self.key_file else { return Ok(std::env::var("RUNGUARD_KEY").ok().filter(|key| !key.is_empty())) };
        let key = std::fs::read_to_string(path)
            .map_err(|error| Failure::Failed(format!("cannot read the key in {}: {error}", path.display())))?;
        Ok(Some(key.trim().to_owned()))
    }

    /// Of the service inside. All it is asked about is this program's, under whichever name, and within its limits.
    fn settings(&self, folder: &Path, max_usd: Option<NanoDollars>) -> String {
        let data = toml::Value::String(folder.join("data").display().to_string());
        // There 0 is no limit; here it is one, which the program tells.
        let usd = max_usd.filter(|usd| !usd.is_zero()).map(|usd| format!("max_usd = {:?}", usd.as_dollars()));
        let tokens = self.max_tokens.filter(|tokens| *tokens > 0).map(|tokens| format!("max_tokens = {tokens}"));
        let limits: Vec<String> = [usd, tokens].into_iter().flatten().collect();
        let own = limits.join("\n");
        let all = if limits.is_empty() { String::new() } else { format!("scopes.tenant.total = {{ {} }}", limits.join(", ")) };
        format!("[server]\nlisten = \"127.0.0.1:0\"\n\n[store]\ndata = {data}\n\n[guards.budget]\n{own}\n{all}\n")
    }

    /// The options of the run, as both packages name them in JSON.
    fn told(&self, id: &str, max_usd: Option<NanoDollars>, url: &str, key: Option<&str>) -> String {
        let mut told = Map::new();
        told.insert("run_id".into(), id.into());
        told.insert("url".into(), url.into());
        let mut maybe = |name: &str, value: Option<Value>| value.and_then(|value| told.insert(name.to_owned(), value));
        maybe("api_key", key.map(Value::from));
        maybe("max_usd", max_usd.map(|usd| usd.as_dollars().into()));
        maybe("max_tokens", self.max_tokens.map(Value::from));
        maybe("max_seconds", self.max_seconds.map(Value::from));
        maybe("max_model_calls", self.max_model_calls.map(Value::from));
        Value::Object(told).to_string()
    }

    fn start(&self, folder: &Path, told: &str) -> Result<Program, Failure> {
        let [program, arguments @ ..] = self.program.as_slice() else {
            return Err(Failure::Usage("name the program to run, after --".into()));
        };
        let imported = format!("--import={}", file_url(&folder.join("program.mjs")));
        let child = Command::new(program)
            .args(arguments)
            .env(TOLD, told)
            .env(FOLDER, folder)
            .env("RUNGUARD_RUN_PARENT", std::process::id().to_string())
            .env("PYTHONPATH", joined(folder.as_os_str().to_owned(), ":", std::env::var_os("PYTHONPATH")))
            .env("NODE_OPTIONS", joined(imported.into(), " ", std::env::var_os("NODE_OPTIONS")))
            .spawn();
        let name = Path::new(program).display();
        let child = child.map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Failure::NotFound(format!("there is no program {name}; check its name, or give its path")),
            _ => Failure::Failed(format!("cannot start {name}: {error}")),
        })?;
        Ok(Program { child })
    }
}

/// What became of it, for the person; the program's own output is its own.
fn report(folder: &Path, spent: Option<Spent>, max_usd: Option<NanoDollars>) {
    let LeftBehind { begun, says_why_not, trips } = LeftBehind::read(folder);
    if begun == 0 {
        if !says_why_not {
            let [python, node] = INSTALL.map(|(_, how)| how);
            output::note(&format!(
                "runguard: no process reported, so nothing was counted. {NO_SANDBOX} The package has to be installed where the program runs: {python}, or {node}"
            ));
        }
        return;
    }
    let reported = if begun == 1 { "1 process reported".to_owned() } else { format!("{begun} processes reported") };
    match spent {
        Some(spent) if spent.is_nothing() => output::note(&format!("runguard: {reported}, and no model call was counted. {NO_SANDBOX}")),
        Some(spent) => {
            let limit = max_usd.map_or_else(String::new, |limit| format!(" of {limit}"));
            output::note(&format!("runguard: spent {}{limit}; {reported}", NanoDollars::from_dollars(spent.usd).unwrap_or_default()));
        }
        None => output::note(&format!("runguard: {reported}")),
    }
    for trip in trips {
        output::note(&format!("runguard: stopped: {}", output::clean(&trip)));
    }
}

/// What the processes inside have left in the folder.
struct LeftBehind {
    /// Processes that count.
    begun: usize,
    /// The package is missing, and the program was told so.
    says_why_not: bool,
    /// Sentences, each once.
    trips: Vec<String>,
}

impl LeftBehind {
    fn read(folder: &Path) -> Self {
        let mut paths: Vec<PathBuf> = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        paths.sort();
        let of_kind = |kind: &'static str| paths.iter().filter(move |path| path.extension().is_some_and(|extension| extension == kind));
        let mut trips: Vec<String> = of_kind("trip").filter_map(|path| std::fs::read_to_string(path).ok()).collect();
        trips.dedup();
        Self { begun: of_kind("begun").count(), says_why_not: of_kind("missing").count() > 0, trips }
    }
}

fn random_text() -> Result<String, Failure> {
    keys::random_text(20).map_err(|error| Failure::Failed(error.to_string()))
}

/// The key of a service that nobody else shall ask.
fn own_key(folder: &Path) -> Result<(KeyRing, String), Failure> {
    let failed = |error: keys::KeyError| Failure::Failed(error.to_string());
    let new =
        NewKey { name: "program".into(), tenant: "program".into(), reach: Reach::OwnTenant, roles: vec![Role::Guard], always_200: false };
    let (_, key) = keys::create(folder, new, 0).map_err(failed)?;
    Ok((KeyRing::load(folder).map_err(failed)?, key))
}

/// A folder for this run, with the lock that says it lasts. Those of runs that were killed are removed.
fn folder() -> Result<(TempDir, File), Failure> {
    let parent = std::env::temp_dir();
    if parent.as_os_str().as_encoded_bytes().contains(&b':') && cfg!(unix) {
        return Err(Failure::Usage(format!(
            "the folder for temporary files, {}, has a colon in its name, and Python would read two of it (PYTHONPATH); set TMPDIR to another folder",
            parent.display()
        )));
    }
    for entry in std::fs::read_dir(&parent).into_iter().flatten().flatten() {
        let is_runs =
            entry.file_name().as_encoded_bytes().starts_with(FOLDERS.as_bytes()) && entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_runs && File::open(entry.path().join(LOCK)).is_ok_and(|lock| lock.try_lock().is_ok()) {
            // Another command may be faster.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    let made = |error: std::io::Error| {
        Failure::Failed(format!("cannot make a folder in {}: {error}; set TMPDIR to another one", parent.display()))
    };
    let folder = tempfile::Builder::new().prefix(FOLDERS).tempdir_in(&parent).map_err(made)?;
    // It has its name once it is held.
    let (unnamed, named) = (folder.path().join("lock.new"), folder.path().join(LOCK));
    let lock = File::create(&unnamed).map_err(made)?;
    lock.lock().map_err(made)?;
    std::fs::rename(unnamed, named).map_err(made)?;
    Ok((folder, lock))
}

/// The address of a file, in which nothing needs quotes.
fn file_url(path: &Path) -> String {
    use std::fmt::Write as _;
    path.as_os_str().as_encoded_bytes().iter().fold("file://".to_owned(), |mut url, byte| {
        if byte.is_ascii_alphanumeric() || b"/-._~".contains(byte) {
            url.push(char::from(*byte));
        } else {
            let _ = write!(url, "%{byte:02X}");
        }
        url
    })
}

fn joined(first: OsString, separator: &str, rest: Option<OsString>) -> OsString {
    let mut joined = first;
    if let Some(rest) = rest.filter(|rest| !rest.is_empty()) {
        joined.push(separator);
        joined.push(rest);
    }
    joined
}

/// What the program has used, by the service's books.
struct Spent {
    usd: f64,
    tokens: u64,
}

impl Spent {
    async fn of(url: &str, id: &str, key: String) -> Option<Self> {
        let (url, body) = (url.to_owned(), json!({ "session_id": id }).to_string());
        let asked = tokio::task::spawn_blocking(move || {
            let http = Http::new(&url).ok()?;
            let request = http.client.post(format!("{url}/guard/budget/check")).bearer_auth(key);
            let (_, answer) = http.ask(request.header("content-type", "application/json").body(body)).ok()?;
            serde_json::from_slice::<Value>(&answer).ok()
        });
        let books = asked.await.ok().flatten()?;
        Some(Self { usd: books.get("spent_usd")?.as_f64()?, tokens: books.get("spent_tokens").and_then(Value::as_u64).unwrap_or(0) })
    }

    fn is_nothing(&self) -> bool {
        self.usd <= 0.0 && self.tokens == 0
    }
}

struct Program {
    child: Child,
}

impl Program {
    /// Waits. Ctrl-C reaches the program by the terminal; what ends this command is passed on.
    #[cfg(unix)]
    async fn ended(mut self) -> Result<ExitStatus, Failure> {
        use rustix::process::{Pid, Signal, kill_process};
        use tokio::signal::unix::{SignalKind, signal};
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hangup = signal(SignalKind::hangup())?;
        loop {
            let passed_on = tokio::select! {
                status = self.child.wait() => return Ok(status?),
                _ = interrupt.recv() => continue,
                _ = terminate.recv() => Signal::TERM,
                _ = hangup.recv() => Signal::HUP,
            };
            let pid = self.child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
            if let Some(pid) = pid {
                // It may have ended meanwhile.
                let _ = kill_process(pid, passed_on);
            }
        }
    }

    #[cfg(not(unix))]
    async fn ended(mut self) -> Result<ExitStatus, Failure> {
        Ok(self.child.wait().await?)
    }
}

/// As a shell tells it: of a program that a signal ended, 128 and the signal.
fn code(status: ExitStatus) -> u8 {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return u8::try_from(128 + signal).unwrap_or(1);
    }
    status.code().map_or(1, |code| u8::try_from(code & 0xff).unwrap_or(1))
}
