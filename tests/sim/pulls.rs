//! Registries and the disk, as far as images go: pulls that go on, end and fail whenever they like.

use super::world::World;
use stdiod::core::contract::Input;
use stdiod::ids::PullId;
use stdiod::model::definition::Source;
use stdiod::model::instance::{LaunchFault, LaunchFaultKind, LayerState, PullStep};

impl World {
    pub(super) fn pull_step(&mut self) {
        let all: Vec<PullId> = self.pulls.keys().copied().collect();
        let Some(pull) = self.rng.pick(&all) else { return };
        match self.rng.below(6) {
            0 => self.pull_fails(pull),
            1..=2 => self.pull_ends(pull),
            _ => self.pull_goes_on(pull),
        }
    }

    fn pull_goes_on(&mut self, pull: PullId) {
        let states = [LayerState::Downloading, LayerState::Downloaded, LayerState::Present, LayerState::Unpacking];
        let step = match self.rng.below(5) {
            0 if self.rng.one_in(2) => PullStep::Due,
            0 => PullStep::Resolved { digest: "sha256:d".to_string(), layers: 2, bytes: 10 },
            n => PullStep::Layer {
                index: 1,
                of: 2,
                layer: "sha256:l".to_string(),
                state: states[n - 1],
                layer_bytes: 1,
                layer_total: 5,
                bytes: 1,
                total: 10,
            },
        };
        self.input(Input::PullProgressed { pull, step });
    }

    pub(super) fn pull_ends(&mut self, pull: PullId) {
        self.pulls.remove(&pull);
        self.input(Input::Pulled { pull });
    }

    /// Every server that waits for it has failed to launch.
    fn pull_fails(&mut self, pull: PullId) {
        let image = self.pulls.remove(&pull).expect("picked");
        for (name, shadow) in &mut self.shadows {
            // Which of them wait is the core's own business: the shadow expects nothing of those that might.
            if self.definitions.get(name).is_none_or(|d| d.source == Source::Image(image.clone())) {
                shadow.expect_nothing();
            }
        }
        let why = LaunchFault { kind: LaunchFaultKind::ImageNotFound, message: "no such image".to_string() };
        self.input(Input::PullFailed { pull, why });
    }
}
