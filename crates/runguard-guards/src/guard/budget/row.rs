//! A budget's part of a log row: what is kept of a request, how the budget stands, the request again.

use super::{Event, SLOT, Told, again, reservation_number};
use crate::logged::{self, Account, Doubt, Doubts, Logged, Nearest, Retell, Retold, Shows, Spending, Terms};
use runguard_core::reason::Reason;
use runguard_core::row::{Effect, Outcome, RowRef};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// What of a request is kept.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Kept<'a> {
    /// The last part of the route.
    #[serde(borrow)]
    pub(super) act: Cow<'a, str>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    pub(super) parent: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_usd: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cap: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) scopes: Vec<String>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    pub(super) asked_with: Option<Cow<'a, str>>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    pub(super) model: Option<Cow<'a, str>>,
}

impl Kept<'_> {
    fn is_spent(&self) -> bool {
        matches!(&*self.act, "record" | "commit")
    }
}

/// What of an answer is read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Said<'a> {
    #[serde(borrow)]
    level: Cow<'a, str>,
    #[serde(borrow)]
    scope: Cow<'a, str>,
    #[serde(borrow)]
    scope_name: Cow<'a, str>,
    renews_in_seconds: Option<i64>,
    cost_usd: Option<f64>,
    spent_usd: Option<f64>,
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
}

impl<'a> Said<'a> {
    fn account(&self, parent: Option<Cow<'a, str>>) -> Account<'a> {
        match &*self.level {
            super::OF_PARENT => Account::Parent(parent.filter(|parent| !parent.is_empty())),
            super::OF_SCOPE => Account::Scope(format!("{} {}", self.scope, self.scope_name).trim_end().to_owned()),
            _ => Account::Own,
        }
    }

    fn is_own(&self) -> bool {
        self.account(None) == Account::Own
    }
}

pub(crate) fn shows<'a>(row: &RowRef<'a>) -> Shows<'a> {
    let (kept, said): (Kept<'a>, Said<'a>) = (logged::read(row.input), logged::read(row.answer));
    let nearest = said.nearest_scope_percent.map(|percent| Nearest {
        scope: format!("{} {}", said.nearest_scope, said.nearest_scope_name).trim_end().to_owned(),
        percent,
        renews_in_seconds: said.nearest_scope_renews_in_seconds,
    });
    let spending = Spending {
        nearest,
        is_spent: kept.is_spent(),
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

const ASKED_UNKNOWN: Doubt = Doubt::of_guard(0, "refused budget requests are kept without what they asked for: they stay refused");
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
        let (kept, said): (Kept<'_>, Said<'_>) = (logged::read(&row.input), logged::read(&row.answer));
        let act = &*kept.act;
        if act == "reserve" {
            self.reservations.insert(reservation_number(&row.id), row.id.clone());
        }
        let is_own = |effect: &&Effect<'_>| {
            let events: Vec<Event> = postcard::from_bytes(effect.events).unwrap_or_default();
            effect.slot == SLOT.number && events.iter().any(|event| event.steps == 0)
        };
        let own = logged.effects.iter().find(is_own).map(|effect| effect.events);
        let is_refused = matches!(row.outcome.answered(), Some(Outcome::Blocked | Outcome::WouldBlock));
        if is_refused && own.is_none() && (said.cost_usd.is_none() || !row.gives(Reason::BudgetExceeded)) {
            doubts.add(ASKED_UNKNOWN);
            return None;
        }
        let set = &terms.policy.budget.for_subject(&row.subject).settings;
        // What the caller asked for; a row that does not tell it shows it by a limit that nobody else has set.
        let shown_usd = || said.limit_usd.filter(|limit| said.is_own() && (limit - set.max_usd).abs() > f64::EPSILON);
        let shown_tokens = || said.limit_tokens.filter(|limit| said.is_own() && *limit != set.max_tokens);
        if !kept.is_spent() && act != "release" && own.is_none() {
            if said.calls.is_some() {
                doubts.add(KEY_UNKNOWN);
            }
            if said.limit_tokens.is_some() {
                doubts.add(TOKENS_UNKNOWN);
            }
        }
        let request = again(Told {
            session_id: &row.session,
            budget: &row.subject,
            act,
            parent: kept.parent.as_deref(),
            events: own,
            asked_usd: said.cost_usd.filter(|_| matches!(act, "check" | "reserve")),
            asked_tokens: None,
            limit_usd: kept.max_usd.or_else(shown_usd),
            limit_tokens: kept.max_tokens.or_else(shown_tokens),
            cap: kept.cap,
            scopes: kept.scopes.iter().map(String::as_str).collect(),
            model: kept.model.as_deref(),
            asked_with: kept.asked_with.as_deref(),
            reservations: &self.reservations,
        })?;
        Some(Retold::of(request))
    }
}
