//! `[gateway]`: the door in front of the providers of models.

use runguard_core::time::Span;
use runguard_guards::policy::SettingsProblem;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatewaySettings {
    pub enabled: bool,
    /// By the first part of the path that leads there.
    pub upstreams: BTreeMap<String, Upstream>,
    pub circuits: bool,
    /// Models that are asked instead, by the one that cannot be.
    pub fallbacks: BTreeMap<String, Vec<String>>,
    pub max_body_mb: u32,
    pub patience: Span,
    pub when_caller_leaves: WhenCallerLeaves,
    pub on_stop: OnStop,
    pub on_loop: OnLoop,
}

/// A service that answers for models.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Upstream {
    /// Of Bedrock it may be empty: then it is Bedrock's of the region.
    pub url: String,
    pub speaks: Speaks,
    /// The environment variable with the key that the operator pays with.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key_env: String,
    /// The file with that key, instead.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key_file: String,
    /// The header it travels in; empty: the one of the interface.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key_header: String,
    /// Azure's `api-version`, for callers that send none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    /// The region that Bedrock is signed for; empty: as the address or the environment says.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub region: String,
    /// The member that bounds the length of an answer in a chat.
    #[serde(skip_serializing_if = "LengthField::is_auto")]
    pub length_field: LengthField,
    /// What a model is priced and logged as, by the name that callers send: deployments have names of their own.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub models: BTreeMap<String, String>,
}

/// The interface of an upstream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Speaks {
    #[default]
    OpenAi,
    Anthropic,
    Bedrock,
}

/// The member of a chat by which a server bounds its answer: not all read all of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LengthField {
    /// By the address and the name of the model.
    #[default]
    Auto,
    MaxTokens,
    MaxCompletionTokens,
}

impl LengthField {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
    const fn is_auto(&self) -> bool {
        matches!(self, Self::Auto)
    }
}

/// What becomes of an answer whose caller has gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WhenCallerLeaves {
    /// The provider is left too, and what came is billed.
    Close,
    /// It is read to its end, which says what it cost.
    Drain,
}

/// How a run hears that it is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnStop {
    /// With an error of the provider's shape, 402.
    Error,
    /// With a last answer that says why.
    Answer,
}

/// What is done before a run that goes round in circles is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnLoop {
    /// Nothing: the conversation is passed on as it is.
    Stop,
    /// The model is told so, behind the latest result of a tool.
    Nudge,
}

/// Paths of the service itself, which no upstream can have.
pub const OWN_PATHS: [&str; 8] = ["guard", "v1", "healthz", "readyz", "metrics", "openapi.json", "docs", "dashboard"];

/// A name is a part of a path, of a circuit's name and of the log.
const LONGEST_NAME: usize = 32;
/// Models that are asked one after the other for one question.
const MOST_FALLBACKS: usize = 8;

impl Default for GatewaySettings {
    fn default() -> Self {
        let upstream =
            |url: &str, speaks, key_env: &str| Upstream { url: url.into(), speaks, key_env: key_env.into(), ..Upstream::default() };
        Self {
            enabled: false,
            upstreams: BTreeMap::from([
                ("openai".to_owned(), upstream("https://api.openai.com/v1", Speaks::OpenAi, "OPENAI_API_KEY")),
                ("anthropic".to_owned(), upstream("https://api.anthropic.com", Speaks::Anthropic, "ANTHROPIC_API_KEY")),
                ("bedrock".to_owned(), upstream("", Speaks::Bedrock, "")),
            ]),
            circuits: true,
            fallbacks: BTreeMap::new(),
            max_body_mb: 32,
            patience: Span::from_seconds(10),
            when_caller_leaves: WhenCallerLeaves::Close,
            on_stop: OnStop::Error,
            on_loop: OnLoop::Stop,
        }
    }
}

impl GatewaySettings {
    /// The models that are asked instead of this one, in their order.
    pub fn fallbacks_of(&self, model: &str) -> &[String] {
        self.fallbacks.get(model).map_or(&[], Vec::as_slice)
    }

    pub(super) fn check(&self) -> Result<(), SettingsProblem> {
        let wrong = |path: &[&str], problem: &str| Err(SettingsProblem::new(&[&["gateway"], path].concat(), problem));
        for (name, upstream) in &self.upstreams {
            upstream.check(name)?;
        }
        for (model, fallbacks) in &self.fallbacks {
            let is_odd = |other: &String| other.trim().is_empty() || other == model;
            if fallbacks.len() > MOST_FALLBACKS || fallbacks.iter().any(is_odd) {
                return wrong(&["fallbacks", model], "must be a list of at most 8 names of other models, such as [\"gpt-4o-mini\"]");
            }
        }
        if !(1..=1024).contains(&self.max_body_mb) {
            return wrong(&["max_body_mb"], "must be from 1 to 1024");
        }
        if self.patience > Span::from_seconds(600) {
            return wrong(&["patience"], "must be at most 10m: clients give up long before");
        }
        Ok(())
    }
}

impl Upstream {
    fn check(&self, name: &str) -> Result<(), SettingsProblem> {
        let wrong = |key: &[&str], problem: &str| Err(SettingsProblem::new(&[&["gateway", "upstreams", name], key].concat(), problem));
        let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
        if name.is_empty() || name.len() > LONGEST_NAME || !name.bytes().all(is_part) {
            return wrong(&[], "must be named with at most 32 small letters, digits, - and _: it is a part of the path");
        }
        if OWN_PATHS.contains(&name) {
            return wrong(&[], "must have another name: this path is RunGuard's own");
        }
        let rest = self.url.strip_prefix("https://").or_else(|| self.url.strip_prefix("http://"));
        let is_address = rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/') && !rest.contains(['@', '?', '#', ' ']));
        let is_of_region = self.speaks == Speaks::Bedrock && self.url.is_empty();
        if !(is_address || is_of_region) {
            return wrong(&["url"], "must be an address such as https://api.example.com/v1, without a key in it");
        }
        if !self.region.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-') {
            return wrong(&["region"], "must be a region of AWS such as us-east-1");
        }
        if !self.key_header.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            return wrong(&["key_header"], "must be the name of a header such as api-key");
        }
        if !self.api_version.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)) {
            return wrong(&["api_version"], "must be a version such as 2024-10-21");
        }
        if let Some((model, _)) = self.models.iter().find(|(_, priced)| priced.trim().is_empty()) {
            return wrong(&["models", model], "must be the name of a model that has a price");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::settings::check_text;
    use std::path::Path;

    #[test]
    fn a_mistake_is_told_once() {
        let text = "[gateway.upstreams.x]\nurl = \"ftp://x\"\n[gateway.upstreams.y]\nurl = \"\"\n[gateway]\nmax_body_mb = 0\n";
        let error = check_text(Path::new("runguard.toml"), text).unwrap_err().to_string();
        for key in ["`gateway.upstreams.x.url`", "`gateway.upstreams.y.url`", "`gateway.max_body_mb`"] {
            assert_eq!(error.matches(key).count(), 1, "{error}");
        }
    }

    fn problem(text: &str) -> String {
        check_text(Path::new("runguard.toml"), text).map_or_else(|error| error.to_string(), |_| String::new())
    }

    #[test]
    fn upstreams_are_named_and_their_addresses_hold_no_keys() {
        let own = "[gateway.upstreams.azure]\nurl = \"https://me.openai.azure.com/openai/v1\"\nkey_header = \"api-key\"\nkey_env = \"AZURE_KEY\"\nmodels.\"my-4o\" = \"gpt-4o\"\n";
        let loaded = check_text(Path::new("runguard.toml"), own).unwrap();
        let names: Vec<&str> = loaded.settings.gateway.upstreams.keys().map(String::as_str).collect();
        assert_eq!(names, ["anthropic", "azure", "bedrock", "openai"], "those that are built in stay");
        for (text, says) in [
            ("[gateway.upstreams.v1]\nurl = \"http://a\"\n", "RunGuard's own"),
            ("[gateway.upstreams.Azure]\nurl = \"http://a\"\n", "small letters"),
            ("[gateway.upstreams.a]\nurl = \"\"\n", "must be an address"),
            ("[gateway.upstreams.a]\nurl = \"https://user:pass@a/v1\"\n", "without a key"),
            ("[gateway.upstreams.a]\nurl = \"http://a\"\nspeaks = \"gemini\"\n", "known are openai, anthropic"),
            ("[gateway.upstreams.a]\nurl = \"http://a\"\nkey = \"sk\"\n", "unknown field"),
            ("[gateway.fallbacks]\n\"a\" = [\"a\"]\n", "other models"),
            ("[gateway.fallbacks]\n\"a\" = \"b\"\n", "fallbacks"),
        ] {
            assert!(problem(text).contains(says), "{text}: {}", problem(text));
        }
    }
}
