//! What an external server may be, and what the refusals say.

use super::*;
use crate::wire::mutation::Mutator;

fn spec(given: Value) -> Result<ExternalSpec, Fault> {
    from_fields(given.as_object().unwrap().clone())
}

fn field_of(fault: &Fault) -> &str {
    fault.data["field"].as_str().unwrap_or_default()
}

fn full() -> Value {
    json!({"name": "Search_1.x", "description": "d", "transport": "http", "url": "https://h.test/mcp?k=${KEY}",
        "headers": {"Authorization": "Bearer ${TOKEN}", "x-a": "literal"}, "tls_ca": "/etc/ca.pem",
        "auth": {"type": "client_credentials", "token_url": "https://h.test/token", "client_id": "me",
            "client_secret": "${SECRET}", "scope": "a b", "resource": "https://h.test"},
        "enabled": false, "shared": false, "timeouts": {"request_ms": 5, "startup_ms": 6},
        "health": {"heartbeat_ms": 100, "probe_timeout_ms": 7}, "max_in_flight": 3, "queue_max": 4,
        "breaker": {"attempts": 2, "cooldown_ms": 9}})
}

fn program() -> Value {
    json!({"name": "files", "transport": "stdio", "command": "npx", "args": ["-y", "${PACKAGE}"],
        "env": {"KEY": "${SEARCH_API_KEY}", "MODE": "x"}})
}

#[test]
fn what_is_read_is_written_as_it_was() {
    for given in [full(), program()] {
        let read = spec(given).unwrap();
        let again = from_fields(written(&read, |text| json!(text.expose()))).unwrap();
        assert_eq!(again, read);
    }
    let read = spec(program()).unwrap();
    let Target::Program(program) = &read.target else { panic!("{read:?}") };
    assert_eq!((program.network.as_str(), program.isolation), ("bridge", Isolation::Sandbox));
    assert_eq!((read.enabled, read.shared, read.breaker), (true, true, Some(Breaker::default())));
}

#[test]
fn config_may_stand_beside_the_name_as_rows_show_it() {
    let nested = json!({"name": "a", "transport": "sse", "config": {"url": "http://h/sse"}});
    let beside = json!({"name": "a", "transport": "sse", "url": "http://h/sse"});
    assert_eq!(spec(nested).unwrap(), spec(beside).unwrap());
    let twice = json!({"name": "a", "transport": "sse", "url": "http://h/", "config": {"url": "http://h/"}});
    assert_eq!(field_of(&spec(twice).unwrap_err()), "url");
}

#[test]
fn every_field_that_breaks_a_rule_is_named_and_no_value_is_shown() {
    let http = |more: Value| {
        let mut all = json!({"name": "a", "transport": "http", "url": "http://h/"});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all
    };
    let stdio = |more: Value| {
        let mut all = json!({"name": "a", "transport": "stdio", "command": "x"});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all
    };
    for (given, field) in [
        (json!({"transport": "http", "url": "http://h/"}), "name"),
        (http(json!({"name": "a b"})), "name"),
        (http(json!({"name": ".."})), "name"),
        (http(json!({"name": "550e8400-e29b-41d4-a716-446655440000"})), "name"),
        (json!({"name": "a"}), "transport"),
        (http(json!({"transport": "tcp"})), "transport"),
        (json!({"name": "a", "transport": "http"}), "url"),
        (http(json!({"url": "ftp://hunter2/"})), "url"),
        (http(json!({"url": "http://hunter2@h/"})), "url"),
        (http(json!({"url": "ws://h/"})), "url"),
        (http(json!({"transport": "ws"})), "url"),
        (http(json!({"url": "http://${A}/\r\nhunter2: x"})), "url"),
        (http(json!({"headers": {"a b": "hunter2"}})), "headers[\"a b\"]"),
        (http(json!({"headers": {"x": "hunter2\r\ny: z"}})), "headers.x"),
        (http(json!({"headers": {"Host": "hunter2"}})), "headers.Host"),
        (http(json!({"headers": {"Mcp-Session-Id": "hunter2"}})), "headers.Mcp-Session-Id"),
        (http(json!({"headers": {"X": "hunter2", "x": "hunter2"}})), "headers.x"),
        (http(json!({"headers": {"x": null}})), "headers"),
        (http(json!({"tls_ca": "../hunter2"})), "tls_ca"),
        (http(json!({"command": "hunter2"})), "command"),
        (http(json!({"auth": {"type": "basic"}})), "auth.type"),
        (
            http(json!({"auth": {"type": "client_credentials", "token_url": "http://h/", "client_id": "x"}})),
            "auth.client_secret",
        ),
        (http(json!({"timeouts": {"request_ms": 0}})), "timeouts.request_ms"),
        (http(json!({"breaker": {"attempts": 0}})), "breaker.attempts"),
        (http(json!({"breaker": "hunter2"})), "breaker"),
        (http(json!({"colour": 1})), "colour"),
        (stdio(json!({"command": ""})), "command"),
        (stdio(json!({"url": "http://hunter2/"})), "url"),
        (stdio(json!({"args": "hunter2"})), "args"),
        (stdio(json!({"args": ["a\u{0}"]})), "args[0]"),
        (stdio(json!({"env": {"A=B": "hunter2"}})), "env[\"A=B\"]"),
        (stdio(json!({"env": {"A": null}})), "env"),
        (stdio(json!({"isolation": "some"})), "isolation"),
        (stdio(json!({"network": "../x"})), "network"),
    ] {
        let fault = spec(given.clone()).expect_err(field);
        assert_eq!(field_of(&fault), field, "{given}: {}", fault.message);
        assert!(!fault.message.contains("hunter2"), "{}", fault.message);
    }
}

#[test]
fn a_patch_changes_what_it_names_and_nothing_else() {
    let old = spec(full()).unwrap();
    let patched = |change: Value| merge(&old, change.as_object().unwrap());
    assert_eq!(patched(json!({})).unwrap(), old);
    let next = patched(json!({"headers": {"x-a": null, "x-b": "1"}, "enabled": true, "breaker": false})).unwrap();
    let Target::Remote(remote) = &next.target else { panic!("{next:?}") };
    assert_eq!(remote.headers.keys().collect::<Vec<_>>(), ["authorization", "x-b"]);
    assert_eq!((next.enabled, next.breaker, next.shared), (true, None, false));
    let next = patched(json!({"timeouts": {"request_ms": null}, "auth": null, "breaker": null})).unwrap();
    assert_eq!((next.request_timeout_ms, next.startup_timeout_ms), (30_000, 6));
    assert_eq!(next.breaker, Some(Breaker::default()));
    let next = patched(json!({"transport": "stdio", "command": "x"})).unwrap();
    assert_eq!(next.target.transport(), "stdio");
    assert_eq!(field_of(&patched(json!({"transport": "stdio"})).unwrap_err()), "command");
    assert_eq!(field_of(&patched(json!({"url": null})).unwrap_err()), "url");
}

#[test]
fn a_manifest_is_read_as_a_list_and_as_an_object_by_name_all_or_nothing() {
    let read = |servers: Value| manifest(json!({"mcp": {"servers": servers}}).as_object().unwrap().clone());
    let mut named = program();
    named.as_object_mut().unwrap().remove("name");
    assert_eq!(read(json!([program()])).unwrap(), read(json!({"files": named})).unwrap());
    assert_eq!(read(json!([])).unwrap(), []);
    let bad = json!({"name": "b", "transport": "http", "url": "x"});
    for (servers, field) in [
        (json!([program(), bad]), "mcp.servers[1].url"),
        (json!([program(), program()]), "mcp.servers[1].name"),
        (json!({"other": program()}), "mcp.servers[\"other\"].name"),
        (json!([7]), "mcp.servers[0]"),
        (json!(7), "mcp.servers"),
        (Value::Null, "mcp.servers"),
    ] {
        assert_eq!(field_of(&read(servers).unwrap_err()), field);
    }
    let none = manifest(Map::new()).unwrap_err();
    assert_eq!(field_of(&none), "mcp");
}

#[test]
fn whatever_can_be_read_is_written_and_read_again_without_a_panic() {
    let seeds = [full(), program()].map(|value| value.to_string().into_bytes());
    let seeds: Vec<&[u8]> = seeds.iter().map(Vec::as_slice).collect();
    let (mut mutator, mut taken) = (Mutator::new(27), 0);
    for _ in 0..20_000 {
        let Ok(Value::Object(given)) = serde_json::from_slice(&mutator.mutate(&seeds)) else { continue };
        let Ok(read) = from_fields(given) else { continue };
        taken += 1;
        assert_eq!(from_fields(written(&read, |text| json!(text.expose()))).unwrap(), read);
    }
    assert!(taken > 100, "{taken}");
}
