//! `runguard serve`: the guard service.

use super::SettingsArgs;
use crate::failure::Failure;
use crate::logging::{LogFormat, Logging};
use clap::Args;
use runguard_engine::alerts::Alerts;
use runguard_engine::settings::shown_address;
use runguard_engine::shared;
use runguard_engine::{Clock, Engine, EngineOptions, KeyRing};
use runguard_server::Server;
use runguard_store::Store;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Debug, Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    settings: SettingsArgs,
    /// Address and port [default: 127.0.0.1:8100]
    #[arg(long, env = "RUNGUARD_LISTEN", value_name = "ADDRESS:PORT")]
    listen: Option<String>,
    /// Certificate for https, PEM with its chain; taken over when the file changes [default: plain http]
    #[arg(long, env = "RUNGUARD_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<String>,
    /// The certificate's private key, PEM
    #[arg(long, env = "RUNGUARD_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<String>,
    /// Take the time of each request from its header x-runguard-now (Unix milliseconds); for tests
    #[arg(long)]
    virtual_clock: bool,
    /// How the service logs [default: text on a terminal, json elsewhere]
    #[arg(long, env = "RUNGUARD_LOG_FORMAT", value_name = "FORMAT")]
    log_format: Option<LogFormat>,
    /// What the service logs: error, warn, info, debug
    #[arg(long, env = "RUNGUARD_LOG", value_name = "LEVEL", default_value = "info")]
    log_level: String,
    /// Where many nodes share their states [default: this node's own files]
    #[arg(long, env = "RUNGUARD_STATE", value_name = "redis://HOST:PORT", hide_env_values = true)]
    state: Option<String>,
    /// Where many nodes keep one log [default: each node's own files]
    #[arg(long, env = "RUNGUARD_LOG_DATABASE", value_name = "postgres://HOST/DATABASE", hide_env_values = true)]
    log: Option<String>,
}

impl Serve {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let _logging = Logging::start(&self.log_level, "", self.log_format)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(self.serve())
    }

    async fn serve(self) -> Result<(), Failure> {
        let mut origin = self.settings.origin();
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
        let loaded = origin.load().map_err(|error| Failure::Usage(error.to_string()))?;
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
        if let Some(alerts) = Alerts::start(&engine).map_err(Failure::Usage)? {
            let _ = engine.alerts.set(alerts);
        }
        let server = Server::bind(engine.clone()).await.map_err(|error| Failure::Failed(error.to_string()))?;
        let url = server.url();
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            listen = url,
            data = %folder.display(),
            state = if state.is_empty() { "own files" } else { &state },
            log = if log.is_empty() { "own files" } else { &log },
            settings = loaded.file.as_ref().map_or("defaults".to_owned(), |file| file.display().to_string()),
            keys = if is_open { "none: open to this machine" } else { "required" },
            "RunGuard is ready"
        );
        if is_open && !engine.settings.load().server.hosts.is_empty() {
            tracing::warn!(
                "`server.hosts` lets a proxy in while there is no key: whoever reaches the proxy may do everything here; make keys (`runguard key create`)"
            );
        }
        if self.virtual_clock {
            tracing::warn!("--virtual-clock: callers say what time it is; for tests only");
        }
        if std::io::stderr().is_terminal() {
            anstream::eprintln!(
                "\n  Try:  curl -s {url}/guard/ai-task-retry -d '{{\"session_id\":\"demo\",\"task_name\":\"classify\"}}'\n  three times. Docs: {url}/docs\n"
            );
        }
        let erasing = tokio::spawn(runguard_engine::erasure::finish(engine.clone()));
        let watcher = tokio::spawn(runguard_engine::watch::watch(engine.clone(), origin, loaded.file, folder));
        let (stop_telemetry, stopping) = tokio::sync::watch::channel(false);
        let telemetry = engine.telemetry.clone().and_then(|telemetry| {
            let settings = engine.settings.load().telemetry.clone();
            runguard_engine::telemetry::export(engine.clone(), telemetry, settings, stopping)
                .inspect_err(|problem| tracing::error!(problem, "decisions are not sent to the collector"))
                .ok()
                .map(tokio::spawn)
        });
        server.run(stop_signal()).await;
        watcher.abort();
        erasing.abort();
        let _ = stop_telemetry.send(true);
        if let Some(telemetry) = telemetry {
            // The last spans are worth a moment, not more.
            let _ = tokio::time::timeout(std::time::Duration::from_secs(6), telemetry).await;
        }
        engine.store.leave().await;
        let closing = engine.clone();
        // Joins threads that write; not on a thread that serves.
        tokio::task::spawn_blocking(move || closing.stop()).await.map_err(|error| Failure::Failed(error.to_string()))?;
        tracing::info!("stopped; everything is written down");
        Ok(())
    }
}

/// Ready when the process is asked to end.
pub(crate) async fn stop_signal() {
    #[cfg(unix)]
    if let Err(error) = asked_to_end().await {
        tracing::error!(%error, "cannot listen for signals");
        let _ = tokio::signal::ctrl_c().await;
    }
    #[cfg(not(unix))]
    let _ = tokio::signal::ctrl_c().await;
    tracing::info!("stopping: finishing what is under way");
}

#[cfg(unix)]
async fn asked_to_end() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    // Left alone, they would end the process on the spot.
    let (mut first, mut second) = (signal(SignalKind::user_defined1())?, signal(SignalKind::user_defined2())?);
    loop {
        tokio::select! {
            _ = interrupt.recv() => return Ok(()),
            _ = terminate.recv() => return Ok(()),
            // A terminal that is closed ends what runs in it; anybody else means "read your files again".
            _ = hangup.recv() => if std::io::stderr().is_terminal() {
                return Ok(());
            } else {
                tracing::info!("SIGHUP: settings, keys and certificates are watched and taken over when they change; nothing is left to do");
            },
            _ = first.recv() => tracing::info!("SIGUSR1 means nothing here"),
            _ = second.recv() => tracing::info!("SIGUSR2 means nothing here"),
        }
    }
}
