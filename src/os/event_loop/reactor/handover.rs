//! How the loop hands itself over to another program, and takes over from one. Each step is looked at once a turn, when all
//! else of it is done; nothing is waited for. Until the exec the daemon does its work as always, but for what could not go
//! along: that comes to rest first, within a bound, or the upgrade is refused and everything goes on.

use super::Reactor;
use crate::api::rest;
use crate::core::contract::{Input, Now};
use crate::limits::UPGRADE_QUIET_WAIT;
use crate::model::endpoint::{LinkFault, LinkFaultKind};
use crate::model::fault::{Code, Fault};
use crate::model::instance::ExitCause;
use crate::os::children::reap::Role;
use crate::os::event_loop::clock::kernels_clock;
use crate::os::upgrade::carrying::Carrying;
use crate::os::upgrade::check::Check;
use crate::os::upgrade::state::{self, Shell};
use crate::os::upgrade::{Asker, Sealed, Upgrade};
use crate::wire::http_out::Response;
use serde_json::json;
use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

impl Reactor {
    // --- the program before -----------------------------------------------------------------------------------------

    pub(super) fn want_upgrade(&mut self, asker: Asker, program: Option<String>) {
        if self.upgrade.asker().is_some() {
            return self.refuse_upgrade(asker, "an upgrade is under way already");
        }
        let program = program.map_or_else(|| self.started.program.clone(), PathBuf::from);
        self.upgrade = Upgrade::Wanted { asker, program };
    }

    pub(super) fn follow_upgrade(&mut self, now: Now) {
        // What it still wants is done in the next turn.
        if self.core.has_output() {
            return;
        }
        match std::mem::replace(&mut self.upgrade, Upgrade::None) {
            Upgrade::None => {}
            Upgrade::Wanted { asker, program } => match self.core.is_running() && self.probes.is_over() {
                true => self.check(asker, program, BTreeSet::new(), now),
                false => self.refuse_upgrade(asker, "the daemon is starting or stopping"),
            },
            Upgrade::Checking { asker, check, .. } if check.until_ms <= now.mono_ms => {
                check.kill();
                self.refuse_upgrade(asker, "the new program did not read the state in time");
            }
            checking @ Upgrade::Checking { .. } => self.upgrade = checking,
            Upgrade::Quieting { asker, program, shapes, until_ms } => {
                self.clients.see_off(&mut self.core, now);
                self.clients.flush(&mut self.core, &mut self.shares, now);
                match self.unready() {
                    None => self.hand_over(asker, program, shapes, now),
                    Some(why) if until_ms <= now.mono_ms || !self.core.is_running() => {
                        self.quiet_no_more(now);
                        self.refuse_upgrade(asker, &why);
                    }
                    Some(_) => self.upgrade = Upgrade::Quieting { asker, program, shapes, until_ms },
                }
            }
        }
    }

    /// The new program reads the state as it is now. `known`: shapes that it has read before.
    fn check(&mut self, asker: Asker, program: PathBuf, known: BTreeSet<u32>, now: Now) {
        let begun = self.sealed(asker, now).and_then(|sealed| {
            let check = Check::begin(&program, &sealed.memory, now.mono_ms);
            let check = check.map_err(|e| format!("{} cannot be started: {e}", program.display()))?;
            Ok((check, sealed.shapes.union(&known).copied().collect()))
        });
        match begun {
            Ok((check, shapes)) => {
                self.children.add(check.pid, Role::Check);
                self.upgrade = Upgrade::Checking { asker, program, check, shapes };
            }
            Err(why) => self.refuse_upgrade(asker, &why),
        }
    }

    pub(super) fn check_ended(&mut self, pid: i32, cause: ExitCause, now: Now) {
        match std::mem::replace(&mut self.upgrade, Upgrade::None) {
            Upgrade::Checking { asker, program, check, shapes } if check.pid == pid => match check.ended(cause) {
                Ok(version) => {
                    log::info!("upgrade: {} (version {version}) can go on from here", program.display());
                    let asker = self.answered_ahead(asker, &version, now);
                    self.database.keep_back();
                    let until_ms = now.mono_ms + UPGRADE_QUIET_WAIT.as_millis() as u64;
                    self.upgrade = Upgrade::Quieting { asker, program, shapes, until_ms };
                }
                Err(why) => self.refuse_upgrade(asker, &why),
            },
            // Of one that was too slow.
            other => self.upgrade = other,
        }
    }

    /// Whoever has asked on a connection that cannot go along is answered by this program, before the other one has begun.
    fn answered_ahead(&mut self, asker: Asker, version: &str, now: Now) -> Asker {
        match asker {
            Asker::Client(conn) if self.clients.stays_behind(conn) => {
                let body = json!({ "from": env!("CARGO_PKG_VERSION"), "to": version }).to_string().into_bytes();
                self.clients.upgraded(conn, Response::new(202, "application/json", body), &mut self.shares, now);
                Asker::Signal
            }
            Asker::Client(_) | Asker::Signal => asker,
        }
    }

    /// What keeps it from being handed over now.
    fn unready(&self) -> Option<String> {
        let is_known = self.lookups.is_at_rest()
            && self.held_answers.is_empty()
            && self.clients.is_at_rest()
            && self.pulls.is_known()
            && self.pending.is_at_rest()
            && self.logs.is_at_rest();
        let tls = self.clients.left_behind() + self.instances.ports.pairs.left_behind();
        let outside = self.core.in_flight(|instance| self.links.owns(instance));
        if !self.core.is_running() {
            Some("the daemon is stopping".to_string())
        } else if !self.database.is_at_rest() {
            Some("the database does not answer".to_string())
        } else if !is_known {
            Some("the disk does not answer".to_string())
        } else if tls > 0 {
            Some(format!("{tls} connections that speak TLS are in the middle of a request"))
        } else if outside > 0 {
            Some(format!("{outside} requests to external servers are under way"))
        } else if self.core.has_output() || self.links.has_runnable() {
            Some("the daemon is never idle".to_string())
        } else {
            None
        }
    }

    fn hand_over(&mut self, asker: Asker, program: PathBuf, shapes: BTreeSet<u32>, now: Now) {
        // What came since the last look belongs to what is handed over.
        self.logs.settle();
        self.clients.settle_audit();
        let sealed = match self.sealed(asker, now) {
            Ok(sealed) => sealed,
            Err(why) => {
                self.quiet_no_more(now);
                return self.refuse_upgrade(asker, &why);
            }
        };
        // There is something in it that the new program has not been seen to read.
        if !sealed.shapes.is_subset(&shapes) {
            self.quiet_no_more(now);
            return self.check(asker, program, shapes, now);
        }
        log::info!("upgrade: going on as {}", program.display());
        log::logger().flush();
        let held = super::super::signals::hold_back();
        let failed = held.map_or_else(|e| e, |()| state::replace(&program, &self.started, &sealed));
        _ = super::super::signals::let_come();
        self.quiet_no_more(now);
        self.refuse_upgrade(asker, &format!("{} cannot be started: {failed}", program.display()));
    }

    /// What was held back for the handover goes on.
    fn quiet_no_more(&mut self, now: Now) {
        self.database.go_on(&mut self.core, now);
        let tls = self.listeners.iter().enumerate().filter(|(_, listener)| listener.speaks_tls());
        let waiting: Vec<usize> =
            tls.map(|(index, _)| index).filter(|index| !self.unaccepted.contains(index)).collect();
        self.unaccepted.extend(waiting);
    }

    fn refuse_upgrade(&mut self, asker: Asker, why: &str) {
        log::warn!("upgrade refused: {why}");
        if let Asker::Client(conn) = asker {
            let now = self.clock.now();
            let fault = Fault::new(Code::Unavailable, format!("this daemon goes on as it is: {why}"));
            self.clients.upgraded(conn, rest::refuse(&fault), &mut self.shares, now);
            // Its answer goes out in this turn or the next; either way there is one.
            self.clients.flush(&mut self.core, &mut self.shares, now);
        }
    }

    fn sealed(&self, asker: Asker, now: Now) -> Result<Sealed, String> {
        let mut carrying = Carrying::default();
        carrying.descriptors.push(self.lock);
        let shell = Shell {
            version: env!("CARGO_PKG_VERSION").to_string(),
            mono_ms: now.mono_ms,
            kernels_clock: kernels_clock(),
            boot_id: self.boot_id.clone(),
            lock: self.lock,
            asker: match asker {
                Asker::Signal => None,
                Asker::Client(conn) => Some(conn),
            },
            listeners: self.listeners.iter().map(|listener| listener.carry(&mut carrying)).collect(),
            clients: self.clients.carry(&mut carrying),
            shares: self.shares.clone(),
            children: self.children.clone(),
            instances: self.instances.carry(&mut carrying),
            ports: self.instances.ports.carry(&mut carrying),
            pulls: self.pulls.carry(&mut carrying),
            database: self.database.carry(&mut carrying),
            links: self.links.all(),
            turns: self.turns,
        };
        state::seal(&self.core, &shell, carrying)
    }

    // --- the program after ------------------------------------------------------------------------------------------

    /// Goes on where the program before has stopped. An error ends the daemon: there is nobody to give it back to.
    pub(super) fn take_over(&mut self, shell: Shell, now: Now) -> io::Result<()> {
        let registry = self.poll.registry();
        (self.shares, self.children, self.turns) = (shell.shares, shell.children, shell.turns);
        self.instances.adopt(shell.instances, registry)?;
        self.instances.ports.adopt(shell.ports, self.core.tokens(), registry)?;
        self.pulls.adopt(shell.pulls, registry)?;
        self.database.adopt(shell.database);
        for conn in self.clients.adopt(shell.clients, registry) {
            self.core.handle(Input::ClientGone { conn }, now);
        }
        for instance in shell.links {
            let message = "this daemon was upgraded, and connects anew".to_string();
            let why = LinkFault { kind: LinkFaultKind::Closed, message, retry_after_ms: None };
            self.core.handle(Input::LinkLost { instance, why }, now);
        }
        self.announced = true;
        self.notify.ready(&self.core.status_line(), now.mono_ms);
        // Whoever has ended meanwhile.
        self.signalled(now);
        let pause_ms = now.mono_ms.saturating_sub(shell.mono_ms);
        let (from, to) = (shell.version, env!("CARGO_PKG_VERSION"));
        log::info!("upgrade: version {to} has taken over from {from}; nobody was served for {pause_ms} ms");
        if let Some(conn) = shell.asker {
            let body = json!({ "from": from, "to": to, "pause_ms": pause_ms }).to_string().into_bytes();
            self.clients.upgraded(conn, Response::new(200, "application/json", body), &mut self.shares, now);
        }
        Ok(())
    }
}
