//! The status object of SPEC §2 as JSON. Owns how times, durations and amounts are shown; never shows the value of an
//! environment variable. Every field is always there, `null` where nothing is known.

use crate::api::quantity::{show_bytes, show_cpu};
use crate::core::contract::{ImagePull, LastCrash, StatusView};
use crate::core::definition::{Definition, RestartPolicy, Source};
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
struct Limits {
    cpu: String,
    memory: String,
    disk: String,
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
        container_status: view.status.container_status(),
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

/// `2026-02-17T10:00:00.000Z`
pub fn rfc3339(unix_ms: u64) -> String {
    let (days, ms) = (unix_ms / 86_400_000, unix_ms % 86_400_000);
    let (year, month, day) = civil_from_days(days);
    let (hour, minute, second, milli) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60, ms % 1000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

/// The milliseconds after 1970 of a time such as `2026-02-17T10:00:00.5+01:00`; none if it is no time, or before 1970.
pub fn parse_rfc3339(text: &str) -> Option<u64> {
    let number = |range: std::ops::Range<usize>| -> Option<u64> {
        let digits = text.get(range)?;
        if digits.bytes().all(|byte| byte.is_ascii_digit()) { digits.parse().ok() } else { None }
    };
    let is = |at: usize, letters: &[u8]| text.as_bytes().get(at).is_some_and(|byte| letters.contains(byte));
    if !(is(4, b"-") && is(7, b"-") && is(10, b"Tt") && is(13, b":") && is(16, b":")) {
        return None;
    }
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    let fraction = text[19..].strip_prefix('.').map_or("", |rest| {
        let end = rest.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
        &rest[..end]
    });
    let after = &text[19 + if text[19..].starts_with('.') { 1 + fraction.len() } else { 0 }..];
    let millis: u64 = format!("{:0<3}", fraction.get(..3).unwrap_or(fraction)).parse().ok()?;
    let days = (365 * year.checked_sub(1970)?..=366 * (year - 1969))
        .find(|days| civil_from_days(*days) == (year, month, day))?;
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let local_ms = ((days * 24 + hour) * 60 + minute) * 60_000 + second * 1000 + millis;
    let (sign, offset) = match after.as_bytes() {
        [b'Z' | b'z'] => return Some(local_ms),
        [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] if [h1, h2, m1, m2].iter().all(|byte| byte.is_ascii_digit()) => {
            let two = |a: &u8, b: &u8| u64::from(a - b'0') * 10 + u64::from(b - b'0');
            (*sign, (two(h1, h2) * 60 + two(m1, m2)) * 60_000)
        }
        _ => return None,
    };
    if sign == b'+' { local_ms.checked_sub(offset) } else { Some(local_ms + offset) }
}

/// Year, month and day of so many days after 1970-01-01, in eras of 400 years that begin on a 1st of March: leap days
/// then come last in their year, and the lengths of months follow one line (Howard Hinnant, `civil_from_days`).
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    const ERA: u64 = 146_097;
    const FROM_0000_03_01: u64 = 719_468;
    let days = days + FROM_0000_03_01;
    let (era, of_era) = (days / ERA, days % ERA);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::api::register;
    use crate::core::contract::{Status, Usage};
    use crate::ids::{ServerId, Uuid};
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
            created_unix_ms: 1_771_322_400_000,
            last_used_unix_ms: None,
        }
    }

    pub fn definition() -> Definition {
        register::parse(
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
                "resource_limits": {"cpu": "0.5", "memory": "512M", "disk": "1G", "pids": 256},
                "resource_usage": {"cpu_percent": null, "cpu_ms_total": null, "memory_bytes": null,
                                   "memory_limit_bytes": 536870912, "pids": null, "disk_bytes": null},
                "queue": {"in_flight": 0, "waiting": 0}, "crash_loop": {"level": 0, "next_attempt_at": null},
                "health": {"last_heard_at": null, "warnings": []}, "server_info": null, "protocol_version": null,
                "image_pull": null, "environment": ["A", "TOKEN"],
                "created_at": "2026-02-17T10:00:00.000Z", "last_used_at": null,
            })
        );
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
    fn times_are_shown_in_utc() {
        for (unix_ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (1_709_164_800_000, "2024-02-29T00:00:00.000Z"),
            (1_735_689_599_000, "2024-12-31T23:59:59.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (4_107_542_399_000, "2100-02-28T23:59:59.000Z"),
            (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(rfc3339(unix_ms), text);
        }
        rfc3339(u64::MAX);
    }

    #[test]
    fn times_are_read_back_in_every_spelling() {
        for unix_ms in [0, 951_782_399_999, 951_782_400_000, 1_709_164_800_001, 253_402_300_799_999] {
            assert_eq!(parse_rfc3339(&rfc3339(unix_ms)), Some(unix_ms));
        }
        let ten = Some(1_771_322_400_000);
        for text in [
            "2026-02-17T10:00:00Z",
            "2026-02-17t10:00:00z",
            "2026-02-17T11:30:00+01:30",
            "2026-02-17T09:00:00.000000-01:00",
        ] {
            assert_eq!(parse_rfc3339(text), ten, "{text}");
        }
        assert_eq!(parse_rfc3339("2026-02-17T10:00:00.5Z"), ten.map(|ms| ms + 500));
        for bad in [
            "",
            "now",
            "2026-02-30T10:00:00Z",
            "2026-02-17",
            "2026-02-17T10:00:00",
            "2026-02-17T24:00:00Z",
            "1969-01-01T00:00:00Z",
            "1970-01-01T00:00:00+01:00",
            "2026-02-17T10:00:00é",
            "2026-02-17T10:0é:00Z",
        ] {
            assert_eq!(parse_rfc3339(bad), None, "{bad}");
        }
    }

    #[test]
    fn days_follow_each_other_through_eight_hundred_years() {
        let (mut year, mut month, mut day) = (1970, 1, 1);
        for days in 0..800 * 365 {
            assert_eq!(civil_from_days(days), (year, month, day));
            let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let last = match month {
                2 => 28 + u64::from(leap),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            (year, month, day) = match (month, day) {
                (12, 31) => (year + 1, 1, 1),
                (_, day) if day == last => (year, month + 1, 1),
                (_, day) => (year, month, day + 1),
            };
        }
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
