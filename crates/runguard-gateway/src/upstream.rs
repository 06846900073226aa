//! The way to a provider: where a path leads, which headers travel, and the connections that are kept.

use crate::api::{self, Dialect};
use crate::bedrock::{self, Signer};
use bytes::Bytes;
use http::HeaderMap;
use http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, FORWARDED, HOST, HeaderName, HeaderValue, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use http_body_util::Full;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use runguard_engine::settings::{LengthField, Speaks, Upstream};
use runguard_http::client::{WithoutCertificates, trust_system};
use std::borrow::Cow;
use std::cell::OnceCell;
use std::time::Duration;

pub(crate) type Connections = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// How long an idle connection to a provider is kept.
const IDLE: Duration = Duration::from_secs(60);
/// How long a provider may take to take a connection.
const CONNECT: Duration = Duration::from_secs(10);

/// Where a question goes, with the model in it where it stands there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// The same for every model.
    Fixed(String),
    /// Azure's: each model has a path of its own.
    Deployment {
        before: String,
        model: String,
        behind: String,
    },
    Bedrock(bedrock::BedrockPath),
}

impl Address {
    /// The model that it names; the body names it where the address does not.
    pub(crate) fn model(&self) -> Option<&str> {
        match self {
            Self::Fixed(_) => None,
            Self::Deployment { model, .. } => Some(model),
            Self::Bedrock(asked) => Some(&asked.model),
        }
    }

    pub(crate) fn uri(&self) -> Cow<'_, str> {
        match self {
            Self::Fixed(uri) => Cow::Borrowed(uri),
            Self::Deployment { before, model, behind } => Cow::Owned([before.as_str(), model, behind].concat()),
            Self::Bedrock(asked) => Cow::Owned(asked.uri()),
        }
    }

    /// The same question to another model; nothing where that one would not understand it.
    pub(crate) fn with_model(&self, model: &str) -> Option<Self> {
        match self {
            Self::Fixed(_) => Some(self.clone()),
            Self::Deployment { before, behind, .. } => api::is_plain(&format!("/{model}")).then(|| Self::Deployment {
                before: before.clone(),
                model: model.to_owned(),
                behind: behind.clone(),
            }),
            Self::Bedrock(asked) => asked.with_model(model).map(Self::Bedrock),
        }
    }
}

/// Where a request to the gateway goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target<'a> {
    /// Behind the version, which names what is asked for.
    pub(crate) path: &'a str,
    pub(crate) address: Address,
}

/// Whether a deployment in the path is what is billed. Elsewhere the body may say otherwise, and a cap would hold for another model.
fn is_azure(upstream: &Upstream) -> bool {
    upstream.speaks == Speaks::OpenAi && (!upstream.api_version.is_empty() || AZURE_KEY == upstream.key_header.as_str())
}

/// The member by which a chat with this model is bounded: as settings say; the newer one at `OpenAI` and Azure, and where the model is known to
/// want it wherever it is; else the older one, which is all that others read.
pub(crate) fn length_field(upstream: &Upstream, model: &str) -> &'static str {
    const WANT_NEWER: [&str; 5] = ["o1", "o3", "o4", "gpt-5", "gpt-6"];
    let host = upstream.url.split("://").nth(1).and_then(|rest| rest.split(['/', ':', '?']).next()).unwrap_or_default();
    let is_at = |domain: &str| host == domain || host.strip_suffix(domain).is_some_and(|before| before.ends_with('.'));
    let name = model.rsplit('/').next().unwrap_or(model);
    let is_newer = match upstream.length_field {
        LengthField::MaxTokens => false,
        LengthField::MaxCompletionTokens => true,
        LengthField::Auto => {
            is_at("openai.com") || is_at("azure.com") || is_azure(upstream) || WANT_NEWER.iter().any(|start| name.starts_with(start))
        }
    };
    if is_newer { api::NEWER_LENGTH } else { api::OLDER_LENGTH }
}

/// Where a path behind the name of an upstream leads; nothing where it leads nowhere.
pub(crate) fn target<'a>(upstream: &Upstream, rest: &'a str, query: Option<&str>) -> Option<Target<'a>> {
    let base = upstream.url.trim_end_matches('/');
    // Clients of Azure put it there by themselves.
    let rest = rest.strip_prefix("/openai").filter(|rest| rest.starts_with('/')).unwrap_or(rest);
    // Clients disagree on whether the version belongs to the address that they are given.
    let path = rest.strip_prefix("/v1").unwrap_or(rest);
    if !(path.is_empty() || path.starts_with('/')) {
        return None;
    }
    let mut query = query.map_or_else(String::new, |query| format!("?{query}"));
    if !upstream.api_version.is_empty() && !query.split(['?', '&']).any(|part| part.starts_with("api-version=")) {
        let joint = if query.is_empty() { '?' } else { '&' };
        query = format!("{query}{joint}api-version={}", upstream.api_version);
    }
    let version = match upstream.speaks {
        Speaks::Anthropic => "/v1",
        Speaks::OpenAi | Speaks::Bedrock => "",
    };
    if let Some((model, behind)) = path.strip_prefix("/deployments/").and_then(|rest| Some(rest.split_at(rest.find('/')?)))
        && is_azure(upstream)
        && !model.is_empty()
    {
        let before = format!("{}/deployments/", base.strip_suffix("/v1").unwrap_or(base));
        return Some(Target {
            path: behind,
            address: Address::Deployment { before, model: model.to_owned(), behind: format!("{behind}{query}") },
        });
    }
    Some(Target { path, address: Address::Fixed(format!("{base}{version}{path}{query}")) })
}

thread_local! {
    // One set a thread: a connection is driven by the thread that opened it, and so are those who wait for it.
    static CONNECTIONS: OnceCell<Connections> = const { OnceCell::new() };
}

/// The connections of this thread.
pub(crate) fn connections() -> Result<Connections, String> {
    CONNECTIONS.with(|kept| {
        if let Some(connections) = kept.get() {
            return Ok(connections.clone());
        }
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(CONNECT));
        let https = HttpsConnectorBuilder::new()
            .with_tls_config(trust_system(WithoutCertificates::TrustNobody)?)
            .https_or_http()
            .enable_all_versions()
            .wrap_connector(http);
        let connections = Client::builder(TokioExecutor::new()).pool_idle_timeout(IDLE).pool_timer(TokioTimer::new()).build(https);
        Ok(kept.get_or_init(|| connections).clone())
    })
}

/// Headers between two neighbours, which end here.
static OF_A_HOP: [HeaderName; 15] = [
    CONNECTION,
    // It belongs to the site that set it, which is here.
    COOKIE,
    // What is metered is what is asked: behind another method there could be another price.
    HeaderName::from_static("x-http-method-override"),
    HeaderName::from_static("x-http-method"),
    HeaderName::from_static("x-method-override"),
    HOST,
    CONTENT_LENGTH,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    EXPECT,
    HeaderName::from_static("http2-settings"),
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];
/// Headers that say who the caller is: with the operator's key it is the operator who asks.
static OF_THE_CALLER: [HeaderName; 8] = [
    FORWARDED,
    HeaderName::from_static("x-forwarded-for"),
    HeaderName::from_static("x-forwarded-host"),
    HeaderName::from_static("x-forwarded-proto"),
    HeaderName::from_static("x-real-ip"),
    HeaderName::from_static("true-client-ip"),
    HeaderName::from_static("openai-organization"),
    HeaderName::from_static("openai-project"),
];
/// Of them, those by which a caller with a key of its own chooses who is billed.
static OF_A_PROJECT: [HeaderName; 2] = [HeaderName::from_static("openai-organization"), HeaderName::from_static("openai-project")];
static API_KEY: HeaderName = HeaderName::from_static("x-api-key");
static AZURE_KEY: HeaderName = HeaderName::from_static("api-key");

/// The key that a request carries, wherever the clients of a provider put it.
pub(crate) fn presented_key(headers: &HeaderMap) -> Option<&str> {
    runguard_http::door::token(headers).or_else(|| headers.get(&AZURE_KEY)?.to_str().ok().map(str::trim))
}

/// Which of a key's projects a caller names, as far as that travels on.
pub(crate) fn project(headers: &HeaderMap, credentials: &Credentials<'_>) -> Vec<u8> {
    if !matches!(credentials, Credentials::Callers) || !OF_A_PROJECT.iter().any(|name| headers.contains_key(name)) {
        return Vec::new();
    }
    let travels = without_hop(headers);
    // No header has a line's end in it.
    let values = |name: &HeaderName| travels.get_all(name).iter().map(HeaderValue::as_bytes).collect::<Vec<_>>().join(&b',');
    OF_A_PROJECT.iter().map(values).collect::<Vec<_>>().join(&b'\n')
}

/// Whether a value has a key of ours anywhere, which is nobody's business elsewhere.
fn has_own_key(value: &HeaderValue) -> bool {
    let bytes = value.as_bytes();
    let begins_a_word =
        |at: usize| at.checked_sub(1).is_none_or(|before| !(bytes[before].is_ascii_alphanumeric() || b"_-".contains(&bytes[before])));
    memchr::memmem::find_iter(bytes, b"rg_").any(begins_a_word)
}

/// Who pays the provider.
#[derive(Debug, Clone)]
pub(crate) enum Credentials<'a> {
    /// The caller, with a key of its own that passes through.
    Callers,
    /// The operator, with a key in this header; without a name, in the one of the interface.
    Ours { key: String, header: &'a str },
    /// The operator, with a signature.
    Aws { signer: &'a Signer, region: &'a str },
}

/// The headers of a question on its way to the provider.
pub(crate) fn travelling(headers: &HeaderMap, dialect: Dialect, credentials: &Credentials<'_>) -> Result<HeaderMap, String> {
    let mut out = without_hop(headers);
    // What is packed cannot be metered.
    out.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    if !matches!(credentials, Credentials::Callers) {
        for name in &OF_THE_CALLER {
            out.remove(name);
        }
    }
    if let Credentials::Ours { key, header } = credentials {
        for name in [&AUTHORIZATION, &API_KEY, &AZURE_KEY] {
            out.remove(name);
        }
        let name = match (header.to_ascii_lowercase().as_str(), dialect) {
            ("", Dialect::OpenAi | Dialect::Bedrock) => AUTHORIZATION,
            ("", Dialect::Anthropic) => API_KEY.clone(),
            (name, _) => HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("`{name}` is no name of a header"))?,
        };
        let text = if name == AUTHORIZATION { format!("Bearer {key}") } else { key.clone() };
        let mut value = HeaderValue::from_str(&text).map_err(|_| "the provider's key has characters that no header can have".to_owned())?;
        value.set_sensitive(true);
        out.insert(name, value);
    }
    Ok(out)
}

/// Headers that are put in here, on the way there or back.
const MOST_OWN: usize = 9;

/// Headers without those that are between neighbours, and without ours.
pub(crate) fn without_hop(headers: &HeaderMap) -> HeaderMap {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let travels = |name: &HeaderName| {
        !OF_A_HOP.contains(name)
            && !named.contains(name)
            && !name.as_str().starts_with("proxy-")
            && !name.as_str().starts_with("x-runguard-")
    };
    let mut out = HeaderMap::with_capacity(headers.len() + MOST_OWN);
    for (name, value) in headers.iter().filter(|(name, value)| travels(name) && !has_own_key(value)) {
        out.append(name.clone(), value.clone());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upstream(url: &str, speaks: Speaks) -> Upstream {
        Upstream { url: url.into(), speaks, ..Upstream::default() }
    }

    #[test]
    fn a_chat_is_bounded_by_the_member_that_its_server_reads() {
        let field = |url: &str, model: &str| length_field(&upstream(url, Speaks::OpenAi), model);
        for (url, model, expected) in [
            ("https://api.openai.com/v1", "gpt-4o", api::NEWER_LENGTH),
            ("https://eu.api.openai.com/v1", "gpt-4o", api::NEWER_LENGTH),
            ("https://me.openai.azure.com/openai/v1", "gpt-4o", api::NEWER_LENGTH),
            ("https://api.deepseek.com/v1", "deepseek-chat", api::OLDER_LENGTH),
            ("http://127.0.0.1:11434/v1", "llama3", api::OLDER_LENGTH),
            ("https://notopenai.com/v1", "gpt-4o", api::OLDER_LENGTH),
            ("http://proxy/v1", "openai/gpt-5.1", api::NEWER_LENGTH),
            ("http://proxy/v1", "o3", api::NEWER_LENGTH),
        ] {
            assert_eq!(field(url, model), expected, "{url} {model}");
        }
        let said = Upstream { length_field: LengthField::MaxTokens, ..upstream("https://api.openai.com/v1", Speaks::OpenAi) };
        assert_eq!(length_field(&said, "o3"), api::OLDER_LENGTH);
    }

    #[test]
    fn a_project_is_one_that_the_provider_hears_of() {
        let of = |headers: &[(&'static str, &'static str)], credentials: &Credentials<'_>| {
            let pair = |(name, value): &(&'static str, &'static str)| (HeaderName::from_static(name), HeaderValue::from_static(value));
            project(&headers.iter().map(pair).collect(), credentials)
        };
        let callers = |headers: &[(&'static str, &'static str)]| of(headers, &Credentials::Callers);
        let (first, second) = (callers(&[("openai-project", "a")]), callers(&[("openai-project", "b")]));
        assert!(callers(&[]).is_empty() && first != second && first != callers(&[("openai-organization", "a")]));
        let ours = Credentials::Ours { key: "k".to_owned(), header: "" };
        assert_eq!(of(&[("openai-project", "a")], &ours), callers(&[]), "the operator's has its own");
        assert_ne!(callers(&[("openai-project", "a"), ("connection", "openai-project")]), first, "it goes no further");
    }

    #[test]
    fn a_path_leads_where_the_settings_say() {
        let openai = upstream("http://127.0.0.1:9000/v1/", Speaks::OpenAi);
        let found = target(&openai, "/v1/chat/completions", Some("a=1")).unwrap();
        assert_eq!((&*found.address.uri(), found.path), ("http://127.0.0.1:9000/v1/chat/completions?a=1", "/chat/completions"));
        let anthropic = upstream("https://api.anthropic.com", Speaks::Anthropic);
        for path in ["/v1/messages", "/messages"] {
            assert_eq!(target(&anthropic, path, None).unwrap().address.uri(), "https://api.anthropic.com/v1/messages");
        }
        assert_eq!(target(&openai, "/v1x", None), None);
    }

    #[test]
    fn a_deployment_of_azure_stands_in_the_path_and_the_version_in_the_query() {
        let azure = Upstream { api_version: "2024-10-21".into(), ..upstream("https://me.openai.azure.com/openai/v1", Speaks::OpenAi) };
        let found = target(&azure, "/openai/deployments/my-4o/chat/completions", Some("api-version=2025-01-01")).unwrap();
        assert_eq!((found.path, found.address.model()), ("/chat/completions", Some("my-4o")));
        let uri = "https://me.openai.azure.com/openai/deployments/my-4o/chat/completions?api-version=2025-01-01";
        assert_eq!(found.address.uri(), uri);
        assert_eq!(found.address.with_model("other").unwrap().uri(), uri.replace("my-4o", "other"));
        assert_eq!(found.address.with_model("../x"), None);
        let plain = target(&azure, "/v1/chat/completions", None).unwrap().address;
        assert_eq!((&*plain.uri(), plain.model()), ("https://me.openai.azure.com/openai/v1/chat/completions?api-version=2024-10-21", None));
    }

    #[test]
    fn what_is_between_neighbours_and_ours_does_not_travel() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("host", "127.0.0.1:8100"),
            ("connection", "keep-alive, x-private"),
            ("x-private", "1"),
            ("transfer-encoding", "chunked"),
            ("content-length", "3"),
            ("proxy-authorization", "x"),
            ("x-runguard-run", "job"),
            ("x-runguard-key", "rg_a_b"),
            ("authorization", "Bearer rg_a_b"),
            ("x-api-key", "rg_a_b"),
            ("anthropic-beta", "a"),
            ("x-stainless-lang", "python"),
            ("x-org", "org_1"),
            ("accept-encoding", "gzip"),
            ("cookie", "session=1"),
            ("x-http-method-override", "POST"),
            ("x-http-method", "POST"),
            ("x-method-override", "POST"),
            ("forwarded", "for=10.0.0.1"),
            ("x-forwarded-for", "10.0.0.1"),
            ("openai-organization", "org-callers"),
            ("openai-project", "proj-callers"),
            ("x-list", "a,rg_a_b"),
            ("x-words", "my key is rg_a_b"),
        ] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let ours = travelling(&headers, Dialect::Anthropic, &Credentials::Ours { key: "sk-provider".into(), header: "" }).unwrap();
        let mut names: Vec<&str> = ours.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["accept-encoding", "anthropic-beta", "x-api-key", "x-org", "x-stainless-lang"]);
        assert_eq!((ours["x-api-key"].to_str().unwrap(), ours["accept-encoding"].to_str().unwrap()), ("sk-provider", "identity"));
        let callers = travelling(&headers, Dialect::OpenAi, &Credentials::Callers).unwrap();
        assert!(callers.get("authorization").is_none(), "a key of ours goes nowhere");
        assert!(["cookie", "x-http-method-override", "x-http-method", "x-method-override"].iter().all(|name| callers.get(*name).is_none()));
        assert_eq!(callers["openai-project"], "proj-callers", "with a key of the caller's own it is the caller's to say");
        headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer sk-own"));
        assert_eq!(travelling(&headers, Dialect::OpenAi, &Credentials::Callers).unwrap()["authorization"], "Bearer sk-own");
        let with = |key: &str, header: &'static str| travelling(&headers, Dialect::OpenAi, &Credentials::Ours { key: key.into(), header });
        assert!(with("a\nb", "").is_err());
        let azure = with("k", "api-key").unwrap();
        assert_eq!((azure["api-key"].to_str().unwrap(), azure.get("authorization")), ("k", None));
    }
}
