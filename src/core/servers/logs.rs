//! The logs of servers: what each says and what becomes of it goes into its ring, to the disk, and to those who follow it. Owns
//! who follows which; never what is kept of a line (`clients/log_ring.rs`).

use crate::api::response::StreamEvent;
use crate::core::clients::news::give_watcher_back;
use crate::core::contract::Output;
use crate::core::effects::{Effects, Timer};
use crate::core::peers::peer::Peer;
use crate::core::servers::Servers;
use crate::core::servers::server::Follower;
use crate::ids::{ConnId, InstanceId, ServerId};
use crate::limits::{LOG_LINE_MAX, LOG_UNKEPT_EVERY};
use crate::model::log::{LogEntry, LogSource};
use memchr::memchr_iter;

impl Servers {
    pub fn follow(&mut self, id: ServerId, follower: Follower) {
        self.known.get_mut(&id).expect("found").followers.push(follower);
    }

    pub fn stop_following(&mut self, conn: ConnId, server: ServerId, effects: &mut Effects) {
        effects.deadlines.cancel(Timer::Stream(conn));
        let Some(server) = self.known.get_mut(&server) else { return };
        let left = server.followers.extract_if(.., |follower| follower.conn == conn);
        left.for_each(|follower| give_watcher_back(&mut effects.shares, &follower.owner));
    }

    /// Those who follow a log by this token, who do not from here on.
    pub fn end_following(&mut self, owner: &str) -> Vec<ConnId> {
        let mut conns = Vec::new();
        for server in self.known.values_mut() {
            conns.extend(server.followers.extract_if(.., |follower| &*follower.owner == owner).map(|left| left.conn));
        }
        conns
    }

    /// A lifecycle event, which all peers of a server share.
    pub fn note(&mut self, peer: &Peer, text: String, effects: &mut Effects) {
        self.log_entry(peer, LogSource::Lifecycle, text, effects);
    }

    pub fn note_health(&mut self, peer: &Peer, text: String, effects: &mut Effects) {
        self.log_entry(peer, LogSource::Health, text, effects);
    }

    fn log_entry(&mut self, peer: &Peer, source: LogSource, text: String, effects: &mut Effects) {
        let Some(server) = self.known.get_mut(&peer.server) else { return };
        let instance = peer.life.instance();
        let entry = LogEntry { at_unix_ms: effects.now.unix_ms, instance, source, text };
        server.log.push(entry.clone());
        self.stream(peer.server, entry, effects);
    }

    /// An entry that is in the ring already: to the followers, and to the disk.
    fn stream(&self, id: ServerId, entry: LogEntry, effects: &mut Effects) {
        let Some(server) = self.known.get(&id) else { return };
        for follower in &server.followers {
            let event = StreamEvent::Log(entry.clone());
            effects.outputs.push_back(Output::Event { conn: follower.conn, event });
        }
        effects.outputs.push_back(Output::LogKeep { server: id, entry });
    }

    /// `of`: the server whose instance it is, if it is known.
    pub fn stderr_read(&mut self, of: Option<ServerId>, instance: InstanceId, bytes: &[u8], effects: &mut Effects) {
        effects.work = 0;
        let before = effects.outputs.len();
        let Some(id) = of else { return effects.charge(1, bytes.len(), before) };
        if let Some(server) = self.known.get_mut(&id) {
            let fresh = server.log.stderr(instance, bytes, effects.now);
            self.stream_said(id, fresh, effects);
        }
        effects.charge(memchr_iter(b'\n', bytes).count().max(1), bytes.len(), before);
    }

    /// Lines that a server wrote, as far as its log has room for them.
    pub fn stream_said(&mut self, id: ServerId, fresh: impl IntoIterator<Item = LogEntry>, effects: &mut Effects) {
        for entry in fresh {
            self.stream(id, entry, effects);
        }
        if self.known.get_mut(&id).is_some_and(|server| server.log.begins_to_skip()) {
            effects.deadlines.set(Timer::Unkept(id), effects.now.mono_ms + LOG_UNKEPT_EVERY.as_millis() as u64);
        }
    }

    /// A line of stdout that is no message.
    pub fn noise(&mut self, id: ServerId, instance: InstanceId, bytes: &[u8], effects: &mut Effects) {
        let Some(server) = self.known.get_mut(&id) else { return };
        server.tally.noise_lines += 1;
        let said = &bytes[..bytes.len().min(LOG_LINE_MAX)];
        let entry = server.log.said(instance, LogSource::Noise, said, effects.now);
        self.stream_said(id, entry, effects);
    }

    pub fn tell_unkept(&mut self, id: ServerId, effects: &mut Effects) {
        let told = self.known.get_mut(&id).and_then(|server| server.log.tell_unkept(effects.now));
        if let Some(entry) = told {
            self.stream(id, entry, effects);
        }
    }

    pub fn end_stderr(&mut self, id: ServerId, instance: InstanceId, effects: &mut Effects) {
        let Some(server) = self.known.get_mut(&id) else { return };
        for entry in server.log.end_stderr(instance, effects.now) {
            self.stream(id, entry, effects);
        }
    }

    /// What an earlier daemon had written down of this server's log.
    pub fn log_restored(&mut self, id: ServerId, entries: Vec<LogEntry>) {
        if let Some(server) = self.known.get_mut(&id) {
            server.log.restore(entries);
        }
    }
}
