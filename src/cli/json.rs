//! JSON text for people. Works on the text itself, so that numbers, escapes and the order of keys stay as the server
//! wrote them; expects valid JSON and makes no promise about anything else but to end.

use crate::limits::CLIENT_INDENT_MAX;

const INDENT: &str = "  ";

/// The same JSON with line breaks and indentation. What is nested deeper than anybody can read goes no further to the
/// right: a server that answers with a million brackets would fill the memory with spaces.
pub fn pretty(json: &str) -> String {
    let mut out = String::with_capacity(json.len() * 2);
    let mut depth: usize = 0;
    let mut rest = json.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '"' => {
                out.push(c);
                copy_string(&mut rest, &mut out);
            }
            '{' | '[' => {
                out.push(c);
                skip_space(&mut rest);
                match rest.next_if(|next| matches!(next, '}' | ']')) {
                    Some(close) => out.push(close),
                    None => {
                        depth += 1;
                        break_line(&mut out, depth);
                    }
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                break_line(&mut out, depth);
                out.push(c);
            }
            ',' => {
                out.push(c);
                break_line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            c if c.is_ascii_whitespace() => {}
            c => out.push(c),
        }
    }
    out
}

type Chars<'a> = std::iter::Peekable<std::str::Chars<'a>>;

/// The rest of a string, its closing quote included.
fn copy_string(rest: &mut Chars, out: &mut String) {
    while let Some(c) = rest.next() {
        out.push(c);
        match c {
            '"' => return,
            '\\' => out.extend(rest.next()),
            _ => {}
        }
    }
}

fn skip_space(rest: &mut Chars) {
    while rest.next_if(char::is_ascii_whitespace).is_some() {}
}

fn break_line(out: &mut String, depth: usize) {
    out.push('\n');
    out.extend(std::iter::repeat_n(INDENT, depth.min(CLIENT_INDENT_MAX)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_escapes_and_order_stay_as_they_were() {
        let json = r#"{"z":1.0e+2,"a":[12345678901234567890, "\u00e9, {\"x\": [}\\"],"e":{ },"l":[]}"#;
        let lines = [
            "{",
            r#"  "z": 1.0e+2,"#,
            r#"  "a": ["#,
            "    12345678901234567890,",
            r#"    "\u00e9, {\"x\": [}\\""#,
            "  ],",
            r#"  "e": {},"#,
            r#"  "l": []"#,
            "}",
        ];
        assert_eq!(pretty(json), lines.join("\n"));
        assert_eq!(pretty("null"), "null");
    }

    #[test]
    fn text_that_is_no_json_comes_to_an_end() {
        for text in ["", "]]]}", "\"open", "\"\\", "{[", ",,,"] {
            pretty(text);
        }
    }
}
