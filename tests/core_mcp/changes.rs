//! Servers that are changed and removed, in the core alone: what it waits for, and what it leaves as it is.

use crate::stage::{Child, Stage, named, request, someone};
use serde_json::{Value, json};
use stdiod::api::request::{Ask, Change, LogFormat};
use stdiod::api::response::Answer;
use stdiod::core::contract::Input;
use stdiod::ids::InstanceId;
use stdiod::limits::STOP_GRACE;
use stdiod::model::fault::Code;
use stdiod::model::records::StoreOutcome;
use stdiod::model::status::Status;
use stdiod::shares::Short;

fn patch(stage: &mut Stage, name: &str, fields: &Value) -> Status {
    let change = Box::new(Change { fields: fields.as_object().expect("fields").clone() });
    let conn = stage.ask(&someone(), Ask::Patch { server: named(name), change });
    match stage.answered(conn) {
        Some(Answer::Status(view)) => view.status,
        other => panic!("{other:?}"),
    }
}

fn only(stage: &Stage) -> InstanceId {
    assert_eq!(stage.running.len(), 1);
    *stage.running.keys().next().expect("one")
}

#[test]
fn a_server_is_removed_when_its_last_instance_is_and_its_name_is_free_then() {
    for volumes in [false, true] {
        let mut stage = Stage::new();
        stage.register("own", Child::Older, json!({"shared": false, "volumes": ["/data"]}));
        let session = stage.session(Some("own"), json!({}));
        let conn = stage.post(Some("own"), session, &request(1, "tools/call", json!({"name": "t", "arguments": {}})));
        let (private, _) = stage.asked("tools/call");
        stage.deaf.insert(private);
        let deleted = stage.ask(&someone(), Ask::Delete { server: named("own"), volumes });
        assert_eq!(stage.answered(deleted), None, "the session's instance has not ended");
        assert!(stage.is_answered(conn));
        let definition = stdiod::api::definition::fields::parse(br#"{"name": "own", "rootfs": "host", "cmd": ["x"]}"#);
        let definition = Box::new(definition.expect("a valid definition"));
        let refused = stage.ask(&someone(), Ask::Register { definition, wait: true });
        assert!(matches!(stage.answered(refused), Some(Answer::Refused(fault)) if fault.code == Code::NameTaken));
        stage.pass(STOP_GRACE.as_millis() as u64);
        assert_eq!(stage.answered(deleted), Some(Answer::Deleted));
        stage.register("own", Child::Older, json!({}));
    }
}

#[test]
fn a_change_that_needs_no_new_instance_starts_none() {
    let mut stage = Stage::new();
    stage.register("once", Child::Older, json!({"restart_policy": "never"}));
    let instance = only(&stage);
    assert_eq!(patch(&mut stage, "once", &json!({"queue_max": 7})), Status::Ready);
    assert_eq!(only(&stage), instance);
    stage.exits(instance);
    assert_eq!(patch(&mut stage, "once", &json!({"queue_max": 8})), Status::Stopped);
    assert!(stage.running.is_empty());
    assert_eq!(patch(&mut stage, "once", &json!({"cmd": ["y"]})), Status::Ready);
    let instance = only(&stage);
    assert_eq!(patch(&mut stage, "once", &json!({"enabled": false})), Status::Stopped);
    assert_eq!(patch(&mut stage, "once", &json!({"enabled": true})), Status::Ready);
    assert_ne!(only(&stage), instance);
}

#[test]
fn a_restart_after_which_it_cannot_start_is_no_success() {
    let mut stage = Stage::new();
    stage.register("frail", Child::Older, json!({}));
    stage.is_broken = true;
    let conn = stage.ask(&someone(), Ask::Restart { server: named("frail") });
    let Some(Answer::Refused(fault)) = stage.answered(conn) else { panic!("no refusal") };
    assert_eq!((fault.code, &fault.data["cause"]), (Code::RestartFailed, &json!("no such file")));
    stage.is_broken = false;
    let conn = stage.ask(&someone(), Ask::Restart { server: named("frail") });
    assert!(matches!(stage.answered(conn), Some(Answer::Status(view)) if view.status == Status::Ready));
}

#[test]
fn what_an_instance_did_not_finish_saying_is_not_said_by_the_next() {
    let mut stage = Stage::new();
    stage.register("torn", Child::Older, json!({}));
    let first = only(&stage);
    stage.handle(Input::StderrRead { instance: first, bytes: b"half of a" });
    let conn = stage.ask(&someone(), Ask::Restart { server: named("torn") });
    assert!(matches!(stage.answered(conn), Some(Answer::Status(_))));
    stage.handle(Input::StderrRead { instance: only(&stage), bytes: b"whole\n" });
    let ask =
        Ask::Logs { server: named("torn"), tail: 50, since_unix_ms: None, follow: false, format: LogFormat::Text };
    let conn = stage.ask(&someone(), ask);
    let Some(Answer::Logs { entries, .. }) = stage.answered(conn) else { panic!("no log") };
    let said = |instance: InstanceId, text: &str| {
        entries.iter().filter(|entry| entry.instance == Some(instance) && entry.text == text).count()
    };
    assert_eq!((said(first, "half of a"), said(only(&stage), "whole")), (1, 1), "{entries:?}");
}

#[test]
fn a_call_that_finds_no_room_in_its_servers_pipe_was_not_sent() {
    let mut stage = Stage::new();
    stage.register("full", Child::Older, json!({}));
    let method = "\"tools/call\"".to_string();
    let asked = || Ask::Call {
        server: named("full"),
        method: serde_json::from_str(&method).expect("JSON"),
        params: None,
        timeout_ms: None,
    };
    let conn = stage.ask(&someone(), asked());
    let (_, written) = stage.asked("tools/call");
    let call = stdiod::ids::CallId(written["id"].as_u64().expect("ours"));
    stage.handle(Input::Unwritten { call, short: Short::Owner });
    let Some(Answer::Refused(fault)) = stage.answered(conn) else { panic!("no answer") };
    assert_eq!((fault.code, &fault.data["outcome"]), (Code::QueueFull, &json!("not_sent")));
    stage.handle(Input::Unwritten { call, short: Short::Whole });
    let conn = stage.ask(&someone(), asked());
    let (_, written) = stage.asked("tools/call");
    let call = stdiod::ids::CallId(written["id"].as_u64().expect("ours"));
    stage.handle(Input::Unwritten { call, short: Short::Whole });
    let Some(Answer::Refused(fault)) = stage.answered(conn) else { panic!("no answer") };
    assert_eq!((fault.code, &fault.data["outcome"]), (Code::Overloaded, &json!("not_sent")));
}

#[test]
fn who_registers_an_image_hears_why_its_start_failed_and_not_only_that_it_takes_long() {
    let mut stage = Stage::new();
    stage.is_slow = true;
    let definition = json!({"name": "mute", "image": "example.test/mute:1", "timeouts": {"startup_ms": 1_000}});
    let conn = stage.begin_register("mute", Child::Silent, &definition);
    let pull = stage.pulls.pop().expect("its image is asked for");
    stage.pass(5_000);
    stage.handle(Input::Pulled { pull });
    // The launch takes its time too, and the time for the handshake counts from its end.
    stage.pass(500);
    let instance = only(&stage);
    stage.handle(Input::Launched { instance });
    stage.pass(999);
    assert_eq!(stage.answered(conn), None, "it may still start");
    stage.pass(1);
    match stage.answered(conn) {
        Some(Answer::Registered(view)) => {
            assert!(view.last_error.is_some_and(|why| why.contains("initialize")), "the diagnosis");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_name_that_only_the_database_knows_is_taken_and_the_store_is_not_away() {
    let mut stage = Stage::new();
    let (why, definition) = ("a unique key".to_string(), json!({"name": "twin", "rootfs": "host", "cmd": ["x"]}));
    for (outcome, code) in
        [(StoreOutcome::Taken(why.clone()), Code::NameTaken), (StoreOutcome::Rejected(why), Code::StoreUnavailable)]
    {
        stage.stored = outcome;
        let conn = stage.begin_register("twin", Child::Older, &definition);
        assert!(matches!(stage.answered(conn), Some(Answer::Refused(fault)) if fault.code == code));
    }
    stage.stored = StoreOutcome::Committed;
    stage.register("twin", Child::Older, json!({}));
}
