//! SIGKILL of the daemon at any moment: while it boots, pulls and unpacks an image, makes disks and mounts, connects the
//! network, runs the runtime. Whatever was half done is found by the next life, which works and leaves nothing when it
//! ends. The moments come from a seed: `STDIOD_KILL_SEED`, and `STDIOD_KILLS` for how many.

mod support;

use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};
use support::census::Census;
use support::registry::{Registry, build_images};
use support::{Daemon, Options, SOON, eventually, inside};

const KILLS: u64 = 104;
/// Between two lives that are let live until everything works, and are looked at.
const KILLS_IN_A_ROW: u64 = 26;
/// Of the image: enough to be met half-way.
const LARGE: usize = 4 << 20;

#[test]
fn a_daemon_killed_at_any_moment_is_followed_by_one_that_cleans_up_and_works() {
    let number = |name: &str, standard| std::env::var(name).map_or(standard, |text| text.parse().expect("a number"));
    let (kills, seed) = (number("STDIOD_KILLS", KILLS), number("STDIOD_KILL_SEED", 1));
    println!("{kills} kills of seed {seed}");
    let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut random = move |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };

    let registry = Registry::start();
    let layout = build_images(&registry.home, LARGE);
    registry.push(&layout, "v1", "who:v1");
    let variables = registry.variables(&[]);
    let options = variables.into_iter().fold(Options::default(), |o, (name, value)| o.variable(&name, value));
    let mut daemon = options.start();
    register_all(&daemon, &registry.name("who:v1"));
    let began = Instant::now();
    let census = Census::of(daemon.home());
    works_and_is_alone(&daemon, &census);
    // To somebody who knows of no daemon everything is a stranger: what is looked for can be found.
    let all = census.strangers(0);
    for kind in ["process", "cgroup", "loop device", "nft chain", "lease", "file"] {
        assert!(all.iter().any(|line| line.starts_with(kind)), "no {kind} in {all:#?}");
    }
    daemon.kill();
    let mut phases = BTreeMap::new();
    for kill in 0..kills {
        if kill > 0 && kill % KILLS_IN_A_ROW == 0 {
            daemon.start_again();
            works_and_is_alone(&daemon, &census);
            daemon.kill();
        }
        // A store that has the image is made one that has not, so that there is always something to pull.
        let images = daemon.data_dir.join("images");
        if images.join("refs").read_dir().is_ok_and(|mut names| names.next().is_some()) && random(3) > 0 {
            std::fs::remove_dir_all(&images).expect("our own directory");
        }
        match random(4) {
            // Before it listens: its database, its sweep, its probes.
            0 => daemon.live_for(Duration::from_millis(random(500))),
            _ => {
                daemon.start_again();
                std::thread::sleep(Duration::from_millis(random(700)));
                daemon.kill();
            }
        }
        for phase in interrupted(&daemon.data_dir) {
            *phases.entry(phase).or_insert(0) += 1;
        }
    }
    println!("{kills} kills in {} s, found half done: {phases:?}", began.elapsed().as_secs());
    let seen = daemon.seen_before();
    daemon.start_again();
    works_and_is_alone(&daemon, &census);
    assert!(eventually(SOON, || seen.left().is_empty()), "of earlier lives: {:#?}", seen.left());
    for phase in ["pull", "unpack", "mount", "network", "start", "running"] {
        let hit = phases.get(phase).copied().unwrap_or(0);
        assert!(hit > 0 || kills < KILLS, "no kill has hit {phase:?}: {phases:?}");
    }
    daemon.stop();
    assert_eq!(census.strangers(0), Vec::<String>::new(), "after the last life");
}

/// One of each kind: an image and the host's view, with and without a network, on both providers; all with a disk.
fn register_all(daemon: &Daemon, image: &str) {
    for provider in ["crun", "gvisor"] {
        daemon.register(&json!({"name": format!("{provider}-image"), "provider": provider, "image": image}));
        let mut networked = inside(&format!("{provider}-net"), provider);
        networked["volumes"] = json!(["/data"]);
        networked["egress"] = json!(["192.0.2.1:9"]);
        match provider {
            "crun" => networked["network"] = json!("bridge"),
            _ => {
                networked["ports"] = json!([{"host": free_port(), "container": 80}]);
                networked["stdio_bridge"] = json!(true);
            }
        }
        daemon.register(&networked);
    }
}

fn works_and_is_alone(daemon: &Daemon, census: &Census) {
    for provider in ["crun", "gvisor"] {
        let (image, networked) = (format!("{provider}-image"), format!("{provider}-net"));
        daemon.wait_ready(&image);
        daemon.wait_ready(&networked);
        assert!(daemon.text(&image, "who", json!({})).starts_with("uid=1234"));
        assert_eq!(daemon.inside(&networked, "result = 'well'"), json!("well"), "{networked}");
    }
    let mut strangers = Vec::new();
    let alone = eventually(SOON, || {
        strangers = census.strangers(daemon.pid());
        strangers.is_empty()
    });
    assert!(alone, "of nobody who lives: {strangers:#?}\n{}", daemon.log_tail());
}

/// What a dead daemon was at, from what it has left on disk.
fn interrupted(data_dir: &Path) -> Vec<&'static str> {
    let is_used = |dir: &str| data_dir.join(dir).read_dir().is_ok_and(|mut entries| entries.next().is_some());
    let mut found = Vec::new();
    if is_used("images/tmp") {
        found.push("unpack");
    } else if is_used("images/pull/blobs/sha256") {
        found.push("pull");
    }
    for bundle in data_dir.join("run/bundles").read_dir().into_iter().flatten().flatten() {
        let has = |name: &str| bundle.path().join(name).exists();
        found.push(match (has("pid"), has("config.json"), has("network.json") || has("netns")) {
            (true, _, _) => "running",
            (false, true, _) => "start",
            (false, false, true) => "network",
            (false, false, false) => "mount",
        });
    }
    found
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port()
}
