//! `stdiod connect`: a hosted server as a program on stdin and stdout, with a client that speaks line by line.

use crate::support::{CONFORMANCE, Daemon, NEWER, SOON, conformance, eventually, python};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

/// A client of the program, which reads its lines as they come.
struct Client {
    process: Child,
    input: Option<ChildStdin>,
    lines: Receiver<Value>,
}

impl Client {
    fn start(mut command: Command) -> Client {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("stdiod runs");
        let (input, output) = (process.stdin.take(), process.stdout.take().expect("a pipe"));
        let (send, lines) = channel();
        // Ends with the program.
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let message =
                    serde_json::from_str(&line).unwrap_or_else(|e| panic!("no JSON-RPC on stdout: {e}: {line}"));
                let _ = send.send(message);
            }
        });
        Client { process, input, lines }
    }

    /// Over TCP, with the token.
    fn of(daemon: &Daemon, name: &str) -> Client {
        let mut command = daemon.command(&["connect", name]);
        command.env("STDIOD_URL", daemon.url());
        Client::start(command)
    }

    fn send(&mut self, message: Value) {
        let input = self.input.as_mut().expect("not closed yet");
        input.write_all(format!("{message}\n").as_bytes()).expect("it reads");
    }

    fn request(&mut self, id: impl Into<Value>, method: &str, params: Value) {
        self.send(json!({"jsonrpc": "2.0", "id": id.into(), "method": method, "params": params}));
    }

    fn next(&self) -> Value {
        self.lines.recv_timeout(SOON).expect("a line")
    }

    /// What comes before the answer to this request, and the answer.
    fn until(&self, id: impl Into<Value>) -> (Vec<Value>, Value) {
        let id = id.into();
        let mut before = Vec::new();
        loop {
            let message = self.next();
            if message["id"] == id && message.get("method").is_none() {
                return (before, message);
            }
            before.push(message);
        }
    }

    fn ask(&mut self, id: u64, method: &str, params: Value) -> Value {
        self.request(id, method, params);
        self.until(id).1
    }

    fn initialize(&mut self) -> Value {
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}},
            "clientInfo": {"name": "test", "version": "1"}});
        let answer = self.ask(0, "initialize", params);
        self.send(json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        answer
    }

    /// The end of the input, and the exit code.
    fn end(mut self) -> Option<i32> {
        drop(self.input.take());
        self.process.wait().expect("it ends").code()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

#[test]
fn tools_progress_questions_and_cancellation_go_through() {
    let daemon = Daemon::start();
    daemon.register(&conformance("everything", "crun", &[]));
    let mut client = Client::of(&daemon, "everything");
    let hello = client.initialize();
    assert_eq!(hello["result"]["protocolVersion"], "2025-11-25", "{hello}");
    let tools = client.ask(1, "tools/list", json!({}));
    assert!(tools["result"]["tools"].as_array().is_some_and(|tools| tools.len() > 5), "{tools}");

    let params = json!({"name": "test_tool_with_progress", "arguments": {}, "_meta": {"progressToken": "mine"}});
    client.request("a string", "tools/call", params);
    let (before, _) = client.until("a string");
    let progress: Vec<&Value> = before.iter().filter(|one| one["method"] == "notifications/progress").collect();
    assert_eq!(progress.len(), 3, "{before:?}");
    assert!(progress.iter().all(|one| one["params"]["progressToken"] == "mine"), "{progress:?}");

    client.request(2, "tools/call", json!({"name": "test_elicitation", "arguments": {"message": "who?"}}));
    let question = client.next();
    let asked = (&question["method"], &question["params"]["message"]);
    assert_eq!(asked, (&json!("elicitation/create"), &json!("who?")), "{question}");
    let content = json!({"action": "accept", "content": {"response": "me"}});
    client.send(json!({"jsonrpc": "2.0", "id": question["id"], "result": content}));
    assert!(text(&client.until(2).1).contains("action=accept"));

    let params = json!({"name": "test_slow", "arguments": {"ms": 60_000}, "_meta": {"progressToken": 7}});
    client.request(3, "tools/call", params);
    let progress = client.next();
    assert_eq!(progress["params"]["progressToken"], 7, "{progress}");
    client.send(json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 3}}));
    let logs = || String::from_utf8_lossy(&daemon.cli(&["logs", "everything"]).stdout).into_owned();
    assert!(eventually(SOON, || logs().contains("test_slow CANCELLED")), "{}", logs());
    assert!(client.ask(4, "ping", json!({}))["result"].is_object(), "it goes on");

    // Nobody asked for it, so it comes on the stream that belongs to no request.
    client.request(5, "tools/call", json!({"name": "test_trigger_tool_change", "arguments": {}}));
    let (mut told, _) = client.until(5);
    while !told.iter().any(|one| one["method"] == "notifications/tools/list_changed") {
        told.push(client.next());
    }
    assert_eq!(client.end(), Some(0));
}

/// What the SDKs that start a program see of this one, a line each.
fn sdks(daemon: &Daemon, command: &[&str]) -> Vec<String> {
    let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/run"))
        .args(["--stdio", "20", concat!(env!("CARGO_TARGET_TMPDIR"), "/clients")])
        .args(command)
        .env("STDIOD_URL", daemon.url())
        .env("STDIOD_TOKEN", daemon.token())
        .output()
        .expect("bash runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    said.lines().filter(|line| line.starts_with("ok ")).map(str::to_string).collect()
}

#[test]
fn the_sdks_take_it_for_the_server_itself() {
    let daemon = Daemon::start();
    // Each has an instance of its own: what one gives up without an answer is nothing to the other.
    let mut definition = conformance("everything", "crun", &[]);
    definition["shared"] = json!(false);
    daemon.register(&definition);
    let seen = sdks(&daemon, &[env!("CARGO_BIN_EXE_stdiod"), "connect", "everything"]);
    assert_eq!(seen.len(), 2, "{seen:?}");
    for line in &seen {
        // An SDK may drop what comes in one read with the answer.
        assert!(["progress=2", "progress=3"].iter().any(|sign| line.contains(sign)), "{line}");
        for sign in ["action=accept", "to who", "cancelled=asked", "p50_us="] {
            assert!(line.contains(sign), "{sign} is missing in {line}");
        }
    }
    let logs = String::from_utf8_lossy(&daemon.cli(&["logs", "everything", "--tail", "1000"]).stdout).into_owned();
    assert!(logs.matches("test_slow CANCELLED").count() >= 2, "both cancellations reach the server: {logs}");
}

#[test]
fn many_requests_at_once_are_all_answered_and_the_end_of_the_input_waits_for_them() {
    let daemon = Daemon::start();
    let mut definition = conformance("everything", "crun", &[]);
    definition["max_in_flight"] = json!(8);
    daemon.register(&definition);
    let mut client = Client::of(&daemon, "everything");
    client.initialize();
    for id in 1..=50 {
        client.request(id, "tools/call", json!({"name": "test_slow", "arguments": {"ms": 20}}));
    }
    drop(client.input.take());
    let mut ids: Vec<u64> = (1..=50).map(|_| client.next()["id"].as_u64().expect("an answer")).collect();
    ids.sort_unstable();
    assert_eq!(ids, (1..=50).collect::<Vec<u64>>());
    assert_eq!(client.end(), Some(0));
}

#[test]
fn a_daemon_that_comes_back_is_met_with_a_new_session() {
    let mut daemon = Daemon::start();
    daemon.register(&conformance("everything", "crun", &[]));
    // By the control socket: the port is another one afterwards.
    let mut client = Client::start(daemon.command(&["connect", "everything"]));
    client.initialize();
    assert!(client.ask(1, "tools/list", json!({}))["result"].is_object());
    daemon.kill();
    daemon.start_again();
    daemon.wait_ready("everything");
    let answer = client.ask(2, "tools/list", json!({}));
    assert!(answer["result"]["tools"].is_array(), "{answer}");
    assert_eq!(client.end(), Some(0));
}

#[test]
fn a_client_of_the_version_without_sessions_needs_none() {
    let daemon = Daemon::start();
    daemon.register(&python("newer", "crun", NEWER));
    let mut client = Client::of(&daemon, "newer");
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {}, "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"}});
    let tools = client.ask(1, "tools/list", json!({"_meta": meta}));
    assert_eq!(tools["result"]["tools"].as_array().map(Vec::len), Some(3), "{tools}");
    let answer = client.ask(2, "tools/call", json!({"name": "echo", "arguments": {"text": "hi"}, "_meta": meta}));
    assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
    assert!(answer["result"]["content"][0]["text"].is_string(), "{answer}");
    assert_eq!(client.end(), Some(0));
}

#[test]
fn a_server_that_is_not_there_is_a_sentence() {
    let daemon = Daemon::start();
    let output = daemon.cli(&["connect", "nobody"]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("nobody"), "{output:?}");
}

#[test]
fn declared_servers_are_made_once_and_a_second_time_nothing_is_started_again() {
    let daemon = Daemon::start();
    let directory = daemon.scratch("declared");
    let mut definition = conformance("declared", "crun", &[]);
    definition["environment"] = json!({"MODE": "one"});
    std::fs::write(directory.join("a.json"), definition.to_string()).expect("a file");
    let path = directory.to_str().expect("our own name");
    let action = || daemon.cli_json(&["apply", "-f", path])["servers"][0]["action"].clone();
    assert_eq!(action(), "created");
    let before = daemon.wait_ready("declared");
    daemon.look();
    assert_eq!(action(), "unchanged");
    let after = daemon.status("declared");
    assert!(after["uptime_ms"].as_u64() >= before["uptime_ms"].as_u64(), "{after}");
    definition["environment"] = json!({"MODE": "two"});
    std::fs::write(directory.join("a.json"), definition.to_string()).expect("a file");
    assert_eq!(action(), "changed");
    daemon.wait_ready("declared");
    daemon.look();
}

#[test]
fn an_imported_bundle_is_hosted() {
    let daemon = Daemon::start();
    let file = daemon.scratch("import").join("everything.mcpb");
    let manifest = json!({"manifest_version": "0.3", "name": "Every Thing", "version": "1.0.0", "server": {
        "type": "node", "entry_point": "server.mjs",
        "mcp_config": {"command": "node", "args": ["${__dirname}/server.mjs"]}}});
    let mut zip = zip::ZipWriter::new(std::fs::File::create(&file).expect("a file"));
    let options = zip::write::SimpleFileOptions::default();
    for (name, bytes) in [("manifest.json", manifest.to_string().as_bytes()), ("server.mjs", CONFORMANCE.as_bytes())] {
        zip.start_file(name, options).expect("a file");
        zip.write_all(bytes).expect("its bytes");
    }
    zip.finish().expect("an archive");
    let imported = daemon.cli_json(&["import", file.to_str().expect("our own name")]);
    assert_eq!(imported["servers"][0]["name"], "every-thing", "{imported}");
    daemon.wait_ready("every-thing");
    daemon.look();
}
