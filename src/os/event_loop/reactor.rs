//! The loop. One thread, one `poll`, and in every turn the same phases in the same order; the order is the design:
//!
//! 1. sleep until something happens or is due;
//! 2. read the clock, once;
//! 3. what became ready becomes inputs, deaths first, each source within its budget (a death is answered, by 5, before
//!    the next one);
//! 4. deadlines that have passed;
//! 5. do what the core wants until it wants nothing more: a failure is a new input, never a recursion; then launchers
//!    get their turns;
//! 6. write what is to be written, close what is over; last, large answers and loud servers move on by a piece.
//!
//! Nothing in a turn blocks but the first.

mod ends;
mod handover;
mod rest;
mod usage;

use crate::api::response::Answer;
use crate::core::Core;
use crate::core::contract::{Input, Now, Output};
use crate::limits::{ACCEPT_PAUSE, ACCEPTS_AT_ONCE, HOLD, LAST_ANSWERS};
use crate::model::instance::ExitCause;
use crate::model::metrics::Turns;
use crate::os::children::database::Database;
use crate::os::children::probes::Probes;
use crate::os::children::pulls::PullChildren;
use crate::os::children::reap::{Children, Role};
use crate::os::event_loop::boot::{Boot, Listener, SocketFile};
use crate::os::event_loop::clock::Clock;
use crate::os::event_loop::held_answers::HeldAnswers;
use crate::os::event_loop::lookups::{Finding, Lookups, Question};
use crate::os::event_loop::notify::Notify;
use crate::os::event_loop::pending::Pending;
use crate::os::event_loop::reload::Reload;
use crate::os::event_loop::signals::Signals;
use crate::os::event_loop::timer::Alarm;
use crate::os::event_loop::token::EventSource;
use crate::os::instances::meter::Heard;
use crate::os::instances::{Instances, Wanted};
use crate::os::links::{LinkEvent, Links};
use crate::os::logs::files::LogFiles;
use crate::os::net::clients::{Clients, LookedUp};
use crate::os::upgrade::state::Shell;
use crate::os::upgrade::{Asker, Started, Upgrade};
use crate::sandbox::host::probe;
use crate::shares::Shares;
use crate::wire::lines::Line;
use mio::event::Event;
use mio::{Events, Poll};
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

pub struct Reactor {
    started: Started,
    /// Of the data directory, by its descriptor.
    lock: RawFd,
    boot_id: String,
    upgrade: Upgrade,
    /// What the program before has left, until the loop begins.
    before: Option<Box<Shell>>,
    poll: Poll,
    clock: Clock,
    core: Core,
    signals: Signals,
    alarm: Alarm,
    listeners: Vec<Listener>,
    /// Of listeners that are closed; removed when the loop is over.
    socket_files: Vec<SocketFile>,
    /// A listener whose accept failed for want of descriptors is tried again after this time.
    accept_again_ms: Option<u64>,
    /// Listeners at which more may wait, though the kernel will not say so again.
    unaccepted: Vec<usize>,
    clients: Clients,
    lookups: Lookups,
    held_answers: HeldAnswers,
    /// Who has how much of what clients and servers can make this process hold.
    shares: Shares,
    /// Who each pid is.
    children: Children,
    instances: Instances,
    links: Links,
    pulls: PullChildren,
    database: Database,
    pending: Pending,
    logs: LogFiles,
    notify: Notify,
    reload: Reload,
    probes: Probes,
    announced: bool,
    /// Until then clients may take the last of their answers; none: they may not.
    leave_by_ms: Option<u64>,
    exit: Exit,
    /// Why the daemon has to end: another one works on its database.
    denied: Option<String>,
    turns: Turns,
    /// Looks at everything that is counted, on their way to text.
    scrapes: usize,
}

/// How far the end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    Running,
    /// The core is done; children and the database are on their way out.
    Leaving,
    Over,
}

impl Reactor {
    pub fn new(boot: Boot) -> Reactor {
        Reactor {
            started: boot.started,
            lock: boot.lock,
            boot_id: boot.boot_id,
            upgrade: Upgrade::None,
            before: boot.before.map(Box::new),
            poll: boot.poll,
            clock: boot.clock,
            core: boot.core,
            signals: boot.signals,
            alarm: boot.alarm,
            listeners: boot.listeners,
            socket_files: Vec::new(),
            accept_again_ms: None,
            unaccepted: Vec::new(),
            clients: boot.clients,
            lookups: boot.lookups,
            held_answers: HeldAnswers::default(),
            shares: boot.shares,
            children: boot.children,
            instances: boot.instances,
            links: boot.links,
            pulls: boot.pulls,
            database: boot.database,
            pending: boot.pending,
            logs: boot.logs,
            notify: boot.notify,
            reload: boot.reload,
            probes: boot.probes,
            announced: false,
            leave_by_ms: None,
            exit: Exit::Running,
            denied: None,
            turns: Turns::default(),
            scrapes: 0,
        }
    }

    /// Some: why it had to end, though nobody has asked for that.
    pub fn run(mut self) -> io::Result<Option<String>> {
        let mut events = Events::with_capacity(1024);
        let mut now = self.clock.now();
        match self.before.take() {
            Some(shell) => self.take_over(*shell, now)?,
            None => self.database.start(&mut self.children, now),
        }
        while self.exit != Exit::Over {
            let timeout = self.sleep_for(now)?;
            if let Err(e) = self.poll.poll(&mut events, timeout)
                && e.kind() != io::ErrorKind::Interrupted
            {
                return Err(e);
            }
            now = self.clock.now();
            self.clients.serve_runnable(&mut self.core, &mut self.shares, now);
            self.instances.ports.serve_runnable(&self.core, (self.poll.registry(), &mut self.shares, now));
            for index in std::mem::take(&mut self.unaccepted) {
                self.accept(index, now);
            }
            // The dead first: everything they ever said is read then, and that their pipes are closed is no more news.
            let of_signals = |event: &&Event| EventSource::of(event.token()) == EventSource::Signals;
            for event in events.iter().filter(of_signals) {
                self.woke(event, now);
            }
            for event in events.iter().filter(|event| !of_signals(event)) {
                self.woke(event, now);
            }
            self.pass_deadlines(now);
            self.hear_links(now);
            self.perform(now);
            // Whatever was done of late, a token may be gone by now.
            self.instances.ports.pairs.end_revoked(self.core.tokens(), &mut self.shares, now);
            self.instances.give_turns(&mut self.children, now);
            self.clients.flush(&mut self.core, &mut self.shares, now);
            self.move_large(now);
            self.announce(now);
            self.follow_exit(now);
            self.follow_upgrade(now);
            self.turns.ended(self.clock.since_now_us());
        }
        self.database.close();
        self.pending.close();
        self.clients.close_audit();
        self.logs.close();
        Ok(self.denied)
    }

    // --- 1: sleep ---------------------------------------------------------------------------------------------------

    /// `now` is the last turn's: a deadline may be late by what that took, and rings then.
    fn sleep_for(&mut self, now: Now) -> io::Result<Option<Duration>> {
        // What the last phase gave the core to do counts too: a client that was dropped may have freed another's slot.
        if !self.unaccepted.is_empty()
            || self.clients.has_runnable()
            || self.instances.ports.has_runnable()
            || self.core.has_output()
            || self.links.has_runnable()
        {
            return Ok(Some(Duration::ZERO));
        }
        if self.clients.has_large() || self.instances.has_large() {
            // A small answer may come before that.
            let held = self.instances.pace.is_held(now.mono_ms);
            return Ok(Some(if held { HOLD } else { Duration::ZERO }));
        }
        let due = [
            self.core.next_deadline(),
            self.clients.next_deadline(),
            self.database.next_deadline(),
            self.notify.next_deadline(),
            self.held_answers.next_deadline(),
            self.instances.next_deadline(),
            self.links.next_deadline(),
            self.accept_again_ms,
            self.leave_by_ms,
            self.upgrade.next_deadline(),
        ];
        // A fold of numbers: of nearly all there is none, and this is asked in every turn.
        let first_ms = due.iter().fold(u64::MAX, |first_ms, due_ms| first_ms.min(due_ms.unwrap_or(u64::MAX)));
        if first_ms != u64::MAX {
            self.alarm.set(first_ms, now.mono_ms)?;
        }
        Ok(None)
    }

    // --- 3: what became ready -----------------------------------------------------------------------------------

    fn woke(&mut self, event: &Event, now: Now) {
        match EventSource::of(event.token()) {
            EventSource::Listener(index) => self.accept(index, now),
            EventSource::Client(conn) => self.clients.woke(conn, event, &mut self.core, &mut self.shares, now),
            EventSource::Stdin(instance) => {
                self.instances.stdin_writable(instance, (self.poll.registry(), &mut self.shares, now));
            }
            EventSource::Stdout(instance) => {
                let with = (self.poll.registry(), &mut self.shares, now);
                self.instances.stdout_readable(instance, event.is_read_closed(), &mut self.core, with);
            }
            EventSource::Stderr(instance) => {
                let with = (self.poll.registry(), &mut self.shares, now);
                self.instances.stderr_readable(instance, event.is_read_closed(), &mut self.core, with);
            }
            EventSource::Pull(pull) => self.pulls.readable(pull, &mut self.core, now),
            EventSource::Signals => self.signalled(now),
            // What is due is looked for in every turn.
            EventSource::Alarm => self.alarm.rang(),
            EventSource::Outgoing(id) => self.links.woke(id, event, self.poll.registry(), now),
            EventSource::Threads => self.threads_rang(now),
            EventSource::Port(token) => {
                let with = (self.poll.registry(), &mut self.shares, now);
                self.instances.ports.woke(token, event, &mut self.core, with);
            }
            EventSource::Pair(number) => self.instances.ports.pairs.woke(number, event, &mut self.shares, now),
        }
    }

    /// What external servers say, as inputs.
    fn hear_links(&mut self, now: Now) {
        self.links.turn(self.poll.registry(), &mut self.shares, now);
        while let Some((instance, event)) = self.links.poll_event() {
            match event {
                LinkEvent::Connected => self.core.handle(Input::Connected { instance }, now),
                LinkEvent::Line(line) => {
                    self.core.handle(Input::LineRead { instance, line: Line::Whole(&line) }, now);
                    self.links.charge(instance, self.core.work(), now);
                }
                LinkEvent::Undelivered { call, fault } => {
                    self.core.handle(Input::Undelivered { instance, call, fault }, now);
                }
                LinkEvent::Lost(why) => self.core.handle(Input::LinkLost { instance, why }, now),
            }
        }
    }

    fn accept(&mut self, index: usize, now: Now) {
        for _ in 0..ACCEPTS_AT_ONCE {
            // It was closed in this very turn, because the daemon is leaving.
            let Some(listener) = self.listeners.get(index) else { return };
            // It could not go along, and waits for the next program where it is.
            if self.upgrade.is_quieting() && listener.speaks_tls() {
                return;
            }
            match listener.accept() {
                Ok(Some(came)) => {
                    let registry = self.poll.registry();
                    if let Err(e) = self.clients.admit(came, registry, &mut self.core, &mut self.shares, now) {
                        log::warn!("a client was dropped: {e}");
                    }
                }
                Ok(None) => return,
                Err(e) => {
                    // Out of descriptors, most likely. The edge will not come again, so come back by ourselves.
                    log::warn!("cannot accept: {e}");
                    self.accept_again_ms = Some(now.mono_ms + ACCEPT_PAUSE.as_millis() as u64);
                    return;
                }
            }
        }
        if !self.unaccepted.contains(&index) {
            self.unaccepted.push(index);
        }
    }

    fn threads_rang(&mut self, now: Now) {
        self.links.resolved(self.poll.registry(), now);
        self.hear_database(now);
        let Heard { greedy, looks } = self.instances.meter.heard();
        for (instance, free_bytes) in greedy {
            self.instances.end_greedy(instance, free_bytes);
        }
        if !looks.is_empty() {
            self.core.handle(Input::Measured { looks }, now);
        }
        for (version, outcome) in self.pending.kept() {
            self.core.handle(Input::DecisionsKept { version, outcome }, now);
        }
        self.clients.audit_heard(&mut self.shares, now);
        self.clients.keys_heard(&mut self.core, &mut self.shares, now);
        for (server, entries) in self.logs.restored() {
            self.core.handle(Input::LogRestored { server, entries }, now);
        }
        for found in self.lookups.heard(now.mono_ms) {
            self.looked(found, now);
        }
    }

    fn hear_database(&mut self, now: Now) {
        let heard = self.database.heard(&mut self.core, &mut self.children, now);
        if let Some(why) = heard.stands_by {
            // To systemd a daemon that stands by has come up: it is what was asked for.
            self.notify.ready(&format!("standing by: {why}"), now.mono_ms);
        }
        if let Some(why) = heard.denied {
            self.notify.stopping(&why);
            self.denied = Some(why);
            self.close_listeners();
        }
    }

    fn close_listeners(&mut self) {
        self.socket_files.extend(self.listeners.drain(..).filter_map(Listener::close));
    }

    fn looked(&mut self, found: Finding, now: Now) {
        match found {
            Finding::Definition { conn, wants, fault, here: _ } => {
                self.clients.looked(conn, LookedUp::Definition { wants, fault }, &mut self.core, &mut self.shares, now);
            }
            Finding::Import { conn, ticket, read } => {
                self.clients.imported((conn, ticket), read, &mut self.core, &mut self.shares, now);
            }
            Finding::Image { pull, here } => {
                if let Some(known) = self.pulls.looked(pull, here, &mut self.children, self.poll.registry()) {
                    self.core.handle(known, now);
                }
            }
            Finding::Usage { conn, usage } => self
                .answer_held(conn, now, |instances, instance| usage.map(|fresh| instances.complete(instance, fresh))),
            Finding::Metrics { conn, text } => {
                self.scrapes -= 1;
                let answer = Answer::MetricsText(text);
                self.clients.answer(conn, answer, &mut self.core, &mut self.shares, now);
            }
            Finding::Config(read) => {
                let fresh = self.reload.take(read);
                if let Some(keys) = &fresh.keys {
                    self.listeners.iter_mut().for_each(|listener| listener.speak_with(keys));
                }
                if let Some(default_provider) = fresh.default_provider {
                    self.core.handle(Input::Reconfigured { default_provider }, now);
                }
                self.notify.reloaded();
            }
        }
    }

    fn signalled(&mut self, now: Now) {
        let signalled = self.signals.clear();
        for _ in 0..signalled.stop {
            self.notify.stopping("stopping every server");
            self.core.handle(Input::ShutdownAsked, now);
            self.close_listeners();
            // A second signal means now, for clients too.
            self.leave_by_ms = None;
        }
        if signalled.reload {
            self.notify.reloading();
            self.lookups.ask(Question::Config);
        }
        if signalled.upgrade {
            self.want_upgrade(Asker::Signal, None);
        }
        if signalled.summary {
            self.summarise();
        }
        self.children.hurry();
        let ended = self.children.reap();
        let instances = ended.iter().filter(|(_, role, _)| matches!(role, Role::Container(_))).count();
        match instances {
            // Other children are not worth the hurry, and what follows them (a probe of every provider) must have none of it.
            0 => self.children.calm(),
            1 => {}
            _ => log::info!("{instances} instances ended in one turn"),
        }
        for (pid, role, cause) in ended {
            match role {
                Role::Sweep => {
                    // Whoever is leaving need not know what can run here.
                    if self.core.is_accepting() {
                        self.probes.swept(cause, &mut self.children);
                        self.follow_probes(now);
                    }
                }
                Role::SweepBefore => {
                    self.database.swept(cause, &mut self.core, now);
                    self.hear_database(now);
                }
                Role::Probe => {
                    // By a signal, or a panic: it has not cleared its container away.
                    if !matches!(cause, ExitCause::Code(0 | 1)) {
                        self.instances.discard_container(probe::container_id(pid));
                    }
                    if self.core.is_accepting() {
                        self.probes.ended(pid, cause, &mut self.children);
                        self.follow_probes(now);
                    } else {
                        self.probes.forget(pid);
                    }
                }
                Role::Check => self.check_ended(pid, cause, now),
                Role::InitDb | Role::Postgres => {
                    self.database.child_ended(&role, cause, &mut self.children, now);
                }
                Role::Pull(pull) => {
                    let registry = self.poll.registry();
                    self.pulls.child_ended(pull, cause, &mut self.children, registry, &mut self.core, now);
                }
                Role::Launcher(_) | Role::Container(_) | Role::Chore(_) | Role::Emptying => {
                    self.instances.child_ended(role, cause, &mut self.children, &mut self.core, now);
                    // At once, and not when all the others have been looked at too: of fifty that die together each
                    // would wait for the last words of all.
                    self.perform(now);
                }
            }
        }
        self.children.calm();
    }

    // --- 4: deadlines -------------------------------------------------------------------------------------------------

    fn pass_deadlines(&mut self, now: Now) {
        self.core.tick(now);
        self.instances.ports.tick((self.poll.registry(), &mut self.shares, now));
        self.instances.release_held(self.poll.registry(), now);
        self.clients.expire(&mut self.core, &mut self.shares, now);
        self.database.tick(&mut self.children, now);
        self.notify.tick(|| self.core.status_line(), now.mono_ms);
        while let Some(conn) = self.held_answers.overdue(now.mono_ms) {
            self.answer_held(conn, now, Instances::usage);
        }
        if self.accept_again_ms.is_some_and(|at| at <= now.mono_ms) {
            self.accept_again_ms = None;
            for index in 0..self.listeners.len() {
                self.accept(index, now);
            }
        }
    }

    // --- 5: what the core wants ---------------------------------------------------------------------------------

    fn perform(&mut self, now: Now) {
        for handed in self.clients.take_handed() {
            self.instances.ports.relay(handed, (self.poll.registry(), &mut self.shares, now));
        }
        for (conn, program) in self.clients.take_upgrades() {
            self.want_upgrade(Asker::Client(conn), program);
        }
        for question in self.clients.take_questions() {
            self.lookups.ask(question);
        }
        while let Some(output) = self.next_output(now) {
            match output {
                Output::Answer { conn, answer } => {
                    if let Some(answer) = self.with_usage(conn, answer, now) {
                        self.clients.answer(conn, answer, &mut self.core, &mut self.shares, now);
                    }
                }
                Output::Event { conn, event } => self.clients.event(conn, &event),
                Output::News { conn, news } => self.clients.news(conn, &news),
                Output::EndStream { conn } => self.clients.end_stream(conn),
                Output::Pull { pull, image, policy } => {
                    let with = (&mut self.children, self.poll.registry(), now);
                    if let Some(known) = self.pulls.begin(pull, image, policy, &mut self.lookups, with) {
                        self.core.handle(known, now);
                    }
                }
                Output::AbandonPull { pull } => self.pulls.abandon(pull),
                Output::Launch { instance, server, provider, definition, packages } => {
                    let (children, registry) = (&mut self.children, self.poll.registry());
                    let what = Wanted { instance, server, provider: &provider, definition: &definition, packages };
                    let launched = self.instances.launch(&what, children, registry);
                    if let Err(why) = launched {
                        self.core.handle(Input::LaunchFailed { instance, why }, now);
                    }
                }
                Output::Connect { instance, server, endpoint } => {
                    self.links.connect(instance, server, endpoint, (&mut self.shares, now));
                }
                Output::Negotiated { instance, version } => self.links.negotiated(instance, version),
                Output::MirrorParams { instance, tools } => self.links.mirror(instance, tools),
                Output::Knock { instance } => self.instances.ports.knock(instance, now),
                Output::Write { instance, bytes, call } if self.links.owns(instance) => {
                    let written = self.links.write(instance, &bytes, call, (&mut self.shares, now));
                    if let (Err(short), Some(call)) = (written, call) {
                        self.core.handle(Input::Unwritten { call, short }, now);
                    }
                }
                Output::Reply { instance, bytes } if self.links.owns(instance) => {
                    if self.links.write(instance, &bytes, None, (&mut self.shares, now)).is_err() {
                        log::warn!("instance={instance} takes nothing: a reply to it is dropped");
                    }
                }
                Output::Discard { instance } if self.links.owns(instance) => {
                    self.links.discard(instance, (&mut self.shares, now));
                }
                Output::Write { instance, bytes, call } => {
                    let with = (self.poll.registry(), &mut self.shares, now);
                    if let Err(short) = self.instances.write(instance, bytes, call.is_some(), with)
                        && let Some(call) = call
                    {
                        self.core.handle(Input::Unwritten { call, short }, now);
                    }
                }
                Output::Reply { instance, bytes } => {
                    self.instances.reply(instance, bytes, (self.poll.registry(), &mut self.shares, now));
                }
                Output::Doze { instance } => self.instances.doze(instance),
                Output::CloseStdin { instance } => {
                    self.instances.close_stdin(instance, (self.poll.registry(), &mut self.shares, now));
                }
                Output::Signal { instance, signal } => self.instances.signal(instance, signal),
                Output::Discard { instance } => self.instances.discard(instance, &mut self.shares, now),
                Output::RemoveVolumes { server, name } => self.instances.remove_volumes(server, name),
                Output::Store { seq, op } => {
                    if let Some(outcome) = self.database.send(seq, *op) {
                        self.core.handle(Input::StoreDone { seq, outcome }, now);
                    }
                }
                Output::KeepDecisions { version, decisions } => {
                    if let Some(outcome) = self.pending.keep(version, decisions) {
                        self.core.handle(Input::DecisionsKept { version, outcome }, now);
                    }
                }
                Output::LogKeep { server, entry } => self.logs.keep(server, entry),
                Output::LogRestore { server } => self.logs.restore(server),
                Output::LogRemove { server } => self.logs.remove(server),
                Output::Exit => {
                    self.exit = Exit::Leaving;
                    self.leave_by_ms = Some(now.mono_ms + LAST_ANSWERS.as_millis() as u64);
                }
            }
        }
    }

    // --- 6: large answers -------------------------------------------------------------------------------------------

    fn move_large(&mut self, now: Now) {
        if let Some(most) = self.instances.pace.portion(now.mono_ms) {
            self.instances.read_large(most, &mut self.core, (self.poll.registry(), &mut self.shares, now));
            self.clients.write_large(most, &mut self.core, &mut self.shares, now);
        }
    }
}
