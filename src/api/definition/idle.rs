//! `idle` of a definition: after how long nobody uses a server, and what becomes of it then. Owns the rules of these fields.

use crate::api::definition::described;
use crate::api::definition::strict_json::Fields;
use crate::limits;
use crate::model::definition::{Definition, Idle, IdleMode, IdleStart};
use crate::model::fault::Fault;

const IDLE: &[&str] = &described::names(&described::IDLE);

pub fn set(fields: &mut Fields, target: &mut Idle, standard: &Idle) -> Result<(), Fault> {
    fields.set_within("idle", IDLE, target, standard, idle)
}

fn idle(inner: &mut Fields, idle: &mut Idle) -> Result<(), Fault> {
    inner.set("after_ms", &mut idle.after_ms, &None, |field| field.integer(limits::IDLE_AFTER_MS).map(Some))?;
    inner.set("mode", &mut idle.mode, &None, |field| {
        let modes = [IdleMode::Doze, IdleMode::Stop, IdleMode::Off];
        field.one_of(&modes.map(|mode| (mode.wire(), mode))).map(Some)
    })?;
    inner.set("start", &mut idle.start, &None, |field| {
        field.one_of(&[("boot", IdleStart::Boot), ("on_demand", IdleStart::OnDemand)]).map(Some)
    })
}

/// The daemon sees what goes over its bridge, and only whoever has nothing else can be seen to be idle.
pub fn check(definition: &Definition) -> Result<(), Fault> {
    let rests = matches!(definition.idle.mode, Some(IdleMode::Doze | IdleMode::Stop))
        || definition.idle.start == Some(IdleStart::OnDemand);
    match rests && !(definition.stdio_bridge && definition.ports.is_empty()) {
        true => Err(Fault::field(
            "idle",
            "is for servers with a stdio bridge and without ports: whether others are in use is not seen",
        )),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use crate::api::definition::fields;
    use crate::model::definition::{Idle, IdleMode, IdleStart};
    use serde_json::{Value, json};

    fn with(idle: Value, more: Value) -> Result<Idle, String> {
        let mut body = json!({"name": "a", "rootfs": "host", "cmd": ["x"], "idle": idle});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        fields::parse(body.to_string().as_bytes()).map(|read| read.idle).map_err(|fault| fault.message)
    }

    #[test]
    fn each_field_may_be_left_to_the_daemon() {
        let none = json!({});
        assert!(with(none.clone(), none.clone()).unwrap().is_unsaid());
        let whole = json!({"after_ms": 100, "mode": "stop", "start": "on_demand"});
        let wanted = Idle { after_ms: Some(100), mode: Some(IdleMode::Stop), start: Some(IdleStart::OnDemand) };
        assert_eq!(with(whole, none.clone()).unwrap(), wanted);
        assert_eq!(
            Idle { mode: None, ..wanted }.or(Idle { mode: Some(IdleMode::Doze), ..Idle::default() }).mode,
            Some(IdleMode::Doze)
        );
        for (idle, path) in [
            (json!({"after_ms": 99}), "idle.after_ms"),
            (json!({"mode": "hibernate"}), "idle.mode"),
            (json!({"start": "never"}), "idle.start"),
            (json!({"after": 5}), "idle"),
        ] {
            let why = with(idle, none.clone()).unwrap_err();
            assert!(why.contains(path), "{why}");
        }
    }

    #[test]
    fn whoever_can_be_used_past_the_daemon_does_not_rest() {
        for more in [json!({"stdio_bridge": false}), json!({"ports": ["8080:80"], "stdio_bridge": true})] {
            for idle in [json!({"mode": "stop"}), json!({"mode": "doze"}), json!({"start": "on_demand"})] {
                let why = with(idle, more.clone()).unwrap_err();
                assert!(why.starts_with("idle"), "{why}");
            }
            assert!(with(json!({"mode": "off", "after_ms": 500}), more).is_ok());
        }
    }
}
