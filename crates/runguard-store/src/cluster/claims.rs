//! What an `Idempotency-Key` was first used for.

use crate::cluster::cells::is_tombstone;
use crate::cluster::link::{Put, Swap, SwapCell, Swapped};
use crate::cluster::{Cluster, DAY_MILLIS};
use crate::error::StoreError;
use crate::key::Key;
use crate::store::Cell;

/// What a key was first used for. No guard has this slot.
const CLAIM: u8 = 253;
/// How often a key is claimed anew when others are faster.
const MOST_RACES: u32 = 200;

impl Cluster {
    /// Puts `mine` under a key, unless something is there that still counts: that is given back.
    pub async fn claim(&self, key: Key, mine: &[u8], counts: impl Fn(&[u8]) -> bool) -> Result<Option<Vec<u8>>, StoreError> {
        let (inner, cell) = (&self.inner, claim_of(key));
        let name = inner.name(&cell);
        let mut expect = 0;
        for _ in 0..MOST_RACES {
            if inner.health.is_away() {
                break;
            }
            let put = Put::Set { token: inner.token(), state: mine.to_vec(), keep_millis: DAY_MILLIS + 60_000 };
            let cells = vec![SwapCell { name: name.clone(), expect, put }];
            let swapped = inner.swap(vec![Swap { partition: name.partition(), cells, entry: Vec::new() }]).await;
            expect = match swapped.map(|mut swapped| swapped.pop()) {
                Ok(Some(Swapped::Raced(mut found))) => match found.pop().flatten() {
                    Some((_, there)) if !is_tombstone(&there) && counts(&there) => return Ok(Some(there)),
                    Some((token, _)) => token,
                    None => 0,
                },
                // Away? The step that follows finds out, and goes on without it.
                Ok(Some(Swapped::Done | Swapped::Full | Swapped::Fenced) | None) | Err(_) => break,
            };
        }
        Ok(None)
    }

    /// What is under a key that was claimed.
    pub async fn noted(&self, key: Key) -> Result<Option<Vec<u8>>, StoreError> {
        if self.inner.health.is_away() {
            return Ok(None);
        }
        let found = self.inner.load(&[claim_of(key)]).await?;
        Ok(found.into_iter().flatten().next().map(|(_, state)| state))
    }
}

/// What a key was first used for lies where the key alone leads.
pub(super) fn claim_of(key: Key) -> Cell<'static> {
    Cell { key, slot: CLAIM, subject: "", group: key.group() }
}
