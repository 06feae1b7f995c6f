//! What servers offer while they do not run: written behind whenever it changes, of those that may be at rest, and read back at
//! boot (`rest.rs`). Owns nothing; the lists are the peers'. Invariant: what is read back has passed the rules of a list that a server
//! sends, and what does not is forgotten, so that the server starts and says it anew.

use crate::core::mcp::era::stateless::Support;
use crate::core::peers::listings::Listing;
use crate::core::peers::peer::{Advertised, Dialect, Hello, Peer};
use crate::core::servers::Servers;
use crate::core::servers::rows::Rows;
use crate::ids::ServerId;
use crate::limits::{SERVER_INFO_MAX, TOOL_LIST_MAX};
use crate::model::catalogue::Catalogue;
use crate::wire::json::Json;
use std::hash::{DefaultHasher, Hash, Hasher};

impl Servers {
    /// What is to be written of it; none: the store has it already.
    pub fn new_catalogue(&mut self, id: ServerId, catalogue: Catalogue) -> Option<Catalogue> {
        let server = self.known.get_mut(&id).filter(|server| server.removing.is_none())?;
        let print = print_of(&catalogue);
        (server.catalogue.replace(print) != Some(print)).then_some(catalogue)
    }

    /// The store may not have it after all.
    pub fn catalogue_unstored(&mut self, id: ServerId) {
        if let Some(server) = self.known.get_mut(&id) {
            server.catalogue = None;
        }
    }
}

impl Rows<'_> {
    /// What an earlier life of this server has told.
    pub fn restore_catalogue(&mut self, id: ServerId, catalogue: &Catalogue) {
        let Some(server) = self.servers.known.get_mut(&id).filter(|server| server.refused.is_none()) else { return };
        let (main, name) = (server.main, server.definition.name.clone());
        let Some((advertised, hello)) = judged(catalogue) else {
            return log::warn!("server={name} what was kept of it breaks a rule: it is asked again");
        };
        for (list, text) in Listing::ALL.into_iter().zip(&catalogue.lists) {
            let Some(text) = text else { continue };
            let (text, separator) = (text.as_bytes().into(), &self.settings.separator);
            if let Err(why) = self.peers.keep_list(main, list, text, separator, self.effects) {
                return log::warn!("server={name} {} that was kept is left out: {why}", list.method());
            }
        }
        let peer = self.peers.known.get_mut(&main).expect("a server that is known has one");
        (peer.advertised, peer.hello) = (Some(advertised), Some(hello));
        server.catalogue = Some(print_of(catalogue));
        if catalogue.stateless {
            peer.dialect = Dialect::Stateless;
            server.support = Support::Yes(main);
        }
    }
}

fn print_of(catalogue: &Catalogue) -> u64 {
    let mut hasher = DefaultHasher::new();
    catalogue.hash(&mut hasher);
    hasher.finish()
}

pub(in crate::core) fn catalogue_of(main: &Peer) -> Option<Catalogue> {
    let Advertised { capabilities, server_info, instructions } = main.advertised.clone()?;
    // Without its tools it is not known yet.
    main.list(Listing::Tools).text.as_ref()?;
    let text = |list: Listing| {
        let text = main.list(list).text.as_ref()?;
        Some(String::from_utf8_lossy(text).into_owned())
    };
    Some(Catalogue {
        capabilities,
        server_info,
        instructions,
        protocol_version: main.hello.as_ref().and_then(|hello| hello.protocol_version.clone()),
        stateless: main.dialect == Dialect::Stateless,
        lists: Listing::ALL.map(text),
    })
}

fn judged(catalogue: &Catalogue) -> Option<(Advertised, Hello)> {
    let is_json = |text: &str, most: usize| text.len() <= most && Json::of(text).is_ok();
    let is_object = |text: &str, most: usize| is_json(text, most) && text.starts_with('{');
    let Catalogue { capabilities, server_info, instructions, protocol_version, lists, .. } = catalogue;
    let fit = is_object(capabilities, SERVER_INFO_MAX)
        && is_object(server_info, SERVER_INFO_MAX)
        && instructions.as_ref().is_none_or(|text| is_json(text, SERVER_INFO_MAX))
        && protocol_version.as_ref().is_none_or(|version| version.len() <= 64)
        && lists.iter().flatten().all(|text| is_object(text, TOOL_LIST_MAX));
    fit.then(|| {
        let (capabilities, instructions) = (capabilities.clone(), instructions.clone());
        let advertised = Advertised { capabilities, server_info: server_info.clone(), instructions };
        let server_info = Some(server_info.clone().into_bytes());
        (advertised, Hello { server_info, protocol_version: protocol_version.clone() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_is_judged_before_anybody_hears_of_it() {
        let good = Catalogue {
            capabilities: r#"{"tools":{}}"#.to_string(),
            server_info: r#"{"name":"s"}"#.to_string(),
            instructions: Some(r#""use it""#.to_string()),
            protocol_version: Some("2025-11-25".to_string()),
            stateless: false,
            lists: [Some(r#"{"tools":[]}"#.to_string()), None, None, None],
        };
        assert!(judged(&good).is_some());
        let with = |change: fn(&mut Catalogue)| {
            let mut bad = good.clone();
            change(&mut bad);
            judged(&bad).is_none()
        };
        assert!(with(|c| c.capabilities = "[]".to_string()));
        assert!(with(|c| c.server_info = r#"{"name":"#.to_string()));
        assert!(with(|c| c.instructions = Some("no JSON".to_string())));
        assert!(with(|c| c.protocol_version = Some("x".repeat(65))));
        assert!(with(|c| c.lists[3] = Some("null".to_string())));
        assert!(with(|c| c.lists[0] = Some(format!("{{\"tools\":[{}]}}", " ".repeat(TOOL_LIST_MAX)))));
    }
}
