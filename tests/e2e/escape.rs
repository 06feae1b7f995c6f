//! Attempts to get out, from inside, on both providers. Every attempt must fail in the way it should: by a refusal of the
//! kernel that the server is given, not by accident.

use crate::support::registry::build_python_image;
use crate::support::{Daemon, inside, on_both_providers};
use serde_json::{Value, json};
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};

on_both_providers!(nobody_gets_out, root_inside_is_nobody_outside);

fn nobody_gets_out(provider: &str) {
    let daemon = Daemon::start();
    let mut prisoner = inside("prisoner", provider);
    prisoner["volumes"] = json!(["/data"]);
    prisoner["environment"] = json!({"ASKED": "for"});
    daemon.register(&prisoner);
    let run = |code: &str| daemon.inside("prisoner", code);

    has_no_privileges(&daemon, provider, &run);
    sees_nothing_of_the_host(&daemon, &run);
    reaches_nobody(&daemon, &run);
}

/// Who asks for root gets the number, and nothing that comes with it; on an image of its own, and on nothing of the host.
fn root_inside_is_nobody_outside(provider: &str) {
    let daemon = Daemon::start();
    let layout = build_python_image(&daemon.scratch("image"));
    let imported = daemon.cli(&["image", "import", &format!("{}:v1", layout.display()), "--name", "python:1"]);
    assert!(imported.status.success(), "{imported:?}");
    let mut prisoner = inside("prisoner", provider);
    prisoner["rootfs"] = Value::Null;
    prisoner["image"] = json!("python:1");
    prisoner["user"] = json!("0:0");
    prisoner["volumes"] = json!(["/data"]);
    daemon.register(&prisoner);
    let run = |code: &str| daemon.inside("prisoner", code);
    assert_eq!(run("result = [os.getuid(), os.getgid()]"), json!([0, 0]));
    let sets = run("result = [int(l.split()[1], 16) for l in open('/proc/self/status') if l.startswith('Cap')]");
    assert!(sets.as_array().expect("a list").iter().all(|set| set == 0), "{sets}");
    if cfg!(target_arch = "x86_64") {
        assert_eq!(run("result = syscall(165, b'tmpfs', b'/tmp', b'tmpfs', 0, None)"), json!("EPERM"), "mount");
        assert_eq!(run("result = syscall(161, b'/tmp')"), json!("EPERM"), "chroot");
        assert_eq!(run("result = syscall(169, 0xfee1dead, 672274793, 0x1234567, None)"), json!("EPERM"), "reboot");
    }
    assert_eq!(run("os.mknod('/tmp/disk', 0o60600, os.makedev(7, 0))"), json!({"error": "EPERM"}));
    assert_eq!(run("socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)"), json!({"error": "EPERM"}));
    assert_eq!(run("socket.sethostname('x')"), json!({"error": "EPERM"}));
    for path in ["kernel/core_pattern", "kernel/hostname", "vm/overcommit_memory", "net/ipv4/ip_forward"] {
        let told = run(&format!("open('/proc/sys/{path}', 'r+').write('1')"));
        let refusals = ["EROFS", "EACCES", "EPERM", "ENOENT"].map(|e| json!({ "error": e }));
        assert!(refusals.contains(&told), "{path}: {told}");
    }
    if provider == "crun" {
        // gVisor's are its own kernel's.
        assert_eq!(run("result = os.statvfs('/proc/sys').f_flag & os.ST_RDONLY"), json!(1), "/proc/sys is read-only");
    }
    // A file's own mode is enough to refuse who has no capability.
    assert_eq!(run("open('/app/server.py', 'w')"), json!({"error": "EACCES"}));
    if provider == "crun" {
        // The host knows it under another number; gVisor's processes show nothing of the users inside.
        let pid = daemon.sandbox(provider, "/app/server.py");
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
        let uid = status.lines().find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().next()?.parse().ok());
        assert!(
            uid.is_some_and(|uid: u32| uid >= 0x2000_0000),
            "root inside is {uid:?} outside\n{}",
            daemon.log_tail()
        );
    }
    // What it writes to a volume is its own, whatever the host calls it; a setuid bit there means nothing.
    assert_eq!(run("open('/data/own', 'w').write('x'); os.chmod('/data/own', 0o4755); result = 1"), json!(1));
    assert_eq!(run("result = os.stat('/data/own').st_uid"), json!(0));
    let owner = daemon.in_volume("prisoner", "/data", |data| {
        let on_disk = std::fs::metadata(data.join("own")).expect("it is there");
        (on_disk.uid(), on_disk.gid())
    });
    assert_eq!(owner, (0, 0), "data keeps its owner from one provider to the next");
}

fn has_no_privileges(daemon: &Daemon, provider: &str, run: &impl Fn(&str) -> Value) {
    assert_eq!(
        run("result = [os.getuid(), os.geteuid(), os.getgid(), os.getgroups()]"),
        json!([65534, 65534, 65534, []])
    );
    let sets = run(
        "result = {l.split(':')[0]: int(l.split()[1], 16) for l in open('/proc/self/status') if l.startswith('Cap')}",
    );
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd"] {
        assert_eq!(sets[set], 0, "{sets}");
    }
    assert_eq!(run("result = libc.prctl(39, 0, 0, 0, 0)"), json!(1), "no_new_privs");
    // x86-64 and the generic table differ; Python knows neither mount nor pivot_root, so by number.
    if cfg!(target_arch = "x86_64") {
        assert_eq!(run("result = syscall(165, b'tmpfs', b'/tmp', b'tmpfs', 0, None)"), json!("EPERM"), "mount");
        assert_eq!(run("result = syscall(155, b'/tmp', b'/tmp')"), json!("EPERM"), "pivot_root");
        assert_eq!(run("result = syscall(161, b'/tmp')"), json!("EPERM"), "chroot");
        let module = run("result = syscall(175, None, 0, b'')");
        assert!(["EPERM", "ENOSYS"].map(Value::from).contains(&module), "init_module: {module}");
        if provider == "crun" {
            // gVisor gives namespaces of its own kernel, from which nothing of the host is nearer.
            assert_eq!(run("result = syscall(272, 0x10000000)"), json!("EPERM"), "unshare of a user namespace");
            assert_eq!(run("result = syscall(321, 0, None, 0)"), json!("EPERM"), "bpf");
            assert_eq!(run("result = syscall(250, 0, 0, 0)"), json!("EPERM"), "keyctl");
        }
    }
    assert_eq!(run("os.mknod('/data/disk', 0o60600, os.makedev(8, 0))"), json!({"error": "EPERM"}));
    assert_eq!(run("os.setuid(0)"), json!({"error": "EPERM"}));
    assert_eq!(run("os.chown('/data', 0, 0)"), json!({"error": "EPERM"}));

    // A setuid root program, put where only the host could put it.
    daemon.in_volume("prisoner", "/data", |data| {
        let program = data.join("id");
        std::fs::copy("/usr/bin/id", &program).expect("coreutils");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).expect("our own copy");
    });
    let told = run("result = subprocess.run(['/data/id', '-u'], capture_output=True, text=True).stdout");
    assert_eq!(told, json!("65534\n"), "setuid");

    for path in
        ["/proc/sys/kernel/hostname", "/proc/sysrq-trigger", "/proc/sys/net/ipv4/ip_forward", "/usr/x", "/etc/passwd"]
    {
        let told = run(&format!("open('{path}', 'w')"));
        let refusals = ["EROFS", "EACCES", "EPERM", "ENOENT"].map(|e| json!({ "error": e }));
        assert!(refusals.contains(&told), "{path}: {told}");
    }
    let devices = run("result = sorted(os.listdir('/dev'))");
    // fuse and net/tun are gVisor's own kernel's, as all of its devices are.
    let allowed =
        ["console", "core", "fd", "full", "fuse", "mqueue", "net", "null", "ptmx", "pts", "random", "shm", "stderr"];
    let allowed = [allowed.as_slice(), &["stdin", "stdout", "tty", "urandom", "zero"]].concat();
    for device in devices.as_array().expect("a list") {
        assert!(allowed.contains(&device.as_str().expect("a name")), "{devices}");
    }
    let environment = run("result = sorted(os.environ)");
    for name in environment.as_array().expect("a list") {
        let name = name.as_str().expect("a name");
        assert!(["ASKED", "HOME", "PATH", "LC_CTYPE", "PWD"].contains(&name), "{environment}");
    }
}

fn sees_nothing_of_the_host(daemon: &Daemon, run: &impl Fn(&str) -> Value) {
    let commands = run("result = [open(f'/proc/{p}/cmdline').read() for p in os.listdir('/proc') if p.isdigit()]");
    let commands = commands.as_array().expect("a list").clone();
    assert!(commands.len() <= 2, "{commands:?}");
    assert!(commands.iter().all(|c| c.as_str().is_some_and(|c| c.contains("server.py"))), "{commands:?}");
    let data_dir = daemon.data_dir.to_str().expect("our own name");
    for path in ["/etc/shadow", "/root", "/etc/ssh", "/var/lib", "/boot", "/etc/machine-id", data_dir] {
        assert_eq!(run(&format!("result = os.path.exists('{path}')")), json!(false), "{path}");
    }
    // The ways round a root: /proc of the first process, and the descriptors it was born with.
    assert_eq!(run(&format!("result = os.path.exists('/proc/1/root{data_dir}')")), json!(false));
    let descriptors = run(
        "result = [os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{n}')]",
    );
    for target in descriptors.as_array().expect("a list") {
        let target = target.as_str().expect("a path");
        assert!(!target.contains(data_dir) && !target.starts_with("/sys"), "{descriptors}");
    }
    assert!(!run("result = open('/proc/self/mountinfo').read()").to_string().contains("/cgroup/memory"));
    let own_name = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
    assert_ne!(run("result = socket.gethostname()"), json!(own_name.trim()));
}

fn reaches_nobody(daemon: &Daemon, run: &impl Fn(&str) -> Value) {
    let interfaces = run("result = [l.split(':')[0].strip() for l in open('/proc/net/dev') if ':' in l]");
    assert_eq!(interfaces, json!(["lo"]));
    // Servers of the host: on its loopback, on its own address, and on the abstract socket that has no path.
    let listener = TcpListener::bind("0.0.0.0:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let own = UdpSocket::bind("0.0.0.0:0").and_then(|s| s.connect("192.0.2.1:9").and(s.local_addr())).map(|a| a.ip());
    let own = own.map(|ip| ip.to_string()).unwrap_or_else(|_| "192.0.2.2".to_string());
    let daemon_port = daemon.address().rsplit_once(':').expect("a port").1.to_string();
    for (host, port) in
        [("127.0.0.1", daemon_port.clone()), ("127.0.0.1", port.to_string()), (own.as_str(), port.to_string())]
    {
        let told = run(&format!("socket.create_connection(('{host}', {port}), timeout=5)"));
        let refusals = ["ECONNREFUSED", "ENETUNREACH", "EHOSTUNREACH", "ENETDOWN"].map(|e| json!({ "error": e }));
        assert!(refusals.contains(&told), "{host}:{port}: {told}");
    }
    for address in ["8.8.8.8", "169.254.169.254", "10.0.0.1"] {
        let told = run(&format!("socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('{address}', 53))"));
        let refusals = ["ENETUNREACH", "EHOSTUNREACH", "EPERM"].map(|e| json!({ "error": e }));
        assert!(refusals.contains(&told), "{address}: {told}");
    }
    let name = format!("stdiod-escape-{}-{daemon_port}", std::process::id());
    let _abstract = UnixListener::bind_addr(&UnixAddr::from_abstract_name(&name).expect("a name")).expect("a socket");
    let told = run(&format!("s = socket.socket(socket.AF_UNIX); s.connect(b'\\0{name}')"));
    assert_eq!(told, json!({"error": "ECONNREFUSED"}));
    let raw = run("socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)");
    assert_eq!(raw, json!({"error": "EPERM"}));
    let packet = run("socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x300)");
    assert!(["EPERM", "EAFNOSUPPORT"].map(|e| json!({ "error": e })).contains(&packet), "{packet}");
    // It can still talk to itself.
    let own =
        "a = socket.create_server(('127.0.0.1', 0)); socket.create_connection(a.getsockname(), timeout=5); result = 1";
    assert_eq!(run(own), json!(1));
}
