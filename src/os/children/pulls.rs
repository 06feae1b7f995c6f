//! Pulls of images, as children: starts them, hears them, ends them. Decides nothing but how many run at once; whether an
//! image is here already is asked of the look-up thread. Invariant: a pull has one end, `Pulled` or `PullFailed`, or is abandoned.

use crate::core::Core;
use crate::core::contract::{Input, Now};
use crate::ids::PullId;
use crate::limits::{PULL_LINE_MAX, PULLS_AT_ONCE};
use crate::model::definition::PullPolicy;
use crate::model::instance::{ExitCause, LaunchFault, LaunchFaultKind, PullStep};
use crate::os::children::reap::{Children, Role};
use crate::os::children::spawn;
use crate::os::event_loop::lookups::{Lookups, Question};
use crate::os::event_loop::token::EventSource;
use crate::os::instances::pipes::carried::CarriedOutput;
use crate::os::instances::pipes::{OutputPipe, PipeRead};
use crate::os::upgrade::carrying::Carrying;
use crate::sandbox::container::plan::Layout;
use crate::sandbox::image::registry::{PullOrder, Registries, pull};
use crate::wire::lines::{Line, Lines};
use mio::Registry;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;

pub struct PullChildren {
    layout: Layout,
    registries: Registries,
    /// Images of which it is not known yet whether they are here.
    asked: HashMap<PullId, (String, PullPolicy)>,
    running: HashMap<PullId, Running>,
    waiting: VecDeque<(PullId, String)>,
    scratch: Vec<u8>,
}

/// Pulls on their way to the next program.
#[derive(Default, Serialize, Deserialize)]
pub struct CarriedPulls {
    running: BTreeMap<PullId, (i32, CarriedOutput, Lines, bool)>,
    waiting: VecDeque<(PullId, String)>,
}

struct Running {
    pid: i32,
    tap: OutputPipe,
    lines: Lines,
    /// Its last word has been heard.
    over: bool,
}

impl PullChildren {
    pub fn new(layout: Layout, registries: Registries) -> PullChildren {
        let (asked, running, waiting) = (HashMap::new(), HashMap::new(), VecDeque::new());
        PullChildren { layout, registries, asked, running, waiting, scratch: vec![0; 16 * 1024] }
    }

    pub fn is_at_rest(&self) -> bool {
        self.running.is_empty()
    }

    /// The look-up thread is asked of nothing.
    pub fn is_known(&self) -> bool {
        self.asked.is_empty()
    }

    pub fn carry(&self, carrying: &mut Carrying) -> CarriedPulls {
        let running = self.running.iter().map(|(pull, running)| {
            (*pull, (running.pid, running.tap.carry(carrying), running.lines.clone(), running.over))
        });
        CarriedPulls { running: running.collect(), waiting: self.waiting.clone() }
    }

    pub fn adopt(&mut self, carried: CarriedPulls, registry: &Registry) -> io::Result<()> {
        self.waiting = carried.waiting;
        for (pull, (pid, tap, lines, over)) in carried.running {
            let tap = OutputPipe::adopt(tap, EventSource::Pull(pull), registry)?;
            self.running.insert(pull, Running { pid, tap, lines, over });
        }
        Ok(())
    }

    // --- what the core wants ------------------------------------------------------------------------------------

    /// What is known of it at once, if anything: it is here, or it will be asked for.
    pub fn begin(
        &mut self,
        pull: PullId,
        image: String,
        policy: PullPolicy,
        lookups: &mut Lookups,
        (children, registry, now): (&mut Children, &Registry, Now),
    ) -> Option<Input<'static>> {
        match policy {
            PullPolicy::Always => Some(self.come(pull, image, children, registry)),
            PullPolicy::Missing | PullPolicy::Never if lookups.has_seen(&image, now.mono_ms) => {
                Some(Input::Pulled { pull })
            }
            PullPolicy::Missing | PullPolicy::Never => {
                lookups.ask(Question::Image { pull, image: image.clone() });
                self.asked.insert(pull, (image, policy));
                None
            }
        }
    }

    /// The thread has looked: it is here, it cannot come, or it will be asked for.
    pub fn looked(
        &mut self,
        pull: PullId,
        here: Result<bool, String>,
        children: &mut Children,
        registry: &Registry,
    ) -> Option<Input<'static>> {
        // None: it was abandoned meanwhile.
        let (image, policy) = self.asked.remove(&pull)?;
        Some(match (here, policy) {
            (Ok(true), _) => Input::Pulled { pull },
            (Ok(false), PullPolicy::Never) => {
                let why = format!("{image} is not here, and pull_policy is never; bring it with `stdiod image import`");
                failed(pull, LaunchFaultKind::ImageNotFound, why)
            }
            (Ok(false), PullPolicy::Missing | PullPolicy::Always) => self.come(pull, image, children, registry),
            (Err(why), _) => failed(pull, LaunchFaultKind::ImageNotFound, why),
        })
    }

    fn come(&mut self, pull: PullId, image: String, children: &mut Children, registry: &Registry) -> Input<'static> {
        if self.running.len() >= PULLS_AT_ONCE {
            self.waiting.push_back((pull, image));
            return due(pull);
        }
        self.start(pull, image, children, registry).unwrap_or(due(pull))
    }

    /// An input if it cannot be started.
    fn start(
        &mut self,
        pull: PullId,
        image: String,
        children: &mut Children,
        registry: &Registry,
    ) -> Option<Input<'static>> {
        let parent_pid = std::process::id() as i32;
        let order = PullOrder { image, layout: self.layout.clone(), registries: self.registries.clone(), parent_pid };
        let started = spawn::own_child_heard(&pull::args(&order)).and_then(|(pid, pipe)| {
            children.add(pid, Role::Pull(pull));
            let tap = OutputPipe::register(pipe, EventSource::Pull(pull), registry)?;
            Ok(Running { pid, tap, lines: Lines::with_max(PULL_LINE_MAX), over: false })
        });
        match started {
            Ok(running) => {
                self.running.insert(pull, running);
                None
            }
            Err(e) => Some(failed(pull, LaunchFaultKind::Internal, format!("the pull could not be started: {e}"))),
        }
    }

    /// What has come so far is kept by the puller itself, however it ends.
    pub fn abandon(&mut self, pull: PullId) {
        self.asked.remove(&pull);
        self.waiting.retain(|(other, _)| *other != pull);
        if let Some(running) = self.running.get(&pull) {
            // ESRCH: it has just ended, and the reaper will say so.
            _ = kill(Pid::from_raw(running.pid), Signal::SIGKILL);
        }
    }

    // --- what the kernel says -----------------------------------------------------------------------------------

    /// All that is there: a puller says little, and has nobody to say more through.
    pub fn readable(&mut self, pull: PullId, core: &mut Core, now: Now) {
        let Some(running) = self.running.get_mut(&pull) else { return };
        while let PipeRead::Bytes(n) = running.tap.read(&mut self.scratch) {
            running.lines.feed(&self.scratch[..n]);
            while let Some(line) = running.lines.next_line() {
                let Line::Whole(line) = line else { continue };
                let Ok(step) = serde_json::from_slice(line) else { continue };
                running.over |= matches!(step, PullStep::Done { .. } | PullStep::Failed(_));
                core.handle(input(pull, step), now);
            }
        }
    }

    pub fn child_ended(
        &mut self,
        pull: PullId,
        cause: ExitCause,
        children: &mut Children,
        registry: &Registry,
        core: &mut Core,
        now: Now,
    ) {
        self.readable(pull, core, now);
        if self.running.remove(&pull).is_some_and(|running| !running.over) {
            let why = format!("the pull ended without a word ({cause:?}); the next one goes on from there");
            core.handle(failed(pull, LaunchFaultKind::Internal, why), now);
        }
        while self.running.len() < PULLS_AT_ONCE {
            let Some((next, image)) = self.waiting.pop_front() else { return };
            if let Some(input) = self.start(next, image, children, registry) {
                core.handle(input, now);
            }
        }
    }
}

fn input(pull: PullId, step: PullStep) -> Input<'static> {
    match step {
        PullStep::Done { .. } => Input::Pulled { pull },
        PullStep::Failed(why) => Input::PullFailed { pull, why },
        PullStep::Due | PullStep::Resolved { .. } | PullStep::Layer { .. } => Input::PullProgressed { pull, step },
    }
}

fn due(pull: PullId) -> Input<'static> {
    Input::PullProgressed { pull, step: PullStep::Due }
}

fn failed(pull: PullId, kind: LaunchFaultKind, message: String) -> Input<'static> {
    Input::PullFailed { pull, why: LaunchFault { kind, message } }
}
