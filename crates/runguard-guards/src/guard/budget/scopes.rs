//! Budgets that many sessions share: their limits as the settings have them, and which of them a request draws on.

use super::Request;
use super::settings::{Settings, limits_of};
use runguard_core::calendar::Period;
use runguard_core::ledger::{InvalidScope, Limits, MOST_SCOPES, Scope, is_per, scope_label};
use runguard_core::money::NanoDollars;
use runguard_core::nearest::closest;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Limits of the settings that many sessions share, by what and for how long.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(try_from = "ScopeTables", into = "ScopeTables")]
pub struct Scopes(pub(super) Vec<ScopeRule>);

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
pub(super) struct ScopeRule {
    per: String,
    period: Option<Period>,
    label: String,
    table: ScopeTable,
    limits: Limits,
    names: BTreeMap<String, Limits>,
}

impl ScopeRule {
    pub(super) fn limits_of(&self, name: &str, settings: &Settings) -> Limits {
        let limits = self.names.get(name).copied().unwrap_or(self.limits);
        let credits = self.table.names.get(name).and_then(|own| own.max_credits).or(self.table.max_credits);
        credits.map_or(limits, |credits| limits.within(settings.limit_of_credits(credits)))
    }

    pub(super) fn per(&self) -> &str {
        &self.per
    }

    pub(super) fn label(&self) -> &str {
        &self.label
    }

    pub(super) fn period(&self) -> Option<Period> {
        self.period
    }

    /// Every limit in credits.
    pub(super) fn credits(&self) -> impl Iterator<Item = f64> + '_ {
        self.table.names.values().chain([&self.table]).filter_map(|table| table.max_credits)
    }
}

impl TryFrom<ScopeTables> for Scopes {
    type Error = String;

    fn try_from(tables: ScopeTables) -> Result<Self, String> {
        let mut rules = Vec::new();
        for (per, periods) in tables {
            if !is_per(&per) {
                return Err(InvalidScope::per(&per).to_string());
            }
            for (period, table) in periods {
                let known = Period::named(&period);
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
        let usd =
            NanoDollars::limit_from_dollars(self.max_usd.or(others.max_usd).unwrap_or(0.0)).map_err(|error| format!("max_usd: {error}"))?;
        let tokens = self.max_tokens.or(others.max_tokens).unwrap_or(0);
        Ok(limits_of(usd, tokens, self.cap.or(others.cap).unwrap_or(0)))
    }
}

/// A scope that a request draws on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Drawn<'a> {
    pub(super) label: &'a str,
    pub(super) name: &'a str,
    pub(super) period: Option<Period>,
    /// In force for this question.
    pub(super) limits: Limits,
}

impl Drawn<'_> {
    pub(super) fn words(&self) -> String {
        let per = self.label.split('/').next().unwrap_or_default();
        let for_how_long = self.period.map_or_else(String::new, |period| format!(" for the {period}"));
        match self.name {
            "" => format!("{per}'s budget{for_how_long}"),
            name => format!("budget of {per} '{name}'{for_how_long}"),
        }
    }
}

impl Request {
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

    /// What is said of scopes that it names and that nothing limits: who misspells one has no limit, and would not know.
    pub(super) fn unlimited_scopes(&self, settings: &Settings) -> impl Iterator<Item = String> {
        let known = || settings.scopes.0.iter().map(|rule| rule.per.as_str());
        let is_unlimited =
            move |scope: &&Scope| scope.limits == Limits::default() && scope.max_credits.is_none() && known().all(|per| per != scope.per);
        self.scopes.iter().filter(is_unlimited).map(move |Scope { per, .. }| {
            let hint = closest(per, known()).map_or_else(String::new, |near| format!(" Did you mean `{near}`?"));
            format!("the scope `{per}` limits nothing: it came without a limit, and the settings (guards.budget.scopes) have none for it; what is spent is only counted.{hint}")
        })
    }

    /// Scopes of the settings that apply to it, and those it names itself; each once.
    pub(super) fn drawn_on<'a>(&'a self, settings: &'a Settings) -> Vec<Drawn<'a>> {
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
        for Scope { per, name, period, limits, max_credits, label, .. } in &self.scopes {
            if let Some(name) = self.name_of(per, Some(name)) {
                let limits = settings.with_credits(*limits, max_credits.map(NanoDollars::as_dollars));
                draw(Drawn { label, name, period: *period, limits });
            }
        }
        drawn
    }
}
