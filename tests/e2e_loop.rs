//! The loop thread waits in `epoll_wait` and nowhere else. strace looks over its shoulder while servers are registered,
//! launched on each provider, called, crashed and removed, and every system call that could wait is a failure. What is
//! allowed is listed below with its reason.

mod support;

use serde_json::json;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use support::{BASE, Daemon, RUDE, SOON, eventually, python};

/// Calls that never wait for anybody, whatever they are given.
const IMMEDIATE: &[(&str, &str)] = &[
    ("epoll_ctl pipe2 socket socketpair eventfd2 memfd_create", "make or change an object of the kernel's memory"),
    ("fcntl setsockopt getsockopt getsockname getpeername", "ask or change a flag"),
    ("close shutdown", "let go; no socket here lingers, and what is closed of a disk was only read"),
    ("bind listen", "an address of this host"),
    ("mmap munmap mremap madvise mprotect brk", "the process's own memory"),
    ("rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack", "how signals are taken"),
    ("kill tgkill pidfd_send_signal", "a signal is left at the door"),
    ("getpid gettid getppid getuid geteuid getrandom clock_gettime sysinfo uname", "known to the kernel"),
    ("timerfd_settime", "when to be woken"),
    (
        "setpriority getpriority sched_getscheduler sched_setscheduler prlimit64 sched_yield sched_getaffinity",
        "of the scheduler",
    ),
    ("lseek fstat", "of what `openat` has let through"),
];

/// The only files of a cgroup that the loop reads itself, when an instance has died: was it for want of memory?
const CGROUP_FILES: &[&str] = &["/memory.events", "/memory.oom_control"];

#[test]
fn the_loop_thread_waits_in_epoll_wait_and_nowhere_else() {
    let daemon = Daemon::start();
    let mut strace = Strace::attach(&daemon);

    let providers = ["crun", "gvisor"];
    for provider in providers {
        daemon.register(&python(provider, provider, RUDE));
        for n in 0..20 {
            assert_eq!(daemon.text(provider, "echo", json!({"text": n.to_string()})), n.to_string());
        }
    }
    let missing = json!({"name": "missing", "image": "missing:1", "pull_policy": "never"});
    assert_eq!(daemon.try_register(&missing).status, 422);
    let nowhere = json!({"name": "nowhere", "rootfs": "host", "cmd": ["true"], "network": "nowhere"});
    assert_eq!(daemon.try_register(&nowhere).status, 400);
    // It is pulled in vain, so the store and then the registry are asked for it.
    let absent = json!({"name": "absent", "image": "127.0.0.1:9/absent:1", "restart_policy": "never"});
    assert_eq!(daemon.try_register(&absent).status, 201);
    assert_eq!(daemon.request("DELETE", &format!("{BASE}/absent"), None).status, 204);
    daemon.signal(nix::sys::signal::Signal::SIGHUP);
    daemon.wait_log(&["SIGHUP", "read again"]);
    for provider in providers {
        assert_eq!(daemon.tool(provider, "crash", json!({"code": 3})).code(), "server_crashed");
        daemon.wait_until(provider, "back", |status| status["status"] == "ready" && status["restart_count"] == 1);
        assert_eq!(daemon.request("POST", &format!("{BASE}/{provider}/restart"), None).status, 200);
        assert_eq!(daemon.get(&format!("{BASE}/{provider}/logs")).status, 200);
        assert!(daemon.status(provider)["resource_usage"]["memory_bytes"].as_u64().is_some_and(|bytes| bytes > 0));
        assert_eq!(daemon.request("DELETE", &format!("{BASE}/{provider}"), None).status, 204);
    }

    let (calls, complaints) = strace.detach();
    assert!(complaints.is_empty(), "the loop may wait in:\n{}", complaints.join("\n"));
    // It has seen what it was there for.
    let seen = |name: &str| calls.get(name).copied().unwrap_or(0);
    println!("system calls of the loop thread: {calls:?}");
    assert!(seen("epoll_wait") > 50 && seen("accept4") > 40 && seen("sendto") > 40 && seen("write") > 40, "{calls:?}");
    assert!(seen("clone3") + seen("clone") + seen("vfork") >= 8, "launchers and clean-ups: {calls:?}");
    assert!(seen("futex") > 0, "the store thread was woken: {calls:?}");
}

// --- strace ---------------------------------------------------------------------------------------------------------

struct Strace {
    child: Child,
    trace: PathBuf,
    judge: Judge,
}

impl Strace {
    /// The loop is the daemon's first thread; its number is the process's.
    fn attach(daemon: &Daemon) -> Strace {
        let trace = daemon.scratch("strace").join("trace");
        let mut child = Command::new("strace")
            .args(["-s", "160", "-p", &daemon.pid().to_string(), "-o"])
            .arg(&trace)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("strace: scripts/setup --tests installs it");
        let mut said = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let first = said.next().expect("a word of strace's").expect("text");
        assert!(first.contains("attached"), "strace: {first}");
        // It stays silent until it is asked to leave; nobody need read on.
        std::mem::forget(said);
        Strace { child, trace, judge: Judge::of(daemon.pid()) }
    }

    /// How often each call was made, and those that may wait.
    fn detach(&mut self) -> (BTreeMap<String, usize>, Vec<String>) {
        let pid = nix::unistd::Pid::from_raw(self.child.id().cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).expect("it runs");
        assert!(eventually(SOON, || self.child.try_wait().expect("our child").is_some()), "strace does not leave");
        let trace = std::fs::read_to_string(&self.trace).expect("what strace wrote");
        let mut calls = BTreeMap::new();
        let mut complaints = Vec::new();
        for line in trace.lines() {
            let Some(call) = Call::parse(line) else { continue };
            *calls.entry(call.name.to_string()).or_insert(0) += 1;
            if let Err(why) = self.judge.hear(&call) {
                complaints.push(format!("{why}: {line}"));
            }
        }
        (calls, complaints)
    }
}

impl Drop for Strace {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `name(arguments) = result …`
struct Call<'a> {
    name: &'a str,
    arguments: &'a str,
    result: Option<i64>,
}

impl<'a> Call<'a> {
    /// None: a signal, the word that the process has ended, or the call that strace left in the middle of: it had not come
    /// to its arguments, so there is nothing to judge.
    fn parse(line: &'a str) -> Option<Call<'a>> {
        if line.ends_with("<detached ...>") {
            return None;
        }
        let (name, rest) = line.split_once('(')?;
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            return None;
        }
        let (arguments, result) = rest.rsplit_once(" = ").unwrap_or((rest, ""));
        let result = result.split([' ', '<']).next().and_then(|number| number.parse().ok());
        Some(Call { name, arguments, result })
    }

    fn fd(&self) -> Option<i64> {
        self.arguments.split([',', ')']).next()?.trim().parse().ok()
    }

    /// The first string among the arguments.
    fn path(&self) -> &'a str {
        self.arguments.split('"').nth(1).unwrap_or_default()
    }
}

/// What a descriptor of the daemon is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    NonBlocking,
    /// A file of the kernel's memory: procfs, what `CGROUP_FILES` names, a memfd, /dev/null.
    Memory,
    MayWait,
}

/// Follows the daemon's descriptors through the trace.
struct Judge {
    kinds: BTreeMap<i64, Kind>,
    immediate: Vec<&'static str>,
    /// Where libc keeps its own variables. The lock of the heap is among them, and another thread holds it for the length
    /// of one `free` of what the loop has given it. To be rid of that wait would take an allocator without locks; those
    /// that were tried doubled the daemon's memory.
    libc: Range<u64>,
}

impl Judge {
    fn new(kinds: BTreeMap<i64, Kind>, libc: Range<u64>) -> Judge {
        Judge { kinds, immediate: IMMEDIATE.iter().flat_map(|(names, _)| names.split(' ')).collect(), libc }
    }

    /// With the descriptors that a process has now.
    fn of(pid: i32) -> Judge {
        const O_NONBLOCK: u32 = 0o4000;
        let mut kinds = BTreeMap::new();
        for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").flatten() {
            let Some(fd) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let info = std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).unwrap_or_default();
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
            let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok()).unwrap_or(0);
            let target = std::fs::read_link(entry.path()).unwrap_or_default();
            let kind = match kind_of_path(target.to_str().unwrap_or_default()) {
                Kind::MayWait if flags & O_NONBLOCK != 0 => Kind::NonBlocking,
                kind => kind,
            };
            kinds.insert(fd, kind);
        }
        Judge::new(kinds, libc_variables(pid))
    }

    fn hear(&mut self, call: &Call<'_>) -> Result<(), String> {
        self.follow(call);
        let says = |word: &str| call.arguments.contains(word);
        let allowed = match call.name {
            "epoll_wait" => true,
            "read" | "readv" | "recvfrom" | "recvmsg" | "write" | "writev" | "sendto" | "sendmsg" | "accept4"
            | "connect" => match call.fd().and_then(|fd| self.kinds.get(&fd)) {
                Some(Kind::NonBlocking | Kind::Memory) => true,
                Some(Kind::MayWait) | None => says("MSG_DONTWAIT"),
            },
            // Elsewhere it would be a disk.
            "openat" => kind_of_path(call.path()) != Kind::MayWait,
            "statx" => says("AT_EMPTY_PATH") || kind_of_path(call.path()) != Kind::MayWait,
            "futex" => says("FUTEX_WAKE") && !says("FUTEX_WAIT") || self.is_of_the_heap(call),
            "wait4" | "waitid" => says("WNOHANG"),
            // The child borrows our memory until its exec, and does nothing else before that.
            "clone3" | "clone" | "vfork" => call.name == "vfork" || says("CLONE_VFORK"),
            name => self.immediate.contains(&name),
        };
        if allowed {
            Ok(())
        } else {
            Err(format!("{} on {:?}", call.name, call.fd().and_then(|fd| self.kinds.get(&fd))))
        }
    }

    fn is_of_the_heap(&self, call: &Call<'_>) -> bool {
        let address = call.arguments.split(',').next().and_then(|first| first.strip_prefix("0x"));
        let address = address.and_then(|hex| u64::from_str_radix(hex, 16).ok());
        address.is_some_and(|address| self.libc.contains(&address))
    }

    fn follow(&mut self, call: &Call<'_>) {
        let says = |word: &str| call.arguments.contains(word);
        let flagged = |word: &str| if says(word) { Kind::NonBlocking } else { Kind::MayWait };
        match (call.name, call.result) {
            ("accept4" | "socket", Some(fd @ 0..)) => _ = self.kinds.insert(fd, flagged("SOCK_NONBLOCK")),
            ("eventfd2", Some(fd @ 0..)) => _ = self.kinds.insert(fd, flagged("EFD_NONBLOCK")),
            ("memfd_create", Some(fd @ 0..)) => _ = self.kinds.insert(fd, Kind::Memory),
            ("openat", Some(fd @ 0..)) => _ = self.kinds.insert(fd, kind_of_path(call.path())),
            ("pipe2" | "socketpair", Some(0)) => {
                let inner = call.arguments.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
                let ends = inner.map_or("", |(ends, _)| ends).split(',').filter_map(|fd| fd.trim().parse().ok());
                self.kinds.extend(ends.map(|fd: i64| (fd, flagged("NONBLOCK"))));
            }
            ("fcntl", Some(0)) if says("F_SETFL") => {
                _ = call.fd().map(|fd| self.kinds.insert(fd, flagged("O_NONBLOCK")));
            }
            ("fcntl", Some(copy @ 0..)) if says("F_DUPFD") => {
                let kind = call.fd().and_then(|fd| self.kinds.get(&fd).copied());
                self.kinds.insert(copy, kind.unwrap_or(Kind::MayWait));
            }
            ("close", Some(0)) => _ = call.fd().map(|fd| self.kinds.remove(&fd)),
            (_, _) => {}
        }
    }
}

/// The writable part of a process's libc.
fn libc_variables(pid: i32) -> Range<u64> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
    let line = maps.lines().find(|line| line.contains(" rw-p ") && line.contains("/libc.so"));
    let (start, end) = line.and_then(|line| line.split(' ').next()?.split_once('-')).expect("libc is there");
    let number = |hex| u64::from_str_radix(hex, 16).expect("an address");
    number(start)..number(end)
}

fn kind_of_path(path: &str) -> Kind {
    let in_memory = ["/proc/", "/dev/null", "/memfd:"];
    let of_cgroup = path.starts_with("/sys/fs/cgroup/") && CGROUP_FILES.iter().any(|end| path.ends_with(end));
    if of_cgroup || in_memory.iter().any(|start| path.starts_with(start)) { Kind::Memory } else { Kind::MayWait }
}

/// A judge that lets everything pass would be worth nothing.
#[test]
fn calls_that_may_wait_are_told_from_those_that_cannot() {
    let fine = [
        "epoll_wait(4, [], 1024, 456) = 0",
        "accept4(5, 0x7ffd, [128], SOCK_CLOEXEC|SOCK_NONBLOCK) = 9",
        r#"recvfrom(9, "GET /", 65536, 0, NULL, NULL) = 275"#,
        "pipe2([10, 11], O_CLOEXEC) = 0",
        "fcntl(10, F_SETFL, O_RDONLY|O_NONBLOCK) = 0",
        r#"read(10, "x", 65536) = 1"#,
        r#"openat(AT_FDCWD, "/sys/fs/cgroup/memory/x/memory.oom_control", O_RDONLY|O_CLOEXEC) = 12"#,
        r#"read(12, "1", 32) = 1"#,
        "close(12) = 0",
        "futex(0x56, FUTEX_WAKE_PRIVATE, 1) = 1",
        "futex(0x7f60, FUTEX_WAIT_PRIVATE, 2, NULL) = -1 EAGAIN (Resource temporarily unavailable)",
        "wait4(-1, 0x7ff, WNOHANG, NULL) = 0",
        "clone3({flags=CLONE_VM|CLONE_VFORK|CLONE_CLEAR_SIGHAND, exit_signal=SIGCHLD}, 88) = 25",
    ];
    let waiting = [
        r#"read(11, "x", 65536) = 1"#,
        r#"read(12, "x", 65536) = 1"#,
        r#"write(2, "[2026", 94) = 94"#,
        r#"recvfrom(77, "", 1, 0, NULL, NULL) = 0"#,
        r#"openat(AT_FDCWD, "/var/lib/stdiod/x", O_RDONLY|O_CLOEXEC) = 13"#,
        r#"openat(AT_FDCWD, "/var/lib/stdiod/images/refs/a.json", O_RDONLY|O_CLOEXEC) = 13"#,
        r#"openat(AT_FDCWD, "/sys/fs/cgroup/x/memory.current", O_RDONLY|O_CLOEXEC) = 13"#,
        r#"openat(AT_FDCWD, "/etc/cni/net.d", O_RDONLY|O_NONBLOCK|O_CLOEXEC|O_DIRECTORY) = 13"#,
        "getdents64(13, [], 32768) = 0",
        r#"statx(AT_FDCWD, "/var/lib/stdiod/x", 0, STATX_ALL, {}) = 0"#,
        "fsync(13) = 0",
        "futex(0x56, FUTEX_WAIT_PRIVATE, 2, NULL) = 0",
        "wait4(25, [{WIFEXITED(s)}], 0, NULL) = 25",
        "clone(child_stack=NULL, flags=CLONE_CHILD_SETTID|SIGCHLD) = 26",
        "clock_nanosleep(CLOCK_REALTIME, 0, {tv_sec=1}, NULL) = 0",
        "poll([{fd=3, events=POLLIN}], 1, -1) = 1",
        "flock(3, LOCK_EX) = 0",
    ];
    let descriptors = BTreeMap::from([(2, Kind::MayWait), (5, Kind::NonBlocking)]);
    let mut judge = Judge::new(descriptors, 0x7f00..0x8000);
    for line in fine {
        assert_eq!(judge.hear(&Call::parse(line).expect("a call")), Ok(()), "{line}");
    }
    for line in waiting {
        assert!(judge.hear(&Call::parse(line).expect("a call")).is_err(), "{line}");
    }
    assert!(Call::parse("--- SIGCHLD {si_signo=SIGCHLD, si_code=CLD_EXITED} ---").is_none());
    assert!(Call::parse("+++ exited with 0 +++").is_none());
    assert!(Call::parse("wait4(-1,  <detached ...>").is_none());
}
