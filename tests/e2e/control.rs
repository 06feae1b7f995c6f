//! Who is at the other end: unix sockets that nobody else can open, the command line's own way to its daemon, and tokens
//! that are sent to nobody who has not shown that they know them.

use crate::support::{self, BASE, Daemon, Http, Reply, SOON, STDIOD};
use serde_json::json;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

/// Takes every bit that it is given away.
const OPEN_UMASK: &[&str] = &["sh", "-c", r#"umask 000; exec "$0" "$@""#];
const NOBODY: u32 = 65534;
const NOGROUP: u32 = 65534;
const STRANGER: u32 = 65533;

// --- unix sockets ---------------------------------------------------------------------------------------------------

/// A directory that everybody may enter, with a socket in it: only the socket's own mode keeps anybody out.
struct Place {
    directory: PathBuf,
    socket: PathBuf,
}

impl Place {
    fn new() -> Place {
        let directory = support::short_temporary_directory();
        let socket = directory.join("s");
        Place { directory, socket }
    }

    fn daemon(&self, auth: &str) -> support::Options {
        let listen = format!("127.0.0.1:0,unix:{}", self.socket.display());
        Daemon::with("STDIOD_LISTEN", listen).variable("STDIOD_AUTH", auth)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.directory).expect("our directory");
    }
}

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())).permissions().mode() & 0o777
}

/// The status that a user gets for a list of servers, or the word for why there is no connection.
fn asked_as(uid: u32, gid: u32, socket: &Path, token: &str) -> String {
    let code = r#"
import errno, socket, sys
path, token = sys.argv[1:]
peer = socket.socket(socket.AF_UNIX)
try:
    peer.connect(path)
except OSError as e:
    sys.exit(print(errno.errorcode[e.errno]))
header = f"Authorization: Bearer {token}\r\n" if token else ""
peer.sendall(f"GET /api/v1/mcp/servers HTTP/1.1\r\nHost: localhost\r\n{header}Connection: close\r\n\r\n".encode())
print(peer.makefile("rb").readline().split()[1].decode())
"#;
    let mut python = Command::new("/usr/bin/python3");
    let output = python.args(["-c", code]).arg(socket).arg(token).uid(uid).gid(gid).output().expect("python3");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).trim().to_string()
}

#[test]
fn every_unix_socket_is_its_users_alone_whatever_auth_says() {
    for auth in ["off", "tokens"] {
        let place = Place::new();
        let daemon = place.daemon(auth).under(OPEN_UMASK).start();
        for socket in [&place.socket, &daemon.data_dir.join("control.sock")] {
            assert_eq!(mode(socket), 0o600, "{auth} {}", socket.display());
            assert_eq!(asked_as(NOBODY, NOGROUP, socket, ""), "EACCES", "{auth} {}", socket.display());
            assert_eq!(asked_as(NOBODY, NOGROUP, socket, daemon.token()), "EACCES", "{auth} {}", socket.display());
            assert_eq!(asked_as(0, 0, socket, ""), "200", "root needs no token: {auth} {}", socket.display());
            assert_eq!(asked_as(0, 0, socket, "wrong"), "401", "but shows no wrong one: {auth} {}", socket.display());
        }
    }
}

#[test]
fn a_configured_group_may_open_the_listeners_with_a_token_and_the_control_socket_not_at_all() {
    for (auth, without_a_token) in [("tokens", "401"), ("off", "200")] {
        let place = Place::new();
        let group = NOGROUP.to_string();
        let daemon = place.daemon(auth).variable("STDIOD_SOCKET_GROUP", &group).under(OPEN_UMASK).start();
        assert_eq!(mode(&place.socket), 0o660);
        assert_eq!(std::fs::symlink_metadata(&place.socket).expect("it is there").gid(), NOGROUP);
        assert_eq!(asked_as(NOBODY, NOGROUP, &place.socket, ""), without_a_token, "{auth}");
        assert_eq!(asked_as(NOBODY, NOGROUP, &place.socket, daemon.token()), "200", "{auth}");
        assert_eq!(asked_as(STRANGER, STRANGER, &place.socket, daemon.token()), "EACCES", "{auth}");
        let control = daemon.data_dir.join("control.sock");
        assert_eq!((mode(&control), asked_as(NOBODY, NOGROUP, &control, "").as_str()), (0o600, "EACCES"), "{auth}");
    }
}

#[test]
fn sockets_of_a_daemon_that_was_killed_are_taken_over_and_those_of_one_that_ended_are_gone() {
    let place = Place::new();
    let mut daemon = place.daemon("tokens").start();
    let control = daemon.data_dir.join("control.sock");
    daemon.kill();
    assert!(control.exists() && place.socket.exists());
    daemon.start_again();
    assert_eq!((mode(&control), asked_as(0, 0, &control, "").as_str()), (0o600, "200"));
    assert!(daemon.stop().success());
    assert!(!control.exists() && !place.socket.exists());
}

#[test]
fn a_group_that_is_not_there_is_told_at_the_start() {
    let directory = support::short_temporary_directory();
    let serve = Command::new(STDIOD)
        .arg("serve")
        .env_clear()
        .env("PATH", std::env::var("PATH").expect("a PATH"))
        .envs([("STDIOD_LISTEN", "127.0.0.1:0"), ("STDIOD_SOCKET_GROUP", "no-such-group")])
        .env("STDIOD_DATA_DIR", directory.join("data"))
        .output()
        .expect("it runs");
    std::fs::remove_dir_all(&directory).expect("our directory");
    let told = String::from_utf8_lossy(&serve.stderr);
    assert!(told.contains("socket_group: there is no group `no-such-group`"), "{told}");
    assert_eq!(serve.status.code(), Some(1));
}

// --- impostors ------------------------------------------------------------------------------------------------------

/// A program that has the daemon's port, and writes down all that it hears. Its thread ends with the test program.
struct Impostor {
    address: String,
    heard: Arc<Mutex<Vec<u8>>>,
}

#[derive(Clone)]
enum Ruse {
    /// Agrees to everything.
    SaysYes,
    /// Sends back what it was sent.
    Echoes,
    /// Asks for the token.
    Demands,
    /// Passes everything on to the real daemon, and its answers back.
    PassesOnTo(String),
}

impl Impostor {
    fn with(ruse: Ruse) -> Impostor {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let ear = Arc::clone(&heard);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (ear, ruse) = (Arc::clone(&ear), ruse.clone());
                std::thread::spawn(move || ruse.play(client, &ear));
            }
        });
        Impostor { address, heard }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn heard(&self) -> String {
        String::from_utf8_lossy(&self.heard.lock().expect("not poisoned")).into_owned()
    }

    /// Nothing that would be of use to it: no token, nor anything a token could be recognised by.
    fn assert_heard_nothing_of(&self, secrets: &[&str]) {
        let heard = self.heard();
        assert!(!heard.to_ascii_lowercase().contains("authorization"), "{heard}");
        for secret in secrets {
            let hash: String =
                stdiod::api::auth::hash(secret.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
            assert!(!heard.contains(secret) && !heard.contains(&hash), "{heard}");
        }
    }
}

impl Ruse {
    fn play(&self, mut client: TcpStream, ear: &Mutex<Vec<u8>>) {
        let (_, _) = (client.set_read_timeout(Some(SOON)), client.set_write_timeout(Some(SOON)));
        let mut daemon = match self {
            Ruse::PassesOnTo(address) => Some(TcpStream::connect(address).expect("the real one")),
            Ruse::SaysYes | Ruse::Echoes | Ruse::Demands => None,
        };
        if let Some(daemon) = &daemon {
            let (mut from, mut to) = (daemon.try_clone().expect("a socket"), client.try_clone().expect("a socket"));
            std::thread::spawn(move || std::io::copy(&mut from, &mut to));
        }
        let mut piece = [0; 4096];
        while let Ok(read @ 1..) = client.read(&mut piece) {
            ear.lock().expect("not poisoned").extend_from_slice(&piece[..read]);
            let said = match (self, &mut daemon) {
                (Ruse::PassesOnTo(_), Some(daemon)) => daemon.write_all(&piece[..read]),
                (Ruse::SaysYes | Ruse::PassesOnTo(_), _) => {
                    answer(&mut client, "200 OK", &json!({"proof": "0".repeat(64)}))
                }
                (Ruse::Echoes, _) => {
                    let asked = String::from_utf8_lossy(&piece[..read]).into_owned();
                    let nonce = asked.split_once("nonce=").map_or("", |(_, rest)| rest.split(' ').next().unwrap_or(""));
                    answer(&mut client, "200 OK", &json!({ "proof": nonce }))
                }
                (Ruse::Demands, _) => {
                    let fault =
                        json!({"error": {"code": "unauthorized", "message": "send `Authorization: Bearer <token>`"}});
                    answer(&mut client, "401 Unauthorized", &fault)
                }
            };
            if said.is_err() {
                return;
            }
        }
        if let Some(daemon) = daemon {
            let _ = daemon.shutdown(std::net::Shutdown::Both);
        }
    }
}

fn answer(client: &mut TcpStream, status: &str, body: &serde_json::Value) -> std::io::Result<()> {
    let body = body.to_string();
    write!(client, "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// As root, beside its daemon's data directory and with the listener that the configuration names; no `--url`.
fn locally(daemon: &Daemon, listen: &str, words: &[&str]) -> Output {
    daemon.command(words).env("STDIOD_LISTEN", listen).stdin(Stdio::null()).output().expect("stdiod runs")
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

const KEPT_BACK: &str = "the token was not sent: http://127.0.0.1:";

#[test]
fn the_command_line_goes_to_the_control_socket_and_tells_no_secret_to_who_has_the_port() {
    for ruse in [Ruse::SaysYes, Ruse::Demands] {
        let mut daemon = Daemon::start();
        let impostor = Impostor::with(ruse);
        let listed = locally(&daemon, &impostor.address, &["ls", "--json"]);
        assert_eq!((listed.status.code(), listed.stdout.as_slice()), (Some(0), b"[]\n".as_slice()), "{listed:?}");
        let made = locally(&daemon, &impostor.address, &["token", "create", "reader", "--scope", "admin:read"]);
        assert_eq!(made.status.code(), Some(0), "{made:?}");
        let reader = String::from_utf8_lossy(&made.stdout).trim().to_string();
        // A token that is given is the one that is used, also where none is needed.
        let limited = daemon
            .command(&["token", "revoke", "reader"])
            .envs([("STDIOD_LISTEN", &impostor.address), ("STDIOD_TOKEN", &reader)])
            .output()
            .expect("stdiod runs");
        assert!(limited.status.code() == Some(1) && told(&limited).contains("admin:write"), "{limited:?}");
        assert_eq!(impostor.heard(), "");

        // The daemon is down, and somebody sits on its port: a token would go there, and a definition with its secrets.
        let secret = "a-password-of-a-server";
        let definition = daemon.scratch("cli").join("s.json");
        let text = json!({"name": "s", "cmd": ["x"], "rootfs": "host", "environment": {"PASSWORD": secret}});
        std::fs::write(&definition, text.to_string()).expect("a file");
        let admin = daemon.token().to_string();
        assert!(daemon.stop().success());
        for words in [&["ls"][..], &["register", definition.to_str().expect("our own name")], &["doctor"]] {
            let refused = locally(&daemon, &impostor.address, words);
            if words != ["doctor"] {
                assert_eq!(refused.status.code(), Some(1), "{words:?}: {refused:?}");
                assert!(told(&refused).contains(KEPT_BACK), "{words:?}: {refused:?}");
            }
        }
        assert!(impostor.heard().contains("GET /api/v1/prove?"), "it was asked: {}", impostor.heard());
        impostor.assert_heard_nothing_of(&[&admin, &reader, secret]);
        daemon.start_again();
    }
}

#[test]
fn an_address_that_is_given_gets_a_token_only_after_its_proof() {
    let daemon = Daemon::start();
    let relay = Ruse::PassesOnTo(daemon.address().to_string());
    for ruse in [Ruse::SaysYes, Ruse::Echoes, Ruse::Demands, relay] {
        let impostor = Impostor::with(ruse);
        let url = impostor.url();
        for (by_flag, token) in [(true, None), (false, None), (true, Some(daemon.token()))] {
            let mut command = daemon.command(&["ls"]);
            match by_flag {
                true => command.args(["--url", &url]),
                false => command.env("STDIOD_URL", &url),
            };
            if let Some(token) = token {
                command.env("STDIOD_TOKEN", token);
            }
            let refused = command.stdin(Stdio::null()).output().expect("stdiod runs");
            assert_eq!(refused.status.code(), Some(1), "{refused:?}");
            assert!(told(&refused).contains(KEPT_BACK) && !told(&refused).contains(daemon.token()), "{refused:?}");
        }
        assert!(impostor.heard().contains("GET /api/v1/prove?"), "it was asked: {}", impostor.heard());
        impostor.assert_heard_nothing_of(&[daemon.token()]);
    }
    // The real one passes, under its address and under its name.
    let port = daemon.address().rsplit_once(':').expect("a port").1;
    for url in [daemon.url().to_string(), format!("http://localhost:{port}/")] {
        let listed = daemon.command(&["ls", "--json", "--url", &url]).output().expect("stdiod runs");
        assert_eq!((listed.status.code(), listed.stdout.as_slice()), (Some(0), b"[]\n".as_slice()), "{listed:?}");
    }
}

#[test]
fn a_unix_socket_of_another_user_gets_no_token_without_a_proof_either() {
    let directory = support::short_temporary_directory();
    std::os::unix::fs::chown(&directory, Some(STRANGER), None).expect("our directory");
    let socket = directory.join("s");
    let code = r#"
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("listening", flush=True)
peer, _ = listener.accept()
heard = peer.recv(65536)
peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
while more := peer.recv(65536):
    heard += more
print(heard.decode())
"#;
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", code]).arg(&socket).uid(STRANGER).gid(STRANGER).stdout(Stdio::piped());
    let mut impostor = python.spawn().expect("python3");
    let mut heard = BufReader::new(impostor.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
    assert_eq!(heard.next().as_deref(), Some("listening"));
    let url = format!("unix:{}", socket.display());
    let refused = Command::new(STDIOD)
        .args(["ls", "--url", &url])
        .env_clear()
        .env("STDIOD_TOKEN", "a-token-to-be-kept")
        .output()
        .expect("stdiod runs");
    let heard: String = heard.collect::<Vec<_>>().join("\n");
    impostor.wait().expect("it has heard the end");
    std::fs::remove_dir_all(&directory).expect("our directory");
    assert!(told(&refused).contains(&format!("the token was not sent: {url} did not show")), "{refused:?}");
    assert!(heard.starts_with("GET /api/v1/prove?") && !heard.contains("a-token-to-be-kept"), "{heard}");
}

#[test]
fn a_token_of_little_power_is_proved_like_any_other_and_a_revoked_one_is_told() {
    let daemon = Daemon::start();
    let made = daemon.cli_json(&["token", "create", "reader", "--scope", "admin:read"]);
    let reader = made["token"].as_str().expect("a token");
    let as_reader = |words: &[&str]| {
        let mut command = daemon.command(words);
        command.env("STDIOD_URL", daemon.url()).env("STDIOD_TOKEN", reader).output().expect("stdiod runs")
    };
    assert_eq!(as_reader(&["ls"]).status.code(), Some(0));
    assert!(told(&as_reader(&["token", "revoke", "reader"])).contains("admin:write"));
    assert!(daemon.cli(&["token", "revoke", "reader"]).status.success());
    let refused = as_reader(&["ls"]);
    assert!(refused.status.code() == Some(1) && told(&refused).contains("does not know it"), "{refused:?}");
    assert!(told(&refused).contains("--token-file"), "{refused:?}");
}

#[test]
fn a_stranger_learns_nothing_by_asking_for_proofs() {
    let daemon = Daemon::start();
    let ask = |query: &str| -> Reply {
        Http::connect(daemon.address(), "").request("GET", &format!("/api/v1/prove{query}"), None)
    };
    let nonce = "0".repeat(64);
    let unknown = ask(&format!("?token={}&nonce={nonce}", "0".repeat(32)));
    assert_eq!((unknown.status, unknown.code()), (401, json!("unauthorized")), "{unknown}");
    for query in ["", "?token=admin&nonce=1", &format!("?name=admin&nonce={nonce}"), &format!("?nonce={nonce}")] {
        assert_eq!(ask(query).status, 400, "{query}");
    }
    // Who has the token's id can have proofs; none of them opens anything.
    let hash = stdiod::api::auth::hash(daemon.token().as_bytes());
    let challenge = stdiod::api::auth::proof::Challenge::new(&hash, [7; 32]);
    let reply = Http::connect(daemon.address(), "").request("GET", &challenge.target(), None);
    let proof = reply.json()["proof"].as_str().expect("a proof").to_string();
    assert!(challenge.is_answered_by(&proof, &hash, daemon.address()), "{reply}");
    let again = Http::connect(daemon.address(), "").request("GET", &challenge.target(), None);
    assert_eq!(again.json(), reply.json(), "there is nothing random in it that could run out");
    let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    for shown in [proof.as_str(), &hex] {
        assert_eq!(Http::connect(daemon.address(), shown).request("GET", BASE, None).status, 401, "{shown}");
    }
}
