//! `import`, `export`, `apply`, `top` and what the command line tells of itself, as a user runs them, against a daemon that
//! keeps definitions in memory and writes down what it was asked. The real one is in `tests/e2e`.

use serde_json::{Map, Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

const BASE: &str = "/api/v1/mcp/servers";
const IMPORT: &str = "/api/v1/mcp/import";

#[derive(Default)]
struct State {
    servers: Map<String, Value>,
    /// `METHOD path`, but for reads.
    changes: Vec<String>,
    bodies: Vec<Value>,
    /// A name that it does not register.
    refused: Option<&'static str>,
    /// It tells no definitions, and no marks.
    is_old: bool,
}

#[derive(Clone)]
struct Daemon {
    url: String,
    state: Arc<Mutex<State>>,
}

impl Daemon {
    fn start() -> Daemon {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let daemon = Daemon { url, state: Arc::default() };
        let served = daemon.clone();
        std::thread::spawn(move || listener.incoming().flatten().for_each(|stream| served.answer(stream)));
        daemon
    }

    fn with(servers: Value) -> Daemon {
        let daemon = Daemon::start();
        for server in servers.as_array().unwrap() {
            let name = server["name"].as_str().unwrap().to_string();
            daemon.state.lock().unwrap().servers.insert(name, server.clone());
        }
        daemon
    }

    fn answer(&self, mut stream: TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let mut words = line.split(' ');
        let (method, target) = (words.next().unwrap().to_string(), words.next().unwrap().to_string());
        let mut length = 0;
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).unwrap();
            let header = header.trim().to_ascii_lowercase();
            if header.is_empty() {
                break;
            }
            length = header.strip_prefix("content-length: ").map_or(length, |text| text.parse().unwrap());
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
        let (status, answer) = self.state.lock().unwrap().act(&method, &target, body);
        let answer = if answer.is_null() { String::new() } else { answer.to_string() };
        let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", answer.len());
        stream.write_all((head + &answer).as_bytes()).unwrap();
    }

    fn run(&self, words: &[&str]) -> Ran {
        stdiod(&[words, &["--url", &self.url]].concat(), &[])
    }

    fn changes(&self) -> Vec<String> {
        self.state.lock().unwrap().changes.clone()
    }

    fn names(&self) -> Vec<String> {
        self.state.lock().unwrap().servers.keys().cloned().collect()
    }
}

impl State {
    fn act(&mut self, method: &str, target: &str, body: Value) -> (u16, Value) {
        let error = |code: &str| json!({"error": {"code": code, "message": "no", "data": {}}});
        let path = target.split('?').next().unwrap();
        if path == IMPORT {
            return self.import(target, &body);
        }
        if method != "GET" {
            self.changes.push(format!("{method} {}", target.strip_prefix(BASE).unwrap()));
            self.bodies.push(body.clone());
        }
        let Some(name) = path.strip_prefix(BASE).and_then(|rest| rest.strip_prefix('/')) else {
            return match method {
                "GET" => (200, self.servers.values().map(|server| self.status(server)).collect()),
                _ if self.refused.is_some_and(|name| body["name"] == name) => (422, error("provider_unusable")),
                _ => {
                    let server = body;
                    let answer = self.status(&server);
                    self.servers.insert(server["name"].as_str().unwrap().to_string(), server);
                    (201, answer)
                }
            };
        };
        let (name, rest) = name.split_once('/').unwrap_or((name, ""));
        let Some(server) = self.servers.get_mut(name) else { return (404, error("not_found")) };
        match (method, rest) {
            ("GET", "definition") if self.is_old => (404, error("not_found")),
            ("GET", "definition") => {
                let mut told = server.clone();
                if let Some(Value::Object(environment)) = told.get_mut("environment") {
                    environment.values_mut().for_each(|value| *value = Value::Null);
                }
                (200, told)
            }
            ("PATCH", "") => {
                merge(server, &body);
                let server = server.clone();
                (200, self.status(&server))
            }
            ("DELETE", "") => {
                self.servers.remove(name);
                (204, Value::Null)
            }
            _ => (200, json!({"tools": []})),
        }
    }

    /// As the real one: all or nothing.
    fn import(&mut self, target: &str, body: &Value) -> (u16, Value) {
        let servers = body["servers"].as_array().unwrap();
        let action = |server: &Value| match self.servers.get(server["name"].as_str().unwrap()) {
            None => "create",
            Some(there) if there == server => "unchanged",
            Some(_) => "name_taken",
        };
        let told: Vec<Value> =
            servers.iter().map(|server| json!({"name": server["name"], "action": action(server)})).collect();
        if target.contains("dry_run=true") {
            return (200, json!({"servers": told}));
        }
        let error = |code: &str, why: &str| json!({"error": {"code": code, "message": why, "data": {}}});
        if let Some(taken) = told.iter().find(|told| told["action"] == "name_taken") {
            return (409, error("name_taken", &format!("another server is called {}", taken["name"])));
        }
        self.changes.push(format!("POST {target}"));
        self.bodies.push(body.clone());
        if servers.iter().any(|server| self.refused.is_some_and(|name| server["name"] == name)) {
            return (422, error("provider_unusable", "nothing was registered"));
        }
        for server in servers {
            self.servers.insert(server["name"].as_str().unwrap().to_string(), server.clone());
        }
        (201, json!({"servers": told}))
    }

    fn status(&self, server: &Value) -> Value {
        let environment: Vec<&String> =
            server["environment"].as_object().into_iter().flatten().map(|(name, _)| name).collect();
        let usage = json!({"cpu_percent": server["name"].as_str().unwrap().len(), "memory_bytes": 1048576, "pids": 2});
        let mut status = json!({"name": server["name"], "status": "ready", "stdio_bridge": true, "uptime_ms": 5,
            "environment": environment, "resource_usage": usage, "restart_count": 0});
        if !self.is_old {
            status["managed_by"] = server["managed_by"].clone();
        }
        status
    }
}

/// As a PATCH does.
fn merge(server: &mut Value, patch: &Value) {
    for (key, value) in patch.as_object().unwrap() {
        match (server.get_mut(key), value) {
            (Some(old @ Value::Object(_)), Value::Object(_)) => merge(old, value),
            (_, Value::Null) => _ = server.as_object_mut().unwrap().remove(key),
            (_, _) => server[key] = value.clone(),
        }
    }
}

#[derive(Debug)]
struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Ran {
    fn json(&self) -> Value {
        assert_eq!(self.code, 0, "{self:?}");
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
}

fn stdiod(words: &[&str], variables: &[(&str, &str)]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stdiod"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("STDIOD_") || name.starts_with("WORKSPACE_"))
    {
        command.env_remove(name);
    }
    command.env_remove("DATABASE_URL").env("STDIOD_DATA_DIR", "/nonexistent/stdiod");
    let output = command.args(words).envs(variables.iter().copied()).stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code().unwrap(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// A directory that goes with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("stdiod-documents-{}-{count}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_string()
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn fixture(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/import").join(name).to_str().unwrap().to_string()
}

// --- import and export ----------------------------------------------------------------------------------------------

#[test]
fn a_dry_run_shows_everything_and_registers_nothing() {
    let daemon = Daemon::start();
    let ran = daemon.run(&["import", &fixture("vscode.jsonc"), "--dry-run"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout.contains("forecast") && ran.stdout.contains("forecast-key"), "{ran:?}");
    let shown = daemon.run(&["import", &fixture("vscode.jsonc"), "--dry-run", "--json"]).json();
    let server = &shown["servers"][0];
    assert_eq!(
        (&server["name"], &server["action"], &server["needs"]),
        (&json!("forecast"), &json!("create"), &json!(["forecast-key"]))
    );
    assert_eq!(server["about"]["forecast-key"]["secret"], true);
    assert_eq!(server["definition"]["command"], "npx");
    assert_eq!(daemon.changes(), Vec::<String>::new());
}

#[test]
fn what_is_missing_is_asked_for_by_name_and_nothing_is_registered() {
    let daemon = Daemon::start();
    let ran = daemon.run(&["import", &fixture("vscode.jsonc")]);
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("forecast-key (Key of the forecast service), for forecast"), "{ran:?}");
    assert_eq!(daemon.changes(), Vec::<String>::new());
    let ran = daemon.run(&["import", &fixture("vscode.jsonc"), "--set", "forecast-key=hunter2", "--json"]);
    assert!(!ran.stdout.contains("hunter2") && ran.stdout.contains("\"FORECAST_KEY\":null"), "{ran:?}");
    assert_eq!(daemon.state.lock().unwrap().servers["forecast"]["environment"]["FORECAST_KEY"], "hunter2");
    assert_eq!(daemon.changes(), ["POST /api/v1/mcp/import?dry_run=false"]);
}

#[test]
fn variables_come_from_the_environment_of_the_command() {
    let daemon = Daemon::start();
    let words = ["import", &fixture("claude-code-project.json"), "--url", &daemon.url];
    let ran = stdiod(&words, &[("ISSUES_TOKEN", "t"), ("USER_NAME", "ada")]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(daemon.state.lock().unwrap().bodies[0]["servers"][0]["environment"]["ISSUES_TOKEN"], "t");
}

#[test]
fn if_one_is_refused_nothing_is_left_of_the_others() {
    let daemon = Daemon::start();
    daemon.state.lock().unwrap().refused = Some("memory");
    let ran = daemon.run(&["import", &fixture("claude-desktop.json")]);
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("nothing was registered"), "{ran:?}");
    assert_eq!(daemon.changes(), ["POST /api/v1/mcp/import?dry_run=false"], "the daemon does all of it or nothing");
    assert_eq!(daemon.names(), Vec::<String>::new());
}

#[test]
fn the_same_server_is_unchanged_and_another_of_its_name_is_in_the_way() {
    let time =
        json!({"name": "time", "rootfs": "host", "cmd": ["uvx", "mcp-server-time", "--local-timezone=Europe/Berlin"]});
    let daemon = Daemon::start();
    assert_eq!(daemon.run(&["import", &fixture("bare-map.json")]).code, 0);
    let again = daemon.run(&["import", &fixture("bare-map.json"), "--json"]).json();
    assert_eq!(again["servers"][0]["action"], "unchanged");
    let daemon = Daemon::with(json!([time]));
    let ran = daemon.run(&["import", &fixture("bare-map.json")]);
    assert!(ran.code == 1 && ran.stderr.contains("name_taken") && ran.stderr.contains("time"), "{ran:?}");
    assert_eq!(daemon.changes(), Vec::<String>::new());
}

#[test]
fn a_document_that_cannot_be_imported_is_refused_by_name_and_place() {
    let daemon = Daemon::start();
    let ran = daemon.run(&["import", &fixture("claude-remote.json")]);
    assert!(ran.code == 1 && ran.stderr.contains("`tickets`: is a remote server"), "{ran:?}");
    let ran =
        daemon.run(&["import", &fixture("claude-remote.json"), "--skip", "tickets", "--skip", "old", "--dry-run"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let ran = daemon.run(&["import", &fixture("vscode-broken.jsonc")]);
    assert!(ran.code == 1 && ran.stderr.contains("line 5"), "{ran:?}");
    let ran = daemon.run(&["import", "/nonexistent.json"]);
    assert!(ran.code == 2 && ran.stderr.contains("/nonexistent.json"), "{ran:?}");
    assert_eq!(daemon.changes(), Vec::<String>::new());
}

#[test]
fn an_export_can_be_imported_elsewhere_and_holds_no_secret() {
    let scratch = Scratch::new();
    let one = Daemon::with(json!([
        {"name": "a", "image": "x:1", "environment": {"KEY": "hunter2"}},
        {"name": "b", "rootfs": "host", "cmd": ["true"]},
    ]));
    let ran = one.run(&["export"]);
    assert!(!ran.stdout.contains("hunter2"), "{ran:?}");
    assert_eq!((&ran.json()["stdiod"], &ran.json()["servers"][1]["name"]), (&json!(1), &json!("b")));
    let file = scratch.file("export.json", &ran.stdout);
    let other = Daemon::start();
    assert_eq!(other.run(&["import", &file]).code, 1);
    assert_eq!(other.run(&["import", &file, "--set", "a.KEY=new"]).code, 0);
    assert_eq!(other.state.lock().unwrap().servers["a"]["environment"]["KEY"], "new");
    one.state.lock().unwrap().is_old = true;
    let ran = one.run(&["export"]);
    assert!(ran.code == 1 && ran.stderr.contains("too old"), "{ran:?}");
}

#[test]
fn clients_get_urls_and_the_name_of_a_variable_for_the_token() {
    let daemon = Daemon::with(json!([{"name": "a", "image": "x:1"}]));
    let claude = daemon.run(&["export", "--client", "claude"]).json();
    assert_eq!(claude["mcpServers"]["a"]["url"], format!("{}/mcp/a", daemon.url));
    assert_eq!(claude["mcpServers"]["a"]["headers"]["Authorization"], "Bearer ${STDIOD_TOKEN}");
    let vscode = daemon.run(&["export", "--client", "vscode"]).json();
    assert_eq!(vscode["servers"]["a"]["type"], "http");
    assert_eq!(vscode["inputs"][0]["password"], true);
    let cursor = daemon.run(&["export", "--client", "cursor"]).json();
    assert_eq!(cursor["mcpServers"]["a"]["headers"]["Authorization"], "Bearer ${env:STDIOD_TOKEN}");
}

// --- apply ----------------------------------------------------------------------------------------------------------

fn actions(ran: &Ran) -> Vec<(String, String)> {
    let servers = ran.json()["servers"].as_array().unwrap().clone();
    let word = |value: &Value| value.as_str().unwrap().to_string();
    servers.iter().map(|server| (word(&server["name"]), word(&server["action"]))).collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(name, action)| (name.to_string(), action.to_string())).collect()
}

#[test]
fn applied_twice_the_second_time_changes_nothing() {
    let scratch = Scratch::new();
    scratch.file("a.json", r#"{"name": "a", "rootfs": "host", "cmd": ["x"], "resource_limits": {"memory": "256M"}}"#);
    scratch.file("more.toml", "[[servers]]\nname = \"b\"\nimage = \"x:1\"\nvolumes = [\"/data\"]\n");
    scratch.file("README.md", "not ours");
    let daemon = Daemon::start();
    let ran = daemon.run(&["apply", "-f", scratch.path(), "--json"]);
    assert_eq!(actions(&ran), pairs(&[("a", "created"), ("b", "created")]));
    let before = daemon.changes();
    let ran = daemon.run(&["apply", "-f", scratch.path(), "--json"]);
    assert_eq!(actions(&ran), pairs(&[("a", "unchanged"), ("b", "unchanged")]));
    assert_eq!(daemon.changes(), before);
}

#[test]
fn only_the_fields_that_differ_are_sent() {
    let scratch = Scratch::new();
    let daemon =
        Daemon::with(json!([{"name": "a", "image": "x:1", "user": "7", "environment": {"OLD": "1", "KEEP": "2"}}]));
    let file = scratch.file("a.json", r#"{"name": "a", "image": "x:2", "environment": {"KEEP": null, "NEW": "3"}}"#);
    let ran = daemon.run(&["apply", "-f", &file, "--dry-run"]);
    assert!(ran.stdout.contains("changed") && ran.stdout.contains("image, managed_by, user, environment"), "{ran:?}");
    assert_eq!(daemon.changes(), Vec::<String>::new());
    assert_eq!(actions(&daemon.run(&["apply", "-f", &file, "--json"])), pairs(&[("a", "changed")]));
    let patch = daemon.state.lock().unwrap().bodies[0].clone();
    assert_eq!(
        patch,
        json!({"image": "x:2", "managed_by": "apply", "user": null, "environment": {"OLD": null, "NEW": "3"}})
    );
    assert_eq!(daemon.state.lock().unwrap().servers["a"]["environment"], json!({"KEEP": "2", "NEW": "3"}));
}

#[test]
fn a_wrong_file_names_line_and_field_and_nothing_is_changed() {
    let scratch = Scratch::new();
    scratch.file("a.json", r#"{"name": "a", "image": "x:1"}"#);
    scratch.file("b.toml", "name = \"b\"\nimage = \"x:1\"\n\n[resource_limits]\ncpu = \"many\"\n");
    let daemon = Daemon::start();
    let ran = daemon.run(&["apply", "-f", scratch.path()]);
    assert!(ran.code == 1 && ran.stderr.contains("b.toml line 5: resource_limits.cpu: "), "{ran:?}");
    scratch.file("b.toml", "name = \"a\"\nimage = \"x:2\"\n");
    let ran = daemon.run(&["apply", "-f", scratch.path()]);
    assert!(ran.code == 1 && ran.stderr.contains("a is declared twice"), "{ran:?}");
    scratch.file("b.toml", "name = \"b\"\nimage = \"x:2\"\n[environment]\nKEY = 5\n");
    let ran = daemon.run(&["apply", "-f", scratch.path()]);
    assert!(ran.code == 1 && ran.stderr.contains("b.toml line 4: environment.KEY: "), "{ran:?}");
    assert_eq!(daemon.changes(), Vec::<String>::new());
}

#[test]
fn prune_removes_only_what_apply_has_made() {
    let scratch = Scratch::new();
    let daemon = Daemon::with(json!([{"name": "by-hand", "image": "x:1"}]));
    scratch.file("a.json", r#"[{"name": "a", "image": "x:1"}, {"name": "b", "image": "x:1"}]"#);
    assert_eq!(daemon.run(&["apply", "-f", scratch.path(), "--prune"]).code, 0);
    scratch.file("a.json", r#"[{"name": "b", "image": "x:1"}]"#);
    let ran = daemon.run(&["apply", "-f", scratch.path(), "--json"]);
    assert_eq!(actions(&ran), pairs(&[("b", "unchanged")]));
    let ran = daemon.run(&["apply", "-f", scratch.path(), "--prune", "--json"]);
    assert_eq!(actions(&ran), pairs(&[("b", "unchanged"), ("a", "removed")]));
    assert_eq!(daemon.names(), ["b", "by-hand"]);
}

#[test]
fn one_that_fails_does_not_keep_the_others_from_being_applied() {
    let scratch = Scratch::new();
    let daemon = Daemon::start();
    daemon.state.lock().unwrap().refused = Some("a");
    let file = scratch.file("x.json", r#"[{"name": "a", "image": "x:1"}, {"name": "b", "image": "x:1"}]"#);
    let ran = daemon.run(&["apply", "-f", &file]);
    assert!(
        ran.code == 1 && ran.stdout.contains("failed") && ran.stderr.contains("a: no (provider_unusable)"),
        "{ran:?}"
    );
    assert_eq!(daemon.names(), ["b"]);
}

// --- the rest -------------------------------------------------------------------------------------------------------

#[test]
fn top_shows_the_hungriest_first() {
    let daemon = Daemon::with(json!([{"name": "a", "image": "x"}, {"name": "hungry", "image": "x"}]));
    let ran = daemon.run(&["top", "--once"]);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines[0], "2 servers, 2 ready, 2M of memory");
    assert!(lines[2].starts_with("hungry  ready   6.0%  1M"), "{ran:?}");
    assert!(lines[3].starts_with("a "), "{ran:?}");
    assert_eq!(daemon.run(&["top", "--once", "--json"]).json().as_array().unwrap().len(), 2);
}

#[test]
fn shells_and_man_are_told_of_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let ran = stdiod(&["completions", shell], &[]);
        assert!(ran.code == 0 && ran.stdout.contains("connect") && ran.stdout.contains("apply"), "{shell}: {ran:?}");
    }
    assert_eq!(stdiod(&["completions", "csh"], &[]).code, 2);
    let ran = stdiod(&["man"], &[]);
    assert!(ran.code == 0 && ran.stdout.contains(".TH stdiod 1"), "{ran:?}");
    let scratch = Scratch::new();
    assert_eq!(stdiod(&["man", "--dir", scratch.path()], &[]).code, 0);
    assert!(scratch.0.join("stdiod-connect.1").is_file());
}

#[test]
fn connect_to_a_server_that_is_not_there_is_a_sentence_and_an_empty_input_is_none() {
    let daemon = Daemon::with(json!([{"name": "a", "image": "x"}]));
    let ran = daemon.run(&["connect", "nobody"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
    assert!(ran.stderr.contains("not_found"), "{ran:?}");
    let ran = daemon.run(&["connect", "a"]);
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (0, "", ""));
    let ran = stdiod(&["connect", &format!("{}/mcp/nobody", daemon.url)], &[]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
    let ran = stdiod(&["connect", "https://h/mcp/x"], &[]);
    assert!(ran.code == 2 && ran.stderr.contains("http://HOST:PORT/mcp/NAME"), "{ran:?}");
}
