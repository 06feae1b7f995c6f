//! The provider `none`: a plain child with no sandbox around it, where the operator's configuration allows that
//! (`allow_isolation_none`). It has its own user (never root), session, environment and a cgroup with the limits of its
//! definition, and cannot gain privileges; but it sees the whole host. For benchmarks, and for servers one trusts.

use crate::model::definition::{Definition, Source};
use crate::model::instance::{LaunchFault, LaunchFaultKind};
use crate::sandbox::container::account::{self, Account, Unlisted};
use crate::sandbox::container::plan::{LaunchPlan, fault};
use crate::sandbox::host::cgroup::Hierarchies;
use nix::sys::resource::{Resource, setrlimit};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// As `bundles/base.json` has them for containers.
const RLIMITS: [(Resource, u64, u64); 3] =
    [(Resource::RLIMIT_NOFILE, 1024, 4096), (Resource::RLIMIT_CORE, 0, 0), (Resource::RLIMIT_MEMLOCK, 65536, 65536)];

/// Starts it as a child of the launcher, which then exits: the process goes to the daemon like any container's.
pub fn start(plan: &LaunchPlan, cgroups: &Hierarchies, counts_swap: bool) -> Result<i32, LaunchFault> {
    let LaunchPlan { container_id, definition: def, layout, .. } = plan;
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
    let Account { uid, gid, .. } = account(def)?;
    let failed = |doing: &str, e: io::Error| fault(LaunchFaultKind::Runtime, doing, e);
    let cgroup = cgroups.instance(layout, container_id);
    cgroup.enter().map_err(|e| failed("entering the cgroup", e))?;
    // This process is in it and small; what it starts is bound from the first moment on.
    cgroup.limit(&def.resource_limits, counts_swap).map_err(|e| failed("setting the cgroup's limits", e))?;
    let mut command = Command::new(&def.cmd[0]);
    command
        .args(&def.cmd[1..])
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .envs(&def.environment)
        .current_dir(def.workdir.as_deref().unwrap_or("/"))
        .gid(gid)
        .uid(uid);
    // SAFETY: system calls only, async-signal-safe.
    unsafe { command.pre_exec(confine) };
    let child = command.spawn().map_err(|e| failed(&format!("starting {}", def.cmd[0]), e))?;
    Ok(child.id() as i32)
}

/// Between fork and exec, already as its user.
fn confine() -> io::Result<()> {
    nix::unistd::setsid()?;
    for (resource, soft, hard) in RLIMITS {
        setrlimit(resource, soft, hard)?;
    }
    Ok(nix::sys::prctl::set_no_new_privs()?)
}

/// Numbers only: the names of a host's users are not looked up for it.
fn account(def: &Definition) -> Result<Account, LaunchFault> {
    let account = account::resolve(def.user.as_deref(), "", "", Unlisted::Own)?;
    account.check(&def.source)?;
    Ok(account)
}
