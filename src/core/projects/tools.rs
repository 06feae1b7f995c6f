//! The tools of a project: those of all its servers in one list, and calls of one by its name. A server that was never
//! connected is connected for that; whoever asks waits until it is known of every server whether it can be used, and no longer
//! than the slowest may take to come up. Invariant: each client that waits here is parked, and gets one answer.

use crate::api::request::{ResultFormat, ToolCall};
use crate::api::response::{Answer, ProjectTool, UnavailableServer};
use crate::core::Core;
use crate::core::clients::parked::WaitOn;
use crate::core::hosting::lifecycle::Event;
use crate::core::links::external::LinkEvent;
use crate::core::peers::calls::Caller;
use crate::core::peers::listings::Listing;
use crate::core::peers::peer::Peer;
use crate::core::projects::rows::tool_names;
use crate::core::projects::server_of;
use crate::ids::{CallId, ConnId, IdMap, PeerId, ServerId};
use crate::limits::LIST_ITEMS_MAX;
use crate::model::external::{ExternalId, ExternalServer, ProjectId};
use crate::model::fault::{Code, Fault, Outcome};
use crate::model::principal::Principal;
use crate::wire::backlog::Shared;
use crate::wire::json::{self, JsonBuf};
use serde_json::json;
use std::sync::Arc;

/// How the results of calls under way are wanted.
pub(in crate::core) type ToolCalls = IdMap<CallId, ResultFormat>;

/// What a client waits for.
pub(in crate::core) struct ToolWait {
    project: ProjectId,
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
    timeout_ms: Option<u64>,
    format: ResultFormat,
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
        let kept = KeptCall {
            owner: who.clone(),
            tool: call.tool,
            server: call.server,
            arguments: call.arguments.map(|raw| raw.kept()),
            timeout_ms: call.timeout_ms,
            format: call.format,
        };
        // Where the server is named, or its tool is known already, nobody else is waited for.
        if let Some(found) = self.tool_server(project, &kept, false)? {
            return self.call_tool(conn, found, &kept).map(|()| None);
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
        let needed: Vec<Arc<ExternalServer>> = self.needed(&wait).cloned().collect();
        let longest_ms = needed.iter().map(|row| row.spec.startup_timeout_ms).max().unwrap_or(0);
        self.park(conn, WaitOn::Project, self.effects.now.mono_ms + longest_ms);
        self.projects.waits.insert(conn, wait);
        for row in needed {
            let main = self.servers.known[&server_of(row.id)].main;
            if self.peers.known[&main].life.begins_with_use() {
                self.advance(main, Event::Link(LinkEvent::Use));
            }
        }
        self.follow_wait(conn);
    }

    fn needed<'p>(&'p self, wait: &'p ToolWait) -> impl Iterator<Item = &'p Arc<ExternalServer>> {
        let is_needed = |row: &&Arc<ExternalServer>| match &wait.want {
            Want::Tools | Want::Call(_) => row.spec.enabled,
            Want::Link(id) => row.id == *id,
        };
        self.projects.of(&wait.project).filter(is_needed)
    }

    /// A server of a project has moved: those who wait for it may have waited long enough.
    pub(in crate::core) fn follow_project(&mut self, server: ServerId) {
        if self.projects.waits.is_empty() {
            return;
        }
        let Some(row) = self.projects.rows.get(&ExternalId(server.0)) else { return };
        let of_it = |(conn, wait): (&ConnId, &ToolWait)| (wait.project == row.project).then_some(*conn);
        for conn in self.projects.waits.iter().filter_map(of_it).collect::<Vec<_>>() {
            self.follow_wait(conn);
        }
    }

    fn follow_wait(&mut self, conn: ConnId) {
        let Some(wait) = self.projects.waits.get(&conn) else { return };
        let is_open = |row: &Arc<ExternalServer>| {
            let (_, main) = self.with_main(server_of(row.id)).expect("every row has a server");
            main.admits(u64::MAX, self.effects.now).is_ok() && !self.tools_are_known(main)
        };
        if !self.needed(wait).any(is_open) {
            self.end_wait(conn);
        }
    }

    /// It is up, and has told its tools or will not.
    fn tools_are_known(&self, main: &Peer) -> bool {
        let list = main.list(Listing::Tools);
        main.life.ready_instance().is_some() && !list.is_asked()
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
                let found = self.tool_server(&wait.project, &call, true);
                let sent = found.and_then(|found| {
                    let found = found.expect("the last look finds one or says why not");
                    self.call_tool(conn, found, &call)
                });
                if let Err(fault) = sent {
                    self.refuse_at_once(conn, fault.outcome(Outcome::NotSent));
                }
            }
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
        for row in self.projects.of(project).filter(|row| row.spec.enabled) {
            let (_, main) = self.with_main(server_of(row.id)).expect("every row has a server");
            let up = main.life.ready_instance().is_some();
            match main.list(Listing::Tools).text.as_ref().filter(|_| up) {
                Some(text) => {
                    let server: Arc<str> = row.spec.name.as_str().into();
                    let items = json::named_items(text, "tools", "name", LIST_ITEMS_MAX).unwrap_or_default();
                    tools.extend(items.iter().map(|item| ProjectTool {
                        server: Arc::clone(&server),
                        tool: Shared { bytes: item.whole.get().as_bytes().into(), from: 0 },
                    }));
                }
                // It answers, and has none.
                None if up && self.tools_are_known(main) => {}
                None => {
                    let why = main.admits(u64::MAX, self.effects.now).err().unwrap_or_else(|| {
                        let message = format!("{} has not come up in time", row.spec.name);
                        Fault::new(Code::UpstreamUnavailable, message)
                    });
                    unavailable.push(UnavailableServer { server: row.spec.name.clone(), why });
                }
            }
        }
        Answer::ProjectTools { tools, unavailable }
    }

    // --- one tool ---------------------------------------------------------------------------------------------------

    /// The peer that has the tool. `last`: nobody is waited for any more, so that there is one or a reason why not.
    fn tool_server(&self, project: &ProjectId, call: &KeptCall, last: bool) -> Result<Option<PeerId>, Fault> {
        if let Some(server) = &call.server {
            let is_it = |row: &&Arc<ExternalServer>| row.spec.name == *server || row.id.to_string() == *server;
            let Some(row) = self.projects.of(project).find(is_it) else {
                return Err(Fault::new(Code::NotFound, format!("project {project} has no server {server}")));
            };
            return Ok(Some(self.servers.known[&server_of(row.id)].main));
        }
        let (mut having, mut unknown) = (Vec::new(), Vec::new());
        for row in self.projects.of(project).filter(|row| row.spec.enabled) {
            let (_, main) = self.with_main(server_of(row.id)).expect("every row has a server");
            match &main.list(Listing::Tools).text {
                Some(text) if tool_names(text).contains(&call.tool) => having.push((row, main.id)),
                Some(_) => {}
                None => unknown.push(row.spec.name.clone()),
            }
        }
        match having.as_slice() {
            // Somebody who has not told yet may have it too.
            _ if !last && !unknown.is_empty() => Ok(None),
            [(_, main)] => Ok(Some(*main)),
            [] => {
                let message = format!("no server of project {project} has the tool {}", call.tool);
                Err(Fault::new(Code::ToolNotFound, message).with("unavailable", unknown))
            }
            [..] => {
                let names: Vec<String> = having.iter().map(|(row, _)| row.spec.name.clone()).collect();
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

    fn call_tool(&mut self, conn: ConnId, peer: PeerId, call: &KeptCall) -> Result<(), Fault> {
        let arguments = call.arguments.as_ref().map_or("{}", |raw| raw.get());
        let params = format!(r#"{{"name":{},"arguments":{arguments}}}"#, json!(call.tool));
        let params =
            JsonBuf::of(params).map_err(|_| Fault::new(Code::InvalidRequest, "arguments: expected an object"))?;
        let method = JsonBuf::of(r#""tools/call""#.to_string()).expect("it is JSON");
        let id = self.send_call(
            Caller::Tool(conn),
            &call.owner,
            peer,
            method.as_json(),
            Some(params.as_json()),
            call.timeout_ms,
        )?;
        self.clients.parked.park(conn, WaitOn::Reply(id));
        self.projects.calls.insert(id, call.format);
        Ok(())
    }

    pub(in crate::core) fn tool_answered(&mut self, conn: ConnId, call: CallId, answer: Answer) {
        let format = self.projects.calls.remove(&call).unwrap_or(ResultFormat::Json);
        let answer = match answer {
            Answer::Result(result) => Answer::ToolResult { result, format },
            other => other,
        };
        self.answer(conn, answer);
    }
}
