//! A place in a cluster, as the settings ask for it.

use crate::engine::{RULES, fresh_names};
use crate::settings::Settings;
use runguard_store::cluster::agree_on_names;
use runguard_store::redis::{RedisLink, RedisOptions};
use runguard_store::{Cluster, ClusterOptions, Embedded, LogKept, Names, OpenError, Options, RETIRE_EVERY, Role, Store};
use std::path::PathBuf;
use std::time::Duration;

/// Rows decided alone wait in this part of the data folder.
const ALONE: &str = "alone";

pub(super) async fn join(settings: &Settings) -> Result<Store, OpenError> {
    let folder = PathBuf::from(&settings.store.data);
    let memory_bytes = settings.store.memory_mb as usize * 1024 * 1024;
    let postgres = if settings.log.database.is_empty() { None } else { Some(postgres::open(settings, &folder).await?) };
    let link = RedisLink::open(RedisOptions {
        url: settings.store.state.clone(),
        prefix: settings.store.prefix.clone(),
        partitions: settings.store.partitions,
        stream_limit: settings.store.stream_limit,
        ca_file: (!settings.store.ca_file.is_empty()).then(|| settings.store.ca_file.clone().into()),
        replicas: settings.store.replicas,
        timeout: Duration::from_millis(u64::from(settings.store.patience_ms)),
    })
    .await
    .map_err(|error| OpenError::Shared { detail: error.to_string() })?;
    let seed = getrandom::u64().map_err(|error| OpenError::Shared { detail: format!("the machine gives no random numbers: {error}") })?;
    let agree = async |kept: Option<Names>| {
        let agreed = agree_on_names(&link, kept, fresh_names()?, seed).await;
        agreed.map_err(|error| OpenError::Shared { detail: error.to_string() })
    };
    let (log, names) = if let Some(log) = postgres {
        let names = agree(postgres::names(&log).await?).await?;
        (postgres::kept(log, names).await?, names)
    } else {
        let names = agree(Embedded::names_in(&folder)?).await?;
        let options = Options {
            folder: folder.clone(),
            durability: settings.store.durability,
            memory_bytes,
            retention_days: settings.log.retention_days,
            role: Role::Log,
            names,
        };
        (LogKept::Local(Embedded::open(options, RULES)?), names)
    };
    let options = ClusterOptions {
        folder: folder.join(ALONE),
        memory_bytes,
        retention_days: settings.log.retention_days,
        patience: Duration::from_millis(u64::from(settings.store.patience_ms)),
        retire_every: RETIRE_EVERY,
        names,
        seed,
    };
    Ok(Store::Cluster(Cluster::join(link, log, options, RULES).await?))
}

#[cfg(feature = "postgres")]
mod postgres {
    use crate::settings::Settings;
    use runguard_store::files::open_private_folder;
    use runguard_store::{LogKept, Names, OpenError, PgLog, PgOptions, StoreError};
    use std::path::Path;

    pub(super) async fn open(settings: &Settings, folder: &Path) -> Result<PgLog, OpenError> {
        open_private_folder(folder).map_err(|source| OpenError::Folder { path: folder.to_owned(), source })?;
        PgLog::open(PgOptions { url: settings.log.database.clone(), retention_days: settings.log.retention_days }).await
    }

    pub(super) async fn names(log: &PgLog) -> Result<Option<Names>, OpenError> {
        log.kept_names().await.map_err(failed)
    }

    pub(super) async fn kept(log: PgLog, names: Names) -> Result<LogKept, OpenError> {
        log.use_names(names).await.map_err(failed)?;
        Ok(LogKept::Postgres(log))
    }

    fn failed(error: StoreError) -> OpenError {
        OpenError::Shared { detail: error.to_string() }
    }
}

#[cfg(not(feature = "postgres"))]
mod postgres {
    use crate::settings::Settings;
    use runguard_store::{LogKept, Names, OpenError};
    use std::future::{Ready, ready};
    use std::path::Path;

    pub(super) enum Never {}

    pub(super) fn open(_: &Settings, _: &Path) -> Ready<Result<Never, OpenError>> {
        ready(Err(OpenError::BuiltWithout { setting: "log.database", feature: "postgres" }))
    }

    pub(super) fn names(log: &Never) -> Ready<Result<Option<Names>, OpenError>> {
        match *log {}
    }

    pub(super) fn kept(log: Never, _: Names) -> Ready<Result<LogKept, OpenError>> {
        match log {}
    }
}
