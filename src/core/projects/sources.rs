//! What stands behind a peer: the row that its server comes from, what is launched for it, and how a row is shown. Fills the project's
//! secrets into what the row says, at the moment it is needed, and never keeps what it has filled in.

use crate::api::projects::fill::{self, Filled};
use crate::core::mcp::endpoint::Offers;
use crate::core::peers::life::Life;
use crate::core::peers::listings::Listing;
use crate::core::projects::rows::tool_names;
use crate::core::projects::server_of;
use crate::core::projects::waits::Awaited;
use crate::core::servers::server::Origin;
use crate::ids::PeerId;
use crate::model::definition::Definition;
use crate::model::endpoint::Endpoint;
use crate::model::external::{
    ExternalServer, ExternalSpec, ExternalView, Isolation, ProjectId, RemoteTransport, Target,
};
use crate::model::fault::Fault;
use std::sync::Arc;

impl Offers<'_> {
    /// The row that a peer's server comes from, if it does.
    pub fn row_of(self, id: PeerId) -> Option<Arc<ExternalServer>> {
        let peer = self.peers.known.get(&id)?;
        match self.servers.known.get(&peer.server)?.origin {
            Origin::Registered => None,
            Origin::Project(row) => self.projects.rows.get(&row).cloned(),
        }
    }

    /// What a peer is connected to.
    pub fn endpoint(self, id: PeerId) -> Result<Endpoint, Fault> {
        let row = self.row_of(id).expect("only the peer of a row has a connection");
        match fill::fill(&row, &self.projects.secrets_of(&row.project))? {
            Filled::Program(_) => unreachable!("a program has no connection"),
            Filled::Remote(endpoint) => Ok(*endpoint),
        }
    }

    /// What is to be launched for a peer: the definition as it is registered, or a row's with its secrets.
    pub fn launchable(self, id: PeerId) -> Result<Arc<Definition>, Fault> {
        let Some(row) = self.row_of(id) else { return Ok(Arc::clone(&self.peers.known[&id].definition)) };
        match fill::fill(&row, &self.projects.secrets_of(&row.project))? {
            Filled::Program(definition) => {
                self.settings.check_place(&definition).map_err(|fault| allowed_or(&row.spec, fault))?;
                Ok(Arc::from(definition))
            }
            Filled::Remote(_) => unreachable!("a connection is not launched"),
        }
    }

    /// As the version has it for Streamable HTTP. Elsewhere it costs a server that does not answer what it does not know.
    pub fn asks_era_first(self, id: PeerId) -> bool {
        self.row_of(id).is_some_and(|row| match &row.spec.target {
            Target::Remote(remote) => remote.transport == RemoteTransport::Http,
            Target::Program(_) => false,
        })
    }

    pub fn external_view(self, row: &Arc<ExternalServer>) -> ExternalView {
        let Some((_, main)) = self.with_main(server_of(row.id)) else { return ExternalView::unused(Arc::clone(row)) };
        let Life::External(life) = &main.life else { return ExternalView::unused(Arc::clone(row)) };
        let now = self.now;
        let unix_ms = |mono_ms: u64| now.unix_ms.saturating_add(mono_ms).saturating_sub(now.mono_ms);
        ExternalView {
            server: Arc::clone(row),
            status: life.link_status(),
            last_error: main.last_error.clone(),
            tools: main.list(Listing::Tools).text.as_ref().map(|text| tool_names(text)),
            connected_since_unix_ms: life.connected_since_ms().map(unix_ms),
            next_attempt_unix_ms: life.next_attempt_at_ms().map(unix_ms),
            server_info: main.hello.as_ref().and_then(|hello| hello.server_info.clone()),
            protocol_version: main.hello.as_ref().and_then(|hello| hello.protocol_version.clone()),
        }
    }

    pub fn is_open(self, project: &ProjectId, awaited: Awaited) -> bool {
        match awaited {
            Awaited::List(list) => self.members(project).into_iter().any(|server| self.is_awaited(server, list)),
            Awaited::Link(server) => self.is_coming(server),
        }
    }
}

/// A program without a sandbox is a matter of the configuration; its row says that in other words than a definition does.
fn allowed_or(spec: &ExternalSpec, fault: Fault) -> Fault {
    match &spec.target {
        Target::Program(program) if program.isolation == Isolation::None => {
            let message = "isolation: \"none\" is not allowed here: see `allow_isolation_none`, or leave it out";
            Fault::new(fault.code, message).with("field", "isolation")
        }
        Target::Program(_) | Target::Remote(_) => fault,
    }
}
