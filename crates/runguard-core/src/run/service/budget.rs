//! A budget that a service keeps: what to send it.

use super::{Asks, Body, Question, ServiceReply, Unanswered, short_id};
use crate::budget::{Books, NO_STEP, call_key};
use crate::calendar::Period;
use crate::ledger::{Act, Cost, Limits, MOST_SCOPES, REFUSED_IS_FORGOTTEN, Reserve, Scope, UNSETTLED_IS_SPENT, Unit, Unsettled};
use crate::money::NanoDollars;
use crate::prices::{ServiceTier, Usage};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A budget that a service keeps under a session's name.
#[derive(Debug)]
pub struct ServiceBudget {
    session: String,
    limits: Limits,
    parent: Option<Arc<ServiceBudget>>,
    /// Its own, and its parent's.
    scopes: Vec<Scope>,
    unanswered: Unanswered,
    /// What becomes of what is set aside when nobody settles it.
    unsettled: Unsettled,
    /// The service has heard of its limits: a child that spends before its parent must tell them first.
    pub(super) is_known: AtomicBool,
    /// What was spent while nobody answered.
    unsent: Mutex<VecDeque<Unsent>>,
    /// What was spent of each limit, by the latest answer.
    seen: Mutex<Vec<(Unit, f64, f64)>>,
}

/// A request that nobody answered.
#[derive(Debug)]
pub(super) struct Unsent {
    pub(super) path: &'static str,
    pub(super) body: Body,
}

/// Requests that are kept of one budget while its service is away; of more, the oldest are lost.
const MOST_UNSENT: usize = 10_000;
/// Of these, sent before one question.
const SENT_AT_ONCE: usize = 16;

/// A child of a child: over a service nothing would keep the limit of the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a budget that a service keeps draws on one parent, and this parent is a child itself; make it a child of the first budget, \
     or let the service keep limits that many share as scopes"
)]
pub struct ChildOfChild;

/// More scopes than a service takes with one question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a budget with its parent draws on at most {MOST_SCOPES} scopes, not on {0}")]
pub struct TooManyScopes(usize);

/// What is spent.
#[derive(Debug, Clone, Copy)]
pub enum Spent<'a> {
    /// So much.
    Cost(Cost),
    /// One call of a step.
    Call {
        /// Whose step.
        session_id: &'a str,
        /// Which step.
        step_id: &'a str,
    },
    /// One call of the budget that has no steps.
    AnyCall,
    /// So much of a model, priced by whoever says it.
    Priced {
        /// The model's name, by which its scopes are known.
        model: &'a str,
        /// What it cost.
        cost: Cost,
    },
    /// Tokens, priced by the service.
    Usage {
        /// Its name.
        model: &'a str,
        /// What the provider counted.
        usage: &'a Usage,
    },
}

impl ServiceBudget {
    /// Limits are a ceiling beside those of the service.
    pub fn new(session: &str, limits: Limits, unanswered: Unanswered) -> Arc<Self> {
        Arc::new(Self {
            session: short_id(session).into_owned(),
            limits,
            parent: None,
            scopes: Vec::new(),
            unanswered,
            unsettled: Unsettled::Free,
            is_known: AtomicBool::new(false),
            unsent: Mutex::default(),
            seen: Mutex::default(),
        })
    }

    /// The same for one whose reservations are paid when nobody settles them: this process may die after it has paid.
    pub fn paid_if_unsettled(session: &str, limits: Limits, unanswered: Unanswered) -> Arc<Self> {
        let mut budget = Self::new(session, limits, unanswered);
        if let Some(budget) = Arc::get_mut(&mut budget) {
            budget.unsettled = Unsettled::Spent;
        }
        budget
    }

    /// A budget that draws on what remains of this one. A service keeps one parent of a budget, so a child has none.
    pub fn child(self: &Arc<Self>, session: &str, limits: Limits) -> Result<Arc<Self>, ChildOfChild> {
        if self.parent.is_some() {
            return Err(ChildOfChild);
        }
        let (session, parent) = (short_id(session).into_owned(), Some(Arc::clone(self)));
        let (unanswered, unsettled, is_known) = (self.unanswered, self.unsettled, AtomicBool::new(false));
        let (scopes, unsent, seen) = (self.scopes.clone(), Mutex::default(), Mutex::default());
        Ok(Arc::new(Self { session, limits, parent, scopes, unanswered, unsettled, is_known, unsent, seen }))
    }

    /// A budget that was not used yet, drawing on scopes too, beside its parent's: what is asked of it is granted by all of them or by none.
    pub fn within(mut self: Arc<Self>, scopes: Vec<Scope>) -> Result<Arc<Self>, TooManyScopes> {
        let all = self.scopes.len() + scopes.len();
        if all > MOST_SCOPES {
            return Err(TooManyScopes(all));
        }
        if let Some(own) = Arc::get_mut(&mut self) {
            own.scopes.extend(scopes);
        }
        Ok(self)
    }

    /// Whether dollars are limited, as far as that is known here: by this budget, by its parent or a scope, or by the service's latest answer.
    pub fn limits_dollars(&self) -> bool {
        // A scope without a limit of the caller's has that of the service's settings.
        let is_limited = |scope: &Scope| scope.limits.usd.is_some() || scope.max_credits.is_some() || scope.limits == Limits::default();
        let is_said = || self.seen.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|(unit, _, _)| *unit == Unit::Usd);
        self.limits.usd.is_some()
            || self.scopes.iter().any(is_limited)
            || is_said()
            || self.parent.as_deref().is_some_and(Self::limits_dollars)
    }

    /// The name its books are kept under.
    pub fn session(&self) -> &str {
        &self.session
    }

    /// The limits it was made with.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// What was spent: it counts, also beyond the limit.
    pub fn record(self: &Arc<Self>, spent: Spent<'_>) -> Question {
        self.ask(Act::Record, self.body().spent(spent), Asks::Spend(Arc::clone(self)))
    }

    /// Sets an estimate aside.
    pub fn reserve(self: &Arc<Self>, estimate: Spent<'_>) -> Question {
        self.reserve_as(estimate, None)
    }

    /// The same for whoever asks for less, or waits, where it is refused: no row tells of that.
    pub(in crate::run) fn try_to_reserve(self: &Arc<Self>, estimate: Spent<'_>) -> Question {
        self.reserve_as(estimate, Some(REFUSED_IS_FORGOTTEN))
    }

    fn reserve_as(self: &Arc<Self>, estimate: Spent<'_>, if_refused: Option<&'static str>) -> Question {
        let unsettled = (self.unsettled == Unsettled::Spent).then_some(UNSETTLED_IS_SPENT);
        let body = self.body().spent(estimate).maybe("if_unsettled", unsettled).maybe("if_refused", if_refused);
        self.ask(Act::Reserve, body, Asks::Reserve(Arc::clone(self)))
    }

    /// Settles a reservation. One without an id was never heard of, so what was paid is recorded.
    pub fn commit(self: &Arc<Self>, reservation: Option<&str>, paid: Spent<'_>) -> Question {
        let Some(id) = reservation else { return self.record(paid) };
        self.ask(Act::Commit, self.body().spent(paid).with("reservation_id", id), Asks::Spend(Arc::clone(self)))
    }

    /// The same for a call that was made and paid: its answer is worth having, so nothing is raised when nobody answers. It is told
    /// with the next question, and by its reservation counts once; one that never had a reservation may count twice, if only its answer was lost.
    pub(in crate::run) fn commit_for_good(self: &Arc<Self>, reservation: Option<&str>, paid: Spent<'_>) -> Question {
        let mut question = self.commit(reservation, paid);
        if let Some(id) = reservation {
            question.last().body.0.push(("request_id", format!("commit-{id}").into()));
        }
        question.kept()
    }

    /// The limit that is spent but for its reserve, by the latest answer.
    pub(in crate::run) fn nearly_spent(&self, reserve: Reserve) -> Option<(Unit, f64, f64)> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.iter().copied().find(|(unit, spent, limit)| {
            let [spent, limit] = [*spent, *limit].map(|value| match unit {
                Unit::Usd => NanoDollars::from_dollars(value).map_or(0, |usd| usd.as_nanos() as u64),
                Unit::Tokens | Unit::Calls => value as u64,
            });
            reserve.is_reached(*unit, spent, limit)
        })
    }

    pub(super) fn see(&self, answer: &ServiceReply<'_>) {
        let Books { spent, limit, spent_tokens, limit_tokens, .. } = answer.books(false, None);
        let limits = [(Unit::Usd, spent, limit), (Unit::Tokens, spent_tokens as f64, limit_tokens.map(|limit| limit as f64))];
        let limits = limits.into_iter().filter_map(|(unit, spent, limit)| Some((unit, spent, limit?)));
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = limits.collect();
    }

    pub(super) fn keep(&self, unsent: Unsent) {
        let mut kept = self.unsent.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back(unsent);
        if kept.len() > MOST_UNSENT {
            kept.pop_front();
        }
    }

    /// Gives a reservation back unspent: also to the scopes of the model that it named.
    pub fn release(self: &Arc<Self>, reservation: &str, model: Option<&str>) -> Question {
        let body = self.drawn_on().maybe("model", model.map(short_id)).with("reservation_id", reservation);
        self.ask(Act::Release, body, Asks::Release)
    }

    /// What is left; of the calls of a step, when one is named.
    pub fn books(self: &Arc<Self>, step: Option<(&str, &str)>) -> Question {
        let is_capped = [Some(self), self.parent.as_ref()].into_iter().flatten().any(|budget| budget.limits.cap.is_some());
        let key = match step {
            Some((session_id, step_id)) => key_of(Spent::Call { session_id, step_id }),
            None => key_of(Spent::AnyCall).filter(|_| is_capped),
        };
        self.ask_for_books(key, step.is_some(), None)
    }

    pub(super) fn ask_for_books(self: &Arc<Self>, key: Option<Cow<'_, str>>, names_step: bool, calls: Option<u64>) -> Question {
        let asks = Asks::Books { budget: Arc::clone(self), names_step, calls };
        self.ask(Act::Check, self.body().maybe("key", key), asks)
    }

    /// Whether nothing is left.
    pub fn used_up(self: &Arc<Self>) -> Question {
        self.ask_what_is_left(false)
    }

    /// Whether nothing is left for good: a limit that renews is none, nor a service that cannot say.
    pub fn exhausted(self: &Arc<Self>) -> Question {
        self.ask_what_is_left(true)
    }

    /// Asks for the smallest amounts that there are.
    fn ask_what_is_left(self: &Arc<Self>, for_good: bool) -> Question {
        let smallest = Cost { usd: NanoDollars::from_nanos(1).unwrap_or_default(), tokens: 1 };
        self.ask(Act::Check, self.body().cost(smallest), Asks::UsedUp { for_good })
    }

    /// All that takes part: what is not named is not settled there.
    fn drawn_on(&self) -> Body {
        let scopes = (!self.scopes.is_empty()).then(|| self.scopes.iter().map(sent).collect::<Value>());
        Body::of_session(&self.session).maybe("parent", self.parent.as_ref().map(|parent| parent.session.as_str())).maybe("scopes", scopes)
    }

    fn body(&self) -> Body {
        self.drawn_on().limits(self.limits)
    }

    fn ask(self: &Arc<Self>, act: Act, body: Body, asks: Asks) -> Question {
        let question = self.after_limits(Question::new(act.path(), body, self.unanswered, asks));
        let mut kept = self.unsent.lock().unwrap_or_else(PoisonError::into_inner);
        let first = kept.len().min(SENT_AT_ONCE);
        kept.drain(..first).rev().fold(question, |question, Unsent { path, body }| {
            let unsent = Question::new(path, body, self.unanswered, Asks::Spend(Arc::clone(self))).kept();
            Question { next: Some(Box::new(question)), ..unsent }
        })
    }

    /// A parent that the service has not heard of comes first.
    fn after_limits(&self, question: Question) -> Question {
        match &self.parent {
            Some(parent) if !parent.is_known.load(Ordering::Relaxed) => {
                let limits = parent.body().cost(Cost::ZERO);
                let asks = Asks::Limits(Arc::clone(parent));
                Question { next: Some(Box::new(question)), ..Question::new(Act::Record.path(), limits, parent.unanswered, asks) }
            }
            Some(_) | None => question,
        }
    }
}

/// A scope as a service reads it.
fn sent(scope: &Scope) -> Value {
    let Scope { per, name, period, limits, max_credits, label: _ } = scope;
    let fields = Body::default()
        .with("per", per.as_str())
        .maybe("name", Some(name.as_str()).filter(|name| !name.is_empty()))
        .maybe("period", period.map(Period::as_str))
        .limits(*limits)
        .maybe("max_credits", max_credits.map(NanoDollars::as_dollars));
    fields.0.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>().into()
}

/// The key of a counted step, as everywhere; a budget without steps has one for all.
fn key_of(spent: Spent<'_>) -> Option<Cow<'static, str>> {
    match spent {
        Spent::Call { session_id, step_id } => Some(Cow::Owned(short_id(&call_key(session_id, step_id)).into_owned())),
        Spent::AnyCall => Some(Cow::Borrowed(NO_STEP)),
        Spent::Cost(_) | Spent::Priced { .. } | Spent::Usage { .. } => None,
    }
}

impl Body {
    fn limits(self, limits: Limits) -> Self {
        self.maybe("max_usd", limits.usd.map(NanoDollars::as_dollars)).maybe("max_tokens", limits.tokens).maybe("cap", limits.cap)
    }

    fn cost(self, cost: Cost) -> Self {
        self.with("usd", cost.usd.as_dollars()).with("tokens", cost.tokens)
    }

    fn spent(self, spent: Spent<'_>) -> Self {
        let some = |count: u64| (count > 0).then_some(count);
        match spent {
            Spent::Cost(cost) => self.cost(cost),
            Spent::Priced { model, cost } => {
                self.with("model", short_id(model)).with("usd", cost.usd.as_dollars()).with("input_tokens", cost.tokens)
            }
            Spent::Call { .. } | Spent::AnyCall => self.maybe("key", key_of(spent)),
            Spent::Usage { model, usage } => self
                .with("model", short_id(model))
                .with("input_tokens", usage.input_tokens)
                .with("output_tokens", usage.output_tokens)
                .with("cached_tokens", usage.cached_tokens)
                .with("cache_write_tokens", usage.cache_write_tokens)
                // What few requests have is said only by them.
                .maybe("cache_write_1h_tokens", some(usage.cache_write_1h_tokens))
                .maybe("audio_input_tokens", some(usage.audio_input_tokens))
                .maybe("audio_output_tokens", some(usage.audio_output_tokens))
                .maybe("service_tier", (usage.service_tier != ServiceTier::Standard).then(|| usage.service_tier.name())),
        }
    }
}
