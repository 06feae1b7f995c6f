//! MCP over HTTP with a real server in a real sandbox: many clients on one process, each of which must see its own and
//! nothing else, through lost connections, crashes and floods.

use crate::support::mcp::{McpClient, text};
use crate::support::{self, BASE, Daemon, NEWER, SOON, conformance, eventually, on_both_providers, python};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const PATH: &str = "/mcp/fix";

on_both_providers!(
    thirty_two_sessions_with_the_same_ids_and_tokens_each_see_their_own,
    questions_reach_the_client_whose_call_it_is_and_only_if_it_takes_them,
    a_stream_that_is_lost_in_mid_call_is_resumed_and_the_answer_comes_once,
    both_eras_use_one_server_that_knows_only_the_older,
    a_session_survives_the_crash_of_its_server,
    a_flood_to_a_reader_that_never_reads_costs_bounded_memory_and_nobody_else,
);

fn hosted(provider: &str, arguments: &[&str], in_flight: u32) -> Daemon {
    let daemon = Daemon::start();
    let mut definition = conformance("fix", provider, arguments);
    definition["max_in_flight"] = json!(in_flight);
    definition["resource_limits"] = json!({"cpu": "2"});
    daemon.register(&definition);
    daemon
}

fn thirty_two_sessions_with_the_same_ids_and_tokens_each_see_their_own(provider: &str) {
    const SESSIONS: usize = 32;
    let daemon = hosted(provider, &[], SESSIONS as u32);
    std::thread::scope(|scope| {
        for number in 0..SESSIONS {
            let daemon = &daemon;
            scope.spawn(move || {
                let client = McpClient::connect(daemon, PATH, json!({}));
                let arguments = json!({"ms": 2_000});
                let params = json!({"name": "test_slow", "arguments": arguments, "_meta": {"progressToken": 1}});
                let mut exchange = client.request(1, "tools/call", params);
                assert!(exchange.is_stream(), "progress needs a stream");
                let first = exchange.message().expect("progress");
                assert_eq!((&first["params"]["progressToken"], &first["params"]["progress"]), (&json!(1), &json!(1)));
                if number == 0 {
                    let cancel = json!({"requestId": 1, "reason": "enough"});
                    let told =
                        client.post(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancel}));
                    assert_eq!(told.status, 202);
                    while let Some(message) = exchange.message() {
                        assert!(message.get("result").is_none(), "a cancelled call is not answered: {message}");
                    }
                    return;
                }
                let (before, answer) = exchange.answer_and(1);
                assert_eq!(text(&answer), "slow done");
                // The server counts per call: any progress of another's would repeat or skip a number.
                for (at, message) in before.iter().enumerate() {
                    assert_eq!(message["params"]["progress"], json!(at + 2), "{message}");
                    assert_eq!(message["params"]["progressToken"], json!(1), "{message}");
                }
                assert!(exchange.message().is_none(), "nothing follows the answer");
            });
        }
    });
    let logs = String::from_utf8(daemon.get(&format!("{BASE}/fix/logs?tail=1000")).body).expect("UTF-8");
    assert_eq!(logs.matches("test_slow CANCELLED").count(), 1, "{logs}");
    assert_eq!(logs.matches("test_slow done").count(), SESSIONS - 1, "{logs}");
}

fn questions_reach_the_client_whose_call_it_is_and_only_if_it_takes_them(provider: &str) {
    // Without the fixture's own check: it asks whoever it is, and the daemon must refuse in the client's name.
    let daemon = hosted(provider, &["--no-cap-check"], 1);
    let able = McpClient::connect(&daemon, PATH, json!({"elicitation": {}, "sampling": {}}));
    let unable = McpClient::connect(&daemon, PATH, json!({}));
    let bystander = McpClient::connect(&daemon, PATH, json!({"roots": {}}));
    let mut overheard = bystander.get(None);

    for (tool, arguments, method, result, expected) in [
        (
            "test_elicitation",
            json!({"message": "name?"}),
            "elicitation/create",
            json!({"action": "accept", "content": {"response": "Ada"}}),
            "Ada",
        ),
        (
            "test_sampling",
            json!({"prompt": "hi"}),
            "sampling/createMessage",
            json!({"role": "assistant", "model": "m", "content": {"type": "text", "text": "sampled"}}),
            "sampled",
        ),
    ] {
        let mut exchange = able.request("a", "tools/call", json!({"name": tool, "arguments": arguments.clone()}));
        let question = exchange.message().expect("a question");
        assert_eq!(question["method"], method);
        // Somebody else's answer to it counts for nothing.
        let forged = json!({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "decline"}});
        assert_eq!(bystander.post(&forged).status, 202);
        let reply = json!({"jsonrpc": "2.0", "id": question["id"], "result": result});
        assert_eq!(able.post(&reply).status, 202);
        assert!(text(&exchange.answer("a")).contains(expected));

        for client in [&unable, &bystander] {
            let answer = client.tool(tool, arguments.clone());
            assert!(text(&answer).contains("not supported or error"), "{answer}");
        }
    }
    bystander.tool("test_trigger_tool_change", json!({}));
    let first = overheard.message().expect("a change of the tools");
    assert_eq!(first["method"], "notifications/tools/list_changed", "it heard something that was not its own");
}

fn a_stream_that_is_lost_in_mid_call_is_resumed_and_the_answer_comes_once(provider: &str) {
    let daemon = hosted(provider, &[], 4);
    let client = McpClient::connect(&daemon, PATH, json!({}));
    let params = json!({"name": "test_slow", "arguments": {"ms": 2_000}, "_meta": {"progressToken": "t"}});
    let mut lost = client.request(7, "tools/call", params);
    let primed = lost.event().expect("a first event");
    assert!(primed.id.is_some() && primed.data.is_empty(), "it primes the client: {primed:?}");
    let seen = lost.event().expect("progress");
    drop(lost);
    // The rest comes to whoever resumes, in order, and the answer is the last of it.
    let mut resumed = client.get(seen.id.as_deref());
    let (before, answer) = resumed.answer_and(7);
    assert_eq!(text(&answer), "slow done");
    let numbers: Vec<Value> = before.iter().map(|message| message["params"]["progress"].clone()).collect();
    assert_eq!(numbers, (2..2 + numbers.len()).map(|n| json!(n)).collect::<Vec<_>>());
    assert!(resumed.message().is_none(), "the answer ends the stream");
    // Asked for again, it is the same stream again; from its end on there is nothing.
    let mut again = client.get(seen.id.as_deref());
    let mut last = None;
    let mut answers = 0;
    while let Some(event) = again.event() {
        answers += usize::from(event.json()["id"] == 7);
        last = event.id;
    }
    assert_eq!(answers, 1);
    assert!(client.get(last.as_deref()).event().is_none());
    // Another session has no part in it.
    let other = McpClient::connect(&daemon, PATH, json!({}));
    assert!(other.get(seen.id.as_deref()).event().is_none());
}

fn both_eras_use_one_server_that_knows_only_the_older(provider: &str) {
    let daemon = hosted(provider, &["--legacy-only"], 1);
    let older = McpClient::connect(&daemon, PATH, json!({"elicitation": {}}));
    let newer = McpClient::new(&daemon, PATH);
    let able = json!({"elicitation": {}});

    let discovered = newer.stateless("server/discover", json!({}), json!({})).answer(1);
    assert_eq!(discovered["result"]["supportedVersions"], json!(["2026-07-28"]), "{discovered}");
    let listed = newer.stateless("tools/list", json!({}), json!({})).answer(1);
    assert_eq!(listed["result"]["resultType"], "complete");
    assert!(listed["result"]["ttlMs"].is_u64() && listed["result"]["tools"].is_array(), "{listed}");

    // The older client's call waits for its person while the newer one's is in the queue.
    let params = json!({"name": "test_elicitation", "arguments": {"message": "?"}});
    let mut waiting = older.request(1, "tools/call", params.clone());
    let question = waiting.message().expect("a question");
    let asked = std::thread::scope(|scope| {
        let asked = scope.spawn(|| newer.stateless("tools/call", params.clone(), able.clone()).answer(1));
        let result = json!({"action": "accept", "content": {"response": "older"}});
        older.post(&json!({"jsonrpc": "2.0", "id": question["id"], "result": result}));
        assert!(text(&waiting.answer(1)).contains("older"));
        asked.join().expect("an answer")
    });
    assert_eq!(asked["result"]["resultType"], "input_required", "{asked}");
    let (key, request) = asked["result"]["inputRequests"].as_object().and_then(|all| all.iter().next()).expect("one");
    assert_eq!(request["method"], "elicitation/create");
    let state = asked["result"]["requestState"].as_str().expect("a state").to_string();
    let retry = |state: &str| {
        let mut params = params.clone();
        params["inputResponses"] = json!({key: {"action": "accept", "content": {"response": "newer"}}});
        params["requestState"] = json!(state);
        newer.stateless("tools/call", params, able.clone()).answer(1)
    };
    assert_eq!(retry(&format!("{state}0"))["error"]["code"], -32602, "a state that was tampered with");
    assert!(text(&retry(&state)).contains("newer"));
    assert_eq!(retry(&state)["error"]["code"], -32602, "a call is resumed once");
    // One that did not declare it is not asked.
    let refused = newer.stateless("tools/call", params.clone(), json!({})).answer(1);
    assert!(text(&refused).contains("rror"), "{refused}");
    assert_eq!(daemon.status("fix")["restart_count"], 0);
}

fn a_session_survives_the_crash_of_its_server(provider: &str) {
    let daemon = hosted(provider, &[], 1);
    let client = McpClient::connect(&daemon, PATH, json!({}));
    let other = McpClient::connect(&daemon, PATH, json!({}));
    assert_eq!(client.ask("logging/setLevel", json!({"level": "error"}))["result"], json!({}));
    let uri = "test://watched-resource";
    assert_eq!(client.ask("resources/subscribe", json!({"uri": uri}))["result"], json!({}));
    let mut get_stream = client.get(None);
    assert!(get_stream.event().expect("a first event").data.is_empty());

    let crashed = client.tool("test_exit", json!({}));
    assert_eq!(crashed["error"]["data"]["code"], "server_crashed", "{crashed}");
    assert_eq!(crashed["error"]["data"]["outcome"], "sent_unknown");
    // Nothing is said of the restart: the next call waits for it.
    assert_eq!(text(&client.tool("test_simple_text", json!({}))), "This is a simple text response for testing.");
    assert!(eventually(SOON, || daemon.status("fix")["restart_count"] == 1));

    let mut logging = other.request(1, "tools/call", json!({"name": "test_tool_with_logging", "arguments": {}}));
    let (before, _) = logging.answer_and(1);
    assert!(before.is_empty(), "the new instance was told the level: {before:?}");
    client.tool("test_trigger_resource_update", json!({}));
    let updated = get_stream.message().expect("an update");
    assert_eq!(
        (&updated["method"], &updated["params"]["uri"]),
        (&json!("notifications/resources/updated"), &json!(uri))
    );
}

const FLOODING: &str = r#"
import json, sys
def say(message):
    sys.stdout.write(json.dumps(message) + "\n")
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    answer = {}
    if asked["method"] == "initialize":
        capabilities = {"tools": {}, "resources": {"subscribe": True}, "logging": {}}
        answer = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": {"name": "f", "version": "1"}}
    elif asked["method"] == "tools/list":
        answer = {"tools": []}
    elif asked["method"] == "tools/call" and asked["params"]["name"] == "flood":
        for number in range(200000):
            say({"jsonrpc": "2.0", "method": "notifications/resources/updated",
                 "params": {"uri": "x://a/%d/%s" % (number, "y" * 200)}})
        answer = {"content": [{"type": "text", "text": "flooded"}]}
    elif asked["method"] == "tools/call":
        answer = {"content": [{"type": "text", "text": "calm"}]}
    say({"jsonrpc": "2.0", "id": asked["id"], "result": answer})
    sys.stdout.flush()
"#;

fn resident_kib(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("its size");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
}

fn a_flood_to_a_reader_that_never_reads_costs_bounded_memory_and_nobody_else(provider: &str) {
    let daemon = Daemon::start();
    let mut definition = python("flood", provider, FLOODING);
    definition["resource_limits"] = json!({"cpu": "2"});
    definition["timeouts"] = json!({"request_ms": 120_000});
    daemon.register(&definition);
    daemon.register(&conformance("fix", provider, &[]));
    let deaf = McpClient::connect(&daemon, "/mcp/flood", json!({}));
    assert_eq!(deaf.ask("resources/subscribe", json!({"uri": "x://a"}))["result"], json!({}));
    let _unread = deaf.get(None);
    let client = McpClient::connect(&daemon, "/mcp/flood", json!({}));
    let elsewhere = McpClient::connect(&daemon, PATH, json!({}));
    let before = resident_kib(daemon.pid());
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| client.tool("flood", json!({})));
        for _ in 0..20 {
            elsewhere.tool("test_simple_text", json!({}));
        }
        assert_eq!(text(&flood.join().expect("an answer")), "flooded");
    });
    let grown = resident_kib(daemon.pid()).saturating_sub(before);
    assert!(grown < 64 * 1024, "the daemon has grown by {grown} KiB");
    assert_eq!(text(&client.tool("calm", json!({}))), "calm");
}

/// Tells who it is and what it has, and nothing more.
const HANGING: &str = r#"
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    answers = {
        "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "h", "version": "1"}},
        "tools/list": {"tools": [{"name": "any", "inputSchema": {"type": "object"}}]},
    }
    if asked.get("method") in answers:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": answers[asked["method"]]}), flush=True)
"#;

/// How long a `tools/list` takes; of several, so that one slow turn of the machine says nothing.
fn median_of_lists(client: &McpClient) -> Duration {
    let mut took: Vec<Duration> = (0..15)
        .map(|_| {
            let began = Instant::now();
            assert!(client.ask("tools/list", json!({}))["result"]["tools"].is_array());
            began.elapsed()
        })
        .collect();
    took.sort();
    took[took.len() / 2]
}

#[test]
fn the_joint_endpoint_waits_for_nobody() {
    let daemon = Daemon::with("STDIOD_TOOL_SEPARATOR", "__").start();
    for name in ["one", "two", "three"] {
        daemon.register(&conformance(name, "crun", &[]));
    }
    let client = McpClient::connect(&daemon, "/mcp", json!({"elicitation": {}}));
    let healthy = median_of_lists(&client);
    let dead = json!({"name": "dead", "rootfs": "host", "provider": "crun", "cmd": ["/usr/bin/false"]});
    assert_eq!(daemon.request("POST", &format!("{BASE}?wait=false"), Some(&dead)).status, 201);
    daemon.wait_until("dead", "in backoff", |status| status["status"] == "backoff");
    daemon.register(&python("hung", "crun", HANGING));
    let stuck = McpClient::connect(&daemon, "/mcp/hung", json!({}));
    let unanswered = stuck.request(1, "tools/call", json!({"name": "any"}));
    let all = median_of_lists(&client);
    println!("tools/list: {healthy:?} with three healthy servers, {all:?} with a dead and a hung one beside them");
    assert!(all < healthy + Duration::from_millis(100), "{all:?}, and {healthy:?} with the healthy ones alone");
    let listed = client.ask("tools/list", json!({}));
    let names: Vec<&str> =
        listed["result"]["tools"].as_array().expect("tools").iter().filter_map(|tool| tool["name"].as_str()).collect();
    for name in ["one__test_simple_text", "two__test_simple_text", "three__test_simple_text", "hung__any"] {
        assert!(names.contains(&name), "{names:?}");
    }
    assert!(!names.iter().any(|name| name.starts_with("dead")), "{names:?}");
    assert_eq!(daemon.status("hung")["queue"]["in_flight"], 1, "it hangs: {}", daemon.status("hung"));
    assert_eq!(stuck.delete().status, 204);
    drop(unanswered);

    assert!(text(&client.tool("two__test_simple_text", json!({}))).contains("simple text"));
    assert_eq!(client.tool("four__x", json!({}))["error"]["code"], -32602);
    let read = client.ask("resources/read", json!({"uri": "one__test://static-text"}));
    assert!(read["result"]["contents"].is_array(), "{read}");
    let mut exchange =
        client.request(5, "tools/call", json!({"name": "three__test_elicitation", "arguments": {"message": "?"}}));
    let question = exchange.message().expect("a question");
    let result = json!({"action": "accept", "content": {"response": "joint"}});
    client.post(&json!({"jsonrpc": "2.0", "id": question["id"], "result": result}));
    assert!(text(&exchange.answer(5)).contains("joint"));

    // One that has not heard of all that came before.
    let listener = McpClient::connect(&daemon, "/mcp", json!({}));
    let mut get_stream = listener.get(None);
    assert!(get_stream.event().expect("a first event").data.is_empty());
    client.tool("one__test_trigger_tool_change", json!({}));
    assert_eq!(get_stream.message().expect("a change")["method"], "notifications/tools/list_changed");
    let newer = McpClient::new(&daemon, "/mcp");
    let listed = newer.stateless("tools/list", json!({}), json!({})).answer(1);
    assert!(listed["result"]["tools"].as_array().is_some_and(|tools| tools.len() > 30), "{listed}");
    let called = newer.stateless("tools/call", json!({"name": "two__test_simple_text"}), json!({})).answer(1);
    assert!(text(&called).contains("simple text"));
}

#[test]
fn the_rules_of_the_transport_hold() {
    let daemon = hosted("crun", &[], 4);
    let mut client = McpClient::new(&daemon, &format!("{BASE}/fix/mcp"));
    // Before there is a session there is only initialize.
    let refused = client.request(1, "tools/list", json!({}));
    assert_eq!(refused.status, 400);
    client.version = "2025-03-26".to_string();
    let hello = client.initialize(json!({}));
    assert_eq!(hello["result"]["protocolVersion"], "2025-03-26");
    assert_eq!(hello["result"]["serverInfo"]["name"], "conformance-stdio-fixture");
    // Nothing needs a stream: plain JSON, with the client's own id.
    let mut plain = client.request("odd \"id\"", "tools/list", json!({}));
    assert!(!plain.is_stream());
    assert_eq!(plain.answer_and("odd \"id\"").1["id"], "odd \"id\"");
    // A batch, where the version has it.
    let batch = json!([
        {"jsonrpc": "2.0", "id": 1, "method": "ping"},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "test_simple_text", "arguments": {}}},
    ]);
    let mut answers = client.post(&batch);
    let mut ids: Vec<Value> = std::iter::from_fn(|| answers.message()).map(|message| message["id"].clone()).collect();
    ids.sort_by_key(Value::to_string);
    assert_eq!(ids, [json!(1), json!(2)]);
    let newest = McpClient::connect(&daemon, PATH, json!({}));
    assert_eq!(newest.post(&batch).status, 400, "a version without batches");
    // A session belongs to its endpoint and to its owner.
    let mut elsewhere = McpClient::new(&daemon, "/mcp");
    elsewhere.session = newest.session.clone();
    assert_eq!(elsewhere.request(1, "ping", json!({})).status, 404);
    assert_eq!(newest.delete().status, 204);
    assert_eq!(newest.request(1, "ping", json!({})).status, 404);
    // Who are you?
    let nobody = support::Http::connect(daemon.address(), "").request("POST", PATH, Some(&json!({})));
    assert_eq!(nobody.status, 401);
    assert!(nobody.header("www-authenticate").is_some_and(|value| value.starts_with("Bearer")), "{nobody:?}");
}

#[test]
fn the_oldest_transport_still_works() {
    let daemon = hosted("crun", &[], 1);
    let client = McpClient::new(&daemon, "/mcp/fix/sse");
    let mut stream = client.get(None);
    let endpoint = stream.event().expect("an endpoint").data;
    assert!(endpoint.starts_with("/mcp/fix/messages?session="), "{endpoint}");
    let poster = McpClient::new(&daemon, &endpoint);
    let info = json!({"name": "old", "version": "1"});
    let hello = json!({"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": info});
    for (id, method, params) in [
        (1, "initialize", hello),
        (2, "tools/call", json!({"name": "test_tool_with_progress", "arguments": {}, "_meta": {"progressToken": 9}})),
    ] {
        assert_eq!(poster.request(id, method, params).status, 202);
        let (before, answer) = stream.answer_and(id);
        assert!(answer.get("result").is_some(), "{answer}");
        assert!(before.iter().all(|message| message["params"]["progressToken"] == 9), "{before:?}");
        assert_eq!(before.len(), if id == 2 { 3 } else { 0 });
    }
}

#[test]
fn a_server_with_content_length_framing_is_spoken_to_in_its_own_way() {
    let script = r#"
import json, sys
inp, out = sys.stdin.buffer, sys.stdout.buffer
while True:
    length = None
    while True:
        line = inp.readline()
        if not line:
            sys.exit(0)
        if not line.strip():
            break
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    asked = json.loads(inp.read(length))
    if "id" not in asked:
        continue
    result = {"echo": asked.get("params")}
    if asked["method"] == "initialize":
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "lsp", "version": "1"}}
    body = json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}, indent=1).encode()
    out.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
    out.flush()
"#;
    let daemon = Daemon::start();
    let mut definition = python("lsp", "crun", script);
    definition["framing"] = json!("content-length");
    daemon.register(&definition);
    let client = McpClient::connect(&daemon, "/mcp/lsp", json!({}));
    let answer = client.tool("anything", json!({"a": 1}));
    assert_eq!(answer["result"]["echo"]["arguments"], json!({"a": 1}), "{answer}");
}

const COUNTING: &str = r#"
import json, sys
count = 0
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    answer = {"tools": [{"name": "count", "inputSchema": {"type": "object"}}]}
    if asked["method"] == "initialize":
        answer = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "c", "version": "1"}}
    elif asked["method"] == "tools/call":
        count += 1
        answer = {"content": [{"type": "text", "text": str(count)}]}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": answer}), flush=True)
"#;

#[test]
fn sessions_of_a_server_that_is_not_shared_have_a_process_each() {
    const SCRIPT: &str = "/app/server.py";
    let daemon = Daemon::start();
    let mut definition = python("own", "crun", COUNTING);
    definition["shared"] = json!(false);
    daemon.register(&definition);
    assert_eq!(daemon.processes(SCRIPT), 1);
    let [one, two] = [(); 2].map(|()| McpClient::connect(&daemon, "/mcp/own", json!({})));
    for expected in ["1", "2", "3"] {
        assert_eq!(text(&one.tool("count", json!({}))), expected);
    }
    assert_eq!(text(&two.tool("count", json!({}))), "1", "it has counted nobody else's");
    assert_eq!(daemon.text("own", "count", json!({})), "1", "and neither has the server itself");
    daemon.look();
    assert_eq!(daemon.processes(SCRIPT), 3);
    assert_eq!(daemon.get(BASE).json().as_array().map(Vec::len), Some(1), "they are not servers of their own");
    for client in [&one, &two] {
        assert_eq!(client.delete().status, 204);
    }
    assert!(eventually(SOON, || daemon.processes(SCRIPT) == 1), "{}", daemon.log_tail());
    assert_eq!(one.request(1, "ping", json!({})).status, 404);
    assert_eq!(daemon.text("own", "count", json!({})), "2", "the server itself is as it was");
    // Those of sessions that are open go with their server.
    let third = McpClient::connect(&daemon, "/mcp/own", json!({}));
    assert_eq!(text(&third.tool("count", json!({}))), "1");
    daemon.look();
    assert_eq!(daemon.request("DELETE", &format!("{BASE}/own"), None).status, 204);
    assert!(eventually(SOON, || daemon.processes(SCRIPT) == 0), "{}", daemon.log_tail());
}

#[test]
fn both_eras_use_one_server_that_knows_only_the_newer() {
    let daemon = Daemon::start();
    let status = daemon.register(&python("new", "crun", NEWER));
    assert_eq!((&status["protocol_version"], &status["server_info"]["name"]), (&json!("2026-07-28"), &json!("newer")));
    let older = McpClient::connect(&daemon, "/mcp/new", json!({"elicitation": {}}));
    let newer = McpClient::new(&daemon, "/mcp/new");
    assert_eq!(older.ask("tools/list", json!({}))["result"]["tools"].as_array().map(Vec::len), Some(3));
    assert_eq!(text(&older.tool("echo", json!({"text": "hi"}))), "hi");
    assert_eq!(daemon.text("new", "echo", json!({"text": "REST"})), "REST");

    // The same question reaches each in the way of its era.
    let mut exchange = older.request(1, "tools/call", json!({"name": "greet"}));
    let question = exchange.message().expect("a question");
    assert_eq!(question["method"], "elicitation/create");
    let result = json!({"action": "accept", "content": {"name": "older"}});
    older.post(&json!({"jsonrpc": "2.0", "id": question["id"], "result": result}));
    assert_eq!(text(&exchange.answer(1)), "Hello, older");
    let able = json!({"elicitation": {}});
    let asked = newer.stateless("tools/call", json!({"name": "greet"}), able.clone()).answer(1);
    assert_eq!(asked["result"]["requestState"], "asked", "the server's own: {asked}");
    let responses = json!({"name": {"action": "accept", "content": {"name": "newer"}}});
    let params = json!({"name": "greet", "requestState": "asked", "inputResponses": responses});
    assert_eq!(text(&newer.stateless("tools/call", params, able).answer(1)), "Hello, newer");

    assert_eq!(older.ask("resources/subscribe", json!({"uri": "x://a"}))["result"], json!({}));
    let mut get_stream = older.get(None);
    assert!(get_stream.event().expect("a first event").data.is_empty());
    older.tool("touch", json!({}));
    assert_eq!(get_stream.message().expect("an update")["params"]["uri"], "x://a");
    assert_eq!(daemon.processes("/app/server.py"), 1, "one process for both");
}
