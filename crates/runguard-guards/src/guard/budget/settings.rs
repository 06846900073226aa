//! What an operator allows every session, and what a credit costs.

use super::scopes::{ScopeRule, Scopes};
use crate::policy::{GuardSettings, Setting};
use runguard_core::calendar::Zone;
use runguard_core::ledger::Limits;
use runguard_core::limits::{InvalidSetting, lasting, within};
use runguard_core::money::NanoDollars;
use runguard_core::prices::{Prices, UnknownModel, UnknownModelError, Usage};
use runguard_core::reason::GuardName;
use runguard_core::time::Span;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnknownModels {
    /// Refused: a price that is not known cannot be kept within a limit.
    #[serde(alias = "refuse")]
    Error,
    /// Its tokens cost nothing.
    #[serde(alias = "allow")]
    Free,
    /// Its tokens cost what this model's do.
    PriceAs(String),
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
        Setting {
            key: "reservation",
            about: "A reservation that is not settled in this time is free again, or spent where whoever made it said so (if_unsettled), as the gateway does.",
        },
        Setting {
            key: "unknown_models",
            about: "A model without a price, where dollars are limited: \"error\" (or \"refuse\") refuses, \"free\" (or \"allow\") counts its tokens only, { price_as = \"gpt-4o\" } takes the price of that one.",
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
        NanoDollars::limit_from_dollars(self.max_usd).map_err(|error| InvalidSetting::new("max_usd", error.to_string()))?;
        within("cap", self.cap, 0..=1_000_000)?;
        if let UnknownModels::PriceAs(model) = &self.unknown_models
            && Prices::bundled().price(model).is_none()
        {
            return Err(InvalidSetting::new("unknown_models", format!("price_as must be a model that has a price; `{model}` has none")));
        }
        if !(self.credit_usd > 0.0 && self.credit_usd <= 1_000_000.0) {
            return Err(InvalidSetting::new("credit_usd", format!("must be more than 0 and at most 1000000, is {}", self.credit_usd)));
        }
        let most_credits = self.scopes.0.iter().flat_map(ScopeRule::credits).chain([self.max_credits]);
        for credits in most_credits {
            self.limit_price_of(credits).map_err(|problem| InvalidSetting::new("max_credits", problem))?;
        }
        lasting("reservation", self.reservation)
    }
}

impl Settings {
    /// What a model's tokens cost; an error where it has no price and that is refused.
    pub fn cost_of(&self, model: &str, usage: &Usage) -> Result<NanoDollars, UnknownModelError> {
        let unknown = match self.unknown_models {
            UnknownModels::Error | UnknownModels::PriceAs(_) => UnknownModel::Error,
            UnknownModels::Free => UnknownModel::Free,
        };
        Prices::bundled().cost(self.priced_as(model), usage, &unknown).map(|(usd, _)| usd)
    }

    /// The model whose price is taken: itself, or the one that stands for those without a price.
    pub fn priced_as<'a>(&'a self, model: &'a str) -> &'a str {
        match &self.unknown_models {
            UnknownModels::PriceAs(other) if Prices::bundled().price(model).is_none() => other,
            UnknownModels::Error | UnknownModels::Free | UnknownModels::PriceAs(_) => model,
        }
    }

    /// What so many credits cost; more than can be counted is as much as can be.
    pub(super) fn most_price_of(&self, credits: f64) -> NanoDollars {
        NanoDollars::from_dollars(credits * self.credit_usd).unwrap_or(NanoDollars::MAX)
    }

    /// A limit in credits, in dollars.
    fn limit_price_of(&self, credits: f64) -> Result<NanoDollars, String> {
        // Both may be so small that floats have no number for what they are together.
        let dollars = (credits * self.credit_usd).max(if credits > 0.0 { f64::MIN_POSITIVE } else { credits });
        NanoDollars::limit_from_dollars(dollars).map_err(|error| error.to_string())
    }

    /// A caller's limits and the one in credits that came with them.
    pub(super) fn with_credits(&self, limits: Limits, max_credits: Option<f64>) -> Limits {
        limits.within(Limits { usd: max_credits.map(|credits| self.most_price_of(credits)), ..Limits::default() })
    }

    /// So many dollars in credits.
    pub(super) fn credits_of(&self, dollars: f64) -> f64 {
        dollars / self.credit_usd
    }

    /// A limit in credits, as dollars. In settings nothing means no limit.
    pub(super) fn limit_of_credits(&self, credits: f64) -> Limits {
        let usd = self.limit_price_of(credits).ok().filter(|usd| !usd.is_zero());
        Limits { usd, ..Limits::default() }
    }
}

impl Settings {
    /// The limits in force, each in a few words: `$2.00 per run`, `$50.00 per tenant/day`.
    pub fn limits_in_words(&self) -> Vec<String> {
        let words = |limits: Limits, per: &str| {
            let usd = limits.usd.map(|usd| usd.to_string());
            let tokens = limits.tokens.map(|tokens| format!("{tokens} tokens"));
            let calls = limits.cap.map(|calls| format!("{calls} calls of a key"));
            let all: Vec<String> = [usd, tokens, calls].into_iter().flatten().collect();
            (!all.is_empty()).then(|| format!("{} per {per}", all.join(" and ")))
        };
        let rules = self.scopes.0.iter().filter_map(|rule| words(rule.limits_of("", self), rule.label()));
        words(ceiling(self), "run").into_iter().chain(rules).collect()
    }
}

/// The limits of the settings, which no caller gets past.
pub(super) fn ceiling(settings: &Settings) -> Limits {
    let usd = NanoDollars::limit_from_dollars(settings.max_usd).unwrap_or(NanoDollars::ZERO);
    limits_of(usd, settings.max_tokens, settings.cap).within(settings.limit_of_credits(settings.max_credits))
}

/// In settings nothing means no limit.
pub(super) fn limits_of(usd: NanoDollars, tokens: u64, cap: u32) -> Limits {
    Limits { usd: (!usd.is_zero()).then_some(usd), tokens: (tokens > 0).then_some(tokens), cap: (cap > 0).then_some(cap) }
}
