//! What is dead and must go: what is left of a container, the volumes of a server that was deleted with them, and what
//! was in those. Children do it, a few at a time. Whatever they leave, because they were killed too often or the daemon
//! was, is found by the sweep of the next boot.

use crate::core::contract::{ExitCause, Input, Now};
use crate::ids::ServerId;
use crate::limits::{CHORE_PAUSE, CHORE_TRIES, CHORES_AT_ONCE, CHORES_DURING_LAUNCHES};
use crate::os::reap::{Children, Role};
use crate::os::spawn;
use crate::sandbox::discard;
use crate::sandbox::plan::Layout;
use std::collections::VecDeque;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chore {
    /// By its id, and how many children have failed at it.
    Container(String, u32),
    /// Somebody waits to hear of it.
    Volumes(ServerId, String),
}

pub struct Chores {
    layout: Layout,
    waiting: VecDeque<Chore>,
    /// Children that are at it.
    at_work: usize,
    /// No child could be started: not before then.
    again_ms: Option<u64>,
    /// Volumes were taken away, and what was in them is still there. One child at a time sees to that, however long it
    /// takes, and nobody waits for it.
    to_empty: bool,
    emptying: bool,
}

impl Chores {
    pub fn new(layout: Layout) -> Chores {
        Chores { layout, waiting: VecDeque::new(), at_work: 0, again_ms: None, to_empty: false, emptying: false }
    }

    pub fn add(&mut self, chore: Chore) {
        self.waiting.push_back(chore);
    }

    /// Nothing is being done, and nothing is to be done that can be.
    pub fn are_at_rest(&self) -> bool {
        self.at_work == 0 && (self.waiting.is_empty() || self.again_ms.is_some())
    }

    pub fn next_deadline(&self) -> Option<u64> {
        self.again_ms
    }

    /// Some answer may be known at once: that nothing came of it.
    pub fn start(&mut self, launching: bool, children: &mut Children, now: Now) -> Option<Input<'static>> {
        if self.again_ms.is_some_and(|at| now.mono_ms < at) {
            return None;
        }
        self.again_ms = None;
        // What is dead can wait for what is to live.
        let most = if launching { CHORES_DURING_LAUNCHES } else { CHORES_AT_ONCE };
        while self.at_work < most
            && let Some(chore) = self.waiting.pop_front()
        {
            let args = match &chore {
                Chore::Container(id, _) => discard::args(&self.layout, id),
                Chore::Volumes(_, name) => discard::volumes_args(&self.layout, name),
            };
            match spawn::own_child(&args) {
                Ok(pid) => {
                    children.add(pid, Role::Chore(chore));
                    self.at_work += 1;
                }
                Err(e) => {
                    log::error!("nothing can be cleaned up now: {e}");
                    self.again_ms = Some(now.mono_ms + CHORE_PAUSE.as_millis() as u64);
                    match chore {
                        Chore::Container(..) => self.waiting.push_front(chore),
                        Chore::Volumes(server, _) => {
                            return Some(Input::VolumesRemoved { server, outcome: Err(e.to_string()) });
                        }
                    }
                    return None;
                }
            }
        }
        if self.to_empty
            && !self.emptying
            && let Ok(pid) = spawn::own_child(&discard::removed_args(&self.layout))
        {
            children.add(pid, Role::Emptying);
            (self.to_empty, self.emptying) = (false, true);
        }
        None
    }

    pub fn ended(&mut self, chore: &Chore, cause: ExitCause) -> Option<Input<'static>> {
        self.at_work -= 1;
        let done = cause == ExitCause::Code(0);
        match chore {
            Chore::Container(_, _) if done => None,
            Chore::Container(id, tries) if tries + 1 < CHORE_TRIES => {
                log::warn!("the clean-up of {id} was not finished ({cause:?}): again");
                self.waiting.push_back(Chore::Container(id.clone(), tries + 1));
                None
            }
            Chore::Container(id, _) => {
                log::error!("the clean-up of {id} was not finished ({cause:?}): it is left to the next start");
                None
            }
            Chore::Volumes(server, _) => {
                self.to_empty = true;
                let outcome = if done { Ok(()) } else { Err("the daemon's log says why".to_owned()) };
                Some(Input::VolumesRemoved { server: *server, outcome })
            }
        }
    }

    pub fn emptied(&mut self) {
        self.emptying = false;
    }
}
