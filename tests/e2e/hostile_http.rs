//! Ten thousand requests that no client would send. The daemon must refuse or answer each one, close what it cannot trust,
//! and be none the heavier for it. A failure prints the request and the seed that makes it again (SEED=…).

use crate::support::world::weight_of;
use crate::support::{BASE, Daemon, Http, eventually};
use serde_json::json;
use std::time::Duration;
use stdiod::limits::{BODY_MAX, SHARE_MEMORY};

const REQUESTS: u64 = 10_000;
const CLIENTS: u64 = 8;
/// An allocator keeps what it once needed; a leak of one request's buffers would be ten times this.
const GROWTH_MAX: u64 = 24 << 20;

#[test]
fn ten_thousand_malformed_requests_are_refused_and_leave_nothing_behind() {
    let daemon = Daemon::start();
    let seed: u64 = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_260_217);
    let seeds = originals(daemon.token());
    // The first ones fill the caches that are there to stay.
    storm(&daemon, &seeds, seed ^ 0xdead, REQUESTS / 10);
    let settled = |limit: usize| eventually(Duration::from_secs(20), || weight_of(daemon.pid()).0 <= limit);
    let idle = weight_of(daemon.pid()).0;
    assert!(settled(idle));
    let (fds, resident) = weight_of(daemon.pid());

    storm(&daemon, &seeds, seed, REQUESTS);

    assert!(settled(fds), "file descriptors: {fds} before, {} after", weight_of(daemon.pid()).0);
    let now = weight_of(daemon.pid()).1;
    assert!(now < resident + GROWTH_MAX, "resident: {resident} before, {now} after");
    assert_eq!(daemon.get("/healthz").status, 200);
    assert_eq!(daemon.get(BASE).status, 200);
    assert!(!daemon.log_contains("panicked"), "{}", daemon.log_tail());
}

/// Large bodies that come slowly, more of them than there is memory for.
#[test]
fn bodies_that_never_end_cannot_fill_the_memory_and_hurt_nobody_else() {
    const SENT: usize = 7 << 20;
    let daemon = Daemon::start();
    let before = weight_of(daemon.pid()).1;
    let body = large_call(SENT + 1000);
    let fitting = SHARE_MEMORY.principal / BODY_MAX;
    let mut slow: Vec<Http> = Vec::new();
    for _ in 0..fitting + 12 {
        let mut http = daemon.http();
        http.send_raw(post(&daemon, "/nobody/call", daemon.token(), body.len()).as_bytes()).expect("it is listening");
        http.send_raw(&body.as_bytes()[..SENT]).expect("it reads, whether it keeps it or not");
        slow.push(http);
    }
    let grown = weight_of(daemon.pid()).1.saturating_sub(before);
    assert!(grown < SHARE_MEMORY.principal as u64 + GROWTH_MAX, "the daemon has grown by {grown}");
    // Others are served meanwhile; one that sends hundreds of requests at once is, or is told why not.
    assert_eq!(daemon.get(BASE).status, 200);
    let mut last = Vec::new();
    for (size, times) in [(1 << 20, 20), (128 << 10, 20), (40 << 10, 80)] {
        for _ in 0..times {
            let mut http = daemon.http();
            http.send_raw(post(&daemon, "/nobody/call", daemon.token(), BODY_MAX).as_bytes()).expect("it listens");
            http.send_raw(&body.as_bytes()[..size]).expect("it reads, whether it keeps it or not");
            last.push(http);
        }
    }
    let mut eager = daemon.http();
    let healthz = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
    eager.send_raw(healthz.repeat(4000).as_bytes()).expect("it is listening");
    assert!([200, 503].contains(&eager.read_reply(false).expect("an answer").status));
    drop(last);
    assert_eq!(daemon.call("nobody", "tools/list", &serde_json::json!({})).status, 404);

    let (mut refused, mut answered) = (0, 0);
    for mut http in slow {
        http.send_raw(&body.as_bytes()[SENT..]).expect("it still reads");
        let reply = http.read_reply(false).expect("an answer");
        match reply.status {
            503 => {
                assert_eq!(reply.code(), "overloaded", "{reply}");
                assert!(reply.header("retry-after").is_some() && reply.header("connection") == Some("close"));
                refused += 1;
            }
            _ => {
                assert_eq!((reply.status, reply.code()), (404, "not_found".into()), "{reply}");
                answered += 1;
            }
        }
    }
    assert!(refused >= 8 && answered >= fitting / 2, "{refused} refused, {answered} answered");
    // All of it was given back.
    let reply = daemon.http().request_text("POST", &format!("{BASE}/nobody/call"), &body);
    assert_eq!(reply.status, 404, "{reply}");
}

/// It sends everything before it reads anything, as many clients do.
#[test]
fn a_refusal_reaches_a_client_that_is_still_sending() {
    let daemon = Daemon::start();
    let exchange = |head: &str, piece: &[u8], pieces: usize| {
        let mut http = Http::connect(daemon.address(), "");
        http.send_raw(head.as_bytes()).expect("it listens");
        for _ in 0..pieces {
            http.send_raw(piece).expect("it goes on listening");
        }
        let reply = http.read_reply(false).expect("the answer is not lost");
        assert_eq!(reply.header("connection"), Some("close"));
        assert_eq!(http.read_to_close().expect("a close"), b"");
        (reply.status, reply.code())
    };
    let mib = vec![b' '; 1 << 20];
    let with_length = post(&daemon, "", daemon.token(), 100 << 20);
    assert_eq!(exchange(&with_length, &mib, 100), (413, "payload_too_large".into()));
    let chunked = with_length.replace(&format!("Content-Length: {}", 100 << 20), "Transfer-Encoding: chunked");
    let chunk = [b"100000\r\n", mib.as_slice(), b"\r\n"].concat();
    assert_eq!(exchange(&chunked, &chunk, 40), (413, "payload_too_large".into()));
    let wrong = post(&daemon, "", "wrong", BODY_MAX);
    assert_eq!(exchange(&wrong, &mib, 8), (401, "unauthorized".into()));
    let spaced = with_length.replace("Host:", "Host :");
    assert_eq!(exchange(&spaced, &mib, 20), (400, "invalid_request".into()));
}

#[test]
fn a_call_whose_body_is_too_long_says_that_it_was_not_sent() {
    let daemon = Daemon::start();
    for (path, outcome) in [("/nobody/call", json!("not_sent")), ("", json!(null))] {
        let mut http = Http::connect(daemon.address(), "");
        http.send_raw(post(&daemon, path, daemon.token(), BODY_MAX + 1).as_bytes()).expect("it listens");
        let reply = http.read_reply(false).expect("an answer");
        assert_eq!((reply.status, &reply.json()["error"]["data"]["outcome"]), (413, &outcome), "{path}: {reply}");
    }
}

#[test]
fn whoever_may_not_ask_is_told_before_the_body() {
    let daemon = Daemon::start();
    for path in ["", "/nobody/call", "/nobody/mcp", "/nobody/patch"] {
        let head = post(&daemon, path, "wrong", BODY_MAX);
        let expected = if path == "/nobody/patch" { "404 Not Found" } else { "401 Unauthorized" };
        for expect in ["", "Expect: 100-continue\r\n"] {
            let mut http = Http::connect(daemon.address(), "");
            http.send_raw(head.replace("\r\n\r\n", &format!("\r\n{expect}\r\n")).as_bytes()).expect("it listens");
            assert_eq!(http.line().expect("an answer, not an invitation"), format!("HTTP/1.1 {expected}"));
        }
    }
    let mut http = Http::connect(daemon.address(), "");
    let head = post(&daemon, "/nobody/call", daemon.token(), BODY_MAX);
    http.send_raw(head.replace("\r\n\r\n", "\r\nExpect: 100-continue\r\n\r\n").as_bytes()).expect("it listens");
    assert_eq!(http.line().expect("an invitation"), "HTTP/1.1 100 Continue");
}

/// The head of a request that has a body.
fn post(daemon: &Daemon, path: &str, token: &str, length: usize) -> String {
    format!(
        "POST {BASE}{path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n",
        daemon.address()
    )
}

/// A valid call of this length.
fn large_call(length: usize) -> String {
    let (head, tail) = (r#"{"method":"x","params":{"text":""#, r#""}}"#);
    format!("{head}{}{tail}", "x".repeat(length - head.len() - tail.len()))
}

fn storm(daemon: &Daemon, originals: &[Vec<u8>], seed: u64, requests: u64) {
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || {
                for n in (client..requests).step_by(CLIENTS as usize) {
                    let mut dice = Dice(seed.wrapping_add(n));
                    let original = &originals[dice.below(originals.len())];
                    let request = mutate(original.clone(), &mut dice);
                    let answer = exchange(daemon, &request);
                    if let Err(why) = check(answer.as_deref().map_err(String::as_str)) {
                        panic!(
                            "SEED={} {why}\nrequest: {:?}",
                            seed.wrapping_add(n),
                            request.escape_ascii().to_string()
                        );
                    }
                }
            });
        }
    });
}

/// Sends it, says that nothing follows, and takes all that comes.
fn exchange(daemon: &Daemon, request: &[u8]) -> Result<Vec<u8>, String> {
    let mut http = Http::connect(daemon.address(), "");
    // It may be refused and closed before it is all sent.
    let _ = http.send_raw(request);
    http.end_of_requests();
    http.read_to_close().map_err(|e| format!("neither an answer nor a close: {e}"))
}

/// Nothing at all (the request was not whole), or answers that are HTTP and no fault of the daemon's.
fn check(answer: Result<&[u8], &str>) -> Result<(), String> {
    let answer = answer?;
    if answer.is_empty() {
        return Ok(());
    }
    let shown = || answer[..answer.len().min(300)].escape_ascii().to_string();
    let status =
        answer.strip_prefix(b"HTTP/1.1 ").and_then(|rest| std::str::from_utf8(rest.get(..3)?).ok()?.parse().ok());
    match status {
        Some(100 | 200..=204 | 400..=431 | 501 | 505) => Ok(()),
        Some(status) => Err(format!("status {status}: {}", shown())),
        None => Err(format!("no status line: {}", shown())),
    }
}

/// Requests that are right before they are spoilt. None of them can start a server or change one.
fn originals(token: &str) -> Vec<Vec<u8>> {
    let head = format!("Host: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n");
    let json = "Content-Type: application/json\r\n";
    let call = r#"{"method":"tools/call","params":{"name":"x","arguments":{"text":"\u00e9"}},"timeout_ms":100}"#;
    let requests = [
        format!("GET /healthz HTTP/1.1\r\n{head}\r\n"),
        format!("GET {BASE}?status=ready HTTP/1.1\r\n{head}Accept: application/json\r\n\r\n"),
        format!("GET {BASE}/nobody/logs?tail=5 HTTP/1.1\r\n{head}\r\nGET /readyz HTTP/1.1\r\n{head}\r\n"),
        format!("HEAD http://localhost{BASE} HTTP/1.1\r\n{head}Connection: keep-alive\r\n\r\n"),
        format!("POST {BASE}/nobody/call HTTP/1.1\r\n{head}{json}Content-Length: {}\r\n\r\n{call}", call.len()),
        format!(
            "POST {BASE}/nobody/call HTTP/1.1\r\n{head}{json}Transfer-Encoding: chunked\r\n\r\n{:x};a=b\r\n{call}\r\n0\r\n\r\n",
            call.len()
        ),
        format!(
            "POST {BASE} HTTP/1.1\r\n{head}{json}Expect: 100-continue\r\nContent-Length: 15\r\n\r\n{{\"name\": \"Bad\"}}"
        ),
        format!("DELETE {BASE}/nobody?volumes=true HTTP/1.0\r\n{head}\r\n"),
    ];
    requests.into_iter().map(String::into_bytes).collect()
}

/// One to four things that attackers and broken clients do.
fn mutate(mut request: Vec<u8>, dice: &mut Dice) -> Vec<u8> {
    const NASTY: &[&[u8]] = &[
        b"\0",
        b"\r",
        b"\n",
        b"\r\n",
        b"\r\n\r\n",
        b" ",
        b"\t",
        b":",
        b",",
        b"\x7f",
        b"\x80\xff",
        b"%00",
        b"%zz",
        b"%",
        b"/../",
        b"Content-Length: 5\r\n",
        b"Content-Length: -1\r\n",
        b"Content-Length: 18446744073709551616\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: identity\r\n",
        b"Host: other\r\n",
        b" folded\r\n",
        b"Expect: magic\r\n",
        b"Connection: close\r\n",
        b"Upgrade: h2c\r\n",
        b"ffffffffffffffff\r\n",
        b"0\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        b"GET / HTTP/1.1\r\n",
    ];
    for _ in 0..1 + dice.below(4) {
        if request.is_empty() {
            request.push(b'G');
        }
        let at = dice.below(request.len());
        let end = at + dice.below((request.len() - at).min(40)) + 1;
        match dice.below(9) {
            0 => request[at] = dice.next() as u8,
            1 => request[at] ^= 1 << dice.below(8),
            2 => drop(request.drain(at..end)),
            3 => {
                let piece = request[at..end].to_vec();
                request.splice(at..at, piece);
            }
            4 | 5 => drop(request.splice(at..at, NASTY[dice.below(NASTY.len())].iter().copied())),
            6 => request.truncate(at),
            7 => {
                // A whole header line once more, or gone.
                let starts: Vec<usize> =
                    request.windows(2).enumerate().filter(|(_, w)| w == b"\r\n").map(|(i, _)| i + 2).collect();
                if starts.len() >= 2 {
                    let n = dice.below(starts.len() - 1);
                    let line = request[starts[n]..starts[n + 1]].to_vec();
                    let target = starts[dice.below(starts.len())];
                    drop(request.splice(target..target, line));
                }
            }
            _ => drop(request.splice(at..at, std::iter::repeat_n(b'a', 1 << dice.below(17)))),
        }
    }
    request
}

/// SplitMix64: small, and the same on every machine.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}
