//! Calls of clients without sessions at a server that knows only sessions, while they wait for their client's input. The
//! client gets the server's questions as a result with a sealed state, and resumes that very call with it. Owns that state
//! and the answers that came before their client did. Invariant: a state resumes its own client's call or nothing.

use crate::core::effects::Effects;
use crate::core::mcp::Mcp;
use crate::core::mcp::era::params::given_responses;
use crate::core::mcp::era::stateless::OwnedRequest;
use crate::core::mcp::responses::Replies;
use crate::core::mcp::sessions::{ForwardedRequest, NOBODY};
use crate::core::mcp::wording::Settled;
use crate::core::peers::Peers;
use crate::ids::{CallId, PeerId, PostId};
use crate::limits::{CONTENDED_QUESTION_TIMEOUT, KEPT_ANSWERS_BYTES_MAX, KEPT_ANSWERS_MAX, QUESTION_TIMEOUT};
use crate::wire::json::JsonBuf;
use crate::wire::jsonrpc;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// The answer to a call whose client was away when it came.
#[derive(Serialize, Deserialize)]
struct Kept {
    peer: PeerId,
    owner: Arc<str>,
    until_ms: u64,
    answer: Settled<'static>,
}

/// Bounded in number, bytes and time; the oldest go first, and before all others those of an owner who has more than
/// half of it.
#[derive(Default, Serialize, Deserialize)]
pub struct KeptAnswers {
    table: HashMap<CallId, Kept>,
    order: VecDeque<CallId>,
    bytes: usize,
}

impl KeptAnswers {
    fn insert(&mut self, call: CallId, kept: Kept) {
        let now_ms = kept.until_ms - QUESTION_TIMEOUT.as_millis() as u64;
        self.bytes += kept.answer.len();
        self.table.insert(call, kept);
        self.order.push_back(call);
        let owner = Arc::clone(&self.table[&call].owner);
        while self.has_more_than_half(&owner) {
            let theirs = |call: &CallId| self.table.get(call).is_some_and(|kept| kept.owner == owner);
            let Some(at) = self.order.iter().position(theirs) else { break };
            let oldest = self.order.remove(at).expect("just found");
            self.remove(oldest);
        }
        while let Some(oldest) = self.order.front().copied() {
            let over = self.order.len() > KEPT_ANSWERS_MAX || self.bytes > KEPT_ANSWERS_BYTES_MAX;
            if !over && self.table.get(&oldest).is_some_and(|kept| kept.until_ms > now_ms) {
                return;
            }
            self.order.pop_front();
            self.remove(oldest);
        }
    }

    fn has_more_than_half(&self, owner: &Arc<str>) -> bool {
        let theirs = self.table.values().filter(|kept| kept.owner == *owner);
        let (count, bytes) = theirs.fold((0, 0), |(count, bytes), kept| (count + 1, bytes + kept.answer.len()));
        // The one that was just brought always stays.
        count > 1 && (count > KEPT_ANSWERS_MAX / 2 || bytes > KEPT_ANSWERS_BYTES_MAX / 2)
    }

    fn remove(&mut self, call: CallId) -> Option<Kept> {
        let kept = self.table.remove(&call)?;
        self.bytes -= kept.answer.len();
        Some(kept)
    }

    fn take(&mut self, call: CallId, peer: PeerId, owner: &str, now_ms: u64) -> Option<Settled<'static>> {
        let theirs = |kept: &&Kept| kept.peer == peer && *kept.owner == *owner && kept.until_ms > now_ms;
        self.table.get(&call).filter(theirs)?;
        self.order.retain(|other| *other != call);
        self.remove(call).map(|kept| kept.answer)
    }
}

/// What a request that brings a state resumes.
pub(in crate::core) enum Resumed {
    /// The answer has come meanwhile.
    Answer(Settled<'static>),
    /// This call, which waits for its client.
    Call(CallId),
    /// Nothing any more.
    Nothing,
    /// The state is not ours: the server's own, perhaps, which knows what it means.
    NotOurs,
}

impl Replies<'_> {
    /// The server waits for its client's input: the client gets the questions as a result, and the call waits on.
    pub fn suspend(&mut self, call: CallId) {
        let Some(forwarded) = self.mcp.forwarded.get_mut(&call) else { return };
        let post = std::mem::replace(&mut forwarded.post, NOBODY);
        let (id, owner) = (forwarded.id.clone(), Arc::clone(&forwarded.owner));
        if post == NOBODY {
            return;
        }
        let mut requests = String::new();
        for number in self.mcp.questions_of(call) {
            let question = &self.mcp.questions[&number];
            let comma = if requests.is_empty() { "" } else { "," };
            let params = question.params.as_ref().map_or("{}", |params| params.get());
            requests += &format!(r#"{comma}"q{number}":{{"method":{},"params":{params}}}"#, json!(question.method));
        }
        let state = json!(self.mcp.seal.close(&call.0.to_string(), &owner));
        let result =
            format!(r#"{{"resultType":"input_required","inputRequests":{{{requests}}},"requestState":{state}}}"#);
        self.finish(post, Some(call), 200, jsonrpc::result(id.get(), result.as_bytes()));
    }
}

impl Mcp {
    /// Only the main peer's calls are suspended.
    pub fn resumed(&mut self, main: PeerId, owner: &str, state: &str, now_ms: u64) -> Resumed {
        let ours = self.seal.open(state, owner).and_then(|call| call.parse().ok()).map(CallId);
        let Some(call) = ours else { return Resumed::NotOurs };
        if let Some(answer) = self.kept.take(call, main, owner, now_ms) {
            return Resumed::Answer(answer);
        }
        let waits = |forwarded: &&ForwardedRequest| {
            forwarded.peer == main && *forwarded.owner == *owner && forwarded.post == NOBODY
        };
        match self.forwarded.get(&call).filter(waits) {
            Some(_) => Resumed::Call(call),
            None => Resumed::Nothing,
        }
    }

    /// Its client is back, under this id. Gives the answers that it brings, by question; none: it owes one still.
    pub fn come_back(
        &mut self,
        call: CallId,
        post: PostId,
        request: &OwnedRequest,
        peers: &mut Peers,
        effects: &mut Effects,
    ) -> Vec<(u64, Option<JsonBuf>)> {
        let forwarded = self.forwarded.get_mut(&call).expect("it is resumed");
        (forwarded.post, forwarded.id) = (post, request.id.clone());
        peers.postpone(call, forwarded.timeout_ms, effects);
        self.posts.get_mut(&post).expect("it asks").calls.push(call);
        let questions = self.questions_of(call);
        let mut given = given_responses(request.params.as_json(), &questions);
        questions.into_iter().map(|number| (number, given.remove(&number))).collect()
    }

    /// How long a call may wait for its client's input: less, if the client may be gone and others want its place.
    pub fn question_patience_ms(&self, peers: &Peers, call: CallId) -> u64 {
        let suspended = self.forwarded.get(&call).filter(|forwarded| forwarded.post == NOBODY);
        let contended = suspended
            .and_then(|forwarded| peers.known.get(&forwarded.peer))
            .is_some_and(|peer| peer.lane.waiting() > 0);
        let patience = if contended { CONTENDED_QUESTION_TIMEOUT } else { QUESTION_TIMEOUT };
        patience.as_millis() as u64
    }

    /// Another call waits for a place: those that nobody may ever come back for have less time from here on.
    pub fn hurry_suspended(&self, peer: PeerId, peers: &mut Peers, effects: &mut Effects) {
        let until_ms = effects.now.mono_ms + CONTENDED_QUESTION_TIMEOUT.as_millis() as u64;
        let Some(peer) = peers.known.get(&peer) else { return };
        for call in peer.lane.in_flight().to_vec() {
            let suspended = self.forwarded.get(&call).is_some_and(|forwarded| forwarded.post == NOBODY);
            if suspended && peers.calls.get(call).is_some_and(|call| call.deadline_ms > until_ms) {
                peers.postpone(call, CONTENDED_QUESTION_TIMEOUT.as_millis() as u64, effects);
            }
        }
    }

    /// The answer has come before its client did.
    pub fn keep_answer(&mut self, call: CallId, forwarded: &ForwardedRequest, answer: Settled<'_>, now_ms: u64) {
        let until_ms = now_ms + QUESTION_TIMEOUT.as_millis() as u64;
        let kept = Kept { peer: forwarded.peer, owner: Arc::clone(&forwarded.owner), until_ms, answer: answer.kept() };
        self.kept.insert(call, kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::mcp::wording::Body;

    fn kept(until_ms: u64, size: usize) -> Kept {
        let answer = Settled { status: 200, body: Body::Result(vec![b'x'; size].into()) };
        Kept { peer: PeerId(1), owner: "me".into(), until_ms, answer }
    }

    #[test]
    fn answers_are_kept_for_their_owner_once_and_within_bounds() {
        const LIFE_MS: u64 = QUESTION_TIMEOUT.as_millis() as u64;
        let peer = PeerId(1);
        let mut answers = KeptAnswers::default();
        answers.insert(CallId(1), kept(LIFE_MS, 1));
        assert!(answers.take(CallId(1), peer, "you", 0).is_none(), "another's");
        assert!(answers.take(CallId(1), peer, "me", LIFE_MS).is_none(), "too late");
        assert!(answers.take(CallId(1), peer, "me", 0).is_some());
        assert!(answers.take(CallId(1), peer, "me", 0).is_none(), "once");

        for call in 0..KEPT_ANSWERS_MAX as u64 + 10 {
            let whose = if call % 2 == 0 { "me" } else { "you" };
            answers.insert(CallId(call), Kept { owner: whose.into(), ..kept(LIFE_MS, 1) });
        }
        assert_eq!((answers.table.len(), answers.order.len()), (KEPT_ANSWERS_MAX, KEPT_ANSWERS_MAX));
        answers.insert(CallId(9_999), kept(LIFE_MS, KEPT_ANSWERS_BYTES_MAX));
        assert_eq!((answers.table.len(), answers.bytes), (1, KEPT_ANSWERS_BYTES_MAX));
        answers.insert(CallId(9_998), Kept { owner: "you".into(), ..kept(LIFE_MS, 1) });
        for call in 0..KEPT_ANSWERS_MAX as u64 {
            answers.insert(CallId(call), kept(LIFE_MS, 1));
        }
        assert!(
            answers.take(CallId(9_998), peer, "you", 0).is_some(),
            "nobody loses an answer to somebody else's flood"
        );
        answers.insert(CallId(9_999), kept(LIFE_MS, KEPT_ANSWERS_BYTES_MAX));
        answers.insert(CallId(10_000), kept(2 * LIFE_MS, 3));
        assert_eq!((answers.table.len(), answers.order.len(), answers.bytes), (1, 1, 3), "the old one has expired");
    }
}
