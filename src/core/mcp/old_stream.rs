//! The transport of 2024-11-05: one stream of events per client, and a second address to post to. A session lives as
//! long as its stream, and everything it gets comes over that stream. Never resumed: that version knows no event ids.

use crate::api::response::{Answer, StreamEvent};
use crate::core::clients::parked::WaitOn;
use crate::core::contract::Output;
use crate::core::effects::Timer;
use crate::core::mcp::admission::Greeting;
use crate::core::mcp::responses::Replies;
use crate::core::mcp::wording::{INVALID_PARAMS, rpc_error};
use crate::core::peers::peer::Advertised;
use crate::ids::{ConnId, PostId, SessionId};
use crate::limits::KEEP_ALIVE;
use crate::model::protocol::Version;
use crate::wire::json::Json;
use crate::wire::jsonrpc;

impl Replies<'_> {
    /// The stream of a session that was just opened for it; `post_to`: where its client is to post.
    pub fn open_old_stream(&mut self, conn: ConnId, id: SessionId, post_to: &str) {
        let session = self.mcp.sessions.get_mut(id).expect("just opened");
        (session.old_stream, session.version, session.get_stream) = (true, Version::V2024_11_05, Some(conn));
        self.clients.park(conn, WaitOn::GetStream(id));
        let events = vec![StreamEvent::Endpoint(format!("{post_to}?session={id}"))];
        self.effects.outputs.push_back(Output::Answer { conn, answer: Answer::Stream { session: None, events } });
        let at_ms = self.effects.now.mono_ms + KEEP_ALIVE.as_millis() as u64;
        self.effects.deadlines.set(Timer::Stream(conn), at_ms);
    }

    /// A request whose answer comes over the session's one stream.
    pub fn open_old_post(&mut self, session: SessionId) -> PostId {
        let post = self.open_post(None, Some(session), true, 1);
        self.mcp.posts.get_mut(&post).expect("just opened").stream = Some(0);
        post
    }

    /// The session is there already; what the client declares is noted in it. `advertised`: what it is told of whom it came to.
    pub fn old_hello(
        &mut self,
        session: SessionId,
        advertised: Option<Advertised>,
        id: Json<'_>,
        params: Option<Json<'_>>,
    ) {
        let message = match (Greeting::declared(params), advertised) {
            (Err(message), _) => rpc_error(id.get(), INVALID_PARAMS, &message),
            (Ok(_), None) => rpc_error(id.get(), -32000, "the server is not ready yet; try again"),
            (Ok((version, abilities)), Some(advertised)) => {
                let Some(known) = self.mcp.sessions.get_mut(session) else { return };
                (known.abilities, known.version) = (abilities, version);
                jsonrpc::result(id.get(), advertised.initialize_result(version).as_bytes())
            }
        };
        self.tell_session(session, message);
    }
}
