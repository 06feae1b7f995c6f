//! What must be true between the rooms, whatever has happened; what one room can see by itself it checks itself. The simulation
//! asks after every step, and only debug builds have it. Changes nothing, and panics at the first thing that is not so.

use crate::core::Core;
use crate::core::clients::parked::WaitOn;
use crate::core::effects::Timer;
use crate::core::peers::calls::{Call, Caller};
use crate::core::peers::peer::{Peer, Role};
use crate::ids::{CallId, ConnId};

pub fn check(core: &Core) {
    core.peers.check(&core.effects);
    core.hosting.check(&core.peers);
    core.clients.check(&core.effects);
    core.mcp.check(&core.peers, &core.clients, &core.effects);
    core.projects.check(&core.servers, &core.clients, &core.effects);
    core.peers.calls.iter().for_each(|(id, call)| call_has_its_caller(core, *id, call));
    core.peers.known.values().for_each(|peer| peer_is_of_somebody(core, peer));
    core.clients.waiting().for_each(|(conn, on)| client_waits_for_something(core, conn, on));
    core.effects.deadlines.keys().for_each(|timer| timer_is_somebodys(core, *timer));
    for server in core.servers.known.values() {
        let main = core.peers.known.get(&server.main);
        assert!(main.is_some_and(|main| main.server == server.id), "{} has no main peer", server.id);
    }
}

/// One, if it is a client's.
fn call_has_its_caller(core: &Core, id: CallId, call: &Call) {
    match call.caller {
        Caller::Client(conn) | Caller::Tool(conn) => {
            assert_eq!(core.clients.waits_on(conn), Some(WaitOn::Reply(id)), "the client of call {id}");
        }
        Caller::Mcp => assert!(core.mcp.is_forwarded(id), "call {id} is no MCP client's"),
        Caller::Own | Caller::Handshake | Caller::List(_) => {}
    }
}

fn peer_is_of_somebody(core: &Core, peer: &Peer) {
    let id = peer.id;
    let server = core.servers.known.get(&peer.server);
    let server = server.unwrap_or_else(|| panic!("{id:?} is of a server that is gone"));
    assert_eq!(peer.role == Role::Main, server.main == id, "a server has one main peer");
    if let Role::Session(session) = peer.role
        && !peer.leaving
    {
        let own = core.mcp.session(session).and_then(|session| session.private.get(&peer.server));
        assert_eq!(own, Some(&id), "{id:?} is of a session that does not have it");
    }
}

fn client_waits_for_something(core: &Core, conn: ConnId, on: WaitOn) {
    let is_known = |server| core.servers.known.contains_key(&server);
    let is_there = match on {
        WaitOn::Reply(call) => {
            let caller = core.peers.calls.get(call).map(|call| call.caller);
            matches!(caller, Some(Caller::Client(client) | Caller::Tool(client)) if client == conn)
        }
        WaitOn::Post(_) | WaitOn::GetStream(_) => core.mcp.owes(conn, on),
        WaitOn::Advertised(server) => is_known(server) && core.mcp.owes(conn, on),
        WaitOn::Log(server) => {
            let followers = core.servers.known.get(&server).map(|server| &server.followers);
            followers.is_some_and(|followers| followers.iter().any(|follower| follower.conn == conn))
        }
        WaitOn::Project => core.projects.knows_client(conn),
        WaitOn::Ready { server, .. } | WaitOn::Down(server) | WaitOn::Gone(server) => is_known(server),
        // The store's answer ends it, or the disk's; of those who watch their own room knows.
        WaitOn::Stored(_) | WaitOn::Revoked | WaitOn::News => true,
    };
    assert!(is_there, "{conn} waits in vain: {on:?}");
}

/// It is of something that is there, and will find it.
fn timer_is_somebodys(core: &Core, timer: Timer) {
    let is_there = match timer {
        Timer::Call(id) => core.peers.calls.get(id).is_some() || core.mcp.is_forwarded(id),
        Timer::State(peer) | Timer::Pulse(peer) | Timer::Idle(peer) | Timer::List(peer, _) => {
            core.peers.known.contains_key(&peer)
        }
        Timer::Client(conn) => core.clients.waits_on(conn).is_some_and(WaitOn::has_deadline),
        Timer::Stream(conn) => matches!(
            core.clients.waits_on(conn),
            Some(WaitOn::Post(_) | WaitOn::GetStream(_) | WaitOn::Log(_) | WaitOn::News)
        ),
        Timer::Session(id) => core.mcp.session(id).is_some(),
        Timer::ProjectWait(wait) => core.projects.knows_wait(wait),
        Timer::Stdin(instance) => core.hosting.peer_of(instance).is_some(),
        Timer::Unkept(server) | Timer::Volumes(server) => core.servers.known.contains_key(&server),
        Timer::JointList(_)
        | Timer::Records
        | Timer::OldRecords
        | Timer::Flush
        | Timer::Decisions
        | Timer::Tokens
        | Timer::Shutdown => true,
    };
    assert!(is_there, "{timer:?} is of something that is gone");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::Settings;
    use crate::core::peers::calls::Stage;
    use crate::core::servers::server::Server;
    use crate::ids::{InstanceId, PeerId, ServerId, SessionId, Uuid};
    use crate::model::definition::tests::definition;
    use crate::model::principal::Principal;
    use crate::model::tally::MethodClass;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    fn core() -> Core {
        Core::new(Settings { providers: vec!["crun".to_string()], ..Settings::default() })
    }

    /// One call of a client that waits for it, to a server whose peer knows nothing of it.
    fn call_of(core: &mut Core, conn: ConnId) -> CallId {
        let (server, main) = (ServerId(Uuid::nil()), PeerId(1));
        let (known, peer) = Server::new(server, main, Arc::new(definition()), true, 0);
        core.servers.known.insert(server, known);
        core.peers.known.insert(main, peer);
        let (caller, stage, method) =
            (Caller::Client(conn), Stage::Queued { line: Vec::new(), by: None }, MethodClass::Other);
        let id = core.peers.calls.mint();
        core.peers.calls.insert(id, Call { peer: main, server, caller, deadline_ms: 5, stage, method, began_ms: 0 });
        id
    }

    #[test]
    fn what_is_whole_is_taken() {
        check(&core());
        let mut core = core();
        let id = call_of(&mut core, ConnId(1));
        let call = core.peers.calls.take(id).expect("just made");
        core.peers.known.get_mut(&PeerId(1)).expect("just made").lane.enqueue(id, &call);
        core.peers.calls.insert(id, call);
        core.clients.park(ConnId(1), WaitOn::Reply(id));
        core.effects.deadlines.set(Timer::Call(id), 5);
        check(&core);
    }

    #[test]
    fn whatever_a_room_has_that_another_does_not_know_is_found() {
        type Damage = fn(&mut Core);
        let damages: [(&str, Damage); 8] = [
            ("a call that has no place", |core| _ = call_of(core, ConnId(1))),
            ("a client of no call", |core| core.clients.park(ConnId(1), WaitOn::Reply(CallId(1)))),
            ("a client of no session", |core| {
                core.clients.park(ConnId(1), WaitOn::GetStream(SessionId(Uuid::nil())));
            }),
            ("a deadline of nobody", |core| core.effects.deadlines.set(Timer::Call(CallId(1)), 5)),
            ("an instance of nobody", |core| core.hosting.launching(InstanceId(1), PeerId(1))),
            ("one who watches and is not there", |core| {
                let who = Principal::anonymous();
                core.clients.watch(ConnId(1), &who, &mut core.effects).expect("the first");
                core.clients.close(ConnId(1), &mut core.effects);
            }),
            ("a peer of no server", |core| {
                call_of(core, ConnId(1));
                core.peers.calls.take(CallId(1));
                core.servers.known.clear();
            }),
            ("a server without its peer", |core| {
                call_of(core, ConnId(1));
                core.peers.calls.take(CallId(1));
                core.peers.known.clear();
            }),
        ];
        for (what, damage) in damages {
            let mut core = core();
            damage(&mut core);
            assert!(catch_unwind(AssertUnwindSafe(|| check(&core))).is_err(), "{what}");
        }
    }
}
