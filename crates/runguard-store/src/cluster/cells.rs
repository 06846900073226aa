//! What a node remembers of the shared states, and how requests on them become swaps.
//!
//! A step runs at once on what the node remembers (a cell it does not know counts as empty), and its result is a proposal: "if the
//! cells still hold these tokens, set them so and append this row". A step may build on a proposal that is still under way; if that
//! one fails, so does everything built on it, by itself, because its tokens never come to be. So nothing is ever undone here: a
//! failed proposal leaves behind what the database says is there, and its request runs again.
//!
//! A cell that other nodes change as well is mostly not as it is remembered: of such a one the node asks first what is there, which costs
//! less than a step in vain.

use crate::cluster::entry::{encode_row, join_rows};
use crate::cluster::link::{CellName, Put, Swap, SwapCell, Token, Value};
use crate::cluster::mailbox::MailboxId;
use crate::error::StoreError;
use crate::key::Key;
use crate::log::encode_effects;
use crate::store::{Cell, Change, FEW, StoreHealth, View};
use hashbrown::HashMap;
use runguard_core::row::Row;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;
use xxhash_rust::xxh3::xxh3_128;

const SHARDS: usize = 64;
/// What an entry costs beside its state.
const CELL_BYTES: usize = 96;
/// A cell was changed by another node so many times more often than not, when this one came to it: it is looked at first.
const LOOKED_AT_FROM: i8 = 2;
const MOST_ELSEWHERE: i8 = 3;
/// It changes between the look and the step, so looking is in vain: that many more times before it is tried again.
const CONTENDED: i8 = -16;

/// What became of a proposal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProposalResult {
    Done,
    /// Another was faster: the step runs again.
    Raced,
    /// The database is away: it was not done.
    Away,
    /// It was sent, and it is not known what became of it; or the database takes no more for now.
    Doubtful,
}

/// What the database said to a proposal.
#[derive(Debug)]
pub(crate) enum SwapReply {
    Done,
    /// Another was faster: what is there.
    Found(HashMap<u128, Value>),
    /// Nothing: the node goes on from what it knew before.
    None,
}

/// A cell as this node last knew it, with the proposals that are under way.
#[derive(Debug, Default)]
struct Known {
    token: Token,
    state: Option<Arc<[u8]>>,
    /// What the database last said is there: what is proposed beyond it may never come to be.
    confirmed: Option<Arc<[u8]>>,
    /// Proposals to set it that are not yet answered.
    pending: u32,
    /// Rises when the database disagreed: proposals of an earlier chain are lost, and their failing says nothing about this one.
    chain: u32,
    touched: bool,
    /// How often it was changed elsewhere since this node was there, less how often it was not.
    elsewhere: i8,
}

impl Known {
    /// What the answer to a step or a look says of other nodes. Of a step behind a look it says only whether looking was of use.
    fn learn(&mut self, has_looked: bool, was_changed: bool) {
        self.elsewhere = match (has_looked, was_changed) {
            (false, true) => (self.elsewhere + 1).min(MOST_ELSEWHERE),
            (false, false) => (self.elsewhere - 1).max(self.elsewhere.min(0)),
            (true, true) => CONTENDED,
            (true, false) => self.elsewhere,
        };
    }
}

#[derive(Debug, Default)]
struct Shard {
    cells: HashMap<u128, Known>,
    bytes: usize,
}

/// One cell of a proposal.
#[derive(Debug)]
struct Touch {
    name: CellName,
    expect: Token,
    chain: u32,
    /// What was known before it.
    before: Option<Arc<[u8]>>,
    set: Option<(Token, Arc<[u8]>, u64)>,
}

/// What a request wants to be done.
#[derive(Debug)]
pub(crate) struct Proposal {
    partition: u16,
    touches: SmallVec<[Touch; FEW]>,
    rows: usize,
    bytes: Vec<u8>,
    pub(crate) id: String,
    /// So many fences its node had learned of when it was decided.
    pub(crate) fences: u64,
    has_looked: bool,
    pub(crate) done: oneshot::Sender<ProposalResult>,
    pub(crate) mailbox: Option<MailboxId>,
}

/// A swap and the proposals it fulfils.
#[derive(Debug)]
pub(crate) struct Combined {
    pub(crate) swap: Swap,
    pub(crate) proposals: Vec<usize>,
}

#[derive(Debug)]
pub(crate) struct Cells {
    shards: Box<[Mutex<Shard>]>,
    partitions: u16,
    memory_bytes: usize,
    turn: AtomicUsize,
}

/// Where a cell lives.
pub(crate) fn name_of(cell: &Cell<'_>, partitions: u16) -> CellName {
    CellName::new((cell.group % u64::from(partitions)) as u16, hash_of(cell.key, cell.slot, cell.subject))
}

/// What a cell is called, wherever it lives.
pub(crate) fn hash_of(key: Key, slot: u8, subject: &str) -> u128 {
    let mut bytes: SmallVec<[u8; 96]> = SmallVec::new();
    bytes.push(key.family as u8);
    bytes.extend_from_slice(&key.hash.to_be_bytes());
    bytes.push(slot);
    bytes.extend_from_slice(subject.as_bytes());
    xxh3_128(&bytes)
}

/// What a cell is filed under here. An answer kept for a key may lie with one state today and with another tomorrow: these are two
/// cells.
pub(crate) fn number_of(name: &CellName) -> u128 {
    name.hash() ^ u128::from(name.partition())
}

fn shard_of(name: &CellName) -> usize {
    (name.hash() >> 64) as usize % SHARDS
}

type Locked<'a> = SmallVec<[(usize, MutexGuard<'a, Shard>); FEW]>;

fn shard<'a, 'b>(locked: &'a mut Locked<'b>, name: &CellName) -> Option<&'a mut MutexGuard<'b, Shard>> {
    let index = shard_of(name);
    locked.iter_mut().find(|(other, _)| *other == index).map(|(_, shard)| shard)
}

/// What a node knows when it decides, beside the states.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Knowing {
    /// So many fences it has learned of.
    pub(crate) fences: u64,
    pub(crate) health: StoreHealth,
    /// See [`View::not_before`].
    pub(crate) not_before: i64,
    /// It has just looked what is there, or was told so when another was faster.
    pub(crate) has_looked: bool,
}

/// What a step wants kept.
pub(crate) struct Wanted {
    pub(crate) rows: WantedRows,
    pub(crate) changes: Vec<Change>,
}

pub(crate) enum WantedRows {
    /// Its effects are the step's changes.
    Fresh(Row),
    /// Decided earlier, in this order: bytes of [`encode_row`], one after the other.
    Kept { first_id: String, count: usize, bytes: Vec<u8> },
}

impl Cells {
    pub(crate) fn new(partitions: u16, memory_bytes: usize) -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), partitions, memory_bytes, turn: AtomicUsize::new(0) }
    }

    fn lock(&self, index: usize) -> MutexGuard<'_, Shard> {
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// In the order of their numbers, so that two steps never wait for each other.
    fn lock_all<'a>(&'a self, names: &[CellName]) -> Locked<'a> {
        let mut indexes: SmallVec<[usize; FEW]> = names.iter().map(shard_of).collect();
        indexes.sort_unstable();
        indexes.dedup();
        indexes.into_iter().map(|index| (index, self.lock(index))).collect()
    }

    /// Runs a step on what is known and hands its proposal to `queue` while the cells are still locked, so that the order in the queue
    /// is the order of the steps. `decide` gives its reply, and what it wants kept, if anything.
    pub(crate) fn step<R>(
        &self,
        cells: &[Cell<'_>],
        knowing: Knowing,
        token: impl Fn() -> Token,
        keep_millis: impl Fn(u8, &[u8]) -> u64,
        decide: impl FnOnce(&View<'_>) -> (R, Option<Wanted>),
        queue: impl FnOnce(Proposal),
    ) -> Result<(R, oneshot::Receiver<ProposalResult>), StoreError> {
        let names: SmallVec<[CellName; FEW]> = cells.iter().map(|cell| name_of(cell, self.partitions)).collect();
        debug_assert!(
            names.windows(2).all(|pair| pair[0].partition() == pair[1].partition()),
            "cells of one step live together: {cells:?}"
        );
        let mut locked = self.lock_all(&names);
        let (reply, wanted) = {
            let known: SmallVec<[Option<&Known>; FEW]> = names
                .iter()
                .map(|name| {
                    let index = shard_of(name);
                    locked.iter().find(|(other, _)| *other == index).and_then(|(_, shard)| shard.cells.get(&number_of(name)))
                })
                .collect();
            decide(&View {
                states: known.iter().map(|known| (*known)?.state.as_deref().filter(|state| !is_tombstone(state))).collect(),
                safe: known.iter().map(|known| known.is_none_or(|known| known.pending == 0)).collect(),
                health: knowing.health,
                not_before: knowing.not_before,
            })
        };
        let (id, rows, bytes, changes) = match wanted {
            Some(Wanted { rows: WantedRows::Fresh(row), changes }) => {
                let effects = encode_effects(cells, &changes)?;
                (row.id.clone(), 1, encode_row(&row, &effects)?, changes)
            }
            Some(Wanted { rows: WantedRows::Kept { first_id, count, bytes }, changes }) => (first_id, count, bytes, changes),
            // Nothing to keep; but what the reply rests on may be old news here, so it is compared.
            None => (String::new(), 0, Vec::new(), Vec::new()),
        };
        let mut touches: SmallVec<[Touch; FEW]> = SmallVec::new();
        for (position, name) in names.into_iter().enumerate() {
            let Some(shard) = shard(&mut locked, &name) else { continue };
            let Shard { cells: map, bytes: weight } = &mut **shard;
            let known = map.entry(number_of(&name)).or_insert_with(|| {
                *weight += CELL_BYTES;
                Known::default()
            });
            let mut touch = Touch { expect: known.token, chain: known.chain, before: known.state.clone(), set: None, name };
            if let Some(change) = changes.iter().find(|change| change.cell == position) {
                let (fresh, state): (Token, Arc<[u8]>) = (token(), change.state.as_slice().into());
                *weight = (*weight + state.len()).saturating_sub(known.state.as_ref().map_or(0, |state| state.len()));
                touch.set = Some((fresh, state.clone(), keep_millis(cells[position].slot, &state)));
                (known.token, known.state) = (fresh, Some(state));
                known.pending += 1;
            }
            known.touched = true;
            touches.push(touch);
        }
        let partition = touches.first().map_or(0, |touch| touch.name.partition());
        let (done, result) = oneshot::channel();
        let Knowing { fences, has_looked, .. } = knowing;
        queue(Proposal { partition, touches, rows, bytes, id, fences, has_looked, done, mailbox: None });
        drop(locked);
        self.make_room();
        Ok((reply, result))
    }

    /// What became of a proposal: what was done is no longer under way, and where the database disagreed its word counts.
    pub(crate) fn settle(&self, proposal: &Proposal, answer: &SwapReply) {
        for touch in &proposal.touches {
            let mut shard = self.lock(shard_of(&touch.name));
            let Shard { cells, bytes } = &mut *shard;
            let Some(known) = cells.get_mut(&number_of(&touch.name)) else { continue };
            if touch.set.is_some() {
                known.pending = known.pending.saturating_sub(1);
            }
            // Later proposals of the same chain fail as well; only the first one's answer is taken.
            if known.chain != touch.chain {
                continue;
            }
            let (token, state) = match answer {
                SwapReply::Done => {
                    known.learn(proposal.has_looked, false);
                    if let Some((_, state, _)) = &touch.set {
                        known.confirmed = Some(state.clone());
                    }
                    continue;
                }
                SwapReply::Found(found) => {
                    let Some(found) = found.get(&number_of(&touch.name)) else { continue };
                    let (token, state) = found.as_ref().map_or((0, None), |(token, state)| (*token, Some(Arc::from(state.as_slice()))));
                    known.learn(proposal.has_looked, token != touch.expect);
                    (token, state)
                }
                SwapReply::None => (touch.expect, touch.before.clone()),
            };
            let length = |state: &Option<Arc<[u8]>>| state.as_ref().map_or(0, |state| state.len());
            *bytes = (*bytes + length(&state)).saturating_sub(length(&known.state));
            (known.token, known.state, known.chain) = (token, state.clone(), known.chain.wrapping_add(1));
            known.confirmed = state;
        }
    }

    /// What was taken away is not remembered either. Proposals under way that rest on it fail by themselves.
    pub(crate) fn forget(&self, name: &CellName) {
        let mut shard = self.lock(shard_of(name));
        let Some(known) = shard.cells.get_mut(&number_of(name)) else { return };
        let mut gone = known.state.take().map_or(0, |state| state.len());
        known.confirmed = None;
        (known.token, known.chain) = (0, known.chain.wrapping_add(1));
        if known.pending == 0 {
            gone += CELL_BYTES;
            shard.cells.remove(&number_of(name));
        }
        shard.bytes = shard.bytes.saturating_sub(gone);
    }

    pub(crate) fn knows(&self, cell: &Cell<'_>) -> bool {
        let name = name_of(cell, self.partitions);
        let shard = self.lock(shard_of(&name));
        let state = shard.cells.get(&number_of(&name)).and_then(|known| known.state.as_deref());
        state.is_some_and(|state| !is_tombstone(state))
    }

    /// Whether one of them is likely to be another than is remembered, so that a step on it would be in vain.
    pub(crate) fn are_elsewhere(&self, cells: &[Cell<'_>]) -> bool {
        cells.iter().any(|cell| {
            let name = name_of(cell, self.partitions);
            let shard = self.lock(shard_of(&name));
            shard.cells.get(&number_of(&name)).is_some_and(|known| known.elsewhere >= LOOKED_AT_FROM && known.pending == 0)
        })
    }

    /// What is remembered of cells, for going on alone.
    pub(crate) fn remembered(&self, cells: &[Cell<'_>]) -> Vec<Option<Vec<u8>>> {
        let state = |cell: &Cell<'_>| {
            let name = name_of(cell, self.partitions);
            let shard = self.lock(shard_of(&name));
            let confirmed = shard.cells.get(&number_of(&name))?.confirmed.as_deref();
            confirmed.filter(|state| !is_tombstone(state)).map(<[u8]>::to_vec)
        };
        cells.iter().map(state).collect()
    }

    /// Cells nobody asked for since the last time leave when memory is short. They cost one more question when they are needed.
    fn make_room(&self) {
        let most = self.memory_bytes / SHARDS;
        // One shard a step: the one whose turn it is, so that no request pays for all.
        let index = self.turn.fetch_add(1, Ordering::Relaxed) % SHARDS;
        let mut shard = self.lock(index);
        if shard.bytes <= most {
            return;
        }
        shard.cells.retain(|_, known| known.pending > 0 || std::mem::take(&mut known.touched));
        shard.bytes = weight(&shard.cells);
    }

    pub(crate) fn count(&self) -> usize {
        (0..SHARDS).map(|index| self.lock(index).cells.len()).sum()
    }

    pub(crate) fn bytes(&self) -> usize {
        (0..SHARDS).map(|index| self.lock(index).bytes).sum()
    }
}

/// What stands for a cell that was taken away: to every step there is nothing. A command that was sent before finds a token it
/// does not expect, and does nothing.
pub(crate) fn is_tombstone(state: &[u8]) -> bool {
    state.is_empty()
}

fn weight(cells: &HashMap<u128, Known>) -> usize {
    cells.values().map(|known| CELL_BYTES + known.state.as_ref().map_or(0, |state| state.len())).sum()
}

/// Proposals that share a cell, directly or through others, become one swap: it holds what the first of them expects and sets what
/// the last of them wants. So a cell that everyone asks for costs one swap, however many ask.
///
/// Only a proposal that builds on what the group leaves may join it. One that does not (the database disagreed in between) goes by
/// itself, after the others, and the database decides.
pub(crate) fn combine(proposals: &[Proposal]) -> Vec<Combined> {
    #[derive(Default)]
    struct Group {
        proposals: Vec<usize>,
        sealed: bool,
        /// United with this one, which comes later.
        moved_to: Option<usize>,
    }
    let mut groups: Vec<Group> = Vec::new();
    // The group that touched a cell last, and the token it leaves there.
    let mut latest: HashMap<u128, (usize, Token)> = HashMap::new();
    for (index, proposal) in proposals.iter().enumerate() {
        let mut met: SmallVec<[usize; FEW]> = SmallVec::new();
        let mut builds_on_it = true;
        for touch in &proposal.touches {
            if let Some((group, token)) = latest.get(&number_of(&touch.name)) {
                let mut group = *group;
                while let Some(later) = groups[group].moved_to {
                    group = later;
                }
                builds_on_it &= *token == touch.expect && !groups[group].sealed;
                met.push(group);
            }
        }
        met.sort_unstable();
        met.dedup();
        let group = match (builds_on_it, met.as_slice()) {
            (true, [only]) => *only,
            (true, several) => {
                // At the end: whatever the parts build on comes before it.
                let mut united = Group::default();
                for part in several {
                    united.proposals.append(&mut groups[*part].proposals);
                    groups[*part].moved_to = Some(groups.len());
                }
                united.proposals.sort_unstable();
                groups.push(united);
                groups.len() - 1
            }
            (false, met) => {
                for group in met {
                    groups[*group].sealed = true;
                }
                groups.push(Group::default());
                groups.len() - 1
            }
        };
        groups[group].proposals.push(index);
        for touch in &proposal.touches {
            latest.insert(number_of(&touch.name), (group, touch.set.as_ref().map_or(touch.expect, |(token, ..)| *token)));
        }
    }
    groups.into_iter().map(|group| group.proposals).filter(|group| !group.is_empty()).map(|group| merge(proposals, group)).collect()
}

fn merge(proposals: &[Proposal], group: Vec<usize>) -> Combined {
    let mut cells: Vec<SwapCell> = Vec::new();
    for touch in group.iter().flat_map(|index| &proposals[*index].touches) {
        let put = match &touch.set {
            Some((token, state, keep_millis)) => Put::Set { token: *token, state: state.to_vec(), keep_millis: *keep_millis },
            None => Put::Keep,
        };
        match cells.iter_mut().find(|cell| cell.name == touch.name) {
            Some(cell) => {
                if matches!(put, Put::Set { .. }) {
                    cell.put = put;
                }
            }
            None => cells.push(SwapCell { name: touch.name.clone(), expect: touch.expect, put }),
        }
    }
    let rows: usize = group.iter().map(|index| proposals[*index].rows).sum();
    let entry = if rows == 0 { Vec::new() } else { join_rows(rows, group.iter().map(|index| proposals[*index].bytes.as_slice())) };
    let partition = group.first().map_or(0, |index| proposals[*index].partition);
    Combined { swap: Swap { partition, cells, entry }, proposals: group }
}
