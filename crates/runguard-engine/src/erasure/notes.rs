//! The notes of erasures that are not finished: a file each, so that they outlive the process.
//!
//! They are read once, at the start. From there on what counts is in memory, and the files follow it: a caller who goes away in the
//! middle leaves a note that is known.

use super::Whose;
use runguard_store::StoreError;
use runguard_store::cluster::Place;
use runguard_store::cluster::link::NodesSeen;
use runguard_store::files::{UNFINISHED, write_whole};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Erasures that are not finished. Beyond it a further one is refused.
const MOST: usize = 10_000;
/// Who this node is among those of a cluster, for as long as it has the folder.
const NODE_FILE: &str = "node";
/// Which nodes it knew, and when they were last heard of. Written anew when there are others, and once a day.
const NODES_FILE: &str = "nodes";
/// Ends the name of a note's file.
const OF_NOTES: &str = ".json";
const DAY_SECONDS: u64 = 24 * 3600;

/// What is left to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Step {
    /// It is known here and there, and nobody was told that it goes.
    Remove,
    /// Some of it is gone, and whoever asked was told that the rest goes.
    Begun,
    /// Nobody knows it, but its bytes may be in the files. What comes under its name from here on is another life.
    Overwrite,
    /// It is in no file of this node; other nodes have yet to say so.
    Others,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Note {
    pub(super) tenant: String,
    pub(super) whose: Whose,
    pub(super) at: i64,
    pub(super) step: Step,
    /// The id of the row that tells of it: where the log has that row it is done, whoever did it. Empty in notes of earlier versions, and in
    /// those of what other nodes announced.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) row: String,
    /// Of one that has begun on shared states: when the session was last erased before. Where it was erased since, there is nothing left to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) earlier: Option<i64>,
    /// The name of its file.
    #[serde(skip)]
    pub(super) number: u64,
}

#[derive(Debug)]
pub(super) struct Notes {
    place: Place,
    /// Oldest first.
    all: Vec<Note>,
    nodes: NodesSeen,
    /// Of the file.
    nodes_written: NodesSeen,
}

impl Notes {
    /// Reads what an earlier life of the service left.
    pub(super) fn read(place: Place) -> Result<Self, StoreError> {
        let files = match &place {
            Place::Folder(folder) => files_of(folder).map_err(|error| StoreError::Read(format!("{}: {error}", folder.display())))?,
            Place::Memory(files) => lock(files).clone(),
        };
        // What cannot be read is learned anew.
        let nodes: NodesSeen = files.get(NODES_FILE).and_then(|text| serde_json::from_slice(text).ok()).unwrap_or_default();
        let mut all: Vec<Note> = Vec::new();
        for (name, text) in files.iter().filter_map(|(name, text)| Some((name.strip_suffix(OF_NOTES)?, text))) {
            if let (Ok(note), Ok(number)) = (serde_json::from_slice::<Note>(text), u64::from_str_radix(name, 16)) {
                all.push(Note { number, ..note });
            } else {
                let what = "a note of an erasure cannot be read; erase the session again, and remove the file";
                tracing::error!(file = format!("{name}{OF_NOTES}"), "{what}");
            }
        }
        all.sort_by_key(|note| note.at);
        Ok(Self { place, all, nodes: nodes.clone(), nodes_written: nodes })
    }

    pub(super) fn all(&self) -> &[Note] {
        &self.all
    }

    pub(super) fn find(&self, tenant: &str, whose: &Whose) -> Option<&Note> {
        self.all.iter().find(|note| note.tenant == tenant && note.whose == *whose)
    }

    /// A note as it stands now; none when it is finished.
    pub(super) fn current(&self, note: &Note) -> Option<Note> {
        self.all.iter().find(|known| known.number == note.number).cloned()
    }

    /// Notes an erasure down, to stay over a crash.
    pub(super) async fn add(&mut self, tenant: &str, whose: Whose, at: i64, row: String) -> Result<Note, StoreError> {
        if self.all.len() >= MOST {
            return Err(StoreError::Write(format!(
                "{MOST} erasures are not finished: a process that has the database open, or a node that is away, holds them up"
            )));
        }
        let number = match self.place {
            Place::Folder(_) => getrandom::u64().map_err(|error| StoreError::Write(error.to_string()))?,
            // No chance is in a simulation.
            Place::Memory(_) => self.all.iter().map(|note| note.number).max().unwrap_or(0) + 1,
        };
        let note = Note { tenant: tenant.to_owned(), whose, at, step: Step::Remove, row, earlier: None, number };
        self.all.push(note.clone());
        let written = self.write(name_of(&note), &note).await;
        if written.is_err() {
            self.all.pop();
        }
        written.map(|()| note)
    }

    pub(super) async fn set_step(&mut self, note: &mut Note, step: Step) -> Result<(), StoreError> {
        note.step = step;
        // Another caller may have finished it meanwhile.
        let Some(known) = self.all.iter_mut().find(|known| known.number == note.number) else { return Ok(()) };
        *known = note.clone();
        self.write(name_of(note), note).await
    }

    pub(super) async fn remove(&mut self, note: &Note) -> Result<(), StoreError> {
        self.all.retain(|known| known.number != note.number);
        let name = name_of(note);
        match &self.place {
            Place::Folder(folder) => {
                let remove = move |folder: &Path| match fs::remove_file(folder.join(name)) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
                    Ok(()) | Err(_) => Ok(()),
                };
                on_disk(folder, remove).await
            }
            Place::Memory(files) => {
                lock(files).remove(&name);
                Ok(())
            }
        }
    }

    /// Who this node is; made when it is first asked.
    pub(super) async fn node(&self) -> Result<u64, StoreError> {
        let folder = match &self.place {
            Place::Folder(folder) => folder,
            // Each has one: whoever simulates it says which.
            Place::Memory(files) => {
                let number = lock(files).get(NODE_FILE).and_then(|text| Some(u64::from_be_bytes(text.as_slice().try_into().ok()?)));
                return number.ok_or_else(|| StoreError::Read(format!("{NODE_FILE} is missing")));
            }
        };
        on_disk(folder, |folder| {
            let path = folder.join(NODE_FILE);
            match fs::read_to_string(&path) {
                Ok(text) => {
                    let number = u64::from_str_radix(text.trim(), 16);
                    number.map_err(|_| std::io::Error::other(format!("{NODE_FILE} is no number; remove the file")))
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    let number = getrandom::u64().map_err(std::io::Error::other)?;
                    write_whole(&path, format!("{number:016x}").as_bytes())?;
                    Ok(number)
                }
                Err(error) => Err(error),
            }
        })
        .await
    }

    /// The nodes that were last known.
    pub(super) fn nodes(&self) -> &NodesSeen {
        &self.nodes
    }

    pub(super) async fn set_nodes(&mut self, nodes: NodesSeen) -> Result<(), StoreError> {
        let latest = |nodes: &NodesSeen| nodes.values().max().copied().unwrap_or(0);
        let is_due = latest(&nodes) >= latest(&self.nodes_written) + DAY_SECONDS || !nodes.keys().eq(self.nodes_written.keys());
        self.nodes = nodes;
        if is_due {
            self.write(NODES_FILE.to_owned(), &self.nodes).await?;
            self.nodes_written = self.nodes.clone();
        }
        Ok(())
    }

    async fn write(&self, name: String, what: &(impl Serialize + Sync)) -> Result<(), StoreError> {
        let text = serde_json::to_vec(what).map_err(|error| StoreError::Write(error.to_string()))?;
        match &self.place {
            Place::Folder(folder) => on_disk(folder, move |folder| write_whole(&folder.join(name), &text)).await,
            Place::Memory(files) => {
                lock(files).insert(name, text);
                Ok(())
            }
        }
    }
}

fn name_of(note: &Note) -> String {
    format!("{:016x}{OF_NOTES}", note.number)
}

fn lock(files: &Mutex<BTreeMap<String, Vec<u8>>>) -> MutexGuard<'_, BTreeMap<String, Vec<u8>>> {
    files.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Those that matter at the start. What a kill left half written goes: what it was about stands as it did before.
fn files_of(folder: &Path) -> std::io::Result<BTreeMap<String, Vec<u8>>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        entries => entries?,
    };
    let mut files = BTreeMap::new();
    for entry in entries {
        let path = entry?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if path.extension().is_some_and(|extension| extension == UNFINISHED) {
            drop(fs::remove_file(&path));
        } else if name == NODES_FILE || name.ends_with(OF_NOTES) {
            files.insert(name.to_owned(), fs::read(&path)?);
        }
    }
    Ok(files)
}

/// A disk may let one wait: no thread that serves does.
async fn on_disk<R: Send + 'static>(
    folder: &Path,
    work: impl FnOnce(&Path) -> std::io::Result<R> + Send + 'static,
) -> Result<R, StoreError> {
    let folder = folder.to_owned();
    let work = move || work(&folder).map_err(|error| StoreError::Write(format!("{}: {error}", folder.display())));
    tokio::task::spawn_blocking(work).await.map_err(|error| StoreError::Write(error.to_string()))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn notes_outlive_the_process() {
        let data = tempfile::tempdir().unwrap();
        let folder = data.path().join("erasing");
        let mut notes = Notes::read(Place::Folder(folder.clone())).unwrap();
        let mut note = notes.add("t", Whose::Session("s".into()), 5, "id".into()).await.unwrap();
        let other = notes.add("t", Whose::Key("0:1".into()), 4, String::new()).await.unwrap();
        notes.set_step(&mut note, Step::Others).await.unwrap();
        let node = notes.node().await.unwrap();
        fs::write(folder.join("0000000000000001.new"), "half").unwrap();
        fs::write(folder.join("0000000000000002.json"), "{").unwrap();
        let mut again = Notes::read(Place::Folder(folder.clone())).unwrap();
        let known: Vec<(i64, Step)> = again.all().iter().map(|note| (note.at, note.step)).collect();
        assert_eq!(known, [(4, Step::Remove), (5, Step::Others)], "oldest first");
        let found = again.find("t", &Whose::Session("s".into())).unwrap();
        assert_eq!((found.at, &*found.row), (5, "id"));
        assert!(again.find("u", &Whose::Session("s".into())).is_none());
        assert_eq!(again.node().await.unwrap(), node, "for as long as it has the folder");
        assert!(again.nodes().is_empty());
        for (nodes, written) in
            [(&[(1, 10)][..], 10), (&[(1, 20)], 10), (&[(1, 20), (2, 20)], 20), (&[(1, 20 + DAY_SECONDS), (2, 20)], 20 + DAY_SECONDS)]
        {
            again.set_nodes(nodes.iter().copied().collect()).await.unwrap();
            assert_eq!(again.nodes()[&1], nodes[0].1);
            let kept = Notes::read(Place::Folder(folder.clone())).unwrap();
            assert!((kept.nodes().len(), kept.nodes()[&1]) == (nodes.len(), written), "{kept:?} after {nodes:?}");
        }
        assert!(!folder.join("0000000000000001.new").exists());
        again.remove(&note).await.unwrap();
        again.remove(&note).await.unwrap();
        again.remove(&other).await.unwrap();
        again.set_step(&mut note, Step::Overwrite).await.unwrap();
        assert!(Notes::read(Place::Folder(folder)).unwrap().all().is_empty(), "what was finished meanwhile is not noted again");
    }
}
