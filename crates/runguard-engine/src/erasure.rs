//! Erasing a session everywhere, and saying that it is so only when it is.
//!
//! What a session said is in several files, in the write-ahead log of each, and in the unused part of their pages. An erasure is noted
//! in a file of its own before it begins, and the note goes when nothing is left anywhere. So it goes on after a kill; and when
//! somebody reads an old state of a file, which keeps its bytes there, the caller is told what it waits for, and it is finished
//! later ([`finish`]).
//!
//! In a cluster a node also follows the rows that tell of erasures on other nodes: they name nobody, but have the session's key.

use crate::alerts;
use crate::analyst::INSIGHT_FILE;
use crate::engine::Engine;
use runguard_core::Timestamp;
use runguard_store::files::{create_private_folder, private_file};
use runguard_store::{Family, LOG_FILE, Names, Order, RowFilter, Store, StoreError};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// The part of the data folder where notes are.
const FOLDER: &str = "erasing";
/// Ends the name of a file that is being written.
const UNFINISHED: &str = "new";
/// How far a node of a cluster has followed the erasures of others.
const PLACE_FILE: &str = "followed";
/// Erasures that are not finished. Beyond it a further one is refused.
const MOST_NOTES: usize = 10_000;
/// Erasures that were finished later and are still known as such.
const MOST_FINISHED: usize = 10_000;
/// How long a caller waits for readers to end.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a caller waits for the files to be overwritten.
const LONGEST: Duration = Duration::from_secs(20);
const RETRY: Duration = Duration::from_millis(100);
/// How often it is tried again without a caller.
const PULSE: Duration = Duration::from_secs(1);
/// Rows of erasures read at a time.
const ROWS: usize = 100;

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

    pub(crate) fn is(&self, tenant: &str, session: &str) -> bool {
        tenant == self.tenant
            && match &self.whose {
                Whose::Session(gone) => gone == session,
                Whose::Key(key) => !session.is_empty() && self.names.key(Family::Session, tenant, session).to_text() == *key,
            }
    }
}

/// What is left to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Step {
    /// It is known here and there.
    Remove,
    /// Nobody knows it, but its bytes may be in the files. What comes under its name from here on is another life.
    Overwrite,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Note {
    tenant: String,
    whose: Whose,
    at: i64,
    step: Step,
    #[serde(skip)]
    path: PathBuf,
}

/// How far an erasure has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Erasure {
    /// Rows that left the log.
    pub log_rows: usize,
    /// The files that keep some of it, because somebody reads an old state of them. None: it is done.
    pub waiting: Vec<String>,
}

/// The erasures that are not finished.
#[derive(Debug)]
pub(crate) struct Erasures {
    folder: PathBuf,
    /// Tenants and sessions that were finished after their caller was told to wait.
    finished: Mutex<VecDeque<(String, Whose)>>,
    /// One at a time, whoever asks.
    turn: tokio::sync::Mutex<()>,
    woken: Notify,
}

impl Erasures {
    pub(crate) fn new(data: &Path) -> Self {
        let folder = data.join(FOLDER);
        // A kill may have left a note half written. What it was about stands as it did before.
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            if entry.path().extension().is_some_and(|extension| extension == UNFINISHED) {
                let _ = fs::remove_file(entry.path());
            }
        }
        Self { folder, finished: Mutex::default(), turn: tokio::sync::Mutex::default(), woken: Notify::new() }
    }

    fn finished(&self) -> MutexGuard<'_, VecDeque<(String, Whose)>> {
        self.finished.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notes(&self) -> Result<Vec<Note>, StoreError> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(self.unread(&error)),
        };
        let mut notes: Vec<Note> = Vec::new();
        for entry in entries {
            let path = entry.map_err(|error| self.unread(&error))?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let text = fs::read_to_string(&path).map_err(|error| self.unread(&error))?;
            match serde_json::from_str::<Note>(&text) {
                Ok(note) => notes.push(Note { path, ..note }),
                Err(error) => {
                    tracing::error!(file = %path.display(), %error, "a note of an erasure cannot be read; erase the session again");
                }
            }
        }
        notes.sort_by_key(|note| note.at);
        Ok(notes)
    }

    fn find(&self, tenant: &str, whose: &Whose) -> Result<Option<Note>, StoreError> {
        Ok(self.notes()?.into_iter().find(|note| note.tenant == tenant && note.whose == *whose))
    }

    /// Notes an erasure down, to stay over a crash.
    fn note(&self, tenant: &str, whose: Whose, at: i64) -> Result<Note, StoreError> {
        let number = getrandom::u64().map_err(|error| StoreError::Write(error.to_string()))?;
        let path = self.folder.join(format!("{number:016x}.json"));
        let note = Note { tenant: tenant.to_owned(), whose, at, step: Step::Remove, path };
        create_private_folder(&self.folder).map_err(|error| self.unwritten(&error))?;
        self.write(&note)?;
        Ok(note)
    }

    fn write(&self, note: &Note) -> Result<(), StoreError> {
        let text = serde_json::to_string(note).map_err(|error| StoreError::Write(error.to_string()))?;
        write_whole(&note.path, &text).map_err(|error| self.unwritten(&error))
    }

    fn remove(&self, note: &Note) -> Result<(), StoreError> {
        fs::remove_file(&note.path).map_err(|error| self.unwritten(&error))
    }

    /// How far others' erasures were followed.
    fn place(&self) -> u64 {
        fs::read_to_string(self.folder.join(PLACE_FILE)).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    fn keep_place(&self, place: u64) -> Result<(), StoreError> {
        create_private_folder(&self.folder).map_err(|error| self.unwritten(&error))?;
        write_whole(&self.folder.join(PLACE_FILE), &place.to_string()).map_err(|error| self.unwritten(&error))
    }

    fn unread(&self, error: &std::io::Error) -> StoreError {
        StoreError::Read(format!("{}: {error}", self.folder.display()))
    }

    fn unwritten(&self, error: &std::io::Error) -> StoreError {
        StoreError::Write(format!("{}: {error}", self.folder.display()))
    }
}

/// A file is there whole, or as it was.
fn write_whole(path: &Path, text: &str) -> std::io::Result<()> {
    let unfinished = path.with_extension(UNFINISHED);
    let mut file = private_file().write(true).create(true).truncate(true).open(&unfinished)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&unfinished, path)?;
    // The name, too, must be on the disk.
    path.parent().map_or(Ok(()), |folder| fs::File::open(folder)?.sync_all())
}

impl Engine {
    /// Removes everything known of a session. `None`: nothing was.
    pub async fn erase_session(&self, tenant: &str, session_id: &str, now: Timestamp) -> Result<Option<Erasure>, StoreError> {
        let Some(erasures) = &self.erasures else {
            // A simulation has no files.
            let row = self.erasure_row(tenant, now.as_millis());
            let erased = self.store.erase_session(tenant, session_id, row).await?;
            return Ok(erased.map(|erased| Erasure { log_rows: erased.log_rows, waiting: Vec::new() }));
        };
        let _turn = erasures.turn.lock().await;
        let whose = Whose::Session(session_id.to_owned());
        let (mut note, is_new) = match erasures.find(tenant, &whose)? {
            Some(note) => (note, false),
            None if erasures.notes()?.len() >= MOST_NOTES => {
                return Err(StoreError::Write(format!(
                    "{MOST_NOTES} erasures wait for somebody who reads the database; end the process that has it open"
                )));
            }
            None => (erasures.note(tenant, whose.clone(), now.as_millis())?, true),
        };
        let log_rows = self.remove(erasures, &mut note).await?;
        let started = Instant::now();
        let waiting = loop {
            // A large log takes its time: the caller hears that it waits, and it goes on behind.
            let overwritten = tokio::time::timeout(LONGEST, self.overwrite()).await;
            let waiting = overwritten.unwrap_or_else(|_| Ok(vec![LOG_FILE.to_owned()]))?;
            if waiting.is_empty() || started.elapsed() >= PATIENCE {
                break waiting;
            }
            tokio::time::sleep(RETRY).await;
        };
        if waiting.is_empty() {
            erasures.remove(&note)?;
        } else {
            tracing::warn!(
                files = waiting.join(", "),
                "an erasure waits: somebody reads an old state of a file, or it is large; it is finished behind"
            );
            erasures.woken.notify_one();
        }
        let was_finished = is_new && log_rows.is_none() && {
            let mut finished = erasures.finished();
            let position = finished.iter().position(|known| (known.0.as_str(), &known.1) == (tenant, &whose));
            position.is_some_and(|position| finished.remove(position).is_some())
        };
        if is_new && log_rows.is_none() && waiting.is_empty() && !was_finished {
            return Ok(None);
        }
        Ok(Some(Erasure { log_rows: log_rows.unwrap_or(0), waiting }))
    }

    /// Takes a session out of everything that knows it. Gives the rows that left the log; `None`: none was known.
    async fn remove(&self, erasures: &Erasures, note: &mut Note) -> Result<Option<usize>, StoreError> {
        if note.step == Step::Overwrite {
            return Ok(None);
        }
        let gone = Gone { tenant: note.tenant.clone(), whose: note.whose.clone(), names: self.store.names() };
        // Before the rows: what follows the log must not bring it back.
        self.analyst.forget(&gone).await?;
        let erased = match gone.session() {
            Some(session) => self.store.erase_session(gone.tenant(), session, self.erasure_row(gone.tenant(), note.at)).await?,
            None => None,
        };
        if let Some(alerts) = self.alerts.get() {
            alerts.forget(&gone).await?;
        } else {
            let folder = PathBuf::from(&self.started_with.store.data);
            let forget = move || alerts::erase_from_idle_file(&folder, &gone);
            let forgotten = tokio::task::spawn_blocking(forget).await.map_err(|error| StoreError::Write(error.to_string()))?;
            forgotten.map_err(|error| StoreError::Write(error.to_string()))?;
        }
        note.step = Step::Overwrite;
        erasures.write(note)?;
        Ok(erased.map(|erased| erased.log_rows))
    }

    /// Overwrites what was removed, in every file. Gives those that keep some of it.
    async fn overwrite(&self) -> Result<Vec<String>, StoreError> {
        let mut waiting = self.store.purge().await?;
        if !self.analyst.purge().await? {
            waiting.push(INSIGHT_FILE.to_owned());
        }
        let are_alerts_rid = if let Some(alerts) = self.alerts.get() {
            alerts.purge().await?
        } else {
            let folder = PathBuf::from(&self.started_with.store.data);
            let purge = move || alerts::purge_idle_file(&folder);
            let purged = tokio::task::spawn_blocking(purge).await.map_err(|error| StoreError::Write(error.to_string()))?;
            purged.map_err(|error| StoreError::Write(error.to_string()))?
        };
        if !are_alerts_rid {
            waiting.push(alerts::FILE.to_owned());
        }
        Ok(waiting)
    }

    fn erasure_row(&self, tenant: &str, at: i64) -> runguard_store::Row {
        self.admin_row(tenant, Timestamp::from_millis(at), "session_erased", "")
    }

    /// Goes on with what is noted; says whether nothing is left.
    async fn go_on(&self, erasures: &Erasures) -> Result<bool, StoreError> {
        let turn = erasures.turn.lock().await;
        let mut notes = erasures.notes()?;
        if notes.is_empty() {
            return Ok(true);
        }
        for note in &mut notes {
            self.remove(erasures, note).await?;
        }
        // Not held while the files are gone through, which may take long: what is noted meanwhile has its turn after it.
        drop(turn);
        if !self.overwrite().await?.is_empty() {
            return Ok(false);
        }
        for note in notes {
            erasures.remove(&note)?;
            let mut finished = erasures.finished();
            if finished.len() >= MOST_FINISHED {
                finished.pop_front();
            }
            finished.push_back((note.tenant, note.whose));
        }
        tracing::info!("the erasures that waited are finished");
        Ok(true)
    }

    /// Notes the erasures that other nodes made since.
    async fn follow_others(&self, erasures: &Erasures, place: &mut u64) -> Result<(), StoreError> {
        let newest = *self.store.committed().borrow();
        if newest == *place {
            return Ok(());
        }
        let filter = RowFilter { kind: Some("admin".into()), outcome: Some("session_erased".into()), ..RowFilter::default() };
        loop {
            let deeds = self.store.deeds(filter.clone(), Order::OldestFirst, Some(*place), ROWS).await?;
            for deed in &deeds {
                for key in deed.erased_sessions() {
                    let whose = Whose::Key(key.to_text());
                    if erasures.find(&deed.row.tenant, &whose)?.is_none() {
                        erasures.note(&deed.row.tenant, whose, deed.row.at)?;
                    }
                }
            }
            if deeds.len() < ROWS {
                *place = newest.max(deeds.last().map_or(0, |deed| deed.row.seq));
                return if deeds.is_empty() { Ok(()) } else { erasures.keep_place(*place) };
            }
            *place = deeds.last().map_or(newest, |deed| deed.row.seq);
        }
    }
}

/// Finishes erasures that wait, also those of an earlier life of the service, as long as it runs.
pub async fn finish(engine: std::sync::Arc<Engine>) {
    let Some(erasures) = &engine.erasures else { return };
    let mut place = erasures.place();
    // Said once, not every second.
    let mut is_troubled = false;
    loop {
        let work = async {
            match engine.store {
                Store::Cluster(_) => engine.follow_others(erasures, &mut place).await?,
                Store::Embedded(_) | Store::Memory(_) => {}
            }
            engine.go_on(erasures).await
        };
        match work.await {
            Ok(_) => is_troubled = false,
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
