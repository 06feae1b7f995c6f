//! The one table of routes: for every path and method what it needs, which query parameters it takes, who reads it, and
//! what it answers. What is allowed, refused and described (405, scopes, unknown parameters, OpenAPI) follows from it; a
//! new route is a new row. Finding a row looks at no body, no query and not at who asks.

mod page;
mod projects;
mod protected;
mod table;
mod tokens;

pub use table::FAMILIES;

use crate::api::auth::resource;
use crate::api::definition::fields::server_name;
use crate::api::mcp::Door;
use crate::api::projects::fields::{external_name, product_id};
use crate::api::projects::template::secret_name;
use crate::api::request::{ExternalRef, ServerRef};
use crate::api::rest::{Incoming, Interpreted};
use crate::ids::{ServerId, Uuid};
use crate::model::external::{ExternalId, ProjectId};
use crate::model::fault::{Code, Fault};
use crate::model::principal::Need;
use crate::wire::http_in::Method;
use memchr::memchr;

pub const SERVERS: &str = "/api/v1/mcp/servers";
/// The same under its other name.
pub const HOSTED: &str = "/api/v1/mcp/hosted";
/// MCP endpoints under their short names.
pub const MCP: &str = "/mcp";
pub const TOKENS: &str = "/api/v1/tokens";
pub const PROJECTS: &str = "/api/v1/projects";
/// MCP endpoints of projects under their short names.
pub const SHORT_PROJECTS: &str = "/p";
pub const KEY_ROTATION: &str = "/api/v1/key/rotate";
pub const UPGRADE: &str = "/api/v1/upgrade";
pub const IMPORT: &str = "/api/v1/mcp/import";
pub const AUDIT: &str = "/api/v1/audit";

/// Of the endpoints of servers, projects, and all servers: where a client finds who gives tokens for them.
const PROTECTED: &str = resource::WELL_KNOWN;
const PROTECTED_MCP: &str = "/.well-known/oauth-protected-resource/mcp";
const PROTECTED_SERVERS: &str = "/.well-known/oauth-protected-resource/api/v1/mcp/servers";
const PROTECTED_HOSTED: &str = "/.well-known/oauth-protected-resource/api/v1/mcp/hosted";
const PROTECTED_PROJECTS: &str = "/.well-known/oauth-protected-resource/api/v1/projects";
const PROTECTED_SHORT_PROJECTS: &str = "/.well-known/oauth-protected-resource/p";

/// Paths that begin alike, and what stands between the beginning and the rest.
pub struct Family {
    pub bases: &'static [&'static str],
    pub member: MemberKind,
    pub paths: &'static [Path],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberKind {
    Nothing,
    /// `:id`, a UUID or a name.
    Server,
    /// `:name`.
    Token,
    /// `:project`.
    Project,
    /// `:project/mcp/servers/:id`, a UUID or a name.
    ProjectServer,
    /// `:project/secrets/:name`.
    ProjectSecret,
    /// `:project/products/:product`.
    Product,
}

impl MemberKind {
    /// What stands between the two members of a path that has two.
    pub fn between(self) -> Option<&'static str> {
        match self {
            MemberKind::Nothing | MemberKind::Server | MemberKind::Token | MemberKind::Project => None,
            MemberKind::ProjectServer => Some("/mcp/servers"),
            MemberKind::ProjectSecret => Some("/secrets"),
            MemberKind::Product => Some("/products"),
        }
    }
}

/// What follows a base and its member, and what can be done there.
pub struct Path {
    pub rest: &'static str,
    pub rows: &'static [Row],
}

pub struct Row {
    pub method: Method,
    pub needs: Need,
    pub query: &'static [Parameter],
    pub reader: Reader,
    pub summary: &'static str,
    /// The name of the schema of its body.
    pub body: Option<&'static str>,
    pub answers: &'static [Success],
    /// Refusals of its own; those that follow from the columns before are not repeated.
    pub faults: &'static [Code],
}

/// Turns a request into what it asks.
#[derive(Clone, Copy, Debug)]
pub enum Reader {
    Plain(for<'r, 'a> fn(Incoming<'r, 'a>) -> Result<Interpreted<'a>, Fault>),
    OfServer(for<'r, 'a> fn(ServerRef, Incoming<'r, 'a>) -> Result<Interpreted<'a>, Fault>),
    OfToken(for<'r, 'a> fn(String, Incoming<'r, 'a>) -> Result<Interpreted<'a>, Fault>),
    OfProject(for<'r, 'a> fn(ProjectId, Incoming<'r, 'a>) -> Result<Interpreted<'a>, Fault>),
    OfExternal(for<'r, 'a> fn(ProjectId, ExternalRef, Incoming<'r, 'a>) -> Result<Interpreted<'a>, Fault>),
    /// Of a secret or a product.
    OfNamed(for<'r, 'a> fn(ProjectId, String, Incoming<'r, 'a>) -> Result<Interpreted<'a>, Fault>),
    /// MCP over HTTP, with or without a server; it has rules of its own for queries, bodies and refusals.
    Mcp(Door),
}

/// A query parameter.
pub struct Parameter {
    pub name: &'static str,
    pub kind: Kind,
    pub about: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`.
    Flag {
        default: bool,
    },
    Count {
        default: usize,
        max: usize,
    },
    /// RFC 3339.
    Time,
    /// A status of a server.
    Status,
    Text,
    /// So many bytes in hexadecimal; required.
    Hex {
        bytes: usize,
    },
    /// A UUID; required.
    Session,
}

pub struct Success {
    pub status: u16,
    pub about: &'static str,
    /// In one of these forms; none: it has no body.
    pub content: &'static [Media],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Media {
    /// By the name of its schema.
    Json(&'static str),
    Text,
    Events,
    /// A file of the page, by its media type.
    File(&'static str),
}

// --- finding a row --------------------------------------------------------------------------------------------------

/// A row, and the member that the path names.
#[derive(Debug)]
pub struct Found {
    pub row: &'static Row,
    pub member: Member,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Member {
    Nothing,
    Server(ServerRef),
    Token(String),
    Project(ProjectId),
    External(ProjectId, ExternalRef),
    /// A secret or a product of a project.
    Named(ProjectId, String),
}

impl Member {
    pub fn project(&self) -> Option<&ProjectId> {
        match self {
            Member::Nothing | Member::Server(_) | Member::Token(_) => None,
            Member::Project(project) | Member::External(project, _) | Member::Named(project, _) => Some(project),
        }
    }
}

/// `path` is percent-decoded; one slash at its end makes no difference. `HEAD` is `GET` here: who writes the answer
/// leaves its body out. `OPTIONS` is a method like others, and no resource has it: 405 names what there is.
pub fn find(method: Method, path: &str) -> Result<Found, Fault> {
    let is_whole = |rest: &&str| !rest.is_empty() && !rest.ends_with('/');
    let trimmed = path.strip_suffix('/').filter(is_whole).unwrap_or(path);
    for family in &FAMILIES {
        let Some((member, inner, rest)) = family.split(trimmed) else { continue };
        let place = family.paths.iter().find(|place| place.rest == rest).ok_or_else(|| nothing_at(path))?;
        let row = place.row(method).ok_or_else(|| not_allowed(path, place))?;
        let member = match family.member {
            MemberKind::Nothing => Member::Nothing,
            MemberKind::Server => Member::Server(server_ref(member)?),
            MemberKind::Token => Member::Token(member.to_string()),
            MemberKind::Project => Member::Project(project_id(member)?),
            MemberKind::ProjectServer => Member::External(project_id(member)?, external_ref(inner)?),
            MemberKind::ProjectSecret => Member::Named(project_id(member)?, named("secret", inner, secret_name)?),
            MemberKind::Product => Member::Named(project_id(member)?, named("product", inner, product_id)?),
        };
        return Ok(Found { row, member });
    }
    Err(nothing_at(path))
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

impl Family {
    /// The member, the one within it, and the rest of a path, if it is one of these.
    fn split<'p>(&self, path: &'p str) -> Option<(&'p str, &'p str, &'p str)> {
        if self.member == MemberKind::Nothing {
            return Some(("", "", path));
        }
        let (member, rest) = self.bases.iter().find_map(|base| member_of(base, path))?;
        match self.member.between() {
            None => Some((member, "", rest)),
            Some(between) => member_of(between, rest).map(|(inner, rest)| (member, inner, rest)),
        }
    }
}

impl Path {
    fn row(&self, method: Method) -> Option<&'static Row> {
        self.rows.iter().find(|row| row.method == method || (method == Method::Head && row.has_head()))
    }

    /// For `Allow`.
    fn methods(&self) -> String {
        let mut names = Vec::new();
        for row in self.rows {
            names.push(row.method.name());
            names.extend(row.has_head().then_some(Method::Head.name()));
        }
        names.join(", ")
    }
}

impl Row {
    /// A stream of MCP has no head to be asked for.
    pub fn has_head(&self) -> bool {
        self.method == Method::Get && !matches!(self.reader, Reader::Mcp(_))
    }

    /// Whoever calls a server is told in every error whether the call may have been made.
    pub fn is_call(&self) -> bool {
        self.needs == Need::Call && !matches!(self.reader, Reader::Mcp(_))
    }
}

impl ::core::fmt::Debug for Row {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        write!(f, "{:?} {}", self.method, self.summary)
    }
}

/// `<base>/<member><rest>`, where `rest` is empty or starts with a slash.
fn member_of<'p>(base: &str, path: &'p str) -> Option<(&'p str, &'p str)> {
    let inner =
        path.strip_prefix(base)?.strip_prefix('/').filter(|inner| !inner.starts_with('/') && !inner.is_empty())?;
    Some(inner.split_at(memchr(b'/', inner.as_bytes()).unwrap_or(inner.len())))
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

fn project_id(id: &str) -> Result<ProjectId, Fault> {
    ProjectId::new(id)
        .map_err(|why| Fault::new(Code::NotFound, format!("no project can be called {:?}: it {why}", shown(id))))
}

fn external_ref(id: &str) -> Result<ExternalRef, Fault> {
    match Uuid::try_parse(id) {
        Ok(uuid) => Ok(ExternalRef::Id(ExternalId(uuid))),
        Err(_) => Ok(ExternalRef::Name(named("server", id, external_name)?)),
    }
}

fn named(what: &str, name: &str, rule: fn(&str) -> Result<String, String>) -> Result<String, Fault> {
    rule(name).map_err(|why| Fault::new(Code::NotFound, format!("no {what} can be called {:?}: it {why}", shown(name))))
}

fn not_allowed(path: &str, place: &Path) -> Fault {
    let methods = place.methods();
    let message = format!("{} allows {methods}", shown(path));
    Fault { allow: Some(methods), ..Fault::new(Code::MethodNotAllowed, message) }
}

fn nothing_at(path: &str) -> Fault {
    Fault::new(Code::NotFound, format!("nothing is at {}; servers are under {SERVERS}", shown(path)))
}

/// What a client wrote, cut to what is worth repeating.
fn shown(text: &str) -> &str {
    let end = text.char_indices().nth(200).map_or(text.len(), |(at, _)| at);
    &text[..end]
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

    /// What the row is for, and the member.
    fn found(method: Method, path: &str) -> Result<(&'static str, Member), Fault> {
        find(method, path).map(|found| (found.row.summary, found.member))
    }

    fn of_server(name: &str) -> Member {
        Member::Server(named(name))
    }

    #[test]
    fn every_route_is_found_under_both_bases_with_or_without_a_slash() {
        let cases = [
            (Get, "/a-1", "What a server is"),
            (Head, "/a-1", "What a server is"),
            (Patch, "/a-1", "Change"),
            (Delete, "/a-1", "Stop a server and remove"),
            (Post, "/a-1/call", "Send one"),
            (Get, "/a-1/definition", "A server's definition"),
            (Post, "/a-1/restart", "Stop a server and start"),
            (Post, "/a-1/stop", "Stop a server;"),
            (Post, "/a-1/start", "Start"),
            (Get, "/a-1/logs", "The last lines"),
            (Head, "/a-1/tools", "The tools"),
            (Get, "/a-1/samples", "What a server used"),
            (Post, "/a-1/mcp", "Send MCP"),
            (Get, "/a-1/sse", "The stream"),
        ];
        let check = |method, path: &str, expected: &str, member: Member| {
            let (summary, found) = found(method, path).unwrap_or_else(|fault| panic!("{path}: {fault:?}"));
            assert!(summary.starts_with(expected) && found == member, "{method:?} {path}: {summary} {found:?}");
        };
        for slash in ["", "/"] {
            for base in [SERVERS, HOSTED] {
                check(Get, &format!("{base}{slash}"), "All servers", Member::Nothing);
                check(Post, &format!("{base}{slash}"), "Register", Member::Nothing);
                for (method, rest, expected) in cases {
                    check(method, &format!("{base}{rest}{slash}"), expected, of_server("a-1"));
                }
            }
            for (method, path, expected) in [
                (Get, "/healthz", "Is the daemon"),
                (Get, "/page/main.js", "A script of the page"),
                (Get, "/api/v1/projects", "The external servers of all"),
                (Get, "/openapi.json", "This document"),
                (Get, "/metrics", "Everything that is counted"),
                (Head, "/readyz", "Can the daemon"),
                (Get, "/api/v1/prove", "Have the daemon show"),
                (Get, "/api/v1/mcp/events", "The lifecycle"),
                (Get, "/api/v1/tokens", "All tokens"),
                (Post, "/api/v1/tokens", "Make a token"),
                (Delete, "/mcp", "End an MCP session"),
            ] {
                check(method, &format!("{path}{slash}"), expected, Member::Nothing);
            }
            let revoked = Member::Token("ci.x".into());
            check(Delete, &format!("/api/v1/tokens/ci.x{slash}"), "Revoke", revoked);
            check(Get, "/", "The page", Member::Nothing);
            check(Get, &format!("/mcp/a{slash}"), "Listen", of_server("a"));
            check(Post, &format!("/mcp/a/messages{slash}"), "Send an MCP message", of_server("a"));
        }
    }

    #[test]
    fn every_row_can_be_read_and_says_what_it_is() {
        for family in &FAMILIES {
            for place in family.paths {
                for (at, row) in place.rows.iter().enumerate() {
                    let agrees = match row.reader {
                        Reader::Plain(_) => family.member == MemberKind::Nothing,
                        Reader::OfServer(_) => family.member == MemberKind::Server,
                        Reader::OfToken(_) => family.member == MemberKind::Token,
                        Reader::OfProject(_) => family.member == MemberKind::Project,
                        Reader::OfExternal(_) => family.member == MemberKind::ProjectServer,
                        Reader::OfNamed(_) => {
                            matches!(family.member, MemberKind::ProjectSecret | MemberKind::Product)
                        }
                        Reader::Mcp(_) => {
                            let kinds = [MemberKind::Nothing, MemberKind::Server, MemberKind::Project];
                            kinds.contains(&family.member) && row.needs == Need::Call
                        }
                    };
                    assert!(agrees, "{row:?}");
                    assert!(!row.summary.is_empty() && !row.answers.is_empty(), "{row:?}");
                    assert!(place.rows[..at].iter().all(|other| other.method != row.method), "{row:?} twice");
                }
            }
        }
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
            let (_, member) = found(Get, &format!("{SERVERS}/{text}")).unwrap();
            assert_eq!(member, Member::Server(ServerRef::Id(ServerId(uuid))));
        }
        let almost = "550e8400-e29b-41d4-a716-44665544000";
        assert_eq!(found(Get, &format!("{SERVERS}/{almost}")).unwrap().1, of_server(almost));
        for bad in ["Über", "a_b", "A", "..", "a b", "a%20", &"x".repeat(64), "\0"] {
            let fault = find(Get, &format!("{SERVERS}/{bad}")).unwrap_err();
            assert_eq!(fault.code, Code::NotFound, "{bad}");
        }
    }

    #[test]
    fn what_is_not_in_the_table_is_not_found() {
        for path in [
            "",
            "//",
            "///",
            "*",
            "healthz",
            "//healthz",
            "/page",
            "/page/",
            "/page/../healthz",
            "/page/none.js",
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
            "/metrics/x",
        ] {
            for method in METHODS {
                let fault = find(method, path).unwrap_err();
                assert_eq!(fault.code, Code::NotFound, "{method:?} {path}");
            }
        }
    }

    #[test]
    fn a_known_path_names_the_methods_it_allows() {
        for (path, allow) in [
            ("/healthz", "GET, HEAD"),
            ("/", "GET, HEAD"),
            ("/page/main.js", "GET, HEAD"),
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
            ("/api/v1/audit", "GET, HEAD"),
            ("/api/v1/tokens", "GET, HEAD, POST"),
            ("/api/v1/tokens/a", "DELETE"),
        ] {
            for method in METHODS {
                let allowed = allow.split(", ").any(|name| name.eq_ignore_ascii_case(&format!("{method:?}")));
                match find(method, path) {
                    Ok(_) => assert!(allowed, "{method:?} {path}"),
                    Err(fault) => {
                        assert_eq!((fault.code, fault.allow.as_deref()), (Code::MethodNotAllowed, Some(allow)));
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
            let _ = find(METHODS[round % 8], &String::from_utf8_lossy(&path));
        }
    }
}
