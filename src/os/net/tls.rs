//! TLS for client connections: what is read of the files at boot and on SIGHUP, and one connection's records on a socket
//! that never blocks. Owns keys and records; never knows what is said in them. Invariant: `WouldBlock` of a read means that
//! the kernel has nothing more, and what a connection holds that is not sent yet is less than one write of it.

use crate::api::auth::certificate::{self, CertificateRule};
use crate::config::{ClientCertificates, Tls};
use crate::limits::{BYTES_AT_ONCE, TLS_FILE_MAX, TLS_SILENT_BYTES_MAX, TLS_WRITE_AT_ONCE};
use crate::model::principal::Principal;
use mio::net::TcpStream;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use std::fs::File;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::Shutdown;
use std::path::Path;
use std::sync::Arc;

/// What a listener needs to speak TLS. Another one is put in its place on SIGHUP; connections keep the one they began with.
pub struct TlsKeys {
    config: Arc<ServerConfig>,
    rules: Arc<[CertificateRule]>,
}

impl TlsKeys {
    /// The error names the file and what to do.
    pub fn read(tls: &Tls) -> Result<Arc<TlsKeys>, String> {
        let chain = certificates(&tls.cert, "tls_cert")?;
        let key = private_key(&tls.key)?;
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|e| format!("TLS: {e}"))?;
        let builder = match &tls.clients {
            None => builder.with_no_client_auth(),
            Some(ClientCertificates { ca, required, .. }) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(ca, "tls_client_ca")? {
                    let added = roots.add(certificate);
                    added.map_err(|e| format!("tls_client_ca {}: {e}; it must hold authorities", ca.display()))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let verifier = if *required { verifier } else { verifier.allow_unauthenticated() };
                builder.with_client_cert_verifier(
                    verifier.build().map_err(|e| format!("tls_client_ca {}: {e}", ca.display()))?,
                )
            }
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|e| {
            let (cert, key) = (tls.cert.display(), tls.key.display());
            format!("tls_cert {cert} and tls_key {key} do not belong together: {e}; name the key of this certificate")
        })?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        // Tickets of earlier keys end with them: nobody comes back past a changed authority.
        config.ticketer = ring::Ticketer::new().map_err(|e| format!("TLS: {e}"))?;
        config.send_tls13_tickets = 1;
        let rules = tls.clients.as_ref().map(|clients| clients.rules.clone()).unwrap_or_default();
        Ok(Arc::new(TlsKeys { config: Arc::new(config), rules: rules.into() }))
    }

    /// A connection that has just come.
    pub fn accept(&self, socket: TcpStream) -> io::Result<TlsSocket> {
        let records = ServerConnection::new(Arc::clone(&self.config)).map_err(io::Error::other)?;
        let rules = Arc::clone(&self.rules);
        Ok(TlsSocket { socket, records, rules, who: None, stage: Stage::Handshake, has_more: false, unsent: 0 })
    }
}

/// Never a pipe or a device: the loop reads them again on SIGHUP.
fn pem(file: &Path, key: &str) -> Result<Vec<u8>, String> {
    let failed = |why: String| format!("{key} {}: {why}", file.display());
    let metadata = std::fs::metadata(file).map_err(|e| failed(format!("{e}; check the path and its permissions")))?;
    if !metadata.is_file() || metadata.len() > TLS_FILE_MAX {
        return Err(failed(format!("is no file of at most {TLS_FILE_MAX} bytes; name a PEM file")));
    }
    let mut bytes = Vec::new();
    let read = File::open(file).and_then(|open| open.take(TLS_FILE_MAX).read_to_end(&mut bytes));
    read.map_err(|e| failed(format!("{e}; let the daemon's user read it")))?;
    Ok(bytes)
}

fn certificates(file: &Path, key: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let failed = |why: String| format!("{key} {}: {why}; it must hold certificates in PEM", file.display());
    let bytes = pem(file, key)?;
    let found = CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|e| failed(e.to_string()))?;
    match found.is_empty() {
        true => Err(failed("holds no certificate".to_string())),
        false => Ok(found),
    }
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let bytes = pem(file, "tls_key")?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|_| {
        let remedy = "it must hold a private key in PEM, without a passphrase (openssl pkey -in FILE)";
        format!("tls_key {}: holds no key; {remedy}", file.display())
    })
}

// --- one connection -------------------------------------------------------------------------------------------------

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Handshake,
    Open,
    /// We have said our last word; what the peer still sends is read and thrown away as it is.
    Finished,
    Broken,
}

pub struct TlsSocket {
    socket: TcpStream,
    records: ServerConnection,
    rules: Arc<[CertificateRule]>,
    /// Whom its certificate stands for, until it is asked for.
    who: Option<Principal>,
    stage: Stage,
    /// The last read stopped before the kernel had nothing more.
    has_more: bool,
    /// Bytes of records that the kernel did not take yet.
    unsent: usize,
}

/// For whoever speaks HTTP to a port that does not.
const PLAIN_HTTP: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: 44\r\nConnection: close\r\n\r\n\
    this address speaks TLS: ask with https://\r\n";

impl TlsSocket {
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    pub fn socket_mut(&mut self) -> &mut TcpStream {
        &mut self.socket
    }

    pub fn is_handshaking(&self) -> bool {
        self.stage == Stage::Handshake
    }

    pub fn has_more(&self) -> bool {
        self.has_more
    }

    pub fn unsent(&self) -> usize {
        self.unsent
    }

    /// Whom its certificate stands for; told once.
    pub fn take_principal(&mut self) -> Option<Principal> {
        self.who.take()
    }

    /// Reads until `buf` is full, the kernel has nothing more, or the turn's share is used up.
    pub fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self.stage {
            Stage::Finished => return self.socket.read(buf),
            Stage::Broken => return Err(ErrorKind::InvalidData.into()),
            Stage::Handshake | Stage::Open => {}
        }
        self.has_more = false;
        let (mut read, mut taken, mut drained) = (0, 0, false);
        loop {
            match self.records.reader().read(&mut buf[read..]) {
                // The peer has said its last word; how its connection ends is no matter, a request has a length.
                Ok(0) => return Ok(read),
                Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(read),
                Ok(n) => {
                    read += n;
                    if read == buf.len() {
                        return Ok(read);
                    }
                    continue;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            }
            if drained {
                return if read > 0 { Ok(read) } else { Err(ErrorKind::WouldBlock.into()) };
            }
            if taken >= BYTES_AT_ONCE && read > 0 {
                self.has_more = true;
                return Ok(read);
            }
            if taken > TLS_SILENT_BYTES_MAX {
                self.stage = Stage::Broken;
                return Err(ErrorKind::InvalidData.into());
            }
            let mut input = Input { socket: &mut self.socket, first: None, short: false };
            match self.records.read_tls(&mut input) {
                Ok(n) => {
                    (taken, drained) = (taken + n, input.short && n > 0);
                    let first = input.first;
                    self.process(first)?;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => drained = true,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    fn process(&mut self, first: Option<u8>) -> io::Result<()> {
        if let Err(e) = self.records.process_new_packets() {
            // What rustls has to say of it goes out if it can; then it is over.
            match self.stage == Stage::Handshake && first.is_some_and(|byte| byte.is_ascii_uppercase()) {
                true => _ = self.socket.write(PLAIN_HTTP),
                false => _ = self.send(),
            }
            self.stage = Stage::Broken;
            return Err(io::Error::new(ErrorKind::InvalidData, e));
        }
        if self.stage == Stage::Handshake && !self.records.is_handshaking() {
            self.stage = Stage::Open;
            let certificate = self.records.peer_certificates().and_then(<[_]>::first);
            self.who = certificate.and_then(|certificate| certificate::principal(&self.rules, certificate));
        }
        match self.send() {
            Err(e) if e.kind() != ErrorKind::WouldBlock => Err(e),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Everything that is encrypted already.
    pub fn send(&mut self) -> io::Result<()> {
        while self.records.wants_write() {
            match self.records.write_tls(&mut self.socket) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => {
                    self.unsent = self.records.process_new_packets().map_or(0, |state| state.tls_bytes_to_write());
                    return Err(e);
                }
            }
        }
        self.unsent = 0;
        Ok(())
    }

    /// Bytes are taken only when those before them are out, so that no more than one write waits here.
    pub fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self.stage {
            Stage::Open => {}
            Stage::Handshake => return Err(ErrorKind::WouldBlock.into()),
            Stage::Finished | Stage::Broken => return Err(ErrorKind::BrokenPipe.into()),
        }
        self.send()?;
        let taken = self.records.writer().write_vectored(parts)?;
        match self.send() {
            Err(e) if e.kind() != ErrorKind::WouldBlock => Err(e),
            Ok(()) | Err(_) => Ok(taken),
        }
    }

    pub fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(&buf[..buf.len().min(TLS_WRITE_AT_ONCE)])])
    }

    /// Our last word, and the end of what we send.
    pub fn finish(&mut self) -> io::Result<()> {
        if matches!(self.stage, Stage::Open | Stage::Handshake) {
            self.records.send_close_notify();
            self.send()?;
        }
        self.stage = Stage::Finished;
        self.socket.shutdown(Shutdown::Write)
    }
}

/// Whoever is dropped hears at least that it is over, if there is room for it.
impl Drop for TlsSocket {
    fn drop(&mut self) {
        if self.stage == Stage::Open {
            self.records.send_close_notify();
            _ = self.send();
        }
    }
}

/// The socket as rustls reads it.
struct Input<'a> {
    socket: &'a mut TcpStream,
    first: Option<u8>,
    /// The kernel had less than there was room for.
    short: bool,
}

impl Read for Input<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.socket.read(buf)?;
        (self.first, self.short) = (buf[..n].first().copied(), n < buf.len());
        Ok(n)
    }
}
