//! A proxy in front of the daemon: what it says of its clients is believed if it is configured, and nobody else's word.

use crate::support::{BASE, Daemon, eventually};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, socket};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

const PROXY: [u8; 4] = [127, 0, 0, 1];
const STRANGER: [u8; 4] = [127, 0, 0, 9];
/// Of one address that has shown no token.
const CONNECTIONS_MAX: usize = 8;

fn from(source: [u8; 4], daemon: &Daemon) -> TcpStream {
    let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
    let [a, b, c, d] = source;
    bind(socket.as_raw_fd(), &SockaddrIn::new(a, b, c, d, 0)).expect("an address of loopback");
    let to: SocketAddrV4 = daemon.address().parse().expect("IPv4");
    connect(socket.as_raw_fd(), &SockaddrIn::from(to)).expect("it listens");
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
    stream
}

/// The status of the answer; none if the connection is over.
fn ask(mut stream: &TcpStream, line: &str, fields: &str) -> Option<u16> {
    let request = format!("{line} HTTP/1.1\r\nHost: 127.0.0.1:8480\r\nConnection: close\r\n{fields}\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.split(' ').nth(1)?.parse().ok()
}

fn daemon() -> Daemon {
    let limit = CONNECTIONS_MAX.to_string();
    Daemon::with("STDIOD_TRUSTED_PROXIES", "127.0.0.1,10.0.0.0/8")
        .variable("STDIOD_PEER_CONNECTIONS_MAX", limit)
        .start()
}

#[test]
fn the_audit_log_names_the_client_that_a_configured_proxy_names() {
    let daemon = daemon();
    let told = "X-Forwarded-For: 6.6.6.6, 192.0.2.7, 10.0.0.2\r\n";
    let token = format!("Authorization: Bearer {}\r\n", daemon.token());
    for source in [PROXY, STRANGER] {
        assert_eq!(ask(&from(source, &daemon), &format!("GET {BASE}"), told), Some(401));
    }
    assert_eq!(ask(&from(PROXY, &daemon), "DELETE /api/v1/tokens/ci2", &format!("{token}{told}")), Some(404));
    assert_eq!(ask(&from(PROXY, &daemon), &format!("GET {BASE}/none"), "X-Forwarded-For: unknown\r\n"), Some(401));
    let mut lines: Vec<Value> = Vec::new();
    let all = eventually(Duration::from_secs(20), || {
        lines = daemon.get("/api/v1/audit?limit=100").json().as_array().expect("lines").clone();
        lines.iter().any(|line| line["type"] == "token.revoke")
            && lines.iter().filter(|line| line["outcome"] == "denied").count() == 3
    });
    assert!(all, "{lines:#?}");
    let of = |is: &dyn Fn(&Value) -> bool| -> Vec<String> {
        let sources = lines.iter().filter(|line| is(line)).map(|line| line["source"].as_str().expect("a source"));
        sources.map(|source| source.rsplit_once(':').expect("a port").0.to_string()).collect()
    };
    let mut denied = of(&|line| line["outcome"] == "denied");
    denied.sort();
    assert_eq!(denied, ["127.0.0.1", "127.0.0.9", "192.0.2.7 via 127.0.0.1"], "{lines:#?}");
    assert_eq!(of(&|line| line["type"] == "token.revoke"), ["192.0.2.7 via 127.0.0.1"], "{lines:#?}");
}

#[test]
fn the_host_that_a_configured_proxy_names_is_ours_and_another_ones_is_not() {
    let daemon = daemon();
    let fields = format!(
        "Authorization: Bearer {}\r\nAccept: text/event-stream\r\nOrigin: https://mcp.example.test\r\n\
         X-Forwarded-Host: mcp.example.test\r\n",
        daemon.token()
    );
    let foreign = fields.replace("Host: mcp.example", "Host: other.example");
    assert_eq!(ask(&from(PROXY, &daemon), "GET /mcp/none", &fields), Some(400), "it has no session, and is let in");
    assert_eq!(ask(&from(PROXY, &daemon), "GET /mcp/none", &foreign), Some(403));
    assert_eq!(ask(&from(STRANGER, &daemon), "GET /mcp/none", &fields), Some(403), "anybody can write that");
}

#[test]
fn connections_of_a_configured_proxy_are_not_those_of_one_address() {
    let daemon = daemon();
    let open =
        |source: [u8; 4]| -> Vec<TcpStream> { (0..5 * CONNECTIONS_MAX).map(|_| from(source, &daemon)).collect() };
    let (proxied, strange) = (open(PROXY), open(STRANGER));
    let answered = |all: &[TcpStream]| all.iter().filter(|one| ask(one, "GET /healthz", "") == Some(200)).count();
    assert_eq!(answered(&proxied), proxied.len());
    assert!(answered(&strange) <= CONNECTIONS_MAX, "the oldest have made room");
}
