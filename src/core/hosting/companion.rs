//! Servers that speak the version without sessions. One that speaks both eras has a second instance for clients without
//! sessions, started when the first of them comes: a companion, which is a server of its own to the rest of the core, is
//! never listed, never stored, and ends with its parent's present life. One that speaks no other needs no companion.

use crate::core::Core;
use crate::core::hosting::lifecycle::{Event, State};
use crate::core::mcp::era::stateless::{Support, own_meta};
use crate::core::peers::calls::Caller;
use crate::core::servers::server::{Advertised, Dialect, Hello, Kin, Refusal, Removal, Server};
use crate::ids::{InstanceId, ServerId};
use crate::limits::{DISCOVER_TIMEOUT, SERVER_INFO_MAX};
use crate::model::protocol::STATELESS;
use crate::wire::json::{self, Json};
use crate::wire::jsonrpc::Reply;
use serde::Deserialize;
use std::sync::Arc;

impl Core {
    pub(in crate::core) fn start_companion(&mut self, parent: ServerId) {
        let id = ServerId(self.entropy.uuid());
        let server = self.servers.get_mut(&parent).expect("found");
        server.support = Support::Asked(id);
        let mut definition = (*server.definition).clone();
        // The ports are the first instance's; and whoever waits for this one has waited for the first already.
        definition.ports.clear();
        definition.startup_timeout_ms = definition.startup_timeout_ms.min(DISCOVER_TIMEOUT.as_millis() as u64);
        log::info!("server={} a second instance is started for clients without sessions", definition.name);
        let mut companion = Server::new(id, Arc::new(definition), true, self.now.unix_ms);
        (companion.kin, companion.dialect) = (Kin::Companion { of: parent }, Dialect::Stateless);
        self.servers.insert(id, companion);
        self.advance(id, Event::Start);
    }

    /// The parent's life changes: further instances of the old one have no place in the new.
    pub(in crate::core) fn retire_kin(&mut self, parent: ServerId) {
        self.retire_private(parent);
        let Some(server) = self.servers.get_mut(&parent) else { return };
        match std::mem::take(&mut server.support) {
            Support::Yes(own) if own == parent => server.support = Support::Yes(own),
            Support::Yes(companion) => self.dismiss(companion),
            Support::Asked(companion) => {
                // Not asked again at once: this server is about to go down itself.
                self.refuse_held(parent);
                self.dismiss(companion);
            }
            Support::Unknown | Support::No => {}
        }
    }

    /// A further instance has ended without anybody having asked for that, and nothing will start it again.
    pub(in crate::core) fn kin_over(&mut self, id: ServerId) {
        let Some(server) = self.servers.get(&id) else { return };
        if !matches!(server.life.state(), State::Down | State::Failed) || server.removing.is_some() {
            return;
        }
        match server.kin {
            Kin::Registered => {}
            Kin::Private { .. } => self.release_private(id, "its own instance has ended"),
            // The next client has another.
            Kin::Companion { of } => {
                if let Some(parent) = self.servers.get_mut(&of).filter(|parent| parent.support == Support::Yes(id)) {
                    parent.support = Support::Unknown;
                }
                self.not_spoken(id, of);
                self.dismiss(id);
            }
        }
    }

    pub(in crate::core) fn dismiss(&mut self, instance: ServerId) {
        if let Some(server) = self.servers.get_mut(&instance) {
            server.removing = Some(Removal::KeepsVolumes);
            server.desired_up = false;
            self.advance(instance, Event::Stop);
        }
    }

    /// The handshake of the version without sessions. `timeout_ms`: none for as long as the state lasts.
    pub(in crate::core) fn discover(&mut self, id: ServerId, instance: InstanceId, timeout_ms: Option<u64>) {
        let params = format!(r#"{{"_meta":{}}}"#, own_meta());
        self.own_call(id, instance, Caller::Handshake, "server/discover", &params, timeout_ms);
    }

    pub(in crate::core) fn companion_discovered(
        &mut self,
        id: ServerId,
        instance: InstanceId,
        parent: ServerId,
        reply: &Reply<'_>,
    ) {
        let Some(advertised) = read_discovery(reply) else { return self.not_spoken(id, parent) };
        self.greeted_stateless(id, instance, advertised);
        self.support_decided(parent, Support::Yes(id));
    }

    fn greeted_stateless(&mut self, id: ServerId, instance: InstanceId, advertised: Advertised) {
        let server = self.servers.get_mut(&id).expect("it replied");
        let server_info = Some(advertised.server_info.clone().into_bytes());
        server.hello = Some(Hello { server_info, protocol_version: Some(STATELESS.to_string()) });
        (server.advertised, server.listen, server.dialect) = (Some(advertised), None, Dialect::Stateless);
        self.first_tools(id, instance);
        self.advance(id, Event::Greeted);
        self.fetch_rest(id);
    }

    // --- a server that speaks nothing else --------------------------------------------------------------------------

    /// It does not want to be initialized: perhaps it is of the other era.
    pub(in crate::core) fn initialize_refused(&mut self, id: ServerId, instance: InstanceId, refusal: Refusal) {
        self.servers.get_mut(&id).expect("it replied").refusal = Some(refusal);
        self.discover(id, instance, Some(DISCOVER_TIMEOUT.as_millis() as u64));
    }

    pub(in crate::core) fn discovered(
        &mut self,
        id: ServerId,
        instance: InstanceId,
        refusal: Refusal,
        reply: &Reply<'_>,
    ) {
        let Some(advertised) = read_discovery(reply) else { return self.undiscovered(id, instance, refusal) };
        log::info!("server={} speaks {STATELESS} only: clients with sessions are translated", self.name_of(id));
        self.greeted_stateless(id, instance, advertised);
        let known = self.servers.get(&id).filter(|server| server.kin == Kin::Registered);
        match known.map(|server| server.support) {
            // It serves them itself.
            Some(Support::Unknown | Support::No) => self.support_decided(id, Support::Yes(id)),
            Some(Support::Yes(_) | Support::Asked(_)) | None => self.listen_to(id),
        }
    }

    /// It does not speak that version, so nobody needs this instance.
    pub(in crate::core) fn not_spoken(&mut self, id: ServerId, parent: ServerId) {
        if self.servers.get(&parent).is_none_or(|server| server.support != Support::Asked(id)) {
            return;
        }
        log::info!("server={} does not speak {STATELESS}: its clients are translated", self.name_of(parent));
        self.support_decided(parent, Support::No);
        self.reapply(parent);
        self.dismiss(id);
    }

    /// A companion that is not greeted in time, or dies before, does not speak the version either.
    pub(in crate::core) fn companion_failed(&mut self, id: ServerId) {
        let Some(Kin::Companion { of: parent }) = self.servers.get(&id).map(|server| server.kin) else { return };
        let ready = matches!(self.servers[&id].life.state(), State::Ready { .. });
        if !ready {
            self.not_spoken(id, parent);
        }
    }
}

fn read_discovery(reply: &Reply<'_>) -> Option<Advertised> {
    #[derive(Deserialize)]
    struct Wire<'a> {
        #[serde(rename = "supportedVersions", borrow)]
        versions: Json<'a>,
        #[serde(borrow)]
        capabilities: Option<Json<'a>>,
        #[serde(borrow)]
        instructions: Option<Json<'a>>,
        #[serde(rename = "_meta", borrow)]
        meta: Option<Json<'a>>,
    }
    #[derive(Deserialize)]
    struct Meta<'a> {
        #[serde(rename = "io.modelcontextprotocol/serverInfo", borrow)]
        server_info: Option<Json<'a>>,
    }
    let Reply::Result(result) = reply else { return None };
    let wire: Wire<'_> = serde_json::from_str(result.get()).ok()?;
    let mut versions = json::items(wire.versions.get().as_bytes()).map_while(Result::ok).filter_map(Json::text);
    if !versions.any(|version| version == STATELESS) {
        return None;
    }
    let text = |raw: Option<Json<'_>>| {
        let small = raw.filter(|raw| raw.get().len() <= SERVER_INFO_MAX && raw.get().starts_with('{'));
        small.map_or("{}".to_string(), |raw| raw.get().to_string())
    };
    let meta = wire.meta.and_then(|meta| serde_json::from_str::<Meta<'_>>(meta.get()).ok());
    Some(Advertised {
        capabilities: text(wire.capabilities),
        server_info: text(meta.and_then(|meta| meta.server_info)),
        instructions: wire.instructions.map(|raw| raw.get().to_string()).filter(|text| text.len() <= SERVER_INFO_MAX),
    })
}
