//! Which providers work here? Found out at boot by a trivial container of each, in children side by side, while the
//! database starts; what worked is remembered for as long as the runtime and the kernel stay the same. Never asks
//! twice in one life of the daemon. What does not work is tried again at the next start.

use crate::os::spawn;
use crate::sandbox::plan::{Layout, Runtime, RuntimeKind, Users};
use crate::sandbox::probe;
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// What is kept of a child's reason.
const REASON_MAX: u64 = 2048;

#[derive(Default)]
pub struct Probes {
    /// By pid: the provider, and the pipe with its reason.
    running: HashMap<i32, (String, OwnedFd)>,
    usable: BTreeMap<String, Runtime>,
    unusable: Vec<(String, String)>,
    /// Fingerprints of runtimes that are known to work.
    known: Vec<String>,
    file: PathBuf,
}

/// The outcome of them all.
pub struct Verdict {
    pub usable: BTreeMap<String, Runtime>,
    pub unusable: Vec<(String, String)>,
}

impl Probes {
    /// `unusable`: what is known not to be installed.
    pub fn new(layout: &Layout, found: BTreeMap<String, Runtime>, unusable: Vec<(String, String)>) -> Probes {
        let file = probe::memory(layout);
        let known = probe::read_memory(&file);
        Probes { usable: found, unusable, known, file, ..Probes::default() }
    }

    /// Starts a child for each provider that is not known to work; their pids.
    pub fn start(&mut self, layout: &Layout) -> Vec<i32> {
        let unknown: Vec<String> = self.usable.keys().cloned().collect();
        let mut pids = Vec::new();
        for name in unknown {
            let runtime = &self.usable[&name];
            // A plain child needs no proof.
            if runtime.kind == RuntimeKind::Plain {
                continue;
            }
            if let Some(known) = probe::among(&self.known, runtime) {
                self.usable.insert(name, known);
                continue;
            }
            match spawn::own_child_heard(&probe::args(runtime, layout)) {
                Ok((pid, said)) => {
                    self.running.insert(pid, (name, said));
                    pids.push(pid);
                }
                Err(e) => self.fail(&name, format!("it could not be tried: {e}")),
            }
        }
        pids
    }

    pub fn ended(&mut self, pid: i32, worked: bool) {
        let Some((name, said)) = self.running.remove(&pid) else { return };
        let mut reason = String::new();
        _ = File::from(said).take(REASON_MAX).read_to_string(&mut reason);
        if worked {
            if let (false, Some(runtime)) = (reason.trim().is_empty(), self.usable.get_mut(&name)) {
                log::warn!("provider {name} works without user namespaces only: {}", reason.trim());
                runtime.users = Users::Same;
            }
            return;
        }
        let reason = if reason.trim().is_empty() { "it died without a word" } else { reason.trim() };
        self.fail(&name, reason.to_owned());
    }

    fn fail(&mut self, name: &str, why: String) {
        log::warn!("provider {name} is not usable: {why}");
        self.usable.remove(name);
        self.unusable.push((name.to_owned(), why));
    }

    pub fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// Once all of them have ended.
    pub fn verdict(&mut self) -> Option<Verdict> {
        if !self.running.is_empty() {
            return None;
        }
        let known: Vec<String> = self.usable.values().map(probe::fingerprint).collect();
        // To forget is no harm: it costs the next start a container.
        _ = fs::write(&self.file, known.join("\n"));
        Some(Verdict { usable: std::mem::take(&mut self.usable), unusable: std::mem::take(&mut self.unusable) })
    }
}
