//! SIGKILL of the daemon at any moment of a start: while mounts are made, the network is connected, the runtime starts.
//! Whatever was half done is found by the next life, which works and leaves nothing when it ends.

mod support;

use serde_json::json;
use std::process::Command;
use std::time::Duration;
use support::{BASE, Daemon, SOON, eventually, inside};

/// Each boot starts all servers at once, and is killed while it does.
const KILLS: u64 = 50;

#[test]
fn a_daemon_killed_in_mid_start_is_followed_by_one_that_cleans_up_and_works() {
    let mut daemon = Daemon::start();
    let mut names = Vec::new();
    for (provider, networked) in [("crun", false), ("crun", true), ("gvisor", false), ("gvisor", true)] {
        let name = format!("{provider}-{}", if networked { "net" } else { "none" });
        let mut server = inside(&name, provider);
        server["volumes"] = json!(["/data"]);
        if networked {
            server["network"] = json!("bridge");
            server["egress"] = json!(["192.0.2.1:9"]);
        }
        daemon.register(&server);
        names.push(name);
    }
    daemon.kill();
    let mut interrupted = 0;
    for round in 0..KILLS {
        daemon.start_again();
        // Another moment in every round, spread over what a start takes; not random, so that a failure comes again.
        std::thread::sleep(Duration::from_millis(round * 37 % 600));
        let up = daemon.get(BASE).json();
        let up = up.as_array().expect("a list").iter().filter(|status| status["status"] == "ready").count();
        interrupted += names.len() - up;
        daemon.kill();
    }
    // What was seen of all lives but the last.
    let seen = daemon.seen_before();
    daemon.start_again();
    for name in &names {
        daemon.wait_ready(name);
    }
    for name in &names {
        assert_eq!(daemon.inside(name, "result = 'well'"), json!("well"), "{name}");
    }
    println!("{KILLS} kills, {interrupted} starts interrupted");
    assert!(interrupted as u64 >= KILLS, "too few starts were hit: {interrupted}");
    let mut left = Vec::new();
    assert!(
        eventually(SOON, || {
            left = seen.left();
            left.is_empty()
        }),
        "of earlier lives: {left:#?}"
    );
    let mark = stdiod::sandbox::plan::Layout::of(daemon.data_dir.clone()).mark;
    assert_eq!(tables(&mark), 2, "one fence for each server with a network, and none of the dead");
    drop(daemon);
    assert_eq!(tables(&mark), 0);
}

fn tables(mark: &str) -> usize {
    let output = Command::new("nft").args(["list", "tables"]).output().expect("nft: scripts/setup installs it");
    let tables = String::from_utf8_lossy(&output.stdout).into_owned();
    tables.lines().filter(|line| line.contains("netdev") && line.contains(&format!("stdiod_{mark}_"))).count()
}
