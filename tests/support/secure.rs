//! A blocking HTTP client over TLS for the tests: as `Http`, on a connection of rustls. Trusts one authority; panics rather
//! than waits for ever.

use super::SOON;
use super::http::Reply;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion};
use serde_json::Value;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

pub struct Secure {
    pub stream: BufReader<StreamOwned<ClientConnection, TcpStream>>,
    pub token: String,
}

/// `identity`: files of a certificate and its key.
pub fn config(
    ca: &str,
    identity: Option<(&str, &str)>,
    versions: &[&'static SupportedProtocolVersion],
) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca).expect("an authority")).expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).expect("versions");
    let builder = builder.with_root_certificates(roots);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let chain = vec![CertificateDer::from_pem_file(cert).expect("a certificate")];
            builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(key).expect("a key")).expect("a pair")
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Arc::new(config)
}

pub fn any_version(ca: &str) -> Arc<ClientConfig> {
    config(ca, None, rustls::ALL_VERSIONS)
}

impl Secure {
    pub fn connect(address: &str, config: &Arc<ClientConfig>, token: &str) -> io::Result<Secure> {
        let mut socket = TcpStream::connect(address)?;
        socket.set_read_timeout(Some(SOON))?;
        socket.set_write_timeout(Some(SOON))?;
        socket.set_nodelay(true)?;
        let name = ServerName::try_from("localhost").expect("a name");
        let mut connection = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        while connection.is_handshaking() {
            connection.complete_io(&mut socket)?;
        }
        Ok(Secure { stream: BufReader::new(StreamOwned::new(connection, socket)), token: token.to_string() })
    }

    pub fn request(&mut self, method: &str, path: &str, body: Option<&Value>) -> io::Result<Reply> {
        self.send(method, path, "", body)?;
        self.read_reply()
    }

    pub fn send(&mut self, method: &str, path: &str, headers: &str, body: Option<&Value>) -> io::Result<()> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{headers}");
        if !self.token.is_empty() {
            head += &format!("Authorization: Bearer {}\r\n", self.token);
        }
        if !body.is_empty() {
            head += &format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
        }
        let stream = self.stream.get_mut();
        stream.write_all(format!("{head}\r\n{body}").as_bytes())?;
        stream.flush()
    }

    pub fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.stream.read_line(&mut line)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(line.trim_end().to_string()),
        }
    }

    pub fn read_reply(&mut self) -> io::Result<Reply> {
        let line = self.line()?;
        let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, line))?;
        let mut reply = Reply { status, headers: Vec::new(), body: Vec::new() };
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(':') else { break };
            reply.headers.push((name.to_ascii_lowercase(), value.trim().to_string()));
        }
        if let Some(length) = reply.header("content-length").and_then(|length| length.parse().ok()) {
            reply.body = vec![0; length];
            self.stream.read_exact(&mut reply.body)?;
        }
        Ok(reply)
    }
}
