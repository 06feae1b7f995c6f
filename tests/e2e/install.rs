//! The install of packages as a step of its own, with a registry of the test's on another machine of the test's: one that stalls
//! in the middle, and servers that have no network but for their install.

use crate::support::machines::{Neighbourhood, PUBLIC};
use crate::support::{BASE, Daemon};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const REGISTRY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/package_registry.py");
/// Installed by scripts/setup.
const UVX: &str = "/usr/local/lib/stdiod-fixtures/uv/bin/uvx";
const BIG_KIB: u64 = 4096;

/// One server of npm in gVisor and one of PyPI in crun.
const SERVERS: [(&str, &str, &str); 2] = [("of-npm", "npx", "gvisor"), ("of-pypi", UVX, "crun")];

#[test]
fn an_install_that_stalls_is_no_crash_and_the_next_attempt_goes_on_from_what_was_fetched() {
    let Neighbourhood { host, outside } = &Neighbourhood::new();
    let mut registry = outside.inside(|| Registry::start(PUBLIC));
    host.inside(|| {
        let mut daemon = Daemon::start();
        registry.order("stall");
        for (name, command, provider) in SERVERS {
            let told = register(&daemon, &registry, name, command, provider, 20_000);
            assert_eq!((&told["last_crash"], &told["restart_count"]), (&Value::Null, &json!(0)), "{told:#}");
        }
        for (name, ..) in SERVERS {
            let big = |status: &Value| status["install"]["bytes"].as_u64() >= Some(BIG_KIB * 1024);
            let fetching = daemon.wait_until(name, "installing, with progress", big);
            let seen = (&fetching["status"], &fetching["container_status"], &fetching["install"]["phase"]);
            assert_eq!(seen, (&json!("installing"), &json!("stopped"), &json!("fetching")), "{fetching:#}");
            assert_eq!(fetching["install"]["total"], Value::Null, "{fetching:#}");
        }
        for (name, ..) in SERVERS {
            let again = daemon.wait_until(name, "in another attempt", |s| s["install"]["attempt"].as_u64() >= Some(2));
            let why = again["last_error"].as_str().unwrap_or_default();
            assert!(why.starts_with("its packages could not be fetched"), "{again:#}");
            assert_eq!(again["status"], "installing", "{again:#}");
        }
        let listed = String::from_utf8_lossy(&daemon.cli(&["ls"]).stdout).into_owned();
        assert!(listed.contains("installing"), "{listed}");
        registry.order("go");
        for (name, ..) in SERVERS {
            let ready = daemon.wait_ready(name);
            let counts = (&ready["restart_count"], &ready["last_crash"], &ready["crash_loop"]["level"]);
            assert_eq!(counts, (&json!(0), &Value::Null, &json!(0)), "{ready:#}");
            assert_eq!((&ready["install"]["phase"], &ready["network"]), (&json!("done"), &json!("none")), "{ready:#}");
            assert_eq!(ready["install"]["total"], ready["install"]["bytes"], "{ready:#}");
            assert_eq!(daemon.text(name, "hello", json!({})), format!("hello from {name}"));
        }
        let log = registry.log();
        for (name, ..) in SERVERS {
            let fetched = |part: &str| log.iter().filter(|path| is_file_of(path, &format!("{name}-{part}"))).count();
            assert_eq!(fetched("big"), 1, "what was here was fetched again: {log:#?}");
            assert!(fetched("last") >= 2, "{log:#?}");
        }

        // From the cache, by hand and by another daemon: nobody is asked, and nothing is installed.
        for (name, ..) in SERVERS {
            assert_eq!(daemon.request("POST", &format!("{BASE}/{name}/restart"), None).json()["status"], "ready");
        }
        assert!(daemon.stop().success());
        daemon.start_again();
        for (name, ..) in SERVERS {
            let ready = daemon.wait_ready(name);
            // The one by hand.
            assert_eq!((&ready["install"], &ready["restart_count"]), (&Value::Null, &json!(1)), "{ready:#}");
        }
        assert_eq!(registry.log(), log);
    });
}

#[test]
fn a_package_that_is_not_to_be_had_is_told_by_name_and_a_stop_ends_its_install() {
    let Neighbourhood { host, outside } = &Neighbourhood::new();
    let mut registry = outside.inside(|| Registry::start(PUBLIC));
    host.inside(|| {
        let daemon = Daemon::start();
        let mut missing = definition(&registry, "missing", UVX, "crun", 60_000);
        missing["args"] = json!(["nowhere-to-be-found"]);
        let told = daemon.try_register(&missing).json();
        let why = told["last_error"].as_str().unwrap_or_default();
        assert!(why.contains("its packages could not be fetched: uvx exited with code 1"), "{told:#}");
        assert_eq!((&told["status"], &told["last_crash"]), (&json!("installing"), &Value::Null), "{told:#}");
        assert_eq!(daemon.request("DELETE", &format!("{BASE}/missing?volumes=true"), None).status, 204);

        registry.order("stall");
        register(&daemon, &registry, "stopped", UVX, "crun", 600_000);
        daemon.wait_until("stopped", "installing", |status| status["status"] == "installing");
        let stopped = daemon.request("POST", &format!("{BASE}/stopped/stop"), None).json();
        assert_eq!((&stopped["status"], &stopped["install"]["phase"]), (&json!("stopped"), &json!("waiting")));
        registry.order("go");
        let started = daemon.request("POST", &format!("{BASE}/stopped/start"), None).json();
        assert_eq!(
            (&started["status"], &started["install"]["phase"]),
            (&json!("ready"), &json!("done")),
            "{started:#}"
        );
    });
}

fn is_file_of(path: &str, package: &str) -> bool {
    path.starts_with(&format!("/npm/{package}/-/"))
        || (path.starts_with(&format!("/files/{package}/")) && path.ends_with(".whl"))
}

fn definition(registry: &Registry, name: &str, command: &str, provider: &str, install_ms: u64) -> Value {
    let at = |path: &str| format!("http://{PUBLIC}:{}/{path}/", registry.port);
    let args = if command == "npx" { json!(["-y", name]) } else { json!([name]) };
    json!({
        "name": name, "provider": provider, "command": command, "args": args, "network": "none",
        "environment": {"NPM_CONFIG_REGISTRY": at("npm"), "UV_DEFAULT_INDEX": at("simple")},
        "timeouts": {"install_ms": install_ms}, "resource_limits": {"cpu": "2"},
    })
}

/// At once, whatever becomes of it.
fn register(daemon: &Daemon, registry: &Registry, name: &str, command: &str, provider: &str, install_ms: u64) -> Value {
    let definition = definition(registry, name, command, provider, install_ms);
    let reply = daemon.request("POST", &format!("{BASE}?wait=false"), Some(&definition));
    assert_eq!(reply.status, 201, "{reply}");
    reply.json()
}

/// The registry of `package_registry.py`, on the machine of whoever starts it.
struct Registry {
    child: Child,
    orders: ChildStdin,
    told: BufReader<ChildStdout>,
    port: u16,
}

impl Registry {
    fn start(address: &str) -> Registry {
        let mut command = Command::new("/usr/bin/python3");
        command.args([REGISTRY, address, &BIG_KIB.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("python3");
        let (orders, told) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        let mut registry = Registry { child, orders, told: BufReader::new(told), port: 0 };
        registry.port = registry.line().trim().parse().expect("its port");
        registry
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.told.read_line(&mut line).expect("it runs");
        line
    }

    fn order(&mut self, word: &str) {
        writeln!(self.orders, "{word}").expect("it runs");
    }

    /// The paths it was asked for so far.
    fn log(&mut self) -> Vec<String> {
        self.order("log");
        serde_json::from_str(&self.line()).expect("a list of paths")
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
