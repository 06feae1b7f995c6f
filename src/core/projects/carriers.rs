//! What carries the link of an external server: a connection, or a program in a sandbox; when it needs another one, and what the
//! loss of it means. Owns nothing.

use crate::core::links::external::{Carrier, LinkEvent};
use crate::core::links::link::Rules;
use crate::core::peers::peer::Peer;
use crate::model::endpoint::{LinkFault, LinkFaultKind};
use crate::model::external::{ExternalServer, ExternalSpec, Target};
use crate::model::fault::{Code, Fault, Outcome};

/// What the loss of a connection is to its peer.
pub(in crate::core) fn event_of_loss(why: LinkFault) -> LinkEvent {
    match why.kind {
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
    }
}

/// Each failed attempt and each loss is told, whether somebody uses the link or not. In words for the log of the server.
pub(in crate::core) fn told_of_failure(peer: &mut Peer, row: &ExternalServer, why: String, was_up: bool) -> String {
    // What is known of a program that said nothing useful is more than that it took too long.
    let why = peer.put_down_for.take().unwrap_or(why);
    let what = if was_up { "transport-exit" } else { "attempt failed" };
    log::error!("server={} project={} {what}: {why}", row.spec.name, row.project);
    peer.last_error = Some(why.clone());
    peer.restart_due = true;
    format!("{what}: {why}")
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
