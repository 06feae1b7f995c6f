//! What has happened in one room and concerns another. A room says so by `Effects::raise`; `Core` takes them from the one queue in
//! the order in which they came, and passes each on (`route.rs`). Invariant: the queue is empty when `Core` has handled an input.

use crate::ids::{ConnId, ServerId};

pub enum RoomEvent {
    /// Something is to be written, and may wait for more.
    WriteSoon,
    /// The same, now.
    WriteNow,
    /// What somebody waits for at this server may be so now.
    WaitMayBeOver(ServerId),
    /// That a token was revoked lasts, as far as that can be: this client, which has done it, is told.
    Revoked(ConnId),
    /// A secret of this token is none any more: whoever used it hears nothing more.
    SecretEnded(String),
}
