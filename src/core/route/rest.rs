//! Servers that nobody uses, as far as it concerns several rooms: who may be put to rest (`hosting/idle.rs` has the rule), who wakes
//! whom, and what is told of one meanwhile. Never ends or starts anything in the middle of a step: that somebody is used is an event,
//! and it is woken when the step is done. Invariant: a peer that owes anybody anything is not put to rest, and a call that
//! comes to one at rest waits in its lane and wakes it, once.

use crate::api::response::Answer;
use crate::core::Core;
use crate::core::contract::Output;
use crate::core::effects::Timer;
use crate::core::events::RoomEvent;
use crate::core::hosting::idle::{Policy, Verdict};
use crate::core::hosting::lifecycle::{Event, State};
use crate::core::mcp::endpoint::McpEndpoint;
use crate::core::mcp::era::params::older_result;
use crate::core::mcp::era::stateless::{Support, cacheable};
use crate::core::mcp::wording::{METHOD_NOT_FOUND, rpc_error, stateless_status};
use crate::core::peers::health::Pulse;
use crate::core::peers::life::Life;
use crate::core::peers::listings::Listing;
use crate::core::peers::peer::{Dialect, Peer, Role};
use crate::core::servers::catalogues::catalogue_of;
use crate::core::servers::outbox::Pending;
use crate::core::servers::server::{Origin, Server};
use crate::core::shutdown::Phase;
use crate::ids::{InstanceId, PeerId, ServerId};
use crate::limits::{IDLE_AFTER_DEFAULT_MS, IDLE_AFTER_UNASKED_MS};
use crate::model::definition::{Idle, IdleMode, IdleStart};
use crate::model::protocol::Version;
use crate::model::records::StoreOp;
use crate::model::status::Status;
use crate::wire::json::Json;
use crate::wire::jsonrpc;
use serde_json::json;

impl Core {
    // --- the rule -----------------------------------------------------------------------------------------------------

    /// What the definition says, and the configuration for all where it says nothing.
    pub(in crate::core) fn idle_of(&self, server: &Server) -> Idle {
        server.definition.idle.or(self.settings.idle)
    }

    /// None: it is never put to rest. Whoever can be used past the daemon is not seen to be idle.
    pub(in crate::core) fn rest_policy(&self, peer: &Peer) -> Option<Policy> {
        let server = self.servers.known.get(&peer.server)?;
        let seen = server.definition.stdio_bridge && server.definition.ports.is_empty();
        if !seen || server.origin != Origin::Registered || matches!(peer.life, Life::External(_)) {
            return None;
        }
        let idle = self.idle_of(server);
        let provider = server.definition.provider.as_ref().unwrap_or(&self.settings.providers[0]);
        let (mode, usual_ms) = match idle.mode {
            Some(mode) => (mode, IDLE_AFTER_DEFAULT_MS),
            None if self.settings.polling.contains(provider) => (IdleMode::Doze, IDLE_AFTER_UNASKED_MS),
            None => return None,
        };
        let after_ms = idle.after_ms.unwrap_or(usual_ms);
        match (mode, peer.role) {
            (IdleMode::Off, _) => None,
            // The others go with it.
            (IdleMode::Stop, Role::Stateless | Role::Session(_)) => None,
            (IdleMode::Doze | IdleMode::Stop, _) => Some(Policy { mode, after_ms }),
        }
    }

    /// Is what it offers to be known while it does not run?
    pub(in crate::core) fn may_be_absent(&self, server: &Server) -> bool {
        let idle = self.idle_of(server);
        let seen = server.definition.stdio_bridge && server.definition.ports.is_empty();
        seen && (idle.mode == Some(IdleMode::Stop) || idle.start == Some(IdleStart::OnDemand))
    }

    /// The first event of its life in this daemon: it starts, or rests until somebody uses it.
    pub(in crate::core) fn boot_event(&self, main: PeerId) -> Event {
        let peer = &self.peers.known[&main];
        let server = &self.servers.known[&peer.server];
        let waits = self.may_be_absent(server) && self.idle_of(server).start == Some(IdleStart::OnDemand);
        // What it offers must be known to be told.
        if waits && peer.advertised.is_some() { Event::Sleep } else { Event::Start }
    }

    // --- to rest ------------------------------------------------------------------------------------------------------

    /// It is ready: from here on it may become idle.
    pub(in crate::core) fn rest_begins(&mut self, id: PeerId) {
        let now_ms = self.effects.now.mono_ms;
        let Some(peer) = self.peers.known.get_mut(&id) else { return };
        peer.rest.used_ms = now_ms;
        peer.rest.dozing_since_ms = None;
        if let Some(since_ms) = peer.rest.waking_since_ms.take() {
            let took_ms = now_ms - since_ms;
            self.count_wake(id, took_ms);
            self.note(id, format!("woken in {took_ms} ms"));
        }
        self.arm_rest(id);
        self.catalogue_changed(id);
    }

    fn count_wake(&mut self, id: PeerId, took_ms: u64) {
        let Some(peer) = self.peers.known.get_mut(&id) else { return };
        peer.rest.last_wake_ms = Some(took_ms);
        if let Some(server) = self.servers.known.get_mut(&peer.server) {
            server.tally.wakes += 1;
            server.tally.wake_ms += took_ms;
        }
    }

    /// It has another definition, or has just become ready.
    pub(in crate::core) fn arm_rest(&mut self, id: PeerId) {
        let Some(peer) = self.peers.known.get(&id) else { return };
        let policy = peer.life.ready_instance().and_then(|_| self.rest_policy(peer));
        match policy.filter(|_| peer.rest.dozing_since_ms.is_none()) {
            Some(policy) => self.effects.deadlines.set(Timer::Idle(id), peer.rest.used_ms + policy.after_ms),
            None => self.effects.deadlines.cancel(Timer::Idle(id)),
        }
    }

    /// It may have been idle for long enough.
    pub(in crate::core) fn rest_elapsed(&mut self, id: PeerId) {
        let Some(peer) = self.peers.known.get(&id) else { return };
        let Some(policy) = self.rest_policy(peer) else { return };
        // One that is silent is looked after otherwise; it may be heard again.
        let instance = match *peer.life.state() {
            State::Ready { instance, .. } if self.phase == Phase::Running => instance,
            State::Ready { .. } | State::Unresponsive { .. } => {
                return self.effects.deadlines.set(Timer::Idle(id), self.effects.now.mono_ms + policy.after_ms);
            }
            _ => return,
        };
        if peer.rest.dozing_since_ms.is_some() {
            return;
        }
        let (server, role) = (peer.server, peer.role);
        let (used_ms, held) = match policy.mode {
            IdleMode::Doze | IdleMode::Off => (peer.rest.used_ms, self.is_held(id)),
            IdleMode::Stop => self.whole_rest(server),
        };
        match policy.look(used_ms, held, self.effects.now.mono_ms) {
            Verdict::Later { at_ms } => self.effects.deadlines.set(Timer::Idle(id), at_ms),
            Verdict::Doze => self.doze(id, instance),
            Verdict::Stop => {
                assert!(role == Role::Main, "the others go with the main one");
                self.rest_stateless_peer(server);
                self.advance(id, Event::Sleep);
            }
        }
    }

    /// Something of a client's is under way, or may still come from it.
    fn is_held(&self, id: PeerId) -> bool {
        let peer = &self.peers.known[&id];
        if !peer.lane.in_flight().is_empty() || peer.lane.waiting() > 0 {
            return true;
        }
        let endpoint = match peer.role {
            Role::Main | Role::Stateless => Some(McpEndpoint::Server(peer.server)),
            Role::Session(_) => None,
        };
        peer.pulse.as_ref().is_some_and(Pulse::is_asking)
            || self.mcp.holds(id, self.servers.subscribed_at(peer), endpoint.as_ref())
    }

    /// Of a server that would be ended: when any of its instances was last used, and whether one of them is held. An instance
    /// of one session has what that session has told it, which nobody else knows.
    fn whole_rest(&self, server: ServerId) -> (u64, bool) {
        let known = &self.servers.known[&server];
        let undecided = matches!(known.support, Support::Asked(_)) || !known.held.is_empty();
        let of_it = self.peers.known.values().filter(|peer| peer.server == server && !peer.leaving);
        of_it.fold((0, undecided), |(used_ms, held), peer| match peer.role {
            Role::Session(_) => (used_ms, true),
            Role::Main | Role::Stateless => (used_ms.max(peer.rest.used_ms), held || self.is_held(peer.id)),
        })
    }

    /// The second instance, for clients without sessions, goes with the first; the next of them starts another.
    fn rest_stateless_peer(&mut self, server: ServerId) {
        let Some(known) = self.servers.known.get_mut(&server) else { return };
        if let Support::Yes(own) = known.support
            && own != known.main
        {
            known.support = Support::Unknown;
            self.dismiss(own);
        }
    }

    fn doze(&mut self, id: PeerId, instance: InstanceId) {
        let Some(peer) = self.peers.known.get(&id) else { return };
        let is_told = self.servers.known.get(&peer.server).is_some_and(|server| self.idle_of(server).mode.is_some());
        let before = peer.status();
        let peer = self.peers.known.get_mut(&id).expect("just seen");
        (peer.rest.dozing_since_ms, peer.rest.is_told) = (Some(self.effects.now.mono_ms), is_told);
        log::debug!("server={} instance={instance} dozes", peer.definition.name);
        // It is not asked whether it lives: that would wake it.
        self.effects.deadlines.cancel(Timer::Pulse(id));
        self.effects.outputs.push_back(Output::Doze { instance });
        self.tell_if_changed(id, before, "idle");
    }

    fn tell_if_changed(&mut self, id: PeerId, before: Status, why: &str) {
        let Some(peer) = self.peers.known.get(&id).filter(|peer| peer.status() != before) else { return };
        let instance = peer.life.instance();
        self.tell_transition(id, before, instance, why);
        self.outbox_mark(id);
    }

    // --- awake --------------------------------------------------------------------------------------------------------

    /// The shell has thawed it, to write to it or to end it; none: it could not be frozen.
    pub(in crate::core) fn woken(&mut self, instance: InstanceId, took_ms: Option<u64>) {
        let now_ms = self.effects.now.mono_ms;
        let Some(id) = self.hosting.peer_of(instance) else { return };
        let Some(peer) = self.peers.known.get_mut(&id) else { return };
        let before = peer.status();
        if peer.rest.dozing_since_ms.take().is_none() {
            return;
        }
        // It could say nothing meanwhile.
        if let Some(pulse) = &mut peer.pulse {
            pulse.heard(now_ms);
        }
        peer.rest.used_ms = peer.rest.used_ms.max(now_ms);
        self.peers.arm_pulse(id, &mut self.effects);
        self.tell_if_changed(id, before, "used again");
        if let Some(took_ms) = took_ms {
            self.count_wake(id, took_ms);
            self.arm_rest(id);
        }
    }

    /// Somebody waits for it. It is woken when this step is done: whoever asks has not noted yet what it waits for.
    pub(in crate::core) fn wake_later(&mut self, id: PeerId) {
        if self.peers.known.get(&id).is_some_and(|peer| peer.life.state().is_resting()) {
            self.effects.raise(RoomEvent::CallWaits(id));
        }
    }

    /// The main peer of a server.
    pub(in crate::core) fn wake_main_later(&mut self, server: ServerId) {
        if let Some(main) = self.servers.known.get(&server).map(|server| server.main) {
            self.wake_later(main);
        }
    }

    /// However many have come, it is woken once.
    pub(in crate::core) fn wake(&mut self, id: PeerId) {
        let running = matches!(self.phase, Phase::Running | Phase::Booting { .. });
        let now_ms = self.effects.now.mono_ms;
        let Some(peer) = self.peers.known.get_mut(&id) else { return };
        if running && peer.life.state().is_resting() {
            peer.rest.waking_since_ms = Some(now_ms);
            self.advance(id, Event::Wake);
        }
    }

    // --- what is told while it rests ------------------------------------------------------------------------------------

    /// The result of a request that is not worth waking it for; none: it is.
    fn told_at_rest(&self, id: PeerId, method: &str, params: Option<Json<'_>>) -> Option<Result<Vec<u8>, String>> {
        let peer = self.peers.known.get(&id).filter(|peer| peer.life.state().is_resting())?;
        match method {
            "ping" => return Some(Ok(b"{}".to_vec())),
            "initialize" => return Some(Ok(peer.advertised.as_ref()?.initialize_result(Version::NEWEST).into_bytes())),
            _ => {}
        }
        let list = Listing::ALL.into_iter().find(|list| list.method() == method)?;
        // A later page is the server's own to give.
        let is_next_page = params.and_then(|params| params.member("cursor")).is_some_and(|raw| raw.get() != "null");
        match peer.list(list).text.as_ref() {
            _ if is_next_page => None,
            Some(text) => Some(Ok(text.to_vec())),
            None if peer.advertised.is_some() && !peer.offers(list.capability()) => {
                Some(Err(format!("Method not found: {method}")))
            }
            None => None,
        }
    }

    /// For a REST client.
    pub(in crate::core) fn answer_at_rest(&self, id: PeerId, method: &str, params: Option<Json<'_>>) -> Option<Answer> {
        Some(match self.told_at_rest(id, method, params)? {
            Ok(result) => Answer::Result(result),
            Err(message) => {
                let error = json!({"code": METHOD_NOT_FOUND, "message": message}).to_string().into_bytes();
                Answer::ServerError { code: METHOD_NOT_FOUND, error }
            }
        })
    }

    /// For a client with a session: the whole message.
    pub(in crate::core) fn message_at_rest(
        &self,
        id: PeerId,
        request: Json<'_>,
        method: &str,
        params: Option<Json<'_>>,
    ) -> Option<Vec<u8>> {
        let newer = self.peers.known.get(&id).is_some_and(|peer| peer.dialect == Dialect::Stateless);
        Some(match self.told_at_rest(id, method, params)? {
            Ok(result) if newer => {
                let text = String::from_utf8_lossy(&result);
                let raw = Json::of(&text).ok()?;
                jsonrpc::result(request.get(), &older_result(raw))
            }
            Ok(result) => jsonrpc::result(request.get(), &result),
            Err(message) => rpc_error(request.get(), METHOD_NOT_FOUND, &message),
        })
    }

    /// For a client without one: the status, and the whole message.
    pub(in crate::core) fn stateless_message_at_rest(
        &self,
        server: ServerId,
        request: Json<'_>,
        method: &str,
        params: Json<'_>,
    ) -> Option<(u16, Vec<u8>)> {
        let (_, main) = self.with_main(server)?;
        if method == "server/discover" && main.life.state().is_resting() {
            let result = main.advertised.as_ref()?.discover_result();
            return Some((200, jsonrpc::result(request.get(), result.as_bytes())));
        }
        Some(match self.told_at_rest(main.id, method, Some(params))? {
            Ok(result) if main.dialect == Dialect::Stateless => (200, jsonrpc::result(request.get(), &result)),
            Ok(result) => {
                let text = String::from_utf8_lossy(&result);
                (200, jsonrpc::result(request.get(), &cacheable(&text)))
            }
            Err(message) => {
                let status = stateless_status(METHOD_NOT_FOUND);
                (status, rpc_error(request.get(), METHOD_NOT_FOUND, &message))
            }
        })
    }

    // --- what is kept for the time when it does not run ---------------------------------------------------------------

    /// The main peer of a server has told something new of itself.
    pub(in crate::core) fn catalogue_changed(&mut self, id: PeerId) {
        let Some(peer) = self.peers.known.get(&id).filter(|peer| peer.role == Role::Main) else { return };
        let Some(server) = self.servers.known.get(&peer.server) else { return };
        if self.servers.is_registered(server.id) && self.may_be_absent(server) {
            let server = server.id;
            self.servers.outbox.mark_catalogue(server);
            self.effects.raise(RoomEvent::WriteSoon);
        }
    }

    /// Hands out what has changed.
    pub(in crate::core) fn flush_catalogues(&mut self) {
        for id in self.servers.outbox.take_catalogues() {
            let Some(main) = self.servers.known.get(&id).and_then(|server| self.peers.known.get(&server.main)) else {
                continue;
            };
            if let Some(catalogue) = catalogue_of(main).and_then(|new| self.servers.new_catalogue(id, new)) {
                let op = StoreOp::SaveCatalogue { id, catalogue: Box::new(catalogue) };
                self.servers.issue(Pending::Catalogue { server: id }, op, &mut self.effects);
            }
        }
    }
}
