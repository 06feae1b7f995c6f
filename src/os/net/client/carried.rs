//! A client connection on its way to the next program. One that speaks TLS has keys that cannot go along, and does not.

use crate::api::audit::Draft;
use crate::api::auth::{Peer, Shown};
use crate::ids::ConnId;
use crate::model::metrics::Traffic;
use crate::os::net::client::{Client, Doing, Socket, Via};
use crate::os::net::holding::Holding;
use crate::os::upgrade::carrying::{Carrying, adopt_tcp, adopt_unix};
use crate::wire::backlog::Backlog;
use crate::wire::forwarded::TrustedProxies;
use crate::wire::http_in::{Parser, RequestPhase};
use serde::{Deserialize, Serialize};
use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum CarriedSocket {
    Tcp(RawFd),
    Unix(RawFd),
}

impl Socket {
    /// None: it speaks TLS.
    pub fn carry(&self, carrying: &mut Carrying) -> Option<CarriedSocket> {
        match self {
            Socket::Tcp(socket) => Some(CarriedSocket::Tcp(carrying.name(socket))),
            Socket::Unix(socket) => Some(CarriedSocket::Unix(carrying.name(socket))),
            Socket::Tls(_) => None,
        }
    }

    pub fn adopt(carried: CarriedSocket) -> io::Result<Socket> {
        match carried {
            CarriedSocket::Tcp(number) => adopt_tcp(number).map(Socket::Tcp),
            CarriedSocket::Unix(number) => adopt_unix(number).map(Socket::Unix),
        }
    }
}

/// What it has shown is asked for once more: its next request shows it again.
#[derive(Serialize, Deserialize)]
pub struct CarriedClient {
    pub id: ConnId,
    socket: CarriedSocket,
    peer: Peer,
    /// What a proxy has said of whose request this is.
    forwarded_for: Option<IpAddr>,
    parser: Parser,
    holding: Holding,
    doing: Doing,
    hung_up: bool,
    large: bool,
    out: Vec<u8>,
    taken_ms: Option<u64>,
    written_by_ms: Option<u64>,
    drafts: Vec<Draft>,
    keep_alive: bool,
    head_only: bool,
    http10: bool,
    phase: RequestPhase,
    deadline_ms: Option<u64>,
    ends_ms: Option<u64>,
    traffic: Traffic,
}

impl Client {
    /// None: it speaks TLS.
    pub fn carry(&self, carrying: &mut Carrying) -> Option<CarriedClient> {
        Some(CarriedClient {
            id: self.id,
            socket: self.socket.carry(carrying)?,
            peer: self.peer,
            forwarded_for: self.via.as_ref().and_then(|via| via.client),
            parser: self.parser.clone(),
            holding: self.holding.clone(),
            doing: self.doing,
            hung_up: self.hung_up,
            large: self.large,
            out: self.out.unwritten(),
            taken_ms: self.taken_ms,
            written_by_ms: self.written_by_ms,
            drafts: self.drafts.clone(),
            keep_alive: self.keep_alive,
            head_only: self.head_only,
            http10: self.http10,
            phase: self.phase,
            deadline_ms: self.deadline_ms,
            ends_ms: self.ends_ms,
            traffic: self.traffic,
        })
    }

    pub fn adopt(carried: CarriedClient, proxies: &Arc<TrustedProxies>) -> io::Result<Client> {
        let socket = Socket::adopt(carried.socket)?;
        let via = Via::of(&socket, proxies).map(|via| Via { client: carried.forwarded_for, ..via });
        let mut out = Backlog::default();
        out.push(carried.out);
        Ok(Client {
            id: carried.id,
            socket,
            peer: carried.peer,
            via,
            shown: Shown::default(),
            parser: carried.parser,
            holding: carried.holding,
            doing: carried.doing,
            // The kernel says everything again to the one who has just begun to listen.
            readable: false,
            hung_up: carried.hung_up,
            queued: false,
            large: carried.large,
            queued_large: false,
            out,
            taken_ms: carried.taken_ms,
            written_by_ms: carried.written_by_ms,
            drafts: carried.drafts,
            keep_alive: carried.keep_alive,
            head_only: carried.head_only,
            http10: carried.http10,
            phase: carried.phase,
            deadline_ms: carried.deadline_ms,
            ends_ms: carried.ends_ms,
            armed_ms: None,
            traffic: carried.traffic,
        })
    }
}
