//! What the file tools leave alone inside their own folder: the agent's settings and sessions, RunGuard's data, and git's folder.
//!
//! A model that may write its settings gives itself a shell at the next start; one that may write its sessions rewrites what it was
//! told; a hook in `.git` runs at the next commit. Reading is refused as well: all of them may hold keys and what other people said.
//!
//! A path is judged by where its handle really is, not by how it was written: links, `..` and other spellings come to the same
//! place. Names are compared without regard to case, because file systems may do the same. A file with several names is judged by
//! what it is.

use cap_std::fs::{Metadata, MetadataExt};
use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::path::{Component, Path, PathBuf};

/// The file by which RunGuard's data folder is known, whatever its name.
const DATA_FILE: &str = "runguard.db";
/// Its name when nothing else is said: kept free before there is anything in it.
const DATA_FOLDER: &str = "runguard-data";
/// Files of a protected folder that are compared with one of several names. Sessions are some hundred.
const MOST_COMPARED: usize = 10_000;

#[derive(Debug)]
pub(super) struct Protected {
    /// The folder of the tools, as it really is.
    root: PathBuf,
    /// Files and folders, as they were named.
    paths: Vec<PathBuf>,
}

impl Protected {
    pub(super) fn new(root: &Path, paths: &[PathBuf]) -> io::Result<Self> {
        let paths = paths.iter().map(std::path::absolute).collect::<io::Result<_>>()?;
        Ok(Self { root: root.to_owned(), paths })
    }

    /// Why a place is left alone. It need not exist yet.
    pub(super) fn refusal(&self, place: &Path) -> Option<String> {
        let inside = place.strip_prefix(&self.root).unwrap_or(place);
        if inside.components().any(|part| is_git(part.as_os_str())) {
            return Some("belongs to git's own folder".to_owned());
        }
        if self.paths.iter().any(|path| is_within(place, &real(path))) {
            return Some("belongs to the agent's own settings or sessions".to_owned());
        }
        let is_data = |folder: &Path| {
            folder.file_name().is_some_and(|name| name.eq_ignore_ascii_case(DATA_FOLDER))
                || folder.join(DATA_FILE).symlink_metadata().is_ok()
        };
        let is_in_data = place.ancestors().take_while(|folder| folder.starts_with(&self.root)).any(is_data);
        is_in_data.then(|| "belongs to RunGuard's data".to_owned())
    }

    /// As [`Self::refusal`], for a file that is there: it may be a second name of one that is left alone.
    pub(super) fn refusal_of_file(&self, place: &Path, metadata: &Metadata) -> Option<String> {
        self.refusal(place).or_else(|| {
            let is_linked = metadata.nlink() > 1 && self.paths.iter().any(|path| holds(path, (metadata.dev(), metadata.ino())));
            is_linked.then(|| "is another name of a file of the agent's own settings or sessions".to_owned())
        })
    }
}

/// Where a handle really is.
#[cfg(target_os = "linux")]
pub(super) fn place_of(handle: &impl AsFd, _named: impl FnOnce() -> io::Result<PathBuf>) -> io::Result<PathBuf> {
    use std::os::fd::AsRawFd;
    std::fs::read_link(format!("/proc/self/fd/{}", handle.as_fd().as_raw_fd()))
}

/// Where the path leads. Between asking and opening it may be changed, by somebody who can do more than these tools.
#[cfg(not(target_os = "linux"))]
pub(super) fn place_of(_handle: &impl AsFd, named: impl FnOnce() -> io::Result<PathBuf>) -> io::Result<PathBuf> {
    named()
}

/// `.git` in every spelling that some file system takes for it.
fn is_git(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    let seen: String = name
        .chars()
        .filter(|c| !matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'))
        .collect();
    let plain = seen.trim_end_matches(['.', ' ']);
    plain.eq_ignore_ascii_case(".git") || plain.eq_ignore_ascii_case("git~1")
}

/// The path with its links resolved, as far as it exists.
fn real(path: &Path) -> PathBuf {
    for ancestor in path.ancestors() {
        if let (Ok(there), Ok(rest)) = (ancestor.canonicalize(), path.strip_prefix(ancestor)) {
            return if rest.as_os_str().is_empty() { there } else { there.join(rest) };
        }
    }
    path.to_owned()
}

fn is_within(place: &Path, protected: &Path) -> bool {
    let folded = |part: Component<'_>| part.as_os_str().to_string_lossy().to_lowercase();
    let mut parts = place.components().map(folded);
    protected.components().map(folded).all(|part| parts.next() == Some(part))
}

/// Whether a file, or one in a folder, is this one.
fn holds(path: &Path, identity: (u64, u64)) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let mut left = vec![path.to_owned()];
    let mut compared = 0;
    while let Some(path) = left.pop() {
        compared += 1;
        let Ok(metadata) = path.symlink_metadata() else { continue };
        if (metadata.dev(), metadata.ino()) == identity {
            return true;
        }
        if metadata.is_dir() && compared < MOST_COMPARED {
            let entries = std::fs::read_dir(&path).into_iter().flatten().flatten();
            left.extend(entries.map(|entry| entry.path()).take(MOST_COMPARED.saturating_sub(left.len())));
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::is_git;
    use std::ffi::OsStr;

    #[test]
    fn git_is_known_in_every_spelling() {
        for name in [".git", ".GIT", ".Git", ".git.", ".git ", ".g\u{200c}it", "GIT~1"] {
            assert!(is_git(OsStr::new(name)), "{name:?}");
        }
        for name in [".gitignore", ".github", "git", ".gitmodules", "x.git"] {
            assert!(!is_git(OsStr::new(name)), "{name:?}");
        }
    }
}
