//! Published ports on their way to the next program. An attempt to see whether a new instance answers is made anew.

use super::{Knock, Named, Ports, Published};
use crate::api::auth::Tokens;
use crate::ids::InstanceId;
use crate::os::event_loop::token::EventSource;
use crate::os::net::pairs::carried::CarriedPairs;
use crate::os::upgrade::carrying::{Carrying, adopt_tcp_listener};
use mio::{Interest, Registry};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;

#[derive(Default, Serialize, Deserialize)]
pub struct CarriedPorts {
    minted: u64,
    published: BTreeMap<InstanceId, CarriedPublished>,
    knocks: BTreeMap<InstanceId, u64>,
    pairs: CarriedPairs,
}

#[derive(Serialize, Deserialize)]
struct CarriedPublished {
    listeners: Vec<(u64, RawFd, u16)>,
    address: Option<IpAddr>,
    first_port: Option<u16>,
    refused: u64,
    refused_log_ms: u64,
}

impl Ports {
    pub fn carry(&self, carrying: &mut Carrying) -> CarriedPorts {
        let published = self.published.iter().map(|(instance, published)| {
            let listeners = published.listeners.iter();
            let carried = CarriedPublished {
                listeners: listeners.map(|(token, socket, port)| (*token, carrying.name(socket), *port)).collect(),
                address: published.address,
                first_port: published.first_port,
                refused: published.refused,
                refused_log_ms: published.refused_log_ms,
            };
            (*instance, carried)
        });
        CarriedPorts {
            minted: self.minted,
            published: published.collect(),
            knocks: self.knocks.iter().map(|(instance, knock)| (*instance, knock.token)).collect(),
            pairs: self.pairs.carry(carrying),
        }
    }

    pub fn adopt(&mut self, carried: CarriedPorts, tokens: &Tokens, registry: &Registry) -> io::Result<()> {
        self.minted = carried.minted;
        for (instance, published) in carried.published {
            let mut listeners = Vec::new();
            for (index, (token, number, port)) in published.listeners.into_iter().enumerate() {
                let mut listener = adopt_tcp_listener(number)?;
                registry.register(&mut listener, EventSource::Port(token).token(), Interest::READABLE)?;
                self.named.insert(token, Named::Listener { instance, index });
                listeners.push((token, listener, port));
            }
            let CarriedPublished { address, first_port, refused, refused_log_ms, .. } = published;
            if address.is_some() {
                self.eager.extend((0..listeners.len()).map(|index| (instance, index)));
            }
            let published = Published { listeners, address, first_port, refused, refused_log_ms };
            self.published.insert(instance, published);
        }
        for (instance, token) in carried.knocks {
            self.named.insert(token, Named::Knock(instance));
            self.knocks.insert(instance, Knock { token, socket: None, again_ms: 0 });
        }
        self.pairs.adopt(carried.pairs, tokens, registry)
    }
}
