//! What a server offers, as it last said: tools, prompts, resources and templates. Fetched after every handshake and when
//! the server says that they changed; owns the cached text and tells of a change only if there is one. Never delays a
//! client: whoever asks gets what is known.

use crate::core::Core;
use crate::core::aggregate::resource_uris;
use crate::core::calls::Caller;
use crate::ids::{InstanceId, ServerId};
use crate::limits::{LIST_PAGES_MAX, TOOL_LIST_MAX, TOOL_LIST_TIMEOUT};
use crate::wire::json::Json;
use crate::wire::jsonrpc::{self, Reply};
use memchr::memmem;
use serde::Deserialize;
use serde_json::json;
use std::collections::HashMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

    fn capability(self) -> &'static str {
        match self {
            Listing::Tools => "tools",
            Listing::Prompts => "prompts",
            Listing::Resources | Listing::Templates => "resources",
        }
    }
}

/// One cached list.
#[derive(Default)]
pub struct Cached {
    /// The whole answer, byte for byte if it was one page.
    pub text: Option<Vec<u8>>,
    /// A request for it is on its way, and whether its answer will be old by then.
    asked: bool,
    stale: bool,
    /// Pages that came before the last.
    pages: Vec<Vec<u8>>,
}

impl Cached {
    /// Of an instance that is gone: nothing is on its way any more.
    pub fn forget_asking(&mut self) {
        (self.asked, self.stale) = (false, false);
        self.pages.clear();
    }
}

impl Core {
    /// The first question after a handshake. Everybody is asked for tools; also servers that know no handshake.
    pub(super) fn first_tools(&mut self, id: ServerId, instance: InstanceId) {
        let params = self.own_params(id);
        self.servers.get_mut(&id).expect("it is greeted").list_mut(Listing::Tools).asked = true;
        let timeout_ms = Some(TOOL_LIST_TIMEOUT.as_millis() as u64);
        let list = Listing::Tools;
        self.own_call(id, instance, Caller::List(list), list.method(), &params, timeout_ms);
    }

    pub(super) fn fetch_rest(&mut self, id: ServerId) {
        for list in [Listing::Prompts, Listing::Resources, Listing::Templates] {
            if self.servers.get(&id).is_some_and(|server| server.offers(list.capability())) {
                self.fetch(id, list);
            }
        }
    }

    pub(super) fn fetch(&mut self, id: ServerId, list: Listing) {
        let Some(server) = self.servers.get_mut(&id) else { return };
        let cached = server.list_mut(list);
        if cached.asked {
            cached.stale = true;
        } else if server.life.ready_instance().is_some() {
            self.ask_page(id, list, None);
        }
    }

    fn ask_page(&mut self, id: ServerId, list: Listing, cursor: Option<&str>) {
        let params = match cursor {
            None => self.own_params(id),
            Some(cursor) => {
                let own = self.own_params(id);
                let comma = if own == "{}" { "" } else { "," };
                format!(r#"{{"cursor":{cursor}{comma}{}"#, &own[1..])
            }
        };
        let timeout_ms = Some(TOOL_LIST_TIMEOUT.as_millis() as u64);
        let sent =
            self.submit(id, timeout_ms, Caller::List(list), |call| jsonrpc::own_request(call, list.method(), &params));
        let cached = self.servers.get_mut(&id).expect("it is asked").list_mut(list);
        match sent {
            Ok(_) => cached.asked = true,
            Err(fault) => {
                log::debug!("{} could not be asked: {}", list.method(), fault.message);
                cached.forget_asking();
            }
        }
    }

    pub(super) fn listed(&mut self, id: ServerId, list: Listing, reply: &Reply<'_>) {
        let Some(server) = self.servers.get_mut(&id) else { return };
        let cached = server.list_mut(list);
        cached.asked = false;
        let Reply::Result(raw) = reply else { return self.list_ended(id, list) };
        let size: usize = cached.pages.iter().map(Vec::len).sum::<usize>() + raw.get().len();
        if size > TOOL_LIST_MAX {
            log::warn!("server={} {} is too long to keep", server.definition.name, list.method());
            return self.list_ended(id, list);
        }
        if let Some(cursor) = next_cursor(*raw).filter(|_| cached.pages.len() + 1 < LIST_PAGES_MAX) {
            cached.pages.push(raw.get().as_bytes().to_vec());
            return self.ask_page(id, list, Some(&cursor));
        }
        let text = match cached.pages.is_empty() {
            true => raw.get().as_bytes().to_vec(),
            false => {
                cached.pages.push(raw.get().as_bytes().to_vec());
                joined(list, &cached.pages)
            }
        };
        let (new, known) = (cached.text.as_ref() != Some(&text), cached.text.is_some());
        if new {
            let uris = (list == Listing::Resources).then(|| resource_uris(&text));
            cached.text = Some(text);
            if let Some(uris) = uris {
                server.resource_uris = uris;
            }
            if list == Listing::Tools {
                server.header_params = crate::core::era_params::header_params(*raw);
            }
        }
        self.list_ended(id, list);
        match (new, known) {
            (true, true) => self.list_changed(id, list),
            (true, false) => self.aggregate_changed(id, list),
            (false, _) => {}
        }
    }

    /// The request for it has ended, one way or the other.
    pub(super) fn list_ended(&mut self, id: ServerId, list: Listing) {
        let Some(server) = self.servers.get_mut(&id) else { return };
        let cached = server.list_mut(list);
        let again = cached.stale;
        cached.forget_asking();
        if again {
            self.fetch(id, list);
        }
    }
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
    let all: Vec<String> = pages.iter().flat_map(|page| items(list, page)).map(|item| item.get().to_string()).collect();
    format!("{{{}:[{}]}}", json!(list.keys().0), all.join(",")).into_bytes()
}

/// The items of a list, as the server wrote them.
pub(super) fn items(list: Listing, text: &[u8]) -> Vec<Json<'_>> {
    let members: Option<HashMap<String, Json<'_>>> = serde_json::from_slice(text).ok();
    let items = members.and_then(|members| members.get(list.keys().0).copied());
    items.and_then(|items| serde_json::from_str(items.get()).ok()).unwrap_or_default()
}
