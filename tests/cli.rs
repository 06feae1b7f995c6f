//! The client subcommands, as a user runs them, against a daemon that answers from a script: what they ask, what they
//! print where, and with which code they leave.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use stdiod::api::auth;
use stdiod::api::auth::proof::{self, Challenge};

const ECHO: &str = r#"{"workspace_id":"0000","name":"echo","image":null,"status":"ready","container_status":"running","provider":"gvisor","stdio_bridge":true,"bridge_connected":true,"restart_policy":"always","restart_count":2,"last_crash":{"at":"2026-01-01T00:00:00Z","exit_code":null,"signal":9,"oom":false,"stderr_tail":["bye"]},"last_error":null,"uptime":"2h15m30s","queue":{"in_flight":1,"waiting":3},"environment":["KEY"],"volumes":["/data"]}"#;

const TOKEN: &str = "sesame";

/// A daemon that shows that it knows `TOKEN`, takes one request and gives one answer.
struct Daemon {
    url: String,
    asked: JoinHandle<String>,
}

impl Daemon {
    fn answering(status: &str, headers: &str, body: &str) -> Daemon {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{headers}\r\n{body}", body.len());
        let asked = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = read_request(&mut stream);
            if prove(&asked, &mut stream) {
                asked = read_request(&mut stream);
            } else {
                assert!(!asked.contains("Authorization"), "a token without a question: {asked}");
            }
            stream.write_all(answer.as_bytes()).unwrap();
            asked
        });
        Daemon { url, asked }
    }

    fn ok(body: &str) -> Daemon {
        Daemon::answering("200 OK", "Content-Type: application/json\r\n", body)
    }

    /// Runs `stdiod` against it: the request that came, and what came of it.
    fn run(self, words: &[&str]) -> (String, Ran) {
        let url = self.url.clone();
        let ran = stdiod(&[words, &["--url", &url]].concat(), &[("STDIOD_TOKEN", TOKEN)], "");
        (self.asked.join().unwrap(), ran)
    }
}

/// Answers the question for a proof, if `asked` is one.
fn prove(asked: &str, stream: &mut TcpStream) -> bool {
    let path = asked.split(' ').nth(1).unwrap();
    let Some((_, nonce)) = path.strip_prefix(proof::PATH).and_then(|query| query.split_once("&nonce=")) else {
        return false;
    };
    let hash = auth::hash(TOKEN.as_bytes());
    let challenge = Challenge::new(&hash, proof::bytes(nonce).unwrap());
    assert_eq!(challenge.target(), path);
    let body = format!(r#"{{"proof":"{}"}}"#, challenge.answer(&hash, &proof::address(stream.local_addr().unwrap())));
    stream.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).as_bytes()).unwrap();
    true
}

fn read_request(stream: &mut TcpStream) -> String {
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

#[derive(Debug)]
struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

fn stdiod(words: &[&str], variables: &[(&str, &str)], stdin: &str) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stdiod"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("STDIOD_") || name.starts_with("WORKSPACE_"))
    {
        command.env_remove(name);
    }
    // Nothing of this machine's own daemon may be found.
    command.env_remove("DATABASE_URL").env("STDIOD_DATA_DIR", "/nonexistent/stdiod");
    command.args(words).envs(variables.iter().copied());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: status.code().unwrap(), stdout: text(stdout), stderr: text(stderr) }
}

fn scratch(text: &str) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let file = std::env::temp_dir().join(format!("stdiod-cli-{}-{count}.json", std::process::id()));
    std::fs::write(&file, text).unwrap();
    file
}

#[test]
fn ls_shows_a_table_and_with_json_the_answer_itself() {
    let list = format!("[{ECHO}]");
    let (asked, ran) = Daemon::ok(&list).run(&["ls"]);
    assert!(asked.starts_with("GET /api/v1/mcp/servers HTTP/1.1\r\n"), "{asked}");
    assert!(asked.contains("Authorization: Bearer sesame\r\n"));
    let lines: Vec<Vec<&str>> = ran.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAME", "STATUS", "PROVIDER", "IMAGE", "RESTARTS", "UPTIME", "QUEUE"]);
    assert_eq!(lines[1][..6], ["echo", "ready", "gvisor", "(host)", "2", "2h15m30s"]);
    assert_eq!(ran.code, 0);
    let (_, ran) = Daemon::ok(&list).run(&["ls", "--json"]);
    assert_eq!(ran.stdout, format!("{list}\n"));
}

#[test]
fn status_is_readable_and_tells_of_the_last_crash() {
    let (asked, ran) = Daemon::ok(ECHO).run(&["status", "echo"]);
    assert!(asked.starts_with("GET /api/v1/mcp/servers/echo HTTP/1.1\r\n"));
    for part in ["ready (container running)", "signal 9 at 2026", "bye", "1 in flight, 3 waiting", "KEY"] {
        assert!(ran.stdout.contains(part), "{part} in {}", ran.stdout);
    }
}

#[test]
fn call_prints_the_result_byte_for_byte() {
    let result = r#"{"z":1.0e2,"a":"\u00e9"}"#;
    let answer = format!(r#"{{"result":{result},"error":null}}"#);
    let (asked, ran) = Daemon::ok(&answer).run(&["call", "echo", "tools/list", r#"{"n": 1.50}"#]);
    assert!(asked.starts_with("POST /api/v1/mcp/servers/echo/call HTTP/1.1\r\n"));
    assert!(asked.ends_with(r#"{"method":"tools/list","params":{"n": 1.50}}"#), "{asked}");
    assert_eq!((ran.code, ran.stdout), (0, format!("{result}\n")));
    let (asked, ran) = Daemon::ok(&answer).run(&["call", "echo", "--tool", "say", "{}", "--timeout-ms", "5", "--json"]);
    assert!(
        asked.ends_with(r#"{"method":"tools/call","params":{"name":"say","arguments":{}},"timeout_ms":5}"#),
        "{asked}"
    );
    assert_eq!(ran.stdout, format!("{answer}\n"));
}

#[test]
fn a_tool_that_reports_an_error_is_a_failure_with_its_result_printed() {
    let answer = r#"{"result":{"isError":true,"content":[]},"error":null}"#;
    let (_, ran) = Daemon::ok(answer).run(&["call", "echo", "--tool", "say"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, "{\"isError\":true,\"content\":[]}\n"));
}

#[test]
fn an_error_of_the_server_goes_to_stderr_with_its_own_words() {
    let body = r#"{"result":null,"error":{"code":-32601,"message":"Unknown tool: x"}}"#;
    let answering = || Daemon::answering("404 Not Found", "x-stdiod-error-source: server\r\n", body);
    let (_, ran) = answering().run(&["call", "echo", "--tool", "x"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
    assert_eq!(ran.stderr, "stdiod: the server answered with an error: Unknown tool: x (-32601)\n");
    let (_, ran) = answering().run(&["call", "echo", "--tool", "x", "--json"]);
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr), (1, "", format!("{body}\n")));
}

#[test]
fn refusals_name_code_outcome_and_remedy_and_never_the_token() {
    let body = r#"{"error":{"code":"queue_full","message":"too many","data":{"outcome":"not_sent"}}}"#;
    let (_, ran) = Daemon::answering("429 Too Many Requests", "Retry-After: 2\r\n", body).run(&["call", "x", "ping"]);
    assert_eq!(
        ran.stderr,
        "stdiod: too many (queue_full); it was never sent, so it is safe to repeat; try again in 2 s\n"
    );
    for (status, remedy) in [("401 Unauthorized", "--token-file"), ("403 Forbidden", "stdiod token create")] {
        let body = r#"{"error":{"code":"no","message":"no","data":{}}}"#;
        let (_, ran) = Daemon::answering(status, "", body).run(&["ls"]);
        assert!(ran.code == 1 && ran.stderr.contains(remedy) && ran.stderr.contains("STDIOD_TOKEN"), "{ran:?}");
        assert!(!ran.stderr.contains("sesame"));
    }
}

#[test]
fn without_a_token_file_the_refusal_says_which_one_was_looked_for() {
    let daemon = Daemon::answering("401 Unauthorized", "", r#"{"error":{"code":"unauthorized","message":"who?"}}"#);
    let ran = stdiod(&["ls", "--url", &daemon.url], &[], "");
    assert!(!daemon.asked.join().unwrap().contains("Authorization"));
    assert!(ran.stderr.contains("/nonexistent/stdiod/admin.token") && ran.stderr.contains("sudo"), "{ran:?}");
}

#[test]
fn register_sends_a_file_as_it_is_and_waits() {
    let definition = "{\"name\": \"echo\",\n \"x\": 1.0}";
    let file = scratch(definition);
    let (asked, ran) = Daemon::answering("201 Created", "", ECHO).run(&["register", file.to_str().unwrap()]);
    std::fs::remove_file(file).unwrap();
    assert!(asked.starts_with("POST /api/v1/mcp/servers HTTP/1.1\r\n") && asked.ends_with(definition), "{asked}");
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "registered echo (0000): ready\n"));
}

#[test]
fn register_by_flags_from_stdin_and_without_waiting() {
    let words = ["register", "echo", "--host", "--no-wait", "--", "cat", "-u"];
    let daemon = Daemon::answering("201 Created", "", ECHO);
    let url = daemon.url.clone();
    let ran = stdiod(&[&["--url", &url], words.as_slice()].concat(), &[], "");
    let asked = daemon.asked.join().unwrap();
    assert!(asked.starts_with("POST /api/v1/mcp/servers?wait=false "), "{asked}");
    assert!(asked.ends_with(r#"{"cmd":["cat","-u"],"name":"echo","rootfs":"host"}"#), "{asked}");
    assert_eq!(ran.code, 0);
    let daemon = Daemon::answering("201 Created", "", ECHO);
    let ran = stdiod(&["register", "-", "--url", &daemon.url], &[], "{\"name\":\"piped\"}");
    assert!(daemon.asked.join().unwrap().ends_with("{\"name\":\"piped\"}"));
    assert_eq!(ran.code, 0);
}

#[test]
fn a_server_that_is_registered_but_not_ready_is_a_failure_that_says_why() {
    let failed = ECHO.replace(r#""status":"ready""#, r#""status":"backoff""#);
    let failed = failed.replace(r#""last_error":null"#, r#""last_error":"no such file""#);
    let (_, ran) = Daemon::answering("201 Created", "", &failed).run(&["register", "echo", "--image", "x"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, "registered echo (0000): backoff\n"));
    assert!(ran.stderr.contains("no such file") && ran.stderr.contains("stdiod logs echo"), "{}", ran.stderr);
}

#[test]
fn a_new_token_stands_alone_on_stdout() {
    let answer = r#"{"name":"ci","token":"stdiod_abc","scopes":["mcp:call"],"servers":["a"],"created_at":"T"}"#;
    let words = ["token", "create", "ci", "--scope", "mcp:call,admin:read", "--server", "a"];
    let (asked, ran) = Daemon::answering("201 Created", "", answer).run(&words);
    assert!(asked.starts_with("POST /api/v1/tokens HTTP/1.1\r\n"), "{asked}");
    assert!(asked.ends_with(r#"{"name":"ci","scopes":["mcp:call","admin:read"],"servers":["a"]}"#), "{asked}");
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "stdiod_abc\n"));
    let (_, ran) = Daemon::answering("201 Created", "", answer).run(&[words.as_slice(), &["--json"]].concat());
    assert_eq!(ran.stdout, format!("{answer}\n"));
}

#[test]
fn tokens_are_listed_and_revoked() {
    let list = r#"[{"name":"ci","scopes":["mcp:call"],"servers":[],"created_at":"T"}]"#;
    let (_, ran) = Daemon::ok(list).run(&["token", "ls"]);
    assert_eq!(
        ran.stdout,
        "NAME  SCOPES    SERVERS  PROJECTS  CREATED  EXPIRES  LAST USED\nci    mcp:call  (all)    (all)     T        never    never\n"
    );
    let (asked, ran) = Daemon::answering("204 No Content", "", "").run(&["token", "revoke", "a/b"]);
    assert!(asked.starts_with("DELETE /api/v1/tokens/a%2Fb HTTP/1.1\r\n"), "{asked}");
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "revoked a/b\n"));
}

#[test]
fn rm_asks_for_the_volumes_only_when_told() {
    let (asked, ran) = Daemon::answering("204 No Content", "", "").run(&["rm", "echo"]);
    assert!(asked.starts_with("DELETE /api/v1/mcp/servers/echo HTTP/1.1\r\n"));
    assert_eq!(ran.stdout, "removed echo\n");
    let (asked, _) = Daemon::answering("204 No Content", "", "").run(&["rm", "echo", "--volumes"]);
    assert!(asked.starts_with("DELETE /api/v1/mcp/servers/echo?volumes=true HTTP/1.1\r\n"));
}

#[test]
fn tools_are_a_table_of_names_and_descriptions() {
    let answer = r#"{"tools":[{"name":"say","description":"Says\nit.","inputSchema":{}},{"name":"x"}]}"#;
    let (asked, ran) = Daemon::ok(answer).run(&["tools", "echo"]);
    assert!(asked.starts_with("GET /api/v1/mcp/servers/echo/tools "));
    assert_eq!(ran.stdout, "NAME  DESCRIPTION\nsay   Says it.\nx     -\n");
}

#[test]
fn logs_are_printed_and_followed() {
    let (asked, ran) = Daemon::ok("one\ntwo\n").run(&["logs", "echo", "--tail", "2"]);
    assert!(asked.starts_with("GET /api/v1/mcp/servers/echo/logs?tail=2 ") && asked.contains("Accept: text/plain"));
    assert_eq!(ran.stdout, "one\ntwo\n");
    let stream = ": hi\n\ndata: {\"at\":\"T\",\"source\":\"stderr\",\"text\":\"three\"}\n\n";
    let (asked, ran) = Daemon::ok(stream).run(&["logs", "-f", "echo"]);
    assert!(asked.starts_with("GET /api/v1/mcp/servers/echo/logs?follow=true "), "{asked}");
    assert!(asked.contains("Accept: text/event-stream\r\n"));
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "T stderr three\n"));
}

#[test]
fn a_unix_socket_can_be_spoken_to() {
    let path = std::env::temp_dir().join(format!("stdiod-cli-{}.sock", std::process::id()));
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let served = std::thread::spawn(move || {
        // The first one only looks whether it is let in.
        drop(listener.accept().unwrap());
        let (mut stream, _) = listener.accept().unwrap();
        let mut piece = [0; 4096];
        assert!(stream.read(&mut piece).unwrap() > 0);
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]").unwrap();
    });
    let listen = format!("127.0.0.1:1,unix:{}", path.display());
    let ran = stdiod(&["ls", "--json"], &[("STDIOD_LISTEN", &listen)], "");
    served.join().unwrap();
    std::fs::remove_file(path).unwrap();
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "[]\n"));
}

#[test]
fn wrong_use_and_wrong_configuration_leave_with_two_and_a_missing_daemon_with_one() {
    for words in [["frobnicate", "x"], ["call", "x"], ["ls", "--url=ftp://x"], ["ls", "--token-file=/nonexistent"]] {
        let ran = stdiod(&words, &[], "");
        assert!(ran.code == 2 && ran.stdout.is_empty() && !ran.stderr.is_empty(), "{words:?}: {ran:?}");
    }
    let file = scratch("log = \"info\"\nlistn = \"x\"\n");
    let ran = stdiod(&["serve", "--config", file.to_str().unwrap()], &[], "");
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("line 2") && ran.stderr.contains("did you mean `listen`?"), "{}", ran.stderr);
    std::fs::remove_file(file).unwrap();
    let ran = stdiod(&["serve"], &[("STDIOD_LISTN", "x")], "");
    assert!(ran.code == 2 && ran.stderr.contains("STDIOD_LISTN"), "{ran:?}");
    let ran = stdiod(&["ls"], &[("STDIOD_LISTEN", "127.0.0.1:1")], "");
    assert_eq!(ran.code, 1);
    assert_eq!(ran.stderr, "stdiod: no daemon answers at http://127.0.0.1:1 (is `stdiod serve` running?)\n");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let many: Vec<&str> = std::iter::repeat_n(ECHO, 5000).collect();
    let daemon = Daemon::ok(&format!("[{}]", many.join(",")));
    let mut command = Command::new(env!("CARGO_BIN_EXE_stdiod"));
    command.args(["ls", "--url", &daemon.url]).env("STDIOD_TOKEN", TOKEN).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    daemon.asked.join().unwrap();
    assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap().as_str()), (Some(0), ""));
}
