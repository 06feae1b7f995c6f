//! Can a provider be used on this host? Finds its runtime, and finds out by running a trivial container through the
//! same launcher as every other, with a time limit: some platforms hang instead of failing.

use crate::config::Provider;
use crate::limits::{IDLE_LOOK, IDLE_LOOKS, IDLE_POLLS_PART, PROBE_TIMEOUT, QUEUE_DEFAULT, REPORT_MAX};
use crate::model::definition::{CrashLoop, Definition, Framing, Health, ResourceLimits, RestartPolicy, Source};
use crate::model::instance::Packages;
use crate::sandbox::cleanup::discard::discard;
use crate::sandbox::container::launch;
use crate::sandbox::container::plan::{LaunchPlan, Layout, Networking, Report, Runtime, RuntimeKind, Users};
use crate::sandbox::container::rootfs::PrivateMounts;
use crate::sandbox::container::users::Shift;
use crate::sandbox::host::cgroup::Hierarchies;
use nix::fcntl::OFlag;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, pipe2};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

pub const SUBCOMMAND: &str = "sandbox-probe";

/// Where runtimes are if `PATH` does not say so: a daemon's `PATH` is often short.
const USUAL_DIRS: [&str; 6] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// The runtime of a provider, if it is installed. A name without a directory is looked for; flags of the
/// configuration replace ours.
pub fn find(name: &str, provider: &Provider) -> Result<Runtime, String> {
    if provider.kind == RuntimeKind::Plain {
        let (binary, args) = (PathBuf::new(), Vec::new());
        return Ok(Runtime {
            provider: name.to_owned(),
            kind: provider.kind,
            binary,
            args,
            users: Users::Same,
            polls: false,
        });
    }
    let wanted = provider.binary.display();
    let binary = match provider.binary.is_absolute() {
        true => Some(provider.binary.clone()).filter(is_executable),
        false => provider.binary.to_str().and_then(which),
    };
    let binary = binary.ok_or_else(|| format!("{wanted} is not installed"))?;
    let program = binary.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let args = if provider.args.is_empty() { flags(program) } else { provider.args.clone() };
    // gVisor has users of its own kernel, and drops the host's by itself.
    let users = match provider.kind {
        RuntimeKind::Native => Users::Shifted,
        RuntimeKind::Gvisor | RuntimeKind::Plain => Users::Same,
    };
    Ok(Runtime { provider: name.to_owned(), kind: provider.kind, binary, args, users, polls: false })
}

fn flags(program: &str) -> Vec<String> {
    let flags: &[&str] = match program {
        "runsc" => &[
            // Needs no /dev/kvm, which hangs on some hosts that have it, and is much faster than ptrace.
            "--platform=systrap",
            // Loopback inside the sandbox only: no host interface, no host sockets.
            "--network=none",
            "--host-uds=none",
            "--host-fifo=none",
            // Our own root is read-only or has a writable layer already; a second one in memory would count twice,
            // and one in a file (the default) would be left behind by a sandbox that is killed.
            "--overlay2=none",
            // runsc's default, named because it is a choice: the sandbox opens files itself, below descriptors it was
            // given, instead of asking its gofer for each. Measured: a python with many imports starts in 660 ms
            // instead of 770, 1500 small reads take 850 ms instead of 980; node gains nothing.
            "--directfs=true",
            // Programs size their thread pools by the CPUs they see: let that be the quota (at least 2), not a host's
            // 64. Makes no difference on a host of two.
            "--cpu-num-from-quota",
        ],
        // The limits are ours; a systemd that may not run is not asked.
        "crun" => &["--cgroup-manager=cgroupfs"],
        _ => &[],
    };
    flags.iter().map(|f| (*f).to_owned()).collect()
}

fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain(USUAL_DIRS.map(PathBuf::from));
    dirs.filter(|dir| dir.is_absolute()).map(|dir| dir.join(program)).find(is_executable)
}

fn is_executable(file: &PathBuf) -> bool {
    std::fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// What the daemon of this data directory has found to work, if it is still the same.
pub fn remembered(layout: &Layout, runtime: &Runtime) -> Option<Runtime> {
    among(&read_memory(&memory(layout)), runtime)
}

/// Where it is remembered: fingerprints of runtimes, one per line.
pub fn memory(layout: &Layout) -> PathBuf {
    layout.data_dir.join("providers")
}

pub fn read_memory(file: &Path) -> Vec<String> {
    fs::read_to_string(file).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// These work here. To forget is no harm: it costs the next start a container.
pub fn remember(layout: &Layout, runtimes: &[Runtime]) {
    let known: Vec<String> = runtimes.iter().map(fingerprint).collect();
    _ = fs::write(memory(layout), known.join("\n"));
}

/// As it was when it worked.
pub fn among(known: &[String], runtime: &Runtime) -> Option<Runtime> {
    let variants = [(runtime.users, false), (runtime.users, true), (Users::Same, false), (Users::Same, true)];
    let as_found = variants.map(|(users, polls)| Runtime { users, polls, ..runtime.clone() });
    as_found.into_iter().find(|runtime| known.contains(&fingerprint(runtime)))
}

/// The same runtime on the same kernel.
pub fn fingerprint(runtime: &Runtime) -> String {
    let file = fs::metadata(&runtime.binary).map(|meta| (meta.size(), meta.mtime(), meta.ino())).unwrap_or_default();
    let kernel = fs::read_to_string("/proc/sys/kernel/version").unwrap_or_default();
    let text = format!("{runtime:?} {file:?} {kernel} {}", env!("CARGO_PKG_VERSION"));
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// For `/proc/self/exe`: `try_run` in a process of its own. Exit code 0, and on stdout `POLLS` if that is so, or why not with
/// shifted users; or 1 and the reason on stdout.
pub fn args(runtime: &Runtime, layout: &Layout) -> Vec<OsString> {
    let runtime = serde_json::to_string(runtime).expect("a runtime is plain data");
    let daemon = std::process::id().to_string();
    vec![SUBCOMMAND.into(), layout.data_dir.clone().into(), layout.mark.clone().into(), runtime.into(), daemon.into()]
}

pub fn main(args: &[OsString]) -> i32 {
    let [data_dir, mark, runtime, daemon] = args else {
        eprintln!("stdiod {SUBCOMMAND}: started by the daemon, not by hand");
        return 2;
    };
    let runtime = runtime.to_str().and_then(|text| serde_json::from_str::<Runtime>(text).ok());
    let daemon = daemon.to_str().and_then(|pid| pid.parse().ok());
    let (Some(mark), Some(runtime), Some(daemon)) = (mark.to_str(), runtime, daemon) else { return 2 };
    // A daemon that is killed must not leave us at work beside the next one's sweep.
    if let Err(e) = launch::die_with_parent(daemon) {
        println!("it is not tried without a daemon: {e}");
        return 1;
    }
    let layout = Layout { data_dir: PathBuf::from(data_dir), mark: mark.to_owned() };
    let (reason, code) = match (try_run(&runtime, &layout), runtime.users) {
        (Ok(Idle::Rests), _) => return 0,
        (Ok(Idle::Polls), _) => {
            println!("{POLLS}");
            return 0;
        }
        (Err(reason), Users::Same) => (reason, 1),
        (Err(reason), Users::Shifted) => match try_run(&Runtime { users: Users::Same, ..runtime }, &layout) {
            Ok(_) => (reason, 0),
            Err(reason) => (reason, 1),
        },
    };
    println!("{reason}");
    code
}

/// Of the container that the probe with this pid makes.
pub fn container_id(pid: i32) -> String {
    format!("probe-{pid}")
}

/// What a sandbox does in which nothing happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    Rests,
    /// It takes CPU time, as gVisor builds do that look for work every few hundred microseconds.
    Polls,
}

/// What the probe says of one that does.
pub const POLLS: &str = "idle sandboxes take CPU time";

/// Runs a container that echoes one line. Makes the calling process a subreaper and waits for children of it: to be
/// called in a process that has no others.
pub fn try_run(runtime: &Runtime, layout: &Layout) -> Result<Idle, String> {
    // SAFETY: takes no pointers.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
    let id = container_id(std::process::id().cast_signed());
    let plan = LaunchPlan {
        container_id: id.clone(),
        definition: trivial(&["/bin/sh", "-c", "while read line; do echo \"$line\"; done"]),
        packages: Packages::AsKept,
        runtime: runtime.clone(),
        layout: layout.clone(),
        networking: Networking::default(),
        host_paths: Vec::new(),
        disk_reserve_bytes: 0,
        daemon_pid: std::process::id() as i32,
        waits: false,
    };
    let tried = match runtime.users {
        Users::Shifted => show_layers(&plan).and_then(|()| echo(&plan)),
        Users::Same => echo(&plan),
    };
    let cleared = discard(layout, &id).map_err(|e| format!("it cannot be cleared away: {e}"));
    while waitpid(None, Some(WaitPidFlag::WNOHANG)).is_ok_and(|s| s != WaitStatus::StillAlive) {}
    tried.and_then(|idle| cleared.map(|()| idle))
}

/// The container below has no image. What one needs of the kernel beyond it is tried here, in a mount namespace that is
/// this process's until its end.
fn show_layers(plan: &LaunchPlan) -> Result<(), String> {
    let mounts = PrivateMounts::enter().map_err(|e| format!("entering a private mount namespace: {e}"))?;
    let shift = Shift::prepare(&mounts, plan).map_err(|fault| fault.message)?;
    shift.try_layers(&mounts, &plan.layout).map_err(|fault| fault.message)
}

fn echo(plan: &LaunchPlan) -> Result<Idle, String> {
    let deadline = Instant::now() + PROBE_TIMEOUT;
    let said = |e: &dyn std::fmt::Display| format!("starting the launcher: {e}");
    let (report, report_in) = pipe2(OFlag::O_CLOEXEC).map_err(|e| said(&e))?;
    let mut launcher = launch::command(plan, report_in).map_err(|e| said(&e))?;
    launcher.command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = launcher.command.spawn().map_err(|e| said(&e))?;
    // Our copy of the report's write end goes with it: otherwise the pipe would never end.
    drop(launcher);
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let report = read_all(report);
    let left = || deadline.saturating_duration_since(Instant::now());
    let Some(text) = receive(&report, left()) else {
        let _ = child.kill();
        let _ = child.wait();
        return Err(format!("a trivial container did not start within {} s", PROBE_TIMEOUT.as_secs()));
    };
    let _ = child.wait();
    let pid = match serde_json::from_slice(&text) {
        Ok(Report::Started { pid, .. }) => pid,
        Ok(Report::Failed(fault)) => return Err(fault.message),
        Err(_) => return Err("the launcher died without a word".to_owned()),
    };
    let said = stdout.map(|stdout| read_all(stdout.into()));
    let sent = stdin.map(|mut stdin| {
        let sent = stdin.write_all(b"alive\n");
        (sent, idle(plan))
    });
    let (sent, idle) = sent.map_or((None, Idle::Rests), |(sent, idle)| (Some(sent), idle));
    let answer = said.and_then(|out| receive(&out, left()));
    match (sent, answer.as_deref(), exit_code(pid, deadline)) {
        (Some(Ok(())), Some(b"alive\n"), Some(0)) => Ok(idle),
        // It ran and it spoke; who saw its end first is no matter.
        (_, Some(b"alive\n"), None) => Ok(idle),
        (_, Some(b"alive\n"), Some(code)) => Err(format!("a trivial container exited with {code} instead of 0")),
        (_, _, _) => Err("a trivial container started, but did not answer".to_owned()),
    }
}

/// What a sandbox takes that has answered and has nothing to do. Looked at several times: what it does to come to rest, or what a
/// busy host makes of it, is no polling. Only a kernel of its own could have a reason to poll.
fn idle(plan: &LaunchPlan) -> Idle {
    if plan.runtime.kind != RuntimeKind::Gvisor {
        return Idle::Rests;
    }
    let cgroup = Hierarchies::of_this_host().map(|all| all.instance(&plan.layout, &plan.container_id));
    let Some(cgroup) = cgroup else { return Idle::Rests };
    let mut before = None;
    for _ in 0..=IDLE_LOOKS {
        std::thread::sleep(IDLE_LOOK);
        let Some(now_us) = cgroup.cpu_us() else { return Idle::Rests };
        let least_us = IDLE_LOOK.as_micros() as u64 / IDLE_POLLS_PART;
        if before.is_some_and(|before| now_us - before < least_us) {
            return Idle::Rests;
        }
        before = Some(now_us);
    }
    Idle::Polls
}

/// In a thread, so that the wait for it can have an end.
fn read_all(from: OwnedFd) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = File::from(from).take(REPORT_MAX as u64).read_to_end(&mut text);
        let _ = sender.send(text);
    });
    receiver
}

fn receive(from: &Receiver<Vec<u8>>, limit: Duration) -> Option<Vec<u8>> {
    from.recv_timeout(limit).ok()
}

fn exit_code(pid: i32, deadline: Instant) -> Option<i32> {
    let pid = Pid::from_raw(pid);
    loop {
        match waitpid(pid, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(_, code)) => return Some(code),
            Ok(WaitStatus::StillAlive) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(2));
            }
            Ok(WaitStatus::StillAlive) => {
                let _ = kill(pid, Signal::SIGKILL);
                return None;
            }
            Ok(_) | Err(_) => return None,
        }
    }
}

/// The least that can be run: a command in the host's view, with the default limits.
pub fn trivial(cmd: &[&str]) -> Definition {
    Definition {
        pull_policy: crate::model::definition::PullPolicy::Never,
        name: "probe".to_owned(),
        source: Source::HostRootfs,
        cmd: cmd.iter().map(|arg| (*arg).to_owned()).collect(),
        stdio_bridge: true,
        restart_policy: RestartPolicy::Never,
        environment: BTreeMap::new(),
        volumes: Vec::new(),
        read_only_volumes: BTreeSet::new(),
        resource_limits: ResourceLimits::default(),
        provider: None,
        ports: Vec::new(),
        network: None,
        egress: None,
        user: None,
        workdir: None,
        files: BTreeMap::new(),
        project: None,
        managed_by: None,
        max_in_flight: 1,
        queue_max: QUEUE_DEFAULT,
        shared: true,
        framing: Framing::Auto,
        request_timeout_ms: PROBE_TIMEOUT.as_millis() as u64,
        startup_timeout_ms: PROBE_TIMEOUT.as_millis() as u64,
        install_timeout_ms: PROBE_TIMEOUT.as_millis() as u64,
        health: Health::default(),
        crash_loop: CrashLoop::default(),
        idle: crate::model::definition::Idle::default(),
    }
}
