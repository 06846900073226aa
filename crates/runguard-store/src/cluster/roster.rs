//! What people should know of a cluster, and nodes of each other: whether all of them have the same settings and keys, how the
//! database stands, and notes that whoever does something for all leaves to whoever does it next.

use crate::cluster::link::{CellName, Condition, LinkError, Put, Swap, SwapCell, Swapped, Token, Value};
use crate::cluster::recovery::FOREVER_MILLIS;
use crate::cluster::{Cluster, Inner};
use crate::error::StoreError;
use crate::log::{Follow, Follower};
use runguard_core::row::RowRef;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Where the nodes stand, and where notes do: no state's name has these numbers.
const NODES: u128 = 3;
const ALERTS: u128 = 4;
const ADVICE: u128 = 5;
/// Between two looks at how the database stands.
const LOOK: Duration = Duration::from_secs(2);
/// A node says who it is so often, and is taken to be there for so long.
const SAY_EVERY: Duration = Duration::from_secs(10);
const SAID_FOR_MILLIS: i64 = 30_000;

/// What settings and keys a node has, as far as all nodes should have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Fingerprints {
    pub settings: u32,
    pub keys: u32,
}

/// How many nodes there are, this one among them, and those that have other settings or keys than this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Seen {
    pub nodes: u64,
    pub other_settings: u64,
    pub other_keys: u64,
}

/// Something that all nodes must know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note {
    /// What one node tells people for all, and the next must know.
    Alerts,
    /// Which advice was put aside.
    Advice,
}

impl Note {
    const fn cell(self) -> u128 {
        match self {
            Self::Alerts => ALERTS,
            Self::Advice => ADVICE,
        }
    }
}

/// How often a note that other nodes change at the same time is changed anew.
pub const MOST_NOTE_RACES: u32 = 20;

/// What became of a note.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Noted {
    /// It is there, known by this.
    Done(Token),
    /// Another node was faster.
    Raced,
}

#[derive(Debug, Default)]
pub(crate) struct Roster {
    /// `None`: nobody has said yet what this node has.
    mine: Mutex<Option<Fingerprints>>,
    seen: Mutex<Seen>,
    condition: Mutex<Condition>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Roster {
    pub(crate) fn tell(&self, mine: Fingerprints) {
        *lock(&self.mine) = Some(mine);
    }

    pub(crate) fn mine(&self) -> Fingerprints {
        lock(&self.mine).unwrap_or_default()
    }

    pub(crate) fn seen(&self) -> Seen {
        *lock(&self.seen)
    }

    pub(crate) fn condition(&self) -> Condition {
        lock(&self.condition).clone()
    }

    fn see(&self, seen: Seen) {
        let before = std::mem::replace(&mut *lock(&self.seen), seen);
        let Seen { nodes, other_settings, other_keys } = seen;
        match (before.other_settings, other_settings) {
            (0, 1..) => tracing::warn!(
                nodes,
                other_settings,
                "nodes of this cluster have other settings than this one: the same request is decided in two ways. Give all of them the same settings file"
            ),
            (1.., 0) => tracing::info!(nodes, "all nodes have the same settings"),
            (_, _) => {}
        }
        match (before.other_keys, other_keys) {
            (0, 1..) => tracing::warn!(
                nodes,
                other_keys,
                "nodes of this cluster have other keys than this one: a caller may be refused by one and known to another, or be filed under another tenant. Give all of them the same keys.json"
            ),
            (1.., 0) => tracing::info!(nodes, "all nodes have the same keys"),
            (_, _) => {}
        }
    }

    fn stands(&self, condition: Condition) {
        let before = std::mem::replace(&mut *lock(&self.condition), condition.clone());
        match (&before.evicts, &condition.evicts) {
            (same, other) if same == other => {}
            (_, Some(policy)) => {
                tracing::warn!("Redis has maxmemory-policy {policy}: it throws states away when memory is short. Set it to noeviction");
            }
            (_, None) => tracing::info!("Redis throws no states away any more"),
        }
        match (before.without_aof, condition.without_aof) {
            (false, true) => tracing::warn!(
                "Redis keeps no append-only file: started again, it is as it was at its last snapshot, or empty. Then answers are marked until the states are built from the log. Set appendonly yes"
            ),
            (true, false) => tracing::info!("Redis keeps an append-only file"),
            (_, _) => {}
        }
        if condition.evicted > before.evicted {
            tracing::error!(
                keys = condition.evicted - before.evicted,
                "Redis has thrown keys away: what they counted is forgotten, and caps may be passed. Give it more memory, and set maxmemory-policy noeviction"
            );
        }
    }
}

/// Follows the log as one of the nodes that do.
#[derive(Debug)]
pub(super) struct OneOfMany {
    pub(super) log: Follower,
    pub(super) roster: Arc<Roster>,
}

impl Follow for OneOfMany {
    fn is_known(&self) -> bool {
        self.log.is_known()
    }

    fn followers(&self) -> u64 {
        self.roster.seen().nodes.max(1)
    }

    fn committed(&self) -> u64 {
        self.log.committed()
    }

    fn follow(&self, after: u64, upto: u64, visit: &mut dyn FnMut(RowRef<'_>) -> ControlFlow<()>) -> Result<ControlFlow<()>, StoreError> {
        self.log.follow(after, upto, visit)
    }
}

/// Looks and tells, as long as the node lives.
pub(crate) async fn run(inner: &Inner) {
    let mut said: Option<(Fingerprints, Instant)> = None;
    loop {
        // Also while its states cannot be used: that it throws them away may be why.
        if let Ok(condition) = inner.link.condition().await {
            inner.roster.stands(condition);
        }
        if !inner.health.is_away() {
            let mine = *lock(&inner.roster.mine);
            let is_due = |mine: Fingerprints| said.is_none_or(|(said, at)| said != mine || at.elapsed() >= SAY_EVERY);
            if let Some(mine) = mine.filter(|mine| is_due(*mine))
                && say(inner, Some(mine)).await.is_ok()
            {
                said = Some((mine, Instant::now()));
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Tells the others what this node has, and learns what they have. `None`: it leaves.
pub(crate) async fn say(inner: &Inner, mine: Option<Fingerprints>) -> Result<(), LinkError> {
    let name = CellName::new(0, NODES);
    let mut found = inner.link.load(vec![name.clone()]).await?.pop().flatten();
    loop {
        let now = inner.clock.now_millis();
        let (expect, state) = found.unwrap_or_default();
        let mut nodes: BTreeMap<u64, (i64, Fingerprints)> = postcard::from_bytes(&state).unwrap_or_default();
        nodes.retain(|node, (until, _)| *until > now && *node != inner.node);
        let differ = |differs: fn(Fingerprints, Fingerprints) -> bool| {
            nodes.values().filter(|(_, theirs)| mine.is_some_and(|mine| differs(mine, *theirs))).count() as u64
        };
        let seen = Seen {
            nodes: nodes.len() as u64 + 1,
            other_settings: differ(|mine, theirs| mine.settings != theirs.settings),
            other_keys: differ(|mine, theirs| mine.keys != theirs.keys),
        };
        nodes.extend(mine.map(|mine| (inner.node, (now + SAID_FOR_MILLIS, mine))));
        match inner.put_cell(&name, expect, postcard::to_stdvec(&nodes).unwrap_or_default()).await? {
            Ok(_) => {
                inner.roster.see(seen);
                return Ok(());
            }
            Err(there) => found = there,
        }
    }
}

impl Inner {
    /// Puts something under a name for good, unless another was faster: then what is there. Gives the token it is known by.
    async fn put_cell(&self, name: &CellName, expect: Token, state: Vec<u8>) -> Result<Result<Token, Value>, LinkError> {
        let token = self.token();
        let put = Put::Set { token, state, keep_millis: FOREVER_MILLIS };
        let swap = Swap { partition: name.partition(), cells: vec![SwapCell { name: name.clone(), expect, put }], entry: Vec::new() };
        match self.swap(vec![swap]).await?.pop() {
            Some(Swapped::Raced(mut found)) => Ok(Err(found.pop().flatten())),
            Some(Swapped::Done | Swapped::Full | Swapped::Fenced) | None => Ok(Ok(token)),
        }
    }
}

impl Cluster {
    /// What settings and keys this node has.
    pub fn tell_fingerprints(&self, mine: Fingerprints) {
        self.inner.roster.tell(mine);
    }

    /// What whoever did this before has left, and what it is known by; 0 where nothing is.
    pub async fn note(&self, note: Note) -> Result<(Token, Option<Vec<u8>>), StoreError> {
        let found = self.inner.link.load(vec![CellName::new(0, note.cell())]).await;
        let found = found.map_err(|error| StoreError::Read(error.to_string()))?.pop().flatten();
        Ok(found.map_or((0, None), |(token, state)| (token, Some(state))))
    }

    /// Leaves a note in the place of the one that is known by `expect`, and only of that one.
    pub async fn leave_note(&self, note: Note, expect: Token, state: Vec<u8>) -> Result<Noted, StoreError> {
        let put = self.inner.put_cell(&CellName::new(0, note.cell()), expect, state).await;
        Ok(match put.map_err(|error| StoreError::Write(error.to_string()))? {
            Ok(token) => Noted::Done(token),
            Err(_) => Noted::Raced,
        })
    }

    /// Whether all nodes write to one log, so that its rows have the same numbers for all.
    pub fn log_is_shared(&self) -> bool {
        self.inner.log.is_shared()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;

    #[test]
    fn who_follows_the_log_knows_how_many_do() {
        let roster = Arc::new(Roster::default());
        let follower = Follower::new(Arc::new(OneOfMany { log: Memory::default().follower(), roster: roster.clone() }));
        assert_eq!(follower.followers(), 1, "of others nothing is known yet");
        roster.see(Seen { nodes: 4, ..Seen::default() });
        assert_eq!(follower.followers(), 4);
    }
}
