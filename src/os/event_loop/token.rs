//! What an epoll event is about, packed into mio's token: a kind in the low bits and an id above them. Ids are never
//! reused, so an event of something that is closed finds nothing.

use crate::ids::{ConnId, InstanceId, OutgoingId, PullId};
use mio::Token;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventSource {
    Listener(usize),
    Client(ConnId),
    Stdin(InstanceId),
    Stdout(InstanceId),
    Stderr(InstanceId),
    /// SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2.
    Signals,
    /// A thread of ours has said something: the store, the logs, the meter, the look-ups or the decisions. mio allows one
    /// waker for a poll, so all of them share it and all are asked.
    Threads,
    /// What a puller says.
    Pull(PullId),
    /// Anything of `Ports`, by a number of its own.
    Port(u64),
    /// One side of a pair of `Pairs`, by a number of its own.
    Pair(u64),
    /// The next deadline.
    Alarm,
    /// A connection to another server.
    Outgoing(OutgoingId),
}

const KIND_BITS: u32 = 4;

impl EventSource {
    pub fn token(self) -> Token {
        let (kind, id) = match self {
            EventSource::Listener(index) => (0, index as u64),
            EventSource::Client(conn) => (1, conn.0),
            EventSource::Stdin(instance) => (2, instance.0),
            EventSource::Stdout(instance) => (3, instance.0),
            EventSource::Stderr(instance) => (4, instance.0),
            EventSource::Signals => (5, 0),
            EventSource::Threads => (6, 0),
            EventSource::Pull(pull) => (7, pull.0),
            EventSource::Port(number) => (8, number),
            EventSource::Alarm => (9, 0),
            EventSource::Pair(number) => (10, number),
            EventSource::Outgoing(id) => (11, id.0),
        };
        Token((id << KIND_BITS | kind) as usize)
    }

    pub fn of(token: Token) -> EventSource {
        let (kind, id) = (token.0 & ((1 << KIND_BITS) - 1), token.0 as u64 >> KIND_BITS);
        match kind {
            0 => EventSource::Listener(id as usize),
            1 => EventSource::Client(ConnId(id)),
            2 => EventSource::Stdin(InstanceId(id)),
            3 => EventSource::Stdout(InstanceId(id)),
            4 => EventSource::Stderr(InstanceId(id)),
            5 => EventSource::Signals,
            6 => EventSource::Threads,
            7 => EventSource::Pull(PullId(id)),
            8 => EventSource::Port(id),
            9 => EventSource::Alarm,
            10 => EventSource::Pair(id),
            11 => EventSource::Outgoing(OutgoingId(id)),
            other => unreachable!("no source registers kind {other}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_source_survives_its_token() {
        let all = [
            EventSource::Listener(3),
            EventSource::Client(ConnId(1 << 40)),
            EventSource::Stdin(InstanceId(7)),
            EventSource::Stdout(InstanceId(8)),
            EventSource::Stderr(InstanceId(9)),
            EventSource::Signals,
            EventSource::Threads,
            EventSource::Pull(PullId(10)),
            EventSource::Port(10),
            EventSource::Pair(11),
            EventSource::Outgoing(OutgoingId(12)),
        ];
        for source in all {
            assert_eq!(EventSource::of(source.token()), source);
        }
    }
}
