//! Definitions of the servers that tests host, by fixture.

use super::{CONFORMANCE, INSIDE, TINY};
use serde_json::{Value, json};

/// The definition of a server that is one Python script on the host's root file system.
pub fn python(name: &str, provider: &str, script: &str) -> Value {
    python_with(name, provider, script, &[])
}

/// A server that runs what `Daemon::inside` gives it.
pub fn inside(name: &str, provider: &str) -> Value {
    python(name, provider, INSIDE)
}

pub fn python_with(name: &str, provider: &str, script: &str, arguments: &[&str]) -> Value {
    let cmd = [&["/usr/bin/python3", "/app/server.py"], arguments].concat();
    json!({"name": name, "rootfs": "host", "provider": provider, "cmd": cmd, "files": {"/app/server.py": script}})
}

/// The definition of a server that is a few lines of shell.
pub fn tiny(name: &str, provider: &str) -> Value {
    let cmd = ["/bin/sh", "/app/tiny.sh"];
    json!({"name": name, "rootfs": "host", "provider": provider, "cmd": cmd, "files": {"/app/tiny.sh": TINY}})
}

/// The definition of the conformance fixture.
pub fn conformance(name: &str, provider: &str, arguments: &[&str]) -> Value {
    let cmd = [&["/usr/bin/node", "/app/server.mjs"], arguments].concat();
    json!({"name": name, "rootfs": "host", "provider": provider, "cmd": cmd, "files": {"/app/server.mjs": CONFORMANCE}})
}
