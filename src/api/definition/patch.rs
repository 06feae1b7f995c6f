//! What a PATCH must not do, whatever its fields say: show others' environment to a caller that is limited, or make volumes
//! smaller. The fields themselves are merged in `fields`.

use crate::api::definition::{package, quantity};
use crate::model::definition::Definition;
use crate::model::fault::Fault;
use serde_json::{Map, Value};

/// A caller that is limited to some servers may not read what others have put into the environment. Whoever says what runs
/// can read it: so with every change of that, all variables go that were not sent with it. A variable is such a change too,
/// also one that is taken out: there are some that make a program run others' code, and some that keep it from that or from
/// telling what it has. True: some are gone.
pub fn drop_environment(old: &Definition, new: &mut Definition, given: &Map<String, Value>) -> bool {
    let sent = given.get("environment").and_then(Value::as_object);
    let is_sent = |name: &str| sent.and_then(|sent| sent.get(name)).is_some_and(|value| !value.is_null());
    let runs_the_same = Definition {
        source: new.source.clone(),
        cmd: new.cmd.clone(),
        files: new.files.clone(),
        user: new.user.clone(),
        workdir: new.workdir.clone(),
        volumes: new.volumes.clone(),
        read_only_volumes: new.read_only_volumes.clone(),
        ..old.clone()
    } == *old;
    if runs_the_same && new.environment == old.environment {
        return false;
    }
    let before = new.environment.len();
    new.environment.retain(|name, _| is_sent(name));
    let dropped = new.environment.len() < before;
    package::furnish_variables(&new.cmd, &mut new.environment);
    dropped
}

/// The values of this environment are not known: what is left of it must have been sent, or it would be stored empty.
pub fn sends_the_environment(new: &Definition, given: &Map<String, Value>, why: &Fault) -> Result<(), Fault> {
    let sent = given.get("environment").and_then(Value::as_object);
    let is_sent = |name: &String| sent.and_then(|sent| sent.get(name)).is_some_and(Value::is_string);
    let missing: Vec<&str> = new.environment.keys().filter(|name| !is_sent(name)).map(String::as_str).collect();
    match missing.is_empty() {
        true => Ok(()),
        false => Err(why.clone().with("missing", missing)),
    }
}

/// What is in a file system cannot be squeezed; only its owner knows what may go.
pub fn keeps_its_volumes(old: &Definition, new: &Definition) -> Result<(), Fault> {
    let (before, after) = (old.resource_limits.volume_bytes(), new.resource_limits.volume_bytes());
    if old.volumes.is_empty() || after >= before {
        return Ok(());
    }
    let (before, after) = (quantity::show_bytes(before), quantity::show_bytes(after));
    Err(Fault::field(
        "resource_limits.volume",
        format_args!(
            "volumes do not become smaller, and this would be {after} after {before}: give \"volume\": \"{before}\", or \
             remove the server with its volumes (DELETE with ?volumes=true) and register it anew"
        ),
    ))
}
