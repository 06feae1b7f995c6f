//! The servers people will bring: the two minimal ones of the hosting guide as printed there, and two real ones.

use crate::support::{Daemon, on_both_providers};
use serde_json::{Value, json};

const NODE_GUIDE: &str = include_str!("../fixtures/node-guide.js");
const PYTHON_GUIDE: &str = include_str!("../fixtures/python-guide.py");
const FIXTURES: &str = "/usr/local/lib/stdiod-fixtures";

on_both_providers!(the_guides_servers_answer_as_printed, real_servers_of_npm_and_pypi_work_unchanged);

fn the_guides_servers_answer_as_printed(provider: &str) {
    let daemon = Daemon::start();
    let guide = |name: &str, program: &str, file: &str, text: &str| {
        let cmd = [program, file];
        json!({"name": name, "rootfs": "host", "provider": provider, "cmd": cmd, "files": {file: text}})
    };

    let status = daemon.register(&guide("guide-node", "node", "/app/server.js", NODE_GUIDE));
    assert_eq!(status["provider"], provider);
    assert_eq!(status["bridge_connected"], true);
    let tools = daemon.call("guide-node", "tools/list", &json!({})).json();
    assert_eq!(tools["result"]["tools"][0]["name"], "echo", "{tools}");
    assert_eq!(tools["error"], Value::Null);
    assert_eq!(daemon.text("guide-node", "echo", json!({"text": "grüße"})), "grüße");

    let unknown = daemon.tool("guide-node", "nope", json!({}));
    assert_eq!((unknown.status, unknown.code()), (404, json!(-32601)), "{unknown}");
    assert_eq!(unknown.json()["error"]["message"], "Unknown tool: nope");
    assert_eq!(unknown.json()["result"], Value::Null);
    assert_eq!(unknown.header("x-stdiod-error-source"), Some("server"));

    daemon.register(&guide("guide-python", "python3", "/app/server.py", PYTHON_GUIDE));
    assert_eq!(daemon.call("guide-python", "tools/list", &json!({})).json()["result"], json!({"tools": []}));
    assert_eq!(daemon.text("guide-python", "anything", json!({})), "Called anything");
    let unknown = daemon.call("guide-python", "nope", &json!({}));
    assert_eq!((unknown.status, unknown.code()), (404, json!(-32601)), "{unknown}");
    assert_eq!(unknown.json()["error"]["message"], "Method not found: nope");

    // The other name of the same API.
    let reply = daemon.request("POST", "/api/v1/mcp/hosted/guide-python/call", Some(&json!({"method": "tools/list"})));
    assert_eq!(reply.json()["result"], json!({"tools": []}), "{reply}");
}

fn real_servers_of_npm_and_pypi_work_unchanged(provider: &str) {
    let daemon = Daemon::start();
    let everything = format!("{FIXTURES}/node/node_modules/@modelcontextprotocol/server-everything/dist/index.js");
    assert!(std::path::Path::new(&everything).exists(), "{everything} is missing: run scripts/setup --tests");

    let status = daemon.register(&json!({
        "name": "everything", "rootfs": "host", "provider": provider, "cmd": ["/usr/bin/node", everything],
    }));
    assert!(status["server_info"]["name"].is_string(), "{status:#}");
    assert!(status["protocol_version"].is_string(), "{status:#}");
    let tools = daemon.call("everything", "tools/list", &json!({})).json();
    assert!(tools["result"]["tools"].as_array().is_some_and(|tools| tools.len() > 5), "{tools}");
    assert_eq!(daemon.text("everything", "echo", json!({"message": "hi"})), "Echo: hi");
    let cached = daemon.get("/api/v1/mcp/servers/everything/tools").json();
    assert!(cached.to_string().contains("\"echo\""), "{cached}");

    daemon.register(&json!({
        "name": "time", "rootfs": "host", "provider": provider,
        "cmd": ["/usr/bin/python3", "-m", "mcp_server_time", "--local-timezone", "UTC"],
        "environment": {"PYTHONPATH": format!("{FIXTURES}/python")},
    }));
    let tools = daemon.call("time", "tools/list", &json!({})).json();
    assert_eq!(tools["result"]["tools"].as_array().map(Vec::len), Some(2), "{tools}");
    let now: Value =
        serde_json::from_str(&daemon.text("time", "get_current_time", json!({"timezone": "UTC"}))).unwrap();
    assert_eq!(now["timezone"], "UTC", "{now}");
}
