//! The store thread: owns the connection to PostgreSQL and nothing else. Operations come in by one bounded channel,
//! events go out by another. Invariant: every operation accepted by `try_send` gets exactly one `Done`, in order, and
//! after an `Unknown` there will be an `Opened` as soon as it is worth trying again, or a `Denied`, which is its last word.
//!
//! What hangs is found out where that is possible: by a probe while idle, before a connect (`reach`), by the server
//! itself (`statement_timeout`), by the kernel on TCP (keepalives, `tcp_user_timeout`). What remains is a server that
//! is frozen in the middle of an operation, behind a socket that stays open: on a unix socket, and on TCP when only the
//! process is frozen and not the host, nothing tells. The thread then waits with it; the core does not (`STORE_WAIT`),
//! and gets its `Done` late.

use crate::ids::StoreSeq;
use crate::limits::{
    STORE_BATCH, STORE_CHANNEL, STORE_CLOSE_WAIT, STORE_CONNECT_WAIT, STORE_DRIVER_DESCRIPTORS, STORE_HOST_QUESTIONS,
    STORE_HOST_SILENT_SECS, STORE_LOCK_EVERY, STORE_MIGRATION_WAIT, STORE_PROBE_IDLE, STORE_PROBE_WAIT,
    STORE_RETRY_MAX, STORE_RETRY_MIN, STORE_RETRY_YOUNG, STORE_STATEMENT_WAIT, STORE_WAIT,
};
use crate::model::external::ToolCallRecord;
use crate::model::records::{Snapshot, StoreOp, StoreOutcome};
use crate::sealing::KeyPlace;
use crate::store::claim::{Claim, Try};
use crate::store::conninfo::{Conninfo, Roots, Tls};
use crate::store::home::{Home, Leftovers};
use crate::store::migrate::{MIGRATIONS, migrate};
use crate::store::projects;
use crate::store::reach;
use crate::store::rotation;
use crate::store::rows;
use crate::store::seals::Seals;
use crate::store::sql::{self, Trouble, describe};
use crate::store::tls;
use nix::sys::signal::{SigSet, SigmaskHow};
use postgres::config::Host;
use postgres::{Client, Config, NoTls};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Where Debian's PostgreSQL listens, and its libpq looks when no host is given.
const DEFAULT_SOCKET_DIR: &str = "/var/run/postgresql";

#[derive(Debug)]
pub enum StoreEvent {
    /// Connected. The first time with everything that is stored, and with what another daemon, whose database this was, has
    /// left on this machine.
    Opened {
        snapshot: Option<Box<Snapshot>>,
        leftovers: Option<Leftovers>,
    },
    /// Another daemon works on this database, and this one waits until it is gone.
    StandingBy {
        why: String,
    },
    /// Another daemon works on this database, and it is not this one's any more, or never was. Nothing more comes.
    Denied {
        why: String,
    },
    /// Not connected, and why; also when it has not been for a while after the start, and again for a new reason.
    Lost {
        why: String,
    },
    Done {
        seq: StoreSeq,
        outcome: StoreOutcome,
    },
    /// In the place of `Done`, for a question that was answered.
    CallsRead {
        seq: StoreSeq,
        calls: Vec<ToolCallRecord>,
    },
}

/// Which database, and as whom.
pub struct Wanted {
    pub conninfo: String,
    pub key: KeyPlace,
    pub home: Home,
    /// If another daemon works on it, this one waits.
    pub standby: bool,
}

/// The loop's end.
pub struct Store {
    ops: SyncSender<(StoreSeq, StoreOp)>,
    events: Receiver<StoreEvent>,
    thread: JoinHandle<()>,
}

impl Store {
    /// Starts the thread, which connects by itself. `wake` is called after each event; it must not block. The only
    /// error of the operator's making is a connection string that can never work, and it is not repeated in the error:
    /// it may hold a password.
    pub fn spawn(wanted: Wanted, wake: impl Fn() + Send + 'static) -> io::Result<Store> {
        let Wanted { conninfo, key, home, standby } = wanted;
        let database = configure(&conninfo)?;
        let (ops, ops_in) = sync_channel(STORE_CHANNEL);
        let (events_out, events) = sync_channel(STORE_CHANNEL);
        let worker = Worker {
            database,
            ops: ops_in,
            events: events_out,
            wake,
            seals: Seals::new(key),
            claim: Claim::new(home, standby),
            taken: VecDeque::new(),
            started: Instant::now(),
            opened: false,
            attempts: 0,
            backend: None,
            reported: None,
        };
        // A thread inherits the mask of its maker: signals, SIGCHLD above all, are for the main thread.
        let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
        let thread = std::thread::Builder::new().name("store".to_string()).spawn(move || worker.run());
        mask.thread_set_mask()?;
        Ok(Store { ops, events, thread: thread? })
    }

    /// Hands over an operation, or gives it back when the channel is full. Never blocks.
    #[allow(clippy::result_large_err)] // It is the operation itself that comes back.
    pub fn try_send(&self, seq: StoreSeq, op: StoreOp) -> Result<(), StoreOp> {
        self.ops.try_send((seq, op)).map_err(|e| match e {
            TrySendError::Full((_, op)) | TrySendError::Disconnected((_, op)) => op,
        })
    }

    /// What has happened since; ends when there is nothing more at the moment.
    pub fn events(&mut self) -> impl Iterator<Item = StoreEvent> {
        self.events.try_iter()
    }

    /// Lets the thread finish what is queued, and waits for it within `STORE_CLOSE_WAIT`.
    pub fn close(self) {
        let Store { ops, events, thread } = self;
        drop(ops);
        let deadline = Instant::now() + STORE_CLOSE_WAIT;
        loop {
            match events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(StoreEvent::Done {
                    outcome: StoreOutcome::Taken(why) | StoreOutcome::Rejected(why) | StoreOutcome::Unknown(why),
                    ..
                }) => {
                    log::warn!("store: a last write is not stored: {why}");
                }
                Ok(StoreEvent::Done { outcome: StoreOutcome::Committed, .. }) => {}
                Ok(
                    StoreEvent::Opened { .. }
                    | StoreEvent::StandingBy { .. }
                    | StoreEvent::Denied { .. }
                    | StoreEvent::Lost { .. }
                    | StoreEvent::CallsRead { .. },
                ) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    if thread.join().is_err() {
                        log::error!("store: its thread has panicked");
                    }
                    return;
                }
                Err(RecvTimeoutError::Timeout) => {
                    log::warn!("store: the database does not answer; last writes may not be stored");
                    return;
                }
            }
        }
    }
}

fn configure(conninfo: &str) -> io::Result<Conninfo> {
    let refuse = |why: String| io::Error::new(io::ErrorKind::InvalidInput, format!("database_url: {why}"));
    let Conninfo { mut config, tls } = Conninfo::parse(conninfo).map_err(refuse)?;
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        config.host_path(DEFAULT_SOCKET_DIR);
    }
    if tls == Tls::None && !stays_here(&config) {
        log::warn!(
            "store: the connection to the database is in clear text, and leaves this machine: add `sslmode=verify-full` to \
             `database_url`"
        );
    }
    if config.get_application_name().is_none() {
        config.application_name("stdiod");
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(STORE_CONNECT_WAIT);
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(STORE_STATEMENT_WAIT);
    }
    if config.get_keepalives_interval().is_none() {
        config
            .keepalives_idle(Duration::from_secs(10))
            .keepalives_interval(Duration::from_secs(2))
            .keepalives_retries(3);
    }
    config.notice_callback(|notice| log::debug!("store: {}", notice.message()));
    Ok(Conninfo { config, tls })
}

/// By unix socket or loopback, as far as that can be told without a look-up.
fn stays_here(config: &Config) -> bool {
    let is_loopback = |name: &str| name == "localhost" || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    let addresses = config.get_hostaddrs();
    match addresses.is_empty() {
        false => addresses.iter().all(IpAddr::is_loopback),
        true => config.get_hosts().iter().all(|host| match host {
            Host::Tcp(name) => is_loopback(name),
            Host::Unix(_) => true,
        }),
    }
}

/// One session of the server, named so that no later one can be taken for it.
struct Backend {
    pid: i32,
    started: String,
}

/// Why there is no connection: nobody there, or not in a state to be used; or there is none to be, because the loop has
/// closed the channel, or another daemon works here.
enum Closed {
    NotThere(String),
    NotFit(String),
    NotWanted,
    Denied(String),
}

impl From<postgres::Error> for Closed {
    fn from(e: postgres::Error) -> Closed {
        Closed::NotFit(describe(&e))
    }
}

/// A connection that is ours to use.
struct Open {
    client: Client,
    snapshot: Option<Box<Snapshot>>,
    leftovers: Option<Leftovers>,
}

/// Why `serve` came back.
enum End {
    Closed,
    Lost(String),
}

/// The thread's end.
struct Worker<W> {
    database: Conninfo,
    ops: Receiver<(StoreSeq, StoreOp)>,
    events: SyncSender<StoreEvent>,
    wake: W,
    seals: Seals,
    claim: Claim,
    /// Taken from `ops` and not answered yet, oldest first.
    taken: VecDeque<(StoreSeq, StoreOp)>,
    started: Instant,
    /// It has been open once: the snapshot is told.
    opened: bool,
    /// Attempts to connect since something last worked.
    attempts: u32,
    backend: Option<Backend>,
    /// The reason last told in `Lost`; none while open.
    reported: Option<String>,
}

impl<W: Fn()> Worker<W> {
    fn run(mut self) {
        loop {
            match self.open() {
                Ok(Open { mut client, snapshot, leftovers }) => {
                    self.opened = true;
                    self.reported = None;
                    log::info!("store: open");
                    self.tell(StoreEvent::Opened { snapshot, leftovers });
                    match self.serve(&mut client) {
                        End::Closed => return,
                        End::Lost(why) => {
                            self.refuse_taken(&why);
                            self.report_lost(why);
                            bury(client);
                        }
                    }
                }
                // A database that is just starting is no news: the private one may have to be made first.
                Err(Closed::NotThere(why)) if self.started.elapsed() < STORE_WAIT => log::debug!("store: {why}"),
                Err(Closed::NotThere(why) | Closed::NotFit(why)) => self.report_lost(why),
                Err(Closed::NotWanted) => return,
                Err(Closed::Denied(why)) => {
                    log::error!("store: {why}");
                    return self.tell(StoreEvent::Denied { why });
                }
            }
            self.attempts = self.attempts.saturating_add(1);
            if !self.refuse_for(retry_delay(self.attempts)) {
                return;
            }
        }
    }

    // --- connecting

    fn open(&mut self) -> Result<Open, Closed> {
        reach::answers(&self.database.config).map_err(Closed::NotThere)?;
        let mut client = connect(&self.database).map_err(Closed::NotThere)?;
        set_up(&mut client, STORE_MIGRATION_WAIT)?;
        self.fence(&mut client)?;
        let leftovers = self.claim(&mut client)?;
        if !self.opened {
            migrate(&mut client, MIGRATIONS).map_err(|fault| Closed::NotFit(fault.to_string()))?;
        }
        self.claim.enter(&mut client)?.map_err(Closed::Denied)?;
        let snapshot = if self.opened {
            None
        } else {
            rotation::prepare(&mut client, &mut self.seals).map_err(Closed::NotFit)?;
            Some(Box::new(rows::load(&mut client, &mut self.seals)?))
        };
        set_up(&mut client, STORE_STATEMENT_WAIT)?;
        self.backend = Some(identify(&mut client)?);
        Ok(Open { client, snapshot, leftovers })
    }

    /// Comes back when the database is this daemon's. Until then nothing is done to it.
    fn claim(&mut self, client: &mut Client) -> Result<Option<Leftovers>, Closed> {
        loop {
            match self.claim.attempt(client)? {
                Try::Taken(leftovers) => return Ok(leftovers),
                Try::Wait(why) => self.report_standing_by(why),
                Try::Denied(why) => return Err(Closed::Denied(why)),
            }
            if !self.refuse_for(STORE_LOCK_EVERY) {
                return Err(Closed::NotWanted);
            }
        }
    }

    /// Ends the session before this one, if the server still has it. An operation whose outcome was `Unknown` may be
    /// waiting in it, and must not be committed after those that follow.
    fn fence(&self, client: &mut Client) -> Result<(), Closed> {
        const TERMINATE: &str = "
            SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
            WHERE pid = $1 AND extract(epoch FROM backend_start)::text = $2 AND pid <> pg_backend_pid()";
        let Some(old) = &self.backend else { return Ok(()) };
        for _ in 0..20 {
            let row = client.query_one(TERMINATE, &[&old.pid, &old.started])?;
            if row.get::<_, i64>(0) == 0 {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(Closed::NotFit(format!("the session before (backend {}) is stuck and does not end", old.pid)))
    }

    /// Answers whatever comes with `Unknown`. False: the loop has closed the channel.
    fn refuse_for(&mut self, wait: Duration) -> bool {
        let until = Instant::now() + wait;
        loop {
            match self.ops.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok((seq, _)) => {
                    self.tell(StoreEvent::Done { seq, outcome: StoreOutcome::Unknown("not connected".to_string()) });
                }
                Err(RecvTimeoutError::Timeout) => return true,
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
    }

    // --- connected

    fn serve(&mut self, client: &mut Client) -> End {
        loop {
            let worked = match self.ops.recv_timeout(STORE_PROBE_IDLE) {
                Ok(first) => {
                    self.taken.push_back(first);
                    self.taken.extend(self.ops.try_iter().take(STORE_BATCH - 1));
                    self.write(client)
                }
                Err(RecvTimeoutError::Timeout) => client.is_valid(STORE_PROBE_WAIT).map_err(|e| describe(&e)),
                Err(RecvTimeoutError::Disconnected) => return End::Closed,
            };
            match worked {
                Ok(()) => self.attempts = 0,
                Err(why) => return End::Lost(why),
            }
        }
    }

    /// Does what is in `taken`, in order. On an error the rest stays there, beginning with the one that failed.
    fn write(&mut self, client: &mut Client) -> Result<(), String> {
        while !self.taken.is_empty() {
            let run = self.taken.iter().take_while(|(_, op)| matches!(op, StoreOp::SaveStatus { .. })).count();
            if run > 1 && write_together(client, &mut self.seals, self.taken.iter().take(run).map(|(_, op)| op))? {
                for _ in 0..run {
                    self.answer_first(StoreOutcome::Committed);
                }
                continue;
            }
            if let StoreOp::ReadCalls { .. } = &self.taken[0].1 {
                self.read_first(client)?;
                continue;
            }
            for _ in 0..run.max(1) {
                let outcome = match sql::perform(client, &mut self.seals, &self.taken[0].1) {
                    Ok(()) => StoreOutcome::Committed,
                    Err(Trouble::Taken(why)) => StoreOutcome::Taken(why),
                    Err(Trouble::Refused(why)) => StoreOutcome::Rejected(why),
                    Err(Trouble::Failed(why)) => return Err(why),
                };
                self.answer_first(outcome);
            }
        }
        Ok(())
    }

    /// A question has an answer of its own.
    fn read_first(&mut self, client: &mut Client) -> Result<(), String> {
        let Some((seq, StoreOp::ReadCalls { project, filter })) = self.taken.front() else { return Ok(()) };
        match projects::read_calls(client, project, filter) {
            Ok(calls) => {
                let seq = *seq;
                self.taken.pop_front();
                self.tell(StoreEvent::CallsRead { seq, calls });
            }
            Err(Trouble::Taken(why) | Trouble::Refused(why)) => self.answer_first(StoreOutcome::Rejected(why)),
            Err(Trouble::Failed(why)) => return Err(why),
        }
        Ok(())
    }

    // --- telling the loop

    fn answer_first(&mut self, outcome: StoreOutcome) {
        let (seq, _) = self.taken.pop_front().expect("the operation that was just done");
        self.tell(StoreEvent::Done { seq, outcome });
    }

    fn refuse_taken(&mut self, why: &str) {
        while !self.taken.is_empty() {
            self.answer_first(StoreOutcome::Unknown(why.to_string()));
        }
    }

    fn report_standing_by(&mut self, why: String) {
        if self.reported.as_ref() != Some(&why) {
            log::info!("store: waiting: {why}");
            self.reported = Some(why.clone());
            self.tell(StoreEvent::StandingBy { why });
        }
    }

    fn report_lost(&mut self, why: String) {
        if self.reported.as_ref() != Some(&why) {
            log::warn!("store: lost why={why:?}");
            self.reported = Some(why.clone());
            self.tell(StoreEvent::Lost { why });
        }
    }

    /// May wait for the loop to make room; the loop never waits for us. If it is gone, so will `ops` be.
    fn tell(&self, event: StoreEvent) {
        if self.events.send(event).is_ok() {
            (self.wake)();
        }
    }
}

/// Status writes in one transaction. False: one of them was refused and none is done; they must go one by one.
fn write_together<'o>(
    client: &mut Client,
    seals: &mut Seals,
    ops: impl Iterator<Item = &'o StoreOp>,
) -> Result<bool, String> {
    let mut tx = client.transaction().map_err(|e| describe(&e))?;
    for op in ops {
        match sql::perform(&mut tx, seals, op) {
            Ok(()) => {}
            Err(Trouble::Taken(_) | Trouble::Refused(_)) => {
                return tx.rollback().map(|()| false).map_err(|e| describe(&e));
            }
            Err(Trouble::Failed(why)) => return Err(why),
        }
    }
    tx.commit().map(|()| true).map_err(|e| describe(&e))
}

/// The driver makes an event loop of its own for a connection, and panics when it gets no descriptors for it. So it is
/// asked only if there are some; and since others may take them meanwhile, its panic is no more than a failed attempt.
fn connect(wanted: &Conninfo) -> Result<Client, String> {
    let spare: io::Result<Vec<File>> = (0..STORE_DRIVER_DESCRIPTORS).map(|_| File::open("/dev/null")).collect();
    drop(spare.map_err(|e| format!("no descriptors for a connection: {e}"))?);
    let connector = tls::connector(&wanted.tls)?;
    let connected = catch_unwind(AssertUnwindSafe(|| match connector {
        None => wanted.config.connect(NoTls),
        Some(connector) => wanted.config.connect(connector),
    }));
    match connected {
        Ok(connected) => connected.map_err(|e| distrust(&wanted.tls, describe(&e))),
        Err(_) => Err("the driver could not make a connection".to_string()),
    }
}

/// What to do about a certificate that proves nothing.
fn distrust(tls: &Tls, why: String) -> String {
    let roots = match tls {
        Tls::None | Tls::Any => return why,
        Tls::Known(Roots::File(path)) | Tls::Named(Roots::File(path)) => path.display().to_string(),
        Tls::Known(Roots::System) | Tls::Named(Roots::System) => "the system's authorities".to_string(),
    };
    match why.contains("certificate") {
        true => format!(
            "{why}; the server must show a certificate that `sslrootcert` ({roots}) vouches for, and with \
             sslmode=verify-full one for the host that `database_url` names"
        ),
        false => why,
    }
}

/// What holds for the session, whatever the server's own defaults are. A host that is gone is noticed by the server too: its
/// session has the lock that the next daemon waits for. (On a unix socket these settings mean nothing.)
fn set_up(client: &mut Client, statement_wait: Duration) -> Result<(), postgres::Error> {
    let ms = statement_wait.as_millis();
    client.batch_execute(&format!(
        "SET statement_timeout = {ms};
         SET idle_in_transaction_session_timeout = {ms};
         SET tcp_keepalives_idle = {STORE_HOST_SILENT_SECS};
         SET tcp_keepalives_interval = 1;
         SET tcp_keepalives_count = {STORE_HOST_QUESTIONS};
         SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
    ))
}

fn identify(client: &mut Client) -> Result<Backend, postgres::Error> {
    let row = client.query_one(
        "SELECT pid, extract(epoch FROM backend_start)::text FROM pg_stat_activity WHERE pid = pg_backend_pid()",
        &[],
    )?;
    Ok(Backend { pid: row.try_get(0)?, started: row.try_get(1)? })
}

/// Drops a client that failed. That waits for answers still outstanding, for ever if the server is frozen, so it is
/// done aside; `fence` sees to it that there is never more than one of these.
fn bury(client: Client) {
    if let Err(e) = std::thread::Builder::new().name("store-bury".to_string()).spawn(move || drop(client)) {
        log::warn!("store: no thread to close the old connection in: {e}");
    }
}

fn retry_delay(attempts: u32) -> Duration {
    let doublings = attempts.saturating_sub(STORE_RETRY_YOUNG).min(10);
    (STORE_RETRY_MIN * (1 << doublings)).min(STORE_RETRY_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_are_quick_at_first_and_then_at_most_a_second_apart() {
        assert_eq!(retry_delay(0), STORE_RETRY_MIN);
        assert_eq!(retry_delay(STORE_RETRY_YOUNG), STORE_RETRY_MIN);
        assert_eq!(retry_delay(STORE_RETRY_YOUNG + 2), 4 * STORE_RETRY_MIN);
        assert_eq!(retry_delay(u32::MAX), STORE_RETRY_MAX);
    }

    #[test]
    fn a_bad_connection_string_is_refused_without_being_repeated() {
        for bad in ["host=/tmp pass word=hunter2", "postgres://u:hunter2@[", "host=db sslmode=never password=hunter2"] {
            let e = configure(bad).expect_err(bad).to_string();
            assert!(e.contains("database_url") && !e.contains("hunter2"), "{e}");
        }
        assert_eq!(configure("dbname=kb").unwrap().config.get_hosts().len(), 1, "the local server, as in psql");
        assert!(configure("postgres://u:hunter2@localhost/db").is_ok());
    }

    #[test]
    fn only_a_socket_and_loopback_are_of_this_machine() {
        let here = |text: &str| stays_here(&configure(text).unwrap().config);
        assert!(here("dbname=x") && here("host=localhost") && here("host=::1") && here("host=/tmp,127.0.0.1"));
        assert!(!here("host=db") && !here("host=localhost,db") && !here("host=localhost hostaddr=10.0.0.1"));
    }
}
