//! Settings: defaults, one TOML file, the environment, flags; later ones win.
//!
//! The layers are merged as trees before they become types, and each layer remembers where its keys stand. So an
//! error names the file and the line, and `settings show` can say where every value came from.

mod example;
mod gateway;
mod layers;
mod secrets;
mod tables;
mod units;

pub use self::example::{example, toml_text};
pub use self::gateway::{GatewaySettings, LengthField, OWN_PATHS, OnLoop, OnStop, Speaks, Upstream, WhenCallerLeaves};
use self::layers::{Layer, environment_layer, file_layer, flag_layer, merged, price_of_operations, source_of};
pub use self::tables::{LogSettings, SERVICE_KEYS, ServerSettings, StoreSettings, TelemetrySettings, WhenAway};
pub use self::units::unit_of;
use crate::alerts::AlertSettings;
use runguard_guards::policy::{self, Policies, SettingsProblem, Tree, merge};
use runguard_insight::insight::digest::Savings;
pub use secrets::{shown, shown_address, shown_receiver, shown_variable};
use serde_json::Value;
use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The file that is read when none is named, if it is there.
pub const DEFAULT_FILE: &str = "runguard.toml";
pub const ENVIRONMENT_PREFIX: &str = "RUNGUARD_";

/// All settings in force.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    pub server: ServerSettings,
    pub store: StoreSettings,
    pub log: LogSettings,
    pub alerts: AlertSettings,
    pub savings: Savings,
    pub telemetry: TelemetrySettings,
    pub gateway: GatewaySettings,
    pub policies: Policies,
    pub history: Arc<History>,
}

/// What the settings were made of.
#[derive(Debug)]
pub struct History {
    /// Every value, as it may be shown, with where it came from.
    pub values: Vec<(Vec<String>, Value, SettingsSource)>,
    /// What is set below `guards` and `tenants`, without defaults: a default that is written down would hide what it inherits.
    tree: Tree,
}

impl Default for History {
    fn default() -> Self {
        Self::of(&[])
    }
}

impl History {
    fn of(layers: &[Layer]) -> Self {
        let (mut whole, mut tree) = (default_tree(), merged(layers));
        merge(&mut whole, &tree);
        tree.retain(|table, _| table == "guards" || table == "tenants");
        let mut values = Vec::new();
        flatten(&whole, &mut Vec::new(), &mut values);
        let source = |path: &Vec<String>| layers.iter().rev().find_map(|layer| layer.sources.get(path)).cloned();
        let values = values.into_iter().map(|(path, value)| {
            let source = source(&path).unwrap_or(SettingsSource::Default);
            let value = secrets::shown(&path, &value);
            (path, value, source)
        });
        Self { values: values.collect(), tree }
    }
}

impl Settings {
    /// The keys that the service was started with and that these settings change: only a restart takes them over.
    pub(crate) fn changed_since_start(&self, started_with: &Self) -> Vec<String> {
        let tables = |settings: &Self| {
            let Self { server, store, log, telemetry, gateway, .. } = settings;
            serde_json::json!({"server": server, "store": store, "log": log, "telemetry": telemetry, "gateway": gateway})
        };
        let (before, now) = (tables(started_with), tables(self));
        let differs = |(table, key, _, live): &&(&str, &str, &str, bool)| !live && before[table][key] != now[table][key];
        let mut keys: Vec<String> = SERVICE_KEYS.iter().filter(differs).map(|(table, key, ..)| format!("{table}.{key}")).collect();
        // Targets and rules are lists, not keys.
        if self.alerts != started_with.alerts {
            keys.push("alerts".to_owned());
        }
        keys
    }

    /// Of what all nodes of a cluster should have alike. Where a node listens and keeps its files is its own business.
    pub fn fingerprint(&self) -> u32 {
        const TABLES: [&str; 4] = ["alerts", "guards", "savings", "tenants"];
        const KEYS: [[&str; 2]; 4] =
            [["log", "retention_days"], ["log", "store_text"], ["store", "budget_when_away"], ["store", "flow_when_away"]];
        let is_common = |path: &[String]| {
            path.first().is_some_and(|table| TABLES.contains(&table.as_str())) || KEYS.iter().any(|key| path.iter().eq(key.iter()))
        };
        let values = self.history.values.iter().filter(|(path, ..)| is_common(path));
        let mut lines: Vec<String> = values.map(|(path, value, _)| format!("{}={value}", path.join("."))).collect();
        lines.sort_unstable();
        short_hash(&lines)
    }

    /// What is set under `[guards]` for a tenant.
    pub fn guard_tree(&self, tenant: &str) -> Tree {
        let table = |value: Option<&Value>| value.and_then(Value::as_object).cloned().unwrap_or_default();
        let mut guards = table(self.history.tree.get("guards"));
        let own = self.history.tree.get("tenants").and_then(|tenants| tenants.get(tenant)).and_then(|tenant| tenant.get("guards"));
        merge(&mut guards, &table(own));
        guards
    }
}

/// Tells lists apart.
pub(crate) fn short_hash(lines: &[String]) -> u32 {
    xxhash_rust::xxh3::xxh3_64(lines.join("\n").as_bytes()) as u32
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingsSource {
    Default,
    File { path: PathBuf, line: usize },
    Environment(String),
    Flag(String),
}

impl SettingsSource {
    /// What is in no file stands before it.
    fn line(&self) -> usize {
        match self {
            Self::File { line, .. } => *line,
            Self::Default | Self::Environment(_) | Self::Flag(_) => 0,
        }
    }

    /// Short enough for an error: a variable's name may be as long as its value.
    fn cut(self) -> Self {
        const MOST_CHARS: usize = 80;
        match self {
            Self::Environment(name) if name.chars().count() > MOST_CHARS => {
                Self::Environment(name.chars().take(MOST_CHARS).chain(['…']).collect())
            }
            Self::Default | Self::File { .. } | Self::Environment(_) | Self::Flag(_) => self,
        }
    }
}

impl fmt::Display for SettingsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingsError {
    pub source: SettingsSource,
    pub key: String,
    pub problem: String,
    /// What is wrong besides.
    pub more: Vec<Self>,
}

impl SettingsError {
    pub(crate) fn new(source: SettingsSource, key: String, problem: String) -> Self {
        Self { source, key, problem, more: Vec::new() }
    }
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.source != SettingsSource::Default {
            write!(f, "{}: ", self.source)?;
        }
        if !self.key.is_empty() {
            write!(f, "`{}`: ", self.key)?;
        }
        f.write_str(&self.problem)?;
        self.more.iter().try_for_each(|other| write!(f, "\n{other}"))
    }
}

impl std::error::Error for SettingsError {}

/// Settings with the history of every value.
#[derive(Debug)]
pub struct Loaded {
    pub settings: Settings,
    pub file: Option<PathBuf>,
}

/// What settings are made of.
#[derive(Debug, Clone, Default)]
pub struct Origin {
    /// Named with `--config`: must be there.
    pub file: Option<PathBuf>,
    pub environment: Vec<(String, String)>,
    /// Path, value, flag.
    pub flags: Vec<(Vec<&'static str>, Value, &'static str)>,
}

impl Origin {
    fn file_to_read(&self) -> Option<PathBuf> {
        self.file.clone().or_else(|| Some(PathBuf::from(DEFAULT_FILE)).filter(|path| path.exists()))
    }

    pub fn load(&self) -> Result<Loaded, SettingsError> {
        let file = self.file_to_read();
        let mut layers = Vec::new();
        if let Some(path) = &file {
            layers.push(file_layer(path, &read_file(path)?)?);
        }
        layers.push(environment_layer(&self.environment)?);
        layers.push(flag_layer(&self.flags)?);
        Loaded::build(layers, file)
    }
}

/// The text of a settings file. One that says nothing is refused: it was emptied by a mistake, or is being written, and taking
/// it over would set every limit back to its default.
pub fn read_file(path: &Path) -> Result<String, SettingsError> {
    let wrong = |problem: String| SettingsError::new(SettingsSource::Default, String::new(), problem);
    let text = std::fs::read_to_string(path).map_err(|error| {
        wrong(format!("cannot read the settings file {}: {error}. `runguard settings example` prints one to start from", path.display()))
    })?;
    let says_something = |line: &str| !matches!(line.trim_start_matches('\u{feff}').trim().chars().next(), None | Some('#'));
    if text.lines().any(says_something) {
        return Ok(text);
    }
    Err(wrong(format!(
        "the settings file {} is empty: no key stands in it. If all defaults are meant, have no file: leave out --config and RUNGUARD_CONFIG, or remove {DEFAULT_FILE}; a service that runs with a file needs a restart for that. `runguard settings example` prints one to start from",
        path.display()
    )))
}

/// Checks the text of a settings file as if it were in force alone.
pub fn check_text(path: &Path, text: &str) -> Result<Loaded, SettingsError> {
    Loaded::build(vec![file_layer(path, text)?], Some(path.to_owned()))
}

impl Loaded {
    fn build(mut layers: Vec<Layer>, file: Option<PathBuf>) -> Result<Self, SettingsError> {
        layers.insert(0, price_of_operations(&layers));
        let tree = merged(&layers);
        match typed(&tree) {
            Ok(settings) => Ok(Self { settings: Settings { history: Arc::new(History::of(&layers)), ..settings }, file }),
            Err(first) => {
                let said = |problem: SettingsProblem| {
                    SettingsError::new(source_of(&layers, &problem.path), problem.path.join("."), problem.problem)
                };
                let mut more: Vec<SettingsError> = others(tree, &first).into_iter().map(said).collect();
                let mut first = said(first);
                // In the order of the file.
                more.sort_by_key(|problem| problem.source.line());
                if let Some(earliest) = more.first_mut().filter(|earliest| earliest.source.line() < first.source.line()) {
                    std::mem::swap(earliest, &mut first);
                    more.sort_by_key(|problem| problem.source.line());
                }
                Err(SettingsError { more, ..first })
            }
        }
    }

    /// Every value in force: key, value, where it came from.
    pub fn values(&self) -> Vec<(String, Value, SettingsSource)> {
        self.settings.history.values.iter().map(|(path, value, source)| (path.join("."), value.clone(), source.clone())).collect()
    }
}

/// What is wrong besides a first mistake: the tree is read again without what was wrong, and without what hangs together with it,
/// which would be blamed for what it is missing.
fn others(mut tree: Tree, first: &SettingsProblem) -> Vec<SettingsProblem> {
    const MOST: usize = 20;
    let mut found: Vec<SettingsProblem> = Vec::new();
    let mut wrong = first.path.clone();
    // Each time something is left out, so it ends.
    while found.len() < MOST && leave_out(&mut tree, &wrong) {
        match typed(&tree) {
            Ok(_) => break,
            Err(problem) => {
                wrong.clone_from(&problem.path);
                // What is still wrong without it is wrong because it is missing.
                if found.iter().chain([first]).all(|known| (&known.path, &known.problem) != (&problem.path, &problem.problem)) {
                    found.push(problem);
                }
            }
        }
    }
    found
}

/// Removes what stands at the path, or nearest above it; whether something was there.
fn leave_out(tree: &mut Tree, path: &[String]) -> bool {
    let parts: Vec<&str> = path.iter().map(String::as_str).collect();
    let together: &[&[&str]] = match parts.as_slice() {
        // Rules name targets.
        ["alerts", ..] => &[&["alerts"]],
        ["server", "tls_cert" | "tls_key", ..] => &[&["server", "tls_cert"], &["server", "tls_key"]],
        // A shared log needs shared states.
        ["store"] => &[&["store"], &["log", "database"]],
        ["store", "state" | "prefix" | "partitions", ..] => &[&["store", "state"], &["log", "database"]],
        ["log", "database", ..] => &[&["log", "database"]],
        _ => &[],
    };
    let mut is_changed = false;
    for path in together.iter().copied().chain([parts.as_slice()]) {
        is_changed |= (1..=path.len()).rev().any(|length| remove(tree, &path[..length]));
    }
    is_changed
}

fn remove(tree: &mut Tree, path: &[&str]) -> bool {
    match path {
        [] => false,
        [last] => tree.remove(*last).is_some(),
        [first, rest @ ..] => tree.get_mut(*first).and_then(Value::as_object_mut).is_some_and(|inner| remove(inner, rest)),
    }
}

fn flatten(tree: &Tree, path: &mut Vec<String>, out: &mut Vec<(Vec<String>, Value)>) {
    for (key, value) in tree {
        path.push(key.clone());
        match value {
            Value::Object(inner) if !inner.is_empty() => flatten(inner, path, out),
            _ => out.push((path.clone(), value.clone())),
        }
        path.pop();
    }
}

fn default_tree() -> Tree {
    let to_value = |value: Result<Value, serde_json::Error>| value.unwrap_or(Value::Null);
    let mut guards = Tree::new();
    for section in policy::sections() {
        let mut table = section.defaults.clone();
        table.insert("mode".into(), "enforce".into());
        let rules: Tree = runguard_core::Reason::of(section.guard)
            .filter(|reason| policy::default_rule_mode(*reason) != runguard_guards::Mode::Enforce)
            .map(|reason| (reason.code().to_owned(), serde_json::json!(policy::default_rule_mode(reason))))
            .collect();
        if !rules.is_empty() {
            table.insert("rules".into(), Value::Object(rules));
        }
        let nested = section.path.iter().rev().fold(Value::Object(table), |inner, part| serde_json::json!({ *part: inner }));
        if let Value::Object(nested) = nested {
            merge(&mut guards, &nested);
        }
    }
    Tree::from_iter([
        ("server".to_owned(), to_value(serde_json::to_value(ServerSettings::default()))),
        ("store".to_owned(), to_value(serde_json::to_value(StoreSettings::default()))),
        ("log".to_owned(), to_value(serde_json::to_value(LogSettings::default()))),
        ("alerts".to_owned(), to_value(serde_json::to_value(AlertSettings::default()))),
        ("savings".to_owned(), to_value(serde_json::to_value(Savings::default()))),
        ("telemetry".to_owned(), to_value(serde_json::to_value(TelemetrySettings::default()))),
        ("gateway".to_owned(), to_value(serde_json::to_value(GatewaySettings::default()))),
        ("guards".to_owned(), Value::Object(guards)),
    ])
}

fn typed(tree: &Tree) -> Result<Settings, SettingsProblem> {
    const TOP: [&str; 9] = ["server", "store", "log", "savings", "alerts", "telemetry", "gateway", "guards", "tenants"];
    let empty = Tree::new();
    let mut tables: HashMap<&str, &Tree> = HashMap::new();
    for (key, value) in tree {
        let Some(known) = TOP.into_iter().find(|known| known == key) else {
            return Err(SettingsProblem::new(&[key], format!("unknown table; {}", runguard_core::nearest::hint(key, TOP.into_iter()))));
        };
        tables.insert(known, value.as_object().ok_or_else(|| SettingsProblem::new(&[key], "must be a table"))?);
    }
    let table = |name: &str| tables.get(name).copied().unwrap_or(&empty);
    let server: ServerSettings = policy::read_table(table("server"), &["server"], &[])?;
    server.check()?;
    let store: StoreSettings = policy::read_table(table("store"), &["store"], &[])?;
    if store.memory_mb < 16 {
        return Err(SettingsProblem::new(&["store", "memory_mb"], "must be at least 16"));
    }
    store.check_shared()?;
    let log: LogSettings = policy::read_table(table("log"), &["log"], &[])?;
    if !log.database.is_empty() && store.state.is_empty() {
        return Err(SettingsProblem::new(
            &["log", "database"],
            "a shared log needs shared states: set store.state (--state redis://…) as well, or leave both out",
        ));
    }
    if !(log.database.is_empty() || log.database.starts_with("postgres://") || log.database.starts_with("postgresql://")) {
        return Err(SettingsProblem::new(&["log", "database"], "must begin with postgres://"));
    }
    if !(1..=3650).contains(&log.retention_days) {
        return Err(SettingsProblem::new(&["log", "retention_days"], "must be from 1 to 3650"));
    }
    let alerts = AlertSettings::read(table("alerts"))?;
    let savings: Savings = policy::read_table(table("savings"), &["savings"], &[])?;
    for (key, value) in [("credits_per_operation", savings.credits_per_operation), ("usd_per_operation", savings.usd_per_operation)] {
        if !(0.0..=1_000_000.0).contains(&value) {
            return Err(SettingsProblem::new(&["savings", key], "must be from 0 to 1000000"));
        }
    }
    if let Some((guard, _)) = savings.operations.iter().find(|(_, operations)| **operations > 1_000_000) {
        return Err(SettingsProblem::new(&["savings", "operations", guard.code()], "must be at most 1000000"));
    }
    let telemetry: TelemetrySettings = policy::read_table(table("telemetry"), &["telemetry"], &[])?;
    telemetry.check()?;
    let gateway: GatewaySettings = policy::read_table(table("gateway"), &["gateway"], &[])?;
    gateway.check()?;
    let policies = Policies::build(table("guards"), table("tenants"))?;
    Ok(Settings { server, store, log, savings, alerts, telemetry, gateway, policies, history: Arc::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<Loaded, SettingsError> {
        check_text(Path::new("runguard.toml"), text)
    }

    #[test]
    fn the_example_is_valid_as_it_is_and_with_every_line_in_force() {
        let example = example();
        check(&example).unwrap();
        let in_force: String = example
            .lines()
            .map(|line| match line.strip_prefix("# ") {
                Some(rest) if rest.split_once(" = ").is_some_and(|(key, _)| !key.contains(' ')) || rest.starts_with("[tenants") => {
                    format!("{rest}\n")
                }
                _ => format!("{line}\n"),
            })
            .collect();
        let loaded = check(&in_force).unwrap();
        assert!(in_force.contains("\nmax_handoffs = 6"), "{in_force}");
        assert_eq!(loaded.settings.policies.for_tenant("acme").handoff.for_subject("x").settings.max_handoffs, 10);
        assert_eq!(loaded.settings.server, ServerSettings::default());
    }

    #[test]
    fn errors_name_file_line_and_key() {
        for (text, line, says) in [
            ("\n[guards.handoff]\nmax_handofs = 3\n", 3, "`guards.handoff.max_handofs`: unknown key; did you mean `max_handoffs`?"),
            ("[guards.handoff]\nwindow = \"soon\"\n", 2, "not a length of time"),
            ("[log]\nretention_days = 0\n", 2, "must be from 1 to 3650"),
            ("[sever]\n", 1, "did you mean `server`?"),
            ("[savings]\nusd_per_operation = -1\n", 2, "must be from 0"),
            ("[savings.operations]\nhandof = 2\n", 2, "unknown value `handof`; did you mean `handoff`?"),
            ("[server]\nlisten = \"here\"\n", 2, "no address"),
            ("[server]\nhosts = [\"a.b\", \"http://a\"]\n", 2, "without scheme and port"),
            ("[server]\ntls_cert = \"a.pem\"\n", 1, "--tls-key"),
            ("a = \n", 1, "not TOML"),
            ("[guards.ai_task_retry]\nmax_retries = 1\n\n[tenants.t.guards.ai_task_retry.tasks.x]\nmax_retries = -1\n", 5, "max_retries"),
        ] {
            let error = check(text).unwrap_err();
            assert_eq!(error.source, SettingsSource::File { path: "runguard.toml".into(), line }, "{text}: {error}");
            assert!(error.to_string().contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn all_mistakes_are_named_at_once() {
        let text = "[sever]\nlisten = 1\n[server]\nlisten = \"here\"\nmax_streams = 0\ntls_cert = \"a.pem\"\n[store]\nstate = \"http://h\"\n[log]\ndatabase = \"postgres://h/d\"\n[guards.handoff]\nmax_handofs = 3\nwindow = \"soon\"\n[[alerts.target]]\nname = \"a\"\n[tenants.t.guards.handoff]\nwindow = \"never\"\n";
        let error = check(text).unwrap_err().to_string();
        let at = |line: usize| format!("runguard.toml:{line}:");
        for line in [1, 4, 5, 8, 12, 13, 14, 17] {
            assert_eq!(error.matches(&at(line)).count(), 1, "line {line} of\n{error}");
        }
        assert!(error.contains("tls_key"), "{error}");
        assert!(!error.contains(&at(10)), "the log is not blamed for the states\n{error}");
        assert_eq!(error.lines().count(), 9, "{error}");
        let lines: Vec<usize> = error.lines().filter_map(|line| line.split(':').nth(1)?.parse().ok()).collect();
        assert!(lines.len() >= 8 && lines.is_sorted(), "in the order of the file\n{error}");
        let alone = check("[log]\nretention_days = 0\n").unwrap_err();
        assert!(alone.more.is_empty());
    }

    #[test]
    fn a_credit_has_one_price() {
        let shown = |text: &str| {
            let loaded = check(text).unwrap();
            let (_, value, source) = loaded.values().into_iter().find(|(key, ..)| key == "savings.usd_per_operation").unwrap();
            assert_eq!(value, loaded.settings.savings.usd_per_operation);
            (loaded.settings.savings.usd_per_operation, source.to_string())
        };
        assert_eq!(shown("[log]\nretention_days = 9\n"), (0.0, "default".to_owned()), "no price is made up");
        assert_eq!(shown("[guards.budget]\ncredit_usd = 0.25\n"), (0.25, "runguard.toml:2".to_owned()));
        assert_eq!(
            shown("[savings]\ncredits_per_operation = 3\n[guards.budget]\ncredit_usd = 0.25\n"),
            (0.75, "runguard.toml:4".to_owned())
        );
        assert_eq!(shown("[guards.budget]\ncredit_usd = 0.25\n[savings]\nusd_per_operation = 0\n"), (0.0, "runguard.toml:4".to_owned()));
    }

    #[test]
    fn names_of_thousands_of_parts_are_refused_wherever_they_stand() {
        let variable = format!("RUNGUARD_{}", vec!["A"; 100_000].join("__"));
        let origin = Origin { environment: vec![(variable, "1".into())], ..Origin::default() };
        let error = origin.load().unwrap_err();
        assert!(error.problem.contains("stands too deep"), "{error}");
        assert!(error.to_string().starts_with("environment RUNGUARD_A__A") && error.to_string().len() < 400, "{error}");
        for text in [
            format!("{} = 1", vec!["a"; 100_000].join(".")),
            format!("[{}]", vec!["a"; 40].join(".")),
            format!("[guards]\n{} = 1", vec!["a"; 40].join(".")),
            format!("a = {}1{}", "[".repeat(100_000), "]".repeat(100_000)),
            format!("a = {}1{}", "{a=".repeat(100_000), "}".repeat(100_000)),
            "[a]\n".repeat(2),
        ] {
            assert!(check(&text).is_err());
        }
        let deep = check(&format!("[guards]\n\n{} = 1", vec!["a"; 40].join("."))).unwrap_err();
        assert_eq!((deep.source.to_string().as_str(), deep.key.as_str()), ("runguard.toml:3", "guards.a.a.a.…"));
    }

    #[test]
    fn errors_do_not_repeat_a_secret() {
        let secret = "hunter2xyz";
        for text in [
            format!("[store]\nstate = redis://:{secret}@host"),
            format!("[store]\nstate = \"redis://:{secret}@host"),
            format!("[store]\nstate = 'redis://:{secret}@host' x"),
            format!("[store]\nredis://:{secret}@host"),
            format!("[store]\nstate = \"http://:{secret}@host\""),
            format!("[store]\nstate = [\"redis://:{secret}@host\"]"),
            format!("[store]\ndurability = \"redis://:{secret}@host\""),
            format!("[store]\nmemory_mb = \"redis://:{secret}@host\""),
            format!("[server]\nlisten = \"redis://:{secret}@host\""),
            format!("[log]\ndatabase = \"host=h password={secret}\""),
            format!("[log]\ndatabase = \"postgres://u:{secret}@h\""),
            format!("[log]\nstore_text = \"password={secret}\""),
            format!("[telemetry]\notlp_endpoint = \"https://u:{secret}@c\""),
            format!("[guards.handoff]\nwindow = \"postgres://u:{secret}@h\""),
            format!("[[alerts.target]]\nname = \"a\"\nkind = \"slack\"\nurl = \"ftp://hooks/{secret}\""),
            format!("[[alerts.target]]\nname = \"a\"\nkind = \"webhook\"\nurl = \"https://h\"\nsecret_env = \"whsec_{secret}+/=\""),
            format!("log = \"postgres://u:{secret}@h\""),
        ] {
            let error = check(&text).map(drop).unwrap_err().to_string();
            assert!(!error.contains(secret), "{text}: {error}");
        }
    }

    #[test]
    fn a_file_that_says_nothing_is_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("s.toml");
        let load = || Origin { file: Some(file.clone()), ..Origin::default() }.load();
        for text in ["", " \n\t\n", "# all of it\n  # commented out\n", "\u{feff}# x"] {
            std::fs::write(&file, text).unwrap();
            let error = load().unwrap_err().to_string();
            assert!(error.contains("is empty") && error.contains("leave out --config"), "{error}");
        }
        std::fs::write(&file, example()).unwrap();
        load().unwrap();
        std::fs::remove_file(&file).unwrap();
        assert!(load().unwrap_err().to_string().contains("cannot read"));
    }

    #[test]
    fn later_layers_win_and_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("s.toml");
        std::fs::write(&file, "[guards.handoff]\nmax_handoffs = 3\nwindow = \"10m\"\n[server]\nlisten = \"127.0.0.1:1\"\n").unwrap();
        let origin = Origin {
            file: Some(file.clone()),
            environment: vec![("RUNGUARD_GUARDS__HANDOFF__MAX_HANDOFFS".into(), "8".into()), ("RUNGUARD_KEY".into(), "x".into())],
            flags: vec![(vec!["server", "listen"], "127.0.0.1:2".into(), "--listen")],
        };
        let loaded = origin.load().unwrap();
        let handoff = &loaded.settings.policies.for_tenant("t").handoff.for_subject("b").settings;
        assert_eq!((handoff.max_handoffs, handoff.window.as_seconds()), (8, 600));
        let source = |key: &str| loaded.values().into_iter().find(|(name, ..)| name == key).unwrap().2;
        assert_eq!(source("guards.handoff.max_handoffs"), SettingsSource::Environment("RUNGUARD_GUARDS__HANDOFF__MAX_HANDOFFS".into()));
        assert_eq!(source("guards.handoff.window"), SettingsSource::File { path: file, line: 3 });
        assert_eq!(source("server.listen"), SettingsSource::Flag("--listen".into()));
        assert_eq!(source("guards.agent_action.max_total"), SettingsSource::Default);
        let bad = Origin { environment: vec![("RUNGUARD_GUARDS__HANDOFF__MAX".into(), "8".into())], ..Origin::default() };
        assert!(bad.load().unwrap_err().to_string().contains("environment RUNGUARD_GUARDS__HANDOFF__MAX"));
    }
}
