//! Clients of the REST API: what they ask, of servers that change under their hands, and that they leave.

use super::{NAMES, Question, World};
use serde_json::{Map, json};
use stdiod::api::request::{Ask, Change, LogFormat, ServerRef, TokenWanted};
use stdiod::core::contract::Input;
use stdiod::ids::ConnId;
use stdiod::model::definition::{CrashLoop, Definition, Health, OnUnresponsive, PullPolicy, RestartPolicy, Source};
use stdiod::wire::json::JsonBuf;

impl World {
    pub(super) fn name(&mut self) -> &'static str {
        NAMES[self.rng.below(NAMES.len())]
    }

    pub(super) fn ask_call(&mut self) {
        let name = self.name();
        let params = format!(r#"{{"token":"{}-{}"}}"#, name, self.rng.next());
        let method = JsonBuf::of(r#""tools/call""#.to_string()).unwrap();
        let raw = JsonBuf::of(params.clone()).unwrap();
        let timeout_ms = [None, Some(1), Some(500), Some(10_000), Some(200_000)][self.rng.below(5)];
        let server = ServerRef::Name(name.to_string());
        self.ask(
            Ask::Call { server, method: method.as_json(), params: Some(raw.as_json()), timeout_ms },
            Question::Call { params },
        );
    }

    pub(super) fn ask_change(&mut self) {
        let name = self.name();
        let server = ServerRef::Name(name.to_string());
        self.touch(name);
        match self.rng.below(14) {
            0..=3 => {
                let definition = self.definition(name);
                let wait = self.rng.one_in(2);
                self.ask(Ask::Register { definition: Box::new(definition), wait }, Question::Register);
            }
            4 => {
                let (life, hands) = (self.lives.get(name).copied(), self.hands.get(name).copied().unwrap_or(0));
                self.ask(Ask::Stop { server }, Question::Stop { name, life, hands });
            }
            5 => {
                self.may_start(name);
                self.ask(Ask::Start { server }, Question::Other);
            }
            6 => self.ask(Ask::Restart { server }, Question::Other),
            7 => {
                let volumes = self.rng.one_in(2);
                let life = self.lives.get(name).copied();
                self.ask(Ask::Delete { server, volumes }, Question::Delete { name, volumes, life });
            }
            8 => {
                let fields: Map<_, _> = match self.rng.below(5) {
                    4 => json!({ "idle": self.some_idle() }),
                    3 => json!({ "health": { "heartbeat_ms": 200 + self.rng.below(5_000) } }),
                    0 => json!({ "max_in_flight": 1 + self.rng.below(4) }),
                    1 => json!({ "cmd": ["other"] }),
                    _ => json!({ "enabled": self.rng.one_in(2) }),
                }
                .as_object()
                .unwrap()
                .clone();
                self.may_start(name);
                self.ask(Ask::Patch { server, change: Box::new(Change { fields }) }, Question::Other);
            }
            9 => self.ask(Ask::List { status: None, name: None }, Question::Other),
            10 => {
                let follow = self.rng.one_in(2);
                let since_unix_ms = self.rng.one_in(2).then_some(self.now.unix_ms);
                let ask = Ask::Logs { server, tail: 10, since_unix_ms, follow, format: LogFormat::Json };
                self.ask(ask, Question::Other);
            }
            11 => {
                let (scopes, servers) = (vec!["mcp:call".to_string()], Vec::new());
                self.ask(
                    Ask::TokenCreate {
                        wanted: TokenWanted { name: name.to_string(), scopes, servers, ..TokenWanted::default() },
                    },
                    Question::Other,
                );
                self.revoke(name);
            }
            12 => self.revoke(name),
            _ => {
                let server = ServerRef::Name(name.to_string());
                self.ask(
                    Ask::Delete { server, volumes: false },
                    Question::Delete { name, volumes: false, life: self.lives.get(name).copied() },
                );
            }
        }
    }

    /// A hand on a server may reset its schedule, and the death of the instance it has now may be no crash: the shadow
    /// then expects nothing.
    pub(super) fn touch(&mut self, name: &str) {
        if let Some(shadow) = self.shadows.get_mut(name) {
            shadow.expect_nothing();
        }
        for process in self.processes.values_mut().filter(|process| process.server == name) {
            process.touched = true;
        }
        self.fetched.remove(name);
    }

    fn definition(&mut self, name: &str) -> Definition {
        let body = json!({ "name": name, "rootfs": "host", "cmd": ["x"] }).to_string();
        let mut definition =
            stdiod::api::definition::fields::parse(body.as_bytes()).expect("a plain definition is valid");
        // Few images, so that servers wait for the same one.
        if self.rng.one_in(2) {
            definition.source = Source::Image(["r.test/a:1", "r.test/b:1"][self.rng.below(2)].to_string());
            let policies = [PullPolicy::Missing, PullPolicy::Always, PullPolicy::Never];
            definition.pull_policy = policies[self.rng.below(3)];
        }
        definition.max_in_flight = [1, 1, 1, 3][self.rng.below(4)];
        definition.queue_max = [1, 4, 256][self.rng.below(3)];
        let policies = [RestartPolicy::Always, RestartPolicy::Always, RestartPolicy::OnFailure, RestartPolicy::Never];
        definition.restart_policy = policies[self.rng.below(4)];
        definition.startup_timeout_ms = [1_000, 60_000][self.rng.below(2)];
        definition.install_timeout_ms = [2_000, 600_000][self.rng.below(2)];
        definition.health = Health {
            heartbeat_ms: [500, 30_000][self.rng.below(2)],
            probe_timeout_ms: [100, 3_000][self.rng.below(2)],
            stale_ms: [None, Some(2_000)][self.rng.below(2)],
            on_unresponsive: [OnUnresponsive::Report, OnUnresponsive::Restart][self.rng.below(2)],
        };
        definition.crash_loop = match self.rng.below(4) {
            0 => CrashLoop::relentless(),
            1 => CrashLoop { max_attempts: Some(3), ..CrashLoop::default() },
            _ => CrashLoop::default(),
        };
        definition.idle = self.some_idle();
        definition
    }

    pub(super) fn leave(&mut self) {
        let waiting: Vec<ConnId> = self.questions.keys().chain(&self.followers).copied().collect();
        if let Some(conn) = self.rng.pick(&waiting) {
            self.questions.remove(&conn);
            self.followers.remove(&conn);
            self.input(Input::ClientGone { conn });
        }
    }
}
