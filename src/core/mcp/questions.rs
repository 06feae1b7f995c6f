//! Questions that a server asks in mid-call: sampling, elicitation, roots. They go to the client whose call it is at work
//! on, if that client declared that it can be asked, and to no other; everybody else's server gets an error at once.
//! Invariant: every question is answered once, by its client or by an error, and none outlives its call.

use crate::core::Core;
use crate::core::contract::Output;
use crate::core::mcp::notifications::Busy;
use crate::core::mcp::sessions::{Era, Question};
use crate::core::mcp::wording::{METHOD_NOT_FOUND, progress_token};
use crate::core::peers::peer::{Dialect, Role};
use crate::ids::{CallId, InstanceId, PeerId, SessionId};
use crate::limits::{QUESTION_BYTES_MAX, QUESTIONS_MAX, URI_MAX};
use crate::wire::json::Json;
use crate::wire::jsonrpc::{self, Reply};
use serde::Deserialize;

impl Core {
    pub(in crate::core) fn asked_by_server(
        &mut self,
        peer: PeerId,
        instance: InstanceId,
        id: Json<'_>,
        method: &str,
        params: Option<Json<'_>>,
    ) {
        if method == "ping" {
            let bytes = jsonrpc::result_reply(id, "{}");
            return self.effects.outputs.push_back(Output::Reply { instance, bytes });
        }
        if let Err(why) = self.pass_question(peer, instance, id, method, params) {
            let bytes = jsonrpc::error_reply(id, METHOD_NOT_FOUND, &why);
            self.effects.outputs.push_back(Output::Reply { instance, bytes });
        }
    }

    fn pass_question(
        &mut self,
        peer: PeerId,
        instance: InstanceId,
        id: Json<'_>,
        method: &str,
        params: Option<Json<'_>>,
    ) -> Result<(), String> {
        let call = match self.busy_with(peer) {
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
        let number = self.peers.calls.mint().0;
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
        self.postpone(call, self.question_patience_ms(call));
        Ok(())
    }

    /// How far a client is with what it was asked. Only the session that was asked knows.
    pub(in crate::core) fn question_progressed(&mut self, session: SessionId, params: Option<Json<'_>>) {
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
        let Some(instance) = self.mcp.questions.values().find(is_it).map(|question| question.instance) else { return };
        self.write(instance, jsonrpc::forwarded_notification("notifications/progress", Some(raw.get())));
    }

    /// A client has other roots. The server may ask for them while it is at work for this client alone: only then it hears
    /// of it, because at any other time it would ask somebody else.
    pub(in crate::core) fn roots_changed(&mut self, session: SessionId) {
        let Some(known) = self.mcp.sessions.get(session).filter(|session| session.abilities.roots) else { return };
        let Some(peer) = known.peer.and_then(|peer| self.peers.known.get(&peer)) else { return };
        let own = match peer.role {
            Role::Session(_) => true,
            Role::Main | Role::Stateless => match self.busy_with(peer.id) {
                Busy::With(call) => self.mcp.forwarded[&call].session == Some(session),
                Busy::Idle | Busy::Unclear => false,
            },
        };
        // The newer era has none that a client sends but for a cancellation.
        let hears = own && peer.dialect == Dialect::Sessions;
        if let Some(instance) = peer.life.ready_instance().filter(|_| hears) {
            self.write(instance, jsonrpc::notification("notifications/roots/list_changed", None));
        }
    }

    /// Only the session that was asked can answer.
    pub(in crate::core) fn question_answered(&mut self, session: SessionId, number: u64, reply: &Reply<'_>) {
        if self.mcp.questions.get(&number).is_none_or(|question| question.session != Some(session)) {
            return;
        }
        self.pass_answer(number, reply);
    }

    pub(in crate::core) fn pass_answer(&mut self, number: u64, reply: &Reply<'_>) {
        let Some(question) = self.mcp.questions.remove(&number) else { return };
        if let (Some(key), Some(round)) = (&question.input, question.call) {
            return self.input_given(round, key, reply);
        }
        let bytes = match reply {
            Reply::Result(raw) => jsonrpc::forwarded_reply(question.id.as_json(), "result", *raw),
            Reply::Error { raw, .. } => jsonrpc::forwarded_reply(question.id.as_json(), "error", *raw),
            Reply::Neither => jsonrpc::error_reply(question.id.as_json(), -32603, "the client's answer makes no sense"),
        };
        self.write(question.instance, bytes);
        if let Some(call) = question.call
            && let Some(forwarded) = self.mcp.forwarded.get(&call)
        {
            self.postpone(call, forwarded.timeout_ms);
        }
    }

    /// In the order in which they were asked.
    pub(in crate::core) fn questions_of(&self, call: CallId) -> Vec<u64> {
        let mut open: Vec<u64> =
            self.mcp.questions.iter().filter(|(_, q)| q.call == Some(call)).map(|(number, _)| *number).collect();
        open.sort();
        open
    }

    /// The call is over: whatever was asked on its behalf will not be answered any more.
    pub(in crate::core) fn withdraw_questions(&mut self, call: CallId) {
        if self.mcp.questions.is_empty() {
            return;
        }
        for number in self.questions_of(call) {
            let question = self.mcp.questions.remove(&number).expect("just listed");
            let alive = self.peers.known.get(&question.peer).and_then(|peer| peer.life.ready_instance());
            if alive == Some(question.instance) && question.input.is_none() {
                let bytes =
                    jsonrpc::error_reply(question.id.as_json(), -32603, "the call that this was asked for is over");
                self.write(question.instance, bytes);
            }
        }
    }
}
