//! Where alerts go, and one attempt to give them to a receiver. What people read of them is made by [`notice`].
//!
//! The way to the receiver is narrow on purpose: the name is resolved by us and every address it has must be public, the
//! connection goes to exactly those addresses, redirects and proxies are not followed, and secrets come from the environment and
//! are in no error, log line or answer.

mod email;

use super::shown::ShownAlert;
use crate::clock::time_text;
use crate::settings::shown_variable;
use email::{MOST_RECEIVERS, Mailbox, Server, is_address};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{StatusCode, Url};
use runguard_core::limits::InvalidSetting;
use runguard_core::notice::{self, Message, Notice};
use runguard_core::shown::one_line;
use runguard_core::text::cut;
use runguard_http::address::is_public;
use runguard_http::again::retry_after;
use runguard_http::client::{WithoutCertificates, behind, causes, trust_system};
use runguard_insight::alert::Alert;
use rustls::ClientConfig;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// For one attempt, from the name to the end of the answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// What is read of a refusal.
const MOST_ANSWER_BYTES: usize = 2048;
const MOST_SHOWN_CHARS: usize = 200;
/// However long a receiver asks us to wait.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(6 * 3600);

/// Where mail is handed in: with STARTTLS, and with TLS from the first byte.
const SMTP_PORT: u16 = 587;
const SMTPS_PORT: u16 = 465;

const PAGERDUTY_URL: &str = "https://events.pagerduty.com/v2/enqueue";
/// Bytes of a signing secret, as Standard Webhooks has it.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum TargetKind {
    Slack,
    Pagerduty,
    Teams,
    Email,
    #[default]
    Webhook,
}

impl TargetKind {
    pub const ALL: [Self; 5] = [Self::Slack, Self::Pagerduty, Self::Teams, Self::Email, Self::Webhook];

    pub const fn code(self) -> &'static str {
        match self {
            Self::Slack => "slack",
            Self::Pagerduty => "pagerduty",
            Self::Teams => "teams",
            Self::Email => "email",
            Self::Webhook => "webhook",
        }
    }

    /// What the receiver takes: the least time between two messages.
    pub(super) const fn interval(self) -> Duration {
        match self {
            Self::Slack | Self::Teams | Self::Email => Duration::from_secs(1),
            Self::Pagerduty => Duration::from_millis(500),
            Self::Webhook => Duration::from_millis(100),
        }
    }

    /// People read these: many alerts at once become one message.
    pub(super) const fn digests(self) -> bool {
        match self {
            Self::Slack | Self::Teams | Self::Email => true,
            Self::Pagerduty | Self::Webhook => false,
        }
    }
}

/// One `[[alerts.target]]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetSettings {
    pub name: String,
    pub kind: TargetKind,
    pub url: Option<String>,
    /// Slack's and Teams' addresses are secrets: this names the variable that holds it.
    pub url_env: Option<String>,
    pub routing_key_env: Option<String>,
    pub secret_env: Option<String>,
    /// Of mail: who it is from and for, and how the server knows us.
    pub from: Option<String>,
    pub to: Vec<String>,
    pub username_env: Option<String>,
    pub password_env: Option<String>,
    pub allow_private: bool,
}

impl TargetSettings {
    /// What can be said without the environment: the key and what is wrong with it.
    pub(super) fn check(&self) -> Result<(), InvalidSetting> {
        let is_name_char = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if self.name.is_empty() || self.name.len() > 64 || !self.name.chars().all(is_name_char) {
            return Err(InvalidSetting::new("name", "must be 1 to 64 letters, digits, - _ or ."));
        }
        let variables = [
            ("url_env", &self.url_env),
            ("routing_key_env", &self.routing_key_env),
            ("secret_env", &self.secret_env),
            ("username_env", &self.username_env),
            ("password_env", &self.password_env),
        ];
        let is_variable = |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if let Some((key, _)) = variables.into_iter().find(|(_, name)| name.as_ref().is_some_and(|name| !is_variable(name))) {
            return Err(InvalidSetting::new(
                key,
                "must be the name of an environment variable, such as SLACK_WEBHOOK_URL; the secret itself stands in no file",
            ));
        }
        if self.url.is_some() && self.url_env.is_some() {
            return Err(InvalidSetting::new("url_env", "url and url_env say the same; keep one"));
        }
        if self.kind != TargetKind::Pagerduty && self.url.is_none() && self.url_env.is_none() {
            return Err(InvalidSetting::new("url", "is needed; or url_env, the variable that holds it"));
        }
        if self.kind == TargetKind::Pagerduty && self.routing_key_env.is_none() {
            return Err(InvalidSetting::new("routing_key_env", "is needed: the variable that holds the integration key"));
        }
        if self.kind == TargetKind::Webhook && self.secret_env.is_none() {
            return Err(InvalidSetting::new("secret_env", "is needed: the variable that holds the signing secret (whsec_…)"));
        }
        self.check_mail()?;
        self.url.as_deref().map_or(Ok(()), |url| self.parse(url).map(drop).map_err(|problem| InvalidSetting::new("url", problem)))
    }

    fn check_mail(&self) -> Result<(), InvalidSetting> {
        if self.kind != TargetKind::Email {
            let strange = [
                ("from", self.from.is_some()),
                ("to", !self.to.is_empty()),
                ("username_env", self.username_env.is_some()),
                ("password_env", self.password_env.is_some()),
            ];
            let found = strange.into_iter().find(|(_, is_there)| *is_there);
            return found.map_or(Ok(()), |(key, _)| Err(InvalidSetting::new(key, "is for targets of the kind `email`")));
        }
        let is_bad = |address: &String| !is_address(address);
        match &self.from {
            None => return Err(InvalidSetting::new("from", "is needed: the address that mails are from")),
            Some(from) if is_bad(from) => return Err(InvalidSetting::new("from", "must be a plain address such as runguard@example.com")),
            Some(_) => {}
        }
        if self.to.is_empty() || self.to.len() > MOST_RECEIVERS || self.to.iter().any(is_bad) {
            return Err(InvalidSetting::new(
                "to",
                format!("must be a list of 1 to {MOST_RECEIVERS} plain addresses such as ops@example.com"),
            ));
        }
        if self.username_env.is_some() != self.password_env.is_some() {
            return Err(InvalidSetting::new("password_env", "username_env and password_env go together"));
        }
        Ok(())
    }

    /// Says nothing of the address itself: it may be a secret.
    fn parse(&self, text: &str) -> Result<Url, String> {
        let url = Url::parse(text.trim()).map_err(|problem| format!("is no address: {problem}"))?;
        match url.scheme() {
            "smtp" | "smtps" if self.kind == TargetKind::Email => {}
            _ if self.kind == TargetKind::Email => return Err("must begin with smtps:// (TLS), or smtp:// (STARTTLS)".into()),
            "https" => {}
            "http" if self.allow_private => {}
            _ => return Err("must begin with https:// (http:// goes with allow_private = true)".into()),
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("must not carry a user or a password".into());
        }
        url.host_str().map(drop).ok_or("has no host")?;
        Ok(url)
    }
}

/// What a receiver checks us by.
enum Secret {
    None,
    RoutingKey(String),
    /// Each gives a signature: while keys change, the receiver knows one of them.
    Signing(Vec<Vec<u8>>),
    Mailbox(Box<Mailbox>),
}

/// A receiver.
pub struct Target {
    pub name: String,
    pub kind: TargetKind,
    url: Url,
    secret: Secret,
    allow_private: bool,
    client: reqwest::Client,
    /// Where people find the dashboard.
    dashboard: Option<Url>,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("name", &self.name).field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// One message: an alert, or several that came at once.
#[derive(Debug, Clone)]
pub struct AlertMessage {
    /// The same on every attempt.
    pub id: String,
    pub alerts: Vec<Alert>,
}

/// Whether another attempt makes sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    Later,
    Never,
}

/// Why a message did not arrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    pub again: Again,
    pub retry_after: Option<Duration>,
    pub message: String,
}

impl Failed {
    fn later(message: String) -> Self {
        Self { again: Again::Later, retry_after: None, message }
    }

    fn never(message: String) -> Self {
        Self { again: Again::Never, retry_after: None, message }
    }
}

impl Target {
    /// `environment` gives the value of a variable.
    pub fn new(settings: &TargetSettings, environment: &dyn Fn(&str) -> Option<String>) -> Result<Self, String> {
        let at = |problem: String| format!("alert target `{}`: {problem}", settings.name);
        settings.check().map_err(|invalid| at(invalid.to_string()))?;
        let variable = |key: &str, name: &Option<String>| match name {
            None => Ok(None),
            Some(name) => {
                let value = environment(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
                value.map(Some).ok_or_else(|| {
                    let name = shown_variable(name);
                    at(format!("the environment variable {name} (`{key}`) is not set; set it, or take the target out"))
                })
            }
        };
        let url = match (&settings.url, variable("url_env", &settings.url_env)?) {
            (_, Some(url)) => url,
            (Some(url), None) => url.clone(),
            (None, None) => PAGERDUTY_URL.to_owned(),
        };
        let secret = match settings.kind {
            TargetKind::Slack | TargetKind::Teams => Secret::None,
            TargetKind::Pagerduty => Secret::RoutingKey(variable("routing_key_env", &settings.routing_key_env)?.unwrap_or_default()),
            TargetKind::Email => {
                let [user, password] =
                    [variable("username_env", &settings.username_env)?, variable("password_env", &settings.password_env)?];
                Secret::Mailbox(Box::new(Mailbox {
                    from: settings.from.clone().unwrap_or_default(),
                    to: settings.to.clone(),
                    login: user.zip(password),
                    tls: Arc::new(trust(settings).map_err(at)?),
                }))
            }
            TargetKind::Webhook => {
                let secrets = variable("secret_env", &settings.secret_env)?.unwrap_or_default();
                Secret::Signing(secrets.split_whitespace().map(signing_key).collect::<Result<_, _>>().map_err(at)?)
            }
        };
        Ok(Self {
            url: settings.parse(&url).map_err(|problem| at(format!("its address {problem}")))?,
            client: client(settings).map_err(at)?,
            name: settings.name.clone(),
            kind: settings.kind,
            allow_private: settings.allow_private,
            secret,
            dashboard: None,
        })
    }

    /// With links to the dashboard at this address; without one there are none.
    #[must_use]
    pub fn linking(self, public_url: &str) -> Self {
        Self { dashboard: Url::parse(&format!("{}/", public_url.trim_end_matches('/'))).ok(), ..self }
    }

    /// Where more of it is seen: its session, its decisions, or all alerts.
    fn link(&self, message: &AlertMessage) -> Option<String> {
        let mut url = self.dashboard.clone()?;
        let query: Vec<(&str, &str)> = match message.alerts.as_slice() {
            [alert] if !alert.session.is_empty() => vec![("view", "session"), ("session", &alert.session), ("of", &alert.tenant)],
            [alert] if !alert.guard.is_empty() => {
                vec![("view", "decisions"), ("guard", &alert.guard), ("reason", &alert.reason), ("tenant", &alert.tenant)]
            }
            _ => vec![("view", "alerts")],
        };
        url.query_pairs_mut().extend_pairs(query.into_iter().filter(|(_, value)| !value.is_empty()));
        Some(url.into())
    }

    /// Who receives; the rest of the address may be a secret.
    pub fn host(&self) -> &str {
        self.url.host_str().unwrap_or_default()
    }

    /// What people are told, and where more of it is seen.
    fn told(&self, message: &AlertMessage) -> (Vec<Notice>, Option<String>) {
        (message.alerts.iter().map(|alert| notice(alert, &message.id)).collect(), self.link(message))
    }

    /// What is sent.
    pub fn body(&self, message: &AlertMessage) -> String {
        let (notices, link) = self.told(message);
        let told = &Message { id: &message.id, notices: &notices, link: link.as_deref() };
        let routing_key = match &self.secret {
            Secret::RoutingKey(key) => key,
            Secret::None | Secret::Signing(_) | Secret::Mailbox(_) => "",
        };
        let body = match self.kind {
            TargetKind::Slack => notice::slack(told),
            TargetKind::Teams => notice::teams(told),
            TargetKind::Email => return notice::email(told).1,
            TargetKind::Pagerduty => told.notices.first().map_or(Value::Null, |notice| notice::pagerduty(notice, routing_key, told.link)),
            TargetKind::Webhook => webhook(message, told.link),
        };
        body.to_string()
    }

    /// What goes with the body. Standard Webhooks has names for it; others take no harm.
    pub fn headers(&self, id: &str, now_seconds: i64, body: &str) -> Vec<(&'static str, String)> {
        let mut headers = vec![("content-type", "application/json".to_owned())];
        if let Secret::Signing(keys) = &self.secret {
            let signed = format!("{id}.{now_seconds}.{body}");
            let signatures: Vec<String> = keys.iter().map(|key| format!("v1,{}", signature(key, signed.as_bytes()))).collect();
            headers.extend([
                ("webhook-id", id.to_owned()),
                ("webhook-timestamp", now_seconds.to_string()),
                ("webhook-signature", signatures.join(" ")),
            ]);
        }
        headers
    }

    /// One attempt. Takes ten seconds at most, and reads little of what is answered.
    pub async fn send(&self, message: &AlertMessage, now_seconds: i64) -> Result<(), Failed> {
        if !self.allow_private
            && let Ok(address) = self.host().trim_matches(['[', ']']).parse::<IpAddr>()
            && !is_public(address)
        {
            return Err(Failed::never(private(self.host(), address)));
        }
        if let Secret::Mailbox(mailbox) = &self.secret {
            return self.mail(mailbox, message, now_seconds).await;
        }
        let body = self.body(message);
        let mut request = self.client.post(self.url.clone());
        for (name, value) in self.headers(&message.id, now_seconds, &body) {
            request = request.header(name, value);
        }
        let response = request.body(body).send().await.map_err(|error| self.unreached(error))?;
        let status = response.status();
        if status.is_success() { Ok(()) } else { Err(self.refused(response).await) }
    }

    async fn mail(&self, mailbox: &Mailbox, message: &AlertMessage, now_seconds: i64) -> Result<(), Failed> {
        let is_tls = self.url.scheme() == "smtps";
        let port = self.url.port().unwrap_or(if is_tls { SMTPS_PORT } else { SMTP_PORT });
        let server = Server { host: self.host(), port, is_tls, allow_private: self.allow_private };
        let (notices, link) = self.told(message);
        let told = Message { id: &message.id, notices: &notices, link: link.as_deref() };
        email::send(server, mailbox, &told, now_seconds).await
    }

    fn unreached(&self, error: reqwest::Error) -> Failed {
        // The address may be a secret.
        let error = error.without_url();
        if let Some(Private(refusal)) = behind(&error).find_map(|cause| cause.downcast_ref()) {
            return Failed::never(refusal.clone());
        }
        let what = if error.is_timeout() {
            format!("{} did not answer within {} s", self.host(), TIMEOUT.as_secs())
        } else if error.is_connect() {
            format!("cannot connect to {}", self.host())
        } else {
            format!("{} closed the connection without a proper answer", self.host())
        };
        Failed::later(format!("{what}: {}", shown(&causes(&error))))
    }

    async fn refused(&self, mut response: reqwest::Response) -> Failed {
        let status = response.status();
        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
        let retry_after = retry_after(header, SystemTime::now()).map(|wait| wait.min(LONGEST_RETRY_AFTER));
        let mut text = Vec::new();
        while let Ok(Some(piece)) = response.chunk().await {
            text.extend_from_slice(&piece[..piece.len().min(MOST_ANSWER_BYTES - text.len())]);
            if text.len() == MOST_ANSWER_BYTES {
                break;
            }
        }
        let said = shown(&String::from_utf8_lossy(&text));
        let advice = match status.as_u16() {
            300..=399 => " (redirects are not followed: give the final address)",
            401 | 403 => " (check the key or the secret)",
            404 | 410 => " (check the address)",
            _ => "",
        };
        let message = format!("{} answered {}{}{said}{advice}", self.host(), status.as_u16(), if said.is_empty() { "" } else { ": " });
        Failed { again: again(status), retry_after, message }
    }
}

/// A receiver that does not understand us will not understand us tomorrow.
fn again(status: StatusCode) -> Again {
    match status.as_u16() {
        408 | 409 | 421 | 423 | 425 | 429 => Again::Later,
        300..=499 => Again::Never,
        _ => Again::Later,
    }
}

/// One line without what could steer a terminal.
fn shown(text: &str) -> String {
    one_line(cut(text.trim(), MOST_SHOWN_CHARS))
}

fn private(host: &str, address: IpAddr) -> String {
    format!(
        "{host} is {address}, not an address of the public internet; nothing was sent. For a receiver of your own set allow_private = true"
    )
}

/// A receiver on this machine is reached without TLS: a system without certificates must not stand in its way.
fn trust(settings: &TargetSettings) -> Result<ClientConfig, String> {
    trust_system(if settings.allow_private { WithoutCertificates::TrustNobody } else { WithoutCertificates::Fail })
}

fn client(settings: &TargetSettings) -> Result<reqwest::Client, String> {
    let tls = trust(settings)?;
    let mut client = reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .referer(false)
        // Alerts are rare: a kept connection would be dead by the next, and each attempt shall see a checked address.
        .pool_max_idle_per_host(0)
        .timeout(TIMEOUT)
        .user_agent(concat!("runguard/", env!("CARGO_PKG_VERSION")));
    if !settings.allow_private {
        client = client.dns_resolver(Arc::new(PublicOnly));
    }
    client.build().map_err(|problem| format!("cannot set up the HTTP client: {problem}"))
}

/// Gives out addresses if all of a name's are public: one private address among public ones is no accident.
struct PublicOnly;

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Private(String);

fn all_public(host: &str, addresses: &[SocketAddr]) -> Result<(), Private> {
    addresses.iter().find(|address| !is_public(address.ip())).map_or(Ok(()), |address| Err(Private(private(host, address.ip()))))
}

impl Resolve for PublicOnly {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let addresses: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            all_public(name.as_str(), &addresses)?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

fn signing_key(secret: &str) -> Result<Vec<u8>, String> {
    use base64::Engine as _;
    let text = secret.strip_prefix("whsec_").unwrap_or(secret);
    let key =
        base64::engine::general_purpose::STANDARD.decode(text).map_err(|_| "its signing secret is not base64 (whsec_…)".to_owned())?;
    if SECRET_BYTES.contains(&key.len()) {
        return Ok(key);
    }
    let (least, most) = (SECRET_BYTES.start(), SECRET_BYTES.end());
    Err(format!("its signing secret has {} bytes; {least} to {most} are asked for (`openssl rand -base64 32`)", key.len()))
}

fn signature(key: &[u8], signed: &[u8]) -> String {
    use base64::Engine as _;
    use hmac::{KeyInit as _, Mac as _};
    // HMAC takes keys of any length.
    let Ok(mut mac) = hmac::Hmac::<sha2::Sha256>::new_from_slice(key) else { return String::new() };
    mac.update(signed);
    base64::engine::general_purpose::STANDARD.encode(mac.finalize().into_bytes())
}

/// What people are told of an alert.
fn notice(alert: &Alert, message_id: &str) -> Notice {
    let facts = [
        ("Tenant", &alert.tenant),
        ("Guard", &alert.guard),
        ("Reason", &alert.reason),
        ("Subject", &alert.subject),
        ("Session", &alert.session),
    ];
    let details =
        [("reason", &*alert.reason), ("session_id", &alert.session), ("decision_id", &alert.decision_id), ("message_id", message_id)];
    Notice {
        state: alert.state,
        severity: alert.severity,
        dedup_key: alert.dedup_key.clone(),
        title: alert.title.clone(),
        text: alert.text.clone(),
        time: time_text(alert.at.as_millis()),
        facts: facts.into_iter().map(|(name, value)| (name, value.clone())).collect(),
        source: if alert.tenant.is_empty() { "runguard".to_owned() } else { format!("runguard/{}", alert.tenant) },
        component: alert.subject.clone(),
        group: alert.guard.clone(),
        class: alert.rule.clone(),
        details: details.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect(),
    }
}

fn webhook(message: &AlertMessage, link: Option<&str>) -> Value {
    let Some(alert) = message.alerts.first() else { return Value::Null };
    let mut data = json!(ShownAlert::from(alert.clone()));
    data["id"] = json!(message.id);
    data["link"] = json!(link);
    json!({"type": format!("alert.{}", alert.state.code()), "timestamp": time_text(alert.at.as_millis()), "data": data})
}

#[cfg(test)]
mod tests;
