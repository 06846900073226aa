//! What a rule says to one row.

use super::rule::{Counted, Dimension, Rule, When};
use super::state::{Entry, Latch, Part, Position, State, Used};
use super::{Alert, shown};
use runguard_core::calendar::Period;
use runguard_core::notice::{AlertState, Severity};
use runguard_core::reason::Reason;
use runguard_core::row::{Kind, Outcome, RowRef};
use runguard_core::time::{DAY_MILLIS, Span, Timestamp};
use runguard_guards::guard::GuardEntry;
use runguard_guards::logged::{self, Account, Failing, Nearest, Shows, Turned};
use xxhash_rust::xxh3::xxh3_128;

/// A window of a rate is counted in this many parts.
const PARTS: i64 = 20;
/// Days before today that a spike is compared with, and how many of them must be known.
const SPIKE_DAYS: usize = 7;
const SPIKE_KNOWN_DAYS: i64 = 3;

/// One trouble of one rule.
fn dedup_key(rule: &str, parts: &[&str]) -> String {
    format!("{rule}-{:032x}", xxh3_128(parts.join("\0").as_bytes()))
}

impl Rule {
    /// Looks at one row and at what its guard says it shows.
    pub fn judge(&self, state: &mut State, row: &RowRef<'_>, shows: &Shows<'_>) -> Vec<Alert> {
        let mut alerts = Vec::new();
        match self.when {
            When::CircuitTrip => alerts.extend(self.judge_circuit(state, row, shows)),
            When::Degrading => alerts.extend(self.judge_degrading(state, row, shows)),
            When::Budget => alerts = self.judge_budget(state, row, shows),
            When::Consumption => alerts = self.judge_consumption(state, row),
            When::Spike => alerts.extend(self.judge_spike(state, row)),
            When::Blocks | When::BlockRate | When::Fallback => {
                self.sweep(state, row, &mut alerts);
                alerts.extend(match self.when {
                    When::Blocks => self.judge_blocks(state, row),
                    When::BlockRate => self.judge_rate(state, row),
                    When::Fallback | When::CircuitTrip | When::Degrading | When::Budget | When::Consumption | When::Spike => {
                        self.judge_fallback(state, row)
                    }
                });
            }
        }
        alerts
    }

    fn concerns(&self, row: &RowRef<'_>) -> bool {
        let same = |wanted: &Option<String>, given: &str| wanted.as_deref().is_none_or(|wanted| wanted == given);
        same(&self.guard, row.guard.code())
            && same(&self.tenant, row.tenant)
            && same(&self.subject, row.subject)
            && (self.reason.is_none() || self.when == When::BlockRate || self.reason.as_deref() == row.reason_code())
    }

    fn dimensions(&self) -> &[Dimension] {
        match (self.per.as_slice(), self.when) {
            ([], When::Blocks) => &[Dimension::Tenant, Dimension::Guard, Dimension::Reason],
            ([], When::Consumption | When::Spike) => &[Dimension::Tenant],
            ([], _) => &[Dimension::Tenant, Dimension::Guard],
            (given, _) => given,
        }
    }

    fn counts_by(&self, dimension: Dimension) -> bool {
        self.dimensions().contains(&dimension)
    }

    pub(super) fn group_key(&self, row: &RowRef<'_>) -> String {
        let parts: Vec<&str> = self
            .dimensions()
            .iter()
            .map(|dimension| match dimension {
                Dimension::Tenant => row.tenant,
                Dimension::Guard => row.guard.code(),
                Dimension::Reason => row.reason_code().unwrap_or_default(),
                Dimension::Subject => row.subject,
            })
            .collect();
        dedup_key(&self.name, &parts)
    }

    /// What the entry of a group is about: only what the group has in common.
    fn describe(&self, entry: &mut Entry, row: &RowRef<'_>) {
        let kept = |dimension: Dimension, text: &str| if self.counts_by(dimension) { text.to_owned() } else { String::new() };
        entry.tenant = kept(Dimension::Tenant, row.tenant);
        entry.guard = kept(Dimension::Guard, row.guard.code());
        entry.reason = kept(Dimension::Reason, row.reason_code().unwrap_or_default());
        entry.subject = kept(Dimension::Subject, row.subject);
    }

    fn severity(&self, usual: Severity) -> Severity {
        self.severity.unwrap_or(usual)
    }

    fn tell(&self, key: String, entry: &mut Entry, row: &RowRef<'_>, state: AlertState, usual: Severity, words: (String, String)) -> Alert {
        let (title, text) = words;
        if state == AlertState::Firing {
            entry.title.clone_from(&title);
        }
        Alert {
            rule: self.name.clone(),
            dedup_key: key,
            state,
            severity: self.severity(usual),
            at: row.time(),
            tenant: entry.tenant.clone(),
            guard: entry.guard.clone(),
            reason: entry.reason.clone(),
            subject: entry.subject.clone(),
            session: entry.session.clone(),
            decision_id: row.id.to_owned(),
            title,
            text,
        }
    }

    fn judge_circuit(&self, state: &mut State, row: &RowRef<'_>, shows: &Shows<'_>) -> Option<Alert> {
        if !self.concerns(row) {
            return None;
        }
        let key = dedup_key(&self.name, &[row.tenant, row.subject]);
        // Most endpoints are well: nothing is known of them. Rows of the guard that told of one say nothing new, and that it lasts.
        let is_known = || state.entries.get(&key).is_some_and(|entry| entry.guard == row.guard.to_string());
        if shows.circuit != Some(Turned::Open) && !is_known() {
            return None;
        }
        let entry = state.entry(&key, row.time(), self.cooldown)?;
        (entry.tenant, entry.guard, entry.subject) = (row.tenant.to_owned(), row.guard.to_string(), row.subject.to_owned());
        match shows.circuit {
            Some(Turned::Open) => entry.is_open = true,
            Some(Turned::Closed) => entry.is_open = false,
            None => {}
        }
        let is_open = entry.is_open;
        let turned = if is_open { entry.latch().turn_on(row.time(), self.cooldown) } else { entry.latch().turn_off() }?;
        let name = shown(row.subject);
        let (title, text) = match turned {
            AlertState::Firing => (
                format!("The circuit of '{name}' is open"),
                "Its failures reached the threshold: calls are blocked until a probe succeeds. `runguard circuits` shows where it stands."
                    .to_owned(),
            ),
            AlertState::Resolved => (format!("The circuit of '{name}' is closed again"), "Calls pass again.".to_owned()),
        };
        Some(self.tell(key, entry, row, turned, Severity::Error, (title, text)))
    }

    fn judge_degrading(&self, state: &mut State, row: &RowRef<'_>, shows: &Shows<'_>) -> Option<Alert> {
        let failing = shows.failing.filter(|_| self.concerns(row))?;
        let Failing { failures, threshold } = failing;
        let is_near = failures as f64 * 100.0 > self.share * threshold as f64;
        let key = dedup_key(&self.name, &[row.tenant, row.subject]);
        // Most endpoints are well: nothing is known of them.
        if !is_near && !state.entries.contains_key(&key) {
            return None;
        }
        let entry = state.entry(&key, row.time(), self.cooldown)?;
        (entry.tenant, entry.guard, entry.subject) = (row.tenant.to_owned(), row.guard.to_string(), row.subject.to_owned());
        let turned = if is_near { entry.latch().turn_on(row.time(), self.cooldown) } else { entry.latch().turn_off() }?;
        let name = shown(row.subject);
        let (title, text) = match turned {
            AlertState::Firing => (
                format!("'{name}' fails: {failures} of the {threshold} failures that open its circuit"),
                "Calls still pass. Look at the upstream now; `runguard circuits` shows where it stands.".to_owned(),
            ),
            AlertState::Resolved => {
                (format!("'{name}' fails less: {failures} of {threshold} failures"), "Its circuit is not about to open.".to_owned())
            }
        };
        Some(self.tell(key, entry, row, turned, Severity::Warning, (title, text)))
    }

    /// The group a row counts in, by its key, with what the row says of it.
    fn group_of<'a>(&self, state: &'a mut State, row: &RowRef<'_>) -> Option<(String, &'a mut Entry)> {
        let key = self.group_key(row);
        let entry = state.entry(&key, row.time(), self.cooldown)?;
        self.describe(entry, row);
        Some((key, entry))
    }

    fn judge_blocks(&self, state: &mut State, row: &RowRef<'_>) -> Option<Alert> {
        if row.outcome != Outcome::Blocked || !self.concerns(row) {
            return None;
        }
        let (key, entry) = self.group_of(state, row)?;
        entry.times.push_back(row.time());
        while entry.times.len() > self.count as usize {
            entry.times.pop_front();
        }
        let counted = entry.times.iter().filter(|at| row.time().still_counts(**at, self.window)).count();
        if counted < self.count as usize {
            return None;
        }
        let turned = entry.latch().turn_on(row.time(), self.cooldown)?;
        let title = format!("{counted} blocks within {}{}", self.window, entry.whose());
        let text = format!("The latest: {} blocked '{}' ({}).", row.guard, shown(row.subject), row.reason_code().unwrap_or("no reason"));
        Some(self.tell(key, entry, row, turned, Severity::Warning, (title, text)))
    }

    fn judge_rate(&self, state: &mut State, row: &RowRef<'_>) -> Option<Alert> {
        if row.kind != Kind::Check || !self.concerns(row) {
            return None;
        }
        let (key, entry) = self.group_of(state, row)?;
        entry.times.clear();
        entry.times.push_back(row.time());
        let length = (self.window.as_millis() as i64 / PARTS).max(1);
        // A clock that goes back counts into the newest part.
        let number = entry.parts.back().map_or(i64::MIN, |part| part.number).max(row.at.div_euclid(length));
        if entry.parts.back().is_none_or(|part| part.number != number) {
            entry.parts.push_back(Part { number, decisions: 0, blocked: 0 });
        }
        entry.parts.retain(|part| number - part.number < PARTS);
        if let Some(part) = entry.parts.back_mut() {
            part.decisions += 1;
            let is_counted = row.outcome == Outcome::Blocked && (self.reason.is_none() || self.reason.as_deref() == row.reason_code());
            part.blocked += u32::from(is_counted);
        }
        let decisions: u32 = entry.parts.iter().map(|part| part.decisions).sum();
        let blocked: u32 = entry.parts.iter().map(|part| part.blocked).sum();
        if decisions < self.count {
            return None;
        }
        let share = f64::from(blocked) * 100.0 / f64::from(decisions);
        let turned = if share > self.share { entry.latch().turn_on(row.time(), self.cooldown) } else { entry.latch().turn_off() }?;
        let whose = entry.whose();
        let title = match turned {
            AlertState::Firing => format!("{share:.0} % of decisions are blocks{whose}"),
            AlertState::Resolved => format!("Blocks are back at {share:.0} % of decisions{whose}"),
        };
        let text = format!("{blocked} of {decisions} decisions within {} (limit {} %).", self.window, self.share);
        Some(self.tell(key, entry, row, turned, Severity::Warning, (title, text)))
    }

    fn judge_fallback(&self, state: &mut State, row: &RowRef<'_>) -> Option<Alert> {
        if !self.concerns(row) || !logged::is_degraded(row) {
            return None;
        }
        let (key, entry) = self.group_of(state, row)?;
        entry.times.clear();
        entry.times.push_back(row.time());
        let turned = entry.latch().turn_on(row.time(), self.cooldown)?;
        let title = format!("Answers are degraded{}", entry.whose());
        let text = "Decisions are made without what they usually rest on, or come from a fallback.".to_owned();
        Some(self.tell(key, entry, row, turned, Severity::Error, (title, text)))
    }

    /// Resolves what has been quiet for a window.
    fn sweep(&self, state: &mut State, row: &RowRef<'_>, alerts: &mut Vec<Alert>) {
        if state.sweep_at.is_some_and(|at| row.time() < at) {
            return;
        }
        let pause = Span::from_millis((self.window.as_millis() / 10).max(1));
        state.sweep_at = Some(row.time().plus(pause));
        for (key, entry) in &mut state.entries {
            let is_quiet = entry.times.back().is_none_or(|newest| !row.time().still_counts(*newest, self.window));
            if is_quiet && let Some(turned) = entry.latch().turn_off() {
                let what = if self.when == When::Fallback { "Answers are whole again" } else { "Quiet again" };
                let title = format!("{what}{}", entry.whose());
                let text = format!("Nothing of it within {}.", self.window);
                let usual = if self.when == When::Fallback { Severity::Error } else { Severity::Warning };
                alerts.push(self.tell(key.clone(), entry, row, turned, usual, (title, text)));
            }
        }
    }

    /// Operations that a row lets pass; nothing if none is billed.
    fn operations(&self, row: &RowRef<'_>) -> Option<u64> {
        let guard = row.guard.known().filter(|guard| GuardEntry::of(*guard).billed.is_some())?;
        let is_done = row.kind == Kind::Check && matches!(row.outcome.answered(), Some(Outcome::Allowed | Outcome::WouldBlock));
        (is_done && self.concerns(row)).then(|| u64::from(self.savings.operations_of(guard)))
    }

    fn amount(&self, operations: u64) -> f64 {
        match self.unit {
            Counted::Credits => self.savings.credits(operations),
            Counted::Operations => operations as f64,
        }
    }

    /// Counts a row into the period it is in. A clock that goes back counts into the newest.
    fn count_used(&self, entry: &mut Entry, period: Period, operations: u64, now: Timestamp, keep: usize) {
        match entry.used.back_mut().filter(|newest| now < newest.ends) {
            Some(newest) => newest.operations = newest.operations.saturating_add(operations),
            None => entry.used.push_back(Used { ends: self.time_zone.end_of(period, now), operations }),
        }
        while entry.used.len() > keep {
            entry.used.pop_front();
        }
    }

    fn judge_consumption(&self, state: &mut State, row: &RowRef<'_>) -> Vec<Alert> {
        let Some(operations) = self.operations(row) else { return Vec::new() };
        let Some((group, entry)) = self.group_of(state, row) else { return Vec::new() };
        let before = entry.used.back().map(|used| used.ends);
        self.count_used(entry, self.period, operations, row.time(), 1);
        let Some(used) = entry.used.back().copied() else { return Vec::new() };
        entry.latches.resize(self.thresholds().len(), Latch::default());
        let (unit, period) = (self.unit.code(), self.period);
        // Each period is another trouble, and each percentage.
        let key_of =
            |ends: Timestamp, threshold: u8| dedup_key(&self.name, &[&group, &ends.as_millis().to_string(), &threshold.to_string()]);
        let usual = |threshold: u8| if threshold >= 100 { Severity::Error } else { Severity::Warning };
        let mut alerts = Vec::new();
        if let Some(ended) = before.filter(|before| *before != used.ends) {
            for (number, threshold) in self.thresholds().iter().enumerate() {
                let latch = std::mem::take(&mut entry.latches[number]);
                if latch.position == Position::Firing {
                    let title = format!("A new {period} has begun for the {unit}{}", entry.whose());
                    let text = format!("{threshold} % of them were used in the one before.");
                    alerts.push(self.tell(key_of(ended, *threshold), entry, row, AlertState::Resolved, usual(*threshold), (title, text)));
                }
            }
        }
        let amount = self.amount(used.operations);
        let percent = amount * 100.0 / self.limit;
        let Some(number) = self.thresholds().iter().rposition(|threshold| percent >= f64::from(*threshold)) else { return alerts };
        for passed in &mut entry.latches[..number] {
            if passed.position == Position::Off {
                passed.position = Position::Passed;
            }
        }
        if entry.latches[number].position == Position::Off {
            entry.latches[number] = Latch { position: Position::Firing, told_at: Some(row.time()) };
            let threshold = self.thresholds()[number];
            let title = format!("{threshold} % of the {unit} for the {period} are used{}", entry.whose());
            let text = format!("{amount:.0} of {:.0} {unit}. `runguard consumption` shows which bots and steps used them.", self.limit);
            alerts.push(self.tell(key_of(used.ends, threshold), entry, row, AlertState::Firing, usual(threshold), (title, text)));
        }
        alerts
    }

    fn judge_spike(&self, state: &mut State, row: &RowRef<'_>) -> Option<Alert> {
        let operations = self.operations(row)?;
        let (key, entry) = self.group_of(state, row)?;
        self.count_used(entry, Period::Day, operations, row.time(), SPIKE_DAYS + 1);
        let today = entry.used.back().copied()?;
        let days_ago = |used: &Used| (today.ends.millis_since(used.ends) + DAY_MILLIS / 2) / DAY_MILLIS;
        let earlier = || entry.used.iter().filter(|used| (1..=SPIKE_DAYS as i64).contains(&days_ago(used)));
        // A day without a step counts as one, from the first that was seen on.
        let known_days = earlier().map(days_ago).max().unwrap_or(0);
        let mean = earlier().map(|used| self.amount(used.operations)).sum::<f64>() / known_days.max(1) as f64;
        let same_day = earlier().find(|used| days_ago(used) == SPIKE_DAYS as i64).map_or(0.0, |used| self.amount(used.operations));
        let usual_amount = mean.max(same_day);
        let amount = self.amount(today.operations);
        let is_spike = known_days >= SPIKE_KNOWN_DAYS && amount >= self.at_least && amount > usual_amount * self.factor;
        let turned = if is_spike { entry.latch().turn_on(row.time(), self.cooldown) } else { entry.latch().turn_off() }?;
        let (unit, whose) = (self.unit.code(), entry.whose());
        let (title, text) = match turned {
            AlertState::Firing => (
                format!("{amount:.0} {unit} are used today, usually {usual_amount:.0}{whose}"),
                format!(
                    "An average day of the last {known_days} had {mean:.0}, the same day of last week {same_day:.0}. The latest step: {} of '{}'. `runguard consumption` shows the steps, `runguard insights` which guards fired.",
                    row.guard,
                    shown(row.subject)
                ),
            ),
            AlertState::Resolved => {
                (format!("{unit} are as usual again{whose}"), format!("{amount:.0} {unit} today, usually {usual_amount:.0}."))
            }
        };
        Some(self.tell(key, entry, row, turned, Severity::Warning, (title, text)))
    }

    fn judge_budget(&self, state: &mut State, row: &RowRef<'_>, shows: &Shows<'_>) -> Vec<Alert> {
        let Some(spending) = shows.spending.as_ref().filter(|_| row.kind == Kind::Check && self.concerns(row)) else { return Vec::new() };
        let of = |spent: f64, limit: f64| if limit > 0.0 { spent * 100.0 / limit } else { 0.0 };
        let dollars =
            spending.spent_usd.zip(spending.limit_usd).map(|(spent, limit)| (of(spent, limit), format!("${spent:.2} of ${limit:.2}")));
        let tokens = spending
            .spent_tokens
            .zip(spending.limit_tokens)
            .map(|(spent, limit)| (of(spent as f64, limit as f64), format!("{spent} of {limit} tokens")));
        // A budget that refuses is used up, whatever small rest is left in it.
        let is_refused = row.outcome == Outcome::Blocked && row.gives(Reason::BudgetExceeded);
        let told = dollars.into_iter().chain(tokens).max_by(|left, right| left.0.total_cmp(&right.0));
        // A refusal may speak of the parent's budget or a scope's: then it is that one that is used up.
        let owner = match &spending.account {
            Account::Parent(Some(parent)) => parent,
            Account::Scope(scope) => scope.as_str(),
            Account::Own | Account::Parent(None) => row.session,
        };
        let mut alerts = Vec::new();
        if let Some((percent, amounts)) = told {
            let percent = if is_refused { percent.max(100.0) } else { percent };
            let text = if is_refused { format!("{amounts} is spent, and requests are blocked.") } else { format!("{amounts} is spent.") };
            alerts.extend(self.judge_spent(state, row, owner, spending.renews_in_seconds, percent, &text));
        }
        for Nearest { scope, percent, renews_in_seconds } in &spending.nearest {
            let text = format!("{percent:.0} % of what many sessions share is spent.");
            alerts.extend(self.judge_spent(state, row, scope, *renews_in_seconds, *percent, &text));
        }
        alerts
    }

    /// How much of one budget is spent: its own latches for each owner and each period.
    fn judge_spent(&self, state: &mut State, row: &RowRef<'_>, owner: &str, renews: Option<i64>, percent: f64, text: &str) -> Vec<Alert> {
        // Each period is used up anew.
        let ends = renews.map(|seconds| (row.at.div_euclid(1000) + seconds).to_string());
        let key = match &ends {
            None => dedup_key(&self.name, &[row.tenant, owner, row.subject]),
            Some(ends) => dedup_key(&self.name, &[row.tenant, owner, row.subject, ends]),
        };
        if !state.entries.contains_key(&key) && percent < f64::from(self.thresholds()[0]) {
            return Vec::new();
        }
        let Some(entry) = state.entry(&key, row.time(), self.cooldown) else { return Vec::new() };
        (entry.tenant, entry.guard) = (row.tenant.to_owned(), row.guard.to_string());
        (entry.subject, entry.session) = (row.subject.to_owned(), owner.to_owned());
        entry.latches.resize(self.thresholds().len(), Latch::default());
        let mut alerts = Vec::new();
        let name = format!("'{}' of '{}'", shown(row.subject), shown(owner));
        let mut is_highest = true;
        for (number, threshold) in self.thresholds().iter().enumerate().rev() {
            let latch = &mut entry.latches[number];
            let turned = if percent < f64::from(*threshold) {
                latch.turn_off()
            } else if is_highest {
                is_highest = false;
                latch.turn_on(row.time(), self.cooldown)
            } else {
                if latch.position == Position::Off {
                    latch.position = Position::Passed;
                }
                None
            };
            let usual = match threshold {
                0..80 => Severity::Info,
                80..95 => Severity::Warning,
                95..100 => Severity::Error,
                100.. => Severity::Critical,
            };
            let title = match turned {
                Some(AlertState::Firing) => format!("Budget {name} has reached {threshold} %"),
                Some(AlertState::Resolved) => format!("Budget {name} is below {threshold} % again"),
                None => continue,
            };
            if let Some(turned) = turned {
                alerts.push(self.tell(format!("{key}-{threshold}"), entry, row, turned, usual, (title, text.to_owned())));
            }
        }
        alerts
    }
}
