//! The world around a core: it makes things happen at random and checks everything the core does about them.

mod clients;
mod durable;
mod handover;
mod idle;
mod mcp;
mod rest;
mod whose;

use super::kernel::{Process, Rng, Stage, Words};
use super::shadow::Shadow;
use super::store::FakeStore;
use std::collections::{BTreeMap, BTreeSet};
use stdiod::api::request::Ask;
use stdiod::api::response::{Answer, StreamEvent};
use stdiod::core::Core;
use stdiod::core::contract::{Input, Now, Output};
use stdiod::ids::{ConnId, InstanceId, PullId, ServerId};
use stdiod::model::definition::{Definition, RestartPolicy};
use stdiod::model::fault::Code;
use stdiod::model::instance::{Exit, ExitCause, LaunchFault, LaunchFaultKind, StopSignal};
use stdiod::model::news::{News, NewsKind};
use stdiod::model::principal::Principal;
use stdiod::model::records::StoreOp;
use stdiod::model::status::{Status, StatusView};
use stdiod::shares::Short;
use stdiod::wire::lines::Line;

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// What a client waits for, and what its answer must look like.
#[derive(Debug)]
enum Question {
    Call { params: String },
    Register,
    Delete { name: &'static str, volumes: bool, life: Option<ServerId> },
    Stop { name: &'static str, life: Option<ServerId>, hands: u64 },
    Revoke { name: &'static str, hash: Option<[u8; 32]> },
    Watch,
    Mcp(mcp::Waiting),
    Other,
}

pub struct World {
    core: Core,
    pub(super) rng: Rng,
    pub(super) now: Now,
    conns: u64,
    questions: BTreeMap<ConnId, Question>,
    followers: BTreeSet<ConnId>,
    pub(super) processes: BTreeMap<InstanceId, Process>,
    installs: bool,
    /// Servers whose packages have just been fetched.
    pub(super) fetched: BTreeSet<String>,
    /// Images on their way.
    pub(super) pulls: BTreeMap<PullId, String>,
    /// Volumes on their way out: whose, and the name they are under.
    removals: BTreeMap<ServerId, String>,
    store: FakeStore,
    disk: durable::FakeDisk,
    promises: durable::Promises,
    /// Who has which name, and whose data is in the volumes under it.
    lives: BTreeMap<String, ServerId>,
    volumes: BTreeMap<String, BTreeSet<ServerId>>,
    /// Servers that were deleted with their volumes, and servers that are to stay down.
    condemned: BTreeSet<ServerId>,
    stopped: BTreeSet<ServerId>,
    /// How often somebody had a hand on a server that may start it.
    hands: BTreeMap<&'static str, u64>,
    pub(super) shadows: BTreeMap<String, Shadow>,
    pub(super) definitions: BTreeMap<String, Definition>,
    registered: BTreeSet<ServerId>,
    listed: Vec<StatusView>,
    /// Somebody watches from the beginning, and knows each server's status by what it is told.
    watcher: Option<ConnId>,
    pub(super) told: BTreeMap<ServerId, (String, Status)>,
    agents: mcp::Agents,
    exited: bool,
    handovers: Option<handover::Handovers>,
    /// A running hash of all that happened: the same seed must give the same one.
    trace: u64,
}

impl World {
    /// In which some starts fetch packages first.
    pub fn with_installs(seed: u64) -> World {
        World { installs: true, ..World::new(seed) }
    }

    pub fn new(seed: u64) -> World {
        let mut rng = Rng(seed);
        World {
            core: durable::new_core(&mut rng, Vec::new()),
            rng,
            now: Now { mono_ms: 1, unix_ms: 1_700_000_000_000 },
            conns: 0,
            questions: BTreeMap::new(),
            followers: BTreeSet::new(),
            processes: BTreeMap::new(),
            installs: false,
            fetched: BTreeSet::new(),
            pulls: BTreeMap::new(),
            removals: BTreeMap::new(),
            store: FakeStore::default(),
            disk: durable::FakeDisk::default(),
            promises: durable::Promises::default(),
            lives: BTreeMap::new(),
            volumes: BTreeMap::new(),
            condemned: BTreeSet::new(),
            stopped: BTreeSet::new(),
            hands: BTreeMap::new(),
            shadows: BTreeMap::new(),
            definitions: BTreeMap::new(),
            registered: BTreeSet::new(),
            listed: Vec::new(),
            watcher: None,
            told: BTreeMap::new(),
            agents: mcp::Agents::default(),
            exited: false,
            handovers: None,
            trace: seed,
        }
    }

    /// Lives for so many steps, then lets everything settle and checks that it does.
    pub fn run(mut self, steps: usize) -> u64 {
        self.boot();
        for _ in 0..steps {
            self.step();
            self.check_rooms();
        }
        self.settle();
        self.shut_down();
        self.trace
    }

    /// Only debug builds can look.
    pub(super) fn check_rooms(&self) {
        #[cfg(debug_assertions)]
        stdiod::core::invariants::check(&self.core);
    }

    fn step(&mut self) {
        if self.rng.one_in(500) {
            return self.killed();
        }
        match self.rng.below(20) {
            0..=2 => self.ask_call(),
            3..=4 => self.agent_step(),
            5 => self.ask_change(),
            6 => self.leave(),
            7..=12 if self.rng.one_in(4) => self.pull_step(),
            7..=12 if self.rng.one_in(6) => self.removal_step(),
            7..=12 => self.process_step(),
            13..=15 if self.rng.one_in(4) => self.disk_step(),
            13..=15 => self.store_step(),
            16 => self.toggle_store(),
            17..=18 => {
                let ms = [0, 1, 5, 50][self.rng.below(4)];
                self.pass(ms);
            }
            _ => {
                let ms = [200, 1_000, 6_000, 40_000, 100_000][self.rng.below(5)];
                self.pass(ms);
            }
        }
    }

    // --- time -------------------------------------------------------------------------------------------------------

    fn pass(&mut self, ms: u64) {
        self.now.mono_ms += ms;
        // The wall clock may jump; nothing but what is shown may depend on it.
        self.now.unix_ms = match self.rng.below(50) {
            0 => self.now.unix_ms.saturating_sub(86_400_000),
            1 => self.now.unix_ms + 86_400_000,
            _ => self.now.unix_ms + ms,
        };
        self.core.tick(self.now);
        self.perform();
    }

    pub(super) fn input(&mut self, input: Input<'_>) {
        self.core.handle(input, self.now);
        self.perform();
    }

    // --- clients ----------------------------------------------------------------------------------------------------

    fn ask(&mut self, ask: Ask<'_>, question: Question) {
        self.ask_as(Principal::anonymous(), ask, question);
    }

    fn ask_as(&mut self, who: Principal, ask: Ask<'_>, question: Question) {
        self.conns += 1;
        let conn = ConnId(self.conns);
        self.questions.insert(conn, question);
        self.core.handle(Input::Asked { conn, who, ask }, self.now);
        self.perform();
    }

    // --- processes --------------------------------------------------------------------------------------------------

    fn process_step(&mut self) {
        let all: Vec<InstanceId> = self.processes.keys().copied().collect();
        let Some(instance) = self.rng.pick(&all) else { return };
        let process = &self.processes[&instance];
        match process.stage {
            Stage::Launching if process.killed || self.rng.one_in(6) => self.launch_fails(instance),
            Stage::Launching if self.installs && self.rng.one_in(5) => self.install_begins(instance),
            Stage::Launching => self.launched(instance),
            Stage::Dead if process.installs => self.install_exits(instance),
            Stage::Dead => self.exits(instance),
            Stage::Running if process.installs => self.install_step(instance),
            Stage::Running => self.run_process(instance),
        }
    }

    fn launched(&mut self, instance: InstanceId) {
        self.processes.get_mut(&instance).unwrap().stage = Stage::Running;
        self.input(Input::Launched { instance });
    }

    fn launch_fails(&mut self, instance: InstanceId) {
        let process = self.processes.remove(&instance).unwrap();
        if !process.touched {
            self.death(&process.server, true);
        }
        let why = LaunchFault { kind: LaunchFaultKind::Runtime, message: "no such file".to_string() };
        self.input(Input::LaunchFailed { instance, why });
    }

    fn run_process(&mut self, instance: InstanceId) {
        let process = self.processes.get_mut(&instance).unwrap();
        if process.killed || (!process.hung && process.told_to_stop && self.rng.one_in(3)) {
            process.stage = Stage::Dead;
            return;
        }
        if process.frozen {
            return;
        }
        if process.hung {
            process.hung = !self.rng.one_in(8);
            return;
        }
        if process.unsaid.is_some() && self.rng.one_in(2) {
            return self.ends_line(instance);
        }
        match self.rng.below(32) {
            30 => process.hung = true,
            31 if process.stdout_open => {
                process.wrote_ms = self.now.mono_ms;
                self.input(Input::LineBegun { instance });
            }
            0 => process.stage = Stage::Dead,
            1 => {
                (process.stdout_open, process.unsaid) = (false, None);
                self.input(Input::StdoutClosed { instance });
            }
            2 => self.input(Input::StderrRead { instance, bytes: b"torn li" }),
            3 => self.input(Input::StderrRead { instance, bytes: b"ne\nwhole line\n" }),
            4 => self.says(instance, b"garbage that is no JSON", Words::Noise),
            5 => self.says(instance, br#"{"jsonrpc":"2.0","id":99999999,"result":"nobody asked"}"#, Words::Valid),
            6 => {
                let line = process.progress(&mut self.rng);
                self.says(instance, &line, Words::Valid);
            }
            7 => self.discards_long_line(instance),
            8 => self.answers(instance, true),
            9 => self.says_neither(instance),
            10..=12 => self.says_for_a_call(instance),
            13 => self.answers_late(instance),
            _ => self.answers(instance, false),
        }
    }

    fn says(&mut self, instance: InstanceId, line: &[u8], words: Words) {
        self.ends_line(instance);
        let Some(process) = self.processes.get_mut(&instance).filter(|process| process.stdout_open) else { return };
        let line = [line, b"\n"].concat();
        if !self.rng.one_in(4) {
            return self.writes(instance, &line, words);
        }
        // Torn: the rest comes later, or never.
        let (begun, rest) = line.split_at(self.rng.below(line.len()));
        process.unsaid = Some((rest.to_vec(), words));
        if !begun.is_empty() {
            process.wrote_ms = self.now.mono_ms;
            process.lines.feed(begun);
            assert!(process.lines.next_line().is_none(), "it is not whole yet");
            self.input(Input::LineBegun { instance });
        }
    }

    /// The rest of a line that was begun.
    fn ends_line(&mut self, instance: InstanceId) {
        let unsaid = self.processes.get_mut(&instance).and_then(|process| process.unsaid.take());
        if let Some((rest, words)) = unsaid {
            self.writes(instance, &rest, words);
        }
    }

    /// Whoever says something valid is not silent, whatever has been thought of it.
    fn writes(&mut self, instance: InstanceId, bytes: &[u8], words: Words) {
        let now_ms = self.now.mono_ms;
        let process = self.processes.get_mut(&instance).unwrap();
        process.wrote_ms = now_ms;
        if words != Words::Noise {
            (process.said_ms, process.suspected) = (now_ms, false);
        }
        if words == Words::Greeting {
            self.shadows.entry(process.server.clone()).or_default().ready_since = Some(now_ms);
        }
        process.lines.feed(bytes);
        let line = match process.lines.next_line() {
            Some(Line::Whole(line)) => line.to_vec(),
            other => panic!("one line went in, {other:?} came out"),
        };
        self.input(Input::LineRead { instance, line: Line::Whole(&line) });
        if let Some(process) = self.processes.get(&instance).filter(|_| words != Words::Noise) {
            let told = self.told.values().find(|(name, _)| *name == process.server);
            assert!(told.is_none_or(|(_, status)| *status != Status::Unresponsive), "it has just been heard");
        }
    }

    fn answers(&mut self, instance: InstanceId, twice: bool) {
        self.ends_line(instance);
        let process = self.processes.get_mut(&instance).unwrap();
        if process.asked.is_empty() || !process.stdout_open {
            return;
        }
        let (id, request) = process.asked.remove(self.rng.below(process.asked.len()));
        let line = Process::answer(id, &request, &mut self.rng);
        let greets = request["method"] == "initialize" && !String::from_utf8_lossy(&line).contains("-32000");
        self.says(instance, &line, if greets { Words::Greeting } else { Words::Valid });
        if twice && self.processes.contains_key(&instance) {
            self.says(instance, &line, Words::Valid);
        }
    }

    fn says_neither(&mut self, instance: InstanceId) {
        let process = self.processes.get_mut(&instance).unwrap();
        if let Some((id, request)) = process.asked.pop() {
            assert!(request.is_object());
            self.says(instance, format!(r#"{{"jsonrpc":"2.0","id":{id}}}"#).as_bytes(), Words::Valid);
        }
    }

    fn discards_long_line(&mut self, instance: InstanceId) {
        self.ends_line(instance);
        let process = self.processes.get_mut(&instance).unwrap();
        if !process.stdout_open {
            return;
        }
        process.wrote_ms = self.now.mono_ms;
        let head = match process.asked.pop() {
            Some((id, _)) => format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"xxxx"#),
            None => r#"{"jsonrpc":"2.0","method":"log","params":"xxxx"#.to_string(),
        };
        self.input(Input::LineRead { instance, line: Line::TooLong { head: head.as_bytes(), tail: b"xxxx\"}" } });
    }

    fn exits(&mut self, instance: InstanceId) {
        let process = self.processes.remove(&instance).unwrap();
        let cause = match (process.killed, self.rng.below(3)) {
            (true, _) => ExitCause::Signal(9),
            (false, 0) => ExitCause::Code(0),
            (false, 1) => ExitCause::Code(3),
            (false, _) => ExitCause::Signal(11),
        };
        let counts = self.definitions.get(&process.server).is_some_and(|d| match d.restart_policy {
            RestartPolicy::Always => true,
            RestartPolicy::OnFailure => cause != ExitCause::Code(0),
            RestartPolicy::Never => false,
        });
        if counts && !process.touched {
            self.death(&process.server, false);
        }
        self.input(Input::Exited { instance, exit: Exit { cause, oom: false } });
    }

    pub(super) fn removal_step(&mut self) {
        let Some((server, name)) = self.removals.pop_first() else { return };
        let outcome = if self.rng.one_in(5) { Err("no space to remove".to_string()) } else { Ok(()) };
        if outcome.is_ok() {
            self.volumes.remove(&name);
        }
        self.input(Input::VolumesRemoved { server, outcome });
    }

    fn death(&mut self, server: &str, launch: bool) {
        let Some(rules) = self.definitions.get(server).map(|d| d.crash_loop.clone()) else { return };
        self.shadows.entry(server.to_string()).or_default().death(&rules, self.now.mono_ms, launch);
    }

    // --- what the core does -----------------------------------------------------------------------------------------

    fn perform(&mut self) {
        while let Some(output) = self.core.poll_output() {
            self.note(&output);
            self.thaw(&output);
            match output {
                Output::Doze { instance } => self.dozes(instance),
                Output::Answer { conn, answer } => self.answered(conn, answer),
                Output::Event { conn, event } => {
                    let alive = Some(conn) == self.watcher && event == StreamEvent::KeepAlive;
                    let known = alive || self.followers.contains(&conn) || self.agent_heard(conn, &event);
                    assert!(known, "{event:?} to a stranger, {conn:?}");
                }
                Output::EndStream { conn } => {
                    assert!(self.followers.remove(&conn) || self.agent_stream_ended(conn), "a stream ends once");
                }
                Output::Pull { pull, image, .. } => {
                    assert!(self.pulls.insert(pull, image).is_none(), "a pull is begun once");
                }
                Output::AbandonPull { pull } => {
                    assert!(self.pulls.remove(&pull).is_some(), "only what is on its way is abandoned");
                }
                Output::Launch { instance, definition, packages, .. } => {
                    self.check_packages(&definition.name, packages);
                    self.launch(instance, (*definition).clone());
                }
                Output::Knock { .. } => unreachable!("no server of this world has ports"),
                Output::Connect { .. } | Output::Negotiated { .. } | Output::MirrorParams { .. } => {
                    unreachable!("no server of this world is an external one")
                }
                // Its pipe is full, now and then; of what only the daemon asks nobody would hear.
                Output::Write { bytes, call: Some(call), .. }
                    if bytes.windows(12).any(|window| window == br#""tools/call""#) && self.rng.one_in(50) =>
                {
                    self.core.handle(Input::Unwritten { call, short: Short::Owner }, self.now);
                }
                Output::Write { instance, bytes, .. } | Output::Reply { instance, bytes } => {
                    if let Some(process) = self.processes.get_mut(&instance) {
                        assert!(!process.installs, "an install is not spoken to: {}", String::from_utf8_lossy(&bytes));
                        process.read_stdin(&bytes);
                        let definition = &self.definitions[&process.server];
                        let (calls, max) = (process.calls(), definition.max_in_flight as usize);
                        assert!(calls <= max, "{calls} calls at once, {max} allowed");
                        if bytes.windows(6).any(|window| window == br#""ping""#) {
                            check_ping(process, definition, self.now.mono_ms);
                        }
                    }
                }
                Output::News { conn, news } => {
                    assert_eq!(Some(conn), self.watcher, "news for a stranger");
                    self.heard_news(&news);
                }
                Output::LogKeep { .. } | Output::LogRestore { .. } | Output::LogRemove { .. } => {}
                Output::CloseStdin { instance } => {
                    let told = |process: &Process| process.told_to_stop || process.killed;
                    assert!(
                        self.processes.get(&instance).is_none_or(told),
                        "only who was told to stop loses its stdin"
                    );
                }
                Output::Signal { instance, signal } => {
                    if let Some(process) = self.processes.get_mut(&instance) {
                        match signal {
                            StopSignal::Term => process.told_to_stop = true,
                            StopSignal::Kill => process.killed = true,
                        }
                    }
                }
                Output::Discard { instance } => {
                    assert!(!self.processes.contains_key(&instance), "only what has ended is discarded");
                }
                Output::RemoveVolumes { server, name } => {
                    assert!(NAMES.contains(&name.as_str()));
                    assert!(self.processes.values().all(|p| p.server != name), "{name} runs, and its volumes go");
                    assert!(self.removals.insert(server, name).is_none(), "volumes are removed once");
                }
                Output::Store { seq, op } => {
                    if let StoreOp::InsertServer(row) = &*op {
                        self.lives.insert(row.definition.name.clone(), row.id);
                    }
                    self.store.queue.push_back((seq, *op));
                }
                Output::KeepDecisions { version, decisions } => self.disk.begin(version, decisions, self.now),
                Output::Exit => self.exited = true,
            }
        }
        self.may_hand_over();
    }

    /// What is told of each server is one unbroken line.
    fn heard_news(&mut self, news: &News) {
        match news.kind {
            NewsKind::State | NewsKind::Warning | NewsKind::Link => {}
            NewsKind::Presence if news.why == "removed" => _ = self.told.remove(&news.server),
            NewsKind::Presence => _ = self.told.insert(news.server, (news.name.clone(), news.to)),
            NewsKind::Transition => {
                self.check_rest_of(news);
                let before = self.told.insert(news.server, (news.name.clone(), news.to)).map(|(_, status)| status);
                assert_eq!(before, news.from, "a transition was not told, or told twice");
            }
        }
        if news.kind == NewsKind::Transition && news.to == Status::Unresponsive {
            let process = self.processes.values().find(|p| p.server == news.name).expect("an instance that is silent");
            let silent_ms = self.now.mono_ms - process.said_ms;
            let probe_ms = self.definitions[&news.name].health.probe_timeout_ms;
            assert!(silent_ms >= 2 * probe_ms, "called silent after {silent_ms} ms, with probes of {probe_ms} ms");
        }
    }

    fn launch(&mut self, instance: InstanceId, definition: Definition) {
        let name = definition.name.clone();
        assert!(self.processes.values().all(|p| p.server != name), "{name} has an instance already");
        assert!(self.removals.values().all(|other| *other != name), "{name} starts in volumes that are being removed");
        let earliest = self.shadows.get(&name).map_or(0, |shadow| shadow.earliest);
        assert!(self.now.mono_ms >= earliest, "{name} starts at {}, not before {earliest}", self.now.mono_ms);
        self.check_launch(&name);
        self.processes.insert(instance, Process::new(&name));
        self.definitions.insert(name, definition);
    }

    fn answered(&mut self, conn: ConnId, answer: Answer) {
        let question = self.questions.remove(&conn).expect("an answer to nobody, or a second one");
        match (question, answer) {
            (Question::Mcp(waiting), answer) => self.agent_answered(conn, waiting, answer),
            (Question::Call { params }, Answer::Result(bytes)) => {
                assert_eq!(String::from_utf8(bytes).unwrap(), params, "somebody else's answer");
            }
            (Question::Call { .. }, Answer::ServerError { code, .. }) => assert_eq!(code, -32602),
            (Question::Call { .. }, Answer::Refused(fault)) => {
                let says = fault.data.contains_key("outcome");
                let before = matches!(fault.code, Code::NotFound | Code::Unavailable | Code::StoreUnavailable);
                assert!(says || before, "does not say whether it was sent: {fault:?}");
            }
            (Question::Register, Answer::Registered(view)) => {
                assert!(self.store.ever.contains(&view.id), "told before it was stored");
                self.registered.insert(view.id);
            }
            (Question::Register, Answer::Refused(_)) => {}
            (Question::Delete { name, volumes, life }, Answer::Deleted) => {
                self.check_deleted(name, volumes, life);
                assert!(self.processes.values().all(|p| p.server != name), "gone, but it runs");
                assert!(self.removals.values().all(|other| other != name), "gone, but its volumes are there");
                self.shadows.remove(name);
            }
            (Question::Stop { name, life, hands }, Answer::Status(view)) => {
                self.check_stopped(name, life, hands, &view)
            }
            (Question::Revoke { name, hash }, Answer::TokenRevoked) => self.check_revoked(name, hash),
            (Question::Stop { .. } | Question::Revoke { .. }, Answer::Refused(fault)) => {
                assert_eq!(fault.code, Code::NotFound, "these act at once");
            }
            (Question::Delete { .. }, Answer::Refused(fault)) => {
                let unfinished =
                    fault.message.contains("not all of its volumes") || fault.message.contains("on its way");
                assert!(fault.code == Code::NotFound || unfinished, "these act at once: {fault:?}");
            }
            (Question::Watch, Answer::News(list)) => {
                self.watcher = Some(conn);
                self.told = list.into_iter().map(|news| (news.server, (news.name, news.to))).collect();
            }
            (Question::Other, Answer::Stream { .. }) => _ = self.followers.insert(conn),
            (Question::Other, Answer::List(views)) => self.listed = views,
            (Question::Other, other) => {
                if let Answer::Status(view) = other {
                    // The daemon's own wait beside those of clients: lists, and a log level.
                    assert!(view.waiting <= view.definition.queue_max as usize + 5);
                }
            }
            (question, answer) => panic!("{question:?} was answered with {answer:?}"),
        }
    }

    fn note(&mut self, output: &Output) {
        for byte in format!("{} {output:?}", self.now.mono_ms).bytes() {
            self.trace = (self.trace ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// A ping is for whoever is silent, and whoever takes one call at a time is not disturbed in it.
fn check_ping(process: &Process, definition: &Definition, now_ms: u64) {
    if process.suspected {
        return;
    }
    // A PATCH may have made it shorter meanwhile, but never shorter than this.
    let heartbeat_ms = definition.health.heartbeat_ms.min(200);
    let silent_ms = now_ms - process.wrote_ms.max(process.said_ms);
    assert!(silent_ms >= heartbeat_ms, "asked after {silent_ms} ms of silence");
    assert!(definition.max_in_flight > 1 || process.calls() == 0, "asked in the middle of a call");
}
