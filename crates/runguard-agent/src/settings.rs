//! Everything that can be set, with the value it has when nothing is said.

mod mistakes;

use runguard_core::detect::loops::MAX_CYCLE_LEN;
use runguard_core::detect::stall::{Preset, StallSettings};
use runguard_core::detect::tool_calls::TrackerSettings;
use runguard_core::money::NanoDollars;
use runguard_core::nearest;
use runguard_core::prices::Price;
use runguard_core::time::Span;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Shown beside the run.
    #[serde(default)]
    pub name: String,
    /// What the model is told before everything else.
    #[serde(default = "default_system")]
    pub system: String,
    pub provider: ProviderSettings,
    #[serde(default)]
    pub limits: Limits,
    #[serde(default)]
    pub context: ContextSettings,
    #[serde(default)]
    pub guardrails: GuardrailSettings,
    #[serde(default)]
    pub tools: ToolSettings,
    /// MCP servers whose tools the model may use.
    #[serde(default)]
    pub mcp: Vec<McpSettings>,
    /// Dollars for a million tokens, for models the table does not know or knows otherwise.
    #[serde(default)]
    pub prices: BTreeMap<String, Price>,
    #[serde(default)]
    pub sessions: SessionSettings,
    #[serde(default)]
    pub serve: ServeSettings,
}

fn default_system() -> String {
    "You are a careful assistant with tools. Work step by step, use a tool only when you need what it gives, never repeat a call that has already answered, and finish with a short, complete answer.".to_owned()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProviderKind {
    /// Chat completions, as OpenAI, DeepSeek, Ollama, vLLM and many others speak them.
    Openai,
    Anthropic,
    /// Converse, signed with AWS credentials.
    Bedrock,
    /// Answers from a file; for tests and demonstrations.
    Scripted,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProviderSettings {
    pub kind: ProviderKind,
    /// The model's name at the provider.
    pub model: String,
    /// The name its price is looked up under, when it is another one.
    #[serde(default)]
    pub price_as: Option<String>,
    /// Where the provider is, for OpenAI-compatible ones with `/v1`. Left out: the provider's own address.
    #[serde(default)]
    pub base_url: Option<String>,
    /// The variable that holds the key. Left out: `OPENAI_API_KEY`, `ANTHROPIC_API_KEY`; empty: no key is sent.
    #[serde(default)]
    pub api_key_env: Option<String>,
    /// Bedrock only. Left out: `AWS_REGION`, then `AWS_DEFAULT_REGION`.
    #[serde(default)]
    pub region: Option<String>,
    /// Scripted only: the file with the answers. In a settings file: seen from that file.
    #[serde(default)]
    pub script: Option<PathBuf>,
    /// The longest answer, in tokens. Lowered for each request to what can still be paid.
    #[serde(default = "ProviderSettings::default_max_tokens")]
    pub max_tokens: u32,
    /// The field it is sent in: newer OpenAI models take `max_completion_tokens`, others only `max_tokens`.
    #[serde(default = "ProviderSettings::default_max_tokens_field")]
    pub max_tokens_field: String,
    #[serde(default)]
    pub temperature: Option<f64>,
    #[serde(default = "yes")]
    pub streaming: bool,
    /// Further fields of the request body, as the provider documents them.
    #[serde(default)]
    pub extra: serde_json::Map<String, serde_json::Value>,
    /// Further requests after one that failed for a while.
    #[serde(default = "ProviderSettings::default_max_retries")]
    pub max_retries: u32,
    /// The first wait is up to this; each further up to twice the last.
    #[serde(default = "ProviderSettings::default_backoff")]
    pub backoff: Span,
    /// No wait is longer, whatever the provider asks for: then the run ends, and can be resumed.
    #[serde(default = "ProviderSettings::default_max_wait")]
    pub max_wait: Span,
    #[serde(default = "ProviderSettings::default_connect_timeout")]
    pub connect_timeout: Span,
    /// The longest silence, before the answer and within it.
    #[serde(default = "ProviderSettings::default_idle_timeout")]
    pub idle_timeout: Span,
    /// The longest one answer may take as a whole.
    #[serde(default = "ProviderSettings::default_request_timeout")]
    pub request_timeout: Span,
}

const fn yes() -> bool {
    true
}

impl ProviderSettings {
    const fn default_max_tokens() -> u32 {
        4096
    }
    fn default_max_tokens_field() -> String {
        "max_tokens".to_owned()
    }
    const fn default_max_retries() -> u32 {
        4
    }
    const fn default_backoff() -> Span {
        Span::from_millis(500)
    }
    const fn default_max_wait() -> Span {
        Span::from_seconds(60)
    }
    const fn default_connect_timeout() -> Span {
        Span::from_seconds(10)
    }
    const fn default_idle_timeout() -> Span {
        Span::from_seconds(60)
    }
    const fn default_request_timeout() -> Span {
        Span::from_seconds(600)
    }

    /// All else as it is when nothing is said.
    pub fn new(kind: ProviderKind, model: impl Into<String>) -> Self {
        Self {
            kind,
            model: model.into(),
            price_as: None,
            base_url: None,
            api_key_env: None,
            region: None,
            script: None,
            max_tokens: Self::default_max_tokens(),
            max_tokens_field: Self::default_max_tokens_field(),
            temperature: None,
            streaming: true,
            extra: serde_json::Map::new(),
            max_retries: Self::default_max_retries(),
            backoff: Self::default_backoff(),
            max_wait: Self::default_max_wait(),
            connect_timeout: Self::default_connect_timeout(),
            idle_timeout: Self::default_idle_timeout(),
            request_timeout: Self::default_request_timeout(),
        }
    }

    /// The name the price table is asked for.
    pub fn priced_as(&self) -> &str {
        self.price_as.as_deref().unwrap_or(&self.model)
    }
}

/// Where a run ends at the latest. They count over the whole session, also over several runs of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Questions to the model.
    pub max_steps: u32,
    /// Time at work; waiting for a person does not count. 0: none.
    pub timeout: Span,
    /// Tokens in and out. 0: none.
    pub token_budget: u64,
    /// Dollars. 0: none.
    pub cost_limit: f64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_steps: 50, timeout: Span::from_seconds(1800), token_budget: 1_000_000, cost_limit: 1.0 }
    }
}

impl Limits {
    /// `None` is no limit.
    pub fn cost(&self) -> Option<NanoDollars> {
        if self.cost_limit == 0.0 { None } else { NanoDollars::from_dollars(self.cost_limit).ok() }
    }

    pub fn tokens(&self) -> Option<u64> {
        (self.token_budget > 0).then_some(self.token_budget)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// The oldest messages go until the rest fits.
    SlidingWindow,
    /// The first message and the last ones stay, with a marker between.
    Compact,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ContextSettings {
    /// Tokens the conversation may have, about. 0: everything is always sent.
    pub window: u64,
    pub strategy: Strategy,
    /// `compact` only: how many messages stay at the end.
    pub keep_last: usize,
}

impl Default for ContextSettings {
    fn default() -> Self {
        Self { window: 100_000, strategy: Strategy::Compact, keep_last: 20 }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GuardrailSettings {
    /// How often an answer that was cut at `max_tokens` is continued. 0: never.
    pub max_tokens_recoveries: u32,
    /// The same step this often again ends the run. 0: never.
    pub max_repeated_tool_steps: u32,
    /// The same round of two to `max_cycle_steps` steps this often, whatever it gave, ends the run. 0: never.
    pub max_repeated_cycles: u32,
    pub max_cycle_steps: u32,
    /// Tokens that count as nearly used up.
    pub reserve_tokens: u64,
    /// The part of the cost limit that counts as nearly used up, in thousandths: what is between two of them is taken as the larger.
    pub reserve_cost_fraction: f64,
    /// Thresholds of the stall detector for a kind of agent: `coding`, `chatbot`, `browser`, `research`.
    pub preset: Preset,
    /// The stall detector's thresholds one by one, instead of a preset.
    pub stall: Option<StallSettings>,
    /// How often a tool may run in one turn, and which calls are the same.
    #[serde(deserialize_with = "over_the_defaults")]
    pub tool_calls: TrackerSettings,
    /// Tools whose same call may run again in one turn: what they look at changes by itself. The stall detector still
    /// compares what they give.
    pub repeatable: Vec<String>,
}

/// In a turn of an agent a tool may well run often (reading forty files is work): the number is a last resort here, and
/// what matters is the same call again.
const RUNS_PER_TURN: u32 = 200;

impl Default for GuardrailSettings {
    fn default() -> Self {
        Self {
            max_tokens_recoveries: 2,
            max_repeated_tool_steps: 3,
            max_repeated_cycles: 5,
            max_cycle_steps: 8,
            reserve_tokens: 512,
            reserve_cost_fraction: 0.1,
            preset: Preset::Coding,
            stall: None,
            tool_calls: default_tool_calls(),
            repeatable: vec!["shell".to_owned()],
        }
    }
}

fn default_tool_calls() -> TrackerSettings {
    TrackerSettings::default().limits(BTreeMap::new()).default_limit(RUNS_PER_TURN)
}

/// What is not said keeps the value it has here, which is not the one it has for a chatbot.
fn over_the_defaults<'de, D: Deserializer<'de>>(deserializer: D) -> Result<TrackerSettings, D::Error> {
    use serde::de::Error;
    let given = serde_json::Map::deserialize(deserializer)?;
    let mut merged = serde_json::to_value(default_tool_calls()).map_err(D::Error::custom)?;
    for (key, value) in given {
        merged[key] = value;
    }
    serde_json::from_value(merged).map_err(D::Error::custom)
}

impl GuardrailSettings {
    pub fn stall_settings(&self) -> StallSettings {
        self.stall.clone().unwrap_or_else(|| self.preset.settings())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ToolSettings {
    /// The folder files are read and written in; nothing outside it is touched.
    pub root: PathBuf,
    /// Which built-in tools there are. `shell` is not among them unless it is named.
    pub allow: Vec<String>,
    /// Longer results are cut, with a marker.
    pub max_result_bytes: usize,
    /// The longest one call may take.
    pub timeout: Span,
    /// Tools that run at the same time, at most.
    pub max_parallel: usize,
    /// Files and folders inside `root` that the file tools leave alone, beside these settings, the sessions, RunGuard's data and `.git`.
    pub protected: Vec<PathBuf>,
    /// Hosts `http_get` may ask although their address is private, such as `localhost:8080`.
    pub private_hosts: Vec<String>,
}

/// The settings that are read where none are named.
pub const SETTINGS_FILE: &str = "agent.toml";

/// What the model may use when nothing is said.
pub const DEFAULT_TOOLS: [&str; 4] = ["read_file", "write_file", "list_directory", "http_get"];
/// Everything that can be allowed.
pub const ALL_TOOLS: [&str; 5] = ["read_file", "write_file", "list_directory", "http_get", "shell"];

impl Default for ToolSettings {
    fn default() -> Self {
        Self {
            root: PathBuf::from("."),
            allow: DEFAULT_TOOLS.map(str::to_owned).to_vec(),
            max_result_bytes: 32 * 1024,
            timeout: Span::from_seconds(120),
            max_parallel: 8,
            protected: Vec::new(),
            private_hosts: Vec::new(),
        }
    }
}

/// A server to start (`command`) or to reach (`url`); one of the two.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct McpSettings {
    /// Stands before the names of its tools: `files` makes `files_read`.
    pub name: String,
    /// The program and its arguments.
    #[serde(default)]
    pub command: Vec<String>,
    /// Variables the program gets beside `PATH`, `HOME` and the like; the rest of our environment holds keys and is
    /// withheld. `$NAME` in a value is taken from ours, `$$` is a dollar.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// A streamable HTTP endpoint.
    #[serde(default)]
    pub url: Option<String>,
    /// Sent with every request to `url`; `$NAME` in a value is taken from the environment.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Only these tools of it; left out: all.
    #[serde(default)]
    pub allow: Option<Vec<String>>,
    #[serde(default = "McpSettings::default_timeout")]
    pub start_timeout: Span,
}

impl McpSettings {
    const fn default_timeout() -> Span {
        Span::from_seconds(30)
    }
}

/// What a saved record survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// The end of the process.
    #[default]
    Process,
    /// The end of the machine: every record waits for the disk.
    Power,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SessionSettings {
    pub folder: PathBuf,
    pub durability: Durability,
}

impl Default for SessionSettings {
    fn default() -> Self {
        Self { folder: PathBuf::from("runguard-sessions"), durability: Durability::default() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServeSettings {
    pub listen: String,
    /// The variable that holds the key callers must send. Without one only this machine is served.
    pub key_env: String,
    /// Runs under way at once; more are refused with 429.
    pub max_runs: usize,
    /// Certificate for https, PEM with its chain, and its key; both, or neither for plain http.
    pub tls_cert: PathBuf,
    pub tls_key: PathBuf,
}

impl Default for ServeSettings {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8101".to_owned(),
            key_env: "RUNGUARD_AGENT_KEY".to_owned(),
            max_runs: 16,
            tls_cert: PathBuf::new(),
            tls_key: PathBuf::new(),
        }
    }
}

/// Settings that cannot be used: which file, where, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    #[error("cannot read {file}: {problem}")]
    Unreadable { file: String, problem: String },
    /// All of them, each with its line or its key.
    #[error("{}", mistakes::listed(.file.as_deref(), .problems))]
    Wrong { file: Option<String>, problems: Vec<String> },
}

impl Settings {
    /// All else as it is when nothing is said.
    pub fn new(provider: ProviderSettings) -> Self {
        Self {
            name: String::new(),
            system: default_system(),
            provider,
            limits: Limits::default(),
            context: ContextSettings::default(),
            guardrails: GuardrailSettings::default(),
            tools: ToolSettings::default(),
            mcp: Vec::new(),
            prices: BTreeMap::new(),
            sessions: SessionSettings::default(),
            serve: ServeSettings::default(),
        }
    }

    pub fn load(file: &Path) -> Result<Self, SettingsError> {
        let name = file.display().to_string();
        let text = std::fs::read_to_string(file)
            .map_err(|problem| SettingsError::Unreadable { file: name.clone(), problem: problem.to_string() })?;
        let mut settings = Self::from_toml(&text).map_err(|problem| match problem {
            SettingsError::Wrong { problems, .. } => SettingsError::Wrong { file: Some(name), problems },
            SettingsError::Unreadable { .. } => problem,
        })?;
        // Settings and script are moved together, so the script is looked for beside the settings.
        if let (Some(script), Some(folder)) = (&mut settings.provider.script, file.parent()) {
            *script = folder.join(&*script);
        }
        // Kept with the session, so that it holds when the session is taken up without the file.
        settings.tools.protected.push(std::path::absolute(file).unwrap_or_else(|_| file.to_owned()));
        Ok(settings)
    }

    pub fn from_toml(text: &str) -> Result<Self, SettingsError> {
        let (settings, mut problems) = mistakes::read::<Self>(text);
        if let Some(settings) = &settings {
            settings.problems(&mut |key, problem| problems.push(mistakes::placed(text, key, problem)));
        }
        match settings {
            Some(settings) if problems.is_empty() => Ok(settings),
            _ => Err(SettingsError::Wrong { file: None, problems }),
        }
    }

    pub fn check(&self) -> Result<(), SettingsError> {
        let mut problems = Vec::new();
        self.problems(&mut |key, problem| problems.push(format!("`{key}` {problem}")));
        if problems.is_empty() { Ok(()) } else { Err(SettingsError::Wrong { file: None, problems }) }
    }

    /// Tells every value that cannot be meant.
    fn problems(&self, bad: &mut dyn FnMut(&str, &str)) {
        if self.provider.model.trim().is_empty() {
            bad("provider.model", "is empty: name the model");
        }
        if self.provider.max_tokens == 0 {
            bad("provider.max_tokens", "must be at least 1");
        }
        if self.provider.max_retries > 100 {
            bad("provider.max_retries", "must be at most 100");
        }
        if self.provider.kind == ProviderKind::Scripted && self.provider.script.is_none() {
            bad("provider.script", "is missing: a scripted provider needs the file with its answers");
        }
        if self.limits.max_steps == 0 {
            bad("limits.max_steps", "must be at least 1; there is no way to switch it off");
        }
        if self.limits.cost_limit != 0.0
            && let Err(problem) = NanoDollars::from_dollars(self.limits.cost_limit)
        {
            bad("limits.cost_limit", &format!("cannot be {}: {problem}", self.limits.cost_limit));
        }
        if self.context.window > 0 && self.context.strategy == Strategy::Compact && self.context.keep_last == 0 {
            bad("context.keep_last", "must be at least 1");
        }
        let guardrails = &self.guardrails;
        if !(0.0..=1.0).contains(&guardrails.reserve_cost_fraction) {
            bad("guardrails.reserve_cost_fraction", "must be from 0 to 1");
        }
        if guardrails.max_repeated_cycles == 1 || guardrails.max_repeated_cycles > 100 {
            bad("guardrails.max_repeated_cycles", "must be 0 (off) or from 2 to 100: one round is never a circle");
        }
        if guardrails.max_cycle_steps > MAX_CYCLE_LEN || guardrails.max_cycle_steps < 2 {
            bad("guardrails.max_cycle_steps", &format!("must be from 2 to {MAX_CYCLE_LEN}"));
        }
        if let Err(problem) = guardrails.stall_settings().check() {
            bad("guardrails.stall", &format!("is wrong: {problem}"));
        }
        if let Err(problem) = guardrails.tool_calls.check() {
            bad("guardrails.tool_calls", &format!("is wrong: {problem}"));
        }
        for unknown in self.tools.allow.iter().filter(|name| !ALL_TOOLS.contains(&name.as_str())) {
            bad("tools.allow", &format!("names '{unknown}', which is not built in; {}", nearest::hint(unknown, ALL_TOOLS.into_iter())));
        }
        if self.tools.max_result_bytes < 256 {
            bad("tools.max_result_bytes", "must be at least 256");
        }
        if self.tools.max_parallel == 0 {
            bad("tools.max_parallel", "must be at least 1");
        }
        for (number, server) in self.mcp.iter().enumerate() {
            if server.name.is_empty() {
                bad(&format!("mcp.{number}.name"), "is empty: it stands before the names of the server's tools");
            }
            if server.command.is_empty() == server.url.is_none() {
                bad(&format!("mcp.{number}"), &format!("'{}' needs either `command` or `url`", server.name));
            }
        }
    }
}
