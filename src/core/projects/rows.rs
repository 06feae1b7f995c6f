//! How rows of external servers and secrets come, change and go, once the store has them: the server of each row, and what a
//! change does to its link. Invariant: what is here is what the store has, or what it is about to be made to have.

use crate::api::projects::fill;
use crate::core::Core;
use crate::core::hosting::lifecycle::Event;
use crate::core::links::external::{ExternalLife, LinkEvent};
use crate::core::peers::life::Life;
use crate::core::projects::carriers::{carrier_of, needs_new_link, rules_of};
use crate::core::projects::server_of;
use crate::core::servers::server::{Origin, Removal, Server};
use crate::ids::PeerId;
use crate::model::definition::Definition;
use crate::model::external::{ExternalId, ExternalServer, ProjectId, StoredSecret};
use crate::wire::json;
use std::sync::Arc;

impl Core {
    pub(in crate::core) fn load_projects(&mut self, rows: Vec<ExternalServer>, secrets: Vec<StoredSecret>) {
        for row in rows {
            self.put_row(Arc::new(row));
        }
        for secret in secrets {
            self.projects.secrets.insert((secret.project.clone(), secret.name.clone()), secret);
        }
    }

    /// A row as it is from here on: a new one, or another version of one that is known.
    pub(in crate::core) fn put_row(&mut self, row: Arc<ExternalServer>) {
        let key = (row.project.clone(), row.spec.name.clone());
        let before = self.projects.rows.insert(row.id, Arc::clone(&row));
        match before {
            None => self.adopt(&row),
            Some(before) => {
                if before.spec.name != row.spec.name {
                    self.projects.names.remove(&(before.project.clone(), before.spec.name.clone()));
                }
                self.change_row(&before, &row);
            }
        }
        self.projects.names.insert(key, row.id);
    }

    fn adopt(&mut self, row: &Arc<ExternalServer>) {
        let (id, main, spec) = (server_of(row.id), self.peers.mint(), &row.spec);
        let definition = Arc::new(definition_of(row));
        let (mut server, mut peer) = Server::new(id, main, definition, spec.enabled, row.created_unix_ms);
        server.origin = Origin::Project(row.id);
        server.support = server.support_at_first();
        peer.life = Life::External(Box::new(ExternalLife::new(spec.enabled, rules_of(spec), carrier_of(spec))));
        self.servers.known.insert(id, server);
        self.peers.known.insert(main, peer);
    }

    fn change_row(&mut self, before: &ExternalServer, row: &Arc<ExternalServer>) {
        let server = self.servers.known.get_mut(&server_of(row.id)).expect("every row has a server");
        let main = server.main;
        (server.definition, server.desired_up) = (Arc::new(definition_of(row)), row.spec.enabled);
        let definition = Arc::clone(&server.definition);
        self.peers.known.get_mut(&main).expect("a server that is known has one").definition = definition;
        self.peers.arm_pulse(main, &mut self.effects);
        if before.spec.name != row.spec.name {
            self.peers.rename_lists(main, &self.settings.separator, &mut self.effects);
            self.offer_changed(server_of(row.id));
        }
        if carrier_of(&before.spec) != carrier_of(&row.spec) {
            return self.change_carrier(main, row);
        }
        if needs_new_link(&before.spec, &row.spec) {
            self.advance(main, Event::Link(LinkEvent::Changed(rules_of(&row.spec))));
        }
        match (before.spec.enabled, row.spec.enabled) {
            (true, false) => self.advance(main, Event::Link(LinkEvent::Disable)),
            (false, true) => self.advance(main, Event::Link(LinkEvent::Enable)),
            (true, true) | (false, false) => {}
        }
    }

    /// A connection becomes a program, or the other way round: the old peer leaves, and another one has its place.
    fn change_carrier(&mut self, main: PeerId, row: &Arc<ExternalServer>) {
        self.forget_clients(server_of(row.id));
        self.offer_changed(server_of(row.id));
        let old = self.servers.known.remove(&server_of(row.id)).expect("every row has a server");
        self.adopt(row);
        let server = self.servers.known.get_mut(&server_of(row.id)).expect("just adopted");
        (server.log, server.followers) = (old.log, old.followers);
        self.dismiss(main);
    }

    /// It is gone for its clients from here on, and forgotten when nothing of it runs.
    pub(in crate::core) fn drop_row(&mut self, id: ExternalId) {
        self.offer_changed(server_of(id));
        let Some(row) = self.projects.rows.remove(&id) else { return };
        self.projects.names.remove(&(row.project.clone(), row.spec.name.clone()));
        let server = server_of(id);
        if let Some(known) = self.servers.known.get_mut(&server) {
            known.removing = Some(Removal::KeepsVolumes);
            known.desired_up = false;
            self.advance_main(server, Event::Stop);
            self.follow_removal(server);
        }
        self.follow_waits(&row.project);
    }

    pub(in crate::core) fn put_secret(&mut self, secret: StoredSecret) {
        let (project, name) = (secret.project.clone(), secret.name.clone());
        let before = self.projects.secrets.insert((project.clone(), name.clone()), secret.clone());
        if before.is_none_or(|before| before.value != secret.value) {
            self.secret_changed(&project, &name);
        }
    }

    pub(in crate::core) fn drop_secret(&mut self, project: &ProjectId, name: &str) {
        if self.projects.secrets.remove(&(project.clone(), name.to_string())).is_some() {
            self.secret_changed(project, name);
        }
    }

    /// Whoever uses it is connected again.
    fn secret_changed(&mut self, project: &ProjectId, name: &str) {
        for row in self.projects.using(project, name) {
            let main = self.servers.known[&server_of(row.id)].main;
            self.advance(main, Event::Link(LinkEvent::Changed(rules_of(&row.spec))));
        }
    }
}

/// Those of a list of tools.
pub(in crate::core) fn tool_names(text: &[u8]) -> Vec<String> {
    let items = json::named_items(text, "tools", "name", usize::MAX).unwrap_or_default();
    items.iter().filter_map(|item| item.named?.text().map(|name| name.into_owned())).collect()
}

/// The peer of a row is looked after as the row says, and called by its name.
fn definition_of(row: &ExternalServer) -> Definition {
    Definition { name: row.spec.name.clone(), ..fill::peer_definition(row) }
}
