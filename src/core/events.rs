//! What has happened in one room and concerns another. A room says so by `Effects::raise`; `Core` takes them from the one queue in
//! the order in which they came, and passes each on (`route.rs`). Invariant: the queue is empty when `Core` has handled an input.

use crate::core::peers::calls::{Call, Caller};
use crate::core::peers::listings::Listing;
use crate::core::projects::records::{CallDone, CallDraft};
use crate::ids::{CallId, ConnId, PeerId, ServerId};
use crate::model::fault::Fault;
use crate::model::tally::MethodClass;

pub(in crate::core) enum RoomEvent {
    /// Something is to be written, and may wait for more.
    WriteSoon,
    /// The same, now.
    WriteNow,
    /// What somebody waits for at this server may be so now.
    WaitMayBeOver(ServerId),
    /// That a token was revoked lasts, as far as that can be: this client, which has done it, is told.
    Revoked(ConnId),
    /// A call was refused before it was one.
    CallRefused { server: ServerId, caller: Caller, method: MethodClass },
    /// A call that waited has made way for another.
    CallEnded { call_id: CallId, call: Box<Call>, fault: Box<Fault> },
    /// A call of an MCP client that is recorded has come to its end.
    ToolCallDone { draft: Box<CallDraft>, peer: PeerId, done: Box<CallDone> },
    /// Somebody has a use for a server, which was not noted for a while.
    Used(ServerId),
    /// A call waits for a place at this peer.
    CallWaits(PeerId),
    /// A list of a peer is another one than before.
    ListChanged { peer: PeerId, list: Listing },
    /// It is known for the first time.
    ListKnown { peer: PeerId, list: Listing },
    /// A question for a list has ended, one way or the other.
    ListEnded(ServerId),
    /// A secret of this token is none any more: whoever used it hears nothing more.
    SecretEnded(String),
}
