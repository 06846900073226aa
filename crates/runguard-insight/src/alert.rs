//! Which rows of the log are worth telling somebody about.
//!
//! A rule looks at one row at a time and keeps a small state; what it says depends on the rows alone, and its clock is theirs.
//! So a rule that is stopped after any row and goes on from its saved state says what it would have said anyway, and
//! whoever saves the state together with the alerts neither loses one nor tells it twice.
//!
//! Every alert is a *latch*: it fires once, is silent while it lasts, and is resolved when it is over. After it has fired it
//! does not fire again within the cool-down, however often the trouble comes and goes; trouble that outlasts the cool-down
//! is told at the next row that shows it.

mod judging;
mod rule;
mod state;

pub use self::rule::{Counted, Dimension, Rule, When, default_rules};
pub use self::state::{Firing, State};
use runguard_core::notice::{AlertState, Severity};
use runguard_core::shown::one_line;
use runguard_core::text::cut;
use runguard_core::time::Timestamp;
use serde::{Deserialize, Serialize};

/// Of a name that callers give, in an alert.
const MAX_SHOWN_CHARS: usize = 80;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alert {
    pub rule: String,
    /// The same for everything that is told of one trouble, and of nothing else. Contains no text of users.
    pub dedup_key: String,
    pub state: AlertState,
    pub severity: Severity,
    pub at: Timestamp,
    pub tenant: String,
    pub guard: String,
    pub reason: String,
    pub subject: String,
    pub session: String,
    /// The row that showed it.
    pub decision_id: String,
    pub title: String,
    pub text: String,
}

/// A name as people read it: short, and without what could steer what shows it.
fn shown(name: &str) -> String {
    one_line(cut(name, MAX_SHOWN_CHARS))
}

#[cfg(test)]
mod tests;
