//! Environments of hosted servers in a real PostgreSQL: sealed, sealed at the start if they were not, and readable through a
//! rotation of the key at whatever moment it is cut off.

use crate::rig::*;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use stdiod::model::external::{ProjectId, Secret, SecretValue, StoredSecret};
use stdiod::model::fault::Code;
use stdiod::model::records::{Snapshot, StoreOp, StoreOutcome, StoredServer};

/// A new daemon on the same database.
fn reopened(rig: &mut Rig, desk: Desk) -> (Desk, Snapshot) {
    desk.store.close();
    let mut desk = Desk::open(&rig.cluster.conninfo());
    let snapshot = desk.opened(rig).expect("a new daemon gets the snapshot");
    (desk, snapshot)
}

fn secret() -> StoredSecret {
    StoredSecret {
        project: ProjectId::new("p-1").unwrap(),
        name: "TOKEN".to_string(),
        value: SecretValue::Open(Secret::new("hunter2 of a project")),
        created_unix_ms: 1_763_280_000_001,
        updated_unix_ms: 1_763_280_000_002,
    }
}

fn all_but_the_environment(server: &StoredServer) -> StoredServer {
    let mut server = server.clone();
    server.definition.environment.values_mut().for_each(String::clear);
    server
}

/// The whole database as a backup has it.
fn dump(rig: &Rig) -> String {
    let mut command = Command::new("pg_dump");
    let directory = fs::read_dir("/usr/lib/postgresql").unwrap().flatten().next().map(|entry| entry.path());
    if let Some(path) = directory.map(|path| path.join("bin/pg_dump")).filter(|path| path.exists()) {
        command = Command::new(path);
    }
    let out = command.arg("--dbname").arg(rig.cluster.conninfo()).output().expect("pg_dump must be installed");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// Whether any file below has these bytes.
fn is_in_files(below: &Path, bytes: &[u8]) -> Option<String> {
    fs::read_dir(below).unwrap().flatten().find_map(|entry| match entry.file_type().unwrap() {
        kind if kind.is_dir() => is_in_files(&entry.path(), bytes),
        kind if kind.is_file() => {
            let text = fs::read(entry.path()).unwrap_or_default();
            text.windows(bytes.len()).any(|window| window == bytes).then(|| entry.path().display().to_string())
        }
        _ => None,
    })
}

#[test]
fn no_value_of_an_environment_stands_in_a_backup_or_in_a_file() {
    let place = Place::new("sealed");
    let mut rig = Rig::start(&place);
    let mut desk = Desk::open(&rig.cluster.conninfo());
    desk.opened(&mut rig);
    let mut server = fresh("notes");
    assert_eq!(desk.ask(&mut rig, insert(&server)), StoreOutcome::Committed);
    server.definition.environment.insert("OTHER".to_string(), "hunter2 again".to_string());
    let definition = std::sync::Arc::new(server.definition.clone());
    let update = StoreOp::UpdateServer { id: server.id, definition, desired_up: true };
    assert_eq!(desk.ask(&mut rig, update), StoreOutcome::Committed);
    let mut bare = fresh("bare");
    bare.definition.environment = BTreeMap::new();
    assert_eq!(desk.ask(&mut rig, insert(&bare)), StoreOutcome::Committed);
    let backup = dump(&rig);
    assert!(backup.contains("API_KEY") && backup.contains("sealed1:") && !backup.contains("hunter2"));
    rig.client().batch_execute("CHECKPOINT").unwrap();
    assert_eq!(is_in_files(&place.0, b"hunter2"), None);
    let (desk, snapshot) = reopened(&mut rig, desk);
    assert_eq!(snapshot.unfit, []);
    for wanted in [server, bare] {
        assert!(snapshot.servers.contains(&wanted), "{wanted:?}");
    }
    desk.store.close();
    rig.stop();
}

#[test]
fn what_an_earlier_version_wrote_in_clear_is_sealed_at_the_start() {
    let place = Place::new("unsealed");
    let mut rig = Rig::start(&place);
    let mut desk = Desk::open(&rig.cluster.conninfo());
    desk.opened(&mut rig);
    let server = fresh("notes");
    desk.ask(&mut rig, insert(&server));
    desk.store.close();
    let clear = serde_json::to_string(&server.definition).unwrap();
    let as_it_was = "UPDATE kb.agent_workspaces SET environment_sealed = NULL, definition = $1::text::jsonb";
    rig.client().execute(as_it_was, &[&clear]).unwrap();
    assert!(dump(&rig).contains("hunter2"));
    let mut desk = Desk::open(&rig.cluster.conninfo());
    let snapshot = desk.opened(&mut rig).unwrap();
    assert_eq!((snapshot.servers, snapshot.unfit), (vec![server], vec![]));
    assert!(!dump(&rig).contains("hunter2"));
    rig.client().batch_execute("CHECKPOINT").unwrap();
    assert_eq!(is_in_files(&place.pg().join("data/base"), b"hunter2"), None, "nor in what the rows were before");
    desk.store.close();
    rig.stop();
}

#[test]
fn a_server_whose_key_is_lost_or_another_is_shown_unfit_and_the_rest_run() {
    let place = Place::new("lost-key");
    let mut rig = Rig::start(&place);
    let mut desk = Desk::open(&rig.cluster.conninfo());
    desk.opened(&mut rig);
    let (server, mut bare) = (fresh("notes"), fresh("bare"));
    bare.definition.environment.clear();
    for op in [insert(&server), insert(&bare)] {
        assert_eq!(desk.ask(&mut rig, op), StoreOutcome::Committed);
    }
    let (key, kept) = (place.0.join("secret.key"), place.0.join("kept.key"));
    fs::rename(&key, &kept).unwrap();
    let (mut desk, snapshot) = reopened(&mut rig, desk);
    assert_eq!(snapshot.servers, [bare.clone()]);
    let unfit = &snapshot.unfit[0];
    assert_eq!(unfit.server, all_but_the_environment(&server), "the names are shown");
    assert_eq!(unfit.why.code, Code::SecretMissing);
    assert!(unfit.why.message.contains("secret.key"), "{}", unfit.why.message);
    assert!(
        matches!(desk.ask(&mut rig, StoreOp::RotateKey), StoreOutcome::Rejected(why) if why.contains("secret.key"))
    );
    assert!(!key.exists(), "nothing is put in its place");

    // Another key: it is named, and opens nothing.
    let other = Place::new("other-key");
    drop(stdiod::sealing::Sealer::from_file(&other.0.join("key"), stdiod::sealing::Missing::Create).unwrap());
    fs::copy(other.0.join("key"), &key).unwrap();
    let (desk, snapshot) = reopened(&mut rig, desk);
    assert_eq!((snapshot.servers.len(), snapshot.unfit.len()), (1, 1));
    assert!(snapshot.unfit[0].why.message.contains("sealed with the key"), "{}", snapshot.unfit[0].why.message);

    fs::rename(&kept, &key).unwrap();
    let (desk, snapshot) = reopened(&mut rig, desk);
    assert!(snapshot.unfit.is_empty() && snapshot.servers.contains(&server));
    desk.store.close();
    rig.stop();
}

#[test]
fn a_rotation_of_the_key_that_is_cut_off_anywhere_is_finished_by_the_next_daemon() {
    let place = Place::new("rotation");
    let mut rig = Rig::start(&place);
    let mut desk = Desk::open(&rig.cluster.conninfo());
    desk.opened(&mut rig);
    let server = fresh("notes");
    for op in [insert(&server), StoreOp::PutSecret(secret())] {
        assert_eq!(desk.ask(&mut rig, op), StoreOutcome::Committed);
    }
    let (key, next) = (place.0.join("secret.key"), place.0.join("secret.key.next"));
    let first = fs::read(&key).unwrap();
    assert_eq!(desk.ask(&mut rig, StoreOp::RotateKey), StoreOutcome::Committed);
    let second = fs::read(&key).unwrap();
    assert!(first != second && !next.exists());
    // What is written by the same daemon afterwards is sealed with the new key.
    let later = StoredServer { created_unix_ms: server.created_unix_ms + 1, ..fresh("later") };
    assert_eq!(desk.ask(&mut rig, insert(&later)), StoreOutcome::Committed);
    let whole = |snapshot: &Snapshot| {
        assert_eq!(snapshot.servers, [server.clone(), later.clone()]);
        assert_eq!(snapshot.secrets, [secret()]);
    };
    let (desk, snapshot) = reopened(&mut rig, desk);
    whole(&snapshot);
    desk.store.close();

    // Cut off before the transaction: the next key is there, and nothing is sealed with it.
    let made = Place::new("rotation-next");
    drop(stdiod::sealing::Sealer::from_file(&made.0.join("key"), stdiod::sealing::Missing::Create).unwrap());
    fs::rename(made.0.join("key"), &next).unwrap();
    let third = fs::read(&next).unwrap();
    let mut desk = Desk::open(&rig.cluster.conninfo());
    whole(&desk.opened(&mut rig).unwrap());
    assert!(!next.exists() && fs::read(&key).unwrap() == third, "and it is finished");

    // Cut off after it: everything is sealed with the next key, which is not in its place.
    desk.store.close();
    fs::rename(&key, &next).unwrap();
    fs::write(&key, &second).unwrap();
    fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let mut desk = Desk::open(&rig.cluster.conninfo());
    whole(&desk.opened(&mut rig).unwrap());
    assert!(!next.exists() && fs::read(&key).unwrap() == third);
    desk.store.close();
    rig.stop();
}
