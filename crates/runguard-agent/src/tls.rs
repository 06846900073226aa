//! TLS by ring, told so explicitly: a default for the whole process would be set under the feet of whoever embeds this.

use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt;
use std::sync::Arc;

/// What to do on a system without certificates, such as a bare container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WithoutCertificates {
    /// Say so: what is reached is reached by TLS.
    Fail,
    /// Trust nobody: plain HTTP works there all the same.
    TrustNobody,
}

/// Trusts what this system trusts.
pub(crate) fn client_config(otherwise: WithoutCertificates) -> Result<ClientConfig, String> {
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|problem| format!("cannot set up TLS: {problem}"))?;
    match (builder.clone().with_platform_verifier(), otherwise) {
        (Ok(builder), _) => Ok(builder.with_no_client_auth()),
        (Err(_), WithoutCertificates::TrustNobody) => Ok(builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth()),
        (Err(problem), WithoutCertificates::Fail) => {
            Err(format!("cannot load this system's certificates: {problem}; install its package `ca-certificates`"))
        }
    }
}

/// For what is at this address.
pub(crate) fn client_config_for(url: &reqwest::Url) -> Result<ClientConfig, String> {
    client_config(if url.scheme() == "http" { WithoutCertificates::TrustNobody } else { WithoutCertificates::Fail })
}
