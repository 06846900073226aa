//! Notices that a run goes round in a circle: the newest events are several copies of one short pattern.
//!
//! For each period *p* we keep how long the newest events have been equal to those *p* before them. That number goes up
//! by one or back to zero with each event, so a call costs one comparison a period whatever the history, and *p*·(n−1)
//! equal events in a row are exactly n copies of a pattern of length *p*.

use super::sessions::{SessionKey, Sessions};
use crate::limits::{InvalidSetting, setters};
use crate::packed::{Packed, serialise_packed};
use crate::reason::Reason;
use crate::time::{Span, Timestamp};
use std::fmt;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Longest pattern that may be looked for.
pub const MAX_CYCLE_LEN: u32 = 32;
pub(super) const MAX_REPEATS: u32 = 1000;
/// Bytes of a name that are kept to show it again; names are compared whole, by their hash.
const SHOWN_BYTES: usize = 29;

/// What counts as a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoopSettings {
    /// Copies of a pattern that make a loop.
    pub repeats: u32,
    /// Longest pattern looked for.
    pub max_cycle_len: u32,
    /// Events older than this do not count.
    pub window: Option<Span>,
    /// Calls of one key within the window, whatever their order.
    pub max_calls: Option<u32>,
}

impl Default for LoopSettings {
    fn default() -> Self {
        Self { repeats: 3, max_cycle_len: 4, window: None, max_calls: None }
    }
}

setters!(LoopSettings { repeats: u32, max_cycle_len: u32, window: Option<Span>, max_calls: Option<u32> });

impl LoopSettings {
    /// As they are given; what is not, is as by default.
    pub fn given(repeats: Option<u32>, max_cycle_len: Option<u32>, window: Option<Span>, max_calls: Option<u32>) -> Self {
        let defaults = Self::default();
        Self {
            repeats: repeats.unwrap_or(defaults.repeats),
            max_cycle_len: max_cycle_len.unwrap_or(defaults.max_cycle_len),
            window,
            max_calls,
        }
    }

    /// Refuses what makes no sense, by the name of the setting.
    pub fn check(&self) -> Result<(), InvalidSetting> {
        let bad = |name, problem: &str| Err(InvalidSetting::new(name, problem));
        if !(2..=MAX_REPEATS).contains(&self.repeats) {
            return bad("repeats", "must be from 2 to 1000: one call is never a loop");
        }
        if !(1..=MAX_CYCLE_LEN).contains(&self.max_cycle_len) {
            return bad("max_cycle_len", "must be from 1 to 32");
        }
        if self.window.is_some_and(|window| window == Span::ZERO) {
            return bad("window_seconds", "must be more than 0; leave it out for no window");
        }
        if self.max_calls == Some(0) {
            return bad("max_calls", "must be at least 1; leave it out for no ceiling");
        }
        Ok(())
    }

    fn events_looked_at(&self) -> usize {
        (self.repeats * self.max_cycle_len) as usize
    }
}

/// Why the next step must not be taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct LoopDetected {
    /// One round, oldest first.
    pub pattern: Vec<String>,
    /// Rounds made, or calls under the ceiling.
    pub repeats: u32,
    /// Which rule found it.
    pub kind: LoopKind,
    /// What the call was compared by.
    pub compared: Compared,
}

/// What makes two calls the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compared {
    /// The name they go by.
    Names,
    /// A tool's name together with its arguments.
    Arguments,
}

/// Why a call is one too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoopKind {
    /// The same round again and again.
    Cycle,
    /// More calls of one key than allowed.
    Ceiling {
        /// The most calls of one name in the window.
        max_calls: u32,
    },
}

impl LoopDetected {
    /// How many calls one copy of the pattern has.
    pub fn cycle_len(&self) -> u32 {
        self.pattern.len() as u32
    }

    /// The code of this finding.
    pub const fn reason(&self) -> Reason {
        match self.kind {
            LoopKind::Cycle => Reason::LoopDetected,
            LoopKind::Ceiling { .. } => Reason::CallCeiling,
        }
    }
}

impl fmt::Display for LoopDetected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let round = self.pattern.join(" → ");
        match self.kind {
            LoopKind::Cycle if self.pattern.len() == 1 => {
                let came = match self.compared {
                    Compared::Names => "came",
                    Compared::Arguments => "was called with the same arguments",
                };
                write!(
                    f,
                    "'{round}' {came} {} times in a row. Stop the run, or try something else: the same call gives the same result.",
                    self.repeats
                )
            }
            LoopKind::Cycle => {
                write!(f, "The run goes in a circle: {round}, {} times. Stop it, or take a way that leads out of the circle.", self.repeats)
            }
            LoopKind::Ceiling { max_calls } => {
                write!(f, "'{round}' was called {} times (ceiling {max_calls}). Use what the calls gave, or stop the run.", self.repeats)
            }
        }
    }
}

/// A call as a detector takes it: what it is compared by, and what is shown of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Called<'a> {
    hash: u64,
    shown: &'a str,
    compared: Compared,
}

impl<'a> Called<'a> {
    /// A call that its name says everything of.
    #[inline]
    pub fn by_name(name: &'a str) -> Self {
        Self { hash: xxh3_64(name.as_bytes()), shown: name, compared: Compared::Names }
    }

    /// A tool with the fingerprint of its arguments.
    pub fn with_arguments(tool: &'a str, arguments: u64) -> Self {
        Self { hash: xxh3_64_with_seed(tool.as_bytes(), arguments), shown: tool, compared: Compared::Arguments }
    }

    /// A tool whose arguments are part of a signature that is not shown.
    pub fn signed(signature: &str, tool: &'a str) -> Self {
        Self { hash: xxh3_64(signature.as_bytes()), shown: tool, compared: Compared::Arguments }
    }
}

/// One of the newest events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    hash: u64,
    /// Not of this event: how long the newest events have repeated those `position + 1` before them.
    run: u16,
    shown_len: u8,
    shown: [u8; SHOWN_BYTES],
}

const NO_ENTRY: Entry = Entry { hash: 0, run: 0, shown_len: 0, shown: [0; SHOWN_BYTES] };

impl Entry {
    fn show(&mut self, name: &str) {
        let mut length = name.len().min(SHOWN_BYTES);
        while !name.is_char_boundary(length) {
            length -= 1;
        }
        self.shown[..length].copy_from_slice(&name.as_bytes()[..length]);
        self.shown_len = length as u8;
    }

    fn shown(&self) -> &str {
        std::str::from_utf8(&self.shown[..usize::from(self.shown_len)]).unwrap_or_default()
    }
}

/// The newest events of one session: all that finding a loop needs.
///
/// ```
/// use runguard_core::detect::loops::{Called, LoopSettings, Trail};
/// use runguard_core::Timestamp;
///
/// let settings = LoopSettings::default();
/// let mut trail = Trail::new(&settings);
/// let (now, search) = (Timestamp::from_millis(0), Called::by_name("search"));
/// assert!(trail.record(&settings, search, now).is_none());
/// assert!(trail.record(&settings, search, now).is_none());
/// let found = trail.record(&settings, search, now).expect("three in a row");
/// assert_eq!((found.cycle_len(), found.repeats), (1, 3));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trail {
    entries: Box<[Entry]>,
    /// When the newest events were; empty without a window.
    times: Box<[Timestamp]>,
    /// Where the next event goes.
    next: u8,
    next_time: u16,
    /// Events seen, up to what is looked at.
    seen: u16,
}

impl Trail {
    /// A trail without calls.
    pub fn new(settings: &LoopSettings) -> Self {
        let times = if settings.window.is_some() { settings.events_looked_at() } else { 0 };
        Self {
            entries: vec![NO_ENTRY; settings.max_cycle_len as usize].into(),
            times: vec![Timestamp::from_millis(i64::MIN); times].into(),
            next: 0,
            next_time: 0,
            seen: 0,
        }
    }

    /// Forgets all calls.
    pub fn clear(&mut self) {
        self.seen = 0;
        self.entries.iter_mut().for_each(|entry| entry.run = 0);
    }

    fn fits(&self, settings: &LoopSettings) -> bool {
        self.entries.len() == settings.max_cycle_len as usize
            && self.times.len() == if settings.window.is_some() { settings.events_looked_at() } else { 0 }
    }

    fn index_back(&self, distance: usize) -> usize {
        let next = usize::from(self.next);
        if next >= distance { next - distance } else { next + self.entries.len() - distance }
    }

    /// The event this many before the next one.
    fn back(&self, distance: usize) -> &Entry {
        &self.entries[self.index_back(distance)]
    }

    /// The run of a period, were an event with this hash the next.
    fn run_with(&self, period: usize, hash: u64) -> u16 {
        if usize::from(self.seen) >= period && self.back(period).hash == hash { self.entries[period - 1].run.saturating_add(1) } else { 0 }
    }

    /// Whether the copies of a pattern lie within the window, the next event being now.
    fn within_window(&self, settings: &LoopSettings, period: usize, now: Timestamp) -> bool {
        let Some(window) = settings.window else { return true };
        usize::from(self.seen) >= settings.repeats as usize * period - 1 && now.still_counts(self.earliest_of(settings, period), window)
    }

    /// When the first event of the copies of a pattern was, the next event being the last of them.
    fn earliest_of(&self, settings: &LoopSettings, period: usize) -> Timestamp {
        let (length, earlier) = (self.times.len(), settings.repeats as usize * period - 1);
        self.times[(usize::from(self.next_time) + length - earlier) % length]
    }

    fn found(&self, settings: &LoopSettings, period: usize, hash: u64, now: Timestamp) -> bool {
        u32::from(self.run_with(period, hash)) >= period as u32 * (settings.repeats - 1) && self.within_window(settings, period, now)
    }

    fn describe(&self, settings: &LoopSettings, period: usize, run: u16, call: Called<'_>) -> LoopDetected {
        let mut pattern: Vec<String> = (1..period).rev().map(|distance| self.back(distance).shown().to_owned()).collect();
        pattern.push(call.shown.to_owned());
        let repeats = u32::from(run) / period as u32 + 1;
        LoopDetected { pattern, repeats: repeats.max(settings.repeats), kind: LoopKind::Cycle, compared: call.compared }
    }

    /// Whether this event would complete a loop.
    pub fn check(&self, settings: &LoopSettings, call: Called<'_>, now: Timestamp) -> Option<LoopDetected> {
        if !self.fits(settings) {
            return None;
        }
        let period = (1..=self.entries.len()).find(|period| self.found(settings, *period, call.hash, now))?;
        Some(self.describe(settings, period, self.run_with(period, call.hash), call))
    }

    /// When the loop that this event would complete now stops being one, if nothing else happens. `None`: never.
    pub fn clears_at(&self, settings: &LoopSettings, call: Called<'_>, now: Timestamp) -> Option<Timestamp> {
        let window = settings.window?;
        let period = (1..=self.entries.len()).find(|period| self.found(settings, *period, call.hash, now))?;
        Some(self.earliest_of(settings, period).plus(window))
    }

    /// Takes an event, and says whether it completes a loop.
    pub fn record(&mut self, settings: &LoopSettings, call: Called<'_>, now: Timestamp) -> Option<LoopDetected> {
        self.fit(settings);
        let found = self.count(settings, call.hash, now);
        let detected = found.map(|(period, run)| self.describe(settings, period, run, call));
        let entry = &mut self.entries[usize::from(self.next)];
        if entry.hash != call.hash || entry.shown_len == 0 {
            entry.show(call.shown);
        }
        self.push(call.hash, now);
        detected
    }

    /// The same for an event that has no name to show: the length of the pattern and how often it came.
    pub fn record_hash(&mut self, settings: &LoopSettings, hash: u64) -> Option<(u32, u32)> {
        const ANY_TIME: Timestamp = Timestamp::from_millis(0);
        self.fit(settings);
        let found = self.count(settings, hash, ANY_TIME);
        self.push(hash, ANY_TIME);
        found.map(|(period, run)| (period as u32, u32::from(run) / period as u32 + 1))
    }

    /// The round of at least two events that was made most often, from twice on, and how often; to be shown. One event again
    /// and again is no round.
    pub fn repeated(&self) -> Option<(u32, u32)> {
        let alone = self.entries.first()?.run;
        let rounds = |(index, entry): (usize, &Entry)| {
            let period = index as u32 + 1;
            (period > 1 && entry.run > alone && u32::from(entry.run) >= period).then(|| (period, u32::from(entry.run) / period + 1))
        };
        // The shortest of equals: a round made four times is also one of twice the length made twice.
        self.entries.iter().enumerate().filter_map(rounds).min_by_key(|(period, rounds)| (std::cmp::Reverse(*rounds), *period))
    }

    /// Brings the runs up to date; gives the shortest period that makes a loop, with its run.
    fn count(&mut self, settings: &LoopSettings, hash: u64, now: Timestamp) -> Option<(usize, u16)> {
        let mut found = None;
        for period in 1..=self.entries.len() {
            let run = self.run_with(period, hash);
            self.entries[period - 1].run = run;
            if found.is_none() && u32::from(run) >= period as u32 * (settings.repeats - 1) && self.within_window(settings, period, now) {
                found = Some((period, run));
            }
        }
        found
    }

    fn fit(&mut self, settings: &LoopSettings) {
        if !self.fits(settings) {
            *self = Self::new(settings);
        }
    }

    fn push(&mut self, hash: u64, now: Timestamp) {
        self.entries[usize::from(self.next)].hash = hash;
        self.next = if usize::from(self.next) + 1 < self.entries.len() { self.next + 1 } else { 0 };
        if !self.times.is_empty() {
            self.times[usize::from(self.next_time)] = now;
            self.next_time = if usize::from(self.next_time) + 1 < self.times.len() { self.next_time + 1 } else { 0 };
        }
        self.seen = self.seen.saturating_add(1);
    }
}

/// How many events and times there are and were seen, each event (hash, run, name), each time; oldest first, so that
/// where a ring begins need not be kept.
impl Packed for Trail {
    fn pack(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(8 + self.entries.len() * 16 + self.times.len() * 8);
        bytes.push(self.entries.len() as u8);
        bytes.extend_from_slice(&(self.times.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&self.seen.to_le_bytes());
        let (newer, older) = self.entries.split_at(usize::from(self.next));
        for (entry, Entry { run, .. }) in older.iter().chain(newer).zip(&self.entries) {
            bytes.extend_from_slice(&entry.hash.to_le_bytes());
            bytes.extend_from_slice(&run.to_le_bytes());
            bytes.push(entry.shown_len);
            bytes.extend_from_slice(entry.shown().as_bytes());
        }
        let (newer, older) = self.times.split_at(usize::from(self.next_time));
        for time in older.iter().chain(newer) {
            bytes.extend_from_slice(&time.as_millis().to_le_bytes());
        }
        bytes
    }

    fn unpack(bytes: &[u8]) -> Option<Self> {
        fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
            let (first, rest) = bytes.split_first_chunk::<N>()?;
            *bytes = rest;
            Some(*first)
        }
        let bytes = &mut &*bytes;
        let [entries] = take(bytes)?;
        let times = u16::from_le_bytes(take(bytes)?);
        let seen = u16::from_le_bytes(take(bytes)?);
        let entries = (0..entries)
            .map(|_| {
                let mut entry = Entry { hash: u64::from_le_bytes(take(bytes)?), run: u16::from_le_bytes(take(bytes)?), ..NO_ENTRY };
                let [length] = take(bytes)?;
                let (shown, rest) = bytes.split_at_checked(usize::from(length))?;
                *bytes = rest;
                entry.show(std::str::from_utf8(shown).ok()?);
                Some(entry)
            })
            .collect::<Option<Box<[Entry]>>>()?;
        let times = (0..times)
            .map(|_| take(bytes).map(|millis| Timestamp::from_millis(i64::from_le_bytes(millis))))
            .collect::<Option<Box<[_]>>>()?;
        Some(Self { entries, times, next: 0, next_time: 0, seen })
    }
}
serialise_packed!(Trail);

/// The calls of one key: when the newest were, at most as many as are allowed.
#[derive(Debug, Clone, Default)]
struct Calls {
    times: Vec<Timestamp>,
}

impl Calls {
    fn counted(&self, window: Option<Span>, now: Timestamp) -> usize {
        window.map_or(self.times.len(), |window| self.times.iter().filter(|at| now.still_counts(**at, window)).count())
    }

    fn take(&mut self, window: Option<Span>, now: Timestamp) {
        if let Some(window) = window {
            self.times.retain(|at| now.still_counts(*at, window));
        }
        self.times.push(now);
    }
}

/// How many sessions are kept, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// How many sessions are remembered at once.
    pub sessions: usize,
    /// A session silent for this long is forgotten.
    pub expire: Span,
}

impl Default for Keep {
    fn default() -> Self {
        Self { sessions: 2_000_000, expire: Span::from_seconds(24 * 3600) }
    }
}

/// Finds loops in any number of sessions.
///
/// ```
/// use runguard_core::detect::loops::{LoopDetector, LoopSettings};
/// use runguard_core::Timestamp;
///
/// let mut detector = LoopDetector::new(LoopSettings::default())?;
/// let now = Timestamp::from_millis(0);
/// let calls = ["search", "read", "search", "read", "search", "read"];
/// let trips: Vec<bool> = calls.iter().map(|call| detector.record("run-1", call, now).is_err()).collect();
/// assert_eq!(trips, [false, false, false, false, false, true]);
/// # Ok::<(), runguard_core::limits::InvalidSetting>(())
/// ```
#[derive(Debug, Clone)]
pub struct LoopDetector {
    settings: LoopSettings,
    /// The session without a name: most runs have just one.
    only: Trail,
    trails: Sessions<Trail>,
    calls: Sessions<Calls>,
}

impl Default for LoopDetector {
    fn default() -> Self {
        Self::with(LoopSettings::default(), Keep::default())
    }
}

impl LoopDetector {
    /// A detector that keeps as much as [`Keep::default`] says.
    pub fn new(settings: LoopSettings) -> Result<Self, InvalidSetting> {
        Self::keeping(settings, Keep::default())
    }

    /// A detector with bounds of its own.
    pub fn keeping(settings: LoopSettings, keep: Keep) -> Result<Self, InvalidSetting> {
        settings.check()?;
        Ok(Self::with(settings, keep))
    }

    fn with(settings: LoopSettings, keep: Keep) -> Self {
        // A call must not be forgotten while it counts.
        let expire = keep.expire.max(settings.window.unwrap_or(Span::ZERO));
        Self {
            settings,
            only: Trail::new(&settings),
            trails: Sessions::new(expire, keep.sessions),
            calls: Sessions::new(expire, keep.sessions),
        }
    }

    /// What it goes by.
    pub fn settings(&self) -> &LoopSettings {
        &self.settings
    }

    /// Sessions with a name that are kept.
    pub fn sessions(&self) -> usize {
        self.trails.len().max(self.calls.len())
    }

    /// Takes the event, and says whether it completes a loop or passes the ceiling. An event over the ceiling is not counted.
    #[inline]
    pub fn record(&mut self, session: &str, name: &str, now: Timestamp) -> Result<(), LoopDetected> {
        self.record_call(session, Called::by_name(name), now)
    }

    /// As [`Self::record`], for a tool with its arguments.
    #[inline]
    pub fn record_call(&mut self, session: &str, call: Called<'_>, now: Timestamp) -> Result<(), LoopDetected> {
        let Self { settings, only, trails, calls } = self;
        if let Some(max_calls) = settings.max_calls {
            let key = SessionKey::within(session, call.hash);
            let calls = calls.enter(key, now, Calls::default, |calls| calls.times.clear());
            if calls.counted(settings.window, now) >= max_calls as usize {
                return Err(over_ceiling(call, max_calls));
            }
            calls.take(settings.window, now);
        }
        let trail =
            if session.is_empty() { only } else { trails.enter(SessionKey::of(session), now, || Trail::new(settings), Trail::clear) };
        trail.record(settings, call, now).map_or(Ok(()), Err)
    }

    /// Whether recording this event now would say so. Changes nothing.
    pub fn check(&self, session: &str, name: &str, now: Timestamp) -> Option<LoopDetected> {
        let call = Called::by_name(name);
        if let Some(max_calls) = self.settings.max_calls {
            let key = SessionKey::within(session, call.hash);
            let counted = self.calls.get(key, now).map_or(0, |calls| calls.counted(self.settings.window, now));
            if counted >= max_calls as usize {
                return Some(over_ceiling(call, max_calls));
            }
        }
        let trail = if session.is_empty() { Some(&self.only) } else { self.trails.get(SessionKey::of(session), now) };
        trail.and_then(|trail| trail.check(&self.settings, call, now))
    }

    /// Forgets the order of a session's events. Calls under a ceiling stay counted: only time frees them.
    pub fn reset(&mut self, session: &str) {
        if session.is_empty() {
            self.only.clear();
        } else {
            self.trails.forget(SessionKey::of(session));
        }
    }

    /// Forgets everything.
    pub fn reset_all(&mut self) {
        self.only.clear();
        self.trails.clear();
        self.calls.clear();
    }
}

fn over_ceiling(call: Called<'_>, max_calls: u32) -> LoopDetected {
    let kind = LoopKind::Ceiling { max_calls };
    LoopDetected { pattern: vec![call.shown.to_owned()], repeats: max_calls + 1, kind, compared: call.compared }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    fn trips(settings: LoopSettings, names: &str) -> Vec<Option<LoopDetected>> {
        let mut detector = LoopDetector::new(settings).unwrap();
        names.chars().map(|name| detector.record("s", &name.to_string(), at(0)).err()).collect()
    }

    fn first_trip(settings: LoopSettings, names: &str) -> Option<(usize, String)> {
        trips(settings, names).into_iter().enumerate().find_map(|(index, found)| found.map(|found| (index + 1, found.pattern.concat())))
    }

    #[test]
    fn the_third_equal_call_in_a_row_trips_and_so_does_the_sixth_of_two_alternating() {
        let settings = LoopSettings::default();
        assert_eq!(first_trip(settings, "aaa"), Some((3, "a".into())));
        assert_eq!(first_trip(settings, "ababab"), Some((6, "ab".into())));
        assert_eq!(first_trip(settings, "xyabcabcabc"), Some((11, "abc".into())));
        assert_eq!(first_trip(settings, "abcdabcdabcd"), Some((12, "abcd".into())));
        assert_eq!(first_trip(settings, "abcdeabcdeabcde"), None, "longer than is looked for");
        assert_eq!(first_trip(settings, "aabaabaab"), Some((9, "aab".into())));
        assert_eq!(first_trip(LoopSettings { repeats: 2, max_cycle_len: 3, ..settings }, "abcabc"), Some((6, "abc".into())));
        assert_eq!(first_trip(settings, "aabbccaabb"), None);
    }

    #[test]
    fn going_on_says_how_often() {
        let found: Vec<u32> = trips(LoopSettings::default(), "aaaaa").into_iter().flatten().map(|found| found.repeats).collect();
        assert_eq!(found, [3, 4, 5]);
    }

    #[test]
    fn asking_changes_nothing_and_says_what_recording_would() {
        let mut detector = LoopDetector::new(LoopSettings::default()).unwrap();
        detector.record("", "a", at(0)).unwrap();
        detector.record("", "a", at(0)).unwrap();
        for _ in 0..3 {
            assert!(detector.check("", "a", at(0)).is_some());
            assert!(detector.check("", "b", at(0)).is_none());
        }
        detector.record("", "b", at(0)).unwrap();
        assert!(detector.check("", "a", at(0)).is_none());
    }

    #[test]
    fn the_ceiling_counts_a_key_within_the_window_and_a_refusal_takes_no_slot() {
        let settings = LoopSettings { window: Some(Span::from_seconds(3600)), max_calls: Some(2), ..LoopSettings::default() };
        let mut detector = LoopDetector::new(settings).unwrap();
        detector.record("s", "refunds", at(0)).unwrap();
        detector.record("s", "shipping", at(1)).unwrap();
        assert!(detector.check("s", "refunds", at(2)).is_none());
        detector.record("s", "refunds", at(10)).unwrap();
        for second in 11..20 {
            let found = detector.record("s", "refunds", at(second)).unwrap_err();
            assert_eq!(found.kind, LoopKind::Ceiling { max_calls: 2 });
        }
        assert!(detector.record("other", "refunds", at(20)).is_ok());
        assert!(detector.check("s", "refunds", at(3599)).is_some());
        assert!(detector.record("s", "refunds", at(3600)).is_ok(), "the first has left the window");
    }

    #[test]
    fn with_a_window_old_events_do_not_count() {
        let settings = LoopSettings { window: Some(Span::from_seconds(60)), ..LoopSettings::default() };
        let mut detector = LoopDetector::new(settings).unwrap();
        detector.record("s", "a", at(0)).unwrap();
        detector.record("s", "a", at(50)).unwrap();
        detector.record("s", "a", at(60)).unwrap();
        assert!(detector.record("s", "a", at(61)).is_err());
    }

    #[test]
    fn settings_that_cannot_be_meant_are_refused() {
        for bad in [
            LoopSettings { repeats: 1, ..LoopSettings::default() },
            LoopSettings { max_cycle_len: 0, ..LoopSettings::default() },
            LoopSettings { max_cycle_len: 33, ..LoopSettings::default() },
            LoopSettings { max_calls: Some(0), ..LoopSettings::default() },
            LoopSettings { window: Some(Span::ZERO), ..LoopSettings::default() },
        ] {
            assert!(LoopDetector::new(bad).is_err(), "{bad:?}");
        }
    }

    /// The same question answered by looking at the whole history.
    fn plainly(history: &[u8], settings: &LoopSettings) -> Option<usize> {
        let repeats = settings.repeats as usize;
        (1..=settings.max_cycle_len as usize).find(|period| {
            let length = period * repeats;
            history.len() >= length
                && history[history.len() - length..]
                    .iter()
                    .zip(&history[history.len() - length + period..])
                    .all(|(left, right)| left == right)
        })
    }

    proptest! {
        #[test]
        fn it_finds_what_looking_at_everything_finds(
            names in prop::collection::vec(0_u8..3, 0..200), repeats in 2_u32..5, max_cycle_len in 1_u32..7
        ) {
            let settings = LoopSettings { repeats, max_cycle_len, ..LoopSettings::default() };
            let mut trail = Trail::new(&settings);
            for end in 1..=names.len() {
                let name = names[end - 1].to_string();
                let asked = trail.check(&settings, Called::by_name(&name), at(0));
                let found = trail.record(&settings, Called::by_name(&name), at(0));
                prop_assert_eq!(&asked, &found);
                prop_assert_eq!(found.map(|found| found.pattern.len()), plainly(&names[..end], &settings));
                let bytes = postcard::to_stdvec(&trail).unwrap();
                let again: Trail = postcard::from_bytes(&bytes).unwrap();
                prop_assert_eq!(again.check(&settings, Called::by_name("0"), at(0)), trail.check(&settings, Called::by_name("0"), at(0)));
                trail = again;
            }
        }
    }
}
