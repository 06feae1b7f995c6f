//! Whether a server speaks the version without sessions, and by which of its peers; and the requests that wait until that is known.
//! One that speaks both eras has a second instance for clients without sessions, started when the first of them comes; one that
//! speaks no other version needs none. Invariant: what waits is counted for the server and for whoever asks.

use crate::core::mcp::era::stateless::{Held, Support};
use crate::core::servers::Servers;
use crate::ids::{PeerId, ServerId};
use crate::model::fault::{Code, Fault, Outcome};
use crate::model::protocol::STATELESS;
use crate::shares::{Owner, Resource, Shares};
use std::sync::Arc;

impl Servers {
    /// A peer of it is asked.
    pub fn asks_support(&mut self, server: ServerId, peer: PeerId) {
        self.known.get_mut(&server).expect("found").support = Support::Asked(peer);
    }

    /// The life of the main peer changes. The peer for clients without sessions that has no place in the new one.
    pub fn retire_support(&mut self, server: ServerId) -> Option<PeerId> {
        let known = self.known.get_mut(&server)?;
        match std::mem::take(&mut known.support) {
            Support::Yes(own) if own == known.main => {
                known.support = Support::Yes(own);
                None
            }
            Support::Yes(peer) | Support::Asked(peer) => Some(peer),
            Support::Unknown | Support::No => None,
        }
    }

    /// The peer that served those clients has ended: the next of them has another.
    pub fn support_over(&mut self, server: ServerId, peer: PeerId) {
        if let Some(known) = self.known.get_mut(&server).filter(|known| known.support == Support::Yes(peer)) {
            known.support = Support::Unknown;
        }
    }

    /// This peer was asked, and does not speak it. Gives the main one, if that is news.
    pub fn not_spoken(&self, server: ServerId, peer: PeerId) -> Option<PeerId> {
        let known = self.known.get(&server).filter(|known| known.support == Support::Asked(peer))?;
        log::info!("server={} does not speak {STATELESS}: its clients are translated", known.definition.name);
        Some(known.main)
    }

    /// It is known now how this server is to be served. Gives those who have waited for that.
    pub fn support_decided(&mut self, server: ServerId, support: Support, shares: &mut Shares) -> Vec<Held> {
        let Some(known) = self.known.get_mut(&server) else { return Vec::new() };
        known.support = support;
        self.take_held(server, shares)
    }

    /// It will not be known in this life of the server. Gives those who have waited, and why in vain.
    pub fn support_unknown(&mut self, server: ServerId, shares: &mut Shares) -> Option<(Fault, Vec<Held>)> {
        let known = self.known.get(&server)?;
        let fault =
            Fault::new(Code::Unavailable, format!("{} was stopped or restarted meanwhile", known.definition.name));
        let fault = fault.outcome(Outcome::NotSent).retry_after_ms(1_000);
        Some((fault, self.support_decided(server, Support::Unknown, shares)))
    }

    /// Err: there is no room for it.
    pub fn hold(&mut self, server: ServerId, held: Held, shares: &mut Shares) -> Result<(), (Fault, Held)> {
        let known = self.known.get_mut(&server).expect("found");
        let full = known.held.len() >= known.definition.queue_max as usize;
        let bytes = held.request.params.get().len();
        let owners = [Owner::Server(server), Owner::Principal(Arc::clone(&held.request.owner))];
        if full || shares.take_for(&owners, Resource::Memory, bytes).is_err() {
            let fault = Fault::new(Code::QueueFull, format!("{}: too many calls wait", known.definition.name));
            return Err((fault, held));
        }
        known.held.push(held);
        Ok(())
    }

    fn take_held(&mut self, server: ServerId, shares: &mut Shares) -> Vec<Held> {
        let held = self.known.get_mut(&server).map(|known| std::mem::take(&mut known.held)).unwrap_or_default();
        for Held { request, .. } in &held {
            let owners = [Owner::Server(server), Owner::Principal(Arc::clone(&request.owner))];
            shares.give_back_for(&owners, Resource::Memory, request.params.get().len());
        }
        held
    }
}
