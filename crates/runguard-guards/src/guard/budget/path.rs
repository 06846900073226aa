//! The accounts a request draws on, one after the other: the budget itself, its parent, the scopes. What a request does to
//! them, and which of their limits stand against it.

use super::answer::{Block, Nearest};
use super::scopes::Drawn;
use super::settings::{Settings, ceiling};
use super::{Event, Request, State};
use crate::guard::Moment;
use runguard_core::calendar::{Period, Zone};
use runguard_core::ledger::{
    Account, Act, BudgetExceeded, Cost, Entry, Level, Limits, MAX_STORED_KEYS, MAX_STORED_RESERVATIONS, MAX_STORED_RESERVATIONS_OF_SCOPE,
    Unsettled,
};
use runguard_core::time::Timestamp;
use std::borrow::Cow;
use std::sync::LazyLock;

/// An account that is asked, and the limits in force there.
#[derive(Debug, Clone)]
pub(super) struct OnPath<'a> {
    pub(super) account: Cow<'a, Account>,
    pub(super) limits: Limits,
}

/// An account at a moment: a period that is over has begun anew. With what began.
pub(super) fn begin_what_is_due(account: &mut Cow<'_, Account>, period: Option<Period>, zone: &Zone, now: Timestamp) -> Vec<Entry> {
    let due = period.map(|period| account.due(period, now, |at| zone.end_of(period, at))).unwrap_or_default();
    for entry in &due {
        account.to_mut().apply(entry, now, MAX_STORED_KEYS);
    }
    due
}

impl Request {
    /// Accounts of the path before the scopes.
    fn line(&self) -> usize {
        1 + usize::from(self.parent.is_some())
    }

    fn level(&self, steps: usize) -> Level {
        match steps.checked_sub(self.line()) {
            Some(scope) => Level::Scope(scope as u32),
            None => Level::above(steps),
        }
    }

    /// The path as it is at this moment: periods that are over have begun anew. With what began.
    pub(super) fn path<'a>(&self, settings: &Settings, state: &'a State, now: Timestamp) -> (Vec<OnPath<'a>>, Vec<Event>) {
        static EMPTY: LazyLock<Account> = LazyLock::new(Account::default);
        let account_at = |steps: usize| Cow::Borrowed(state.path.get(steps).unwrap_or(&EMPTY));
        let mut path: Vec<OnPath<'a>> = Vec::with_capacity(state.path.len());
        for steps in 0..self.line() {
            let account = account_at(steps);
            let own = if steps == 0 { self.own_limits(settings).or(account.limits) } else { account.limits };
            path.push(OnPath { account, limits: own.within(ceiling(settings)) });
        }
        let mut began = Vec::new();
        for Drawn { period, limits, .. } in self.drawn_on(settings) {
            let mut account = account_at(path.len());
            let due = begin_what_is_due(&mut account, period, &settings.time_zone, now);
            began.extend(due.into_iter().map(|entry| Event { steps: path.len() as u32, entry }));
            path.push(OnPath { account, limits });
        }
        (path, began)
    }

    /// What happens when the request is let pass, or when it tells of what happened already.
    pub(super) fn events(&self, settings: &Settings, path: &[OnPath<'_>], began: Vec<Event>, cost: Cost, moment: Moment<'_>) -> Vec<Event> {
        // A question counts nothing, but the caller's own limit stays until another is given.
        let mut events = if self.act == Act::Check { Vec::new() } else { began };
        let (given, own) = (self.own_limits(settings), path[0].account.limits);
        if given != Limits::default() && given.or(own) != own {
            events.push(Event { steps: 0, entry: Entry::Limited(given.or(own)) });
        }
        if self.act == Act::Check {
            return events;
        }
        // Others' reservations in a shared account are not this session's to settle.
        let holds = self.reservation_number().is_some_and(|id| path[0].account.lease(id, moment.now).is_some());
        for (steps, OnPath { account, limits }) in path.iter().enumerate() {
            let mut push = |entry| events.push(Event { steps: steps as u32, entry });
            match self.act {
                Act::Check => {}
                Act::Record => {
                    // A call that was made for nothing leaves that behind too: the log tells it from one that was asked for.
                    if cost != Cost::ZERO || (self.key.is_some() && !self.asks_for_call()) {
                        push(Entry::Spent(cost));
                    }
                }
                // What is many sessions' has no place for what takes nothing of it.
                Act::Reserve if steps > 0 && cost == Cost::ZERO => {}
                Act::Reserve => {
                    let (id, expires) = (self.number_of_reservation(moment.decision_id), moment.now.plus(settings.reservation));
                    push(match self.unsettled {
                        Unsettled::Free => Entry::Reserved { id, cost, expires },
                        Unsettled::Spent => Entry::ReservedOrSpent { id, cost, expires },
                    });
                }
                Act::Commit | Act::Release => {
                    let settled = self.reservation_number().filter(|_| steps == 0 || holds);
                    if let Some(id) = settled {
                        push(Entry::Settled { id });
                    }
                    if self.act == Act::Commit {
                        push(Entry::Spent(settled.map_or(cost, |id| cost.minus(account.paid_before(id)))));
                    }
                }
            }
            // Above, only where there is a cap: a team need not remember every key of every run.
            if let (Act::Record | Act::Commit, Some(key)) = (self.act, self.key_number())
                && (steps == 0 || limits.cap.is_some())
            {
                push(Entry::Counted { key });
            }
        }
        events
    }

    /// What was booked for what this settles, because it was late.
    pub(super) fn overdue_settled(&self, own: &Account) -> Cost {
        match self.act {
            Act::Commit | Act::Release => self.reservation_number().map_or(Cost::ZERO, |id| own.booked(id)),
            Act::Check | Act::Record | Act::Reserve => Cost::ZERO,
        }
    }

    /// The limits that stand against the request so many steps up: of the path before it, or of the path once it is done where it tells of
    /// what happened already.
    pub(super) fn limits_at(&self, steps: usize, before: &OnPath<'_>, after: &Account, cost: Cost, now: Timestamp) -> Vec<BudgetExceeded> {
        let (level, OnPath { account, limits }) = (self.level(steps), before);
        let lacks_call = self.key_number().and_then(|key| account.lacks_call(key, *limits, level));
        let overcalled = || self.key_number().and_then(|key| after.overcalled(key, *limits, level));
        match self.act {
            Act::Release => Vec::new(),
            Act::Check | Act::Reserve => lacks_call.into_iter().chain(account.lacks_room_for(cost, *limits, level, now)).collect(),
            Act::Record if self.asks_for_call() => lacks_call.into_iter().chain(after.overspent(*limits, level, now)).collect(),
            Act::Record => overcalled().into_iter().chain(after.overspent(*limits, level, now)).collect(),
            Act::Commit => {
                let agreed = self.reservation_number().and_then(|id| account.lease(id, now)).map_or(Cost::ZERO, |lease| lease.cost);
                // Money was agreed upon; calls are not set aside.
                overcalled().into_iter().chain(after.overrun_by(cost, agreed, *limits, level, now)).collect()
            }
        }
    }

    /// The scopes that another part of their limit is spent of by this, so that none passes a percentage unseen because another is nearer to
    /// its own; else the one of which most is spent. What is nearest to its limit stands first.
    pub(super) fn nearest(&self, settings: &Settings, before: &[OnPath<'_>], path: &[OnPath<'_>], now: Timestamp) -> Vec<Nearest> {
        /// In parts of a limit.
        const PARTS: f64 = 20.0;
        let share = |OnPath { account, limits }: &OnPath<'_>| {
            let spent = account.spent(now);
            let usd = limits.usd.map(|limit| spent.usd.as_dollars() / limit.as_dollars().max(f64::MIN_POSITIVE));
            let tokens = limits.tokens.map(|limit| spent.tokens as f64 / limit.max(1) as f64);
            usd.into_iter().chain(tokens).max_by(f64::total_cmp)
        };
        let scopes = before.iter().zip(path).skip(self.line()).zip(self.drawn_on(settings));
        let mut limited: Vec<_> = scopes
            .filter_map(|((before, on_path), drawn)| {
                let (was, is) = (share(before)?, share(on_path)?);
                Some(((is * PARTS).floor() > (was * PARTS).floor(), is, on_path, drawn))
            })
            .collect();
        limited.sort_by(|(left_passed, left, ..), (right_passed, right, ..)| right_passed.cmp(left_passed).then(right.total_cmp(left)));
        let passed = limited.iter().take_while(|(has_passed, ..)| *has_passed).count();
        limited.truncate(passed.max(1));
        let nearest = limited.into_iter().map(|(_, share, on_path, drawn)| Nearest {
            label: drawn.label.to_owned(),
            name: drawn.name.to_owned(),
            percent: (share * 1000.0).round() / 10.0,
            renews_in_seconds: on_path.account.renews_at().map(|at| now.seconds_until(at)),
        });
        nearest.collect()
    }

    /// The most reservations are open so many steps up.
    pub(super) fn is_full_at(&self, steps: usize, account: &Account, cost: Cost, now: Timestamp) -> Option<Block> {
        if steps > 0 && cost == Cost::ZERO {
            return None;
        }
        let most = if steps < self.line() { MAX_STORED_RESERVATIONS } else { MAX_STORED_RESERVATIONS_OF_SCOPE };
        let is_full = self.act == Act::Reserve && account.open() >= most;
        let open = if is_full { account.leases(now).count() } else { 0 };
        (open >= most).then_some(Block::Reservations { open: open as u32 })
    }

    /// Which one of the path a level is.
    pub(super) fn steps(&self, level: Level) -> usize {
        match level {
            Level::Own => 0,
            Level::Ancestor(steps) => steps as usize,
            Level::Scope(number) => self.line() + number as usize,
        }
    }
}
