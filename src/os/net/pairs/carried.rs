//! Pairs of connections on their way to the next program, with what each side has not taken yet.

use super::{Carries, Owners, Pair, Pairs, Side};
use crate::api::auth::Tokens;
use crate::ids::InstanceId;
use crate::os::event_loop::token::EventSource;
use crate::os::net::client::Socket;
use crate::os::net::client::carried::CarriedSocket;
use crate::os::upgrade::carrying::Carrying;
use mio::{Interest, Registry};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;

#[derive(Default, Serialize, Deserialize)]
pub struct CarriedPairs {
    pairs: BTreeMap<u64, CarriedPair>,
    minted: u64,
}

#[derive(Serialize, Deserialize)]
struct CarriedPair {
    instance: InstanceId,
    owners: Owners,
    counted: usize,
    sides: [CarriedSide; 2],
    carries: Carries,
    begun_ms: u64,
    connected: bool,
    moved_ms: u64,
}

#[derive(Serialize, Deserialize)]
struct CarriedSide {
    socket: CarriedSocket,
    left: bool,
    ended: bool,
    out: Vec<u8>,
    closed: bool,
}

impl Pairs {
    pub fn carry(&self, carrying: &mut Carrying) -> CarriedPairs {
        let pairs = self.map.iter().filter_map(|(id, pair)| Some((*id, pair.carry(carrying)?)));
        CarriedPairs { pairs: pairs.collect(), minted: self.minted }
    }

    /// Those that cannot go along: their client speaks TLS.
    pub fn left_behind(&self) -> usize {
        let is_tls = |pair: &&Pair| pair.sides.iter().any(|side| matches!(side.socket, Socket::Tls(_)));
        self.map.values().filter(is_tls).count()
    }

    pub fn adopt(&mut self, carried: CarriedPairs, tokens: &Tokens, registry: &Registry) -> io::Result<()> {
        (self.minted, self.edition) = (carried.minted, tokens.edition());
        for (id, pair) in carried.pairs {
            let mut pair = pair.adopt()?;
            if let Carries::Answer { exchange, .. } = &mut pair.carries {
                tokens.rejoin(&mut exchange.who);
            }
            for (at, side) in pair.sides.iter_mut().enumerate() {
                let token = EventSource::Pair(id << 1 | at as u64).token();
                registry.register(side.socket.source(), token, Interest::READABLE | Interest::WRITABLE)?;
            }
            self.map.insert(id, pair);
            self.arm(id);
        }
        Ok(())
    }
}

impl Pair {
    fn carry(&self, carrying: &mut Carrying) -> Option<CarriedPair> {
        let [client, server] = &self.sides;
        Some(CarriedPair {
            instance: self.instance,
            owners: self.owners.clone(),
            counted: self.counted,
            sides: [client.carry(carrying)?, server.carry(carrying)?],
            carries: self.carries.clone(),
            begun_ms: self.begun_ms,
            connected: self.connected,
            moved_ms: self.moved_ms,
        })
    }
}

impl CarriedPair {
    fn adopt(self) -> io::Result<Pair> {
        let [client, server] = self.sides;
        Ok(Pair {
            instance: self.instance,
            owners: self.owners,
            counted: self.counted,
            sides: [client.adopt()?, server.adopt()?],
            carries: self.carries,
            begun_ms: self.begun_ms,
            connected: self.connected,
            moved_ms: self.moved_ms,
            armed_ms: None,
            queued: false,
        })
    }
}

impl Side {
    /// None: it speaks TLS.
    fn carry(&self, carrying: &mut Carrying) -> Option<CarriedSide> {
        let out = self.out[self.written..].to_vec();
        let socket = self.socket.carry(carrying)?;
        Some(CarriedSide { socket, left: self.left, ended: self.ended, out, closed: self.closed })
    }
}

impl CarriedSide {
    fn adopt(self) -> io::Result<Side> {
        let mut side = Side::new(Socket::adopt(self.socket)?);
        (side.left, side.ended, side.out, side.closed) = (self.left, self.ended, self.out, self.closed);
        Ok(side)
    }
}
