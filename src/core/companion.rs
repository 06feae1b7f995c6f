//! Second instances of a server, beside the one that all sessions share: one for clients without sessions, started when
//! the first of them comes. A companion is a server of its own to the rest of the core, with the definition of its
//! parent; it is never listed, never stored, and ends with its parent's present life.

use crate::core::Core;
use crate::core::calls::Caller;
use crate::core::eras::{Support, own_meta};
use crate::core::lifecycle::{Event, State};
use crate::core::server::{Face, Hello, Server};
use crate::core::sessions::STATELESS;
use crate::ids::{InstanceId, ServerId};
use crate::limits::{DISCOVER_TIMEOUT, SERVER_INFO_MAX};
use crate::wire::jsonrpc::Reply;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::sync::Arc;

impl Core {
    pub(super) fn start_companion(&mut self, parent: ServerId) {
        let id = ServerId(self.entropy.uuid());
        let server = self.servers.get_mut(&parent).expect("found");
        server.support = Support::Asked(id);
        let mut definition = (*server.definition).clone();
        // The ports are the first instance's; and whoever waits for this one has waited for the first already.
        definition.ports.clear();
        definition.startup_timeout_ms = definition.startup_timeout_ms.min(DISCOVER_TIMEOUT.as_millis() as u64);
        log::info!("server={} a second instance is started for clients without sessions", definition.name);
        let mut companion = Server::new(id, Arc::new(definition), true, self.now.unix_ms);
        companion.parent = Some(parent);
        self.servers.insert(id, companion);
        self.advance(id, Event::Start);
    }

    /// The parent's life changes: a companion of the old one has no place in the new.
    pub(super) fn retire_companion(&mut self, parent: ServerId) {
        let Some(server) = self.servers.get_mut(&parent) else { return };
        match std::mem::take(&mut server.support) {
            Support::Yes(companion) => self.dismiss(companion),
            Support::Asked(companion) => {
                self.dismiss(companion);
                self.support_decided(parent, Support::Unknown);
            }
            Support::Unknown | Support::No => {}
        }
    }

    fn dismiss(&mut self, companion: ServerId) {
        if let Some(server) = self.servers.get_mut(&companion) {
            server.removing = Some(false);
            server.desired_up = false;
            self.advance(companion, Event::Stop);
        }
    }

    pub(super) fn greet_companion(&mut self, id: ServerId, instance: InstanceId) {
        let params = format!(r#"{{"_meta":{}}}"#, own_meta());
        self.own_call(id, instance, Caller::Handshake, "server/discover", &params, None);
    }

    pub(super) fn discovered(&mut self, id: ServerId, instance: InstanceId, parent: ServerId, reply: &Reply<'_>) {
        let face = match reply {
            Reply::Result(raw) => read_discovery(raw),
            Reply::Error { .. } | Reply::Neither => None,
        };
        let Some(face) = face else { return self.not_spoken(id, parent) };
        let server = self.servers.get_mut(&id).expect("it replied");
        let server_info = Some(face.server_info.clone().into_bytes());
        server.hello = Some(Hello { server_info, protocol_version: Some(STATELESS.to_string()) });
        (server.face, server.listen) = (Some(face), None);
        self.first_tools(id, instance);
        self.advance(id, Event::Greeted);
        self.fetch_rest(id);
        self.support_decided(parent, Support::Yes(id));
    }

    /// It does not speak that version, so nobody needs this instance.
    pub(super) fn not_spoken(&mut self, id: ServerId, parent: ServerId) {
        if self.servers.get(&parent).is_none_or(|server| server.support != Support::Asked(id)) {
            return;
        }
        log::info!(
            "server={} does not speak {STATELESS}: its clients are translated",
            self.servers[&parent].definition.name
        );
        self.support_decided(parent, Support::No);
        self.reapply(parent);
        self.dismiss(id);
    }

    /// A companion that is not greeted in time, or dies before, does not speak the version either.
    pub(super) fn companion_failed(&mut self, id: ServerId) {
        let Some(parent) = self.servers.get(&id).and_then(|server| server.parent) else { return };
        let ready = matches!(self.servers[&id].life.state(), State::Ready { .. });
        if !ready {
            self.not_spoken(id, parent);
        }
    }
}

fn read_discovery(result: &RawValue) -> Option<Face> {
    #[derive(Deserialize)]
    struct Wire<'a> {
        #[serde(rename = "supportedVersions")]
        versions: Vec<String>,
        #[serde(borrow)]
        capabilities: Option<&'a RawValue>,
        #[serde(borrow)]
        instructions: Option<&'a RawValue>,
        #[serde(rename = "_meta", borrow)]
        meta: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct Meta<'a> {
        #[serde(rename = "io.modelcontextprotocol/serverInfo", borrow)]
        server_info: Option<&'a RawValue>,
    }
    let wire: Wire<'_> = serde_json::from_str(result.get()).ok()?;
    if !wire.versions.iter().any(|version| version == STATELESS) {
        return None;
    }
    let text = |raw: Option<&RawValue>| {
        let small = raw.filter(|raw| raw.get().len() <= SERVER_INFO_MAX && raw.get().starts_with('{'));
        small.map_or("{}".to_string(), |raw| raw.get().to_string())
    };
    let meta = wire.meta.and_then(|meta| serde_json::from_str::<Meta<'_>>(meta.get()).ok());
    Some(Face {
        capabilities: text(wire.capabilities),
        server_info: text(meta.and_then(|meta| meta.server_info)),
        instructions: wire.instructions.map(|raw| raw.get().to_string()).filter(|text| text.len() <= SERVER_INFO_MAX),
    })
}
