//! `${NAME}` in the texts of an external server: which names a text mentions, and the text with their values. A `$` that begins
//! no such name is a `$`. Reads each text once; never shows a value.

use crate::limits::{FILLED_MAX, SECRET_NAME_MAX};
use crate::model::external::{Secret, SecretValue, Secrets};
use std::collections::BTreeSet;

/// Why a text could not be filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unfilled {
    Missing(BTreeSet<String>),
    /// It is stored, but its value cannot be read.
    Unreadable {
        name: String,
        why: String,
    },
    TooLong,
}

enum Part<'t> {
    Literal(&'t str),
    Name(&'t str),
}

/// Letters, digits and `_`; no digit first.
pub fn secret_name(text: &str) -> Result<String, String> {
    let letters = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let is_name = letters && !text.is_empty() && text.len() <= SECRET_NAME_MAX && !text.as_bytes()[0].is_ascii_digit();
    match is_name {
        true => Ok(text.to_string()),
        false => Err(format!("must have 1 to {SECRET_NAME_MAX} letters, digits or \"_\", and no digit first")),
    }
}

fn parts(text: &str) -> impl Iterator<Item = Part<'_>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        if let Some(name) = name_at(rest) {
            rest = &rest[name.len() + 3..];
            return Some(Part::Name(name));
        }
        // The rest up to where the next name begins.
        let starts = rest.match_indices("${").map(|(at, _)| at).find(|at| name_at(&rest[*at..]).is_some());
        let (literal, after) = rest.split_at(starts.unwrap_or(rest.len()));
        rest = after;
        Some(Part::Literal(literal))
    })
}

/// The name in the `${NAME}` that the text begins with.
fn name_at(text: &str) -> Option<&str> {
    let inner = text.strip_prefix("${")?;
    let end = inner.bytes().take(SECRET_NAME_MAX + 1).position(|byte| byte == b'}')?;
    Some(&inner[..end]).filter(|name| secret_name(name).is_ok())
}

pub fn mentions(text: &str) -> impl Iterator<Item = &str> {
    parts(text).filter_map(|part| match part {
        Part::Literal(_) => None,
        Part::Name(name) => Some(name),
    })
}

pub fn mentions_any(text: &str) -> bool {
    mentions(text).next().is_some()
}

pub fn fill(text: &str, secrets: &Secrets) -> Result<Secret, Unfilled> {
    let (mut out, mut missing) = (String::new(), BTreeSet::new());
    for part in parts(text) {
        match part {
            Part::Literal(literal) => out += literal,
            Part::Name(name) => match secrets.0.get(name) {
                Some(SecretValue::Open(value)) => out += value.expose(),
                Some(SecretValue::Unreadable { why }) => {
                    return Err(Unfilled::Unreadable { name: name.to_string(), why: why.clone() });
                }
                None => _ = missing.insert(name.to_string()),
            },
        }
        if out.len() > FILLED_MAX {
            return Err(Unfilled::TooLong);
        }
    }
    if missing.is_empty() { Ok(Secret::new(out)) } else { Err(Unfilled::Missing(missing)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets(pairs: &[(&str, &str)]) -> Secrets {
        Secrets(pairs.iter().map(|(name, value)| (name.to_string(), SecretValue::Open(Secret::new(*value)))).collect())
    }

    #[test]
    fn names_are_replaced_and_everything_else_stays() {
        let known = secrets(&[("A", "1"), ("B_2", "${A}")]);
        for (text, expected) in [
            ("", ""),
            ("plain", "plain"),
            ("${A}", "1"),
            ("Bearer ${A}!", "Bearer 1!"),
            ("${A}${A}", "11"),
            ("${B_2}", "${A}"),
            ("$A ${} ${ A} ${A-} ${1A} $${A} ${", "$A ${} ${ A} ${A-} ${1A} $1 ${"),
            ("${${A}}", "${1}"),
            ("é${A}é", "é1é"),
        ] {
            assert_eq!(fill(text, &known).unwrap().expose(), expected, "{text}");
        }
    }

    #[test]
    fn all_that_are_missing_are_named() {
        let known = secrets(&[("A", "1")]);
        let missing = |names: &[&str]| Err(Unfilled::Missing(names.iter().map(ToString::to_string).collect()));
        assert_eq!(fill("${X} ${A} ${Y} ${X}", &known), missing(&["X", "Y"]));
        assert_eq!(mentions("${X} ${A} $ ${Y}").collect::<Vec<_>>(), ["X", "A", "Y"]);
        assert!(!mentions_any("$X ${X-}"));
        let sealed = Secrets([("A".to_string(), SecretValue::Unreadable { why: "lost".into() })].into());
        let why = Unfilled::Unreadable { name: "A".into(), why: "lost".into() };
        assert_eq!(fill("${A}", &sealed), Err(why));
    }

    #[test]
    fn a_text_cannot_be_blown_up() {
        let known = secrets(&[("A", &"x".repeat(60_000))]);
        assert_eq!(fill(&"${A}".repeat(8000), &known), Err(Unfilled::TooLong));
        assert!(fill(&"${".repeat(16_000), &known).is_ok(), "and looking for names takes no time");
    }
}
