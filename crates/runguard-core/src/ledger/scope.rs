//! What a question draws on beside its own budget.

use super::Limits;
use crate::calendar::Period;
use crate::limits::MAX_ID_CHARS;
use crate::money::NanoDollars;
use serde::Deserialize;

/// Scopes that one question may name, and that settings may add to it.
pub const MOST_SCOPES: usize = 16;

/// What a budget may be for each of without a caller's naming it: its session, its tenant, the key it asks with, the model it prices.
pub const KNOWN_PER: [&str; 4] = ["run", "tenant", "key", "model"];

/// Longest name of what there is a budget for each of.
const MAX_PER_CHARS: usize = 32;

/// What a question draws on beside its own budget, as its caller names it.
///
/// ```
/// use runguard_core::calendar::Period;
/// use runguard_core::ledger::{Limits, Scope};
///
/// let scope = Scope::new("team", "search", Some(Period::Day), Limits::default())?;
/// assert_eq!(scope.label, "team/day");
/// assert!(Scope::new("team", "", None, Limits::default()).is_err(), "whose?");
/// # Ok::<(), runguard_core::ledger::InvalidScope>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Scope {
    /// What there is one of for each: a team, a user, a model.
    pub per: String,
    /// Which one. Empty where whoever keeps the books knows it.
    pub name: String,
    /// What it is counted anew with; `None` for good.
    pub period: Option<Period>,
    /// The caller's own, for this question.
    pub limits: Limits,
    /// The same in credits of a platform, a number of them: whoever keeps the books knows what one costs.
    pub max_credits: Option<NanoDollars>,
    /// [`scope_label`] of it.
    pub label: String,
}

impl Scope {
    /// One that is called by its name.
    pub fn new(per: &str, name: &str, period: Option<Period>, limits: Limits) -> Result<Self, InvalidScope> {
        if !is_per(per) {
            return Err(InvalidScope::per(per));
        }
        let chars = name.chars().count();
        if chars > MAX_ID_CHARS {
            return Err(InvalidScope::LongName { per: per.to_owned(), chars });
        }
        if name.trim().is_empty() && !KNOWN_PER.contains(&per) {
            return Err(InvalidScope::NoName(per.to_owned()));
        }
        Ok(Self { label: scope_label(per, period), per: per.to_owned(), name: name.to_owned(), period, limits, max_credits: None })
    }

    /// Scopes as callers write them: `[{"per": "team", "name": "search", "period": "day", "max_usd": 5}]`.
    pub fn read_all(json: &str) -> Result<Vec<Self>, InvalidScope> {
        let sent: Vec<SentScope<f64>> = serde_json::from_str(json).map_err(|problem| InvalidScope::NotRead(problem.to_string()))?;
        sent.into_iter().map(Self::read).collect()
    }

    fn read(sent: SentScope<f64>) -> Result<Self, InvalidScope> {
        let SentScope { per, name, period, max_usd, max_credits, max_tokens, cap } = sent;
        let amount = |name: &str, amount: Option<f64>| {
            amount.map(NanoDollars::from_dollars).transpose().map_err(|problem| InvalidScope::NotRead(format!("{name}: {problem}")))
        };
        let whole = |name: &str, count: Option<f64>| match count {
            Some(count) if count < 0.0 || count.fract() != 0.0 || count > WHOLE_IN_JSON => {
                Err(InvalidScope::NotRead(format!("{name} must be a whole number from 0 up, not {count}")))
            }
            count => Ok(count.map(|count| count as u64)),
        };
        let cap = whole("cap", cap)?.map(|cap| u32::try_from(cap).unwrap_or(u32::MAX));
        let limits = Limits { usd: amount("max_usd", max_usd)?, tokens: whole("max_tokens", max_tokens)?, cap };
        let max_credits = amount("max_credits", max_credits)?;
        Ok(Self::new(&per, &name.unwrap_or_default(), period, limits)?.credits(max_credits))
    }

    /// The same with a limit in credits.
    #[must_use]
    pub fn credits(self, max_credits: Option<NanoDollars>) -> Self {
        Self { max_credits, ..self }
    }
}

/// Whole numbers up to here are themselves in JSON.
const WHOLE_IN_JSON: f64 = 9_007_199_254_740_991.0;

/// A scope as it is sent, whatever its amounts are read as.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SentScope<Amount> {
    /// See [`Scope::per`].
    pub per: String,
    /// See [`Scope::name`].
    pub name: Option<String>,
    /// See [`Scope::period`].
    pub period: Option<Period>,
    /// Dollars.
    pub max_usd: Option<Amount>,
    /// See [`Scope::max_credits`].
    pub max_credits: Option<Amount>,
    /// Tokens.
    pub max_tokens: Option<Amount>,
    /// Calls of one key.
    pub cap: Option<Amount>,
}

/// Why something is no scope.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidScope {
    /// What there is one of for each is no word.
    #[error("`{0}` must be a word of at most {MAX_PER_CHARS} small letters, digits, _ and -, such as tenant or team")]
    Per(String),
    /// Nobody knows whose it is.
    #[error("needs the name of the {0}; without one are {known}", known = KNOWN_PER.join(", "))]
    NoName(String),
    /// Whose it is takes too many characters to say.
    #[error("the name of a {per} is {chars} characters long; at most {MAX_ID_CHARS} are taken")]
    LongName {
        /// What there is one of for each.
        per: String,
        /// So many.
        chars: usize,
    },
    /// It is written in another way.
    #[error("{0}")]
    NotRead(String),
}

impl InvalidScope {
    /// Of a long word its beginning is shown.
    pub fn per(per: &str) -> Self {
        Self::Per(per.chars().take(2 * MAX_PER_CHARS).collect())
    }
}

/// What there may be a budget for each of: a word of small letters, digits, `_` and `-`.
pub fn is_per(per: &str) -> bool {
    (1..=MAX_PER_CHARS).contains(&per.len())
        && per.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-'))
}

/// How an account of a scope is called, whoever it belongs to: `team/day`, and `team` for what never begins anew.
pub fn scope_label(per: &str, period: Option<Period>) -> String {
    match period {
        Some(period) => format!("{per}/{period}"),
        None => per.to_owned(),
    }
}
