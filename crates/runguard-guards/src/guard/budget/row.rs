//! A budget's part of a log row: what is kept of a request, how the budget stands, the request again.

use super::answer::{OF_PARENT, OF_SCOPE};
use super::request::{calls, reservation_numbers};
use super::{Event, Request, SLOT};
use crate::input::PassedCall;
use crate::logged::{self, Account, Doubt, Doubts, Logged, Nearest, Retell, Retold, Shows, Spending, Terms, Tokens};
use runguard_core::calendar::Period;
use runguard_core::ledger::{Act, Entry, Limits, Scope, Unsettled};
use runguard_core::money::NanoDollars;
use runguard_core::reason::Reason;
use runguard_core::row::{Named, Outcome, RowRef};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// What of a request is kept.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct LoggedInput<'a> {
    /// None: a later version's.
    act: Named<Act>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    parent: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_usd: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_credits: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cap: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    scopes: Vec<String>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    asked_with: Option<Cow<'a, str>>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    model: Option<Cow<'a, str>>,
    /// What was used, where it is told that it was.
    #[serde(skip_serializing_if = "Tokens::are_none")]
    used: Tokens,
    #[serde(skip_serializing_if = "Option::is_none")]
    call: Option<Cow<'a, PassedCall>>,
}

impl<'a> From<&'a Request> for LoggedInput<'a> {
    fn from(request: &'a Request) -> Self {
        Self {
            act: request.act.into(),
            parent: request.parent.as_deref().map(Cow::Borrowed),
            max_usd: request.limits.usd.map(NanoDollars::as_dollars),
            max_credits: request.max_credits,
            max_tokens: request.limits.tokens,
            cap: request.limits.cap.map(u64::from),
            scopes: request.scopes.iter().map(shown).collect(),
            asked_with: request.asked_with.as_deref().map(Cow::Borrowed),
            model: request.model.as_deref().map(Cow::Borrowed),
            used: if request.act.is_spent() { request.used() } else { Tokens::default() },
            // With how the run was recognised: where nothing but words was said, no other row tells it.
            call: request.call.as_ref().map(Cow::Borrowed),
        }
    }
}

impl Request {
    /// Tokens by what they are. Of those that are told as a sum nobody knows: they are the input's.
    fn used(&self) -> Tokens {
        let Some(usage) = &self.usage else { return Tokens { input: self.tokens.unwrap_or(0), ..Tokens::default() } };
        Tokens {
            input: usage.input_tokens.saturating_add(usage.audio_input_tokens),
            output: usage.output_tokens.saturating_add(usage.audio_output_tokens),
            cached: usage.cached_tokens,
            cache_writes: usage.cache_write_tokens.saturating_add(usage.cache_write_1h_tokens),
        }
    }
}

/// A scope of the request as the log tells it: `team/day max_usd=5:search`.
pub(super) fn shown(scope: &Scope) -> String {
    let Limits { usd, tokens, cap } = scope.limits;
    let usd = usd.map_or_else(String::new, |usd| format!(" max_usd={}", usd.as_dollars()));
    let tokens = tokens.map_or_else(String::new, |tokens| format!(" max_tokens={tokens}"));
    let cap = cap.map_or_else(String::new, |cap| format!(" cap={cap}"));
    let credits = scope.max_credits.map_or_else(String::new, |credits| format!(" max_credits={}", credits.as_dollars()));
    format!("{}{usd}{credits}{tokens}{cap}:{}", scope.label, scope.name)
}

/// That scope again.
pub(super) fn read_shown(shown: &str) -> Option<Scope> {
    let (head, name) = shown.split_once(':')?;
    let mut words = head.split(' ');
    let label = words.next()?;
    let (mut limits, mut max_credits) = (Limits::default(), None);
    for (key, value) in words.filter_map(|word| word.split_once('=')) {
        match key {
            "max_usd" => limits.usd = NanoDollars::from_dollars(value.parse().ok()?).ok(),
            "max_credits" => max_credits = NanoDollars::from_dollars(value.parse().ok()?).ok(),
            "max_tokens" => limits.tokens = value.parse().ok(),
            "cap" => limits.cap = value.parse().ok(),
            _ => return None,
        }
    }
    let (per, period) = label.split_once('/').map_or((label, None), |(per, period)| (per, Some(period)));
    let period = match period {
        Some(period) => Some(Period::named(period)?),
        None => None,
    };
    Some(Scope::new(per, name, period, limits).ok()?.credits(max_credits))
}

/// What of an answer is read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct LoggedAnswer<'a> {
    #[serde(borrow)]
    level: Cow<'a, str>,
    #[serde(borrow)]
    scope: Cow<'a, str>,
    #[serde(borrow)]
    scope_name: Cow<'a, str>,
    renews_in_seconds: Option<i64>,
    cost_usd: Option<f64>,
    spent_usd: Option<f64>,
    reserved_usd: Option<f64>,
    overdue_usd: Option<f64>,
    overdue_settled_usd: Option<f64>,
    limit_usd: Option<f64>,
    spent_tokens: Option<u64>,
    limit_tokens: Option<u64>,
    calls: Option<u64>,
    #[serde(borrow)]
    nearest_scope: Cow<'a, str>,
    #[serde(borrow)]
    nearest_scope_name: Cow<'a, str>,
    nearest_scope_percent: Option<f64>,
    nearest_scope_renews_in_seconds: Option<i64>,
    scopes_passed: Vec<String>,
}

impl<'a> LoggedAnswer<'a> {
    fn account(&self, parent: Option<Cow<'a, str>>) -> Account<'a> {
        match &*self.level {
            OF_PARENT => Account::Parent(parent.filter(|parent| !parent.is_empty())),
            OF_SCOPE => Account::Scope(format!("{} {}", self.scope, self.scope_name).trim_end().to_owned()),
            _ => Account::Own,
        }
    }

    fn is_own(&self) -> bool {
        self.account(None) == Account::Own
    }
}

pub(crate) fn shows<'a>(row: &RowRef<'a>) -> Shows<'a> {
    let (kept, said): (LoggedInput<'a>, LoggedAnswer<'a>) = (logged::read(row.input), logged::read(row.answer));
    let scope = |label: &str, name: &str| format!("{label} {name}").trim_end().to_owned();
    let nearest = said.nearest_scope_percent.map(|percent| Nearest {
        scope: scope(&said.nearest_scope, &said.nearest_scope_name),
        percent,
        renews_in_seconds: said.nearest_scope_renews_in_seconds,
    });
    let others = said.scopes_passed.iter().filter_map(|shown| super::answer::Nearest::read(shown)).map(|other| Nearest {
        scope: scope(&other.label, &other.name),
        percent: other.percent,
        renews_in_seconds: other.renews_in_seconds.and_then(|seconds| seconds.try_into().ok()),
    });
    let scopes = kept.scopes.iter().filter_map(|scope| read_shown(scope)).filter(|scope| scope.per != "run");
    let spending = Spending {
        nearest: nearest.into_iter().chain(others).collect(),
        act: kept.act.known(),
        key: kept.asked_with,
        used: kept.used,
        reserved_usd: said.reserved_usd,
        // Others only look at it.
        overdue_usd: said.overdue_usd.filter(|_| kept.act == Act::Reserve).unwrap_or_default(),
        overdue_settled_usd: said.overdue_settled_usd.unwrap_or_default(),
        scopes: scopes.map(|scope| (scope.label, scope.name)).collect(),
        call: kept.call.map(Cow::into_owned),
        account: said.account(kept.parent),
        renews_in_seconds: said.renews_in_seconds,
        model: kept.model,
        cost_usd: said.cost_usd,
        spent_usd: said.spent_usd,
        limit_usd: said.limit_usd,
        spent_tokens: said.spent_tokens,
        limit_tokens: said.limit_tokens,
    };
    Shows { spending: Some(spending), ..Shows::default() }
}

const ASKED_UNKNOWN: Doubt = Doubt::of_guard(0, "blocked budget requests are kept without what they asked for: they stay blocked");
const KEY_UNKNOWN: Doubt =
    Doubt::of_guard(1, "budget checks and reservations are kept without their key: the cap is not looked at for them");
const TOKENS_UNKNOWN: Doubt =
    Doubt::of_guard(2, "budget requests are kept without the tokens they asked for: only dollars are looked at for them");

/// What was spent or set aside is told by its events, what was only asked for by the answer, in dollars.
#[derive(Debug, Default)]
pub(crate) struct Retelling {
    /// The names of reservations by the numbers that events have.
    reservations: BTreeMap<u64, String>,
}

impl Retell for Retelling {
    fn again(&mut self, logged: &Logged<'_>, terms: &Terms<'_>, doubts: &mut Doubts) -> Option<Retold> {
        let row = logged.row;
        let (kept, said): (LoggedInput<'_>, LoggedAnswer<'_>) = (logged::read(&row.input), logged::read(&row.answer));
        let act = kept.act.known()?;
        if act == Act::Reserve {
            self.reservations.extend(reservation_numbers(&row.id).map(|number| (number, row.id.clone())));
        }
        // The events of the session's own budget.
        let own = logged.effects.iter().filter(|effect| effect.slot == SLOT.number).find_map(|effect| {
            let events: Vec<Event> = postcard::from_bytes(effect.events).ok()?;
            events.iter().any(|event| event.steps == 0).then_some(events)
        });
        let is_refused = matches!(row.outcome.answered(), Some(Outcome::Blocked | Outcome::WouldBlock));
        if is_refused && own.is_none() && (said.cost_usd.is_none() || !row.gives(Reason::BudgetExceeded)) {
            doubts.add(ASKED_UNKNOWN);
            return None;
        }
        let set = &terms.policy.budget.for_subject(&row.subject).settings;
        // What the caller asked for; a row that does not tell it shows it by a limit that nobody else has set.
        let shown_usd = || said.limit_usd.filter(|limit| said.is_own() && (limit - set.max_usd).abs() > f64::EPSILON);
        let shown_tokens = || said.limit_tokens.filter(|limit| said.is_own() && *limit != set.max_tokens);
        if act.asks() && own.is_none() {
            if said.calls.is_some() {
                doubts.add(KEY_UNKNOWN);
            }
            if said.limit_tokens.is_some() {
                doubts.add(TOKENS_UNKNOWN);
            }
        }
        let mut request = Request {
            act,
            session_id: row.session.clone(),
            budget: row.subject.clone(),
            parent: kept.parent.as_deref().map(str::to_owned),
            limits: Limits {
                usd: kept.max_usd.or_else(shown_usd).and_then(in_dollars),
                tokens: kept.max_tokens.or_else(shown_tokens),
                cap: kept.cap.map(calls),
            },
            max_credits: kept.max_credits,
            usd: said.cost_usd.filter(|_| act.asks()).and_then(in_dollars),
            // They are in the dollars.
            credits: None,
            tokens: None,
            key: None,
            model: kept.model.as_deref().map(str::to_owned),
            usage: None,
            reservation: None,
            scopes: kept.scopes.iter().filter_map(|shown| read_shown(shown)).collect(),
            unsettled: Unsettled::Free,
            is_try: false,
            asked_with: kept.asked_with.as_deref().map(str::to_owned),
            call: None,
        };
        for event in own.into_iter().flatten().filter(|event| event.steps == 0) {
            match event.entry {
                // With its credits, as dollars.
                Entry::Limited(limits) => (request.limits, request.max_credits) = (limits, None),
                Entry::Spent(cost) | Entry::Reserved { cost, .. } => {
                    (request.usd, request.tokens) = (Some(cost.usd), Some(cost.tokens));
                }
                Entry::ReservedOrSpent { cost, .. } => {
                    (request.usd, request.tokens, request.unsettled) = (Some(cost.usd), Some(cost.tokens), Unsettled::Spent);
                }
                Entry::Settled { id } => request.reservation = Some(self.reservations.get(&id).cloned().unwrap_or_else(|| id.to_string())),
                // Its name is not kept; a name made of its number tells it from others all the same.
                Entry::Counted { key } => request.key = Some(key.to_string()),
                Entry::Began { .. } | Entry::TakenBack { .. } => {}
            }
        }
        Some(Retold::of(request))
    }
}

fn in_dollars(usd: f64) -> Option<NanoDollars> {
    NanoDollars::from_dollars(usd).ok()
}
