//! Where the private PostgreSQL lives: its programs, its account, its directories. `prepare` does all of it once, at
//! boot, before the loop, and may block for seconds; nothing here runs later. Invariant: when it succeeds, no process
//! of an earlier life is left, no lock file of one either, and the account can reach its directory.

use crate::limits::{CLUSTER_STOP_FAST, CLUSTER_STOP_KILL, CLUSTER_STOP_QUIT, UNIX_PATH_MAX};
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Gid, Pid, Uid, User};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, lchown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Whom to run as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    pub uid: u32,
    pub gid: u32,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Premises {
    /// Where `postgres` and `initdb` are.
    pub bin: PathBuf,
    /// `<data_dir>/pg`, 0700, of the account; the sockets are here too, unless its name is too long for one.
    pub root: PathBuf,
    pub socket_dir: PathBuf,
    /// The cluster, and where initdb makes it.
    pub data: PathBuf,
    pub data_new: PathBuf,
    /// What the programs say before they have a log of their own. Not inside `root`: the daemon writes it as itself.
    pub start_log: PathBuf,
    /// None: the daemon's own.
    pub account: Option<Account>,
    pub initialised: bool,
    #[serde(skip)]
    /// Held as long as this lives: two daemons on one directory would end each other's PostgreSQL.
    pub lock: Option<Flock<File>>,
}

impl Premises {
    /// All but the lock.
    pub fn without_lock(&self) -> Premises {
        Premises {
            bin: self.bin.clone(),
            root: self.root.clone(),
            socket_dir: self.socket_dir.clone(),
            data: self.data.clone(),
            data_new: self.data_new.clone(),
            start_log: self.start_log.clone(),
            account: self.account,
            initialised: self.initialised,
            lock: None,
        }
    }

    /// With the open file that has had its lock all the time.
    pub fn locked_by(self, file: File) -> Result<Premises, String> {
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock);
        let lock = lock.map_err(|(_, e)| format!("the lock of the private PostgreSQL was lost: {e}"))?;
        Ok(Premises { lock: Some(lock), ..self })
    }
}

/// Finds or makes everything the cluster needs under `data_dir`. An error is for the operator and says what to do.
pub fn prepare(data_dir: &Path) -> Result<Premises, String> {
    let data_dir = data_dir.canonicalize().map_err(|e| format!("data_dir {}: {e}", data_dir.display()))?;
    let lock = lock(&data_dir)?;
    let account = if Uid::effective().is_root() { Some(postgres_account()?) } else { None };
    let root = data_dir.join("pg");
    own_dir(&root, account)?;
    check_reach(&root, account)?;

    let data = root.join("data");
    let data_new = root.join("data.new");
    let made_by = version_of(&data)?;
    let bin = find_programs(made_by)?;
    let socket_dir = socket_dir(&root, account)?;

    end_residents(&root, &data)?;
    // Their owners are gone, whatever process has got their number since; PostgreSQL itself would believe the number.
    for stale in [data.join("postmaster.pid"), socket_dir.join(".s.PGSQL.5432.lock"), socket_dir.join(".s.PGSQL.5432")]
    {
        match fs::remove_file(&stale) {
            Ok(()) => log::info!("store: removed {} of an earlier PostgreSQL", stale.display()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(format!("{}: {e}", stale.display())),
        }
    }
    let start_log = data_dir.join("postgres-start.log");
    Ok(Premises {
        bin,
        root,
        socket_dir,
        data,
        data_new,
        start_log,
        account,
        initialised: made_by.is_some(),
        lock: Some(lock),
    })
}

fn lock(data_dir: &Path) -> Result<Flock<File>, String> {
    let path = data_dir.join("pg.lock");
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path)
        .map_err(|e| format!("{}: {e}", path.display()))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock)
        .map_err(|(_, _)| format!("another stdiod is using {} (it holds {})", data_dir.display(), path.display()))
}

// --- account and directories ----------------------------------------------------------------------------------------

/// PostgreSQL refuses to run as root.
fn postgres_account() -> Result<Account, String> {
    match User::from_name("postgres") {
        Ok(Some(user)) => Ok(Account { uid: user.uid.as_raw(), gid: user.gid.as_raw() }),
        Ok(None) => Err("PostgreSQL does not run as root, and there is no user `postgres` to run it as: install the \
                         package `postgresql`, or give a DATABASE_URL"
            .to_string()),
        Err(e) => Err(format!("looking up the user `postgres`: {e}")),
    }
}

/// Makes `dir` 0700 and the account's. One that is there already is taken only if it is the account's, and no symlink.
fn own_dir(dir: &Path, account: Option<Account>) -> Result<(), String> {
    let fail = |e: io::Error| format!("{}: {e}", dir.display());
    let Account { uid, gid } =
        account.unwrap_or(Account { uid: Uid::effective().as_raw(), gid: Gid::effective().as_raw() });
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => lchown(dir, Some(uid), Some(gid)).map_err(fail),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            let meta = fs::symlink_metadata(dir).map_err(fail)?;
            if !meta.is_dir() {
                return Err(format!("{} is not a directory: move it away", dir.display()));
            }
            if meta.uid() != uid {
                let owner = meta.uid();
                return Err(format!(
                    "{0} belongs to uid {owner}, but PostgreSQL will run as uid {uid}: chown -R {uid}:{gid} {0}",
                    dir.display()
                ));
            }
            fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).map_err(fail)
        }
        Err(e) => Err(fail(e)),
    }
}

/// Whether the account gets to `dir` at all; tried by a process of that account, because the kernel knows best.
fn check_reach(dir: &Path, account: Option<Account>) -> Result<(), String> {
    let Some(Account { uid, gid }) = account else { return Ok(()) };
    let can_enter = |dir: &Path| {
        let status = Command::new("/usr/bin/test").arg("-x").arg(dir).current_dir("/").uid(uid).gid(gid).status();
        status.map(|s| s.success()).map_err(|e| format!("/usr/bin/test: {e}"))
    };
    if can_enter(dir)? {
        return Ok(());
    }
    let mut from_the_top: Vec<&Path> = dir.ancestors().collect();
    from_the_top.reverse();
    for step in from_the_top {
        if !can_enter(step)? {
            return Err(format!(
                "uid {uid}, which PostgreSQL runs as, cannot enter {0} on the way to {1}: chmod o+x {0} (it will not be \
                 listable), or choose another data_dir",
                step.display(),
                dir.display()
            ));
        }
    }
    Err(format!("uid {uid}, which PostgreSQL runs as, cannot enter {}", dir.display()))
}

/// `root`, or a short stand-in when the name of a socket in it would not fit `sockaddr_un`.
fn socket_dir(root: &Path, account: Option<Account>) -> Result<PathBuf, String> {
    let fits = |dir: &Path| dir.join(".s.PGSQL.5432").as_os_str().len() <= UNIX_PATH_MAX;
    if fits(root) {
        return Ok(root.to_path_buf());
    }
    let key: String =
        Sha256::digest(root.as_os_str().as_encoded_bytes()).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let base = if Uid::effective().is_root() { "/run" } else { "/tmp" };
    let dir = Path::new(base).join(format!("stdiod-{key}"));
    own_dir(&dir, account)?;
    Ok(dir)
}

// --- programs -------------------------------------------------------------------------------------------------------

/// The major version that made the cluster, or none: there is no cluster yet.
fn version_of(data: &Path) -> Result<Option<u32>, String> {
    let path = data.join("PG_VERSION");
    match fs::read_to_string(&path) {
        Ok(text) => match text.trim().parse() {
            Ok(major) => Ok(Some(major)),
            Err(_) => Err(format!("{} holds no version: is this a PostgreSQL data directory?", path.display())),
        },
        Err(e) if e.kind() == io::ErrorKind::NotFound => match fs::read_dir(data).map(Iterator::count) {
            Ok(0) => Ok(None),
            Ok(_) => Err(format!(
                "{} is not a PostgreSQL data directory (no PG_VERSION) and not empty: move it away",
                data.display()
            )),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(format!("{}: {e}", data.display())),
        },
        Err(e) => Err(format!("{}: {e}", path.display())),
    }
}

/// The directory of `postgres` and `initdb`: of the version that made the cluster, or the newest.
fn find_programs(made_by: Option<u32>) -> Result<PathBuf, String> {
    let mut found = Vec::new();
    for look in [in_debians_place, in_path] {
        let more: Vec<(u32, PathBuf)> = look();
        if let Some((_, bin)) = more.iter().find(|(major, _)| made_by.is_none_or(|made_by| *major == made_by)) {
            return Ok(bin.clone());
        }
        found.extend(more);
    }
    let Some(made_by) = made_by else {
        return Err("PostgreSQL is not installed: install the package `postgresql`, or give a DATABASE_URL".into());
    };
    let others: Vec<String> = found.iter().map(|(major, _)| major.to_string()).collect();
    let others = if others.is_empty() { "none".to_string() } else { others.join(", ") };
    Err(format!(
        "the private database was made by PostgreSQL {made_by}, which is not installed ({others} is): install \
         postgresql-{made_by}, or convert it with pg_upgrade"
    ))
}

/// Newest first.
fn in_debians_place() -> Vec<(u32, PathBuf)> {
    let mut found: Vec<(u32, PathBuf)> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin"))))
        .filter(|(_, bin)| has_programs(bin))
        .collect();
    found.sort_by(|a, b| b.cmp(a));
    found
}

fn in_path() -> Vec<(u32, PathBuf)> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .filter(|bin| has_programs(bin))
        .filter_map(|bin| {
            let said = Command::new(bin.join("postgres")).arg("-V").output().ok()?;
            Some((major_of(&String::from_utf8_lossy(&said.stdout))?, bin))
        })
        .collect()
}

fn has_programs(bin: &Path) -> bool {
    bin.join("postgres").is_file() && bin.join("initdb").is_file()
}

/// From "postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)".
fn major_of(said: &str) -> Option<u32> {
    let version = said.split_once("(PostgreSQL) ")?.1;
    version.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

// --- what an earlier life left --------------------------------------------------------------------------------------

/// A PostgreSQL process of an earlier life.
struct Resident {
    pid: i32,
    parent: i32,
    cwd: PathBuf,
}

/// Ends every PostgreSQL process that lives in `root`: the server of a daemon that was killed may still be on its way
/// down. PostgreSQL's processes work in their data directory, so they are found by that and not by a number in a file.
fn end_residents(root: &Path, data: &Path) -> Result<(), String> {
    let steps = [
        (Signal::SIGINT, CLUSTER_STOP_FAST),
        (Signal::SIGQUIT, CLUSTER_STOP_QUIT),
        (Signal::SIGKILL, CLUSTER_STOP_KILL),
    ];
    for (signal, patience) in steps {
        let all = residents(root);
        for Resident { pid, parent, cwd } in &all {
            // What a torn initdb was making is thrown away: it need not end in order.
            let signal = if cwd.starts_with(data) { signal } else { Signal::SIGKILL };
            // Children follow their parent: a SIGINT of their own would mean something else to them.
            if !all.iter().any(|other| other.pid == *parent) || signal == Signal::SIGKILL {
                log::info!("store: {} to process {pid} of an earlier PostgreSQL", signal.as_str());
                // Gone already is as good.
                let _ = kill(Pid::from_raw(*pid), signal);
            }
        }
        if gone_within(root, patience) {
            return Ok(());
        }
    }
    let left: Vec<String> = residents(root).iter().map(|resident| resident.pid.to_string()).collect();
    Err(format!("an earlier PostgreSQL in {} does not end (process {})", root.display(), left.join(", ")))
}

fn gone_within(root: &Path, patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    while !residents(root).is_empty() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}

/// Every `postgres` and `initdb` whose working directory is in `root`. Zombies have none.
fn residents(root: &Path) -> Vec<Resident> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            let home = entry.path();
            let cwd = fs::read_link(home.join("cwd")).ok().filter(|cwd| cwd.starts_with(root))?;
            // After an upgrade of the package it reads "postgres (deleted)".
            let exe = fs::read_link(home.join("exe")).ok()?;
            let program = exe.file_name()?.to_str()?.split(' ').next()?;
            if program != "postgres" && program != "initdb" {
                return None;
            }
            let stat = fs::read_to_string(home.join("stat")).ok()?;
            // The command's name is in brackets and may hold anything; state and parent follow it.
            let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
            Some(Resident { pid, parent, cwd })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_major_version_is_read_from_what_postgres_says() {
        assert_eq!(major_of("postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)\n"), Some(15));
        assert_eq!(major_of("postgres (PostgreSQL) 17beta1\n"), Some(17));
        assert_eq!(major_of("something else"), None);
    }

    #[test]
    fn a_version_that_is_not_installed_is_named_with_the_remedy() {
        let e = find_programs(Some(9)).expect_err("nobody has that");
        assert!(e.contains("postgresql-9"), "{e}");
    }

    #[test]
    fn a_process_is_no_resident_just_because_it_works_there() {
        let here = std::env::current_dir().unwrap();
        assert!(residents(&here).iter().all(|resident| resident.pid != std::process::id() as i32));
    }
}
