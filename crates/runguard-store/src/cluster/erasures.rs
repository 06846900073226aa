//! What whoever erases a session asks of the cluster: that it goes, when it last went, and who has yet to hear of it.

use crate::cluster::link::{NodesSeen, Said};
use crate::cluster::taking::{self, Asked};
use crate::cluster::{Cluster, FLUSH, Finished};
use crate::error::StoreError;
use crate::key::Key;
use crate::store::Erased;
use runguard_core::row::Row;

impl Cluster {
    pub async fn erase_session(&self, tenant: &str, session: &str, row: Row) -> Result<Option<Erased>, StoreError> {
        taking::erase(&self.inner, tenant, session, Asked { row, earlier: None }).await
    }

    /// Goes on with an erasure that an earlier try had begun, as far as anybody knows, unless the session was erased since.
    pub async fn go_on_erasing(&self, tenant: &str, session: &str, row: Row, earlier: i64) -> Result<Option<Erased>, StoreError> {
        taking::erase(&self.inner, tenant, session, Asked { row, earlier: Some(earlier) }).await
    }

    /// When this session was last erased, as the log tells, whoever asked for it.
    pub async fn erased_at(&self, tenant: &str, session: &str) -> Result<Option<i64>, StoreError> {
        let number = self.inner.names.session_number(tenant, session);
        self.inner.log.erasure_of(number).await
    }

    /// Erasures that this node finished for others since this was last asked.
    pub fn finished_for_others(&self) -> Vec<Finished> {
        self.inner.erasing.take_finished()
    }

    /// Waits until there are any.
    pub async fn some_are_finished_for_others(&self) {
        self.inner.erasing.some_are_finished().await;
    }

    /// This node is there, and knew these others. Gives all that are known.
    pub async fn is_here(&self, node: u64, known: &NodesSeen) -> Result<NodesSeen, StoreError> {
        self.inner.link.is_here(node, known).await.map_err(|error| StoreError::Write(error.to_string()))
    }

    /// What other nodes must know of an erasure.
    pub async fn say_of_erasures(&self, node: u64, said: Said) -> Result<(), StoreError> {
        self.inner.link.say_of_erasures(node, said).await.map_err(|error| StoreError::Write(error.to_string()))
    }

    /// Erasures that were announced, and the nodes that have yet to confirm them.
    pub async fn announced_erasures(&self) -> Result<Vec<(String, Vec<u64>)>, StoreError> {
        self.inner.link.erasures().await.map_err(|error| StoreError::Read(error.to_string()))
    }

    /// Another node erased a session. Its rows are gone from this node's own copy of the log when this returns, also when the node
    /// was away for longer than the streams tell of it.
    pub async fn erase_from_copy(&self, session: Key, row: &Row) -> Result<(), StoreError> {
        let inner = &self.inner;
        if !inner.caught_up(FLUSH).await {
            return Err(StoreError::Read("the log is behind the streams".into()));
        }
        inner.log.erase_from_copy(inner.names.number_of(session), row).await
    }

    /// Rids this node's files of what was removed.
    pub async fn purge(&self) -> Result<Vec<String>, StoreError> {
        self.inner.log.purge().await
    }
}
