//! The answer to a handshake: what of it is kept, and within which bounds. What a server tells of itself stays its own text.

use crate::core::peers::peer::{Advertised, Hello};
use crate::limits::SERVER_INFO_MAX;
use crate::wire::json::Json;
use serde::Deserialize;

pub fn parse_hello(result: Json<'_>) -> Option<(Hello, Advertised)> {
    #[derive(Deserialize)]
    struct Wire<'a> {
        #[serde(rename = "protocolVersion")]
        protocol_version: Option<String>,
        #[serde(rename = "serverInfo", borrow)]
        server_info: Option<Json<'a>>,
        #[serde(borrow)]
        capabilities: Option<Json<'a>>,
        #[serde(borrow)]
        instructions: Option<Json<'a>>,
    }
    let wire: Wire<'_> = serde_json::from_str(result.get()).ok()?;
    let small = |raw: &Json<'_>| raw.get().len() <= SERVER_INFO_MAX;
    let object = |raw: Option<Json<'_>>| match raw.filter(small) {
        Some(raw) if raw.get().starts_with('{') => raw.get().to_string(),
        Some(_) | None => "{}".to_string(),
    };
    let advertised = Advertised {
        capabilities: object(wire.capabilities),
        server_info: object(wire.server_info),
        instructions: wire.instructions.filter(small).map(|raw| raw.get().to_string()).filter(|text| text != "null"),
    };
    let hello = Hello {
        server_info: wire.server_info.filter(small).map(|raw| raw.get().as_bytes().to_vec()),
        protocol_version: wire.protocol_version.filter(|version| version.len() <= 64),
    };
    Some((hello, advertised))
}

impl Advertised {
    /// A server that knows no handshake has said nothing of itself; what it most likely has are tools.
    pub fn of_plain_server(name: &str) -> Advertised {
        Advertised {
            capabilities: r#"{"tools":{}}"#.to_string(),
            server_info: serde_json::json!({ "name": name, "version": "0" }).to_string(),
            instructions: None,
        }
    }
}
