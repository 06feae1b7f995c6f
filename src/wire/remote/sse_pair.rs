//! The pair of 2024-11-05, the client's side: one stream of events, which tells where messages are posted, and a POST for each
//! message. Owns which calls are unanswered, because the answers to all of them come on the one stream. Invariants: a message
//! is posted once (again only where a redirect within the origin says so), to the origin of the stream and to no other; the
//! stream is never resumed, since that version cannot; and whatever stands in an event is bounded.

use crate::ids::CallId;
use crate::limits::{LINK_ANSWER_WAIT, LINK_REDIRECTS_MAX, LINK_STREAM_END, UPSTREAM_EVENT_MAX, URL_MAX};
use crate::model::endpoint::{LinkFault, LinkFaultKind};
use crate::model::fault::{Fault, Outcome};
use crate::wire::http::response::Head;
use crate::wire::http::url::Url;
use crate::wire::http_in::is_media;
use crate::wire::jsonrpc::{self, Message};
use crate::wire::remote::exchanges::{Ask, ExchangeId, Exchanges, Sent, Step};
use crate::wire::remote::{Channel, Command, Heard, headers, verdict};
use crate::wire::sse::reader::{Event, Reader};
use std::collections::{BTreeSet, HashMap, VecDeque};

pub struct SsePair {
    url: Url,
    row_headers: Vec<(String, String)>,
    /// There may be another token: a 401 is not the last word about a message.
    renews: bool,
    exchanges: Exchanges,
    stream: Option<ExchangeId>,
    events: Reader,
    stage: Stage,
    redirects: u8,
    posts: HashMap<ExchangeId, Post>,
    unanswered: BTreeSet<CallId>,
    /// Where it was tried instead of Streamable HTTP: what it begins with, and why it was tried.
    instead: Option<Instead>,
    out: VecDeque<Command>,
}

enum Stage {
    /// The stream has not told where to post.
    Opening {
        by_ms: u64,
    },
    Open {
        post_to: Url,
    },
    Over,
}

struct Post {
    call: Option<CallId>,
    /// Until its answer begins: a redirect wants it once more.
    message: Vec<u8>,
    redirects: u8,
}

/// A server that refused `initialize` as Streamable HTTP has it.
pub struct Instead {
    pub message: Vec<u8>,
    pub call: Option<CallId>,
    pub refused: LinkFault,
}

impl SsePair {
    pub fn new(url: Url, row_headers: &[(String, String)], renews: bool, by_ms: u64) -> SsePair {
        let exchanges = Exchanges::new(url.clone());
        SsePair::over(exchanges, url, (headers::of_row(row_headers), renews), by_ms, None)
    }

    /// On the connections of a Streamable HTTP that the server does not speak; that has told `Connected` already.
    pub fn instead(
        exchanges: Exchanges,
        url: Url,
        headers: (Vec<(String, String)>, bool),
        instead: Instead,
        now_ms: u64,
    ) -> SsePair {
        let by_ms = now_ms + LINK_ANSWER_WAIT.as_millis() as u64;
        SsePair::over(exchanges, url, headers, by_ms, Some(instead))
    }

    fn over(
        exchanges: Exchanges,
        url: Url,
        (row_headers, renews): (Vec<(String, String)>, bool),
        by_ms: u64,
        instead: Option<Instead>,
    ) -> SsePair {
        let mut pair = SsePair {
            url,
            row_headers,
            renews,
            exchanges,
            stream: None,
            events: Reader::new(UPSTREAM_EVENT_MAX),
            stage: Stage::Opening { by_ms },
            redirects: 0,
            posts: HashMap::new(),
            unanswered: BTreeSet::new(),
            instead,
            out: VecDeque::new(),
        };
        pair.open_stream();
        pair
    }

    fn open_stream(&mut self) {
        let mut headers = self.row_headers.clone();
        headers.push(("Accept".to_string(), "text/event-stream".to_string()));
        let ask = Ask { method: "GET", path: self.url.path.clone(), headers, body: None, by_ms: None };
        self.stream = Some(self.exchanges.begin(ask));
    }

    // --- out ------------------------------------------------------------------------------------------------------------

    pub fn write(&mut self, message: &[u8], call: Option<CallId>, now_ms: u64) {
        if let Some(Message::Notification { method, params }) = jsonrpc::parse(message)
            && method == "notifications/cancelled"
            && let Some(id) = params.and_then(|params| params.member("requestId")?.get().parse().ok())
        {
            self.cancel(CallId(id));
        }
        self.post(message.to_vec(), call, 0, now_ms);
    }

    /// Nobody waits for its answer any more, nor for whether it was taken.
    fn cancel(&mut self, call: CallId) {
        self.unanswered.remove(&call);
        let post = self.posts.iter().find(|(_, post)| post.call == Some(call)).map(|(id, _)| *id);
        if let Some(id) = post {
            self.posts.remove(&id);
            self.exchanges.give_up(id);
        }
    }

    fn post(&mut self, message: Vec<u8>, call: Option<CallId>, redirects: u8, now_ms: u64) {
        let Stage::Open { post_to } = &self.stage else {
            let fault = verdict::unavailable("the stream of events is not open", Outcome::NotSent);
            return self.out.extend(call.map(|call| Command::Undelivered { call, fault }));
        };
        let mut headers = self.row_headers.clone();
        headers.push(("Content-Type".to_string(), "application/json".to_string()));
        // Some servers answer a POST only when the call is done.
        let by_ms = call.is_none().then(|| now_ms + LINK_ANSWER_WAIT.as_millis() as u64);
        let (path, body) = (post_to.path.clone(), Some(message.clone()));
        let id = self.exchanges.begin(Ask { method: "POST", path, headers, body, by_ms });
        self.unanswered.extend(call);
        self.posts.insert(id, Post { call, message, redirects });
    }

    /// The stream ends, and with it the session: there is nothing to wait for.
    pub fn close(&mut self) {
        self.give_all_up();
        self.stage = Stage::Over;
    }

    fn give_all_up(&mut self) {
        self.posts.clear();
        self.unanswered.clear();
        self.stream = None;
        self.exchanges.close_all();
    }

    // --- in -------------------------------------------------------------------------------------------------------------

    pub fn heard(&mut self, channel: Channel, heard: Heard, now_ms: u64) {
        self.exchanges.heard(channel, heard, now_ms);
        self.follow(now_ms);
    }

    fn follow(&mut self, now_ms: u64) {
        while let Some((id, step)) = self.exchanges.next_step() {
            if self.stream == Some(id) {
                match step {
                    Step::Head(head) => self.stream_began(id, &head),
                    Step::Body(bytes) => self.read(&bytes, now_ms),
                    Step::End => {
                        self.lose(LinkFault::new(
                            LinkFaultKind::Closed,
                            "the external server ended the stream of events",
                        ));
                    }
                    Step::Failed { why, .. } => self.lose(why),
                }
            } else if let Some(post) = self.posts.remove(&id) {
                match step {
                    Step::Head(head) => self.post_answered(id, post, &head, now_ms),
                    Step::Body(_) | Step::End => {}
                    Step::Failed { sent, why } => {
                        let outcome = if sent == Sent::No { Outcome::NotSent } else { Outcome::SentUnknown };
                        self.undelivered(post.call, || verdict::unavailable(why.message.clone(), outcome));
                    }
                }
            }
        }
    }

    fn stream_began(&mut self, id: ExchangeId, head: &Head) {
        let to = self.redirect(&self.url, head);
        if let Some(to) = to.filter(|_| self.redirects < LINK_REDIRECTS_MAX) {
            self.redirects += 1;
            self.exchanges.give_up(id);
            self.url = to;
            return self.open_stream();
        }
        let media = head.header("content-type").unwrap_or_default();
        match head.status {
            200..300 if is_media(media.as_bytes(), "text/event-stream") => {}
            200..300 => {
                let media: String = media.chars().filter(|c| !c.is_control()).take(100).collect();
                let message = format!("the external server answers with no stream of events but {media:?}");
                self.refuse(LinkFault::new(LinkFaultKind::Protocol, message));
            }
            status => self.refuse(verdict::link_fault(status, verdict::retry_after_ms(head))),
        }
    }

    /// It does not open. Where this was the second thing to be tried, the first says more.
    fn refuse(&mut self, why: LinkFault) {
        let first = self.instead.take().map(|instead| instead.refused);
        self.lose(first.unwrap_or(why));
    }

    /// Where an answer sends what was sent to `from`, if that is within its origin.
    fn redirect(&self, from: &Url, head: &Head) -> Option<Url> {
        let to = from.join(head.header("location").filter(|to| to.len() <= URL_MAX)?)?;
        (matches!(head.status, 301 | 302 | 307 | 308) && to.same_origin(&self.url)).then_some(to)
    }

    fn read(&mut self, mut bytes: &[u8], now_ms: u64) {
        loop {
            match self.events.read(&mut bytes) {
                Ok(None) => return,
                Ok(Some(event)) => self.event(event, now_ms),
                Err(too_large) => {
                    // Whose answer it was cannot be told.
                    let unanswered = std::mem::take(&mut self.unanswered).into_iter();
                    let fault = || verdict::too_large(too_large.max);
                    self.out.extend(unanswered.map(|call| Command::Undelivered { call, fault: fault() }));
                    let message = format!("an event is larger than {} bytes", too_large.max);
                    return self.lose(LinkFault::new(LinkFaultKind::Protocol, message));
                }
            }
            if matches!(self.stage, Stage::Over) {
                return;
            }
        }
    }

    fn event(&mut self, event: Event, now_ms: u64) {
        match (&self.stage, &*event.name) {
            (Stage::Opening { .. }, "endpoint") => self.endpoint(&event.data, now_ms),
            (Stage::Open { .. }, "message") => {
                if let Some(Message::Reply { id, .. }) = jsonrpc::parse(&event.data) {
                    self.answered(CallId(id), now_ms);
                }
                self.out.push_back(Command::Line(event.data));
            }
            (Stage::Opening { .. } | Stage::Open { .. } | Stage::Over, _) => {}
        }
    }

    fn endpoint(&mut self, data: &[u8], now_ms: u64) {
        let text = std::str::from_utf8(data).ok().filter(|text| text.len() <= URL_MAX);
        let post_to = text.and_then(|text| self.url.join(text.trim()));
        let Some(post_to) = post_to.filter(|to| to.same_origin(&self.url)) else {
            let message = "the external server wants messages posted to another origin, or to no address";
            return self.lose(LinkFault::new(LinkFaultKind::Protocol, message));
        };
        self.stage = Stage::Open { post_to };
        match self.instead.take() {
            Some(Instead { message, call, .. }) => self.post(message, call, 0, now_ms),
            None => self.out.push_back(Command::Connected),
        }
    }

    fn answered(&mut self, call: CallId, now_ms: u64) {
        if !self.unanswered.remove(&call) {
            return;
        }
        let post = self.posts.iter().find(|(_, post)| post.call == Some(call)).map(|(id, _)| *id);
        if let Some(id) = post {
            self.exchanges.end_by(id, now_ms + LINK_STREAM_END.as_millis() as u64);
        }
    }

    fn post_answered(&mut self, id: ExchangeId, post: Post, head: &Head, now_ms: u64) {
        let to = match &self.stage {
            Stage::Open { post_to } => self.redirect(post_to, head),
            Stage::Opening { .. } | Stage::Over => None,
        };
        if let Some(to) = to.filter(|_| post.redirects < LINK_REDIRECTS_MAX) {
            self.exchanges.give_up(id);
            self.stage = Stage::Open { post_to: to };
            return self.post(post.message, post.call, post.redirects + 1, now_ms);
        }
        // What else it says is not looked at; but the end of it must come, so that the connection can be used again.
        self.exchanges.end_by(id, now_ms + LINK_ANSWER_WAIT.as_millis() as u64);
        let retry_after_ms = verdict::retry_after_ms(head);
        match head.status {
            200..300 => {}
            401 if self.renews && post.call.is_none_or(|call| self.unanswered.remove(&call)) => {
                self.out.push_back(Command::Unauthorized { message: post.message, call: post.call });
            }
            status => self.undelivered(post.call, || verdict::of_status(status, retry_after_ms)),
        }
        // The stream would have ended with the session, but not every proxy in between says so.
        if head.status == 404 {
            self.lose(LinkFault::new(LinkFaultKind::SessionLost, "the external server does not know the session"));
        }
    }

    /// Unless its answer has come on the stream meanwhile.
    fn undelivered(&mut self, call: Option<CallId>, fault: impl FnOnce() -> Fault) {
        if let Some(call) = call.filter(|call| self.unanswered.remove(call)) {
            self.out.push_back(Command::Undelivered { call, fault: fault() });
        }
    }

    fn lose(&mut self, why: LinkFault) {
        if !matches!(std::mem::replace(&mut self.stage, Stage::Over), Stage::Over) {
            self.give_all_up();
            self.out.push_back(Command::Lost(why));
        }
    }

    /// Another token is shown from now on.
    pub fn show(&mut self, authorization: String) {
        headers::authorize(&mut self.row_headers, authorization);
    }

    // --- time -----------------------------------------------------------------------------------------------------------

    pub fn next_deadline(&self) -> Option<u64> {
        let opening = match &self.stage {
            Stage::Opening { by_ms } => Some(*by_ms),
            Stage::Open { .. } | Stage::Over => None,
        };
        opening.into_iter().chain(self.exchanges.next_deadline()).min()
    }

    pub fn tick(&mut self, now_ms: u64) {
        self.exchanges.tick(now_ms);
        self.follow(now_ms);
        if let Stage::Opening { by_ms } = self.stage
            && by_ms <= now_ms
        {
            self.refuse(LinkFault::new(LinkFaultKind::Timeout, "the stream of events did not open in time"));
        }
    }

    pub fn poll(&mut self) -> Option<Command> {
        self.exchanges.poll().or_else(|| self.out.pop_front())
    }

    pub fn held(&self) -> usize {
        let instead = self.instead.as_ref().map_or(0, |instead| instead.message.len());
        let posts: usize = self.posts.values().map(|post| post.message.len()).sum();
        self.exchanges.held() + self.events.held() + posts + instead
    }
}

#[cfg(test)]
mod tests;
