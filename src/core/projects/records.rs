//! What is recorded of each `tools/call` of a project, over REST and at its MCP endpoint: who called what, and what came of it.
//! A record is written behind the answer; `servers/call_records.rs` has those that wait for the store. Invariant: each call of a
//! project that names a tool gives one record, or is counted as dropped, and no call ever waits for one.

use crate::api::response::Answer;
use crate::api::tool_error::is_error;
use crate::core::Core;
use crate::core::contract::{Now, Output};
use crate::core::effects::Timer;
use crate::core::mcp::sessions::ForwardedRequest;
use crate::core::peers::calls::Stage;
use crate::core::servers::outbox::Pending;
use crate::ids::{CallId, ServerId};
use crate::limits::{RECORD_ARGUMENTS_MAX, RECORDS_BATCH, RECORDS_CLEAN_PAUSE, RECORDS_PAUSE, TOOL_NAME_MAX};
use crate::model::external::{CallOutcome, ProjectId, ToolCallRecord};
use crate::model::fault::{Code, Fault};
use crate::model::records::{StoreOp, StoreOutcome};
use crate::wire::json::Json;
use crate::wire::jsonrpc::Reply;
use std::sync::Arc;

/// What will be in the record of a call that is under way.
#[derive(Clone, Debug)]
pub struct CallDraft {
    project: ProjectId,
    server: Option<String>,
    tool: String,
    run_id: Option<String>,
    principal: Arc<str>,
    arguments: Option<String>,
    arguments_bytes: u64,
    began: Now,
}

/// How a call has ended.
pub(in crate::core) enum CallEnd<'a> {
    Result(&'a [u8]),
    /// The server's own error.
    Error {
        code: i64,
        bytes: usize,
    },
    Fault(&'a Fault),
    /// Its client has left, or has cancelled it.
    Left(CallOutcome),
}

impl<'a> CallEnd<'a> {
    pub fn of_reply(reply: &Reply<'a>, none: &'a Fault) -> CallEnd<'a> {
        match reply {
            Reply::Result(raw) => CallEnd::Result(raw.get().as_bytes()),
            Reply::Error { code, raw } => CallEnd::Error { code: *code, bytes: raw.get().len() },
            Reply::Neither => CallEnd::Fault(none),
        }
    }

    pub fn of_answer(answer: &'a Answer) -> CallEnd<'a> {
        match answer {
            Answer::Result(result) => CallEnd::Result(result),
            Answer::ServerError { code, error } => CallEnd::Error { code: *code, bytes: error.len() },
            Answer::Refused(fault) => CallEnd::Fault(fault),
            other => unreachable!("no call ends with {other:?}"),
        }
    }
}

impl Core {
    pub(in crate::core) fn draft_call(
        &mut self,
        project: &ProjectId,
        principal: &Arc<str>,
        tool: &str,
        arguments: Option<&str>,
        run_id: Option<String>,
    ) -> CallDraft {
        let arguments_bytes = arguments.map_or(0, str::len);
        let kept = arguments.filter(|text| self.settings.record_arguments && text.len() <= RECORD_ARGUMENTS_MAX);
        let kept = kept.filter(|text| self.projects.records.hold(text.len())).map(str::to_string);
        CallDraft {
            project: project.clone(),
            server: None,
            tool: cut(tool, TOOL_NAME_MAX),
            run_id,
            principal: Arc::clone(principal),
            arguments: kept,
            arguments_bytes: arguments_bytes as u64,
            began: self.effects.now,
        }
    }

    /// Of an MCP client's call; none: it names no tool.
    pub(in crate::core) fn draft_params(
        &mut self,
        project: &ProjectId,
        principal: &Arc<str>,
        params: Option<Json<'_>>,
    ) -> Option<CallDraft> {
        let params = params?;
        let tool = params.member("name")?.text()?;
        let arguments = params.member("arguments").map(Json::get);
        Some(self.draft_call(project, principal, &tool, arguments, None))
    }

    /// The call has an end, which is told to its client at the same time.
    pub(in crate::core) fn record_call(&mut self, draft: CallDraft, server: Option<ServerId>, end: CallEnd<'_>) {
        let (is_error, error_code, outcome, result_bytes) = match end {
            CallEnd::Result(result) => {
                let failed = is_error(result);
                (failed, failed.then(|| "tool_error".to_string()), CallOutcome::Answered, result.len())
            }
            CallEnd::Error { code, bytes } => (true, Some(code.to_string()), CallOutcome::Answered, bytes),
            CallEnd::Fault(fault) => {
                let was_sent = fault.data.get("outcome").is_some_and(|outcome| outcome == "sent_unknown");
                let outcome = if was_sent { CallOutcome::SentUnknown } else { CallOutcome::NotSent };
                (true, Some(fault.code.wire().0.to_string()), outcome, 0)
            }
            CallEnd::Left(outcome) => (true, Some("cancelled".to_string()), outcome, 0),
        };
        let known = server.and_then(|server| self.servers.known.get(&server));
        let server = known.map(|server| server.definition.name.clone()).or(draft.server);
        self.projects.records.let_go(draft.arguments.as_ref().map_or(0, String::len));
        let record = ToolCallRecord {
            id: self.effects.entropy.uuid(),
            project: draft.project,
            server,
            tool: draft.tool,
            run_id: draft.run_id,
            principal: draft.principal.to_string(),
            arguments: draft.arguments,
            arguments_bytes: draft.arguments_bytes,
            is_error,
            error_code,
            outcome,
            started_unix_ms: draft.began.unix_ms,
            duration_ms: self.effects.now.mono_ms.saturating_sub(draft.began.mono_ms),
            result_bytes: result_bytes as u64,
        };
        self.projects.records.push(record);
        match self.projects.records.len() >= RECORDS_BATCH {
            true => self.flush_records(),
            false => self.time_records(),
        }
    }

    /// As above, of a call that an MCP client has made; of any other request there is none.
    pub(in crate::core) fn record_forwarded(&mut self, forwarded: &mut ForwardedRequest, end: CallEnd<'_>) {
        if let Some(draft) = forwarded.record.take() {
            let server = self.peers.known.get(&forwarded.peer).map(|peer| peer.server);
            self.record_call(*draft, server, end);
        }
    }

    /// For a client that leaves now.
    pub(in crate::core) fn outcome_of_leaving(&self, call: CallId) -> CallOutcome {
        match self.peers.calls.get(call).map(|call| &call.stage) {
            Some(Stage::Sent { .. }) => CallOutcome::SentUnknown,
            Some(Stage::Queued { .. }) | None => CallOutcome::NotSent,
        }
    }

    // --- to the store -----------------------------------------------------------------------------------------------

    fn time_records(&mut self) {
        if self.projects.records.begin_pause() {
            self.effects.deadlines.set(Timer::Records, self.effects.now.mono_ms + RECORDS_PAUSE.as_millis() as u64);
        }
    }

    /// The pause is over: what has come together meanwhile goes out.
    pub(in crate::core) fn records_elapsed(&mut self) {
        self.projects.records.end_pause();
        self.flush_records();
    }

    /// The next batch, if the store can take it and none is out.
    pub(in crate::core) fn flush_records(&mut self) {
        if !self.servers.outbox.available() || !self.servers.loaded {
            return;
        }
        if let Some(batch) = self.projects.records.take_batch() {
            let seq = self.servers.outbox.issue(Pending::Records);
            self.effects.outputs.push_back(Output::Store { seq, op: StoreOp::InsertCalls(batch) });
        }
    }

    pub(in crate::core) fn records_stored(&mut self, outcome: &StoreOutcome) {
        match outcome {
            StoreOutcome::Committed => self.projects.records.stored(),
            StoreOutcome::Taken(why) | StoreOutcome::Rejected(why) => {
                log::error!("the store refused records of tool calls, which are dropped: {why}");
                self.projects.records.refused();
            }
            // Not at once: whatever is wrong may take a moment.
            StoreOutcome::Unknown(_) => {
                self.projects.records.unknown();
                return self.time_records();
            }
        }
        match self.projects.records.len() {
            0 => {}
            waiting if waiting >= RECORDS_BATCH => self.flush_records(),
            _ => self.time_records(),
        }
    }

    /// Records that are older than they are kept go, now and from time to time.
    pub(in crate::core) fn clean_records(&mut self) {
        let again_ms = self.effects.now.mono_ms + RECORDS_CLEAN_PAUSE.as_millis() as u64;
        self.effects.deadlines.set(Timer::OldRecords, again_ms);
        if self.servers.outbox.available() && self.settings.records_keep_days > 0 {
            let kept_ms = u64::from(self.settings.records_keep_days) * 24 * 60 * 60 * 1000;
            let unix_ms = self.effects.now.unix_ms.saturating_sub(kept_ms);
            let seq = self.servers.outbox.issue(Pending::OldRecords);
            self.effects.outputs.push_back(Output::Store { seq, op: StoreOp::DeleteCallsBefore { unix_ms } });
        }
    }
}

/// An unknown tool may have any name.
fn cut(text: &str, most: usize) -> String {
    let end = (0..=most.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    text[..end].to_string()
}

pub(in crate::core) fn no_answer() -> Fault {
    use crate::model::fault::Outcome;
    Fault::new(Code::BadServerOutput, "the reply has neither a valid result nor an error").outcome(Outcome::SentUnknown)
}
