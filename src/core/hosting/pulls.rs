//! Images that servers wait for. One pull per image and policy, however many wait for it; each of them hears of every
//! step, and its end is theirs. Invariant: a pull is known exactly while somebody waits for it, so that the late words
//! of one that was abandoned find nobody.

use crate::core::Core;
use crate::core::clients::parked::WaitOn;
use crate::core::contract::Output;
use crate::core::hosting::lifecycle::{Event, State};
use crate::core::peers::peer::Role;
use crate::ids::{PeerId, PullId, ServerId};
use crate::limits::{PULL_WAIT, STOP_GRACE};
use crate::model::definition::{PullPolicy, Source};
use crate::model::instance::{LaunchFault, LayerState, PullStep};
use crate::model::status::{ImagePull, PullState};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub(in crate::core) struct Pulls {
    minted: u64,
    map: BTreeMap<PullId, Pull>,
}

struct Pull {
    image: String,
    policy: PullPolicy,
    waiting: BTreeSet<PeerId>,
}

impl Core {
    /// The server's image is wanted: by itself alone, or as one of several.
    pub(in crate::core) fn pull(&mut self, id: PeerId, policy: PullPolicy) {
        let Some(image) = self.image_of(id) else { return };
        let known = self.hosting.pulls.map.values_mut().find(|pull| pull.image == image && pull.policy == policy);
        match known {
            Some(pull) => _ = pull.waiting.insert(id),
            None => {
                self.hosting.pulls.minted += 1;
                let pull = PullId(self.hosting.pulls.minted);
                self.hosting
                    .pulls
                    .map
                    .insert(pull, Pull { image: image.clone(), policy, waiting: BTreeSet::from([id]) });
                self.effects.outputs.push_back(Output::Pull { pull, image, policy });
            }
        }
        self.extend_ready_waits(id);
    }

    pub(in crate::core) fn leave_pull(&mut self, id: PeerId) {
        for pull in self.hosting.pulls.map.values_mut() {
            pull.waiting.remove(&id);
        }
        let pulls = &mut self.hosting.pulls.map;
        let left: Vec<PullId> = pulls.iter().filter(|(_, p)| p.waiting.is_empty()).map(|(pull, _)| *pull).collect();
        for pull in left {
            self.hosting.pulls.map.remove(&pull);
            self.effects.outputs.push_back(Output::AbandonPull { pull });
        }
        if let Some(pull) = self.image_pull_of(id) {
            *pull = None;
        }
    }

    pub(in crate::core) fn pulled(&mut self, pull: PullId) {
        let Some(Pull { image, waiting, .. }) = self.hosting.pulls.map.remove(&pull) else { return };
        for id in waiting {
            if let Some(Some(pull)) = self.image_pull_of(id) {
                *pull = ImagePull { state: PullState::Done, bytes: pull.total, total: pull.total, ..NO_PULL };
                self.note(id, format!("image {image} is here"));
            }
            self.advance(id, Event::Pulled);
            self.extend_ready_waits(id);
        }
    }

    pub(in crate::core) fn pull_failed(&mut self, pull: PullId, why: &LaunchFault) {
        let Some(Pull { waiting, .. }) = self.hosting.pulls.map.remove(&pull) else { return };
        for id in waiting {
            if let Some(pull) = self.image_pull_of(id) {
                let pull = pull.get_or_insert(NO_PULL);
                (pull.state, pull.error) = (PullState::Failed, Some(why.message.clone()));
            }
            self.advance(id, Event::PullFailed(why.clone()));
        }
    }

    pub(in crate::core) fn pull_progressed(&mut self, pull: PullId, step: &PullStep) {
        let Some(Pull { image, waiting, .. }) = self.hosting.pulls.map.get(&pull) else { return };
        let (image, waiting) = (image.clone(), waiting.clone());
        for id in waiting {
            let Some(pull) = self.image_pull_of(id) else { continue };
            if let Some(event) = follow(pull.get_or_insert(NO_PULL), step) {
                self.note(id, format!("image {image}: {event}"));
            }
        }
    }

    /// What is shown of the pull that a peer waits for. Its server's: all of them start from the same image.
    fn image_pull_of(&mut self, id: PeerId) -> Option<&mut Option<ImagePull>> {
        let server = self.peers.known.get(&id)?.server;
        self.servers.known.get_mut(&server).map(|server| &mut server.image_pull)
    }

    /// How long a client may wait for this server from now on: a start, and before it the image or the packages. A little longer than the
    /// start itself may take: its own deadline comes first, and says more than that this one has passed.
    pub(in crate::core) fn start_wait_ms(&self, id: ServerId) -> u64 {
        let main = self.main_of(id);
        let before_ms = match main.life.state() {
            State::Pulling => PULL_WAIT.as_millis() as u64,
            State::Installing { .. } => main.definition.install_timeout_ms,
            State::Down
            | State::InstallDue { .. }
            | State::Due
            | State::Launching { .. }
            | State::Greeting { .. }
            | State::Ready { .. }
            | State::Unresponsive { .. }
            | State::Mute { .. }
            | State::Stopping { .. }
            | State::Waiting { .. }
            | State::Failed => 0,
        };
        main.definition.startup_timeout_ms + before_ms + STOP_GRACE.as_millis() as u64
    }

    /// The time to start counts from the end of the pull, or of the install.
    pub(in crate::core) fn extend_ready_waits(&mut self, id: PeerId) {
        let Some(main) = self.peers.known.get(&id).filter(|peer| peer.role == Role::Main) else { return };
        let server = main.server;
        let until_ms = self.effects.now.mono_ms + self.start_wait_ms(server);
        for (conn, on) in self.clients.parked.on_server(server) {
            if let WaitOn::Ready { .. } = on {
                self.effects.deadlines.set(crate::core::effects::Timer::Client(conn), until_ms);
            }
        }
    }

    fn image_of(&self, id: PeerId) -> Option<String> {
        match &self.peers.known.get(&id)?.definition.source {
            Source::Image(image) => Some(image.clone()),
            Source::HostRootfs => None,
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
