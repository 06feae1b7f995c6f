//! Who asks, and what they may do: a name, scopes, and the servers they may see. How somebody shows who they are is another
//! matter (`api::auth`).

use crate::model::fault::{Code, Fault};
use crate::model::rate::RateLimit;
use std::sync::Arc;

/// Somebody who has shown who they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// The token's name, or `anonymous` where the configuration allows that.
    pub name: Arc<str>,
    pub scopes: Scopes,
    /// The servers it may see and call; empty: all.
    pub servers: Arc<[String]>,
    /// Its own; none: that of everybody.
    pub rate_limit: Option<RateLimit>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Scopes {
    pub admin_read: bool,
    pub admin_write: bool,
    pub mcp_call: bool,
}

/// What a route asks of whoever uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    Nothing,
    Read,
    Write,
    Call,
    ReadOrCall,
    TokensRead,
    TokensWrite,
}

impl Scopes {
    pub const NAMES: [&str; 3] = ["admin:read", "admin:write", "mcp:call"];
    pub const ALL: Scopes = Scopes { admin_read: true, admin_write: true, mcp_call: true };

    /// `admin:write` implies `admin:read`, but not `mcp:call`: who may configure a server may not thereby use it.
    /// Names that are unknown grant nothing.
    pub fn of<S: AsRef<str>>(names: &[S]) -> Scopes {
        let has = |name: &str| names.iter().any(|given| given.as_ref() == name);
        Scopes {
            admin_read: has("admin:read") || has("admin:write"),
            admin_write: has("admin:write"),
            mcp_call: has("mcp:call"),
        }
    }

    pub fn names(self) -> Vec<&'static str> {
        let held = [self.admin_read, self.admin_write, self.mcp_call];
        Scopes::NAMES.into_iter().zip(held).filter(|(_, held)| *held).map(|(name, _)| name).collect()
    }

    fn covers(self, other: Scopes) -> bool {
        self.admin_read >= other.admin_read && self.admin_write >= other.admin_write && self.mcp_call >= other.mcp_call
    }
}

impl Principal {
    /// Whoever reaches a listener on which nobody has to show a token.
    pub fn anonymous() -> Principal {
        Principal { name: "anonymous".into(), scopes: Scopes::ALL, servers: Arc::default(), rate_limit: None }
    }

    /// Somebody who was not asked, and may do nothing but what anybody may.
    pub fn nobody() -> Principal {
        Principal { name: "nobody".into(), scopes: Scopes::default(), servers: Arc::default(), rate_limit: None }
    }

    /// A server that a principal may not see does not exist for it.
    pub fn may_see(&self, server: &str) -> bool {
        self.servers.is_empty() || self.servers.iter().any(|name| name == server)
    }

    pub fn permit(&self, need: Need) -> Result<(), Fault> {
        let Scopes { admin_read, admin_write, mcp_call } = self.scopes;
        let (granted, asked) = match need {
            Need::Nothing => (true, ""),
            Need::Read => (admin_read, "`admin:read`"),
            Need::Write => (admin_write, "`admin:write`"),
            Need::Call => (mcp_call, "`mcp:call`"),
            Need::ReadOrCall => (admin_read || mcp_call, "`admin:read` or `mcp:call`"),
            Need::TokensRead => (admin_read, "`admin:read`"),
            Need::TokensWrite => (admin_write, "`admin:write`"),
        };
        if !granted {
            return Err(self.forbid(format_args!("this needs the scope {asked}")));
        }
        // Whoever is limited to some servers could make itself a token for all of them.
        match need {
            Need::TokensRead | Need::TokensWrite if !self.servers.is_empty() => {
                Err(self.forbid("tokens are for those who are not limited to some servers"))
            }
            Need::TokensRead | Need::TokensWrite => Ok(()),
            Need::Nothing | Need::Read | Need::Write | Need::Call | Need::ReadOrCall => Ok(()),
        }
    }

    /// Nobody can give what they do not have.
    pub fn may_grant(&self, scopes: Scopes) -> Result<(), Fault> {
        if self.scopes.covers(scopes) {
            return Ok(());
        }
        Err(self.forbid("a token can only grant scopes that it has itself"))
    }

    pub fn forbid(&self, why: impl std::fmt::Display) -> Fault {
        let held = self.scopes.names();
        let held = if held.is_empty() { "none".to_string() } else { held.join(", ") };
        Fault::new(Code::Forbidden, format!("{why}; `{}` has {held}", self.name))
    }
}
