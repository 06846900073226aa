//! What a mistyped name may have meant: one rule for settings, fields, parameters and the names of things.

/// The known name nearest to a mistyped one, if it is near enough to be worth naming.
pub fn closest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // What is that long is no slip of the finger, and would take its time.
    if name.len() > 64 {
        return None;
    }
    let (distance, best) =
        known.map(|candidate| (strsim::levenshtein(name, candidate), candidate)).min_by_key(|(distance, _)| *distance)?;
    (distance <= 2 || distance * 3 <= best.len()).then_some(best)
}

/// A sentence's end for a name that is not among the known ones: the one that was meant, or all of them.
pub fn hint<'a>(name: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    closest(name, known.clone())
        .map_or_else(|| format!("known are {}", known.collect::<Vec<_>>().join(", ")), |near| format!("did you mean `{near}`?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_is_told_from_another_word() {
        let known = ["max_steps", "timeout"];
        assert_eq!(closest("max_step", known.into_iter()), Some("max_steps"));
        assert_eq!(closest("colour", known.into_iter()), None);
        assert_eq!(closest(&"x".repeat(65), known.into_iter()), None);
        assert_eq!(hint("time_out", known.into_iter()), "did you mean `timeout`?");
        assert_eq!(hint("colour", known.into_iter()), "known are max_steps, timeout");
    }
}
