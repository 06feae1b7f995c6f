//! Strict reading of JSON bodies: every fault names the path of the field it is about. Owns what is a duplicate, an
//! unknown field or a wrong type; never shows a value, because it may be a secret. Nesting is bounded by the parser.

use crate::limits::{BODY_VALUES_MAX, STRING_MAX};
use crate::model::fault::{Code, Fault};
use crate::wire::json::{self, Json};
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::fmt;
use std::ops::RangeInclusive;

/// The body as an object in which no key stands twice, at any depth.
pub fn object(body: &[u8]) -> Result<Map<String, Value>, Fault> {
    refuse_empty(body)?;
    let mut reading = Reading { values: 0, refused: None };
    let mut reader = serde_json::Deserializer::from_slice(body);
    let value = Strict { place: &Place::Top, reading: &mut reading }
        .deserialize(&mut reader)
        .and_then(|value| reader.end().map(|()| value));
    match (value, reading.refused) {
        (_, Some(fault)) => Err(fault),
        (Ok(Value::Object(map)), None) => Ok(map),
        (Ok(other), None) => Err(not_an_object(kind(&other))),
        (Err(error), None) => Err(invalid(&error)),
    }
}

/// The values of `known` keys in the body, unparsed and uncopied: for what is passed on and not looked into.
pub fn members<'a, const N: usize>(body: &'a [u8], known: &[&'static str; N]) -> Result<[Option<Json<'a>>; N], Fault> {
    refuse_empty(body)?;
    // What is wrong is looked for again by the one who can say it.
    let refused = || match serde_json::from_slice::<HashMap<String, &RawValue>>(body) {
        Err(error) if !error.is_data() => invalid(&error),
        Err(_) | Ok(_) => match serde_json::from_slice::<IgnoredAny>(body) {
            Err(error) => invalid(&error),
            Ok(_) => not_an_object(kind_of_text(body)),
        },
    };
    let mut found = [None; N];
    for member in json::members(body) {
        let (key, value) = member.map_err(|_| refused())?;
        let place = known.iter().position(|known| *known == key);
        let place = &mut found[place.ok_or_else(|| unknown_field("", &key, known))?];
        if place.replace(value).is_some() {
            return Err(twice(&key));
        }
    }
    Ok(found)
}

/// The parser would speak of its end.
fn refuse_empty(body: &[u8]) -> Result<(), Fault> {
    if body.trim_ascii_start().is_empty() {
        return Err(Fault::new(Code::InvalidJson, "the body is empty: a JSON object is expected"));
    }
    Ok(())
}

fn twice(path: &str) -> Fault {
    Fault::new(Code::InvalidJson, format!("{path}: this key stands there twice")).with("field", path)
}

fn not_an_object(kind: &str) -> Fault {
    Fault::new(Code::InvalidRequest, format!("the body must be a JSON object, not {kind}"))
}

/// Only for syntax errors: what serde says of wrong types quotes them.
fn invalid(error: &serde_json::Error) -> Fault {
    Fault::new(Code::InvalidJson, format!("the body is not valid JSON: {error}"))
        .with("line", error.line())
        .with("column", error.column())
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// As above, of a valid text.
fn kind_of_text(text: &[u8]) -> &'static str {
    match text.trim_ascii_start().first() {
        Some(b'{') => "an object",
        Some(b'[') => "an array",
        Some(b'"') => "a string",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        Some(_) | None => "a number",
    }
}

/// `resource_limits.cpu`, `files["/app/server.js"]`.
fn join(path: &str, key: &str) -> String {
    const SHOWN_MAX: usize = 128;
    let plain = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
    let mut shown: String = key.chars().take(SHOWN_MAX).collect();
    if shown.len() < key.len() {
        shown.push('…');
    }
    match (path.is_empty(), plain) {
        (true, true) => shown,
        (false, true) => format!("{path}.{shown}"),
        (_, false) => format!("{path}[{shown:?}]"),
    }
}

// --- duplicates ---------------------------------------------------------------------------------------------------

/// Reads a value as `serde_json` would, but stops at the first key that comes twice in its object, and at one value too
/// many: an object of one member takes six bytes of a body, and six hundred of memory.
struct Strict<'p> {
    place: &'p Place<'p>,
    reading: &'p mut Reading,
}

struct Reading {
    values: usize,
    /// Why it was stopped.
    refused: Option<Fault>,
}

/// Where in the body the reader is. It becomes a path only if there is something to say about it.
enum Place<'p> {
    Top,
    Key(&'p Place<'p>, &'p str),
}

impl Place<'_> {
    fn path(&self) -> String {
        match self {
            Place::Top => String::new(),
            Place::Key(parent, key) => join(&parent.path(), key),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        self.reading.values += 1;
        if self.reading.values > BODY_VALUES_MAX {
            let why = format!("the body has more than {BODY_VALUES_MAX} values");
            self.reading.refused = Some(Fault::new(Code::InvalidRequest, why));
            return Err(D::Error::custom("too many values"));
        }
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(Strict { place: self.place, reading: self.reading })? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = members.next_key::<String>()? {
            let place = Place::Key(self.place, &key);
            if map.contains_key(&key) {
                self.reading.refused = Some(twice(&place.path()));
                return Err(A::Error::custom("a key stands there twice"));
            }
            let value = members.next_value_seed(Strict { place: &place, reading: self.reading })?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

// --- fields -------------------------------------------------------------------------------------------------------

/// JSON knows no integers: `5.0` is 5, and some clients write it so. Beyond 2^53 nobody can say which one was meant.
pub fn whole(number: f64) -> Option<u64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    (number.fract() == 0.0 && (0.0..EXACT).contains(&number)).then_some(number as u64)
}

/// The members of an object, taken out one by one under the names it may have.
#[derive(Debug)]
pub struct Fields {
    path: String,
    given: Map<String, Value>,
    known: &'static [&'static str],
}

impl Fields {
    /// Refuses what is not in `known` before anything else: a misspelt field is the reason why another is missing.
    pub fn of(given: Map<String, Value>, known: &'static [&'static str]) -> Result<Fields, Fault> {
        Fields::within(String::new(), given, known)
    }

    fn within(path: String, given: Map<String, Value>, known: &'static [&'static str]) -> Result<Fields, Fault> {
        match given.keys().find(|key| !known.contains(&key.as_str())) {
            Some(unknown) => Err(unknown_field(&path, unknown, known)),
            None => Ok(Fields { path, given, known }),
        }
    }

    /// The field, if it was given; `null` counts.
    pub fn take(&mut self, key: &str) -> Option<Field> {
        debug_assert!(self.known.contains(&key), "{key} would always be refused as unknown");
        self.given.remove(key).map(|value| Field { path: join(&self.path, key), value })
    }

    pub fn required(&mut self, key: &str) -> Result<Field, Fault> {
        match self.take(key) {
            Some(field) if !field.value.is_null() => Ok(field),
            Some(_) | None => Err(Fault::field(&join(&self.path, key), "is required")),
        }
    }

    /// What was given replaces `target`, `null` makes it `standard` again, and nothing leaves it as it is.
    pub fn set<T: Clone>(
        &mut self,
        key: &str,
        target: &mut T,
        standard: &T,
        read: impl FnOnce(Field) -> Result<T, Fault>,
    ) -> Result<(), Fault> {
        match self.take(key) {
            None => {}
            Some(field) if field.value.is_null() => *target = standard.clone(),
            Some(field) => *target = read(field)?,
        }
        Ok(())
    }

    /// As `set`, for an object whose own fields are set one by one.
    pub fn set_within<T: Clone>(
        &mut self,
        key: &str,
        known: &'static [&'static str],
        target: &mut T,
        standard: &T,
        read: impl FnOnce(&mut Fields, &mut T) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        match self.take(key) {
            None => {}
            Some(field) if field.value.is_null() => *target = standard.clone(),
            Some(field) => {
                let mut inner = field.object(known)?;
                read(&mut inner, target)?;
                inner.finish();
            }
        }
        Ok(())
    }

    /// Everything known has been taken; a field that nobody reads would be accepted and ignored.
    pub fn finish(self) {
        debug_assert!(self.given.is_empty(), "known, but never read: {:?}", self.given.keys());
    }
}

fn unknown_field(path: &str, key: &str, known: &[&str]) -> Fault {
    let field = join(path, key);
    let fault = |hint: String| {
        Fault::new(Code::UnknownField, format!("{field}: unknown field{hint}")).with("field", field.clone())
    };
    match nearest(key, known) {
        Some(near) => fault(format!("; did you mean `{near}`?")).with("suggestion", join(path, near)),
        None => fault(format!("; known here are {}", known.join(", "))),
    }
}

/// The known name that was probably meant: one that starts so, or is a slip or two away.
fn nearest<'k>(key: &str, known: &[&'k str]) -> Option<&'k str> {
    const LONGEST: usize = 32;
    if key.len() > LONGEST {
        return None;
    }
    let key = key.to_ascii_lowercase();
    let begins = known.iter().find(|name| key.len() >= 3 && name.starts_with(&key));
    let allowed = if key.len() < 4 { 1 } else { 2 };
    let slip = || known.iter().filter(|name| distance(&key, name) <= allowed).min_by_key(|name| distance(&key, name));
    begins.or_else(slip).copied()
}

/// Levenshtein: letters to add, drop or change.
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in other.bytes().enumerate() {
            let change = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = change.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[other.len()]
}

/// A value and where it stands.
#[derive(Debug)]
pub struct Field {
    pub path: String,
    pub value: Value,
}

impl Field {
    pub fn refuse(&self, why: impl fmt::Display) -> Fault {
        Fault::field(&self.path, why)
    }

    pub fn expected(&self, what: impl fmt::Display) -> Fault {
        self.refuse(format_args!("expected {what}, got {}", kind(&self.value)))
    }

    pub fn boolean(self) -> Result<bool, Fault> {
        self.value.as_bool().ok_or_else(|| self.expected("true or false"))
    }

    pub fn integer<T>(self, range: RangeInclusive<T>) -> Result<T, Fault>
    where
        T: TryFrom<u64> + PartialOrd + fmt::Display,
    {
        let Value::Number(number) = &self.value else { return Err(self.expected("an integer")) };
        let is_float = number.is_f64();
        let number = number.as_u64().or_else(|| whole(number.as_f64().filter(|_| is_float)?));
        if number.is_none() && is_float {
            return Err(self.refuse("expected an integer, got a number with a fraction or out of all bounds"));
        }
        let fits = number.and_then(|number| T::try_from(number).ok()).filter(|number| range.contains(number));
        fits.ok_or_else(|| self.refuse(format_args!("must be between {} and {}", range.start(), range.end())))
    }

    /// A string of at most `max` bytes. None may hold a NUL: they end in `exec`, in paths and in PostgreSQL.
    pub fn text(self, max: usize) -> Result<String, Fault> {
        match self.value {
            Value::String(text) if text.len() > max => {
                Err(Fault::field(&self.path, format_args!("must not be longer than {max} bytes")))
            }
            Value::String(text) if text.contains('\0') => {
                Err(Fault::field(&self.path, "must not contain a NUL character"))
            }
            Value::String(text) => Ok(text),
            other => Err(Field { path: self.path, value: other }.expected("a string")),
        }
    }

    /// A string that `read` understands; what it says otherwise is told under the field's path.
    pub fn parse<T>(self, read: impl FnOnce(&str) -> Result<T, String>) -> Result<T, Fault> {
        let path = self.path.clone();
        let text = self.text(STRING_MAX)?;
        read(&text).map_err(|why| Fault::field(&path, why))
    }

    pub fn one_of<T: Copy>(self, choices: &[(&str, T)]) -> Result<T, Fault> {
        let chosen = choices.iter().find(|(name, _)| self.value.as_str() == Some(name));
        chosen.map(|(_, choice)| *choice).ok_or_else(|| {
            let names: Vec<String> = choices.iter().map(|(name, _)| format!("\"{name}\"")).collect();
            self.refuse(format_args!("expected {}", names.join(" or ")))
        })
    }

    pub fn list(self, max: usize) -> Result<Vec<Field>, Fault> {
        match self.value {
            Value::Array(items) if items.len() > max => {
                Err(Fault::field(&self.path, format_args!("must not have more than {max} items")))
            }
            Value::Array(items) => Ok(items
                .into_iter()
                .enumerate()
                .map(|(index, value)| Field { path: format!("{}[{index}]", self.path), value })
                .collect()),
            other => Err(Field { path: self.path, value: other }.expected("an array")),
        }
    }

    pub fn object(self, known: &'static [&'static str]) -> Result<Fields, Fault> {
        match self.value {
            Value::Object(given) => Fields::within(self.path, given, known),
            other => Err(Field { path: self.path, value: other }.expected("an object")),
        }
    }

    /// An object whose keys are free.
    pub fn entries(self) -> Result<impl Iterator<Item = (String, Field)>, Fault> {
        match self.value {
            Value::Object(map) => Ok(map.into_iter().map(move |(key, value)| {
                let path = join(&self.path, &key);
                (key, Field { path, value })
            })),
            other => Err(Field { path: self.path, value: other }.expected("an object")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::mutation::Mutator;
    use serde_json::json;

    const KNOWN: &[&str] = &["name", "environment", "restart_policy", "cmd", "cpu"];

    fn field(value: Value) -> Field {
        Field { path: "a.b".into(), value }
    }

    #[test]
    fn an_object_is_read_as_serde_json_reads_it() {
        let text = r#" {"a":[1,-2,2.5,"x\u00e9",null,true,{"b":{}}],"c":18446744073709551615} "#;
        assert_eq!(Value::Object(object(text.as_bytes()).unwrap()), serde_json::from_str::<Value>(text).unwrap());
    }

    #[test]
    fn a_key_that_stands_twice_is_named_with_its_path() {
        for (text, path) in [
            (r#"{"a":1,"a":1}"#, "a"),
            (r#"{"a":1,"\u0061":1}"#, "a"),
            (r#"{"a":{"b":[0,{"c":1,"c":2}]}}"#, "a.b.c"),
            (r#"{"files":{"/x":"","/x":""}}"#, r#"files["/x"]"#),
        ] {
            let fault = object(text.as_bytes()).unwrap_err();
            assert_eq!((fault.code, &fault.data["field"]), (Code::InvalidJson, &json!(path)), "{text}");
        }
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for (text, code) in [
            ("", Code::InvalidJson),
            (" \n", Code::InvalidJson),
            ("{", Code::InvalidJson),
            ("{} {}", Code::InvalidJson),
            ("{\"a\":01}", Code::InvalidJson),
            ("{\"a\":NaN}", Code::InvalidJson),
            ("{\"a\":1e999}", Code::InvalidJson),
            ("[]", Code::InvalidRequest),
            ("null", Code::InvalidRequest),
            ("\"secret\"", Code::InvalidRequest),
        ] {
            let fault = object(text.as_bytes()).unwrap_err();
            assert_eq!(fault.code, code, "{text}");
            assert!(!fault.message.contains("secret"));
        }
        assert_eq!(object(b"{\"a\":\"\xff\"}").unwrap_err().code, Code::InvalidJson);
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(object(deep.as_bytes()).unwrap_err().code, Code::InvalidJson);
    }

    #[test]
    fn members_are_found_raw_and_everything_else_is_refused() {
        let known = ["method", "params", "timeout_ms"];
        let body = br#" {"par\u0061ms" : {"a": 1.0, "a":2} , "method":"x" } "#;
        let [method, params, timeout] = members(body, &known).unwrap().map(|raw| raw.map(Json::get));
        assert_eq!((method, params, timeout), (Some(r#""x""#), Some(r#"{"a": 1.0, "a":2}"#), None));
        for (body, code) in [
            ("", Code::InvalidJson),
            ("{", Code::InvalidJson),
            ("{}x", Code::InvalidJson),
            (r#"{"method":}"#, Code::InvalidJson),
            (r#"{"\ud800":1}"#, Code::InvalidJson),
            (r#"{"method":1,"method":1}"#, Code::InvalidJson),
            (r#"{"method":"x","paras":1}"#, Code::UnknownField),
            (r#"["x"]"#, Code::InvalidRequest),
            ("null", Code::InvalidRequest),
            (r#""secret""#, Code::InvalidRequest),
        ] {
            let fault = members(body.as_bytes(), &known).unwrap_err();
            assert_eq!(fault.code, code, "{body}");
            assert!(!fault.message.contains("secret"));
        }
        for (body, words) in [
            ("[1", "not valid JSON: EOF"),
            (" [1]", "must be a JSON object, not an array"),
            ("7", "must be a JSON object, not a number"),
            ("null", "must be a JSON object, not null"),
        ] {
            let fault = members(body.as_bytes(), &known).unwrap_err();
            assert!(fault.message.contains(words), "{body}: {}", fault.message);
        }
        assert!(members(b"{\"method\":\"\xff\"}", &known).is_err());
        assert!(members(b"{\"\xff\":1}", &known).is_err());
    }

    #[test]
    fn an_empty_body_is_called_so() {
        for body in ["", " ", "\n"] {
            assert_eq!(object(body.as_bytes()).unwrap_err().message, "the body is empty: a JSON object is expected");
            assert!(members(body.as_bytes(), &["a"]).unwrap_err().message.contains("is empty"));
        }
    }

    #[test]
    fn an_unknown_field_is_named_with_what_was_probably_meant() {
        for (key, suggestion) in [
            ("nmae", Some("name")),
            ("nam", Some("name")),
            ("Name", Some("name")),
            ("env", Some("environment")),
            ("enviroment", Some("environment")),
            ("restart-policy", Some("restart_policy")),
            ("cpuu", Some("cpu")),
            ("zzz", None),
            ("", None),
        ] {
            let given = Map::from_iter([(key.to_string(), json!(1))]);
            let fault = Fields::of(given, KNOWN).unwrap_err();
            assert_eq!(fault.code, Code::UnknownField, "{key}");
            assert_eq!(fault.data.get("suggestion").and_then(Value::as_str), suggestion, "{key}");
        }
        let long = Map::from_iter([("é".repeat(100_000), json!(1))]);
        assert!(Fields::of(long, KNOWN).unwrap_err().message.len() < 1000);
        let fault = field(json!({"cpuu": 1})).object(KNOWN).unwrap_err();
        assert_eq!(fault.data["field"], json!("a.b.cpuu"));
        assert_eq!(fault.data["suggestion"], json!("a.b.cpu"));
    }

    #[test]
    fn a_wrong_type_is_named_with_its_path_and_never_with_its_value() {
        let faults = [
            field(json!("secret")).boolean().unwrap_err(),
            field(json!("secret")).integer(1..=2u64).unwrap_err(),
            field(json!(["secret"])).text(10).unwrap_err(),
            field(json!("secret")).text(5).unwrap_err(),
            field(json!("se\0cret")).text(10).unwrap_err(),
            field(json!("secret")).list(1).unwrap_err(),
            field(json!(["secret", 2])).list(1).unwrap_err(),
            field(json!("secret")).object(KNOWN).unwrap_err(),
            field(json!("secret")).one_of(&[("x", 1)]).unwrap_err(),
        ];
        for fault in faults {
            assert_eq!((fault.code, &fault.data["field"]), (Code::InvalidRequest, &json!("a.b")));
            assert!(fault.message.starts_with("a.b: ") && !fault.message.contains("secret"), "{}", fault.message);
        }
    }

    #[test]
    fn integers_are_whole_and_within_their_range() {
        assert_eq!(field(json!(3)).integer(1..=3u32).unwrap(), 3);
        assert_eq!(field(json!(3.0)).integer(1..=3u32).unwrap(), 3);
        for value in [
            json!(0),
            json!(4),
            json!(4.0),
            json!(-1.0),
            json!(-1),
            json!(1.5),
            json!(u64::MAX),
            json!("2"),
            json!(null),
        ] {
            assert!(field(value.clone()).integer(1..=3u32).is_err(), "{value}");
        }
    }

    #[test]
    fn no_body_makes_it_panic() {
        let seeds: [&[u8]; 2] =
            [br#"{"name":"x","cmd":["a",{"k":1.5e3}],"environment":{"A":"\u0000b"}}"#, br#"{"a":{"a":{"a":{}}}}"#];
        let mut mutator = Mutator::new(5);
        for _ in 0..20_000 {
            let body = mutator.mutate(&seeds);
            match (object(&body), serde_json::from_slice::<Map<String, Value>>(&body)) {
                (Ok(strict), lenient) => assert_eq!(strict, lenient.expect("strict is a part of lenient")),
                (Err(_), _) => {}
            }
        }
    }
}
