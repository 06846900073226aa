//! Other languages than English: which one a normalised text is in, what its words mean, and which of them are forms of one word.
//!
//! The script tells it, or for Latin letters the small words do ("ich", "quiero", "votre"). A text without any is read as the text it is
//! compared with.

mod endings;
mod words;

pub(super) use endings::is_form_of;

use super::normalise;
use super::vocabulary::{MEANINGS, Meaning, Meanings};
use crate::hashed::HashedMap;
use std::sync::LazyLock;
use words::Lexicon;
use xxhash_rust::xxh3::xxh3_64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Language {
    English,
    German,
    Spanish,
    French,
    Russian,
    Arabic,
    Hindi,
    Chinese,
    Japanese,
    /// Of which no words are known.
    Other,
}

/// Those with Latin letters, in the order of their votes behind English.
const LATIN: [Language; 3] = [Language::German, Language::Spanish, Language::French];

/// Words of a text that only one of these languages has: English, then as in [`LATIN`].
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Votes([u8; 1 + LATIN.len()]);

impl Votes {
    pub(super) fn english(&mut self) {
        self.0[0] = self.0[0].saturating_add(1);
    }

    /// `languages` has a bit for each of [`LATIN`].
    pub(super) fn foreign(&mut self, languages: u8) {
        for (position, votes) in self.0[1..].iter_mut().enumerate() {
            *votes = votes.saturating_add(languages >> position & 1);
        }
    }

    pub(super) fn with(self, other: Self) -> Self {
        let mut sum = self;
        sum.0.iter_mut().zip(other.0).for_each(|(votes, more)| *votes = votes.saturating_add(more));
        sum
    }

    /// English unless another language has more.
    pub(super) fn language(self) -> Language {
        let mut most = (self.0[0], Language::English);
        for (&votes, language) in self.0[1..].iter().zip(LATIN) {
            if votes > most.0 {
                most = (votes, language);
            }
        }
        most.1
    }
}

impl Language {
    /// By its script; English for all that is written in Latin letters.
    pub(super) fn of_script(text: &str) -> Self {
        if text.is_ascii() {
            return Self::English;
        }
        let mut found = Self::English;
        for c in text.chars() {
            found = match c {
                '\u{400}'..='\u{52f}' => Self::Russian,
                '\u{600}'..='\u{6ff}' => Self::Arabic,
                '\u{900}'..='\u{97f}' => Self::Hindi,
                '\u{3041}'..='\u{30ff}' => return Self::Japanese,
                c if is_unspaced(c) => Self::Chinese,
                c if c.is_ascii() => continue,
                _ if found == Self::English => Self::Other,
                _ => continue,
            };
        }
        found
    }

    /// By its script, or by its small words.
    pub(super) fn of(text: &str) -> Self {
        match Self::of_script(text) {
            Self::English => {
                let mut votes = Votes::default();
                for word in text.split(' ') {
                    match MEANINGS.get(&xxh3_64(word.as_bytes())) {
                        Some(Meaning::Small | Meaning::From | Meaning::To | Meaning::All | Meaning::Asks(_)) => votes.english(),
                        Some(Meaning::Foreign { languages, .. }) => votes.foreign(*languages),
                        _ => {}
                    }
                }
                votes.language()
            }
            other => other,
        }
    }

    /// Whether its words are not separated by spaces.
    pub(super) const fn is_unspaced(self) -> bool {
        matches!(self, Self::Chinese | Self::Japanese)
    }

    /// Whether what says "to" and "from" stands behind its word.
    pub(super) const fn has_postpositions(self) -> bool {
        matches!(self, Self::Hindi | Self::Japanese)
    }

    pub(super) fn meanings(self) -> &'static Meanings {
        match self {
            Self::English => &MEANINGS,
            Self::Other => &NOTHING,
            _ => &OWN.iter().find(|(language, _)| *language == self).unwrap_or(&OWN[0]).1,
        }
    }

    pub(super) fn towards(self) -> &'static [String] {
        TOWARDS.iter().find(|(language, _)| *language == self).map_or(&[], |(_, words)| words)
    }

    const fn lexicon(self) -> Option<&'static Lexicon> {
        match self {
            Self::English | Self::Other => None,
            Self::German => Some(&words::GERMAN),
            Self::Spanish => Some(&words::SPANISH),
            Self::French => Some(&words::FRENCH),
            Self::Russian => Some(&words::RUSSIAN),
            Self::Arabic => Some(&words::ARABIC),
            Self::Hindi => Some(&words::HINDI),
            Self::Chinese => Some(&words::CHINESE),
            Self::Japanese => Some(&words::JAPANESE),
        }
    }
}

const ALL: [Language; 8] = [
    Language::German,
    Language::Spanish,
    Language::French,
    Language::Russian,
    Language::Arabic,
    Language::Hindi,
    Language::Chinese,
    Language::Japanese,
];

static NOTHING: LazyLock<Meanings> = LazyLock::new(Meanings::default);

/// Of Latin letters and others that are not English.
static OWN: LazyLock<Vec<(Language, Meanings)>> =
    LazyLock::new(|| ALL.iter().filter_map(|language| Some((*language, read(language.lexicon()?)))).collect());

static TOWARDS: LazyLock<Vec<(Language, Vec<String>)>> = LazyLock::new(|| {
    let words = |language: &Language| Some((*language, each_word(language.lexicon()?.towards).collect()));
    ALL.iter().filter_map(words).collect()
});

fn read(lexicon: &Lexicon) -> Meanings {
    let mut meanings = Meanings::default();
    for group in lexicon.synonyms.split(';') {
        let words: Vec<String> = each_word(group).collect();
        let Some(first) = words.first() else { continue };
        let form = Meaning::Form(xxh3_64(first.as_bytes()));
        meanings.extend(words.iter().map(|word| (xxh3_64(word.as_bytes()), form)));
    }
    let mut say = |words: &str, meaning| meanings.extend(each_word(words).map(|word| (xxh3_64(word.as_bytes()), meaning)));
    say(lexicon.small, Meaning::Small);
    say(lexicon.from, Meaning::From);
    say(lexicon.to, Meaning::To);
    say(lexicon.all, Meaning::All);
    say(lexicon.not, Meaning::Not);
    for (bit, words) in lexicon.asks.into_iter().enumerate() {
        say(words, Meaning::Asks(1 << bit));
    }
    meanings
}

fn each_word(words: &str) -> impl Iterator<Item = String> {
    words.split_whitespace().map(normalise)
}

/// Words of other languages in Latin letters that English has not: the languages, a bit for each of [`LATIN`], by the word's hash.
pub(super) fn telling_words() -> HashedMap<u64, u8> {
    let mut telling: HashedMap<u64, u8> = HashedMap::default();
    for (position, language) in LATIN.into_iter().enumerate() {
        let Some(Lexicon { small, asks, from, to, all, not, synonyms, .. }) = language.lexicon() else { continue };
        let parts = [small, from, to, all, not, synonyms].into_iter().chain(asks.iter());
        for word in parts.flat_map(|part| part.split([' ', ';'])).map(normalise).filter(|word| word.len() > 1) {
            *telling.entry(xxh3_64(word.as_bytes())).or_default() |= 1 << position;
        }
    }
    for word in each_word(words::ENGLISH_TOO) {
        telling.remove(&xxh3_64(word.as_bytes()));
    }
    telling
}

/// What denies, in languages whose words are separated by spaces. A word of one language may be another's; that hardly matters,
/// because it would have to be in one of two queries only.
pub(super) fn negations() -> impl Iterator<Item = u64> {
    let spaced = ALL.into_iter().filter(|language| !language.is_unspaced());
    spaced.filter_map(Language::lexicon).flat_map(|lexicon| each_word(lexicon.not)).map(|word| xxh3_64(word.as_bytes()))
}

/// Chinese characters and kana: scripts without spaces between words.
pub(super) fn is_unspaced(c: char) -> bool {
    matches!(c, '\u{3005}' | '\u{3041}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{ff66}'..='\u{ff9f}' | '\u{20000}'..)
}

/// The longest word of the tables, in characters.
const LONGEST_WORD: usize = 9;
/// Characters behind a Chinese character that may be its ending.
const LONGEST_ENDING: usize = 2;

/// Cuts a text without spaces: the longest word that is known, else in katakana a run, in hiragana what is between known words, and
/// otherwise one character. What ends a Japanese verb is left out.
pub(super) fn each_unspaced_word<'a>(text: &'a str, meanings: &Meanings, mut take: impl FnMut(&'a str, Option<&Meaning>)) {
    let mut rest = text;
    // How many characters of an ending may follow.
    let mut ending = 0;
    while let Some(first) = rest.chars().next() {
        if first == ' ' {
            rest = &rest[1..];
            ending = 0;
            continue;
        }
        if !is_unspaced(first) {
            let end = rest.find(|c: char| c == ' ' || is_unspaced(c)).unwrap_or(rest.len());
            let (word, behind) = rest.split_at(end);
            take(word, meanings.get(&xxh3_64(word.as_bytes())));
            (rest, ending) = (behind, 0);
            continue;
        }
        if let Some((word, meaning)) = known(rest, meanings) {
            take(word, Some(meaning));
            rest = &rest[word.len()..];
            ending = 0;
            continue;
        }
        let end = match first {
            _ if is_katakana(first) => rest.find(|c| !is_katakana(c)).unwrap_or(rest.len()),
            _ if is_hiragana(first) => {
                let is_end = |(position, c): &(usize, char)| !is_hiragana(*c) || known(&rest[*position..], meanings).is_some();
                rest.char_indices().skip(1).find(is_end).map_or(rest.len(), |(position, _)| position)
            }
            _ => first.len_utf8(),
        };
        let (word, behind) = rest.split_at(end);
        rest = behind;
        if is_hiragana(first) && ending > 0 && word.chars().count() <= ending {
            ending = 0;
            continue;
        }
        ending = if is_katakana(first) || is_hiragana(first) { 0 } else { LONGEST_ENDING };
        // The long sign at the end of a foreign word is a matter of taste.
        let word = if is_katakana(first) && word.chars().count() > 2 { word.trim_end_matches('ー') } else { word };
        take(word, meanings.get(&xxh3_64(word.as_bytes())));
    }
}

fn known<'a, 'b>(text: &'a str, meanings: &'b Meanings) -> Option<(&'a str, &'b Meaning)> {
    let ends = text.char_indices().skip(1).map(|(end, _)| end).chain([text.len()]);
    let mut longest = None;
    for end in ends.take(LONGEST_WORD) {
        let word = &text[..end];
        // A word in katakana is not the beginning of another.
        let is_cut = is_katakana(text.chars().next().unwrap_or(' ')) && text[end..].starts_with(is_katakana);
        if let Some(meaning) = meanings.get(&xxh3_64(word.as_bytes())).filter(|_| !is_cut) {
            longest = Some((word, meaning));
        }
    }
    longest
}

fn is_hiragana(c: char) -> bool {
    matches!(c, '\u{3041}'..='\u{309f}')
}

fn is_katakana(c: char) -> bool {
    matches!(c, '\u{30a0}'..='\u{30ff}')
}
