//! `runguard agent serve`: the agent behind HTTP.

use crate::commands::serve::{PortArgs, stop_signal};
use crate::failure::Failure;
use crate::logging::{LogArgs, Logging};
use clap::Args;
use runguard_agent::serve::AgentServer;
use runguard_agent::session::disk::SessionFolder;
use runguard_agent::{Agent, Settings};
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Settings: the model, its tools and the limits no caller can raise
    #[arg(long, short, value_name = "FILE", default_value = "agent.toml")]
    config: PathBuf,
    /// Address and port [default: 127.0.0.1:8101]; other machines are served only with a key (`RUNGUARD_AGENT_KEY`)
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<String>,
    /// The folder of the sessions [default: runguard-sessions]
    #[arg(long, value_name = "DIR")]
    sessions: Option<PathBuf>,
    /// Certificate for https, PEM with its chain; taken over when the file changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    #[command(flatten)]
    port: PortArgs,
    #[command(flatten)]
    logs: LogArgs,
}

impl Serve {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let logging = self.logs.start()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let result = runtime.block_on(self.serve(&logging));
        // A run that did not end in time is not waited for: what was recorded of it is saved.
        runtime.shutdown_background();
        result
    }

    async fn serve(self, logging: &Logging) -> Result<(), Failure> {
        let mut settings = Settings::load(&self.config).map_err(|error| Failure::Usage(error.to_string()))?;
        if let Some(listen) = self.listen {
            settings.serve.listen = listen;
        }
        settings.serve.listen = self.port.of(&settings.serve.listen).unwrap_or(settings.serve.listen);
        if let Some(folder) = self.sessions {
            settings.sessions.folder = folder;
        }
        settings.serve.tls_cert = self.tls_cert.unwrap_or(settings.serve.tls_cert);
        settings.serve.tls_key = self.tls_key.unwrap_or(settings.serve.tls_key);
        let folder = SessionFolder::open(&settings.sessions).map_err(|error| Failure::Failed(error.to_string()))?;
        let sessions = settings.sessions.folder.display().to_string();
        let agent = Arc::new(Agent::build(settings).await.map_err(|error| Failure::Usage(error.to_string()))?);
        let server = AgentServer::bind(agent.clone(), folder).await.map_err(|error| Failure::Failed(error.to_string()))?;
        let url = server.url();
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            listen = url,
            model = agent.settings().provider.model,
            settings = %self.config.display(),
            sessions,
            key = if server.needs_key() { "required" } else { "none: open to this machine" },
            "the agent is ready"
        );
        let stop = stop_signal();
        logging.say(&format!(
            "\n  Try:  curl -N {url}/v1/agent/runs -d '{{\"prompt\":\"Say hello.\"}}'\n  Routes: {url}/\n  Ctrl-C ends it\n"
        ));
        server.run(stop).await;
        if let Some(agent) = Arc::into_inner(agent) {
            agent.close().await;
        }
        tracing::info!("stopped; every run is saved");
        Ok(())
    }
}
