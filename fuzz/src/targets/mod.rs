//! What is fuzzed: every reader of bytes that a peer, an image or a file brings. A target panics when the reader does, and
//! when what it says cannot be true: that the same bytes mean something else in other portions, that what was passed on is
//! another request than the one that came, that a token opens which nobody has signed. `fuzz/src/main.rs` runs them with a
//! fuzzer, `tests/fuzz_corpora.rs` with the inputs that are kept in `fuzz/corpus`.

mod api;
mod files;
mod tokens;
mod wire;

pub struct Target {
    /// Of its directory in `fuzz/corpus` too.
    pub name: &'static str,
    pub run: fn(&[u8]),
}

const fn target(name: &'static str, run: fn(&[u8])) -> Target {
    Target { name, run }
}

pub const ALL: &[Target] = &[
    target("http_request", wire::http_request),
    target("relayed_answer", wire::relayed_answer),
    target("http_answer", wire::http_answer),
    target("events", wire::events),
    target("websocket", wire::websocket),
    target("lines", wire::lines),
    target("json", wire::json),
    target("json_rpc", wire::json_rpc),
    target("headers", api::headers),
    target("definition", api::definition),
    target("import", api::import),
    target("jwt", tokens::jwt),
    target("claims", tokens::claims),
    target("keys", tokens::keys),
    target("certificate", tokens::certificate),
    target("config", files::config),
    target("layer", files::layer),
    target("image", files::image),
    target("names", files::names),
];

/// The first byte decides how the rest is split.
fn split(bytes: &[u8]) -> (&[u8], Vec<&[u8]>) {
    let Some((how, bytes)) = bytes.split_first() else { return (&[], Vec::new()) };
    let mut state = u32::from(*how) | 0x100;
    let mut pieces = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let most = [1, 2, 9, 100][usize::from(*how) % 4];
        let (piece, behind) = rest.split_at((1 + (state >> 16) as usize % most).min(rest.len()));
        pieces.push(piece);
        rest = behind;
    }
    (bytes, pieces)
}
