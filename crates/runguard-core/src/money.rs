//! Whole nano-dollars.
//!
//! Money is summed a million times a day in small steps, and a float loses some of it on the way: a million times 0.1 cent
//! is 1000.0000000167 dollars there. Integers lose nothing. A nano-dollar is fine enough for a single token of the cheapest
//! model, and an `i64` of them holds nine billion dollars.
//!
//! There is no negative money here. What remains of a limit is zero when it is used up, and a cost below zero is a mistake
//! of the caller, refused where it enters.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::iter::Sum;
use std::str::FromStr;

const NANOS_PER_DOLLAR: i64 = 1_000_000_000;
const DECIMALS: usize = 9;

/// An amount of money, from nothing to nine billion dollars, exact to the nano-dollar. Serialised as whole nano-dollars.
///
/// ```
/// use runguard_core::money::NanoDollars;
///
/// let step = NanoDollars::from_dollars(0.001)?;
/// let million: NanoDollars = std::iter::repeat_n(step, 1_000_000).sum();
/// assert_eq!(million, NanoDollars::parse("1000")?);
/// assert_eq!(step.to_string(), "$0.001");
/// assert_eq!(NanoDollars::parse("$1.234567")?.to_string(), "$1.234567");
/// assert!(NanoDollars::from_dollars(f64::NAN).is_err());
/// # Ok::<(), runguard_core::money::MoneyError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "i64", into = "i64")]
pub struct NanoDollars(i64);

/// Why an amount was refused.
///
/// ```
/// use runguard_core::money::{MoneyError, NanoDollars};
///
/// assert_eq!(NanoDollars::from_dollars(-1.0), Err(MoneyError::Negative));
/// assert_eq!(NanoDollars::parse("five"), Err(MoneyError::NotANumber));
/// assert_eq!(NanoDollars::parse("0.0000000001"), Err(MoneyError::TooPrecise));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MoneyError {
    /// NaN, or a text that is no decimal number.
    #[error("this is not an amount of money; give dollars as a decimal number, such as 0.25")]
    NotANumber,
    /// It is no finite number.
    #[error("an amount of money cannot be infinite; leave the limit out to have none")]
    Infinite,
    /// It is below nothing.
    #[error("an amount of money cannot be negative; costs are recorded as positive dollars")]
    Negative,
    /// More than [`NanoDollars::MAX`].
    #[error("this is more than nine billion dollars, the most that can be counted; is it in the right unit?")]
    TooLarge,
    /// A text with a digit below the nano-dollar, which could not be kept exactly.
    #[error("this amount has digits below a billionth of a dollar; round it to nine decimals")]
    TooPrecise,
}

impl NanoDollars {
    /// Nothing.
    pub const ZERO: Self = Self(0);
    /// More than anybody has.
    pub const MAX: Self = Self(i64::MAX);

    /// From whole nano-dollars.
    pub const fn from_nanos(nanos: i64) -> Result<Self, MoneyError> {
        if nanos < 0 { Err(MoneyError::Negative) } else { Ok(Self(nanos)) }
    }

    /// In billionths of a dollar.
    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    /// From dollars, rounded to the nearest nano-dollar (up when two are as near).
    ///
    /// The rounding is done on the exact value of the float, in integers: a product with a billion would itself be rounded.
    pub fn from_dollars(dollars: f64) -> Result<Self, MoneyError> {
        if dollars.is_nan() {
            return Err(MoneyError::NotANumber);
        }
        if dollars < 0.0 {
            return Err(MoneyError::Negative);
        }
        if dollars.is_infinite() {
            return Err(MoneyError::Infinite);
        }
        if dollars > Self::MAX.as_dollars() {
            return Err(MoneyError::TooLarge);
        }
        // A finite float is `mantissa * 2^exponent`; subnormal ones are far below a nano-dollar.
        let bits = dollars.to_bits();
        let exponent = ((bits >> 52) & 0x7ff) as i32 - 1075;
        let mantissa = u128::from((bits & ((1 << 52) - 1)) | (1 << 52));
        let scaled = mantissa * NANOS_PER_DOLLAR as u128;
        let nanos = match exponent {
            0.. => scaled << exponent,
            -127..=-1 => (scaled + (1 << (-exponent - 1))) >> -exponent,
            _ => 0,
        };
        i64::try_from(nanos).map(Self).map_err(|_| MoneyError::TooLarge)
    }

    /// A limit from dollars, rounded like an amount. One that is above nothing stays above nothing, however small it is: where nothing means
    /// no limit, a limit would be lifted by being rounded away.
    ///
    /// ```
    /// use runguard_core::money::NanoDollars;
    ///
    /// assert_eq!(NanoDollars::limit_from_dollars(1e-12), NanoDollars::from_nanos(1));
    /// assert_eq!(NanoDollars::limit_from_dollars(0.0), Ok(NanoDollars::ZERO));
    /// ```
    pub fn limit_from_dollars(dollars: f64) -> Result<Self, MoneyError> {
        let limit = Self::from_dollars(dollars)?;
        Ok(if limit.is_zero() && dollars > 0.0 { Self(1) } else { limit })
    }

    /// From decimal text, exactly or not at all: `"0.25"`, `"$3"`, `"3e-06"`. No float on the way.
    pub fn parse(text: &str) -> Result<Self, MoneyError> {
        let text = text.trim();
        let (number, exponent) = match text.find(['e', 'E']) {
            Some(at) => (&text[..at], text[at + 1..].parse::<i16>().map_err(|_| MoneyError::NotANumber)?),
            None => (text, 0),
        };
        let (negative, number) = number.strip_prefix('-').map_or((false, number), |rest| (true, rest));
        let number = number.strip_prefix('+').unwrap_or(number);
        let number = number.strip_prefix('$').unwrap_or(number);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.len() + fraction.len() == 0 || !whole.bytes().chain(fraction.bytes()).all(|byte| byte.is_ascii_digit()) {
            return Err(MoneyError::NotANumber);
        }
        // The digit at `place` is worth `10^place` nano-dollars.
        let highest_place = whole.len() as i64 - 1 + i64::from(exponent) + DECIMALS as i64;
        let mut nanos: i64 = 0;
        for (position, digit) in whole.bytes().chain(fraction.bytes()).map(|byte| i64::from(byte - b'0')).enumerate() {
            if digit == 0 {
                continue;
            }
            let place = highest_place - position as i64;
            if place < 0 {
                return Err(MoneyError::TooPrecise);
            }
            let value = u32::try_from(place).ok().and_then(|place| 10_i64.checked_pow(place)).and_then(|worth| worth.checked_mul(digit));
            nanos = value.and_then(|value| nanos.checked_add(value)).ok_or(MoneyError::TooLarge)?;
        }
        if negative && nanos > 0 { Err(MoneyError::Negative) } else { Ok(Self(nanos)) }
    }

    /// As a float, for people and for languages without integers of this size. Not for sums.
    pub fn as_dollars(self) -> f64 {
        self.0 as f64 / NANOS_PER_DOLLAR as f64
    }

    /// Whether it is nothing.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// `None` above [`Self::MAX`].
    pub const fn checked_add(self, other: Self) -> Option<Self> {
        match self.0.checked_add(other.0) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// `None` below zero.
    pub const fn checked_sub(self, other: Self) -> Option<Self> {
        if other.0 > self.0 { None } else { Some(Self(self.0 - other.0)) }
    }

    /// `None` above [`Self::MAX`].
    pub fn checked_mul(self, times: u64) -> Option<Self> {
        i64::try_from(times).ok().and_then(|times| self.0.checked_mul(times)).map(Self)
    }

    /// The sum, or the most there is.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// Zero when `other` is larger.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        match self.checked_sub(other) {
            Some(rest) => rest,
            None => Self::ZERO,
        }
    }
}

/// Stays at [`NanoDollars::MAX`] when the sum is larger.
impl Sum for NanoDollars {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::ZERO, Self::saturating_add)
    }
}

impl TryFrom<i64> for NanoDollars {
    type Error = MoneyError;

    fn try_from(nanos: i64) -> Result<Self, MoneyError> {
        Self::from_nanos(nanos)
    }
}

impl From<NanoDollars> for i64 {
    fn from(amount: NanoDollars) -> Self {
        amount.0
    }
}

impl FromStr for NanoDollars {
    type Err = MoneyError;

    fn from_str(text: &str) -> Result<Self, MoneyError> {
        Self::parse(text)
    }
}

/// All digits that count, and at least cents: `$5.00`, `$0.001`.
impl fmt::Display for NanoDollars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fraction = format!("{:0DECIMALS$}", self.0 % NANOS_PER_DOLLAR);
        let digits = fraction.trim_end_matches('0').len().max(2);
        write!(f, "${}.{}", self.0 / NANOS_PER_DOLLAR, &fraction[..digits])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn nanos(amount: i64) -> NanoDollars {
        NanoDollars::from_nanos(amount).unwrap()
    }

    #[test]
    fn floats_are_rounded_to_the_nearest_nano_dollar() {
        for (dollars, expected) in [
            (0.0, 0),
            (-0.0, 0),
            (0.1, 100_000_000),
            (0.001, 1_000_000),
            (1.234_567_891_4, 1_234_567_891),
            (1.234_567_891_6, 1_234_567_892),
            (0.4e-9, 0),
            (0.6e-9, 1),
            (f64::MIN_POSITIVE, 0),
            (5e-324, 0),
            (1e9, 1_000_000_000_000_000_000),
            (4_503_599_627.370_497, 4_503_599_627_370_496_750),
        ] {
            assert_eq!(NanoDollars::from_dollars(dollars), Ok(nanos(expected)), "{dollars}");
        }
    }

    #[test]
    fn what_is_no_cost_is_refused_with_its_reason() {
        assert_eq!(NanoDollars::from_dollars(f64::NAN), Err(MoneyError::NotANumber));
        assert_eq!(NanoDollars::from_dollars(f64::INFINITY), Err(MoneyError::Infinite));
        assert_eq!(NanoDollars::from_dollars(f64::NEG_INFINITY), Err(MoneyError::Negative));
        assert_eq!(NanoDollars::from_dollars(-1e-12), Err(MoneyError::Negative));
        assert_eq!(NanoDollars::from_dollars(1e10), Err(MoneyError::TooLarge));
        assert_eq!(NanoDollars::from_dollars(f64::MAX), Err(MoneyError::TooLarge));
        assert_eq!(NanoDollars::from_dollars(9_223_372_036.854_776), Err(MoneyError::TooLarge), "rounds to 2^63");
        assert_eq!(NanoDollars::from_nanos(-1), Err(MoneyError::Negative));
    }

    #[test]
    fn text_is_read_exactly_or_refused() {
        for (text, expected) in [
            ("0", 0),
            ("-0", 0),
            ("3", 3_000_000_000),
            ("$0.25", 250_000_000),
            (" 1. ", 1_000_000_000),
            (".5", 500_000_000),
            ("3e-06", 3_000),
            ("3.75E-6", 3_750),
            ("1.000000000000", 1_000_000_000),
            ("0e30000", 0),
            ("9223372036.854775807", i64::MAX),
            ("0.000000001", 1),
        ] {
            assert_eq!(NanoDollars::parse(text), Ok(nanos(expected)), "{text}");
        }
        for (text, error) in [
            ("", MoneyError::NotANumber),
            (".", MoneyError::NotANumber),
            ("$", MoneyError::NotANumber),
            ("1,5", MoneyError::NotANumber),
            ("1e", MoneyError::NotANumber),
            ("nan", MoneyError::NotANumber),
            ("1.2.3", MoneyError::NotANumber),
            ("٣", MoneyError::NotANumber),
            ("-1", MoneyError::Negative),
            ("9223372036.854775808", MoneyError::TooLarge),
            ("1e300", MoneyError::TooLarge),
            ("1e-10", MoneyError::TooPrecise),
        ] {
            assert_eq!(NanoDollars::parse(text), Err(error), "{text}");
        }
    }

    #[test]
    fn amounts_are_shown_with_cents_and_every_digit_that_counts() {
        for (amount, shown) in [(0, "$0.00"), (5_000_000_000, "$5.00"), (1_234_567_000, "$1.234567"), (1, "$0.000000001")] {
            assert_eq!(nanos(amount).to_string(), shown);
        }
    }

    #[test]
    fn arithmetic_stays_between_nothing_and_the_largest_amount() {
        assert_eq!(nanos(1).checked_sub(nanos(2)), None);
        assert_eq!(nanos(1).saturating_sub(nanos(2)), NanoDollars::ZERO);
        assert_eq!(NanoDollars::MAX.checked_add(nanos(1)), None);
        assert_eq!(NanoDollars::MAX.saturating_add(nanos(1)), NanoDollars::MAX);
        assert_eq!(nanos(3).checked_mul(4), Some(nanos(12)));
        assert_eq!(nanos(3).checked_mul(u64::MAX), None);
    }

    #[test]
    fn a_stored_amount_comes_back_and_a_negative_one_does_not() {
        assert_eq!(serde_json::to_string(&nanos(12)).unwrap(), "12");
        assert_eq!(serde_json::from_str::<NanoDollars>("12").unwrap(), nanos(12));
        assert!(serde_json::from_str::<NanoDollars>("-12").is_err());
    }

    proptest! {
        #[test]
        fn text_and_back(amount in 0..=i64::MAX) {
            prop_assert_eq!(NanoDollars::parse(&nanos(amount).to_string()), Ok(nanos(amount)));
        }

        /// Up to four million dollars a float has digits enough for every nano-dollar.
        #[test]
        fn float_and_back(amount in 0..4_000_000_000_000_000_i64) {
            prop_assert_eq!(NanoDollars::from_dollars(nanos(amount).as_dollars()), Ok(nanos(amount)));
        }

        #[test]
        fn any_text_gets_an_answer(text in "\\PC*") {
            let _ = NanoDollars::parse(&text);
        }
    }
}
