//! `rootfs: "host"`, on both providers: programs of the host, and nothing that only its root or its services may read. And
//! the provider `none`, which sees all of it, as somebody who is nobody.

use crate::support::registry::run as command;
use crate::support::{BASE, Daemon, inside, on_both_providers};
use serde_json::{Value, json};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

on_both_providers!(
    who_may_read_more_on_the_host_is_nobody_that_a_server_may_be,
    what_only_root_may_read_stays_closed_to_every_user,
    other_directories_are_shown_where_the_configuration_says_so_and_no_mounts_in_them,
);

/// A directory of the host, removed at the end with what is mounted in it.
struct OnHost(PathBuf);

impl OnHost {
    fn below(parent: &str) -> OnHost {
        std::fs::create_dir_all(parent).expect("a directory");
        let path = nix::unistd::mkdtemp(&*format!("{parent}/stdiod-test-XXXXXX")).expect("a directory");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("our own");
        OnHost(path)
    }

    fn file(&self, name: &str, mode: u32, group: u32) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, "secret").expect("a file");
        chown(&path, Some(0), Some(group)).expect("our own");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("our own");
        path.to_str().expect("our own name").to_string()
    }
}

impl Drop for OnHost {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(&self.0.join("mounted"), nix::mount::MntFlags::MNT_DETACH);
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn who_may_read_more_on_the_host_is_nobody_that_a_server_may_be(provider: &str) {
    let daemon = Daemon::start();
    let mut server = inside("server", provider);
    let shadow = "1000:42";
    for user in ["0", "root", "0:0", "root:root", "1000:0", "0:1000", "00", shadow, "1048576", "1000:1048576"] {
        server["user"] = json!(user);
        let reply = daemon.try_register(&server);
        assert_eq!((reply.status, &reply.json()["error"]["data"]["field"]), (400, &json!("user")), "{user}: {reply}");
    }
    assert_eq!(daemon.get(&format!("{BASE}/server")).status, 404, "nothing was stored");
    server["user"] = json!("12345");
    daemon.register(&server);
    let who = daemon.inside("server", "result = [os.getuid(), os.getgid(), os.getgroups()]");
    assert_eq!(who, json!([12345, 12345, []]), "a number alone is its own group");
    let patched = daemon.request("PATCH", &format!("{BASE}/server"), Some(&json!({"user": "0"})));
    assert_eq!((patched.status, &patched.json()["error"]["data"]["field"]), (400, &json!("user")), "{patched}");
}

fn what_only_root_may_read_stays_closed_to_every_user(provider: &str) {
    let on_host = OnHost::below("/usr/local/lib");
    let open = on_host.file("open", 0o644, 0);
    let hidden = on_host.0.join("hidden");
    std::fs::DirBuilder::new().mode(0o750).create(&hidden).expect("a directory");
    let mut closed = vec![on_host.file("hidden/file", 0o644, 0)];
    for (name, mode, group) in [("0600", 0o600, 0), ("0640", 0o640, 0), ("0400", 0o400, 0), ("0440-shadow", 0o440, 42)]
    {
        closed.push(on_host.file(name, mode, group));
    }
    let daemon = Daemon::start();
    for (name, user) in [("nobody", Value::Null), ("somebody", json!("12345")), ("people", json!("1000:1000"))] {
        let mut server = inside(name, provider);
        server["user"] = user;
        daemon.register(&server);
        assert_eq!(daemon.inside(name, &format!("result = open('{open}').read()")), json!("secret"));
        for path in &closed {
            let told = daemon.inside(name, &format!("result = open('{path}').read()"));
            assert_eq!(told, json!({"error": "EACCES"}), "{name} reads {path}");
        }
    }
}

fn other_directories_are_shown_where_the_configuration_says_so_and_no_mounts_in_them(provider: &str) {
    let (shown, usual) = (OnHost::below("/opt"), OnHost::below("/usr/local/lib"));
    let file = shown.file("file", 0o644, 0);
    for on_host in [&shown, &usual] {
        let point = on_host.0.join("mounted");
        std::fs::create_dir(&point).expect("a directory");
        command("mount", &["-t", "tmpfs", "-o", "size=64k", "tmpfs", point.to_str().expect("our own name")]);
        on_host.file("mounted/file", 0o644, 0);
    }
    let sees = |daemon: &Daemon, path: &Path| {
        daemon.inside("server", &format!("result = os.path.exists('{}')", path.display())) == json!(true)
    };
    {
        let daemon = Daemon::start();
        daemon.register(&inside("server", provider));
        assert!(!sees(&daemon, &shown.0), "/opt is not part of the view");
        assert!(sees(&daemon, &usual.0.join("mounted")) && !sees(&daemon, &usual.0.join("mounted/file")));
    }
    let daemon = Daemon::with("STDIOD_HOST_PATHS", shown.0.to_str().expect("our own name")).start();
    daemon.register(&inside("server", provider));
    assert_eq!(daemon.inside("server", &format!("result = open('{file}').read()")), json!("secret"));
    let written = daemon.inside("server", &format!("open('{file}', 'w')"));
    assert!(["EROFS", "EACCES"].iter().any(|e| written == json!({ "error": e })), "{written}");
    assert!(sees(&daemon, &shown.0.join("mounted")) && !sees(&daemon, &shown.0.join("mounted/file")));
    assert!(!sees(&daemon, &usual.0.join("mounted/file")));
}

#[test]
fn without_a_sandbox_a_server_is_nobody_and_has_its_limits() {
    let on_host = OnHost::below("/usr/local/lib");
    // It has no files of its own, so the script is the host's.
    let source = inside("x", "none")["files"]["/app/server.py"].as_str().expect("a script").to_string();
    std::fs::write(on_host.0.join("server.py"), source).expect("a file");
    let path = on_host.0.join("server.py").display().to_string();
    let secret = on_host.file("secret", 0o640, 0);
    let daemon = Daemon::with("STDIOD_ALLOW_ISOLATION_NONE", "true").start();
    let mut server = json!({
        "name": "plain", "provider": "none", "rootfs": "host", "cmd": ["/usr/bin/python3", path],
        "resource_limits": {"memory": "128M", "pids": 20, "cpu": "0.5"},
    });
    for user in ["0", "0:0", "root", "1000:0"] {
        server["user"] = json!(user);
        let reply = daemon.try_register(&server);
        assert_eq!((reply.status, &reply.json()["error"]["data"]["field"]), (400, &json!("user")), "{user}: {reply}");
    }
    server["user"] = json!("12345");
    daemon.register(&server);
    let run = |code: &str| daemon.inside("plain", code);
    assert_eq!(run("result = [os.getuid(), os.getgid(), os.getgroups()]"), json!([12345, 12345, []]));
    assert_eq!(run(&format!("open('{secret}')")), json!({"error": "EACCES"}));
    assert_eq!(run("result = libc.prctl(39, 0, 0, 0, 0)"), json!(1), "no_new_privs");
    let limits = "import resource as r; result = [r.getrlimit(r.RLIMIT_NOFILE), r.getrlimit(r.RLIMIT_CORE)]";
    assert_eq!(run(limits), json!([[1024, 4096], [0, 0]]));
    let bomb = "made = 0
try:
    while made < 500:
        if os.fork() == 0: time.sleep(3600)
        made += 1
except OSError as error:
    result = [made, errno.errorcode[error.errno]]";
    let told = run(bomb);
    assert_eq!(told[1], "EAGAIN", "{told}");
    let restarted = daemon.request("POST", &format!("{BASE}/plain/restart"), None);
    assert_eq!(restarted.json()["status"], "ready", "{restarted}");
    let hog = "held = []\nwhile len(held) < 1000: held.append(bytearray(os.urandom(1 << 16)) * 64)";
    let reply = daemon.tool("plain", "run", json!({"code": hog}));
    assert_eq!((reply.status, reply.code()), (502, json!("server_crashed")), "{reply}");
    let status = daemon.wait_until("plain", "back", |s| s["status"] == "ready" && !s["last_crash"].is_null());
    assert_eq!(status["last_crash"]["oom"], true, "{status:#}");
}
