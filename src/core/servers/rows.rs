//! What the store says at boot, judged before anything of it runs: rows that break a rule, names and ports that two rows
//! want, servers that were removed, and volumes that must go before anybody of their name starts. Owns nothing. Invariant:
//! whatever stands in a row, the daemon comes up, and each server that is not started says why.

use crate::api::definition::stored;
use crate::core::Settings;
use crate::core::contract::Output;
use crate::core::effects::Effects;
use crate::core::peers::Peers;
use crate::core::projects::Projects;
use crate::core::servers::Servers;
use crate::core::servers::outbox::Pending;
use crate::core::servers::server::{Removal, Server};
use crate::ids::ServerId;
use crate::model::external::{ExternalServer, StoredSecret};
use crate::model::fault::{Code, Fault};
use crate::model::principal::Principal;
use crate::model::records::{Decision, Snapshot, StoreOp, StoredServer, Token, UnfitServer};
use crate::model::status::Status;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is filled from the store, or judged by what this daemon allows: a server comes with its peer.
pub(in crate::core) struct Rows<'a> {
    pub servers: &'a mut Servers,
    pub peers: &'a mut Peers,
    pub projects: &'a mut Projects,
    pub settings: &'a Settings,
    pub effects: &'a mut Effects,
}

impl Rows<'_> {
    /// What an earlier daemon had decided goes before what its store says. Gives the rest, which is the projects'.
    pub fn load(&mut self, snapshot: Snapshot, decisions: Vec<Decision>) -> (Vec<ExternalServer>, Vec<StoredSecret>) {
        self.servers.loaded = true;
        self.servers.tokens.read();
        let is_revoked = |token: &Token| {
            let of_it = |decision: &Decision| matches!(decision, Decision::Revoke { hash, .. } if *hash == token.hash);
            decisions.iter().any(of_it)
        };
        for (_, token) in snapshot.tokens {
            let name = token.name.clone();
            if !is_revoked(&token) && !self.servers.tokens.insert(token) {
                log::error!("the token {name} is left out: another one has its name or its hash");
            }
        }
        self.ensure_admin_token();
        self.servers.tokens_elapsed(self.effects);
        self.load_servers(snapshot.servers, snapshot.unfit, snapshot.volume_removals, &decisions);
        for (id, catalogue) in snapshot.catalogues {
            self.restore_catalogue(id, &catalogue);
        }
        for decision in decisions {
            self.servers.decided_before(decision);
        }
        (snapshot.externals, snapshot.secrets)
    }

    fn ensure_admin_token(&mut self) {
        let token = self.admin_token();
        if self.servers.tokens.list().any(|known| known.hash == token.hash) {
            return;
        }
        // One of that name is of another data directory, or of an admin.token that is gone.
        self.servers.tokens.remove(&token.name);
        self.servers.tokens.insert(token.clone());
        let id = self.effects.entropy.uuid();
        let seq = self.servers.outbox.issue(Pending::AdminToken);
        self.effects.outputs.push_back(Output::Store { seq, op: Box::new(StoreOp::InsertToken { id, token }) });
    }

    fn admin_token(&self) -> Token {
        Token {
            name: "admin".to_string(),
            hash: self.settings.admin_token_hash,
            scopes: ["admin:read", "admin:write", "mcp:call"].map(String::from).to_vec(),
            created_unix_ms: self.effects.now.unix_ms,
            ..Token::default()
        }
    }

    fn load_servers(
        &mut self,
        rows: Vec<StoredServer>,
        unfit: Vec<UnfitServer>,
        volume_removals: Vec<(ServerId, String)>,
        decisions: &[Decision],
    ) {
        // True: with its volumes.
        let mut removed: BTreeMap<ServerId, bool> = BTreeMap::new();
        let mut stopped: Vec<ServerId> = Vec::new();
        for decision in decisions {
            match decision {
                Decision::Stop { server } => stopped.push(*server),
                Decision::Delete { server, volumes, .. } => _ = removed.insert(*server, *volumes),
                Decision::Revoke { .. } => {}
            }
        }
        for (id, name) in volume_removals {
            self.remove_volumes_first(id, name);
        }
        for mut row in rows.into_iter().filter(|row| !removed.contains_key(&row.id)) {
            row.desired_up &= !stopped.contains(&row.id);
            let said = row.status.status;
            let name = row.definition.name.clone();
            match self.servers.names.contains_key(&name) {
                false => self.add_row(row, said, None),
                true => {
                    let why = Fault::field("name", "another row has it, or its volumes are still to be removed");
                    row.definition.name = stored::harmless_name(row.id);
                    self.add_row(row, said, Some(why));
                }
            }
        }
        for mut row in unfit.into_iter().filter(|row| !removed.contains_key(&row.server.id)) {
            if self.servers.names.contains_key(&row.server.definition.name) {
                row.server.definition.name = stored::harmless_name(row.server.id);
                row.why = Fault::field("name", format_args!("another row has it; and {}", row.why.message));
            }
            let said = row.server.status.status;
            self.add_row(row.server, said, Some(row.why));
        }
        for decision in decisions {
            if let Decision::Delete { server, name, volumes: true } = decision {
                self.remove_volumes_first(*server, name.clone());
            }
        }
    }

    /// `unfit`: why it may not be started.
    fn add_row(&mut self, row: StoredServer, said: Status, unfit: Option<Fault>) {
        let (mut server, mut main) = Server::from_stored(row, self.peers.mint());
        if let Some(why) = unfit {
            server.refuse(&mut main, why);
        }
        // An earlier daemon may have had no time to say how it left.
        if main.life.status() != said {
            self.servers.outbox.mark(server.id);
        }
        self.servers.names.insert(server.definition.name.clone(), server.id);
        self.effects.outputs.push_back(Output::LogRestore { server: server.id });
        self.projects.place(server.id, None, server.definition.project.as_ref());
        self.peers.known.insert(main.id, main);
        self.servers.known.insert(server.id, server);
    }

    /// A server that is gone but for its volumes: it has its name until they are gone too.
    fn remove_volumes_first(&mut self, id: ServerId, name: String) {
        if self.servers.known.contains_key(&id) {
            return;
        }
        // They are this one's by now, or no server has ever had such a name.
        if self.servers.names.contains_key(&name) || crate::api::definition::fields::server_name(&name).is_err() {
            log::error!("volumes of {name:?} were to be removed and are left: they are not of a server that is gone");
            return;
        }
        log::info!("server={name} id={id} was removed; now its volumes are");
        self.servers.names.insert(name.clone(), id);
        let main = self.peers.mint();
        let (mut server, peer) =
            Server::new(id, main, Arc::new(stored::nothing_of(name)), false, self.effects.now.unix_ms);
        server.removing = Some(Removal::TakesVolumes);
        self.servers.known.insert(id, server);
        self.peers.known.insert(main, peer);
    }

    /// Can this daemon give its servers what their rows ask of the host? Of two that want the same port the older has it.
    pub fn check_places(&mut self) {
        let known = self.servers.registered().filter(|server| server.removing.is_none() && server.refused.is_none());
        let mut order: Vec<(u64, ServerId)> = known.map(|server| (server.created_unix_ms, server.id)).collect();
        order.sort();
        for (place, (_, id)) in order.iter().enumerate() {
            let definition = Arc::clone(&self.servers.known[id].definition);
            let mut checked = self.settings.check_place(&definition);
            for (index, port) in definition.ports.iter().enumerate() {
                let older = order[..place].iter().map(|(_, older)| &self.servers.known[older]);
                let mut older = older.filter(|server| server.refused.is_none());
                if older.any(|server| server.definition.ports.iter().any(|other| other.collides_with(port))) {
                    let message = format!("ports[{index}]: port {} of this host belongs to another server", port.host);
                    checked =
                        checked.and(Err(Fault::new(Code::PortTaken, message).with("field", format!("ports[{index}]"))));
                }
            }
            if let Err(why) = checked {
                let server = self.servers.known.get_mut(id).expect("just seen");
                server.refuse(self.peers.known.get_mut(&server.main).expect("a server that is known has one"), why);
            }
        }
    }

    /// A server that was refused is asked for all the same: what was wrong may be right by now.
    pub fn reconsider(&mut self, id: ServerId) -> Result<(), Fault> {
        let server = &self.servers.known[&id];
        let Some(why) = server.refused.clone() else { return Ok(()) };
        let fit = stored::check(&server.definition).ok().filter(|definition| {
            !server.is_nameless()
                && server.sealed_environment().is_none()
                && self.settings.check_place(definition).is_ok()
                && self.servers.check_ports(definition, &Principal::anonymous(), Some(id)).is_ok()
        });
        let Some(definition) = fit else { return Err(why) };
        let server = self.servers.known.get_mut(&id).expect("just seen");
        let main = self.peers.known.get_mut(&server.main).expect("a server that is known has one");
        (server.definition, server.refused) = (Arc::new(definition), None);
        (main.definition, main.last_error) = (Arc::clone(&server.definition), None);
        self.servers.outbox.reconcile(id);
        Ok(())
    }
}
