//! Where Redis is and how it is used, and why it cannot be.

use super::address::Address;
use super::server::Dialer;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

const MOST_PARTITIONS: u16 = 4096;

/// Where the database is and how it is used.
#[derive(Clone)]
pub struct RedisOptions {
    /// `redis://user:password@host:port/database`; `rediss://` with TLS; several hosts with commas, of which the primary is
    /// used; `redis+cluster://` or `rediss+cluster://` for Redis Cluster.
    pub url: String,
    /// Begins every key.
    pub prefix: String,
    /// Fixed for a database once it is created.
    pub partitions: u16,
    /// Entries in one partition's stream before swaps are refused as full.
    pub stream_limit: u64,
    /// Certificates (PEM) to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// Replicas that must have a swap before it counts.
    pub replicas: u32,
    /// For connecting, and for every answer.
    pub timeout: Duration,
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts = Address::parse(&self.url).map(|address| address.places).unwrap_or_default();
        f.debug_struct("RedisOptions").field("hosts", &hosts).field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// The database cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
pub enum OpenError {
    #[error(
        "the address of Redis cannot be used: {0}. Write redis://user:password@host:port/database, rediss:// for TLS, redis+cluster:// for Redis Cluster"
    )]
    Url(String),
    #[error("the number of partitions must be 1 to {MOST_PARTITIONS}, not {0}", found)]
    Partitions { found: u16 },
    #[error("cannot read the certificates in {path}: {detail}. It must be a PEM file that the service may read", path = path.display())]
    CaFile { path: PathBuf, detail: String },
    #[error("Redis at {place} is not reached: {detail}. Is it running, are host and port right, does a firewall let us through?")]
    Unreachable { place: String, detail: String },
    #[error("Redis at {place} closes the connection at once. If it expects TLS, write rediss:// in its address")]
    Closed { place: String },
    #[error(
        "no TLS with Redis at {place}: {detail}. Its certificate must be for this host name and from an authority the system trusts, or one in `store.ca_file`; if it speaks no TLS on this port, write redis:// in its address"
    )]
    Tls { place: String, detail: String },
    #[error("Redis at {place} does not take the login: {detail}. Check user and password in its address (percent-encode : / @)")]
    Password { place: String, detail: String },
    #[error("Redis at {place} does not allow what RunGuard needs: {detail}. Give its user the rights that the documentation lists")]
    NotAllowed { place: String, detail: String },
    #[error("Redis at {place} is a replica. Give the address of the primary, or of all servers with commas between")]
    Replica { place: String },
    #[error(
        "{places} both say that they are the primary. Make one of them a replica of the other (REPLICAOF), or take it out of the address"
    )]
    TwoPrimaries { places: String },
    #[error("Redis at {place} is part of a Redis Cluster. Write redis+cluster:// (or rediss+cluster://) in its address")]
    ClusterMode { place: String },
    #[error("Redis at {place} is not part of a Redis Cluster. Write redis:// (or rediss://) in its address")]
    NotCluster { place: String },
    #[error("Redis at {place} is version {version}. RunGuard needs 6.2 or later, or Valkey")]
    TooOld { place: String, version: String },
    #[error("Redis at {place} is not ready: {detail}. Wait until it has loaded its data and the cluster is whole")]
    Busy { place: String, detail: String },
}

impl RedisOptions {
    /// How to reach the servers, if that can be made of it.
    pub(super) fn dialer(&self) -> Result<Dialer, OpenError> {
        let address = Address::parse(&self.url)?;
        if self.partitions == 0 || self.partitions > MOST_PARTITIONS {
            return Err(OpenError::Partitions { found: self.partitions });
        }
        if address.tls {
            // Fails when somebody was first; the workspace has only this one.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let read = |path: PathBuf| match std::fs::read(&path) {
            Ok(bytes) if bytes.windows(27).any(|window| window == b"-----BEGIN CERTIFICATE-----") => Ok(bytes),
            Ok(_) => Err(OpenError::CaFile { path, detail: "there is no certificate in it".to_owned() }),
            Err(error) => Err(OpenError::CaFile { path, detail: error.to_string() }),
        };
        let root_certificates = self.ca_file.clone().map(read).transpose()?;
        Ok(Dialer { address, root_certificates, timeout: self.timeout })
    }
}

impl OpenError {
    /// It may be there in a moment, as it is.
    pub fn is_away(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Closed { .. } | Self::Busy { .. } => true,
            Self::Url(_)
            | Self::Partitions { .. }
            | Self::CaFile { .. }
            | Self::Tls { .. }
            | Self::Password { .. }
            | Self::NotAllowed { .. }
            | Self::Replica { .. }
            | Self::TwoPrimaries { .. }
            | Self::ClusterMode { .. }
            | Self::NotCluster { .. }
            | Self::TooOld { .. } => false,
        }
    }
}
