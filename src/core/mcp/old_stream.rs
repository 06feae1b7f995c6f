//! The transport of 2024-11-05: one stream of events per client, and a second address to post to. A session lives as
//! long as its stream, and everything it gets comes over that stream. Never resumed: that version knows no event ids.

use crate::api::request::Takes;
use crate::api::response::{Answer, StreamEvent};
use crate::core::Core;
use crate::core::clients::parked::WaitOn;
use crate::core::contract::Output;
use crate::core::effects::Timer;
use crate::core::mcp::admission::Greeting;
use crate::core::mcp::endpoint::McpEndpoint;
use crate::core::mcp::joint::own_advertised;
use crate::core::mcp::wording::{INVALID_PARAMS, rpc_error};
use crate::ids::{ConnId, SessionId};
use crate::limits::KEEP_ALIVE;
use crate::model::principal::Principal;
use crate::model::protocol::Version;
use crate::wire::json::Json;
use crate::wire::jsonrpc::{self, Message};

impl Core {
    pub(in crate::core) fn open_old_stream(
        &mut self,
        conn: ConnId,
        who: &Principal,
        target: McpEndpoint,
        post_to: &str,
    ) {
        let greeting = Greeting::before_hello(who, Takes::Stream);
        let id = match self.open_session(target, &greeting) {
            Ok(id) => id,
            Err(fault) => return self.refuse_message(conn, None, &fault),
        };
        let session = self.mcp.sessions.get_mut(id).expect("just opened");
        (session.old_stream, session.version, session.get_stream) = (true, Version::V2024_11_05, Some(conn));
        self.clients.park(conn, WaitOn::GetStream(id));
        let events = vec![StreamEvent::Endpoint(format!("{post_to}?session={id}"))];
        self.effects.outputs.push_back(Output::Answer { conn, answer: Answer::Stream { session: None, events } });
        self.effects.deadlines.set(Timer::Stream(conn), self.effects.now.mono_ms + KEEP_ALIVE.as_millis() as u64);
    }

    pub(in crate::core) fn old_post(&mut self, conn: ConnId, session: SessionId, message: Message<'_>) {
        self.effects.outputs.push_back(Output::Answer { conn, answer: Answer::Accepted });
        match message {
            Message::Request { id, method, params } if method == "initialize" => self.old_hello(session, id, params),
            Message::Request { id, method, params } => {
                let post = self.open_post(None, Some(session), true, 1);
                self.mcp.posts.get_mut(&post).expect("just opened").stream = Some(0);
                self.requested(post, session, id, &method, params);
            }
            Message::Notification { .. } | Message::Reply { .. } | Message::Stray => self.told(session, message),
        }
    }

    /// The session is there already; what the client declares is noted in it.
    fn old_hello(&mut self, session: SessionId, id: Json<'_>, params: Option<Json<'_>>) {
        let Some(at) = self.mcp.sessions.get(session).map(|session| &session.endpoint) else { return };
        let advertised = match at.server() {
            Some(server) => self.with_main(server).and_then(|(_, main)| main.advertised.clone()),
            None => Some(own_advertised()),
        };
        let message = match (Greeting::declared(params), advertised) {
            (Err(message), _) => rpc_error(id.get(), INVALID_PARAMS, &message),
            (Ok(_), None) => rpc_error(id.get(), -32000, "the server is not ready yet; try again"),
            (Ok((version, abilities)), Some(advertised)) => {
                let known = self.mcp.sessions.get_mut(session).expect("just seen");
                (known.abilities, known.version) = (abilities, version);
                jsonrpc::result(id.get(), advertised.initialize_result(version).as_bytes())
            }
        };
        self.tell_session(session, message);
    }
}
