//! The notes of erasures that are not finished: a file each, so that they outlive the process.
//!
//! They are read once, at the start. From there on what counts is in memory, and the files follow it: a caller who goes away in the
//! middle leaves a note that is known.

use super::Whose;
use runguard_store::StoreError;
use runguard_store::files::{UNFINISHED, write_whole};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// Erasures that are not finished. Beyond it a further one is refused.
const MOST: usize = 10_000;
/// Who this node is among those of a cluster, for as long as it has the folder.
const NODE_FILE: &str = "node";

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
    /// The name of its file.
    #[serde(skip)]
    pub(super) number: u64,
}

#[derive(Debug)]
pub(super) struct Notes {
    folder: PathBuf,
    /// Oldest first.
    all: Vec<Note>,
}

impl Notes {
    /// Reads what an earlier life of the service left.
    pub(super) fn read(folder: PathBuf) -> Result<Self, StoreError> {
        let unread = |error: std::io::Error| StoreError::Read(format!("{}: {error}", folder.display()));
        let mut all: Vec<Note> = Vec::new();
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self { folder, all }),
            Err(error) => return Err(unread(error)),
        };
        for entry in entries {
            let path = entry.map_err(unread)?.path();
            match path.extension().and_then(|extension| extension.to_str()) {
                // A kill left it half written. What it was about stands as it did before.
                Some(UNFINISHED) => drop(fs::remove_file(&path)),
                Some("json") => {
                    let number = path.file_stem().and_then(|stem| u64::from_str_radix(stem.to_str()?, 16).ok());
                    let note = serde_json::from_str::<Note>(&fs::read_to_string(&path).map_err(unread)?);
                    if let (Ok(note), Some(number)) = (note, number) {
                        all.push(Note { number, ..note });
                    } else {
                        let what = "a note of an erasure cannot be read; erase the session again, and remove the file";
                        tracing::error!(file = %path.display(), "{what}");
                    }
                }
                _ => {}
            }
        }
        all.sort_by_key(|note| note.at);
        Ok(Self { folder, all })
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
    pub(super) async fn add(&mut self, tenant: &str, whose: Whose, at: i64) -> Result<Note, StoreError> {
        if self.all.len() >= MOST {
            return Err(StoreError::Write(format!(
                "{MOST} erasures are not finished: a process that has the database open, or a node that is away, holds them up"
            )));
        }
        let number = getrandom::u64().map_err(|error| StoreError::Write(error.to_string()))?;
        let note = Note { tenant: tenant.to_owned(), whose, at, step: Step::Remove, number };
        self.all.push(note.clone());
        let written = self.write(&note).await;
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
        self.write(note).await
    }

    pub(super) async fn remove(&mut self, note: &Note) -> Result<(), StoreError> {
        self.all.retain(|known| known.number != note.number);
        let path = self.path(note);
        self.on_disk(move |_| match fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        })
        .await
    }

    /// Who this node is; made when it is first asked.
    pub(super) async fn node(&self) -> Result<u64, StoreError> {
        self.on_disk(|folder| {
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

    fn path(&self, note: &Note) -> PathBuf {
        self.folder.join(format!("{:016x}.json", note.number))
    }

    async fn write(&self, note: &Note) -> Result<(), StoreError> {
        let text = serde_json::to_string(note).map_err(|error| StoreError::Write(error.to_string()))?;
        let path = self.path(note);
        self.on_disk(move |_| write_whole(&path, text.as_bytes())).await
    }

    /// A disk may let one wait: no thread that serves does.
    async fn on_disk<R: Send + 'static>(&self, work: impl FnOnce(&Path) -> std::io::Result<R> + Send + 'static) -> Result<R, StoreError> {
        let folder = self.folder.clone();
        let work = move || work(&folder).map_err(|error| StoreError::Write(format!("{}: {error}", folder.display())));
        tokio::task::spawn_blocking(work).await.map_err(|error| StoreError::Write(error.to_string()))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn notes_outlive_the_process() {
        let data = tempfile::tempdir().unwrap();
        let folder = data.path().join("erasing");
        let mut notes = Notes::read(folder.clone()).unwrap();
        let mut note = notes.add("t", Whose::Session("s".into()), 5).await.unwrap();
        let other = notes.add("t", Whose::Key("0:1".into()), 4).await.unwrap();
        notes.set_step(&mut note, Step::Others).await.unwrap();
        let node = notes.node().await.unwrap();
        fs::write(folder.join("0000000000000001.new"), "half").unwrap();
        fs::write(folder.join("0000000000000002.json"), "{").unwrap();
        let mut again = Notes::read(folder.clone()).unwrap();
        let known: Vec<(i64, Step)> = again.all().iter().map(|note| (note.at, note.step)).collect();
        assert_eq!(known, [(4, Step::Remove), (5, Step::Others)], "oldest first");
        assert_eq!(again.find("t", &Whose::Session("s".into())).unwrap().at, 5);
        assert!(again.find("u", &Whose::Session("s".into())).is_none());
        assert_eq!(again.node().await.unwrap(), node, "for as long as it has the folder");
        assert!(!folder.join("0000000000000001.new").exists());
        again.remove(&note).await.unwrap();
        again.remove(&note).await.unwrap();
        again.remove(&other).await.unwrap();
        again.set_step(&mut note, Step::Overwrite).await.unwrap();
        assert!(Notes::read(folder).unwrap().all().is_empty(), "what was finished meanwhile is not noted again");
    }
}
