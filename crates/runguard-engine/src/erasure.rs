//! Erasing a session everywhere, and saying that it is so only when it is.
//!
//! What a session said is in several files, in the write-ahead log of each, and in the unused part of their pages. An erasure is noted
//! in a file of its own before it begins, and the note goes when nothing is left anywhere. So it goes on after a kill; and when
//! somebody reads an old state of a file, which keeps its bytes there, the caller is told what it waits for, and it is finished
//! later ([`finish`]).
//!
//! Every node of a cluster has files of its own. The one that is asked announces the erasure in the shared database, where the others
//! find it, do their part, and confirm it: only then is it finished.

mod notes;

use crate::alerts;
use crate::analyst::INSIGHT_FILE;
use crate::engine::Engine;
use notes::{Note, Notes, Step};
use runguard_core::Timestamp;
use runguard_core::row::Action;
use runguard_store::cluster::link::{NodesSeen, Said};
use runguard_store::cluster::{Finished, Place};
use runguard_store::{Cluster, Erased, Family, Key, LOG_FILE, Names, Order, Row, RowFilter, Store, StoreError, Unfinished};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The part of the data folder where notes are.
const FOLDER: &str = "erasing";
/// Erasures that were finished later and are still known as such.
const MOST_FINISHED: usize = 10_000;
/// How long a caller waits for readers to end, and for other nodes.
const PATIENCE: Duration = Duration::from_secs(2);
const PATIENCE_WITH_OTHERS: Duration = Duration::from_secs(5);
/// How long a caller waits for the files to be overwritten.
const LONGEST: Duration = Duration::from_secs(20);
const RETRY: Duration = Duration::from_millis(100);
/// How often it is tried again without a caller.
const PULSE: Duration = Duration::from_secs(1);
/// How often a node says that it is there.
const ENROL_EVERY: Duration = Duration::from_secs(10);

/// A session that goes: by its name or, where only a row of the log tells of it, by its key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Whose {
    Session(String),
    Key(String),
}

/// Whose traces go, and how to know them.
#[derive(Debug, Clone)]
pub(crate) struct Gone {
    tenant: String,
    whose: Whose,
    names: Names,
}

impl Gone {
    #[cfg(test)]
    pub(crate) fn of(tenant: &str, session: &str) -> Self {
        Self { tenant: tenant.to_owned(), whose: Whose::Session(session.to_owned()), names: Names::PLAIN }
    }

    pub(crate) fn tenant(&self) -> &str {
        &self.tenant
    }

    /// The session, where its name is known.
    pub(crate) fn session(&self) -> Option<&str> {
        match &self.whose {
            Whose::Session(session) => Some(session),
            Whose::Key(_) => None,
        }
    }

    /// What it is counted by. `None`: its key is of a later version.
    pub(crate) fn number(&self) -> Option<u64> {
        let key = match &self.whose {
            Whose::Session(session) => Some(self.names.key(Family::Session, &self.tenant, session)),
            Whose::Key(key) => Key::from_text(key),
        };
        key.map(Key::group)
    }

    pub(crate) fn is(&self, tenant: &str, session: &str) -> bool {
        tenant == self.tenant
            && match &self.whose {
                Whose::Session(gone) => gone == session,
                Whose::Key(key) => !session.is_empty() && self.names.key(Family::Session, tenant, session).to_text() == *key,
            }
    }
}

/// What an erasure waits for that has begun, and whose rows are still there.
pub const THE_LOG: &str = "the log";

const OTHER_NODES: &str = "other nodes";

/// How far an erasure has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Erasure {
    /// Rows that left the log.
    pub log_rows: usize,
    /// What keeps some of it: [`THE_LOG`], files that somebody reads an old state of, and other nodes. None: it is done.
    pub waiting: Vec<String>,
}

/// The erasures that are not finished.
#[derive(Debug)]
pub(crate) struct Erasures {
    /// Held while a session is taken out of everything: one at a time, whoever asks.
    notes: tokio::sync::Mutex<Notes>,
    has_files: bool,
    /// When the last sweep of all files that left nothing began.
    swept: tokio::sync::Mutex<Option<Instant>>,
    /// Tenants and sessions that were finished after their caller was told to wait.
    finished: Mutex<VecDeque<(String, Whose)>>,
    /// Notes whose callers wait: they go on with them, and hear how it ends.
    attended: Mutex<Vec<u64>>,
    woken: Notify,
}

/// As long as it lives, a caller waits for an erasure.
struct Attended<'a>(&'a Erasures, u64);

impl Drop for Attended<'_> {
    fn drop(&mut self) {
        let mut attended = self.0.attended();
        if let Some(place) = attended.iter().position(|number| *number == self.1) {
            attended.swap_remove(place);
        }
    }
}

/// What was taken out.
struct Removed {
    log_rows: usize,
    is_known: bool,
    /// It has begun, and is finished behind.
    is_unfinished: bool,
}

impl Removed {
    const UNFINISHED: Self = Self { log_rows: 0, is_known: true, is_unfinished: true };
}

impl Erasures {
    pub(crate) fn new(data: &Path) -> Result<Self, StoreError> {
        Ok(Self { has_files: true, ..Self::noted_at(Place::Folder(data.join(FOLDER)))? })
    }

    /// With notes that lie there; without other files it is a simulation.
    pub(crate) fn noted_at(place: Place) -> Result<Self, StoreError> {
        let (swept, finished, attended) = Default::default();
        Ok(Self { notes: Notes::read(place)?.into(), has_files: false, swept, finished, attended, woken: Notify::new() })
    }

    fn attended(&self) -> MutexGuard<'_, Vec<u64>> {
        self.attended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attend(&self, note: &Note) -> Attended<'_> {
        self.attended().push(note.number);
        Attended(self, note.number)
    }

    fn is_attended(&self, note: &Note) -> bool {
        self.attended().contains(&note.number)
    }

    fn finished(&self) -> MutexGuard<'_, VecDeque<(String, Whose)>> {
        self.finished.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it was finished behind its caller, who has asked again.
    fn was_finished(&self, tenant: &str, whose: &Whose) -> bool {
        let mut finished = self.finished();
        let position = finished.iter().position(|known| (known.0.as_str(), &known.1) == (tenant, whose));
        position.is_some_and(|position| finished.remove(position).is_some())
    }

    fn keep_finished(&self, note: Note) {
        let mut finished = self.finished();
        if finished.len() >= MOST_FINISHED {
            finished.pop_front();
        }
        finished.push_back((note.tenant, note.whose));
    }
}

/// How an erasure is called among the nodes of a cluster: when, and whose.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Ticket {
    at: i64,
    key: String,
    tenant: String,
}

impl Ticket {
    fn of(note: &Note, names: Names) -> Self {
        let key = match &note.whose {
            Whose::Session(session) => names.key(Family::Session, &note.tenant, session).to_text(),
            Whose::Key(key) => key.clone(),
        };
        Self { at: note.at, key, tenant: note.tenant.clone() }
    }

    fn to_text(&self) -> String {
        format!("{} {} {}", self.at, self.key, self.tenant)
    }

    fn read(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, ' ');
        let (at, key, tenant) = (parts.next()?.parse().ok()?, parts.next()?, parts.next()?);
        Some(Self { at, key: key.to_owned(), tenant: tenant.to_owned() })
    }
}

/// A node as people and logs are told of it.
fn node_name(node: u64) -> String {
    format!("node {node:016x}")
}

/// Says that this node is there, and whom it knew: a shared database that was emptied does not know who has yet to hear of an erasure.
async fn enrol(cluster: &Cluster, notes: &mut Notes) -> Result<u64, StoreError> {
    let node = notes.node().await?;
    let mut known = cluster.is_here(node, &NodesSeen::new()).await?;
    if notes.nodes().keys().any(|other| !known.contains_key(other)) {
        known = cluster.is_here(node, notes.nodes()).await?;
    }
    notes.set_nodes(known).await?;
    Ok(node)
}

/// All other nodes are to do their part.
async fn announce(cluster: &Cluster, notes: &mut Notes, ticket: String) -> Result<(), StoreError> {
    let node = enrol(cluster, notes).await?;
    cluster.say_of_erasures(node, Said::Announced(ticket)).await
}

async fn note_finished(notes: &mut Notes, Finished { tenant, session, row, .. }: &Finished) -> Result<(), StoreError> {
    if notes.all().iter().any(|note| note.row == row.id) {
        return Ok(());
    }
    let mut note = notes.add(tenant, Whose::Session(session.clone()), row.at, row.id.clone()).await?;
    notes.set_step(&mut note, Step::Begun).await
}

/// What tells of it in the log.
fn erasure_row(tenant: &str, at: i64, id: String) -> Row {
    Row { id, ..Engine::admin_row_without_id(tenant, Timestamp::from_millis(at), Action::SessionErased, "") }
}

impl Engine {
    /// Removes everything known of a session. `None`: nothing was.
    pub async fn erase_session(&self, tenant: &str, session_id: &str, now: Timestamp) -> Result<Option<Erasure>, StoreError> {
        let (erasures, whose) = (&self.erasures, Whose::Session(session_id.to_owned()));
        let mut notes = erasures.notes.lock().await;
        let known = notes.find(tenant, &whose).cloned();
        let is_new = known.is_none();
        let mut note = match known {
            Some(note) => note,
            None => notes.add(tenant, whose.clone(), now.as_millis(), self.new_id(now)).await?,
        };
        let _attended = erasures.attend(&note);
        let mut removed = match note.step {
            Step::Remove | Step::Begun => match self.remove(&mut notes, &mut note, is_new).await {
                Ok(removed) => removed,
                Err(error) if note.step == Step::Remove => {
                    // Whoever hears that it was not done must not find it done later.
                    notes.remove(&note).await?;
                    return Err(error);
                }
                // It was told that it goes.
                Err(_) => Removed::UNFINISHED,
            },
            Step::Overwrite | Step::Others => Removed { log_rows: 0, is_known: true, is_unfinished: false },
        };
        if !is_new && removed.is_known && !removed.is_unfinished {
            let of_new_life = self.remove_new_life(&mut notes, &mut note, now).await?;
            removed = Removed { log_rows: removed.log_rows + of_new_life.log_rows, ..of_new_life };
        }
        if removed.is_unfinished {
            erasures.woken.notify_one();
            return Ok(Some(Erasure { log_rows: 0, waiting: vec![THE_LOG.to_owned()] }));
        }
        if !removed.is_known {
            notes.remove(&note).await?;
            if notes.find(tenant, &whose).is_some() {
                // Meanwhile this node has finished what another one had begun.
                drop(notes);
                return Box::pin(self.erase_session(tenant, session_id, now)).await;
            }
            return Ok(erasures.was_finished(tenant, &whose).then_some(Erasure { log_rows: 0, waiting: Vec::new() }));
        }
        // Not held while the files are gone through and others are waited for: that may take long.
        drop(notes);
        let removed_at = Instant::now();
        let waiting = loop {
            // A large log takes its time: the caller hears that it waits, and it goes on behind.
            let swept = tokio::time::timeout(LONGEST, self.sweep(erasures, &note, removed_at)).await;
            // It is gone from the log: whatever fails from here on is tried again behind.
            let waiting = swept.ok().and_then(Result::ok).unwrap_or_else(|| vec![LOG_FILE.to_owned()]);
            if waiting.is_empty() {
                let others = self.conclude(erasures, &mut note).await.unwrap_or_else(|_| vec![OTHER_NODES.to_owned()]);
                if others.is_empty() || removed_at.elapsed() >= PATIENCE_WITH_OTHERS {
                    break others;
                }
            } else if removed_at.elapsed() >= PATIENCE {
                break waiting;
            }
            tokio::time::sleep(RETRY).await;
        };
        if !waiting.is_empty() {
            tracing::warn!(
                waiting = waiting.join(", "),
                "an erasure waits: somebody reads an old state of a file, or it is large, or a node is away; it is finished behind"
            );
            erasures.woken.notify_one();
        }
        Ok(Some(Erasure { log_rows: removed.log_rows, waiting }))
    }

    /// A session that is asked to go while an earlier erasure of it waits, or was finished by another node, may have begun anew since: then that
    /// goes too, and all begins again. Otherwise the caller asks how it stands.
    async fn remove_new_life(&self, notes: &mut Notes, note: &mut Note, now: Timestamp) -> Result<Removed, StoreError> {
        let mut again = Note { step: Step::Remove, at: now.as_millis(), row: self.new_id(now), earlier: None, ..note.clone() };
        let removed = match self.remove(notes, &mut again, true).await {
            Err(_) if again.step != Step::Remove => Removed::UNFINISHED,
            removed => removed?,
        };
        if removed.is_known {
            let earlier = std::mem::replace(note, again);
            if let Err(error) = self.forget_announced(notes, &earlier).await {
                // The session is gone, whatever becomes of that.
                tracing::warn!(%error, "an earlier erasure of a session that was erased once more stays announced");
            }
        }
        Ok(Removed { is_known: true, ..removed })
    }

    /// Nobody waits for an earlier erasure any more.
    async fn forget_announced(&self, notes: &Notes, earlier: &Note) -> Result<(), StoreError> {
        let Store::Cluster(cluster) = &self.store else { return Ok(()) };
        let ticket = Ticket::of(earlier, cluster.names()).to_text();
        cluster.say_of_erasures(notes.node().await?, Said::Forgotten(ticket)).await
    }

    /// Takes a session out of everything that knows it. One that nobody knows is told to nobody, unless an earlier try may have
    /// removed it.
    async fn remove(&self, notes: &mut Notes, note: &mut Note, is_new: bool) -> Result<Removed, StoreError> {
        if !matches!(note.step, Step::Remove | Step::Begun) {
            return Ok(Removed { log_rows: 0, is_known: true, is_unfinished: false });
        }
        let gone = Gone { tenant: note.tenant.clone(), whose: note.whose.clone(), names: self.store.names() };
        // Earlier versions noted no row, nor does one that only follows.
        let id = if note.row.is_empty() { self.new_id(Timestamp::from_millis(note.at)) } else { note.row.clone() };
        let row = erasure_row(&note.tenant, note.at, id);
        let took_place = if is_new { None } else { self.logged(note).await? };
        let erased = match (&note.whose, &self.store) {
            (Whose::Session(_), _) if took_place.is_some() => took_place.map(|row| Erased { log_rows: 0, row, unfinished: None }),
            (Whose::Session(session), Store::Cluster(cluster)) => self.erase_shared(cluster, notes, note, session, row).await?,
            (Whose::Session(session), store) => store.erase_session(&note.tenant, session, row).await?,
            (Whose::Key(key), Store::Cluster(cluster)) => {
                if let Some(key) = Key::from_text(key) {
                    cluster.erase_from_copy(key, &row).await?;
                }
                None
            }
            (Whose::Key(_), Store::Embedded(_) | Store::Memory(_)) => None,
        };
        if let Some(Erased { row, unfinished, .. }) = &erased {
            if let (Some(Unfinished { why, .. }), Step::Remove) = (unfinished, note.step) {
                tracing::warn!(why, "an erasure has begun and cannot be finished yet; it is finished behind");
            }
            let earlier = unfinished.as_ref().and_then(|unfinished| unfinished.earlier).or(note.earlier);
            if note.step == Step::Remove || (note.at, &note.row, note.earlier) != (row.at, &row.id, earlier) {
                // Whatever fails from here on, it is not said that nothing was done. Of two in one go there is one row.
                (note.at, note.row, note.earlier) = (row.at, row.id.clone(), earlier);
                notes.set_step(note, Step::Begun).await?;
            }
            if unfinished.is_some() {
                return Ok(Removed::UNFINISHED);
            }
        } else if let Some(at) = self.erased_by_another_at(note).await? {
            // Another one took all that there was, though it may have been asked for earlier: that is what the nodes are told of.
            note.at = at;
        }
        // Not before the rows are gone: of an erasure that is refused nothing is done. What follows the log has written by then what it had
        // read of them.
        let in_insights = self.analyst.forget(&gone).await?;
        let in_alerts = if let Some(alerts) = self.alerts.get() {
            alerts.forget(&gone).await?
        } else {
            self.on_alerts_file(false, move |folder| alerts::erase_from_idle_file(folder, &gone)).await?
        };
        let is_known = erased.is_some() || in_insights || in_alerts;
        // Nobody was promised anything, and there was nothing.
        if !is_known && note.step == Step::Remove && matches!(note.whose, Whose::Session(_)) {
            return Ok(Removed { log_rows: 0, is_known, is_unfinished: false });
        }
        if let (Whose::Session(_), Store::Cluster(cluster)) = (&note.whose, &self.store) {
            let ticket = Ticket::of(note, self.store.names()).to_text();
            announce(cluster, notes, ticket).await?;
        }
        notes.set_step(note, Step::Overwrite).await?;
        Ok(Removed { log_rows: erased.map_or(0, |erased| erased.log_rows), is_known: true, is_unfinished: false })
    }

    /// Whether a session that an earlier life of the service was to erase, and told nobody that it would, has gone on since.
    async fn has_gone_on(&self, note: &Note) -> Result<bool, StoreError> {
        let Whose::Session(session) = &note.whose else { return Ok(false) };
        let since = note.at.saturating_add(1);
        let filter =
            RowFilter { tenant: Some(note.tenant.clone()), session: Some(session.clone()), since: Some(since), ..RowFilter::default() };
        Ok(note.step == Step::Remove && !self.store.rows(filter, Order::NewestFirst, None, 1).await?.is_empty())
    }

    /// When the session of one that was begun, as far as anybody knows, was last erased.
    async fn erased_by_another_at(&self, note: &Note) -> Result<Option<i64>, StoreError> {
        match (&note.whose, &self.store) {
            (Whose::Session(session), Store::Cluster(cluster)) if note.step == Step::Begun => {
                cluster.erased_at(&note.tenant, session).await
            }
            _ => Ok(None),
        }
    }

    /// What the log tells of this very erasure: what there is of the session then is a new life.
    async fn logged(&self, note: &Note) -> Result<Option<Row>, StoreError> {
        if note.row.is_empty() {
            // An earlier version noted no row.
            return Ok(None);
        }
        // Copies of the log hear of it through the streams.
        self.store.flush().await?;
        let filter = RowFilter { id: Some(note.row.clone()), tenant: Some(note.tenant.clone()), ..RowFilter::default() };
        Ok(self.store.rows(filter, Order::NewestFirst, None, 1).await?.pop())
    }

    /// Overwrites what was removed before `removed_at`, in every file. Gives those that keep some of it.
    async fn sweep(&self, erasures: &Erasures, note: &Note, removed_at: Instant) -> Result<Vec<String>, StoreError> {
        if note.step == Step::Others {
            return Ok(Vec::new());
        }
        let mut swept = erasures.swept.lock().await;
        // Whoever was first has done it for all who waited.
        if swept.is_some_and(|began| began >= removed_at) {
            return Ok(Vec::new());
        }
        let began = Instant::now();
        let mut waiting = self.store.purge().await?;
        if !self.analyst.purge().await? {
            waiting.push(INSIGHT_FILE.to_owned());
        }
        if !self.on_alerts_file(true, alerts::purge_file).await? {
            waiting.push(alerts::FILE.to_owned());
        }
        if waiting.is_empty() {
            *swept = Some(began);
        }
        Ok(waiting)
    }

    /// An erasure is in no file of this node: it is finished, unless other nodes have yet to confirm it. A node that follows confirms
    /// here. Gives those that are waited for.
    async fn conclude(&self, erasures: &Erasures, note: &mut Note) -> Result<Vec<String>, StoreError> {
        let mut notes = erasures.notes.lock().await;
        if notes.current(note).is_none() {
            // Another caller, or we behind them all, was faster.
            return Ok(Vec::new());
        }
        if let Store::Cluster(cluster) = &self.store {
            let ticket = Ticket::of(note, cluster.names()).to_text();
            let node = notes.node().await?;
            match &note.whose {
                Whose::Key(_) => cluster.say_of_erasures(node, Said::Confirmed(ticket)).await?,
                Whose::Session(_) => {
                    let announced = cluster.announced_erasures().await?;
                    let Some((_, others)) = announced.into_iter().find(|(other, _)| *other == ticket) else {
                        // The shared database was emptied.
                        announce(cluster, &mut notes, ticket).await?;
                        return Ok(vec![OTHER_NODES.to_owned()]);
                    };
                    if !others.is_empty() {
                        if note.step != Step::Others {
                            notes.set_step(note, Step::Others).await?;
                        }
                        return Ok(others.into_iter().map(node_name).collect());
                    }
                    cluster.say_of_erasures(node, Said::Forgotten(ticket)).await?;
                }
            }
        }
        notes.remove(note).await?;
        Ok(Vec::new())
    }

    async fn on_alerts_file(
        &self,
        without: bool,
        work: impl FnOnce(&Path) -> Result<bool, alerts::OutboxError> + Send + 'static,
    ) -> Result<bool, StoreError> {
        if !self.erasures.has_files {
            return Ok(without);
        }
        let folder = PathBuf::from(&self.started_with.store.data);
        let done = tokio::task::spawn_blocking(move || work(&folder)).await.map_err(|error| StoreError::Write(error.to_string()))?;
        done.map_err(|error| StoreError::Write(error.to_string()))
    }

    /// Goes on with what is noted.
    async fn go_on(&self, erasures: &Erasures) -> Result<(), StoreError> {
        let noted = erasures.notes.lock().await.all().to_vec();
        let (mut to_sweep, mut failed) = (Vec::new(), None);
        for note in noted {
            let mut notes = erasures.notes.lock().await;
            // A caller may have gone on with it, or finished it, since: what is removed twice may be a new life.
            let Some(mut note) = notes.current(&note).filter(|note| !erasures.is_attended(note)) else { continue };
            match self.go_on_with(&mut notes, &mut note).await {
                Ok(true) => to_sweep.push(note),
                Ok(false) => {}
                // It holds up no other.
                Err(error) => drop(failed.get_or_insert(error)),
            }
        }
        let removed_at = Instant::now();
        let mut is_any_finished = false;
        for mut note in to_sweep {
            if self.sweep(erasures, &note, removed_at).await?.is_empty() && self.conclude(erasures, &mut note).await?.is_empty() {
                is_any_finished = true;
                if !erasures.is_attended(&note) {
                    erasures.keep_finished(note);
                }
            }
        }
        if is_any_finished {
            tracing::info!("erasures that waited are finished");
        }
        failed.map_or(Ok(()), Err)
    }

    /// Whether it is gone from the log, and the files are to be rid of it.
    async fn go_on_with(&self, notes: &mut Notes, note: &mut Note) -> Result<bool, StoreError> {
        if self.has_gone_on(note).await? && self.logged(note).await?.is_none() {
            tracing::warn!("an erasure that was asked for before a kill was not done: the session has gone on since; ask for it again");
            notes.remove(note).await?;
            return Ok(false);
        }
        let removed = self.remove(notes, note, false).await?;
        if !removed.is_known {
            notes.remove(note).await?;
        }
        Ok(removed.is_known && !removed.is_unfinished)
    }

    /// Notes what this node finished for others, which may never be back to announce it.
    async fn note_finished(&self, cluster: &Cluster, notes: &mut Notes) {
        for finished in cluster.finished_for_others() {
            match note_finished(notes, &finished).await {
                Ok(()) => finished.is_noted(),
                Err(error) => {
                    tracing::error!(%error, "an erasure that was finished for another node cannot be noted: other nodes may keep its overviews");
                    finished.cannot_be_noted();
                }
            }
        }
        self.erasures.woken.notify_one();
    }

    /// Takes a session out of the shared states and the log. What this node finishes for others meanwhile is noted: it may be this very session,
    /// which is not free before.
    async fn erase_shared(
        &self,
        cluster: &Cluster,
        notes: &mut Notes,
        note: &Note,
        session: &str,
        row: Row,
    ) -> Result<Option<Erased>, StoreError> {
        let erased = async {
            match note.step {
                // It may not be written that it began, and somebody else may have erased the session since. An earlier version, or who could not
                // ask, noted nothing: then one that was asked for earlier is taken for none.
                Step::Begun => {
                    let earlier = note.earlier.unwrap_or(note.at.saturating_sub(1));
                    cluster.go_on_erasing(&note.tenant, session, row, earlier).await
                }
                Step::Remove | Step::Overwrite | Step::Others => cluster.erase_session(&note.tenant, session, row).await,
            }
        };
        let mut erased = std::pin::pin!(erased);
        loop {
            tokio::select! {
                biased;
                erased = &mut erased => return erased,
                () = cluster.some_are_finished_for_others() => self.note_finished(cluster, notes).await,
            }
        }
    }

    /// Notes the erasures that other nodes have announced.
    async fn follow_others(&self, cluster: &Cluster, erasures: &Erasures) -> Result<(), StoreError> {
        let announced = cluster.announced_erasures().await?;
        if announced.is_empty() {
            return Ok(());
        }
        let mut notes = erasures.notes.lock().await;
        let node = notes.node().await?;
        for ticket in announced.iter().filter(|(_, waiting)| waiting.contains(&node)).filter_map(|(ticket, _)| Ticket::read(ticket)) {
            let whose = Whose::Key(ticket.key);
            if notes.find(&ticket.tenant, &whose).is_none() {
                notes.add(&ticket.tenant, whose, ticket.at, String::new()).await?;
            }
        }
        Ok(())
    }
}

/// Finishes erasures that wait, also those of an earlier life of the service and of other nodes, as long as it runs.
pub async fn finish(engine: std::sync::Arc<Engine>) {
    // Beside each other: a session waits until it is noted that it was erased, and the files may be large.
    tokio::join!(note_what_is_finished(&engine), finish_behind(&engine));
}

async fn note_what_is_finished(engine: &Engine) {
    let Store::Cluster(cluster) = &engine.store else { return };
    loop {
        cluster.some_are_finished_for_others().await;
        // Whoever erases meanwhile notes it.
        let mut notes = engine.erasures.notes.lock().await;
        engine.note_finished(cluster, &mut notes).await;
    }
}

async fn finish_behind(engine: &Engine) {
    let erasures = &engine.erasures;
    let mut enrolled: Option<Instant> = None;
    // Said once, not every second.
    let mut is_troubled = false;
    loop {
        let work = async {
            if let Store::Cluster(cluster) = &engine.store {
                if enrolled.is_none_or(|at| at.elapsed() >= ENROL_EVERY) {
                    let node = enrol(cluster, &mut *erasures.notes.lock().await).await?;
                    if enrolled.replace(Instant::now()).is_none() {
                        tracing::info!("in answers to erasures this is {}", node_name(node));
                    }
                }
                engine.follow_others(cluster, erasures).await?;
            }
            engine.go_on(erasures).await
        };
        match work.await {
            Ok(()) => is_troubled = false,
            Err(error) if !is_troubled => {
                is_troubled = true;
                tracing::error!(%error, "erasures cannot be finished; it is tried again");
            }
            Err(_) => {}
        }
        tokio::select! {
            () = erasures.woken.notified() => tokio::time::sleep(RETRY).await,
            () = tokio::time::sleep(PULSE) => {}
        }
    }
}
