//! All instances: their pipes and processes, from the launcher's spawn to the last of the clean-up. Turns what the core
//! wants into children and signals, and what becomes of them into inputs. Invariant: an instance's `Exited` comes after
//! everything it ever said.

use crate::core::Core;
use crate::core::contract::{Exit, ExitCause, Input, LaunchFault, LaunchFaultKind, Now, StopSignal, Usage};
use crate::core::definition::Definition;
use crate::ids::{IdMap, InstanceId, ServerId};
use crate::limits::{BYTES_AT_ONCE, STDOUT_PIPE};
use crate::os::chores::{Chores, Work};
use crate::os::descriptors::Descriptors;
use crate::os::meter::Meter;
use crate::os::pace::Pace;
use crate::os::pipes::{Drawn, Pipes};
use crate::os::ports::Ports;
use crate::os::reap::{Children, Role};
use crate::os::spawn;
use crate::os::turns::Turns;
use crate::sandbox::cgroup::{CgroupFiles, Hierarchies, oom_kills_of_host};
use crate::sandbox::plan::{LaunchPlan, Layout, Networking, Report, Runtime, RuntimeKind};
use crate::sandbox::signal;
use mio::Registry;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;

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
}

/// How it answers.
#[derive(Default)]
struct Flow {
    /// It was asked, and has said nothing whole since. What it says without being asked is no answer.
    asked: bool,
    /// It is in the middle of a large answer, which is read piece by piece.
    large: bool,
    /// Its last one was large. So may be the next, and others need not wait for that.
    last_was_large: bool,
    /// It has its place among those that go on in a later turn.
    queued: bool,
}

impl Hosted {
    fn was_oom_killed(&self) -> bool {
        let none_since = self.oom_kills_before.is_some() && self.oom_kills_before == oom_kills_of_host();
        !none_since && self.cgroup.as_ref().is_some_and(CgroupFiles::oom_killed)
    }
}

enum Process {
    /// The launcher and its report.
    Launching {
        pid: i32,
        report: Option<OwnedFd>,
    },
    Running {
        pid: i32,
    },
    Ended,
}

pub struct Instances {
    map: IdMap<InstanceId, Hosted>,
    pub children: Children,
    pub meter: Meter,
    runtimes: BTreeMap<String, Runtime>,
    layout: Layout,
    networking: Networking,
    pub ports: Ports,
    cgroups: Option<Hierarchies>,
    /// Distinguishes the containers of this life of the daemon from those of any other.
    boot_id: String,
    scratch: Vec<u8>,
    /// Instances with more to read though the kernel will not say so again, or in the middle of a large answer; the next
    /// one first.
    large: VecDeque<InstanceId>,
    pub pace: Pace,
    turns: Turns,
    chores: Chores,
}

impl Instances {
    /// `provide` gives it what to launch with.
    pub fn new(
        layout: Layout,
        networking: Networking,
        boot_id: String,
        meter: Meter,
        descriptors: Descriptors,
    ) -> Instances {
        Instances {
            map: IdMap::default(),
            children: Children::default(),
            meter,
            runtimes: BTreeMap::new(),
            chores: Chores::new(layout.clone()),
            layout,
            networking,
            ports: Ports::new(descriptors),
            cgroups: Hierarchies::of_this_host(),
            boot_id,
            scratch: vec![0; 64 * 1024],
            large: VecDeque::new(),
            pace: Pace::default(),
            turns: Turns::of_this_host(),
        }
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
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
        instance: InstanceId,
        provider: &str,
        definition: &Definition,
        registry: &Registry,
    ) -> Result<(), LaunchFault> {
        let Some(runtime) = self.runtimes.get(provider).cloned() else {
            let message = format!("provider {provider} is not usable here");
            return Err(LaunchFault { kind: LaunchFaultKind::ProviderUnusable, message });
        };
        let internal = |e: std::io::Error| LaunchFault {
            kind: LaunchFaultKind::Internal,
            message: format!("the launcher could not be started: {e}"),
        };
        let container_id = format!("{}-{instance}", self.boot_id);
        self.ports.publish(instance, &definition.ports, registry)?;
        let (pipes, far) = Pipes::open(instance, definition.framing, registry).map_err(internal)?;
        let plan = LaunchPlan {
            container_id: container_id.clone(),
            definition: definition.clone(),
            runtime,
            layout: self.layout.clone(),
            networking: self.networking.clone(),
            daemon_pid: std::process::id() as i32,
            waits: true,
        };
        let oom_kills_before = oom_kills_of_host();
        let (pid, report) = spawn::launcher(&plan, far).map_err(internal)?;
        self.children.add(pid, Role::Launcher(instance));
        self.turns.join(instance);
        log::info!("server={} instance={instance} launch provider={provider} launcher={pid}", definition.name);
        let cgroup = self.cgroups.as_ref().map(|all| all.instance(&self.layout, &container_id));
        if let Some(cgroup) = &cgroup {
            let dirs = vec![self.layout.bundle(&container_id), self.layout.volumes_dir(&definition.name)];
            self.meter.watch(instance, cgroup.clone(), dirs);
        }
        let process = Process::Launching { pid, report: Some(report) };
        let kind = plan.runtime.kind;
        let flow = Flow::default();
        self.map.insert(instance, Hosted { container_id, kind, pipes, process, cgroup, oom_kills_before, flow });
        Ok(())
    }

    /// False: it was dropped.
    pub fn write(&mut self, instance: InstanceId, bytes: Vec<u8>, now: Now) -> bool {
        // Its end is on its way to the core, and tells more.
        let Some(hosted) = self.map.get_mut(&instance) else { return true };
        hosted.flow.asked = true;
        if !hosted.flow.large && !hosted.flow.last_was_large {
            self.pace.asked(instance, now.mono_ms);
        }
        let written = hosted.pipes.write(bytes);
        if !written {
            log::warn!("instance={instance} reads nothing: a message to it was dropped");
        }
        written
    }

    pub fn close_stdin(&mut self, instance: InstanceId) {
        if let Some(hosted) = self.map.get_mut(&instance) {
            hosted.pipes.close_stdin();
        }
    }

    pub fn signal(&mut self, instance: InstanceId, signal: StopSignal) {
        let Some(hosted) = self.map.get(&instance) else { return };
        let sent = match (&hosted.process, signal) {
            (Process::Ended, _) | (Process::Launching { .. }, StopSignal::Term) => Ok(()),
            // Its end without a report is a launch that failed; the clean-up finds whatever it had begun.
            (Process::Launching { pid, .. }, StopSignal::Kill) => kill(Pid::from_raw(*pid), Signal::SIGKILL),
            (Process::Running { pid }, signal) => signal::send(hosted.kind, *pid, signal),
        };
        // ESRCH: it has just ended, and the reaper will say so.
        if let Err(e) = sent
            && e != Errno::ESRCH
        {
            log::warn!("instance={instance} cannot be signalled: {e}");
        }
    }

    pub fn discard(&mut self, instance: InstanceId) {
        self.ports.withdraw(instance);
        if let Some(hosted) = self.map.remove(&instance) {
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
    pub fn give_turns(&mut self, now: Now) {
        while let Some(instance) = self.turns.begin() {
            if let Some(Hosted { process: Process::Launching { report: Some(report), .. }, .. }) =
                self.map.get(&instance)
            {
                spawn::give_the_word(report);
            }
        }
        self.chores.start(self.turns.are_taken(), &mut self.children, now);
    }

    /// When something is to be tried again.
    pub fn next_deadline(&self) -> Option<u64> {
        self.ports.next_deadline().into_iter().chain(self.chores.next_deadline()).min()
    }

    // --- what the kernel says -----------------------------------------------------------------------------------

    pub fn stdin_writable(&mut self, instance: InstanceId) {
        if let Some(hosted) = self.map.get_mut(&instance) {
            hosted.pipes.flush();
        }
    }

    pub fn stdout_readable(&mut self, instance: InstanceId, ended: bool, core: &mut Core, now: Now) {
        if let Some(hosted) = self.map.get_mut(&instance) {
            hosted.pipes.stdout.woke(ended);
            self.readable(instance, core, now);
        }
    }

    pub fn stderr_readable(&mut self, instance: InstanceId, ended: bool, core: &mut Core, now: Now) {
        if let Some(hosted) = self.map.get_mut(&instance) {
            hosted.pipes.stderr.woke(ended);
            self.readable(instance, core, now);
        }
    }

    fn readable(&mut self, instance: InstanceId, core: &mut Core, now: Now) {
        if self.map.get(&instance).is_some_and(|hosted| hosted.flow.large) {
            self.pace.heard(instance);
            self.go_on_later(instance);
        } else {
            self.read(instance, BYTES_AT_ONCE, core, now);
        }
    }

    /// The next piece of the large answer whose turn it is.
    pub fn read_large(&mut self, most: usize, core: &mut Core, now: Now) {
        while let Some(instance) = self.large.pop_front() {
            if let Some(hosted) = self.map.get_mut(&instance) {
                hosted.flow.queued = false;
                return self.read(instance, most, core, now);
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
    fn read(&mut self, instance: InstanceId, most: usize, core: &mut Core, now: Now) {
        let Some(hosted) = self.map.get_mut(&instance) else { return };
        read_stderr(instance, hosted, &mut self.scratch, most, core, now);
        let whole = read_stdout(instance, hosted, &mut self.scratch, most, core, now);
        let Hosted { flow, pipes, .. } = hosted;
        self.pace.heard(instance);
        if whole {
            if std::mem::take(&mut flow.asked) && !flow.large {
                self.pace.answered(now.mono_ms);
            }
            flow.last_was_large = flow.large;
        }
        flow.large = pipes.stdout.readable || pipes.lines.is_amid_large();
        if pipes.stdout.readable || pipes.stderr.readable {
            self.go_on_later(instance);
        }
    }

    /// A child of ours has ended; roles that are not an instance's are the caller's.
    pub fn child_ended(&mut self, role: Role, cause: ExitCause, registry: &Registry, core: &mut Core, now: Now) {
        match role {
            Role::Launcher(instance) => self.launcher_ended(instance, cause, registry, core, now),
            Role::Container(instance) => self.container_ended(instance, cause, core, now),
            Role::Chore(chore) => {
                if let Some(outcome) = self.chores.ended(chore, cause, now) {
                    core.handle(outcome, now);
                }
            }
            Role::Emptying => self.chores.emptied(cause, now),
            Role::Pull(_) | Role::Sweep | Role::Probe | Role::InitDb | Role::Postgres => {}
        }
    }

    fn launcher_ended(
        &mut self,
        instance: InstanceId,
        cause: ExitCause,
        registry: &Registry,
        core: &mut Core,
        now: Now,
    ) {
        self.turns.leave(instance);
        let report = self.map.get_mut(&instance).and_then(|hosted| match &mut hosted.process {
            Process::Launching { report, .. } => report.take(),
            Process::Running { .. } | Process::Ended => None,
        });
        match report.and_then(spawn::read_report) {
            Some(Report::Started { pid, address }) => {
                self.ports.located(instance, address, registry);
                let dead = self.children.claim(pid, instance);
                if let Some(hosted) = self.map.get_mut(&instance) {
                    hosted.process = Process::Running { pid };
                }
                core.handle(Input::Launched { instance }, now);
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
        self.children.settle();
    }

    fn container_ended(&mut self, instance: InstanceId, cause: ExitCause, core: &mut Core, now: Now) {
        let Some(hosted) = self.map.get_mut(&instance) else { return };
        hosted.process = Process::Ended;
        // All it ever wrote is in the pipes by now, and they hold no more than this; whatever comes beyond was written by
        // somebody else who has them, after its death.
        let mut left = STDOUT_PIPE;
        while left > 0
            && let Drawn::Bytes(n) = hosted.pipes.stderr.read(&mut self.scratch)
        {
            left = left.saturating_sub(n);
            core.handle(Input::StderrRead { instance, bytes: &self.scratch[..n] }, now);
        }
        let mut left = STDOUT_PIPE;
        while left > 0
            && let Drawn::Bytes(n) = draw(&mut hosted.pipes, &mut self.scratch, left)
        {
            left = left.saturating_sub(n);
            read_lines(instance, hosted, core, now);
        }
        let oom = hosted.was_oom_killed();
        core.handle(Input::Exited { instance, exit: Exit { cause, oom } }, now);
    }

    // --- numbers ----------------------------------------------------------------------------------------------------

    /// What an instance uses: the meter's last look.
    pub fn usage(&self, instance: InstanceId) -> Option<Usage> {
        self.meter.usage(instance)
    }

    /// As above, and looked at now: four files of kernel memory, good for one instance but not for a list of them.
    pub fn usage_now(&self, instance: InstanceId) -> Option<Usage> {
        let cgroup = self.map.get(&instance)?.cgroup.as_ref()?;
        let last = self.meter.usage(instance).unwrap_or_default();
        Some(Usage { cpu_percent: last.cpu_percent, disk_bytes: last.disk_bytes, ..cgroup.usage()? })
    }
}

fn read_stderr(instance: InstanceId, hosted: &mut Hosted, scratch: &mut [u8], most: usize, core: &mut Core, now: Now) {
    let mut taken = 0;
    while hosted.pipes.stderr.readable && taken < most {
        let room = scratch.len().min(most - taken);
        let Drawn::Bytes(n) = hosted.pipes.stderr.read(&mut scratch[..room]) else { return };
        taken += n;
        core.handle(Input::StderrRead { instance, bytes: &scratch[..n] }, now);
    }
}

/// True: there was a whole line.
fn read_stdout(
    instance: InstanceId,
    hosted: &mut Hosted,
    scratch: &mut [u8],
    most: usize,
    core: &mut Core,
    now: Now,
) -> bool {
    let (mut taken, mut whole) = (0, false);
    while hosted.pipes.stdout.readable && taken < most {
        match draw(&mut hosted.pipes, scratch, most - taken) {
            Drawn::Bytes(n) => {
                taken += n;
                whole |= read_lines(instance, hosted, core, now);
            }
            Drawn::Empty => {}
            Drawn::Ended => core.handle(Input::StdoutClosed { instance }, now),
        }
    }
    whole
}

/// One read of stdout. What begins goes by way of `scratch`, so that a server which says little needs no large buffer;
/// what goes on is read to where it belongs.
fn draw(pipes: &mut Pipes, scratch: &mut [u8], most: usize) -> Drawn {
    if pipes.lines.pending() > 0 {
        let room = pipes.lines.room(scratch.len());
        let most = room.len().min(most);
        let drawn = pipes.stdout.read(&mut room[..most]);
        if let Drawn::Bytes(n) = drawn {
            pipes.lines.fed(n);
        }
        return drawn;
    }
    let most = scratch.len().min(most);
    let drawn = pipes.stdout.read(&mut scratch[..most]);
    if let Drawn::Bytes(n) = drawn {
        pipes.lines.feed(&scratch[..n]);
    }
    drawn
}

/// True: there was one.
fn read_lines(instance: InstanceId, hosted: &mut Hosted, core: &mut Core, now: Now) -> bool {
    let mut whole = false;
    while let Some(line) = hosted.pipes.lines.next_line() {
        whole = true;
        core.handle(Input::LineRead { instance, line }, now);
    }
    if !whole {
        core.handle(Input::Stirred { instance }, now);
    }
    whole
}
