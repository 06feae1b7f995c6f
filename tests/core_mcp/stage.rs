//! The core on an empty stage: a store that takes everything, sandboxes that start at once, children that do their
//! handshake by themselves and leave the rest to the test, and a clock that the test moves.

use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use stdiod::api::request::{Ask, ExternalRef, McpAsk, ProjectAsk, ServerRef, Stateless, Takes};
use stdiod::api::response::{Answer, StreamEvent};
use stdiod::core::contract::{Input, Now, Output};
use stdiod::core::{Core, Settings};
use stdiod::ids::{ConnId, InstanceId, PullId, SessionId};
use stdiod::model::endpoint::{LinkFault, LinkFaultKind};
use stdiod::model::external::ProjectId;
use stdiod::model::instance::{Exit, ExitCause, LaunchFault, LaunchFaultKind, StopSignal};
use stdiod::model::principal::Principal;
use stdiod::model::records::{Snapshot, StoreOp, StoreOutcome};
use stdiod::wire::json::Json;
use stdiod::wire::jsonrpc;
use stdiod::wire::lines::Line;

pub const STATELESS: &str = "2026-07-28";

/// What a child answers by itself.
#[derive(Clone, Copy, PartialEq)]
pub enum Child {
    Older,
    /// As above, but silent when it is asked for the newer era.
    Reticent,
    /// As the first, but with no resources in its list.
    Bare,
    NewerOnly,
    /// It answers nothing.
    Silent,
}

/// How the link to an external server comes up.
#[derive(Clone, Copy, PartialEq)]
pub enum Reach {
    Refused,
    /// The test says what becomes of it.
    Slow,
}

pub struct Stage {
    core: Core,
    now: Now,
    conns: u64,
    /// Whose sessions are opened and used.
    pub who: Principal,
    children: BTreeMap<String, Child>,
    /// The running instances, and what each was written and has not answered.
    pub running: BTreeMap<InstanceId, String>,
    /// Nothing can be launched.
    pub is_broken: bool,
    /// Launches are left to the test.
    pub is_slow: bool,
    /// What the store says to every write.
    pub stored: StoreOutcome,
    /// Every write that the store was asked for.
    pub ops: Vec<StoreOp>,
    /// How links to the external servers of these names come up, if not at once.
    pub reach: BTreeMap<String, Reach>,
    /// The names of those that were connected to, in order.
    pub connects: Vec<String>,
    /// Images that were asked for.
    pub pulls: Vec<PullId>,
    /// Those that only a kill ends.
    pub deaf: BTreeSet<InstanceId>,
    pub written: Vec<(InstanceId, Value)>,
    pub dozing: BTreeSet<InstanceId>,
    /// What children answer to `tools/list`; none: one tool.
    pub tools: Option<Value>,
    answers: BTreeMap<ConnId, Answer>,
    events: BTreeMap<ConnId, Vec<Value>>,
    ended: BTreeSet<ConnId>,
}

impl Stage {
    pub fn new() -> Stage {
        Stage::booted(Snapshot::default())
    }

    /// With what an earlier daemon has stored.
    pub fn booted(snapshot: Snapshot) -> Stage {
        let core = Core::new(Settings {
            default_provider: "crun".to_string(),
            providers: vec!["crun".to_string()],
            hosting: true,
            admin_token_hash: [7; 32],
            separator: "__".to_string(),
            record_arguments: true,
            records_keep_days: 30,
            seed: [1; 32],
            ..Settings::default()
        });
        let mut stage = Stage {
            core,
            now: Now { mono_ms: 1, unix_ms: 1_700_000_000_000 },
            conns: 0,
            who: someone(),
            children: BTreeMap::new(),
            running: BTreeMap::new(),
            is_broken: false,
            is_slow: false,
            stored: StoreOutcome::Committed,
            ops: Vec::new(),
            reach: BTreeMap::new(),
            connects: Vec::new(),
            pulls: Vec::new(),
            deaf: BTreeSet::new(),
            written: Vec::new(),
            dozing: BTreeSet::new(),
            tools: None,
            answers: BTreeMap::new(),
            events: BTreeMap::new(),
            ended: BTreeSet::new(),
        };
        stage.handle(Input::Swept { providers: vec!["crun".to_string()], unusable: Vec::new(), polling: Vec::new() });
        stage.handle(Input::StoreOpened { snapshot: Some(Box::new(snapshot)) });
        stage
    }

    pub fn register(&mut self, name: &str, child: Child, more: Value) {
        let mut definition = json!({"name": name, "rootfs": "host", "cmd": ["x"]});
        definition.as_object_mut().unwrap().extend(more.as_object().expect("fields").clone());
        let conn = self.begin_register(name, child, &definition);
        assert!(matches!(self.answers.remove(&conn), Some(Answer::Registered(_))), "{name} is ready");
    }

    /// Its answer may come later.
    pub fn begin_register(&mut self, name: &str, child: Child, definition: &Value) -> ConnId {
        self.children.insert(name.to_string(), child);
        let definition =
            stdiod::api::definition::fields::parse(definition.to_string().as_bytes()).expect("a valid definition");
        self.ask(&someone(), Ask::Register { definition: Box::new(definition), wait: true })
    }

    pub fn delete(&mut self, name: &str) {
        let conn = self.ask(&someone(), Ask::Delete { server: named(name), volumes: false });
        assert_eq!(self.answers.remove(&conn), Some(Answer::Deleted));
    }

    // --- projects ---

    pub fn of_project(&mut self, who: &Principal, project: &str, ask: ProjectAsk<'_>) -> ConnId {
        self.ask(who, Ask::Project { project: ProjectId::new(project).unwrap(), ask })
    }

    /// An external server whose address has its name in it.
    pub fn external(&mut self, project: &str, name: &str, child: Child, more: Value) {
        self.children.insert(name.to_string(), child);
        let mut given = json!({"name": name, "transport": "http", "url": format!("http://{name}.test/mcp")});
        given.as_object_mut().unwrap().extend(more.as_object().expect("fields").clone());
        let spec = stdiod::api::projects::fields::from_fields(given.as_object().unwrap().clone()).expect("a valid row");
        let conn = self.of_project(&someone(), project, ProjectAsk::Create { spec: Box::new(spec) });
        let answer = self.answers.remove(&conn);
        assert!(matches!(answer, Some(Answer::ExternalCreated(_))), "{answer:?}");
    }

    pub fn external_status(&mut self, project: &str, name: &str) -> &'static str {
        let server = ExternalRef::Name(name.to_string());
        let conn = self.of_project(&someone(), project, ProjectAsk::Server { server });
        match self.answers.remove(&conn) {
            Some(Answer::External(view)) => view.status.wire(),
            other => panic!("{other:?}"),
        }
    }

    /// The instance of a server of that name that runs.
    pub fn instance_of(&self, name: &str) -> InstanceId {
        let found = self.running.iter().find(|(_, of)| *of == name);
        *found.unwrap_or_else(|| panic!("{name} does not run: {:?}", self.running)).0
    }

    pub fn project_mcp(&mut self, who: &Principal, project: &str, ask: McpAsk<'_>) -> ConnId {
        self.of_project(who, project, ProjectAsk::Mcp(ask))
    }

    pub fn project_session(&mut self, project: &str) -> SessionId {
        let info = json!({"name": "test", "version": "1"});
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}}, "clientInfo": info});
        let conn = self.project_post(project, None, &request(0, "initialize", params));
        match self.answers.remove(&conn) {
            Some(Answer::Message { session: Some(session), .. }) => session,
            other => panic!("{other:?}"),
        }
    }

    pub fn project_post(&mut self, project: &str, session: Option<SessionId>, message: &Value) -> ConnId {
        let text = message.to_string();
        let messages = vec![jsonrpc::parse(text.as_bytes()).expect("a message")];
        let ask = McpAsk::Post { session, takes: Takes::Either, batch: false, messages };
        self.project_mcp(&self.who.clone(), project, ask)
    }

    /// A request of the version without sessions.
    pub fn project_stateless(&mut self, project: &str, method: &str, params: Value) -> ConnId {
        let capabilities = json!({"elicitation": {}}).to_string();
        let (params, id) = (params.to_string(), "1".to_string());
        let request = Stateless {
            id: serde_json::from_str(&id).unwrap(),
            method: method.into(),
            params: serde_json::from_str(&params).unwrap(),
            capabilities: serde_json::from_str(&capabilities).unwrap(),
            log_level: None,
            param_headers: Vec::new(),
        };
        let ask = McpAsk::Stateless { request, takes: Takes::Either };
        self.project_mcp(&someone(), project, ask)
    }

    // --- clients ---

    pub fn ask(&mut self, who: &Principal, ask: Ask<'_>) -> ConnId {
        self.conns += 1;
        let conn = ConnId(self.conns);
        self.handle(Input::Asked { conn, who: who.clone(), ask });
        conn
    }

    /// Opens a session; none: at the endpoint of all servers.
    /// A call of a REST client.
    pub fn call(&mut self, who: &Principal, name: &str, timeout_ms: Option<u64>) -> ConnId {
        let (method, params) = (Json::of(r#""tools/call""#).unwrap(), Json::of(r#"{"name":"t"}"#).unwrap());
        self.ask(who, Ask::Call { server: named(name), method, params: Some(params), timeout_ms })
    }

    pub fn session(&mut self, server: Option<&str>, capabilities: Value) -> SessionId {
        let (session, answer) = self.try_session(server, capabilities);
        session.unwrap_or_else(|| panic!("{answer}"))
    }

    pub fn try_session(&mut self, server: Option<&str>, capabilities: Value) -> (Option<SessionId>, Value) {
        let info = json!({"name": "test", "version": "1"});
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": info});
        let conn = self.post_as(server, None, &request(0, "initialize", params), Takes::Either);
        match self.answers.remove(&conn) {
            Some(Answer::Message { session, body, .. }) => (session, serde_json::from_slice(&body).expect("JSON")),
            other => panic!("{other:?}"),
        }
    }

    pub fn post(&mut self, server: Option<&str>, session: SessionId, message: &Value) -> ConnId {
        self.post_as(server, Some(session), message, Takes::Either)
    }

    /// Of a client that takes nothing but streams.
    pub fn post_streamed(&mut self, server: Option<&str>, session: SessionId, message: &Value) -> ConnId {
        self.post_as(server, Some(session), message, Takes::Stream)
    }

    fn post_as(&mut self, server: Option<&str>, session: Option<SessionId>, message: &Value, takes: Takes) -> ConnId {
        let text = message.to_string();
        let messages = vec![jsonrpc::parse(text.as_bytes()).expect("a message")];
        let ask = McpAsk::Post { session, takes, batch: false, messages };
        self.ask(&self.who.clone(), Ask::Mcp { server: server.map(named), ask })
    }

    pub fn listen(&mut self, server: Option<&str>, session: SessionId) -> ConnId {
        let ask = McpAsk::Listen { session, after: None };
        self.ask(&self.who.clone(), Ask::Mcp { server: server.map(named), ask })
    }

    pub fn end(&mut self, server: Option<&str>, session: SessionId) {
        let conn = self.ask(&someone(), Ask::Mcp { server: server.map(named), ask: McpAsk::End { session } });
        assert_eq!(self.answers.remove(&conn), Some(Answer::SessionEnded));
    }

    /// A request of the version without sessions.
    pub fn stateless(&mut self, who: &Principal, server: &str, method: &str, params: Value) -> ConnId {
        let capabilities = json!({"elicitation": {}}).to_string();
        let (params, id) = (params.to_string(), "1".to_string());
        let request = Stateless {
            id: serde_json::from_str(&id).unwrap(),
            method: method.into(),
            params: serde_json::from_str(&params).unwrap(),
            capabilities: serde_json::from_str(&capabilities).unwrap(),
            log_level: None,
            param_headers: Vec::new(),
        };
        let ask = McpAsk::Stateless { request, takes: Takes::Either };
        self.ask(who, Ask::Mcp { server: Some(named(server)), ask })
    }

    /// The message that answers a POST, plain or at the end of its stream.
    pub fn answer(&mut self, conn: ConnId) -> Value {
        match self.answers.remove(&conn) {
            Some(Answer::Message { body, .. }) => serde_json::from_slice(&body).expect("JSON"),
            Some(Answer::McpResult { before, result }) => {
                serde_json::from_slice(&[before.as_bytes(), &result, b"}"].concat()).expect("JSON")
            }
            Some(Answer::McpList { before, items, behind }) => {
                let items: Vec<&[u8]> = items.iter().map(|part| &part[..]).collect();
                let message = [before.as_bytes(), &items.concat(), behind.as_bytes()].concat();
                serde_json::from_slice(&message).expect("JSON")
            }
            Some(Answer::Stream { .. }) => {
                let last = self.events.get_mut(&conn).and_then(Vec::pop).expect("an answer");
                assert!(self.ended.contains(&conn), "{last} ends the stream");
                last
            }
            Some(Answer::Result(result)) => serde_json::from_slice(&result).expect("JSON"),
            other => panic!("{other:?}"),
        }
    }

    /// No more will come on that stream.
    pub fn has_ended(&self, conn: ConnId) -> bool {
        self.ended.contains(&conn)
    }

    pub fn is_answered(&self, conn: ConnId) -> bool {
        self.answers.contains_key(&conn)
    }

    /// Its answer is made of what others get, too.
    pub fn is_shared(&self, conn: ConnId) -> bool {
        matches!(self.answers.get(&conn), Some(Answer::McpList { .. }))
    }

    /// What has come on an open stream so far.
    pub fn heard(&mut self, conn: ConnId) -> Vec<Value> {
        self.events.remove(&conn).unwrap_or_default()
    }

    // --- children ---

    /// The one request of that method that some instance has not answered.
    pub fn asked(&mut self, method: &str) -> (InstanceId, Value) {
        let at =
            self.written.iter().position(|(_, message)| message["method"] == method && message.get("id").is_some());
        let at = at.unwrap_or_else(|| panic!("no {method} in {:?}", self.written));
        self.written.remove(at)
    }

    pub fn say(&mut self, instance: InstanceId, message: &Value) {
        let text = message.to_string();
        self.handle(Input::LineRead { instance, line: Line::Whole(text.as_bytes()) });
    }

    pub fn reply(&mut self, to: &(InstanceId, Value), result: Value) {
        self.say(to.0, &json!({"jsonrpc": "2.0", "id": to.1["id"], "result": result}));
    }

    pub fn pass(&mut self, ms: u64) {
        self.now.mono_ms += ms;
        self.now.unix_ms += ms;
        self.core.tick(self.now);
        self.perform();
    }

    pub fn handle(&mut self, input: Input<'_>) {
        self.core.handle(input, self.now);
        self.perform();
    }

    fn perform(&mut self) {
        while let Some(output) = self.core.poll_output() {
            self.thaw(&output);
            match output {
                Output::Doze { instance } => _ = self.dozing.insert(instance),
                Output::Answer { conn, answer } => {
                    if let Answer::Stream { events, .. } = &answer {
                        events.iter().for_each(|event| self.event(conn, event));
                    }
                    self.answers.insert(conn, answer);
                }
                Output::Event { conn, event } => self.event(conn, &event),
                Output::EndStream { conn } => _ = self.ended.insert(conn),
                Output::Launch { instance, .. } if self.is_broken => {
                    let why = LaunchFault { kind: LaunchFaultKind::Runtime, message: "no such file".to_string() };
                    self.core.handle(Input::LaunchFailed { instance, why }, self.now);
                }
                Output::Launch { instance, definition, .. } => {
                    self.running.insert(instance, definition.name.clone());
                    if !self.is_slow {
                        self.core.handle(Input::Launched { instance }, self.now);
                    }
                }
                Output::Write { instance, bytes, .. } | Output::Reply { instance, bytes } => {
                    for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                        let message: Value = serde_json::from_slice(line).expect("JSON");
                        self.take(instance, message);
                    }
                }
                Output::Signal { instance, signal: StopSignal::Term } if self.deaf.contains(&instance) => {}
                Output::Signal { instance, signal: StopSignal::Term | StopSignal::Kill } => self.exit(instance),
                Output::Connect { instance, endpoint, .. } => self.connect(instance, &endpoint.url),
                Output::Store { seq, op } => {
                    self.ops.push(*op);
                    self.core.handle(Input::StoreDone { seq, outcome: self.stored.clone() }, self.now);
                }
                Output::RemoveVolumes { server, .. } => {
                    self.core.handle(Input::VolumesRemoved { server, outcome: Ok(()) }, self.now);
                }
                Output::KeepDecisions { version, .. } => {
                    self.core.handle(Input::DecisionsKept { version, outcome: Ok(()) }, self.now);
                }
                Output::Pull { pull, .. } => self.pulls.push(pull),
                Output::Discard { instance } => _ = self.running.remove(&instance),
                Output::News { .. }
                | Output::AbandonPull { .. }
                | Output::Negotiated { .. }
                | Output::MirrorParams { .. }
                | Output::Knock { .. }
                | Output::CloseStdin { .. }
                | Output::LogKeep { .. }
                | Output::LogRestore { .. }
                | Output::LogRemove { .. }
                | Output::Exit => {}
            }
        }
    }

    /// As the shell does, before anything is done with an instance that dozes.
    fn thaw(&mut self, output: &Output) {
        let (Output::Write { instance, .. }
        | Output::Reply { instance, .. }
        | Output::CloseStdin { instance }
        | Output::Signal { instance, .. }) = output
        else {
            return;
        };
        if self.dozing.remove(instance) {
            self.core.handle(Input::Woken { instance: *instance, took_ms: Some(0) }, self.now);
        }
    }

    /// External servers of this stage have their name in their address.
    fn connect(&mut self, instance: InstanceId, url: &str) {
        let name = url.trim_start_matches("http://").split(['/', '.']).next().unwrap().to_string();
        self.connects.push(name.clone());
        match self.reach.get(&name) {
            Some(Reach::Refused) => {
                let why = LinkFault {
                    kind: LinkFaultKind::Refused,
                    message: "connection refused".to_string(),
                    retry_after_ms: None,
                };
                self.core.handle(Input::LinkLost { instance, why }, self.now);
            }
            Some(Reach::Slow) => _ = self.running.insert(instance, name),
            None => {
                self.running.insert(instance, name);
                self.core.handle(Input::Connected { instance }, self.now);
            }
        }
    }

    /// It has ended by itself, or because it was told to.
    fn exit(&mut self, instance: InstanceId) {
        if self.running.remove(&instance).is_some() {
            let exit = Exit { cause: ExitCause::Code(0), oom: false };
            self.core.handle(Input::Exited { instance, exit }, self.now);
        }
    }

    pub fn exits(&mut self, instance: InstanceId) {
        self.exit(instance);
        self.perform();
    }

    /// What a client was answered, if it was.
    pub fn answered(&mut self, conn: ConnId) -> Option<Answer> {
        self.answers.remove(&conn)
    }

    fn event(&mut self, conn: ConnId, event: &StreamEvent) {
        if let StreamEvent::Message { data, .. } = event {
            self.events.entry(conn).or_default().push(serde_json::from_slice(data).expect("JSON"));
        }
    }

    /// A child reads a line. It must not see what its era does not know.
    fn take(&mut self, instance: InstanceId, message: Value) {
        let name = self.running.get(&instance).cloned().unwrap_or_default();
        let newer = self.children.get(&name) == Some(&Child::NewerOnly);
        if self.children.get(&name) == Some(&Child::Silent) {
            return;
        }
        let capabilities = json!({"tools": {}, "resources": {"subscribe": true}, "logging": {}});
        let result = match (message["method"].as_str(), newer) {
            (Some("initialize"), true) => Err(-32022),
            (Some("server/discover"), _) if self.children.get(&name) == Some(&Child::Reticent) => return,
            (Some("server/discover"), false) => Err(-32601),
            (Some("initialize"), false) => {
                let info = json!({"name": name, "version": "1"});
                Ok(json!({"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}))
            }
            (Some("server/discover"), true) => {
                let meta = json!({"io.modelcontextprotocol/serverInfo": {"name": name, "version": "1"}});
                let versions = json!([STATELESS]);
                Ok(
                    json!({"resultType": "complete", "supportedVersions": versions, "capabilities": capabilities, "_meta": meta}),
                )
            }
            (Some("tools/list"), _) => Ok(self.tools.clone().unwrap_or_else(|| json!({"tools": [{"name": "t"}]}))),
            (Some("resources/list"), _) if self.children.get(&name) == Some(&Child::Bare) => {
                Ok(json!({"resources": []}))
            }
            (Some("resources/list"), _) => Ok(json!({"resources": [{"uri": "x://a", "name": "a"}]})),
            (Some("resources/templates/list"), _) => Ok(json!({"resourceTemplates": []})),
            (_, _) => {
                let version = &message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"];
                let expected = if newer { json!(STATELESS) } else { Value::Null };
                if message.get("id").is_some() && message.get("method").is_some() {
                    assert_eq!(*version, expected, "{name} is told the era: {message}");
                }
                return self.written.push((instance, message));
            }
        };
        let text = match result {
            Ok(result) => json!({"jsonrpc": "2.0", "id": message["id"], "result": result}),
            Err(code) => json!({"jsonrpc": "2.0", "id": message["id"], "error": {"code": code, "message": "no"}}),
        };
        let text = text.to_string();
        self.core.handle(Input::LineRead { instance, line: Line::Whole(text.as_bytes()) }, self.now);
    }
}

pub fn someone() -> Principal {
    Principal::anonymous()
}

pub fn guest() -> Principal {
    Principal { name: "guest".into(), ..someone() }
}

pub fn named(name: &str) -> ServerRef {
    ServerRef::Name(name.to_string())
}

pub fn request(id: u64, method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}
