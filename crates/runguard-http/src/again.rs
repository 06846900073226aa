//! When to ask somebody again who did not answer.

use std::time::{Duration, SystemTime};

/// However long somebody asks us to wait: an answer, and not for ever.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// How long to wait after so many failures before this one: anything up to a ceiling that doubles, because those who failed
/// together must not come back together. `random` is any number.
pub fn full_jitter(first: Duration, longest: Duration, failures: u32, random: u64) -> Duration {
    let ceiling = first.saturating_mul(2_u32.saturating_pow(failures)).min(longest).as_millis().max(1) as u64;
    Duration::from_millis(random % ceiling + 1)
}

/// What an answer says of it in its headers `retry-after-ms` and `retry-after`: milliseconds, seconds or a date. A date that
/// is past is no wait at all.
pub fn retry_after<'a>(header: impl Fn(&str) -> Option<&'a str>, now: SystemTime) -> Option<Duration> {
    let number = |name: &str| header(name).and_then(|text| text.trim().parse::<f64>().ok());
    let of_seconds = |seconds: f64| Duration::try_from_secs_f64(seconds).ok();
    let of_date = |text: &str| {
        let date = SystemTime::from(jiff::fmt::rfc2822::parse(text.trim()).ok()?.timestamp());
        Some(date.duration_since(now).unwrap_or_default())
    };
    let millis = number("retry-after-ms").and_then(|millis| of_seconds(millis / 1000.0));
    let wait = millis.or_else(|| number("retry-after").and_then(of_seconds)).or_else(|| of_date(header("retry-after")?));
    wait.map(|wait| wait.min(LONGEST_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_with_full_jitter_up_to_a_limit() {
        let (first, longest) = (Duration::from_secs(5), Duration::from_secs(60));
        let wait = |failures, random| full_jitter(first, longest, failures, random);
        let ceilings: Vec<u64> =
            (0..6).map(|failures| (0..100_000).map(|random| wait(failures, random)).max().unwrap().as_secs()).collect();
        assert_eq!(ceilings, [5, 10, 20, 40, 60, 60]);
        assert!(wait(u32::MAX, u64::MAX) <= longest);
        assert!(wait(3, 0) < Duration::from_millis(10), "the whole range is used");
    }

    #[test]
    fn an_answer_says_when_in_milliseconds_seconds_or_by_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let said =
            |pairs: &'static [(&str, &str)]| retry_after(|name| pairs.iter().find(|(own, _)| *own == name).map(|(_, text)| *text), now);
        assert_eq!(said(&[("retry-after", "7")]), Some(Duration::from_secs(7)));
        assert_eq!(said(&[("retry-after", "7"), ("retry-after-ms", "250")]), Some(Duration::from_millis(250)));
        assert_eq!(said(&[("retry-after", "99999999999")]), Some(LONGEST_RETRY_AFTER));
        assert_eq!(said(&[("retry-after", "Fri, 15 Jan 2027 08:00:30 GMT")]), Some(Duration::from_secs(30)));
        assert_eq!(said(&[("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT")]), Some(Duration::ZERO));
        for unclear in [&[("retry-after", "soon")][..], &[("retry-after", "-5")], &[("retry-after", "1e300")], &[]] {
            assert_eq!(said(unclear), None);
        }
    }
}
