//! Questions to what is registered: which server is meant, by whom, and what keeps a change of it from being made. Owns nothing,
//! changes nothing.

use crate::api::definition::fields;
use crate::api::request::{Change, ServerRef};
use crate::core::servers::Servers;
use crate::core::servers::decisions::Key;
use crate::core::servers::server::{Origin, Removal, Server};
use crate::ids::{ServerId, Uuid};
use crate::model::definition::Definition;
use crate::model::fault::{Code, Fault};
use crate::model::principal::Principal;
use serde_json::Value;
use std::borrow::Cow;

impl Servers {
    /// A server that is there and that this caller may see; otherwise both look the same.
    pub fn find(&self, server: &ServerRef, who: &Principal) -> Result<ServerId, Fault> {
        let id = match server {
            ServerRef::Id(id) => Some(*id),
            ServerRef::Name(name) => self.names.get(name).copied(),
        };
        id.and_then(|id| self.known.get(&id))
            .filter(|server| server.origin == Origin::Registered)
            .filter(|server| server.removing.is_none() && who.may_see(&server.definition))
            .map(|server| server.id)
            .ok_or_else(|| {
                let asked = match server {
                    ServerRef::Id(id) => id.to_string(),
                    ServerRef::Name(name) => name.clone(),
                };
                Fault::new(Code::NotFound, format!("there is no server {asked}"))
            })
    }

    pub fn server_id(&self, server: &str) -> Option<ServerId> {
        let by_id = Uuid::try_parse(server).ok().map(ServerId);
        by_id.or_else(|| self.names.get(server).copied())
    }

    /// A host port belongs to one server, also while that one is stopped, or about to be stored. `own`: the server that the
    /// definition is for.
    pub fn check_ports(&self, definition: &Definition, who: &Principal, own: Option<ServerId>) -> Result<(), Fault> {
        for (index, port) in definition.ports.iter().enumerate() {
            let known = self.known.values().filter(|server| server.refused.is_none());
            let known = known.map(|server| (server.id, &*server.definition));
            let mut others = known.chain(self.outbox.proposed()).filter(|(id, _)| Some(*id) != own);
            if let Some((_, holder)) = others.find(|(_, other)| other.ports.iter().any(|p| p.collides_with(port))) {
                let (field, name) = (format!("ports[{index}]"), who.may_see(holder).then_some(&holder.name));
                let whose = name.map_or("another server", String::as_str);
                let message = format!("{field}: port {} of this host belongs to {whose}", port.host);
                return Err(Fault::new(Code::PortTaken, message).with("field", field).with("server", name.cloned()));
            }
        }
        Ok(())
    }

    pub fn check_store(&self) -> Result<(), Fault> {
        match self.outbox.available() {
            true => Ok(()),
            false => Err(store_unavailable()),
        }
    }

    /// One change at a time: the next must see the outcome of the last.
    pub fn changeable(&self, id: ServerId) -> Result<&Server, Fault> {
        let server = &self.known[&id];
        // That it was stopped must not be found on disk by a daemon that comes after a later start.
        match server.changing || self.decisions.is_open(&Key::Server(id)) {
            false => Ok(server),
            true if !self.outbox.available() => Err(store_unavailable()),
            true => {
                let message = format!("another change to {} is being stored", server.definition.name);
                Err(Fault::new(Code::Unavailable, message).retry_after_ms(1_000))
            }
        }
    }

    /// Somebody else has asked for the same, and it is not done yet.
    pub fn is_being_removed(&self, server: &ServerRef, who: &Principal) -> Option<ServerId> {
        let id = match server {
            ServerRef::Id(id) => Some(*id),
            ServerRef::Name(name) => self.names.get(name).copied(),
        };
        let server = self.known.get(&id?)?;
        let leaves =
            matches!(server.removing, Some(Removal::KeepsVolumes | Removal::TakesVolumes | Removal::VolumesLeave));
        (leaves && who.may_see(&server.definition)).then_some(server.id)
    }

    /// What a PATCH is put on top of. A server whose row broke the rule about names gets one by its first PATCH.
    pub fn named_for_patch<'s>(
        &self,
        who: &Principal,
        server: &'s Server,
        change: &Change,
    ) -> Result<Cow<'s, Definition>, Fault> {
        let Some(why) = server.refused.as_ref().filter(|_| server.is_nameless()) else {
            return Ok(Cow::Borrowed(&server.definition));
        };
        let Some(wanted) = change.fields.get("name").and_then(Value::as_str) else { return Err(why.clone()) };
        let name = fields::server_name(wanted).map_err(|why| Fault::field("name", why))?;
        if self.names.get(&name).is_some_and(|taken| *taken != server.id) {
            let message = format!("name: a server named {name} is registered already");
            return Err(Fault::new(Code::NameTaken, message).with("field", "name"));
        }
        if !who.may_see_named(&name, server.definition.project.as_ref()) {
            return Err(who.forbid("a server of this name is not one of yours"));
        }
        Ok(Cow::Owned(Definition { name, ..(*server.definition).clone() }))
    }

    /// Is this a server (by name or id) whose own HTTP is passed through?
    pub fn speaks_http(&self, server: &str) -> bool {
        let of_http = |id: &ServerId| {
            self.known.get(id).is_some_and(|s| !s.definition.stdio_bridge && !s.definition.ports.is_empty())
        };
        self.server_id(server).as_ref().is_some_and(of_http)
    }

    pub fn is_seen_by(&self, server: &str, who: &Principal) -> bool {
        self.server_id(server).is_some_and(|id| self.find(&ServerRef::Id(id), who).is_ok())
    }
}

pub(in crate::core) fn store_unavailable() -> Fault {
    Fault::new(Code::StoreUnavailable, "the change cannot be made durable: the database is away").retry_after_ms(2_000)
}
