//! Images that servers wait for. One pull per image and policy, however many wait for it; each of them hears of every
//! step, and its end is theirs. Invariant: a pull is known exactly while somebody waits for it, so that the late words
//! of one that was abandoned find nobody.

use crate::core::contract::Output;
use crate::core::effects::Effects;
use crate::core::hosting::Hosting;
use crate::ids::{PeerId, PullId};
use crate::model::definition::PullPolicy;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default, Serialize, Deserialize)]
pub(in crate::core) struct Pulls {
    minted: u64,
    map: BTreeMap<PullId, Pull>,
}

#[derive(Clone, Serialize, Deserialize)]
pub(in crate::core) struct Pull {
    pub image: String,
    policy: PullPolicy,
    pub waiting: BTreeSet<PeerId>,
}

impl Hosting {
    /// The image is wanted: by this peer alone, or as one of several.
    pub fn pull(&mut self, id: PeerId, image: &str, policy: PullPolicy, effects: &mut Effects) {
        let known = self.pulls.map.values_mut().find(|pull| pull.image == image && pull.policy == policy);
        if let Some(pull) = known {
            pull.waiting.insert(id);
            return;
        }
        self.pulls.minted += 1;
        let pull = PullId(self.pulls.minted);
        let image = image.to_string();
        self.pulls.map.insert(pull, Pull { image: image.clone(), policy, waiting: BTreeSet::from([id]) });
        effects.outputs.push_back(Output::Pull { pull, image, policy });
    }

    pub fn leave_pull(&mut self, id: PeerId, effects: &mut Effects) {
        for pull in self.pulls.map.values_mut() {
            pull.waiting.remove(&id);
        }
        let waits_nobody = |(_, pull): &(&PullId, &Pull)| pull.waiting.is_empty();
        let left: Vec<PullId> = self.pulls.map.iter().filter(waits_nobody).map(|(id, _)| *id).collect();
        for pull in left {
            self.pulls.map.remove(&pull);
            effects.outputs.push_back(Output::AbandonPull { pull });
        }
    }

    /// It has come to its end.
    pub fn end_pull(&mut self, pull: PullId) -> Option<Pull> {
        self.pulls.map.remove(&pull)
    }

    pub fn pull_of(&self, pull: PullId) -> Option<Pull> {
        self.pulls.map.get(&pull).cloned()
    }
}
