//! Whether the words that two queries do not share make them two questions.
//!
//! Letters cannot tell: "weather in Austria" and "weather in Australia" share more of them than "price of the plan" and
//! "how much does the plan cost". So words are compared: those that carry no meaning are left out, word forms and
//! common synonyms count as one, a slip of the keyboard in a long word is forgiven, and what is left over decides.

use super::language::{Language, Votes, each_unspaced_word, is_form_of, is_unspaced};
use super::vocabulary::{CONFUSABLE, Meaning, Meanings};
use super::wording::stem;
use xxhash_rust::xxh3::xxh3_64;

/// Beyond these, words are not compared one by one: what it costs grows with their square.
const MOST_WORDS: usize = 128;
/// More words without a partner than this are no slips.
const MOST_SLIPS: usize = 4;
/// Among so many shared words one word more is a detail, which the ratio may judge.
const MANY_WORDS: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Same,
    Different,
    /// The words do not tell: there are none that count, too many, or nothing is known of how they are separated.
    Open,
}

/// What two queries are compared for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sought {
    /// Whether the second one need not be asked.
    SameQuestion,
    /// Whether both belong to one topic of a knowledge base.
    Topic,
}

/// What of a query is compared.
#[derive(Debug)]
struct Content<'a> {
    words: Vec<(u64, &'a str)>,
    /// One bit for each of how, where, when, who and why.
    asks: u8,
    /// "from" and "to", the latter where it is no "how to".
    from: bool,
    to: bool,
    /// Everything of its kind, and something is done to it.
    all: bool,
    danger: bool,
    /// It asks to be shown something: "show canceled orders" does not cancel them.
    looks: bool,
    /// Words that deny, where that is not compared before.
    negations: u8,
    /// What the words say of the language they are in.
    votes: Votes,
}

impl<'a> Content<'a> {
    /// `None`: nothing to compare by words.
    fn of(text: &'a str, language: Language) -> Option<Self> {
        let meanings = language.meanings();
        let mut content = Self {
            words: Vec::with_capacity(16),
            asks: 0,
            from: false,
            to: false,
            all: false,
            danger: false,
            looks: false,
            negations: 0,
            votes: Votes::default(),
        };
        if language.is_unspaced() {
            each_unspaced_word(text, meanings, |word, meaning| {
                let hash = || xxh3_64(word.as_bytes());
                let form = meaning.map_or_else(|| Some(hash()), |meaning| content.form(meaning, hash, || true));
                content.words.extend(form.map(|form| (form, word)));
            });
            return (1..=MOST_WORDS).contains(&content.words.len()).then_some(content);
        }
        let mut before = "";
        for word in text.split(' ') {
            let hash = xxh3_64(word.as_bytes());
            let form = match meanings.get(&hash) {
                // "I'd", its sign gone.
                Some(Meaning::Id) if text[offset(text, word)..].starts_with("id like ") => None,
                Some(Meaning::Measures(noun)) if before == "how" => {
                    content.votes.english();
                    Some(*noun)
                }
                Some(meaning) => {
                    let leads_somewhere = || !matches!(before, "how" | "want" | "need" | "like" | "way" | "able" | "wish");
                    // A word of another language that English may have taken over has English forms then, as others have.
                    let has_forms = matches!(meaning, Meaning::Foreign { .. } | Meaning::Measures(_));
                    let plain = || if has_forms { form_of(word, hash, meanings) } else { hash };
                    content.form(meaning, plain, leads_somewhere)
                }
                None if language == Language::English => Some(form_of(word, hash, meanings)),
                None => Some(hash),
            };
            before = word;
            if let Some(form) = form {
                if content.words.len() == MOST_WORDS {
                    return None;
                }
                content.words.push((form, word));
            }
        }
        (!content.words.is_empty()).then_some(content)
    }

    /// Takes a word that means something: what it counts as, or `None` if it only changes how the others are read.
    fn form(&mut self, meaning: &Meaning, word: impl Fn() -> u64, leads_somewhere: impl Fn() -> bool) -> Option<u64> {
        match meaning {
            Meaning::Small => {
                self.votes.english();
                None
            }
            Meaning::Shared => None,
            Meaning::Foreign { languages, is_small } => {
                self.votes.foreign(*languages);
                (!is_small).then(word)
            }
            Meaning::Not => {
                self.negations = self.negations.saturating_add(1);
                None
            }
            Meaning::Asks(bit) => {
                self.votes.english();
                self.asks |= bit;
                None
            }
            Meaning::From => {
                self.votes.english();
                self.from = true;
                None
            }
            Meaning::To => {
                self.votes.english();
                self.to |= leads_somewhere();
                None
            }
            Meaning::All => {
                self.votes.english();
                self.all = true;
                None
            }
            Meaning::SmallFirst if self.words.is_empty() => {
                self.looks = true;
                None
            }
            Meaning::SmallAfterHow if self.asks & HOW != 0 => None,
            Meaning::Danger(form) => {
                // Further back it is no order: "all open tickets".
                self.danger |= self.words.is_empty();
                Some(*form)
            }
            Meaning::Form(form) => Some(*form),
            Meaning::SmallFirst | Meaning::SmallAfterHow | Meaning::Measures(_) | Meaning::Id => Some(word()),
        }
    }

    fn has(&self, form: u64) -> bool {
        self.words.iter().any(|(other, _)| *other == form)
    }

    /// Words the other has not, `None` if too many.
    fn beyond(&self, other: &Self) -> Option<Vec<&'a str>> {
        let mut rest = Vec::new();
        for &(form, word) in &self.words {
            if !other.has(form) {
                if rest.len() == MOST_SLIPS {
                    return None;
                }
                rest.push(word);
            }
        }
        Some(rest)
    }

    /// The dangerous word it begins with, as it is written.
    fn order(&self) -> Option<&'a str> {
        self.words.first().filter(|_| self.danger).map(|(_, word)| *word)
    }

    /// Whether the same words ask for something else: another question word, the other way, all instead of one.
    fn is_turned(&self, other: &Self, sought: Sought) -> bool {
        let asks_otherwise = self.asks != 0 && other.asks != 0 && self.asks & other.asks == 0;
        let goes_back = |one: &Self, two: &Self| one.from && !one.to && two.to && !two.from;
        let takes_more = self.all != other.all && (self.danger || other.danger);
        // "canceled orders" are no "cancel orders"; "the refund policy" and "refund policy" may be an order and none, and are one topic.
        let is_one_topic = sought == Sought::Topic && self.order() == other.order();
        let only_looks =
            |one: &Self, two: &Self| one.danger && two.danger && one.looks && one.asks == 0 && !two.looks && two.asks == 0 && !is_one_topic;
        asks_otherwise
            || self.negations != other.negations
            || only_looks(self, other)
            || only_looks(other, self)
            || goes_back(self, other)
            || goes_back(other, self)
            || takes_more
    }
}

pub(super) const HOW: u8 = 1;

fn form_of(word: &str, hash: u64, meanings: &Meanings) -> u64 {
    let stem = stem(word);
    if stem.len() == word.len() {
        return hash;
    }
    let hash = xxh3_64(stem.as_bytes());
    match meanings.get(&hash) {
        Some(Meaning::Form(form)) => *form,
        _ => hash,
    }
}

/// Where a part of a text begins.
fn offset(text: &str, part: &str) -> usize {
    part.as_ptr() as usize - text.as_ptr() as usize
}

/// A normalised text whose words are read.
#[derive(Debug)]
pub(super) struct Words<'a> {
    text: &'a str,
    language: Language,
    /// `None`: nothing to compare by words.
    content: Option<Content<'a>>,
}

impl<'a> Words<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        let read = Self::read(text, Language::of_script(text));
        match read.votes().language() {
            Language::English => read,
            // Its small words say that it is in another language with the same letters.
            other => Self::voted(text, other, read.votes()),
        }
    }

    fn read(text: &'a str, language: Language) -> Self {
        let content = if has_known_words(text) { Content::of(text, language) } else { None };
        Self { text, language, content }
    }

    fn voted(text: &'a str, language: Language, votes: Votes) -> Self {
        let mut words = Self::read(text, language);
        if let Some(content) = &mut words.content {
            content.votes = votes;
        }
        words
    }

    fn votes(&self) -> Votes {
        self.content.as_ref().filter(|_| self.text.is_ascii()).map_or_else(Votes::default, |content| content.votes)
    }
}

/// Of two normalised texts.
pub(super) fn compare(left: &Words<'_>, right: &Words<'_>, sought: Sought) -> Verdict {
    compare_counting_slips(left, right, sought, is_slip).0
}

/// Whether two normalised texts say the same, and one of them with a slip of the keyboard or a wrong letter that the other does not have.
/// Two words may be so near that mean two things.
pub(super) fn is_misspelled(left: &str, right: &str) -> bool {
    let is_near = |left: &str, right: &str| is_slip(left, right) || has_wrong_letters(left, right);
    matches!(compare_counting_slips(&Words::of(left), &Words::of(right), Sought::SameQuestion, is_near), (Verdict::Same, 1..))
}

/// The verdict, and how many words are one slip away from each other.
fn compare_counting_slips(left: &Words<'_>, right: &Words<'_>, sought: Sought, is_slip: impl Fn(&str, &str) -> bool) -> (Verdict, usize) {
    let common = match (left.language, right.language) {
        (one, other) if one == other => None,
        // Without kana a Japanese text looks Chinese.
        (one, other) if one.is_unspaced() && other.is_unspaced() => Some(Language::Japanese),
        // One of them has too few small words to tell its language.
        _ if left.text.is_ascii() && right.text.is_ascii() => Some(left.votes().with(right.votes()).language()),
        _ => None,
    };
    if let Some(language) = common {
        let (left, right) = (Words::read(left.text, language), Words::read(right.text, language));
        return compare_in_one_language(&left, &right, sought, is_slip);
    }
    compare_in_one_language(left, right, sought, is_slip)
}

fn compare_in_one_language(left: &Words<'_>, right: &Words<'_>, sought: Sought, is_slip: impl Fn(&str, &str) -> bool) -> (Verdict, usize) {
    let language = left.language;
    let (Some(one), Some(two)) = (&left.content, &right.content) else { return (Verdict::Open, 0) };
    let (left, right) = (left.text, right.text);
    let (Some(mut rest), Some(mut other_rest)) = (one.beyond(two), two.beyond(one)) else { return (Verdict::Different, 0) };
    let mut slips = 0;
    if !rest.is_empty() || !other_rest.is_empty() {
        pair_joined(&mut rest, left, &mut other_rest, right);
        pair_joined(&mut other_rest, right, &mut rest, left);
        if language != Language::English {
            pair_forms(&mut rest, &mut other_rest, one, two, language);
        }
        if language == Language::German {
            pair_separated(&mut rest, left, &mut other_rest, right);
            pair_separated(&mut other_rest, right, &mut rest, left);
        }
        rest.retain(|word| match other_rest.iter().position(|other| is_slip(word, other)) {
            Some(position) => {
                other_rest.swap_remove(position);
                slips += 1;
                false
            }
            None => true,
        });
    }
    let one_word_more = rest.len() + other_rest.len() == 1;
    let verdict = if rest.is_empty() && other_rest.is_empty() {
        if one.is_turned(two, sought) || is_swapped_in(language, left, right) { Verdict::Different } else { Verdict::Same }
    } else if one_word_more && one.words.len().min(two.words.len()) >= MANY_WORDS && !one.is_turned(two, sought) {
        Verdict::Open
    } else {
        Verdict::Different
    };
    (verdict, slips)
}

/// Words that two texts must share to be about the same thing.
const SHARED_WORDS: usize = 2;

/// Whether two normalised texts are about the same thing.
pub(super) fn is_akin(left: &str, right: &str) -> bool {
    if !has_spaced_words(left) || !has_spaced_words(right) {
        return false;
    }
    let (Some(one), Some(two)) = (Content::of(left, Language::English), Content::of(right, Language::English)) else { return false };
    let shared_with = |one: &Content<'_>, two: &Content<'_>| one.words.iter().filter(|(form, _)| two.has(*form)).count();
    let shared = shared_with(&one, &two).min(shared_with(&two, &one));
    let (rest, other_rest) = (one.words.len() - shared_with(&one, &two), two.words.len() - shared_with(&two, &one));
    let is_put_for_another = rest == 1 && other_rest == 1;
    shared >= SHARED_WORDS
        && 2 * shared >= one.words.len().min(two.words.len())
        && !is_put_for_another
        && !one.is_turned(&two, Sought::SameQuestion)
        && !is_swapped(left, right)
}

/// Chinese, Japanese and their neighbours do not write spaces between words.
fn has_spaced_words(text: &str) -> bool {
    text.is_ascii() || !text.chars().any(|c| c >= '\u{2e80}')
}

/// Where words begin and end in it is known: they have spaces between them, or are in a language whose words are known.
fn has_known_words(text: &str) -> bool {
    text.is_ascii() || !text.chars().any(|c| c >= '\u{2e80}' && !is_unspaced(c))
}

/// A word's other forms are left over in neither text.
fn pair_forms(rest: &mut Vec<&str>, other_rest: &mut Vec<&str>, one: &Content<'_>, two: &Content<'_>, language: Language) {
    let pair = |rest: &mut Vec<&str>, other_rest: &mut Vec<&str>, other: &Content<'_>| {
        rest.retain(|word| {
            if let Some(position) = other_rest.iter().position(|other| is_form_of(language, word, other)) {
                other_rest.swap_remove(position);
                return false;
            }
            // Or one that the other has, though in the same form it is in both: "la cuenta, las cuentas".
            !other.words.iter().any(|(_, other)| is_form_of(language, word, other))
        });
    };
    pair(rest, other_rest, two);
    pair(other_rest, rest, one);
}

/// "login" and "log in": what one text writes as two words and the other as one is left over in neither.
fn pair_joined(rest: &mut Vec<&str>, text: &str, other_rest: &mut Vec<&str>, other: &str) {
    let mut before = "";
    for part in other.split(' ') {
        let is_joined = |word: &&str| !before.is_empty() && word.strip_prefix(before) == Some(part);
        if let Some(joined) = text.split(' ').find(is_joined) {
            rest.retain(|word| *word != joined);
            other_rest.retain(|word| *word != before && *word != part);
        }
        before = part;
    }
}

/// "einlösen" and "löse … ein": what German writes as one word or takes apart.
fn pair_separated(rest: &mut Vec<&str>, text: &str, other_rest: &mut Vec<&str>, other: &str) {
    let before = other.rsplit(' ').next().unwrap_or_default();
    let is_together = |word: &&str, verb: &str| {
        let behind = word.strip_prefix(before).map(|behind| behind.strip_prefix("zu").unwrap_or(behind));
        behind.is_some_and(|behind| verb == behind || is_form_of(Language::German, behind, verb))
    };
    let Some(verb) = other.split(' ').find(|verb| *verb != before && rest.iter().any(|word| is_together(word, verb))) else { return };
    if before.len() > 1 && text != other {
        rest.retain(|word| !is_together(word, verb));
        other_rest.retain(|word| *word != verb && *word != before);
    }
}

/// Words after which comes what something is done to: turned round, they say the reverse.
const TOWARDS: &[&str] = &["after", "before", "from", "into", "onto", "than", "to", "with"];

/// "from A to B" and "from B to A": after the same small word each has a word that the other has elsewhere.
pub(super) fn is_swapped(left: &str, right: &str) -> bool {
    left != right && is_swapped_in(Language::of(left), left, right)
}

fn is_swapped_in(language: Language, left: &str, right: &str) -> bool {
    if left == right {
        return false;
    }
    if language != Language::English {
        return is_swapped_in_other(language, left, right);
    }
    TOWARDS.iter().any(|towards| {
        let only_in = |text: &'_ str, other: &str| -> bool {
            followers(text, towards).any(|word| followers(other, towards).all(|o| o != word) && other.split(' ').any(|o| o == word))
        };
        only_in(left, right) && only_in(right, left)
    })
}

/// The words that follow a word, articles skipped.
fn followers<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = &'a str> {
    let mut parts = text.split(' ');
    std::iter::from_fn(move || {
        parts.by_ref().find(|part| *part == word)?;
        parts.clone().find(|part| !matches!(*part, "a" | "an" | "the" | "my" | "our" | "your"))
    })
}

/// The same in other languages: with words in any form, and where it is so behind them.
fn is_swapped_in_other(language: Language, left: &str, right: &str) -> bool {
    let (left, right) = (telling_words(language, left), telling_words(language, right));
    let is_same = |one: &str, other: &str| one == other || is_form_of(language, one, other);
    language.towards().iter().any(|towards| {
        let only_in = |text: &[(&str, bool)], other: &[(&str, bool)]| {
            let (own, theirs) = (neighbours(language, text, towards), neighbours(language, other, towards));
            let is_elsewhere = |word: &str| other.iter().any(|(other, _)| is_same(word, other));
            own.iter().any(|word| !theirs.iter().any(|other| is_same(word, other)) && is_elsewhere(word))
        };
        only_in(&left, &right) && only_in(&right, &left)
    })
}

/// The words of a text, and whether they mean something.
fn telling_words(language: Language, text: &str) -> Vec<(&str, bool)> {
    let meanings = language.meanings();
    let is_telling = |meaning: Option<&Meaning>| matches!(meaning, None | Some(Meaning::Form(_)));
    let mut words = Vec::with_capacity(16);
    if language.is_unspaced() {
        each_unspaced_word(text, meanings, |word, meaning| words.push((word, is_telling(meaning))));
    } else {
        words.extend(text.split(' ').map(|word| (word, is_telling(meanings.get(&xxh3_64(word.as_bytes()))))));
    }
    words
}

/// The words that mean something next to each place of a small one.
fn neighbours<'a>(language: Language, words: &[(&'a str, bool)], towards: &str) -> Vec<&'a str> {
    let places = words.iter().enumerate().filter(|(_, (word, _))| *word == towards).map(|(place, _)| place);
    let telling = |(word, is_telling): &(&'a str, bool)| is_telling.then_some(*word);
    let next = |place: usize| {
        if language.has_postpositions() {
            words[..place].iter().rev().find_map(telling)
        } else {
            words[place + 1..].iter().find_map(telling)
        }
    };
    places.filter_map(next).collect()
}

/// One slip of the keyboard in a word long enough that hardly another word is so near: two letters swapped, a doubled
/// letter, a letter left out, a vowel for another, British for American.
fn is_slip(left: &str, right: &str) -> bool {
    let (short, long) = if left.len() <= right.len() { (left, right) } else { (right, left) };
    let (short, long) = (short.as_bytes(), long.as_bytes());
    if short.len() < 6 || long.len() - short.len() > 1 || short[0] != long[0] || !left.is_ascii() || !right.is_ascii() {
        return false;
    }
    let same = short.iter().zip(long).take_while(|(a, b)| a == b).count();
    let (short_rest, long_rest) = (&short[same..], &long[same..]);
    let is_near = if short.len() == long.len() {
        match (short_rest, long_rest) {
            ([a, b, rest @ ..], [c, d, other @ ..]) if a == d && b == c => rest == other,
            ([a, rest @ ..], [b, other @ ..]) if rest == other && !rest.is_empty() => {
                matches!((a, b), (b's', b'z') | (b'z', b's')) || (short.len() >= 8 && is_vowel(*a) && is_vowel(*b))
            }
            _ => false,
        }
    } else {
        let is_doubled = long_rest[0] == long[same - 1];
        *short_rest == long_rest[1..] && (is_doubled || (short.len() >= 7 && !short_rest.is_empty()))
    };
    is_near && !is_confusable(left, right)
}

fn is_vowel(letter: u8) -> bool {
    matches!(letter, b'a' | b'e' | b'i' | b'o' | b'u' | b'y')
}

/// One letter put for another, anywhere in a long word; in a shorter one only a vowel for a consonant, which hardly gives a word. Two in a
/// very long word, one of them such: so are two misspellings of one word.
fn has_wrong_letters(left: &str, right: &str) -> bool {
    let is_word = |text: &str| text.bytes().all(|letter| letter.is_ascii_lowercase());
    if left.len() != right.len() || left.len() < 6 || !is_word(left) || !is_word(right) {
        return false;
    }
    let differing: Vec<bool> = left
        .bytes()
        .zip(right.bytes())
        .filter(|(one, other)| one != other)
        .map(|(one, other)| is_vowel(one) != is_vowel(other))
        .take(3)
        .collect();
    let is_near = match differing[..] {
        [is_vowel_for_consonant] => left.len() >= 8 || is_vowel_for_consonant,
        [one, other] => left.len() >= 9 && (one || other),
        _ => false,
    };
    is_near && !is_confusable(left, right)
}

fn is_confusable(left: &str, right: &str) -> bool {
    CONFUSABLE.iter().any(|(a, b)| (*a == left && *b == right) || (*a == right && *b == left))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare(left: &str, right: &str) -> Verdict {
        super::compare(&Words::of(left), &Words::of(right), Sought::SameQuestion)
    }

    #[test]
    fn a_slip_is_told_from_another_word() {
        for (left, right) in [
            ("adress", "address"),
            ("recieve", "receive"),
            ("databse", "database"),
            ("seperate", "separate"),
            ("organisation", "organization"),
            ("pacakge", "package"),
        ] {
            assert!(is_slip(left, right) && is_slip(right, left), "{left} / {right}");
        }
        for (left, right) in [
            ("contract", "contact"),
            ("provide", "provider"),
            ("employer", "employee"),
            ("austria", "australia"),
            ("granada", "grenada"),
            ("encrypt", "decrypt"),
            ("trail", "trial"),
            ("größer", "grösser"),
            ("personal", "personnel"),
        ] {
            assert!(!is_slip(left, right) && !is_slip(right, left), "{left} / {right}");
        }
    }

    #[test]
    fn a_respelled_question_is_told_from_a_reworded_one() {
        for (left, right) in [
            ("thremostat does not heat", "thermostat does not heat"),
            ("warrenty for headphones", "warranty for my headphones"),
            ("seperate billing acount", "separate billing account"),
        ] {
            assert!(is_misspelled(left, right) && is_misspelled(right, left), "{left} / {right}");
        }
        for (left, right) in [
            ("thermostat does not heat", "thermostat does not heat"),
            ("price of the plan", "plan cost"),
            ("log in page", "login page"),
            ("warrenty for headphones", "warranty for speakers"),
            ("contract of the supplier", "contact of the supplier"),
        ] {
            assert!(!is_misspelled(left, right) && !is_misspelled(right, left), "{left} / {right}");
        }
    }

    #[test]
    fn one_wrong_letter_is_a_misspelling() {
        let word = "thermostat";
        for (position, letter) in (0..word.len()).flat_map(|position| ('a'..='z').map(move |letter| (position, letter))) {
            let mut other = word.to_owned();
            other.replace_range(position..=position, &letter.to_string());
            let (left, right) = (format!("{word} does not heat"), format!("{other} does not heat"));
            assert_eq!(is_misspelled(&left, &right), other != word, "{other}");
        }
        assert!(is_misspelled("router restarts at night", "rxuter restarts at night"));
        assert!(is_misspelled("txermostat does not heat", "thermxstat does not heat"), "two misspellings of one word");
        for (left, right) in [
            ("delivery by monday", "delivery by sunday"),
            ("weather in granada", "weather in grenada"),
            ("mobile plans", "mobile planx"),
            ("thermostat does not heat", "txexmosxat does not heat"),
            ("production plan", "protection plan"),
            ("conversion rate", "convention rate"),
            ("complement of the order", "compliment of the order"),
            ("thermostat manual", "txermostat does not heat"),
        ] {
            assert!(!is_misspelled(left, right), "{left} / {right}");
        }
    }

    #[test]
    fn what_is_left_over_decides() {
        for (left, right, verdict) in [
            ("show me the price of the plan", "plan cost", Verdict::Same),
            ("id like to know the plan price", "plan price", Verdict::Same),
            ("customer id", "customer", Verdict::Different),
            ("log in page", "login page", Verdict::Same),
            ("web site speed", "website speed", Verdict::Same),
            ("red shoes", "blue shoes", Verdict::Different),
            ("red shoes", "shoes", Verdict::Different),
            ("train from vienna to graz", "train to graz from vienna", Verdict::Same),
            ("train from vienna to graz", "train from graz to vienna", Verdict::Different),
            ("letters to the landlord", "letters from the landlord", Verdict::Different),
            ("where does it happen", "when does it happen", Verdict::Different),
            ("delete the backups", "delete all backups", Verdict::Different),
            ("list the backups", "list all backups", Verdict::Same),
            ("show canceled orders", "cancel orders", Verdict::Different),
            ("show me how to cancel orders", "cancel orders", Verdict::Same),
            ("help me cancel an order", "cancel order", Verdict::Same),
            ("python list methods", "python dict methods", Verdict::Different),
            ("how long is the warranty on the heat pump", "heat pump warranty length", Verdict::Same),
            ("how far is the stop from the hotel", "distance of the stop from the hotel", Verdict::Same),
            ("how long is the lease", "how old is the lease", Verdict::Different),
            ("how to make a long call", "call length", Verdict::Different),
            ("what is it", "how are you", Verdict::Open),
            ("退款政策是什么", "退款政策是", Verdict::Same),
            ("退款政策", "退货政策", Verdict::Different),
            ("환불 정책이 뭐예요", "환불 정책", Verdict::Open),
        ] {
            assert_eq!(compare(left, right), verdict, "{left} / {right}");
            assert_eq!(compare(right, left), verdict, "{right} / {left}");
        }
    }

    #[test]
    fn what_may_be_an_order_or_not_is_one_topic_where_it_is_written_alike() {
        for (left, right, is_topic) in [
            ("tell me the refund policy", "refund policy", true),
            ("show open tickets", "open tickets", true),
            ("show canceled orders", "cancel orders", false),
            ("list deleted users", "delete users", false),
            ("tell me the refund policy", "refund rules", false),
            ("delete the backups", "delete all backups", false),
        ] {
            for (left, right) in [(left, right), (right, left)] {
                let verdict = super::compare(&Words::of(left), &Words::of(right), Sought::Topic);
                assert_eq!(verdict == Verdict::Same, is_topic, "{left} / {right}");
                assert_eq!(compare(left, right), Verdict::Different, "{left} / {right}: another question, or it may be one");
            }
        }
    }

    #[test]
    fn most_words_of_the_shorter_make_it_about_the_same_thing() {
        for (left, right, akin) in [
            ("apac q3 revenue", "asia pacific q3 revenue breakdown", true),
            ("apac q3 revenue", "q3 apac quarterly financial results", true),
            ("q3 revenue", "q3 costs", false),
            ("q3 operating costs", "q3 operating margin", false),
            ("red shoes", "blue shoes", false),
            ("refunds", "refund policy for damaged items", false),
            ("train from vienna to graz", "cheap train from graz to vienna", false),
            ("退款政策是什么", "退款政策是", false),
        ] {
            assert_eq!((is_akin(left, right), is_akin(right, left)), (akin, akin), "{left} / {right}");
        }
    }

    #[test]
    fn one_word_more_among_many_is_left_to_the_ratio() {
        let many = "quarterly revenue churn margin forecast region product segment channel";
        assert_eq!(compare(many, &format!("{many} partner")), Verdict::Open);
        assert_eq!(compare(many, &many.replace("channel", "partner")), Verdict::Different);
        let words = |from: usize, to: usize| (from..to).map(|n| format!("word{n}")).collect::<Vec<_>>().join(" ");
        assert_eq!(compare(&words(0, 129), &words(0, 129)), Verdict::Open, "too many to compare one by one");
        assert_eq!(compare(&words(0, 20), &words(10, 30)), Verdict::Different);
    }
}
