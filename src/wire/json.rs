//! JSON as text: values that are passed on and never looked into. Owns what a value is (RFC 8259), found in one walk that
//! builds nothing, does not recurse, and checks the encoding on its way: whatever it has gone over is UTF-8. It refuses
//! what `serde_json` refuses (a key that escapes half a character, too), and leaves it to that to say why.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

mod items;

pub use items::{Item, Items, TooMany, items, named_items};

/// A value, known to be one, without the spaces around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Json<'a>(&'a str);

/// The same, kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JsonBuf(Box<str>);

/// There is something else than what JSON allows, or an end too early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotJson;

impl<'a> Json<'a> {
    pub const NULL: Json<'static> = Json("null");

    /// `text` is one value and nothing else.
    pub fn of(text: &'a str) -> Result<Json<'a>, NotJson> {
        let mut walk = Walk { text: text.as_bytes(), at: 0 };
        let value = walk.value().ok_or(NotJson)?;
        walk.end().ok_or(NotJson)?;
        Ok(value)
    }

    pub fn get(self) -> &'a str {
        self.0
    }

    /// What a string says. Nothing: it is none, or it escapes half a character.
    pub fn text(self) -> Option<Cow<'a, str>> {
        let inner = self.0.strip_prefix('"')?.strip_suffix('"')?;
        match memchr::memchr(b'\\', inner.as_bytes()) {
            None => Some(Cow::Borrowed(inner)),
            Some(_) => serde_json::from_str(self.0).ok().map(Cow::Owned),
        }
    }

    /// The member of this name, if it is an object that has one; of several the last.
    pub fn member(self, name: &str) -> Option<Json<'a>> {
        let all = members(self.0.as_bytes()).map_while(Result::ok);
        all.filter(|(key, _)| key == name).map(|(_, value)| value).last()
    }

    pub fn kept(self) -> JsonBuf {
        JsonBuf(self.0.into())
    }
}

impl JsonBuf {
    /// `text` is one value and nothing else.
    pub fn of(text: String) -> Result<JsonBuf, NotJson> {
        let value = Json::of(&text)?;
        if value.get().len() == text.len() { Ok(JsonBuf(text.into_boxed_str())) } else { Ok(value.kept()) }
    }

    pub fn as_json(&self) -> Json<'_> {
        Json(&self.0)
    }

    pub fn get(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Json<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.0)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Json<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Json<'a>, D::Error> {
        <&RawValue>::deserialize(from).map(|raw| Json(raw.get()))
    }
}

// --- members ----------------------------------------------------------------------------------------------------------

/// The members of an object, in their order. Whatever is wrong with the text comes as the last item, also what stands
/// behind the object; so a walk without an error was one of a whole object.
pub struct Members<'a> {
    walk: Walk<'a>,
    next: Next,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Open,
    Member,
    Nothing,
}

/// Of the object that `text` is.
pub fn members(text: &[u8]) -> Members<'_> {
    Members { walk: Walk { text, at: 0 }, next: Next::Open }
}

impl<'a> Iterator for Members<'a> {
    type Item = Result<(Cow<'a, str>, Json<'a>), NotJson>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = match self.next {
            Next::Open => self.open(),
            Next::Member => self.separated(),
            Next::Nothing => return None,
        };
        if !matches!(step, Some(Some(_))) {
            self.next = Next::Nothing;
        }
        step.ok_or(NotJson).transpose()
    }
}

impl<'a> Members<'a> {
    /// Nothing: this is no JSON. Nothing within: the object is over.
    fn open(&mut self) -> Option<Option<(Cow<'a, str>, Json<'a>)>> {
        self.walk.eat(b'{')?;
        self.next = Next::Member;
        match self.walk.peek()? {
            b'}' => self.close(),
            _ => self.member(),
        }
    }

    fn separated(&mut self) -> Option<Option<(Cow<'a, str>, Json<'a>)>> {
        match self.walk.peek()? {
            b',' => {
                self.walk.at += 1;
                self.member()
            }
            b'}' => self.close(),
            _ => None,
        }
    }

    fn member(&mut self) -> Option<Option<(Cow<'a, str>, Json<'a>)>> {
        let key = match self.walk.key()? {
            (key, Spelt::Plainly) => Cow::Borrowed(&key[1..key.len() - 1]),
            (key, Spelt::InEscapes) => Json(key).text()?,
        };
        Some(Some((key, self.walk.value()?)))
    }

    fn close(&mut self) -> Option<Option<(Cow<'a, str>, Json<'a>)>> {
        self.walk.at += 1;
        self.walk.end().map(|()| None)
    }
}

// --- the walk ---------------------------------------------------------------------------------------------------------

/// Through a text, up to `at`. Every step gives nothing if what it is to go over is not there.
struct Walk<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Walk<'a> {
    fn here(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    /// What was gone over since `start`, which was once `at`.
    #[allow(unsafe_code)] // its bytes have been looked at once
    fn since(&self, start: usize) -> &'a str {
        // SAFETY: a step passes over what it has found to be a certain ASCII byte, or over a part of a string that
        // `string` has found to be UTF-8; so it is between any two places where `at` has been.
        unsafe { std::str::from_utf8_unchecked(&self.text[start..self.at]) }
    }

    /// The next byte that is no space; `at` is there.
    #[inline(always)]
    fn peek(&mut self) -> Option<u8> {
        loop {
            match self.here()? {
                b' ' | b'\n' | b'\r' | b'\t' => self.at += 1,
                byte => return Some(byte),
            }
        }
    }

    fn eat(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    fn end(&mut self) -> Option<()> {
        self.peek().is_none().then_some(())
    }

    fn value(&mut self) -> Option<Json<'a>> {
        self.peek()?;
        let start = self.at;
        let mut open = Open::default();
        loop {
            // Here a value begins.
            match self.peek()? {
                b'{' => {
                    self.at += 1;
                    if self.peek()? != b'}' {
                        open.push(Kind::Object);
                        self.key()?;
                        continue;
                    }
                    self.at += 1;
                }
                b'[' => {
                    self.at += 1;
                    if self.peek()? != b']' {
                        open.push(Kind::Array);
                        continue;
                    }
                    self.at += 1;
                }
                first => self.scalar(first)?,
            }
            // Here one has ended, and maybe those that it was the last of.
            while let Some(kind) = open.last() {
                match (self.peek()?, kind) {
                    (b'}', Kind::Object) | (b']', Kind::Array) => {
                        self.at += 1;
                        open.pop();
                    }
                    (b',', Kind::Object) => {
                        self.at += 1;
                        self.key()?;
                        break;
                    }
                    (b',', Kind::Array) => {
                        self.at += 1;
                        break;
                    }
                    (_, Kind::Object | Kind::Array) => return None,
                }
            }
            if open.is_empty() {
                return Some(Json(self.since(start)));
            }
        }
    }

    /// Through the members of an object; `over` goes over the value of each.
    fn each_member(&mut self, mut over: impl FnMut(&mut Walk<'a>, &str) -> Option<()>) -> Option<()> {
        self.eat(b'{')?;
        if self.peek()? == b'}' {
            self.at += 1;
            return Some(());
        }
        loop {
            match self.key()? {
                (key, Spelt::Plainly) => over(self, &key[1..key.len() - 1])?,
                (key, Spelt::InEscapes) => over(self, &Json(key).text()?)?,
            }
            match self.peek()? {
                b',' => self.at += 1,
                b'}' => {
                    self.at += 1;
                    return Some(());
                }
                _ => return None,
            }
        }
    }

    /// Through the elements of an array; `over` goes over each.
    fn each_element(&mut self, mut over: impl FnMut(&mut Walk<'a>) -> Option<()>) -> Option<()> {
        self.eat(b'[')?;
        if self.peek()? == b']' {
            self.at += 1;
            return Some(());
        }
        loop {
            over(self)?;
            match self.peek()? {
                b',' => self.at += 1,
                b']' => {
                    self.at += 1;
                    return Some(());
                }
                _ => return None,
            }
        }
    }

    /// A string, with its quotes, and the colon behind it.
    #[inline(always)]
    fn key(&mut self) -> Option<(&'a str, Spelt)> {
        self.eat(b'"')?;
        let start = self.at - 1;
        let spelt = self.string()?;
        let key = self.since(start);
        self.eat(b':')?;
        Some((key, spelt))
    }

    fn scalar(&mut self, first: u8) -> Option<()> {
        match first {
            b'"' => {
                self.at += 1;
                self.string().map(|_| ())
            }
            b'-' | b'0'..=b'9' => self.number(),
            b't' => self.word(b"true"),
            b'f' => self.word(b"false"),
            b'n' => self.word(b"null"),
            _ => None,
        }
    }

    fn word(&mut self, word: &[u8]) -> Option<()> {
        self.text[self.at..].starts_with(word).then(|| self.at += word.len())
    }

    fn number(&mut self) -> Option<()> {
        if self.here() == Some(b'-') {
            self.at += 1;
        }
        // What follows a zero is looked at by whoever comes next, and is no digit to anybody.
        match self.here()? {
            b'0' => self.at += 1,
            _ => self.digits()?,
        }
        if self.here() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.here() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.here() {
                self.at += 1;
            }
            self.digits()?;
        }
        Some(())
    }

    /// At least one.
    fn digits(&mut self) -> Option<()> {
        let start = self.at;
        while self.here().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        (self.at > start).then_some(())
    }

    /// The rest of a string, from behind its first quote to behind its last.
    #[inline(always)]
    fn string(&mut self) -> Option<Spelt> {
        let bytes = self.text;
        let mut spelt = Spelt::Plainly;
        loop {
            let (length, encoding) = plain(&bytes[self.at..]);
            // A character never reaches over the bytes that end a part.
            if encoding == Encoding::Unknown {
                std::str::from_utf8(&bytes[self.at..self.at + length]).ok()?;
            }
            self.at += length;
            match bytes.get(self.at)? {
                b'"' => {
                    self.at += 1;
                    return Some(spelt);
                }
                b'\\' => self.at += escape(&bytes[self.at + 1..])?,
                _ => return None,
            }
            spelt = Spelt::InEscapes;
        }
    }
}

/// The length of an escape, of which `bytes` follow the backslash.
fn escape(bytes: &[u8]) -> Option<usize> {
    match bytes.first()? {
        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(2),
        b'u' if bytes.get(1..5)?.iter().all(u8::is_ascii_hexdigit) => Some(6),
        _ => None,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Spelt {
    Plainly,
    InEscapes,
}

/// What is known of bytes that were looked at for something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Ascii,
    Unknown,
}

/// Below this, asking the machine costs as much as it saves.
#[cfg(target_arch = "x86_64")]
const WIDE_MIN: usize = 1024;

const ONES: u64 = u64::from_le_bytes([1; 8]);
const HIGH: u64 = ONES << 7;

/// How many bytes there are before the first that may not stand for itself in a string. Most strings are short, and
/// some are all of a large answer: a few words first, then blocks, for which the compiler takes vectors.
#[inline(always)]
fn plain(bytes: &[u8]) -> (usize, Encoding) {
    let (mut at, mut all) = (0, 0);
    for word in bytes.as_chunks::<8>().0.iter().take(4) {
        let word = u64::from_le_bytes(*word);
        all |= word;
        if let Some(found) = special_of(word) {
            let encoding = if all & HIGH == 0 { Encoding::Ascii } else { Encoding::Unknown };
            return (at + found, encoding);
        }
        at += 8;
    }
    let (length, encoding) = plain_of_long(&bytes[at..]);
    (at + length, if all & HIGH == 0 { encoding } else { Encoding::Unknown })
}

/// With the widest vectors that this machine has; the compiler by itself takes only those that every machine has.
#[inline(never)]
#[allow(unsafe_code)] // the one way to such vectors
fn plain_of_long(bytes: &[u8]) -> (usize, Encoding) {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= WIDE_MIN && is_x86_feature_detected!("avx2") {
        #[target_feature(enable = "avx2")]
        fn wide(bytes: &[u8]) -> (usize, Encoding) {
            plain_by_blocks(bytes)
        }
        // SAFETY: this machine has what it needs.
        return unsafe { wide(bytes) };
    }
    plain_by_blocks(bytes)
}

#[inline(always)]
fn plain_by_blocks(bytes: &[u8]) -> (usize, Encoding) {
    let (mut at, mut all) = (0, 0);
    for block in bytes.as_chunks::<64>().0 {
        let special = block.iter().fold(0, |found, byte| found | u8::from(is_special(*byte)));
        if special != 0 {
            break;
        }
        (at, all) = (at + 64, block.iter().fold(all, |all, byte| all | byte));
    }
    let (rest, encoding) = plain_by_words(&bytes[at..]);
    (at + rest, if all.is_ascii() { encoding } else { Encoding::Unknown })
}

/// What is left after the blocks, or of one in which there is something special.
#[inline(always)]
fn plain_by_words(bytes: &[u8]) -> (usize, Encoding) {
    let (mut at, mut all) = (0, 0);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        let word = u64::from_le_bytes(*word);
        all |= word;
        if let Some(found) = special_of(word) {
            return (at + found, if all & HIGH == 0 { Encoding::Ascii } else { Encoding::Unknown });
        }
        at += 8;
    }
    let length = rest.iter().position(|byte| is_special(*byte)).unwrap_or(rest.len());
    let is_ascii = all & HIGH == 0 && rest[..length].is_ascii();
    (at + length, if is_ascii { Encoding::Ascii } else { Encoding::Unknown })
}

fn is_special(byte: u8) -> bool {
    (byte == b'"') | (byte == b'\\') | (byte < b' ')
}

/// The first of eight bytes, in the order of memory, that is special.
#[inline(always)]
fn special_of(word: u64) -> Option<usize> {
    // Bytes below `n` get their high bit set; those above the first such byte may, too.
    let below = |word: u64, n: u8| word.wrapping_sub(ONES * n as u64) & !word & HIGH;
    let equal = |byte: u8| below(word ^ (ONES * byte as u64), 1);
    let found = equal(b'"') | equal(b'\\') | below(word, b' ');
    (found != 0).then(|| found.trailing_zeros() as usize / 8)
}

// --- what is open -----------------------------------------------------------------------------------------------------

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Array,
    Object,
}

/// The containers around a place, a bit for each, however deep: the innermost is the lowest bit of `top`.
#[derive(Default)]
struct Open {
    top: u64,
    below: Vec<u64>,
    depth: usize,
}

impl Open {
    fn is_empty(&self) -> bool {
        self.depth == 0
    }

    fn last(&self) -> Option<Kind> {
        match (self.depth, self.top & 1) {
            (0, _) => None,
            (_, 0) => Some(Kind::Array),
            (_, _) => Some(Kind::Object),
        }
    }

    fn push(&mut self, kind: Kind) {
        if self.depth > 0 && self.depth.is_multiple_of(64) {
            self.below.push(self.top);
        }
        self.top = self.top << 1 | u64::from(kind == Kind::Object);
        self.depth += 1;
    }

    fn pop(&mut self) {
        self.depth -= 1;
        self.top >>= 1;
        if self.depth > 0 && self.depth.is_multiple_of(64) {
            self.top = self.below.pop().expect("it was pushed on the way in");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `serde_json` makes of the same text.
    fn judged(text: &str) -> Option<&str> {
        serde_json::from_str::<&RawValue>(text).ok().map(RawValue::get)
    }

    fn agree(text: &str) {
        assert_eq!(Json::of(text).ok().map(Json::get), judged(text), "{text:?}");
        let judged: Option<Vec<(String, &str)>> = judged(text).filter(|text| text.starts_with('{')).and_then(|text| {
            // Keys in their order, and those that stand there twice, too.
            let pairs: Vec<(String, &str)> = members_by_serde(text)?;
            Some(pairs)
        });
        let found: Option<Vec<(String, &str)>> = members(text.as_bytes())
            .map(|member| member.ok().map(|(key, value)| (key.into_owned(), value.get())))
            .collect();
        assert_eq!(found, judged, "{text:?}");
    }

    fn members_by_serde(text: &str) -> Option<Vec<(String, &str)>> {
        struct Pairs;
        impl<'de> serde::de::Visitor<'de> for Pairs {
            type Value = Vec<(String, &'de str)>;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::new();
                while let Some((key, value)) = map.next_entry::<String, &RawValue>()? {
                    pairs.push((key, value.get()));
                }
                Ok(pairs)
            }
        }
        serde_json::Deserializer::from_str(text).deserialize_map(Pairs).ok()
    }

    #[test]
    fn a_value_is_what_it_is_to_serde_json() {
        let texts = [
            "",
            " ",
            "null",
            " nul",
            "nulll",
            "true",
            "false",
            "tru",
            "0",
            "-0",
            "00",
            "01",
            "-",
            "-a",
            "1.",
            "1.5",
            ".5",
            "1e",
            "1e5",
            "1E+5",
            "1e-",
            "1.0e-7",
            "1e999",
            "+1",
            "\"\"",
            "\"",
            "\"a",
            "\"\\\"\"",
            "\"\\",
            "\"\\x\"",
            "\"\\u12\"",
            "\"\\u12gh\"",
            "\"\\ud800\"",
            "\"\\u0041\"",
            "\"\u{7f}é\"",
            "\"a\nb\"",
            "\"a\tb\"",
            "\"\0\"",
            "[]",
            "[ ]",
            "[1]",
            "[1,]",
            "[,1]",
            "[1 2]",
            "[1,2",
            "]",
            "{}",
            "{ }",
            "{\"a\":1}",
            "{\"a\":1,}",
            "{\"a\"}",
            "{a:1}",
            "{\"a\":}",
            "{\"a\" : [ {} , {\"b\":[]} ] }",
            "{\"a\":1}}",
            "{\"a\":1]",
            "[1}",
            "{\"a\":1} x",
            " {\"a\":1} ",
            "{\"a\":1,\"a\":2}",
            "{\"\\u0061\":1}",
            "{\"\\ud800\":1}",
            "{,}",
            "{\"a\":1,,\"b\":2}",
            "\u{feff}{}",
            "{}\u{a0}",
        ];
        texts.into_iter().for_each(agree);
    }

    #[test]
    fn texts_that_differ_in_a_byte_or_two_are_judged_alike() {
        let seeds = [
            r#"{"jsonrpc":"2.0","id":17,"result":{"content":[{"type":"text","text":"a \"long\" one, longer than a word or two, with é and \u00e9"}],"x":[1,-2.5e3,true,null,{}]}}"#,
            r#" [ [ ] , { "k" : [ "\\" , "\/" ] } , -0.1E+2 ] "#,
        ];
        let bytes = b"\"\\{}[],:0123456789eE+-.tfnu \n\t\x01\x7fa\x80\xa9\xc3\xe2\xff";
        let mut random = 7u64;
        let mut next = |below: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % below
        };
        for round in 0..60_000 {
            let mut text = seeds[round % seeds.len()].as_bytes().to_vec();
            for _ in 0..1 + next(3) {
                let (at, byte) = (next(text.len()), bytes[next(bytes.len())]);
                match next(4) {
                    0 => text[at] = byte,
                    1 => text.insert(at, byte),
                    2 => _ = text.remove(at),
                    _ => text.truncate(at.max(8)),
                }
            }
            match std::str::from_utf8(&text) {
                Ok(text) => agree(text),
                Err(_) => assert!(members(&text).any(|member| member.is_err()), "{text:?}"),
            }
        }
    }

    #[test]
    fn depth_is_no_danger() {
        for depth in [63, 64, 65, 128, 129, 1_000_000] {
            let text = "[".repeat(depth) + &"]".repeat(depth);
            assert_eq!(Json::of(&text).map(Json::get), Ok(text.as_str()));
            assert_eq!(Json::of(&text[1..]), Err(NotJson));
            let mixed = "[{\"a\":".repeat(depth) + "1" + &"}]".repeat(depth);
            assert!(Json::of(&mixed).is_ok());
            assert_eq!(Json::of(&mixed.replace("1}", "1]")), Err(NotJson));
        }
    }

    #[test]
    fn the_special_byte_is_found_wherever_it_is() {
        for length in 0..200 {
            for special in [b'"', b'\\', 0, 0x1f] {
                let mut bytes = vec![b'a'; length];
                bytes.extend([special, b'"', 0]);
                assert_eq!(plain(&bytes), (length, Encoding::Ascii));
                for high in 0..length {
                    bytes[high] = 0xff;
                    assert_eq!(plain(&bytes), (length, Encoding::Unknown));
                    bytes[high] = b'a';
                }
            }
            assert_eq!(plain(&vec![b' '; length]), (length, Encoding::Ascii));
        }
    }

    #[test]
    fn items_are_found_in_one_walk_as_they_stand() {
        let found = |text: &str| {
            let items = named_items(text.as_bytes(), "tools", "name", 3).ok()?;
            Some(
                items
                    .iter()
                    .map(|item| (item.whole.get().to_string(), item.named.map(|n| n.get().to_string())))
                    .collect(),
            )
        };
        type Found = Vec<(String, Option<String>)>;
        let item = |whole: &str, name: Option<&str>| (whole.to_string(), name.map(str::to_string));
        let cases: [(&str, Option<Found>); 14] = [
            (r#"{"tools":[]}"#, Some(vec![])),
            (
                r#" {"x":{"tools":[{}]}, "tools" : [ {"a":[1,{"name":2}],"name" : "n\u0061"} , {} ] ,"y":1} "#,
                Some(vec![item(r#"{"a":[1,{"name":2}],"name" : "n\u0061"}"#, Some(r#""n\u0061""#)), item("{}", None)]),
            ),
            (r#"{"tool\u0073":[{"n\u0061me":1}]}"#, Some(vec![item(r#"{"n\u0061me":1}"#, Some("1"))])),
            (r#"{"tools":[{"name":1,"name":2}]}"#, Some(vec![item(r#"{"name":1,"name":2}"#, Some("2"))])),
            (r#"{"tools":[1,[{}],"x",{}]}"#, Some(vec![item("{}", None)])),
            (r#"{"tools":[{}],"tools":[]}"#, Some(vec![])),
            (r#"{"tools":[{}],"tools":1}"#, Some(vec![])),
            (r#"{"tools":[{},{},{}]}"#, Some(vec![item("{}", None), item("{}", None), item("{}", None)])),
            (r#"{"tools":[{},{},{},{}]}"#, None),
            (r#"{"tools":{}}"#, Some(vec![])),
            (r#"{"tools":[{]}"#, Some(vec![])),
            (r#"{"tools":[{}]"#, Some(vec![])),
            (r#"{"tools":[]}x"#, Some(vec![])),
            ("[]", Some(vec![])),
        ];
        for (text, expected) in cases {
            assert_eq!(found(text), expected, "{text}");
        }
    }
}
