//! The two vocabularies of the program. The shell turns kernel events into `Input`s and performs `Output`s; between
//! them the core decides. A reader who knows these enums knows the program.
//!
//! Inputs are in the past tense: they have happened. Outputs are imperative: the shell must do them, and what comes
//! of it is a later `Input`. Nothing here can fail, block or ask the time.

use crate::api::request::Ask;
use crate::api::response::{Answer, StreamEvent};
use crate::ids::{CallId, ConnId, InstanceId, PullId, ServerId, StoreSeq};
use crate::model::definition::{Definition, PullPolicy};
use crate::model::endpoint::{Endpoint, LinkFault, ParamHeaders};
use crate::model::external::ToolCallRecord;
use crate::model::fault::Fault;
use crate::model::instance::{Exit, LaunchFault, Packages, PullStep, StopSignal};
use crate::model::log::LogEntry;
use crate::model::news::News;
use crate::model::principal::Principal;
use crate::model::records::{Decision, Snapshot, StoreOp, StoreOutcome};
use crate::model::status::Usage;
use crate::shares::Short;
use crate::wire::lines::Line;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The time, read once per turn: `mono_ms` for every wait, `unix_ms` only to be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Now {
    pub mono_ms: u64,
    pub unix_ms: u64,
}

#[rustfmt::skip] // one line a word
#[derive(Debug)]
pub enum Input<'a> {
    // --- the daemon itself
    /// Whatever an earlier daemon left behind is gone, and it is known which providers work here, why others do not, and whose
    /// idle sandboxes take CPU time all the same.
    Swept { providers: Vec<String>, unusable: Vec<(String, String)>, polling: Vec<String> },
    /// SIGTERM or SIGINT.
    ShutdownAsked,
    /// The configuration was read again, and of what it says this may change while the daemon runs.
    Reconfigured { default_provider: String },

    // --- the store
    /// Connected. The first time it brings everything that was stored.
    StoreOpened { snapshot: Option<Box<Snapshot>> },
    StoreLost { why: String },
    /// Another daemon works on the database, and this one waits for it to end.
    StoreHeld,
    /// Another daemon works on the database, and this one must end.
    StoreDenied { why: String },
    StoreDone { seq: StoreSeq, outcome: StoreOutcome },
    /// What `StoreOp::ReadCalls` has asked for, newest first.
    CallsRead { seq: StoreSeq, calls: Vec<ToolCallRecord> },
    /// As `KeepDecisions` wanted, or why they are not on disk.
    DecisionsKept { version: u64, outcome: Result<(), String> },

    // --- clients
    Asked { conn: ConnId, who: Principal, ask: Ask<'a> },
    ClientGone { conn: ConnId },

    // --- images
    /// It is here, or was all the time.
    Pulled { pull: PullId },
    PullProgressed { pull: PullId, step: PullStep },
    PullFailed { pull: PullId, why: LaunchFault },

    // --- instances
    Launched { instance: InstanceId },
    /// What was launched is not the server yet, but fetches its packages: whether they are here says its exit.
    InstallBegun { instance: InstanceId },
    /// The port of a server without a bridge takes connections.
    PortOpened { instance: InstanceId },
    LaunchFailed { instance: InstanceId, why: LaunchFault },
    /// The server reads so little, or all servers together do, that there was no room for this call; it never left the
    /// daemon.
    Unwritten { call: CallId, short: Short },
    LineRead { instance: InstanceId, line: Line<'a> },
    /// Stdout is in the middle of a line.
    LineBegun { instance: InstanceId },
    StdoutClosed { instance: InstanceId },
    StderrRead { instance: InstanceId, bytes: &'a [u8] },
    /// Always the last word about an instance that was launched; stdout has been read to its end before.
    Exited { instance: InstanceId, exit: Exit },
    /// One that dozed runs again, after so long: something was to be done with it. None: it could not be frozen at all.
    Woken { instance: InstanceId, took_ms: Option<u64> },
    /// What some instances use just now.
    Measured { looks: Vec<(InstanceId, Usage)> },
    // --- connections to external servers, which are instances too
    /// Messages may be written.
    Connected { instance: InstanceId },
    /// A call that was written will have no answer: it could not be delivered, or what came is none. The fault says whether
    /// the server may have seen it.
    Undelivered { instance: InstanceId, call: CallId, fault: Fault },
    /// Always the last word about a connection, after every line it brought; unless it was discarded before.
    LinkLost { instance: InstanceId, why: LinkFault },

    /// As `RemoveVolumes` wanted, or why not all of them.
    VolumesRemoved { server: ServerId, outcome: Result<(), String> },

    // --- logs on disk
    LogRestored { server: ServerId, entries: Vec<LogEntry> },
}

#[rustfmt::skip] // one line a word
#[derive(Debug)]
pub enum Output {
    // --- clients
    Answer { conn: ConnId, answer: Answer },
    /// One more event on a stream that was opened with `Answer::Stream`, or a sign of life on one of `Answer::News`.
    Event { conn: ConnId, event: StreamEvent },
    /// One more on a stream that was opened with `Answer::News`.
    News { conn: ConnId, news: Arc<News> },
    /// No more will come on that stream.
    EndStream { conn: ConnId },

    // --- images
    /// See to it that the image is here: `Pulled` or `PullFailed` will follow, unless it is abandoned.
    Pull { pull: PullId, image: String, policy: PullPolicy },
    /// Nobody waits for it any more.
    AbandonPull { pull: PullId },

    // --- instances
    /// `server`: whose share it is that the instance takes.
    /// `Launched`, `InstallBegun` or `LaunchFailed` follows.
    Launch { instance: InstanceId, server: ServerId, provider: String, definition: Arc<Definition>, packages: Packages },
    /// Reach an external server. `Connected` or `LinkLost` follows; from then on it is an instance like any other.
    Connect { instance: InstanceId, server: ServerId, endpoint: Arc<Endpoint> },
    /// The version of the protocol that was agreed on with an external server, for the headers of all that follows.
    Negotiated { instance: InstanceId, version: String },
    /// From now on, what calls of these tools repeat in headers.
    MirrorParams { instance: InstanceId, tools: Arc<ParamHeaders> },
    /// See when its port answers.
    Knock { instance: InstanceId },
    /// Bytes for the server's stdin, one or more whole messages; of a call, if they are one.
    Write { instance: InstanceId, bytes: Vec<u8>, call: Option<CallId> },
    /// The daemon's own reply to something that the server asked. Who does not read them is not listened to either.
    Reply { instance: InstanceId, bytes: Vec<u8> },
    /// Freeze it until it is written to, or is to end. `Woken` follows then.
    Doze { instance: InstanceId },
    /// No more will be written: close stdin once it is flushed.
    CloseStdin { instance: InstanceId },
    Signal { instance: InstanceId, signal: StopSignal },
    /// The instance is over: remove its container, cgroup and files; or close its connection, and nothing more is heard of it.
    Discard { instance: InstanceId },
    /// The server goes for good: remove its volumes too. `VolumesRemoved` follows, and only then may somebody else have the
    /// name, and new volumes under it.
    RemoveVolumes { server: ServerId, name: String },

    // --- logs on disk
    /// One more entry of the server's log; dropped and counted if the disk cannot follow.
    LogKeep { server: ServerId, entry: LogEntry },
    /// Read back what an earlier daemon kept; `LogRestored` follows.
    LogRestore { server: ServerId },
    LogRemove { server: ServerId },

    // --- the store
    Store { seq: StoreSeq, op: Box<StoreOp> },
    /// Keep these on disk, in place of those before, until the store has them. `DecisionsKept` follows; there is never more
    /// than one on its way.
    KeepDecisions { version: u64, decisions: Vec<Decision> },

    // --- the daemon itself
    /// Everything is down and written; leave.
    Exit,
}
