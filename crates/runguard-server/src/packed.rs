//! Texts inside the binary that `build.rs` packed, and who takes them as they are.

use flate2::read::GzDecoder;
use hyper::header::HeaderValue;
use std::io::Read;

/// A text in the form of gzip.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packed(pub(crate) &'static [u8]);

impl Packed {
    /// What was packed. The build wrote it, and a test reads all of it.
    pub(crate) fn text(self) -> String {
        let mut text = String::new();
        let _ = GzDecoder::new(self.0).read_to_string(&mut text);
        text
    }
}

/// Whether an answer may be sent in this form (RFC 9110, 12.5.3): it is named, or stands for all, and not with a weight of nothing.
pub(crate) fn takes_gzip(accepted: Option<&HeaderValue>) -> bool {
    let codings = accepted.and_then(|codings| codings.to_str().ok()).unwrap_or_default();
    let weight_of = |name: &str| {
        let mut entries = codings.split(',').map(|entry| entry.split_once(';').unwrap_or((entry, "")));
        let (_, parameter) = entries.find(|(coding, _)| coding.trim().eq_ignore_ascii_case(name))?;
        let weight = parameter.trim().strip_prefix("q=").or(parameter.trim().strip_prefix("Q="));
        Some(weight.map_or(1.0, |weight| weight.trim().parse::<f32>().unwrap_or(0.0)))
    };
    weight_of("gzip").or_else(|| weight_of("*")).is_some_and(|weight| weight > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_sent_to_those_who_take_it() {
        let takes = |codings: &'static str| takes_gzip(Some(&HeaderValue::from_static(codings)));
        assert!(takes("gzip") && takes("br, GZIP;q=0.5") && takes("*") && takes("deflate, gzip ; q=1.0"));
        assert!(!takes("") && !takes("br") && !takes("gzip;q=0") && !takes("*, gzip;q=0.000") && !takes("*;q=0") && !takes_gzip(None));
        assert!(takes("gzip, *;q=0") && !takes("x-gzip"));
    }
}
