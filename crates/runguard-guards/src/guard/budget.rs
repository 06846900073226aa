//! Keeps a run within what it may spend: dollars, tokens, calls.
//!
//! Money that is spent cannot be refused any more, so a caller that wants a hard limit *reserves* before the step and
//! *commits* what it really cost: committed and reserved together never pass the limit, however many ask at once. A
//! budget may draw on a parent's (a team's, a user's): both must have enough. A reservation that is never settled, because
//! its caller died, expires.
//!
//! What is asked may draw on *scopes* too: on a key's, a tenant's, a model's, a team's budget, for good or for a day, a week, a month.
//! Settings give limits to every key, tenant, model or team; a request names what the service does not know by itself. All must
//! have enough, and what is granted counts in all of them, in one step. For that all budgets of a tenant live together.
//!
//! The limit of the settings is a ceiling. A caller may set a limit of its own, and another one later: it is the caller's, and
//! holds for that budget. What is in force is the lower of the two, so that no caller gets past what the operator allows, and
//! a ceiling that the operator moves holds at once. What the caller asked for is kept as it was asked. A scope belongs to many: a limit
//! that a caller gives for it holds for that one question.

pub(crate) mod row;

use self::row::Kept;
use super::{
    AnswerField, AnswerKind, Decide, Finding, Guard, GuardEntry, GuardedStep, Holds, Lasts, LivesWith, Moment, Place, Route, RouteKind,
    Ruling, RulingOf, Scope as PlaceScope, Slot, Stored, says,
};
use crate::answer::Facts;
use crate::input::{Field, Input, Kind, is_per};
use crate::logged;
use crate::policy::{GuardSettings, Policy, Section, Setting};
use runguard_core::calendar::{Period, Zone};
use runguard_core::ledger::{
    Account, BudgetExceeded, Cost, Entry, Level, Limits, MAX_STORED_KEYS, MAX_STORED_RESERVATIONS, MAX_STORED_RESERVATIONS_OF_SCOPE,
    MOST_SCOPES, Scope, Unit, first_of, number_of, scope_label,
};
use runguard_core::limits::{InvalidSetting, lasting, within};
use runguard_core::money::NanoDollars;
use runguard_core::prices::{Prices, ServiceTier, UnknownModel, UnknownModelError, Usage};
use runguard_core::reason::{GuardName, Reason};
use runguard_core::run::sentence;
use runguard_core::text::StoreText;
use runguard_core::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock};

/// What a policy has of it.
pub type Sections = Arc<Section<Settings>>;

pub(super) const ENTRY: GuardEntry = GuardEntry {
    routes: &[&CHECK_ROUTE, &RECORD_ROUTE, &RESERVE_ROUTE, &COMMIT_ROUTE, &RELEASE_ROUTE],
    slots: &[&SLOT, &SCOPE_SLOT],
    step: GuardedStep::ModelCall,
    holds: Holds::Money,
    shows: row::shows,
    retelling: || Box::new(row::Retelling::default()),
    traces: None,
};

pub static SLOT: Slot = Slot { lives_with: LivesWith::Budget, ..Slot::of::<Budget, 0>(12, Lasts::Log) };
pub static SCOPE_SLOT: Slot = Slot { lives_with: LivesWith::Budget, ..Slot::of::<Budget, 0>(15, Lasts::Month) };

/// Fields of every route, and then those of one.
macro_rules! fields {
    ($($more:expr),* $(,)?) => {
        &[
            Field::required("session_id", Kind::Id, "Whose budget: a run, a session, a user.", "\"run-1\""),
            Field::optional("budget", Kind::Id, "Which of its budgets; one is enough for most.", "\"default\""),
            Field::optional("parent", Kind::Id, "The session whose budget of the same name this one draws on.", "\"team-7\""),
            Field::optional("max_usd", Kind::Dollars, "The caller's own limit in dollars; it stays until another is given, and cannot be above the limit of the settings.", "5.00"),
            Field::optional("max_tokens", Kind::Whole(0), "The same in tokens.", "200000"),
            Field::optional("cap", Kind::Whole(0), "The same in calls of one key.", "2"),
            Field::optional("scopes", Kind::Scopes, "What it draws on besides: at most 16 of {per, name, period, max_usd, max_tokens, cap}. `per` is any word, such as team; run, tenant, key and model need no name. `period` is day, week or month, or left out. A limit holds for this question, and cannot be above that of the settings. To settle a reservation, name the same.", "[{\"per\":\"team\",\"name\":\"search\",\"period\":\"day\"}]"),
            $($more),*
        ]
    };
}

/// The same with what a step costs.
macro_rules! cost_fields {
    ($($more:expr),* $(,)?) => {
        fields![
            Field::optional("usd", Kind::Dollars, "Dollars.", "0.012"),
            Field::optional("credits", Kind::Dollars, "Credits of a platform, if no dollars are given: booked at the price the settings have for one (credit_usd).", "3"),
            Field::optional("tokens", Kind::Whole(0), "Tokens, if no model is named.", "1200"),
            Field::optional("key", Kind::Id, "What is counted against the cap, such as a step or a task.", "\"capture_email\""),
            Field::optional("model", Kind::Id, "The model, to price its tokens from the table.", "\"gpt-4o\""),
            Field::optional("input_tokens", Kind::Whole(0), "Input tokens, without cached ones.", "900"),
            Field::optional("output_tokens", Kind::Whole(0), "Output tokens.", "300"),
            Field::optional("cached_tokens", Kind::Whole(0), "Input tokens read from a cache.", "0"),
            Field::optional("cache_write_tokens", Kind::Whole(0), "Input tokens written to a cache.", "0"),
            Field::optional("cache_write_1h_tokens", Kind::Whole(0), "Input tokens written to a cache for an hour, not among the others.", "0"),
            Field::optional("audio_input_tokens", Kind::Whole(0), "Input tokens of sound, not among input_tokens.", "0"),
            Field::optional("audio_output_tokens", Kind::Whole(0), "Output tokens of sound, not among output_tokens.", "0"),
            Field::optional(
                "service_tier",
                Kind::Id,
                "How it was served, as the provider says: priority, flex or batch; anything else is the standard.",
                "\"default\"",
            ),
            $($more),*
        ]
    };
}

const RESERVATION: Field = Field::required("reservation_id", Kind::Id, "As the reserve route gave it.", "\"01JF8Z6Q0V3N1W2X4Y5Z6A7B8C\"");

/// What every route says, and then what one does.
macro_rules! answers {
    ($($more:expr),*) => {
        &[
            says("budget", AnswerKind::Text, "The budget."),
            says("cost_usd", AnswerKind::Number, "Dollars asked for, recorded or committed."),
            says("spent_usd", AnswerKind::Number, "Dollars spent."),
            says("reserved_usd", AnswerKind::Number, "Dollars set aside."),
            says("limit_usd", AnswerKind::Number, "Dollars allowed, if there is a limit."),
            says("remaining_usd", AnswerKind::Number, "Dollars left, in all it draws on, if there is a limit."),
            says("spent_tokens", AnswerKind::Whole, "Tokens spent."),
            says("reserved_tokens", AnswerKind::Whole, "Tokens set aside."),
            says("limit_tokens", AnswerKind::Whole, "Tokens allowed, if there is a limit."),
            says("remaining_tokens", AnswerKind::Whole, "Tokens left, in all it draws on, if there is a limit."),
            $($more),*
        ]
    };
}

macro_rules! route {
    ($name:ident, $path:literal, $act:ident, $summary:literal, $fields:expr, $answers:expr, $reasons:expr) => {
        pub static $name: Route = Route {
            path: concat!("/guard/budget/", $path),
            guard: GuardName::Budget,
            kind: RouteKind::Check,
            summary: $summary,
            fields: $fields,
            answers: $answers,
            reasons: $reasons,
            read: |input| Box::new(Request::read(input, Act::$act)),
        };
    };
}

route!(
    CHECK_ROUTE,
    "check",
    Check,
    "Is there enough left for this? Nothing is counted.",
    cost_fields![],
    answers![LEVEL, SCOPE, SCOPE_NAME, RENEWS, MODEL, CREDITS_LEFT, CALLS, REMAINING_CALLS, CAP],
    &[Reason::UnknownModel, Reason::CallCapReached, Reason::BudgetExceeded]
);
route!(
    RECORD_ROUTE,
    "record",
    Record,
    "This was spent. It counts, also when it passes the limit. A key without a cost asks for a call: refused, it is not counted.",
    cost_fields![],
    answers![
        LEVEL,
        SCOPE,
        SCOPE_NAME,
        RENEWS,
        MODEL,
        CREDITS_LEFT,
        CALLS,
        REMAINING_CALLS,
        CAP,
        NEAREST,
        NEAREST_NAME,
        NEAREST_PERCENT,
        NEAREST_RENEWS
    ],
    &[Reason::UnknownModel, Reason::CallCapReached, Reason::BudgetExceeded]
);
route!(
    RESERVE_ROUTE,
    "reserve",
    Reserve,
    "Set this aside for a step, if there is enough.",
    cost_fields![],
    answers![LEVEL, SCOPE, SCOPE_NAME, RENEWS, MODEL, CREDITS_LEFT, CALLS, REMAINING_CALLS, CAP, RESERVATION_ID],
    &[Reason::UnknownModel, Reason::CallCapReached, Reason::BudgetExceeded, Reason::TooManyReservations]
);
route!(
    COMMIT_ROUTE,
    "commit",
    Commit,
    "The step is done and cost this much; without a cost, what was reserved.",
    cost_fields![RESERVATION],
    answers![
        LEVEL,
        SCOPE,
        SCOPE_NAME,
        RENEWS,
        MODEL,
        CREDITS_LEFT,
        CALLS,
        REMAINING_CALLS,
        NEAREST,
        NEAREST_NAME,
        NEAREST_PERCENT,
        NEAREST_RENEWS,
        KNOWN
    ],
    &[Reason::UnknownModel, Reason::BudgetExceeded]
);
route!(
    RELEASE_ROUTE,
    "release",
    Release,
    "The step was not done: what was reserved is free again.",
    fields![RESERVATION, Field::optional("model", Kind::Id, "The model that was named to reserve, where it has a scope.", "\"gpt-4o\"")],
    answers![KNOWN],
    &[]
);

const LEVEL: AnswerField = says("level", AnswerKind::Text, "Refused: whether this budget, the parent or a scope is used up.");
const SCOPE: AnswerField = says("scope", AnswerKind::Text, "Refused by a scope: which, such as team/day.");
const SCOPE_NAME: AnswerField = says("scope_name", AnswerKind::Text, "Refused by a scope: whose, such as the name of the team.");
const RENEWS: AnswerField = says("renews_in_seconds", AnswerKind::Whole, "Refused by a limit of a period: when the next one begins.");
const MODEL: AnswerField = says("model", AnswerKind::Text, "Unknown model: its name.");
const CREDITS_LEFT: AnswerField =
    says("remaining_credits", AnswerKind::Number, "Dollars left as credits, where the question is in credits.");
const CALLS: AnswerField = says("calls", AnswerKind::Whole, "Calls of the key.");
const REMAINING_CALLS: AnswerField =
    says("remaining_calls", AnswerKind::Whole, "Calls of the key left, in all it draws on, if there is a cap.");
const CAP: AnswerField = says("cap", AnswerKind::Whole, "Cap reached: calls allowed.");
const RESERVATION_ID: AnswerField = says("reservation_id", AnswerKind::Text, "To commit or release it.");
const NEAREST: AnswerField =
    says("nearest_scope", AnswerKind::Text, "Allowed: the scope that is nearest to its limit, such as tenant/month.");
const NEAREST_NAME: AnswerField = says("nearest_scope_name", AnswerKind::Text, "Whose it is.");
const NEAREST_PERCENT: AnswerField = says("nearest_scope_percent", AnswerKind::Number, "How much of its limit is spent.");
const NEAREST_RENEWS: AnswerField =
    says("nearest_scope_renews_in_seconds", AnswerKind::Whole, "When its next period begins, if it has one.");
const KNOWN: AnswerField = says("known", AnswerKind::Flag, "Whether the reservation was still open.");

/// What an answer calls a budget that another one draws on, and one that many sessions share.
const OF_PARENT: &str = "parent";
const OF_SCOPE: &str = "scope";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnknownModels {
    /// Refused: a price that is not known cannot be kept within a limit.
    Error,
    /// Its tokens cost nothing.
    Free,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    pub max_usd: f64,
    pub max_tokens: u64,
    pub cap: u32,
    pub reservation: Span,
    pub unknown_models: UnknownModels,
    pub max_credits: f64,
    pub credit_usd: f64,
    pub time_zone: Zone,
    pub scopes: Scopes,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_usd: 0.0,
            max_tokens: 0,
            cap: 0,
            reservation: Span::from_seconds(900),
            unknown_models: UnknownModels::Error,
            max_credits: 0.0,
            credit_usd: 1.0,
            time_zone: Zone::UTC,
            scopes: Scopes::default(),
        }
    }
}

impl GuardSettings for Settings {
    const GUARD: GuardName = GuardName::Budget;
    const SECTION: &'static [&'static str] = &["budget"];
    const SUBJECTS: &'static str = "budgets";
    const SETTINGS: &'static [Setting] = &[
        Setting {
            key: "max_usd",
            about: "Dollars a session may spend. A caller's max_usd can be lower, not higher; 0 for no limit but the caller's.",
        },
        Setting { key: "max_tokens", about: "Tokens a session may use; so too." },
        Setting { key: "cap", about: "Calls of one key; so too." },
        Setting { key: "reservation", about: "A reservation that is not settled in this time is free again." },
        Setting {
            key: "unknown_models",
            about: "A model without a price, where dollars are limited: \"error\" refuses, \"free\" counts its tokens only.",
        },
        Setting {
            key: "max_credits",
            about: "Credits a session may use, at credit_usd each; 0 for no limit. The lower of this and max_usd holds.",
        },
        Setting {
            key: "credit_usd",
            about: "What one credit of your platform costs: `credits` of requests and max_credits of the settings are kept as so many dollars.",
        },
        Setting { key: "time_zone", about: "In which days, weeks (from Monday) and months begin, such as \"Europe/Berlin\"." },
        Setting {
            key: "scopes",
            about: "Limits shared by many sessions, by what and for how long: scopes.tenant.day = { max_usd = 50 }, scopes.key.total, scopes.model.month, scopes.run.total; run, tenant, key (by the key's id) and model are known, any other word (team, user) is what requests name. day, week, month or total; max_usd, max_credits, max_tokens, cap, 0 for no limit; one's own below names: scopes.model.day.names.\"gpt-4o\" = { max_usd = 5 }. A limit that is changed finds what was used.",
        },
    ];

    fn longest_window(&self) -> Span {
        self.reservation
    }

    fn check(&self) -> Result<(), InvalidSetting> {
        NanoDollars::from_dollars(self.max_usd).map_err(|error| InvalidSetting::new("max_usd", error.to_string()))?;
        within("cap", self.cap, 0..=1_000_000)?;
        if !(self.credit_usd > 0.0 && self.credit_usd <= 1_000_000.0) {
            return Err(InvalidSetting::new("credit_usd", format!("must be more than 0 and at most 1000000, is {}", self.credit_usd)));
        }
        let most_credits = self.scopes.0.iter().flat_map(ScopeRule::credits).chain([self.max_credits]);
        for credits in most_credits {
            self.price_of(credits).map_err(|problem| InvalidSetting::new("max_credits", problem))?;
        }
        lasting("reservation", self.reservation)
    }
}

impl Settings {
    /// What so many credits cost.
    fn price_of(&self, credits: f64) -> Result<NanoDollars, String> {
        NanoDollars::from_dollars(credits * self.credit_usd).map_err(|error| error.to_string())
    }

    /// A limit in credits, as dollars. In settings nothing means no limit.
    fn limit_of_credits(&self, credits: f64) -> Limits {
        let usd = self.price_of(credits).ok().filter(|usd| !usd.is_zero());
        Limits { usd, ..Limits::default() }
    }
}

/// The limits of the settings, which no caller gets past.
fn ceiling(settings: &Settings) -> Limits {
    let usd = NanoDollars::from_dollars(settings.max_usd).unwrap_or(NanoDollars::ZERO);
    limits_of(usd, settings.max_tokens, settings.cap).within(settings.limit_of_credits(settings.max_credits))
}

/// In settings nothing means no limit.
fn limits_of(usd: NanoDollars, tokens: u64, cap: u32) -> Limits {
    Limits { usd: (!usd.is_zero()).then_some(usd), tokens: (tokens > 0).then_some(tokens), cap: (cap > 0).then_some(cap) }
}

/// Limits of the settings that many sessions share, by what and for how long.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(try_from = "ScopeTables", into = "ScopeTables")]
pub struct Scopes(Vec<ScopeRule>);

/// As they stand in the settings: by what, for how long.
type ScopeTables = BTreeMap<String, BTreeMap<String, ScopeTable>>;

/// For what never begins anew, where a period could stand.
const TOTAL: &str = "total";

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ScopeTable {
    #[serde(skip_serializing_if = "Option::is_none")]
    max_usd: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_credits: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cap: Option<u32>,
    /// One's own; what is left out is as for all.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    names: BTreeMap<String, ScopeTable>,
}

#[derive(Debug, Clone)]
struct ScopeRule {
    per: String,
    period: Option<Period>,
    label: String,
    table: ScopeTable,
    limits: Limits,
    names: BTreeMap<String, Limits>,
}

impl ScopeRule {
    fn limits_of(&self, name: &str, settings: &Settings) -> Limits {
        let limits = self.names.get(name).copied().unwrap_or(self.limits);
        let credits = self.table.names.get(name).and_then(|own| own.max_credits).or(self.table.max_credits);
        credits.map_or(limits, |credits| limits.within(settings.limit_of_credits(credits)))
    }

    /// Every limit in credits.
    fn credits(&self) -> impl Iterator<Item = f64> + '_ {
        self.table.names.values().chain([&self.table]).filter_map(|table| table.max_credits)
    }
}

impl TryFrom<ScopeTables> for Scopes {
    type Error = String;

    fn try_from(tables: ScopeTables) -> Result<Self, String> {
        let mut rules = Vec::new();
        for (per, periods) in tables {
            if !is_per(&per) {
                return Err(format!("`{per}` must be a word of at most 32 small letters, digits, _ and -, such as tenant or team"));
            }
            for (period, table) in periods {
                let known = Period::ALL.into_iter().find(|known| known.as_str() == period);
                if known.is_none() && period != TOTAL {
                    return Err(format!(
                        "`{per}.{period}`: `{period}` is no period; use day, week, month, or {TOTAL} for what never begins anew"
                    ));
                }
                if per == "tenant" && !table.names.is_empty() {
                    return Err(format!(
                        "`{per}.{period}.names` has no meaning: the tenant is whose request it is. For one of them write [tenants.NAME.guards.budget.scopes.{per}.{period}]"
                    ));
                }
                let said = |problem: String| format!("`{per}.{period}`: {problem}");
                let own = |(name, own): (&String, &ScopeTable)| own.limits(&table).map(|limits| (name.clone(), limits));
                rules.push(ScopeRule {
                    label: scope_label(&per, known),
                    per: per.clone(),
                    period: known,
                    limits: table.limits(&ScopeTable::default()).map_err(said)?,
                    names: table.names.iter().map(own).collect::<Result<_, _>>().map_err(said)?,
                    table,
                });
            }
        }
        if rules.len() > MOST_SCOPES {
            return Err(format!("there are {}; at most {MOST_SCOPES} are taken", rules.len()));
        }
        Ok(Self(rules))
    }
}

impl From<Scopes> for ScopeTables {
    fn from(scopes: Scopes) -> Self {
        let mut tables = Self::new();
        for rule in scopes.0 {
            let period = rule.period.map_or(TOTAL, Period::as_str);
            tables.entry(rule.per).or_default().insert(period.to_owned(), rule.table);
        }
        tables
    }
}

impl ScopeTable {
    fn limits(&self, others: &Self) -> Result<Limits, String> {
        if self.names.values().any(|own| !own.names.is_empty()) {
            return Err("`names` stands once, below the period".into());
        }
        let usd = NanoDollars::from_dollars(self.max_usd.or(others.max_usd).unwrap_or(0.0)).map_err(|error| format!("max_usd: {error}"))?;
        let tokens = self.max_tokens.or(others.max_tokens).unwrap_or(0);
        Ok(limits_of(usd, tokens, self.cap.or(others.cap).unwrap_or(0)))
    }
}

/// A scope that a request draws on.
#[derive(Debug, Clone, Copy)]
struct Drawn<'a> {
    label: &'a str,
    name: &'a str,
    period: Option<Period>,
    /// In force for this question.
    limits: Limits,
}

impl Drawn<'_> {
    fn words(&self) -> String {
        let per = self.label.split('/').next().unwrap_or_default();
        let for_how_long = self.period.map_or_else(String::new, |period| format!(" for the {period}"));
        match self.name {
            "" => format!("{per}'s budget{for_how_long}"),
            name => format!("budget of {per} '{name}'{for_how_long}"),
        }
    }
}

/// The budget, and those it draws on.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct State {
    /// The budget itself, its parent, the scopes.
    path: Vec<Account>,
}

impl Stored for State {
    fn load(parts: &[Option<&[u8]>]) -> Self {
        Self { path: parts.iter().map(|part| part.map(Account::from_bytes).unwrap_or_default()).collect() }
    }

    fn save(&self, part: usize) -> Vec<u8> {
        self.path[part].to_bytes()
    }
}

/// What happens to one account of the path.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Event {
    /// Which one of the path.
    steps: u32,
    entry: Entry,
}

#[derive(Debug)]
pub struct Budget;

impl Guard for Budget {
    type Settings = Settings;
    type State = State;
    type Event = Event;

    fn section(policy: &Policy) -> &Section<Settings> {
        &policy.budget
    }

    fn apply(state: &mut State, event: &Event, at: Timestamp) {
        let part = Self::part(event);
        if state.path.len() <= part {
            state.path.resize_with(part + 1, Account::default);
        }
        state.path[part].apply(&event.entry, at, MAX_STORED_KEYS);
    }

    fn part(event: &Event) -> usize {
        event.steps as usize
    }

    /// Whether a budget was asked itself, as a parent or as a scope makes no difference to it.
    fn replay(_part: usize, state: Option<&[u8]>, events: &[u8], at: Timestamp) -> Option<Vec<u8>> {
        let events: Vec<Event> = postcard::from_bytes(events).ok()?;
        let mut account = state.map(Account::from_bytes).unwrap_or_default();
        for Event { entry, .. } in events {
            account.apply(&entry, at, MAX_STORED_KEYS);
        }
        Some(account.to_bytes())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Check,
    Record,
    Reserve,
    Commit,
    Release,
}

impl Act {
    fn route(self) -> &'static Route {
        match self {
            Self::Check => &CHECK_ROUTE,
            Self::Record => &RECORD_ROUTE,
            Self::Reserve => &RESERVE_ROUTE,
            Self::Commit => &COMMIT_ROUTE,
            Self::Release => &RELEASE_ROUTE,
        }
    }
}

#[derive(Debug)]
pub struct Request {
    act: Act,
    session_id: String,
    budget: String,
    parent: Option<String>,
    limits: Limits,
    usd: Option<NanoDollars>,
    credits: Option<f64>,
    tokens: Option<u64>,
    key: Option<String>,
    model: Option<String>,
    /// What of the model was used, where its price is to be found.
    usage: Option<Usage>,
    reservation: Option<String>,
    scopes: Vec<Scope>,
    /// The key that it was asked with.
    asked_with: Option<String>,
}

/// What a row of the log tells of a request.
#[derive(Debug, Clone)]
struct Told<'a> {
    session_id: &'a str,
    budget: &'a str,
    /// The last part of the route.
    act: &'a str,
    parent: Option<&'a str>,
    /// Of the session's own budget.
    events: Option<&'a [u8]>,
    /// What was asked for, where nothing happened.
    asked_usd: Option<f64>,
    asked_tokens: Option<u64>,
    /// The limits it brought along.
    limit_usd: Option<f64>,
    limit_tokens: Option<u64>,
    cap: Option<u64>,
    /// What it drew on besides, as [`shown`] shows it.
    scopes: Vec<&'a str>,
    model: Option<&'a str>,
    asked_with: Option<&'a str>,
    /// The names of reservations by their numbers.
    reservations: &'a BTreeMap<u64, String>,
}

/// The request that a row of the log tells of. `None` when it does not tell enough.
fn again(told: Told<'_>) -> Option<Request> {
    let act =
        [Act::Check, Act::Record, Act::Reserve, Act::Commit, Act::Release].into_iter().find(|act| act.route().path.ends_with(told.act))?;
    let events: Vec<Event> = told.events.and_then(|events| postcard::from_bytes(events).ok()).unwrap_or_default();
    let mut request = Request {
        act,
        session_id: told.session_id.to_owned(),
        budget: told.budget.to_owned(),
        parent: told.parent.map(str::to_owned),
        limits: Limits {
            usd: told.limit_usd.and_then(|usd| NanoDollars::from_dollars(usd).ok()),
            tokens: told.limit_tokens,
            cap: told.cap.map(calls),
        },
        usd: told.asked_usd.and_then(|usd| NanoDollars::from_dollars(usd).ok()),
        // They are in the dollars.
        credits: None,
        tokens: told.asked_tokens,
        key: None,
        model: told.model.map(str::to_owned),
        usage: None,
        reservation: None,
        scopes: told.scopes.iter().filter_map(|shown| read_shown(shown)).collect(),
        asked_with: told.asked_with.map(str::to_owned),
    };
    for event in events.into_iter().filter(|event| event.steps == 0) {
        match event.entry {
            Entry::Limited(limits) => request.limits = limits,
            Entry::Spent(cost) | Entry::Reserved { cost, .. } => {
                (request.usd, request.tokens) = (Some(cost.usd), Some(cost.tokens));
            }
            Entry::Settled { id } => request.reservation = Some(told.reservations.get(&id).cloned().unwrap_or_else(|| id.to_string())),
            // Its name is not kept; a name made of its number tells it from others all the same.
            Entry::Counted { key } => request.key = Some(key.to_string()),
            Entry::Began { .. } => {}
        }
    }
    Some(request)
}

/// A scope of the request as the log tells it: `team/day max_usd=5:search`.
fn shown(scope: &Scope) -> String {
    let Limits { usd, tokens, cap } = scope.limits;
    let usd = usd.map_or_else(String::new, |usd| format!(" max_usd={}", usd.as_dollars()));
    let tokens = tokens.map_or_else(String::new, |tokens| format!(" max_tokens={tokens}"));
    let cap = cap.map_or_else(String::new, |cap| format!(" cap={cap}"));
    format!("{}{usd}{tokens}{cap}:{}", scope.label, scope.name)
}

fn read_shown(shown: &str) -> Option<Scope> {
    let (head, name) = shown.split_once(':')?;
    let mut words = head.split(' ');
    let label = words.next()?;
    let mut limits = Limits::default();
    for (key, value) in words.filter_map(|word| word.split_once('=')) {
        match key {
            "max_usd" => limits.usd = NanoDollars::from_dollars(value.parse().ok()?).ok(),
            "max_tokens" => limits.tokens = value.parse().ok(),
            "cap" => limits.cap = value.parse().ok(),
            _ => return None,
        }
    }
    let (per, period) = label.split_once('/').map_or((label, None), |(per, period)| (per, Some(period)));
    let period = match period {
        Some(period) => Some(Period::ALL.into_iter().find(|known| known.as_str() == period)?),
        None => None,
    };
    Some(Scope { per: per.to_owned(), name: name.to_owned(), period, limits, label: label.to_owned() })
}

/// As many calls as can be counted.
fn calls(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The number a reservation is known by in events.
fn reservation_number(id: &str) -> u64 {
    number_of(id)
}

#[derive(Debug)]
pub enum Block {
    Model(UnknownModelError),
    Exceeded(BudgetExceeded),
    Reservations { open: u32 },
}

#[derive(Debug)]
pub struct Pass {
    reservation_id: Option<String>,
    known: Option<bool>,
    cost: Cost,
    /// Of the budget itself, once this is done.
    spent: Cost,
    reserved: Cost,
    limits: Limits,
    /// Over all the path.
    remaining_usd: Option<NanoDollars>,
    remaining_tokens: Option<u64>,
    remaining_credits: Option<f64>,
    calls: Option<u32>,
    remaining_calls: Option<u32>,
    nearest: Option<Nearest>,
}

/// A scope, and how much of its limit is spent.
#[derive(Debug)]
struct Nearest {
    label: String,
    name: String,
    percent: f64,
    renews_in_seconds: Option<u64>,
}

/// An account that is asked, and the limits in force there.
#[derive(Debug, Clone)]
struct OnPath<'a> {
    account: Cow<'a, Account>,
    limits: Limits,
}

impl Request {
    fn read(input: &Input<'_>, act: Act) -> Self {
        let session_id = input.text("session_id");
        let id = |name: &str| input.optional_text(name).filter(|text| !text.is_empty());
        let limits = Limits { usd: input.dollars("max_usd"), tokens: input.whole("max_tokens"), cap: input.whole("cap").map(calls) };
        let count = |name: &str| input.whole(name).unwrap_or(0);
        let model = id("model");
        // What is given back is not priced.
        let usage = (model.is_some() && act != Act::Release).then(|| Usage {
            input_tokens: count("input_tokens"),
            output_tokens: count("output_tokens"),
            cached_tokens: count("cached_tokens"),
            cache_write_tokens: count("cache_write_tokens"),
            cache_write_1h_tokens: count("cache_write_1h_tokens"),
            audio_input_tokens: count("audio_input_tokens"),
            audio_output_tokens: count("audio_output_tokens"),
            service_tier: id("service_tier").map_or_else(ServiceTier::default, |tier| ServiceTier::named(&tier)),
        });
        Self {
            act,
            budget: id("budget").unwrap_or_else(|| "default".into()),
            // A budget cannot draw on itself.
            parent: id("parent").filter(|parent| *parent != session_id),
            session_id,
            limits,
            usd: input.dollars("usd"),
            credits: input.dollars("credits").map(NanoDollars::as_dollars),
            tokens: input.whole("tokens"),
            key: id("key"),
            model,
            usage,
            reservation: id("reservation_id"),
            scopes: input.scopes("scopes"),
            asked_with: input.asked_with.filter(|key| !key.is_empty()).map(str::to_owned),
        }
    }

    /// Whose scope of a kind it draws on. What the service knows no caller says otherwise.
    fn name_of<'a>(&'a self, per: &str, said: Option<&'a str>) -> Option<&'a str> {
        let name = match per {
            "run" => Some(self.session_id.as_str()),
            // Accounts are a tenant's anyway.
            "tenant" => return Some(""),
            "key" => self.asked_with.as_deref(),
            "model" => self.model.as_deref().or(said),
            _ => said,
        };
        name.filter(|name| !name.is_empty())
    }

    /// Scopes of the settings that apply to it, and those it names itself; each once.
    fn drawn_on<'a>(&'a self, settings: &'a Settings) -> Vec<Drawn<'a>> {
        let mut drawn: Vec<Drawn<'a>> = Vec::new();
        let mut draw = |new: Drawn<'a>| match drawn.iter_mut().find(|known| known.label == new.label && known.name == new.name) {
            Some(known) => known.limits = new.limits.within(known.limits),
            None => drawn.push(new),
        };
        for rule in &settings.scopes.0 {
            let said = self.scopes.iter().filter(|scope| scope.per == rule.per).map(|scope| Some(scope.name.as_str()));
            for name in std::iter::once(None).chain(said).filter_map(|said| self.name_of(&rule.per, said)) {
                draw(Drawn { label: &rule.label, name, period: rule.period, limits: rule.limits_of(name, settings) });
            }
        }
        for Scope { per, name, period, limits, label } in &self.scopes {
            if let Some(name) = self.name_of(per, Some(name)) {
                draw(Drawn { label, name, period: *period, limits: *limits });
            }
        }
        drawn
    }

    /// Accounts of the path before the scopes.
    fn line(&self) -> usize {
        1 + usize::from(self.parent.is_some())
    }

    fn level(&self, steps: usize) -> Level {
        match steps.checked_sub(self.line()) {
            Some(scope) => Level::Scope(scope as u32),
            None => Level::above(steps),
        }
    }

    /// What the request says it costs, if it does, and the model that has no price.
    fn cost(&self, settings: &Settings) -> (Option<Cost>, Option<UnknownModelError>) {
        // More than can be counted is as much as can be.
        let of_credits = || self.credits.map(|credits| settings.price_of(credits).unwrap_or(NanoDollars::MAX));
        let usd = self.usd.or_else(of_credits);
        let (Some(model), Some(usage)) = (&self.model, &self.usage) else {
            let told = usd.is_some() || self.tokens.is_some();
            return (told.then(|| Cost { usd: usd.unwrap_or_default(), tokens: self.tokens.unwrap_or(0) }), None);
        };
        // What the caller knows better than the table.
        if let Some(usd) = usd {
            return (Some(Cost { usd, tokens: usage.total_tokens() }), None);
        }
        let unknown = match settings.unknown_models {
            UnknownModels::Error => UnknownModel::Error,
            UnknownModels::Free => UnknownModel::Free,
        };
        let (cost, unpriced) = usage.cost(|| Prices::bundled().cost(model, usage, &unknown).map(|(usd, _)| usd));
        (Some(cost), unpriced)
    }

    /// The path as it is at this moment: periods that are over have begun anew. With what began.
    fn path<'a>(&self, settings: &Settings, state: &'a State, now: Timestamp) -> (Vec<OnPath<'a>>, Vec<Event>) {
        static EMPTY: LazyLock<Account> = LazyLock::new(Account::default);
        let account_at = |steps: usize| Cow::Borrowed(state.path.get(steps).unwrap_or(&EMPTY));
        let mut path: Vec<OnPath<'a>> = Vec::with_capacity(state.path.len());
        for steps in 0..self.line() {
            let account = account_at(steps);
            let own = if steps == 0 { self.limits.or(account.limits) } else { account.limits };
            path.push(OnPath { account, limits: own.within(ceiling(settings)) });
        }
        let mut began = Vec::new();
        for Drawn { period, limits, .. } in self.drawn_on(settings) {
            let mut account = account_at(path.len());
            if let Some(period) = period.filter(|_| account.is_over(now)) {
                let entry = Entry::Began { ends: settings.time_zone.end_of(period, now) };
                account.to_mut().apply(&entry, now, MAX_STORED_KEYS);
                began.push(Event { steps: path.len() as u32, entry });
            }
            path.push(OnPath { account, limits });
        }
        (path, began)
    }

    fn reservation_number(&self) -> Option<u64> {
        self.reservation.as_deref().map(reservation_number)
    }

    fn key_number(&self) -> Option<u64> {
        self.key.as_deref().map(number_of)
    }

    /// What happens when the request is let pass, or when it tells of what happened already.
    fn events(&self, settings: &Settings, path: &[OnPath<'_>], began: Vec<Event>, cost: Cost, moment: Moment<'_>) -> Vec<Event> {
        if self.act == Act::Check {
            return Vec::new();
        }
        let mut events = began;
        let own = path[0].account.limits;
        if self.limits != Limits::default() && self.limits.or(own) != own {
            events.push(Event { steps: 0, entry: Entry::Limited(self.limits.or(own)) });
        }
        // Others' reservations in a shared account are not this session's to settle.
        let holds = self.reservation_number().is_some_and(|id| path[0].account.lease(id, moment.now).is_some());
        for (steps, OnPath { limits, .. }) in path.iter().enumerate() {
            let mut push = |entry| events.push(Event { steps: steps as u32, entry });
            match self.act {
                Act::Check => {}
                Act::Record => {
                    // A call that was made for nothing leaves that behind too: the log tells it from one that was asked for.
                    if cost != Cost::ZERO || (self.key.is_some() && !self.asks_for_call()) {
                        push(Entry::Spent(cost));
                    }
                }
                Act::Reserve => push(Entry::Reserved {
                    id: reservation_number(moment.decision_id),
                    cost,
                    expires: moment.now.plus(settings.reservation),
                }),
                Act::Commit | Act::Release => {
                    if let Some(id) = self.reservation_number().filter(|_| steps == 0 || holds) {
                        push(Entry::Settled { id });
                    }
                    if self.act == Act::Commit {
                        push(Entry::Spent(cost));
                    }
                }
            }
            // Above, only where there is a cap: a team need not remember every key of every run.
            if let (Act::Record | Act::Commit, Some(key)) = (self.act, self.key_number())
                && (steps == 0 || limits.cap.is_some())
            {
                push(Entry::Counted { key });
            }
        }
        events
    }

    /// The limits that stand against the request so many steps up: of the path before it, or of the path once it is done where it tells of
    /// what happened already.
    fn limits_at(&self, steps: usize, before: &OnPath<'_>, after: &Account, cost: Cost, now: Timestamp) -> Vec<BudgetExceeded> {
        let (level, OnPath { account, limits }) = (self.level(steps), before);
        let lacks_call = self.key_number().and_then(|key| account.lacks_call(key, *limits, level));
        match self.act {
            Act::Release => Vec::new(),
            Act::Check | Act::Reserve => lacks_call.into_iter().chain(account.lacks_room_for(cost, *limits, level, now)).collect(),
            Act::Record if self.asks_for_call() => lacks_call.into_iter().chain(after.overspent(*limits, level, now)).collect(),
            Act::Record => {
                let overcalled = self.key_number().and_then(|key| after.overcalled(key, *limits, level));
                overcalled.into_iter().chain(after.overspent(*limits, level, now)).collect()
            }
            Act::Commit => {
                let agreed = self.reservation_number().and_then(|id| account.lease(id, now)).map_or(Cost::ZERO, |lease| lease.cost);
                after.overrun_by(cost, agreed, *limits, level, now).collect()
            }
        }
    }

    /// The scope of which most is spent.
    fn nearest(&self, settings: &Settings, path: &[OnPath<'_>], now: Timestamp) -> Option<Nearest> {
        let share = |OnPath { account, limits }: &OnPath<'_>| {
            let spent = account.spent();
            let usd = limits.usd.map(|limit| spent.usd.as_dollars() / limit.as_dollars().max(f64::MIN_POSITIVE));
            let tokens = limits.tokens.map(|limit| spent.tokens as f64 / limit.max(1) as f64);
            usd.into_iter().chain(tokens).max_by(f64::total_cmp)
        };
        let scopes = path.iter().skip(self.line()).zip(self.drawn_on(settings));
        let (share, on_path, drawn) = scopes
            .filter_map(|(on_path, drawn)| Some((share(on_path)?, on_path, drawn)))
            .max_by(|(left, ..), (right, ..)| left.total_cmp(right))?;
        Some(Nearest {
            label: drawn.label.to_owned(),
            name: drawn.name.to_owned(),
            percent: (share * 1000.0).round() / 10.0,
            renews_in_seconds: on_path.account.renews_at().map(|at| now.seconds_until(at)),
        })
    }

    /// The most reservations are open so many steps up.
    fn is_full_at(&self, steps: usize, account: &Account, now: Timestamp) -> Option<Block> {
        let most = if steps < self.line() { MAX_STORED_RESERVATIONS } else { MAX_STORED_RESERVATIONS_OF_SCOPE };
        let is_full = self.act == Act::Reserve && account.open() >= most;
        let open = if is_full { account.leases(now).count() } else { 0 };
        (open >= most).then_some(Block::Reservations { open: open as u32 })
    }

    /// A key that is recorded without a cost: the call is yet to be made.
    fn asks_for_call(&self) -> bool {
        self.act == Act::Record
            && self.key.is_some()
            && self.usd.is_none()
            && self.credits.is_none()
            && self.tokens.is_none()
            && self.usage.is_none()
    }

    /// Which one of the path a level is.
    fn steps(&self, level: Level) -> usize {
        match level {
            Level::Own => 0,
            Level::Ancestor(steps) => steps as usize,
            Level::Scope(number) => self.line() + number as usize,
        }
    }
}

impl Decide for Request {
    type Guard = Budget;
    type Block = Block;
    type Pass = Pass;

    fn route(&self) -> &'static Route {
        self.act.route()
    }

    fn session_id(&self) -> &str {
        &self.session_id
    }

    fn subject(&self) -> &str {
        &self.budget
    }

    fn places(&self) -> Vec<Place<'_>> {
        let own = Place::in_session(&self.session_id, &SLOT, &self.budget);
        let parent = self.parent.iter().map(|parent| Place::in_session(parent, &SLOT, &self.budget));
        std::iter::once(own).chain(parent).collect()
    }

    fn places_by<'a>(&'a self, policy: &'a Policy) -> Vec<Place<'a>> {
        let mut places = self.places();
        let settings = &policy.budget.for_subject(&self.budget).settings;
        places.extend(self.drawn_on(settings).into_iter().map(|Drawn { label, name, .. }| Place {
            // A run's goes with its session.
            scope: if label.split('/').next() == Some("run") { PlaceScope::Session } else { PlaceScope::Account },
            name,
            slot: &SCOPE_SLOT,
            subject: label,
        }));
        places
    }

    fn input(&self, _store_text: StoreText) -> String {
        logged::write(&Kept {
            act: self.route().path.rsplit('/').next().unwrap_or_default().into(),
            parent: self.parent.as_deref().map(Cow::Borrowed),
            max_usd: self.limits.usd.map(NanoDollars::as_dollars),
            max_tokens: self.limits.tokens,
            cap: self.limits.cap.map(u64::from),
            scopes: self.scopes.iter().map(shown).collect(),
            asked_with: self.asked_with.as_deref().map(Cow::Borrowed),
            model: self.model.as_deref().map(Cow::Borrowed),
        })
    }

    fn warnings(&self, settings: &Settings) -> Vec<String> {
        fn over<T: PartialOrd + fmt::Display>(name: &str, own: Option<T>, ceiling: Option<T>) -> Option<String> {
            let (_, ceiling) = own.zip(ceiling).filter(|(own, ceiling)| own > ceiling)?;
            Some(format!("{name} is above the limit of the settings, which holds: {ceiling}"))
        }
        let (own, ceiling) = (self.limits, ceiling(settings));
        let all =
            [over("max_usd", own.usd, ceiling.usd), over("max_tokens", own.tokens, ceiling.tokens), over("cap", own.cap, ceiling.cap)];
        all.into_iter().flatten().collect()
    }

    fn decide(&self, settings: &Settings, state: &State, moment: Moment<'_>) -> RulingOf<Self> {
        let now = moment.now;
        let (before, began) = self.path(settings, state, now);
        let mut findings = Vec::new();
        let (told, unpriced) = self.cost(settings);
        // What happened is counted, also what has no known price: its tokens and its call.
        let happened = matches!(self.act, Act::Record | Act::Commit) && !self.asks_for_call();
        let lease = self.reservation_number().and_then(|id| before[0].account.lease(id, now));
        let agreed = lease.filter(|_| self.act == Act::Commit).map(|lease| lease.cost);
        let cost = told.or(agreed).unwrap_or_default();
        let events = self.events(settings, &before, began, cost, moment);
        let counted = || if happened { events.clone() } else { Vec::new() };
        // Tokens need no price: it matters only where dollars are limited.
        if let Some(unknown) = unpriced
            && before.iter().any(|on_path| on_path.limits.usd.is_some())
        {
            findings.push(Finding { events: counted(), ..Finding::new(Reason::UnknownModel, Block::Model(unknown), None) });
        }
        let mut after = before.clone();
        for event in &events {
            after[Budget::part(event)].account.to_mut().apply(&event.entry, now, MAX_STORED_KEYS);
        }
        let on_path = || before.iter().enumerate();
        let limited = first_of(on_path().flat_map(|(steps, before)| self.limits_at(steps, before, &after[steps].account, cost, now)));
        let refused = match limited {
            Err(exceeded) => {
                let clears_at = before[self.steps(exceeded.level)].account.may_clear_at(&exceeded, now);
                Some((exceeded.reason(), Block::Exceeded(exceeded), clears_at))
            }
            Ok(()) => on_path().find_map(|(steps, OnPath { account, .. })| {
                let block = self.is_full_at(steps, account, now)?;
                Some((Reason::TooManyReservations, block, account.next_expiry(now)))
            }),
        };
        if let Some((reason, block, clears_at)) = refused {
            // What is told is not asked again.
            let clears_at = clears_at.filter(|_| !happened);
            findings.push(Finding { events: counted(), ..Finding::new(reason, block, clears_at) });
        }
        let OnPath { account: own, limits } = &after[0];
        let room = || after.iter().map(|on_path| on_path.account.room(on_path.limits, now));
        let remaining_usd = room().filter_map(|(usd, _)| usd).min();
        let pass = Pass {
            reservation_id: (self.act == Act::Reserve).then(|| moment.decision_id.to_owned()),
            known: matches!(self.act, Act::Commit | Act::Release).then_some(lease.is_some()),
            cost,
            spent: own.spent(),
            reserved: own.reserved(now),
            limits: *limits,
            remaining_usd,
            remaining_credits: self.credits.and(remaining_usd).map(|left| left.as_dollars() / settings.credit_usd),
            remaining_tokens: room().filter_map(|(_, tokens)| tokens).min(),
            calls: self.key_number().map(|key| own.calls_of(key)),
            remaining_calls: self.key_number().and_then(|key| after.iter().filter_map(|at| at.account.calls_left(key, at.limits)).min()),
            nearest: if happened { self.nearest(settings, &after, now) } else { None },
        };
        Ruling { findings, pass, events }
    }

    fn explain(&self, settings: &Settings, _state: &State, block: &Block, moment: Moment<'_>) -> (Facts, String) {
        let facts = Facts::new().with("budget", self.budget.clone());
        match block {
            Block::Model(unknown) => (facts.with("model", unknown.model.clone()), sentence(unknown)),
            Block::Exceeded(exceeded) => self.explain_exceeded(facts, exceeded, settings, moment.now),
            Block::Reservations { open } => (
                facts,
                format!(
                    "{open} reservations are open, the most that are kept. Commit or release those that are done; the others expire by themselves."
                ),
            ),
        }
    }

    fn pass(&self, pass: Pass, _moment: Moment<'_>) -> Facts {
        let Pass { reservation_id, known, cost, spent, reserved, limits, remaining_usd, remaining_tokens, calls, remaining_calls, .. } =
            pass;
        let mut facts = Facts::new().with("budget", self.budget.clone());
        if let Some(id) = reservation_id {
            facts = facts.with("reservation_id", id);
        }
        if let Some(known) = known {
            facts = facts.with("known", known);
        }
        facts = facts
            .with("cost_usd", cost.usd.as_dollars())
            .with("spent_usd", spent.usd.as_dollars())
            .with("reserved_usd", reserved.usd.as_dollars())
            .with("spent_tokens", spent.tokens)
            .with("reserved_tokens", reserved.tokens);
        if let Some(limit) = limits.usd {
            facts = facts.with("limit_usd", limit.as_dollars());
        }
        if let Some(left) = remaining_usd {
            facts = facts.with("remaining_usd", left.as_dollars());
        }
        if let Some(limit) = limits.tokens {
            facts = facts.with("limit_tokens", limit);
        }
        if let Some(left) = remaining_tokens {
            facts = facts.with("remaining_tokens", left);
        }
        if let Some(calls) = calls {
            facts = facts.with("calls", calls);
        }
        if let Some(left) = remaining_calls {
            facts = facts.with("remaining_calls", left);
        }
        if let Some(left) = pass.remaining_credits {
            facts = facts.with("remaining_credits", left);
        }
        if let Some(Nearest { label, name, percent, renews_in_seconds }) = pass.nearest {
            facts = facts.with("nearest_scope", label).with_text("nearest_scope_name", name).with("nearest_scope_percent", percent);
            if let Some(seconds) = renews_in_seconds {
                facts = facts.with("nearest_scope_renews_in_seconds", seconds);
            }
        }
        facts
    }
}

impl Request {
    fn with_credits_left(&self, facts: Facts, exceeded: &BudgetExceeded, settings: &Settings) -> Facts {
        if self.credits.is_none() {
            return facts;
        }
        facts.with("remaining_credits", exceeded.remaining_value() / settings.credit_usd)
    }

    fn explain_exceeded(&self, facts: Facts, exceeded: &BudgetExceeded, settings: &Settings, now: Timestamp) -> (Facts, String) {
        let drawn = match exceeded.level {
            Level::Own | Level::Ancestor(_) => None,
            Level::Scope(number) => self.drawn_on(settings).into_iter().nth(number as usize),
        };
        let (level, sentences) = match (exceeded.level, &drawn) {
            (Level::Own, _) => ("budget", exceeded.sentences()),
            (Level::Ancestor(_), _) => (OF_PARENT, exceeded.sentences()),
            (Level::Scope(_), drawn) => {
                (OF_SCOPE, drawn.map_or_else(|| exceeded.sentences(), |drawn| exceeded.sentences_of(&drawn.words())))
            }
        };
        let mut facts = facts;
        if let Some(Drawn { label, name, .. }) = drawn {
            facts = facts.with("scope", label.to_owned()).with_text("scope_name", name.to_owned());
        }
        if let Some(renews_at) = exceeded.renews_at {
            facts = facts.with("renews_in_seconds", now.seconds_until(renews_at));
        }
        let BudgetExceeded { unit, spent, reserved, limit, .. } = *exceeded;
        let facts = facts.with("level", level);
        let facts = match unit {
            Unit::Calls => facts.with("calls", spent).with("cap", limit),
            Unit::Usd => self
                .with_credits_left(facts, exceeded, settings)
                .with("cost_usd", exceeded.asked_value())
                .with("spent_usd", exceeded.spent_value())
                .with("reserved_usd", exceeded.reserved_value())
                .with("limit_usd", exceeded.limit_value())
                .with("remaining_usd", exceeded.remaining_value()),
            Unit::Tokens => facts
                .with("spent_tokens", spent)
                .with("reserved_tokens", reserved)
                .with("limit_tokens", limit)
                .with("remaining_tokens", limit.saturating_sub(spent).saturating_sub(reserved)),
        };
        (facts, sentences)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Value;
    use crate::guard::Operation;
    use crate::guard::properties::{Story, operation};
    use serde_json::{Value as Json, json};

    fn ask(path: &str, fields: Json) -> Box<dyn Operation> {
        let mut body = json!({"session_id": "run", "max_usd": "1.00"});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        operation(&format!("/guard/budget/{path}"), body)
    }

    fn reserve(story: &mut Story, fields: Json) -> String {
        assert!(story.allows(&*ask("reserve", fields)));
        match story.fact("reservation_id") {
            Some(Value::Text(id)) => id.into_owned(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn reserved_and_committed_never_pass_the_limit() {
        let mut story = Story::default();
        let first = reserve(story.at(0), json!({"usd": 0.6}));
        assert_eq!(story.at(1).refuses(&*ask("reserve", json!({"usd": 0.5}))), Reason::BudgetExceeded);
        assert_eq!(story.fact("remaining_usd"), Some(Value::Number(0.4)));
        assert!(story.at(2).allows(&*ask("commit", json!({"reservation_id": first, "usd": 0.1}))));
        let second = reserve(story.at(3), json!({"usd": 0.9}));
        assert!(story.at(4).allows(&*ask("release", json!({"reservation_id": second}))));
        assert!(story.at(5).allows(&*ask("check", json!({"usd": 0.9}))));
        assert_eq!(story.at(6).refuses(&*ask("check", json!({"usd": "0.900000001"}))), Reason::BudgetExceeded);
    }

    #[test]
    fn a_reservation_nobody_settles_expires_and_the_retry_time_is_true() {
        let mut story = Story::default();
        reserve(story.at(0), json!({"usd": 1}));
        assert_eq!(story.at(1000).refuses(&*ask("reserve", json!({"usd": 1}))), Reason::BudgetExceeded);
        assert_eq!(story.retry_after_seconds(), Some(899));
        assert_eq!(story.at(899_999).refuses(&*ask("reserve", json!({"usd": 1}))), Reason::BudgetExceeded);
        reserve(story.at(900_000), json!({"usd": 1}));
    }

    #[test]
    fn what_is_spent_counts_also_when_it_is_too_much() {
        let mut story = Story::default();
        assert!(story.at(0).allows(&*ask("record", json!({"usd": 1}))));
        assert_eq!(story.at(1).refuses(&*ask("record", json!({"usd": 0.25}))), Reason::BudgetExceeded);
        assert_eq!(story.fact("spent_usd"), Some(Value::Number(1.25)));
        assert_eq!(story.retry_after_seconds(), None);
        assert!(story.at(2).allows(&*ask("check", json!({"max_usd": 2}))));
        assert_eq!(story.fact("spent_usd"), Some(Value::Number(1.25)));
    }

    #[test]
    fn credits_are_dollars_at_the_price_of_the_settings() {
        let scopes = json!({"tenant": {"month": {"max_credits": 100}}});
        let mut story = with_ceiling(json!({"credit_usd": 0.02, "max_credits": 60, "scopes": scopes}));
        let credits = |session: &str, path: &str, credits: f64| {
            operation(&format!("/guard/budget/{path}"), json!({"session_id": session, "credits": credits}))
        };
        assert!(story.at(0).allows(&*credits("a", "record", 50.0)));
        assert_eq!((story.fact("spent_usd"), story.fact("remaining_credits")), (Some(Value::Number(1.0)), Some(Value::Number(10.0))));
        assert_eq!(story.fact("nearest_scope_percent"), Some(Value::Number(50.0)));
        assert_eq!(story.at(1).refuses(&*credits("a", "reserve", 10.5)), Reason::BudgetExceeded);
        assert_eq!(story.fact("remaining_credits"), Some(Value::Number(10.0)));
        assert!(story.at(2).allows(&*credits("b", "record", 50.0)));
        assert_eq!(story.fact("nearest_scope_percent"), Some(Value::Number(100.0)));
        // All sessions of the month together have used them.
        assert_eq!(story.at(3).refuses(&*credits("c", "check", 1.0)), Reason::BudgetExceeded);
        let body = json!({"session_id": "c", "usd": 0.01});
        assert_eq!(story.at(4).refuses(&*operation("/guard/budget/check", body)), Reason::BudgetExceeded, "a credit is its price");
        assert!(Settings { credit_usd: 0.0, ..Settings::default() }.check().is_err());
        assert!(Settings { max_credits: -1.0, ..Settings::default() }.check().is_err());
    }

    /// The service's own limits, whatever callers say.
    fn with_ceiling(ceiling: Json) -> Story {
        Story::with_settings_of(&["budget"], ceiling)
    }

    #[test]
    fn the_limit_of_the_settings_is_a_ceiling() {
        let mut story = with_ceiling(json!({"max_usd": 5, "max_tokens": 100, "cap": 2}));
        let reserve = |usd: f64, more: Json| {
            let mut body = json!({"session_id": "run", "usd": usd});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            operation("/guard/budget/reserve", body)
        };
        assert_eq!(story.at(0).refuses(&*reserve(6.0, json!({"max_usd": 10}))), Reason::BudgetExceeded);
        assert_eq!(story.fact("limit_usd"), Some(Value::Number(5.0)));
        assert_eq!(story.warnings(), ["max_usd is above the limit of the settings, which holds: $5.00"]);
        assert_eq!(story.at(1).refuses(&*reserve(1.0, json!({"max_usd": 0.5}))), Reason::BudgetExceeded);
        assert!(story.at(2).allows(&*reserve(0.5, json!({"max_usd": 0.5}))), "a caller's own can be lower");
        assert!(story.warnings().is_empty());
        assert_eq!(story.at(3).refuses(&*reserve(0.5, json!({}))), Reason::BudgetExceeded, "and stays");
        assert!(story.at(4).allows(&*reserve(4.0, json!({"max_usd": 50}))), "it is the caller's to change, below the ceiling");
        assert_eq!(story.at(5).refuses(&*reserve(0.51, json!({}))), Reason::BudgetExceeded, "also later, when it says nothing");
        let tokens = operation("/guard/budget/check", json!({"session_id": "t", "tokens": 101, "max_tokens": 1000, "cap": 9}));
        assert_eq!(story.at(6).refuses(&*tokens), Reason::BudgetExceeded);
        assert_eq!(story.warnings().len(), 2);
        let call = operation("/guard/budget/record", json!({"session_id": "c", "key": "k", "cap": 9}));
        assert!(story.at(7).allows(&*call) && story.at(7).allows(&*call));
        assert_eq!(story.at(7).refuses(&*call), Reason::CallCapReached);
    }

    #[test]
    fn a_parent_has_the_same_ceiling() {
        let mut story = with_ceiling(json!({"max_usd": 1}));
        assert!(story.at(0).allows(&*operation("/guard/budget/record", json!({"session_id": "team", "usd": 0, "max_usd": 9}))));
        let child =
            |name: &str| operation("/guard/budget/reserve", json!({"session_id": name, "parent": "team", "usd": 0.6, "max_usd": 9}));
        assert!(story.at(1).allows(&*child("a")));
        assert_eq!(story.at(2).refuses(&*child("b")), Reason::BudgetExceeded);
        assert_eq!((story.fact("level"), story.fact("limit_usd")), (Some(Value::from("parent")), Some(Value::Number(1.0))));
    }

    proptest::proptest! {
        /// Whoever asks, for whatever limit, in whatever order: what is reserved and committed stays within the ceiling and within
        /// the limit that the caller said last.
        #[test]
        fn no_caller_gets_past_a_ceiling(
            ceiling in proptest::option::of(1_u32..50),
            asks in proptest::collection::vec((0_u32..3, 0_u32..30, proptest::option::of(0_u32..100)), 1..40),
        ) {
            let mut story = with_ceiling(json!({"max_usd": ceiling.unwrap_or(0)}));
            let mut open: Vec<String> = Vec::new();
            let mut said = None;
            let mut held = 0.0;
            for (at, (act, usd, max_usd)) in asks.into_iter().enumerate() {
                let settles = act == 0 && !open.is_empty();
                let mut body = json!({"session_id": "run", "usd": usd});
                if let Some(max_usd) = max_usd {
                    body["max_usd"] = max_usd.into();
                }
                if settles {
                    body = json!({"session_id": "run", "reservation_id": open.pop()});
                    proptest::prop_assert!(story.at(at as i64).allows(&*operation("/guard/budget/commit", body)));
                    continue;
                }
                if story.at(at as i64).allows(&*operation("/guard/budget/reserve", body)) {
                    said = max_usd.or(said);
                    held += f64::from(usd);
                    let lowest = [said, ceiling].into_iter().flatten().min();
                    proptest::prop_assert!(lowest.is_none_or(|lowest| held <= f64::from(lowest)), "{held} of {lowest:?}");
                    if let Some(Value::Text(id)) = story.fact("reservation_id") {
                        open.push(id.into_owned());
                    }
                }
            }
        }
    }

    #[test]
    fn a_call_beyond_its_cap_is_counted_when_it_was_made_and_not_when_it_was_asked_for() {
        let mut story = Story::default();
        let call = |usd: f64| ask("record", json!({"key": "email", "cap": 1, "usd": usd}));
        let asked = ask("record", json!({"key": "email", "cap": 1}));
        assert!(story.at(0).allows(&*call(0.1)));
        for _ in 0..2 {
            assert_eq!(story.at(1).refuses(&*asked), Reason::CallCapReached);
            assert_eq!((story.fact("level"), story.fact("calls")), (Some("budget".into()), Some(Value::Int(1))));
            assert_eq!(
                story.message(),
                "The budget allows 1 call of one key, and all were made. Go on without this call, or stop the run."
            );
        }
        assert_eq!(story.at(1).refuses(&*call(0.2)), Reason::CallCapReached);
        assert_eq!(story.message(), "The budget allows 1 call of one key, and 2 were made. Go on without this call, or stop the run.");
        assert!(story.at(2).allows(&*ask("check", json!({}))));
        assert_eq!(story.fact("spent_usd"), Some(Value::Number(0.3)), "the money is gone");
        let unpriced = ask("record", json!({"model": "no-such-model", "input_tokens": 70}));
        assert_eq!(story.at(3).refuses(&*unpriced), Reason::UnknownModel);
        assert!(story.at(4).allows(&*ask("check", json!({}))));
        assert_eq!(story.fact("spent_tokens"), Some(Value::Int(70)), "its tokens have been used, whatever they cost");
    }

    #[test]
    fn a_parents_cap_holds_for_its_children() {
        let mut story = Story::default();
        let call = |whose: &str| operation("/guard/budget/record", json!({"session_id": whose, "parent": "team", "key": "search"}));
        assert!(story.at(0).allows(&*operation("/guard/budget/record", json!({"session_id": "team", "usd": 0, "cap": 2}))));
        assert!(story.at(1).allows(&*call("a")) && story.at(1).allows(&*call("b")));
        assert_eq!(story.fact("remaining_calls"), Some(Value::Int(0)), "the least of all it draws on");
        assert_eq!(story.at(2).refuses(&*call("c")), Reason::CallCapReached);
        assert_eq!((story.fact("level"), story.fact("cap")), (Some("parent".into()), Some(Value::Int(2))));
        assert!(story.message().starts_with("The parent's budget allows 2 calls of one key"), "{}", story.message());
    }

    #[test]
    fn a_refusal_names_what_is_used_up_before_what_is_only_set_aside() {
        let mut story = Story::default();
        let body = |more: Json| {
            let mut body = json!({"session_id": "a", "parent": "team", "max_usd": 1});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            body
        };
        assert!(story.at(0).allows(&*operation("/guard/budget/record", json!({"session_id": "team", "usd": 0, "max_usd": 2}))));
        assert!(story.at(1).allows(&*operation("/guard/budget/reserve", body(json!({"usd": 1, "tokens": 5})))));
        assert!(story.at(2).allows(&*operation("/guard/budget/record", json!({"session_id": "team", "usd": 2}))));
        assert_eq!(story.at(3).refuses(&*operation("/guard/budget/check", body(json!({"usd": "0.000000001"})))), Reason::BudgetExceeded);
        assert_eq!((story.fact("level"), story.fact("spent_usd")), (Some("parent".into()), Some(Value::Number(2.0))));
        assert_eq!(
            story.message(),
            "The parent's budget of $2.00 is used up: $2.00 spent, $1.00 reserved. Stop the run, or raise the limit."
        );
        assert_eq!(story.retry_after_seconds(), None, "nobody gives it back");
        assert!(story.at(4).allows(&*operation("/guard/budget/record", json!({"session_id": "b", "usd": 0}))));
        assert!(story.at(5).allows(&*operation("/guard/budget/reserve", json!({"session_id": "b", "tokens": 5}))));
        assert_eq!(story.fact("reserved_tokens"), Some(Value::Int(5)));
    }

    #[test]
    fn a_committed_step_counts_its_key() {
        let mut story = Story::default();
        let id = reserve(story.at(0), json!({"usd": 0.1, "key": "email", "cap": 1}));
        assert!(story.at(1).allows(&*ask("commit", json!({"reservation_id": id, "key": "email"}))));
        assert_eq!(story.at(2).refuses(&*ask("reserve", json!({"usd": 0.1, "key": "email"}))), Reason::CallCapReached);
    }

    #[test]
    fn what_was_agreed_is_no_fault_of_who_pays_it() {
        let mut story = Story::default();
        let id = reserve(story.at(0), json!({"usd": 0.6}));
        assert!(story.at(1).allows(&*ask("record", json!({"usd": 0.9}))), "what is set aside may be given back");
        assert!(story.at(2).allows(&*ask("commit", json!({"reservation_id": id, "usd": 0.6}))));
        assert_eq!(story.fact("spent_usd"), Some(Value::Number(1.5)));
        assert_eq!(story.at(3).refuses(&*ask("check", json!({}))), Reason::BudgetExceeded);
        assert_eq!(story.message(), "The budget of $1.00 is exceeded: $1.50 spent. Stop the run, or raise the limit.");
    }

    fn with_scopes(scopes: Json) -> Story {
        with_ceiling(json!({ "time_zone": "Europe/Berlin", "scopes": scopes }))
    }

    /// A budget of its own for each run, with what it draws on.
    fn drawing(act: &str, run: &str, usd: f64, scopes: Json) -> Box<dyn Operation> {
        operation(&format!("/guard/budget/{act}"), json!({"session_id": run, "usd": usd, "scopes": scopes}))
    }

    #[test]
    fn scopes_grant_together_or_not_at_all() {
        let mut story =
            with_scopes(json!({"tenant": {"day": {"max_usd": 2}}, "team": {"total": {"max_usd": 1, "names": {"big": {"max_usd": 9}}}}}));
        let team = |name: &str| json!([{"per": "team", "name": name}]);
        assert!(story.at(0).allows(&*drawing("reserve", "a", 0.75, team("search"))));
        assert_eq!(story.fact("remaining_usd"), Some(Value::Number(0.25)));
        assert_eq!(story.at(1).refuses(&*drawing("reserve", "b", 0.5, team("search"))), Reason::BudgetExceeded);
        let said = ["level", "scope", "scope_name", "limit_usd", "reserved_usd", "renews_in_seconds"].map(|fact| story.fact(fact));
        assert_eq!(
            said,
            [Some("scope".into()), Some("team".into()), Some("search".into()), Some(1.0.into()), Some(0.75.into()), None],
            "{:?}",
            story.message()
        );
        assert_eq!(
            story.message(),
            "The budget of team 'search' of $1.00 has no room for $0.50: $0.00 spent, $0.75 reserved, $0.25 left. Stop the run, or raise the limit."
        );
        let now = Timestamp::from_millis(1);
        assert_eq!(story.scope("tenant/day", "").reserved(now).usd, NanoDollars::parse("0.75").unwrap(), "a refusal is in no book");
        assert!(story.at(2).allows(&*drawing("reserve", "b", 1.0, team("big"))), "a team's own limit");
        assert_eq!(story.at(3).refuses(&*drawing("reserve", "c", 0.5, json!([]))), Reason::BudgetExceeded);
        assert_eq!(story.fact("scope"), Some("tenant/day".into()));
        assert_eq!(story.fact("renews_in_seconds"), Some(Value::Int(23 * 3600)), "1970 began at one o'clock in Berlin");
        assert!(story.message().starts_with("The tenant's budget for the day of $2.00 has no room"), "{}", story.message());
        assert!(story.message().ends_with("Wait for the next period, stop the run, or raise the limit."), "{}", story.message());
        assert_eq!(story.retry_after_seconds(), Some(900), "before midnight the reservations expire");
    }

    #[test]
    fn a_reservation_is_settled_in_every_scope() {
        let mut story = with_scopes(json!({"tenant": {"day": {"max_usd": 2}}, "model": {"week": {}}}));
        let scopes = json!([{"per": "team", "name": "search", "period": "month", "max_usd": 1}]);
        assert!(story.at(0).allows(&*drawing("reserve", "a", 0.75, scopes.clone())));
        let Some(Value::Text(id)) = story.fact("reservation_id") else { panic!("it is granted") };
        let commit = json!({"session_id": "a", "usd": 0.5, "reservation_id": id, "model": "gpt-4o", "scopes": scopes});
        assert!(story.at(1).allows(&*operation("/guard/budget/commit", commit)));
        let now = Timestamp::from_millis(2);
        for (label, name) in [("tenant/day", ""), ("team/month", "search"), ("model/week", "gpt-4o")] {
            let account = story.scope(label, name);
            assert_eq!((account.spent().usd, account.reserved(now)), (NanoDollars::parse("0.5").unwrap(), Cost::ZERO), "{label}");
        }
        let tighter = |usd: f64| json!([{"per": "tenant", "period": "day", "max_usd": usd}]);
        assert_eq!(story.at(3).refuses(&*drawing("check", "a", 0.0, tighter(0.4))), Reason::BudgetExceeded);
        assert_eq!(story.at(4).refuses(&*drawing("check", "b", 1.6, tighter(9.0))), Reason::BudgetExceeded, "a ceiling");
        assert!(story.at(5).allows(&*drawing("check", "b", 1.5, json!([]))), "a limit given for a scope held for that question");
    }

    #[test]
    fn what_another_set_aside_in_a_scope_is_not_settled() {
        for act in ["release", "commit"] {
            let mut story = with_scopes(json!({"tenant": {"day": {"max_usd": 1}}}));
            assert!(story.at(0).allows(&*drawing("reserve", "a", 1.0, json!([]))));
            let Some(Value::Text(id)) = story.fact("reservation_id") else { panic!("it is granted") };
            let strange = json!({"session_id": "b", "usd": 0.0, "reservation_id": id});
            story.at(1).run(&*operation(&format!("/guard/budget/{act}"), strange));
            assert_eq!(story.fact("known"), Some(false.into()), "{act}");
            assert_eq!(story.at(2).refuses(&*drawing("reserve", "c", 0.1, json!([]))), Reason::BudgetExceeded, "{act}");
        }
    }

    #[test]
    fn the_key_and_the_run_are_the_services_to_name() {
        let mut story = with_scopes(json!({"key": {"total": {"names": {"k1": {"cap": 1}}}}, "run": {"total": {"max_usd": 1}}}));
        let call = |key: Option<&'static str>, budget: &str| {
            let body = json!({"session_id": "s", "budget": budget, "key": "search", "usd": 0.4,
                "scopes": [{"per": "key", "name": "k9"}, {"per": "run", "name": "other"}]});
            let body = body.to_string();
            let mut input = Input::read(body.as_bytes(), RECORD_ROUTE.fields).unwrap();
            input.asked_with = key;
            (RECORD_ROUTE.read)(&input)
        };
        assert!(story.at(0).allows(&*call(Some("k1"), "x")));
        assert_eq!(story.at(1).refuses(&*call(Some("k1"), "x")), Reason::CallCapReached);
        assert_eq!(story.fact("scope_name"), Some("k1".into()));
        assert_eq!(story.at(2).refuses(&*call(Some("k2"), "y")), Reason::BudgetExceeded, "all budgets of a run together");
        assert_eq!((story.fact("scope"), story.fact("spent_usd")), (Some("run".into()), Some(Value::Number(1.2))));
    }

    #[test]
    fn a_period_begins_anew_and_a_clock_that_jumps_back_frees_nothing() {
        // 2026-10-24T22:00Z: a day of 25 hours begins in Berlin.
        const BEGINS: i64 = 1_792_879_200_000;
        const HOURS: i64 = 3_600_000;
        let mut story = with_scopes(json!({"tenant": {"day": {"max_usd": 1, "cap": 1}}}));
        let record = |usd: f64| drawing("record", "a", usd, json!([]));
        assert!(story.at(BEGINS - 1).allows(&*record(1.0)));
        assert_eq!(story.at(BEGINS - 1).refuses(&*drawing("check", "a", 0.1, json!([]))), Reason::BudgetExceeded);
        assert_eq!(story.retry_after_seconds(), Some(1));
        assert!(story.at(BEGINS).allows(&*record(0.75)));
        assert_eq!(story.at(BEGINS - 1).refuses(&*drawing("reserve", "a", 0.5, json!([]))), Reason::BudgetExceeded, "nothing is freed");
        assert_eq!(story.fact("spent_usd"), Some(Value::Number(0.75)), "nothing is lost");
        assert_eq!(story.at(BEGINS).refuses(&*drawing("check", "a", 0.5, json!([]))), Reason::BudgetExceeded);
        assert_eq!(story.retry_after_seconds(), Some(25 * 3600));
        assert_eq!(story.at(BEGINS).refuses(&*drawing("check", "a", 1.5, json!([]))), Reason::BudgetExceeded);
        assert_eq!(story.retry_after_seconds(), None, "no day has room for it");
        assert!(story.at(BEGINS + 25 * HOURS).allows(&*drawing("reserve", "a", 1.0, json!([]))));
        assert_eq!(story.at(BEGINS + 50 * HOURS).refuses(&*drawing("reserve", "a", 1.1, json!([]))), Reason::BudgetExceeded);
        let keyed =
            |at: i64, story: &mut Story| story.at(at).allows(&*operation("/guard/budget/record", json!({"session_id": "b", "key": "k"})));
        assert!(
            keyed(BEGINS + 26 * HOURS, &mut story) && !keyed(BEGINS + 27 * HOURS, &mut story) && keyed(BEGINS + 49 * HOURS, &mut story)
        );
    }

    #[test]
    fn a_limit_that_is_edited_finds_what_was_used() {
        let limit = |usd: f64| json!({"budget": {"scopes": {"team": {"day": {"max_usd": usd}}}}});
        let team = json!([{"per": "team", "name": "search"}]);
        let mut story = Story::default();
        story.settings_become(limit(10.0));
        assert!(story.at(0).allows(&*drawing("record", "a", 3.0, team.clone())));
        story.settings_become(limit(2.0));
        assert_eq!(story.at(1).refuses(&*drawing("check", "b", 0.0, team.clone())), Reason::BudgetExceeded);
        assert_eq!(story.fact("spent_usd"), Some(Value::Number(3.0)));
        story.settings_become(limit(4.0));
        assert!(story.at(2).allows(&*drawing("check", "b", 1.0, team.clone())));
        assert_eq!(story.at(3).refuses(&*drawing("check", "b", 1.1, team)), Reason::BudgetExceeded);
    }

    #[test]
    fn a_scope_in_the_log_can_be_read_again() {
        let limits = Limits { usd: Some(NanoDollars::parse("0.1").unwrap()), tokens: Some(7), cap: Some(2) };
        for (period, limits) in [(Some(Period::Week), limits), (None, Limits::default())] {
            let scope = Scope { per: "team".into(), name: "a: b=c".into(), period, limits, label: scope_label("team", period) };
            assert_eq!(read_shown(&shown(&scope)), Some(scope));
        }
        assert_eq!(read_shown("team/hour:x"), None);
    }

    #[test]
    fn every_name_of_a_kind_has_the_limits_of_its_kind() {
        let mut story = with_scopes(json!({"team": {"day": {"max_usd": 1}}}));
        let both = json!([{"per": "team", "name": "a"}, {"per": "team", "name": "b"}]);
        assert!(story.at(0).allows(&*drawing("record", "r", 0.75, json!([{"per": "team", "name": "b"}]))));
        assert_eq!(story.at(1).refuses(&*drawing("reserve", "r", 0.5, both)), Reason::BudgetExceeded);
        assert_eq!((story.fact("scope"), story.fact("scope_name")), (Some("team/day".into()), Some("b".into())));
    }

    #[test]
    fn mistakes_in_scopes_are_named() {
        for (scopes, says) in [
            (json!({"tenant": {"hour": {}}}), "`hour` is no period; use day, week, month, or total"),
            (json!({"Team": {"day": {}}}), "`Team` must be a word"),
            (json!({"team": {"day": {"max_usd": -1}}}), "`team.day`: max_usd"),
            (json!({"tenant": {"day": {"names": {"acme": {"max_usd": 1}}}}}), "write [tenants.NAME.guards.budget.scopes.tenant.day]"),
            (json!({"team": {"day": {"max_dollars": 1}}}), "unknown field `max_dollars`"),
            (json!({"team": {"day": {"names": {"a": {"names": {"b": {}}}}}}}), "`names` stands once"),
        ] {
            let tree = json!({ "budget": { "scopes": scopes } });
            let problem = Policy::build(tree.as_object().unwrap(), &["guards"]).unwrap_err();
            assert!(problem.path.join(".").starts_with("guards.budget.scopes"), "{problem:?}");
            assert!(problem.problem.contains(says), "{problem:?}");
        }
        let zone = json!({"budget": {"time_zone": "Mars"}});
        let problem = Policy::build(zone.as_object().unwrap(), &["guards"]).unwrap_err();
        assert_eq!(problem.path.join("."), "guards.budget.time_zone");
        for scopes in [
            "7",
            "[7]",
            "[{}]",
            r#"[{"per":"team"}]"#,
            r#"[{"per":"a/b","name":"x"}]"#,
            r#"[{"per":"run","period":"hour"}]"#,
            r#"[{"per":"run","max_usd":-1}]"#,
        ] {
            let body = format!(r#"{{"session_id":"s","scopes":{scopes}}}"#);
            assert!(Input::read(body.as_bytes(), CHECK_ROUTE.fields).is_err(), "{scopes}");
        }
    }

    /// One thing that is done to a budget.
    #[derive(Debug, Clone)]
    enum Act {
        Check(u32),
        Record(u32),
        /// May a call of this key be made?
        Ask(u8),
        /// It was made, and cost this much.
        Call(u32, u8),
        Reserve(u32),
        Commit(usize, Option<u32>),
        Release(usize),
        Limit(usize, Bound),
        /// So many hours go by, or back.
        Pass(i8),
    }

    fn act() -> impl proptest::strategy::Strategy<Value = Act> {
        use proptest::prelude::*;
        prop_oneof![
            (0_u32..60).prop_map(Act::Check),
            (0_u32..40).prop_map(Act::Record),
            (0_u8..3).prop_map(Act::Ask),
            (0_u32..40, 0_u8..3).prop_map(|(cents, key)| Act::Call(cents, key)),
            (0_u32..60).prop_map(Act::Reserve),
            (any::<usize>(), proptest::option::of(0_u32..60)).prop_map(|(which, cents)| Act::Commit(which, cents)),
            any::<usize>().prop_map(Act::Release),
            (0..SCOPES.len(), bound()).prop_map(|(number, bound)| Act::Limit(number, bound)),
            (-30_i8..60).prop_map(Act::Pass),
        ]
    }

    const NAMES: [&str; 3] = ["team", "a", "b"];
    /// What may be named with a question: label, per, name, period.
    const SCOPES: [(&str, &str, &str, Option<Period>); 3] =
        [("model", "model", "m", None), ("user/day", "user", "u", Some(Period::Day)), ("user/month", "user", "u", Some(Period::Month))];
    const BEGINS: i64 = 1_767_000_000_000;

    /// A cent is ten tokens, so that both units are counted.
    fn amount(cents: u32) -> Cost {
        Cost { usd: NanoDollars::from_nanos(i64::from(cents) * 10_000_000).unwrap(), tokens: u64::from(cents) * 10 }
    }

    type Bound = (Option<u32>, Option<u32>);

    fn bounds((cents, cap): Bound) -> Limits {
        Limits { usd: cents.map(|cents| amount(cents).usd), tokens: cents.map(|cents| amount(cents).tokens), cap }
    }

    fn dollars(cents: u32) -> String {
        format!("{}.{:02}", cents / 100, cents % 100)
    }

    fn put_limits(body: &mut Json, (cents, cap): Bound) {
        if let Some(cents) = cents {
            body["max_usd"] = dollars(cents).into();
            body["max_tokens"] = (cents * 10).into();
        }
        if let Some(cap) = cap {
            body["cap"] = cap.into();
        }
    }

    /// A budget in a process and one in a store, to which the same is done.
    struct Both {
        story: Story,
        budgets: Vec<runguard_core::budget::Budget>,
        scopes: Vec<runguard_core::budget::Budget>,
        scope_bounds: Vec<Bound>,
        now: i64,
    }

    impl Both {
        fn new(limits: &[Bound]) -> Self {
            let team = runguard_core::budget::Budget::new(bounds(limits[0]));
            let scopes = SCOPES.iter().map(|_| team.scope(Limits::default())).collect();
            let budgets = vec![team.clone(), team.child(bounds(limits[1])), team.child(bounds(limits[2]))];
            let story = with_ceiling(json!({"time_zone": "Europe/Berlin", "reservation": "3650d"}));
            let mut both = Self { story, budgets, scopes, scope_bounds: vec![(None, None); SCOPES.len()], now: BEGINS };
            for (whose, bound) in limits.iter().enumerate() {
                let mut body = both.body(whose, 0, Some(0), json!({}));
                put_limits(&mut body, *bound);
                assert_eq!(both.store(super::Act::Record, body), Ok(()));
            }
            both
        }

        /// The scopes of this set, with the limits that are in force.
        fn body(&self, whose: usize, set: u8, cents: Option<u32>, more: Json) -> Json {
            let mut body = json!({"session_id": NAMES[whose]});
            if whose > 0 {
                body["parent"] = "team".into();
            }
            if let Some(cents) = cents {
                body["usd"] = dollars(cents).into();
                body["tokens"] = (cents * 10).into();
            }
            let named = |number: usize| {
                let (_, per, name, period) = SCOPES[number];
                let mut scope = json!({"per": per, "name": name, "period": period});
                put_limits(&mut scope, self.scope_bounds[number]);
                scope
            };
            body["scopes"] = members(set).map(named).collect();
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            body
        }

        fn store(&mut self, act: super::Act, body: Json) -> Result<(), BudgetExceeded> {
            let text = body.to_string();
            let request = Request::read(&Input::read(text.as_bytes(), act.route().fields).unwrap(), act);
            let found = self.story.at(self.now).ruling(&request).findings.pop().map(|finding| finding.block);
            assert_eq!(self.story.allows(&request), found.is_none());
            match found {
                None => Ok(()),
                Some(Block::Exceeded(exceeded)) => Err(exceeded),
                Some(other) => panic!("{other:?}"),
            }
        }

        /// When the period of a scope ends that this moment is in.
        fn end_of(&self, number: usize) -> Option<Timestamp> {
            let zone = Zone::named("Europe/Berlin").unwrap();
            SCOPES[number].3.map(|period| zone.end_of(period, Timestamp::from_millis(self.now)))
        }

        /// The budget that draws on the scopes of a set, at this moment.
        fn process(&self, whose: usize, set: u8) -> runguard_core::budget::Budget {
            for number in members(set) {
                if let Some(ends) = self.end_of(number) {
                    self.scopes[number].renew(ends, Timestamp::from_millis(self.now));
                }
            }
            self.budgets[whose].within(&members(set).map(|number| &self.scopes[number]).collect::<Vec<_>>()).unwrap()
        }

        fn same_books(&self) -> Result<(), proptest::test_runner::TestCaseError> {
            let now = Timestamp::from_millis(self.now);
            self.process(0, u8::MAX);
            let own = self.budgets.iter().zip(NAMES).map(|(budget, name)| (budget, self.story.account(name)));
            let scopes = self.scopes.iter().enumerate().map(|(number, scope)| {
                let mut kept = self.story.scope(SCOPES[number].0, SCOPES[number].2);
                // A question that is refused leaves nothing behind, so a period may be over without anybody's having noted it.
                if let Some(ends) = self.end_of(number).filter(|_| kept.is_over(now)) {
                    kept.apply(&Entry::Began { ends }, now, MAX_STORED_KEYS);
                }
                (scope, kept)
            });
            for (budget, kept) in own.chain(scopes) {
                let books = budget.snapshot();
                proptest::prop_assert_eq!(kept.spent(), books.spent());
                proptest::prop_assert_eq!(kept.reserved(now), books.reserved);
                for key in 0..3 {
                    let key = key.to_string();
                    proptest::prop_assert_eq!(kept.calls_of(number_of(&key)), budget.calls_made(&key));
                }
                // Apart from what was spent without asking, what is spent and set aside stays within the limit.
                if let Some(limit) = books.limits.usd {
                    proptest::prop_assert!(books.committed.usd <= limit.saturating_sub(books.reserved.usd));
                }
            }
            Ok(())
        }
    }

    fn exceeded(done: Result<(), runguard_core::budget::BudgetError>) -> Result<(), BudgetExceeded> {
        match done {
            Ok(()) => Ok(()),
            Err(runguard_core::budget::BudgetError::Exceeded(exceeded)) => Err(exceeded),
            Err(other) => panic!("{other:?}"),
        }
    }

    fn members(set: u8) -> impl Iterator<Item = usize> {
        (0..SCOPES.len()).filter(move |number| set & 1 << number != 0)
    }

    fn bound() -> impl proptest::strategy::Strategy<Value = Bound> {
        (proptest::option::of(0_u32..200), proptest::option::of(0_u32..4))
    }

    proptest::proptest! {
        /// The budget of a process and that of a store answer alike and hold the same, whatever is done to a parent, its children and
        /// the scopes they draw on, in whatever days and months, with whatever limits.
        #[test]
        fn a_process_and_a_store_keep_the_same_books(
            limits in proptest::collection::vec(bound(), 3),
            acts in proptest::collection::vec((0_usize..3, 0_u8..8, act()), 1..60),
        ) {
            let mut both = Both::new(&limits);
            let mut open: Vec<(usize, u8, runguard_core::budget::ReservationId, String, Cost)> = Vec::new();
            for (whose, set, act) in acts {
                let settles = matches!(act, Act::Commit(..) | Act::Release(_));
                let (in_process, in_store) = match act {
                    Act::Check(cents) => {
                        let body = both.body(whose, set, Some(cents), json!({}));
                        (both.process(whose, set).check(amount(cents)), both.store(super::Act::Check, body))
                    }
                    Act::Record(cents) => {
                        let body = both.body(whose, set, Some(cents), json!({}));
                        (both.process(whose, set).record(amount(cents)), both.store(super::Act::Record, body))
                    }
                    Act::Ask(key) => {
                        let (key, budget) = (key.to_string(), both.process(whose, set));
                        let body = both.body(whose, set, None, json!({"key": key}));
                        let in_store = both.store(super::Act::Record, body);
                        let counted = budget.count(&key);
                        let left = counted.ok().flatten().map(|left| Value::Int(i64::from(left)));
                        proptest::prop_assert_eq!(left, both.story.fact("remaining_calls"));
                        (counted.map(drop), in_store)
                    }
                    Act::Call(cents, key) => {
                        let key = key.to_string();
                        let body = both.body(whose, set, Some(cents), json!({"key": key}));
                        (both.process(whose, set).record_call(&key, amount(cents)), both.store(super::Act::Record, body))
                    }
                    Act::Reserve(cents) => {
                        let id = both.process(whose, set).reserve_with_id(amount(cents));
                        let body = both.body(whose, set, Some(cents), json!({}));
                        let granted = both.store(super::Act::Reserve, body);
                        if let (Ok(id), Ok(()), Some(Value::Text(name))) = (id, granted, both.story.fact("reservation_id")) {
                            open.push((whose, set, id, name.into_owned(), amount(cents)));
                        }
                        (exceeded(id.map(drop)), granted)
                    }
                    Act::Commit(which, cents) if !open.is_empty() => {
                        let (whose, set, id, name, estimate) = open.swap_remove(which % open.len());
                        let committed = both.process(whose, set).commit_by_id(id, cents.map_or(estimate, amount));
                        let body = both.body(whose, set, cents, json!({"reservation_id": name}));
                        (exceeded(committed), both.store(super::Act::Commit, body))
                    }
                    Act::Release(which) if !open.is_empty() => {
                        let (whose, set, id, name, _) = open.swap_remove(which % open.len());
                        both.process(whose, set).release_by_id(id).unwrap();
                        let body = both.body(whose, set, None, json!({"reservation_id": name}));
                        (Ok(()), both.store(super::Act::Release, body))
                    }
                    Act::Limit(number, bound) => {
                        both.scope_bounds[number] = bound;
                        both.scopes[number].limit(bounds(bound));
                        continue;
                    }
                    Act::Pass(hours) => {
                        // Everyone has noted the time, or going back would be no going back for them.
                        let body = both.body(0, u8::MAX, Some(0), json!({}));
                        both.store(super::Act::Record, body).ok();
                        both.process(0, u8::MAX);
                        both.now += i64::from(hours) * 3_600_000;
                        continue;
                    }
                    Act::Commit(..) | Act::Release(_) => continue,
                };
                proptest::prop_assert_eq!(in_process, in_store);
                if in_store.is_ok() {
                    let left = both.process(whose, set).remaining();
                    let told = left.usd.map(|usd| Value::Number(usd.as_dollars()));
                    // Whose reservation was settled is another's question.
                    if !settles {
                        proptest::prop_assert_eq!(told, both.story.fact("remaining_usd"));
                        proptest::prop_assert_eq!(left.tokens.map(Value::from), both.story.fact("remaining_tokens"));
                    }
                }
                both.same_books()?;
            }
        }
    }

    #[test]
    fn a_child_draws_on_its_parent() {
        let mut story = Story::default();
        let child = |name: &str, usd: f64| operation("/guard/budget/reserve", json!({"session_id": name, "parent": "team", "usd": usd}));
        assert!(story.at(0).allows(&*operation("/guard/budget/record", json!({"session_id": "team", "usd": 0, "max_usd": 1}))));
        assert!(story.at(1).allows(&*child("a", 0.7)));
        assert_eq!(story.at(2).refuses(&*child("b", 0.4)), Reason::BudgetExceeded);
        assert_eq!(story.fact("level"), Some(Value::from("parent")));
        assert!(story.at(3).allows(&*child("b", 0.3)));
    }

    #[test]
    fn calls_are_capped_by_key() {
        let mut story = Story::default();
        let call = |path: &str, key: &str| ask(path, json!({"key": key, "cap": 2}));
        assert!(story.at(0).allows(&*call("record", "email")) && story.at(0).allows(&*call("record", "email")));
        assert_eq!(story.at(0).refuses(&*call("check", "email")), Reason::CallCapReached);
        assert_eq!(story.at(0).refuses(&*call("record", "email")), Reason::CallCapReached);
        assert!(story.at(0).allows(&*call("record", "phone")));
        assert_eq!(story.fact("remaining_calls"), Some(Value::Int(1)));
    }

    #[test]
    fn tokens_are_priced_and_an_unknown_model_is_refused() {
        let mut story = Story::default();
        let usage = |model: &str| ask("record", json!({"model": model, "input_tokens": 100_000, "output_tokens": 10_000}));
        assert!(story.at(0).allows(&*usage("anthropic.claude-3-7-sonnet-20250219-v1:0")));
        assert_eq!(story.fact("cost_usd"), Some(Value::Number(0.45)));
        assert_eq!(story.at(1).refuses(&*usage("no-such-model")), Reason::UnknownModel);
        let mut costs = |fields: serde_json::Value| {
            assert!(story.at(2).allows(&*ask("record", fields)));
            story.fact("cost_usd")
        };
        let kept_an_hour = json!({"model": "claude-sonnet-4-5", "cache_write_tokens": 10_000, "cache_write_1h_tokens": 10_000});
        assert_eq!(costs(kept_an_hour), Some(Value::Number(0.0975)), "a million is 3.75 dollars, and 6 for an hour");
        let sound = json!({"model": "gpt-audio", "audio_input_tokens": 1_000, "audio_output_tokens": 1_000});
        assert_eq!(costs(sound), Some(Value::Number(0.096)), "32 and 64 dollars");
        let first = json!({"model": "gpt-5.4", "input_tokens": 10_000, "service_tier": "priority"});
        assert_eq!(costs(first), Some(Value::Number(0.05)), "5 dollars, not 2.50");
    }
}
