//! Which words are forms of one word: the same beginning, and endings that its language puts behind one beginning.
//!
//! Two words are compared, not each cut to a stem: "puerto" and "puerta" have one stem and are two things, "cancelo" and "cancelar" are
//! one. So it matters which endings stand beside each other.

use super::Language;

/// What kind of word an ending makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Of nouns and adjectives.
    Noun,
    /// Of verbs, and too short to tell by themselves.
    Verb,
    /// Of verbs or of nouns made from them, and such that nothing else ends so.
    CallEffect,
}

struct Endings {
    /// Letters that the forms have in common at least.
    least: usize,
    noun: &'static str,
    verb: &'static str,
    effect: &'static str,
    /// Kinds that stand beside each other, besides two of nouns, two of effects, and a verb and a effect.
    beside: &'static [(Kind, Kind)],
    /// Endings that do not, though their kinds do.
    apart: &'static [(&'static str, &'static str)],
}

/// A dash is no ending at all.
const GERMAN: Endings = Endings {
    least: 4,
    noun: "- s es e en n em er ern",
    verb: "t te ten st et e en n",
    effect: "ung ungen",
    beside: &[(Kind::Verb, Kind::Verb)],
    apart: &[("er", "e"), ("er", "en"), ("er", "n"), ("ern", "e"), ("ern", "en"), ("ern", "n"), ("er", "s")],
};
const SPANISH: Endings = Endings {
    least: 3,
    noun: "- s es",
    verb: "o a as an e en es",
    effect: "ar er ir ando iendo ado ada ados adas ido ida aste aron ieron amos emos imos acion aciones arme arlo arla",
    beside: &[],
    apart: &[],
};
const FRENCH: Endings = Endings {
    least: 3,
    noun: "- s x",
    verb: "e es ent ee ees",
    effect: "er ez ons ant ation ations ement ements ir issez",
    beside: &[],
    apart: &[],
};
const RUSSIAN: Endings = Endings {
    least: 3,
    noun: "- а я о е ы и у ю ь ом ем ам ям ах ях ами ями ов ев еи ои ью ия ии ию ие ием иям иях ыи ая ое ые ого его ому ему ым им ых их ую юю \
        ою ею яя ее ими ыми",
    verb: "л ла ли ло у ю ет ит ут ют ат ят ешь ишь ете ите ем им ает яет ают яют ал ала али ало ил ила или ило ан ана ано аны ен ена ено ены \
        ится ается аются илась ился аю яю",
    effect: "ать ять еть ить уть ти аться яться иться ировать ироваться ение ения ению ением ание ания анию ация ации ацию ациеи",
    beside: &[(Kind::Verb, Kind::Verb), (Kind::Noun, Kind::CallEffect)],
    apart: &[],
};
const HINDI: Endings = Endings {
    least: 2,
    noun: "- े ों ें ियां ियों यां यों ओं एं ं ा ी",
    verb: "- े ें ूं ो एं ऊं ओ ता ते ती ा ी",
    effect: "ना ने नी ेगा ेगी ेंगे एगा एगी एंगे इए िए कर",
    beside: &[(Kind::Verb, Kind::Verb)],
    apart: &[("ा", "ी"), ("-", "ा"), ("-", "ी"), ("-", "े"), ("-", "ता"), ("-", "ती"), ("-", "ते")],
};

impl Endings {
    fn kinds(&self, ending: &str) -> impl Iterator<Item = Kind> {
        let lists = [(Kind::Noun, self.noun), (Kind::Verb, self.verb), (Kind::CallEffect, self.effect)];
        lists.into_iter().filter(move |(_, list)| list.split_whitespace().any(|other| other == ending)).map(|(kind, _)| kind)
    }

    fn stand_beside(&self, left: &str, right: &str) -> bool {
        let named = |ending: &'_ str| if ending.is_empty() { "-" } else { ending }.to_owned();
        let (left, right) = (named(left), named(right));
        let is_apart = |(one, other): &(&str, &str)| (*one == left && *other == right) || (*one == right && *other == left);
        if self.apart.iter().any(is_apart) {
            return false;
        }
        self.kinds(&left).any(|one| {
            self.kinds(&right).any(|other| match (one, other) {
                (Kind::Noun, Kind::Noun) | (Kind::CallEffect, Kind::CallEffect | Kind::Verb) | (Kind::Verb, Kind::CallEffect) => true,
                pair => self.beside.contains(&pair) || self.beside.contains(&(other, one)),
            })
        })
    }

    fn have_one_beginning(&self, left: &str, right: &str) -> bool {
        let mut cuts =
            left.char_indices().zip(right.chars()).take_while(|((_, one), other)| one == other).map(|((at, one), _)| at + one.len_utf8());
        cuts.by_ref().nth(self.least - 2);
        cuts.any(|cut| self.stand_beside(&left[cut..], &right[cut..]))
    }
}

/// Whether two normalised words are forms of one.
pub(in super::super) fn is_form_of(language: Language, left: &str, right: &str) -> bool {
    match language {
        Language::English | Language::Other | Language::Chinese => false,
        Language::German => is_german(left, right) || is_german(right, left),
        Language::Spanish => SPANISH.have_one_beginning(left, right),
        Language::French => FRENCH.have_one_beginning(left, right),
        Language::Russian => RUSSIAN.have_one_beginning(left, right),
        Language::Hindi => HINDI.have_one_beginning(left, right),
        Language::Arabic => is_arabic(left, right),
        Language::Japanese => is_japanese(left, right),
    }
}

fn is_german(left: &str, right: &str) -> bool {
    let without_ge = || left.strip_prefix("ge").filter(|rest| rest.len() > GERMAN.least && left.ends_with('t'));
    GERMAN.have_one_beginning(left, right)
        || without_ge().is_some_and(|rest| GERMAN.have_one_beginning(rest, right))
        || (is_spelled_out(left) && is_same_without_dots(left, right))
}

/// Umlauts written as two letters: "aendern".
fn is_spelled_out(word: &str) -> bool {
    UMLAUTS.iter().any(|(two, _)| word.contains(two))
}

const UMLAUTS: [(&str, &str); 3] = [("ae", "a"), ("oe", "o"), ("ue", "u")];

fn is_same_without_dots(left: &str, right: &str) -> bool {
    let plain = UMLAUTS.iter().fold(left.to_owned(), |word, (two, one)| word.replace(two, one));
    plain == right || GERMAN.have_one_beginning(&plain, right)
}

/// Articles, "and" and prepositions are written before a word, pronouns and plurals behind it.
const ARABIC_BEFORE: [&str; 11] = ["", "ال", "و", "وال", "ب", "بال", "ل", "لل", "ف", "ك", "كال"];
const ARABIC_BEHIND: [&str; 16] = ["", "ي", "ك", "ه", "ها", "نا", "كم", "هم", "ات", "ين", "ون", "ان", "تي", "تك", "ته", "تنا"];
/// Of a verb in the present: "احذف" is "حذف". Longer words begin so by themselves.
const ARABIC_PRESENT: [&str; 4] = ["ا", "ي", "ت", "ن"];
const ARABIC_ROOT: usize = 3;

fn is_arabic(left: &str, right: &str) -> bool {
    let of_left = arabic_stems(left);
    arabic_stems(right).iter().any(|stem| of_left.contains(stem))
}

fn arabic_stems(word: &str) -> Vec<&str> {
    let is_long = |stem: &&str| stem.chars().count() >= ARABIC_ROOT;
    let mut stems: Vec<&str> = ARABIC_BEFORE
        .iter()
        .filter_map(|before| word.strip_prefix(before))
        .flat_map(|rest| ARABIC_BEHIND.iter().filter_map(move |behind| rest.strip_suffix(behind)))
        .filter(is_long)
        .collect();
    let verbs = ARABIC_PRESENT.iter().filter_map(|before| word.strip_prefix(before));
    stems.extend(verbs.filter(|stem| stem.chars().count() == ARABIC_ROOT));
    stems
}

/// A verb in hiragana changes its last sign: つながら, つながり.
fn is_japanese(left: &str, right: &str) -> bool {
    let is_verb = |word: &str| word.chars().count() >= 3 && word.chars().all(super::is_hiragana);
    let beginning = |word: &str| word.char_indices().next_back().map_or(0, |(last, _)| last);
    is_verb(left) && is_verb(right) && left[..beginning(left)] == right[..beginning(right)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_a_word_are_told_from_other_words() {
        for (language, left, right) in [
            (Language::Russian, "ошибка", "ошибки"),
            (Language::Russian, "удалить", "удаление"),
            (Language::Russian, "заблокирован", "заблокировали"),
            (Language::German, "rechnung", "rechnungen"),
            (Language::German, "gesperrt", "sperren"),
            (Language::German, "kundigung", "kundigen"),
            (Language::German, "aendern", "andern"),
            (Language::Spanish, "cancelo", "cancelar"),
            (Language::Spanish, "factura", "facturas"),
            (Language::French, "activation", "activer"),
            (Language::French, "factures", "facture"),
            (Language::Arabic, "الحساب", "حسابي"),
            (Language::Arabic, "بطاقه", "بطاقتي"),
            (Language::Arabic, "احذف", "حذف"),
            (Language::Hindi, "टिकट", "टिकटें"),
            (Language::Hindi, "बदलना", "बदलें"),
            (Language::Japanese, "つながら", "つながり"),
        ] {
            assert!(is_form_of(language, left, right) && is_form_of(language, right, left), "{left} / {right}");
        }
        for (language, left, right) in [
            (Language::Spanish, "puerto", "puerta"),
            (Language::Spanish, "plata", "plato"),
            (Language::French, "port", "porte"),
            (Language::German, "rechner", "rechnung"),
            (Language::German, "mieter", "miete"),
            (Language::Russian, "права", "правила"),
            (Language::Russian, "код", "кот"),
            (Language::Arabic, "كتاب", "مكتب"),
            (Language::Arabic, "عمال", "اعمال"),
            (Language::Hindi, "लडका", "लडकी"),
            (Language::English, "rechnung", "rechnungen"),
        ] {
            assert!(!is_form_of(language, left, right) && !is_form_of(language, right, left), "{left} / {right}");
        }
    }
}
