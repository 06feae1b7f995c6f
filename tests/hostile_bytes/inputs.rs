//! Bytes as nobody sends them by accident: nested, endless, repeated, torn, random. Every generator gives about as many
//! bytes as it is asked for; what is random comes from a seed that is printed.

/// splitmix64.
pub struct Rng(pub u64);

impl Rng {
    /// Seeded by `HOSTILE_BYTES_SEED`, or always the same; whoever fails prints it.
    pub fn new(of: &str) -> Rng {
        let seed = std::env::var("HOSTILE_BYTES_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(12);
        println!("{of}: HOSTILE_BYTES_SEED={seed}");
        Rng(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

pub type Make = fn(usize) -> Vec<u8>;

/// `start`, then `piece` as often as it fits, then `end`.
pub fn repeated(start: &str, piece: &str, end: &str, size: usize) -> Vec<u8> {
    let count = size.saturating_sub(start.len() + end.len()) / piece.len();
    [start.as_bytes(), piece.repeat(count).as_bytes(), end.as_bytes()].concat()
}

/// As many of `open` as of `close`, around `inner`.
fn nested(open: &str, inner: &str, close: &str, size: usize) -> Vec<u8> {
    let count = size / (open.len() + close.len());
    [open.repeat(count), inner.to_string(), close.repeat(count)].concat().into_bytes()
}

fn numbered(start: &str, end: &str, size: usize, piece: impl Fn(usize) -> String) -> Vec<u8> {
    let mut text = start.to_string();
    let mut number = 0;
    while text.len() < size {
        if number > 0 {
            text.push(',');
        }
        text += &piece(number);
        number += 1;
    }
    (text + end).into_bytes()
}

// --- JSON ---------------------------------------------------------------------------------------------------------------

/// Values that are JSON, each of them in one way too much.
pub const VALUES: &[(&str, Make)] = &[
    ("arrays in arrays", |size| nested("[", "", "]", size)),
    ("objects in objects", |size| nested(r#"{"a":"#, "0", "}", size)),
    ("arrays in objects in arrays", |size| nested(r#"[{"a":"#, "0", "}]", size)),
    ("a string of escapes", |size| repeated("\"", r"\u0041", "\"", size)),
    ("a string of escaped quotes", |size| repeated("\"", r#"\""#, "\"", size)),
    ("a string of long characters", |size| repeated("\"", "€", "\"", size)),
    ("a plain string", |size| repeated("\"", "x", "\"", size)),
    ("many keys", |size| numbered("{", "}", size, |number| format!(r#""{number:x}":0"#))),
    ("one key over and over", |size| repeated(r#"{"a":0"#, r#","a":0"#, "}", size)),
    ("keys in escapes", |size| repeated(r#"{"a":0"#, r#","\u0061":0"#, "}", size)),
    ("small objects", |size| repeated(r#"[{"a":0}"#, r#",{"a":0}"#, "]", size)),
    ("empty arrays", |size| repeated("[[]", ",[]", "]", size)),
    ("zeros", |size| repeated("[0", ",0", "]", size)),
    ("empty strings", |size| repeated("[\"\"", ",\"\"", "]", size)),
    ("a long number", |size| repeated("1", "0", "", size)),
    ("a long fraction", |size| repeated("0.", "0", "1", size)),
    ("a long exponent", |size| repeated("1e-", "9", "", size)),
    ("spaces", |size| repeated("[", " \n\r\t", "0]", size)),
];

/// Bytes that are no JSON, or not until their last one.
pub const BROKEN: &[(&str, Make)] = &[
    ("arrays that only open", |size| repeated("", "[", "", size)),
    ("objects that only open", |size| repeated("", r#"{"a":"#, "", size)),
    ("nothing but ends", |size| repeated("", "]}", "", size)),
    ("a string without an end", |size| repeated("\"", "x", "", size)),
    ("a string that ends in an escape", |size| repeated("\"", r"\\", "\\", size)),
    ("a torn character", |size| {
        let mut text = repeated("\"", "€", "", size);
        text.pop();
        text
    }),
    ("zero bytes", |size| vec![0; size]),
    ("high bytes", |size| vec![0xff; size]),
    ("colons", |size| repeated("{", ":", "", size)),
    ("quotes", |size| repeated("", "\"", "", size)),
    ("half characters", |size| repeated(r#"{"a":0"#, r#","\ud800":0"#, "}", size)),
    ("random bytes", random),
    ("random pieces of JSON", random_json),
];

pub fn random(size: usize) -> Vec<u8> {
    let mut rng = Rng::new("random bytes");
    (0..size.div_ceil(8)).flat_map(|_| rng.next().to_le_bytes()).collect()
}

pub fn random_json(size: usize) -> Vec<u8> {
    const PIECES: [&str; 16] = [
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"a\"",
        "\"\\u00e9\"",
        "0",
        "-1.5e3",
        "true",
        "null",
        "\"a\":",
        "{}",
        "[]",
        " ",
    ];
    let mut rng = Rng::new("random pieces of JSON");
    let mut text = String::with_capacity(size + 16);
    while text.len() < size {
        text += PIECES[rng.below(PIECES.len())];
    }
    text.into_bytes()
}

/// Each of `VALUES` in the place of `V` of a frame.
pub fn framed(frame: &str, make: Make, size: usize) -> Vec<u8> {
    let (before, behind) = frame.split_once('V').expect("a place for the value");
    [before.as_bytes(), &make(size), behind.as_bytes()].concat()
}

// --- bytes in portions --------------------------------------------------------------------------------------------------

/// Portions of random lengths, most of them small.
pub fn portions(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rng = Rng(7);
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let most = [1, 7, 100, 4096, 65536][rng.below(5)];
        let (portion, behind) = rest.split_at((1 + rng.below(most)).min(rest.len()));
        rest = behind;
        (!portion.is_empty()).then_some(portion)
    })
}
