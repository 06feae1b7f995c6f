//! What stands after the `?` of a request, read by the parameters that its row in the table of routes has: all of them
//! known, none of them twice, and each of its kind.

use crate::api::auth::proof;
use crate::api::route::{Kind, Parameter};
use crate::model::fault::{Code, Fault};
use crate::model::status::Status;
use crate::wire::http_in::Request;
use crate::wire::times::parse_rfc3339;
use std::borrow::Cow;

pub struct Query<'a> {
    known: &'static [Parameter],
    pairs: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

impl<'a> Query<'a> {
    pub fn of(request: &Request<'a>, known: &'static [Parameter]) -> Result<Query<'a>, Fault> {
        let mut pairs: Vec<(Cow<'a, str>, Cow<'a, str>)> = Vec::new();
        for (name, value) in request.query_pairs() {
            if known.iter().all(|parameter| parameter.name != name) {
                return Err(unknown_parameter(&name, known));
            }
            if pairs.iter().any(|(earlier, _)| *earlier == name) {
                return Err(Fault::field(&name, "this query parameter stands there twice"));
            }
            pairs.push((name, value));
        }
        Ok(Query { known, pairs })
    }

    pub fn flag(&mut self, name: &str) -> Result<bool, Fault> {
        let (Kind::Flag { default }, given) = self.take(name) else { unread(name) };
        match given.as_deref() {
            None => Ok(default),
            Some("true") => Ok(true),
            Some("false") => Ok(false),
            Some(_) => Err(Fault::field(name, "expected true or false")),
        }
    }

    pub fn count(&mut self, name: &str) -> Result<usize, Fault> {
        let (Kind::Count { default, max }, given) = self.take(name) else { unread(name) };
        let Some(text) = given else { return Ok(default) };
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|number| digits && *number <= max);
        number.ok_or_else(|| Fault::field(name, format_args!("expected an integer from 0 to {max}")))
    }

    pub fn hex<const N: usize>(&mut self, name: &str) -> Result<[u8; N], Fault> {
        let (Kind::Hex { bytes }, given) = self.take(name) else { unread(name) };
        debug_assert_eq!(bytes, N);
        let bytes = given.and_then(|text| proof::bytes(&text));
        bytes.ok_or_else(|| Fault::field(name, format_args!("expected {} hexadecimal digits", 2 * N)))
    }

    pub fn time(&mut self, name: &str) -> Result<Option<u64>, Fault> {
        let (Kind::Time, given) = self.take(name) else { unread(name) };
        let Some(text) = given else { return Ok(None) };
        // An unescaped `+` of an offset arrives as a blank; nothing else in a time is one.
        let time = parse_rfc3339(&text.replace(' ', "+"));
        let expected = "expected an RFC 3339 time, as in 2026-02-17T10:00:00Z";
        time.map(Some).ok_or_else(|| Fault::field(name, expected))
    }

    pub fn status(&mut self, name: &str) -> Result<Option<String>, Fault> {
        let (Kind::Status, given) = self.take(name) else { unread(name) };
        let Some(text) = given else { return Ok(None) };
        match Status::ALL.iter().find(|status| status.wire() == text) {
            Some(status) => Ok(Some(status.wire().to_string())),
            None => {
                Err(Fault::field(name, format_args!("expected one of {}", Status::ALL.map(Status::wire).join(", "))))
            }
        }
    }

    pub fn text(&mut self, name: &str) -> Option<String> {
        let (Kind::Text, given) = self.take(name) else { unread(name) };
        given.map(Cow::into_owned)
    }

    /// What the row says of a parameter, and its value if it was sent.
    fn take(&mut self, name: &str) -> (Kind, Option<Cow<'a, str>>) {
        let Some(parameter) = self.known.iter().find(|parameter| parameter.name == name) else { unread(name) };
        let at = self.pairs.iter().position(|(given, _)| given == name);
        (parameter.kind, at.map(|at| self.pairs.swap_remove(at).1))
    }
}

/// A bug: whoever reads a parameter and its row do not agree.
fn unread(name: &str) -> ! {
    unreachable!("the row of the route has no parameter {name} of this kind")
}

fn unknown_parameter(name: &str, known: &[Parameter]) -> Fault {
    let names: Vec<&str> = known.iter().map(|parameter| parameter.name).collect();
    let known =
        if names.is_empty() { "there are none here".into() } else { format!("known here are {}", names.join(", ")) };
    Fault::new(Code::UnknownField, format!("{name}: unknown query parameter; {known}")).with("field", name)
}
