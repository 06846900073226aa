//! The flow guards of a data folder: their logged requests decided again by changed settings, as `runguard preview` does it.
//!
//! The folder is copied first: the past is read, and what reads it must not change it.

use crate::commands::data_folder::{FolderCopy, Part, data_folder};
use crate::commands::preview::show;
use crate::failure::Failure;
use crate::output;
use runguard_core::GuardName;
use runguard_engine::engine::open_store;
use runguard_engine::preview::{Ask, Report, preview};
use runguard_engine::settings::Settings;
use runguard_engine::{Clock, Engine, EngineOptions, KeyRing};
use runguard_guards::policy::Tree;
use runguard_store::is_in_use;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

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
        // A service that runs writes at any moment; half of what it writes is no log.
        if is_in_use(folder) {
            let folder = folder.display();
            return Err(Failure::Failed(format!("{folder} is used by a service that runs; stop it, or ask it with `runguard preview`")));
        }
        let failed = |error| Failure::Failed(format!("cannot copy {} to read it: {error}", folder.display()));
        let copy = FolderCopy::of(folder, Part::LogAndIndex).map_err(failed)?;
        let runtime = tokio::runtime::Runtime::new()?;
        for (guard, report) in runtime.block_on(decide_again(copy.path(), &guards))? {
            previews.push(OfGuard { guard, folder: folder.to_owned(), report });
        }
    }
    Ok(previews)
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
