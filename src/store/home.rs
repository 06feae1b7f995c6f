//! Which daemon this is, so that another one on the same database can tell: the id of its data directory, where that is, and
//! the life of the kernel it runs under. Owns the file `home.id`. Invariant: whoever finds its own `Home` in the database,
//! and holds the lock of its data directory, is looking at an earlier life of itself.

use nix::fcntl::{Flock, FlockArg};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// In the data directory, and held while a daemon works on it.
pub const LOCK_FILE: &str = "lock";
const ID_FILE: &str = "home.id";
/// Of what may be read of `home.id`, which anybody may have put there.
const ID_BYTES_MAX: u64 = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    pub id: Uuid,
    /// For people.
    pub host: String,
    pub data_dir: PathBuf,
    /// Another one after each start of the machine: a data directory may be copied to another, with its id.
    pub kernel: String,
}

impl Home {
    /// Makes the id if there is none. The caller holds the directory's lock.
    pub fn of(data_dir: &Path) -> io::Result<Home> {
        let data_dir = data_dir.canonicalize()?;
        let id = match read_id(&data_dir)? {
            Some(id) => id,
            None => make_id(&data_dir)?,
        };
        let host = nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let kernel = fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_string();
        Ok(Home { id, host, data_dir, kernel })
    }

    pub fn is_earlier_life_of(&self, this: &Home) -> bool {
        self.id == this.id && self.kernel == this.kernel
    }

    /// Whether this daemon, another one, can be looked at from here at all; and if so, its lock, once it does not run.
    pub fn look_at(&self, this: &Home) -> Neighbour {
        if self.id == this.id || self.kernel != this.kernel || read_id(&self.data_dir).ok().flatten() != Some(self.id) {
            return Neighbour::Elsewhere;
        }
        let file = OpenOptions::new().write(true).open(self.data_dir.join(LOCK_FILE));
        match file.map(|file| Flock::lock(file, FlockArg::LockExclusiveNonblock)) {
            Ok(Ok(lock)) => Neighbour::Gone(Leftovers { data_dir: self.data_dir.clone(), _lock: lock }),
            Ok(Err(_)) => Neighbour::Runs,
            Err(_) => Neighbour::Elsewhere,
        }
    }
}

/// What is known of a daemon of another data directory.
pub enum Neighbour {
    /// Of another machine, or its directory is not there any more.
    Elsewhere,
    Runs,
    Gone(Leftovers),
}

/// The data directory of a daemon of this machine that has ended, perhaps without clearing its sandboxes away. As long as
/// this is held it does not start again.
#[derive(Debug)]
pub struct Leftovers {
    pub data_dir: PathBuf,
    _lock: Flock<File>,
}

fn read_id(data_dir: &Path) -> io::Result<Option<Uuid>> {
    let mut text = String::new();
    match File::open(data_dir.join(ID_FILE)) {
        Ok(file) => file.take(ID_BYTES_MAX).read_to_string(&mut text)?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    // One that was torn off is made anew.
    Ok(Uuid::try_parse(text.trim()).ok())
}

fn make_id(data_dir: &Path) -> io::Result<Uuid> {
    let (id, path) = (Uuid::new_v4(), data_dir.join(ID_FILE));
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(path)?;
    writeln!(file, "{id}").and_then(|()| file.sync_all())?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("stdiod-home-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn a_data_directory_keeps_its_id_and_a_torn_one_is_made_anew() {
        let dir = directory("id");
        let first = Home::of(&dir).unwrap();
        assert_eq!(Home::of(&dir).unwrap(), first);
        fs::write(dir.join(ID_FILE), "torn").unwrap();
        assert_ne!(Home::of(&dir).unwrap().id, first.id);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_neighbour_is_gone_only_when_its_lock_is_free() {
        let (ours, theirs) = (directory("ours"), directory("theirs"));
        let (this, other) = (Home::of(&ours).unwrap(), Home::of(&theirs).unwrap());
        let path = theirs.join(LOCK_FILE);
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(path).unwrap();
        let held = Flock::lock(file, FlockArg::LockExclusiveNonblock).unwrap();
        assert!(matches!(other.look_at(&this), Neighbour::Runs));
        drop(held);
        assert!(matches!(other.look_at(&this), Neighbour::Gone(left) if left.data_dir == other.data_dir));
        let rebooted = Home { kernel: "another".to_string(), ..other.clone() };
        assert!(matches!(rebooted.look_at(&this), Neighbour::Elsewhere));
        fs::remove_dir_all(&theirs).unwrap();
        assert!(matches!(other.look_at(&this), Neighbour::Elsewhere));
        fs::remove_dir_all(ours).unwrap();
    }
}
