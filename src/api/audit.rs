//! What is written down of what clients do: which asks leave a line, and what stands in it. Pure. Never takes a value of an
//! environment, a file, an argument or a token: names only. Who writes the lines is `os::logs::audit`.

use crate::api::import::Read;
use crate::api::import::body::Candidate;
use crate::api::request::{Ask, Change, ExternalRef, McpAsk, ProjectAsk, ServerRef};
use crate::api::response::{Answer, ImportAction};
use crate::limits::{AUDIT_FIELDS_MAX, AUDIT_WORD_MAX};
use crate::model::definition::{Definition, Source};
use crate::model::external::ProjectId;
use crate::model::fault::{Code, Fault};
use crate::model::principal::Principal;
use crate::wire::json::Json;
use crate::wire::jsonrpc::Message;
use crate::wire::times::rfc3339;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::borrow::Cow;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditOutcome {
    Ok,
    Denied,
    Failed,
}

/// A line whose outcome is not known yet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Draft {
    pub kind: Cow<'static, str>,
    pub subject: String,
    pub target: String,
    #[serde(with = "crate::model::frozen::json")]
    pub data: Value,
}

/// A line, but for its number.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    pub logged_at: String,
    #[serde(rename = "type")]
    pub kind: Cow<'static, str>,
    pub outcome: AuditOutcome,
    pub source: String,
    pub subject: String,
    pub target: String,
    pub data: Value,
}

/// What a client wants to read of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditQuery {
    pub since_unix_ms: Option<u64>,
    pub limit: usize,
    pub kind: Option<String>,
}

impl Draft {
    pub fn line(self, outcome: AuditOutcome, source: String, at_unix_ms: u64) -> Line {
        let Draft { kind, subject, target, data } = self;
        Line { logged_at: rfc3339(at_unix_ms), kind, outcome, source, subject, target, data }
    }

    /// Somebody was not let in, or not there.
    pub fn denied(who: Option<&Principal>, method: &str, path: &str, status: u16) -> Draft {
        let subject = who.map_or_else(|| "nobody".to_string(), |who| who.name.to_string());
        let target = format!("{method} {}", word(path));
        Draft { kind: "auth".into(), subject, target, data: json!({ "status": status }) }
    }

    /// May it be done although it cannot be written down? What takes something away always may.
    pub fn may_go_unwritten(&self) -> bool {
        TAKE_AWAY.contains(&&*self.kind)
    }
}

const TAKE_AWAY: [&str; 7] = [
    "server.stop",
    "server.delete",
    "token.revoke",
    "project.delete",
    "project.disconnect",
    "project.unload",
    "secret.delete",
];

/// The line of a daemon that is to go on as another program.
pub fn upgrade(who: &Principal, program: Option<&str>) -> Vec<Draft> {
    let data = json!({ "binary": program.map(word) });
    vec![Draft { kind: "daemon.upgrade".into(), subject: who.name.to_string(), target: String::new(), data }]
}

/// The lines that an ask leaves; `calls`: those of tools too.
pub fn drafts(who: &Principal, ask: &Ask<'_>, calls: bool) -> Vec<Draft> {
    let draft = |kind: &'static str, target: String, data: Value| {
        vec![Draft { kind: kind.into(), subject: who.name.to_string(), target, data }]
    };
    match ask {
        Ask::Register { definition, .. } => draft("server.register", definition.name.clone(), registration(definition)),
        Ask::Patch { server, change } => draft("server.update", named(server), json!({ "fields": fields(change) })),
        Ask::Restart { server } => draft("server.restart", named(server), json!({})),
        Ask::Stop { server } => draft("server.stop", named(server), json!({})),
        Ask::Start { server } => draft("server.start", named(server), json!({})),
        Ask::Delete { server, volumes } => draft("server.delete", named(server), json!({ "volumes": volumes })),
        Ask::TokenCreate { wanted } => {
            let data = json!({ "scopes": wanted.scopes, "servers": wanted.servers, "expires_in_ms": wanted.lifetime_ms,
                "rate_limit": wanted.rate_limit });
            draft("token.create", wanted.name.clone(), data)
        }
        Ask::TokenRotate { name, grace_ms } => {
            draft("token.rotate", word(name).to_string(), json!({ "grace_ms": grace_ms }))
        }
        Ask::TokenRevoke { name } => draft("token.revoke", word(name).to_string(), json!({})),
        Ask::KeyRotate => draft("secret.rotate", String::new(), json!({})),
        Ask::Call { server, method, params, .. } if calls && method.text().as_deref() == Some("tools/call") => {
            draft("tool.call", named(server), json!({ "tool": tool(*params) }))
        }
        Ask::Mcp { server, ask } if calls => {
            let target = server.as_ref().map_or_else(|| "*".to_string(), named);
            let tools = called(ask).into_iter();
            tools.flat_map(|tool| draft("tool.call", target.clone(), json!({ "tool": tool }))).collect()
        }
        Ask::Project { project, ask } => {
            let lines = of_project(ask, calls).into_iter();
            let target = |of: String| if of.is_empty() { project.to_string() } else { format!("{project}/{of}") };
            lines.flat_map(|(kind, of, data)| draft(kind, target(of), data)).collect()
        }
        Ask::Import { dry_run: false, project, candidates } => {
            candidates.iter().flat_map(|candidate| imported(who, project.as_ref(), candidate)).collect()
        }
        Ask::Import { dry_run: true, .. }
        | Ask::List { .. }
        | Ask::Get { .. }
        | Ask::Definition { .. }
        | Ask::Call { .. }
        | Ask::Logs { .. }
        | Ask::News
        | Ask::Metrics
        | Ask::Samples { .. }
        | Ask::Tools { .. }
        | Ask::Mcp { .. }
        | Ask::Ready
        | Ask::TokenList
        | Ask::Projects => Vec::new(),
    }
}

fn registration(definition: &Definition) -> Value {
    let image = match &definition.source {
        Source::Image(name) => json!(word(name)),
        Source::HostRootfs => Value::Null,
    };
    let environment: Vec<&String> = definition.environment.keys().collect();
    json!({ "image": image, "provider": definition.provider, "network": definition.network, "environment": environment })
}

/// As if each entry that is there to be registered had been sent alone.
fn imported(who: &Principal, project: Option<&ProjectId>, candidate: &Candidate) -> Option<Draft> {
    let subject = who.name.to_string();
    match &candidate.read {
        _disabled if candidate.entry.disabled => None,
        Read::Hosted(definition) => {
            let data = registration(definition);
            Some(Draft { kind: "server.register".into(), subject, target: definition.name.clone(), data })
        }
        Read::External(spec) => {
            let data = json!({ "transport": spec.target.transport() });
            Some(Draft {
                kind: "project.register".into(),
                subject,
                target: format!("{}/{}", project?, spec.name),
                data,
            })
        }
    }
}

/// Of an import, those lines stay that are about what it has made.
pub fn keep_what_was_done(drafts: &mut Vec<Draft>, answer: &Answer) {
    let Answer::Imported { entries, .. } = answer else { return };
    let is_made = |draft: &Draft| {
        let name = draft.target.rsplit('/').next().unwrap_or_default();
        entries.iter().any(|one| one.entry.name == name && one.action == ImportAction::Create)
    };
    drafts.retain(is_made);
}

/// The kind of each line that an ask of a project leaves, what of the project it is about, and what is said of it.
fn of_project(ask: &ProjectAsk<'_>, calls: bool) -> Vec<(&'static str, String, Value)> {
    let about = |kind, server: &ExternalRef, data| vec![(kind, external(server), data)];
    match ask {
        ProjectAsk::Create { spec } => {
            vec![("project.register", spec.name.clone(), json!({ "transport": spec.target.transport() }))]
        }
        ProjectAsk::Patch { server, change } => about("project.update", server, json!({ "fields": fields(change) })),
        ProjectAsk::Delete { server } => about("project.delete", server, json!({})),
        ProjectAsk::Connect { server } => about("project.connect", server, json!({})),
        ProjectAsk::Disconnect { server } => about("project.disconnect", server, json!({})),
        ProjectAsk::Unload => vec![("project.unload", String::new(), json!({}))],
        ProjectAsk::Manifest { product, servers } => {
            let names: Vec<&String> = servers.iter().map(|spec| &spec.name).collect();
            vec![("project.manifest", word(product).to_string(), json!({ "servers": names }))]
        }
        ProjectAsk::SecretPut { name, value: _ } => vec![("secret.put", word(name).to_string(), json!({}))],
        ProjectAsk::SecretDelete { name } => vec![("secret.delete", word(name).to_string(), json!({}))],
        ProjectAsk::CallTool(call) if calls => {
            let server = call.server.as_deref().map_or("*", word).to_string();
            vec![("tool.call", server, json!({ "tool": word(&call.tool) }))]
        }
        ProjectAsk::Mcp(ask) if calls => {
            called(ask).into_iter().map(|tool| ("tool.call", "*".to_string(), json!({ "tool": tool }))).collect()
        }
        ProjectAsk::Servers
        | ProjectAsk::Server { .. }
        | ProjectAsk::Secrets
        | ProjectAsk::Tools
        | ProjectAsk::CallTool(_)
        | ProjectAsk::Calls(_)
        | ProjectAsk::Mcp(_) => Vec::new(),
    }
}

/// How often an ask counts for somebody's rate: calls and lists do, whatever else is said does not.
pub fn asks(ask: &Ask<'_>) -> u32 {
    match ask {
        Ask::Call { .. } => 1,
        Ask::Mcp { ask, .. } => requests(ask),
        Ask::Project { ask, .. } => match ask {
            // Both may reach servers.
            ProjectAsk::CallTool(_) | ProjectAsk::Tools => 1,
            ProjectAsk::Mcp(ask) => requests(ask),
            ProjectAsk::Servers
            | ProjectAsk::Server { .. }
            | ProjectAsk::Create { .. }
            | ProjectAsk::Patch { .. }
            | ProjectAsk::Delete { .. }
            | ProjectAsk::Connect { .. }
            | ProjectAsk::Disconnect { .. }
            | ProjectAsk::Unload
            | ProjectAsk::SecretPut { .. }
            | ProjectAsk::SecretDelete { .. }
            | ProjectAsk::Secrets
            | ProjectAsk::Manifest { .. }
            | ProjectAsk::Calls(_) => 0,
        },
        Ask::Register { .. }
        | Ask::List { .. }
        | Ask::Get { .. }
        | Ask::Definition { .. }
        | Ask::Patch { .. }
        | Ask::Restart { .. }
        | Ask::Stop { .. }
        | Ask::Start { .. }
        | Ask::Delete { .. }
        | Ask::Logs { .. }
        | Ask::News
        | Ask::Metrics
        | Ask::Samples { .. }
        | Ask::Tools { .. }
        | Ask::Ready
        | Ask::TokenCreate { .. }
        | Ask::TokenList
        | Ask::TokenRotate { .. }
        | Ask::TokenRevoke { .. }
        | Ask::Import { .. }
        | Ask::KeyRotate
        | Ask::Projects => 0,
    }
}

fn requests(ask: &McpAsk<'_>) -> u32 {
    let count = |messages: &[Message<'_>]| {
        messages.iter().filter(|message| matches!(message, Message::Request { .. })).count() as u32
    };
    match ask {
        McpAsk::Post { messages, .. } => count(messages),
        McpAsk::OldPost { message, .. } => count(std::slice::from_ref(message)),
        McpAsk::Stateless { .. } => 1,
        McpAsk::Listen { .. } | McpAsk::End { .. } | McpAsk::OldStream { .. } => 0,
    }
}

/// What an MCP client asks, at whichever endpoint.
pub fn mcp<'r, 'a>(ask: &'r Ask<'a>) -> Option<&'r McpAsk<'a>> {
    match ask {
        Ask::Mcp { ask, .. } | Ask::Project { ask: ProjectAsk::Mcp(ask), .. } => Some(ask),
        _other => None,
    }
}

/// The id that a refusal of a whole ask is for, if it is one request.
pub fn request_id<'a>(ask: &McpAsk<'a>) -> Option<Json<'a>> {
    let of = |message: &Message<'a>| match message {
        Message::Request { id, .. } => Some(*id),
        Message::Reply { .. } | Message::Notification { .. } | Message::Stray => None,
    };
    match ask {
        McpAsk::Post { messages, batch: false, .. } => messages.first().and_then(of),
        McpAsk::OldPost { message, .. } => of(message),
        McpAsk::Stateless { request, .. } => Some(request.id),
        McpAsk::Post { .. } | McpAsk::Listen { .. } | McpAsk::End { .. } | McpAsk::OldStream { .. } => None,
    }
}

/// What came of it.
pub fn outcome(answer: &Answer) -> AuditOutcome {
    match answer {
        Answer::Refused(fault) => refused(fault),
        Answer::ServerError { .. } => AuditOutcome::Failed,
        Answer::Message { status, .. } if *status >= 400 => AuditOutcome::Failed,
        _done => AuditOutcome::Ok,
    }
}

pub fn refused(fault: &Fault) -> AuditOutcome {
    match fault.code {
        Code::Unauthorized | Code::Forbidden => AuditOutcome::Denied,
        _other => AuditOutcome::Failed,
    }
}

/// The tools that are called in one ask.
fn called(ask: &McpAsk<'_>) -> Vec<Value> {
    let of = |message: &Message<'_>| match message {
        Message::Request { method, params, .. } if method == "tools/call" => Some(tool(*params)),
        Message::Request { .. } | Message::Reply { .. } | Message::Notification { .. } | Message::Stray => None,
    };
    match ask {
        McpAsk::Post { messages, .. } => messages.iter().filter_map(of).collect(),
        McpAsk::OldPost { message, .. } => of(message).into_iter().collect(),
        McpAsk::Stateless { request, .. } if request.method == "tools/call" => vec![tool(Some(request.params))],
        McpAsk::Stateless { .. } | McpAsk::Listen { .. } | McpAsk::End { .. } | McpAsk::OldStream { .. } => Vec::new(),
    }
}

/// Its name; what it is given may be anything.
fn tool(params: Option<Json<'_>>) -> Value {
    let name = params.and_then(|params| params.member("name")).and_then(Json::text);
    name.map_or(Value::Null, |name| json!(word(&name)))
}

/// Which fields a change is about.
fn fields(change: &Change) -> Vec<&str> {
    change.fields.keys().map(|key| word(key)).take(AUDIT_FIELDS_MAX).collect()
}

fn external(server: &ExternalRef) -> String {
    match server {
        ExternalRef::Id(id) => id.to_string(),
        ExternalRef::Name(name) => word(name).to_string(),
    }
}

fn named(server: &ServerRef) -> String {
    match server {
        ServerRef::Id(id) => id.to_string(),
        ServerRef::Name(name) => name.clone(),
    }
}

/// A client's own words, cut to what is worth keeping.
fn word(text: &str) -> &str {
    let most = text.len().min(AUDIT_WORD_MAX);
    let end = (0..=most).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::request::{ResultFormat, TokenWanted, ToolCall};
    use crate::api::status::tests::definition;
    use crate::model::external::{ProjectId, Secret};

    #[test]
    fn a_change_leaves_a_line_with_names_and_no_values() {
        let mut definition = definition();
        definition.environment.insert("API_KEY".to_string(), "hunter2".to_string());
        definition.cmd = vec!["--password=hunter2".to_string()];
        definition.files.insert("/key".to_string(), "hunter2".to_string());
        let who = Principal::anonymous();
        let register = Ask::Register { definition: Box::new(definition), wait: true };
        let fields = serde_json::from_str(r#"{"environment":{"A":"hunter2"},"cmd":["hunter2"]}"#).unwrap();
        let patch = Ask::Patch { server: ServerRef::Name("a".into()), change: Box::new(Change { fields }) };
        for (ask, kind) in [(register, "server.register"), (patch, "server.update")] {
            let drafts = drafts(&who, &ask, false);
            assert_eq!(drafts.len(), 1);
            let line = drafts[0].clone().line(AuditOutcome::Ok, "127.0.0.1:1".to_string(), 0);
            let text = serde_json::to_string(&line).unwrap();
            assert!(text.contains(kind) && text.contains("\"outcome\":\"ok\"") && !text.contains("hunter2"), "{text}");
        }
        let wanted = TokenWanted { name: "ci".into(), scopes: vec!["mcp:call".into()], ..TokenWanted::default() };
        assert_eq!(drafts(&who, &Ask::TokenCreate { wanted }, false)[0].kind, "token.create");
        assert!(drafts(&who, &Ask::TokenList, true).is_empty());
    }

    #[test]
    fn what_is_done_in_a_project_is_written_down_with_names_and_no_values() {
        let project = ProjectId::new("acme").unwrap();
        let who = Principal::anonymous();
        let server = || ExternalRef::Name("notes".into());
        let secret = || Secret::new("hunter2");
        let fields = serde_json::from_str(r#"{"headers":{"authorization":"hunter2"}}"#).unwrap();
        let call = ToolCall {
            tool: "echo".into(),
            arguments: Some(Json::of(r#"{"text":"hunter2"}"#).unwrap()),
            server: None,
            timeout_ms: None,
            format: ResultFormat::Json,
            run_id: None,
        };
        for (ask, kind, target, counts) in [
            (ProjectAsk::SecretPut { name: "KEY".into(), value: secret() }, "secret.put", "acme/KEY", 0),
            (ProjectAsk::SecretDelete { name: "KEY".into() }, "secret.delete", "acme/KEY", 0),
            (
                ProjectAsk::Patch { server: server(), change: Box::new(Change { fields }) },
                "project.update",
                "acme/notes",
                0,
            ),
            (ProjectAsk::Delete { server: server() }, "project.delete", "acme/notes", 0),
            (ProjectAsk::Unload, "project.unload", "acme", 0),
            (ProjectAsk::CallTool(Box::new(call)), "tool.call", "acme/*", 1),
        ] {
            let ask = Ask::Project { project: project.clone(), ask };
            let lines = drafts(&who, &ask, true);
            assert_eq!((lines.len(), &*lines[0].kind, lines[0].target.as_str()), (1, kind, target));
            assert!(!format!("{lines:?}").contains("hunter2"), "{lines:?}");
            assert_eq!(asks(&ask), counts, "{kind}");
        }
        let tools = Ask::Project { project, ask: ProjectAsk::Tools };
        assert!(drafts(&who, &tools, true).is_empty() && asks(&tools) == 1);
    }

    #[test]
    fn calls_are_written_down_only_where_that_is_wanted() {
        let params = Json::of(r#"{"name":"echo","arguments":{"text":"hunter2"}}"#).unwrap();
        let method = Json::of(r#""tools/call""#).unwrap();
        let server = || ServerRef::Name("a".into());
        let call = Ask::Call { server: server(), method, params: Some(params), timeout_ms: None };
        let who = Principal::anonymous();
        assert!(drafts(&who, &call, false).is_empty());
        let line = &drafts(&who, &call, true)[0];
        assert_eq!((&*line.kind, line.target.as_str(), &line.data), ("tool.call", "a", &json!({"tool": "echo"})));
        let list = Ask::Call {
            server: server(),
            method: Json::of(r#""tools/list""#).unwrap(),
            params: None,
            timeout_ms: None,
        };
        assert!(drafts(&who, &list, true).is_empty());
        assert_eq!(
            (asks(&call), asks(&list), asks(&Ask::TokenList), asks(&Ask::Get { server: server() })),
            (1, 1, 0, 0)
        );
    }

    #[test]
    fn an_outcome_is_one_of_three_words_and_long_words_are_cut() {
        assert_eq!(outcome(&Answer::Deleted), AuditOutcome::Ok);
        assert_eq!(outcome(&Answer::Refused(Fault::new(Code::Forbidden, "no"))), AuditOutcome::Denied);
        assert_eq!(outcome(&Answer::Refused(Fault::new(Code::NotFound, "no"))), AuditOutcome::Failed);
        let denied = Draft::denied(None, "GET", &"é".repeat(1000), 401);
        assert!(denied.target.len() <= AUDIT_WORD_MAX + 4 && denied.subject == "nobody");
        assert!(!denied.may_go_unwritten());
    }
}
