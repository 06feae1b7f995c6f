//! Which resource a path names and what a method does there. Owns the table of routes; never looks at bodies, queries
//! or who asks. Every path of the table answers every method: with a route, or with 405 and what it allows.

use crate::api::auth::proof;
use crate::api::definition::fields::server_name;
use crate::api::mcp::Door;
use crate::api::request::ServerRef;
use crate::ids::{ServerId, Uuid};
use crate::model::fault::{Code, Fault};
use crate::model::principal::Need;
use crate::wire::http_in::Method;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    Healthz,
    Readyz,
    /// The daemon is to show that it knows a token.
    Prove,
    Register,
    List,
    Get(ServerRef),
    Patch(ServerRef),
    Delete(ServerRef),
    Call(ServerRef),
    Restart(ServerRef),
    Stop(ServerRef),
    Start(ServerRef),
    Logs(ServerRef),
    Tools(ServerRef),
    Events,
    /// MCP over HTTP; none: all servers at once.
    Mcp(Option<ServerRef>, Door),
    TokenCreate,
    TokenList,
    TokenRevoke(String),
    TokenRotate(String),
}

pub const SERVERS: &str = "/api/v1/mcp/servers";
/// The same under its other name.
pub const HOSTED: &str = "/api/v1/mcp/hosted";
pub const EVENTS: &str = "/api/v1/mcp/events";
/// MCP endpoints under their short names.
pub const MCP: &str = "/mcp";
pub const TOKENS: &str = "/api/v1/tokens";

type Fixed = fn() -> Route;
type OfServer = fn(ServerRef) -> Route;
type OfToken = fn(String) -> Route;

struct Endpoint<Make: 'static> {
    path: &'static str,
    allow: &'static str,
    methods: &'static [(Method, Make)],
}

const FIXED: &[Endpoint<Fixed>] = &[
    Endpoint { path: SERVERS, allow: "GET, HEAD, POST", methods: COLLECTION },
    Endpoint { path: HOSTED, allow: "GET, HEAD, POST", methods: COLLECTION },
    Endpoint { path: EVENTS, allow: "GET, HEAD", methods: &[(Method::Get, || Route::Events)] },
    Endpoint { path: "/healthz", allow: "GET, HEAD", methods: &[(Method::Get, || Route::Healthz)] },
    Endpoint { path: "/readyz", allow: "GET, HEAD", methods: &[(Method::Get, || Route::Readyz)] },
    Endpoint {
        path: MCP,
        allow: "GET, POST, DELETE",
        methods: &[
            (Method::Post, || Route::Mcp(None, Door::Main)),
            (Method::Get, || Route::Mcp(None, Door::Main)),
            (Method::Delete, || Route::Mcp(None, Door::Main)),
        ],
    },
    Endpoint { path: "/sse", allow: "GET", methods: &[(Method::Get, || Route::Mcp(None, Door::OldStream))] },
    Endpoint { path: "/messages", allow: "POST", methods: &[(Method::Post, || Route::Mcp(None, Door::OldPost))] },
    Endpoint {
        path: TOKENS,
        allow: "GET, HEAD, POST",
        methods: &[(Method::Get, || Route::TokenList), (Method::Post, || Route::TokenCreate)],
    },
    Endpoint { path: proof::PATH, allow: "GET, HEAD", methods: &[(Method::Get, || Route::Prove)] },
];

const COLLECTION: &[(Method, Fixed)] = &[(Method::Get, || Route::List), (Method::Post, || Route::Register)];

/// What follows `<base>/:id`.
const OF_SERVER: &[Endpoint<OfServer>] = &[
    Endpoint { path: "/call", allow: "POST", methods: &[(Method::Post, Route::Call)] },
    Endpoint {
        path: "",
        allow: "GET, HEAD, PATCH, DELETE",
        methods: &[(Method::Get, Route::Get), (Method::Patch, Route::Patch), (Method::Delete, Route::Delete)],
    },
    Endpoint { path: "/restart", allow: "POST", methods: &[(Method::Post, Route::Restart)] },
    Endpoint { path: "/stop", allow: "POST", methods: &[(Method::Post, Route::Stop)] },
    Endpoint { path: "/start", allow: "POST", methods: &[(Method::Post, Route::Start)] },
    Endpoint { path: "/logs", allow: "GET, HEAD", methods: &[(Method::Get, Route::Logs)] },
    Endpoint { path: "/tools", allow: "GET, HEAD", methods: &[(Method::Get, Route::Tools)] },
    Endpoint { path: "/mcp", allow: "GET, POST, DELETE", methods: MAIN },
    Endpoint { path: "/sse", allow: "GET", methods: OLD_STREAM },
    Endpoint { path: "/messages", allow: "POST", methods: OLD_POST },
];

/// What follows `/mcp/:id`.
const OF_SHORT: &[Endpoint<OfServer>] = &[
    Endpoint { path: "", allow: "GET, POST, DELETE", methods: MAIN },
    Endpoint { path: "/sse", allow: "GET", methods: OLD_STREAM },
    Endpoint { path: "/messages", allow: "POST", methods: OLD_POST },
];

const MAIN: &[(Method, OfServer)] = &[
    (Method::Post, |server| Route::Mcp(Some(server), Door::Main)),
    (Method::Get, |server| Route::Mcp(Some(server), Door::Main)),
    (Method::Delete, |server| Route::Mcp(Some(server), Door::Main)),
];
const OLD_STREAM: &[(Method, OfServer)] = &[(Method::Get, |server| Route::Mcp(Some(server), Door::OldStream))];
const OLD_POST: &[(Method, OfServer)] = &[(Method::Post, |server| Route::Mcp(Some(server), Door::OldPost))];

/// What follows `/api/v1/tokens/:name`.
const OF_TOKEN: &[Endpoint<OfToken>] = &[
    Endpoint { path: "", allow: "DELETE", methods: &[(Method::Delete, Route::TokenRevoke)] },
    Endpoint { path: "/rotate", allow: "POST", methods: &[(Method::Post, Route::TokenRotate)] },
];

/// `path` is percent-decoded; one slash at its end makes no difference. `HEAD` is `GET` here: who writes the answer
/// leaves its body out. `OPTIONS` is a method like others, and no resource has it: 405 names what there is.
pub fn route(method: Method, path: &str) -> Result<Route, Fault> {
    let trimmed = path.strip_suffix('/').unwrap_or(path);
    if let Some((id, rest)) = member_of(SERVERS, trimmed).or_else(|| member_of(HOSTED, trimmed)) {
        let endpoint = OF_SERVER.iter().find(|endpoint| endpoint.path == rest).ok_or_else(|| nothing_at(path))?;
        let make = endpoint.pick(method, path)?;
        return Ok(make(server_ref(id)?));
    }
    if let Some((id, rest)) = member_of(MCP, trimmed) {
        let endpoint = OF_SHORT.iter().find(|endpoint| endpoint.path == rest).ok_or_else(|| nothing_at(path))?;
        let make = endpoint.pick(method, path)?;
        return Ok(make(server_ref(id)?));
    }
    if let Some((name, rest)) = member_of(TOKENS, trimmed) {
        let endpoint = OF_TOKEN.iter().find(|endpoint| endpoint.path == rest).ok_or_else(|| nothing_at(path))?;
        let make = endpoint.pick(method, path)?;
        return Ok(make(name.to_string()));
    }
    let endpoint = FIXED.iter().find(|endpoint| endpoint.path == trimmed).ok_or_else(|| nothing_at(path))?;
    let make = endpoint.pick(method, path)?;
    Ok(make())
}

/// Of an MCP endpoint, or of anything below one, under either of its addresses: the server's name or id, and what comes after
/// the endpoint. Whoever is not known is told the same of all of them, whether there is such a server or not.
pub fn endpoint(path: &str) -> Option<(&str, &str)> {
    if let Some(found) = member_of(MCP, path) {
        return Some(found);
    }
    let (name, rest) = member_of(SERVERS, path).or_else(|| member_of(HOSTED, path))?;
    let rest = rest.strip_prefix(MCP).filter(|rest| rest.is_empty() || rest.starts_with('/'))?;
    Some((name, rest))
}

/// `<base>/<member><rest>`, where `rest` is empty or starts with a slash.
fn member_of<'p>(base: &str, path: &'p str) -> Option<(&'p str, &'p str)> {
    let inner =
        path.strip_prefix(base)?.strip_prefix('/').filter(|inner| !inner.starts_with('/') && !inner.is_empty())?;
    Some(inner.split_at(inner.find('/').unwrap_or(inner.len())))
}

fn server_ref(id: &str) -> Result<ServerRef, Fault> {
    if let Ok(uuid) = Uuid::try_parse(id) {
        return Ok(ServerRef::Id(ServerId(uuid)));
    }
    match server_name(id) {
        Ok(name) => Ok(ServerRef::Name(name)),
        Err(why) => Err(Fault::new(Code::NotFound, format!("no server can be called {:?}: it {why}", shown(id)))),
    }
}

impl<Make: Copy> Endpoint<Make> {
    fn pick(&self, method: Method, path: &str) -> Result<Make, Fault> {
        // A stream has no head to be asked for.
        let head = method == Method::Head && self.allow.contains("HEAD");
        let asked = if head { Method::Get } else { method };
        self.methods.iter().find(|(method, _)| *method == asked).map(|(_, make)| *make).ok_or_else(|| Fault {
            allow: Some(self.allow),
            ..Fault::new(Code::MethodNotAllowed, format!("{} allows {}", shown(path), self.allow))
        })
    }
}

fn nothing_at(path: &str) -> Fault {
    Fault::new(Code::NotFound, format!("nothing is at {}; servers are under {SERVERS}", shown(path)))
}

/// What a client wrote, cut to what is worth repeating.
fn shown(text: &str) -> &str {
    let end = text.char_indices().nth(200).map_or(text.len(), |(at, _)| at);
    &text[..end]
}

impl Route {
    /// What a client must be allowed to do for it.
    pub fn needs(&self) -> Need {
        match self {
            Route::Healthz | Route::Readyz | Route::Prove => Need::Nothing,
            Route::List | Route::Get(_) | Route::Logs(_) | Route::Events => Need::Read,
            Route::Register
            | Route::Patch(_)
            | Route::Delete(_)
            | Route::Restart(_)
            | Route::Stop(_)
            | Route::Start(_) => Need::Write,
            Route::Call(_) | Route::Mcp(..) => Need::Call,
            Route::Tools(_) => Need::ReadOrCall,
            Route::TokenList => Need::TokensRead,
            Route::TokenCreate | Route::TokenRevoke(_) | Route::TokenRotate(_) => Need::TokensWrite,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::mutation::Mutator;
    use Method::*;

    const METHODS: [Method; 8] = [Get, Head, Post, Put, Patch, Delete, Options, Other];

    fn named(name: &str) -> ServerRef {
        ServerRef::Name(name.into())
    }

    #[test]
    fn every_route_is_found_under_both_bases_with_or_without_a_slash() {
        let cases: [(Method, &str, OfServer); 10] = [
            (Get, "/a-1", Route::Get),
            (Head, "/a-1", Route::Get),
            (Patch, "/a-1", Route::Patch),
            (Delete, "/a-1", Route::Delete),
            (Post, "/a-1/call", Route::Call),
            (Post, "/a-1/restart", Route::Restart),
            (Post, "/a-1/stop", Route::Stop),
            (Post, "/a-1/start", Route::Start),
            (Get, "/a-1/logs", Route::Logs),
            (Head, "/a-1/tools", Route::Tools),
        ];
        for base in [SERVERS, HOSTED] {
            for slash in ["", "/"] {
                assert_eq!(route(Get, &format!("{base}{slash}")), Ok(Route::List));
                assert_eq!(route(Post, &format!("{base}{slash}")), Ok(Route::Register));
                for (method, rest, expected) in cases {
                    assert_eq!(route(method, &format!("{base}{rest}{slash}")), Ok(expected(named("a-1"))), "{rest}");
                }
            }
        }
        assert_eq!(route(Get, "/healthz"), Ok(Route::Healthz));
        assert_eq!(route(Head, "/readyz/"), Ok(Route::Readyz));
        assert_eq!(route(Get, "/api/v1/prove"), Ok(Route::Prove));
        assert_eq!(route(Get, "/api/v1/tokens"), Ok(Route::TokenList));
        assert_eq!(route(Post, "/api/v1/tokens/"), Ok(Route::TokenCreate));
        assert_eq!(route(Delete, "/api/v1/tokens/ci.x"), Ok(Route::TokenRevoke("ci.x".into())));
    }

    #[test]
    fn both_addresses_of_an_endpoint_are_known_and_no_others() {
        assert_eq!(endpoint("/mcp/web"), Some(("web", "")));
        assert_eq!(endpoint("/mcp/web/"), Some(("web", "/")));
        assert_eq!(endpoint("/mcp/web/events"), Some(("web", "/events")));
        assert_eq!(endpoint("/api/v1/mcp/servers/web/mcp"), Some(("web", "")));
        assert_eq!(endpoint("/api/v1/mcp/hosted/web/mcp/x"), Some(("web", "/x")));
        for other in ["/mcp", "/mcp/", "/api/v1/mcp/servers/web", "/api/v1/mcp/servers/web/mcpx", "/healthz", "/"] {
            assert_eq!(endpoint(other), None, "{other}");
        }
    }

    #[test]
    fn an_id_is_a_uuid_or_else_a_name() {
        let uuid = Uuid::from_u128(0x550e8400_e29b_41d4_a716_446655440000);
        for text in ["550e8400-e29b-41d4-a716-446655440000", "550E8400-E29B-41D4-A716-446655440000"] {
            assert_eq!(route(Get, &format!("{SERVERS}/{text}")), Ok(Route::Get(ServerRef::Id(ServerId(uuid)))));
        }
        let almost = "550e8400-e29b-41d4-a716-44665544000";
        assert_eq!(route(Get, &format!("{SERVERS}/{almost}")), Ok(Route::Get(named(almost))));
        for bad in ["Über", "a_b", "A", "..", "a b", "a%20", &"x".repeat(64), "\0"] {
            let fault = route(Get, &format!("{SERVERS}/{bad}")).unwrap_err();
            assert_eq!(fault.code, Code::NotFound, "{bad}");
        }
    }

    #[test]
    fn what_is_not_in_the_table_is_not_found() {
        for path in [
            "",
            "/",
            "*",
            "healthz",
            "//healthz",
            "/healthz//",
            "/Healthz",
            "/api/v1/mcp",
            "/api/v1/mcp/serversx",
            "/api/v1/mcp/servers//",
            "/api/v1/mcp/servers//call",
            "/api/v1/mcp/servers/a//",
            "/api/v1/mcp/servers/a//call",
            "/api/v1/mcp/servers/a/call/x",
            "/api/v1/mcp/servers/a/calls",
            "/api/v1/mcp/servers/a/mcp/x",
            "/mcp/a/b",
            "/api/v1/tokens/a/b",
            "/metrics",
            "/openapi.json",
        ] {
            for method in METHODS {
                let fault = route(method, path).unwrap_err();
                assert_eq!(fault.code, Code::NotFound, "{method:?} {path}");
            }
        }
    }

    #[test]
    fn a_known_path_names_the_methods_it_allows() {
        for (path, allow) in [
            ("/healthz", "GET, HEAD"),
            ("/readyz", "GET, HEAD"),
            ("/api/v1/prove", "GET, HEAD"),
            ("/api/v1/mcp/events", "GET, HEAD"),
            ("/api/v1/mcp/servers", "GET, HEAD, POST"),
            ("/api/v1/mcp/hosted/", "GET, HEAD, POST"),
            ("/api/v1/mcp/servers/a", "GET, HEAD, PATCH, DELETE"),
            ("/api/v1/mcp/servers/a/call", "POST"),
            ("/api/v1/mcp/servers/a/restart", "POST"),
            ("/api/v1/mcp/servers/a/stop", "POST"),
            ("/api/v1/mcp/servers/a/start", "POST"),
            ("/api/v1/mcp/servers/a/logs", "GET, HEAD"),
            ("/api/v1/mcp/servers/a/tools", "GET, HEAD"),
            ("/api/v1/mcp/servers/a/sse", "GET"),
            ("/mcp/a/messages", "POST"),
            ("/api/v1/tokens", "GET, HEAD, POST"),
            ("/api/v1/tokens/a", "DELETE"),
            ("/api/v1/tokens/a/rotate", "POST"),
        ] {
            for method in METHODS {
                let allowed = allow.split(", ").any(|name| name.eq_ignore_ascii_case(&format!("{method:?}")));
                match route(method, path) {
                    Ok(_) => assert!(allowed, "{method:?} {path}"),
                    Err(fault) => {
                        assert_eq!((fault.code, fault.allow), (Code::MethodNotAllowed, Some(allow)));
                        assert!(!allowed, "{method:?} {path}");
                    }
                }
            }
        }
    }

    #[test]
    fn no_path_makes_it_panic() {
        let seeds: [&[u8]; 3] =
            [b"/api/v1/mcp/servers/name/call", b"/api/v1/tokens/x", "/api/v1/mcp/hosted/é/".as_bytes()];
        let mut mutator = Mutator::new(1);
        for round in 0..10_000 {
            let path = mutator.mutate(&seeds);
            let _ = route(METHODS[round % 8], &String::from_utf8_lossy(&path));
        }
    }
}
