//! `BudgetTracker` and `Reservation`.

use crate::lock::locked;
use crate::prices::{self, PriceList};
use crate::{errors, values};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyString};
use runguard_core::budget::{self, Budget, Cost, Left, Limits, NO_STEP, UsageRefused, call_key};
use runguard_core::money::NanoDollars;
use runguard_core::run::{Money, Unpriced};
use std::sync::Mutex;

/// What may be spent: dollars, tokens, calls of one step.
#[pyclass(subclass, frozen, module = "runguard._core")]
pub(crate) struct BudgetTracker {
    budget: Budget,
    prices: PriceList,
}

#[pymethods]
impl BudgetTracker {
    #[new]
    #[pyo3(signature = (max_usd = None, max_tokens = None, cap = None, *, parent = None, prices = None, unknown_model = None))]
    fn new(
        py: Python<'_>,
        max_usd: Option<&Bound<'_, PyAny>>,
        max_tokens: Option<&Bound<'_, PyAny>>,
        cap: Option<&Bound<'_, PyAny>>,
        parent: Option<&Bound<'_, Self>>,
        prices: Option<&Bound<'_, PyAny>>,
        unknown_model: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let limits = limits(py, max_usd, max_tokens, cap)?;
        let prices = match parent {
            Some(parent) if prices.is_none() && unknown_model.is_none() => parent.get().prices.clone(),
            _ => PriceList::new(prices, unknown_model)?,
        };
        let budget = parent.map_or_else(|| Budget::new(limits), |parent| parent.get().budget.child(limits));
        Ok(Self { budget, prices })
    }

    /// `record(usd)` adds dollars; `record(session_id, step_id)` counts a call against the cap. Raises `BudgetExceededError`.
    #[pyo3(signature = (first = None, second = None, *, usd = None, session_id = None, step_id = None))]
    fn record(
        &self,
        py: Python<'_>,
        first: Option<&Bound<'_, PyAny>>,
        second: Option<&Bound<'_, PyAny>>,
        usd: Option<&Bound<'_, PyAny>>,
        session_id: Option<&Bound<'_, PyAny>>,
        step_id: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let recorded = match asked(py, [first, second, usd, session_id, step_id])? {
            UsedUp::Dollars(usd) => self.budget.record(Cost::usd(money(usd, "usd")?)),
            UsedUp::AnyCall => self.budget.count(NO_STEP).map(drop),
            UsedUp::Call(session, step) => self.budget.count(&call_key(&session, &step)).map(drop),
        };
        recorded.map_err(|exceeded| errors::budget_exceeded(py, &exceeded))
    }

    /// Adds tokens. Raises `BudgetExceededError` once more were used than allowed.
    fn record_tokens(&self, py: Python<'_>, tokens: &Bound<'_, PyAny>) -> PyResult<()> {
        self.spend(py, Cost::tokens(whole(tokens, "tokens")?))
    }

    /// Adds what a model call used, priced from the table. `input_tokens` are those read afresh, without the cached ones. Of a model without
    /// a price the tokens are added, and `UnknownModelError` is raised where dollars are limited.
    #[pyo3(signature = (model, input_tokens = None, output_tokens = None, cached_tokens = None, cache_write_tokens = None, cache_write_1h_tokens = None, audio_input_tokens = None, audio_output_tokens = None, service_tier = None))]
    fn record_usage(
        &self,
        py: Python<'_>,
        model: &Bound<'_, PyAny>,
        input_tokens: Option<&Bound<'_, PyAny>>,
        output_tokens: Option<&Bound<'_, PyAny>>,
        cached_tokens: Option<&Bound<'_, PyAny>>,
        cache_write_tokens: Option<&Bound<'_, PyAny>>,
        cache_write_1h_tokens: Option<&Bound<'_, PyAny>>,
        audio_input_tokens: Option<&Bound<'_, PyAny>>,
        audio_output_tokens: Option<&Bound<'_, PyAny>>,
        service_tier: Option<&str>,
    ) -> PyResult<()> {
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
        self.budget.record_usage(&usage, || self.prices.known_cost(&model, &usage)).map_err(|refused| match refused {
            UsageRefused::Exceeded(exceeded) => errors::budget_exceeded(py, &exceeded),
            UsageRefused::Unpriced(unknown) => errors::unknown_model(py, &Unpriced::from(&unknown)),
        })
    }

    /// What is left: of dollars, else of calls without a step, else of tokens; or for `check(session_id, step_id)` calls of that step.
    #[pyo3(signature = (session_id = None, step_id = None))]
    fn check<'py>(
        &self,
        py: Python<'py>,
        session_id: Option<&Bound<'py, PyAny>>,
        step_id: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let key = match (session_id, step_id) {
            (None, None) => None,
            (session, step) => step_of(py, session, step).map(|(session, step)| Some(call_key(&session, &step)))?,
        };
        Ok(number_of(py, self.budget.books(key.as_deref()).left))
    }

    /// Sets an estimate aside before it is spent. Raises `BudgetExceededError`, and takes nothing, when it does not fit.
    #[pyo3(signature = (usd = None, *, tokens = None))]
    fn reserve(&self, py: Python<'_>, usd: Option<&Bound<'_, PyAny>>, tokens: Option<&Bound<'_, PyAny>>) -> PyResult<Reservation> {
        let estimate = cost(usd, tokens, Cost::ZERO)?;
        let held = self.budget.reserve(estimate).map_err(|exceeded| errors::budget_exceeded(py, &exceeded))?;
        Ok(Reservation { held: Mutex::new(Some(held)) })
    }

    /// The error that says the budget is used up, or None while something is left.
    fn exhausted<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        let exceeded = self.budget.used_up()?;
        Some(errors::budget_exceeded(py, &exceeded).into_value(py).into_bound(py).into_any())
    }

    /// Dollars spent.
    #[getter]
    fn spent(&self) -> f64 {
        self.budget.snapshot().spent().usd.as_dollars()
    }

    /// Tokens used.
    #[getter]
    fn spent_tokens(&self) -> u64 {
        self.budget.snapshot().spent().tokens
    }

    /// Dollars set aside.
    #[getter]
    fn reserved(&self) -> f64 {
        self.budget.snapshot().reserved.usd.as_dollars()
    }

    /// Dollars that may still be spent or reserved; None without a limit.
    #[getter]
    fn remaining(&self) -> Option<f64> {
        self.budget.remaining().usd.map(NanoDollars::as_dollars)
    }

    /// Tokens that may still be used; None without a limit.
    #[getter]
    fn remaining_tokens(&self) -> Option<u64> {
        self.budget.remaining().tokens
    }

    /// The limit in dollars; None without one.
    #[getter]
    fn limit(&self) -> Option<f64> {
        self.budget.snapshot().limits.usd.map(NanoDollars::as_dollars)
    }

    fn __repr__(&self) -> String {
        let books = self.budget.snapshot();
        let limit = books.limits.usd.map_or_else(|| "no limit".to_owned(), |limit| format!("of {limit}"));
        format!("BudgetTracker({} spent, {limit})", books.spent().usd)
    }
}

impl BudgetTracker {
    /// The same budget, for a run, with what its models cost.
    pub(crate) fn shared(&self) -> (Money, PriceList) {
        (Money::InProcess(self.budget.clone()), self.prices.clone())
    }

    fn spend(&self, py: Python<'_>, paid: Cost) -> PyResult<()> {
        self.budget.record(paid).map_err(|exceeded| errors::budget_exceeded(py, &exceeded))
    }
}

/// An estimate that is set aside. As a context manager it is released at the end unless it was committed.
#[pyclass(frozen, module = "runguard._core")]
pub(crate) struct Reservation {
    held: Mutex<Option<budget::Reservation>>,
}

#[pymethods]
impl Reservation {
    /// Settles with what was really spent; without an amount with the estimate. Raises `BudgetExceededError` when it was more and does not fit.
    #[pyo3(signature = (actual_usd = None, *, tokens = None))]
    fn commit(&self, py: Python<'_>, actual_usd: Option<&Bound<'_, PyAny>>, tokens: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        // A wrong amount must leave the reservation open, so it is read first.
        let estimate = locked(&self.held, |held| held.as_ref().map(budget::Reservation::estimate))?;
        let paid = cost(actual_usd, tokens, estimate.unwrap_or_default())?;
        let held = locked(&self.held, Option::take)?;
        let Some(held) = held else {
            return Err(errors::invalid_input(py, runguard_core::run::RESERVATION_ENDED));
        };
        held.commit(paid).map_err(|exceeded| errors::budget_exceeded(py, &exceeded))
    }

    /// Gives back what was set aside. Releasing twice changes nothing.
    fn release(&self) -> PyResult<()> {
        locked(&self.held, Option::take).map(drop)
    }

    /// Whether it is still set aside.
    #[getter]
    fn open(&self) -> PyResult<bool> {
        locked(&self.held, |held| held.is_some())
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        self.release()
    }
}

/// Dollars are a float, calls and tokens whole numbers.
pub(crate) fn number_of(py: Python<'_>, left: Left) -> Bound<'_, PyAny> {
    match left {
        Left::Usd(usd) => PyFloat::new(py, usd).into_any(),
        Left::Calls(count) | Left::Tokens(count) => PyInt::new(py, count).into_any(),
        Left::Unlimited => PyFloat::new(py, f64::INFINITY).into_any(),
    }
}

pub(crate) enum UsedUp<'a, 'py> {
    Dollars(&'a Bound<'py, PyAny>),
    /// The session and the step.
    Call(String, String),
    AnyCall,
}

/// What `record` was asked to count, from any of the call shapes.
pub(crate) fn asked<'a, 'py>(py: Python<'py>, given: [Option<&'a Bound<'py, PyAny>>; 5]) -> PyResult<UsedUp<'a, 'py>> {
    match given {
        [Some(first), None, None, None, None] if !first.is_instance_of::<PyString>() => Ok(UsedUp::Dollars(first)),
        [None, None, Some(usd), None, None] => Ok(UsedUp::Dollars(usd)),
        [None, None, None, None, None] => Ok(UsedUp::AnyCall),
        [session @ Some(_), step @ Some(_), None, None, None]
        | [None, None, None, session @ Some(_), step @ Some(_)]
        | [session @ Some(_), None, None, None, step @ Some(_)] => {
            step_of(py, session, step).map(|(session, step)| UsedUp::Call(session, step))
        }
        [Some(_), None, None, None, None] => {
            Err(errors::invalid_input(py, "A step is named by two strings, record(session_id, step_id); dollars are a number."))
        }
        _ => Err(errors::invalid_input(py, "Say what was used: record(usd), record(session_id, step_id), or record() for one call.")),
    }
}

/// The names of a step.
pub(crate) fn step_of(py: Python<'_>, session: Option<&Bound<'_, PyAny>>, step: Option<&Bound<'_, PyAny>>) -> PyResult<(String, String)> {
    let name = |value: Option<&Bound<'_, PyAny>>, what: &str| -> PyResult<String> {
        let text = value.and_then(|value| value.cast::<PyString>().ok());
        match text.map(values::text).transpose()? {
            Some(text) if !text.is_empty() => Ok(text.into_owned()),
            _ => Err(errors::invalid_input(py, format!("{what} must be a string that is not empty."))),
        }
    };
    Ok((name(session, "session_id")?, name(step, "step_id")?))
}

pub(crate) fn limits(
    py: Python<'_>,
    max_usd: Option<&Bound<'_, PyAny>>,
    max_tokens: Option<&Bound<'_, PyAny>>,
    cap: Option<&Bound<'_, PyAny>>,
) -> PyResult<Limits> {
    let cap = cap.map(|cap| whole(cap, "cap")).transpose()?;
    Ok(Limits {
        usd: max_usd.map(|usd| money(usd, "max_usd")).transpose()?,
        tokens: max_tokens.map(|tokens| whole(tokens, "max_tokens")).transpose()?,
        cap: cap.map(u32::try_from).transpose().map_err(|_| errors::invalid_input(py, "cap is more than 4294967295 calls."))?,
    })
}

pub(crate) fn cost(usd: Option<&Bound<'_, PyAny>>, tokens: Option<&Bound<'_, PyAny>>, otherwise: Cost) -> PyResult<Cost> {
    Ok(Cost {
        usd: usd.map_or(Ok(otherwise.usd), |usd| money(usd, "usd"))?,
        tokens: tokens.map_or(Ok(otherwise.tokens), |tokens| whole(tokens, "tokens"))?,
    })
}

/// Dollars from a float, an int or a `Decimal` (which is read exactly).
pub(crate) fn money(value: &Bound<'_, PyAny>, name: &str) -> PyResult<NanoDollars> {
    let read = if let Ok(dollars) = value.cast_exact::<PyFloat>() {
        NanoDollars::from_dollars(dollars.value())
    } else if value.is_instance_of::<PyString>() || value.is_instance_of::<PyBool>() {
        Err(runguard_core::money::MoneyError::NotANumber)
    } else if value.get_type().name()?.to_cow()? == "Decimal" {
        NanoDollars::parse(&value.str()?.to_cow()?)
    } else {
        value.extract::<f64>().map_or(Err(runguard_core::money::MoneyError::NotANumber), NanoDollars::from_dollars)
    };
    read.map_err(|problem| {
        let shown = value.repr().map_or_else(|_| "this value".to_owned(), |shown| shown.to_string());
        errors::invalid_input(value.py(), format!("{name} is {shown}: {problem}."))
    })
}

/// A count from 0 up.
pub(crate) fn whole(value: &Bound<'_, PyAny>, name: &str) -> PyResult<u64> {
    let number = if value.is_instance_of::<PyBool>() { None } else { value.extract::<u64>().ok() };
    number.ok_or_else(|| {
        let shown = value.repr().map_or_else(|_| "this value".to_owned(), |shown| shown.to_string());
        errors::invalid_input(value.py(), format!("{name} is {shown}, but must be a whole number from 0 up."))
    })
}
