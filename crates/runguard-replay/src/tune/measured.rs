//! What a way to stop costs and saves. Runs of one task resemble each other, so shares are those of tasks.

use super::Save;
use super::gathered::{Amounts, Record, Stop};
use crate::evaluate::{Share, Z};
use serde::Serialize;
use std::collections::HashMap;

/// What stopping did to some runs.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Measured {
    pub successful: u64,
    /// Successful runs that were stopped.
    pub false_stops: u64,
    /// Of them those after which the run did something.
    pub costly_stops: u64,
    pub false_stop_rate: Share,
    pub lost: Amounts,
    pub failed: u64,
    pub stopped: u64,
    pub failed_in_all: Amounts,
    pub saved: Amounts,
    /// Of what is to be saved.
    pub saved_share: Share,
    pub unknown: u64,
    pub unknown_stopped: u64,
    pub unknown_after: Amounts,
}

/// Sums of a task: part and whole, for each of two shares.
pub(super) type Task = [(f64, f64); 2];

pub(super) fn measure<'a>(records: impl Iterator<Item = &'a Record>, save: Save, stop: impl Fn(&Record) -> Option<Stop>) -> Measured {
    let mut measured = Measured::default();
    let mut tasks: HashMap<u64, Task> = HashMap::new();
    for record in records {
        let stop = stop(record);
        let after = stop.map(Stop::after).unwrap_or_default();
        let stopped = u64::from(stop.is_some());
        let task = tasks.entry(record.task).or_default();
        match record.success {
            Some(true) => {
                measured.successful += 1;
                measured.false_stops += stopped;
                measured.costly_stops += u64::from(after.steps > 0);
                measured.lost.add(after);
                task[0].0 += stopped as f64;
                task[0].1 += 1.0;
            }
            Some(false) => {
                measured.failed += 1;
                measured.stopped += stopped;
                measured.failed_in_all.add(record.all);
                measured.saved.add(after);
                task[1].0 += after.of(save);
                task[1].1 += record.all.of(save);
            }
            None => {
                measured.unknown += 1;
                measured.unknown_stopped += stopped;
                measured.unknown_after.add(after);
            }
        }
    }
    measured.false_stop_rate = share_of_runs(tasks.values().map(|task| task[0]));
    measured.saved_share = share_of_amounts(tasks.values().map(|task| task[1]));
    measured
}

/// The variance of the share, its value and the whole, were tasks drawn and not runs.
pub(super) fn by_task(tasks: impl Iterator<Item = (f64, f64)>) -> Option<(f64, f64, f64)> {
    let tasks: Vec<(f64, f64)> = tasks.filter(|(_, whole)| *whole > 0.0).collect();
    let (part, whole) = tasks.iter().fold((0.0, 0.0), |sum, task| (sum.0 + task.0, sum.1 + task.1));
    if whole <= 0.0 {
        return None;
    }
    let value = part / whole;
    let residual: f64 = tasks.iter().map(|(part, whole)| (part - value * whole).powi(2)).sum();
    let count = tasks.len() as f64;
    let variance = if count > 1.0 { residual / (whole * whole) * count / (count - 1.0) } else { 1.0 };
    Some((value, whole, variance))
}

/// Wilson's interval, for as many runs as they are worth: those of one task count for less when they go alike.
pub(super) fn share_of_runs(tasks: impl Iterator<Item = (f64, f64)>) -> Share {
    let Some((value, whole, variance)) = by_task(tasks) else { return Share::default() };
    let alone = value * (1.0 - value) / whole;
    let worth = if alone > 0.0 { whole / (variance / alone).max(1.0) } else { whole };
    Share::of_weighted(value * worth, worth)
}

pub(super) fn share_of_amounts(tasks: impl Iterator<Item = (f64, f64)>) -> Share {
    let Some((value, _, variance)) = by_task(tasks) else { return Share::default() };
    let half = Z * variance.sqrt();
    Share { value: Some(value), low: (value - half).max(0.0), high: (value + half).min(1.0) }
}

/// Good runs needed for the interval to lie under the price, if such a share of them is stopped. `None`: none would do.
pub fn runs_needed(rate: f64, price: f64) -> Option<u64> {
    if rate >= price {
        return None;
    }
    let holds = |runs: u64| Share::of_weighted(rate * runs as f64, runs as f64).high <= price;
    let mut enough = 1_u64;
    while !holds(enough) {
        enough = enough.checked_mul(2)?;
    }
    let mut short = enough / 2;
    while enough - short > 1 {
        let middle = short + (enough - short) / 2;
        if holds(middle) {
            enough = middle;
        } else {
            short = middle;
        }
    }
    Some(enough)
}
