//! States in memory: a map in shards, each behind its own lock.

use crate::embedded::journal::Undo;
use crate::key::{Family, Key};
use crate::log::ERASED;
use crate::store::{Rules, SlotState};
use hashbrown::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Enough that two requests rarely meet, few enough to lock all of them when the disk refuses something.
pub(crate) const SHARDS: usize = 64;
/// Slots of one entry. At the bound the one written longest ago is forgotten.
const MAX_SLOTS: usize = 1024;
/// How often it is looked whether a shard is free before its lock is waited for asleep, and how long between: some ten microseconds in all.
const LOOKS: usize = 40;
const BETWEEN_LOOKS: usize = 8;

/// One entry in memory.
#[derive(Debug, Default)]
pub(crate) struct Resident {
    pub(crate) slots: Vec<SlotState>,
    /// The log row that wrote it last.
    pub(crate) seq: u64,
    /// When that was, in the service's time.
    pub(crate) at: i64,
    /// Not yet as new on disk.
    pub(crate) dirty: bool,
}

impl Resident {
    pub(crate) fn get(&self, slot: u8, subject: &str) -> Option<&[u8]> {
        self.slots.iter().find(|state| state.slot == slot && *state.subject == *subject).map(|state| &*state.state)
    }

    /// Puts a state in place and gives the one it replaces.
    pub(crate) fn put(&mut self, slot: u8, subject: &str, state: Box<[u8]>) -> Option<Box<[u8]>> {
        if let Some(at) = self.slots.iter().position(|known| known.slot == slot && *known.subject == *subject) {
            // The last one is the one written last.
            self.slots[at..].rotate_left(1);
            return self.slots.last_mut().map(|known| std::mem::replace(&mut known.state, state));
        }
        if self.slots.len() >= MAX_SLOTS {
            self.slots.remove(0);
        }
        self.slots.reserve_exact(1);
        self.slots.push(SlotState { slot, subject: subject.into(), state });
        None
    }

    pub(crate) fn remove(&mut self, slot: u8, subject: &str) {
        self.slots.retain(|known| known.slot != slot || *known.subject != *subject);
    }

    /// About what it costs in memory.
    pub(crate) fn weight(&self) -> usize {
        96 + self.slots.iter().map(|slot| 64 + slot.subject.len() + slot.state.len()).sum::<usize>()
    }
}

/// An event of the log that is not yet part of a state on disk.
#[derive(Debug)]
pub(crate) struct TailEvent {
    pub(crate) seq: u64,
    pub(crate) at: i64,
    pub(crate) slot: u8,
    pub(crate) subject: Box<str>,
    pub(crate) events: Box<[u8]>,
}

#[derive(Debug, Default)]
pub(crate) struct Shard {
    pub(crate) map: HashMap<Key, Resident>,
    pub(crate) dirty: Vec<Key>,
    /// Events found in the log at start, waiting for their entry to be loaded.
    pub(crate) tail: HashMap<Key, Vec<TailEvent>>,
    pub(crate) bytes: usize,
}

impl Shard {
    /// The entry under the key, changed, with its memory accounted for.
    pub(crate) fn change<R>(&mut self, key: Key, change: impl FnOnce(&mut Resident) -> R) -> R {
        let mut before = 0;
        let resident = self.map.entry(key).and_modify(|resident| before = resident.weight()).or_default();
        let changed = change(resident);
        self.bytes = (self.bytes + resident.weight()).saturating_sub(before);
        changed
    }

    pub(crate) fn take_back(&mut self, undo: Undo) {
        self.change(undo.key(), |resident| match undo {
            Undo::Slot { slot, subject, state: Some(state), .. } => drop(resident.put(slot, &subject, state)),
            Undo::Slot { slot, subject, state: None, .. } => resident.remove(slot, &subject),
            Undo::Entry { slots, .. } => resident.slots = slots,
        });
    }

    /// Makes an entry resident: what the disk has, and what happened since.
    pub(crate) fn admit(&mut self, key: Key, on_disk: Option<(u64, i64, Vec<SlotState>)>, rules: &Rules) {
        if self.map.contains_key(&key) {
            return;
        }
        let (seq, at, slots) = on_disk.unwrap_or_default();
        let mut resident = Resident { slots, seq, at, dirty: false };
        for event in self.tail.remove(&key).unwrap_or_default() {
            if event.seq <= seq {
                continue;
            }
            if event.slot == ERASED {
                resident.slots.clear();
            } else if let Some(state) = (rules.replay)(event.slot, resident.get(event.slot, &event.subject), &event.events, event.at) {
                resident.put(event.slot, &event.subject, state.into());
            }
            (resident.seq, resident.at, resident.dirty) = (event.seq, event.at, true);
        }
        if resident.dirty {
            self.dirty.push(key);
        }
        self.bytes += resident.weight();
        self.map.insert(key, resident);
    }
}

#[derive(Debug)]
pub(crate) struct Shards(Box<[Mutex<Shard>]>);

impl Shards {
    pub(crate) fn new() -> Self {
        Self((0..SHARDS).map(|_| Mutex::default()).collect())
    }

    pub(crate) fn index_of(key: Key) -> usize {
        // The low bits choose the bucket inside the map; these are others.
        (key.hash >> 96) as usize % SHARDS
    }

    pub(crate) fn lock(&self, index: usize) -> MutexGuard<'_, Shard> {
        // Whoever decides holds it for a few microseconds: less than it takes to be put to sleep and woken again. A budget that all share, as that
        // of a day, is wanted by two threads at once all the time.
        for _ in 0..LOOKS {
            match self.0[index].try_lock() {
                Ok(shard) => return shard,
                Err(TryLockError::Poisoned(shard)) => return shard.into_inner(),
                Err(TryLockError::WouldBlock) => (0..BETWEEN_LOOKS).for_each(|_| std::hint::spin_loop()),
            }
        }
        // A panic under the lock is a bug in a guard; the states before it are still right.
        self.0[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn of(&self, key: Key) -> MutexGuard<'_, Shard> {
        self.lock(Self::index_of(key))
    }

    /// Every shard, in order: nobody else changes a state while these are held.
    pub(crate) fn lock_all(&self) -> Vec<MutexGuard<'_, Shard>> {
        (0..SHARDS).map(|index| self.lock(index)).collect()
    }

    pub(crate) fn bytes(&self) -> usize {
        (0..SHARDS).map(|index| self.lock(index).bytes).sum()
    }

    pub(crate) fn entries(&self) -> usize {
        (0..SHARDS).map(|index| self.lock(index).map.len()).sum()
    }

    /// Entries of a family that have events waiting for them.
    pub(crate) fn waiting(&self, family: Family) -> Vec<Key> {
        (0..SHARDS).flat_map(|index| self.lock(index).tail.keys().filter(|key| key.family == family).copied().collect::<Vec<_>>()).collect()
    }

    /// Shows the entries of a family that are in memory.
    pub(crate) fn visit(&self, family: Family, mut visit: impl FnMut(Key, &[SlotState])) {
        for index in 0..SHARDS {
            let shard = self.lock(index);
            shard.map.iter().filter(|(key, _)| key.family == family).for_each(|(key, resident)| visit(*key, &resident.slots));
        }
    }
}
