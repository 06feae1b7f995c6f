//! Descriptors are for clients only up to a point: the last ones are kept for what the daemon must do whoever connects:
//! launch what has died, reap, reach the store. Knows the limit; owns no descriptor.

use crate::limits::{DESCRIPTORS_FORESEEN, DESCRIPTORS_RESERVED};
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

#[derive(Clone, Copy, Debug)]
pub struct Descriptors {
    /// The first number that no client's connection may have.
    reserved_from: RawFd,
}

impl Descriptors {
    /// As many as this process may have at all: the soft limit is often far below the hard one.
    pub fn all_there_are() -> Descriptors {
        if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
            _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
        }
        let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
        make_room(limit.min(DESCRIPTORS_FORESEEN));
        Descriptors::within(limit)
    }

    fn within(limit: u64) -> Descriptors {
        let reserved = DESCRIPTORS_RESERVED.min(limit / 2);
        Descriptors { reserved_from: RawFd::try_from(limit - reserved).unwrap_or(RawFd::MAX) }
    }

    /// How many connections of clients there can be at most.
    pub fn for_clients(self) -> usize {
        usize::try_from(self.reserved_from).unwrap_or(0)
    }

    /// The kernel gives the lowest number that is free, so one that is high means that few are left.
    pub fn spare(self, connection: &impl AsRawFd) -> bool {
        connection.as_raw_fd() < self.reserved_from
    }
}

/// Has the kernel make its table as large as that now. It grows when it is full, and whoever opens the one descriptor too
/// many then waits until every CPU has let go of the old one; with all its servers dying that would be the loop.
fn make_room(descriptors: u64) {
    let last = RawFd::try_from(descriptors).unwrap_or(RawFd::MAX) - 1;
    if let Ok(copy) = fcntl(io::stderr(), FcntlArg::F_DUPFD_CLOEXEC(last)) {
        // SAFETY: the kernel has just given it to us.
        drop(unsafe { OwnedFd::from_raw_fd(copy) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Numbered(RawFd);

    impl AsRawFd for Numbered {
        fn as_raw_fd(&self) -> RawFd {
            self.0
        }
    }

    #[test]
    fn the_last_descriptors_are_no_clients() {
        let some = Descriptors::within(4096);
        assert!(some.spare(&Numbered(3)) && some.spare(&Numbered(4096 - DESCRIPTORS_RESERVED as RawFd - 1)));
        assert!(!some.spare(&Numbered(4096 - DESCRIPTORS_RESERVED as RawFd)) && !some.spare(&Numbered(4095)));
        let few = Descriptors::within(100);
        assert!(few.spare(&Numbered(49)) && !few.spare(&Numbered(50)));
        assert!(Descriptors::within(u64::MAX).spare(&Numbered(RawFd::MAX - 1)));
    }
}
