//! All client connections on their way to the next program. What cannot go along is brought to its end first: connections
//! that speak TLS say goodbye between two requests, and their streams end, to be resumed from the last event.

use super::Clients;
use crate::core::Core;
use crate::core::contract::{Input, Now};
use crate::ids::ConnId;
use crate::model::metrics::Traffic;
use crate::os::event_loop::token::EventSource;
use crate::os::net::client::carried::CarriedClient;
use crate::os::net::client::{Client, Doing, Socket};
use crate::os::upgrade::carrying::Carrying;
use crate::wire::http_in::RequestPhase;
use crate::wire::http_out::Response;
use mio::{Interest, Registry};
use serde::{Deserialize, Serialize};
use std::io;

#[derive(Default, Serialize, Deserialize)]
pub struct CarriedClients {
    clients: Vec<CarriedClient>,
    minted: u64,
    past_traffic: Traffic,
}

impl Clients {
    pub fn carry(&self, carrying: &mut Carrying) -> CarriedClients {
        let clients = self.map.values().filter_map(|client| client.carry(carrying));
        let mut clients: Vec<CarriedClient> = clients.collect();
        clients.sort_by_key(|client| client.id);
        CarriedClients { clients, minted: self.minted, past_traffic: self.past_traffic }
    }

    /// One that cannot be listened to any more is closed.
    pub fn adopt(&mut self, carried: CarriedClients, registry: &Registry) -> Vec<ConnId> {
        (self.minted, self.past_traffic) = (carried.minted, carried.past_traffic);
        let mut lost = Vec::new();
        for client in carried.clients {
            let id = client.id;
            if let Err(e) = self.adopt_one(client, registry) {
                log::warn!("a client was lost in the handover: {e}");
                lost.push(id);
            }
        }
        lost
    }

    fn adopt_one(&mut self, carried: CarriedClient, registry: &Registry) -> io::Result<()> {
        let mut client = Client::adopt(carried, &self.proxies)?;
        let (id, token) = (client.id, EventSource::Client(client.id).token());
        registry.register(client.socket.source(), token, Interest::READABLE | Interest::WRITABLE)?;
        let owner = client.holding.owner();
        if client.holding.is_counted() && owner.is_stranger() {
            self.strangers.came(&owner.clone(), id, |_| true);
        }
        // A request may be all there already, behind the one before it.
        if client.doing == Doing::Reading && client.parser.phase() != RequestPhase::Idle {
            client.queued = true;
            self.runnable.push(id);
        }
        self.map.insert(id, client);
        self.touched.push(id);
        Ok(())
    }

    /// What is asked of threads for clients is answered, and nobody waits for one.
    pub fn is_at_rest(&self) -> bool {
        self.questions.is_empty()
            && self.handed.is_empty()
            && self.audit.is_at_rest()
            && self.imports.is_at_rest()
            && !self.map.values().any(|client| matches!(client.doing, Doing::LookingUp | Doing::Closed))
    }

    /// Can this connection not go along?
    pub fn stays_behind(&self, id: ConnId) -> bool {
        self.map.get(&id).is_some_and(|client| matches!(client.socket, Socket::Tls(_)))
    }

    /// Connections that cannot go along.
    pub fn left_behind(&self) -> usize {
        self.map.values().filter(|client| matches!(client.socket, Socket::Tls(_))).count()
    }

    /// Those that cannot go along come to an end: at once between two requests, and a stream wherever it is.
    pub fn see_off(&mut self, core: &mut Core, now: Now) {
        let tls = self.map.iter().filter(|(_, client)| matches!(client.socket, Socket::Tls(_)));
        let ids: Vec<ConnId> = tls.map(|(id, _)| *id).collect();
        for id in ids {
            let client = self.map.get_mut(&id).expect("just seen");
            client.keep_alive = false;
            match client.doing {
                Doing::Reading if client.parser.phase() == RequestPhase::Idle && !client.has_backlog() => {
                    client.doing = Doing::Closing;
                    client.rearm(now.mono_ms);
                    self.touched.push(id);
                }
                Doing::Streaming => {
                    self.end_stream(id);
                    core.handle(Input::ClientGone { conn: id }, now);
                }
                // A goodbye is a matter of a moment, and what is under way has until the bound.
                Doing::Reading
                | Doing::LookingUp
                | Doing::Waiting
                | Doing::Closing
                | Doing::Lingering { .. }
                | Doing::Closed => {}
            }
        }
    }

    pub fn settle_audit(&mut self) {
        self.audit.settle();
    }

    /// Who has asked for an upgrade, and what program.
    pub fn take_upgrades(&mut self) -> Vec<(ConnId, Option<String>)> {
        std::mem::take(&mut self.upgrades)
    }

    /// The answer to such a request.
    pub fn upgraded(&mut self, id: ConnId, response: Response, shares: &mut crate::shares::Shares, now: Now) {
        let outcome = match response.status {
            200 | 202 => crate::api::audit::AuditOutcome::Ok,
            _ => crate::api::audit::AuditOutcome::Failed,
        };
        self.note(id, outcome, now);
        self.respond(id, response, shares, now);
    }
}
