//! The three pipes of one instance, as the daemon holds them: stdin with what the pipe did not take yet, stdout cut
//! into lines, stderr as it comes; and for each output the work that its server may still cause by it. Our ends are
//! non-blocking, the server's never are. Invariant: the kernel does not wake the loop for an output that is held back.

pub mod carried;

use crate::allowance::Allowance;
use crate::ids::InstanceId;
use crate::limits::{PART_MIN, SERVER_WORK, STDIN_BACKLOG_MAX, STDIN_OWED_MAX, STDOUT_PIPE};
use crate::model::definition::Framing;
use crate::os::event_loop::token::EventSource;
use crate::os::instances::pipe_share::PipeShare;
use crate::shares::{Owner, Shares, Short};
use crate::wire::backlog::Backlog;
use crate::wire::lines::{Lines, framed};
use mio::unix::pipe::{Receiver, Sender};
use mio::{Interest, Registry, Token};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::pipe2;
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

pub struct Pipes {
    stdin: Option<Sender>,
    backlog: Backlog,
    /// Bytes of replies to what the server asked, since the backlog was last empty.
    owed: usize,
    /// Messages that were dropped since then.
    dropped: u64,
    pub share: PipeShare,
    /// Nothing more is to be written after the backlog.
    closing: bool,
    pub stdout: OutputPipe,
    pub stderr: OutputPipe,
    pub lines: Lines,
    /// There may be whole lines in `lines`.
    pub unread: bool,
}

/// The reading end of a pipe. `readable` is sticky: the kernel says it once per change.
pub struct OutputPipe {
    receiver: Option<Receiver>,
    token: Token,
    pub readable: bool,
    /// The other end is closed; said once, so it is kept until the end itself is read.
    ended: bool,
    pub allowance: Allowance,
    pub held: Held,
}

/// Why nothing is read though there may be something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Held {
    No,
    /// It has spent its allowance.
    Until(u64),
    /// It has not read the answers to what it asked.
    ForStdin,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// Or its pipe is gone, and the end of the server is on its way.
    Taken,
    /// Dropped, and so were so many, this one included; and whose room it is that is used up.
    Dropped(u64, Short),
}

/// The server's ends, for the launcher.
pub struct FarEnds {
    pub stdin: OwnedFd,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
}

pub enum PipeRead {
    Bytes(usize),
    Empty,
    Ended,
}

impl Pipes {
    /// `owner`: whose memory it is that they take.
    pub fn open(
        instance: InstanceId,
        owner: Owner,
        framing: Framing,
        registry: &Registry,
    ) -> io::Result<(Pipes, FarEnds)> {
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
        let stdout = OutputPipe::register(stdout, EventSource::Stdout(instance), registry)?;
        let stderr = OutputPipe::register(stderr, EventSource::Stderr(instance), registry)?;
        registry.register(&mut stdin, EventSource::Stdin(instance).token(), Interest::WRITABLE)?;
        let pipes = Pipes {
            stdin: Some(stdin),
            backlog: Backlog::default(),
            owed: 0,
            dropped: 0,
            share: PipeShare::new(owner),
            closing: false,
            stdout,
            stderr,
            lines: Lines::with_framing(framing),
            unread: false,
        };
        Ok((pipes, FarEnds { stdin: stdin_far, stdout: stdout_far, stderr: stderr_far }))
    }

    /// Writes at once what the pipe takes and keeps the rest, unless the server reads so little that there is no room.
    pub fn write(&mut self, mut bytes: Vec<u8>, shares: &mut Shares, now_ms: u64) -> Written {
        let Some(stdin) = &mut self.stdin else { return Written::Taken };
        if self.lines.is_in_blocks() {
            bytes = framed(&bytes);
        }
        // Most messages find the pipe empty, and need no buffer of ours.
        if self.backlog.is_empty() && bytes.len() < PART_MIN {
            match stdin.write(&bytes) {
                Ok(taken) if taken == bytes.len() => return Written::Taken,
                Ok(taken) => _ = bytes.drain(..taken),
                // The same will be said of the backlog.
                Err(_) => {}
            }
        }
        let room = match self.backlog.len() + bytes.len() {
            len if len > STDIN_BACKLOG_MAX => Err(Short::Owner),
            _ => self.share.count_unread(self.backlog.held() + bytes.len(), shares, now_ms),
        };
        if let Err(short) = room {
            self.dropped += 1;
            return Written::Dropped(self.dropped, short);
        }
        self.backlog.push(bytes);
        self.flush(shares, now_ms);
        Written::Taken
    }

    /// As above, for what the server itself has asked for.
    pub fn reply(&mut self, bytes: Vec<u8>, shares: &mut Shares, now_ms: u64) -> Written {
        let size = bytes.len();
        let written = self.write(bytes, shares, now_ms);
        if !self.backlog.is_empty() {
            self.owed += size;
        }
        written
    }

    /// Its server has spent nothing that it does not have.
    pub fn are_quiet(&self) -> bool {
        self.stdout.allowance.has_some() && self.stderr.allowance.has_some() && !self.owes_too_much()
    }

    /// Does it ask and ask, and read no answer? One that is to end may say its last words all the same.
    pub fn owes_too_much(&self) -> bool {
        self.owed > STDIN_OWED_MAX && !self.closing
    }

    /// So many messages were dropped while it read nothing; none, as long as it reads nothing.
    pub fn take_dropped(&mut self) -> Option<u64> {
        let dropped = if self.backlog.is_empty() { std::mem::take(&mut self.dropped) } else { 0 };
        Some(dropped).filter(|dropped| *dropped > 0)
    }

    /// Writes until the backlog or the room in the pipe is used up. A broken pipe ends it: the exit will be seen.
    pub fn flush(&mut self, shares: &mut Shares, now_ms: u64) {
        self.flush_backlog();
        let less = self.share.count_unread(self.backlog.held(), shares, now_ms);
        debug_assert!(less.is_ok(), "who has less may have it");
    }

    fn flush_backlog(&mut self) {
        let Some(stdin) = &mut self.stdin else { return };
        while !self.backlog.is_empty() {
            match self.backlog.write_to(stdin, usize::MAX) {
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return self.drop_stdin(),
            }
        }
        self.owed = 0;
        if self.closing {
            self.drop_stdin();
        }
    }

    /// What is on its way is written first.
    pub fn close_stdin(&mut self, shares: &mut Shares, now_ms: u64) {
        self.closing = true;
        self.flush(shares, now_ms);
    }

    /// What its lines have grown or shrunk to is counted.
    pub fn count_lines(&mut self, shares: &mut Shares) -> Result<(), Short> {
        self.share.count_lines(self.lines.held(), shares)
    }

    /// Lets go of what its lines have and do not need.
    pub fn shrink_lines(&mut self, shares: &mut Shares) {
        self.lines.shrink();
        // An error: it has grown and is not counted yet, and whoever counts it will see.
        _ = self.count_lines(shares);
    }

    /// The line that it is in the middle of, if that is all there is; as much as it takes.
    pub fn half_line(&self) -> usize {
        if self.unread { 0 } else { self.lines.pending() }
    }

    /// There is no memory for that line.
    pub fn give_up_line(&mut self, shares: &mut Shares) {
        self.lines.give_up();
        _ = self.count_lines(shares);
    }

    fn drop_stdin(&mut self) {
        self.stdin = None;
        self.backlog.clear();
        self.owed = 0;
    }

    /// There is something to read, and it may be read.
    pub fn has_more(&self) -> bool {
        (self.stdout.readable || self.unread) && !self.stdout.is_held()
            || self.stderr.readable && !self.stderr.is_held()
    }
}

impl OutputPipe {
    pub fn register(fd: OwnedFd, source: EventSource, registry: &Registry) -> io::Result<OutputPipe> {
        // SAFETY: the descriptor is given away once.
        let mut receiver = unsafe { Receiver::from_raw_fd(fd.into_raw_fd()) };
        let token = source.token();
        registry.register(&mut receiver, token, Interest::READABLE)?;
        let allowance = Allowance::full(SERVER_WORK);
        Ok(OutputPipe { receiver: Some(receiver), token, readable: false, ended: false, allowance, held: Held::No })
    }

    pub fn is_held(&self) -> bool {
        !matches!(self.held, Held::No)
    }

    /// Nothing is read until `release`. The pipe fills and holds its writer back; without a word of the kernel's, which would
    /// otherwise wake the loop for every write.
    pub fn hold(&mut self, how: Held, registry: &Registry) {
        self.held = how;
        // Of a pipe nothing is ever urgent: only its end is told.
        self.listen_for(Interest::PRIORITY, registry);
    }

    pub fn release(&mut self, registry: &Registry) {
        self.held = Held::No;
        // It was told before it was held, or would have been since.
        self.readable = self.receiver.is_some();
        self.listen_for(Interest::READABLE, registry);
    }

    fn listen_for(&mut self, interest: Interest, registry: &Registry) {
        let Some(receiver) = &mut self.receiver else { return };
        if let Err(e) = registry.reregister(receiver, self.token, interest) {
            log::warn!("a pipe cannot be watched: {e}");
        }
    }

    /// The kernel says that there is something to read, and whether it is the last.
    pub fn woke(&mut self, ended: bool) {
        self.readable = true;
        self.ended |= ended;
    }

    pub fn read(&mut self, scratch: &mut [u8]) -> PipeRead {
        let Some(receiver) = &mut self.receiver else {
            // An event of the same turn in which it was read to its end: there is nothing more to say.
            self.readable = false;
            return PipeRead::Empty;
        };
        loop {
            match receiver.read(scratch) {
                Ok(0) => break,
                Ok(n) => {
                    // A short read has emptied the pipe; its next bytes ring again.
                    self.readable = n == scratch.len() || self.ended;
                    return PipeRead::Bytes(n);
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    self.readable = false;
                    return PipeRead::Empty;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        self.readable = false;
        self.receiver = None;
        PipeRead::Ended
    }
}
