//! The clients that people really use, against a server in gVisor: the SDKs of both lines, FastMCP, mcp-remote and the
//! Inspector. tests/clients/run installs them from the registries once and fails if one of them does.

use crate::support::{Daemon, conformance};
use serde_json::json;
use std::process::Command;

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
        .arg(concat!(env!("CARGO_TARGET_TMPDIR"), "/clients"))
        .output()
        .expect("bash runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(said.lines().filter(|line| line.starts_with("ok ")).count(), 10, "{said}");
    println!("{said}");
}
