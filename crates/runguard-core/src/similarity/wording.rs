//! Word forms and synonyms, for those who want them: which words count as one when words are compared.

use serde::{Deserialize, Serialize};

/// Words that carry no meaning of their own. Not among them are those that turn a meaning round: to, from, with, without.
const SMALL: &[&str] = &[
    "a", "about", "an", "and", "are", "at", "by", "can", "could", "did", "do", "does", "for", "how", "i", "in", "is", "it", "its", "me",
    "my", "of", "on", "our", "please", "s", "that", "the", "this", "was", "we", "were", "what", "whats", "which", "would", "you", "your",
];
/// A stem shorter than this is no stem.
const SHORTEST_STEM: usize = 3;

/// What is the same word when the words of two queries are compared. By default only a word itself is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Wording {
    /// English word forms (`query`, `queries`; `configure`, `configuring`) are one word, and small words (`the`, `of`)
    /// are left out.
    pub stem: bool,
    /// Groups of words that mean the same, in lower case.
    pub synonyms: Vec<Vec<String>>,
}

impl Wording {
    /// Every word is only itself.
    pub const PLAIN: &'static Self = &Self { stem: false, synonyms: Vec::new() };

    pub(super) fn is_plain(&self) -> bool {
        !self.stem && self.synonyms.is_empty()
    }

    /// What a normalised word counts as; `None` when it does not count.
    pub(super) fn form<'a>(&'a self, word: &'a str) -> Option<&'a str> {
        if self.stem && SMALL.contains(&word) {
            return None;
        }
        let own = if self.stem { stem(word) } else { word };
        let is_own = |other: &String| other == word || (self.stem && stem(other) == own);
        match self.synonyms.iter().find(|group| group.iter().any(is_own)) {
            Some(group) => group.first().map(|first| if self.stem { stem(first) } else { first }),
            None => Some(own),
        }
    }
}

/// Without the ending of a plural or a verb. It need not be right, only the same for the forms of one word.
pub(super) fn stem(word: &str) -> &str {
    if !word.is_ascii() || word.len() <= SHORTEST_STEM {
        return word;
    }
    let without = |ending: &str| {
        let stem = word.strip_suffix(ending).filter(|stem| stem.len() >= SHORTEST_STEM)?;
        // "deploy" has no other form of its y, "query" has.
        (ending != "y" || !stem.ends_with(['a', 'e', 'o', 'u'])).then_some(stem)
    };
    let stem = if word.ends_with("ss") || word.ends_with("us") || word.ends_with("is") {
        word
    } else {
        ["ies", "ing", "es", "ed", "s", "y"].iter().find_map(|ending| without(ending)).unwrap_or(word)
    };
    let stem = &stem[..stem.trim_end_matches('e').len().max(SHORTEST_STEM)];
    let [.., before, last] = stem.as_bytes() else { return stem };
    let is_doubled = before == last && !matches!(last, b'l' | b's' | b'z');
    if is_doubled && stem.len() > SHORTEST_STEM && stem.len() < word.len() { &stem[..stem.len() - 1] } else { stem }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_a_word_are_one_word() {
        for forms in [
            &["query", "queries"][..],
            &["configure", "configures", "configured", "configuring"],
            &["deploy", "deploys", "deployed", "deploying"],
            &["stop", "stops", "stopped", "stopping"],
            &["process", "processes", "processing"],
            &["employee", "employees"],
        ] {
            assert!(forms.iter().all(|form| stem(form) == stem(forms[0])), "{forms:?}: {}", stem(forms[0]));
        }
        for (left, right) in [("status", "state"), ("user", "using"), ("bus", "but"), ("ring", "red"), ("größen", "größe")] {
            assert_ne!(stem(left), stem(right));
        }
    }

    #[test]
    fn synonyms_count_as_the_first_of_their_group() {
        let synonyms = vec![vec!["fix".to_owned(), "resolve".to_owned()], vec!["bug".to_owned(), "issue".to_owned()]];
        let plain = Wording { stem: false, synonyms: synonyms.clone() };
        assert_eq!((plain.form("resolve"), plain.form("issues"), plain.form("the")), (Some("fix"), Some("issues"), Some("the")));
        let stemming = Wording { stem: true, synonyms };
        assert_eq!((stemming.form("resolved"), stemming.form("issues"), stemming.form("the")), (Some("fix"), Some("bug"), None));
    }
}
