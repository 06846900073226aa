//! Data folders of services, read by commands that must not change them.
//!
//! The last rows of a service that was killed wait in its journal, beside the log that is read. So the folder is copied, and in the copy they
//! are brought home, as the next start would.

use crate::failure::Failure;
use runguard_replay::evaluate::Instead;
use runguard_store::{JOURNAL_PREFIX, LOG_FILE, bring_home, is_in_use};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Copies of data folders, for as long as they are read.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    instead: Instead,
    folders: Vec<TempDir>,
}

impl Copies {
    /// Of those among the files whose journal has rows.
    pub(crate) fn where_rows_wait<'a>(files: impl IntoIterator<Item = &'a PathBuf>) -> Result<Self, Failure> {
        let mut copies = Self::default();
        for file in files {
            // A service that runs brings them home itself, many times a second.
            let Some(folder) = data_folder(file).filter(|folder| rows_wait(folder) && !is_in_use(folder)) else { continue };
            let copy = copy_of(folder)?;
            bring_home(copy.path()).map_err(|error| Failure::Failed(error.to_string()))?;
            let opened = if file.is_dir() { copy.path().to_owned() } else { copy.path().join(LOG_FILE) };
            copies.instead.insert(file.clone(), opened);
            copies.folders.push(copy);
        }
        Ok(copies)
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
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(JOURNAL_PREFIX))
        .any(|entry| entry.metadata().is_ok_and(|meta| meta.len() > 0))
}

/// The folder's log and index, each with what is not yet written into it.
pub(crate) fn copy_of(folder: &Path) -> Result<TempDir, Failure> {
    let failed = |error: std::io::Error| Failure::Failed(format!("cannot copy {} to read it: {error}", folder.display()));
    let copy = tempfile::tempdir().map_err(failed)?;
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if [LOG_FILE, "index.db", JOURNAL_PREFIX].iter().any(|part| name.starts_with(part)) {
            fs::copy(&path, copy.path().join(name)).map_err(failed)?;
        }
    }
    Ok(copy)
}
