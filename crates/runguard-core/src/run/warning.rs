//! A run that has spent most of what it may is told of once, and may go on with a cheaper model.

use super::{Money, Run};
use crate::ledger::{Reserve, Unit};
use crate::limits::setters;
use crate::money::NanoDollars;
use serde::Serialize;

/// When a run is warned, and what it does then.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Warn {
    /// Once so many thousandths of a limit are spent; `None` for never.
    pub at_thousandths: Option<u64>,
    /// The model that is asked from then on, whichever is meant; `None` for the one that is.
    pub fallback_model: Option<String>,
}

setters!(Warn { at_thousandths: Option<u64>, fallback_model: Option<String> });

/// Most of a limit is spent.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Warning {
    /// What it is, in a sentence.
    pub message: String,
    /// What is limited.
    pub unit: Unit,
    /// Dollars or tokens, by the unit.
    pub spent: f64,
    /// The same of what may be spent.
    pub limit: f64,
}

impl Warning {
    fn new(unit: Unit, spent: f64, limit: f64) -> Self {
        let shown = |amount: f64| match unit {
            Unit::Usd => NanoDollars::from_dollars(amount).unwrap_or_default().to_string(),
            Unit::Tokens | Unit::Calls => format!("{amount} {}", unit.as_str()),
        };
        Self { message: format!("{} of {} are spent.", shown(spent), shown(limit)), unit, spent, limit }
    }
}

impl Run {
    /// With a warning when most of a limit is spent.
    #[must_use]
    pub fn with_warning(mut self, warn: Warn) -> Self {
        self.warn = warn;
        self
    }

    /// What to tell whoever watches, once: most of a limit is spent.
    pub fn take_warning(&mut self) -> Option<Warning> {
        if self.has_warned {
            return None;
        }
        let warning = self.nearly_spent()?;
        self.has_warned = true;
        Some(warning)
    }

    /// The model that is asked in place of another, once most is spent.
    pub(super) fn fallback(&self) -> Option<String> {
        let fallback = self.warn.fallback_model.clone()?;
        self.nearly_spent().map(|_| fallback)
    }

    fn nearly_spent(&self) -> Option<Warning> {
        let reserve = Reserve::but_for(self.warn.at_thousandths?);
        match self.budget.as_ref()? {
            Money::InProcess(budget) => {
                budget.nearly_spent(reserve).map(|near| Warning::new(near.unit, near.spent_value(), near.limit_value()))
            }
            Money::Service(budget) => budget.nearly_spent(reserve).map(|(unit, spent, limit)| Warning::new(unit, spent, limit)),
        }
    }
}
