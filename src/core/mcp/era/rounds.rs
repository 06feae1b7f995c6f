//! Clients with sessions at a server that knows none. Their requests get what the newer era wants in `_meta`, its results
//! lose what the older does not know, and a result that asks for input becomes questions to the client: when it has
//! answered all of them the request goes out again with its answers. Invariant: between two rounds a request is forwarded
//! without a call, and has a deadline.

use crate::core::effects::{Effects, Timer};
use crate::core::mcp::Mcp;
use crate::core::mcp::era::params::{Newer, with_era};
use crate::core::mcp::posts::done;
use crate::core::mcp::responses::Replies;
use crate::core::mcp::sessions::{ForwardedRequest, InputRounds, Question};
use crate::core::mcp::wording::{Settled, rpc_error};
use crate::core::peers::Peers;
use crate::core::peers::calls::Caller;
use crate::core::projects::records::CallEnd;
use crate::ids::{CallId, PeerId};
use crate::limits::{INPUT_ROUNDS_MAX, QUESTION_TIMEOUT, QUESTIONS_MAX, URI_MAX};
use crate::model::fault::{Code, Fault, Outcome};
use crate::model::tally::MethodClass;
use crate::shares::{Owner, Resource};
use crate::wire::json::{self, Json, JsonBuf};
use crate::wire::jsonrpc::{self, Reply};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The server cannot go on without what it asked for.
const NO_INPUT: i64 = -32603;
const TOO_LARGE: &str = "the requests that wait for input are too large together; try again later";

/// For the record: the server has begun with it, and cannot go on.
fn without_input(why: &str) -> Fault {
    Fault::new(Code::InvalidRequest, why).outcome(Outcome::SentUnknown)
}

/// Sends a session's request, or the next round of it. Gives the client's own progress token too.
pub(in crate::core) fn submit_newer(
    peers: &mut Peers,
    peer: PeerId,
    owner: &Arc<str>,
    newer: &Newer<'_>,
    rounds: &InputRounds,
    effects: &mut Effects,
) -> Result<(CallId, u64, Option<JsonBuf>), Fault> {
    let mut token = None;
    let line = |call| {
        let (params, own) = with_era(rounds, newer, call);
        token = own;
        jsonrpc::forwarded(call, &rounds.method, Some(&params))
    };
    let kind = (Caller::Mcp, MethodClass::of(&rounds.method));
    let sent = peers.submit(peer, Some(owner), None, kind, line, effects);
    sent.map(|(call, timeout_ms)| (call, timeout_ms, token))
}

impl Replies<'_> {
    /// What the server needs to know becomes questions to the client; false: this is its answer.
    pub fn asks_for_input(
        &mut self,
        peers: &mut Peers,
        call: CallId,
        forwarded: &mut Option<ForwardedRequest>,
        result: Json<'_>,
    ) -> bool {
        let Some(wanted) = Wanted::of(result) else { return false };
        let mut forwarded = forwarded.take().expect("whose result it is");
        let round = peers.calls.mint();
        if let Err(why) = self.begin_round(peers, round, &mut forwarded, &wanted) {
            self.mcp.withdraw_questions(round, peers, self.effects);
            done(&mut forwarded, CallEnd::Fault(&without_input(&why)), self.effects);
            let message = rpc_error(forwarded.id.get(), NO_INPUT, &why);
            self.finish(forwarded.post, Some(call), 200, message);
            return true;
        }
        self.mcp.move_forwarded(call, round, forwarded, self.effects);
        self.effects.deadlines.set(Timer::Call(round), self.effects.now.mono_ms + QUESTION_TIMEOUT.as_millis() as u64);
        if wanted.requests.is_empty() {
            self.next_round(peers, round);
        }
        true
    }

    fn begin_round(
        &mut self,
        peers: &mut Peers,
        round: CallId,
        forwarded: &mut ForwardedRequest,
        wanted: &Wanted<'_>,
    ) -> Result<(), String> {
        let rounds = forwarded.rounds.as_mut().expect("of a client with a session");
        rounds.count += 1;
        rounds.state = wanted.state.map(Json::kept);
        rounds.answers = wanted.requests.keys().map(|key| (key.clone(), None)).collect();
        if rounds.count > INPUT_ROUNDS_MAX || wanted.requests.len() > QUESTIONS_MAX {
            return Err("the server asks for input without end".to_string());
        }
        if wanted.requests.keys().any(|key| key.len() > URI_MAX) {
            return Err(format!("the server asks for input under a key of more than {URI_MAX} bytes"));
        }
        if self.effects.shares.room(&Owner::Principal(Arc::clone(&forwarded.owner)), Resource::Memory)
            < rounds.kept_bytes()
        {
            return Err(TOO_LARGE.to_string());
        }
        let (session, peer) = (forwarded.session, forwarded.peer);
        let mut asked = Vec::new();
        for (key, raw) in &wanted.requests {
            let request = serde_json::from_str::<Request<'_>>(raw.get());
            let request = request.map_err(|_| format!("the server asks for {key} in a way that makes no sense"))?;
            if !forwarded.abilities.cover(&request.method, request.params) {
                return Err(format!("the server needs {}, which the client did not declare", request.method));
            }
            asked.push((key, request));
        }
        let instance = peers.known.get(&peer).and_then(|peer| peer.life.ready_instance());
        let instance = instance.ok_or("the server has gone away meanwhile")?;
        for (key, Request { method, params }) in asked {
            let number = peers.calls.mint().0;
            let message = || jsonrpc::question(number, &method, params.map(Json::get));
            if !self.emit(forwarded.post, message()) {
                let hears = session.filter(|id| self.mcp.sessions.get(*id).is_some_and(|s| s.get_stream.is_some()));
                let session = hears.ok_or("the client takes no stream on which it could be asked")?;
                self.tell_session(session, message());
            }
            let question = Question {
                peer,
                instance,
                id: Json::NULL.kept(),
                input: Some(key.clone()),
                params: None,
                method,
                call: Some(round),
                session,
                token: None,
            };
            self.mcp.questions.insert(number, question);
        }
        Ok(())
    }

    /// The client has answered one of the questions of a round.
    pub fn input_given(&mut self, peers: &mut Peers, round: CallId, key: &str, reply: &Reply<'_>) {
        let Some(forwarded) = self.mcp.forwarded.get_mut(&round) else { return };
        let owner = Owner::Principal(Arc::clone(&forwarded.owner));
        let Some(rounds) = forwarded.rounds.as_mut() else { return };
        match reply {
            Reply::Result(raw) if self.effects.shares.take(&owner, Resource::Memory, raw.get().len()).is_ok() => {
                rounds.answers.insert(key.to_string(), Some((*raw).kept()));
                if rounds.answers.values().all(Option::is_some) {
                    self.next_round(peers, round);
                }
            }
            Reply::Result(_) => self.no_input(peers, round, TOO_LARGE),
            Reply::Error { .. } | Reply::Neither => {
                self.no_input(peers, round, "the client has refused the input that the server needs");
            }
        }
    }

    fn no_input(&mut self, peers: &Peers, round: CallId, why: &str) {
        let Some(mut forwarded) = self.mcp.take_forwarded(round, peers, self.effects) else { return };
        done(&mut forwarded, CallEnd::Fault(&without_input(why)), self.effects);
        self.finish(forwarded.post, Some(round), 200, rpc_error(forwarded.id.get(), NO_INPUT, why));
    }

    fn next_round(&mut self, peers: &mut Peers, round: CallId) {
        let Some(mut forwarded) = self.mcp.take_forwarded(round, peers, self.effects) else { return };
        let level =
            forwarded.session.and_then(|session| self.mcp.sessions.get(session)).and_then(|session| session.level);
        let newer = Newer { abilities: &forwarded.abilities, level };
        let rounds = forwarded.rounds.as_ref().expect("it has rounds");
        match submit_newer(peers, forwarded.peer, &forwarded.owner, &newer, rounds, self.effects) {
            Ok((call, timeout_ms, _)) => {
                forwarded.timeout_ms = timeout_ms;
                self.mcp.move_forwarded(round, call, forwarded, self.effects);
            }
            Err(fault) => {
                let fault = forwarded.after_rounds(fault);
                done(&mut forwarded, CallEnd::Fault(&fault), self.effects);
                let settled = Settled::fault(&fault);
                self.finish(forwarded.post, Some(round), 200, settled.message(forwarded.id.get()));
            }
        }
    }
}

impl Mcp {
    /// The same request under another id.
    pub fn move_forwarded(&mut self, from: CallId, to: CallId, forwarded: ForwardedRequest, effects: &mut Effects) {
        if let Some(session) = forwarded.session.and_then(|id| self.sessions.get_mut(id)) {
            session.calls.push(to);
        }
        if let Some(post) = self.posts.get_mut(&forwarded.post) {
            post.calls.retain(|other| *other != from);
            post.calls.push(to);
        }
        self.insert_forwarded(to, forwarded, effects);
    }

    /// What waits for input to a peer: it is no call that would end with it.
    pub fn rounds_of(&self, peer: PeerId, peers: &Peers) -> Vec<CallId> {
        let between =
            |(id, forwarded): &(&CallId, &ForwardedRequest)| forwarded.peer == peer && peers.calls.get(**id).is_none();
        let mut rounds: Vec<CallId> = self.forwarded.iter().filter(between).map(|(id, _)| *id).collect();
        rounds.sort();
        rounds
    }
}

#[derive(Deserialize)]
struct Request<'a> {
    method: String,
    #[serde(borrow)]
    params: Option<Json<'a>>,
}

/// Of a result that asks for input.
struct Wanted<'a> {
    requests: BTreeMap<String, Json<'a>>,
    state: Option<Json<'a>>,
}

impl Wanted<'_> {
    fn of(result: Json<'_>) -> Option<Wanted<'_>> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Wire<'a> {
            result_type: Option<String>,
            #[serde(borrow)]
            input_requests: Option<Json<'a>>,
            #[serde(borrow)]
            request_state: Option<Json<'a>>,
        }
        memchr::memmem::find(result.get().as_bytes(), b"input_required")?;
        let wire: Wire<'_> = serde_json::from_str(result.get()).ok()?;
        if wire.result_type.as_deref() != Some("input_required") {
            return None;
        }
        let mut requests = BTreeMap::new();
        for member in json::members(wire.input_requests.map_or("{}", Json::get).as_bytes()) {
            let (key, raw) = member.ok()?;
            requests.insert(key.into_owned(), raw);
            // One too many is enough to refuse them.
            if requests.len() > QUESTIONS_MAX {
                break;
            }
        }
        Some(Wanted { requests, state: wire.request_state })
    }
}
