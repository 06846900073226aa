//! What was spent and by whom, budgets as they stand, and an operator's word on a run.
//!
//! Sums come from the cells of the log, as every overview does. How a budget stands is read where it is kept, of those names that
//! something was spent for: all budgets of a tenant live together, so they are read in one go.

use crate::analyst::Sums;
use crate::engine::{Engine, cell, label};
use crate::keys::Caller;
use runguard_core::calendar::Zone;
use runguard_core::money::NanoDollars;
use runguard_core::row::{Action, Row};
use runguard_core::text::StoreText;
use runguard_core::{GuardName, Timestamp};
use runguard_guards::guard::agent_run::{self, Control};
use runguard_guards::guard::budget::{BudgetFigures, Watched};
use runguard_insight::insight::digest::Range;
use runguard_insight::insight::digest::spend::{KEY, MODEL, SCOPE};
use runguard_insight::insight::spend::{BudgetStands, By, Figures, Overdue, Run, RunQuery, RunState, Runs, Spent};
use runguard_store::{Change, Decided, StoreError, Written};
use std::collections::BTreeMap;

/// Budgets that one answer tells of, and that are read in one go.
const MOST_BUDGETS: usize = 100;
/// Of all tenants together.
const MOST_TENANTS: usize = 20;

fn figures(found: &BudgetFigures) -> Figures {
    Figures {
        spent_usd: found.spent.usd.as_dollars(),
        reserved_usd: found.reserved.usd.as_dollars(),
        overdue_usd: found.overdue.usd.as_dollars(),
        limit_usd: found.limits.usd.map(NanoDollars::as_dollars),
        remaining_usd: found.remaining_usd.map(NanoDollars::as_dollars),
        spent_tokens: found.spent.tokens,
        reserved_tokens: found.reserved.tokens,
        limit_tokens: found.limits.tokens,
        remaining_tokens: found.remaining_tokens,
    }
}

/// A budget as it is shown.
pub(crate) fn stands(tenant: &str, watched: Watched, found: &BudgetFigures) -> BudgetStands {
    BudgetStands {
        tenant: tenant.to_owned(),
        scope: watched.label,
        name: watched.name,
        figures: figures(found),
        renews_at_ms: found.renews_at.map(Timestamp::as_millis),
        ..BudgetStands::default()
    }
}

impl Engine {
    /// How budgets of one tenant stand.
    async fn budget_figures(&self, tenant: &str, watched: &[Watched], now: Timestamp) -> Result<Vec<BudgetFigures>, StoreError> {
        let places: Vec<_> = watched.iter().map(Watched::place).collect();
        let labels: Vec<_> = places.iter().map(|place| label(tenant, place, StoreText::Full)).collect();
        let cells: Vec<_> = places.iter().zip(&labels).map(|(place, label)| cell(self.store.names(), tenant, place, label)).collect();
        if cells.is_empty() {
            return Ok(Vec::new());
        }
        let read = |watched: &[Watched], state: &dyn Fn(usize) -> Option<Vec<u8>>| -> Vec<BudgetFigures> {
            watched.iter().enumerate().map(|(number, watched)| watched.stands(state(number).as_deref(), now)).collect()
        };
        self.store.apply(&cells, |view| Decided::Reply(read(watched, &|number| view.get(number).map(<[u8]>::to_vec)))).await
    }

    /// What runs have paid that no row tells of, because nobody settled it in its time and nobody has asked for them since.
    async fn overdue(&self, runs: &[(Box<str>, Box<str>)], now: Timestamp) -> Result<Vec<Overdue>, StoreError> {
        let settings = self.settings.load_full();
        let mut of_tenant: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (tenant, run) in runs {
            of_tenant.entry(tenant).or_default().push(run);
        }
        let mut overdue = Vec::new();
        for (tenant, runs) in of_tenant {
            let policy = settings.policies.for_tenant(tenant);
            for runs in runs.chunks(MOST_BUDGETS) {
                let watched: Vec<Watched> = runs.iter().map(|run| Watched::of_run(policy, run)).collect();
                let found = self.budget_figures(tenant, &watched, now).await?;
                let nanos = |found: &BudgetFigures| found.overdue.usd.as_nanos().unsigned_abs();
                let paid = runs.iter().zip(&found).filter(|(_, found)| nanos(found) > 0);
                overdue.extend(paid.map(|(run, found)| Overdue { tenant: tenant.into(), run: (*run).into(), nanodollars: nanos(found) }));
            }
        }
        Ok(overdue)
    }

    /// What was spent in a range of time, by the days of a time zone; and the shared budgets as they stand.
    pub async fn spent(&self, range: Range, zone: Zone, by: Vec<By>, now: Timestamp) -> Result<Spent, StoreError> {
        let asked = range.filters.tenant.clone();
        let first = self.analyst.spent(range.clone(), zone.clone(), by.clone(), Vec::new(), now).await?;
        let overdue = self.overdue(&first.unsettled, now).await?;
        let Sums { mut spent, mut names, .. } =
            if overdue.is_empty() { first } else { self.analyst.spent(range, zone, by, overdue, now).await? };
        // A tenant that has spent nothing has its budgets all the same.
        if let Some(tenant) = asked.or_else(|| names.is_empty().then(|| Caller::open().tenant.to_string())) {
            names.entry(tenant.into()).or_default();
        }
        let settings = self.settings.load_full();
        for (tenant, names) in names.into_iter().take(MOST_TENANTS) {
            let of_kind = |per: &str| {
                let per = per.to_owned();
                let is_scope_of = |name: &str| name.split(['/', ' ']).next() == Some(per.as_str());
                let found: Vec<&str> = names
                    .iter()
                    .filter_map(|(kind, name)| match *kind {
                        KEY | MODEL if *kind == per => Some(name.as_str()),
                        SCOPE if is_scope_of(name) => name.split_once(' ').map(|(_, name)| name),
                        _ => None,
                    })
                    .collect();
                found.into_iter()
            };
            let mut watched = Watched::shared(settings.policies.for_tenant(&tenant), of_kind);
            watched.dedup();
            watched.truncate(MOST_BUDGETS);
            let found = self.budget_figures(&tenant, &watched, now).await?;
            spent.budgets.extend(watched.into_iter().zip(found).map(|(watched, budget)| stands(&tenant, watched, &budget)));
        }
        Ok(spent)
    }

    /// A page of the runs of a range, with their budgets as they stand.
    pub async fn runs(&self, range: Range, query: RunQuery, now: Timestamp) -> Result<Runs, StoreError> {
        let mut runs = self.analyst.runs(range, RunQuery { now_ms: now.as_millis(), ..query }).await?;
        let settings = self.settings.load_full();
        let mut of_tenant: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (number, run) in runs.runs.iter().enumerate() {
            of_tenant.entry(run.tenant.clone()).or_default().push(number);
        }
        for (tenant, numbers) in of_tenant {
            let policy = settings.policies.for_tenant(&tenant);
            for numbers in numbers.chunks(MOST_BUDGETS) {
                let watched: Vec<Watched> = numbers.iter().map(|number| Watched::of_run(policy, &runs.runs[*number].run)).collect();
                let found = self.budget_figures(&tenant, &watched, now).await?;
                for (number, budget) in numbers.iter().zip(found) {
                    let run = &mut runs.runs[*number];
                    run.budget = figures(&budget);
                    // What is set aside is under way, however long it takes.
                    if run.state == RunState::Idle && run.budget.reserved_usd > 0.0 {
                        run.state = RunState::Live;
                    }
                }
            }
        }
        Ok(runs)
    }

    /// Whether anything is known of a run.
    pub async fn knows_run(&self, tenant: &str, run: &str) -> Result<bool, StoreError> {
        Ok(!self.store.states(tenant, run).await?.is_empty())
    }

    /// An operator's word on a run, kept and logged like a decision.
    pub async fn control_run(&self, tenant: &str, run: &str, control: &Control, now: Timestamp) -> Result<Run, StoreError> {
        let (action, note) = match control {
            Control::Stop { note } => (Action::RunStopped, Some(note.clone())),
            Control::Resume => (Action::RunResumed, None),
        };
        let place = agent_run::place(run);
        let label = label(tenant, &place, StoreText::Full);
        let mut row = self.admin_row(tenant, now, action, run);
        (row.guard, row.session) = (GuardName::AgentRun.into(), run.to_owned());
        row.input = agent_run::kept_note(note.as_deref().unwrap_or_default());
        self.store
            .apply(&[cell(self.store.names(), tenant, &place, &label)], |view| {
                let change = agent_run::control(view.get(0), control, now);
                let kept = Change { cell: 0, events: change.events, state: change.state };
                // An id for each try: an earlier one may have been made, without our hearing of it.
                let row = Row { id: self.ids.next(now.as_millis()).text(), ..row.clone() };
                Decided::Keep((), Written { row, changes: vec![kept] })
            })
            .await?;
        let state = if note.is_some() { RunState::Stopped } else { RunState::Live };
        Ok(Run { run: run.to_owned(), tenant: tenant.to_owned(), state, note, ..Run::default() })
    }
}
