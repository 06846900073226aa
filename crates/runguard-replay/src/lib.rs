//! Recorded agent runs against rules that stop them: what would have been saved on the runs that failed, and what would
//! have been lost on those that succeeded.
//!
//! [`trace`] reads runs one by one, [`rules`] holds the detectors under test, [`evaluate`] adds up what they did, and
//! [`tune`] says whether thresholds chosen on some tasks hold on others.

pub mod evaluate;
pub mod rules;
pub mod trace;
pub mod tune;
