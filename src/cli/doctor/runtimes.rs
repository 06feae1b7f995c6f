//! Do the configured runtimes really run something? gVisor and crun start a sandbox in which `true` runs; of other
//! runtimes only the binary is looked at.

use super::trial::{Scratch, Trial, attempt, find, in_private_namespaces, version};
use super::{Check, Need, State};
use crate::config::{Config, Provider};
use crate::limits::TRIAL_TIMEOUT;
use crate::sandbox::container::plan::{Layout, RuntimeKind, Users};
use crate::sandbox::host::probe;
use serde_json::json;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

/// kvm is only a bonus, and known to hang instead of failing.
const KVM_TIMEOUT: Duration = Duration::from_secs(3);
/// crun refuses a hybrid layout unless the v2 part is out of sight; in this namespace it may be.
const CRUN: &str = "[ ! -d /sys/fs/cgroup/unified ] || mount -t tmpfs none /sys/fs/cgroup/unified
exec \"$1\" --root \"$2/state\" --cgroup-manager=disabled run --bundle \"$2\" stdiod-doctor";

/// The default one first.
pub fn providers(config: &Config) -> Vec<Check> {
    let mut providers: Vec<(&String, &Provider)> = config.providers.iter().collect();
    providers.sort_by_key(|(name, _)| **name != config.default_provider);
    let layout = Layout::of(config.data_dir.clone());
    providers.into_iter().map(|(name, provider)| check(name, provider, &layout)).collect()
}

/// What the daemon has found out about it at its last start.
fn remembered(name: &str, provider: &Provider, layout: &Layout) -> &'static str {
    let known = probe::find(name, provider).ok().and_then(|runtime| probe::remembered(layout, &runtime));
    match known.map(|runtime| (runtime.kind, runtime.users)) {
        None => "not known to the daemon yet",
        Some((RuntimeKind::Native, Users::Shifted)) => "the daemon uses it, with user namespaces",
        Some((RuntimeKind::Native, Users::Same)) => "the daemon uses it, without user namespaces",
        Some((RuntimeKind::Gvisor | RuntimeKind::Plain, _)) => "the daemon uses it",
    }
}

fn check(name: &str, provider: &Provider, layout: &Layout) -> Check {
    let need = Need::OneProvider;
    if provider.kind == RuntimeKind::Plain {
        return Check::new(name, Need::Sometimes, State::Warn, "allowed: servers that ask for it run with no sandbox");
    }
    let Some(binary) = find(&provider.binary) else {
        let found = format!("{} is not installed", provider.binary.display());
        return Check::new(name, need, State::Missing, found).remedy(install(&provider.binary));
    };
    let found = format!("{}, {}; {}", binary.display(), version(&binary), remembered(name, provider, layout));
    if !nix::unistd::geteuid().is_root() {
        return Check::new(name, need, State::Warn, format!("{found}; not tried, because that needs root"));
    }
    match provider.kind {
        RuntimeKind::Gvisor => gvisor(name, &binary, &found),
        RuntimeKind::Native if binary.file_name().is_some_and(|file| file == "crun") => crun(name, &binary, &found),
        RuntimeKind::Native | RuntimeKind::Plain => Check::new(name, need, State::Warn, format!("{found}; not tried")),
    }
}

fn gvisor(name: &str, binary: &Path, found: &str) -> Check {
    let try_platform = |platform: &'static str, limit| {
        let binary = binary.to_path_buf();
        move || run_gvisor(&binary, platform, limit)
    };
    let (systrap, kvm) = std::thread::scope(|scope| {
        let kvm = Path::new("/dev/kvm").exists().then(|| scope.spawn(try_platform("kvm", KVM_TIMEOUT)));
        let systrap = try_platform("systrap", TRIAL_TIMEOUT)();
        (systrap, kvm.map(|thread| thread.join().unwrap_or(Trial::TimedOut)))
    });
    let kvm = match kvm {
        None => "kvm not there",
        Some(Trial::Worked(_)) => "kvm works",
        Some(Trial::Failed(_)) => "kvm fails",
        Some(Trial::TimedOut) => "kvm hangs",
    };
    match systrap {
        Trial::Worked(_) => {
            Check::ok(name, Need::OneProvider, format!("{found}: a sandbox ran (systrap works, {kvm})"))
        }
        failed @ (Trial::Failed(_) | Trial::TimedOut) => {
            let why = format!("systrap: {}", reason(&failed));
            let (state, found) = match run_gvisor(binary, "ptrace", TRIAL_TIMEOUT) {
                Trial::Worked(_) => {
                    (State::Warn, format!("{found}: only the slow ptrace platform works ({why}; {kvm})"))
                }
                Trial::Failed(_) | Trial::TimedOut => {
                    (State::Missing, format!("{found}: no sandbox runs ({why}; {kvm})"))
                }
            };
            Check::new(name, Need::OneProvider, state, found)
                .remedy(format!("a newer runsc may help: {}", install(Path::new("runsc"))))
        }
    }
}

fn crun(name: &str, binary: &Path, found: &str) -> Check {
    let ran = in_bundle("crun", |bundle| attempt(in_private_namespaces(CRUN, &[binary, bundle]), TRIAL_TIMEOUT));
    match ran {
        Trial::Worked(_) => Check::ok(name, Need::OneProvider, format!("{found}: a container ran")),
        failed @ (Trial::Failed(_) | Trial::TimedOut) => {
            let found = format!("{found}: no container runs ({})", reason(&failed));
            Check::new(name, Need::OneProvider, State::Missing, found)
        }
    }
}

fn run_gvisor(binary: &Path, platform: &str, limit: Duration) -> Trial {
    let script = format!(
        "exec \"$1\" --root \"$2/state\" --platform={platform} --network=none --ignore-cgroups \
         run --bundle \"$2\" stdiod-doctor"
    );
    in_bundle(platform, |bundle| attempt(in_private_namespaces(&script, &[binary, bundle]), limit))
}

fn reason(trial: &Trial) -> String {
    match trial {
        Trial::Worked(_) => "works".to_string(),
        Trial::TimedOut => "no end within its time".to_string(),
        Trial::Failed(text) => text.lines().last().unwrap_or("failed").to_string(),
    }
}

fn in_bundle(name: &str, run: impl FnOnce(&Path) -> Trial) -> Trial {
    let scratch = Scratch::new(&std::env::temp_dir(), name);
    match scratch.and_then(|scratch| fill_bundle(scratch.path()).map(|()| scratch)) {
        Ok(scratch) => run(scratch.path()),
        Err(why) => Trial::Failed(format!("no bundle could be made: {why}")),
    }
}

/// The smallest bundle that runs `true` from the host's /usr, as nobody, with nothing in reach.
fn fill_bundle(dir: &Path) -> io::Result<()> {
    let rootfs = dir.join("rootfs");
    for inside in ["usr", "proc", "dev"] {
        std::fs::create_dir_all(rootfs.join(inside))?;
    }
    for link in ["bin", "sbin", "lib", "lib64"] {
        symlink(Path::new("usr").join(link), rootfs.join(link))?;
    }
    let namespaces = ["pid", "mount", "ipc", "uts", "network"].map(|kind| json!({ "type": kind }));
    let spec = json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": { "uid": 65534, "gid": 65534 },
            "args": ["/usr/bin/true"],
            "env": ["PATH=/usr/bin"],
            "cwd": "/",
            "noNewPrivileges": true,
        },
        "root": { "path": "rootfs", "readonly": true },
        "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc" },
            { "destination": "/dev", "type": "tmpfs", "source": "tmpfs" },
            { "destination": "/usr", "type": "bind", "source": "/usr", "options": ["rbind", "ro"] },
        ],
        "linux": { "namespaces": namespaces },
    });
    std::fs::write(dir.join("config.json"), spec.to_string())
}

/// How to get a runtime on Debian.
fn install(binary: &Path) -> String {
    let name = binary.file_name().unwrap_or_default().to_string_lossy().into_owned();
    match name.as_str() {
        "runsc" if super::host::debian_codename().as_deref() == Some("bookworm") => {
            "apt install -t bookworm-backports runsc (the one in bookworm itself is too old for systrap)".to_string()
        }
        "runsc" | "crun" | "runc" => format!("apt install {name}"),
        _ => format!("install {}, or correct `binary` in the configuration", binary.display()),
    }
}
