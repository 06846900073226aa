//! What the log teaches: counted by hour, then put into words.
//!
//! A [`Digest`](digest::Digest) folds rows into small cells that can be added up in any order, so they are kept by hour and a
//! question about a month reads hundreds of cells and not millions of rows. An [`Overview`] is what a dashboard shows of a
//! time; [`advise`](advice::advise) turns it into advice, each with its evidence.

pub mod advice;
pub mod consumption;
pub mod digest;
pub mod long_runs;
pub mod session_list;
pub mod spend;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Everything a dashboard shows of a time. Lists are sorted by weight, the heaviest first, and bounded.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Overview {
    /// In RFC 3339, and in milliseconds.
    pub since: String,
    pub until: String,
    pub since_ms: i64,
    pub until_ms: i64,
    pub bucket_seconds: u64,
    pub filters: Filters,
    /// Decisions that are logged and not yet looked at.
    pub behind_rows: u64,
    pub totals: Totals,
    pub series: Series,
    #[cfg_attr(feature = "schema", schemars(length(max = digest::MOST_ENTRIES)))]
    pub reasons: Vec<ReasonCount>,
    #[cfg_attr(feature = "schema", schemars(length(max = digest::MOST_ENTRIES)))]
    pub subjects: Vec<SubjectCount>,
    pub handoffs: Handoffs,
    #[cfg_attr(feature = "schema", schemars(length(max = digest::MOST_ENTRIES)))]
    pub topics: Vec<Topic>,
    /// Sessions that asked a knowledge base: what the shares of topics are shares of.
    pub topic_sessions: u64,
    #[cfg_attr(feature = "schema", schemars(length(max = digest::MOST_ENTRIES)))]
    pub actions: Vec<Action>,
    /// 0: all actions run as often; towards 1: one of them runs nearly alone (Gini).
    pub action_skew: f64,
    #[cfg_attr(feature = "schema", schemars(length(max = digest::MOST_ENTRIES)))]
    pub goals: Vec<Goal>,
    #[cfg_attr(feature = "schema", schemars(length(max = digest::MOST_ENTRIES)))]
    pub endpoints: Vec<Endpoint>,
    #[cfg_attr(feature = "schema", schemars(length(max = digest::MOST_ENTRIES)))]
    pub entities: Vec<Entity>,
    #[cfg_attr(feature = "schema", schemars(length(max = digest::MOST_ENTRIES)))]
    pub budgets: Vec<BudgetSeen>,
    #[cfg_attr(feature = "schema", schemars(length(max = digest::MOST_ENTRIES)))]
    pub hours: Vec<Hours>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Filters {
    pub tenant: Option<String>,
    pub guard: Option<String>,
    pub reason: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Totals {
    pub decisions: u64,
    pub allowed: u64,
    pub would_block: u64,
    pub blocked: u64,
    pub operations_saved: u64,
    pub credits_saved: f64,
    pub usd_saved: f64,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Series {
    pub starts_ms: Vec<i64>,
    pub by_guard: BTreeMap<String, Outcomes>,
}

/// One number a bucket.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Outcomes {
    pub allowed: Vec<u64>,
    pub would_block: Vec<u64>,
    pub blocked: Vec<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ReasonCount {
    pub guard: String,
    pub reason: String,
    pub blocked: u64,
    pub would_block: u64,
    pub subjects: Vec<Counted>,
    pub sessions: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "CountedSubject"))]
#[serde(default)]
pub struct Counted {
    pub subject: String,
    pub count: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct SubjectCount {
    pub guard: String,
    pub subject: String,
    pub allowed: u64,
    pub would_block: u64,
    pub blocked: u64,
    pub sessions: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Handoffs {
    #[cfg_attr(feature = "schema", schemars(length(max = digest::MOST_ENTRIES)))]
    pub edges: Vec<Edge>,
    #[cfg_attr(feature = "schema", schemars(length(max = digest::MOST_ENTRIES)))]
    pub chains: Vec<Chain>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Edge {
    pub source: String,
    pub target: String,
    pub allowed: u64,
    pub blocked: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Chain {
    pub chain: Vec<String>,
    pub count: u64,
    pub sessions: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Topic {
    pub topic: String,
    /// One of its queries, as far as texts are kept.
    pub label: String,
    /// Names that were joined because their words ask for the same, in whichever session.
    pub phrasings: u64,
    /// Other words for it, the most frequent first.
    pub also: Vec<String>,
    /// The names, the most frequent first.
    pub members: Vec<String>,
    pub queries: u64,
    pub blocked: u64,
    pub best_confidence: f64,
    pub mean_confidence: f64,
    /// Answers by confidence, a tenth each.
    pub histogram: [u64; 10],
    /// Asked often enough, and never answered well.
    pub is_gap: bool,
    pub asked_sessions: u64,
    /// Sessions with an answer below 0.5.
    pub low_sessions: u64,
    /// Those of them with no better answer.
    pub unanswered_sessions: u64,
    /// `low_sessions` of `topic_sessions`, 0 to 1.
    pub low_share: f64,
    pub sessions: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Action {
    pub action: String,
    pub runs: u64,
    pub blocked: u64,
    pub share: f64,
}

/// What agents were to reach, as far as they say.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Goal {
    /// A digest of its words.
    pub goal: String,
    /// The words, as far as texts are kept.
    pub label: String,
    pub runs: u64,
    /// Calls that were stopped, or would have been.
    pub spirals: u64,
    /// Of them those at the ceiling of all actions.
    pub ceilings: u64,
    pub actions: Vec<GoalAction>,
    /// What the agent may call, by the newest that said so.
    pub offered: Vec<String>,
    pub sessions: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct GoalAction {
    pub action: String,
    pub runs: u64,
    pub spirals: u64,
    /// Asked for although it is not among what the agent may call.
    pub not_offered: u64,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Endpoint {
    pub endpoint: String,
    pub calls: u64,
    pub failures: u64,
    pub failure_rate: f64,
    pub mean_ms: Option<f64>,
    pub max_ms: Option<f64>,
    pub blocked: u64,
    /// Failures of each bucket of the series, to see it degrade before it trips.
    pub failures_over_time: Vec<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Entity {
    pub entity: String,
    /// Answers in words where a format was wanted.
    pub hints: u64,
    pub blocked: u64,
    pub sessions: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct BudgetSeen {
    pub budget: String,
    pub spent_usd: f64,
    pub limit_usd: Option<f64>,
    pub spent_tokens: u64,
    pub limit_tokens: Option<u64>,
    pub refused: u64,
}

/// When in the day something happens: a release, a batch, a shift shows here.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Hours {
    pub guard: String,
    pub subject: String,
    /// From midnight on, in UTC.
    pub by_hour_of_day: [u64; 24],
    pub total: u64,
}

/// One piece of advice, with what it rests on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Insight {
    /// A stable name of the kind: `documentation_gap`, `handoff_gap`, …
    pub id: String,
    pub title: String,
    /// What to do, and why.
    pub advice: String,
    pub severity: Severity,
    /// What it is sorted by: billed operations it is about, weighted by how sure it is.
    pub score: f64,
    pub guard: Option<String>,
    /// The flow it is about.
    pub subject: Option<String>,
    /// The setting to change, as a path in the settings file.
    pub setting: Option<String>,
    /// Numbers behind it, by name.
    pub evidence: BTreeMap<String, serde_json::Value>,
    /// Sessions to look at.
    pub sessions: Vec<String>,
    pub saves: Saves,
}

impl Insight {
    /// What it is known by, as long as it is about the same: its kind, its guard and its subject. It tells nothing of them.
    pub fn key(&self) -> String {
        let parts = [Some(&self.id), self.guard.as_ref(), self.subject.as_ref()];
        // Not there is not the same as empty.
        let text: Vec<String> = parts.iter().map(|part| part.map_or("-".to_owned(), |part| format!("+{part}"))).collect();
        runguard_core::fingerprint::hex16(text.join("\0").as_bytes())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "InsightSeverity"))]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    Low,
    Medium,
    High,
}

impl Severity {
    pub const ALL: [Self; 3] = [Self::Low, Self::Medium, Self::High];
}

#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Saves {
    pub operations: u64,
    pub usd: f64,
}
