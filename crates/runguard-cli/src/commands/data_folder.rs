//! Data folders of services, read by commands that must not change them.
//!
//! The last rows of a service that was killed wait in its journal, beside the log that is read. So the folder is copied, and in the copy they
//! are brought home, as the next start would.

use super::serve::stop_signal;
use crate::output;
use runguard_replay::evaluate::Instead;
use runguard_store::{INDEX_FILE, JOURNAL_PREFIX, LOG_FILE, bring_home, is_in_use};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::{fs, io, thread};
use tempfile::TempDir;

/// Copies of data folders, for as long as they are read.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    instead: Instead,
    folders: Vec<FolderCopy>,
}

impl Copies {
    /// Of those among the files whose journal has rows. One that cannot be copied is read as it is, without them.
    pub(crate) fn where_rows_wait<'a>(files: impl IntoIterator<Item = &'a PathBuf>) -> Self {
        let mut copies = Self::default();
        for file in files {
            // A service that runs brings them home itself, many times a second.
            let Some(folder) = data_folder(file).filter(|folder| rows_wait(folder) && !is_in_use(folder)) else { continue };
            if copies.instead.contains_key(file) {
                continue;
            }
            let copied = FolderCopy::of(folder, Part::Log).map_err(|error| error.to_string());
            let brought = copied.and_then(|copy| bring_home(copy.path()).map(|()| copy).map_err(|error| error.to_string()));
            match brought {
                Ok(copy) => {
                    let opened = if file.is_dir() { copy.path().to_owned() } else { copy.path().join(LOG_FILE) };
                    copies.instead.insert(file.clone(), opened);
                    copies.folders.push(copy);
                }
                Err(why) => output::remark(
                    "note",
                    &format!("the last rows of {}, those in {JOURNAL_PREFIX}*, are not read: {why}", folder.display()),
                ),
            }
        }
        copies
    }

    /// Which file is opened in place of which.
    pub(crate) fn instead(&self) -> &Instead {
        &self.instead
    }
}

/// The data folder that is named, or whose log is.
pub(crate) fn data_folder(path: &Path) -> Option<&Path> {
    if path.join(LOG_FILE).is_file() {
        return Some(path);
    }
    let parent = path.parent().map(|parent| if parent.as_os_str().is_empty() { Path::new(".") } else { parent });
    parent.filter(|_| path.is_file() && path.file_name().is_some_and(|name| name == LOG_FILE))
}

fn rows_wait(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().to_str().is_some_and(is_journal))
        .any(|entry| entry.metadata().is_ok_and(|meta| meta.len() > 0))
}

fn is_journal(name: &str) -> bool {
    name.strip_prefix(JOURNAL_PREFIX).is_some_and(|number| !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit()))
}

/// What of a folder is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Log,
    /// For whoever opens it as a service does.
    LogAndIndex,
}

impl Part {
    /// Databases with what is not yet written into them, and the journal.
    fn has(self, name: &str) -> bool {
        let is_of = |database: &str| name.strip_prefix(database).is_some_and(|rest| ["", "-wal", "-shm"].contains(&rest));
        is_of(LOG_FILE) || is_journal(name) || (self == Self::LogAndIndex && is_of(INDEX_FILE))
    }
}

/// The copies that are there now: they hold what the folder holds, so none is left behind.
static THERE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A copy that goes when it is dropped, and that nobody else may read.
#[derive(Debug)]
pub(crate) struct FolderCopy(TempDir);

impl FolderCopy {
    pub(crate) fn of(folder: &Path, part: Part) -> io::Result<Self> {
        let mut private = tempfile::Builder::new();
        private.prefix("runguard-copy-");
        #[cfg(unix)]
        private.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700));
        let copy = Self(private.tempdir()?);
        THERE.lock().unwrap_or_else(PoisonError::into_inner).push(copy.path().to_owned());
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()).filter(|name| part.has(name) && path.is_file()) else {
                continue;
            };
            // Written anew rather than copied with its rights: an archive's file may be one that cannot be written.
            io::copy(&mut fs::File::open(&path)?, &mut fs::File::create(copy.path().join(name))?)?;
        }
        Ok(copy)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for FolderCopy {
    fn drop(&mut self) {
        let path = self.path();
        THERE.lock().unwrap_or_else(PoisonError::into_inner).retain(|there| there != path);
    }
}

/// For who ends the process without dropping anything.
pub(crate) fn remove_copies() {
    for there in THERE.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        let _ = fs::remove_dir_all(there);
    }
}

/// For commands that a signal ends at once.
pub(crate) fn remove_copies_when_stopped() {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
    thread::spawn(move || {
        runtime.block_on(async { stop_signal().await });
        remove_copies();
        std::process::exit(130);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_what_is_read_and_nobody_else_reads_it() {
        let folder = tempfile::tempdir().unwrap();
        for name in [LOG_FILE, "runguard.db-wal", "runguard.db.bak", INDEX_FILE, "journal-0000000001", "journal-old", "keys.json"] {
            fs::write(folder.path().join(name), name).unwrap();
        }
        fs::create_dir(folder.path().join("runguard.db-shm")).unwrap();
        let copied = |part: Part| {
            let copy = FolderCopy::of(folder.path(), part).unwrap();
            #[cfg(unix)]
            assert_eq!(std::os::unix::fs::PermissionsExt::mode(&fs::metadata(copy.path()).unwrap().permissions()) & 0o777, 0o700);
            let mut names: Vec<String> =
                fs::read_dir(copy.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            (names, copy.path().to_owned())
        };
        let (names, path) = copied(Part::Log);
        assert_eq!(names, ["journal-0000000001", LOG_FILE, "runguard.db-wal"]);
        assert!(!path.exists(), "it goes when it was read");
        assert!(copied(Part::LogAndIndex).0.contains(&INDEX_FILE.to_owned()));
    }
}
