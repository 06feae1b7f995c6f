//! The three pipes of one instance, as the daemon holds them: stdin with what the pipe did not take yet, stdout cut
//! into lines, stderr as it comes. Our ends are non-blocking, the server's never are.

use crate::core::definition::Framing;
use crate::ids::InstanceId;
use crate::limits::{STDIN_BACKLOG_MAX, STDOUT_PIPE};
use crate::os::token::Source;
use crate::wire::backlog::Backlog;
use crate::wire::lines::{Lines, framed};
use mio::unix::pipe::{Receiver, Sender};
use mio::{Interest, Registry};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::pipe2;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

pub struct Pipes {
    stdin: Option<Sender>,
    backlog: Backlog,
    /// Nothing more is to be written after the backlog.
    closing: bool,
    pub stdout: Tap,
    pub stderr: Tap,
    pub lines: Lines,
}

/// The reading end of a pipe. `readable` is sticky: the kernel says it once per change.
pub struct Tap {
    receiver: Option<Receiver>,
    pub readable: bool,
    /// The other end is closed; said once, so it is kept until the end itself is read.
    ended: bool,
}

/// The server's ends, for the launcher.
pub struct FarEnds {
    pub stdin: OwnedFd,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
}

pub enum Drawn {
    Bytes(usize),
    Empty,
    Ended,
}

impl Pipes {
    pub fn open(instance: InstanceId, framing: Framing, registry: &Registry) -> io::Result<(Pipes, FarEnds)> {
        let (stdin_far, stdin) = pipe2(OFlag::O_CLOEXEC)?;
        let (stdout, stdout_far) = pipe2(OFlag::O_CLOEXEC)?;
        let (stderr, stderr_far) = pipe2(OFlag::O_CLOEXEC)?;
        // Best effort: alone, an answer of a megabyte comes in four pieces, not in sixteen, each of which would wake both sides.
        _ = fcntl(&stdout, FcntlArg::F_SETPIPE_SZ(STDOUT_PIPE as i32));
        for ours in [&stdin, &stdout, &stderr] {
            fcntl(ours, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
        // SAFETY: each descriptor is given away once.
        let mut stdin = unsafe { Sender::from_raw_fd(stdin.into_raw_fd()) };
        let stdout = Tap::register(stdout, Source::Stdout(instance), registry)?;
        let stderr = Tap::register(stderr, Source::Stderr(instance), registry)?;
        registry.register(&mut stdin, Source::Stdin(instance).token(), Interest::WRITABLE)?;
        let pipes = Pipes {
            stdin: Some(stdin),
            backlog: Backlog::default(),
            closing: false,
            stdout,
            stderr,
            lines: Lines::with_framing(framing),
        };
        Ok((pipes, FarEnds { stdin: stdin_far, stdout: stdout_far, stderr: stderr_far }))
    }

    /// Writes at once what the pipe takes and keeps the rest. False: the server reads so little that the backlog is
    /// full, and these bytes were dropped.
    pub fn write(&mut self, bytes: Vec<u8>) -> bool {
        if self.stdin.is_none() {
            return true;
        }
        let bytes = if self.lines.is_in_blocks() { framed(&bytes) } else { bytes };
        if self.backlog.len() + bytes.len() > STDIN_BACKLOG_MAX {
            return false;
        }
        self.backlog.push(bytes);
        self.flush();
        true
    }

    /// Writes until the backlog or the room in the pipe is used up. A broken pipe ends it: the exit will be seen.
    pub fn flush(&mut self) {
        let Some(stdin) = &mut self.stdin else { return };
        while !self.backlog.is_empty() {
            match self.backlog.write_to(stdin, usize::MAX) {
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return self.drop_stdin(),
            }
        }
        if self.closing {
            self.drop_stdin();
        }
    }

    /// What is on its way is written first.
    pub fn close_stdin(&mut self) {
        self.closing = true;
        self.flush();
    }

    fn drop_stdin(&mut self) {
        self.stdin = None;
        self.backlog.clear();
    }
}

impl Tap {
    pub fn register(fd: OwnedFd, source: Source, registry: &Registry) -> io::Result<Tap> {
        // SAFETY: the descriptor is given away once.
        let mut receiver = unsafe { Receiver::from_raw_fd(fd.into_raw_fd()) };
        registry.register(&mut receiver, source.token(), Interest::READABLE)?;
        Ok(Tap { receiver: Some(receiver), readable: false, ended: false })
    }

    /// The kernel says that there is something to read, and whether it is the last.
    pub fn woke(&mut self, ended: bool) {
        self.readable = true;
        self.ended |= ended;
    }

    pub fn read(&mut self, scratch: &mut [u8]) -> Drawn {
        let Some(receiver) = &mut self.receiver else {
            // An event of the same turn in which it was read to its end: there is nothing more to say.
            self.readable = false;
            return Drawn::Empty;
        };
        loop {
            match receiver.read(scratch) {
                Ok(0) => break,
                Ok(n) => {
                    // A short read has emptied the pipe; its next bytes ring again.
                    self.readable = n == scratch.len() || self.ended;
                    return Drawn::Bytes(n);
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    self.readable = false;
                    return Drawn::Empty;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        self.readable = false;
        self.receiver = None;
        Drawn::Ended
    }
}
