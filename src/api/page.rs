//! The page at `/` and its files, which are part of the program. Owns their names, their media types and what a browser may
//! do with them; never looks at who asks: there is nothing in them that is not public.

use crate::api::rest::Interpreted;
use crate::api::rest::asks::Incoming;
use crate::api::rest::render::response;
use crate::model::fault::{Code, Fault};
use crate::wire::backlog::Shared;
use crate::wire::http_in::Request;
use crate::wire::http_out::Response;
use sha2::{Digest, Sha256};
use std::sync::{Arc, LazyLock};

pub const HTML: &str = "text/html; charset=utf-8";
pub const SCRIPT: &str = "text/javascript; charset=utf-8";
pub const STYLE: &str = "text/css; charset=utf-8";
pub const ICON: &str = "image/svg+xml";

/// Where the page itself is.
pub const ROOT: &str = "/";

macro_rules! file {
    ($name:literal, $media:expr) => {
        (concat!("/page/", $name), $media, include_bytes!(concat!("../page/", $name)))
    };
}

/// Path, media type and bytes; the table of routes has a row for each.
pub const FILES: &[(&str, &str, &[u8])] = &[
    (ROOT, HTML, include_bytes!("../page/index.html")),
    file!("page.css", STYLE),
    file!("icon.svg", ICON),
    file!("api.js", SCRIPT),
    file!("charts.js", SCRIPT),
    file!("dom.js", SCRIPT),
    file!("external.js", SCRIPT),
    file!("head.js", SCRIPT),
    file!("hosted.js", SCRIPT),
    file!("importing.js", SCRIPT),
    file!("known.js", SCRIPT),
    file!("list.js", SCRIPT),
    file!("live.js", SCRIPT),
    file!("logs.js", SCRIPT),
    file!("main.js", SCRIPT),
    file!("register.js", SCRIPT),
    file!("schema_form.js", SCRIPT),
    file!("snippets.js", SCRIPT),
    file!("text.js", SCRIPT),
    file!("tools.js", SCRIPT),
];

/// The same for all who ask, made when the first one does: the path, the media type, the bytes and their mark.
static READY: LazyLock<Vec<File>> = LazyLock::new(|| FILES.iter().map(File::of).collect());

struct File {
    path: &'static str,
    media: &'static str,
    bytes: Arc<[u8]>,
    /// Changes with the bytes.
    etag: String,
}

impl File {
    fn of(&(path, media, bytes): &(&'static str, &'static str, &'static [u8])) -> File {
        let sum = Sha256::digest(bytes);
        let mark: String = sum[..12].iter().map(|byte| format!("{byte:02x}")).collect();
        File { path, media, bytes: bytes.into(), etag: format!("\"{mark}\"") }
    }
}

/// No script and no style but the page's own files, nothing from elsewhere, in nobody's frame; no form is sent anywhere, and no
/// text becomes markup.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// A browser keeps the files, and asks each time whether they are still the same: after an upgrade no old script runs.
const CACHED: &str = "no-cache";

pub fn serve<'a>(incoming: Incoming<'_, 'a>) -> Result<Interpreted<'a>, Fault> {
    let path = incoming.request.path.strip_suffix('/').filter(|rest| !rest.is_empty());
    let path = path.unwrap_or(&incoming.request.path);
    let file = READY.iter().find(|file| file.path == path);
    let file = file.ok_or_else(|| Fault::new(Code::NotFound, "the page has no such file"))?;
    let mut headers = vec![("ETag", file.etag.clone())];
    let mut add = |name, value: &str| headers.push((name, value.to_string()));
    add("Cache-Control", CACHED);
    add("Content-Security-Policy", POLICY);
    add("X-Content-Type-Options", "nosniff");
    add("Referrer-Policy", "no-referrer");
    add("Cross-Origin-Opener-Policy", "same-origin");
    add("Cross-Origin-Resource-Policy", "same-origin");
    let answer = match has_it(incoming.request, &file.etag) {
        true => Response { headers, ..response(304, "", Vec::new()) },
        false => {
            let shared = vec![Shared { bytes: Arc::clone(&file.bytes), from: 0 }];
            Response { headers, shared, ..response(200, file.media, Vec::new()) }
        }
    };
    Ok(Interpreted::Direct(answer))
}

/// `If-None-Match`: a list of marks, or `*`. A proxy may have made ours a weak one.
fn has_it(request: &Request<'_>, etag: &str) -> bool {
    let Some(given) = request.header("if-none-match") else { return false };
    let given = String::from_utf8_lossy(given);
    given.split(',').map(str::trim).any(|mark| mark == "*" || mark.strip_prefix("W/").unwrap_or(mark) == etag)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::auth::{Peer, Shown, Tokens};
    use crate::api::rest::interpret;
    use crate::api::route::{FAMILIES, find};
    use crate::wire::http_in::{Method, Parser, Step};

    fn asked(peer: Peer, line: &str, headers: &str) -> Response {
        let mut parser = Parser::new();
        parser.feed(format!("{line} HTTP/1.1\r\nHost: localhost:8480\r\n{headers}\r\n").as_bytes());
        assert_eq!(parser.step(), Step::Request);
        match interpret(&parser.request(), &Tokens::default(), &peer, &mut Shown::default()) {
            Ok(Interpreted::Direct(response)) => response,
            other => panic!("{line}: {other:?}"),
        }
    }

    fn header<'r>(response: &'r Response, name: &str) -> Option<&'r str> {
        response.headers.iter().find(|(given, _)| *given == name).map(|(_, value)| value.as_str())
    }

    #[test]
    fn every_file_has_its_route_and_every_route_of_the_page_its_file() {
        for (path, media, bytes) in FILES {
            let reply = asked(Peer::Token, &format!("GET {path}"), "");
            assert_eq!((reply.status, reply.content_type, &reply.whole_body()[..]), (200, *media, *bytes), "{path}");
            assert!(
                header(&reply, "Content-Security-Policy")
                    .is_some_and(|policy| policy.starts_with("default-src 'none'"))
            );
            assert!(!bytes.is_empty() && find(Method::Head, path).is_ok(), "{path}");
        }
        let places = FAMILIES.iter().flat_map(|family| family.paths.iter().map(|place| place.rest));
        let served = places.filter(|rest| *rest == ROOT || rest.starts_with("/page/")).count();
        assert_eq!(served, FILES.len());
    }

    #[test]
    fn whoever_has_a_file_is_not_sent_it_again() {
        let first = asked(Peer::Token, "GET /page/main.js", "");
        let etag = header(&first, "ETag").expect("a mark");
        for given in [etag.to_string(), format!("W/{etag}"), format!("\"x\", {etag}"), "*".to_string()] {
            let reply = asked(Peer::Token, "GET /page/main.js", &format!("If-None-Match: {given}\r\n"));
            assert_eq!((reply.status, header(&reply, "ETag")), (304, Some(etag)), "{given}");
            assert!(reply.whole_body().is_empty());
        }
        for given in ["\"x\"", "", "main.js"] {
            let reply = asked(Peer::Token, "GET /page/main.js", &format!("If-None-Match: {given}\r\n"));
            assert_eq!(reply.status, 200, "{given}");
        }
    }

    #[test]
    fn a_browser_may_go_there_by_a_link_or_the_address_bar_also_where_no_token_is_asked_for() {
        let navigation = "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n";
        let script = "Sec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: cors\r\nSec-Fetch-Dest: script\r\n";
        for peer in [Peer::Token, Peer::Open, Peer::OpenTls, Peer::Trusted, Peer::Scraper] {
            assert_eq!(asked(peer, "GET /", navigation).status, 200);
            assert_eq!(asked(peer, "GET /page/main.js", script).status, 200);
        }
        let mut parser = Parser::new();
        parser.feed(format!("GET /api/v1/mcp/servers HTTP/1.1\r\nHost: localhost\r\n{navigation}\r\n").as_bytes());
        assert_eq!(parser.step(), Step::Request);
        assert!(interpret(&parser.request(), &Tokens::default(), &Peer::Open, &mut Shown::default()).is_err());
    }

    #[test]
    fn nothing_in_the_page_is_inline_or_from_elsewhere_or_becomes_markup() {
        for (path, media, bytes) in FILES {
            let text = std::str::from_utf8(bytes).expect("text");
            let lower = text.to_ascii_lowercase();
            for never in
                ["innerhtml", "outerhtml", "insertadjacenthtml", "document.write", "eval(", "new function", "//cdn"]
            {
                assert!(!lower.contains(never), "{path}: {never}");
            }
            if *media == HTML {
                for never in [" style=", "<style", " onclick", " onload", "javascript:", "http://", "https://"] {
                    assert!(!lower.contains(never), "{path}: {never}");
                }
                assert!(
                    !lower.split("<script").skip(1).any(|tag| !tag.contains("></script>")),
                    "{path}: an inline script"
                );
            }
            if *media == STYLE {
                assert!(!lower.contains("@import") && !lower.contains("url("), "{path}");
            }
        }
    }
}
