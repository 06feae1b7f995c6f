//! Fake processes: what a kernel and a hostile server might do, one step at a time.

use serde_json::{Value, json};
use std::collections::BTreeSet;
use stdiod::model::definition::Framing;
use stdiod::wire::lines::Lines;

/// splitmix64: small, good enough, and the same everywhere.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        if from.is_empty() { None } else { Some(from[self.below(from.len())]) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Launching,
    Running,
    /// Exited, but the exit has not been told yet.
    Dead,
}

/// What a line is to those who listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Words {
    Noise,
    Valid,
    /// Valid, and with it the server is ready.
    Greeting,
}

pub struct Process {
    pub server: String,
    pub stage: Stage,
    pub stdout_open: bool,
    /// The daemon's end of stdout, as the shell has it.
    pub lines: Lines,
    /// The rest of a line that it has begun.
    pub unsaid: Option<(Vec<u8>, Words)>,
    /// Requests it has read and not answered.
    pub asked: Vec<(u64, Value)>,
    /// Calls of clients that it has read, that were cancelled since, and that it has not answered all the same.
    pub given_up: Vec<(u64, Value)>,
    /// Questions that it has asked so far, and those that have no answer yet.
    pub questions: u64,
    pub open_questions: BTreeSet<String>,
    /// It has been told to stop: it will, sooner or later.
    pub told_to_stop: bool,
    pub killed: bool,
    /// It is no server, but fetches the packages of one.
    pub installs: bool,
    /// An operator had a hand in its life.
    pub touched: bool,
    /// Stopped, as by SIGSTOP: it reads and says nothing until it goes on.
    pub hung: bool,
    /// The daemon has frozen it.
    pub frozen: bool,
    /// When it last said something valid, and when it last wrote anything.
    pub said_ms: u64,
    pub wrote_ms: u64,
    /// A call of its has been given up since, so that it may be asked at any time.
    pub suspected: bool,
}

impl Process {
    pub fn new(server: &str) -> Process {
        Process {
            server: server.to_string(),
            stage: Stage::Launching,
            stdout_open: true,
            lines: Lines::with_framing(Framing::Newline),
            unsaid: None,
            asked: Vec::new(),
            given_up: Vec::new(),
            questions: 0,
            open_questions: BTreeSet::new(),
            told_to_stop: false,
            killed: false,
            installs: false,
            touched: false,
            hung: false,
            frozen: false,
            said_ms: 0,
            wrote_ms: 0,
            suspected: false,
        }
    }

    /// Takes what the daemon wrote. Every line must be one JSON object.
    pub fn read_stdin(&mut self, bytes: &[u8]) {
        assert_eq!(bytes.last(), Some(&b'\n'), "messages are whole lines");
        for line in bytes.split(|b| *b == b'\n').filter(|line| !line.is_empty()) {
            let message: Value = serde_json::from_slice(line).expect("the daemon writes valid JSON");
            match (message.get("id"), message["method"].as_str()) {
                (Some(id), Some(_)) => self.asked.push((id.as_u64().expect("minted ids are numbers"), message)),
                (None, Some("notifications/cancelled")) => {
                    let id = message["params"]["requestId"].as_u64().expect("it names the call");
                    let (meant, rest) =
                        std::mem::take(&mut self.asked).into_iter().partition(|(other, _)| *other == id);
                    self.asked = rest;
                    let meant: Vec<(u64, Value)> = meant;
                    self.given_up.extend(meant.into_iter().filter(|(_, request)| request["method"] == "tools/call"));
                    self.suspected = true;
                }
                (Some(id), None) => {
                    let id = id.as_str().expect("it is a question's");
                    assert!(self.open_questions.remove(id), "never asked, or answered twice: {message}");
                }
                (None, Some("notifications/initialized")) => {}
                other => panic!("the daemon wrote {other:?}: {message}"),
            }
        }
    }

    /// Calls of clients that it has in hand.
    pub fn calls(&self) -> usize {
        self.asked.iter().filter(|(_, request)| request["method"] == "tools/call").count()
    }

    /// The tokens of all calls of clients that it has read and not answered, given up or not.
    pub fn unanswered(&self) -> impl Iterator<Item = &str> {
        let calls = self.asked.iter().chain(&self.given_up).filter(|(_, request)| request["method"] == "tools/call");
        calls.map(|(_, request)| request["params"]["token"].as_str().expect("every call has one"))
    }

    /// Progress of one of its calls, under the token that came with it, or of nothing.
    pub fn progress(&self, rng: &mut Rng) -> Vec<u8> {
        let tokens: Vec<&Value> = self.asked.iter().map(|(_, request)| &request["params"]).collect();
        let params = match rng.pick(&tokens) {
            Some(params) if params["_meta"]["progressToken"].is_u64() => {
                json!({ "progressToken": params["_meta"]["progressToken"], "progress": 1, "message": params["token"] })
            }
            Some(_) | None => json!({}),
        };
        json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params }).to_string().into_bytes()
    }

    /// An honest answer to one of the requests it has.
    pub fn answer(id: u64, request: &Value, rng: &mut Rng) -> Vec<u8> {
        let method = request["method"].as_str().expect("a request");
        let text = match (method, rng.below(6)) {
            ("initialize", 0) => error(id, -32601),
            ("initialize", 1) if rng.one_in(4) => error(id, -32000),
            ("initialize", _) => {
                format!(
                    r#"{{"jsonrpc":"2.0","id":{id},"result":{{"protocolVersion":"2025-11-25","capabilities":{{"logging":{{}}}},"serverInfo":{{"name":"s"}}}}}}"#
                )
            }
            ("ping", 0) => error(id, -32601),
            ("ping", _) => format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#),
            ("tools/list", _) => format!(r#"{{"id":{id},"jsonrpc":"2.0","result":{{"tools":[]}}}}"#),
            (_, 0) => error(id, -32602),
            (_, _) => format!(r#"{{"result":{},"id":{id},"jsonrpc":"2.0"}}"#, request["params"]),
        };
        text.into_bytes()
    }
}

fn error(id: u64, code: i64) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":"no"}}}}"#)
}
