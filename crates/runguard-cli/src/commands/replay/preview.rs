//! The flow guards of a data folder: their logged requests decided again by changed settings, as `runguard preview` does it.
//!
//! The folder is copied first: the past is read, and what reads it must not change it.

use crate::commands::preview::show;
use crate::failure::Failure;
use crate::output;
use runguard_core::GuardName;
use runguard_engine::engine::open_store;
use runguard_engine::preview::{Ask, Report, preview};
use runguard_engine::settings::Settings;
use runguard_engine::{Clock, Engine, EngineOptions, KeyRing};
use runguard_guards::policy::Tree;
use runguard_store::{JOURNAL_PREFIX, LOG_FILE};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

/// The decision log in a data folder.
/// Nothing of the copy is let go while it is read.
const LONGEST_RETENTION_DAYS: u32 = 3650;

/// What the changed settings of one guard would have done.
pub(super) struct OfGuard {
    guard: GuardName,
    folder: PathBuf,
    report: Report,
}

impl OfGuard {
    pub(super) fn json(&self) -> Value {
        let mut value = json!(self.report);
        value["guard"] = self.guard.code().into();
        value["folder"] = self.folder.display().to_string().into();
        for changed in value["changed"].as_array_mut().into_iter().flatten() {
            let time = changed["at"].as_i64().and_then(|at| jiff::Timestamp::from_millisecond(at).ok());
            changed["time"] = time.map(|time| time.to_string()).into();
        }
        value
    }

    pub(super) fn print(&self) -> Result<(), Failure> {
        output::line(&format!("{}, by the changed settings of {}:", self.folder.display(), self.guard.code()))?;
        let mut report = self.json();
        (report["since"], report["until"]) = ("the first".into(), "the last".into());
        show(&report)
    }
}

/// Of every data folder among the files, each guard that is changed.
pub(super) fn of_logs(files: &[PathBuf], changes: &Tree) -> Result<Vec<OfGuard>, Failure> {
    let guards: Vec<(GuardName, Tree)> = changes
        .iter()
        .filter_map(|(name, table)| Some((GuardName::from_code(name)?, table.as_object()?.clone())))
        .filter(|(_, table)| !table.is_empty())
        .collect();
    let mut previews = Vec::new();
    if guards.is_empty() {
        return Ok(previews);
    }
    for folder in files.iter().filter_map(|file| data_folder(file)) {
        let copy = copy_of(folder)?;
        let runtime = tokio::runtime::Runtime::new()?;
        for (guard, report) in runtime.block_on(decide_again(copy.path(), &guards))? {
            previews.push(OfGuard { guard, folder: folder.to_owned(), report });
        }
    }
    Ok(previews)
}

/// The data folder that is named, or whose log is.
fn data_folder(path: &Path) -> Option<&Path> {
    if path.join(LOG_FILE).is_file() {
        return Some(path);
    }
    let parent = path.parent().map(|parent| if parent.as_os_str().is_empty() { Path::new(".") } else { parent });
    parent.filter(|_| path.is_file() && path.file_name().is_some_and(|name| name == LOG_FILE))
}

fn copy_of(folder: &Path) -> Result<tempfile::TempDir, Failure> {
    let failed = |error: std::io::Error| Failure::Failed(format!("cannot read {}: {error}", folder.display()));
    // A service that runs writes at any moment; half of what it writes is no log.
    if let Ok(lock) = fs::File::open(folder.join("lock"))
        && matches!(lock.try_lock(), Err(fs::TryLockError::WouldBlock))
    {
        return Err(Failure::Failed(format!(
            "{} is used by a service that runs; stop it, or ask it with `runguard preview`",
            folder.display()
        )));
    }
    let copy = tempfile::tempdir().map_err(failed)?;
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        // The log and its index, each with what is not yet written into it.
        if [LOG_FILE, "index.db", JOURNAL_PREFIX].iter().any(|part| name.starts_with(part)) {
            fs::copy(&path, copy.path().join(name)).map_err(failed)?;
        }
    }
    Ok(copy)
}

async fn decide_again(folder: &Path, guards: &[(GuardName, Tree)]) -> Result<Vec<(GuardName, Report)>, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::Failed(error.to_string());
    let mut settings = Settings::default();
    settings.store.data = folder.display().to_string();
    settings.log.retention_days = LONGEST_RETENTION_DAYS;
    let store = open_store(&settings).map_err(|error| failed(&error))?;
    let options = EngineOptions { clock: Clock::Virtual, settings, keys: KeyRing::default(), seed: None };
    let engine = Engine::new(store, options).await.map_err(|error| failed(&error))?;
    let mut reports = Vec::new();
    for (guard, table) in guards {
        let ask = Ask { guard: *guard, settings: table.clone(), tenant: None, subject: None, since: 0, until: i64::MAX };
        reports.push((*guard, preview(&engine, ask).await.map_err(|error| failed(&error))?));
    }
    tokio::task::spawn_blocking(move || engine.stop()).await.map_err(|error| failed(&error))?;
    Ok(reports)
}
