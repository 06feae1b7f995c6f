//! An MCP client with nothing hidden: it posts messages, reads plain answers and streams of events, and can lose its
//! connection when a test wants that. Knows both eras; panics rather than waits for ever.

use super::{Daemon, SOON};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

pub const STATELESS: &str = "2026-07-28";

/// One client with a session.
pub struct McpClient<'d> {
    daemon: &'d Daemon,
    pub path: String,
    pub session: Option<String>,
    pub version: String,
    pub token: String,
}

/// One HTTP exchange whose body is read piece by piece.
pub struct Exchange {
    stream: BufReader<TcpStream>,
    pub status: u16,
    pub headers: Vec<(String, String)>,
    chunked: bool,
    pending: Vec<u8>,
    over: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Event {
    pub id: Option<String>,
    pub data: String,
}

impl Event {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.data).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
}

impl<'d> McpClient<'d> {
    /// Not yet initialized.
    pub fn new(daemon: &'d Daemon, path: &str) -> McpClient<'d> {
        McpClient {
            daemon,
            path: path.to_string(),
            session: None,
            version: "2025-11-25".to_string(),
            token: daemon.token().to_string(),
        }
    }

    pub fn connect(daemon: &'d Daemon, path: &str, capabilities: Value) -> McpClient<'d> {
        let mut client = McpClient::new(daemon, path);
        let answer = client.initialize(capabilities);
        assert!(answer["result"]["protocolVersion"].is_string(), "{answer}");
        client
    }

    pub fn initialize(&mut self, capabilities: Value) -> Value {
        let info = json!({"name": "test", "version": "1"});
        let params = json!({"protocolVersion": self.version, "capabilities": capabilities, "clientInfo": info});
        let exchange = self.post(&json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}));
        self.session = exchange.header("mcp-session-id").map(str::to_string);
        let answer = exchange.answer(0);
        if self.session.is_some() {
            let told = self.post(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
            assert_eq!(told.status, 202);
        }
        answer
    }

    pub fn post(&self, message: &Value) -> Exchange {
        self.post_with(message, "application/json, text/event-stream", &[])
    }

    pub fn post_with(&self, message: &Value, accept: &str, more: &[(&str, &str)]) -> Exchange {
        let mut head = self.head("POST", accept);
        for (name, value) in more {
            head += &format!("{name}: {value}\r\n");
        }
        let body = message.to_string();
        let text = format!("{head}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        Exchange::open(self.daemon.address(), &text)
    }

    pub fn get(&self, last_event_id: Option<&str>) -> Exchange {
        let mut head = self.head("GET", "text/event-stream");
        if let Some(id) = last_event_id {
            head += &format!("Last-Event-ID: {id}\r\n");
        }
        Exchange::open(self.daemon.address(), &format!("{head}\r\n"))
    }

    pub fn delete(&self) -> Exchange {
        Exchange::open(self.daemon.address(), &format!("{}\r\n", self.head("DELETE", "*/*")))
    }

    fn head(&self, method: &str, accept: &str) -> String {
        let (address, token) = (self.daemon.address(), &self.token);
        let mut head = format!("{method} {} HTTP/1.1\r\nHost: {address}\r\nAccept: {accept}\r\n", self.path);
        head += &format!("Authorization: Bearer {token}\r\n");
        if let Some(session) = &self.session {
            head += &format!("Mcp-Session-Id: {session}\r\nMCP-Protocol-Version: {}\r\n", self.version);
        }
        head
    }

    pub fn request(&self, id: impl Into<Value>, method: &str, params: Value) -> Exchange {
        self.post(&json!({"jsonrpc": "2.0", "id": id.into(), "method": method, "params": params}))
    }

    pub fn ask(&self, method: &str, params: Value) -> Value {
        self.request(1, method, params).answer(1)
    }

    pub fn tool(&self, name: &str, arguments: Value) -> Value {
        self.ask("tools/call", json!({"name": name, "arguments": arguments}))
    }

    /// A request of the version without sessions.
    pub fn stateless(&self, method: &str, mut params: Value, capabilities: Value) -> Exchange {
        let name = params.get("name").or(params.get("uri")).and_then(Value::as_str).unwrap_or_default().to_string();
        params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!(STATELESS);
        params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = capabilities;
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let headers = [("MCP-Protocol-Version", STATELESS), ("Mcp-Method", method), ("Mcp-Name", &name)];
        let more = if name.is_empty() { &headers[..2] } else { &headers[..] };
        self.post_with(&message, "application/json, text/event-stream", more)
    }
}

impl Exchange {
    fn open(address: &str, request: &str) -> Exchange {
        let mut socket = TcpStream::connect(address).expect("connect");
        socket.set_read_timeout(Some(SOON)).expect("a timeout");
        socket.write_all(request.as_bytes()).expect("sent");
        let mut stream = BufReader::new(socket);
        let mut line = String::new();
        stream.read_line(&mut line).expect("a status line");
        let status = line.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("{line:?}"));
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).expect("a header");
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_string()));
        }
        let chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
        Exchange { stream, status, headers, chunked, pending: Vec::new(), over: false }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn is_stream(&self) -> bool {
        self.header("content-type") == Some("text/event-stream")
    }

    /// The whole body of an answer that is no stream.
    pub fn body(&mut self) -> Vec<u8> {
        let length = self.header("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).expect("a body");
        body
    }

    /// The next event that carries something; none: the stream has ended.
    pub fn event(&mut self) -> Option<Event> {
        loop {
            if let Some(at) = self.pending.windows(2).position(|pair| pair == b"\n\n") {
                let text = String::from_utf8(self.pending.drain(..at + 2).collect()).expect("UTF-8");
                let mut event = Event::default();
                for line in text.lines() {
                    match line.split_once(": ") {
                        Some(("id", id)) => event.id = Some(id.to_string()),
                        Some(("data", data)) => event.data += data,
                        Some(_) | None => {}
                    }
                }
                if event != Event::default() {
                    return Some(event);
                }
                continue;
            }
            if self.over || !self.more() {
                return None;
            }
        }
    }

    fn more(&mut self) -> bool {
        if !self.chunked {
            let mut piece = [0; 4096];
            let n = self.stream.read(&mut piece).expect("a piece");
            self.pending.extend(&piece[..n]);
            return n > 0;
        }
        let mut size = String::new();
        if self.stream.read_line(&mut size).expect("a chunk") == 0 {
            return false;
        }
        let size = usize::from_str_radix(size.trim(), 16).expect("a chunk's size");
        let mut chunk = vec![0; size + 2];
        self.stream.read_exact(&mut chunk).expect("a chunk");
        self.pending.extend(&chunk[..size]);
        self.over = size == 0;
        !self.over
    }

    /// The next event with a message.
    pub fn message(&mut self) -> Option<Value> {
        loop {
            let event = self.event()?;
            if !event.data.is_empty() {
                return Some(event.json());
            }
        }
    }

    /// The answer to a request, plain or on a stream; what comes before it is dropped.
    pub fn answer(mut self, id: impl Into<Value>) -> Value {
        self.answer_and(id).1
    }

    /// Everything that came before the answer, and the answer.
    pub fn answer_and(&mut self, id: impl Into<Value>) -> (Vec<Value>, Value) {
        let id = id.into();
        if !self.is_stream() {
            let body = self.body();
            let answer: Value = serde_json::from_slice(&body)
                .unwrap_or_else(|e| panic!("{} {e}: {}", self.status, String::from_utf8_lossy(&body)));
            return (Vec::new(), answer);
        }
        let mut before = Vec::new();
        while let Some(message) = self.message() {
            if message["id"] == id && message.get("method").is_none() {
                return (before, message);
            }
            before.push(message);
        }
        panic!("the stream ended without an answer; before: {before:?}");
    }
}

/// The text of a tool's answer.
pub fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"))
}
