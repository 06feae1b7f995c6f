//! How MCP sessions begin and end. An `initialize` is answered from the server's own handshake, or waits for it; a session
//! ends by its client, by being idle, to make room, with its server, or with its token. Owns who waits to be introduced.
//! Invariant: whatever a session had open or set ends with it.

use crate::api::request::Takes;
use crate::api::response::{Answer, StreamEvent};
use crate::core::Core;
use crate::core::clients::parked::WaitOn;
use crate::core::contract::Output;
use crate::core::effects::Timer;
use crate::core::mcp::endpoint::McpEndpoint;
use crate::core::mcp::event_log::EventLog;
use crate::core::mcp::joint::own_advertised;
use crate::core::mcp::posts::done;
use crate::core::mcp::private::give_private_back;
use crate::core::mcp::sessions::{Abilities, Listening, PendingPost, Session};
use crate::core::mcp::wording::{INVALID_PARAMS, fault_message, rpc_error};
use crate::core::peers::calls::Stage;
use crate::core::projects::records::CallEnd;
use crate::ids::{CallId, ConnId, PostId, ServerId, SessionId};
use crate::limits::SESSION_IDLE;
use crate::model::fault::{Code, Fault, Outcome};
use crate::model::principal::{Limits, Principal};
use crate::model::protocol::Version;
use crate::shares::{Owner, Resource, Short};
use crate::wire::json::{Json, JsonBuf};
use crate::wire::jsonrpc;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// An `initialize` that waits for the server's own handshake.
#[derive(Serialize, Deserialize)]
pub(in crate::core) struct Greeting {
    id: JsonBuf,
    owner: Arc<str>,
    sees: Limits,
    version: Version,
    abilities: Abilities,
    takes: Takes,
}

impl Core {
    pub(in crate::core) fn initialize(
        &mut self,
        conn: ConnId,
        who: &Principal,
        target: McpEndpoint,
        id: Json<'_>,
        params: Option<Json<'_>>,
        takes: Takes,
    ) {
        let greeting = match Greeting::read(id, params, who, takes) {
            Ok(greeting) => greeting,
            Err(message) => {
                return self.replies().message(conn, 200, None, rpc_error(id.get(), INVALID_PARAMS, &message));
            }
        };
        match target {
            McpEndpoint::All | McpEndpoint::Project(_) => self.welcome(conn, target, greeting),
            McpEndpoint::Server(server) if self.main_of(server).advertised.is_some() => {
                self.welcome(conn, target, greeting);
            }
            McpEndpoint::Server(server) => {
                let main = self.main_of(server);
                let deadline_ms = self.effects.now.mono_ms + main.definition.startup_timeout_ms;
                if let Err(fault) = main.admits(deadline_ms, self.effects.now) {
                    return self.replies().refuse_message(conn, Some(id), &fault);
                }
                self.mcp.greetings.insert(conn, greeting);
                self.park(conn, WaitOn::Advertised(server), deadline_ms);
            }
        }
    }

    /// The server has told who it is, or will not: those who wait to be introduced need not wait any longer.
    pub(in crate::core) fn answer_greeting(&mut self, conn: ConnId, server: ServerId) {
        let Some(greeting) = self.mcp.greetings.remove(&conn) else { return };
        self.clients.release_wait(conn, &mut self.effects);
        match self.with_main(server) {
            Some((_, main)) if main.advertised.is_some() => self.welcome(conn, McpEndpoint::Server(server), greeting),
            Some((known, main)) => {
                let why = main.last_error.clone().unwrap_or_else(|| "it is not ready yet".to_string());
                let message = format!("{} cannot be used now: {why}", known.definition.name);
                let fault = Fault::new(Code::Unavailable, message).retry_after_ms(1_000);
                self.replies().refuse_message(conn, Some(greeting.id.as_json()), &fault);
            }
            None => self.replies().refuse_message(
                conn,
                Some(greeting.id.as_json()),
                &Fault::new(Code::NotFound, "the server is gone"),
            ),
        }
    }

    fn welcome(&mut self, conn: ConnId, at: McpEndpoint, greeting: Greeting) {
        let advertised = match at.server() {
            Some(id) => self.main_of(id).advertised.clone().expect("looked at before"),
            None => own_advertised(),
        };
        let result = advertised.initialize_result(greeting.version);
        let message = jsonrpc::result(greeting.id.get(), result.as_bytes());
        let session = match self.open_session(at, &greeting) {
            Ok(session) => session,
            Err(fault) => return self.replies().refuse_message(conn, Some(greeting.id.as_json()), &fault),
        };
        match greeting.takes {
            Takes::Json | Takes::Either => self.replies().message(conn, 200, Some(session), message),
            Takes::Stream => {
                let events = vec![StreamEvent::Message { id: None, data: message.into() }];
                let answer = Answer::Stream { session: Some(session), events };
                self.effects.outputs.push_back(Output::Answer { conn, answer });
                self.effects.outputs.push_back(Output::EndStream { conn });
            }
        }
    }

    /// At a server that is not shared the session gets an instance of its own, which starts meanwhile.
    pub(in crate::core) fn open_session(&mut self, at: McpEndpoint, greeting: &Greeting) -> Result<SessionId, Fault> {
        self.make_session_room(&greeting.owner)?;
        let id = SessionId(self.effects.entropy.uuid());
        let server = at.server();
        self.mcp.sessions.insert(Session {
            id,
            endpoint: at,
            peer: None,
            private: BTreeMap::new(),
            owner: Arc::clone(&greeting.owner),
            sees: greeting.sees.clone(),
            version: greeting.version,
            abilities: greeting.abilities,
            level: None,
            subscriptions: BTreeSet::new(),
            log: EventLog::default(),
            get_stream: None,
            heard: 0,
            streams: BTreeMap::new(),
            streams_minted: 0,
            calls: Vec::new(),
            used_ms: self.effects.now.mono_ms,
            old_stream: false,
        });
        self.effects.deadlines.set(Timer::Session(id), self.effects.now.mono_ms + SESSION_IDLE.as_millis() as u64);
        if let Some(server) = server {
            match self.serving(id, server) {
                Ok(serving) => self.mcp.sessions.get_mut(id).expect("just opened").peer = Some(serving),
                Err(fault) => {
                    self.end_session(id, "there is no instance for it");
                    return Err(fault);
                }
            }
        }
        Ok(id)
    }

    /// Whoever has all the sessions that one owner may have loses the idlest of its own; when all owners together have all
    /// there are, whoever has the most does.
    fn make_session_room(&mut self, owner: &Arc<str>) -> Result<(), Fault> {
        let share = Owner::Principal(Arc::clone(owner));
        while let Err(short) = self.effects.shares.take(&share, Resource::Sessions, 1) {
            let (idlest, whose) = match short {
                Short::Owner => (self.mcp.sessions.idlest_of(owner, |_| 1, None), "your"),
                Short::Whole => (self.mcp.sessions.idlest(|_| 1, None), "all"),
            };
            let Some(idlest) = idlest else {
                let message = format!("{whose} sessions are open and busy; end some first");
                return Err(Fault::new(Code::Unavailable, message).retry_after_ms(10_000));
            };
            self.end_session(idlest, "it made room for another");
        }
        Ok(())
    }

    pub(in crate::core) fn session_elapsed(&mut self, id: SessionId) {
        let Some(session) = self.mcp.sessions.get(id) else { return };
        let idle_ms = SESSION_IDLE.as_millis() as u64;
        let due_ms = if session.is_busy() { self.effects.now.mono_ms + idle_ms } else { session.used_ms + idle_ms };
        match due_ms <= self.effects.now.mono_ms {
            true => self.end_session(id, "it was idle for too long"),
            false => self.effects.deadlines.set(Timer::Session(id), due_ms),
        }
    }

    pub(in crate::core) fn end_session(&mut self, id: SessionId, why: &str) {
        let Some(session) = self.mcp.sessions.remove(id) else { return };
        let owner = Owner::Principal(Arc::clone(&session.owner));
        self.effects.shares.give_back(&owner, Resource::Sessions, 1);
        self.effects.shares.give_back(&owner, Resource::Memory, session.log.bytes());
        log::debug!("session of {} ended: {why}", session.owner);
        self.effects.deadlines.cancel(Timer::Session(id));
        let ended = Fault::new(Code::NotFound, format!("the session has ended: {why}"));
        let outcome_of = |call: &CallId| match self.peers.calls.get(*call).map(|call| &call.stage) {
            Some(Stage::Sent { .. }) => Outcome::SentUnknown,
            Some(Stage::Queued { .. }) | None => Outcome::NotSent,
        };
        let calls = session.calls.iter().map(|call| (*call, outcome_of(call)));
        let (waiting, sent): (Vec<_>, Vec<_>) = calls.partition(|(_, outcome)| *outcome == Outcome::NotSent);
        // Those that wait first: else the place of one that was sent would be given to them.
        for (call, outcome) in waiting.into_iter().chain(sent) {
            let mut forwarded = self.mcp.take_forwarded(call, &self.peers, &mut self.effects);
            if let Some(forwarded) = &mut forwarded {
                let fault = forwarded.after_rounds(ended.clone().outcome(outcome));
                done(forwarded, CallEnd::Fault(&fault), &mut self.effects);
            }
            self.abandon_call(call, Some(id), "the session has ended");
            if let Some(forwarded) = forwarded {
                let fault = forwarded.after_rounds(ended.clone().outcome(outcome));
                let message = fault_message(forwarded.id.get(), &fault);
                self.replies().finish(forwarded.post, Some(call), ended.code.status(), message);
            }
        }
        if let Some(conn) = session.get_stream {
            self.close_conn(conn);
        }
        for post in self.mcp.posts_of(id) {
            self.replies().hang_up(post);
        }
        for (server, own) in &session.private {
            give_private_back(&mut self.effects.shares, &session.owner, *server);
            self.dismiss(*own);
        }
        if let Some(peer) = session.peer {
            self.merge_level(peer);
        }
        for (peer, uri) in &session.subscriptions {
            self.unsubscribe_if_last(*peer, uri);
        }
    }

    /// A server is gone for good, and with it everything that clients have open at it.
    pub(in crate::core) fn forget_clients(&mut self, server: ServerId) {
        for session in self.mcp.sessions.at_endpoint(server) {
            self.end_session(session, "its server was removed or is not shared as before");
        }
        let main = self.servers.known[&server].main;
        for session in self.mcp.sessions.sorted(|session| session.subscriptions.iter().any(|(of, _)| *of == main)) {
            let known = self.mcp.sessions.get_mut(session).expect("just listed");
            let before = std::mem::take(&mut known.subscriptions).into_iter();
            let (gone, kept): (BTreeSet<_>, BTreeSet<_>) = before.partition(|(of, _)| *of == main);
            known.subscriptions = kept;
            for (_, uri) in gone {
                self.unsubscribe_if_last(main, &uri);
            }
        }
        self.end_listening(|listening| listening.at == McpEndpoint::Server(server));
    }

    /// A token was revoked: whoever used it hears nothing more.
    pub(in crate::core) fn end_clients_of(&mut self, owner: &str) {
        for session in self.mcp.sessions.sorted(|session| &*session.owner == owner) {
            self.end_session(session, "its token was revoked");
        }
        self.end_listening(|listening| &*listening.owner == owner);
        self.end_watching(owner);
    }

    fn end_listening(&mut self, is: impl Fn(&Listening) -> bool) {
        let listens = |post: &PendingPost| post.listening.as_ref().is_some_and(&is);
        let mut posts: Vec<PostId> =
            self.mcp.posts.iter().filter(|(_, post)| listens(post)).map(|(id, _)| *id).collect();
        posts.sort();
        for post in posts {
            let listening = self.mcp.posts.get_mut(&post).and_then(|post| post.listening.take());
            self.replies().hang_up(post);
            if let Some(listening) = listening {
                self.stopped_listening(&listening);
            }
        }
    }
}

impl Greeting {
    fn read(id: Json<'_>, params: Option<Json<'_>>, who: &Principal, takes: Takes) -> Result<Greeting, String> {
        let (version, abilities) = Greeting::declared(params)?;
        Ok(Greeting { id: id.kept(), version, abilities, ..Greeting::before_hello(who, takes) })
    }

    /// Somebody of whom nothing is known yet but who they are.
    pub(in crate::core) fn before_hello(who: &Principal, takes: Takes) -> Greeting {
        Greeting {
            id: Json::NULL.kept(),
            owner: Arc::clone(&who.name),
            sees: who.limits.clone(),
            version: Version::NEWEST,
            abilities: Abilities::default(),
            takes,
        }
    }

    /// What the params of an `initialize` say. A version that is not known here becomes the newest that is: the client
    /// decides whether it can live with that.
    pub(in crate::core) fn declared(params: Option<Json<'_>>) -> Result<(Version, Abilities), String> {
        #[derive(Deserialize)]
        struct Wire<'a> {
            #[serde(rename = "protocolVersion")]
            protocol_version: Option<String>,
            #[serde(borrow)]
            capabilities: Option<Json<'a>>,
        }
        let params = params.ok_or("params: protocolVersion, capabilities and clientInfo are required")?;
        let wire: Wire<'_> = serde_json::from_str(params.get()).map_err(|_| "params: expected an object")?;
        let version = wire.protocol_version.ok_or("protocolVersion: is required")?;
        let abilities = wire.capabilities.map(Abilities::of).unwrap_or_default();
        Ok((Version::of(&version).unwrap_or(Version::NEWEST), abilities))
    }
}
