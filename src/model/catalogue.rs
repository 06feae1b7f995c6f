//! What a server has told of itself and offers, kept for the time when it does not run: the words of its handshake and its
//! lists, byte for byte. Plain data; whoever reads one back judges it, because anybody with a connection to the database can
//! have written it.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalogue {
    /// As JSON text.
    pub capabilities: String,
    pub server_info: String,
    #[serde(default)]
    pub instructions: Option<String>,
    /// The version of the handshake.
    #[serde(default)]
    pub protocol_version: Option<String>,
    /// It speaks the version without sessions, and no other.
    #[serde(default)]
    pub stateless: bool,
    /// Results of its lists as JSON text: tools, prompts, resources, templates.
    pub lists: [Option<String>; 4],
}
