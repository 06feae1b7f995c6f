//! Which providers work here? Found out at boot by a trivial container of each, in children side by side, while the
//! database starts; what worked is remembered for as long as the runtime and the kernel stay the same. Never asks
//! twice in one life of the daemon. What does not work is tried again at the next start. Before all that, the sweep.
//! A child that is killed is followed by another.

use crate::limits::{CHORE_TRIES, PROBE_REASON_MAX};
use crate::model::instance::ExitCause;
use crate::os::children::reap::{Children, Role};
use crate::os::children::spawn;
use crate::sandbox::cleanup::sweep;
use crate::sandbox::container::plan::{Layout, Runtime, RuntimeKind, Users};
use crate::sandbox::host::probe;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;

pub struct Probes {
    layout: Layout,
    phase: Progress,
    /// By pid.
    running: HashMap<i32, Probe>,
    usable: BTreeMap<String, Runtime>,
    unusable: Vec<(String, String)>,
    /// Those that an earlier daemon has seen work, as they did.
    known: BTreeMap<String, Runtime>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// With how many sweeps that were killed.
    Sweeping(u32),
    Probing,
    Told,
}

struct Probe {
    provider: String,
    /// The pipe with its reason.
    said: OwnedFd,
    /// How many before it were.
    killed: u32,
}

/// The outcome of them all.
pub struct Verdict {
    pub usable: BTreeMap<String, Runtime>,
    pub unusable: Vec<(String, String)>,
}

impl Probes {
    /// `unusable`: what is known not to be installed. Begins with the sweep: nothing is tried among what is left of an
    /// earlier life.
    pub fn begin(
        layout: &Layout,
        usable: BTreeMap<String, Runtime>,
        unusable: Vec<(String, String)>,
        children: &mut Children,
    ) -> io::Result<Probes> {
        // Here, where nobody is served yet: it is the runtime's own file that is looked at.
        let remembered = probe::read_memory(&probe::memory(layout));
        let as_known = |(name, runtime): (&String, &Runtime)| Some((name.clone(), probe::among(&remembered, runtime)?));
        let known = usable.iter().filter_map(as_known).collect();
        let (layout, phase, running) = (layout.clone(), Progress::Sweeping(0), HashMap::new());
        let probes = Probes { layout, phase, running, usable, unusable, known };
        probes.sweep(children)?;
        Ok(probes)
    }

    /// After a handover: all of it was found out by the process before.
    pub fn told(layout: &Layout) -> Probes {
        let (running, usable, known) = (HashMap::new(), BTreeMap::new(), BTreeMap::new());
        Probes { layout: layout.clone(), phase: Progress::Told, running, usable, unusable: Vec::new(), known }
    }

    /// It was told what works here, and nothing is tried out any more.
    pub fn is_over(&self) -> bool {
        self.phase == Progress::Told && self.running.is_empty()
    }

    fn sweep(&self, children: &mut Children) -> io::Result<()> {
        children.add(spawn::own_child(&sweep::args(&self.layout))?, Role::Sweep);
        Ok(())
    }

    /// The sweep has ended. What one that was killed has not done is still to be done; one that failed has said why.
    pub fn swept(&mut self, cause: ExitCause, children: &mut Children) {
        if let (Progress::Sweeping(killed), ExitCause::Signal(signal)) = (self.phase, cause) {
            log::warn!("the sweep of leftovers was killed by signal {signal}");
            self.phase = Progress::Sweeping(killed + 1);
            let why = match killed + 1 < CHORE_TRIES {
                true => match self.sweep(children) {
                    Ok(()) => return,
                    Err(e) => e.to_string(),
                },
                false => format!("it was killed {CHORE_TRIES} times"),
            };
            log::error!("there may be something left of an earlier life of this daemon: {why}");
        }
        self.phase = Progress::Probing;
        for provider in self.usable.keys().cloned().collect::<Vec<_>>() {
            // A plain child needs no proof.
            if self.usable[&provider].kind == RuntimeKind::Plain {
                continue;
            }
            match self.known.remove(&provider) {
                Some(known) => _ = self.usable.insert(provider, known),
                None => self.try_out(provider, 0, children),
            }
        }
    }

    fn try_out(&mut self, provider: String, killed: u32, children: &mut Children) {
        match spawn::own_child_heard(&probe::args(&self.usable[&provider], &self.layout)) {
            Ok((pid, said)) => {
                children.add(pid, Role::Probe);
                self.running.insert(pid, Probe { provider, said, killed });
            }
            Err(e) => self.fail(&provider, format!("it could not be tried: {e}")),
        }
    }

    pub fn ended(&mut self, pid: i32, cause: ExitCause, children: &mut Children) {
        let Some(Probe { provider, said, killed }) = self.running.remove(&pid) else { return };
        let mut reason = String::new();
        _ = File::from(said).take(PROBE_REASON_MAX).read_to_string(&mut reason);
        let reason = reason.trim();
        match cause {
            ExitCause::Code(0) if reason == probe::POLLS => {
                log::info!("provider {provider}: {reason}; servers of it that nobody uses are frozen");
                if let Some(runtime) = self.usable.get_mut(&provider) {
                    runtime.polls = true;
                }
            }
            ExitCause::Code(0) => {
                if let (false, Some(runtime)) = (reason.is_empty(), self.usable.get_mut(&provider)) {
                    log::warn!("provider {provider} works without user namespaces only: {reason}");
                    runtime.users = Users::Same;
                }
            }
            // That says nothing of the provider.
            ExitCause::Signal(signal) if killed + 1 < CHORE_TRIES => {
                log::warn!("the probe of {provider} was killed by signal {signal}: again");
                self.try_out(provider, killed + 1, children);
            }
            ExitCause::Signal(signal) => self.fail(&provider, format!("what tried it was killed by signal {signal}")),
            ExitCause::Code(_) if reason.is_empty() => self.fail(&provider, "it died without a word".to_owned()),
            ExitCause::Code(_) => self.fail(&provider, reason.to_owned()),
        }
    }

    fn fail(&mut self, name: &str, why: String) {
        log::warn!("provider {name} is not usable: {why}");
        self.usable.remove(name);
        self.unusable.push((name.to_owned(), why));
    }

    pub fn forget(&mut self, pid: i32) {
        self.running.remove(&pid);
    }

    pub fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// Once, when all of them have ended.
    pub fn verdict(&mut self) -> Option<Verdict> {
        if self.phase != Progress::Probing || !self.running.is_empty() {
            return None;
        }
        self.phase = Progress::Told;
        Some(Verdict { usable: std::mem::take(&mut self.usable), unusable: std::mem::take(&mut self.unusable) })
    }
}
