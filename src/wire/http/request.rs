//! Requests to other servers, as bytes. Owns their framing: what follows a head is as long as the head says, and no value
//! can end its line. Names and values may come from a project's secrets, so one that cannot be a header is refused by its
//! name; its value is never told.

use crate::wire::backlog::Backlog;
use crate::wire::http_out::push_decimal;

/// Fields that this module writes itself, or that would change what a connection carries.
const OWN_FIELDS: [&str; 7] =
    ["host", "content-length", "transfer-encoding", "connection", "te", "trailer", "proxy-authorization"];

pub struct Request<'a> {
    pub method: &'static str,
    /// Path and query; the whole address for a proxy, `HOST:PORT` for a CONNECT.
    pub target: &'a str,
    pub host: &'a str,
    pub headers: &'a [(&'a str, &'a str)],
    /// None: this method has no body, and its head says nothing of one.
    pub body: Option<Vec<u8>>,
    /// The connection is to speak this from then on.
    pub upgrade: Option<&'static str>,
    /// For the proxy that is asked; the value of `Proxy-Authorization`.
    pub proxy_login: Option<&'a str>,
}

impl<'a> Request<'a> {
    pub fn new(method: &'static str, target: &'a str, host: &'a str) -> Request<'a> {
        Request { method, target, host, headers: &[], body: None, upgrade: None, proxy_login: None }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadRequest {
    /// A blank or a line end in it would end the request line.
    Target,
    /// The header of this name cannot be sent: it is ours, or no name at all.
    Name(String),
    /// The value of this header has bytes that no header may have.
    Value(String),
}

impl BadRequest {
    pub fn message(&self) -> String {
        match self {
            BadRequest::Target => "the address has a blank, a line end or a letter beyond ASCII in it".to_string(),
            BadRequest::Name(name) => format!("{name:?} cannot be set as a header here"),
            BadRequest::Value(name) => {
                format!("the value of the header {name:?} has a line end or a control byte in it")
            }
        }
    }
}

/// Writes all of the request, or nothing.
pub fn write(to: &mut Backlog, request: Request<'_>) -> Result<(), BadRequest> {
    let is_plain = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_plain(request.target) || !is_plain(request.host) {
        return Err(BadRequest::Target);
    }
    for (name, value) in request.headers {
        if !is_name(name) || OWN_FIELDS.iter().any(|own| name.eq_ignore_ascii_case(own)) {
            return Err(BadRequest::Name(name.to_string()));
        }
        if !is_value(value) {
            return Err(BadRequest::Value(name.to_string()));
        }
    }
    if request.proxy_login.is_some_and(|login| !is_value(login)) {
        return Err(BadRequest::Value("Proxy-Authorization".to_string()));
    }
    let out = to.tail();
    for part in [request.method, " ", request.target, " HTTP/1.1\r\nHost: ", request.host, "\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
    if let Some(login) = request.proxy_login {
        field(out, "Proxy-Authorization", login);
    }
    if let Some(protocol) = request.upgrade {
        field(out, "Connection", "Upgrade");
        field(out, "Upgrade", protocol);
    }
    for (name, value) in request.headers {
        field(out, name, value);
    }
    if let Some(body) = &request.body {
        out.extend_from_slice(b"Content-Length: ");
        push_decimal(out, body.len() as u64);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
    to.push(request.body.unwrap_or_default());
    Ok(())
}

fn field(out: &mut Vec<u8>, name: &str, value: &str) {
    for part in [name, ": ", value, "\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
}

/// A token of RFC 9110.
pub fn is_name(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_part)
}

pub fn is_value(value: &str) -> bool {
    value.bytes().all(|byte| byte == b'\t' || (byte >= 0x20 && byte != 0x7f))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::http_in::{Method, Parser, Step};

    fn written(request: Request<'_>) -> Result<String, BadRequest> {
        let mut out = Backlog::default();
        let result = write(&mut out, request);
        let text = String::from_utf8(out.into_bytes()).unwrap();
        assert!(result.is_ok() || text.is_empty(), "nothing of a refused request goes out");
        result.map(|()| text)
    }

    #[test]
    fn a_request_is_read_back_by_a_server_as_it_was_meant() {
        let headers = [("Accept", "application/json, text/event-stream"), ("Authorization", "Bearer x")];
        let body = Some(br#"{"jsonrpc":"2.0"}"#.to_vec());
        let text =
            written(Request { headers: &headers, body, ..Request::new("POST", "/mcp?a=b", "h.test:81") }).unwrap();
        let mut parser = Parser::new();
        parser.feed(text.as_bytes());
        assert_eq!(parser.step(), Step::Request);
        let request = parser.request();
        assert_eq!((request.method, &*request.path, request.query), (Method::Post, "/mcp", "a=b"));
        assert_eq!((request.host(), request.body), ("h.test:81", &br#"{"jsonrpc":"2.0"}"#[..]));
        assert_eq!(request.header("authorization"), Some(&b"Bearer x"[..]));
        assert!(request.keep_alive);
    }

    #[test]
    fn only_a_method_with_a_body_says_how_long_it_is() {
        assert_eq!(written(Request::new("GET", "/", "h")).unwrap(), "GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        let empty = Request { body: Some(Vec::new()), ..Request::new("POST", "/", "h") };
        assert_eq!(written(empty).unwrap(), "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n");
        let large = Request { body: Some(vec![b'x'; 100_000]), ..Request::new("POST", "/", "h") };
        assert!(written(large).unwrap().contains("Content-Length: 100000\r\n\r\nxxx"));
    }

    #[test]
    fn a_way_through_a_proxy_and_another_protocol_are_asked_for() {
        let connect =
            Request { proxy_login: Some("Basic eA=="), ..Request::new("CONNECT", "a.test:443", "a.test:443") };
        let text = "CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\nProxy-Authorization: Basic eA==\r\n\r\n";
        assert_eq!(written(connect).unwrap(), text);
        let upgrade = Request { upgrade: Some("websocket"), ..Request::new("GET", "/ws", "h") };
        let text = "GET /ws HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
        assert_eq!(written(upgrade).unwrap(), text);
    }

    #[test]
    fn what_would_be_more_than_one_header_is_refused_by_name_and_its_value_is_not_told() {
        for value in ["secret\r\nX: y", "secret\n", "secret\0", "\x7fsecret", "secret\rX"] {
            let refused = written(Request { headers: &[("X-Key", value)], ..Request::new("GET", "/", "h") });
            let message = refused.unwrap_err().message();
            assert!(message.contains("X-Key") && !message.contains("secret"), "{message}");
        }
        for name in ["", "a b", "a:", "é", "Host", "content-length", "Transfer-Encoding", "connection", "a\r\nb"] {
            let refused = written(Request { headers: &[(name, "v")], ..Request::new("GET", "/", "h") });
            assert_eq!(refused, Err(BadRequest::Name(name.to_string())));
        }
        for (target, host) in [("/a b", "h"), ("/\r\n", "h"), ("", "h"), ("/é", "h"), ("/", "h\r\nX: y"), ("/", "")] {
            assert_eq!(written(Request::new("GET", target, host)), Err(BadRequest::Target), "{target:?} {host:?}");
        }
    }
}
