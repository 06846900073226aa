//! Setting money aside for a question, and settling what it cost: the run of the core, with the guards of this service as its books.

use crate::Hears;
use bytes::Bytes;
use runguard_core::ledger::Limits;
use runguard_core::money::NanoDollars;
use runguard_core::object::Object;
use runguard_core::prices::{Prices, USUAL_BYTES_A_TOKEN, UnknownModelError, Usage, usual_tokens};
use runguard_core::run::reply::decision;
use runguard_core::run::{
    Ceilings, Loops, ModelCall, ModelQuestion, Money, Progress, Question, Refusal as RunRefusal, Run, ServiceBudget, Unanswered, Used,
};
use runguard_core::{GuardName, Reason, Timestamp};
use runguard_engine::telemetry::TraceContext;
use runguard_engine::{Answered, AuthorisedRequest, Caller, Engine, Safe};
use runguard_guards::answer::Shape;
use runguard_guards::guard::ROUTES;
use runguard_guards::input::{Input, PassedCall};
use runguard_http::load::Share;
use serde_json::Value;
use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Whether what a guard decided became safe.
pub(crate) async fn became_safe(path: &str, safe: Safe) -> bool {
    safe.wait().await.inspect_err(|error| tracing::warn!(%error, path, "what the gateway asked could not be kept")).is_ok()
}

/// The budget of a run that its questions draw on.
const BUDGET: &str = "default";

/// The guards of this service, asked for one caller.
#[derive(Debug, Clone)]
pub(crate) struct Guards {
    pub(crate) engine: Arc<Engine>,
    pub(crate) caller: Arc<Caller>,
    /// What a virtual clock is told.
    pub(crate) now: Option<Bytes>,
    /// The call that is passed on, for the log.
    pub(crate) call: PassedCall,
    pub(crate) began: Instant,
    /// The caller's trace, where it tells one.
    pub(crate) trace: Option<TraceContext>,
    pub(crate) hears: Option<Arc<dyn Hears>>,
    /// The caller's share, while it waits for an answer or hears one.
    pub(crate) under_way: Weak<Share>,
}

impl Guards {
    pub(crate) fn now(&self) -> Option<Timestamp> {
        self.engine.clock.read(self.now.as_deref()).ok()
    }

    /// What a guard answers; nothing when it could not be asked.
    pub(crate) async fn ask(&self, question: &Question) -> Option<String> {
        let (answer, safe) = self.decide(question.path(), question.members()).await?;
        became_safe(question.path(), safe).await.then_some(answer)
    }

    /// What a guard answers before that is safe, for who asks another one before anybody is told.
    pub(crate) async fn decide(&self, path: &str, members: &[(&'static str, Value)]) -> Option<(String, Safe)> {
        let route = ROUTES.iter().find(|route| route.path == path)?;
        // A boxed question cannot be kept across the answer while its input is borrowed: both stay here.
        let operation = {
            let text;
            let mut input = if let Some(input) = Input::of_members(members, route.fields) {
                input
            } else {
                text = serde_json::to_vec(&members.iter().cloned().collect::<HashMap<_, _>>()).ok()?;
                Input::read(&text, route.fields).ok()?
            };
            input.asked_with = Some(self.caller.key_id.as_str()).filter(|key| !key.is_empty());
            input.call = Some(&self.call);
            (route.read)(&input)
        };
        let asked = AuthorisedRequest {
            tenant: &self.caller.tenant,
            operation: &*operation,
            warnings: &[],
            now: self.now()?,
            shape: Shape::Full,
            // Between the gateway and its own engine no answer is lost, so nothing is asked again; a reservation is settled once in any case.
            idempotency: None,
        };
        match self.engine.decide(asked).await {
            Ok((answered, safe)) => {
                self.tell(route.guard, &answered);
                Some((answered.body, safe))
            }
            Err(error) => {
                tracing::warn!(%error, path, "the gateway's question was not answered");
                None
            }
        }
    }

    /// Tells those who count, and those who send it on as part of the caller's trace, that a decision was made.
    fn tell(&self, guard: GuardName, answered: &Answered) {
        if let Some(hears) = &self.hears {
            hears.decided(guard, answered, &|| self.engine.settings.load().savings.operations_of(guard));
        }
        if let (Some(telemetry), Some(trace)) = (&self.engine.telemetry, self.trace) {
            telemetry.note(answered, trace);
        }
    }

    /// The model whose price another one has, by the settings of the caller's tenant.
    pub(crate) fn priced_as<'a>(&self, model: &'a str) -> Cow<'a, str> {
        let settings = self.engine.settings.load();
        let priced = settings.policies.for_tenant(&self.caller.tenant).budget.for_subject(BUDGET).settings.priced_as(model).to_owned();
        if priced == model { Cow::Borrowed(model) } else { Cow::Owned(priced) }
    }

    /// What a model's tokens cost, by the settings of the caller's tenant.
    fn price(&self, model: &str, usage: &Usage) -> Result<NanoDollars, UnknownModelError> {
        let settings = self.engine.settings.load();
        settings.policies.for_tenant(&self.caller.tenant).budget.for_subject(BUDGET).settings.cost_of(model, usage)
    }
}

/// How a run's books stand, as a budget's answer says.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Books {
    pub(crate) spent_usd: f64,
    pub(crate) reserved_usd: f64,
    pub(crate) reserved_tokens: u64,
    pub(crate) remaining_usd: Option<f64>,
    pub(crate) remaining_tokens: Option<u64>,
    pub(crate) decision_id: String,
}

impl Books {
    fn of(answer: &Object<'_>) -> Self {
        Self {
            spent_usd: answer.read("spent_usd").unwrap_or_default(),
            reserved_usd: answer.read("reserved_usd").unwrap_or_default(),
            reserved_tokens: answer.read("reserved_tokens").unwrap_or_default(),
            remaining_usd: answer.read("remaining_usd"),
            remaining_tokens: answer.read("remaining_tokens"),
            decision_id: answer.text("decision_id").map(Cow::into_owned).unwrap_or_default(),
        }
    }

    pub(crate) fn is_limited(&self) -> bool {
        self.remaining_usd.is_some() || self.remaining_tokens.is_some()
    }
}

/// Runs that are remembered when none of their questions is under way: how far the bounds of their models were wrong. Their money and their
/// trips are in the store, so of a run whose bounds held nothing is kept.
const MOST_RUNS: usize = 20_000;
/// How often one who waits for others looks again without being told.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

#[derive(Debug, Default)]
pub(crate) struct Runs {
    followed: Arc<Mutex<Followed>>,
    /// Something was settled: those who wait may fit.
    settled: Notify,
}

#[derive(Debug, Default)]
struct Followed {
    by_name: HashMap<Arc<str>, FollowedRun>,
    /// In which order those leave that are remembered: one for each that comes, so that nobody waits until thousands have left.
    order: VecDeque<Arc<str>>,
    /// The gateway looks for loops in what is told of a run, not in its calls: one detector that nothing is told stands for all.
    loops: Loops,
}

#[derive(Debug)]
struct FollowedRun {
    run: Arc<Mutex<Run>>,
    /// Its questions that are under way.
    questions: usize,
    /// Since it was last its turn to leave.
    was_asked: bool,
    /// It stands in the order of those that leave.
    is_remembered: bool,
}

/// A run while one of its questions is under way.
#[derive(Debug)]
struct UnderWay {
    key: Arc<str>,
    run: Arc<Mutex<Run>>,
    followed: Arc<Mutex<Followed>>,
}

impl UnderWay {
    fn locked(&self) -> MutexGuard<'_, Run> {
        locked(&self.run)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let learned = self.locked().knows_its_bounds_wrong();
        locked(&self.followed).left(&self.key, learned);
    }
}

impl Followed {
    fn of(&mut self, tenant: &str, name: &str) -> (Arc<str>, Arc<Mutex<Run>>) {
        let key = [tenant, "\0", name].concat();
        if let Some((key, followed)) = self.by_name.get_key_value(key.as_str()) {
            let found = (key.clone(), followed.run.clone());
            if let Some(followed) = self.by_name.get_mut(&found.0) {
                (followed.was_asked, followed.questions) = (true, followed.questions + 1);
            }
            return found;
        }
        let budget = ServiceBudget::paid_if_unsettled(name, Limits::default(), Unanswered::Refused);
        let run = Arc::new(Mutex::new(Run::new(name, Ceilings::default(), self.loops.clone(), None, Some(Money::Service(budget)))));
        let key: Arc<str> = key.into();
        self.by_name.insert(key.clone(), FollowedRun { run: run.clone(), questions: 1, was_asked: false, is_remembered: false });
        (key, run)
    }

    /// One of its questions is over. What was learned of it is remembered.
    fn left(&mut self, key: &Arc<str>, learned: bool) {
        let Some(followed) = self.by_name.get_mut(key) else { return };
        followed.questions = followed.questions.saturating_sub(1);
        if followed.is_remembered {
            return;
        }
        if learned {
            followed.is_remembered = true;
            self.make_room();
            self.order.push_back(key.clone());
        } else if followed.questions == 0 {
            self.by_name.remove(key);
        }
    }

    /// The first that nobody asked for since it was last looked at leaves; one that is being asked stays.
    fn make_room(&mut self) {
        /// Where all of so many are in use, there is one more for now.
        const MOST_LOOKED_AT: usize = 16;
        if self.order.len() < MOST_RUNS {
            return;
        }
        for _ in 0..MOST_LOOKED_AT {
            let Some(first) = self.order.pop_front() else { return };
            let stays = |followed: &mut FollowedRun| std::mem::take(&mut followed.was_asked) || followed.questions > 0;
            if self.by_name.get_mut(&first).is_some_and(stays) {
                self.order.push_back(first);
                continue;
            }
            self.by_name.remove(&first);
            // Those that had to stay leave in the end.
            if self.order.len() < MOST_RUNS {
                return;
            }
        }
    }
}

/// What is about to be asked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) model: &'a str,
    pub(crate) prompt: runguard_core::prices::Prompt,
    /// In tokens at the usual price, as is the shortest.
    pub(crate) max_output: u64,
    /// An answer that is made shorter is not worth having.
    pub(crate) shortest: u64,
    /// The answer that is asked for, and the longest that the prompt can be.
    pub(crate) longest: u64,
    pub(crate) longest_prompt: u64,
    pub(crate) choices: u64,
    pub(crate) patience: Duration,
}

/// Why nothing was set aside.
#[derive(Debug)]
pub(crate) enum NotSetAside {
    /// A limit stands against it, or a model has no price.
    Refused { code: String, message: String },
    /// Others have set aside what may be given back.
    Busy { code: String, message: String },
    /// Nobody can say how the books stand.
    Unavailable,
}

/// A question whose price is set aside.
#[derive(Debug)]
pub(crate) struct SetAside {
    run: UnderWay,
    call: ModelCall,
    pub(crate) books: Books,
}

impl SetAside {
    /// The longest answer that is paid for at the usual price, where that is shorter than was asked for.
    pub(crate) fn max_output(&self) -> Option<u64> {
        self.call.max_output()
    }
}

impl Runs {
    fn of(&self, tenant: &str, name: &str) -> UnderWay {
        let (key, run) = locked(&self.followed).of(tenant, name);
        UnderWay { key, run, followed: self.followed.clone() }
    }

    /// Sets the most that a question may cost aside, in everything that limits it.
    pub(crate) async fn set_aside(&self, guards: &Guards, name: &str, wanted: Wanted<'_>) -> Result<SetAside, NotSetAside> {
        let run = self.of(&guards.caller.tenant, name);
        let owner = guards.clone();
        let price = |model: &str, usage: &Usage| owner.price(model, usage);
        let gives_up = Instant::now() + wanted.patience;
        loop {
            let settled = self.settled.notified();
            let is_last = Instant::now() >= gives_up;
            let asked = ModelQuestion {
                model: wanted.model,
                prompt: wanted.prompt,
                max_output: Some(wanted.max_output),
                choices: wanted.choices,
                // Nobody waits for the first question of a run to be over: bounds here are wide. What others have set aside is waited for below.
                has_waited: true,
                asks_again: !is_last,
                may_fall_back: false,
            };
            let now = guards.now().ok_or(NotSetAside::Unavailable)?;
            let mut progress = run.locked().begin_model(asked, &price, now);
            let mut books = Books::default();
            while let Progress::Ask(mut ask) = progress {
                ask.at_shortest(wanted.shortest);
                let answer = guards.ask(&ask.question).await;
                let heard = answer.as_deref().and_then(decision);
                if let Some(answer) = &heard {
                    books = Books::of(answer);
                }
                progress = run.locked().heard(ask, heard);
            }
            let refusal = match progress {
                Progress::Started(call) => return Ok(SetAside { run, call, books }),
                Progress::Refused(refusal) => refusal,
                Progress::Done | Progress::Busy | Progress::Nudge(_) | Progress::Ask(_) => return Err(NotSetAside::Unavailable),
            };
            // What limits a run is in the store, and may be raised there: nothing of it is remembered here.
            run.locked().reset();
            let is_set_aside = books.reserved_usd > 0.0 || books.reserved_tokens > 0;
            let refused = not_set_aside(refusal, is_set_aside, &priced_for(&wanted, &price));
            if is_last || !matches!(refused, NotSetAside::Busy { .. }) {
                return Err(refused);
            }
            let _ = tokio::time::timeout(LOOK_AGAIN, settled).await;
        }
    }

    /// Books what a question cost.
    pub(crate) async fn settle(&self, guards: &Guards, set_aside: SetAside, used: Used<'_>) -> Books {
        let SetAside { run, call, mut books } = set_aside;
        let price = |model: &str, usage: &Usage| guards.price(model, usage);
        let millis = u64::try_from(guards.began.elapsed().as_millis()).ok();
        let settling = Guards { call: PassedCall { millis, ..guards.call.clone() }, ..guards.clone() };
        let used = at_the_dearer(used, call.model(), &guards.call.answered_by, &price);
        let mut progress = run.locked().finish_model(call, used, &price);
        while let Progress::Ask(ask) = progress {
            let answer = settling.ask(&ask.question).await;
            let heard = answer.as_deref().and_then(decision);
            if let Some(answer) = &heard {
                books = Books::of(answer);
            }
            progress = run.locked().heard(ask, heard);
        }
        // A trip of the budget is found again by who asks next.
        run.locked().reset();
        self.settled.notify_waiters();
        books
    }
}

/// What answered is paid at its own price where that is known to be dearer than the price of what was asked for: a provider may have sent the
/// question on to another model. A name that answers makes nothing cheaper, and one without a price changes nothing.
fn at_the_dearer<'a>(
    used: Used<'a>,
    asked: &str,
    answered: &'a str,
    price: &dyn Fn(&str, &Usage) -> Result<NanoDollars, UnknownModelError>,
) -> Used<'a> {
    let is_dearer = |usage: &Usage| {
        let own = Prices::bundled().price(answered).map(|(own, _)| own.cost(usage));
        own.zip(price(asked, usage).ok()).is_some_and(|(own, asked)| own > asked)
    };
    match used {
        Used::Counted { model: None, usage } if is_dearer(usage) => Used::Counted { model: Some(answered), usage },
        Used::BrokenOff { model: None, usage, bytes } => {
            let written = Usage { output_tokens: usage.output_tokens.max(usual_tokens(bytes)), ..*usage };
            Used::BrokenOff { model: is_dearer(&written).then_some(answered), usage, bytes }
        }
        used => used,
    }
}

/// What a price that nobody named is for: the answer, or the prompt where that is the dearer part of it.
fn priced_for(wanted: &Wanted<'_>, price: &dyn Fn(&str, &Usage) -> Result<NanoDollars, UnknownModelError>) -> String {
    let tokens = wanted.prompt.bytes / USUAL_BYTES_A_TOKEN;
    let prompt = price(wanted.model, &Usage::new(tokens, 0));
    let both = price(wanted.model, &Usage::new(tokens, wanted.max_output.saturating_mul(wanted.choices)));
    let answer = match wanted.choices {
        1 => format!("an answer of up to {} tokens", wanted.longest),
        several => format!("{several} answers of up to {} tokens each", wanted.longest),
    };
    match (prompt, both) {
        (Ok(prompt), Ok(both)) if both.as_dollars() < 2.0 * prompt.as_dollars() => {
            format!(
                "Most of the price, {prompt} of {both}, is that of a prompt of up to {} tokens, the rest that of {answer}.",
                wanted.longest_prompt
            )
        }
        _ => format!("The price is that of {answer}."),
    }
}

fn not_set_aside(refusal: RunRefusal, is_set_aside: bool, priced_for: &str) -> NotSetAside {
    match refusal {
        RunRefusal::NotNow(trip) if trip.reason == Reason::BudgetExceeded.code() => {
            let waits = is_set_aside && !trip.is_used_up();
            let (code, message) = (trip.reason.into_owned(), trip.message);
            if waits {
                NotSetAside::Busy { code, message }
            } else {
                NotSetAside::Refused { code, message: format!("{message} {priced_for}") }
            }
        }
        RunRefusal::Trip(trip) | RunRefusal::NotNow(trip) if trip.reason == Reason::StateUnavailable.code() => NotSetAside::Unavailable,
        RunRefusal::Trip(trip) | RunRefusal::NotNow(trip) => NotSetAside::Refused { code: trip.reason.into_owned(), message: trip.message },
        RunRefusal::Unpriced(unpriced) => NotSetAside::Refused { code: Reason::UnknownModel.code().to_owned(), message: unpriced.message },
        RunRefusal::Unanswered => NotSetAside::Unavailable,
    }
}

/// A panic elsewhere cannot leave a run, or their list, half changed: their changes do not panic.
fn locked<T>(kept: &Mutex<T>) -> MutexGuard<'_, T> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use runguard_core::prices::{Prompt, UnknownModel};

    #[test]
    fn what_is_dear_is_named() {
        let price = |model: &str, usage: &Usage| Prices::bundled().cost(model, usage, &UnknownModel::Error).map(|(cost, _)| cost);
        let of_several = |tokens: u64, max_output: u64, choices: u64| {
            let prompt = Prompt::of_bytes(tokens * USUAL_BYTES_A_TOKEN);
            let (model, patience) = ("gpt-4o", Duration::ZERO);
            let wanted = Wanted { model, prompt, max_output, shortest: 1, longest: max_output, longest_prompt: tokens, choices, patience };
            priced_for(&wanted, &price)
        };
        let of = |tokens: u64, max_output: u64| of_several(tokens, max_output, 1);
        assert_eq!(of(1_000, 16_384), "The price is that of an answer of up to 16384 tokens.");
        assert_eq!(of_several(1_000, 16_384, 16), "The price is that of 16 answers of up to 16384 tokens each.");
        let dear = "Most of the price, $0.32 of $0.33, is that of a prompt of up to 128000 tokens, the rest that of an answer of up to 1000 tokens.";
        assert_eq!(of(128_000, 1_000), dear);
    }

    #[test]
    fn a_dearer_model_that_answers_is_paid_at_its_own_price() {
        let price = |model: &str, usage: &Usage| Prices::bundled().cost(model, usage, &UnknownModel::Error).map(|(cost, _)| cost);
        let usage = Usage::new(1_000, 500);
        let of = |asked: &str, answered: &'static str| match at_the_dearer(
            Used::Counted { model: None, usage: &usage },
            asked,
            answered,
            &price,
        ) {
            Used::Counted { model, .. } => model,
            other => panic!("{other:?}"),
        };
        assert_eq!(of("gpt-4o", "gpt-4"), Some("gpt-4"));
        for (asked, answered) in [
            ("gpt-4", "gpt-4o"),
            ("gpt-4o", "gpt-4o"),
            ("gpt-4o", ""),
            ("gpt-4o", "gpt-4o-2024-08-06"),
            ("gpt-4o", "nobody-knows"),
            ("nobody-knows", "gpt-4"),
        ] {
            assert_eq!(of(asked, answered), None, "{asked} {answered}");
        }
        let none = Usage::new(0, 0);
        let broken = at_the_dearer(Used::BrokenOff { model: None, usage: &none, bytes: 4_000 }, "gpt-4o", "gpt-4", &price);
        assert!(matches!(broken, Used::BrokenOff { model: Some("gpt-4"), bytes: 4_000, .. }), "{broken:?}");
    }

    fn asked(runs: &Runs, name: &str, bytes: u64) {
        let run = runs.of("t", name);
        let price = |model: &str, usage: &Usage| Prices::bundled().cost(model, usage, &UnknownModel::Error).map(|(cost, _)| cost);
        let prompt = Prompt::of_bytes(bytes);
        let (model, max_output, choices) = ("gpt-4o", Some(10), 1);
        let asked = ModelQuestion { model, prompt, max_output, choices, has_waited: true, asks_again: false, may_fall_back: false };
        let Progress::Ask(ask) = run.locked().begin_model(asked, &price, Timestamp::from_millis(0)) else { panic!("nothing is asked") };
        let answer = decision(r#"{"allow": true, "reservation_id": "r"}"#);
        let Progress::Started(call) = run.locked().heard(ask, answer) else { panic!("it does not begin") };
        let used = Used::Counted { model: None, usage: &Usage::new(100, 10) };
        let Progress::Ask(ask) = run.locked().finish_model(call, used, &price) else { panic!("it is not settled") };
        assert!(matches!(run.locked().heard(ask, decision(r#"{"recorded": true}"#)), Progress::Done));
    }

    #[test]
    fn a_run_whose_bounds_held_is_not_remembered() {
        let runs = Runs::default();
        let known = |name: &str| locked(&runs.followed).by_name.contains_key(["t\0", name].concat().as_str());
        asked(&runs, "held", 1_000);
        asked(&runs, "wrong", 10);
        assert_eq!((known("held"), known("wrong")), (false, true));
        let (first, second) = (runs.of("t", "both"), runs.of("t", "both"));
        assert!(Arc::ptr_eq(&first.run, &second.run), "its questions beside one another know the same");
        drop(first);
        assert!(known("both"), "one of them is under way");
        drop(second);
        assert!(!known("both"));
        // Both at once, from two threads, many times: whoever is last takes it along.
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..10_000).for_each(|_| drop(runs.of("t", "both"))));
            }
        });
        assert!(!known("both"));
    }

    #[test]
    fn of_too_many_runs_those_leave_that_nobody_asks_for() {
        let runs = Runs::default();
        let learned = |name: &str| {
            asked(&runs, name, 10);
            runs.of("t", name)
        };
        let busy = learned("busy");
        let known = Arc::downgrade(&learned("known").run);
        let last = MOST_RUNS + 1_000;
        for number in 0..=last {
            asked(&runs, &number.to_string(), 10);
            if number.is_multiple_of(500) {
                assert!(known.upgrade().is_some_and(|known| Arc::ptr_eq(&known, &runs.of("t", "known").run)), "{number}");
            }
            let followed = locked(&runs.followed);
            assert!(followed.by_name.len() <= MOST_RUNS && followed.order.len() == followed.by_name.len());
        }
        assert!(Arc::ptr_eq(&busy.run, &runs.of("t", "busy").run), "whoever is asked stays");
        let is_there = |name: &str| locked(&runs.followed).by_name.contains_key(["t\0", name].concat().as_str());
        assert_eq!((is_there("0"), is_there(&last.to_string())), (false, true));
    }
}
