//! Tokens as the core keeps them: made, rotated, revoked, used, and ended by time. The table is `api::auth`'s; what is stored
//! of it is `outbox`'s. Invariant: whoever's secret has ended hears nothing more, a moment after it has.

use crate::api::auth;
use crate::api::request::TokenWanted;
use crate::core::Core;
use crate::core::clients::parked::WaitOn;
use crate::core::effects::Timer;
use crate::core::servers::outbox::Pending;
use crate::ids::ConnId;
use crate::limits::{TOKEN_LOOK_EVERY, TOKENS_MAX};
use crate::model::fault::{Code, Fault};
use crate::model::principal::{Principal, Scopes};
use crate::model::records::{Decision, StoreOp, Token};

impl Core {
    pub(in crate::core) fn token_create(&mut self, conn: ConnId, wanted: TokenWanted) -> Result<(), Fault> {
        let TokenWanted { name, scopes, servers, projects, lifetime_ms, rate_limit } = wanted;
        if self.servers.tokens.get(&name).is_some() || self.servers.outbox.is_inserting_token(&name) {
            return Err(Fault::new(Code::NameTaken, format!("name: there is a token named {name} already")));
        }
        if self.servers.tokens.len() >= TOKENS_MAX {
            return Err(Fault::new(Code::Unavailable, format!("this daemon keeps at most {TOKENS_MAX} tokens")));
        }
        self.check_store()?;
        let (secret, id) = (self.effects.entropy.token(), self.effects.entropy.uuid());
        let hash = auth::hash(secret.as_bytes());
        let created_unix_ms = self.effects.now.unix_ms;
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
        self.store(conn, Pending::TokenInsert { id, token: Box::new(token), secret, conn, rotates: None }, op);
        Ok(())
    }

    /// Another secret under the same name. Its end stays where it was.
    pub(in crate::core) fn token_rotate(
        &mut self,
        conn: ConnId,
        who: &Principal,
        name: &str,
        grace_ms: u64,
    ) -> Result<(), Fault> {
        let Some(old) = self.servers.tokens.current(name) else {
            return Err(Fault::new(Code::NotFound, format!("there is no token {name}")));
        };
        if old.hash == self.settings.admin_token_hash {
            let message = "the admin token belongs to the data directory; remove admin.token and restart to replace it";
            return Err(Fault::new(Code::InvalidRequest, message));
        }
        // Whoever rotates a token gets it.
        who.may_grant(Scopes::of(&old.scopes))?;
        if self.servers.outbox.is_inserting_token(name) {
            let message = format!("another change to the token {name} is being stored");
            return Err(Fault::new(Code::Unavailable, message).retry_after_ms(1_000));
        }
        self.check_store()?;
        let (secret, id) = (self.effects.entropy.token(), self.effects.entropy.uuid());
        let previous = (grace_ms > 0).then(|| (old.hash, self.effects.now.unix_ms.saturating_add(grace_ms)));
        let rotates = Some(old.hash);
        let token = Token { hash: auth::hash(secret.as_bytes()), previous, ..old };
        let op = StoreOp::InsertToken { id, token: token.clone() };
        self.store(conn, Pending::TokenInsert { id, token: Box::new(token), secret, conn, rotates }, op);
        Ok(())
    }

    /// It is in the store. False: it was revoked meanwhile, and is none any more.
    pub(in crate::core) fn token_stored(&mut self, token: &Token, rotates: Option<[u8; 32]>) -> bool {
        match rotates {
            None => _ = self.servers.tokens.insert(token.clone()),
            Some(old) if self.servers.tokens.get(&token.name).is_some_and(|known| known.hash == old) => {
                self.servers.tokens.rotate(token.clone());
                if token.previous.is_none() {
                    self.end_clients_of(&token.name);
                }
            }
            Some(_) => {
                self.servers.outbox.reconcile_token(token.name.clone());
                self.schedule_flush();
                return false;
            }
        }
        self.arm_tokens();
        true
    }

    pub(in crate::core) fn token_revoke(&mut self, conn: ConnId, name: String) -> Result<(), Fault> {
        let Some(token) = self.servers.tokens.get(&name) else {
            return Err(Fault::new(Code::NotFound, format!("there is no token {name}")));
        };
        if token.hash == self.settings.admin_token_hash {
            let message = "the admin token belongs to the data directory; remove admin.token and restart to replace it";
            return Err(Fault::new(Code::InvalidRequest, message));
        }
        let hash = token.hash;
        self.servers.tokens.remove(&name);
        self.end_clients_of(&name);
        self.clients.parked.park(conn, WaitOn::Revoked);
        self.wait_for_revocation(name.clone(), conn);
        self.decide(Decision::Revoke { name, hash });
        Ok(())
    }

    // --- time -------------------------------------------------------------------------------------------------------

    /// Also for a request that never becomes a question to the core.
    pub fn token_used(&mut self, who: &Principal) {
        if self.servers.tokens.used(who, self.effects.now.unix_ms) {
            self.arm_tokens_within(TOKEN_LOOK_EVERY.as_millis() as u64);
        }
    }

    /// When the next secret ends, and sooner: what is waited for is a moment of the calendar, and clocks are set.
    pub(in crate::core) fn arm_tokens(&mut self) {
        if let Some(at) = self.servers.tokens.next_end() {
            self.arm_tokens_within(
                at.saturating_sub(self.effects.now.unix_ms).min(TOKEN_LOOK_EVERY.as_millis() as u64),
            );
        }
    }

    fn arm_tokens_within(&mut self, wait_ms: u64) {
        let at_ms = self.effects.now.mono_ms + wait_ms;
        let sooner = self.effects.deadlines.at(Timer::Tokens).is_none_or(|armed| at_ms < armed);
        if sooner {
            self.effects.deadlines.set(Timer::Tokens, at_ms);
        }
    }

    pub(in crate::core) fn tokens_elapsed(&mut self) {
        for name in self.servers.tokens.expire(self.effects.now.unix_ms) {
            log::info!("token={name} has come to its end, or the one before it has");
            self.end_clients_of(&name);
        }
        let used = self.servers.tokens.take_used();
        if !used.is_empty() {
            used.into_iter().for_each(|name| self.servers.outbox.reconcile_token(name));
            self.schedule_flush();
        }
        self.arm_tokens();
    }
}
