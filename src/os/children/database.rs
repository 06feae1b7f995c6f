//! The loop's side of the database: the store thread's channels, the processes of the private cluster if there is one, and
//! the sweep of what the daemon before has left on this machine, if that was another. Decides nothing: `store::cluster` says
//! what to run, the core what to write. Invariant: the core hears that the store is open only after that sweep.

use crate::core::Core;
use crate::core::contract::{Input, Now};
use crate::ids::StoreSeq;
use crate::limits::STORE_CHANNEL;
use crate::model::instance::ExitCause;
use crate::model::records::{Snapshot, StoreOp, StoreOutcome};
use crate::os::children::reap::{Children, Role};
use crate::os::children::spawn;
use crate::os::upgrade::carrying::{Carrying, adopt};
use crate::sandbox::cleanup::sweep;
use crate::sandbox::container::plan::Layout;
use crate::store::cluster::{self, Action, CarriedCluster, Cluster, Event};
use crate::store::home::Leftovers;
use crate::store::thread::{Store, StoreEvent};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::os::fd::RawFd;

pub struct Database {
    /// None once it is closed.
    store: Option<Store>,
    cluster: Option<Cluster>,
    /// What has to be cleared away first, and what is told to the core then.
    sweeping: Option<(Leftovers, Option<Box<Snapshot>>)>,
    wake_at_ms: Option<u64>,
    stopping: bool,
    stopped: bool,
    /// Handed over and not answered.
    out: usize,
    /// None: operations go to the store at once.
    kept: Option<VecDeque<(StoreSeq, StoreOp)>>,
}

/// The database on its way to the next program, with the operations that the store has not seen.
#[derive(Serialize, Deserialize)]
pub struct CarriedDatabase {
    /// With the number of its lock.
    cluster: Option<(CarriedCluster, Option<RawFd>)>,
    kept: VecDeque<(StoreSeq, StoreOp)>,
    wake_at_ms: Option<u64>,
    stopped: bool,
}

/// What of all that is no matter of the core's alone.
#[derive(Default)]
pub struct Heard {
    /// Another daemon works on the database, and this one waits.
    pub stands_by: Option<String>,
    /// It is for good, and this one ends.
    pub denied: Option<String>,
}

impl CarriedDatabase {
    /// Its processes go on.
    pub fn take_cluster(&mut self) -> Result<Cluster, String> {
        let (cluster, lock) =
            self.cluster.take().ok_or("the database before was another one: `database_url` was set")?;
        let lock = lock.map(adopt).transpose().map_err(|e| format!("the database was not handed over: {e}"))?;
        Cluster::adopt(cluster, lock.map(Into::into))
    }
}

impl Database {
    pub fn new(store: Store, cluster: Option<Cluster>) -> Database {
        let stopped = cluster.is_none();
        Database {
            store: Some(store),
            cluster,
            sweeping: None,
            wake_at_ms: None,
            stopping: false,
            stopped,
            out: 0,
            kept: None,
        }
    }

    pub fn start(&mut self, children: &mut Children, now: Now) {
        self.cluster_event(Event::Start, children, now);
    }

    /// None: it is on its way. An outcome: it could not even be handed over.
    pub fn send(&mut self, seq: StoreSeq, op: StoreOp) -> Option<StoreOutcome> {
        if let Some(kept) = &mut self.kept {
            let fits = kept.len() < STORE_CHANNEL;
            if fits {
                kept.push_back((seq, op));
            }
            return (!fits).then(|| StoreOutcome::Unknown("too much waits for the store".to_string()));
        }
        match &self.store {
            Some(store) if store.try_send(seq, op).is_ok() => {
                self.out += 1;
                None
            }
            Some(_) | None => Some(StoreOutcome::Unknown("the store takes no more operations".to_string())),
        }
    }

    // --- a handover -------------------------------------------------------------------------------------------------

    /// From here on nothing goes to the store; what it has it may finish.
    pub fn keep_back(&mut self) {
        self.kept.get_or_insert_default();
    }

    /// What was kept back goes to the store.
    pub fn go_on(&mut self, core: &mut Core, now: Now) {
        for (seq, op) in self.kept.take().unwrap_or_default() {
            if let Some(outcome) = self.send(seq, op) {
                core.handle(Input::StoreDone { seq, outcome }, now);
            }
        }
    }

    /// The store has nothing that it has not answered.
    pub fn is_at_rest(&self) -> bool {
        self.out == 0 && self.sweeping.is_none() && !self.stopping
    }

    pub fn carry(&self, carrying: &mut Carrying) -> CarriedDatabase {
        let cluster = self.cluster.as_ref();
        let cluster = cluster.map(|cluster| (cluster.carry(), cluster.lock().map(|lock| carrying.name(lock))));
        let kept = self.kept.clone().unwrap_or_default();
        CarriedDatabase { cluster, kept, wake_at_ms: self.wake_at_ms, stopped: self.stopped }
    }

    /// The store is open when it says so, and has what was kept back then. The processes go on.
    pub fn adopt(&mut self, carried: CarriedDatabase) {
        (self.kept, self.wake_at_ms, self.stopped) = (Some(carried.kept), carried.wake_at_ms, carried.stopped);
    }

    /// The store thread rang.
    pub fn heard(&mut self, core: &mut Core, children: &mut Children, now: Now) -> Heard {
        let mut heard = Heard::default();
        // What comes during the sweep comes after it.
        while self.sweeping.is_none()
            && let Some(event) = self.store.as_mut().and_then(|store| store.events().next())
        {
            let input = match event {
                StoreEvent::Opened { snapshot, leftovers: None } => {
                    self.go_on(core, now);
                    Input::StoreOpened { snapshot }
                }
                StoreEvent::Opened { snapshot, leftovers: Some(leftovers) } => {
                    self.sweep(leftovers, snapshot, core, children, now);
                    continue;
                }
                // Of ourselves, before the handover: its session is just being ended.
                StoreEvent::StandingBy { .. } if self.kept.is_some() => continue,
                StoreEvent::StandingBy { why } => {
                    heard.stands_by = Some(why);
                    Input::StoreHeld
                }
                StoreEvent::Denied { why } => {
                    heard.denied = Some(why.clone());
                    Input::StoreDenied { why }
                }
                StoreEvent::Lost { why } => {
                    // Each is answered, as it would have been.
                    self.go_on(core, now);
                    Input::StoreLost { why }
                }
                StoreEvent::Done { seq, outcome } => {
                    self.out -= 1;
                    Input::StoreDone { seq, outcome }
                }
                StoreEvent::CallsRead { seq, calls } => {
                    self.out -= 1;
                    Input::CallsRead { seq, calls }
                }
            };
            core.handle(input, now);
        }
        heard
    }

    /// The daemon before was another one of this machine, and it may not have ended its sandboxes.
    fn sweep(
        &mut self,
        leftovers: Leftovers,
        snapshot: Option<Box<Snapshot>>,
        core: &mut Core,
        children: &mut Children,
        now: Now,
    ) {
        log::info!("clearing away what the daemon before has left in {}", leftovers.data_dir.display());
        match spawn::own_child(&sweep::args(&Layout::of(leftovers.data_dir.clone()))) {
            Ok(pid) => {
                children.add(pid, Role::SweepBefore);
                self.sweeping = Some((leftovers, snapshot));
            }
            Err(e) => {
                log::error!("what the daemon before has left may still run: the sweep cannot be started: {e}");
                core.handle(Input::StoreOpened { snapshot }, now);
            }
        }
    }

    /// The sweep has ended, well or not; if not it has said why.
    pub fn swept(&mut self, cause: ExitCause, core: &mut Core, now: Now) {
        let Some((leftovers, snapshot)) = self.sweeping.take() else { return };
        if cause != ExitCause::Code(0) {
            log::error!("what the daemon before has left in {} may still run", leftovers.data_dir.display());
        }
        core.handle(Input::StoreOpened { snapshot }, now);
    }

    pub fn next_deadline(&self) -> Option<u64> {
        self.wake_at_ms
    }

    pub fn tick(&mut self, children: &mut Children, now: Now) {
        if self.wake_at_ms.is_some_and(|at| at <= now.mono_ms) {
            self.wake_at_ms = None;
            self.cluster_event(Event::Due, children, now);
        }
    }

    pub fn child_ended(&mut self, role: &Role, cause: ExitCause, children: &mut Children, now: Now) {
        let role = match role {
            Role::InitDb => cluster::Role::InitDb,
            Role::Postgres => cluster::Role::Postgres,
            Role::Launcher(_)
            | Role::Container(_)
            | Role::Chore(_)
            | Role::Emptying
            | Role::Pull(_)
            | Role::Sweep
            | Role::SweepBefore
            | Role::Probe
            | Role::Check => {
                return;
            }
        };
        let detail = match cause {
            ExitCause::Code(code) => format!("exit status {code}"),
            ExitCause::Signal(signal) => format!("killed by signal {signal}"),
        };
        self.cluster_event(Event::Exited { role, ok: cause == ExitCause::Code(0), detail }, children, now);
    }

    /// Closes the store, then stops the cluster. True when nothing is left of either.
    pub fn stop(&mut self, children: &mut Children, now: Now) -> bool {
        if !self.stopping {
            self.stopping = true;
            self.close();
            self.cluster_event(Event::Stop, children, now);
        }
        self.stopped
    }

    /// Lets the thread finish. This waits, bounded, and only at the very end.
    pub fn close(&mut self) {
        if let Some(store) = self.store.take() {
            store.close();
        }
    }

    fn cluster_event(&mut self, event: Event, children: &mut Children, now: Now) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let Some(cluster) = &mut self.cluster else { return };
            for action in cluster.handle(event) {
                match action {
                    Action::Spawn { role, program } => {
                        match program.to_command().and_then(|mut command| command.spawn()) {
                            Ok(child) => children.add(child.id() as i32, role_of(role)),
                            Err(e) => events.push_back(Event::Exited { role, ok: false, detail: e.to_string() }),
                        }
                    }
                    Action::Signal { role, signal } => {
                        let pid = children.pid_of(&role_of(role));
                        if let (Some(pid), Ok(signal)) = (pid, Signal::try_from(signal)) {
                            _ = kill(Pid::from_raw(-pid), signal);
                        }
                    }
                    Action::WakeAt { after } => self.wake_at_ms = Some(now.mono_ms + after.as_millis() as u64),
                    Action::Down { why } => log::warn!("the private PostgreSQL is down: {why}"),
                    Action::Stopped => self.stopped = true,
                }
            }
        }
    }
}

fn role_of(role: cluster::Role) -> Role {
    match role {
        cluster::Role::InitDb => Role::InitDb,
        cluster::Role::Postgres => Role::Postgres,
    }
}
