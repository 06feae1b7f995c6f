//! Who asks, and what they may do.

/// Somebody who has shown who they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// The token's name, or `anonymous` where the configuration allows that.
    pub name: std::sync::Arc<str>,
    pub scopes: Scopes,
    /// The servers it may see and call; empty: all.
    pub servers: std::sync::Arc<[String]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Scopes {
    pub admin_read: bool,
    pub admin_write: bool,
    pub mcp_call: bool,
}
