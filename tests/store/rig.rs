//! A place of its own for each test, a private cluster in it, and a desk from which a store is spoken to.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use postgres::{Client, NoTls};
use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use stdiod::ids::{ServerId, StoreSeq, Uuid};
use stdiod::model::definition::{
    CrashLoop, Definition, Framing, Health, PortMapping, ResourceLimits, RestartPolicy, Source,
};
use stdiod::model::records::{Snapshot, StoreOp, StoreOutcome, StoredServer, StoredStatus, Token};
use stdiod::model::status::Status;
use stdiod::sealing::KeyPlace;
use stdiod::store::cluster::{Action, Cluster, Event, Role};
use stdiod::store::home::Home;
use stdiod::store::premises::{Account, prepare};
use stdiod::store::thread::{Store, StoreEvent, Wanted};

pub const PATIENCE: Duration = Duration::from_secs(60);

// --- a place, a cluster in it, a store on that -----------------------------------------------------------------------

pub struct Place(pub PathBuf);

impl Place {
    pub fn new(test: &str) -> Place {
        let dir = PathBuf::from(format!("/tmp/stdiod-store-{}-{test}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        Place(dir)
    }

    pub fn pg(&self) -> PathBuf {
        self.0.join("pg")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // The last to leave is PostgreSQL's logger, when nobody is left to write to it.
        let deadline = Instant::now() + Duration::from_secs(5);
        while !std::thread::panicking() && !residents(&self.0).is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        let left = residents(&self.0);
        for pid in &left {
            let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
        }
        let _ = fs::remove_dir_all(&self.0);
        if !std::thread::panicking() {
            assert_eq!(left, [] as [i32; 0], "processes left in {}", self.0.display());
        }
    }
}

/// Processes that work in `dir`.
pub fn residents(dir: &Path) -> Vec<i32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter(|entry| fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(dir)))
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// The newest of the versions that are installed.
pub fn programs() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL of Debian: scripts/setup installs it");
    let newest = versions.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).max();
    Path::new("/usr/lib/postgresql").join(newest.expect("a version").to_string()).join("bin")
}

/// What the reactor does for a cluster: spawn, signal, reap, one timer.
pub struct Rig {
    pub cluster: Cluster,
    pub account: Option<Account>,
    pub child: Option<(Role, Child)>,
    pub due: Option<Instant>,
    pub downs: Vec<String>,
    pub stopped: bool,
}

impl Rig {
    pub fn start(place: &Place) -> Rig {
        let premises = prepare(&place.0).expect("PostgreSQL must be installed for this test");
        let account = premises.account;
        let cluster = Cluster::new(premises);
        let mut rig = Rig { cluster, account, child: None, due: None, downs: Vec::new(), stopped: false };
        rig.feed(Event::Start);
        rig
    }

    pub fn feed(&mut self, event: Event) {
        for action in self.cluster.handle(event) {
            match action {
                Action::Spawn { role, program } => {
                    assert!(self.child.is_none(), "one process at a time");
                    self.child = Some((role, program.to_command().unwrap().spawn().unwrap()));
                }
                Action::Signal { role, signal } => {
                    let (running, child) = self.child.as_ref().expect("a process to signal");
                    assert_eq!(*running, role);
                    kill(Pid::from_raw(-(child.id() as i32)), Signal::try_from(signal).unwrap()).unwrap();
                }
                Action::WakeAt { after } => self.due = Some(Instant::now() + after),
                Action::Down { why } => self.downs.push(why),
                Action::Stopped => self.stopped = true,
            }
        }
    }

    pub fn turn(&mut self) {
        if let Some((role, child)) = &mut self.child
            && let Some(status) = child.try_wait().unwrap()
        {
            let (role, ok, detail) = (*role, status.success(), status.to_string());
            self.child = None;
            self.feed(Event::Exited { role, ok, detail });
        }
        if self.due.is_some_and(|due| due <= Instant::now()) {
            self.due = None;
            self.feed(Event::Due);
        }
        std::thread::sleep(Duration::from_millis(2));
    }

    /// Turns until `look` sees something.
    pub fn until<T>(&mut self, what: &str, mut look: impl FnMut(&mut Rig) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.turn();
            if let Some(seen) = look(self) {
                return seen;
            }
            assert!(Instant::now() < deadline, "waited for {what}; cluster: {:?}", self.downs);
        }
    }

    pub fn postmaster(&self) -> Pid {
        match &self.child {
            Some((Role::Postgres, child)) => Pid::from_raw(child.id() as i32),
            Some((Role::InitDb, _)) | None => panic!("postgres is not running"),
        }
    }

    pub fn client(&mut self) -> Client {
        let conninfo = self.cluster.conninfo();
        self.until("a connection", |_| Client::connect(&conninfo, NoTls).ok())
    }

    /// A database of its own, and how to get there.
    pub fn database(&mut self, name: &str) -> String {
        self.client().batch_execute(&format!("CREATE DATABASE {name}")).unwrap();
        self.cluster.conninfo().replace("dbname=postgres", &format!("dbname={name}"))
    }

    pub fn stop(mut self) {
        self.feed(Event::Stop);
        self.until("the stop", |rig| rig.stopped.then_some(()));
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some((_, mut child)) = self.child.take() {
            let group = Pid::from_raw(-(child.id() as i32));
            // A test that failed may have left it frozen.
            let _ = kill(group, Signal::SIGCONT).and_then(|()| kill(group, Signal::SIGQUIT));
            let _ = child.wait();
        }
    }
}

/// The loop's side of a store.
pub struct Desk {
    pub store: Store,
    pub seen: VecDeque<StoreEvent>,
    pub wakes: Arc<AtomicUsize>,
    pub next: u64,
}

impl Desk {
    /// Of the daemon that this place belongs to: the next one is the same daemon in another life.
    pub fn open(conninfo: &str) -> Desk {
        Desk::open_as(conninfo, home_of(conninfo), false)
    }

    pub fn open_as(conninfo: &str, home: Home, standby: bool) -> Desk {
        // Beside the cluster, where it goes with the place.
        let socket_dir = conninfo.split('\'').nth(1).expect("a directory");
        Desk::of(conninfo, Path::new(socket_dir).with_file_name("secret.key"), home, standby)
    }

    /// Of the daemon of this place, on a database elsewhere.
    pub fn open_in(conninfo: &str, place: &Path) -> Desk {
        Desk::of(conninfo, place.join("secret.key"), Home::of(place).expect("an id"), false)
    }

    fn of(conninfo: &str, key_file: PathBuf, home: Home, standby: bool) -> Desk {
        let wakes = Arc::new(AtomicUsize::new(0));
        let counter = wakes.clone();
        let wanted = Wanted { conninfo: conninfo.to_string(), key: KeyPlace::File(key_file), home, standby };
        let store = Store::spawn(wanted, move || {
            counter.fetch_add(1, Ordering::SeqCst);
        });
        Desk { store: store.unwrap(), seen: VecDeque::new(), wakes, next: 0 }
    }

    pub fn send(&mut self, op: StoreOp) -> StoreSeq {
        let seq = StoreSeq(self.next);
        self.next += 1;
        self.store.try_send(seq, op).expect("room in the channel");
        seq
    }

    pub fn event(&mut self, rig: &mut Rig, what: &str) -> StoreEvent {
        rig.until(what, |_| {
            self.seen.extend(self.store.events());
            self.seen.pop_front()
        })
    }

    pub fn opened(&mut self, rig: &mut Rig) -> Option<Snapshot> {
        loop {
            match self.event(rig, "Opened") {
                StoreEvent::Opened { snapshot, leftovers: _ } => return snapshot.map(|boxed| *boxed),
                // On a busy machine initdb may take long enough for that; and the session before may not be gone yet.
                StoreEvent::Lost { .. } | StoreEvent::StandingBy { .. } => {}
                other @ (StoreEvent::Done { .. } | StoreEvent::CallsRead { .. } | StoreEvent::Denied { .. }) => {
                    panic!("not Opened: {other:?}")
                }
            }
        }
    }

    /// Sends one operation and waits for its end.
    pub fn ask(&mut self, rig: &mut Rig, op: StoreOp) -> StoreOutcome {
        let asked = self.send(op);
        match self.event(rig, "Done") {
            StoreEvent::Done { seq, outcome } if seq == asked => outcome,
            other => panic!("not Done of {asked}: {other:?}"),
        }
    }
}

/// The place is beside the cluster's directory.
pub fn home_of(conninfo: &str) -> Home {
    let socket_dir = conninfo.split('\'').nth(1).expect("a directory");
    Home::of(Path::new(socket_dir).parent().expect("a place")).expect("an id")
}

pub fn definition(name: &str) -> Definition {
    Definition {
        pull_policy: stdiod::model::definition::PullPolicy::Always,
        name: name.to_string(),
        source: Source::Image("busybox:latest".to_string()),
        cmd: vec!["/bin/cat".to_string(), "-u".to_string()],
        stdio_bridge: true,
        restart_policy: RestartPolicy::OnFailure,
        environment: BTreeMap::from([("API_KEY".to_string(), "hunter2 \u{1f511} \"quoted\"".to_string())]),
        volumes: vec!["/data".to_string()],
        read_only_volumes: Default::default(),
        resource_limits: ResourceLimits::default(),
        provider: Some("crun".to_string()),
        ports: vec![PortMapping { host: 8080, container: 80, address: [127, 0, 0, 1].into() }],
        network: None,
        egress: None,
        user: None,
        workdir: Some("/".to_string()),
        files: BTreeMap::from([("/app/a.js".to_string(), "1\n2\t\\3".to_string())]),
        project: None,
        managed_by: None,
        max_in_flight: 1,
        queue_max: 10,
        shared: true,
        framing: Framing::Auto,
        request_timeout_ms: 30_000,
        startup_timeout_ms: *stdiod::limits::WAIT_MS.end(),
        install_timeout_ms: 1,
        health: Health::default(),
        crash_loop: CrashLoop::relentless(),
        idle: Default::default(),
    }
}

pub fn fresh(name: &str) -> StoredServer {
    let status = StoredStatus {
        status: Status::Starting,
        restart_count: 0,
        last_crash: None,
        last_error: None,
        last_used_unix_ms: None,
    };
    StoredServer {
        id: ServerId(Uuid::new_v4()),
        definition: definition(name),
        desired_up: true,
        status,
        created_unix_ms: 1_763_280_000_123,
    }
}

pub fn insert(server: &StoredServer) -> StoreOp {
    StoreOp::InsertServer(Box::new(server.clone()))
}

pub fn save(id: ServerId, restart_count: u64) -> StoreOp {
    let status = StoredStatus { status: Status::Ready, restart_count, ..fresh("any").status };
    StoreOp::SaveStatus { id, status: Box::new(status) }
}

pub fn token(name: &str, byte: u8) -> Token {
    Token {
        name: name.to_string(),
        hash: [byte; 32],
        scopes: vec!["admin:read".to_string(), "mcp:call".to_string()],
        servers: vec!["time".to_string()],
        projects: Vec::new(),
        created_unix_ms: 1_700_000_000_999,
        expires_unix_ms: Some(1_900_000_000_123),
        last_used_unix_ms: Some(1_800_000_000_456),
        previous: Some(([byte + 100; 32], 1_850_000_000_789)),
        rate_limit: Some(stdiod::model::rate::RateLimit { per_second: 5, burst: 7 }),
    }
}
