//! What can go wrong, said so that the reader knows what to do.

use std::path::PathBuf;

/// The store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(
        "cannot use the data folder {path}: {source}. Create it, or give another one with --data; the service must be allowed to write there"
    )]
    Folder { path: PathBuf, source: std::io::Error },
    #[error("another RunGuard is using the data folder {path}. Stop it, or give this one its own folder with --data")]
    InUse { path: PathBuf },
    #[error(
        "{path} is damaged: {detail}. Nothing was changed. Restore the folder from a backup; or salvage what can be read with `sqlite3 {path} .recover`; or move the file away to start with an empty log"
    )]
    Damaged { path: PathBuf, detail: String },
    #[error(
        "{path}, where decisions of a process that was killed wait for the log, is damaged: {detail}. Nothing of it was thrown away. Start the version that wrote it; or move the file away to start without what is left in it"
    )]
    DamagedJournal { path: PathBuf, detail: String },
    #[error(
        "{path} ends at row {last}, but rows up to {known} were written: the file was emptied or replaced by an older one. Nothing was changed. Restore the folder from a backup, or move the whole folder away to start empty"
    )]
    Lost { path: PathBuf, last: u64, known: u64 },
    #[error("{path} was written by a newer RunGuard (format {found}, this one knows {known}). Use that version, or another --data folder")]
    TooNew { path: PathBuf, found: i64, known: i64 },
    #[error("cannot open {path}: {detail}. The disk may be full or the folder not writable")]
    Database { path: PathBuf, detail: String },
    #[error(
        "the address of Postgres cannot be read. It looks like postgres://USER:PASSWORD@HOST:5432/DATABASE?sslmode=require; in the password write @ as %40, : as %3A, / as %2F, ? as %3F, # as %23 and % as %25"
    )]
    PostgresAddress,
    #[error("cannot use the log in Postgres at {place}: {detail}")]
    Postgres { place: String, detail: String },
    /// It may be there in a moment.
    #[error("cannot use the log in Postgres at {place}: {detail}")]
    PostgresAway { place: String, detail: String },
    #[error(
        "the log in Postgres at {place} was written by a newer RunGuard (format {found}, this one knows {known}). Use that version, or another database or schema"
    )]
    PostgresTooNew { place: String, found: i64, known: i64 },
    #[error("cannot join the shared state: {detail}")]
    Shared { detail: String },
    #[error("`{setting}` is set, but this runguard was built without the feature `{feature}`. Build it with it, or leave the setting out")]
    BuiltWithout { setting: &'static str, feature: &'static str },
}

/// A running store could not do what was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// Nothing of the request was kept.
    #[error("the decision could not be written: {0}")]
    Write(String),
    #[error("the log could not be read: {0}")]
    Read(String),
    /// Nothing of it went, unless whoever asked is told otherwise.
    #[error("the session was not erased: {0}")]
    NotErased(String),
    #[error("the store is stopping")]
    Stopping,
}
