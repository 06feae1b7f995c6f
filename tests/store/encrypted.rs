//! TLS to PostgreSQL: a server with a certificate, and what `sslmode` and `sslrootcert` make of it.

#[path = "../support/certificates.rs"]
mod certificates;

use crate::rig::*;
use certificates::Authority;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::time::Duration;
use stdiod::model::records::StoreOutcome;
use stdiod::store::thread::StoreEvent;

/// Copies a pair to where the server may read it, which insists on its own file and nobody else's eyes.
fn give_certificate(rig: &Rig, place: &Place, authority: &Authority, dns: &str) {
    let (cert, key) = authority.vouch_for_host("postgres", dns);
    for (from, name) in [(cert, "server.crt"), (key, "server.key")] {
        let to = place.pg().join("data").join(name);
        fs::copy(from, &to).unwrap();
        fs::set_permissions(&to, fs::Permissions::from_mode(0o600)).unwrap();
        if let Some(account) = rig.account {
            chown(&to, Some(account.uid), Some(account.gid)).unwrap();
        }
    }
}

/// A server beside the private one, because that has no TCP: its own data directory, a free port, TLS.
struct Encrypted {
    child: std::process::Child,
    port: u16,
}

impl Encrypted {
    /// On the files of the rig's cluster, which must have been stopped.
    fn start(
        place: &Place,
        account: Option<stdiod::store::premises::Account>,
        programs: &std::path::Path,
    ) -> Encrypted {
        use std::os::unix::process::CommandExt;
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        fs::write(
            place.pg().join("data/pg_hba.conf"),
            "local all all trust\nhostssl all all 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 reject\n",
        )
        .unwrap();
        let mut command = std::process::Command::new(programs.join("postgres"));
        command.arg("-D").arg(place.pg().join("data")).current_dir(place.pg());
        let sockets = format!("unix_socket_directories={}", place.pg().display());
        let port_is = format!("port={port}");
        for setting in [
            "ssl=on",
            "listen_addresses=127.0.0.1",
            "fsync=off",
            "wal_level=minimal",
            "max_wal_senders=0",
            &sockets,
            &port_is,
        ] {
            command.args(["-c", setting]);
        }
        if let Some(account) = account {
            command.uid(account.uid).gid(account.gid);
        }
        Encrypted { child: command.stderr(std::process::Stdio::null()).spawn().unwrap(), port }
    }

    fn url(&self, host: &str, tail: &str) -> String {
        format!("postgresql://tls:hunter2@{host}:{}/postgres?{tail}", self.port)
    }
}

impl Drop for Encrypted {
    fn drop(&mut self) {
        let pid = nix::unistd::Pid::from_raw(self.child.id().cast_signed());
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT);
        let _ = self.child.wait();
    }
}

/// What a store says first of a database: that it is open, or why not.
fn first_word(conninfo: &str, place: &Place) -> Result<Desk, String> {
    let mut desk = Desk::open_in(conninfo, &place.0);
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let event = desk.store.events().next();
        match event {
            Some(StoreEvent::Opened { .. }) => return Ok(desk),
            Some(StoreEvent::Lost { why }) => {
                desk.store.close();
                return Err(why);
            }
            Some(StoreEvent::StandingBy { .. }) | None => std::thread::sleep(Duration::from_millis(5)),
            Some(other) => panic!("{other:?}"),
        }
        assert!(std::time::Instant::now() < deadline, "nothing is said of {conninfo}");
    }
}

#[test]
fn a_database_must_be_who_it_is_asked_to_be() {
    let place = Place::new("encrypted");
    let (authority, stranger) = (Authority::new(), Authority::new());
    let mut rig = Rig::start(&place);
    let role =
        "CREATE ROLE tls LOGIN SUPERUSER; SET password_encryption = 'scram-sha-256'; ALTER ROLE tls PASSWORD 'hunter2'";
    rig.client().batch_execute(role).unwrap();
    give_certificate(&rig, &place, &authority, "localhost");
    let (account, programs) = (rig.account, programs());
    rig.stop();
    let server = Encrypted::start(&place, account, &programs);

    let (ca, other_ca) = (authority.cert(), stranger.cert());
    let full = format!("sslmode=verify-full&sslrootcert={ca}");
    let mut desk = first_word(&server.url("localhost", &full), &place).expect("everything is as it should be");
    let seq = desk.send(insert(&fresh("over-tls")));
    let deadline = std::time::Instant::now() + PATIENCE;
    let outcome = loop {
        assert!(std::time::Instant::now() < deadline);
        match desk.store.events().next() {
            Some(StoreEvent::Done { seq: of, outcome }) if of == seq => break outcome,
            Some(other) => panic!("{other:?}"),
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    assert_eq!(outcome, StoreOutcome::Committed);
    desk.store.close();

    for (what, host, tail) in [
        ("encrypted, whoever it is", "127.0.0.1", "sslmode=require".to_string()),
        (
            "its authority is known, and its name does not matter",
            "127.0.0.1",
            format!("sslmode=verify-ca&sslrootcert={ca}"),
        ),
        ("the same, in libpq's other words", "127.0.0.1", format!("sslmode=require&sslrootcert={ca}")),
    ] {
        let desk = first_word(&server.url(host, &tail), &place).unwrap_or_else(|why| panic!("{what}: {why}"));
        desk.store.close();
    }
    let foreign = format!("sslmode=verify-full&sslrootcert={other_ca}");
    let missing = "sslmode=verify-full&sslrootcert=/nonexistent.pem".to_string();
    for (what, host, tail, words) in [
        (
            "a name that the certificate does not have",
            "127.0.0.1",
            full.clone(),
            ["not valid for", "verify-full", "database_url"],
        ),
        (
            "an authority that does not know it",
            "localhost",
            foreign.clone(),
            ["invalid peer certificate", other_ca.as_str(), "sslrootcert"],
        ),
        (
            "the same without the name",
            "localhost",
            foreign.replace("full", "ca"),
            ["invalid peer certificate", other_ca.as_str(), "sslrootcert"],
        ),
        (
            "nobody of this system",
            "localhost",
            "sslmode=verify-full".to_string(),
            ["UnknownIssuer", "system", "sslrootcert"],
        ),
        ("no file", "localhost", missing, ["/nonexistent.pem", "sslrootcert", "database_url"]),
        ("clear text", "localhost", String::new(), ["pg_hba.conf", "no encryption", "reject"]),
    ] {
        let why = first_word(&server.url(host, &tail), &place).err().unwrap_or_else(|| panic!("{what}: it is open"));
        let clear = tail.is_empty();
        let said = |word: &&str| why.contains(*word);
        assert!(if clear { words.iter().any(said) } else { words.iter().all(said) }, "{what}: {why}");
        assert!(!why.contains("hunter2"), "{what}: {why}");
    }
}
