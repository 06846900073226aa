//! From settings to a provider: the one place that looks into the environment.
//!
//! Providers are given their keys, so that they can be tried without touching the environment of the process; here it is
//! asked through a function, for the same reason.

use super::Provider;
use super::anthropic::Anthropic;
use super::bedrock::{Access, Bedrock};
use super::openai::OpenAi;
use super::scripted::Scripted;
use crate::settings::{ProviderKind, ProviderSettings};
use std::sync::Arc;

/// The provider the settings name. The error says what is missing and where to put it.
pub fn connect(settings: &ProviderSettings) -> Result<Arc<dyn Provider>, String> {
    connect_with(settings, |name| std::env::var(name).ok())
}

fn connect_with(settings: &ProviderSettings, get: impl Fn(&str) -> Option<String>) -> Result<Arc<dyn Provider>, String> {
    let get = |name: &str| get(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
    match settings.kind {
        ProviderKind::Openai => Ok(Arc::new(OpenAi::new(settings, key(settings, "OPENAI_API_KEY", needs_openai_key(settings), get)?)?)),
        ProviderKind::Anthropic => Ok(Arc::new(Anthropic::new(settings, key(settings, "ANTHROPIC_API_KEY", Need::Required, get)?)?)),
        ProviderKind::Bedrock => {
            let mut settings = settings.clone();
            settings.region = settings.region.or_else(|| get("AWS_REGION")).or_else(|| get("AWS_DEFAULT_REGION"));
            let access = match settings.api_key_env.as_deref() {
                None => Access::from_environment(get)?,
                Some("") => {
                    return Err("`provider.api_key_env` is empty, and Bedrock takes no request without a key: leave it out".to_owned());
                }
                Some(name) => Access::bearer(get(name).ok_or_else(|| missing(name))?),
            };
            Ok(Arc::new(Bedrock::new(&settings, access)?))
        }
        ProviderKind::Scripted => {
            let script = settings.script.as_deref();
            let script = script.ok_or("`provider.script` is missing: a scripted provider needs the file with its answers")?;
            Ok(Arc::new(Scripted::load(script)?))
        }
    }
}

/// Whether a provider can be asked without a key.
#[derive(Debug, Clone, Copy)]
enum Need {
    Required,
    Optional,
}

/// Others who speak the same language may well ask for no key: Ollama, vLLM.
fn needs_openai_key(settings: &ProviderSettings) -> Need {
    match settings.base_url.as_deref() {
        Some(url) if !url.starts_with("https://api.openai.com") => Need::Optional,
        Some(_) | None => Need::Required,
    }
}

fn key(settings: &ProviderSettings, usual: &str, need: Need, get: impl Fn(&str) -> Option<String>) -> Result<Option<String>, String> {
    match (settings.api_key_env.as_deref(), need) {
        (Some(""), _) => Ok(None),
        (Some(name), _) => get(name).ok_or_else(|| missing(name)).map(Some),
        (None, Need::Optional) => Ok(get(usual)),
        (None, Need::Required) => get(usual).ok_or_else(|| missing(usual)).map(Some),
    }
}

fn missing(name: &str) -> String {
    format!(
        "the variable {name} is not set: put the provider's key there, name another variable in `provider.api_key_env`, or set it to \"\" to \
         send no key"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use std::path::Path;

    fn with(settings: &ProviderSettings, variables: &[(&str, &str)]) -> Result<String, String> {
        let get = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        connect_with(settings, get).map(|provider| format!("{provider:?}"))
    }

    fn key_with(settings: &ProviderSettings, need: Need, variables: &[(&str, &str)]) -> Result<Option<String>, String> {
        key(settings, "USUAL_KEY", need, |name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn every_sample_connects_with_its_variables() {
        let variables = [
            ("OPENAI_API_KEY", "k"),
            ("ANTHROPIC_API_KEY", "k"),
            ("DEEPSEEK_API_KEY", "k"),
            ("AWS_ACCESS_KEY_ID", "k"),
            ("AWS_SECRET_ACCESS_KEY", "k"),
        ];
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../agents");
        let mut without_variables = Vec::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let file = entry.unwrap().path();
            if file.extension().is_some_and(|extension| extension == "toml") {
                let settings = Settings::load(&file).unwrap().provider;
                with(&settings, &variables).unwrap_or_else(|problem| panic!("{}: {problem}", file.display()));
                if with(&settings, &[]).is_ok() {
                    without_variables.push(file.file_stem().unwrap().to_string_lossy().into_owned());
                }
            }
        }
        without_variables.sort();
        assert_eq!(without_variables, ["ollama", "scripted", "vllm"]);
    }

    #[test]
    fn a_key_is_taken_from_the_variable_that_is_named() {
        let mut settings = ProviderSettings::new(ProviderKind::Openai, "m");
        let usual = [("USUAL_KEY", "usual"), ("MY_KEY", "mine")];
        assert_eq!(key_with(&settings, Need::Required, &usual), Ok(Some("usual".to_owned())));
        assert_eq!(key_with(&settings, Need::Optional, &usual), Ok(Some("usual".to_owned())));
        assert_eq!(key_with(&settings, Need::Optional, &[]), Ok(None));
        assert!(key_with(&settings, Need::Required, &[]).unwrap_err().contains("the variable USUAL_KEY is not set"));
        settings.api_key_env = Some("MY_KEY".to_owned());
        assert_eq!(key_with(&settings, Need::Required, &usual), Ok(Some("mine".to_owned())));
        // Who names a variable means it, also where a key is not needed.
        assert!(key_with(&settings, Need::Optional, &usual[..1]).unwrap_err().contains("the variable MY_KEY is not set"));
        settings.api_key_env = Some(String::new());
        assert_eq!(key_with(&settings, Need::Required, &usual), Ok(None));
    }

    #[test]
    fn only_openai_itself_needs_a_key() {
        let mut settings = ProviderSettings::new(ProviderKind::Openai, "m");
        assert!(with(&settings, &[]).unwrap_err().contains("OPENAI_API_KEY"));
        assert!(with(&settings, &[("OPENAI_API_KEY", " ")]).unwrap_err().contains("OPENAI_API_KEY"));
        settings.base_url = Some("https://api.openai.com/v1/".to_owned());
        assert!(with(&settings, &[]).unwrap_err().contains("OPENAI_API_KEY"));
        settings.base_url = Some("http://localhost:11434/v1".to_owned());
        with(&settings, &[]).unwrap();
        let mut settings = ProviderSettings::new(ProviderKind::Anthropic, "m");
        settings.base_url = Some("http://localhost:1".to_owned());
        assert!(with(&settings, &[]).unwrap_err().contains("ANTHROPIC_API_KEY"));
    }

    #[test]
    fn bedrock_finds_its_region_and_its_keys() {
        let mut settings = ProviderSettings::new(ProviderKind::Bedrock, "amazon.nova-lite-v1:0");
        let keys = [("AWS_ACCESS_KEY_ID", "AKID"), ("AWS_SECRET_ACCESS_KEY", "s")];
        let regions = [("AWS_REGION", "eu-west-1"), ("AWS_DEFAULT_REGION", "eu-west-2")];
        let shows = |settings: &ProviderSettings, variables: &[(&str, &str)], expected: &str| {
            let shown = with(settings, &[&keys[..], variables].concat()).unwrap();
            assert!(shown.contains(expected), "{expected} in {shown}");
        };
        shows(&settings, &regions, "bedrock-runtime.eu-west-1.amazonaws.com");
        shows(&settings, &regions[1..], "bedrock-runtime.eu-west-2.amazonaws.com");
        assert!(with(&settings, &keys).unwrap_err().contains("`provider.region`"));
        assert!(with(&settings, &regions).unwrap_err().contains("AWS_BEARER_TOKEN_BEDROCK"));
        settings.region = Some("us-east-1".to_owned());
        shows(&settings, &regions, "bedrock-runtime.us-east-1.amazonaws.com");
        settings.api_key_env = Some("MY_BEDROCK_KEY".to_owned());
        shows(&settings, &[("MY_BEDROCK_KEY", "b")], "API key");
        assert!(with(&settings, &keys).unwrap_err().contains("MY_BEDROCK_KEY"));
        settings.api_key_env = Some(String::new());
        assert!(with(&settings, &keys).unwrap_err().contains("leave it out"));
    }

    #[test]
    fn a_script_that_is_not_there_is_named() {
        let mut settings = ProviderSettings::new(ProviderKind::Scripted, "m");
        assert!(with(&settings, &[]).unwrap_err().contains("`provider.script` is missing"));
        settings.script = Some("/nowhere/script.toml".into());
        assert!(with(&settings, &[]).unwrap_err().contains("/nowhere/script.toml"));
    }
}
