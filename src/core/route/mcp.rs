//! Between MCP clients and the rooms that they need: what their servers say goes to them, what they set and subscribe to goes to
//! their servers. What is said to whom is known to `mcp/`.

use crate::api::request::Takes;
use crate::api::response::Answer;
use crate::core::Core;
use crate::core::contract::Output;
use crate::core::hosting::lifecycle::Event;
use crate::core::mcp::admission::Greeting;
use crate::core::mcp::endpoint::McpEndpoint;
use crate::core::mcp::era::stateless::{OwnedRequest, Support};
use crate::core::mcp::era::suspended::Resumed;
use crate::core::mcp::joint::own_advertised;
use crate::core::mcp::preferences::Subscribing;
use crate::core::mcp::private::{Released, give_private_back};
use crate::core::mcp::questions::Asked;
use crate::core::mcp::responses::Replies;
use crate::core::mcp::wording::{INVALID_PARAMS, rpc_error};
use crate::core::peers::listings::Listing;
use crate::core::peers::peer::Role;
use crate::ids::{ConnId, InstanceId, PeerId, PostId, ServerId, SessionId};
use crate::limits::PRIVATE_INSTANCES_MAX;
use crate::model::fault::{Code, Fault};
use crate::model::principal::Principal;
use crate::wire::json::Json;
use crate::wire::jsonrpc::{self, Message, Reply};

impl Core {
    pub(in crate::core) fn replies(&mut self) -> Replies<'_> {
        let Core { mcp, clients, effects, .. } = self;
        Replies { mcp, clients, effects }
    }

    // --- what servers say -------------------------------------------------------------------------------------------

    pub(in crate::core) fn notified(
        &mut self,
        id: PeerId,
        instance: InstanceId,
        method: &str,
        params: Option<Json<'_>>,
    ) {
        let Core { mcp, clients, effects, peers, servers, .. } = self;
        let mut replies = Replies { mcp, clients, effects };
        if method == "notifications/resources/updated" {
            if let Some(peer) = peers.known.get(&id) {
                replies.resource_updated(&peer.definition.name, servers.subscribed_at(peer), params);
            }
            return;
        }
        replies.notified(peers, id, instance, method, params);
    }

    pub(in crate::core) fn asked_by_server(
        &mut self,
        peer: PeerId,
        instance: InstanceId,
        id: Json<'_>,
        method: &str,
        params: Option<Json<'_>>,
    ) {
        let Core { mcp, clients, effects, peers, .. } = self;
        Replies { mcp, clients, effects }.asked_by_server(peers, &Asked { peer, instance, id, method, params });
    }

    /// Those who use a server hear of a list of it that has changed.
    pub(in crate::core) fn list_changed(&mut self, id: PeerId, list: Listing) {
        let told_by = self.offers().told_by(id);
        self.replies().list_changed(id, list, told_by);
        self.aggregate_changed(id, list);
    }

    pub(in crate::core) fn aggregate_changed(&mut self, id: PeerId, list: Listing) {
        if let Some(changed) = self.offers().changed(id) {
            self.replies().joint_changed(list, changed);
        }
    }

    /// The link to an external server is up, or given up: what it offers comes or goes with it.
    pub(in crate::core) fn follow_offer(&mut self, id: ServerId) {
        let Some(offered) = self.offers().is_offered(id) else { return };
        let server = self.servers.known.get_mut(&id).expect("just seen");
        if std::mem::replace(&mut server.offered, offered) != offered {
            self.offer_changed(id);
        }
    }

    /// A server has come or gone: all it offers has, too.
    pub(in crate::core) fn offer_changed(&mut self, id: ServerId) {
        for list in [Listing::Tools, Listing::Prompts, Listing::Resources] {
            if let Some((_, main)) = self.with_main(id).filter(|(_, main)| main.list(list).text.is_some()) {
                self.aggregate_changed(main.id, list);
            }
        }
    }

    // --- what clients say ---------------------------------------------------------------------------------------------

    pub(in crate::core) fn subscription(
        &mut self,
        post: PostId,
        session: SessionId,
        peer: PeerId,
        id: Json<'_>,
        method: &str,
        params: Option<Json<'_>>,
    ) {
        let Core { mcp, clients, effects, peers, .. } = self;
        let mut replies = Replies { mcp, clients, effects };
        match replies.subscription(peers, peer, (post, session, id), method, params) {
            Subscribing::Refused => return,
            Subscribing::Asks(kind) => return self.forward(post, session, peer, id, method, params, kind),
            Subscribing::DoneAnew => self.listen_to(peer),
            Subscribing::Done => {}
        }
        self.replies().finish(post, None, 200, jsonrpc::result(id.get(), b"{}"));
    }

    /// The client brings the answers to what its call waits for.
    pub(in crate::core) fn resume_call(&mut self, server: ServerId, post: PostId, request: &OwnedRequest, state: &str) {
        let known = &self.servers.known[&server];
        let (main, support) = (known.main, known.support);
        let call = match (self.mcp.resumed(main, &request.owner, state, self.effects.now.mono_ms), support) {
            (Resumed::Answer(answer), _) => {
                return self.replies().finish(post, None, answer.status, answer.message(request.id.get()));
            }
            (Resumed::Call(call), _) => call,
            (Resumed::NotOurs, Support::Yes(other)) => return self.forward_stateless(other, post, request),
            (Resumed::NotOurs, Support::Asked(_) | Support::Unknown | Support::No) | (Resumed::Nothing, _) => {
                let message = "requestState: is not valid, or its call is over; call again without it";
                return self.replies().finish(post, None, 200, rpc_error(request.id.get(), INVALID_PARAMS, message));
            }
        };
        let mut unanswered = false;
        for (number, given) in self.mcp.come_back(call, post, request, &mut self.peers, &mut self.effects) {
            match given {
                Some(response) => self.pass_answer(None, number, &Reply::Result(response.as_json())),
                None => unanswered = true,
            }
        }
        if unanswered {
            self.replies().suspend(call);
            let patience_ms = self.mcp.question_patience_ms(&self.peers, call);
            self.peers.postpone(call, patience_ms, &mut self.effects);
        }
    }

    pub(in crate::core) fn open_old_stream(&mut self, conn: ConnId, who: &Principal, at: McpEndpoint, post_to: &str) {
        let greeting = Greeting::before_hello(who, Takes::Stream);
        match self.open_session(at, &greeting) {
            Ok(id) => self.replies().open_old_stream(conn, id, post_to),
            Err(fault) => self.replies().refuse_message(conn, None, &fault),
        }
    }

    pub(in crate::core) fn old_post(&mut self, conn: ConnId, session: SessionId, message: Message<'_>) {
        self.effects.outputs.push_back(Output::Answer { conn, answer: Answer::Accepted });
        match message {
            Message::Request { id, method, params } if method == "initialize" => {
                let Some(known) = self.mcp.session(session) else { return };
                let advertised = match known.endpoint.server() {
                    Some(server) => self.with_main(server).and_then(|(_, main)| main.advertised.clone()),
                    None => Some(own_advertised()),
                };
                self.replies().old_hello(session, advertised, id, params);
            }
            Message::Request { id, method, params } => {
                let post = self.replies().open_old_post(session);
                self.requested(post, session, id, &method, params);
            }
            Message::Notification { .. } | Message::Reply { .. } | Message::Stray => self.told(session, message),
        }
    }

    /// `session`: whose question it must be; none for one that was asked by a result.
    pub(in crate::core) fn pass_answer(&mut self, session: Option<SessionId>, number: u64, reply: &Reply<'_>) {
        let input = self.mcp.question_answered(session, number, reply, &mut self.peers, &mut self.effects);
        if let Some((round, key)) = input {
            self.input_given(round, &key, reply);
        }
    }

    pub(in crate::core) fn merge_level(&mut self, id: PeerId) {
        self.mcp.merge_level(id, &mut self.peers, &mut self.effects);
    }

    pub(in crate::core) fn reapply(&mut self, id: PeerId) {
        self.mcp.reapply(id, &mut self.peers, &mut self.effects);
    }

    pub(in crate::core) fn unsubscribe_if_last(&mut self, peer: PeerId, uri: &str) {
        if !self.mcp.unsubscribe_if_last(peer, uri, &mut self.peers, &mut self.effects) {
            self.listen_to(peer);
        }
    }

    pub(in crate::core) fn listen_to(&mut self, id: PeerId) {
        if let Some(at) = self.peers.known.get(&id).map(|peer| self.servers.subscribed_at(peer)) {
            self.mcp.listen_to(id, at, &mut self.peers, &mut self.effects);
        }
    }

    // --- instances of single sessions ---------------------------------------------------------------------------------

    /// Who serves a session's requests to a server: the main peer, or one of its own where the server is not shared.
    pub(in crate::core) fn serving(&mut self, session: SessionId, server: ServerId) -> Result<PeerId, Fault> {
        let known = &self.servers.known[&server];
        let main = known.main;
        if known.definition.shared {
            return Ok(main);
        }
        if let Some(own) = self.mcp.private_peer(session, server) {
            return Ok(own);
        }
        let now = self.effects.now;
        let peer = &self.peers.known[&main];
        peer.admits(now.mono_ms + peer.definition.request_timeout_ms, now)?;
        self.make_private_room(session, server)?;
        let id = self.peers.adopt_for(session, main);
        self.mcp.has_private(session, server, id);
        self.advance(id, Event::Start);
        Ok(id)
    }

    /// Those on their way out take their time and a place beside it, so there may be twice as many for a while.
    fn make_private_room(&mut self, asking: SessionId, server: ServerId) -> Result<(), Fault> {
        let full = |what: &str| {
            Err(Fault::new(Code::Unavailable, format!("{what} instances for single sessions run already"))
                .retry_after_ms(10_000))
        };
        if self.peers.of_sessions(None).len() >= 2 * PRIVATE_INSTANCES_MAX {
            return full("all the");
        }
        while let Err(short) = self.mcp.take_private(asking, server, &mut self.effects.shares) {
            let Some(idlest) = short.idlest else { return full(short.what) };
            self.end_session(idlest, "its instance made room for another's");
        }
        Ok(())
    }

    /// The life of the main peer changes: whoever has an instance of the old one begins anew.
    pub(in crate::core) fn retire_session_peers(&mut self, server: ServerId) {
        for id in self.peers.of_sessions(Some(server)) {
            self.release_session_peer(id, "its server was stopped or changed");
        }
    }

    pub(in crate::core) fn release_session_peer(&mut self, id: PeerId, why: &str) {
        let Some(peer) = self.peers.known.get(&id) else { return };
        let Role::Session(session) = peer.role else { return };
        let server = peer.server;
        match self.mcp.release_private(session, id, server) {
            Released::Session(session) => self.end_session(session, why),
            Released::One(owner) => {
                give_private_back(&mut self.effects.shares, &owner, server);
                self.dismiss(id);
            }
            Released::Nobodys => self.dismiss(id),
        }
    }

    // --- clients that leave -------------------------------------------------------------------------------------------

    pub(in crate::core) fn post_lost(&mut self, id: PostId, conn: ConnId) {
        let Some(post) = self.mcp.post_lost(id, conn, &mut self.effects) else { return };
        // The last first: else the place of one that was sent would be given to the next.
        for call in post.calls.into_iter().rev() {
            self.drop_forwarded(call, "the client has disconnected");
        }
        if let Some(listening) = post.listening {
            self.stopped_listening(&listening);
        }
    }

    pub(in crate::core) fn get_stream_lost(&mut self, session: SessionId, conn: ConnId) {
        if self.mcp.get_stream_lost(session, conn, &mut self.effects) {
            self.end_session(session, "its stream was closed");
        }
    }
}
