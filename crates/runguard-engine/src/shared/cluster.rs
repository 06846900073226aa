//! A place in a cluster, as the settings ask for it.

use crate::clock::system_now;
use crate::engine::{RULES, fresh_names};
use crate::settings::Settings;
use runguard_store::cluster::link::LinkError;
use runguard_store::cluster::{Place, Portions, Shelf, agree_on_names, keep_names_used, names_used};
use runguard_store::files::open_private_folder;
use runguard_store::redis::{RedisLink, RedisOptions};
use runguard_store::{Cluster, ClusterOptions, Embedded, LogKept, Names, OpenError, Options, RETIRE_EVERY, Role, Store, StoreError};
use std::path::PathBuf;
use std::time::Duration;

/// Rows decided alone wait in this part of the data folder.
const ALONE: &str = "alone";
/// And in this one rows that were sent, and may have to be sent again; so many entries are in memory: about 100 MB.
const UNCONFIRMED: &str = "unconfirmed";
const UNCONFIRMED_IN_MEMORY: usize = 100_000;

/// Between two tries of a node that must be told what the names of its cluster are.
const TRY_AGAIN: Duration = Duration::from_secs(1);

pub(super) async fn join(settings: &Settings) -> Result<Store, OpenError> {
    let folder = PathBuf::from(&settings.store.data);
    open_private_folder(&folder).map_err(|source| OpenError::Folder { path: folder.clone(), source })?;
    let memory_bytes = settings.store.memory_mb as usize * 1024 * 1024;
    let postgres = if settings.log.database.is_empty() { None } else { Some(postgres::open(settings).await?) };
    let link = open_link(settings).await?;
    let seed = getrandom::u64().map_err(|error| OpenError::Shared { detail: format!("the machine gives no random numbers: {error}") })?;
    let mut is_told = false;
    let names = loop {
        let in_log = match &postgres {
            Some(log) => postgres::names(log).await,
            None => Ok(Embedded::names_in(&folder)?),
        };
        if let Some(names) = agree(&link, in_log, names_used(&folder), seed).await? {
            break names;
        }
        if !std::mem::replace(&mut is_told, true) {
            tracing::error!(
                "this node has never been in its cluster, so it needs the shared state or the log to begin: it waits until one of them is there"
            );
        }
        tokio::time::sleep(TRY_AGAIN).await;
    };
    keep_names_used(&folder, names).map_err(|source| OpenError::Folder { path: folder.clone(), source })?;
    let log = if let Some(log) = postgres {
        postgres::kept(log, names).await?
    } else {
        let options = Options {
            folder: folder.clone(),
            durability: settings.store.durability,
            memory_bytes,
            retention_days: settings.log.retention_days,
            role: Role::Log,
            names,
        };
        LogKept::Local(Embedded::open(options, RULES)?)
    };
    let options = ClusterOptions {
        folder: folder.join(ALONE),
        memory_bytes,
        retention_days: settings.log.retention_days,
        window: Duration::from_millis(settings.policies.longest_window().as_millis()),
        patience: Duration::from_millis(u64::from(settings.store.patience_ms)),
        retire_every: RETIRE_EVERY,
        here_millis: system_now().as_millis(),
        alone_bytes: u64::from(settings.store.alone_mb) << 20,
        portions: Portions::default(),
        unconfirmed: Shelf {
            place: Place::Folder(folder.join(UNCONFIRMED)),
            entries_in_memory: UNCONFIRMED_IN_MEMORY,
            most_bytes: u64::from(settings.store.unconfirmed_mb) << 20,
        },
        names,
        seed,
    };
    Ok(Store::Cluster(Cluster::join(link, log, options, RULES).await?))
}

async fn open_link(settings: &Settings) -> Result<RedisLink, OpenError> {
    let options = RedisOptions {
        url: settings.store.state.clone(),
        prefix: settings.store.prefix.clone(),
        partitions: settings.store.partitions,
        stream_limit: settings.store.stream_limit,
        ca_file: (!settings.store.ca_file.is_empty()).then(|| settings.store.ca_file.clone().into()),
        replicas: settings.store.replicas,
        timeout: Duration::from_millis(u64::from(settings.store.patience_ms)),
    };
    let opened = match RedisLink::open(options.clone()).await {
        Err(error) if error.is_away() => {
            tracing::error!(%error, "the shared state is away");
            RedisLink::open_away(options)
        }
        opened => opened,
    };
    opened.map_err(|error| OpenError::Shared { detail: error.to_string() })
}

/// The names that all nodes use, from whatever is there. `None`: nothing is there that could tell, and this node never knew.
async fn agree(
    link: &RedisLink,
    in_log: Result<Option<Names>, StoreError>,
    used: Option<Names>,
    seed: u64,
) -> Result<Option<Names>, OpenError> {
    let unusable = |error: LinkError| OpenError::Shared { detail: error.to_string() };
    let in_database = match link.kept_names().await {
        Ok(found) => Ok(found),
        Err(error) if error.is_wrong_setup() => return Err(unusable(error)),
        Err(error) => Err(error),
    };
    match (in_log, in_database) {
        (Ok(in_log), Ok(_)) => match agree_on_names(link, in_log, used.map_or_else(fresh_names, Ok)?, seed).await {
            Ok(names) => Ok(Some(names)),
            Err(error) if error.is_wrong_setup() => Err(unusable(error)),
            Err(_) => Ok(in_log.or(used)),
        },
        (Ok(in_log), Err(_)) => Ok(in_log.or(used)),
        // Where the states are empty the log may have names that nobody here knows.
        (Err(_), Ok(in_database)) => Ok(in_database.or(used)),
        (Err(_), Err(_)) => Ok(used),
    }
}

#[cfg(feature = "postgres")]
mod postgres {
    use crate::settings::Settings;
    use runguard_store::{LogKept, Names, OpenError, PgLog, PgOptions, StoreError};

    pub(super) async fn open(settings: &Settings) -> Result<PgLog, OpenError> {
        let options = PgOptions { url: settings.log.database.clone(), retention_days: settings.log.retention_days };
        match PgLog::open(options.clone()).await {
            Err(error @ OpenError::PostgresAway { .. }) => {
                tracing::error!(%error, "the log is away: rows wait until it is there");
                PgLog::open_away(&options)
            }
            opened => opened,
        }
    }

    pub(super) async fn names(log: &PgLog) -> Result<Option<Names>, StoreError> {
        log.kept_names().await
    }

    pub(super) async fn kept(log: PgLog, names: Names) -> Result<LogKept, OpenError> {
        log.use_names(names).await.map_err(|error| OpenError::Shared { detail: error.to_string() })?;
        Ok(LogKept::Postgres(log))
    }
}

#[cfg(not(feature = "postgres"))]
mod postgres {
    use crate::settings::Settings;
    use runguard_store::{LogKept, Names, OpenError, StoreError};
    use std::future::{Ready, ready};

    pub(super) enum Never {}

    pub(super) fn open(_: &Settings) -> Ready<Result<Never, OpenError>> {
        ready(Err(OpenError::BuiltWithout { setting: "log.database", feature: "postgres" }))
    }

    pub(super) fn names(log: &Never) -> Ready<Result<Option<Names>, StoreError>> {
        match *log {}
    }

    pub(super) fn kept(log: Never, _: Names) -> Ready<Result<LogKept, OpenError>> {
        match log {}
    }
}
