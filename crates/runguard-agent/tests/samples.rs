//! The sample settings: every one loads, is priced, and `everything.toml` says all there is to set.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use runguard_agent::provider::connect;
use runguard_agent::settings::{ProviderKind, ProviderSettings, Settings};
use runguard_core::detect::tool_calls::TrackerSettings;
use runguard_core::prices::Prices;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../agents")
}

/// All sample files by name, in order.
fn samples() -> Vec<(String, Settings)> {
    let files = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = files.filter(|file| file.extension().is_some_and(|extension| extension == "toml")).collect();
    files.sort();
    let load = |file: &PathBuf| Settings::load(file).unwrap_or_else(|problem| panic!("{problem}"));
    files.iter().map(|file| (file.file_stem().unwrap().to_string_lossy().into_owned(), load(file))).collect()
}

#[test]
fn there_is_a_sample_for_every_provider() {
    let names: Vec<String> = samples().into_iter().map(|(name, _)| name).collect();
    assert_eq!(
        names,
        ["anthropic", "autonomous", "bedrock", "chatbot", "deepseek", "everything", "ollama", "openai", "scripted", "tight_budget", "vllm"]
    );
    for kind in [ProviderKind::Openai, ProviderKind::Anthropic, ProviderKind::Bedrock, ProviderKind::Scripted] {
        assert!(samples().iter().any(|(_, settings)| settings.provider.kind == kind), "{kind:?}");
    }
}

/// A cost limit without a price would be a promise that cannot be kept.
#[test]
fn every_sample_with_a_cost_limit_is_priced() {
    let mut priced = 0;
    for (name, settings) in samples() {
        let mut prices = Prices::bundled();
        for (model, price) in &settings.prices {
            prices.set(model, price.clone());
        }
        let model = settings.provider.priced_as();
        if settings.limits.cost().is_some() {
            assert!(prices.price(model).is_some(), "{name}: {model} has no price");
            priced += 1;
        }
    }
    assert_eq!(priced, 9);
}

/// What the samples are for: a run that warns early and costs little, and one that goes on for long and is held by its guards.
#[test]
fn the_samples_of_a_use_differ_from_the_defaults_where_it_matters() {
    let of = |wanted: &str| samples().into_iter().find(|(name, _)| name == wanted).unwrap().1;
    let usual = Settings::new(ProviderSettings::new(ProviderKind::Openai, "gpt-4o-mini"));
    let tight = of("tight_budget");
    assert!((0.15..=0.2).contains(&tight.guardrails.reserve_cost_fraction) && tight.limits.cost() < usual.limits.cost());
    assert!(tight.limits.token_budget < usual.limits.token_budget && tight.provider.max_tokens < usual.provider.max_tokens);
    let long = of("autonomous");
    assert!(long.limits.max_steps > usual.limits.max_steps && long.limits.timeout > usual.limits.timeout && long.limits.cost().is_some());
    assert_eq!(long.guardrails.max_repeated_tool_steps, 3, "nobody watches");
    let (chat, design) = (of("chatbot").guardrails.tool_calls, TrackerSettings::default());
    assert_eq!((&chat.limits, chat.default_limit), (&design.limits, design.default_limit), "as the design has them");
    assert!(usual.guardrails.tool_calls.limits.is_empty() && usual.guardrails.tool_calls.default_limit > 100, "work takes many calls");
}

#[test]
fn the_scripted_sample_can_be_asked() {
    let (_, settings) = samples().into_iter().find(|(name, _)| name == "scripted").unwrap();
    assert_eq!(connect(&settings.provider).unwrap().model(), settings.provider.model);
}

#[test]
fn every_sample_is_in_the_table() {
    let readme = std::fs::read_to_string(folder().join("README.md")).unwrap();
    for (name, _) in samples() {
        assert!(readme.contains(&format!("\n| `{name}.toml` |")), "agents/README.md does not list {name}.toml");
    }
}

#[test]
fn everything_says_the_defaults() {
    let file = folder().join("everything.toml");
    let mut settings = Settings::load(&file).unwrap();
    assert_eq!(std::mem::take(&mut settings.tools.protected), [file], "the tools leave the file alone that the settings are from");
    assert_eq!(settings, Settings::new(ProviderSettings::new(ProviderKind::Openai, "gpt-4o-mini")));
}

#[test]
fn everything_says_every_setting() {
    let text = uncommented(&std::fs::read_to_string(folder().join("everything.toml")).unwrap());
    // What is commented out must be right too.
    let settings = Settings::from_toml(&text).unwrap_or_else(|problem| panic!("{problem}"));
    let said: Value = serde_json::to_value(toml::from_str::<toml::Table>(&text).unwrap()).unwrap();
    let mut missing = Vec::new();
    compare(&serde_json::to_value(&settings).unwrap(), &said, "", &mut missing);
    assert!(missing.is_empty(), "agents/everything.toml does not show: {missing:?}");
    let unset = settings.guardrails.stall.as_ref().zip(settings.provider.temperature);
    assert!(unset.is_some() && settings.mcp.len() == 2 && settings.prices.len() == 1, "the examples were not read");
}

/// Takes the `#` from lines that are settings: `# key = …` and `# [table]`.
fn uncommented(text: &str) -> String {
    let is_key =
        |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    let line = |line: &str| match line.strip_prefix("# ") {
        Some(rest) if rest.starts_with('[') || rest.split_once(" = ").is_some_and(|(key, _)| is_key(key)) => format!("{rest}\n"),
        _ => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

/// Which keys of `all` are not in `said`. Entries of a list say together what one alone does not.
fn compare(all: &Value, said: &Value, path: &str, missing: &mut Vec<String>) {
    let joined = |list: &[Value]| Value::Object(list.iter().filter_map(Value::as_object).flat_map(Map::clone).collect());
    match (all, said) {
        (Value::Object(all), Value::Object(said)) => {
            for (key, value) in all {
                let path = format!("{path}.{key}");
                match said.get(key) {
                    Some(said) => compare(value, said, &path, missing),
                    None => missing.push(path),
                }
            }
        }
        (Value::Array(all), Value::Array(said)) => compare(&joined(all), &joined(said), path, missing),
        _ => {}
    }
}
