//! Who asks, and what they may do: a name, scopes, and the servers they may see. How somebody shows who they are is another
//! matter (`api::auth`).

use crate::model::definition::Definition;
use crate::model::external::ProjectId;
use crate::model::fault::{Code, Fault};
use crate::model::rate::RateLimit;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Somebody who has shown who they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Principal {
    /// The token's name, or `anonymous` where the configuration allows that.
    pub name: Arc<str>,
    pub scopes: Scopes,
    pub limits: Limits,
    /// Its own; none: that of everybody.
    pub rate_limit: Option<RateLimit>,
}

/// What a principal is limited to. Both empty: to nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// The hosted servers it may see and call, by name.
    pub servers: Arc<[String]>,
    /// The projects it may use, with the hosted servers that belong to them.
    pub projects: Arc<[ProjectId]>,
}

impl Limits {
    pub fn is_none(&self) -> bool {
        self.servers.is_empty() && self.projects.is_empty()
    }

    /// `project`: the one that the server belongs to.
    pub fn allow_server(&self, server: &str, project: Option<&ProjectId>) -> bool {
        self.is_none()
            || self.servers.iter().any(|name| name == server)
            || project.is_some_and(|project| self.projects.contains(project))
    }

    pub fn allow_project(&self, project: &ProjectId) -> bool {
        self.is_none() || self.projects.contains(project)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
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
    /// As `Read`, and open to whoever reaches the listener for it.
    Scrape,
    TokensRead,
    TokensWrite,
    Audit,
}

impl Need {
    /// What opens it; of two that do, the one that opens less besides.
    pub fn scopes(self) -> Scopes {
        let none = Scopes::default();
        match self {
            Need::Nothing => none,
            Need::Read | Need::Scrape | Need::TokensRead | Need::Audit => Scopes { admin_read: true, ..none },
            Need::Write | Need::TokensWrite => Scopes { admin_write: true, ..none },
            Need::Call | Need::ReadOrCall => Scopes { mcp_call: true, ..none },
        }
    }
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

    pub fn with(self, other: Scopes) -> Scopes {
        Scopes {
            admin_read: self.admin_read || other.admin_read,
            admin_write: self.admin_write || other.admin_write,
            mcp_call: self.mcp_call || other.mcp_call,
        }
    }

    pub fn cover(self, other: Scopes) -> bool {
        self.admin_read >= other.admin_read && self.admin_write >= other.admin_write && self.mcp_call >= other.mcp_call
    }
}

impl Principal {
    /// Whoever reaches a listener on which nobody has to show a token.
    pub fn anonymous() -> Principal {
        Principal { name: "anonymous".into(), scopes: Scopes::ALL, ..Principal::unlimited() }
    }

    /// Whoever reaches the listener for metrics.
    pub fn scraper() -> Principal {
        let scopes = Scopes { admin_read: true, ..Scopes::default() };
        Principal { name: "metrics".into(), scopes, ..Principal::unlimited() }
    }

    /// Somebody who was not asked, and may do nothing but what anybody may.
    pub fn nobody() -> Principal {
        Principal { name: "nobody".into(), scopes: Scopes::default(), ..Principal::unlimited() }
    }

    fn unlimited() -> Principal {
        Principal { name: Arc::default(), scopes: Scopes::default(), limits: Limits::default(), rate_limit: None }
    }

    pub fn is_limited(&self) -> bool {
        !self.limits.is_none()
    }

    /// A server that a principal may not see does not exist for it.
    pub fn may_see(&self, server: &Definition) -> bool {
        self.may_see_named(&server.name, server.project.as_ref())
    }

    /// `project`: the one that the server belongs to.
    pub fn may_see_named(&self, server: &str, project: Option<&ProjectId>) -> bool {
        self.limits.allow_server(server, project)
    }

    pub fn may_use(&self, project: &ProjectId) -> bool {
        self.limits.allow_project(project)
    }

    /// A server is among the tools of its project: only those who may use that put one there.
    pub fn may_place_in(&self, project: Option<&ProjectId>) -> Result<(), Fault> {
        match project.is_none_or(|project| self.may_use(project)) {
            true => Ok(()),
            false => Err(self.forbid("project: not one of those it is limited to").with("field", "project")),
        }
    }

    pub fn permit(&self, need: Need) -> Result<(), Fault> {
        let Scopes { admin_read, admin_write, mcp_call } = self.scopes;
        let (granted, asked) = match need {
            Need::Nothing => (true, ""),
            Need::Read | Need::Scrape => (admin_read, "`admin:read`"),
            Need::Write => (admin_write, "`admin:write`"),
            Need::Call => (mcp_call, "`mcp:call`"),
            Need::ReadOrCall => (admin_read || mcp_call, "`admin:read` or `mcp:call`"),
            Need::TokensRead => (admin_read, "`admin:read`"),
            Need::TokensWrite => (admin_write, "`admin:write`"),
            Need::Audit => (admin_read, "`admin:read`"),
        };
        if !granted {
            return Err(self.forbid(format_args!("this needs the scope {asked}")));
        }
        // Whoever is limited to some servers could make itself a token for all of them.
        match need {
            Need::TokensRead | Need::TokensWrite if self.is_limited() => {
                Err(self.forbid("tokens are for those who are not limited to some servers or projects"))
            }
            Need::Audit if self.is_limited() => {
                Err(self.forbid("the audit log is for those who are not limited to some servers or projects"))
            }
            Need::TokensRead | Need::TokensWrite | Need::Audit => Ok(()),
            Need::Nothing | Need::Read | Need::Scrape | Need::Write | Need::Call | Need::ReadOrCall => Ok(()),
        }
    }

    /// Nobody can give what they do not have.
    pub fn may_grant(&self, scopes: Scopes) -> Result<(), Fault> {
        if self.scopes.cover(scopes) {
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
