//! The tools of a project: those of all its servers in one list, and calls of one by its name. A server that was never
//! connected is connected for that; whoever asks waits until it is known of every server whether it can be used, and no longer
//! than the slowest may take to come up. Invariant: each client that waits here is parked, and gets one answer.

use crate::api::request::{ResultFormat, ToolCall};
use crate::api::response::Answer;
use crate::core::Core;
use crate::core::clients::parked::WaitOn;
use crate::core::contract::Output;
use crate::core::mcp::aggregate::Patience;
use crate::core::peers::calls::Caller;
use crate::core::projects::records::{CallDraft, CallEnd};
use crate::ids::{CallId, ConnId, IdMap, ServerId};
use crate::model::external::{CallOutcome, ExternalId, ExternalServer, ProjectId};
use crate::model::fault::{Code, Fault, Outcome};
use crate::model::principal::Principal;
use crate::wire::json::{Json, JsonBuf};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::sync::Arc;

mod choice;

/// Calls under way, with what is recorded of them.
pub(in crate::core) type ToolCalls = IdMap<CallId, UnderWay>;

#[derive(Serialize, Deserialize)]
pub(in crate::core) struct UnderWay {
    server: ServerId,
    format: ResultFormat,
    draft: CallDraft,
}

/// What a client waits for.
#[derive(Serialize, Deserialize)]
pub(in crate::core) struct ToolWait {
    pub project: ProjectId,
    want: Want,
}

#[derive(Serialize, Deserialize)]
enum Want {
    Tools,
    Call(Box<KeptCall>),
    /// One link to be up, or to show that it will not be.
    Link(ExternalId),
}

/// A call kept beyond its HTTP request.
#[derive(Serialize, Deserialize)]
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
        match self.offers().tool_server(project, &kept, Patience::Left) {
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
        for server in self.offers().needed(&wait) {
            self.begin_link(server);
        }
        // Those that are up already delay nobody.
        let open = self
            .offers()
            .open(&wait)
            .into_iter()
            .map(|server| self.servers.known[&server].definition.startup_timeout_ms);
        let until_ms = self.effects.now.mono_ms + open.max().unwrap_or(0);
        let deadline_ms = match &wait.want {
            Want::Call(call) => call.deadline_ms,
            Want::Tools | Want::Link(_) => None,
        };
        self.park(conn, WaitOn::Project, deadline_ms.map_or(until_ms, |deadline_ms| until_ms.min(deadline_ms)));
        self.projects.waits.insert(conn, wait);
        self.follow_wait(conn);
    }

    pub(in crate::core) fn follow_wait(&mut self, conn: ConnId) {
        if self.projects.waits.get(&conn).is_some_and(|wait| self.offers().open(wait).is_empty()) {
            self.end_wait(conn);
        }
    }

    /// Everything is known that will be, or the time is over.
    pub(in crate::core) fn end_wait(&mut self, conn: ConnId) {
        let Some(wait) = self.projects.waits.remove(&conn) else { return };
        match wait.want {
            Want::Tools => {
                let answer = self.offers().tools_answer(&wait.project);
                self.answer(conn, answer);
            }
            Want::Link(id) => {
                let answer = self.offers().link_answer(id);
                self.answer(conn, answer);
            }
            Want::Call(call) => {
                self.clients.release_wait(conn, &mut self.effects);
                let sent = match self.offers().tool_server(&wait.project, &call, Patience::Over) {
                    Ok(found) => self.call_tool(conn, found.expect("the last look finds one or says why not"), *call),
                    Err(fault) => {
                        self.record_call(call.draft, None, CallEnd::Fault(&fault));
                        Err(fault)
                    }
                };
                if let Err(fault) = sent {
                    let answer = Answer::Refused(fault.outcome(Outcome::NotSent));
                    self.effects.outputs.push_back(Output::Answer { conn, answer });
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
        let outcome = self.peers.calls.outcome_of_leaving(call);
        if let Some(under_way) = self.projects.calls.remove(&call) {
            self.record_call(under_way.draft, Some(under_way.server), CallEnd::Left(outcome));
        }
    }

    // --- one tool ---------------------------------------------------------------------------------------------------

    fn call_tool(&mut self, conn: ConnId, server: ServerId, call: KeptCall) -> Result<(), Fault> {
        match self.send_tool_call(conn, server, &call) {
            Ok(id) => {
                self.clients.park(conn, WaitOn::Reply(id));
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
        self.peers.send_call(
            Caller::Tool(conn),
            &call.owner,
            peer,
            method.as_json(),
            Some(params.as_json()),
            left_ms,
            &mut self.effects,
        )
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
