//! One answer of an external server to a POST or a GET: JSON, events, or a refusal, as it comes. Owns its bytes, within
//! bounds, and whether the call it belongs to has been answered; never decides what follows from that.

use crate::ids::CallId;
use crate::limits::{LINE_MAX, LINK_REFUSAL_MAX, UPSTREAM_EVENT_MAX};
use crate::model::fault::Fault;
use crate::wire::http::response::Head;
use crate::wire::http_in::is_media;
use crate::wire::json;
use crate::wire::jsonrpc::{self, Message};
use crate::wire::remote::verdict;
use crate::wire::sse::reader::Reader;

pub struct Answer {
    call: Option<CallId>,
    answered: bool,
    /// The event that it goes on from.
    after: String,
    progress: bool,
    body: Body,
}

enum Body {
    /// Its head has not come.
    Awaited,
    Json(Vec<u8>),
    Events(Box<Reader>),
    Refusal {
        status: u16,
        retry_after_ms: Option<u64>,
        text: Vec<u8>,
    },
    /// Nobody wants it.
    Ignored,
    /// A request was answered by something that is no answer.
    Foreign(String),
}

pub enum Came {
    /// And these messages last.
    All(Vec<Vec<u8>>),
    Wrong(Fault),
    /// A stream without the answer, or one that never has an end: where to resume it, when, and whether it brought anything.
    CutOff {
        after: String,
        retry_ms: Option<u64>,
        progress: bool,
    },
    Refused(Refusal),
}

pub struct Refusal {
    pub status: u16,
    pub retry_after_ms: Option<u64>,
    /// The JSON-RPC error that the server gives for this very call.
    pub reply: Option<Vec<u8>>,
    /// It speaks of sessions.
    pub names_session: bool,
}

impl Answer {
    pub fn of(call: Option<CallId>) -> Answer {
        Answer::after(call, "")
    }

    pub fn after(call: Option<CallId>, after: &str) -> Answer {
        Answer { call, answered: false, after: after.to_string(), progress: false, body: Body::Awaited }
    }

    /// Its call has its reply; what comes behind that nobody waits for.
    pub fn is_answered(&self) -> bool {
        self.answered
    }

    pub fn begin(&mut self, head: &Head) {
        let media = head.header("content-type").unwrap_or_default();
        let is = |wanted| is_media(media.as_bytes(), wanted);
        self.body = match head.status {
            200..300 if is("text/event-stream") => Body::Events(Box::new(Reader::new(UPSTREAM_EVENT_MAX))),
            200..300 if is("application/json") => Body::Json(Vec::new()),
            200..300 if self.call.is_none() => Body::Ignored,
            200..300 => Body::Foreign(media.chars().filter(|c| !c.is_control()).take(100).collect()),
            status => Body::Refusal { status, retry_after_ms: verdict::retry_after_ms(head), text: Vec::new() },
        };
    }

    /// Messages that are whole; or what it all came to, and the rest is not wanted.
    pub fn take(&mut self, mut bytes: &[u8]) -> Result<Vec<Vec<u8>>, Came> {
        let mut lines = Vec::new();
        match &mut self.body {
            Body::Awaited | Body::Ignored | Body::Foreign(_) => {}
            Body::Json(text) if text.len() + bytes.len() > LINE_MAX => {
                return Err(Came::Wrong(verdict::too_large(LINE_MAX)));
            }
            Body::Json(text) => text.extend_from_slice(bytes),
            Body::Refusal { text, .. } => {
                let room = LINK_REFUSAL_MAX - text.len().min(LINK_REFUSAL_MAX);
                text.extend_from_slice(&bytes[..bytes.len().min(room)]);
            }
            Body::Events(reader) => loop {
                match reader.read(&mut bytes) {
                    Ok(None) => break,
                    // It only says where to resume.
                    Ok(Some(event)) if event.data.is_empty() || event.name != "message" => self.progress = true,
                    Ok(Some(event)) => {
                        self.progress = true;
                        match reply_to(&event.data) {
                            Parsed::NotJson => {
                                let fault = verdict::bad_output("an event is no JSON-RPC message");
                                return Err(Came::Wrong(fault));
                            }
                            Parsed::Reply(id) => self.answered |= Some(CallId(id)) == self.call,
                            Parsed::Other => {}
                        }
                        lines.push(event.data);
                    }
                    Err(too_large) => return Err(Came::Wrong(verdict::too_large(too_large.max))),
                }
            },
        }
        Ok(lines)
    }

    /// The server says that this was all.
    pub fn end(&mut self) -> Came {
        match std::mem::replace(&mut self.body, Body::Ignored) {
            Body::Awaited | Body::Ignored => Came::All(Vec::new()),
            Body::Foreign(media) => {
                Came::Wrong(verdict::bad_output(format!("the answer is neither JSON nor events but {media:?}")))
            }
            Body::Json(text) => self.end_json(text),
            Body::Events(_) if self.answered => Came::All(Vec::new()),
            Body::Events(reader) => {
                let after = if reader.last_event_id().is_empty() { &self.after } else { reader.last_event_id() };
                Came::CutOff { after: after.to_string(), retry_ms: reader.retry_ms(), progress: self.progress }
            }
            Body::Refusal { status, retry_after_ms, text } => {
                let reply = self.call.and_then(|call| error_for(call, &text));
                let names_session = memchr::memmem::find(&text.to_ascii_lowercase(), b"session").is_some();
                Came::Refused(Refusal { status, retry_after_ms, reply, names_session })
            }
        }
    }

    /// It broke: where it could be resumed.
    pub fn cut_off(&self) -> (String, Option<u64>, bool) {
        match &self.body {
            Body::Events(reader) if !reader.last_event_id().is_empty() => {
                (reader.last_event_id().to_string(), reader.retry_ms(), self.progress)
            }
            Body::Events(reader) => (self.after.clone(), reader.retry_ms(), self.progress),
            Body::Awaited | Body::Json(_) | Body::Refusal { .. } | Body::Ignored | Body::Foreign(_) => {
                (self.after.clone(), None, self.progress)
            }
        }
    }

    /// One message, or, in 2025-03-26, an array of them.
    fn end_json(&mut self, text: Vec<u8>) -> Came {
        let texts: Vec<Vec<u8>> = match text.trim_ascii_start().first() {
            Some(b'[') => {
                let items: Result<Vec<_>, _> =
                    json::items(&text).map(|item| item.map(|item| item.get().into())).collect();
                match items {
                    Ok(items) => items,
                    Err(_) => return Came::Wrong(verdict::bad_output("the answer is no JSON")),
                }
            }
            _ => vec![text],
        };
        let answers = |text: &Vec<u8>| match reply_to(text) {
            Parsed::Reply(id) => Some(CallId(id)) == self.call,
            Parsed::NotJson | Parsed::Other => false,
        };
        match self.call.is_none() || texts.iter().any(answers) {
            true => Came::All(texts),
            false => Came::Wrong(verdict::bad_output("the answer is no JSON-RPC reply to the call")),
        }
    }

    pub fn held(&self) -> usize {
        match &self.body {
            Body::Json(text) | Body::Refusal { text, .. } => text.capacity(),
            Body::Events(reader) => reader.held(),
            Body::Awaited | Body::Ignored | Body::Foreign(_) => 0,
        }
    }
}

enum Parsed {
    NotJson,
    Reply(u64),
    Other,
}

fn reply_to(text: &[u8]) -> Parsed {
    match jsonrpc::parse(text) {
        None => Parsed::NotJson,
        Some(Message::Reply { id, .. }) => Parsed::Reply(id),
        Some(Message::Request { .. } | Message::Notification { .. } | Message::Stray) => Parsed::Other,
    }
}

/// The reply that stands in a refusal, if it is this call's.
fn error_for(call: CallId, text: &[u8]) -> Option<Vec<u8>> {
    match reply_to(text) {
        Parsed::Reply(id) if id == call.0 => Some(text.to_vec()),
        Parsed::Reply(_) | Parsed::NotJson | Parsed::Other => None,
    }
}
