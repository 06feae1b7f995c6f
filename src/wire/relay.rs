//! HTTP heads on their way through: a client's request as the server behind gets it, and the server's answer as the client
//! gets it. Only heads are looked at; bodies pass as they are. Hop-by-hop fields end here, and the client's credentials
//! for this daemon never reach a server.

use crate::limits::{HEAD_MAX, HEADERS_MAX};
use crate::wire::http_in::{Method, Request};

/// Fields that are about one connection only, or that this daemon sets itself.
const NOT_PASSED: [&str; 12] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "expect",
    "content-length",
    "authorization",
];

/// Path and query as they go on the wire; the path is a decoded one.
pub fn target(path: &str, query: &str) -> String {
    let mut out = String::with_capacity(path.len() + query.len() + 1);
    for byte in path.bytes() {
        match byte {
            b'/' | b'-' | b'.' | b'_' | b'~' => out.push(byte as char),
            byte if byte.is_ascii_alphanumeric() => out.push(byte as char),
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    if !query.is_empty() {
        out.push('?');
        out.push_str(query);
    }
    out
}

/// The request for a connection that carries nothing else; none for a method that we do not know. `target` is as
/// `target` makes it.
pub fn request(request: &Request<'_>, target: &str, host: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(512 + request.body.len());
    let method = method(request.method)?;
    out.extend_from_slice(format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n").as_bytes());
    for (name, value) in request.headers() {
        if name.eq_ignore_ascii_case("host") || is_not_passed(name) || is_for_this_hop(request, name) {
            continue;
        }
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
    if !request.body.is_empty() || matches!(request.method, Method::Post | Method::Put | Method::Patch) {
        out.extend_from_slice(format!("Content-Length: {}\r\n", request.body.len()).as_bytes());
    }
    out.extend_from_slice(b"Connection: close\r\n\r\n");
    out.extend_from_slice(request.body);
    Some(out)
}

fn method(method: Method) -> Option<&'static str> {
    Some(match method {
        Method::Get => "GET",
        Method::Head => "HEAD",
        Method::Post => "POST",
        Method::Put => "PUT",
        Method::Patch => "PATCH",
        Method::Delete => "DELETE",
        Method::Options => "OPTIONS",
        Method::Other => return None,
    })
}

fn is_not_passed(name: &str) -> bool {
    NOT_PASSED.iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// The client's `Connection` says that the field is about that connection.
fn is_for_this_hop(request: &Request<'_>, name: &str) -> bool {
    let says = |(field, value): (&str, &[u8])| {
        let mut named = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        field.eq_ignore_ascii_case("connection") && named.any(|word| word.eq_ignore_ascii_case(name.as_bytes()))
    };
    request.headers().any(says)
}

/// What became of the first bytes of an answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Head {
    /// More are needed.
    Partial,
    /// The head as the client gets it; the body begins at `body_at`. `events`: it is a stream that may never end.
    Whole { bytes: Vec<u8>, body_at: usize, events: bool },
    /// It is no HTTP.
    Garbage,
}

/// An answer's head. The body goes on until the server closes, framed as the server framed it.
pub fn answer(bytes: &[u8]) -> Head {
    let mut fields = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut fields);
    let body_at = match response.parse(bytes) {
        Ok(httparse::Status::Complete(body_at)) => body_at,
        Ok(httparse::Status::Partial) if bytes.len() < HEAD_MAX => return Head::Partial,
        Ok(httparse::Status::Partial) | Err(_) => return Head::Garbage,
    };
    let code = response.code.unwrap_or(502);
    if (100..200).contains(&code) {
        // An interim answer says nothing that the client waits for.
        return match answer(&bytes[body_at..]) {
            Head::Whole { bytes, body_at: rest, events } => Head::Whole { bytes, body_at: body_at + rest, events },
            other @ (Head::Partial | Head::Garbage) => other,
        };
    }
    let mut out = format!("HTTP/1.1 {code} {}\r\n", response.reason.unwrap_or_default()).into_bytes();
    for field in response.headers.iter() {
        let framing = ["transfer-encoding", "content-length"].iter().any(|f| field.name.eq_ignore_ascii_case(f));
        if is_not_passed(field.name) && !framing {
            continue;
        }
        out.extend_from_slice(field.name.as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(field.value);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"Connection: close\r\n\r\n");
    let events = response
        .headers
        .iter()
        .any(|field| field.name.eq_ignore_ascii_case("content-type") && field.value.starts_with(b"text/event-stream"));
    Head::Whole { bytes: out, body_at, events }
}

/// For a server that ends, or answers something else, before it has answered.
pub const BAD_GATEWAY: &[u8] = b"HTTP/1.1 502 Bad Gateway\r\nContent-Type: application/json\r\n\
    x-stdiod-error-source: host\r\nContent-Length: 92\r\nConnection: close\r\n\r\n\
    {\"error\":{\"code\":\"bad_server_output\",\"message\":\"the server gave no HTTP answer\",\"data\":{}}}\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_keeps_its_framing_and_loses_what_is_about_its_connection() {
        let came = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\
            Keep-Alive: timeout=5\r\nConnection: keep-alive\r\nMcp-Session-Id: x\r\n\r\n3\r\nabc";
        let Head::Whole { bytes, body_at, events: true } = answer(came) else { panic!("whole") };
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(
            text,
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nMcp-Session-Id: x\r\n\
             Connection: close\r\n\r\n"
        );
        assert_eq!(&came[body_at..], b"3\r\nabc");
    }

    #[test]
    fn the_canned_answer_is_as_long_as_it_says() {
        let text = std::str::from_utf8(BAD_GATEWAY).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{}", body.len());
        assert!(serde_json::from_str::<serde_json::Value>(body).is_ok());
    }

    #[test]
    fn a_path_is_spelled_again_as_it_was_meant() {
        assert_eq!(target("/mcp/a b/ü?", "x=%20&y"), "/mcp/a%20b/%C3%BC%3F?x=%20&y");
    }

    #[test]
    fn half_a_head_waits_and_garbage_does_not() {
        assert_eq!(answer(b"HTTP/1.1 200 OK\r\nA: b"), Head::Partial);
        assert_eq!(answer(b""), Head::Partial);
        assert_eq!(answer(b"SSH-2.0-x\r\n"), Head::Garbage);
        assert_eq!(answer(&[b"HTTP/1.1 200 OK\r\nA: ".as_slice(), &vec![b'x'; HEAD_MAX]].concat()), Head::Garbage);
        let interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n";
        assert!(matches!(answer(interim), Head::Whole { body_at, .. } if body_at == interim.len()));
    }
}
