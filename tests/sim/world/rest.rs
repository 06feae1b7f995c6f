//! The end of every world: from here on everybody behaves, so everything must come to rest, agree, and stop.

use super::super::kernel::Stage;
use super::{Question, World};
use std::collections::BTreeMap;
use stdiod::api::request::Ask;
use stdiod::core::contract::Input;
use stdiod::ids::{InstanceId, ServerId};
use stdiod::model::definition::IdleMode;
use stdiod::model::status::StatusView;

impl World {
    /// From here on everybody behaves, and so everything must come to rest.
    pub(super) fn settle(&mut self) {
        for process in self.processes.values_mut() {
            process.hung = false;
        }
        for _ in 0..3_000 {
            if !self.store.up {
                self.store.up = true;
                self.input(Input::StoreOpened { snapshot: None });
            }
            self.store_all();
            self.disk_writes(true);
            self.behave();
            for conn in std::mem::take(&mut self.followers).into_iter().chain(self.agents.stop_listening()) {
                self.input(Input::ClientGone { conn });
            }
            self.check_ended_sessions();
            self.check_rooms();
            if self.questions.is_empty() && self.agents.are_silent() && self.core.is_idle() {
                return self.check_rest();
            }
            if let Some(at) = self.core.next_deadline() {
                self.pass(at.saturating_sub(self.now.mono_ms));
            }
        }
        panic!("it does not come to rest: {:?} wait, idle {}", self.questions, self.core.is_idle());
    }

    fn store_all(&mut self) {
        loop {
            self.foresee();
            let Some((seq, outcome)) = self.store.step(true, false) else { return };
            self.input(Input::StoreDone { seq, outcome });
        }
    }

    /// Processes that are well have nothing left to do before the clock moves on.
    fn behave(&mut self) {
        for _ in 0..10 {
            for pull in self.pulls.keys().copied().collect::<Vec<_>>() {
                self.pull_ends(pull);
            }
            self.removal_step();
            for instance in self.processes.keys().copied().collect::<Vec<_>>() {
                self.behave_once(instance);
            }
        }
    }

    fn behave_once(&mut self, instance: InstanceId) {
        let Some(process) = self.processes.get_mut(&instance) else { return };
        match process.stage {
            Stage::Launching if process.killed => self.launch_fails(instance),
            Stage::Launching => self.launched(instance),
            Stage::Running if process.frozen => {}
            Stage::Dead | Stage::Running if process.installs => self.install_exits(instance),
            Stage::Dead => self.exits(instance),
            Stage::Running if process.told_to_stop || process.killed || !process.stdout_open => self.exits(instance),
            Stage::Running => self.answers(instance, false),
        }
    }

    /// What is told and what is stored are the same.
    fn check_rest(&mut self) {
        self.ask(Ask::List { status: None, name: None }, Question::Other);
        let listed: BTreeMap<ServerId, StatusView> = self.listed.drain(..).map(|view| (view.id, view)).collect();
        let stored: Vec<ServerId> = self.store.rows.keys().copied().collect();
        assert_eq!(listed.keys().copied().collect::<Vec<_>>(), stored, "told and stored differ");
        for (id, view) in &listed {
            let row = &self.store.rows[id];
            assert_eq!(row.definition, *view.definition);
            assert_eq!(row.status.status, view.status, "the status was written down");
            assert_eq!(row.status.restart_count, view.restart_count);
            assert!(view.in_flight == 0 && view.waiting == 0);
            assert_eq!(self.told[id].1, view.status, "what the watcher was told");
            let has_process = self.processes.values().any(|p| p.server == view.definition.name);
            let dozes = view.asleep.is_some_and(|asleep| asleep.mode == IdleMode::Doze);
            assert_eq!(has_process, dozes || view.status.container_status() == "running", "{:?}", view.status);
        }
        self.check_records();
    }

    pub(super) fn shut_down(&mut self) {
        self.input(Input::ShutdownAsked);
        for _ in 0..200 {
            if self.exited {
                assert!(self.processes.is_empty(), "containers outlive the daemon");
                assert!(self.pulls.is_empty(), "pulls outlive the daemon");
                return;
            }
            self.behave();
            self.store_all();
            self.disk_writes(true);
            if let Some(at) = self.core.next_deadline() {
                self.pass(at.saturating_sub(self.now.mono_ms));
            }
        }
        panic!("the shutdown does not end");
    }
}
