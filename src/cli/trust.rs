//! Whose certificate the client subcommands take for the daemon's: the system's authorities, those that were named, and any
//! certificate that was itself named (the daemon's own, which often vouches for itself). Never less than a valid signature.

use super::Common;
use super::api::variable;
use super::error::Error;
use crate::limits::CLIENT_QUICK_WAIT;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme, StreamOwned};
use std::io;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Debug, Default)]
pub struct Trust {
    named: Vec<CertificateDer<'static>>,
}

impl Trust {
    /// `--ca` or STDIOD_CA, and the configured `tls_cert` where there is one to be read.
    pub fn of(common: &Common) -> Result<Trust, Error> {
        let given = common.ca.clone().or_else(|| variable("STDIOD_CA").map(PathBuf::from));
        let mut named = match &given {
            None => Vec::new(),
            Some(file) => match certificates(file) {
                Ok(found) if !found.is_empty() => found,
                Ok(_) => return Err(unusable(file, "it holds no certificate in PEM")),
                Err(why) => return Err(unusable(file, &why)),
            },
        };
        // Whoever may not read the configuration, or has none, trusts the others.
        let configured = common.load_config().ok().and_then(|config| config.tls);
        named.extend(configured.and_then(|tls| certificates(&tls.cert).ok()).into_iter().flatten());
        Ok(Trust { named })
    }

    pub fn greet(&self, host: &str, stream: TcpStream) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
        let provider = Arc::new(ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        roots.add_parsable_certificates(self.named.iter().cloned());
        let by_authority = match roots.is_empty() {
            true => None,
            false => Some(
                WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
                    .build()
                    .map_err(io::Error::other)?,
            ),
        };
        let schemes = provider.signature_verification_algorithms;
        let verifier = Verifier { named: self.named.clone(), by_authority, schemes };
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        let name = ServerName::try_from(host.to_string()).map_err(io::Error::other)?;
        let connection = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
        stream.set_read_timeout(Some(CLIENT_QUICK_WAIT))?;
        stream.set_write_timeout(Some(CLIENT_QUICK_WAIT))?;
        let mut stream = StreamOwned::new(connection, stream);
        // Now, and not with the first request: whom we do not trust is told nothing.
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock).map_err(|why| {
                let remedy = "name the daemon's certificate, or its authority, with --ca FILE or STDIOD_CA";
                io::Error::new(why.kind(), format!("no TLS connection ({why}); {remedy}"))
            })?;
        }
        Ok(stream)
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let all = CertificateDer::pem_file_iter(file).and_then(|found| found.collect::<Result<Vec<_>, _>>());
    all.map_err(|e| e.to_string())
}

fn unusable(file: &Path, why: &str) -> Error {
    Error::Usage(format!("cannot use {} as an authority: {why}; check --ca and STDIOD_CA", file.display()))
}

#[derive(Debug)]
struct Verifier {
    named: Vec<CertificateDer<'static>>,
    by_authority: Option<Arc<WebPkiServerVerifier>>,
    schemes: rustls::crypto::WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        // This very certificate was named: under whatever name it is reached, nobody else has its key.
        if self.named.iter().any(|named| named == end) {
            return Ok(ServerCertVerified::assertion());
        }
        match &self.by_authority {
            Some(verifier) => verifier.verify_server_cert(end, between, name, ocsp, now),
            None => Err(rustls::CertificateError::UnknownIssuer.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signed, &self.schemes)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signed, &self.schemes)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes.supported_schemes()
    }
}
