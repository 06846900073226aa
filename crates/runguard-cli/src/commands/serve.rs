//! `runguard serve`: the guard service.

use super::SettingsArgs;
use crate::client::DEFAULT_URL;
use crate::failure::Failure;
use crate::logging::{LogArgs, Logging, meant_of_log};
use clap::Args;
use futures_util::FutureExt as _;
use owo_colors::OwoColorize;
use runguard_engine::alerts::Alerts;
use runguard_engine::settings::{Settings, shown_address};
use runguard_engine::shared;
use runguard_engine::{Caller, Clock, Engine, EngineOptions, KeyRing};
use runguard_server::Server;
use runguard_store::Store;
use serde_json::Value;
use std::io::IsTerminal;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Debug, Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    settings: SettingsArgs,
    /// Address and port, as 127.0.0.1:8100 or localhost:8100 [default: 127.0.0.1:8100]
    #[arg(long, env = "RUNGUARD_LISTEN", value_name = "ADDRESS:PORT")]
    listen: Option<String>,
    #[command(flatten)]
    port: PortArgs,
    /// Certificate for https, PEM with its chain; taken over when the file changes [default: plain http]
    #[arg(long, env = "RUNGUARD_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<String>,
    /// The certificate's private key, PEM
    #[arg(long, env = "RUNGUARD_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<String>,
    /// Take the time of each request from its header x-runguard-now (Unix milliseconds); for tests
    #[arg(long)]
    virtual_clock: bool,
    #[command(flatten)]
    logs: LogArgs,
    /// Where many nodes share their states [default: this node's own files]
    #[arg(long, env = "RUNGUARD_STATE", value_name = "redis://HOST:PORT", hide_env_values = true)]
    state: Option<String>,
    /// Where many nodes keep one log [default: each node's own files]
    #[arg(long, env = "RUNGUARD_LOG_DATABASE", value_name = "postgres://HOST/DATABASE", hide_env_values = true)]
    log: Option<String>,
}

/// The port alone, for every command that listens.
#[derive(Debug, Args)]
pub(crate) struct PortArgs {
    /// Another port on the same address; 0 takes any that is free
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
}

impl PortArgs {
    /// The address with this port, if one was given.
    pub(crate) fn of(&self, listen: &str) -> Option<String> {
        let host = listen.rsplit_once(':').map_or(listen, |(host, _)| host);
        self.port.map(|port| format!("{host}:{port}"))
    }
}

impl Serve {
    pub(crate) fn run(self) -> Result<(), Failure> {
        self.run_with(Vec::new())
    }

    /// The same with more flags than its own: path, value, name.
    pub(crate) fn run_with(self, more: Vec<(Vec<&'static str>, Value, &'static str)>) -> Result<(), Failure> {
        if let Some(hint) = self.log.as_deref().and_then(meant_of_log) {
            return Err(Failure::Usage(format!("--log {}: {hint}", self.log.as_deref().unwrap_or_default())));
        }
        let logging = self.logs.start()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(self.serve(more, &logging))
    }

    async fn serve(self, more: Vec<(Vec<&'static str>, Value, &'static str)>, logging: &Logging) -> Result<(), Failure> {
        let mut origin = self.settings.origin();
        origin.flags.extend(more);
        let flags = [
            (&self.listen, ["server", "listen"], "--listen"),
            (&self.tls_cert, ["server", "tls_cert"], "--tls-cert"),
            (&self.tls_key, ["server", "tls_key"], "--tls-key"),
            (&self.state, ["store", "state"], "--state"),
            (&self.log, ["log", "database"], "--log"),
        ];
        for (value, path, flag) in flags {
            if let Some(value) = value {
                origin.flags.push((path.to_vec(), value.clone().into(), flag));
            }
        }
        let mut loaded = origin.load().map_err(|error| Failure::Usage(error.to_string()))?;
        if let Some(listen) = self.port.of(&loaded.settings.server.listen) {
            origin.flags.push((vec!["server", "listen"], listen.into(), "--port"));
            loaded = origin.load().map_err(|error| Failure::Usage(error.to_string()))?;
        }
        let folder = PathBuf::from(&loaded.settings.store.data);
        let store = shared::open(&loaded.settings).await.map_err(|error| Failure::Failed(error.to_string()))?;
        let clock = match (&store, self.virtual_clock) {
            (_, true) => Clock::Virtual,
            (Store::Cluster(cluster), false) => Clock::Shared(cluster.clock()),
            (Store::Embedded(_) | Store::Memory(_), false) => Clock::System,
        };
        let keys = KeyRing::load(&folder).map_err(|error| Failure::Failed(error.to_string()))?;
        let is_open = keys.is_open();
        let (state, log) = (shown_address(&loaded.settings.store.state), shown_address(&loaded.settings.log.database));
        let options = EngineOptions { clock, settings: loaded.settings, keys, seed: None };
        let engine = Arc::new(Engine::new(store, options).await.map_err(|error| Failure::Failed(error.to_string()))?);
        if engine.telemetry.is_some() {
            runguard_engine::telemetry::headers(&engine.started_with.telemetry).map_err(Failure::Usage)?;
        }
        if let Some(alerts) = Alerts::start(&engine).map_err(Failure::Usage)? {
            let _ = engine.alerts.set(alerts);
        }
        let server = Server::bind(engine.clone()).await.map_err(|error| Failure::Failed(error.to_string()))?;
        let url = server.url();
        let limits = limits_of(&engine.settings.load());
        macro_rules! ready {
            ($level:ident) => {
                tracing::$level!(
                    version = env!("CARGO_PKG_VERSION"),
                    listen = url,
                    data = %folder.display(),
                    state = if state.is_empty() { "own files" } else { &state },
                    log = if log.is_empty() { "own files" } else { &log },
                    settings = loaded.file.as_ref().map_or("defaults".to_owned(), |file| file.display().to_string()),
                    keys = if is_open { "none: open to this machine" } else { "required" },
                    limits,
                    "RunGuard is ready"
                )
            };
        }
        // Whoever reads along is told by the banner.
        if logging.is_read() {
            ready!(debug);
        } else {
            ready!(info);
        }
        if is_open && !engine.settings.load().server.hosts.is_empty() {
            tracing::warn!(
                "`server.hosts` lets a proxy in while there is no key: whoever reaches the proxy may do everything here; make keys (`runguard key create`)"
            );
        }
        if self.virtual_clock {
            tracing::warn!("--virtual-clock: callers say what time it is; for tests only");
        }
        let stop = stop_signal();
        logging.say(&banner(&Shown {
            url: &reachable(&url, server.address().ip()),
            data: &folder,
            settings: loaded.file.as_deref(),
            is_open,
            is_shared: !state.is_empty(),
            limits: engine.settings.load().gateway.enabled.then_some(limits.as_str()),
        }));
        let erasing = tokio::spawn(runguard_engine::erasure::finish(engine.clone()).boxed());
        let watcher = tokio::spawn(runguard_engine::watch::watch(engine.clone(), origin, loaded.file, folder).boxed());
        let (stop_telemetry, stopping) = tokio::sync::watch::channel(false);
        let telemetry = engine.telemetry.clone().and_then(|telemetry| {
            let settings = engine.settings.load().telemetry.clone();
            runguard_engine::telemetry::export(engine.clone(), telemetry, settings, stopping)
                .inspect_err(|problem| tracing::error!(problem, "decisions are not sent to the collector"))
                .ok()
                .map(tokio::spawn)
        });
        server.run(stop, async { stop_signal().await }).await;
        watcher.abort();
        erasing.abort();
        let _ = stop_telemetry.send(true);
        if let Some(telemetry) = telemetry {
            // The last spans are worth a moment, not more.
            let _ = tokio::time::timeout(std::time::Duration::from_secs(6), telemetry).await;
        }
        // Joins threads that write; not on a thread that serves.
        let closing = engine.clone();
        let joined = |error: tokio::task::JoinError| Failure::Failed(error.to_string());
        tokio::task::spawn_blocking(move || closing.stop_alerts()).await.map_err(joined)?;
        engine.store.leave().await;
        tokio::task::spawn_blocking(move || engine.stop()).await.map_err(joined)?;
        tracing::info!("stopped; everything is written down");
        Ok(())
    }
}

/// What the banner tells.
struct Shown<'a> {
    url: &'a str,
    data: &'a Path,
    settings: Option<&'a Path>,
    is_open: bool,
    is_shared: bool,
    /// What holds for everyone who asks a model, where models can be asked.
    limits: Option<&'a str>,
}

/// The limits of budgets that hold for everyone.
fn limits_of(settings: &Settings) -> String {
    let limits = settings.policies.for_tenant(&Caller::open().tenant).budget.for_subject("default").settings.limits_in_words();
    if limits.is_empty() { "none".to_owned() } else { limits.join(", ") }
}

/// Where to look from this machine: an address that means all of its own is none to go to.
fn reachable(url: &str, address: IpAddr) -> String {
    let own = match address {
        IpAddr::V4(_) => "127.0.0.1",
        IpAddr::V6(_) => "[::1]",
    };
    let shown = match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    };
    if address.is_unspecified() { url.replacen(&shown, own, 1) } else { url.to_owned() }
}

/// For whoever has just started it in a terminal: where to look and what to type next.
fn banner(shown: &Shown<'_>) -> String {
    let Shown { url, data, settings, is_open, is_shared, limits } = shown;
    let whole = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let data = whole(data);
    let kept = if *is_shared { " (keys; states and log are shared)" } else { "" };
    let settings = settings.map_or_else(
        || "defaults; `runguard settings example > runguard.toml` begins a file".to_owned(),
        |file| file.display().to_string(),
    );
    // What is typed next means this service, also where it is not the one that is asked by itself.
    let here = if *url == DEFAULT_URL { String::new() } else { format!(" --url {url}") };
    let keys = if *is_open {
        let place =
            if data == whole(Path::new(&Settings::default().store.data)) { String::new() } else { format!(" --data {}", data.display()) };
        format!("none: open to this machine alone; `runguard key create{place}` makes one")
    } else {
        "required: `Authorization: Bearer rg_…`".to_owned()
    };
    let next = if limits.is_some() {
        format!(
            "export OPENAI_BASE_URL={url}/openai/v1\n             export ANTHROPIC_BASE_URL={url}/anthropic\n             export AWS_ENDPOINT_URL_BEDROCK_RUNTIME={url}/bedrock\n             in another terminal, and run your agent as before"
        )
    } else {
        let key = if *is_open { "" } else { " -H \"Authorization: Bearer $RUNGUARD_KEY\"" };
        format!(
            "curl -s {url}/guard/ai-task-retry{key} \\\n               -d '{{\"session_id\":\"demo\",\"task_name\":\"classify\"}}'\n             three times: the third is blocked. Then\n               runguard decisions{here}"
        )
    };
    let limits = limits.map(|limits| match limits {
        "none" => ("Limits", "none: calls are metered, priced and logged; --max-usd-per-run, --max-usd-per-day set some".to_owned()),
        limits => ("Limits", limits.to_owned()),
    });
    let rows = [
        ("Dashboard", format!("{url}/")),
        ("Docs", format!("{url}/docs")),
        ("Data", format!("{}{kept}", data.display())),
        ("Settings", settings),
        ("Keys", keys),
    ];
    let rest = [("Next", next), ("End", "Ctrl-C".to_owned())];
    let lines: Vec<String> =
        rows.into_iter().chain(limits).chain(rest).map(|(name, value)| format!("  {} {value}", format!("{name:<10}").dimmed())).collect();
    format!("\n  {}\n{}\n", format!("RunGuard {}", crate::version::SHORT).bold(), lines.join("\n"))
}

/// Ready when the process is asked to end. Signals are heard from the call on, not from the first look at it: whoever is told that Ctrl-C
/// ends it may press it at once.
pub(crate) fn stop_signal() -> impl Future<Output = ()> + Send + 'static {
    #[cfg(unix)]
    let asked = asked_to_end();
    async move {
        #[cfg(unix)]
        match asked {
            Ok(asked) => asked.await,
            Err(error) => {
                tracing::error!(%error, "cannot listen for signals");
                let _ = tokio::signal::ctrl_c().await;
            }
        }
        #[cfg(not(unix))]
        let _ = tokio::signal::ctrl_c().await;
        tracing::info!("stopping: finishing what is under way");
    }
}

#[cfg(unix)]
fn asked_to_end() -> std::io::Result<impl Future<Output = ()> + Send + 'static> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    // Left alone, they would end the process on the spot.
    let (mut first, mut second) = (signal(SignalKind::user_defined1())?, signal(SignalKind::user_defined2())?);
    Ok(async move {
        loop {
            tokio::select! {
                _ = interrupt.recv() => return,
                _ = terminate.recv() => return,
                // A terminal that is closed ends what runs in it; anybody else means "read your files again".
                _ = hangup.recv() => if std::io::stderr().is_terminal() {
                    return;
                } else {
                    tracing::info!("SIGHUP: settings, keys and certificates are watched and taken over when they change; nothing is left to do");
                },
                _ = first.recv() => tracing::info!("SIGUSR1 means nothing here"),
                _ = second.recv() => tracing::info!("SIGUSR2 means nothing here"),
            }
        }
    })
}
