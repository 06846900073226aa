//! What is remembered beside the pairs: what files held, and what checks gave.
//!
//! All of it counts whatever the thresholds are, so that a state is the same under all settings.

use super::effect::CallEffect;
use super::kind::Kinds;

/// States of files that are remembered, the oldest first. Beyond them the oldest is forgotten.
const FILE_STATES: usize = 40;
/// Calls whose outcome is followed across changes.
const CHECKS: usize = 24;
/// Elements of web pages that are remembered. Beyond them the earliest is forgotten, and would count as new again.
const TARGETS: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Memory {
    /// Changes that succeeded.
    changes: u32,
    /// What files held after each change: the file, and a number for what was in it.
    files: Vec<(u64, u64)>,
    /// The least recent first.
    checks: Vec<Check>,
    /// What the latest looks gave, when they gave the same.
    same: Same,
    /// Calls in a row that failed.
    failing: u32,
    /// Whether the run ever showed one of the signs that say something of a long run: a check that failed again after a change, whatever
    /// it said, or a file that was put back again and again.
    sign: bool,
    /// Tokens that were used, as far as they were told.
    tokens: u64,
    /// Of them those that were known at the call before.
    tokens_judged: u64,
    /// What was acted on in web pages, the earliest first.
    targets: Vec<u64>,
    /// The latest pairs, newest in the lowest bit, as they are when web actions are told apart by their targets: 1 is new. From the
    /// first such action on; before it both ways of telling them apart are one.
    news_by_target: u64,
    /// What kinds of calls the run began with.
    kinds: Kinds,
}

/// Where the kinds of calls stand in the first word, and whether there are targets.
const KINDS: u32 = 19;
const HAS_TARGETS: u32 = KINDS + Kinds::BITS;

/// The last bit of what a check gave says whether it failed.
const FAILED: u64 = 1;

/// A call, and how often it gave the same although something was changed in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Check {
    call: u64,
    gave: u64,
    times: u32,
    /// How many changes there were when it was made.
    changes: u32,
}

/// Looks of one tool in a row that gave the same for other arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Same {
    tool: u64,
    gave: u64,
    /// Of the call before.
    call: u64,
    times: u32,
}

impl Memory {
    /// Whether nothing is in it, as in a state from before there was one.
    fn is_new(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn clear(&mut self) {
        self.files.clear();
        self.checks.clear();
        self.targets.clear();
        let (files, checks) = (std::mem::take(&mut self.files), std::mem::take(&mut self.checks));
        *self = Self { files, checks, targets: std::mem::take(&mut self.targets), ..Self::default() };
    }

    pub(super) const fn kinds(&self) -> Kinds {
        self.kinds
    }

    pub(super) const fn kinds_mut(&mut self) -> &mut Kinds {
        &mut self.kinds
    }

    /// Takes a pair, which is new or not, where `news` are those before it. A web action is new when nothing like it was done to its element.
    pub(super) fn paired(&mut self, effect: CallEffect, is_new: bool, news: u64) {
        let mut is_new = is_new;
        if let CallEffect::Acts { on } = effect {
            if self.targets.is_empty() {
                self.news_by_target = news;
            }
            is_new = !self.targets.contains(&on);
            if is_new {
                if self.targets.len() == TARGETS {
                    self.targets.remove(0);
                }
                self.targets.push(on);
            }
        } else if self.targets.is_empty() {
            return;
        }
        self.news_by_target = self.news_by_target << 1 | u64::from(is_new);
    }

    /// The latest pairs by their targets; `None` while no web action was made.
    pub(super) fn news_by_target(&self) -> Option<u64> {
        (!self.targets.is_empty()).then_some(self.news_by_target)
    }

    /// Takes how a call ended, and says how many in a row have failed; 0 when it did not. Those beside each other are one attempt.
    pub(super) fn ended(&mut self, failed: bool, is_beside: bool) -> u32 {
        self.failing = if failed { self.failing.saturating_add(u32::from(!is_beside || self.failing == 0)) } else { 0 };
        self.failing
    }

    pub(super) const fn failing(&self) -> u32 {
        self.failing
    }

    pub(super) const fn shows_sign(&mut self) {
        self.sign = true;
    }

    pub(super) const fn spent(&mut self, tokens: u64) {
        self.tokens = self.tokens.saturating_add(tokens);
    }

    pub(super) const fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Tokens that were known when this was last asked, and those that are now.
    pub(super) const fn tokens_judged(&mut self) -> (u64, u64) {
        let before = self.tokens_judged;
        self.tokens_judged = self.tokens;
        (before, self.tokens)
    }

    pub(super) const fn has_sign(&self) -> bool {
        self.sign
    }

    /// How often a call gave the same again, each time after a change; 1 the first time. Only what this call adds counts: 0
    /// when nothing was changed since it was last made. And whether it failed again after a change, whatever it said.
    pub(super) fn tried(&mut self, call: u64, gave: u64, failed: bool) -> (u32, bool) {
        let gave = gave & !FAILED | if failed { FAILED } else { 0 };
        let known = self.checks.iter().position(|check| check.call == call).map(|place| self.checks.remove(place));
        if known.is_none() && self.checks.len() == CHECKS {
            self.checks.remove(0);
        }
        let failed_again = failed && known.as_ref().is_some_and(|known| known.gave & FAILED != 0 && known.changes != self.changes);
        let (mut check, mut counted) = (Check { call, gave, times: 1, changes: self.changes }, 1);
        if let Some(known) = known.filter(|known| known.gave == gave) {
            let moved = known.changes != self.changes;
            check.times = known.times.saturating_add(u32::from(moved));
            counted = if moved { check.times } else { 0 };
        }
        self.checks.push(check);
        (counted, failed_again)
    }

    /// Something else than a look that gave something was done.
    pub(super) fn looked_away(&mut self) {
        self.same = Same::default();
    }

    /// How many looks in a row gave this, each for other arguments.
    pub(super) fn looked(&mut self, tool: u64, call: u64, gave: u64) -> u32 {
        let before = self.same;
        let is_same = (before.tool, before.gave) == (tool, gave);
        let times = if is_same { before.times + u32::from(before.call != call) } else { 1 };
        self.same = Same { tool, gave, call, times };
        if is_same && before.call == call { 0 } else { times }
    }

    /// Takes a change that succeeded, and says how often its file was put back to what it had been before; 0 when it was not
    /// this time.
    pub(super) fn changed(&mut self, effect: CallEffect) -> u32 {
        self.changes = self.changes.saturating_add(1);
        let (file, left) = match effect {
            CallEffect::Unknown
            | CallEffect::Looks
            | CallEffect::LooksUp
            | CallEffect::Runs
            | CallEffect::Changes
            | CallEffect::Acts { .. }
            | CallEffect::Waits => return 0,
            CallEffect::Writes { file, leaves } => (file, leaves),
            CallEffect::Edits { file, by } => (file, self.holds(file).wrapping_add(by)),
            CallEffect::Undoes { file } => (file, self.held_before(file)),
            CallEffect::Restores => return self.restored(),
        };
        self.left(file, left)
    }

    fn restored(&mut self) -> u32 {
        let mut files: Vec<u64> = self.files.iter().map(|(file, _)| *file).collect();
        files.sort_unstable();
        files.dedup();
        files.into_iter().map(|file| self.left(file, 0)).max().unwrap_or(0)
    }

    fn left(&mut self, file: u64, state: u64) -> u32 {
        if state == self.holds(file) {
            return 0;
        }
        if self.files.len() == FILE_STATES {
            self.files.remove(0);
        }
        let is_back = state == 0 || self.files.contains(&(file, state));
        self.files.push((file, state));
        if is_back { self.put_back() } else { 0 }
    }

    /// How often the file that was changed last came back to a state it had been in.
    pub(super) fn put_back(&self) -> u32 {
        let Some((file, _)) = self.files.last() else { return 0 };
        let came_back = |(at, held): (usize, &(u64, u64))| held.0 == *file && (held.1 == 0 || self.files[..at].contains(held));
        self.files.iter().enumerate().filter(|held| came_back(*held)).count() as u32
    }

    /// How often the latest check gave the same.
    pub(super) fn unmoved(&self) -> u32 {
        self.checks.last().map_or(0, |check| check.times)
    }

    /// How many of the latest looks gave the same.
    pub(super) const fn same_result(&self) -> u32 {
        self.same.times
    }

    /// What a file holds now; 0 when it was not changed.
    fn holds(&self, file: u64) -> u64 {
        self.files.iter().rev().find(|(known, _)| *known == file).map_or(0, |(_, state)| *state)
    }

    fn held_before(&self, file: u64) -> u64 {
        self.files.iter().rev().filter(|(known, _)| *known == file).nth(1).map_or(0, |(_, state)| *state)
    }

    /// As words; none when nothing is in it.
    pub(super) fn pack(&self) -> Vec<u64> {
        if self.is_new() {
            return Vec::new();
        }
        let has_tokens = self.tokens > 0;
        let has_targets = !self.targets.is_empty();
        // Bit 17 is of an earlier version, and free.
        let flags =
            u64::from(has_targets) << HAS_TARGETS | self.kinds.bits() << KINDS | u64::from(has_tokens) << 18 | u64::from(self.sign) << 16;
        let counts = u64::from(self.changes) << 32 | flags | (self.files.len() as u64) << 8 | self.checks.len() as u64;
        let Same { tool, gave, call, times } = self.same;
        let mut words = vec![counts, tool, gave, call, u64::from(self.failing) << 32 | u64::from(times)];
        words.extend(self.files.iter().flat_map(|(file, state)| [*file, *state]));
        words
            .extend(self.checks.iter().flat_map(|check| [check.call, check.gave, u64::from(check.times) << 32 | u64::from(check.changes)]));
        if has_tokens {
            words.extend([self.tokens, self.tokens_judged]);
        }
        if has_targets {
            words.extend(&self.targets);
            words.extend([self.news_by_target, self.targets.len() as u64]);
        }
        words
    }

    /// Of words that were packed. `None` when some are missing.
    pub(super) fn unpack(words: &[u64]) -> Option<Self> {
        let [counts, tool, gave, call, times, rest @ ..] = words else { return words.is_empty().then(Self::default) };
        let (rest, targets, news_by_target) = match rest {
            [rest @ .., news, count] if counts >> HAS_TARGETS & 1 == 1 => {
                let (rest, targets) = rest.split_at(rest.len().checked_sub(usize::try_from(*count).ok()?)?);
                (rest, targets, *news)
            }
            rest => (rest, &[][..], 0),
        };
        let (rest, tokens, tokens_judged) = match rest {
            [rest @ .., tokens, judged] if counts >> 18 & 1 == 1 => (rest, *tokens, *judged),
            rest => (rest, 0, 0),
        };
        let (files, checks) = rest.split_at_checked(2 * (counts >> 8 & 0xff) as usize)?;
        if checks.len() != 3 * (counts & 0xff) as usize {
            return None;
        }
        Some(Self {
            changes: (counts >> 32) as u32,
            files: files.chunks_exact(2).take(FILE_STATES).map(|pair| (pair[0], pair[1])).collect(),
            checks: checks
                .chunks_exact(3)
                .take(CHECKS)
                .map(|check| Check { call: check[0], gave: check[1], times: (check[2] >> 32) as u32, changes: check[2] as u32 })
                .collect(),
            same: Same { tool: *tool, gave: *gave, call: *call, times: *times as u32 },
            failing: (times >> 32) as u32,
            sign: counts >> 16 & 1 == 1,
            tokens,
            tokens_judged,
            targets: targets.iter().take(TARGETS).copied().collect(),
            news_by_target,
            kinds: Kinds::from_bits(counts >> KINDS),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: u64 = 7;

    fn edit(by: u64) -> CallEffect {
        CallEffect::Edits { file: A, by }
    }

    #[test]
    fn a_file_that_is_put_back_is_counted_each_time() {
        let mut memory = Memory::default();
        let back = 5_u64.wrapping_neg();
        let counts: Vec<u32> =
            [edit(5), edit(back), edit(5), edit(back), edit(9)].into_iter().map(|effect| memory.changed(effect)).collect();
        assert_eq!(counts, [0, 1, 2, 3, 0]);
        assert_eq!(memory.changed(CallEffect::Undoes { file: A }), 4, "what was there before the last change");
        assert_eq!(memory.changed(CallEffect::Writes { file: A, leaves: 0 }), 0, "it holds that already");
        assert_eq!(memory.changed(CallEffect::Writes { file: 8, leaves: 3 }), 0);
        assert_eq!(memory.changed(CallEffect::Restores), 1, "of the other file for the first time");
    }

    #[test]
    fn a_check_counts_once_a_change_and_another_outcome_begins_anew() {
        let mut memory = Memory::default();
        assert_eq!((memory.tried(1, 1, false).0, memory.tried(1, 1, false).0), (1, 0), "nothing was changed");
        for times in 2..5 {
            memory.changed(CallEffect::Changes);
            assert_eq!(memory.tried(1, 1, false).0, times);
        }
        memory.changed(CallEffect::Changes);
        assert_eq!((memory.tried(1, 4, false).0, memory.tried(2, 4, false).0), (1, 1));
        for call in 10..10 + CHECKS as u64 {
            memory.tried(call, 1, false);
        }
        memory.changed(CallEffect::Changes);
        assert_eq!(memory.tried(1, 4, false).0, 1, "it was forgotten");
    }

    #[test]
    fn a_check_that_fails_after_a_change_fails_again_whatever_it_says() {
        let mut memory = Memory::default();
        assert_eq!([memory.tried(1, 2, true), memory.tried(1, 4, true)], [(1, false), (1, false)], "nothing was changed");
        memory.changed(CallEffect::Changes);
        assert_eq!(memory.tried(1, 6, true), (1, true));
        memory.changed(CallEffect::Changes);
        assert_eq!([memory.tried(1, 6, false), memory.tried(1, 6, true)], [(1, false), (1, false)], "it succeeded in between");
    }

    #[test]
    fn looks_that_give_the_same_for_other_arguments_are_counted() {
        let mut memory = Memory::default();
        let looks = [(1, 1, 9), (1, 2, 9), (1, 2, 9), (1, 3, 9), (1, 4, 8), (2, 5, 8)];
        assert_eq!(looks.map(|(tool, call, gave)| memory.looked(tool, call, gave)), [1, 2, 0, 3, 1, 1]);
    }

    #[test]
    fn calls_that_fail_are_counted_until_one_succeeds_and_those_of_one_round_once() {
        let mut memory = Memory::default();
        let calls = [(true, false), (true, true), (true, false), (false, false), (true, true), (true, false)];
        assert_eq!(calls.map(|(failed, is_beside)| memory.ended(failed, is_beside)), [1, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn what_is_packed_comes_back() {
        let mut memory = Memory::default();
        assert_eq!((memory.pack(), Memory::unpack(&[])), (Vec::new(), Some(Memory::default())));
        for number in 0..100 {
            memory.changed(CallEffect::Writes { file: number % 3, leaves: number });
            memory.tried(number, 1, false);
            memory.looked(1, number, 1);
            memory.ended(true, false);
            memory.paired(CallEffect::Acts { on: number }, true, 0);
            memory.kinds_mut().called("click", CallEffect::Acts { on: number });
        }
        memory.kinds_mut().person_spoke();
        memory.shows_sign();
        memory.spent(7);
        assert_eq!(memory.tokens_judged(), (0, 7));
        memory.spent(u64::MAX);
        let words = memory.pack();
        assert!(words.len() < 256, "{}", words.len());
        assert_eq!(Memory::unpack(&words), Some(memory));
        assert_eq!(Memory::unpack(&words[..words.len() - 1]), None);
        assert_eq!(Memory::unpack(&words[..3]), None);
    }
}
