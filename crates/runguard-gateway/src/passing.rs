//! Which requests are a provider's, and where they go.

use crate::api::{self, Dialect, Kind};
use crate::bedrock;
use crate::refusal::Refusal;
use crate::upstream::{self, Address, Target};
use http::Method;
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
        let kind = problem.status();
        let said = problem.to_json();
        let text = ["detail", "title"].iter().find_map(|name| said.get(name)?.as_str()).unwrap_or("The request was refused.").to_owned();
        Refusal::new(kind, "runguard", text).into_reply(self.dialect)
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
}
