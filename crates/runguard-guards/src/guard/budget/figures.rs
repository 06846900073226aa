//! How budgets stand at a moment, for whoever looks and asks for nothing.

use super::path::begin_what_is_due;
use super::settings::{Settings, ceiling};
use super::{SCOPE_SLOT, SLOT};
use crate::guard::{Place, Scope as PlaceScope, Slot};
use crate::policy::Policy;
use runguard_core::calendar::{Period, Zone};
use runguard_core::ledger::{Account, Cost, Limits};
use runguard_core::money::NanoDollars;
use runguard_core::time::Timestamp;
use std::borrow::Cow;

/// The budget that nearly everybody has.
const DEFAULT: &str = "default";

/// A budget of a tenant that somebody looks at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watched {
    /// Such as `team/day`; of a run's own its name, mostly `default`.
    pub label: String,
    /// Whose: a run, a team, a key.
    pub name: String,
    slot: &'static Slot,
    limits: Limits,
    period: Option<Period>,
    zone: Zone,
}

/// How it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetFigures {
    pub spent: Cost,
    pub reserved: Cost,
    /// Of what is spent: what nobody settled in its time, and is not booked yet.
    pub overdue: Cost,
    pub limits: Limits,
    pub remaining_usd: Option<NanoDollars>,
    pub remaining_tokens: Option<u64>,
    /// When it begins anew.
    pub renews_at: Option<Timestamp>,
}

impl Watched {
    fn settings(policy: &Policy) -> &Settings {
        &policy.budget.for_subject(DEFAULT).settings
    }

    /// A run's own.
    pub fn of_run(policy: &Policy, run: &str) -> Self {
        Self::own(policy, run, DEFAULT)
    }

    fn own(policy: &Policy, run: &str, budget: &str) -> Self {
        let settings = &policy.budget.for_subject(budget).settings;
        Self {
            label: budget.to_owned(),
            name: run.to_owned(),
            slot: &SLOT,
            limits: ceiling(settings),
            period: None,
            zone: settings.time_zone.clone(),
        }
    }

    /// The one whose state lives with a run under this slot and subject: its own, or a scope that is the run's. `None`: it is no budget's.
    pub fn kept_with_run(policy: &Policy, run: &str, slot: u8, subject: &str) -> Option<Self> {
        if slot == SLOT.number {
            return Some(Self::own(policy, run, subject));
        }
        let settings = Self::settings(policy);
        let rule = settings.scopes.0.iter().find(|rule| rule.label() == subject);
        (slot == SCOPE_SLOT.number).then(|| Self {
            label: subject.to_owned(),
            name: run.to_owned(),
            slot: &SCOPE_SLOT,
            // A limit that came with a question held for that one.
            limits: rule.map(|rule| rule.limits_of(run, settings)).unwrap_or_default(),
            period: subject.split_once('/').and_then(|(_, period)| Period::named(period)),
            zone: settings.time_zone.clone(),
        })
    }

    /// Those that settings limit for whoever is named: `names` gives the names there are of a kind, such as the keys.
    pub fn shared<'a, N: Iterator<Item = &'a str>>(policy: &Policy, names: impl Fn(&str) -> N) -> Vec<Self> {
        let settings = Self::settings(policy);
        let rules = settings.scopes.0.iter().filter(|rule| rule.per() != "run");
        rules
            .flat_map(|rule| {
                let watched = |name: &str| Self {
                    label: rule.label().to_owned(),
                    limits: rule.limits_of(name, settings),
                    name: name.to_owned(),
                    slot: &SCOPE_SLOT,
                    period: rule.period(),
                    zone: settings.time_zone.clone(),
                };
                // Accounts are a tenant's anyway.
                if rule.per() == "tenant" { vec![watched("")] } else { names(rule.per()).map(watched).collect() }
            })
            .collect()
    }

    fn is_own(&self) -> bool {
        *self.slot == SLOT
    }

    pub fn place(&self) -> Place<'_> {
        let scope = if self.is_own() { PlaceScope::Session } else { PlaceScope::Account };
        Place { scope, name: &self.name, slot: self.slot, subject: &self.label }
    }

    /// What its state says at this moment. A period that is over has begun anew.
    pub fn stands(&self, state: Option<&[u8]>, now: Timestamp) -> BudgetFigures {
        let mut account = Cow::Owned(state.map(Account::from_bytes).unwrap_or_default());
        begin_what_is_due(&mut account, self.period, &self.zone, now);
        let limits = if self.is_own() { account.limits.within(self.limits) } else { self.limits };
        let (remaining_usd, remaining_tokens) = account.room(limits, now);
        BudgetFigures {
            spent: account.spent(now),
            reserved: account.reserved(now),
            overdue: account.overdue(now),
            limits,
            remaining_usd,
            remaining_tokens,
            renews_at: account.renews_at(),
        }
    }
}
