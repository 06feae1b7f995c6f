//! Connections to external servers, as instances: performs what their machines (`wire/remote`) want of the network, and gives
//! what comes of it as events. Owns which connection is whose, when a link is looked at again, and what it may hold; knows
//! nothing of protocols. Invariants: of an instance that was discarded nothing is heard; `Lost` is the last that is heard; and
//! a link that says more than it may is not read for a while.

use crate::allowance::Allowance;
use crate::core::contract::Now;
use crate::core::entropy::Entropy;
use crate::ids::{CallId, IdMap, InstanceId, OutgoingId, ServerId};
use crate::limits::{LINK_GOODBYE_WAIT, LINK_TOKENS_MAX, SERVER_WORK, UPSTREAM_BACKLOG_MAX, WORK_PER_CALL};
use crate::model::endpoint::{ClientCredentials, Endpoint, LinkFault, LinkFaultKind, ParamHeaders};
use crate::model::fault::Fault;
use crate::os::instances::pipe_share::PipeShare;
use crate::os::net::outgoing::{Event, Outgoing, PlainProxy, Target, Why};
use crate::shares::{Owner, Shares, Short};
use crate::wire::remote::bearer::Bearer;
use crate::wire::remote::{Channel, Command, Heard, Remote, Seeds, ViaProxy};
use mio::Registry;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq)]
pub enum LinkEvent {
    Connected,
    Line(Vec<u8>),
    Undelivered { call: CallId, fault: Fault },
    Lost(LinkFault),
}

struct Link {
    remote: Remote,
    endpoint: Arc<Endpoint>,
    channels: HashMap<Channel, OutgoingId>,
    share: PipeShare,
    allowance: Allowance,
    /// It has spent its allowance, and is not read until then.
    held_until_ms: Option<u64>,
    /// It was discarded, and has until then to say goodbye.
    leave_by_ms: Option<u64>,
    armed_ms: Option<u64>,
}

pub struct Links {
    outgoing: Outgoing,
    map: IdMap<InstanceId, Link>,
    channels: IdMap<OutgoingId, (InstanceId, Channel)>,
    minted: u64,
    entropy: Entropy,
    events: VecDeque<(InstanceId, LinkEvent)>,
    deadlines: BTreeSet<(u64, InstanceId)>,
    /// Of links with credentials, for their next connection.
    tokens: HashMap<ClientCredentials, Bearer>,
}

impl Links {
    /// `seed`: nobody may foresee it.
    pub fn new(outgoing: Outgoing, seed: [u8; 32]) -> Links {
        Links {
            outgoing,
            map: IdMap::default(),
            channels: IdMap::default(),
            minted: 0,
            entropy: Entropy::new(seed),
            events: VecDeque::new(),
            deadlines: BTreeSet::new(),
            tokens: HashMap::new(),
        }
    }

    /// Whether this instance is a connection, and not a sandbox.
    pub fn owns(&self, instance: InstanceId) -> bool {
        self.map.contains_key(&instance)
    }

    /// Also those that are saying goodbye.
    pub fn all(&self) -> Vec<InstanceId> {
        let mut all: Vec<InstanceId> = self.map.keys().copied().collect();
        all.sort();
        all
    }

    // --- what the core wants ------------------------------------------------------------------------------------

    pub fn connect(
        &mut self,
        instance: InstanceId,
        server: ServerId,
        endpoint: Arc<Endpoint>,
        (shares, now): (&mut Shares, Now),
    ) {
        let key = *self.entropy.bytes().first_chunk().expect("16 of 32");
        let seeds = Seeds { key, masks: self.entropy.bytes() };
        let known = endpoint.auth.as_ref().and_then(|credentials| self.tokens.get(credentials)).cloned();
        match Remote::new(Arc::clone(&endpoint), seeds, known, now.mono_ms) {
            Err(why) => self.events.push_back((instance, LinkEvent::Lost(why))),
            Ok(remote) => {
                let link = Link {
                    remote,
                    endpoint,
                    channels: HashMap::new(),
                    share: PipeShare::new(Owner::Server(server)),
                    allowance: Allowance::full(SERVER_WORK),
                    held_until_ms: None,
                    leave_by_ms: None,
                    armed_ms: None,
                };
                self.map.insert(instance, link);
                self.pump(instance, shares, now);
            }
        }
    }

    /// One or more whole messages, a line each. An error: there is no room for them.
    pub fn write(
        &mut self,
        instance: InstanceId,
        bytes: &[u8],
        call: Option<CallId>,
        (shares, now): (&mut Shares, Now),
    ) -> Result<(), Short> {
        let Some(link) = self.map.get_mut(&instance) else { return Ok(()) };
        if link.remote.held() + bytes.len() > UPSTREAM_BACKLOG_MAX {
            return Err(Short::Owner);
        }
        if call.is_some() {
            link.allowance.grant(WORK_PER_CALL);
        }
        for message in bytes.split(|byte| *byte == b'\n').filter(|message| !message.trim_ascii().is_empty()) {
            link.remote.write(message, call, now.mono_ms);
        }
        self.pump(instance, shares, now);
        Ok(())
    }

    pub fn negotiated(&mut self, instance: InstanceId, version: String) {
        if let Some(link) = self.map.get_mut(&instance) {
            link.remote.negotiated(version);
        }
    }

    pub fn mirror(&mut self, instance: InstanceId, tools: Arc<ParamHeaders>) {
        if let Some(link) = self.map.get_mut(&instance) {
            link.remote.mirror(tools);
        }
    }

    /// Nothing more is heard of it. The server is told, as far as that takes no more than a moment.
    pub fn discard(&mut self, instance: InstanceId, (shares, now): (&mut Shares, Now)) {
        self.events.retain(|(of, _)| *of != instance);
        let Some(link) = self.map.get_mut(&instance) else { return };
        match link.remote.close(now.mono_ms) {
            false => self.remove(instance, shares),
            true => {
                link.leave_by_ms = Some(now.mono_ms + LINK_GOODBYE_WAIT.as_millis() as u64);
                self.pump(instance, shares, now);
            }
        }
    }

    /// Also of those that are saying goodbye.
    pub fn is_at_rest(&self) -> bool {
        self.map.is_empty()
    }

    fn remove(&mut self, instance: InstanceId, shares: &mut Shares) {
        let Some(mut link) = self.map.remove(&instance) else { return };
        self.keep_token(&link);
        link.share.give_back(shares);
        for id in link.channels.into_values() {
            self.channels.remove(&id);
            self.outgoing.close(id);
        }
        if let Some(at) = link.armed_ms {
            self.deadlines.remove(&(at, instance));
        }
    }

    /// The next connection of these credentials begins with it.
    fn keep_token(&mut self, link: &Link) {
        let (Some(credentials), Some(bearer)) = (&link.endpoint.auth, link.remote.bearer()) else { return };
        if self.tokens.len() >= LINK_TOKENS_MAX && !self.tokens.contains_key(credentials) {
            let soonest = self.tokens.iter().min_by_key(|(_, bearer)| bearer.until_ms).map(|(of, _)| of.clone());
            soonest.map(|credentials| self.tokens.remove(&credentials));
        }
        self.tokens.insert(credentials.clone(), bearer.clone());
    }

    // --- what the kernel, the helpers and the clock say ---------------------------------------------------------

    pub fn woke(&mut self, id: OutgoingId, event: &mio::event::Event, registry: &Registry, now: Now) {
        self.outgoing.woke(id, event, registry, now);
    }

    /// A helper thread has woken the loop.
    pub fn resolved(&mut self, registry: &Registry, now: Now) {
        self.outgoing.heard(registry, now);
    }

    pub fn has_runnable(&self) -> bool {
        self.outgoing.has_runnable() || !self.events.is_empty()
    }

    pub fn next_deadline(&self) -> Option<u64> {
        self.deadlines.first().map(|(at, _)| *at).into_iter().chain(self.outgoing.next_deadline()).min()
    }

    /// Once a turn: whatever became possible is done, and deadlines pass.
    pub fn turn(&mut self, registry: &Registry, shares: &mut Shares, now: Now) {
        self.outgoing.serve_runnable(registry, now);
        self.outgoing.expire(registry, now);
        while let Some((id, event)) = self.outgoing.poll_event() {
            let Some(&(instance, channel)) = self.channels.get(&id) else { continue };
            let Some(link) = self.map.get_mut(&instance) else { continue };
            let heard = match event {
                Event::Connected { proxy: PlainProxy::None } => Heard::Connected { proxy: None },
                Event::Connected { proxy: PlainProxy::Asked { login } } => {
                    Heard::Connected { proxy: Some(ViaProxy { login }) }
                }
                Event::Bytes(bytes) => Heard::Bytes(bytes),
                Event::Closed { why } => {
                    self.channels.remove(&id);
                    link.channels.remove(&channel);
                    Heard::Closed(fault_of(&why))
                }
            };
            link.remote.heard(channel, heard, now.mono_ms);
            self.pump(instance, shares, now);
        }
        while let Some(&(at, instance)) = self.deadlines.first()
            && at <= now.mono_ms
        {
            self.deadlines.remove(&(at, instance));
            let Some(link) = self.map.get_mut(&instance) else { continue };
            link.armed_ms = None;
            if link.held_until_ms.is_some_and(|until| until <= now.mono_ms) {
                link.held_until_ms = None;
                link.channels.values().for_each(|id| self.outgoing.want_bytes(*id, true));
            }
            if link.leave_by_ms.is_some_and(|by| by <= now.mono_ms) {
                self.remove(instance, shares);
                continue;
            }
            link.remote.tick(now.mono_ms);
            self.pump(instance, shares, now);
        }
    }

    /// What has happened, in its order.
    pub fn poll_event(&mut self) -> Option<(InstanceId, LinkEvent)> {
        self.events.pop_front()
    }

    /// What the last event of a link has cost.
    pub fn charge(&mut self, instance: InstanceId, work: usize, now: Now) {
        let Some(link) = self.map.get_mut(&instance) else { return };
        link.allowance.spend(work);
        if link.held_until_ms.is_none()
            && let Some(until_ms) = link.allowance.wait_until(now.mono_ms)
        {
            link.held_until_ms = Some(until_ms);
            link.channels.values().for_each(|id| self.outgoing.want_bytes(*id, false));
            self.arm(instance);
        }
    }

    // --- what a machine wants -----------------------------------------------------------------------------------

    fn pump(&mut self, instance: InstanceId, shares: &mut Shares, now: Now) {
        while let Some(command) = self.map.get_mut(&instance).and_then(|link| link.remote.poll()) {
            let Some(link) = self.map.get_mut(&instance) else { return };
            let heard = link.leave_by_ms.is_none();
            let event = match command {
                Command::Open { channel, to } => {
                    self.minted += 1;
                    let id = OutgoingId(self.minted);
                    link.channels.insert(channel, id);
                    self.channels.insert(id, (instance, channel));
                    self.outgoing.connect(id, Target { url: to, tls_ca: link.endpoint.tls_ca.clone() }, now);
                    continue;
                }
                Command::Write { channel, bytes } => {
                    let id = link.channels.get(&channel).copied();
                    if id.is_some_and(|id| self.outgoing.write(id, bytes, now).is_err()) {
                        self.close_channel(instance, channel);
                        let why = LinkFault::new(LinkFaultKind::Timeout, Why::Stalled.message());
                        if let Some(link) = self.map.get_mut(&instance) {
                            link.remote.heard(channel, Heard::Closed(why), now.mono_ms);
                        }
                    }
                    continue;
                }
                Command::Close { channel } => {
                    self.close_channel(instance, channel);
                    continue;
                }
                Command::Connected => LinkEvent::Connected,
                Command::Line(line) => LinkEvent::Line(line),
                Command::Undelivered { call, fault } => LinkEvent::Undelivered { call, fault },
                Command::Unauthorized { .. } => unreachable!("a remote says whether it is undelivered"),
                Command::Lost(why) => {
                    self.remove(instance, shares);
                    LinkEvent::Lost(why)
                }
            };
            if heard {
                self.events.push_back((instance, event));
            }
        }
        self.settle(instance, shares);
    }

    /// What it holds is counted, and its next deadline known.
    fn settle(&mut self, instance: InstanceId, shares: &mut Shares) {
        let Some(link) = self.map.get_mut(&instance) else { return };
        if link.leave_by_ms.is_some() && link.remote.is_over() {
            return self.remove(instance, shares);
        }
        if link.share.count_lines(link.remote.held(), shares).is_err() {
            let heard = link.leave_by_ms.is_none();
            self.remove(instance, shares);
            let why = LinkFault::new(LinkFaultKind::Overloaded, "there is no memory for what it says");
            self.events.extend(heard.then_some((instance, LinkEvent::Lost(why))));
            return;
        }
        self.arm(instance);
    }

    fn close_channel(&mut self, instance: InstanceId, channel: Channel) {
        let id = self.map.get_mut(&instance).and_then(|link| link.channels.remove(&channel));
        if let Some(id) = id {
            self.channels.remove(&id);
            self.outgoing.close(id);
        }
    }

    fn arm(&mut self, instance: InstanceId) {
        let Some(link) = self.map.get_mut(&instance) else { return };
        let due = [link.remote.next_deadline(), link.held_until_ms, link.leave_by_ms].into_iter().flatten().min();
        if due == link.armed_ms {
            return;
        }
        if let Some(at) = std::mem::replace(&mut link.armed_ms, due) {
            self.deadlines.remove(&(at, instance));
        }
        self.deadlines.extend(due.map(|at| (at, instance)));
    }
}

fn fault_of(why: &Why) -> LinkFault {
    let kind = match why {
        Why::TooMany => LinkFaultKind::Overloaded,
        Why::NotFound(_) => LinkFaultKind::Name,
        Why::Unreachable(_) | Why::Proxy(_) => LinkFaultKind::Refused,
        Why::Tls(_) => LinkFaultKind::Tls,
        Why::TimedOut(_) | Why::Stalled => LinkFaultKind::Timeout,
        // Whether what came was all nobody can say then.
        Why::Ended { clean: false } => LinkFaultKind::Protocol,
        Why::Ended { clean: true } | Why::Lost(_) => LinkFaultKind::Closed,
    };
    LinkFault::new(kind, why.message())
}
