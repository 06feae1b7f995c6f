//! Who has how much of what the daemon has. Everything that a peer can make the daemon hold (memory in buffers,
//! connections, relays, sessions, streams, private instances, watchers) is counted here by its owner, against a cap per
//! owner and one for all together. Pure: knows numbers, never what they stand for. The core and the shell have a ledger
//! each, because what they hold is theirs alone; the caps of both are in `limits.rs`.
//! Invariant: what the owners have adds up to `taken` (what belongs to several at once counts once there), and growing
//! never passes a cap.

use crate::ids::ServerId;
use crate::limits::{self, MEMORY_BUDGET};
use crate::model::ranges::Net;
use ::core::net::{IpAddr, Ipv6Addr};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// Whose share it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Owner {
    Server(ServerId),
    /// By the name of its token.
    Principal(Arc<str>),
    /// Somebody who has not said yet who it is; made by `Owner::at`.
    Address(IpAddr),
    /// As above, on a unix socket: the kernel knows the user.
    User(u32),
}

impl Owner {
    /// Whoever is at this address. An IPv6 host commands all addresses of its /64, so these are one.
    pub fn at(address: IpAddr) -> Owner {
        Owner::Address(match address.to_canonical() {
            IpAddr::V4(v4) => IpAddr::V4(v4),
            IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX))),
        })
    }

    /// It has shown no token, and nobody vouches for it.
    pub fn is_stranger(&self) -> bool {
        match self {
            Owner::Address(_) | Owner::User(_) => true,
            Owner::Server(_) | Owner::Principal(_) => false,
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Owner::Server(id) => write!(f, "server {id}"),
            Owner::Principal(name) => write!(f, "token {name}"),
            Owner::Address(address) => write!(f, "address {address}"),
            Owner::User(uid) => write!(f, "user {uid}"),
        }
    }
}

/// What is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Resource {
    /// Bytes in buffers, beyond what each holder may keep anyway.
    Memory,
    /// Client connections.
    Connections,
    /// Pairs of connections: published ports, and requests that are passed on to servers that speak HTTP.
    Relays,
    Sessions,
    /// Open streams of events, of whatever kind.
    Streams,
    PrivateInstances,
    /// Those who watch the events of all servers, or follow a log.
    Watchers,
    /// Bytes of what servers offer, kept to be told to clients.
    Lists,
    /// Bytes that wait for servers' stdin.
    Unread,
    /// Bytes of the lines that servers are in the middle of.
    Lines,
}

/// How much of one resource there is, and how much of it one owner of each kind may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caps {
    pub whole: usize,
    pub principal: usize,
    pub server: usize,
    /// Also of a local user without a token.
    pub address: usize,
}

impl Caps {
    fn of(self, owner: &Owner) -> usize {
        match owner {
            Owner::Principal(_) => self.principal,
            Owner::Server(_) => self.server,
            Owner::Address(_) | Owner::User(_) => self.address,
        }
    }

    /// There is less than was planned for: everybody's part shrinks with the whole, down to one.
    fn within(self, whole: usize) -> Caps {
        if whole >= self.whole {
            return self;
        }
        let part = |cap: usize| (cap * whole / self.whole).max(usize::from(cap > 0));
        Caps { whole, principal: part(self.principal), server: part(self.server), address: part(self.address) }
    }
}

/// Why there is no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Short {
    /// The owner has all that one owner may have.
    Owner,
    /// All owners together have all there is.
    Whole,
}

impl Resource {
    pub const ALL: [Resource; 10] = [
        Resource::Memory,
        Resource::Connections,
        Resource::Relays,
        Resource::Sessions,
        Resource::Streams,
        Resource::PrivateInstances,
        Resource::Watchers,
        Resource::Lists,
        Resource::Unread,
        Resource::Lines,
    ];

    /// As planned; a ledger may have less.
    pub fn caps(self) -> Caps {
        match self {
            Resource::Memory => limits::SHARE_MEMORY,
            Resource::Connections => limits::SHARE_CONNECTIONS,
            Resource::Relays => limits::SHARE_RELAYS,
            Resource::Sessions => limits::SHARE_SESSIONS,
            Resource::Streams => limits::SHARE_STREAMS,
            Resource::PrivateInstances => limits::SHARE_PRIVATE_INSTANCES,
            Resource::Watchers => limits::SHARE_WATCHERS,
            Resource::Lists => limits::SHARE_LISTS,
            Resource::Unread => limits::SHARE_UNREAD,
            Resource::Lines => limits::SHARE_LINES,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Resource::Memory => "bytes in buffers",
            Resource::Connections => "connections",
            Resource::Relays => "relays",
            Resource::Sessions => "sessions",
            Resource::Streams => "streams",
            Resource::PrivateInstances => "private instances",
            Resource::Watchers => "watchers",
            Resource::Lists => "bytes of lists",
            Resource::Unread => "bytes that servers have not read",
            Resource::Lines => "bytes of unfinished lines",
        }
    }
}

type Amounts = [usize; Resource::ALL.len()];

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Shares {
    caps: [Caps; Resource::ALL.len()],
    taken: Amounts,
    /// Addresses that speak for many: each may have what one token may.
    proxies: Vec<Net>,
    /// Only those who have something.
    owners: HashMap<Owner, Amounts>,
}

impl Default for Shares {
    fn default() -> Shares {
        Shares {
            caps: Resource::ALL.map(Resource::caps),
            taken: Amounts::default(),
            proxies: Vec::new(),
            owners: HashMap::new(),
        }
    }
}

impl Shares {
    /// This host has no more of it than that.
    pub fn narrow(&mut self, what: Resource, whole: usize) {
        self.caps[what as usize] = what.caps().within(whole);
    }

    /// The daemon may have so much memory: what all, and each token, may have of it follows.
    pub fn plan(&mut self, budget_bytes: usize) {
        for what in [Resource::Memory, Resource::Lists, Resource::Unread, Resource::Lines] {
            let caps = what.caps();
            let part = |cap: usize| (cap as u128 * budget_bytes as u128 / MEMORY_BUDGET as u128) as usize;
            self.caps[what as usize] = Caps { whole: part(caps.whole), principal: part(caps.principal), ..caps };
        }
    }

    /// One address, or a local user without a token, may have so much of it.
    pub fn cap_address(&mut self, what: Resource, most: usize) {
        let caps = &mut self.caps[what as usize];
        caps.address = most.min(caps.whole);
    }

    /// Behind each of these addresses there are many, whom only they can tell apart.
    pub fn speak_for_many(&mut self, proxies: Vec<Net>) {
        self.proxies = proxies;
    }

    fn cap(&self, owner: &Owner, what: Resource) -> usize {
        let caps = self.caps[what as usize];
        let is_proxy = |address: &IpAddr| {
            let is_it = |net: &Net| net.contains(*address) || Owner::at(net.address) == *owner;
            self.proxies.iter().any(is_it)
        };
        match owner {
            Owner::Address(address) if !self.proxies.is_empty() && is_proxy(address) => {
                caps.principal.max(caps.address)
            }
            Owner::Principal(_) | Owner::Server(_) | Owner::Address(_) | Owner::User(_) => caps.of(owner),
        }
    }

    /// So much more for this owner, or nothing.
    pub fn take(&mut self, owner: &Owner, what: Resource, amount: usize) -> Result<(), Short> {
        self.take_for(std::slice::from_ref(owner), what, amount).map_err(|(_, short)| short)
    }

    /// So much more that belongs to all of these, or nothing; an error says which of them is short.
    pub fn take_for(&mut self, owners: &[Owner], what: Resource, amount: usize) -> Result<(), (usize, Short)> {
        let caps = self.caps[what as usize];
        for (at, owner) in owners.iter().enumerate() {
            if self.of(owner, what).saturating_add(amount) > self.cap(owner, what) {
                return Err((at, Short::Owner));
            }
        }
        if self.taken[what as usize].saturating_add(amount) > caps.whole {
            return Err((0, Short::Whole));
        }
        owners.iter().for_each(|owner| self.add_to(owner, what, amount));
        self.taken[what as usize] += amount;
        Ok(())
    }

    /// What this owner may still take.
    pub fn room(&self, owner: &Owner, what: Resource) -> usize {
        let caps = self.caps[what as usize];
        let own = self.cap(owner, what).saturating_sub(self.of(owner, what));
        own.min(caps.whole.saturating_sub(self.taken(what)))
    }

    /// As `take`, for what somebody has made sure of by `room`.
    pub fn put(&mut self, owner: &Owner, what: Resource, amount: usize) {
        debug_assert!(amount <= self.room(owner, what), "{amount} more {} for {owner}", what.name());
        self.add_to(owner, what, amount);
        self.taken[what as usize] += amount;
    }

    /// What was taken, or a part of it.
    pub fn give_back(&mut self, owner: &Owner, what: Resource, amount: usize) {
        self.give_back_for(std::slice::from_ref(owner), what, amount);
    }

    /// What was taken by `take_for`.
    pub fn give_back_for(&mut self, owners: &[Owner], what: Resource, amount: usize) {
        if amount > 0 {
            owners.iter().for_each(|owner| self.remove_from(owner, what, amount));
            self.taken[what as usize] -= amount;
        }
    }

    /// A holder that had `held` wants `wanted`. To shrink is always allowed; where it may not grow, it keeps what it had.
    pub fn resize(&mut self, owner: &Owner, what: Resource, held: &mut usize, wanted: usize) -> Result<(), Short> {
        match wanted.checked_sub(*held) {
            Some(more) => self.take(owner, what, more)?,
            None => self.give_back(owner, what, *held - wanted),
        }
        *held = wanted;
        Ok(())
    }

    /// What somebody holds belongs to somebody else from here on: its owner has said who it is.
    pub fn pass_on(&mut self, from: &Owner, to: &Owner, what: Resource, amount: usize) -> Result<(), Short> {
        self.give_back(from, what, amount);
        let passed = self.take(to, what, amount);
        if passed.is_err() {
            self.add_to(from, what, amount);
            self.taken[what as usize] += amount;
        }
        passed
    }

    /// What was passed on goes back to whom it was of; that always fits, because it had it before.
    pub fn hand_back(&mut self, from: &Owner, to: &Owner, what: Resource, amount: usize) {
        self.remove_from(from, what, amount);
        self.add_to(to, what, amount);
    }

    /// What this owner has.
    pub fn of(&self, owner: &Owner, what: Resource) -> usize {
        self.owners.get(owner).map_or(0, |amounts| amounts[what as usize])
    }

    /// What all have together.
    pub fn taken(&self, what: Resource) -> usize {
        self.taken[what as usize]
    }

    /// For an operator: each resource that somebody has some of, how much there is, and who has the most.
    pub fn summary(&self) -> Vec<String> {
        let in_use = Resource::ALL.into_iter().filter(|what| self.taken(*what) > 0);
        in_use
            .map(|what| {
                let most = self.owners.iter().map(|(owner, amounts)| (amounts[what as usize], owner)).max();
                let most = most.map_or(String::new(), |(amount, owner)| format!(", {amount} of {owner}"));
                format!("{} of {} {}{most}", self.taken(what), self.caps[what as usize].whole, what.name())
            })
            .collect()
    }

    fn add_to(&mut self, owner: &Owner, what: Resource, amount: usize) {
        if amount == 0 {
            return;
        }
        match self.owners.get_mut(owner) {
            Some(amounts) => amounts[what as usize] += amount,
            None => {
                let mut amounts = Amounts::default();
                amounts[what as usize] = amount;
                self.owners.insert(owner.clone(), amounts);
            }
        }
    }

    fn remove_from(&mut self, owner: &Owner, what: Resource, amount: usize) {
        if amount == 0 {
            return;
        }
        let amounts = self.owners.get_mut(owner).expect("only what was taken is given back");
        amounts[what as usize] = amounts[what as usize].checked_sub(amount).expect("no more than was taken");
        if *amounts == Amounts::default() {
            self.owners.remove(owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Uuid;

    fn token(name: &str) -> Owner {
        Owner::Principal(name.into())
    }

    #[test]
    fn nobody_can_take_what_belongs_to_all() {
        for what in Resource::ALL {
            let mut shares = Shares::default();
            let ([a, b], cap) = match what.caps().principal {
                0 => ([Uuid::nil(), Uuid::max()].map(|id| Owner::Server(ServerId(id))), what.caps().server),
                cap => (["a", "b"].map(token), cap),
            };
            shares.take(&a, what, cap).unwrap();
            assert_eq!(shares.take(&a, what, 1), Err(Short::Owner), "{what:?}");
            shares.take(&b, what, 1).unwrap_or_else(|short| panic!("{what:?}: {short:?} after one owner"));
        }
    }

    #[test]
    fn shares_of_memory_follow_the_budget_and_one_server_keeps_its_room() {
        let room = |budget: usize, what: Resource, owner: &Owner| {
            let mut shares = Shares::default();
            shares.plan(budget);
            shares.room(owner, what)
        };
        let (tenant, server) = (token("a"), Owner::Server(ServerId(Uuid::nil())));
        let principal = Resource::Memory.caps().principal;
        assert_eq!(room(MEMORY_BUDGET, Resource::Memory, &tenant), principal);
        assert_eq!(room(2 * MEMORY_BUDGET, Resource::Memory, &tenant), 2 * principal);
        assert!(room(*limits::MEMORY_BUDGETS.start(), Resource::Memory, &tenant) < principal);
        for budget in [*limits::MEMORY_BUDGETS.start(), *limits::MEMORY_BUDGETS.end()] {
            assert_eq!(room(budget, Resource::Lines, &server), Resource::Lines.caps().server);
        }
    }

    #[test]
    fn all_together_have_no_more_than_there_is() {
        let mut shares = Shares::default();
        let caps = Resource::Sessions.caps();
        let mut owners = 0;
        while shares.take(&token(&format!("t{owners}")), Resource::Sessions, caps.principal).is_ok() {
            owners += 1;
        }
        assert_eq!(owners, caps.whole / caps.principal);
        assert_eq!(shares.take(&token("last"), Resource::Sessions, caps.principal), Err(Short::Whole));
        assert_eq!(shares.taken(Resource::Sessions), owners * caps.principal, "what was refused is not counted");
    }

    #[test]
    fn where_there_is_less_everybody_has_less() {
        let mut shares = Shares::default();
        shares.narrow(Resource::Connections, 800);
        let part = Resource::Connections.caps().principal * 800 / Resource::Connections.caps().whole;
        assert_eq!(shares.take(&token("a"), Resource::Connections, part + 1), Err(Short::Owner));
        shares.take(&token("a"), Resource::Connections, part).unwrap();
        assert_eq!(shares.take(&token("b"), Resource::Connections, part), Err(Short::Whole));
        shares.narrow(Resource::Connections, usize::MAX);
        shares.take(&token("b"), Resource::Connections, part).unwrap();
    }

    #[test]
    fn a_holder_may_always_shrink_and_keeps_what_it_had_when_it_may_not_grow() {
        let (mut shares, owner, mut held) = (Shares::default(), token("a"), 0);
        let cap = Resource::Memory.caps().principal;
        shares.resize(&owner, Resource::Memory, &mut held, cap).unwrap();
        assert_eq!(shares.resize(&owner, Resource::Memory, &mut held, cap + 1), Err(Short::Owner));
        assert_eq!((held, shares.of(&owner, Resource::Memory)), (cap, cap));
        shares.resize(&owner, Resource::Memory, &mut held, 3).unwrap();
        shares.resize(&owner, Resource::Memory, &mut held, 0).unwrap();
        assert!(shares.owners.is_empty(), "whoever has nothing is not kept");
    }

    #[test]
    fn what_belongs_to_two_counts_for_both_and_once_in_the_whole() {
        let (a, server) = (token("a"), Owner::Server(ServerId(crate::ids::Uuid::nil())));
        let mut shares = Shares::default();
        let caps = Resource::PrivateInstances.caps();
        for _ in 0..caps.principal {
            shares.take_for(&[a.clone(), server.clone()], Resource::PrivateInstances, 1).unwrap();
        }
        assert_eq!(
            shares.take_for(&[a.clone(), server.clone()], Resource::PrivateInstances, 1),
            Err((0, Short::Owner))
        );
        assert_eq!(shares.taken(Resource::PrivateInstances), caps.principal);
        for n in caps.principal..caps.server {
            let other = token(&format!("t{n}"));
            shares.take_for(&[other, server.clone()], Resource::PrivateInstances, 1).unwrap();
        }
        let one_more = [token("b"), server.clone()];
        assert_eq!(shares.take_for(&one_more, Resource::PrivateInstances, 1), Err((1, Short::Owner)));
        assert_eq!(shares.of(&token("b"), Resource::PrivateInstances), 0, "all or nothing");
        shares.give_back_for(&[a.clone(), server.clone()], Resource::PrivateInstances, 1);
        shares.take_for(&one_more, Resource::PrivateInstances, 1).unwrap();
        assert_eq!(shares.taken(Resource::PrivateInstances), caps.server);
    }

    #[test]
    fn a_connection_changes_hands_when_it_says_whose_it_is() {
        let mut shares = Shares::default();
        let (before, after) = (Owner::at("10.0.0.1".parse().unwrap()), token("a"));
        shares.take(&before, Resource::Connections, 1).unwrap();
        shares.pass_on(&before, &after, Resource::Connections, 1).unwrap();
        assert_eq!((shares.of(&before, Resource::Connections), shares.of(&after, Resource::Connections)), (0, 1));
        let cap = Resource::Connections.caps().principal;
        shares.take(&after, Resource::Connections, cap - 1).unwrap();
        shares.take(&before, Resource::Connections, 1).unwrap();
        assert_eq!(shares.pass_on(&before, &after, Resource::Connections, 1), Err(Short::Owner));
        assert_eq!(shares.of(&before, Resource::Connections), 1, "it is still somebody's");
    }

    #[test]
    fn one_host_is_one_owner_whichever_of_its_addresses_it_uses() {
        let at = |text: &str| Owner::at(text.parse().unwrap());
        assert_eq!(at("2001:db8:1:2::1"), at("2001:db8:1:2:ffff::9"));
        assert_ne!(at("2001:db8:1:2::1"), at("2001:db8:1:3::1"));
        assert_eq!(at("::ffff:10.0.0.1"), at("10.0.0.1"));
        assert_ne!(at("10.0.0.2"), at("10.0.0.1"));
    }

    #[test]
    fn an_operator_sees_who_has_the_most() {
        let mut shares = Shares::default();
        shares.take(&token("small"), Resource::Sessions, 1).unwrap();
        shares.take(&token("large"), Resource::Sessions, 7).unwrap();
        let whole = Resource::Sessions.caps().whole;
        assert_eq!(shares.summary(), [format!("8 of {whole} sessions, 7 of token large")]);
    }
}
