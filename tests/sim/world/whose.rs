//! What servers say that names no call: log messages and questions, each in truth for a call that the server has read and not
//! answered, also for one that has ended here. What must hold: it reaches the client of that call or nobody, and nobody at all
//! while a call of anybody else has no answer.

use super::super::kernel::{Process, Words};
use super::World;
use serde_json::{Value, json};
use stdiod::ids::{InstanceId, SessionId};

/// Every token of a session's calls begins so.
pub(super) fn prefix(session: SessionId) -> String {
    format!("{session:?}-")
}

impl World {
    pub(super) fn says_for_a_call(&mut self, instance: InstanceId) {
        let process = self.processes.get_mut(&instance).expect("it runs");
        let tokens: Vec<&str> = process.unanswered().collect();
        let about = self.rng.pick(&tokens).map_or(Value::Null, |token| json!(token));
        let line = if self.rng.one_in(2) || about.is_null() {
            json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "error", "data": about}})
        } else {
            process.questions += 1;
            let id = format!("q{}", process.questions);
            process.open_questions.insert(id.clone());
            json!({"jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": {"message": about}})
        };
        self.says(instance, line.to_string().as_bytes(), Words::Valid);
    }

    /// An answer to a call that was given up.
    pub(super) fn answers_late(&mut self, instance: InstanceId) {
        let process = self.processes.get_mut(&instance).expect("it runs");
        if !process.given_up.is_empty() && process.stdout_open {
            let (id, request) = process.given_up.remove(self.rng.below(process.given_up.len()));
            let line = Process::answer(id, &request, &mut self.rng);
            self.says(instance, &line, Words::Valid);
        }
    }

    /// A client has read something again that it was sent before.
    pub(super) fn check_whose(&self, session: SessionId, message: &Value) {
        let about = match message["method"].as_str() {
            Some("notifications/message") => &message["params"]["data"],
            Some("elicitation/create") => &message["params"]["message"],
            Some(_) | None => return,
        };
        let own = prefix(session);
        assert!(about.as_str().is_none_or(|token| token.starts_with(&own)), "somebody else's: {message}, not {own}");
    }

    /// A client hears something just now.
    pub(super) fn check_whose_now(&self, session: SessionId, message: &Value) {
        self.check_whose(session, message);
        let names_no_call = ["notifications/message", "elicitation/create"].iter().any(|it| message["method"] == *it);
        let server = self.agents.homes.get(&session).filter(|_| names_no_call);
        let process = server.and_then(|server| self.processes.values().find(|process| process.server == *server));
        let own = prefix(session);
        for token in process.iter().flat_map(|process| process.unanswered()) {
            assert!(token.starts_with(&own), "{message} reaches {own} while {token} has no answer");
        }
    }
}
