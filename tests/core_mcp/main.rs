//! MCP in the core alone, where the order of things can be chosen: what comes before, after and instead of what a client
//! expects. Whole daemons do the same over HTTP in `e2e/mcp.rs`. `changes.rs` does so for what changes servers.

mod changes;
mod idle;
mod neighbours;
mod projects;
mod records;
mod stage;
mod tokens;
use serde_json::{Value, json};
use stage::{Child, Stage, guest, request, someone};
use stdiod::api::request::{Ask, LogFormat, TokenWanted};
use stdiod::api::response::Answer;
use stdiod::core::contract::Input;
use stdiod::limits::{
    CONTENDED_QUESTION_TIMEOUT, SESSION_IDLE, SHARE_MEMORY, SHARE_PRIVATE_INSTANCES, SHARE_SESSIONS, URI_MAX,
};
use stdiod::model::{fault::Code, principal::Principal};

fn tool(arguments: Value) -> Value {
    json!({"name": "t", "arguments": arguments})
}

fn question(id: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": {"message": "?"}})
}

// --- calls that wait for input --------------------------------------------------------------------------------------

/// A call of a client without a session whose server has asked something: the call, and the state to resume it with.
fn suspended(stage: &mut Stage) -> ((stdiod::ids::InstanceId, Value), Value) {
    let conn = stage.stateless(&someone(), "old", "tools/call", tool(json!({})));
    let call = stage.asked("tools/call");
    stage.say(call.0, &question("q"));
    let asked = stage.answer(conn);
    assert_eq!(asked["result"]["resultType"], "input_required", "{asked}");
    (call, asked["result"]["requestState"].clone())
}

fn resumed(stage: &mut Stage, who: &Principal, state: &Value) -> Value {
    let mut params = tool(json!({}));
    params["requestState"] = state.clone();
    params["inputResponses"] = json!({});
    let conn = stage.stateless(who, "old", "tools/call", params);
    stage.answer(conn)
}

#[test]
fn an_answer_that_comes_before_its_client_is_back_is_kept_for_it() {
    let mut stage = Stage::new();
    stage.register("old", Child::Older, json!({}));
    let (call, state) = suspended(&mut stage);
    // It does not wait for the input after all, and the next call has its place at once.
    stage.reply(&call, json!({"content": [{"type": "text", "text": "never mind"}]}));
    let conn = stage.stateless(&someone(), "old", "tools/call", tool(json!({"n": 2})));
    let next = stage.asked("tools/call");
    stage.reply(&next, json!({"content": []}));
    assert!(stage.is_answered(conn));

    let stranger = Principal { name: "stranger".into(), ..someone() };
    assert_eq!(resumed(&mut stage, &stranger, &state)["error"]["code"], -32602, "not another's");
    let answer = resumed(&mut stage, &someone(), &state);
    assert_eq!(answer["result"]["content"][0]["text"], "never mind", "{answer}");
    assert_eq!(answer["result"]["resultType"], "complete");
    assert_eq!(resumed(&mut stage, &someone(), &state)["error"]["code"], -32602, "once");
}

#[test]
fn a_call_whose_client_does_not_come_back_makes_room_for_those_who_wait() {
    let mut stage = Stage::new();
    let timeouts = json!({"timeouts": {"request_ms": 300_000}});
    stage.register("old", Child::Older, timeouts);
    let (_, state) = suspended(&mut stage);
    let patience_ms = CONTENDED_QUESTION_TIMEOUT.as_millis() as u64;
    stage.pass(2 * patience_ms);
    // Alone it may wait for minutes; from here on it is in somebody's way.
    let conn = stage.stateless(&someone(), "old", "tools/call", tool(json!({"n": 2})));
    stage.pass(patience_ms - 1);
    assert!(!stage.written.iter().any(|(_, message)| message["method"] == "tools/call"));
    stage.pass(1);
    let next = stage.asked("tools/call");
    assert_eq!(next.1["params"]["arguments"]["n"], 2);
    stage.reply(&next, json!({"content": []}));
    assert!(stage.is_answered(conn));
    let late = resumed(&mut stage, &someone(), &state);
    assert_eq!(late["error"]["data"]["code"], "call_timeout", "it is told what became of it: {late}");
}

#[test]
fn a_server_that_is_stopped_while_it_is_asked_for_its_era_leaves_nothing_running() {
    for remove in [false, true] {
        let mut stage = Stage::new();
        stage.register("old", Child::Reticent, json!({}));
        let conn = stage.stateless(&someone(), "old", "tools/call", tool(json!({})));
        assert_eq!(stage.running.len(), 2, "an instance is asked, and the call waits for what it says");
        match remove {
            true => stage.delete("old"),
            false => _ = stage.ask(&someone(), Ask::Stop { server: stage::named("old") }),
        }
        assert!(stage.running.is_empty(), "{:?}", stage.running);
        let refused = stage.answer(conn);
        assert_eq!(refused["error"]["data"]["outcome"], "not_sent", "{refused}");
    }
}

#[test]
fn whoever_loses_its_token_hears_nothing_more() {
    let mut stage = Stage::new();
    stage.register("old", Child::Older, json!({}));
    let scopes = vec!["mcp:call".to_string()];
    let wanted = TokenWanted { name: "guest".to_string(), scopes, ..TokenWanted::default() };
    stage.ask(&someone(), Ask::TokenCreate { wanted });
    let kept = stage.session(Some("old"), json!({}));
    let kept_ears = stage.listen(Some("old"), kept);
    stage.who = Principal { name: "guest".into(), ..someone() };
    let session = stage.session(Some("old"), json!({}));
    let get_stream = stage.listen(Some("old"), session);
    let params = json!({"notifications": {"toolsListChanged": true}});
    let listening = stage.stateless(&stage.who.clone(), "old", "subscriptions/listen", params);
    let log = || Ask::Logs {
        server: stage::named("old"),
        tail: 0,
        since_unix_ms: None,
        follow: true,
        format: LogFormat::Text,
    };
    let guest = stage.who.clone();
    let (watching, following) = (stage.ask(&guest, Ask::News), stage.ask(&guest, log()));
    let kept = [kept_ears, stage.ask(&someone(), Ask::News), stage.ask(&someone(), log())];
    let lost = [get_stream, listening, watching, following];
    assert!(!lost.iter().any(|conn| stage.has_ended(*conn)));
    stage.ask(&someone(), Ask::TokenRevoke { name: "guest".to_string() });
    assert!(lost.iter().all(|conn| stage.has_ended(*conn)) && !kept.iter().any(|conn| stage.has_ended(*conn)));
}

// --- a server of the newer era only -----------------------------------------------------------------------------------

#[test]
fn a_client_with_a_session_uses_a_server_that_knows_none() {
    let mut stage = Stage::new();
    stage.register("new", Child::NewerOnly, json!({}));
    let at = Some("new");
    let (session, hello) = stage.try_session(at, json!({"elicitation": {}}));
    let session = session.expect("a session");
    assert_eq!(hello["result"]["serverInfo"]["name"], "new");
    assert_eq!(hello["result"]["protocolVersion"], "2025-11-25");

    let levelled = stage.post(at, session, &request(1, "logging/setLevel", json!({"level": "warning"})));
    assert_eq!(stage.answer(levelled)["result"], json!({}));
    let mut params = tool(json!({"x": 1}));
    params["_meta"] = json!({"progressToken": "mine"});
    let conn = stage.post(at, session, &request(7, "tools/call", params));
    let first = stage.asked("tools/call");
    let meta = &first.1["params"]["_meta"];
    assert_eq!(meta["io.modelcontextprotocol/logLevel"], "warning");
    assert_eq!(meta["io.modelcontextprotocol/clientCapabilities"], json!({"elicitation": {"form": {}}}));
    assert_eq!(meta["progressToken"], first.1["id"], "a token of the daemon's");

    // Two questions in one result: the client gets both, and the server its answers in one piece.
    let wanted = json!({"method": "elicitation/create", "params": {"message": "?"}});
    let required =
        json!({"resultType": "input_required", "inputRequests": {"a": wanted, "b": wanted}, "requestState": "mine"});
    stage.reply(&first, required);
    let asked = stage.heard(conn);
    assert_eq!(asked.len(), 2, "{asked:?}");
    for (question, name) in asked.iter().zip(["Ada", "Bob"]) {
        assert_eq!(question["method"], "elicitation/create");
        let result = json!({"action": "accept", "content": {"name": name}});
        stage.post(at, session, &json!({"jsonrpc": "2.0", "id": question["id"], "result": result}));
    }
    let second = stage.asked("tools/call");
    assert_eq!(second.1["params"]["arguments"], json!({"x": 1}));
    assert_eq!(second.1["params"]["requestState"], "mine");
    assert_eq!(second.1["params"]["inputResponses"]["b"]["content"]["name"], "Bob");
    let progress = json!({"progressToken": second.1["id"], "progress": 1});
    stage.say(second.0, &json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress}));
    stage.reply(&second, json!({"resultType": "complete", "content": [{"type": "text", "text": "Ada and Bob"}]}));
    let answer = stage.answer(conn);
    assert_eq!((&answer["id"], &answer["result"]["content"][0]["text"]), (&json!(7), &json!("Ada and Bob")));
    assert!(answer["result"].get("resultType").is_none(), "{answer}");
    assert_eq!(stage.heard(conn)[0]["params"]["progressToken"], "mine");
}

#[test]
fn input_that_a_client_cannot_or_will_not_give_ends_its_call() {
    let mut stage = Stage::new();
    stage.register("new", Child::NewerOnly, json!({}));
    let at = Some("new");
    let required = |method: &str| json!({"resultType": "input_required", "inputRequests": {"a": {"method": method, "params": {}}}});
    let session = stage.session(at, json!({"elicitation": {}}));
    let conn = stage.post(at, session, &request(1, "tools/call", tool(json!({}))));
    let call = stage.asked("tools/call");
    stage.reply(&call, required("sampling/createMessage"));
    assert!(stage.answer(conn)["error"]["message"].as_str().is_some_and(|why| why.contains("did not declare")));

    let conn = stage.post(at, session, &request(2, "tools/call", tool(json!({}))));
    let call = stage.asked("tools/call");
    stage.reply(&call, required("elicitation/create"));
    let question = stage.heard(conn).remove(0);
    let refusal = json!({"code": -1, "message": "no"});
    stage.post(at, session, &json!({"jsonrpc": "2.0", "id": question["id"], "error": refusal}));
    assert!(stage.answer(conn)["error"]["message"].as_str().is_some_and(|why| why.contains("refused")));

    // Cancelled between two rounds: nothing more is sent.
    let conn = stage.post(at, session, &request(3, "tools/call", tool(json!({}))));
    let call = stage.asked("tools/call");
    stage.reply(&call, required("elicitation/create"));
    let question = stage.heard(conn).remove(0);
    let params = json!({"requestId": 3});
    stage.post(at, session, &json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}));
    stage.post(at, session, &json!({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept"}}));
    assert!(!stage.written.iter().any(|(_, message)| message["method"] == "tools/call"), "{:?}", stage.written);
}

#[test]
fn a_call_that_waits_for_input_ends_with_its_server() {
    let mut stage = Stage::new();
    stage.register("new", Child::NewerOnly, json!({}));
    let session = stage.session(None, json!({"elicitation": {}}));
    let conn = stage.post(None, session, &request(1, "tools/call", json!({"name": "new__t"})));
    let call = stage.asked("tools/call");
    let wanted = json!({"a": {"method": "elicitation/create", "params": {}}});
    stage.reply(&call, json!({"resultType": "input_required", "inputRequests": wanted}));
    let question = stage.heard(conn).remove(0);
    stage.delete("new");
    let told = stage.answer(conn);
    assert_eq!(told["error"]["data"]["outcome"], "sent_unknown", "an earlier round was sent: {told}");
    stage.post(None, session, &json!({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept"}}));
    let conn = stage.post(None, session, &request(2, "ping", json!({})));
    assert_eq!(stage.answer(conn)["result"], json!({}));
}

#[test]
fn what_a_server_makes_the_daemon_keep_for_it_is_bounded() {
    let mut stage = Stage::new();
    stage.register("new", Child::NewerOnly, json!({}));
    let at = Some("new");
    let session = stage.session(at, json!({"elicitation": {}}));
    let required = |stage: &mut Stage, key: &str, state: &str| {
        let conn = stage.post(at, session, &request(1, "tools/call", tool(json!({}))));
        let call = stage.asked("tools/call");
        let wanted = json!({key: {"method": "elicitation/create", "params": {}}});
        stage.reply(&call, json!({"resultType": "input_required", "inputRequests": wanted, "requestState": state}));
        conn
    };
    let conn = required(&mut stage, &"k".repeat(URI_MAX + 1), "");
    assert!(stage.answer(conn)["error"]["message"].as_str().is_some_and(|why| why.contains("key")));
    let large = "s".repeat(15 << 20);
    for _ in 0..SHARE_MEMORY.principal / large.len() {
        let conn = required(&mut stage, "a", &large);
        assert_eq!(stage.heard(conn).len(), 1, "it is asked");
    }
    let conn = required(&mut stage, "a", &large);
    assert!(stage.answer(conn)["error"]["message"].as_str().is_some_and(|why| why.contains("too large")));
    stage.end(at, session);
    let session = stage.session(at, json!({"elicitation": {}}));
    stage.post(at, session, &request(1, "tools/call", tool(json!({}))));
    stage.asked("tools/call");

    stage.register("old", Child::Older, json!({}));
    let session = stage.session(Some("old"), json!({"elicitation": {}}));
    let conn = stage.post(Some("old"), session, &request(1, "tools/call", tool(json!({}))));
    let call = stage.asked("tools/call");
    stage.say(call.0, &question(&"q".repeat(URI_MAX)));
    assert!(stage.heard(conn).is_empty());
    assert!(stage.written.iter().any(|(to, message)| *to == call.0 && message["error"].is_object()));
}

#[test]
fn a_server_that_knows_no_sessions_serves_subscriptions_and_plain_calls_too() {
    let mut stage = Stage::new();
    stage.register("new", Child::NewerOnly, json!({}));
    assert_eq!(stage.running.len(), 1, "it needs no second instance");
    let at = Some("new");
    let session = stage.session(at, json!({}));
    let get_stream = stage.listen(at, session);
    stage.written.clear();
    let conn = stage.post(at, session, &request(1, "resources/subscribe", json!({"uri": "x://a"})));
    assert_eq!(stage.answer(conn)["result"], json!({}));
    let (instance, listening) = stage.asked("subscriptions/listen");
    assert_eq!(listening["params"]["notifications"]["resourceSubscriptions"], json!(["x://a"]));
    let params = json!({"uri": "x://a", "_meta": {"io.modelcontextprotocol/subscriptionId": listening["id"]}});
    stage.say(instance, &json!({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": params}));
    assert_eq!(stage.heard(get_stream)[0]["params"], json!({"uri": "x://a"}));

    let conn = stage.stateless(&someone(), "new", "tools/call", {
        let mut params = tool(json!({}));
        params["_meta"] = json!({"io.modelcontextprotocol/protocolVersion": stage::STATELESS});
        params
    });
    let call = stage.asked("tools/call");
    stage.reply(&call, json!({"resultType": "complete", "content": []}));
    assert_eq!(stage.answer(conn)["result"]["resultType"], "complete");
    assert_eq!(stage.running.len(), 1);

    // Over the REST API nobody knows of eras; the stage checks that the child is told.
    let params = tool(json!({})).to_string();
    let method = serde_json::from_str(r#""tools/call""#).unwrap();
    let params = Some(serde_json::from_str(&params).unwrap());
    stage.ask(&someone(), Ask::Call { server: stage::named("new"), method, params, timeout_ms: None });
    assert_eq!(stage.asked("tools/call").1["params"]["name"], "t");
}

// --- instances of one session -----------------------------------------------------------------------------------------

#[test]
fn each_session_of_a_server_that_is_not_shared_has_its_own_instance() {
    let mut stage = Stage::new();
    stage.register("own", Child::Older, json!({"shared": false}));
    let at = Some("own");
    let (one, two) = (stage.session(at, json!({})), stage.session(at, json!({})));
    assert_eq!(stage.running.len(), 3, "the server itself, and one for each");
    let mut instances = Vec::new();
    for session in [one, two, one] {
        let conn = stage.post(at, session, &request(1, "tools/call", tool(json!({}))));
        let call = stage.asked("tools/call");
        instances.push(call.0);
        stage.reply(&call, json!({"content": []}));
        assert!(stage.answer(conn)["result"].is_object());
    }
    assert!(instances[0] == instances[2] && instances[0] != instances[1], "{instances:?}");

    // What the one's instance tells is nothing to the other.
    let (first, second) = (stage.listen(at, one), stage.listen(at, two));
    let conn = stage.post(at, one, &request(2, "resources/subscribe", json!({"uri": "x://a"})));
    let subscribe = stage.asked("resources/subscribe");
    assert_eq!(subscribe.0, instances[0]);
    stage.reply(&subscribe, json!({}));
    assert_eq!(stage.answer(conn)["result"], json!({}));
    for instance in &instances[..2] {
        let message =
            json!({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": "x://a"}});
        stage.say(*instance, &message);
    }
    assert_eq!((stage.heard(first).len(), stage.heard(second).len()), (1, 0));

    stage.end(at, one);
    assert!(!stage.running.contains_key(&instances[0]) && stage.running.contains_key(&instances[1]));
    stage.end(at, two);
    assert_eq!(stage.running.len(), 1);
}

#[test]
fn an_instance_of_a_session_goes_with_it_however_that_ends() {
    let mut stage = Stage::new();
    stage.register("own", Child::Older, json!({"shared": false, "restart_policy": "never"}));
    let at = Some("own");
    // By its idle timeout.
    stage.session(at, json!({}));
    assert_eq!(stage.running.len(), 2);
    stage.pass(SESSION_IDLE.as_millis() as u64);
    assert_eq!(stage.running.len(), 1);
    // By the end of the instance itself, if it is not to be started again: the client is told to begin anew.
    let session = stage.session(at, json!({}));
    let instance = *stage.running.keys().last().expect("it runs");
    stage.running.remove(&instance);
    let exit = stdiod::model::instance::Exit { cause: stdiod::model::instance::ExitCause::Code(1), oom: false };
    stage.handle(Input::Exited { instance, exit });
    let conn = stage.post(at, session, &request(1, "ping", json!({})));
    assert_eq!(stage.answer(conn)["error"]["data"]["code"], "not_found");
    // At the endpoint of all servers it starts when it is first needed.
    let joint = stage.session(None, json!({}));
    assert_eq!(stage.running.len(), 1);
    let conn = stage.post(None, joint, &request(1, "tools/call", json!({"name": "own__t"})));
    assert_eq!(stage.running.len(), 2);
    let call = stage.asked("tools/call");
    stage.reply(&call, json!({"content": []}));
    assert!(stage.answer(conn)["result"].is_object());
    // And with its server.
    let session = stage.session(at, json!({}));
    assert_eq!(stage.running.len(), 3);
    stage.delete("own");
    assert!(stage.running.is_empty(), "{:?}", stage.running);
    let conn = stage.post(at, session, &request(1, "ping", json!({})));
    assert_eq!(stage.answer(conn)["error"]["data"]["code"], "not_found");
    let conn = stage.post(None, joint, &request(1, "ping", json!({})));
    assert_eq!(stage.answer(conn)["result"], json!({}));
}

#[test]
fn instances_of_sessions_are_bounded_and_the_idlest_makes_room() {
    let mut stage = Stage::new();
    stage.register("own", Child::Older, json!({"shared": false}));
    let at = Some("own");
    let sessions: Vec<_> = (0..SHARE_PRIVATE_INSTANCES.principal)
        .map(|_| {
            stage.pass(1);
            stage.session(at, json!({}))
        })
        .collect();
    // The first listens and so is not idle; the second is.
    stage.listen(at, sessions[0]);
    stage.session(at, json!({}));
    assert_eq!(stage.running.len(), SHARE_PRIVATE_INSTANCES.principal + 1);
    for (session, there) in [(sessions[0], true), (sessions[1], false), (sessions[2], true)] {
        let conn = stage.post(at, session, &request(1, "ping", json!({})));
        assert_eq!(stage.answer(conn).get("result").is_some(), there);
    }
    // Somebody else has a share of its own, and takes nobody's.
    stage.who = guest();
    for _ in SHARE_PRIVATE_INSTANCES.principal..SHARE_PRIVATE_INSTANCES.server {
        stage.session(at, json!({}));
    }
    assert_eq!(stage.running.len(), SHARE_PRIVATE_INSTANCES.server + 1);
    stage.who = someone();
    let conn = stage.post(at, sessions[3], &request(1, "ping", json!({})));
    assert_eq!(stage.answer(conn)["result"], json!({}));
}

#[test]
fn a_session_does_not_lose_itself_to_its_own_instances() {
    let mut stage = Stage::new();
    let names: Vec<String> = (0..=SHARE_PRIVATE_INSTANCES.principal).map(|n| format!("own{n}")).collect();
    for name in &names {
        stage.register(name, Child::Older, json!({"shared": false}));
    }
    let session = stage.session(None, json!({}));
    for (n, name) in names.iter().enumerate() {
        let conn = stage.post(None, session, &request(1, "tools/call", json!({"name": format!("{name}__t")})));
        if n < SHARE_PRIVATE_INSTANCES.principal {
            let call = stage.asked("tools/call");
            stage.reply(&call, json!({"content": []}));
            assert!(stage.answer(conn)["result"].is_object());
        } else {
            assert_eq!(stage.answer(conn)["error"]["data"]["code"], "unavailable");
        }
    }
    // Nor can it take the place of somebody else.
    stage.who = guest();
    let other = stage.session(Some("own1"), json!({}));
    stage.who = someone();
    let last = names.last().unwrap();
    let conn = stage.post(None, session, &request(2, "tools/call", json!({"name": format!("{last}__t")})));
    assert_eq!(stage.answer(conn)["error"]["data"]["code"], "unavailable");
    stage.who = guest();
    let conn = stage.post(Some("own1"), other, &request(1, "ping", json!({})));
    assert_eq!(stage.answer(conn)["result"], json!({}));
}

#[test]
fn sessions_of_one_token_make_room_for_each_other_and_for_nobody_else() {
    let mut stage = Stage::new();
    stage.register("old", Child::Older, json!({}));
    let at = Some("old");
    stage.who = guest();
    let first_guest = stage.session(at, json!({}));
    stage.who = someone();
    let sessions: Vec<_> = (0..SHARE_SESSIONS.principal)
        .map(|_| {
            stage.pass(1);
            stage.session(at, json!({}))
        })
        .collect();
    stage.session(at, json!({}));
    for (session, there) in [(sessions[0], false), (sessions[1], true)] {
        let conn = stage.post(at, session, &request(1, "ping", json!({})));
        assert_eq!(stage.answer(conn).get("result").is_some(), there);
    }
    stage.who = guest();
    let conn = stage.post(at, first_guest, &request(1, "ping", json!({})));
    assert_eq!(stage.answer(conn)["result"], json!({}), "the idlest of all, but somebody else's");
}

#[test]
fn a_call_with_more_time_than_its_server_gives_ends_in_time_when_somebody_else_waits() {
    let mut stage = Stage::new();
    stage.register("old", Child::Older, json!({"timeouts": {"request_ms": 5_000}}));
    let long = stage.call(&someone(), "old", Some(86_400_000));
    stage.asked("tools/call");
    stage.pass(60_000);
    let own = stage.call(&someone(), "old", Some(3_000));
    stage.pass(2_000);
    assert!(!stage.is_answered(long), "its own principal's calls do not end it");
    stage.pass(2_000);
    assert!(matches!(stage.answered(own), Some(Answer::Refused(fault)) if fault.code == Code::CallTimeout));
    let other = stage.call(&guest(), "old", None);
    stage.pass(900);
    assert!(!stage.is_answered(long), "it has a moment");
    stage.pass(200);
    assert!(matches!(stage.answered(long), Some(Answer::Refused(fault)) if fault.code == Code::CallTimeout));
    let call = stage.asked("tools/call");
    stage.reply(&call, json!({"content": []}));
    assert!(matches!(stage.answered(other), Some(Answer::Result(_))));
}

#[test]
fn whoever_fills_a_queue_makes_way_for_others() {
    let mut stage = Stage::new();
    stage.register("old", Child::Older, json!({"queue_max": 3}));
    let calls: Vec<_> = (0..4).map(|_| stage.call(&someone(), "old", None)).collect();
    let refused = stage.call(&someone(), "old", None);
    let is_full = |answer: Option<Answer>| matches!(answer, Some(Answer::Refused(fault)) if fault.code == Code::QueueFull && fault.data["outcome"] == "not_sent");
    assert!(is_full(stage.answered(refused)), "the queue is full");
    let other = stage.call(&guest(), "old", None);
    assert!(!stage.is_answered(other) && is_full(stage.answered(calls[3])), "the last of the greediest has made way");
    let third = stage.call(&guest(), "old", None);
    assert!(is_full(stage.answered(third)), "they have the same, nearly");
}

#[test]
fn requests_under_way_are_told_that_their_session_has_ended() {
    let mut stage = Stage::new();
    stage.register("old", Child::Older, json!({}));
    let at = Some("old");
    let session = stage.session(at, json!({}));
    let sent = stage.post(at, session, &request(1, "tools/call", tool(json!({}))));
    let queued = stage.post(at, session, &request(2, "tools/call", tool(json!({}))));
    let (instance, call) = stage.asked("tools/call");
    // By now the first is a stream, and the second is not.
    let progress =
        json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "error", "data": 1}});
    stage.say(instance, &progress);
    stage.end(at, session);
    for (conn, id, outcome) in [(sent, 1, "sent_unknown"), (queued, 2, "not_sent")] {
        let told = stage.answer(conn);
        assert_eq!((&told["id"], &told["error"]["data"]["code"]), (&json!(id), &json!("not_found")), "{told}");
        assert_eq!(told["error"]["data"]["outcome"], outcome);
    }
    let cancelled = stage.written.iter().any(|(_, message)| {
        message["method"] == "notifications/cancelled" && message["params"]["requestId"] == call["id"]
    });
    assert!(cancelled, "{:?}", stage.written);
    // The place is free.
    let next = stage.session(at, json!({}));
    stage.post(at, next, &request(1, "tools/call", tool(json!({}))));
    stage.asked("tools/call");
}

// --- all servers at once ----------------------------------------------------------------------------------------------

#[test]
fn a_resource_that_two_servers_have_is_read_from_the_one_that_is_named() {
    let mut stage = Stage::new();
    for name in ["one", "two"] {
        stage.register(name, Child::Older, json!({}));
    }
    let session = stage.session(None, json!({}));
    let conn = stage.post(None, session, &request(1, "resources/list", json!({})));
    let listed = stage.answer(conn);
    let uris: Vec<&Value> = listed["result"]["resources"].as_array().unwrap().iter().map(|r| &r["uri"]).collect();
    assert_eq!(uris, ["one:x://a", "two:x://a"]);
    for (uri, server) in [("one:x://a", "one"), ("two:x://a", "two"), ("two__x://a", "two")] {
        let conn = stage.post(None, session, &request(2, "resources/read", json!({"uri": uri})));
        let read = stage.asked("resources/read");
        assert_eq!((stage.running[&read.0].as_str(), &read.1["params"]["uri"]), (server, &json!("x://a")));
        stage.reply(&read, json!({"contents": []}));
        assert!(stage.answer(conn)["result"].is_object());
    }
    let conn = stage.post(None, session, &request(3, "resources/read", json!({"uri": "x://a"})));
    let refused = stage.answer(conn);
    assert_eq!(refused["error"]["code"], -32602);
    assert!(refused["error"]["message"].as_str().unwrap().contains("one:x://a"), "{refused}");
    // With one server left there is no doubt.
    stage.delete("two");
    stage.post(None, session, &request(4, "resources/read", json!({"uri": "x://a"})));
    assert_eq!(stage.asked("resources/read").1["params"]["uri"], "x://a");
}

#[test]
fn a_server_has_not_every_resource_whose_uri_begins_with_its_name() {
    let mut stage = Stage::new();
    stage.register("x", Child::Bare, json!({}));
    stage.register("y", Child::Older, json!({}));
    let session = stage.session(None, json!({}));
    for (uri, server) in [("x://a", "y"), ("x:x://a", "x"), ("y:x://a", "y")] {
        stage.post(None, session, &request(1, "resources/read", json!({"uri": uri})));
        let read = stage.asked("resources/read");
        assert_eq!((stage.running[&read.0].as_str(), &read.1["params"]["uri"]), (server, &json!("x://a")), "{uri}");
        stage.reply(&read, json!({"contents": []}));
    }
    // What nobody lists can only be meant by its name.
    stage.post(None, session, &request(1, "resources/read", json!({"uri": "x://b"})));
    assert_eq!(stage.asked("resources/read").1["params"]["uri"], "//b");
}

#[test]
fn subscriptions_where_all_servers_are_offered_go_to_the_server_that_is_named() {
    let mut stage = Stage::new();
    for name in ["one", "two"] {
        stage.register(name, Child::Older, json!({}));
    }
    let session = stage.session(None, json!({}));
    let get_stream = stage.listen(None, session);
    let conn = stage.post(None, session, &request(1, "resources/subscribe", json!({"uri": "two:x://a"})));
    let subscribe = stage.asked("resources/subscribe");
    assert_eq!((stage.running[&subscribe.0].as_str(), &subscribe.1["params"]["uri"]), ("two", &json!("x://a")));
    stage.reply(&subscribe, json!({}));
    assert_eq!(stage.answer(conn)["result"], json!({}));
    stage.heard(get_stream);
    let updated = json!({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": "x://a"}});
    for instance in stage.running.keys().copied().collect::<Vec<_>>() {
        stage.say(instance, &updated);
    }
    let heard = stage.heard(get_stream);
    assert_eq!(heard.len(), 1, "{heard:?}");
    assert_eq!(heard[0]["params"]["uri"], "two:x://a");
    stage.end(None, session);
    assert_eq!(stage.asked("resources/unsubscribe").0, subscribe.0);
}
