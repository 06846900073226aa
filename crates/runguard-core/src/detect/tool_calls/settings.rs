//! What may run how often, and which arguments say what a search is about.

use crate::fingerprint::{FingerprintError, Volatile, of_value};
use crate::limits::{InvalidSetting, setters};
use crate::similarity::{Junk, THRESHOLD, Wording};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// Stands for every tool in [`TrackerSettings::volatile`].
const EVERY_TOOL: &str = "*";
/// A limit beyond this is no limit, and would only let the state grow.
const HIGHEST_LIMIT: u32 = 1_000;

const LIMITS: &[(&str, u32)] = &[
    ("composio_execute", 2),
    ("list_directory", 2),
    ("query_database", 2),
    ("read_file", 3),
    ("search_codebase", 2),
    ("search_knowledge", 2),
    ("semantic_search", 2),
    ("smart_query_database", 2),
    ("write_file", 2),
];
const DEFAULT_LIMIT: u32 = 3;
const SEARCH_TOOLS: &[&str] = &["query_database", "search_codebase", "search_knowledge", "semantic_search", "smart_query_database"];

/// The first of these that an argument has is the query. Case, `_` and `-` do not matter.
const QUERY_ARGUMENTS: &[&str] = &[
    "query",
    "q",
    "search",
    "search_query",
    "query_text",
    "search_text",
    "search_term",
    "search_terms",
    "keywords",
    "keyword",
    "question",
    "text",
    "prompt",
    "input",
];
/// Where a search looks, and which part of the results it wants: two searches that differ here are two searches.
const PLACE_ARGUMENTS: &[&str] = &[
    "branch",
    "collection",
    "cursor",
    "database",
    "directory",
    "index",
    "kb_id",
    "knowledge_base",
    "namespace",
    "next_token",
    "offset",
    "page",
    "page_number",
    "page_token",
    "path",
    "repo",
    "repository",
    "skip",
    "table",
];

/// Everything a [`ToolExecutionTracker`](super::ToolExecutionTracker) goes by. The defaults work as they are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct TrackerSettings {
    /// Runs in one turn, by tool.
    pub limits: BTreeMap<String, u32>,
    /// Of every other tool.
    pub default_limit: u32,
    /// Tools of which similar queries are skipped too.
    pub search_tools: BTreeSet<String>,
    /// The arguments a query is taken from, the first that is there.
    pub query_arguments: Vec<String>,
    /// Arguments that make two searches different whatever they ask: where, and which page.
    pub place_arguments: Vec<String>,
    /// How alike the letters of two queries must be where their words do not tell, above 0 and up to 1. A threshold above
    /// the usual is asked of those too whose words say the same.
    pub threshold: f64,
    /// Queries are alike when the ratio of their letters reaches the threshold, and nothing else is looked at: a plain rule,
    /// which calls "order 1234" and "order 1235" the same.
    pub plain_ratio: bool,
    /// Python's heuristic for texts of 200 characters and more.
    pub junk: Junk,
    /// Word forms and synonyms.
    pub wording: Wording,
    /// Fields that are left out of the arguments, by tool; `*` is every tool.
    pub volatile: BTreeMap<String, Volatile>,
}

impl Default for TrackerSettings {
    fn default() -> Self {
        let texts = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Self {
            limits: LIMITS.iter().map(|&(tool, limit)| (tool.to_owned(), limit)).collect(),
            default_limit: DEFAULT_LIMIT,
            search_tools: SEARCH_TOOLS.iter().map(|&tool| tool.to_owned()).collect(),
            query_arguments: texts(QUERY_ARGUMENTS),
            place_arguments: texts(PLACE_ARGUMENTS),
            threshold: THRESHOLD,
            plain_ratio: false,
            junk: Junk::Keep,
            wording: Wording::default(),
            volatile: BTreeMap::new(),
        }
    }
}

setters!(TrackerSettings {
    limits: BTreeMap<String, u32>,
    default_limit: u32,
    search_tools: BTreeSet<String>,
    query_arguments: Vec<String>,
    place_arguments: Vec<String>,
    threshold: f64,
    plain_ratio: bool,
    junk: Junk,
    wording: Wording,
    volatile: BTreeMap<String, Volatile>,
});

impl TrackerSettings {
    /// Refuses what makes no sense, by the name of the setting.
    pub fn check(&self) -> Result<(), InvalidSetting> {
        let invalid = |name, problem: String| Err(InvalidSetting::new(name, problem));
        if !(self.threshold > 0.0 && self.threshold <= 1.0) {
            return invalid("threshold", format!("must be above 0 and at most 1, is {}", self.threshold));
        }
        if self.default_limit > HIGHEST_LIMIT {
            return invalid("default_limit", format!("must be at most {HIGHEST_LIMIT}, is {}", self.default_limit));
        }
        if let Some((tool, limit)) = self.limits.iter().find(|(_, limit)| **limit > HIGHEST_LIMIT) {
            return invalid("limits", format!("must be at most {HIGHEST_LIMIT}; that of '{tool}' is {limit}"));
        }
        if self.limits.keys().chain(&self.search_tools).any(String::is_empty) {
            return invalid("limits", "and `search_tools` need the names of tools, one of them is empty".to_owned());
        }
        Ok(())
    }

    /// How often a tool may run in one turn.
    pub fn limit_of(&self, tool: &str) -> u32 {
        self.limits.get(tool).copied().unwrap_or(self.default_limit)
    }

    pub(super) fn volatile_of(&self, tool: &str) -> Cow<'_, Volatile> {
        match (self.volatile.get(EVERY_TOOL), self.volatile.get(tool)) {
            (None, None) => Cow::Borrowed(Volatile::NONE),
            (Some(fields), None) | (None, Some(fields)) => Cow::Borrowed(fields),
            (Some(every), Some(own)) => Cow::Owned(every.and(own)),
        }
    }

    /// What a call of a search tool asks.
    pub(super) fn query_in<'a>(&self, tool: &str, args: &'a Value) -> Option<Cow<'a, str>> {
        if !self.search_tools.contains(tool) {
            return None;
        }
        match args {
            Value::String(query) => Some(Cow::Borrowed(query)),
            Value::Object(members) => self.query_arguments.iter().find_map(|name| text_of(argument(members, name)?)),
            _ => None,
        }
    }

    /// A fingerprint of where a search looks.
    pub(super) fn place_in(&self, args: &Value) -> Result<u64, FingerprintError> {
        let mut place = Map::new();
        if let Value::Object(members) = args {
            for name in &self.place_arguments {
                if let Some(value) = argument(members, name) {
                    place.insert(name.clone(), value.clone());
                }
            }
        }
        // Most searches name no place: that is one place too.
        if place.is_empty() { Ok(0) } else { of_value(&Value::Object(place)) }
    }
}

/// The argument of that name; `searchQuery`, `search-query` and `search_query` are one name.
fn argument<'a>(members: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    fn letters(name: &str) -> impl Iterator<Item = u8> {
        name.bytes().filter(|byte| !matches!(byte, b'_' | b'-')).map(|byte| byte.to_ascii_lowercase())
    }
    members.get(name).or_else(|| members.iter().find(|(other, _)| letters(other).eq(letters(name))).map(|(_, value)| value))
}

/// A text, or a list of words as one.
fn text_of(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) if !text.trim().is_empty() => Some(Cow::Borrowed(text)),
        Value::Array(items) if !items.is_empty() => {
            let words: Option<Vec<&str>> = items.iter().map(Value::as_str).collect();
            words.map(|words| Cow::Owned(words.join(" ")))
        }
        _ => None,
    }
}
