//! Talks to a running service.

use crate::failure::Failure;
use clap::Args;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

#[derive(Debug, Args)]
pub(crate) struct Client {
    /// The service
    #[arg(long, env = "RUNGUARD_URL", default_value = "http://127.0.0.1:8100", global = true)]
    url: String,
    /// API key, once keys were made
    #[arg(long, env = "RUNGUARD_KEY", hide_env_values = true, global = true)]
    key: Option<String>,
    /// Certificates to trust for https, in PEM, instead of those of the system
    #[arg(long, env = "RUNGUARD_CA", value_name = "FILE", global = true)]
    ca: Option<PathBuf>,
}

pub(crate) type Query = Vec<(&'static str, String)>;

type Response = ureq::http::Response<ureq::Body>;

/// Long enough for an answer that is looked up, or written down.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(30));
/// For answers that take their time.
const MUCH_PATIENCE: Option<Duration> = Some(Duration::from_secs(300));

impl Client {
    fn agent(&self, timeout: Option<Duration>) -> Result<ureq::Agent, Failure> {
        let trusted = match &self.ca {
            Some(file) => RootCerts::Specific(Arc::new(certificates(file)?)),
            None => RootCerts::PlatformVerifier,
        };
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(timeout)
            .timeout_connect(Some(Duration::from_secs(5)))
            .tls_config(TlsConfig::builder().root_certs(trusted).build());
        Ok(config.build().into())
    }

    pub(crate) fn address(&self, path: &str) -> String {
        format!("{}{path}", self.url.trim_end_matches('/'))
    }

    /// With the query and the key; what it sends is still to be said.
    fn prepared<Kind>(&self, request: ureq::RequestBuilder<Kind>, query: &Query) -> ureq::RequestBuilder<Kind> {
        let request = query.iter().fold(request, |request, (name, value)| request.query(*name, value));
        match &self.key {
            Some(key) => request.header("authorization", format!("Bearer {key}")),
            None => request,
        }
    }

    pub(crate) fn get(&self, path: &str, query: &Query) -> Result<Value, Failure> {
        let request = self.prepared(self.agent(PATIENCE)?.get(self.address(path)), query);
        self.json(self.reached(request.call())?)
    }

    /// An answer that does not end: its body is read line by line.
    pub(crate) fn stream(&self, path: &str, query: &Query) -> Result<impl std::io::BufRead + use<>, Failure> {
        let request = self.prepared(self.agent(None)?.get(self.address(path)), query);
        let response = self.reached(request.call())?;
        if !response.status().is_success() {
            self.json(response)?;
            return Err(Failure::Failed("the service did not give a stream".into()));
        }
        Ok(std::io::BufReader::new(response.into_body().into_reader()))
    }

    pub(crate) fn post(&self, path: &str, query: &Query) -> Result<Value, Failure> {
        let request = self.prepared(self.agent(PATIENCE)?.post(self.address(path)), query);
        self.json(self.reached(request.send_empty())?)
    }

    pub(crate) fn delete(&self, path: &str, query: &Query) -> Result<Value, Failure> {
        let request = self.prepared(self.agent(PATIENCE)?.delete(self.address(path)), query);
        self.json(self.reached(request.call())?)
    }

    /// With a JSON body.
    pub(crate) fn post_json(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        let request = self.agent(MUCH_PATIENCE)?.post(self.address(path)).header("content-type", "application/json");
        self.json(self.reached(self.prepared(request, &Query::new()).send(body.to_string()))?)
    }

    fn reached(&self, result: Result<Response, ureq::Error>) -> Result<Response, Failure> {
        result.map_err(|error| self.unreachable(&error))
    }

    fn unreachable(&self, error: &ureq::Error) -> Failure {
        let otherwise = "Is it running (`runguard serve`)? Another address goes with --url or RUNGUARD_URL";
        let advice = self.distrust(error).unwrap_or(otherwise);
        Failure::Unreachable(format!("cannot reach the service at {}: {error}. {advice}", self.url))
    }

    /// What to do when the service answers and is not believed to be it.
    fn distrust(&self, error: &ureq::Error) -> Option<&'static str> {
        let text = error.to_string();
        if text.contains("CaUsedAsEndEntity") {
            return Some(
                "The service shows the certificate of an authority as its own; it needs one that is not (`basicConstraints=CA:FALSE`), signed by an authority that --ca names",
            );
        }
        match (text.contains("certificate"), &self.ca) {
            (false, _) => None,
            (true, None) => Some(
                "It answers, but its certificate is not trusted here. A private authority is named with --ca FILE or RUNGUARD_CA (PEM), or added to the system's",
            ),
            (true, Some(_)) => {
                Some("It answers, but the certificates in the file of --ca (RUNGUARD_CA) do not vouch for it under this name")
            }
        }
    }

    fn json(&self, mut response: Response) -> Result<Value, Failure> {
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

fn certificates(file: &Path) -> Result<Vec<Certificate<'static>>, Failure> {
    let wrong = |problem: String| Failure::Usage(format!("--ca {}: {problem}", file.display()));
    let pem = std::fs::read(file).map_err(|error| wrong(error.to_string()))?;
    let mut found = Vec::new();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(certificate) = item.map_err(|error| wrong(error.to_string()))? {
            found.push(certificate);
        }
    }
    if found.is_empty() { Err(wrong("no certificate is in it; it must be PEM".into())) } else { Ok(found) }
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
