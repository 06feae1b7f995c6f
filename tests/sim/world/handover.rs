//! A daemon that hands itself over at any moment: the core becomes bytes and is made of them again, and nobody may notice.

use super::super::kernel::Rng;
use super::World;
use stdiod::core::Core;

/// Chance of its own, so that the world goes the same way with it and without.
pub(super) struct Handovers {
    rng: Rng,
    one_in: usize,
}

impl World {
    /// In which the core is frozen and thawed after one of so many things that happen.
    pub fn handing_over(self, one_in: usize) -> World {
        let rng = Rng(!self.trace);
        World { handovers: Some(Handovers { rng, one_in }), ..self }
    }

    pub(super) fn may_hand_over(&mut self) {
        if !self.handovers.as_mut().is_some_and(|often| often.rng.one_in(often.one_in)) {
            return;
        }
        let frozen = self.core.freeze().expect("it is small");
        self.core = Core::thaw(&frozen).unwrap_or_else(|why| panic!("{why}"));
        assert!(self.core.freeze().is_ok_and(|again| again == frozen), "it is not the same any more");
    }
}
