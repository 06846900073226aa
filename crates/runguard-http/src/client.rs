//! What everyone needs who calls others over HTTP: whom to trust, and what lies behind an error.
//!
//! TLS is by ring, told so explicitly: a default for the whole process would be set under the feet of whoever embeds this.

use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier};
use rustls_platform_verifier::BuilderVerifierExt as _;
use std::error::Error;
use std::sync::Arc;

/// What to do on a system without certificates, such as a bare container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WithoutCertificates {
    /// Say so: what is reached is reached by TLS.
    Fail,
    /// Trust nobody: plain HTTP works there all the same.
    TrustNobody,
}

impl WithoutCertificates {
    /// For what is at an address of this scheme.
    pub fn for_scheme(scheme: &str) -> Self {
        if scheme == "http" { Self::TrustNobody } else { Self::Fail }
    }
}

/// Trusts what this system trusts (`SSL_CERT_FILE` names others).
pub fn trust_system(otherwise: WithoutCertificates) -> Result<ClientConfig, String> {
    match (builder()?.with_platform_verifier(), otherwise) {
        (Ok(trusting), _) => Ok(trusting.with_no_client_auth()),
        (Err(_), WithoutCertificates::TrustNobody) => Ok(builder()?.with_root_certificates(RootCertStore::empty()).with_no_client_auth()),
        (Err(problem), WithoutCertificates::Fail) => {
            Err(format!("cannot load this system's certificates: {problem}; install its package `ca-certificates`"))
        }
    }
}

/// Trusts these and nobody else.
pub fn trust_only(certificates: impl IntoIterator<Item = CertificateDer<'static>>) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate).map_err(|problem| problem.to_string())?;
    }
    Ok(builder()?.with_root_certificates(roots).with_no_client_auth())
}

fn builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, String> {
    ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|problem| format!("cannot set up TLS: {problem}"))
}

/// The errors behind an error, the nearest first.
pub fn behind<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(error.source(), |cause: &&'a (dyn Error + 'static)| (*cause).source())
}

/// What is behind an error, each cause said once; not its own words, which name only the step that failed, and may quote an address
/// with a password in it.
pub fn causes(error: &(dyn Error + 'static)) -> String {
    let mut texts: Vec<String> = behind(error).map(ToString::to_string).collect();
    // Some links repeat what is behind them.
    texts.dedup_by(|later, earlier| earlier.contains(later.as_str()));
    texts.join(": ")
}
