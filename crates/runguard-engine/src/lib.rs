//! Between the doors and the rules: one clock reading, the tenant's policy, one atomic step, the log row.

pub mod advice;
pub mod alerts;
pub mod analyst;
pub mod circuits;
pub mod clock;
pub mod engine;
pub mod erasure;
pub mod ids;
pub mod keys;
pub mod preview;
pub mod secret_files;
pub mod settings;
pub mod shared;
pub mod spend;
pub mod telemetry;
pub mod watch;

pub use circuits::{Circuit, CircuitPage, CircuitQuery, PhaseCounts};
pub use clock::{Clock, ClockError};
pub use engine::{Answered, AuthorisedRequest, Engine, EngineError, EngineOptions, Idempotency, SessionView};
pub use keys::{Caller, KeyRing, Reach, Role};
pub use runguard_core::row::Outcome;
pub use runguard_store::Safe;
pub use settings::{Loaded, SettingsError, SettingsSource};
