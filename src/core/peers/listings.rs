//! What a server offers, as it last said: tools, prompts, resources and templates. Fetched after every handshake and when
//! the server says that they changed, but not as often as it says so; owns the cached text, also as it is told where all
//! servers are offered at once, and tells of a change only if there is one. Never delays a client: whoever asks gets what is
//! known. Invariant: what is kept for a server is counted as its share, and what is told was prepared before.

use crate::core::contract::Output;
use crate::core::effects::{Effects, Timer};
use crate::core::events::RoomEvent;
use crate::core::links::external::Carrier;
use crate::core::mcp::era::mirrored;
use crate::core::mcp::era::params::header_params;
use crate::core::mcp::era::stateless::own_meta;
use crate::core::mcp::joint::{joint_prefix, names_of, prefixed};
use crate::core::peers::Peers;
use crate::core::peers::calls::Caller;
use crate::core::peers::life::Life;
use crate::core::peers::peer::{Dialect, HeaderParam, Peer, Role};
use crate::ids::{InstanceId, PeerId};
use crate::limits::{LIST_ITEMS_MAX, LIST_PAGES_MAX, LIST_PAUSE, SHARE_LISTS, TOOL_LIST_MAX, TOOL_LIST_TIMEOUT};
use crate::model::endpoint::ParamHeader;
use crate::model::tally::MethodClass;
use crate::shares::{Owner, Resource, Short};
use crate::wire::json::{self, Json};
use crate::wire::jsonrpc::{self, Reply};
use memchr::memmem;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Listing {
    Tools,
    Prompts,
    Resources,
    Templates,
}

impl Listing {
    pub const ALL: [Listing; 4] = [Listing::Tools, Listing::Prompts, Listing::Resources, Listing::Templates];

    pub fn method(self) -> &'static str {
        match self {
            Listing::Tools => "tools/list",
            Listing::Prompts => "prompts/list",
            Listing::Resources => "resources/list",
            Listing::Templates => "resources/templates/list",
        }
    }

    /// The member of the result that holds the items, and what names an item.
    pub fn keys(self) -> (&'static str, &'static str) {
        match self {
            Listing::Tools => ("tools", "name"),
            Listing::Prompts => ("prompts", "name"),
            Listing::Resources => ("resources", "uri"),
            Listing::Templates => ("resourceTemplates", "uriTemplate"),
        }
    }

    pub fn changed(self) -> &'static str {
        match self {
            Listing::Tools => "notifications/tools/list_changed",
            Listing::Prompts => "notifications/prompts/list_changed",
            Listing::Resources | Listing::Templates => "notifications/resources/list_changed",
        }
    }

    /// Two lists are told of by one word.
    pub fn told_as(self) -> Listing {
        match self {
            Listing::Tools => Listing::Tools,
            Listing::Prompts => Listing::Prompts,
            Listing::Resources | Listing::Templates => Listing::Resources,
        }
    }

    pub fn capability(self) -> &'static str {
        match self {
            Listing::Tools => "tools",
            Listing::Prompts => "prompts",
            Listing::Resources | Listing::Templates => "resources",
        }
    }
}

/// One cached list.
#[derive(Default, Serialize, Deserialize)]
pub struct Cached {
    /// The whole answer, byte for byte if it was one page.
    pub text: Option<Arc<[u8]>>,
    /// Its items under the names that they have where all servers are offered at once, with a comma before each.
    pub joint: Option<Arc<[u8]>>,
    /// What some client still reads of older ones.
    outgoing: Vec<Arc<[u8]>>,
    /// What is counted of all that.
    counted: usize,
    /// A request for it is on its way, and whether its answer will be old by then.
    asked: bool,
    stale: bool,
    /// However often the server says that it has changed, it is not asked for it before.
    rests_until_ms: u64,
    /// Pages that came before the last.
    pages: Vec<Vec<u8>>,
}

impl Cached {
    /// A request for it is on its way.
    pub fn is_asked(&self) -> bool {
        self.asked
    }

    /// Nothing is on its way any more.
    fn forget_asking(&mut self) {
        (self.asked, self.stale) = (false, false);
        self.pages.clear();
    }

    /// What the last instance was asked is nothing to the next.
    pub fn new_instance(&mut self) {
        self.forget_asking();
        self.rests_until_ms = 0;
    }

    fn replace(&mut self, text: Arc<[u8]>, joint: Option<Arc<[u8]>>) {
        let before = [self.text.replace(text), std::mem::replace(&mut self.joint, joint)];
        self.outgoing.extend(before.into_iter().flatten());
        self.outgoing.retain(is_read);
    }

    fn bytes(&self) -> usize {
        let present = [&self.text, &self.joint].into_iter().flatten();
        let kept: usize = present.chain(&self.outgoing).map(|bytes| bytes.len()).sum();
        kept + self.pages.iter().map(Vec::len).sum::<usize>()
    }

    /// With so many in the place of the present ones, of which those stay that somebody reads.
    fn bytes_with(&self, new: usize) -> usize {
        let present = [&self.text, &self.joint].into_iter().flatten();
        let old = present.chain(&self.outgoing).filter(|bytes| is_read(bytes));
        new + old.map(|bytes| bytes.len()).sum::<usize>()
    }
}

/// Some answer with it is still on its way to a client.
fn is_read(bytes: &Arc<[u8]>) -> bool {
    Arc::strong_count(bytes) > 1
}

impl Peers {
    /// The first question after a handshake. Everybody is asked for tools; also servers that know no handshake.
    pub fn first_tools(&mut self, id: PeerId, instance: InstanceId, effects: &mut Effects) {
        let params = self.own_params(id);
        self.known.get_mut(&id).expect("it is greeted").list_mut(Listing::Tools).asked = true;
        let timeout_ms = Some(TOOL_LIST_TIMEOUT.as_millis() as u64);
        let list = Listing::Tools;
        self.own_call(id, instance, Caller::List(list), (list.method(), &params), timeout_ms, effects);
    }

    pub fn fetch_rest(&mut self, id: PeerId, effects: &mut Effects) {
        for list in [Listing::Prompts, Listing::Resources, Listing::Templates] {
            let wanted = |peer: &Peer| {
                peer.offers(list.capability()) && peer.life.ready_instance().is_some() && !peer.list(list).asked
            };
            if self.known.get(&id).is_some_and(wanted) {
                self.ask_page(id, list, None, effects);
            }
        }
    }

    /// The server says that it has changed. The first time it is asked for it at once, and then after a rest.
    pub fn fetch(&mut self, id: PeerId, list: Listing, effects: &mut Effects) {
        let now_ms = effects.now.mono_ms;
        let Some(peer) = self.known.get_mut(&id) else { return };
        let cached = peer.list_mut(list);
        if cached.asked || cached.rests_until_ms > now_ms {
            cached.stale = true;
            if !cached.asked {
                effects.deadlines.set(Timer::List(id, list), cached.rests_until_ms);
            }
            return;
        }
        let size_ms = cached.text.as_ref().map_or(0, |text| text.len() / 1024) as u64;
        cached.rests_until_ms = now_ms + LIST_PAUSE.as_millis() as u64 + size_ms;
        if peer.life.ready_instance().is_some() {
            self.ask_page(id, list, None, effects);
        }
    }

    /// Its rest is over.
    pub fn fetch_due(&mut self, id: PeerId, list: Listing, effects: &mut Effects) {
        let Some(cached) = self.known.get_mut(&id).map(|peer| peer.list_mut(list)) else { return };
        if cached.stale && !cached.asked {
            cached.stale = false;
            self.fetch(id, list, effects);
        }
    }

    fn ask_page(&mut self, id: PeerId, list: Listing, cursor: Option<&str>, effects: &mut Effects) {
        let params = match cursor {
            None => self.own_params(id),
            Some(cursor) => {
                let own = self.own_params(id);
                let comma = if own == "{}" { "" } else { "," };
                format!(r#"{{"cursor":{cursor}{comma}{}"#, &own[1..])
            }
        };
        let timeout_ms = Some(TOOL_LIST_TIMEOUT.as_millis() as u64);
        let line = |call| jsonrpc::own_request(call, list.method(), &params);
        let sent = self.submit(id, None, timeout_ms, (Caller::List(list), MethodClass::Other), line, effects);
        let cached = self.known.get_mut(&id).expect("it is asked").list_mut(list);
        match sent {
            Ok(_) => cached.asked = true,
            Err(fault) => {
                log::debug!("{} could not be asked: {}", list.method(), fault.message);
                cached.forget_asking();
            }
        }
    }

    pub fn listed(&mut self, id: PeerId, list: Listing, reply: &Reply<'_>, separator: &str, effects: &mut Effects) {
        let Some(peer) = self.known.get_mut(&id) else { return };
        let cached = peer.list_mut(list);
        cached.asked = false;
        let Reply::Result(raw) = reply else { return self.list_ended(id, list, effects) };
        let size: usize = cached.pages.iter().map(Vec::len).sum::<usize>() + raw.get().len();
        if size > TOOL_LIST_MAX {
            return self.not_kept(id, list, &format!("more than {TOOL_LIST_MAX} bytes"), effects);
        }
        if let Some(cursor) = next_cursor(*raw).filter(|_| cached.pages.len() + 1 < LIST_PAGES_MAX) {
            cached.pages.push(raw.get().as_bytes().to_vec());
            return match self.count_list(id, list, Cached::bytes, effects) {
                Ok(()) => self.ask_page(id, list, Some(&cursor), effects),
                Err(why) => self.not_kept(id, list, &why, effects),
            };
        }
        let text: Arc<[u8]> = match cached.pages.is_empty() {
            true => raw.get().as_bytes().into(),
            false => {
                cached.pages.push(raw.get().as_bytes().to_vec());
                joined(list, &std::mem::take(&mut cached.pages)).into()
            }
        };
        let text = self.usable(id, list, text);
        let Some(peer) = self.known.get_mut(&id) else { return };
        let changed = match peer.list(list).text.as_ref() == Some(&text) {
            true => Ok(None),
            false => self.keep_list(id, list, text, separator, effects),
        };
        if list == Listing::Tools {
            self.mirror_params(id, effects);
        }
        match changed {
            Ok(None) => self.list_ended(id, list, effects),
            Ok(Some(Kept::Changed)) => {
                self.list_ended(id, list, effects);
                effects.raise(RoomEvent::ListChanged { peer: id, list });
            }
            Ok(Some(Kept::First)) => {
                self.list_ended(id, list, effects);
                effects.raise(RoomEvent::ListKnown { peer: id, list });
            }
            Err(why) => self.not_kept(id, list, &why, effects),
        }
    }

    /// Over a connection, a tool that wants a parameter in a header that cannot be is none.
    fn usable(&self, id: PeerId, list: Listing, text: Arc<[u8]>) -> Arc<[u8]> {
        let Some(peer) = self.known.get(&id).filter(|_| list == Listing::Tools) else { return text };
        match &peer.life {
            Life::External(life) if life.carrier() == Carrier::Network => {
                let (usable, left_out) = mirrored::usable_tools(&text);
                if !left_out.is_empty() {
                    let names = left_out.join(", ");
                    log::warn!("server={} has tools with an x-mcp-header that cannot be: {names}", self.name_of(id));
                }
                usable.map_or(text, Arc::from)
            }
            Life::External(_) | Life::Hosted(_) => text,
        }
    }

    /// A connection is told what calls repeat in headers; also after an unchanged list, because the connection may be new.
    fn mirror_params(&self, id: PeerId, effects: &mut Effects) {
        let peer = &self.known[&id];
        let Life::External(life) = &peer.life else { return };
        if let (Carrier::Network, Some(instance)) = (life.carrier(), peer.life.instance()) {
            let header =
                |param: &HeaderParam| ParamHeader { path: vec![param.property.clone()], header: param.header.clone() };
            let of_tool =
                |(tool, params): (&String, &Vec<HeaderParam>)| (tool.clone(), params.iter().map(header).collect());
            let tools = Arc::new(peer.header_params.iter().map(of_tool).collect());
            effects.outputs.push_back(Output::MirrorParams { instance, tools });
        }
    }

    /// Prepares all that will be asked of a list, in one walk through it.
    pub fn keep_list(
        &mut self,
        id: PeerId,
        list: Listing,
        text: Arc<[u8]>,
        separator: &str,
        effects: &mut Effects,
    ) -> Result<Option<Kept>, String> {
        let peer = &self.known[&id];
        let (array, name) = list.keys();
        let items = json::named_items(&text, array, name, LIST_ITEMS_MAX);
        let items = items.map_err(|_| format!("more than {LIST_ITEMS_MAX} items"))?;
        let joint: Option<Arc<[u8]>> = match peer.role {
            Role::Main => {
                let prefix = joint_prefix(list, &peer.definition.name, separator);
                Some(prefixed(&items, &prefix).into())
            }
            Role::Stateless | Role::Session(_) => None,
        };
        let new = text.len() + joint.as_ref().map_or(0, |joint| joint.len());
        self.count_list(id, list, |cached| cached.bytes_with(new), effects)?;
        let peer = self.known.get_mut(&id).expect("just seen");
        match list {
            Listing::Resources => peer.resource_uris = names_of(&items),
            Listing::Tools => {
                peer.header_params = header_params(&text);
                if peer.role == Role::Main {
                    peer.tool_names = names_of(&items);
                }
            }
            Listing::Prompts | Listing::Templates => {}
        }
        let cached = peer.list_mut(list);
        let kept = if cached.text.is_some() { Kept::Changed } else { Kept::First };
        cached.replace(text, joint);
        Ok(Some(kept))
    }

    /// It has another name from here on, and so has all that it offers among others.
    pub fn rename_lists(&mut self, id: PeerId, separator: &str, effects: &mut Effects) {
        for list in Listing::ALL {
            let peer = &self.known[&id];
            let Some(text) = peer.list(list).text.clone() else { continue };
            let (array, name) = list.keys();
            let items = json::named_items(&text, array, name, LIST_ITEMS_MAX).unwrap_or_default();
            let prefix = joint_prefix(list, &peer.definition.name, separator);
            let joint: Arc<[u8]> = prefixed(&items, &prefix).into();
            let new = text.len() + joint.len();
            match self.count_list(id, list, |cached| cached.bytes_with(new), effects) {
                Ok(()) => {
                    let cached = self.known.get_mut(&id).expect("just seen").list_mut(list);
                    cached.replace(Arc::clone(&text), Some(joint));
                }
                Err(why) => self.not_kept(id, list, &why, effects),
            }
        }
    }

    /// Counts what is kept of a list as the server's share, if it may have that much.
    fn count_list(
        &mut self,
        id: PeerId,
        list: Listing,
        bytes: impl Fn(&Cached) -> usize,
        effects: &mut Effects,
    ) -> Result<(), String> {
        let Some(peer) = self.known.get_mut(&id) else { return Ok(()) };
        let owner = Owner::Server(peer.server);
        let cached = peer.list_mut(list);
        let bytes = bytes(cached);
        let counted = effects.shares.resize(&owner, Resource::Lists, &mut cached.counted, bytes);
        counted.map_err(|short| match short {
            Short::Owner => format!("the lists of a server have at most {} bytes together", SHARE_LISTS.server),
            Short::Whole => format!("the lists of all servers have at most {} bytes together", SHARE_LISTS.whole),
        })
    }

    /// A peer goes for good, and what it offered with it.
    pub fn forget(&mut self, id: PeerId, effects: &mut Effects) {
        effects.deadlines.cancel(Timer::State(id));
        effects.deadlines.cancel(Timer::Idle(id));
        let Some(mut peer) = self.known.remove(&id) else { return };
        for list in Listing::ALL {
            let counted = std::mem::take(&mut peer.list_mut(list).counted);
            effects.shares.give_back(&Owner::Server(peer.server), Resource::Lists, counted);
            effects.deadlines.cancel(Timer::List(peer.id, list));
        }
    }

    fn not_kept(&mut self, id: PeerId, list: Listing, why: &str, effects: &mut Effects) {
        log::warn!("server={} {} is not kept: {why}", self.name_of(id), list.method());
        if let Some(cached) = self.known.get_mut(&id).map(|peer| peer.list_mut(list)) {
            // Slow clients will have read the older ones some time.
            cached.stale |= !cached.outgoing.is_empty();
        }
        self.list_ended(id, list, effects);
    }

    /// The request for it has ended, one way or the other.
    pub fn list_ended(&mut self, id: PeerId, list: Listing, effects: &mut Effects) {
        let Some(peer) = self.known.get_mut(&id) else { return };
        let cached = peer.list_mut(list);
        let again = cached.stale;
        cached.forget_asking();
        cached.outgoing.retain(is_read);
        self.count_list(id, list, Cached::bytes, effects).expect("what shrinks fits");
        if let Some(server) = self.known.get(&id).map(|peer| peer.server) {
            effects.raise(RoomEvent::ListEnded(server));
        }
        if again {
            self.fetch(id, list, effects);
        }
    }

    /// The request for it could not be sent in time: the server was at work for somebody else. It still is to be made.
    pub fn list_put_off(&mut self, id: PeerId, list: Listing, effects: &mut Effects) {
        if self.known.get(&id).is_some_and(|peer| peer.life.ready_instance().is_some()) {
            self.fetch(id, list, effects);
        }
    }

    /// The params of a request of the daemon's own.
    pub fn own_params(&self, peer: PeerId) -> String {
        match self.known.get(&peer).map(|peer| peer.dialect) {
            Some(Dialect::Stateless) => format!(r#"{{"_meta":{}}}"#, own_meta()),
            Some(Dialect::Sessions) | None => "{}".to_string(),
        }
    }
}

pub(in crate::core) enum Kept {
    First,
    Changed,
}

/// As JSON text.
fn next_cursor(result: Json<'_>) -> Option<String> {
    #[derive(Deserialize)]
    struct Wire<'a> {
        #[serde(rename = "nextCursor", borrow)]
        cursor: Option<Json<'a>>,
    }
    memmem::find(result.get().as_bytes(), b"nextCursor")?;
    let wire: Wire<'_> = serde_json::from_str(result.get()).ok()?;
    wire.cursor.map(|raw| raw.get().to_string()).filter(|text| text.starts_with('"'))
}

fn joined(list: Listing, pages: &[Vec<u8>]) -> Vec<u8> {
    let (array, name) = list.keys();
    let mut text = format!(r#"{{"{array}":["#).into_bytes();
    let items = pages.iter().flat_map(|page| json::named_items(page, array, name, usize::MAX).unwrap_or_default());
    for (at, item) in items.enumerate() {
        if at > 0 {
            text.push(b',');
        }
        text.extend_from_slice(item.whole.get().as_bytes());
    }
    text.extend_from_slice(b"]}");
    text
}
