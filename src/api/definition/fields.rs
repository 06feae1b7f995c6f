//! From the fields of a registration to a `Definition`, and from a PATCH to the next one. Owns every rule about what a
//! server may be; never touches the host: whether an image or a provider is there is found out later.
//! A definition that comes out of here is valid as a whole, whichever way it came.

use crate::api::definition::described;
use crate::api::definition::idle;
use crate::api::definition::package;
use crate::api::definition::patch;
use crate::api::definition::quantity;
use crate::api::definition::reach;
use crate::api::definition::stored;
use crate::api::definition::strict_json::{self, Field, Fields};
use crate::ids::Uuid;
use crate::limits::{
    self, CMD_ARGS_MAX, ENV_MAX, FILE_NAME_MAX, FILES_BYTES_MAX, FILES_MAX, IMAGE_REFERENCE_MAX, NAME_MAX, PATH_MAX,
    STRING_MAX, VOLUMES_MAX, WAIT_MS,
};
use crate::model::definition::{
    COVERED, CrashLoop, Definition, Framing, HOST_DIRS, HOST_LINKS, Health, Idle, OnUnresponsive, PullPolicy,
    ResourceLimits, RestartPolicy, Source,
};
use crate::model::external::ProjectId;
use crate::model::fault::{Code, Fault};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

const FIELDS: &[&str] = &described::names(&described::DEFINITION);

/// The body of a registration.
pub fn parse(body: &[u8]) -> Result<Definition, Fault> {
    from_fields(strict_json::object(body)?)
}

pub fn from_fields(given: Map<String, Value>) -> Result<Definition, Fault> {
    let missing = missing_values(&given);
    let definition = but_for_values(given)?;
    if !missing.is_empty() {
        let message = format!("environment: these have no value: {}", missing.join(", "));
        return Err(Fault::new(Code::SecretMissing, message).with("field", "environment").with("missing", missing));
    }
    Ok(definition)
}

/// As above, for a definition whose secrets are not at hand: variables that are `null` are left out.
pub fn but_for_values(mut given: Map<String, Value>) -> Result<Definition, Fault> {
    let fetched = package::expand(&mut given)?;
    // A server with ports speaks on them, unless it says otherwise.
    let bridge_is_said = given.get("stdio_bridge").is_some_and(|value| !value.is_null());
    let mut fields = Fields::of(given, FIELDS)?;
    let name = fields.required("name")?.parse(server_name)?;
    let source = source(&mut fields, None)?;
    let standard = standard(name, source);
    let mut definition = standard.clone();
    apply(&mut fields, &mut definition, &standard)?;
    fields.finish();
    if !bridge_is_said {
        definition.stdio_bridge = definition.ports.is_empty();
    }
    if let Some(fetched) = fetched {
        fetched.furnish(&mut definition);
    }
    check(&definition)?;
    Ok(definition)
}

/// A definition that was read back has `null` where a value was. It must not become a server without its secrets.
fn missing_values(given: &Map<String, Value>) -> Vec<String> {
    let variables = given.get("environment").and_then(Value::as_object);
    let missing = variables.into_iter().flatten().filter(|(_, value)| value.is_null());
    missing.map(|(name, _)| name.clone()).collect()
}

/// The fields of a PATCH on top of what a server is now. What is not given stays, `null` makes it the default again;
/// objects are merged likewise, variable by variable and file by file, and arrays are replaced. The second part is
/// `enabled`, if it was given.
pub fn merge(old: &Definition, given: &Map<String, Value>) -> Result<(Definition, Option<bool>), Fault> {
    let mut given = given.clone();
    let fetched = package::expand(&mut given)?;
    let bridge_is_default = given.get("stdio_bridge").is_some_and(Value::is_null);
    let enabled = given.remove("enabled").map(|value| Field { path: "enabled".into(), value }.boolean()).transpose()?;
    let mut fields = Fields::of(given, FIELDS)?;
    if let Some(name) = fields.take("name")
        && name.value.as_str() != Some(&old.name)
    {
        return Err(name.refuse("a server keeps its name; register another one under the new name"));
    }
    let mut definition = old.clone();
    definition.source = source(&mut fields, Some(&old.source))?;
    apply(&mut fields, &mut definition, &standard(old.name.clone(), old.source.clone()))?;
    fields.finish();
    if bridge_is_default {
        definition.stdio_bridge = definition.ports.is_empty();
    }
    if let Some(fetched) = fetched {
        fetched.furnish(&mut definition);
    }
    // What was not given may have come from a row that nobody had looked at.
    let definition = stored::check(&definition)?;
    patch::keeps_its_volumes(old, &definition)?;
    Ok((definition, enabled))
}

/// What a server is if only its name and source are said.
pub fn standard(name: String, source: Source) -> Definition {
    Definition {
        name,
        source,
        pull_policy: PullPolicy::Missing,
        cmd: Vec::new(),
        stdio_bridge: true,
        restart_policy: RestartPolicy::Always,
        environment: BTreeMap::new(),
        volumes: Vec::new(),
        read_only_volumes: BTreeSet::new(),
        resource_limits: ResourceLimits::default(),
        provider: None,
        ports: Vec::new(),
        network: None,
        egress: None,
        user: None,
        workdir: None,
        files: BTreeMap::new(),
        project: None,
        managed_by: None,
        max_in_flight: limits::MAX_IN_FLIGHT_DEFAULT,
        queue_max: limits::QUEUE_DEFAULT,
        shared: true,
        framing: Framing::Auto,
        request_timeout_ms: limits::REQUEST_TIMEOUT_DEFAULT.as_millis() as u64,
        startup_timeout_ms: limits::STARTUP_TIMEOUT_DEFAULT.as_millis() as u64,
        install_timeout_ms: limits::INSTALL_TIMEOUT_DEFAULT.as_millis() as u64,
        health: Health::default(),
        crash_loop: CrashLoop::default(),
        idle: Idle::default(),
    }
}

/// Sets every field but the name and the source.
fn apply(fields: &mut Fields, definition: &mut Definition, standard: &Definition) -> Result<(), Fault> {
    let d = definition;
    let s = standard;
    fields.set("pull_policy", &mut d.pull_policy, &s.pull_policy, |field| {
        field.one_of(&[("missing", PullPolicy::Missing), ("always", PullPolicy::Always), ("never", PullPolicy::Never)])
    })?;
    fields.set("cmd", &mut d.cmd, &s.cmd, cmd)?;
    fields.set("stdio_bridge", &mut d.stdio_bridge, &s.stdio_bridge, Field::boolean)?;
    fields.set("restart_policy", &mut d.restart_policy, &s.restart_policy, |field| {
        field.one_of(&[
            ("always", RestartPolicy::Always),
            ("on-failure", RestartPolicy::OnFailure),
            ("never", RestartPolicy::Never),
        ])
    })?;
    entries(fields, "environment", &mut d.environment, ENV_MAX, STRING_MAX, variable_name)?;
    let mut all_volumes = (std::mem::take(&mut d.volumes), std::mem::take(&mut d.read_only_volumes));
    fields.set("volumes", &mut all_volumes, &(s.volumes.clone(), s.read_only_volumes.clone()), volumes)?;
    (d.volumes, d.read_only_volumes) = all_volumes;
    fields.set_within("resource_limits", LIMITS, &mut d.resource_limits, &s.resource_limits, resource_limits)?;
    fields.set("provider", &mut d.provider, &s.provider, |field| field.parse(provider).map(Some))?;
    fields.set("ports", &mut d.ports, &s.ports, reach::ports)?;
    fields.set("network", &mut d.network, &s.network, |field| field.parse(reach::network).map(Some))?;
    fields.set("egress", &mut d.egress, &s.egress, |field| reach::egress(field).map(Some))?;
    fields.set("user", &mut d.user, &s.user, |field| field.parse(user).map(Some))?;
    fields.set("workdir", &mut d.workdir, &s.workdir, |field| field.parse(absolute_path).map(Some))?;
    entries(fields, "files", &mut d.files, FILES_MAX, FILES_BYTES_MAX, mount_path)?;
    fields.set("managed_by", &mut d.managed_by, &s.managed_by, |field| field.parse(mark).map(Some))?;
    fields.set("project", &mut d.project, &s.project, |field| field.parse(ProjectId::new).map(Some))?;
    let in_flight = 1..=limits::MAX_IN_FLIGHT_MAX;
    fields.set("max_in_flight", &mut d.max_in_flight, &s.max_in_flight, |field| field.integer(in_flight))?;
    fields.set("queue_max", &mut d.queue_max, &s.queue_max, |field| field.integer(1..=limits::QUEUE_LIMIT))?;
    fields.set("shared", &mut d.shared, &s.shared, |field| field.boolean())?;
    fields.set("framing", &mut d.framing, &s.framing, |field| {
        let content_length = ("content-length", Framing::ContentLength);
        field.one_of(&[("auto", Framing::Auto), ("newline", Framing::Newline), content_length])
    })?;
    timeouts_and_health(fields, d, s)?;
    idle::set(fields, &mut d.idle, &s.idle)?;
    crash_loop(fields, &mut d.crash_loop, &s.crash_loop)
}

// --- what a server is made of ---------------------------------------------------------------------------------------

/// One of `image` and `rootfs`; naming one of them takes the place of the other.
fn source(fields: &mut Fields, old: Option<&Source>) -> Result<Source, Fault> {
    let reset = |field: &Option<Field>| field.as_ref().is_some_and(|field| field.value.is_null());
    let (image, rootfs) = (fields.take("image"), fields.take("rootfs"));
    let old = old.filter(|old| match old {
        Source::Image(_) => !reset(&image),
        Source::HostRootfs => !reset(&rootfs),
    });
    let given = |field: Option<Field>| field.filter(|field| !field.value.is_null());
    match (given(image), given(rootfs)) {
        (Some(image), Some(_)) => Err(image.refuse("a server has an image or a rootfs, not both")),
        (Some(image), None) => image.parse(image_reference).map(Source::Image),
        (None, Some(rootfs)) => rootfs.one_of(&[("host", ())]).map(|()| Source::HostRootfs),
        (None, None) => old.cloned().ok_or_else(|| {
            Fault::field("image", "is required, unless the server runs on the host's files with \"rootfs\": \"host\"")
        }),
    }
}

fn cmd(field: Field) -> Result<Vec<String>, Fault> {
    let words =
        field.list(CMD_ARGS_MAX)?.into_iter().map(|word| word.text(STRING_MAX)).collect::<Result<Vec<_>, _>>()?;
    match words.first() {
        Some(program) if program.is_empty() => Err(Fault::field("cmd[0]", "must not be empty")),
        Some(_) | None => Ok(words),
    }
}

/// `["/data", "/reference:ro", {"path": "/other", "read_only": true}]`: all of them, and those that are read-only.
fn volumes(field: Field) -> Result<(Vec<String>, BTreeSet<String>), Fault> {
    let (mut paths, mut read_only): (Vec<String>, BTreeSet<String>) = (Vec::new(), BTreeSet::new());
    for item in field.list(VOLUMES_MAX)? {
        let place = item.path.clone();
        let (path, only_read) = match item.value {
            Value::Object(_) => {
                let mut fields = item.object(&const { described::names(&described::VOLUME) })?;
                let path = fields.required("path")?.parse(volume_path)?;
                let mut only_read = false;
                fields.set("read_only", &mut only_read, &false, Field::boolean)?;
                fields.finish();
                (path, only_read)
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                item.parse(|text| match text.strip_suffix(":ro") {
                    Some(path) => volume_path(path).map(|path| (path, true)),
                    None => volume_path(text).map(|path| (path, false)),
                })?
            }
        };
        if let Some(other) = paths.iter().find(|other| is_within(&path, other) || is_within(other, &path)) {
            return Err(Fault::field(&place, format_args!("is the same as another volume or inside of it: {other}")));
        }
        if only_read {
            read_only.insert(path.clone());
        }
        paths.push(path);
    }
    Ok((paths, read_only))
}

/// An object of strings; `null` takes an entry out.
fn entries(
    fields: &mut Fields,
    key: &str,
    target: &mut BTreeMap<String, String>,
    count_max: usize,
    text_max: usize,
    rule: fn(&str) -> Result<String, String>,
) -> Result<(), Fault> {
    let Some(field) = fields.take(key) else { return Ok(()) };
    if field.value.is_null() {
        target.clear();
        return Ok(());
    }
    for (name, entry) in field.entries()? {
        let name = rule(&name).map_err(|why| entry.refuse(why))?;
        if entry.value.is_null() {
            target.remove(&name);
        } else {
            target.insert(name, entry.text(text_max)?);
        }
    }
    if target.len() > count_max {
        return Err(Fault::field(key, format_args!("must not have more than {count_max} entries")));
    }
    Ok(())
}

const LIMITS: &[&str] = &described::names(&described::LIMITS);

fn resource_limits(fields: &mut Fields, limits: &mut ResourceLimits) -> Result<(), Fault> {
    let standard = ResourceLimits::default();
    fields.set("cpu", &mut limits.cpu_milli, &standard.cpu_milli, |field| {
        let milli = quantity::cpu_milli(&field.value)
            .ok_or_else(|| field.refuse("expected cores, as in 0.5, \"0.5\" or \"500m\""))?;
        within(&field, milli, limits::CPU_MILLI, quantity::show_cpu)
    })?;
    fields.set("memory", &mut limits.memory_bytes, &standard.memory_bytes, |field| {
        within(&field, byte_amount(&field)?, limits::MEMORY_BYTES, quantity::show_bytes)
    })?;
    fields.set("disk", &mut limits.disk_bytes, &standard.disk_bytes, |field| {
        within(&field, byte_amount(&field)?, limits::DISK_BYTES, quantity::show_bytes)
    })?;
    fields.set("volume", &mut limits.volume_bytes, &standard.volume_bytes, |field| {
        within(&field, byte_amount(&field)?, limits::DISK_BYTES, quantity::show_bytes).map(Some)
    })?;
    fields.set("pids", &mut limits.pids, &standard.pids, |field| field.integer(limits::PIDS))
}

fn byte_amount(field: &Field) -> Result<u64, Fault> {
    quantity::bytes(&field.value).ok_or_else(|| field.refuse("expected bytes, as in 536870912, \"512M\" or \"1G\""))
}

fn within<T: PartialOrd + Copy>(
    field: &Field,
    amount: T,
    range: RangeInclusive<T>,
    show: fn(T) -> String,
) -> Result<T, Fault> {
    if range.contains(&amount) {
        return Ok(amount);
    }
    Err(field.refuse(format_args!("must be between {} and {}", show(*range.start()), show(*range.end()))))
}

// --- how it is looked after -----------------------------------------------------------------------------------------

const TIMEOUTS: &[&str] = &described::names(&described::TIMEOUTS);
const HEALTH: &[&str] = &described::names(&described::HEALTH);

/// Together, because the time to start may be given in either.
fn timeouts_and_health(fields: &mut Fields, d: &mut Definition, s: &Definition) -> Result<(), Fault> {
    let wait = |field: Field| field.integer(WAIT_MS);
    let startup = |field: Field| field.integer(WAIT_MS).map(Some);
    let standard_startup = Some(s.startup_timeout_ms);

    let mut timeouts = (d.request_timeout_ms, None, d.install_timeout_ms);
    let standard = (s.request_timeout_ms, standard_startup, s.install_timeout_ms);
    fields.set_within("timeouts", TIMEOUTS, &mut timeouts, &standard, |inner, timeouts| {
        inner.set("request_ms", &mut timeouts.0, &standard.0, wait)?;
        inner.set("install_ms", &mut timeouts.2, &standard.2, wait)?;
        inner.set("startup_ms", &mut timeouts.1, &standard_startup, startup)
    })?;

    let mut health_startup = None;
    fields.set_within("health", HEALTH, &mut d.health, &s.health, |inner, health| {
        inner.set("heartbeat_ms", &mut health.heartbeat_ms, &s.health.heartbeat_ms, |field| {
            field.integer(limits::HEARTBEAT_MS)
        })?;
        inner.set("probe_timeout_ms", &mut health.probe_timeout_ms, &s.health.probe_timeout_ms, wait)?;
        inner.set("stale_ms", &mut health.stale_ms, &s.health.stale_ms, |field| field.integer(WAIT_MS).map(Some))?;
        inner.set("on_unresponsive", &mut health.on_unresponsive, &s.health.on_unresponsive, |field| {
            field.one_of(&[("report", OnUnresponsive::Report), ("restart", OnUnresponsive::Restart)])
        })?;
        inner.set("startup_timeout_ms", &mut health_startup, &standard_startup, startup)
    })?;

    (d.request_timeout_ms, d.install_timeout_ms) = (timeouts.0, timeouts.2);
    match (timeouts.1, health_startup) {
        (Some(one), Some(other)) if one != other => Err(Fault::field(
            "health.startup_timeout_ms",
            "is the same thing as timeouts.startup_ms, and the two differ: give one of them",
        )),
        (one, other) => {
            d.startup_timeout_ms = one.or(other).unwrap_or(d.startup_timeout_ms);
            Ok(())
        }
    }
}

const CRASH_LOOP: &[&str] = &described::names(&described::CRASH_LOOP);
const RELENTLESS: &str = "relentless";

fn crash_loop(fields: &mut Fields, target: &mut CrashLoop, standard: &CrashLoop) -> Result<(), Fault> {
    let Some(field) = fields.take("crash_loop") else { return Ok(()) };
    match &field.value {
        Value::Null => *target = standard.clone(),
        Value::String(word) if word == RELENTLESS => *target = CrashLoop::relentless(),
        Value::Object(_) => {
            let mut inner = field.object(CRASH_LOOP)?;
            crash_loop_fields(&mut inner, target, standard)?;
            inner.finish();
        }
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            return Err(field.expected("an object or \"relentless\""));
        }
    }
    Ok(())
}

fn crash_loop_fields(inner: &mut Fields, target: &mut CrashLoop, standard: &CrashLoop) -> Result<(), Fault> {
    let wait = |field: Field| field.integer(WAIT_MS);
    let t = target;
    inner.set("threshold", &mut t.threshold, &standard.threshold, |field| {
        field.integer(0..=limits::CRASH_THRESHOLD_MAX)
    })?;
    inner.set("window_ms", &mut t.window_ms, &standard.window_ms, wait)?;
    inner.set("stable_ms", &mut t.stable_ms, &standard.stable_ms, wait)?;
    inner.set("max_attempts", &mut t.max_attempts, &standard.max_attempts, |field| {
        field.integer(1..=limits::CRASH_ATTEMPTS_MAX).map(Some)
    })?;
    let mut schedule = (std::mem::take(&mut t.schedule_ms), t.relentless);
    let standard = (standard.schedule_ms.clone(), standard.relentless);
    inner.set("schedule_ms", &mut schedule, &standard, |field| match field.value.as_str() {
        Some(RELENTLESS) => Ok((CrashLoop::relentless().schedule_ms, true)),
        Some(_) => Err(field.expected("an array of milliseconds or \"relentless\"")),
        None => delays(field).map(|delays| (delays, false)),
    })?;
    (t.schedule_ms, t.relentless) = schedule;
    Ok(())
}

fn delays(field: Field) -> Result<Vec<u64>, Fault> {
    let path = field.path.clone();
    let items = field.list(limits::BACKOFF_STEPS_MAX)?;
    let delays = items.into_iter().map(|item| item.integer(limits::BACKOFF_MS)).collect::<Result<Vec<_>, _>>()?;
    match delays.last() {
        None => Err(Fault::field(&path, "must have at least one delay")),
        // It repeats without end, and would do nothing else.
        Some(last) if *last < limits::BACKOFF_LAST_MS_MIN => Err(Fault::field(
            &path,
            format_args!("its last delay repeats, and must be at least {} ms", limits::BACKOFF_LAST_MS_MIN),
        )),
        Some(_) => Ok(delays),
    }
}

// --- the whole ------------------------------------------------------------------------------------------------------

/// The rules between fields.
fn check(definition: &Definition) -> Result<(), Fault> {
    if definition.source == Source::HostRootfs && definition.cmd.is_empty() {
        return Err(Fault::field("cmd", "is required with \"rootfs\": \"host\", which has no command of its own"));
    }
    reach::check(definition)?;
    idle::check(definition)?;
    check_user(definition)?;
    let files = &definition.files;
    if files.values().map(String::len).sum::<usize>() > FILES_BYTES_MAX {
        return Err(Fault::field("files", format_args!("must not be larger than {FILES_BYTES_MAX} bytes together")));
    }
    let of_host = HOST_DIRS.into_iter().chain(HOST_LINKS).filter(|_| definition.source == Source::HostRootfs);
    for path in files.keys() {
        let mut covers = definition.volumes.iter().map(String::as_str).chain(COVERED).chain(of_host.clone());
        if let Some(cover) = covers.find(|cover| is_within(path, cover)) {
            return Err(Fault::field("files", format_args!("{path} cannot be there: {cover} is mounted over it")));
        }
        let others = files.keys().filter(|other| *other != path).chain(&definition.volumes);
        if let Some(inner) = others.into_iter().find(|other| is_within(other, path)) {
            return Err(Fault::field("files", format_args!("{path} cannot be a file, because {inner} is there too")));
        }
    }
    Ok(())
}

/// What numbers can say of it; the launcher looks at what names turn out to be.
fn check_user(definition: &Definition) -> Result<(), Fault> {
    let Some(user) = &definition.user else { return Ok(()) };
    let (allowed, names): (RangeInclusive<u32>, Option<&[&str]>) = match definition.source {
        Source::HostRootfs => (limits::HOST_VIEW_IDS, Some(&["nobody", "nogroup"])),
        Source::Image(_) => (0..=limits::CONTAINER_USERS - 1, None),
    };
    let is_allowed = |part: &str| match part.parse::<u32>() {
        Ok(id) => allowed.contains(&id),
        Err(_) => names.is_none_or(|names| names.contains(&part)),
    };
    if user.split(':').all(is_allowed) {
        return Ok(());
    }
    let (first, last) = (allowed.start(), allowed.end());
    Err(Fault::field(
        "user",
        match definition.source {
            Source::HostRootfs => format!(
                "must be \"nobody\" or numbers from {first} to {last} on the host's files, where lower ones are the \
                 host's own root and services; only an image may have others"
            ),
            Source::Image(_) => format!("must not have a number beyond {last}, the last one that a container has"),
        },
    ))
}

/// `inner` is `outer` or below it.
fn is_within(inner: &str, outer: &str) -> bool {
    inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

// --- words ----------------------------------------------------------------------------------------------------------

/// The rule for names of servers.
pub fn server_name(text: &str) -> Result<String, String> {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if text.is_empty() || text.len() > NAME_MAX || !text.bytes().all(allowed) {
        return Err(format!("must be 1 to {NAME_MAX} of a-z, 0-9 and -"));
    }
    if Uuid::try_parse(text).is_ok() {
        return Err("must not look like a UUID: paths take either".to_string());
    }
    Ok(text.to_string())
}

/// What made a server.
fn mark(text: &str) -> Result<String, String> {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    match !text.is_empty() && text.len() <= NAME_MAX && text.bytes().all(allowed) {
        true => Ok(text.to_string()),
        false => Err(format!("must be 1 to {NAME_MAX} of a-z, 0-9 and -")),
    }
}

fn provider(text: &str) -> Result<String, String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if text.is_empty() || text.len() > NAME_MAX || !text.bytes().all(allowed) {
        return Err("expected the name of a runtime, as in \"gvisor\" or \"crun\"".to_string());
    }
    Ok(text.to_string())
}

fn image_reference(text: &str) -> Result<String, String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:@".contains(&byte);
    let component = |part: &str| !part.is_empty() && part.as_bytes()[0].is_ascii_alphanumeric();
    if text.len() > IMAGE_REFERENCE_MAX || !text.bytes().all(allowed) || !text.split(['/', ':', '@']).all(component) {
        return Err("expected an image reference, as in \"name:tag\" or \"registry/name@sha256:…\"".to_string());
    }
    Ok(text.to_string())
}

/// The rule for names of environment variables.
pub fn variable_name(text: &str) -> Result<String, String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if text.is_empty() || text.len() > PATH_MAX || text.as_bytes()[0].is_ascii_digit() || !text.bytes().all(allowed) {
        return Err("a variable's name is of A-Z, a-z, 0-9 and _, and does not begin with a digit".to_string());
    }
    Ok(text.to_string())
}

/// `uid`, `uid:gid`, `name` or `name:group`.
fn user(text: &str) -> Result<String, String> {
    let id = |part: &str| {
        let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        // The last one means "no change" to the kernel.
        digits && part.parse::<u32>().is_ok_and(|id| id != u32::MAX)
    };
    let name = |part: &str| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        let starts = part.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
        starts && part.len() <= 32 && part.bytes().all(allowed)
    };
    let well_formed = match text.split_once(':') {
        None => id(text) || name(text),
        Some((user, group)) => (id(user) && id(group)) || (name(user) && name(group)),
    };
    if well_formed { Ok(text.to_string()) } else { Err("expected uid, uid:gid, name or name:group".to_string()) }
}

/// From the root and normalised, so that what a path says is what it means.
pub fn absolute_path(text: &str) -> Result<String, String> {
    let normal = |part: &str| !matches!(part, "" | "." | "..") && !part.contains(char::is_control);
    let rest = text.strip_prefix('/').ok_or("expected a path that begins with /")?;
    if text.len() > PATH_MAX {
        return Err(format!("must not be longer than {PATH_MAX} bytes"));
    }
    if !rest.is_empty() && !rest.split('/').all(normal) {
        return Err("expected a path without empty, . or .. parts and control characters".to_string());
    }
    Ok(text.to_string())
}

/// A volume is named by where it is in the container, and by nothing else.
fn volume_path(text: &str) -> Result<String, String> {
    if text.contains(':') {
        let why =
            "expected a path in the container, as in \"/data\" or \"/data:ro\"; where it is kept is not chosen here";
        return Err(why.to_string());
    }
    mount_path(text)
}

/// Where something may be put into a container.
fn mount_path(text: &str) -> Result<String, String> {
    let path = absolute_path(text)?;
    if path.split('/').any(|name| name.len() > FILE_NAME_MAX) {
        return Err(format!("no name in it may be longer than {FILE_NAME_MAX} bytes"));
    }
    if path == "/" {
        return Err("must not be the root".to_string());
    }
    match ["/proc", "/sys", "/dev"].into_iter().find(|kernel| is_within(&path, kernel)) {
        Some(kernel) => Err(format!("must not be in {kernel}, which belongs to the kernel")),
        None => Ok(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::definition::patch::drop_environment;
    use crate::model::fault::Code;
    use crate::wire::mutation::Mutator;
    use serde_json::json;

    fn read(value: Value) -> Result<Definition, Fault> {
        parse(value.to_string().as_bytes())
    }

    /// A good registration with one more field (or another value for one).
    fn with(key: &str, value: Value) -> Result<Definition, Fault> {
        let mut body = json!({"name": "a", "rootfs": "host", "cmd": ["x"]});
        body[key] = value;
        read(body)
    }

    fn patch(old: &Definition, fields: Value) -> Result<(Definition, Option<bool>), Fault> {
        merge(old, fields.as_object().unwrap())
    }

    #[test]
    fn a_bridge_that_is_set_back_is_what_the_ports_make_it() {
        let web = read(json!({"name": "a", "rootfs": "host", "cmd": ["x"], "ports": ["8080:80"]})).unwrap();
        let said = patch(&web, json!({"stdio_bridge": true})).unwrap().0;
        assert!(!web.stdio_bridge && said.stdio_bridge);
        assert_eq!(patch(&said, json!({"stdio_bridge": null})).unwrap().0, web);
        let without = patch(&said, json!({"stdio_bridge": null, "ports": null})).unwrap().0;
        assert!(without.stdio_bridge && without.ports.is_empty());
    }

    #[test]
    fn a_server_that_becomes_a_package_runner_gets_what_one_has_from_the_beginning() {
        let plain = with("cmd", json!(["x"])).unwrap();
        let npx = patch(&plain, json!({"command": "npx", "args": ["-y", "some-server"]})).unwrap().0;
        let whole = read(json!({"name": "a", "command": "npx", "args": ["-y", "some-server"]})).unwrap();
        assert_eq!(npx, whole);
        // What was said stays as it is.
        let own = json!({"network": "none", "volumes": ["/cache/npm"], "timeouts": {"startup_ms": 7_000}});
        let own = patch(&plain, own).unwrap().0;
        let npx = patch(&own, json!({"command": "npx"})).unwrap().0;
        assert_eq!((npx.network, npx.volumes, npx.startup_timeout_ms), (own.network, own.volumes, 7_000));
    }

    #[track_caller]
    fn refused(result: Result<Definition, Fault>, path: &str) -> Fault {
        let fault = result.unwrap_err();
        assert_eq!(fault.data["field"], json!(path), "{}", fault.message);
        assert!(fault.message.starts_with(path), "{}", fault.message);
        fault
    }

    #[test]
    fn whoever_takes_a_variable_out_does_not_keep_the_others() {
        let old = with("environment", json!({"SECRET": "1", "PYTHONSAFEPATH": "1"})).unwrap();
        let left = |fields: Value| {
            let (mut new, _) = patch(&old, fields.clone()).unwrap();
            let dropped = drop_environment(&old, &mut new, fields.as_object().unwrap());
            (dropped, new.environment.into_keys().collect::<Vec<_>>())
        };
        assert_eq!(left(json!({"environment": {"PYTHONSAFEPATH": null}})), (true, vec![]));
        assert_eq!(left(json!({"environment": {"PYTHONSAFEPATH": "2"}})), (true, vec!["PYTHONSAFEPATH".to_string()]));
        assert!(!left(json!({"environment": {"NEVER_THERE": null}})).0 && !left(json!({"queue_max": 3})).0);
    }

    #[test]
    fn the_registration_of_the_guide_is_taken_as_printed() {
        let guide = br#"{
  "name": "my-mcp-server",
  "image": "my-registry/my-mcp-server:latest",
  "cmd": ["node", "server.js"],
  "stdio_bridge": true,
  "restart_policy": "always",
  "environment": {
    "LOG_LEVEL": "info",
    "DATA_DIR": "/data"
  },
  "volumes": ["/data"],
  "resource_limits": {
    "cpu": "0.5",
    "memory": "512M",
    "disk": "1G"
  }
}"#;
        let d = parse(guide).unwrap();
        assert_eq!(d.source, Source::Image("my-registry/my-mcp-server:latest".into()));
        assert_eq!(d.resource_limits, ResourceLimits::default());
        assert_eq!(d.environment["DATA_DIR"], "/data");
        assert_eq!((d.volumes, d.cmd), (vec!["/data".to_string()], vec!["node".to_string(), "server.js".to_string()]));
    }

    #[test]
    fn what_is_not_said_has_its_default() {
        let d = read(json!({"name": "a", "image": "i"})).unwrap();
        assert_eq!(d, standard("a".into(), Source::Image("i".into())));
        assert!(d.stdio_bridge && d.shared && d.cmd.is_empty() && d.max_in_flight == 1);
        assert_eq!(
            (d.request_timeout_ms, d.resource_limits.cpu_milli, d.resource_limits.disk_bytes),
            (30_000, 500, 1 << 30)
        );
        let mut nulls = json!({"name": "a", "image": "i"});
        for field in FIELDS.iter().filter(|field| !["name", "image"].contains(field)) {
            nulls[field] = Value::Null;
        }
        assert_eq!(read(nulls).unwrap(), d, "null is the default, too");
    }

    #[test]
    fn every_field_is_taken() {
        let d = read(json!({
            "name": "all-0", "rootfs": "host", "cmd": ["python3", "-u", ""], "stdio_bridge": false,
            "restart_policy": "on-failure", "environment": {"A": "", "_b2": "é\n"}, "volumes": ["/data", "/var/lib/x"],
            "resource_limits": {"cpu": 2, "memory": "1Gi", "disk": 1073741824, "volume": "2G", "pids": 64}, "provider": "crun",
            "ports": [], "network": "none", "user": "1000:1000", "workdir": "/", "files": {"/app/server.js": "text\n"},
            "max_in_flight": 8, "queue_max": 4, "shared": true, "framing": "newline",
            "timeouts": {"request_ms": 1, "startup_ms": 5000},
            "health": {"heartbeat_ms": 100, "probe_timeout_ms": 2, "stale_ms": 3, "on_unresponsive": "restart", "startup_timeout_ms": 5000},
            "crash_loop": {"threshold": 0, "window_ms": 1, "schedule_ms": [0, 10], "max_attempts": 1, "stable_ms": 9},
        }))
        .unwrap();
        let expected = Definition {
            cmd: vec!["python3".into(), "-u".into(), "".into()],
            stdio_bridge: false,
            restart_policy: RestartPolicy::OnFailure,
            environment: BTreeMap::from([("A".into(), "".into()), ("_b2".into(), "é\n".into())]),
            volumes: vec!["/data".into(), "/var/lib/x".into()],
            resource_limits: ResourceLimits {
                cpu_milli: 2000,
                memory_bytes: 1 << 30,
                disk_bytes: 1 << 30,
                pids: 64,
                volume_bytes: Some(2 << 30),
            },
            provider: Some("crun".into()),
            network: Some("none".into()),
            user: Some("1000:1000".into()),
            workdir: Some("/".into()),
            files: BTreeMap::from([("/app/server.js".into(), "text\n".into())]),
            max_in_flight: 8,
            queue_max: 4,
            framing: Framing::Newline,
            request_timeout_ms: 1,
            startup_timeout_ms: 5000,
            health: Health {
                heartbeat_ms: 100,
                probe_timeout_ms: 2,
                stale_ms: Some(3),
                on_unresponsive: OnUnresponsive::Restart,
            },
            crash_loop: CrashLoop {
                threshold: 0,
                window_ms: 1,
                schedule_ms: vec![0, 10],
                max_attempts: Some(1),
                stable_ms: 9,
                relentless: false,
            },
            ..standard("all-0".into(), Source::HostRootfs)
        };
        assert_eq!(d, expected);
    }

    #[test]
    fn what_cannot_be_is_refused_by_its_path() {
        let long = "x".repeat(STRING_MAX + 1);
        let many = vec!["/a"; VOLUMES_MAX + 1];
        for (key, value, path) in [
            ("name", json!(""), "name"),
            ("name", json!(null), "name"),
            ("name", json!(5), "name"),
            ("name", json!("A"), "name"),
            ("name", json!("a_b"), "name"),
            ("name", json!("x".repeat(64)), "name"),
            ("name", json!("550e8400-e29b-41d4-a716-446655440000"), "name"),
            ("name", json!("550e8400e29b41d4a716446655440000"), "name"),
            ("image", json!("i"), "image"),
            ("rootfs", json!("guest"), "rootfs"),
            ("cmd", json!("x"), "cmd"),
            ("cmd", json!([]), "cmd"),
            ("cmd", json!([""]), "cmd[0]"),
            ("cmd", json!(["x", 1]), "cmd[1]"),
            ("cmd", json!(["x", "a\0b"]), "cmd[1]"),
            ("cmd", json!([long]), "cmd[0]"),
            ("cmd", json!(vec!["x"; CMD_ARGS_MAX + 1]), "cmd"),
            ("stdio_bridge", json!("true"), "stdio_bridge"),
            ("restart_policy", json!("Always"), "restart_policy"),
            ("restart_policy", json!(true), "restart_policy"),
            ("environment", json!(["A=B"]), "environment"),
            ("environment", json!({"A": 1}), "environment.A"),
            ("environment", json!({"A": "x\0"}), "environment.A"),
            ("environment", json!({"1A": "x"}), "environment.1A"),
            ("environment", json!({"": "x"}), "environment[\"\"]"),
            ("environment", json!({"A=B": "x"}), "environment[\"A=B\"]"),
            ("environment", json!({"É": "x"}), "environment[\"É\"]"),
            ("volumes", json!("/data"), "volumes"),
            ("volumes", json!(["data"]), "volumes[0]"),
            ("volumes", json!(["/"]), "volumes[0]"),
            ("volumes", json!(["/data/"]), "volumes[0]"),
            ("volumes", json!(["/a/../etc"]), "volumes[0]"),
            ("volumes", json!(["/a/./b"]), "volumes[0]"),
            ("volumes", json!(["//a"]), "volumes[0]"),
            ("volumes", json!(["/a\nb"]), "volumes[0]"),
            ("volumes", json!(["/proc"]), "volumes[0]"),
            ("volumes", json!(["/sys/fs"]), "volumes[0]"),
            ("volumes", json!(["/dev/shm"]), "volumes[0]"),
            ("volumes", json!(["/a", "/a"]), "volumes[1]"),
            ("volumes", json!(["/a/b", "/a"]), "volumes[1]"),
            ("volumes", json!(many), "volumes"),
            ("volumes", json!([format!("/{}", "x".repeat(PATH_MAX))]), "volumes[0]"),
            ("resource_limits", json!([]), "resource_limits"),
            ("resource_limits", json!({"cpu": "0"}), "resource_limits.cpu"),
            ("resource_limits", json!({"cpu": -1}), "resource_limits.cpu"),
            ("resource_limits", json!({"cpu": "1025"}), "resource_limits.cpu"),
            ("resource_limits", json!({"cpu": "9m"}), "resource_limits.cpu"),
            ("resource_limits", json!({"cpu": [1]}), "resource_limits.cpu"),
            ("resource_limits", json!({"memory": "15M"}), "resource_limits.memory"),
            ("resource_limits", json!({"memory": "512 M"}), "resource_limits.memory"),
            ("resource_limits", json!({"memory": "1E"}), "resource_limits.memory"),
            ("resource_limits", json!({"memory": u64::MAX}), "resource_limits.memory"),
            ("resource_limits", json!({"disk": "-1G"}), "resource_limits.disk"),
            ("resource_limits", json!({"volume": "1M"}), "resource_limits.volume"),
            ("resource_limits", json!({"volume": "lots"}), "resource_limits.volume"),
            ("resource_limits", json!({"pids": 0}), "resource_limits.pids"),
            ("resource_limits", json!({"pids": "64"}), "resource_limits.pids"),
            ("provider", json!("run c"), "provider"),
            ("provider", json!(""), "provider"),
            ("ports", json!(["8080"]), "ports[0]"),
            ("egress", json!(["anywhere"]), "egress[0]"),
            ("volumes", json!(["/:ro"]), "volumes[0]"),
            ("ports", json!("8080:80"), "ports"),
            ("network", json!("a b"), "network"),
            ("network", json!(1), "network"),
            ("user", json!(1000), "user"),
            ("user", json!(""), "user"),
            ("user", json!("1000:"), "user"),
            ("user", json!(":1"), "user"),
            ("user", json!("1:2:3"), "user"),
            ("user", json!("-1"), "user"),
            ("user", json!("4294967295"), "user"),
            ("user", json!("a b"), "user"),
            ("user", json!("root:0"), "user"),
            ("user", json!("0"), "user"),
            ("user", json!("00"), "user"),
            ("user", json!("root"), "user"),
            ("user", json!("0:0"), "user"),
            ("user", json!("1000:0"), "user"),
            ("user", json!("0:1000"), "user"),
            ("user", json!("nobody:root"), "user"),
            ("user", json!("1000:42"), "user"),
            ("user", json!("1048576"), "user"),
            ("user", json!("1000:1048576"), "user"),
            ("workdir", json!("app"), "workdir"),
            ("workdir", json!("/app/.."), "workdir"),
            ("files", json!({"app.js": ""}), "files[\"app.js\"]"),
            ("files", json!({"/app/": ""}), "files[\"/app/\"]"),
            ("files", json!({"/dev/null": ""}), "files[\"/dev/null\"]"),
            ("files", json!({"/a": 1}), "files[\"/a\"]"),
            ("files", json!({"/usr/local/bin/x": ""}), "files"),
            ("files", json!({"/lib/x": ""}), "files"),
            ("files", json!({"/tmp/x": ""}), "files"),
            ("volumes", json!([format!("/{}", "x".repeat(256))]), "volumes[0]"),
            ("volumes", json!(["/data:rw"]), "volumes[0]"),
            ("volumes", json!(["/a", "/srv/data:/data"]), "volumes[1]"),
            ("volumes", json!([{"path": "/a:b"}]), "volumes[0].path"),
            ("files", json!({"/a": "", "/a/b": ""}), "files"),
            ("files", json!({"/a": "x".repeat(FILES_BYTES_MAX), "/b": "x"}), "files"),
            ("max_in_flight", json!(0), "max_in_flight"),
            ("max_in_flight", json!(1025), "max_in_flight"),
            ("queue_max", json!(1.5), "queue_max"),
            ("shared", json!("yes"), "shared"),
            ("framing", json!("Content-Length"), "framing"),
            ("framing", json!("json"), "framing"),
            ("timeouts", json!({"request_ms": 0}), "timeouts.request_ms"),
            ("timeouts", json!({"request_ms": 86_400_001}), "timeouts.request_ms"),
            ("timeouts", json!({"startup_ms": "1s"}), "timeouts.startup_ms"),
            ("health", json!({"heartbeat_ms": 99}), "health.heartbeat_ms"),
            ("health", json!({"on_unresponsive": "kill"}), "health.on_unresponsive"),
            ("crash_loop", json!("gentle"), "crash_loop"),
            ("crash_loop", json!([]), "crash_loop"),
            ("crash_loop", json!({"schedule_ms": []}), "crash_loop.schedule_ms"),
            ("crash_loop", json!({"schedule_ms": [5, 0]}), "crash_loop.schedule_ms"),
            ("crash_loop", json!({"schedule_ms": [5, "x"]}), "crash_loop.schedule_ms[1]"),
            ("crash_loop", json!({"schedule_ms": "gentle"}), "crash_loop.schedule_ms"),
            ("crash_loop", json!({"max_attempts": 0}), "crash_loop.max_attempts"),
        ] {
            let fault = refused(with(key, value), path);
            assert_eq!(fault.code, Code::InvalidRequest);
        }
        refused(read(json!({"image": "i"})), "name");
        refused(read(json!({"name": "a"})), "image");
        refused(read(json!({"name": "a", "rootfs": "host"})), "cmd");
    }

    #[test]
    fn only_an_image_may_be_run_as_root() {
        let as_user = |user: &str| read(json!({"name": "a", "image": "i", "user": user}));
        for user in ["0", "root", "0:0", "root:root", "1048575:1048575", "7"] {
            assert!(as_user(user).is_ok(), "{user}");
        }
        refused(as_user("1048576"), "user");
        refused(as_user("0:1048576"), "user");
        let rooted = as_user("0").unwrap();
        let fault = patch(&rooted, json!({"rootfs": "host", "image": null, "cmd": ["x"]})).unwrap_err();
        assert_eq!(fault.data["field"], json!("user"), "{}", fault.message);
        for user in ["nobody", "nobody:nogroup", "65534", "1000:1000", "1048575"] {
            assert!(with("user", json!(user)).is_ok(), "{user}");
        }
    }

    #[test]
    fn unknown_fields_are_refused_before_anything_else() {
        let fault = refused(read(json!({"nmae": "a", "image": "i"})), "nmae");
        assert_eq!((fault.code, &fault.data["suggestion"]), (Code::UnknownField, &json!("name")));
        let fault = refused(with("resource_limits", json!({"cpuu": 1})), "resource_limits.cpuu");
        assert_eq!(fault.data["suggestion"], json!("resource_limits.cpu"));
        refused(with("enabled", json!(true)), "enabled");
        refused(with("health", json!({"x": 1})), "health.x");
        refused(with("crash_loop", json!({"relentless": true})), "crash_loop.relentless");
        assert_eq!(parse(br#"{"name":"a","name":"a","image":"i"}"#).unwrap_err().code, Code::InvalidJson);
    }

    #[test]
    fn image_references_have_their_form() {
        for good in ["a", "a:1", "library/node:20-slim", "localhost:5000/a/b_c@sha256:00ff", "Registry.example/x"] {
            assert!(read(json!({"name": "a", "image": good})).is_ok(), "{good}");
        }
        for bad in
            ["", " a", "a b", "/a", "a/", "a//b", "../a", "a/../b", "-a", "a:", ":a", "a\n", "é", &"a".repeat(256)]
        {
            refused(read(json!({"name": "a", "image": bad})), "image");
        }
    }

    #[test]
    fn the_time_to_start_may_stand_in_either_place_but_not_differ() {
        let both = |one: Value, other: Value| {
            read(
                json!({"name": "a", "image": "i", "timeouts": {"startup_ms": one}, "health": {"startup_timeout_ms": other}}),
            )
        };
        assert_eq!(both(json!(7), json!(7)).unwrap().startup_timeout_ms, 7);
        refused(both(json!(7), json!(8)), "health.startup_timeout_ms");
        let one = with("timeouts", json!({"startup_ms": 7})).unwrap();
        let other = with("health", json!({"startup_timeout_ms": 7})).unwrap();
        assert_eq!((one.startup_timeout_ms, other.startup_timeout_ms), (7, 7));
    }

    #[test]
    fn relentless_may_be_said_in_two_ways() {
        assert_eq!(with("crash_loop", json!("relentless")).unwrap().crash_loop, CrashLoop::relentless());
        let d = with("crash_loop", json!({"schedule_ms": "relentless", "threshold": 9})).unwrap();
        assert_eq!(d.crash_loop, CrashLoop { threshold: 9, ..CrashLoop::relentless() });
        let (d, _) = patch(&d, json!({"crash_loop": {"schedule_ms": [50]}})).unwrap();
        assert_eq!((d.crash_loop.relentless, d.crash_loop.threshold), (false, 9));
        assert_eq!(patch(&d, json!({"crash_loop": null})).unwrap().0.crash_loop, CrashLoop::default());
    }

    #[test]
    fn a_change_touches_only_what_it_names() {
        let old = read(json!({
            "name": "a", "rootfs": "host", "cmd": ["x"], "environment": {"A": "1", "B": "2"}, "files": {"/f": "t"},
            "resource_limits": {"cpu": 1, "pids": 9}, "timeouts": {"request_ms": 5, "startup_ms": 6}, "provider": "crun",
        }))
        .unwrap();
        assert_eq!(patch(&old, json!({})).unwrap(), (old.clone(), None));
        assert_eq!(patch(&old, json!({"name": "a", "enabled": false})).unwrap(), (old.clone(), Some(false)));
        let (new, _) = patch(
            &old,
            json!({
                "environment": {"B": null, "C": "3"}, "resource_limits": {"cpu": null, "memory": "64M"},
                "timeouts": {"request_ms": 7}, "provider": null, "files": null,
            }),
        )
        .unwrap();
        let expected = Definition {
            environment: BTreeMap::from([("A".into(), "1".into()), ("C".into(), "3".into())]),
            resource_limits: ResourceLimits { pids: 9, memory_bytes: 64 << 20, ..ResourceLimits::default() },
            request_timeout_ms: 7,
            provider: None,
            files: BTreeMap::new(),
            ..old.clone()
        };
        assert_eq!(new, expected);
        let (new, _) = patch(&old, json!({"image": "i", "timeouts": null})).unwrap();
        assert_eq!(
            (new.source, new.request_timeout_ms, new.startup_timeout_ms),
            (Source::Image("i".into()), 30_000, 60_000)
        );
    }

    #[test]
    fn a_change_that_cannot_be_is_refused() {
        let old = with("volumes", json!(["/data"])).unwrap();
        for (fields, path) in [
            (json!({"name": "b"}), "name"),
            (json!({"name": null}), "name"),
            (json!({"enabled": "no"}), "enabled"),
            (json!({"enabled": null}), "enabled"),
            (json!({"enabeld": true}), "enabeld"),
            (json!({"cmd": null}), "cmd"),
            (json!({"rootfs": null}), "image"),
            (json!({"rootfs": "host", "image": "i"}), "image"),
            (json!({"files": {"/data": "x"}}), "files"),
            (json!({"files": {"/data/x": "x"}}), "files"),
            (json!({"environment": {"A": 1}}), "environment.A"),
            (json!({"resource_limits": {"volume": "512M"}}), "resource_limits.volume"),
            (json!({"resource_limits": {"disk": "512M"}}), "resource_limits.volume"),
        ] {
            refused(patch(&old, fields).map(|(new, _)| new), path);
        }
    }

    #[test]
    fn volumes_may_grow_and_follow_the_disk_until_they_are_told_otherwise() {
        let old = with("volumes", json!(["/data"])).unwrap();
        let limits = |old: &Definition, fields: Value| {
            patch(old, json!({ "resource_limits": fields })).unwrap().0.resource_limits.volume_bytes()
        };
        assert_eq!(limits(&old, json!({"volume": "2G"})), 2 << 30);
        assert_eq!(limits(&old, json!({"disk": "3G"})), 3 << 30);
        assert_eq!(limits(&old, json!({"disk": "512M", "volume": "1G"})), 1 << 30);
        let none = with("volumes", json!([])).unwrap();
        assert_eq!(limits(&none, json!({"volume": "512M"})), 512 << 20);
    }

    #[test]
    fn secrets_never_stand_in_a_refusal() {
        for value in
            [json!({"A": ["s3cret"]}), json!({"A": "s3cret\0"}), json!({"A": {"b": "s3cret"}}), json!("s3cret")]
        {
            let fault = with("environment", value).unwrap_err();
            assert!(!fault.body().to_string().contains("s3cret"), "{}", fault.message);
        }
    }

    #[test]
    fn no_body_makes_it_panic_and_what_is_taken_survives_the_store() {
        let seeds: [&[u8]; 3] = [
            br#"{"name":"a","rootfs":"host","cmd":["x"],"volumes":["/a","/b"],"files":{"/f":"x"},"user":"1000:1000"}"#,
            br#"{"name":"a","image":"i:t","resource_limits":{"cpu":"0.5","memory":"64M"},"environment":{"A":"1"}}"#,
            br#"{"name":"a","image":"i","crash_loop":{"schedule_ms":[0,99]},"health":{"stale_ms":1},"timeouts":{}}"#,
        ];
        let mut mutator = Mutator::new(3);
        let mut taken = 0;
        for _ in 0..20_000 {
            let body = mutator.mutate(&seeds);
            if let Ok(definition) = parse(&body) {
                taken += 1;
                let stored = serde_json::to_string(&definition).unwrap();
                assert_eq!(serde_json::from_str::<Definition>(&stored).unwrap(), definition);
            }
        }
        assert!(taken > 100, "{taken}");
    }
}
