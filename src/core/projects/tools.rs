//! The tools of a project: those of all its servers in one list, and calls of one by its name. A server that was never
//! connected is connected for that; whoever asks waits until it is known of every server whether it can be used, and no longer
//! than the slowest may take to come up. Invariant: each client that waits here is parked, and gets one answer.

use crate::api::request::{ResultFormat, ToolCall};
use crate::api::response::{Answer, ProjectTool, UnavailableServer};
use crate::core::Core;
use crate::core::clients::parked::WaitOn;
use crate::core::mcp::aggregate::Patience;
use crate::core::peers::calls::Caller;
use crate::core::peers::life::Life;
use crate::core::peers::listings::Listing;
use crate::core::projects::records::{CallDraft, CallEnd};
use crate::core::projects::server_of;
use crate::core::servers::server::{Origin, Server};
use crate::ids::{CallId, ConnId, IdMap, ServerId, Uuid};
use crate::limits::LIST_ITEMS_MAX;
use crate::model::external::{CallOutcome, ExternalId, ExternalServer, ProjectId};
use crate::model::fault::{Code, Fault, Outcome};
use crate::model::principal::Principal;
use crate::model::status::Status;
use crate::wire::backlog::Shared;
use crate::wire::json::{self, Json, JsonBuf};
use serde_json::json;
use std::sync::Arc;

/// Calls under way, with what is recorded of them.
pub(in crate::core) type ToolCalls = IdMap<CallId, UnderWay>;

pub(in crate::core) struct UnderWay {
    server: ServerId,
    format: ResultFormat,
    draft: CallDraft,
}

/// What a client waits for.
pub(in crate::core) struct ToolWait {
    pub project: ProjectId,
    want: Want,
}

enum Want {
    Tools,
    Call(Box<KeptCall>),
    /// One link to be up, or to show that it will not be.
    Link(ExternalId),
}

/// A call kept beyond its HTTP request.
struct KeptCall {
    owner: Principal,
    tool: String,
    server: Option<String>,
    arguments: Option<JsonBuf>,
    /// By then it is to be answered, if the client has said so.
    deadline_ms: Option<u64>,
    format: ResultFormat,
    draft: CallDraft,
}

impl Core {
    pub(in crate::core) fn project_tools(
        &mut self,
        conn: ConnId,
        project: &ProjectId,
    ) -> Result<Option<Answer>, Fault> {
        self.wait_for_project(conn, ToolWait { project: project.clone(), want: Want::Tools });
        Ok(None)
    }

    pub(in crate::core) fn project_call(
        &mut self,
        conn: ConnId,
        who: &Principal,
        project: &ProjectId,
        call: ToolCall<'_>,
    ) -> Result<Option<Answer>, Fault> {
        let arguments = call.arguments.map(Json::get);
        let draft = self.draft_call(project, &who.name, &call.tool, arguments, call.run_id);
        let kept = KeptCall {
            owner: who.clone(),
            tool: call.tool,
            server: call.server,
            arguments: call.arguments.map(|raw| raw.kept()),
            deadline_ms: call.timeout_ms.map(|ms| self.effects.now.mono_ms.saturating_add(ms)),
            format: call.format,
            draft,
        };
        // Where the server is named, or its tool is known already, nobody else is waited for.
        match self.tool_server(project, &kept, Patience::Left) {
            Ok(Some(found)) if !self.begin_link(found) => return self.call_tool(conn, found, kept).map(|()| None),
            Ok(_) => {}
            Err(fault) => {
                self.record_call(kept.draft, None, CallEnd::Fault(&fault));
                return Err(fault);
            }
        }
        self.wait_for_project(conn, ToolWait { project: project.clone(), want: Want::Call(Box::new(kept)) });
        Ok(None)
    }

    pub(in crate::core) fn connect_row(
        &mut self,
        conn: ConnId,
        row: &Arc<ExternalServer>,
    ) -> Result<Option<Answer>, Fault> {
        self.wait_for_project(conn, ToolWait { project: row.project.clone(), want: Want::Link(row.id) });
        Ok(None)
    }

    /// Connects whom the client needs, and parks it until it is known what came of that.
    fn wait_for_project(&mut self, conn: ConnId, wait: ToolWait) {
        for server in self.needed(&wait) {
            self.begin_link(server);
        }
        // Those that are up already delay nobody.
        let open = self.open(&wait).into_iter().map(|server| self.servers.known[&server].definition.startup_timeout_ms);
        let until_ms = self.effects.now.mono_ms + open.max().unwrap_or(0);
        let deadline_ms = match &wait.want {
            Want::Call(call) => call.deadline_ms,
            Want::Tools | Want::Link(_) => None,
        };
        self.park(conn, WaitOn::Project, deadline_ms.map_or(until_ms, |deadline_ms| until_ms.min(deadline_ms)));
        self.projects.waits.insert(conn, wait);
        self.follow_wait(conn);
    }

    /// Whose links are made for it.
    fn needed(&self, wait: &ToolWait) -> Vec<ServerId> {
        match &wait.want {
            Want::Tools => self.members(&wait.project).iter().map(|server| server.id).collect(),
            Want::Link(id) => vec![server_of(*id)],
            Want::Call(call) => match self.tool_server(&wait.project, call, Patience::Left) {
                Ok(Some(server)) => vec![server],
                Ok(None) => self.untold(&wait.project, &call.tool),
                Err(_) => Vec::new(),
            },
        }
    }

    /// Of those, whoever is not there yet but may be in a moment.
    fn open(&self, wait: &ToolWait) -> Vec<ServerId> {
        let mut needed = self.needed(wait);
        needed.retain(|id| match &wait.want {
            Want::Call(call) if call.server.is_some() => self.is_coming(*id),
            Want::Tools | Want::Call(_) | Want::Link(_) => {
                self.servers.known.get(id).is_some_and(|server| self.is_awaited(server, Listing::Tools))
            }
        });
        needed
    }

    pub(in crate::core) fn follow_wait(&mut self, conn: ConnId) {
        if self.projects.waits.get(&conn).is_some_and(|wait| self.open(wait).is_empty()) {
            self.end_wait(conn);
        }
    }

    /// Everything is known that will be, or the time is over.
    pub(in crate::core) fn end_wait(&mut self, conn: ConnId) {
        let Some(wait) = self.projects.waits.remove(&conn) else { return };
        match wait.want {
            Want::Tools => {
                let answer = self.tools_answer(&wait.project);
                self.answer(conn, answer);
            }
            Want::Link(id) => {
                let answer = self.link_answer(id);
                self.answer(conn, answer);
            }
            Want::Call(call) => {
                self.release_wait(conn);
                let sent = match self.tool_server(&wait.project, &call, Patience::Over) {
                    Ok(found) => self.call_tool(conn, found.expect("the last look finds one or says why not"), *call),
                    Err(fault) => {
                        self.record_call(call.draft, None, CallEnd::Fault(&fault));
                        Err(fault)
                    }
                };
                if let Err(fault) = sent {
                    self.refuse_at_once(conn, fault.outcome(Outcome::NotSent));
                }
            }
        }
    }

    /// Its client has left.
    pub(in crate::core) fn drop_wait(&mut self, conn: ConnId) {
        if let Some(ToolWait { want: Want::Call(call), .. }) = self.projects.waits.remove(&conn) {
            self.record_call(call.draft, None, CallEnd::Left(CallOutcome::NotSent));
        }
    }

    /// The same while its call is under way.
    pub(in crate::core) fn drop_tool_call(&mut self, call: CallId) {
        let outcome = self.outcome_of_leaving(call);
        if let Some(under_way) = self.projects.calls.remove(&call) {
            self.record_call(under_way.draft, Some(under_way.server), CallEnd::Left(outcome));
        }
    }

    fn link_answer(&self, id: ExternalId) -> Answer {
        let Some(row) = self.projects.rows.get(&id) else {
            return Answer::Refused(Fault::new(Code::NotFound, "the server was removed meanwhile"));
        };
        let (_, main) = self.with_main(server_of(id)).expect("every row has a server");
        match main.admits(u64::MAX, self.effects.now) {
            Ok(()) => Answer::External(Box::new(self.external_view(row))),
            Err(fault) => Answer::Refused(fault),
        }
    }

    fn tools_answer(&self, project: &ProjectId) -> Answer {
        let (mut tools, mut unavailable) = (Vec::new(), Vec::new());
        // A server without a bridge has no tools to be known.
        for server in self.members(project).into_iter().filter(|server| server.definition.stdio_bridge) {
            let main = &self.peers.known[&server.main];
            let name = &server.definition.name;
            let admits = main.admits(self.effects.now.mono_ms + main.definition.request_timeout_ms, self.effects.now);
            let up = main.life.ready_instance().is_some();
            // A hosted server that is coming back has what it had: calls wait for it.
            let offered = match main.life {
                Life::External(_) => up,
                Life::Hosted(_) => admits.is_ok(),
            };
            match main.list(Listing::Tools).text.as_ref().filter(|_| offered) {
                Some(text) => {
                    let server: Arc<str> = name.as_str().into();
                    let items = json::named_items(text, "tools", "name", LIST_ITEMS_MAX).unwrap_or_default();
                    tools.extend(items.iter().map(|item| ProjectTool {
                        server: Arc::clone(&server),
                        tool: Shared { bytes: item.whole.get().as_bytes().into(), from: 0 },
                    }));
                }
                // It answers, and has none.
                None if up && !self.is_awaited(server, Listing::Tools) => {}
                None => {
                    let why = admits.err().unwrap_or_else(|| {
                        Fault::new(Code::UpstreamUnavailable, format!("{name} has not come up in time"))
                    });
                    unavailable.push(UnavailableServer { server: name.clone(), why });
                }
            }
        }
        Answer::ProjectTools { tools, unavailable }
    }

    // --- one tool ---------------------------------------------------------------------------------------------------

    /// The server that has the tool; none: somebody who has not told yet may have it. Once there is no patience left there is
    /// one, or a reason why not.
    fn tool_server(&self, project: &ProjectId, call: &KeptCall, patience: Patience) -> Result<Option<ServerId>, Fault> {
        if let Some(named) = &call.server {
            let missing = || Fault::new(Code::NotFound, format!("project {project} has no server {named}"));
            return self.member_named(project, named).map(Some).ok_or_else(missing);
        }
        if patience == Patience::Left && !self.untold(project, &call.tool).is_empty() {
            return Ok(None);
        }
        match self.having(project, &call.tool).as_slice() {
            [server] => Ok(Some(server.id)),
            [] => Err(self.without_tool(project, &call.tool)),
            several => {
                let names: Vec<String> = several.iter().map(|server| server.definition.name.clone()).collect();
                let message = format!(
                    "{} servers have the tool {}: {}; say which by `server`",
                    names.len(),
                    call.tool,
                    names.join(", ")
                );
                Err(Fault::new(Code::AmbiguousTool, message).with("servers", names))
            }
        }
    }

    /// Nobody is known to have the tool. As long as a server cannot be asked it may be that one's, and its trouble is the answer.
    fn without_tool(&self, project: &ProjectId, tool: &str) -> Fault {
        let untold = self.members(project).into_iter();
        let untold: Vec<&Server> =
            untold.filter(|server| server.definition.stdio_bridge && self.tools_of(server).is_none()).collect();
        let trouble = untold.iter().find_map(|server| {
            let main = &self.peers.known[&server.main];
            main.admits(self.effects.now.mono_ms + main.definition.request_timeout_ms, self.effects.now).err()
        });
        let names: Vec<String> = untold.iter().map(|server| server.definition.name.clone()).collect();
        let missing = || {
            let message = format!("no server of project {project} has the tool {tool}");
            Fault::new(Code::ToolNotFound, message)
        };
        trouble.unwrap_or_else(missing).with("unavailable", names)
    }

    /// By name or id, also one that is stopped or disabled: the call says so.
    fn member_named(&self, project: &ProjectId, named: &str) -> Option<ServerId> {
        let is_it = |row: &&Arc<ExternalServer>| row.spec.name == *named || row.id.to_string() == *named;
        if let Some(row) = self.projects.of(project).find(is_it) {
            return Some(server_of(row.id));
        }
        let by_id = Uuid::try_parse(named).ok().map(ServerId);
        let hosted = by_id.or_else(|| self.servers.names.get(named).copied())?;
        let server = self.servers.known.get(&hosted).filter(|server| server.removing.is_none())?;
        let belongs = server.origin == Origin::Registered && server.definition.project.as_ref() == Some(project);
        belongs.then_some(hosted)
    }

    fn tools_of(&self, server: &Server) -> Option<&Arc<[u8]>> {
        self.peers.known[&server.main].list(Listing::Tools).text.as_ref()
    }

    fn having(&self, project: &ProjectId, tool: &str) -> Vec<&Server> {
        let has_it = |server: &&Server| self.peers.known[&server.main].tool_names.contains(tool);
        self.members(project).into_iter().filter(has_it).collect()
    }

    /// Those that may have the tool, but have not told theirs: to be connected, or on their way up. One that was given up is
    /// tried again only if nobody else is known to have it.
    fn untold(&self, project: &ProjectId, tool: &str) -> Vec<ServerId> {
        let is_given_up = |server: &Server| self.peers.known[&server.main].life.status() == Status::Failed;
        let may_come = |server: &Server| {
            let begins = self.peers.known[&server.main].life.begins_with_use();
            self.tools_of(server).is_none() && (begins || self.is_awaited(server, Listing::Tools))
        };
        let members = self.members(project);
        let untold: Vec<&Server> = members.into_iter().filter(|server| may_come(server)).collect();
        let fresh: Vec<ServerId> =
            untold.iter().filter(|server| !is_given_up(server)).map(|server| server.id).collect();
        match fresh.is_empty() && self.having(project, tool).is_empty() {
            true => untold.into_iter().map(|server| server.id).collect(),
            false => fresh,
        }
    }

    fn call_tool(&mut self, conn: ConnId, server: ServerId, call: KeptCall) -> Result<(), Fault> {
        match self.send_tool_call(conn, server, &call) {
            Ok(id) => {
                self.clients.parked.park(conn, WaitOn::Reply(id));
                let under_way = UnderWay { server, format: call.format, draft: call.draft };
                self.projects.calls.insert(id, under_way);
                Ok(())
            }
            Err(fault) => {
                self.record_call(call.draft, Some(server), CallEnd::Fault(&fault));
                Err(fault)
            }
        }
    }

    fn send_tool_call(&mut self, conn: ConnId, server: ServerId, call: &KeptCall) -> Result<CallId, Fault> {
        let now_ms = self.effects.now.mono_ms;
        let left_ms = call.deadline_ms.map(|deadline_ms| deadline_ms.saturating_sub(now_ms));
        if left_ms == Some(0) {
            return Err(Fault::new(Code::CallTimeout, "the deadline passed before the call could be sent"));
        }
        let peer = self.servers.known[&server].main;
        let arguments = call.arguments.as_ref().map_or("{}", |raw| raw.get());
        let params = format!(r#"{{"name":{},"arguments":{arguments}}}"#, json!(call.tool));
        let params =
            JsonBuf::of(params).map_err(|_| Fault::new(Code::InvalidRequest, "arguments: expected an object"))?;
        let method = JsonBuf::of(r#""tools/call""#.to_string()).expect("it is JSON");
        self.send_call(Caller::Tool(conn), &call.owner, peer, method.as_json(), Some(params.as_json()), left_ms)
    }

    pub(in crate::core) fn tool_answered(&mut self, conn: ConnId, call: CallId, answer: Answer) {
        let Some(UnderWay { server, format, draft }) = self.projects.calls.remove(&call) else { return };
        self.record_call(draft, Some(server), CallEnd::of_answer(&answer));
        let answer = match answer {
            Answer::Result(result) => Answer::ToolResult { result, format },
            other => other,
        };
        self.answer(conn, answer);
    }
}
