//! External servers under a virtual clock: links that are refused, slow, silent, or lost in the middle of a call, and clients
//! and operators who use them meanwhile. A shadow model knows what must be true: each question is answered once, and by whom it
//! was put to; no call is written twice, and what is told of its fate is so; a server has one connection at most; its schedule
//! and its circuit are kept; each call leaves one record; and in the end everything drains. A failure prints the seed;
//! `SIM_SEED=n cargo test --test sim_links` replays it.

use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use stdiod::api::projects::fields;
use stdiod::api::request::{Ask, Change, ExternalRef, McpAsk, ProjectAsk, ResultFormat, Stateless, Takes, ToolCall};
use stdiod::api::response::Answer;
use stdiod::core::contract::{Input, Now, Output};
use stdiod::core::{Core, Settings};
use stdiod::ids::{ConnId, InstanceId, SessionId};
use stdiod::limits::LINK_SCHEDULE_MS;
use stdiod::model::endpoint::{LinkFault, LinkFaultKind};
use stdiod::model::external::{ProjectId, Secret};
use stdiod::model::fault::{Code, Fault, Outcome};
use stdiod::model::principal::Principal;
use stdiod::model::records::{Snapshot, StoreOp, StoreOutcome};
use stdiod::wire::json::Json;
use stdiod::wire::jsonrpc;
use stdiod::wire::lines::Line;

const STEPS: usize = 600;
/// (name, what its row says besides, attempts and cool-down of its circuit, shared).
type Rules = (&'static str, &'static str, Option<(u32, u64)>, bool);
const ROWS: [Rules; 4] = [
    ("plain", r#"{}"#, Some((3, 60_000)), true),
    ("stubborn", r#"{"breaker": false, "max_in_flight": 4}"#, None, true),
    ("private", r#"{"shared": false}"#, Some((3, 60_000)), false),
    (
        "secretive",
        r#"{"headers": {"x-key": "${KEY}"}, "breaker": {"attempts": 2, "cooldown_ms": 5000}}"#,
        Some((2, 5_000)),
        true,
    ),
];

/// splitmix64, as in `sim/kernel.rs`.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

#[derive(Debug)]
struct Link {
    server: &'static str,
    open: bool,
    /// Its handshake is done.
    up: bool,
    silent: bool,
    asked: Vec<(u64, Value)>,
}

/// What the schedule and the circuit of a server allow, restated naively.
#[derive(Default)]
struct Shadow {
    failed: usize,
    earliest_ms: u64,
}

#[derive(Debug)]
enum Question {
    Call(u64),
    Other,
}

struct World {
    core: Core,
    rng: Rng,
    now: Now,
    conns: u64,
    tokens: u64,
    questions: BTreeMap<ConnId, Question>,
    session: Option<SessionId>,
    links: BTreeMap<InstanceId, Link>,
    shadows: BTreeMap<&'static str, Shadow>,
    /// Tokens of calls that were written to some link and may have got there.
    written: BTreeSet<u64>,
    records: BTreeSet<u128>,
    /// An operator is at work: links may end for that.
    hands: bool,
    /// Everything goes well from here on.
    settling: bool,
    trace: u64,
}

fn rules(name: &str) -> &'static Rules {
    ROWS.iter().find(|row| row.0 == name).expect("one of ours")
}

fn someone() -> Principal {
    Principal::anonymous()
}

impl World {
    fn new(seed: u64) -> World {
        let settings = Settings {
            default_provider: "crun".to_string(),
            providers: vec!["crun".to_string()],
            hosting: true,
            separator: ":".to_string(),
            record_arguments: true,
            records_keep_days: 30,
            seed: [seed as u8; 32],
            ..Settings::default()
        };
        let mut world = World {
            core: Core::new(settings),
            rng: Rng(seed),
            now: Now { mono_ms: 1, unix_ms: 1_700_000_000_000 },
            conns: 0,
            tokens: 0,
            questions: BTreeMap::new(),
            session: None,
            links: BTreeMap::new(),
            shadows: BTreeMap::new(),
            written: BTreeSet::new(),
            records: BTreeSet::new(),
            hands: false,
            settling: false,
            trace: seed,
        };
        world.input(Input::Swept { providers: vec!["crun".to_string()], unusable: Vec::new(), polling: Vec::new() });
        world.input(Input::StoreOpened { snapshot: Some(Box::new(Snapshot::default())) });
        for (name, more, ..) in ROWS {
            let mut given = json!({"name": name, "transport": "http", "url": format!("http://{name}.test/")});
            let more: Value = serde_json::from_str(more).unwrap();
            given.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let spec = fields::from_fields(given.as_object().unwrap().clone()).unwrap();
            world.ask(ProjectAsk::Create { spec: Box::new(spec) }, Question::Other);
        }
        world.put_secret();
        let info = json!({"name": "sim", "version": "1"});
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info});
        world.post(
            None,
            &json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}),
            Question::Other,
        );
        assert!(world.session.is_some(), "nobody waits for a link to be introduced");
        world
    }

    fn run(mut self) -> u64 {
        for _ in 0..STEPS {
            self.step();
        }
        self.settle();
        self.trace
    }

    fn step(&mut self) {
        match self.rng.below(20) {
            0..=3 => self.call(),
            4 => self.list(),
            5 => self.leave(),
            6..=12 => self.link_step(),
            13 if self.rng.one_in(3) => self.operate(),
            13..=17 => {
                let ms = [0, 1, 5, 50, 200][self.rng.below(5)];
                self.pass(ms);
            }
            _ => {
                let ms = [1_000, 2_000, 6_000, 40_000, 100_000][self.rng.below(5)];
                self.pass(ms);
            }
        }
    }

    fn pass(&mut self, ms: u64) {
        self.now.mono_ms += ms;
        self.now.unix_ms += ms;
        self.core.tick(self.now);
        self.perform();
    }

    fn input(&mut self, input: Input<'_>) {
        self.core.handle(input, self.now);
        self.perform();
    }

    // --- clients ----------------------------------------------------------------------------------------------------

    fn ask(&mut self, ask: ProjectAsk<'_>, question: Question) {
        self.conns += 1;
        let conn = ConnId(self.conns);
        self.questions.insert(conn, question);
        let ask = Ask::Project { project: ProjectId::new("p").unwrap(), ask };
        self.input(Input::Asked { conn, who: someone(), ask });
    }

    fn post(&mut self, session: Option<SessionId>, message: &Value, question: Question) {
        let text = message.to_string();
        let messages = vec![jsonrpc::parse(text.as_bytes()).expect("a message")];
        let ask = McpAsk::Post { session, takes: Takes::Json, batch: false, messages };
        self.ask(ProjectAsk::Mcp(ask), question);
    }

    fn stateless(&mut self, method: &str, params: &Value, question: Question) {
        let params = params.to_string();
        let request = Stateless {
            id: Json::of("1").unwrap(),
            method: method.into(),
            params: Json::of(&params).unwrap(),
            capabilities: Json::of("{}").unwrap(),
            log_level: None,
            param_headers: Vec::new(),
        };
        self.ask(ProjectAsk::Mcp(McpAsk::Stateless { request, takes: Takes::Json }), question);
    }

    fn call(&mut self) {
        self.tokens += 1;
        let token = self.tokens;
        let server = ROWS[self.rng.below(ROWS.len())].0;
        let arguments = json!({ "token": token });
        let named = json!({"name": format!("{server}:t"), "arguments": arguments});
        match self.rng.below(4) {
            0 => {
                let message = json!({"jsonrpc": "2.0", "id": token, "method": "tools/call", "params": named});
                self.post(self.session, &message, Question::Call(token));
            }
            1 => self.stateless("tools/call", &named, Question::Call(token)),
            way => {
                let text = arguments.to_string();
                let call = ToolCall {
                    // Each server has a tool of its name; the other is everybody's.
                    tool: if way == 2 { server.to_string() } else { "t".to_string() },
                    arguments: Some(Json::of(&text).unwrap()),
                    server: (way == 3).then(|| server.to_string()),
                    timeout_ms: self.rng.one_in(4).then_some(700),
                    format: ResultFormat::Json,
                    run_id: None,
                };
                self.ask(ProjectAsk::CallTool(Box::new(call)), Question::Call(token));
            }
        }
    }

    fn list(&mut self) {
        match self.rng.below(3) {
            0 => self.ask(ProjectAsk::Tools, Question::Other),
            1 => self.stateless("tools/list", &json!({}), Question::Other),
            _ => {
                let message = json!({"jsonrpc": "2.0", "id": "l", "method": "tools/list", "params": {}});
                self.post(self.session, &message, Question::Other);
            }
        }
    }

    fn leave(&mut self) {
        let all: Vec<ConnId> = self.questions.keys().copied().collect();
        if !all.is_empty() {
            let conn = all[self.rng.below(all.len())];
            self.questions.remove(&conn);
            self.input(Input::ClientGone { conn });
        }
    }

    fn put_secret(&mut self) {
        let value = Secret::new(["one", "two"][self.rng.below(2)]);
        self.ask(ProjectAsk::SecretPut { name: "KEY".to_string(), value }, Question::Other);
    }

    /// Whatever an operator does to a link, it begins anew.
    fn operate(&mut self) {
        self.hands = true;
        let name = ROWS[self.rng.below(ROWS.len())].0;
        let server = ExternalRef::Name(name.to_string());
        match self.rng.below(7) {
            0 => {
                self.shadows.remove("secretive");
                self.put_secret();
            }
            1 => {
                self.shadows.remove("secretive");
                self.ask(ProjectAsk::SecretDelete { name: "KEY".to_string() }, Question::Other);
            }
            2 | 3 => {
                self.shadows.remove(name);
                let enabled = json!({ "enabled": self.rng.one_in(2) });
                let change = Box::new(Change { fields: enabled.as_object().unwrap().clone() });
                self.ask(ProjectAsk::Patch { server, change }, Question::Other);
            }
            4 => {
                self.shadows.remove(name);
                self.ask(ProjectAsk::Disconnect { server }, Question::Other);
            }
            5 => {
                self.shadows.clear();
                self.ask(ProjectAsk::Unload, Question::Other);
            }
            _ => self.ask(ProjectAsk::Connect { server }, Question::Other),
        }
        self.hands = false;
    }

    // --- links ------------------------------------------------------------------------------------------------------

    fn link_step(&mut self) {
        let all: Vec<InstanceId> = self.links.keys().copied().collect();
        if all.is_empty() {
            return;
        }
        let instance = all[self.rng.below(all.len())];
        let link = self.links.get_mut(&instance).unwrap();
        let well = self.settling;
        if !link.open {
            return match self.rng.below(8) {
                0..=2 if !well => self.lost(instance, LinkFaultKind::Refused),
                3 if !well => {}
                _ => {
                    link.open = true;
                    self.input(Input::Connected { instance });
                }
            };
        }
        if link.silent && !well {
            link.silent = !self.rng.one_in(6);
            return;
        }
        match self.rng.below(24) {
            0 if !well => self.lost(instance, LinkFaultKind::Closed),
            1 if !well => link.silent = true,
            2 if !well => self.undelivered(instance),
            3 if !well && link.up => {
                self.says(instance, &json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}));
            }
            _ => self.answers(instance),
        }
    }

    fn lost(&mut self, instance: InstanceId, kind: LinkFaultKind) {
        let link = self.links.remove(&instance).unwrap();
        self.ended(&link);
        let why = LinkFault { kind, message: "so it is".to_string(), retry_after_ms: None };
        self.input(Input::LinkLost { instance, why });
    }

    /// For the shadow: an attempt has failed, or a link that was up is gone.
    fn ended(&mut self, link: &Link) {
        let (_, _, breaker, shared) = rules(link.server);
        let now_ms = self.now.mono_ms;
        let shadow = self.shadows.entry(link.server).or_default();
        if link.up {
            *shadow = Shadow::default();
            return;
        }
        shadow.failed += 1;
        shadow.earliest_ms = match breaker {
            Some((attempts, cooldown_ms)) if shadow.failed >= *attempts as usize => now_ms + cooldown_ms,
            _ if *shared => now_ms + LINK_SCHEDULE_MS[shadow.failed.min(LINK_SCHEDULE_MS.len() - 1)],
            _ => 0,
        };
    }

    fn undelivered(&mut self, instance: InstanceId) {
        let link = self.links.get_mut(&instance).unwrap();
        let Some(at) = link.asked.iter().position(|(_, request)| request["method"] == "tools/call") else { return };
        let (id, request) = link.asked.remove(at);
        let fault = Fault::new(Code::UpstreamUnavailable, "it could not be delivered");
        let outcome = if self.rng.one_in(2) { Outcome::NotSent } else { Outcome::SentUnknown };
        if outcome == Outcome::NotSent {
            self.written.remove(&request["params"]["arguments"]["token"].as_u64().unwrap());
        }
        let call = stdiod::ids::CallId(id);
        self.input(Input::Undelivered { instance, call, fault: fault.outcome(outcome) });
    }

    fn answers(&mut self, instance: InstanceId) {
        let link = self.links.get_mut(&instance).unwrap();
        if link.asked.is_empty() {
            return;
        }
        let at = self.rng.below(link.asked.len());
        let (id, request) = link.asked.remove(at);
        let method = request["method"].as_str().expect("a request").to_string();
        let refuses = !self.settling && self.rng.one_in(10);
        let error = |code: i64| json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": "no"}});
        let result = |result: Value| json!({"jsonrpc": "2.0", "id": id, "result": result});
        let reply = match (method.as_str(), refuses) {
            ("initialize", true) => error(-32000),
            ("initialize", false) => {
                link.up = true;
                self.shadows.remove(link.server);
                let info = json!({"name": link.server, "version": "1"});
                result(json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}))
            }
            ("server/discover", _) => error(-32601),
            ("tools/list", _) => result(json!({"tools": [{"name": "t"}, {"name": link.server}]})),
            ("tools/call", true) => error(-32602),
            ("tools/call", false) => result(json!({"token": request["params"]["arguments"]["token"]})),
            _ => result(json!({})),
        };
        self.says(instance, &reply);
    }

    fn says(&mut self, instance: InstanceId, message: &Value) {
        let text = message.to_string();
        self.input(Input::LineRead { instance, line: Line::Whole(text.as_bytes()) });
    }

    // --- what the core does -----------------------------------------------------------------------------------------

    fn perform(&mut self) {
        while let Some(output) = self.core.poll_output() {
            for byte in format!("{} {output:?}", self.now.mono_ms).bytes() {
                self.trace = (self.trace ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
            match output {
                Output::Answer { conn, answer } => self.answered(conn, answer),
                Output::Connect { instance, endpoint, .. } => self.connects(instance, &endpoint.url),
                Output::Discard { instance } => self.discarded(instance),
                Output::Write { instance, bytes, .. } => self.writes(instance, &bytes),
                Output::Reply { .. } => panic!("no server has asked anything"),
                Output::Store { seq, op } => self.store(seq, *op),
                Output::KeepDecisions { version, .. } => {
                    self.core.handle(Input::DecisionsKept { version, outcome: Ok(()) }, self.now);
                }
                Output::Event { .. } | Output::EndStream { .. } | Output::News { .. } => {
                    panic!("nobody here takes a stream")
                }
                Output::Launch { .. } | Output::Pull { .. } | Output::Signal { .. } => panic!("nothing is hosted"),
                Output::Negotiated { .. }
                | Output::MirrorParams { .. }
                | Output::AbandonPull { .. }
                | Output::Knock { .. }
                | Output::CloseStdin { .. }
                | Output::Doze { .. }
                | Output::RemoveVolumes { .. }
                | Output::LogKeep { .. }
                | Output::LogRestore { .. }
                | Output::LogRemove { .. }
                | Output::Exit => {}
            }
        }
    }

    fn connects(&mut self, instance: InstanceId, url: &str) {
        let name = ROWS.iter().map(|row| row.0).find(|name| url.contains(&format!("//{name}."))).expect("one of ours");
        assert!(self.links.values().all(|link| link.server != name), "{name} is connected twice");
        let shadow = self.shadows.entry(name).or_default();
        let now_ms = self.now.mono_ms;
        assert!(now_ms >= shadow.earliest_ms, "{name} is tried at {now_ms}, not before {}", shadow.earliest_ms);
        let link = Link { server: name, open: false, up: false, silent: false, asked: Vec::new() };
        self.links.insert(instance, link);
    }

    fn discarded(&mut self, instance: InstanceId) {
        let Some(link) = self.links.remove(&instance) else { return };
        match self.hands {
            true => _ = self.shadows.remove(link.server),
            false => {
                // Whoever is slow with a call is asked whether it lives, by both of these, before it is given up.
                let is_asked = |method: &str| link.asked.iter().any(|(_, request)| request["method"] == method);
                let is_silent = is_asked("ping") && is_asked("tools/list");
                assert!(!link.up || is_silent, "a link that was up is ended for nothing: {link:?}");
                self.ended(&link);
            }
        }
    }

    fn writes(&mut self, instance: InstanceId, bytes: &[u8]) {
        for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let message: Value = serde_json::from_slice(line).expect("JSON");
            if message["method"] == "tools/call" {
                let token = message["params"]["arguments"]["token"].as_u64().expect("every call has one");
                assert!(self.written.insert(token), "the call {token} is sent twice");
            }
            let Some(link) = self.links.get_mut(&instance) else { continue };
            assert!(link.open, "written before it is connected");
            match (message.get("id").and_then(Value::as_u64), message["method"].as_str()) {
                (Some(id), Some(_)) => link.asked.push((id, message)),
                (_, Some("notifications/cancelled")) => {
                    let id = message["params"]["requestId"].as_u64();
                    link.asked.retain(|(other, _)| Some(*other) != id);
                }
                _ => {}
            }
        }
    }

    fn store(&mut self, seq: stdiod::ids::StoreSeq, op: StoreOp) {
        let mut outcome = StoreOutcome::Committed;
        if let StoreOp::InsertCalls(calls) = &op {
            match !self.settling && self.rng.one_in(5) {
                true => outcome = StoreOutcome::Unknown("the connection broke".to_string()),
                false => self.records.extend(calls.iter().map(|call| call.id.as_u128())),
            }
        }
        self.core.handle(Input::StoreDone { seq, outcome }, self.now);
    }

    fn answered(&mut self, conn: ConnId, answer: Answer) {
        let question = self.questions.remove(&conn).expect("an answer to nobody, or a second one");
        if let Answer::Message { session: Some(session), .. } = &answer {
            self.session = Some(*session);
        }
        let Question::Call(token) = question else { return };
        let said = format!("{answer:?}");
        let (got, outcome) = match answer {
            Answer::ToolResult { result, .. } => (Some(serde_json::from_slice::<Value>(&result).unwrap()), None),
            Answer::McpResult { result, .. } => (Some(serde_json::from_slice::<Value>(&result).unwrap()), None),
            Answer::ServerError { .. } => return,
            Answer::Refused(fault) => (None, fault.data.get("outcome").cloned()),
            Answer::Message { body, .. } => {
                let message: Value = serde_json::from_slice(&body).unwrap();
                match message.get("result") {
                    Some(result) => (Some(result.clone()), None),
                    // The server's own words, or a name that nobody has.
                    None if message["error"]["code"] == -32602 => return,
                    None => (None, message["error"]["data"].get("outcome").cloned()),
                }
            }
            other => panic!("a call was answered with {other:?}"),
        };
        match got {
            Some(result) => assert_eq!(result["token"], token, "somebody else's answer"),
            None => {
                let outcome =
                    outcome.unwrap_or_else(|| panic!("the call {token} does not say whether it was sent: {said}"));
                let was_sent = outcome == "sent_unknown";
                assert_eq!(was_sent, self.written.contains(&token), "the call {token}: {said}");
            }
        }
    }

    /// With nothing in the way everything comes to its end.
    fn settle(&mut self) {
        self.settling = true;
        for _ in 0..400 {
            for _ in 0..8 {
                self.link_step();
            }
            self.pass(1_000);
        }
        assert!(self.questions.is_empty(), "some wait for ever: {:?}", self.questions);
        assert_eq!(self.records.len() as u64, self.tokens, "each call leaves one record");
        assert!(self.core.is_idle(), "something is still under way");
    }
}

fn seeds() -> std::ops::Range<u64> {
    match std::env::var("SIM_SEED") {
        Ok(seed) => {
            let seed = seed.parse().expect("SIM_SEED is a number");
            seed..seed + 1
        }
        Err(_) => 0..std::env::var("SIM_LINK_SEEDS").map_or(100, |n| n.parse().expect("SIM_LINK_SEEDS is a number")),
    }
}

#[test]
fn whatever_links_do_each_call_ends_once_is_sent_once_and_is_recorded_once() {
    for seed in seeds() {
        if std::panic::catch_unwind(|| World::new(seed).run()).is_err() {
            panic!("seed {seed} failed; SIM_SEED={seed} cargo test --test sim_links replays it");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_world() {
    assert_eq!(World::new(7).run(), World::new(7).run());
    assert_ne!(World::new(7).run(), World::new(8).run());
}
