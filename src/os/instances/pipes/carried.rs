//! The pipes of one instance on their way to the next program, with what is half said and half written.

use crate::allowance::Allowance;
use crate::ids::InstanceId;
use crate::os::event_loop::token::EventSource;
use crate::os::instances::pipe_share::PipeShare;
use crate::os::instances::pipes::{Held, OutputPipe, Pipes};
use crate::os::upgrade::carrying::{Carrying, adopt};
use crate::wire::backlog::Backlog;
use crate::wire::lines::Lines;
use mio::unix::pipe::Sender;
use mio::{Interest, Registry};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{FromRawFd, IntoRawFd, RawFd};

#[derive(Serialize, Deserialize)]
pub struct CarriedPipes {
    stdin: Option<RawFd>,
    backlog: Vec<u8>,
    owed: usize,
    dropped: u64,
    share: PipeShare,
    closing: bool,
    stdout: CarriedOutput,
    stderr: CarriedOutput,
    lines: Lines,
    unread: bool,
}

#[derive(Serialize, Deserialize)]
pub struct CarriedOutput {
    receiver: Option<RawFd>,
    ended: bool,
    allowance: Allowance,
    held: Held,
}

impl Pipes {
    pub fn carry(&self, carrying: &mut Carrying) -> CarriedPipes {
        CarriedPipes {
            stdin: self.stdin.as_ref().map(|stdin| carrying.name(stdin)),
            backlog: self.backlog.unwritten(),
            owed: self.owed,
            dropped: self.dropped,
            share: self.share.clone(),
            closing: self.closing,
            stdout: self.stdout.carry(carrying),
            stderr: self.stderr.carry(carrying),
            lines: self.lines.clone(),
            unread: self.unread,
        }
    }

    pub fn adopt(carried: CarriedPipes, id: InstanceId, registry: &Registry) -> io::Result<Pipes> {
        let stdin = match carried.stdin.map(adopt).transpose()? {
            None => None,
            Some(stdin) => {
                // SAFETY: the descriptor is given away once.
                let mut stdin = unsafe { Sender::from_raw_fd(stdin.into_raw_fd()) };
                registry.register(&mut stdin, EventSource::Stdin(id).token(), Interest::WRITABLE)?;
                Some(stdin)
            }
        };
        let mut backlog = Backlog::default();
        backlog.push(carried.backlog);
        Ok(Pipes {
            stdin,
            backlog,
            owed: carried.owed,
            dropped: carried.dropped,
            share: carried.share,
            closing: carried.closing,
            stdout: OutputPipe::adopt(carried.stdout, EventSource::Stdout(id), registry)?,
            stderr: OutputPipe::adopt(carried.stderr, EventSource::Stderr(id), registry)?,
            lines: carried.lines,
            unread: carried.unread,
        })
    }
}

impl OutputPipe {
    pub fn carry(&self, carrying: &mut Carrying) -> CarriedOutput {
        CarriedOutput {
            receiver: self.receiver.as_ref().map(|receiver| carrying.name(receiver)),
            ended: self.ended,
            allowance: self.allowance.clone(),
            held: self.held,
        }
    }

    pub fn adopt(carried: CarriedOutput, source: EventSource, registry: &Registry) -> io::Result<OutputPipe> {
        let CarriedOutput { receiver, ended, allowance, held } = carried;
        let Some(receiver) = receiver else {
            let token = source.token();
            return Ok(OutputPipe { receiver: None, token, readable: false, ended, allowance, held });
        };
        let mut output = OutputPipe::register(adopt(receiver)?, source, registry)?;
        (output.ended, output.allowance) = (ended, allowance);
        if held != Held::No {
            output.hold(held, registry);
        }
        Ok(output)
    }
}
