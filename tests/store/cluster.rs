//! The private cluster itself: how it begins, what may stand in its way, and how it ends.

use super::*;

#[test]
fn a_torn_initdb_is_never_taken_for_a_cluster() {
    let place = Place::new("torn");
    let mut rig = Rig::start(&place);
    rig.until("initdb's first files", |_| place.pg().join("data.new/base").exists().then_some(()));
    // The daemon is killed: its shell with it, initdb itself goes on for a while.
    let (_, mut shell) = rig.child.take().unwrap();
    shell.kill().unwrap();
    shell.wait().unwrap();
    drop(rig);
    assert!(!place.pg().join("data").exists());
    let mut rig = Rig::start(&place);
    rig.client();
    assert!(!place.pg().join("data.new").exists());
    assert!(rig.downs.is_empty(), "{:?}", rig.downs);
    rig.stop();
}

#[test]
fn stale_lock_files_and_a_living_predecessor_do_not_keep_it_from_starting() {
    let place = Place::new("stale");
    let mut rig = Rig::start(&place);
    let mut desk = Desk::open(&rig.cluster.conninfo());
    desk.opened(&mut rig);
    desk.ask(&mut rig, insert(&fresh("survivor")));
    desk.store.close();

    // The predecessor still runs: this is what a daemon killed a moment ago leaves.
    let (_, mut postmaster) = rig.child.take().unwrap();
    drop(rig);
    let mut rig = Rig::start(&place);
    assert!(postmaster.wait().unwrap().success(), "it was asked to stop, not shot");
    rig.client();
    let lock = fs::read_to_string(place.pg().join("data/postmaster.pid")).unwrap();
    let account = rig.account;
    rig.stop();

    // A number that is nobody's, and one that by now is somebody else's of the same account.
    let mut stranger = Command::new("/usr/bin/sleep");
    stranger.arg("1000").current_dir("/");
    if let Some(Account { uid, gid }) = account {
        stranger.gid(gid).uid(uid);
    }
    let mut stranger = stranger.spawn().unwrap();
    for pid in [4_194_303, stranger.id()] {
        let (_, rest) = lock.split_once('\n').unwrap();
        for file in ["data/postmaster.pid", ".s.PGSQL.5432.lock"] {
            let path = place.pg().join(file);
            fs::write(&path, format!("{pid}\n{rest}")).unwrap();
            if let Some(Account { uid, gid }) = account {
                chown(&path, Some(uid), Some(gid)).unwrap();
            }
        }
        let mut rig = Rig::start(&place);
        let row = rig.client().query_one("SELECT name FROM kb.agent_workspaces", &[]).unwrap();
        assert_eq!(row.get::<_, String>(0), "survivor");
        assert!(rig.downs.is_empty(), "{:?}", rig.downs);
        rig.stop();
    }
    assert!(stranger.try_wait().unwrap().is_none(), "a stranger is left alone");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[test]
fn it_goes_down_in_order_when_the_daemon_is_killed() {
    let place = Place::new("orphan");
    let dir = place.0.clone();
    // The kernel watches the thread that spawned, so the end of a thread stands for the end of the daemon.
    let mut child = std::thread::spawn(move || {
        let mut rig = Rig::start(&ManuallyDrop::new(Place(dir)));
        rig.client();
        rig.child.take().unwrap().1
    })
    .join()
    .unwrap();
    assert!(child.wait().unwrap().success());
    assert!(!place.pg().join("data/postmaster.pid").exists(), "a clean shutdown");
}

#[test]
fn what_stands_in_the_way_is_named_with_the_remedy() {
    let place = Place::new("errors");
    let held = prepare(&place.0).expect("PostgreSQL must be installed for this test");
    assert!(prepare(&place.0).unwrap_err().contains("another stdiod"));
    let account = held.account;
    drop(held);

    let data = place.pg().join("data");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("something"), "").unwrap();
    assert!(prepare(&place.0).unwrap_err().contains("move it away"));
    fs::write(data.join("PG_VERSION"), "9\n").unwrap();
    let e = prepare(&place.0).unwrap_err();
    assert!(e.contains("made by PostgreSQL 9") && e.contains("install postgresql-9"), "{e}");
    fs::remove_dir_all(&data).unwrap();

    if account.is_some() {
        let closed = place.0.join("closed");
        fs::create_dir_all(closed.join("in")).unwrap();
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
        let e = prepare(&closed.join("in")).unwrap_err();
        assert!(e.contains(&format!("chmod o+x {}", closed.display())), "{e}");
        chown(place.pg(), Some(0), Some(0)).unwrap();
        assert!(prepare(&place.0).unwrap_err().contains("chown -R"));
    }
    assert!(prepare(&place.0.join("nowhere")).unwrap_err().contains("nowhere"));
}

#[test]
fn a_directory_too_long_for_a_socket_gets_a_short_one_elsewhere() {
    let place = Place::new("long");
    let deep = place.0.join("a, \"b\" and 'c' ".repeat(6));
    fs::create_dir(&deep).unwrap();
    let deep = ManuallyDrop::new(Place(deep));
    let mut rig = Rig::start(&deep);
    let conninfo = rig.cluster.conninfo();
    let socket_dir = Place(PathBuf::from(conninfo.split('\'').nth(1).unwrap()));
    assert!(!socket_dir.0.starts_with(&place.0));
    assert_eq!(fs::metadata(&socket_dir.0).unwrap().permissions().mode() & 0o777, 0o700);
    let mut desk = Desk::open(&conninfo);
    assert!(desk.opened(&mut rig).is_some());
    desk.store.close();
    rig.stop();
}
