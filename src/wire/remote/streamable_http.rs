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
use crate::wire::remote::sse_pair::{Instead, SsePair};
use crate::wire::remote::streamable_http::answer::{Answer, Came, Refusal};
use crate::wire::remote::{Channel, Command, Heard, headers, verdict};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

pub struct StreamableHttp {
    url: Url,
    row_headers: Vec<(String, String)>,
    /// There may be another token: a 401 is not the last word about a message.
    renews: bool,
    session: Option<String>,
    /// It has let us listen once.
    listened: bool,
    /// A session that a server has begun for the question about the other era, though it did not understand it.
    stray: Option<String>,
    version: Option<String>,
    tools: Arc<ParamHeaders>,
    exchanges: Exchanges,
    under_way: HashMap<ExchangeId, Exchange>,
    /// Streams that are to be taken up again.
    resumes: Vec<Resume>,
    /// Messages that wait until the server has accepted that it is initialized.
    behind: VecDeque<(Vec<u8>, Option<CallId>)>,
    /// The server does not speak this transport; perhaps the one before.
    fallback: Option<Instead>,
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
    /// The end of a session that nobody wanted.
    Unwanted,
    Goodbye,
}

struct Post {
    call: Option<CallId>,
    kind: Kind,
    /// Until its answer begins: a redirect wants it once more. Of a subscription for as long as that lasts.
    message: Vec<u8>,
    tries: Tries,
}

#[derive(Clone, Copy, Default)]
struct Tries {
    redirects: u8,
    /// Subscriptions in a row that brought nothing.
    in_vain: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// `initialize`: whatever refuses it refuses the link.
    Initialize,
    /// The first question, whether it is of the era without sessions: to be refused is an answer.
    Discover,
    Initialized,
    /// Of the era without sessions.
    Stateless,
    /// Of the same: a stream that lasts, and is asked for again when it breaks.
    Subscription,
    Other,
}

struct Resume {
    at_ms: u64,
    /// None: the stream to listen on.
    call: Option<CallId>,
    after: String,
    tried: u32,
    /// A subscription, which is posted once more instead: its era resumes nothing.
    subscription: Option<Vec<u8>>,
}

impl StreamableHttp {
    pub fn new(url: Url, row_headers: &[(String, String)], renews: bool) -> StreamableHttp {
        StreamableHttp {
            exchanges: Exchanges::new(url.clone()),
            url,
            row_headers: headers::of_row(row_headers),
            renews,
            session: None,
            listened: false,
            stray: None,
            version: None,
            tools: Arc::default(),
            under_way: HashMap::new(),
            resumes: Vec::new(),
            behind: VecDeque::new(),
            fallback: None,
            out: VecDeque::from([Command::Connected]),
            stage: Stage::Open,
        }
    }

    /// Another token is shown from now on.
    pub fn show(&mut self, authorization: String) {
        headers::authorize(&mut self.row_headers, authorization);
    }

    /// What goes on in its place, if the server has refused `initialize` as one does that speaks 2024-11-05 only.
    pub fn fall_back(&mut self, now_ms: u64) -> Option<SsePair> {
        let instead = self.fallback.take()?;
        self.under_way.clear();
        let exchanges = std::mem::replace(&mut self.exchanges, Exchanges::new(self.url.clone()));
        Some(SsePair::instead(exchanges, self.url.clone(), (self.row_headers.clone(), self.renews), instead, now_ms))
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
            Stage::Open => self.post(message.to_vec(), call, Tries::default(), now_ms),
        }
    }

    fn post(&mut self, message: Vec<u8>, mut call: Option<CallId>, tries: Tries, now_ms: u64) {
        let mut repeated = Vec::new();
        let mut version = self.version.clone();
        let kind = match jsonrpc::parse(&message) {
            Some(Message::Request { id, method, params }) => match headers::version_of(params) {
                Some(named) => {
                    version = Some(named.into_owned());
                    repeated = headers::repeated(&method, params, &self.tools);
                    let is_first = method == "server/discover" && self.version.is_none();
                    match &*method {
                        _ if is_first => Kind::Discover,
                        "subscriptions/listen" => {
                            call = call.or_else(|| id.get().parse().ok().map(CallId));
                            Kind::Subscription
                        }
                        _ => Kind::Stateless,
                    }
                }
                None if method == "initialize" => {
                    self.end_stray(now_ms);
                    Kind::Initialize
                }
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
        let purpose = Purpose::Post(Post { call, kind, message, tries });
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
        let stateless = matches!(&exchange.purpose,
            Purpose::Post(post) if matches!(post.kind, Kind::Stateless | Kind::Discover | Kind::Subscription));
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
            Purpose::Post(_) | Purpose::Listen { .. } | Purpose::Unwanted | Purpose::Goodbye => None,
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
        self.delete(Purpose::Goodbye, now_ms);
        true
    }

    fn delete(&mut self, purpose: Purpose, now_ms: u64) {
        let headers = self.headers("application/json", self.version.as_deref());
        let by_ms = Some(now_ms + LINK_GOODBYE_WAIT.as_millis() as u64);
        let ask = Ask { method: "DELETE", path: self.url.path.clone(), headers, body: None, by_ms };
        let id = self.exchanges.begin(ask);
        self.under_way.insert(id, Exchange { purpose, answer: Answer::of(None) });
    }

    fn end_stray(&mut self, now_ms: u64) {
        if let Some(stray) = self.stray.take() {
            self.session = Some(stray);
            self.delete(Purpose::Unwanted, now_ms);
            self.session = None;
        }
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
                    self.listened |= matches!(exchange.purpose, Purpose::Listen { .. }) && head.status == 200;
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
        let given = head.header("mcp-session-id");
        let Some(session) = given
            .filter(|session| session.len() <= LINK_SESSION_MAX && session.bytes().all(|byte| byte.is_ascii_graphic()))
        else {
            return;
        };
        match post.kind {
            Kind::Initialize => self.session = Some(session.to_string()),
            Kind::Discover => self.stray = Some(session.to_string()),
            Kind::Initialized | Kind::Stateless | Kind::Subscription | Kind::Other => {}
        }
    }

    /// True: the message goes to another address of the same origin.
    fn redirected(&mut self, exchange: &Exchange, head: &Head, now_ms: u64) -> bool {
        let Purpose::Post(post) = &exchange.purpose else { return false };
        let to = head.header("location").and_then(|location| self.url.join(location));
        let Some(to) = to.filter(|to| matches!(head.status, 301 | 302 | 307 | 308) && to.same_origin(&self.url)) else {
            return false;
        };
        if post.tries.redirects >= LINK_REDIRECTS_MAX {
            return false;
        }
        self.url.path = to.path;
        let tries = Tries { redirects: post.tries.redirects + 1, ..post.tries };
        self.post(post.message.clone(), post.call, tries, now_ms);
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
            Came::Refused(refusal) => self.refused(exchange, refusal, now_ms),
        }
    }

    fn accepted(&mut self, exchange: &Exchange, now_ms: u64) {
        match &exchange.purpose {
            Purpose::Post(Post { kind: Kind::Initialized, .. }) => {
                self.stage = Stage::Open;
                for (message, call) in std::mem::take(&mut self.behind) {
                    self.post(message, call, Tries::default(), now_ms);
                }
                // The era without sessions has no such stream.
                if !self.is_stateless() {
                    self.get(Purpose::Listen { tried: 0 }, "");
                }
            }
            Purpose::Goodbye => self.stage = Stage::Over,
            Purpose::Post(_) | Purpose::Listen { .. } | Purpose::Resumed { .. } | Purpose::Unwanted => {}
        }
    }

    fn resume(&mut self, exchange: &Exchange, came: (String, Option<u64>, bool), why: LinkFault, now_ms: u64) {
        let (after, retry_ms, progress) = came;
        let wait_ms = retry_ms.unwrap_or(LINK_RESUME.as_millis() as u64).min(LINK_RESUME_MAX.as_millis() as u64);
        if let Purpose::Post(Post { kind: Kind::Subscription, message, tries, call }) = &exchange.purpose {
            let tried = if progress { 0 } else { tries.in_vain + 1 };
            if tried <= LINK_RESUMES_MAX {
                let (at_ms, subscription) = (now_ms + (wait_ms << tried), Some(message.clone()));
                self.resumes.push(Resume { at_ms, call: *call, after: String::new(), tried, subscription });
            }
            return;
        }
        let tried = match (&exchange.purpose, progress) {
            (Purpose::Listen { tried } | Purpose::Resumed { tried, .. }, false) => *tried + 1,
            (Purpose::Post(_) | Purpose::Unwanted | Purpose::Goodbye, _) | (_, true) => 0,
        };
        let listens = matches!(exchange.purpose, Purpose::Listen { .. });
        if tried < LINK_RESUMES_MAX && (listens || !after.is_empty()) && !self.is_stateless() {
            let (at_ms, call) = (now_ms + wait_ms, exchange.call());
            return self.resumes.push(Resume { at_ms, call, after, tried, subscription: None });
        }
        if let Some(call) = exchange.call() {
            let fault = verdict::unavailable(why.message, Outcome::SentUnknown);
            self.out.push_back(Command::Undelivered { call, fault });
        }
        self.accepted(exchange, now_ms);
    }

    fn refused(&mut self, exchange: Exchange, refusal: Refusal, now_ms: u64) {
        let Refusal { status, retry_after_ms, reply, names_session } = refusal;
        // It was of another session than the link's.
        if matches!(exchange.purpose, Purpose::Unwanted) {
            return;
        }
        if let Some(reply) = reply {
            return self.out.push_back(Command::Line(reply));
        }
        let exchange = match exchange {
            Exchange { purpose: Purpose::Post(post), .. } if status == 401 && self.renews => {
                // It waits for its turn again, as if it had not been written yet.
                if self.stage == Stage::Initializing && post.kind == Kind::Initialized {
                    self.stage = Stage::Open;
                }
                return self.out.push_back(Command::Unauthorized { message: post.message, call: post.call });
            }
            Exchange { purpose: Purpose::Post(post), .. }
                if post.kind == Kind::Initialize && matches!(status, 400 | 404 | 405) && !names_session =>
            {
                let refused = verdict::link_fault(status, retry_after_ms);
                return self.fallback = Some(Instead { message: post.message, call: post.call, refused });
            }
            other => other,
        };
        if let Some(call) = exchange.call() {
            let fault = verdict::of_status(status, retry_after_ms);
            self.out.push_back(Command::Undelivered { call, fault });
        }
        let lost = match &exchange.purpose {
            Purpose::Goodbye => return self.stage = Stage::Over,
            // It has no such stream; calls go on without. One that had it and knows no session now has forgotten ours.
            Purpose::Listen { .. } if !self.listened => return,
            Purpose::Post(Post { kind: Kind::Initialize, .. }) => Some(verdict::link_fault(status, retry_after_ms)),
            // Any other status may be what an older server says to a question that it does not know.
            Purpose::Post(Post { kind: Kind::Discover, .. }) if matches!(status, 401 | 403 | 429) => {
                Some(verdict::link_fault(status, retry_after_ms))
            }
            Purpose::Post(_) | Purpose::Listen { .. } | Purpose::Resumed { .. } | Purpose::Unwanted => None,
        };
        let session_lost = self.session.is_some() && (status == 404 || status == 400 && names_session);
        if let Some(why) = lost {
            self.lose(why);
        } else if session_lost {
            self.lose(LinkFault::new(LinkFaultKind::SessionLost, "the external server does not know the session"));
        } else {
            self.accepted(&exchange, now_ms);
        }
    }

    fn failed(&mut self, exchange: Exchange, sent: Sent, why: LinkFault, now_ms: u64) {
        if matches!(exchange.purpose, Purpose::Goodbye) {
            self.stage = Stage::Over;
            return;
        }
        if exchange.answer.is_answered() || matches!(exchange.purpose, Purpose::Unwanted) {
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
            let Resume { call, after, tried, subscription, .. } = self.resumes.swap_remove(at);
            if let Some(message) = subscription {
                self.post(message, call, Tries { redirects: 0, in_vain: tried }, now_ms);
                continue;
            }
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
            Purpose::Listen { .. } | Purpose::Resumed { .. } | Purpose::Unwanted | Purpose::Goodbye => 0,
        };
        let under_way: usize = self.under_way.values().map(|each| message(each) + each.answer.held()).sum();
        let fallback = self.fallback.as_ref().map_or(0, |instead| instead.message.len());
        let resumed = |resume: &Resume| resume.subscription.as_ref().map_or(0, Vec::len);
        let resumes: usize = self.resumes.iter().map(resumed).sum();
        under_way
            + fallback
            + resumes
            + self.exchanges.held()
            + self.behind.iter().map(|(message, _)| message.len()).sum::<usize>()
    }
}

impl Exchange {
    fn call(&self) -> Option<CallId> {
        match &self.purpose {
            Purpose::Post(post) => post.call,
            Purpose::Resumed { call, .. } => Some(*call),
            Purpose::Listen { .. } | Purpose::Unwanted | Purpose::Goodbye => None,
        }
    }
}
