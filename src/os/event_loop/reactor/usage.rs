//! Answers that tell what servers use. What all of them used of late is known; what one uses now has to be looked up outside
//! the loop, and its answer waits for that.

use crate::api::response::Answer;
use crate::core::contract::Now;
use crate::ids::{ConnId, InstanceId};
use crate::limits::SCRAPES_AT_ONCE;
use crate::model::fault::{Code, Fault};
use crate::model::metrics::Metrics;
use crate::model::status::Usage;
use crate::os::event_loop::lookups::Question;
use crate::os::event_loop::reactor::Reactor;
use crate::os::instances::Instances;

impl Reactor {
    /// Of a list, what its servers used of late. Of one server, what it uses now: None, and the answer waits for a look.
    pub(super) fn with_usage(&mut self, conn: ConnId, mut answer: Answer, now: Now) -> Option<Answer> {
        match &mut answer {
            // What is asked of the disk now would put off the handover.
            Answer::Registered(view) | Answer::Status(view) if self.upgrade.is_quieting() => {
                view.usage = view.instance.and_then(|instance| self.instances.usage(instance));
            }
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
            Answer::Metrics(metrics) => {
                self.complete_metrics(metrics);
                return self.write_metrics_down(conn, answer);
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
            | Answer::MetricsText(_)
            | Answer::Samples(_)
            | Answer::Refused(_) => {}
        }
        Some(answer)
    }

    /// What only the loop can see of it.
    fn complete_metrics(&self, metrics: &mut Metrics) {
        for server in &mut metrics.servers {
            server.usage = server.instance.and_then(|instance| self.instances.usage(instance));
        }
        if let Some(daemon) = &mut metrics.daemon {
            daemon.connections = self.clients.len();
            daemon.traffic = self.clients.traffic();
            daemon.log_entries_dropped = self.logs.dropped();
            daemon.turns = self.turns;
        }
    }

    /// With a thousand servers the text is megabytes long: the look-up thread writes it. Some: not this time.
    fn write_metrics_down(&mut self, conn: ConnId, answer: Answer) -> Option<Answer> {
        let Answer::Metrics(metrics) = answer else { return Some(answer) };
        if self.scrapes >= SCRAPES_AT_ONCE {
            let why = format!("{SCRAPES_AT_ONCE} others are being answered");
            return Some(Answer::Refused(Fault::new(Code::Unavailable, why).retry_after_ms(1_000)));
        }
        self.scrapes += 1;
        self.lookups.ask(Question::Metrics { conn, metrics });
        self.clients.hold(conn);
        None
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
