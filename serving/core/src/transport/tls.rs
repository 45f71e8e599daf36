//! TLS by rustls.

use std::sync::Arc;

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

/// PEM texts of a listener's key and certificates.
pub struct TlsFiles {
    pub key: String,
    pub certificate: String,
    /// Who signs the certificates that clients must show; `None` where they need not.
    pub client_authority: Option<String>,
}

/// What a listener needs to speak TLS, or what is wrong with its files.
pub fn server_config(files: &TlsFiles, protocols: &[&str]) -> Result<Arc<ServerConfig>, String> {
    let chain = certificates(&files.certificate).map_err(|error| format!("the certificate: {error}"))?;
    let key = PrivateKeyDer::from_pem_slice(files.key.as_bytes()).map_err(|error| format!("the key: {error}"))?;
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let builder = match &files.client_authority {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(authority).map_err(|error| format!("the authority: {error}"))? {
                roots.add(certificate).map_err(|error| format!("the authority: {error}"))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .map_err(|error| format!("the authority: {error}"))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|error| format!("key and certificate: {error}"))?;
    if files.client_authority.is_some() {
        // Whoever resumes a session shows no certificate: it may have expired since.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    Ok(Arc::new(config))
}

fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Vec<_> =
        CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().map_err(|error| error.to_string())?;
    if found.is_empty() { Err("there is none in the PEM text".to_owned()) } else { Ok(found) }
}
