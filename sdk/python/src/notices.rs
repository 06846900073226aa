//! What Slack and PagerDuty are told of a trip.

use crate::{errors, values};
use pyo3::prelude::*;
use runguard_core::notice;

/// What a webhook gets, as JSON. `error` has the members of a trip.
#[pyfunction]
pub(crate) fn trip_facts(error: &Bound<'_, PyAny>) -> PyResult<String> {
    notice::trip_facts(&values::json(error)?).map_err(|problem| errors::invalid_input(error.py(), values::sentence(&problem)))
}

/// The body for Slack. `facts` are those a webhook gets.
#[pyfunction]
pub(crate) fn trip_to_slack(facts: &Bound<'_, PyAny>, source: &str) -> PyResult<String> {
    notice::trip_to_slack(&values::json(facts)?, source).map_err(|error| errors::invalid_input(facts.py(), values::sentence(&error)))
}

/// The body for PagerDuty.
#[pyfunction]
pub(crate) fn trip_to_pagerduty(facts: &Bound<'_, PyAny>, source: &str, routing_key: &str) -> PyResult<String> {
    notice::trip_to_pagerduty(&values::json(facts)?, source, routing_key)
        .map_err(|error| errors::invalid_input(facts.py(), values::sentence(&error)))
}
