//! A real daemon per test: own data directory, own port, own PostgreSQL, real sandboxes. Owns everything the daemon
//! starts, as far as it has seen it: when a `Daemon` goes out of scope the daemon is stopped, and a process, mount,
//! cgroup or loop device that it left behind fails the test. Waits for events with a deadline, never for a time.

#![allow(dead_code, unused_macros, unused_imports)] // each test binary uses its own part

pub mod census;
pub mod certificates;
mod daemon_log;
pub mod definitions;
mod disk;
pub mod far_server;
pub mod http;
pub mod issuer;
pub mod machines;
pub mod mcp;
pub mod postgres;
pub mod registry;
pub mod secure;
pub mod upstream;
pub mod world;

use daemon_log::Log;
pub use definitions::{conformance, inside, python, python_with, tiny};
use disk::Disk;
pub use http::{Http, Reply};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use stdiod::sandbox::cleanup::volumes;
use stdiod::sandbox::container::cni;
use stdiod::sandbox::container::plan::Layout;
use world::World;

/// For anything that must happen; long, because a loaded machine with two cores starts sandboxes slowly.
pub const SOON: Duration = Duration::from_secs(90);
pub const STDIOD: &str = env!("CARGO_BIN_EXE_stdiod");
pub const BASE: &str = "/api/v1/mcp/servers";

pub const RUDE: &str = include_str!("../fixtures/rude.py");
/// Speaks both eras, and has a tool for everything a bridge can get wrong.
pub const CONFORMANCE: &str = include_str!("../fixtures/conformance.mjs");
/// Speaks 2026-07-28 and nothing older.
pub const NEWER: &str = include_str!("../fixtures/newer.py");
pub const STRICT: &str = include_str!("../fixtures/strict.py");
pub const THREADS: &str = include_str!("../fixtures/threads.py");
/// Small enough to have fifty of them.
pub const TINY: &str = include_str!("../fixtures/tiny.sh");
const INSIDE: &str = include_str!("../fixtures/inside.py");

/// Makes two tests of each function, one per provider.
macro_rules! on_both_providers {
    ($($name:ident),* $(,)?) => {
        $(mod $name {
            #[test]
            fn under_gvisor() { super::$name("gvisor") }
            #[test]
            fn under_crun() { super::$name("crun") }
        })*
    };
}
pub(crate) use on_both_providers;

// --- the daemon -----------------------------------------------------------------------------------------------------

#[derive(Default)]
pub struct Options {
    variables: Vec<(String, String)>,
    /// The data directory is a disk of its own, of so many bytes.
    disk_bytes: Option<u64>,
    under: Vec<String>,
}

impl Options {
    pub fn variable(mut self, name: &str, value: impl Into<String>) -> Options {
        self.variables.push((name.to_string(), value.into()));
        self
    }

    /// What it listens on; the first must be TCP.
    fn listen(&self) -> &str {
        let given = self.variables.iter().find(|(name, _)| name == "STDIOD_LISTEN");
        given.map_or("127.0.0.1:0", |(_, value)| value)
    }

    /// The daemon is run by this program, which gets it as its last arguments.
    pub fn under(mut self, program: &[&str]) -> Options {
        self.under = program.iter().map(|word| word.to_string()).collect();
        self
    }

    /// Its data directory is a disk of its own, of this size.
    pub fn on_a_disk_of(mut self, bytes: u64) -> Options {
        self.disk_bytes = Some(bytes);
        self
    }

    pub fn start(self) -> Daemon {
        let mut daemon = self.not_yet_started();
        daemon.start_again();
        daemon
    }

    /// A daemon that finds another one at work, and waits; it has no address before `taken_over`.
    pub fn stand_by(self) -> Daemon {
        let mut daemon = self.not_yet_started();
        daemon.stand_by_again();
        daemon
    }

    fn not_yet_started(self) -> Daemon {
        assert!(
            nix::unistd::geteuid().is_root(),
            "the end-to-end tests start sandboxes: run them as root (scripts/test)"
        );
        let home = home_with_a_network_of_its_own();
        let data_dir = home.join("data");
        let disk = self.disk_bytes.map(|bytes| Disk::mount(&home.join("disk"), &data_dir, bytes));
        Daemon {
            options: self,
            home,
            data_dir,
            disk,
            log: Arc::new(Log::default()),
            world: Mutex::new(World::default()),
            life: None,
        }
    }
}

pub struct Daemon {
    options: Options,
    home: PathBuf,
    pub data_dir: PathBuf,
    disk: Option<Disk>,
    log: Arc<Log>,
    world: Mutex<World>,
    life: Option<Life>,
}

/// One process of the daemon.
struct Life {
    process: Child,
    url: String,
    token: String,
}

impl Daemon {
    pub fn start() -> Daemon {
        Options::default().start()
    }

    pub fn with(name: &str, value: impl Into<String>) -> Options {
        Options::default().variable(name, value)
    }

    /// For the next life.
    pub fn set_variable(&mut self, name: &str, value: impl Into<String>) {
        self.options.variables.retain(|(known, _)| known != name);
        self.options.variables.push((name.to_string(), value.into()));
    }

    /// A new life on the same data directory, after `kill` or `stop`.
    pub fn start_again(&mut self) {
        let seen = self.log.len();
        let process = self.spawn();
        self.follow(seen, process);
    }

    /// As `start_again`, of a daemon that has to wait for another one.
    pub fn stand_by_again(&mut self) {
        let seen = self.log.len();
        let process = self.spawn();
        let waiting = |line: &str| (line.contains("waiting: ") || line.contains("standing by: ")).then_some(());
        assert!(self.log.wait(seen, SOON, || true, waiting).is_some(), "it does not wait\n{}", self.log.tail());
        self.life = Some(Life { process, url: String::new(), token: String::new() });
    }

    /// The wait is over, and it answers.
    pub fn taken_over(&mut self) {
        let life = self.life.take().expect("it stands by");
        self.follow(0, life.process);
    }

    /// Until it listens.
    fn follow(&mut self, seen: usize, mut process: Child) {
        let listening = self.log.wait(
            seen,
            SOON,
            || process.try_wait().is_ok_and(|exit| exit.is_none()),
            |line| line.split_once("listening on http://").map(|(_, rest)| rest.trim().to_string()),
        );
        let Some(address) = listening else {
            let _ = process.kill();
            let exit = process.wait();
            panic!("the daemon did not listen ({exit:?})\n{}", self.log.tail());
        };
        let token = std::fs::read_to_string(self.data_dir.join("admin.token")).unwrap_or_default().trim().to_string();
        self.life = Some(Life { process, url: format!("http://{address}"), token });
    }

    fn spawn(&self) -> Child {
        assert!(self.life.is_none(), "it is still running");
        let mut process = self
            .command(&["serve"])
            .env("STDIOD_LISTEN", self.options.listen())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("stdiod starts");
        let stderr = process.stderr.take().expect("a pipe");
        let log = Arc::clone(&self.log);
        // Ends with the pipe, that is when the daemon and whoever inherited its stderr are gone.
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).split(b'\n').map_while(Result::ok) {
                log.push(String::from_utf8_lossy(&line).into_owned());
            }
        });
        process
    }

    /// A life that is ended by SIGKILL after this time, wherever it has come to by then.
    pub fn live_for(&mut self, time: Duration) {
        let mut process = self.spawn();
        std::thread::sleep(time);
        self.world.lock().expect("not poisoned").look(process.id().cast_signed());
        let _ = process.kill();
        let _ = process.wait();
    }

    /// `stdiod ARGUMENTS…` in this daemon's surroundings and no others.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(STDIOD);
        if let ([program, options @ ..], ["serve"]) = (&self.options.under[..], arguments) {
            command = Command::new(program);
            command.args(options).arg(STDIOD);
        }
        command.args(arguments).env_clear().envs(std::env::vars().filter(|(name, _)| name == "PATH" || name == "HOME"));
        command.env("STDIOD_DATA_DIR", &self.data_dir);
        command.envs(self.options.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// A client subcommand, as a user would run it.
    pub fn cli(&self, arguments: &[&str]) -> Output {
        self.command(arguments).env("STDIOD_URL", self.url()).stdin(Stdio::null()).output().expect("stdiod runs")
    }

    /// The JSON that a client subcommand prints; it must succeed.
    pub fn cli_json(&self, arguments: &[&str]) -> Value {
        let output = self.cli(&[arguments, &["--json"]].concat());
        assert!(output.status.success(), "stdiod {arguments:?}: {output:?}");
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("stdiod {arguments:?}: {e}: {output:?}"))
    }

    fn life(&self) -> &Life {
        self.life.as_ref().expect("the daemon runs")
    }

    pub fn url(&self) -> &str {
        &self.life().url
    }

    pub fn address(&self) -> &str {
        self.url().strip_prefix("http://").expect("a URL")
    }

    pub fn pid(&self) -> i32 {
        self.life().process.id().cast_signed()
    }

    pub fn token(&self) -> &str {
        &self.life().token
    }

    /// What it is made of and for can be found from here.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Directories outside the data directory, for what a test itself needs; removed with the daemon.
    pub fn scratch(&self, name: &str) -> PathBuf {
        let path = self.home.join(name);
        std::fs::create_dir_all(&path).expect("a directory");
        path
    }

    pub fn log_tail(&self) -> String {
        self.log.tail()
    }

    /// Everything it has logged so far, over all its lives.
    pub fn log_lines(&self) -> Vec<String> {
        self.log.lines.lock().expect("not poisoned").clone()
    }

    /// Waits for a line of its log that has all of these in it.
    pub fn wait_log(&self, words: &[&str]) -> String {
        let all = |line: &str| words.iter().all(|word| line.contains(word)).then(|| line.to_string());
        let found = self.log.wait(0, SOON, || true, all);
        found.unwrap_or_else(|| panic!("the log never says {words:?}\n{}", self.log_tail()))
    }

    pub fn log_contains(&self, text: &str) -> bool {
        self.log.lines.lock().expect("not poisoned").iter().any(|line| line.contains(text))
    }

    // --- its API ---

    pub fn http(&self) -> Http {
        Http::connect(self.address(), self.token())
    }

    pub fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Reply {
        self.http().request(method, path, body)
    }

    pub fn get(&self, path: &str) -> Reply {
        self.request("GET", path, None)
    }

    pub fn try_register(&self, definition: &Value) -> Reply {
        let reply = self.request("POST", BASE, Some(definition));
        self.look();
        reply
    }

    /// Registers, and is not content with less than `ready`.
    pub fn register(&self, definition: &Value) -> Value {
        let reply = self.try_register(definition);
        assert_eq!(reply.status, 201, "{reply}\n{}", self.log_tail());
        let status = reply.json();
        assert_eq!(status["status"], "ready", "{status:#}\n{}", self.log_tail());
        status
    }

    pub fn call(&self, server: &str, method: &str, params: &Value) -> Reply {
        self.request("POST", &format!("{BASE}/{server}/call"), Some(&json!({"method": method, "params": params})))
    }

    pub fn tool(&self, server: &str, tool: &str, arguments: Value) -> Reply {
        self.call(server, "tools/call", &json!({"name": tool, "arguments": arguments}))
    }

    pub fn tool_within(&self, server: &str, tool: &str, arguments: Value, timeout_ms: u64) -> Reply {
        let params = json!({"name": tool, "arguments": arguments});
        let body = json!({"method": "tools/call", "params": params, "timeout_ms": timeout_ms});
        self.request("POST", &format!("{BASE}/{server}/call"), Some(&body))
    }

    /// The text that a tool answers with; it must succeed.
    pub fn text(&self, server: &str, tool: &str, arguments: Value) -> String {
        let reply = self.tool(server, tool, arguments);
        assert_eq!(reply.status, 200, "{tool} of {server}: {reply}\n{}", self.log_tail());
        reply.text()
    }

    /// What Python code leaves in `result` when an `inside` server runs it.
    pub fn inside(&self, server: &str, code: &str) -> Value {
        let told = self.text(server, "run", json!({"code": code}));
        serde_json::from_str(&told).unwrap_or_else(|e| panic!("{code}: {e}: {told}"))
    }

    /// Makes a file that a server sees in one of its volumes.
    pub fn inform(&self, server: &str, path: &str) {
        let (volume, name) = path.rsplit_once('/').expect("in a volume");
        self.in_volume(server, volume, |directory| std::fs::write(directory.join(name), "").expect("its directory"));
    }

    /// What the host's root finds in a volume. No mount of it is left when this returns.
    pub fn in_volume<T: Send>(&self, server: &str, path: &str, act: impl FnOnce(&Path) -> T + Send) -> T {
        let layout = Layout::of(self.data_dir.clone());
        let found = volumes::find(&layout, server, path).expect("volumes").expect("this volume");
        match found.place {
            volumes::Place::Directory(directory) => act(&directory),
            volumes::Place::Image(_) => {
                let name = stdiod::sandbox::container::within::slug(Path::new(path));
                let act = |all: &Path| Ok(act(&all.join(name)));
                volumes::inside(&layout.volumes_dir(server), act).expect("its image")
            }
        }
    }

    pub fn status(&self, server: &str) -> Value {
        let reply = self.get(&format!("{BASE}/{server}"));
        assert_eq!(reply.status, 200, "{reply}");
        reply.json()
    }

    /// Asks for the status until it is as wanted. The API has no event for it, so this asks again and again.
    pub fn wait_until(&self, server: &str, wanted: &str, is: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let reached = eventually(SOON, || {
            last = self.status(server);
            is(&last)
        });
        assert!(reached, "{server} is not {wanted}: {last:#}\n{}", self.log_tail());
        self.look();
        last
    }

    pub fn wait_ready(&self, server: &str) -> Value {
        self.wait_until(server, "ready", |status| status["status"] == "ready")
    }

    // --- its processes ---

    /// Remembers what the daemon has started by now, so that it can be looked for when it should be gone.
    pub fn look(&self) {
        self.world.lock().expect("not poisoned").look(self.pid());
    }

    /// What is known of the daemon's processes and cgroups; a later life adds its own.
    pub fn seen(&self) -> World {
        self.look();
        self.world.lock().expect("not poisoned").clone()
    }

    /// As `seen`, between two lives.
    pub fn seen_before(&self) -> World {
        assert!(self.life.is_none(), "it is still running");
        self.world.lock().expect("not poisoned").clone()
    }

    /// The host's view of the one sandbox that runs `script`.
    pub fn sandbox(&self, provider: &str, script: &str) -> Pid {
        self.look();
        // gVisor's sandbox process shows runsc's own arguments, a native container those of the server itself.
        let is_it = |command: &str| match provider {
            "gvisor" => command.contains("runsc-sandbox") || (command.contains("runsc") && command.contains(" boot ")),
            _ => command.contains(script) && !command.contains(STDIOD),
        };
        let mut found = world::descendants(self.pid());
        found.retain(|pid| world::command_of(*pid).is_some_and(|command| is_it(&command)));
        // Of a native container that is the first process, of gVisor the sentry: the one with threads. A stub of an earlier
        // sandbox, which has the same name and one thread, may be a child of the daemon's for a moment.
        if provider == "gvisor" {
            let threads = |pid: &i32| std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
            found.sort_by_key(|pid| std::cmp::Reverse(threads(pid)));
        }
        Pid::from_raw(*found.first().unwrap_or_else(|| panic!("no sandbox of {provider}\n{}", self.log_tail())))
    }

    /// How many native processes run `script` now.
    pub fn processes(&self, script: &str) -> usize {
        let is_it = |command: String| command.contains(script) && !command.contains(STDIOD);
        world::descendants(self.pid()).into_iter().filter(|pid| world::command_of(*pid).is_some_and(is_it)).count()
    }

    // --- its end ---

    pub fn signal(&self, signal: Signal) {
        self.look();
        kill(Pid::from_raw(self.pid()), signal).expect("it runs");
    }

    /// SIGKILL: what it started stays behind.
    pub fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        let _ = self.life.take().expect("it runs").process.wait();
    }

    /// SIGTERM, and the exit code.
    pub fn stop(&mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        self.wait_exit(SOON)
    }

    pub fn wait_exit(&mut self, patience: Duration) -> ExitStatus {
        let mut life = self.life.take().expect("it runs");
        let mut exit = None;
        eventually(patience, || {
            exit = life.process.try_wait().expect("our child");
            exit.is_some()
        });
        exit.unwrap_or_else(|| {
            let _ = life.process.kill();
            let _ = life.process.wait();
            panic!("the daemon does not stop\n{}", self.log.tail())
        })
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let failing = std::thread::panicking();
        let mut complaints = Vec::new();
        if let Some(mut life) = self.life.take() {
            let pid = life.process.id().cast_signed();
            self.world.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner()).look(pid);
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
            let mut exit = None;
            if !eventually(SOON, || {
                exit = life.process.try_wait().ok().flatten();
                exit.is_some()
            }) {
                let _ = life.process.kill();
                exit = life.process.wait().ok();
                complaints.push("it did not stop on SIGTERM".to_string());
            }
            if !exit.is_some_and(|exit| exit.success()) {
                complaints.push(format!("it ended with {exit:?}"));
            }
        }
        self.disk = None;
        let world = self.world.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut left = Vec::new();
        eventually(Duration::from_secs(10), || {
            left = world.left_of(&self.home);
            left.is_empty()
        });
        complaints.extend(left);
        world.clear(&self.home);
        let tail = self.log.tail();
        // However deep a server has made it.
        let _ = stdiod::sandbox::container::within::remove_tree(&self.home);
        if failing {
            eprintln!("--- the daemon's last lines:\n{tail}\n--- and at its end: {complaints:?}");
        } else {
            assert!(complaints.is_empty(), "after the daemon: {complaints:#?}\n{tail}");
        }
    }
}

// --- what tests share -----------------------------------------------------------------------------------------------

/// Asks until the answer is yes; false if it never was.
pub fn eventually(patience: Duration, mut is: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + patience;
    loop {
        if is() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The time at the beginning of a line of the daemon's log, in milliseconds.
pub fn logged_at(line: &str) -> u64 {
    let text = line.trim_start_matches('[').split_ascii_whitespace().next().unwrap_or_default();
    stdiod::wire::times::parse_rfc3339(text).unwrap_or_else(|| panic!("no time: {line}"))
}

/// Short, because PostgreSQL and the runtimes make socket paths of it; open, because PostgreSQL is another user.
pub fn short_temporary_directory() -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = nix::unistd::mkdtemp("/tmp/sd-XXXXXX").expect("a directory in /tmp");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("our directory");
    path
}

/// A daemon's subnet follows from the name of its data directory, and there are fewer subnets than names. Whoever finds
/// that another test has the same one goes elsewhere; two that find each other both do.
fn home_with_a_network_of_its_own() -> PathBuf {
    let subnet = |home: &Path| cni::subnet(&Layout::of(home.join("data")).mark);
    loop {
        let home = short_temporary_directory();
        let others = std::fs::read_dir("/tmp").expect("a directory").flatten().map(|entry| entry.path());
        let mut others = others.filter(|path| path.to_string_lossy().starts_with("/tmp/sd-") && *path != home);
        if !others.any(|other| subnet(&other) == subnet(&home)) {
            return home;
        }
        std::fs::remove_dir(&home).expect("our own directory");
    }
}

/// All files below a directory with this name.
pub fn find_files(below: &Path, name: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![below.to_path_buf()];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => open.push(entry.path()),
                Ok(_) if entry.file_name() == name => found.push(entry.path()),
                Ok(_) | Err(_) => {}
            }
        }
    }
    found
}
