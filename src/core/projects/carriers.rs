//! What carries the link of an external server: a connection, or a program in a sandbox. Fills the project's secrets into what
//! the row says, at the moment it is needed, and hands it to the shell. Never keeps what it has filled in.

use crate::api::projects::fill::{self, Filled};
use crate::core::Core;
use crate::core::contract::Output;
use crate::core::hosting::lifecycle::Event;
use crate::core::links::external::{Carrier, LinkEvent};
use crate::core::links::link::Rules;
use crate::core::peers::life::Life;
use crate::ids::{InstanceId, PeerId};
use crate::model::endpoint::{LinkFault, LinkFaultKind};
use crate::model::external::{ExternalSpec, Target};
use crate::model::fault::{Code, Fault, Outcome};
use std::sync::Arc;

impl Core {
    /// Some: the next event of this peer, because it cannot even be tried.
    pub(in crate::core) fn connect_external(&mut self, id: PeerId, instance: InstanceId) -> Option<Event> {
        let peer = self.peers.known.get_mut(&id).expect("advance holds it");
        let server = peer.server;
        peer.begin_instance();
        let row = self.offers().row_of(id).expect("only the peer of a row has a connection");
        match fill::fill(&row, &self.projects.secrets_of(&row.project)) {
            Ok(Filled::Program(_)) => unreachable!("a program has no connection"),
            Ok(Filled::Remote(endpoint)) => {
                self.hosting.connected(instance, id);
                self.effects.outputs.push_back(Output::Connect { instance, server, endpoint: Arc::from(endpoint) });
                None
            }
            Err(fault) => Some(Event::Link(LinkEvent::Impossible(fault))),
        }
    }

    pub(in crate::core) fn link_lost(&mut self, instance: InstanceId, why: LinkFault) {
        let event = match why.kind {
            LinkFaultKind::Invalid => {
                LinkEvent::Impossible(Fault::new(Code::UpstreamUnavailable, why.message).outcome(Outcome::NotSent))
            }
            LinkFaultKind::Name
            | LinkFaultKind::Refused
            | LinkFaultKind::Tls
            | LinkFaultKind::Timeout
            | LinkFaultKind::Unauthorized(_)
            | LinkFaultKind::Status(_)
            | LinkFaultKind::SessionLost
            | LinkFaultKind::Protocol
            | LinkFaultKind::Closed
            | LinkFaultKind::Overloaded => LinkEvent::Lost(why.message),
        };
        self.advance_instance(instance, Event::Link(event));
    }

    /// Each failed attempt and each loss is told, whether somebody uses the link or not.
    pub(in crate::core) fn link_failed(&mut self, id: PeerId, why: String, was_up: bool) {
        let Some(row) = self.offers().row_of(id) else { return };
        let peer = self.peers.known.get_mut(&id).expect("it has a row");
        // What is known of a program that said nothing useful is more than that it took too long.
        let why = peer.put_down_for.take().unwrap_or(why);
        let what = if was_up { "transport-exit" } else { "attempt failed" };
        log::error!("server={} project={} {what}: {why}", row.spec.name, row.project);
        peer.last_error = Some(why.clone());
        peer.restart_due = true;
        self.note(id, format!("{what}: {why}"));
    }

    /// The version that was agreed on is in the headers of what follows.
    pub(in crate::core) fn tell_version(&mut self, id: PeerId, instance: InstanceId) {
        let peer = &self.peers.known[&id];
        let remote = matches!(&peer.life, Life::External(life) if life.carrier() == Carrier::Network);
        let version = peer.hello.as_ref().and_then(|hello| hello.protocol_version.clone());
        if let Some(version) = version.filter(|_| remote) {
            self.effects.outputs.push_back(Output::Negotiated { instance, version });
        }
    }
}

// --- what a row says --------------------------------------------------------------------------------------------------

pub(in crate::core) fn rules_of(spec: &ExternalSpec) -> Rules {
    Rules { shared: spec.shared, breaker: spec.breaker, startup_ms: spec.startup_timeout_ms }
}

pub(in crate::core) fn carrier_of(spec: &ExternalSpec) -> Carrier {
    match spec.target {
        Target::Program(_) => Carrier::Sandbox,
        Target::Remote(_) => Carrier::Network,
    }
}

/// Does what a row says need another connection?
pub(in crate::core) fn needs_new_link(old: &ExternalSpec, new: &ExternalSpec) -> bool {
    let same_link = ExternalSpec {
        description: new.description.clone(),
        enabled: new.enabled,
        request_timeout_ms: new.request_timeout_ms,
        health: new.health.clone(),
        max_in_flight: new.max_in_flight,
        queue_max: new.queue_max,
        ..old.clone()
    };
    same_link != *new
}
