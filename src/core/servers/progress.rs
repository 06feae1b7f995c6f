//! What is shown of what a server is made of while it comes: its image, its packages; and what is said of it when that has failed.
//! When there is a pull or an install is decided in `hosting/lifecycle.rs`, and whether packages are needed by the launcher, which
//! sees the disk. Invariant: an attempt that fails changes no count of crashes or restarts.

use crate::core::effects::Effects;
use crate::core::hosting::lifecycle::InstallFault;
use crate::core::peers::peer::{Peer, Role};
use crate::core::servers::Servers;
use crate::ids::InstanceId;
use crate::limits::{INSTALL_ERROR_LINES, INSTALL_ERROR_MAX};
use crate::model::instance::{ExitCause, LaunchFault, LayerState, PullStep};
use crate::model::status::{ImagePull, Install, InstallPhase, PullState, Usage};

impl Servers {
    // --- its image --------------------------------------------------------------------------------------------------

    /// Of the pull that a peer waits for. Its server's: all of them start from the same image.
    fn image_pull_of(&mut self, peer: &Peer) -> Option<&mut Option<ImagePull>> {
        self.known.get_mut(&peer.server).map(|server| &mut server.image_pull)
    }

    /// Nothing of it waits for its image any more.
    pub fn pull_left(&mut self, peer: &Peer) {
        if let Some(pull) = self.image_pull_of(peer) {
            *pull = None;
        }
    }

    pub fn pulled(&mut self, peer: &Peer, image: &str, effects: &mut Effects) {
        if let Some(Some(pull)) = self.image_pull_of(peer) {
            *pull = ImagePull { state: PullState::Done, bytes: pull.total, total: pull.total, ..NO_PULL };
            self.note(peer, format!("image {image} is here"), effects);
        }
    }

    pub fn pull_failed(&mut self, peer: &Peer, why: &LaunchFault) {
        if let Some(pull) = self.image_pull_of(peer) {
            let pull = pull.get_or_insert(NO_PULL);
            (pull.state, pull.error) = (PullState::Failed, Some(why.message.clone()));
        }
    }

    pub fn pull_progressed(&mut self, peer: &Peer, image: &str, step: &PullStep, effects: &mut Effects) {
        let Some(pull) = self.image_pull_of(peer) else { return };
        if let Some(event) = follow(pull.get_or_insert(NO_PULL), step) {
            self.note(peer, format!("image {image}: {event}"), effects);
        }
    }

    // --- its packages -----------------------------------------------------------------------------------------------

    /// Of the main peer's install, which is the first that its server has.
    fn install_of(&mut self, peer: &Peer) -> Option<&mut Option<Install>> {
        let server = self.known.get_mut(&peer.server).filter(|_| peer.role == Role::Main);
        server.map(|server| &mut server.install)
    }

    pub fn install_begun(&mut self, peer: &Peer, effects: &mut Effects) {
        let mut attempt = 1;
        if let Some(shown) = self.install_of(peer) {
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
        self.note(peer, format!("its packages are being fetched, attempt {attempt}"), effects);
    }

    pub fn installed(&mut self, peer: &Peer, effects: &mut Effects) {
        if let Some(Some(shown)) = self.install_of(peer) {
            (shown.phase, shown.total) = (InstallPhase::Done, Some(shown.bytes));
        }
        self.note(peer, "its packages are here".to_string(), effects);
    }

    /// Why, in words.
    pub fn install_failed(
        &mut self,
        peer: &Peer,
        instance: InstanceId,
        cause: InstallFault,
        effects: &mut Effects,
    ) -> String {
        self.end_stderr(peer.server, instance, effects);
        let log = self.known.get(&peer.server).map(|server| &server.log);
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
        self.put_install_by(peer);
        self.note(peer, message.clone(), effects);
        message
    }

    pub fn install_given_up(&mut self, peer: &Peer) {
        if let Some(Some(shown)) = self.install_of(peer) {
            shown.phase = InstallPhase::Failed;
        }
    }

    /// The instance that fetches is on its way out, whatever the reason.
    pub fn put_install_by(&mut self, peer: &Peer) {
        if let Some(Some(shown)) = self.install_of(peer)
            && shown.phase == InstallPhase::Fetching
        {
            shown.phase = InstallPhase::Waiting;
        }
    }

    pub fn install_measured(&mut self, peer: &Peer, instance: InstanceId, usage: &Usage) {
        if peer.is_installing(instance)
            && let Some(Some(shown)) = self.install_of(peer)
        {
            shown.bytes = usage.disk_bytes;
        }
    }
}

const NO_PULL: ImagePull = ImagePull { state: PullState::Waiting, layer: None, bytes: 0, total: 0, error: None };

/// Takes a step into the picture; if it is an event, the words for the log.
fn follow(pull: &mut ImagePull, step: &PullStep) -> Option<String> {
    match step {
        PullStep::Due => {
            *pull = NO_PULL;
            Some("to be pulled from its registry".to_string())
        }
        PullStep::Resolved { digest, layers, bytes } => {
            *pull = ImagePull { state: PullState::Downloading, total: *bytes, ..NO_PULL };
            Some(format!("{digest}, {layers} layers, {bytes} bytes to come"))
        }
        PullStep::Layer { index, of, layer, state, layer_total, bytes, total, .. } => {
            (pull.bytes, pull.total, pull.layer) = (*bytes, *total, Some(layer.clone()));
            let (picture, word) = match state {
                LayerState::Downloading => (PullState::Downloading, None),
                LayerState::Downloaded => (PullState::Downloading, Some("downloaded")),
                LayerState::Present => (PullState::Unpacking, Some("is here already")),
                LayerState::Unpacking => (PullState::Unpacking, Some("unpacking")),
            };
            pull.state = picture;
            word.map(|word| format!("layer {index}/{of} {layer} {word}, {layer_total} bytes"))
        }
        // Told by `Pulled` and `PullFailed`.
        PullStep::Done { .. } | PullStep::Failed(_) => None,
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
