//! JSON as YAML, for people and models who read a tool's result as text. One walk over a value that is known to be JSON;
//! nothing recurses. Invariant: what comes out is YAML that means the same, and is longer than what went in by a bounded
//! factor only: where indentation would take more, or is too deep, the JSON itself stands there, which is YAML too.

use crate::limits::{YAML_DEPTH_MAX, YAML_GROWTH_FREE, YAML_GROWTH_MAX, YAML_KEY_MAX};
use crate::wire::json::Json;

/// Of a value that has nested too deep, or keys that YAML has no place for, some or all stays JSON.
pub fn yaml(value: Json<'_>) -> String {
    let text = value.get();
    let mut writer = Writer { text: text.as_bytes(), at: 0, out: String::new(), open: Vec::new() };
    match writer.write(text.len() * YAML_GROWTH_MAX + YAML_GROWTH_FREE) {
        Some(()) => writer.out,
        None => one_line(text),
    }
}

/// An object or array whose members are being written.
struct Open {
    is_map: bool,
    indent: usize,
    lead: Lead,
}

/// What stands before the next member.
enum Lead {
    /// Nothing: it is the first of the document.
    Nothing,
    /// It goes on in the line of the dash.
    Blank,
    Line,
}

struct Writer<'a> {
    text: &'a [u8],
    at: usize,
    out: String,
    open: Vec<Open>,
}

impl<'a> Writer<'a> {
    /// None: this becomes too long, or cannot be said in YAML's own way.
    fn write(&mut self, most: usize) -> Option<()> {
        loop {
            if self.out.len() > most {
                return None;
            }
            if self.write_value()? {
                self.begin_member()?;
                continue;
            }
            loop {
                match self.peek() {
                    None => return Some(()),
                    Some(b',') => {
                        self.at += 1;
                        self.begin_member()?;
                        break;
                    }
                    Some(_) => {
                        self.at += 1;
                        self.open.pop()?;
                    }
                }
            }
        }
    }

    /// The next byte that is no space.
    fn peek(&mut self) -> Option<u8> {
        while self.text.get(self.at).is_some_and(|byte| b" \t\r\n".contains(byte)) {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    /// True: it is an object or array, whose first member is next.
    fn write_value(&mut self) -> Option<bool> {
        match self.peek()? {
            first @ (b'{' | b'[') => {
                let start = self.at;
                self.at += 1;
                let is_empty = matches!(self.peek()?, b'}' | b']');
                if !is_empty && self.open.len() < YAML_DEPTH_MAX {
                    let (indent, lead) = match self.open.last() {
                        None => (0, Lead::Nothing),
                        Some(around) if around.is_map => (around.indent + 2, Lead::Line),
                        Some(around) => (around.indent + 2, Lead::Blank),
                    };
                    self.open.push(Open { is_map: first == b'{', indent, lead });
                    return Some(true);
                }
                self.at = start;
                self.skip_nested();
                self.blank();
                let whole = std::str::from_utf8(&self.text[start..self.at]).ok()?;
                self.out += &one_line(whole);
            }
            b'"' => {
                let raw = self.take_string()?;
                self.blank();
                let indent = self.open.last().map_or(0, |around| around.indent);
                match raw.text() {
                    Some(text) => string(&mut self.out, &text, indent + 2),
                    // Half a character has no other spelling.
                    None => self.out += raw.get(),
                }
            }
            _ => {
                let rest = &self.text[self.at..];
                let ends = |byte: &u8| b",]} \t\r\n".contains(byte);
                let length = rest.iter().position(ends).unwrap_or(rest.len());
                self.at += length;
                self.blank();
                self.out += std::str::from_utf8(&rest[..length]).ok()?;
            }
        }
        Some(false)
    }

    fn blank(&mut self) {
        if !self.open.is_empty() {
            self.out.push(' ');
        }
    }

    fn begin_member(&mut self) -> Option<()> {
        let around = self.open.last_mut()?;
        match std::mem::replace(&mut around.lead, Lead::Line) {
            Lead::Nothing => {}
            Lead::Blank => self.out.push(' '),
            Lead::Line => {
                self.out.push('\n');
                self.out.extend(std::iter::repeat_n(' ', around.indent));
            }
        }
        if !around.is_map {
            self.out.push('-');
            return Some(());
        }
        self.peek()?;
        let key = self.take_string()?;
        if key.get().len() > YAML_KEY_MAX {
            return None;
        }
        match key.text() {
            Some(text) if is_plain(&text) => self.out += &text,
            Some(text) => quoted(&mut self.out, &text),
            None => self.out += key.get(),
        }
        self.peek()?;
        self.at += 1;
        self.out.push(':');
        Some(())
    }

    /// The string that starts here, with its quotes.
    fn take_string(&mut self) -> Option<Json<'a>> {
        let (text, start) = (self.text, self.at);
        self.skip_string();
        Json::of(std::str::from_utf8(&text[start..self.at]).ok()?).ok()
    }

    fn skip_string(&mut self) {
        self.at += 1;
        while let Some(found) = memchr::memchr2(b'"', b'\\', self.text.get(self.at..).unwrap_or_default()) {
            self.at += found + 1;
            if self.text[self.at - 1] == b'"' {
                return;
            }
            self.at += 1;
        }
        self.at = self.text.len();
    }

    fn skip_nested(&mut self) {
        let mut depth = 0usize;
        while let Some(byte) = self.text.get(self.at) {
            match byte {
                b'"' => {
                    self.skip_string();
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth = depth.saturating_sub(1),
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return;
            }
        }
    }
}

/// JSON with no line ends, which mean something in YAML. In a string there are none.
fn one_line(json: &str) -> String {
    json.replace(['\n', '\r', '\t'], " ")
}

fn string(out: &mut String, text: &str, indent: usize) {
    if is_plain(text) {
        return *out += text;
    }
    if !is_block(text) {
        return quoted(out, text);
    }
    let (lines, keep) = match text.strip_suffix('\n') {
        None => (text, "|-"),
        Some(lines) if lines.ends_with('\n') => (lines, "|+"),
        Some(lines) => (lines, "|"),
    };
    *out += keep;
    for line in lines.split('\n') {
        out.push('\n');
        if !line.is_empty() {
            out.extend(std::iter::repeat_n(' ', indent));
            *out += line;
        }
    }
}

/// Lines that can be written as they are. The first says how far they are indented, so it must have something in it and
/// must not begin with a space.
fn is_block(text: &str) -> bool {
    let first = text.chars().next().unwrap_or('\n');
    text.contains('\n') && !first.is_whitespace() && text.chars().all(|c| c == '\n' || is_printable(c))
}

/// Would be read as this very text without quotes.
fn is_plain(text: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || "_-./+@()".contains(c);
    let starts = text.starts_with(|c: char| c.is_alphabetic() || c == '_' || c == '/');
    let means_something = ["true", "false", "null", "yes", "no", "on", "off", "y", "n", ".nan", ".inf"];
    starts
        && !text.ends_with(' ')
        && text.chars().all(|c| is_word(c) || c == ' ' || c == ',')
        && !means_something.iter().any(|word| text.eq_ignore_ascii_case(word))
}

fn is_printable(c: char) -> bool {
    !c.is_control() && !matches!(c, '\u{feff}' | '\u{2028}' | '\u{2029}' | '\u{fffe}' | '\u{ffff}')
}

fn quoted(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => *out += "\\\"",
            '\\' => *out += "\\\\",
            '\n' => *out += "\\n",
            '\r' => *out += "\\r",
            '\t' => *out += "\\t",
            c if is_printable(c) => out.push(c),
            c => *out += &format!("\\u{:04x}", c as u32),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> String {
        yaml(Json::of(text).unwrap())
    }

    #[test]
    fn objects_arrays_and_scalars_look_as_people_write_them() {
        let text = r#" {"name": "Ann Lee", "age": 4.50, "tags": ["a", "b c", []], "none": null, "on": true,
            "in": {"x": {}, "list": [{"a": 1, "b": [2, [3, 4]]}, "z"]}} "#;
        let expected = "name: Ann Lee\nage: 4.50\ntags:\n  - a\n  - b c\n  - []\nnone: null\n\"on\": true\nin:\n  x: {}\n  \
            list:\n    - a: 1\n      b:\n        - 2\n        - - 3\n          - 4\n    - z";
        assert_eq!(of(text), expected);
        for scalar in ["1", "-0.5e3", "true", "null", "{}", "[]"] {
            assert_eq!(of(scalar), scalar);
        }
    }

    #[test]
    fn a_string_that_could_be_something_else_is_quoted() {
        for text in
            ["", "true", "No", "null", "1", "1.5", "-", "- a", "a: b", "a #b", " a", "a ", "#", "&a", "*a", "~", "'"]
        {
            assert_eq!(of(&serde_json::to_string(&[text]).unwrap()), format!("- \"{text}\""), "{text:?}");
        }
        assert_eq!(of(r#"{"a:b": "\u0007\u007f\u2028 \"\\ é"}"#), "\"a:b\": \"\\u0007\\u007f\\u2028 \\\"\\\\ é\"");
        assert_eq!(of(r#"["\ud800"]"#), r#"- "\ud800""#);
    }

    #[test]
    fn lines_stay_lines_where_they_can() {
        assert_eq!(of(r#"{"a": "one\ntwo"}"#), "a: |-\n  one\n  two");
        assert_eq!(of(r#"{"a": ["one\n\ntwo\n"], "b": 1}"#), "a:\n  - |\n    one\n\n    two\nb: 1");
        assert_eq!(of(r#"{"a": "x\n\n"}"#), "a: |+\n  x\n");
        for quoted in [r#"" a\nb""#, r#""\n""#, r#""a\r\nb""#, r#""\ta\n""#] {
            assert!(of(quoted).starts_with('"'), "{quoted}");
        }
    }

    #[test]
    fn what_is_too_deep_or_would_grow_too_much_stays_json() {
        let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
        let text = of(&deep);
        assert!(text.starts_with("- - - ") && text.ends_with("]]]") && text.len() < 2 * deep.len());
        let mut wide = "1,\n".repeat(100_000);
        wide = format!("{}{wide}1{}", "[".repeat(YAML_DEPTH_MAX), "]".repeat(YAML_DEPTH_MAX));
        assert_eq!(of(&wide), wide.replace('\n', " "));
        let key = format!(r#"{{"{}": 1}}"#, "k".repeat(YAML_KEY_MAX));
        assert_eq!(of(&key), key);
    }
}
