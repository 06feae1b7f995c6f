//! What must be true of the clients that wait, whatever has happened; only debug builds look.

use crate::core::clients::Clients;
use crate::core::clients::parked::WaitOn;
use crate::core::effects::{Effects, Timer};
use crate::ids::ConnId;

impl Clients {
    /// A client has a deadline of its own if that is what ends its wait, and watches if that is what it waits for.
    pub fn check(&self, effects: &Effects) {
        for (conn, on) in self.waiting() {
            let is_armed = effects.deadlines.at(Timer::Client(conn)).is_some();
            assert_eq!(is_armed, on.has_deadline(), "the deadline of {conn}, which waits: {on:?}");
            let watches = self.watchers.iter().filter(|watcher| watcher.conn == conn).count();
            assert_eq!(watches, usize::from(on == WaitOn::News), "{conn} watches, and waits: {on:?}");
        }
        for watcher in &self.watchers {
            assert_eq!(self.waits_on(watcher.conn), Some(WaitOn::News), "{} watches and is not there", watcher.conn);
        }
    }

    /// Who waits for what, in no order.
    pub fn waiting(&self) -> impl Iterator<Item = (ConnId, WaitOn)> {
        self.parked.iter().map(|(conn, on)| (*conn, *on))
    }
}
