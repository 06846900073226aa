//! `Run`: the core's, behind a lock.

use crate::lock::locked;
use crate::prices::{self, PriceList};
use crate::services::{self, Question};
use crate::stalls::{Outcome, StallDetector};
use crate::{budgets, clock, errors, loops, values};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyString, PyTuple};
use runguard_core::detect::stall::CallEffect;
use runguard_core::fingerprint::Volatile;
use runguard_core::ledger::Cost;
use runguard_core::money::NanoDollars;
use runguard_core::prices::{ServiceTier, Usage};
use runguard_core::run::{self, Ask, Ceilings, Loops, ModelQuestion, Money, Progress, Refusal, Stalls, ToolRule, Used, Warn};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;

/// What every question of a run gives: None when it may go on, a text for the model, the trip, a `Question` for a service; and of a model
/// call that begins, itself, or False when it has to wait for others.
type Step<'py> = PyResult<Option<Bound<'py, PyAny>>>;

#[pyclass(frozen, module = "runguard._core")]
pub(crate) struct Run {
    inner: Mutex<run::Run>,
    /// Of a budget in this process; a service has its own.
    prices: Option<PriceList>,
    /// Fields of arguments that are not compared, by tool.
    ignored: BTreeMap<String, Volatile>,
    /// What calls that are under way do, by the number of their arguments. The oldest first.
    effects: Mutex<VecDeque<(u64, CallEffect)>>,
}

/// Calls that are under way at once, of which it is remembered what they do.
const UNDER_WAY: usize = 64;

/// A tool whose calls are told by what its function is called with.
#[pyclass(frozen, module = "runguard._core")]
pub(crate) struct Tool {
    name: String,
    names: Vec<String>,
    extra: Vec<String>,
}

#[pymethods]
impl Tool {
    /// `names` are the parameters that may be passed by place, `extra` those that a framework fills.
    #[new]
    fn new(name: &Bound<'_, PyAny>, names: Vec<String>, extra: Vec<String>) -> PyResult<Self> {
        Ok(Self { name: tool_name(name)?.into_owned(), names, extra })
    }

    /// Counts a call. Gives the number of its arguments, for `after`; and before it what `Run.before_tool` gives, if it gives anything.
    fn before<'py>(&self, run: &Bound<'py, Run>, args: &Bound<'py, PyTuple>, kwargs: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyAny>> {
        let py = run.py();
        // A run that is over has no use for arguments.
        if let Some(trip) = Run::trip(run)? {
            return Ok((trip, 0_u64).into_pyobject(py)?.into_any());
        }
        let called = values::Called { names: &self.names, extra: &self.extra, args, kwargs };
        let (arguments, effect) = called.arguments(&self.name, run.get().ignored_of(&self.name))?;
        run.get().remember(arguments, effect)?;
        let now = clock::now();
        match locked(&run.get().inner, |run| run.before_tool(&self.name, arguments, now))? {
            Progress::Done => Ok(arguments.into_pyobject(py)?.into_any()),
            progress => Ok((Run::step(run, progress)?, arguments).into_pyobject(py)?.into_any()),
        }
    }

    /// What the call with these arguments gave; what `Run.after_tool` gives, and True when that is nothing but the run is over.
    fn after<'py>(
        &self,
        run: &Bound<'py, Run>,
        arguments: u64,
        result: Option<&Bound<'py, PyAny>>,
        error: Option<&Bound<'py, PyAny>>,
    ) -> Step<'py> {
        let volatile = locked(&run.get().inner, |run| run.volatile_results())?;
        let outcome = Outcome::read(run.py(), result, error, &volatile).unwrap_or_default();
        let effect = run.get().effect_of(arguments)?;
        let now = clock::now();
        let (progress, is_over) = locked(&run.get().inner, |run| {
            let progress = run.after_tool(&self.name, arguments, outcome.gave(effect), now);
            (progress, run.trip().is_some())
        })?;
        match progress {
            Progress::Done if is_over => Ok(Some(PyBool::new(run.py(), true).to_owned().into_any())),
            progress => Run::step(run, progress),
        }
    }
}

/// A model call that is under way.
#[pyclass(frozen, module = "runguard._core")]
pub(crate) struct ModelCall {
    call: Mutex<Option<run::ModelCall>>,
    /// The longest answer that can be paid, where that is shorter than what was asked for.
    #[pyo3(get)]
    max_output: Option<u64>,
    /// The model to ask.
    #[pyo3(get)]
    model: String,
}

#[pymethods]
impl Run {
    #[new]
    fn new(
        py: Python<'_>,
        run_id: String,
        max_tool_calls: Option<u64>,
        max_model_calls: Option<u64>,
        max_seconds: Option<f64>,
        detector: &Bound<'_, PyAny>,
        stall: Option<&Bound<'_, PyAny>>,
        budget: Option<&Bound<'_, PyAny>>,
        tool_rules: Option<&str>,
        warn_at_thousandths: Option<u64>,
        fallback_model: Option<String>,
    ) -> PyResult<Self> {
        let wrong = |name: &str, kind: &str| errors::invalid_input(py, format!("{name} must be a {kind} of this package."));
        let detector = loops_of(detector).ok_or_else(|| wrong("loop", "LoopDetector"))?;
        let stall = stall.map(|stall| stalls_of(stall).ok_or_else(|| wrong("stall", "StallDetector"))).transpose()?;
        let budget = budget.map(|budget| money_of(budget).ok_or_else(|| wrong("budget", "BudgetTracker"))).transpose()?;
        let (money, prices) = budget.map_or((None, None), |(money, prices)| (Some(money), prices));
        let time = max_seconds.map(|seconds| clock::span(py, "max_seconds", seconds)).transpose()?;
        let ceilings = Ceilings::default().tool_calls(max_tool_calls).model_calls(max_model_calls).time(time);
        let rules: BTreeMap<String, ToolRule> = tool_rules
            .map_or(Ok(BTreeMap::new()), serde_json::from_str)
            .map_err(|problem| errors::invalid_input(py, format!("tools cannot be read: {problem}.")))?;
        let ignored = rules
            .iter()
            .filter(|(_, rule)| !rule.ignore.is_empty())
            .map(|(tool, rule)| (tool.clone(), Volatile::of(&rule.ignore)))
            .collect();
        let run = run::Run::new(run_id, ceilings, detector, stall, money)
            .with_tool_rules(rules)
            .with_warning(Warn::default().at_thousandths(warn_at_thousandths).fallback_model(fallback_model));
        Ok(Self { inner: Mutex::new(run), prices, ignored, effects: Mutex::default() })
    }

    #[pyo3(signature = (tool, args, agent = None))]
    fn before_tool<'py>(this: &Bound<'py, Self>, tool: &Bound<'py, PyAny>, args: &Bound<'py, PyAny>, agent: Option<&str>) -> Step<'py> {
        // A run that is over has no use for arguments, and they may be such that they cannot be compared.
        if let Some(trip) = Self::trip(this)? {
            return Ok(Some(trip));
        }
        let tool = tool_name(tool)?;
        let arguments = values::fingerprint(args, this.get().ignored_of(&tool))?;
        let now = clock::now();
        let progress = locked(&this.get().inner, |run| run.before_tool_of(agent, &tool, arguments, now))?;
        Self::step(this, progress)
    }

    #[pyo3(signature = (tool, args, result, error, agent = None))]
    fn after_tool<'py>(
        this: &Bound<'py, Self>,
        tool: &Bound<'py, PyAny>,
        args: &Bound<'py, PyAny>,
        result: Option<&Bound<'py, PyAny>>,
        error: Option<&Bound<'py, PyAny>>,
        agent: Option<&str>,
    ) -> Step<'py> {
        let tool = tool_name(tool)?;
        let (arguments, effect) = values::arguments(&tool, args, this.get().ignored_of(&tool))?;
        // The tool has run: what cannot be read of its result is no reason to lose it.
        let volatile = locked(&this.get().inner, |run| run.volatile_results())?;
        let outcome = Outcome::read(this.py(), result, error, &volatile).unwrap_or_default();
        let now = clock::now();
        let progress = locked(&this.get().inner, |run| run.after_tool_of(agent, &tool, arguments, outcome.gave(effect), now))?;
        Self::step(this, progress)
    }

    fn before_model<'py>(this: &Bound<'py, Self>) -> Step<'py> {
        let progress = locked(&this.get().inner, |run| run.before_model(clock::now()))?;
        Self::step(this, progress)
    }

    /// `prompt` is all that is sent, of which only the size matters. `max_output` is that of each of the answers. Of `choices` that are no
    /// number the provider says what is wrong with them.
    fn begin_model<'py>(
        this: &Bound<'py, Self>,
        model: &Bound<'py, PyAny>,
        prompt: &Bound<'py, PyAny>,
        max_output: Option<u64>,
        choices: &Bound<'py, PyAny>,
        has_waited: bool,
        may_fall_back: bool,
    ) -> Step<'py> {
        // No whole number is too large for the core.
        let choices = choices.extract::<f64>().unwrap_or(1.0) as u64;
        let (model, prompt) = (prices::model_name(model)?, values::prompt(prompt)?);
        let Self { inner, prices, .. } = this.get();
        let progress = with_prices(prices.as_ref(), |prices| {
            let max_output = max_output.or_else(|| prices.longest_answer(&model));
            let asked = ModelQuestion { model: &model, prompt, max_output, choices, has_waited, asks_again: false, may_fall_back };
            locked(inner, |run| run.begin_model(asked, &|model, usage| prices.known_cost(model, usage), clock::now()))
        })?;
        Self::step(this, progress)
    }

    /// What the call used, by the provider's word: `model` is the one that answered. `came` says that the answer broke off after so many bytes.
    #[pyo3(signature = (call, came, model, input_tokens, output_tokens, cached_tokens, cache_write_tokens, cache_write_1h_tokens, audio_input_tokens, audio_output_tokens, service_tier))]
    fn finish_model<'py>(
        this: &Bound<'py, Self>,
        call: &ModelCall,
        came: Option<u64>,
        model: Option<&str>,
        input_tokens: u64,
        output_tokens: u64,
        cached_tokens: u64,
        cache_write_tokens: u64,
        cache_write_1h_tokens: u64,
        audio_input_tokens: u64,
        audio_output_tokens: u64,
        service_tier: Option<&str>,
    ) -> Step<'py> {
        let usage = Usage {
            input_tokens,
            output_tokens,
            cached_tokens,
            cache_write_tokens,
            cache_write_1h_tokens,
            audio_input_tokens,
            audio_output_tokens,
            service_tier: service_tier.map_or_else(ServiceTier::default, ServiceTier::named),
        };
        let counted = Used::Counted { model, usage: &usage };
        Self::finish(this, call, came.map_or(counted, |bytes| Used::BrokenOff { model, usage: &usage, bytes }))
    }

    /// Nobody has counted: an answer of so many bytes came.
    fn finish_uncounted<'py>(this: &Bound<'py, Self>, call: &ModelCall, bytes: u64) -> Step<'py> {
        Self::finish(this, call, Used::Came { bytes })
    }

    /// The call was not made, or costs nothing.
    fn drop_model<'py>(this: &Bound<'py, Self>, call: &ModelCall) -> Step<'py> {
        Self::finish(this, call, Used::Nothing)
    }

    /// Once, when most of a limit is spent: the sentence, the unit, what is spent, and the limit.
    fn take_warning(&self) -> PyResult<Option<(String, &'static str, f64, f64)>> {
        let warning = locked(&self.inner, run::Run::take_warning)?;
        Ok(warning.map(|warning| (warning.message, warning.unit.as_str(), warning.spent, warning.limit)))
    }

    /// Calls that were billed by counting bytes.
    #[getter]
    fn estimated_calls(&self) -> PyResult<u64> {
        locked(&self.inner, |run| run.estimated_calls())
    }

    #[pyo3(signature = (model, input_tokens, output_tokens, cached_tokens, cache_write_tokens, cache_write_1h_tokens, audio_input_tokens, audio_output_tokens, service_tier))]
    fn record_usage<'py>(
        this: &Bound<'py, Self>,
        model: &Bound<'py, PyAny>,
        input_tokens: Option<&Bound<'py, PyAny>>,
        output_tokens: Option<&Bound<'py, PyAny>>,
        cached_tokens: Option<&Bound<'py, PyAny>>,
        cache_write_tokens: Option<&Bound<'py, PyAny>>,
        cache_write_1h_tokens: Option<&Bound<'py, PyAny>>,
        audio_input_tokens: Option<&Bound<'py, PyAny>>,
        audio_output_tokens: Option<&Bound<'py, PyAny>>,
        service_tier: Option<&str>,
    ) -> Step<'py> {
        let counts = [
            input_tokens,
            output_tokens,
            cached_tokens,
            cache_write_tokens,
            cache_write_1h_tokens,
            audio_input_tokens,
            audio_output_tokens,
        ];
        let usage = prices::usage(counts, service_tier)?;
        let model = prices::model_name(model)?;
        let Self { inner, prices, .. } = this.get();
        let price = || prices.as_ref().map_or_else(|| Ok(NanoDollars::ZERO), |prices| prices.known_cost(&model, &usage));
        let progress = locked(inner, |run| run.record_usage(&model, &usage, price))?;
        Self::step(this, progress)
    }

    fn record_usd<'py>(this: &Bound<'py, Self>, usd: &Bound<'py, PyAny>) -> Step<'py> {
        let paid = Cost::usd(budgets::money(usd, "usd")?);
        let progress = locked(&this.get().inner, |run| run.record(paid))?;
        Self::step(this, progress)
    }

    /// The error that says why the run was stopped, or None.
    #[getter]
    fn trip<'py>(this: &Bound<'py, Self>) -> Step<'py> {
        let trip = locked(&this.get().inner, |run| run.trip().cloned())?;
        Ok(trip.map(|trip| errors::trip(this.py(), &trip).into_value(this.py()).into_bound(this.py()).into_any()))
    }

    /// Whether dollars are limited, as far as that is known here.
    fn limits_dollars(&self) -> PyResult<bool> {
        locked(&self.inner, |run| run.limits_dollars())
    }

    /// Whoever sees more than the run does has found a loop.
    fn stop_loop<'py>(this: &Bound<'py, Self>, cycle: Vec<String>, repeats: u32, message: String) -> Step<'py> {
        let progress = locked(&this.get().inner, |run| run.stop_loop(cycle, repeats, message))?;
        Self::step(this, progress)
    }

    /// The model has the result of this call already: whether it is to be told so in its place.
    fn tell_repeat(&self, tool: &str) -> PyResult<bool> {
        locked(&self.inner, |run| run.tell_repeat(tool))
    }

    fn new_turn(&self) -> PyResult<()> {
        locked(&self.inner, run::Run::new_turn)
    }

    fn reset(&self) -> PyResult<()> {
        locked(&self.inner, run::Run::reset)
    }
}

impl Run {
    fn ignored_of(&self, tool: &str) -> &Volatile {
        self.ignored.get(tool).unwrap_or(Volatile::NONE)
    }

    /// A call with these arguments is begun.
    fn remember(&self, arguments: u64, effect: CallEffect) -> PyResult<()> {
        locked(&self.effects, |effects| {
            if effects.len() == UNDER_WAY {
                effects.pop_front();
            }
            effects.push_back((arguments, effect));
        })
    }

    /// What the call with these arguments did.
    fn effect_of(&self, arguments: u64) -> PyResult<CallEffect> {
        locked(&self.effects, |effects| {
            let place = effects.iter().position(|(begun, _)| *begun == arguments);
            place.and_then(|place| effects.remove(place)).map_or(CallEffect::Unknown, |(_, effect)| effect)
        })
    }

    /// What the core knows of it.
    pub(crate) fn looked_at<R>(&self, look: impl FnOnce(&run::Run) -> R) -> PyResult<R> {
        locked(&self.inner, |run| look(run))
    }

    /// A question of this run that nobody has answered, nor will.
    pub(crate) fn withdrawn(&self, ask: &Ask) -> PyResult<()> {
        locked(&self.inner, |run| run.withdrawn(ask))
    }

    /// A call that has ended before changes nothing.
    fn finish<'py>(this: &Bound<'py, Self>, call: &ModelCall, used: Used<'_>) -> Step<'py> {
        let Some(call) = locked(&call.call, Option::take)? else { return Ok(None) };
        let Self { inner, prices, .. } = this.get();
        let progress = with_prices(prices.as_ref(), |prices| {
            locked(inner, |run| run.finish_model(call, used, &|model, usage| prices.known_cost(model, usage)))
        })?;
        Self::step(this, progress)
    }

    /// What a service answered to a question of this run.
    pub(crate) fn told<'py>(this: &Bound<'py, Self>, ask: Box<Ask>, answer: Option<&str>, error: Option<Bound<'py, PyAny>>) -> Step<'py> {
        let progress = locked(&this.get().inner, |run| run.told(ask, answer))?;
        match (progress, error) {
            (Progress::Refused(Refusal::Unanswered), Some(error)) => Err(PyErr::from_value(error)),
            (progress, _) => Self::step(this, progress),
        }
    }

    /// A trip is given and not raised: it is kept and reported first.
    fn step<'py>(this: &Bound<'py, Self>, progress: Progress) -> Step<'py> {
        let py = this.py();
        match progress {
            Progress::Done => Ok(None),
            Progress::Busy => Ok(Some(PyBool::new(py, false).to_owned().into_any())),
            Progress::Started(call) => {
                let (max_output, model) = (call.max_output(), call.model().to_owned());
                Ok(Some(Bound::new(py, ModelCall { call: Mutex::new(Some(call)), max_output, model })?.into_any()))
            }
            Progress::Nudge(nudge) => Ok(Some(PyString::new(py, &nudge).into_any())),
            Progress::Refused(Refusal::Trip(trip)) => Ok(Some(errors::trip(py, &trip).into_value(py).into_bound(py).into_any())),
            Progress::Refused(Refusal::NotNow(trip)) => Err(errors::trip(py, &trip)),
            Progress::Refused(Refusal::Unpriced(unpriced)) => Err(errors::unknown_model(py, &unpriced)),
            Progress::Refused(Refusal::Unanswered) => Err(errors::unanswered()),
            Progress::Ask(ask) => Ok(Some(Bound::new(py, Question::of_run(this, ask))?.into_any())),
        }
    }
}

/// With the prices of a budget, or else those of the table.
fn with_prices<R>(prices: Option<&PriceList>, with: impl FnOnce(&PriceList) -> R) -> R {
    match prices {
        Some(prices) => with(prices),
        None => with(&PriceList::default()),
    }
}

fn loops_of(detector: &Bound<'_, PyAny>) -> Option<Loops> {
    if let Ok(kept) = detector.cast::<services::ServiceLoops>() {
        return kept.get().shared().ok();
    }
    detector.cast::<loops::LoopDetector>().ok().map(|detector| detector.get().shared())
}

fn stalls_of(stall: &Bound<'_, PyAny>) -> Option<Stalls> {
    if let Ok(kept) = stall.cast::<services::ServiceStalls>() {
        return kept.get().shared().ok();
    }
    stall.cast::<StallDetector>().ok().map(|stall| stall.get().shared())
}

fn money_of(budget: &Bound<'_, PyAny>) -> Option<(Money, Option<PriceList>)> {
    if let Ok(kept) = budget.cast::<services::ServiceBudget>() {
        return Some((kept.get().shared(), None));
    }
    let (money, prices) = budget.cast::<budgets::BudgetTracker>().ok()?.get().shared();
    Some((money, Some(prices)))
}

fn tool_name<'a>(tool: &'a Bound<'_, PyAny>) -> PyResult<std::borrow::Cow<'a, str>> {
    match tool.cast::<PyString>().map(values::text) {
        Ok(Ok(name)) if !name.is_empty() => Ok(name),
        Ok(Err(error)) => Err(error),
        Ok(Ok(_)) | Err(_) => Err(errors::invalid_input(tool.py(), "tool must be the name of the tool, a string that is not empty.")),
    }
}
