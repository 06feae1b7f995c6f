//! Our own export: definitions as they are, without the values of their variables, which are asked for. One with a
//! `transport` is an external server.

use super::values::Asking;
use super::{Draft, Kind, remote};
use serde_json::{Map, Value, json};

pub fn draft(fields: &Map<String, Value>, asking: &mut Asking) -> Result<Draft, String> {
    let kind = if fields.contains_key("transport") { Kind::External } else { Kind::Hosted };
    if kind == Kind::External && !asking.has_project() {
        return Err(remote::WITHOUT_PROJECT.to_string());
    }
    let mut definition = fields.clone();
    for key in ["environment", "env", "headers"] {
        let Some(Value::Object(secrets)) = definition.get_mut(key) else { continue };
        for (name, value) in secrets.iter_mut().filter(|(_, value)| value.is_null()) {
            match asking.given(name) {
                Some(given) => *value = json!(given),
                None => asking.need(name, None, true),
            }
        }
    }
    Ok(Draft { kind, definition, ..Draft::default() })
}
