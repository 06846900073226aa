//! Which requests are a provider's, and where they go.

use crate::api::{self, Dialect, Kind};
use crate::bedrock;
use crate::refusal::Refusal;
use crate::upstream::{self, Address, Target};
use http::{Method, StatusCode};
use runguard_core::reason::GatewayReason;
use runguard_engine::settings::{GatewaySettings, Speaks};
use runguard_http::Problem;
use runguard_http::reply::Reply;

/// A request that belongs to a provider.
#[derive(Debug)]
pub struct Passing {
    /// The upstream's name.
    pub(crate) upstream: String,
    pub(crate) dialect: Dialect,
    pub(crate) kind: Kind,
    /// It may be asked with the operator's key, where it is free.
    pub(crate) is_everyones: bool,
    pub(crate) address: Address,
}

impl Passing {
    /// What the service's metrics call it, by how it is spoken to.
    pub fn route(&self) -> &'static str {
        match self.dialect {
            Dialect::OpenAi => "/openai/v1",
            Dialect::Anthropic => "/anthropic/v1",
            Dialect::Bedrock => "/bedrock",
        }
    }

    /// A mistake of ours in the provider's shape.
    pub fn problem(&self, problem: &Problem) -> Reply {
        Refusal::new(problem.status(), GatewayReason::NotTaken, problem.detail().to_owned()).into_reply(self.dialect)
    }
}

/// The provider's request that this is, if it is one: the first part of its path names the upstream.
pub fn find(settings: &GatewaySettings, method: &Method, path: &str, query: Option<&str>) -> Option<Passing> {
    if !settings.enabled {
        return None;
    }
    let path = path.strip_prefix('/')?;
    let (name, rest) = path.split_at(path.find('/').unwrap_or(path.len()));
    let upstream = settings.upstreams.get(name)?;
    let dialect = match upstream.speaks {
        Speaks::OpenAi => Dialect::OpenAi,
        Speaks::Anthropic => Dialect::Anthropic,
        Speaks::Bedrock => {
            let found = bedrock::find(upstream, method, rest);
            let (kind, address) =
                found.map_or((Kind::Unmetered, Address::Fixed(String::new())), |(kind, asked)| (kind, Address::Bedrock(asked)));
            let is_everyones = kind == Kind::Free;
            return Some(Passing { upstream: name.to_owned(), dialect: Dialect::Bedrock, kind, is_everyones, address });
        }
    };
    let Target { path, address } = upstream::target(upstream, rest, query)?;
    let is_odd = address.model().is_some_and(|model| !api::is_plain(&format!("/{model}")));
    let kind = if is_odd { Kind::Unmetered } else { api::kind_of(dialect, method, path) };
    Some(Passing { upstream: name.to_owned(), dialect, kind, is_everyones: api::is_everyones(method, path), address })
}

/// What is said to a question for a model that names no upstream, as when the variable of its client lacks a part: in the shape that the client
/// reads, with the address that is meant. Nothing where it is no such question.
pub fn astray(settings: &GatewaySettings, method: &Method, path: &str) -> Option<Reply> {
    let ends = |names: &[&str]| names.iter().any(|name| path.ends_with(name));
    let (dialect, speaks) = match () {
        () if *method != Method::POST => return None,
        () if ends(&["/chat/completions", "/responses", "/embeddings", "/completions"]) => (Dialect::OpenAi, Speaks::OpenAi),
        () if ends(&["/messages", "/messages/count_tokens"]) => (Dialect::Anthropic, Speaks::Anthropic),
        () if ends(&["/invoke", "/invoke-with-response-stream", "/converse", "/converse-stream"]) => (Dialect::Bedrock, Speaks::Bedrock),
        () => return None,
    };
    let shown: String = path.chars().take(100).collect();
    let version = if dialect == Dialect::OpenAi { "/v1" } else { "" };
    // The provider's own name first: most have no other.
    let own = ["openai", "anthropic", "bedrock"];
    let mut names: Vec<&str> =
        settings.upstreams.iter().filter(|(_, known)| known.speaks == speaks).map(|(name, _)| name.as_str()).collect();
    names.sort_by_key(|name| !own.contains(name));
    let message = match names.first() {
        Some(name) if settings.enabled => {
            format!("No model is asked by {shown}. The base URL of the client is this service's address with /{name}{version} behind it.")
        }
        Some(_) | None => format!(
            "No model is asked by {shown}: this service passes no such questions on. Start `runguard gateway`, or set `gateway.enabled`."
        ),
    };
    Some(Refusal::new(StatusCode::NOT_FOUND, GatewayReason::NotFound, message).into_reply(dialect))
}

#[cfg(test)]
mod tests {
    use super::*;
    use runguard_engine::settings::Upstream;

    #[test]
    fn the_first_part_of_a_path_names_the_upstream() {
        let mut settings = GatewaySettings { enabled: true, ..GatewaySettings::default() };
        settings.upstreams.insert("deepseek".into(), Upstream { url: "https://api.deepseek.com".into(), ..Upstream::default() });
        let post = |path: &str| find(&settings, &Method::POST, path, None);
        let found = post("/deepseek/v1/chat/completions").unwrap();
        assert_eq!((found.upstream.as_str(), found.kind), ("deepseek", Kind::Metered(api::Api::Chat)));
        assert_eq!(found.address.uri(), "https://api.deepseek.com/chat/completions");
        assert_eq!(post("/openai/v1/images/generations").unwrap().kind, Kind::Unmetered);
        let not_azure = post("/openai/deployments/gpt-4o-mini/chat/completions").unwrap();
        assert_eq!(not_azure.kind, Kind::Unmetered, "elsewhere the body may name a dearer one");
        let azure = Upstream { key_header: "api-key".into(), ..settings.upstreams["deepseek"].clone() };
        settings.upstreams.insert("azure".into(), azure);
        let post = |path: &str| find(&settings, &Method::POST, path, None);
        assert_eq!(post("/azure/openai/deployments/a/chat/completions").unwrap().kind, Kind::Metered(api::Api::Chat));
        assert_eq!(post("/azure/openai/deployments/a%2Fb/chat/completions").unwrap().kind, Kind::Unmetered);
        for path in ["/openaix", "/openai/v1x", "/guard/loop", "/", "", "/nobody/v1/chat/completions"] {
            assert!(post(path).is_none(), "{path}");
        }
        assert!(find(&GatewaySettings::default(), &Method::POST, "/openai/v1/chat/completions", None).is_none(), "not switched on");
    }

    #[tokio::test]
    async fn who_has_a_wrong_base_url_is_told_the_right_one() {
        use http_body_util::BodyExt as _;
        let on = GatewaySettings { enabled: true, ..GatewaySettings::default() };
        let told = async |settings: &GatewaySettings, path: &str| {
            let reply = astray(settings, &Method::POST, path)?;
            assert_eq!(reply.status(), StatusCode::NOT_FOUND, "{path}");
            let body = reply.into_body().collect().await.unwrap().to_bytes();
            Some(serde_json::from_slice::<serde_json::Value>(&body).unwrap())
        };
        for (path, member, base) in [
            ("/v1/chat/completions", "/error/message", "with /openai/v1 behind it"),
            ("/chat/completions", "/error/message", "with /openai/v1 behind it"),
            ("/openai/v1x/responses", "/error/message", "with /openai/v1 behind it"),
            ("/v1/messages", "/error/message", "with /anthropic behind it"),
            ("/model/anthropic.claude/converse", "/message", "with /bedrock behind it"),
        ] {
            let said = told(&on, path).await.unwrap();
            let message = said.pointer(member).unwrap().as_str().unwrap();
            assert!(message.contains(base) && message.contains(path), "{message}");
        }
        let off = told(&GatewaySettings::default(), "/v1/messages").await.unwrap();
        assert!(off["error"]["message"].as_str().unwrap().contains("runguard gateway"), "{off}");
        assert!(told(&on, "/guard/loop").await.is_none() && astray(&on, &Method::GET, "/v1/messages").is_none());
    }
}
