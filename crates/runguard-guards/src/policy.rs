//! Which thresholds and modes are in force for a guard, a subject and a tenant.
//!
//! Settings arrive as a tree (from TOML, the environment, flags). Layers are merged as trees, and only the merged
//! tree becomes types; so an override says only what differs, and every key has one definition: the field of the
//! guard's own `Settings`.
//!
//! There may be ten thousand tenants, and most of them change a number or two. What a tenant does not change it shares with
//! all others: guards it does not name, patterns, and everything when another tenant asks for the same.

mod tree;

pub use tree::{MOST_LEVELS, Tree, check_levels, merge, nest, unfold};

use crate::guard;
use crate::pattern::{Pattern, Patterns};
use runguard_core::limits::InvalidSetting;
use runguard_core::nearest;
use runguard_core::reason::{GuardName, Reason};
use runguard_core::time::Span;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a guard's or a rule's refusal does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Mode {
    /// Not looked at.
    Off,
    /// Decided and logged, but allowed.
    Observe,
    #[default]
    Enforce,
}

impl Mode {
    pub const ALL: [Self; 3] = [Self::Off, Self::Observe, Self::Enforce];
}

/// Where in the tree something is wrong, and what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingsProblem {
    pub path: Vec<String>,
    pub problem: String,
}

impl SettingsProblem {
    pub fn new(path: &[&str], problem: impl Into<String>) -> Self {
        Self { path: path.iter().map(|&part| part.to_owned()).collect(), problem: problem.into() }
    }
}

/// A settings key, for the example file and the documentation.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    pub key: &'static str,
    pub about: &'static str,
}

/// The thresholds of one guard (or of one door of it).
pub trait GuardSettings: Serialize + DeserializeOwned + Default + Clone + Send + Sync + 'static {
    const GUARD: GuardName;
    /// Path below `[guards]`.
    const SECTION: &'static [&'static str];
    /// The tables of a guard that has several.
    const DOORS: &'static [&'static str] = &[];
    /// The table of overrides, and what its keys name: `tasks`, `bots`, `endpoints`…
    const SUBJECTS: &'static str;
    const SETTINGS: &'static [Setting];
    /// Rules that are not measured on everyone's traffic: they watch until a user enforces them.
    const OBSERVED: &'static [Reason] = &[];
    /// Another guard whose rules are asked here too: each can have a mode of its own.
    const RULES_OF: Option<GuardName> = None;
    /// How long an event can matter: states must live at least that long.
    fn longest_window(&self) -> Span;
    /// Values that type-check and still make no sense.
    fn check(&self) -> Result<(), InvalidSetting>;
    /// Says which mode each rule has, for a guard in which one hides another.
    fn has_modes(&mut self, _mode_of: &dyn Fn(Reason) -> Mode) {}
    /// Shows every pattern with its path below the section.
    fn each_pattern(&mut self, _visit: &mut VisitPattern<'_>) -> Result<(), SettingsProblem> {
        Ok(())
    }
}

/// What is done with a pattern of the settings: its path, and itself.
pub type VisitPattern<'a> = dyn FnMut(&[&str], &mut Pattern) -> Result<(), SettingsProblem> + 'a;

/// The thresholds with their modes.
#[derive(Debug, Clone)]
pub struct Rulebook<S> {
    pub mode: Mode,
    rules: [Mode; Reason::ALL.len()],
    pub settings: S,
}

impl<S> Rulebook<S> {
    /// A rule is never stricter than its guard. An operator's word holds as long as the guard is asked at all.
    pub fn mode_of(&self, reason: Reason) -> Mode {
        let own = self.rules[reason.index()];
        if reason == Reason::RunStopped && self.mode != Mode::Off { own } else { self.mode.min(own) }
    }
}

/// The base of a guard and its overrides by subject.
#[derive(Debug, Clone)]
pub struct Section<S> {
    base: Rulebook<S>,
    subjects: BTreeMap<String, Rulebook<S>>,
}

impl<S> Section<S> {
    /// For what is no subject's own.
    pub fn base(&self) -> &Rulebook<S> {
        &self.base
    }

    pub fn for_subject(&self, subject: &str) -> &Rulebook<S> {
        if self.subjects.is_empty() {
            return &self.base;
        }
        self.subjects.get(subject).unwrap_or(&self.base)
    }
}

/// A section, whatever its settings are.
pub trait AnySection {
    /// The mode of the guard for a subject.
    fn mode(&self, subject: &str) -> Mode;
    /// The mode of one rule.
    fn rule_mode(&self, subject: &str, reason: Reason) -> Mode;
    fn longest_window(&self) -> Span;
}

impl<S: GuardSettings> AnySection for Section<S> {
    fn mode(&self, subject: &str) -> Mode {
        self.for_subject(subject).mode
    }

    fn rule_mode(&self, subject: &str, reason: Reason) -> Mode {
        self.for_subject(subject).mode_of(reason)
    }

    fn longest_window(&self) -> Span {
        let own = self.base.settings.longest_window();
        self.subjects.values().map(|book| book.settings.longest_window()).fold(own, std::cmp::Ord::max)
    }
}

/// What a policy has of one guard: a section, or several for a guard with several doors.
pub trait Sections {
    fn build(guards: &Tree, path: &[&str], patterns: &mut Patterns) -> Result<Self, SettingsProblem>
    where
        Self: Sized;
    /// What is documented.
    fn about() -> Vec<SectionInfo>
    where
        Self: Sized;
    fn all(&self) -> Vec<&dyn AnySection>;
    /// The one that a reason of the guard is of.
    fn of(&self, reason: Reason) -> &dyn AnySection;
}

impl<S: GuardSettings> Sections for Arc<Section<S>> {
    fn build(guards: &Tree, path: &[&str], patterns: &mut Patterns) -> Result<Self, SettingsProblem> {
        build_section(guards, path, patterns).map(Arc::new)
    }

    fn about() -> Vec<SectionInfo> {
        vec![SectionInfo::of::<S>()]
    }

    fn all(&self) -> Vec<&dyn AnySection> {
        vec![&**self]
    }

    fn of(&self, _reason: Reason) -> &dyn AnySection {
        &**self
    }
}

macro_rules! policy {
    ($(
        $(#[$about:meta])+
        $name:ident = $code:literal in $guard:ident, $label:literal, subject $subject:literal { $($reasons:tt)+ }
    )+) => {
        /// Everything one tenant's guards go by.
        #[derive(Debug, Clone)]
        pub struct Policy { $($(#[$about])+ pub $guard: guard::$guard::Sections),+ }

        impl Policy {
            /// `guards` is the merged `[guards]` tree; `path` is where it stands, for error messages.
            pub fn build(guards: &Tree, path: &[&str]) -> Result<Self, SettingsProblem> {
                Self::build_with(guards, path, &mut Patterns::default())
            }

            /// The same with patterns that may be compiled already.
            pub fn build_with(guards: &Tree, path: &[&str], patterns: &mut Patterns) -> Result<Self, SettingsProblem> {
                check_guard_names(guards, path)?;
                Ok(Self { $($guard: Sections::build(guards, path, patterns)?),+ })
            }

            /// This policy, made of `guards`, with `over` laid onto them. Guards that `over` does not name are shared.
            pub fn overridden(&self, guards: &Tree, over: &Tree, path: &[&str], patterns: &mut Patterns) -> Result<Self, SettingsProblem> {
                check_guard_names(over, path)?;
                let mut changed = Tree::from_iter(guards.iter().filter(|(guard, _)| over.contains_key(*guard)).map(|(guard, table)| (guard.clone(), table.clone())));
                merge(&mut changed, over);
                Ok(Self {
                    $($guard: if over.contains_key($code) { Sections::build(&changed, path, patterns)? } else { self.$guard.clone() }),+
                })
            }

            pub fn of(&self, guard: GuardName) -> &dyn Sections {
                match guard { $(GuardName::$name => &self.$guard),+ }
            }
        }

        /// Every section, for the example file and the documentation: path, subjects, keys, defaults.
        pub fn sections() -> Vec<SectionInfo> {
            let of_guards = [$(<guard::$guard::Sections as Sections>::about()),+];
            of_guards.into_iter().flatten().collect()
        }
    };
}
runguard_core::for_every_guard!(policy);

impl Default for Policy {
    fn default() -> Self {
        Self::build(&Tree::new(), &["guards"]).unwrap_or_else(|problem| unreachable!("the defaults are valid: {problem:?}"))
    }
}

#[derive(Debug, Clone)]
pub struct SectionInfo {
    pub guard: GuardName,
    pub path: &'static [&'static str],
    pub subjects: &'static str,
    pub settings: &'static [Setting],
    pub observed: &'static [Reason],
    pub defaults: Tree,
    /// Where its lengths of time stand.
    pub spans: fn() -> Vec<Vec<String>>,
}

impl SectionInfo {
    pub(crate) fn of<S: GuardSettings>() -> Self {
        Self {
            guard: S::GUARD,
            path: S::SECTION,
            subjects: S::SUBJECTS,
            settings: S::SETTINGS,
            observed: S::OBSERVED,
            defaults: to_tree(&S::default()),
            spans: spans_of::<S>,
        }
    }
}

/// The policies of all tenants.
#[derive(Debug, Clone)]
pub struct Policies {
    base: Arc<Policy>,
    tenants: BTreeMap<String, Arc<Policy>>,
    patterns: Patterns,
}

impl Policies {
    /// `guards` and `tenants` are the trees of the same names in the settings.
    pub fn build(guards: &Tree, tenants: &Tree) -> Result<Self, SettingsProblem> {
        let mut patterns = Patterns::default();
        let base = Arc::new(Policy::build_with(guards, &["guards"], &mut patterns)?);
        let mut own = BTreeMap::new();
        // Tenants of one plan have the same overrides, to the letter.
        let mut plans: BTreeMap<String, Arc<Policy>> = BTreeMap::new();
        for (name, value) in tenants {
            let tenant = as_table(value, &["tenants", name])?;
            if let Some(key) = tenant.keys().find(|key| *key != "guards") {
                return Err(SettingsProblem::new(&["tenants", name, key], "is no key of a tenant; only a table `guards` may stand here"));
            }
            if let Some(guards_of_tenant) = tenant.get("guards") {
                let path = ["tenants", name, "guards"];
                let overrides = as_table(guards_of_tenant, &path)?;
                let plan = guards_of_tenant.to_string();
                let policy = match plans.get(&plan) {
                    Some(policy) => policy.clone(),
                    None => Arc::new(base.overridden(guards, overrides, &path, &mut patterns)?),
                };
                plans.insert(plan, policy.clone());
                own.insert(name.clone(), policy);
            }
        }
        Ok(Self { base, tenants: own, patterns })
    }

    /// Every pattern of every tenant.
    pub fn patterns(&self) -> &Patterns {
        &self.patterns
    }

    /// The longest window any guard of any tenant counts in.
    pub fn longest_window(&self) -> Span {
        self.tenants.values().map(|policy| policy.longest_window()).fold(self.base.longest_window(), std::cmp::Ord::max)
    }

    pub fn for_tenant(&self, tenant: &str) -> &Arc<Policy> {
        self.tenants.get(tenant).unwrap_or(&self.base)
    }
}

impl Policy {
    /// The longest window any guard counts in.
    pub fn longest_window(&self) -> Span {
        let sections = GuardName::ALL.iter().flat_map(|guard| self.of(*guard).all());
        sections.map(AnySection::longest_window).fold(Span::ZERO, std::cmp::Ord::max)
    }

    /// How a reason counts for a guard's subject. A guard with several doors goes by the mildest of them.
    pub fn mode_of(&self, guard: GuardName, subject: &str, reason: Reason) -> Mode {
        self.of(guard).all().into_iter().map(|section| section.rule_mode(subject, reason)).min().unwrap_or_default()
    }
}

impl Default for Policies {
    fn default() -> Self {
        let none = Tree::new();
        Self::build(&none, &none).unwrap_or_else(|problem| unreachable!("the defaults are valid: {problem:?}"))
    }
}

fn to_tree<S: Serialize>(settings: &S) -> Tree {
    match serde_json::to_value(settings) {
        Ok(Value::Object(tree)) => tree,
        _ => Tree::new(),
    }
}

fn as_table<'a>(value: &'a Value, path: &[&str]) -> Result<&'a Tree, SettingsProblem> {
    value.as_object().ok_or_else(|| SettingsProblem::new(path, "must be a table"))
}

fn check_guard_names(guards: &Tree, path: &[&str]) -> Result<(), SettingsProblem> {
    for key in guards.keys() {
        if GuardName::from_code(key).is_none() {
            return Err(unknown(path, key, GuardName::ALL.iter().map(|guard| guard.code()), "guard"));
        }
    }
    Ok(())
}

fn unknown<'a>(path: &[&str], key: &str, known: impl Iterator<Item = &'a str> + Clone, what: &str) -> SettingsProblem {
    SettingsProblem::new(&[path, &[key]].concat(), format!("unknown {what}; {}", nearest::hint(key, known)))
}

const MODE: &str = "mode";
const RULES: &str = "rules";

/// The section of one guard alone: no other guard's patterns are compiled for it.
pub(crate) fn build_section<S: GuardSettings>(
    guards: &Tree,
    path: &[&str],
    patterns: &mut Patterns,
) -> Result<Section<S>, SettingsProblem> {
    let mut path = path.to_vec();
    let mut tree = section_tree(guards, &mut path, S::SECTION, S::DOORS)?;
    let subjects = tree.remove(S::SUBJECTS);
    let base = build_rulebook::<S>(&tree, &path, patterns)?;
    let mut overrides = BTreeMap::new();
    if let Some(subjects) = subjects {
        let subjects_path = below(&path, S::SUBJECTS);
        for (name, value) in as_table(&subjects, &subjects_path)? {
            let path = below(&subjects_path, name);
            let own = as_table(value, &path)?;
            let mut merged = tree.clone();
            merge(&mut merged, own);
            overrides.insert(name.clone(), build_rulebook(&merged, &path, patterns)?);
        }
    }
    Ok(Section { base, subjects: overrides })
}

/// The table of a section, whose parts are added to the path. A door inherits mode and rules from the guard's own table.
fn section_tree<'a>(guards: &Tree, path: &mut Vec<&'a str>, section: &[&'a str], doors: &[&str]) -> Result<Tree, SettingsProblem> {
    let mut tree = Tree::new();
    let mut level = Some(guards);
    for (depth, part) in section.iter().enumerate() {
        path.push(part);
        let Some(value) = level.and_then(|level| level.get(*part)) else {
            level = None;
            continue;
        };
        let table = as_table(value, path)?;
        if depth + 1 < section.len() {
            check_guard_of_doors(table, path, doors)?;
            // Told where it stands, not at the doors that inherit it.
            if let Some(mode) = table.get(MODE) {
                read::<Mode>(mode, &[path.as_slice(), &[MODE]].concat())?;
            }
            for key in [MODE, RULES] {
                if let Some(value) = table.get(key) {
                    tree.insert(key.to_owned(), value.clone());
                }
            }
        } else {
            merge(&mut tree, table);
        }
        level = Some(table);
    }
    Ok(tree)
}

fn check_guard_of_doors(table: &Tree, path: &[&str], doors: &[&str]) -> Result<(), SettingsProblem> {
    let known = [&[MODE, RULES], doors].concat();
    match table.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) => Err(unknown(path, key, known.iter().copied(), "key")),
        None => Ok(()),
    }
}

fn build_rulebook<S: GuardSettings>(tree: &Tree, path: &[&str], patterns: &mut Patterns) -> Result<Rulebook<S>, SettingsProblem> {
    let mut tree = tree.clone();
    let (mode, rules) = take_modes(&mut tree, path, (S::GUARD, S::RULES_OF), S::OBSERVED)?;
    let mut settings: S = read_table(&tree, path, &[MODE, RULES, S::SUBJECTS])?;
    settings.check().map_err(|InvalidSetting { name, problem }| SettingsProblem::new(&below(path, name), problem))?;
    settings.has_modes(&|reason| rules[reason.index()]);
    settings.each_pattern(&mut |own_path, pattern| {
        patterns.compile(pattern).map_err(|problem| SettingsProblem::new(&[path, own_path].concat(), problem))
    })?;
    Ok(Rulebook { mode, rules, settings })
}

/// The mode of a guard and those of its rules, taken out of its table.
fn take_modes(
    tree: &mut Tree,
    path: &[&str],
    (guard, rules_of): (GuardName, Option<GuardName>),
    observed: &[Reason],
) -> Result<(Mode, [Mode; Reason::ALL.len()]), SettingsProblem> {
    let mode = tree.remove(MODE).map_or(Ok(Mode::default()), |value| read(&value, &below(path, MODE)))?;
    let mut rules = [Mode::Enforce; Reason::ALL.len()];
    for reason in observed {
        rules[reason.index()] = Mode::Observe;
    }
    if let Some(value) = tree.remove(RULES) {
        let path = below(path, RULES);
        let known: Vec<&str> = Reason::of(guard).chain(rules_of.into_iter().flat_map(Reason::of)).map(Reason::code).collect();
        for (code, value) in as_table(&value, &path)? {
            let reason = Reason::from_code(code).filter(|reason| known.contains(&reason.code()));
            let reason = reason.ok_or_else(|| unknown(&path, code, known.iter().copied(), "rule"))?;
            rules[reason.index()] = read(value, &below(&path, code))?;
        }
    }
    Ok((mode, rules))
}

fn below<'a>(path: &[&'a str], key: &'a str) -> Vec<&'a str> {
    [path, &[key]].concat()
}

/// Lays a table onto the defaults of a type. `also` are keys that may stand there too, for the hint to a mistyped one.
pub fn read_table<S: Serialize + DeserializeOwned + Default>(tree: &Tree, path: &[&str], also: &[&str]) -> Result<S, SettingsProblem> {
    let defaults = to_tree(&S::default());
    let merged = onto(&defaults, tree, path, also)?;
    from_tree(merged).map_err(|error| what_is_wrong(&defaults, tree, path, &error, &|tree| from_tree::<S>(tree).map(drop)))
}

/// Where the lengths of time stand in settings: what is a number by default, or nothing, and can be written with a unit as well.
pub fn spans_of<S: Serialize + DeserializeOwned + Default>() -> Vec<Vec<String>> {
    fn look(inner: &Tree, path: &mut Vec<String>, takes: &dyn Fn(&[String], Value) -> bool, found: &mut Vec<Vec<String>>) {
        for (key, value) in inner {
            path.push(key.clone());
            match value {
                Value::Object(inner) => look(inner, path, takes, found),
                Value::Number(_) | Value::Null => {
                    let number = if value.is_null() { Value::from(1) } else { value.clone() };
                    if takes(path, Value::String(format!("{number}s"))) && takes(path, number) {
                        found.push(path.clone());
                    }
                }
                Value::Bool(_) | Value::String(_) | Value::Array(_) => {}
            }
            path.pop();
        }
    }
    let defaults = to_tree(&S::default());
    let takes = |path: &[String], value: Value| {
        let mut tree = defaults.clone();
        let alone = path.iter().rev().fold(value, |inner, key| Value::Object(Tree::from_iter([(key.clone(), inner)])));
        if let Value::Object(alone) = alone {
            merge(&mut tree, &alone);
        }
        from_tree::<S>(tree).is_ok()
    };
    let mut found = Vec::new();
    look(&defaults, &mut Vec::new(), &takes, &mut found);
    found
}

fn onto(defaults: &Tree, tree: &Tree, path: &[&str], also: &[&str]) -> Result<Tree, SettingsProblem> {
    if let Some(key) = tree.keys().find(|key| !defaults.contains_key(*key)) {
        let known: Vec<&str> = defaults.keys().map(String::as_str).chain(also.iter().copied()).collect();
        return Err(unknown(path, key, known.iter().copied(), "key"));
    }
    let mut merged = defaults.clone();
    merge(&mut merged, tree);
    Ok(merged)
}

/// Once for each type of settings, and not in each place that reads it.
#[inline(never)]
fn from_tree<S: DeserializeOwned>(tree: Tree) -> Result<S, serde_json::Error> {
    serde_json::from_value(Value::Object(tree))
}

type Fits<'a> = &'a dyn Fn(Tree) -> Result<(), serde_json::Error>;

fn what_is_wrong(defaults: &Tree, tree: &Tree, path: &[&str], error: &serde_json::Error, fits: Fits<'_>) -> SettingsProblem {
    let named = tree.iter().find_map(|(key, value)| try_alone(defaults, key, value, path, fits).err());
    named.unwrap_or_else(|| SettingsProblem::new(path, said(error)))
}

/// Puts one key alone onto the defaults, so that a wrong value is known by its own name.
fn try_alone(defaults: &Tree, key: &str, value: &Value, path: &[&str], fits: Fits<'_>) -> Result<(), SettingsProblem> {
    let entries: Vec<(Vec<&str>, Value)> = match value {
        Value::Object(entries) => entries
            .iter()
            .map(|(entry, value)| (vec![key, entry.as_str()], Value::Object(Tree::from_iter([(entry.clone(), value.clone())]))))
            .collect(),
        _ => vec![(vec![key], value.clone())],
    };
    for (entry_path, entry) in entries {
        let mut tree = defaults.clone();
        merge(&mut tree, &Tree::from_iter([(key.to_owned(), entry)]));
        fits(tree).map_err(|error| SettingsProblem::new(&[path, &entry_path].concat(), said(&error)))?;
    }
    Ok(())
}

fn read<T: DeserializeOwned>(value: &Value, path: &[&str]) -> Result<T, SettingsProblem> {
    serde_json::from_value(value.clone()).map_err(|error| SettingsProblem::new(path, said(&error)))
}

/// Why a value does not fit. A value that looks like an address or a login may hold a password, and is not repeated.
fn said(error: &serde_json::Error) -> String {
    let harmless = |word: &&str| !word.contains("://") && !word.contains(['@', '=']);
    nearest::told(&error.to_string().split(' ').map(|word| Some(word).filter(harmless).unwrap_or("…")).collect::<Vec<_>>().join(" "))
}

/// The mode of a rule that nobody has set.
pub fn default_rule_mode(reason: Reason) -> Mode {
    if sections().iter().any(|section| section.observed.contains(&reason)) { Mode::Observe } else { Mode::Enforce }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn build(guards: Value) -> Result<Policy, SettingsProblem> {
        Policy::build(guards.as_object().unwrap(), &["guards"])
    }

    #[test]
    fn an_override_says_only_what_differs() {
        let policy = build(json!({"ai_task_retry": {"max_retries": 5, "tasks": {"slow": {"window": "1m"}}}})).unwrap();
        let slow = policy.ai_task_retry.for_subject("slow");
        assert_eq!((slow.settings.max_retries, slow.settings.window.as_seconds()), (5, 60));
        assert_eq!(policy.ai_task_retry.for_subject("other").settings.window.as_seconds(), 3600);
    }

    #[test]
    fn a_tenant_overrides_the_file() {
        let guards = json!({"handoff": {"max_handoffs": 4}});
        let tenants = json!({"acme": {"guards": {"handoff": {"max_visits_per_bot": 1}}}});
        let policies = Policies::build(guards.as_object().unwrap(), tenants.as_object().unwrap()).unwrap();
        let acme = &policies.for_tenant("acme").handoff.for_subject("x").settings;
        assert_eq!((acme.max_handoffs, acme.max_visits_per_bot), (4, 1));
        assert_eq!(policies.for_tenant("other").handoff.for_subject("x").settings.max_visits_per_bot, 2);
    }

    #[test]
    fn what_a_tenant_does_not_change_it_shares() {
        let guards = json!({"ai_task_retry": {"patterns": {"own": "[a-z]+"}}});
        let guards = guards.as_object().unwrap();
        let alone = Policies::build(guards, &Tree::new()).unwrap();
        let retries = |number: usize| json!({"guards": {"ai_task_retry": {"max_retries": number % 1000}}});
        let tenants: Tree = (0..2000).map(|number| (format!("t{number}"), retries(number))).collect();
        let policies = Policies::build(guards, &tenants).unwrap();
        assert_eq!(policies.patterns().len(), alone.patterns().len(), "each pattern is compiled once");
        let (one, other) = (policies.for_tenant("t1"), policies.for_tenant("t2"));
        assert!(Arc::ptr_eq(&one.capture_slot_fill, &other.capture_slot_fill), "guards that are not named are shared");
        assert!(Arc::ptr_eq(&one.kb_requery.botpress, &policies.for_tenant("none").kb_requery.botpress));
        assert!(Arc::ptr_eq(one, policies.for_tenant("t1001")), "and everything, with the same overrides");
        assert_eq!(
            (one.ai_task_retry.for_subject("x").settings.max_retries, other.ai_task_retry.for_subject("x").settings.max_retries),
            (1, 2)
        );
        assert!(!one.ai_task_retry.for_subject("x").settings.patterns["own"].is_in("1"));
    }

    /// What a tenant's policy is, whatever it shares: every section as it shows itself.
    fn shown(policy: &Policy) -> String {
        format!("{policy:?}")
    }

    /// Overrides of several guards that mean something.
    fn overrides() -> impl proptest::strategy::Strategy<Value = Value> {
        use proptest::prelude::*;
        let handoff = prop_oneof![
            (0_u32..9).prop_map(|cap| json!({"max_handoffs": cap + 1})),
            Just(json!({"mode": "observe", "bots": {"b": {"max_handoffs": 3, "rules": {"cycle_detected": "off"}}}})),
        ];
        let retry = prop_oneof![
            "[a-c]{1,2}".prop_map(|pattern| json!({"patterns": {"extract_date": pattern}})),
            (0_u32..9).prop_map(|cap| json!({"max_retries": cap, "tasks": {"t": {"patterns": {"t": "x+"}}}})),
        ];
        let kb = prop_oneof![Just(json!({"mode": "off"})), Just(json!({"voiceflow": {"max_queries": 2}}))];
        (prop::option::of(handoff), prop::option::of(retry), prop::option::of(kb)).prop_map(|(handoff, retry, kb)| {
            let named = [("handoff", handoff), ("ai_task_retry", retry), ("kb_requery", kb)];
            Value::Object(named.into_iter().filter_map(|(guard, table)| Some((guard.to_owned(), table?))).collect())
        })
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(48))]

        /// Sharing is not seen: a tenant's policy is what the merged tree alone would give.
        #[test]
        fn a_shared_policy_is_the_one_built_alone(base in overrides(), own in proptest::collection::vec(overrides(), 1..4)) {
            let base = base.as_object().unwrap();
            let tenants: Tree = own.iter().enumerate().map(|(number, own)| (number.to_string(), json!({ "guards": own }))).collect();
            let policies = Policies::build(base, &tenants).unwrap();
            for (number, own) in own.iter().enumerate() {
                let mut merged = base.clone();
                merge(&mut merged, own.as_object().unwrap());
                let alone = Policy::build(&merged, &["guards"]).unwrap();
                proptest::prop_assert_eq!(shown(policies.for_tenant(&number.to_string())), shown(&alone));
            }
        }
    }

    #[test]
    fn mistakes_are_named_where_they_stand() {
        for (guards, path, says) in [
            (json!({"handof": {}}), "guards.handof", "did you mean `handoff`?"),
            (json!({"handoff": {"max_handofs": 1}}), "guards.handoff.max_handofs", "did you mean `max_handoffs`?"),
            (json!({"handoff": {"max_handoffs": "six"}}), "guards.handoff.max_handoffs", "expected a whole number from 0"),
            (json!({"handoff": {"max_handoffs": 100_000}}), "guards.handoff.max_handoffs", "must be from"),
            (json!({"handoff": {"mode": "on"}}), "guards.handoff.mode", "enforce"),
            (json!({"handoff": {"rules": {"cycle": "off"}}}), "guards.handoff.rules.cycle", "unknown rule"),
            (json!({"handoff": {"bots": {"a": {"windows": 1}}}}), "guards.handoff.bots.a.windows", "did you mean `window`?"),
            (json!({"ai_task_retry": {"patterns": {"t": "("}}}), "guards.ai_task_retry.patterns.t", "regular expression"),
            (json!({"kb_requery": {"voiceflow": {"low_confidence": 2}}}), "guards.kb_requery.voiceflow.low_confidence", "from 0 to 1"),
            (json!({"kb_requery": {"max_queries": 2}}), "guards.kb_requery.max_queries", "botpress"),
            (json!({"kb_requery": {"mode": "enforced"}}), "guards.kb_requery.mode", "did you mean `enforce`?"),
            (json!({"ai_task_retry": {"window": "1y"}}), "guards.ai_task_retry.window", "unit of time"),
        ] {
            let problem = build(guards.clone()).unwrap_err();
            assert_eq!(problem.path.join("."), path, "{guards}");
            assert!(problem.problem.contains(says), "{guards}: {}", problem.problem);
        }
    }

    #[test]
    fn a_rule_is_never_stricter_than_its_guard() {
        let policy =
            build(json!({"agent_action": {"mode": "observe", "rules": {"action_cycle": "enforce", "total_action_ceiling": "off"}}}))
                .unwrap();
        let book = policy.agent_action.for_subject("a");
        assert_eq!(book.mode_of(Reason::ActionCycle), Mode::Observe);
        assert_eq!(book.mode_of(Reason::TotalActionCeiling), Mode::Off);
        let both = build(json!({"kb_requery": {"mode": "off"}})).unwrap();
        assert_eq!(both.kb_requery.botpress.for_subject("").mode, Mode::Off);
        assert_eq!(both.kb_requery.voiceflow.for_subject("").mode, Mode::Off);
    }

    #[test]
    fn every_setting_is_documented_and_every_documented_setting_exists() {
        for section in sections() {
            let documented: Vec<&str> = section.settings.iter().map(|setting| setting.key).collect();
            let there: Vec<&str> = section.defaults.keys().map(String::as_str).collect();
            assert_eq!(documented, there, "{:?}", section.path);
        }
    }
}
