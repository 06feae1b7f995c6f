//! What happens to servers, as those who watch the event stream are told.

use crate::ids::{InstanceId, ServerId};
use crate::model::external::{LinkStatus, ProjectId};
use crate::model::status::Status;

/// Something that happened to a server, for those who watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    pub at_unix_ms: u64,
    pub server: ServerId,
    pub name: String,
    /// Whose tokens may hear it.
    pub project: Option<ProjectId>,
    pub instance: Option<InstanceId>,
    pub kind: NewsKind,
    /// The status before, of a transition.
    pub from: Option<Status>,
    pub to: Status,
    /// How it is reached, of an external server: what is shown in place of its status.
    pub link: Option<LinkStatus>,
    pub why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewsKind {
    /// How it is when the watching begins.
    State,
    Transition,
    /// Its health is not as it should be.
    Warning,
    /// Registered or removed.
    Presence,
    /// An external server of a project is reached, or is not any more.
    Link,
}
