//! Packages that servers are made of, on their way: what is shown of an install and said of one that has failed. When there is
//! one is decided in `lifecycle.rs`, and whether one is needed by the launcher, which sees the disk. Invariant: an attempt that
//! fails changes no count of crashes or restarts.

use crate::core::Core;
use crate::core::hosting::lifecycle::InstallFault;
use crate::core::peers::peer::Role;
use crate::ids::{InstanceId, PeerId};
use crate::limits::{INSTALL_ERROR_LINES, INSTALL_ERROR_MAX};
use crate::model::instance::ExitCause;
use crate::model::status::{Install, InstallPhase, Usage};

impl Core {
    /// From here on, whatever its server's state: one that is being stopped already must not be spoken to either.
    pub(in crate::core) fn know_install(&mut self, instance: InstanceId) {
        let id = self.hosting.instances.get(&instance);
        if let Some(peer) = id.and_then(|id| self.peers.known.get_mut(id)) {
            peer.installing = Some(instance);
        }
    }

    pub(in crate::core) fn install_begun(&mut self, id: PeerId) {
        let mut attempt = 1;
        if let Some(shown) = self.install_of(id) {
            let (before, bytes) = match shown {
                // What it fetches goes on from there.
                Some(Install { phase: InstallPhase::Waiting | InstallPhase::Fetching, attempt, bytes, .. }) => {
                    (*attempt, *bytes)
                }
                Some(Install { phase: InstallPhase::Done | InstallPhase::Failed, bytes, .. }) => (0, *bytes),
                None => (0, 0),
            };
            attempt = before.saturating_add(1);
            *shown = Some(Install { phase: InstallPhase::Fetching, bytes, total: None, attempt });
        }
        self.note(id, format!("its packages are being fetched, attempt {attempt}"));
        self.extend_ready_waits(id);
    }

    pub(in crate::core) fn installed(&mut self, id: PeerId) {
        if let Some(Some(shown)) = self.install_of(id) {
            (shown.phase, shown.total) = (InstallPhase::Done, Some(shown.bytes));
        }
        self.peers.known.get_mut(&id).expect("advance holds it").start_failed = false;
        self.note(id, "its packages are here".to_string());
        self.extend_ready_waits(id);
    }

    pub(in crate::core) fn install_failed(&mut self, id: PeerId, instance: InstanceId, cause: InstallFault) {
        self.end_stderr(id, instance);
        let peer = self.peers.known.get_mut(&id).expect("advance holds it");
        let log = self.servers.known.get(&peer.server).map(|server| &server.log);
        let said = told_of_it(&log.map(|log| log.crash_tail(instance)).unwrap_or_default());
        let why = match cause {
            InstallFault::Exited(exit) => {
                let oom = if exit.oom { ", out of memory" } else { "" };
                match exit.cause {
                    ExitCause::Code(code) => format!("{} exited with code {code}{oom}", program(&peer.definition.cmd)),
                    ExitCause::Signal(signal) => {
                        format!("{} was killed by signal {signal}{oom}", program(&peer.definition.cmd))
                    }
                }
            }
            InstallFault::TooSlow { after_ms } => format!("not all of them came within {after_ms} ms"),
        };
        let message = format!("its packages could not be fetched: {why}{said}");
        log::warn!("server={} instance={instance} {message}", peer.definition.name);
        peer.last_error = Some(message.clone());
        peer.put_down_for = Some(message.clone());
        peer.start_failed = true;
        self.put_install_by(id);
        self.note(id, message);
        self.answer_ready_waits(id);
    }

    pub(in crate::core) fn install_given_up(&mut self, id: PeerId) {
        if let Some(Some(shown)) = self.install_of(id) {
            shown.phase = InstallPhase::Failed;
        }
    }

    /// The instance that fetches is on its way out, whatever the reason.
    pub(in crate::core) fn put_install_by(&mut self, id: PeerId) {
        if let Some(Some(shown)) = self.install_of(id)
            && shown.phase == InstallPhase::Fetching
        {
            shown.phase = InstallPhase::Waiting;
        }
    }

    pub(in crate::core) fn install_measured(&mut self, instance: InstanceId, usage: &Usage) {
        let Some(&id) = self.hosting.instances.get(&instance) else { return };
        if self.is_installing(id, instance)
            && let Some(Some(shown)) = self.install_of(id)
        {
            shown.bytes = usage.disk_bytes;
        }
    }

    /// Is this the instance that fetches? It is no server yet, and what it says is for the log alone.
    pub(in crate::core) fn is_installing(&self, id: PeerId, instance: InstanceId) -> bool {
        self.peers.known.get(&id).is_some_and(|peer| peer.installing == Some(instance))
    }

    /// What is shown of it: of the main peer's install, which is the first that its server has.
    fn install_of(&mut self, id: PeerId) -> Option<&mut Option<Install>> {
        let main = self.peers.known.get(&id).filter(|peer| peer.role == Role::Main)?;
        self.servers.known.get_mut(&main.server).map(|server| &mut server.install)
    }
}

fn program(cmd: &[String]) -> &str {
    cmd.first().map_or("the program", |path| path.rsplit('/').next().unwrap_or(path))
}

/// The lines that name an error, as far as they fit; the last ones if none does.
fn told_of_it(tail: &[String]) -> String {
    let names_one = |line: &&String| line.to_ascii_lowercase().contains("error");
    let mut lines: Vec<&str> = tail.iter().filter(names_one).take(INSTALL_ERROR_LINES).map(String::as_str).collect();
    if lines.is_empty() {
        lines = tail[tail.len().saturating_sub(INSTALL_ERROR_LINES)..].iter().map(String::as_str).collect();
    }
    if lines.is_empty() {
        return String::new();
    }
    format!("; {}", lines.join(" | ")).chars().take(INSTALL_ERROR_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_in_the_lines_that_name_an_error() {
        let tail = |lines: &[&str]| lines.iter().map(ToString::to_string).collect::<Vec<_>>();
        let npm = ["npm warn old", "npm error code E404", "npm error 404 Not Found", "see the log"];
        assert_eq!(told_of_it(&tail(&npm)), "; npm error code E404 | npm error 404 Not Found");
        assert_eq!(told_of_it(&tail(&["a", "b", "c", "d"])), "; b | c | d");
        assert_eq!(told_of_it(&[]), "");
        assert!(told_of_it(&[format!("error {}", "x".repeat(1 << 16))]).len() <= INSTALL_ERROR_MAX);
    }
}
