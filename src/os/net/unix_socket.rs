//! Unix sockets of the daemon, from both ends: made so that nobody but their user, or a group, can ever open them, and
//! opened under names that are too long for an address. The kernel says who is at the other end. Blocks; not for the loop.

use crate::limits::{LISTEN_BACKLOG, UNIX_PATH_MAX};
use mio::net::UnixListener;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{self, AddressFamily, Backlog, SockFlag, SockType, UnixAddr, getsockopt};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::{Gid, Group};
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// 0600, or 0660 for the members of `group`. There is no moment in which it is open to more.
pub fn bind(path: &Path, group: Option<Gid>) -> io::Result<UnixListener> {
    // The data directory's lock says that no daemon of ours is there; a dead one's socket is in the way. Any other file
    // is somebody's, and refuses connections as well.
    if connect(path).is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused) {
        if !fs::symlink_metadata(path)?.file_type().is_socket() {
            let why = "there is a file that is no socket; remove it, or choose another path";
            return Err(io::Error::new(ErrorKind::AlreadyExists, why));
        }
        fs::remove_file(path)?;
    }
    let name = ShortName::of(path)?;
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    // Before it has a name: the file that `bind` makes takes the socket's own mode. The umask would do it as well, but for
    // every thread of the process.
    fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
    socket::bind(socket.as_raw_fd(), &UnixAddr::new(&name.path)?)?;
    socket::listen(&socket, Backlog::new(LISTEN_BACKLOG)?)?;
    if let Some(group) = group {
        chown(path, None, Some(group.as_raw()))?;
        fs::set_permissions(path, Permissions::from_mode(0o660))?;
    }
    Ok(UnixListener::from_std(socket.into()))
}

pub fn connect(path: &Path) -> io::Result<UnixStream> {
    UnixStream::connect(ShortName::of(path)?.path)
}

/// Of the other end, as the kernel knows it; of a listener, that is whoever made it.
pub fn peer_uid(socket: &impl AsFd) -> Option<u32> {
    getsockopt(socket, PeerCredentials).ok().map(|peer| peer.uid())
}

/// Root, or the user this process runs as: they can read every token here.
pub fn is_root_or_us(uid: u32) -> bool {
    uid == 0 || uid == nix::unistd::geteuid().as_raw()
}

/// By name or by number.
pub fn group(name: &str) -> Result<Gid, String> {
    let found = match name.parse() {
        Ok(number) => Group::from_gid(Gid::from_raw(number)),
        Err(_) => Group::from_name(name),
    };
    match found {
        Ok(Some(group)) => Ok(group.gid),
        Ok(None) => Err(format!("there is no group `{name}` here; make it (groupadd {name}), or name another")),
        Err(e) => Err(format!("cannot look for the group `{name}`: {e}")),
    }
}

/// A path that fits an address. A long one is shortened through its directory, which must stay open until it was used.
struct ShortName {
    path: PathBuf,
    _directory: Option<File>,
}

impl ShortName {
    fn of(path: &Path) -> io::Result<ShortName> {
        match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) if path.as_os_str().len() > UNIX_PATH_MAX => {
                let directory = File::open(parent)?;
                let path = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name);
                Ok(ShortName { path, _directory: Some(directory) })
            }
            _ => Ok(ShortName { path: path.to_path_buf(), _directory: None }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch() -> PathBuf {
        nix::unistd::mkdtemp("/tmp/sd-unix-XXXXXX").expect("a directory in /tmp")
    }

    #[test]
    fn a_path_too_long_for_an_address_is_bound_and_reached_all_the_same() {
        let scratch = scratch();
        let long = scratch.join("d".repeat(120));
        fs::create_dir(&long).unwrap();
        for _ in 0..2 {
            // The second time, a dead daemon's socket is in the way.
            let socket = bind(&long.join("s"), None).unwrap();
            assert_eq!(fs::symlink_metadata(long.join("s")).unwrap().permissions().mode() & 0o777, 0o600);
            let stream = connect(&long.join("s")).unwrap();
            assert!(peer_uid(&stream).is_some_and(is_root_or_us));
            drop(socket);
        }
        fs::remove_dir_all(scratch).unwrap();
    }

    #[test]
    fn a_socket_that_is_in_use_is_left_alone() {
        let scratch = scratch();
        let path = scratch.join("s");
        let _first = bind(&path, None).unwrap();
        assert_eq!(bind(&path, None).unwrap_err().kind(), ErrorKind::AddrInUse);
        fs::remove_dir_all(scratch).unwrap();
    }

    #[test]
    fn groups_are_known_by_name_and_by_number() {
        assert_eq!(group("root"), Ok(Gid::from_raw(0)));
        assert_eq!(group("0"), Ok(Gid::from_raw(0)));
        assert!(group("no-such-group").unwrap_err().contains("groupadd"));
    }
}
