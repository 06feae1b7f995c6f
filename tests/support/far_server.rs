//! An MCP server that the test runs beside the daemon, as somebody else's: it counts what reaches it. Ended with its owner.

use super::http::Http;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

const FAR_SERVER: &str = include_str!("../fixtures/far_server.py");
const FAR_PROGRAM: &str = include_str!("../fixtures/far_program.py");

pub struct FarServer {
    process: Child,
    port: u16,
}

impl FarServer {
    pub fn start() -> FarServer {
        FarServer::at(0)
    }

    fn at(port: u16) -> FarServer {
        let mut process = Command::new("/usr/bin/python3")
            .args(["-c", FAR_SERVER, &port.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let mut line = String::new();
        let mut said = BufReader::new(process.stdout.take().expect("a pipe"));
        said.read_line(&mut line).expect("its port");
        FarServer { process, port: line.trim().parse().expect("a port") }
    }

    /// SIGKILL: all its connections are gone, and nobody listens where it did.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Once more at the same port, after `kill`; it counts from zero.
    pub fn start_again(&mut self) {
        *self = FarServer::at(self.port);
    }

    /// Where it speaks this transport.
    pub fn url(&self, transport: &str) -> String {
        let (scheme, path) = match transport {
            "ws" => ("ws", "ws"),
            "sse" => ("http", "sse"),
            _ => ("http", "mcp"),
        };
        format!("{scheme}://127.0.0.1:{}/{path}", self.port)
    }

    /// The definition of it as an external server. Over `stdio` that is a program in a sandbox which passes everything on, and
    /// is gone as soon as this is; it has to be allowed the network of the host.
    pub fn definition(&self, name: &str, transport: &str) -> Value {
        if transport == "stdio" {
            let args = ["-c", FAR_PROGRAM, &self.port.to_string()];
            return json!({"name": name, "transport": "stdio", "command": "python3", "args": args, "network": "host"});
        }
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
        self.kill();
    }
}
