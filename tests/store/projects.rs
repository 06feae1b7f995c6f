//! Projects in a real PostgreSQL: external servers, secrets that are sealed, records, and rows that anybody may have written.

use crate::rig::*;
use std::fs;
use stdiod::api::projects::fields;
use stdiod::ids::Uuid;
use stdiod::model::external::{
    CallFilter, CallOutcome, ExternalId, ExternalServer, ProjectId, Secret, SecretValue, StoredSecret, ToolCallRecord,
};
use stdiod::model::records::{Snapshot, StoreOp, StoreOutcome};
use stdiod::store::thread::StoreEvent;

fn project(name: &str) -> ProjectId {
    ProjectId::new(name).unwrap()
}

fn external(number: u128, name: &str, product: Option<&str>) -> ExternalServer {
    let given = serde_json::json!({"name": name, "transport": "http", "url": "http://127.0.0.1:1/mcp",
        "headers": {"authorization": "Bearer ${TOKEN}", "x-key": "hunter2"}});
    ExternalServer {
        id: ExternalId(Uuid::from_u128(number)),
        project: project("p-1"),
        product: product.map(str::to_string),
        spec: fields::from_fields(given.as_object().unwrap().clone()).unwrap(),
        created_unix_ms: 1_763_280_000_000 + number as u64,
        updated_unix_ms: 1_763_280_000_999,
    }
}

fn secret(name: &str, value: &str) -> StoredSecret {
    StoredSecret {
        project: project("p-1"),
        name: name.to_string(),
        value: SecretValue::Open(Secret::new(value)),
        created_unix_ms: 1_763_280_000_001,
        updated_unix_ms: 1_763_280_000_002,
    }
}

fn record(number: u128, tool: &str) -> ToolCallRecord {
    ToolCallRecord {
        id: Uuid::from_u128(number),
        project: project("p-1"),
        server: Some("search".to_string()),
        tool: tool.to_string(),
        run_id: Some("run-7".to_string()),
        principal: "agent".to_string(),
        arguments: Some(r#"{"q":"\u0000"}"#.to_string()),
        arguments_bytes: 14,
        is_error: number % 2 == 0,
        error_code: Some("tool_error".to_string()).filter(|_| number % 2 == 0),
        outcome: CallOutcome::Answered,
        started_unix_ms: 1_763_280_000_000 + number as u64,
        duration_ms: 12,
        result_bytes: 34,
    }
}

fn read(desk: &mut Desk, rig: &mut Rig, filter: CallFilter) -> Vec<ToolCallRecord> {
    let asked = desk.send(StoreOp::ReadCalls { project: project("p-1"), filter });
    match desk.event(rig, "CallsRead") {
        StoreEvent::CallsRead { seq, calls } if seq == asked => calls,
        other => panic!("no records: {other:?}"),
    }
}

/// A new daemon on the same database.
fn reopened(rig: &mut Rig, desk: Desk) -> (Desk, Snapshot) {
    desk.store.close();
    let mut desk = Desk::open(&rig.cluster.conninfo());
    let snapshot = desk.opened(rig).expect("a new daemon gets the snapshot");
    (desk, snapshot)
}

#[test]
fn external_servers_and_secrets_are_found_again_and_no_value_stands_there_in_clear() {
    let place = Place::new("externals");
    let mut rig = Rig::start(&place);
    let mut desk = Desk::open(&rig.cluster.conninfo());
    desk.opened(&mut rig);
    let (one, two, three) = (external(1, "a", None), external(2, "b", Some("shop")), external(3, "c", Some("shop")));
    let other_name = ExternalServer { id: ExternalId(Uuid::from_u128(9)), ..one.clone() };
    let replace = |servers: Vec<ExternalServer>| StoreOp::ReplaceProduct {
        project: project("p-1"),
        product: "shop".to_string(),
        servers,
    };
    for op in [
        StoreOp::PutExternal(Box::new(one.clone())),
        replace(vec![two.clone(), three.clone()]),
        StoreOp::PutSecret(secret("TOKEN", "old")),
        StoreOp::PutSecret(secret("TOKEN", "s3cret value")),
        StoreOp::PutSecret(secret("GONE", "x")),
        StoreOp::DeleteSecret { project: project("p-1"), name: "GONE".to_string() },
    ] {
        assert_eq!(desk.ask(&mut rig, op.clone()), StoreOutcome::Committed, "{op:?}");
    }
    // A name is unique in its project, and a manifest is taken as a whole or not at all.
    assert!(matches!(desk.ask(&mut rig, StoreOp::PutExternal(Box::new(other_name))), StoreOutcome::Taken(_)));
    let taken = ExternalServer { id: ExternalId(Uuid::from_u128(8)), ..external(8, "a", Some("shop")) };
    assert!(matches!(desk.ask(&mut rig, replace(vec![taken])), StoreOutcome::Taken(_)));
    let (mut desk, snapshot) = reopened(&mut rig, desk);
    assert_eq!(snapshot.externals, [one.clone(), two.clone(), three]);
    assert_eq!(snapshot.secrets, [secret("TOKEN", "s3cret value")]);

    assert_eq!(desk.ask(&mut rig, replace(vec![two.clone()])), StoreOutcome::Committed);
    assert_eq!(desk.ask(&mut rig, StoreOp::DeleteExternal { id: one.id }), StoreOutcome::Committed);
    let all = "SELECT string_agg(config::text, ' ') || (SELECT string_agg(sealed, ' ') FROM kb.project_secrets)
        FROM kb.project_mcp_servers";
    let text: String = rig.client().query_one(all, &[]).unwrap().get(0);
    assert!(text.contains("${TOKEN}") && !text.contains("hunter2") && !text.contains("s3cret"), "{text}");
    let (desk, snapshot) = reopened(&mut rig, desk);
    assert_eq!(snapshot.externals, [two]);
    desk.store.close();
    rig.stop();
}

#[test]
fn a_lost_or_another_key_destroys_nothing_and_is_named() {
    let place = Place::new("keys");
    let mut rig = Rig::start(&place);
    let mut desk = Desk::open(&rig.cluster.conninfo());
    desk.opened(&mut rig);
    assert_eq!(desk.ask(&mut rig, StoreOp::PutSecret(secret("KEY", "hunter2"))), StoreOutcome::Committed);
    let (key, kept) = (place.0.join("secret.key"), place.0.join("kept.key"));
    fs::rename(&key, &kept).unwrap();
    let (mut desk, snapshot) = reopened(&mut rig, desk);
    let SecretValue::Unreadable { why } = &snapshot.secrets[0].value else { panic!("opened without a key") };
    assert!(why.contains("secret.key"), "{why}");
    let refused = desk.ask(&mut rig, StoreOp::PutSecret(secret("OTHER", "x")));
    assert!(matches!(&refused, StoreOutcome::Rejected(why) if why.contains("secret.key")), "{refused:?}");
    assert!(!key.exists(), "nothing is put in its place");
    fs::rename(&kept, &key).unwrap();
    let (desk, snapshot) = reopened(&mut rig, desk);
    assert_eq!(snapshot.secrets, [secret("KEY", "hunter2")]);
    desk.store.close();
    rig.stop();
}

#[test]
fn records_are_written_once_read_newest_first_and_removed_when_they_are_old() {
    let place = Place::new("records");
    let mut rig = Rig::start(&place);
    let mut desk = Desk::open(&rig.cluster.conninfo());
    desk.opened(&mut rig);
    let all: Vec<ToolCallRecord> = (1..=5).map(|n| record(n, if n == 3 { "sum" } else { "echo" })).collect();
    for _ in 0..2 {
        assert_eq!(desk.ask(&mut rig, StoreOp::InsertCalls(all.clone())), StoreOutcome::Committed);
    }
    let any = || CallFilter { limit: 100, ..CallFilter::default() };
    let newest_first: Vec<ToolCallRecord> = all.iter().rev().cloned().collect();
    assert_eq!(read(&mut desk, &mut rig, any()), newest_first);
    assert_eq!(read(&mut desk, &mut rig, CallFilter { limit: 2, ..any() }), newest_first[..2]);
    let since = CallFilter { since_unix_ms: Some(all[3].started_unix_ms), ..any() };
    assert_eq!(read(&mut desk, &mut rig, since), newest_first[..2]);
    assert_eq!(read(&mut desk, &mut rig, CallFilter { tool: Some("sum".into()), ..any() }), all[2..3]);
    for nothing in
        [CallFilter { server: Some("x".into()), ..any() }, CallFilter { run_id: Some("x' OR true --".into()), ..any() }]
    {
        assert_eq!(read(&mut desk, &mut rig, nothing), []);
    }
    let before = StoreOp::DeleteCallsBefore { unix_ms: all[2].started_unix_ms };
    assert_eq!(desk.ask(&mut rig, before), StoreOutcome::Committed);
    assert_eq!(read(&mut desk, &mut rig, any()).len(), 3);
    desk.store.close();
    rig.stop();
}

#[test]
fn rows_that_break_a_rule_are_left_out_and_stop_nobody_else() {
    let place = Place::new("hostile-externals");
    let mut rig = Rig::start(&place);
    let mut desk = Desk::open(&rig.cluster.conninfo());
    desk.opened(&mut rig);
    let good = external(1, "good", None);
    desk.ask(&mut rig, StoreOp::PutExternal(Box::new(good.clone())));
    let rows = r#"
        INSERT INTO kb.project_mcp_servers (id, project_id, name, transport, config, updated_at) VALUES
        ('00000000-0000-0000-0000-000000000011', '../x', 'a', 'http', '{"url": "http://h/"}', now()),
        ('00000000-0000-0000-0000-000000000012', 'p', repeat('n', 100000), 'http', '{"url": "http://h/"}', now()),
        ('00000000-0000-0000-0000-000000000013', 'p', 'b', 'http', '{"url": "file:///etc/shadow"}', now()),
        ('00000000-0000-0000-0000-000000000014', 'p', 'c', 'http', '{"url": "http://h/", "colour": 1}', now()),
        ('00000000-0000-0000-0000-000000000015', 'p', 'd', 'stdio', '{"command": 7}', 'infinity'),
        ('00000000-0000-0000-0000-000000000016', 'p', 'e', 'http', '{"url": "http://h/", "headers": {"x": "sealed1:a:b"}}', now()),
        ('00000000-0000-0000-0000-000000000017', 'p', 'f', NULL, '{}', now()),
        ('00000000-0000-0000-0000-000000000018', 'p', 'clear', 'stdio', '{"command": "x", "env": {"A": "by hand"}}', 'infinity');
        INSERT INTO kb.project_secrets (project_id, name, sealed) VALUES ('p', 'A-B', 'x'), ('p', 'BAD', 'not sealed');
        INSERT INTO kb.agent_run_tool_calls (id, project_id, tool, arguments, started_at, duration_ms) VALUES
        ('00000000-0000-0000-0000-000000000021', 'p-1', 'odd', '{broken', 'infinity', -5)"#;
    rig.client().batch_execute(rows).unwrap();
    let (mut desk, snapshot) = reopened(&mut rig, desk);
    let names: Vec<&str> = snapshot.externals.iter().map(|server| server.spec.name.as_str()).collect();
    assert_eq!(names, ["good", "clear"], "and one that was written by hand, in clear");
    assert_eq!(snapshot.secrets.len(), 1);
    assert!(matches!(snapshot.secrets[0].value, SecretValue::Unreadable { .. }));
    let odd = read(&mut desk, &mut rig, CallFilter { limit: 10, ..CallFilter::default() });
    assert_eq!((odd.len(), odd[0].duration_ms, odd[0].started_unix_ms), (1, 0, 0));
    desk.store.close();
    rig.stop();
}
