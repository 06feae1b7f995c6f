//! Reading what a server says: so many bytes and so much work in one turn, whatever there is. Owns the order (stderr before
//! stdout, lines that are there before bytes that are not) and what is paid for it; never decides who has its turn.
//! Invariant: nothing that was read is lost, and what is not read yet is known to be there.

use crate::core::Core;
use crate::core::contract::{Input, Now};
use crate::ids::InstanceId;
use crate::limits::{BYTES_PER_WORK, LAST_WORK_AT_ONCE, STDERR_AT_ONCE, WORK_PER_READ};
use crate::os::instances::pipes::{PipeRead, Pipes};
use serde::{Deserialize, Serialize};

/// One server's turn.
pub struct Reading<'a> {
    pub instance: InstanceId,
    pub pipes: &'a mut Pipes,
    pub scratch: &'a mut [u8],
    pub core: &'a mut Core,
    pub now: Now,
}

/// What a dead server's pipes may still hold of its own words; what comes beyond was written by somebody else who has them.
#[derive(Clone, Serialize, Deserialize)]
pub struct Last {
    pub stderr: usize,
    pub stdout: usize,
}

impl Reading<'_> {
    /// Takes so many bytes at most.
    pub fn stderr(&mut self, most: usize) {
        let (mut taken, mut work) = (0, 0);
        let at_once = self.pipes.stderr.allowance.at_once();
        while self.pipes.stderr.readable && !self.pipes.stderr.is_held() && taken < most && work < at_once {
            let Some(n) = self.draw_stderr(most - taken) else { break };
            taken += n;
            work += self.core.work();
        }
        if taken > 0 {
            self.pipes.stderr.allowance.spend(work + WORK_PER_READ);
        }
    }

    /// As above; true: there was a whole line.
    pub fn stdout(&mut self, most: usize) -> bool {
        let (mut taken, mut work, mut has_line, mut is_awaited) = (0, 0, false, false);
        let at_once = self.pipes.stdout.allowance.at_once();
        while !self.pipes.stdout.is_held() && work < at_once {
            if !self.pipes.unread {
                if !self.pipes.stdout.readable || taken >= most {
                    break;
                }
                match draw(self.pipes, self.scratch, most - taken) {
                    PipeRead::Bytes(n) => {
                        taken += n;
                        work += self.discarded(n);
                    }
                    PipeRead::Empty => break,
                    PipeRead::Ended => {
                        self.core.handle(Input::StdoutClosed { instance: self.instance }, self.now);
                        break;
                    }
                }
            }
            let heard = self.lines(at_once - work.min(at_once));
            has_line |= heard.has_line;
            is_awaited |= heard.is_awaited;
            work += heard.work;
        }
        // Whoever brings an answer is welcome as often as it does.
        if taken > 0 && !is_awaited {
            work += WORK_PER_READ;
        }
        if work > 0 {
            self.pipes.stdout.allowance.spend(work);
        }
        has_line
    }

    /// Of a dead server: as much as one turn may take. True: that was all.
    pub fn last(&mut self, left: &mut Last) -> bool {
        let mut work = 0;
        loop {
            if work >= LAST_WORK_AT_ONCE {
                return false;
            }
            if left.stderr == 0 {
                break;
            }
            let Some(n) = self.draw_stderr(left.stderr) else { break };
            left.stderr -= n;
            work += self.core.work();
        }
        left.stderr = 0;
        loop {
            if work >= LAST_WORK_AT_ONCE {
                return false;
            }
            if !self.pipes.unread {
                if left.stdout == 0 {
                    return true;
                }
                let PipeRead::Bytes(n) = draw(self.pipes, self.scratch, left.stdout) else { return true };
                left.stdout -= n;
            }
            work += self.lines(LAST_WORK_AT_ONCE - work).work;
        }
    }

    fn draw_stderr(&mut self, most: usize) -> Option<usize> {
        let most = most.min(STDERR_AT_ONCE);
        let PipeRead::Bytes(n) = self.pipes.stderr.read(&mut self.scratch[..most]) else { return None };
        self.core.handle(Input::StderrRead { instance: self.instance, bytes: &self.scratch[..n] }, self.now);
        Some(n)
    }

    /// A line that is too long never becomes one that could be charged.
    fn discarded(&self, bytes: usize) -> usize {
        if self.pipes.lines.is_discarding() { bytes / BYTES_PER_WORK } else { 0 }
    }

    /// The lines that are there, until they have cost so much.
    fn lines(&mut self, most: usize) -> Heard {
        let mut heard = Heard::default();
        while heard.work < most {
            let line = if self.pipes.lines.pending() > 0 { self.pipes.lines.next_line() } else { None };
            let Some(line) = line else {
                self.pipes.unread = false;
                break;
            };
            heard.has_line = true;
            self.core.handle(Input::LineRead { instance: self.instance, line }, self.now);
            let work = self.core.work();
            heard.is_awaited |= work == 0;
            heard.work += work;
        }
        if !heard.has_line {
            self.core.handle(Input::LineBegun { instance: self.instance }, self.now);
        }
        heard
    }
}

#[derive(Default)]
struct Heard {
    has_line: bool,
    /// A client has waited for one of them.
    is_awaited: bool,
    work: usize,
}

/// One read of stdout. What begins goes by way of `scratch`, so that a server which says little needs no large buffer;
/// what goes on is read to where it belongs.
fn draw(pipes: &mut Pipes, scratch: &mut [u8], most: usize) -> PipeRead {
    let drawn = if pipes.lines.pending() > 0 {
        let room = pipes.lines.room(scratch.len());
        let most = room.len().min(most);
        let drawn = pipes.stdout.read(&mut room[..most]);
        if let PipeRead::Bytes(n) = drawn {
            pipes.lines.fed(n);
        }
        drawn
    } else {
        let most = scratch.len().min(most);
        let drawn = pipes.stdout.read(&mut scratch[..most]);
        if let PipeRead::Bytes(n) = drawn {
            pipes.lines.feed(&scratch[..n]);
        }
        drawn
    };
    pipes.unread |= matches!(drawn, PipeRead::Bytes(_));
    drawn
}
