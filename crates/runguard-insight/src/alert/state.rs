//! What a rule remembers between two rows.

use super::shown;
use runguard_core::notice::AlertState;
use runguard_core::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Things one rule keeps an eye on. Beyond it the one that was quiet the longest is forgotten; while all of them are in
/// their cool-down, others are not looked at.
pub(super) const MOST_ENTRIES: usize = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) enum Position {
    #[default]
    Off,
    /// On, but a higher threshold was told in its place.
    Passed,
    Firing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Latch {
    pub(super) position: Position,
    pub(super) told_at: Option<Timestamp>,
}

impl Latch {
    pub(super) fn is_cooling(&self, now: Timestamp, cooldown: Span) -> bool {
        self.told_at.is_some_and(|told| now.still_counts(told, cooldown))
    }

    pub(super) fn turn_on(&mut self, now: Timestamp, cooldown: Span) -> Option<AlertState> {
        if self.position != Position::Off || self.is_cooling(now, cooldown) {
            return None;
        }
        *self = Self { position: Position::Firing, told_at: Some(now) };
        Some(AlertState::Firing)
    }

    pub(super) fn turn_off(&mut self) -> Option<AlertState> {
        let was_firing = self.position == Position::Firing;
        self.position = Position::Off;
        was_firing.then_some(AlertState::Resolved)
    }
}

/// Decisions in one part of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Part {
    pub(super) number: i64,
    pub(super) decisions: u32,
    pub(super) blocked: u32,
}

/// What was used in a day, or in another period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Used {
    /// When it is over.
    pub(super) ends: Timestamp,
    pub(super) operations: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) touched: Timestamp,
    /// One; for a budget one a threshold.
    pub(super) latches: Vec<Latch>,
    pub(super) is_open: bool,
    /// The newest blocks.
    pub(super) times: VecDeque<Timestamp>,
    pub(super) parts: VecDeque<Part>,
    /// The newest periods, oldest first.
    pub(super) used: VecDeque<Used>,
    pub(super) tenant: String,
    pub(super) guard: String,
    pub(super) reason: String,
    pub(super) subject: String,
    pub(super) session: String,
    pub(super) title: String,
}

impl Entry {
    pub(super) fn latch(&mut self) -> &mut Latch {
        if self.latches.is_empty() {
            self.latches.push(Latch::default());
        }
        &mut self.latches[0]
    }

    pub(super) fn is_firing(&self) -> bool {
        self.latches.iter().any(|latch| latch.position == Position::Firing)
    }

    /// The reason, the guard, the subject and the tenant, as far as the rule counts by them.
    pub(super) fn whose(&self) -> String {
        let named = [("", &self.reason), ("by ", &self.guard), ("of '", &self.subject), ("for ", &self.tenant)];
        let parts: Vec<String> = named
            .iter()
            .filter(|(_, name)| !name.is_empty())
            .map(|(before, name)| format!("{before}{}{}", shown(name), if before.ends_with('\'') { "'" } else { "" }))
            .collect();
        if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) }
    }

    pub(super) fn is_cooling(&self, now: Timestamp, cooldown: Span) -> bool {
        self.latches.iter().any(|latch| latch.is_cooling(now, cooldown))
    }
}

/// What a rule remembers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    pub(super) entries: BTreeMap<String, Entry>,
    pub(super) sweep_at: Option<Timestamp>,
}

/// Trouble that lasts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Firing {
    pub dedup_key: String,
    pub tenant: String,
    pub title: String,
    pub since: Timestamp,
}

impl State {
    pub fn firing(&self) -> impl Iterator<Item = Firing> {
        self.entries.iter().filter(|(_, entry)| entry.is_firing()).map(|(key, entry)| Firing {
            dedup_key: key.clone(),
            tenant: entry.tenant.clone(),
            title: entry.title.clone(),
            since: entry
                .latches
                .iter()
                .filter(|latch| latch.position == Position::Firing)
                .filter_map(|latch| latch.told_at)
                .max()
                .unwrap_or_default(),
        })
    }

    /// Forgets sessions of a tenant; whether anything was known of them.
    pub fn forget(&mut self, tenant: &str, is_gone: impl Fn(&str) -> bool) -> bool {
        let before = self.entries.len();
        self.entries.retain(|_, entry| entry.session.is_empty() || entry.tenant != tenant || !is_gone(&entry.session));
        self.entries.len() < before
    }

    /// The entry of a key, made if there is room for it.
    pub(super) fn entry(&mut self, key: &str, now: Timestamp, cooldown: Span) -> Option<&mut Entry> {
        if !self.entries.contains_key(key) && self.entries.len() >= MOST_ENTRIES {
            let idle = self.entries.iter().filter(|(_, entry)| !entry.is_cooling(now, cooldown));
            let forgotten = idle.min_by_key(|(_, entry)| (entry.is_firing(), entry.touched)).map(|(key, _)| key.clone())?;
            self.entries.remove(&forgotten);
        }
        let entry = self.entries.entry(key.to_owned()).or_default();
        entry.touched = now;
        Some(entry)
    }
}
