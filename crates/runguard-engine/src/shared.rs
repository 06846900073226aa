//! Opens the store that the settings ask for: the node's own files, or a place in a cluster.

#[cfg(feature = "redis")]
mod cluster;

use crate::engine::open_store;
use crate::settings::Settings;
use runguard_store::{OpenError, Store};

#[cfg_attr(not(feature = "redis"), expect(clippy::unused_async, reason = "with Redis it waits"))]
pub async fn open(settings: &Settings) -> Result<Store, OpenError> {
    if settings.store.state.is_empty() {
        return open_store(settings);
    }
    #[cfg(feature = "redis")]
    return cluster::join(settings).await;
    #[cfg(not(feature = "redis"))]
    Err(OpenError::BuiltWithout { setting: "store.state", feature: "redis" })
}
