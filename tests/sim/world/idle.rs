//! Servers that nobody uses go to rest, at the worst moment if there is one: nothing of a client's may be under way then, what
//! comes meanwhile is served, and no sign of life is asked of one that is frozen.

use super::World;
use stdiod::core::contract::{Input, Output};
use stdiod::ids::InstanceId;
use stdiod::model::definition::{Idle, IdleMode, IdleStart};
use stdiod::model::news::News;
use stdiod::model::status::Status;

impl World {
    pub(super) fn some_idle(&mut self) -> Idle {
        Idle {
            after_ms: [None, Some(100), Some(500), Some(5_000)][self.rng.below(4)],
            mode: [None, Some(IdleMode::Off), Some(IdleMode::Doze), Some(IdleMode::Stop), Some(IdleMode::Stop)]
                [self.rng.below(5)],
            start: [None, Some(IdleStart::Boot), Some(IdleStart::OnDemand)][self.rng.below(3)],
        }
    }

    /// As the shell does: whatever is done with an instance, it runs.
    pub(super) fn thaw(&mut self, output: &Output) {
        let (instance, is_ping) = match output {
            Output::Write { instance, bytes, .. } | Output::Reply { instance, bytes } => {
                (*instance, bytes.windows(6).any(|window| window == br#""ping""#))
            }
            Output::CloseStdin { instance } | Output::Signal { instance, .. } => (*instance, false),
            _ => return,
        };
        let Some(process) = self.processes.get_mut(&instance).filter(|process| process.frozen) else { return };
        assert!(!is_ping, "a heartbeat wakes nobody");
        process.frozen = false;
        self.core.handle(Input::Woken { instance, took_ms: Some(0) }, self.now);
    }

    pub(super) fn dozes(&mut self, instance: InstanceId) {
        let Some(process) = self.processes.get_mut(&instance) else { return };
        assert_eq!(process.calls(), 0, "{} is frozen with a call in hand", process.server);
        // Now and then it cannot be done.
        match self.rng.one_in(8) {
            true => self.core.handle(Input::Woken { instance, took_ms: None }, self.now),
            false => process.frozen = true,
        }
    }

    /// It was ended because nobody used it: that is no crash, and nothing of a client's is lost with it.
    pub(super) fn check_rest_of(&mut self, news: &News) {
        if news.why != "idle" || news.to != Status::Stopping {
            return;
        }
        if let Some(shadow) = self.shadows.get_mut(&news.name) {
            shadow.ready_since = None;
        }
        for process in self.processes.values_mut().filter(|process| process.server == news.name) {
            assert_eq!(process.calls(), 0, "{} is ended with a call in hand", news.name);
            process.touched = true;
        }
    }
}
