//! External servers whose name is never answered, whose address swallows packets, and whose TLS handshake stalls: each of them
//! costs its own link only. Beside them a hosted server and another external one go on as if they were not there.

use crate::support::upstream::Upstream;
use crate::support::{Daemon, python};
use serde_json::json;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

const PROJECT: &str = "/api/v1/projects/stalls/mcp";
/// On loopback, and nobody else's.
const NAME_SERVER: &str = "127.23.71.5:53";
const ECHO: &str = r#"
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if 'id' in asked:
        print(json.dumps({'jsonrpc': '2.0', 'id': asked['id'], 'result': {'tools': [], 'content': [],
            'protocolVersion': '2025-11-25', 'capabilities': {}, 'serverInfo': {'name': 'e', 'version': '1'}}}), flush=True)
"#;

/// A listener whose queue of connections is full: the kernel drops whoever else wants to connect.
struct Swallower {
    listener: TcpListener,
    _queued: Vec<TcpStream>,
}

impl Swallower {
    fn new() -> Swallower {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        // SAFETY: the descriptor is the listener's.
        assert_eq!(unsafe { nix::libc::listen(listener.as_raw_fd(), 0) }, 0);
        let address = listener.local_addr().expect("an address");
        let mut queued = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(300)) {
            queued.push(stream);
            assert!(queued.len() < 64, "it swallows nothing");
        }
        Swallower { listener, _queued: queued }
    }

    fn port(&self) -> u16 {
        self.listener.local_addr().expect("an address").port()
    }
}

#[test]
fn a_silent_name_server_a_silent_address_and_a_stalled_handshake_hold_up_nobody_else() {
    let silence = UdpSocket::bind(NAME_SERVER).expect("port 53 of an address of ours");
    let swallower = Swallower::new();
    // The kernel accepts for it; it never says a word.
    let mute = TcpListener::bind("127.0.0.1:0").expect("a port");
    let good = Upstream::with_tools(&["fine"]);
    let resolv = nix::unistd::mkdtemp("/tmp/resolv-XXXXXX").expect("a directory in /tmp").join("resolv.conf");
    std::fs::write(&resolv, "nameserver 127.23.71.5\noptions timeout:30 attempts:2\n").expect("our file");
    let covered = format!("mount --bind {} /etc/resolv.conf && exec \"$@\"", resolv.display());
    let daemon = Daemon::with("STDIOD_LOG", "info").under(&["unshare", "--mount", "sh", "-c", &covered, "sh"]).start();
    daemon.register(&python("hosted", "crun", ECHO));
    let mute_port = mute.local_addr().expect("an address").port();
    for (name, url) in [
        ("nameless", "http://nobody.test/mcp".to_string()),
        ("swallowed", format!("http://127.0.0.1:{}/mcp", swallower.port())),
        ("mute", format!("https://127.0.0.1:{mute_port}/mcp")),
        ("good", good.url()),
    ] {
        let row = json!({"name": name, "transport": "http", "url": url});
        let reply = daemon.request("POST", &format!("{PROJECT}/servers"), Some(&row));
        assert_eq!(reply.status, 201, "{reply}");
    }
    let call = |server: &str, timeout_ms: u64| {
        let body = json!({"name": "fine", "server": server, "timeout_ms": timeout_ms});
        daemon.request("POST", &format!("{PROJECT}/tools/call"), Some(&body))
    };
    assert_eq!(call("good", 15_000).status, 200, "{}", daemon.log_tail());
    std::thread::scope(|scope| {
        let stalled =
            ["nameless", "swallowed", "mute"].map(|server| scope.spawn(move || (server, call(server, 4_000))));
        let until = Instant::now() + Duration::from_secs(3);
        let (mut calls, mut slowest) = (0, Duration::ZERO);
        while Instant::now() < until {
            let began = Instant::now();
            let hosted = daemon.call("hosted", "tools/call", &json!({"name": "fine"}));
            assert_eq!(hosted.status, 200, "{hosted}");
            assert_eq!(call("good", 15_000).status, 200);
            slowest = slowest.max(began.elapsed());
            calls += 1;
        }
        assert!(calls > 20 && slowest < Duration::from_secs(2), "{calls} calls, the slowest took {slowest:?}");
        for waiting in stalled {
            let (server, reply) = waiting.join().expect("it is answered");
            assert_eq!(reply.outcome(), json!("not_sent"), "{server}: {reply}");
        }
    });
    let mut buffer = [0; 512];
    silence.set_nonblocking(true).expect("ours");
    assert!(silence.recv(&mut buffer).is_ok(), "the name server was asked");
    std::fs::remove_dir_all(resolv.parent().expect("a directory")).expect("ours");
}
