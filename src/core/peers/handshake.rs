//! How a conversation with a server begins: `initialize`, the question for the version without sessions, or both one after the
//! other. Asks, reads the answers and keeps what they tell; what follows from that for others is the core's to pass on.
//! Invariant: one question of a handshake is out at a time.

use crate::core::clients::log_ring::printable;
use crate::core::contract::Output;
use crate::core::effects::Effects;
use crate::core::mcp::era::stateless::own_meta;
use crate::core::peers::Peers;
use crate::core::peers::calls::Caller;
use crate::core::peers::hello::parse_hello;
use crate::core::peers::peer::{Advertised, Dialect, Hello, Opening, Refusal, Role};
use crate::ids::{InstanceId, PeerId};
use crate::limits::{DISCOVER_TIMEOUT, SERVER_INFO_MAX};
use crate::model::protocol::STATELESS;
use crate::wire::json::{self, Json};
use crate::wire::jsonrpc::{self, Reply};
use serde::Deserialize;

/// What the daemon says of itself to every server: the newest version that has a handshake, and whatever any of its
/// clients might be able to do. What a client did not declare is refused in its name (`questions.rs`).
const INITIALIZE: &str = concat!(
    r#"{"protocolVersion":"2025-11-25","capabilities":{"roots":{"listChanged":true},"sampling":{"tools":{},"context":{}},"#,
    r#""elicitation":{"form":{},"url":{}}},"clientInfo":{"name":"stdiod","version":""#,
    env!("CARGO_PKG_VERSION"),
    r#""}}"#
);
const METHOD_NOT_FOUND: i64 = -32601;
const UNSUPPORTED_VERSION: i64 = -32022;

/// What a handshake has come to.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::core) enum Handshake {
    /// Something else is asked, or its state's deadline has the last word.
    UnderWay,
    /// Greeted in a version with sessions, or as a plain server that knows no handshake at all.
    Sessions {
        is_mcp: bool,
    },
    /// Greeted in the version without sessions, by the peer that is there for it.
    Stateless,
    /// The same by a peer for everybody: it speaks nothing else.
    StatelessOnly,
    /// It does not speak the version that this peer is there for.
    NotSpoken,
    Refused(String),
}

impl Peers {
    /// `era_first`: it is asked for the version without sessions before anything else.
    pub fn greet(&mut self, id: PeerId, instance: InstanceId, era_first: bool, effects: &mut Effects) {
        // No deadline of its own: the state's holds.
        match self.known[&id].role {
            Role::Stateless => self.discover(id, instance, None, effects),
            Role::Main | Role::Session(_) if era_first => self.discover_first(id, instance, false, effects),
            Role::Main | Role::Session(_) => self.ask_initialize(id, instance, effects),
        }
    }

    pub fn handshake_ended(
        &mut self,
        id: PeerId,
        instance: InstanceId,
        reply: Reply<'_>,
        effects: &mut Effects,
    ) -> Handshake {
        let Some(peer) = self.known.get_mut(&id) else { return Handshake::UnderWay };
        if peer.role == Role::Stateless {
            return match read_discovery(&reply) {
                Some(advertised) => self.greeted_stateless(id, instance, advertised, effects),
                None => Handshake::NotSpoken,
            };
        }
        let opening = std::mem::take(&mut peer.opening);
        let was_asked = match opening {
            Opening::Initialize => false,
            Opening::InitializeAfter => true,
            Opening::DiscoverFirst { again } => return self.discovered_first(id, instance, again, &reply, effects),
            Opening::DiscoverAfter(refusal) => {
                return match read_discovery(&reply) {
                    Some(advertised) => self.greeted_stateless(id, instance, advertised, effects),
                    None => self.undiscovered(id, instance, refusal, effects),
                };
            }
        };
        match reply {
            Reply::Result(result) => match parse_hello(result) {
                Some((hello, advertised)) => self.greeted(id, instance, hello, Some(advertised), effects),
                None => Handshake::Refused("its answer to initialize is no object".to_string()),
            },
            Reply::Error { code, raw } => {
                let said = printable(&raw.get().as_bytes()[..raw.get().len().min(512)]);
                let refusal = Refusal { code, said };
                if was_asked {
                    return self.undiscovered(id, instance, refusal, effects);
                }
                // It does not want to be initialized: perhaps it is of the other era.
                self.known.get_mut(&id).expect("it replied").opening = Opening::DiscoverAfter(refusal);
                self.discover(id, instance, Some(DISCOVER_TIMEOUT.as_millis() as u64), effects);
                Handshake::UnderWay
            }
            Reply::Neither => {
                Handshake::Refused("its answer to initialize has neither a result nor an error".to_string())
            }
        }
    }

    /// Only the question for the other era has a deadline: silence is an answer to it, and so is whatever is no answer.
    pub fn handshake_unanswered(&mut self, id: PeerId, instance: InstanceId, effects: &mut Effects) -> Handshake {
        let Some(peer) = self.known.get_mut(&id) else { return Handshake::UnderWay };
        match std::mem::take(&mut peer.opening) {
            Opening::DiscoverAfter(refusal) => self.undiscovered(id, instance, refusal, effects),
            Opening::DiscoverFirst { .. } => self.initialize_after(id, instance, effects),
            Opening::Initialize | Opening::InitializeAfter => Handshake::UnderWay,
        }
    }

    // --- what is asked ----------------------------------------------------------------------------------------------

    fn ask_initialize(&mut self, id: PeerId, instance: InstanceId, effects: &mut Effects) {
        self.own_call(id, instance, Caller::Handshake, ("initialize", INITIALIZE), None, effects);
    }

    /// The handshake of the version without sessions. `timeout_ms`: none for as long as the state lasts.
    fn discover(&mut self, id: PeerId, instance: InstanceId, timeout_ms: Option<u64>, effects: &mut Effects) {
        let params = format!(r#"{{"_meta":{}}}"#, own_meta());
        self.own_call(id, instance, Caller::Handshake, ("server/discover", &params), timeout_ms, effects);
    }

    /// As the version has it for Streamable HTTP. Elsewhere it costs a server that does not answer what it does not know.
    fn discover_first(&mut self, id: PeerId, instance: InstanceId, again: bool, effects: &mut Effects) {
        self.known.get_mut(&id).expect("its instance lives").opening = Opening::DiscoverFirst { again };
        self.discover(id, instance, Some(DISCOVER_TIMEOUT.as_millis() as u64), effects);
    }

    fn initialize_after(&mut self, id: PeerId, instance: InstanceId, effects: &mut Effects) -> Handshake {
        self.known.get_mut(&id).expect("its instance lives").opening = Opening::InitializeAfter;
        self.ask_initialize(id, instance, effects);
        Handshake::UnderWay
    }

    // --- what is told -----------------------------------------------------------------------------------------------

    fn discovered_first(
        &mut self,
        id: PeerId,
        instance: InstanceId,
        again: bool,
        reply: &Reply<'_>,
        effects: &mut Effects,
    ) -> Handshake {
        match read_discovery(reply) {
            Some(advertised) => self.greeted_stateless(id, instance, advertised, effects),
            None if !again && offers_stateless(reply) => {
                self.discover_first(id, instance, true, effects);
                Handshake::UnderWay
            }
            None => self.initialize_after(id, instance, effects),
        }
    }

    /// It knows neither handshake.
    fn undiscovered(&mut self, id: PeerId, instance: InstanceId, refusal: Refusal, effects: &mut Effects) -> Handshake {
        match refusal {
            // The small servers of the hosting guide know none; they are plain JSON-RPC and welcome.
            Refusal { code: METHOD_NOT_FOUND, .. } => self.greeted(id, instance, Hello::default(), None, effects),
            Refusal { code, said } => Handshake::Refused(format!("it refused initialize with {code}: {said}")),
        }
    }

    fn greeted(
        &mut self,
        id: PeerId,
        instance: InstanceId,
        hello: Hello,
        advertised: Option<Advertised>,
        effects: &mut Effects,
    ) -> Handshake {
        let peer = self.known.get_mut(&id).expect("its instance lives");
        let is_mcp = advertised.is_some();
        peer.advertised = Some(advertised.unwrap_or_else(|| Advertised::of_plain_server(&peer.definition.name)));
        (peer.hello, peer.dialect) = (Some(hello), Dialect::Sessions);
        if is_mcp {
            let bytes = jsonrpc::notification("notifications/initialized", None);
            effects.outputs.push_back(Output::Write { instance, bytes, call: None });
        }
        // First in the lane, so that clients which wait already do not overtake it.
        self.tell_version(id, instance, effects);
        self.first_tools(id, instance, effects);
        Handshake::Sessions { is_mcp }
    }

    fn greeted_stateless(
        &mut self,
        id: PeerId,
        instance: InstanceId,
        advertised: Advertised,
        effects: &mut Effects,
    ) -> Handshake {
        let peer = self.known.get_mut(&id).expect("it replied");
        let server_info = Some(advertised.server_info.clone().into_bytes());
        peer.hello = Some(Hello { server_info, protocol_version: Some(STATELESS.to_string()) });
        (peer.advertised, peer.listen, peer.dialect) = (Some(advertised), None, Dialect::Stateless);
        let is_alone = peer.role != Role::Stateless;
        self.tell_version(id, instance, effects);
        self.first_tools(id, instance, effects);
        if is_alone { Handshake::StatelessOnly } else { Handshake::Stateless }
    }
}

/// It refuses the version of the request, and names that very version among those that it speaks.
fn offers_stateless(reply: &Reply<'_>) -> bool {
    let Reply::Error { code: UNSUPPORTED_VERSION, raw } = reply else { return false };
    let supported = raw.member("data").and_then(|data| data.member("supported"));
    let mut versions = supported.into_iter().flat_map(|list| json::items(list.get().as_bytes())).map_while(Result::ok);
    versions.any(|version| version.text().is_some_and(|version| version == STATELESS))
}

fn read_discovery(reply: &Reply<'_>) -> Option<Advertised> {
    #[derive(Deserialize)]
    struct Wire<'a> {
        #[serde(rename = "supportedVersions", borrow)]
        versions: Json<'a>,
        #[serde(borrow)]
        capabilities: Option<Json<'a>>,
        #[serde(borrow)]
        instructions: Option<Json<'a>>,
        #[serde(rename = "_meta", borrow)]
        meta: Option<Json<'a>>,
    }
    #[derive(Deserialize)]
    struct Meta<'a> {
        #[serde(rename = "io.modelcontextprotocol/serverInfo", borrow)]
        server_info: Option<Json<'a>>,
    }
    let Reply::Result(result) = reply else { return None };
    let wire: Wire<'_> = serde_json::from_str(result.get()).ok()?;
    let mut versions = json::items(wire.versions.get().as_bytes()).map_while(Result::ok).filter_map(Json::text);
    if !versions.any(|version| version == STATELESS) {
        return None;
    }
    let text = |raw: Option<Json<'_>>| {
        let small = raw.filter(|raw| raw.get().len() <= SERVER_INFO_MAX && raw.get().starts_with('{'));
        small.map_or("{}".to_string(), |raw| raw.get().to_string())
    };
    let meta = wire.meta.and_then(|meta| serde_json::from_str::<Meta<'_>>(meta.get()).ok());
    Some(Advertised {
        capabilities: text(wire.capabilities),
        server_info: text(meta.and_then(|meta| meta.server_info)),
        instructions: wire.instructions.map(|raw| raw.get().to_string()).filter(|text| text.len() <= SERVER_INFO_MAX),
    })
}
