//! The authorization server, seen from the loop: tokens of connections are verified here with the keys that are known, and a
//! thread asks the server for its keys, at the start, now and then, and when a token names one that is not known. Owns who
//! waits for that; `api::auth::oauth` decides what a token is worth. Never waits for the server, and asks it for nothing that
//! a token names.

mod fetch;

use crate::api::auth::jwks::Keys;
use crate::api::auth::oauth::{OAuth, Verdict, Verifier};
use crate::api::auth::{self, Shown, Tokens, bearer, jwt};
use crate::core::contract::Now;
use crate::ids::ConnId;
use crate::limits::{OAUTH_KEYS_EVERY, OAUTH_KEYS_PAUSE, OAUTH_RETRY_PAUSE, OAUTH_WAITING_MAX};
use crate::model::fault::{Code, Fault};
use crate::sandbox::image::registry::proxy::Proxies;
use crate::wire::http::url::Url;
use crate::wire::http_in::{Common, Request};
pub use fetch::Server;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};

/// One question under way, and one answer that is not taken yet.
const CHANNEL: usize = 1;

pub struct AuthServer {
    verifier: Verifier,
    questions: SyncSender<()>,
    answers: Receiver<Result<Keys, String>>,
    /// The thread is at it, or about to be.
    asking: bool,
    /// When it may be asked for a key that is not known.
    may_ask_ms: u64,
    /// Those whose token has a key that is not known yet.
    waiting: Vec<ConnId>,
}

/// What is to become of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Whoever sends it is known, or is not let in; `Shown` has it.
    Done,
    /// Its key may come.
    Wait,
}

impl AuthServer {
    /// The first question is asked at once.
    pub fn spawn(oauth: OAuth, server: Server, wake: impl Fn() + Send + 'static) -> io::Result<AuthServer> {
        let (questions, todo) = sync_channel(CHANNEL);
        let (tell, answers) = sync_channel(CHANNEL);
        std::thread::Builder::new().name("oauth".to_string()).spawn(move || {
            loop {
                // The loop takes what there is whenever it is rung, so this waits for one turn at most.
                if tell.send(server.keys()).is_err() {
                    return;
                }
                wake();
                if todo.recv_timeout(OAUTH_KEYS_EVERY) == Err(RecvTimeoutError::Disconnected) {
                    return;
                }
            }
        })?;
        Ok(AuthServer {
            verifier: Verifier::new(oauth),
            questions,
            answers,
            asking: true,
            may_ask_ms: 0,
            waiting: Vec::new(),
        })
    }

    /// Before anything else is made of a request: if it shows a token of the server, what that is worth. A connection that
    /// shows the same as before costs a comparison.
    pub fn look_at(
        &mut self,
        conn: ConnId,
        request: &Request<'_>,
        shown: &mut Shown,
        tokens: &Tokens,
        now: Now,
    ) -> Look {
        let Some(header) = request.common(Common::Authorization) else { return Look::Done };
        if shown.is_same(header, tokens) {
            let Some(grant) = shown.grant() else { return Look::Done };
            if self.verifier.holds(grant, &request.path, now.unix_ms).is_ok() {
                return Look::Done;
            }
        }
        shown.forget_refusal();
        let Some(token) = bearer(header).filter(|secret| jwt::is_one(secret) && !tokens.has_secret(secret)) else {
            return Look::Done;
        };
        match self.verifier.check(token, &request.path, now.unix_ms) {
            Verdict::Good(grant) => shown.let_in(header, grant, tokens),
            Verdict::Refused(why) => shown.turn_away(auth::worthless(why)),
            Verdict::UnknownKey if self.may_come(now) => {
                if self.waiting.len() < OAUTH_WAITING_MAX {
                    self.waiting.push(conn);
                    return Look::Wait;
                }
                shown.turn_away(unavailable("too many others wait for the authorization server's keys"));
            }
            Verdict::UnknownKey if self.verifier.has_keys() => {
                shown.turn_away(auth::worthless("the token's key is not one of the authorization server's"));
            }
            Verdict::UnknownKey => shown.turn_away(unavailable("the authorization server has not told its keys")),
        }
        Look::Done
    }

    /// Are keys on their way? If not they are sent for, but not again and again.
    fn may_come(&mut self, now: Now) -> bool {
        if !self.asking && now.mono_ms >= self.may_ask_ms {
            self.asking = self.questions.try_send(()).is_ok();
            self.may_ask_ms = now.mono_ms + OAUTH_KEYS_PAUSE.as_millis() as u64;
        }
        self.asking
    }

    /// The thread rang, perhaps: whoever waited is to be looked at again.
    pub fn heard(&mut self, now: Now) -> Vec<ConnId> {
        let Ok(answer) = self.answers.try_recv() else { return Vec::new() };
        self.asking = false;
        match answer {
            Ok(keys) => {
                let count = keys.len();
                if self.verifier.learn(keys) {
                    log::info!("the authorization server has {count} keys that are known here");
                }
            }
            Err(why) if self.verifier.has_keys() => {
                log::warn!("the authorization server: {why}; the keys that are known go on");
            }
            Err(why) => {
                log::warn!("the authorization server: {why}; no token of it is good until it has told its keys");
                self.may_ask_ms = now.mono_ms + OAUTH_RETRY_PAUSE.as_millis() as u64;
            }
        }
        std::mem::take(&mut self.waiting)
    }

    /// It has waited for too long. False: it does not wait for keys.
    pub fn give_up(&mut self, conn: ConnId) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|waiting| *waiting != conn);
        self.waiting.len() < before
    }
}

pub fn unavailable(why: &str) -> Fault {
    Fault::new(Code::Unavailable, format!("{why}; try again")).retry_after_ms(OAUTH_RETRY_PAUSE.as_millis() as u64)
}

impl Server {
    pub fn new(issuer: &str, jwks_uri: Option<Url>, proxies: Proxies) -> Result<Server, String> {
        let url = Url::parse(issuer).ok_or("oauth.issuer: is no http or https address")?;
        Ok(Server { issuer: issuer.to_string(), url, jwks_uri, proxies })
    }
}
