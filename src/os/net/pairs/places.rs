//! What a pair takes of the shares, and what whoever finds no room is told.

use super::{CLIENT, Owners, Pair};
use crate::limits::OVERLOAD_RETRY;
use crate::model::fault::{Code, Fault, Outcome};
use crate::shares::{Resource, Shares, Short};

pub(super) fn take_place(owners: &Owners, shares: &mut Shares) -> Result<(), Fault> {
    let fault = match shares.take_for(owners, Resource::Relays, 1) {
        Ok(()) => return Ok(()),
        Err((_, Short::Whole)) => {
            Fault::new(Code::Overloaded, "the connections of all clients to servers take all there are")
        }
        Err((CLIENT, Short::Owner)) => {
            let why = "this client has as many connections to servers as one may have: wait for some to end";
            Fault::new(Code::QueueFull, why)
        }
        Err((_, Short::Owner)) => {
            let why = "this server has as many connections as one may have: wait for some to end";
            Fault::new(Code::QueueFull, why)
        }
    };
    Err(fault.outcome(Outcome::NotSent).retry_after_ms(OVERLOAD_RETRY.as_millis() as u64))
}

pub(super) fn give_place_back(pair: &Pair, shares: &mut Shares) {
    shares.give_back_for(&pair.owners, Resource::Relays, 1);
    shares.give_back(&pair.owners[CLIENT], Resource::Memory, pair.counted);
}

pub(super) fn overloaded(short: Short) -> Fault {
    let why = match short {
        Short::Owner => {
            "what servers have not read of earlier requests with this token fills the memory there is for it"
        }
        Short::Whole => "what servers and clients have not read fills the memory there is for it",
    };
    let fault = Fault::new(Code::Overloaded, format!("{why}; try again, or send less at once"));
    fault.retry_after_ms(OVERLOAD_RETRY.as_millis() as u64)
}
