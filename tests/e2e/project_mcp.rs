//! The MCP endpoint of a project with real links: the daemon's own hosted servers, reached over HTTP as if they were another's.

use crate::support::mcp::{McpClient, text};
use crate::support::{BASE, Daemon, NEWER, SOON, STRICT, eventually, python};
use serde_json::{Value, json};

const PROJECT: &str = "/api/v1/projects/p-1";

/// A daemon with a server that belongs to the project, and two that it reaches as external ones.
fn with_project() -> Daemon {
    let daemon = Daemon::start();
    for (name, script) in [("strict", STRICT), ("newer", NEWER)] {
        daemon.register(&python(name, "crun", script));
        add(&daemon, &format!("ext-{name}"), &format!("/mcp/{name}"));
    }
    let mut mine = python("mine", "crun", STRICT);
    mine["project"] = json!("p-1");
    daemon.register(&mine);
    put_secret(&daemon, daemon.token());
    daemon
}

fn add(daemon: &Daemon, name: &str, path: &str) {
    let url = format!("{}{path}", daemon.url());
    let row = json!({"name": name, "transport": "http", "url": url, "headers": {"Authorization": "Bearer ${TOKEN}"}});
    let reply = daemon.request("POST", &format!("{PROJECT}/mcp/servers"), Some(&row));
    assert_eq!(reply.status, 201, "{reply}");
}

fn put_secret(daemon: &Daemon, value: &str) {
    let reply = daemon.request("PUT", &format!("{PROJECT}/secrets/TOKEN"), Some(&json!({"value": value})));
    assert_eq!(reply.status, 200, "{reply}");
}

fn external(daemon: &Daemon, name: &str) -> Value {
    daemon.get(&format!("{PROJECT}/mcp/servers/{name}")).json()
}

fn tools(answer: &Value) -> Vec<&str> {
    let all = answer["result"]["tools"].as_array().unwrap_or_else(|| panic!("{answer}"));
    all.iter().map(|tool| tool["name"].as_str().expect("a name")).collect()
}

#[test]
fn all_servers_of_a_project_are_offered_at_one_endpoint_to_clients_of_both_eras() {
    let daemon = with_project();
    assert_eq!(external(&daemon, "ext-strict")["status"], "idle", "nobody has used it");
    for path in ["/p/p-1/mcp", "/api/v1/projects/p-1/mcp"] {
        let client = McpClient::connect(&daemon, path, json!({}));
        let listed = client.ask("tools/list", json!({}));
        assert_eq!(
            tools(&listed),
            ["ext-newer:greet", "ext-newer:echo", "ext-newer:touch", "ext-strict:echo", "mine:echo"]
        );
        for tool in ["ext-newer:echo", "ext-strict:echo", "mine:echo"] {
            assert_eq!(text(&client.tool(tool, json!({"text": tool}))), tool);
        }
        let stateless = client.stateless("tools/list", json!({}), json!({})).answer(1);
        assert_eq!(tools(&stateless), tools(&listed));
        let params = json!({"name": "ext-strict:echo", "arguments": {"text": "x"}});
        assert_eq!(text(&client.stateless("tools/call", params, json!({})).answer(1)), "x");
    }
    assert_eq!(external(&daemon, "ext-strict")["status"], "connected");
    // The endpoint of all servers has none of a project's links.
    let client = McpClient::connect(&daemon, "/mcp", json!({}));
    let all = client.ask("tools/list", json!({}));
    assert!(tools(&all).iter().all(|name| !name.starts_with("ext-")), "{all}");
}

#[test]
fn a_token_of_one_project_has_its_endpoint_and_no_others() {
    let daemon = with_project();
    let made = json!({"name": "of-p", "scopes": ["mcp:call"], "projects": ["p-1"]});
    let made = daemon.request("POST", "/api/v1/tokens", Some(&made));
    assert_eq!(made.status, 201, "{made}");
    let token = made.json()["token"].as_str().expect("the token").to_string();
    let mut client = McpClient::new(&daemon, "/p/p-1/mcp");
    client.token = token.clone();
    client.initialize(json!({}));
    assert_eq!(text(&client.tool("ext-strict:echo", json!({"text": "x"}))), "x");
    let mut other = McpClient::new(&daemon, "/p/p-2/mcp");
    other.token = token.clone();
    let refused = other.post(&json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {}}));
    assert_eq!(refused.status, 403);
    let mut all = McpClient::new(&daemon, "/mcp");
    all.token = token;
    all.initialize(json!({}));
    assert_eq!(tools(&all.ask("tools/list", json!({}))), ["mine:echo"]);
}

#[test]
fn a_secret_that_goes_is_named_and_one_that_changes_reconnects_whoever_uses_it() {
    let daemon = with_project();
    let client = McpClient::connect(&daemon, "/p/p-1/mcp", json!({}));
    assert_eq!(text(&client.tool("ext-strict:echo", json!({"text": "x"}))), "x");
    let gone = daemon.request("DELETE", &format!("{PROJECT}/secrets/TOKEN"), None);
    assert_eq!(gone.status, 204, "{gone}");
    let call = json!({"name": "echo", "server": "ext-strict", "arguments": {"text": "x"}});
    let refused = daemon.request("POST", &format!("{PROJECT}/mcp/tools/call"), Some(&call));
    assert_eq!((refused.status, refused.code()), (422, json!("secret_missing")), "{refused}");
    assert_eq!(refused.json()["error"]["data"]["missing"], json!(["TOKEN"]));
    let named = client.tool("ext-strict:echo", json!({"text": "x"}));
    assert_eq!(named["error"]["data"]["code"], "secret_missing", "{named}");
    assert_eq!(text(&client.tool("mine:echo", json!({"text": "x"}))), "x", "it uses none");

    put_secret(&daemon, daemon.token());
    assert_eq!(text(&client.tool("ext-strict:echo", json!({"text": "x"}))), "x");
    let since = external(&daemon, "ext-strict")["connected_since"].clone();
    put_secret(&daemon, daemon.token());
    assert_eq!(external(&daemon, "ext-strict")["connected_since"], since, "the same value is no change");
    put_secret(&daemon, "wrong");
    assert!(eventually(SOON, || external(&daemon, "ext-strict")["status"] != "connected"));
    put_secret(&daemon, daemon.token());
    assert!(eventually(SOON, || external(&daemon, "ext-strict")["status"] == "connected"));
}

#[test]
fn whoever_listens_hears_of_tools_that_come_and_go() {
    let daemon = with_project();
    let client = McpClient::connect(&daemon, "/p/p-1/mcp", json!({}));
    let before = client.ask("tools/list", json!({})).to_string();
    let mut stream = client.get(None);
    let mut told = |what: &str| loop {
        let message = stream.message().unwrap_or_else(|| panic!("the stream ends before {what}"));
        if message["method"] == "notifications/tools/list_changed" {
            return;
        }
    };
    let reply = daemon.request("POST", &format!("{PROJECT}/mcp/servers/ext-strict/disconnect"), None);
    assert_eq!(reply.status, 200, "{reply}");
    assert_eq!(client.ask("tools/list", json!({})).to_string(), before, "its next use connects it again");
    let off = json!({"enabled": false});
    let reply = daemon.request("PATCH", &format!("{PROJECT}/mcp/servers/ext-strict"), Some(&off));
    assert_eq!(reply.status, 200, "{reply}");
    told("it is disabled");
    assert!(!client.ask("tools/list", json!({})).to_string().contains("ext-strict"));
    let reply = daemon.request("DELETE", &format!("{BASE}/mine"), None);
    assert_eq!(reply.status, 204, "{reply}");
    told("a hosted server is removed");
    assert!(!client.ask("tools/list", json!({})).to_string().contains("mine:"));
}
