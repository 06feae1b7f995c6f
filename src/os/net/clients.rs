//! All client connections: accepting them, reading their requests into the core, writing its answers out, and ending
//! those that are too slow. Invariant: a client the core is working for is known to it until it is told `ClientGone`.

pub mod carried;
mod imports;
mod requests;

use crate::api::audit::{self, AuditOutcome};
use crate::api::auth;
use crate::api::import::body::Candidate;
use crate::api::mcp;
use crate::api::response::{Answer, StreamEvent};
use crate::api::rest;
use crate::core::Core;
use crate::core::contract::{Input, Now};
use crate::ids::{ConnId, IdMap};
use crate::limits::{BYTES_AT_ONCE, CONNECTIONS_MAX, CONNECTIONS_REFUSED_MAX};
use crate::model::fault::{Code, Fault};
use crate::model::metrics::Traffic;
use crate::model::news::News;
use crate::os::event_loop::boot::NewConnection;
use crate::os::event_loop::lookups::{Question, Wants};
use crate::os::event_loop::token::EventSource;
use crate::os::logs::audit::Audit;
use crate::os::net::client::{Client, Doing, ReadOutcome, Via};
use crate::os::net::clients::imports::Imports;
use crate::os::net::clients::requests::{admissible, look_at_bearer, note_denied, write_down};
use crate::os::net::descriptors::Descriptors;
use crate::os::net::holding::{Holding, Strangers};
use crate::os::net::oauth::{self, AuthServer, Look};
use crate::os::net::proxy::Handed;
use crate::os::net::rates::Rates;
use crate::os::net::refusals::{self, overloaded};
use crate::shares::{Owner, Resource, Shares, Short};
use crate::wire::forwarded::TrustedProxies;
use crate::wire::http_in::{Parser, RequestPhase, Step};
use crate::wire::http_out::{self, Framing, HeadStart, Response};
use mio::event::Event;
use mio::{Interest, Registry};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::{self, Write};
use std::sync::Arc;

/// What the disk has said to a request, or what its document is.
pub enum LookedUp {
    Definition { wants: Wants, fault: Option<Fault> },
    Import(Result<Vec<Candidate>, Fault>),
}

pub struct Clients {
    map: IdMap<ConnId, Client>,
    minted: u64,
    /// What registrations ask of the disk, before the core hears of them.
    questions: Vec<Question>,
    imports: Imports,
    /// Those who want the daemon to replace its program, and by which.
    upgrades: Vec<(ConnId, Option<String>)>,
    /// Connections that are the proxy's from here on.
    handed: Vec<Handed>,
    descriptors: Descriptors,
    audit: Audit,
    rates: Rates,
    /// None: tokens are our own alone.
    auth_server: Option<AuthServer>,
    proxies: Arc<TrustedProxies>,
    strangers: Strangers,
    scratch: Vec<u8>,
    /// Those with something to write, or to end, before the loop sleeps.
    touched: Vec<ConnId>,
    /// Those that have more to read though the kernel will not say so again.
    runnable: Vec<ConnId>,
    /// Those whose answer is large, and whose socket may take more of it; the next one first.
    large: VecDeque<ConnId>,
    /// When to look at a client's deadline. Lazy: an entry may be early, never late.
    deadlines: BinaryHeap<Reverse<(u64, ConnId)>>,
    heads: HeadStart,
    /// Of connections that are over.
    past_traffic: Traffic,
}

impl Clients {
    pub fn new(
        descriptors: Descriptors,
        audit: Audit,
        rates: Rates,
        auth_server: Option<AuthServer>,
        proxies: TrustedProxies,
    ) -> Clients {
        Clients {
            proxies: Arc::new(proxies),
            audit,
            rates,
            auth_server,
            map: IdMap::default(),
            minted: 0,
            questions: Vec::new(),
            imports: Imports::default(),
            upgrades: Vec::new(),
            handed: Vec::new(),
            descriptors,
            strangers: Strangers::default(),
            scratch: vec![0; 64 * 1024],
            touched: Vec::new(),
            runnable: Vec::new(),
            large: VecDeque::new(),
            deadlines: BinaryHeap::new(),
            heads: HeadStart::default(),
            past_traffic: Traffic::default(),
        }
    }

    pub fn len(&self) -> usize {
        self.map.len()
    }

    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    pub fn traffic(&self) -> Traffic {
        let open = self.map.values().map(|client| client.traffic);
        open.fold(self.past_traffic, Traffic::plus)
    }

    pub fn take_handed(&mut self) -> Vec<Handed> {
        std::mem::take(&mut self.handed)
    }

    pub fn take_questions(&mut self) -> Vec<Question> {
        std::mem::take(&mut self.questions)
    }

    pub fn has_runnable(&self) -> bool {
        !self.runnable.is_empty()
    }

    pub fn has_large(&self) -> bool {
        !self.large.is_empty()
    }

    // --- in ---------------------------------------------------------------------------------------------------------

    pub fn admit(
        &mut self,
        came: NewConnection,
        registry: &Registry,
        core: &mut Core,
        shares: &mut Shares,
        now: Now,
    ) -> io::Result<()> {
        let NewConnection { mut socket, peer, owner } = came;
        let counted = self.make_room(&owner, core, shares, now);
        let refused = !counted && self.map.len() >= CONNECTIONS_MAX + CONNECTIONS_REFUSED_MAX;
        // Nothing can be said to one that would have to shake hands first: that is what there is no room for.
        let refused = refused || (!counted && socket.is_handshaking());
        if refused || !self.descriptors.spare(&socket) {
            shares.give_back(&owner, Resource::Connections, usize::from(counted));
            // Best effort, and no lingering: it is a fresh socket, so the few bytes fit its buffer.
            let mut busy = Vec::new();
            http_out::write_busy(&mut busy, self.heads.at(now.unix_ms).date(), socket.begins_with_head());
            _ = socket.write(&busy);
            return Ok(());
        }
        self.minted += 1;
        let id = ConnId(self.minted);
        let token = EventSource::Client(id).token();
        if let Err(e) = registry.register(socket.source(), token, Interest::READABLE | Interest::WRITABLE) {
            shares.give_back(&owner, Resource::Connections, usize::from(counted));
            return Err(e);
        }
        if counted && owner.is_stranger() {
            let is_still = |id| self.map.get(&id).is_some_and(|client| *client.holding.owner() == owner);
            self.strangers.came(&owner, id, is_still);
        }
        let holding = Holding::new(owner, usize::from(counted));
        let via = Via::of(&socket, &self.proxies);
        let mut client = Client::new(id, socket, peer, holding, now.mono_ms);
        client.via = via;
        if !counted {
            let head_only = client.socket.begins_with_head();
            http_out::write_busy(client.out.tail(), self.heads.at(now.unix_ms).date(), head_only);
            client.doing = Doing::Closing;
        }
        self.map.insert(id, client);
        self.touched.push(id);
        Ok(())
    }

    /// A place for one more connection of this owner. Whoever has shown no token and has all the places that it may have
    /// loses its oldest: of those who hold connections and say nothing, it is the one most likely forgotten, and whoever
    /// is at the same address and does say something is not locked out by them.
    fn make_room(&mut self, owner: &Owner, core: &mut Core, shares: &mut Shares, now: Now) -> bool {
        loop {
            match shares.take(owner, Resource::Connections, 1) {
                Ok(()) => return true,
                Err(Short::Whole) => return false,
                Err(Short::Owner) => {
                    let Some(oldest) = self.strangers.oldest(owner) else { return false };
                    let is_it = |client: &Client| client.holding.is_counted() && client.holding.owner() == owner;
                    if self.map.get(&oldest).is_some_and(is_it) {
                        self.drop_client(oldest, core, shares, now);
                    }
                }
            }
        }
    }

    /// The kernel says something of this client.
    pub fn woke(&mut self, id: ConnId, event: &Event, core: &mut Core, shares: &mut Shares, now: Now) {
        let Some(client) = self.map.get_mut(&id) else { return };
        let closed = event.is_read_closed() || event.is_error();
        client.readable |= event.is_readable() || closed;
        client.hung_up |= closed;
        if closed && matches!(client.doing, Doing::Waiting | Doing::Streaming) {
            // It does not wait for its answer any more.
            client.doing = Doing::Closed;
            self.note(id, AuditOutcome::Failed, now);
            core.handle(Input::ClientGone { conn: id }, now);
            self.touched.push(id);
            return;
        }
        if event.is_writable() && client.has_backlog() {
            self.touched.push(id);
        }
        if client.readable {
            self.serve(id, core, shares, now);
        }
    }

    /// Everyone who stopped reading early in the last turn.
    pub fn serve_runnable(&mut self, core: &mut Core, shares: &mut Shares, now: Now) {
        for id in std::mem::take(&mut self.runnable) {
            let Some(client) = self.map.get_mut(&id) else { continue };
            client.queued = false;
            self.serve(id, core, shares, now);
        }
    }

    /// Reads at most one request and gives it to the core. None is read while an earlier answer is on its way out, so a
    /// client that asks without listening is held back by its own socket.
    fn serve(&mut self, id: ConnId, core: &mut Core, shares: &mut Shares, now: Now) {
        let Some(client) = self.map.get_mut(&id) else { return };
        if matches!(client.doing, Doing::Lingering { .. }) {
            client.drain(&mut self.scratch, now.mono_ms);
            return self.go_on_later(id);
        }
        while client.doing == Doing::Reading && !client.has_backlog() {
            match client.read(&mut self.scratch) {
                ReadOutcome::Nothing => {
                    if look_at_bearer(&mut self.auth_server, client, core, now) == Look::Wait {
                        return self.touched.push(id);
                    }
                    if let Err(response) = admissible(client, shares, core, now) {
                        return self.refuse_head(id, response, shares, now);
                    }
                    return self.go_on_later(id);
                }
                ReadOutcome::Gone => {
                    client.doing = Doing::Closed;
                    self.touched.push(id);
                }
                ReadOutcome::Step(Step::Continue) => {
                    // It is said once, so whoever is to wait hears it first.
                    let look = look_at_bearer(&mut self.auth_server, client, core, now);
                    if look == Look::Done
                        && let Err(response) = admissible(client, shares, core, now)
                    {
                        return self.refuse_head(id, response, shares, now);
                    }
                    client.out.tail().extend_from_slice(http_out::CONTINUE);
                    self.touched.push(id);
                }
                ReadOutcome::Step(Step::Refuse(fault)) => {
                    let worthless = client.parser.refused_credentials() && self.auth_server.is_some();
                    let fault =
                        if worthless { auth::worthless("the token is longer than any is taken") } else { fault };
                    let response = refusals::unread(fault, client.parser.refused_path());
                    return self.refuse(id, response, shares, now);
                }
                ReadOutcome::Step(Step::Request) => {
                    // Also one that came all at once, with others behind it: what is held is counted before it is kept.
                    if let Err(short) = client.count(shares) {
                        let response = refusals::unread(overloaded(short), &client.parser.request().path);
                        return self.refuse(id, response, shares, now);
                    }
                    return self.request(id, None, core, shares, now);
                }
                ReadOutcome::Step(Step::NeedMore) => unreachable!("read() goes on instead"),
            }
        }
    }

    /// There may be more to read, in the next turn; and its deadline may have moved.
    fn go_on_later(&mut self, id: ConnId) {
        let Some(client) = self.map.get_mut(&id) else { return };
        if client.readable && !std::mem::replace(&mut client.queued, true) {
            self.runnable.push(id);
        }
        self.touched.push(id);
    }

    /// The refusal of a request of which only the head was looked at.
    fn refuse_head(&mut self, id: ConnId, response: Response, shares: &mut Shares, now: Now) {
        if let Some(client) = self.map.get_mut(&id)
            && let Some(head) = client.parser.head()
        {
            let head = Via::hear(&mut client.via, head);
            note_denied(&mut self.audit, client, &head, response.status, now);
        }
        self.refuse(id, response, shares, now);
    }

    /// The answer to a request that is not read to its end: nothing on the connection means anything after it.
    fn refuse(&mut self, id: ConnId, response: Response, shares: &mut Shares, now: Now) {
        let Some(client) = self.map.get_mut(&id) else { return };
        (client.keep_alive, client.head_only, client.http10) = (false, client.parser.is_for_head(), false);
        self.respond(id, response, shares, now);
    }

    // --- out --------------------------------------------------------------------------------------------------------

    pub fn answer(&mut self, id: ConnId, answer: Answer, core: &mut Core, shares: &mut Shares, now: Now) {
        let Some(client) = self.map.get_mut(&id) else { return };
        audit::keep_what_was_done(&mut client.drafts, &answer);
        write_down(&mut self.audit, client, audit::outcome(&answer), now);
        if client.doing == Doing::Closed {
            return;
        }
        let (streams, refuse) = refusals::without_room(&answer);
        let response = rest::render(answer);
        let fits = match streams {
            true => client.holding.open_stream(shares),
            false => client.count_with(response.body.len(), shares),
        };
        match (fits, streams) {
            (Ok(()), true) => self.open_stream(id, &response, now),
            (Ok(()), false) => {
                put_answer(client, response, self.heads.at(now.unix_ms), shares, now);
                self.touched.push(id);
            }
            (Err(short), false) => self.respond(id, refuse(short), shares, now),
            (Err(short), true) => {
                self.respond(id, refuse(short), shares, now);
                core.handle(Input::ClientGone { conn: id }, now);
            }
        }
    }

    fn respond(&mut self, id: ConnId, response: Response, shares: &mut Shares, now: Now) {
        let Some(client) = self.map.get_mut(&id).filter(|client| client.doing != Doing::Closed) else { return };
        put_answer(client, response, self.heads.at(now.unix_ms), shares, now);
        self.touched.push(id);
    }

    /// The answer begins, and goes on with `event` until one side ends it.
    fn open_stream(&mut self, id: ConnId, first: &Response, now: Now) {
        let client = self.map.get_mut(&id).expect("it is being answered");
        client.doing = Doing::Streaming;
        let left_ms = |until_unix_ms: u64| until_unix_ms.saturating_sub(now.unix_ms);
        client.ends_ms = client.shown.grant().map(|grant| now.mono_ms + left_ms(grant.until_unix_ms()));
        client.rearm(now.mono_ms);
        let framing = Framing { keep_alive: false, head_only: client.head_only, http10: client.http10 };
        let (out, date) = (client.out.tail(), self.heads.at(now.unix_ms).date());
        http_out::write_stream_head(out, first.status, first.content_type, &first.headers, date, framing);
        self.push(id, &first.body);
    }

    pub fn event(&mut self, id: ConnId, event: &StreamEvent) {
        let mut text = Vec::new();
        mcp::event(&mut text, event);
        self.push(id, &text);
    }

    pub fn news(&mut self, id: ConnId, news: &News) {
        let mut event = Vec::new();
        rest::write_news(&mut event, news);
        self.push(id, &event);
    }

    fn push(&mut self, id: ConnId, bytes: &[u8]) {
        let Some(client) = self.map.get_mut(&id) else { return };
        match client.http10 {
            true => client.out.tail().extend_from_slice(bytes),
            false => http_out::write_chunk(client.out.tail(), bytes),
        }
        self.touched.push(id);
    }

    pub fn end_stream(&mut self, id: ConnId) {
        let Some(client) = self.map.get_mut(&id).filter(|client| client.doing != Doing::Closed) else { return };
        if !client.http10 {
            http_out::write_last_chunk(client.out.tail());
        }
        client.doing = Doing::Closing;
        self.touched.push(id);
    }

    /// The last phase of a turn: write what there is, close what is over. Large answers only take their place.
    pub fn flush(&mut self, core: &mut Core, shares: &mut Shares, now: Now) {
        let mut touched = std::mem::take(&mut self.touched);
        for id in touched.drain(..) {
            let Some(client) = self.map.get_mut(&id) else { continue };
            // Its end came with its request, and it was not answered at once.
            if client.hung_up && matches!(client.doing, Doing::Waiting | Doing::Streaming) {
                self.drop_client(id, core, shares, now);
                continue;
            }
            client.large |= client.out.len() > BYTES_AT_ONCE && client.doing != Doing::Streaming;
            if !client.large {
                self.write(id, BYTES_AT_ONCE, core, shares, now);
            } else if client.doing == Doing::Closed {
                self.remove(id, shares);
            } else if !std::mem::replace(&mut client.queued_large, true) {
                self.large.push_back(id);
            }
        }
        // Nobody was added meanwhile; the list keeps its memory.
        self.touched = touched;
    }

    /// The next piece of the large answer whose turn it is.
    pub fn write_large(&mut self, most: usize, core: &mut Core, shares: &mut Shares, now: Now) {
        while let Some(id) = self.large.pop_front() {
            if let Some(client) = self.map.get_mut(&id) {
                client.queued_large = false;
                return self.write(id, most, core, shares, now);
            }
        }
    }

    fn write(&mut self, id: ConnId, most: usize, core: &mut Core, shares: &mut Shares, now: Now) {
        let Some(client) = self.map.get_mut(&id) else { return };
        if client.has_backlog() || client.doing == Doing::Closing {
            let Ok(might_take_more) = client.flush(most, now.mono_ms) else {
                return self.drop_client(id, core, shares, now);
            };
            // An answer was counted when it was made. A stream is counted by what its client has not taken, and one whose
            // owner may have no more of that is over.
            let kept = client.has_backlog() || client.holding.has_memory();
            if kept && client.count(shares).is_err() && client.doing == Doing::Streaming {
                return self.drop_client(id, core, shares, now);
            }
            client.large = client.has_backlog() && client.doing != Doing::Streaming;
            if might_take_more && !std::mem::replace(&mut client.queued_large, true) {
                self.large.push_back(id);
            }
            // Whatever came meanwhile was left where it was.
            if !client.has_backlog() && client.has_unread() && !std::mem::replace(&mut client.queued, true) {
                self.runnable.push(id);
            }
        }
        if client.doing == Doing::Closed {
            self.remove(id, shares);
        } else {
            arm(client, &mut self.deadlines);
        }
    }

    // --- deadlines ----------------------------------------------------------------------------------------------------

    pub fn next_deadline(&self) -> Option<u64> {
        self.deadlines.peek().map(|Reverse((at, _))| *at)
    }

    pub fn expire(&mut self, core: &mut Core, shares: &mut Shares, now: Now) {
        while self.next_deadline().is_some_and(|at| at <= now.mono_ms) {
            let Reverse((at, id)) = self.deadlines.pop().expect("just peeked");
            let Some(client) = self.map.get_mut(&id) else { continue };
            if client.armed_ms != Some(at) {
                continue;
            }
            client.armed_ms = None;
            match client.deadline_ms {
                Some(deadline) if deadline <= now.mono_ms => self.too_slow(id, core, shares, now),
                Some(_) => arm(client, &mut self.deadlines),
                None => {}
            }
        }
    }

    fn too_slow(&mut self, id: ConnId, core: &mut Core, shares: &mut Shares, now: Now) {
        let client = self.map.get_mut(&id).expect("just looked up");
        let in_request = client.parser.phase() != RequestPhase::Idle;
        if client.doing == Doing::Reading && in_request && !client.has_backlog() {
            let fault = Fault::new(Code::RequestTimeout, "the request did not arrive in time");
            let path = client.parser.head().map(|head| head.path.into_owned()).unwrap_or_default();
            self.refuse(id, refusals::unread(fault, &path), shares, now);
        } else if client.doing == Doing::LookingUp && self.auth_server.as_mut().is_some_and(|server| server.give_up(id))
        {
            let fault = oauth::unavailable("the authorization server does not tell its keys");
            let path = client.parser.head().map(|head| head.path.into_owned()).unwrap_or_default();
            self.refuse(id, refusals::unread(fault, &path), shares, now);
        } else if client.doing == Doing::LookingUp {
            let fault =
                Fault::new(Code::Unavailable, "the disk does not say whether the image and the network are there");
            self.note(id, AuditOutcome::Failed, now);
            self.respond(id, rest::refuse(&fault.retry_after_ms(1_000)), shares, now);
        } else {
            self.drop_client(id, core, shares, now);
        }
    }

    fn drop_client(&mut self, id: ConnId, core: &mut Core, shares: &mut Shares, now: Now) {
        // What becomes of its request is told to nobody.
        self.note(id, AuditOutcome::Failed, now);
        let Some(client) = self.remove(id, shares) else { return };
        if matches!(client.doing, Doing::Waiting | Doing::Streaming) {
            core.handle(Input::ClientGone { conn: id }, now);
        }
    }

    fn remove(&mut self, id: ConnId, shares: &mut Shares) -> Option<Client> {
        let mut client = self.map.remove(&id)?;
        self.past_traffic = self.past_traffic.plus(client.traffic);
        client.holding.give_back(shares);
        let owner = client.holding.owner();
        if owner.is_stranger() && shares.of(owner, Resource::Connections) == 0 {
            self.strangers.forget(owner);
        }
        Some(client)
    }

    /// The daemon leaves: whoever still waits has nothing to wait for.
    pub fn unanswered(&self) -> usize {
        self.map.values().filter(|client| client.has_backlog()).count()
    }
}

/// The whole answer, behind what is still to go out.
fn put_answer(client: &mut Client, response: Response, start: &HeadStart, shares: &mut Shares, now: Now) {
    let framing = Framing { keep_alive: client.keep_alive, head_only: client.head_only, http10: client.http10 };
    http_out::write_response(&mut client.out, response, start, framing);
    if client.keep_alive {
        client.doing = Doing::Reading;
        client.parser.finish();
    } else {
        client.doing = Doing::Closing;
        client.parser = Parser::default();
    }
    client.rearm(now.mono_ms);
    if client.holding.has_memory() {
        _ = client.count(shares);
    }
}

/// Its deadline is looked at in time; one that has moved on is left where it is until then.
fn arm(client: &mut Client, deadlines: &mut BinaryHeap<Reverse<(u64, ConnId)>>) {
    if let Some(at) = client.deadline_ms
        && client.armed_ms.is_none_or(|armed| at < armed)
    {
        client.armed_ms = Some(at);
        deadlines.push(Reverse((at, client.id)));
    }
}
