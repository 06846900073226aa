//! Secrets that stand in files, as mounted ones do, taken over when the files change. They are shown and logged nowhere.

use crate::watch::{Stamp, stamp};
use runguard_store::files::warn_of_readers;
use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const LOOK_EVERY: Duration = Duration::from_millis(500);
/// No secret is longer: another file was named by mistake.
const MOST_BYTES: u64 = 64 * 1024;

/// The files that were read.
#[derive(Default)]
pub struct SecretFiles {
    read: Mutex<HashMap<String, Read>>,
}

struct Read {
    looked_at: Instant,
    stamp: Stamp,
    secret: Option<String>,
}

impl fmt::Debug for SecretFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretFiles").finish_non_exhaustive()
    }
}

impl SecretFiles {
    /// What a file says, without blanks around it; nothing where it was never readable. One that cannot be read any more leaves what it said in force.
    pub fn get(&self, file: &str) -> Option<String> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let path = Path::new(file);
        let known = read.get(file);
        if let Some(known) = known.filter(|known| known.looked_at.elapsed() < LOOK_EVERY) {
            return known.secret.clone();
        }
        let now = stamp(Some(path));
        let secret = match known {
            Some(known) if known.stamp == now => known.secret.clone(),
            Some(_) | None => match read_secret(path) {
                Ok(secret) => {
                    warn_of_readers(path);
                    tracing::info!(file, "the secret of the file is in force");
                    Some(secret)
                }
                Err(problem) => {
                    tracing::error!(file, problem, "the file with a secret cannot be read; what it said before stays in force");
                    known.and_then(|known| known.secret.clone())
                }
            },
        };
        read.insert(file.to_owned(), Read { looked_at: Instant::now(), stamp: now, secret: secret.clone() });
        secret
    }
}

fn read_secret(path: &Path) -> Result<String, String> {
    if std::fs::metadata(path).map_err(|error| error.to_string())?.len() > MOST_BYTES {
        return Err("it is too long to be a secret".to_owned());
    }
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    match text.trim() {
        "" => Err("it is empty".to_owned()),
        secret if secret.contains(char::is_control) => Err("it has several lines: a secret stands alone in its file".to_owned()),
        secret => Ok(secret.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_file_is_taken_over_and_one_that_is_gone_leaves_what_it_said() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let file = path.to_str().unwrap();
        let files = SecretFiles::default();
        let later = || {
            for read in files.read.lock().unwrap().values_mut() {
                read.looked_at -= LOOK_EVERY;
            }
            files.get(file)
        };
        assert_eq!(later(), None);
        std::fs::write(&path, " sk-one\n").unwrap();
        assert_eq!(later().as_deref(), Some("sk-one"));
        std::fs::write(&path, "sk-another").unwrap();
        assert_eq!(later().as_deref(), Some("sk-another"));
        for broken in ["", "  \n", "sk-one\nsk-two\n"] {
            std::fs::write(&path, broken).unwrap();
            assert_eq!(later().as_deref(), Some("sk-another"), "being written");
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(later().as_deref(), Some("sk-another"));
        assert!(!format!("{files:?}").contains("sk-"));
    }
}
