//! Talks to a running service.

use crate::failure::Failure;
use clap::Args;
use reqwest::blocking::{RequestBuilder, Response};
use reqwest::{Method, Url};
use runguard_http::client::{WithoutCertificates, causes, trust_only, trust_system};
use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The service that is asked where nobody says which.
pub(crate) const DEFAULT_URL: &str = "http://127.0.0.1:8100";

#[derive(Debug, Args)]
pub(crate) struct Client {
    /// The service
    #[arg(long, env = "RUNGUARD_URL", default_value = DEFAULT_URL, global = true)]
    url: String,
    /// API key, once keys were made
    #[arg(long, env = "RUNGUARD_KEY", hide_env_values = true, global = true)]
    key: Option<String>,
    /// Certificates to trust for https, in PEM, instead of those of the system
    #[arg(long, env = "RUNGUARD_CA", value_name = "FILE", global = true)]
    ca: Option<PathBuf>,
    /// The flag of the address.
    #[arg(skip = "--url")]
    flag: &'static str,
}

pub(crate) type Query = Vec<(&'static str, String)>;

/// Long enough for an answer that is looked up, or written down.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(30));
/// For answers that take their time.
const MUCH_PATIENCE: Option<Duration> = Some(Duration::from_secs(300));
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const MOST_ANSWER_BYTES: u64 = 256 * 1024 * 1024;

impl Client {
    /// For a command that has other flags for it.
    pub(crate) fn of(url: &str, key: Option<&str>, flag: &'static str) -> Self {
        Self { url: url.to_owned(), key: key.map(str::to_owned), ca: None, flag }
    }

    /// The certificates of a file, if one is named.
    pub(crate) fn trusting(self, ca: Option<PathBuf>) -> Self {
        Self { ca, ..self }
    }

    /// With the query and the key; what it sends is still to be said.
    fn request(&self, method: Method, path: &str, query: &Query, timeout: Option<Duration>) -> Result<RequestBuilder, Failure> {
        let mut url = Url::parse(&self.address(path)).map_err(|problem| self.unreachable(&problem.to_string()))?;
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let trust = match &self.ca {
            Some(file) => trust_authority(file)?,
            None => trust_system(WithoutCertificates::for_scheme(url.scheme())).map_err(|problem| self.unreachable(&problem))?,
        };
        let client = reqwest::blocking::Client::builder()
            .tls_backend_preconfigured(trust)
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(timeout)
            .build()
            .map_err(|error| self.unreachable(&causes(&error)))?;
        let request = client.request(method, url);
        Ok(match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        })
    }

    pub(crate) fn address(&self, path: &str) -> String {
        format!("{}{path}", self.url.trim_end_matches('/'))
    }

    pub(crate) fn get(&self, path: &str, query: &Query) -> Result<Value, Failure> {
        self.json(self.sent(self.request(Method::GET, path, query, PATIENCE)?)?)
    }

    /// An answer that does not end: its body is read line by line.
    pub(crate) fn stream(&self, path: &str, query: &Query) -> Result<impl BufRead + use<>, Failure> {
        let response = self.sent(self.request(Method::GET, path, query, None)?)?;
        if !response.status().is_success() {
            self.json(response)?;
            return Err(Failure::Failed("the service did not give a stream".into()));
        }
        Ok(BufReader::new(response))
    }

    pub(crate) fn post(&self, path: &str, query: &Query) -> Result<Value, Failure> {
        self.json(self.sent(self.request(Method::POST, path, query, PATIENCE)?.body(""))?)
    }

    pub(crate) fn delete(&self, path: &str, query: &Query) -> Result<Value, Failure> {
        self.json(self.sent(self.request(Method::DELETE, path, query, PATIENCE)?)?)
    }

    /// With a JSON body.
    pub(crate) fn post_json(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.post_json_to(path, &Query::new(), body)
    }

    /// The same with a query.
    pub(crate) fn post_json_to(&self, path: &str, query: &Query, body: &Value) -> Result<Value, Failure> {
        let request = self.request(Method::POST, path, query, MUCH_PATIENCE)?.header("content-type", "application/json");
        self.json(self.sent(request.body(body.to_string()))?)
    }

    fn sent(&self, request: RequestBuilder) -> Result<Response, Failure> {
        request.send().map_err(|error| self.unreachable(&causes(&error)))
    }

    fn unreachable(&self, problem: &str) -> Failure {
        let otherwise = format!("Is it running (`runguard serve`)? Another address goes with {} or RUNGUARD_URL", self.flag);
        let advice = self.distrust(problem).map_or(otherwise, str::to_owned);
        Failure::Unreachable(format!("cannot reach the service at {}: {problem}. {advice}", self.url))
    }

    /// What to do when the service answers and is not believed to be it.
    fn distrust(&self, problem: &str) -> Option<&'static str> {
        if problem.contains("CaUsedAsEndEntity") {
            return Some(
                "The service shows the certificate of an authority as its own; it needs one that is not (`basicConstraints=CA:FALSE`), signed by an authority that --ca names",
            );
        }
        match (problem.contains("certificate"), &self.ca) {
            (false, _) => None,
            (true, None) => Some(
                "It answers, but its certificate is not trusted here. A private authority is named with --ca FILE or RUNGUARD_CA (PEM), or added to the system's",
            ),
            (true, Some(_)) => {
                Some("It answers, but the certificates in the file of --ca (RUNGUARD_CA) do not vouch for it under this name")
            }
        }
    }

    fn json(&self, response: Response) -> Result<Value, Failure> {
        let status = response.status().as_u16();
        let mut body = Vec::new();
        response.take(MOST_ANSWER_BYTES).read_to_end(&mut body).map_err(|error| self.unreachable(&error.to_string()))?;
        let value: Value = serde_json::from_slice(&body).map_err(|_| {
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

/// The certificates of a file, and no others.
fn trust_authority(file: &Path) -> Result<ClientConfig, Failure> {
    let wrong = |problem: String| Failure::Usage(format!("--ca {}: {problem}", file.display()));
    let pem = std::fs::read(file).map_err(|error| wrong(error.to_string()))?;
    let found: Vec<_> = CertificateDer::pem_slice_iter(&pem).collect::<Result<_, _>>().map_err(|error| wrong(error.to_string()))?;
    if found.is_empty() {
        return Err(wrong("no certificate is in it; it must be PEM".into()));
    }
    trust_only(found).map_err(wrong)
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
