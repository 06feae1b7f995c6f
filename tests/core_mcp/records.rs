//! Records of a project's tool calls: each call gives one, whatever becomes of it, and none of them delays an answer.

use crate::projects::{call, rest_call};
use crate::stage::{Child, Stage, guest, request, someone};
use serde_json::{Value, json};
use stdiod::api::request::{ExternalRef, McpAsk, ProjectAsk, ResultFormat, ToolCall};
use stdiod::api::response::Answer;
use stdiod::core::contract::Input;
use stdiod::ids::ConnId;
use stdiod::limits::{RECORDS_BATCH, RECORDS_PAUSE};
use stdiod::model::external::{CallOutcome, ToolCallRecord};
use stdiod::model::records::{StoreOp, StoreOutcome};
use stdiod::wire::json::Json;

/// Those that were written since the last look.
fn records(stage: &mut Stage) -> Vec<ToolCallRecord> {
    stage.pass(RECORDS_PAUSE.as_millis() as u64);
    let mut found = Vec::new();
    for op in std::mem::take(&mut stage.ops) {
        if let StoreOp::InsertCalls(calls) = op {
            found.extend(calls);
        }
    }
    found
}

/// The parts of a record that tell what came of its call.
fn told(record: &ToolCallRecord) -> (Option<&str>, &str, CallOutcome, bool, Option<&str>) {
    (record.server.as_deref(), &record.tool, record.outcome, record.is_error, record.error_code.as_deref())
}

fn answered(stage: &mut Stage, result: Value) {
    let asked = stage.asked("tools/call");
    stage.reply(&asked, result);
}

fn with_arguments(stage: &mut Stage, arguments: &str, run_id: &str) -> ConnId {
    let arguments = Json::of(arguments).unwrap();
    let call = ToolCall {
        tool: "t".to_string(),
        arguments: Some(arguments),
        server: None,
        timeout_ms: None,
        format: ResultFormat::Json,
        run_id: Some(run_id.to_string()),
    };
    stage.of_project(&guest(), "p", ProjectAsk::CallTool(Box::new(call)))
}

#[test]
fn a_call_over_rest_leaves_a_record_with_everything_that_is_asked_of_it() {
    let mut stage = Stage::new();
    stage.external("p", "ext", Child::Older, json!({}));
    with_arguments(&mut stage, r#"{"a": 1.0e2}"#, "run-7");
    stage.pass(40);
    answered(&mut stage, json!({"content": [], "isError": true}));
    let all = records(&mut stage);
    let [record] = all.as_slice() else { panic!("{all:?}") };
    assert_eq!(told(record), (Some("ext"), "t", CallOutcome::Answered, true, Some("tool_error")));
    assert_eq!((record.project.as_str(), record.run_id.as_deref(), &*record.principal), ("p", Some("run-7"), "guest"));
    assert_eq!(record.arguments.as_deref(), Some(r#"{"a": 1.0e2}"#), "byte for byte");
    assert_eq!((record.arguments_bytes, record.duration_ms), (12, 40));
    assert_eq!(record.result_bytes, json!({"content": [], "isError": true}).to_string().len() as u64);
    assert!(records(&mut stage).is_empty(), "once");
}

#[test]
fn calls_of_every_kind_of_client_leave_one_record_each_and_other_requests_none() {
    let mut stage = Stage::new();
    stage.external("p", "ext", Child::Older, json!({"max_in_flight": 4}));
    stage.register("mine", Child::Older, json!({"project": "p"}));
    let session = stage.project_session("p");
    stage.project_post("p", Some(session), &request(1, "tools/list", json!({})));
    stage.project_post("p", Some(session), &request(2, "resources/read", json!({"uri": "ext:x://a"})));
    let read = stage.asked("resources/read");
    stage.reply(&read, json!({"contents": []}));
    assert!(records(&mut stage).is_empty());
    stage.project_post("p", Some(session), &call("ext__t"));
    answered(&mut stage, json!({"content": []}));
    stage.project_stateless("p", "tools/call", json!({"name": "mine__t", "arguments": {}}));
    answered(&mut stage, json!({"content": []}));
    rest_call(&mut stage, "t", Some("mine"));
    let asked = stage.asked("tools/call");
    stage.say(asked.0, &json!({"jsonrpc": "2.0", "id": asked.1["id"], "error": {"code": -32602, "message": "no"}}));
    // The same server by its own endpoint is no call of the project.
    let own = stage.session(Some("mine"), json!({}));
    stage.post(Some("mine"), own, &call("t"));
    answered(&mut stage, json!({"content": []}));
    let all = records(&mut stage);
    let seen: Vec<_> = all.iter().map(told).collect();
    let ok = |server| (Some(server), "t", CallOutcome::Answered, false, None);
    assert_eq!(seen, [ok("ext"), ok("mine"), (Some("mine"), "t", CallOutcome::Answered, true, Some("-32602"))]);
    assert_eq!(all[0].arguments.as_deref(), Some(r#"{"a":1}"#));
}

#[test]
fn a_call_that_fails_says_whether_it_was_sent() {
    let mut stage = Stage::new();
    stage.external("p", "ext", Child::Older, json!({"timeouts": {"request_ms": 1_000}, "breaker": false}));
    let session = stage.project_session("p");
    // Unknown; timed out; cancelled; its session ended; the link lost; not connected; disabled.
    rest_call(&mut stage, "nothing", None);
    stage.project_post("p", Some(session), &call("nobody__t"));
    rest_call(&mut stage, "t", None);
    stage.pass(1_000);
    stage.project_post("p", Some(session), &call("ext__t"));
    let cancelled = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}});
    stage.project_post("p", Some(session), &cancelled);
    stage.project_post("p", Some(session), &call("ext__t"));
    stage.project_mcp(&someone(), "p", McpAsk::End { session });
    let gone = rest_call(&mut stage, "t", None);
    stage.handle(Input::ClientGone { conn: gone });
    rest_call(&mut stage, "t", None);
    stage.reach.insert("ext".to_string(), crate::stage::Reach::Refused);
    let instance = stage.instance_of("ext");
    stage.handle(Input::LinkLost { instance, why: crate::projects::lost() });
    rest_call(&mut stage, "t", None);
    let all = records(&mut stage);
    let seen: Vec<_> = all.iter().map(told).collect();
    let failed = |outcome, code| (Some("ext"), "t", outcome, true, Some(code));
    assert_eq!(
        seen,
        [
            (None, "nothing", CallOutcome::NotSent, true, Some("tool_not_found")),
            (None, "nobody__t", CallOutcome::NotSent, true, Some("tool_not_found")),
            failed(CallOutcome::SentUnknown, "call_timeout"),
            failed(CallOutcome::SentUnknown, "cancelled"),
            failed(CallOutcome::SentUnknown, "not_found"),
            failed(CallOutcome::SentUnknown, "cancelled"),
            failed(CallOutcome::SentUnknown, "upstream_unavailable"),
            failed(CallOutcome::NotSent, "upstream_unavailable"),
        ]
    );
    let server = ExternalRef::Name("ext".to_string());
    stage.of_project(&someone(), "p", ProjectAsk::Delete { server });
}

#[test]
fn records_go_out_in_batches_one_at_a_time_and_wait_while_the_store_is_away() {
    let mut stage = Stage::new();
    stage.external("p", "ext", Child::Older, json!({}));
    let one = |stage: &mut Stage| {
        let conn = rest_call(stage, "t", None);
        answered(stage, json!({"content": []}));
        assert!(matches!(stage.answered(conn), Some(Answer::ToolResult { .. })), "no call waits for its record");
    };
    stage.ops.clear();
    for _ in 0..RECORDS_BATCH - 1 {
        one(&mut stage);
    }
    let written = |stage: &Stage| stage.ops.iter().filter(|op| matches!(op, StoreOp::InsertCalls(_))).count();
    assert_eq!(written(&stage), 0, "not one by one");
    one(&mut stage);
    assert_eq!(written(&stage), 1, "a batch is full");

    stage.stored = StoreOutcome::Unknown("the connection is gone".to_string());
    one(&mut stage);
    stage.pass(RECORDS_PAUSE.as_millis() as u64);
    stage.handle(Input::StoreLost { why: "gone".to_string() });
    stage.ops.clear();
    for _ in 0..2 * RECORDS_BATCH {
        one(&mut stage);
    }
    stage.pass(10 * RECORDS_PAUSE.as_millis() as u64);
    assert_eq!(written(&stage), 0, "nobody is there to take them");
    stage.stored = StoreOutcome::Committed;
    stage.handle(Input::StoreOpened { snapshot: None });
    let back = records(&mut stage);
    let mut ids: Vec<_> = back.iter().map(|record| record.id).collect();
    assert_eq!(ids.len(), 2 * RECORDS_BATCH + 1, "all of them, the one with an unknown fate again");
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 2 * RECORDS_BATCH + 1);
}
