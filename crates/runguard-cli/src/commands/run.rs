//! `runguard run`: a program of the user's, as it is, with a cap on what its model calls cost.
//!
//! The program is started with two small files in its way: Python reads `sitecustomize.py` and Node `program.mjs` before anything else, and
//! both hand over to the package that is installed there, which opens a run for the whole process. The money is kept by a service inside of
//! this command, so that all processes of the program share one cap.

use super::local::{Http, Service};
use crate::failure::Failure;
use clap::Args;
use runguard_core::money::NanoDollars;
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use tokio::process::{Child, Command};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  runguard run --max-usd 1 -- python agent.py
  runguard run --max-usd 0.50 --max-seconds 600 -- node agent.mjs
  runguard run --max-usd 2 --url http://127.0.0.1:8100 --id nightly -- ./nightly.sh

Inside, model calls of openai, anthropic, litellm and Bedrock clients (Python), and of openai, @anthropic-ai/sdk and the AI SDK
(Node) are counted, and refused once the cap is reached. The package has to be installed where the program runs
(runguard-breaker for Python, @runguard/sdk for Node). The exit code is the program's.")]
pub(crate) struct Run {
    /// Dollars that all its model calls together may cost
    #[arg(long, value_name = "DOLLARS")]
    max_usd: Option<String>,
    /// Tokens that all its model calls together may use
    #[arg(long, value_name = "TOKENS")]
    max_tokens: Option<u64>,
    /// Seconds from the first model or tool call on
    #[arg(long, value_name = "SECONDS")]
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
    /// API key for the service
    #[arg(long, env = "RUNGUARD_KEY", hide_env_values = true, requires = "url")]
    key: Option<String>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

const SITECUSTOMIZE: &str = include_str!("run/sitecustomize.py");
const PROGRAM: &str = include_str!("run/program.mjs");

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
        let max_usd = self.max_usd.as_deref().map(NanoDollars::parse).transpose();
        let max_usd =
            max_usd.map_err(|problem| Failure::Usage(format!("--max-usd {}: {problem}", self.max_usd.as_deref().unwrap_or(""))))?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(self.guarded(max_usd))
    }

    async fn guarded(&self, max_usd: Option<NanoDollars>) -> Result<(), Failure> {
        let folder = tempfile::Builder::new().prefix("runguard-run-").tempdir()?;
        std::fs::write(folder.path().join("sitecustomize.py"), SITECUSTOMIZE)?;
        std::fs::write(folder.path().join("program.mjs"), PROGRAM)?;
        let service = match &self.url {
            Some(_) => None,
            None => Some(Service::start(&settings(folder.path())).await.map_err(|failure| failure.with_hint("Try again"))?),
        };
        let url = self.url.clone().or_else(|| service.as_ref().map(|service| service.url.clone())).unwrap_or_default();
        let id = self.id.clone().unwrap_or_else(|| format!("program-{}", std::process::id()));
        let told = self.told(&id, max_usd, &url);
        let ended = self.start(folder.path(), &told)?.ended().await?;
        let spent = match &service {
            Some(_) => spent(&url, &id).await,
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

    /// The options of the run, as both packages name them in JSON.
    fn told(&self, id: &str, max_usd: Option<NanoDollars>, url: &str) -> String {
        let mut told = Map::new();
        told.insert("run_id".into(), id.into());
        told.insert("url".into(), url.into());
        let mut maybe = |name: &str, value: Option<Value>| value.and_then(|value| told.insert(name.to_owned(), value));
        maybe("api_key", self.key.clone().map(Value::from));
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
        let imported = format!("--import=file://{}", folder.join("program.mjs").display());
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
fn report(folder: &Path, spent: Option<f64>, max_usd: Option<NanoDollars>) {
    let LeftBehind { has_begun, says_why_not, trips } = LeftBehind::read(folder);
    if !has_begun {
        if says_why_not {
            return;
        }
        anstream::eprintln!(
            "runguard: no Python or Node program with the RunGuard package began inside, so nothing was counted. Install it where the program runs: pip install runguard-breaker, or npm install @runguard/sdk"
        );
        return;
    }
    if let Some(spent) = spent {
        let limit = max_usd.map_or_else(String::new, |limit| format!(" of {limit}"));
        anstream::eprintln!("runguard: spent {}{limit}", NanoDollars::from_dollars(spent).unwrap_or_default());
    }
    for trip in trips {
        anstream::eprintln!("runguard: stopped: {}", crate::output::clean(&trip));
    }
}

/// What the processes inside have left in the folder.
struct LeftBehind {
    has_begun: bool,
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
        Self { has_begun: of_kind("begun").count() > 0, says_why_not: of_kind("missing").count() > 0, trips }
    }
}

fn settings(folder: &Path) -> String {
    let data = toml::Value::String(folder.join("data").display().to_string());
    format!("[server]\nlisten = \"127.0.0.1:0\"\n\n[store]\ndata = {data}\n")
}

fn joined(first: OsString, separator: &str, rest: Option<OsString>) -> OsString {
    let mut joined = first;
    if let Some(rest) = rest.filter(|rest| !rest.is_empty()) {
        joined.push(separator);
        joined.push(rest);
    }
    joined
}

/// Dollars, by the service's books.
async fn spent(url: &str, id: &str) -> Option<f64> {
    let (url, body) = (url.to_owned(), json!({ "session_id": id }).to_string());
    let asked = tokio::task::spawn_blocking(move || {
        let http = Http::new(&url).ok()?;
        let request = http.client.post(format!("{url}/guard/budget/check")).header("content-type", "application/json").body(body);
        let (_, answer) = http.ask(request).ok()?;
        serde_json::from_slice::<Value>(&answer).ok()
    });
    asked.await.ok().flatten()?.get("spent_usd")?.as_f64()
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
