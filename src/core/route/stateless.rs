//! Requests of clients without sessions on their way to the peer that serves them: one that speaks their version, or the main one,
//! for which they are translated, or none yet. How they are put is known to `mcp/era/stateless.rs`.

use crate::api::request::{Stateless, Takes};
use crate::core::Core;
use crate::core::effects::Effects;
use crate::core::mcp::aggregate::Patience;
use crate::core::mcp::endpoint::McpEndpoint;
use crate::core::mcp::era::params::resumed_state;
use crate::core::mcp::era::stateless::{Held, OwnedRequest, Support};
use crate::core::mcp::responses::Replies;
use crate::core::mcp::sessions::Listening;
use crate::core::mcp::wording::fault_message;
use crate::core::peers::peer::Dialect;
use crate::ids::{ConnId, PeerId, PostId, ServerId};
use crate::model::principal::Principal;
use serde_json::json;

impl Core {
    pub(in crate::core) fn stateless(
        &mut self,
        conn: ConnId,
        who: &Principal,
        target: McpEndpoint,
        request: &Stateless<'_>,
        takes: Takes,
    ) {
        if request.method == "subscriptions/listen" {
            return self.listen_stateless(conn, who, target, request, takes);
        }
        let Some((post, request)) = self.replies().open_stateless(conn, who, request, takes) else { return };
        match target {
            McpEndpoint::Server(server) => self.serve_stateless(server, post, request),
            McpEndpoint::All | McpEndpoint::Project(_) => {
                self.aggregate_stateless(post, &target, &who.limits, request, Patience::Left);
            }
        }
    }

    pub(in crate::core) fn serve_stateless(&mut self, server: ServerId, post: PostId, request: OwnedRequest) {
        if let Some(state) = resumed_state(request.params.as_json()) {
            return self.resume_call(server, post, &request, &state);
        }
        let (id, params) = (request.id.as_json(), request.params.as_json());
        if let Some((status, message)) = self.stateless_message_at_rest(server, id, &request.method, params) {
            return self.replies().finish(post, None, status, message);
        }
        self.wake_main_later(server);
        match self.servers.known[&server].support {
            Support::Yes(other) => self.forward_stateless(other, post, &request),
            // One that has just been found out may not have said so to everybody yet.
            Support::No if self.main_of(server).dialect == Dialect::Stateless => {
                self.forward_stateless(self.servers.known[&server].main, post, &request);
            }
            Support::No => self.translate(server, post, &request),
            Support::Asked(_) => self.hold(server, Held { post, request }),
            Support::Unknown => {
                let main = self.main_of(server);
                let deadline_ms = self.effects.now.mono_ms + main.definition.request_timeout_ms;
                if let Err(fault) = main.admits(deadline_ms, self.effects.now) {
                    return self.replies().finish(post, None, 200, fault_message(request.id.get(), &fault));
                }
                self.hold(server, Held { post, request });
                self.start_stateless_peer(server);
            }
        }
    }

    pub(in crate::core) fn forward_stateless(&mut self, peer: PeerId, post: PostId, request: &OwnedRequest) {
        let Core { mcp, clients, effects, peers, projects, settings, .. } = self;
        let record = |effects: &mut Effects| {
            let (whose, params) = request.recorded()?;
            projects.draft_params(whose, Some(params), settings.record_arguments, effects.now).map(Box::new)
        };
        Replies { mcp, clients, effects }.forward_stateless(peers, peer, post, request, record);
    }

    fn translate(&mut self, server: ServerId, post: PostId, request: &OwnedRequest) {
        let main = self.servers.known[&server].main;
        let Core { mcp, clients, effects, peers, projects, settings, .. } = self;
        let record = |effects: &mut Effects| {
            let (whose, params) = request.recorded()?;
            projects.draft_params(whose, Some(params), settings.record_arguments, effects.now).map(Box::new)
        };
        Replies { mcp, clients, effects }.translate(peers, main, post, request, record);
    }

    fn listen_stateless(
        &mut self,
        conn: ConnId,
        who: &Principal,
        target: McpEndpoint,
        request: &Stateless<'_>,
        takes: Takes,
    ) {
        let Some(mut filter) = self.replies().may_listen(conn, who, request, takes) else { return };
        let uris = self.offers().located(&target, &who.limits, &mut filter.uris);
        let Core { mcp, clients, effects, peers, .. } = self;
        let mut replies = Replies { mcp, clients, effects };
        for (server, new) in replies.listen_stateless(conn, who, request.id, (target, &filter), uris, peers) {
            self.listened(server, &new);
        }
    }

    /// Somebody listens to a server, and to these of its resources as the first.
    fn listened(&mut self, server: ServerId, new: &[String]) {
        // It may have something to say from here on.
        self.wake_main_later(server);
        match self.servers.known[&server].support {
            Support::Yes(peer) if !new.is_empty() => self.listen_to(peer),
            Support::Yes(_) | Support::Asked(_) => {}
            Support::Unknown => {
                // One that is stopped is not started for those who only listen.
                let may_start = self.main_of(server).admits(self.effects.now.mono_ms, self.effects.now).is_ok();
                if self.servers.known[&server].desired_up && may_start {
                    self.start_stateless_peer(server);
                }
            }
            Support::No => {
                let main = self.servers.known[&server].main;
                for uri in new {
                    self.peers.tell_server(
                        main,
                        "resources/subscribe",
                        &json!({ "uri": uri }).to_string(),
                        &mut self.effects,
                    );
                }
            }
        }
    }

    pub(in crate::core) fn stopped_listening(&mut self, listening: &Listening) {
        let mut told = None;
        for (main, uri) in &listening.uris {
            let known = self.peers.known.get(main).and_then(|peer| self.servers.known.get(&peer.server));
            match known.map(|server| server.support) {
                Some(Support::Yes(_)) if told == Some(*main) => {}
                Some(Support::Yes(peer)) => {
                    told = Some(*main);
                    self.listen_to(peer);
                }
                Some(Support::Asked(_) | Support::Unknown) | None => {}
                Some(Support::No) => self.unsubscribe_if_last(*main, uri),
            }
        }
    }
}
