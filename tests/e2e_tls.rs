//! TLS on the daemon's listeners: calls, certificates of both sides, reloads, and those who open a connection and say
//! nothing, or the wrong thing.

mod support;

use nix::sys::signal::Signal;
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use support::certificates::{Authority, der};
use support::secure::{Secure, any_version, config};
use support::{BASE, Daemon, Options, RUDE, eventually, python};

/// A plain listener for what the tests themselves ask, and one that speaks TLS.
fn options(authority: &Authority) -> Options {
    let (cert, key) = authority.vouch_for("server", "stdiod");
    Daemon::with("STDIOD_LISTEN", "http://127.0.0.1:0,127.0.0.1:0")
        .variable("STDIOD_TLS_CERT", cert)
        .variable("STDIOD_TLS_KEY", key)
}

fn secure_address(daemon: &Daemon) -> String {
    let line = daemon.wait_log(&["listening on https://"]);
    line.rsplit_once("https://").expect("just found").1.trim().to_string()
}

#[test]
fn a_call_over_tls_is_a_call() {
    let authority = Authority::new();
    let daemon = options(&authority).start();
    let address = secure_address(&daemon);
    daemon.register(&python("one", "crun", RUDE));
    for version in rustls::ALL_VERSIONS {
        let config = config(&authority.cert(), None, &[version]);
        let mut client = Secure::connect(&address, &config, daemon.token()).expect("a connection");
        assert_eq!(client.stream.get_ref().conn.protocol_version(), Some(version.version));
        assert_eq!(client.stream.get_ref().conn.alpn_protocol(), Some(b"http/1.1".as_slice()));
        for length in [1, 100, 16 << 10, 64 << 10, 100_000, 3 << 20] {
            let text = "x".repeat(length);
            let call = json!({"method": "tools/call", "params": {"name": "echo", "arguments": {"text": text}}});
            let reply = client.request("POST", &format!("{BASE}/one/call"), Some(&call)).expect("an answer");
            assert_eq!((reply.status, reply.text().len()), (200, length), "{version:?}");
        }
        // Its last answer, and then the end of TLS before the end of the connection.
        client.send("GET", BASE, "Connection: close\r\n", None).expect("it is open");
        assert_eq!(client.read_reply().expect("an answer").status, 200);
        let mut rest = Vec::new();
        client.stream.read_to_end(&mut rest).expect("close_notify, and not a torn end");
        assert_eq!(rest, b"");
    }
    // A stream of events.
    let mut client = Secure::connect(&address, &any_version(&authority.cert()), daemon.token()).expect("a connection");
    client.send("GET", "/api/v1/mcp/events", "", None).expect("it is open");
    assert_eq!(client.read_reply().expect("a head").status, 200);
    assert!(daemon.cli(&["stop", "one"]).status.success());
    while !client.line().expect("more events").contains(r#""status":"stopped""#) {}
    // Nobody without a token gets further than without TLS.
    let mut stranger = Secure::connect(&address, &any_version(&authority.cert()), "").expect("a connection");
    assert_eq!(stranger.request("GET", BASE, None).expect("an answer").status, 401);
}

#[test]
fn the_command_line_trusts_whom_it_was_told_to_trust() {
    let authority = Authority::new();
    let daemon = options(&authority).start();
    let url = format!("https://{}", secure_address(&daemon));
    let ls = |variables: &[(&str, String)], arguments: &[&str]| {
        let mut command = daemon.command(&[&["ls", "--json", "--url", &url], arguments].concat());
        command.env_remove("STDIOD_TLS_CERT").env_remove("STDIOD_TLS_KEY").env_remove("STDIOD_LISTEN");
        command.env("STDIOD_TOKEN", daemon.token());
        command.envs(variables.iter().map(|(name, value)| (name, value))).output().expect("it runs")
    };
    let told = |output: std::process::Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let stranger = ls(&[], &[]);
    assert!(!stranger.status.success());
    assert!(told(stranger).contains("--ca FILE"));
    assert!(ls(&[], &["--ca", &authority.cert()]).status.success());
    assert!(ls(&[("STDIOD_CA", authority.cert())], &[]).status.success());
    let own = [("STDIOD_TLS_CERT", authority.file("server.pem")), ("STDIOD_TLS_KEY", authority.file("server.key"))];
    assert!(ls(&own, &[]).status.success(), "the certificate of its own configuration");
    let other = Authority::new();
    assert!(!ls(&[("STDIOD_CA", other.cert())], &[]).status.success());
    assert!(told(ls(&[], &["--ca", "/nonexistent.pem"])).contains("/nonexistent.pem"));
}

#[test]
fn wrong_files_are_named_with_what_to_do() {
    let authority = Authority::new();
    let (cert, key) = authority.vouch_for("server", "stdiod");
    let (_, other_key) = authority.vouch_for("other", "other");
    let empty = authority.file("empty.pem");
    std::fs::write(&empty, "no certificate\n").expect("our directory");
    let missing = authority.file("missing.pem");
    for (cert, key, words) in [
        (&missing, &key, ["tls_cert", missing.as_str(), "check the path"]),
        (&empty, &key, ["tls_cert", empty.as_str(), "must hold certificates"]),
        (&cert, &empty, ["tls_key", empty.as_str(), "must hold a private key"]),
        (&cert, &other_key, ["tls_key", other_key.as_str(), "do not belong together"]),
    ] {
        let output = std::process::Command::new(support::STDIOD)
            .arg("serve")
            .env_clear()
            .env("STDIOD_DATA_DIR", authority.file("data"))
            .env("STDIOD_LISTEN", "127.0.0.1:0")
            .env("STDIOD_TLS_CERT", cert)
            .env("STDIOD_TLS_KEY", key)
            .output()
            .expect("it runs");
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(words.iter().all(|word| told.contains(word)), "{words:?}: {told}");
    }
}

#[test]
fn a_reload_under_load_drops_nobody_and_a_bad_file_changes_nothing() {
    let authority = Authority::new();
    let daemon = options(&authority).start();
    let address = secure_address(&daemon);
    let trusted = any_version(&authority.cert());
    let first = der(&authority.file("server.pem"));
    let (over, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for number in 0..8 {
            let (over, asked, trusted, address, daemon) = (&over, &asked, &trusted, &address, &daemon);
            scope.spawn(move || {
                let mut client = Secure::connect(address, trusted, daemon.token()).expect("a connection");
                while !over.load(Ordering::Relaxed) {
                    // Some stay, some come again all the time.
                    if number % 2 == 0 {
                        client = Secure::connect(address, trusted, daemon.token()).expect("a connection");
                    }
                    assert_eq!(client.request("GET", BASE, None).expect("an answer").status, 200);
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let shown = || {
            let client = Secure::connect(&address, &trusted, "").expect("a connection");
            client.stream.get_ref().conn.peer_certificates().expect("a certificate")[0].to_vec()
        };
        assert_eq!(shown(), first);
        for round in 0..5 {
            let (cert, _) = authority.vouch_for("server", &format!("stdiod {round}"));
            daemon.signal(Signal::SIGHUP);
            let fresh = der(&cert);
            assert!(eventually(Duration::from_secs(20), || shown() == fresh), "round {round}");
        }
        let last = der(&authority.file("server.pem"));
        std::fs::write(authority.file("server.pem"), "garbage").expect("our file");
        daemon.signal(Signal::SIGHUP);
        let line = daemon.wait_log(&["SIGHUP", "old certificates go on"]);
        assert!(line.contains(&authority.file("server.pem")), "{line}");
        assert_eq!(shown(), last, "the old one goes on");
        over.store(true, Ordering::Relaxed);
    });
    assert!(asked.load(Ordering::Relaxed) > 100, "{asked:?}");
}

#[test]
fn a_scanner_finds_nothing_weak() {
    let authority = Authority::new();
    let daemon = options(&authority).start();
    let address = secure_address(&daemon);
    let scan = std::process::Command::new("sslscan").args(["--no-colour", "--xml=-", &address]).output();
    let scan = scan.expect("sslscan: scripts/setup --tests installs it");
    let found = String::from_utf8_lossy(&scan.stdout);
    let value = |line: &str, name: &str| -> String {
        let rest = line.split_once(&format!(" {name}=\"")).map(|(_, rest)| rest).unwrap_or_default();
        rest.split('"').next().unwrap_or_default().to_string()
    };
    let elements = |name: &str| -> Vec<&str> {
        found.lines().map(str::trim).filter(|line| line.starts_with(&format!("<{name} "))).collect()
    };
    let enabled = elements("protocol").into_iter().filter(|line| value(line, "enabled") == "1");
    let enabled: Vec<String> = enabled.map(|line| value(line, "type") + &value(line, "version")).collect();
    assert_eq!(enabled, ["tls1.2", "tls1.3"], "{found}");
    let ciphers = elements("cipher");
    assert!(ciphers.len() >= 6, "{found}");
    for cipher in ciphers {
        let (name, bits) = (value(cipher, "cipher"), value(cipher, "bits").parse::<u32>().unwrap_or(0));
        let forward_secret = name.starts_with("TLS_") || name.starts_with("ECDHE-");
        let aead = name.contains("GCM") || name.contains("POLY1305");
        assert!(forward_secret && aead && bits >= 128, "{cipher}");
        assert!(["strong", "acceptable"].contains(&value(cipher, "strength").as_str()), "{cipher}");
    }
    for group in elements("group") {
        assert!(value(group, "bits").parse::<u32>().is_ok_and(|bits| bits >= 128), "{group}");
    }
    assert!(elements("heartbleed").iter().all(|line| value(line, "vulnerable") == "0"), "{found}");
    assert!(elements("compression").iter().all(|line| value(line, "supported") == "0"), "{found}");
    assert!(elements("renegotiation").iter().all(|line| value(line, "supported") == "0"), "{found}");
}

/// How long each of `count` requests of each client took, sorted; all clients at the same time.
fn times(clients: &mut [Secure], count: usize) -> Vec<Duration> {
    let one = |client: &mut Secure| -> Vec<Duration> {
        let timed = |_| {
            let begun = Instant::now();
            assert_eq!(client.request("GET", "/healthz", None).expect("an answer").status, 200);
            begun.elapsed()
        };
        (0..count).map(timed).collect()
    };
    let mut times: Vec<Duration> = std::thread::scope(|scope| {
        let asked: Vec<_> = clients.iter_mut().map(|client| scope.spawn(|| one(client))).collect();
        asked.into_iter().flat_map(|asked| asked.join().expect("every answer came")).collect()
    });
    times.sort();
    times
}

#[test]
fn a_thousand_half_open_handshakes_cost_the_others_nothing_and_end() {
    const GOOD: usize = 100;
    const HALF_OPEN: usize = 1000;
    // All of them are of one address here.
    let authority = Authority::new();
    let daemon = options(&authority).start();
    let address = secure_address(&daemon);
    let trusted = any_version(&authority.cert());
    let good = |_| {
        let mut client = Secure::connect(&address, &trusted, daemon.token()).expect("a connection");
        assert_eq!(client.request("GET", BASE, None).expect("an answer").status, 200);
        client
    };
    let mut good: Vec<Secure> = (0..GOOD).map(good).collect();
    let alone = times(&mut good, 20);
    // A client hello, as a real one begins, and then nothing.
    let name = rustls::pki_types::ServerName::try_from("localhost").expect("a name");
    let mut hello = Vec::new();
    let mut begun = rustls::ClientConnection::new(Arc::clone(&trusted), name).expect("a connection");
    begun.write_tls(&mut hello).expect("into memory");
    let since = Instant::now();
    let mut half_open = Vec::new();
    for number in 0..HALF_OPEN {
        let mut socket = TcpStream::connect(&address).expect("a connection");
        match number % 3 {
            0 => {}
            1 => _ = socket.write(&hello),
            _ => _ = socket.write(&hello[..hello.len() / 2]),
        }
        half_open.push(socket);
    }
    let among = times(&mut good, 20);
    let mut fresh = Secure::connect(&address, &trusted, daemon.token()).expect("a connection beside them");
    assert_eq!(fresh.request("GET", BASE, None).expect("an answer").status, 200);
    let at = |times: &[Duration], percent: usize| times[times.len() * percent / 100];
    println!(
        "alone p50 {:?} p99 {:?}; among them p50 {:?} p99 {:?}",
        at(&alone, 50),
        at(&alone, 99),
        at(&among, 50),
        at(&among, 99)
    );
    // The machine may have other things to do meanwhile; a wait for one of the others would be ten seconds.
    assert!(
        at(&among, 50) < 3 * at(&alone, 50) + Duration::from_millis(10),
        "{:?} {:?}",
        at(&alone, 50),
        at(&among, 50)
    );
    for mut socket in half_open {
        socket.set_read_timeout(Some(Duration::from_secs(30))).expect("an option");
        let mut rest = Vec::new();
        let ended = socket.read_to_end(&mut rest);
        assert!(ended.is_ok() || ended.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset));
    }
    assert!(since.elapsed() < Duration::from_secs(40), "they had ten seconds: {:?}", since.elapsed());
    for client in &mut good {
        assert_eq!(client.request("GET", BASE, None).expect("an answer").status, 200);
    }
}

#[test]
fn whoever_speaks_plain_http_to_a_tls_port_is_told_so_and_noise_is_closed() {
    let authority = Authority::new();
    let daemon = options(&authority).start();
    let address = secure_address(&daemon);
    let sent = |bytes: &[u8]| {
        let mut socket = TcpStream::connect(&address).expect("a connection");
        socket.set_read_timeout(Some(Duration::from_secs(30))).expect("an option");
        socket.write_all(bytes).expect("it is open");
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).expect("an end, and no reset");
        answer
    };
    let told = String::from_utf8(sent(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")).expect("text");
    assert!(told.starts_with("HTTP/1.1 400") && told.contains("https://"), "{told}");
    assert!(sent(b"\0\0\0\0\0\0\0\0").len() < 64, "an alert, at most");
    // And TLS to a plain port is no request.
    let mut socket = TcpStream::connect(daemon.address()).expect("a connection");
    socket.write_all(b"\x16\x03\x01\x00\x05hello\r\n\r\n").expect("it is open");
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).expect("an end");
    assert!(answer.starts_with(b"HTTP/1.1 400"), "{}", String::from_utf8_lossy(&answer));
}

#[test]
fn a_client_certificate_is_worth_what_its_rule_says() {
    let authority = Authority::new();
    let (cert, key) = authority.vouch_for("server", "stdiod");
    let [ops, agent, nobody] = ["ops", "agent", "nobody"].map(|name| authority.vouch_for(name, name));
    let foreign = Authority::new();
    let forged = foreign.vouch_for("ops", "ops");
    let file = authority.file("stdiod.toml");
    let text = format!(
        "listen = [\"http://127.0.0.1:0\", \"127.0.0.1:0\"]\ntls_cert = \"{cert}\"\ntls_key = \"{key}\"\n\
         tls_client_ca = \"{}\"\n[[tls_client_rules]]\ncn = \"ops\"\nscopes = [\"admin:read\"]\n\
         [[tls_client_rules]]\ncn = \"agent\"\nscopes = [\"mcp:call\"]\nservers = [\"one\"]\n",
        authority.cert()
    );
    std::fs::write(&file, &text).expect("our directory");
    let listen = "http://127.0.0.1:0,127.0.0.1:0";
    let mut daemon = Daemon::with("STDIOD_CONFIG", &file).variable("STDIOD_LISTEN", listen).start();
    daemon.register(&python("one", "crun", RUDE));
    daemon.register(&python("two", "crun", RUDE));
    let address = secure_address(&daemon);
    let connect = |address: &str, identity: Option<&(String, String)>, token: &str| {
        let identity = identity.map(|(cert, key)| (cert.as_str(), key.as_str()));
        Secure::connect(address, &config(&authority.cert(), identity, rustls::ALL_VERSIONS), token)
    };
    let ask = |identity: Option<&(String, String)>, token: &str, method: &str, path: &str| {
        let mut client = connect(&address, identity, token).expect("a connection");
        let call = json!({"method": "tools/call", "params": {"name": "echo", "arguments": {"text": "x"}}});
        client.request(method, path, (method == "POST").then_some(&call)).expect("an answer").status
    };
    let call = |server: &str| format!("{BASE}/{server}/call");
    for _ in 0..2 {
        assert_eq!(ask(Some(&ops), "", "GET", BASE), 200);
    }
    assert_eq!(ask(Some(&ops), "", "POST", &call("one")), 403);
    assert_eq!(ask(Some(&agent), "", "POST", &call("one")), 200);
    assert_eq!(ask(Some(&agent), "", "POST", &call("two")), 404);
    assert_eq!(ask(Some(&agent), "", "GET", BASE), 403);
    assert_eq!(ask(Some(&nobody), "", "GET", BASE), 401, "no rule is for it");
    assert_eq!(ask(None, "", "GET", BASE), 401);
    assert_eq!(ask(None, daemon.token(), "GET", BASE), 200, "optional: a token goes on working");
    assert_eq!(ask(Some(&agent), daemon.token(), "GET", BASE), 200, "a token that is sent counts");
    assert_eq!(ask(Some(&agent), "wrong", "POST", &call("one")), 401);
    // Of another authority: the handshake fails, in TLS 1.3 with the first answer at the latest.
    let refused = connect(&address, Some(&forged), "").and_then(|mut client| client.request("GET", BASE, None));
    assert!(refused.is_err(), "{refused:?}");

    assert!(daemon.stop().success());
    std::fs::write(
        &file,
        text.replace(
            "[[tls_client_rules]]\ncn = \"ops\"",
            "tls_client_auth = \"required\"\n[[tls_client_rules]]\ncn = \"ops\"",
        ),
    )
    .expect("our file");
    daemon.start_again();
    // Its addresses are told one after the other; of the second life the second one.
    let mut addresses = Vec::new();
    assert!(eventually(support::SOON, || {
        let lines = daemon.log_lines();
        let told = lines.iter().filter_map(|line| line.split_once("listening on https://"));
        addresses = told.map(|(_, address)| address.trim().to_string()).collect();
        addresses.len() == 2
    }));
    let address = addresses[1].as_str();
    let without = connect(address, None, daemon.token()).and_then(|mut client| client.request("GET", BASE, None));
    assert!(without.is_err(), "{without:?}");
    let mut with = connect(address, Some(&ops), "").expect("a connection");
    assert_eq!(with.request("GET", BASE, None).expect("an answer").status, 200);
}

#[test]
fn an_idle_tls_connection_costs_little_memory() {
    const CONNECTIONS: usize = 400;
    let authority = Authority::new();
    let daemon = options(&authority).start();
    let address = secure_address(&daemon);
    let trusted = any_version(&authority.cert());
    let rss = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).expect("it runs");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a line").to_string();
        line.split_ascii_whitespace().nth(1).and_then(|kib| kib.parse::<usize>().ok()).expect("a number")
    };
    let open = |count: usize| -> Vec<Secure> {
        let ask = |_| {
            let mut client = Secure::connect(&address, &trusted, daemon.token()).expect("a connection");
            // Larger than what one record holds, so that its buffers have been in use.
            let body = json!({"name": "x".repeat(20_000)});
            assert_eq!(client.request("POST", BASE, Some(&body)).expect("an answer").status, 400);
            client
        };
        (0..count).map(ask).collect()
    };
    let _warm = open(20);
    let before = rss();
    let _all = open(CONNECTIONS);
    let each = (rss() - before) / CONNECTIONS;
    println!("{each} KiB for an idle TLS connection");
    assert!(each <= 64, "{each} KiB for each");
}
