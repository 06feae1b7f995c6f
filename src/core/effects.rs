//! What every room of the core is handed: the time, what the shell is to do, deadlines, randomness, who has how much, and the
//! account of what a server's words cost. Never decides anything. Invariant: `now` is that of the input or the tick that is being handled.

use crate::core::contract::{Now, Output};
use crate::core::deadlines::Deadlines;
use crate::core::entropy::Entropy;
use crate::core::events::RoomEvent;
use crate::core::peers::listings::Listing;
use crate::ids::{CallId, ConnId, InstanceId, PeerId, ServerId, SessionId};
use crate::shares::Shares;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Timer {
    Call(CallId),
    /// The deadline of a peer's present state.
    State(PeerId),
    /// When a peer's silence is looked at.
    Pulse(PeerId),
    /// When a peer may have been idle for long enough.
    Idle(PeerId),
    /// A client that waits for something other than a reply.
    Client(ConnId),
    /// A connection on which nothing was said for a while.
    Stream(ConnId),
    /// A session that may be idle.
    Session(SessionId),
    /// When a list of a peer may be fetched again.
    List(PeerId, Listing),
    /// When those who see all servers at once may hear of a list again.
    JointList(Listing),
    /// A request of an MCP client that waits for links of a project.
    ProjectWait(u64),
    /// Records of tool calls that wait for more to come.
    Records,
    /// Records that are older than they are kept.
    OldRecords,
    /// When an instance that was asked to stop loses its stdin.
    Stdin(InstanceId),
    /// When it is told how many lines of a server's log were not kept.
    Unkept(ServerId),
    /// Write-behind.
    Flush,
    /// Decisions that are not stored yet.
    Decisions,
    /// Volumes whose removal has failed.
    Volumes(ServerId),
    /// When secrets end, and when their last use is stored.
    Tokens,
    /// The present phase of the shutdown.
    Shutdown,
}

#[derive(Serialize, Deserialize)]
pub struct Effects {
    pub now: Now,
    /// Not part of a frozen state: that is made when all of them are performed.
    #[serde(skip)]
    pub outputs: VecDeque<Output>,
    pub deadlines: Deadlines<Timer>,
    pub entropy: Entropy,
    /// Who has how much of what clients and servers can make the core hold.
    pub shares: Shares,
    /// What has happened in one room and concerns another, oldest first.
    #[serde(skip)]
    pub(in crate::core) events: VecDeque<RoomEvent>,
    /// What the last words of a server have cost.
    pub work: usize,
}

impl Effects {
    pub fn new(seed: [u8; 32]) -> Effects {
        Effects {
            now: Now::default(),
            outputs: VecDeque::new(),
            deadlines: Deadlines::default(),
            entropy: Entropy::new(seed),
            shares: Shares::default(),
            events: VecDeque::new(),
            work: 0,
        }
    }

    /// To a server, and no call.
    pub fn write(&mut self, instance: InstanceId, bytes: Vec<u8>) {
        self.outputs.push_back(Output::Write { instance, bytes, call: None });
    }

    /// Something has happened that concerns another room.
    pub(in crate::core) fn raise(&mut self, event: RoomEvent) {
        self.events.push_back(event);
    }
}
