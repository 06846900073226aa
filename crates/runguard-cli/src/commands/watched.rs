//! What `replay`, `explain` and `tune` ask alike: how runs are read, what is known of their end, and by what they are watched.

use crate::failure::Failure;
use crate::output;
use clap::{Args, ValueEnum};
use runguard_core::Span;
use runguard_core::detect::stall::Preset;
use runguard_core::money::NanoDollars;
use runguard_core::nearest;
use runguard_engine::settings;
use runguard_guards::policy::{SettingsProblem, Tree, merge, nest};
use runguard_replay::format::Format;
use runguard_replay::labels::Labels;
use runguard_replay::rules::{Caps, Guards, Presets, Watched};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// How runs are read, and what is known of their end.
#[derive(Debug, Args)]
pub(crate) struct ReadArgs {
    /// How the runs are written down; otherwise guessed from each file's content
    #[arg(long, value_parser = output::offered(Format::ALL.map(|format| (format.code(), format.about())), format_of))]
    pub(crate) format: Option<Format>,
    /// Which runs succeeded: a table (CSV) or JSON of run ids or paths and verdicts; a `report.json` beside runs is read anyway
    #[arg(long, value_name = "FILE")]
    labels: Vec<PathBuf>,
    /// How runs ended of which nothing says it
    #[arg(long, value_enum, value_name = "END")]
    assume: Option<Assumed>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Assumed {
    /// It did not do what it should
    Failed,
    /// It did
    Successful,
}

impl ReadArgs {
    pub(crate) fn labels(&self) -> Result<Labels, Failure> {
        let mut labels = Labels::beside_runs();
        labels.assumed = self.assume.map(|assumed| assumed == Assumed::Successful);
        for file in &self.labels {
            labels.add_file(file).map_err(Failure::Usage)?;
        }
        Ok(labels)
    }
}

/// The thresholds runs are watched by.
#[derive(Debug, Args)]
pub(crate) struct ThresholdArgs {
    /// Thresholds for a kind of agent; auto goes by the first calls of a run, SOURCE=PRESET is for one source
    #[arg(long, value_name = "PRESET", value_delimiter = ',', value_parser = output::offered(presets_about(), preset_of))]
    preset: Vec<PresetChoice>,
    /// A changed threshold; can be given several times (`stall.identical.stop=5`, `loop.repeats=4`)
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = setting)]
    set: Vec<(String, Value)>,
    /// A settings file, of the service (its `[guards]` count) or of an agent (its stall detector)
    #[arg(long, value_name = "FILE")]
    settings: Option<PathBuf>,
}

/// The guards and budgets runs go through.
#[derive(Debug, Args)]
pub(crate) struct GuardArgs {
    /// Guards the runs go through
    #[arg(long, value_name = "GUARD", value_delimiter = ',', default_value = "stall,loop", value_parser = output::offered(Watched::ALL.map(|guard| (guard.code(), guard.about())), guard_of))]
    guards: Vec<Watched>,
    /// Steps a run may make
    #[arg(long, value_name = "NUMBER")]
    max_steps: Option<u64>,
    /// Tokens a run may use
    #[arg(long, value_name = "NUMBER")]
    max_tokens: Option<u64>,
    /// Dollars a run may spend
    #[arg(long, value_name = "DOLLARS", value_parser = dollars)]
    max_usd: Option<NanoDollars>,
    /// Minutes a run may take
    #[arg(long, value_name = "MINUTES", value_parser = minutes)]
    max_minutes: Option<Span>,
}

#[derive(Debug, Clone)]
enum PresetChoice {
    Auto,
    Always(Preset),
    OfSource(String, Preset),
}

impl ThresholdArgs {
    /// What the settings file and `--set` say below `[guards]`.
    pub(crate) fn changes(&self) -> Result<Tree, Failure> {
        let mut tree = match &self.settings {
            Some(path) => {
                let text = settings::read_file(path).map_err(|error| Failure::Usage(error.to_string()))?;
                tree_of(path, &text).map_err(Failure::Usage)?
            }
            None => Tree::new(),
        };
        for (key, value) in &self.set {
            // Alone first, so that a mistake is known to stand here.
            let one = nest(&key.split('.').collect::<Vec<_>>(), value.clone())
                .and_then(|one| Guards::new(Presets::default(), &one, &[], Caps::default()).map(|_| one))
                .map_err(|problem| Failure::Usage(format!("--set {}: {}", problem.path.join("."), problem.problem)))?;
            merge(&mut tree, &one);
        }
        Ok(tree)
    }

    fn presets(&self) -> Presets {
        let mut presets = Presets::default();
        for choice in &self.preset {
            match choice {
                PresetChoice::Auto => presets.always = None,
                PresetChoice::Always(preset) => presets.always = Some(*preset),
                PresetChoice::OfSource(source, preset) => presets.by_source.push((source.clone(), *preset)),
            }
        }
        presets
    }

    /// The stall detector alone, without limits.
    pub(crate) fn stall(&self) -> Result<Guards, Failure> {
        guards(self.presets(), &self.changes()?, &[Watched::Stall], Caps::default())
    }
}

impl GuardArgs {
    pub(crate) fn guards(&self, thresholds: &ThresholdArgs, changes: &Tree) -> Result<Guards, Failure> {
        let caps = Caps { steps: self.max_steps, tokens: self.max_tokens, usd: self.max_usd, time: self.max_minutes };
        guards(thresholds.presets(), changes, &self.guards, caps)
    }
}

fn guards(presets: Presets, changes: &Tree, watched: &[Watched], caps: Caps) -> Result<Guards, Failure> {
    Guards::new(presets, changes, watched, caps).map_err(|problem| misset(&problem))
}

pub(crate) fn misset(problem: &SettingsProblem) -> Failure {
    Failure::Usage(format!("`{}`: {}", problem.path.join("."), problem.problem))
}

/// What a settings file says below `[guards]`; of an agent's, its stall detector.
fn tree_of(file: &Path, text: &str) -> Result<Tree, String> {
    match settings::check_text(file, text) {
        Ok(loaded) => Ok(loaded.settings.guard_tree("")),
        Err(of_service) => tree_of_agent(text)
            .map_err(|of_agent| format!("these are settings neither of the service ({of_service}) nor of an agent ({of_agent})")),
    }
}

#[cfg(feature = "agent")]
fn tree_of_agent(text: &str) -> Result<Tree, String> {
    let agent = runguard_agent::settings::Settings::from_toml(text).map_err(|error| error.to_string())?;
    Ok(Tree::from_iter([("stall".to_owned(), serde_json::json!(agent.guardrails.stall_settings()))]))
}

#[cfg(not(feature = "agent"))]
fn tree_of_agent(_: &str) -> Result<Tree, String> {
    Err("which this runguard cannot read: it was built without the feature `agent`".into())
}

/// One of the names, or what was meant.
pub(super) fn one_of<T>(
    text: &str,
    known: impl Iterator<Item = &'static str> + Clone,
    find: impl Fn(&str) -> Option<T>,
) -> Result<T, String> {
    find(text).ok_or_else(|| nearest::hint(text, known))
}

fn format_of(text: &str) -> Result<Format, String> {
    one_of(text, Format::ALL.into_iter().map(Format::code), Format::from_code)
}

fn presets() -> impl Iterator<Item = &'static str> + Clone {
    presets_about().map(|(name, _)| name)
}

fn presets_about() -> impl Iterator<Item = (&'static str, &'static str)> + Clone {
    Preset::ALL.into_iter().map(|preset| (preset.name(), preset.about())).chain([("auto", "told by the tools of a run's first calls")])
}

fn preset_of(text: &str) -> Result<PresetChoice, String> {
    let named = |name: &str| one_of(name, presets(), |name| Preset::from_name(name).ok());
    match text.split_once('=') {
        Some((source, name)) => Ok(PresetChoice::OfSource(source.to_owned(), named(name)?)),
        None if text == "auto" => Ok(PresetChoice::Auto),
        None => Ok(PresetChoice::Always(named(text)?)),
    }
}

fn guard_of(text: &str) -> Result<Watched, String> {
    one_of(text, Watched::ALL.into_iter().map(Watched::code), Watched::from_code)
}

fn dollars(text: &str) -> Result<NanoDollars, String> {
    NanoDollars::parse(text).map_err(|error| error.to_string())
}

fn minutes(text: &str) -> Result<Span, String> {
    let minutes: f64 = text.parse().map_err(|_| "must be a number of minutes, like 15 or 0.5".to_owned())?;
    Span::parse(&format!("{minutes}m"))
}

/// The value is read as JSON, else as text; the key is a path below `[guards]`.
fn setting(text: &str) -> Result<(String, Value), String> {
    let (key, value) = text.split_once('=').ok_or("must be KEY=VALUE, like stall.identical.stop=5")?;
    let key = key.trim();
    let key = key.strip_prefix("guards.").unwrap_or(key);
    if !key.contains('.') || key.split('.').any(str::is_empty) {
        return Err(format!("`{key}` names no setting of a guard; write it as in the settings file, like stall.identical.stop=5"));
    }
    Ok((key.to_owned(), serde_json::from_str(value).unwrap_or_else(|_| value.into())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn settings_are_paths_below_the_guards() {
        assert_eq!(setting("stall.identical.stop=5").unwrap(), ("stall.identical.stop".to_owned(), json!(5)));
        assert_eq!(setting("guards.loop.window=30m").unwrap(), ("loop.window".to_owned(), json!("30m")));
        assert!(setting("stall=5").unwrap_err().contains("names no setting"));
        assert!(setting("stall..stop=5").is_err() && setting("stall.identical.stop").is_err());
    }

    #[test]
    fn what_is_mistyped_is_guessed() {
        assert_eq!(guard_of("stal").unwrap_err(), "did you mean `stall`?");
        assert!(matches!(preset_of("mine=browser"), Ok(PresetChoice::OfSource(source, Preset::Browser)) if source == "mine"));
        assert!(preset_of("mine=broser").unwrap_err().contains("browser"));
        assert_eq!(minutes("1.5").unwrap(), Span::from_seconds(90));
        assert!(minutes("-1").is_err() && minutes("soon").is_err() && dollars("-1").is_err());
    }

    #[test]
    fn thresholds_come_from_settings_of_the_service_and_of_an_agent() {
        let file = Path::new("x.toml");
        let ladder = "identical = { steer = 4, block = 0, stop = 7 }\n";
        let service = tree_of(file, &format!("[guards.stall]\nmode = \"observe\"\n{ladder}")).unwrap();
        let agent = tree_of(file, &format!("[provider]\nkind = \"openai\"\nmodel = \"m\"\n[guardrails.stall]\n{ladder}")).unwrap();
        assert_eq!(service["stall"]["identical"], json!({"steer": 4, "block": 0, "stop": 7}));
        assert_eq!(service["stall"]["identical"], agent["stall"]["identical"]);
        assert_eq!(tree_of(file, "[log]\nretention_days = 3\n").unwrap().get("stall"), None);
        let neither = tree_of(file, "[guards.stall]\nidentical = 3\n").unwrap_err();
        assert!(neither.contains("x.toml:2") && neither.contains("nor of an agent"), "{neither}");
    }
}
