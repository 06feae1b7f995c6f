//! Definitions that come from the database, judged by the very rules of a registration: each is written out as the body
//! that would register it, and read again by `register`. Owns that form; knows no rule of its own, so that none can be
//! missed. What comes out is valid as a whole, or it is a refusal that names the field.

use crate::api::definition::{fields, package, quantity};
use crate::ids::ServerId;
use crate::model::definition::{Definition, Source};
use crate::model::fault::{Code, Fault};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// The definition as a registration would have made it.
pub fn check(definition: &Definition) -> Result<Definition, Fault> {
    fields::from_fields(fields(definition))
}

/// Of a server whose environment cannot be opened. It is no fault of the definition, so only the key, or all values sent again,
/// put it right.
pub fn sealed_environment(why: &impl std::fmt::Display) -> Fault {
    let message = format!(
        "environment: it cannot be opened: {why}; bring the key back and restart the daemon, or send all variables again in a \
         PATCH"
    );
    Fault::new(Code::SecretMissing, message).with("field", "environment")
}

/// For a server whose own name may not be used: harmless in paths and logs, and nobody else's.
pub fn harmless_name(id: ServerId) -> String {
    format!("invalid-{id}")
}

/// What is known of a server whose definition cannot be read. It is no valid one: there is nothing to run.
pub fn nothing_of(name: String) -> Definition {
    fields::standard(name, Source::HostRootfs)
}

/// What `POST` takes, with `null` for the values of the environment. A server that was registered by `command` is shown so
/// again, without what the daemon has added for it, if that makes the same definition.
pub fn shown(definition: &Definition) -> Map<String, Value> {
    let mut out = by_command(definition).unwrap_or_else(|| fields(definition));
    if let Some(Value::Object(variables)) = out.get_mut("environment") {
        variables.values_mut().for_each(|value| *value = Value::Null);
    }
    out
}

fn by_command(definition: &Definition) -> Option<Map<String, Value>> {
    let mut out = fields(definition);
    let (Some(Value::Array(cmd)), Some(_)) = (out.remove("cmd"), out.remove("rootfs")) else { return None };
    let mut words = cmd.into_iter();
    out.insert("command".to_string(), words.next()?);
    out.insert("args".to_string(), words.collect());
    let Some(Value::Object(variables)) = out.get_mut("environment") else { return None };
    let given = variables.len();
    variables.retain(|name, value| !package::is_furnished(&definition.cmd, name, value.as_str().unwrap_or_default()));
    let is_fetched = variables.len() < given;
    // Any other program is shown as it is stored.
    (is_fetched && fields::from_fields(out.clone()).is_ok_and(|read| read == *definition)).then_some(out)
}

/// What `POST` takes, with everything that is in it.
pub fn fields(d: &Definition) -> Map<String, Value> {
    let mut out = Map::new();
    let mut set = |key: &str, value: Value| {
        // A `null` would be no more than the default, which it is.
        if !value.is_null() {
            out.insert(key.to_string(), value);
        }
    };
    match &d.source {
        Source::Image(image) => set("image", json!(image)),
        Source::HostRootfs => set("rootfs", json!("host")),
    }
    let volume = |path: &String| json!({"path": path, "read_only": d.read_only_volumes.contains(path)});
    let port = |port: &crate::model::definition::PortMapping| json!({"host": port.host, "container": port.container, "address": port.address.to_string()});
    let limits = &d.resource_limits;
    let (health, crashes) = (&d.health, &d.crash_loop);
    let schedule = if crashes.relentless { json!("relentless") } else { json!(crashes.schedule_ms) };
    set("name", json!(d.name));
    set("pull_policy", word(&d.pull_policy));
    set("cmd", json!(d.cmd));
    set("stdio_bridge", json!(d.stdio_bridge));
    set("restart_policy", word(&d.restart_policy));
    set("environment", json!(d.environment));
    set("volumes", d.volumes.iter().map(volume).collect());
    let mut resources = json!({
        "cpu": quantity::show_cpu(limits.cpu_milli), "memory": quantity::show_bytes(limits.memory_bytes),
        "disk": quantity::show_bytes(limits.disk_bytes), "pids": limits.pids,
    });
    if let Some(bytes) = limits.volume_bytes {
        resources["volume"] = json!(quantity::show_bytes(bytes));
    }
    set("resource_limits", resources);
    set("provider", json!(d.provider));
    set("ports", d.ports.iter().map(port).collect());
    set("network", json!(d.network));
    set("egress", json!(d.egress.as_ref().map(|list| list.iter().map(ToString::to_string).collect::<Vec<_>>())));
    set("user", json!(d.user));
    set("workdir", json!(d.workdir));
    set("files", json!(d.files));
    set("project", json!(d.project));
    set("managed_by", json!(d.managed_by));
    set("max_in_flight", json!(d.max_in_flight));
    set("queue_max", json!(d.queue_max));
    set("shared", json!(d.shared));
    set("framing", word(&d.framing));
    set(
        "timeouts",
        json!({"request_ms": d.request_timeout_ms, "startup_ms": d.startup_timeout_ms,
            "install_ms": d.install_timeout_ms}),
    );
    set(
        "health",
        json!({
            "heartbeat_ms": health.heartbeat_ms, "probe_timeout_ms": health.probe_timeout_ms,
            "stale_ms": health.stale_ms, "on_unresponsive": word(&health.on_unresponsive),
        }),
    );
    set(
        "crash_loop",
        json!({
            "threshold": crashes.threshold, "window_ms": crashes.window_ms, "schedule_ms": schedule,
            "max_attempts": crashes.max_attempts, "stable_ms": crashes.stable_ms,
        }),
    );
    if !d.idle.is_unsaid() {
        set("idle", word(&d.idle));
    }
    out
}

fn word(choice: &impl Serialize) -> Value {
    serde_json::to_value(choice).expect("a word")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::definition::tests::definition;
    use crate::wire::mutation::Mutator;

    /// With something in every field.
    fn full() -> Definition {
        fields::parse(
            br#"{"name": "a", "image": "r.test/x:1", "pull_policy": "always", "cmd": ["x", ""], "stdio_bridge": true,
                "restart_policy": "on-failure", "environment": {"A": "b\n"}, "volumes": ["/data", "/ref:ro"],
                "resource_limits": {"cpu": "0.123", "memory": "17M", "disk": "5M", "pids": 3}, "provider": "crun",
                "ports": ["0.0.0.0:81:80", "[::1]:82:80"], "network": "bridge",
                "egress": ["db.example:5432", "10.0.0.0/8", "[2001:db8::1]:443", "::/0"], "user": "1:2", "workdir": "/w",
                "files": {"/app/x": "y"}, "project": "p-1", "managed_by": "apply", "max_in_flight": 2, "queue_max": 3, "shared": false,
                "framing": "content-length", "timeouts": {"request_ms": 5, "startup_ms": 6, "install_ms": 7},
                "health": {"heartbeat_ms": 100, "probe_timeout_ms": 8, "stale_ms": 9, "on_unresponsive": "restart"},
                "idle": {"after_ms": 100, "mode": "off", "start": "boot"},
                "crash_loop": {"threshold": 1, "window_ms": 2, "schedule_ms": [1, 20], "max_attempts": 4, "stable_ms": 5}}"#,
        )
        .unwrap()
    }

    #[test]
    fn what_was_registered_comes_back_as_it_is() {
        let plain = fields::parse(br#"{"name": "a", "rootfs": "host", "cmd": ["x"], "crash_loop": "relentless"}"#);
        for definition in [definition(), full(), plain.unwrap()] {
            assert_eq!(check(&definition).unwrap(), definition);
        }
    }

    /// What `GET` shows, as it comes over the wire, with the values of the environment filled in again.
    fn read_back(definition: &Definition) -> Vec<u8> {
        let mut shown = shown(definition);
        let variables = shown["environment"].as_object_mut().unwrap();
        for (name, value) in variables {
            assert!(value.is_null(), "{name} is shown");
            *value = json!(definition.environment[name]);
        }
        serde_json::to_vec(&shown).unwrap()
    }

    #[test]
    fn a_definition_that_is_read_back_registers_the_same_server() {
        let by_command = [
            &br#"{"name": "a", "command": "npx", "args": ["-y", "x"], "environment": {"KEY": "s3cret"}}"#[..],
            br#"{"name": "a", "command": "/usr/bin/uvx", "network": "none", "environment": {"UV_CACHE_DIR": "/data/uv"}}"#,
            br#"{"name": "a", "command": "node", "args": ["x.js"], "timeouts": {"startup_ms": 5}}"#,
            br#"{"name": "a", "rootfs": "host", "cmd": ["npx", "x"], "crash_loop": "relentless"}"#,
        ]
        .map(|body| fields::parse(body).unwrap());
        for definition in by_command.iter().cloned().chain([definition(), full()]) {
            let body = read_back(&definition);
            assert_eq!(fields::parse(&body).unwrap(), definition, "{}", String::from_utf8_lossy(&body));
        }
        let npx = shown(&by_command[0]);
        assert_eq!((&npx["command"], &npx["args"]), (&json!("npx"), &json!(["-y", "x"])));
        assert_eq!(npx["environment"], json!({"KEY": null}), "nothing that the daemon has added");
        // The other way round as well, for whatever a mutated registration turns out to be.
        let seeds = [read_back(&full()), read_back(&by_command[0]), read_back(&definition())];
        let seeds: Vec<&[u8]> = seeds.iter().map(Vec::as_slice).collect();
        let (mut mutator, mut taken) = (Mutator::new(15), 0);
        for _ in 0..20_000 {
            let Ok(definition) = fields::parse(&mutator.mutate(&seeds)) else { continue };
            taken += 1;
            assert_eq!(fields::parse(&read_back(&definition)).unwrap(), definition);
        }
        assert!(taken > 100, "{taken}");
    }

    #[test]
    fn a_definition_without_its_secrets_is_refused_with_all_their_names() {
        let mut definition = full();
        definition.environment.insert("B".into(), "s3cret".into());
        let body = serde_json::to_vec(&shown(&definition)).unwrap();
        assert!(!String::from_utf8_lossy(&body).contains("s3cret"));
        let fault = fields::parse(&body).unwrap_err();
        assert_eq!((fault.code.wire(), &fault.data["missing"]), (("secret_missing", 422), &json!(["A", "B"])));
        let (changed, _) =
            fields::merge(&definition, json!({"environment": {"B": null}}).as_object().unwrap()).unwrap();
        assert_eq!(changed.environment.keys().collect::<Vec<_>>(), ["A"], "a change removes it");
    }

    #[test]
    fn every_field_that_breaks_a_rule_is_named() {
        type Spoil = fn(&mut Definition);
        let spoiled: [(&str, Spoil); 22] = [
            ("name", |d| d.name = "../../../vault".into()),
            ("name", |d| d.name = String::new()),
            ("image", |d| d.source = Source::Image("../x".into())),
            ("cmd[0]", |d| d.cmd = vec!["a\0b".into()]),
            ("volumes[0].path", |d| d.volumes = vec!["/a/../../etc".into()]),
            ("volumes[0].path", |d| d.volumes = vec!["data".into()]),
            ("volumes[0].path", |d| d.volumes = vec!["/etc:/x".into()]),
            ("files[\"/../etc/passwd\"]", |d| _ = d.files.insert("/../etc/passwd".into(), String::new())),
            ("workdir", |d| d.workdir = Some("..".into())),
            ("user", |d| d.user = Some("0 0".into())),
            ("provider", |d| d.provider = Some("../crun".into())),
            ("network", |d| d.network = Some("../../x".into())),
            ("ports[0].host", |d| d.ports[0].host = 0),
            ("ports[1]", |d| d.ports[1] = d.ports[0].clone()),
            ("egress[0]", |d| d.egress.as_mut().unwrap()[0].port = None),
            ("environment[\"A=B\"]", |d| _ = d.environment.insert("A=B".into(), String::new())),
            ("resource_limits.memory", |d| d.resource_limits.memory_bytes = 1),
            ("resource_limits.pids", |d| d.resource_limits.pids = 0),
            ("max_in_flight", |d| d.max_in_flight = u32::MAX),
            ("timeouts.request_ms", |d| d.request_timeout_ms = u64::MAX),
            ("health.heartbeat_ms", |d| d.health.heartbeat_ms = 0),
            ("crash_loop.schedule_ms", |d| d.crash_loop.schedule_ms = vec![]),
        ];
        for (field, spoil) in spoiled {
            let mut definition = full();
            spoil(&mut definition);
            let fault = check(&definition).expect_err(field);
            assert_eq!(fault.data["field"], json!(field), "{}", fault.message);
        }
    }

    #[test]
    fn whatever_can_be_read_is_judged_without_a_panic_and_what_passes_passes_again() {
        let seeds = [definition(), full()].map(|definition| serde_json::to_vec(&definition).unwrap());
        let seeds: Vec<&[u8]> = seeds.iter().map(Vec::as_slice).collect();
        let mut mutator = Mutator::new(12);
        let (mut read, mut passed) = (0, 0);
        for _ in 0..20_000 {
            let Ok(definition) = serde_json::from_slice::<Definition>(&mutator.mutate(&seeds)) else { continue };
            read += 1;
            if let Ok(checked) = check(&definition) {
                passed += 1;
                assert_eq!(check(&checked).expect("it has passed"), checked);
            }
        }
        assert!(read > passed && passed > 100, "{read} read, {passed} passed");
    }
}
