//! Our own export: definitions as they are, without the values of their variables, which are asked for.

use super::Draft;
use super::values::Asking;
use serde_json::{Map, Value, json};

pub fn draft(fields: &Map<String, Value>, asking: &mut Asking) -> Draft {
    let mut definition = fields.clone();
    if let Some(Value::Object(environment)) = definition.get_mut("environment") {
        for (name, value) in environment.iter_mut().filter(|(_, value)| value.is_null()) {
            match asking.given(name) {
                Some(given) => *value = json!(given),
                None => asking.need(name, None, true),
            }
        }
    }
    Draft { definition, ..Draft::default() }
}
