//! What is recorded of each `tools/call` of a project, over REST and at its MCP endpoint: who called what, and what came of it.
//! A record is written behind the answer; `servers/call_records.rs` has those that wait for the store. Invariant: each call of a
//! project that names a tool gives one record, or is counted as dropped, and no call ever waits for one.

use crate::api::response::Answer;
use crate::api::tool_error::is_error;
use crate::core::contract::Now;
use crate::core::effects::{Effects, Timer};
use crate::core::projects::Projects;
use crate::limits::{RECORD_ARGUMENTS_MAX, RECORDS_BATCH, RECORDS_PAUSE, TOOL_NAME_MAX};
use crate::model::external::{CallOutcome, ProjectId, ToolCallRecord};
use crate::model::fault::{Code, Fault};
use crate::model::records::StoreOutcome;
use crate::wire::json::Json;
use crate::wire::jsonrpc::Reply;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What will be in the record of a call that is under way.
#[derive(Clone, Debug, Serialize, Deserialize)]
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

/// The same, as it is recorded.
#[derive(Debug)]
pub(in crate::core) struct CallDone {
    is_error: bool,
    error_code: Option<String>,
    outcome: CallOutcome,
    result_bytes: usize,
}

impl From<CallEnd<'_>> for CallDone {
    fn from(end: CallEnd<'_>) -> CallDone {
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
        CallDone { is_error, error_code, outcome, result_bytes }
    }
}

impl Projects {
    pub fn draft_call(
        &mut self,
        (project, principal): (&ProjectId, &Arc<str>),
        tool: &str,
        arguments: Option<&str>,
        run_id: Option<String>,
        keeps_arguments: bool,
        now: Now,
    ) -> CallDraft {
        let arguments_bytes = arguments.map_or(0, str::len);
        let kept = arguments.filter(|text| keeps_arguments && text.len() <= RECORD_ARGUMENTS_MAX);
        let kept = kept.filter(|text| self.records.hold(text.len())).map(str::to_string);
        CallDraft {
            project: project.clone(),
            server: None,
            tool: cut(tool, TOOL_NAME_MAX),
            run_id,
            principal: Arc::clone(principal),
            arguments: kept,
            arguments_bytes: arguments_bytes as u64,
            began: now,
        }
    }

    /// Of an MCP client's call; none: it names no tool.
    pub fn draft_params(
        &mut self,
        whose: (&ProjectId, &Arc<str>),
        params: Option<Json<'_>>,
        keeps_arguments: bool,
        now: Now,
    ) -> Option<CallDraft> {
        let params = params?;
        let tool = params.member("name")?.text()?;
        let arguments = params.member("arguments").map(Json::get);
        Some(self.draft_call(whose, &tool, arguments, None, keeps_arguments, now))
    }

    /// The call has an end, which is told to its client at the same time. True: there are enough records for a batch.
    pub fn record_call(
        &mut self,
        draft: CallDraft,
        server: Option<String>,
        done: CallDone,
        effects: &mut Effects,
    ) -> bool {
        let CallDone { is_error, error_code, outcome, result_bytes } = done;
        self.records.let_go(draft.arguments.as_ref().map_or(0, String::len));
        let record = ToolCallRecord {
            id: effects.entropy.uuid(),
            project: draft.project,
            server: server.or(draft.server),
            tool: draft.tool,
            run_id: draft.run_id,
            principal: draft.principal.to_string(),
            arguments: draft.arguments,
            arguments_bytes: draft.arguments_bytes,
            is_error,
            error_code,
            outcome,
            started_unix_ms: draft.began.unix_ms,
            duration_ms: effects.now.mono_ms.saturating_sub(draft.began.mono_ms),
            result_bytes: result_bytes as u64,
        };
        self.records.push(record);
        let is_batch = self.records.len() >= RECORDS_BATCH;
        if !is_batch {
            self.time_records(effects);
        }
        is_batch
    }

    fn time_records(&mut self, effects: &mut Effects) {
        if self.records.begin_pause() {
            effects.deadlines.set(Timer::Records, effects.now.mono_ms + RECORDS_PAUSE.as_millis() as u64);
        }
    }

    /// True: the next batch may go out.
    pub fn records_stored(&mut self, outcome: &StoreOutcome, effects: &mut Effects) -> bool {
        match outcome {
            StoreOutcome::Committed => self.records.stored(),
            StoreOutcome::Taken(why) | StoreOutcome::Rejected(why) => {
                log::error!("the store refused records of tool calls, which are dropped: {why}");
                self.records.refused();
            }
            // Not at once: whatever is wrong may take a moment.
            StoreOutcome::Unknown(_) => {
                self.records.unknown();
                self.time_records(effects);
                return false;
            }
        }
        match self.records.len() {
            0 => false,
            waiting if waiting >= RECORDS_BATCH => true,
            _ => {
                self.time_records(effects);
                false
            }
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
