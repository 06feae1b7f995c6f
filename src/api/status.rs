//! The status object of SPEC §2 as JSON. Owns how durations and amounts are shown; never shows the value of an
//! environment variable. Every field is always there, `null` where nothing is known.

use crate::api::definition::quantity::{show_bytes, show_cpu};
use crate::model::definition::{Definition, IdleMode, RestartPolicy, Source};
use crate::model::status::{Asleep, ImagePull, Install, LastCrash, StatusView};
use crate::wire::times::rfc3339;
use serde::Serialize;
use serde_json::value::RawValue;

#[derive(Serialize)]
struct StatusObject<'a> {
    workspace_id: String,
    name: &'a str,
    image: Option<&'a str>,
    rootfs: Option<&'static str>,
    status: &'static str,
    container_status: &'static str,
    provider: &'a str,
    stdio_bridge: bool,
    bridge_connected: bool,
    restart_policy: RestartPolicy,
    restart_count: u64,
    last_crash: Option<Crash<'a>>,
    last_error: Option<&'a str>,
    warning: Option<&'a str>,
    uptime: Option<String>,
    uptime_ms: Option<u64>,
    volumes: Vec<String>,
    ports: Vec<String>,
    network: &'a str,
    egress: Option<Vec<String>>,
    resource_limits: Limits,
    resource_usage: UsageObject,
    queue: Queue,
    crash_loop: Loop,
    health: HealthObject<'a>,
    server_info: Option<&'a RawValue>,
    protocol_version: Option<&'a str>,
    image_pull: Option<Pull<'a>>,
    install: Option<InstallObject>,
    asleep: Option<AsleepObject>,
    last_wake_ms: Option<u64>,
    managed_by: Option<&'a str>,
    environment: Vec<&'a str>,
    created_at: String,
    last_used_at: Option<String>,
}

#[derive(Serialize)]
struct Crash<'a> {
    at: String,
    exit_code: Option<i32>,
    signal: Option<i32>,
    oom: bool,
    stderr_tail: &'a [String],
}

#[derive(Serialize)]
struct Pull<'a> {
    state: &'static str,
    layer: Option<&'a str>,
    bytes: u64,
    total: u64,
    error: Option<&'a str>,
}

#[derive(Serialize)]
struct InstallObject {
    phase: &'static str,
    bytes: u64,
    total: Option<u64>,
    attempt: u32,
}

#[derive(Serialize)]
struct AsleepObject {
    mode: &'static str,
    since: String,
    last_wake_ms: Option<u64>,
}

#[derive(Serialize)]
struct Limits {
    cpu: String,
    memory: String,
    disk: String,
    volume: String,
    pids: u32,
}

#[derive(Serialize)]
struct UsageObject {
    cpu_percent: Option<f64>,
    cpu_ms_total: Option<u64>,
    memory_bytes: Option<u64>,
    memory_limit_bytes: u64,
    pids: Option<u64>,
    disk_bytes: Option<u64>,
}

#[derive(Serialize)]
struct Queue {
    in_flight: usize,
    waiting: usize,
}

#[derive(Serialize)]
struct Loop {
    level: u32,
    next_attempt_at: Option<String>,
}

#[derive(Serialize)]
struct HealthObject<'a> {
    last_heard_at: Option<String>,
    warnings: &'a [String],
}

/// One status object, appended to `out`.
pub fn write(view: &StatusView, out: &mut Vec<u8>) {
    serde_json::to_writer(out, &object(view)).expect("strings and numbers into memory");
}

fn object(view: &StatusView) -> StatusObject<'_> {
    let definition: &Definition = &view.definition;
    let (image, rootfs) = match &definition.source {
        Source::Image(reference) => (Some(reference.as_str()), None),
        Source::HostRootfs => (None, Some("host")),
    };
    StatusObject {
        workspace_id: view.id.to_string(),
        name: &definition.name,
        image,
        rootfs,
        status: view.status.wire(),
        container_status: match view.asleep {
            // It is there, and gets no CPU.
            Some(Asleep { mode: IdleMode::Doze, .. }) => "running",
            Some(_) | None => view.status.container_status(),
        },
        provider: &view.provider,
        stdio_bridge: definition.stdio_bridge,
        bridge_connected: view.bridge_connected,
        restart_policy: definition.restart_policy,
        restart_count: view.restart_count,
        last_crash: view.last_crash.as_ref().map(crash),
        last_error: view.last_error.as_deref(),
        warning: view.warning.as_deref(),
        uptime: view.uptime_ms.map(duration),
        uptime_ms: view.uptime_ms,
        volumes: definition.volumes.iter().map(|path| volume(definition, path)).collect(),
        ports: definition.ports.iter().map(ToString::to_string).collect(),
        network: &view.network,
        egress: definition.egress.as_ref().map(|list| list.iter().map(ToString::to_string).collect()),
        resource_limits: Limits {
            cpu: show_cpu(definition.resource_limits.cpu_milli),
            memory: show_bytes(definition.resource_limits.memory_bytes),
            disk: show_bytes(definition.resource_limits.disk_bytes),
            volume: show_bytes(definition.resource_limits.volume_bytes()),
            pids: definition.resource_limits.pids,
        },
        resource_usage: UsageObject {
            cpu_percent: view.usage.map(|usage| usage.cpu_percent),
            cpu_ms_total: view.usage.map(|usage| usage.cpu_ms_total),
            memory_bytes: view.usage.map(|usage| usage.memory_bytes),
            memory_limit_bytes: definition.resource_limits.memory_bytes,
            pids: view.usage.map(|usage| usage.pids),
            disk_bytes: view.usage.map(|usage| usage.disk_bytes),
        },
        queue: Queue { in_flight: view.in_flight, waiting: view.waiting },
        crash_loop: Loop { level: view.crash_level, next_attempt_at: view.next_attempt_unix_ms.map(rfc3339) },
        health: HealthObject { last_heard_at: view.last_heard_unix_ms.map(rfc3339), warnings: &view.warnings },
        server_info: view.server_info.as_deref().and_then(|raw| serde_json::from_slice(raw).ok()),
        protocol_version: view.protocol_version.as_deref(),
        image_pull: view.image_pull.as_ref().map(pull),
        install: view.install.as_ref().map(install),
        asleep: view.asleep.map(|asleep| AsleepObject {
            mode: asleep.mode.wire(),
            since: rfc3339(asleep.since_unix_ms),
            last_wake_ms: view.last_wake_ms,
        }),
        last_wake_ms: view.last_wake_ms,
        managed_by: definition.managed_by.as_deref(),
        environment: definition.environment.keys().map(String::as_str).collect(),
        created_at: rfc3339(view.created_unix_ms),
        last_used_at: view.last_used_unix_ms.map(rfc3339),
    }
}

fn pull(pull: &ImagePull) -> Pull<'_> {
    Pull {
        state: pull.state.wire(),
        layer: pull.layer.as_deref(),
        bytes: pull.bytes,
        total: pull.total,
        error: pull.error.as_deref(),
    }
}

fn install(install: &Install) -> InstallObject {
    let Install { phase, bytes, total, attempt } = *install;
    InstallObject { phase: phase.wire(), bytes, total, attempt }
}

/// As it can be registered again.
fn volume(definition: &Definition, path: &str) -> String {
    let mode = if definition.read_only_volumes.contains(path) { ":ro" } else { "" };
    format!("{path}{mode}")
}

fn crash(crash: &LastCrash) -> Crash<'_> {
    Crash {
        at: rfc3339(crash.at_unix_ms),
        exit_code: crash.exit_code,
        signal: crash.signal,
        oom: crash.oom,
        stderr_tail: &crash.stderr_tail,
    }
}

/// `2h15m30s`; parts that are zero before the first are left out.
pub fn duration(ms: u64) -> String {
    let seconds = ms / 1000;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s}s"),
        (0, m, s) => format!("{m}m{s}s"),
        (h, m, s) => format!("{h}h{m}m{s}s"),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::api::definition::fields;
    use crate::ids::{ServerId, Uuid};
    use crate::model::status::{Status, Usage};
    use serde_json::{Value, json};
    use std::sync::Arc;

    pub fn view(definition: Definition) -> StatusView {
        StatusView {
            id: ServerId(Uuid::from_u128(0x550e8400_e29b_41d4_a716_446655440000)),
            definition: Arc::new(definition),
            provider: "gvisor".into(),
            status: Status::Ready,
            bridge_connected: true,
            restart_count: 0,
            last_crash: None,
            warning: None,
            network: "none".to_string(),
            last_error: None,
            uptime_ms: None,
            in_flight: 0,
            waiting: 0,
            crash_level: 0,
            next_attempt_unix_ms: None,
            server_info: None,
            protocol_version: None,
            instance: None,
            last_heard_unix_ms: None,
            warnings: Vec::new(),
            usage: None,
            image_pull: None,
            install: None,
            asleep: None,
            last_wake_ms: None,
            created_unix_ms: 1_771_322_400_000,
            last_used_unix_ms: None,
        }
    }

    pub fn definition() -> Definition {
        fields::parse(
            br#"{"name":"my-mcp-server","image":"my-registry/my-mcp-server:latest","volumes":["/data"],
                 "environment":{"TOKEN":"s3cret","A":"s3cret"}}"#,
        )
        .unwrap()
    }

    fn shown(view: &StatusView) -> Value {
        let mut out = Vec::new();
        write(view, &mut out);
        serde_json::from_slice(&out).unwrap()
    }

    #[test]
    fn a_quiet_server_shows_every_field() {
        assert_eq!(
            shown(&view(definition())),
            json!({
                "workspace_id": "550e8400-e29b-41d4-a716-446655440000", "name": "my-mcp-server",
                "image": "my-registry/my-mcp-server:latest", "rootfs": null, "status": "ready",
                "container_status": "running", "provider": "gvisor", "stdio_bridge": true, "bridge_connected": true,
                "restart_policy": "always", "restart_count": 0, "last_crash": null, "last_error": null, "uptime": null,
                "uptime_ms": null, "volumes": ["/data"], "ports": [], "network": "none", "egress": null, "warning": null,
                "resource_limits": {"cpu": "0.5", "memory": "512M", "disk": "1G", "volume": "1G", "pids": 256},
                "resource_usage": {"cpu_percent": null, "cpu_ms_total": null, "memory_bytes": null,
                                   "memory_limit_bytes": 536870912, "pids": null, "disk_bytes": null},
                "queue": {"in_flight": 0, "waiting": 0}, "crash_loop": {"level": 0, "next_attempt_at": null},
                "health": {"last_heard_at": null, "warnings": []}, "server_info": null, "protocol_version": null,
                "image_pull": null, "install": null, "asleep": null, "last_wake_ms": null, "managed_by": null, "environment": ["A", "TOKEN"],
                "created_at": "2026-02-17T10:00:00.000Z", "last_used_at": null,
            })
        );
    }

    #[test]
    fn one_at_rest_says_how_and_since_when() {
        for (mode, container) in [(IdleMode::Doze, "running"), (IdleMode::Stop, "stopped")] {
            let asleep = Some(Asleep { mode, since_unix_ms: 1_771_330_530_007 });
            let shown =
                shown(&StatusView { status: Status::Asleep, asleep, last_wake_ms: Some(7), ..view(definition()) });
            assert_eq!((&shown["status"], &shown["container_status"]), (&json!("asleep"), &json!(container)));
            let told = json!({"mode": mode.wire(), "since": "2026-02-17T12:15:30.007Z", "last_wake_ms": 7});
            assert_eq!((&shown["asleep"], &shown["last_wake_ms"]), (&told, &json!(7)));
        }
    }

    #[test]
    fn a_server_with_a_history_tells_it() {
        let mut definition = definition();
        definition.source = Source::HostRootfs;
        let shown = shown(&StatusView {
            status: Status::Backoff,
            last_crash: Some(LastCrash {
                at_unix_ms: 1_771_330_530_007,
                exit_code: None,
                signal: Some(9),
                oom: true,
                stderr_tail: vec!["boom".into()],
            }),
            last_error: Some("no".into()),
            uptime_ms: Some(8_130_999),
            crash_level: 2,
            next_attempt_unix_ms: Some(1_771_330_530_008),
            server_info: Some(br#"{"name":"x", "v":1.0}"#.to_vec()),
            protocol_version: Some("2025-06-18".into()),
            usage: Some(Usage { cpu_percent: f64::NAN, memory_bytes: 5, ..Usage::default() }),
            ..view(definition)
        });
        assert_eq!((&shown["image"], &shown["rootfs"]), (&Value::Null, &json!("host")));
        assert_eq!((&shown["status"], &shown["container_status"]), (&json!("backoff"), &json!("restarting")));
        let crash = json!({"at": "2026-02-17T12:15:30.007Z", "exit_code": null, "signal": 9, "oom": true, "stderr_tail": ["boom"]});
        assert_eq!(shown["last_crash"], crash);
        assert_eq!((&shown["uptime"], &shown["uptime_ms"]), (&json!("2h15m30s"), &json!(8_130_999)));
        assert_eq!(shown["crash_loop"], json!({"level": 2, "next_attempt_at": "2026-02-17T12:15:30.008Z"}));
        assert_eq!(shown["server_info"], json!({"name": "x", "v": 1.0}));
        assert_eq!(
            (&shown["resource_usage"]["cpu_percent"], &shown["resource_usage"]["memory_bytes"]),
            (&Value::Null, &json!(5))
        );
    }

    #[test]
    fn bytes_of_a_server_cannot_break_the_object() {
        for bytes in [&b"}"[..], b"", b"{", b"\xff", b"1,2"] {
            assert_eq!(
                shown(&StatusView { server_info: Some(bytes.to_vec()), ..view(definition()) })["server_info"],
                Value::Null
            );
        }
    }

    #[test]
    fn values_of_the_environment_are_never_shown() {
        assert!(!shown(&view(definition())).to_string().contains("s3cret"));
    }

    #[test]
    fn durations_read_like_two_hours() {
        for (ms, text) in [
            (0, "0s"),
            (999, "0s"),
            (30_000, "30s"),
            (60_000, "1m0s"),
            (930_000, "15m30s"),
            (3_600_000, "1h0m0s"),
            (8_130_000, "2h15m30s"),
            (360_000_000, "100h0m0s"),
        ] {
            assert_eq!(duration(ms), text);
        }
    }
}
