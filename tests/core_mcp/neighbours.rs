//! Clients that share a process, in the core alone: what a server says without naming a call, what clients say that would
//! reach beyond their session, and lists that change faster than anybody can read them.

use crate::stage::{Child, Stage, named, request, someone};
use crate::{question, tool};
use serde_json::{Value, json};
use stdiod::api::request::Ask;
use stdiod::api::response::Answer;
use stdiod::core::contract::Input;
use stdiod::ids::{ConnId, InstanceId, SessionId};
use stdiod::limits::{LIST_PAUSE, SHARE_PRIVATE_INSTANCES, UNANSWERED_MAX};
use stdiod::model::principal::{Limits, Principal};
use stdiod::wire::json::JsonBuf;

const AT: Option<&str> = Some("old");

fn able() -> Value {
    json!({"elicitation": {}, "sampling": {}, "roots": {"listChanged": true}})
}

/// Somebody who may see these servers and no others.
fn limited_to(servers: &[&str]) -> Principal {
    let servers: Vec<String> = servers.iter().map(ToString::to_string).collect();
    let limits = Limits { servers: servers.into(), ..Limits::default() };
    Principal { name: "guest".into(), limits, ..someone() }
}

fn called(stage: &mut Stage, session: SessionId) -> (ConnId, (InstanceId, Value)) {
    let conn = stage.post(AT, session, &request(1, "tools/call", tool(json!({}))));
    (conn, stage.asked("tools/call"))
}

fn told(method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "method": method, "params": params})
}

/// Everything that names no call, and the answers that the server gets.
fn says_all(stage: &mut Stage, instance: InstanceId) -> Vec<Value> {
    stage.written.clear();
    stage.say(instance, &told("notifications/message", json!({"level": "error", "data": "secret"})));
    stage.say(instance, &told("notifications/anything", json!({"data": "secret"})));
    stage.say(instance, &question("q1"));
    let sampling = json!({"jsonrpc": "2.0", "id": "q2", "method": "sampling/createMessage", "params": {}});
    stage.say(instance, &sampling);
    std::mem::take(&mut stage.written).into_iter().map(|(_, message)| message).collect()
}

// --- whose it is ------------------------------------------------------------------------------------------------------

/// Ways to give up a call that was sent: a session's own, one of nobody in particular.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    TimesOut,
    Cancels,
    EndsSession,
    OverRest,
    WithoutSession,
}

fn given_up(stage: &mut Stage, way: Way) -> (InstanceId, Value) {
    let session = stage.session(AT, able());
    match way {
        Way::TimesOut => {
            let (_, call) = called(stage, session);
            stage.pass(30_000);
            call
        }
        Way::Cancels => {
            let (_, call) = called(stage, session);
            stage.post(AT, session, &told("notifications/cancelled", json!({"requestId": 1})));
            call
        }
        Way::EndsSession => {
            let (_, call) = called(stage, session);
            stage.end(AT, session);
            call
        }
        Way::OverRest => {
            let (method, params) = (r#""tools/call""#.to_string(), tool(json!({})).to_string());
            let (method, params) = (JsonBuf::of(method).unwrap(), JsonBuf::of(params).unwrap());
            let (server, params) = (named("old"), Some(params.as_json()));
            let conn = stage.ask(&someone(), Ask::Call { server, method: method.as_json(), params, timeout_ms: None });
            let call = stage.asked("tools/call");
            stage.handle(Input::ClientGone { conn });
            call
        }
        Way::WithoutSession => {
            stage.stateless(&someone(), "old", "tools/call", tool(json!({})));
            let call = stage.asked("tools/call");
            stage.pass(30_000);
            call
        }
    }
}

#[test]
fn while_a_call_that_was_given_up_has_no_answer_nobody_else_hears_what_may_be_about_it() {
    for way in [Way::TimesOut, Way::Cancels, Way::EndsSession, Way::OverRest, Way::WithoutSession] {
        let mut stage = Stage::new();
        stage.register("old", Child::Older, json!({}));
        let other = stage.session(AT, able());
        let levelled = stage.post(AT, other, &request(9, "logging/setLevel", json!({"level": "debug"})));
        assert_eq!(stage.answer(levelled)["result"], json!({}));
        let level = stage.asked("logging/setLevel");
        stage.reply(&level, json!({}));
        let get_stream = stage.listen(AT, other);
        let lost = given_up(&mut stage, way);
        // Idle: a log message would go to all who have set a level.
        stage.say(lost.0, &told("notifications/message", json!({"level": "error", "data": "secret"})));
        let (conn, call) = called(&mut stage, other);
        let answers = says_all(&mut stage, lost.0);
        assert!(answers.len() == 2 && answers.iter().all(|answer| answer["error"].is_object()), "{way:?}: {answers:?}");
        assert!(stage.heard(conn).is_empty() && stage.heard(get_stream).is_empty(), "{way:?}");

        // The late answer ends all doubt, whoever was in flight meanwhile.
        stage.reply(&lost, json!({"content": []}));
        assert!(says_all(&mut stage, lost.0).is_empty(), "{way:?}: the questions wait for the client");
        assert_eq!(stage.heard(conn).len(), 4, "{way:?}");
        stage.reply(&call, json!({"content": []}));
        assert!(stage.answer(conn)["result"].is_object());
    }
}

#[test]
fn what_is_said_for_a_call_that_was_given_up_may_reach_its_own_session() {
    let mut stage = Stage::new();
    stage.register("old", Child::Older, json!({}));
    let session = stage.session(AT, able());
    let (_, lost) = called(&mut stage, session);
    stage.pass(30_000);
    let (conn, _) = called(&mut stage, session);
    assert!(says_all(&mut stage, lost.0).is_empty());
    assert_eq!(stage.heard(conn).len(), 4);
}

#[test]
fn the_next_instance_owes_nothing_of_the_last() {
    let mut stage = Stage::new();
    stage.register("old", Child::Older, json!({}));
    let lost = given_up(&mut stage, Way::EndsSession);
    stage.exits(lost.0);
    let session = stage.session(AT, able());
    let (conn, call) = called(&mut stage, session);
    assert_ne!(call.0, lost.0);
    assert!(says_all(&mut stage, call.0).is_empty());
    assert_eq!(stage.heard(conn).len(), 4);
}

#[test]
fn of_a_server_that_leaves_too_many_calls_unanswered_nothing_is_believed_any_more() {
    let mut stage = Stage::new();
    stage.register("old", Child::Older, json!({}));
    let lost: Vec<_> = (0..=UNANSWERED_MAX).map(|_| given_up(&mut stage, Way::EndsSession)).collect();
    for call in &lost {
        stage.reply(call, json!({}));
    }
    let session = stage.session(AT, able());
    let (conn, call) = called(&mut stage, session);
    assert_eq!(says_all(&mut stage, call.0).len(), 2);
    assert!(stage.heard(conn).is_empty());
    // A call of its own is answered all the same, and what names it comes through.
    stage.reply(&call, json!({"content": []}));
    assert!(stage.answer(conn)["result"].is_object());
}

// --- what a client may send -------------------------------------------------------------------------------------------

#[test]
fn what_a_client_tells_reaches_the_process_only_if_it_is_about_its_own() {
    let mut stage = Stage::new();
    stage.register("old", Child::Older, json!({}));
    let (one, two) = (stage.session(AT, able()), stage.session(AT, able()));
    stage.written.clear();
    let roots = told("notifications/roots/list_changed", json!({}));
    stage.post(AT, one, &roots);
    stage.post(AT, one, &told("notifications/anything", json!({})));
    assert!(stage.written.is_empty(), "{:?}", stage.written);
    // While the server is at work for a client alone it may hear of that client's roots, and of no other's.
    let (conn, call) = called(&mut stage, one);
    stage.post(AT, two, &roots);
    assert!(stage.written.is_empty(), "{:?}", stage.written);
    stage.post(AT, one, &roots);
    assert_eq!(
        stage.written.drain(..).map(|(_, told)| told["method"].clone()).collect::<Vec<_>>(),
        [roots["method"].clone()]
    );

    // Progress of a question, from whoever was asked it.
    let mut asked = question("q");
    asked["params"]["_meta"] = json!({"progressToken": "mine"});
    stage.say(call.0, &asked);
    assert_eq!(stage.heard(conn).len(), 1);
    let progress = |token: &str| told("notifications/progress", json!({"progressToken": token, "progress": 1}));
    stage.post(AT, two, &progress("mine"));
    stage.post(AT, one, &progress("other"));
    assert!(stage.written.is_empty(), "{:?}", stage.written);
    stage.post(AT, one, &progress("mine"));
    assert_eq!(stage.written.pop().map(|(_, told)| told), Some(progress("mine")));
}

#[test]
fn requests_that_would_reach_beyond_a_session_are_answered_here() {
    let mut stage = Stage::new();
    stage.register("old", Child::Older, json!({}));
    stage.register("own", Child::Older, json!({"shared": false}));
    let session = stage.session(AT, able());
    for method in ["notifications/cancelled", "notifications/x", "tasks/list", "subscriptions/listen"] {
        let conn = stage.post(AT, session, &request(1, method, json!({"requestId": 1})));
        assert_eq!(stage.answer(conn)["error"]["code"], -32601, "{method}");
    }
    // Whose a task is that a shared process tells of, nobody knows.
    let (conn, call) = called(&mut stage, session);
    stage.say(call.0, &told("notifications/tasks/status", json!({"taskId": "secret", "status": "working"})));
    assert!(stage.heard(conn).is_empty());
    // A process of one's own has nobody else in it.
    let own = stage.session(Some("own"), able());
    stage.post(Some("own"), own, &request(1, "tasks/list", json!({})));
    stage.asked("tasks/list");
}

// --- lists ------------------------------------------------------------------------------------------------------------

fn changes(stage: &mut Stage, instance: InstanceId, tools: &mut usize) {
    *tools += 1;
    stage.tools = Some(json!({"tools": [{"name": format!("t{tools}")}]}));
    stage.say(instance, &told("notifications/tools/list_changed", json!({})));
}

fn instance_of(stage: &Stage, name: &str) -> InstanceId {
    *stage.running.iter().find(|(_, server)| *server == name).expect("it runs").0
}

#[test]
fn a_restless_list_is_fetched_and_told_now_and_then_and_its_last_change_always() {
    let mut stage = Stage::new();
    stage.register("old", Child::Older, json!({}));
    stage.register("calm", Child::Older, json!({}));
    let instance = instance_of(&stage, "old");
    let joint = stage.session(None, json!({}));
    let direct = stage.session(AT, json!({}));
    let beside = stage.session(Some("calm"), json!({}));
    stage.who = limited_to(&["calm"]);
    let guest = stage.session(None, json!({}));
    let deaf = [stage.listen(None, guest)];
    stage.who = someone();
    let related = [stage.listen(None, joint), stage.listen(AT, direct)];
    let deaf = [deaf[0], stage.listen(Some("calm"), beside)];
    // Until all is told of how they came, and the pause after that is over.
    stage.pass(10_000);
    stage.pass(10_000);
    for conn in related.into_iter().chain(deaf) {
        stage.heard(conn);
    }
    let (mut tools, mut heard) = (0, [0, 0]);
    let pause_ms = LIST_PAUSE.as_millis() as u64;
    changes(&mut stage, instance, &mut tools);
    for (count, conn) in heard.iter_mut().zip(related) {
        *count += stage.heard(conn).len();
    }
    assert_eq!(heard, [1, 1], "the first change is told at once");
    for _ in 0..1_000 {
        changes(&mut stage, instance, &mut tools);
        stage.pass(pause_ms / 100);
    }
    stage.pass(3 * pause_ms);
    for (count, conn) in heard.iter_mut().zip(related) {
        *count += stage.heard(conn).len();
    }
    // Ten pauses have passed, and both take one at each end.
    assert!(heard.iter().all(|count| (5..=13).contains(count)), "{heard:?}");
    assert!(deaf.into_iter().all(|conn| stage.heard(conn).is_empty()), "they have nothing to do with it");
    let conn = stage.post(None, joint, &request(1, "tools/list", json!({})));
    let names: Vec<Value> =
        stage.answer(conn)["result"]["tools"].as_array().unwrap().iter().map(|tool| tool["name"].clone()).collect();
    assert_eq!(names, [json!("calm__t"), json!(format!("old__t{tools}"))], "the last state is the one that is told");
}

#[test]
fn a_list_that_cannot_be_fetched_while_its_server_works_is_fetched_afterwards() {
    let mut stage = Stage::new();
    stage.register("old", Child::Older, json!({"timeouts": {"request_ms": 60_000}}));
    let (joint, session) = (stage.session(None, json!({})), stage.session(AT, json!({})));
    let (conn, call) = called(&mut stage, session);
    let mut tools = 0;
    changes(&mut stage, call.0, &mut tools);
    stage.pass(40_000);
    stage.reply(&call, json!({"content": []}));
    assert!(stage.is_answered(conn));
    stage.pass(1_000);
    let conn = stage.post(None, joint, &request(1, "tools/list", json!({})));
    assert_eq!(stage.answer(conn)["result"]["tools"][0]["name"], "old__t1");
}

#[test]
fn a_joined_list_that_is_too_long_comes_in_pages_and_is_copied_for_nobody() {
    const EACH: usize = 3_900_000;
    let mut stage = Stage::new();
    let schema = "x".repeat(EACH);
    for name in ["a", "b", "c", "d", "e"] {
        stage.tools = Some(json!({"tools": [{"name": "t", "description": schema}]}));
        stage.register(name, Child::Older, json!({}));
    }
    stage.tools = Some(json!({"tools": []}));
    stage.register("empty", Child::Older, json!({}));
    let session = stage.session(None, json!({}));
    let page = |stage: &mut Stage, params: Value| {
        let conn = stage.post(None, session, &request(1, "tools/list", params));
        assert!(stage.is_shared(conn), "it is put together from what is there");
        let answer = stage.answer(conn);
        let names = answer["result"]["tools"].as_array().unwrap_or_else(|| panic!("{answer:.200}")).iter();
        let names: Vec<String> = names.map(|tool| tool["name"].as_str().expect("a name").to_string()).collect();
        (names, answer["result"].get("nextCursor").cloned())
    };
    let (names, cursor) = page(&mut stage, json!({}));
    assert_eq!(names, ["a__t", "b__t", "c__t", "d__t"]);
    let (names, none) = page(&mut stage, json!({"cursor": cursor.expect("more")}));
    assert_eq!((&names[..], none), (&["e__t".to_string()][..], None));
    // What goes over a stream is copied, and so its pages are small.
    let conn = stage.post_streamed(None, session, &request(2, "tools/list", json!({})));
    let answer = stage.answer(conn);
    assert_eq!((&answer["result"]["tools"][0]["name"], &answer["result"]["nextCursor"]), (&json!("a__t"), &json!("a")));
    assert_eq!(answer["result"]["tools"].as_array().map(Vec::len), Some(1));
    let conn = stage.post(None, session, &request(3, "tools/list", json!({"cursor": 7})));
    assert_eq!(stage.answer(conn)["error"]["code"], -32602);
    // One that sees less has other pages.
    stage.who = limited_to(&["e", "b"]);
    let guest = stage.session(None, json!({}));
    let conn = stage.post(None, guest, &request(1, "tools/list", json!({})));
    let tools = stage.answer(conn)["result"]["tools"].clone();
    assert_eq!(
        (&tools[0]["name"], &tools[1]["name"], tools.as_array().map(Vec::len)),
        (&json!("b__t"), &json!("e__t"), Some(2))
    );
}

#[test]
fn lists_of_one_server_have_a_bound_and_so_have_those_of_all() {
    let mut stage = Stage::new();
    let session = stage.session(None, json!({}));
    let schema = "x".repeat(3_900_000);
    for n in 0..30 {
        stage.tools = Some(json!({"tools": [{"name": "t", "description": schema}]}));
        stage.register(&format!("s{n}"), Child::Older, json!({}));
    }
    let count = |stage: &mut Stage| {
        let (mut count, mut params) = (0, json!({}));
        loop {
            let conn = stage.post(None, session, &request(1, "tools/list", params));
            let result = stage.answer(conn)["result"].clone();
            count += result["tools"].as_array().expect("tools").len();
            match result.get("nextCursor") {
                Some(cursor) => params = json!({"cursor": cursor}),
                None => return count,
            }
        }
    };
    let kept = count(&mut stage);
    assert_eq!(kept, stdiod::limits::SHARE_LISTS.whole / (2 * 3_900_000), "as they came and as they are told on");
    // One that goes makes room; a small one fits all the same.
    stage.delete("s0");
    stage.register("late", Child::Older, json!({}));
    assert_eq!(count(&mut stage), kept);
    let items: Vec<Value> = (0..=stdiod::limits::LIST_ITEMS_MAX).map(|n| json!({"name": n.to_string()})).collect();
    stage.tools = Some(json!({"tools": items}));
    stage.delete("s1");
    stage.register("many", Child::Older, json!({}));
    assert_eq!(count(&mut stage), kept - 1, "a list of too many items is not kept");
}

// --- memory -----------------------------------------------------------------------------------------------------------

/// A call with this many bytes of arguments.
fn large(stage: &mut Stage, who: &str, server: &str, bytes: usize) -> ConnId {
    let who = Principal { name: who.into(), ..someone() };
    let params = JsonBuf::of(tool(json!({"text": "x".repeat(bytes)})).to_string()).unwrap();
    let method = JsonBuf::of(r#""tools/call""#.to_string()).unwrap();
    let (server, params) = (named(server), Some(params.as_json()));
    stage.ask(&who, Ask::Call { server, method: method.as_json(), params, timeout_ms: None })
}

#[test]
fn whoever_fills_the_memory_for_waiting_calls_makes_way_for_others() {
    const MIB: usize = 1 << 20;
    let mut stage = Stage::new();
    stage.register("old", Child::Older, json!({}));
    stage.call(&someone(), "old", None);
    let of_hog: Vec<ConnId> = (0..10).map(|_| large(&mut stage, "hog", "old", 4 * MIB - 1000)).collect();
    assert!(
        of_hog.iter().all(|conn| !stage.is_answered(*conn)),
        "all of it is the hog's, as long as nobody else comes"
    );
    let one_more = large(&mut stage, "hog", "old", MIB);
    assert!(stage.is_answered(one_more), "it has all there is");
    let guest = large(&mut stage, "guest", "old", MIB);
    assert!(!stage.is_answered(guest), "somebody with less has its place");
    let gave_way: Vec<bool> = of_hog.iter().map(|conn| stage.is_answered(*conn)).collect();
    assert_eq!(gave_way, [vec![false; 9], vec![true]].concat(), "the last of the hog's calls");
}

#[test]
fn one_token_does_not_fill_the_memory_for_waiting_calls_of_all_servers() {
    const MIB: usize = 1 << 20;
    let mut stage = Stage::new();
    let names: Vec<String> = (0..8).map(|n| format!("s{n}")).collect();
    for name in &names {
        stage.register(name, Child::Older, json!({}));
        stage.call(&someone(), name, None);
        for _ in 0..9 {
            large(&mut stage, "hog", name, 4 * MIB);
        }
    }
    for name in &names {
        let guest = large(&mut stage, "guest", name, MIB);
        assert!(!stage.is_answered(guest), "{name}");
    }
}

#[test]
fn the_lists_of_all_instances_of_a_server_are_its_one_share() {
    let mut stage = Stage::new();
    stage.tools = Some(json!({"tools": [{"name": "t", "description": "x".repeat(4_000_000)}]}));
    stage.register("own", Child::Older, json!({"shared": false}));
    for _ in 0..SHARE_PRIVATE_INSTANCES.principal {
        stage.session(Some("own"), json!({}));
    }
    stage.tools = Some(json!({"tools": [{"name": "calm"}]}));
    stage.register("calm", Child::Older, json!({}));
    let conn = stage.ask(&someone(), Ask::Tools { server: named("calm") });
    assert!(matches!(stage.answered(conn), Some(Answer::Tools(Some(_)))), "there is room for what others offer");
}
