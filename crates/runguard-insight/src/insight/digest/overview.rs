//! Cells turned into an [`Overview`] of a range.

use super::{
    BETWEEN_NAMES, Cell, CellKey, Digest, Dimension, GAP_ASKED, GAP_CONFIDENCE, HOUR_MILLIS, LABEL_CHARACTERS, MINUTE_MILLIS, MOST_ACTIONS,
    MOST_ENTRIES, MOST_MEMBERS, MOST_SUBJECTS, NANOS, OTHER, PARTS, Sessions, WHOLE_CONFIDENCE, joined,
};
use crate::insight::{
    Action, BudgetSeen, Chain, Counted, Edge, Endpoint, Entity, Filters, Goal, GoalAction, Hours, Outcomes, Overview, ReasonCount,
    SubjectCount, Topic,
};
use runguard_core::hashed::HashedMap;
use runguard_core::reason::{GuardName, Reason};
use runguard_core::row::{Named, Outcome, RowCount};
use runguard_guards::guard::{GuardEntry, GuardedStep};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// What a block spares, and what that is worth.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Savings {
    /// Billed operations that one block spares; a guard that is not named spares one.
    pub operations: BTreeMap<GuardName, u32>,
    pub credits_per_operation: f64,
    pub usd_per_operation: f64,
}

impl Default for Savings {
    fn default() -> Self {
        // A query of a knowledge base is a retrieval and a generation. No price is made up: dollars are told once one is set.
        Self { operations: BTreeMap::from([(GuardName::KbRequery, 2)]), credits_per_operation: 1.0, usd_per_operation: 0.0 }
    }
}

impl Savings {
    pub fn operations_of(&self, guard: GuardName) -> u32 {
        self.operations.get(&guard).copied().unwrap_or(1)
    }

    /// What so many operations cost in credits.
    pub fn credits(&self, operations: u64) -> f64 {
        operations as f64 * self.credits_per_operation
    }

    /// The same in dollars.
    pub fn usd(&self, operations: u64) -> f64 {
        operations as f64 * self.usd_per_operation
    }
}

/// Which time, in which steps, and of what.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Range {
    pub since_ms: i64,
    pub until_ms: i64,
    pub bucket_seconds: u64,
    pub filters: Filters,
}

impl Range {
    fn bucket_millis(&self) -> i64 {
        (self.bucket_seconds.clamp(1, 86_400 * 366) * 1000) as i64
    }

    /// How many buckets the range touches.
    pub fn buckets(&self) -> i64 {
        if self.until_ms <= self.since_ms {
            return 0;
        }
        let bucket = self.bucket_millis();
        (self.until_ms - 1).div_euclid(bucket).saturating_sub(self.since_ms.div_euclid(bucket)).saturating_add(1)
    }

    /// The hours whose cells belong to it, first and last.
    pub fn hours(&self) -> (i64, i64) {
        (self.since_ms.div_euclid(HOUR_MILLIS), self.until_ms.saturating_sub(1).div_euclid(HOUR_MILLIS))
    }

    fn position(&self, at: i64) -> Option<usize> {
        let bucket = self.bucket_millis();
        let position = at.div_euclid(bucket) - self.since_ms.div_euclid(bucket);
        // An hour may have begun before the range did.
        Some(position.max(0)).filter(|position| *position < self.buckets()).map(|position| position as usize)
    }

    /// Whether panels of this guard are asked for.
    fn wants(&self, guard: GuardName) -> bool {
        let of_reason = self.filters.reason.as_deref().and_then(Reason::from_code).is_none_or(|reason| reason.guard() == guard);
        of_reason && self.filters.guard.as_deref().is_none_or(|wanted| wanted == guard.code())
    }

    fn wants_reason(&self, reason: &str) -> bool {
        self.filters.reason.as_deref().is_none_or(|wanted| wanted == reason)
    }
}

/// Turns counts and cells into an overview. Counts are of the range exactly, cells of the hours it touches. With a filter
/// by reason the panels of its guard are shown, and of them subjects and chains are only those of that reason.
///
/// `since` and `until` as texts are left to who knows how to write them.
pub fn overview(range: &Range, counts: &[RowCount], cells: impl IntoIterator<Item = (CellKey, Cell)>, savings: &Savings) -> Overview {
    let mut shown = Overview {
        since_ms: range.since_ms,
        until_ms: range.until_ms,
        bucket_seconds: range.bucket_seconds,
        filters: range.filters.clone(),
        ..Overview::default()
    };
    let mut reasons = series(&mut shown, range, counts, savings);
    let gathered = Gathered::of(range, cells);
    gathered.subjects(&mut shown, range, &mut reasons);
    shown.reasons = heaviest(reasons.into_values(), |reason| {
        (reason.blocked + reason.would_block, Reverse((reason.guard.clone(), reason.reason.clone())))
    });
    gathered.panels(&mut shown, range);
    shown
}

type Reasons = BTreeMap<(String, String), ReasonCount>;

fn series(shown: &mut Overview, range: &Range, counts: &[RowCount], savings: &Savings) -> Reasons {
    let buckets = range.buckets().max(0) as usize;
    let first = range.since_ms.div_euclid(range.bucket_millis()).saturating_mul(range.bucket_millis());
    shown.series.starts_ms = (0..buckets as i64).map(|position| first.saturating_add(position * range.bucket_millis())).collect();
    let mut reasons = Reasons::new();
    let totals = &mut shown.totals;
    for count in counts
        .iter()
        .filter(|count| range.filters.reason.is_none() || range.filters.reason.as_deref() == count.reason.as_ref().map(Named::code))
    {
        let Some(outcome) = count.outcome.answered().filter(|outcome| *outcome != Outcome::Recorded) else { continue };
        let Some(position) = range.position(count.minute.saturating_mul(MINUTE_MILLIS)) else { continue };
        let empty = || Outcomes { allowed: vec![0; buckets], would_block: vec![0; buckets], blocked: vec![0; buckets] };
        let by_guard = shown.series.by_guard.entry(count.guard.code().to_owned()).or_insert_with(empty);
        totals.decisions += count.count;
        match outcome {
            Outcome::Allowed => {
                by_guard.allowed[position] += count.count;
                totals.allowed += count.count;
            }
            Outcome::WouldBlock => {
                by_guard.would_block[position] += count.count;
                totals.would_block += count.count;
            }
            Outcome::Blocked => {
                by_guard.blocked[position] += count.count;
                totals.blocked += count.count;
                let each = count.guard.known().map_or(1, |guard| savings.operations_of(guard));
                totals.operations_saved += count.count * u64::from(each);
            }
            Outcome::Recorded => {}
        }
        if let Some(reason) = &count.reason {
            let (guard, reason) = (count.guard.code().to_owned(), reason.code().to_owned());
            let entry =
                reasons.entry((guard.clone(), reason.clone())).or_insert_with(|| ReasonCount { guard, reason, ..ReasonCount::default() });
            match outcome {
                Outcome::Allowed | Outcome::Recorded => {}
                Outcome::WouldBlock => entry.would_block += count.count,
                Outcome::Blocked => entry.blocked += count.count,
            }
        }
    }
    totals.credits_saved = savings.credits(totals.operations_saved);
    totals.usd_saved = savings.usd(totals.operations_saved);
    reasons
}

/// The heaviest entries, heaviest first.
fn heaviest<T, W: Ord>(entries: impl IntoIterator<Item = T>, weight: impl Fn(&T) -> W) -> Vec<T> {
    let mut entries: Vec<T> = entries.into_iter().collect();
    entries.sort_by_cached_key(|entry| Reverse(weight(entry)));
    entries.truncate(MOST_ENTRIES);
    entries
}

pub(super) fn sessions(cell: &Cell) -> Vec<String> {
    cell.examples.iter().map(|example| example.session.to_string()).collect()
}

type Names = (Box<str>, Box<str>);

/// The cells of the range, added up over hours and tenants.
#[derive(Default)]
struct Gathered {
    cells: BTreeMap<Dimension, BTreeMap<Names, Cell>>,
    by_hour_of_day: BTreeMap<Names, [u64; 24]>,
    failures: BTreeMap<Box<str>, Vec<u64>>,
}

impl Gathered {
    fn of(range: &Range, cells: impl IntoIterator<Item = (CellKey, Cell)>) -> Self {
        let mut gathered = Self::default();
        let (first, last) = range.hours();
        let mut by_hash: HashedMap<u128, (Dimension, Names, Cell)> = HashedMap::default();
        let mut scratch = Digest::default();
        for (place, cell) in cells {
            let is_of_tenant = range.filters.tenant.as_deref().is_none_or(|tenant| tenant == &*place.tenant);
            if !(first..=last).contains(&place.hour) || !is_of_tenant {
                continue;
            }
            match place.dimension {
                Dimension::Subject => gathered.hour_of_day(&place, &cell),
                Dimension::Call => gathered.failures(range, &place, &cell),
                Dimension::Reason
                | Dimension::Edge
                | Dimension::Chain
                | Dimension::Topic
                | Dimension::Entity
                | Dimension::Budget
                | Dimension::Goal
                | Dimension::Offer
                | Dimension::Sessions => {}
                // They have a reader of their own.
                Dimension::Spend | Dimension::Run => continue,
            }
            let hash = scratch.hash(0, "", place.dimension, &[&place.first, &place.second]);
            by_hash
                .entry(hash)
                .and_modify(|(_, _, sum)| sum.add(&cell))
                .or_insert_with(|| (place.dimension, (place.first, place.second), cell));
        }
        for (dimension, names, cell) in by_hash.into_values() {
            gathered.cells.entry(dimension).or_default().insert(names, cell);
        }
        gathered
    }

    /// Of guards that ask the user, or the model, once more.
    fn hour_of_day(&mut self, place: &CellKey, cell: &Cell) {
        let guard = GuardName::from_code(&place.first);
        if guard.is_some_and(|guard| GuardEntry::of(guard).step == GuardedStep::Question) {
            let by_hour = self.by_hour_of_day.entry((place.first.clone(), place.second.clone())).or_default();
            by_hour[place.hour.rem_euclid(24) as usize] += cell.allowed + cell.would_block + cell.blocked;
        }
    }

    /// By tenths of an hour, put into the bucket in which the tenth begins.
    fn failures(&mut self, range: &Range, place: &CellKey, cell: &Cell) {
        let buckets = range.buckets().max(0) as usize;
        let over_time = self.failures.entry(place.first.clone()).or_insert_with(|| vec![0; buckets]);
        for (tenth, failures) in cell.histogram.iter().flatten().enumerate() {
            let begins = place.hour * HOUR_MILLIS + tenth as i64 * HOUR_MILLIS / PARTS;
            if let Some(position) = range.position(begins) {
                over_time[position] += u64::from(*failures);
            }
        }
    }

    fn each(&self, dimension: Dimension) -> impl Iterator<Item = (&str, &str, &Cell)> {
        self.cells.get(&dimension).into_iter().flatten().map(|((first, second), cell)| (&**first, &**second, cell))
    }

    /// Sessions that asked a guard.
    fn sessions_of(&self, guard: GuardName) -> u64 {
        let mut all = Sessions::default();
        for (_, _, cell) in self.each(Dimension::Sessions).filter(|(named, ..)| *named == guard.code()) {
            all.add(&cell.sessions);
        }
        all.count()
    }

    /// Who is behind the reasons, and the subjects themselves.
    fn subjects(&self, shown: &mut Overview, range: &Range, reasons: &mut Reasons) {
        let mut of_subject: BTreeMap<(&str, &str), Cell> = BTreeMap::new();
        let mut of_reason: BTreeMap<(&str, &str), (Cell, Vec<Counted>)> = BTreeMap::new();
        for (named, subject, cell) in self.each(Dimension::Reason) {
            let Some((guard, reason)) = named.split_once(' ') else { continue };
            if !range.wants_reason(reason) || !GuardName::from_code(guard).is_some_and(|guard| range.wants(guard)) {
                continue;
            }
            of_subject.entry((guard, subject)).or_default().add(cell);
            let (sum, counted) = of_reason.entry((guard, reason)).or_default();
            sum.add(cell);
            counted.push(Counted { subject: subject.to_owned(), count: cell.blocked + cell.would_block });
        }
        for ((guard, reason), (sum, mut counted)) in of_reason {
            if let Some(entry) = reasons.get_mut(&(guard.to_owned(), reason.to_owned())) {
                counted.sort_by(|left, right| (right.count, &left.subject).cmp(&(left.count, &right.subject)));
                counted.truncate(MOST_SUBJECTS);
                entry.subjects = counted;
                entry.sessions = sessions(&sum);
            }
        }
        let empty = Cell::default();
        let subject = |(guard, subject, counts, examples): (&str, &str, &Cell, &Cell)| SubjectCount {
            guard: guard.to_owned(),
            subject: subject.to_owned(),
            allowed: counts.allowed,
            would_block: counts.would_block,
            blocked: counts.blocked,
            sessions: sessions(examples),
        };
        let all: Vec<(&str, &str, &Cell, &Cell)> = if range.filters.reason.is_some() {
            of_subject.iter().map(|((guard, name), cell)| (*guard, *name, cell, cell)).collect()
        } else {
            self.each(Dimension::Subject)
                .filter(|(guard, ..)| GuardName::from_code(guard).is_some_and(|guard| range.wants(guard)))
                .map(|(guard, name, cell)| (guard, name, cell, of_subject.get(&(guard, name)).unwrap_or(&empty)))
                .collect()
        };
        // There may be very many: only those that are shown are written out.
        let shown_first = heaviest(all, |(guard, name, cell, _)| (cell.blocked + cell.would_block, cell.allowed, Reverse((*guard, *name))));
        shown.subjects = shown_first.into_iter().map(subject).collect();
    }

    /// Pictures of one guard each, of what only its rows show: who handed over to whom, what a knowledge base was asked, an agent's plan, the
    /// health of endpoints, values, money. What every guard has (counts, subjects, hours) is counted for all, and a new guard is in it.
    fn panels(&self, shown: &mut Overview, range: &Range) {
        if range.wants(GuardName::Handoff) {
            self.handoffs(shown, range);
        }
        if range.wants(GuardName::KbRequery) {
            shown.topic_sessions = self.sessions_of(GuardName::KbRequery);
            let topics = joined::join(self.each(Dimension::Topic).map(|(topic, _, cell)| (topic, cell)));
            shown.topics = heaviest(topics.iter().map(|topic| topic_shown(topic, shown.topic_sessions)), |topic| {
                (topic.queries + topic.blocked, Reverse(topic.topic.clone()))
            });
        }
        if range.wants(GuardName::AgentAction) {
            self.actions(shown);
            self.goals(shown);
        }
        if range.wants(GuardName::ApiCircuit) {
            self.endpoints(shown, range);
        }
        if range.wants(GuardName::CaptureSlotFill) {
            let entities = self.each(Dimension::Entity).map(|(entity, _, cell)| Entity {
                entity: entity.to_owned(),
                hints: cell.count,
                blocked: cell.blocked,
                sessions: sessions(cell),
            });
            shown.entities = heaviest(entities, |entity| (entity.hints, entity.blocked, Reverse(entity.entity.clone())));
        }
        if range.wants(GuardName::Budget) {
            let budgets = self.each(Dimension::Budget).map(|(budget, _, cell)| budget_shown(budget, cell));
            shown.budgets = heaviest(budgets, |budget| {
                let used = budget.limit_usd.map_or(0, |limit| (budget.spent_usd / limit.max(f64::EPSILON) * WHOLE_CONFIDENCE) as u64);
                (budget.refused, used, Reverse(budget.budget.clone()))
            });
        }
        let hours =
            self.by_hour_of_day.iter().filter(|((guard, _), _)| GuardName::from_code(guard).is_some_and(|guard| range.wants(guard))).map(
                |((guard, subject), by_hour)| Hours {
                    guard: guard.to_string(),
                    subject: subject.to_string(),
                    by_hour_of_day: *by_hour,
                    total: by_hour.iter().sum(),
                },
            );
        shown.hours = heaviest(hours, |hours| (hours.total, Reverse((hours.guard.clone(), hours.subject.clone()))));
    }

    fn handoffs(&self, shown: &mut Overview, range: &Range) {
        let edges = self.each(Dimension::Edge).map(|(source, target, cell)| Edge {
            source: source.to_owned(),
            target: target.to_owned(),
            // What observe mode let pass has happened.
            allowed: cell.allowed + cell.would_block,
            blocked: cell.blocked,
        });
        shown.handoffs.edges =
            heaviest(edges, |edge| (edge.blocked + edge.allowed, edge.blocked, Reverse((edge.source.clone(), edge.target.clone()))));
        let mut chains: BTreeMap<&str, Cell> = BTreeMap::new();
        for (chain, _, cell) in self.each(Dimension::Chain).filter(|(_, reason, _)| range.wants_reason(reason)) {
            chains.entry(chain).or_default().add(cell);
        }
        let chains = chains.into_iter().map(|(chain, cell)| Chain {
            chain: serde_json::from_str(chain).unwrap_or_else(|_| vec![chain.to_owned()]),
            count: cell.count,
            sessions: sessions(&cell),
        });
        shown.handoffs.chains = heaviest(chains, |chain| (chain.count, Reverse(chain.chain.clone())));
    }

    fn actions(&self, shown: &mut Overview) {
        let actions: Vec<Action> = self
            .each(Dimension::Subject)
            .filter(|(guard, ..)| *guard == GuardName::AgentAction.code())
            .map(|(_, action, cell)| Action {
                action: action.to_owned(),
                runs: cell.allowed + cell.would_block,
                blocked: cell.blocked,
                share: 0.0,
            })
            .collect();
        let runs: Vec<u64> = actions.iter().map(|action| action.runs).collect();
        let total: u64 = runs.iter().sum();
        shown.action_skew = skew(runs);
        shown.actions = heaviest(actions, |action| (action.runs, action.blocked, Reverse(action.action.clone())));
        for action in &mut shown.actions {
            action.share = if total == 0 { 0.0 } else { action.runs as f64 / total as f64 };
        }
    }

    fn goals(&self, shown: &mut Overview) {
        let mut goals: BTreeMap<&str, (Cell, Vec<GoalAction>)> = BTreeMap::new();
        for (goal, action, cell) in self.each(Dimension::Goal).filter(|(goal, ..)| *goal != OTHER) {
            let (sum, actions) = goals.entry(goal).or_default();
            sum.add(cell);
            actions.push(GoalAction {
                action: action.to_owned(),
                runs: cell.allowed + cell.would_block,
                spirals: cell.blocked + cell.would_block,
                not_offered: cell.count,
            });
        }
        let offers: BTreeMap<&str, &Cell> = self.each(Dimension::Offer).map(|(goal, _, cell)| (goal, cell)).collect();
        let goals = goals.into_iter().map(|(goal, (sum, mut actions))| {
            actions.sort_by(|left, right| {
                (right.spirals, right.not_offered, right.runs, &left.action).cmp(&(
                    left.spirals,
                    left.not_offered,
                    left.runs,
                    &right.action,
                ))
            });
            actions.truncate(MOST_ACTIONS);
            Goal {
                goal: goal.to_owned(),
                label: sum.label.as_ref().map(|label| label.text.to_string()).unwrap_or_default(),
                runs: sum.allowed + sum.would_block,
                spirals: sum.blocked + sum.would_block,
                ceilings: sum.sum,
                actions,
                offered: offers.get(goal).and_then(|offer| offer.label.as_ref()).map(|label| names_of(&label.text)).unwrap_or_default(),
                sessions: sessions(&sum),
            }
        });
        shown.goals = heaviest(goals, |goal| (goal.spirals, goal.runs, Reverse(goal.goal.clone())));
    }

    fn endpoints(&self, shown: &mut Overview, range: &Range) {
        let mut endpoints: BTreeMap<&str, Endpoint> = BTreeMap::new();
        for (endpoint, _, cell) in self.each(Dimension::Call) {
            let calls = cell.allowed + cell.blocked;
            endpoints.insert(
                endpoint,
                Endpoint {
                    endpoint: endpoint.to_owned(),
                    calls,
                    failures: cell.blocked,
                    failure_rate: cell.blocked as f64 / calls.max(1) as f64,
                    mean_ms: (cell.count > 0).then(|| cell.sum as f64 / cell.count as f64),
                    max_ms: (cell.count > 0).then_some(cell.max as f64),
                    blocked: 0,
                    failures_over_time: self.failures.get(endpoint).cloned().unwrap_or_default(),
                },
            );
        }
        for (_, endpoint, cell) in self.each(Dimension::Subject).filter(|(guard, ..)| *guard == GuardName::ApiCircuit.code()) {
            let entry = endpoints.entry(endpoint).or_insert_with(|| Endpoint {
                endpoint: endpoint.to_owned(),
                failures_over_time: vec![0; range.buckets().max(0) as usize],
                ..Endpoint::default()
            });
            entry.blocked = cell.blocked;
        }
        shown.endpoints = heaviest(endpoints.into_values(), |endpoint| {
            (endpoint.failures, endpoint.blocked, endpoint.calls, Reverse(endpoint.endpoint.clone()))
        });
    }
}

fn topic_shown(topic: &joined::Joined<'_>, all_sessions: u64) -> Topic {
    let cell = &topic.cell;
    let best = cell.max as f64 / WHOLE_CONFIDENCE;
    let low = cell.sessions.count_of(|marks| marks & super::sessions::LOW > 0);
    Topic {
        topic: topic.name.to_owned(),
        label: topic.label.clone(),
        phrasings: topic.members.len() as u64,
        also: topic.also.clone(),
        members: topic.members.iter().take(MOST_MEMBERS).map(|name| (*name).to_owned()).collect(),
        queries: cell.allowed,
        blocked: cell.blocked,
        best_confidence: best,
        mean_confidence: cell.sum as f64 / WHOLE_CONFIDENCE / cell.count.max(1) as f64,
        histogram: cell.histogram.unwrap_or_default().map(u64::from),
        is_gap: topic.name != OTHER && cell.count > 0 && cell.allowed + cell.blocked >= GAP_ASKED && best < GAP_CONFIDENCE,
        asked_sessions: cell.sessions.count(),
        low_sessions: low,
        unanswered_sessions: cell.sessions.count_of(|marks| marks == super::sessions::LOW),
        // Beyond the bounds both are told about, and a part is never more than the whole.
        low_share: (low as f64 / all_sessions.max(1) as f64).min(1.0),
        sessions: sessions(cell),
    }
}

/// The names of a label that is a list. The last one of a label that was cut is not whole.
pub(super) fn names_of(label: &str) -> Vec<String> {
    let is_cut = label.chars().count() == LABEL_CHARACTERS;
    let whole = if is_cut { label.rsplit_once(BETWEEN_NAMES).map_or("", |(whole, _)| whole) } else { label };
    whole.split(BETWEEN_NAMES).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

fn budget_shown(budget: &str, cell: &Cell) -> BudgetSeen {
    let dollars = |nanos: u64| nanos as f64 / NANOS;
    BudgetSeen {
        budget: budget.to_owned(),
        spent_usd: cell.nanodollars.map_or(0.0, |money| dollars(money.spent)),
        limit_usd: cell.nanodollars.and_then(|money| money.limit).map(dollars),
        spent_tokens: cell.tokens.map_or(0, |tokens| tokens.spent),
        limit_tokens: cell.tokens.and_then(|tokens| tokens.limit),
        refused: cell.blocked,
    }
}

/// Gini's coefficient: 0 when all are equal, towards 1 when one has all.
pub(super) fn skew(mut runs: Vec<u64>) -> f64 {
    runs.sort_unstable();
    let (count, total) = (runs.len() as f64, runs.iter().sum::<u64>() as f64);
    if total == 0.0 {
        return 0.0;
    }
    let weighted: f64 = runs.iter().enumerate().map(|(rank, runs)| (rank as f64 + 1.0) * *runs as f64).sum();
    (2.0 * weighted / (count * total) - (count + 1.0) / count).max(0.0)
}
