//! Talks to a running service.

use crate::failure::Failure;
use clap::Args;
use serde_json::Value;
use std::time::Duration;

#[derive(Debug, Args)]
pub(crate) struct Client {
    /// The service
    #[arg(long, env = "RUNGUARD_URL", default_value = "http://127.0.0.1:8100", global = true)]
    url: String,
    /// API key, once keys were made
    #[arg(long, env = "RUNGUARD_KEY", hide_env_values = true, global = true)]
    key: Option<String>,
}

pub(crate) type Query = Vec<(&'static str, String)>;

impl Client {
    fn agent(timeout: Option<Duration>) -> ureq::Agent {
        ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(timeout)
            .timeout_connect(Some(Duration::from_secs(5)))
            .build()
            .into()
    }

    pub(crate) fn address(&self, path: &str) -> String {
        format!("{}{path}", self.url.trim_end_matches('/'))
    }

    pub(crate) fn get(&self, path: &str, query: &Query) -> Result<Value, Failure> {
        self.json(self.send_get(Self::agent(Some(Duration::from_secs(30))), path, query)?)
    }

    /// An answer that does not end: its body is read line by line.
    pub(crate) fn stream(&self, path: &str, query: &Query) -> Result<impl std::io::BufRead + use<>, Failure> {
        let response = self.send_get(Self::agent(None), path, query)?;
        if !response.status().is_success() {
            self.json(response)?;
            return Err(Failure::Failed("the service did not give a stream".into()));
        }
        Ok(std::io::BufReader::new(response.into_body().into_reader()))
    }

    fn send_get(&self, agent: ureq::Agent, path: &str, query: &Query) -> Result<ureq::http::Response<ureq::Body>, Failure> {
        let mut request = agent.get(self.address(path));
        for (name, value) in query {
            request = request.query(*name, value);
        }
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        request.call().map_err(|error| self.unreachable(&error))
    }

    pub(crate) fn post(&self, path: &str, query: &Query) -> Result<Value, Failure> {
        let mut request = Self::agent(Some(Duration::from_secs(30))).post(self.address(path));
        for (name, value) in query {
            request = request.query(*name, value);
        }
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        self.json(request.send_empty().map_err(|error| self.unreachable(&error))?)
    }

    /// With a JSON body; for answers that take their time.
    pub(crate) fn post_json(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        let mut request = Self::agent(Some(Duration::from_secs(300))).post(self.address(path)).header("content-type", "application/json");
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        self.json(request.send(body.to_string()).map_err(|error| self.unreachable(&error))?)
    }

    fn unreachable(&self, error: &ureq::Error) -> Failure {
        Failure::Unreachable(format!(
            "cannot reach the service at {}: {error}. Is it running (`runguard serve`)? Another address goes with --url or RUNGUARD_URL",
            self.url
        ))
    }

    fn json(&self, mut response: ureq::http::Response<ureq::Body>) -> Result<Value, Failure> {
        let status = response.status().as_u16();
        let body = response.body_mut().with_config().limit(256 * 1024 * 1024).read_to_string().map_err(|error| self.unreachable(&error))?;
        let value: Value = serde_json::from_str(&body).map_err(|_| {
            Failure::Failed(format!("{} answered {status} with something that is not JSON; is it a RunGuard service?", self.url))
        })?;
        if (200..300).contains(&status) {
            return Ok(value);
        }
        let detail = value["detail"].as_str().unwrap_or("the service refused").to_owned();
        let problems: Vec<String> = value["errors"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|error| format!("\n  {}: {}", crate::output::text(&error["field"]), crate::output::text(&error["problem"])))
            .collect();
        let text = format!("{detail}{}", problems.concat());
        Err(match status {
            401 | 403 => Failure::Refused(format!("{text} (--key or RUNGUARD_KEY)")),
            404 => Failure::NotFound(text),
            400 | 422 => Failure::Usage(text),
            _ => Failure::Failed(format!("{status}: {text}")),
        })
    }
}

/// A name as one segment of a path.
pub(crate) fn segment(name: &str) -> String {
    name.bytes()
        .map(
            |byte| {
                if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }
            },
        )
        .collect()
}
