//! Detectors and budgets that a service keeps: what to ask it, and what its answers mean. Python sends.

use crate::budgets::{self, UsedUp, asked, step_of, whole};
use crate::lock::locked;
use crate::loops::{Name, Optional, named, within};
use crate::runs::Run;
use crate::stalls::{Outcome, Verdict};
use crate::tool_calls::{Skip, arguments, has_failed};
use crate::{clock, errors, prices, values};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use runguard_core::detect::stall;
use runguard_core::fingerprint::Volatile;
use runguard_core::ledger::{Cost, Scope};
use runguard_core::run::service::{self, AnswerMeaning, Books, ServicePermit, Spent};
use runguard_core::run::{self, Ask, Gave, Loops, Money, Stalls, Unanswered, reply};
use std::sync::{Arc, Mutex};

const fn unanswered(fail_open: bool) -> Unanswered {
    if fail_open { Unanswered::Passes } else { Unanswered::Refused }
}

/// Something that a service has to be asked; once it is, `told` says how it goes on.
#[pyclass(frozen, module = "runguard._core")]
pub(crate) struct Question {
    /// `loop`, `stall`, `budget`, `circuit` or `tools`.
    #[pyo3(get)]
    part: &'static str,
    #[pyo3(get)]
    path: &'static str,
    /// JSON.
    #[pyo3(get)]
    body: String,
    asked: Mutex<Option<Of>>,
}

/// Whether a service that did not answer is asked again yet.
#[pyclass(frozen, module = "runguard._core")]
pub(crate) struct Rest {
    rest: Mutex<service::Rest>,
}

#[pymethods]
impl Rest {
    #[new]
    fn new() -> Self {
        Self { rest: Mutex::default() }
    }

    fn lasts(&self) -> PyResult<bool> {
        locked(&self.rest, |rest| rest.lasts(clock::now()))
    }

    fn failed(&self) -> PyResult<()> {
        locked(&self.rest, |rest| rest.failed(clock::now()))
    }

    fn answered(&self) -> PyResult<()> {
        locked(&self.rest, service::Rest::answered)
    }
}

/// What an HTTP answer is: its JSON and None, or why it is none and whose fault that is: `away`, `misdirected` or `input`.
#[pyfunction]
pub(crate) fn read_reply(method: &str, path: &str, status: u16, body: &str) -> (String, Option<&'static str>) {
    match reply::read(method, path, status, body) {
        Ok(answer) => (answer.into_owned(), None),
        Err(none) => (none.message, Some(none.fault.name())),
    }
}

/// Who asks.
enum Of {
    Run(Py<Run>, Box<Ask>),
    Part(service::Question),
}

#[pymethods]
impl Question {
    /// What the answer, a JSON object, means; without one the error that says why is raised when nothing passes then.
    #[pyo3(signature = (answer, error = None))]
    fn told<'py>(&self, py: Python<'py>, answer: Option<&str>, error: Option<Bound<'py, PyAny>>) -> PyResult<Option<Bound<'py, PyAny>>> {
        match locked(&self.asked, Option::take)? {
            None => Err(errors::invalid_input(py, "This question was answered before.")),
            Some(Of::Run(run, ask)) => Run::told(run.bind(py), ask, answer, error),
            Some(Of::Part(question)) => meaning(py, question.told(answer), error),
        }
    }

    /// Nobody was asked, nor will be.
    fn withdraw(&self) -> PyResult<()> {
        match locked(&self.asked, Option::take)? {
            Some(Of::Run(run, ask)) => run.get().withdrawn(&ask),
            Some(Of::Part(_)) | None => Ok(()),
        }
    }
}

impl Question {
    pub(crate) fn of_run(run: &Bound<'_, Run>, ask: Box<Ask>) -> Self {
        let (part, path, body) = (ask.question.part().name(), ask.question.path(), ask.question.body());
        Self { part, path, body, asked: Mutex::new(Some(Of::Run(run.clone().unbind(), ask))) }
    }

    fn new(question: service::Question) -> Self {
        let (part, path, body) = (question.part().name(), question.path(), question.body());
        Self { part, path, body, asked: Mutex::new(Some(Of::Part(question))) }
    }
}

fn meaning<'py>(py: Python<'py>, told: AnswerMeaning, error: Option<Bound<'py, PyAny>>) -> PyResult<Option<Bound<'py, PyAny>>> {
    match told {
        AnswerMeaning::Passed | AnswerMeaning::Unheard(None) => Ok(None),
        AnswerMeaning::Unheard(Some(tool)) => meaning(py, AnswerMeaning::Looked(stall::Verdict::default(), tool), error),
        AnswerMeaning::Looked(verdict, tool) => Ok(Some(Bound::new(py, Verdict::of(verdict, &tool))?.into_any())),
        AnswerMeaning::Books(books) => books_of(py, &books).map(|books| Some(books.into_any())),
        AnswerMeaning::Reserved(id) => Ok(id.map(|id| PyString::new(py, &id).into_any())),
        AnswerMeaning::Stopped(trip) | AnswerMeaning::NotNow(trip) | AnswerMeaning::DoesNotFit { trip, .. } => Err(errors::trip(py, &trip)),
        AnswerMeaning::Unpriced(unpriced) => Err(errors::unknown_model(py, &unpriced)),
        AnswerMeaning::Permitted(permit) => Ok(Some(Bound::new(py, RemotePermit { permit })?.into_any())),
        AnswerMeaning::EndpointRefused(refused) => Err(errors::circuit_open(py, &refused)),
        AnswerMeaning::Skip(skip) => {
            let skip = Skip::new(skip.reason.into_owned(), skip.message, skip.count, skip.limit);
            Ok(Some(Bound::new(py, skip)?.into_any()))
        }
        AnswerMeaning::Unanswered => Err(error.map_or_else(errors::unanswered, PyErr::from_value)),
        AnswerMeaning::Next(question) => Ok(Some(Bound::new(py, Question::new(question))?.into_any())),
    }
}

fn books_of<'py>(py: Python<'py>, books: &Books) -> PyResult<Bound<'py, PyDict>> {
    let fields = PyDict::new(py);
    fields.set_item("spent", books.spent)?;
    fields.set_item("reserved", books.reserved)?;
    fields.set_item("remaining", books.remaining)?;
    fields.set_item("spent_tokens", books.spent_tokens)?;
    fields.set_item("remaining_tokens", books.remaining_tokens)?;
    fields.set_item("left", budgets::number_of(py, books.left))?;
    Ok(fields)
}

/// The questions of a `LoopDetector` that a service keeps.
#[pyclass(frozen, module = "runguard._core")]
pub(crate) struct ServiceLoops {
    loops: Mutex<run::ServiceLoops>,
    /// For calls without a session.
    own_id: String,
}

#[pymethods]
impl ServiceLoops {
    #[new]
    fn new(
        py: Python<'_>,
        own_id: String,
        repeats: Option<i64>,
        max_cycle_len: Option<i64>,
        window_seconds: Option<f64>,
        max_calls: Option<i64>,
        fail_open: bool,
    ) -> PyResult<Self> {
        let window = window_seconds.map(|seconds| clock::span(py, "window_seconds", seconds)).transpose()?;
        let (repeats, max_cycle_len, max_calls) = (within(repeats), within(max_cycle_len), within(max_calls));
        let loops = run::ServiceLoops::new(repeats, max_cycle_len, window, max_calls, unanswered(fail_open));
        Ok(Self { loops: Mutex::new(loops), own_id })
    }

    #[pyo3(signature = (first, second, session_id, tool))]
    fn record(
        &self,
        py: Python<'_>,
        first: Optional<'_, '_>,
        second: Optional<'_, '_>,
        session_id: Optional<'_, '_>,
        tool: Optional<'_, '_>,
    ) -> PyResult<Question> {
        self.ask(named(py, first, second, session_id, tool)?, run::ServiceLoops::record)
    }

    #[pyo3(signature = (first, second, session_id, tool))]
    fn check(
        &self,
        py: Python<'_>,
        first: Optional<'_, '_>,
        second: Optional<'_, '_>,
        session_id: Optional<'_, '_>,
        tool: Optional<'_, '_>,
    ) -> PyResult<Question> {
        self.ask(named(py, first, second, session_id, tool)?, run::ServiceLoops::check)
    }

    #[pyo3(signature = (session_id))]
    fn reset(&self, session_id: Option<&str>) -> PyResult<()> {
        locked(&self.loops, |loops| loops.reset(session_id.unwrap_or(&self.own_id)))
    }
}

impl ServiceLoops {
    fn ask(
        &self,
        (session, name): (Option<Name<'_>>, Name<'_>),
        question: impl FnOnce(&run::ServiceLoops, &str, &str) -> service::Question,
    ) -> PyResult<Question> {
        let session = session.as_deref().unwrap_or(&self.own_id);
        locked(&self.loops, |loops| question(loops, session, &name)).map(Question::new)
    }

    pub(crate) fn shared(&self) -> PyResult<Loops> {
        locked(&self.loops, |loops| Loops::Service(loops.clone()))
    }
}

/// The questions of a `StallDetector` that a service keeps.
#[pyclass(frozen, module = "runguard._core")]
pub(crate) struct ServiceStalls {
    stalls: Mutex<run::ServiceStalls>,
}

#[pymethods]
impl ServiceStalls {
    #[new]
    fn new(fail_open: bool) -> Self {
        Self { stalls: Mutex::new(run::ServiceStalls::new(unanswered(fail_open))) }
    }

    #[pyo3(signature = (session_id, tool, args, result, error, round, tokens))]
    #[allow(clippy::too_many_arguments, reason = "they are Python's")]
    fn observe(
        &self,
        py: Python<'_>,
        session_id: &str,
        tool: &str,
        args: Option<&Bound<'_, PyAny>>,
        result: Option<&Bound<'_, PyAny>>,
        error: Option<&Bound<'_, PyAny>>,
        round: Option<u64>,
        tokens: u64,
    ) -> PyResult<Question> {
        if tool.is_empty() {
            return Err(errors::invalid_input(py, "tool is empty: all calls without a name would count as one."));
        }
        let args = args.map(|args| values::arguments(tool, args, Volatile::NONE)).transpose()?;
        let outcome = Outcome::read(py, result, error, stall::VolatileResults::NONE)?;
        let gave = Gave { tokens, ..outcome.gave(args.map_or(stall::CallEffect::Unknown, |(_, effect)| effect)) };
        let args = args.map(|(fingerprint, _)| fingerprint);
        locked(&self.stalls, |stalls| stalls.observe(session_id, tool, args, gave, round)).map(Question::new)
    }

    fn message(&self, session_id: &str, text: &str) -> PyResult<Question> {
        locked(&self.stalls, |stalls| stalls.message(session_id, text)).map(Question::new)
    }

    fn user_message(&self, session_id: &str) -> PyResult<Question> {
        locked(&self.stalls, |stalls| stalls.user_message(session_id)).map(Question::new)
    }
}

impl ServiceStalls {
    pub(crate) fn shared(&self) -> PyResult<Stalls> {
        locked(&self.stalls, |stalls| Stalls::Service(stalls.clone()))
    }
}

/// The questions of a `BudgetTracker` that a service keeps.
#[pyclass(frozen, module = "runguard._core")]
pub(crate) struct ServiceBudget {
    budget: Arc<run::ServiceBudget>,
}

#[pymethods]
impl ServiceBudget {
    #[new]
    #[pyo3(signature = (session_id, max_usd, max_tokens, cap, fail_open, parent = None, scopes = None))]
    fn new(
        py: Python<'_>,
        session_id: &str,
        max_usd: Option<&Bound<'_, PyAny>>,
        max_tokens: Option<&Bound<'_, PyAny>>,
        cap: Option<&Bound<'_, PyAny>>,
        fail_open: bool,
        parent: Option<&Bound<'_, Self>>,
        scopes: Option<&str>,
    ) -> PyResult<Self> {
        let limits = budgets::limits(py, max_usd, max_tokens, cap)?;
        let refused = |problem: &dyn std::fmt::Display| errors::invalid_input(py, run::sentence(problem));
        let budget = match parent {
            Some(parent) => parent.get().budget.child(session_id, limits).map_err(|problem| refused(&problem))?,
            None => run::ServiceBudget::new(session_id, limits, unanswered(fail_open)),
        };
        let scopes = Scope::read_all(scopes.unwrap_or("[]")).map_err(|problem| refused(&format_args!("scopes: {problem}")))?;
        Ok(Self { budget: budget.within(scopes).map_err(|problem| refused(&problem))? })
    }

    /// The name that the service keeps it under.
    #[getter]
    fn session_id(&self) -> &str {
        self.budget.session()
    }

    #[pyo3(signature = (first, second, usd, session_id, step_id))]
    fn record(
        &self,
        py: Python<'_>,
        first: Optional<'_, '_>,
        second: Optional<'_, '_>,
        usd: Optional<'_, '_>,
        session_id: Optional<'_, '_>,
        step_id: Optional<'_, '_>,
    ) -> PyResult<Question> {
        let question = match asked(py, [first, second, usd, session_id, step_id])? {
            UsedUp::Dollars(usd) => self.budget.record(Spent::Cost(Cost::usd(budgets::money(usd, "usd")?))),
            UsedUp::Call(session_id, step_id) => self.budget.record(Spent::Call { session_id: &session_id, step_id: &step_id }),
            UsedUp::AnyCall => self.budget.record(Spent::AnyCall),
        };
        Ok(Question::new(question))
    }

    fn record_tokens(&self, tokens: &Bound<'_, PyAny>) -> PyResult<Question> {
        Ok(Question::new(self.budget.record(Spent::Cost(Cost::tokens(whole(tokens, "tokens")?)))))
    }

    #[pyo3(signature = (model, input_tokens, output_tokens, cached_tokens, cache_write_tokens, cache_write_1h_tokens, audio_input_tokens, audio_output_tokens, service_tier))]
    fn record_usage(
        &self,
        model: &Bound<'_, PyAny>,
        input_tokens: Optional<'_, '_>,
        output_tokens: Optional<'_, '_>,
        cached_tokens: Optional<'_, '_>,
        cache_write_tokens: Optional<'_, '_>,
        cache_write_1h_tokens: Optional<'_, '_>,
        audio_input_tokens: Optional<'_, '_>,
        audio_output_tokens: Optional<'_, '_>,
        service_tier: Option<&str>,
    ) -> PyResult<Question> {
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
        Ok(Question::new(self.budget.record(Spent::Usage { model: &model, usage: &usage })))
    }

    /// The books; with a step, what is left is of its calls.
    #[pyo3(signature = (session_id = None, step_id = None))]
    fn books(&self, py: Python<'_>, session_id: Optional<'_, '_>, step_id: Optional<'_, '_>) -> PyResult<Question> {
        let question = match (session_id, step_id) {
            (None, None) => self.budget.books(None),
            (session, step) => {
                let (session_id, step_id) = step_of(py, session, step)?;
                self.budget.books(Some((&session_id, &step_id)))
            }
        };
        Ok(Question::new(question))
    }

    #[pyo3(signature = (usd, tokens))]
    fn reserve(&self, usd: Optional<'_, '_>, tokens: Optional<'_, '_>) -> PyResult<Question> {
        Ok(Question::new(self.budget.reserve(Spent::Cost(budgets::cost(usd, tokens, Cost::ZERO)?))))
    }

    /// Of what was not told the estimate counts.
    #[pyo3(signature = (reservation_id, usd, tokens, estimated_usd, estimated_tokens))]
    fn commit(
        &self,
        reservation_id: Option<&str>,
        usd: Optional<'_, '_>,
        tokens: Optional<'_, '_>,
        estimated_usd: Optional<'_, '_>,
        estimated_tokens: Optional<'_, '_>,
    ) -> PyResult<Question> {
        let estimate = budgets::cost(estimated_usd, estimated_tokens, Cost::ZERO)?;
        Ok(Question::new(self.budget.commit(reservation_id, Spent::Cost(budgets::cost(usd, tokens, estimate)?))))
    }

    fn release(&self, reservation_id: &str) -> Question {
        Question::new(self.budget.release(reservation_id, None))
    }

    fn exhausted(&self) -> Question {
        Question::new(self.budget.exhausted())
    }
}

impl ServiceBudget {
    pub(crate) fn shared(&self) -> Money {
        Money::Service(Arc::clone(&self.budget))
    }
}

/// A call may run: what the service knows its result by.
#[pyclass(frozen, module = "runguard._core")]
pub(crate) struct RemotePermit {
    permit: ServicePermit,
}

#[pymethods]
impl RemotePermit {
    #[getter]
    fn session_id(&self) -> &str {
        &self.permit.session
    }

    #[getter]
    fn permit_id(&self) -> Option<&str> {
        self.permit.id.as_deref()
    }

    /// Whether this call tests a circuit that was open.
    #[getter]
    fn probe(&self) -> bool {
        self.permit.is_probe
    }
}

/// The questions of a `CircuitBreaker` that a service keeps.
#[pyclass(frozen, module = "runguard._core")]
pub(crate) struct ServiceCircuit {
    circuit: run::ServiceCircuit,
}

#[pymethods]
impl ServiceCircuit {
    #[new]
    fn new(name: &str, fail_open: bool) -> Self {
        Self { circuit: run::ServiceCircuit::new(name, unanswered(fail_open)) }
    }

    /// The name that the service keeps it under.
    #[getter]
    fn name(&self) -> &str {
        self.circuit.name()
    }

    fn check(&self, session_id: &str) -> Question {
        Question::new(self.circuit.check(session_id))
    }

    #[pyo3(signature = (session_id, ok, latency_ms, permit))]
    fn record(
        &self,
        py: Python<'_>,
        session_id: &str,
        ok: bool,
        latency_ms: Option<f64>,
        permit: Option<&Bound<'_, RemotePermit>>,
    ) -> PyResult<Question> {
        let latency = latency_ms.map(|millis| clock::latency(py, millis)).transpose()?;
        let permit = permit.map(|permit| &permit.get().permit);
        let session_id = permit.map_or(session_id, |permit| &permit.session);
        Ok(Question::new(self.circuit.record(session_id, permit.and_then(|permit| permit.id.as_deref()), ok, latency)))
    }
}

/// The questions of a `ToolExecutionTracker` that a service keeps.
#[pyclass(frozen, module = "runguard._core")]
pub(crate) struct ServiceTools {
    tools: run::ServiceTools,
}

#[pymethods]
impl ServiceTools {
    #[new]
    fn new(fail_open: bool) -> Self {
        Self { tools: run::ServiceTools::new(unanswered(fail_open)) }
    }

    #[pyo3(signature = (turn, tool, args))]
    fn should_skip(&self, turn: &str, tool: &str, args: Optional<'_, '_>) -> PyResult<Question> {
        Ok(Question::new(self.tools.should_skip(turn, tool, arguments(args)?)))
    }

    #[pyo3(signature = (turn, tool, args, result, error))]
    fn record(
        &self,
        turn: &str,
        tool: &str,
        args: Optional<'_, '_>,
        result: Optional<'_, '_>,
        error: Optional<'_, '_>,
    ) -> PyResult<Question> {
        Ok(Question::new(self.tools.record(turn, tool, arguments(args)?, has_failed(result, error)?)))
    }
}
