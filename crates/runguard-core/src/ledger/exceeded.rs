//! A limit that is passed, whose it is, and the sentences that say so.

use super::nano_dollars;
use crate::reason::Reason;
use crate::text::capitalised;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What is counted.
///
/// ```
/// assert_eq!(runguard_core::budget::Unit::Usd.as_str(), "usd");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Dollars.
    Usd,
    /// Tokens.
    Tokens,
    /// Calls of one key.
    Calls,
}

impl Unit {
    /// Its name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Usd => "usd",
            Self::Tokens => "tokens",
            Self::Calls => "calls",
        }
    }

    /// Dollars as a float, tokens and calls as they are.
    fn value(self, amount: u64) -> f64 {
        match self {
            Self::Usd => nano_dollars(amount).as_dollars(),
            Self::Tokens | Self::Calls => amount as f64,
        }
    }

    fn show(self, amount: u64) -> String {
        match self {
            Self::Usd => nano_dollars(amount).to_string(),
            Self::Tokens => format!("{amount} token{}", plural(amount)),
            Self::Calls => format!("{amount} call{}", plural(amount)),
        }
    }
}

fn plural(amount: u64) -> &'static str {
    if amount == 1 { "" } else { "s" }
}

/// Whose limit it was.
///
/// ```
/// use runguard_core::budget::{Budget, Cost, Level, Limits};
///
/// let parent = Budget::new(Limits { tokens: Some(100), ..Limits::default() });
/// let child = parent.child(Limits { tokens: Some(80), ..Limits::default() });
/// assert_eq!(child.reserve(Cost::tokens(90)).unwrap_err().level, Level::Own);
/// parent.record(Cost::tokens(50)).unwrap();
/// assert_eq!(child.reserve(Cost::tokens(70)).unwrap_err().level, Level::Ancestor(1));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// The budget itself.
    Own,
    /// 1 is the parent, 2 the parent's parent.
    Ancestor(u32),
    /// One of the scopes that were named, by its place among them.
    Scope(u32),
}

impl Level {
    /// The account that is so many steps up the path.
    pub const fn above(steps: usize) -> Self {
        if steps == 0 { Self::Own } else { Self::Ancestor(steps as u32) }
    }
}

/// A limit is passed, or would be.
///
/// Amounts are in the unit's own whole numbers: nano-dollars, tokens, calls.
///
/// ```
/// use runguard_core::budget::{Budget, Cost, Limits, Unit};
/// use runguard_core::money::NanoDollars;
///
/// let budget = Budget::new(Limits { usd: Some(NanoDollars::parse("5")?), ..Limits::default() });
/// budget.record(Cost::usd(NanoDollars::parse("4.5")?)).unwrap();
/// let stop = budget.record(Cost::usd(NanoDollars::parse("1")?)).unwrap_err();
/// assert_eq!((stop.unit, stop.spent_value(), stop.limit_value()), (Unit::Usd, 5.5, 5.0));
/// assert_eq!(stop.to_string(), "the budget of $5.00 is exceeded: $5.50 spent; stop the run, or raise the limit");
/// # Ok::<(), runguard_core::money::MoneyError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub struct BudgetExceeded {
    /// What was limited.
    pub unit: Unit,
    /// Whose limit it is.
    pub level: Level,
    /// Paid so far at that level; what a refused request asked for is not in it.
    pub spent: u64,
    /// Set aside for others.
    pub reserved: u64,
    /// What was refused; 0 when the money was already spent and is in `spent`.
    pub asked: u64,
    /// The most that may be spent, in the same unit.
    pub limit: u64,
    /// When the period of that limit is over, and it begins anew.
    pub renews_at: Option<Timestamp>,
}

impl BudgetExceeded {
    /// Dollars, tokens or calls, by the unit.
    pub fn spent_value(&self) -> f64 {
        self.unit.value(self.spent)
    }

    /// Dollars, tokens or calls, by the unit.
    pub fn reserved_value(&self) -> f64 {
        self.unit.value(self.reserved)
    }

    /// Dollars, tokens or calls, by the unit.
    pub fn asked_value(&self) -> f64 {
        self.unit.value(self.asked)
    }

    /// Dollars, tokens or calls, by the unit.
    pub fn limit_value(&self) -> f64 {
        self.unit.value(self.limit)
    }

    /// What is left, by the unit: spent and reserved are gone.
    pub fn remaining_value(&self) -> f64 {
        self.unit.value(self.limit.saturating_sub(self.spent).saturating_sub(self.reserved))
    }

    /// Whether nothing is left of that limit, even if all that is set aside is given back.
    pub const fn is_used_up(&self) -> bool {
        self.spent >= self.limit
    }

    /// The code of this refusal.
    pub const fn reason(&self) -> Reason {
        match self.unit {
            Unit::Calls => Reason::CallCapReached,
            Unit::Usd | Unit::Tokens => Reason::BudgetExceeded,
        }
    }

    /// What is wrong and what to do, in sentences.
    pub fn sentences(&self) -> String {
        self.sentences_of(self.whose())
    }

    /// The same by someone who knows a better name for that budget.
    pub fn sentences_of(&self, whose: &str) -> String {
        format!("The {}. {}.", self.what(whose), capitalised(self.advice()))
    }

    fn whose(&self) -> &'static str {
        match self.level {
            Level::Own => "budget",
            Level::Ancestor(1) => "parent's budget",
            Level::Ancestor(_) => "budget of an ancestor",
            Level::Scope(_) => "budget of a scope",
        }
    }

    fn what(&self, whose: &str) -> String {
        let [limit, spent, reserved, asked] = [self.limit, self.spent, self.reserved, self.asked].map(|amount| self.unit.show(amount));
        if self.unit == Unit::Calls {
            let made = if self.spent > self.limit { self.spent.to_string() } else { "all".to_owned() };
            return format!("{whose} allows {limit} of one key, and {made} were made");
        }
        let aside = if self.reserved > 0 { format!(", {reserved} reserved") } else { String::new() };
        if self.asked == 0 || self.is_used_up() {
            // Spent to the last cent is not yet too much.
            let state = if self.spent == self.limit { "used up" } else { "exceeded" };
            format!("{whose} of {limit} is {state}: {spent} spent{aside}")
        } else {
            let left = self.unit.show(self.limit.saturating_sub(self.spent).saturating_sub(self.reserved));
            format!("{whose} of {limit} has no room for {asked}: {spent} spent{aside}, {left} left")
        }
    }

    fn advice(&self) -> &'static str {
        match (self.unit, self.renews_at) {
            (Unit::Calls, _) => "go on without this call, or stop the run",
            (Unit::Usd | Unit::Tokens, None) => "stop the run, or raise the limit",
            (Unit::Usd | Unit::Tokens, Some(_)) => "wait for the next period, stop the run, or raise the limit",
        }
    }
}

impl fmt::Display for BudgetExceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the {}; {}", self.what(self.whose()), self.advice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::without_advice;

    #[test]
    fn what_stands_against_it_is_found_again_whatever_the_name_has_in_it() {
        for (unit, renews_at) in [(Unit::Usd, None), (Unit::Tokens, Some(Timestamp::ZERO)), (Unit::Calls, None)] {
            let level = Level::Scope(0);
            let exceeded = BudgetExceeded { unit, level, spent: 3, reserved: 2, asked: 9, limit: 7, renews_at };
            let whose = "budget of the team 'a. b. c'";
            assert_eq!(without_advice(&exceeded.sentences_of(whose)), format!("The {}", exceeded.what(whose)));
        }
    }
}
