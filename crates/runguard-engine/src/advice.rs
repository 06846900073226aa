//! Advice that an operator has put aside: for good, or for a while.
//!
//! Kept in a file of the data folder or, in a cluster, where all nodes see it. What it is known by is a digest, so nothing of what users
//! said is in it.

use crate::engine::Engine;
use runguard_core::Timestamp;
use runguard_store::cluster::{MOST_NOTE_RACES, Note, NoteResult};
use runguard_store::files::write_whole;
use runguard_store::{Store, StoreError};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

const FILE: &str = "advice.json";
/// Pieces that are put aside in one list; beyond it the oldest comes back.
const MOST_OF_ONE: usize = 200;
/// In all lists together; beyond it the oldest of the longest list.
const MOST: usize = 2000;

/// One piece of advice that is not shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutAside {
    /// What the advice is known by.
    pub key: String,
    /// In whose list; `None`: in that of all tenants.
    pub tenant: Option<String>,
    /// When it comes back by itself; `None`: not before somebody asks for it.
    pub until_ms: Option<i64>,
}

impl PutAside {
    fn is(&self, key: &str, tenant: Option<&str>) -> bool {
        self.key == key && self.tenant.as_deref() == tenant
    }

    fn is_over(&self, now: Timestamp) -> bool {
        self.until_ms.is_some_and(|until| until <= now.as_millis())
    }
}

fn read(bytes: &[u8]) -> Vec<PutAside> {
    serde_json::from_slice(bytes).unwrap_or_else(|error| {
        tracing::warn!(%error, "what advice was put aside cannot be read: all of it is shown again");
        Vec::new()
    })
}

/// The newest stands last.
fn replaced(mut list: Vec<PutAside>, key: &str, tenant: Option<&str>, by: Option<PutAside>, now: Timestamp) -> Vec<PutAside> {
    list.retain(|one| !one.is(key, tenant) && !one.is_over(now));
    list.extend(by);
    let length = |list: &[PutAside], tenant: Option<&str>| list.iter().filter(|one| one.tenant.as_deref() == tenant).count();
    if length(&list, tenant) > MOST_OF_ONE {
        drop_oldest(&mut list, tenant);
    }
    if list.len() > MOST {
        // Nobody's list suffers from how much others put aside.
        let longest = list.iter().map(|one| one.tenant.clone()).max_by_key(|tenant| length(&list, tenant.as_deref()));
        drop_oldest(&mut list, longest.flatten().as_deref());
    }
    list
}

fn drop_oldest(list: &mut Vec<PutAside>, tenant: Option<&str>) {
    if let Some(oldest) = list.iter().position(|one| one.tenant.as_deref() == tenant) {
        list.remove(oldest);
    }
}

impl Engine {
    fn advice_file(&self) -> PathBuf {
        PathBuf::from(&self.started_with.store.data).join(FILE)
    }

    /// What is put aside in this list, at this moment.
    pub async fn advice_put_aside(&self, tenant: Option<&str>, now: Timestamp) -> Result<Vec<PutAside>, StoreError> {
        let (_, all) = self.kept_advice().await?;
        Ok(all.into_iter().filter(|one| one.tenant.as_deref() == tenant && !one.is_over(now)).collect())
    }

    /// What is kept, and what it is known by in a cluster.
    async fn kept_advice(&self) -> Result<(u64, Vec<PutAside>), StoreError> {
        if let Store::Cluster(cluster) = &self.store {
            let (token, bytes) = cluster.note(Note::Advice).await?;
            return Ok((token, bytes.as_deref().map(read).unwrap_or_default()));
        }
        let path = self.advice_file();
        let bytes = match tokio::fs::read(&path).await {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok((0, Vec::new())),
            Err(error) => return Err(StoreError::Read(format!("{}: {error}", path.display()))),
        };
        Ok((0, read(&bytes)))
    }

    /// Puts a piece of advice aside, in the place of what was said of it before.
    pub async fn put_advice_aside(&self, aside: PutAside, now: Timestamp) -> Result<(), StoreError> {
        let (key, tenant) = (aside.key.clone(), aside.tenant.clone());
        self.change_advice(&key, tenant.as_deref(), Some(aside), now).await.map(drop)
    }

    /// Shows a piece of advice again; whether it was put aside.
    pub async fn take_advice_back(&self, key: &str, tenant: Option<&str>, now: Timestamp) -> Result<bool, StoreError> {
        self.change_advice(key, tenant, None, now).await
    }

    /// Says whether it was put aside before.
    async fn change_advice(&self, key: &str, tenant: Option<&str>, by: Option<PutAside>, now: Timestamp) -> Result<bool, StoreError> {
        let _turn = self.advice.lock().await;
        for _ in 0..MOST_NOTE_RACES {
            let (token, before) = self.kept_advice().await?;
            let was_aside = before.iter().any(|one| one.is(key, tenant) && !one.is_over(now));
            let after = serde_json::to_vec(&replaced(before, key, tenant, by.clone(), now)).unwrap_or_default();
            let Store::Cluster(cluster) = &self.store else {
                let path = self.advice_file();
                let write = move || write_whole(&path, &after).map_err(|error| StoreError::Write(format!("{}: {error}", path.display())));
                tokio::task::spawn_blocking(write).await.map_err(|error| StoreError::Write(error.to_string()))??;
                return Ok(was_aside);
            };
            match cluster.leave_note(Note::Advice, token, after).await? {
                NoteResult::Done(_) => return Ok(was_aside),
                NoteResult::Raced => {}
            }
        }
        Err(StoreError::Write("what advice was put aside changes too often; try again".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aside(key: &str, tenant: Option<&str>, until_ms: Option<i64>) -> PutAside {
        PutAside { key: key.into(), tenant: tenant.map(str::to_owned), until_ms }
    }

    #[test]
    fn one_tenant_that_puts_much_aside_brings_nothing_back_elsewhere() {
        let now = Timestamp::from_millis(0);
        let mut list = vec![aside("ours", None, None)];
        for number in 0..MOST_OF_ONE + 10 {
            let key = number.to_string();
            list = replaced(list, &key, Some("acme"), Some(aside(&key, Some("acme"), None)), now);
        }
        assert_eq!(list.len(), MOST_OF_ONE + 1);
        assert_eq!((list[0].key.as_str(), list[1].key.as_str()), ("ours", "10"));
    }

    #[test]
    fn what_is_said_last_counts_and_what_is_over_goes() {
        let now = Timestamp::from_millis(1000);
        let list = vec![aside("a", None, None), aside("a", Some("acme"), None), aside("b", None, Some(1000)), aside("c", None, Some(1001))];
        let after = replaced(list, "a", None, Some(aside("a", None, Some(9000))), now);
        assert_eq!(after, [aside("a", Some("acme"), None), aside("c", None, Some(1001)), aside("a", None, Some(9000))]);
        assert_eq!(replaced(after, "a", Some("acme"), None, now).len(), 2, "another list than that of all tenants");
    }

    #[test]
    fn there_is_a_bound_and_the_oldest_comes_back() {
        let list: Vec<PutAside> = (0..MOST).map(|number| aside(&number.to_string(), None, None)).collect();
        let after = replaced(list, "new", None, Some(aside("new", None, None)), Timestamp::from_millis(0));
        assert_eq!((after.len(), after[0].key.as_str(), after[MOST - 1].key.as_str()), (MOST, "1", "new"));
    }

    #[test]
    fn a_damaged_file_hides_nothing() {
        assert!(read(b"{").is_empty());
    }
}
