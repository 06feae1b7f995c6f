//! Tokens as the core keeps them: made, rotated, revoked, used, and ended by time. The table is `api::auth`'s; what is stored
//! of it is `outbox`'s. Invariant: whoever's secret has ended hears nothing more, a moment after it has.

use crate::api::auth;
use crate::api::request::TokenWanted;
use crate::core::effects::{Effects, Timer};
use crate::core::events::RoomEvent;
use crate::core::servers::Servers;
use crate::core::servers::outbox::Pending;
use crate::ids::{ConnId, StoreSeq};
use crate::limits::{TOKEN_LOOK_EVERY, TOKENS_MAX};
use crate::model::fault::{Code, Fault};
use crate::model::principal::{Principal, Scopes};
use crate::model::records::{Decision, StoreOp, Token};

impl Servers {
    pub fn token_create(
        &mut self,
        conn: ConnId,
        wanted: TokenWanted,
        effects: &mut Effects,
    ) -> Result<StoreSeq, Fault> {
        let TokenWanted { name, scopes, servers, projects, lifetime_ms, rate_limit } = wanted;
        if self.tokens.get(&name).is_some() || self.outbox.is_inserting_token(&name) {
            return Err(Fault::new(Code::NameTaken, format!("name: there is a token named {name} already")));
        }
        if self.tokens.len() >= TOKENS_MAX {
            return Err(Fault::new(Code::Unavailable, format!("this daemon keeps at most {TOKENS_MAX} tokens")));
        }
        self.check_store()?;
        let (secret, id) = (effects.entropy.token(), effects.entropy.uuid());
        let hash = auth::hash(secret.as_bytes());
        let created_unix_ms = effects.now.unix_ms;
        let expires_unix_ms = lifetime_ms.map(|ms| created_unix_ms.saturating_add(ms));
        let token = Token {
            name,
            hash,
            scopes,
            servers,
            projects,
            created_unix_ms,
            expires_unix_ms,
            rate_limit,
            ..Token::default()
        };
        let op = StoreOp::InsertToken { id, token: token.clone() };
        Ok(self.issue(Pending::TokenInsert { id, token: Box::new(token), secret, conn, rotates: None }, op, effects))
    }

    /// Another secret under the same name. Its end stays where it was.
    pub fn token_rotate(
        &mut self,
        conn: ConnId,
        who: &Principal,
        name: &str,
        grace_ms: u64,
        admin: [u8; 32],
        effects: &mut Effects,
    ) -> Result<StoreSeq, Fault> {
        let Some(old) = self.tokens.current(name) else {
            return Err(Fault::new(Code::NotFound, format!("there is no token {name}")));
        };
        if old.hash == admin {
            let message = "the admin token belongs to the data directory; remove admin.token and restart to replace it";
            return Err(Fault::new(Code::InvalidRequest, message));
        }
        // Whoever rotates a token gets it.
        who.may_grant(Scopes::of(&old.scopes))?;
        if self.outbox.is_inserting_token(name) {
            let message = format!("another change to the token {name} is being stored");
            return Err(Fault::new(Code::Unavailable, message).retry_after_ms(1_000));
        }
        self.check_store()?;
        let (secret, id) = (effects.entropy.token(), effects.entropy.uuid());
        let previous = (grace_ms > 0).then(|| (old.hash, effects.now.unix_ms.saturating_add(grace_ms)));
        let rotates = Some(old.hash);
        let token = Token { hash: auth::hash(secret.as_bytes()), previous, ..old };
        let op = StoreOp::InsertToken { id, token: token.clone() };
        Ok(self.issue(Pending::TokenInsert { id, token: Box::new(token), secret, conn, rotates }, op, effects))
    }

    /// It is in the store. False: it was revoked meanwhile, and is none any more.
    pub fn token_stored(&mut self, token: &Token, rotates: Option<[u8; 32]>, effects: &mut Effects) -> bool {
        match rotates {
            None => _ = self.tokens.insert(token.clone()),
            Some(old) if self.tokens.get(&token.name).is_some_and(|known| known.hash == old) => {
                self.tokens.rotate(token.clone());
                if token.previous.is_none() {
                    effects.raise(RoomEvent::SecretEnded(token.name.clone()));
                }
            }
            Some(_) => {
                self.outbox.reconcile_token(token.name.clone());
                effects.raise(RoomEvent::WriteSoon);
                return false;
            }
        }
        self.arm_tokens(effects);
        true
    }

    /// Its client waits to hear that it is made to last.
    pub fn token_revoke(
        &mut self,
        conn: ConnId,
        name: String,
        admin: [u8; 32],
        effects: &mut Effects,
    ) -> Result<(), Fault> {
        let Some(token) = self.tokens.get(&name) else {
            return Err(Fault::new(Code::NotFound, format!("there is no token {name}")));
        };
        if token.hash == admin {
            let message = "the admin token belongs to the data directory; remove admin.token and restart to replace it";
            return Err(Fault::new(Code::InvalidRequest, message));
        }
        let hash = token.hash;
        self.tokens.remove(&name);
        effects.raise(RoomEvent::SecretEnded(name.clone()));
        self.wait_for_revocation(name.clone(), conn);
        self.decide(Decision::Revoke { name, hash }, effects);
        Ok(())
    }

    // --- time -------------------------------------------------------------------------------------------------------

    /// Also for a request that never becomes a question to the core.
    pub fn token_used(&mut self, who: &Principal, effects: &mut Effects) {
        if self.tokens.used(who, effects.now.unix_ms) {
            arm_tokens_within(TOKEN_LOOK_EVERY.as_millis() as u64, effects);
        }
    }

    /// When the next secret ends, and sooner: what is waited for is a moment of the calendar, and clocks are set.
    pub fn arm_tokens(&self, effects: &mut Effects) {
        if let Some(at) = self.tokens.next_end() {
            let wait_ms = at.saturating_sub(effects.now.unix_ms).min(TOKEN_LOOK_EVERY.as_millis() as u64);
            arm_tokens_within(wait_ms, effects);
        }
    }

    pub fn tokens_elapsed(&mut self, effects: &mut Effects) {
        for name in self.tokens.expire(effects.now.unix_ms) {
            log::info!("token={name} has come to its end, or the one before it has");
            effects.raise(RoomEvent::SecretEnded(name));
        }
        let used = self.tokens.take_used();
        if !used.is_empty() {
            used.into_iter().for_each(|name| self.outbox.reconcile_token(name));
            effects.raise(RoomEvent::WriteSoon);
        }
        self.arm_tokens(effects);
    }
}

fn arm_tokens_within(wait_ms: u64, effects: &mut Effects) {
    let at_ms = effects.now.mono_ms + wait_ms;
    let sooner = effects.deadlines.at(Timer::Tokens).is_none_or(|armed| at_ms < armed);
    if sooner {
        effects.deadlines.set(Timer::Tokens, at_ms);
    }
}
