//! What client connections have taken of the shares, and for whom. A connection belongs to the address (or local user) it
//! comes from until it shows a token, and to that token's principal from then on. Owns no socket and no buffer.
//! Invariant: what a `Holding` says it has is what the ledger counts for its owner.

use crate::ids::ConnId;
use crate::model::principal::Principal;
use crate::shares::{Owner, Resource, Shares, Short};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// What one connection has.
#[derive(Clone, Serialize, Deserialize)]
pub struct Holding {
    owner: Owner,
    /// None for a connection that is one too many, and is only told so.
    connections: usize,
    memory: usize,
    streams: usize,
}

impl Holding {
    /// `connections`: what was taken for it.
    pub fn new(owner: Owner, connections: usize) -> Holding {
        Holding { owner, connections, memory: 0, streams: 0 }
    }

    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    pub fn is_counted(&self) -> bool {
        self.connections > 0
    }

    pub fn has_memory(&self) -> bool {
        self.memory > 0
    }

    /// It has shown who it is: what it has is that principal's from here on.
    pub fn belongs_to(&mut self, who: &Principal, shares: &mut Shares) -> Result<(), Short> {
        match &self.owner {
            Owner::Principal(name) if *name == who.name => return Ok(()),
            Owner::Principal(_) | Owner::Server(_) | Owner::Address(_) | Owner::User(_) => {}
        }
        let owner = Owner::Principal(Arc::clone(&who.name));
        let held = [
            (Resource::Connections, self.connections),
            (Resource::Memory, self.memory),
            (Resource::Streams, self.streams),
        ];
        for (at, (what, amount)) in held.into_iter().enumerate() {
            if let Err(short) = shares.pass_on(&self.owner, &owner, what, amount) {
                for (what, amount) in held.into_iter().take(at) {
                    shares.hand_back(&owner, &self.owner, what, amount);
                }
                return Err(short);
            }
        }
        self.owner = owner;
        Ok(())
    }

    /// Its buffers hold so many bytes beyond what every connection may keep anyway.
    pub fn remember(&mut self, bytes: usize, shares: &mut Shares) -> Result<(), Short> {
        if bytes == self.memory {
            return Ok(());
        }
        shares.resize(&self.owner, Resource::Memory, &mut self.memory, bytes)
    }

    pub fn open_stream(&mut self, shares: &mut Shares) -> Result<(), Short> {
        shares.resize(&self.owner, Resource::Streams, &mut self.streams, 1)
    }

    /// The connection is over.
    pub fn give_back(&mut self, shares: &mut Shares) {
        shares.give_back(&self.owner, Resource::Connections, std::mem::take(&mut self.connections));
        shares.give_back(&self.owner, Resource::Memory, std::mem::take(&mut self.memory));
        shares.give_back(&self.owner, Resource::Streams, std::mem::take(&mut self.streams));
    }
}

/// Connections of those who have shown no token, the oldest first. Lazy: one that is over, or belongs to somebody by now,
/// stays until its turn comes or there are too many of them.
#[derive(Default)]
pub struct Strangers {
    by_owner: HashMap<Owner, VecDeque<ConnId>>,
}

impl Strangers {
    pub fn came(&mut self, owner: &Owner, conn: ConnId, is_still: impl Fn(ConnId) -> bool) {
        let queue = match self.by_owner.get_mut(owner) {
            Some(queue) => queue,
            None => self.by_owner.entry(owner.clone()).or_default(),
        };
        queue.push_back(conn);
        if queue.len() > 2 * Resource::Connections.caps().address {
            queue.retain(|conn| is_still(*conn));
        }
    }

    /// The oldest connection of this owner that was not asked for yet.
    pub fn oldest(&mut self, owner: &Owner) -> Option<ConnId> {
        self.by_owner.get_mut(owner)?.pop_front()
    }

    /// No connection of this owner is left.
    pub fn forget(&mut self, owner: &Owner) {
        self.by_owner.remove(owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> Owner {
        Owner::at("10.0.0.1".parse().unwrap())
    }

    fn principal(name: &str) -> Principal {
        Principal { name: name.into(), ..Principal::anonymous() }
    }

    #[test]
    fn all_of_it_changes_hands_or_nothing_does() {
        let mut shares = Shares::default();
        shares.take(&address(), Resource::Connections, 1).unwrap();
        let mut holding = Holding::new(address(), 1);
        holding.remember(1000, &mut shares).unwrap();
        // The principal has room for a connection, but not for the memory.
        let owner = Owner::Principal("a".into());
        let full = Resource::Memory.caps().principal;
        shares.take(&owner, Resource::Memory, full).unwrap();
        assert_eq!(holding.belongs_to(&principal("a"), &mut shares), Err(Short::Owner));
        assert_eq!(*holding.owner(), address());
        assert_eq!(shares.of(&address(), Resource::Connections), 1);
        assert_eq!(shares.of(&owner, Resource::Connections), 0);
        holding.belongs_to(&principal("b"), &mut shares).unwrap();
        assert_eq!(shares.of(&Owner::Principal("b".into()), Resource::Memory), 1000);
        holding.give_back(&mut shares);
        holding.give_back(&mut shares);
        assert_eq!(shares.taken(Resource::Memory), full);
        assert_eq!(shares.taken(Resource::Connections), 0);
    }

    #[test]
    fn the_oldest_stranger_is_asked_for_once_and_forgotten_ones_do_not_pile_up() {
        let mut strangers = Strangers::default();
        for conn in 0..10_000 {
            strangers.came(&address(), ConnId(conn), |conn| conn.0 > 9_000);
        }
        assert!(strangers.by_owner[&address()].len() <= 2 * Resource::Connections.caps().address + 1_000);
        let first = strangers.oldest(&address()).unwrap();
        assert!(strangers.oldest(&address()).unwrap() > first);
        strangers.forget(&address());
        assert_eq!(strangers.oldest(&address()), None);
    }
}
