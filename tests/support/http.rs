//! A blocking HTTP/1.1 client with nothing hidden: one connection, kept alive, and `send_raw` for bytes that no honest
//! client would send. Owns its socket; never retries, never follows, and panics rather than waits for ever.

use super::SOON;
use serde_json::Value;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};

pub struct Http {
    stream: BufReader<TcpStream>,
    address: String,
    token: String,
}

#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Http {
    /// An empty token: none is sent.
    pub fn connect(address: &str, token: &str) -> Http {
        let stream = TcpStream::connect(address).unwrap_or_else(|e| panic!("connect to {address}: {e}"));
        stream.set_read_timeout(Some(SOON)).expect("a timeout");
        stream.set_write_timeout(Some(SOON)).expect("a timeout");
        stream.set_nodelay(true).expect("an option");
        Http { stream: BufReader::new(stream), address: address.to_string(), token: token.to_string() }
    }

    pub fn request(&mut self, method: &str, path: &str, body: Option<&Value>) -> Reply {
        match body {
            Some(body) => self.request_text(method, path, &body.to_string()),
            None => self.request_text(method, path, ""),
        }
    }

    /// With a body exactly as written.
    pub fn request_text(&mut self, method: &str, path: &str, body: &str) -> Reply {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n", self.address);
        if !self.token.is_empty() {
            head += &format!("Authorization: Bearer {}\r\n", self.token);
        }
        if !body.is_empty() {
            head += &format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
        }
        self.send_raw(format!("{head}\r\n{body}").as_bytes()).unwrap_or_else(|e| panic!("{method} {path}: {e}"));
        self.read_reply(method == "HEAD").unwrap_or_else(|e| panic!("{method} {path}: {e}"))
    }

    pub fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// As `request`, where the connection may be closed instead of an answer.
    pub fn try_get(&mut self, path: &str) -> io::Result<Reply> {
        self.send_raw(format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address).as_bytes())?;
        self.read_reply(false)
    }

    /// Whether anything has come of an answer by then; it is not read.
    pub fn has_answer_within(&mut self, patience: std::time::Duration) -> bool {
        self.stream.get_ref().set_read_timeout(Some(patience)).expect("a timeout");
        let came = self.stream.fill_buf().is_ok_and(|bytes| !bytes.is_empty());
        self.stream.get_ref().set_read_timeout(Some(SOON)).expect("a timeout");
        came
    }

    /// No more will be sent; the answer can still be read.
    pub fn end_of_requests(&mut self) {
        let _ = self.stream.get_mut().shutdown(Shutdown::Write);
    }

    /// Everything that comes until the daemon closes. A reset counts as a close: bytes it did not read cause one.
    pub fn read_to_close(&mut self) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        match self.stream.read_to_end(&mut all) {
            Ok(_) => Ok(all),
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => Ok(all),
            Err(e) => Err(e),
        }
    }

    pub fn read_reply(&mut self, without_body: bool) -> io::Result<Reply> {
        let status_line = self.line()?;
        let mut words = status_line.splitn(3, ' ');
        let status = match (words.next(), words.next().and_then(|code| code.parse().ok())) {
            (Some("HTTP/1.1"), Some(status)) => status,
            _ => return Err(bad(format!("no status line: {status_line:?}"))),
        };
        let mut headers = Vec::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').ok_or_else(|| bad(format!("no header: {line:?}")))?;
            headers.push((name.to_ascii_lowercase(), value.trim().to_string()));
        }
        let mut reply = Reply { status, headers, body: Vec::new() };
        if status == 100 {
            return self.read_reply(without_body);
        }
        if without_body || status == 204 || status == 304 {
            return Ok(reply);
        }
        if reply.header("transfer-encoding") == Some("chunked") {
            while let Some(chunk) = self.chunk()? {
                reply.body.extend(chunk);
            }
        } else if let Some(length) = reply.header("content-length") {
            let length = length.parse().map_err(|_| bad(format!("content-length {length:?}")))?;
            reply.body = vec![0; length];
            self.stream.read_exact(&mut reply.body)?;
        } else {
            self.stream.read_to_end(&mut reply.body)?;
        }
        Ok(reply)
    }

    /// One chunk of a chunked body; none at its end.
    fn chunk(&mut self) -> io::Result<Option<Vec<u8>>> {
        let size_line = self.line()?;
        let size = usize::from_str_radix(&size_line, 16).map_err(|_| bad(format!("chunk size {size_line:?}")))?;
        let mut chunk = vec![0; size];
        self.stream.read_exact(&mut chunk)?;
        match self.line()?.is_empty() {
            true if size == 0 => Ok(None),
            true => Ok(Some(chunk)),
            false => Err(bad("a chunk without its end".to_string())),
        }
    }

    /// One line of a head or a stream, without its end.
    pub fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "closed"));
        }
        Ok(line.trim_end_matches(['\r', '\n']).to_string())
    }
}

fn bad(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("not JSON ({e}): {self}"))
    }

    pub fn body_text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// `error.code`: a string of the host's, a number of the server's.
    pub fn code(&self) -> Value {
        self.json()["error"]["code"].clone()
    }

    pub fn outcome(&self) -> Value {
        self.json()["error"]["data"]["outcome"].clone()
    }

    /// The first text block of a tool's result.
    pub fn text(&self) -> String {
        match self.json()["result"]["content"][0]["text"].as_str() {
            Some(text) => text.to_string(),
            None => panic!("no text in {self}"),
        }
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let body = String::from_utf8_lossy(&self.body);
        write!(f, "{} {}", self.status, body.chars().take(2000).collect::<String>())
    }
}
