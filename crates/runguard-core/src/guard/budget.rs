//! Keeps a run within what it may spend: dollars, tokens, calls.
//!
//! Money that is spent cannot be refused any more, so a caller that wants a hard limit *reserves* before the step and
//! *commits* what it really cost: committed and reserved together never pass the limit, however many ask at once. A
//! budget may draw on a parent's (a team's, a user's): both must have enough. A reservation that is never settled, because
//! its caller died, expires.
//!
//! The limit of the settings is a ceiling. A caller may set a limit of its own, and another one later: it is the caller's, and
//! holds for that budget. What is in force is the lower of the two, so that no caller gets past what the operator allows, and
//! a ceiling that the operator moves holds at once. What the caller asked for is kept as it was asked.

use super::{
    AnswerField, AnswerKind, Check, Finding, Guard, Moment, Outlook, Place, Route, RouteKind, Ruling, RulingOf, Slot, Stored, decode,
    encode, operation_of_check, says,
};
use crate::answer::Facts;
use crate::input::{Field, Input, Kind};
use crate::money::NanoDollars;
use crate::packed::{Packed, serialise_packed};
use crate::policy::{GuardSettings, Policy, Section, Setting, lasting, within};
use crate::prices::{Prices, UnknownModel, Usage};
use crate::reason::{GuardName, Reason};
use crate::text::StoreText;
use crate::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};
use std::fmt;
use xxhash_rust::xxh3::xxh3_64;

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
            $($more),*
        ]
    };
}

/// The same with what a step costs.
macro_rules! cost_fields {
    ($($more:expr),* $(,)?) => {
        fields![
            Field::optional("usd", Kind::Dollars, "Dollars.", "0.012"),
            Field::optional("tokens", Kind::Whole(0), "Tokens, if no model is named.", "1200"),
            Field::optional("key", Kind::Id, "What is counted against the cap, such as a step or a task.", "\"capture_email\""),
            Field::optional("model", Kind::Id, "The model, to price its tokens from the table.", "\"gpt-4o\""),
            Field::optional("input_tokens", Kind::Whole(0), "Input tokens, without cached ones.", "900"),
            Field::optional("output_tokens", Kind::Whole(0), "Output tokens.", "300"),
            Field::optional("cached_tokens", Kind::Whole(0), "Input tokens read from a cache.", "0"),
            Field::optional("cache_write_tokens", Kind::Whole(0), "Input tokens written to a cache.", "0"),
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
            says("remaining_usd", AnswerKind::Number, "Dollars left, here and at the parent, if there is a limit."),
            says("spent_tokens", AnswerKind::Whole, "Tokens spent."),
            says("limit_tokens", AnswerKind::Whole, "Tokens allowed, if there is a limit."),
            says("remaining_tokens", AnswerKind::Whole, "Tokens left, if there is a limit."),
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
    answers![LEVEL, MODEL, CALLS, REMAINING_CALLS, CAP],
    &[Reason::UnknownModel, Reason::CallCapReached, Reason::BudgetExceeded]
);
route!(
    RECORD_ROUTE,
    "record",
    Record,
    "This was spent. It counts, also when it passes the limit.",
    cost_fields![],
    answers![LEVEL, MODEL, CALLS, REMAINING_CALLS, CAP],
    &[Reason::UnknownModel, Reason::CallCapReached, Reason::BudgetExceeded]
);
route!(
    RESERVE_ROUTE,
    "reserve",
    Reserve,
    "Set this aside for a step, if there is enough.",
    cost_fields![],
    answers![LEVEL, MODEL, CALLS, REMAINING_CALLS, CAP, RESERVATION_ID],
    &[Reason::UnknownModel, Reason::CallCapReached, Reason::BudgetExceeded, Reason::TooManyReservations]
);
route!(
    COMMIT_ROUTE,
    "commit",
    Commit,
    "The step is done and cost this much; without a cost, what was reserved.",
    cost_fields![RESERVATION],
    answers![LEVEL, MODEL, CALLS, REMAINING_CALLS, KNOWN],
    &[Reason::UnknownModel, Reason::BudgetExceeded]
);
route!(
    RELEASE_ROUTE,
    "release",
    Release,
    "The step was not done: what was reserved is free again.",
    fields![RESERVATION],
    answers![KNOWN],
    &[]
);

const LEVEL: AnswerField = says("level", AnswerKind::Text, "Refused: whether it is this budget or the parent that is used up.");
const MODEL: AnswerField = says("model", AnswerKind::Text, "Unknown model: its name.");
const CALLS: AnswerField = says("calls", AnswerKind::Whole, "Calls of the key.");
const REMAINING_CALLS: AnswerField = says("remaining_calls", AnswerKind::Whole, "Calls of the key left, if there is a cap.");
const CAP: AnswerField = says("cap", AnswerKind::Whole, "Cap reached: calls allowed.");
const RESERVATION_ID: AnswerField = says("reservation_id", AnswerKind::Text, "To commit or release it.");
const KNOWN: AnswerField = says("known", AnswerKind::Flag, "Whether the reservation was still open.");

/// Open reservations of one budget; more are refused.
const MOST_RESERVATIONS: usize = 128;
/// Keys counted against the cap. Beyond it the one counted longest ago is forgotten.
const MOST_KEYS: usize = 512;

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
}

impl Default for Settings {
    fn default() -> Self {
        Self { max_usd: 0.0, max_tokens: 0, cap: 0, reservation: Span::from_seconds(900), unknown_models: UnknownModels::Error }
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
        Setting { key: "unknown_models", about: "A model without a price: \"error\" refuses, \"free\" counts its tokens only." },
    ];

    fn longest_window(&self) -> Span {
        self.reservation
    }

    fn check(&self) -> Result<(), (&'static str, String)> {
        NanoDollars::from_dollars(self.max_usd).map_err(|error| ("max_usd", error.to_string()))?;
        within("cap", self.cap, 0..=1_000_000)?;
        lasting("reservation", self.reservation)
    }
}

/// `None`: no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    usd: Option<NanoDollars>,
    tokens: Option<u64>,
    cap: Option<u32>,
}

impl Limits {
    /// These, and where they say nothing the others.
    fn or(self, others: Self) -> Self {
        Self { usd: self.usd.or(others.usd), tokens: self.tokens.or(others.tokens), cap: self.cap.or(others.cap) }
    }

    /// The lower of each.
    fn within(self, ceiling: Self) -> Self {
        fn lower<T: Ord>(own: Option<T>, ceiling: Option<T>) -> Option<T> {
            [own, ceiling].into_iter().flatten().min()
        }
        Self { usd: lower(self.usd, ceiling.usd), tokens: lower(self.tokens, ceiling.tokens), cap: lower(self.cap, ceiling.cap) }
    }

    fn set(settings: &Settings) -> Self {
        let usd = NanoDollars::from_dollars(settings.max_usd).unwrap_or(NanoDollars::ZERO);
        Self {
            usd: (!usd.is_zero()).then_some(usd),
            tokens: (settings.max_tokens > 0).then_some(settings.max_tokens),
            cap: (settings.cap > 0).then_some(settings.cap),
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
struct Cost {
    usd: NanoDollars,
    tokens: u64,
}

impl Cost {
    fn plus(self, other: Self) -> Self {
        Self { usd: self.usd.saturating_add(other.usd), tokens: self.tokens.saturating_add(other.tokens) }
    }

    fn minus(self, other: Self) -> Self {
        Self { usd: self.usd.saturating_sub(other.usd), tokens: self.tokens.saturating_sub(other.tokens) }
    }
}

/// What is gone or set aside.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Holding {
    spent: Cost,
    reserved: Cost,
}

#[derive(Debug, Clone, PartialEq)]
struct Reservation {
    id: u64,
    cost: Cost,
    expires: Timestamp,
}

/// Those that are not settled.
#[derive(Debug, Clone, Default, PartialEq)]
struct Reservations(Vec<Reservation>);

impl Reservations {
    const BYTES_OF_ONE: usize = 32;

    fn in_force(&self, now: Timestamp) -> impl Iterator<Item = &Reservation> {
        self.0.iter().filter(move |open| now < open.expires)
    }
}

impl Packed for Reservations {
    fn pack(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.0.len() * Self::BYTES_OF_ONE);
        for Reservation { id, cost, expires } in &self.0 {
            bytes.extend_from_slice(&id.to_le_bytes());
            bytes.extend_from_slice(&cost.usd.as_nanos().to_le_bytes());
            bytes.extend_from_slice(&cost.tokens.to_le_bytes());
            bytes.extend_from_slice(&expires.as_millis().to_le_bytes());
        }
        bytes
    }

    fn unpack(bytes: &[u8]) -> Option<Self> {
        let read = |one: &[u8]| {
            let number = |place: usize| one.get(place * 8..place * 8 + 8)?.try_into().map(u64::from_le_bytes).ok();
            Some(Reservation {
                id: number(0)?,
                cost: Cost { usd: NanoDollars::from_nanos(number(1)?.cast_signed()).ok()?, tokens: number(2)? },
                expires: Timestamp::from_millis(number(3)?.cast_signed()),
            })
        };
        bytes.chunks(Self::BYTES_OF_ONE).take(MOST_RESERVATIONS).map(read).collect::<Option<_>>().map(Self)
    }
}
serialise_packed!(Reservations);

/// One budget.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Account {
    limits: Limits,
    spent: Cost,
    open: Reservations,
    calls: Vec<(u64, u32)>,
}

impl Account {
    fn reserved(&self, now: Timestamp) -> Cost {
        self.open.in_force(now).fold(Cost::default(), |sum, open| sum.plus(open.cost))
    }

    fn reservation(&self, id: u64) -> Option<&Reservation> {
        self.open.0.iter().find(|open| open.id == id)
    }

    fn calls_of(&self, key: u64) -> u32 {
        self.calls.iter().find(|(known, _)| *known == key).map_or(0, |(_, calls)| *calls)
    }

    fn count(&mut self, key: u64) {
        let calls = self.calls_of(key).saturating_add(1);
        self.calls.retain(|(known, _)| *known != key);
        if self.calls.len() >= MOST_KEYS {
            self.calls.remove(0);
        }
        self.calls.push((key, calls));
    }
}

/// The budget, and the one it draws on.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct State {
    own: Account,
    parent: Account,
}

impl Stored for State {
    fn load(parts: &[Option<&[u8]>]) -> Self {
        Self { own: decode(parts.first().copied().flatten()), parent: decode(parts.get(1).copied().flatten()) }
    }

    fn save(&self, part: usize) -> Vec<u8> {
        encode(if part == 0 { &self.own } else { &self.parent })
    }
}

impl State {
    fn account(&self, level: Level) -> &Account {
        match level {
            Level::Own => &self.own,
            Level::Parent => &self.parent,
        }
    }
}

/// Which budget of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Level {
    Own,
    Parent,
}

impl Level {
    const fn code(self) -> &'static str {
        match self {
            Self::Own => "budget",
            Self::Parent => "parent",
        }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
enum Happened {
    Limited(Limits),
    Spent(Cost),
    Reserved { id: u64, cost: Cost, expires: Timestamp },
    Settled { id: u64 },
    Counted { key: u64 },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Event {
    level: Level,
    happened: Happened,
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
        let account = match event.level {
            Level::Own => &mut state.own,
            Level::Parent => &mut state.parent,
        };
        match &event.happened {
            Happened::Limited(limits) => account.limits = *limits,
            Happened::Spent(cost) => account.spent = account.spent.plus(*cost),
            Happened::Reserved { id, cost, expires } => {
                account.open.0.retain(|open| at < open.expires);
                account.open.0.push(Reservation { id: *id, cost: *cost, expires: *expires });
            }
            Happened::Settled { id } => account.open.0.retain(|open| open.id != *id),
            Happened::Counted { key } => account.count(*key),
        }
    }

    fn part(event: &Event) -> usize {
        match event.level {
            Level::Own => 0,
            Level::Parent => 1,
        }
    }

    fn outlook(_section: &Section<Settings>, _subject: &str, _state: &State, _now: Timestamp) -> Vec<Outlook> {
        // An outlook counts requests; money is told by the check route.
        Vec::new()
    }
}

/// One budget after events happened to it. Whether it was asked itself or as a parent makes no difference to it.
pub(super) fn replay(state: Option<&[u8]>, events: &[u8], at: Timestamp) -> Option<Vec<u8>> {
    let events: Vec<Event> = postcard::from_bytes(events).ok()?;
    let mut state = State { own: decode(state), parent: Account::default() };
    for Event { happened, .. } in events {
        Budget::apply(&mut state, &Event { level: Level::Own, happened }, at);
    }
    Some(state.save(0))
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
struct Priced {
    model: String,
    usage: Usage,
}

#[derive(Debug)]
pub struct Request {
    act: Act,
    session_id: String,
    budget: String,
    parent: Option<String>,
    limits: Limits,
    usd: Option<NanoDollars>,
    tokens: Option<u64>,
    key: Option<String>,
    priced: Option<Priced>,
    reservation: Option<String>,
}

/// What a row of the log tells of a request.
#[derive(Debug, Clone, Copy)]
pub struct Told<'a> {
    pub session_id: &'a str,
    pub budget: &'a str,
    /// The last part of the route.
    pub act: &'a str,
    pub parent: Option<&'a str>,
    /// Of the session's own budget.
    pub events: Option<&'a [u8]>,
    /// What was asked for, where nothing happened.
    pub asked_usd: Option<f64>,
    pub asked_tokens: Option<u64>,
    /// The limits it brought along.
    pub limit_usd: Option<f64>,
    pub limit_tokens: Option<u64>,
    pub cap: Option<u64>,
    /// The names of reservations by their numbers.
    pub reservations: &'a std::collections::HashMap<u64, String>,
}

/// The request that a row of the log tells of. `None` when it does not tell enough.
pub fn again(told: Told<'_>) -> Option<Box<dyn super::Operation>> {
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
        tokens: told.asked_tokens,
        key: None,
        priced: None,
        reservation: None,
    };
    for event in events.into_iter().filter(|event| event.level == Level::Own) {
        match event.happened {
            Happened::Limited(limits) => request.limits = limits,
            Happened::Spent(cost) | Happened::Reserved { cost, .. } => {
                (request.usd, request.tokens) = (Some(cost.usd), Some(cost.tokens));
            }
            Happened::Settled { id } => request.reservation = Some(told.reservations.get(&id).cloned().unwrap_or_else(|| id.to_string())),
            // Its name is not kept; a name made of its number tells it from others all the same.
            Happened::Counted { key } => request.key = Some(key.to_string()),
        }
    }
    Some(Box::new(request))
}

/// As many calls as can be counted.
fn calls(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The number a reservation is known by in events.
pub fn reservation_number(id: &str) -> u64 {
    xxh3_64(id.as_bytes())
}

#[derive(Debug)]
pub enum Block {
    Model { model: String },
    Cap { calls: u32, cap: u32 },
    Dollars { level: Level, spent: NanoDollars, reserved: NanoDollars, asked: NanoDollars, limit: NanoDollars },
    Tokens { level: Level, spent: u64, asked: u64, limit: u64 },
    Reservations { open: u32 },
}

#[derive(Debug)]
pub struct Pass {
    reservation_id: Option<String>,
    known: Option<bool>,
    cost: Cost,
    /// Here and at the parent, once this is done.
    after: [Holding; 2],
    calls: Option<u32>,
    limits: [Limits; 2],
}

impl Request {
    fn read(input: &Input<'_>, act: Act) -> Self {
        let session_id = input.text("session_id");
        let id = |name: &str| input.optional_text(name).filter(|text| !text.is_empty());
        let limits = Limits { usd: input.dollars("max_usd"), tokens: input.whole("max_tokens"), cap: input.whole("cap").map(calls) };
        let count = |name: &str| input.whole(name).unwrap_or(0);
        let priced = id("model").map(|model| Priced {
            model,
            usage: Usage {
                input_tokens: count("input_tokens"),
                output_tokens: count("output_tokens"),
                cached_tokens: count("cached_tokens"),
                cache_write_tokens: count("cache_write_tokens"),
                ..Usage::default()
            },
        });
        Self {
            act,
            budget: id("budget").unwrap_or_else(|| "default".into()),
            // A budget cannot draw on itself.
            parent: id("parent").filter(|parent| *parent != session_id),
            session_id,
            limits,
            usd: input.dollars("usd"),
            tokens: input.whole("tokens"),
            key: id("key"),
            priced,
            reservation: id("reservation_id"),
        }
    }

    fn levels(&self) -> impl Iterator<Item = Level> {
        [Level::Own, Level::Parent].into_iter().take(if self.parent.is_some() { 2 } else { 1 })
    }

    /// What the request says it costs; `Err` names a model that has no price.
    fn cost(&self, settings: &Settings) -> Result<Option<Cost>, String> {
        let Some(Priced { model, usage }) = &self.priced else {
            let told = self.usd.is_some() || self.tokens.is_some();
            return Ok(told.then(|| Cost { usd: self.usd.unwrap_or_default(), tokens: self.tokens.unwrap_or(0) }));
        };
        let usd = match (self.usd, Prices::bundled().cost(model, usage, &UnknownModel::Error)) {
            // What the caller knows better than the table.
            (Some(usd), _) | (None, Ok((usd, _))) => usd,
            (None, Err(_)) if settings.unknown_models == UnknownModels::Free => NanoDollars::ZERO,
            (None, Err(_)) => return Err(model.clone()),
        };
        Ok(Some(Cost { usd, tokens: usage.total_tokens() }))
    }

    fn limits_at(&self, settings: &Settings, state: &State, level: Level) -> Limits {
        let own = match level {
            Level::Own => self.limits.or(state.own.limits),
            Level::Parent => state.parent.limits,
        };
        own.within(Limits::set(settings))
    }

    /// What an account holds once this is done.
    fn after(&self, account: &Account, held: Holding, cost: Cost, now: Timestamp) -> Holding {
        let mut holding = held;
        if matches!(self.act, Act::Commit | Act::Release)
            && let Some(settled) = self.reservation_number().and_then(|id| account.reservation(id)).filter(|open| now < open.expires)
        {
            holding.reserved = holding.reserved.minus(settled.cost);
        }
        match self.act {
            Act::Record | Act::Commit => holding.spent = holding.spent.plus(cost),
            Act::Reserve => holding.reserved = holding.reserved.plus(cost),
            Act::Check | Act::Release => {}
        }
        holding
    }

    /// Whether there is room for more, and if not, why, and when a reservation expires that may make room.
    fn shortage(
        account: &Account,
        held: Holding,
        level: Level,
        limits: Limits,
        more: Cost,
        now: Timestamp,
    ) -> Option<(Block, Option<Timestamp>)> {
        let Holding { spent: already, reserved } = held;
        // A reservation may expire; what is spent stays spent.
        let next_expiry = || account.open.in_force(now).map(|open| open.expires).min();
        if let Some(limit) = limits.usd {
            let spent = already.usd.saturating_add(more.usd);
            if spent.saturating_add(reserved.usd) > limit {
                let block = Block::Dollars { level, spent: already.usd, reserved: reserved.usd, asked: more.usd, limit };
                return Some((block, if spent <= limit { next_expiry() } else { None }));
            }
        }
        if let Some(limit) = limits.tokens {
            let spent = already.tokens.saturating_add(more.tokens);
            if spent.saturating_add(reserved.tokens) > limit {
                let block = Block::Tokens { level, spent: already.tokens, asked: more.tokens, limit };
                return Some((block, if spent <= limit { next_expiry() } else { None }));
            }
        }
        None
    }

    fn reservation_number(&self) -> Option<u64> {
        self.reservation.as_deref().map(|id| xxh3_64(id.as_bytes()))
    }

    /// What happens when the request is let pass, or when money is spent already.
    fn events(&self, settings: &Settings, state: &State, cost: Cost, moment: Moment<'_>) -> Vec<Event> {
        let mut events = Vec::new();
        if self.act != Act::Check && self.limits != Limits::default() && self.limits.or(state.own.limits) != state.own.limits {
            events.push(Event { level: Level::Own, happened: Happened::Limited(self.limits.or(state.own.limits)) });
        }
        for level in self.levels() {
            let mut push = |happened| events.push(Event { level, happened });
            match self.act {
                Act::Check => {}
                Act::Record => {
                    if cost != Cost::default() {
                        push(Happened::Spent(cost));
                    }
                }
                Act::Reserve => push(Happened::Reserved {
                    id: xxh3_64(moment.decision_id.as_bytes()),
                    cost,
                    expires: moment.now.plus(settings.reservation),
                }),
                Act::Commit => {
                    if let Some(id) = self.reservation_number() {
                        push(Happened::Settled { id });
                    }
                    push(Happened::Spent(cost));
                }
                Act::Release => {
                    if let Some(id) = self.reservation_number() {
                        push(Happened::Settled { id });
                    }
                }
            }
        }
        if let (Act::Record, Some(key)) = (self.act, &self.key) {
            events.push(Event { level: Level::Own, happened: Happened::Counted { key: xxh3_64(key.as_bytes()) } });
        }
        events
    }
}

impl Check for Request {
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
        let own = Place::in_session(&self.session_id, Slot::Budget, &self.budget);
        let parent = self.parent.iter().map(|parent| Place::in_session(parent, Slot::Budget, &self.budget));
        std::iter::once(own).chain(parent).collect()
    }

    fn input(&self, _store_text: StoreText) -> Facts {
        let facts = Facts::new().with("act", self.route().path.rsplit('/').next().unwrap_or_default());
        let mut facts = match &self.parent {
            Some(parent) => facts.with("parent", parent.clone()),
            None => facts,
        };
        if let Some(usd) = self.limits.usd {
            facts = facts.with("max_usd", usd.as_dollars());
        }
        if let Some(tokens) = self.limits.tokens {
            facts = facts.with("max_tokens", tokens);
        }
        if let Some(cap) = self.limits.cap {
            facts = facts.with("cap", cap);
        }
        match &self.priced {
            Some(priced) => facts.with("model", priced.model.clone()),
            None => facts,
        }
    }

    fn warnings(&self, settings: &Settings) -> Vec<String> {
        fn over<T: PartialOrd + fmt::Display>(name: &str, own: Option<T>, ceiling: Option<T>) -> Option<String> {
            let (_, ceiling) = own.zip(ceiling).filter(|(own, ceiling)| own > ceiling)?;
            Some(format!("{name} is above the limit of the settings, which holds: {ceiling}"))
        }
        let (own, ceiling) = (self.limits, Limits::set(settings));
        let all =
            [over("max_usd", own.usd, ceiling.usd), over("max_tokens", own.tokens, ceiling.tokens), over("cap", own.cap, ceiling.cap)];
        all.into_iter().flatten().collect()
    }

    fn decide(&self, settings: &Settings, state: &State, moment: Moment<'_>) -> RulingOf<Self> {
        let now = moment.now;
        let mut findings = Vec::new();
        let told = self.cost(settings).unwrap_or_else(|model| {
            findings.push(Finding::new(Reason::UnknownModel, Block::Model { model }, None));
            None
        });
        let reserved = self.reservation_number().and_then(|id| state.own.reservation(id)).filter(|open| now < open.expires);
        let cost = told.or_else(|| reserved.map(|open| open.cost).filter(|_| self.act == Act::Commit)).unwrap_or_default();
        let limits = [Level::Own, Level::Parent].map(|level| self.limits_at(settings, state, level));
        let events = self.events(settings, state, cost, moment);
        if let Some(key) = &self.key
            && let Some(cap) = limits[0].cap
        {
            let calls = state.own.calls_of(xxh3_64(key.as_bytes()));
            if calls >= cap && matches!(self.act, Act::Check | Act::Record | Act::Reserve) {
                findings.push(Finding::new(Reason::CallCapReached, Block::Cap { calls, cap }, None));
            }
        }
        let held = [&state.own, &state.parent].map(|account| Holding { spent: account.spent, reserved: account.reserved(now) });
        let after = [Level::Own, Level::Parent].map(|level| self.after(state.account(level), held[level as usize], cost, now));
        let calls = self.key.as_ref().map(|key| {
            let counted = u32::from(self.act == Act::Record);
            state.own.calls_of(xxh3_64(key.as_bytes())).saturating_add(counted)
        });
        for level in self.levels() {
            let limits = limits[level as usize];
            let short = match self.act {
                Act::Release => None,
                Act::Check | Act::Reserve => Self::shortage(state.account(level), held[level as usize], level, limits, cost, now),
                // The money is gone: the question is only whether it was too much.
                Act::Record | Act::Commit => {
                    Self::shortage(state.account(level), after[level as usize], level, limits, Cost::default(), now)
                }
            };
            let spent_already = matches!(self.act, Act::Record | Act::Commit);
            if let Some((block, clears_at)) = short {
                let clears_at = if spent_already { None } else { clears_at };
                let events = if spent_already { events.clone() } else { Vec::new() };
                findings.push(Finding { events, ..Finding::new(Reason::BudgetExceeded, block, clears_at) });
                break;
            }
            let open = &state.account(level).open;
            let full = self.act == Act::Reserve && open.0.len() >= MOST_RESERVATIONS;
            let open = if full { open.in_force(now).count() } else { 0 };
            if open >= MOST_RESERVATIONS {
                let next = state.account(level).open.in_force(now).map(|open| open.expires).min();
                findings.push(Finding::new(Reason::TooManyReservations, Block::Reservations { open: open as u32 }, next));
                break;
            }
        }
        let pass = Pass {
            reservation_id: (self.act == Act::Reserve).then(|| moment.decision_id.to_owned()),
            known: matches!(self.act, Act::Commit | Act::Release).then_some(reserved.is_some()),
            cost,
            after,
            calls,
            limits,
        };
        Ruling { findings, pass, events }
    }

    fn explain(&self, _settings: &Settings, _state: &State, block: &Block, _moment: Moment<'_>) -> (Facts, String) {
        let facts = Facts::new().with("budget", self.budget.clone());
        let whose = |level: Level| match level {
            Level::Own => "the budget",
            Level::Parent => "the parent's budget",
        };
        match block {
            Block::Model { model } => (
                facts.with("model", model.clone()),
                format!(
                    "Model '{model}' has no known price, so its cost cannot be kept within a limit. Send usd with the request, or set unknown_models = \"free\"."
                ),
            ),
            Block::Cap { calls, cap } => (
                facts.with("calls", *calls).with("cap", *cap),
                format!(
                    "'{}' was done {calls} times (cap {cap}). Go on without it, or hand over to a person.",
                    self.key.as_deref().unwrap_or("this step")
                ),
            ),
            Block::Dollars { level, spent, reserved, asked, limit } => {
                let left = limit.saturating_sub(*spent).saturating_sub(*reserved);
                (
                    facts
                        .with("level", level.code())
                        .with("cost_usd", asked.as_dollars())
                        .with("spent_usd", spent.as_dollars())
                        .with("reserved_usd", reserved.as_dollars())
                        .with("limit_usd", limit.as_dollars())
                        .with("remaining_usd", left.as_dollars()),
                    format!(
                        "Of {} {limit}, {spent} is spent and {reserved} reserved: {left} is left. Stop the run, or raise the limit.",
                        whose(*level)
                    ),
                )
            }
            Block::Tokens { level, spent, asked, limit } => (
                facts
                    .with("level", level.code())
                    .with("spent_tokens", *spent)
                    .with("limit_tokens", *limit)
                    .with("remaining_tokens", limit.saturating_sub(*spent)),
                format!(
                    "Of {} {limit} tokens, {spent} are used and {asked} more are asked for. Stop the run, or raise the limit.",
                    whose(*level)
                ),
            ),
            Block::Reservations { open } => (
                facts,
                format!(
                    "{open} reservations are open, the most that are kept. Commit or release those that are done; the others expire by themselves."
                ),
            ),
        }
    }

    fn pass(&self, pass: Pass, _moment: Moment<'_>) -> Facts {
        let Pass { reservation_id, known, cost, after, calls, limits } = pass;
        let mut facts = Facts::new().with("budget", self.budget.clone());
        if let Some(id) = reservation_id {
            facts = facts.with("reservation_id", id);
        }
        if let Some(known) = known {
            facts = facts.with("known", known);
        }
        facts = facts
            .with("cost_usd", cost.usd.as_dollars())
            .with("spent_usd", after[0].spent.usd.as_dollars())
            .with("reserved_usd", after[0].reserved.usd.as_dollars())
            .with("spent_tokens", after[0].spent.tokens);
        let levels = || self.levels().map(|level| (after[level as usize], limits[level as usize]));
        let dollars_left =
            levels().filter_map(|(held, limits)| Some(limits.usd?.saturating_sub(held.spent.usd).saturating_sub(held.reserved.usd)));
        let tokens_left = levels()
            .filter_map(|(held, limits)| Some(limits.tokens?.saturating_sub(held.spent.tokens).saturating_sub(held.reserved.tokens)));
        if let Some(limit) = limits[0].usd {
            facts = facts.with("limit_usd", limit.as_dollars());
        }
        if let Some(left) = dollars_left.min() {
            facts = facts.with("remaining_usd", left.as_dollars());
        }
        if let Some(limit) = limits[0].tokens {
            facts = facts.with("limit_tokens", limit);
        }
        if let Some(left) = tokens_left.min() {
            facts = facts.with("remaining_tokens", left);
        }
        if let Some(calls) = calls {
            facts = facts.with("calls", calls);
            if let Some(cap) = limits[0].cap {
                facts = facts.with("remaining_calls", cap.saturating_sub(calls));
            }
        }
        facts
    }
}
operation_of_check!(Request);

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
    }
}
