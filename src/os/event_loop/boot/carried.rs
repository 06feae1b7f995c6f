//! What boot finds instead of making it, when it takes over from the program before: the lock, and the listeners.

use super::{Kind, Listener, SocketFile};
use crate::api::auth::Peer;
use crate::config::Config;
use crate::os::event_loop::token::EventSource;
use crate::os::net::tls::TlsKeys;
use crate::os::upgrade::carrying::{Carrying, adopt, adopt_tcp_listener, adopt_unix_listener};
use mio::{Interest, Poll};
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::Arc;

/// The lock that the program before had. It is the open file that has it, so it was never given back.
pub(super) fn still_locked(number: RawFd) -> Result<Flock<File>, String> {
    let file = adopt(number).map_err(|e| format!("the lock of the data directory was not handed over: {e}"))?;
    Flock::lock(File::from(file), FlockArg::LockExclusiveNonblock)
        .map_err(|(_, e)| format!("the lock of the data directory was lost: {e}"))
}

/// A listener on its way to the next program. Who connects meanwhile waits in it.
#[derive(Serialize, Deserialize)]
pub struct CarriedListener {
    number: RawFd,
    kind: CarriedKind,
    address: String,
    admits: Peer,
    file: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum CarriedKind {
    Tcp,
    Tls,
    Unix,
}

impl Listener {
    pub fn carry(&self, carrying: &mut Carrying) -> CarriedListener {
        let (number, kind) = match &self.kind {
            Kind::Tcp(socket) => (carrying.name(socket), CarriedKind::Tcp),
            Kind::Tls(socket, _) => (carrying.name(socket), CarriedKind::Tls),
            Kind::Unix(socket) => (carrying.name(socket), CarriedKind::Unix),
        };
        let file = self.file.as_ref().map(|file| file.0.clone());
        CarriedListener { number, kind, address: self.address.clone(), admits: self.admits, file }
    }

    pub fn speaks_tls(&self) -> bool {
        matches!(self.kind, Kind::Tls(..))
    }
}

pub(super) fn adopt_listeners(
    carried: &[CarriedListener],
    config: &Config,
    poll: &Poll,
) -> Result<Vec<Listener>, String> {
    let keys = config.tls.as_ref().map(TlsKeys::read).transpose()?;
    let mut listeners = Vec::new();
    for (index, CarriedListener { number, kind, address, admits, file }) in carried.iter().enumerate() {
        let failed = |e: io::Error| format!("cannot listen on {address} any more: {e}");
        let token = EventSource::Listener(index).token();
        let mut kind = match (kind, &keys) {
            (CarriedKind::Tcp, _) => Kind::Tcp(adopt_tcp_listener(*number).map_err(failed)?),
            (CarriedKind::Unix, _) => Kind::Unix(adopt_unix_listener(*number).map_err(failed)?),
            (CarriedKind::Tls, Some(keys)) => Kind::Tls(adopt_tcp_listener(*number).map_err(failed)?, Arc::clone(keys)),
            (CarriedKind::Tls, None) => return Err(format!("there is no certificate for {address} any more")),
        };
        let registered = match &mut kind {
            Kind::Tcp(socket) | Kind::Tls(socket, _) => poll.registry().register(socket, token, Interest::READABLE),
            Kind::Unix(socket) => poll.registry().register(socket, token, Interest::READABLE),
        };
        registered.map_err(failed)?;
        let file = file.clone().map(SocketFile);
        listeners.push(Listener { kind, address: address.clone(), admits: *admits, file });
    }
    Ok(listeners)
}
