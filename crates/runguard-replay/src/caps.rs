//! Ceilings from what successful runs really used.
//!
//! A ceiling is no sign of a loop: it is what a run may cost at the worst. So it follows from the runs that were worth their
//! money, high among them and with room above. Percentiles are exact: one number a run is kept, nothing of the run itself.

use crate::evaluate::{Share, Z};
use runguard_core::detect::stall::Long;
use serde::Serialize;

/// Columns of the plots of a distribution.
pub const COLUMNS: usize = 24;

/// What can be capped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Amount {
    Dollars,
    Tokens,
    Steps,
    Minutes,
}

impl Amount {
    pub const ALL: [Self; 4] = [Self::Dollars, Self::Tokens, Self::Steps, Self::Minutes];

    pub const fn code(self) -> &'static str {
        match self {
            Self::Dollars => "dollars",
            Self::Tokens => "tokens",
            Self::Steps => "steps",
            Self::Minutes => "minutes",
        }
    }

    /// A number people would write: up, to two digits, and whole where parts mean nothing.
    fn rounded(self, value: f64) -> f64 {
        let unit = 10_f64.powf(value.max(1e-9).log10().floor() - 1.0);
        // A third digit that is only noise of the division must not round up.
        let two_digits = ((value / unit) - 1e-9).ceil() * unit;
        match self {
            Self::Dollars => (two_digits * 1e6).round() / 1e6,
            Self::Tokens => two_digits.max(value.ceil()).round(),
            Self::Steps | Self::Minutes => (value - 1e-9).ceil(),
        }
    }
}

/// What one run used; `None` where its source does not say.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Used {
    pub success: Option<bool>,
    pub amount: f64,
}

/// A value so many per cent of the runs stay at or below, with the 95 % interval that the order of the runs gives.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Quantile {
    pub percentile: f64,
    pub value: f64,
    pub low: f64,
    pub high: f64,
}

/// How a cap is made: so high a percentile, times so much.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Room {
    pub percentile: f64,
    pub factor: f64,
}

/// What was used, and the ceiling that follows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cap {
    pub amount: Amount,
    /// Whether the percentiles are of successful runs; otherwise of all, because of none it is known.
    pub of_successful: bool,
    /// Runs the percentiles are of.
    pub runs: u64,
    pub quantiles: Vec<Quantile>,
    pub most: f64,
    /// The percentile it was made from: a lower one than asked for when there are too few runs for that.
    pub percentile: Option<f64>,
    pub factor: f64,
    /// `None`: too few runs.
    pub cap: Option<f64>,
    /// Runs that are still needed for one.
    pub runs_missing: u64,
    /// Runs over the cap.
    pub successful_over: Share,
    pub failed_over: Share,
    /// What failed runs used beyond the cap, and in all.
    pub failed_beyond: f64,
    pub failed_in_all: f64,
    /// What caps without room would come to, as far as there are runs enough.
    pub tighter: Vec<Tighter>,
    /// After how much a run is a long one of its kind, in steps or tokens: no cap, but a sign beside others. Of steps, those that are calls.
    pub long: Option<f64>,
    pub distribution: Distribution,
}

/// A cap at a percentile itself, with its price.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Tighter {
    pub percentile: f64,
    pub cap: f64,
    pub successful_over: Share,
    pub failed_over: Share,
    pub failed_beyond: f64,
}

/// How many runs used how much; each column reaches so many times further than the last.
#[derive(Debug, Clone, PartialEq, Serialize, Default)]
pub struct Distribution {
    pub from: f64,
    pub to: f64,
    pub successful: Vec<u64>,
    pub failed: Vec<u64>,
    pub unknown: Vec<u64>,
}

/// Too few runs for any percentile that means something.
const LEAST: f64 = 0.95;
/// Percentiles whose own price is shown beside the cap with room.
const TIGHTER: [f64; 2] = [0.95, 0.99];

/// The cap of an amount, or `None` where no source tells of it.
pub fn cap(amount: Amount, used: &[Used], room: Room) -> Option<Cap> {
    let used: Vec<Used> = used.iter().copied().filter(|used| used.amount > 0.0 && used.amount.is_finite()).collect();
    if used.is_empty() {
        return None;
    }
    let amounts = |wanted: fn(Option<bool>) -> bool| {
        let mut amounts: Vec<f64> = used.iter().filter(|used| wanted(used.success)).map(|used| used.amount).collect();
        amounts.sort_by(f64::total_cmp);
        amounts
    };
    let of_successful = used.iter().any(|used| used.success.is_some());
    let measured = if of_successful { amounts(|success| success == Some(true)) } else { amounts(|_| true) };
    let (successful, failed) = (amounts(|success| success == Some(true)), amounts(|success| success == Some(false)));
    let runs = measured.len();
    // A percentile is of some use when at least one run lies above it.
    let enough = |percentile: f64| runs as f64 * (1.0 - percentile) >= 1.0 - 1e-9;
    let percentile = [room.percentile, room.percentile.min(LEAST)].into_iter().find(|percentile| enough(*percentile));
    let cap =
        percentile.and_then(|percentile| quantile(&measured, percentile)).map(|quantile| amount.rounded(quantile.value * room.factor));
    let over = |amounts: &[f64], cap: Option<f64>| {
        let over = cap.map_or(0, |cap| amounts.iter().filter(|amount| **amount > cap).count());
        Share::of(over as u64, amounts.len() as u64)
    };
    let of_any = || used.iter().map(|used| used.amount.round() as u64);
    let long = match amount {
        Amount::Steps => Long::calls_of(of_any()),
        Amount::Tokens => Long::tokens_of(of_any()),
        Amount::Dollars | Amount::Minutes => None,
    };
    let long = long.map(|long| long as f64);
    let beyond = |cap: Option<f64>| cap.map_or(0.0, |cap| failed.iter().map(|amount| (amount - cap).max(0.0)).sum());
    let tighter = TIGHTER.into_iter().filter(|percentile| enough(*percentile)).filter_map(|percentile| {
        let cap = amount.rounded(quantile(&measured, percentile)?.value);
        let (successful_over, failed_over) = (over(&successful, Some(cap)), over(&failed, Some(cap)));
        Some(Tighter { percentile, cap, successful_over, failed_over, failed_beyond: beyond(Some(cap)) })
    });
    Some(Cap {
        amount,
        of_successful,
        runs: runs as u64,
        quantiles: [0.5, 0.9, 0.95, 0.99].into_iter().filter_map(|percentile| quantile(&measured, percentile)).collect(),
        most: measured.last().copied().unwrap_or(0.0),
        percentile,
        factor: room.factor,
        cap,
        runs_missing: if percentile.is_some() {
            0
        } else {
            ((1.0 / (1.0 - room.percentile.min(LEAST))).round() as u64).saturating_sub(runs as u64)
        },
        successful_over: over(&successful, cap),
        failed_over: over(&failed, cap),
        failed_beyond: beyond(cap),
        failed_in_all: failed.iter().sum(),
        tighter: tighter.collect(),
        long,
        distribution: distribution(&used),
    })
}

/// Of sorted values.
fn quantile(sorted: &[f64], percentile: f64) -> Option<Quantile> {
    let count = sorted.len() as f64;
    let at = |rank: f64| sorted.get((rank.ceil().max(1.0) as usize - 1).min(sorted.len().saturating_sub(1))).copied();
    let (middle, half) = (count * percentile, Z * (count * percentile * (1.0 - percentile)).sqrt());
    Some(Quantile { percentile, value: at(middle - 1e-9)?, low: at(middle - half)?, high: at(middle + half + 1.0)? })
}

fn distribution(used: &[Used]) -> Distribution {
    let least = used.iter().map(|used| used.amount).fold(f64::INFINITY, f64::min);
    let most = used.iter().map(|used| used.amount).fold(0.0, f64::max);
    let (from, to) = (least, if most > least { most } else { least * 2.0 });
    let mut distribution = Distribution { from, to, ..Distribution::default() };
    let columns = (to / from).ln();
    for (counts, wanted) in
        [(&mut distribution.successful, Some(true)), (&mut distribution.failed, Some(false)), (&mut distribution.unknown, None)]
    {
        *counts = vec![0; COLUMNS];
        for used in used.iter().filter(|used| used.success == wanted) {
            let column = ((used.amount / from).ln() / columns * COLUMNS as f64) as usize;
            counts[column.min(COLUMNS - 1)] += 1;
        }
    }
    distribution
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Room = Room { percentile: 0.99, factor: 1.5 };

    fn used(success: Option<bool>, amounts: impl IntoIterator<Item = u32>) -> Vec<Used> {
        amounts.into_iter().map(|amount| Used { success, amount: f64::from(amount) }).collect()
    }

    #[test]
    fn a_cap_is_a_percentile_of_what_successful_runs_used_with_room() {
        let mut runs = used(Some(true), 1..=200);
        runs.extend(used(Some(false), [10, 400, 1000]));
        runs.extend(used(None, [5000]));
        let cap = cap(Amount::Steps, &runs, ROOM).unwrap();
        let values: Vec<f64> = cap.quantiles.iter().map(|quantile| quantile.value).collect();
        assert_eq!(values, [100.0, 180.0, 190.0, 198.0]);
        assert_eq!((cap.runs, cap.cap, cap.percentile, cap.most), (200, Some(297.0), Some(0.99), 200.0));
        assert_eq!((cap.successful_over.value, cap.failed_beyond, cap.failed_in_all), (Some(0.0), 103.0 + 703.0, 1410.0));
        assert!((cap.failed_over.value.unwrap() - 2.0 / 3.0).abs() < 1e-12);
        let tighter: Vec<_> =
            cap.tighter.iter().map(|tighter| (tighter.cap, tighter.successful_over.value, tighter.failed_beyond)).collect();
        assert_eq!(tighter, [(190.0, Some(0.05), 210.0 + 810.0), (198.0, Some(0.01), 202.0 + 802.0)]);
        let ninety_five = cap.quantiles[2];
        assert_eq!((ninety_five.low, ninety_five.high), (184.0, 198.0), "190 ± 1.96 × √(200 × 0.95 × 0.05)");
        let distribution = cap.distribution;
        let sum = |counts: &[u64]| counts.iter().sum::<u64>();
        assert_eq!((sum(&distribution.successful), sum(&distribution.failed), sum(&distribution.unknown)), (200, 3, 1));
        assert_eq!((distribution.from, distribution.to, distribution.unknown[COLUMNS - 1]), (1.0, 5000.0, 1));
    }

    #[test]
    fn with_few_runs_a_lower_percentile_or_none() {
        let of = |count: u32| cap(Amount::Steps, &used(Some(true), 1..=count), ROOM).unwrap();
        assert_eq!((of(100).percentile, of(99).percentile, of(20).percentile), (Some(0.99), Some(0.95), Some(0.95)));
        assert_eq!((of(19).percentile, of(19).cap, of(19).runs_missing), (None, None, 1));
        assert_eq!(of(20).cap, Some(29.0), "19 × 1.5, up");
        let none_succeeded = cap(Amount::Steps, &used(Some(false), 1..=50), ROOM).unwrap();
        assert_eq!((none_succeeded.cap, none_succeeded.runs, none_succeeded.runs_missing), (None, 0, 20));
    }

    #[test]
    fn where_success_is_not_known_all_runs_count_and_it_is_said() {
        let cap = cap(Amount::Tokens, &used(None, 1..=100), ROOM).unwrap();
        assert_eq!((cap.of_successful, cap.cap), (false, Some(150.0)));
        assert!(super::cap(Amount::Dollars, &used(Some(true), [0, 0]), ROOM).is_none(), "nobody tells of it");
    }

    #[test]
    fn what_is_long_goes_by_all_runs_whatever_became_of_them() {
        let long = |runs: &[Used]| cap(Amount::Steps, runs, ROOM).unwrap().long;
        let mut runs = used(Some(true), 1..=50);
        assert_eq!(long(&runs), Some(50.0));
        runs.extend(used(Some(false), 51..=90));
        runs.extend(used(None, 91..=100));
        assert_eq!(long(&runs), Some(99.0));
        assert_eq!((long(&used(Some(false), 1..=30)), long(&used(None, 1..=29))), (Some(30.0), None), "of few it is not known");
        assert_eq!(cap(Amount::Tokens, &used(None, 1..=100), ROOM).unwrap().long, Some(130.0), "two fifths more, to two digits");
    }

    #[test]
    fn caps_are_numbers_people_would_write() {
        let rounded = [
            Amount::Dollars.rounded(0.043_71),
            Amount::Dollars.rounded(1.5),
            Amount::Tokens.rounded(1_234_567.0),
            Amount::Steps.rounded(29.1),
            Amount::Minutes.rounded(12.0),
        ];
        assert_eq!(rounded.map(|value| value.to_string()), ["0.044", "1.5", "1300000", "30", "12"]);
    }
}
