//! TLS with a certificate from files, taken over when the files change.

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Where certificate and key are: PEM, the certificate with those that lead to its root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Files {
    /// `None` where the settings name no certificate.
    pub fn unless_empty(certificate: PathBuf, key: PathBuf) -> Option<Self> {
        (!certificate.as_os_str().is_empty()).then_some(Self { certificate, key })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read a certificate from {path}: {problem}. It must be PEM, the server's own certificate first")]
    Certificate { path: PathBuf, problem: String },
    #[error("cannot read a private key from {path}: {problem}. It must be PEM, without a password")]
    Key { path: PathBuf, problem: String },
    #[error("the certificate in {certificate} and the key in {key} cannot be used: {problem}")]
    Pair { certificate: PathBuf, key: PathBuf, problem: String },
}

/// What is in force.
#[derive(Debug)]
pub(crate) struct Certificates {
    files: Files,
    config: ArcSwap<ServerConfig>,
}

/// Whom to tell of changed certificates.
#[derive(Clone)]
pub struct CertificateNews(Arc<dyn Fn(Option<(&Path, String)>) + Send + Sync>);

impl CertificateNews {
    pub fn new(hear: impl Fn(Option<(&Path, String)>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(hear))
    }

    /// The log says it, and nobody else.
    pub fn nobody() -> Self {
        Self::new(|_| ())
    }

    fn hear(&self, refused: Option<(&Path, String)>) {
        (self.0)(refused);
    }
}

impl std::fmt::Debug for CertificateNews {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CertificateNews")
    }
}

impl Certificates {
    pub(crate) fn load(files: Files) -> Result<Self, TlsError> {
        let config = ArcSwap::from(read(&files)?);
        Ok(Self { files, config })
    }

    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.config.load_full()
    }

    /// Looks every second whether the files have changed, as programs that renew certificates replace them. Ends never.
    /// `tell` hears of every change: nothing when it is in force, the file and the error when it is not.
    pub(crate) async fn follow(self: Arc<Self>, tell: CertificateNews) {
        const LOOK_EVERY: Duration = Duration::from_secs(1);
        let mut seen = self.stamps();
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let stamps = self.stamps();
            if stamps == seen {
                continue;
            }
            seen = stamps;
            match read(&self.files) {
                Ok(config) => {
                    self.config.store(config);
                    tracing::info!(certificate = %self.files.certificate.display(), "the certificate has changed and is in force");
                    tell.hear(None);
                }
                // One file may be there before the other: the next look sees both.
                Err(error) => {
                    tracing::error!(%error, "the changed certificate is refused; the old one stays in force");
                    tell.hear(Some((&self.files.certificate, error.to_string())));
                }
            }
        }
    }

    fn stamps(&self) -> [Option<(SystemTime, u64)>; 2] {
        [&self.files.certificate, &self.files.key].map(|path| {
            let meta = std::fs::metadata(path).ok()?;
            Some((meta.modified().ok()?, meta.len()))
        })
    }
}

fn read(files: &Files) -> Result<Arc<ServerConfig>, TlsError> {
    let no_certificate = |problem: String| TlsError::Certificate { path: files.certificate.clone(), problem };
    let chain = CertificateDer::pem_file_iter(&files.certificate).map_err(|error| no_certificate(error.to_string()))?;
    let chain = chain.collect::<Result<Vec<_>, _>>().map_err(|error| no_certificate(error.to_string()))?;
    if chain.is_empty() {
        return Err(no_certificate("there is none".to_owned()));
    }
    let key =
        PrivateKeyDer::from_pem_file(&files.key).map_err(|error| TlsError::Key { path: files.key.clone(), problem: error.to_string() })?;
    let unusable = |problem: rustls::Error| TlsError::Pair {
        certificate: files.certificate.clone(),
        key: files.key.clone(),
        problem: problem.to_string(),
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().map_err(unusable)?;
    let mut config = config.with_no_client_auth().with_single_cert(chain, key).map_err(unusable)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec(), b"http/1.0".to_vec()];
    Ok(Arc::new(config))
}
