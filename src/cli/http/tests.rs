//! The client against servers that are honest, slow, broken or gone.

use super::*;
use crate::cli::trust::Trust;
use crate::limits::CLIENT_HEAD_MAX;
use std::io::BufRead;
use std::net::TcpListener;
use std::thread::JoinHandle;

const QUICK: Duration = Duration::from_secs(5);

fn get(path: &str) -> Request<'_> {
    Request { method: "GET", path, accept: "application/json", body: None, more: &[], patience: QUICK }
}

/// A peer that takes one request, answers with the given pieces, and hands back what it was sent.
fn peer(pieces: Vec<Vec<u8>>) -> (Target, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let served = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut asked = read_request(&mut stream);
        if let Some(proof) = proof_for(&asked, "sesame", &stream) {
            stream.write_all(answer_with(&proof).as_bytes()).unwrap();
            asked = read_request(&mut stream);
        }
        for piece in pieces {
            stream.write_all(&piece).unwrap();
            std::thread::sleep(Duration::from_millis(2));
        }
        asked
    });
    (Target::Tcp { host: "127.0.0.1".to_string(), port, tls: false }, served)
}

/// What a daemon that knows this token says, if `asked` is the question whether it does.
fn proof_for(asked: &str, token: &str, stream: &TcpStream) -> Option<String> {
    let (_, query) = asked.strip_prefix("GET ")?.split_once(' ')?.0.split_once(&format!("{}?token=", proof::PATH))?;
    let (_, nonce) = query.split_once("&nonce=")?;
    let hash = auth::hash(token.as_bytes());
    let challenge = Challenge::new(&hash, proof::bytes(nonce)?);
    assert!(challenge.target().ends_with(query), "it is the token's id");
    Some(challenge.answer(&hash, &proof::address(stream.local_addr().unwrap())))
}

fn answer_with(proof: &str) -> String {
    let body = format!(r#"{{"proof":"{proof}"}}"#);
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

fn read_request(stream: &mut impl Read) -> String {
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
            if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                return text;
            }
        }
        let read = stream.read(&mut piece).unwrap();
        assert!(read > 0, "the client hung up: {text}");
        bytes.extend_from_slice(&piece[..read]);
    }
}

fn ask(answer: &[u8]) -> Result<Answer, HttpError> {
    let (target, served) = peer(vec![answer.to_vec()]);
    let got = Client::new(target, None, Trust::default()).send(&get("/x"));
    served.join().unwrap();
    got
}

#[test]
fn a_request_carries_host_token_and_length() {
    let (target, served) = peer(vec![b"HTTP/1.1 204 No Content\r\n\r\n".to_vec()]);
    let authority = target.authority();
    let client = Client::new(target, Some("sesame".to_string()), Trust::default());
    let answer = client.send(&Request { method: "POST", body: Some(b"{}"), ..get("/a%20b?c=d") }).unwrap();
    assert_eq!((answer.head.status, answer.body.len()), (204, 0));
    let asked = served.join().unwrap();
    assert!(asked.starts_with("POST /a%20b?c=d HTTP/1.1\r\n"), "{asked}");
    for line in
        [&format!("Host: {authority}"), "Authorization: Bearer sesame", "Content-Length: 2", "Connection: close"]
    {
        assert!(asked.contains(&format!("{line}\r\n")), "{line} in {asked}");
    }
    assert!(asked.ends_with("\r\n\r\n{}"));
}

#[test]
fn bodies_of_all_three_framings_are_read() {
    let length = ask(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Y: z\r\n\r\nhellotrailing").unwrap();
    assert_eq!(length.body, b"hello");
    assert_eq!(length.head.header("x-y"), Some("z"));
    let chunked =
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;ext=1\r\nhel\r\n2\r\nlo\r\n0\r\nT: x\r\n\r\n";
    assert_eq!(ask(chunked).unwrap().body, b"hello");
    assert_eq!(ask(b"HTTP/1.1 200 OK\r\n\r\nhello").unwrap().body, b"hello");
    assert_eq!(ask(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").unwrap().head.status, 404);
}

#[test]
fn an_answer_does_not_depend_on_where_its_bytes_are_split() {
    let whole = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\nA\r\nlo, world!\r\n0\r\n\r\n";
    for step in [1, 2, 7] {
        let (target, served) = peer(whole.chunks(step).map(<[u8]>::to_vec).collect());
        let answer = Client::new(target, None, Trust::default()).send(&get("/")).unwrap();
        assert_eq!((answer.head.status, answer.body.as_slice()), (200, b"hello, world!".as_slice()), "step {step}");
        served.join().unwrap();
    }
}

#[test]
fn a_stream_is_read_while_it_is_written() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let served = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        read_request(&mut stream);
        stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nfirst\n\r\n").unwrap();
        gone.recv().unwrap();
        stream.write_all(b"7\r\nsecond\n\r\n0\r\n\r\n").unwrap();
    });
    let client = Client::new(Target::Tcp { host: "127.0.0.1".to_string(), port, tls: false }, None, Trust::default());
    let mut lines = client.open(&get("/")).unwrap().body.lines();
    assert_eq!(lines.next().unwrap().unwrap(), "first");
    go.send(()).unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "second");
    assert!(lines.next().is_none());
    served.join().unwrap();
}

#[test]
fn a_broken_answer_is_an_error_and_never_a_panic() {
    for (answer, why) in [
        (b"".as_slice(), "closed"),
        (b"HTTP/1.1 200 OK\r\nContent-", "cut off"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "not HTTP/1.1"),
        (b"\x00\xff\xfe\n\n", "not HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: ten\r\n\r\n", "no number"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort", "in the middle"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "no size"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel", "in the middle"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhello\r\n", "where it says"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n", "no size"),
    ] {
        let said = ask(answer).expect_err("broken").to_string();
        assert!(said.contains(why), "{}: {said}", String::from_utf8_lossy(answer));
    }
    let endless = [b"HTTP/1.1 200 OK\r\nX: ".as_slice(), &vec![b'a'; CLIENT_HEAD_MAX + 10]].concat();
    assert!(ask(&endless).unwrap_err().to_string().contains("longer than"));
}

#[test]
fn a_silent_daemon_is_given_up_after_the_patience() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let client = Client::new(
        Target::Tcp { host: "127.0.0.1".to_string(), port, tls: false },
        Some("sesame".to_string()),
        Trust::default(),
    );
    let patience = Duration::from_millis(50);
    let error = client.send(&Request { patience, ..get("/") }).unwrap_err();
    assert!(matches!(error, HttpError::TimedOut { .. }), "{error}");
    assert!(!format!("{error} {error:?}").contains("sesame"));
}

#[test]
fn where_nobody_listens_the_error_says_how_to_start_a_daemon() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let client = Client::new(Target::Tcp { host: "127.0.0.1".to_string(), port, tls: false }, None, Trust::default());
    let said = client.send(&get("/")).unwrap_err().to_string();
    assert_eq!(said, format!("no daemon answers at http://127.0.0.1:{port} (is `stdiod serve` running?)"));
    let client = Client::new(Target::Unix("/nonexistent/s.sock".into()), None, Trust::default());
    assert!(client.send(&get("/")).unwrap_err().to_string().contains("unix:/nonexistent/s.sock"));
}

#[test]
fn addresses_are_read_and_written_back() {
    for url in ["http://127.0.0.1:8480", "http://[::1]:8480", "http://stdiod.example:80", "unix:/run/s.sock"] {
        assert_eq!(Target::parse(url).unwrap().to_string(), url);
    }
    assert_eq!(Target::parse("http://h/").unwrap().to_string(), "http://h:80");
    assert_eq!(Target::parse("https://h/").unwrap().to_string(), "https://h:443");
    for (url, local) in
        [("http://[::1]:1", true), ("http://localhost", true), ("http://10.0.0.1", false), ("unix:/s", true)]
    {
        assert_eq!(Target::parse(url).unwrap().is_local(), local, "{url}");
    }
    for wrong in ["https://", "h:80", "http://", "http://h/path", "http://u:p@h", "http://h:x", "unix:", "http://a b"] {
        assert!(Target::parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn the_control_socket_comes_first_then_other_unix_sockets_that_let_us_in_then_tcp() {
    let scratch = nix::unistd::mkdtemp("/tmp/sd-way-XXXXXX").unwrap();
    let (control, other) = (scratch.join("control.sock"), scratch.join("s"));
    let way = |listen: &str| {
        let pairs = [
            ("STDIOD_INSECURE_HTTP", "true".to_string()),
            ("STDIOD_LISTEN", listen.to_string()),
            ("STDIOD_DATA_DIR", scratch.display().to_string()),
        ];
        let variables = pairs.into_iter().map(|(name, value)| (name.to_string(), value)).collect();
        Target::of(
            &Config::parse(None, &crate::config::Surroundings { variables, root: true, secret_key_credential: None })
                .unwrap(),
        )
        .to_string()
    };
    let both = format!("127.0.0.1:1,unix:{}", other.display());
    let alone = format!("unix:{}", other.display());
    assert_eq!(way(&both), "http://127.0.0.1:1", "the socket is not there");
    assert_eq!(way(&alone), alone, "there is no other way, so its error is the one to tell");
    assert_eq!(way("0.0.0.0:1,127.0.0.1:2"), "http://127.0.0.1:1", "a wildcard means this machine");
    assert_eq!(way("[::]:1"), "http://[::1]:1");
    let listener = std::os::unix::net::UnixListener::bind(&other).unwrap();
    assert_eq!(way(&both), alone);
    let _control = std::os::unix::net::UnixListener::bind(&control).unwrap();
    assert_eq!(way(&both), format!("unix:{}", control.display()));
    drop((listener, std::fs::remove_dir_all(&scratch).unwrap()));
}

#[test]
fn whoever_does_not_prove_that_it_knows_the_token_does_not_get_it() {
    let other = format!("{{\"proof\":\"{}\"}}", "0".repeat(64));
    for (status, body, doubt) in [
        ("200 OK", other.as_str(), Doubt::NotShown),
        ("200 OK", "{}", Doubt::NotShown),
        ("200 OK", "[[[[", Doubt::NotShown),
        ("200 OK", r#"{"proof":["é"]}"#, Doubt::NotShown),
        ("204 No Content", "", Doubt::NotShown),
        ("302 Found", "", Doubt::NotShown),
        ("404 Not Found", "", Doubt::NotShown),
        ("401 Unauthorized", "", Doubt::Unknown),
        ("503 Service Unavailable", "", Doubt::NotNow),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        let served = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut heard = read_request(&mut stream);
            stream.write_all(answer.as_bytes()).unwrap();
            stream.read_to_string(&mut heard).unwrap();
            heard
        });
        let client = Client::new(
            Target::Tcp { host: "127.0.0.1".to_string(), port, tls: false },
            Some("sesame".to_string()),
            Trust::default(),
        );
        let error = client.send(&Request { method: "POST", body: Some(b"secret"), ..get("/") }).unwrap_err();
        assert!(
            matches!(&error, HttpError::Unproven { doubt: told, .. } if *told == doubt),
            "{status} {body}: {error}"
        );
        assert!(error.to_string().starts_with("the token was not sent: http://127.0.0.1:"), "{error}");
        let heard = served.join().unwrap();
        assert!(heard.starts_with(&format!("GET {}?", proof::PATH)), "{heard}");
        assert!(!heard.contains("sesame") && !heard.contains("secret") && !heard.contains("Bearer"), "{heard}");
    }
    for answer in [b"".as_slice(), b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let served = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            read_request(&mut stream);
            stream.write_all(answer).unwrap();
        });
        let client = Client::new(
            Target::Tcp { host: "127.0.0.1".to_string(), port, tls: false },
            Some("sesame".to_string()),
            Trust::default(),
        );
        let error = client.send(&get("/")).unwrap_err();
        assert!(matches!(error, HttpError::Unproven { doubt: Doubt::NotShown, .. }), "{error}");
        served.join().unwrap();
    }
}
