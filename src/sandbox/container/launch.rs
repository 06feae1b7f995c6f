//! The launcher: a child of the daemon that turns a `LaunchPlan` into a running container, says one `Report`, and
//! exits. It holds the container's stdio as its own and hands it down. It dies with the daemon, and the runtime with
//! it, but never the container; what it has made so far is then cleared by `discard` or `sweep`.

use crate::limits::{LAUNCH_MESSAGE_MAX, LAUNCH_TURN_WAIT};
use crate::model::definition::Source;
use crate::model::instance::{LaunchFault, LaunchFaultKind};
use crate::sandbox::container::cni;
use crate::sandbox::container::disk::{self, Disk};
use crate::sandbox::container::network::{self, Wanted};
use crate::sandbox::container::packages;
use crate::sandbox::container::plain;
use crate::sandbox::container::plan::{LaunchPlan, Report, Runs, RuntimeKind, Users, fault, free_bytes};
use crate::sandbox::container::rootfs::{self, PrivateMounts};
use crate::sandbox::container::runtime;
use crate::sandbox::container::spec::{self, Setting};
use crate::sandbox::container::users::Shift;
use crate::sandbox::host::cgroup::{Hierarchies, Mode as CgroupMode};
use crate::sandbox::image::{Images, StoredImage};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::getppid;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

pub const SUBCOMMAND: &str = "sandbox-launch";
/// `FS_TOPDIR_FL` of linux/fs.h.
const TOPDIR: libc::c_int = 0x0002_0000;

/// The command that runs a launcher, and what it inherits: to be spawned and dropped at once, by the one thread of this
/// process that ever spawns.
pub struct Launcher {
    /// Its stdio is still to be set: give it the container's.
    pub command: Command,
    _inherited: [OwnedFd; 2],
}

/// `report` is the launcher's end of what its report goes through, and closed here when the launcher is dropped.
pub fn command(plan: &LaunchPlan, report: OwnedFd) -> io::Result<Launcher> {
    let mut memory = File::from(memfd_create(c"stdiod-plan", MFdFlags::empty())?);
    // At once: the serializer alone would make a system call for every comma.
    memory.write_all(&serde_json::to_vec(plan)?)?;
    let fds = [OwnedFd::from(memory), report];
    let mut command = Command::new(crate::sandbox::this_program());
    command.arg0("stdiod").arg(SUBCOMMAND).args(fds.iter().map(|fd| fd.as_raw_fd().to_string()));
    // Here and not in the child: without anything to do between fork and exec, the child needs no copy of this
    // process's page tables, and exec comes several times sooner.
    fcntl(&fds[1], FcntlArg::F_SETFD(FdFlag::empty()))?;
    Ok(Launcher { command, _inherited: fds })
}

/// `args`: the two descriptors, as `command` gives them.
pub fn main(args: &[OsString]) -> i32 {
    let fds: Vec<RawFd> = args.iter().filter_map(|a| a.to_str()?.parse().ok()).collect();
    let [plan_fd, report_fd] = fds[..] else {
        eprintln!("stdiod {SUBCOMMAND}: started by the daemon, not by hand");
        return 2;
    };
    // Before anything else can fork: the container must inherit neither.
    for fd in [plan_fd, report_fd] {
        // SAFETY: only borrowed for this call; a number that is no descriptor gives EBADF.
        let set = fcntl(unsafe { BorrowedFd::borrow_raw(fd) }, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC));
        if fd < 3 || set.is_err() {
            eprintln!("stdiod {SUBCOMMAND}: {fd} is not a descriptor of the daemon");
            return 2;
        }
    }
    // SAFETY: the daemon gave both to us, and nobody else in this process knows them.
    let (plan, mut report) = unsafe { (File::from_raw_fd(plan_fd), File::from_raw_fd(report_fd)) };
    let said = match read_plan(plan).and_then(|plan| settled(plan, &report)) {
        Ok((pid, address, runs)) => Report::Started { pid, address, runs },
        Err(mut fault) => {
            cut(&mut fault.message, LAUNCH_MESSAGE_MAX);
            Report::Failed(fault)
        }
    };
    let text = serde_json::to_vec(&said).expect("a report is plain data");
    let written = report.write_all(&text);
    match (said, written) {
        (Report::Started { .. }, Ok(())) => 0,
        (Report::Started { .. } | Report::Failed(_), _) => 1,
    }
}

fn read_plan(mut file: File) -> Result<LaunchPlan, LaunchFault> {
    let internal = |e: &dyn std::fmt::Display| fault(LaunchFaultKind::Internal, "reading the plan", e);
    let mut text = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut text)).map_err(|e| internal(&e))?;
    let plan: LaunchPlan = serde_json::from_slice(&text).map_err(|e| internal(&e))?;
    plan.check()?;
    Ok(plan)
}

/// Waits for its turn, finds out what is to be launched, and launches it.
fn settled(mut plan: LaunchPlan, daemon: &File) -> Result<(i32, Option<IpAddr>, Runs), LaunchFault> {
    die_with_parent(plan.daemon_pid)
        .map_err(|e| fault(LaunchFaultKind::Internal, "tying the launcher to the daemon", e))?;
    if plan.waits {
        wait_for_the_word(daemon);
    }
    leave_the_reserve(&plan)?;
    let runs = packages::settle(&mut plan).map_err(|e| rootfs_fault("the mark of its packages", e))?;
    let (pid, address) = launch(&plan)?;
    Ok((pid, address, runs))
}

fn launch(plan: &LaunchPlan) -> Result<(i32, Option<IpAddr>), LaunchFault> {
    let LaunchPlan { container_id, definition: def, runtime, layout, networking, .. } = plan;
    let unusable = |doing: &str, e: io::Error| fault(LaunchFaultKind::ProviderUnusable, doing, e);
    let cgroups = Hierarchies::of_this_host()
        .ok_or_else(|| unusable("limits", io::Error::other("no cgroup hierarchy is mounted")))?;
    let prepared = cgroups.prepare(layout).map_err(|e| unusable("preparing the cgroup", e))?;
    cgroups.join_as_launcher(layout, container_id).map_err(|e| unusable("joining the launcher's cgroup", e))?;

    let bundle = layout.bundle(container_id);
    make_private_dir(&layout.runtime_root(&runtime.provider), Existing::Kept)?;
    make_private_dir(&layout.bundles_dir(), Existing::Kept)?;
    spread(&layout.runtime_root(&runtime.provider));
    spread(&layout.bundles_dir());
    make_private_dir(&bundle, Existing::Refused)?;
    let mounts = PrivateMounts::enter().map_err(|e| rootfs_fault("entering a private mount namespace", e))?;
    if runtime.kind == RuntimeKind::Plain {
        let pid = plain::start(plan, &cgroups, prepared.counts_swap)?;
        return Ok((pid, None));
    }
    cover_unified(&mounts, &cgroups, runtime.kind)?;

    let image = claim_image(plan, &bundle)?;
    let shift = shift(&mounts, plan)?;
    let root = match &shift {
        Some(shift) => shift.place("rootfs").map_err(|e| rootfs_fault("making the root", e))?,
        None => bundle.join("rootfs"),
    };
    if shift.is_none() {
        make_private_dir(&root, Existing::Refused)?;
    }
    let disk = disk::make(&mounts, layout, &bundle, &def.resource_limits)?;
    mount_root(&mounts, plan, image.as_ref(), shift.as_ref(), &disk, &root)?;
    let wanted = network::wanted(def, networking);
    let joined = match &wanted {
        Wanted::None | Wanted::Host => None,
        Wanted::Private => Some(network::join(&mounts, plan, &bundle, cni::PRIVATE)?),
        Wanted::Named(name) => Some(network::join(&mounts, plan, &bundle, name)?),
    };
    let host_names = (String::new(), fs::read_to_string("/etc/resolv.conf").unwrap_or_default());
    let names = match (&joined, &wanted) {
        (Some(joined), _) => (joined.hosts.as_str(), joined.resolv_conf.as_str()),
        (None, Wanted::Host) => (host_names.0.as_str(), host_names.1.as_str()),
        (None, Wanted::None | Wanted::Private | Wanted::Named(_)) => ("", ""),
    };
    let account = rootfs::furnish(&root, def, image.as_ref(), names, shift.as_ref())?;
    let mut volumes = rootfs::volumes(&mounts, plan, &bundle, &account)?;
    let mut tmp = disk.tmp.clone();
    if let Some(shift) = &shift {
        (volumes, tmp) = shifted(&mounts, shift, volumes, &disk)?;
    }

    let cgroup = layout.cgroup(container_id);
    let setting = Setting {
        account: &account,
        rootfs: &root,
        cgroup: &cgroup,
        volumes: &volumes,
        tmp: &tmp,
        cgroup_counts_swap: prepared.counts_swap,
        network: match (&joined, &wanted) {
            (Some(joined), _) => spec::Network::Joined(&joined.namespace),
            (None, Wanted::Host) => spec::Network::Host,
            (None, Wanted::None | Wanted::Private | Wanted::Named(_)) => spec::Network::Own,
        },
        first_user: shift.as_ref().map(|shift| shift.first),
    };
    let spec = spec::config(def, image.as_ref().map(|i| &i.config), runtime, &setting)?;
    spec.save(bundle.join("config.json")).map_err(|e| fault(LaunchFaultKind::Internal, "writing config.json", e))?;
    let namespace = match (&joined, runtime.kind) {
        // It takes over the interfaces of the namespace that it is started in.
        (Some(joined), RuntimeKind::Gvisor) => {
            let opened = File::open(&joined.namespace);
            Some(opened.map_err(|e| fault(LaunchFaultKind::Network, "opening the network namespace", e))?)
        }
        (Some(_), RuntimeKind::Native | RuntimeKind::Plain) | (None, _) => None,
    };
    let address = joined.as_ref().map(|joined| joined.address);
    let pid = run(plan, &bundle, network_flag(runtime.kind, &wanted), namespace.as_ref())?;
    Ok((pid, address))
}

/// What servers write is on the same disk as what the daemon must be able to write.
fn leave_the_reserve(plan: &LaunchPlan) -> Result<(), LaunchFault> {
    let (dir, reserve) = (&plan.layout.data_dir, plan.disk_reserve_bytes);
    // A disk that cannot be asked has other ways to fail.
    match free_bytes(dir) {
        Ok(free) if free < reserve => {
            let why = format!("{free} bytes are free, and {reserve} are kept back (`disk_reserve`); make room");
            Err(fault(LaunchFaultKind::Rootfs, &format!("the disk of {}", dir.display()), why))
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

/// The daemon says when it is our turn; if it does not, we go on all the same.
fn wait_for_the_word(daemon: &File) {
    if let Ok(again) = daemon.try_clone() {
        let mut socket = UnixStream::from(OwnedFd::from(again));
        _ = socket.set_read_timeout(Some(LAUNCH_TURN_WAIT)).and_then(|()| socket.read(&mut [0]));
    }
}

/// After all other flags: the last one of a name counts.
fn network_flag(kind: RuntimeKind, wanted: &Wanted) -> Option<&'static str> {
    match (kind, wanted) {
        (RuntimeKind::Native | RuntimeKind::Plain, _) | (RuntimeKind::Gvisor, Wanted::None) => None,
        (RuntimeKind::Gvisor, Wanted::Host) => Some("--network=host"),
        (RuntimeKind::Gvisor, Wanted::Private | Wanted::Named(_)) => Some("--network=sandbox"),
    }
}

fn claim_image(plan: &LaunchPlan, bundle: &Path) -> Result<Option<StoredImage>, LaunchFault> {
    match &plan.definition.source {
        Source::HostRootfs => Ok(None),
        Source::Image(name) => Images::of(&plan.layout).claim(name, bundle).map(Some),
    }
}

/// A user namespace, if the runtime was found to work in one.
fn shift(mounts: &PrivateMounts, plan: &LaunchPlan) -> Result<Option<Shift>, LaunchFault> {
    match plan.runtime.users {
        Users::Shifted => Shift::prepare(mounts, plan).map(Some),
        Users::Same => Ok(None),
    }
}

fn mount_root(
    mounts: &PrivateMounts,
    plan: &LaunchPlan,
    image: Option<&StoredImage>,
    shift: Option<&Shift>,
    disk: &Disk,
    root: &Path,
) -> Result<(), LaunchFault> {
    let Some(image) = image else { return mounts.host(root, &plan.host_paths) };
    let mut layers = Images::of(&plan.layout).layer_dirs(image);
    if let Some(shift) = shift {
        for (number, layer) in layers.iter_mut().enumerate() {
            let shown = shift.show(mounts, layer, &format!("layer-{number}"));
            *layer = shown.map_err(|e| rootfs_fault("showing a layer to shifted users", e))?;
        }
    }
    mounts.image(root, &disk.layer, &layers, shift)
}

/// Where the container's root finds its volumes and its `/tmp`.
fn shifted(
    mounts: &PrivateMounts,
    shift: &Shift,
    mut volumes: Vec<(PathBuf, PathBuf)>,
    disk: &Disk,
) -> Result<(Vec<(PathBuf, PathBuf)>, PathBuf), LaunchFault> {
    for (number, (destination, source)) in volumes.iter_mut().enumerate() {
        let shown = shift.show(mounts, source, &format!("volume-{number}"));
        let doing = || format!("showing the volume {} to shifted users", destination.display());
        *source = shown.map_err(|e| rootfs_fault(&doing(), e))?;
    }
    let tmp = shift.put_up(mounts, &disk.tmp, "tmp").map_err(|e| rootfs_fault("putting up /tmp", e))?;
    let owner = Some(shift.outside(0));
    std::os::unix::fs::chown(&tmp, owner, owner).map_err(|e| rootfs_fault("giving /tmp away", e))?;
    Ok((volumes, tmp))
}

/// crun refuses hosts that have both versions mounted. Here it is shown only the one with the controllers.
fn cover_unified(mounts: &PrivateMounts, cgroups: &Hierarchies, kind: RuntimeKind) -> Result<(), LaunchFault> {
    match (kind, cgroups.mode(), &cgroups.v2) {
        (RuntimeKind::Native, CgroupMode::Hybrid, Some(v2)) => {
            mounts.cover(v2).map_err(|e| rootfs_fault(&format!("covering {}", v2.display()), e))
        }
        (RuntimeKind::Native | RuntimeKind::Gvisor | RuntimeKind::Plain, _, _) => Ok(()),
    }
}

/// Runs the runtime to its end. It exits when the container runs; the container is then an orphan and goes to the
/// nearest subreaper above, the daemon.
fn run(
    plan: &LaunchPlan,
    bundle: &Path,
    flag: Option<&'static str>,
    namespace: Option<&File>,
) -> Result<i32, LaunchFault> {
    let LaunchPlan { container_id, runtime, layout, .. } = plan;
    let (log, pid_file) = (bundle.join("runtime.log"), bundle.join("pid"));
    let root = layout.runtime_root(&runtime.provider);
    let mut words = vec![runtime.binary.as_os_str(), "--root".as_ref(), root.as_ref()];
    words.extend(["--log".as_ref(), log.as_os_str(), "--log-format".as_ref(), "json".as_ref()]);
    words.extend(runtime.args.iter().map(OsStr::new).chain(flag.map(OsStr::new)));
    words.extend(["run", "--detach", "--bundle"].map(OsStr::new));
    words.extend([bundle.as_os_str(), "--pid-file".as_ref(), pid_file.as_ref(), container_id.as_ref()]);
    let status = runtime::run(&words, namespace)
        .map_err(|e| fault(LaunchFaultKind::ProviderUnusable, &format!("starting {}", runtime.binary.display()), e))?;
    if !status.success() {
        return Err(fault(LaunchFaultKind::Runtime, &runtime.provider, complaint(&log, status)));
    }
    let text = fs::read_to_string(&pid_file).map_err(|e| fault(LaunchFaultKind::Runtime, "reading the pid file", e))?;
    text.trim().parse().map_err(|e| fault(LaunchFaultKind::Runtime, "reading the pid file", e))
}

/// The kernel kills us when the parent's thread is gone. If that was before we asked, there is another parent now.
pub fn die_with_parent(parent: i32) -> io::Result<()> {
    // SAFETY: takes no pointers.
    nix::errno::Errno::result(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
    if getppid().as_raw() == parent { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
}

/// What the runtime says went wrong: the last error of its log.
fn complaint(log: &Path, status: ExitStatus) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let message = |line: &str| -> Option<String> {
        let entry: serde_json::Value = serde_json::from_str(line).ok()?;
        Some(entry.get("msg")?.as_str()?.trim().to_owned())
    };
    let last = text.lines().rev().find(|line| !line.trim().is_empty());
    last.map(|line| message(line).unwrap_or_else(|| line.to_owned())).unwrap_or_else(|| format!("no reason, {status}"))
}

enum Existing {
    Kept,
    Refused,
}

fn make_private_dir(dir: &Path, existing: Existing) -> Result<(), LaunchFault> {
    let kept = matches!(existing, Existing::Kept);
    fs::DirBuilder::new()
        .recursive(kept)
        .mode(0o700)
        .create(dir)
        .map_err(|e| fault(LaunchFaultKind::Internal, &format!("making {}", dir.display()), e))
}

/// Tells ext4 that the directories below this one have nothing to do with each other. Otherwise all their files are made
/// in one group of blocks, and without a journal each new one there is looked for past all that were removed in the last
/// minutes: half the CPU time of a launch when hundreds have just ended. A hint: other file systems do not know it.
fn spread(dir: &Path) {
    let Ok(opened) = File::open(dir) else { return };
    let mut flags: libc::c_int = 0;
    // SAFETY: the descriptor is open, and both calls take a pointer to one int, whatever their numbers say.
    unsafe {
        if libc::ioctl(opened.as_raw_fd(), libc::FS_IOC_GETFLAGS, &raw mut flags) == 0 && flags & TOPDIR == 0 {
            flags |= TOPDIR;
            libc::ioctl(opened.as_raw_fd(), libc::FS_IOC_SETFLAGS, &raw const flags);
        }
    }
}

pub fn cut(message: &mut String, max: usize) {
    if message.len() > max {
        let end = (0..=max).rev().find(|at| message.is_char_boundary(*at)).unwrap_or(0);
        message.truncate(end);
        message.push('…');
    }
}

fn rootfs_fault(doing: &str, cause: impl std::fmt::Display) -> LaunchFault {
    fault(LaunchFaultKind::Rootfs, doing, cause)
}
