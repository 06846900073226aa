//! What is answered: why it is refused, or how the budget stands.

use super::Request;
use super::scopes::Drawn;
use super::settings::Settings;
use crate::answer::Facts;
use runguard_core::ledger::{BudgetExceeded, Cost, Level, Limits, Unit};
use runguard_core::money::NanoDollars;
use runguard_core::prices::UnknownModelError;
use runguard_core::run::sentence;
use runguard_core::time::Timestamp;

/// What an answer calls a budget that another one draws on, and one that many sessions share.
pub(super) const OF_PARENT: &str = "parent";
pub(super) const OF_SCOPE: &str = "scope";

#[derive(Debug)]
pub enum Block {
    Model(UnknownModelError),
    /// What it has.
    NotMetered(Box<str>),
    Exceeded(BudgetExceeded),
    Reservations {
        open: u32,
    },
}

#[derive(Debug)]
pub struct Pass {
    pub(super) reservation_id: Option<String>,
    pub(super) known: Option<bool>,
    pub(super) cost: Cost,
    /// Of the budget itself, once this is done.
    pub(super) spent: Cost,
    pub(super) reserved: Cost,
    /// Of what is spent: what nobody settled in its time, and was not booked before this.
    pub(super) overdue: Cost,
    /// What was booked for it because it was late, and is taken back with this.
    pub(super) overdue_settled: Cost,
    pub(super) limits: Limits,
    /// Over all the path.
    pub(super) remaining_usd: Option<NanoDollars>,
    pub(super) remaining_tokens: Option<u64>,
    pub(super) remaining_credits: Option<f64>,
    pub(super) calls: Option<u32>,
    pub(super) remaining_calls: Option<u32>,
    pub(super) nearest: Vec<Nearest>,
}

/// A scope, and how much of its limit is spent.
#[derive(Debug)]
pub(super) struct Nearest {
    pub(super) label: String,
    pub(super) name: String,
    pub(super) percent: f64,
    pub(super) renews_in_seconds: Option<u64>,
}

impl Nearest {
    /// In one text, where there are several.
    fn shown(&self) -> String {
        let Self { label, name, percent, renews_in_seconds } = self;
        let renews = renews_in_seconds.map_or_else(|| "-".to_owned(), |seconds| seconds.to_string());
        format!("{percent} {renews} {label}:{name}")
    }

    /// What that text says.
    pub(super) fn read(shown: &str) -> Option<Self> {
        let (percent, rest) = shown.split_once(' ')?;
        let (renews, scope) = rest.split_once(' ')?;
        let (label, name) = scope.split_once(':')?;
        Some(Self {
            label: label.to_owned(),
            name: name.to_owned(),
            percent: percent.parse().ok()?,
            renews_in_seconds: renews.parse().ok(),
        })
    }
}

impl Request {
    /// Why it is refused: facts and sentences.
    pub(super) fn explain_block(&self, settings: &Settings, block: &Block, paid: Option<Cost>, now: Timestamp) -> (Facts, String) {
        let facts = Facts::new().with("budget", self.budget.clone());
        match block {
            Block::Model(unknown) => (facts.with("model", unknown.model.clone()), sentence(unknown)),
            Block::NotMetered(what) => (facts, format!("The question has {what}. It is not passed on while dollars are limited.")),
            Block::Exceeded(exceeded) => self.explain_exceeded(facts, exceeded, settings, paid, now),
            Block::Reservations { open } => (
                facts,
                format!(
                    "{open} reservations are open, the most that are kept. Commit or release those that are done; the others expire by themselves."
                ),
            ),
        }
    }

    fn with_credits_left(&self, facts: Facts, exceeded: &BudgetExceeded, settings: &Settings) -> Facts {
        if self.credits.is_none() {
            return facts;
        }
        facts.with("remaining_credits", settings.credits_of(exceeded.remaining_value()))
    }

    fn explain_exceeded(
        &self,
        facts: Facts,
        exceeded: &BudgetExceeded,
        settings: &Settings,
        paid: Option<Cost>,
        now: Timestamp,
    ) -> (Facts, String) {
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
        let paid = paid.map(|cost| cost.usd.as_dollars());
        let with_paid = |facts: Facts| match paid {
            Some(paid) => facts.with("cost_usd", paid),
            None => facts,
        };
        let facts = match unit {
            Unit::Calls => with_paid(facts).with("calls", spent).with("cap", limit),
            Unit::Usd => self
                .with_credits_left(facts, exceeded, settings)
                .with("cost_usd", paid.unwrap_or_else(|| exceeded.asked_value()))
                .with("spent_usd", exceeded.spent_value())
                .with("reserved_usd", exceeded.reserved_value())
                .with("limit_usd", exceeded.limit_value())
                .with("remaining_usd", exceeded.remaining_value()),
            Unit::Tokens => with_paid(facts)
                .with("spent_tokens", spent)
                .with("reserved_tokens", reserved)
                .with("limit_tokens", limit)
                .with("remaining_tokens", limit.saturating_sub(spent).saturating_sub(reserved)),
        };
        (facts, sentences)
    }
}

/// What is taken back because it was booked for something that is settled only now.
pub(super) fn with_overdue_settled(facts: Facts, settled: Cost) -> Facts {
    if settled == Cost::ZERO { facts } else { facts.with("overdue_settled_usd", settled.usd.as_dollars()) }
}

impl Pass {
    /// How the budget stands.
    pub(super) fn facts(self, budget: &str) -> Facts {
        let Self {
            reservation_id,
            known,
            cost,
            spent,
            reserved,
            overdue,
            overdue_settled,
            limits,
            remaining_usd,
            remaining_tokens,
            calls,
            remaining_calls,
            ..
        } = self;
        let mut facts = Facts::new().with("budget", budget.to_owned());
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
        if overdue != Cost::ZERO {
            facts = facts.with("overdue_usd", overdue.usd.as_dollars());
        }
        facts = with_overdue_settled(facts, overdue_settled);
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
        if let Some(left) = self.remaining_credits {
            facts = facts.with("remaining_credits", left);
        }
        let mut nearest = self.nearest.into_iter();
        if let Some(Nearest { label, name, percent, renews_in_seconds }) = nearest.next() {
            facts = facts.with("nearest_scope", label).with_text("nearest_scope_name", name).with("nearest_scope_percent", percent);
            if let Some(seconds) = renews_in_seconds {
                facts = facts.with("nearest_scope_renews_in_seconds", seconds);
            }
        }
        let others: Vec<String> = nearest.map(|other| other.shown()).collect();
        if !others.is_empty() {
            facts = facts.with("scopes_passed", others);
        }
        facts
    }
}
