//! What is registered, compared with what is wanted, field by field. Owns that comparison and the one place that asks the
//! daemon for a definition; values of the environment cannot be compared, because the daemon never tells them.

use super::api::{Api, SERVERS, server_path};
use super::error::Error;
use super::servers::{array, parse};
use crate::api::definition::{fields, stored};
use crate::model::fault::Fault;
use serde_json::{Map, Value};
use std::collections::BTreeSet;

const ENVIRONMENT: &str = "environment";
const FILES: &str = "files";

/// Fields that are absent where nothing was said.
const OPTIONAL: &[&str] = &["image", "rootfs", "provider", "network", "egress", "user", "workdir", "managed_by"];

/// A definition as somebody wants it.
pub struct Wanted {
    pub name: String,
    /// As it was written: what a registration sends.
    pub given: Map<String, Value>,
    /// With every default, as the daemon would understand it.
    whole: Map<String, Value>,
    /// Variables that are to keep the value they have.
    kept: BTreeSet<String>,
}

/// What must be sent so that a server becomes what is wanted.
#[derive(Debug, Default)]
pub struct Change {
    /// Those that differ.
    pub fields: Vec<String>,
    pub patch: Map<String, Value>,
    /// Values of variables are sent, and whether they are new only the daemon knows.
    pub sends_values: bool,
}

impl Wanted {
    pub fn of(given: Map<String, Value>) -> Result<Wanted, Fault> {
        let definition = fields::but_for_values(given.clone())?;
        let environment = given.get(ENVIRONMENT).and_then(Value::as_object);
        let kept = environment.into_iter().flatten().filter(|(_, value)| value.is_null());
        let kept = kept.map(|(name, _)| name.clone()).collect();
        Ok(Wanted { name: definition.name.clone(), given, whole: stored::fields(&definition), kept })
    }

    /// Variables without a value, which a new server cannot keep.
    pub fn missing(&self) -> Vec<&str> {
        self.kept.iter().map(String::as_str).collect()
    }

    /// `is`: the definition of the server of this name; `None` if the daemon does not tell it. `status`: its status object.
    /// An error: a variable that is to keep its value has none.
    pub fn change_of(&self, is: Option<&Map<String, Value>>, status: &Value) -> Result<Change, String> {
        let normal = is.and_then(normal);
        let mut change = Change::default();
        let keys: BTreeSet<&str> = self.whole.keys().map(String::as_str).chain(OPTIONAL.iter().copied()).collect();
        for key in keys.into_iter().filter(|key| !matches!(*key, "name" | ENVIRONMENT | FILES)) {
            let wanted = self.whole.get(key).unwrap_or(&Value::Null);
            let found = normal.as_ref().map(|normal| normal.get(key).unwrap_or(&Value::Null));
            if found != Some(wanted) {
                // What the daemon does not tell is no difference, but is sent all the same.
                if found.is_some() {
                    change.fields.push(key.to_string());
                }
                change.patch.insert(key.to_string(), replaced(wanted, found));
            }
        }
        self.change_files(normal.as_ref(), &mut change);
        self.change_environment(is, normal.as_ref(), status, &mut change)?;
        Ok(change)
    }

    fn change_files(&self, normal: Option<&Map<String, Value>>, change: &mut Change) {
        let (empty, wanted) = (Map::new(), object(&self.whole, FILES));
        let found = normal.map(|normal| object(normal, FILES).unwrap_or(&empty));
        let wanted = wanted.unwrap_or(&empty);
        let mut differ = Map::new();
        for (path, text) in wanted.iter().filter(|(path, text)| found.and_then(|found| found.get(*path)) != Some(*text))
        {
            differ.insert(path.clone(), text.clone());
        }
        for (path, _) in found.into_iter().flatten().filter(|(path, _)| !wanted.contains_key(*path)) {
            differ.insert(path.clone(), Value::Null);
        }
        if differ.is_empty() {
            return;
        }
        if found.is_some() {
            change.fields.push(FILES.to_string());
        }
        change.patch.insert(FILES.to_string(), Value::Object(differ));
    }

    fn change_environment(
        &self,
        is: Option<&Map<String, Value>>,
        normal: Option<&Map<String, Value>>,
        status: &Value,
        change: &mut Change,
    ) -> Result<(), String> {
        let empty = Map::new();
        let wanted = object(&self.whole, ENVIRONMENT).unwrap_or(&empty);
        // A status object tells the names, if the definition is not told.
        let found: BTreeSet<&str> = match is {
            // Those whose values are not told, and those that every server of its kind has.
            Some(is) => {
                let both = [Some(is), normal].into_iter().flatten();
                both.filter_map(|one| object(one, ENVIRONMENT)).flatten().map(|(name, _)| name.as_str()).collect()
            }
            None => array(&status[ENVIRONMENT]).iter().filter_map(Value::as_str).collect(),
        };
        let lost: Vec<&str> = self.kept.iter().map(String::as_str).filter(|name| !found.contains(name)).collect();
        if !lost.is_empty() {
            return Err(format!("environment: {} has no value yet to keep: give it one", lost.join(", ")));
        }
        let stays = |name: &str| wanted.contains_key(name) || self.kept.contains(name);
        let mut differ = wanted.clone();
        change.sends_values = !wanted.is_empty();
        let gone: Vec<&&str> = found.iter().filter(|name| !stays(name)).collect();
        if !gone.is_empty() || wanted.keys().any(|name| !found.contains(name.as_str())) {
            change.fields.push(ENVIRONMENT.to_string());
        }
        differ.extend(gone.into_iter().map(|name| (name.to_string(), Value::Null)));
        if !differ.is_empty() {
            change.patch.insert(ENVIRONMENT.to_string(), Value::Object(differ));
        }
        Ok(())
    }
}

fn object<'m>(map: &'m Map<String, Value>, key: &str) -> Option<&'m Map<String, Value>> {
    map.get(key).and_then(Value::as_object)
}

/// With every default. None: a rule of this version refuses it, so that all of it must be said anew.
fn normal(is: &Map<String, Value>) -> Option<Map<String, Value>> {
    fields::but_for_values(is.clone()).ok().map(|definition| stored::fields(&definition))
}

/// A PATCH merges objects, so what is to go from one is named.
fn replaced(wanted: &Value, found: Option<&Value>) -> Value {
    let (Value::Object(wanted), Some(Value::Object(found))) = (wanted, found) else { return wanted.clone() };
    let mut all = wanted.clone();
    for key in found.keys().filter(|key| !wanted.contains_key(*key)) {
        all.insert(key.clone(), Value::Null);
    }
    Value::Object(all)
}

/// The status objects of all servers.
pub fn servers(api: &Api) -> Result<Vec<Value>, Error> {
    Ok(array(&parse(&api.get(SERVERS)?)?).to_vec())
}

/// The definition of a server that is there; none if this daemon does not tell definitions.
pub fn stored(api: &Api, name: &str) -> Result<Option<Map<String, Value>>, Error> {
    match api.get(&server_path(name, "/definition")) {
        Ok(body) => match parse(&body)? {
            Value::Object(definition) => Ok(Some(definition)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Ok(None),
        },
        Err(Error::Refused(refusal)) if refusal.status == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn map(value: Value) -> Map<String, Value> {
        let Value::Object(map) = value else { panic!("{value}") };
        map
    }

    fn change(wanted: Value, is: Value) -> Change {
        Wanted::of(map(wanted)).unwrap().change_of(Some(&map(is)), &Value::Null).unwrap()
    }

    #[test]
    fn what_says_the_same_in_other_words_is_no_change() {
        let wanted =
            json!({"name": "a", "command": "npx", "args": ["x"], "resource_limits": {"memory": "512M", "cpu": 0.5}});
        let is = stored::fields(&fields::but_for_values(map(wanted.clone())).unwrap());
        let mut is = Value::Object(is);
        is["environment"].as_object_mut().unwrap().values_mut().for_each(|value| *value = Value::Null);
        let change = change(wanted, is);
        assert_eq!(change.fields, Vec::<String>::new());
        assert!(change.sends_values, "the cache's variables, which only the daemon can compare");
        assert_eq!(change.patch.keys().collect::<Vec<_>>(), ["environment"]);
    }

    #[test]
    fn only_what_differs_is_sent_and_what_is_undeclared_returns_to_its_default() {
        let is = json!({"name": "a", "image": "x:1", "user": "1000", "queue_max": 7, "files": {"/a": "1", "/b": "2"},
            "resource_limits": {"volume": "2G"}, "environment": {"A": null, "B": null}});
        let wanted = json!({"name": "a", "rootfs": "host", "cmd": ["x"], "files": {"/a": "1", "/c": "3"},
            "environment": {"A": null, "C": "v"}});
        let change = change(wanted, is);
        assert_eq!(
            change.fields,
            ["cmd", "image", "queue_max", "resource_limits", "rootfs", "user", "files", "environment"]
        );
        assert_eq!(change.patch["image"], Value::Null);
        assert_eq!(change.patch["user"], Value::Null);
        assert_eq!(change.patch["files"], json!({"/b": null, "/c": "3"}));
        assert_eq!(change.patch["environment"], json!({"B": null, "C": "v"}));
        assert_eq!(change.patch["resource_limits"]["volume"], Value::Null);
    }

    #[test]
    fn a_value_can_only_be_kept_if_there_is_one() {
        let wanted = Wanted::of(map(json!({"name": "a", "image": "x", "environment": {"KEY": null}}))).unwrap();
        assert_eq!(wanted.missing(), ["KEY"]);
        let why = wanted.change_of(None, &json!({"environment": []})).unwrap_err();
        assert!(why.contains("KEY"), "{why}");
        let change = wanted.change_of(None, &json!({"environment": ["KEY", "OLD"]})).unwrap();
        assert_eq!(change.patch["environment"], json!({"OLD": null}));
    }
}
