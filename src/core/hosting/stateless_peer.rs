//! Servers that speak the version without sessions. One that speaks both eras has a second instance for clients without
//! sessions, started when the first of them comes: a peer in the role `Stateless`, which ends with the main one's present
//! life. One that speaks no other version needs none. Also how peers besides the main one come to an end.

use crate::api::response::Answer;
use crate::core::Core;
use crate::core::effects::Timer;
use crate::core::hosting::lifecycle::{Event, State};
use crate::core::mcp::era::stateless::{Support, own_meta};
use crate::core::peers::calls::Caller;
use crate::core::peers::peer::{Advertised, Dialect, Hello, Opening, Peer, Refusal, Role};
use crate::ids::{CallId, InstanceId, PeerId, ServerId};
use crate::limits::{DISCOVER_TIMEOUT, SERVER_INFO_MAX};
use crate::model::fault::Fault;
use crate::model::protocol::STATELESS;
use crate::wire::json::{self, Json};
use crate::wire::jsonrpc::Reply;
use serde::Deserialize;
use std::sync::Arc;

const UNSUPPORTED_VERSION: i64 = -32022;

impl Core {
    pub(in crate::core) fn start_stateless_peer(&mut self, server: ServerId) {
        let id = self.mint_peer();
        let known = self.servers.known.get_mut(&server).expect("found");
        known.support = Support::Asked(id);
        let mut definition = (*known.definition).clone();
        // The ports are the main peer's; and whoever waits for this one has waited for that already.
        definition.ports.clear();
        definition.startup_timeout_ms = definition.startup_timeout_ms.min(DISCOVER_TIMEOUT.as_millis() as u64);
        log::info!("server={} a second instance is started for clients without sessions", definition.name);
        let mut peer = Peer::new(id, server, Role::Stateless, Arc::new(definition));
        peer.dialect = Dialect::Stateless;
        self.peers.known.insert(id, peer);
        self.advance(id, Event::Start);
    }

    /// The life of the main peer changes: other peers of the old one have no place in the new.
    pub(in crate::core) fn retire_further_peers(&mut self, server: ServerId) {
        self.retire_session_peers(server);
        let Some(known) = self.servers.known.get_mut(&server) else { return };
        match std::mem::take(&mut known.support) {
            Support::Yes(own) if own == known.main => known.support = Support::Yes(own),
            Support::Yes(peer) => self.dismiss(peer),
            Support::Asked(peer) => {
                // Not asked again at once: this server is about to go down itself.
                self.refuse_held(server);
                self.dismiss(peer);
            }
            Support::Unknown | Support::No => {}
        }
    }

    /// A peer besides the main one has ended without anybody having asked for that, and nothing will start it again.
    pub(in crate::core) fn further_peer_over(&mut self, id: PeerId) {
        let Some(peer) = self.peers.known.get(&id) else { return };
        if !matches!(peer.life.state(), State::Down | State::Failed) || peer.leaving {
            return;
        }
        let server = peer.server;
        match peer.role {
            Role::Main => {}
            Role::Session(_) => self.release_session_peer(id, "its own instance has ended"),
            // The next client has another.
            Role::Stateless => {
                if let Some(known) =
                    self.servers.known.get_mut(&server).filter(|known| known.support == Support::Yes(id))
                {
                    known.support = Support::Unknown;
                }
                self.not_spoken(id, server);
                self.dismiss(id);
            }
        }
    }

    /// Nobody needs it any more.
    pub(in crate::core) fn dismiss(&mut self, id: PeerId) {
        if let Some(peer) = self.peers.known.get_mut(&id) {
            peer.leaving = true;
            self.advance(id, Event::Stop);
        }
    }

    /// One that was dismissed is forgotten as soon as it is down.
    pub(in crate::core) fn forget_if_left(&mut self, id: PeerId) {
        let left = |peer: &&Peer| peer.leaving && *peer.life.state() == State::Down;
        if self.peers.known.get(&id).filter(left).is_some() {
            self.forget_peer(id);
        }
    }

    /// The last of a peer: nothing of it runs.
    pub(in crate::core) fn forget_peer(&mut self, id: PeerId) {
        self.effects.deadlines.cancel(Timer::State(id));
        self.fail_rounds(id);
        if let Some(mut peer) = self.peers.known.remove(&id) {
            self.forget_lists(&mut peer);
        }
    }

    /// The handshake of the version without sessions. `timeout_ms`: none for as long as the state lasts.
    pub(in crate::core) fn discover(&mut self, id: PeerId, instance: InstanceId, timeout_ms: Option<u64>) {
        let params = format!(r#"{{"_meta":{}}}"#, own_meta());
        self.own_call(id, instance, Caller::Handshake, "server/discover", &params, timeout_ms);
    }

    pub(in crate::core) fn stateless_peer_discovered(&mut self, id: PeerId, instance: InstanceId, reply: &Reply<'_>) {
        let server = self.peers.known[&id].server;
        let Some(advertised) = read_discovery(reply) else { return self.not_spoken(id, server) };
        self.greeted_stateless(id, instance, advertised);
        self.support_decided(server, Support::Yes(id));
    }

    fn greeted_stateless(&mut self, id: PeerId, instance: InstanceId, advertised: Advertised) {
        let peer = self.peers.known.get_mut(&id).expect("it replied");
        let server_info = Some(advertised.server_info.clone().into_bytes());
        peer.hello = Some(Hello { server_info, protocol_version: Some(STATELESS.to_string()) });
        (peer.advertised, peer.listen, peer.dialect) = (Some(advertised), None, Dialect::Stateless);
        self.tell_version(id, instance);
        self.first_tools(id, instance);
        self.advance(id, Event::Greeted);
        self.fetch_rest(id);
    }

    // --- a server that speaks nothing else --------------------------------------------------------------------------

    /// It does not want to be initialized: perhaps it is of the other era.
    pub(in crate::core) fn initialize_refused(&mut self, id: PeerId, instance: InstanceId, refusal: Refusal) {
        self.peers.known.get_mut(&id).expect("it replied").opening = Opening::DiscoverAfter(refusal);
        self.discover(id, instance, Some(DISCOVER_TIMEOUT.as_millis() as u64));
    }

    pub(in crate::core) fn discovered(
        &mut self,
        id: PeerId,
        instance: InstanceId,
        refusal: Refusal,
        reply: &Reply<'_>,
    ) {
        match read_discovery(reply) {
            Some(advertised) => self.greeted_stateless_only(id, instance, advertised),
            None => self.undiscovered(id, instance, refusal),
        }
    }

    fn greeted_stateless_only(&mut self, id: PeerId, instance: InstanceId, advertised: Advertised) {
        log::info!("server={} is spoken to in {STATELESS}: clients with sessions are translated", self.name_of(id));
        self.greeted_stateless(id, instance, advertised);
        let main = self.peers.known.get(&id).filter(|peer| peer.role == Role::Main);
        let known = main.and_then(|peer| self.servers.known.get(&peer.server));
        match known.map(|server| (server.id, server.support)) {
            // It serves them itself.
            Some((server, Support::Unknown | Support::No)) => self.support_decided(server, Support::Yes(id)),
            Some((_, Support::Yes(_) | Support::Asked(_))) | None => self.listen_to(id),
        }
    }

    // --- a server that is asked for it first --------------------------------------------------------------------------

    pub(in crate::core) fn discover_first(&mut self, id: PeerId, instance: InstanceId, again: bool) {
        self.peers.known.get_mut(&id).expect("its instance lives").opening = Opening::DiscoverFirst { again };
        self.discover(id, instance, Some(DISCOVER_TIMEOUT.as_millis() as u64));
    }

    pub(in crate::core) fn discovered_first(
        &mut self,
        id: PeerId,
        instance: InstanceId,
        again: bool,
        reply: &Reply<'_>,
    ) {
        match read_discovery(reply) {
            Some(advertised) => self.greeted_stateless_only(id, instance, advertised),
            None if !again && offers_stateless(reply) => self.discover_first(id, instance, true),
            None => self.initialize_after(id, instance),
        }
    }

    pub(in crate::core) fn initialize_after(&mut self, id: PeerId, instance: InstanceId) {
        self.peers.known.get_mut(&id).expect("its instance lives").opening = Opening::InitializeAfter;
        self.ask_initialize(id, instance);
    }

    /// Only the question for the other era has a deadline: silence is an answer to it, and so is whatever is no answer.
    pub(in crate::core) fn handshake_unanswered(&mut self, id: PeerId) {
        let Some(peer) = self.peers.known.get_mut(&id) else { return };
        let Some(instance) = peer.life.instance() else { return };
        match std::mem::take(&mut peer.opening) {
            Opening::DiscoverAfter(refusal) => self.undiscovered(id, instance, refusal),
            Opening::DiscoverFirst { .. } => self.initialize_after(id, instance),
            Opening::Initialize | Opening::InitializeAfter => {}
        }
    }

    /// A link could not deliver it, or lost its answer.
    pub(in crate::core) fn undelivered(&mut self, call_id: CallId, fault: Fault) {
        let handshake = self.peers.calls.get(call_id).filter(|call| call.caller == Caller::Handshake);
        let Some(id) = handshake.map(|call| call.peer) else { return self.end_call(call_id, Answer::Refused(fault)) };
        self.take_call(call_id);
        let Some(peer) = self.peers.known.get_mut(&id) else { return };
        match peer.opening {
            Opening::DiscoverFirst { .. } | Opening::DiscoverAfter(_) => self.handshake_unanswered(id),
            Opening::Initialize | Opening::InitializeAfter => {
                self.advance(id, Event::HandshakeRefused(fault.message));
            }
        }
    }

    /// It does not speak that version, so nobody needs this peer.
    pub(in crate::core) fn not_spoken(&mut self, id: PeerId, server: ServerId) {
        let Some(known) = self.servers.known.get(&server).filter(|known| known.support == Support::Asked(id)) else {
            return;
        };
        let main = known.main;
        log::info!("server={} does not speak {STATELESS}: its clients are translated", known.definition.name);
        self.support_decided(server, Support::No);
        self.reapply(main);
        self.dismiss(id);
    }

    /// One that is not greeted in time, or dies before, does not speak the version either.
    pub(in crate::core) fn stateless_peer_failed(&mut self, id: PeerId) {
        let Some(peer) = self.peers.known.get(&id).filter(|peer| peer.role == Role::Stateless) else { return };
        if !matches!(peer.life.state(), State::Ready { .. }) {
            self.not_spoken(id, peer.server);
        }
    }
}

/// It refuses the version of the request, and names that very version among those that it speaks.
fn offers_stateless(reply: &Reply<'_>) -> bool {
    let Reply::Error { code: UNSUPPORTED_VERSION, raw } = reply else { return false };
    let supported = raw.member("data").and_then(|data| data.member("supported"));
    let mut versions = supported.into_iter().flat_map(|list| json::items(list.get().as_bytes())).map_while(Result::ok);
    versions.any(|version| version.text().is_some_and(|version| version == STATELESS))
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
