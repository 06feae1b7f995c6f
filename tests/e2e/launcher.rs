//! The daemon's helpers, started as the daemon starts them, with what it would never tell them: whatever a row of the
//! database says, a name is no path and a right is not given away.

use crate::support::{STDIOD, short_temporary_directory};
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::pipe2;
use serde_json::Value;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use stdiod::model::instance::Packages;
use stdiod::sandbox::container::plan::{LaunchPlan, Layout, Networking, Runtime, RuntimeKind, Users};
use stdiod::sandbox::host::probe;

struct Home(PathBuf);

impl Drop for Home {
    fn drop(&mut self) {
        let layout = Layout::of(self.0.join("data"));
        let _ = stdiod::sandbox::cleanup::sweep::sweep(&layout);
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_launcher_takes_no_name_for_a_path_and_gives_no_right_away() {
    let home = Home(short_temporary_directory());
    let vault = home.0.join("vault");
    std::fs::create_dir_all(vault.join("data")).expect("a directory");
    std::fs::write(vault.join("data/secret"), "secret").expect("a file");
    let data_dir = home.0.join("data");
    std::fs::create_dir_all(data_dir.join("volumes")).expect("a directory");
    type Spoil = fn(&mut LaunchPlan);
    let cases: [(&str, Spoil); 4] = [
        ("name", |plan| plan.definition.name = "../../vault".to_string()),
        ("volumes", |plan| plan.definition.volumes = vec!["/../../vault".to_string()]),
        ("network", |plan| plan.definition.network = Some("host".to_string())),
        ("user", |plan| plan.definition.user = Some("0:0".to_string())),
    ];
    for (field, spoil) in cases {
        let mut plan = plan(&data_dir);
        plan.definition.volumes = vec!["/data".to_string()];
        spoil(&mut plan);
        let report = launch(&plan);
        let told = report["failed"]["message"].as_str().unwrap_or_default().to_string();
        assert!(told.contains(field), "{field}: {report}");
    }
    assert_eq!(std::fs::read_dir(vault.join("data")).expect("it is there").count(), 1);
    assert!(vault.join("data/secret").exists() && !vault.join(".image").exists());
}

#[test]
fn the_remover_of_volumes_takes_no_name_for_a_path() {
    let home = Home(short_temporary_directory());
    let vault = home.0.join("vault");
    std::fs::create_dir_all(vault.join("data")).expect("a directory");
    std::fs::create_dir_all(home.0.join("data/volumes/mine")).expect("a directory");
    let remove = |name: &str| {
        let mut command = Command::new(STDIOD);
        let (data, own) = (home.0.join("data"), std::process::id().to_string());
        command.arg("sandbox-remove-volumes").arg(data).args(["mark", name, &own]).stderr(Stdio::null());
        command.status().expect("it runs").code()
    };
    for name in ["../../vault", "..", ".", "", "mine/..", "MINE"] {
        assert_eq!(remove(name), Some(1), "{name:?}");
    }
    assert!(vault.join("data").exists() && home.0.join("data/volumes/mine").exists());
    assert_eq!(remove("mine"), Some(0));
    assert!(!home.0.join("data/volumes/mine").exists());
}

fn plan(data_dir: &Path) -> LaunchPlan {
    LaunchPlan {
        container_id: "test-1".to_string(),
        definition: probe::trivial(&["/bin/true"]),
        packages: Packages::AsKept,
        runtime: Runtime {
            provider: "crun".to_string(),
            kind: RuntimeKind::Native,
            binary: "/usr/bin/crun".into(),
            args: vec!["--cgroup-manager=cgroupfs".to_string()],
            users: Users::Shifted,
            polls: false,
        },
        layout: Layout::of(data_dir.to_owned()),
        networking: Networking::default(),
        host_paths: Vec::new(),
        disk_reserve_bytes: 0,
        daemon_pid: std::process::id().cast_signed(),
        waits: false,
    }
}

/// What the launcher says.
fn launch(plan: &LaunchPlan) -> Value {
    let mut memory = File::from(memfd_create(c"plan", MFdFlags::MFD_CLOEXEC).expect("memory"));
    memory.write_all(&serde_json::to_vec(plan).expect("plain data")).expect("memory");
    memory.rewind().expect("memory");
    let (report, far) = pipe2(OFlag::O_CLOEXEC).expect("a pipe");
    let inherited = [memory.as_raw_fd(), far.as_raw_fd()];
    let mut command = Command::new(STDIOD);
    command.arg("sandbox-launch").args(inherited.map(|fd| fd.to_string()));
    // In this child only: those of other tests would keep the pipe open.
    let inherit = move || {
        for fd in inherited {
            // SAFETY: both are open until the child has been started.
            fcntl(unsafe { BorrowedFd::borrow_raw(fd) }, FcntlArg::F_SETFD(FdFlag::empty()))?;
        }
        Ok(())
    };
    // SAFETY: system calls only, async-signal-safe.
    unsafe { command.pre_exec(inherit) };
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("it runs");
    drop(far);
    let mut text = String::new();
    File::from(report).read_to_string(&mut text).expect("a report");
    let _ = child.wait();
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}
