//! The user namespace of a native container: numbers of its own for its users, so that root inside is nobody outside.
//! What lasts (volumes, layers) is shown to it through idmapped mounts and keeps its owners on disk; what goes with the
//! instance may belong to the shifted ones. Never changes an owner on disk, and mounts only in the launcher's namespace.

use crate::limits::{CONTAINER_USER_RANGES, CONTAINER_USERS};
use crate::model::instance::{LaunchFault, LaunchFaultKind};
use crate::sandbox::container::network::CNI_DIRS;
use crate::sandbox::container::plan::{LaunchPlan, Layout, fault};
use crate::sandbox::container::rootfs::PrivateMounts;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork, pipe2};
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Far above what hosts give to people, daemons and rootless containers, and below what signed 32 bits can say.
const FIRST: u32 = 0x2000_0000;

/// What to do where something cannot be shown.
const REMEDY: &str = "keep it on ext4, xfs or btrfs, or let the server run under gvisor";

/// Empty on most hosts, and open to all: here a container's own root can find what is put up for it. The data directory
/// is closed to everybody but the host's root.
const STAGES: [&str; 3] = ["/mnt", "/media", "/srv"];

// From linux/mount.h; libc has none of it.
const OPEN_TREE_CLONE: u32 = 1;
const MOVE_MOUNT_F_EMPTY_PATH: u32 = 4;
const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;

/// A range of users, the namespace that stands for it, and the place where its container finds its files.
pub struct Shift {
    pub first: u32,
    namespace: File,
    stage: PathBuf,
}

impl Shift {
    /// Fails where the kernel or the file system of the data directory cannot do it.
    pub fn prepare(mounts: &PrivateMounts, plan: &LaunchPlan) -> Result<Shift, LaunchFault> {
        let failed = |e: io::Error| fault(LaunchFaultKind::Rootfs, "making a user namespace", e);
        let first = first_of(&plan.container_id);
        let namespace = make_namespace(first).map_err(failed)?;
        let stage = stage(mounts, plan).map_err(failed)?;
        let shift = Shift { first, namespace, stage };
        shift
            .clone_of(&plan.layout.data_dir, libc::MOUNT_ATTR_RDONLY)
            .map_err(|e| fault(LaunchFaultKind::Rootfs, "mounting the data directory for shifted users", e))?;
        Ok(shift)
    }

    /// Fails where an image's layers cannot be shown: overlays take idmapped ones since Linux 5.19. To be asked once, by
    /// a process that ends soon: what it mounts stays until then.
    pub fn try_layers(&self, mounts: &PrivateMounts, layout: &Layout) -> Result<(), LaunchFault> {
        let failed = |e: io::Error| fault(LaunchFaultKind::Rootfs, "showing a layer to shifted users", e);
        let images = layout.images_dir();
        let source = if images.is_dir() { &images } else { &layout.data_dir };
        let layer = self.show(mounts, source, "layer").map_err(failed)?;
        let (root, writable) = (self.place("rootfs").map_err(failed)?, self.place("writable").map_err(failed)?);
        mounts.image(&root, &writable, &[layer], Some(self))
    }

    /// The host's number for a user of the container, which has been checked to be one (`Account::check`).
    pub fn outside(&self, inside: u32) -> u32 {
        self.first + inside.min(CONTAINER_USERS - 1)
    }

    /// An empty directory that the container's root can reach.
    pub fn place(&self, name: &str) -> io::Result<PathBuf> {
        let place = self.stage.join(name);
        fs::DirBuilder::new().mode(0o755).create(&place)?;
        Ok(place)
    }

    /// `source` as it is, where the container's root can reach it.
    pub fn put_up(&self, _: &PrivateMounts, source: &Path, name: &str) -> io::Result<PathBuf> {
        let place = self.place(name)?;
        mount(Some(source), &place, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
        Ok(place)
    }

    /// `source` with every owner seen as the container's user of that number; what is written belongs on disk to the
    /// number that it has inside.
    pub fn show(&self, _: &PrivateMounts, source: &Path, name: &str) -> io::Result<PathBuf> {
        let place = self.place(name)?;
        let tree = self.clone_of(source, libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV);
        let tree = tree.map_err(|e| io::Error::new(e.kind(), format!("{}: {e}; {REMEDY}", source.display())))?;
        let to = CString::new(place.as_os_str().as_bytes())?;
        let (from, flags) = (tree.as_raw_fd(), MOVE_MOUNT_F_EMPTY_PATH);
        // SAFETY: both paths are live and end in NUL.
        let done =
            unsafe { libc::syscall(libc::SYS_move_mount, from, c"".as_ptr(), libc::AT_FDCWD, to.as_ptr(), flags) };
        Errno::result(done)?;
        Ok(place)
    }

    /// An idmapped copy of a mount, not yet put anywhere.
    fn clone_of(&self, source: &Path, attributes: u64) -> io::Result<OwnedFd> {
        let path = CString::new(source.as_os_str().as_bytes())?;
        let flags = OPEN_TREE_CLONE | libc::O_CLOEXEC.cast_unsigned();
        // SAFETY: the path is live and ends in NUL.
        let tree = Errno::result(unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags) })?;
        let tree = i32::try_from(tree).map_err(io::Error::other)?;
        // SAFETY: the kernel just gave it to us.
        let tree = unsafe { OwnedFd::from_raw_fd(tree) };
        let attr = libc::mount_attr {
            attr_set: MOUNT_ATTR_IDMAP | attributes,
            attr_clr: 0,
            propagation: 0,
            userns_fd: u64::try_from(self.namespace.as_raw_fd()).map_err(io::Error::other)?,
        };
        // SAFETY: both pointers are to live values of the size given.
        let done = unsafe {
            libc::syscall(
                libc::SYS_mount_setattr,
                tree.as_raw_fd(),
                c"".as_ptr(),
                libc::AT_EMPTY_PATH,
                &raw const attr,
                size_of::<libc::mount_attr>(),
            )
        };
        Errno::result(done)?;
        Ok(tree)
    }
}

/// Container ids count up over a life of the daemon, so that neighbours have different ranges.
fn first_of(container_id: &str) -> u32 {
    let number = container_id.rsplit('-').next().and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    FIRST + u32::try_from(number % u64::from(CONTAINER_USER_RANGES)).unwrap_or(0) * CONTAINER_USERS
}

/// A namespace needs a process to be made by; it is gone when this returns.
fn make_namespace(first: u32) -> io::Result<File> {
    let (mut told, tell) = pipe2(OFlag::O_CLOEXEC).map(|(r, w)| (File::from(r), File::from(w)))?;
    let (hold, release) = pipe2(OFlag::O_CLOEXEC).map(|(r, w)| (File::from(r), File::from(w)))?;
    // SAFETY: a launcher has one thread, and so has a probe that has not started its container yet.
    let child = match unsafe { fork() }? {
        ForkResult::Child => {
            drop((told, release));
            let made = unshare(CloneFlags::CLONE_NEWUSER).is_ok();
            let said = (&tell).write_all(&[u8::from(made)]);
            // Until the parent has what it needs, or is dead.
            let _ = (&hold).read(&mut [0]);
            // SAFETY: ends this process without anything that is the parent's being flushed or dropped.
            unsafe { libc::_exit(i32::from(said.is_err())) }
        }
        ForkResult::Parent { child } => child,
    };
    drop((tell, hold));
    let mut made = [0];
    let opened = told.read_exact(&mut made).and_then(|()| match made {
        [1] => {
            let map = format!("0 {first} {CONTAINER_USERS}\n");
            for file in ["uid_map", "gid_map"] {
                fs::write(format!("/proc/{child}/{file}"), &map)?;
            }
            File::open(format!("/proc/{child}/ns/user"))
        }
        _ => Err(io::Error::other("the kernel gives none")),
    });
    drop(release);
    waitpid(child, None)?;
    opened
}

/// A small tmpfs that only this mount namespace has.
fn stage(_: &PrivateMounts, plan: &LaunchPlan) -> io::Result<PathBuf> {
    let needed = needed(plan);
    let dir = STAGES.iter().find_map(|dir| free(Path::new(dir), &needed)).ok_or_else(|| {
        io::Error::other(format!("none of {} is there to put the container's root up in", STAGES.join(", ")))
    })?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("tmpfs"), &dir, Some("tmpfs"), flags, Some("mode=755,size=64k"))?;
    Ok(dir)
}

/// What must not be covered by a stage, because the launcher has yet to find it.
fn needed(plan: &LaunchPlan) -> Vec<PathBuf> {
    let LaunchPlan { layout, runtime, networking, .. } = plan;
    let mut needed = vec![layout.data_dir.clone(), layout.images_dir(), layout.data_dir.join("volumes")];
    needed.push(runtime.binary.clone());
    needed.extend(CNI_DIRS.map(PathBuf::from));
    needed.extend(networking.conf_dirs.iter().cloned());
    // Each of them may be a link, or lead to one: neither it nor what it means may go.
    let real: Vec<PathBuf> = needed.iter().filter_map(|path| fs::canonicalize(path).ok()).collect();
    needed.extend(real);
    needed
}

/// The real path of a directory that nothing needed is in.
fn free(dir: &Path, needed: &[PathBuf]) -> Option<PathBuf> {
    let real = fs::canonicalize(dir).ok().filter(|real| real.is_dir())?;
    let covers = |path: &PathBuf| path.starts_with(dir) || path.starts_with(&real);
    (!needed.iter().any(covers)).then_some(real)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::container::plan::{Networking, Runtime, RuntimeKind, Users};

    #[test]
    fn neighbours_have_different_users_and_none_is_the_hosts() {
        let (one, other) = (first_of("3f2a9c1b-7"), first_of("3f2a9c1b-8"));
        assert!(one >= FIRST && one.abs_diff(other) == CONTAINER_USERS);
        for id in ["probe-4000000000", "x", "3f2a9c1b-18446744073709551615", "a-99999999999999999999999"] {
            let first = first_of(id);
            assert!(first >= FIRST && i32::try_from(first + CONTAINER_USERS).is_ok(), "{id}");
        }
    }

    #[test]
    fn a_stage_covers_nothing_that_is_needed_whatever_links_lead_there() {
        let scratch = std::env::temp_dir().join(format!("stdiod-stage-{}", std::process::id()));
        let (real, link) = (scratch.join("var-mnt"), scratch.join("mnt"));
        fs::create_dir_all(real.join("bin")).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let scratch = fs::canonicalize(&scratch).unwrap();
        let real = scratch.join("var-mnt");
        assert_eq!(free(&link, &[scratch.join("elsewhere"), scratch.join("var-mnt-2")]), Some(real.clone()));
        for needed in [real.join("data"), link.join("bin/crun"), real.clone()] {
            assert_eq!(free(&link, std::slice::from_ref(&needed)), None, "{needed:?}");
        }
        assert_eq!(free(&scratch.join("missing"), &[]), None);
        fs::remove_dir_all(&scratch).unwrap();

        let runtime = Runtime {
            provider: "crun".into(),
            kind: RuntimeKind::Native,
            binary: "/mnt/bin/crun".into(),
            args: vec![],
            users: Users::Shifted,
            polls: false,
        };
        let networking = Networking { conf_dirs: vec!["/srv/cni".into()], ..Networking::default() };
        let layout = Layout { data_dir: "/media/stdiod".into(), mark: "x".into() };
        let plan = LaunchPlan {
            container_id: "x-1".into(),
            definition: crate::sandbox::host::probe::trivial(&["x"]),
            packages: crate::model::instance::Packages::AsKept,
            runtime,
            layout,
            networking,
            host_paths: Vec::new(),
            disk_reserve_bytes: 0,
            daemon_pid: 1,
            waits: false,
        };
        let needed = needed(&plan);
        assert!(STAGES.iter().all(|dir| free(Path::new(dir), &needed).is_none()), "{needed:?}");
    }
}
