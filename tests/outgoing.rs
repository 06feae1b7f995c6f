//! Outgoing connections against real sockets of this machine: servers that refuse, reset, swallow, stall, and those that are
//! good, plain and with TLS, directly and through a proxy. The driver is the loop's part of it: a poll, a clock, nothing else.

use mio::{Events, Poll, Waker};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use stdiod::core::contract::Now;
use stdiod::ids::OutgoingId;
use stdiod::limits::{OUTGOING_CONNECT_TIMEOUT, UPSTREAM_BACKLOG_MAX, WRITE_TIMEOUT};
use stdiod::os::event_loop::token::EventSource;
use stdiod::os::net::outgoing::resolver::Lookup;
use stdiod::os::net::outgoing::{BacklogFull, Event, Outgoing, PlainProxy, Target, Why};
use stdiod::sandbox::image::registry::proxy::Proxies;
use stdiod::wire::http::url::Url;

// --- the driver -----------------------------------------------------------------------------------------------------

struct Driver {
    poll: Poll,
    outgoing: Outgoing,
    started: Instant,
    /// Added to the clock: a test need not wait for a deadline.
    skipped_ms: u64,
    minted: u64,
    seen: Vec<(OutgoingId, Event)>,
}

impl Driver {
    fn new() -> Driver {
        Driver::with(&[], Arc::new(names))
    }

    fn with(environment: &[(&str, &str)], lookup: Lookup) -> Driver {
        let poll = Poll::new().unwrap();
        let waker = Waker::new(poll.registry(), EventSource::Threads.token()).unwrap();
        let wake = Arc::new(move || waker.wake().unwrap());
        let variable = |name: &str| environment.iter().find(|(known, _)| *known == name).map(|(_, v)| v.to_string());
        let outgoing = Outgoing::new(Proxies::of(variable).unwrap(), lookup, wake);
        Driver { poll, outgoing, started: Instant::now(), skipped_ms: 0, minted: 0, seen: Vec::new() }
    }

    fn now(&self) -> Now {
        Now { mono_ms: self.started.elapsed().as_millis() as u64 + self.skipped_ms, unix_ms: 0 }
    }

    fn connect(&mut self, url: &str, tls_ca: Option<&Path>) -> OutgoingId {
        self.minted += 1;
        let id = OutgoingId(self.minted);
        let target = Target { url: Url::parse(url).unwrap(), tls_ca: tls_ca.map(Path::to_path_buf) };
        self.outgoing.connect(id, target, self.now());
        id
    }

    fn write(&mut self, id: OutgoingId, bytes: &[u8]) -> Result<(), BacklogFull> {
        self.outgoing.write(id, bytes.to_vec(), self.now())
    }

    fn turn(&mut self) {
        let mut events = Events::with_capacity(64);
        let timeout = if self.outgoing.has_runnable() { Duration::ZERO } else { Duration::from_millis(20) };
        self.poll.poll(&mut events, Some(timeout)).unwrap();
        let now = self.now();
        self.outgoing.serve_runnable(self.poll.registry(), now);
        for event in &events {
            match EventSource::of(event.token()) {
                EventSource::Outgoing(id) => self.outgoing.woke(id, event, self.poll.registry(), now),
                EventSource::Threads => self.outgoing.heard(self.poll.registry(), now),
                other => panic!("{other:?}"),
            }
        }
        self.outgoing.expire(self.poll.registry(), now);
        while let Some(event) = self.outgoing.poll_event() {
            self.seen.push(event);
        }
    }

    #[track_caller]
    fn until<T>(&mut self, what: &str, found: impl Fn(&Driver) -> Option<T>) -> T {
        let patience = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(it) = found(self) {
                return it;
            }
            assert!(Instant::now() < patience, "{what} did not come: {:?}", self.seen);
            self.turn();
        }
    }

    fn is_connected(&self, id: OutgoingId) -> bool {
        self.seen.iter().any(|(of, event)| *of == id && matches!(event, Event::Connected { .. }))
    }

    fn connected(&mut self, id: OutgoingId) -> PlainProxy {
        self.until("the connection", |driver| {
            let failed = driver.why(id);
            assert_eq!(failed, None);
            driver.seen.iter().find_map(|(of, event)| match event {
                Event::Connected { proxy } if *of == id => Some(proxy.clone()),
                _ => None,
            })
        })
    }

    fn why(&self, id: OutgoingId) -> Option<Why> {
        self.seen.iter().find_map(|(of, event)| match event {
            Event::Closed { why } if *of == id => Some(why.clone()),
            _ => None,
        })
    }

    fn closed(&mut self, id: OutgoingId) -> Why {
        let why = self.until("the end", |driver| driver.why(id));
        let ends = self.seen.iter().filter(|(of, event)| *of == id && matches!(event, Event::Closed { .. })).count();
        assert_eq!(ends, 1, "an end comes once");
        why
    }

    fn bytes(&self, id: OutgoingId) -> Vec<u8> {
        let of = |(of, event): &(OutgoingId, Event)| match event {
            Event::Bytes(bytes) if *of == id => bytes.clone(),
            _ => Vec::new(),
        };
        self.seen.iter().flat_map(of).collect()
    }

    /// One request and its answer.
    fn exchange(&mut self, id: OutgoingId) {
        self.write(id, b"ping").unwrap();
        self.until("the answer", |driver| driver.bytes(id).ends_with(b"pong").then_some(()));
    }

    /// As if so much time had passed.
    fn skip(&mut self, time: Duration) {
        self.skipped_ms += time.as_millis() as u64;
    }
}

/// The name server of the tests. `hangs.test` never answers.
fn names(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    match host {
        "hangs.test" => loop {
            std::thread::park();
        },
        "nowhere.test" => Err("no such name".to_string()),
        "empty.test" => Ok(Vec::new()),
        // One that refuses, then the good one.
        "two.test" => Ok(vec![SocketAddr::from(([127, 0, 0, 9], 1)), SocketAddr::from(([127, 0, 0, 1], port))]),
        "good.test" => Ok(vec![SocketAddr::from(([127, 0, 0, 1], port))]),
        address => Ok(vec![SocketAddr::new(address.parse().map_err(|_| "not an address".to_string())?, port)]),
    }
}

// --- servers --------------------------------------------------------------------------------------------------------

/// Runs `serve` for each connection, each on a thread of its own.
fn server(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (serve, stream) = (Arc::clone(&serve), stream.unwrap());
            std::thread::spawn(move || serve(stream));
        }
    });
    port
}

/// Answers each `ping` with a `pong`.
fn pong(mut stream: impl Read + Write) {
    let mut four = [0; 4];
    while stream.read_exact(&mut four).is_ok() {
        assert_eq!(&four, b"ping");
        stream.write_all(b"pong").and_then(|()| stream.flush()).unwrap();
    }
}

struct Certificates {
    directory: PathBuf,
}

impl Certificates {
    /// An authority, and a certificate of it for `good.test`.
    fn make(name: &str) -> Certificates {
        let directory = std::env::temp_dir().join(format!("stdiod-outgoing-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let openssl = |words: &str| {
            let out =
                std::process::Command::new("openssl").args(words.split(' ')).current_dir(&directory).output().unwrap();
            assert!(out.status.success(), "{words}: {}", String::from_utf8_lossy(&out.stderr));
        };
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
        openssl(&format!("req -x509 {key} -keyout ca.key -out ca.pem -days 2 -subj /CN=ca"));
        openssl(&format!("req {key} -keyout key.pem -out server.csr -subj /CN=good.test"));
        std::fs::write(directory.join("names"), "subjectAltName=DNS:good.test\n").unwrap();
        openssl(
            "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out cert.pem",
        );
        Certificates { directory }
    }

    fn ca(&self) -> PathBuf {
        self.directory.join("ca.pem")
    }

    fn config(&self) -> Arc<rustls::ServerConfig> {
        use rustls::pki_types::pem::PemObject;
        let certificates = rustls::pki_types::CertificateDer::pem_file_iter(self.directory.join("cert.pem")).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::from_pem_file(self.directory.join("key.pem")).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder =
            rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let certificates = certificates.map(Result::unwrap).collect();
        Arc::new(builder.with_no_client_auth().with_single_cert(certificates, key).unwrap())
    }

    fn server(
        &self,
        serve: impl Fn(rustls::StreamOwned<rustls::ServerConnection, TcpStream>) + Send + Sync + 'static,
    ) -> u16 {
        let config = self.config();
        server(move |stream| {
            let tls = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
            serve(rustls::StreamOwned::new(tls, stream));
        })
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Does what it is asked by CONNECT, and passes other requests on as they are; hands out the heads it was sent. All names
/// are of this machine.
fn proxy() -> (u16, Arc<Mutex<Vec<String>>>) {
    let heads = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&heads);
    let port = server(move |mut client| {
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            client.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        seen.lock().unwrap().push(head.clone());
        let to = head.split(' ').nth(1).unwrap();
        if head.starts_with("GET ") {
            return client.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
        }
        if to.starts_with("forbidden.test") {
            return client.write_all(b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n").unwrap();
        }
        let port = to.rsplit(':').next().unwrap().parse().unwrap();
        let server = TcpStream::connect(("127.0.0.1", port)).unwrap();
        client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").unwrap();
        let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut from, &mut to));
        let (mut from, mut to) = (server, client);
        _ = std::io::copy(&mut from, &mut to);
    });
    (port, heads)
}

// --- the tests ------------------------------------------------------------------------------------------------------

#[test]
fn bytes_go_both_ways_in_plain_and_by_the_second_address_if_the_first_refuses() {
    let port = server(pong);
    let mut driver = Driver::new();
    for host in ["127.0.0.1", "good.test", "two.test"] {
        let id = driver.connect(&format!("http://{host}:{port}/"), None);
        assert_eq!(driver.connected(id), PlainProxy::None);
        for _ in 0..3 {
            driver.exchange(id);
        }
        driver.outgoing.close(id);
    }
    assert!(driver.outgoing.is_empty());
}

#[test]
fn bytes_go_both_ways_through_tls_and_only_to_whom_the_authority_vouches_for() {
    let certificates = Certificates::make("tls");
    let port = certificates.server(pong);
    let ca = certificates.ca();
    let mut driver = Driver::new();
    let good = driver.connect(&format!("https://good.test:{port}/"), Some(&ca));
    driver.connected(good);
    driver.exchange(good);
    driver.exchange(good);
    let untrusted = driver.connect(&format!("https://good.test:{port}/"), None);
    assert!(matches!(driver.closed(untrusted), Why::Tls(why) if why.contains("certificate")));
    let another = driver.connect(&format!("https://two.test:{port}/"), Some(&ca));
    assert!(matches!(driver.closed(another), Why::Tls(why) if why.contains("certificate")), "of another name");
    let missing = driver.connect(&format!("https://good.test:{port}/"), Some(Path::new("/nonexistent")));
    assert!(matches!(driver.closed(missing), Why::Tls(why) if why.contains("/nonexistent")));
    let plain = driver.connect(
        &format!("https://good.test:{}/", server(|mut s| s.write_all(b"HTTP/1.1 400\r\n").unwrap())),
        Some(&ca),
    );
    assert!(matches!(driver.closed(plain), Why::Tls(_)));
    assert!(driver.is_connected(good) && !driver.is_connected(untrusted) && !driver.is_connected(another));
    driver.exchange(good);
}

#[test]
fn large_amounts_pass_whole_in_plain_and_through_tls() {
    let certificates = Certificates::make("large");
    let echo = |mut stream: Box<dyn ReadWrite>| {
        let mut buf = vec![0; 1 << 16];
        loop {
            match stream.read(&mut buf) {
                Ok(0) | Err(_) => return,
                Ok(n) => stream.write_all(&buf[..n]).and_then(|()| stream.flush()).unwrap(),
            }
        }
    };
    let plain = server(move |stream| echo(Box::new(stream)));
    let tls = certificates.server(move |stream| echo(Box::new(stream)));
    let mut driver = Driver::new();
    let ids = [
        driver.connect(&format!("http://good.test:{plain}/"), None),
        driver.connect(&format!("https://good.test:{tls}/"), Some(&certificates.ca())),
    ];
    let message: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    for id in ids {
        // Before it is connected, too.
        driver.write(id, &message).unwrap();
        driver.until("all of it", |driver| (driver.bytes(id).len() >= message.len()).then_some(()));
        assert!(driver.bytes(id) == message);
    }
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

#[test]
fn a_refusal_an_unknown_name_a_reset_and_an_end_are_told_apart() {
    let mut driver = Driver::new();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let refused = driver.connect(&format!("http://127.0.0.1:{free}/"), None);
    assert_eq!(driver.closed(refused), Why::Unreachable("connection refused".to_string()));
    let unknown = driver.connect("http://nowhere.test/", None);
    assert_eq!(driver.closed(unknown), Why::NotFound("no such name".to_string()));
    let empty = driver.connect("http://empty.test/", None);
    assert!(matches!(driver.closed(empty), Why::NotFound(_)));
    let ends = server(|mut stream| stream.write_all(b"bye").unwrap());
    let ended = driver.connect(&format!("http://good.test:{ends}/"), None);
    assert_eq!(driver.closed(ended), Why::Ended { clean: true });
    assert_eq!(driver.bytes(ended), b"bye", "what was said before the end is heard");
    let resets = server(|stream| {
        let linger = nix::libc::linger { l_onoff: 1, l_linger: 0 };
        nix::sys::socket::setsockopt(&stream, nix::sys::socket::sockopt::Linger, &linger).unwrap();
    });
    let reset = driver.connect(&format!("http://good.test:{resets}/"), None);
    let why = driver.closed(reset);
    // A reset may be quicker than the news of the connection.
    let reset = "connection reset by peer".to_string();
    assert!(why == Why::Lost(reset.clone()) || why == Why::Unreachable(reset), "{why:?}");
}

#[test]
fn tls_that_is_cut_off_is_no_clean_end() {
    let certificates = Certificates::make("cut");
    let cut = certificates.server(|mut stream| {
        stream.write_all(b"half").and_then(|()| stream.flush()).unwrap();
    });
    let clean = certificates.server(|mut stream| {
        stream.write_all(b"all").unwrap();
        stream.conn.send_close_notify();
        stream.flush().unwrap();
    });
    let mut driver = Driver::new();
    for (port, said, end) in [(cut, &b"half"[..], false), (clean, b"all", true)] {
        let id = driver.connect(&format!("https://good.test:{port}/"), Some(&certificates.ca()));
        let why = driver.closed(id);
        assert!(why == Why::Ended { clean: end } || (!end && matches!(why, Why::Lost(_))), "{why:?}");
        assert_eq!(driver.bytes(id), said);
    }
}

#[test]
fn a_resolver_that_hangs_costs_its_own_connection_only() {
    let port = server(pong);
    let mut driver = Driver::new();
    let hanging: Vec<OutgoingId> = (0..20).map(|_| driver.connect("http://hangs.test/", None)).collect();
    let began = Instant::now();
    let good = driver.connect(&format!("http://good.test:{port}/"), None);
    driver.connected(good);
    driver.exchange(good);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert!(hanging.iter().all(|id| driver.why(*id).is_none()));
    driver.skip(OUTGOING_CONNECT_TIMEOUT);
    for id in hanging {
        assert_eq!(driver.closed(id), Why::TimedOut("looking up its name"));
    }
    driver.exchange(good);
}

#[test]
fn an_address_that_swallows_packets_and_a_handshake_that_stalls_end_in_time() {
    // Nobody accepts, and the queue is full: what comes then is dropped without a word.
    let listener = socket2_listener();
    let full = listener.local_addr().unwrap().port();
    let filling: Vec<_> =
        (0..4).map(|_| mio::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap()).collect();
    std::thread::sleep(Duration::from_millis(100));
    let greeted = Arc::new(Mutex::new(false));
    let heard = Arc::clone(&greeted);
    let stalls = server(move |mut stream| {
        let mut buf = [0; 100];
        while stream.read(&mut buf).is_ok_and(|read| read > 0) {
            *heard.lock().unwrap() = true;
        }
    });
    let mut driver = Driver::new();
    let swallowed = driver.connect(&format!("http://127.0.0.1:{full}/"), None);
    let stalled = driver.connect(&format!("https://good.test:{stalls}/"), None);
    let good = driver.connect(&format!("http://good.test:{}/", server(pong)), None);
    driver.connected(good);
    let until = Instant::now() + Duration::from_millis(500);
    while Instant::now() < until {
        driver.exchange(good);
    }
    // To read the system's roots takes a while on a busy machine.
    driver.until("the first words of TLS", |_| greeted.lock().unwrap().then_some(()));
    assert_eq!((driver.why(swallowed), driver.why(stalled)), (None, None));
    driver.skip(OUTGOING_CONNECT_TIMEOUT);
    assert_eq!(driver.closed(swallowed), Why::TimedOut("connecting"));
    assert_eq!(driver.closed(stalled), Why::TimedOut("the TLS handshake"));
    driver.exchange(good);
    drop(filling);
}

/// With the shortest queue there is.
fn socket2_listener() -> TcpListener {
    use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, listen, socket};
    let fd = socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None).unwrap();
    bind(std::os::fd::AsRawFd::as_raw_fd(&fd), &SockaddrIn::new(127, 0, 0, 1, 0)).unwrap();
    listen(&fd, Backlog::new(0).unwrap()).unwrap();
    TcpListener::from(fd)
}

#[test]
fn a_proxy_is_passed_through_for_https_and_asked_for_http() {
    let certificates = Certificates::make("proxy");
    let upstream = certificates.server(pong);
    let (port, heads) = proxy();
    let address = format!("http://user:pass@127.0.0.1:{port}");
    let environment = [("HTTPS_PROXY", address.as_str()), ("HTTP_PROXY", &address), ("NO_PROXY", "direct.test")];
    // Only the proxy's own address is looked up: names of servers are its business.
    let lookup =
        |host: &str, port| if host == "127.0.0.1" { names(host, port) } else { Err(format!("asked for {host}")) };
    let mut driver = Driver::with(&environment, Arc::new(lookup));
    let secure = driver.connect(&format!("https://good.test:{upstream}/"), Some(&certificates.ca()));
    assert_eq!(driver.connected(secure), PlainProxy::None);
    driver.exchange(secure);
    let plain = driver.connect("http://plain.test/", None);
    let PlainProxy::Asked { login } = driver.connected(plain) else { panic!("it is asked itself") };
    assert_eq!(login.as_deref(), Some("Basic dXNlcjpwYXNz"));
    driver.write(plain, b"GET http://plain.test/ HTTP/1.1\r\nHost: plain.test\r\n\r\n").unwrap();
    driver.until("the answer", |driver| driver.bytes(plain).ends_with(b"ok").then_some(()));
    let refused = driver.connect("https://forbidden.test/", None);
    assert_eq!(driver.closed(refused), Why::Proxy("it answers 403".to_string()));
    let direct = driver.connect("https://direct.test/", None);
    assert_eq!(driver.closed(direct), Why::NotFound("asked for direct.test".to_string()));
    let heads = heads.lock().unwrap();
    let expected =
        format!("CONNECT good.test:{upstream} HTTP/1.1\r\nHost: good.test:{upstream}\r\nProxy-Authorization: Basic ");
    assert!(heads[0].starts_with(&expected), "{heads:?}");
    assert!(!format!("{:?}", driver.seen).contains("dXNlcjpwYXNz"), "no login in what may be logged");
}

#[test]
fn what_a_server_does_not_take_is_bounded_and_ends_the_connection_in_time() {
    let port = server(|stream| {
        std::thread::sleep(Duration::from_secs(60));
        drop(stream);
    });
    let mut driver = Driver::new();
    let id = driver.connect(&format!("http://good.test:{port}/"), None);
    driver.connected(id);
    let piece = vec![b'x'; 1 << 20];
    let mut written = 0;
    while driver.write(id, &piece).is_ok() {
        written += piece.len();
        driver.turn();
        assert!(written < 4 * UPSTREAM_BACKLOG_MAX);
    }
    assert_eq!(driver.why(id), None);
    driver.skip(WRITE_TIMEOUT);
    assert_eq!(driver.closed(id), Why::Stalled);
    assert_eq!(driver.write(id, b"x"), Ok(()), "one that is gone takes everything, and nothing comes of it");
}

#[test]
fn a_server_is_held_back_while_its_bytes_are_not_wanted() {
    let sent = Arc::new(Mutex::new(0));
    let counter = Arc::clone(&sent);
    let port = server(move |mut stream| {
        stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while Instant::now() < until && *counter.lock().unwrap() < 64 << 20 {
            match stream.write(&[b'x'; 1 << 16]) {
                Ok(n) => *counter.lock().unwrap() += n,
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(_) => return,
            }
        }
    });
    let mut driver = Driver::new();
    let id = driver.connect(&format!("http://good.test:{port}/"), None);
    driver.outgoing.want_bytes(id, false);
    driver.connected(id);
    for _ in 0..50 {
        driver.turn();
    }
    assert!(driver.bytes(id).is_empty() && *sent.lock().unwrap() < 64 << 20);
    driver.outgoing.want_bytes(id, true);
    driver.until("bytes", |driver| (!driver.bytes(id).is_empty()).then_some(()));
    let in_a_turn = driver.seen.iter().map(|(_, event)| if let Event::Bytes(b) = event { b.len() } else { 0 }).max();
    assert!(in_a_turn.unwrap() <= 160 << 10, "a turn's share: {in_a_turn:?}");
    driver.outgoing.close(id);
    driver.seen.clear();
    driver.turn();
    assert!(driver.seen.is_empty() && driver.outgoing.is_empty(), "nothing is heard of what was closed");
}
