//! A regular expression from the settings.
//!
//! Linear time, bounded size, case-insensitive. `\b` is made ASCII: the Unicode form is a hundred times slower on
//! text that is not ASCII, and the values looked for (order numbers, dates, amounts) are ASCII: where a text has digits of another
//! script or wide signs, it is looked at as it would be in ASCII too.
//!
//! A compiled pattern is a thousand times the size of its text, and the same few stand in the settings of every tenant. So
//! whoever builds a policy compiles its patterns in one [`Patterns`]: each text once, and all of them within one bound.

use regex_automata::meta::{Config, Regex};
use regex_automata::util::syntax;
use runguard_core::fold;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Bytes of one pattern's text.
pub const MOST_SOURCE_BYTES: usize = 4096;
/// Patterns in one set of settings, each text counted once.
pub const MOST_PATTERNS: usize = 10_000;
/// Bytes that the patterns of one set of settings take, compiled.
pub const MOST_COMPILED_BYTES: usize = 64 << 20;
/// Bytes of one compiled pattern, as its compiler counts them.
const MOST_BYTES_OF_ONE: usize = 1 << 20;

/// An empty pattern is set to nothing: it switches a built-in one off.
#[derive(Clone)]
pub struct Pattern {
    source: Arc<str>,
    /// Put here by [`Patterns::compile`]; a pattern that nobody compiled compiles itself when it is first asked.
    regex: OnceLock<Option<Arc<Regex>>>,
}

/// Those of the program itself, by their text: they stand in every policy, so each is compiled once for all of them.
static BUILT_IN: Mutex<BTreeMap<Arc<str>, Option<Arc<Regex>>>> = Mutex::new(BTreeMap::new());

impl Pattern {
    /// Not compiled yet, and so not known to be a regular expression.
    pub(crate) fn of(source: &str) -> Self {
        Self { source: source.into(), regex: OnceLock::new() }
    }

    /// One of the program's own.
    pub(crate) fn built_in(source: &str) -> Self {
        let pattern = Self::of(source);
        BUILT_IN.lock().unwrap_or_else(PoisonError::into_inner).entry(pattern.source.clone()).or_default();
        pattern
    }

    pub fn is_set(&self) -> bool {
        !self.source.is_empty()
    }

    pub fn is_in(&self, text: &str) -> bool {
        let regex = self.regex.get_or_init(|| compile(&self.source).ok().flatten());
        let in_ascii = |regex: &Regex| matches!(fold::digits(text), Cow::Owned(folded) if regex.is_match(&folded));
        regex.as_ref().is_some_and(|regex| regex.is_match(text) || in_ascii(regex))
    }
}

/// `None` for the empty one.
fn compile(source: &str) -> Result<Option<Arc<Regex>>, String> {
    if source.is_empty() {
        return Ok(None);
    }
    let built_in = |regex: Option<&Arc<Regex>>| {
        let mut all = BUILT_IN.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.get_mut(source)?;
        if known.is_none() {
            *known = regex.cloned();
        }
        known.clone()
    };
    if let Some(regex) = built_in(None) {
        return Ok(Some(regex));
    }
    let regex = Arc::new(compile_anew(source)?);
    // Another may have been faster; then there is still only one.
    Ok(Some(built_in(Some(&regex)).unwrap_or(regex)))
}

fn compile_anew(source: &str) -> Result<Regex, String> {
    if source.len() > MOST_SOURCE_BYTES {
        return Err(format!("is {} bytes long; a pattern has at most {MOST_SOURCE_BYTES}", source.len()));
    }
    let limits = Config::new().nfa_size_limit(Some(MOST_BYTES_OF_ONE)).hybrid_cache_capacity(1 << 20);
    Regex::builder()
        .configure(limits)
        .syntax(syntax::Config::new().case_insensitive(true))
        .build(&with_ascii_boundaries(source))
        .map_err(|error| match error.syntax_error().map(ToString::to_string) {
            // Its last line says what is wrong; those before it repeat the pattern.
            Some(syntax) => format!("not a regular expression: {}", syntax.lines().last().unwrap_or_default().trim_start_matches("error: ")),
            None => format!(
                "not a regular expression that can be used: compiled it takes more than {MOST_BYTES_OF_ONE} bytes; fewer or shorter repetitions make it smaller"
            ),
        })
}

/// Compiled patterns by their text. Cloning it shares them.
#[derive(Debug, Clone, Default)]
pub struct Patterns {
    compiled: BTreeMap<Arc<str>, Arc<Regex>>,
    bytes: usize,
    given_up: Option<Arc<AtomicBool>>,
}

impl Patterns {
    /// From the moment the flag is true nothing is compiled any more.
    #[must_use]
    pub fn until(self, given_up: Arc<AtomicBool>) -> Self {
        Self { given_up: Some(given_up), ..self }
    }

    /// How many there are, each text counted once.
    pub fn len(&self) -> usize {
        self.compiled.len()
    }

    pub fn is_empty(&self) -> bool {
        self.compiled.is_empty()
    }

    /// Gives a pattern its compiled form, shared with all that have the same text.
    pub(crate) fn compile(&mut self, pattern: &mut Pattern) -> Result<(), String> {
        if let Some((source, regex)) = self.compiled.get_key_value(&pattern.source) {
            *pattern = Pattern { source: source.clone(), regex: OnceLock::from(Some(regex.clone())) };
            return Ok(());
        }
        if self.given_up.as_ref().is_some_and(|given_up| given_up.load(Ordering::Relaxed)) {
            return Err("was not compiled: nobody waits for it any more".into());
        }
        let regex = compile(&pattern.source)?;
        if let Some(regex) = &regex {
            let bytes = self.bytes.saturating_add(regex.memory_usage());
            if bytes > MOST_COMPILED_BYTES || self.compiled.len() >= MOST_PATTERNS {
                return Err(format!(
                    "is one too many: all patterns together may be {MOST_PATTERNS} and take {} MB compiled. Counted classes such as \\w{{50}} take most; [0-9a-z] takes less than \\w",
                    MOST_COMPILED_BYTES >> 20
                ));
            }
            self.bytes = bytes;
            self.compiled.insert(pattern.source.clone(), regex.clone());
        }
        pattern.regex = OnceLock::from(regex);
        Ok(())
    }
}

/// `\b` becomes `(?-u:\b)`; an escaped backslash before a `b`, and `\b{start}`, stay as they are.
fn with_ascii_boundaries(source: &str) -> String {
    let mut out = String::with_capacity(source.len() + 16);
    let mut chars = source.chars().peekable();
    while let Some(c) = chars.next() {
        out.push(c);
        if c != '\\' {
            continue;
        }
        match chars.next() {
            Some('b') if chars.peek() != Some(&'{') => {
                out.pop();
                out.push_str(r"(?-u:\b)");
            }
            Some(escaped) => out.push(escaped),
            None => {}
        }
    }
    out
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pattern").field(&self.source).finish()
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl Serialize for Pattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.source)
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|source| Self::of(&source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiled(source: &str) -> Result<Pattern, String> {
        let mut pattern = Pattern::of(source);
        Patterns::default().compile(&mut pattern).map(|()| pattern)
    }

    #[test]
    fn boundaries_are_ascii_and_escapes_stay() {
        assert_eq!(with_ascii_boundaries(r"\ba\\b\d"), r"(?-u:\b)a\\b\d");
        assert!(compiled(r"\b\d{5}\b").unwrap().is_in("äöü 12345 ß"));
        assert!(compiled("ORD").unwrap().is_in("ord-1"));
        assert!(!compiled("").unwrap().is_set());
        assert!(Pattern::of(r"\d").is_in("7"), "also one that nobody compiled");
    }

    #[test]
    fn digits_of_every_script_are_digits() {
        for digits in ["12345", "１２３４５", "١٢٣٤٥", "۱۲۳۴۵", "१२३४५", "郵便番号１２３４５です"] {
            assert!(compiled(r"\b[0-9]{5}\b").unwrap().is_in(digits), "{digits}");
        }
        assert!(!compiled(r"\b[0-9]{5}\b").unwrap().is_in("１２３４"));
        assert!(compiled("１").unwrap().is_in("１"), "whoever looks for a wide digit finds it");
    }

    #[test]
    fn one_pattern_is_bounded() {
        assert!(compiled("(").unwrap_err().contains("not a regular expression"));
        assert!(compiled(r"(\w{500}){500}").unwrap_err().contains("takes more than"));
        assert!(compiled(&"a".repeat(MOST_SOURCE_BYTES)).is_ok());
        assert!(compiled(&"a".repeat(MOST_SOURCE_BYTES + 1)).unwrap_err().contains("bytes long"));
    }

    #[test]
    fn a_text_is_compiled_once() {
        let mut patterns = Patterns::default();
        let [mut left, mut right, mut other] = [Pattern::of("a+"), Pattern::of("a+"), Pattern::of("b+")];
        for pattern in [&mut left, &mut right, &mut other] {
            patterns.compile(pattern).unwrap();
        }
        assert_eq!(patterns.len(), 2);
        let address = |pattern: &Pattern| Arc::as_ptr(pattern.regex.get().unwrap().as_ref().unwrap());
        assert_eq!(address(&left), address(&right));

        // The program's own are shared by all policies, also where a file of settings repeats them.
        let own = r"(?:own|built in)-\d+";
        let [built_in, repeated] = [Pattern::built_in(own), Pattern::of(own)].map(|mut pattern| {
            Patterns::default().compile(&mut pattern).unwrap();
            pattern
        });
        assert_eq!(address(&built_in), address(&repeated));
        assert_ne!(address(&compiled("a+").unwrap()), address(&compiled("a+").unwrap()), "others are let go with their settings");
    }

    #[test]
    fn all_of_them_together_are_bounded() {
        let mut patterns = Patterns::default();
        let large = |number: usize| Pattern::of(&format!(r"(\w{{8}}){number}"));
        let refused = (0..10_000).find_map(|number| patterns.compile(&mut large(number)).err()).unwrap();
        assert!(refused.contains("one too many"), "{refused}");
        assert!(patterns.bytes <= MOST_COMPILED_BYTES && patterns.bytes > MOST_COMPILED_BYTES / 2, "{}", patterns.bytes);
        patterns.compile(&mut large(0)).unwrap();
    }

    #[test]
    fn nothing_is_compiled_for_nobody() {
        let given_up = Arc::new(AtomicBool::new(false));
        let mut patterns = Patterns::default().until(given_up.clone());
        patterns.compile(&mut Pattern::of("a")).unwrap();
        given_up.store(true, Ordering::Relaxed);
        assert!(patterns.compile(&mut Pattern::of("b")).unwrap_err().contains("nobody waits"));
    }
}
