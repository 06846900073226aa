//! Attempts in vain: lookups that bring what is known, and actions that fail as before.
//!
//! Calls alone do not show them, because every attempt is worded otherwise. What they have in common is that nothing comes of them. So a
//! lookup counts when (nearly) all it brought was there before, an action when it failed, and a success that is new starts all counts
//! anew: what follows it is asked in another situation.

use crate::detect::stall::error_fingerprint;
use crate::limits::{InvalidSetting, setters};
use crate::run::Run;
use crate::similarity::Gist;
use crate::text::times;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use xxhash_rust::xxh3::xxh3_64;

/// Lookups since the latest progress that another one is compared with.
const REMEMBERED_LOOKUPS: usize = 64;
/// Words of a passage that are compared together: so many in the same order are hardly chance.
const PASSAGE_WORDS: usize = 4;
/// Passages of one knowledge base that are remembered in a turn. Beyond them everything is taken for new.
const MOST_PASSAGES: usize = 100_000;
/// Texts of one knowledge base whose words are remembered.
const REMEMBERED_TEXTS: usize = 256;
/// Words of a text that are compared with those of others, its first ones.
const MOST_WORDS: usize = 400;
/// A shorter word says little of what a text is about, unless it is a number.
const SHORTEST_WORD: usize = 4;
/// Successes that are remembered, to tell a new one from the same again.
const REMEMBERED_SUCCESSES: usize = 64;
/// What an error says that no knowledge base can mend: rights, overload, a service that is away.
const BEYOND_LOOKUPS: &[&str] = &[
    "accessdenied",
    "access denied",
    "not authorized",
    "unauthorized",
    "forbidden",
    "expiredtoken",
    "expired token",
    "throttl",
    "too many requests",
    "rate exceeded",
    "rate limit",
    "timed out",
    "timeout",
    "service unavailable",
    "serviceunavailable",
    "temporarily unavailable",
    "internal server error",
    "internalservererror",
    "bad gateway",
    "connection refused",
    "connection reset",
];
/// The highest threshold that makes sense.
const HIGHEST: u32 = 1000;

/// After how many attempts in vain a run is ended. 0 turns a rule off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct AttemptSettings {
    /// Lookups about the same thing in one knowledge base, all but the first of which brought nothing new.
    pub same_lookups: u32,
    /// Lookups in a row in one knowledge base that brought nothing new, whatever they asked.
    pub barren_lookups: u32,
    /// Actions in a row that failed with the same error, whatever their parameters; lookups between them do not count.
    pub same_errors: u32,
    /// Rounds of looking up and failing as before, after which another lookup is one too many.
    pub failing_rounds: u32,
}

impl Default for AttemptSettings {
    fn default() -> Self {
        Self { same_lookups: 3, barren_lookups: 5, same_errors: 4, failing_rounds: 2 }
    }
}

setters!(AttemptSettings { same_lookups: u32, barren_lookups: u32, same_errors: u32, failing_rounds: u32 });

/// Thresholds that are given; the others stay as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AttemptChanges {
    same_lookups: Option<u32>,
    barren_lookups: Option<u32>,
    same_errors: Option<u32>,
    failing_rounds: Option<u32>,
}

impl AttemptSettings {
    /// What goes with a run. Whoever lets calls repeat more often lets lookups; a stall detector has thresholds of its own for errors.
    pub fn of_run(run: &Run) -> Self {
        let usual = Self::default();
        let same_errors = if run.looks_for_stalls() { 0 } else { usual.same_errors };
        Self { same_lookups: usual.same_lookups.max(run.repeats()), same_errors, ..usual }
    }

    /// With what is given in its place.
    #[must_use]
    pub fn changed(self, given: AttemptChanges) -> Self {
        Self {
            same_lookups: given.same_lookups.unwrap_or(self.same_lookups),
            barren_lookups: given.barren_lookups.unwrap_or(self.barren_lookups),
            same_errors: given.same_errors.unwrap_or(self.same_errors),
            failing_rounds: given.failing_rounds.unwrap_or(self.failing_rounds),
        }
    }

    /// Refuses what makes no sense, by the name of the setting.
    pub fn check(&self) -> Result<(), InvalidSetting> {
        let fields = [
            ("same_lookups", self.same_lookups),
            ("barren_lookups", self.barren_lookups),
            ("same_errors", self.same_errors),
            ("failing_rounds", self.failing_rounds),
        ];
        match fields.into_iter().find(|(_, count)| *count == 1 || *count > HIGHEST) {
            Some((name, _)) => Err(InvalidSetting::new(name, "must be 0 (off) or from 2 to 1000: one attempt is never in vain")),
            None => Ok(()),
        }
    }
}

/// Why the run is to be ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InVain {
    pub(super) cycle: Vec<String>,
    pub(super) repeats: u32,
    pub(super) message: String,
}

/// The attempts of one turn.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    settings: AttemptSettings,
    /// By agent.
    agents: BTreeMap<String, Agent>,
}

#[derive(Debug, Default)]
struct Agent {
    bases: BTreeMap<String, Base>,
    successes: VecDeque<u64>,
    failures: Failures,
}

/// What is known of one knowledge base.
#[derive(Debug, Default)]
struct Base {
    passages: BTreeSet<u64>,
    /// The words of each text that came.
    texts: VecDeque<BTreeSet<u64>>,
    /// Since the latest progress, oldest first.
    lookups: VecDeque<Lookup>,
    asked: usize,
    barren: u32,
}

#[derive(Debug)]
struct Lookup {
    number: usize,
    gist: Gist,
    /// Of what stands in single quotes, which must not differ.
    quoted: u64,
    topic: usize,
    /// Whether it brought something new, once that is known.
    brought_news: Option<bool>,
}

#[derive(Debug, Default)]
struct Failures {
    error: Option<u64>,
    /// The latest error is one that no lookup mends.
    is_beyond_lookups: bool,
    /// In a row with that error.
    same: u32,
    /// Lookups and a failure like the one before, in a row; and of any kind.
    rounds: u32,
    rounds_of_any: u32,
    /// The action that failed last, and the knowledge base that was asked last.
    latest: String,
    base: String,
    /// Since the latest failure something was looked up; and something new came of it.
    has_looked: bool,
    learned: bool,
}

impl Attempts {
    pub(super) fn new(settings: AttemptSettings) -> Self {
        Self { settings, agents: BTreeMap::new() }
    }

    pub(super) fn settings(&self) -> AttemptSettings {
        self.settings
    }

    /// A knowledge base is asked: the number of the lookup, and what is wrong with it.
    pub(super) fn asked(&mut self, agent: &str, base: &str, question: &str) -> (usize, Option<InVain>) {
        let Agent { bases, failures, .. } = self.agents.entry(agent.to_owned()).or_default();
        let number = bases.entry(base.to_owned()).or_default().ask(question);
        let limit = self.settings.failing_rounds;
        base.clone_into(&mut failures.base);
        failures.has_looked = true;
        let is_round = limit > 0 && failures.rounds >= limit;
        (number, is_round.then(|| failures.round(failures.rounds)))
    }

    /// What a lookup brought.
    pub(super) fn found(&mut self, agent: &str, base: &str, lookup: usize, texts: &[String]) -> Option<InVain> {
        let Agent { bases, failures, .. } = self.agents.entry(agent.to_owned()).or_default();
        let known = bases.entry(base.to_owned()).or_default();
        let (is_news, is_reworded) = (known.is_news(texts), known.is_reworded(texts));
        failures.learned |= is_news;
        known.barren = if is_news { 0 } else { known.barren.saturating_add(1) };
        // To the same question, other words for the same are nothing new.
        let same = known.same_lookups(lookup, is_news && !is_reworded, self.settings.same_lookups);
        if let Some(repeats) = same {
            let message = format!(
                "'{base}' was asked about the same thing {repeats} times in other words, and brought nothing new after the first. Answer with what there is: it has no more on it."
            );
            return Some(InVain { cycle: vec![base.to_owned()], repeats, message });
        }
        let limit = self.settings.barren_lookups;
        (limit > 0 && known.barren >= limit).then(|| InVain {
            cycle: vec![base.to_owned()],
            repeats: known.barren,
            message: format!(
                "{} lookups in a row in '{base}' brought nothing that was not there before. Answer with what there is.",
                known.barren
            ),
        })
    }

    /// An action failed.
    pub(super) fn failed(&mut self, agent: &str, tool: &str, args: &Value, error: &str) -> Option<InVain> {
        let failures = &mut self.agents.entry(agent.to_owned()).or_default().failures;
        let plain = without_echo(error, args);
        failures.take(tool, error_fingerprint(&plain), is_beyond_lookups(&plain));
        let AttemptSettings { same_errors, failing_rounds, .. } = self.settings;
        if same_errors > 0 && failures.same >= same_errors {
            let message = format!(
                "'{tool}' failed with the same error as before, {} in a row and whatever the parameters were. Stop the run and mend the cause, or tell the user what failed.",
                times(failures.same)
            );
            return Some(InVain { cycle: vec![tool.to_owned()], repeats: failures.same, message });
        }
        let fails_as_before = failures.same > failing_rounds && failures.rounds >= failing_rounds;
        let is_round = failing_rounds > 0 && (fails_as_before || failures.rounds_of_any > failing_rounds);
        is_round.then(|| failures.round(failures.rounds.max(failures.rounds_of_any)))
    }

    /// An action gave a result. One that is new is progress.
    pub(super) fn succeeded(&mut self, agent: &str, tool: &str, args: u64, result: u64) {
        let Agent { bases, successes, failures } = self.agents.entry(agent.to_owned()).or_default();
        let success = xxh3_64(&[tool.as_bytes(), &args.to_le_bytes(), &result.to_le_bytes()].concat());
        if successes.contains(&success) {
            return;
        }
        if successes.len() == REMEMBERED_SUCCESSES {
            successes.pop_front();
        }
        successes.push_back(success);
        *failures = Failures::default();
        for base in bases.values_mut() {
            base.lookups.clear();
            base.barren = 0;
        }
    }
}

impl Failures {
    fn take(&mut self, tool: &str, error: u64, is_beyond_lookups: bool) {
        let is_same = self.error == Some(error);
        let was_beyond_lookups = std::mem::replace(&mut self.is_beyond_lookups, is_beyond_lookups);
        self.same = if is_same { self.same.saturating_add(1) } else { 1 };
        self.error = Some(error);
        if std::mem::take(&mut self.has_looked) {
            // What was looked up may have mended the error before, and this is the next one to find out about; not one that no lookup mends.
            let may_be_mended = self.learned && !is_same && !(was_beyond_lookups && is_beyond_lookups);
            let goes_on = self.rounds > 0 && !may_be_mended;
            self.rounds = if goes_on { self.rounds.saturating_add(1) } else { 1 };
            self.rounds_of_any = self.rounds_of_any.saturating_add(1);
        }
        tool.clone_into(&mut self.latest);
        self.learned = false;
    }

    fn round(&self, repeats: u32) -> InVain {
        let message = format!(
            "The run looks things up and fails, {}: {} → {}. What it looks up does not help. Stop it and mend what the action says, or tell the user what failed.",
            times(repeats),
            self.base,
            self.latest
        );
        InVain { cycle: vec![self.base.clone(), self.latest.clone()], repeats, message }
    }
}

impl Base {
    /// Takes note of a question, and gives its number. It joins the topic of every earlier one it is akin to.
    fn ask(&mut self, question: &str) -> usize {
        let number = self.asked;
        self.asked += 1;
        let (gist, quoted) = (Gist::whole(question), in_single_quotes(question));
        let akin: Vec<usize> = self
            .lookups
            .iter()
            .filter(|earlier| earlier.quoted == quoted && (earlier.gist.has_words_of(&gist) || earlier.gist.is_akin(&gist)))
            .map(|earlier| earlier.topic)
            .collect();
        let topic = akin.iter().copied().min().unwrap_or(number);
        for earlier in &mut self.lookups {
            if akin.contains(&earlier.topic) {
                earlier.topic = topic;
            }
        }
        if self.lookups.len() == REMEMBERED_LOOKUPS {
            self.lookups.pop_front();
        }
        self.lookups.push_back(Lookup { number, gist, quoted, topic, brought_news: None });
        number
    }

    /// How many lookups about the same thing there are, if all but the first of the latest `limit` brought nothing new.
    fn same_lookups(&mut self, number: usize, is_news: bool, limit: u32) -> Option<u32> {
        // One that was asked before the latest progress says nothing about what came after it.
        let asked = self.lookups.iter_mut().find(|lookup| lookup.number == number)?;
        asked.brought_news = Some(is_news);
        let topic = asked.topic;
        let known: Vec<bool> =
            self.lookups.iter().filter(|lookup| lookup.topic == topic).filter_map(|lookup| lookup.brought_news).collect();
        let in_vain = known.iter().rev().take_while(|brought_news| !**brought_news).count();
        let is_reached = limit > 0 && known.len() >= limit as usize && in_vain + 1 >= limit as usize;
        is_reached.then_some(known.len() as u32)
    }

    /// Whether more than a quarter of the passages in these texts was not there before. Remembers them.
    fn is_news(&mut self, texts: &[String]) -> bool {
        let (mut all, mut unknown) = (0_usize, 0_usize);
        for passage in texts.iter().flat_map(|text| passages(text)) {
            all += 1;
            if !self.passages.contains(&passage) {
                unknown += 1;
                if self.passages.len() < MOST_PASSAGES {
                    self.passages.insert(passage);
                }
            }
        }
        unknown * 4 > all
    }

    /// Whether each of these texts says, for the most part, in other words what one before it said: two thirds of its words, and all of
    /// its numbers. Remembers them.
    fn is_reworded(&mut self, texts: &[String]) -> bool {
        let mut is_reworded = !texts.is_empty();
        for text in texts {
            let words = telling_words(text);
            is_reworded &= self.texts.iter().any(|earlier| is_told_by(earlier, &words));
            if self.texts.len() == REMEMBERED_TEXTS {
                self.texts.pop_front();
            }
            self.texts.push_back(words.into_iter().map(|(word, _)| word).collect());
        }
        is_reworded
    }
}

/// The hashes of the words that say something, and whether each is a number.
fn telling_words(text: &str) -> BTreeSet<(u64, bool)> {
    let words = text.split(|letter: char| !letter.is_alphanumeric()).map(str::to_lowercase);
    let hashed = |word: String| (xxh3_64(word.as_bytes()), word.contains(|letter: char| letter.is_numeric()));
    words
        .map(|word| (word.chars().count(), hashed(word)))
        .filter(|(length, (_, is_number))| *length >= SHORTEST_WORD || *is_number)
        .map(|(_, word)| word)
        .take(MOST_WORDS)
        .collect()
}

fn is_told_by(earlier: &BTreeSet<u64>, words: &BTreeSet<(u64, bool)>) -> bool {
    let known = words.iter().filter(|(word, _)| earlier.contains(word)).count();
    known > 0 && 3 * known >= 2 * words.len() && words.iter().all(|(word, is_number)| !is_number || earlier.contains(word))
}

/// An error without what it says back of the call: values of its arguments, and whatever stands in quotes.
fn without_echo(error: &str, args: &Value) -> String {
    let mut values = Vec::new();
    texts_in(args, &mut values);
    // A value may be part of another one.
    values.sort_unstable_by_key(|value| std::cmp::Reverse(value.len()));
    let plain = values.iter().fold(error.to_owned(), |text, value| text.replace(value, ECHO));
    let mut out = String::with_capacity(plain.len());
    let mut rest = plain.as_str();
    while let Some((start, quote)) = rest.char_indices().find(|(_, letter)| matches!(letter, '\'' | '"' | '`')) {
        let (before, after) = (&rest[..start], &rest[start + 1..]);
        // "can't" opens nothing.
        let opens = !before.ends_with(char::is_alphanumeric);
        let closes = |(end, _): &(usize, &str)| !after[end + 1..].starts_with(char::is_alphanumeric);
        let end = if opens { after.match_indices(quote).find(closes).map(|(end, _)| end) } else { None };
        out.push_str(before);
        out.push_str(if end.is_some() { ECHO } else { &rest[start..=start] });
        rest = end.map_or(after, |end| &after[end + 1..]);
    }
    out.push_str(rest);
    out
}

fn is_beyond_lookups(error: &str) -> bool {
    let error = error.to_lowercase();
    BEYOND_LOOKUPS.iter().any(|words| error.contains(words))
}

/// What stands for something that an error says back.
const ECHO: &str = "#";
/// A shorter value is part of too many words.
const SHORTEST_ECHO: usize = 3;

fn texts_in(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::String(text) if text.trim().len() >= SHORTEST_ECHO => found.push(text.trim().to_owned()),
        Value::Array(items) => items.iter().for_each(|item| texts_in(item, found)),
        Value::Object(members) => members.values().for_each(|member| texts_in(member, found)),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Hashes of every few words in a row; of a text with fewer words, of all of them.
fn passages(text: &str) -> Vec<u64> {
    let words: Vec<String> =
        text.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty()).map(str::to_lowercase).collect();
    if words.len() < PASSAGE_WORDS {
        return if words.is_empty() { Vec::new() } else { vec![xxh3_64(words.join(" ").as_bytes())] };
    }
    words.windows(PASSAGE_WORDS).map(|passage| xxh3_64(passage.join(" ").as_bytes())).collect()
}

/// The same for the same words in single quotes, in any order.
fn in_single_quotes(question: &str) -> u64 {
    let inside = |word: &&str| word.len() > 2 && word.starts_with('\'') && word.ends_with('\'');
    question
        .split_whitespace()
        .map(|word| word.trim_matches(|letter: char| !letter.is_alphanumeric() && letter != '\''))
        .filter(inside)
        .fold(0, |sum, word| sum.wrapping_add(xxh3_64(word.to_lowercase().as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_an_error_says_back_is_left_out() {
        let args = json!({"parameters": {"what": "order number 7", "limit": 3, "id": "7"}});
        for (error, left) in [
            ("no order number 7 here", "no # here"),
            ("item 'order 8' (or \"sale 8\") can't be found", "item # (or #) can't be found"),
            ("it's `x`'s fault", "it's #'s fault"),
            ("the users' table", "the users' table"),
            ("open ' quote", "open ' quote"),
            ("größe 'ä", "größe 'ä"),
        ] {
            assert_eq!(without_echo(error, &args), left);
        }
    }
}
