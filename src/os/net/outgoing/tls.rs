//! Whom an outgoing connection trusts: the system's roots, and the authorities of one file beside them. Read by helper
//! threads only, because files and parsing take time. What the system's roots make is there once, for all connections.

use crate::limits::TLS_CA_MAX;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

#[derive(Default)]
pub struct Trust {
    system: OnceLock<Arc<ClientConfig>>,
}

impl Trust {
    /// Blocks for as long as the disk does.
    pub fn config(&self, tls_ca: Option<&PathBuf>) -> Result<Arc<ClientConfig>, String> {
        if let Some(path) = tls_ca {
            let mut roots = roots_in(path)?;
            add_system(&mut roots);
            return with_roots(roots).map(Arc::new);
        }
        if let Some(known) = self.system.get() {
            return Ok(Arc::clone(known));
        }
        let mut roots = RootCertStore::empty();
        add_system(&mut roots);
        let made = Arc::new(with_roots(roots)?);
        Ok(Arc::clone(self.system.get_or_init(|| made)))
    }
}

/// A root that cannot be read is one that vouches for nobody; the handshake then says whom it did not trust.
fn add_system(roots: &mut RootCertStore) {
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
}

fn with_roots(roots: RootCertStore) -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = builder.map_err(|e| e.to_string())?.with_root_certificates(roots).with_no_client_auth();
    // Said, so that a server which speaks others too does not choose one of them.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn roots_in(path: &Path) -> Result<RootCertStore, String> {
    let failed = |why: &dyn std::fmt::Display| format!("tls_ca {}: {why}", path.display());
    let mut text = Vec::new();
    File::open(path).and_then(|file| file.take(TLS_CA_MAX).read_to_end(&mut text)).map_err(|e| failed(&e))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&text) {
        let certificate = certificate.map_err(|e| failed(&e))?;
        roots.add(certificate).map_err(|e| failed(&e))?;
    }
    if roots.is_empty() {
        return Err(failed(&"there is no certificate in it"));
    }
    Ok(roots)
}
