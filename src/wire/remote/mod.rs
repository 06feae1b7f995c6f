//! Conversations with external servers: each transport as a machine that is told what its connections bring and says what is
//! to be done with them; where a token is to be shown, it is fetched first. Pure: whoever has the sockets performs the commands. Invariants: a machine says `Connected` at most
//! once and `Lost` at most once, after which it says nothing; and of every call that was written it says `Undelivered`, gives
//! a line that answers it, or says `Lost`.

pub mod bearer;
pub mod exchanges;
pub mod headers;
mod machine;
mod sign_in;
pub mod sse_pair;
pub mod streamable_http;
mod verdict;
pub mod websocket;

use crate::ids::CallId;
use crate::model::endpoint::{Endpoint, LinkFault, LinkFaultKind, ParamHeaders};
use crate::model::fault::{Fault, Outcome};
use crate::wire::http::url::Url;
use crate::wire::remote::bearer::{Bearer, Fetch, Fetched};
use crate::wire::remote::machine::Machine;
use crate::wire::remote::sign_in::SignIn;
use std::collections::VecDeque;
use std::sync::Arc;

/// One connection of a machine, by a number of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Channel(pub u64);

/// A proxy that is asked by requests which name the whole address.
#[derive(Clone, PartialEq, Eq)]
pub struct ViaProxy {
    pub login: Option<String>,
}

/// What a connection brings.
pub enum Heard {
    Connected {
        proxy: Option<ViaProxy>,
    },
    Bytes(Vec<u8>),
    /// Nothing more comes of it.
    Closed(LinkFault),
}

#[derive(Debug, PartialEq)]
pub enum Command {
    Open {
        channel: Channel,
        to: Url,
    },
    Write {
        channel: Channel,
        bytes: Vec<u8>,
    },
    Close {
        channel: Channel,
    },
    /// Messages may be written.
    Connected,
    /// A message of the server.
    Line(Vec<u8>),
    Undelivered {
        call: CallId,
        fault: Fault,
    },
    /// This message was refused for want of a valid token. Only said by a machine that may get another one, and never by a
    /// `Remote`.
    Unauthorized {
        message: Vec<u8>,
        call: Option<CallId>,
    },
    Lost(LinkFault),
}

/// What nobody may foresee. Two draws: the key is shown to the server, and must not tell the masks.
#[derive(Clone, Copy)]
pub struct Seeds {
    pub key: [u8; 16],
    pub masks: [u8; 32],
}

/// One link: the machine of its transport, and the tokens that it shows.
pub struct Remote {
    endpoint: Arc<Endpoint>,
    seeds: Seeds,
    /// None: there is no token yet, or the link is over.
    machine: Option<Machine>,
    sign_in: Option<SignIn>,
    connected: bool,
    /// Of the last word that was heard.
    now_ms: u64,
    out: VecDeque<Command>,
}

impl Remote {
    /// `known`: a token that an earlier connection was given.
    pub fn new(endpoint: Arc<Endpoint>, seeds: Seeds, known: Option<Bearer>, now_ms: u64) -> Result<Remote, LinkFault> {
        headers::check(&endpoint.headers).map_err(|bad| LinkFault::new(LinkFaultKind::Invalid, bad.message()))?;
        machine::address(&endpoint)?;
        let sign_in = endpoint.auth.is_some().then(|| SignIn::new(known.filter(|bearer| bearer.until_ms > now_ms)));
        let mut remote =
            Remote { endpoint, seeds, machine: None, sign_in, connected: false, now_ms, out: VecDeque::new() };
        match remote.sign_in.as_ref().is_some_and(|sign_in| sign_in.bearer.is_none()) {
            true => remote.fetch()?,
            false => remote.begin()?,
        }
        Ok(remote)
    }

    fn begin(&mut self) -> Result<(), LinkFault> {
        let authorization = self.sign_in.as_ref().and_then(SignIn::authorization);
        self.machine = Some(Machine::new(&self.endpoint, self.seeds, authorization, self.now_ms)?);
        Ok(())
    }

    fn fetch(&mut self) -> Result<(), LinkFault> {
        match (&mut self.sign_in, &self.endpoint.auth) {
            (Some(sign_in), Some(credentials)) => sign_in.fetch(credentials, self.now_ms),
            (None, _) | (_, None) => Ok(()),
        }
    }

    /// The token that is shown now.
    pub fn bearer(&self) -> Option<&Bearer> {
        self.sign_in.as_ref()?.bearer.as_ref()
    }

    /// One message, with or without a line end; of a call, if it is one.
    pub fn write(&mut self, message: &[u8], call: Option<CallId>, now_ms: u64) {
        self.now_ms = now_ms;
        let message = message.trim_ascii_end();
        if let Some(sign_in) = &mut self.sign_in {
            let ended = sign_in.bearer.as_ref().is_none_or(|bearer| bearer.until_ms <= now_ms);
            if ended || sign_in.is_fetching() {
                sign_in.waiting.push_back((message.to_vec(), call));
                if let Err(why) = self.fetch() {
                    self.lose(why);
                }
                return;
            }
        }
        if let Some(machine) = &mut self.machine {
            machine.write(message, call, now_ms);
        }
    }

    pub fn heard(&mut self, channel: Channel, heard: Heard, now_ms: u64) {
        self.now_ms = now_ms;
        if Fetch::is_for(channel) {
            let fetched = self.sign_in.as_mut().map(|sign_in| sign_in.heard(channel, heard, now_ms));
            return self.fetched(fetched.unwrap_or(Fetched::NotYet));
        }
        if let Some(machine) = &mut self.machine {
            machine.heard(channel, heard, now_ms);
        }
    }

    fn fetched(&mut self, fetched: Fetched) {
        let bearer = match fetched {
            Fetched::NotYet => return,
            Fetched::Failed(why) => return self.no_token(why),
            Fetched::Bearer(bearer) => bearer,
        };
        let authorization = bearer.authorization();
        let Some(sign_in) = &mut self.sign_in else { return };
        sign_in.bearer = Some(bearer);
        let waiting = std::mem::take(&mut sign_in.waiting);
        match &mut self.machine {
            Some(machine) => machine.show(authorization),
            None => {
                if let Err(why) = self.begin() {
                    return self.lose(why);
                }
            }
        }
        for (message, call) in waiting {
            self.write(&message, call, self.now_ms);
        }
    }

    /// Those who wait for it hear so; a link that is up goes on with whatever needs none.
    fn no_token(&mut self, why: LinkFault) {
        if self.machine.is_none() {
            return self.lose(why);
        }
        let waiting = self.sign_in.as_mut().map(|sign_in| std::mem::take(&mut sign_in.waiting)).unwrap_or_default();
        for call in waiting.into_iter().filter_map(|(_, call)| call) {
            let fault = verdict::unavailable(why.message.clone(), Outcome::NotSent);
            self.out.push_back(Command::Undelivered { call, fault });
        }
    }

    fn lose(&mut self, why: LinkFault) {
        (self.machine, self.sign_in) = (None, None);
        self.out.push_back(Command::Lost(why));
    }

    pub fn negotiated(&mut self, version: String) {
        if let Some(Machine::Http(http)) = &mut self.machine {
            http.negotiated(version);
        }
    }

    pub fn mirror(&mut self, tools: Arc<ParamHeaders>) {
        if let Some(Machine::Http(http)) = &mut self.machine {
            http.mirror(tools);
        }
    }

    /// Says goodbye; false: there is nothing to wait for.
    pub fn close(&mut self, now_ms: u64) -> bool {
        self.now_ms = now_ms;
        if let Some(sign_in) = &mut self.sign_in {
            sign_in.close();
        }
        self.machine.as_mut().is_some_and(|machine| machine.close(now_ms))
    }

    pub fn next_deadline(&self) -> Option<u64> {
        let fetch = self.sign_in.as_ref().and_then(SignIn::next_deadline);
        self.machine.as_ref().and_then(Machine::next_deadline).into_iter().chain(fetch).min()
    }

    pub fn tick(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        let fetched = self.sign_in.as_mut().map(|sign_in| sign_in.tick(now_ms));
        self.fetched(fetched.unwrap_or(Fetched::NotYet));
        if let Some(machine) = &mut self.machine {
            machine.tick(now_ms);
        }
    }

    pub fn poll(&mut self) -> Option<Command> {
        loop {
            if let Some(command) = self.sign_in.as_mut().and_then(SignIn::poll).or_else(|| self.out.pop_front()) {
                return Some(command);
            }
            match self.machine.as_mut()?.poll()? {
                Command::Unauthorized { message, call } => self.refused_token(message, call),
                Command::Lost(why) if self.renews_for(&why) => {
                    self.machine = None;
                    if let Err(why) = self.fetch() {
                        self.lose(why);
                    }
                }
                Command::Connected => {
                    self.connected = true;
                    return Some(Command::Connected);
                }
                other => return Some(other),
            }
        }
    }

    /// The token is not valid any more: once, another one is fetched, and the message sent with that. Who answers 401 has not
    /// looked at it.
    fn refused_token(&mut self, message: Vec<u8>, call: Option<CallId>) {
        if self.sign_in.as_ref().is_some_and(|sign_in| sign_in.may_renew(self.now_ms)) {
            if let Some(sign_in) = &mut self.sign_in {
                sign_in.waiting.push_back((message, call));
            }
            if let Err(why) = self.fetch() {
                self.lose(why);
            }
        } else if let Some(call) = call {
            self.out.push_back(Command::Undelivered { call, fault: verdict::of_status(401, None) });
        }
    }

    /// It never came up, and may do so with another token.
    fn renews_for(&self, why: &LinkFault) -> bool {
        let renews = self.sign_in.as_ref().is_some_and(|sign_in| sign_in.may_renew(self.now_ms));
        renews && !self.connected && why.kind == LinkFaultKind::Unauthorized(401)
    }

    /// It has said goodbye.
    pub fn is_over(&self) -> bool {
        self.machine.as_ref().is_none_or(Machine::is_over)
    }

    /// The memory of what has come and is not whole, and of what waits to go out.
    pub fn held(&self) -> usize {
        self.machine.as_ref().map_or(0, Machine::held) + self.sign_in.as_ref().map_or(0, SignIn::held)
    }
}

#[cfg(test)]
mod tests;
