//! Servers that nobody uses: what puts them to rest, what keeps them awake, what is told meanwhile, and who wakes them.

use crate::stage::{Child, STATELESS, Stage, named, request, someone};
use serde_json::{Value, json};
use stdiod::api::request::Ask;
use stdiod::api::response::Answer;
use stdiod::core::contract::Input;
use stdiod::model::definition::IdleMode;
use stdiod::model::records::{Snapshot, StoreOp, StoredServer};
use stdiod::model::status::{Status, StatusView};
use stdiod::wire::json::Json;

fn stopping() -> Value {
    json!({"idle": {"after_ms": 1_000, "mode": "stop"}})
}

fn status(stage: &mut Stage, name: &str) -> Box<StatusView> {
    let conn = stage.ask(&someone(), Ask::Get { server: named(name) });
    match stage.answered(conn) {
        Some(Answer::Status(view)) => view,
        other => panic!("{other:?}"),
    }
}

fn asked(stage: &mut Stage, name: &str, method: &str) -> Value {
    let method = format!("\"{method}\"");
    let method = Json::of(&method).unwrap();
    let conn = stage.ask(&someone(), Ask::Call { server: named(name), method, params: None, timeout_ms: None });
    stage.answer(conn)
}

/// A server that went to rest a moment ago.
fn asleep(child: Child) -> Stage {
    let mut stage = Stage::new();
    stage.register("old", child, stopping());
    stage.pass(999);
    assert_eq!(status(&mut stage, "old").status, Status::Ready);
    stage.pass(1);
    assert!(stage.running.is_empty(), "it was told to go, and went");
    let view = status(&mut stage, "old");
    assert_eq!((view.status, view.restart_count, view.last_crash.is_some()), (Status::Asleep, 0, false));
    assert_eq!(view.asleep.map(|asleep| asleep.mode), Some(IdleMode::Stop));
    stage
}

#[test]
fn fifty_calls_at_once_make_one_wake_and_each_is_answered_once() {
    let mut stage = asleep(Child::Older);
    stage.is_slow = true;
    let conns: Vec<_> = (0..50).map(|_| stage.call(&someone(), "old", None)).collect();
    assert_eq!(stage.running.len(), 1, "{:?}", stage.running);
    let woken = stage.instance_of("old");
    stage.pass(70);
    stage.handle(Input::Launched { instance: woken });
    for conn in &conns {
        assert!(!stage.is_answered(*conn));
        let call = stage.asked("tools/call");
        assert_eq!(call.0, woken);
        stage.reply(&call, json!({"content": []}));
        assert!(stage.is_answered(*conn), "in the order in which they came");
    }
    let view = status(&mut stage, "old");
    assert_eq!((view.status, view.last_wake_ms, view.asleep), (Status::Ready, Some(70), None));
    assert_eq!(view.restart_count, 0, "a wake is no restart");
}

#[test]
fn a_call_that_comes_while_it_is_on_its_way_to_rest_is_served_by_the_next_instance() {
    let mut stage = Stage::new();
    stage.register("old", Child::Older, stopping());
    let first = stage.instance_of("old");
    stage.deaf.insert(first);
    stage.pass(1_000);
    assert_eq!(status(&mut stage, "old").status, Status::Stopping);
    let conn = stage.call(&someone(), "old", None);
    assert!(!stage.is_answered(conn) && stage.running.len() == 1, "one instance at a time");
    stage.exits(first);
    let call = stage.asked("tools/call");
    assert_ne!(call.0, first);
    stage.reply(&call, json!({"content": []}));
    assert!(stage.is_answered(conn));
    assert_eq!(status(&mut stage, "old").status, Status::Ready);
}

#[test]
fn lists_pings_and_introductions_are_answered_while_it_rests_and_wake_nobody() {
    let mut stage = asleep(Child::Older);
    assert_eq!(asked(&mut stage, "old", "tools/list")["tools"][0]["name"], "t");
    assert_eq!(asked(&mut stage, "old", "resources/list")["resources"][0]["uri"], "x://a");
    assert_eq!(asked(&mut stage, "old", "ping"), json!({}));
    assert_eq!(asked(&mut stage, "old", "initialize")["serverInfo"]["name"], "old");
    let session = stage.session(Some("old"), json!({}));
    let conn = stage.post(Some("old"), session, &request(1, "tools/list", json!({})));
    assert_eq!(stage.answer(conn)["result"]["tools"][0]["name"], "t");
    let conn = stage.post(Some("old"), session, &request(2, "prompts/list", json!({})));
    assert_eq!(stage.answer(conn)["error"]["code"], -32601, "as the server would say: it has none");
    let joint = stage.session(None, json!({}));
    let conn = stage.post(None, joint, &request(3, "tools/list", json!({})));
    assert_eq!(stage.answer(conn)["result"]["tools"][0]["name"], "old__t");
    for method in ["tools/list", "server/discover"] {
        let conn = stage.stateless(&someone(), "old", method, json!({}));
        let answer = stage.answer(conn);
        assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
    }
    stage.pass(60_000);
    assert!(stage.running.is_empty(), "{:?}", stage.running);
    // What is more than a list wakes it.
    let conn = stage.post(Some("old"), session, &request(4, "tools/call", json!({"name": "t"})));
    let call = stage.asked("tools/call");
    stage.reply(&call, json!({"content": []}));
    assert_eq!(stage.answer(conn)["id"], 4);
}

#[test]
fn a_client_without_a_session_wakes_whoever_serves_it() {
    for (child, name) in [(Child::Older, "an older server"), (Child::NewerOnly, "a newer one")] {
        let mut stage = asleep(child);
        let conn = stage.stateless(&someone(), "old", "tools/list", json!({}));
        assert_eq!(stage.answer(conn)["result"]["tools"][0]["name"], "t", "{name}");
        assert!(stage.running.is_empty());
        let meta = json!({"io.modelcontextprotocol/protocolVersion": STATELESS});
        let conn = stage.stateless(&someone(), "old", "tools/call", json!({"name": "t", "_meta": meta}));
        let call = stage.asked("tools/call");
        stage.reply(&call, json!({"content": []}));
        assert!(stage.is_answered(conn), "{name}");
        assert_eq!(status(&mut stage, "old").status, Status::Ready);
        stage.pass(10_000);
        assert!(stage.running.is_empty(), "with all its instances: {:?}", stage.running);
    }
}

#[test]
fn whatever_may_still_carry_something_keeps_it_awake() {
    type Hold = fn(&mut Stage, stdiod::ids::SessionId) -> stdiod::ids::ConnId;
    let holds: [(&str, Hold); 4] = [
        ("a call", |stage, _| stage.call(&someone(), "old", Some(3_600_000))),
        ("a stream", |stage, session| stage.listen(Some("old"), session)),
        ("a listener", |stage, _| {
            let params = json!({"notifications": {"toolsListChanged": true}});
            stage.stateless(&someone(), "old", "subscriptions/listen", params)
        }),
        ("a question", |stage, session| {
            let call = request(1, "tools/call", json!({"name": "t"}));
            let conn = stage.post_streamed(Some("old"), session, &call);
            let (instance, _) = stage.asked("tools/call");
            let params = json!({"message": "?"});
            stage
                .say(instance, &json!({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": params}));
            conn
        }),
    ];
    for (what, hold) in holds {
        let mut stage = Stage::new();
        stage.register("old", Child::Older, stopping());
        let session = stage.session(Some("old"), json!({"elicitation": {}}));
        let conn = hold(&mut stage, session);
        stage.pass(900);
        for _ in 0..10 {
            stage.pass(1_000);
            assert!(stage.running.values().any(|name| name == "old"), "{what} keeps it awake");
        }
        stage.handle(Input::ClientGone { conn });
        // A stream that breaks off may be resumed; its session is its own.
        stage.end(Some("old"), session);
        stage.pass(10_000);
        stage.pass(10_000);
        assert!(stage.running.is_empty(), "{what} is over: {:?}", stage.running);
    }
}

#[test]
fn a_subscription_keeps_it_awake_until_it_is_taken_back() {
    let mut stage = Stage::new();
    stage.register("old", Child::Older, stopping());
    let session = stage.session(Some("old"), json!({}));
    let conn = stage.post(Some("old"), session, &request(1, "resources/subscribe", json!({"uri": "x://a"})));
    let subscribe = stage.asked("resources/subscribe");
    stage.reply(&subscribe, json!({}));
    assert!(stage.is_answered(conn));
    stage.pass(60_000);
    assert_eq!(status(&mut stage, "old").status, Status::Ready);
    stage.post(Some("old"), session, &request(2, "resources/unsubscribe", json!({"uri": "x://a"})));
    let unsubscribe = stage.asked("resources/unsubscribe");
    stage.reply(&unsubscribe, json!({}));
    stage.pass(60_000);
    assert_eq!(status(&mut stage, "old").status, Status::Asleep);
}

#[test]
fn what_it_offers_is_known_to_the_next_daemon_which_starts_it_with_its_first_use() {
    let mut stage = Stage::new();
    stage.register("old", Child::Older, json!({"idle": {"start": "on_demand"}}));
    assert_eq!(stage.running.len(), 1, "a registration starts once");
    // Written behind.
    stage.pass(5_000);
    let row = stage.ops.iter().find_map(|op| match op {
        StoreOp::InsertServer(row) => Some((**row).clone()),
        _ => None,
    });
    let row: StoredServer = row.expect("it was registered");
    let kept = stage.ops.iter().rev().find_map(|op| match op {
        StoreOp::SaveCatalogue { id, catalogue } => Some((*id, (**catalogue).clone())),
        _ => None,
    });
    let snapshot = Snapshot { servers: vec![row], catalogues: kept.into_iter().collect(), ..Snapshot::default() };
    let without = Snapshot { catalogues: Vec::new(), ..snapshot.clone() };
    assert_eq!(Stage::booted(without).running.len(), 1, "of one that is not known what it offers is asked");

    let mut stage = Stage::booted(snapshot);
    assert!(stage.running.is_empty());
    assert_eq!(status(&mut stage, "old").status, Status::Asleep);
    assert_eq!(asked(&mut stage, "old", "tools/list")["tools"][0]["name"], "t");
    let session = stage.session(Some("old"), json!({}));
    let joint = stage.session(None, json!({}));
    let conn = stage.post(None, joint, &request(3, "tools/list", json!({})));
    assert_eq!(stage.answer(conn)["result"]["tools"][0]["name"], "old__t");
    assert!(stage.running.is_empty());
    let conn = stage.post(Some("old"), session, &request(4, "tools/call", json!({"name": "t"})));
    let call = stage.asked("tools/call");
    stage.reply(&call, json!({"content": []}));
    assert_eq!(stage.answer(conn)["id"], 4);
    let written = stage.ops.iter().filter(|op| matches!(op, StoreOp::SaveCatalogue { .. })).count();
    stage.pass(60_000);
    assert_eq!(written, 0, "what the store knows is not written again");
    assert_eq!(status(&mut stage, "old").status, Status::Ready, "nothing was said of going to rest again");
}

#[test]
fn one_that_dozes_keeps_its_instance_is_not_asked_for_its_pulse_and_is_woken_by_the_next_byte() {
    let said = json!({"idle": {"after_ms": 1_000, "mode": "doze"}});
    for (said, shown) in [(said, Status::Asleep), (json!({"idle": {"after_ms": 1_000}}), Status::Ready)] {
        let mut stage = Stage::new();
        // It was seen that idle sandboxes of this provider take time.
        let providers = vec!["crun".to_string()];
        stage.handle(Input::Swept { providers: providers.clone(), unusable: Vec::new(), polling: providers });
        stage.register("old", Child::Older, said);
        let instance = stage.instance_of("old");
        stage.pass(1_000);
        stage.written.clear();
        assert!(stage.dozing.contains(&instance));
        assert_eq!(status(&mut stage, "old").status, shown);
        stage.pass(3_600_000);
        assert_eq!(stage.written, [], "heartbeats wake nobody");
        let conn = stage.call(&someone(), "old", None);
        assert!(stage.dozing.is_empty());
        let call = stage.asked("tools/call");
        assert_eq!(call.0, instance, "the very same");
        stage.reply(&call, json!({"content": []}));
        assert!(stage.is_answered(conn));
        let view = status(&mut stage, "old");
        assert_eq!((view.status, view.last_wake_ms, view.warnings.len()), (Status::Ready, Some(0), 0));
        stage.pass(1_000);
        assert!(stage.dozing.contains(&instance), "and again");
    }
}

#[test]
fn one_that_is_stopped_in_its_sleep_is_stopped_and_one_that_is_changed_starts_once() {
    let mut stage = asleep(Child::Older);
    let conn = stage.ask(&someone(), Ask::Stop { server: named("old") });
    assert!(matches!(stage.answered(conn), Some(Answer::Status(view)) if view.status == Status::Stopped));
    let refused = stage.call(&someone(), "old", None);
    assert!(matches!(stage.answered(refused), Some(Answer::Refused(_))));
    assert!(stage.running.is_empty());
    let conn = stage.ask(&someone(), Ask::Start { server: named("old") });
    assert!(matches!(stage.answered(conn), Some(Answer::Status(view)) if view.status == Status::Ready));
    stage.pass(10_000);
    assert!(stage.running.is_empty());
    let fields = json!({"cmd": ["y"]}).as_object().unwrap().clone();
    let change = Box::new(stdiod::api::request::Change { fields });
    stage.ask(&someone(), Ask::Patch { server: named("old"), change });
    assert_eq!(stage.running.len(), 1, "what it offers may be something else now");
    stage.pass(10_000);
    stage.delete("old");
    assert!(stage.running.is_empty());
}
