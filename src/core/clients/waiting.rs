//! Clients that wait for a server: until it is ready, down, gone, or has told who it is. Gives each its one answer, as soon
//! as the state allows it, at its deadline, or never, because it has left.

use crate::api::response::Answer;
use crate::core::Settings;
use crate::core::clients::Clients;
use crate::core::clients::parked::{Hand, WaitOn};
use crate::core::contract::{Now, Output};
use crate::core::effects::{Effects, Timer};
use crate::core::hosting::lifecycle::State;
use crate::core::peers::peer::Peer;
use crate::core::servers::server::Server;
use crate::ids::{ConnId, ServerId};
use crate::model::fault::{Code, Fault};

impl Clients {
    /// It waits for something that has a deadline of its own, or none.
    pub fn park(&mut self, conn: ConnId, on: WaitOn) {
        self.parked.park(conn, on);
    }

    pub fn park_until(&mut self, conn: ConnId, on: WaitOn, until_ms: u64, effects: &mut Effects) {
        debug_assert!(on.has_deadline(), "{on:?}");
        self.parked.park(conn, on);
        effects.deadlines.set(Timer::Client(conn), until_ms);
    }

    /// Gives a waiting client its one answer. One that is gone, or has had it, gets nothing.
    pub fn answer(&mut self, conn: ConnId, answer: Answer, effects: &mut Effects) {
        let Some(on) = self.parked.release(conn) else { return };
        if on.has_deadline() {
            effects.deadlines.cancel(Timer::Client(conn));
        }
        effects.outputs.push_back(Output::Answer { conn, answer });
    }

    /// It has waited for something without a deadline, or is about to have another.
    pub fn release(&mut self, conn: ConnId) -> Option<WaitOn> {
        self.parked.release(conn)
    }

    /// It is about to wait for something else, or to be answered at once.
    pub fn release_wait(&mut self, conn: ConnId, effects: &mut Effects) -> Option<WaitOn> {
        effects.deadlines.cancel(Timer::Client(conn));
        self.parked.release(conn)
    }

    /// Ends an open stream.
    pub fn close(&mut self, conn: ConnId, effects: &mut Effects) {
        effects.deadlines.cancel(Timer::Stream(conn));
        if self.parked.release(conn).is_some() {
            effects.outputs.push_back(Output::EndStream { conn });
        }
    }

    pub fn waits_on(&self, conn: ConnId) -> Option<WaitOn> {
        self.parked.get(conn)
    }

    /// Everyone who waits for this server itself (not for a reply of it).
    pub fn on_server(&self, server: ServerId) -> Vec<(ConnId, WaitOn)> {
        self.parked.on_server(server)
    }

    /// Those who have waited for the server to be as it is now. `settled`: that it was stopped need not be told to the store
    /// any more.
    pub fn served_by(&self, server: ServerId, state: &State, settled: bool) -> Vec<(ConnId, WaitOn)> {
        let mut waiting = self.parked.on_server(server);
        waiting.retain(|(_, on)| match on {
            WaitOn::Ready { .. } | WaitOn::Advertised(_) => match state {
                State::Ready { .. }
                | State::Unresponsive { .. }
                | State::Asleep { .. }
                | State::Down
                | State::Failed => true,
                State::Waiting { looping, .. } => *looping,
                State::Pulling
                | State::Installing { .. }
                | State::InstallDue { .. }
                | State::Due
                | State::Launching { .. }
                | State::Greeting { .. }
                | State::Mute { .. }
                | State::Stopping { .. } => false,
            },
            WaitOn::Down(_) => matches!(state, State::Down | State::Failed) && settled,
            WaitOn::Gone(_)
            | WaitOn::Reply(_)
            | WaitOn::Stored(_)
            | WaitOn::Revoked
            | WaitOn::Log(_)
            | WaitOn::News
            | WaitOn::Post(_)
            | WaitOn::GetStream(_)
            | WaitOn::Project => false,
        });
        waiting
    }

    /// Those who wait for it to be ready may do so until then.
    pub fn extend_ready(&self, server: ServerId, until_ms: u64, effects: &mut Effects) {
        for (conn, _) in self.for_ready(server) {
            effects.deadlines.set(Timer::Client(conn), until_ms);
        }
    }

    /// Those who wait for it to be ready, and what they have done to it.
    pub fn for_ready(&self, server: ServerId) -> Vec<(ConnId, Hand)> {
        let hand = |(conn, on)| if let WaitOn::Ready { after, .. } = on { Some((conn, after)) } else { None };
        self.parked.on_server(server).into_iter().filter_map(hand).collect()
    }
}

/// How a server is after what was done to it. One that was restarted and cannot start is no success: whoever did it
/// had one that ran.
pub(in crate::core) fn ready_answer(
    known: Option<(&Server, &Peer)>,
    after: Hand,
    settings: &Settings,
    now: Now,
) -> Answer {
    let Some((server, main)) = known.filter(|(server, _)| server.removing.is_none()) else {
        return Answer::Refused(Fault::new(Code::NotFound, "the server was removed meanwhile"));
    };
    let view = || Box::new(server.view(main, settings, now));
    match after {
        Hand::Registered => Answer::Registered(view()),
        Hand::Restarted if main.start_failed => Answer::Refused(main.restarted_in_vain(now)),
        Hand::Started | Hand::Restarted => Answer::Status(view()),
    }
}
