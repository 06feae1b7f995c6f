//! The readers of the core: what a server says, asked and unasked, and what clients say in each era, in every place where a
//! part of a message is looked into. Through the core's own door, so that what it keeps, rewrites and passes on counts too.

use crate::inputs::{Make, VALUES, random, repeated};
use crate::meter::{LARGEST, MIB, Reader};
use std::hint::black_box;
use stdiod::api::request::{Ask, McpAsk, ServerRef, Stateless, Takes};
use stdiod::api::response::Answer;
use stdiod::core::clients::log_ring::{LogRing, printable};
use stdiod::core::contract::{Input, Now, Output};
use stdiod::core::{Core, Settings};
use stdiod::ids::{ConnId, InstanceId, SessionId};
use stdiod::model::principal::Principal;
use stdiod::model::records::{Snapshot, StoreOutcome};
use stdiod::wire::json::Json;
use stdiod::wire::jsonrpc::{self, Message};
use stdiod::wire::lines::Line;

// --- a core with one server ---------------------------------------------------------------------------------------------

#[derive(Clone, Copy, PartialEq)]
enum Era {
    Sessions,
    /// The server knows only the version without sessions.
    Stateless,
}

struct Stage {
    core: Core,
    now: Now,
    conns: u64,
    era: Era,
    /// The one that was written to last: it is the one that speaks.
    instance: InstanceId,
    session: Option<SessionId>,
    /// Requests that the server was written and has not answered: method and id.
    asked: Vec<(String, String)>,
    /// The state of a call that waits for its client's input.
    state: String,
    /// What the server says of itself, and what its tools are.
    advertised: String,
    tools: String,
}

const ID: u64 = 7;

impl Stage {
    /// A server that is not started yet.
    fn empty(era: Era) -> Stage {
        let core = Core::new(Settings {
            default_provider: "crun".to_string(),
            providers: vec!["crun".to_string()],
            hosting: true,
            admin_token_hash: [7; 32],
            separator: "__".to_string(),
            seed: [1; 32],
            ..Settings::default()
        });
        let mut stage = Stage {
            core,
            now: Now { mono_ms: 1, unix_ms: 1_700_000_000_000 },
            conns: 0,
            era,
            instance: InstanceId(0),
            session: None,
            asked: Vec::new(),
            state: String::new(),
            advertised: r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"prompts":{},"resources":{"subscribe":true},"logging":{}},"serverInfo":{"name":"s","version":"1"}}"#.to_string(),
            tools: r#"{"tools":[{"name":"t","inputSchema":{"properties":{"p":{"x-mcp-header":"P"}}}}]}"#.to_string(),
        };
        stage.handle(Input::Swept { providers: vec!["crun".to_string()], unusable: Vec::new(), polling: Vec::new() });
        let snapshot = Box::new(Snapshot::default());
        stage.handle(Input::StoreOpened { snapshot: Some(snapshot) });
        stage
    }

    fn start(&mut self) {
        let definition = br#"{"name":"s","rootfs":"host","cmd":["x"],"max_in_flight":8}"#;
        let definition = stdiod::api::definition::fields::parse(definition).expect("a definition");
        self.ask(Ask::Register { definition: Box::new(definition), wait: true });
    }

    fn new(era: Era) -> Stage {
        let mut stage = Stage::empty(era);
        stage.start();
        stage
    }

    fn with_session(era: Era, server: Option<&str>) -> Stage {
        let mut stage = Stage::new(era);
        let hello = r#"{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{},"sampling":{},"roots":{}},"clientInfo":{}}"#;
        stage.post(server, &format!(r#"{{"id":0,"method":"initialize","params":{hello}}}"#));
        assert!(stage.session.is_some(), "a session is open");
        stage
    }

    /// A call of a client that the server is at work on.
    fn with_call(era: Era, method: &str) -> Stage {
        let mut stage = Stage::with_session(era, Some("s"));
        let params = r#"{"name":"t","uri":"x://a","_meta":{"progressToken":1}}"#;
        stage.post(Some("s"), &format!(r#"{{"id":{ID},"method":"{method}","params":{params}}}"#));
        assert!(stage.asked.iter().any(|(asked, _)| asked == method), "{method} is at the server");
        stage
    }

    fn ask(&mut self, ask: Ask<'_>) {
        self.conns += 1;
        self.handle(Input::Asked { conn: ConnId(self.conns), who: Principal::anonymous(), ask });
    }

    fn post(&mut self, server: Option<&str>, text: &str) {
        let Some(message) = jsonrpc::parse(text.as_bytes()) else { return };
        let ask = McpAsk::Post { session: self.session, takes: Takes::Either, batch: false, messages: vec![message] };
        self.ask(Ask::Mcp { server: server.map(|name| ServerRef::Name(name.to_string())), ask });
    }

    fn stateless(&mut self, method: &str, params: &str) {
        let Ok(params) = Json::of(params) else { return };
        let request = Stateless {
            id: Json::of("1").expect("a number"),
            method: method.into(),
            params,
            capabilities: Json::of(r#"{"elicitation":{}}"#).expect("an object"),
            log_level: None,
            param_headers: vec![("p".to_string(), "x".to_string())],
        };
        let ask = McpAsk::Stateless { request, takes: Takes::Either };
        self.ask(Ask::Mcp { server: Some(ServerRef::Name("s".to_string())), ask });
    }

    fn rest(&mut self, params: &str) {
        let (Ok(method), Ok(params)) = (Json::of("\"tools/call\""), Json::of(params)) else { return };
        let server = ServerRef::Name("s".to_string());
        self.ask(Ask::Call { server, method, params: Some(params), timeout_ms: None });
    }

    fn say(&mut self, line: &str) {
        self.handle(Input::LineRead { instance: self.instance, line: Line::Whole(line.as_bytes()) });
    }

    /// The server answers the last request of that method; `body` is `"result":…` or `"error":…`.
    fn reply(&mut self, method: &str, body: &str) {
        let at = self.asked.iter().rposition(|(asked, _)| asked == method);
        let (_, id) = self.asked.remove(at.unwrap_or_else(|| panic!("no {method} in {:?}", self.asked)));
        self.say(&[r#"{"jsonrpc":"2.0","id":"#, &id, ",", body, "}"].concat());
    }

    fn handle(&mut self, input: Input<'_>) {
        self.core.handle(input, self.now);
        while let Some(output) = self.core.poll_output() {
            self.perform(output);
        }
    }

    fn perform(&mut self, output: Output) {
        if let Output::Launch { instance, .. } = output {
            self.core.handle(Input::Launched { instance }, self.now);
        } else if let Output::Store { seq, .. } = output {
            self.core.handle(Input::StoreDone { seq, outcome: StoreOutcome::Committed }, self.now);
        } else if let Output::Write { instance, bytes, .. } = output {
            self.instance = instance;
            for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                self.written(line);
            }
        } else if let Output::Answer { answer, .. } = output {
            match answer {
                Answer::Message { session: Some(session), .. } => self.session = Some(session),
                Answer::Message { body, .. } => self.note_state(&body),
                other => drop(black_box(other)),
            }
        }
    }

    /// What a client is told to come back with.
    fn note_state(&mut self, body: &[u8]) {
        let state =
            Json::of(std::str::from_utf8(body).expect("JSON")).ok().and_then(|message| message.member("result"));
        if let Some(state) = state.and_then(|result| result.member("requestState")) {
            self.state = state.get().to_string();
        }
    }

    /// A request is answered by itself if it is one of the handshake's, and kept if not.
    fn written(&mut self, line: &[u8]) {
        // Under ids of ours a request looks like one to the server.
        let Some(Message::Request { id, method, .. }) = jsonrpc::parse(line) else { return };
        let (id, newer) = (id.get(), self.era == Era::Stateless);
        let body = match &*method {
            "initialize" if newer => r#""error":{"code":-32022,"message":"no"}"#.to_string(),
            "initialize" => format!(r#""result":{}"#, self.advertised),
            "server/discover" if newer => {
                r#""result":{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}"#.to_string()
            }
            "server/discover" => r#""error":{"code":-32601,"message":"no"}"#.to_string(),
            "tools/list" => format!(r#""result":{}"#, self.tools),
            _ => return self.asked.push((method.into_owned(), id.to_string())),
        };
        let line = format!(r#"{{"jsonrpc":"2.0","id":{id},{body}}}"#);
        let input = Input::LineRead { instance: self.instance, line: Line::Whole(line.as_bytes()) };
        self.core.handle(input, self.now);
    }
}

// --- what is said -------------------------------------------------------------------------------------------------------

/// One thing that is said with a value in it that nobody should say.
type Scene = (&'static str, fn(&str));

fn with(frame: &str, value: &str) -> String {
    let (before, behind) = frame.split_once('V').expect("a place for the value");
    [before, value, behind].concat()
}

const BY_SERVERS: &[Scene] = &[
    ("a line", |value| Stage::new(Era::Sessions).say(value)),
    ("a handshake", |value| {
        let mut stage = Stage::empty(Era::Sessions);
        stage.advertised = value.to_string();
        stage.start();
    }),
    ("capabilities", |value| {
        let mut stage = Stage::empty(Era::Sessions);
        stage.advertised = with(r#"{"protocolVersion":"2025-11-25","capabilities":V,"serverInfo":{}}"#, value);
        stage.start();
    }),
    ("a list of tools", |value| {
        let mut stage = Stage::empty(Era::Sessions);
        stage.tools = with(r#"{"x-mcp-header":0,"tools":V}"#, value);
        stage.start();
    }),
    ("a tool", |value| {
        let mut stage = Stage::empty(Era::Sessions);
        let schema = r#"{"properties":{"p":{"x-mcp-header":"P","items":V}}}"#;
        stage.tools = with(r#"{"tools":[{"name":"t","inputSchema":V}]}"#, &with(schema, value));
        stage.start();
    }),
    ("a list of resources", |value| {
        let mut stage = Stage::with_session(Era::Sessions, None);
        stage.reply("resources/list", &with(r#""result":{"resources":V}"#, value));
        stage.post(None, r#"{"id":3,"method":"resources/list"}"#);
    }),
    ("a page of prompts", |value| {
        let mut stage = Stage::new(Era::Sessions);
        stage.reply("prompts/list", &with(r#""result":{"prompts":V,"nextCursor":"c"}"#, value));
        // A page that is too large to keep is the last one.
        if stage.asked.iter().any(|(method, _)| method == "prompts/list") {
            stage.reply("prompts/list", &with(r#""result":{"prompts":V}"#, value));
        }
    }),
    ("progress", |value| {
        let mut stage = Stage::with_call(Era::Sessions, "tools/call");
        stage.say(&with(r#"{"method":"notifications/progress","params":{"progressToken":V}}"#, value));
        stage.say(&with(r#"{"method":"notifications/progress","params":V}"#, value));
    }),
    ("a log message", |value| {
        let mut stage = Stage::with_call(Era::Sessions, "tools/call");
        stage.say(&with(r#"{"method":"notifications/message","params":{"level":"error","data":V}}"#, value));
    }),
    ("an updated resource", |value| {
        let mut stage = Stage::with_session(Era::Sessions, Some("s"));
        stage.post(Some("s"), r#"{"id":3,"method":"resources/subscribe","params":{"uri":"x://a"}}"#);
        stage.say(&with(r#"{"method":"notifications/resources/updated","params":{"uri":V}}"#, value));
    }),
    ("a cancelled question", |value| {
        let mut stage = Stage::with_call(Era::Sessions, "tools/call");
        stage.say(&with(r#"{"method":"notifications/cancelled","params":{"requestId":V}}"#, value));
    }),
    ("a notification of its own", |value| {
        let mut stage = Stage::with_call(Era::Sessions, "tools/call");
        stage.say(&with(r#"{"method":"x/y","params":V}"#, value));
    }),
    ("a question", |value| {
        let mut stage = Stage::with_call(Era::Sessions, "tools/call");
        stage.say(&with(r#"{"id":"q","method":"elicitation/create","params":V}"#, value));
    }),
    ("the id of a question", |value| {
        let mut stage = Stage::with_call(Era::Sessions, "tools/call");
        stage.say(&with(r#"{"id":V,"method":"roots/list"}"#, value));
    }),
    ("a result", |value| {
        Stage::with_call(Era::Sessions, "tools/call").reply("tools/call", &with(r#""result":V"#, value))
    }),
    ("an error", |value| {
        let body = with(r#""error":{"code":-1,"message":"m","data":V}"#, value);
        Stage::with_call(Era::Sessions, "tools/call").reply("tools/call", &body);
    }),
    ("an old error for the newer era", |value| {
        let mut stage = Stage::new(Era::Sessions);
        stage.stateless("resources/read", r#"{"uri":"x://a"}"#);
        stage.stateless("resources/read", r#"{"uri":"x://a"}"#);
        stage.reply("resources/read", &with(r#""error":{"code":-32002,"message":"m","data":V}"#, value));
    }),
    ("a result of the newer era", |value| {
        let mut stage = Stage::with_call(Era::Stateless, "tools/call");
        stage.reply("tools/call", &with(r#""result":V"#, value));
    }),
    ("a result that asks for input", |value| {
        let mut stage = Stage::with_call(Era::Stateless, "tools/call");
        stage.reply("tools/call", &with(r#""result":{"resultType":"input_required","inputRequests":V}"#, value));
    }),
];

const BY_CLIENTS: &[Scene] = &[
    ("a call over REST", |value| Stage::new(Era::Sessions).rest(value)),
    ("the meta of a call over REST", |value| {
        Stage::new(Era::Sessions).rest(&with(r#"{"name":"t","_meta":{"progressToken":V}}"#, value));
        Stage::new(Era::Sessions).rest(&with(r#"{"_meta":{"progressToken":1},"_meta":V}"#, value));
    }),
    ("a call over REST to the newer era", |value| Stage::new(Era::Stateless).rest(value)),
    ("a greeting", |value| {
        Stage::new(Era::Sessions).post(Some("s"), &with(r#"{"id":0,"method":"initialize","params":V}"#, value));
        let hello = r#"{"id":0,"method":"initialize","params":{"protocolVersion":"x","capabilities":V}}"#;
        Stage::new(Era::Sessions).post(Some("s"), &with(hello, value));
    }),
    ("a call in a session", |value| {
        let mut stage = Stage::with_session(Era::Sessions, Some("s"));
        stage.post(Some("s"), &with(r#"{"id":1,"method":"tools/call","params":V}"#, value));
    }),
    ("a call in a session to the newer era", |value| {
        let mut stage = Stage::with_session(Era::Stateless, Some("s"));
        stage.post(Some("s"), &with(r#"{"id":1,"method":"tools/call","params":V}"#, value));
    }),
    ("a call to one of all servers", |value| {
        let mut stage = Stage::with_session(Era::Sessions, None);
        stage.post(None, &with(r#"{"id":1,"method":"tools/call","params":{"name":"s__t","arguments":V}}"#, value));
        stage.post(None, &with(r#"{"id":1,"method":"tools/call","params":{"name":V}}"#, value));
    }),
    ("a completion", |value| {
        let mut stage = Stage::with_session(Era::Sessions, None);
        stage.post(None, &with(r#"{"id":1,"method":"completion/complete","params":{"ref":V}}"#, value));
    }),
    ("a level and a subscription", |value| {
        let mut stage = Stage::with_session(Era::Sessions, Some("s"));
        stage.post(Some("s"), &with(r#"{"id":1,"method":"logging/setLevel","params":{"level":V}}"#, value));
        stage.post(Some("s"), &with(r#"{"id":1,"method":"resources/subscribe","params":{"uri":V}}"#, value));
    }),
    ("a cancellation", |value| {
        let mut stage = Stage::with_call(Era::Sessions, "tools/call");
        stage.post(Some("s"), &with(r#"{"method":"notifications/cancelled","params":{"requestId":V}}"#, value));
    }),
    ("a call without a session", |value| {
        Stage::new(Era::Sessions).stateless("tools/call", &with(r#"{"name":"t","arguments":V}"#, value));
        Stage::new(Era::Sessions).stateless("tools/call", &with(r#"{"name":"t","arguments":{"p":V}}"#, value));
    }),
    ("a call without a session to the newer era", |value| {
        Stage::new(Era::Stateless).stateless("tools/call", &with(r#"{"name":"t","arguments":{"p":V}}"#, value));
        Stage::new(Era::Stateless).stateless("tools/call", &with(r#"{"name":"t","_meta":V}"#, value));
    }),
    ("a subscription without a session", |value| {
        Stage::new(Era::Sessions).stateless("subscriptions/listen", &with(r#"{"notifications":V}"#, value));
        let uris = r#"{"notifications":{"resourceSubscriptions":V}}"#;
        Stage::new(Era::Sessions).stateless("subscriptions/listen", &with(uris, value));
    }),
    ("a state that nobody gave", |value| {
        Stage::new(Era::Sessions).stateless("tools/call", &with(r#"{"name":"t","requestState":V}"#, value));
    }),
    ("answers to questions", |value| {
        let mut stage = Stage::new(Era::Sessions);
        stage.stateless("tools/call", r#"{"name":"t","arguments":{"p":"x"}}"#);
        for number in 0..32 {
            stage.say(&format!(r#"{{"id":"{number}","method":"elicitation/create","params":{{"message":"?"}}}}"#));
        }
        assert!(!stage.state.is_empty(), "the call waits for input");
        let frame = format!(r#"{{"name":"t","requestState":{},"inputResponses":V}}"#, stage.state);
        stage.stateless("tools/call", &with(&frame, value));
    }),
];

/// What is passed on is there as it came, as it is written, and for a moment in between.
const MEMORY: usize = 16;

fn play(scenes: &[Scene]) {
    for (at, (name, scene)) in scenes.iter().enumerate() {
        for (number, (what, make)) in VALUES.iter().enumerate() {
            let read = |bytes: &[u8]| scene(std::str::from_utf8(bytes).expect("JSON"));
            // All of them at the full size would take minutes; each scene has a quarter of them, another one each.
            let largest = if (at + number).is_multiple_of(4) { LARGEST } else { MIB };
            Reader::new(name, MEMORY, &read).up_to(largest).judge(what, make);
        }
    }
}

#[test]
fn what_servers_say() {
    play(BY_SERVERS);
}

#[test]
fn what_clients_say() {
    play(BY_CLIENTS);
}

// --- logs ---------------------------------------------------------------------------------------------------------------

#[test]
fn stderr() {
    const OUTPUTS: &[(&str, Make)] = &[
        ("empty lines", |size| repeated("", "\n", "", size)),
        ("lines of one byte", |size| repeated("", "x\n", "", size)),
        ("an endless line", |size| repeated("", "x", "", size)),
        ("torn characters", |size| repeated("", "\u{e9}\u{1b}", "", size)),
        ("high bytes", |size| vec![0xff; size]),
        ("random bytes", random),
    ];
    let now = Now { mono_ms: 1, unix_ms: 1 };
    let in_pieces = |bytes: &[u8], length: usize| {
        let mut ring = LogRing::default();
        for piece in bytes.chunks(length) {
            black_box(ring.stderr(InstanceId(1), piece, now));
        }
        black_box((ring.tail(1000, 0), ring.crash_tail(InstanceId(1))));
    };
    for (what, make) in OUTPUTS {
        // What is kept does not grow at all; what a read gives, an entry for each line, is gone with the next one.
        Reader::new("stderr", 8, &|bytes| in_pieces(bytes, 16 * 1024)).judge(what, make);
        Reader::new("stderr byte by byte", 8, &|bytes| in_pieces(bytes, 1)).up_to(MIB).judge(what, make);
        Reader::new("printable text", 8, &|bytes| drop(black_box(printable(bytes)))).judge(what, make);
    }
}
