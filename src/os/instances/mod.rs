//! All instances: their pipes and processes, from the launcher's spawn to the last of the clean-up. Turns what the core
//! wants into children and signals, and what becomes of them into inputs. Owns whose turn it is to be read. Invariants: an
//! instance's `Exited` comes after everything it ever said; and one that has spent its allowance waits in its own pipe.

pub mod carried;
pub mod disk_guard;
mod doze;
mod ends;
mod fetched;
pub mod meter;
mod numbers;
pub mod pace;
pub mod pipe_share;
pub mod pipes;
pub mod reading;

use crate::core::Core;
use crate::core::contract::{Input, Now};
use crate::ids::{IdMap, InstanceId, ServerId};
use crate::limits::{BYTES_AT_ONCE, PIPE_BUFFER_FREE, STDOUT_PIPE, WORK_PER_CALL};
use crate::model::definition::Definition;
use crate::model::instance::{Exit, ExitCause, LaunchFault, LaunchFaultKind, Packages};
use crate::os::children::chores::{Chores, Work};
use crate::os::children::launch_turns::LaunchTurns;
use crate::os::children::reap::{Children, Role};
use crate::os::children::spawn;
use crate::os::instances::carried::Disk;
use crate::os::instances::doze::{Doze, Woken};
use crate::os::instances::meter::Meter;
use crate::os::instances::pace::Pace;
use crate::os::instances::pipes::{Held, Pipes, Written};
use crate::os::instances::reading::{Last, Reading};
use crate::os::net::descriptors::Descriptors;
use crate::os::net::ports::Ports;
use crate::sandbox::container::plan::{LaunchPlan, Layout, Networking, Report, Runs, Runtime, RuntimeKind};
use crate::sandbox::host::cgroup::{CgroupFiles, Hierarchies, oom_kills_of_host};
use crate::shares::{Owner, Shares, Short};
use mio::Registry;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

struct Hosted {
    container_id: String,
    kind: RuntimeKind,
    pipes: Pipes,
    process: Process,
    /// None: this host has no cgroups that we know.
    cgroup: Option<CgroupFiles>,
    /// How often the host's OOM killer had been at work before its launch; None: unknown.
    oom_kills_before: Option<u64>,
    flow: Flow,
    disk: Disk,
    doze: Doze,
}

/// How it answers.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Flow {
    /// It was asked, and has said nothing whole since. What it says without being asked is no answer.
    asked: bool,
    /// It is in the middle of a large answer, which is read piece by piece.
    large: bool,
    /// Its last one was large. So may be the next, and others need not wait for that.
    last_was_large: bool,
    /// It has its place among those that go on in a later turn.
    queued: bool,
    /// That it is held back has been said.
    is_known_as_loud: bool,
}

impl Hosted {
    fn was_oom_killed(&self) -> bool {
        let none_since = self.oom_kills_before.is_some() && self.oom_kills_before == oom_kills_of_host();
        !none_since && self.cgroup.as_ref().is_some_and(CgroupFiles::oom_killed)
    }

    /// Who has spent its allowance, or does not read the answers to its questions, is not read.
    fn hold_back(&mut self, id: InstanceId, held: &mut BTreeSet<(u64, InstanceId)>, registry: &Registry, now: Now) {
        let Hosted { pipes, flow, .. } = self;
        for tap in [&mut pipes.stderr, &mut pipes.stdout] {
            if let Some(until_ms) = tap.allowance.wait_until(now.mono_ms)
                && !tap.is_held()
            {
                tap.hold(Held::Until(until_ms), registry);
                held.insert((until_ms, id));
                if !std::mem::replace(&mut flow.is_known_as_loud, true) {
                    log::warn!("instance={id} says more than it may: it is heard less often");
                }
            }
        }
        if pipes.owes_too_much() && !pipes.stdout.is_held() {
            pipes.stdout.hold(Held::ForStdin, registry);
            log::warn!("instance={id} asks and does not read the answers: it is not heard until it does");
        }
    }
}

/// Once, however many follow: how many is told when it reads again.
fn tell_dropped(instance: InstanceId, written: Written) {
    if matches!(written, Written::Dropped(1, _)) {
        log::warn!("instance={instance} reads nothing: messages to it are dropped");
    }
}

/// What is needed to listen to a pipe or not, and to count what it holds.
type With<'a> = (&'a Registry, &'a mut Shares, Now);

enum Process {
    /// The launcher and its report.
    Launching {
        pid: i32,
        report: Option<OwnedFd>,
    },
    Running {
        pid: i32,
    },
    /// It is dead, and its last words are being read.
    Dead {
        cause: ExitCause,
        last: Last,
    },
    Ended,
}

pub struct Instances {
    map: IdMap<InstanceId, Hosted>,
    pub meter: Meter,
    runtimes: BTreeMap<String, Runtime>,
    settings: LaunchSettings,
    pub ports: Ports,
    cgroups: Option<Hierarchies>,
    scratch: Vec<u8>,
    /// Instances with more to read though the kernel will not say so again, or in the middle of a large answer; the next
    /// one first.
    large: VecDeque<InstanceId>,
    /// Those that have spent their allowance, and when they may go on.
    held: BTreeSet<(u64, InstanceId)>,
    pub pace: Pace,
    turns: LaunchTurns,
    chores: Chores,
    /// Those that dozed and do so no more, for the core.
    woken: Woken,
}

/// An instance that is to be launched.
pub struct Wanted<'a> {
    pub instance: InstanceId,
    /// Whose share it is that it takes.
    pub server: ServerId,
    pub provider: &'a str,
    pub definition: &'a Definition,
    pub packages: Packages,
}

/// What is the same for all instances of a daemon.
pub struct LaunchSettings {
    pub layout: Layout,
    pub networking: Networking,
    /// What the configuration adds to the host's view.
    pub host_paths: Vec<PathBuf>,
    pub disk_reserve_bytes: u64,
    /// Distinguishes the containers of this life of the daemon from those of any other.
    pub boot_id: String,
}

impl Instances {
    /// `provide` gives it what to launch with.
    pub fn new(settings: LaunchSettings, meter: Meter, descriptors: Descriptors) -> Instances {
        Instances {
            map: IdMap::default(),
            meter,
            runtimes: BTreeMap::new(),
            chores: Chores::new(settings.layout.clone()),
            settings,
            ports: Ports::new(descriptors),
            cgroups: Hierarchies::of_this_host(),
            scratch: vec![0; 64 * 1024],
            large: VecDeque::new(),
            held: BTreeSet::new(),
            pace: Pace::default(),
            turns: LaunchTurns::of_this_host(),
            woken: Woken::new(),
        }
    }

    pub fn layout(&self) -> &Layout {
        &self.settings.layout
    }

    /// The runtimes that are known to work.
    pub fn provide(&mut self, runtimes: BTreeMap<String, Runtime>) {
        self.runtimes = runtimes;
    }

    pub fn has_large(&self) -> bool {
        !self.large.is_empty()
    }

    /// Nothing runs and nothing is being cleaned up.
    pub fn is_at_rest(&self) -> bool {
        self.map.is_empty() && self.chores.are_at_rest()
    }

    // --- what the core wants ------------------------------------------------------------------------------------

    pub fn launch(
        &mut self,
        what: &Wanted<'_>,
        children: &mut Children,
        registry: &Registry,
    ) -> Result<(), LaunchFault> {
        let Wanted { instance, server, provider, definition, packages } = *what;
        let Some(runtime) = self.runtimes.get(provider).cloned() else {
            let message = format!("provider {provider} is not usable here");
            return Err(LaunchFault { kind: LaunchFaultKind::ProviderUnusable, message });
        };
        let internal = |e: std::io::Error| LaunchFault {
            kind: LaunchFaultKind::Internal,
            message: format!("the launcher could not be started: {e}"),
        };
        let container_id = format!("{}-{instance}", self.settings.boot_id);
        self.ports.publish(instance, &definition.ports, registry)?;
        let (pipes, far) =
            Pipes::open(instance, Owner::Server(server), definition.framing, registry).map_err(internal)?;
        let plan = LaunchPlan {
            container_id: container_id.clone(),
            definition: definition.clone(),
            packages,
            runtime,
            layout: self.settings.layout.clone(),
            networking: self.settings.networking.clone(),
            host_paths: self.settings.host_paths.clone(),
            disk_reserve_bytes: self.settings.disk_reserve_bytes,
            daemon_pid: std::process::id() as i32,
            waits: true,
        };
        let oom_kills_before = oom_kills_of_host();
        let (pid, report) = spawn::launcher(&plan, far).map_err(internal)?;
        children.add(pid, Role::Launcher(instance));
        self.turns.join(instance);
        log::info!("server={} instance={instance} launch provider={provider} launcher={pid}", definition.name);
        let cgroup = self.cgroups.as_ref().map(|all| all.instance(&self.settings.layout, &container_id));
        let layout = &self.settings.layout;
        let disk = Disk {
            dirs: vec![layout.bundle(&container_id), layout.volumes_dir(&definition.name)],
            volume: definition.volumes.first().map(PathBuf::from),
            installs: false,
        };
        if let Some(cgroup) = &cgroup {
            self.meter.watch(instance, cgroup.clone(), disk.dirs.clone(), disk.volume.clone());
        }
        let process = Process::Launching { pid, report: Some(report) };
        let kind = plan.runtime.kind;
        let (flow, doze) = (Flow::default(), Doze::default());
        let hosted = Hosted { container_id, kind, pipes, process, cgroup, oom_kills_before, flow, disk, doze };
        self.map.insert(instance, hosted);
        Ok(())
    }

    /// An error: it was dropped.
    pub fn write(
        &mut self,
        instance: InstanceId,
        bytes: Vec<u8>,
        of_call: bool,
        (registry, shares, now): With<'_>,
    ) -> Result<(), Short> {
        // Its end is on its way to the core, and tells more.
        let Some(hosted) = self.map.get_mut(&instance) else { return Ok(()) };
        hosted.doze.end(instance, &mut self.woken);
        hosted.flow.asked = true;
        if !hosted.flow.large && !hosted.flow.last_was_large {
            self.pace.asked(instance, now.mono_ms);
        }
        if of_call {
            hosted.pipes.stdout.allowance.grant(WORK_PER_CALL);
        }
        let written = hosted.pipes.write(bytes, shares, now.mono_ms);
        if matches!(hosted.pipes.stdout.held, Held::ForStdin) {
            self.follow_stdin(instance, registry);
        }
        let Written::Dropped(_, short) = written else { return Ok(()) };
        tell_dropped(instance, written);
        if short == Short::Whole {
            self.end_furthest_behind(now);
        }
        Err(short)
    }

    /// An answer to what it asked itself.
    pub fn reply(&mut self, instance: InstanceId, bytes: Vec<u8>, (registry, shares, now): With<'_>) {
        let Some(hosted) = self.map.get_mut(&instance) else { return };
        hosted.doze.end(instance, &mut self.woken);
        tell_dropped(instance, hosted.pipes.reply(bytes, shares, now.mono_ms));
        self.follow_stdin(instance, registry);
    }

    /// Something was written to it, or is not to be written any more.
    fn follow_stdin(&mut self, instance: InstanceId, registry: &Registry) {
        let Some(hosted) = self.map.get_mut(&instance) else { return };
        if let Some(dropped) = hosted.pipes.take_dropped() {
            log::warn!("instance={instance} reads again: {dropped} messages to it were dropped");
        }
        if hosted.pipes.stdout.held == Held::ForStdin && !hosted.pipes.owes_too_much() {
            hosted.pipes.stdout.release(registry);
            self.go_on_later(instance);
        }
    }

    pub fn close_stdin(&mut self, instance: InstanceId, (registry, shares, now): With<'_>) {
        if let Some(hosted) = self.map.get_mut(&instance) {
            hosted.doze.end(instance, &mut self.woken);
            hosted.pipes.close_stdin(shares, now.mono_ms);
            self.follow_stdin(instance, registry);
        }
    }

    pub fn discard(&mut self, instance: InstanceId, shares: &mut Shares, now: Now) {
        self.ports.withdraw(instance, shares, now);
        if let Some(mut hosted) = self.map.remove(&instance) {
            hosted.pipes.share.give_back(shares);
            self.meter.forget(instance);
            self.chores.add(Work::Container(hosted.container_id));
        }
    }

    /// What a process has begun under this id that could not end it itself.
    pub fn discard_container(&mut self, id: String) {
        self.chores.add(Work::Container(id));
    }

    /// A server's volumes go only with the server, and only when that was asked for.
    pub fn remove_volumes(&mut self, server: ServerId, name: String) {
        self.chores.add(Work::Volumes(server, name));
    }

    /// After everything else that the core wanted in this turn, so that nobody's start is late for another's work.
    pub fn give_turns(&mut self, children: &mut Children, now: Now) {
        while let Some(instance) = self.turns.begin() {
            if let Some(Hosted { process: Process::Launching { report: Some(report), .. }, .. }) =
                self.map.get(&instance)
            {
                spawn::give_the_word(report);
            }
        }
        self.chores.start(self.turns.are_taken(), children, now);
    }

    /// When something is to be tried again, or somebody may go on.
    pub fn next_deadline(&self) -> Option<u64> {
        let due = self.ports.next_deadline().into_iter().chain(self.chores.next_deadline()).min();
        if self.held.is_empty() {
            return due;
        }
        due.into_iter().chain(self.held.first().map(|(due_ms, _)| *due_ms)).min()
    }

    /// Those who have waited long enough have their turn, after all others in this one.
    pub fn release_held(&mut self, registry: &Registry, now: Now) {
        while !self.held.is_empty()
            && let Some(&(due_ms, instance)) = self.held.first()
            && due_ms <= now.mono_ms
        {
            self.held.remove(&(due_ms, instance));
            let Some(hosted) = self.map.get_mut(&instance) else { continue };
            for tap in [&mut hosted.pipes.stderr, &mut hosted.pipes.stdout] {
                if matches!(tap.held, Held::Until(until_ms) if until_ms <= now.mono_ms) {
                    tap.release(registry);
                }
            }
            self.go_on_later(instance);
        }
    }

    /// How many are heard less than they say.
    pub fn held_back(&self) -> usize {
        self.held.len()
    }

    // --- what the kernel says -----------------------------------------------------------------------------------

    pub fn stdin_writable(&mut self, instance: InstanceId, (registry, shares, now): With<'_>) {
        if let Some(hosted) = self.map.get_mut(&instance) {
            hosted.pipes.flush(shares, now.mono_ms);
            self.follow_stdin(instance, registry);
        }
    }

    pub fn stdout_readable(&mut self, instance: InstanceId, ended: bool, core: &mut Core, with: With<'_>) {
        if let Some(hosted) = self.map.get_mut(&instance) {
            hosted.pipes.stdout.woke(ended);
            self.readable(instance, core, with);
        }
    }

    pub fn stderr_readable(&mut self, instance: InstanceId, ended: bool, core: &mut Core, with: With<'_>) {
        if let Some(hosted) = self.map.get_mut(&instance) {
            hosted.pipes.stderr.woke(ended);
            self.readable(instance, core, with);
        }
    }

    fn readable(&mut self, instance: InstanceId, core: &mut Core, with: With<'_>) {
        if self.map.get(&instance).is_some_and(|hosted| hosted.flow.large) {
            self.pace.heard(instance);
            self.go_on_later(instance);
        } else {
            self.read(instance, BYTES_AT_ONCE, core, with);
        }
    }

    /// The next piece of the large answer whose turn it is, or the next words of one who has much to say.
    pub fn read_large(&mut self, most: usize, core: &mut Core, with: With<'_>) {
        while let Some(instance) = self.large.pop_front() {
            if let Some(hosted) = self.map.get_mut(&instance) {
                hosted.flow.queued = false;
                return self.read(instance, most, core, with);
            }
        }
    }

    fn go_on_later(&mut self, instance: InstanceId) {
        // Once: who stands there twice would have two shares.
        if let Some(hosted) = self.map.get_mut(&instance)
            && !std::mem::replace(&mut hosted.flow.queued, true)
        {
            self.large.push_back(instance);
        }
    }

    /// Reads so much of each output at most; what is left has its turn later.
    fn read(&mut self, instance: InstanceId, most: usize, core: &mut Core, (registry, shares, now): With<'_>) {
        let Some(hosted) = self.map.get_mut(&instance) else { return };
        if matches!(hosted.process, Process::Dead { .. }) {
            return self.read_last(instance, core, now);
        }
        if !hosted.pipes.are_quiet() {
            hosted.hold_back(instance, &mut self.held, registry, now);
        }
        let Hosted { flow, pipes, .. } = hosted;
        let mut reading = Reading { instance, pipes, scratch: &mut self.scratch, core, now };
        if reading.pipes.stderr.readable {
            reading.stderr(most);
        }
        let whole = reading.stdout(most);
        self.pace.heard(instance);
        if whole {
            if std::mem::take(&mut flow.asked) && !flow.large {
                self.pace.answered(now.mono_ms);
            }
            flow.last_was_large = flow.large;
        }
        let counted = pipes.count_lines(shares);
        flow.large = pipes.stdout.readable || pipes.unread || pipes.lines.is_amid_large();
        if pipes.has_more() {
            hosted.hold_back(instance, &mut self.held, registry, now);
            if hosted.pipes.has_more() {
                self.go_on_later(instance);
            }
        }
        if counted.is_err() {
            self.make_room(instance, shares);
        }
    }

    /// There is no room for the lines of all servers, or for those of this one's. Nobody waits, or half lines that never end
    /// would hold up everybody: first goes what nobody needs, then the longest. So who has less than others never gives way.
    fn make_room(&mut self, instance: InstanceId, shares: &mut Shares) {
        let Some(owner) = self.map.get(&instance).map(|hosted| hosted.pipes.share.owner().clone()) else { return };
        self.map.values_mut().for_each(|hosted| hosted.pipes.shrink_lines(shares));
        for _ in 0..=self.map.len() {
            let counted = self.map.get_mut(&instance).map_or(Ok(()), |hosted| hosted.pipes.count_lines(shares));
            let Err(short) = counted else { return };
            let concerned = |pipes: &Pipes| short == Short::Whole || *pipes.share.owner() == owner;
            let half_lines = self.map.iter_mut().filter(|(_, hosted)| concerned(&hosted.pipes));
            let longest = half_lines.max_by_key(|(_, hosted)| hosted.pipes.half_line());
            let Some((id, hosted)) = longest.filter(|(_, hosted)| hosted.pipes.half_line() > PIPE_BUFFER_FREE) else {
                // What is left are whole lines, a turn's worth of them each.
                return;
            };
            log::warn!("instance={id} has a line of {} bytes discarded: no room", hosted.pipes.half_line());
            hosted.pipes.give_up_line(shares);
        }
    }

    /// A child of ours has ended; roles that are not an instance's are the caller's.
    pub fn child_ended(&mut self, role: Role, cause: ExitCause, children: &mut Children, core: &mut Core, now: Now) {
        match role {
            Role::Launcher(instance) => self.launcher_ended(instance, cause, children, core, now),
            Role::Container(instance) => self.container_ended(instance, cause, core, now),
            Role::Chore(chore) => {
                if let Some(outcome) = self.chores.ended(chore, cause, now) {
                    core.handle(outcome, now);
                }
            }
            Role::Emptying => self.chores.emptied(cause, now),
            Role::Pull(_)
            | Role::Sweep
            | Role::SweepBefore
            | Role::Probe
            | Role::InitDb
            | Role::Postgres
            | Role::Check => {}
        }
    }

    fn launcher_ended(
        &mut self,
        instance: InstanceId,
        cause: ExitCause,
        children: &mut Children,
        core: &mut Core,
        now: Now,
    ) {
        self.turns.leave(instance);
        let report = self.map.get_mut(&instance).and_then(|hosted| match &mut hosted.process {
            Process::Launching { report, .. } => report.take(),
            Process::Running { .. } | Process::Dead { .. } | Process::Ended => None,
        });
        match report.and_then(spawn::read_report) {
            Some(Report::Started { pid, address, runs }) => {
                self.ports.located(instance, address);
                let dead = children.claim(pid, instance);
                if let Some(hosted) = self.map.get_mut(&instance) {
                    hosted.process = Process::Running { pid };
                }
                let begun = match runs {
                    Runs::Server => Input::Launched { instance },
                    Runs::Install => {
                        self.meter.watch_install(instance);
                        self.map.get_mut(&instance).into_iter().for_each(|hosted| hosted.disk.installs = true);
                        Input::InstallBegun { instance }
                    }
                };
                core.handle(begun, now);
                if let Some(cause) = dead {
                    self.container_ended(instance, cause, core, now);
                }
            }
            Some(Report::Failed(why)) => core.handle(Input::LaunchFailed { instance, why }, now),
            None => {
                let message = format!("the launcher ended without a report ({cause:?})");
                let why = LaunchFault { kind: LaunchFaultKind::Internal, message };
                core.handle(Input::LaunchFailed { instance, why }, now);
            }
        }
        children.settle();
    }

    fn container_ended(&mut self, instance: InstanceId, cause: ExitCause, core: &mut Core, now: Now) {
        let Some(hosted) = self.map.get_mut(&instance) else { return };
        // All it ever wrote is in the pipes by now, and they hold no more than this.
        hosted.process = Process::Dead { cause, last: Last { stderr: STDOUT_PIPE, stdout: STDOUT_PIPE } };
        self.read_last(instance, core, now);
    }

    /// What it said last, and then that it has ended: at once, unless it said very much.
    fn read_last(&mut self, instance: InstanceId, core: &mut Core, now: Now) {
        let Some(Hosted { process, pipes, .. }) = self.map.get_mut(&instance) else { return };
        let Process::Dead { cause, last } = process else { return };
        let mut reading = Reading { instance, pipes, scratch: &mut self.scratch, core, now };
        if !reading.last(last) {
            return self.go_on_later(instance);
        }
        let cause = *cause;
        *process = Process::Ended;
        let oom = self.map[&instance].was_oom_killed();
        core.handle(Input::Exited { instance, exit: Exit { cause, oom } }, now);
    }
}
