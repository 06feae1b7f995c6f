//! TLS to PostgreSQL: whom the client library's connector trusts, after `sslmode` and `sslrootcert`. Files are read for each
//! connection, so that a new authority needs no restart; this blocks, as everything of the store thread may.

use crate::limits::TLS_CA_MAX;
use crate::store::conninfo::{Roots, Tls};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use tokio_postgres_rustls::MakeRustlsConnect;

/// None: in clear text.
pub fn connector(tls: &Tls) -> Result<Option<MakeRustlsConnect>, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
    let builder = builder.map_err(|e| e.to_string())?;
    let config = match tls {
        Tls::None => return Ok(None),
        Tls::Named(roots) => builder.with_root_certificates(read(roots)?).with_no_client_auth(),
        Tls::Known(roots) => {
            let known = WebPkiServerVerifier::builder_with_provider(Arc::new(read(roots)?), Arc::clone(&provider));
            let verifier = Lenient { provider, known: Some(known.build().map_err(|e| e.to_string())?) };
            builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth()
        }
        Tls::Any => {
            let verifier = Lenient { provider, known: None };
            builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth()
        }
    };
    Ok(Some(MakeRustlsConnect::new(config)))
}

fn read(roots: &Roots) -> Result<RootCertStore, String> {
    let mut store = RootCertStore::empty();
    let Roots::File(path) = roots else {
        store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return Ok(store);
    };
    let failed = |why: &dyn std::fmt::Display| format!("database_url: sslrootcert {}: {why}", path.display());
    let mut text = Vec::new();
    File::open(path).and_then(|file| file.take(TLS_CA_MAX).read_to_end(&mut text)).map_err(|e| failed(&e))?;
    for certificate in CertificateDer::pem_slice_iter(&text) {
        store.add(certificate.map_err(|e| failed(&e))?).map_err(|e| failed(&e))?;
    }
    if store.is_empty() {
        return Err(failed(&"there is no certificate in it"));
    }
    Ok(store)
}

/// For `require` and `verify-ca`: the handshake is checked like any other, the certificate less.
#[derive(Debug)]
struct Lenient {
    provider: Arc<CryptoProvider>,
    /// None: whoever it is.
    known: Option<Arc<WebPkiServerVerifier>>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(known) = &self.known else { return Ok(ServerCertVerified::assertion()) };
        // The name is looked at last: whoever fails there has an authority that is known.
        match known.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
