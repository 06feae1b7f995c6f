//! JSON with comments and trailing commas, as editors keep it. Makes it plain JSON without moving anything: what is left
//! out becomes spaces, so that an error still names the line and column of the file. Judges nothing.

/// The same document for a JSON parser. A mark of UTF-8 at the beginning goes too.
pub fn plain(text: &[u8]) -> Vec<u8> {
    let mut out = text.to_vec();
    if out.starts_with(b"\xef\xbb\xbf") {
        out[..3].fill(b' ');
    }
    blank_comments(&mut out);
    blank_trailing_commas(&mut out);
    out
}

fn blank_comments(text: &mut [u8]) {
    let mut at = 0;
    while at < text.len() {
        let end = match &text[at..] {
            [b'"', ..] => {
                at = end_of_string(text, at);
                continue;
            }
            [b'/', b'/', rest @ ..] => {
                at + 2 + rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')).unwrap_or(rest.len())
            }
            // One without an end is left for the parser to complain about.
            [b'/', b'*', rest @ ..] => match memchr::memmem::find(rest, b"*/") {
                Some(length) => at + 2 + length + 2,
                None => return,
            },
            _ => {
                at += 1;
                continue;
            }
        };
        blank(&mut text[at..end]);
        at = end;
    }
}

/// Line ends stay: they are counted.
fn blank(text: &mut [u8]) {
    for byte in text.iter_mut().filter(|byte| !matches!(byte, b'\n' | b'\r')) {
        *byte = b' ';
    }
}

fn blank_trailing_commas(text: &mut [u8]) {
    let mut at = 0;
    let mut comma = None;
    while at < text.len() {
        match text[at] {
            b'"' => {
                comma = None;
                at = end_of_string(text, at);
                continue;
            }
            b',' => comma = Some(at),
            b'}' | b']' => {
                if let Some(comma) = comma.take() {
                    text[comma] = b' ';
                }
            }
            byte if byte.is_ascii_whitespace() => {}
            _ => comma = None,
        }
        at += 1;
    }
}

/// Behind the string that begins at `start`.
fn end_of_string(text: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < text.len() {
        match text[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::mutation::Mutator;
    use serde_json::{Value, json};

    #[test]
    fn comments_and_trailing_commas_go_and_strings_stay() {
        let text = b"\xef\xbb\xbf// head\n{\"a\": \"// no /* comment, }\", /* x\ny */ \"b\": [1, 2,], // end\n \"c\": \"\\\"//\",\n}";
        let value: Value = serde_json::from_slice(&plain(text)).unwrap();
        assert_eq!(value, json!({"a": "// no /* comment, }", "b": [1, 2], "c": "\"//"}));
    }

    #[test]
    fn an_error_has_the_line_and_column_of_the_file() {
        let text = b"{ // one\n /* two\n */ \"a\": oops }";
        let error = serde_json::from_slice::<Value>(&plain(text)).unwrap_err();
        assert_eq!((error.line(), error.column()), (3, 10));
    }

    #[test]
    fn plain_json_is_unchanged_and_nothing_makes_it_panic() {
        let json = br#"{"a": [1, {"b": ",]"}], "c": "/*"}"#;
        assert_eq!(plain(json), json);
        let mut mutator = Mutator::new(3);
        for _ in 0..5_000 {
            let text = mutator.mutate(&[json, b"/* */ // \"\\", b"[1,]"]);
            assert_eq!(plain(&text).len(), text.len());
        }
    }
}
