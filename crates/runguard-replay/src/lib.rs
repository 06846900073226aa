//! Recorded agent runs against rules that stop them: what would have been saved on the runs that failed, and what would
//! have been lost on those that succeeded.
//!
//! [`format`] reads runs one by one, in whatever format they were recorded, as what [`trace`] says a run is; [`rules`] holds the
//! detectors under test, [`evaluate`] adds up what they did. [`replay`], [`tune`] and [`explain`] are the commands of these names,
//! [`html`] their reports; [`validate`] says whether thresholds chosen on some tasks hold on others.

pub mod caps;
pub mod evaluate;
pub mod explain;
pub mod format;
pub mod front;
pub mod html;
pub mod labels;
pub mod packed;
pub mod replay;
pub mod rules;
pub mod trace;
pub mod tune;
pub mod validate;
