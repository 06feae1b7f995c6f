//! The fields of every object that a client sends: their names, what they mean, and which values they take. `fields`,
//! `reach` and `rest::asks` read exactly these names, so that none can be read without being described here; OpenAPI is made
//! of the rest. Rules between fields are said in words.

use crate::limits::{
    self, CMD_ARGS_MAX, EGRESS_MAX, ENV_MAX, FILES_MAX, IMAGE_REFERENCE_MAX, NAME_MAX, PATH_MAX, PORTS_MAX, RATE_MAX,
    STRING_MAX, TOKEN_SERVERS_MAX, VOLUMES_MAX, WAIT_MS,
};
use crate::model::definition::{CrashLoop, Health, ResourceLimits};
use crate::model::principal::Scopes;
use serde::Serialize;
use serde_json::{Value, json};
use std::ops::RangeInclusive;

/// One field of an object.
pub struct Described {
    pub name: &'static str,
    pub about: &'static str,
    /// As JSON Schema. `null` is the default again, and stands in none of them.
    pub schema: fn() -> Value,
}

const fn field(name: &'static str, about: &'static str, schema: fn() -> Value) -> Described {
    Described { name, about, schema }
}

/// What the reader of an object knows.
pub const fn names<const N: usize>(fields: &[Described; N]) -> [&'static str; N] {
    let mut names = [""; N];
    let mut at = 0;
    while at < N {
        names[at] = fields[at].name;
        at += 1;
    }
    names
}

pub const DEFINITION: [Described; 29] = [
    field("name", "Unique, and no UUID: paths take either.", server_name),
    field("image", "An image reference, as in `name:tag`. Instead of `rootfs` and of `command`.", || {
        let part = "[A-Za-z0-9][A-Za-z0-9._-]*";
        json!({"type": "string", "maxLength": IMAGE_REFERENCE_MAX, "pattern": format!("^{part}([/:@]{part})*$"),
            "examples": ["registry.example/weather:1"]})
    }),
    field("rootfs", "The host's own programs, read-only; needs `cmd`.", || json!({"type": "string", "const": "host"})),
    field(
        "pull_policy",
        "When a registry is asked for the image.",
        || json!({"type": "string", "enum": ["missing", "always", "never"], "default": "missing"}),
    ),
    field(
        "command",
        "A program of the host, as client configurations name it; the same as `rootfs` with `cmd`. `npx`, `uvx` and the like \
         get a cache and a network.",
        || json!({"type": "string", "minLength": 1, "maxLength": STRING_MAX, "pattern": NO_NUL, "examples": ["npx"]}),
    ),
    field(
        "args",
        "The arguments of `command`.",
        || json!({"type": "array", "maxItems": CMD_ARGS_MAX - 1, "items": text(STRING_MAX)}),
    ),
    field("cmd", "What to run, which is not empty, with its arguments; default: the image's own command.", || {
        json!({"type": "array", "maxItems": CMD_ARGS_MAX, "items": text(STRING_MAX),
            "examples": [["python3", "/app/server.py"]]})
    }),
    field("stdio_bridge", "It speaks JSON-RPC on stdin and stdout; default: true without `ports`.", boolean),
    field(
        "restart_policy",
        "Whether it is started again when it ends.",
        || json!({"type": "string", "enum": ["always", "on-failure", "never"], "default": "always"}),
    ),
    field(
        "environment",
        "Variables by name. Values are never shown again: where a definition is read back they are `null`, and a \
         registration with a `null` among them is refused with `secret_missing`.",
        || {
            json!({"type": "object", "maxProperties": ENV_MAX, "additionalProperties": text(STRING_MAX),
                "propertyNames": {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$", "maxLength": PATH_MAX}})
        },
    ),
    field("volumes", "Directories that survive restarts; none inside of another.", || {
        let path = json!({"type": "string", "maxLength": PATH_MAX, "pattern": format!("^{KERNEL}({NAME})+(:ro)?$")});
        json!({"type": "array", "maxItems": VOLUMES_MAX, "uniqueItems": true,
            "items": {"anyOf": [path, object(&VOLUME, &["path"])]}, "examples": [["/data"]]})
    }),
    field("resource_limits", "What it may use.", || object(&LIMITS, &[])),
    field(
        "provider",
        "The runtime, as in `gvisor` or `crun`; default: the daemon's.",
        || json!({"type": "string", "pattern": format!("^[A-Za-z0-9_.-]{{1,{NAME_MAX}}}$"), "examples": ["crun"]}),
    ),
    field(
        "ports",
        "Ports of the host that lead to it: `HOST:CONTAINER`, `ADDRESS:HOST:CONTAINER`, or an object.",
        || {
            let short = format!("^(({V4}|\\[{}\\]):)?{PORT}:{PORT}$", v6());
            let short = json!({"type": "string", "pattern": short, "examples": ["8080:80"]});
            json!({"type": "array", "maxItems": PORTS_MAX, "uniqueItems": true,
            "items": {"anyOf": [short, object(&PORT_MAPPING, &["host", "container"])]}})
        },
    ),
    field(
        "network",
        "`none`, `bridge`, `host` where it is allowed, or the name of a CNI network.",
        || json!({"type": "string", "pattern": format!("^[A-Za-z0-9_-]{{1,{NAME_MAX}}}$"), "examples": ["bridge"]}),
    ),
    field("egress", "The only destinations it may connect to: `HOST:PORT`, `ADDRESS[:PORT]`, `CIDR[:PORT]`.", || {
        json!({"type": "array", "maxItems": EGRESS_MAX, "items": {"type": "string", "maxLength": STRING_MAX, "format": DESTINATION},
            "examples": [["db.example:5432", "10.0.0.0/8"]]})
    }),
    field("user", "`uid`, `uid:gid`, `name` or `name:group`; on the host's files `nobody` or 1000 and more.", || {
        let (id, name) = ("[0-9]{1,7}", "[A-Za-z_][A-Za-z0-9_.-]{0,31}");
        json!({"type": "string", "pattern": format!("^({id}(:{id})?|{name}(:{name})?)$"), "examples": ["nobody"]})
    }),
    field(
        "workdir",
        "Where it is started.",
        || json!({"type": "string", "maxLength": PATH_MAX, "pattern": format!("^(/|({NAME_WITH_COLON})+)$")}),
    ),
    field("files", "Small read-only files by path, so that a script can be hosted without an image.", || {
        json!({"type": "object", "maxProperties": FILES_MAX, "additionalProperties": text(limits::FILES_BYTES_MAX),
            "propertyNames": {"pattern": format!("^{KERNEL}({NAME_WITH_COLON})+$"), "maxLength": PATH_MAX},
            "examples": [{"/app/server.py": "print()"}]})
    }),
    field(
        "managed_by",
        "What made it and looks after it. `stdiod apply --prune` removes those of `apply`.",
        || json!({"type": "string", "pattern": format!("^[a-z0-9-]{{1,{NAME_MAX}}}$"), "examples": ["apply"]}),
    ),
    field("project", "The project whose tools it is among, and whose tokens see it.", project),
    field("max_in_flight", "Calls that it has at once.", || {
        integer(1..=limits::MAX_IN_FLIGHT_MAX, limits::MAX_IN_FLIGHT_DEFAULT)
    }),
    field("queue_max", "Calls that may wait for their turn.", || {
        integer(1..=limits::QUEUE_LIMIT, limits::QUEUE_DEFAULT)
    }),
    field("shared", "One process for all sessions, or one for each.", || json!({"type": "boolean", "default": true})),
    field(
        "framing",
        "How messages are told apart on its pipes.",
        || json!({"type": "string", "enum": ["auto", "newline", "content-length"], "default": "auto"}),
    ),
    field("timeouts", "How long things may take.", || object(&TIMEOUTS, &[])),
    field("health", "How it is looked after.", || object(&HEALTH, &[])),
    field("idle", "What becomes of it when nobody uses it.", || object(&IDLE, &[])),
    field(
        "crash_loop",
        "When its crashes are a loop, and what follows then; `relentless`: it is tried for ever.",
        || json!({"anyOf": [object(&CRASH_LOOP, &[]), {"type": "string", "const": "relentless"}]}),
    ),
];

pub const VOLUME: [Described; 2] = [
    field(
        "path",
        "Where it is in the container.",
        || json!({"type": "string", "maxLength": PATH_MAX, "pattern": format!("^{KERNEL}({NAME})+$"), "examples": ["/data"]}),
    ),
    field("read_only", "The server may not write to it.", || json!({"type": "boolean", "default": false})),
];

pub const LIMITS: [Described; 5] = [
    field("cpu", "Cores, as in 0.5, \"0.5\" or \"500m\".", || {
        let cores = "0*(0\\.(0[1-9][0-9]?|[1-9][0-9]{0,2})|([1-9][0-9]{0,2}|10[01][0-9]|102[0-3])(\\.[0-9]{1,3})?)";
        let text = json!({"type": "string", "pattern": format!("^({cores}|0*[1-9][0-9]{{1,5}}m)$")});
        let number = json!({"type": "number", "minimum": 0.01, "maximum": 1024, "multipleOf": 0.001});
        json!({"anyOf": [number, text], "default": "0.5"})
    }),
    field("memory", "Bytes, as in 536870912, \"512M\" or \"1G\".", || {
        bytes(limits::MEMORY_BYTES, "(1[6-9]|[2-9][0-9]|[1-9][0-9]{2,6})[Mm]", ResourceLimits::default().memory_bytes)
    }),
    field("disk", "What it may write outside of volumes.", || {
        bytes(limits::DISK_BYTES, "([4-9]|[1-9][0-9]{1,6})[Mm]", ResourceLimits::default().disk_bytes)
    }),
    field("volume", "What is in all of its volumes together; default: as `disk`. It does not become smaller.", || {
        bytes(limits::DISK_BYTES, "([4-9]|[1-9][0-9]{1,6})[Mm]", ResourceLimits::default().volume_bytes())
    }),
    field("pids", "Processes and threads.", || integer(limits::PIDS, ResourceLimits::default().pids)),
];

pub const PORT_MAPPING: [Described; 3] = [
    field("host", "The port of the host.", || json!({"type": "integer", "minimum": 1, "maximum": u16::MAX})),
    field("container", "The port of the server.", || json!({"type": "integer", "minimum": 1, "maximum": u16::MAX})),
    field(
        "address",
        "The address of the host.",
        || json!({"type": "string", "default": "127.0.0.1", "anyOf": [{"format": "ipv4"}, {"format": "ipv6"}]}),
    ),
];

pub const TIMEOUTS: [Described; 3] = [
    field("request_ms", "A call that says nothing else.", || {
        integer(WAIT_MS, limits::REQUEST_TIMEOUT_DEFAULT.as_millis() as u64)
    }),
    field("startup_ms", "From its start until it is ready.", || {
        integer(WAIT_MS, limits::STARTUP_TIMEOUT_DEFAULT.as_millis() as u64)
    }),
    field("install_ms", "One attempt to fetch the packages of `npx` or `uvx`; what has come is kept.", || {
        integer(WAIT_MS, limits::INSTALL_TIMEOUT_DEFAULT.as_millis() as u64)
    }),
];

pub const HEALTH: [Described; 5] = [
    field("heartbeat_ms", "It is asked for a sign of life when it has been silent for so long.", || {
        integer(limits::HEARTBEAT_MS, Health::default().heartbeat_ms)
    }),
    field("probe_timeout_ms", "How long it has to answer.", || integer(WAIT_MS, Health::default().probe_timeout_ms)),
    field("stale_ms", "A warning is shown when nothing came for so long; default: never.", wait),
    field(
        "on_unresponsive",
        "What is done when it does not answer.",
        || json!({"type": "string", "enum": ["report", "restart"], "default": "report"}),
    ),
    field("startup_timeout_ms", "The same as `timeouts.startup_ms`; the two must not differ.", wait),
];

pub const IDLE: [Described; 3] = [
    field("after_ms", "It is idle after so long without a request; default: the daemon's.", || {
        let (least, most) = limits::IDLE_AFTER_MS.into_inner();
        json!({"type": "integer", "minimum": least, "maximum": most})
    }),
    field(
        "mode",
        "`doze`: frozen, with all it has in memory; `stop`: ended, and started again by the next request; `off`: neither; \
         default: the daemon's.",
        || json!({"type": "string", "enum": ["doze", "stop", "off"]}),
    ),
    field(
        "start",
        "Whether it starts with the daemon, or with the first request; default: the daemon's.",
        || json!({"type": "string", "enum": ["boot", "on_demand"]}),
    ),
];

pub const CRASH_LOOP: [Described; 5] = [
    field("threshold", "More crashes than this within the window are a loop.", || {
        integer(0..=limits::CRASH_THRESHOLD_MAX, CrashLoop::default().threshold)
    }),
    field("window_ms", "The window.", || integer(WAIT_MS, CrashLoop::default().window_ms)),
    field("schedule_ms", "The delays, one after the other; the last one repeats and is at least 10.", || {
        let (least, most) = limits::BACKOFF_MS.into_inner();
        let delay = json!({"type": "integer", "minimum": least, "maximum": most});
        let delays = json!({"type": "array", "minItems": 1, "maxItems": limits::BACKOFF_STEPS_MAX, "items": delay});
        json!({"anyOf": [delays, {"type": "string", "const": "relentless"}], "default": CrashLoop::default().schedule_ms})
    }),
    field(
        "max_attempts",
        "Restarts before it is given up as `failed`; default: without end.",
        || json!({"type": "integer", "minimum": 1, "maximum": limits::CRASH_ATTEMPTS_MAX}),
    ),
    field("stable_ms", "The level falls back after so long in `ready`.", || {
        integer(WAIT_MS, CrashLoop::default().stable_ms)
    }),
];

pub const CALL: [Described; 3] = [
    field(
        "method",
        "A JSON-RPC method of the server, as in `tools/call`.",
        || json!({"type": "string", "minLength": 1, "examples": ["tools/call"]}),
    ),
    field(
        "params",
        "Passed on as they are.",
        || json!({"examples": [{"name": "echo", "arguments": {"text": "hello"}}]}),
    ),
    field("timeout_ms", "Default: `timeouts.request_ms` of the server.", wait),
];

pub const TOKEN: [Described; 6] = [
    field("name", "Unique.", || {
        let pattern = format!("^[A-Za-z0-9][A-Za-z0-9_.@-]{{0,{}}}$", NAME_MAX - 1);
        json!({"type": "string", "pattern": pattern, "not": {"enum": ["anonymous", "nobody"]}, "examples": ["ci"]})
    }),
    field("scopes", "What it opens.", || {
        json!({"type": "array", "items": {"type": "string", "enum": Scopes::NAMES}, "minItems": 1, "uniqueItems": true,
            "maxItems": Scopes::NAMES.len(), "examples": [["mcp:call"]]})
    }),
    field("servers", "The only servers that exist for it, beside those of its projects; default: all.", || {
        json!({"type": "array", "items": server_name(), "minItems": 1, "uniqueItems": true,
            "maxItems": TOKEN_SERVERS_MAX, "examples": [["weather"]]})
    }),
    field("projects", "The only projects that it may use; default: all, unless it is limited to servers.", || {
        json!({"type": "array", "items": project(), "minItems": 1, "uniqueItems": true,
            "maxItems": TOKEN_SERVERS_MAX, "examples": [["6f1a-shop"]]})
    }),
    field("expires", "How long it is good, from now on; default: without end.", lifetime),
    field("rate_limit", "How many calls and lists it may make.", || {
        let count = json!({"type": "integer", "minimum": 1, "maximum": RATE_MAX});
        json!({"type": "object", "properties": {"per_second": count, "burst": or_null(count.clone())}, "required": ["per_second"],
            "additionalProperties": false, "examples": [{"per_second": 5}]})
    }),
];

pub const ROTATION: [Described; 1] =
    [field("grace", "How long the old secret is still good; default: not at all.", lifetime)];

pub const UPGRADE: [Described; 1] = [field(
    "binary",
    "The path of the program, on the daemon's host; default: the one that the daemon was started as.",
    program,
)];

fn program() -> Value {
    json!({"type": "string", "pattern": "^/", "examples": ["/usr/bin/stdiod"]})
}

fn lifetime() -> Value {
    json!({"type": "string", "pattern": "^[1-9][0-9]{0,2}[smhd]$", "examples": ["12h"]})
}

pub fn project() -> Value {
    json!({"type": "string", "pattern": format!("^[A-Za-z0-9-]{{1,{NAME_MAX}}}$"), "examples": ["6f1a-shop"]})
}

// --- kinds of values --------------------------------------------------------------------------------------------------

/// What no pattern can say: a network has no bits beyond its prefix.
const DESTINATION: &str = "egress-destination";
pub const NO_NUL: &str = "^[^\\u0000]*$";
/// One name of a path, with the slash before it; neither `.` nor `..`, and no control characters.
const NAME: &str = "/(?!\\.{1,2}(/|:|$))[^/:\\u0000-\\u001f\\u007f-\\u009f]{1,255}";
pub const NAME_WITH_COLON: &str = "/(?!\\.{1,2}(/|$))[^/\\u0000-\\u001f\\u007f-\\u009f]{1,255}";
/// Before a path that must not be the kernel's, nor below what is mounted over every root.
const KERNEL: &str = "(?!/(proc|sys|dev)(/|:|$))";
pub const PORT: &str = "0*([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])";
const V4: &str = "((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\\.){3}(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";

/// Of eight groups, or of fewer with one `::`.
fn v6() -> String {
    let group = "[0-9a-fA-F]{1,4}";
    let mut all = vec![format!("({group}:){{7}}{group}"), format!("({group}:){{1,7}}:"), format!(":(:{group}){{1,7}}")];
    all.extend((1..=6).map(|left| format!("({group}:){{1,{left}}}(:{group}){{1,{}}}", 7 - left)));
    all.push("::".to_string());
    format!("({})", all.join("|"))
}

/// An object of these fields and no others. `null` stands for the default of all that are not required.
pub fn object(fields: &[Described], required: &[&str]) -> Value {
    let property = |field: &Described| {
        let schema = (field.schema)();
        let mut schema = if required.contains(&field.name) { schema } else { or_null(schema) };
        schema["description"] = json!(field.about);
        (field.name.to_string(), schema)
    };
    let properties: serde_json::Map<String, Value> = fields.iter().map(property).collect();
    let mut object = json!({"type": "object", "properties": properties, "additionalProperties": false});
    if !required.is_empty() {
        object["required"] = json!(required);
    }
    object
}

pub fn or_null(mut schema: Value) -> Value {
    if let Some(one) = schema.get("const").cloned() {
        schema.as_object_mut().expect("a schema").remove("const");
        schema["enum"] = json!([one]);
    }
    if let Some(Value::Array(choices)) = schema.get_mut("enum") {
        choices.push(Value::Null);
    }
    match schema.get("type").cloned() {
        Some(one @ Value::String(_)) if schema.get("anyOf").is_none() => {
            schema["type"] = json!([one, "null"]);
            schema
        }
        Some(_) => {
            let default = schema.get("default").cloned();
            let mut either = json!({"anyOf": [schema, {"type": "null"}]});
            if let Some(default) = default {
                either["default"] = default;
            }
            either
        }
        None => {
            if let Some(Value::Array(choices)) = schema.get_mut("anyOf") {
                choices.push(json!({"type": "null"}));
            }
            schema
        }
    }
}

pub fn server_name() -> Value {
    // What a UUID looks like, with or without its dashes.
    let uuid = "^([0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})$";
    json!({"type": "string", "pattern": format!("^[a-z0-9-]{{1,{NAME_MAX}}}$"), "not": {"pattern": uuid},
        "examples": ["weather"]})
}

pub fn text(max: usize) -> Value {
    json!({"type": "string", "maxLength": max, "pattern": NO_NUL})
}

fn boolean() -> Value {
    json!({"type": "boolean"})
}

fn integer<T: Serialize + Copy>(range: RangeInclusive<T>, default: T) -> Value {
    json!({"type": "integer", "minimum": range.start(), "maximum": range.end(), "default": default})
}

pub fn wait() -> Value {
    let (least, most) = WAIT_MS.into_inner();
    json!({"type": "integer", "minimum": least, "maximum": most})
}

/// `in_mebibytes`: the smallest ones of the range, by their unit.
fn bytes(range: RangeInclusive<u64>, in_mebibytes: &str, default: u64) -> Value {
    let pattern = format!("^({in_mebibytes}|[1-9][0-9]{{0,3}}[Gg]|([1-9]|[1-5][0-9])[Tt])(i|i?B|b)?$");
    let number = json!({"type": "integer", "minimum": range.start(), "maximum": range.end()});
    json!({"anyOf": [number, {"type": "string", "pattern": pattern}], "default": default})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::definition::fields;
    use crate::model::definition::Definition;

    /// A value of every field of a registration; each of them is in one of these.
    const SAMPLES: [&str; 3] = [
        r#"{"name": "a", "image": "r.test/x:1", "pull_policy": "always", "cmd": ["x", ""], "stdio_bridge": true,
            "restart_policy": "on-failure", "environment": {"A": "b\n"}, "volumes": ["/data", {"path": "/r", "read_only": true}],
            "resource_limits": {"cpu": "0.123", "memory": "17M", "disk": "5M", "volume": "6M", "pids": 3},
            "provider": "crun", "ports": [{"host": 81, "container": 80, "address": "0.0.0.0"}, "[::1]:82:80"],
            "network": "bridge", "egress": ["db.example:5432"], "user": "1:2", "workdir": "/w", "files": {"/app/x": "y"},
            "project": "p-1", "managed_by": "apply", "max_in_flight": 2, "queue_max": 3, "shared": false, "framing": "content-length",
            "timeouts": {"request_ms": 5, "startup_ms": 6, "install_ms": 7},
            "health": {"heartbeat_ms": 100, "probe_timeout_ms": 8, "stale_ms": 9, "on_unresponsive": "restart",
                "startup_timeout_ms": 6},
            "idle": {"after_ms": 100, "mode": "off", "start": "boot"},
            "crash_loop": {"threshold": 1, "window_ms": 2, "schedule_ms": [1, 20], "max_attempts": 4, "stable_ms": 5}}"#,
        r#"{"name": "a", "rootfs": "host", "cmd": ["x"]}"#,
        r#"{"name": "a", "command": "npx", "args": ["-y", "x"]}"#,
    ];

    fn given<'v>(samples: &'v [Value], pointer: &str, name: &str) -> Option<&'v Value> {
        samples.iter().find_map(|sample| sample.pointer(pointer)?.get(name))
    }

    /// `Fields::take` refuses to read a name that is not in these tables, and `Fields::finish` does not let one pass that
    /// was given and never read: both panic in a build with assertions, which this is.
    #[test]
    fn every_described_field_is_read_and_every_field_that_is_read_is_described() {
        let samples = SAMPLES.map(|text| serde_json::from_str::<Value>(text).unwrap());
        for text in SAMPLES {
            fields::parse(text.as_bytes()).unwrap_or_else(|fault| panic!("{}", fault.message));
        }
        let objects: [(&str, &[Described]); 8] = [
            ("", &DEFINITION),
            ("/volumes/1", &VOLUME),
            ("/resource_limits", &LIMITS),
            ("/ports/0", &PORT_MAPPING),
            ("/timeouts", &TIMEOUTS),
            ("/health", &HEALTH),
            ("/idle", &IDLE),
            ("/crash_loop", &CRASH_LOOP),
        ];
        for (pointer, described) in objects {
            for field in described {
                assert!(given(&samples, pointer, field.name).is_some(), "no sample has {pointer}/{}", field.name);
            }
        }
    }

    #[test]
    fn examples_and_defaults_are_taken() {
        let base = || json!({"name": "a", "rootfs": "host", "cmd": ["x"]});
        let plain = fields::parse(base().to_string().as_bytes()).unwrap();
        let read = |body: Value| -> Definition {
            fields::parse(body.to_string().as_bytes()).unwrap_or_else(|fault| panic!("{body}: {}", fault.message))
        };
        for field in &DEFINITION {
            let schema = (field.schema)();
            for example in schema["examples"].as_array().into_iter().flatten() {
                let mut body = base();
                match field.name {
                    "image" => body = json!({"name": "a"}),
                    "command" => body = json!({"name": "a"}),
                    "egress" => body["network"] = json!("bridge"),
                    _other => {}
                }
                body[field.name] = example.clone();
                read(body);
            }
            if let Some(default) = schema.get("default") {
                let mut body = base();
                body[field.name] = default.clone();
                assert_eq!(read(body), plain, "{}", field.name);
            }
        }
        for (key, inner) in [
            ("resource_limits", &LIMITS[..]),
            ("timeouts", &TIMEOUTS),
            ("health", &HEALTH),
            ("crash_loop", &CRASH_LOOP),
        ] {
            for field in inner.iter().filter(|field| field.name != "volume") {
                let Some(default) = (field.schema)().get("default").cloned() else { continue };
                let mut body = base();
                body[key] = json!({ field.name: default });
                assert_eq!(read(body), plain, "{key}.{}", field.name);
            }
        }
    }
}
