//! Answers that tell what servers use. What all of them used of late is known; what one uses now has to be looked up outside
//! the loop, and its answer waits for that.

use crate::api::response::Answer;
use crate::core::contract::Now;
use crate::ids::{ConnId, InstanceId};
use crate::model::status::Usage;
use crate::os::event_loop::lookups::Question;
use crate::os::event_loop::reactor::Reactor;
use crate::os::instances::Instances;

impl Reactor {
    /// Of a list, what its servers used of late. Of one server, what it uses now: None, and the answer waits for a look.
    pub(super) fn with_usage(&mut self, conn: ConnId, mut answer: Answer, now: Now) -> Option<Answer> {
        match &mut answer {
            Answer::Registered(view) | Answer::Status(view) => {
                if let Some(cgroup) = view.instance.and_then(|instance| self.instances.cgroup(instance)) {
                    self.lookups.ask(Question::Usage { conn, cgroup: Box::new(cgroup.clone()) });
                    self.held_answers.hold(conn, answer, now.mono_ms);
                    self.clients.hold(conn);
                    return None;
                }
            }
            Answer::List(views) => {
                for view in views {
                    view.usage = view.instance.and_then(|instance| self.instances.usage(instance));
                }
            }
            Answer::Definition(_)
            | Answer::Deleted
            | Answer::Result(_)
            | Answer::ServerError { .. }
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
            | Answer::ExternalCreated(_)
            | Answer::External(_)
            | Answer::Externals(_)
            | Answer::Unloaded { .. }
            | Answer::SecretStored(_)
            | Answer::Secrets(_)
            | Answer::SecretDeleted
            | Answer::Manifest { .. }
            | Answer::ProjectTools { .. }
            | Answer::ToolResult { .. }
            | Answer::Calls(_)
            | Answer::Refused(_) => {}
        }
        Some(answer)
    }

    pub(super) fn answer_held(
        &mut self,
        conn: ConnId,
        now: Now,
        usage: impl Fn(&Instances, InstanceId) -> Option<Usage>,
    ) {
        let Some(mut answer) = self.held_answers.release(conn) else { return };
        if let Answer::Registered(view) | Answer::Status(view) = &mut answer {
            view.usage = view.instance.and_then(|instance| usage(&self.instances, instance));
        }
        self.clients.answer(conn, answer, &mut self.core, &mut self.shares, now);
    }
}
