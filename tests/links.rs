//! Links to external servers against real sockets of this machine: small servers that are good, and such as refuse, break off,
//! talk nonsense or too much. The driver is the loop's part of it, without a core: what the core would hear is collected.

use mio::{Events, Poll, Waker};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use stdiod::core::contract::Now;
use stdiod::ids::{CallId, InstanceId, ServerId, Uuid};
use stdiod::model::endpoint::{Endpoint, LinkFault, LinkFaultKind, Transport};
use stdiod::model::fault::{Code, Fault};
use stdiod::os::event_loop::token::EventSource;
use stdiod::os::links::{LinkEvent, Links};
use stdiod::os::net::outgoing::Outgoing;
use stdiod::os::net::outgoing::resolver::system_lookup;
use stdiod::sandbox::image::registry::proxy::Proxies;
use stdiod::shares::{Resource, Shares};

const LINK: InstanceId = InstanceId(1);

struct Driver {
    poll: Poll,
    links: Links,
    shares: Shares,
    started: Instant,
    seen: Vec<LinkEvent>,
}

impl Driver {
    fn connect(transport: Transport, url: &str) -> Driver {
        let poll = Poll::new().unwrap();
        let waker = Waker::new(poll.registry(), EventSource::Threads.token()).unwrap();
        let wake = Arc::new(move || waker.wake().unwrap());
        let outgoing = Outgoing::new(Proxies::of(|_| None).unwrap(), system_lookup(), wake);
        let links = Links::new(outgoing, [7; 32]);
        let mut driver = Driver { poll, links, shares: Shares::default(), started: Instant::now(), seen: Vec::new() };
        let endpoint = Endpoint {
            transport,
            url: url.to_string(),
            headers: vec![("X-Key".to_string(), "k".to_string())],
            tls_ca: None,
            auth: None,
            startup_ms: 2_000,
        };
        let (server, now) = (ServerId(Uuid::from_u128(1)), driver.now());
        driver.links.connect(LINK, server, Arc::new(endpoint), (&mut driver.shares, now));
        driver
    }

    fn http(port: u16) -> Driver {
        let mut driver = Driver::connect(Transport::Http, &format!("http://127.0.0.1:{port}/mcp"));
        driver.turn();
        assert_eq!(driver.seen, [LinkEvent::Connected], "messages may be written at once");
        driver
    }

    fn now(&self) -> Now {
        Now { mono_ms: self.started.elapsed().as_millis() as u64, unix_ms: 0 }
    }

    fn write(&mut self, message: &str, call: Option<u64>) {
        let now = self.now();
        let written = self.links.write(LINK, message.as_bytes(), call.map(CallId), (&mut self.shares, now));
        assert_eq!(written, Ok(()));
    }

    fn call(&mut self, id: u64) {
        self.write(
            &format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"t"}}}}"#),
            Some(id),
        );
    }

    fn initialize(&mut self) {
        self.write(r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#, Some(1));
        self.line();
        self.links.negotiated(LINK, "2025-11-25".to_string());
        self.write(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#, None);
    }

    fn turn(&mut self) {
        let mut events = Events::with_capacity(64);
        let timeout = if self.links.has_runnable() { Duration::ZERO } else { Duration::from_millis(10) };
        self.poll.poll(&mut events, Some(timeout)).unwrap();
        let now = self.now();
        for event in &events {
            match EventSource::of(event.token()) {
                EventSource::Outgoing(id) => self.links.woke(id, event, self.poll.registry(), now),
                EventSource::Threads => self.links.resolved(self.poll.registry(), now),
                other => panic!("{other:?}"),
            }
        }
        self.links.turn(self.poll.registry(), &mut self.shares, now);
        while let Some((instance, event)) = self.links.poll_event() {
            assert_eq!(instance, LINK);
            self.seen.push(event);
        }
    }

    #[track_caller]
    fn until<T>(&mut self, found: impl Fn(&LinkEvent) -> Option<T>) -> T {
        let patience = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(at) = self.seen.iter().position(|event| found(event).is_some()) {
                return found(&self.seen.remove(at)).unwrap();
            }
            assert!(Instant::now() < patience, "it did not come: {:?}", self.seen);
            self.turn();
        }
    }

    #[track_caller]
    fn line(&mut self) -> String {
        self.until(|event| match event {
            LinkEvent::Line(line) => Some(String::from_utf8(line.clone()).unwrap()),
            _ => None,
        })
    }

    #[track_caller]
    fn undelivered(&mut self, id: u64) -> Fault {
        self.until(|event| match event {
            LinkEvent::Undelivered { call, fault } if *call == CallId(id) => Some(fault.clone()),
            _ => None,
        })
    }

    #[track_caller]
    fn lost(&mut self) -> LinkFault {
        self.until(|event| match event {
            LinkEvent::Lost(why) => Some(why.clone()),
            _ => None,
        })
    }
}

// --- servers --------------------------------------------------------------------------------------------------------

/// A request as a server reads it.
struct Asked {
    line: String,
    headers: Vec<String>,
    body: String,
}

impl Asked {
    fn has(&self, header: &str) -> bool {
        self.headers.iter().any(|line| line.eq_ignore_ascii_case(header))
    }

    fn is(&self, method: &str) -> bool {
        self.body.contains(&format!("\"method\":\"{method}\""))
    }

    fn id(&self) -> &str {
        let rest = self.body.split("\"id\":").nth(1).unwrap_or("0");
        &rest[..rest.find(',').unwrap_or(rest.len())]
    }
}

fn read_request(reader: &mut impl BufRead) -> Option<Asked> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_string()),
        }
    }
    let length = lines.iter().find_map(|line| line.strip_prefix("Content-Length: ")).map_or(0, |n| n.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Asked { line: lines.remove(0), headers: lines, body: String::from_utf8(body).unwrap() })
}

/// Answers each request as `answer` says; an empty answer ends the connection.
fn server(answer: impl Fn(&Asked) -> String + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (answer, stream) = (Arc::clone(&answer), stream.unwrap());
            std::thread::spawn(move || serve(stream, &*answer));
        }
    });
    port
}

fn serve(mut stream: TcpStream, answer: &(dyn Fn(&Asked) -> String + Send + Sync)) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    while let Some(asked) = read_request(&mut reader) {
        let text = answer(&asked);
        if text.is_empty() || stream.write_all(text.as_bytes()).is_err() || text.contains("Connection: close") {
            return;
        }
    }
}

fn plain(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len())
}

fn json(body: &str) -> String {
    plain("200 OK", "Content-Type: application/json\r\n", body)
}

fn events(body: &str) -> String {
    plain("200 OK", "Content-Type: text/event-stream\r\n", body)
}

fn result(asked: &Asked) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, asked.id())
}

/// The handshake of a server with sessions; calls as `call` says.
fn with_session(call: impl Fn(&Asked) -> String + Send + Sync + 'static) -> u16 {
    server(move |asked| match asked {
        asked if asked.is("initialize") => {
            plain("200 OK", "Content-Type: application/json\r\nMcp-Session-Id: s1\r\n", &result(asked))
        }
        asked if asked.body.contains("notifications/") => plain("202 Accepted", "", ""),
        asked if asked.line.starts_with("GET") && !asked.has("Last-Event-ID: e1") => {
            plain("405 Method Not Allowed", "", "")
        }
        asked => call(asked),
    })
}

// --- what is good -----------------------------------------------------------------------------------------------------

#[test]
fn calls_are_answered_as_json_or_as_events_within_the_session_and_the_session_is_ended() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    let port = with_session(move |asked| {
        let session = asked.has("Mcp-Session-Id: s1") && asked.has("MCP-Protocol-Version: 2025-11-25");
        noted.lock().unwrap().push((asked.line.clone(), session && asked.has("X-Key: k")));
        match asked.id() {
            "2" => json(&result(asked)),
            _ => events(&format!(
                "data: {{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\"}}\n\ndata: {}\n\n",
                result(asked)
            )),
        }
    });
    let mut driver = Driver::http(port);
    driver.initialize();
    driver.call(2);
    assert!(driver.line().contains("\"id\":2"));
    driver.call(3);
    assert!(driver.line().contains("notifications/message") && driver.line().contains("\"id\":3"));
    let now = driver.now();
    driver.links.discard(LINK, (&mut driver.shares, now));
    let patience = Instant::now() + Duration::from_secs(5);
    while !driver.links.is_at_rest() && Instant::now() < patience {
        driver.turn();
    }
    let seen = seen.lock().unwrap().clone();
    let post = || ("POST /mcp HTTP/1.1".to_string(), true);
    assert_eq!(seen, [post(), post(), ("DELETE /mcp HTTP/1.1".to_string(), true)]);
    assert_eq!(driver.shares.taken(Resource::Lines), 0);
}

#[test]
fn a_stream_that_breaks_off_is_resumed_behind_its_last_event() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let port = with_session(move |asked| {
        if asked.line.starts_with("GET") {
            return events("data: {\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{}}\n\n");
        }
        counted.fetch_add(1, Ordering::SeqCst);
        events("id: e1\nretry: 20\ndata:\n\n")
    });
    let mut driver = Driver::http(port);
    driver.initialize();
    driver.call(2);
    assert!(driver.line().contains("\"id\":2"));
    assert_eq!(calls.load(Ordering::SeqCst), 1, "nothing is sent twice");
}

#[test]
fn a_redirect_within_the_origin_is_followed_and_no_other() {
    let port = server(|asked| match &*asked.line {
        "POST /mcp HTTP/1.1" => plain("307 Temporary Redirect", "Location: /mcp/\r\n", ""),
        _ => json(&result(asked)),
    });
    let mut driver = Driver::http(port);
    driver.call(2);
    assert!(driver.line().contains("\"id\":2"));
    let port = server(|_| plain("307 Temporary Redirect", "Location: http://127.0.0.2/mcp\r\n", ""));
    let mut driver = Driver::http(port);
    driver.call(2);
    assert_eq!(driver.undelivered(2).data["upstream_status"], 307);
}

#[test]
fn a_request_without_a_session_repeats_itself_in_headers() {
    let port = server(|asked| {
        let is = asked.has("Mcp-Method: tools/call")
            && asked.has("Mcp-Name: t")
            && asked.has("MCP-Protocol-Version: 2026-07-28");
        if is { json(&result(asked)) } else { plain("400 Bad Request", "", "") }
    });
    let mut driver = Driver::http(port);
    let meta = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}"#;
    let call = format!(r#"{{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{{"name":"t",{meta}}}}}"#);
    driver.write(&call, Some(2));
    assert!(driver.line().contains("\"id\":2"));
}

// --- what is not ------------------------------------------------------------------------------------------------------

#[test]
fn each_failure_of_a_call_has_its_code_and_says_whether_the_server_may_have_seen_it() {
    let large = "x".repeat(17 << 20);
    let rows: Vec<(&str, String, Code, &str)> = vec![
        ("401", plain("401 Unauthorized", "", ""), Code::UpstreamUnavailable, "not_sent"),
        ("403", plain("403 Forbidden", "", ""), Code::UpstreamUnavailable, "not_sent"),
        ("429", plain("429 Too Many", "Retry-After: 7\r\n", ""), Code::UpstreamUnavailable, "not_sent"),
        ("500", plain("500 Oops", "", ""), Code::UpstreamUnavailable, "sent_unknown"),
        ("reset", String::new(), Code::UpstreamUnavailable, "sent_unknown"),
        (
            "cut off",
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: 9\r\n\r\n{"
                .into(),
            Code::UpstreamUnavailable,
            "sent_unknown",
        ),
        ("html", plain("200 OK", "Content-Type: text/html\r\n", "<p>"), Code::BadServerOutput, "sent_unknown"),
        ("no reply", json(r#"{"jsonrpc":"2.0","id":9,"result":{}}"#), Code::BadServerOutput, "sent_unknown"),
        ("malformed event", events("data: {\n\n"), Code::BadServerOutput, "sent_unknown"),
        ("large event", events(&format!("data: {large}\n\n")), Code::ResponseTooLarge, "sent_unknown"),
        ("large body", json(&large), Code::ResponseTooLarge, "sent_unknown"),
    ];
    for (what, answer, code, outcome) in rows {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let port = server(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            answer.clone()
        });
        let mut driver = Driver::http(port);
        driver.call(2);
        let fault = driver.undelivered(2);
        assert_eq!((fault.code, &fault.data["outcome"]), (code, &outcome.into()), "{what}: {}", fault.message);
        assert_eq!(fault.retry_after_s, (what == "429").then_some(7));
        assert_eq!(calls.load(Ordering::SeqCst), 1, "{what}: nothing is sent twice");
        assert!(driver.links.owns(LINK), "{what}: the link is none the worse");
    }
}

#[test]
fn a_session_that_the_server_has_forgotten_is_lost() {
    let port = with_session(|_| plain("404 Not Found", "", ""));
    let mut driver = Driver::http(port);
    driver.initialize();
    driver.call(2);
    assert_eq!(driver.undelivered(2).data["outcome"], "not_sent");
    assert_eq!(driver.lost().kind, LinkFaultKind::SessionLost);
}

/// A server that has begun anew knows no session, and is found out by the stream that was listened on.
#[test]
fn a_forgotten_session_is_missed_while_nobody_calls_and_a_stream_that_never_was_is_not() {
    let asked_for = Arc::new(AtomicUsize::new(0));
    for streams in [0, 1] {
        let counted = Arc::clone(&asked_for);
        let port = server(move |asked| match asked {
            asked if asked.line.starts_with("GET") => match counted.fetch_add(1, Ordering::SeqCst) < streams {
                true => events("retry: 20\n\n"),
                false => plain("404 Not Found", "", ""),
            },
            asked if asked.is("initialize") => {
                plain("200 OK", "Content-Type: application/json\r\nMcp-Session-Id: s1\r\n", &result(asked))
            }
            asked if asked.body.contains("notifications/") => plain("202 Accepted", "", ""),
            asked => json(&result(asked)),
        });
        let mut driver = Driver::http(port);
        driver.initialize();
        if streams > 0 {
            assert_eq!(driver.lost().kind, LinkFaultKind::SessionLost);
            continue;
        }
        let patience = Instant::now() + Duration::from_secs(5);
        while asked_for.load(Ordering::SeqCst) == 0 && Instant::now() < patience {
            driver.turn();
        }
        assert_eq!(asked_for.swap(0, Ordering::SeqCst), 1, "it asked once whether it may listen");
        driver.call(2);
        assert!(driver.line().contains("\"id\":2"));
    }
}

#[test]
fn a_refused_handshake_and_a_port_where_nobody_is_lose_the_link() {
    let mut driver = Driver::http(server(|_| plain("401 Unauthorized", "", "")));
    driver.write(r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#, Some(1));
    assert_eq!(driver.lost().kind, LinkFaultKind::Unauthorized(401));
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut driver = Driver::http(port);
    driver.call(2);
    assert_eq!(driver.undelivered(2).data["outcome"], "not_sent");
    assert_eq!(driver.lost().kind, LinkFaultKind::Refused);
}

#[test]
fn a_call_that_is_cancelled_leaves_its_connection_and_others_go_on() {
    let port = with_session(|asked| match asked.id() {
        "2" => {
            std::thread::sleep(Duration::from_secs(5));
            String::new()
        }
        _ => json(&result(asked)),
    });
    let mut driver = Driver::http(port);
    driver.initialize();
    driver.call(2);
    driver.call(3);
    assert!(driver.line().contains("\"id\":3"));
    driver.write(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}"#, None);
    driver.call(4);
    assert!(driver.line().contains("\"id\":4"));
    assert!(!driver.seen.iter().any(|event| matches!(event, LinkEvent::Undelivered { .. })), "{:?}", driver.seen);
}

#[test]
fn a_websocket_that_does_not_open_in_time_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("ws://{}/mcp", listener.local_addr().unwrap());
    let mut driver = Driver::connect(Transport::WebSocket, &url);
    assert_eq!(driver.lost().kind, LinkFaultKind::Timeout);
}
