//! All instances on their way to the next program: their pipes with what is half said and half written, their processes, and
//! those that are still being launched.

use crate::ids::InstanceId;
use crate::model::instance::ExitCause;
use crate::os::children::chores::Chores;
use crate::os::children::launch_turns::LaunchTurns;
use crate::os::instances::doze::{Doze, Woken};
use crate::os::instances::pipes::Pipes;
use crate::os::instances::pipes::carried::CarriedPipes;
use crate::os::instances::reading::Last;
use crate::os::instances::{Flow, Hosted, Instances, Process};
use crate::os::upgrade::carrying::{Carrying, adopt};
use crate::sandbox::container::plan::{Runtime, RuntimeKind};
use mio::Registry;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::RawFd;
use std::path::PathBuf;

/// What the meter looks at; it is told again.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Disk {
    pub dirs: Vec<PathBuf>,
    pub volume: Option<PathBuf>,
    /// It fetches packages.
    pub installs: bool,
}

#[derive(Serialize, Deserialize)]
pub struct CarriedInstances {
    instances: BTreeMap<InstanceId, CarriedInstance>,
    runtimes: BTreeMap<String, Runtime>,
    held: BTreeSet<(u64, InstanceId)>,
    turns: LaunchTurns,
    chores: Chores,
    #[serde(default)]
    woken: Woken,
}

#[derive(Serialize, Deserialize)]
struct CarriedInstance {
    container_id: String,
    kind: RuntimeKind,
    pipes: CarriedPipes,
    process: CarriedProcess,
    has_cgroup: bool,
    oom_kills_before: Option<u64>,
    flow: Flow,
    disk: Disk,
    /// The kernel keeps it so.
    #[serde(default)]
    is_frozen: bool,
}

#[derive(Serialize, Deserialize)]
enum CarriedProcess {
    Launching { pid: i32, report: Option<RawFd> },
    Running { pid: i32 },
    Dead { cause: ExitCause, last: Last },
    Ended,
}

impl Instances {
    pub fn carry(&self, carrying: &mut Carrying) -> CarriedInstances {
        let instances = self.map.iter().map(|(id, hosted)| (*id, hosted.carry(carrying))).collect();
        CarriedInstances {
            instances,
            runtimes: self.runtimes.clone(),
            held: self.held.clone(),
            turns: self.turns.clone(),
            chores: self.chores.clone(),
            woken: self.woken.clone(),
        }
    }

    pub fn adopt(&mut self, carried: CarriedInstances, registry: &Registry) -> io::Result<()> {
        (self.runtimes, self.held) = (carried.runtimes, carried.held);
        (self.turns, self.chores, self.woken) = (carried.turns, carried.chores, carried.woken);
        for (id, instance) in carried.instances {
            self.adopt_one(id, instance, registry)?;
        }
        Ok(())
    }

    fn adopt_one(&mut self, id: InstanceId, carried: CarriedInstance, registry: &Registry) -> io::Result<()> {
        let cgroups = self.cgroups.as_ref().filter(|_| carried.has_cgroup);
        let cgroup = cgroups.map(|all| all.instance(&self.settings.layout, &carried.container_id));
        if let Some(cgroup) = &cgroup {
            let Disk { dirs, volume, installs } = carried.disk.clone();
            self.meter.watch(id, cgroup.clone(), dirs, volume);
            if installs {
                self.meter.watch_install(id);
            }
        }
        let process = match carried.process {
            CarriedProcess::Launching { pid, report } => {
                Process::Launching { pid, report: report.map(adopt).transpose()? }
            }
            CarriedProcess::Running { pid } => Process::Running { pid },
            CarriedProcess::Dead { cause, last } => Process::Dead { cause, last },
            CarriedProcess::Ended => Process::Ended,
        };
        let doze = Doze::adopt(carried.is_frozen, cgroup.as_ref(), id, &mut self.woken);
        let is_dead = matches!(process, Process::Dead { .. });
        let hosted = Hosted {
            container_id: carried.container_id,
            kind: carried.kind,
            pipes: Pipes::adopt(carried.pipes, id, registry)?,
            process,
            cgroup,
            oom_kills_before: carried.oom_kills_before,
            flow: Flow { queued: false, ..carried.flow },
            disk: carried.disk,
            doze,
        };
        let goes_on = is_dead || hosted.flow.large || hosted.pipes.has_more();
        self.map.insert(id, hosted);
        if goes_on {
            self.go_on_later(id);
        }
        Ok(())
    }
}

impl Hosted {
    fn carry(&self, carrying: &mut Carrying) -> CarriedInstance {
        CarriedInstance {
            container_id: self.container_id.clone(),
            kind: self.kind,
            pipes: self.pipes.carry(carrying),
            process: match &self.process {
                Process::Launching { pid, report } => {
                    CarriedProcess::Launching { pid: *pid, report: report.as_ref().map(|report| carrying.name(report)) }
                }
                Process::Running { pid } => CarriedProcess::Running { pid: *pid },
                Process::Dead { cause, last } => CarriedProcess::Dead { cause: *cause, last: last.clone() },
                Process::Ended => CarriedProcess::Ended,
            },
            has_cgroup: self.cgroup.is_some(),
            oom_kills_before: self.oom_kills_before,
            flow: self.flow.clone(),
            disk: self.disk.clone(),
            is_frozen: matches!(self.doze, Doze::Frozen(_)),
        }
    }
}
