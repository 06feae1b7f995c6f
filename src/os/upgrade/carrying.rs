//! Descriptors on their way over an `execve`. In the state they are numbers, and stay open as those. Owns which numbers were
//! named; never closes one. Invariant: what is adopted is closed again at the next exec of anybody, unless it is named again.

use mio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The numbers that the state names.
#[derive(Default)]
pub struct Carrying {
    pub descriptors: Vec<RawFd>,
}

impl Carrying {
    pub fn name(&mut self, open: &impl AsRawFd) -> RawFd {
        let number = open.as_raw_fd();
        self.descriptors.push(number);
        number
    }
}

/// Takes over an open descriptor of that number. An error: there is none.
pub fn adopt(number: RawFd) -> io::Result<OwnedFd> {
    if number <= libc::STDERR_FILENO {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    set_kept(number, false)?;
    // SAFETY: it is open, as was just seen, and each number stands in the state once, which nothing else has read.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

pub fn adopt_tcp(number: RawFd) -> io::Result<TcpStream> {
    Ok(TcpStream::from_std(adopt(number)?.into()))
}

pub fn adopt_unix(number: RawFd) -> io::Result<UnixStream> {
    Ok(UnixStream::from_std(adopt(number)?.into()))
}

pub fn adopt_tcp_listener(number: RawFd) -> io::Result<TcpListener> {
    Ok(TcpListener::from_std(adopt(number)?.into()))
}

pub fn adopt_unix_listener(number: RawFd) -> io::Result<UnixListener> {
    Ok(UnixListener::from_std(adopt(number)?.into()))
}

/// Does it stay open over an exec?
pub fn set_kept(number: RawFd, kept: bool) -> io::Result<()> {
    // SAFETY: only looked at in this call; a number that is closed is an error of the kernel's.
    let open = unsafe { BorrowedFd::borrow_raw(number) };
    let flags = if kept { FdFlag::empty() } else { FdFlag::FD_CLOEXEC };
    fcntl(open, FcntlArg::F_SETFD(flags)).map(|_| ()).map_err(Into::into)
}
