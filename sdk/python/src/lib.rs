//! The native half of the Python package: the core's detectors as Python classes.
//!
//! One rule keeps them safe in threads and after a fork: **no lock is ever held while the interpreter is released**. So
//! no other thread can hold one when a process forks, and a lock is never waited for. Work that takes long (reading big
//! arguments, comparing texts) is done without the interpreter, on values of its own.

mod bedrock;
mod breakers;
mod budgets;
mod clock;
mod errors;
mod failures;
mod lock;
mod loops;
mod notices;
mod prices;
mod runs;
mod services;
mod stalls;
mod texts;
mod tool_calls;
mod values;

use pyo3::prelude::*;

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<bedrock::BedrockTurn>()?;
    module.add_class::<breakers::CircuitBreaker>()?;
    module.add_class::<breakers::Permit>()?;
    module.add_class::<budgets::BudgetTracker>()?;
    module.add_class::<budgets::Reservation>()?;
    module.add_class::<loops::LoopDetector>()?;
    module.add_class::<runs::ModelCall>()?;
    module.add_class::<runs::Run>()?;
    module.add_class::<runs::Tool>()?;
    module.add_class::<services::Question>()?;
    module.add_class::<services::RemotePermit>()?;
    module.add_class::<services::Rest>()?;
    module.add_class::<services::ServiceBudget>()?;
    module.add_class::<services::ServiceCircuit>()?;
    module.add_class::<services::ServiceLoops>()?;
    module.add_class::<services::ServiceStalls>()?;
    module.add_class::<services::ServiceTools>()?;
    module.add_class::<stalls::StallDetector>()?;
    module.add_class::<stalls::Verdict>()?;
    module.add_class::<tool_calls::RecipeCache>()?;
    module.add_class::<tool_calls::Skip>()?;
    module.add_class::<tool_calls::ToolExecutionTracker>()?;
    module.add_function(wrap_pyfunction!(bedrock::bedrock_preset, module)?)?;
    module.add_function(wrap_pyfunction!(failures::action_call, module)?)?;
    module.add_function(wrap_pyfunction!(failures::call_begun, module)?)?;
    module.add_function(wrap_pyfunction!(failures::call_finished, module)?)?;
    module.add_function(wrap_pyfunction!(failures::reply_failed, module)?)?;
    module.add_function(wrap_pyfunction!(notices::trip_facts, module)?)?;
    module.add_function(wrap_pyfunction!(notices::trip_to_pagerduty, module)?)?;
    module.add_function(wrap_pyfunction!(notices::trip_to_slack, module)?)?;
    module.add_function(wrap_pyfunction!(prices::cost_usd, module)?)?;
    module.add_function(wrap_pyfunction!(prices::read_usage, module)?)?;
    module.add_function(wrap_pyfunction!(prices::usage_merge, module)?)?;
    module.add_function(wrap_pyfunction!(services::read_reply, module)?)?;
    module.add_function(wrap_pyfunction!(texts::fingerprint, module)?)?;
    module.add_function(wrap_pyfunction!(texts::plain_json, module)?)?;
    module.add_function(wrap_pyfunction!(texts::result_fingerprint, module)?)?;
    module.add_function(wrap_pyfunction!(texts::similarity, module)?)?;
    module.add_function(wrap_pyfunction!(texts::answer_size, module)?)?;
    module.add_function(wrap_pyfunction!(texts::unmetered, module)?)?;
    module.add_function(wrap_pyfunction!(texts::asked_of_model, module)?)?;
    module.add_function(wrap_pyfunction!(texts::may_be_billed, module)?)?;
    module.add_function(wrap_pyfunction!(texts::usual_tokens, module)?)?;
    module.add("RESERVATION_ENDED", runguard_core::run::RESERVATION_ENDED)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    Ok(())
}
