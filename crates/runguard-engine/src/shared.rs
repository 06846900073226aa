//! Opens the store that the settings ask for: the node's own files, or a place in a cluster.

use crate::engine::{RULES, fresh_names, open_store};
use crate::settings::Settings;
use runguard_store::cluster::agree_on_names;
use runguard_store::files::open_private_folder;
use runguard_store::redis::{RedisLink, RedisOptions};
use runguard_store::{
    Cluster, ClusterOptions, Embedded, LogKept, Names, OpenError, Options, PgLog, PgOptions, RETIRE_EVERY, Role, Store, StoreError,
};
use std::path::PathBuf;
use std::time::Duration;

/// Rows decided alone wait in this part of the data folder.
const ALONE: &str = "alone";

pub async fn open(settings: &Settings) -> Result<Store, OpenError> {
    if settings.store.state.is_empty() {
        return open_store(settings);
    }
    let folder = PathBuf::from(&settings.store.data);
    let memory_bytes = settings.store.memory_mb as usize * 1024 * 1024;
    let postgres = if settings.log.database.is_empty() {
        None
    } else {
        open_private_folder(&folder).map_err(|source| OpenError::Folder { path: folder.clone(), source })?;
        let options = PgOptions { url: settings.log.database.clone(), retention_days: settings.log.retention_days };
        Some(PgLog::open(options).await?)
    };
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
        let failed = |error: StoreError| OpenError::Shared { detail: error.to_string() };
        let names = agree(log.kept_names().await.map_err(failed)?).await?;
        log.use_names(names).await.map_err(failed)?;
        (LogKept::Postgres(log), names)
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
