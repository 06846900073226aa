//! What whoever tells of alerts leaves to whoever does it next, in the state that all nodes share.

use crate::erasure::Gone;
use runguard_insight::alert::{Alert, Rule, State};
use runguard_store::cluster::{MOST_NOTE_RACES, Note, NoteResult};
use runguard_store::{Cluster, Store, StoreError};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// How far it is.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct AlerterPlace {
    /// The last row that was looked at: its number, and its id for those whose log has other numbers.
    pub(super) upto: u64,
    pub(super) last_id: String,
    /// Name of a rule, what its state depends on, the state.
    rules: Vec<(String, String, State)>,
    /// Fired, and perhaps in nobody's outbox.
    pub(super) pending: Vec<Alert>,
}

impl AlerterPlace {
    pub(super) fn of(upto: u64, last_id: &str, rules: &[(Rule, State)], pending: &[Alert]) -> Self {
        let rules = rules.iter().map(|(rule, state)| (rule.name.clone(), rule.fingerprint(), state.clone())).collect();
        Self { upto, last_id: last_id.to_owned(), rules, pending: pending.to_vec() }
    }

    /// `None`: nothing is known of the rule, or it meant something else.
    pub(super) fn state_of(&self, rule: &Rule) -> Option<State> {
        let fingerprint = rule.fingerprint();
        let found = self.rules.iter().find(|(name, meaning, _)| *name == rule.name && *meaning == fingerprint);
        found.map(|(_, _, state)| state.clone())
    }

    fn forget(&mut self, gone: &Gone) -> bool {
        let before = self.pending.len();
        self.pending.retain(|alert| !gone.is(&alert.tenant, &alert.session));
        let mut is_known = self.pending.len() < before;
        for (_, _, state) in &mut self.rules {
            is_known |= state.forget(gone.tenant(), |session| gone.is(gone.tenant(), session));
        }
        is_known
    }

    fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// What cannot be read is of another version: rules begin with what this node knows.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

/// `None`: there is nobody to leave anything to.
pub(super) fn cluster_of(store: &Store) -> Option<&Cluster> {
    match store {
        Store::Cluster(cluster) => Some(cluster),
        Store::Embedded(_) | Store::Memory(_) => None,
    }
}

/// Where the note stands, as far as this node knows.
#[derive(Debug, Default)]
pub(super) struct Baton {
    /// What the note is known by; `None`: another node may have it.
    token: Option<u64>,
    /// Since when we wait for the log.
    waits_since: Option<Instant>,
}

impl Baton {
    pub(super) fn is_ours(&self) -> bool {
        self.token.is_some()
    }

    pub(super) fn let_go(&mut self) {
        self.token = None;
    }

    /// Whether the log was waited for long enough.
    pub(super) fn has_waited(&mut self, longest: Duration) -> bool {
        self.waits_since.get_or_insert_with(Instant::now).elapsed() >= longest
    }

    /// What the one before has left.
    pub(super) async fn take(&mut self, cluster: &Cluster) -> Result<Option<AlerterPlace>, StoreError> {
        let (token, state) = cluster.note(Note::Alerts).await?;
        self.token = Some(token);
        Ok(state.as_deref().and_then(AlerterPlace::from_bytes))
    }

    /// Says how far we are. An error when another node has said so since, too.
    pub(super) async fn pass(&mut self, cluster: &Cluster, held: AlerterPlace) -> Result<(), StoreError> {
        let expect = self.token.unwrap_or(0);
        match cluster.leave_note(Note::Alerts, expect, held.to_bytes()).await? {
            NoteResult::Done(token) => {
                (self.token, self.waits_since) = (Some(token), None);
                Ok(())
            }
            NoteResult::Raced => Err(StoreError::Write("another node was faster".into())),
        }
    }

    /// Takes a session out of the note, whoever has it; whether anything was known of it.
    pub(super) async fn forget(&mut self, cluster: &Cluster, gone: &Gone) -> Result<bool, StoreError> {
        for _ in 0..MOST_NOTE_RACES {
            let (expect, state) = cluster.note(Note::Alerts).await?;
            let Some(mut held) = state.as_deref().and_then(AlerterPlace::from_bytes) else { return Ok(false) };
            if !held.forget(gone) {
                return Ok(false);
            }
            match cluster.leave_note(Note::Alerts, expect, held.to_bytes()).await? {
                NoteResult::Done(token) => {
                    if self.token == Some(expect) {
                        self.token = Some(token);
                    }
                    return Ok(true);
                }
                NoteResult::Raced => {}
            }
        }
        Err(StoreError::Write("what was left for whoever tells of alerts next changes too often; try again".into()))
    }
}
