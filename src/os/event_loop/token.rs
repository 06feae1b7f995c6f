//! What an epoll event is about, packed into mio's token: a kind in the low bits and an id above them. Ids are never
//! reused, so an event of something that is closed finds nothing.

use crate::ids::{ConnId, InstanceId, PullId};
use mio::Token;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Listener(usize),
    Client(ConnId),
    Stdin(InstanceId),
    Stdout(InstanceId),
    Stderr(InstanceId),
    /// SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGUSR1.
    Signals,
    /// A thread of ours has said something: the store, the logs or the meter. A poll has one waker.
    Threads,
    /// What a puller says.
    Pull(PullId),
    /// Anything of `Ports`, by a number of its own.
    Port(u64),
    /// One side of a pair of `Pairs`, by a number of its own.
    Pair(u64),
    /// The next deadline.
    Alarm,
}

const KIND_BITS: u32 = 4;

impl Source {
    pub fn token(self) -> Token {
        let (kind, id) = match self {
            Source::Listener(index) => (0, index as u64),
            Source::Client(conn) => (1, conn.0),
            Source::Stdin(instance) => (2, instance.0),
            Source::Stdout(instance) => (3, instance.0),
            Source::Stderr(instance) => (4, instance.0),
            Source::Signals => (5, 0),
            Source::Threads => (6, 0),
            Source::Pull(pull) => (7, pull.0),
            Source::Port(number) => (8, number),
            Source::Alarm => (9, 0),
            Source::Pair(number) => (10, number),
        };
        Token((id << KIND_BITS | kind) as usize)
    }

    pub fn of(token: Token) -> Source {
        let (kind, id) = (token.0 & ((1 << KIND_BITS) - 1), token.0 as u64 >> KIND_BITS);
        match kind {
            0 => Source::Listener(id as usize),
            1 => Source::Client(ConnId(id)),
            2 => Source::Stdin(InstanceId(id)),
            3 => Source::Stdout(InstanceId(id)),
            4 => Source::Stderr(InstanceId(id)),
            5 => Source::Signals,
            6 => Source::Threads,
            7 => Source::Pull(PullId(id)),
            8 => Source::Port(id),
            9 => Source::Alarm,
            10 => Source::Pair(id),
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
            Source::Listener(3),
            Source::Client(ConnId(1 << 40)),
            Source::Stdin(InstanceId(7)),
            Source::Stdout(InstanceId(8)),
            Source::Stderr(InstanceId(9)),
            Source::Signals,
            Source::Threads,
            Source::Pull(PullId(10)),
            Source::Port(10),
            Source::Pair(11),
        ];
        for source in all {
            assert_eq!(Source::of(source.token()), source);
        }
    }
}
