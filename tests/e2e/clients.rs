//! The clients that people really use, against a server in gVisor: the SDKs of both lines, FastMCP, mcp-remote and the
//! Inspector; and LangChain's adapters against the endpoint of a project. tests/clients/install gets them from the registries
//! once, and a client that fails fails the test.

use crate::support::far_server::FarServer;
use crate::support::{Daemon, conformance, inside};
use serde_json::json;
use std::process::Command;

const CLIENTS: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/clients");

#[test]
fn the_clients_that_people_use_list_the_tools_and_call_one() {
    let daemon = Daemon::start();
    let mut definition = conformance("fix", "gvisor", &[]);
    definition["resource_limits"] = json!({"cpu": "2"});
    daemon.register(&definition);
    let secret = daemon.cli_json(&["token", "create", "clients", "--scope", "mcp:call", "--server", "fix"]);
    let token = secret["token"].as_str().unwrap_or_else(|| panic!("{secret}"));
    let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/run"))
        .args([&format!("{}/mcp/fix", daemon.url()), token])
        .arg(CLIENTS)
        .output()
        .expect("bash runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(said.lines().filter(|line| line.starts_with("ok ")).count(), 10, "{said}");
    println!("{said}");
}

#[test]
fn langchain_has_the_tools_of_a_project_and_calls_them() {
    let (daemon, far) = (Daemon::start(), FarServer::start());
    let row = far.definition("far", "http");
    let added = daemon.request("POST", "/api/v1/projects/shop/mcp/servers", Some(&row));
    assert_eq!(added.status, 201, "{added}");
    let mut hosted = inside("near", "crun");
    hosted["project"] = json!("shop");
    daemon.register(&hosted);
    let made = daemon.cli_json(&["token", "create", "agents", "--scope", "mcp:call", "--project", "shop"]);
    let token = made["token"].as_str().unwrap_or_else(|| panic!("{made}"));
    let installed = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/install")).arg(CLIENTS).status();
    assert!(installed.expect("bash runs").success());
    let calls = json!([["far:search", {"q": "socks"}], ["near:run", {"code": "result = 6 * 7"}]]);
    let output = Command::new(format!("{CLIENTS}/langchain/bin/python"))
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/langchain.py"))
        .env("MCP_URL", format!("{}/p/shop/mcp", daemon.url()))
        .env("MCP_TOKEN", token)
        .env("MCP_CALLS", calls.to_string())
        .output()
        .expect("it was installed");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], r#"["far:fail", "far:search", "far:sleep", "near:run"]"#, "{said}");
    assert!(lines[1].starts_with("far:search ") && lines[1].contains(r#"found {"q": "socks"}"#), "{said}");
    assert!(lines[2].starts_with("near:run ") && lines[2].contains("42"), "{said}");
    assert_eq!(far.count("tools/call"), 1);
}
