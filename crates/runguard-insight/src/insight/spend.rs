//! What was spent on model calls: by day, model, key, run and whatever else; and the runs themselves.

use super::digest::spend::{Control, Heard, KEY, MODEL, Newest, RunCell, SCOPE, Spend, TOTAL, UPSTREAM, is_named};
use super::digest::{Cell, CellKey, Dimension, HOUR_MILLIS, OTHER, Range};
use runguard_core::calendar::Zone;
use runguard_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Entries of one group; the rest is told together.
pub const MOST_ENTRIES: usize = 200;
/// So long after its latest word a run is taken to be under way.
const LIVE_MILLIS: i64 = 15 * 60_000;
const NANOS: f64 = 1e9;

/// What sums are made by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum By {
    Day,
    Model,
    Key,
    Run,
    Upstream,
    Tenant,
    Scope,
}

impl By {
    pub const ALL: [Self; 7] = [Self::Day, Self::Model, Self::Key, Self::Run, Self::Upstream, Self::Tenant, Self::Scope];

    pub const fn code(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Model => "model",
            Self::Key => "key",
            Self::Run => "run",
            Self::Upstream => "upstream",
            Self::Tenant => "tenant",
            Self::Scope => "scope",
        }
    }

    /// In the words of whoever chooses among them.
    pub const fn about(self) -> &'static str {
        match self {
            Self::Day => "Each day of the zone",
            Self::Model => "Each model that answered",
            Self::Key => "Each of our keys",
            Self::Run => "Each run",
            Self::Upstream => "Each provider",
            Self::Tenant => "Each tenant",
            Self::Scope => "Each scope that questions name: a team, a user",
        }
    }

    pub fn from_code(code: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|by| by.code() == code)
    }

    /// The cells it is read from: their dimension, and their first name where all of one are its own.
    fn cells(self) -> (Dimension, Option<&'static str>) {
        match self {
            Self::Day | Self::Tenant => (Dimension::Spend, Some(TOTAL)),
            Self::Model => (Dimension::Spend, Some(MODEL)),
            Self::Key => (Dimension::Spend, Some(KEY)),
            Self::Upstream => (Dimension::Spend, Some(UPSTREAM)),
            Self::Scope => (Dimension::Spend, Some(SCOPE)),
            Self::Run => (Dimension::Run, None),
        }
    }

    fn name_of(self, place: &CellKey, zone: &Zone) -> String {
        match self {
            Self::Day => zone.date(Timestamp::from_millis(place.hour.saturating_mul(HOUR_MILLIS))),
            Self::Tenant => place.tenant.to_string(),
            Self::Run => place.first.to_string(),
            Self::Model | Self::Key | Self::Upstream | Self::Scope => place.second.to_string(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Spent {
    /// In RFC 3339, and in milliseconds.
    pub since: String,
    pub until: String,
    pub since_ms: i64,
    pub until_ms: i64,
    pub time_zone: String,
    /// Decisions that are logged and not yet looked at.
    pub behind_rows: u64,
    pub total: Sum,
    /// One for each that is asked for.
    pub groups: Vec<Group>,
    /// Those that the settings have for many, as they stand at this moment.
    pub budgets: Vec<BudgetStands>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Group {
    #[cfg_attr(feature = "schema", schemars(with = "By"))]
    pub by: String,
    /// Days in their order, the others by what they cost; the rest is `(other)`.
    pub entries: Vec<Entry>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Entry {
    pub name: String,
    /// Whose it is; empty for what several have.
    pub tenant: String,
    #[serde(flatten)]
    pub sum: Sum,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Sum {
    /// Model calls that were paid for.
    pub calls: u64,
    /// Model calls that were blocked.
    pub refused: u64,
    /// With what is overdue.
    pub usd: f64,
    /// What nobody settled in its time, at the most it can have cost. By day, tenant and run; of which model it was is not known.
    pub overdue_usd: f64,
    /// Without those read from a cache or written to one.
    pub input_tokens: u64,
    /// Of the answers.
    pub output_tokens: u64,
    /// Read from a cache.
    pub cached_tokens: u64,
    /// Written to a cache.
    pub cache_write_tokens: u64,
    /// An estimate: the blocked calls at what a paid one cost on average; null where none was paid.
    pub saved_usd: Option<f64>,
}

impl Sum {
    fn of(spend: &Spend) -> Self {
        let (calls, refused) = (spend.calls, spend.refused());
        let mean = (calls > 0).then(|| spend.nanodollars as f64 / NANOS / calls as f64);
        Self {
            calls,
            refused,
            usd: spend.paid() as f64 / NANOS,
            overdue_usd: spend.overdue() as f64 / NANOS,
            input_tokens: spend.input,
            output_tokens: spend.output,
            cached_tokens: spend.cached,
            cache_write_tokens: spend.cache_writes,
            saved_usd: if refused == 0 { Some(0.0) } else { mean.map(|mean| mean * refused as f64) },
        }
    }
}

/// How a budget stands at this moment: one that many share, or a run's.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct BudgetStands {
    pub tenant: String,
    /// Such as `tenant/day`; of a run's own its name, mostly `default`.
    pub scope: String,
    pub name: String,
    #[serde(flatten)]
    pub figures: Figures,
    /// When it begins anew, in RFC 3339 and in milliseconds.
    pub renews_at: Option<String>,
    pub renews_at_ms: Option<i64>,
}

/// How an account stands.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Figures {
    pub spent_usd: f64,
    pub reserved_usd: f64,
    /// Of what is spent: set aside, and taken to have been paid because its time is over, but not booked yet.
    pub overdue_usd: f64,
    pub limit_usd: Option<f64>,
    pub remaining_usd: Option<f64>,
    pub spent_tokens: u64,
    pub reserved_tokens: u64,
    pub limit_tokens: Option<u64>,
    pub remaining_tokens: Option<u64>,
}

/// Dimensions that are read.
pub const READS: [Dimension; 2] = [Dimension::Spend, Dimension::Run];

type Cells = Vec<(CellKey, Cell)>;

fn of_range<'a>(range: &'a Range, cells: &'a Cells) -> impl Iterator<Item = (&'a CellKey, &'a Spend)> {
    let (first, last) = range.hours();
    let is_wanted = move |place: &CellKey| {
        (first..=last).contains(&place.hour) && range.filters.tenant.as_deref().is_none_or(|tenant| tenant == &*place.tenant)
    };
    cells.iter().filter(move |(place, _)| is_wanted(place)).filter_map(|(place, cell)| Some((place, cell.spend.as_deref()?)))
}

/// Adds up the cells of the range, by the days of a time zone. An hour belongs to the day it begins in.
pub fn spent(range: &Range, zone: &Zone, by: &[By], cells: &Cells) -> Spent {
    let mut total = Spend::default();
    let mut groups: BTreeMap<By, BTreeMap<(String, Box<str>), Spend>> = by.iter().map(|by| (*by, BTreeMap::new())).collect();
    for (place, spend) in of_range(range, cells) {
        if place.dimension == Dimension::Spend && &*place.first == TOTAL {
            total.add(spend);
        }
        for (by, sums) in &mut groups {
            let (dimension, first) = by.cells();
            if place.dimension == dimension && first.is_none_or(|first| first == &*place.first) {
                let tenant = match by {
                    By::Day | By::Model | By::Upstream => "",
                    By::Key | By::Run | By::Tenant | By::Scope => &place.tenant,
                };
                sums.entry((by.name_of(place, zone), tenant.into())).or_default().add(spend);
            }
        }
    }
    Spent {
        since_ms: range.since_ms,
        until_ms: range.until_ms,
        time_zone: zone.name().to_owned(),
        total: Sum::of(&total),
        groups: groups.into_iter().map(|(by, sums)| Group { by: by.code().to_owned(), entries: entries(by, sums) }).collect(),
        ..Spent::default()
    }
}

fn entries(by: By, sums: BTreeMap<(String, Box<str>), Spend>) -> Vec<Entry> {
    // Steps alone cost nothing.
    let mut sums: Vec<((String, Box<str>), Spend)> =
        sums.into_iter().filter(|(_, spend)| spend.calls > 0 || spend.refused() > 0 || spend.overdue() > 0).collect();
    let entry = |((name, tenant), spend): ((String, Box<str>), Spend)| Entry { name, tenant: tenant.into(), sum: Sum::of(&spend) };
    if by == By::Day {
        sums.drain(..sums.len().saturating_sub(MOST_ENTRIES));
        return sums.into_iter().map(entry).collect();
    }
    sums.sort_by_cached_key(|((name, _), spend)| (name == OTHER, Reverse((spend.paid(), spend.calls, spend.refused()))));
    let rest = sums.split_off(sums.len().min(MOST_ENTRIES));
    let mut shown: Vec<Entry> = sums.into_iter().map(entry).collect();
    if !rest.is_empty() {
        let mut sum = Spend::default();
        for (_, spend) in &rest {
            sum.add(spend);
        }
        shown.push(Entry { name: OTHER.to_owned(), tenant: String::new(), sum: Sum::of(&sum) });
    }
    shown
}

/// Sums of the runs whose names begin so, by tenant and name.
fn by_run<'a>(range: &'a Range, cells: &'a Cells, prefix: &str) -> BTreeMap<(&'a str, &'a str), Spend> {
    let mut sums: BTreeMap<(&str, &str), Spend> = BTreeMap::new();
    for (place, spend) in of_range(range, cells).filter(|(place, _)| place.dimension == Dimension::Run && is_named(&place.first)) {
        if place.first.starts_with(prefix) {
            sums.entry((&place.tenant, &place.first)).or_default().add(spend);
        }
    }
    sums
}

/// Runs that may have something set aside that nobody has settled: tenant and name, those first that were heard of longest ago.
pub fn unsettled(range: &Range, cells: &Cells) -> Vec<(Box<str>, Box<str>)> {
    /// Of more nobody is told.
    const MOST: usize = 2_000;
    let last_seen = |spend: Spend| spend.run.filter(RunCell::is_unsettled).map(|run| run.last_seen);
    let mut runs: Vec<_> = by_run(range, cells, "").into_iter().filter_map(|(run, spend)| Some((last_seen(spend)?, run))).collect();
    runs.sort_unstable();
    runs.into_iter().take(MOST).map(|(_, (tenant, run))| (tenant.into(), run.into())).collect()
}

/// What a run has paid that no row tells of yet: nobody settled it in its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overdue {
    pub tenant: Box<str>,
    pub run: Box<str>,
    pub nanodollars: u64,
}

/// The same as cells of the hour in which it is asked for.
pub fn overdue_cells(overdue: &[Overdue], now: Timestamp) -> impl Iterator<Item = (CellKey, Cell)> {
    let hour = now.as_millis().div_euclid(HOUR_MILLIS);
    overdue.iter().flat_map(move |Overdue { tenant, run, nanodollars }| {
        let cell = |dimension, first: &str| {
            let place = CellKey { hour, tenant: tenant.clone(), dimension, first: first.into(), second: "".into() };
            (place, Cell { spend: Some(Spend::unbooked(*nanodollars).into()), ..Cell::default() })
        };
        [cell(Dimension::Spend, TOTAL), cell(Dimension::Run, run)]
    })
}

/// By tenant: what kind of name, and the name.
pub type SpentFor = BTreeMap<Box<str>, Vec<(&'static str, String)>>;

/// Names that were spent for: of each tenant its models, keys and scopes, the dearest first.
pub fn names(range: &Range, cells: &Cells) -> SpentFor {
    let mut found: BTreeMap<Box<str>, BTreeMap<(&'static str, &str), u64>> = BTreeMap::new();
    for (place, spend) in of_range(range, cells).filter(|(place, _)| place.dimension == Dimension::Spend) {
        let Some(what) = [TOTAL, MODEL, KEY, SCOPE].into_iter().find(|what| *what == &*place.first) else { continue };
        if is_named(&place.second) {
            *found.entry(place.tenant.clone()).or_default().entry((what, &*place.second)).or_default() += spend.paid();
        }
    }
    let dearest = |names: BTreeMap<(&'static str, &str), u64>| {
        let mut names: Vec<_> = names.into_iter().collect();
        names.sort_by_key(|(_, nanodollars)| Reverse(*nanodollars));
        names.into_iter().map(|((what, name), _)| (what, name.to_owned())).collect()
    };
    found.into_iter().map(|(tenant, names)| (tenant, dearest(names))).collect()
}

/// How a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// It asked within the last 15 minutes.
    Live,
    /// It did not.
    #[default]
    Idle,
    /// Its latest call was blocked, and its next would be.
    Tripped,
    /// By hand.
    Stopped,
}

impl RunState {
    pub const ALL: [Self; 4] = [Self::Live, Self::Idle, Self::Tripped, Self::Stopped];

    pub const fn code(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Idle => "idle",
            Self::Tripped => "tripped",
            Self::Stopped => "stopped",
        }
    }

    /// In the words of whoever chooses among them.
    pub const fn about(self) -> &'static str {
        match self {
            Self::Live => "Asked lately",
            Self::Idle => "Has not asked for a while",
            Self::Tripped => "Its latest call was blocked, and its next would be",
            Self::Stopped => "Stopped by hand",
        }
    }

    pub fn from_code(code: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.code() == code)
    }
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Run {
    pub run: String,
    pub tenant: String,
    pub state: RunState,
    /// Why it is tripped.
    pub reason: Option<String>,
    /// What was said when it was stopped by hand.
    pub note: Option<String>,
    /// By what the gateway recognised it: `header`, `claude_code`, `metadata`, `previous_response`, `prompt_cache_key` or `beginning`.
    pub found_by: Option<String>,
    /// The provider.
    pub upstream: Option<String>,
    /// The latest.
    pub model: Option<String>,
    /// The id of the key that asked.
    pub key: Option<String>,
    /// What happened between its calls, as its conversation tells: what it did, and what people said.
    pub steps: u64,
    #[serde(flatten)]
    pub sum: Sum,
    /// Its own, at this moment and from its beginning on.
    pub budget: Figures,
    pub first_seen: String,
    pub last_seen: String,
    pub first_seen_ms: i64,
    pub last_seen_ms: i64,
}

/// What runs are sorted by, the most first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sort {
    #[default]
    LastSeen,
    Usd,
    Calls,
    Steps,
    Refused,
}

impl Sort {
    pub const ALL: [Self; 5] = [Self::LastSeen, Self::Usd, Self::Calls, Self::Steps, Self::Refused];

    pub const fn code(self) -> &'static str {
        match self {
            Self::LastSeen => "last_seen",
            Self::Usd => "usd",
            Self::Calls => "calls",
            Self::Steps => "steps",
            Self::Refused => "refused",
        }
    }

    /// In the words of whoever chooses among them.
    pub const fn about(self) -> &'static str {
        match self {
            Self::LastSeen => "The latest first",
            Self::Usd => "The dearest first",
            Self::Calls => "Those with the most model calls first",
            Self::Steps => "The longest first",
            Self::Refused => "Those blocked most often first",
        }
    }

    pub fn from_code(code: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|sort| sort.code() == code)
    }
}

/// Which runs.
#[derive(Debug, Clone, Default)]
pub struct RunQuery {
    /// What their names begin with.
    pub prefix: String,
    pub state: Option<RunState>,
    pub sort: Sort,
    /// So many are passed over.
    pub skip: usize,
    pub limit: usize,
    /// By the clock that decisions go by.
    pub now_ms: i64,
}

/// A page of runs.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Runs {
    pub since: String,
    pub until: String,
    pub since_ms: i64,
    pub until_ms: i64,
    pub behind_rows: u64,
    pub runs: Vec<Run>,
    /// Of all that the query finds, whatever the page.
    pub found: u64,
    pub next_cursor: Option<String>,
}

/// The runs of the range.
pub fn runs(range: &Range, query: &RunQuery, cells: &Cells) -> Runs {
    let sums = by_run(range, cells, &query.prefix);
    let shown = |((tenant, run), spend): ((&str, &str), Spend)| Some(shown(tenant, run, &spend, spend.run.as_ref()?, query.now_ms));
    let mut runs: Vec<Run> = sums.into_iter().filter_map(shown).filter(|run| query.state.is_none_or(|state| run.state == state)).collect();
    runs.sort_by_cached_key(|run| {
        let amount = match query.sort {
            Sort::LastSeen => 0,
            Sort::Usd => (run.sum.usd * NANOS) as u64,
            Sort::Calls => run.sum.calls,
            Sort::Steps => run.steps,
            Sort::Refused => run.sum.refused,
        };
        (Reverse((amount, run.last_seen_ms)), run.tenant.clone(), run.run.clone())
    });
    let found = runs.len();
    let page: Vec<Run> = runs.into_iter().skip(query.skip).take(query.limit).collect();
    let reached = query.skip.saturating_add(page.len());
    Runs {
        since_ms: range.since_ms,
        until_ms: range.until_ms,
        next_cursor: (reached < found && !page.is_empty()).then(|| reached.to_string()),
        found: found as u64,
        runs: page,
        ..Runs::default()
    }
}

fn shown(tenant: &str, run: &str, spend: &Spend, cell: &RunCell, now: i64) -> Run {
    let text = |newest: Option<&Newest<Box<str>>>| newest.map(|newest| newest.value.to_string());
    let note = match cell.control.as_ref().map(|control| &control.value) {
        Some(Control::Stopped { note }) => Some(&**note),
        Some(Control::Resumed) | None => None,
    };
    let refused = match cell.heard.as_ref().map(|heard| &heard.value) {
        Some(Heard::Refused { reason, until }) if until.is_none_or(|until| now < until) => Some(&**reason),
        Some(Heard::Refused { .. } | Heard::MayGoOn) | None => None,
    };
    let state = match (note, refused) {
        (Some(_), _) => RunState::Stopped,
        (None, Some(_)) => RunState::Tripped,
        (None, None) if now.saturating_sub(cell.last_seen) < LIVE_MILLIS => RunState::Live,
        (None, None) => RunState::Idle,
    };
    Run {
        run: run.to_owned(),
        tenant: tenant.to_owned(),
        state,
        reason: refused.filter(|_| state == RunState::Tripped).map(str::to_owned),
        note: note.map(str::to_owned),
        found_by: text(cell.found_by.as_ref()),
        upstream: text(cell.upstream.as_ref()),
        model: text(cell.model.as_ref()),
        key: text(cell.key.as_ref()),
        steps: spend.steps,
        sum: Sum::of(spend),
        first_seen_ms: cell.first_seen,
        last_seen_ms: cell.last_seen,
        ..Run::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Filters;
    use super::super::digest::Digest;
    use super::*;
    use proptest::prelude::*;
    use runguard_core::row::RowRef;

    /// Monday, 13 November 2023, at noon.
    const NOON: i64 = 1_699_876_800_000;

    fn row<'a>(seq: u64, at: i64, guard: &'a str, session: &'a str, outcome: &'a str, (answer, input): (&'a str, &'a str)) -> RowRef<'a> {
        let reason = match (outcome, guard) {
            ("blocked", "budget") => Some("budget_exceeded".into()),
            ("blocked", _) => Some("run_stalled".into()),
            _ => None,
        };
        let kind = if outcome.starts_with("run_") { "admin" } else { "check" };
        let subject = if guard == "budget" { "default" } else { "gpt-4o" };
        RowRef {
            seq,
            at,
            id: "",
            tenant: "acme",
            guard: guard.into(),
            kind: kind.into(),
            session,
            subject,
            outcome: outcome.into(),
            reason,
            answer,
            input,
        }
    }

    const PAID: (&str, &str) = (
        r#"{"cost_usd":0.5,"spent_usd":0.5}"#,
        r#"{"act":"commit","model":"gpt-4o","asked_with":"k1","used":{"input":10,"output":5,"cached":3},"call":{"upstream":"openai","operation":"chat","millis":20}}"#,
    );
    const REFUSED: (&str, &str) = (r#"{"cost_usd":9.0}"#, r#"{"act":"reserve","model":"gpt-4o","call":{"upstream":"openai"}}"#);
    const AGAIN: (&str, &str) = (r#"{"cost_usd":1.0}"#, r#"{"act":"reserve","model":"gpt-4o","call":{"upstream":"openai","again":true}}"#);
    const GIVEN_BACK: (&str, &str) = ("{}", r#"{"act":"release","call":{"upstream":"openai","refused":"budget_exceeded"}}"#);
    const FOLLOWED: (&str, &str) = (r#"{"new_steps":2}"#, r#"{"call":{"upstream":"openai","found_by":"header"}}"#);
    const STALLED: (&str, &str) = (r#"{"new_steps":1,"retry_after_seconds":3600}"#, "{}");
    const SAID: (&str, &str) = ("{}", r#"{"note":"too dear"}"#);

    fn cells(rows: &[RowRef<'_>]) -> Cells {
        let mut digest = Digest::default();
        for row in rows {
            digest.fold(row, xxhash_rust::xxh3::xxh3_64(row.session.as_bytes()));
        }
        let mut cells: Cells = digest.into_cells().collect();
        cells.sort_by(|left, right| left.0.cmp(&right.0));
        cells
    }

    fn range() -> Range {
        Range { since_ms: NOON - 43_200_000, until_ms: NOON + 43_200_000, bucket_seconds: 3600, filters: Filters::default() }
    }

    fn run_of(rows: &[RowRef<'_>], now: i64) -> Run {
        let query = RunQuery { limit: 10, now_ms: now, ..RunQuery::default() };
        runs(&range(), &query, &cells(rows)).runs.remove(0)
    }

    #[test]
    fn what_was_paid_is_summed_by_whatever_one_asks_for() {
        let rows = [row(1, NOON, "budget", "r", "allowed", PAID), row(2, NOON + 3_600_000, "budget", "r2", "allowed", PAID)];
        let shown = spent(&range(), &Zone::UTC, &By::ALL, &cells(&rows));
        assert_eq!((shown.total.calls, shown.total.input_tokens, shown.total.output_tokens, shown.total.cached_tokens), (2, 20, 10, 6));
        assert!((shown.total.usd - 1.0).abs() < 1e-9);
        let names = |by: &str| -> Vec<String> {
            let group = shown.groups.iter().find(|group| group.by == by).unwrap();
            group.entries.iter().map(|entry| entry.name.clone()).collect()
        };
        assert_eq!(
            (names("day"), names("model"), names("key")),
            (vec!["2023-11-13".to_owned()], vec!["gpt-4o".to_owned()], vec!["k1".to_owned()])
        );
        assert_eq!(
            (names("run"), names("upstream"), names("tenant")),
            (vec!["r".to_owned(), "r2".to_owned()], vec!["openai".to_owned()], vec!["acme".to_owned()])
        );
        assert!(names("scope").is_empty());
    }

    #[test]
    fn a_call_that_asks_again_is_refused_once_or_not_at_all() {
        let lowered = [
            row(1, NOON, "budget", "r", "blocked", REFUSED),
            row(2, NOON, "budget", "r", "allowed", AGAIN),
            row(3, NOON, "budget", "r", "allowed", PAID),
        ];
        let run = run_of(&lowered, NOON);
        assert_eq!((run.sum.calls, run.sum.refused, run.state), (1, 0, RunState::Live));
        let waited = [
            row(1, NOON, "budget", "r", "blocked", REFUSED),
            row(2, NOON, "budget", "r", "blocked", AGAIN),
            row(3, NOON, "budget", "r", "blocked", AGAIN),
        ];
        let run = run_of(&waited, NOON);
        assert_eq!((run.sum.refused, run.state, run.reason.as_deref()), (1, RunState::Tripped, Some("budget_exceeded")));
        assert_eq!(run.sum.saved_usd, None, "nothing is known of what a call costs");
        let busy = (r#"{"cost_usd":9.0,"reserved_usd":1.5}"#, REFUSED.1);
        let run = run_of(&[row(1, NOON, "budget", "r", "blocked", busy)], NOON);
        assert_eq!((run.sum.refused, run.state, run.reason), (1, RunState::Live, None), "what is set aside may be given back");
        let by_circuit = ("{}", r#"{"act":"release","call":{"upstream":"openai","refused":"circuit_open"}}"#);
        let run = run_of(&[row(1, NOON, "budget", "r", "allowed", by_circuit)], NOON);
        assert_eq!((run.sum.refused, run.state), (1, RunState::Live), "a circuit closes again");
        let too_short = [row(1, NOON, "budget", "r", "allowed", PAID), row(2, NOON, "budget", "r", "allowed", GIVEN_BACK)];
        let run = run_of(&too_short, NOON);
        assert_eq!((run.sum.refused, run.sum.saved_usd, run.state), (1, Some(0.5), RunState::Tripped));
    }

    #[test]
    fn a_run_is_what_was_said_last_of_it() {
        let mut rows = vec![row(1, NOON, "agent_run", "r", "allowed", FOLLOWED), row(2, NOON, "agent_run", "r", "blocked", STALLED)];
        let run = run_of(&rows, NOON + 1000);
        assert_eq!(
            (run.state, run.reason.as_deref(), run.steps, run.found_by.as_deref()),
            (RunState::Tripped, Some("run_stalled"), 3, Some("header"))
        );
        assert_eq!(run_of(&rows, NOON + 3_600_000).state, RunState::Idle, "its rest is over");
        rows.push(row(3, NOON, "agent_run", "r", "run_resumed", SAID));
        assert_eq!(run_of(&rows, NOON + 1000).state, RunState::Live);
        rows.push(row(4, NOON, "agent_run", "r", "run_stopped_by_hand", SAID));
        rows.push(row(5, NOON, "agent_run", "r", "allowed", FOLLOWED));
        let run = run_of(&rows, NOON + 7_200_000);
        assert_eq!((run.state, run.note.as_deref(), run.reason), (RunState::Stopped, Some("too dear"), None), "no time lifts it");
    }

    #[test]
    fn pages_are_sorted_and_go_on_where_they_ended() {
        let names: Vec<String> = (0..5).map(|number| format!("run-{number}")).collect();
        let rows: Vec<RowRef<'_>> =
            names.iter().enumerate().map(|(number, name)| row(0, NOON + number as i64, "budget", name, "allowed", PAID)).collect();
        let page = |skip| runs(&range(), &RunQuery { prefix: "run-".into(), skip, limit: 2, ..RunQuery::default() }, &cells(&rows));
        let named = |page: &Runs| page.runs.iter().map(|run| run.run.clone()).collect::<Vec<_>>();
        assert_eq!((named(&page(0)), page(0).next_cursor.as_deref()), (vec!["run-4".to_owned(), "run-3".to_owned()], Some("2")));
        assert_eq!((named(&page(4)), page(4).next_cursor, page(4).found), (vec!["run-0".to_owned()], None, 5));
        assert!(page(9).runs.is_empty());
    }

    proptest! {
        #[test]
        fn cells_add_up_in_any_order(order in Just((0..9_usize).collect::<Vec<_>>()).prop_shuffle(), cut in 0..9_usize) {
            let all = [
                row(1, NOON, "budget", "r", "blocked", REFUSED),
                row(2, NOON, "budget", "r", "allowed", AGAIN),
                row(3, NOON, "budget", "r", "allowed", PAID),
                row(4, NOON, "agent_run", "r", "allowed", FOLLOWED),
                row(5, NOON + 1, "agent_run", "r", "blocked", STALLED),
                row(6, NOON + 1, "agent_run", "r", "run_stopped_by_hand", SAID),
                row(7, NOON + 1, "agent_run", "r", "run_resumed", SAID),
                row(8, NOON + 2, "budget", "s", "allowed", PAID),
                row(9, NOON + 2, "budget", "r", "allowed", GIVEN_BACK),
            ];
            let shuffled: Vec<RowRef<'_>> = order.iter().map(|at| all[*at].clone()).collect();
            let mut in_pieces = Digest::default();
            for piece in [&shuffled[..cut], &shuffled[cut..]] {
                for (place, cell) in cells(piece) {
                    in_pieces.add(&place, &cell);
                }
            }
            let mut added: Cells = in_pieces.into_cells().collect();
            added.sort_by(|left, right| left.0.cmp(&right.0));
            prop_assert_eq!(added, cells(&all));
        }
    }
}
