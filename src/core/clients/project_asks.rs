//! What clients ask of a project: its external servers, secrets, tools, calls and records. Owns the way from such an ask to its
//! answer. The links themselves are not here yet, so that all of it is refused.

use crate::api::request::ProjectAsk;
use crate::api::response::Answer;
use crate::core::Core;
use crate::ids::{ConnId, StoreSeq};
use crate::model::external::{ProjectId, ToolCallRecord};
use crate::model::fault::{Code, Fault};
use crate::model::principal::Principal;

impl Core {
    /// Nobody has asked for them yet.
    pub(in crate::core) fn calls_read(&mut self, seq: StoreSeq, _calls: Vec<ToolCallRecord>) {
        self.servers.outbox.done(seq);
    }

    /// An answer now, none yet (the client is parked), or a refusal.
    pub(in crate::core) fn project_asked(
        &mut self,
        conn: ConnId,
        _who: &Principal,
        _project: &ProjectId,
        ask: ProjectAsk<'_>,
    ) -> Result<Option<Answer>, Fault> {
        let fault = Fault::new(Code::Unavailable, "projects are not served yet");
        match ask {
            ProjectAsk::Mcp(_) => {
                self.refuse_message(conn, None, &fault);
                Ok(None)
            }
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
            | ProjectAsk::Tools
            | ProjectAsk::CallTool(_)
            | ProjectAsk::Calls(_) => Err(fault),
        }
    }
}
