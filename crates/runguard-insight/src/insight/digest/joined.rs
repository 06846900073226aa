//! Topics of different sessions that ask for the same, put together.
//!
//! Within a session the guard itself puts a rephrased query into its topic; what other sessions asked it does not know. Here, where
//! the log is read, topics are joined by their words, with a rule that is a little looser ([`Reading::is_same_topic`]), because nobody is
//! refused by it. The heaviest topic comes first and leads; each further one joins the first leader it is similar to, or leads itself. So
//! no chain of small differences joins what is far apart, and the same cells give the same topics, in whatever order they were written.
//! What has no words (they are not kept) stays by itself.

use super::{Cell, MOST_ENTRIES, OTHER};
use runguard_core::similarity::{Gist, Reading};
use std::cmp::Reverse;

/// Topics that are compared: those asked most. Of the rest, which stay by themselves, as many are looked at as can be shown.
pub(super) const MOST_COMPARED: usize = 1_000;
/// Topics that others may join.
pub(super) const MOST_LEADERS: usize = 200;
/// Other words that are shown.
const MOST_WORDINGS: usize = 5;
/// A digest in the place of a name: no words.
const DIGEST_DIGITS: usize = 16;

#[derive(Debug)]
pub(super) struct Joined<'a> {
    /// The leader's.
    pub(super) name: &'a str,
    pub(super) label: String,
    pub(super) also: Vec<String>,
    pub(super) members: Vec<&'a str>,
    pub(super) cell: Cell,
}

impl<'a> Joined<'a> {
    fn lead(name: &'a str, cell: &Cell) -> Self {
        let label = cell.label.as_ref().map(|label| label.text.to_string()).unwrap_or_default();
        Self { name, label, also: Vec::new(), members: vec![name], cell: cell.clone() }
    }

    fn take(&mut self, name: &'a str, cell: &Cell) {
        self.members.push(name);
        self.cell.add(cell);
        let words = words(name, cell);
        if self.also.len() < MOST_WORDINGS && words != self.label && !self.also.iter().any(|known| known == words) {
            self.also.push(words.to_owned());
        }
    }
}

pub(super) fn join<'a, 'b>(topics: impl Iterator<Item = (&'a str, &'b Cell)>) -> Vec<Joined<'a>> {
    let mut topics: Vec<(&str, &Cell)> = topics.collect();
    let rank = |(name, cell): &(&'a str, &Cell)| (Reverse(cell.allowed + cell.blocked), Reverse(cell.count), *name);
    let looked_at = MOST_COMPARED + MOST_ENTRIES;
    if topics.len() > looked_at {
        topics.select_nth_unstable_by_key(looked_at, rank);
        topics.truncate(looked_at);
    }
    topics.sort_by_key(rank);
    let mut joined: Vec<Joined<'a>> = Vec::new();
    // Each is compared with many: its words are read once.
    let gists: Vec<Gist> = topics.iter().take(MOST_COMPARED).map(|(name, cell)| Gist::whole(words(name, cell))).collect();
    let readings: Vec<Reading<'_>> = gists.iter().map(Gist::reading).collect();
    let mut leaders: Vec<(usize, &Reading<'_>)> = Vec::new();
    for (rank, (name, cell)) in topics.into_iter().enumerate() {
        let reading = readings.get(rank).filter(|_| !gists[rank].is_blank());
        let leader = reading.and_then(|reading| leaders.iter().find(|(_, other)| other.is_same_topic(reading)));
        if let Some((leader, _)) = leader {
            joined[*leader].take(name, cell);
            continue;
        }
        if let Some(reading) = reading.filter(|_| leaders.len() < MOST_LEADERS) {
            leaders.push((joined.len(), reading));
        }
        joined.push(Joined::lead(name, cell));
    }
    joined
}

/// What was asked, as far as it is kept; else the name, where that is words.
fn words<'a>(name: &'a str, cell: &'a Cell) -> &'a str {
    if let Some(label) = &cell.label {
        return &label.text;
    }
    if is_digest(name) || name == OTHER { "" } else { name }
}

/// Whether a name is what stands in the place of words.
pub fn is_digest(name: &str) -> bool {
    name.len() == DIGEST_DIGITS && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}
