//! What can run here, and what of it is at rest: the outcome of the probes, and instances that do not doze any more.

use crate::core::contract::{Input, Now, Output};
use crate::os::children::probes::Verdict;
use crate::os::event_loop::lookups::Question;
use crate::os::event_loop::reactor::Reactor;

impl Reactor {
    /// Nothing of an earlier life is left, and it is known what can run here: servers may start.
    pub(super) fn follow_probes(&mut self, now: Now) {
        if let Some(Verdict { usable, unusable }) = self.probes.verdict() {
            let providers = usable.keys().cloned().collect();
            let polling = usable.values().filter(|runtime| runtime.polls);
            let polling = polling.map(|runtime| runtime.provider.clone()).collect();
            self.lookups.ask(Question::Remember { runtimes: usable.values().cloned().collect() });
            self.instances.provide(usable);
            self.core.handle(Input::Swept { providers, unusable, polling }, now);
        }
    }

    /// What the core wants next. First it hears of those that the last of it has woken.
    pub(super) fn next_output(&mut self, now: Now) -> Option<Output> {
        if self.instances.has_woken() {
            for (instance, took_ms) in self.instances.take_woken() {
                self.core.handle(Input::Woken { instance, took_ms }, now);
            }
        }
        self.core.poll_output()
    }
}
