//! Projects in the core alone: their tools over REST, and their MCP endpoint, with links that come up at once, slowly or never.

use crate::stage::{Child, Reach, Stage, guest, request, someone};
use serde_json::{Value, json};
use stdiod::api::request::{ExternalRef, McpAsk, ProjectAsk, ResultFormat, ToolCall};
use stdiod::api::response::Answer;
use stdiod::core::contract::Input;
use stdiod::ids::{ConnId, SessionId};
use stdiod::model::endpoint::{LinkFault, LinkFaultKind};
use stdiod::model::external::{ProjectId, Secret};
use stdiod::model::fault::Code;
use stdiod::model::principal::{Limits, Principal};

pub fn call(name: &str) -> Value {
    request(5, "tools/call", json!({"name": name, "arguments": {"a": 1}}))
}

fn list(method: &str) -> Value {
    request(4, method, json!({}))
}

fn names(answer: &Value) -> Vec<String> {
    let tools = answer["result"]["tools"].as_array().unwrap_or_else(|| panic!("{answer}"));
    tools.iter().map(|tool| tool["name"].as_str().unwrap().to_string()).collect()
}

pub fn lost() -> LinkFault {
    LinkFault { kind: LinkFaultKind::Closed, message: "closed by the peer".to_string(), retry_after_ms: None }
}

/// The names at the endpoint of a project.
fn listed(stage: &mut Stage, session: SessionId) -> Vec<String> {
    let conn = stage.project_post("p", Some(session), &list("tools/list"));
    names(&stage.answer(conn))
}

pub fn rest_call(stage: &mut Stage, tool: &str, server: Option<&str>) -> ConnId {
    let call = ToolCall {
        tool: tool.to_string(),
        arguments: None,
        server: server.map(str::to_string),
        timeout_ms: None,
        format: ResultFormat::Json,
        run_id: None,
    };
    stage.of_project(&someone(), "p", ProjectAsk::CallTool(Box::new(call)))
}

fn refused(stage: &mut Stage, conn: ConnId) -> Code {
    match stage.answered(conn) {
        Some(Answer::Refused(fault)) => fault.code,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_endpoint_of_a_project_offers_its_external_and_hosted_servers_and_nobody_elses() {
    let mut stage = Stage::new();
    stage.register("mine", Child::Older, json!({"project": "p"}));
    stage.register("other", Child::Older, json!({"project": "q"}));
    stage.register("free", Child::Older, json!({}));
    stage.external("p", "ext", Child::Older, json!({}));
    stage.external("q", "theirs", Child::Older, json!({}));
    assert!(stage.connects.is_empty(), "links are made when they are used");
    let session = stage.project_session("p");
    assert!(stage.connects.is_empty(), "an initialize uses none");
    assert_eq!(listed(&mut stage, session), ["ext__t", "mine__t"]);
    assert_eq!(stage.connects, ["ext"]);

    for (name, server) in [("ext__t", "ext"), ("mine__t", "mine")] {
        let conn = stage.project_post("p", Some(session), &call(name));
        let asked = stage.asked("tools/call");
        assert_eq!((asked.0, &asked.1["params"]["name"]), (stage.instance_of(server), &json!("t")));
        stage.reply(&asked, json!({"content": [], "of": server}));
        assert_eq!(stage.answer(conn)["result"]["of"], server);
    }
    for name in ["theirs__t", "other__t", "free__t", "t"] {
        let conn = stage.project_post("p", Some(session), &call(name));
        assert_eq!(stage.answer(conn)["error"]["code"], -32602, "{name}");
    }

    // The endpoint of all servers has the hosted ones alone.
    let all = stage.session(None, json!({}));
    let conn = stage.post(None, all, &list("tools/list"));
    assert_eq!(names(&stage.answer(conn)), ["free__t", "mine__t", "other__t"]);
    let conn = stage.post(None, all, &call("ext__t"));
    assert_eq!(stage.answer(conn)["error"]["code"], -32602);
}

#[test]
fn a_session_is_of_one_endpoint_and_of_whoever_opened_it() {
    let mut stage = Stage::new();
    stage.external("p", "ext", Child::Older, json!({}));
    let session = stage.project_session("p");
    let elsewhere = stage.project_post("q", Some(session), &list("tools/list"));
    assert_eq!(stage.answer(elsewhere)["error"]["data"]["code"], "not_found");
    let at_all = stage.post(None, session, &list("tools/list"));
    assert_eq!(stage.answer(at_all)["error"]["data"]["code"], "not_found");
    stage.who = guest();
    let stranger = stage.project_post("p", Some(session), &list("tools/list"));
    assert_eq!(stage.answer(stranger)["error"]["data"]["code"], "not_found");
}

#[test]
fn first_users_wait_for_one_link_together() {
    let mut stage = Stage::new();
    stage.external("p", "ext", Child::Older, json!({"max_in_flight": 8}));
    stage.reach.insert("ext".to_string(), Reach::Slow);
    let (one, two) = (stage.project_session("p"), stage.project_session("p"));
    let listing = stage.project_post("p", Some(one), &list("tools/list"));
    let calling = stage.project_post("p", Some(two), &call("ext__t"));
    let rest = rest_call(&mut stage, "t", Some("ext"));
    let stateless = stage.project_stateless("p", "tools/call", json!({"name": "ext__t", "arguments": {}}));
    assert!([listing, calling, rest, stateless].iter().all(|conn| !stage.is_answered(*conn)));
    let instance = stage.instance_of("ext");
    stage.handle(Input::Connected { instance });
    assert_eq!(names(&stage.answer(listing)), ["ext__t"]);
    for _ in 0..3 {
        let asked = stage.asked("tools/call");
        stage.reply(&asked, json!({"content": []}));
    }
    for conn in [calling, stateless] {
        assert!(stage.answer(conn)["result"].is_object());
    }
    assert!(matches!(stage.answered(rest), Some(Answer::ToolResult { .. })));
    assert_eq!(stage.connects, ["ext"], "one attempt for all of them");
}

#[test]
fn a_server_that_does_not_come_up_delays_a_list_no_longer_than_it_may_take() {
    let mut stage = Stage::new();
    stage.external("p", "ext", Child::Older, json!({}));
    stage.external("p", "slow", Child::Older, json!({"timeouts": {"startup_ms": 4_000}}));
    stage.reach.insert("slow".to_string(), Reach::Slow);
    let session = stage.project_session("p");
    let conn = stage.project_post("p", Some(session), &list("tools/list"));
    stage.pass(3_999);
    let streamed = stage.heard(conn);
    assert!(streamed.iter().all(|message| message.get("result").is_none()), "{streamed:?}");
    assert!(!stage.has_ended(conn));
    stage.pass(1);
    assert_eq!(names(&stage.answer(conn)), ["ext__t"]);
    // It is being tried again by itself: nobody waits for that.
    let conn = stage.project_post("p", Some(session), &list("tools/list"));
    assert_eq!(names(&stage.answer(conn)), ["ext__t"]);
    let conn = stage.project_post("p", Some(session), &call("slow__t"));
    let answer = stage.answer(conn);
    assert_eq!(answer["error"]["data"]["code"], "upstream_unavailable", "{answer}");
    assert_eq!(answer["error"]["data"]["outcome"], "not_sent", "{answer}");
}

#[test]
fn a_waiting_request_can_be_cancelled_and_goes_with_its_session() {
    let mut stage = Stage::new();
    stage.external("p", "ext", Child::Older, json!({}));
    stage.reach.insert("ext".to_string(), Reach::Slow);
    let session = stage.project_session("p");
    let cancelled = stage.project_post("p", Some(session), &call("ext__t"));
    let notification = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}});
    stage.project_post("p", Some(session), &notification);
    assert!(stage.has_ended(cancelled), "its stream ends without an answer");
    let ended = stage.project_session("p");
    stage.project_post("p", Some(ended), &call("ext__t"));
    stage.project_mcp(&someone(), "p", McpAsk::End { session: ended });
    let instance = stage.instance_of("ext");
    stage.handle(Input::Connected { instance });
    assert!(!stage.written.iter().any(|(_, message)| message["method"] == "tools/call"), "{:?}", stage.written);
}

#[test]
fn a_server_of_the_newer_era_is_understood_by_its_very_first_users() {
    let mut stage = Stage::new();
    stage.external("p", "new", Child::NewerOnly, json!({"max_in_flight": 4}));
    let session = stage.project_session("p");
    // The stage looks into each of these: they must say the version as that era does.
    let older = stage.project_post("p", Some(session), &call("new__t"));
    let asked = stage.asked("tools/call");
    stage.reply(&asked, json!({"resultType": "complete", "content": []}));
    assert!(stage.answer(older)["result"]["resultType"].is_null());

    let mut stage = Stage::new();
    stage.external("p", "new", Child::NewerOnly, json!({}));
    let meta = json!({"io.modelcontextprotocol/protocolVersion": crate::stage::STATELESS});
    let newer = stage.project_stateless("p", "tools/call", json!({"name": "new__t", "arguments": {}, "_meta": meta}));
    let asked = stage.asked("tools/call");
    stage.reply(&asked, json!({"resultType": "complete", "content": []}));
    assert_eq!(stage.answer(newer)["result"]["resultType"], "complete");

    let mut stage = Stage::new();
    stage.external("p", "new", Child::NewerOnly, json!({}));
    let rest = rest_call(&mut stage, "t", None);
    let asked = stage.asked("tools/call");
    stage.reply(&asked, json!({"resultType": "complete", "content": []}));
    assert!(matches!(stage.answered(rest), Some(Answer::ToolResult { .. })));
}

#[test]
fn clients_hear_when_servers_and_links_come_and_go_and_only_those_of_their_project() {
    let mut stage = Stage::new();
    stage.external("p", "ext", Child::Older, json!({"breaker": {"attempts": 1, "cooldown_ms": 60_000}}));
    let (here, there) = (stage.project_session("p"), stage.project_session("q"));
    let hears = |project: &str, session, stage: &mut Stage| {
        stage.project_mcp(&someone(), project, McpAsk::Listen { session, after: None })
    };
    let (on, off) = (hears("p", here, &mut stage), hears("q", there, &mut stage));
    let all = stage.session(None, json!({}));
    let joint = stage.listen(None, all);
    let told = |stage: &mut Stage, what: &str| {
        stage.pass(1_000);
        let heard = stage.heard(on);
        let of_tools = heard.iter().filter(|message| message["method"] == "notifications/tools/list_changed").count();
        assert_eq!(of_tools, 1, "{what}: {heard:?}");
        assert!(stage.heard(off).is_empty() && stage.heard(joint).is_empty(), "{what}");
    };
    listed(&mut stage, here);
    told(&mut stage, "the first list of a link");
    // A lost link is tried again at once, and is in the list meanwhile.
    let instance = stage.instance_of("ext");
    stage.handle(Input::LinkLost { instance, why: lost() });
    assert_eq!(listed(&mut stage, here), ["ext__t"]);
    stage.reach.insert("ext".to_string(), Reach::Refused);
    stage.pass(1);
    assert_eq!(stage.external_status("p", "ext"), "circuit_open");
    told(&mut stage, "it is left alone");
    assert!(listed(&mut stage, here).is_empty());
    stage.reach.clear();
    stage.pass(60_000);
    assert_eq!(stage.external_status("p", "ext"), "connected");
    told(&mut stage, "it is back");
    assert_eq!(listed(&mut stage, here), ["ext__t"]);
    let server = ExternalRef::Name("ext".to_string());
    stage.of_project(&someone(), "p", ProjectAsk::Delete { server });
    told(&mut stage, "it is gone");
    assert!(listed(&mut stage, here).is_empty());
}

#[test]
fn asking_for_a_list_that_a_broken_server_is_not_in_tells_nobody_of_a_change() {
    let mut stage = Stage::new();
    stage.external("p", "ext", Child::Older, json!({"headers": {"x-key": "${KEY}"}}));
    let put = || ProjectAsk::SecretPut { name: "KEY".to_string(), value: Secret::new("k") };
    stage.of_project(&someone(), "p", put());
    let session = stage.project_session("p");
    assert_eq!(listed(&mut stage, session), ["ext__t"]);
    let stream = stage.project_mcp(&someone(), "p", McpAsk::Listen { session, after: None });
    stage.pass(1_000);
    stage.of_project(&someone(), "p", ProjectAsk::SecretDelete { name: "KEY".to_string() });
    assert_eq!(stage.external_status("p", "ext"), "failed");
    stage.pass(1_000);
    stage.heard(stream);
    for _ in 0..3 {
        assert!(listed(&mut stage, session).is_empty());
        stage.pass(1_000);
        assert!(stage.heard(stream).is_empty(), "or whoever lists again when told would never end");
    }
    stage.of_project(&someone(), "p", put());
    assert_eq!(listed(&mut stage, session), ["ext__t"]);
}

#[test]
fn a_missing_secret_is_named_to_everybody_who_calls() {
    let mut stage = Stage::new();
    stage.external("p", "ext", Child::Older, json!({"headers": {"x-key": "${KEY}"}}));
    let conn = rest_call(&mut stage, "t", Some("ext"));
    match stage.answered(conn) {
        Some(Answer::Refused(fault)) => {
            assert_eq!((fault.code, &fault.data["missing"]), (Code::SecretMissing, &json!(["KEY"])));
        }
        other => panic!("{other:?}"),
    }
    let session = stage.project_session("p");
    let conn = stage.project_post("p", Some(session), &call("ext__t"));
    let answer = stage.answer(conn);
    assert_eq!(answer["error"]["data"]["code"], "secret_missing", "{answer}");
    assert!(stage.connects.is_empty());
    stage.of_project(&someone(), "p", ProjectAsk::SecretPut { name: "KEY".into(), value: Secret::new("one") });
    let conn = stage.project_post("p", Some(session), &call("ext__t"));
    let asked = stage.asked("tools/call");
    stage.reply(&asked, json!({"content": []}));
    assert!(stage.answer(conn)["result"].is_object());
    // Another value is another connection; the same one is not, and neither is a secret that nobody uses.
    for (name, value, connects) in [("KEY", "one", 1), ("OTHER", "x", 1), ("KEY", "two", 2)] {
        stage.of_project(&someone(), "p", ProjectAsk::SecretPut { name: name.into(), value: Secret::new(value) });
        assert_eq!(stage.connects.len(), connects, "{name} {value}");
    }
}

#[test]
fn hosted_servers_of_a_project_are_among_its_tools_and_called_by_them() {
    let mut stage = Stage::new();
    stage.register("mine", Child::Older, json!({"project": "p"}));
    stage.register("free", Child::Older, json!({}));
    stage.external("p", "ext", Child::Older, json!({}));
    let conn = stage.of_project(&someone(), "p", ProjectAsk::Tools);
    match stage.answered(conn) {
        Some(Answer::ProjectTools { tools, unavailable }) => {
            let of: Vec<&str> = tools.iter().map(|tool| &*tool.server).collect();
            assert_eq!((of, unavailable.len()), (vec!["ext", "mine"], 0));
        }
        other => panic!("{other:?}"),
    }
    let both = rest_call(&mut stage, "t", None);
    assert_eq!(refused(&mut stage, both), Code::AmbiguousTool);
    let nobody = rest_call(&mut stage, "nothing", None);
    assert_eq!(refused(&mut stage, nobody), Code::ToolNotFound);
    let free = rest_call(&mut stage, "t", Some("free"));
    assert_eq!(refused(&mut stage, free), Code::NotFound, "it belongs to no project");
    let conn = rest_call(&mut stage, "t", Some("mine"));
    let asked = stage.asked("tools/call");
    assert_eq!(asked.0, stage.instance_of("mine"));
    stage.reply(&asked, json!({"content": []}));
    assert!(matches!(stage.answered(conn), Some(Answer::ToolResult { .. })));

    // With the other one away there is no doubt.
    let server = ExternalRef::Name("ext".to_string());
    stage.of_project(&someone(), "p", ProjectAsk::Delete { server });
    let conn = rest_call(&mut stage, "t", None);
    let asked = stage.asked("tools/call");
    stage.reply(&asked, json!({"content": []}));
    assert!(matches!(stage.answered(conn), Some(Answer::ToolResult { .. })));
}

#[test]
fn a_hosted_and_an_external_server_of_one_project_have_different_names() {
    let mut stage = Stage::new();
    stage.external("p", "ext", Child::Older, json!({}));
    let hosted = json!({"name": "ext", "rootfs": "host", "cmd": ["x"], "project": "p"});
    let conn = stage.begin_register("ext", Child::Older, &hosted);
    assert_eq!(refused(&mut stage, conn), Code::NameTaken);
    stage.register("mine", Child::Older, json!({"project": "p"}));
    let spec = json!({"name": "mine", "transport": "http", "url": "http://mine.test/"});
    let spec = stdiod::api::projects::fields::from_fields(spec.as_object().unwrap().clone()).unwrap();
    let conn = stage.of_project(&someone(), "p", ProjectAsk::Create { spec: Box::new(spec) });
    assert_eq!(refused(&mut stage, conn), Code::NameTaken);
}

#[test]
fn a_question_of_an_external_server_goes_to_the_session_whose_call_it_is_at() {
    let mut stage = Stage::new();
    stage.external("p", "ext", Child::Older, json!({}));
    let (one, two) = (stage.project_session("p"), stage.project_session("p"));
    let other = stage.project_mcp(&someone(), "p", McpAsk::Listen { session: two, after: None });
    let conn = stage.project_post("p", Some(one), &call("ext__t"));
    let asked = stage.asked("tools/call");
    let question = json!({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": {"message": "?"}});
    stage.say(asked.0, &question);
    let heard = stage.heard(conn);
    let put = heard.iter().find(|message| message["method"] == "elicitation/create").expect("it is asked");
    let reply = json!({"jsonrpc": "2.0", "id": put["id"], "result": {"action": "accept"}});
    stage.project_post("p", Some(one), &reply);
    let said = stage.written.iter().find(|(_, message)| message["id"] == "q").expect("the answer");
    assert_eq!((said.0, &said.1["result"]["action"]), (asked.0, &json!("accept")));
    assert!(stage.heard(other).iter().all(|message| message["method"] != "elicitation/create"));
    stage.reply(&asked, json!({"content": []}));
    assert!(stage.answer(conn)["result"].is_object());
}

#[test]
fn whoever_loses_a_project_sees_nothing_of_it_any_more() {
    let mut stage = Stage::new();
    stage.register("mine", Child::Older, json!({"project": "p"}));
    stage.external("p", "ext", Child::Older, json!({}));
    let limits = Limits { servers: Vec::new().into(), projects: vec![ProjectId::new("q").unwrap()].into() };
    stage.who = Principal { name: "of-q".into(), limits, ..someone() };
    // The door keeps it out before; even inside there is nothing for it.
    let session = stage.project_session("p");
    assert!(listed(&mut stage, session).is_empty());
    let conn = stage.project_post("p", Some(session), &call("ext__t"));
    assert_eq!(stage.answer(conn)["error"]["code"], -32602);
    let own = stage.project_session("q");
    let conn = stage.project_post("q", Some(own), &list("tools/list"));
    assert!(names(&stage.answer(conn)).is_empty());
}
