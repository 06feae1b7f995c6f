//! External servers for tests: a small one of our own that counts what reaches it, a proxy in front of it that fails as it is
//! told, and programs that others wrote. All of them listen on loopback, and end with the value that stands for them.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// One HTTP request, whole.
#[derive(Clone, Debug)]
pub struct Asked {
    pub head: String,
    pub body: String,
}

impl Asked {
    pub fn read(reader: &mut impl BufRead) -> Option<Asked> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).ok()? == 0 {
                return None;
            }
        }
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().expect("a length"))
        });
        let mut body = vec![0; length.unwrap_or(0)];
        reader.read_exact(&mut body).ok()?;
        Some(Asked { head, body: String::from_utf8(body).expect("UTF-8") })
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or(Value::Null)
    }

    /// The tool that is called, if one is.
    pub fn tool(&self) -> Option<String> {
        let message = self.json();
        let is_call = message["method"] == "tools/call";
        is_call.then(|| message["params"]["name"].as_str().expect("a name").to_string())
    }
}

pub fn answer(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len())
}

fn serve(each: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let each = Arc::new(each);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let each = Arc::clone(&each);
            std::thread::spawn(move || each(stream));
        }
    });
    address
}

// --- a server that counts -----------------------------------------------------------------------------------------------

/// An MCP server over Streamable HTTP with sessions: each of its tools answers with its own name.
pub struct Upstream {
    pub address: SocketAddr,
    calls: Arc<Mutex<BTreeMap<String, usize>>>,
    /// Sessions that were begun.
    pub sessions: Arc<AtomicUsize>,
}

impl Upstream {
    pub fn with_tools(tools: &[&str]) -> Upstream {
        let calls: Arc<Mutex<BTreeMap<String, usize>>> = Arc::default();
        let sessions = Arc::new(AtomicUsize::new(0));
        let list: Vec<Value> =
            tools.iter().map(|name| json!({"name": name, "inputSchema": {"type": "object"}})).collect();
        let (counted, begun) = (Arc::clone(&calls), Arc::clone(&sessions));
        let address = serve(move |mut stream| {
            let mut reader = BufReader::new(stream.try_clone().expect("a second handle"));
            while let Some(asked) = Asked::read(&mut reader) {
                if let Some(tool) = asked.tool() {
                    *counted.lock().expect("not poisoned").entry(tool).or_default() += 1;
                }
                let answered = Upstream::answer(&asked, &list, &begun);
                if stream.write_all(answered.as_bytes()).is_err() {
                    return;
                }
            }
        });
        Upstream { address, calls, sessions }
    }

    fn answer(asked: &Asked, tools: &[Value], sessions: &AtomicUsize) -> String {
        let message = asked.json();
        let result = match message["method"].as_str() {
            _ if !asked.head.starts_with("POST") => return answer("405 Method Not Allowed", "", ""),
            Some("initialize") => {
                let session = sessions.fetch_add(1, Ordering::SeqCst);
                let info = json!({"name": "upstream", "version": "1"});
                let result =
                    json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info});
                let body = json!({"jsonrpc": "2.0", "id": message["id"], "result": result}).to_string();
                let headers = format!("Content-Type: application/json\r\nMcp-Session-Id: s{session}\r\n");
                return answer("200 OK", &headers, &body);
            }
            Some(method) if method.starts_with("notifications/") => return answer("202 Accepted", "", ""),
            Some("tools/list") => json!({"tools": tools}),
            Some("tools/call") => json!({"content": [{"type": "text", "text": message["params"]["name"]}]}),
            Some("ping") => json!({}),
            _ => return answer("400 Bad Request", "", ""),
        };
        let body = json!({"jsonrpc": "2.0", "id": message["id"], "result": result}).to_string();
        answer("200 OK", "Content-Type: application/json\r\n", &body)
    }

    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    /// How often this tool was called.
    pub fn calls(&self, tool: &str) -> usize {
        self.calls.lock().expect("not poisoned").get(tool).copied().unwrap_or(0)
    }
}

// --- a proxy that fails -------------------------------------------------------------------------------------------------

/// What becomes of a call of the tool of the same name. Any other request passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Before the upstream hears of it.
    ResetAtOnce,
    Status(&'static str, &'static str),
    /// After it has.
    ResetInMidAnswer,
    Hang,
    ByteASecond,
    WrongType,
    MalformedEvents,
    HugeEvent,
}

pub struct FaultProxy {
    pub address: SocketAddr,
}

impl FaultProxy {
    pub fn before(upstream: SocketAddr, failures: &'static [(&'static str, Failure)]) -> FaultProxy {
        let address = serve(move |mut stream| {
            let mut reader = BufReader::new(stream.try_clone().expect("a second handle"));
            while let Some(asked) = Asked::read(&mut reader) {
                let tool = asked.tool();
                let failure = failures.iter().find(|(name, _)| tool.as_deref() == Some(*name)).map(|(_, how)| *how);
                let Some(failure) = failure else {
                    let Some(answered) = FaultProxy::pass_on(upstream, &asked) else { return };
                    if stream.write_all(answered.as_bytes()).is_err() {
                        return;
                    }
                    continue;
                };
                if !FaultProxy::fail(&mut stream, failure, upstream, &asked) {
                    return;
                }
            }
        });
        FaultProxy { address }
    }

    fn pass_on(upstream: SocketAddr, asked: &Asked) -> Option<String> {
        let mut to = TcpStream::connect(upstream).ok()?;
        to.write_all(asked.head.as_bytes()).ok()?;
        to.write_all(asked.body.as_bytes()).ok()?;
        let answered = Asked::read(&mut BufReader::new(to))?;
        Some(answered.head + &answered.body)
    }

    /// True: the connection goes on.
    fn fail(stream: &mut TcpStream, failure: Failure, upstream: SocketAddr, asked: &Asked) -> bool {
        let events = |body: &str| format!("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n{body}");
        let reset = |stream: &TcpStream| {
            nix::sys::socket::setsockopt(
                stream,
                nix::sys::socket::sockopt::Linger,
                &nix::libc::linger { l_onoff: 1, l_linger: 0 },
            )
            .expect("a reset instead of an end");
        };
        match failure {
            Failure::ResetAtOnce => {
                reset(stream);
                return false;
            }
            Failure::Status(status, headers) => {
                return stream.write_all(answer(status, headers, "").as_bytes()).is_ok();
            }
            Failure::ResetInMidAnswer
            | Failure::Hang
            | Failure::ByteASecond
            | Failure::WrongType
            | Failure::MalformedEvents
            | Failure::HugeEvent => {}
        }
        let answered = FaultProxy::pass_on(upstream, asked).unwrap_or_default();
        match failure {
            Failure::ResetInMidAnswer => {
                _ = stream.write_all(&answered.as_bytes()[..answered.len() - 5]);
                // It is to arrive before the reset does.
                std::thread::sleep(Duration::from_millis(50));
                reset(stream);
                false
            }
            Failure::Hang => {
                _ = stream.read(&mut [0]);
                false
            }
            Failure::ByteASecond => {
                for byte in answered.bytes() {
                    if stream.write_all(&[byte]).is_err() {
                        break;
                    }
                    std::thread::sleep(Duration::from_secs(1));
                }
                false
            }
            Failure::WrongType => {
                stream.write_all(answer("200 OK", "Content-Type: text/html\r\n", "<p>no</p>").as_bytes()).is_ok()
            }
            Failure::MalformedEvents => {
                _ = stream.write_all(events("event: message\ndata: {\"jsonrpc\": oops\n\n").as_bytes());
                false
            }
            Failure::HugeEvent => {
                let piece = vec![b'x'; 1 << 20];
                let began = stream.write_all(events("data: \"").as_bytes());
                let all = (0..100).try_fold(began, |_, _| Ok::<_, std::io::Error>(stream.write_all(&piece)));
                _ = all;
                false
            }
            Failure::ResetAtOnce | Failure::Status(..) => unreachable!("done above"),
        }
    }

    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }
}

/// A proxy that is asked for a way through (`CONNECT`), or by requests that name the whole address. Notes what it was asked.
pub struct ConnectProxy {
    pub address: SocketAddr,
    pub asked: Arc<Mutex<Vec<String>>>,
}

impl ConnectProxy {
    pub fn start() -> ConnectProxy {
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let noted = Arc::clone(&asked);
        let address = serve(move |mut client| {
            let mut reader = BufReader::new(client.try_clone().expect("a second handle"));
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                if reader.read_line(&mut head).unwrap_or(0) == 0 {
                    return;
                }
            }
            let line = head.lines().next().unwrap_or_default().to_string();
            noted.lock().expect("not poisoned").push(line.clone());
            let target = line.split(' ').nth(1).expect("a target");
            // Names are the proxy's business: all of them are this machine.
            let connect = |authority: &str| {
                let port = authority.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(80);
                TcpStream::connect(("127.0.0.1", port))
            };
            if line.starts_with("CONNECT ") {
                let Ok(server) = connect(target) else { return };
                client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").expect("it listens");
                relay(client, server);
            } else {
                // The whole address stands in the request; the server gets the path alone.
                let rest = target.strip_prefix("http://").expect("a whole address");
                let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
                let Ok(mut server) = connect(authority) else { return };
                let head = head.replacen(target, path, 1);
                server.write_all(head.as_bytes()).expect("it listens");
                server.write_all(reader.buffer()).expect("it listens");
                relay(client, server);
            }
        });
        ConnectProxy { address, asked }
    }
}

pub fn relay(a: TcpStream, b: TcpStream) {
    let copy = |mut from: TcpStream, mut to: TcpStream| {
        _ = std::io::copy(&mut from, &mut to);
        _ = to.shutdown(Shutdown::Write);
    };
    let back = (b.try_clone().expect("a second handle"), a.try_clone().expect("a second handle"));
    std::thread::spawn(move || copy(back.0, back.1));
    copy(a, b);
}

// --- programs that others wrote -------------------------------------------------------------------------------------------

/// A port that nobody listens on, until somebody else takes it.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port()
}

/// A server in a process group of its own, which ends with this value.
pub struct Program {
    process: Child,
    pub port: u16,
}

impl Program {
    pub fn start(mut command: Command, port: u16) -> Program {
        let shown = format!("{command:?}");
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().unwrap_or_else(|e| panic!("{shown}: {e}; see scripts/setup --tests"));
        let mut program = Program { process, port };
        // An interpreter that reads many modules for the first time, on a busy machine.
        let patience = Instant::now() + Duration::from_secs(180);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(program.process.try_wait().expect("it is ours").is_none(), "it has ended: {shown}");
            assert!(Instant::now() < patience, "it does not listen: {shown}");
            std::thread::sleep(Duration::from_millis(50));
        }
        program
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let group = nix::unistd::Pid::from_raw(self.process.id().cast_signed());
        _ = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
        _ = self.process.wait();
    }
}
