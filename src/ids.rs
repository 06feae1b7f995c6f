//! Names for things. Every id is a type of its own, handed out once and never reused, so that a late event of
//! something that is gone finds nothing instead of something else. None of them is a file descriptor or a pid.

use std::fmt;

pub use uuid::Uuid;

/// A registered server; its `workspace_id` on the wire and in the store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ServerId(pub Uuid);

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An MCP session: random, because whoever knows it (and its owner's token) is in it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SessionId(pub Uuid);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.simple().fmt(f)
    }
}

macro_rules! counted {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

counted!(
    /// One life of a server's container, counted from the start of this daemon.
    InstanceId
);
counted!(
    /// One client connection.
    ConnId
);
counted!(
    /// One JSON-RPC request to a server. It is also its id on the pipe: a reply that comes late, or from an
    /// instance that is gone, can match nothing else.
    CallId
);
counted!(
    /// One pull of an image, for everyone who waits for it.
    PullId
);
counted!(
    /// One POST of an MCP client that waits for its answers.
    VoiceId
);
counted!(
    /// One operation handed to the store thread.
    StoreSeq
);
