//! Streamable HTTP, the client's side, of every version: a POST for each message, answers as JSON or as events, a session, a
//! stream to listen on, streams that are resumed, and the end of the session. Owns what each exchange is for. Invariants: a
//! message is posted once (again only where a redirect within the origin says so); what follows
//! `notifications/initialized` is posted when that has been accepted; and whatever stands in an answer is bounded.

mod answer;

use crate::ids::CallId;
use crate::limits::{
    LINK_ANSWER_WAIT, LINK_GOODBYE_WAIT, LINK_REDIRECTS_MAX, LINK_RESUME, LINK_RESUME_MAX, LINK_RESUMES_MAX,
    LINK_SESSION_MAX, LINK_STREAM_END,
};
use crate::model::endpoint::{LinkFault, LinkFaultKind, ParamHeaders};
use crate::model::fault::Outcome;
use crate::model::protocol::STATELESS;
use crate::wire::http::response::Head;
use crate::wire::http::url::Url;
use crate::wire::jsonrpc::{self, Message};
use crate::wire::remote::exchanges::{Ask, ExchangeId, Exchanges, Sent, Step};
use crate::wire::remote::streamable_http::answer::{Answer, Came, Refusal};
use crate::wire::remote::{Channel, Command, Heard, headers, verdict};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

pub struct StreamableHttp {
    url: Url,
    row_headers: Vec<(String, String)>,
    session: Option<String>,
    version: Option<String>,
    tools: Arc<ParamHeaders>,
    exchanges: Exchanges,
    under_way: HashMap<ExchangeId, Exchange>,
    /// Streams that are to be taken up again.
    resumes: Vec<Resume>,
    /// Messages that wait until the server has accepted that it is initialized.
    behind: VecDeque<(Vec<u8>, Option<CallId>)>,
    out: VecDeque<Command>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Open,
    /// `notifications/initialized` is on its way.
    Initializing,
    Goodbye,
    Over,
}

struct Exchange {
    purpose: Purpose,
    answer: Answer,
}

enum Purpose {
    Post(Post),
    /// The stream of what nobody asked for; with the number of resumptions in a row that brought nothing.
    Listen {
        tried: u32,
    },
    /// The rest of a call's stream.
    Resumed {
        call: CallId,
        tried: u32,
    },
    Goodbye,
}

struct Post {
    call: Option<CallId>,
    kind: Kind,
    /// Until its answer begins: a redirect wants it once more.
    message: Vec<u8>,
    redirects: u8,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// `initialize`: whatever refuses it refuses the link.
    Initialize,
    Initialized,
    /// Of the era without sessions.
    Stateless,
    Other,
}

struct Resume {
    at_ms: u64,
    /// None: the stream to listen on.
    call: Option<CallId>,
    after: String,
    tried: u32,
}

impl StreamableHttp {
    pub fn new(url: Url, row_headers: Vec<(String, String)>) -> StreamableHttp {
        StreamableHttp {
            exchanges: Exchanges::new(url.clone()),
            url,
            row_headers: headers::of_row(&row_headers),
            session: None,
            version: None,
            tools: Arc::default(),
            under_way: HashMap::new(),
            resumes: Vec::new(),
            behind: VecDeque::new(),
            out: VecDeque::from([Command::Connected]),
            stage: Stage::Open,
        }
    }

    pub fn negotiated(&mut self, version: String) {
        self.version = Some(version);
    }

    pub fn mirror(&mut self, tools: Arc<ParamHeaders>) {
        self.tools = tools;
    }

    // --- out ------------------------------------------------------------------------------------------------------------

    pub fn write(&mut self, message: &[u8], call: Option<CallId>, now_ms: u64) {
        match self.stage {
            Stage::Goodbye | Stage::Over => {}
            Stage::Initializing => self.behind.push_back((message.to_vec(), call)),
            Stage::Open => self.post(message.to_vec(), call, 0, now_ms),
        }
    }

    fn post(&mut self, message: Vec<u8>, call: Option<CallId>, redirects: u8, now_ms: u64) {
        let mut repeated = Vec::new();
        let mut version = self.version.clone();
        let kind = match jsonrpc::parse(&message) {
            Some(Message::Request { method, params, .. }) => match headers::version_of(params) {
                Some(named) => {
                    version = Some(named.into_owned());
                    repeated = headers::repeated(&method, params, &self.tools);
                    Kind::Stateless
                }
                None if method == "initialize" => Kind::Initialize,
                None => Kind::Other,
            },
            Some(Message::Notification { method, params }) => {
                if method == "notifications/cancelled" {
                    let id = params.and_then(|params| params.member("requestId")?.get().parse().ok());
                    if self.cancel(id.map(CallId)) || self.is_stateless() {
                        return;
                    }
                }
                if method == "notifications/initialized" { Kind::Initialized } else { Kind::Other }
            }
            Some(Message::Reply { .. } | Message::Stray) | None => Kind::Other,
        };
        if kind == Kind::Initialized {
            self.stage = Stage::Initializing;
        }
        let mut headers = self.headers("application/json, text/event-stream", version.as_deref());
        headers.push(("Content-Type".to_string(), "application/json".to_string()));
        headers.extend(repeated);
        let by_ms = call.is_none().then(|| now_ms + LINK_ANSWER_WAIT.as_millis() as u64);
        let body = Some(message.clone());
        let id = self.exchanges.begin(Ask { method: "POST", path: self.url.path.clone(), headers, body, by_ms });
        let purpose = Purpose::Post(Post { call, kind, message, redirects });
        self.under_way.insert(id, Exchange { purpose, answer: Answer::of(call) });
    }

    fn headers(&self, accept: &str, version: Option<&str>) -> Vec<(String, String)> {
        let mut all = self.row_headers.clone();
        all.push(("Accept".to_string(), accept.to_string()));
        all.extend(version.map(|version| ("MCP-Protocol-Version".to_string(), version.to_string())));
        if version != Some(STATELESS) {
            all.extend(self.session.clone().map(|session| ("Mcp-Session-Id".to_string(), session)));
        }
        all
    }

    fn is_stateless(&self) -> bool {
        self.version.as_deref() == Some(STATELESS)
    }

    /// Nobody waits for its answer any more. True: that says it all, since the era without sessions closes the stream.
    fn cancel(&mut self, call: Option<CallId>) -> bool {
        let Some(call) = call else { return false };
        self.resumes.retain(|resume| resume.call != Some(call));
        let Some((&id, exchange)) = self.under_way.iter().find(|(_, exchange)| exchange.call() == Some(call)) else {
            return false;
        };
        let stateless = matches!(&exchange.purpose, Purpose::Post(post) if post.kind == Kind::Stateless);
        self.under_way.remove(&id);
        self.exchanges.give_up(id);
        stateless
    }

    fn get(&mut self, purpose: Purpose, after: &str) {
        let mut headers = self.headers("text/event-stream", self.version.as_deref());
        if !after.is_empty() {
            headers.push(("Last-Event-ID".to_string(), after.to_string()));
        }
        let ask = Ask { method: "GET", path: self.url.path.clone(), headers, body: None, by_ms: None };
        let call = match &purpose {
            Purpose::Resumed { call, .. } => Some(*call),
            Purpose::Post(_) | Purpose::Listen { .. } | Purpose::Goodbye => None,
        };
        let id = self.exchanges.begin(ask);
        self.under_way.insert(id, Exchange { purpose, answer: Answer::after(call, after) });
    }

    /// True: the server is told that its session is over, which takes a moment.
    pub fn close(&mut self, now_ms: u64) -> bool {
        self.under_way.clear();
        self.resumes.clear();
        self.exchanges.close_all();
        self.stage = Stage::Over;
        if self.session.is_none() || self.is_stateless() {
            return false;
        }
        self.stage = Stage::Goodbye;
        let headers = self.headers("application/json", self.version.as_deref());
        let by_ms = Some(now_ms + LINK_GOODBYE_WAIT.as_millis() as u64);
        let ask = Ask { method: "DELETE", path: self.url.path.clone(), headers, body: None, by_ms };
        let id = self.exchanges.begin(ask);
        self.under_way.insert(id, Exchange { purpose: Purpose::Goodbye, answer: Answer::of(None) });
        true
    }

    // --- in -------------------------------------------------------------------------------------------------------------

    pub fn heard(&mut self, channel: Channel, heard: Heard, now_ms: u64) {
        self.exchanges.heard(channel, heard, now_ms);
        self.follow(now_ms);
    }

    fn follow(&mut self, now_ms: u64) {
        while let Some((id, step)) = self.exchanges.next_step() {
            let Some(mut exchange) = self.under_way.remove(&id) else { continue };
            match step {
                Step::Head(head) => {
                    if self.redirected(&exchange, &head, now_ms) {
                        self.exchanges.give_up(id);
                        continue;
                    }
                    self.take_session(&exchange, &head);
                    exchange.answer.begin(&head);
                    self.under_way.insert(id, exchange);
                }
                Step::Body(bytes) => match exchange.answer.take(&bytes) {
                    Ok(lines) => {
                        self.out.extend(lines.into_iter().map(Command::Line));
                        if exchange.answer.is_answered() {
                            self.exchanges.end_by(id, now_ms + LINK_STREAM_END.as_millis() as u64);
                        }
                        self.under_way.insert(id, exchange);
                    }
                    Err(came) => {
                        self.exchanges.give_up(id);
                        self.ended(exchange, came, now_ms);
                    }
                },
                Step::End => {
                    let came = exchange.answer.end();
                    self.ended(exchange, came, now_ms);
                }
                Step::Failed { sent, why } => self.failed(exchange, sent, why, now_ms),
            }
        }
    }

    fn take_session(&mut self, exchange: &Exchange, head: &Head) {
        let Purpose::Post(post) = &exchange.purpose else { return };
        if let Some(session) = head.header("mcp-session-id")
            && post.kind == Kind::Initialize
            && session.len() <= LINK_SESSION_MAX
            && session.bytes().all(|byte| byte.is_ascii_graphic())
        {
            self.session = Some(session.to_string());
        }
    }

    /// True: the message goes to another address of the same origin.
    fn redirected(&mut self, exchange: &Exchange, head: &Head, now_ms: u64) -> bool {
        let Purpose::Post(post) = &exchange.purpose else { return false };
        let to = head.header("location").and_then(|location| self.url.join(location));
        let Some(to) = to.filter(|to| matches!(head.status, 301 | 302 | 307 | 308) && to.same_origin(&self.url)) else {
            return false;
        };
        if post.redirects >= LINK_REDIRECTS_MAX {
            return false;
        }
        self.url.path = to.path;
        self.post(post.message.clone(), post.call, post.redirects + 1, now_ms);
        true
    }

    /// All of an answer is there.
    fn ended(&mut self, exchange: Exchange, came: Came, now_ms: u64) {
        let call = exchange.call();
        let undelivered = |fault| call.map(|call| Command::Undelivered { call, fault });
        match came {
            Came::All(lines) => {
                self.out.extend(lines.into_iter().map(Command::Line));
                self.accepted(&exchange, now_ms);
            }
            Came::Wrong(fault) => {
                self.out.extend(undelivered(fault));
                self.accepted(&exchange, now_ms);
            }
            Came::CutOff { after, retry_ms, progress } => {
                let why = LinkFault::new(LinkFaultKind::Closed, "the stream ended before the answer");
                self.resume(&exchange, (after, retry_ms, progress), why, now_ms);
            }
            Came::Refused(refusal) => self.refused(&exchange, refusal, now_ms),
        }
    }

    fn accepted(&mut self, exchange: &Exchange, now_ms: u64) {
        match &exchange.purpose {
            Purpose::Post(Post { kind: Kind::Initialized, .. }) => {
                self.stage = Stage::Open;
                for (message, call) in std::mem::take(&mut self.behind) {
                    self.post(message, call, 0, now_ms);
                }
                self.get(Purpose::Listen { tried: 0 }, "");
            }
            Purpose::Goodbye => self.stage = Stage::Over,
            Purpose::Post(_) | Purpose::Listen { .. } | Purpose::Resumed { .. } => {}
        }
    }

    fn resume(&mut self, exchange: &Exchange, came: (String, Option<u64>, bool), why: LinkFault, now_ms: u64) {
        let (after, retry_ms, progress) = came;
        let tried = match (&exchange.purpose, progress) {
            (Purpose::Listen { tried } | Purpose::Resumed { tried, .. }, false) => *tried + 1,
            (Purpose::Post(_) | Purpose::Goodbye, _) | (_, true) => 0,
        };
        let listens = matches!(exchange.purpose, Purpose::Listen { .. });
        if tried < LINK_RESUMES_MAX && (listens || !after.is_empty()) && !self.is_stateless() {
            let wait_ms = retry_ms.unwrap_or(LINK_RESUME.as_millis() as u64).min(LINK_RESUME_MAX.as_millis() as u64);
            return self.resumes.push(Resume { at_ms: now_ms + wait_ms, call: exchange.call(), after, tried });
        }
        if let Some(call) = exchange.call() {
            let fault = verdict::unavailable(why.message, Outcome::SentUnknown);
            self.out.push_back(Command::Undelivered { call, fault });
        }
        self.accepted(exchange, now_ms);
    }

    fn refused(&mut self, exchange: &Exchange, refusal: Refusal, now_ms: u64) {
        let Refusal { status, retry_after_ms, reply, names_session } = refusal;
        if let Some(reply) = reply {
            return self.out.push_back(Command::Line(reply));
        }
        if let Some(call) = exchange.call() {
            let fault = verdict::of_status(status, retry_after_ms);
            self.out.push_back(Command::Undelivered { call, fault });
        }
        let lost = match &exchange.purpose {
            Purpose::Goodbye => return self.stage = Stage::Over,
            // It has no such stream, or none any more; calls go on without.
            Purpose::Listen { .. } if status != 404 || exchange.answer.is_first() => return,
            Purpose::Post(Post { kind: Kind::Initialize, .. }) => Some(verdict::link_fault(status, retry_after_ms)),
            Purpose::Post(_) | Purpose::Listen { .. } | Purpose::Resumed { .. } => None,
        };
        let session_lost = self.session.is_some() && (status == 404 || status == 400 && names_session);
        if let Some(why) = lost {
            self.lose(why);
        } else if session_lost {
            self.lose(LinkFault::new(LinkFaultKind::SessionLost, "the external server does not know the session"));
        } else {
            self.accepted(exchange, now_ms);
        }
    }

    fn failed(&mut self, exchange: Exchange, sent: Sent, why: LinkFault, now_ms: u64) {
        if matches!(exchange.purpose, Purpose::Goodbye) {
            self.stage = Stage::Over;
            return;
        }
        if exchange.answer.is_answered() {
            return self.accepted(&exchange, now_ms);
        }
        if sent == Sent::Perhaps {
            let came = exchange.answer.cut_off();
            return self.resume(&exchange, came, why, now_ms);
        }
        if let Some(call) = exchange.call() {
            let fault = verdict::unavailable(why.message.clone(), Outcome::NotSent);
            self.out.push_back(Command::Undelivered { call, fault });
        }
        // Nobody is there any more. That this daemon has too many connections is not the server's fault.
        if why.kind != LinkFaultKind::Overloaded {
            self.lose(why);
        }
    }

    fn lose(&mut self, why: LinkFault) {
        self.under_way.clear();
        self.resumes.clear();
        self.exchanges.close_all();
        self.stage = Stage::Over;
        self.out.push_back(Command::Lost(why));
    }

    // --- time -----------------------------------------------------------------------------------------------------------

    pub fn next_deadline(&self) -> Option<u64> {
        self.resumes.iter().map(|resume| resume.at_ms).chain(self.exchanges.next_deadline()).min()
    }

    pub fn tick(&mut self, now_ms: u64) {
        self.exchanges.tick(now_ms);
        while let Some(at) = self.resumes.iter().position(|resume| resume.at_ms <= now_ms) {
            let Resume { call, after, tried, .. } = self.resumes.swap_remove(at);
            let purpose = match call {
                Some(call) => Purpose::Resumed { call, tried },
                None => Purpose::Listen { tried },
            };
            self.get(purpose, &after);
        }
        self.follow(now_ms);
    }

    pub fn poll(&mut self) -> Option<Command> {
        self.exchanges.poll().or_else(|| self.out.pop_front())
    }

    pub fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    pub fn held(&self) -> usize {
        let message = |exchange: &Exchange| match &exchange.purpose {
            Purpose::Post(post) => post.message.len(),
            Purpose::Listen { .. } | Purpose::Resumed { .. } | Purpose::Goodbye => 0,
        };
        let under_way: usize = self.under_way.values().map(|each| message(each) + each.answer.held()).sum();
        under_way + self.exchanges.held() + self.behind.iter().map(|(message, _)| message.len()).sum::<usize>()
    }
}

impl Exchange {
    fn call(&self) -> Option<CallId> {
        match &self.purpose {
            Purpose::Post(post) => post.call,
            Purpose::Resumed { call, .. } => Some(*call),
            Purpose::Listen { .. } | Purpose::Goodbye => None,
        }
    }
}
