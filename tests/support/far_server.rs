//! An MCP server that the test runs beside the daemon, as somebody else's: it counts what reaches it. Ended with its owner.

use super::http::Http;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

const FAR_SERVER: &str = include_str!("../fixtures/far_server.py");

pub struct FarServer {
    process: Child,
    port: u16,
}

impl FarServer {
    pub fn start() -> FarServer {
        let mut process = Command::new("/usr/bin/python3")
            .args(["-c", FAR_SERVER])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let mut line = String::new();
        let mut said = BufReader::new(process.stdout.take().expect("a pipe"));
        said.read_line(&mut line).expect("its port");
        FarServer { process, port: line.trim().parse().expect("a port") }
    }

    /// Where it speaks Streamable HTTP, or where its old stream is.
    pub fn url(&self, transport: &str) -> String {
        let path = if transport == "sse" { "sse" } else { "mcp" };
        format!("http://127.0.0.1:{}/{path}", self.port)
    }

    /// The definition of it as an external server.
    pub fn definition(&self, name: &str, transport: &str) -> Value {
        json!({"name": name, "transport": transport, "url": self.url(transport)})
    }

    fn http(&self) -> Http {
        Http::connect(&format!("127.0.0.1:{}", self.port), "")
    }

    /// What has reached it.
    pub fn counts(&self) -> Value {
        self.http().request("GET", "/counts", None).json()
    }

    pub fn count(&self, what: &str) -> u64 {
        self.counts()[what].as_u64().unwrap_or(0)
    }

    /// `good`, `refuse`, `silent` or `cut`.
    pub fn mode(&self, mode: &str) {
        let reply = self.http().request("POST", "/mode", Some(&json!(mode)));
        assert_eq!(reply.status, 204, "{reply}");
    }
}

impl Drop for FarServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
