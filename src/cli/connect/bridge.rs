//! The HTTP side of `connect`: a session, connections that are kept, and a thread for every answer that is waited for. A
//! request is written by whoever sends it, so that messages leave in the order in which they came; its answer is read by the
//! connection's own thread. A request that may have run is never sent again.

use super::message::{self, answers, cancelled, failure, one_line, refusal, stateless_headers};
use crate::cli::http::{Client, Connection, HttpError, Request, Stream};
use crate::limits::{CLIENT_ANSWER_MAX, CLIENT_GOODBYE_WAIT, CLIENT_RESUMES_MAX, CLIENT_SILENCE_MAX, STREAM_RETRY};
use crate::wire::answer::{Body, Head, read_head};
use crate::wire::sse::read_event;
use std::collections::HashMap;
use std::io::{self, BufReader, Read, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

const ACCEPT: &str = "application/json, text/event-stream";
const UNKNOWN: &str =
    "the connection to the daemon ended before the answer; the call was sent, and whether it ran is unknown";

pub struct Bridge {
    client: Client,
    path: String,
    session: Mutex<Session>,
    /// Connections on which nothing is waited for; the last one used is the first one used again.
    idle: Mutex<Vec<Lane>>,
    /// Requests whose answers have not come, by their ids.
    in_flight: Mutex<HashMap<String, Arc<Stream>>>,
    answered: Condvar,
    /// Held by whoever begins a new session in place of a lost one.
    renewal: Mutex<()>,
    /// For what is answered at once, and for those that must wait for the answer.
    direct: Mutex<Option<BufReader<Half>>>,
}

#[derive(Clone, Default)]
struct Session {
    id: Option<String>,
    version: Option<String>,
    /// The client's own words, to begin again when the daemon has forgotten the session.
    hello: Option<String>,
    ready: Option<String>,
}

/// A connection and the thread that reads from it. Without a `Lane` the thread ends.
struct Lane {
    stream: Arc<Stream>,
    jobs: Sender<Job>,
}

/// An answer to be waited for, on the lane on which its request was written.
struct Job {
    lane: Lane,
    id: Option<String>,
    line: String,
    session: Option<String>,
}

/// The reading end of a stream that somebody else writes to.
struct Half(Arc<Stream>);

impl Read for Half {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        (&*self.0).read(buf)
    }
}

/// How an answer came out.
enum Outcome {
    /// All that belongs to it was passed on.
    Done(Option<BufReader<Half>>),
    /// The daemon does not know the session; nothing has run.
    Forgotten(Option<BufReader<Half>>),
    /// The stream broke; where it can be resumed from.
    Broken(Option<String>),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Bridge {
    pub fn new(client: Client, path: String) -> Bridge {
        Bridge {
            client,
            path,
            session: Mutex::default(),
            idle: Mutex::default(),
            in_flight: Mutex::default(),
            answered: Condvar::new(),
            renewal: Mutex::default(),
            direct: Mutex::default(),
        }
    }

    /// The first request of a session. What follows it must wait for its answer.
    pub fn initialize(self: &Arc<Self>, id: &str, line: &str) {
        *lock(&self.session) = Session { hello: Some(line.to_string()), ..Session::default() };
        match self.shake_hands(id, line) {
            Ok(answer) => self.say(&answer),
            Err(why) => self.say(&failure(id, &why)),
        }
    }

    /// The answer to an `initialize`; the session is known then.
    fn shake_hands(&self, id: &str, line: &str) -> Result<String, String> {
        let mut found = None;
        // The old session, if there was one, is none of its business.
        let head = self.exchange(&Session::default(), line, |message| {
            if answers(message, id) {
                found = Some(message.to_string());
            }
        });
        let (head, body) = head.map_err(|why| why.to_string())?;
        if head.status != 200 {
            return Ok(refusal(id, head.status, &body));
        }
        let answer = found.ok_or("the daemon gave no answer to initialize")?;
        let parsed: serde_json::Value = serde_json::from_str(&answer).unwrap_or_default();
        let mut session = lock(&self.session);
        session.id = head.header("mcp-session-id").map(str::to_string);
        session.version = parsed["result"]["protocolVersion"].as_str().map(str::to_string);
        Ok(answer)
    }

    /// A request whose answer comes when it comes.
    pub fn request(self: &Arc<Self>, id: Option<String>, line: &str) {
        let session = lock(&self.session).id.clone();
        let key = id.clone().unwrap_or_else(|| line.to_string());
        match self.written(line) {
            Ok(lane) => {
                lock(&self.in_flight).insert(key, Arc::clone(&lane.stream));
                let jobs = lane.jobs.clone();
                let job = Job { lane, id, line: line.to_string(), session };
                jobs.send(job).expect("the thread of a lane lives as long as the lane");
            }
            Err(why) => self.say(&failure(id.as_deref().unwrap_or("null"), &why.to_string())),
        }
    }

    pub fn notify(self: &Arc<Self>, method: &str, line: &str) {
        let without_session = lock(&self.session).id.is_none();
        if method == "notifications/cancelled" && without_session {
            // Without a session the end of its connection is what cancels a request.
            if let Some(stream) = cancelled(line).and_then(|id| lock(&self.in_flight).remove(&id)) {
                stream.hang_up();
            }
            self.answered.notify_all();
            return;
        }
        if method == "notifications/initialized" {
            lock(&self.session).ready = Some(line.to_string());
        }
        self.tell(line);
        if method == "notifications/initialized" {
            self.listen();
        }
        if method == "notifications/cancelled" {
            // The client waits no more, and neither does the end of the input.
            if let Some(id) = cancelled(line) {
                lock(&self.in_flight).remove(&id);
                self.answered.notify_all();
            }
        }
    }

    /// What needs no answer. What cannot be delivered is said on stderr: there is no other place.
    pub fn tell(self: &Arc<Self>, line: &str) {
        let session = lock(&self.session).id.clone();
        let told = match self.exchange(&self.now(), line, |_| {}) {
            Ok((head, _)) if head.status == 404 && session.is_some() && self.begin_again(session.as_deref()) => {
                self.exchange(&self.now(), line, |_| {})
            }
            other => other,
        };
        match told {
            Ok((head, body)) if !(200..300).contains(&head.status) => {
                let why = refusal("null", head.status, &body);
                eprintln!("stdiod: a message was not taken: {why}");
            }
            Ok(_) => {}
            Err(why) => eprintln!("stdiod: a message was not delivered: {why}"),
        }
    }

    pub fn wait_for_answers(&self) {
        let mut in_flight = lock(&self.in_flight);
        while !in_flight.is_empty() {
            in_flight = self.answered.wait(in_flight).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }

    /// The session ends with us.
    pub fn end(&self) {
        let session = std::mem::take(&mut *lock(&self.session));
        let Some(id) = session.id else { return };
        let mut more = vec![("Mcp-Session-Id", id.as_str())];
        more.extend(session.version.as_deref().map(|version| ("MCP-Protocol-Version", version)));
        let (path, patience) = (self.path.as_str(), CLIENT_GOODBYE_WAIT);
        // A daemon that is gone has no session either.
        _ = self.client.send(&Request { method: "DELETE", path, accept: "*/*", body: None, more: &more, patience });
    }

    fn say(&self, message: &str) {
        let mut line = one_line(message).into_owned();
        line.push('\n');
        let mut out = io::stdout().lock();
        if out.write_all(line.as_bytes()).and_then(|()| out.flush()).is_err() {
            // Nobody reads any more.
            self.end();
            std::process::exit(0);
        }
    }

    // --- connections ------------------------------------------------------------------------------------------------

    /// A lane on which the request has been written.
    fn written(self: &Arc<Self>, line: &str) -> Result<Lane, HttpError> {
        let bytes = self.bytes(&self.now(), "POST", Some(line), &[]);
        while let Some(lane) = lock(&self.idle).pop() {
            // A request of which not all bytes could be written has not been read as one.
            if lane.stream.is_quiet() && (&*lane.stream).write_all(&bytes).is_ok() {
                return Ok(lane);
            }
        }
        let stream = Arc::new(self.connected()?);
        (&*stream).write_all(&bytes).map_err(|why| self.client.fault(why, CLIENT_SILENCE_MAX))?;
        let (jobs, waiting) = channel();
        let (bridge, reader) = (Arc::clone(self), BufReader::new(Half(Arc::clone(&stream))));
        std::thread::spawn(move || bridge.read_answers(&waiting, reader));
        Ok(Lane { stream, jobs })
    }

    fn connected(&self) -> Result<Stream, HttpError> {
        let stream = self.client.connect(CLIENT_SILENCE_MAX)?;
        stream.set_timeouts(CLIENT_SILENCE_MAX).map_err(|why| self.client.fault(why, CLIENT_SILENCE_MAX))?;
        Ok(stream)
    }

    fn bytes(&self, session: &Session, method: &str, body: Option<&str>, more: &[(&str, &str)]) -> Vec<u8> {
        let own = body.and_then(stateless_headers).unwrap_or_default();
        let mut headers: Vec<(&str, &str)> = own.iter().map(|(name, value)| (*name, value.as_str())).collect();
        if headers.is_empty() {
            headers.extend(session.id.as_deref().map(|id| ("Mcp-Session-Id", id)));
            headers.extend(session.version.as_deref().map(|version| ("MCP-Protocol-Version", version)));
        }
        headers.extend(more);
        let (path, accept) = (self.path.as_str(), if method == "GET" { "text/event-stream" } else { ACCEPT });
        let (body, more, patience) = (body.map(str::as_bytes), &headers[..], CLIENT_SILENCE_MAX);
        let mut bytes =
            self.client.request_head(&Request { method, path, accept, body, more, patience }, Connection::Keep);
        bytes.extend_from_slice(body.unwrap_or_default());
        bytes
    }

    fn now(&self) -> Session {
        lock(&self.session).clone()
    }

    /// One message and all of its answer, on the connection that is kept for that. `over` gets every message of it.
    fn exchange(
        &self,
        session: &Session,
        body: &str,
        mut over: impl FnMut(&str),
    ) -> Result<(Head, Vec<u8>), HttpError> {
        let fault = |why| self.client.fault(why, CLIENT_SILENCE_MAX);
        let mut direct = lock(&self.direct);
        let kept = direct.take().filter(|reader| reader.get_ref().0.is_quiet());
        let mut reader = match kept {
            Some(reader) => reader,
            None => BufReader::new(Half(Arc::new(self.connected()?))),
        };
        let bytes = self.bytes(session, "POST", Some(body), &[]);
        (&*reader.get_ref().0).write_all(&bytes).map_err(fault)?;
        let head = read_head(&mut reader).map_err(fault)?;
        let body = Body::of(&head, "POST", reader).map_err(fault)?;
        if is_stream(&head) {
            let mut events = BufReader::new(body);
            while let Some(event) = read_event(&mut events).map_err(fault)? {
                event.data.filter(|data| !data.is_empty()).iter().for_each(|data| over(data));
            }
            *direct = events.into_inner().into_reader();
            return Ok((head, Vec::new()));
        }
        let (text, reader) = read_whole(body).map_err(fault)?;
        *direct = reader;
        if head.status == 200 {
            over(&String::from_utf8_lossy(&text));
        }
        Ok((head, text))
    }

    // --- answers ----------------------------------------------------------------------------------------------------

    /// The thread of a lane.
    fn read_answers(self: &Arc<Self>, waiting: &Receiver<Job>, reader: BufReader<Half>) {
        let mut reader = Some(reader);
        while let (Ok(job), Some(kept)) = (waiting.recv(), reader.take()) {
            let Job { lane, id, line, session } = job;
            let mut outcome = self.pass_answer(id.as_deref(), kept);
            if let Outcome::Forgotten(kept) = outcome {
                // The session is gone, and with it nothing has run: the same once more in a new one.
                let again = self.begin_again(session.as_deref());
                let bytes = self.bytes(&self.now(), "POST", Some(&line), &[]);
                outcome = match kept {
                    Some(kept) if again && (&*lane.stream).write_all(&bytes).is_ok() => {
                        self.pass_answer(id.as_deref(), kept)
                    }
                    Some(_) | None => Outcome::Broken(None),
                };
            }
            if let Outcome::Broken(last) = &outcome
                && self.is_awaited(id.as_deref(), &line)
                && !self.resumed(id.as_deref(), last.clone())
            {
                self.say(&failure(id.as_deref().unwrap_or("null"), UNKNOWN));
            }
            if let Outcome::Done(Some(kept)) = outcome {
                reader = Some(kept);
                lock(&self.idle).push(lane);
            }
            lock(&self.in_flight).remove(id.as_ref().unwrap_or(&line));
            self.answered.notify_all();
        }
    }

    fn is_awaited(&self, id: Option<&str>, line: &str) -> bool {
        lock(&self.in_flight).contains_key(id.unwrap_or(line))
    }

    /// Passes one answer on, and everything that comes before it.
    fn pass_answer(&self, id: Option<&str>, mut reader: BufReader<Half>) -> Outcome {
        let Ok(head) = read_head(&mut reader) else { return Outcome::Broken(None) };
        let Ok(body) = Body::of(&head, "POST", reader) else { return Outcome::Broken(None) };
        // The daemon closes it with this answer: a request that is written to it now may be lost.
        let closes = head.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        if is_stream(&head) {
            return match self.pass_stream(id, body) {
                Outcome::Done(_) if closes => Outcome::Done(None),
                outcome @ (Outcome::Done(_) | Outcome::Forgotten(_) | Outcome::Broken(_)) => outcome,
            };
        }
        let Ok((text, reader)) = read_whole(body) else { return Outcome::Broken(None) };
        let reader = reader.filter(|_| !closes);
        match head.status {
            200 => self.say(&String::from_utf8_lossy(&text)),
            202 => {}
            404 if lock(&self.session).id.is_some() => return Outcome::Forgotten(reader),
            status => self.say(&refusal(id.unwrap_or("null"), status, &text)),
        }
        Outcome::Done(reader)
    }

    fn pass_stream(&self, id: Option<&str>, body: Body<Half>) -> Outcome {
        let mut events = BufReader::new(body);
        let mut last = None;
        // A batch is answered when its stream is over.
        let mut is_answered = id.is_none();
        loop {
            match read_event(&mut events) {
                Ok(Some(event)) => {
                    last = event.id.or(last);
                    if let Some(data) = event.data.filter(|data| !data.is_empty()) {
                        is_answered |= id.is_some_and(|id| answers(&data, id));
                        self.say(&data);
                    }
                }
                Ok(None) if is_answered => return Outcome::Done(events.into_inner().into_reader()),
                Err(_) if is_answered => return Outcome::Done(None),
                Ok(None) | Err(_) => return Outcome::Broken(last),
            }
        }
    }

    /// The rest of a stream that broke, from where it was. False: it cannot be had.
    fn resumed(&self, id: Option<&str>, mut last: Option<String>) -> bool {
        for _ in 0..CLIENT_RESUMES_MAX {
            let Some(from) = last else { return false };
            std::thread::sleep(STREAM_RETRY);
            match self.open_stream(Some(&from)) {
                Ok(Ok(body)) => match self.pass_stream(id, body) {
                    Outcome::Done(_) | Outcome::Forgotten(_) => return true,
                    Outcome::Broken(next) => last = next.or(Some(from)),
                },
                Ok(Err(_)) => return false,
                // The daemon may be on its way back.
                Err(_) => last = Some(from),
            }
        }
        false
    }

    // --- the session ------------------------------------------------------------------------------------------------

    /// What the server says when nobody asked.
    fn listen(self: &Arc<Self>) {
        let bridge = Arc::clone(self);
        let session = lock(&self.session).id.clone();
        if session.is_none() {
            return;
        }
        std::thread::spawn(move || {
            let mut last = None;
            while lock(&bridge.session).id == session {
                match bridge.open_stream(last.as_deref()) {
                    Ok(Ok(body)) => last = bridge.pass_all(body).or(last),
                    // There is no such stream, or no such session any more: the next request finds that out.
                    Ok(Err(_)) => return,
                    Err(_) => {}
                }
                std::thread::sleep(STREAM_RETRY);
            }
        });
    }

    /// A stream of its own, or the status with which it was refused.
    fn open_stream(&self, last: Option<&str>) -> Result<Result<Body<Half>, u16>, HttpError> {
        let fault = |why| self.client.fault(why, CLIENT_SILENCE_MAX);
        let more: Vec<(&str, &str)> = last.map(|last| ("Last-Event-ID", last)).into_iter().collect();
        let mut reader = BufReader::new(Half(Arc::new(self.connected()?)));
        (&*reader.get_ref().0).write_all(&self.bytes(&self.now(), "GET", None, &more)).map_err(fault)?;
        let head = read_head(&mut reader).map_err(fault)?;
        if head.status != 200 || !is_stream(&head) {
            return Ok(Err(head.status));
        }
        Ok(Ok(Body::of(&head, "GET", reader).map_err(fault)?))
    }

    /// Where it can be resumed from.
    fn pass_all(&self, body: Body<Half>) -> Option<String> {
        let mut events = BufReader::new(body);
        let mut last = None;
        while let Ok(Some(event)) = read_event(&mut events) {
            last = event.id.or(last);
            if let Some(data) = event.data.filter(|data| !data.is_empty()) {
                self.say(&data);
            }
        }
        last
    }

    /// A new session in place of one that the daemon does not know any more, with the client's own words. True: there is one.
    fn begin_again(self: &Arc<Self>, lost: Option<&str>) -> bool {
        let _one_at_a_time = lock(&self.renewal);
        let Session { id: now, hello, ready, .. } = self.now();
        if now.as_deref() != lost {
            // Somebody else has been here.
            return now.is_some();
        }
        let Some(hello) = hello else { return false };
        let Some(message::Kind::Request { id, .. }) = message::kind(&hello) else { return false };
        self.shake_hands(&id, &hello).ok();
        if self.now().id == now {
            return false;
        }
        if let Some(ready) = ready {
            _ = self.exchange(&self.now(), &ready, |_| {});
            self.listen();
        }
        true
    }
}

fn is_stream(head: &Head) -> bool {
    head.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"))
}

fn read_whole(mut body: Body<Half>) -> io::Result<(Vec<u8>, Option<BufReader<Half>>)> {
    let mut bytes = Vec::new();
    (&mut body).take(CLIENT_ANSWER_MAX as u64).read_to_end(&mut bytes)?;
    Ok((bytes, body.into_reader()))
}
