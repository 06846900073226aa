//! What a mistyped name may have meant: one rule for settings, fields, parameters and the names of things. Models' names are long and alike:
//! the table of prices looks for those in its own way.

/// The known name nearest to a mistyped one, if it is near enough to be worth naming.
pub fn closest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // What is that long is no slip of the finger, and would take its time.
    if name.len() > 64 {
        return None;
    }
    let (distance, best) =
        known.map(|candidate| (strsim::levenshtein(name, candidate), candidate)).min_by_key(|(distance, _)| *distance)?;
    // Of two short words half may differ and they are others: `on` is no `off`.
    let is_slip = distance <= 2 && distance * 2 <= name.len().max(best.len());
    (is_slip || distance * 3 <= best.len()).then_some(best)
}

/// A sentence's end for a name that is not among the known ones: the one that was meant, or all of them.
pub fn hint<'a>(name: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    closest(name, known.clone())
        .map_or_else(|| format!("known are {}", known.collect::<Vec<_>>().join(", ")), |near| format!("did you mean `{near}`?"))
}

/// What a reader of values says is wrong, in words of people who write settings: the name that was meant, where one was, and what belongs
/// there instead of what a compiler calls it.
pub fn told(message: &str) -> String {
    const TYPES: [(&str, &[&str]); 4] = [
        ("a whole number from 0", &["u8", "u16", "u32", "u64", "usize"]),
        ("a whole number", &["i8", "i16", "i32", "i64"]),
        ("a number", &["f32", "f64"]),
        ("a list", &["a sequence"]),
    ];
    let mut words = message.split('`').skip(1).step_by(2);
    match (message.split_once(", expected "), words.next()) {
        (Some((unknown, _)), Some(name)) if message.starts_with("unknown ") => {
            format!("{}; {}", unknown.replacen("unknown variant", "unknown value", 1), hint(name, words))
        }
        (Some((found, wanted)), _) => {
            let known = TYPES.into_iter().find(|(_, names)| names.contains(&wanted)).map_or(wanted, |(words, _)| words);
            format!("{found}, expected {known}")
        }
        (None, _) => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_is_told_from_another_word() {
        let known = ["max_steps", "timeout"];
        assert_eq!(closest("max_step", known.into_iter()), Some("max_steps"));
        assert_eq!(closest("colour", known.into_iter()), None);
        assert_eq!(closest("on", ["off", "observe", "enforce"].into_iter()), None);
        assert_eq!(closest("of", ["off", "observe", "enforce"].into_iter()), Some("off"));
        assert_eq!(closest(&"x".repeat(65), known.into_iter()), None);
        assert_eq!(hint("time_out", known.into_iter()), "did you mean `timeout`?");
        assert_eq!(hint("colour", known.into_iter()), "known are max_steps, timeout");
    }

    #[test]
    fn what_is_wrong_is_told_without_names_of_types() {
        assert_eq!(told("invalid type: string \"soon\", expected u32"), "invalid type: string \"soon\", expected a whole number from 0");
        assert_eq!(told("invalid type: boolean `true`, expected f64"), "invalid type: boolean `true`, expected a number");
        assert_eq!(
            told("unknown variant `enforced`, expected one of `off`, `observe`, `enforce`"),
            "unknown value `enforced`; did you mean `enforce`?"
        );
        assert_eq!(told("unknown field `x`, expected `name` or `age`"), "unknown field `x`; known are name, age");
        assert_eq!(told("must be at least 16"), "must be at least 16");
    }
}
