//! Clients that wait for a server: until it is ready, down, gone, or has told who it is. Gives each its one answer, as soon
//! as the state allows it, at its deadline, or never, because it has left.

use crate::api::response::Answer;
use crate::core::Core;
use crate::core::clients::parked::{Hand, WaitOn};
use crate::core::contract::Output;
use crate::core::effects::Timer;
use crate::core::hosting::lifecycle::State;
use crate::core::peers::peer::Role;
use crate::core::servers::decisions::Key;
use crate::ids::{ConnId, PeerId, ServerId};
use crate::model::fault::{Code, Fault};

impl Core {
    pub(in crate::core) fn park(&mut self, conn: ConnId, on: WaitOn, until_ms: u64) {
        self.clients.parked.park(conn, on);
        self.effects.deadlines.set(Timer::Client(conn), until_ms);
    }

    /// Gives a waiting client its one answer. One that is gone, or has had it, gets nothing.
    pub(in crate::core) fn answer(&mut self, conn: ConnId, answer: Answer) {
        if self.clients.parked.release(conn).is_some() {
            self.effects.deadlines.cancel(Timer::Client(conn));
            self.effects.outputs.push_back(Output::Answer { conn, answer });
        }
    }

    /// It is about to wait for something else, or to be answered at once.
    pub(in crate::core) fn release_wait(&mut self, conn: ConnId) {
        self.clients.parked.release(conn);
        self.effects.deadlines.cancel(Timer::Client(conn));
    }

    /// To a client that is not parked.
    pub(in crate::core) fn refuse_at_once(&mut self, conn: ConnId, fault: Fault) {
        self.effects.outputs.push_back(Output::Answer { conn, answer: Answer::Refused(fault) });
    }

    pub(in crate::core) fn refuse(&mut self, conn: ConnId, fault: Fault) {
        self.answer(conn, Answer::Refused(fault));
    }

    pub(in crate::core) fn status_answer(&self, id: ServerId) -> Answer {
        self.ready_answer(id, Hand::Started)
    }

    /// How a server is after what was done to it. One that was restarted and cannot start is no success: whoever did it
    /// had one that ran.
    pub(in crate::core) fn ready_answer(&self, id: ServerId, after: Hand) -> Answer {
        let Some((server, main)) = self.with_main(id).filter(|(server, _)| server.removing.is_none()) else {
            return Answer::Refused(Fault::new(Code::NotFound, "the server was removed meanwhile"));
        };
        let view = || Box::new(server.view(main, &self.settings, self.effects.now));
        match after {
            Hand::Registered => Answer::Registered(view()),
            Hand::Restarted if main.start_failed => Answer::Refused(main.restarted_in_vain(self.effects.now)),
            Hand::Started | Hand::Restarted => Answer::Status(view()),
        }
    }

    /// The server's state may be what somebody waits for.
    pub(in crate::core) fn tell_waiting(&mut self, id: ServerId) {
        let Some((_, main)) = self.with_main(id) else { return };
        let state = main.life.state().clone();
        for (conn, on) in self.clients.parked.on_server(id) {
            let over = match on {
                WaitOn::Ready { .. } | WaitOn::Advertised(_) => match state {
                    State::Ready { .. } | State::Unresponsive { .. } | State::Down | State::Failed => true,
                    State::Waiting { looping, .. } => looping,
                    State::Pulling
                    | State::Installing { .. }
                    | State::InstallDue { .. }
                    | State::Due
                    | State::Launching { .. }
                    | State::Greeting { .. }
                    | State::Mute { .. }
                    | State::Stopping { .. } => false,
                },
                WaitOn::Down(_) => {
                    matches!(state, State::Down | State::Failed) && self.servers.decisions.is_settled(&Key::Server(id))
                }
                WaitOn::Gone(_)
                | WaitOn::Reply(_)
                | WaitOn::Stored(_)
                | WaitOn::Revoked
                | WaitOn::Log(_)
                | WaitOn::News
                | WaitOn::Post(_)
                | WaitOn::GetStream(_)
                | WaitOn::Project => false,
            };
            if over && matches!(on, WaitOn::Advertised(_)) {
                self.answer_greeting(conn, id);
            } else if over {
                let after = if let WaitOn::Ready { after, .. } = on { after } else { Hand::Started };
                self.answer(conn, self.ready_answer(id, after));
            }
        }
        self.follow_removal(id);
    }

    /// The start has failed in a way that waiting will not mend: say so at once.
    pub(in crate::core) fn answer_ready_waits(&mut self, peer: PeerId) {
        let Some(main) = self.peers.known.get(&peer).filter(|peer| peer.role == Role::Main) else { return };
        let id = main.server;
        for (conn, on) in self.clients.parked.on_server(id) {
            if let WaitOn::Ready { after, .. } = on {
                let answer = self.ready_answer(id, after);
                self.answer(conn, answer);
            }
        }
    }

    pub(in crate::core) fn wait_timed_out(&mut self, conn: ConnId) {
        let Some(on) = self.clients.parked.get(conn) else { return };
        match on {
            WaitOn::Ready { server, after } => {
                let answer = self.ready_answer(server, after);
                self.answer(conn, answer);
            }
            WaitOn::Down(server) => {
                let answer = self.status_answer(server);
                self.answer(conn, answer);
            }
            WaitOn::Stored(seq) => self.store_timed_out(conn, seq),
            WaitOn::Gone(_) => {
                self.refuse(conn, Fault::new(Code::Unavailable, "the server is removed, but still on its way out"));
            }
            WaitOn::Advertised(server) => self.answer_greeting(conn, server),
            WaitOn::Project => self.end_wait(conn),
            WaitOn::Reply(_)
            | WaitOn::Revoked
            | WaitOn::Log(_)
            | WaitOn::News
            | WaitOn::Post(_)
            | WaitOn::GetStream(_) => {
                unreachable!("they have no deadline of this kind")
            }
        }
    }

    pub(in crate::core) fn client_gone(&mut self, conn: ConnId) {
        self.effects.deadlines.cancel(Timer::Client(conn));
        match self.clients.parked.release(conn) {
            Some(WaitOn::Reply(call)) => {
                self.drop_tool_call(call);
                self.abandon_call(call, None, "the client has disconnected");
            }
            Some(WaitOn::Post(post)) => self.post_lost(post, conn),
            Some(WaitOn::GetStream(session)) => self.get_stream_lost(session, conn),
            Some(WaitOn::Advertised(_)) => _ = self.mcp.greetings.remove(&conn),
            Some(WaitOn::Log(id)) => self.stop_following(conn, id),
            Some(WaitOn::News) => self.stop_watching(conn),
            Some(WaitOn::Project) => self.drop_wait(conn),
            // What they asked for goes on without them.
            Some(WaitOn::Stored(_) | WaitOn::Revoked | WaitOn::Ready { .. } | WaitOn::Down(_) | WaitOn::Gone(_))
            | None => {}
        }
    }
}
