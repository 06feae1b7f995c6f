//! Instances that fetch packages before the server they belong to starts: they end well, fail, hang, are stopped and are killed,
//! and say what no server may.

use super::kernel::Stage;
use super::world::World;
use stdiod::core::contract::Input;
use stdiod::ids::InstanceId;
use stdiod::model::instance::{Exit, ExitCause, Packages};
use stdiod::model::status::Status;
use stdiod::wire::lines::Line;

impl World {
    /// What was launched looked at the disk, and fetches first.
    pub(super) fn install_begins(&mut self, instance: InstanceId) {
        let process = self.processes.get_mut(&instance).expect("it is being launched");
        (process.stage, process.installs) = (Stage::Running, true);
        let (server, stopped) = (process.server.clone(), process.told_to_stop || process.killed || process.touched);
        self.input(Input::InstallBegun { instance });
        let told = self.told.values().find(|(name, _)| *name == server).map(|(_, status)| *status);
        assert!(stopped || told.is_none_or(|status| status == Status::Installing), "{server} is told as {told:?}");
    }

    pub(super) fn install_step(&mut self, instance: InstanceId) {
        let process = self.processes.get_mut(&instance).expect("picked");
        if process.killed || (!process.hung && process.told_to_stop && self.rng.one_in(3)) {
            process.stage = Stage::Dead;
            return;
        }
        if process.hung {
            process.hung = !self.rng.one_in(12);
            return;
        }
        match self.rng.below(12) {
            0..=2 => process.stage = Stage::Dead,
            3 => process.hung = true,
            4 => self.input(Input::StderrRead { instance, bytes: b"npm error of the registry\n" }),
            // Whatever it says, it is no server: none of this is an answer, a question or news.
            5 => self.install_says(instance, br#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25"}}"#),
            6 => {
                self.install_says(instance, br#"{"jsonrpc":"2.0","id":"q1","method":"elicitation/create","params":{}}"#)
            }
            7 => self.install_says(instance, br#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#),
            8 if process.stdout_open => {
                process.stdout_open = false;
                self.input(Input::StdoutClosed { instance });
            }
            _ => {}
        }
    }

    fn install_says(&mut self, instance: InstanceId, line: &[u8]) {
        if self.processes[&instance].stdout_open {
            self.input(Input::LineRead { instance, line: Line::Whole(line) });
        }
    }

    /// The first launch after a good end is of the server, and knows that its packages are here.
    pub(super) fn install_exits(&mut self, instance: InstanceId) {
        let process = self.processes.remove(&instance).expect("picked");
        let cause = match (process.killed, self.rng.below(3)) {
            (true, _) => ExitCause::Signal(9),
            (false, 0) => ExitCause::Code(1),
            (false, _) => ExitCause::Code(0),
        };
        let put_down = process.told_to_stop || process.killed;
        self.fetched.remove(&process.server);
        if !process.touched {
            match (put_down, cause) {
                (false, ExitCause::Code(0)) => {
                    self.shadows.entry(process.server.clone()).or_default().installed();
                    self.fetched.insert(process.server.clone());
                }
                (_, ExitCause::Code(_) | ExitCause::Signal(_)) => self.install_failed(&process.server),
            }
        }
        self.input(Input::Exited { instance, exit: Exit { cause, oom: false } });
    }

    fn install_failed(&mut self, server: &str) {
        let Some(rules) = self.definitions.get(server).map(|definition| definition.crash_loop.clone()) else { return };
        self.shadows.entry(server.to_string()).or_default().install_failed(&rules, self.now.mono_ms);
    }

    pub(super) fn check_packages(&mut self, server: &str, packages: Packages) {
        if self.fetched.remove(server) {
            assert_eq!(packages, Packages::Fetched, "{server} has just been installed");
        }
    }
}
