//! A PostgreSQL that belongs to the test, so that the test can stop it under a running daemon. Unix socket only, in a
//! directory of its own; fsync is off, because no test pulls the plug.

use super::{SOON, eventually, short_temporary_directory};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

pub struct Postgres {
    programs: PathBuf,
    home: PathBuf,
    account: (u32, u32),
}

impl Postgres {
    pub fn start() -> Postgres {
        let user = nix::unistd::User::from_name("postgres").expect("the user table").expect("a user `postgres`");
        let account = (user.uid.as_raw(), user.gid.as_raw());
        let home = short_temporary_directory();
        chown(&home, Some(account.0), Some(account.1)).expect("as root");
        let postgres = Postgres { programs: programs(), home, account };
        postgres.run("initdb", &["--auth=trust", "--no-sync", "--username=postgres", "-D"], "data");
        postgres.resume();
        postgres
    }

    pub fn url(&self) -> String {
        format!("postgresql:///postgres?user=postgres&host={}", self.home.display())
    }

    pub fn stop(&self) {
        self.run("pg_ctl", &["stop", "-w", "-m", "fast", "-D"], "data");
    }

    pub fn resume(&self) {
        let settings = format!("-c listen_addresses= -c unix_socket_directories={} -c fsync=off", self.home.display());
        let log = self.home.join("log");
        let log = log.to_str().expect("our own name");
        self.run("pg_ctl", &["start", "-w", "-o", &settings, "-l", log, "-D"], "data");
    }

    pub fn client(&self) -> postgres::Client {
        postgres::Client::connect(&self.url(), postgres::NoTls).expect("PostgreSQL answers")
    }

    /// Waits until a query gives true.
    pub fn eventually_true(&self, query: &str) -> bool {
        self.eventually_true_within(SOON, query)
    }

    pub fn eventually_true_within(&self, patience: Duration, query: &str) -> bool {
        let mut client = self.client();
        eventually(patience, || {
            client.query_one(query, &[]).expect("a valid query").get::<_, Option<bool>>(0) == Some(true)
        })
    }

    fn run(&self, program: &str, arguments: &[&str], directory: &str) {
        let mut command = Command::new(self.programs.join(program));
        command.args(arguments).arg(self.home.join(directory)).uid(self.account.0).gid(self.account.1);
        // pg_ctl leaves the server running with its own stdio: a pipe would never end.
        let status = command.current_dir(&self.home).stdout(std::process::Stdio::null()).status();
        assert!(status.as_ref().is_ok_and(|status| status.success()), "{program} {arguments:?}: {status:?}");
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if self.home.join("data/postmaster.pid").exists() {
            self.run("pg_ctl", &["stop", "-w", "-m", "immediate", "-D"], "data");
        }
        let _ = std::fs::remove_dir_all(&self.home);
    }
}

/// The newest of the versions that are installed.
pub fn programs() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL of Debian: scripts/setup installs it");
    let newest = versions.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).max();
    Path::new("/usr/lib/postgresql").join(newest.expect("a version").to_string()).join("bin")
}
