//! The private PostgreSQL as a state machine: which process to run next, when to signal it, when to try again. Owns
//! no process and no clock: the reactor spawns, signals, reaps and keeps the one timer, and says what came of it.
//! Invariant: at most one process runs at a time, and after `Action::Stopped` none.
//!
//! Whether PostgreSQL accepts connections is not known here: the store thread finds out by connecting.

use crate::limits::{CLUSTER_RETRY_MAX, CLUSTER_RETRY_MIN, CLUSTER_STABLE, CLUSTER_STOP_FAST, CLUSTER_STOP_QUIT};
use crate::store::premises::{Account, Premises};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::getppid;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    InitDb,
    Postgres,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Start,
    /// The process of `role` is gone, or could not be spawned at all; `detail` says how ("exit status 1").
    Exited {
        role: Role,
        ok: bool,
        detail: String,
    },
    /// The time of the last `WakeAt` has come.
    Due,
    /// Asked again, it is done with less patience.
    Stop,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Spawn {
        role: Role,
        program: Program,
    },
    /// To the whole process group, which is named by the process: `kill(-pid, signal)`.
    Signal {
        role: Role,
        signal: i32,
    },
    /// `Due` after so long; replaces an earlier one.
    WakeAt {
        after: Duration,
    },
    /// It died, or its data could not be made; another attempt follows by itself.
    Down {
        why: String,
    },
    /// No process is left, and no more will be asked for.
    Stopped,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum State {
    New,
    Initialising,
    Running,
    Waiting,
    Stopping { role: Role, patience: Patience },
    Stopped,
}

/// How a stop goes on if the process does not end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Patience {
    /// Asked nicely: sessions are cut off, a checkpoint is written.
    Fast,
    /// SIGQUIT was sent: no checkpoint, the log is replayed at the next start.
    Quit,
    Killed,
}

pub struct Cluster {
    premises: Premises,
    initialised: bool,
    state: State,
    /// Deaths since it was last up for `CLUSTER_STABLE`.
    failures: u32,
}

/// As it is, for the next program; the process goes on meanwhile, and so does the lock, which is carried beside this.
#[derive(Serialize, Deserialize)]
pub struct CarriedCluster {
    premises: Premises,
    initialised: bool,
    state: State,
    failures: u32,
}

impl Cluster {
    pub fn carry(&self) -> CarriedCluster {
        let premises = self.premises.without_lock();
        CarriedCluster { premises, initialised: self.initialised, state: self.state, failures: self.failures }
    }

    pub fn lock(&self) -> Option<&File> {
        self.premises.lock.as_deref()
    }

    /// `lock`: the open file that has had it all the time.
    pub fn adopt(carried: CarriedCluster, lock: Option<File>) -> Result<Cluster, String> {
        let CarriedCluster { premises, initialised, state, failures } = carried;
        let premises = match lock {
            Some(file) => premises.locked_by(file)?,
            None => premises,
        };
        Ok(Cluster { premises, initialised, state, failures })
    }

    pub fn new(premises: Premises) -> Cluster {
        Cluster { initialised: premises.initialised, premises, state: State::New, failures: 0 }
    }

    /// For `Store::spawn`; good from the beginning, if not yet answered.
    pub fn conninfo(&self) -> String {
        let host = self.premises.socket_dir.display().to_string().replace('\\', "\\\\").replace('\'', "\\'");
        format!("host='{host}' port={PORT} user=stdiod dbname=postgres")
    }

    pub fn handle(&mut self, event: Event) -> Vec<Action> {
        match (self.state, event) {
            (State::New, Event::Start) | (State::Waiting, Event::Due) => self.launch(),
            (State::Initialising, Event::Exited { role: Role::InitDb, ok: true, .. }) => {
                self.initialised = true;
                self.launch()
            }
            (State::Initialising, Event::Exited { role: Role::InitDb, ok: false, detail }) => {
                self.fail(format!("initdb: {detail} (see {})", self.premises.start_log.display()))
            }
            // Also a clean exit is a failure: nobody asked for it.
            (State::Running, Event::Exited { role: Role::Postgres, ok: _, detail }) => self.fail(format!(
                "postgres: {detail} (see {} and {})",
                self.premises.start_log.display(),
                self.premises.data.join("log").display()
            )),
            (State::Running, Event::Due) => {
                self.failures = 0;
                Vec::new()
            }
            (State::New | State::Waiting, Event::Stop) => {
                self.state = State::Stopped;
                vec![Action::Stopped]
            }
            (State::Initialising, Event::Stop) => self.stop(Role::InitDb, Patience::Fast),
            (State::Running, Event::Stop) => self.stop(Role::Postgres, Patience::Fast),
            (State::Stopping { role, patience: Patience::Fast }, Event::Due | Event::Stop) => {
                self.stop(role, Patience::Quit)
            }
            (State::Stopping { role, patience: Patience::Quit }, Event::Due | Event::Stop) => {
                self.stop(role, Patience::Killed)
            }
            (State::Stopping { role: awaited, .. }, Event::Exited { role, .. }) if role == awaited => {
                self.state = State::Stopped;
                vec![Action::Stopped]
            }
            (State::Stopping { .. }, Event::Exited { .. } | Event::Due | Event::Stop | Event::Start)
            | (State::New, Event::Exited { .. } | Event::Due)
            | (State::Initialising, Event::Exited { role: Role::Postgres, .. } | Event::Due | Event::Start)
            | (State::Running, Event::Exited { role: Role::InitDb, .. } | Event::Start)
            | (State::Waiting, Event::Exited { .. } | Event::Start)
            | (State::Stopped, Event::Start | Event::Exited { .. } | Event::Due | Event::Stop) => Vec::new(),
        }
    }

    fn launch(&mut self) -> Vec<Action> {
        if self.initialised {
            self.state = State::Running;
            let program = self.postgres();
            vec![Action::Spawn { role: Role::Postgres, program }, Action::WakeAt { after: CLUSTER_STABLE }]
        } else {
            self.state = State::Initialising;
            vec![Action::Spawn { role: Role::InitDb, program: self.initdb() }]
        }
    }

    fn fail(&mut self, why: String) -> Vec<Action> {
        self.state = State::Waiting;
        let after = (CLUSTER_RETRY_MIN * (1 << self.failures.min(10))).min(CLUSTER_RETRY_MAX);
        self.failures = self.failures.saturating_add(1);
        vec![Action::Down { why }, Action::WakeAt { after }]
    }

    fn stop(&mut self, role: Role, patience: Patience) -> Vec<Action> {
        self.state = State::Stopping { role, patience };
        let (signal, after) = match patience {
            Patience::Fast => (libc::SIGINT, Some(CLUSTER_STOP_FAST)),
            Patience::Quit => (libc::SIGQUIT, Some(CLUSTER_STOP_QUIT)),
            // Its own processes see that it is gone, and go too.
            Patience::Killed => (libc::SIGKILL, None),
        };
        let mut actions = vec![Action::Signal { role, signal }];
        actions.extend(after.map(|after| Action::WakeAt { after }));
        actions
    }

    // --- the two programs

    /// Into a directory beside, renamed when all of it is on disk: what is called `data` is whole.
    fn initdb(&self) -> Program {
        const SCRIPT: &str = r#"rm -rf "$2" && "$1" -D "$2" -U stdiod --auth-local=trust --auth-host=reject \
            -E UTF8 --locale=C.UTF-8 && mv -T "$2" "$3" && sync "$4""#;
        let home = &self.premises;
        self.program(
            PathBuf::from("/bin/sh"),
            vec![
                "-c".into(),
                SCRIPT.into(),
                "stdiod-initdb".into(),
                home.bin.join("initdb").into(),
                home.data_new.clone().into(),
                home.data.clone().into(),
                home.root.clone().into(),
            ],
        )
    }

    fn postgres(&self) -> Program {
        let home = &self.premises;
        // A list, whose items may be quoted like identifiers: a directory may have a comma in its name.
        let socket_dirs = format!("\"{}\"", home.socket_dir.display().to_string().replace('"', "\"\""));
        let mut args: Vec<OsString> = vec!["-D".into(), home.data.clone().into()];
        let own = [("unix_socket_directories", socket_dirs.as_str()), ("port", PORT)];
        for (key, value) in own.iter().chain(SETTINGS) {
            args.push("-c".into());
            args.push(format!("{key}={value}").into());
        }
        self.program(home.bin.join("postgres"), args)
    }

    fn program(&self, path: PathBuf, args: Vec<OsString>) -> Program {
        let home = &self.premises;
        Program { path, args, account: home.account, cwd: home.root.clone(), log: home.start_log.clone() }
    }
}

/// Only part of the socket's name: nothing listens on TCP.
const PORT: &str = "5432";

/// Durable, private, small. All by argument, so that a file edited by hand cannot make it otherwise.
const SETTINGS: &[(&str, &str)] = &[
    ("listen_addresses", ""),
    ("unix_socket_permissions", "0700"),
    ("fsync", "on"),
    ("synchronous_commit", "on"),
    ("full_page_writes", "on"),
    // One client: what is sized by the number of clients can be small.
    ("max_connections", "10"),
    ("shared_buffers", "16MB"),
    ("huge_pages", "off"),
    ("jit", "off"),
    ("max_worker_processes", "1"),
    ("max_parallel_workers", "0"),
    ("max_parallel_workers_per_gather", "0"),
    ("max_logical_replication_workers", "0"),
    ("autovacuum", "on"),
    ("autovacuum_max_workers", "1"),
    // Nobody replicates from it: less log, no sender processes.
    ("wal_level", "minimal"),
    ("max_wal_senders", "0"),
    ("min_wal_size", "32MB"),
    ("max_wal_size", "128MB"),
    // A file per weekday, emptied when its day comes again. Terse: a DETAIL shows whole rows, and rows hold secrets.
    ("logging_collector", "on"),
    ("log_directory", "log"),
    ("log_filename", "postgres-%a.log"),
    ("log_rotation_age", "1d"),
    ("log_rotation_size", "0"),
    ("log_truncate_on_rotation", "on"),
    ("log_error_verbosity", "terse"),
    ("log_min_error_statement", "panic"),
    ("log_checkpoints", "off"),
];

/// What to run, as data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    pub path: PathBuf,
    pub args: Vec<OsString>,
    /// None: the daemon's own.
    pub account: Option<Account>,
    pub cwd: PathBuf,
    /// For stdout and stderr; emptied by each start.
    pub log: PathBuf,
}

impl Program {
    /// Ready to spawn. **Spawn it from the main thread**: the kernel tells a child of the death of the thread that made
    /// it. A daemon that is killed takes PostgreSQL along by SIGINT, which is its orderly way to stop; and because it is
    /// in a process group of its own, a terminal's Ctrl-C does not reach it before the daemon has written its last.
    pub fn to_command(&self) -> io::Result<Command> {
        let log = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&self.log)?;
        let mut command = Command::new(&self.path);
        command
            .args(&self.args)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("LC_ALL", "C.UTF-8")
            .current_dir(&self.cwd)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0);
        if let Some(account) = self.account {
            // Supplementary groups are dropped with the uid.
            command.gid(account.gid).uid(account.uid);
        }
        let parent = nix::unistd::getpid();
        // SAFETY: between fork and exec, after the change of user (which would undo it); two system calls, no allocation.
        unsafe {
            command.pre_exec(move || {
                prctl::set_pdeathsig(Signal::SIGINT)?;
                // The daemon may have died before the line above.
                if getppid() == parent { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
            });
        }
        Ok(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(initialised: bool) -> Cluster {
        Cluster::new(Premises {
            bin: "/usr/lib/postgresql/15/bin".into(),
            root: "/d/pg".into(),
            socket_dir: "/d/it's".into(),
            data: "/d/pg/data".into(),
            data_new: "/d/pg/data.new".into(),
            start_log: "/d/postgres-start.log".into(),
            account: None,
            initialised,
            lock: None,
        })
    }

    fn exited(role: Role, ok: bool) -> Event {
        Event::Exited { role, ok, detail: "exit status 1".to_string() }
    }

    fn spawned(actions: &[Action]) -> Option<Role> {
        actions.iter().find_map(|action| match action {
            Action::Spawn { role, .. } => Some(*role),
            Action::Signal { .. } | Action::WakeAt { .. } | Action::Down { .. } | Action::Stopped => None,
        })
    }

    fn wait(actions: &[Action]) -> Option<Duration> {
        actions.iter().find_map(|action| match action {
            Action::WakeAt { after } => Some(*after),
            Action::Signal { .. } | Action::Spawn { .. } | Action::Down { .. } | Action::Stopped => None,
        })
    }

    #[test]
    fn a_new_cluster_is_initialised_once_and_then_run() {
        let mut cluster = cluster(false);
        assert_eq!(spawned(&cluster.handle(Event::Start)), Some(Role::InitDb));
        assert_eq!(spawned(&cluster.handle(exited(Role::InitDb, true))), Some(Role::Postgres));
        cluster.handle(exited(Role::Postgres, false));
        assert_eq!(spawned(&cluster.handle(Event::Due)), Some(Role::Postgres));
    }

    #[test]
    fn deaths_are_answered_ever_more_slowly_until_it_has_been_stable() {
        let mut cluster = cluster(true);
        cluster.handle(Event::Start);
        let mut waits = Vec::new();
        for _ in 0..10 {
            waits.extend(wait(&cluster.handle(exited(Role::Postgres, false))));
            assert_eq!(spawned(&cluster.handle(Event::Due)), Some(Role::Postgres));
        }
        assert_eq!((waits[0], waits[1], waits[9]), (CLUSTER_RETRY_MIN, 2 * CLUSTER_RETRY_MIN, CLUSTER_RETRY_MAX));
        assert_eq!(cluster.handle(Event::Due), vec![], "stable");
        assert_eq!(wait(&cluster.handle(exited(Role::Postgres, true))), Some(CLUSTER_RETRY_MIN));
    }

    #[test]
    fn a_failed_initdb_is_tried_again_and_says_where_to_look() {
        let mut cluster = cluster(false);
        cluster.handle(Event::Start);
        let actions = cluster.handle(exited(Role::InitDb, false));
        assert!(matches!(&actions[0], Action::Down { why } if why.contains("/d/postgres-start.log")));
        assert_eq!(spawned(&cluster.handle(Event::Due)), Some(Role::InitDb));
    }

    #[test]
    fn a_stop_goes_from_sigint_to_sigkill_and_ends_with_the_process() {
        let mut cluster = cluster(true);
        cluster.handle(Event::Start);
        let signal = |signal| Action::Signal { role: Role::Postgres, signal };
        assert_eq!(cluster.handle(Event::Stop)[0], signal(libc::SIGINT));
        assert_eq!(cluster.handle(Event::Due)[0], signal(libc::SIGQUIT));
        assert_eq!(cluster.handle(Event::Stop), vec![signal(libc::SIGKILL)]);
        assert_eq!(cluster.handle(Event::Due), vec![]);
        assert_eq!(cluster.handle(exited(Role::Postgres, false)), vec![Action::Stopped]);
        assert_eq!(cluster.handle(Event::Due), vec![], "a late timer starts nothing");
    }

    #[test]
    fn a_stop_while_waiting_needs_no_process() {
        let mut cluster = cluster(true);
        cluster.handle(Event::Start);
        cluster.handle(exited(Role::Postgres, false));
        assert_eq!(cluster.handle(Event::Stop), vec![Action::Stopped]);
        assert_eq!(cluster.handle(Event::Due), vec![]);
    }

    #[test]
    fn the_connection_string_and_the_socket_list_survive_odd_directories() {
        let cluster = cluster(true);
        assert!(cluster.conninfo().contains(r"host='/d/it\'s'"), "{}", cluster.conninfo());
        let config: postgres::Config = cluster.conninfo().parse().unwrap();
        assert_eq!(config.get_hosts(), [postgres::config::Host::Unix("/d/it's".into())]);
        let args = cluster.postgres().args;
        assert!(args.contains(&"unix_socket_directories=\"/d/it's\"".into()));
    }
}
