//! The token of one link: the one that is shown, another that is being fetched, and the messages that wait for it. Invariant:
//! a token that is refused although it was fetched a moment ago is not fetched again.

use crate::ids::CallId;
use crate::limits::LINK_TOKEN_YOUNG;
use crate::model::endpoint::{ClientCredentials, LinkFault};
use crate::wire::remote::bearer::{Bearer, Fetch, Fetched};
use crate::wire::remote::{Channel, Command, Heard};
use std::collections::VecDeque;

pub struct SignIn {
    pub bearer: Option<Bearer>,
    pub waiting: VecDeque<(Vec<u8>, Option<CallId>)>,
    fetch: Option<Fetch>,
    fetches: u64,
    /// Of fetches that have ended.
    last_words: VecDeque<Command>,
}

impl SignIn {
    pub fn new(bearer: Option<Bearer>) -> SignIn {
        SignIn { bearer, waiting: VecDeque::new(), fetch: None, fetches: 0, last_words: VecDeque::new() }
    }

    pub fn is_fetching(&self) -> bool {
        self.fetch.is_some()
    }

    pub fn authorization(&self) -> Option<String> {
        self.bearer.as_ref().map(Bearer::authorization)
    }

    /// Unless it is being fetched already.
    pub fn fetch(&mut self, credentials: &ClientCredentials, now_ms: u64) -> Result<(), LinkFault> {
        if self.fetch.is_none() {
            self.fetches += 1;
            self.fetch = Some(Fetch::begin(credentials, self.fetches, now_ms)?);
        }
        Ok(())
    }

    /// Is the token old enough that another one may be better, or another one on its way?
    pub fn may_renew(&self, now_ms: u64) -> bool {
        let young_ms = LINK_TOKEN_YOUNG.as_millis() as u64;
        self.is_fetching() || self.bearer.as_ref().is_none_or(|bearer| bearer.fetched_ms + young_ms <= now_ms)
    }

    pub fn heard(&mut self, channel: Channel, heard: Heard, now_ms: u64) -> Fetched {
        let fetched = self.fetch.as_mut().map(|fetch| fetch.heard(channel, heard, now_ms));
        self.ended(fetched)
    }

    pub fn tick(&mut self, now_ms: u64) -> Fetched {
        let fetched = self.fetch.as_mut().map(|fetch| fetch.tick(now_ms));
        self.ended(fetched)
    }

    fn ended(&mut self, fetched: Option<Fetched>) -> Fetched {
        match fetched {
            None | Some(Fetched::NotYet) => return Fetched::NotYet,
            Some(Fetched::Bearer(_) | Fetched::Failed(_)) => self.end_fetch(),
        }
        fetched.unwrap_or(Fetched::NotYet)
    }

    fn end_fetch(&mut self) {
        if let Some(mut fetch) = self.fetch.take() {
            fetch.close();
            self.last_words.extend(std::iter::from_fn(|| fetch.poll()));
        }
    }

    pub fn close(&mut self) {
        self.waiting.clear();
        self.end_fetch();
    }

    pub fn next_deadline(&self) -> Option<u64> {
        self.fetch.as_ref().and_then(Fetch::next_deadline)
    }

    pub fn poll(&mut self) -> Option<Command> {
        self.last_words.pop_front().or_else(|| self.fetch.as_mut().and_then(Fetch::poll))
    }

    pub fn held(&self) -> usize {
        let waiting: usize = self.waiting.iter().map(|(message, _)| message.len()).sum();
        waiting + self.fetch.as_ref().map_or(0, Fetch::held)
    }
}
