//! Looks twice a second whether the settings file or the keys have changed.
//!
//! Looking at the clock of a file is dull and works everywhere: editors that replace files, mounted folders,
//! configuration maps behind links. A watch on the file system misses one or the other of these.
//!
//! A change that cannot be taken over leaves the service on what it had. Nobody reads the log at that moment, and the file on
//! disk says otherwise: so it is remembered until a good file comes, and every place an operator looks at says so.

use crate::engine::Engine;
use crate::keys::{KEY_FILE, KeyRing};
use crate::settings::{DEFAULT_FILE, Origin};
use runguard_core::Timestamp;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Watched {
    Settings,
    Keys,
    Certificate,
}

impl Watched {
    pub const ALL: [Self; 3] = [Self::Settings, Self::Keys, Self::Certificate];

    pub const fn code(self) -> &'static str {
        match self {
            Self::Settings => "settings",
            Self::Keys => "keys",
            Self::Certificate => "certificate",
        }
    }
}

/// A change that was not taken over; what was in force before it still is.
#[derive(Debug, Clone)]
pub struct Refused {
    pub what: Watched,
    pub at: Timestamp,
    pub file: String,
    pub error: String,
}

/// The changes that were not taken over.
#[derive(Debug, Default)]
pub struct Refusals {
    in_force: Mutex<[Option<Refused>; Watched::ALL.len()]>,
    counts: [AtomicU64; Watched::ALL.len()],
}

impl Refusals {
    /// Those that nothing good has followed.
    pub fn in_force(&self) -> Vec<Refused> {
        self.lock().iter().flatten().cloned().collect()
    }

    /// How many there were since the start.
    pub fn count(&self, what: Watched) -> u64 {
        self.counts[what as usize].load(Ordering::Relaxed)
    }

    pub fn refuse(&self, what: Watched, file: &Path, error: String) {
        self.counts[what as usize].fetch_add(1, Ordering::Relaxed);
        let refused = Refused { what, at: crate::clock::system_now(), file: file.display().to_string(), error };
        self.lock()[what as usize] = Some(refused);
    }

    /// A good one has come.
    pub fn clear(&self, what: Watched) {
        self.lock()[what as usize] = None;
    }

    fn lock(&self) -> MutexGuard<'_, [Option<Refused>; Watched::ALL.len()]> {
        self.in_force.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) type Stamp = Option<(SystemTime, u64)>;

pub(crate) fn stamp(path: Option<&Path>) -> Stamp {
    let meta = std::fs::metadata(path?).ok()?;
    Some((meta.modified().ok()?, meta.len()))
}

/// Runs until the task is dropped. What is there when this is called is what is in force: a change from then on is seen,
/// however late the task begins.
pub fn watch(engine: Arc<Engine>, origin: Origin, file: Option<PathBuf>, folder: PathBuf) -> impl Future<Output = ()> + Send {
    let key_file = folder.join(KEY_FILE);
    // Without a file the one that is looked for may still come.
    let file = file.or_else(|| origin.file.clone()).or_else(|| Some(PathBuf::from(DEFAULT_FILE)));
    let seen = (stamp(file.as_deref()), stamp(Some(&key_file)));
    // A file that was found is meant from then on: one that vanishes is a mistake, and not the wish for all defaults.
    let origin = Origin { file: file.clone(), ..origin };
    follow(engine, origin, file, folder, key_file, seen)
}

async fn follow(engine: Arc<Engine>, origin: Origin, file: Option<PathBuf>, folder: PathBuf, key_file: PathBuf, seen: (Stamp, Stamp)) {
    let (mut settings_seen, mut keys_seen) = seen;
    let mut pulse = tokio::time::interval(LOOK_EVERY);
    loop {
        pulse.tick().await;
        let settings_now = stamp(file.as_deref());
        if settings_now != settings_seen {
            settings_seen = settings_now;
            reload_settings(&engine, &origin).await;
        }
        let keys_now = stamp(Some(&key_file));
        if keys_now != keys_seen {
            keys_seen = keys_now;
            match KeyRing::load(&folder) {
                Ok(keys) => {
                    let keys = keys.after(&engine.keys.load());
                    if keys.is_empty() && !keys.is_open() {
                        let error = "the key file is gone or empty: every caller is refused until a key is made (`runguard key create`); only a restart without keys opens the service to this machine";
                        tracing::error!("{error}");
                        engine.refusals.refuse(Watched::Keys, &key_file, error.to_owned());
                    } else {
                        tracing::info!("the keys have changed and are in force");
                        engine.refusals.clear(Watched::Keys);
                    }
                    engine.replace_keys(keys);
                }
                Err(error) => {
                    engine.refusals.refuse(Watched::Keys, &key_file, error.to_string());
                    tracing::error!(%error, "the changed keys cannot be read; the old ones stay in force");
                }
            }
        }
    }
}

async fn reload_settings(engine: &Engine, origin: &Origin) {
    let file = origin.file.clone().unwrap_or_default();
    let origin = origin.clone();
    // Patterns are compiled here: not on a thread that serves.
    let loaded = match tokio::task::spawn_blocking(move || origin.load()).await {
        Ok(loaded) => loaded.map_err(|error| error.to_string()),
        Err(stopped) => Err(stopped.to_string()),
    };
    match loaded {
        Ok(loaded) => {
            let needs_restart = engine.replace_settings(loaded.settings);
            engine.refusals.clear(Watched::Settings);
            tracing::info!("the settings have changed and are in force");
            if !needs_restart.is_empty() {
                tracing::warn!(keys = needs_restart.join(", "), "these changes wait for a restart");
            }
        }
        Err(error) => {
            tracing::error!(error, "the changed settings are refused; the old ones stay in force");
            engine.refusals.refuse(Watched::Settings, &file, error);
        }
    }
}
