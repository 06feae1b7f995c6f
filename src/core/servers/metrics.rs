//! What is counted while clients are served, and the look at it. Counting is a few additions in a server's own arrays; what a
//! client called its method is never kept.

use crate::api::response::Answer;
use crate::api::tool_error::is_error;
use crate::core::Settings;
use crate::core::contract::Now;
use crate::core::mcp::Mcp;
use crate::core::peers::Peers;
use crate::core::peers::calls::{Call, Caller};
use crate::core::peers::peer::Peer;
use crate::core::projects::Projects;
use crate::core::servers::Servers;
use crate::core::servers::server::Server;
use crate::ids::ServerId;
use crate::limits::SAMPLES_KEPT;
use crate::model::fault::{Code, Fault};
use crate::model::metrics::{DaemonMetrics, Metrics, ServerMetrics};
use crate::model::principal::Principal;
use crate::model::status::{Status, Usage};
use crate::model::tally::{CallOutcome, MethodClass, Sample};
use crate::wire::jsonrpc::Reply;

impl Servers {
    /// A call of a client has ended. The daemon's own are nobody's.
    pub fn count_call(&mut self, call: &Call, outcome: CallOutcome, now_ms: u64) {
        let took_ms = now_ms.saturating_sub(call.began_ms);
        self.count(call.server, call.caller, (call.method, outcome), took_ms);
    }

    pub fn count(
        &mut self,
        server: ServerId,
        caller: Caller,
        (method, outcome): (MethodClass, CallOutcome),
        took_ms: u64,
    ) {
        match caller {
            Caller::Client(_) | Caller::Tool(_) | Caller::Mcp => {}
            Caller::Own | Caller::Handshake | Caller::List(_) => return,
        }
        if let Some(server) = self.known.get_mut(&server) {
            server.tally.ended(method, outcome, took_ms);
        }
    }

    /// The next sample of a server, whose instance was looked at. Only that of the main peer counts.
    pub fn sampled(&mut self, peer: &Peer, usage: &Usage, now: Now) {
        let Some(server) = self.known.get_mut(&peer.server).filter(|server| server.main == peer.id) else { return };
        if server.samples.len() == SAMPLES_KEPT {
            server.samples.pop_front();
        }
        server.samples.push_back(Sample {
            at_unix_ms: now.unix_ms,
            cpu_percent: usage.cpu_percent,
            memory_bytes: usage.memory_bytes,
            lately: std::mem::take(&mut server.tally.lately),
        });
    }
}

/// What is looked at for whoever runs the daemon.
pub(in crate::core) struct Metered<'a> {
    pub servers: &'a Servers,
    pub peers: &'a Peers,
    pub mcp: &'a Mcp,
    pub projects: &'a Projects,
    pub settings: &'a Settings,
}

impl Metered<'_> {
    pub fn metrics(&self, who: &Principal) -> Answer {
        let servers = self.servers.seen_by(who).into_iter().map(|server| self.metrics_of(server)).collect();
        let daemon = (!who.is_limited()).then(|| DaemonMetrics {
            sessions: self.mcp.sessions().len(),
            calls: self.peers.calls.len(),
            store_up: self.servers.outbox.available(),
            store_pending: self.servers.outbox.waiting(),
            records_waiting: self.projects.records().len(),
            records_dropped: self.projects.records().dropped(),
            ..DaemonMetrics::default()
        });
        Answer::Metrics(Box::new(Metrics { servers, daemon }))
    }

    fn metrics_of(&self, server: &Server) -> ServerMetrics {
        let main = &self.peers.known[&server.main];
        ServerMetrics {
            name: server.definition.name.clone(),
            provider: server.definition.provider.clone().unwrap_or_else(|| self.settings.providers[0].clone()),
            status: main.status(),
            tally: server.tally.clone(),
            in_flight: main.lane.in_flight().len(),
            waiting: main.lane.waiting(),
            restarts: main.restart_count,
            late_answers: main.said.late,
            instance: main.life.instance(),
            usage: None,
            memory_limit_bytes: server.definition.resource_limits.memory_bytes,
        }
    }

    /// How the daemon is, in one line.
    pub fn status_line(&self) -> String {
        let main = || self.servers.registered().map(|server| &self.peers.known[&server.main]);
        let count = |wanted: Status| main().filter(|peer| peer.status() == wanted).count();
        let (all, ready, calls) = (self.servers.registered().count(), count(Status::Ready), self.peers.calls.len());
        let unwell =
            [Status::Unresponsive, Status::Backoff, Status::Failed].map(|status| (count(status), status.wire()));
        let unwell = unwell.iter().filter(|(n, _)| *n > 0).map(|(n, status)| format!(", {n} {status}"));
        format!("{all} servers, {ready} ready{}; {calls} calls under way", unwell.collect::<String>())
    }
}

/// A tool's result may say that the tool has failed.
fn outcome_of_result(method: MethodClass, result: &[u8]) -> CallOutcome {
    match method {
        MethodClass::ToolsCall if is_error(result) => CallOutcome::ToolError,
        MethodClass::ToolsCall
        | MethodClass::ToolsList
        | MethodClass::Prompts
        | MethodClass::Resources
        | MethodClass::Other => CallOutcome::Ok,
    }
}

pub(in crate::core) fn outcome_of_reply(method: MethodClass, reply: &Reply<'_>) -> CallOutcome {
    match reply {
        Reply::Result(result) => outcome_of_result(method, result.get().as_bytes()),
        Reply::Error { .. } => CallOutcome::Error,
        Reply::Neither => CallOutcome::Failed,
    }
}

/// As whoever gets this answer would call it.
pub(in crate::core) fn outcome_of(method: MethodClass, answer: &Answer) -> CallOutcome {
    match answer {
        Answer::Result(result) => outcome_of_result(method, result),
        Answer::ServerError { .. } => CallOutcome::Error,
        Answer::Refused(Fault { code: Code::CallTimeout, .. }) => CallOutcome::Timeout,
        Answer::Refused(Fault { code: Code::BadServerOutput | Code::ResponseTooLarge, .. }) => CallOutcome::Failed,
        Answer::Refused(fault) if fault.data.get("outcome").is_some_and(|outcome| outcome == "sent_unknown") => {
            CallOutcome::Crashed
        }
        Answer::Refused(_) => CallOutcome::Refused,
        Answer::Registered(_)
        | Answer::Status(_)
        | Answer::List(_)
        | Answer::Definition(_)
        | Answer::Deleted
        | Answer::Tools(_)
        | Answer::Logs { .. }
        | Answer::News(_)
        | Answer::Stream { .. }
        | Answer::McpResult { .. }
        | Answer::McpList { .. }
        | Answer::Message { .. }
        | Answer::Accepted
        | Answer::SessionEnded
        | Answer::Ready { .. }
        | Answer::TokenCreated { .. }
        | Answer::Tokens(_)
        | Answer::TokenRevoked
        | Answer::KeyRotated
        | Answer::ExternalCreated(_)
        | Answer::External(_)
        | Answer::Externals(_)
        | Answer::Unloaded { .. }
        | Answer::SecretStored(_)
        | Answer::Secrets(_)
        | Answer::SecretDeleted
        | Answer::Manifest { .. }
        | Answer::Imported { .. }
        | Answer::ProjectTools { .. }
        | Answer::ToolResult { .. }
        | Answer::Calls(_)
        | Answer::Metrics(_)
        | Answer::MetricsText(_)
        | Answer::Samples(_) => unreachable!("no call ends with this"),
    }
}
