//! What must be true of projects and those who wait for their links, whatever has happened; only debug builds look.

use crate::core::clients::Clients;
use crate::core::clients::parked::WaitOn;
use crate::core::effects::{Effects, Timer};
use crate::core::projects::{Projects, server_of};
use crate::core::servers::Servers;
use crate::core::servers::server::Origin;
use crate::ids::ConnId;

impl Projects {
    /// A row has its server, and whoever waits is there and does not wait for ever.
    pub fn check(&self, servers: &Servers, clients: &Clients, effects: &Effects) {
        for id in self.rows.keys() {
            let origin = servers.known.get(&server_of(*id)).map(|server| server.origin);
            assert_eq!(origin, Some(Origin::Project(*id)), "the server of row {id:?}");
        }
        for conn in self.waits.keys() {
            assert_eq!(clients.waits_on(*conn), Some(WaitOn::Project), "the client of a wait: {conn}");
        }
        for wait in self.mcp_waits.keys() {
            assert!(effects.deadlines.at(Timer::ProjectWait(*wait)).is_some(), "wait {wait} never ends");
        }
    }

    pub fn knows_client(&self, conn: ConnId) -> bool {
        self.waits.contains_key(&conn)
    }

    pub fn knows_wait(&self, wait: u64) -> bool {
        self.mcp_waits.contains_key(&wait)
    }
}
