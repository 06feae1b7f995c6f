//! What a server's words cost everybody else, in units that `limits.rs` explains: lines, bytes, and whatever is to be done
//! because of them. Owns the prices; never who may spend how much (`os/instances/` asks after every line). Invariant: an
//! answer that a client waits for costs its server nothing, and nothing else is free.

use crate::core::contract::Output;
use crate::core::effects::Effects;
use crate::limits::{
    BYTES_PER_WORK, LOOKS_PER_WORK, WORK_PER_EVENT, WORK_PER_LINE, WORK_PER_LOG_ENTRY, WORK_PER_WRITE,
};

impl Effects {
    /// Lines were read, and everything behind the first `before` outputs is to be done because of them.
    pub(in crate::core) fn charge(&mut self, lines: usize, bytes: usize, before: usize) {
        let caused: usize = self.outputs.range(before..).map(price).sum();
        self.work += lines * WORK_PER_LINE + bytes / BYTES_PER_WORK + caused;
    }

    /// Everybody has to be looked at, to find those whom it concerns.
    pub(in crate::core) fn charge_search(&mut self, everybody: usize) {
        self.work += everybody / LOOKS_PER_WORK;
    }
}

fn price(output: &Output) -> usize {
    match output {
        Output::LogKeep { .. } => WORK_PER_LOG_ENTRY,
        Output::Write { .. } | Output::Reply { .. } => WORK_PER_WRITE,
        Output::Answer { .. }
        | Output::Event { .. }
        | Output::News { .. }
        | Output::EndStream { .. }
        | Output::Pull { .. }
        | Output::AbandonPull { .. }
        | Output::Launch { .. }
        | Output::Connect { .. }
        | Output::Negotiated { .. }
        | Output::MirrorParams { .. }
        | Output::Knock { .. }
        | Output::Doze { .. }
        | Output::CloseStdin { .. }
        | Output::Signal { .. }
        | Output::Discard { .. }
        | Output::RemoveVolumes { .. }
        | Output::LogRestore { .. }
        | Output::LogRemove { .. }
        | Output::Store { .. }
        | Output::KeepDecisions { .. }
        | Output::Exit => WORK_PER_EVENT,
    }
}
