//! The file system of one instance: a view of the host's programs, or the layers of an image, with the definition's
//! files and volumes in it. Mounts only inside the launcher's private mount namespace, which it checks for; so the
//! kernel takes every mount away with the last process that sees it, and none can be left behind.

use crate::limits::{HOST_FILE_MAX, PASSWD_MAX};
use crate::model::definition::{COVERED, Definition, HOST_DIRS, HOST_LINKS};
use crate::model::instance::{LaunchFault, LaunchFaultKind};
use crate::sandbox::container::account::{self, Account, Unlisted};
use crate::sandbox::container::plan::{LaunchPlan, fault};
use crate::sandbox::container::spec;
use crate::sandbox::container::users::Shift;
use crate::sandbox::container::volume_image;
use crate::sandbox::container::within::{Within, normal_path, slug};
use crate::sandbox::image::StoredImage;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::Mode;
use oci_spec::image::Config as ImageConfig;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Small files, copied.
const HOST_FILES: [&str; 9] = [
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/localtime",
    "/etc/timezone",
    "/etc/mime.types",
    "/etc/services",
    "/etc/protocols",
    "/etc/ssl/openssl.cnf",
    "/etc/os-release",
];
/// The files of a definition and the copies above fit several times.
const HOST_ROOT_OPTIONS: &str = "mode=755,size=16m,nr_inodes=16k";

const PASSWD: &str = "root:x:0:0:root:/tmp:/usr/sbin/nologin\nnobody:x:65534:65534:nobody:/tmp:/usr/sbin/nologin\n";
const GROUP: &str = "root:x:0:\nnogroup:x:65534:\n";

/// Proof that mounts made from here on are seen by nobody else.
pub struct PrivateMounts(());

impl PrivateMounts {
    pub fn enter() -> nix::Result<PrivateMounts> {
        unshare(CloneFlags::CLONE_NEWNS)?;
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?;
        Ok(PrivateMounts(()))
    }

    /// Hides a directory behind an empty one, into which a runtime may write what nobody reads.
    pub fn cover(&self, path: &Path) -> nix::Result<()> {
        mount(Some("tmpfs"), path, Some("tmpfs"), MsFlags::empty(), Some("mode=755,size=64k"))
    }

    /// Makes the host's view below `root`, an existing directory. `more`: what the configuration adds to it.
    pub fn host(&self, root: &Path, more: &[PathBuf]) -> Result<(), LaunchFault> {
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some("tmpfs"), root, Some("tmpfs"), flags, Some(HOST_ROOT_OPTIONS))
            .map_err(|e| rootfs_fault("mounting a tmpfs", e))?;
        // An outer one first: an inner one of its own device is then put where the outer one shows nothing.
        let mut shown: Vec<&Path> = HOST_LINKS.iter().chain(&HOST_DIRS).map(Path::new).collect();
        shown.extend(more.iter().map(PathBuf::as_path));
        shown.sort();
        shown.dedup();
        for dir in shown {
            self.show_dir(root, dir).map_err(|e| rootfs_fault(&format!("showing the host's {}", dir.display()), e))?;
        }
        let within = Within::open(root).map_err(|e| rootfs_fault("opening the root", e))?;
        for file in HOST_FILES {
            let Ok(meta) = fs::metadata(file) else { continue };
            // A copy is open to all: only of what is.
            if meta.is_file() && meta.len() <= HOST_FILE_MAX && meta.mode() & 0o004 != 0 {
                let content = fs::read(file).map_err(|e| rootfs_fault(&format!("reading {file}"), e))?;
                within
                    .write_file(Path::new(file), &content, 0o444)
                    .map_err(|e| rootfs_fault(&format!("copying {file}"), e))?;
            }
        }
        Ok(())
    }

    fn show_dir(&self, root: &Path, dir: &Path) -> io::Result<()> {
        let target = root.join(dir.strip_prefix("/").unwrap_or(dir));
        let Ok(meta) = fs::symlink_metadata(dir) else { return Ok(()) };
        if meta.is_symlink() {
            return std::os::unix::fs::symlink(fs::read_link(dir)?, target);
        }
        if meta.is_dir() {
            // It may be there: inside one that is shown already.
            if !target.is_dir() {
                fs::DirBuilder::new().recursive(true).mode(0o755).create(&target)?;
            }
            bind_read_only(dir, &target)?;
        }
        Ok(())
    }

    /// Puts the layers of an image under a fresh writable one. `writable` is an empty directory of this instance.
    /// With shifted users it is theirs, and the layers must be shown to them already.
    pub fn image(
        &self,
        root: &Path,
        writable: &Path,
        layers: &[PathBuf],
        shift: Option<&Shift>,
    ) -> Result<(), LaunchFault> {
        let (upper, work, empty) = (writable.join("upper"), writable.join("work"), writable.join("empty"));
        for dir in [&upper, &work, &empty] {
            fs::DirBuilder::new().mode(0o755).create(dir).map_err(|e| rootfs_fault("making the writable layer", e))?;
        }
        if let Some(shift) = shift {
            let owner = Some(shift.outside(0));
            std::os::unix::fs::chown(&upper, owner, owner).map_err(|e| rootfs_fault("giving the root away", e))?;
        }
        // The options of a mount end at a page. By their descriptors 128 layers fit, wherever they lie and whatever
        // their path is made of.
        let open_dir = |dir: &Path| -> Result<OwnedFd, LaunchFault> {
            let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
            open(dir, flags, Mode::empty()).map_err(|e| rootfs_fault(&format!("opening {}", dir.display()), e))
        };
        let by_fd = |fd: &OwnedFd| format!("/proc/self/fd/{}", fd.as_raw_fd());
        // An overlay lists its uppermost layer first, a manifest its lowest.
        let lower: Vec<OwnedFd> = layers.iter().rev().map(|l| open_dir(l)).collect::<Result<_, _>>()?;
        let (upper, work, empty) = (open_dir(&upper)?, open_dir(&work)?, open_dir(&empty)?);
        let lower: Vec<String> = if lower.is_empty() { vec![by_fd(&empty)] } else { lower.iter().map(by_fd).collect() };
        // volatile: the upper layer does not outlive the instance, so no fsync of it is worth waiting for.
        let options =
            format!("lowerdir={},upperdir={},workdir={},volatile", lower.join(":"), by_fd(&upper), by_fd(&work));
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some("overlay"), root, Some("overlay"), flags, Some(options.as_str()))
            .map_err(|e| rootfs_fault("mounting the overlay of the image's layers", e))
    }
}

/// Only `source` itself: what else the host has mounted below it is not shown.
fn bind_read_only(source: &Path, target: &Path) -> nix::Result<()> {
    let none = None::<&str>;
    mount(Some(source), target, none, MsFlags::MS_BIND, none)?;
    match set_read_only(target) {
        // Before Linux 5.12: a remount forgets what else the host has forbidden there, such as noexec.
        Err(Errno::ENOSYS) => {
            let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY | MsFlags::MS_NOSUID;
            mount(none, target, none, flags | MsFlags::MS_NODEV, none)
        }
        done => done,
    }
}

fn set_read_only(target: &Path) -> nix::Result<()> {
    let path = CString::new(target.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)?;
    let attr = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    let size = size_of::<libc::mount_attr>();
    // SAFETY: both pointers are to live values of the size given.
    let done =
        unsafe { libc::syscall(libc::SYS_mount_setattr, libc::AT_FDCWD, path.as_ptr(), 0, &raw const attr, size) };
    Errno::result(done).map(drop)
}

/// Completes a mounted root: who runs there, `/etc`, mount points, files, the working directory.
/// `names`: its network's lines for `/etc/hosts`, and its `/etc/resolv.conf`.
pub fn furnish(
    root: &Path,
    def: &Definition,
    image: Option<&StoredImage>,
    names: (&str, &str),
    shift: Option<&Shift>,
) -> Result<Account, LaunchFault> {
    let within = Within::open(root).map_err(|e| rootfs_fault("opening the root", e))?;
    let config = image.map(|i| &i.config);
    let account = match image {
        Some(_) => account_of_image(&within, def, config)?,
        None => account_of_host(&within, def)?,
    };
    account.check(&def.source)?;
    let outside = |id: u32| shift.map_or(id, |shift| shift.outside(id));
    let put = |path: &str, text: &str| write(&within, Path::new(path), text.as_bytes());
    // With an address of its own, the server's name means that one.
    let (hosts, resolv_conf) = names;
    let own = if hosts.is_empty() { format!(" {}", def.name) } else { String::new() };
    put("/etc/hosts", &format!("127.0.0.1\tlocalhost{own}\n::1\tlocalhost\n{hosts}"))?;
    put("/etc/hostname", &format!("{}\n", def.name))?;
    put("/etc/resolv.conf", resolv_conf)?;
    for dir in COVERED.iter().copied().chain(def.volumes.iter().map(String::as_str)) {
        within.make_dirs(Path::new(dir)).map_err(|e| rootfs_fault(&format!("making the mount point {dir}"), e))?;
    }
    for (path, text) in &def.files {
        write(&within, &inside(path, def)?, text.as_bytes())?;
    }
    let workdir = spec::workdir(def, config);
    within
        .make_dirs_owned(&workdir, outside(account.uid), outside(account.gid))
        .map_err(|e| rootfs_fault(&format!("making the working directory {}", workdir.display()), e))?;
    Ok(account)
}

fn account_of_image(within: &Within, def: &Definition, config: Option<&ImageConfig>) -> Result<Account, LaunchFault> {
    let text = |path: &str| within.read_to_string(Path::new(path), PASSWD_MAX).unwrap_or_default();
    account::resolve(spec::user(def, config), &text("/etc/passwd"), &text("/etc/group"), Unlisted::Root)
}

/// The host's own users stay out of its view; whoever runs is known there all the same, because `getpwuid` failing is
/// more than many programs can take.
fn account_of_host(within: &Within, def: &Definition) -> Result<Account, LaunchFault> {
    let mut account = account::resolve(def.user.as_deref(), PASSWD, GROUP, Unlisted::Own)?;
    let (mut passwd, mut group) = (PASSWD.to_owned(), GROUP.to_owned());
    if account.home.is_none() {
        passwd.push_str(&format!("user:x:{}:{}:user:/tmp:/usr/sbin/nologin\n", account.uid, account.gid));
        group.push_str(&format!("user:x:{}:\n", account.gid));
        account.home = Some("/tmp".to_owned());
    }
    write(within, Path::new("/etc/passwd"), passwd.as_bytes())?;
    write(within, Path::new("/etc/group"), group.as_bytes())?;
    write(within, Path::new("/etc/nsswitch.conf"), b"passwd: files\ngroup: files\nhosts: files dns\n")?;
    for dir in ["/var/empty", "/run", "/home"] {
        within.make_dirs(Path::new(dir)).map_err(|e| rootfs_fault(&format!("making {dir}"), e))?;
    }
    Ok(account)
}

/// A path of the definition's `files`, unless what is written there would never be seen.
fn inside(path: &str, def: &Definition) -> Result<PathBuf, LaunchFault> {
    let normal = normal_path(path)
        .ok_or_else(|| rootfs_fault(&format!("file {path:?}"), "the path must be absolute and without `..`"))?;
    let covers = COVERED.iter().map(|c| (*c).to_owned()).chain(def.volumes.iter().cloned());
    for cover in covers.filter_map(|c| normal_path(&c)) {
        if normal.starts_with(&cover) {
            return Err(rootfs_fault(&format!("file {path:?}"), format!("hidden by the mount at {}", cover.display())));
        }
    }
    Ok(normal)
}

fn write(within: &Within, path: &Path, content: &[u8]) -> Result<(), LaunchFault> {
    within.write_file(path, content, 0o444).map_err(|e| rootfs_fault(&format!("writing {}", path.display()), e))
}

/// The directories of a definition's volumes, made if they are missing: where they go in the container, where they
/// are in this mount namespace. Outer ones first, so that one inside another is not hidden by it.
pub fn volumes(
    mounts: &PrivateMounts,
    plan: &LaunchPlan,
    bundle: &Path,
    account: &Account,
) -> Result<Vec<(PathBuf, PathBuf)>, LaunchFault> {
    let def = &plan.definition;
    if def.volumes.is_empty() {
        return Ok(Vec::new());
    }
    let (bytes, point) = (def.resource_limits.volume_bytes(), bundle.join("volumes"));
    let all = volume_image::mount_for_launch(mounts, &plan.layout, &def.name, bytes, &point)
        .map_err(|e| rootfs_fault("the volumes", e))?;
    let mut found = Vec::new();
    for volume in &def.volumes {
        let destination = normal_path(volume)
            .ok_or_else(|| rootfs_fault(&format!("volume {volume:?}"), "the path must be absolute and without `..`"))?;
        let source = all.volume(&slug(&destination));
        own(&source, account).map_err(|e| rootfs_fault(&format!("volume {volume:?}"), e))?;
        found.push((destination, source));
    }
    found.sort();
    found.dedup();
    Ok(found)
}

fn own(dir: &Path, account: &Account) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let meta = fs::symlink_metadata(dir)?;
    if !meta.is_dir() {
        return Err(io::Error::other(format!("{} is not a directory", dir.display())));
    }
    if (meta.uid(), meta.gid()) != (account.uid, account.gid) {
        std::os::unix::fs::lchown(dir, Some(account.uid), Some(account.gid))?;
    }
    Ok(())
}

fn rootfs_fault(doing: &str, cause: impl std::fmt::Display) -> LaunchFault {
    fault(LaunchFaultKind::Rootfs, doing, cause)
}
