//! The provider `none`: a plain child with no sandbox around it, where the operator's configuration allows that
//! (`allow_isolation_none`). It has its own user, session, environment and cgroup, so that it can be counted and swept
//! like any other, and nothing else: it sees the whole host. For benchmarks of the bridge, and for servers one trusts.

use crate::core::contract::{LaunchFault, LaunchFaultKind};
use crate::core::definition::{Definition, Source};
use crate::sandbox::cgroup::CgroupFiles;
use crate::sandbox::plan::fault;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// `nobody`, as in a sandbox.
const NOBODY: (u32, u32) = (65534, 65534);

/// Starts it as a child of the launcher, which then exits: the process goes to the daemon like any container's.
pub fn start(def: &Definition, cgroup: &CgroupFiles) -> Result<i32, LaunchFault> {
    let refused = |what: &str| fault(LaunchFaultKind::ProviderUnusable, "provider none", format!("it has no {what}"));
    match &def.source {
        Source::Image(_) => return Err(refused("images, only rootfs \"host\"")),
        Source::HostRootfs if !def.files.is_empty() => return Err(refused("files of its own: it sees the host's")),
        Source::HostRootfs if !def.volumes.is_empty() => return Err(refused("volumes: it sees the host's files")),
        Source::HostRootfs if !def.ports.is_empty() || def.egress.is_some() => {
            return Err(refused("network of its own, so no `ports` and no `egress`"));
        }
        Source::HostRootfs => {}
    }
    let (uid, gid) = account(def)?;
    cgroup.enter().map_err(|e| fault(LaunchFaultKind::Runtime, "entering the cgroup", e))?;
    let mut command = Command::new(&def.cmd[0]);
    command
        .args(&def.cmd[1..])
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .envs(&def.environment)
        .current_dir(def.workdir.as_deref().unwrap_or("/"))
        .gid(gid)
        .uid(uid);
    // SAFETY: one system call, async-signal-safe.
    unsafe { command.pre_exec(|| nix::unistd::setsid().map(|_| ()).map_err(Into::into)) };
    let child = command.spawn().map_err(|e| fault(LaunchFaultKind::Runtime, &format!("starting {}", def.cmd[0]), e))?;
    Ok(child.id() as i32)
}

fn account(def: &Definition) -> Result<(u32, u32), LaunchFault> {
    let Some(user) = &def.user else { return Ok(NOBODY) };
    let (uid, gid) = user.split_once(':').unwrap_or((user, user));
    match (uid.parse(), gid.parse()) {
        (Ok(uid), Ok(gid)) => Ok((uid, gid)),
        (_, _) => {
            Err(fault(LaunchFaultKind::ProviderUnusable, "user", "provider none takes numbers only: uid or uid:gid"))
        }
    }
}
