//! Questions that a server asks in mid-call: sampling, elicitation, roots. They go to the client whose call it is at work
//! on, if that client declared that it can be asked, and to no other; everybody else's server gets an error at once.
//! Invariant: every question is answered once, by its client or by an error, and none outlives its call.

use crate::core::contract::Output;
use crate::core::effects::Effects;
use crate::core::mcp::Mcp;
use crate::core::mcp::notifications::Busy;
use crate::core::mcp::responses::Replies;
use crate::core::mcp::sessions::{Era, Question};
use crate::core::mcp::wording::{METHOD_NOT_FOUND, progress_token};
use crate::core::peers::Peers;
use crate::core::peers::peer::{Dialect, Role};
use crate::ids::{CallId, InstanceId, PeerId, SessionId};
use crate::limits::{QUESTION_BYTES_MAX, QUESTIONS_MAX, URI_MAX};
use crate::wire::json::Json;
use crate::wire::jsonrpc::{self, Reply};
use serde::Deserialize;

/// A question as it came from a server.
#[derive(Clone, Copy)]
pub(in crate::core) struct Asked<'a> {
    pub peer: PeerId,
    pub instance: InstanceId,
    pub id: Json<'a>,
    pub method: &'a str,
    pub params: Option<Json<'a>>,
}

impl Replies<'_> {
    pub fn asked_by_server(&mut self, peers: &mut Peers, asked: &Asked<'_>) {
        let (id, instance) = (asked.id, asked.instance);
        if asked.method == "ping" {
            let bytes = jsonrpc::result_reply(id, "{}");
            return self.effects.outputs.push_back(Output::Reply { instance, bytes });
        }
        if let Err(why) = self.pass_question(peers, asked) {
            let bytes = jsonrpc::error_reply(id, METHOD_NOT_FOUND, &why);
            self.effects.outputs.push_back(Output::Reply { instance, bytes });
        }
    }

    fn pass_question(&mut self, peers: &mut Peers, asked: &Asked<'_>) -> Result<(), String> {
        let Asked { peer, instance, id, method, params } = *asked;
        let call = match self.mcp.busy_with(peers, peer) {
            Busy::With(call) => call,
            Busy::Idle => return Err(format!("no client here takes {method}: none has a call under way")),
            Busy::Unclear => {
                let why = "it is unclear whose call it is for; those that were given up without an answer count too";
                return Err(format!("no client here takes {method}: {why}"));
            }
        };
        if id.get().len() > URI_MAX {
            return Err(format!("the id of a question has at most {URI_MAX} bytes"));
        }
        let forwarded = &self.mcp.forwarded[&call];
        if !forwarded.abilities.cover(method, params) {
            return Err(format!("the client did not declare that it takes {method}"));
        }
        if self.mcp.questions.values().filter(|question| question.instance == instance).count() >= QUESTIONS_MAX {
            return Err(format!("{QUESTIONS_MAX} questions wait for an answer already"));
        }
        let (post, session, era) = (forwarded.post, forwarded.session, forwarded.era);
        // Only one that is asked by a result is kept until the client has come for it.
        let kept = params.filter(|_| era == Era::StatelessOverSessions);
        if kept.is_some_and(|params| params.get().len() > QUESTION_BYTES_MAX) {
            return Err(format!(
                "a question of more than {QUESTION_BYTES_MAX} bytes cannot be passed on to this client"
            ));
        }
        let number = peers.calls.mint().0;
        let question = Question {
            peer,
            instance,
            id: id.kept(),
            input: None,
            method: method.to_string(),
            params: kept.map(Json::kept),
            call: Some(call),
            session,
            token: params.and_then(progress_token).filter(|token| token.get().len() <= URI_MAX).map(Json::kept),
        };
        match era {
            Era::StatelessOverSessions => {
                self.mcp.questions.insert(number, question);
                self.suspend(call);
            }
            Era::Stateless => return Err("a server without sessions asks by its result".to_string()),
            Era::Same | Era::SessionOverStateless => {
                let message = || jsonrpc::question(number, method, params.map(Json::get));
                if !self.emit(post, message()) {
                    let hears = session.filter(|id| self.mcp.sessions.get(*id).is_some_and(|s| s.get_stream.is_some()));
                    let session = hears.ok_or("the client takes no stream on which it could be asked")?;
                    self.tell_session(session, message());
                }
                self.mcp.questions.insert(number, question);
            }
        }
        peers.postpone(call, self.mcp.question_patience_ms(peers, call), self.effects);
        Ok(())
    }
}

impl Mcp {
    /// How far a client is with what it was asked. Only the session that was asked knows.
    pub fn question_progressed(&self, session: SessionId, params: Option<Json<'_>>, effects: &mut Effects) {
        #[derive(Deserialize)]
        struct Wire<'a> {
            #[serde(rename = "progressToken", borrow)]
            token: Json<'a>,
        }
        let Some(raw) = params else { return };
        let Ok(wire) = serde_json::from_str::<Wire<'_>>(raw.get()) else { return };
        let is_it = |question: &&Question| {
            question.session == Some(session)
                && question.token.as_ref().is_some_and(|own| own.get() == wire.token.get())
        };
        let Some(instance) = self.questions.values().find(is_it).map(|question| question.instance) else { return };
        effects.write(instance, jsonrpc::forwarded_notification("notifications/progress", Some(raw.get())));
    }

    /// A client has other roots. The server may ask for them while it is at work for this client alone: only then it hears
    /// of it, because at any other time it would ask somebody else.
    pub fn roots_changed(&self, session: SessionId, peers: &Peers, effects: &mut Effects) {
        let Some(known) = self.sessions.get(session).filter(|session| session.abilities.roots) else { return };
        let Some(peer) = known.peer.and_then(|peer| peers.known.get(&peer)) else { return };
        let own = match peer.role {
            Role::Session(_) => true,
            Role::Main | Role::Stateless => match self.busy_with(peers, peer.id) {
                Busy::With(call) => self.forwarded[&call].session == Some(session),
                Busy::Idle | Busy::Unclear => false,
            },
        };
        // The newer era has none that a client sends but for a cancellation.
        let hears = own && peer.dialect == Dialect::Sessions;
        if let Some(instance) = peer.life.ready_instance().filter(|_| hears) {
            effects.write(instance, jsonrpc::notification("notifications/roots/list_changed", None));
        }
    }

    /// `session`: whose it must be, if it is one's. Some: it is no answer of its own, but input for a request that goes out again.
    pub fn question_answered(
        &mut self,
        session: Option<SessionId>,
        number: u64,
        reply: &Reply<'_>,
        peers: &mut Peers,
        effects: &mut Effects,
    ) -> Option<(CallId, String)> {
        // Only the session that was asked can answer.
        self.questions.get(&number).filter(|question| session.is_none() || question.session == session)?;
        let question = self.questions.remove(&number).expect("just seen");
        if let (Some(key), Some(round)) = (question.input, question.call) {
            return Some((round, key));
        }
        let bytes = match reply {
            Reply::Result(raw) => jsonrpc::forwarded_reply(question.id.as_json(), "result", *raw),
            Reply::Error { raw, .. } => jsonrpc::forwarded_reply(question.id.as_json(), "error", *raw),
            Reply::Neither => jsonrpc::error_reply(question.id.as_json(), -32603, "the client's answer makes no sense"),
        };
        effects.write(question.instance, bytes);
        if let Some(call) = question.call
            && let Some(forwarded) = self.forwarded.get(&call)
        {
            peers.postpone(call, forwarded.timeout_ms, effects);
        }
        None
    }

    /// In the order in which they were asked.
    pub fn questions_of(&self, call: CallId) -> Vec<u64> {
        let mut open: Vec<u64> =
            self.questions.iter().filter(|(_, q)| q.call == Some(call)).map(|(number, _)| *number).collect();
        open.sort();
        open
    }

    /// The call is over: whatever was asked on its behalf will not be answered any more.
    pub fn withdraw_questions(&mut self, call: CallId, peers: &Peers, effects: &mut Effects) {
        if self.questions.is_empty() {
            return;
        }
        for number in self.questions_of(call) {
            let question = self.questions.remove(&number).expect("just listed");
            let alive = peers.known.get(&question.peer).and_then(|peer| peer.life.ready_instance());
            if alive == Some(question.instance) && question.input.is_none() {
                let bytes =
                    jsonrpc::error_reply(question.id.as_json(), -32603, "the call that this was asked for is over");
                effects.write(question.instance, bytes);
            }
        }
    }
}
