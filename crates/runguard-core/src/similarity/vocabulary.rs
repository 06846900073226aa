//! What single words mean when two queries are compared. English, as far as it goes: a word that is not here is only itself. Words of
//! other languages are here to tell that a text is in one of them (`language.rs`).

use super::content::HOW;
use super::language::telling_words;
use super::wording::stem;
use super::{CLASSES, DATE_WORDS, NEGATION, NEGATIONS};
use crate::hashed::HashedMap;
use std::sync::LazyLock;
use xxhash_rust::xxh3::xxh3_64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// None of its own.
    Small,
    /// The same, and other languages have it too.
    Shared,
    /// A word of other languages, with a bit for each of them. In English it may be one of no meaning.
    Foreign {
        languages: u8,
        is_small: bool,
    },
    /// It denies, where that is not seen before words are compared.
    Not,
    /// None before the first word that has one: "show the users", but "a show".
    SmallFirst,
    /// None in "how does it work".
    SmallAfterHow,
    /// After "how" it asks for a noun: "how long" for the length.
    Measures(u64),
    /// "id", or what is left of "I'd".
    Id,
    From,
    To,
    All,
    Asks(u8),
    /// A dangerous word, whatever its form.
    Danger(u64),
    /// What a word counts as.
    Form(u64),
}

pub(super) type Meanings = HashedMap<u64, Meaning>;

const SMALL: &str = "a able about actually already also am an and any are as at be because been being but by can could currently dear did do \
    does doing ever exactly for general generally had happens has have having hello help here hey hi i if im in info information into is it its \
    ive just kindly know let like main me might much must my now of on onto our ours please possible really s shall should so some still \
    than thank thanks that the their them there theres these they this those us use used uses using very want wanted wants was way we were \
    what whats which will wish with would yet you your yours \
    need needed needs il lo";
/// Articles of other languages, which are in names that English has taken from them.
const ARTICLES: &str = "der den dem das ein eine einen einer le la les un une el los las";
/// Their "not" has been compared before.
const CONTRACTIONS: &str = "arent couldnt didnt doesnt hadnt hasnt havent shouldnt wasnt werent wouldnt";
const SMALL_FIRST: &str = "check display explain fetch find finding get getting give list look looking lookup provide retrieve search searching see \
    show showing tell";
const SMALL_AFTER_HOW: &str = "take takes work works go";
/// What "how" asks for with each of these.
const MEASURES: &[(&str, &str)] = &[
    ("deep", "depth"),
    ("far", "distance"),
    ("heavy", "weight"),
    ("high", "height"),
    ("long", "length"),
    ("often", "frequency"),
    ("old", "age"),
    ("tall", "height"),
    ("wide", "width"),
];
const ALL: &str = "all each every everything";
const ASKS: &[(&str, u8)] = &[
    ("how", HOW),
    ("hows", HOW),
    ("when", 2),
    ("whens", 2),
    ("where", 4),
    ("wheres", 4),
    ("who", 8),
    ("whos", 8),
    ("whose", 8),
    ("whom", 8),
    ("why", 16),
    ("whys", 16),
];
/// Words whose ending is no ending.
const THEMSELVES: &str = "news police trainee payee species series means goods";

/// Words that mean the same wherever people search; dangerous words are not among them. Irregular forms and the other
/// English are here too.
const SYNONYMS: &str = "\
    cost price pricing; shipping shipment ship delivery deliver; customer client; employee staff; vacation holiday; shop store; \
    biggest largest; big large; small little; photo picture image photograph pic; newest latest; bill invoice; wrong incorrect; \
    phone telephone; app application; quick fast rapid; documentation docs doc; database db; config configuration configure; \
    repo repository; permission right privilege; bug defect; issue problem; fix repair resolve; env environment; prod production; \
    dev development; login signin logon; movie film; salary wage; flat apartment; cheap inexpensive affordable; parcel package; \
    change modify edit alter; doctor physician; maximum max; minimum min; child children kid; bike bicycle; trousers pants; \
    average mean avg; car automobile; email mail; website site; computer pc; tv television; voucher coupon; discount rebate; \
    company firm; country nation; city town; road street; guide tutorial; example sample; folder directory dir; variable var; \
    parameter param; argument arg; library lib; admin administrator; password passwd pwd; authentication auth authenticate; \
    specification spec; message msg; item product; near nearby; quote quotation; choose select pick chose chosen; \
    lawyer attorney; disease illness sickness; medicine medication; petrol gasoline; sofa couch; fridge refrigerator; \
    javascript js; typescript ts; postgres postgresql; regex regexp; temporary temp; notebook laptop; hire recruit; rent lease; \
    color colour; center centre; catalog catalogue; gray grey; license licence; favorite favourite; behavior behaviour; \
    dialog dialogue; program programme; tire tyre; jewelry jewellery; neighbor neighbour; labor labour; \
    person people; man men; woman women; send sent; write wrote written; make made; build built; break broke broken; lose lost; \
    run ran; index indices; criterion criteria; analysis analyses analyze analyse; \
    implementation implement; verification verify; notification notify; integration integrate; migration migrate; \
    translation translate; registration register; reservation reserve; validation validate; calculation calculate; \
    replication replicate; compression compress; calendar calender; length duration";

/// Words one slip apart that are two words.
pub(super) const CONFUSABLE: &[(&str, &str)] = &[
    ("adaption", "adoption"),
    ("baiser", "baisser"),
    ("bieten", "bitten"),
    ("carton", "cartoon"),
    ("casual", "causal"),
    ("complement", "compliment"),
    ("contact", "contract"),
    ("contacts", "contracts"),
    ("cousin", "coussin"),
    ("desert", "dessert"),
    ("diner", "dinner"),
    ("discreet", "discrete"),
    ("exciting", "exiting"),
    ("exercise", "exorcise"),
    ("filing", "filling"),
    ("hoping", "hopping"),
    ("infarction", "infraction"),
    ("interstate", "intrastate"),
    ("inflection", "infection"),
    ("marital", "martial"),
    ("morality", "mortality"),
    ("planed", "planned"),
    ("poison", "poisson"),
    ("prescribe", "proscribe"),
    ("staring", "starring"),
    ("stationary", "stationery"),
    ("though", "through"),
    ("united", "untied"),
];

/// By the hash of the word, and for synonyms of its stem.
pub(super) static MEANINGS: LazyLock<Meanings> = LazyLock::new(|| {
    let hash = |word: &str| xxh3_64(word.as_bytes());
    let telling = telling_words();
    let mut meanings: Meanings =
        telling.iter().map(|(word, languages)| (*word, Meaning::Foreign { languages: *languages, is_small: false })).collect();
    for group in SYNONYMS.split(';') {
        let mut words = group.split_whitespace();
        let Some(first) = words.next() else { continue };
        let form = Meaning::Form(hash(first));
        for word in words.chain([first]) {
            meanings.insert(hash(word), form);
            meanings.insert(hash(stem(word)), form);
        }
    }
    let mut say = |words: &str, meaning: &dyn Fn(&str) -> Meaning| {
        meanings.extend(words.split_whitespace().map(|word| (hash(word), meaning(word))));
    };
    // Not in the table: its stem would be "man".
    say("many", &|_| Meaning::Form(hash("number")));
    say(THEMSELVES, &|word| Meaning::Form(hash(word)));
    say(ARTICLES, &|word| Meaning::Foreign { languages: telling.get(&hash(word)).copied().unwrap_or_default(), is_small: true });
    let is_shared = |word: &str| matches!(word, "a" | "s") || telling.contains_key(&hash(word));
    say(SMALL, &|word| if is_shared(word) { Meaning::Shared } else { Meaning::Small });
    say(CONTRACTIONS, &|_| Meaning::Small);
    say(SMALL_FIRST, &|_| Meaning::SmallFirst);
    say(SMALL_AFTER_HOW, &|_| Meaning::SmallAfterHow);
    say(ALL, &|_| Meaning::All);
    say("from", &|_| Meaning::From);
    say("to", &|_| Meaning::To);
    say("id", &|_| Meaning::Id);
    for (word, noun) in MEASURES {
        let form = meanings.get(&hash(noun)).copied();
        let form = if let Some(Meaning::Form(form)) = form { form } else { hash(stem(noun)) };
        meanings.insert(hash(word), Meaning::Measures(form));
    }
    meanings.extend(ASKS.iter().map(|(word, bit)| (hash(word), Meaning::Asks(*bit))));
    // Of what must not differ, other languages' words that deny are left as they are.
    let dangers = CLASSES.iter().filter(|(word, class)| **class > NEGATION && !telling.contains_key(*word));
    meanings.extend(dangers.map(|(word, class)| (*word, Meaning::Danger(*class))));
    meanings.extend(DATE_WORDS.iter().map(|word| (hash(word), Meaning::Form(hash(word)))));
    meanings.extend(NEGATIONS.iter().map(|word| (hash(word), Meaning::Small)));
    meanings
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_means_one_thing() {
        let groups: Vec<Vec<&str>> = SYNONYMS.split(';').map(|group| group.split_whitespace().collect()).collect();
        let mut seen = std::collections::BTreeMap::new();
        for (number, word) in groups.iter().enumerate().flat_map(|(number, group)| group.iter().map(move |word| (number, *word))) {
            assert!(seen.insert(stem(word), number).is_none_or(|other| other == number), "`{word}` is in two groups");
            assert!(
                CLASSES.get(&xxh3_64(word.as_bytes())).is_none_or(|class| *class == 0),
                "`{word}` must not differ, so it has no synonyms"
            );
            assert!(matches!(MEANINGS[&xxh3_64(word.as_bytes())], Meaning::Form(_)), "`{word}` is a small word too");
        }
    }
}
