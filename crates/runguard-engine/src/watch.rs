//! Looks every second whether the settings file or the keys have changed.
//!
//! Looking at the clock of a file is dull and works everywhere: editors that replace files, mounted folders,
//! configuration maps behind links. A watch on the file system misses one or the other of these.

use crate::engine::Engine;
use crate::keys::{KEY_FILE, KeyRing};
use crate::settings::Origin;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

const LOOK_EVERY: Duration = Duration::from_millis(500);

type Stamp = Option<(SystemTime, u64)>;

fn stamp(path: Option<&PathBuf>) -> Stamp {
    let meta = std::fs::metadata(path?).ok()?;
    Some((meta.modified().ok()?, meta.len()))
}

/// Runs until the task is dropped. What is there when this is called is what is in force: a change from then on is seen,
/// however late the task begins.
pub fn watch(engine: Arc<Engine>, origin: Origin, file: Option<PathBuf>, folder: PathBuf) -> impl Future<Output = ()> + Send {
    let key_file = folder.join(KEY_FILE);
    let seen = (stamp(file.as_ref()), stamp(Some(&key_file)));
    follow(engine, origin, file, folder, key_file, seen)
}

async fn follow(engine: Arc<Engine>, origin: Origin, file: Option<PathBuf>, folder: PathBuf, key_file: PathBuf, seen: (Stamp, Stamp)) {
    let (mut settings_seen, mut keys_seen) = seen;
    let mut pulse = tokio::time::interval(LOOK_EVERY);
    loop {
        pulse.tick().await;
        let settings_now = stamp(file.as_ref());
        if settings_now != settings_seen {
            settings_seen = settings_now;
            reload_settings(&engine, &origin);
        }
        let keys_now = stamp(Some(&key_file));
        if keys_now != keys_seen {
            keys_seen = keys_now;
            match KeyRing::load(&folder) {
                Ok(keys) => {
                    let keys = keys.after(&engine.keys.load());
                    if keys.is_empty() && !keys.is_open() {
                        tracing::error!(
                            "the key file is gone or empty: every caller is refused until a key is made (`runguard key create`); only a restart without keys opens the service to this machine"
                        );
                    } else {
                        tracing::info!("the keys have changed and are in force");
                    }
                    engine.keys.store(Arc::new(keys));
                }
                Err(error) => tracing::error!(%error, "the changed keys cannot be read; the old ones stay in force"),
            }
        }
    }
}

fn reload_settings(engine: &Engine, origin: &Origin) {
    match origin.load() {
        Ok(loaded) => {
            let needs_restart = engine.replace_settings(loaded.settings);
            tracing::info!("the settings have changed and are in force");
            if !needs_restart.is_empty() {
                tracing::warn!(keys = needs_restart.join(", "), "these changes wait for a restart");
            }
        }
        Err(error) => tracing::error!(%error, "the changed settings are refused; the old ones stay in force"),
    }
}
