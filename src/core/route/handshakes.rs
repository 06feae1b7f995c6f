//! What a handshake means to others than the peer that had it: its server is ready, is known to speak a version or not to, and is
//! told again what its clients want. How it is done is known to `peers/handshake.rs`.

use crate::core::Core;
use crate::core::hosting::lifecycle::Event;
use crate::core::mcp::era::stateless::Support;
use crate::core::peers::handshake::Handshake;
use crate::core::peers::peer::Role;
use crate::ids::{InstanceId, PeerId};
use crate::model::protocol::STATELESS;
use crate::wire::jsonrpc::Reply;

impl Core {
    pub(in crate::core) fn greet(&mut self, id: PeerId, instance: InstanceId) {
        let era_first = self.offers().asks_era_first(id);
        self.peers.greet(id, instance, era_first, &mut self.effects);
    }

    pub(in crate::core) fn handshake_ended(&mut self, id: PeerId, instance: InstanceId, reply: Reply<'_>) {
        let end = self.peers.handshake_ended(id, instance, reply, &mut self.effects);
        self.follow_handshake(id, end);
    }

    pub(in crate::core) fn handshake_unanswered(&mut self, id: PeerId) {
        let instance = self.peers.known.get(&id).and_then(|peer| peer.life.instance());
        if let Some(instance) = instance {
            let end = self.peers.handshake_unanswered(id, instance, &mut self.effects);
            self.follow_handshake(id, end);
        }
    }

    fn follow_handshake(&mut self, id: PeerId, end: Handshake) {
        match end {
            Handshake::UnderWay => {}
            Handshake::Refused(why) => self.advance(id, Event::HandshakeRefused(why)),
            Handshake::NotSpoken => self.not_spoken(id, self.peers.known[&id].server),
            Handshake::Sessions { is_mcp } => {
                self.servers.greeted_with_sessions(self.peers.known[&id].server, id);
                self.greeted(id);
                if is_mcp {
                    self.reapply(id);
                }
            }
            Handshake::Stateless => {
                self.greeted(id);
                if let Some(peer) = self.peers.known.get(&id) {
                    self.support_decided(peer.server, Support::Yes(id));
                }
            }
            Handshake::StatelessOnly => {
                let name = self.peers.name_of(id);
                log::info!("server={name} is spoken to in {STATELESS}: clients with sessions are translated");
                self.greeted(id);
                let main = self.peers.known.get(&id).filter(|peer| peer.role == Role::Main);
                let known = main.and_then(|peer| self.servers.known.get(&peer.server));
                match known.map(|server| (server.id, server.support)) {
                    // It serves them itself.
                    Some((server, Support::Unknown | Support::No)) => self.support_decided(server, Support::Yes(id)),
                    Some((_, Support::Yes(_) | Support::Asked(_))) | None => self.listen_to(id),
                }
            }
        }
    }

    /// Calls that wait go first, and then it is asked what else it offers.
    fn greeted(&mut self, id: PeerId) {
        self.advance(id, Event::Greeted);
        self.peers.fetch_rest(id, &mut self.effects);
    }
}
