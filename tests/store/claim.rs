//! Two daemons on one database, as their stores see each other: one works, the other is refused or waits, and whoever has lost
//! the database writes nothing into it any more.

use crate::rig::*;
use std::time::{Duration, Instant};
use stdiod::ids::Uuid;
use stdiod::limits::{STANDBY_PATIENCE, STORE_LOCK_WAIT};
use stdiod::model::records::StoreOutcome;
use stdiod::store::home::Home;
use stdiod::store::thread::StoreEvent;

fn another(conninfo: &str) -> Home {
    Home { id: Uuid::new_v4(), host: "elsewhere".to_string(), kernel: "another".to_string(), ..home_of(conninfo) }
}

fn waited(desk: &mut Desk, rig: &mut Rig) -> String {
    match desk.event(rig, "StandingBy") {
        StoreEvent::StandingBy { why } => why,
        other => panic!("not StandingBy: {other:?}"),
    }
}

/// The last word of a store, whatever it says before.
fn denied(desk: &mut Desk, rig: &mut Rig) -> String {
    loop {
        match desk.event(rig, "Denied") {
            StoreEvent::Denied { why } => return why,
            StoreEvent::StandingBy { .. } | StoreEvent::Lost { .. } => {}
            other => panic!("not Denied: {other:?}"),
        }
    }
}

/// Ends every session of a store, as a cut connection does.
fn cut(rig: &mut Rig) {
    let sessions = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'stdiod'";
    rig.client().batch_execute(sessions).unwrap();
}

fn servers(rig: &mut Rig) -> i64 {
    rig.client().query_one("SELECT count(*) FROM kb.agent_workspaces", &[]).unwrap().get(0)
}

#[test]
fn a_second_daemon_is_refused_with_a_sentence_and_the_first_does_not_notice() {
    let place = Place::new("second");
    let mut rig = Rig::start(&place);
    let conninfo = rig.cluster.conninfo();
    let mut first = Desk::open(&conninfo);
    first.opened(&mut rig);
    let began = Instant::now();
    let mut second = Desk::open_as(&conninfo, another(&conninfo), false);
    let why = denied(&mut second, &mut rig);
    let data_dir = home_of(&conninfo).data_dir.display().to_string();
    for word in ["another stdiod", data_dir.as_str(), "database_url", "standby = true"] {
        assert!(why.contains(word), "{word}: {why}");
    }
    assert!(began.elapsed() < STORE_LOCK_WAIT + Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(first.ask(&mut rig, insert(&fresh("mine"))), StoreOutcome::Committed);
    first.store.close();
    second.store.close();
    rig.stop();
}

#[test]
fn a_standby_leaves_a_daemon_alone_that_has_only_lost_its_connection_and_takes_over_from_one_that_ends() {
    let place = Place::new("standby");
    let mut rig = Rig::start(&place);
    let conninfo = rig.cluster.conninfo();
    let mut first = Desk::open(&conninfo);
    first.opened(&mut rig);
    let server = fresh("kept");
    assert_eq!(first.ask(&mut rig, insert(&server)), StoreOutcome::Committed);
    let mut second = Desk::open_as(&conninfo, another(&conninfo), true);
    assert!(waited(&mut second, &mut rig).contains("another stdiod"));

    cut(&mut rig);
    loop {
        match first.event(&mut rig, "Opened") {
            StoreEvent::Opened { snapshot: None, .. } => break,
            StoreEvent::Lost { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    std::thread::sleep(STANDBY_PATIENCE + Duration::from_secs(1));
    assert_eq!(first.ask(&mut rig, save(server.id, 1)), StoreOutcome::Committed);

    first.store.close();
    let began = Instant::now();
    let snapshot = second.opened(&mut rig).expect("the first time");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(snapshot.servers[0].status.restart_count, 1);
    assert_eq!(second.ask(&mut rig, save(server.id, 2)), StoreOutcome::Committed);
    second.store.close();
    rig.stop();
}

#[test]
fn of_daemons_that_come_to_an_empty_database_together_one_works_at_a_time_and_each_has_its_turn() {
    const DAEMONS: usize = 3;
    let place = Place::new("together");
    let mut rig = Rig::start(&place);
    let conninfo = rig.database("together");
    let mut desks: Vec<Desk> = (0..DAEMONS).map(|_| Desk::open_as(&conninfo, another(&conninfo), true)).collect();
    for turn in 0..DAEMONS {
        let (which, snapshot) = rig.until("one to work", |_| {
            desks.iter_mut().enumerate().find_map(|(which, desk)| match desk.store.events().next()? {
                StoreEvent::Opened { snapshot, .. } => Some((which, snapshot.expect("the first time"))),
                StoreEvent::StandingBy { .. } => None,
                other => panic!("{other:?}"),
            })
        });
        assert_eq!(snapshot.servers.len(), turn, "it finds what those before it have left");
        let mut desk = desks.remove(which);
        assert_eq!(desk.ask(&mut rig, insert(&fresh(&format!("of-{turn}")))), StoreOutcome::Committed);
        let opened_too = |event: &StoreEvent| matches!(event, StoreEvent::Opened { .. });
        assert!(!desks.iter_mut().any(|desk| desk.store.events().any(|event| opened_too(&event))), "two work at once");
        desk.store.close();
    }
    rig.stop();
}

#[test]
fn what_a_daemon_writes_after_another_has_taken_over_is_refused_by_the_tables_and_it_ends() {
    let place = Place::new("fenced");
    let mut rig = Rig::start(&place);
    let conninfo = rig.cluster.conninfo();
    let mut first = Desk::open(&conninfo);
    first.opened(&mut rig);
    assert_eq!(first.ask(&mut rig, insert(&fresh("before"))), StoreOutcome::Committed);
    // Its session goes on all the same, as one does behind a proxy that has kept it.
    let taken = "UPDATE kb.daemon SET epoch = epoch + 1, home = gen_random_uuid(), host = 'elsewhere'";
    rig.client().batch_execute(taken).unwrap();
    match first.ask(&mut rig, insert(&fresh("after"))) {
        StoreOutcome::Unknown(why) => assert!(why.contains("taken this database over"), "{why}"),
        other => panic!("{other:?}"),
    }
    let why = denied(&mut first, &mut rig);
    assert!(why.contains("on elsewhere") && why.contains("this one ends"), "{why}");
    assert_eq!(servers(&mut rig), 1, "nothing was written");
    // Whoever is no daemon is asked nothing.
    rig.client().batch_execute("DELETE FROM kb.agent_workspaces").unwrap();
    first.store.close();
    rig.stop();
}

#[test]
fn a_daemon_that_comes_back_to_a_database_that_had_another_in_between_ends() {
    let place = Place::new("between");
    let mut rig = Rig::start(&place);
    let conninfo = rig.cluster.conninfo();
    let mut first = Desk::open(&conninfo);
    first.opened(&mut rig);
    rig.client().batch_execute("UPDATE kb.daemon SET epoch = epoch + 1").unwrap();
    cut(&mut rig);
    assert!(denied(&mut first, &mut rig).contains("taken this database over"));
    first.store.close();
    rig.stop();
}

#[test]
fn the_next_life_of_a_daemon_ends_the_session_of_the_one_before_at_once() {
    let place = Place::new("next-life");
    let mut rig = Rig::start(&place);
    let conninfo = rig.cluster.conninfo();
    let mut first = Desk::open(&conninfo);
    first.opened(&mut rig);
    // As if it had been killed, and the server had not noticed.
    let mut next = Desk::open(&conninfo);
    let began = Instant::now();
    next.opened(&mut rig).expect("the first time");
    assert!(began.elapsed() < STORE_LOCK_WAIT, "{:?}", began.elapsed());
    assert!(denied(&mut first, &mut rig).contains("taken this database over"));
    first.store.close();
    next.store.close();
    rig.stop();
}

#[test]
fn every_table_that_the_daemon_writes_is_fenced() {
    let place = Place::new("all-fenced");
    let mut rig = Rig::start(&place);
    let mut desk = Desk::open(&rig.cluster.conninfo());
    desk.opened(&mut rig);
    let open = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'kb'::regnamespace
        AND relname NOT IN ('daemon', 'schema_migrations')
        AND NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = pg_class.oid AND tgname = 'stdiod_epoch')";
    let open: Vec<String> = rig.client().query(open, &[]).unwrap().iter().map(|row| row.get(0)).collect();
    assert!(open.is_empty(), "give {open:?} the trigger of migration 0008 in the migration that makes them");
    desk.store.close();
    rig.stop();
}
